//! A stream that follows its window is told a rate while it sends, and never more than its bound.

mod common;

use common::{pair, source};
use kuroshio_core::units::BitRate;
use kuroshio_transfer::{
    Conn, DataConn, Options, Progress, ReceiveJob, SendJob, SessionConns, StreamRate, receive, send,
    session_key,
};
use std::fs::{self, File};
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn a_stream_that_follows_its_window_keeps_to_its_bound() {
    let dir = tempfile::tempdir().expect("folder");
    let from = dir.path().join("from");
    fs::write(&from, vec![5; 24 << 20]).expect("a file");
    let to = dir.path().join("to");
    fs::create_dir(&to).expect("a folder");
    let ((f1, f2), (r1, r2), (d1, d2)) = (pair(), pair(), pair());
    let watched = d1.try_clone().expect("clone");
    let bound = BitRate::from_mbps(400);
    let rate = StreamRate::new(Some(bound));
    rate.follow_window();
    let near = DataConn {
        conn: Conn::plain(d1),
        route: 0,
        rate,
    };
    let near = SessionConns::new(Conn::plain(f1), Conn::plain(r1), vec![near]);
    let far = vec![DataConn::unpaced(Conn::plain(d2))];
    let far = SessionConns::new(Conn::plain(f2), Conn::plain(r2), far);
    let sending = SendJob {
        sources: vec![source(&from)],
        options: Options::default(),
        key: session_key(b"to", b"follow"),
    };
    let receiving = ReceiveJob {
        root: File::open(&to).expect("open").into(),
        dest: Vec::new(),
    };
    let ended = AtomicBool::new(false);
    let told = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut told = Vec::new();
            while !ended.load(Ordering::SeqCst) {
                if let Ok(info) = kuroshio_sock::tcp_info(&watched)
                    && info.bytes_sent > 1 << 20
                    && let Some(framing) = info.framing(false)
                {
                    let most = framing.payload_bytes_per_s(bound);
                    told.push((info.max_pacing_rate_bytes_per_s, most));
                }
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            told
        });
        let receiver = scope.spawn(|| receive(far, receiving, &Progress::new()));
        let sent = send(near, sending, &Progress::new());
        ended.store(true, Ordering::SeqCst);
        assert!(sent.expect("sent").is_complete());
        receiver.join().expect("no panic").expect("received");
        watcher.join().expect("no panic")
    });
    // 24 MiB at 400 Mbps are half a second.
    assert!(told.len() >= 5, "{told:?}");
    assert!(told.iter().all(|(told, most)| told <= most), "{told:?}");
    assert_eq!(fs::metadata(to.join("from")).expect("there").len(), 24 << 20);
}
