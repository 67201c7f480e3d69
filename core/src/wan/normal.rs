//! The normal distribution, sampled exactly, in integers, without a table.
//!
//! Algorithm N of Karney (Sampling exactly from the normal distribution, ACM TOMS 2016): an integer part
//! `k`, then a fraction `x`, each accepted with a probability `exp(-p)`, for which von Neumann's comparison of
//! uniform numbers needs no exponential:
//!
//! ```text
//!   numbers u1 > u2 > ... below p, as long as they fall: their count n has P(n even) = exp(-p)
//! ```
//!
//! Fractions are 64 bits, so the density is exact to about 2^-64.

use super::random::Random;

/// Half of 1 as a fraction of 64 bits.
const HALF: u64 = 1 << 63;

/// A standard normal number's magnitude: whole part, and fraction of 2^64.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Magnitude {
    pub whole: u64,
    pub fraction: u64,
}

impl Magnitude {
    /// `self * unit`, rounded down.
    pub fn times(self, unit: u64) -> u128 {
        u128::from(self.whole) * u128::from(unit) + ((u128::from(self.fraction) * u128::from(unit)) >> 64)
    }
}

/// The magnitude of a standard normal number.
pub(super) fn magnitude(random: &mut Random) -> Magnitude {
    loop {
        let k = whole(random);
        // k occurs with exp(-k/2); accepted with exp(-k(k - 1)/2) it occurs with exp(-k^2/2).
        if !(0..k * k.saturating_sub(1)).all(|_| exp_minus_half(random)) {
            continue;
        }
        let x = random.bits();
        // exp(-x(2k + x)/2) as k + 1 factors whose exponents are below 1.
        if (0..=k).all(|_| exp_minus_part(k, x, random)) {
            return Magnitude {
                whole: k,
                fraction: x,
            };
        }
    }
}

/// `k` with probability `exp(-k/2) * (1 - exp(-1/2))`.
fn whole(random: &mut Random) -> u64 {
    let mut k = 0;
    while exp_minus_half(random) {
        k += 1;
    }
    k
}

/// True with probability `exp(-1/2)`.
fn exp_minus_half(random: &mut Random) -> bool {
    let mut last = HALF;
    let mut even = true;
    loop {
        let next = random.bits();
        if next >= last {
            return even;
        }
        last = next;
        even = !even;
    }
}

/// True with probability `exp(-x(2k + x)/(2k + 2))`: a number that falls counts with probability
/// `(2k + x)/(2k + 2)` only.
fn exp_minus_part(k: u64, x: u64, random: &mut Random) -> bool {
    let mut last = x;
    let mut even = true;
    loop {
        let next = random.bits();
        if next >= last || !counts(k, x, random) {
            return even;
        }
        last = next;
        even = !even;
    }
}

/// True with probability `(2k + x)/(2k + 2)`.
fn counts(k: u64, x: u64, random: &mut Random) -> bool {
    match random.below(2 * k + 2) {
        part if part < 2 * k => true,
        part if part == 2 * k => random.bits() < x,
        _ => false,
    }
}
