//! Whether a lane is there: probes and their answers.
//!
//! ```text
//!            answer                   2.25 RTT without an answer
//!   New --------------> up ------------------------------------> down (dead)
//!                        ^          3 answers in a row             |
//!                        +-----------------------------------------+
//! ```
//!
//! A lane that is up is probed every quarter of its round trip, or less often where probes would take more than a five-hundredth of it, but
//! at least every half: four answers in a row have to be lost before it counts as dead. While it is young it is probed up to every 5 ms and for up to
//! a hundredth of it, so that its loss is known before the first stream. After a cut the last answer may still be half a round trip away, so
//! it is out 2.75 round trips after the cut at most; three is the bound. Below [`SILENCE_MIN`] a host's own delays would count as
//! the lane's death: paths shorter than 9 ms of round trip have that as their bound. RTT: smoothed as in RFC 6298, of probes alone.
//! A round trip that varies (a host that answers late) is no death either: a silence is at least 1.25 of the longest round trip of
//! the last [`WORST_WINDOW`] to twice that, which changes nothing while that is below 1.8 smoothed ones.
//!
//! Offset of the clocks, from the answer with the shortest round trip of the last [`OFFSET_WINDOW`] (as NTP, RFC 5905, section 8):
//!
//! ```text
//!   offset = answered - (sent + received) / 2,   off by at most rtt / 2
//! ```

use crate::units::{PicoDuration, PicoTime};

/// Shortest silence that means death.
pub const SILENCE_MIN: PicoDuration = PicoDuration::from_ms(20);
const PROBE_MIN: PicoDuration = PicoDuration::from_ms(5);
const PROBE_MAX: PicoDuration = PicoDuration::from_ms(250);
/// Between probes of a lane without a round trip.
const PROBE_NEW: PicoDuration = PicoDuration::from_ms(50);
/// How long a lane is young: it is judged before a stream is on it, so that its loss has to be known soon.
pub const YOUNG: PicoDuration = PicoDuration::from_secs(2);
/// So much more of a lane may probes take while it is young: a hundredth.
const YOUNG_DEARER: u64 = 5;
/// Answers in a row that bring a lane back.
const ANSWERS_BACK: u32 = 3;
/// How long the longest round trip counts at least.
pub const WORST_WINDOW: PicoDuration = PicoDuration::from_secs(5);
/// How long the shortest round trip counts.
pub const OFFSET_WINDOW: PicoDuration = PicoDuration::from_secs(10);

/// One lane's health.
#[derive(Debug, Clone, Copy, Default)]
pub struct Health {
    up: bool,
    ever: bool,
    /// When it came up.
    since: PicoTime,
    smoothed: Option<PicoDuration>,
    last_answer: PicoTime,
    next_probe: PicoTime,
    next_id: u32,
    answers: u32,
    last_id: u32,
    /// Time between probes that would be cheap.
    sparse: PicoDuration,
    best: Option<(PicoTime, PicoDuration, i64)>,
    /// Longest round trips of this window and the one before, and when this one began.
    worst: (PicoTime, PicoDuration, PicoDuration),
    /// Times that it died.
    pub deaths: u64,
}

impl Health {
    /// Whether it answers.
    pub fn is_up(&self) -> bool {
        self.up
    }

    /// Whether it ever answered.
    pub fn was_up(&self) -> bool {
        self.ever
    }

    /// Smoothed round trip.
    pub fn rtt(&self) -> Option<PicoDuration> {
        self.smoothed
    }

    /// Longest round trip of late: of the last [`WORST_WINDOW`] at least.
    pub fn longest_rtt(&self) -> Option<PicoDuration> {
        self.smoothed.map(|rtt| rtt.max(self.worst.1).max(self.worst.2))
    }

    /// The peer's clock less ours in ns, and its bound.
    pub fn offset_ns(&self) -> Option<(i64, u64)> {
        self.best
            .map(|(_, rtt, offset)| (offset, rtt.as_ns_ceil() / 2 + 1))
    }

    /// Probes need not be nearer than that.
    pub fn set_sparse(&mut self, every: PicoDuration) {
        self.sparse = every;
    }

    fn interval(&self, now: PicoTime) -> PicoDuration {
        let base = self.smoothed.map_or(PROBE_NEW, |rtt| {
            let (least, most) = (rtt.as_ps() / 4, rtt.as_ps() / 2);
            PicoDuration::from_ps(self.sparse.as_ps().clamp(least, most))
        });
        let base = base.clamp(PROBE_MIN, PROBE_MAX);
        if self.up && now < self.since + YOUNG {
            base.min(PROBE_MIN.max(PicoDuration::from_ps(self.sparse.as_ps() / YOUNG_DEARER)))
        } else if self.up || !self.ever {
            base
        } else {
            base.max(PROBE_NEW)
        }
    }

    fn silence(&self) -> PicoDuration {
        let quarters = |rtt: PicoDuration, n: u64| PicoDuration::from_ps(rtt.as_ps().saturating_mul(n) / 4);
        let usual = self.smoothed.map_or(PicoDuration::ZERO, |rtt| quarters(rtt, 9));
        let worst = quarters(self.worst.1.max(self.worst.2), 5);
        usual.max(worst).max(SILENCE_MIN)
    }

    /// The id of a probe that is due.
    pub fn poll_probe(&mut self, now: PicoTime) -> Option<u32> {
        if now < self.next_probe {
            return None;
        }
        self.next_probe = now + self.interval(now);
        self.next_id = self.next_id.wrapping_add(1);
        Some(self.next_id)
    }

    /// Notes silence. `true` when the lane has just died.
    pub fn check(&mut self, now: PicoTime) -> bool {
        if !self.up || now < self.last_answer + self.silence() {
            return false;
        }
        self.up = false;
        self.answers = 0;
        self.deaths += 1;
        true
    }

    /// An answer that came in at `arrived`, at `now` or before. `true` when the lane has just come up. One that answers nothing
    /// that was asked is ignored.
    pub fn handle_answer(
        &mut self,
        now: PicoTime,
        arrived: PicoTime,
        id: u32,
        sent_ns: u64,
        answered_ns: u64,
    ) -> bool {
        let ago = self.next_id.wrapping_sub(id);
        let Some(rtt_ns) = arrived.as_ns().checked_sub(sent_ns) else {
            return false;
        };
        if ago > u32::MAX / 2 || (self.ever && id == self.last_id) {
            return false;
        }
        self.last_id = id;
        let rtt = PicoDuration::from_ns(rtt_ns);
        self.smoothed = Some(match self.smoothed {
            None => rtt,
            Some(old) => PicoDuration::from_ps(old.as_ps() - old.as_ps() / 8 + rtt.as_ps() / 8),
        });
        let middle = sent_ns as i128 + i128::from(rtt_ns / 2);
        let offset = (i128::from(answered_ns) - middle).clamp(i64::MIN.into(), i64::MAX.into()) as i64;
        if self
            .best
            .is_none_or(|(at, best, _)| rtt <= best || now - at > OFFSET_WINDOW)
        {
            self.best = Some((now, rtt, offset));
        }
        if now - self.worst.0 > WORST_WINDOW {
            self.worst = (now, rtt, self.worst.1);
        } else {
            self.worst.1 = self.worst.1.max(rtt);
        }
        self.last_answer = now;
        if self.up {
            return false;
        }
        self.answers += 1;
        if self.ever && self.answers < ANSWERS_BACK {
            return false;
        }
        (self.up, self.ever) = (true, true);
        self.since = now;
        // What is up is probed more often than what is not.
        self.next_probe = now;
        true
    }

    /// When there is something to do.
    pub fn next_wakeup(&self) -> PicoTime {
        if self.up {
            self.next_probe.min(self.last_answer + self.silence())
        } else {
            self.next_probe
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Both ends stall by 5 to 50 ms, between a stamp and the sending or before the reading, in all exchanges but one of five.
        #[test]
        fn stalls_leave_the_offset_within_its_bound(
            offset_ns in 0..1_000_000_000u64,
            exchanges in prop::collection::vec((0..5usize, [5..50u64, 5..50, 5..50]), 40),
        ) {
            let mut health = Health::default();
            let mut now = PicoTime::ZERO;
            for (n, group) in (0..200).map(|n| (n, &exchanges[n / 5])) {
                let (sound, stalls_ms) = group;
                let stall = |place: usize| if n % 5 == *sound { 0 } else { stalls_ms[place] * 1_000_000 };
                now += PicoDuration::from_ms(200);
                let id = health.poll_probe(now).expect("a probe is due");
                let sent_ns = now.as_ns();
                // 20 ms there, 30 ms back: what no exchange can tell from an offset.
                let answered_ns = sent_ns + stall(0) + 20_000_000 + stall(1);
                let arrived = PicoTime::from_ns(answered_ns + 30_000_000 + stall(2));
                health.handle_answer(arrived, arrived, id, sent_ns, answered_ns + offset_ns);
                let (found_ns, bound_ns) = health.offset_ns().expect("an answer");
                prop_assert!(found_ns.abs_diff(offset_ns as i64) <= bound_ns, "{found_ns} for {offset_ns}");
                if n >= 5 {
                    prop_assert!(bound_ns <= 25_000_001, "{bound_ns}: one of five exchanges was sound");
                }
            }
        }
    }

    #[test]
    fn a_young_lane_is_probed_more_often() {
        let ms = |n: u64| PicoTime::from_ns(n * 1_000_000);
        // A five-hundredth of the lane is a probe every 100 ms, or every 2 ms.
        for (sparse_ms, young, old) in [(100, 100, 40), (2, 400, 80)] {
            let mut health = Health::default();
            health.set_sparse(PicoDuration::from_ms(sparse_ms));
            let mut counts = [0u32; 2];
            for at in 0..4_000 {
                let now = ms(200 + at);
                if let Some(id) = health.poll_probe(now) {
                    counts[usize::from(at >= 2_000)] += 1;
                    health.handle_answer(now, now, id, (now - PicoDuration::from_ms(100)).as_ns(), 0);
                }
            }
            assert!(
                counts[0].abs_diff(young) <= 2 && counts[1].abs_diff(old) <= 2,
                "{counts:?}"
            );
        }
    }
}
