//! Many datagrams in one system call: `sendmmsg` and `recvmmsg`, each datagram with its traffic class, and with the time at which the
//! kernel took it in.
//!
//! ```text
//!   Outbox | d | d | d | d' | d |  --> messages: neighbours of one length and class as one (UDP_SEGMENT), cut by the kernel or the card
//!   Inbox  one room of 64 KiB for each message, which holds one datagram or several of one length (UDP_GRO)
//! ```
//!
//! Control messages of a received one: `IP_TOS` or `IPV6_TCLASS`, `SCM_TIMESTAMPNS` (time of day), `UDP_GRO` (length of its datagrams).

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::sys::check;

/// Most messages of one call.
pub(crate) const BATCH: usize = 64;
/// Room for a message.
pub(crate) const MESSAGE_MAX: usize = 65_535;
/// Most datagrams of one message (`UDP_MAX_SEGMENTS` was 64 before Linux 6.9), and their bytes.
const SEGMENTS_MAX: usize = 64;
const SEGMENTS_BYTES: usize = 65_000;
/// Room for the control messages of one message (104 bytes at most), aligned for `cmsghdr` by being words.
const CONTROL_WORDS: usize = 16;
/// linux/udp.h.
const UDP_SEGMENT: libc::c_int = 103;
/// linux/udp.h.
pub(crate) const UDP_GRO: libc::c_int = 104;

/// What a message's control messages say.
#[derive(Debug, Clone, Copy, Default)]
struct About {
    class: u8,
    /// When the kernel took it in, ns of the time of day.
    taken_unix_ns: Option<u64>,
    /// Length of its datagrams, when it holds several.
    segment: Option<usize>,
}

/// A received datagram.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Received<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) class: u8,
    /// When the kernel took it in, ns of the time of day.
    pub(crate) taken_unix_ns: Option<u64>,
}

/// Room for what one call receives.
pub(crate) struct Inbox {
    room: Vec<u8>,
    got: Vec<(usize, About)>,
}

impl Inbox {
    pub(crate) fn new() -> Self {
        Self {
            room: vec![0; BATCH * MESSAGE_MAX],
            got: Vec::with_capacity(BATCH),
        }
    }

    /// The datagrams of the last call.
    pub(crate) fn datagrams(&self) -> impl Iterator<Item = Received<'_>> {
        let rooms = self.room.chunks(MESSAGE_MAX);
        rooms.zip(&self.got).flat_map(|(room, (len, about))| {
            let message = &room[..*len];
            let segment = about.segment.unwrap_or(*len).max(1);
            message.chunks(segment).map(|bytes| Received {
                bytes,
                class: about.class,
                taken_unix_ns: about.taken_unix_ns,
            })
        })
    }

    /// Receives what is there, up to [`BATCH`] messages, and says how many. 0 when there is nothing.
    pub(crate) fn receive(&mut self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        self.got.clear();
        let mut control = [[0u64; CONTROL_WORDS]; BATCH];
        // SAFETY: all-zero `iovec` and `mmsghdr` are valid: null pointers and zero lengths.
        let (mut parts, mut headers): ([libc::iovec; BATCH], [libc::mmsghdr; BATCH]) =
            unsafe { (zeroed(), zeroed()) };
        let rooms = self.room.chunks_mut(MESSAGE_MAX);
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
            let len = (header.msg_len as usize).min(MESSAGE_MAX);
            self.got.push((len, about(&header.msg_hdr)));
        }
        Ok(count)
    }
}

/// What a received message's control messages say; nothing where there are none.
fn about(header: &libc::msghdr) -> About {
    let mut said = About::default();
    // SAFETY: the header's control buffer was filled by the kernel, which set its length; the CMSG functions stay within it, and
    // each kind's data is what the kernel writes for it.
    unsafe {
        let mut next = libc::CMSG_FIRSTHDR(header);
        while !next.is_null() {
            let head = next.read_unaligned();
            let data = libc::CMSG_DATA(next);
            match (head.cmsg_level, head.cmsg_type) {
                (libc::IPPROTO_IP, libc::IP_TOS) => said.class = data.read(),
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                    said.class = data.cast::<libc::c_int>().read_unaligned() as u8;
                }
                (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS) => {
                    let at = data.cast::<libc::timespec>().read_unaligned();
                    let (s, ns) = (u64::try_from(at.tv_sec), u64::try_from(at.tv_nsec));
                    said.taken_unix_ns = s
                        .ok()
                        .zip(ns.ok())
                        .map(|(s, ns)| s.saturating_mul(1_000_000_000).saturating_add(ns));
                }
                (libc::SOL_UDP, UDP_GRO) => {
                    let segment = data.cast::<libc::c_int>().read_unaligned();
                    said.segment = usize::try_from(segment).ok().filter(|s| *s > 0);
                }
                _ => {}
            }
            next = libc::CMSG_NXTHDR(header, next);
        }
    }
    said
}

/// Datagrams that wait to be sent, one behind the other.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    bytes: Vec<u8>,
    /// End and traffic class of each.
    ends: Vec<(usize, u8)>,
}

/// Neighbours that are sent as one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Group {
    from: usize,
    to: usize,
    class: u8,
    /// Length of the first, which all but the last have.
    segment: usize,
    datagrams: usize,
}

impl Outbox {
    /// Where the next datagram's bytes are to be appended; [`Outbox::end`] ends it.
    pub(crate) fn room(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// What was appended since the last call is a datagram. Says how many wait.
    pub(crate) fn end(&mut self, class: u8) -> usize {
        if self.bytes.len() > self.ends.last().map_or(0, |(end, _)| *end) {
            self.ends.push((self.bytes.len(), class));
        }
        self.ends.len()
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// The groups from the datagram `first` on, of at most `most` datagrams each.
    fn groups(&self, first: usize, most: usize) -> impl Iterator<Item = Group> + '_ {
        let mut at = first;
        std::iter::from_fn(move || {
            let start = |n: usize| n.checked_sub(1).map_or(0, |n| self.ends[n].0);
            let (end, class) = *self.ends.get(at)?;
            let from = start(at);
            let segment = end - from;
            let mut group = Group {
                from,
                to: end,
                class,
                segment,
                datagrams: 1,
            };
            at += 1;
            while let Some((end, its)) = self.ends.get(at) {
                let len = end - group.to;
                let whole = group.to - from == segment * group.datagrams;
                let fits = group.datagrams < most && end - from <= SEGMENTS_BYTES;
                if *its != class || len > segment || !whole || !fits {
                    break;
                }
                group.to = *end;
                group.datagrams += 1;
                at += 1;
            }
            Some(group)
        })
    }

    /// Sends from the datagram `first` on, on a connected socket, and says how many were taken. With `segments` neighbours go as one
    /// message.
    pub(crate) fn send(
        &self,
        fd: BorrowedFd<'_>,
        v6: bool,
        first: usize,
        segments: bool,
    ) -> io::Result<usize> {
        let mut control = [[0u64; CONTROL_WORDS]; BATCH];
        // SAFETY: all-zero `iovec` and `mmsghdr` are valid: null pointers and zero lengths.
        let (mut parts, mut headers): ([libc::iovec; BATCH], [libc::mmsghdr; BATCH]) =
            unsafe { (zeroed(), zeroed()) };
        let mut datagrams = [0; BATCH];
        let mut count = 0;
        for group in self
            .groups(first, if segments { SEGMENTS_MAX } else { 1 })
            .take(BATCH)
        {
            let part = &mut parts[count];
            // The kernel only reads through it.
            part.iov_base = self.bytes[group.from..group.to].as_ptr().cast_mut().cast();
            part.iov_len = group.to - group.from;
            let header = &mut headers[count].msg_hdr;
            header.msg_iov = part;
            header.msg_iovlen = 1;
            header.msg_control = control[count].as_mut_ptr().cast();
            header.msg_controllen = size_of::<[u64; CONTROL_WORDS]>();
            tell(header, v6, group);
            datagrams[count] = group.datagrams;
            count += 1;
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
        let sent = usize::try_from(sent).unwrap_or(0);
        Ok(datagrams.iter().take(sent).sum())
    }
}

/// Writes a group's control messages into the header's buffer of [`CONTROL_WORDS`].
fn tell(header: &mut libc::msghdr, v6: bool, group: Group) {
    let word = size_of::<libc::c_int>() as u32;
    let segmented = group.datagrams > 1;
    // SAFETY: the control buffer has 128 bytes of zeros, aligned to 8; the two messages take 24 bytes each (`CMSG_SPACE`), so that
    // both headers and their data lie in it.
    unsafe {
        let first = libc::CMSG_FIRSTHDR(header);
        (*first).cmsg_level = if v6 { libc::IPPROTO_IPV6 } else { libc::IPPROTO_IP };
        (*first).cmsg_type = if v6 { libc::IPV6_TCLASS } else { libc::IP_TOS };
        (*first).cmsg_len = libc::CMSG_LEN(word) as usize;
        libc::CMSG_DATA(first)
            .cast::<libc::c_int>()
            .write_unaligned(libc::c_int::from(group.class));
        header.msg_controllen = libc::CMSG_SPACE(word) as usize;
        if segmented {
            let length = size_of::<u16>() as u32;
            header.msg_controllen += libc::CMSG_SPACE(length) as usize;
            let second = libc::CMSG_NXTHDR(header, first);
            if second.is_null() {
                return;
            }
            (*second).cmsg_level = libc::SOL_UDP;
            (*second).cmsg_type = UDP_SEGMENT;
            (*second).cmsg_len = libc::CMSG_LEN(length) as usize;
            libc::CMSG_DATA(second)
                .cast::<u16>()
                .write_unaligned(u16::try_from(group.segment).unwrap_or(u16::MAX));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outbox(datagrams: &[(usize, u8)]) -> Outbox {
        let mut out = Outbox::default();
        for (len, class) in datagrams {
            out.room().extend(std::iter::repeat_n(1, *len));
            out.end(*class);
        }
        out
    }

    #[test]
    fn neighbours_of_one_length_and_class_go_together() {
        let groups = |datagrams: &[(usize, u8)], most| -> Vec<usize> {
            let out = outbox(datagrams);
            out.groups(0, most).map(|g| g.datagrams).collect()
        };
        assert_eq!(groups(&[(100, 0); 5], 64), [5]);
        assert_eq!(groups(&[(100, 0); 5], 2), [2, 2, 1]);
        assert_eq!(groups(&[(100, 0); 3], 1), [1, 1, 1]);
        // A shorter one ends the group; a longer one begins the next.
        assert_eq!(
            groups(&[(100, 0), (100, 0), (40, 0), (40, 0), (100, 0)], 64),
            [3, 1, 1]
        );
        assert_eq!(groups(&[(100, 0), (100, 2), (100, 2)], 64), [1, 2]);
        assert_eq!(groups(&[(1_500, 0); 64], 64), [43, 21]);
        let out = outbox(&[(7, 0), (9, 0), (9, 0)]);
        let second: Vec<Group> = out.groups(1, 64).collect();
        assert_eq!(
            second,
            [Group {
                from: 7,
                to: 25,
                class: 0,
                segment: 9,
                datagrams: 2
            }]
        );
    }
}
