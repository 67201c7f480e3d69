//! Why a text or number is not a quantity: what was given, what is wrong, what would be valid.

use alloc::string::String;
use core::fmt;

/// Characters of the refused text that an error repeats.
const SHOWN_CHARS: usize = 40;

/// What was being read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantity {
    /// A data rate in bit/s.
    Rate,
    /// A time or duration.
    Time,
    /// A size in bytes.
    Size,
    /// A fraction.
    Ratio,
}

impl Quantity {
    const fn name(self) -> &'static str {
        match self {
            Quantity::Rate => "rate",
            Quantity::Time => "time",
            Quantity::Size => "size",
            Quantity::Ratio => "ratio",
        }
    }

    const fn valid(self) -> &'static str {
        match self {
            Quantity::Rate => "write a number and a unit, such as 800Mbps, 2.34G, 8kbit/s or 50MB/s",
            Quantity::Time => "write a number and one of ps, ns, us, ms, s, min, h, such as 70.5ms",
            Quantity::Size => {
                "write a number and one of B, kB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB \
                 (powers of 1024), such as 512KiB"
            }
            Quantity::Ratio => "write a fraction, such as 0, 0.001, 0.1%, 1e-9 or 1/1000",
        }
    }
}

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Problem {
    /// Nothing but white space.
    Empty,
    /// Longer than [`MAX_TEXT_BYTES`](super::MAX_TEXT_BYTES).
    TooLong,
    /// Does not begin with a decimal number.
    NoNumber,
    /// Below zero.
    Negative,
    /// A number without a unit.
    NoUnit,
    /// The unit is not known for this quantity.
    UnknownUnit,
    /// Zero where that means nothing (a rate, a denominator).
    Zero,
    /// Above the largest value of the type.
    TooLarge,
    /// Not a whole number of the smallest unit.
    TooFine,
}

/// A refused quantity. `Display` says what was given, what is wrong and what would be valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnitError {
    quantity: Quantity,
    problem: Problem,
    given: String,
}

impl UnitError {
    pub(super) fn new(quantity: Quantity, problem: Problem, given: &str) -> Self {
        let mut shown: String = given.chars().take(SHOWN_CHARS).collect();
        if shown.len() < given.len() {
            shown.push_str("...");
        }
        UnitError {
            quantity,
            problem,
            given: shown,
        }
    }

    /// What was being read.
    pub fn quantity(&self) -> Quantity {
        self.quantity
    }

    /// What is wrong.
    pub fn problem(&self) -> Problem {
        self.problem
    }
}

impl fmt::Display for UnitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let problem = match self.problem {
            Problem::Empty => "is empty",
            Problem::TooLong => "is too long",
            Problem::NoNumber => "is not a decimal number with a unit",
            Problem::Negative => "is below zero",
            Problem::NoUnit => "has no unit",
            Problem::UnknownUnit => "has an unknown unit",
            Problem::Zero => "is zero, which has no meaning here",
            Problem::TooLarge => "is too large",
            Problem::TooFine => match self.quantity {
                Quantity::Rate => "is not a whole number of bit/s",
                Quantity::Time => "is not a whole number of picoseconds",
                Quantity::Size => "is not a whole number of bytes",
                Quantity::Ratio => "has too many digits",
            },
        };
        write!(
            f,
            "{} {:?} {problem}: {}",
            self.quantity.name(),
            self.given,
            self.quantity.valid()
        )
    }
}

impl core::error::Error for UnitError {}
