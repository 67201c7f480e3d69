//! What travels between the ends, and how large a frame it is.

use crate::{
    units::{FrameBytes, PicoTime},
    wire::{ETHERNET_HEADER, FCS},
};

/// Most SACK blocks beside time stamps in TCP's 40 bytes of options (RFC 2018, section 3).
pub const SACK_BLOCKS_MAX: usize = 3;
/// Bytes of TCP's header with time stamps, padded (RFC 7323).
const TCP_HEADER: u64 = 20 + 12;
/// Bytes of the SACK option before its blocks, padded to four, and of each block (RFC 2018).
const SACK_HEADER: u64 = 4;
const SACK_BLOCK: u64 = 8;

/// Which Internet protocol carries a connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum IpVersion {
    /// 20 bytes of header.
    #[default]
    V4,
    /// 40 bytes of header.
    V6,
}

/// How large a connection's segments and frames are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Payload of a full segment, bytes.
    pub mss: u32,
    /// Frame bytes around the payload: Ethernet header and FCS, IP, TCP with time stamps.
    pub overhead: u32,
}

impl Sizes {
    /// Of a path with this MTU; `None` when no payload fits.
    pub fn of_mtu(mtu_bytes: u32, ip: IpVersion) -> Option<Self> {
        let ip = match ip {
            IpVersion::V4 => 20,
            IpVersion::V6 => 40,
        };
        let headers = ip + TCP_HEADER as u32;
        let mss = mtu_bytes.checked_sub(headers).filter(|mss| *mss > 0)?;
        let overhead = headers + (ETHERNET_HEADER + FCS) as u32;
        Some(Sizes { mss, overhead })
    }

    /// The frame that a segment stands for, MAC header to FCS.
    #[inline]
    pub fn frame(self, segment: &Segment) -> FrameBytes {
        let sack = match segment.sack.len() {
            0 => 0,
            blocks => SACK_HEADER + SACK_BLOCK * blocks as u64,
        };
        FrameBytes::new(u64::from(segment.len) + u64::from(self.overhead) + sack)
    }

    /// The frame of a full segment.
    pub fn full_frame(self) -> FrameBytes {
        FrameBytes::new(u64::from(self.mss) + u64::from(self.overhead))
    }
}

/// What a segment is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Opens the connection.
    Syn,
    /// Answers it.
    SynAck,
    /// Carries payload from the sender.
    Data,
    /// Carries the receiver's answer.
    Ack,
}

/// A run of bytes `start <= seq < end`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Block {
    /// First byte.
    pub start: u64,
    /// The byte after the last.
    pub end: u64,
}

/// Up to [`SACK_BLOCKS_MAX`] blocks above an ACK, kept as offsets from it: blocks more than 4 GiB above
/// the ACK are left out, which no window reaches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SackBlocks {
    offsets: [(u32, u32); SACK_BLOCKS_MAX],
    count: u8,
}

impl SackBlocks {
    /// No blocks.
    pub const NONE: SackBlocks = SackBlocks {
        offsets: [(0, 0); SACK_BLOCKS_MAX],
        count: 0,
    };

    /// Adds a block of bytes above `ack`; says whether there was room and it fits.
    pub fn push(&mut self, ack: u64, block: Block) -> bool {
        let offset = |at: u64| at.checked_sub(ack).and_then(|o| u32::try_from(o).ok());
        let (Some(start), Some(end)) = (offset(block.start), offset(block.end)) else {
            return false;
        };
        match self.offsets.get_mut(usize::from(self.count)) {
            Some(place) => {
                *place = (start, end);
                self.count += 1;
                true
            }
            None => false,
        }
    }

    /// Number of blocks.
    #[inline]
    pub fn len(&self) -> usize {
        usize::from(self.count)
    }

    /// Whether there is none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The blocks above `ack`, the most recent first.
    #[inline]
    pub fn above(&self, ack: u64) -> impl Iterator<Item = Block> + use<> {
        self.offsets
            .into_iter()
            .take(usize::from(self.count))
            .map(move |(start, end)| Block {
                start: ack + u64::from(start),
                end: ack + u64::from(end),
            })
    }
}

/// One segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// What it is for.
    pub kind: Kind,
    /// First byte of its payload.
    pub seq: u64,
    /// Bytes of its payload.
    pub len: u32,
    /// Bytes up to which everything has arrived.
    pub ack: u64,
    /// Bytes above `ack` that the receiver has room for.
    pub window: u32,
    /// When it was sent, by the sender's clock (RFC 7323, TSval).
    pub stamp: PicoTime,
    /// The stamp that it answers (RFC 7323, TSecr).
    pub echo: PicoTime,
    /// What has arrived above `ack`.
    pub sack: SackBlocks,
}

impl Segment {
    /// A segment without payload, window and blocks.
    pub fn bare(kind: Kind, stamp: PicoTime) -> Self {
        Segment {
            kind,
            seq: 0,
            len: 0,
            ack: 0,
            window: 0,
            stamp,
            echo: PicoTime::ZERO,
            sack: SackBlocks::NONE,
        }
    }

    /// The byte after its payload.
    #[inline]
    pub fn end(&self) -> u64 {
        self.seq + u64::from(self.len)
    }
}
