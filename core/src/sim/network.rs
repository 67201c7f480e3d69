//! The network and its run.

use super::{
    flow::{End, Flow, FlowId, OnOffFlow, Packet, Tcp, TcpFlow},
    observer::Observer,
    queue::EventQueue,
    source::Running,
    stage::{Kind, StageId},
};
use crate::{
    pace::Spacing,
    tcp::{Kind as SegmentKind, Receiver, Segment, Sender},
    units::{FrameBytes, PicoDuration, PicoTime},
    wan::{Count, Link, LinkConfig, PortWire, Shaper, ShaperConfig, StageCounters},
    wire::{LineRate, pad},
};
use alloc::{boxed::Box, vec::Vec};
use core::fmt;

/// Most stages of a network.
pub const STAGES_MAX: usize = 4_096;
/// Most flows of a network.
pub const FLOWS_MAX: usize = 4_096;
/// Most stages on a way.
pub const HOPS_MAX: usize = 256;

/// Why something cannot be part of a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SimError {
    /// More stages than [`STAGES_MAX`].
    TooManyStages,
    /// More flows than [`FLOWS_MAX`].
    TooManyFlows,
    /// A way without stages or with more than [`HOPS_MAX`].
    Way(usize),
    /// A stage that is not there.
    NoStage(StageId),
    /// A stage that is no port, or no shaper, where one is needed.
    WrongStage(StageId),
    /// A flow that is not there or is no TCP connection.
    NoConnection(FlowId),
}

impl fmt::Display for SimError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SimError::TooManyStages => write!(f, "more than {STAGES_MAX} stages"),
            SimError::TooManyFlows => write!(f, "more than {FLOWS_MAX} flows"),
            SimError::Way(hops) => write!(f, "a way of {hops} stages: want 1 to {HOPS_MAX}"),
            SimError::NoStage(stage) => write!(f, "there is no stage {}", stage.0),
            SimError::WrongStage(stage) => write!(f, "stage {} is of another kind", stage.0),
            SimError::NoConnection(flow) => write!(f, "flow {} is no TCP connection", flow.0),
        }
    }
}

impl core::error::Error for SimError {}

/// 802.3x flow control: when a frame brings the bytes that wait in `watch` to `high`, the port `hold` keeps
/// its wire idle for `time` (a PAUSE of that length; annex 31B).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PauseRule {
    /// The stage whose queue is watched.
    pub watch: StageId,
    /// Bytes that call for a PAUSE.
    pub high: FrameBytes,
    /// The port that obeys.
    pub hold: StageId,
    /// For how long.
    pub time: PicoDuration,
}

/// Frames of all flows, both ways. At all times `emitted = delivered + dropped + held`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Given to the first stage of a way.
    pub emitted: Count,
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
    stages: Vec<Kind>,
    flows: Vec<Flow>,
    pauses: Vec<PauseRule>,
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
            pauses: Vec::new(),
            queue: EventQueue::new(0),
            emitted: Count::default(),
            delivered: Count::default(),
            pause_count: 0,
        }
    }

    fn add_stage(&mut self, stage: Kind) -> Result<StageId, SimError> {
        if self.stages.len() >= STAGES_MAX {
            return Err(SimError::TooManyStages);
        }
        self.stages.push(stage);
        // At most STAGES_MAX.
        Ok(StageId(self.stages.len() as u32 - 1))
    }

    /// Adds a port's wire with its queue.
    pub fn add_port(&mut self, line: LineRate, queue_limit: FrameBytes) -> Result<StageId, SimError> {
        self.add_stage(Kind::Port(PortWire::new(line, queue_limit)))
    }

    /// Adds a shaper on its wire.
    pub fn add_shaper(&mut self, config: ShaperConfig) -> Result<StageId, SimError> {
        self.add_stage(Kind::Shaper(Shaper::new(config)))
    }

    /// Adds one direction of a link. `seed` decides which frames its loss ratio takes.
    pub fn add_link(&mut self, config: LinkConfig, seed: u64) -> Result<StageId, SimError> {
        self.add_stage(Kind::Link(Link::new(config, seed)))
    }

    fn check_way(&self, way: &[StageId]) -> Result<(), SimError> {
        if way.is_empty() || way.len() > HOPS_MAX {
            return Err(SimError::Way(way.len()));
        }
        match way.iter().find(|stage| stage.index() >= self.stages.len()) {
            Some(stage) => Err(SimError::NoStage(*stage)),
            None => Ok(()),
        }
    }

    fn add_flow(&mut self, flow: Flow) -> Result<FlowId, SimError> {
        if self.flows.len() >= FLOWS_MAX {
            return Err(SimError::TooManyFlows);
        }
        self.flows.push(flow);
        // At most FLOWS_MAX.
        Ok(FlowId(self.flows.len() as u32 - 1))
    }

    /// Adds a TCP connection.
    pub fn add_tcp(&mut self, flow: TcpFlow) -> Result<FlowId, SimError> {
        self.check_way(&flow.forward)?;
        self.check_way(&flow.backward)?;
        let tcp = Tcp {
            sizes: flow.sender.sizes,
            local_bytes: 0,
            local_limit: flow.sender.profile.local_limit.unwrap_or(u64::MAX),
            window_paced: false,
            queue_time: None,
            sender: Sender::new(flow.sender),
            receiver: Receiver::new(flow.receiver),
        };
        self.add_flow(Flow {
            end: End::Tcp(Box::new(tcp)),
            forward: flow.forward,
            backward: flow.backward,
        })
    }

    /// Adds frames by the clock.
    pub fn add_on_off(&mut self, flow: OnOffFlow) -> Result<FlowId, SimError> {
        self.check_way(&flow.forward)?;
        self.add_flow(Flow {
            end: End::OnOff(Running::new(flow.source)),
            forward: flow.forward,
            backward: Vec::new(),
        })
    }

    /// Lets the shaper at a connection's interface follow its window: one window per round trip (dynamic
    /// pacing of paper 001), set anew for every frame that comes to it or leaves it. What counts as round trip
    /// is the smoothed RTT less the time that frames wait in this interface (PSPacer's sch_psp.c,
    /// `estimate_target_rate`): else a queue here would keep the rate down and so keep itself.
    pub fn pace_by_window(&mut self, flow: FlowId) -> Result<(), SimError> {
        let Some(Flow {
            end: End::Tcp(tcp),
            forward,
            ..
        }) = self.flows.get_mut(flow.index())
        else {
            return Err(SimError::NoConnection(flow));
        };
        let first = forward.first().copied().unwrap_or(StageId(u32::MAX));
        match self.stages.get(first.index()) {
            Some(Kind::Shaper(_)) => {
                tcp.window_paced = true;
                Ok(())
            }
            _ => Err(SimError::WrongStage(first)),
        }
    }

    /// Adds 802.3x flow control.
    pub fn add_pause(&mut self, rule: PauseRule) -> Result<(), SimError> {
        if rule.watch.index() >= self.stages.len() {
            return Err(SimError::NoStage(rule.watch));
        }
        if !matches!(self.stages.get(rule.hold.index()), Some(Kind::Port(_))) {
            return Err(SimError::WrongStage(rule.hold));
        }
        self.pauses.push(rule);
        Ok(())
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

    /// PAUSE frames that rules have sent.
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
        while let Some((at, place)) = self.queue.first() {
            if at > end {
                break;
            }
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
        if !self.pauses.is_empty() {
            self.pause(id);
        }
        taken
    }

    /// Obeys the rules that watch a stage.
    fn pause(&mut self, watched: StageId) {
        let Some(queued) = self.counters(watched).map(|c| c.queued) else {
            return;
        };
        for index in 0..self.pauses.len() {
            let Some(rule) = self.pauses.get(index).copied() else {
                return;
            };
            if rule.watch != watched || queued < rule.high {
                continue;
            }
            if let Some(Kind::Port(port)) = self.stages.get_mut(rule.hold.index()) {
                port.hold(self.now, rule.time);
                self.pause_count += 1;
            }
            self.wake_stage(rule.hold.index());
        }
    }

    fn serve_stage(&mut self, index: usize, observer: &mut impl Observer) {
        let now = self.now;
        while let Some(departure) = self.stages.get_mut(index).and_then(|s| s.poll(now)) {
            self.forward(departure.len, departure.token, observer);
        }
        self.wake_stage(index);
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
            tcp.sender.handle_segment(now, &packet.segment);
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
            let (len, segment) = match &mut flow.end {
                End::Tcp(tcp) => {
                    if tcp.local_bytes >= tcp.local_limit {
                        tcp.sender.handle_timer(now);
                        self.queue.set(PLACES_PER_FLOW * index, tcp.sender.next_timer());
                        return;
                    }
                    let Some(segment) = tcp.sender.poll_transmit(now) else {
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
                    (pad(source.config().frame), datagram(now, source.config().payload))
                }
            };
            self.follow_window(index, first);
            self.emitted.add(len);
            let taken = self.offer(first, len, packet(index, false, segment), observer);
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
    }
}

fn datagram(now: PicoTime, payload: u32) -> Segment {
    let mut segment = Segment::bare(SegmentKind::Data, now);
    segment.len = payload;
    segment
}
