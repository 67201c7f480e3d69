//! Reno: one segment per round trip, half after a loss (RFC 5681, sections 3.1 and 3.2).
//!
//! ```text
//!   ACK:   cwnd += 1 / cwnd        loss:   ssthresh = max(cwnd / 2, 2)
//! ```
//!
//! Response function: W = sqrt(3/2) / sqrt(p) segments on average (RFC 3649, section 2).

use super::{Acked, CongestionControl};
use crate::{tcp::window::Window, units::PicoTime};

/// The classic congestion control.
#[derive(Debug, Clone, Copy, Default)]
pub struct Reno;

impl CongestionControl for Reno {
    #[inline]
    fn increase(&mut self, window: &mut Window, acked: &Acked) {
        let segments = window.beyond_slow_start(acked.segments);
        if segments == 0 {
            return;
        }
        window.grow(window.cwnd, segments);
    }

    fn threshold(&mut self, window: &Window, _now: PicoTime) -> u32 {
        (window.cwnd / 2).max(2)
    }
}
