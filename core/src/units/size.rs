//! Sizes in bytes, one type for each thing that is counted.

use super::{Quantity, UnitError, parse};
use core::{fmt, iter::Sum, ops, str::FromStr};

const UNITS: [(&str, u64); 9] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("B", 1),
];

/// Reads a size such as `512KiB`, `8MB` (10^6) or `1500B`, in bytes.
pub fn parse_bytes(text: &str) -> Result<u64, UnitError> {
    parse::quantity(text, Quantity::Size, |unit| {
        UNITS
            .iter()
            .find(|(name, _)| *name == unit)
            .map(|&(_, bytes)| bytes)
    })
}

/// Prints a size as a whole number of the largest unit that divides it, binary ones first; `kB` is
/// left out so that a frame of 9000 bytes reads as one.
fn write_bytes(f: &mut fmt::Formatter<'_>, bytes: u64) -> fmt::Result {
    if bytes != 0 {
        for &(name, unit) in UNITS.iter().filter(|(name, _)| *name != "kB") {
            if bytes.is_multiple_of(unit) {
                return write!(f, "{}{name}", bytes / unit);
            }
        }
    }
    write!(f, "{bytes}B")
}

macro_rules! size {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        ///
        /// `+` and `-` saturate at the ends of u64.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u64);

        impl $name {
            /// No bytes.
            pub const ZERO: $name = $name(0);
            /// The largest size.
            pub const MAX: $name = $name(u64::MAX);

            /// A number of bytes.
            pub const fn new(bytes: u64) -> Self {
                $name(bytes)
            }

            /// The number of bytes.
            pub const fn get(self) -> u64 {
                self.0
            }

            /// Sum, if it fits.
            pub fn checked_add(self, other: Self) -> Option<Self> {
                self.0.checked_add(other.0).map($name)
            }

            /// Difference, if it is not below zero.
            pub fn checked_sub(self, other: Self) -> Option<Self> {
                self.0.checked_sub(other.0).map($name)
            }
        }

        impl ops::Add for $name {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                $name(self.0.saturating_add(other.0))
            }
        }

        impl ops::AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                *self = *self + other;
            }
        }

        impl ops::Sub for $name {
            type Output = Self;
            fn sub(self, other: Self) -> Self {
                $name(self.0.saturating_sub(other.0))
            }
        }

        impl ops::SubAssign for $name {
            fn sub_assign(&mut self, other: Self) {
                *self = *self - other;
            }
        }

        impl Sum for $name {
            fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
                iter.fold(Self::ZERO, ops::Add::add)
            }
        }

        impl FromStr for $name {
            type Err = UnitError;
            fn from_str(text: &str) -> Result<Self, UnitError> {
                parse_bytes(text).map($name)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write_bytes(f, self.0)
            }
        }
    };
}

size! {
    /// Bytes of Ethernet frames, MAC header to FCS: what queues are charged and link rates count.
    FrameBytes
}
size! {
    /// Bytes of time on a wire: preamble, frame and gap.
    WireBytes
}
size! {
    /// Bytes of payload: what an application moves.
    PayloadBytes
}
