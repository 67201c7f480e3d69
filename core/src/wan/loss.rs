//! Which frames are lost behind the wire.
//!
//! | model | a frame is lost |
//! |---|---|
//! | [`Loss::Ratio`] | independently, with one probability, down to 1e-18 |
//! | [`Loss::Gilbert`] | with a probability that depends on a state, good or bad, which changes before each frame |
//! | [`Loss::Every`] | when it is the n-th since the last one that was lost |
//!
//! ```text
//!              p                       stationary: in bad  p / (p + r)
//!      +---------------->+             share lost:         (p * bad + r * good) / (p + r)
//!    good               bad            with good 0, bad 1: runs of loss are 1/r frames long in the mean,
//!      +<----------------+             losses k frames apart correlate with (1 - p - r)^k
//!              r
//! ```
//!
//! Sources: Gilbert, Capacity of a burst-noise channel, BSTJ 1960; Elliott, BSTJ 1963; moments: Hasslinger
//! and Hohlfeld, The Gilbert-Elliott model for packet loss, MMB 2008.

use super::random::{Random, threshold};
use crate::units::Ratio;

/// A model of loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// Each frame for itself; 1 or more loses all.
    Ratio(Ratio),
    /// The model of Gilbert and Elliott. It starts in the good state.
    Gilbert {
        /// From good to bad, per frame.
        p: Ratio,
        /// From bad to good, per frame.
        r: Ratio,
        /// Share lost in the good state.
        good: Ratio,
        /// Share lost in the bad state.
        bad: Ratio,
    },
    /// One frame of so many: the n-th, the 2n-th and so on. 0 loses none, 1 all.
    Every(u64),
}

impl Loss {
    /// No loss.
    pub const NONE: Loss = Loss::Ratio(Ratio::ZERO);
}

/// A running model.
#[derive(Debug, Clone)]
pub(super) struct Losses {
    /// What was asked for.
    pub loss: Loss,
    random: Random,
    model: Model,
}

#[derive(Debug, Clone)]
enum Model {
    None,
    Ratio(u128),
    Gilbert {
        to_bad: u128,
        to_good: u128,
        lost: [u128; 2],
        bad: bool,
    },
    Every {
        every: u64,
        passed: u64,
    },
}

impl Losses {
    pub fn new(loss: Loss, seed: u64) -> Self {
        let mut losses = Losses {
            loss,
            random: Random::new(seed),
            model: Model::None,
        };
        losses.set(loss);
        losses
    }

    /// Changes the model, which starts afresh; the random sequence goes on.
    pub fn set(&mut self, loss: Loss) {
        self.loss = loss;
        self.model = match loss {
            Loss::Ratio(ratio) if ratio.is_zero() => Model::None,
            Loss::Ratio(ratio) => Model::Ratio(threshold(ratio)),
            Loss::Gilbert { p, r, good, bad } => Model::Gilbert {
                to_bad: threshold(p),
                to_good: threshold(r),
                lost: [threshold(good), threshold(bad)],
                bad: false,
            },
            Loss::Every(0) => Model::None,
            Loss::Every(every) => Model::Every { every, passed: 0 },
        };
    }

    /// Whether the next frame is lost.
    #[inline]
    pub fn draw(&mut self) -> bool {
        match &mut self.model {
            Model::None => false,
            // A ratio too small for 64 bits takes no random number either.
            Model::Ratio(0) => false,
            Model::Ratio(threshold) => u128::from(self.random.bits()) < *threshold,
            Model::Gilbert {
                to_bad,
                to_good,
                lost,
                bad,
            } => {
                let leave = if *bad { *to_good } else { *to_bad };
                *bad ^= u128::from(self.random.bits()) < leave;
                let share = lost[usize::from(*bad)];
                u128::from(self.random.bits()) < share
            }
            Model::Every { every, passed } => {
                *passed += 1;
                let turn = *passed >= *every;
                if turn {
                    *passed = 0;
                }
                turn
            }
        }
    }
}
