//! What a train's arrivals say.
//!
//! ```text
//!   slope = sum (x - X)(y - Y) / sum (x - X)^2       x: time of sending, y: one-way delay, X, Y: means
//!   error = sqrt( sum (residual)^2 / (m - 2) / sum (x - X)^2 )
//! ```
//!
//! over the medians of m = [`GROUPS`] parts of the train, so that a few late stamps change nothing. The offset of
//! the two clocks cancels; a difference of their speeds (100 ppm at most between good ones) stays in the slope.

use crate::units::{BitRate, FrameBytes, PicoDuration};
use alloc::vec::Vec;

/// Parts of a train; fewer when it has fewer than four frames for each.
pub const GROUPS: usize = 32;
/// Times are cut at a thousand seconds, so that no stamp, right or wrong, overflows a sum.
const LIMIT_NS: i64 = 1_000_000_000_000;

/// A frame of a train at its receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// Its number in the train, from 0.
    pub number: u64,
    /// When it was sent, ns of the sender's clock.
    pub sent_ns: u64,
    /// When it arrived, ns of the receiver's clock.
    pub received_ns: u64,
}

/// The figures of a train.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Digest {
    /// Frames that arrived, copies not counted.
    pub received: u64,
    /// Rate at which they were sent, frame level, from first to last that arrived.
    pub sent_rate: Option<BitRate>,
    /// Rate at which they arrived, frame level: the dispersion of the train.
    pub received_rate: Option<BitRate>,
    /// Rate at which they arrived while they arrived steadily: the mean of the middle half of the rates of the
    /// train's parts. Neither a stall of the sender nor a late stamp moves it.
    pub busy_rate: Option<BitRate>,
    /// How the one-way delay grows, ns per ms of sending (ppm).
    pub slope_ppm: i64,
    /// Standard error of the slope, ppm.
    pub slope_error_ppm: u64,
    /// Largest less smallest of the parts' median delays, ns.
    pub rise_ns: u64,
}

/// The figures of the arrivals of a train of frames of `len` bytes, in any order.
pub fn digest(arrivals: &mut Vec<Arrival>, len: FrameBytes) -> Digest {
    arrivals.sort_unstable_by_key(|a| (a.number, a.received_ns));
    arrivals.dedup_by_key(|a| a.number);
    let (Some(first), Some(last)) = (arrivals.first(), arrivals.last()) else {
        return Digest::default();
    };
    let bytes = |frames: u64| frames.saturating_mul(len.get());
    let time = |from: u64, to: u64| PicoDuration::from_ns(to.saturating_sub(from));
    let end = |pick: fn(&Arrival) -> u64| {
        let all = arrivals.iter().map(pick);
        (all.clone().min().unwrap_or(0), all.max().unwrap_or(0))
    };
    let (received_first, received_last) = end(|a| a.received_ns);
    let mut digest = Digest {
        received: arrivals.len() as u64,
        sent_rate: BitRate::of(
            bytes(last.number - first.number),
            time(first.sent_ns, last.sent_ns),
        ),
        received_rate: BitRate::of(
            bytes(arrivals.len() as u64 - 1),
            time(received_first, received_last),
        ),
        ..Digest::default()
    };
    trend(&points(arrivals, first), &mut digest);
    digest.busy_rate = busy_rate(arrivals, len);
    digest
}

fn busy_rate(arrivals: &[Arrival], len: FrameBytes) -> Option<BitRate> {
    let mut times: Vec<u64> = arrivals.iter().map(|a| a.received_ns).collect();
    times.sort_unstable();
    let groups = GROUPS.min(times.len() / 8).max(1);
    let step = (times.len().saturating_sub(1)) / groups;
    let marks = times.iter().step_by(step.max(1)).take(groups + 1);
    let mut spans: Vec<u64> = marks.clone().zip(marks.skip(1)).map(|(a, b)| b - a).collect();
    spans.sort_unstable();
    let middle = spans.get(spans.len() / 4..spans.len() - spans.len() / 4)?;
    let bytes = (middle.len() * step.max(1)) as u64;
    let time = middle.iter().fold(0u64, |sum, span| sum.saturating_add(*span));
    BitRate::of(bytes.saturating_mul(len.get()), PicoDuration::from_ns(time))
}

/// The middle time of sending and the median delay of each part, ns, less those of the first frame.
fn points(arrivals: &[Arrival], first: &Arrival) -> Vec<(i64, i64)> {
    let groups = GROUPS.min(arrivals.len() / 4).max(1);
    let per_group = arrivals.len().div_ceil(groups);
    let less = |a: u64, b: u64| (a.wrapping_sub(b) as i64).clamp(-LIMIT_NS, LIMIT_NS);
    let base = first.received_ns.wrapping_sub(first.sent_ns);
    let mut delays = Vec::with_capacity(per_group);
    let point = |group: &[Arrival]| {
        let (a, b) = (group.first()?, group.last()?);
        let x = less(a.sent_ns, first.sent_ns) + less(b.sent_ns, first.sent_ns);
        delays.clear();
        let delay = |a: &Arrival| less(a.received_ns.wrapping_sub(a.sent_ns), base);
        delays.extend(group.iter().map(delay));
        let middle = delays.len() / 2;
        let (_, median, _) = delays.select_nth_unstable(middle);
        Some((x / 2, *median))
    };
    arrivals.chunks(per_group).filter_map(point).collect()
}

fn trend(points: &[(i64, i64)], digest: &mut Digest) {
    let m = points.len() as i128;
    if m < 3 {
        return;
    }
    let sum = |pick: fn(&(i64, i64)) -> i64| points.iter().map(|p| i128::from(pick(p))).sum::<i128>();
    let (mean_x, mean_y) = (sum(|p| p.0) / m, sum(|p| p.1) / m);
    let about_mean = || {
        points
            .iter()
            .map(|(x, y)| (i128::from(*x) - mean_x, i128::from(*y) - mean_y))
    };
    let xx: i128 = about_mean().map(|(x, _)| x * x).sum();
    let xy: i128 = about_mean().map(|(x, y)| x * y).sum();
    if xx == 0 {
        return;
    }
    let residuals = about_mean()
        .map(|(x, y)| (y - xy * x / xx).pow(2))
        .fold(0i128, i128::saturating_add);
    let variance = residuals.saturating_mul(1_000_000_000_000) / (m - 2) / xx;
    digest.slope_ppm = i64::try_from(xy * 1_000_000 / xx).unwrap_or(i64::MAX);
    digest.slope_error_ppm = u64::try_from(variance.isqrt()).unwrap_or(u64::MAX);
    let delays = || points.iter().map(|(_, y)| *y);
    if let (Some(low), Some(high)) = (delays().min(), delays().max()) {
        digest.rise_ns = high.abs_diff(low);
    }
}
