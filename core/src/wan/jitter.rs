//! How the one-way delay varies from frame to frame.
//!
//! | jitter | added to the delay |
//! |---|---|
//! | [`Jitter::Uniform`] | every value from -half to +half, equally likely |
//! | [`Jitter::Normal`] | normal with mean 0 and `sigma`; a value beyond `limit` is drawn again (truncated) |
//! | [`Jitter::Pareto`] | `scale * (U^(-1/shape) - 1)`, 0 or more; beyond 10 s drawn again |
//! | [`Jitter::Samples`] | one of a list, drawn with equal chances (an empirical distribution) or in order, round and round |
//!
//! A delay that would be below zero is zero. Draws are independent. Whether a frame may overtake is
//! [`Order`]'s matter: kept, a frame arrives no earlier than the one before it, which shifts the
//! distribution when frames are closer together than the jitter is wide.

use super::{normal::magnitude, pareto::Powers, random::Random};
use crate::units::{PicoDuration, Ratio};
use alloc::{boxed::Box, sync::Arc};

/// Longest delay or jitter of a link.
pub const MAX_DELAY: PicoDuration = PicoDuration::from_secs(10);
/// Most samples of a list.
pub const MAX_SAMPLES: usize = 1 << 20;
/// Smallest shape of a Pareto distribution: below it hardly any value is within 10 s.
pub const MIN_SHAPE: Ratio = Ratio::ONE;

/// The jitter of a link.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Jitter {
    /// The delay is constant.
    #[default]
    None,
    /// From -half to +half.
    Uniform(PicoDuration),
    /// A truncated normal distribution.
    Normal {
        /// Standard deviation of the whole distribution, before it is truncated.
        sigma: PicoDuration,
        /// Largest deviation.
        limit: PicoDuration,
    },
    /// A Pareto distribution from zero (Lomax).
    Pareto {
        /// Scale.
        scale: PicoDuration,
        /// Shape, [`MIN_SHAPE`] or more.
        shape: Ratio,
    },
    /// Delays from a list; an empty one adds nothing.
    Samples {
        /// The list.
        list: Arc<[PicoDuration]>,
        /// Taken in order instead of drawn.
        in_order: bool,
    },
}

/// Whether frames may overtake one another on the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// A frame arrives no earlier than the one before it.
    #[default]
    Kept,
    /// A frame arrives when its delay is over.
    Free,
}

/// Times that a value is drawn at most before it is cut to its limit: with a limit of a thousandth
/// of sigma, one value in e^800 comes so far.
const MOST_DRAWS: u32 = 1_000_000;

/// A running jitter.
#[derive(Debug, Clone)]
pub(super) struct Jitterer {
    random: Random,
    jitter: Jitter,
    powers: Option<Box<Powers>>,
    next: usize,
}

impl Jitterer {
    pub fn new(seed: u64) -> Self {
        Jitterer {
            random: Random::of(seed, 1),
            jitter: Jitter::None,
            powers: None,
            next: 0,
        }
    }

    pub fn set(&mut self, jitter: Jitter) {
        self.next = 0;
        self.powers = matches!(jitter, Jitter::Pareto { .. }).then(|| Box::new(Powers::new()));
        self.jitter = jitter;
    }

    #[inline]
    pub fn is_none(&self) -> bool {
        matches!(self.jitter, Jitter::None)
    }

    /// The delay of the next frame.
    #[inline]
    pub fn delay(&mut self, one_way_delay: PicoDuration) -> PicoDuration {
        if self.is_none() {
            return one_way_delay;
        }
        let (value, minus) = self.offset();
        let value = PicoDuration::from_ps(value);
        if minus {
            one_way_delay - value
        } else {
            one_way_delay + value
        }
    }

    /// Picoseconds, and whether they are taken away.
    fn offset(&mut self) -> (u64, bool) {
        let random = &mut self.random;
        match &self.jitter {
            Jitter::None => (0, false),
            Jitter::Uniform(half) => {
                let half = half.min(&MAX_DELAY).as_ps();
                let drawn = random.below(2 * half + 1);
                (drawn.abs_diff(half), drawn < half)
            }
            Jitter::Normal { sigma, limit } => normal(sigma.as_ps(), limit.as_ps(), random),
            Jitter::Pareto { scale, shape } => {
                let Some(powers) = &self.powers else {
                    return (0, false);
                };
                let drawn = (0..MOST_DRAWS)
                    .find_map(|_| powers.pareto(scale.as_ps(), *shape, MAX_DELAY.as_ps(), random));
                (drawn.unwrap_or(MAX_DELAY.as_ps()), false)
            }
            Jitter::Samples { list, in_order } => {
                let index = if *in_order {
                    let index = self.next;
                    self.next = if index + 1 < list.len() { index + 1 } else { 0 };
                    index
                } else {
                    random.below(list.len() as u64) as usize
                };
                (list.get(index).map_or(0, |d| d.as_ps()), false)
            }
        }
    }
}

fn normal(sigma: u64, limit: u64, random: &mut Random) -> (u64, bool) {
    for _ in 0..MOST_DRAWS {
        let value = magnitude(random).times(sigma);
        if value <= u128::from(limit) {
            // At most `limit`.
            return (value as u64, random.bits() & 1 == 1);
        }
    }
    (limit, random.bits() & 1 == 1)
}
