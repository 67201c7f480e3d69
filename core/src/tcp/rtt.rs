//! Round-trip time and retransmission timeout (RFC 6298).
//!
//! ```text
//!   first:   srtt = r                          rttvar = r / 2
//!   later:   rttvar = 3/4 rttvar + 1/4 |srtt - r|      srtt = 7/8 srtt + 1/8 r
//!   RTO = srtt + max(floor, 4 rttvar), doubled for every expiry in a row, at most 120 s
//! ```
//!
//! RFC 6298 floors the RTO at one second; Linux floors the variance term at 200 ms instead
//! (`TCP_RTO_MIN`, net/ipv4/tcp_input.c, `tcp_rtt_estimator`), and so does this. The clock of the time
//! stamps is picoseconds, not the kernel's milliseconds.

use crate::units::PicoDuration;

/// The largest RTO (Linux `TCP_RTO_MAX`; RFC 6298 allows 60 s or more).
const RTO_MAX: PicoDuration = PicoDuration::from_secs(120);
/// Most doublings: 1 s becomes more than the largest RTO.
const BACKOFF_MAX: u32 = 10;

/// The estimate of one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RttEstimator {
    smoothed: Option<PicoDuration>,
    variance: PicoDuration,
    least: Option<PicoDuration>,
    /// RTO before any sample.
    initial: PicoDuration,
    /// Least distance of the RTO from the smoothed RTT.
    floor: PicoDuration,
    backoff: u32,
}

impl RttEstimator {
    /// Without samples.
    pub fn new(initial: PicoDuration, floor: PicoDuration) -> Self {
        RttEstimator {
            smoothed: None,
            variance: PicoDuration::ZERO,
            least: None,
            initial,
            floor,
            backoff: 0,
        }
    }

    /// Takes a sample and ends the doubling.
    pub fn sample(&mut self, rtt: PicoDuration) {
        self.backoff = 0;
        self.least = Some(self.least.map_or(rtt, |least| least.min(rtt)));
        let r = rtt.as_ps();
        match self.smoothed {
            None => {
                self.smoothed = Some(rtt);
                self.variance = PicoDuration::from_ps(r / 2);
            }
            Some(smoothed) => {
                let s = smoothed.as_ps();
                let v = self.variance.as_ps();
                self.variance = PicoDuration::from_ps(v - v / 4 + s.abs_diff(r) / 4);
                self.smoothed = Some(PicoDuration::from_ps(s - s / 8 + r / 8));
            }
        }
    }

    /// The timer has expired.
    pub fn back_off(&mut self) {
        self.backoff = (self.backoff + 1).min(BACKOFF_MAX);
    }

    /// The timeout now.
    pub fn rto(&self) -> PicoDuration {
        let base = match self.smoothed {
            None => self.initial,
            Some(smoothed) => smoothed + self.variance.saturating_mul(4).max(self.floor),
        };
        base.saturating_mul(1 << self.backoff).min(RTO_MAX)
    }

    /// The smoothed round-trip time.
    pub fn smoothed(&self) -> Option<PicoDuration> {
        self.smoothed
    }

    /// The least sample.
    pub fn least(&self) -> Option<PicoDuration> {
        self.least
    }
}
