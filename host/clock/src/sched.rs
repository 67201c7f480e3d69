//! The one system call that has no safe wrapper: a thread's scheduling policy.

use std::io;

/// Puts the calling thread at the lowest `SCHED_FIFO` priority.
///
/// # Errors
/// `EPERM` without `CAP_SYS_NICE` or a real-time limit.
pub fn fifo_lowest() -> io::Result<()> {
    // SAFETY: an all-zero `sched_param` is valid, every field is an integer.
    let mut param: libc::sched_param = unsafe { std::mem::zeroed() };
    param.sched_priority = 1;
    // SAFETY: `param` outlives the call, pid 0 names the calling thread.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const param) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
