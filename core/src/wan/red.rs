//! Random early detection, gentle, with marking.
//!
//! ```text
//!   at each arrival   avg <- avg + w (queue - avg),  w = 2^-weight_log2
//!   behind m mean frames' times of idle   avg <- avg (1 - w)^m
//!
//!   p_b = 0                                        avg < min
//!         max_p (avg - min)/(max - min)            min <= avg < max
//!         max_p + (1 - max_p)(avg - max)/max       max <= avg < 2 max   (gentle)
//!         1                                        2 max <= avg
//!   p_a = p_b / (1 - count p_b),  count = frames since the last one that was refused
//! ```
//!
//! A refused frame is dropped, or marked where marking is on and its ends are capable; from 2 max on it is
//! dropped in any case. The average and the queue are bytes of frames that wait. Probabilities are
//! fractions of 2^32, the average one of 2^-24 byte.
//!
//! Sources: Floyd and Jacobson, Random early detection gateways, ToN 1993; Floyd, Recommendation on using
//! the "gentle_" variant of RED, 2000; RFC 3168, section 7.

use super::random::Random;
use crate::units::{FrameBytes, PicoDuration, Ratio};

/// Binary digits of the average's fraction.
const AVERAGE: u32 = 24;
/// Binary digits of a probability.
const PROBABILITY: u32 = 32;
/// Largest logarithm of a weight.
pub const MAX_WEIGHT_LOG2: u32 = 20;

/// The parameters of RED.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Red {
    /// Average queue from which frames are refused.
    pub min: FrameBytes,
    /// Average queue at which `max_p` are refused; above `min`.
    pub max: FrameBytes,
    /// Share refused at `max`, 1 at most.
    pub max_p: Ratio,
    /// The average's weight is 2 to the minus this; [`MAX_WEIGHT_LOG2`] at most.
    pub weight_log2: u32,
    /// Mean frame: the unit in which idle time is counted.
    pub mean_frame: FrameBytes,
    /// Mark instead of dropping.
    pub ecn: bool,
}

/// What an arrival meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Pass,
    /// Mark, or drop where that cannot be.
    Mark,
    Drop,
}

#[derive(Debug, Clone)]
pub(super) struct Average {
    pub config: Red,
    average: u128,
    /// Frames since the last one refused; `None` below `min`.
    count: Option<u64>,
    random: Random,
}

impl Average {
    pub fn new(config: Red, seed: u64) -> Self {
        Average {
            config,
            average: 0,
            count: None,
            random: Random::of(seed, 7),
        }
    }

    /// Counts an arrival that finds `queued` bytes, behind `idle` of no work at all.
    pub fn arrive(&mut self, queued: FrameBytes, idle: PicoDuration, mean_time: PicoDuration) {
        let weight = self.config.weight_log2.min(MAX_WEIGHT_LOG2);
        if idle > PicoDuration::ZERO {
            let frames = idle.as_ps() / mean_time.as_ps().max(1);
            self.average = (self.average * u128::from(decay(weight, frames))) >> PROBABILITY;
        }
        let queued = u128::from(queued.get()) << AVERAGE;
        self.average = if queued >= self.average {
            self.average + ((queued - self.average) >> weight)
        } else {
            self.average - ((self.average - queued) >> weight)
        };
    }

    /// The average queue, whole bytes.
    #[cfg(test)]
    fn bytes(&self) -> u64 {
        u64::try_from(self.average >> AVERAGE).unwrap_or(u64::MAX)
    }

    /// What the frame that has been counted meets.
    pub fn judge(&mut self) -> Verdict {
        let share = self.share();
        if share == 0 {
            self.count = None;
            return Verdict::Pass;
        }
        let one = 1u128 << PROBABILITY;
        if share >= one {
            self.count = Some(0);
            return Verdict::Drop;
        }
        let count = self.count.map_or(0, |c| c + 1);
        self.count = Some(count);
        let used = u128::from(count) * share;
        let refused = used + share >= one || {
            // p_b / (1 - count p_b)
            let chance = (share << PROBABILITY) / (one - used);
            u128::from(self.random.bits() >> (64 - PROBABILITY)) < chance
        };
        if !refused {
            return Verdict::Pass;
        }
        self.count = Some(0);
        if self.config.ecn {
            Verdict::Mark
        } else {
            Verdict::Drop
        }
    }

    /// p_b as a fraction of 2^32.
    fn share(&self) -> u128 {
        let one = 1u128 << PROBABILITY;
        let min = u128::from(self.config.min.get()) << AVERAGE;
        let max = (u128::from(self.config.max.get()) << AVERAGE).max(min + 1);
        let max_p =
            (u128::from(self.config.max_p.num()) << PROBABILITY) / u128::from(self.config.max_p.den());
        let max_p = max_p.min(one);
        if self.average < min {
            0
        } else if self.average < max {
            // A share of 0 means below `min`.
            (scaled(max_p, self.average - min, max - min)).max(1)
        } else if self.average < 2 * max {
            max_p + scaled(one - max_p, self.average - max, max)
        } else {
            one
        }
    }
}

/// `share * part / whole` without overflow: the sizes lose their fractions where they are large.
fn scaled(share: u128, part: u128, whole: u128) -> u128 {
    let excess = (128 - whole.leading_zeros()).saturating_sub(90);
    share * (part >> excess) / (whole >> excess).max(1)
}

/// `(1 - 2^-weight)^frames` as a fraction of 2^32, by squaring.
fn decay(weight: u32, mut frames: u64) -> u64 {
    let mut base = (1u64 << PROBABILITY) - (1u64 << (PROBABILITY - weight));
    let mut power = 1u64 << PROBABILITY;
    while frames > 0 && power > 0 {
        if frames & 1 == 1 {
            power = ((u128::from(power) * u128::from(base)) >> PROBABILITY) as u64;
        }
        base = ((u128::from(base) * u128::from(base)) >> PROBABILITY) as u64;
        frames >>= 1;
    }
    power
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_decays_by_the_power() {
        assert_eq!(decay(1, 0), 1 << 32);
        assert_eq!(decay(1, 3), 1 << 29);
        // (1 - 2^-9)^1000 = 0.14149...
        let exact = (1.0f64 - 1.0 / 512.0).powi(1000) * 4_294_967_296.0;
        assert!((decay(9, 1000) as f64 - exact).abs() < 100.0);
        assert_eq!(decay(9, u64::MAX), 0);
    }

    #[test]
    fn shares_by_the_drawing() {
        let config = Red {
            min: FrameBytes::new(10_000),
            max: FrameBytes::new(30_000),
            max_p: Ratio::new(1, 10).unwrap_or(Ratio::ZERO),
            weight_log2: 0,
            mean_frame: FrameBytes::new(1_000),
            ecn: false,
        };
        let share = |queued: u64| {
            let mut average = Average::new(config, 0);
            average.arrive(FrameBytes::new(queued), PicoDuration::ZERO, PicoDuration::ZERO);
            assert_eq!(average.bytes(), queued);
            average.share() as f64 / 4_294_967_296.0
        };
        for (queued, expected) in [
            (9_999, 0.0),
            (20_000, 0.05),
            (30_000, 0.1),
            (45_000, 0.55),
            (60_000, 1.0),
            (1 << 40, 1.0),
        ] {
            assert!(
                (share(queued) - expected).abs() < 1e-6,
                "{queued}: {}",
                share(queued)
            );
        }
    }

    #[test]
    fn refusals_are_spread_and_not_by_chance_alone() {
        let config = Red {
            min: FrameBytes::new(10_000),
            max: FrameBytes::new(30_000),
            max_p: Ratio::new(1, 10).unwrap_or(Ratio::ZERO),
            weight_log2: 0,
            mean_frame: FrameBytes::new(1_000),
            ecn: false,
        };
        // p_b is 1/20: the gaps are equally likely up to 20, where independent refusals often leave 60.
        let mut average = Average::new(config, 4);
        let (mut gap, mut gaps) = (0u64, [0u64; 21]);
        for _ in 0..100_000 {
            average.arrive(FrameBytes::new(20_000), PicoDuration::ZERO, PicoDuration::ZERO);
            gap += 1;
            if average.judge() == Verdict::Drop {
                gaps[gap as usize] += 1;
                gap = 0;
            }
        }
        let refused: u64 = gaps.iter().sum();
        assert!((9_500..11_000).contains(&refused), "{refused}");
        assert!(gaps[1..20].iter().all(|n| *n > refused / 30), "{gaps:?}");
    }
}
