//! The sending side: the entry queue, the lanes, the store.
//!
//! **Striping.** Each lane has a pacer. The packet at the head of
//! the queue takes, of the lanes that are free now, the one with the least time used (its bytes over its rate). A saturated
//! bundle is shared by the pacers alone, in proportion to the rates.
//!
//! **Quick packets.** In `deskew` with `repair` (for TCP) what only acknowledges (`ack.rs`) leaves at the far end as soon as it is its turn, and takes
//! the lane on which it arrives first: nobody measures its delay, and a round trip of what comes back on the fastest lane is shorter by
//! the difference of the lanes. Where that lane is busy it waits for it, unless others wait behind it and another packet went before within
//! that difference: it would have to wait for that one's play-out time anyway.
//!
//! **Late callers.** A pacer makes up for `slack` at any time. When the caller says that it wakes later than that, a lane makes up for so
//! much of the time that the packet has waited in the queue, up to [`MADE_UP_MAX`]: else each late turn would lose its rate for good,
//! while nothing that did not wait leaves as a burst.
//!
//! **Lanes in use.** Those that answer and that the rule has left in; without one, those that answer; without one of these, those that
//! did: when nothing answers, most likely an end is late, and nothing better is there.
//!
//! **Queue.** It holds `queue_time`, or half the slowest lane's round trip where that is more: after a loss CUBIC goes on with 0.7 of its
//! window (RFC 9438, section 4.6), so that a queue below 0.43 of a round trip would leave the lanes idle.
//!
//! **The rule.** What one stream of TCP would get over a set of lanes S is predicted (Mathis et al., "The macroscopic behavior of
//! the TCP congestion avoidance algorithm", CCR 1997, for CUBIC and BBR a lower bound):
//!
//! ```text
//!   rate(S)      = min( sum of the rates,  1.22 * MSS / (RTT * sqrt(p)) )
//!   predicted(S) = Q / (Q / rate(S) + RTT * log2(rate(S) * RTT / 10 MSS)),  Q = 100 MB
//!   RTT: half the longest of late of the slowest lane of S, for which the far end waits, and half the fastest's, on which quick
//!        packets come back; without these the longest; of one lane alone its own
//!   p:   share lost over S; with repair, lost twice in a row: p^2
//! ```
//!
//! The second line is a transfer of 100 MB with its slow start (RFC 6928's first window of ten segments doubles each round trip):
//! a lane that adds little and makes the round trip long makes such a transfer slower.
//!
//! and (with `guard`) a lane whose absence would raise it is not used for [`PENALTY_MIN`](super::lane_out::PENALTY_MIN), then twice as long each
//! time; while a stream runs, which the change of its round trip would disturb, a lane in use must cost it a tenth. Lanes are judged when one comes up, with every
//! report while one is young, and then every [`JUDGE_EVERY`]: so a lane that is of no use is not waited for by the first stream, and one
//! that seemed so while it was young is back after two seconds. Left out as well is a
//! lane whose least delay, or half its round trip, is more than `skew_max` above the fastest one's.

use super::{
    Load,
    config::{BundleConfig, ConfigError, HOLD_LIMIT, Mode},
    health::{Health, YOUNG},
    lane_out::LaneOut,
    status::{LaneState, OutCounters},
    wire::{Body, INSIDE_BYTES, LaneReport, NUMBER_END},
};
use crate::units::{BitRate, PicoDuration, PicoTime};
use alloc::{collections::VecDeque, vec::Vec};

/// Most time of a late caller that a lane makes up for: as long a burst at its rate the path has to queue.
pub const MADE_UP_MAX: PicoDuration = PicoDuration::from_ms(20);
/// Packets that the entry queue holds whatever the rates.
const QUEUE_PACKETS_MIN: usize = 64;
/// Between judgements.
pub const JUDGE_EVERY: PicoDuration = PicoDuration::from_ms(1_000);
/// Payload of a segment and 1.22 times 1000, for the prediction.
const MSS_BITS: u128 = 1_400 * 8;
/// Transfer of which the time is predicted, bits.
const TRANSFER_BITS: u128 = 800_000_000;
/// What a lane in use may cost a stream that runs: one part of so many.
const TOLERATED_ONE_OF: u64 = 10;
/// A stream runs when one part of so many of what the lanes carry is taken.
const BUSY_ONE_OF: u64 = 8;
/// How far a lane's share may fall behind the others'.
const SHARE_LAG_PS: u64 = 100_000_000_000;

/// What is said of a packet on a lane.
#[derive(Debug, Clone, Copy, Default)]
struct Flags {
    again: bool,
    copy: bool,
    quick: bool,
}

#[derive(Debug, Clone)]
struct Kept<T> {
    number: u64,
    sent: PicoTime,
    stamp_ns: u64,
    packet: T,
}

/// The sending side of an end.
#[derive(Debug, Clone)]
pub struct Outgoing<T> {
    mode: Mode,
    repair: bool,
    smoothing: PicoDuration,
    hold_max: PicoDuration,
    hold_bytes: u64,
    queue_time: PicoDuration,
    guard: bool,
    skew_max: PicoDuration,
    slack: PicoDuration,
    late: PicoDuration,
    pub lanes: Vec<LaneOut>,
    queue: VecDeque<(PicoTime, T)>,
    queue_bytes: u64,
    next: u64,
    last_stamp_ns: u64,
    /// When the last packet left that is held to its play-out time.
    held: Option<PicoTime>,
    store: VecDeque<Kept<T>>,
    store_bytes: u64,
    again: VecDeque<u64>,
    copy: Option<(usize, u64, u64, T)>,
    judged: PicoTime,
    /// While a lane has not been up for long.
    young_until: PicoTime,
    /// Whether a stream ran in the interval between the last judgements, and bytes of packets put on lanes in this one.
    busy: bool,
    carried_bytes: u64,
    pub counters: OutCounters,
}

impl<T: Load> Outgoing<T> {
    pub fn new(config: &BundleConfig) -> Result<Self, ConfigError> {
        let lanes = config.lanes.iter().map(|lane| LaneOut::new(*lane));
        Ok(Outgoing {
            mode: config.mode,
            repair: config.repair && config.mode != Mode::Mirror,
            smoothing: config.smoothing,
            hold_max: config.hold_max,
            hold_bytes: config.hold_bytes,
            queue_time: config.queue_time,
            guard: config.guard,
            skew_max: config.skew_max,
            slack: config.slack,
            late: PicoDuration::ZERO,
            lanes: lanes.collect::<Result<_, _>>()?,
            queue: VecDeque::new(),
            queue_bytes: 0,
            next: 0,
            last_stamp_ns: 0,
            held: None,
            store: VecDeque::new(),
            store_bytes: 0,
            again: VecDeque::new(),
            copy: None,
            judged: PicoTime::ZERO,
            young_until: PicoTime::ZERO,
            busy: false,
            carried_bytes: 0,
            counters: OutCounters::default(),
        })
    }

    /// The number of the next packet.
    pub fn next_number(&self) -> u64 {
        self.next
    }

    pub fn in_use(&self, now: PicoTime) -> u16 {
        let used = self.used(now);
        used.fold(0, |mask, index| mask | 1 << index)
    }

    fn used(&self, now: PicoTime) -> impl Iterator<Item = usize> + '_ {
        let best = self.lanes.iter().filter_map(|lane| lane.rank(now)).min();
        let lanes = self.lanes.iter().enumerate();
        lanes
            .filter(move |(_, lane)| best.is_some() && lane.rank(now) == best)
            .map(|(index, _)| index)
    }

    /// See [`super::Bundle::set_lateness`].
    pub fn set_lateness(&mut self, late: PicoDuration) {
        self.late = late.min(MADE_UP_MAX);
    }

    /// A packet enters. `false`: the queue is full and it is dropped.
    pub fn handle_packet(&mut self, now: PicoTime, packet: T) -> bool {
        self.counters.entered += 1;
        let rate: u64 = self.used(now).map(|i| self.lanes[i].rate.bps()).sum();
        let rate = BitRate::new(rate).unwrap_or(BitRate::MIN);
        let rtts = self.used(now).filter_map(|i| self.lanes[i].health.rtt());
        let half_rtt = PicoDuration::from_ps(rtts.max().map_or(0, |rtt| rtt.as_ps() / 2));
        let limit = rate.bytes_in(self.queue_time.max(half_rtt));
        let full = self.queue_bytes + packet.len_bytes() > limit;
        if (full && self.queue.len() >= QUEUE_PACKETS_MIN) || self.queue_bytes > self.hold_bytes {
            self.counters.refused += 1;
            return false;
        }
        self.queue_bytes += packet.len_bytes();
        self.queue.push_back((now, packet));
        true
    }

    /// Takes the peer's view of the lanes, and what it asks for.
    pub fn handle_report(&mut self, now: PicoTime, lanes: &[LaneReport], asked: &[u64]) {
        for report in lanes {
            if let Some(lane) = self.lanes.get_mut(usize::from(report.lane)) {
                lane.handle_report(now, *report);
            }
        }
        if self.repair {
            for number in asked {
                if self.again.len() < super::MISSING_MAX && *number < self.next {
                    self.again.push_back(*number);
                }
            }
        }
        if now >= self.judged + JUDGE_EVERY {
            self.look(now);
        } else if now < self.young_until {
            self.judge(now);
        }
    }

    /// A lane has come up: what is known of it is young, and looked at with every report.
    pub fn note_up(&mut self, now: PicoTime) {
        self.young_until = now + YOUNG;
        self.judge(now);
    }

    /// Ends an interval between two judgements.
    fn look(&mut self, now: PicoTime) {
        for lane in &mut self.lanes {
            lane.recent = (
                lane.recent.0 - lane.recent.0 / 8,
                lane.recent.1 - lane.recent.1 / 8,
            );
        }
        let rate: u64 = self.used(now).map(|i| self.lanes[i].rate.bps()).sum();
        let could = BitRate::new(rate).map_or(0, |rate| rate.bytes_in(now - self.judged));
        self.busy = self.carried_bytes > could / BUSY_ONE_OF;
        (self.judged, self.carried_bytes) = (now, 0);
        self.judge(now);
    }

    /// Applies the rule.
    fn judge(&mut self, now: PicoTime) {
        let young = now < self.young_until;
        let up = |lane: &LaneOut| lane.health.is_up() && !lane.dropped;
        let mut set: Vec<usize> = (0..self.lanes.len()).filter(|i| up(&self.lanes[*i])).collect();
        while self.guard && set.len() > 1 {
            let Some(out) = self.least_useful(now, &set) else {
                break;
            };
            // Without its loss it would be of use: then that is the reason.
            let (whole, rest) = (self.predicted(&set, false), self.without(&set, out, false));
            let lossy = rest <= whole + self.tolerated(now, out, whole);
            let why = if lossy {
                LaneState::Lossy
            } else {
                LaneState::TooSlow
            };
            set.retain(|i| *i != out);
            self.lanes[out].penalise(now, why, young);
        }
        let fastest = set.iter().filter_map(|i| self.lanes[*i].delay_ns).min();
        let shortest = set.iter().filter_map(|i| self.lanes[*i].health.rtt()).min();
        let Some(shortest) = shortest else { return };
        let most = self.skew_max;
        for index in set {
            let lane = &mut self.lanes[index];
            let later = lane
                .delay_ns
                .zip(fastest)
                .map(|(d, f)| d.saturating_sub(f) > most.as_ns() as i64);
            // The least delay of a lane that varies is no lane's delay.
            let longer = lane
                .health
                .rtt()
                .map(|rtt| rtt - shortest > most.saturating_mul(2));
            if later == Some(true) || longer == Some(true) {
                lane.penalise(now, LaneState::TooSlow, young);
            }
        }
    }

    /// The lane of a set without which the rest is predicted to be better, and most so.
    fn least_useful(&self, now: PicoTime, set: &[usize]) -> Option<usize> {
        let whole = self.predicted(set, true);
        let rests = set.iter().map(|i| (self.without(set, *i, true), *i));
        let better = rests.filter(|(rest, i)| *rest > whole + self.tolerated(now, *i, whole));
        better.max().map(|(_, out)| out)
    }

    fn without(&self, set: &[usize], out: usize, with_loss: bool) -> u64 {
        let rest: Vec<usize> = set.iter().copied().filter(|i| *i != out).collect();
        self.predicted(&rest, with_loss)
    }

    /// What a lane may cost before it is left out: nothing, unless it carries a stream now, which a change of its round trip would disturb.
    fn tolerated(&self, now: PicoTime, lane: usize, whole: u64) -> u64 {
        let used = self
            .lanes
            .get(lane)
            .is_some_and(|l| l.state(now) == LaneState::Used);
        if used && self.busy {
            whole / TOLERATED_ONE_OF
        } else {
            0
        }
    }

    /// Round trip of a stream over a set of lanes, ns: there at the slowest lane's longest delay, for which the far end waits, and back likewise
    /// or, where acknowledgements are quick, on the fastest.
    fn round_trip_ns(&self, set: &[usize]) -> u128 {
        let healths = || {
            set.iter()
                .filter_map(|i| self.lanes.get(*i))
                .map(|lane| &lane.health)
        };
        let shortest = healths().filter_map(Health::rtt).min();
        let longest = healths().filter_map(Health::longest_rtt).max();
        let (shortest, longest) = shortest.zip(longest).unwrap_or_default();
        let rtt = match (set.len(), self.has_quick()) {
            (0 | 1, _) => shortest,
            (_, true) => PicoDuration::from_ps(shortest.as_ps() / 2 + longest.as_ps() / 2),
            (_, false) => longest,
        };
        u128::from(rtt.as_ns()).max(1_000_000)
    }

    /// What one stream of TCP would get over a set of lanes, bit/s; with their loss, or if they had none.
    fn predicted(&self, set: &[usize], with_loss: bool) -> u64 {
        let (mut rates, mut lost) = (0u128, 0u128);
        for lane in set.iter().filter_map(|i| self.lanes.get(*i)) {
            let rate = u128::from(lane.rate.bps());
            rates += rate;
            lost += rate * u128::from(if with_loss { lane.loss_ppm() } else { 0 });
        }
        let rtt_ns = self.round_trip_ns(set);
        let whole = u64::try_from(rates).unwrap_or(u64::MAX);
        let mut per_10_12 = lost * 1_000_000 / rates.max(1);
        if self.repair {
            per_10_12 = per_10_12 * per_10_12 / 1_000_000_000_000;
        }
        // sqrt(p) * 10^6.
        let root = per_10_12.isqrt();
        let bps = (MSS_BITS * 122 * 1_000_000_000 * 1_000_000 / 100)
            .checked_div(rtt_ns * root)
            .unwrap_or(u128::MAX);
        let rate = u128::from(whole.min(u64::try_from(bps).unwrap_or(u64::MAX))).max(1);
        let windows = rate * rtt_ns / (1_000_000_000 * 10 * MSS_BITS);
        let ramp_ns = rtt_ns * u128::from(windows.max(1).ilog2());
        let time_ns = TRANSFER_BITS * 1_000_000_000 / rate + ramp_ns;
        let predicted = (TRANSFER_BITS * 1_000_000_000).checked_div(time_ns);
        u64::try_from(predicted.unwrap_or(u128::MAX)).unwrap_or(u64::MAX)
    }

    /// Notes deaths, and which lane is alone in use; the lanes in use.
    pub fn check_health(&mut self, now: PicoTime) -> u16 {
        for lane in &mut self.lanes {
            if lane.health.check(now) {
                lane.outages += 1;
            }
        }
        let in_use = self.in_use(now);
        for (index, lane) in self.lanes.iter_mut().enumerate() {
            lane.set_alone(in_use == 1 << index);
        }
        in_use
    }

    /// Sends something that is no packet of the tunnel at once; its time is taken from the lane.
    pub fn send_control(&mut self, now: PicoTime, lane: usize, inside_bytes: u64) -> Option<u64> {
        let from = now - self.slack;
        self.lanes.get_mut(lane).map(|lane| lane.send(from, inside_bytes))
    }

    /// The lane in use on which a datagram arrives first.
    pub fn quickest(&self, now: PicoTime) -> Option<usize> {
        self.used(now).min_by_key(|i| {
            let lane = &self.lanes[*i];
            let wait = lane.pacer.free_at().as_ns().saturating_sub(now.as_ns());
            lane.delay_ns.unwrap_or(0).saturating_add(wait as i64)
        })
    }

    /// The shortest round trip of the lanes in use.
    pub fn least_rtt(&self, now: PicoTime) -> Option<PicoDuration> {
        self.used(now).filter_map(|i| self.lanes[i].health.rtt()).min()
    }

    /// The next data: its lane, its number there and itself.
    pub fn poll_data(&mut self, now: PicoTime) -> Option<(usize, u64, Body<T>)> {
        if let Some((index, number, stamp_ns, packet)) = self.copy.take() {
            let copy = Flags {
                copy: true,
                ..Flags::default()
            };
            return Some(self.put(now - self.slack, index, number, stamp_ns, copy, packet));
        }
        if let Some(sent) = self.send_again(now) {
            return Some(sent);
        }
        let quick = self.is_quick();
        let fastest = self.quickest(now).filter(|_| quick);
        let (index, second) = match fastest {
            Some(index) if self.is_free(now, index) => (index, None),
            Some(_) if self.is_alone(now) => return None,
            _ => self.next_lanes(now)?,
        };
        let (entered, packet) = self.queue.pop_front()?;
        self.queue_bytes -= packet.len_bytes();
        self.carried_bytes += packet.len_bytes();
        if self.next >= NUMBER_END {
            return None;
        }
        if !quick {
            self.held = Some(now);
        }
        let stamp_ns = entered.max(now - self.smoothing).as_ns().max(self.last_stamp_ns);
        self.last_stamp_ns = stamp_ns;
        let number = self.next;
        self.next += 1;
        self.keep(now, number, stamp_ns, &packet);
        self.counters.sent += 1;
        if let Some(second) = second {
            self.counters.copies += 1;
            self.copy = Some((second, number, stamp_ns, packet.clone()));
        }
        self.level_shares(now);
        let from = now - self.slack.max(self.late.min(now - entered));
        let flags = Flags {
            quick,
            ..Flags::default()
        };
        Some(self.put(from, index, number, stamp_ns, flags, packet))
    }

    fn is_free(&self, now: PicoTime, lane: usize) -> bool {
        self.lanes
            .get(lane)
            .is_some_and(|lane| lane.pacer.free_at() <= now)
    }

    /// The lane that the next packet takes, and in a mirror its second one.
    fn next_lanes(&self, now: PicoTime) -> Option<(usize, Option<usize>)> {
        let free = self.used(now).filter(|i| self.is_free(now, *i));
        let index = free.min_by_key(|i| self.lanes[*i].share_ps)?;
        if self.mode != Mode::Mirror {
            return Some((index, None));
        }
        // Both lanes have to be free, so that the pair goes at the slower one's rate.
        let others = self.used(now).filter(|i| *i != index);
        let second = others.max_by_key(|i| self.lanes[*i].rate);
        if second.is_some_and(|i| !self.is_free(now, i)) {
            return None;
        }
        Some((index, second))
    }

    fn has_quick(&self) -> bool {
        self.mode == Mode::Deskew && self.repair
    }

    /// Whether the packet whose turn it is is quick.
    fn is_quick(&self) -> bool {
        let first = self.queue.front().filter(|_| self.has_quick());
        first.is_some_and(|(_, packet)| packet.is_acknowledgement())
    }

    /// Whether a quick packet holds nobody up when it waits for its lane: it is the only one, or no held packet left of late, behind which
    /// it would wait at the far end.
    fn is_alone(&self, now: PicoTime) -> bool {
        if self.queue.len() == 1 {
            return true;
        }
        let delays = || self.used(now).filter_map(|i| self.lanes[i].delay_ns);
        let apart = delays().max().zip(delays().min());
        let apart_ns = apart.map_or(0, |(most, least)| most.abs_diff(least));
        let apart = PicoDuration::from_ns(apart_ns.min(HOLD_LIMIT.as_ns()));
        self.held.is_none_or(|at| now >= at + apart)
    }

    /// A lane that was out does not catch up on what it missed.
    fn level_shares(&mut self, now: PicoTime) {
        let most = self.used(now).map(|i| self.lanes[i].share_ps).max().unwrap_or(0);
        let least = most.saturating_sub(SHARE_LAG_PS);
        for lane in &mut self.lanes {
            lane.share_ps = lane.share_ps.max(least);
        }
    }

    fn put(
        &mut self,
        from: PicoTime,
        index: usize,
        number: u64,
        stamp_ns: u64,
        flags: Flags,
        packet: T,
    ) -> (usize, u64, Body<T>) {
        let bytes = INSIDE_BYTES as u64 + packet.len_bytes();
        let lane_number = self.lanes.get_mut(index).map_or(0, |lane| lane.send(from, bytes));
        let body = Body::Data {
            number,
            stamp_ns,
            again: flags.again,
            copy: flags.copy,
            quick: flags.quick,
            packet,
        };
        (index, lane_number, body)
    }

    fn keep(&mut self, now: PicoTime, number: u64, stamp_ns: u64, packet: &T) {
        if !self.repair {
            return;
        }
        self.store_bytes += packet.len_bytes();
        self.store.push_back(Kept {
            number,
            sent: now,
            stamp_ns,
            packet: packet.clone(),
        });
        let old = now - self.hold_max;
        while let Some(first) = self.store.front()
            && (first.sent < old || self.store_bytes > self.hold_bytes)
        {
            self.store_bytes -= first.packet.len_bytes();
            self.store.pop_front();
        }
    }

    fn send_again(&mut self, now: PicoTime) -> Option<(usize, u64, Body<T>)> {
        while !self.again.is_empty() {
            let index = self.quickest(now)?;
            let number = self.again.pop_front()?;
            // The store holds consecutive numbers.
            let first = self.store.front().map_or(u64::MAX, |kept| kept.number);
            let kept = number.checked_sub(first).and_then(|n| self.store.get(n as usize));
            let Some((stamp_ns, packet)) = kept.map(|kept| (kept.stamp_ns, kept.packet.clone())) else {
                self.counters.unrepairable += 1;
                continue;
            };
            self.counters.repaired += 1;
            let again = Flags {
                again: true,
                ..Flags::default()
            };
            return Some(self.put(now - self.slack, index, number, stamp_ns, again, packet));
        }
        None
    }

    /// When there will be something to do.
    pub fn next_wakeup(&self, now: PicoTime) -> PicoTime {
        let probes = self.lanes.iter().filter(|lane| !lane.dropped);
        let probes = probes.map(LaneOut::next_wakeup).min();
        let probes = probes.unwrap_or(PicoTime::MAX);
        if self.queue.is_empty() {
            return probes;
        }
        let free = |i: usize| self.lanes[i].pacer.free_at();
        let next = match self.mode {
            _ if self.is_quick() && self.is_alone(now) => self.quickest(now).map(free),
            Mode::Mirror => self.used(now).map(free).max(),
            _ => self.used(now).map(free).min(),
        };
        // A penalty that ends is seen with the next probe.
        next.map_or(probes, |free| free.min(probes))
    }
}
