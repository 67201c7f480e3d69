//! Whole sessions over real TCP and real files.

mod common;

use common::{Hurt, copy, copy_with_events, ends, noise, pair, put, receive_job, run, send_job, walk};
use kuroshio_transfer::{
    Conn, DataConn, DigestMode, Event, FileErrorKind, Options, Placement, Progress, SessionConns, Snapshot,
    Source, Summary, SyncMode, TransferError, receive,
};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

const CHUNK: usize = 1 << 20;

struct Dirs {
    _keep: tempfile::TempDir,
    src: PathBuf,
    dst: PathBuf,
}

fn dirs() -> Dirs {
    let keep = tempfile::tempdir().expect("folder");
    let (src, dst) = (keep.path().join("src"), keep.path().join("dst"));
    fs::create_dir(&src).expect("folder");
    Dirs {
        _keep: keep,
        src,
        dst,
    }
}

fn small_chunks() -> Options {
    Options {
        chunk: 64 << 10,
        ..Options::default()
    }
}

/// A tree with everything that is carried.
fn everything(src: &Path) {
    put(&src.join("empty"), b"");
    put(&src.join("one"), b"x");
    put(&src.join("a/b/c/deep"), &noise(5000, 1));
    for (i, len) in [
        CHUNK - 1,
        CHUNK,
        CHUNK + 1,
        2 * CHUNK,
        3 * CHUNK + 17,
        256 << 10,
        (256 << 10) + 1,
    ]
    .iter()
    .enumerate()
    {
        put(&src.join(format!("sizes/{i}")), &noise(*len, i as u64));
    }
    put(
        &src.join(OsStr::from_bytes(b"not\xff\xfeutf8/\x01 name\n")),
        b"bytes",
    );
    fs::create_dir_all(src.join("hollow/inside")).expect("folder");
    symlink("a/b", src.join("link")).expect("link");
    symlink("/nowhere/at all", src.join("dangling")).expect("link");
    fs::hard_link(src.join("one"), src.join("a/another")).expect("hard link");
    fs::hard_link(src.join("one"), src.join("z")).expect("hard link");
    fs::set_permissions(src.join("one"), fs::Permissions::from_mode(0o640)).expect("mode");
    fs::set_permissions(src.join("sizes"), fs::Permissions::from_mode(0o555)).expect("mode");
    fs::set_permissions(src.join("hollow"), fs::Permissions::from_mode(0o1770)).expect("mode");
    let old = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    for name in ["a/b/c/deep", "hollow", "sizes", "sizes/3"] {
        File::open(src.join(name))
            .expect("open")
            .set_modified(old)
            .expect("time");
    }
}

#[test]
fn a_tree_arrives_with_all_its_kinds_and_no_state_is_left() {
    for (digest, streams) in [(DigestMode::Blake3, 3), (DigestMode::None, 1)] {
        let d = dirs();
        everything(&d.src);
        let options = Options {
            digest,
            ..Options::default()
        };
        let (sent, received) = copy(&d.src, &d.dst, options, &vec![Hurt::Nothing; streams]);
        let (sent, received) = (sent.expect("sent"), received.expect("received"));
        assert_eq!(sent.errors, []);
        assert_eq!(walk(&d.src), walk(&d.dst));
        assert!(!d.dst.join(".kuroshio-partial").exists());
        assert!(!d.dst.parent().expect("folder").join(".kuroshio-partial").exists());
        assert_eq!(received.files_durable, sent.files);
        assert_eq!(sent.files_durable, sent.files);
        let verified = if digest == DigestMode::None { 0 } else { sent.files };
        assert_eq!(
            (sent.files_verified, received.files_verified),
            (verified, verified)
        );
    }
}

#[test]
fn the_reported_digest_is_that_of_the_whole_file() {
    let d = dirs();
    let bytes = noise(5 * CHUNK + 333, 4);
    put(&d.src.join("f"), &bytes);
    let (out, events) = copy_with_events(&d.src, &d.dst, &[Hurt::Nothing, Hurt::Nothing]);
    assert!(out.0.expect("sent").is_complete());
    let digests: Vec<_> = events
        .iter()
        .filter_map(|e| {
            if let Event::Durable { digest, .. } = e {
                Some(*digest)
            } else {
                None
            }
        })
        .collect();
    assert_eq!(digests, [Some(*blake3::hash(&bytes).as_bytes())]);
}

#[test]
fn a_sparse_file_stays_sparse() {
    let d = dirs();
    let file = File::create(d.src.join("sparse")).expect("make");
    file.write_all_at(&noise(10_000, 1), 64 << 20).expect("write");
    file.write_all_at(&noise(10_000, 2), 200 << 20).expect("write");
    file.set_len(256 << 20).expect("size");
    let holes = File::create(d.src.join("only a hole")).expect("make");
    holes.set_len(8 << 20).expect("size");
    let (sent, _) = copy(&d.src, &d.dst, Options::default(), &[Hurt::Nothing]);
    let sent = sent.expect("sent");
    assert!(sent.is_complete(), "{:?}", sent.errors);
    assert!(sent.bytes_sent < 100_000, "{} bytes were sent", sent.bytes_sent);
    assert_eq!(walk(&d.src), walk(&d.dst));
    for name in ["sparse", "only a hole"] {
        let blocks = fs::metadata(d.dst.join(name)).expect("stat").blocks();
        assert!(blocks * 512 < 256 << 10, "{name} takes {blocks} blocks");
    }
}

#[test]
fn a_bit_flipped_on_the_way_is_found_and_sent_again() {
    let d = dirs();
    put(&d.src.join("large"), &noise(4 * CHUNK, 1));
    put(&d.src.join("small"), &noise(50_000, 2));
    // Beyond the first header, inside a payload.
    let (out, events) = copy_with_events(&d.src, &d.dst, &[Hurt::Flip(70_000)]);
    let (sent, received) = (out.0.expect("sent"), out.1.expect("received"));
    assert_eq!(sent.errors, []);
    assert_eq!(walk(&d.src), walk(&d.dst));
    assert_eq!((sent.chunks_resent, received.chunks_resent), (1, 1));
    assert!(
        events.iter().any(|e| matches!(e, Event::Resent { .. })),
        "{events:?}"
    );
}

#[test]
fn without_a_digest_a_flipped_bit_gets_through() {
    // Shows that the test above can fail, and what `--digest none` gives up.
    let d = dirs();
    put(&d.src.join("f"), &noise(4 * CHUNK, 1));
    let options = Options {
        digest: DigestMode::None,
        ..Options::default()
    };
    let (sent, _) = copy(&d.src, &d.dst, options, &[Hurt::Flip(70_000)]);
    assert!(sent.expect("sent").is_complete());
    assert_ne!(walk(&d.src), walk(&d.dst));
}

/// Finds the part files of a running or ended session.
fn parts(dst: &Path) -> Vec<PathBuf> {
    let top = dst.parent().expect("folder").join(".kuroshio-partial");
    let Ok(sessions) = fs::read_dir(top) else {
        return Vec::new();
    };
    sessions
        .flat_map(|s| fs::read_dir(s.expect("entry").path()).expect("list"))
        .map(|e| e.expect("entry").path())
        .filter(|p| p.file_name() != Some(OsStr::new("journal")))
        .collect()
}

#[test]
fn a_cut_loses_only_what_was_under_way_and_a_flipped_part_file_is_repaired() {
    let d = dirs();
    let (src, dst) = (d.src.join("f"), d.dst.clone());
    let size = 8 << 20;
    put(&src, &noise(size, 3));
    let (sent, received) = copy(&src, &dst, small_chunks(), &[Hurt::Cut(5 << 20)]);
    assert!(matches!(sent, Err(TransferError::Connection { .. })), "{sent:?}");
    assert!(received.is_err());
    assert!(!dst.exists(), "nothing is published");
    let parts = parts(&dst);
    assert_eq!(parts.len(), 1);
    // A bit of what was written turns on the destination's disk.
    let part = File::options()
        .read(true)
        .write(true)
        .open(&parts[0])
        .expect("open");
    let mut byte = [0u8; 1];
    part.read_exact_at(&mut byte, 100_000).expect("read");
    part.write_all_at(&[byte[0] ^ 4], 100_000).expect("write");
    let (sent, received) = copy(&src, &dst, small_chunks(), &[Hurt::Nothing, Hurt::Nothing]);
    let (sent, received) = (sent.expect("sent"), received.expect("received"));
    assert!(sent.is_complete() && received.is_complete());
    assert_eq!(fs::read(&src).expect("read"), fs::read(&dst).expect("read"));
    assert_eq!(sent.chunks_resent, 1);
    let missing = (size - (5 << 20)) as u64;
    assert!(
        sent.bytes_sent <= missing + 3 * (64 << 10),
        "{} sent for {missing} missing",
        sent.bytes_sent
    );
    assert!(
        sent.bytes_resumed >= (5 << 20) - (128 << 10),
        "{}",
        sent.bytes_resumed
    );
}

#[test]
fn files_that_were_done_are_not_sent_again() {
    let d = dirs();
    for i in 0..300 {
        put(&d.src.join(format!("{i}")), &noise(20_000, i));
    }
    let (sent, _) = copy(&d.src, &d.dst, Options::default(), &[Hurt::Cut(4_000_000)]);
    assert!(sent.is_err());
    let (sent, _) = copy(&d.src, &d.dst, Options::default(), &[Hurt::Nothing]);
    let sent = sent.expect("sent");
    assert!(sent.is_complete(), "{:?}", sent.errors);
    assert_eq!(walk(&d.src), walk(&d.dst));
    assert!(
        sent.bytes_sent <= 6_000_000 - 4_000_000 + 64 * 20_000,
        "{} were sent",
        sent.bytes_sent
    );
}

#[test]
fn one_stream_of_three_dies_and_the_session_lives() {
    let d = dirs();
    put(&d.src.join("f"), &noise(12 << 20, 5));
    let hurts = [Hurt::Nothing, Hurt::Cut(300_000), Hurt::Nothing];
    let (out, events) = copy_with_events(&d.src, &d.dst, &hurts);
    let sent = out.0.expect("sent");
    assert!(sent.is_complete() && out.1.expect("received").is_complete());
    assert_eq!(walk(&d.src), walk(&d.dst));
    assert!(
        events.iter().any(|e| matches!(e, Event::StreamLost { .. })),
        "{events:?}"
    );
}

#[test]
fn a_stream_may_join_late() {
    let d = dirs();
    put(&d.src.join("f"), &noise(2 << 20, 5));
    let ((f1, f2), (r1, r2), (a, b)) = (pair(), pair(), pair());
    let (near_tx, near_rx) = std::sync::mpsc::channel();
    let (far_tx, far_rx) = std::sync::mpsc::channel();
    let near = SessionConns {
        fwd: Conn::plain(f1),
        rev: Conn::plain(r1),
        data: near_rx,
    };
    let far = SessionConns {
        fwd: Conn::plain(f2),
        rev: Conn::plain(r2),
        data: far_rx,
    };
    let joining = std::thread::spawn(move || {
        near_tx.send(DataConn::unpaced(Conn::plain(a))).expect("joins");
        far_tx.send(DataConn::unpaced(Conn::plain(b))).expect("joins");
        (near_tx, far_tx)
    });
    let (sent, _) = run(
        (near, far),
        send_job(&d.src, &d.dst, Options::default()),
        receive_job(&d.dst),
        |_| {},
    );
    assert!(sent.expect("sent").is_complete());
    drop(joining.join());
    assert_eq!(walk(&d.src), walk(&d.dst));
}

#[test]
fn a_source_that_changes_meanwhile_is_sent_again() {
    let d = dirs();
    let path = d.src.join("f");
    put(&path, &noise(6 << 20, 1));
    let after = noise(7 << 20, 2);
    let changed = AtomicU64::new(0);
    let (path2, after2) = (path.clone(), after.clone());
    // The stream writes through a hook that rewrites the source once, half-way through its content.
    let ((f1, f2), (r1, r2), (a, b)) = (pair(), pair(), pair());
    let hooked = Hooked {
        socket: a,
        hook: Box::new(move |at| {
            if at > 2 << 20 && changed.fetch_add(1, Ordering::SeqCst) == 0 {
                fs::write(&path2, &after2).expect("rewrite");
            }
        }),
        at: 0,
    };
    let near = SessionConns::new(
        Conn::plain(f1),
        Conn::plain(r1),
        vec![DataConn::unpaced(Conn::other(hooked))],
    );
    let far = SessionConns::new(
        Conn::plain(f2),
        Conn::plain(r2),
        vec![DataConn::unpaced(Conn::plain(b))],
    );
    let (sent, received) = run(
        (near, far),
        send_job(&d.src, &d.dst, small_chunks()),
        receive_job(&d.dst),
        |_| {},
    );
    let (sent, received) = (sent.expect("sent"), received.expect("received"));
    assert!(sent.is_complete(), "{:?}", sent.errors);
    assert!(sent.files_restarted >= 1);
    assert_eq!(received.files_restarted, sent.files_restarted);
    assert_eq!(fs::read(d.dst.join("f")).expect("read"), after);
}

struct Hooked {
    socket: std::net::TcpStream,
    hook: Box<dyn Fn(u64) + Send>,
    at: u64,
}

impl std::io::Read for Hooked {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        self.socket.read(buf)
    }
}

impl Write for Hooked {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        let n = self.socket.write(buf)?;
        self.at += n as u64;
        (self.hook)(self.at);
        Ok(n)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl kuroshio_transfer::Stream for Hooked {
    fn tcp(&self) -> Option<&std::net::TcpStream> {
        Some(&self.socket)
    }
    fn finish(&mut self) -> std::io::Result<()> {
        self.socket.shutdown(std::net::Shutdown::Write)
    }
}

#[test]
fn links_out_of_the_destination_are_not_followed() {
    let d = dirs();
    let outside = d.src.parent().expect("folder").join("outside");
    fs::create_dir(&outside).expect("folder");
    put(&d.src.join("sub/f"), b"secret");
    fs::create_dir(&d.dst).expect("folder");
    fs::create_dir(d.dst.join("src")).expect("folder");
    symlink(&outside, d.dst.join("src/sub")).expect("link");
    let (sent, _) = copy(&d.src, &d.dst, Options::default(), &[Hurt::Nothing]);
    let sent = sent.expect("the session ends");
    assert!(sent.files_failed >= 1);
    assert_eq!(fs::read_dir(&outside).expect("list").count(), 0);
}

#[test]
fn a_source_cannot_leave_its_base() {
    let d = dirs();
    put(&d.src.parent().expect("folder").join("secret"), b"x");
    symlink("..", d.src.join("up")).expect("link");
    for path in [&b"../secret"[..], b"up/secret", b"/etc/hostname"] {
        let mut job = send_job(&d.src, &d.dst, Options::default());
        let base = File::open(&d.src).expect("open").into();
        job.sources = vec![Source {
            base,
            path: path.to_vec(),
            name: b"got".to_vec(),
        }];
        let (sent, _) = run(ends(&[Hurt::Nothing]), job, receive_job(&d.dst), |_| {});
        let sent = sent.expect("the session ends");
        assert_eq!(sent.files_failed, 1, "{path:?}");
        assert!(!d.dst.exists());
    }
}

#[test]
fn one_bad_file_fails_alone() {
    let d = dirs();
    for name in ["a", "b", "c"] {
        put(&d.src.join(name), b"content");
    }
    fs::create_dir_all(d.dst.join("src/b/in the way")).expect("folder");
    let (sent, received) = copy(&d.src, &d.dst, Options::default(), &[Hurt::Nothing]);
    let (sent, received) = (sent.expect("sent"), received.expect("received"));
    assert_eq!((sent.files_failed, received.files_failed), (1, 1));
    assert_eq!(sent.errors[0].kind, FileErrorKind::Destination);
    assert_eq!(sent.errors[0].path, b"src/b");
    assert_eq!(fs::read(d.dst.join("src/a")).expect("read"), b"content");
    assert_eq!(fs::read(d.dst.join("src/c")).expect("read"), b"content");
}

#[test]
fn sync_skips_what_is_equal() {
    let d = dirs();
    put(&d.src.join("a"), &noise(1000, 1));
    put(&d.src.join("b"), &noise(1000, 2));
    let options = |sync| Options {
        sync,
        placement: Placement::Exact,
        ..Options::default()
    };
    assert!(
        copy(&d.src, &d.dst, options(SyncMode::Off), &[Hurt::Nothing])
            .0
            .expect("sent")
            .is_complete()
    );
    for (sync, skipped) in [
        (SyncMode::Off, 0),
        (SyncMode::Size, 2),
        (SyncMode::Time, 2),
        (SyncMode::Digest, 2),
    ] {
        let sent = copy(&d.src, &d.dst, options(sync), &[Hurt::Nothing])
            .0
            .expect("sent");
        assert_eq!(sent.files_skipped, skipped, "{sync:?}");
    }
    // The same size, another content and time.
    fs::write(d.dst.join("a"), noise(1000, 9)).expect("write");
    for (sync, skipped) in [(SyncMode::Size, 2), (SyncMode::Digest, 1), (SyncMode::Time, 2)] {
        let sent = copy(&d.src, &d.dst, options(sync), &[Hurt::Nothing])
            .0
            .expect("sent");
        assert_eq!(sent.files_skipped, skipped, "{sync:?}");
    }
    assert_eq!(walk(&d.src), walk(&d.dst));
}

#[test]
fn a_dry_run_changes_nothing() {
    let d = dirs();
    everything(&d.src);
    let job = send_job(
        &d.src,
        &d.dst,
        Options {
            dry_run: true,
            ..Options::default()
        },
    );
    let total = std::sync::Arc::new(AtomicU64::new(0));
    let sum = total.clone();
    let (sent, _) = run(ends(&[Hurt::Nothing]), job, receive_job(&d.dst), move |e| {
        if let Event::WouldSend { bytes, .. } = e {
            sum.fetch_add(*bytes, Ordering::SeqCst);
        }
    });
    let sent = sent.expect("sent");
    assert_eq!(total.load(Ordering::SeqCst), sent.bytes);
    assert_eq!(
        fs::read_dir(d.src.parent().expect("folder"))
            .expect("list")
            .count(),
        1
    );
}

#[test]
fn garbage_on_any_connection_is_a_clear_error() {
    let d = dirs();
    for which in 0..2 {
        let ((mut f1, f2), (_r1, r2), (mut a, b)) = (pair(), pair(), pair());
        let far = SessionConns::new(
            Conn::plain(f2),
            Conn::plain(r2),
            vec![DataConn::unpaced(Conn::plain(b))],
        );
        let to = receive_job(&d.dst);
        let receiving = std::thread::spawn(move || receive(far, to, &Progress::new()));
        if which == 0 {
            f1.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").expect("write");
        } else {
            // A true Hello, then rubbish where a frame should be.
            let hello = hello_bytes(&d);
            f1.write_all(&hello).expect("write");
            a.write_all(&[b'x'; 200]).expect("write");
        }
        let got = receiving.join().expect("no panic");
        assert!(matches!(got, Err(TransferError::Protocol(_))), "{which}: {got:?}");
    }
}

/// What a real sender says first, overheard.
fn hello_bytes(d: &Dirs) -> Vec<u8> {
    use std::io::Read;
    let ((f1, mut f2), (r1, r2), (a, _b)) = (pair(), pair(), pair());
    let near = SessionConns::new(
        Conn::plain(f1),
        Conn::plain(r1),
        vec![DataConn::unpaced(Conn::plain(a))],
    );
    let job = send_job(&d.src, &d.dst, Options::default());
    let sending = std::thread::spawn(move || kuroshio_transfer::send(near, job, &Progress::new()));
    // Length and checksums, then the message.
    let mut head = [0u8; 16];
    f2.read_exact(&mut head).expect("read");
    let len = u32::from_le_bytes(*head.first_chunk().expect("four bytes"));
    let mut body = vec![0u8; len as usize];
    f2.read_exact(&mut body).expect("read");
    drop((f2, r2));
    assert!(sending.join().expect("no panic").is_err());
    [&head[..], &body].concat()
}

#[test]
fn cancelling_ends_both_sides() {
    let d = dirs();
    put(&d.src.join("f"), &noise(1 << 20, 1));
    let progress = Progress::new();
    progress.cancel();
    let (near, far) = ends(&[Hurt::Nothing]);
    let to = receive_job(&d.dst);
    let receiving = std::thread::spawn(move || receive(far, to, &Progress::new()));
    let sent = kuroshio_transfer::send(near, send_job(&d.src, &d.dst, Options::default()), &progress);
    assert!(matches!(sent, Err(TransferError::Cancelled)), "{sent:?}");
    assert!(receiving.join().expect("no panic").is_err());
}

/// Runs a copy whose user is told by one side's progress, with that side's answer. Says also whether the state
/// for a resume was there when it was asked.
fn told_by(d: &Dirs, sender: bool, answer: bool) -> (Summary, bool) {
    let state = d.dst.with_file_name(".kuroshio-partial");
    let there = Arc::new(AtomicU64::new(0));
    let seen = there.clone();
    let told = move |_: &Summary, _: &Snapshot| {
        seen.fetch_add(u64::from(state.exists()), Ordering::SeqCst);
        answer
    };
    let (tells, silent) = (Progress::new().telling(told), Progress::new());
    let (sends, receives) = if sender { (tells, silent) } else { (silent, tells) };
    let (near, far) = ends(&[Hurt::Nothing]);
    let to = receive_job(&d.dst);
    let receiving = std::thread::spawn(move || receive(far, to, &receives));
    let options = Options {
        placement: Placement::Exact,
        ..Options::default()
    };
    let sent = kuroshio_transfer::send(near, send_job(&d.src, &d.dst, options), &sends);
    receiving.join().expect("no panic").expect("received");
    (sent.expect("sent"), there.load(Ordering::SeqCst) == 1)
}

#[test]
fn state_stays_until_the_user_knows() {
    for sender in [true, false] {
        let d = dirs();
        put(&d.src.join("f"), &noise(1 << 20, 1));
        let state = d.dst.with_file_name(".kuroshio-partial");
        for (answer, bytes) in [(false, 1 << 20), (true, 0), (true, 1 << 20)] {
            let (sent, there) = told_by(&d, sender, answer);
            assert_eq!((sent.bytes_sent, there), (bytes, true), "{sender} {answer}");
            assert_eq!(state.exists(), !answer, "{sender}");
        }
    }
}
