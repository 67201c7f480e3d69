//! HyStart: leaves slow start before the loss (Ha, Rhee, "Hybrid slow start for high-bandwidth and
//! long-distance networks", PFLDnet 2008; Linux net/ipv4/tcp_cubic.c, `hystart_update`).
//!
//! Once a round trip, from 16 segments on, slow start ends when
//!
//! - a train of ACKs no more than 2 ms apart has lasted half of the least RTT, or
//! - the least RTT of the round's first 8 ACKs is above the least RTT by an eighth of it (4 to 16 ms).

use super::Acked;
use crate::{
    tcp::window::Window,
    units::{PicoDuration, PicoTime},
};

const LOW_WINDOW: u32 = 16;
const SAMPLES: u32 = 8;
const TRAIN_GAP: PicoDuration = PicoDuration::from_ms(2);
const DELAY_LEAST: PicoDuration = PicoDuration::from_ms(4);
const DELAY_MOST: PicoDuration = PicoDuration::from_ms(16);

/// What is known of the round that is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HyStart {
    round_ends: u64,
    round_start: PicoTime,
    last_ack: PicoTime,
    least: PicoDuration,
    samples: u32,
}

impl HyStart {
    pub fn new() -> Self {
        HyStart {
            round_ends: 0,
            round_start: PicoTime::ZERO,
            last_ack: PicoTime::ZERO,
            least: PicoDuration::MAX,
            samples: 0,
        }
    }

    /// Whether slow start ends with this ACK.
    pub fn ends(&mut self, window: &Window, acked: &Acked) -> bool {
        let (Some(rtt), Some(least_rtt)) = (acked.rtt, acked.least_rtt) else {
            return false;
        };
        if !window.in_slow_start() || window.cwnd < LOW_WINDOW {
            return false;
        }
        let now = acked.now;
        if acked.acked_to > self.round_ends {
            *self = HyStart {
                round_ends: acked.sent_to,
                round_start: now,
                last_ack: now,
                ..HyStart::new()
            };
        }
        if now - self.last_ack <= TRAIN_GAP {
            self.last_ack = now;
            if now - self.round_start > PicoDuration::from_ps(least_rtt.as_ps() / 2) {
                return true;
            }
        }
        self.least = self.least.min(rtt);
        if self.samples < SAMPLES {
            self.samples += 1;
            return false;
        }
        let margin = PicoDuration::from_ps(least_rtt.as_ps() / 8).clamp(DELAY_LEAST, DELAY_MOST);
        self.least > least_rtt + margin
    }
}
