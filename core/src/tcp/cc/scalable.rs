//! Scalable TCP: a fixed share per ACK, an eighth off after a loss (Kelly, "Scalable TCP: improving
//! performance in highspeed wide area networks", CCR 33(2), 2003).
//!
//! ```text
//!   ACK:   cwnd += 0.01            loss:   ssthresh = cwnd - cwnd / 8
//! ```
//!
//! Below 100 segments the increase is Reno's. With a receiver that delays ACKs, Linux 2.6.14 uses 0.02 per
//! ACK (net/ipv4/tcp_scalable.c, `TCP_SCALABLE_AI_CNT` 50) and later kernels 0.01 per segment.
//!
//! Response function: between losses the window grows from 7/8 W to W, so 1/p = 100 ln(8/7) round trips of
//! about 0.94 W segments: W = 0.08 / p (RFC 3649, section 9).

use super::{Acked, CongestionControl};
use crate::{
    tcp::{profile::Counting, window::Window},
    units::PicoTime,
};

/// Segments, or ACKs of two, for one more.
const PER_SEGMENT: u32 = 100;
const PER_ACK: u32 = 50;
/// The part taken off after a loss is 1 / 2^3.
const DECREASE_SHIFT: u32 = 3;

/// Multiplicative increase, multiplicative decrease.
#[derive(Debug, Clone, Copy, Default)]
pub struct Scalable;

impl CongestionControl for Scalable {
    #[inline]
    fn increase(&mut self, window: &mut Window, acked: &Acked) {
        let segments = window.beyond_slow_start(acked.segments);
        if segments == 0 {
            return;
        }
        let most = match window.counting {
            Counting::PerAck => PER_ACK,
            Counting::PerSegment => PER_SEGMENT,
        };
        window.grow(window.cwnd.min(most), segments);
    }

    fn threshold(&mut self, window: &Window, _now: PicoTime) -> u32 {
        (window.cwnd - (window.cwnd >> DECREASE_SHIFT)).max(2)
    }
}
