//! One data stream: pulls the next piece, digests it, sends it.
//!
//! A small file is read whole into the stream's buffer, digested there and sent from there. A piece of a
//! larger one is read through the same buffer for its digest (256 KiB stay in the core's cache) and then
//! sent by `sendfile`, so that its bytes are not copied a second time.

use super::Sender;
use super::file::{OutFile, State};
use crate::conn::Conn;
use crate::hash;
use crate::limits::{SMALL_FILE, STREAM_BUFFER};
use crate::options::DigestMode;
use crate::progress::add;
use crate::sys;
use crate::wire::{FLAG_STABLE, FileRef, HEADER_LEN, Header, Part};
use crate::zero_copy::send_file;
use kuroshio_core::chunk::{Piece, piece_digest};
use std::io::{self, IoSlice, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

/// Zeros that stand for bytes that a file lost while it was sent.
const PADDING: [u8; 16 << 10] = [0; 16 << 10];

/// Sends until nothing is left. `Err`: the stream broke.
pub(super) fn run(tx: &Sender<'_>, number: u32, conn: &mut Conn) -> io::Result<()> {
    let mut buf = vec![0u8; STREAM_BUFFER];
    while let Some(piece) = tx.next_piece(number, conn)? {
        let Some(file) = tx.files.get(piece.file.0) else {
            continue;
        };
        send_piece(tx, conn, &mut buf, &file, &piece)?;
    }
    conn.flush()?;
    conn.finish()
}

/// What became of opening a source.
enum Opened {
    /// It is what was announced.
    Same(Arc<OwnedFd>),
    /// There is nothing to send: it failed, changed, or is announced anew.
    Skip,
}

/// The descriptor of a file whose identity is the announced one.
fn open(tx: &Sender<'_>, file: &Arc<OutFile>, s: &mut State, generation: u16) -> io::Result<Opened> {
    if s.changed || s.generation != generation {
        return Ok(Opened::Skip);
    }
    if let Some(fd) = &s.fd {
        return Ok(Opened::Same(Arc::clone(fd)));
    }
    let Some(source) = tx.sources.get(file.source) else {
        return Ok(Opened::Skip);
    };
    let fd = sys::open_source(&source.base, &file.path)?;
    if s.identity().size > SMALL_FILE {
        // A hint only; a small file is read by one call.
        let _ = rustix::fs::fadvise(&fd, 0, None, rustix::fs::Advice::Sequential);
    }
    let fd = Arc::new(fd);
    s.fd = Some(Arc::clone(&fd));
    Ok(Opened::Same(fd))
}

/// Whether a file still is what was announced.
pub(super) fn is_same(fd: &OwnedFd, announced: crate::wire::Identity) -> io::Result<bool> {
    Ok(sys::identity(&rustix::fs::fstat(fd)?) == announced)
}

/// Sends one piece, unless its file failed or changed. `Err`: the stream broke.
fn send_piece(
    tx: &Sender<'_>,
    conn: &mut Conn,
    buf: &mut [u8],
    file: &Arc<OutFile>,
    piece: &Piece,
) -> io::Result<()> {
    let begun = Instant::now();
    let (opened, announced) = {
        let mut s = file.lock();
        (open(tx, file, &mut s, piece.generation), s.identity())
    };
    let fd = match opened {
        Ok(Opened::Same(fd)) => fd,
        Ok(Opened::Skip) => return Ok(()),
        Err(e) => {
            tx.fail_file(file, "open", &e);
            return Ok(());
        }
    };
    let at = FileRef {
        id: file.id,
        generation: piece.generation,
    };
    let part = Part {
        file: at,
        offset: piece.offset,
        len: piece.len,
    };
    let whole = piece.offset == 0 && u64::from(piece.len) == announced.size && announced.size <= SMALL_FILE;
    // A small file is compared with what was announced once, after it was read.
    let ready = match if whole { Ok(true) } else { is_same(&fd, announced) } {
        Ok(true) if whole => small(tx, &fd, buf, part, announced),
        Ok(true) => large(tx, &fd, buf, part, announced.size),
        Ok(false) => Ok(None),
        Err(e) => Err(e),
    };
    let took = begun.elapsed();
    let header = match ready {
        Ok(Some((header, hashing))) => {
            spent(&tx.progress.counters.read_ns, took.saturating_sub(hashing));
            spent(&tx.progress.counters.hash_ns, hashing);
            header
        }
        Ok(None) => {
            tx.changed(file, piece.generation);
            return Ok(());
        }
        Err(e) => {
            tx.fail_file(file, "read", &e);
            return Ok(());
        }
    };
    let begun = Instant::now();
    let complete = if whole {
        let payload = buf
            .get(..usize::try_from(part.len).unwrap_or(0))
            .unwrap_or_default();
        {
            let mut s = file.lock();
            s.sent_stable = true;
            s.fd = None;
        }
        write_both(conn, &header.to_bytes(), payload).map(|()| true)
    } else {
        send_large(conn, &fd, buf, &header)
    };
    spent(&tx.progress.counters.write_ns, begun.elapsed());
    add(&tx.progress.counters.bytes_sent, u64::from(part.len));
    if !complete? {
        tx.changed(file, piece.generation);
    }
    Ok(())
}

fn spent(counter: &AtomicU64, took: Duration) {
    add(counter, u64::try_from(took.as_nanos()).unwrap_or(0));
}

/// Reads a small file whole; `None` when it changed meanwhile.
fn small(
    tx: &Sender<'_>,
    fd: &OwnedFd,
    buf: &mut [u8],
    part: Part,
    announced: crate::wire::Identity,
) -> io::Result<Option<(Header, Duration)>> {
    let into = buf
        .get_mut(..usize::try_from(part.len).unwrap_or(usize::MAX))
        .unwrap_or_default();
    if sys::pread_full(fd, into, 0)? < into.len() || !is_same(fd, announced)? {
        return Ok(None);
    }
    let begun = Instant::now();
    let digest = match tx.options.digest {
        DigestMode::None => [0; 32],
        DigestMode::Blake3 => piece_digest(announced.size, 0, into).map_err(io::Error::other)?,
    };
    let header = Header {
        flags: FLAG_STABLE,
        part,
        digest,
    };
    Ok(Some((header, begun.elapsed())))
}

/// Digests a piece of a larger file; `None` when it is shorter than it was.
fn large(
    tx: &Sender<'_>,
    fd: &OwnedFd,
    buf: &mut [u8],
    part: Part,
    size: u64,
) -> io::Result<Option<(Header, Duration)>> {
    let digest = match tx.options.digest {
        DigestMode::None => Some(([0; 32], Duration::ZERO)),
        DigestMode::Blake3 => hash::piece_digest(size, fd, part.offset, part.len, buf)?,
    };
    Ok(digest.map(|(digest, hashing)| {
        let header = Header {
            flags: 0,
            part,
            digest,
        };
        (header, hashing)
    }))
}

/// Header and payload in as few segments as they need.
fn write_both(conn: &mut Conn, head: &[u8; HEADER_LEN], payload: &[u8]) -> io::Result<()> {
    let sent = loop {
        match conn.write_vectored(&[IoSlice::new(head), IoSlice::new(payload)]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => break n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    };
    if let Some(rest) = head.get(sent..).filter(|r| !r.is_empty()) {
        conn.write_all(rest)?;
    }
    conn.write_all(payload.get(sent.saturating_sub(HEADER_LEN)..).unwrap_or_default())
}

/// Sends header and payload of a piece; `false` when the file ended inside it: zeros took the place of what
/// was missing, so that the stream stays in step.
fn send_large(conn: &mut Conn, fd: &OwnedFd, buf: &mut [u8], header: &Header) -> io::Result<bool> {
    let Part { offset, len, .. } = header.part;
    let len = u64::from(len);
    let sent = match conn.plain_fd() {
        Some(socket) => {
            send_more(socket, &header.to_bytes())?;
            send_file(socket, fd, offset, len)?
        }
        None => {
            conn.write_all(&header.to_bytes())?;
            copy(conn, fd, buf, offset, len)?
        }
    };
    let mut left = len - sent;
    while left > 0 {
        let n = left.min(PADDING.len() as u64);
        conn.write_all(PADDING.get(..usize::try_from(n).unwrap_or(0)).unwrap_or_default())?;
        left -= n;
    }
    Ok(sent == len)
}

/// Sends bytes that more will follow.
fn send_more(socket: impl AsFd, mut bytes: &[u8]) -> io::Result<()> {
    use rustix::net::{SendFlags, send};
    while !bytes.is_empty() {
        match send(socket.as_fd(), bytes, SendFlags::MORE | SendFlags::NOSIGNAL) {
            Ok(n) => bytes = bytes.get(n..).unwrap_or_default(),
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

fn copy(conn: &mut Conn, fd: &OwnedFd, buf: &mut [u8], offset: u64, len: u64) -> io::Result<u64> {
    let mut done = 0u64;
    while done < len {
        let want = buf.len().min(usize::try_from(len - done).unwrap_or(usize::MAX));
        let into = buf.get_mut(..want).unwrap_or_default();
        // A read that fails here is seen as a file that became shorter: it is looked at again then.
        let got = sys::pread_full(fd, into, offset + done).unwrap_or(0);
        conn.write_all(into.get(..got).unwrap_or_default())?;
        done += got as u64;
        if got < want {
            break;
        }
    }
    Ok(done)
}
