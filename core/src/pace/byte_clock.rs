//! Pacing by a clock that counts bytes.
//!
//! Each frame owns `len * 8 / rate` of time from its start; the next one starts when that is over. The
//! part of a picosecond that is left is carried ([`TxClock`]), so that the n-th start of a busy stream is
//!
//! ```text
//!     floor(first + (len_1 + ... + len_(n-1)) * 8 * 10^12 / rate)    ps
//! ```
//!
//! after any number of frames.

use super::{PaceError, Slot};
use crate::units::{BitRate, FrameBytes, PicoTime, TxClock};

/// Slowest rate: 8 kbps, one byte per millisecond, as PSPacer.
pub const PACER_RATE_MIN: BitRate = rate_of(8_000);
/// Fastest rate: 800 Gbps, 10 ps per byte.
pub const PACER_RATE_MAX: BitRate = rate_of(800_000_000_000);

const fn rate_of(rate_bps: u64) -> BitRate {
    match BitRate::new(rate_bps) {
        Some(rate) => rate,
        None => BitRate::MIN,
    }
}

/// Spaces frames at a rate of the frame level (or whichever level the bytes it is given are counted at).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByteClockPacer {
    clock: TxClock,
}

impl ByteClockPacer {
    /// A pacer of `rate`, from [`PACER_RATE_MIN`] to [`PACER_RATE_MAX`].
    pub fn new(rate: BitRate) -> Result<Self, PaceError> {
        Ok(ByteClockPacer {
            clock: TxClock::new(checked(rate)?),
        })
    }

    /// Its rate.
    pub fn rate(&self) -> BitRate {
        self.clock.rate()
    }

    /// Changes the rate from the next frame's end on: frames placed so far keep their time.
    pub fn set_rate(&mut self, rate: BitRate) -> Result<(), PaceError> {
        self.clock.set_rate(checked(rate)?);
        Ok(())
    }

    /// When the next frame may start, rounded down to a whole ps.
    #[inline]
    pub fn free_at(&self) -> PicoTime {
        self.clock.at()
    }

    /// Places a frame that is ready at `now`: at once, or when the last one's time is over. `end` is when
    /// its own time is over.
    #[inline]
    pub fn depart(&mut self, now: PicoTime, len: FrameBytes) -> Slot {
        self.clock.catch_up(now);
        let start = self.clock.at();
        self.clock.advance(len.get());
        Slot {
            start,
            end: self.clock.at(),
        }
    }
}

fn checked(rate: BitRate) -> Result<BitRate, PaceError> {
    if (PACER_RATE_MIN..=PACER_RATE_MAX).contains(&rate) {
        Ok(rate)
    } else {
        Err(PaceError::RateOutOfRange(rate))
    }
}
