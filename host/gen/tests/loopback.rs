//! Sessions on loopback: what is sent arrives and is counted, and what is wrong is refused.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kuroshio_core::traffic::{Entry, Pattern, Sizes, Timing};
use kuroshio_core::units::{BitRate, FrameBytes, PicoDuration};
use kuroshio_gen::{Common, GenError, Server, Session, find_throughput};

const PATIENCE: Duration = Duration::from_secs(30);

/// A receiver in a thread, which ends with it.
struct Receiver {
    at: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<(), GenError>>>,
}

impl Receiver {
    fn start(ip: IpAddr) -> Self {
        let server = Server::bind(SocketAddr::new(ip, 0), false, Arc::new(|_, _| {})).expect("a receiver");
        Self {
            at: server.address().expect("its address"),
            stop: server.stopper(),
            thread: Some(std::thread::spawn(move || server.serve())),
        }
    }

    fn v4() -> Self {
        Self::start(Ipv4Addr::LOCALHOST.into())
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let served = thread.join().expect("the receiver's thread");
            if !std::thread::panicking() {
                served.expect("served");
            }
        }
    }
}

fn pattern(timing: Timing, sizes: Sizes, streams: u32, frames: u64) -> Pattern {
    Pattern {
        timing,
        sizes,
        streams,
        seed: 1,
        time: None,
        frames: Some(frames),
    }
}

fn slow() -> Timing {
    Timing::Interval(PicoDuration::from_us(50))
}

fn go() -> AtomicBool {
    AtomicBool::new(false)
}

#[test]
fn every_frame_is_counted_in_its_stream() {
    for ip in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
        let receiver = Receiver::start(ip);
        let mut session = Session::connect(receiver.at, 3, None).expect("a session");
        assert_eq!(session.common_clock(), Common::SameMachine);
        let sizes = Sizes::Range(FrameBytes::new(84), FrameBytes::new(9_018));
        let result = session
            .run(pattern(slow(), sizes, 3, 1_000), &go())
            .expect("a run");
        assert_eq!(
            (result.sent.frames, result.sent.streams),
            (1_000, vec![334, 333, 333])
        );
        let received = &result.received;
        let lost: u64 = received.streams.iter().map(|s| s.lost_frames).sum();
        assert_eq!(lost, received.receiver_dropped_frames, "{received:?}");
        let bytes: u64 = received.streams.iter().map(|s| s.received_frame_bytes).sum();
        assert!(
            lost > 0 || bytes == result.sent.frame_bytes,
            "{bytes} of {}",
            result.sent.frame_bytes
        );
        for stream in &received.streams {
            assert_eq!((stream.duplicate_frames, stream.reordered_frames), (0, 0));
            assert_eq!(stream.received_before_sent_frames, 0, "one clock");
            assert!(stream.one_way_delay_us["min"] > 0.0);
        }
        assert_eq!((received.foreign_frames, received.unstamped_frames), (0, 0));
        // A second run on the same session begins anew.
        let again = session.run(pattern(slow(), Sizes::Fixed(FrameBytes::new(84)), 1, 10), &go());
        assert_eq!(again.expect("a run").received.streams[0].sent_frames, 10);
    }
}

#[test]
fn the_rate_and_the_lateness_are_reported() {
    let receiver = Receiver::v4();
    let mut session = Session::connect(receiver.at, 1, None).expect("a session");
    let rate = Timing::Rate(BitRate::from_mbps(50));
    let result = session.run(
        pattern(rate, Sizes::Fixed(FrameBytes::new(1_250)), 1, 1_000),
        &go(),
    );
    let sent = result.expect("a run").sent;
    // 200 us from start to start; late frames do not move the others, so the duration is off by the lateness only.
    let asked_ns = 999 * 200_000;
    assert!(sent.duration_ns + sent.lateness_ns.max >= asked_ns, "{sent:?}");
    assert!(
        sent.duration_ns <= asked_ns + sent.lateness_ns.max + 1_000_000,
        "{sent:?}"
    );
    assert_eq!(sent.lateness_ns.count, 1_000);
}

#[test]
fn frames_of_others_and_of_other_runs_are_foreign() {
    let receiver = Receiver::v4();
    let mut control = TcpStream::connect(receiver.at).expect("connect");
    control.set_read_timeout(Some(PATIENCE)).expect("a limit");
    let mut lines = BufReader::new(control.try_clone().expect("clone")).lines();
    let mut say = |text: &str| -> serde_json::Value {
        writeln!(control, "{text}").expect("said");
        let line = lines.next().expect("an answer").expect("a line");
        serde_json::from_str(&line).expect("JSON")
    };
    let clock = r#"{"boot_id":"x","synchronised":false,"max_error_us":0,"tai_offset_s":0}"#;
    let welcome = say(&format!(
        r#"{{"do":"hello","version":1,"streams":2,"clock":{clock}}}"#
    ));
    let port = welcome["udp_port"].as_u64().expect("a port") as u16;
    assert_eq!(
        say(r#"{"do":"begin","run":5,"kind":"report"}"#)["answer"],
        "ready"
    );
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let stamp = |run, stream| {
        let stamp = kuroshio_core::traffic::Stamp {
            run,
            stream,
            sequence: 0,
            sent_ns: 1,
        };
        stamp.to_bytes()
    };
    for frame in [&stamp(5, 1)[..], &stamp(4, 1), &stamp(5, 2), b"hello", b""] {
        socket.send_to(frame, ("127.0.0.1", port)).expect("sent");
    }
    let report = say(r#"{"do":"end","sent":[0,1]}"#);
    assert_eq!(report["answer"], "report");
    assert_eq!(report["streams"][0]["received_frames"], 1, "{report}");
    assert_eq!(report["foreign_frames"], 4, "{report}");
}

#[test]
fn nonsense_is_refused_and_the_receiver_goes_on() {
    let receiver = Receiver::v4();
    for bad in [
        "GET / HTTP/1.1\n".to_owned(),
        "{\"do\":\"end\",\"sent\":[]}\n".to_owned(),
        "x".repeat(70_000),
        format!(
            "{{\"do\":\"hello\",\"version\":1,\"streams\":1025,\"clock\":{}}}\n",
            r#"{"boot_id":"x","synchronised":false,"max_error_us":0,"tai_offset_s":0}"#
        ),
    ] {
        let mut stream = TcpStream::connect(receiver.at).expect("connect");
        stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
        stream.write_all(bad.as_bytes()).expect("written");
        let mut line = String::new();
        // A receiver that closes with bytes unread resets the connection; either way it is over.
        if BufReader::new(stream).read_line(&mut line).is_ok() {
            assert!(line.is_empty() || line.contains("refused"), "{line}");
        }
    }
    let mut session = Session::connect(receiver.at, 1, None).expect("still there");
    let result = session
        .run(pattern(slow(), Sizes::Imix, 1, 10), &go())
        .expect("a run");
    assert_eq!(result.sent.frames, 10);
}

#[test]
fn sizes_that_hold_no_stamp_are_refused_before_anything_is_sent() {
    let receiver = Receiver::start(Ipv6Addr::LOCALHOST.into());
    let mut session = Session::connect(receiver.at, 1, None).expect("a session");
    let refused = session.run(pattern(slow(), Sizes::Fixed(FrameBytes::new(83)), 1, 10), &go());
    let error = refused.expect_err("too small");
    assert!(
        error.is_bad_input() && error.to_string().contains("84B"),
        "{error}"
    );
}

#[test]
fn a_run_is_stopped_early_with_results() {
    let receiver = Receiver::v4();
    let mut session = Session::connect(receiver.at, 1, None).expect("a session");
    let stop = Arc::new(AtomicBool::new(false));
    let entries = vec![
        Entry {
            gap: PicoDuration::ZERO,
            len: FrameBytes::new(64),
        },
        Entry {
            gap: PicoDuration::from_secs(3_600),
            len: FrameBytes::new(64),
        },
    ];
    let timing = Timing::List {
        entries: entries.into(),
        repeat: false,
    };
    let flag = Arc::clone(&stop);
    let begun = Instant::now();
    let stopper = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        flag.store(true, Ordering::Relaxed);
    });
    let result = session
        .run(pattern(timing, Sizes::Imix, 1, 2), &stop)
        .expect("results");
    stopper.join().expect("the stopper");
    assert!(begun.elapsed() < PATIENCE);
    assert!(
        result.sent.interrupted && result.sent.frames <= 1,
        "{:?}",
        result.sent
    );
}

#[test]
fn throughput_on_loopback_ends() {
    let receiver = Receiver::v4();
    let mut session = Session::connect(receiver.at, 1, None).expect("a session");
    let rate = BitRate::from_mbps(2);
    let run = pattern(Timing::Rate(rate), Sizes::Fixed(FrameBytes::new(1_250)), 1, 20);
    let mut runs = 0;
    let found = find_throughput(
        &mut session,
        &run,
        BitRate::from_mbps(1),
        500_000,
        &go(),
        &mut |_, _, _| runs += 1,
    );
    let found = found.expect("a search").result;
    assert_eq!(found.runs, runs);
    assert!(found.lossless.is_some() || found.lossy.is_some());
    let poisson = pattern(Timing::Poisson(rate), Sizes::Imix, 1, 20);
    let refused = find_throughput(&mut session, &poisson, rate, 1_000, &go(), &mut |_, _, _| {});
    assert!(refused.is_err_and(|e| e.is_bad_input()));
}
