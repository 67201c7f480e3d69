//! H-TCP (Leith, Shorten, "H-TCP: TCP for high-speed and long-distance networks", PFLDnet 2004; Linux
//! net/ipv4/tcp_htcp.c).
//!
//! With D seconds since the last loss:
//!
//! ```text
//!   a(D) = 1                                        D <= 1
//!        = 1 + 10 (D - 1) + ((D - 1) / 2)^2         D > 1
//!   scaled by RTT / 100 ms (between 1/10 and 2),    cwnd += 2 (1 - b) a / cwnd per segment
//!   b = RTT_min / RTT_max in 0.5 .. 0.8,            0.5 when the throughput changed by over a fifth
//!   loss: ssthresh = b cwnd
//! ```
//!
//! a and b are kept in 128ths, times in milliseconds, as the kernel does.

use super::{Acked, CongestionControl};
use crate::{
    tcp::window::Window,
    units::{PicoDuration, PicoTime},
};

const ONE: u64 = 128;
const BETA_MIN: u64 = 64;
const BETA_MAX: u64 = 102;
/// b adapts above this RTT only.
const RTT_LOW_MS: u64 = 10;
/// A longest RTT more than this above the last is not believed.
const RTT_STEP_MS: u64 = 20;
/// Round trips after a loss before throughput and longest RTT are believed.
const SETTLED_ROUNDS: u64 = 3;

/// H-TCP.
#[derive(Debug, Clone, Copy)]
pub struct Htcp {
    alpha: u64,
    beta: u64,
    adaptive: bool,
    /// Segments of the ACK that is being taken in.
    segments: u32,
    least_ms: u64,
    most_ms: u64,
    last_loss: PicoTime,
    counted: u64,
    counted_since: PicoTime,
    /// Throughput, segments per second: smoothed, largest now, largest before the last loss.
    rate: u64,
    rate_most: u64,
    rate_before: u64,
}

impl Default for Htcp {
    fn default() -> Self {
        Self::new()
    }
}

impl Htcp {
    /// Before any loss.
    pub fn new() -> Self {
        Htcp {
            alpha: ONE,
            beta: BETA_MIN,
            adaptive: false,
            segments: 1,
            least_ms: 0,
            most_ms: 0,
            last_loss: PicoTime::ZERO,
            counted: 0,
            counted_since: PicoTime::ZERO,
            rate: 0,
            rate_most: 0,
            rate_before: 0,
        }
    }

    /// a in 128ths.
    pub fn alpha_128ths(&self) -> u64 {
        self.alpha
    }

    /// b in 128ths.
    pub fn beta_128ths(&self) -> u64 {
        self.beta
    }

    fn rounds(&self, now: PicoTime) -> u64 {
        (now - self.last_loss).as_ms() / self.least_ms.max(1)
    }

    fn update_alpha(&mut self, now: PicoTime) {
        let since_ms = (now - self.last_loss).as_ms().min(1_000_000);
        let mut factor = 1;
        if since_ms > 1_000 {
            let d = since_ms - 1_000;
            factor = 1 + (10 * d + (d / 2) * (d / 2) / 1_000) / 1_000;
        }
        if self.least_ms > 0 {
            let scale = (8_000 / (10 * self.least_ms)).clamp(1 << 2, 10 << 3);
            factor = ((factor << 3) / scale).max(1);
        }
        self.alpha = match 2 * factor * (ONE - self.beta) {
            0 => ONE,
            alpha => alpha,
        };
    }

    fn update_beta(&mut self) {
        let before = self.rate_before;
        self.rate_before = self.rate_most;
        let steady = (4 * before..=6 * before).contains(&(5 * self.rate_most));
        if !steady {
            self.beta = BETA_MIN;
            self.adaptive = false;
            return;
        }
        if self.adaptive && self.least_ms > RTT_LOW_MS && self.most_ms > 0 {
            self.beta = (self.least_ms * ONE / self.most_ms).clamp(BETA_MIN, BETA_MAX);
        } else {
            self.beta = BETA_MIN;
            self.adaptive = true;
        }
    }

    /// Throughput of whole windows, smoothed by a quarter.
    fn count(&mut self, window: &Window, acked: &Acked) {
        if !acked.open {
            self.counted = 0;
            self.counted_since = acked.now;
            return;
        }
        self.counted += u64::from(acked.segments);
        let whole = u64::from(window.cwnd).saturating_sub((self.alpha / ONE).max(1));
        let time_ms = (acked.now - self.counted_since).as_ms();
        if self.counted < whole || self.least_ms == 0 || time_ms < self.least_ms {
            return;
        }
        let rate = self.counted * 1_000 / time_ms.max(1);
        if self.rounds(acked.now) <= SETTLED_ROUNDS {
            self.rate = rate;
            self.rate_most = rate;
        } else {
            self.rate = (3 * self.rate + rate) / 4;
            self.rate_most = self.rate_most.max(self.rate);
        }
        self.counted = 0;
        self.counted_since = acked.now;
    }

    fn watch_rtt(&mut self, window: &Window, acked: &Acked) {
        let Some(smoothed_ms) = acked.smoothed_rtt.map(PicoDuration::as_ms) else {
            return;
        };
        if self.least_ms == 0 || smoothed_ms < self.least_ms {
            self.least_ms = smoothed_ms;
        }
        let settled = self.rounds(acked.now) > SETTLED_ROUNDS && window.ssthresh != u32::MAX;
        if acked.open && settled {
            self.most_ms = self.most_ms.max(self.least_ms);
            if self.most_ms < smoothed_ms && smoothed_ms <= self.most_ms + RTT_STEP_MS {
                self.most_ms = smoothed_ms;
            }
        }
    }
}

impl CongestionControl for Htcp {
    #[inline]
    fn measured(&mut self, window: &mut Window, acked: &Acked) {
        self.segments = acked.segments.max(1);
        self.watch_rtt(window, acked);
        self.count(window, acked);
    }

    #[inline]
    fn increase(&mut self, window: &mut Window, acked: &Acked) {
        if window.in_slow_start() {
            window.slow_start(acked.segments);
            return;
        }
        if u64::from(window.counter) * self.alpha / ONE >= u64::from(window.cwnd) {
            window.add(1);
            window.counter = 0;
            self.update_alpha(acked.now);
        } else {
            window.counter += self.segments;
        }
    }

    fn threshold(&mut self, window: &Window, now: PicoTime) -> u32 {
        self.update_beta();
        self.update_alpha(now);
        if self.least_ms > 0 && self.most_ms > self.least_ms {
            self.most_ms = self.least_ms + (self.most_ms - self.least_ms) * 95 / 100;
        }
        self.last_loss = now;
        // b is below one.
        ((u64::from(window.cwnd) * self.beta / ONE) as u32).max(2)
    }
}
