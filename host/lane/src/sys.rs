//! The system calls without a safe wrapper: TUN ioctls, many datagrams in one call with their traffic class.

use std::ffi::CStr;
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd};

/// `TUN_F_CSUM`, `TUN_F_TSO4`, `TUN_F_TSO6`, `TUN_F_TSO_ECN` of linux/if_tun.h.
const TUN_F_SUPERFRAMES: libc::c_ulong = 0x01 | 0x02 | 0x04 | 0x08;

/// Most datagrams of one call.
pub(crate) const BATCH: usize = 64;
/// Room for a datagram.
pub(crate) const DATAGRAM_MAX: usize = 65_535;
/// Room for the control message of one traffic class, aligned for `cmsghdr` by being words.
const CONTROL_WORDS: usize = 8;

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
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

/// Room for what one call receives.
pub(crate) struct Inbox {
    room: Vec<u8>,
    /// Length and traffic class of each.
    got: Vec<(usize, u8)>,
}

impl Inbox {
    pub(crate) fn new() -> Self {
        Self {
            room: vec![0; BATCH * DATAGRAM_MAX],
            got: Vec::with_capacity(BATCH),
        }
    }

    /// The datagrams of the last call, with their traffic classes.
    pub(crate) fn datagrams(&self) -> impl Iterator<Item = (&[u8], u8)> {
        let rooms = self.room.chunks(DATAGRAM_MAX);
        rooms
            .zip(&self.got)
            .map(|(room, (len, class))| (&room[..*len], *class))
    }

    /// Receives what is there, up to [`BATCH`] datagrams, and says how many. 0 when there is nothing.
    pub(crate) fn receive(&mut self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        self.got.clear();
        let mut control = [[0u64; CONTROL_WORDS]; BATCH];
        // SAFETY: all-zero `iovec` and `mmsghdr` are valid: null pointers and zero lengths.
        let (mut parts, mut headers): ([libc::iovec; BATCH], [libc::mmsghdr; BATCH]) =
            unsafe { (zeroed(), zeroed()) };
        let rooms = self.room.chunks_mut(DATAGRAM_MAX);
        for (((part, header), room), control) in
            parts.iter_mut().zip(&mut headers).zip(rooms).zip(&mut control)
        {
            part.iov_base = room.as_mut_ptr().cast();
            part.iov_len = room.len();
            header.msg_hdr.msg_iov = part;
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_control = control.as_mut_ptr().cast();
            header.msg_hdr.msg_controllen = size_of::<[u64; CONTROL_WORDS]>();
        }
        // SAFETY: every header points to one part and one control buffer, all of which live through the call and are
        // written by the kernel alone, within the lengths given.
        let result = unsafe {
            libc::recvmmsg(
                fd.as_raw_fd(),
                headers.as_mut_ptr(),
                BATCH as libc::c_uint,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
            )
        };
        let count = match check(result) {
            Ok(count) => usize::try_from(count).unwrap_or(0),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock || e.kind() == io::ErrorKind::Interrupted => 0,
            // An ICMP error of an earlier datagram (nobody listens there yet) is told once, here.
            Err(e)
                if matches!(
                    e.raw_os_error(),
                    Some(libc::ECONNREFUSED | libc::EHOSTUNREACH | libc::ENETUNREACH | libc::EMSGSIZE)
                ) =>
            {
                0
            }
            Err(e) => return Err(e),
        };
        for header in headers.iter().take(count) {
            let len = (header.msg_len as usize).min(DATAGRAM_MAX);
            self.got.push((len, class_of(&header.msg_hdr)));
        }
        Ok(count)
    }
}

/// The traffic class among a received message's control messages; 0 without one.
fn class_of(header: &libc::msghdr) -> u8 {
    // SAFETY: the header's control buffer was filled by the kernel, which set its length; the CMSG functions stay within it.
    unsafe {
        let mut next = libc::CMSG_FIRSTHDR(header);
        while !next.is_null() {
            let about = next.read_unaligned();
            let data = libc::CMSG_DATA(next);
            match (about.cmsg_level, about.cmsg_type) {
                (libc::IPPROTO_IP, libc::IP_TOS) => return data.read(),
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                    return data.cast::<libc::c_int>().read_unaligned() as u8;
                }
                _ => {}
            }
            next = libc::CMSG_NXTHDR(header, next);
        }
    }
    0
}

/// Sends datagrams, each with its traffic class, on a connected socket, and says how many were taken.
pub(crate) fn send(fd: BorrowedFd<'_>, v6: bool, datagrams: &[(Vec<u8>, u8)]) -> io::Result<usize> {
    let count = datagrams.len().min(BATCH);
    let mut control = [[0u64; CONTROL_WORDS]; BATCH];
    // SAFETY: all-zero `iovec` and `mmsghdr` are valid: null pointers and zero lengths.
    let (mut parts, mut headers): ([libc::iovec; BATCH], [libc::mmsghdr; BATCH]) =
        unsafe { (zeroed(), zeroed()) };
    for (index, (bytes, class)) in datagrams.iter().take(count).enumerate() {
        let part = &mut parts[index];
        // The kernel only reads through it.
        part.iov_base = bytes.as_ptr().cast_mut().cast();
        part.iov_len = bytes.len();
        let header = &mut headers[index].msg_hdr;
        header.msg_iov = part;
        header.msg_iovlen = 1;
        header.msg_control = control[index].as_mut_ptr().cast();
        header.msg_controllen = size_of::<[u64; CONTROL_WORDS]>();
        // SAFETY: the control buffer has 64 bytes, aligned to 8, more than one message of an `int` needs, so that the first
        // header lies in it, and its data too.
        unsafe {
            let first = libc::CMSG_FIRSTHDR(header);
            (*first).cmsg_level = if v6 { libc::IPPROTO_IPV6 } else { libc::IPPROTO_IP };
            (*first).cmsg_type = if v6 { libc::IPV6_TCLASS } else { libc::IP_TOS };
            (*first).cmsg_len = libc::CMSG_LEN(size_of::<libc::c_int>() as u32) as usize;
            libc::CMSG_DATA(first)
                .cast::<libc::c_int>()
                .write_unaligned(libc::c_int::from(*class));
            header.msg_controllen = libc::CMSG_SPACE(size_of::<libc::c_int>() as u32) as usize;
        }
    }
    // SAFETY: the first `count` headers point to parts and control buffers that live through the call.
    let sent = check(unsafe {
        libc::sendmmsg(
            fd.as_raw_fd(),
            headers.as_mut_ptr(),
            count as libc::c_uint,
            libc::MSG_DONTWAIT,
        )
    })?;
    Ok(usize::try_from(sent).unwrap_or(0))
}

/// Lets the calling thread's sleeps end when they are over, not up to 50 us later.
pub(crate) fn exact_timers() {
    // SAFETY: no pointers; a refusal leaves the slack as it was.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1, 0, 0, 0) };
}
