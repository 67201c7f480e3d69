//! Pacing by gap frames: PAUSE frames of time 0 that keep the wire busy where a stream should be silent.
//!
//! ```text
//!     gap = (max_rate / target_rate - 1) * packet_size
//! ```
//!
//! rounded up to a whole byte, 64 at least; a gap above the MTU becomes several frames of nearly equal
//! size. A target of the maximum or more needs none.
//!
//! [`gap_packets`] is that formula: size and gap are counted at one level, that of `max_rate`.
//! [`gap_packets_on_wire`] holds a *frame-level* target on a wire, where both the packet and every gap
//! frame also take preamble and gap, 20 bytes. The smallest gap frame bounds the rate from above: a frame
//! of 1518 then owns 1518 + 20 + 64 + 20 = 1622 bytes of the wire, see [`gap_rate_max`].
//!
//! Source: PSPacer (paper 001), `gap-packet` in the project's figures.

use super::PaceError;
use crate::{
    units::{BitRate, FrameBytes, PicoTime, Ratio, WireBytes},
    wire::{FRAME_MIN, IFG_MIN, L1_OVERHEAD, LineRate, pad},
};

/// Smallest limit on the size of a gap frame: two frames that share a gap are then at least 64 each.
pub const GAP_FRAME_LIMIT_MIN: FrameBytes = FrameBytes::new(2 * (FRAME_MIN + L1_OVERHEAD));

/// The gap frames after one packet, as an iterator over their sizes (MAC header to FCS).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GapPackets {
    /// Frames still to come.
    frames: u64,
    /// Size of the smaller ones.
    size: u64,
    /// How many of them are one byte larger, first.
    larger: u64,
}

impl GapPackets {
    const NONE: GapPackets = GapPackets {
        frames: 0,
        size: 0,
        larger: 0,
    };

    /// `bytes` in as few frames as possible, each taking `overhead` of them and at most `limit` of its own.
    fn split(bytes: u64, overhead: u64, limit: FrameBytes) -> Result<Self, PaceError> {
        if limit < GAP_FRAME_LIMIT_MIN {
            return Err(PaceError::GapFrameLimit(limit));
        }
        if bytes == 0 {
            return Ok(Self::NONE);
        }
        let bytes = bytes.max(FRAME_MIN + overhead);
        let frames = bytes.div_ceil(limit.get().saturating_add(overhead));
        // Two frames or more have more than half of limit + overhead each, so at least 64 of their own.
        Ok(GapPackets {
            frames,
            size: bytes / frames - overhead,
            larger: bytes % frames,
        })
    }

    /// Number of frames still to come.
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// Bytes of the frames still to come.
    pub fn bytes(&self) -> FrameBytes {
        FrameBytes::new(self.frames.saturating_mul(self.size).saturating_add(self.larger))
    }
}

impl Iterator for GapPackets {
    type Item = FrameBytes;

    fn next(&mut self) -> Option<FrameBytes> {
        self.frames = self.frames.checked_sub(1)?;
        let extra = u64::from(self.larger > 0);
        self.larger -= extra;
        Some(FrameBytes::new(self.size + extra))
    }
}

/// The gap after a packet of `size` bytes by the paper's formula, in frames of at most `limit` bytes.
pub fn gap_packets(
    size: FrameBytes,
    target: BitRate,
    max: BitRate,
    limit: FrameBytes,
) -> Result<GapPackets, PaceError> {
    let over = u128::from(max.bps().saturating_sub(target.bps()));
    let gap = (u128::from(size.get()) * over).div_ceil(u128::from(target.bps()));
    GapPackets::split(u64::try_from(gap).map_err(|_| PaceError::GapTooLarge)?, 0, limit)
}

/// The gap frames that hold a stream of frames of `len` bytes to the frame-level rate `target` on a wire:
/// packet, gap frames and their preambles and smallest gaps take `len * line / target` bytes of it,
/// rounded up.
pub fn gap_packets_on_wire(
    len: FrameBytes,
    target: BitRate,
    line: LineRate,
    limit: FrameBytes,
) -> Result<GapPackets, PaceError> {
    let len = pad(len).get();
    let line = u128::from(line.bit_rate().bps());
    let share = (u128::from(len) * line).div_ceil(u128::from(target.bps()));
    let share = u64::try_from(share).map_err(|_| PaceError::GapTooLarge)?;
    GapPackets::split(
        share.saturating_sub(len.saturating_add(L1_OVERHEAD)),
        L1_OVERHEAD,
        limit,
    )
}

/// Gap frames in a gap of the wire between two frames, which has the smallest gap of 12 after the first one itself: they
/// and theirs fill it to the byte. Where less than 84 bytes are left it stays idle.
pub fn gap_packets_in(gap: WireBytes, limit: FrameBytes) -> Result<GapPackets, PaceError> {
    let free = gap.get().saturating_sub(IFG_MIN);
    let free = if free < FRAME_MIN + L1_OVERHEAD { 0 } else { free };
    GapPackets::split(free, L1_OVERHEAD, limit)
}

/// The highest frame-level rate of frames of `len` bytes with a gap frame, of 64 bytes, after each:
/// `line * len / (len + 104)`, rounded down. `None` when that is below 1 bit/s.
pub fn gap_rate_max(len: FrameBytes, line: LineRate) -> Option<BitRate> {
    let len = pad(len).get();
    let owned = len.checked_add(L1_OVERHEAD + FRAME_MIN + L1_OVERHEAD)?;
    line.bit_rate().checked_mul_ratio(Ratio::new(len, owned).ok()?)
}

/// Keeps a wire full: the gap frames before each frame of a schedule, by positions on the wire in bytes, so that no
/// rounding adds up.
///
/// ```text
/// position of a frame = floor(due / time of a byte)        a gap too short for a gap frame is left out: that frame is
/// cursor = its position + frame + 20                       up to 83 bytes early, and the next one is not
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GapFiller {
    ps_per_byte: u64,
    limit: FrameBytes,
    cursor: u64,
}

impl GapFiller {
    /// A wire of a whole number of ps per byte, with gap frames of at most `limit` bytes; empty from time 0 on.
    pub fn new(line: LineRate, limit: FrameBytes) -> Result<Self, PaceError> {
        if limit < GAP_FRAME_LIMIT_MIN {
            return Err(PaceError::GapFrameLimit(limit));
        }
        Ok(Self {
            ps_per_byte: line
                .ps_per_byte()
                .ok_or(PaceError::NoWholePicoseconds(line.bit_rate()))?,
            limit,
            cursor: 0,
        })
    }

    /// The gap frames before a frame of `len` bytes that is due at `due`; the frame's place is taken.
    pub fn before(&mut self, due: PicoTime, len: FrameBytes) -> Result<GapPackets, PaceError> {
        let target = due.as_ps() / self.ps_per_byte;
        let gap = target.saturating_sub(self.cursor);
        let gap = if gap < FRAME_MIN + L1_OVERHEAD { 0 } else { gap };
        let packets = GapPackets::split(gap, L1_OVERHEAD, self.limit)?;
        let frame = pad(len).get().saturating_add(L1_OVERHEAD);
        self.cursor = self.cursor.saturating_add(gap).saturating_add(frame);
        Ok(packets)
    }

    /// When the wire reaches a position that is `back` bytes before the end of what was placed.
    pub fn time_before_end(&self, back: u64) -> PicoTime {
        PicoTime::from_ps(self.cursor.saturating_sub(back).saturating_mul(self.ps_per_byte))
    }
}
