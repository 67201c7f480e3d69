//! One data stream: header, payload, part file, journal, acknowledgement.
//!
//! ```text
//!   frames of small files, TLS:   socket -> buffer of STREAM_BUFFER (stays in the core's cache) -> pwrite
//!   large frames on plain TCP:    socket -> pipe (pages by reference) -> file, one copy
//! ```
//!
//! Among small files the buffer is filled beyond the frame, so that several arrive by one call; after a
//! large frame only the header is read, so that the payload is left to the pipe.

use super::Receiver;
use super::file::{InFile, Verdict, part_fd};
use crate::conn::Conn;
use crate::error::{FileErrorKind, TransferError};
use crate::limits::{SPLICE_MIN, STREAM_BUFFER};
use crate::progress::add;
use crate::sys::pwrite_all;
use crate::wire::{FLAG_STABLE, HEADER_LEN, Header, Rev};
use crate::zero_copy::Pipe;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How a stream ended.
pub(super) enum StreamEnd {
    /// The sender closed it between two frames.
    Closed,
    /// It broke.
    Broken(io::Error),
    /// It carried something that is not the protocol.
    Garbage(String),
}

/// What comes in: a connection, what was read ahead of it, and the pipe past the buffer.
struct Inlet<'c> {
    conn: &'c mut Conn,
    buf: Vec<u8>,
    /// `buf[at..end]` was read and not used.
    at: usize,
    end: usize,
    /// Read as much as there is, beyond what is needed now.
    ahead: bool,
    pipe: Option<Pipe>,
}

impl<'c> Inlet<'c> {
    fn new(conn: &'c mut Conn) -> Self {
        let pipe = conn.plain_fd().and_then(|_| Pipe::new());
        Self {
            conn,
            buf: vec![0; STREAM_BUFFER],
            at: 0,
            end: 0,
            ahead: false,
            pipe,
        }
    }

    /// The next bytes, at least one and at most `most`; empty at the end of the stream.
    fn next(&mut self, most: u64) -> io::Result<&[u8]> {
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        if self.at == self.end {
            let room = if self.ahead {
                self.buf.len()
            } else {
                self.buf.len().min(most)
            };
            self.at = 0;
            self.end = loop {
                match self.conn.read(self.buf.get_mut(..room).unwrap_or_default()) {
                    Ok(n) => break n,
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => return Err(e),
                }
            };
        }
        let from = self.at;
        self.at = self.end.min(from.saturating_add(most));
        Ok(self.buf.get(from..self.at).unwrap_or_default())
    }

    /// As [`Self::next`] inside a frame, where the stream must not end.
    fn inside(&mut self, most: u64) -> io::Result<&[u8]> {
        match self.next(most)? {
            [] => Err(io::ErrorKind::UnexpectedEof.into()),
            some => Ok(some),
        }
    }

    /// `None` at a clean end.
    fn header(&mut self) -> io::Result<Option<[u8; HEADER_LEN]>> {
        let mut head = [0u8; HEADER_LEN];
        let mut got = 0usize;
        while got < HEADER_LEN {
            let part = self.next((HEADER_LEN - got) as u64)?;
            if part.is_empty() {
                return if got == 0 {
                    Ok(None)
                } else {
                    Err(io::ErrorKind::UnexpectedEof.into())
                };
            }
            if let Some(to) = head.get_mut(got..got + part.len()) {
                to.copy_from_slice(part);
            }
            got += part.len();
        }
        Ok(Some(head))
    }

    fn drain(&mut self, mut left: u64) -> io::Result<()> {
        while left > 0 {
            left -= self.inside(left)?.len() as u64;
        }
        Ok(())
    }

    /// Whether the next bytes may go through the pipe.
    fn is_spliceable(&self) -> bool {
        self.at == self.end && self.pipe.is_some() && self.conn.splice_fd().is_some()
    }

    /// Moves some bytes of a payload to a file.
    fn move_to(&mut self, fd: &OwnedFd, at: u64, left: u64, large: bool) -> io::Result<Moved> {
        if !large || !self.is_spliceable() {
            let part = self.inside(left)?;
            let begun = Instant::now();
            return Ok(Moved {
                bytes: part.len() as u64,
                written: pwrite_all(fd, part, at),
                spent: begun.elapsed(),
            });
        }
        let (Some(pipe), Some(socket)) = (self.pipe.as_mut(), self.conn.splice_fd()) else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let got = pipe.take(socket, left)?;
        if got == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let begun = Instant::now();
        let mut written = pipe.write_to(fd, at);
        if written.is_err() {
            // The rest goes through the buffer, from now on for good where the file system wants it so.
            let done = got.saturating_sub(pipe.held());
            let unknown = matches!(&written, Err(e) if e.raw_os_error() == Some(libc::EINVAL));
            written = empty_pipe(pipe, &mut self.buf, fd, at + done as u64, written);
            if unknown {
                self.pipe = None;
            }
        }
        Ok(Moved {
            bytes: got as u64,
            written,
            spent: begun.elapsed(),
        })
    }
}

/// Bytes that left the stream, and what became of them.
struct Moved {
    bytes: u64,
    written: io::Result<()>,
    spent: Duration,
}

/// Takes what a failed `splice` left in the pipe: writes it where only `splice` is unknown, drops it where
/// the file cannot be written.
fn empty_pipe(
    pipe: &mut Pipe,
    buf: &mut [u8],
    fd: &OwnedFd,
    mut at: u64,
    failed: io::Result<()>,
) -> io::Result<()> {
    let mut written = match failed {
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        other => other,
    };
    while pipe.held() > 0 {
        let n = pipe.read(buf)?;
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if written.is_ok() {
            written = pwrite_all(fd, buf.get(..n).unwrap_or_default(), at);
        }
        at += n as u64;
    }
    written
}

/// Reads frames until the stream ends.
pub(super) fn run(rx: &Receiver<'_>, conn: &mut Conn) -> StreamEnd {
    let mut inlet = Inlet::new(conn);
    loop {
        let head = match inlet.header() {
            Ok(Some(head)) => head,
            Ok(None) => return StreamEnd::Closed,
            Err(e) => return StreamEnd::Broken(e),
        };
        let header = match Header::from_bytes(&head) {
            Ok(header) => header,
            Err(text) => return StreamEnd::Garbage(text),
        };
        inlet.ahead = header.part.len < SPLICE_MIN || inlet.pipe.is_none();
        let file = rx.files.get(header.part.file.id);
        let verdict = match file.as_ref().map_or(Ok(Verdict::Ignore), |f| f.judge(&header)) {
            Ok(verdict) => verdict,
            Err(text) => return StreamEnd::Garbage(text),
        };
        let done = match (verdict, file) {
            (Verdict::Write, Some(file)) => take(rx, &mut inlet, &file, &header),
            (verdict, _) => inlet.drain(u64::from(header.part.len)).map(|()| {
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

/// Writes the payload of a frame to its part file. A file that cannot be written fails alone: the rest of
/// the payload is read and dropped, and the stream goes on.
fn take(rx: &Receiver<'_>, inlet: &mut Inlet<'_>, file: &Arc<InFile>, header: &Header) -> io::Result<()> {
    rx.publisher.wait_for_room(&rx.end);
    let opened = part_fd(file, &mut file.lock(), &rx.state);
    let mut left = u64::from(header.part.len);
    let fd = match opened {
        Ok(fd) => fd,
        Err(e) => {
            rx.fail_file(file, FileErrorKind::Destination, "make the part file", &e);
            return inlet.drain(left);
        }
    };
    let mut at = header.part.offset;
    let mut spent = Duration::ZERO;
    while left > 0 {
        let moved = inlet.move_to(&fd, at, left, header.part.len >= SPLICE_MIN)?;
        spent += moved.spent;
        at += moved.bytes;
        left = left.saturating_sub(moved.bytes);
        if let Err(e) = moved.written {
            rx.fail_file(file, FileErrorKind::Destination, "write", &e);
            return inlet.drain(left);
        }
    }
    let spent = u64::try_from(spent.as_nanos()).unwrap_or(u64::MAX);
    add(&rx.progress.counters.write_ns, spent);
    start_writeback(&fd, header);
    written(rx, file, header);
    Ok(())
}

/// Lets the disk begin early, so that the flush before publishing finds little left. Small files go by the
/// flush of their group.
fn start_writeback(fd: &Arc<OwnedFd>, header: &Header) {
    if header.part.len < SPLICE_MIN {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::OpenOptions;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
        let near = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
        (near, listener.accept().expect("accept").0)
    }

    /// Moves all that `near` sends to a file opened by `how`.
    fn moved(how: &OpenOptions, data: &[u8]) -> (Vec<u8>, bool, io::Result<()>) {
        let (mut near, far) = pair();
        let dir = tempfile::tempdir().expect("folder");
        let path = dir.path().join("f");
        std::fs::write(&path, []).expect("made");
        let fd: OwnedFd = how.open(&path).expect("open").into();
        let mut conn = Conn::plain(far);
        let mut inlet = Inlet::new(&mut conn);
        let mut done = Ok(());
        std::thread::scope(|scope| {
            scope.spawn(move || near.write_all(data).expect("sent"));
            let (mut at, len) = (0, data.len() as u64);
            while at < len {
                let part = inlet
                    .move_to(&fd, at, len - at, true)
                    .expect("the stream is whole");
                at += part.bytes;
                done = std::mem::replace(&mut done, Ok(())).and(part.written);
            }
        });
        let piped = inlet.pipe.is_some();
        (std::fs::read(&path).expect("read"), piped, done)
    }

    #[test]
    fn a_file_that_takes_no_pipe_is_written_through_the_buffer() {
        let data: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
        let (there, piped, done) = moved(OpenOptions::new().write(true), &data);
        assert!(
            there == data && piped && done.is_ok(),
            "through the pipe: {done:?}"
        );
        // A descriptor that appends is what `splice` refuses with EINVAL on every file system.
        let (there, piped, done) = moved(OpenOptions::new().append(true), &data);
        assert!(there == data && !piped && done.is_ok(), "past the pipe: {done:?}");
    }

    #[test]
    fn a_file_that_cannot_be_written_leaves_the_stream_in_step() {
        let (there, _, done) = moved(OpenOptions::new().read(true), &[7; 500_000]);
        assert!(there.is_empty() && done.is_err(), "{done:?}");
    }

    #[test]
    fn small_frames_are_read_ahead_and_none_is_lost() {
        let (mut near, far) = pair();
        near.write_all(&[1; HEADER_LEN]).expect("sent");
        near.write_all(&[2; 10]).expect("sent");
        near.write_all(&[3; HEADER_LEN - 1]).expect("sent");
        drop(near);
        let mut conn = Conn::plain(far);
        let mut inlet = Inlet::new(&mut conn);
        inlet.ahead = true;
        assert_eq!(inlet.header().expect("whole"), Some([1; HEADER_LEN]));
        inlet.drain(10).expect("ten bytes");
        let torn = inlet.header().expect_err("a header that ends inside");
        assert_eq!(torn.kind(), io::ErrorKind::UnexpectedEof);
    }
}
