//! One data stream: header, payload, part file, journal, acknowledgement.
//!
//! A payload goes through one buffer of [`STREAM_BUFFER`] bytes, which stays in the cache of its core.

use super::Receiver;
use super::file::{InFile, Verdict, part_fd};
use crate::conn::Conn;
use crate::error::{FileErrorKind, TransferError};
use crate::limits::STREAM_BUFFER;
use crate::progress::add;
use crate::sys::pwrite_all;
use crate::wire::{FLAG_STABLE, HEADER_LEN, Header, Rev};
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

/// How a stream ended.
pub(super) enum StreamEnd {
    /// The sender closed it between two frames.
    Closed,
    /// It broke.
    Broken(io::Error),
    /// It carried something that is not the protocol.
    Garbage(String),
}

/// Reads frames until the stream ends.
pub(super) fn run(rx: &Receiver<'_>, conn: &mut Conn) -> StreamEnd {
    let mut buf = vec![0u8; STREAM_BUFFER];
    loop {
        let mut head = [0u8; HEADER_LEN];
        match read_header(conn, &mut head) {
            Ok(true) => {}
            Ok(false) => return StreamEnd::Closed,
            Err(e) => return StreamEnd::Broken(e),
        }
        let header = match Header::from_bytes(&head) {
            Ok(header) => header,
            Err(text) => return StreamEnd::Garbage(text),
        };
        let file = rx.files.get(header.part.file.id);
        let verdict = match file.as_ref().map_or(Ok(Verdict::Ignore), |f| f.judge(&header)) {
            Ok(verdict) => verdict,
            Err(text) => return StreamEnd::Garbage(text),
        };
        let done = match (verdict, file) {
            (Verdict::Write, Some(file)) => take(rx, conn, &mut buf, &file, &header),
            (verdict, _) => drain(conn, &mut buf, u64::from(header.part.len)).map(|()| {
                if verdict == Verdict::Known {
                    rx.outbox.post(Rev::Written(vec![header.part]));
                }
            }),
        };
        if let Err(e) = done {
            return StreamEnd::Broken(e);
        }
    }
}

/// `false` at a clean end.
fn read_header(conn: &mut Conn, head: &mut [u8; HEADER_LEN]) -> io::Result<bool> {
    let mut got = 0usize;
    while let Some(rest) = head.get_mut(got..).filter(|r| !r.is_empty()) {
        match conn.read(rest) {
            Ok(0) if got == 0 => return Ok(false),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => got += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(true)
}

/// Reads at most `left` bytes into the buffer.
fn fill<'a>(conn: &mut Conn, buf: &'a mut [u8], left: u64) -> io::Result<&'a [u8]> {
    let want = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
    loop {
        let into = buf.get_mut(..want).unwrap_or_default();
        match conn.read(into) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => return Ok(buf.get(..n).unwrap_or_default()),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

fn drain(conn: &mut Conn, buf: &mut [u8], mut left: u64) -> io::Result<()> {
    while left > 0 {
        left -= fill(conn, buf, left)?.len() as u64;
    }
    Ok(())
}

/// Writes the payload of a frame to its part file. A file that cannot be written fails alone: the rest of
/// the payload is read and dropped, and the stream goes on.
fn take(
    rx: &Receiver<'_>,
    conn: &mut Conn,
    buf: &mut [u8],
    file: &Arc<InFile>,
    header: &Header,
) -> io::Result<()> {
    rx.publisher.wait_for_room(&rx.end);
    let opened = part_fd(file, &mut file.lock(), &rx.state);
    let mut left = u64::from(header.part.len);
    let fd = match opened {
        Ok(fd) => fd,
        Err(e) => {
            rx.fail_file(file, FileErrorKind::Destination, "make the part file", &e);
            return drain(conn, buf, left);
        }
    };
    let mut at = header.part.offset;
    let mut spent = 0u64;
    while left > 0 {
        let got = fill(conn, buf, left)?;
        let begun = Instant::now();
        if let Err(e) = pwrite_all(&*fd, got, at) {
            rx.fail_file(file, FileErrorKind::Destination, "write", &e);
            let rest = left - got.len() as u64;
            return drain(conn, buf, rest);
        }
        spent += u64::try_from(begun.elapsed().as_nanos()).unwrap_or(0);
        at += got.len() as u64;
        left -= got.len() as u64;
    }
    add(&rx.progress.counters.write_ns, spent);
    start_writeback(&fd, header);
    written(rx, file, header);
    Ok(())
}

/// Lets the disk begin early, so that the flush before publishing finds little left.
fn start_writeback(fd: &Arc<OwnedFd>, header: &Header) {
    if header.part.len < 64 << 10 {
        return;
    }
    let Ok(offset) = i64::try_from(header.part.offset) else {
        return;
    };
    crate::zero_copy::start_writeback(fd.as_fd(), offset, i64::from(header.part.len));
}

fn written(rx: &Receiver<'_>, file: &Arc<InFile>, header: &Header) {
    if let Err(e) = rx.journal_piece(file, header) {
        rx.end.fail(TransferError::Local {
            what: "write the journal".into(),
            source: e,
        });
        return;
    }
    let ready = {
        let mut s = file.lock();
        if s.dead {
            return;
        }
        s.insert(header.part.offset, header.part.len, header.digest);
        if header.flags & FLAG_STABLE != 0 && u64::from(header.part.len) == file.size() {
            s.sent = true;
        }
        InFile::ready(&mut s)
    };
    add(
        &rx.progress.counters.bytes_acknowledged,
        u64::from(header.part.len),
    );
    rx.outbox.post(Rev::Written(vec![header.part]));
    if ready {
        rx.publisher.queue(Arc::clone(file));
        rx.look();
    }
}
