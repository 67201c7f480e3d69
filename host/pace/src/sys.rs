//! The system calls that no library of ours has: attaching a program for good, a namespace's cookie and a new one.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// `SO_NETNS_COOKIE` (`include/uapi/asm-generic/socket.h`).
const SO_NETNS_COOKIE: libc::c_int = 71;

fn check(ret: libc::c_int) -> io::Result<()> {
    // libbpf gives the negative error number; errno is set as well.
    match ret {
        0 => Ok(()),
        e if e < 0 => Err(io::Error::from_raw_os_error(e.saturating_neg())),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Attaches a program to a control group beside others; it stays after the process, until it is detached or
/// the group is removed.
pub(crate) fn attach_sockops(program: BorrowedFd<'_>, cgroup: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: two descriptors that are open over the call, and two numbers.
    check(unsafe {
        libbpf_rs::libbpf_sys::bpf_prog_attach(
            program.as_raw_fd(),
            cgroup.as_raw_fd(),
            libbpf_rs::libbpf_sys::BPF_CGROUP_SOCK_OPS,
            libbpf_rs::libbpf_sys::BPF_F_ALLOW_MULTI,
        )
    })
}

/// Takes a program from a control group; `NotFound` when it is not there.
pub(crate) fn detach_sockops(program: BorrowedFd<'_>, cgroup: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: two descriptors that are open over the call, and a number.
    check(unsafe {
        libbpf_rs::libbpf_sys::bpf_prog_detach2(
            program.as_raw_fd(),
            cgroup.as_raw_fd(),
            libbpf_rs::libbpf_sys::BPF_CGROUP_SOCK_OPS,
        )
    })
}

/// The number by which the kernel tells network namespaces apart, never given twice between two boots.
pub(crate) fn netns_cookie(socket: &impl AsFd) -> io::Result<u64> {
    let mut cookie = 0u64;
    let mut len = libc::socklen_t::try_from(size_of::<u64>()).unwrap_or(0);
    // SAFETY: the pointer is to `len` writable bytes of a u64 that lives over the call.
    let ret = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut len,
        )
    };
    if ret == 0 {
        Ok(cookie)
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Gives the calling thread a network namespace of its own, with a loopback device that is down.
pub(crate) fn new_netns() -> io::Result<()> {
    // SAFETY: CLONE_NEWNET changes the calling thread's network namespace only.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
