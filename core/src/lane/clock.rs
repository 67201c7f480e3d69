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
//! The drift is the slope of the least `d` of windows of [`WINDOW_NS`], by least squares over the last [`POINTS`] of them, on the
//! lane that varies least (the least delays of a path do not change while its queue empties now and then: Paxson,
//! "On calibrating measurements of packet transit times", SIGMETRICS 1998). A step of a path's delay begins a new fit. A new slope
//! turns the line about the latest stamp, so that the play-out never jumps.

use alloc::collections::VecDeque;

/// Length of a window of which the least delay is a point of the fit, ns.
pub const WINDOW_NS: i64 = 100_000_000;
/// Most points of the fit.
const POINTS: usize = 64;
/// Points before a slope is believed.
const POINTS_LEAST: usize = 16;
/// Largest drift, parts in 10^9: crystals are within 100 ppm, and two of them differ by twice that.
pub const DRIFT_MAX_PPB: i64 = 200_000;
/// A change from one window to the next beyond this (and beyond the lane's spread) is a step of the path, ns.
const STEP_NS: i64 = 100_000;

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
}

impl Trend {
    /// A packet stamped `stamp_ns` arrived at `local_ns`. Says whether a window is complete. `spread_ns` is how much the lane varies.
    pub fn observe(&mut self, stamp_ns: i64, local_ns: i64, spread_ns: i64, drift_ppb: i64) -> bool {
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
        if let Some((x, y)) = self.points.back() {
            let since = i128::from(point.0) - i128::from(*x);
            let expected = i128::from(*y) + since * i128::from(drift_ppb) / PPB;
            let largest = i128::from(STEP_NS) + i128::from(spread_ns.max(0));
            if (i128::from(point.1) - expected).abs() > largest {
                self.points.clear();
            }
        }
        if self.points.len() == POINTS {
            self.points.pop_front();
        }
        self.points.push_back(point);
        true
    }

    /// The slope in parts of 10^9, when there are points enough.
    pub fn slope_ppb(&self) -> Option<i64> {
        if self.points.len() < POINTS_LEAST {
            return None;
        }
        let n = self.points.len() as i128;
        let (x0, y0) = *self.points.front()?;
        let relative = || {
            self.points
                .iter()
                .map(move |(x, y)| (i128::from(*x) - i128::from(x0), i128::from(*y) - i128::from(y0)))
        };
        let (sx, sy) = relative().fold((0, 0), |(sx, sy), (x, y)| (sx + x, sy + y));
        // n times the deviations, so that means need no division.
        let (mut xx, mut xy) = (0i128, 0i128);
        for (x, y) in relative() {
            let dx = n.checked_mul(x)?.checked_sub(sx)?;
            let dy = n.checked_mul(y)?.checked_sub(sy)?;
            xx = xx.checked_add(dx.checked_mul(dx)?)?;
            xy = xy.checked_add(dx.checked_mul(dy)?)?;
        }
        let slope = xy.checked_mul(PPB)?.checked_div(xx)?;
        Some(slope.clamp(i128::from(-DRIFT_MAX_PPB), i128::from(DRIFT_MAX_PPB)) as i64)
    }
}
