//! Which of the latest numbers have arrived: a ring of bits below the highest.
//!
//! As the replay window of RFC 4303, section 3.4.3, and RFC 6479 (blocks of bits that are cleared as the window moves).

use alloc::{boxed::Box, vec};

/// Numbers that are told apart; older ones count as seen.
pub const SEEN_PACKETS: u64 = 1 << 17;

const WORD_BITS: u64 = 64;

/// The ring.
#[derive(Debug, Clone)]
pub struct Seen {
    /// The number after the highest.
    end: u64,
    window: u64,
    bits: Box<[u64]>,
}

/// What is known of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Novelty {
    /// It is new.
    New,
    /// It was there before.
    Repeat,
    /// It is below the window.
    TooOld,
}

impl Seen {
    /// Nothing seen; at least `window` numbers are told apart.
    pub fn new(window: u64) -> Self {
        let words = window.div_ceil(WORD_BITS).max(1) + 1;
        Seen {
            end: 0,
            window: (words - 1) * WORD_BITS,
            bits: vec![0; words as usize].into_boxed_slice(),
        }
    }

    fn place(&self, number: u64) -> (usize, u64) {
        let word = (number / WORD_BITS) % self.bits.len() as u64;
        (word as usize, 1 << (number % WORD_BITS))
    }

    /// Whether a number is new, without noting it.
    #[inline]
    pub fn check(&self, number: u64) -> Novelty {
        if number >= self.end {
            return Novelty::New;
        }
        if self.end - number > self.window {
            return Novelty::TooOld;
        }
        let (word, bit) = self.place(number);
        if self.bits.get(word).is_some_and(|w| w & bit != 0) {
            Novelty::Repeat
        } else {
            Novelty::New
        }
    }

    /// Notes a number and says whether it was new.
    #[inline]
    pub fn note(&mut self, number: u64) -> Novelty {
        let novelty = self.check(number);
        if novelty != Novelty::New {
            return novelty;
        }
        if number >= self.end {
            // Words between the highest and this one are of another turn of the ring.
            let (last, new) = (self.end.div_ceil(WORD_BITS), number / WORD_BITS + 1);
            let words = self.bits.len() as u64;
            for word in last.max(new.saturating_sub(words))..new {
                if let Some(w) = self.bits.get_mut((word % words) as usize) {
                    *w = 0;
                }
            }
            self.end = number.saturating_add(1);
        }
        let (word, bit) = self.place(number);
        if let Some(w) = self.bits.get_mut(word) {
            *w |= bit;
        }
        Novelty::New
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::Random;
    use alloc::collections::BTreeSet;

    #[test]
    fn agrees_with_a_set() {
        let mut random = Random::new(1);
        let mut seen = Seen::new(256);
        let (mut set, mut high) = (BTreeSet::new(), 0u64);
        for step in 0..100_000u64 {
            let ahead = if step % 97 == 0 { 2_000 } else { 40 };
            let number = (high + random.below(ahead)).saturating_sub(random.below(300));
            let want = if number + 256 < high {
                Novelty::TooOld
            } else if set.contains(&number) {
                Novelty::Repeat
            } else {
                Novelty::New
            };
            assert_eq!(seen.note(number), want, "{number} below {high}");
            if want == Novelty::New {
                set.insert(number);
                high = high.max(number + 1);
            }
        }
        assert_eq!(seen.note(u64::MAX), Novelty::New);
        assert_eq!(seen.note(0), Novelty::TooOld);
    }
}
