//! The network and its run.

use super::{
    flow::{End, Flow, FlowId, Packet},
    observer::Observer,
    queue::EventQueue,
    setup::SimError,
    stage::{Kind, StageId},
};
use crate::{
    pace::Spacing,
    tcp::{Kind as SegmentKind, Receiver, Segment, Sender},
    units::{BitRate, FrameBytes, PicoDuration, PicoTime, WireBytes},
    wan::{Count, StageCounters},
    wire::{FRAME_MIN, PREAMBLE, pad, pause_time},
};
use alloc::{collections::VecDeque, vec::Vec};

/// Frames of all flows, both ways. At all times `emitted + duplicated = delivered + dropped + held`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Given to the first stage of a way.
    pub emitted: Count,
    /// Copies that links made.
    pub duplicated: Count,
    /// Arrived at the end of a way.
    pub delivered: Count,
    /// Refused by a queue or lost on a link.
    pub dropped: Count,
    /// Inside a stage.
    pub held: Count,
}

/// Stages and flows in virtual time.
#[derive(Debug, Clone)]
pub struct Network {
    now: PicoTime,
    pub(super) stages: Vec<Kind>,
    pub(super) flows: Vec<Flow>,
    /// PAUSE frames on the way: when they are in, the port that obeys, for how long.
    holds: VecDeque<(PicoTime, StageId, PicoDuration)>,
    /// The port before every stage that is a receiver with a rate of its own.
    pub(super) drains: Vec<(StageId, StageId)>,
    queue: EventQueue,
    emitted: Count,
    delivered: Count,
    pause_count: u64,
}

impl Default for Network {
    fn default() -> Self {
        Self::new()
    }
}

/// Each flow has two places in the queue: its sender or source, and its receiver.
const PLACES_PER_FLOW: usize = 2;

impl Network {
    /// Without stages and flows.
    pub fn new() -> Self {
        Network {
            now: PicoTime::ZERO,
            stages: Vec::new(),
            flows: Vec::new(),
            holds: VecDeque::new(),
            drains: Vec::new(),
            queue: EventQueue::new(0),
            emitted: Count::default(),
            delivered: Count::default(),
            pause_count: 0,
        }
    }

    /// Changes a shaper's spacing for frames that start after now.
    pub fn set_spacing(&mut self, stage: StageId, spacing: Spacing) -> Result<(), SimError> {
        let now = self.now;
        match self.stages.get_mut(stage.index()) {
            Some(kind @ Kind::Shaper(_)) => kind.set_spacing(now, spacing),
            Some(_) => return Err(SimError::WrongStage(stage)),
            None => return Err(SimError::NoStage(stage)),
        }
        self.wake_stage(stage.index());
        Ok(())
    }

    /// Changes the pace of a connection (frame level) from the segment after the one sent last.
    ///
    /// # Errors
    /// [`SimError::NoConnection`]; [`SimError::Pace`] of a rate beyond the pacer's range.
    pub fn set_pace(&mut self, flow: FlowId, rate: BitRate) -> Result<(), SimError> {
        match self.flows.get_mut(flow.index()).map(|f| &mut f.end) {
            Some(End::Tcp(tcp)) => tcp.sender.set_pace(rate).map_err(SimError::Pace),
            _ => Err(SimError::NoConnection(flow)),
        }
    }

    /// Now.
    pub fn now(&self) -> PicoTime {
        self.now
    }

    /// The sender of a connection.
    pub fn sender(&self, flow: FlowId) -> Option<&Sender> {
        match &self.flows.get(flow.index())?.end {
            End::Tcp(tcp) => Some(&tcp.sender),
            End::OnOff(_) => None,
        }
    }

    /// The receiver of a connection.
    pub fn receiver(&self, flow: FlowId) -> Option<&Receiver> {
        match &self.flows.get(flow.index())?.end {
            End::Tcp(tcp) => Some(&tcp.receiver),
            End::OnOff(_) => None,
        }
    }

    /// What went through a stage.
    pub fn counters(&self, stage: StageId) -> Option<StageCounters> {
        self.stages.get(stage.index()).map(Kind::counters)
    }

    /// PAUSE frames that receivers have sent.
    pub fn pauses_sent(&self) -> u64 {
        self.pause_count
    }

    /// All frames so far.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals {
            emitted: self.emitted,
            delivered: self.delivered,
            ..Totals::default()
        };
        for counters in self.stages.iter().map(Kind::counters) {
            for (sum, part) in [
                (&mut totals.duplicated, counters.duplicated),
                (&mut totals.dropped, counters.dropped()),
                (&mut totals.held, counters.held),
            ] {
                sum.frames += part.frames;
                sum.bytes += part.bytes;
            }
        }
        totals
    }

    /// Runs until nothing is left to do at or before `end`, and sets the clock to it.
    pub fn run_until(&mut self, end: PicoTime, observer: &mut impl Observer) {
        self.prepare();
        let flow_places = PLACES_PER_FLOW * self.flows.len();
        loop {
            let next = self.queue.first();
            if !self.holds.is_empty() && self.obey_pause(next.map(|n| n.0), end) {
                continue;
            }
            let Some((at, place)) = next.filter(|n| n.0 <= end) else {
                break;
            };
            self.now = self.now.max(at);
            match place.checked_sub(flow_places) {
                Some(stage) => self.serve_stage(stage, observer),
                None if place % PLACES_PER_FLOW == 0 => {
                    self.drive_sender(place / PLACES_PER_FLOW, observer);
                }
                None => self.drive_receiver(place / PLACES_PER_FLOW, observer),
            }
        }
        self.now = self.now.max(end);
    }

    /// Places every stage and flow in the queue, for additions since the last run.
    fn prepare(&mut self) {
        let flow_places = PLACES_PER_FLOW * self.flows.len();
        self.queue = EventQueue::new(flow_places + self.stages.len());
        for (index, flow) in self.flows.iter().enumerate() {
            let place = PLACES_PER_FLOW * index;
            match &flow.end {
                End::Tcp(tcp) => {
                    self.queue.set(place, tcp.sender.next_wakeup());
                    self.queue.set(place + 1, tcp.receiver.next_wakeup());
                }
                End::OnOff(source) => self.queue.set(place, source.next()),
            }
        }
        for index in 0..self.stages.len() {
            self.wake_stage(index);
        }
    }

    #[inline]
    fn wake_stage(&mut self, index: usize) {
        if let Some(stage) = self.stages.get(index) {
            let place = PLACES_PER_FLOW * self.flows.len() + index;
            self.queue.set(place, stage.next_wakeup());
        }
    }

    /// Hands a packet to the stage at its hop; says whether it was taken.
    #[inline]
    fn offer(&mut self, id: StageId, len: FrameBytes, packet: Packet, observer: &mut impl Observer) -> bool {
        let now = self.now;
        if packet.segment.len > 0 {
            observer.entered(id, packet.flow, now, len);
        }
        let Some(stage) = self.stages.get_mut(id.index()) else {
            return false;
        };
        let flow = packet.flow;
        let taken = stage.take(now, len, packet);
        self.wake_stage(id.index());
        if !taken {
            observer.dropped(id, flow, now);
        }
        taken
    }

    fn serve_stage(&mut self, index: usize, observer: &mut impl Observer) {
        let now = self.now;
        while let Some(departure) = self.stages.get_mut(index).and_then(|s| s.poll(now)) {
            self.forward(departure.len, departure.token, observer);
        }
        self.send_pauses(index);
        self.wake_stage(index);
    }

    /// Sends the PAUSE frames that a receiver asks for: each is in when it has crossed the wire.
    #[inline]
    fn send_pauses(&mut self, index: usize) {
        let Some(Kind::Drain(drain)) = self.stages.get_mut(index) else {
            return;
        };
        let here = |pair: &&(StageId, StageId)| pair.0.index() == index;
        let Some((_, port)) = self.drains.iter().find(here).copied() else {
            return;
        };
        let line = drain.line();
        while let Some(request) = drain.poll_pause(self.now) {
            let at = request.at + line.time_of(WireBytes::new(PREAMBLE + FRAME_MIN));
            let place = self.holds.partition_point(|(t, ..)| *t <= at);
            let time = pause_time(request.quanta, line);
            self.holds.insert(place, (at, port, time));
            self.pause_count += 1;
        }
    }

    /// Lets a port obey the next PAUSE if that is in by `end` and not behind the next event, and says
    /// whether it was.
    fn obey_pause(&mut self, next: Option<PicoTime>, end: PicoTime) -> bool {
        let Some((at, port, time)) = self.holds.front().copied() else {
            return false;
        };
        if at > end || next.is_some_and(|next| next < at) {
            return false;
        }
        self.holds.pop_front();
        self.now = self.now.max(at);
        if let Some(Kind::Port(wire)) = self.stages.get_mut(port.index()) {
            wire.hold(at, time);
        }
        self.wake_stage(port.index());
        true
    }

    /// A packet has left a stage: on to the next, or to its end.
    #[inline]
    fn forward(&mut self, len: FrameBytes, mut packet: Packet, observer: &mut impl Observer) {
        let index = packet.flow.index();
        let Some(flow) = self.flows.get_mut(index) else {
            return;
        };
        if packet.hop == 0
            && !packet.back
            && let End::Tcp(tcp) = &mut flow.end
        {
            let waited = tcp.local_bytes >= tcp.local_limit;
            tcp.local_bytes = tcp.local_bytes.saturating_sub(len.get());
            let paced = tcp.window_paced && packet.segment.len > 0;
            if paced {
                tcp.waited(self.now - packet.segment.stamp);
            }
            if waited && tcp.local_bytes < tcp.local_limit {
                self.queue.set(PLACES_PER_FLOW * index, Some(self.now));
            }
            if paced && let Some(first) = flow.forward.first().copied() {
                self.follow_window(index, first);
            }
        }
        packet.hop += 1;
        let Some(flow) = self.flows.get(index) else {
            return;
        };
        let way = if packet.back {
            &flow.backward
        } else {
            &flow.forward
        };
        match way.get(usize::from(packet.hop)).copied() {
            Some(next) => {
                self.offer(next, len, packet, observer);
            }
            None => self.deliver(len, &packet, observer),
        }
    }

    #[inline]
    fn deliver(&mut self, len: FrameBytes, packet: &Packet, observer: &mut impl Observer) {
        let now = self.now;
        self.delivered.add(len);
        if packet.segment.len > 0 {
            observer.arrived(packet.flow, now, len, packet.segment.len);
        }
        let index = packet.flow.index();
        let Some(Flow {
            end: End::Tcp(tcp), ..
        }) = self.flows.get_mut(index)
        else {
            return;
        };
        if packet.back {
            tcp.take_ack(now, &packet.segment);
            self.drive_sender(index, observer);
        } else {
            tcp.receiver.handle_segment(now, &packet.segment);
            self.drive_receiver(index, observer);
        }
    }

    /// Lets a sender or source send what it can, and sets its next event.
    #[inline]
    fn drive_sender(&mut self, index: usize, observer: &mut impl Observer) {
        loop {
            let now = self.now;
            let Some(flow) = self.flows.get_mut(index) else {
                return;
            };
            let Some(first) = flow.forward.first().copied() else {
                return;
            };
            let datagram = matches!(flow.end, End::OnOff(_));
            let (len, segment) = match &mut flow.end {
                End::Tcp(tcp) => {
                    if tcp.local_bytes >= tcp.local_limit {
                        if tcp.next_ack(now) {
                            continue;
                        }
                        tcp.sender.handle_timer(now);
                        let next = [tcp.sender.next_timer(), tcp.inbox_at()];
                        self.queue
                            .set(PLACES_PER_FLOW * index, next.into_iter().flatten().min());
                        return;
                    }
                    let Some(segment) = tcp.sender.poll_transmit(now) else {
                        if tcp.next_ack(now) {
                            continue;
                        }
                        self.queue.set(PLACES_PER_FLOW * index, tcp.sender.next_wakeup());
                        return;
                    };
                    let len = pad(tcp.sizes.frame(&segment));
                    tcp.local_bytes += len.get();
                    (len, segment)
                }
                End::OnOff(source) => {
                    if source.next().is_none_or(|at| at > now) {
                        self.queue.set(PLACES_PER_FLOW * index, source.next());
                        return;
                    }
                    source.emit();
                    (
                        pad(source.config().frame),
                        payload_of(now, source.config().payload),
                    )
                }
            };
            self.follow_window(index, first);
            self.emitted.add(len);
            let taken = self.offer(
                first,
                len,
                Packet {
                    datagram,
                    ..packet(index, false, segment)
                },
                observer,
            );
            if let Some(Flow {
                end: End::Tcp(tcp), ..
            }) = self.flows.get_mut(index)
                && !taken
            {
                tcp.local_bytes -= len.get();
                tcp.sender.handle_local_drop(now, &segment);
            }
        }
    }

    /// Sets the interface's shaper to one window per round trip, where that is asked for.
    #[inline]
    fn follow_window(&mut self, index: usize, first: StageId) {
        if let Some(Flow {
            end: End::Tcp(tcp), ..
        }) = self.flows.get(index)
            && tcp.window_paced
            && let Some(rate) = tcp
                .sender
                .window_rate(tcp.queue_time.unwrap_or(PicoDuration::ZERO))
            && let Some(stage) = self.stages.get_mut(first.index())
        {
            stage.set_spacing(self.now, Spacing::Rate(rate));
        }
    }

    /// Lets a receiver answer, and sets its next event.
    #[inline]
    fn drive_receiver(&mut self, index: usize, observer: &mut impl Observer) {
        loop {
            let now = self.now;
            let Some(flow) = self.flows.get_mut(index) else {
                return;
            };
            let (Some(first), End::Tcp(tcp)) = (flow.backward.first().copied(), &mut flow.end) else {
                return;
            };
            let Some(segment) = tcp.receiver.poll_transmit(now) else {
                self.queue
                    .set(PLACES_PER_FLOW * index + 1, tcp.receiver.next_wakeup());
                return;
            };
            let len = pad(tcp.sizes.frame(&segment));
            self.emitted.add(len);
            self.offer(first, len, packet(index, true, segment), observer);
        }
    }
}

fn packet(index: usize, back: bool, segment: Segment) -> Packet {
    Packet {
        // At most FLOWS_MAX.
        flow: FlowId(index as u32),
        hop: 0,
        back,
        segment,
        datagram: false,
    }
}

fn payload_of(now: PicoTime, payload: u32) -> Segment {
    let mut segment = Segment::bare(SegmentKind::Data, now);
    segment.len = payload;
    segment
}
