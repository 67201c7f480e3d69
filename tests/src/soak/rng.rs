//! Numbers from a seed (SplitMix64): the same seed gives the same tree and the same plan of faults.

/// A source of numbers.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// Begins at a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `0..n`; 0 when `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        let wide = u128::from(self.next()) * u128::from(n);
        u64::try_from(wide >> 64).unwrap_or(0)
    }

    /// An index of a list of `len` things; 0 when it is empty.
    pub fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).unwrap_or(0)
    }

    /// True in `n` of `of` cases.
    pub fn chance(&mut self, n: u64, of: u64) -> bool {
        self.below(of) < n
    }

    /// Fills with bytes that do not repeat.
    pub fn fill(&mut self, to: &mut [u8]) {
        for eight in to.chunks_mut(8) {
            let bytes = self.next().to_le_bytes();
            eight.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
        }
    }
}
