//! CUBIC (RFC 9438; Linux net/ipv4/tcp_cubic.c).
//!
//! ```text
//!   W(t) = C (t - K)^3 + W_max,  K = cbrt((W_max - cwnd at the start) / C),  C = 0.4, t in seconds
//!   target W(t + least RTT); one segment more for every cwnd / (target - cwnd) acknowledged
//!   never slower than Reno with the same cut: every 8 / 15 cwnd a segment (3 (1 - b) / (1 + b) per RTT)
//!   loss:  W_max = cwnd, or cwnd (1 + b) / 2 when it was below the last W_max;  ssthresh = b cwnd,
//!          b = 717 / 1024
//! ```
//!
//! Time is counted in milliseconds, so C (ms)^3 is 4e-10 segments.

use super::{Acked, CongestionControl, hystart::HyStart};
use crate::{tcp::window::Window, units::PicoTime};

const BETA: u64 = 717;
const BETA_SCALE: u64 = 1_024;
/// 1 / C in (ms)^3 per segment.
const MS3_PER_SEGMENT: u64 = 2_500_000_000;
/// Reno's step for this beta: `8 * (1024 + 717) / 3 / (1024 - 717)` eighths of a window per segment.
const FRIENDLY_EIGHTHS: u64 = 8 * (BETA_SCALE + BETA) / 3 / (BETA_SCALE - BETA);
/// Longest time that the polynomial is asked for: its value is beyond any window long before.
const TIME_MAX_MS: u64 = 1_000_000;
/// How often the polynomial is looked at when the window has not changed (HZ / 32).
const LOOK_AGAIN_MS: u64 = 31;

/// CUBIC.
#[derive(Debug, Clone, Copy)]
pub struct Cubic {
    last_max: u32,
    /// Start of the epoch, ms; `None` until the first growth after a loss.
    epoch_ms: Option<u64>,
    origin: u32,
    k_ms: u64,
    every: u32,
    looked: (u32, u64),
    ack_count: u64,
    friendly: u32,
    hystart: Option<HyStart>,
}

impl Cubic {
    /// Before any loss, with HyStart or without.
    pub fn new(hystart: bool) -> Self {
        Cubic {
            last_max: 0,
            epoch_ms: None,
            origin: 0,
            k_ms: 0,
            every: 0,
            looked: (0, 0),
            ack_count: 0,
            friendly: 0,
            hystart: hystart.then(HyStart::new),
        }
    }

    fn begin(&mut self, cwnd: u32, now_ms: u64, segments: u32) {
        self.epoch_ms = Some(now_ms);
        self.ack_count = u64::from(segments);
        self.friendly = cwnd;
        if self.last_max <= cwnd {
            self.k_ms = 0;
            self.origin = cwnd;
        } else {
            self.k_ms = cube_root(u64::from(self.last_max - cwnd) * MS3_PER_SEGMENT);
            self.origin = self.last_max;
        }
    }

    #[inline]
    fn update(&mut self, cwnd: u32, acked: &Acked) {
        let now_ms = acked.now.as_ms();
        self.ack_count += u64::from(acked.segments);
        if self.looked.0 == cwnd && now_ms.saturating_sub(self.looked.1) <= LOOK_AGAIN_MS {
            return;
        }
        // Within a millisecond only Reno's pace is looked at again.
        if self.epoch_ms.is_none() || now_ms != self.looked.1 {
            let epoch = match self.epoch_ms {
                Some(epoch) => epoch,
                None => {
                    self.begin(cwnd, now_ms, acked.segments);
                    now_ms
                }
            };
            let least_rtt_ms = acked.least_rtt.map_or(0, |rtt| rtt.as_ms());
            let t = (now_ms.saturating_sub(epoch) + least_rtt_ms).min(TIME_MAX_MS);
            self.every = self.towards(cwnd, t);
        }
        self.looked = (cwnd, now_ms);
        self.every = self.every.min(self.reno(cwnd)).max(2);
    }

    /// Segments for one more at time `t_ms` of the epoch.
    fn towards(&self, cwnd: u32, t_ms: u64) -> u32 {
        let distance = t_ms.abs_diff(self.k_ms).min(TIME_MAX_MS);
        let delta = distance * distance * distance / MS3_PER_SEGMENT;
        let origin = u64::from(self.origin);
        let target = match t_ms < self.k_ms {
            true => origin.saturating_sub(delta),
            false => origin + delta,
        };
        let cwnd64 = u64::from(cwnd);
        let every = match target.checked_sub(cwnd64) {
            Some(gap) if gap > 0 => cwnd64 / gap,
            _ => 100 * cwnd64,
        };
        let every = u32::try_from(every).unwrap_or(u32::MAX);
        if self.last_max == 0 { every.min(20) } else { every }
    }

    /// Segments for one more to keep up with Reno; no bound when ahead of it.
    fn reno(&mut self, cwnd: u32) -> u32 {
        let step = (u64::from(cwnd) * FRIENDLY_EIGHTHS / 8).max(1);
        let steps = self.ack_count.saturating_sub(1) / step;
        self.ack_count -= steps * step;
        self.friendly = self
            .friendly
            .saturating_add(u32::try_from(steps).unwrap_or(u32::MAX));
        match self.friendly.checked_sub(cwnd) {
            Some(behind) if behind > 0 => cwnd / behind,
            _ => u32::MAX,
        }
    }
}

/// The cube root, rounded down.
pub fn cube_root(value: u64) -> u64 {
    let (mut low, mut high) = (0u64, 2_642_245);
    while low < high {
        let middle = (low + high).div_ceil(2);
        if middle * middle * middle <= value {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    low
}

impl CongestionControl for Cubic {
    #[inline]
    fn measured(&mut self, window: &mut Window, acked: &Acked) {
        if let Some(hystart) = &mut self.hystart
            && hystart.ends(window, acked)
        {
            window.ssthresh = window.cwnd;
        }
    }

    #[inline]
    fn increase(&mut self, window: &mut Window, acked: &Acked) {
        let mut acked = *acked;
        acked.segments = window.beyond_slow_start(acked.segments);
        if acked.segments == 0 {
            return;
        }
        self.update(window.cwnd, &acked);
        window.grow(self.every, acked.segments);
    }

    fn threshold(&mut self, window: &Window, _now: PicoTime) -> u32 {
        self.epoch_ms = None;
        let cwnd = u64::from(window.cwnd);
        // Both are below the window, a u32.
        self.last_max = match window.cwnd < self.last_max {
            true => (cwnd * (BETA_SCALE + BETA) / (2 * BETA_SCALE)) as u32,
            false => window.cwnd,
        };
        ((cwnd * BETA / BETA_SCALE) as u32).max(2)
    }

    fn target(&self) -> Option<u32> {
        Some(self.last_max)
    }

    fn timed_out(&mut self) {
        *self = Cubic::new(self.hystart.is_some());
    }

    fn least(&self, ssthresh: u32) -> u32 {
        ssthresh
    }
}
