//! The system calls without a safe wrapper: stamped batches of datagrams in, superframes out, and options of sockets.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

use kuroshio_core::video::MAX_DATAGRAM;

/// Datagrams of one batch.
pub(crate) const BATCH: usize = 32;
/// Room for ancillary data: a stamp with its header, twice.
const ANCILLARY: usize = 64;
/// Messages of one call that sends.
const MAX_MESSAGES: usize = 64;
/// Room for the length of a superframe's datagrams: a header and a u16.
const SEGMENT_LENGTH: usize = 24;

#[repr(C, align(16))]
#[derive(Clone, Copy)]
struct SegmentLength([u8; SEGMENT_LENGTH]);

fn set_int(socket: &UdpSocket, level: i32, name: i32, value: libc::c_int) -> io::Result<()> {
    // SAFETY: the kernel reads one c_int, which lives through the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Receive stamps of the kernel.
pub(crate) fn stamp_receives(socket: &UdpSocket) -> io::Result<()> {
    set_int(socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)
}

/// Superframes are handed over whole, with the length of their datagrams (`UDP_GRO`). A kernel without hands over each alone.
pub(crate) fn receive_superframes(socket: &UdpSocket) {
    let _ = set_int(socket, libc::SOL_UDP, libc::UDP_GRO, 1);
}

/// Sends messages to the connected peer, each one datagram, or where a length is given a superframe of datagrams of that length.
/// Returns how many messages the kernel took, one at least.
pub(crate) fn send_many(socket: &UdpSocket, messages: &[(&[u8], Option<u16>)]) -> io::Result<usize> {
    let messages = messages
        .get(..MAX_MESSAGES.min(messages.len()))
        .unwrap_or_default();
    // SAFETY: `iovec` and `mmsghdr` are plain C structures for which all zeros is a valid value.
    let (mut vectors, mut headers): ([libc::iovec; MAX_MESSAGES], [libc::mmsghdr; MAX_MESSAGES]) =
        unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    let mut lengths = [SegmentLength([0; SEGMENT_LENGTH]); MAX_MESSAGES];
    let each = headers.iter_mut().zip(&mut vectors).zip(&mut lengths);
    for (((header, vector), ancillary), (bytes, segment)) in each.zip(messages) {
        vector.iov_base = bytes.as_ptr().cast_mut().cast();
        vector.iov_len = bytes.len();
        header.msg_hdr.msg_iov = vector;
        header.msg_hdr.msg_iovlen = 1;
        let Some(segment) = segment else { continue };
        header.msg_hdr.msg_control = ancillary.0.as_mut_ptr().cast();
        header.msg_hdr.msg_controllen = SEGMENT_LENGTH;
        // SAFETY: the buffer is aligned as a `cmsghdr` is and has room for one with a u16 (CMSG_SPACE(2) is 24 at most).
        unsafe {
            let control = libc::CMSG_FIRSTHDR(&raw const header.msg_hdr);
            (*control).cmsg_level = libc::SOL_UDP;
            (*control).cmsg_type = libc::UDP_SEGMENT;
            (*control).cmsg_len = libc::CMSG_LEN(size_of::<u16>() as u32) as _;
            libc::CMSG_DATA(control).cast::<u16>().write_unaligned(*segment);
        }
    }
    // SAFETY: the first `messages.len()` headers point to buffers of the stated sizes, which live through the call; the kernel
    // only reads the data.
    let count = unsafe {
        libc::sendmmsg(
            socket.as_raw_fd(),
            headers.as_mut_ptr(),
            messages.len() as libc::c_uint,
            0,
        )
    };
    match usize::try_from(count) {
        Ok(count) => Ok(count),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// A receive buffer of `bytes`: beyond `rmem_max` where that is allowed.
pub(crate) fn receive_buffer(socket: &UdpSocket, bytes: i32) -> io::Result<()> {
    set_int(socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes)
        .or_else(|_| set_int(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, bytes))
}

/// Datagrams are never fragmented: one that is larger than the path's MTU is refused with `EMSGSIZE`.
pub(crate) fn never_fragment(socket: &UdpSocket, v6: bool) -> io::Result<()> {
    if v6 {
        set_int(
            socket,
            libc::IPPROTO_IPV6,
            libc::IPV6_MTU_DISCOVER,
            libc::IPV6_PMTUDISC_DO,
        )
    } else {
        set_int(
            socket,
            libc::IPPROTO_IP,
            libc::IP_MTU_DISCOVER,
            libc::IP_PMTUDISC_DO,
        )
    }
}

/// `CLOCK_REALTIME`, ns: the clock of the kernel's stamps.
pub(crate) fn real_ns() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |d| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX))
}

#[repr(C, align(16))]
struct Ancillary([u8; ANCILLARY]);

/// Buffers for a batch of datagrams.
pub(crate) struct Batch {
    bytes: Vec<Vec<u8>>,
    ancillary: Box<[Ancillary; BATCH]>,
}

impl Batch {
    pub(crate) fn new() -> Self {
        Self {
            bytes: (0..BATCH).map(|_| vec![0; MAX_DATAGRAM]).collect(),
            ancillary: Box::new([const { Ancillary([0; ANCILLARY]) }; BATCH]),
        }
    }

    /// Waits for a datagram (as long as the socket's read timeout), takes what else is there and calls `each` with
    /// the bytes of every datagram and the kernel's stamp (`CLOCK_REALTIME`, ns; a superframe has one). Returns how many
    /// messages came.
    pub(crate) fn receive(
        &mut self,
        socket: &UdpSocket,
        mut each: impl FnMut(&[u8], u64),
    ) -> io::Result<usize> {
        // SAFETY: all-zero `iovec`s and `mmsghdr`s are valid; the pointers are filled in below.
        let mut vectors: [libc::iovec; BATCH] = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        let mut headers: [libc::mmsghdr; BATCH] = unsafe { std::mem::zeroed() };
        let buffers = self
            .bytes
            .iter_mut()
            .zip(self.ancillary.iter_mut())
            .zip(&mut vectors);
        for (header, ((bytes, ancillary), vector)) in headers.iter_mut().zip(buffers) {
            vector.iov_base = bytes.as_mut_ptr().cast();
            vector.iov_len = bytes.len();
            header.msg_hdr.msg_iov = vector;
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_control = ancillary.0.as_mut_ptr().cast();
            header.msg_hdr.msg_controllen = ANCILLARY;
        }
        // SAFETY: every header points to buffers of the stated sizes, which live through the call and are
        // borrowed by nobody else.
        let count = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                headers.as_mut_ptr(),
                BATCH as libc::c_uint,
                libc::MSG_WAITFORONE,
                std::ptr::null_mut(),
            )
        };
        if count < 0 {
            let e = io::Error::last_os_error();
            return match e.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted | io::ErrorKind::ConnectionRefused => {
                    Ok(0)
                }
                _ => Err(e),
            };
        }
        let count = usize::try_from(count).unwrap_or(0);
        for (header, bytes) in headers.iter().zip(&self.bytes).take(count) {
            let (stamp_ns, segment) = ancillary(&header.msg_hdr);
            let stamp_ns = stamp_ns.unwrap_or_else(real_ns);
            let bytes = bytes.get(..header.msg_len as usize).unwrap_or_default();
            match segment {
                Some(segment) if segment > 0 => bytes.chunks(segment).for_each(|one| each(one, stamp_ns)),
                _ => each(bytes, stamp_ns),
            }
        }
        Ok(count)
    }
}

/// The stamp that came with a message, ns, and the length of its datagrams where it is a superframe.
fn ancillary(header: &libc::msghdr) -> (Option<u64>, Option<usize>) {
    let (mut stamp_ns, mut segment) = (None, None);
    // SAFETY: the kernel filled `msg_control` up to `msg_controllen`; the macros stay within.
    let mut at = unsafe { libc::CMSG_FIRSTHDR(header) };
    while !at.is_null() {
        // SAFETY: `at` points to a whole header within the buffer, which is aligned to 16.
        let (level, kind, data) = unsafe { ((*at).cmsg_level, (*at).cmsg_type, libc::CMSG_DATA(at)) };
        match (level, kind) {
            (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) => {
                // SAFETY: data of this type is one `timespec`; it may be unaligned.
                let time = unsafe { data.cast::<libc::timespec>().read_unaligned() };
                let seconds = u64::try_from(time.tv_sec).ok();
                let ns = u64::try_from(time.tv_nsec).ok();
                stamp_ns = seconds.zip(ns).map(|(s, ns)| s * 1_000_000_000 + ns);
            }
            (libc::SOL_UDP, libc::UDP_GRO) => {
                // SAFETY: data of this type is one `int`; it may be unaligned.
                segment = usize::try_from(unsafe { data.cast::<libc::c_int>().read_unaligned() }).ok();
            }
            _ => {}
        }
        // SAFETY: `at` is a header of this message.
        at = unsafe { libc::CMSG_NXTHDR(header, at) };
    }
    (stamp_ns, segment)
}
