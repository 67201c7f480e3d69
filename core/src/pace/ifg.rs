//! Pacing by the gap between frames, as GNET-1 does it in hardware.
//!
//! A frame of `len` bytes on a wire of L1 rate `line` held to a frame-level rate m owns
//! `len * line / m` bytes of the wire: its preamble of 8, itself, and a gap that fills the rest,
//!
//! ```text
//!     gap = len * (line / m - 1) - 8
//! ```
//!
//! rounded up to whole bytes, so that no window is ever above m, and never below the wire's 12. Where the
//! 12 bind, the frame takes longer than its share; that is not made up for later.
//!
//! Source: GNET-1 (paper 000, section on traffic shaping), `ifg` in the project's figures.

use super::Slot;
use crate::{
    units::{BitRate, FrameBytes, PicoDuration, PicoTime, TxClock, WireBytes},
    wire::{IFG_MIN, LineRate, PREAMBLE, pad},
};

/// Gap in bytes after a frame of `len` bytes (at least 64) on a wire of L1 rate `line`, held to `rate` at
/// frame level. Saturates at u64 for gaps that no wire has.
#[inline]
pub fn ifg_bytes(len: FrameBytes, rate: BitRate, line: LineRate) -> WireBytes {
    let len = pad(len).get();
    let (line, rate) = (line.bit_rate().bps(), rate.bps());
    let share = match len.checked_mul(line) {
        Some(bits) => bits.div_ceil(rate),
        None => {
            u64::try_from((u128::from(len) * u128::from(line)).div_ceil(u128::from(rate))).unwrap_or(u64::MAX)
        }
    };
    WireBytes::new(share.saturating_sub(len.saturating_add(PREAMBLE)).max(IFG_MIN))
}

/// How the gap after a frame is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spacing {
    /// By [`ifg_bytes`], to hold this frame-level rate.
    Rate(BitRate),
    /// The same number of bytes after every frame, 12 at least.
    Gap(WireBytes),
}

impl Spacing {
    /// The gap in bytes after a frame of `len` bytes.
    #[inline]
    pub fn gap(self, len: FrameBytes, line: LineRate) -> WireBytes {
        match self {
            Spacing::Rate(rate) => ifg_bytes(len, rate, line),
            Spacing::Gap(gap) => gap.max(WireBytes::new(IFG_MIN)),
        }
    }
}

/// Places frames on a wire with a gap after each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IfgShaper {
    clock: TxClock,
    spacing: Spacing,
}

impl IfgShaper {
    /// A shaper on a wire of L1 rate `line`.
    pub fn new(line: LineRate, spacing: Spacing) -> Self {
        IfgShaper {
            clock: TxClock::new(line.bit_rate()),
            spacing,
        }
    }

    /// The wire's rate.
    pub fn line(&self) -> LineRate {
        LineRate::new(self.clock.rate())
    }

    /// How gaps are chosen.
    pub fn spacing(&self) -> Spacing {
        self.spacing
    }

    /// Changes how gaps are chosen, from the next frame on.
    pub fn set_spacing(&mut self, spacing: Spacing) {
        self.spacing = spacing;
    }

    /// When the gap after the last frame ends, rounded down to a whole ps.
    #[inline]
    pub fn free_at(&self) -> PicoTime {
        self.clock.at()
    }

    /// Places a frame that is ready at `now`: at once, or after the gap of the last one.
    #[inline]
    pub fn depart(&mut self, now: PicoTime, len: FrameBytes) -> Slot {
        self.clock.catch_up(now);
        let start = self.clock.at();
        self.clock.advance(pad(len).get().saturating_add(PREAMBLE));
        let end = self.clock.at();
        self.clock.advance(self.spacing.gap(len, self.line()).get());
        Slot { start, end }
    }

    /// Keeps the wire idle for at least `time` from `now` (a PAUSE frame that was received).
    pub fn hold(&mut self, now: PicoTime, time: PicoDuration) {
        self.clock.catch_up(now + time);
    }
}
