//! The start-up of a run: bytes over time, and how long it took to reach the full rate.
//!
//! Points are taken every 100 ms. When there are more than [`MAX_POINTS`], every second one goes and the
//! step doubles, so a run of any length keeps its whole shape. In slow start data leaves in bursts of one
//! window per round trip, so rates are taken over at least one round trip:
//!
//! ```text
//! window   = least multiple of the step that holds one RTT
//! plateau  = median of the windows' rates in the second half of the run
//! full     = end of the first window whose rate is 90 % of the plateau
//! ```

use serde::Serialize;

/// Points kept at most.
pub const MAX_POINTS: usize = 1200;
/// Share of the plateau that counts as the full rate, percent.
pub const FULL_PERCENT: u64 = 90;

/// Payload bytes that had arrived at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// Since the begin of the data, nanoseconds.
    pub at_ns: u64,
    /// Payload bytes acknowledged (at a sender) or read (at a receiver).
    pub bytes: u64,
}

/// How a run began.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FullRate {
    /// Goodput of the plateau.
    pub plateau_goodput_bps: u64,
    /// When the rate first was 90 % of it, seconds since the begin of the data.
    pub time_to_full_rate_s: f64,
    /// Time over which rates were taken, seconds.
    pub rate_window_s: f64,
}

/// The points of a run.
#[derive(Clone, Debug)]
pub struct Curve {
    points: Vec<Point>,
    stride: u64,
    skipped: u64,
}

impl Default for Curve {
    fn default() -> Self {
        Self {
            points: Vec::new(),
            stride: 1,
            skipped: 0,
        }
    }
}

impl Curve {
    /// Adds a point, later than all before.
    pub fn push(&mut self, point: Point) {
        if self.points.last().is_some_and(|last| last.at_ns >= point.at_ns) {
            return;
        }
        self.skipped += 1;
        if !self.points.is_empty() && self.skipped < self.stride {
            return;
        }
        self.skipped = 0;
        self.points.push(point);
        if self.points.len() > MAX_POINTS {
            let mut even = false;
            self.points.retain(|_| {
                even = !even;
                even
            });
            self.stride *= 2;
        }
    }

    /// The points, earliest first.
    pub fn points(&self) -> &[Point] {
        &self.points
    }

    /// The time to the full rate; `None` for a run of fewer than four windows or without data.
    pub fn full_rate(&self, rtt_ns: u64) -> Option<FullRate> {
        let (first, last) = (self.points.first()?, self.points.last()?);
        let steps = u64::try_from(self.points.len()).ok()?.checked_sub(1)?;
        let step_ns = (last.at_ns - first.at_ns).checked_div(steps).filter(|s| *s > 0)?;
        let wide = usize::try_from(rtt_ns.div_ceil(step_ns).max(1)).ok()?;
        if self.points.len() < wide.checked_mul(4)?.checked_add(1)? {
            return None;
        }
        let rate = |pair: (&Point, &Point)| {
            let (a, b) = pair;
            let bits = 8 * u128::from(b.bytes.saturating_sub(a.bytes)) * 1_000_000_000;
            u64::try_from(bits / u128::from((b.at_ns - a.at_ns).max(1))).unwrap_or(u64::MAX)
        };
        let pairs = || self.points.iter().zip(self.points.iter().skip(wide));
        let half_ns = first.at_ns + (last.at_ns - first.at_ns) / 2;
        let mut late: Vec<u64> = pairs().filter(|(a, _)| a.at_ns >= half_ns).map(rate).collect();
        late.sort_unstable();
        let plateau = *late.get(late.len() / 2)?;
        let enough = u128::from(plateau) * u128::from(FULL_PERCENT);
        let full = pairs().find(|pair| plateau > 0 && u128::from(rate(*pair)) * 100 >= enough)?;
        Some(FullRate {
            plateau_goodput_bps: plateau,
            time_to_full_rate_s: full.1.at_ns as f64 / 1e9,
            rate_window_s: (full.1.at_ns - full.0.at_ns) as f64 / 1e9,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: u64 = 100_000_000;

    fn curve(ticks: u64, bytes: impl Fn(u64) -> u64) -> Curve {
        let mut curve = Curve::default();
        for tick in 0..=ticks {
            curve.push(Point {
                at_ns: tick * STEP,
                bytes: bytes(tick),
            });
        }
        curve
    }

    #[test]
    fn a_constant_rate_is_full_after_the_first_window() {
        let full = curve(100, |t| t * 1_250_000).full_rate(0).expect("a rate");
        assert_eq!(full.plateau_goodput_bps, 100_000_000);
        assert_eq!(full.time_to_full_rate_s, 0.1);
    }

    #[test]
    fn a_ramp_of_two_seconds_is_found() {
        // Ten times slower for two seconds.
        let full = curve(100, |t| {
            if t < 20 {
                t * 1000
            } else {
                20_000 + (t - 20) * 10_000
            }
        })
        .full_rate(0)
        .expect("a rate");
        assert_eq!(full.time_to_full_rate_s, 2.1);
        assert_eq!(full.plateau_goodput_bps, 800_000);
    }

    #[test]
    fn a_burst_within_a_round_trip_is_not_the_full_rate() {
        // RTT 400 ms: a burst in every fourth step. Half the plateau's bytes each, for two seconds.
        let bytes = |t: u64| {
            if t < 20 {
                t.div_ceil(4) * 20_000
            } else {
                100_000 + (t - 20) * 10_000
            }
        };
        let curve = curve(100, bytes);
        assert_eq!(curve.full_rate(0).expect("a rate").time_to_full_rate_s, 0.1);
        let full = curve.full_rate(4 * STEP).expect("a rate");
        assert_eq!(full.rate_window_s, 0.4);
        assert!(full.time_to_full_rate_s >= 2.3, "{full:?}");
    }

    #[test]
    fn too_short_or_empty_runs_have_no_answer() {
        assert_eq!(curve(3, |t| t).full_rate(0), None);
        assert_eq!(curve(100, |_| 0).full_rate(0), None);
        assert_eq!(Curve::default().full_rate(u64::MAX), None);
        assert_eq!(curve(15, |t| t * 1000).full_rate(4 * STEP), None);
        assert!(curve(16, |t| t * 1000).full_rate(4 * STEP).is_some());
    }

    #[test]
    fn a_long_run_keeps_its_whole_shape() {
        let curve = curve(100_000, |t| t * 1000);
        assert!(curve.points().len() <= MAX_POINTS);
        assert!(curve.points().len() > MAX_POINTS / 2);
        assert_eq!(curve.points()[0].at_ns, 0);
        let last = curve.points()[curve.points().len() - 1];
        assert!(last.at_ns > 99_000 * STEP, "{last:?}");
        assert_eq!(curve.full_rate(0).expect("a rate").plateau_goodput_bps, 80_000);
    }
}
