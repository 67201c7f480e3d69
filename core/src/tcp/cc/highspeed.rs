//! HighSpeed TCP (RFC 3649): steps and cuts that depend on the window.
//!
//! ```text
//!   ACK:   cwnd += a(cwnd) / cwnd       loss:   ssthresh = cwnd (1 - b(cwnd))
//!   b(w) = 0.5 - 0.4 ln(w / 38) / ln(83000 / 38)
//!   a(w) = w^2 p(w) 2 b(w) / (2 - b(w)),   p(w) = 0.078 / w^1.2
//! ```
//!
//! The RFC's appendix B tabulates the largest window for each whole a, with b there; Linux
//! (net/ipv4/tcp_highspeed.c) keeps b in 256ths, and its rows are the ones below. Response function:
//! W = 0.12 / p^0.835 segments (RFC 3649, section 5).

use super::{Acked, CongestionControl};
use crate::{tcp::window::Window, units::PicoTime};

/// For a = 1, 2, 3...: the largest window of the step and b in 256ths (RFC 3649, appendix B).
const STEPS: [(u32, u32); 72] = [
    (38, 128),
    (118, 112),
    (221, 104),
    (347, 98),
    (495, 93),
    (663, 89),
    (851, 86),
    (1_058, 83),
    (1_284, 81),
    (1_529, 78),
    (1_793, 76),
    (2_076, 74),
    (2_378, 72),
    (2_699, 71),
    (3_039, 69),
    (3_399, 68),
    (3_778, 66),
    (4_177, 65),
    (4_596, 64),
    (5_036, 62),
    (5_497, 61),
    (5_979, 60),
    (6_483, 59),
    (7_009, 58),
    (7_558, 57),
    (8_130, 56),
    (8_726, 55),
    (9_346, 54),
    (9_991, 53),
    (10_661, 52),
    (11_358, 52),
    (12_082, 51),
    (12_834, 50),
    (13_614, 49),
    (14_424, 48),
    (15_265, 48),
    (16_137, 47),
    (17_042, 46),
    (17_981, 45),
    (18_955, 45),
    (19_965, 44),
    (21_013, 43),
    (22_101, 43),
    (23_230, 42),
    (24_402, 41),
    (25_618, 41),
    (26_881, 40),
    (28_193, 39),
    (29_557, 39),
    (30_975, 38),
    (32_450, 38),
    (33_986, 37),
    (35_586, 36),
    (37_253, 36),
    (38_992, 35),
    (40_808, 35),
    (42_707, 34),
    (44_694, 33),
    (46_776, 33),
    (48_961, 32),
    (51_258, 32),
    (53_677, 31),
    (56_230, 30),
    (58_932, 30),
    (61_799, 29),
    (64_851, 28),
    (68_113, 28),
    (71_617, 27),
    (75_401, 26),
    (79_517, 26),
    (84_035, 25),
    (89_053, 24),
];

/// a(w): segments per round trip at a window.
pub fn increase_segments(cwnd: u32) -> u32 {
    // At most 72: the position and one.
    (STEPS.partition_point(|step| step.0 < cwnd).min(STEPS.len() - 1) + 1) as u32
}

/// b(w): the part of a window taken off, in 256ths.
pub fn decrease_256ths(cwnd: u32) -> u32 {
    let step = STEPS.partition_point(|step| step.0 < cwnd).min(STEPS.len() - 1);
    STEPS.get(step).map_or(128, |step| step.1)
}

/// HighSpeed TCP.
#[derive(Debug, Clone, Copy, Default)]
pub struct HighSpeed {
    /// The step for the last window, so that a search is only made where it has changed.
    step: usize,
}

impl HighSpeed {
    /// At the first step.
    pub fn new() -> Self {
        Self::default()
    }

    /// Moves to the step of a window.
    #[inline]
    fn follow(&mut self, cwnd: u32) {
        while STEPS.get(self.step).is_some_and(|step| cwnd > step.0) && self.step + 1 < STEPS.len() {
            self.step += 1;
        }
        while self.step > 0 && STEPS.get(self.step - 1).is_some_and(|below| cwnd <= below.0) {
            self.step -= 1;
        }
    }
}

impl CongestionControl for HighSpeed {
    #[inline]
    fn increase(&mut self, window: &mut Window, acked: &Acked) {
        if window.in_slow_start() {
            window.slow_start(acked.segments);
            return;
        }
        self.follow(window.cwnd);
        // Per ACK, in every kernel: `snd_cwnd_cnt += ai + 1`.
        window.counter += self.step as u32 + 1;
        if window.counter >= window.cwnd {
            window.counter -= window.cwnd;
            window.add(1);
        }
    }

    fn threshold(&mut self, window: &Window, _now: PicoTime) -> u32 {
        // The row of the last ACK in congestion avoidance, as the kernel's module has it: half after slow start.
        let part = STEPS.get(self.step).map_or(128, |step| step.1);
        let cut = (u64::from(window.cwnd) * u64::from(part)) >> 8;
        // The cut is at most half of a u32.
        (window.cwnd - cut as u32).max(2)
    }
}
