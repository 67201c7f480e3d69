//! Randomness that is replayed from its seed, in integers.
//!
//! SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014): a
//! counter with an odd step, mixed. Every impairment has a generator of its own, seeded from the
//! link's seed and its own number, so that turning one on changes no other.
//!
//! A ratio `r` is a threshold on 64 random bits, `floor(r * 2^64)`: at 1e-9 it is 1.8e10, off by less than
//! one part in 10^10.

use crate::units::Ratio;

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A sequence of random numbers.
#[derive(Debug, Clone)]
pub(super) struct Random {
    state: u64,
}

impl Random {
    /// The sequence of a seed.
    pub const fn new(seed: u64) -> Self {
        Random { state: seed }
    }

    /// Another sequence of the same seed, for the impairment with this number (1 or more).
    pub fn of(seed: u64, number: u64) -> Self {
        let mut outer = Random::new(seed ^ number.wrapping_mul(0xd134_2543_de82_ef95));
        Random::new(outer.bits())
    }

    /// 64 random bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(STEP);
        let mut bits = self.state;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// A number below `end`, all equally likely to 1 in 2^64; 0 when `end` is 0.
    #[inline]
    pub fn below(&mut self, end: u64) -> u64 {
        // The high word of a product with 64 random bits is below `end`, so it fits.
        ((u128::from(self.bits()) * u128::from(end)) >> 64) as u64
    }
}

/// Something that happens with a given probability, drawn one at a time.
#[derive(Debug, Clone)]
pub(super) struct Chance {
    random: Random,
    /// It happens when 64 random bits are below this.
    threshold: u128,
}

impl Chance {
    /// Never; or with the ratio given later.
    pub fn new(random: Random) -> Self {
        Chance { random, threshold: 0 }
    }

    /// A ratio of 1 or more is always.
    pub fn set(&mut self, ratio: Ratio) {
        self.threshold = threshold(ratio);
    }

    /// Whether it happens now. A ratio of 0 takes no random number.
    #[inline]
    pub fn draw(&mut self) -> bool {
        self.threshold != 0 && u128::from(self.random.bits()) < self.threshold
    }
}

/// `floor(ratio * 2^64)`.
pub(super) fn threshold(ratio: Ratio) -> u128 {
    (u128::from(ratio.num()) << 64) / u128::from(ratio.den())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_are_exact_to_one_in_ten_digits() {
        let of = |text: &str| text.parse::<Ratio>().map(threshold);
        assert_eq!(of("1e-9"), Ok(18_446_744_073));
        assert_eq!(of("0.5"), Ok(1 << 63));
        assert_eq!(of("1"), Ok(1 << 64));
        assert_eq!(of("0"), Ok(0));
    }

    #[test]
    fn sequences_of_one_seed_differ() {
        let mut sequences = [
            Random::new(7),
            Random::of(7, 1),
            Random::of(7, 2),
            Random::of(8, 1),
        ];
        let first = sequences.each_mut().map(Random::bits);
        for (index, one) in first.iter().enumerate() {
            assert!(first.iter().skip(index + 1).all(|other| other != one));
        }
        assert_eq!(Random::of(7, 1).bits(), first[1]);
        assert!((0..1000).all(|_| sequences[0].below(3) < 3));
        assert_eq!(sequences[0].below(0), 0);
    }
}
