//! The trim that makes a paced socket's average the rate that was asked for.
//!
//! The kernel's pacing alone stays below its rate. A train of `len` bytes takes a slot of `len / rate`; when
//! the timer, or a busy core, lets a train go late, the next slot is shortened by the delay but never by more
//! than half of itself (`tcp_update_skb_after_send`, `net/ipv4/tcp_output.c`: `len_ns -= min(len_ns / 2,
//! credit)`). What is beyond half a slot (0.5 ms, for trains of 1 ms) is lost for good. Segments that are not
//! full carry more header than the conversion to payload assumes, in the other direction.
//!
//! So every look compares what left, at frame level, with what was due, and adds the difference to the rate,
//! to be made good over [`REPAY_NS`]:
//!
//! ```text
//! owed += rate * elapsed - 8 * (payload sent + headers * segments sent)     sent again counts too
//! owed  = clamp(owed, -limit, +limit),   limit = rate / LIMIT_DIVISOR * REPAY
//! told  = rate + owed / REPAY            so within rate * (1 +- 1 / LIMIT_DIVISOR)
//! ```
//!
//! Since only what was due and did not leave is made good, the bytes sent since the first look are never more
//! than `rate * time` and one train. Time in which the socket was not held by its pace (slow start, a small
//! window, an application with nothing to send) owes nothing, nor does the first second of a rate, in which the
//! window still grows; what the sampling misses is bounded by `limit`, 10 ms of data. Integers only; nothing
//! is rounded before the last step.

use crate::framing::Framing;
use crate::info::TcpInfo;
use kuroshio_core::units::BitRate;

/// What is owed is made good over this time, nanoseconds.
pub const REPAY_NS: u64 = 1_000_000_000;
/// The rate told to the kernel stays within the target and one part in so many of it.
pub const LIMIT_DIVISOR: u64 = 100;

/// What a socket had sent at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Nanoseconds of any monotonic clock.
    pub at_ns: u64,
    /// Payload bytes, those sent again included.
    pub payload_bytes: u64,
    /// Segments with payload, modulo 2^32.
    pub segments: u32,
    /// Whether the pace was what held the socket at this moment.
    pub paced: bool,
}

impl Sent {
    /// From a snapshot of the connection: the pace holds when the kernel's own rate is cut by the limit and
    /// bytes wait to be sent.
    pub fn of(info: &TcpInfo, at_ns: u64) -> Self {
        Self {
            at_ns,
            payload_bytes: info.bytes_sent,
            segments: info.data_segments_sent,
            paced: info.pacing_rate_bytes_per_s >= info.max_pacing_rate_bytes_per_s && info.notsent_bytes > 0,
        }
    }
}

/// The state of one socket's trim.
#[derive(Clone, Debug, Default)]
pub struct Trim {
    rate: Option<BitRate>,
    last: Option<Sent>,
    /// When the pace first held the socket at this rate.
    held_since_ns: Option<u64>,
    /// Bits times nanoseconds per second.
    owed: i128,
}

impl Trim {
    /// The frame-level rate to tell the kernel so that the average becomes `rate`.
    pub fn next(&mut self, rate: BitRate, framing: Framing, now: Sent) -> BitRate {
        let before = self.last.replace(now);
        if self.rate.replace(rate) != Some(rate) {
            self.owed = 0;
            self.held_since_ns = None;
        }
        let bps = i128::from(rate.bps());
        let limit = bps * i128::from(REPAY_NS) / i128::from(LIMIT_DIVISOR);
        let held_since_ns = match self.held_since_ns {
            None if now.paced => *self.held_since_ns.insert(now.at_ns),
            None => now.at_ns,
            Some(at_ns) => at_ns,
        };
        let settled = |before: &Sent| before.at_ns.saturating_sub(held_since_ns) >= REPAY_NS;
        if let Some(before) = before.filter(|before| before.paced && now.paced && settled(before)) {
            let headers = u64::from(framing.frame.get() - framing.payload.get())
                * u64::from(now.segments.wrapping_sub(before.segments));
            let frame_bytes = now.payload_bytes.saturating_sub(before.payload_bytes) + headers;
            let due = bps * i128::from(now.at_ns.saturating_sub(before.at_ns));
            let left = i128::from(frame_bytes) * 8 * 1_000_000_000;
            self.owed = (self.owed + due - left).clamp(-limit, limit);
        }
        let told = bps + self.owed / i128::from(REPAY_NS);
        u64::try_from(told).ok().and_then(BitRate::new).unwrap_or(rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK_NS: u64 = 100_000_000;
    const RATE: u64 = 500_000_000;
    const FRAME_BITS: u64 = 1518 * 8;

    fn framing() -> Framing {
        Framing::new(1448, true, false).unwrap()
    }

    /// A socket that sends whole segments at what it is told, less a share in 1/1000.
    struct Line {
        sent: Sent,
        /// Frame bits times nanoseconds not sent yet.
        left: u128,
        most_bps: u64,
    }

    impl Line {
        fn new() -> Self {
            let sent = Sent {
                at_ns: 5,
                payload_bytes: 0,
                segments: u32::MAX - 10,
                paced: true,
            };
            Self {
                sent,
                left: 0,
                most_bps: 0,
            }
        }

        fn tick(&mut self, told: BitRate, lost_permille: u64) {
            let frame = u128::from(framing().frame.get()) * 8 * 1_000_000_000;
            self.left +=
                u128::from(told.bps()) * u128::from(TICK_NS) * u128::from(1000 - lost_permille) / 1000;
            let segments = u32::try_from(self.left / frame).unwrap();
            self.left %= frame;
            self.sent.segments = self.sent.segments.wrapping_add(segments);
            self.sent.payload_bytes += 1448 * u64::from(segments);
            self.sent.at_ns += TICK_NS;
            self.most_bps = self.most_bps.max(told.bps());
        }

        fn frame_bits(&self) -> u64 {
            self.sent.payload_bytes / 1448 * u64::from(framing().frame.get()) * 8
        }
    }

    fn run(ticks: u64, lost_permille: u64) -> (Line, Trim) {
        let (mut line, mut trim) = (Line::new(), Trim::default());
        let rate = BitRate::new(RATE).unwrap();
        for tick in 0..ticks {
            let told = trim.next(rate, framing(), line.sent);
            line.tick(told, lost_permille);
            let due = RATE / 10 * (tick + 1);
            assert!(
                line.frame_bits() <= due + FRAME_BITS,
                "tick {tick}: {} of {due}",
                line.frame_bits()
            );
        }
        (line, trim)
    }

    #[test]
    fn a_line_that_loses_eight_in_a_thousand_keeps_its_rate() {
        let (first, _) = run(11, 8);
        let (line, _) = run(111, 8);
        let due = RATE * 10;
        let off = (due - (line.frame_bits() - first.frame_bits())) as f64 / due as f64;
        assert!((0.0..0.0012).contains(&off), "{off}");
        assert!(line.most_bps <= RATE + RATE / LIMIT_DIVISOR, "{}", line.most_bps);
    }

    #[test]
    fn a_line_that_loses_nothing_is_left_alone() {
        let (line, _) = run(100, 0);
        assert!(line.most_bps <= RATE + RATE / 10_000, "{}", line.most_bps);
    }

    #[test]
    fn a_starved_line_owes_ten_milliseconds_at_most() {
        let (mut line, mut trim) = run(50, 500);
        let rate = BitRate::new(RATE).unwrap();
        let before = line.frame_bits();
        for _ in 0..100 {
            let told = trim.next(rate, framing(), line.sent);
            line.tick(told, 0);
        }
        let extra = line.frame_bits() - before - RATE * 10;
        assert!(extra > RATE / 200 && extra <= RATE / 100 + FRAME_BITS, "{extra}");
    }

    #[test]
    fn what_was_sent_too_much_is_held_back() {
        let (mut line, mut trim) = run(12, 0);
        let rate = BitRate::new(RATE).unwrap();
        // Sent again beside the pace: 1,000 segments in no time.
        line.sent.segments = line.sent.segments.wrapping_add(1_000);
        line.sent.payload_bytes += 1_000 * 1448;
        let told = trim.next(rate, framing(), line.sent);
        assert_eq!(told.bps(), RATE - RATE / LIMIT_DIVISOR);
    }

    #[test]
    fn time_without_a_pace_and_an_older_rate_owe_nothing() {
        let (mut line, mut trim) = (Line::new(), Trim::default());
        let rate = BitRate::new(RATE).unwrap();
        line.sent.paced = false;
        for _ in 0..20 {
            assert_eq!(trim.next(rate, framing(), line.sent), rate);
            line.tick(rate, 900);
        }
        line.sent.paced = true;
        // The time before this look was not paced at its begin, and a second from it is not counted.
        for _ in 0..=REPAY_NS / TICK_NS {
            assert_eq!(trim.next(rate, framing(), line.sent), rate);
            line.tick(rate, 900);
        }
        assert!(trim.next(rate, framing(), line.sent) > rate);
        let half = BitRate::new(RATE / 2).unwrap();
        assert_eq!(trim.next(half, framing(), line.sent), half);
    }

    #[test]
    fn no_count_however_wrong_makes_it_panic() {
        let mut trim = Trim::default();
        let extremes = [0, 1, u64::MAX / 2, u64::MAX];
        for rate in [1, 8, u64::MAX].into_iter().filter_map(BitRate::new) {
            for at_ns in extremes {
                for payload_bytes in extremes {
                    let now = Sent {
                        at_ns,
                        payload_bytes,
                        segments: payload_bytes as u32,
                        paced: true,
                    };
                    let told = trim.next(rate, framing(), now);
                    assert!(told.bps() >= rate.bps() - rate.bps() / LIMIT_DIVISOR);
                }
            }
        }
    }
}
