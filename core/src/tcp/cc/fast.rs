//! FAST TCP: the window that keeps alpha segments in queues (Jin, Wei, Low, "FAST TCP: motivation,
//! architecture, algorithms, performance", INFOCOM 2004, equation 2).
//!
//! ```text
//!   once a round trip:   w = min(2 w, (1 - g) w + g (RTT_least / RTT w + alpha)),   g = 1/2
//!   loss:                ssthresh = w / 2
//! ```
//!
//! RTT is the mean of the round's samples. Slow start is the window rule itself, which at most doubles, and
//! runs from the first round; after a loss it goes on from half. In equilibrium RTT / RTT_least = w / (w - alpha):
//! every stream holds alpha segments in queues. alpha is a parameter of the run and stated with it.

use super::{Acked, CongestionControl};
use crate::{
    tcp::window::Window,
    units::{PicoDuration, PicoTime},
};

/// The alpha of a stream that states none: 200 segments, the paper's for 1 Gbps paths.
pub const FAST_ALPHA: u32 = 200;

/// FAST TCP.
#[derive(Debug, Clone, Copy)]
pub struct Fast {
    alpha: u32,
    round_ends: u64,
    sum: PicoDuration,
    samples: u64,
}

impl Fast {
    /// With alpha segments kept in queues.
    pub fn new(alpha: u32) -> Self {
        Fast {
            alpha: alpha.max(1),
            round_ends: 0,
            sum: PicoDuration::ZERO,
            samples: 0,
        }
    }

    fn target(&self, cwnd: u32, mean: PicoDuration, least: PicoDuration) -> u32 {
        let w = u128::from(cwnd);
        let kept = w * u128::from(least.as_ps()) / u128::from(mean.as_ps().max(1));
        let next = (w + kept + u128::from(self.alpha)) / 2;
        u32::try_from(next.min(2 * w)).unwrap_or(u32::MAX)
    }
}

impl CongestionControl for Fast {
    #[inline]
    fn measured(&mut self, window: &mut Window, acked: &Acked) {
        if let Some(rtt) = acked.rtt {
            self.sum += rtt;
            self.samples += 1;
        }
        if acked.acked_to < self.round_ends {
            return;
        }
        if let Some(least) = acked.least_rtt
            && acked.open
            && let Some(mean) = self.sum.as_ps().checked_div(self.samples)
        {
            let next = self.target(window.cwnd, PicoDuration::from_ps(mean), least);
            window.cwnd = next.clamp(2, window.cwnd_max);
        }
        self.round_ends = acked.sent_to;
        self.sum = PicoDuration::ZERO;
        self.samples = 0;
    }

    fn increase(&mut self, _window: &mut Window, _acked: &Acked) {}

    fn threshold(&mut self, window: &Window, _now: PicoTime) -> u32 {
        (window.cwnd / 2).max(2)
    }
}
