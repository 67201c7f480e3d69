//! The interface that programs see, with superframes: what its TCP hands over whole is cut into packets here, and what
//! arrives for one stream in a row is handed back whole.
//!
//! A TUN device's IP packets get a MAC header of zeros in front while they are worked on, so that
//! [`kuroshio_port::segment`] does both kinds. A segment is joined only when its TCP checksum is right: the joined one's is left to the
//! host.

use std::ffi::CString;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use kuroshio_port::segment::{MAX_SUPERFRAME, Partial, Run, Superframe, VNET_HEADER, Vnet, complete};
use rustix::fs::{Mode, OFlags};

use crate::{LaneError, TunnelKind, sys};

const MAC_HEADER: usize = 14;
/// Bytes of a frame that are looked at before it is joined: MAC header, IP header with options, TCP header with options.
const HEAD_MAX: usize = MAC_HEADER + 60 + 60;
/// Most segments that are joined; their parts go to one `writev`.
const JOIN_MAX: usize = 44;

/// An open TUN or TAP device. It disappears when this value is dropped.
#[derive(Debug)]
pub struct Device {
    fd: OwnedFd,
    index: u32,
    kind: TunnelKind,
    room: Vec<u8>,
    segment: Vec<u8>,
    /// Packets that the host had no room for.
    pub refused: u64,
}

impl Device {
    /// Makes a device called `name` in the calling thread's network namespace.
    ///
    /// # Errors
    /// Without `/dev/net/tun` or `CAP_NET_ADMIN`, and when the name is taken.
    pub fn open_here(name: &str, kind: TunnelKind) -> Result<Self, LaneError> {
        let failed = LaneError::io(format!("interface {name}"));
        let open = || -> io::Result<(OwnedFd, u32)> {
            let c_name = CString::new(name).map_err(|_| io::ErrorKind::InvalidInput)?;
            let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let fd = rustix::fs::open("/dev/net/tun", flags, Mode::empty())?;
            sys::attach(fd.as_fd(), &c_name, kind == TunnelKind::Tap)?;
            let index = sys::interface_index(&c_name)?;
            Ok((fd, index))
        };
        let (fd, index) = open().map_err(failed)?;
        Ok(Self {
            fd,
            index,
            kind,
            room: vec![0; MAC_HEADER + MAX_SUPERFRAME],
            segment: vec![0; MAC_HEADER + MAX_SUPERFRAME],
            refused: 0,
        })
    }

    /// Its number in its namespace.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// How far a frame's bytes are behind the front of the room.
    fn front(&self) -> usize {
        match self.kind {
            TunnelKind::Tun => MAC_HEADER,
            TunnelKind::Tap => 0,
        }
    }

    /// Takes the next of what the host sent, and gives its packets (TAP: frames) to `sink`. `false` when there is nothing.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn read(&mut self, mut sink: impl FnMut(&[u8])) -> io::Result<bool> {
        let front = self.front();
        let mut vnet = [0; VNET_HEADER];
        let parts = &mut [
            IoSliceMut::new(&mut vnet),
            IoSliceMut::new(&mut self.room[front..]),
        ];
        let len = match rustix::io::readv(&self.fd, parts) {
            Ok(len) => len.saturating_sub(VNET_HEADER),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(false),
            Err(e) => return Err(e.into()),
        };
        if front > 0 {
            move_offsets(&mut vnet, MAC_HEADER as i32);
            let kind: u16 = if self.room[front] >> 4 == 6 {
                0x86dd
            } else {
                0x0800
            };
            self.room[12..14].copy_from_slice(&kind.to_be_bytes());
        }
        let frame = &mut self.room[..front + len];
        let Some(vnet) = Vnet::read(&vnet) else {
            return Ok(true);
        };
        if let Some(whole) = Superframe::new(&vnet, frame) {
            for index in 0..whole.count() {
                let len = whole.write(index, &mut self.segment);
                complete(&mut self.segment[..len], whole.partial());
                sink(&self.segment[front..len]);
            }
            return Ok(true);
        }
        if let Some(partial) = vnet.partial {
            complete(frame, partial);
        }
        sink(&frame[front..]);
        Ok(true)
    }

    /// Gives packets to the host, neighbouring segments of one stream as one.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn write(&mut self, packets: &[Vec<u8>]) -> io::Result<()> {
        let mut rest = packets;
        while let Some((first, _)) = rest.split_first() {
            let count = self.write_some(first, rest)?;
            rest = &rest[count..];
        }
        Ok(())
    }

    /// Writes the first packet with as many of those behind it as may be joined, and says how many.
    fn write_some(&mut self, first: &[u8], packets: &[Vec<u8>]) -> io::Result<usize> {
        let front = self.front();
        let Some((run, count)) = self.join(first, packets) else {
            self.put(&[IoSlice::new(&Vnet::single(None).write()), IoSlice::new(first)])?;
            return Ok(1);
        };
        let (mut header, last) = (self.head(first), self.head(&packets[count - 1]));
        let mut vnet = run.finish(&mut header.room, &last.room).write();
        if front > 0 {
            move_offsets(&mut vnet, -(MAC_HEADER as i32));
        }
        let payload = run.header_len() - front;
        let mut parts = [IoSlice::new(&[]); JOIN_MAX + 2];
        parts[0] = IoSlice::new(&vnet);
        parts[1] = IoSlice::new(&header.room[front..run.header_len()]);
        for (part, packet) in parts[2..].iter_mut().zip(&packets[..count]) {
            *part = IoSlice::new(&packet[payload..]);
        }
        self.put(&parts[..count + 2])?;
        Ok(count)
    }

    /// The first bytes of a packet with a MAC header in front.
    fn head(&self, packet: &[u8]) -> Head {
        let mut head = [0; HEAD_MAX];
        let front = self.front();
        if front > 0 {
            let v6 = packet.first().is_some_and(|b| b >> 4 == 6);
            let kind: u16 = if v6 { 0x86dd } else { 0x0800 };
            head[12..14].copy_from_slice(&kind.to_be_bytes());
        }
        let len = packet.len().min(HEAD_MAX - front);
        head[front..front + len].copy_from_slice(&packet[..len]);
        Head {
            room: head,
            filled: front + len,
            frame_len: front + packet.len(),
        }
    }

    /// How many packets may be joined with the first one, and what their headers become.
    fn join(&self, first: &[u8], packets: &[Vec<u8>]) -> Option<(Run, usize)> {
        let front = self.front();
        let head = self.head(first);
        let start = head.tcp_start()?;
        if !checksum_is_right(&head, start, first, front) {
            return None;
        }
        let partial = Partial {
            start: u16::try_from(start).ok()?,
            offset: 16,
        };
        let mut run = Run::start_of(head.bytes(), head.frame_len, partial)?;
        let mut count = 1;
        for packet in packets.iter().skip(1).take(JOIN_MAX - 1) {
            let next = self.head(packet);
            if next.tcp_start() != Some(start)
                || !checksum_is_right(&next, start, packet, front)
                || !run.join_of(head.bytes(), next.bytes(), next.frame_len, partial)
            {
                break;
            }
            count += 1;
        }
        (count > 1).then_some((run, count))
    }

    fn put(&mut self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        use rustix::io::Errno;
        match rustix::io::writev(&self.fd, parts) {
            Ok(_) => Ok(()),
            // EINVAL: no packet that this kernel takes, whatever the peer's host made of it.
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM | Errno::INTR | Errno::INVAL) => {
                self.refused += 1;
                Ok(())
            }
            Err(e) => Err(e.into()),
        }
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Moves the offsets of a virtio-net header (header length, checksum start) by so many bytes.
fn move_offsets(vnet: &mut [u8; VNET_HEADER], by: i32) {
    for (at, needed) in [(2, vnet[1] != 0), (6, vnet[0] & 1 != 0)] {
        if needed {
            let value = i32::from(u16::from_ne_bytes([vnet[at], vnet[at + 1]])) + by;
            let value = u16::try_from(value).unwrap_or(0);
            vnet[at..at + 2].copy_from_slice(&value.to_ne_bytes());
        }
    }
}

/// The first bytes of a frame, its headers among them.
struct Head {
    room: [u8; HEAD_MAX],
    filled: usize,
    frame_len: usize,
}

impl Head {
    fn bytes(&self) -> &[u8] {
        &self.room[..self.filled]
    }

    /// Where the TCP header starts, behind plain IP headers.
    fn tcp_start(&self) -> Option<usize> {
        let frame = self.bytes();
        let ip = frame.get(MAC_HEADER..)?;
        let ip_len = self.frame_len - MAC_HEADER;
        match (frame.get(12..14)?, ip.first()? >> 4) {
            ([0x08, 0x00], 4) => {
                let fragment = u16::from_be_bytes([*ip.get(6)?, *ip.get(7)?]) & 0x3fff;
                let length = usize::from(u16::from_be_bytes([*ip.get(2)?, *ip.get(3)?]));
                let start = usize::from(ip[0] & 15) * 4;
                let plain = *ip.get(9)? == 6 && fragment == 0 && length == ip_len && start >= 20;
                plain.then_some(MAC_HEADER + start)
            }
            ([0x86, 0xdd], 6) => {
                let length = usize::from(u16::from_be_bytes([*ip.get(4)?, *ip.get(5)?]));
                (*ip.get(6)? == 6 && length + 40 == ip_len).then_some(MAC_HEADER + 40)
            }
            _ => None,
        }
    }
}

/// Whether the TCP checksum of a packet is right; its head starts `front` bytes before it, and TCP at `start` of that.
fn checksum_is_right(head: &Head, start: usize, packet: &[u8], front: usize) -> bool {
    let v6 = head.room[MAC_HEADER] >> 4 == 6;
    let addresses = if v6 {
        MAC_HEADER + 8..MAC_HEADER + 40
    } else {
        MAC_HEADER + 12..MAC_HEADER + 20
    };
    let (Some(addresses), Some(segment)) = (head.bytes().get(addresses), packet.get(start - front..)) else {
        return false;
    };
    let sum = words(addresses) + words(segment) + 6 + segment.len() as u64;
    let mut folded = sum;
    while folded > 0xffff {
        folded = (folded >> 16) + (folded & 0xffff);
    }
    folded == 0xffff
}

/// The sum of 16-bit words, an odd byte padded with zero (RFC 1071); at most 2^32 of a packet.
fn words(bytes: &[u8]) -> u64 {
    let mut chunks = bytes.chunks_exact(8);
    let whole: u64 = chunks
        .by_ref()
        .map(|c| {
            let n = u64::from_be_bytes([c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7]]);
            (n >> 32) + (n & 0xffff_ffff)
        })
        .sum();
    let mut rest = [0; 8];
    for (slot, byte) in rest.iter_mut().zip(chunks.remainder()) {
        *slot = *byte;
    }
    let rest = u64::from_be_bytes(rest);
    let sum = whole + (rest >> 32) + (rest & 0xffff_ffff);
    (sum >> 32) + (sum & 0xffff_ffff)
}
