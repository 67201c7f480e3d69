//! The Pareto distribution from zero (type II, Lomax), in integers.
//!
//! ```text
//!   P(X > x) = (1 + x/scale)^-shape        X = scale * (U^(-1/shape) - 1),  U uniform in (0, 1]
//!   mean = scale / (shape - 1) for shape > 1
//! ```
//!
//! `U^(-1/shape) = 2^(-log2(U)/shape)`: the logarithm digit by digit by squaring, the power by multiplying the
//! roots `2^(1/2^i)`, which are integer square roots of one another. Both to about 2^-50.

use super::random::Random;
use crate::units::Ratio;

/// Binary digits of a logarithm's fraction.
const DIGITS: u32 = 56;

/// Binary digits of a root's fraction.
const ROOT: u32 = 62;

/// `2^(1/2^i)` for i = 1, 2, ..., as fractions of 2^62.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Powers {
    roots: [u64; DIGITS as usize],
}

impl Powers {
    pub fn new() -> Self {
        let mut roots = [0; DIGITS as usize];
        // In steps of 2^-124 before, 2^-62 after each root: the error does not add up, a root halves it.
        let mut last = 2u128 << ROOT;
        for root in &mut roots {
            last = (last << ROOT).isqrt();
            // A root of at most 2 is below 2^63.
            *root = last as u64;
        }
        Powers { roots }
    }

    /// `scale * (u^(-1/shape) - 1)` for `u` = `(bits + 1) / 2^64`; `None` above `limit`.
    pub fn pareto(&self, scale: u64, shape: Ratio, limit: u64, random: &mut Random) -> Option<u64> {
        let exponent = minus_log2(random.bits());
        // -log2(u)/shape, with DIGITS binary digits.
        let exponent = u128::from(exponent) * u128::from(shape.den()) / u128::from(shape.num().max(1));
        let whole = u32::try_from(exponent >> DIGITS).ok().filter(|w| *w < 64)?;
        let mut power = 1u128 << ROOT;
        for (index, root) in (1..=DIGITS).zip(self.roots) {
            if exponent >> (DIGITS - index) & 1 == 1 {
                power = (power * u128::from(root)) >> ROOT;
            }
        }
        // power is below 2^63: scale * 2^whole * power - scale, in steps of 2^-62.
        let product = (u128::from(scale) * power).checked_shl(whole)?;
        if whole > 0 && product >> whole != u128::from(scale) * power {
            return None;
        }
        let value = u64::try_from((product >> ROOT).saturating_sub(u128::from(scale))).ok()?;
        (value <= limit).then_some(value)
    }
}

/// `-log2((bits + 1) / 2^64)` with `DIGITS` binary digits, rounded up; 0 to 64.
fn minus_log2(bits: u64) -> u64 {
    let Some(value) = bits.checked_add(1) else {
        return 0;
    };
    let whole = value.ilog2();
    // A mantissa from 1 to 2, as a fraction of 2^63; squared, its whole part is the next digit.
    let mut mantissa = value << (63 - whole);
    let mut fraction = 0u64;
    for _ in 0..DIGITS {
        let square = u128::from(mantissa) * u128::from(mantissa);
        let digit = square >> 127;
        fraction = fraction << 1 | digit as u64;
        mantissa = (square >> (63 + digit)) as u64;
    }
    (64u64 << DIGITS) - (u64::from(whole) << DIGITS) - fraction
}
