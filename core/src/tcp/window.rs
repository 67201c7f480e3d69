//! The congestion window, in segments, and the two ways to count it up.

use super::profile::Counting;

/// What a congestion control changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Congestion window, segments.
    pub cwnd: u32,
    /// Slow start threshold, segments.
    pub ssthresh: u32,
    /// Acknowledgements since the window last grew.
    pub counter: u32,
    /// Largest window.
    pub cwnd_max: u32,
    /// What counts as one.
    pub counting: Counting,
}

impl Window {
    /// A window of `initial` segments without a threshold.
    pub fn new(initial: u32, cwnd_max: u32, counting: Counting) -> Self {
        Window {
            cwnd: initial,
            ssthresh: u32::MAX,
            counter: 0,
            cwnd_max,
            counting,
        }
    }

    /// Whether the window is below its threshold. Linux 2.6.14 counts equality as below
    /// (`tcp_reno_cong_avoid`: `snd_cwnd <= snd_ssthresh`), later kernels do not.
    #[inline]
    pub fn in_slow_start(&self) -> bool {
        match self.counting {
            Counting::PerAck => self.cwnd <= self.ssthresh,
            Counting::PerSegment => self.cwnd < self.ssthresh,
        }
    }

    /// What is left of an ACK's segments for congestion avoidance: all of them outside of slow start.
    #[inline]
    pub fn beyond_slow_start(&mut self, acked: u32) -> u32 {
        if self.in_slow_start() {
            self.slow_start(acked)
        } else {
            acked
        }
    }

    /// Slow start for an ACK of `acked` segments; returns the segments that are left for congestion
    /// avoidance.
    #[inline]
    pub fn slow_start(&mut self, acked: u32) -> u32 {
        match self.counting {
            Counting::PerAck => {
                self.add(1);
                0
            }
            Counting::PerSegment => {
                let grown = self.cwnd.saturating_add(acked).min(self.ssthresh.max(self.cwnd));
                let left = acked - (grown - self.cwnd);
                self.cwnd = grown.min(self.cwnd_max);
                left
            }
        }
    }

    /// One segment more for every `every` acknowledged (`PerSegment`, Linux `tcp_cong_avoid_ai`) or for
    /// the ACK after `every` ACKs (`PerAck`, as the congestion controls of Linux 2.6.14 do).
    #[inline]
    pub fn grow(&mut self, every: u32, acked: u32) {
        let every = every.max(1);
        match self.counting {
            Counting::PerAck => {
                if self.counter >= every {
                    self.add(1);
                    self.counter = 0;
                } else {
                    self.counter += 1;
                }
            }
            Counting::PerSegment => {
                if self.counter >= every {
                    self.counter = 0;
                    self.add(1);
                }
                self.counter += acked;
                if self.counter >= every {
                    let steps = self.counter / every;
                    self.counter -= steps * every;
                    self.add(steps);
                }
            }
        }
    }

    /// Adds segments, up to the largest window.
    #[inline]
    pub fn add(&mut self, segments: u32) {
        self.cwnd = self.cwnd.saturating_add(segments).min(self.cwnd_max);
    }
}
