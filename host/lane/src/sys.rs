//! The system calls without a safe wrapper: TUN ioctls, socket options, timers. Datagrams: [`crate::messages`].

use std::ffi::CStr;
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd};

/// `TUN_F_CSUM`, `TUN_F_TSO4`, `TUN_F_TSO6`, `TUN_F_TSO_ECN` of linux/if_tun.h.
const TUN_F_SUPERFRAMES: libc::c_ulong = 0x01 | 0x02 | 0x04 | 0x08;

pub(crate) fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// Makes the open `/dev/net/tun` a device called `name` in the calling thread's namespace, with superframes behind a
/// virtio-net header.
pub(crate) fn attach(fd: BorrowedFd<'_>, name: &CStr, tap: bool) -> io::Result<()> {
    // SAFETY: an all-zero `ifreq` is valid: integers, and unions of integers and arrays.
    let mut request: libc::ifreq = unsafe { zeroed() };
    let bytes = name.to_bytes_with_nul();
    if bytes.len() > request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (slot, byte) in request.ifr_name.iter_mut().zip(bytes) {
        *slot = *byte as libc::c_char;
    }
    let kind = if tap { libc::IFF_TAP } else { libc::IFF_TUN };
    let flags = kind | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    request.ifr_ifru.ifru_flags = i16::try_from(flags).unwrap_or(0);
    // SAFETY: TUNSETIFF reads and writes one `ifreq`, which lives through the call.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF, &raw mut request) })?;
    // SAFETY: TUNSETOFFLOAD takes a flag word by value.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETOFFLOAD, TUN_F_SUPERFRAMES) })?;
    Ok(())
}

/// The index of an interface of the calling thread's namespace.
pub(crate) fn interface_index(name: &CStr) -> io::Result<u32> {
    // SAFETY: the name is a C string that lives through the call.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        index => Ok(index),
    }
}

/// Sets an integer option of a socket.
pub(crate) fn set_option(fd: BorrowedFd<'_>, level: i32, option: i32, value: i32) -> io::Result<()> {
    // SAFETY: the kernel reads one `int` that lives through the call.
    check(unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    })?;
    Ok(())
}

/// Reads an integer option of a socket.
pub(crate) fn get_option(fd: BorrowedFd<'_>, level: i32, option: i32) -> io::Result<i32> {
    let mut value: libc::c_int = 0;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, those of `value`.
    check(unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            level,
            option,
            (&raw mut value).cast(),
            &raw mut len,
        )
    })?;
    Ok(value)
}

/// Lets the calling thread's sleeps end when they are over, not up to 50 us later.
pub(crate) fn exact_timers() {
    // SAFETY: no pointers; a refusal leaves the slack as it was.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1, 0, 0, 0) };
}

/// Lets the allocator keep what is freed, up to `bytes`: packets come and go too fast for memory to be given back and asked for anew.
/// Only glibc's has to be told.
pub(crate) fn keep_freed(bytes: i32) {
    #[cfg(target_env = "gnu")]
    // SAFETY: no pointers; a refusal leaves things as they were.
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, bytes)
    };
    #[cfg(not(target_env = "gnu"))]
    let _ = bytes;
}
