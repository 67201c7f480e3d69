//! Time in picoseconds: one byte at 800 Gbps is 10 ps, and 2^64 ps are 213 days.

use super::{PS_PER_SEC, Quantity, UnitError, parse};
use core::{fmt, ops, str::FromStr, time::Duration};

const UNITS: [(&str, u64); 8] = [
    ("ps", 1),
    ("ns", 1_000),
    ("us", 1_000_000),
    ("µs", 1_000_000),
    ("ms", 1_000_000_000),
    ("s", PS_PER_SEC),
    ("min", 60 * PS_PER_SEC),
    ("h", 3_600 * PS_PER_SEC),
];

/// A length of time in picoseconds. Operators and `from_` constructors saturate at 0 and 213 days.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PicoDuration(u64);

/// A moment: picoseconds since the start of the run. Operators saturate at 0 and 213 days.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PicoTime(u64);

macro_rules! picoseconds {
    ($name:ident) => {
        impl $name {
            /// Zero: no time, or the start of the run.
            pub const ZERO: $name = $name(0);
            /// The largest value, 213 days.
            pub const MAX: $name = $name(u64::MAX);

            /// From picoseconds.
            pub const fn from_ps(ps: u64) -> Self {
                $name(ps)
            }

            /// From nanoseconds.
            pub const fn from_ns(ns: u64) -> Self {
                $name(ns.saturating_mul(1_000))
            }

            /// From microseconds.
            pub const fn from_us(us: u64) -> Self {
                $name(us.saturating_mul(1_000_000))
            }

            /// From milliseconds.
            pub const fn from_ms(ms: u64) -> Self {
                $name(ms.saturating_mul(1_000_000_000))
            }

            /// From seconds.
            pub const fn from_secs(secs: u64) -> Self {
                $name(secs.saturating_mul(PS_PER_SEC))
            }

            /// In picoseconds.
            pub const fn as_ps(self) -> u64 {
                self.0
            }

            /// In nanoseconds, rounded down.
            pub const fn as_ns(self) -> u64 {
                self.0 / 1_000
            }

            /// In nanoseconds, rounded up: a timer set for it is never early.
            pub const fn as_ns_ceil(self) -> u64 {
                self.0.div_ceil(1_000)
            }

            /// In microseconds, rounded down.
            pub const fn as_us(self) -> u64 {
                self.0 / 1_000_000
            }

            /// In milliseconds, rounded down.
            pub const fn as_ms(self) -> u64 {
                self.0 / 1_000_000_000
            }

            /// `self + duration`, if it fits.
            pub fn checked_add(self, duration: PicoDuration) -> Option<Self> {
                self.0.checked_add(duration.0).map($name)
            }

            /// `self - duration`, if it is not below zero.
            pub fn checked_sub(self, duration: PicoDuration) -> Option<Self> {
                self.0.checked_sub(duration.0).map($name)
            }
        }

        impl ops::Add<PicoDuration> for $name {
            type Output = $name;
            fn add(self, duration: PicoDuration) -> $name {
                $name(self.0.saturating_add(duration.0))
            }
        }

        impl ops::AddAssign<PicoDuration> for $name {
            fn add_assign(&mut self, duration: PicoDuration) {
                *self = *self + duration;
            }
        }

        impl ops::Sub<PicoDuration> for $name {
            type Output = $name;
            fn sub(self, duration: PicoDuration) -> $name {
                $name(self.0.saturating_sub(duration.0))
            }
        }

        impl FromStr for $name {
            type Err = UnitError;
            fn from_str(text: &str) -> Result<Self, UnitError> {
                parse::quantity(text, Quantity::Time, |unit| {
                    UNITS
                        .iter()
                        .find(|(name, _)| *name == unit)
                        .map(|&(_, ps)| ps)
                })
                .map($name)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let (unit, name) = match self.0 {
                    0 | PS_PER_SEC.. => (PS_PER_SEC, "s"),
                    1_000_000_000.. => (1_000_000_000, "ms"),
                    1_000_000.. => (1_000_000, "us"),
                    1_000.. => (1_000, "ns"),
                    _ => (1, "ps"),
                };
                parse::write_decimal(f, self.0, unit)?;
                f.write_str(name)
            }
        }
    };
}

picoseconds!(PicoDuration);
picoseconds!(PicoTime);

impl PicoDuration {
    /// `self * count`; saturates.
    pub const fn saturating_mul(self, count: u64) -> Self {
        PicoDuration(self.0.saturating_mul(count))
    }

    /// As the standard library's duration, rounded down to ns.
    pub const fn to_std(self) -> Duration {
        Duration::from_nanos(self.as_ns())
    }

    /// From the standard library's duration; saturates at 213 days.
    pub fn from_std(duration: Duration) -> Self {
        PicoDuration(u64::try_from(duration.as_nanos().saturating_mul(1_000)).unwrap_or(u64::MAX))
    }
}

impl PicoTime {
    /// The time from `earlier` to `self`, or `None` when `earlier` is later.
    pub fn checked_since(self, earlier: PicoTime) -> Option<PicoDuration> {
        self.0.checked_sub(earlier.0).map(PicoDuration)
    }
}

impl ops::Sub for PicoTime {
    type Output = PicoDuration;
    /// The time from `earlier` to `self`, zero when `earlier` is later.
    fn sub(self, earlier: PicoTime) -> PicoDuration {
        PicoDuration(self.0.saturating_sub(earlier.0))
    }
}
