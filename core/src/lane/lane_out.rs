//! One lane as its sender sees it: its pacer, its rate, its losses, whether it is used.
//!
//! The pacer is below the rate, so that nothing queues on the path: at [`PACE_STATED`] thousandths of a stated one. The longest burst, of
//! [`MADE_UP_MAX`](super::outgoing::MADE_UP_MAX), has then left the path's queue after 4 s, before the play-out time would follow it
//! (10 s), and crystals are apart by 0.2 thousandths at most. A measured rate may be off by as much as trains are: [`PACE_MEASURED`].
//!
//! **Rate.** A lane starts at its configured capacity. When over 10 % of what was sent in a report's interval is missing, it is held
//! to what arrives; it goes up again by 1 % of its capacity each interval. Where the capacity is measured (`train.rs`) it is what arrives from then
//! on, until the next train; and while trains get lost, over 2 % is enough: a train does not fit into a queue that is full.

use super::{
    config::{ConfigError, LaneConfig},
    health::Health,
    outgoing::JUDGE_EVERY,
    status::LaneState,
    train::{TRAIN_PACKET_BYTES, Trains, differ},
    wire::{Body, INSIDE_BYTES, LaneReport},
};
use crate::{
    pace::{ByteClockPacer, PACER_RATE_MAX, PACER_RATE_MIN},
    units::{BitRate, FrameBytes, PS_BITS_PER_BYTE, PicoDuration, PicoTime},
};

/// Thousandths of a stated rate that a lane is paced at beside others.
pub const PACE_STATED: u64 = 995;
/// The same while it is the only one in use: a queue on its path then parts it from no other lane.
pub const PACE_ALONE: u64 = 1_000;
/// Thousandths of a measured one.
pub const PACE_MEASURED: u64 = 990;
/// Probes and answers take one part of so many of a lane, unless that were too seldom (`health.rs`).
const PROBES_ONE_OF: u64 = 500;
/// Bytes of a probe and an answer beside what is around a packet.
const PROBE_BYTES: u64 = 18;
/// First time out for a lane that would make the bundle slower.
pub const PENALTY_MIN: PicoDuration = PicoDuration::from_secs(10);
const PENALTY_MAX: PicoDuration = PicoDuration::from_secs(320);
/// Between adjustments of a lane's rate.
const ADJUST_EVERY: PicoDuration = PicoDuration::from_ms(100);
/// Datagrams of an interval without which its loss says nothing.
const ADJUST_LEAST: u64 = 20;
/// Losses without which a lane counts as clean (a moving sum).
const LOSSES_LEAST: u64 = 3;
/// Trains without an answer from which on less loss is enough.
const UNHEARD: u32 = 3;

/// One lane.
#[derive(Debug, Clone)]
pub struct LaneOut {
    config: LaneConfig,
    pub rate: BitRate,
    pub pacer: ByteClockPacer,
    /// Time used: what it sent over its rate.
    pub share_ps: u64,
    trains: Option<Trains>,
    pub health: Health,
    pub dropped: bool,
    /// Whether it is the only one in use.
    alone: bool,
    penalty: Option<(LaneState, PicoTime)>,
    penalty_next: PicoDuration,
    number: u64,
    /// Datagrams that the peer's reports say were sent and lost, halved over time.
    pub recent: (u64, u64),
    reported: LaneReport,
    /// What was sent before this number was sent to a dead lane and says nothing of the live one.
    baseline: Option<u64>,
    adjusted: (PicoTime, LaneReport),
    /// What was sent before this number was sent at a higher rate.
    lowered: u64,
    pub delay_ns: Option<i64>,
    pub sent_bytes: u64,
    pub outages: u64,
}

fn paced(rate: BitRate, measured: bool, alone: bool) -> BitRate {
    let thousandths = match (measured, alone) {
        (true, _) => PACE_MEASURED,
        (false, true) => PACE_ALONE,
        (false, false) => PACE_STATED,
    };
    let bps = u128::from(rate.bps()) * u128::from(thousandths) / 1_000;
    let paced = BitRate::new(bps as u64).unwrap_or(BitRate::MIN);
    paced.clamp(PACER_RATE_MIN, PACER_RATE_MAX)
}

impl LaneOut {
    pub fn new(config: LaneConfig) -> Result<Self, ConfigError> {
        let pacer = ByteClockPacer::new(paced(config.capacity, config.measured, false));
        let mut lane = LaneOut {
            config,
            rate: config.capacity,
            pacer: pacer.map_err(|_| ConfigError::Capacity(config.capacity))?,
            share_ps: 0,
            trains: config
                .measured
                .then(|| Trains::new(config.overhead_bytes + u64::from(TRAIN_PACKET_BYTES))),
            health: Health::default(),
            dropped: false,
            alone: false,
            penalty: None,
            penalty_next: PENALTY_MIN,
            number: 0,
            recent: (0, 0),
            reported: LaneReport::default(),
            baseline: None,
            adjusted: (PicoTime::ZERO, LaneReport::default()),
            lowered: 0,
            delay_ns: None,
            sent_bytes: 0,
            outages: 0,
        };
        lane.set_rate(config.capacity);
        Ok(lane)
    }

    fn set_rate(&mut self, rate: BitRate) {
        self.rate = rate.min(self.config.capacity);
        // Clamped to the pacer's bounds, it is taken.
        let _ = self
            .pacer
            .set_rate(paced(self.rate, self.config.measured, self.alone));
        let probed = self.rate.time_for(2 * self.config.overhead_bytes + PROBE_BYTES);
        self.health.set_sparse(probed.saturating_mul(PROBES_ONE_OF));
    }

    /// Says whether it is the only one in use.
    pub fn set_alone(&mut self, alone: bool) {
        if self.alone != alone {
            self.alone = alone;
            self.set_rate(self.rate);
        }
    }

    /// What its path carries.
    pub fn capacity(&self) -> BitRate {
        self.config.capacity
    }

    /// Whether that is measured.
    pub fn is_measured(&self) -> bool {
        self.config.measured
    }

    /// The next datagram of a train that is due.
    pub fn poll_train<T>(&mut self, now: PicoTime) -> Option<Body<T>> {
        let trains = self.trains.as_mut().filter(|_| self.health.is_up())?;
        let (id, index, count) = trains.poll(now, self.config.capacity)?;
        Some(Body::Train {
            id,
            index,
            count,
            sent_ns: now.as_ns(),
            bytes: TRAIN_PACKET_BYTES,
        })
    }

    /// The far end tells how a train arrived.
    pub fn handle_trained(&mut self, id: u32, received: u16, span_ns: u64) {
        let capacity = self.trains.as_mut().and_then(|t| t.handle(id, received, span_ns));
        let Some(capacity) = capacity else { return };
        let capacity = capacity.clamp(PACER_RATE_MIN, PACER_RATE_MAX);
        let changed = differ(capacity.bps(), self.config.capacity.bps());
        // A rate that the delivery has lowered stays while the capacity does.
        let whole = self.rate == self.config.capacity;
        self.config.capacity = capacity;
        self.set_rate(if changed || whole { capacity } else { self.rate });
    }

    /// When there is something to do that no packet asks for.
    pub fn next_wakeup(&self) -> PicoTime {
        let trains = self.trains.as_ref().filter(|_| self.health.is_up());
        let train = trains.map_or(PicoTime::MAX, Trains::next_wakeup);
        self.health.next_wakeup().min(train)
    }

    /// What it is held to.
    pub fn paced(&self) -> BitRate {
        paced(self.rate, self.config.measured, self.alone)
    }

    pub fn state(&self, now: PicoTime) -> LaneState {
        if self.dropped {
            LaneState::Dropped
        } else if !self.health.was_up() {
            LaneState::New
        } else if !self.health.is_up() {
            LaneState::Dead
        } else if self.trains.as_ref().is_some_and(|t| t.is_waiting(now)) {
            LaneState::New
        } else {
            match self.penalty {
                Some((why, until)) if now < until => why,
                _ => LaneState::Used,
            }
        }
    }

    /// The least is used first; `None`: not at all.
    pub fn rank(&self, now: PicoTime) -> Option<u8> {
        match self.state(now) {
            LaneState::Used => Some(0),
            LaneState::Lossy | LaneState::TooSlow => Some(1),
            LaneState::Dead => Some(2),
            LaneState::New | LaneState::Dropped => None,
        }
    }

    /// Datagrams sent.
    pub fn sent(&self) -> u64 {
        self.number
    }

    pub fn loss_ppm(&self) -> u64 {
        match self.recent {
            (_, lost) if lost < LOSSES_LEAST => 0,
            (sent, lost) => lost.saturating_mul(1_000_000) / sent.max(1),
        }
    }

    /// Takes the time of a datagram, from `from` on, and gives it its number.
    pub fn send(&mut self, from: PicoTime, inside_bytes: u64) -> u64 {
        let frame = self.config.overhead_bytes + inside_bytes - INSIDE_BYTES as u64;
        self.pacer.depart(from, FrameBytes::new(frame));
        let time = u128::from(frame) * u128::from(PS_BITS_PER_BYTE) / u128::from(self.rate.bps());
        self.share_ps = self.share_ps.saturating_add(time as u64);
        self.sent_bytes += frame;
        self.number += 1;
        self.number - 1
    }

    pub fn handle_report(&mut self, now: PicoTime, report: LaneReport) {
        if report.end > self.number || report.end < self.reported.end {
            // Not of anything that was sent, or older than the last one.
            return;
        }
        self.delay_ns = (report.least_delay_ns != i64::MAX).then_some(report.least_delay_ns);
        if let Some(number) = self.baseline {
            if report.end >= number {
                self.reported = report;
                self.adjusted = (now, report);
                self.baseline = None;
            }
            return;
        }
        let sent = report.end - self.reported.end;
        let came = report.arrived.saturating_sub(self.reported.arrived);
        self.recent.0 += sent;
        // More may come than was sent in between: what was later than the lane's spread was counted as lost before.
        self.recent.1 = (self.recent.1 + sent).saturating_sub(came);
        self.reported = report;
        if self.health.is_up() {
            self.adjust(now);
        }
    }

    /// Holds the lane to what arrives.
    fn adjust(&mut self, now: PicoTime) {
        let (at, before) = self.adjusted;
        let sent = self.reported.end.saturating_sub(before.end);
        if now < at + ADJUST_EVERY || sent < ADJUST_LEAST {
            return;
        }
        self.adjusted = (now, self.reported);
        if before.end < self.lowered {
            return;
        }
        let came = self.reported.arrived.saturating_sub(before.arrived).min(sent);
        let rate = u128::from(self.rate.bps());
        let (capacity, floor) = (self.config.capacity.bps(), PACER_RATE_MIN.bps() * 2);
        let unheard = self.trains.as_ref().is_some_and(|t| t.unanswered() >= UNHEARD);
        let losing = sent - came > sent / if unheard { 50 } else { 10 };
        let bps = if losing {
            rate * u128::from(came) * 97 / (u128::from(sent) * 100)
        } else {
            rate + u128::from(capacity / 100)
        };
        let bps = (bps.min(u128::from(capacity)) as u64).max(floor.max(capacity / 64));
        let Some(rate) = BitRate::new(bps) else { return };
        if losing {
            self.lowered = self.number;
        }
        if let Some(trains) = self.trains.as_mut().filter(|_| losing) {
            // What was measured no longer holds; the next trains say what does.
            trains.forget();
            self.config.capacity = rate;
        }
        self.set_rate(rate);
    }

    /// The lane answers again: it starts as it is configured.
    pub fn revive(&mut self) {
        self.baseline = Some(self.number);
        self.recent = (0, 0);
        self.set_rate(self.config.capacity);
    }

    /// Takes the lane out of use, or lets it stay out until the next judgement while the reason lasts; one that is judged by what is `young` no
    /// longer than that.
    pub fn penalise(&mut self, now: PicoTime, why: LaneState, young: bool) {
        let short = JUDGE_EVERY + JUDGE_EVERY;
        if let Some((_, until)) = self.penalty
            && now < until
        {
            self.penalty = Some((why, until.max(now + short)));
            return;
        }
        self.outages += 1;
        let time = if young { short } else { self.penalty_next };
        self.penalty = Some((why, now + time));
        if !young {
            self.penalty_next = PicoDuration::from_ps(self.penalty_next.as_ps() * 2).min(PENALTY_MAX);
        }
    }
}
