//! The two socket options that no library of ours carries.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Largest window that the TCP window scale option can express (RFC 7323, 2.3).
const MAX_WINDOW_BYTES: u64 = 1 << 30;

/// Bounds the window that this side advertises (`TCP_WINDOW_CLAMP`, tcp(7)), bytes of payload.
///
/// The kernel sets its own bound again when the ratio of payload to memory of the received frames
/// changes, so a receiver calls this from time to time.
///
/// # Errors
/// `InvalidInput` for zero or a window above 1 GiB; what `setsockopt` gives.
pub(crate) fn set_window_clamp(socket: &impl AsFd, window_bytes: u64) -> io::Result<()> {
    if window_bytes == 0 || window_bytes > MAX_WINDOW_BYTES {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("window of {window_bytes} bytes: want 1 to {MAX_WINDOW_BYTES}"),
        ));
    }
    let value = window_bytes as libc::c_int;
    // SAFETY: the descriptor is open for the duration of the borrow; the kernel reads exactly the
    // `c_int` the pointer and length describe, which outlives the call.
    let ret = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_WINDOW_CLAMP,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if ret == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
