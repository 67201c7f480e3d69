//! Exact decimal text: `DIGITS[.DIGITS] UNIT` is `mantissa / 10^decimals` times a whole multiplier.

use super::{Problem, Quantity, UnitError};

/// Longest text that is looked at, in bytes.
pub const MAX_TEXT_BYTES: usize = 64;

/// A decimal number as written, with trailing zeros of the fraction removed: `mantissa / 10^decimals`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Decimal {
    pub mantissa: u128,
    pub decimals: u32,
}

impl Decimal {
    /// `self * multiplier` when that is a whole number in u64.
    pub fn times(self, multiplier: u64) -> Result<u64, Problem> {
        let product = self
            .mantissa
            .checked_mul(u128::from(multiplier))
            .ok_or(Problem::TooLarge)?;
        let divisor = 10u128.checked_pow(self.decimals).ok_or(Problem::TooFine)?;
        if product % divisor != 0 {
            return Err(Problem::TooFine);
        }
        u64::try_from(product / divisor).map_err(|_| Problem::TooLarge)
    }
}

/// Splits a text into its number and what follows it, both trimmed.
pub(super) fn decimal(text: &str) -> Result<(Decimal, &str), Problem> {
    if text.len() > MAX_TEXT_BYTES {
        return Err(Problem::TooLong);
    }
    let text = text.trim();
    if text.is_empty() {
        return Err(Problem::Empty);
    }
    if text.starts_with('-') {
        return Err(Problem::Negative);
    }
    let (whole, rest) = digits(text);
    if whole.is_empty() {
        return Err(Problem::NoNumber);
    }
    let (fraction, rest) = match rest.strip_prefix('.') {
        Some(after) => match digits(after) {
            ("", _) => return Err(Problem::NoNumber),
            split => split,
        },
        None => ("", rest),
    };
    let fraction = fraction.trim_end_matches('0');
    let mut mantissa: u128 = 0;
    for digit in whole.bytes().chain(fraction.bytes()) {
        mantissa = mantissa
            .checked_mul(10)
            .and_then(|m| m.checked_add(u128::from(digit - b'0')))
            .ok_or(Problem::TooLarge)?;
    }
    // At most MAX_TEXT_BYTES digits, so this fits.
    let decimals = fraction.len() as u32;
    Ok((Decimal { mantissa, decimals }, rest.trim_start()))
}

/// The leading ASCII digits of a text, and the rest.
fn digits(text: &str) -> (&str, &str) {
    let end = text
        .bytes()
        .position(|b| !b.is_ascii_digit())
        .unwrap_or(text.len());
    text.split_at(end)
}

/// Reads `NUMBER UNIT`, where `multiplier` maps a unit to its worth in the smallest unit.
pub(super) fn quantity(
    text: &str,
    quantity: Quantity,
    multiplier: impl Fn(&str) -> Option<u64>,
) -> Result<u64, UnitError> {
    let read = || {
        let (number, unit) = decimal(text)?;
        if unit.is_empty() {
            return Err(Problem::NoUnit);
        }
        number.times(multiplier(unit).ok_or(Problem::UnknownUnit)?)
    };
    read().map_err(|problem| UnitError::new(quantity, problem, text))
}

/// Writes `value / unit` as an exact decimal without trailing zeros; `unit` is a power of ten.
pub(super) fn write_decimal(f: &mut core::fmt::Formatter<'_>, value: u64, unit: u64) -> core::fmt::Result {
    write!(f, "{}", value / unit)?;
    let mut rest = value % unit;
    if rest == 0 {
        return Ok(());
    }
    f.write_str(".")?;
    let mut place = unit / 10;
    while rest != 0 {
        write!(f, "{}", rest / place)?;
        rest %= place;
        place /= 10;
    }
    Ok(())
}
