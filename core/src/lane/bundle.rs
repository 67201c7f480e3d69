//! One end: both sides and what they tell each other.

use super::{
    Load,
    config::{BundleConfig, ConfigError},
    incoming::{Data, Incoming},
    outgoing::Outgoing,
    playout::Delivery,
    status::{BundleStatus, LaneState, LaneStatus},
    wire::{Body, Datagram, LANE_NUMBER_END},
};
use crate::units::{PicoDuration, PicoTime};
use alloc::collections::VecDeque;

/// Between reports.
pub const REPORT_EVERY: PicoDuration = PicoDuration::from_ms(50);
/// Most answers that wait to be sent.
const ANSWERS_MAX: usize = 256;

/// One end of a bundle. See the [module](super) for the order of calls.
#[derive(Debug, Clone)]
pub struct Bundle<T> {
    out: Outgoing<T>,
    inward: Incoming<T>,
    answers: VecDeque<(usize, Body<T>)>,
    next_report: PicoTime,
}

impl<T: Load> Bundle<T> {
    /// An end that has sent and seen nothing.
    ///
    /// # Errors
    /// A value of the configuration that is out of its range.
    pub fn new(config: &BundleConfig) -> Result<Self, ConfigError> {
        config.check()?;
        Ok(Bundle {
            out: Outgoing::new(config)?,
            inward: Incoming::new(config),
            answers: VecDeque::new(),
            next_report: PicoTime::ZERO,
        })
    }

    /// A packet enters the tunnel. `false`: the entry queue is full and it is dropped.
    pub fn handle_packet(&mut self, now: PicoTime, packet: T) -> bool {
        self.out.handle_packet(now, packet)
    }

    /// A datagram has arrived. Anything that it may hold is allowed.
    pub fn handle_datagram(&mut self, now: PicoTime, datagram: Datagram<T>) {
        self.handle_arrival(now, now, datagram);
    }

    /// A datagram that came in at `arrived`, by the machine's own stamp, is looked at now: how late the caller is does not count
    /// as the lane's delay. Stamps need not rise from call to call; what is later than `now` counts as `now`.
    pub fn handle_arrival(&mut self, now: PicoTime, arrived: PicoTime, datagram: Datagram<T>) {
        let arrived = arrived.min(now);
        let lane = usize::from(datagram.lane);
        if lane >= self.out.lanes.len() || datagram.lane_number >= LANE_NUMBER_END {
            self.inward.counters.invalid += 1;
            return;
        }
        self.inward.note_datagram(arrived, lane, datagram.lane_number);
        match datagram.body {
            Body::Data {
                number,
                stamp_ns,
                again,
                copy: _,
                quick,
                packet,
            } => {
                let data = Data {
                    number,
                    stamp_ns,
                    again,
                    quick,
                    len_bytes: packet.len_bytes(),
                    packet,
                };
                self.inward.handle_data((now, arrived), lane, data);
            }
            Body::Probe {
                id,
                sent_ns,
                next,
                in_use,
            } => {
                self.inward
                    .handle_probe((now, arrived), lane, sent_ns, next, in_use);
                let answered_ns = now.as_ns();
                self.answer(
                    lane,
                    Body::Answer {
                        id,
                        sent_ns,
                        answered_ns,
                    },
                );
            }
            Body::Answer {
                id,
                sent_ns,
                answered_ns,
            } => self.handle_answer((now, arrived), lane, id, sent_ns, answered_ns),
            Body::Train { id, index, count, .. } => {
                if let Some((received, span_ns)) = self.inward.handle_train(arrived, lane, id, index, count) {
                    let trained = Body::Trained {
                        id,
                        received,
                        span_ns,
                    };
                    self.answer(lane, trained);
                }
            }
            Body::Trained {
                id,
                received,
                span_ns,
            } => {
                if let Some(lane) = self.out.lanes.get_mut(lane) {
                    lane.handle_trained(id, received, span_ns);
                }
            }
            Body::Report(report) => self.out.handle_report(now, &report.lanes, &report.asked),
        }
    }

    /// Notes what is to be sent back on a lane. Beyond so many nobody waits for one more.
    fn answer(&mut self, lane: usize, body: Body<T>) {
        if self.answers.len() < ANSWERS_MAX {
            self.answers.push_back((lane, body));
        }
    }

    fn handle_answer(
        &mut self,
        (now, arrived): (PicoTime, PicoTime),
        lane: usize,
        id: u32,
        sent_ns: u64,
        answered_ns: u64,
    ) {
        if let Some(lane) = self.out.lanes.get_mut(lane)
            && lane.health.handle_answer(now, arrived, id, sent_ns, answered_ns)
        {
            lane.revive();
            self.out.note_up(now);
        }
        if let Some(rtt) = self.out.least_rtt(now) {
            self.inward.set_rtt(rtt);
        }
    }

    /// The next datagram to send now.
    pub fn poll_datagram(&mut self, now: PicoTime) -> Option<Datagram<T>> {
        let in_use = self.out.check_health(now);
        if let Some((lane, answer)) = self.answers.pop_front() {
            return self.control(now, lane, answer);
        }
        for lane in 0..self.out.lanes.len() {
            let state = &mut self.out.lanes[lane];
            if state.dropped {
                continue;
            }
            if let Some(id) = state.health.poll_probe(now) {
                let probe = Body::Probe {
                    id,
                    sent_ns: now.as_ns(),
                    next: self.out.next_number(),
                    in_use,
                };
                return self.control(now, lane, probe);
            }
            if let Some(train) = state.poll_train(now) {
                return self.control(now, lane, train);
            }
        }
        if let Some(lane) = self.out.quickest(now) {
            let asked = self.inward.poll_asked(now);
            if !asked.is_empty() || now >= self.next_report {
                self.next_report = now + REPORT_EVERY;
                let report = Body::Report(self.inward.report(now, asked));
                return self.control(now, lane, report);
            }
        }
        let (lane, lane_number, body) = self.out.poll_data(now)?;
        Some(Datagram {
            lane: lane as u8,
            lane_number,
            body,
        })
    }

    fn control(&mut self, now: PicoTime, lane: usize, body: Body<T>) -> Option<Datagram<T>> {
        let lane_number = self.out.send_control(now, lane, body.len_bytes(T::len_bytes))?;
        Some(Datagram {
            lane: lane as u8,
            lane_number,
            body,
        })
    }

    /// The next packet that leaves the tunnel by now.
    pub fn poll_packet(&mut self, now: PicoTime) -> Option<Delivery<T>> {
        self.inward.poll(now)
    }

    /// When there will be something to do, if nothing arrives.
    pub fn next_wakeup(&self, now: PicoTime) -> PicoTime {
        let mut next = self.out.next_wakeup(now);
        if let Some(at) = self.inward.next_play() {
            next = next.min(at);
        }
        if self.out.in_use(now) != 0 {
            // Without a lane nothing can be reported or asked for.
            next = next.min(self.next_report);
            next = self.inward.next_asked().map_or(next, |at| at.min(next));
        }
        next
    }

    /// Takes a lane out by hand, or back in. `false`: there is no such lane.
    pub fn set_dropped(&mut self, lane: usize, dropped: bool) -> bool {
        let Some(lane) = self.out.lanes.get_mut(lane) else {
            return false;
        };
        if dropped && !lane.dropped {
            lane.outages += 1;
        }
        lane.dropped = dropped;
        true
    }

    /// How late the caller was of late: a lane may make up for so much of the time that packets have waited for it, beyond its
    /// slack, but for no more than [`MADE_UP_MAX`](super::MADE_UP_MAX).
    pub fn set_lateness(&mut self, late: PicoDuration) {
        self.out.set_lateness(late);
    }

    /// How everything stands.
    pub fn status(&self, now: PicoTime) -> BundleStatus {
        let used = self.out.lanes.iter();
        let fastest = used.filter_map(|lane| lane.delay_ns).min();
        let lanes = self.out.lanes.iter().enumerate().map(|(index, lane)| {
            let skew_ns = lane.delay_ns.zip(fastest).map(|(d, f)| d.saturating_sub(f));
            let (arrived, jitter) = self.inward.lane(index);
            LaneStatus {
                state: lane.state(now),
                paced: lane.paced(),
                capacity: lane.capacity(),
                measured: lane.is_measured(),
                rtt: lane.health.rtt(),
                skew: skew_ns.map(|ns| PicoDuration::from_ns(ns as u64)),
                loss_ppm: lane.loss_ppm(),
                jitter,
                sent: lane.sent(),
                sent_bytes: lane.sent_bytes,
                arrived,
                outages: lane.outages,
            }
        });
        let offsets = self
            .out
            .lanes
            .iter()
            .filter(|lane| lane.state(now) == LaneState::Used);
        let offset_ns = offsets
            .filter_map(|lane| lane.health.offset_ns())
            .min_by_key(|(_, bound)| *bound);
        BundleStatus {
            lanes: lanes.collect(),
            out: self.out.counters,
            inward: self.inward.counters,
            drift_ppb: self.inward.drift_ppb(),
            offset_ns,
            play_out: self.inward.play_out(),
        }
    }
}
