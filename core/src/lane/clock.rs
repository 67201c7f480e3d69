//! The peer's clock as seen on ours, from its stamps alone.
//!
//! A stamp `s` of the peer arrives at `a` of our clock: `d = a - s` is the one-way delay plus the difference of the clocks. The
//! difference is never known exactly and need not be: what counts is how `d` changes.
//!
//! ```text
//!   at(s) = anchor_local + (s - anchor_stamp) * (1 + drift_ppb / 10^9)         our clock's time for a stamp, up to a constant
//!   delay  = a - at(s)                                                         of a lane, up to the same constant for all lanes
//! ```
//!
//! **Drift.** Points are the least `d` of windows of [`WINDOW_NS`] on the lane that varies least (the least delays of a path do not
//! change while its queue empties now and then: Paxson, "On calibrating measurements of packet transit times", SIGMETRICS 1998); the last
//! [`POINTS`] of them are kept. A machine that stalls between a stamp and the sending gives a point that is wrong by any amount, so
//! the slope is the median of those between points half the memory apart (Theil's incomplete method, 1950):
//!
//! ```text
//!   slope_i = (d[i + n/2] - d[i]) / (s[i + n/2] - s[i])         drift = median of the n/2 slopes
//!   error  <= e / half    e: how much the sound points vary; half: the least time between the points of a pair (3.2 s when all are there)
//! ```
//!
//! as long as less than a quarter of the points is wrong, since a wrong point spoils one pair and half of the pairs decide. When most of the latest
//! points are far off the line on one side, the path's delay has made a step: the fit begins anew with these. A new slope
//! turns the line about the latest stamp, so that the play-out never jumps.

use alloc::{collections::VecDeque, vec::Vec};

/// Length of a window of which the least delay is a point of the fit, ns.
pub const WINDOW_NS: i64 = 100_000_000;
/// Most points of the fit.
const POINTS: usize = 64;
/// Points before a slope is believed.
const POINTS_LEAST: usize = 16;
/// Largest drift, parts in 10^9: crystals are within 100 ppm, and two of them differ by twice that.
pub const DRIFT_MAX_PPB: i64 = 200_000;
/// A point further than this from the line (and than four times what is usual) is off it, ns.
const STEP_NS: i64 = 100_000;
/// So many of so many latest points far off the line on one side are a step of the path.
const STEP_POINTS: usize = 7;
const STEP_OF: usize = 10;

const PPB: i128 = 1_000_000_000;

fn clamp(value: i128) -> i64 {
    value.clamp(i128::from(i64::MIN / 4), i128::from(i64::MAX / 4)) as i64
}

/// The peer's stamps on our clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct StampClock {
    anchor: Option<(i64, i64)>,
    drift_ppb: i64,
}

impl StampClock {
    /// Takes the first stamp as the anchor: its delay counts as 0.
    pub fn start(&mut self, stamp_ns: i64, local_ns: i64) {
        self.anchor.get_or_insert((stamp_ns, local_ns));
    }

    /// Our clock's time of a stamp, up to a constant, ns.
    #[inline]
    pub fn at(&self, stamp_ns: i64) -> i64 {
        let Some((stamp, local)) = self.anchor else {
            return stamp_ns;
        };
        let since = i128::from(stamp_ns) - i128::from(stamp);
        clamp(i128::from(local) + since + since * i128::from(self.drift_ppb) / PPB)
    }

    /// A lane's delay, up to the constant, ns.
    #[inline]
    pub fn delay(&self, stamp_ns: i64, local_ns: i64) -> i64 {
        clamp(i128::from(local_ns) - i128::from(self.at(stamp_ns)))
    }

    /// How much faster our clock runs, parts in 10^9.
    pub fn drift_ppb(&self) -> i64 {
        self.drift_ppb
    }

    /// Sets the drift, turning about a stamp.
    pub fn set_drift(&mut self, stamp_ns: i64, drift_ppb: i64) {
        if self.anchor.is_some() && drift_ppb != self.drift_ppb {
            self.anchor = Some((stamp_ns, self.at(stamp_ns)));
            self.drift_ppb = drift_ppb.clamp(-DRIFT_MAX_PPB, DRIFT_MAX_PPB);
        }
    }
}

/// The slope of one lane's least delays.
#[derive(Debug, Clone, Default)]
pub struct Trend {
    points: VecDeque<(i64, i64)>,
    /// Start of the window by our clock, its least difference and the stamp of that.
    window: Option<(i64, i64, i64)>,
    line: Option<Line>,
}

/// What the points say.
#[derive(Debug, Clone, Copy)]
struct Line {
    slope_ppb: i64,
    /// A place on it.
    at: (i64, i64),
    /// Half of the points are within.
    usual_ns: i64,
}

impl Line {
    /// How far a point is above.
    fn above(&self, (x, y): (i64, i64)) -> i64 {
        let since = i128::from(x) - i128::from(self.at.0);
        clamp(i128::from(y) - i128::from(self.at.1) - since * i128::from(self.slope_ppb) / PPB)
    }
}

impl Trend {
    /// A packet stamped `stamp_ns` arrived at `local_ns`. Says whether a window is complete.
    pub fn observe(&mut self, stamp_ns: i64, local_ns: i64) -> bool {
        let difference = clamp(i128::from(local_ns) - i128::from(stamp_ns));
        let Some((start, least, at)) = &mut self.window else {
            self.window = Some((local_ns, difference, stamp_ns));
            return false;
        };
        if local_ns.saturating_sub(*start) < WINDOW_NS {
            if difference < *least {
                (*least, *at) = (difference, stamp_ns);
            }
            return false;
        }
        let point = (*at, *least);
        self.window = Some((local_ns, difference, stamp_ns));
        self.take(point);
        true
    }

    fn take(&mut self, point: (i64, i64)) {
        if self.points.len() == POINTS {
            self.points.pop_front();
        }
        self.points.push_back(point);
        if let Some(line) = self.line {
            let far = STEP_NS.saturating_add(line.usual_ns.saturating_mul(4));
            let latest = self.points.len().saturating_sub(STEP_OF);
            for side in [1, -1] {
                let is_off = |point: &&(i64, i64)| line.above(**point) * side > far;
                let off: VecDeque<_> = self.points.iter().skip(latest).filter(is_off).copied().collect();
                if off.len() >= STEP_POINTS {
                    self.points = off;
                    break;
                }
            }
        }
        self.line = self.fit();
    }

    fn fit(&self) -> Option<Line> {
        let n = self.points.len();
        if n < POINTS_LEAST {
            return None;
        }
        let pairs = self.points.iter().zip(self.points.iter().skip(n / 2));
        let mut slopes: Vec<i64> = pairs
            .filter_map(|((x0, y0), (x1, y1))| {
                let rise = (i128::from(*y1) - i128::from(*y0)) * PPB;
                let slope = rise.checked_div(i128::from(*x1) - i128::from(*x0))?;
                Some(slope.clamp(i128::from(-DRIFT_MAX_PPB), i128::from(DRIFT_MAX_PPB)) as i64)
            })
            .collect();
        let mut line = Line {
            slope_ppb: median(&mut slopes)?,
            at: *self.points.front()?,
            usual_ns: 0,
        };
        let mut above: Vec<i64> = self.points.iter().map(|point| line.above(*point)).collect();
        let middle = median(&mut above)?;
        line.at.1 = line.at.1.saturating_add(middle);
        above
            .iter_mut()
            .for_each(|off| *off = off.saturating_sub(middle).saturating_abs());
        line.usual_ns = median(&mut above)?;
        Some(line)
    }

    /// The slope in parts of 10^9, when there are points enough.
    pub fn slope_ppb(&self) -> Option<i64> {
        self.line.map(|line| line.slope_ppb)
    }
}

/// The middle of these; of an even number the lower one.
fn median(values: &mut [i64]) -> Option<i64> {
    let middle = values.len().checked_sub(1)? / 2;
    Some(*values.select_nth_unstable(middle).1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What sound points vary by, ns.
    const NOISE_NS: i64 = 20_000;
    /// Between packets: each is a window of its own, so that nothing better is there, ns.
    const EVERY_NS: i64 = 250_000_000;
    /// Of so many packets one is wrong.
    const GROUP: usize = 6;

    proptest! {
        /// One packet of six is wrong by a stall of 5 to 50 ms: late (between its stamp and its sending), or early (a clock that was read before
        /// the stall told when it arrived). In the middle the path may make a step.
        #[test]
        fn stalls_do_not_mislead_the_drift(
            drift_ppb in -100_000..100_000i64,
            stalls in prop::collection::vec((0..GROUP, 5_000_000..50_000_000i64, any::<bool>()), 36),
            noise in prop::collection::vec(0..=NOISE_NS, 200),
            step_ns in prop_oneof![Just(0), 500_000..2_000_000i64, -2_000_000..-500_000i64],
        ) {
            let mut trend = Trend::default();
            for (n, noise) in noise.into_iter().enumerate() {
                let stamp = n as i64 * EVERY_NS;
                let path = 30_000_000 + if n >= 100 { step_ns } else { 0 };
                let (place, stall, late) = stalls[n / GROUP];
                let wrong = if place != n % GROUP { 0 } else if late { stall } else { -stall };
                let ours = stamp + clamp(i128::from(stamp) * i128::from(drift_ppb) / PPB);
                trend.observe(stamp, ours + path + noise + wrong);
                // Of 32 points in a row at most seven are wrong, which is less than a quarter.
                let settled = n > 33 && !(100..=150).contains(&n);
                if settled {
                    let half_ns = (trend.points.len() / 2) as i64 * EVERY_NS;
                    let bound = NOISE_NS * 1_000_000_000 / half_ns + 1;
                    let slope = trend.slope_ppb().expect("points enough");
                    prop_assert!((slope - drift_ppb).abs() <= bound, "packet {n}: {slope} for {drift_ppb}, bound {bound}");
                }
            }
        }
    }
}
