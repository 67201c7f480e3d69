//! Superframes: many TCP segments of one flow behind one header, as a card with segmentation offload takes them.
//!
//! ```text
//!  virtio-net header (10 bytes) | MAC | IP | TCP | payload of n segments, `mss` bytes each, the last at most that
//!       gso type, mss,            \_________________/
//!       checksum start, offset      header of every segment, with the changes below
//! ```
//!
//! | field | of segment i of n |
//! |---|---|
//! | IPv4 total length, IPv6 payload length | its own |
//! | IPv4 identification | that of the superframe, plus i |
//! | IPv4 header checksum | its own |
//! | TCP sequence number | plus i * mss |
//! | TCP PSH, FIN | in the last alone |
//! | TCP CWR | in the first alone |
//! | TCP checksum | the sum of its own pseudo header; the sum over the rest is left to whoever needs it |
//!
//! [`Superframe`] takes a superframe apart, [`Run`] puts neighbouring segments together again, as their sender had
//! them. A frame whose checksum is partial carries [`Partial`]; [`complete`] makes it whole.
//!
//! Sources: virtio 1.2, section 5.1.6 (the header, its checksum fields and segmentation types); RFC 1071; RFC 9293; RFC 6864.

use std::ops::Range;

/// Bytes of the virtio-net header in front of every frame.
pub const VNET_HEADER: usize = 10;

/// Longest superframe without the virtio-net header: an IP packet of 65535 bytes behind a MAC header with two tags.
pub const MAX_SUPERFRAME: usize = 65_535 + 22;

const NEEDS_CSUM: u8 = 1;
const GSO_NONE: u8 = 0;
const GSO_TCP4: u8 = 1;
const GSO_TCP6: u8 = 4;
/// The first segment has CWR, the others have not.
const GSO_ECN: u8 = 0x80;

const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const PSH: u8 = 0x08;
const URG: u8 = 0x20;
const CWR: u8 = 0x80;

/// Where a checksum is still to be made: it covers everything from `start`, and belongs to `start + offset`, where
/// the sum of the pseudo header waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Partial {
    /// Start of the transport header, bytes from the MAC header.
    pub start: u16,
    /// Place of the checksum in it.
    pub offset: u16,
}

/// What the virtio-net header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Vnet {
    /// A checksum that is not made yet.
    pub partial: Option<Partial>,
    gso: u8,
    /// Payload bytes of a segment; 0 for a single frame.
    pub mss: u16,
    header_len: u16,
}

impl Vnet {
    /// Reads a header. `None` when it is cut short.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; VNET_HEADER] = bytes.get(..VNET_HEADER)?.try_into().ok()?;
        let at = |i: usize| u16::from_ne_bytes([bytes[i], bytes[i + 1]]);
        let partial = (bytes[0] & NEEDS_CSUM != 0).then(|| Partial {
            start: at(6),
            offset: at(8),
        });
        let single = bytes[1] & !GSO_ECN == GSO_NONE;
        Some(Self {
            partial,
            gso: bytes[1],
            mss: if single { 0 } else { at(4) },
            header_len: at(2),
        })
    }

    /// The header of a single frame.
    #[must_use]
    pub fn single(partial: Option<Partial>) -> Self {
        Self {
            partial,
            ..Self::default()
        }
    }

    /// The header as bytes.
    #[must_use]
    pub fn write(&self) -> [u8; VNET_HEADER] {
        let mut bytes = [0; VNET_HEADER];
        bytes[0] = if self.partial.is_some() { NEEDS_CSUM } else { 0 };
        bytes[1] = self.gso;
        bytes[2..4].copy_from_slice(&self.header_len.to_ne_bytes());
        bytes[4..6].copy_from_slice(&self.mss.to_ne_bytes());
        if let Some(partial) = self.partial {
            bytes[6..8].copy_from_slice(&partial.start.to_ne_bytes());
            bytes[8..10].copy_from_slice(&partial.offset.to_ne_bytes());
        }
        bytes
    }
}

/// Where the headers of a TCP segment are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Layout {
    ip: usize,
    tcp: usize,
    payload: usize,
    v6: bool,
}

impl Layout {
    /// The headers of a frame whose TCP header is known to start at `tcp`.
    fn of(frame: &[u8], tcp: usize) -> Option<Self> {
        let mut ip = 14;
        let mut kind = word(frame, 12)?;
        for _ in 0..2 {
            if kind != 0x8100 && kind != 0x88a8 {
                break;
            }
            kind = word(frame, ip + 2)?;
            ip += 4;
        }
        let v6 = match kind {
            0x0800 => false,
            0x86dd => true,
            _ => return None,
        };
        let least = if v6 { ip + 40 } else { ip + 20 };
        let data_offset = usize::from(frame.get(tcp + 12)? >> 4) * 4;
        let payload = tcp + data_offset;
        if tcp < least || data_offset < 20 || payload > frame.len() {
            return None;
        }
        let is_tcp = if v6 {
            // Behind extension headers, the checksum's place has to do.
            tcp > least || *frame.get(ip + 6)? == 6
        } else {
            *frame.get(ip + 9)? == 6 && tcp == ip + usize::from(frame.get(ip)? & 15) * 4
        };
        is_tcp.then_some(Self { ip, tcp, payload, v6 })
    }

    /// Writes the lengths of a frame of `len` bytes, and the checksums that hang on them.
    fn lengths(&self, header: &mut [u8], len: usize) {
        let clip = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
        let (ip, tcp) = (self.ip, self.tcp);
        let tcp_len = len.saturating_sub(tcp) as u64;
        let addresses = if self.v6 {
            put(header, ip + 4, clip(len - ip - 40));
            ip + 8..ip + 40
        } else {
            put(header, ip + 2, clip(len - ip));
            put(header, ip + 10, 0);
            let check = !fold(sum(header.get(ip..tcp).unwrap_or(&[])));
            put(header, ip + 10, check);
            ip + 12..ip + 20
        };
        let pseudo = sum(header.get(addresses).unwrap_or(&[])) + 6 + tcp_len;
        put(header, tcp + 16, fold(pseudo));
    }
}

/// A superframe taken apart.
#[derive(Debug, Clone, Copy)]
pub struct Superframe<'a> {
    frame: &'a [u8],
    layout: Layout,
    mss: usize,
}

impl<'a> Superframe<'a> {
    /// Understands a superframe of TCP over IPv4 or IPv6. `None` for what is none.
    #[must_use]
    pub fn new(vnet: &Vnet, frame: &'a [u8]) -> Option<Self> {
        let kind = vnet.gso & !GSO_ECN;
        let tcp = usize::from(vnet.partial?.start);
        let layout = Layout::of(frame, tcp)?;
        let right = kind == if layout.v6 { GSO_TCP6 } else { GSO_TCP4 };
        let mss = usize::from(vnet.mss);
        (right && mss > 0 && frame.len() > layout.payload).then_some(Self { frame, layout, mss })
    }

    /// How many segments it has.
    #[must_use]
    pub fn count(&self) -> usize {
        (self.frame.len() - self.layout.payload).div_ceil(self.mss)
    }

    /// Length of a segment as a frame, without check sequence.
    #[must_use]
    pub fn len_of(&self, index: usize) -> usize {
        self.layout.payload + self.body(index).len()
    }

    fn body(&self, index: usize) -> Range<usize> {
        let from = self.layout.payload + index * self.mss;
        from.min(self.frame.len())..(from + self.mss).min(self.frame.len())
    }

    /// Where the checksum of every segment is still to be made.
    #[must_use]
    pub fn partial(&self) -> Partial {
        Partial {
            start: u16::try_from(self.layout.tcp).unwrap_or(u16::MAX),
            offset: 16,
        }
    }

    /// Writes a segment as a frame to the front of `room` and returns its length; 0, and nothing written, when there
    /// is no such segment or no room for it.
    pub fn write(&self, index: usize, room: &mut [u8]) -> usize {
        let body = self.body(index);
        let Layout { ip, tcp, payload, v6 } = self.layout;
        let len = payload + body.len();
        if body.is_empty() || room.len() < len {
            return 0;
        }
        let last = body.end == self.frame.len();
        let (header, rest) = room.split_at_mut(payload);
        header.copy_from_slice(&self.frame[..payload]);
        rest[..body.len()].copy_from_slice(&self.frame[body]);
        if !v6 {
            let id = word(header, ip + 4).unwrap_or(0);
            put(header, ip + 4, id.wrapping_add(index as u16));
        }
        let sequence = double(header, tcp + 4).unwrap_or(0);
        let sequence = sequence.wrapping_add((index * self.mss) as u32);
        header[tcp + 4..tcp + 8].copy_from_slice(&sequence.to_be_bytes());
        if !last {
            header[tcp + 13] &= !(PSH | FIN);
        }
        if index > 0 {
            header[tcp + 13] &= !CWR;
        }
        self.layout.lengths(header, len);
        len
    }
}

/// The headers of a segment that may be joined with its neighbours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    layout: Layout,
    mss: usize,
    /// IP bytes so far.
    bytes: usize,
    count: usize,
    next_sequence: u32,
    next_id: u16,
    ended: bool,
}

/// Which flow a segment is of: addresses and ports as they stand in the frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowBytes([u8; 36]);

impl FlowBytes {
    /// Of a TCP segment whose checksum is partial.
    #[must_use]
    pub fn of(frame: &[u8], partial: Partial) -> Option<Self> {
        let layout = Layout::of(frame, usize::from(partial.start))?;
        let addresses = if layout.v6 {
            layout.ip + 8..layout.ip + 40
        } else {
            layout.ip + 12..layout.ip + 20
        };
        let mut key = [0; 36];
        let from = frame.get(addresses)?;
        key[..from.len()].copy_from_slice(from);
        key[32..].copy_from_slice(frame.get(layout.tcp..layout.tcp + 4)?);
        Some(Self(key))
    }

    /// Of any frame whose checksum is whole: `Ok(None)` for what is not TCP.
    ///
    /// # Errors
    /// When that cannot be told, for extension headers or fragments.
    pub fn find(frame: &[u8]) -> Result<Option<Self>, Unknown> {
        let Some(packet) = kuroshio_core::wire::packet_of(frame) else {
            return Ok(None);
        };
        if packet.flow.protocol != kuroshio_core::wire::PROTOCOL_TCP {
            return Ok(None);
        }
        // The shortest headers that can be, and the IPv4 options that there may be.
        let start = (34..=102).step_by(4).find(|at| Layout::of(frame, *at).is_some());
        let partial = Partial {
            start: start.ok_or(Unknown)? as u16,
            offset: 16,
        };
        Self::of(frame, partial).map(Some).ok_or(Unknown)
    }
}

/// A TCP frame whose flow cannot be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unknown;

impl Run {
    /// Starts with a segment. `None` when it is none that others may follow: without payload, or with a flag that
    /// belongs to it alone.
    #[must_use]
    pub fn start(frame: &[u8], partial: Partial) -> Option<Self> {
        Self::start_of(frame, frame.len(), partial)
    }

    /// As [`Run::start`] with the first bytes of a frame of `len` bytes, all headers among them.
    #[must_use]
    pub fn start_of(frame: &[u8], len: usize, partial: Partial) -> Option<Self> {
        let layout = Layout::of(frame, usize::from(partial.start))?;
        let payload = len.checked_sub(layout.payload)?;
        let flags = *frame.get(layout.tcp + 13)?;
        let alone = flags & (SYN | RST | URG | CWR) != 0;
        if payload == 0 || alone || partial.offset != 16 {
            return None;
        }
        Some(Self {
            layout,
            mss: payload,
            bytes: len - layout.ip,
            count: 1,
            next_sequence: double(frame, layout.tcp + 4)?.wrapping_add(payload as u32),
            next_id: word(frame, layout.ip + 4)?.wrapping_add(1),
            ended: flags & (PSH | FIN) != 0,
        })
    }

    /// Whether nothing can follow.
    #[must_use]
    pub fn ended(&self) -> bool {
        self.ended
    }

    /// Segments so far.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Joins a segment that follows the ones so far in everything, `first` being the first of them. `false`, and
    /// nothing changed, when it does not.
    pub fn join(&mut self, first: &[u8], next: &[u8], partial: Partial) -> bool {
        self.join_of(first, next, next.len(), partial)
    }

    /// As [`Run::join`] with the first bytes of both, the next one being a frame of `len` bytes.
    pub fn join_of(&mut self, first: &[u8], next: &[u8], len: usize, partial: Partial) -> bool {
        let Layout { ip, tcp, payload, v6 } = self.layout;
        let fits = !self.ended && usize::from(partial.start) == tcp && partial.offset == 16;
        if !fits || Layout::of(next, tcp) != Some(self.layout) {
            return false;
        }
        let Some(len) = len.checked_sub(payload) else {
            return false;
        };
        let flags = next[tcp + 13];
        let same = |range: Range<usize>| first.get(range.clone()) == next.get(range);
        let ids = v6 || word(next, ip + 4) == Some(self.next_id);
        // Everything of the network header but lengths, identification and checksum.
        let network = if v6 {
            same(0..ip + 4) && same(ip + 6..tcp)
        } else {
            same(0..ip + 2) && same(ip + 6..ip + 10) && same(ip + 12..tcp)
        };
        let transport = same(tcp..tcp + 4)
            && same(tcp + 8..tcp + 13)
            && first[tcp + 13] == flags & !(PSH | FIN)
            && same(tcp + 14..tcp + 16)
            && same(tcp + 18..payload);
        let follows = double(next, tcp + 4) == Some(self.next_sequence);
        let room = self.bytes + len <= 65_535;
        if len == 0 || len > self.mss || !(ids && network && transport && follows && room) {
            return false;
        }
        self.bytes += len;
        self.count += 1;
        self.next_sequence = self.next_sequence.wrapping_add(len as u32);
        self.next_id = self.next_id.wrapping_add(1);
        self.ended = len < self.mss || flags & (PSH | FIN) != 0;
        true
    }

    /// Bytes in front of the payload of every one of the segments.
    #[must_use]
    pub fn header_len(&self) -> usize {
        self.layout.payload
    }

    /// Makes the header of the first the header of all, with the flags of the last, and returns the virtio-net
    /// header that goes before it.
    pub fn finish(&self, header: &mut [u8], last: &[u8]) -> Vnet {
        let Layout { ip, tcp, payload, v6 } = self.layout;
        if let (Some(flags), Some(other)) = (header.get_mut(tcp + 13), last.get(tcp + 13)) {
            *flags |= other & (PSH | FIN);
        }
        if let Some(header) = header.get_mut(..payload) {
            self.layout.lengths(header, ip + self.bytes);
        }
        Vnet {
            partial: Some(Partial {
                start: u16::try_from(tcp).unwrap_or(u16::MAX),
                offset: 16,
            }),
            gso: match (self.count, v6) {
                (..=1, _) => GSO_NONE,
                (_, true) => GSO_TCP6,
                (_, false) => GSO_TCP4,
            },
            mss: if self.count > 1 {
                u16::try_from(self.mss).unwrap_or(u16::MAX)
            } else {
                0
            },
            header_len: u16::try_from(payload).unwrap_or(u16::MAX),
        }
    }
}

/// Makes a checksum that is partial whole. A place beyond the frame changes nothing.
pub fn complete(frame: &mut [u8], partial: Partial) {
    let (start, offset) = (usize::from(partial.start), usize::from(partial.offset));
    let Some(covered) = frame.get(start..) else { return };
    let check = !fold(sum(covered));
    // UDP: 0 would mean that there is no checksum.
    let check = if check == 0 && offset == 6 { 0xffff } else { check };
    put(frame, start + offset, check);
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn double(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn put(bytes: &mut [u8], at: usize, value: u16) {
    if let Some(place) = bytes.get_mut(at..at + 2) {
        place.copy_from_slice(&value.to_be_bytes());
    }
}

/// The sum of 16-bit words, an odd byte at the end padded with zero (RFC 1071).
fn sum(bytes: &[u8]) -> u64 {
    let mut words = bytes.chunks_exact(4);
    let mut sum: u64 = words
        .by_ref()
        .map(|w| u64::from(u32::from_be_bytes([w[0], w[1], w[2], w[3]])))
        .sum();
    let mut rest = [0; 4];
    for (slot, byte) in rest.iter_mut().zip(words.remainder()) {
        *slot = *byte;
    }
    sum += u64::from(u32::from_be_bytes(rest));
    // In ones' complement, two words at once are as good as one after the other.
    (sum >> 32) + (sum & 0xffff_ffff)
}

fn fold(sum: u64) -> u16 {
    let mut sum = sum;
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

#[cfg(test)]
#[path = "segment_tests.rs"]
mod tests;
