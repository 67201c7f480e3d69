//! Two ends in one process over real TCP on loopback, with a wire that can be hurt, and a tree walker.
#![allow(dead_code)]

use kuroshio_transfer::{
    Conn, DataConn, Event, Options, Progress, ReceiveJob, SendJob, SessionConns, Source, Stream, Summary,
    TransferError, receive, send, session_key,
};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// What is done to the bytes that a stream writes.
#[derive(Clone, Copy, Debug)]
pub enum Hurt {
    /// Nothing.
    Nothing,
    /// The lowest bit of byte `n` is flipped.
    Flip(u64),
    /// The connection is cut after `n` bytes.
    Cut(u64),
}

/// A TCP stream that hurts what is written to it.
pub struct Wire {
    socket: TcpStream,
    hurt: Hurt,
    at: u64,
}

impl Wire {
    pub fn conn(socket: TcpStream, hurt: Hurt) -> Conn {
        match hurt {
            Hurt::Nothing => Conn::plain(socket),
            _ => Conn::other(Self { socket, hurt, at: 0 }),
        }
    }
}

impl Read for Wire {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.socket.read(buf)
    }
}

impl Write for Wire {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let mut bytes = buf.to_vec();
        match self.hurt {
            Hurt::Flip(n) if n >= self.at && n < self.at + buf.len() as u64 => {
                bytes[(n - self.at) as usize] ^= 1;
                self.socket.write_all(&bytes)?;
            }
            Hurt::Cut(n) if n < self.at + buf.len() as u64 => {
                self.socket
                    .write_all(&bytes[..(n.saturating_sub(self.at)) as usize])?;
                self.socket.shutdown(Shutdown::Both)?;
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            _ => self.socket.write_all(&bytes)?,
        }
        self.at += buf.len() as u64;
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

impl Stream for Wire {
    fn tcp(&self) -> Option<&TcpStream> {
        Some(&self.socket)
    }

    fn finish(&mut self) -> io::Result<()> {
        self.socket.shutdown(Shutdown::Write)
    }
}

pub fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let near = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
    (near, listener.accept().expect("accept").0)
}

/// Both ends of a session; `hurts` has one member per data stream.
pub fn ends(hurts: &[Hurt]) -> (SessionConns, SessionConns) {
    let ((f1, f2), (r1, r2)) = (pair(), pair());
    let (mut near, mut far) = (Vec::new(), Vec::new());
    for hurt in hurts {
        let (a, b) = pair();
        near.push(DataConn::unpaced(Wire::conn(a, *hurt)));
        far.push(DataConn::unpaced(Conn::plain(b)));
    }
    (
        SessionConns::new(Conn::plain(f1), Conn::plain(r1), near),
        SessionConns::new(Conn::plain(f2), Conn::plain(r2), far),
    )
}

pub fn source(path: &Path) -> Source {
    let base = File::open(path.parent().expect("a folder")).expect("open").into();
    let name = path.file_name().expect("a name").as_bytes().to_vec();
    Source {
        base,
        path: name.clone(),
        name,
    }
}

pub fn send_job(path: &Path, dst: &Path, options: Options) -> SendJob {
    SendJob {
        sources: vec![source(path)],
        options,
        key: session_key(dst.as_os_str().as_bytes(), b"test"),
    }
}

pub fn receive_job(dst: &Path) -> ReceiveJob {
    let root = File::open(dst.parent().expect("a folder")).expect("open").into();
    ReceiveJob {
        root,
        dest: dst.file_name().expect("a name").as_bytes().to_vec(),
    }
}

pub type Outcome = Result<Summary, TransferError>;

/// Runs both ends; `on_event` sees the receiver's events.
pub fn run(
    ends: (SessionConns, SessionConns),
    job: SendJob,
    to: ReceiveJob,
    on_event: impl Fn(&Event) + Send + Sync + 'static,
) -> (Outcome, Outcome) {
    let (near, far) = ends;
    let receiving = std::thread::spawn(move || receive(far, to, &Progress::with_events(on_event)));
    let sent = send(near, job, &Progress::new());
    (sent, receiving.join().expect("the receiver does not panic"))
}

/// Moves `src` to `dst` over these streams.
pub fn copy(src: &Path, dst: &Path, options: Options, hurts: &[Hurt]) -> (Outcome, Outcome) {
    run(ends(hurts), send_job(src, dst, options), receive_job(dst), |_| {})
}

/// Events of the receiver in a run, collected.
pub fn copy_with_events(src: &Path, dst: &Path, hurts: &[Hurt]) -> ((Outcome, Outcome), Vec<Event>) {
    let events = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&events);
    let job = send_job(src, dst, Options::default());
    let out = run(ends(hurts), job, receive_job(dst), move |e| {
        sink.lock().expect("lock").push(e.clone())
    });
    let events = events.lock().expect("lock").clone();
    (out, events)
}

/// One line for each name of a tree: kind, mode, time, size, content or target, and group of hard links.
pub fn walk(root: &Path) -> BTreeMap<Vec<u8>, String> {
    let mut out = BTreeMap::new();
    let mut inodes = BTreeMap::new();
    let mut todo = vec![root.to_path_buf()];
    while let Some(path) = todo.pop() {
        let name = path
            .strip_prefix(root)
            .expect("below")
            .as_os_str()
            .as_bytes()
            .to_vec();
        let meta = fs::symlink_metadata(&path).expect("stat");
        let kind = meta.file_type();
        let (mode, mtime) = (meta.mode() & 0o7777, (meta.mtime(), meta.mtime_nsec()));
        let line = if kind.is_symlink() {
            format!("link {mtime:?} {:?}", fs::read_link(&path).expect("target"))
        } else if kind.is_dir() {
            todo.extend(
                fs::read_dir(&path)
                    .expect("list")
                    .map(|e| e.expect("entry").path()),
            );
            format!("dir {mode:o} {mtime:?}")
        } else {
            let hash = blake3::hash(&fs::read(&path).expect("read")).to_hex();
            let group = if meta.nlink() > 1 {
                inodes.entry(meta.ino()).or_insert(0)
            } else {
                &mut 0
            };
            *group += 1;
            format!(
                "file {mode:o} {mtime:?} {} {hash} links {}",
                meta.len(),
                meta.nlink()
            )
        };
        out.insert(name, line);
    }
    out
}

pub fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0u8; len];
    let mut h = blake3::Hasher::new();
    h.update(&seed.to_le_bytes());
    h.finalize_xof().fill(&mut bytes);
    bytes
}

pub fn put(path: &Path, bytes: &[u8]) {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).expect("folder");
    }
    fs::write(path, bytes).expect("write");
}
