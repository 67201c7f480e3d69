//! Fractions.

use super::{Problem, Quantity, UnitError, parse};
use alloc::format;
use core::{cmp::Ordering, fmt, str::FromStr};

/// Largest power of ten in `1e-9` notation.
const MAX_EXPONENT: u32 = 18;

/// A fraction `num / den` in lowest terms, zero or more.
///
/// Text: `0`, `1`, `0.001`, `0.1%`, `1e-9`, `1/1000`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ratio {
    num: u64,
    den: u64,
}

impl Ratio {
    /// 0.
    pub const ZERO: Ratio = Ratio { num: 0, den: 1 };
    /// 1.
    pub const ONE: Ratio = Ratio { num: 1, den: 1 };

    /// `num / den`; a denominator of zero is refused.
    pub fn new(num: u64, den: u64) -> Result<Self, UnitError> {
        Self::reduced(u128::from(num), u128::from(den))
            .map_err(|problem| UnitError::new(Quantity::Ratio, problem, &format!("{num}/{den}")))
    }

    fn reduced(num: u128, den: u128) -> Result<Self, Problem> {
        if den == 0 {
            return Err(Problem::Zero);
        }
        let divisor = gcd(num, den);
        let num = u64::try_from(num / divisor).map_err(|_| Problem::TooLarge)?;
        let den = u64::try_from(den / divisor).map_err(|_| Problem::TooFine)?;
        Ok(Ratio { num, den })
    }

    /// Numerator, in lowest terms.
    pub const fn num(self) -> u64 {
        self.num
    }

    /// Denominator, in lowest terms, never zero.
    pub const fn den(self) -> u64 {
        self.den
    }

    /// Whether this is 0.
    pub const fn is_zero(self) -> bool {
        self.num == 0
    }

    /// `1 - self`, or 0 where that is below zero.
    pub fn complement(self) -> Self {
        // gcd(den - num, den) = gcd(num, den) = 1: still in lowest terms.
        Ratio {
            num: self.den.saturating_sub(self.num),
            den: if self.num < self.den { self.den } else { 1 },
        }
    }

    fn read(text: &str) -> Result<Self, Problem> {
        let (number, rest) = parse::decimal(text)?;
        let ten_to_decimals = 10u128.checked_pow(number.decimals).ok_or(Problem::TooFine)?;
        if let Some(den) = rest.strip_prefix('/') {
            let (den, after) = parse::decimal(den)?;
            if !after.is_empty() || den.decimals != 0 || number.decimals != 0 {
                return Err(Problem::UnknownUnit);
            }
            return Self::reduced(number.mantissa, den.mantissa);
        }
        let scale = match rest {
            "" => 1,
            "%" => 100,
            _ => {
                let exponent = rest.strip_prefix("e-").or_else(|| rest.strip_prefix("E-"));
                let exponent: u32 = exponent
                    .and_then(|e| e.parse().ok())
                    .ok_or(Problem::UnknownUnit)?;
                if exponent > MAX_EXPONENT {
                    return Err(Problem::TooFine);
                }
                10u128.pow(exponent)
            }
        };
        Self::reduced(
            number.mantissa,
            ten_to_decimals.checked_mul(scale).ok_or(Problem::TooFine)?,
        )
    }
}

impl Ord for Ratio {
    fn cmp(&self, other: &Self) -> Ordering {
        let ours = u128::from(self.num) * u128::from(other.den);
        ours.cmp(&(u128::from(other.num) * u128::from(self.den)))
    }
}

impl PartialOrd for Ratio {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl FromStr for Ratio {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        Self::read(text).map_err(|problem| UnitError::new(Quantity::Ratio, problem, text))
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.den {
            1 => write!(f, "{}", self.num),
            den => write!(f, "{}/{den}", self.num),
        }
    }
}

fn gcd(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
