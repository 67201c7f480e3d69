//! The exponential distribution, sampled exactly, in integers.
//!
//! Von Neumann (Various techniques used in connection with random digits, 1951): draw `u1 > u2 > ...` for as
//! long as they fall. The number that ends the fall is an even one with probability `exp(-u1)`; then the sample
//! is `k + u1`, where `k` counts the falls that ended at an odd number before. Fractions are 64 bits.

use crate::sim::Random;

/// A sample of mean 1 as whole part and fraction of 2^64.
pub(super) fn exponential(random: &mut Random) -> (u64, u64) {
    let mut whole = 0;
    loop {
        let first = random.bits();
        let (mut last, mut even) = (first, true);
        loop {
            let next = random.bits();
            if next >= last {
                break;
            }
            last = next;
            even = !even;
        }
        if even {
            return (whole, first);
        }
        whole += 1;
    }
}

/// A sample times `unit`, rounded down; saturates.
pub(super) fn times(random: &mut Random, unit: u128) -> u128 {
    let (whole, fraction) = exponential(random);
    let (high, low) = (unit >> 64, unit & u128::from(u64::MAX));
    // fraction * unit / 2^64, in two halves.
    let part = (u128::from(fraction) * high).saturating_add((u128::from(fraction) * low) >> 64);
    u128::from(whole).saturating_mul(unit).saturating_add(part)
}
