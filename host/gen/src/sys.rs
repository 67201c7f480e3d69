//! The system calls without a safe wrapper: stamped batches of datagrams, options, the packet socket, `adjtimex`.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use kuroshio_core::traffic::STAMP_BYTES;

/// Datagrams of one batch.
pub(crate) const BATCH: usize = 64;
/// Room for ancillary data of a datagram: a stamp and the count of drops, 24 and 20 bytes with their headers'
/// alignment, and as much again.
const ANCILLARY: usize = 128;

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

fn set_int(fd: &impl AsFd, level: i32, name: i32, value: libc::c_int) -> io::Result<()> {
    // SAFETY: the kernel reads one c_int, which lives through the call.
    check(unsafe {
        libc::setsockopt(
            fd.as_fd().as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    })?;
    Ok(())
}

/// Receive stamps, and the count of datagrams that found the socket's buffer full.
pub(crate) fn stamp_receives(fd: &impl AsFd) -> io::Result<()> {
    set_int(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)?;
    set_int(fd, libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1)
}

/// A receive buffer of `bytes`: beyond `rmem_max` where that is allowed.
pub(crate) fn receive_buffer(fd: &impl AsFd, bytes: i32) -> io::Result<()> {
    set_int(fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes)
        .or_else(|_| set_int(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, bytes))
}

/// Datagrams are never fragmented: one that is larger than the path's MTU is refused with `EMSGSIZE`.
pub(crate) fn never_fragment(fd: &impl AsFd, v6: bool) -> io::Result<()> {
    if v6 {
        set_int(
            fd,
            libc::IPPROTO_IPV6,
            libc::IPV6_MTU_DISCOVER,
            libc::IPV6_PMTUDISC_DO,
        )
    } else {
        set_int(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)
    }
}

/// Whether the clock is disciplined, its largest error in us, and TAI less UTC in s.
pub(crate) fn clock_state() -> (bool, u64, i64) {
    // SAFETY: an all-zero `timex` is valid, and with no modes asks for nothing to be changed.
    let mut timex: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one `timex`, which lives through the call.
    let state = unsafe { libc::adjtimex(&raw mut timex) };
    let disciplined = (0..libc::TIME_ERROR).contains(&state) && timex.status & libc::STA_UNSYNC == 0;
    (
        disciplined,
        u64::try_from(timex.maxerror).unwrap_or(u64::MAX),
        i64::from(timex.tai),
    )
}

/// `CLOCK_TAI`, ns.
pub(crate) fn tai_ns() -> u64 {
    let mut t = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel writes one `timespec`, which lives through the call; this clock is always there.
    unsafe { libc::clock_gettime(libc::CLOCK_TAI, &raw mut t) };
    u64::try_from(t.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(t.tv_nsec).unwrap_or(0)
}

/// A packet socket that only sends, bound to an interface.
pub(crate) fn packet_sender(interface: &str) -> io::Result<OwnedFd> {
    let name = std::ffi::CString::new(interface).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: `name` is a C string that lives through the call.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    if index == 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: no pointers. Protocol 0: nothing is received.
    let raw = check(unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: `raw` was just returned by socket(2) and is owned by nobody else.
    let fd = unsafe { OwnedFd::from_raw_fd(raw) };
    // SAFETY: an all-zero `sockaddr_ll` is valid.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as libc::c_ushort;
    address.sll_ifindex = libc::c_int::try_from(index).map_err(|_| io::ErrorKind::InvalidData)?;
    // SAFETY: `address` is a `sockaddr_ll` of the stated size and lives through the call.
    check(unsafe {
        libc::bind(
            fd.as_raw_fd(),
            (&raw const address).cast(),
            size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        )
    })?;
    Ok(fd)
}

/// One datagram: the begin of its payload, and what the kernel tells of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Datagram {
    /// Bytes of `start` that came.
    pub filled: usize,
    pub start: [u8; STAMP_BYTES],
    /// The whole payload, bytes.
    pub payload_bytes: usize,
    /// `CLOCK_REALTIME` when it entered the kernel, ns; 0 when it has no stamp.
    pub real_ns: u64,
    /// Datagrams that found the buffer full since the socket was made, modulo 2^32.
    pub dropped: Option<u32>,
    pub from: Option<IpAddr>,
}

#[repr(C, align(16))]
struct Ancillary([u8; ANCILLARY]);

/// Buffers for a batch of datagrams.
pub(crate) struct Batch {
    starts: Box<[[u8; STAMP_BYTES]; BATCH]>,
    ancillary: Box<[Ancillary; BATCH]>,
    names: Box<[libc::sockaddr_storage; BATCH]>,
}

impl Batch {
    pub(crate) fn new() -> Self {
        // SAFETY: an all-zero `sockaddr_storage` is valid.
        let name: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
        Self {
            starts: Box::new([[0; STAMP_BYTES]; BATCH]),
            ancillary: Box::new([const { Ancillary([0; ANCILLARY]) }; BATCH]),
            names: Box::new([name; BATCH]),
        }
    }

    /// Takes what is there, without waiting, and calls `each` on every datagram. Returns how many.
    pub(crate) fn receive(&mut self, fd: &impl AsFd, mut each: impl FnMut(Datagram)) -> io::Result<usize> {
        // SAFETY: all-zero `iovec`s and `mmsghdr`s are valid; the pointers are filled in below.
        let mut vectors: [libc::iovec; BATCH] = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        let mut headers: [libc::mmsghdr; BATCH] = unsafe { std::mem::zeroed() };
        let parts = self.starts.iter_mut().zip(self.ancillary.iter_mut());
        let parts = parts.zip(self.names.iter_mut()).zip(&mut vectors);
        for (header, (((start, ancillary), name), vector)) in headers.iter_mut().zip(parts) {
            vector.iov_base = start.as_mut_ptr().cast();
            vector.iov_len = STAMP_BYTES;
            header.msg_hdr.msg_iov = vector;
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_name = std::ptr::from_mut(name).cast();
            header.msg_hdr.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
            header.msg_hdr.msg_control = ancillary.0.as_mut_ptr().cast();
            header.msg_hdr.msg_controllen = ANCILLARY;
        }
        // SAFETY: every header points to buffers of the stated sizes, which live through the call and are
        // borrowed by nobody else. MSG_TRUNC makes the length that of the whole datagram.
        let count = unsafe {
            libc::recvmmsg(
                fd.as_fd().as_raw_fd(),
                headers.as_mut_ptr(),
                BATCH as libc::c_uint,
                libc::MSG_DONTWAIT | libc::MSG_TRUNC,
                std::ptr::null_mut(),
            )
        };
        if count < 0 {
            let e = io::Error::last_os_error();
            return match e.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(0),
                _ => Err(e),
            };
        }
        let count = usize::try_from(count).unwrap_or(0);
        for ((header, start), name) in headers
            .iter()
            .zip(self.starts.iter())
            .zip(self.names.iter())
            .take(count)
        {
            let payload_bytes = header.msg_len as usize;
            let (real_ns, dropped) = ancillary_of(&header.msg_hdr);
            each(Datagram {
                filled: payload_bytes.min(STAMP_BYTES),
                start: *start,
                payload_bytes,
                real_ns,
                dropped,
                from: address_of(name),
            });
        }
        Ok(count)
    }
}

/// The stamp and the count of drops that came with a datagram.
fn ancillary_of(header: &libc::msghdr) -> (u64, Option<u32>) {
    let (mut real_ns, mut dropped) = (0, None);
    // SAFETY: the kernel filled `msg_control` up to `msg_controllen`; the macros stay within.
    let mut at = unsafe { libc::CMSG_FIRSTHDR(header) };
    while !at.is_null() {
        // SAFETY: `at` points to a whole header within the buffer, which is aligned to 16.
        let (level, kind, data) = unsafe { ((*at).cmsg_level, (*at).cmsg_type, libc::CMSG_DATA(at)) };
        if (level, kind) == (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) {
            // SAFETY: data of this type is one `timespec`; it may be unaligned.
            let time = unsafe { data.cast::<libc::timespec>().read_unaligned() };
            real_ns = u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000
                + u64::try_from(time.tv_nsec).unwrap_or(0);
        } else if (level, kind) == (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) {
            // SAFETY: data of this type is one u32; it may be unaligned.
            dropped = Some(unsafe { data.cast::<u32>().read_unaligned() });
        }
        // SAFETY: `at` is a header of this message.
        at = unsafe { libc::CMSG_NXTHDR(header, at) };
    }
    (real_ns, dropped)
}

fn address_of(name: &libc::sockaddr_storage) -> Option<IpAddr> {
    let pointer = std::ptr::from_ref(name);
    match i32::from(name.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says that this is a `sockaddr_in`, which is smaller than the storage.
            let v4 = unsafe { &*pointer.cast::<libc::sockaddr_in>() };
            Some(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above, a `sockaddr_in6`.
            let v6 = unsafe { &*pointer.cast::<libc::sockaddr_in6>() };
            Some(Ipv6Addr::from(v6.sin6_addr.s6_addr).to_canonical())
        }
        _ => None,
    }
}
