//! `sendfile`, `splice` through a pipe, and hints to the page cache.

use crate::limits::PIPE_BYTES;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// A pipe between a socket and files: pages of received segments pass through it by reference and are copied
/// once, into the file. It is empty between two calls of its users.
pub(crate) struct Pipe {
    from: OwnedFd,
    into: OwnedFd,
    /// Bytes inside.
    held: usize,
}

impl Pipe {
    /// A pipe; `None` where the system has none left, then bytes go through a buffer.
    pub(crate) fn new() -> Option<Self> {
        let (from, into) = pipe_with(PipeFlags::CLOEXEC).ok()?;
        // Beyond the user's limit it keeps the size it has, which works too.
        let _ = fcntl_setpipe_size(&into, PIPE_BYTES);
        Some(Self { from, into, held: 0 })
    }

    /// Takes what a socket has, at most `len` bytes; waits for the first. `Ok(0)`: the socket has ended.
    ///
    /// # Errors
    /// What `splice` gives.
    pub(crate) fn take(&mut self, socket: BorrowedFd<'_>, len: u64) -> io::Result<usize> {
        let want = usize::try_from(len).unwrap_or(PIPE_BYTES).min(PIPE_BYTES);
        loop {
            match splice(socket, None, &self.into, None, want, SpliceFlags::MOVE) {
                Ok(n) => {
                    self.held += n;
                    return Ok(n);
                }
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Writes all that is inside to a file. After an error the rest stays for [`Self::read`].
    ///
    /// # Errors
    /// What `splice` gives; `InvalidInput` where the file system does not know it.
    pub(crate) fn write_to(&mut self, file: impl AsFd, mut offset: u64) -> io::Result<()> {
        while self.held > 0 {
            let at = Some(&mut offset);
            match splice(&self.from, None, file.as_fd(), at, self.held, SpliceFlags::MOVE) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => self.held = self.held.saturating_sub(n),
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    /// Bytes inside.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// Reads what is inside into a buffer; `Ok(0)` when it is empty.
    ///
    /// # Errors
    /// What `read` gives.
    pub(crate) fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let want = buf.len().min(self.held);
        loop {
            match rustix::io::read(&self.from, buf.get_mut(..want).unwrap_or_default()) {
                Ok(n) => {
                    self.held = self.held.saturating_sub(n);
                    return Ok(n);
                }
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
}

/// Sends `[offset, offset + len)` of a file to a socket without a copy through this process. Returns the
/// bytes sent, fewer than `len` only when the file ends.
///
/// # Errors
/// What `sendfile` gives.
pub(crate) fn send_file(socket: BorrowedFd<'_>, file: impl AsFd, offset: u64, len: u64) -> io::Result<u64> {
    let mut at = offset;
    let end = offset.saturating_add(len);
    while at < end {
        let want = usize::try_from(end - at).unwrap_or(usize::MAX);
        match rustix::fs::sendfile(socket, file.as_fd(), Some(&mut at), want) {
            Ok(0) => break,
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(at - offset)
}

/// Asks the kernel to begin writing a range back; a hint, so its failure is none.
pub(crate) fn start_writeback(file: BorrowedFd<'_>, offset: i64, len: i64) {
    // SAFETY: the descriptor is borrowed for the call; the call touches no memory of this process.
    let _ = unsafe { libc::sync_file_range(file.as_raw_fd(), offset, len, libc::SYNC_FILE_RANGE_WRITE) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::OpenOptions;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn what_a_file_refuses_stays_in_the_pipe() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
        let mut near = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
        let (far, _) = listener.accept().expect("accept");
        near.write_all(b"eight by").expect("write");
        let mut pipe = Pipe::new().expect("a pipe");
        while pipe.held() < 8 {
            let left = 8 - pipe.held() as u64;
            assert!(pipe.take(far.as_fd(), left).expect("taken") > 0);
        }
        let dir = tempfile::tempdir().expect("folder");
        let path = dir.path().join("f");
        std::fs::write(&path, [b'.'; 10]).expect("write");
        let locked = std::fs::File::open(&path).expect("open");
        assert!(pipe.write_to(&locked, 0).is_err(), "a descriptor for reading");
        assert_eq!(pipe.held(), 8);
        let mut some = [0; 3];
        assert_eq!(pipe.read(&mut some).expect("read"), 3);
        assert_eq!(&some, b"eig");
        let open = OpenOptions::new().write(true).open(&path).expect("open");
        pipe.write_to(&open, 2).expect("written");
        assert_eq!(pipe.held(), 0);
        assert_eq!(std::fs::read(&path).expect("read"), b"..ht by...");
        assert_eq!(pipe.read(&mut some).expect("read"), 0);
    }
}
