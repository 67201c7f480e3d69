//! `sendfile`, and hints to the page cache.

use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

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
