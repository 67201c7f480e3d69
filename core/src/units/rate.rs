//! Data rates.

use super::{PS_BITS_PER_BYTE, PicoDuration, Problem, Quantity, Ratio, UnitError, parse};
use alloc::string::ToString;
use core::{fmt, num::NonZeroU64, str::FromStr};

/// A data rate in bits per second, never zero. The level (frame, L1, goodput) is told by the name of
/// whatever holds it; without one it is the frame level.
///
/// Text: SI prefixes k (or K), M, G, T, then `bps`, `bit/s`, `bit` or nothing, or `B/s` for bytes
/// (eight bits): `800M`, `800Mbps`, `2.34Gbit/s`, `50MB/s`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BitRate(NonZeroU64);

impl BitRate {
    /// The smallest rate, 1 bit/s.
    pub const MIN: BitRate = BitRate(NonZeroU64::MIN);

    /// The largest rate, 2^64 - 1 bit/s.
    pub const MAX: BitRate = BitRate(NonZeroU64::MAX);

    /// A rate in bit/s. Zero is refused.
    pub fn from_bps(rate_bps: u64) -> Result<Self, UnitError> {
        match NonZeroU64::new(rate_bps) {
            Some(rate) => Ok(BitRate(rate)),
            None => Err(UnitError::new(
                Quantity::Rate,
                Problem::Zero,
                &rate_bps.to_string(),
            )),
        }
    }

    /// A rate in bit/s where zero is not a mistake but an answer.
    pub const fn new(rate_bps: u64) -> Option<Self> {
        match NonZeroU64::new(rate_bps) {
            Some(rate) => Some(BitRate(rate)),
            None => None,
        }
    }

    /// Whole megabits per second, for constants; 0 gives [`BitRate::MIN`], overflow [`BitRate::MAX`].
    pub const fn from_mbps(rate_mbps: u32) -> Self {
        match NonZeroU64::new(rate_mbps as u64 * 1_000_000) {
            Some(rate) => BitRate(rate),
            None => Self::MIN,
        }
    }

    /// Bits per second.
    pub const fn bps(self) -> u64 {
        self.0.get()
    }

    /// Sum of two rates, if it fits.
    pub fn checked_add(self, other: BitRate) -> Option<Self> {
        self.0.checked_add(other.bps()).map(BitRate)
    }

    /// Difference of two rates, if it is above zero.
    pub fn checked_sub(self, other: BitRate) -> Option<Self> {
        self.bps().checked_sub(other.bps()).and_then(Self::new)
    }

    /// `self * ratio`, rounded down to a whole bit/s; `None` when that is zero or too large.
    pub fn checked_mul_ratio(self, ratio: Ratio) -> Option<Self> {
        let product = u128::from(self.bps()) * u128::from(ratio.num()) / u128::from(ratio.den());
        u64::try_from(product).ok().and_then(Self::new)
    }

    /// `self / parts`, rounded down; `None` when that is zero or `parts` is.
    pub fn checked_div(self, parts: u64) -> Option<Self> {
        self.bps().checked_div(parts).and_then(Self::new)
    }

    /// Whole bytes that this rate moves in `time`, rounded down.
    pub fn bytes_in(self, time: PicoDuration) -> u64 {
        let bytes = u128::from(self.bps()) * u128::from(time.as_ps()) / u128::from(PS_BITS_PER_BYTE);
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// The time of `bytes` at this rate, rounded up to a whole ps; saturates at 213 days.
    ///
    /// Where many are added up use [`TxClock`](super::TxClock), which does not round.
    pub fn time_for(self, bytes: u64) -> PicoDuration {
        let ps = (u128::from(bytes) * u128::from(PS_BITS_PER_BYTE)).div_ceil(u128::from(self.bps()));
        PicoDuration::from_ps(u64::try_from(ps).unwrap_or(u64::MAX))
    }

    /// The rate of `bytes` in `time`, rounded down; `None` for zero bytes per second or no time.
    pub fn of(bytes: u64, time: PicoDuration) -> Option<Self> {
        let rate =
            (u128::from(bytes) * u128::from(PS_BITS_PER_BYTE)).checked_div(u128::from(time.as_ps()))?;
        u64::try_from(rate).ok().and_then(Self::new)
    }
}

impl FromStr for BitRate {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let rate_bps = parse::quantity(text, Quantity::Rate, multiplier)?;
        Self::new(rate_bps).ok_or_else(|| UnitError::new(Quantity::Rate, Problem::Zero, text))
    }
}

/// Bit/s in a unit of rate.
fn multiplier(unit: &str) -> Option<u64> {
    let (prefix, rest) = match unit.chars().next()? {
        'k' | 'K' => (1_000, &unit[1..]),
        'M' => (1_000_000, &unit[1..]),
        'G' => (1_000_000_000, &unit[1..]),
        'T' => (1_000_000_000_000, &unit[1..]),
        _ => (1, unit),
    };
    match rest {
        "" | "bps" | "bit/s" | "bit" => Some(prefix),
        "B/s" => Some(prefix * 8),
        _ => None,
    }
}

impl fmt::Display for BitRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, name) = match self.bps() {
            1_000_000_000_000.. => (1_000_000_000_000, "Tbps"),
            1_000_000_000.. => (1_000_000_000, "Gbps"),
            1_000_000.. => (1_000_000, "Mbps"),
            1_000.. => (1_000, "kbps"),
            _ => (1, "bps"),
        };
        parse::write_decimal(f, self.bps(), unit)?;
        f.write_str(name)
    }
}
