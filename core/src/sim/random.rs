//! Randomness from a seed: SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators",
//! OOPSLA 2014), 64 bits of state, every value once in 2^64 draws.

/// The next 64 bits of a state.
#[inline]
pub fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut bits = *state;
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// A seeded generator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Random {
    state: u64,
}

impl Random {
    /// From a seed.
    pub fn new(seed: u64) -> Self {
        Random { state: seed }
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        split_mix(&mut self.state)
    }

    /// Evenly from 0 to `limit - 1`, but for a bias below 2^-64 of the limit; 0 for no limit.
    pub fn below(&mut self, limit: u64) -> u64 {
        // The product is below limit * 2^64.
        ((u128::from(self.bits()) * u128::from(limit)) >> 64) as u64
    }
}
