//! A lane's capacity, where nobody has stated it: by packet trains.
//!
//! ```text
//!   sender: n full datagrams at once ==> narrowest link: one behind the other ==> far end: first ... last arrival
//!   rate = frame / slope of the arrivals over their ranks (least squares)     dispersion (Dovrolis et al., INFOCOM 2001)
//!   capacity = median of the last five rates
//! ```
//!
//! Frames that arrive at a link together leave it back to back, at its rate, whatever stands in its queue before them. Traffic of
//! others between them makes the rate look lower, another link's queue behind it higher: so the median. When two trains in a row agree with
//! each other and not with the median (by [`CHANGE_PERCENT`]), the link has changed: what is older is forgotten.
//!
//! Trains go every [`EARLY_EVERY`] until five are known, then every [`USUAL_EVERY`], and never take more than a hundredth of the
//! capacity. A lane is not used before its first rate is known, or for [`PATIENCE`]: [`START`] may be more than it carries. What other traffic leaves of the capacity is found by delivery rate (`outgoing.rs`, **Rate**).

use crate::units::{BitRate, PicoDuration, PicoTime};
use alloc::{collections::VecDeque, vec::Vec};

/// What a lane is held to before its first train.
pub const START: BitRate = BitRate::from_mbps(10);
/// How long a lane waits for its first rate.
pub const PATIENCE: PicoDuration = PicoDuration::from_secs(1);
/// Bytes of the packet whose place a datagram of a train takes: whole on every path (IPv6's least MTU is 1,280 bytes).
pub const TRAIN_PACKET_BYTES: u16 = 1_200;
/// Between trains while fewer than [`KEPT`] are known.
pub const EARLY_EVERY: PicoDuration = PicoDuration::from_ms(100);
/// Between trains otherwise.
pub const USUAL_EVERY: PicoDuration = PicoDuration::from_secs(1);
/// A rate further than this from the median is another one.
pub const CHANGE_PERCENT: u64 = 5;
/// Rates that are kept.
const KEPT: usize = 5;
/// Length of a train, in time at the capacity, and in datagrams.
const TRAIN_TIME: PicoDuration = PicoDuration::from_ms(10);
const LEAST: u64 = 8;
const MOST: u64 = 64;
/// Trains whose answers are waited for.
const UNDER_WAY: usize = 32;
/// Least time between trains, in lengths of them.
const SPARSE: u64 = 100;

/// The sending side of a lane's trains.
#[derive(Debug, Clone)]
pub struct Trains {
    frame_bytes: u64,
    rates: VecDeque<u64>,
    next: PicoTime,
    id: u32,
    /// Of the train that is being sent: its length, and how many are.
    under_way: Option<(u16, u16)>,
    /// The last trains and their lengths, without those that were answered.
    sent: VecDeque<(u32, u16)>,
    unanswered: u32,
    /// When the first was sent.
    first: Option<PicoTime>,
    known: bool,
}

impl Trains {
    /// For datagrams that are frames of so many bytes.
    pub fn new(frame_bytes: u64) -> Self {
        Trains {
            frame_bytes,
            rates: VecDeque::new(),
            next: PicoTime::ZERO,
            id: 0,
            under_way: None,
            sent: VecDeque::new(),
            unanswered: 0,
            first: None,
            known: false,
        }
    }

    /// Whether the first rate is waited for.
    pub fn is_waiting(&self, now: PicoTime) -> bool {
        !self.known && self.first.is_none_or(|at| now < at + PATIENCE)
    }

    /// Trains that were sent since one was answered.
    pub fn unanswered(&self) -> u32 {
        self.unanswered
    }

    /// Forgets all rates.
    pub fn forget(&mut self) {
        self.rates.clear();
    }

    /// The next datagram of a train that is due: its train, its place, how many there are.
    pub fn poll(&mut self, now: PicoTime, capacity: BitRate) -> Option<(u32, u16, u16)> {
        if self.under_way.is_none() && now < self.next {
            return None;
        }
        let (count, sent) = self.under_way.unwrap_or_else(|| {
            let frames = capacity.bytes_in(TRAIN_TIME) / self.frame_bytes.max(1);
            self.id = self.id.wrapping_add(1);
            self.unanswered = self.unanswered.saturating_add(1);
            let count = frames.clamp(LEAST, MOST) as u16;
            if self.sent.len() == UNDER_WAY {
                self.sent.pop_front();
            }
            self.sent.push_back((self.id, count));
            self.first.get_or_insert(now);
            let length = capacity.time_for(self.frame_bytes * u64::from(count));
            let every = if self.rates.len() < KEPT {
                EARLY_EVERY
            } else {
                USUAL_EVERY.max(length.saturating_mul(SPARSE))
            };
            self.next = now + every;
            (count, 0)
        });
        self.under_way = (sent + 1 < count).then_some((count, sent + 1));
        Some((self.id, sent, count))
    }

    /// What the far end saw of a train. The capacity, when it is known now.
    pub fn handle(&mut self, id: u32, received: u16, span_ns: u64) -> Option<BitRate> {
        let place = self.sent.iter().position(|(its, _)| *its == id)?;
        if received < 2 || received > self.sent.get(place)?.1 || span_ns == 0 {
            return None;
        }
        // Older ones will not be answered any more, or not twice.
        self.sent.drain(..=place);
        self.unanswered = 0;
        let bytes = (u64::from(received) - 1) * self.frame_bytes;
        let rate = BitRate::of(bytes, PicoDuration::from_ns(span_ns))?.bps();
        if let (Some(median), Some(last)) = (self.median(), self.rates.back().copied())
            && differ(rate, median)
            && differ(last, median)
            && !differ(rate, last)
        {
            self.rates.clear();
            self.rates.push_back(last);
        }
        if self.rates.len() == KEPT {
            self.rates.pop_front();
        }
        self.rates.push_back(rate);
        self.known = true;
        BitRate::new(self.median()?)
    }

    fn median(&self) -> Option<u64> {
        let mut rates: Vec<u64> = self.rates.iter().copied().collect();
        rates.sort_unstable();
        rates.get(rates.len().saturating_sub(1) / 2).copied()
    }

    /// When there will be something to send.
    pub fn next_wakeup(&self) -> PicoTime {
        if self.under_way.is_some() {
            PicoTime::ZERO
        } else {
            self.next
        }
    }
}

/// Whether two rates are further apart than [`CHANGE_PERCENT`].
pub fn differ(a: u64, b: u64) -> bool {
    a.abs_diff(b) > a.max(b) / 100 * CHANGE_PERCENT
}

/// The receiving side: the train that is arriving.
#[derive(Debug, Clone, Copy, Default)]
pub struct Arriving {
    id: u32,
    received: u16,
    first: PicoTime,
    /// Sums over the arrivals: of time since the first, ns, and of rank times that.
    sum_ns: u128,
    sum_rank_ns: u128,
}

impl Arriving {
    /// A datagram of a train arrived. Of the last one: how many did, and the time from first to last by the slope of all, ns; `None`
    /// when more than a quarter is missing.
    pub fn handle(&mut self, arrived: PicoTime, id: u32, index: u16, count: u16) -> Option<(u16, u64)> {
        if self.received == 0 || id != self.id {
            *self = Arriving {
                id,
                first: arrived,
                ..Arriving::default()
            };
        }
        let since_ns = u128::from((arrived - self.first).as_ns());
        self.sum_ns += since_ns;
        self.sum_rank_ns += since_ns * u128::from(self.received);
        self.received = self.received.saturating_add(1);
        if u32::from(index) + 1 != u32::from(count) {
            return None;
        }
        let (received, span_ns) = (self.received, self.span_ns());
        *self = Arriving::default();
        (received >= count - count / 4).then_some((received, span_ns?))
    }

    /// With ranks 0 to n - 1 the slope is 12 * (sum of rank * time - (n - 1) / 2 * sum of time) / (n * (n^2 - 1)).
    fn span_ns(&self) -> Option<u64> {
        let n = u128::from(self.received);
        let twice = (2 * self.sum_rank_ns).checked_sub((n.checked_sub(1)?) * self.sum_ns)?;
        let span = (6 * twice * (n - 1)).checked_div(n * (n * n - 1))?;
        u64::try_from(span).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mbps(rate: u64) -> u64 {
        rate * 1_000_000
    }

    /// Sends a train and answers it as a link of that rate would.
    fn answer(trains: &mut Trains, now: &mut PicoTime, bps: u64) -> Option<BitRate> {
        *now = trains.next_wakeup().max(*now);
        let capacity = trains.median().and_then(BitRate::new).unwrap_or(START);
        let mut sent = Vec::new();
        while let Some(one) = trains.poll(*now, capacity) {
            sent.push(one);
        }
        let (id, _, count) = *sent.last().expect("a train");
        assert_eq!(sent.len(), usize::from(count));
        let span_ns = (u64::from(count) - 1) * 1_294 * 8 * 1_000_000_000 / bps;
        trains.handle(id, count, span_ns)
    }

    #[test]
    fn the_median_stands_against_one_and_yields_to_two() {
        let (mut trains, mut now) = (Trains::new(1_294), PicoTime::ZERO);
        let near = |rate: Option<BitRate>, want: u64| {
            let rate = rate.expect("a rate").bps();
            assert!(rate.abs_diff(want) < want / 100, "{rate} for {want}");
        };
        for _ in 0..6 {
            near(answer(&mut trains, &mut now, mbps(50)), mbps(50));
        }
        near(answer(&mut trains, &mut now, mbps(90)), mbps(50));
        near(answer(&mut trains, &mut now, mbps(20)), mbps(50));
        near(answer(&mut trains, &mut now, mbps(20)), mbps(20));
    }

    #[test]
    fn trains_are_sparse() {
        let (mut trains, mut now) = (Trains::new(1_294), PicoTime::ZERO);
        for _ in 0..KEPT + 1 {
            answer(&mut trains, &mut now, mbps(1)).expect("a rate");
        }
        // Eight frames are 83 ms of 1 Mbps.
        let wait = trains.next_wakeup() - now;
        assert!(wait > PicoDuration::from_secs(8), "{wait}");
    }

    #[test]
    fn the_span_is_that_of_all_arrivals() {
        let mut arriving = Arriving::default();
        let mut found = None;
        for index in 0..20u16 {
            // Even, but that the last one came 1 ms late: by the ends alone it would be 20 ms.
            let late = if index == 19 { 1_000 } else { 0 };
            let at = PicoTime::from_us(5_000 + u64::from(index) * 1_000 + late);
            found = arriving.handle(at, 3, index, 20);
        }
        let (received, span_ns) = found.expect("a span");
        assert_eq!(received, 20);
        assert!((19_000_000..19_300_000).contains(&span_ns), "{span_ns}");
        // Two of one moment, and 14 of 20 datagrams.
        assert_eq!(arriving.handle(PicoTime::ZERO, 4, 0, 2), None);
        assert_eq!(arriving.handle(PicoTime::ZERO, 4, 1, 2), Some((2, 0)));
        for index in 6..20u16 {
            found = arriving.handle(PicoTime::from_ms(u64::from(index)), 5, index, 20);
        }
        assert_eq!(found, None);
    }

    #[test]
    fn answers_to_nothing_are_nothing() {
        let mut trains = Trains::new(1_294);
        assert_eq!(trains.handle(0, 8, 1_000), None);
        let (id, _, count) = trains.poll(PicoTime::ZERO, START).expect("a train");
        for (id, received, span_ns) in [
            (id + 1, count, 1_000),
            (id, count + 1, 1_000),
            (id, 1, 1_000),
            (id, count, 0),
        ] {
            assert_eq!(trains.handle(id, received, span_ns), None);
        }
        assert!(trains.is_waiting(PicoTime::from_ms(999)) && !trains.is_waiting(PicoTime::from_ms(1_000)));
        assert!(trains.handle(id, count, 1_000_000).is_some());
        assert_eq!(trains.handle(id, count, 1_000_000), None, "once");
        assert!(!trains.is_waiting(PicoTime::ZERO));
        let mut arriving = Arriving::default();
        assert_eq!(arriving.handle(PicoTime::ZERO, 1, u16::MAX, 0), None);
        assert_eq!(arriving.handle(PicoTime::ZERO, 9, 0, 1), None, "one alone");
        assert_eq!(arriving.handle(PicoTime::ZERO, 2, 7, 8), None, "one of eight");
    }
}
