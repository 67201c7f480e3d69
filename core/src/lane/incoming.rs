//! The receiving side: delays, play-out time, what is missing.
//!
//! **Play-out time** above the stamp on our clock: [`super::playtime`]. What took more than `skew_max` above the fastest lane's least delay
//! does not count.
//!
//! The margin is at least a quarter of the spread of a lane that reorders: of delays that vary at random a larger one than those seen
//! is to come, and in deskew without repair what comes behind its turn is lost.
//!
//! A probe counts as a full packet would: with its serialisation at the lane's capacity and the sender's smoothing added, so that the first
//! full packet of a slow lane is not late.
//!
//! **Quick** packets (see `outgoing.rs`) leave as soon as it is their turn, unless a lane in use reorders by more than [`QUICK_SPREAD_NS`]: then its
//! jitter would show in every round trip.
//!
//! **Missing**: number `n` is missing when every lane in use has delivered a number above it (or a probe that says that
//! such were sent) and it is not here. Where a lane was seen to reorder, its spread of delay is waited for besides.

use super::{
    arrivals::Arrivals,
    clock::{StampClock, Trend},
    config::{BundleConfig, Mode},
    playout::{Arrived, Delivery, PlayOut, Rules, Verdict},
    playtime::{Came, PlayTime},
    seen::SEEN_PACKETS,
    status::InCounters,
    train::Arriving,
    wire::{ASKED_MAX, LaneReport, NUMBER_END, Report},
};
use crate::units::{PicoDuration, PicoTime};
use alloc::{
    collections::{BTreeMap, VecDeque},
    vec::Vec,
};

/// Most missing numbers that are kept in mind.
pub const MISSING_MAX: usize = 8_192;
/// A delay further than this from the first one's is no delay, ns.
const DELAY_LIMIT_NS: i64 = 60_000_000_000;
/// Window of a lane's least and largest delay, ns.
const SPREAD_WINDOW_NS: i64 = 500_000_000;
/// A lane that is there and not used for so long is left out, ns.
const LEFT_OUT_NS: i64 = 1_000_000_000;
/// Stands for a lane whose leaving has been seen to.
const LONG_AGO_NS: i64 = i64::MIN / 2;

/// Frame of a full packet on most paths.
const FULL_FRAME_BYTES: u64 = 1_518;
/// Spread of delay up to which a quick packet is not held, ns: by more than 4 ms of round trip a stream of CUBIC leaves slow start (HyStart; Linux
/// `HYSTART_DELAY_MIN`).
const QUICK_SPREAD_NS: i64 = 4_000_000;
/// Times that a missing number is asked for.
const ASKS_MAX: u8 = 3;

#[derive(Debug, Clone, Default)]
struct LaneIn {
    /// All numbers below it were sent before what arrived here last.
    passed: u64,
    arrivals: Arrivals,
    /// Since when the peer has not used it although it is there, ns.
    idle_ns: Option<i64>,
    train: Arriving,
    trend: Trend,
    started_ns: Option<i64>,
    /// What a full packet may take longer than a probe: its serialisation and the wait that does not move its stamp.
    full_ns: i64,
    spread: Option<(i64, i64)>,
    before: Option<(i64, i64)>,
}

impl LaneIn {
    /// Least and largest delay of late.
    fn range(&self) -> Option<(i64, i64)> {
        match (self.spread, self.before) {
            (Some(a), Some(b)) => Some((a.0.min(b.0), a.1.max(b.1))),
            (a, b) => a.or(b),
        }
    }

    fn width(&self) -> i64 {
        self.range().map_or(0, |(least, most)| most - least)
    }

    fn note_delay(&mut self, now_ns: i64, delay: i64) {
        let started = *self.started_ns.get_or_insert(now_ns);
        if now_ns - started >= SPREAD_WINDOW_NS {
            self.started_ns = Some(now_ns);
            self.before = self.spread.take();
        }
        let (least, most) = self.spread.unwrap_or((delay, delay));
        self.spread = Some((least.min(delay), most.max(delay)));
    }
}

#[derive(Debug, Clone, Copy)]
struct Missing {
    since_ns: i64,
    asks: u8,
}

/// Data as it arrived.
#[derive(Debug, Clone)]
pub struct Data<T> {
    pub number: u64,
    pub stamp_ns: u64,
    pub again: bool,
    pub quick: bool,
    pub len_bytes: u64,
    pub packet: T,
}

/// The receiving side of an end.
#[derive(Debug, Clone)]
pub struct Incoming<T> {
    repair: bool,
    margin_ns: i64,
    skew_ns: i64,
    lanes: Vec<LaneIn>,
    in_use: u16,
    /// Stamp of the probe that said so: those of slower lanes are older.
    in_use_ns: u64,
    clock: StampClock,
    latest_stamp_ns: i64,
    play_out: PlayOut<T>,
    play: PlayTime,
    missing: BTreeMap<u64, Missing>,
    /// When to ask for which number first, and again: each in the order of time.
    asks: [VecDeque<(i64, u64)>; 2],
    scanned: u64,
    /// Round trip of the fastest lane, ns.
    rtt_ns: i64,
    pub counters: InCounters,
}

fn ns(time: PicoTime) -> i64 {
    // 2^64 ps are 1.8 * 10^16 ns.
    time.as_ns() as i64
}

impl<T> Incoming<T> {
    pub fn new(config: &BundleConfig) -> Self {
        let (margin_ns, hold_ns) = (config.margin.as_ns() as i64, config.hold_max.as_ns() as i64);
        let lanes = config.lanes.iter().map(|lane| LaneIn {
            full_ns: (lane.capacity.time_for(FULL_FRAME_BYTES) + config.smoothing).as_ns() as i64,
            ..LaneIn::default()
        });
        Incoming {
            repair: config.repair,
            margin_ns,
            skew_ns: config.skew_max.as_ns() as i64,
            lanes: lanes.collect(),
            in_use: u16::MAX,
            in_use_ns: 0,
            clock: StampClock::default(),
            latest_stamp_ns: 0,
            play_out: PlayOut::new(Rules {
                mode: config.mode,
                repair: config.repair && config.mode != Mode::Mirror,
                late: config.late,
                hold_ns,
                margin_ns,
                hold_bytes: config.hold_bytes,
            }),
            play: PlayTime::new(config.lanes.len(), hold_ns),
            missing: BTreeMap::new(),
            asks: [VecDeque::new(), VecDeque::new()],
            scanned: 0,
            rtt_ns: 0,
            counters: InCounters::default(),
        }
    }

    /// Any datagram has arrived on a lane.
    pub fn note_datagram(&mut self, arrived: PicoTime, lane: usize, lane_number: u64) {
        if let Some(lane) = self.lanes.get_mut(lane) {
            lane.arrivals.note(ns(arrived), lane_number);
        }
    }

    /// A stamped datagram: how long it took. `None` for a stamp that cannot be.
    fn note_stamp(
        &mut self,
        (now_ns, arrived_ns): (i64, i64),
        index: usize,
        stamp_ns: u64,
        probe: bool,
    ) -> Option<i64> {
        let stamp = i64::try_from(stamp_ns).ok().filter(|s| *s < i64::MAX / 8)?;
        self.clock.start(stamp, arrived_ns);
        let delay = self.clock.delay(stamp, arrived_ns);
        if delay.abs() > DELAY_LIMIT_NS {
            return None;
        }
        self.latest_stamp_ns = self.latest_stamp_ns.max(stamp);
        let steadiest = self
            .lanes
            .iter()
            .enumerate()
            .filter(|(_, lane)| lane.spread.is_some())
            .min_by_key(|(_, lane)| lane.width())
            .map(|(i, _)| i);
        let lane = self.lanes.get_mut(index)?;
        lane.note_delay(now_ns, delay);
        if lane.trend.observe(stamp, arrived_ns)
            && steadiest == Some(index)
            && let Some(slope) = lane.trend.slope_ppb()
        {
            self.clock.set_drift(self.latest_stamp_ns, slope);
        }
        // A lane that is not used yet counts, so that its first packet is not late; one that is left out does not.
        let counts = !self.is_left_out(now_ns, index);
        if counts && delay.saturating_sub(self.fastest_ns()) <= self.skew_ns {
            let full_ns = self.lanes.get(index).map_or(0, |lane| lane.full_ns);
            let taken = if probe {
                delay.saturating_add(full_ns)
            } else {
                delay
            };
            self.play.note(Came {
                now_ns,
                lane: index,
                stamp_ns: arrived_ns.saturating_sub(delay),
                delay_ns: taken,
                margin_ns: self.margin_ns(),
                fastest_ns: self.fastest_ns(),
            });
        }
        Some(delay)
    }

    /// Whether the peer sends packets on a lane.
    fn is_used(&self, lane: usize) -> bool {
        let bit = u32::try_from(lane).ok().and_then(|l| 1u16.checked_shl(l));
        bit.is_some_and(|bit| self.in_use & bit != 0)
    }

    /// Whether the peer has not used a lane that is there for long. When it just has ceased to, and when it begins again, the play-out is set to
    /// what the lanes in use need.
    fn is_left_out(&mut self, now_ns: i64, index: usize) -> bool {
        let used = self.is_used(index);
        let Some(lane) = self.lanes.get_mut(index) else {
            return true;
        };
        let since = lane.idle_ns;
        lane.idle_ns = if used { None } else { Some(since.unwrap_or(now_ns)) };
        match since {
            None => return false,
            Some(LONG_AGO_NS) if used => self.set_play(now_ns, true),
            Some(since) if !used && since != LONG_AGO_NS && now_ns - since >= LEFT_OUT_NS => {
                lane.idle_ns = Some(LONG_AGO_NS);
                self.set_play(now_ns, false);
            }
            Some(_) => {}
        }
        !used && self.lanes[index].idle_ns == Some(LONG_AGO_NS)
    }

    /// Sets the play-out time by the lanes in use alone: up for one that is back, else down.
    fn set_play(&mut self, now_ns: i64, up: bool) {
        let fastest = self.fastest_ns();
        let used = self.lanes.iter().enumerate().filter(|(i, _)| self.is_used(*i));
        let most = used
            .filter_map(|(_, lane)| lane.range().map(|(_, most)| most + lane.full_ns))
            .filter(|most| most.saturating_sub(fastest) <= self.skew_ns)
            .max();
        if let (Some(most), Some(play)) = (most, self.play.get()) {
            let want = most + self.margin_ns();
            self.play
                .set(now_ns, if up { want.max(play) } else { want.min(play) });
        }
    }

    /// Whether packets are held to their play-out time. Where what is late is waited for (`repair`), a single lane that keeps its order has
    /// nothing to be held for.
    fn is_held(&self) -> bool {
        let mut used = self.lanes.iter().enumerate().filter(|(i, _)| self.is_used(*i));
        let single = used.next().filter(|_| used.next().is_none());
        !self.repair || single.is_none_or(|(_, lane)| lane.arrivals.reorders)
    }

    fn margin_ns(&self) -> i64 {
        self.margin_ns.max(self.reorder_ns() / 4)
    }

    fn fastest_ns(&self) -> i64 {
        let least = |lane: &LaneIn| lane.range().map(|(least, _)| least);
        self.lanes.iter().filter_map(least).min().unwrap_or(0)
    }

    /// A packet has arrived.
    pub fn handle_data(&mut self, (now, arrived): (PicoTime, PicoTime), lane: usize, data: Data<T>) {
        let Data {
            number,
            stamp_ns,
            again,
            quick,
            len_bytes,
            packet,
        } = data;
        let (now_ns, arrived_ns) = (ns(now), ns(arrived));
        self.counters.arrived += 1;
        // What is sent again has an old stamp, which says nothing of the lane.
        let delay = if again {
            i64::try_from(stamp_ns)
                .ok()
                .map(|s| self.clock.delay(s, arrived_ns))
        } else {
            self.note_stamp((now_ns, arrived_ns), lane, stamp_ns, false)
        };
        let (Some(delay), true) = (delay, number < NUMBER_END) else {
            self.counters.invalid += 1;
            return;
        };
        if let Some(lane) = self.lanes.get_mut(lane)
            && !again
        {
            lane.passed = lane.passed.max(number + 1);
        }
        self.missing.remove(&number);
        let stamp_at_ns = arrived_ns.saturating_sub(delay);
        let play = self.play.at(stamp_at_ns).unwrap_or(self.margin_ns);
        let quick = quick && self.reorder_ns() <= QUICK_SPREAD_NS;
        let due_ns = if quick || !self.is_held() {
            now_ns
        } else {
            stamp_at_ns.saturating_add(play)
        };
        self.play_out.take(
            Arrived {
                number,
                stamp_ns,
                len_bytes,
                arrived_ns: now_ns,
                due_ns,
                packet,
            },
            &mut self.counters,
        );
        self.scan(now_ns);
    }

    /// One of a train has arrived. Of the last one: how many did, and the time from first to last, ns.
    pub fn handle_train(
        &mut self,
        arrived: PicoTime,
        lane: usize,
        id: u32,
        index: u16,
        count: u16,
    ) -> Option<(u16, u64)> {
        let lane = self.lanes.get_mut(lane)?;
        lane.train.handle(arrived, id, index, count)
    }

    /// A probe has arrived: all numbers below `next` were sent before it.
    pub fn handle_probe(
        &mut self,
        (now, arrived): (PicoTime, PicoTime),
        lane: usize,
        sent_ns: u64,
        next: u64,
        in_use: u16,
    ) {
        let now_ns = ns(now);
        if self
            .note_stamp((now_ns, ns(arrived)), lane, sent_ns, true)
            .is_none()
            || next > NUMBER_END
        {
            self.counters.invalid += 1;
            return;
        }
        if sent_ns >= self.in_use_ns {
            self.in_use_ns = sent_ns;
            if self.in_use != in_use {
                self.in_use = in_use;
                // Before the first packet of a lane that is back.
                for index in 0..self.lanes.len() {
                    self.is_left_out(now_ns, index);
                }
            }
        }
        if let Some(lane) = self.lanes.get_mut(lane) {
            lane.passed = lane.passed.max(next);
        }
        self.scan(now_ns);
    }

    /// Finds numbers that every lane in use has passed.
    fn scan(&mut self, now_ns: i64) {
        let used = self.lanes.iter().enumerate().filter(|(i, _)| self.is_used(*i));
        let passed = used.map(|(_, lane)| lane.passed).min().unwrap_or(0);
        let from = self.scanned.max(self.play_out.next());
        // Further below, a number cannot be told from a repeat.
        let from = from.max(passed.saturating_sub(SEEN_PACKETS));
        let ask_ns = now_ns + self.reorder_ns();
        for number in from..passed {
            if !self.play_out.has(number) && self.missing.len() < MISSING_MAX {
                let entry = Missing {
                    since_ns: now_ns,
                    asks: 0,
                };
                self.missing.insert(number, entry);
                if self.repair {
                    self.asks[0].push_back((ask_ns, number));
                }
            }
        }
        self.scanned = self.scanned.max(passed);
    }

    /// The round trip of the fastest lane, which a repair takes.
    pub fn set_rtt(&mut self, rtt: PicoDuration) {
        self.rtt_ns = rtt.as_ns() as i64;
    }

    /// How long a missing number may be on a lane in use that reorders.
    fn reorder_ns(&self) -> i64 {
        let used = self.lanes.iter().enumerate().filter(|(i, _)| self.is_used(*i));
        let widths = used.filter(|(_, lane)| lane.arrivals.reorders);
        widths.map(|(_, lane)| lane.width()).max().unwrap_or(0)
    }

    /// Between two questions for the same number.
    fn again_ns(&self) -> i64 {
        self.rtt_ns + self.rtt_ns / 2 + self.margin_ns
    }

    /// The next packet that leaves by `now`.
    pub fn poll(&mut self, now: PicoTime) -> Option<Delivery<T>> {
        let wait = self.reorder_ns();
        let patience = if self.repair {
            wait + self.again_ns() * i64::from(ASKS_MAX)
        } else {
            wait
        };
        let (missing, scanned) = (&self.missing, self.scanned);
        let now_ns = ns(now);
        let verdict = |number: u64| match missing.get(&number) {
            Some(missing) if now_ns - missing.since_ns < patience => {
                Verdict::Wait(missing.since_ns + patience)
            }
            Some(_) => Verdict::Lost,
            None if number < scanned => Verdict::Lost,
            None => Verdict::Unknown,
        };
        let delivery = self.play_out.poll(now_ns, verdict, &mut self.counters);
        let next = self.play_out.next();
        while let Some(entry) = self.missing.first_entry()
            && *entry.key() < next
        {
            entry.remove();
        }
        delivery
    }

    /// Numbers to ask for now, at most [`ASKED_MAX`].
    pub fn poll_asked(&mut self, now: PicoTime) -> Vec<u64> {
        let (now_ns, again) = (ns(now), self.again_ns());
        let mut asked = Vec::new();
        for queue in 0..self.asks.len() {
            while asked.len() < ASKED_MAX
                && let Some((due, number)) = self.asks[queue].front().copied()
                && due <= now_ns
            {
                self.asks[queue].pop_front();
                let Some(missing) = self.missing.get_mut(&number) else {
                    continue;
                };
                missing.asks += 1;
                asked.push(number);
                if missing.asks < ASKS_MAX {
                    self.asks[1].push_back((now_ns + again, number));
                }
            }
        }
        self.counters.asked += asked.len() as u64;
        asked
    }

    /// When a number will have to be asked for.
    pub fn next_asked(&self) -> Option<PicoTime> {
        let heads = self.asks.iter().filter_map(|queue| queue.front());
        let due = heads.map(|(due, _)| *due).min()?;
        Some(PicoTime::from_ns(u64::try_from(due).unwrap_or(0)))
    }

    /// What the peer has to know.
    pub fn report(&mut self, now: PicoTime, asked: Vec<u64>) -> Report {
        let lanes = self.lanes.iter_mut().enumerate().map(|(index, lane)| {
            let (end, arrived) = lane.arrivals.settled(ns(now), lane.width());
            LaneReport {
                lane: index as u8,
                end,
                arrived,
                least_delay_ns: lane.range().map_or(i64::MAX, |(least, _)| least),
            }
        });
        Report {
            lanes: lanes.collect(),
            asked,
        }
    }

    /// When the next packet may leave.
    pub fn next_play(&self) -> Option<PicoTime> {
        self.play_out.next_wakeup()
    }

    pub fn drift_ppb(&self) -> i64 {
        self.clock.drift_ppb()
    }

    /// Play-out time above the fastest lane's least delay.
    pub fn play_out(&self) -> PicoDuration {
        let above = self.play.get().unwrap_or(0).saturating_sub(self.fastest_ns());
        PicoDuration::from_ns(u64::try_from(above).unwrap_or(0))
    }

    /// A lane's datagrams and the spread of its delay.
    pub fn lane(&self, index: usize) -> (u64, Option<PicoDuration>) {
        self.lanes.get(index).map_or((0, None), |lane| {
            let width = lane.range().map(|_| PicoDuration::from_ns(lane.width() as u64));
            (lane.arrivals.total, width)
        })
    }
}
