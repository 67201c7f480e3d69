//! The exact time of bytes on a serial medium.

use super::{BitRate, PS_BITS_PER_BYTE, PicoDuration, PicoTime};

/// Adds up `bytes * 8 * 10^12 / rate` picoseconds without ever losing a fraction.
///
/// The clock stands at the exact moment `at + remainder / rate_bps` ps, with `remainder < rate_bps`:
///
/// ```text
///     remainder' + rate * (at' - at) = remainder + bytes * 8 * 10^12
/// ```
///
/// so after any number of steps at one rate `at` is the exact sum rounded down once. Moments that leave
/// the clock are `at`; two of them differ by less than 1 ps from the exact difference, and the bytes
/// between two of them, in a window of a whole number of ps, never exceed the rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TxClock {
    rate: BitRate,
    at: PicoTime,
    remainder: u64,
}

impl TxClock {
    /// A clock at the start of the run.
    pub const fn new(rate: BitRate) -> Self {
        TxClock {
            rate,
            at: PicoTime::ZERO,
            remainder: 0,
        }
    }

    /// Its rate.
    pub const fn rate(&self) -> BitRate {
        self.rate
    }

    /// Where it stands, rounded down to a whole ps.
    pub const fn at(&self) -> PicoTime {
        self.at
    }

    /// The part of a picosecond beyond [`at`](Self::at), in units of 1 / rate.
    pub const fn remainder(&self) -> u64 {
        self.remainder
    }

    /// Moves on to `now` when it stands before it: the medium was idle, and idle time earns no credit.
    #[inline]
    pub fn catch_up(&mut self, now: PicoTime) {
        if now > self.at {
            self.at = now;
            self.remainder = 0;
        }
    }

    /// Moves on by the time of `bytes` and returns the whole ps moved. Saturates at 213 days.
    #[inline]
    pub fn advance(&mut self, bytes: u64) -> PicoDuration {
        let rate = self.rate.bps();
        let narrow = bytes
            .checked_mul(PS_BITS_PER_BYTE)
            .and_then(|n| n.checked_add(self.remainder));
        let ps = match narrow {
            // Up to 2 MB: one 64-bit division, several times faster than the general case.
            Some(total) => {
                self.remainder = total % rate;
                total / rate
            }
            None => {
                let total = u128::from(bytes) * u128::from(PS_BITS_PER_BYTE) + u128::from(self.remainder);
                // The remainder is below the rate, which is a u64.
                self.remainder = (total % u128::from(rate)) as u64;
                u64::try_from(total / u128::from(rate)).unwrap_or(u64::MAX)
            }
        };
        let ps = PicoDuration::from_ps(ps);
        self.at += ps;
        ps
    }

    /// Moves on by a whole time, keeping the fraction.
    #[inline]
    pub fn wait(&mut self, time: PicoDuration) {
        self.at += time;
    }

    /// Changes the rate from here on. A fraction of a ps is rounded up, so that the change never makes
    /// anything earlier.
    pub fn set_rate(&mut self, rate: BitRate) {
        if rate != self.rate {
            if self.remainder != 0 {
                self.at += PicoDuration::from_ps(1);
            }
            self.rate = rate;
            self.remainder = 0;
        }
    }
}
