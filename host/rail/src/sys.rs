//! The system calls without a safe wrapper: which interface has an address, and work in a process of its own.

use std::ffi::CStr;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Longest life of a child, s.
const CHILD_S: u32 = 20;
/// Most that a child may answer, bytes.
const MAX_ANSWER: u64 = 64 << 20;

/// Does `work` in a forked process and gives what it answered; `None` when that process fell over or took too long. For
/// libraries in C that read what others wrote.
pub(crate) fn in_child(work: impl FnOnce() -> Vec<u8>) -> io::Result<Option<Vec<u8>>> {
    let (reader, mut writer) = io::pipe()?;
    let null = std::fs::OpenOptions::new().write(true).open("/dev/null")?;
    // SAFETY: the child runs on this thread's stack alone and ends by `_exit`, so nothing of the parent is dropped
    // twice or written. It allocates, which glibc allows after fork; should another thread have held another lock,
    // the alarm ends the child.
    let pid = unsafe { libc::fork() };
    if pid < 0 {
        return Err(io::Error::last_os_error());
    }
    if pid == 0 {
        // SAFETY: no pointers; 2 is standard error, where nobody is to read what the library says.
        unsafe {
            libc::alarm(CHILD_S);
            libc::dup2(null.as_raw_fd(), 2);
        }
        let answer = catch_unwind(AssertUnwindSafe(work));
        let written = answer.is_ok_and(|bytes| writer.write_all(&bytes).is_ok());
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!written)) };
    }
    drop(writer);
    let mut answer = Vec::new();
    let read = reader.take(MAX_ANSWER).read_to_end(&mut answer);
    let mut status = 0;
    // SAFETY: the call writes one c_int; `pid` is a child of this process that nobody else waits for.
    while unsafe { libc::waitpid(pid, &raw mut status, 0) } < 0 {
        let e = io::Error::last_os_error();
        if e.kind() != io::ErrorKind::Interrupted {
            return Err(e);
        }
    }
    read?;
    Ok((libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0).then_some(answer))
}

/// The interface that has an address of this host.
pub(crate) fn interface_with(address: IpAddr) -> io::Result<Option<String>> {
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: the call writes one pointer, which lives through it.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = None;
    let mut at = list;
    // SAFETY: `at` is null or an entry of the list that getifaddrs made and that is freed only below.
    while let Some(entry) = unsafe { at.as_ref() } {
        at = entry.ifa_next;
        if address_of(entry) == Some(address) {
            // SAFETY: the name of an entry is a C string that lives as long as the list.
            found = Some(
                unsafe { CStr::from_ptr(entry.ifa_name) }
                    .to_string_lossy()
                    .into_owned(),
            );
            break;
        }
    }
    // SAFETY: the list came from getifaddrs and is freed once; nothing of it is kept.
    unsafe { libc::freeifaddrs(list) };
    Ok(found)
}

fn address_of(entry: &libc::ifaddrs) -> Option<IpAddr> {
    // SAFETY: null or the address of an entry, at least a family long.
    let family = unsafe { entry.ifa_addr.as_ref() }?.sa_family;
    match i32::from(family) {
        libc::AF_INET => {
            // SAFETY: the family says that a whole `sockaddr_in` is there.
            let v4 = unsafe { entry.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above, a `sockaddr_in6`.
            let v6 = unsafe { entry.ifa_addr.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(v6.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}
