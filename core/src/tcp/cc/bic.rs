//! BIC: a search for the window at which the last loss was (Xu, Harfoush, Rhee, "Binary increase
//! congestion control for fast long-distance networks", INFOCOM 2004), as Linux 2.6.14 has it
//! (net/ipv4/tcp_bic.c). The most segments a round trip, `max_increment`, are 32 there (and below), 16 from
//! 2.6.14.2 on.
//!
//! ```text
//!   W = last maximum, d = (W - cwnd) / 4
//!   one segment more for every n ACKs (delayed ACKs allowed for):
//!     cwnd <= 14              n = cwnd                    like Reno
//!     d > 32                  n = cwnd / 32               linear, 32 a round trip
//!     1 < d <= 32             n = cwnd / d                binary search, a quarter of the distance
//!     d <= 1                  n = cwnd * 20 / 4           near the maximum, one in five round trips
//!     cwnd < W + 4            n = cwnd * 20 / 4           probing above it
//!     cwnd < W + 96           n = cwnd * 3 / (cwnd - W)
//!     above                   n = cwnd / 32
//!     before the first loss   n <= 20                     5 % a round trip
//!   loss:  W = cwnd, or cwnd (1 + beta) / 2 when it was below the last W
//!          ssthresh = cwnd * 819 / 1024; half at 14 and below
//! ```
//!
//! Slow start ends at 100 segments (`initial_ssthresh`), loss or not: a parameter of the module. The window is looked at again after
//! it has changed or every 1/32 s.

use super::{Acked, CongestionControl};
use crate::{
    tcp::window::Window,
    units::{PicoDuration, PicoTime},
};

const LOW_WINDOW: u32 = 14;
const BETA: u64 = 819;
const BETA_SCALE: u64 = 1_024;
const INITIAL_SSTHRESH: u32 = 100;
const SMOOTH_PART: u32 = 20;
/// Quarter of the distance: `BICTCP_B`.
const B: u32 = 4;
const BEFORE_LOSS_MOST: u32 = 20;
const LOOK_AGAIN: PicoDuration = PicoDuration::from_us(31_250);
/// Delayed ACKs are estimated in 16ths of a segment per ACK, two at first.
const ACK_RATIO_SHIFT: u32 = 4;
const ACK_RATIO_FIRST: u32 = 2 << ACK_RATIO_SHIFT;

/// Binary increase congestion control.
#[derive(Debug, Clone, Copy)]
pub struct Bic {
    every: u32,
    last_max: u32,
    loss_seen: bool,
    looked: Option<(u32, PicoTime)>,
    ack_ratio: u32,
    most: u32,
}

impl Bic {
    /// Before any loss. `most` segments a round trip at most, one at least.
    pub fn new(most: u32) -> Self {
        Bic {
            most: most.max(1),
            every: 0,
            last_max: 0,
            loss_seen: false,
            looked: None,
            ack_ratio: ACK_RATIO_FIRST,
        }
    }

    /// The window at the last loss, reduced where losses come sooner; 0 before any.
    pub fn last_max(&self) -> u32 {
        self.last_max
    }

    #[inline]
    fn update(&mut self, cwnd: u32, now: PicoTime) {
        if self
            .looked
            .is_some_and(|(at, when)| at == cwnd && now - when <= LOOK_AGAIN)
        {
            return;
        }
        self.looked = Some((cwnd, now));
        if cwnd <= LOW_WINDOW {
            self.every = cwnd;
            return;
        }
        let mut every = steps(cwnd, self.last_max, self.most);
        if !self.loss_seen {
            every = every.min(BEFORE_LOSS_MOST);
        }
        self.every = ((every << ACK_RATIO_SHIFT) / self.ack_ratio.max(1)).max(1);
    }
}

/// ACKs for one segment more at a window above the low one.
fn steps(cwnd: u32, last_max: u32, most: u32) -> u32 {
    if cwnd < last_max {
        match (last_max - cwnd) / B {
            distance if distance > most => cwnd / most,
            0 | 1 => cwnd * SMOOTH_PART / B,
            distance => cwnd / distance,
        }
    } else {
        match cwnd - last_max {
            above if above < B => cwnd * SMOOTH_PART / B,
            above if above < most * (B - 1) => cwnd * (B - 1) / above,
            _ => cwnd / most,
        }
    }
}

impl CongestionControl for Bic {
    fn init(&mut self, window: &mut Window) {
        window.ssthresh = INITIAL_SSTHRESH;
    }

    #[inline]
    fn measured(&mut self, _window: &mut Window, acked: &Acked) {
        if acked.open {
            let ratio = self.ack_ratio + acked.segments - (self.ack_ratio >> ACK_RATIO_SHIFT);
            self.ack_ratio = ratio;
        }
    }

    #[inline]
    fn increase(&mut self, window: &mut Window, acked: &Acked) {
        let segments = window.beyond_slow_start(acked.segments);
        if segments == 0 {
            return;
        }
        self.update(window.cwnd, acked.now);
        window.grow(self.every, segments);
    }

    fn threshold(&mut self, window: &Window, _now: PicoTime) -> u32 {
        let cwnd = u64::from(window.cwnd);
        // Both are below the window, a u32.
        self.last_max = match window.cwnd < self.last_max {
            true => (cwnd * (BETA_SCALE + BETA) / (2 * BETA_SCALE)) as u32,
            false => window.cwnd,
        };
        self.loss_seen = true;
        let left = match window.cwnd <= LOW_WINDOW {
            true => window.cwnd / 2,
            false => (cwnd * BETA / BETA_SCALE) as u32,
        };
        left.max(2)
    }

    fn timed_out(&mut self) {
        *self = Bic::new(self.most);
    }

    fn target(&self) -> Option<u32> {
        Some(self.last_max)
    }

    fn least(&self, ssthresh: u32) -> u32 {
        ssthresh
    }
}
