//! The emulated network without the machine: frames and times in, frames to be written out.
//!
//! Events go in the order of their exact times over all stages, so a frame's arrival at a stage
//! is the departure from the one before it, to the picosecond, however late the engine runs.
//! At one instant: changes first, then stages in the order of their numbers.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use kuroshio_core::units::{FrameBytes, PicoTime};
use kuroshio_core::wan::{Cargo as _, Count, DropCause, Limit, StageCounters};
use kuroshio_core::wire::{FrameView, LineRate, PAUSE_DESTINATION, pause_quanta};
use kuroshio_port::look;

use super::exchange::{Exchange, Handed};
use super::fill::Fills;
use super::plan::Plan;
use super::pool::{Frame, MAX_POOL_BYTES, Meta, Pool};
use super::stage::{
    Action, Numbers, Stage, build, drain_stages, entry_shapers, exit_stages, pause, shaper_stages,
};
use super::switch::{Next, Switches, Whither};
use super::tourney::Tourney;
use super::trace::{Fate, Point, Trace, TraceRecord};
use crate::meter::Observer;
use crate::topology::Topology;

/// Memory that is made before a run, at most.
const PREPARED_BYTES: u64 = 1 << 30;

/// Frames shorter than this are moved to small memory.
const SMALL: usize = 256;

const NO_PATH: u16 = u16::MAX;

/// In place of a path's number: to every port of the switches' domain.
const FLOOD: u16 = u16::MAX - 1;

/// In place of a path's number: a gap frame, a PAUSE of time 0. It crosses its host's wire, and the router drops it at its
/// input.
const GAP: u16 = u16::MAX - 2;
/// A gap frame that leaves by an attached device, whose wire is its whole path.
const GAP_OUT: u16 = u16::MAX - 3;

/// What happened to frames outside of the stages, by port.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PortCounts {
    pub sent: Count,
    pub unrouted: Count,
    pub no_memory: Count,
    pub delivered: Count,
    pub not_taken: Count,
    /// PAUSE frames that the host sent, those of time 0 not among them.
    pub pauses: Count,
    /// PAUSE frames of time 0 that the router dropped behind the host's wire.
    pub gaps: Count,
    /// Those that the port's shaper sent: an attached device has taken them.
    pub gaps_sent: Count,
}

impl PortCounts {
    /// Counts what was written to a port, or what its host's kernel had no room for.
    pub fn written(&mut self, taken: bool, what: Count) {
        let counts = if taken {
            &mut self.delivered
        } else {
            &mut self.not_taken
        };
        counts.frames += what.frames;
        counts.bytes += what.bytes;
    }
}

/// Where frames leave the network: it counts what was written.
pub(super) trait Exit {
    /// A frame leaves to a port at an exact time.
    fn leave(&mut self, counts: &mut PortCounts, port: usize, at: PicoTime, len: FrameBytes, frame: Frame);

    /// A gap frame leaves by an attached device; whether it had room for it.
    fn leave_gap(&mut self, port: usize, at: PicoTime, frame: &Frame) -> bool {
        let _ = (port, at, frame);
        true
    }

    /// A frame passes a place that a tap shows.
    fn mirror(&mut self, tap: usize, len: FrameBytes, frame: &Frame) {
        let _ = (tap, len, frame);
    }
}

pub(super) struct Engine {
    pub stages: Vec<Stage>,
    pub ports: Vec<PortCounts>,
    pub trace: Option<Trace>,
    /// What the meters see.
    pub observer: Option<Observer>,
    due: Tourney,
    /// The stages of every path, and the port it leads to.
    paths: Vec<(Vec<usize>, usize)>,
    /// `from * ports + to`: the number of the path.
    table: Vec<u16>,
    /// Longest frame of every port, without check sequence.
    longest: Vec<usize>,
    pool: Rc<Pool>,
    changes: Vec<(PicoTime, usize, Action)>,
    /// The wires of the ports that obey PAUSE, L1.
    lines: Vec<Option<LineRate>>,
    /// The port of every stage that is a drain.
    drains: Vec<(usize, usize)>,
    fills: Fills,
    share: Share,
    switches: Switches,
    /// By stage: the taps that show what leaves it.
    mirrors: Vec<Vec<usize>>,
    /// Copies that switches made, and those for which there was no memory.
    pub flooded: [Count; 2],
}

/// This engine's part of a network that several threads share: stages of other threads are there and never used, but a
/// link that leads here stands for the frames that its thread handed over.
struct Share {
    own: usize,
    plan: Arc<Plan>,
    exchange: Arc<Exchange>,
    /// By stage: frames that have left a link of another thread, in order.
    came: Vec<VecDeque<Handed>>,
    /// By thread: frames that are to be handed over.
    goes: Vec<Vec<Handed>>,
    /// Frames handed over and taken so far.
    given: u64,
    taken: u64,
}

impl Engine {
    /// The part of a network that thread `own` of the plan has.
    pub fn new(topology: &Topology, plan: &Arc<Plan>, exchange: &Arc<Exchange>, own: usize) -> Self {
        let numbers = Numbers::of(topology);
        let (shapers, exits) = (entry_shapers(topology), exit_stages(topology));
        let drains = drain_stages(topology);
        let mut stages = build(topology);
        for (stage, ahead) in stages.iter_mut().zip(&plan.ahead) {
            stage.ahead = *ahead;
        }
        let mut table = vec![NO_PATH; numbers.ports * numbers.ports];
        let mut paths = Vec::with_capacity(topology.paths.len());
        for path in &topology.paths {
            let mut way = vec![numbers.own_wire(path.from)];
            way.extend(shapers.get(path.from).copied().flatten());
            way.extend(path.links.iter().map(|&l| numbers.link(l)));
            way.push(exits.get(path.to).copied().unwrap_or(numbers.egress(path.to)));
            way.extend(drains.get(path.to).copied().flatten());
            if let Some(slot) = table.get_mut(path.from * numbers.ports + path.to) {
                *slot = u16::try_from(paths.len()).unwrap_or(NO_PATH);
            }
            paths.push((way, path.to));
        }
        let mut due = Tourney::new(stages.len());
        for (stage, there) in stages.iter_mut().enumerate() {
            // A schedule begins with the run, not with the first frame.
            if plan.stages.get(stage) == Some(&own) {
                due.set(stage, there.next_wakeup_ps());
            }
        }
        let pool = Pool::new(own, MAX_POOL_BYTES / plan.threads);
        prepare(&pool, topology, plan.threads);
        Self {
            due,
            share: Share {
                own,
                plan: Arc::clone(plan),
                exchange: Arc::clone(exchange),
                came: stages.iter().map(|_| VecDeque::new()).collect(),
                goes: (0..plan.threads).map(|_| Vec::new()).collect(),
                given: 0,
                taken: 0,
            },
            switches: Switches::new(topology),
            mirrors: mirrors(topology, stages.len()),
            flooded: [Count::default(); 2],
            stages,
            ports: vec![PortCounts::default(); numbers.ports],
            trace: None,
            observer: None,
            paths,
            table,
            longest: topology.ports().map(|(_, p)| p.mtu_bytes as usize + 18).collect(),
            pool,
            changes: Vec::new(),
            lines: topology
                .ports()
                .map(|(_, p)| p.obey_pause.then_some(p.wire))
                .collect(),
            drains: (0..)
                .zip(drains)
                .filter_map(|(port, stage)| Some((stage?, port)))
                .collect(),
            fills: Fills::new(topology, &shaper_stages(topology)),
        }
    }

    /// Memory for the next frame of a port.
    pub fn room_for(&self, port: usize) -> Option<Frame> {
        self.pool.take(*self.longest.get(port)?)
    }

    /// Memory for a frame of so many bytes.
    pub fn room(&self, len: usize) -> Option<Frame> {
        self.pool.take(len)
    }

    /// Counts a frame for which there was no memory.
    pub fn no_memory(&mut self, port: usize, len: usize) {
        if let Some(counts) = self.ports.get_mut(port) {
            counts.sent.add(kuroshio_core::wire::frame_of_capture(len));
            counts.no_memory.add(kuroshio_core::wire::frame_of_capture(len));
        }
    }

    /// A host sent a frame: it arrives at its own wire.
    pub fn ingress(&mut self, at: PicoTime, port: usize, mut frame: Frame) {
        let len = kuroshio_core::wire::frame_of_capture(frame.bytes().len());
        let Some(counts) = self.ports.get_mut(port) else {
            return;
        };
        counts.sent.add(len);
        if let Some(quanta) = pause_asked(frame.bytes()) {
            self.hold(at, port, quanta);
            if quanta == 0 {
                let mut meta = Meta {
                    path: GAP,
                    from: u16::try_from(port).unwrap_or(u16::MAX),
                    ..frame.meta()
                };
                if let Some(observer) = &mut self.observer {
                    meta.tag = observer.enter(at, frame.bytes());
                }
                frame.set_meta(meta);
                self.offer(port, at, len, frame);
            } else if let Some(counts) = self.ports.get_mut(port) {
                counts.pauses.add(len);
            }
            return;
        }
        let Some(path) = self.route(at, port, frame.bytes()) else {
            if let Some(counts) = self.ports.get_mut(port) {
                counts.unrouted.add(len);
            }
            return;
        };
        if frame.bytes().len() <= SMALL
            && let Some(mut small) = self.pool.take(frame.bytes().len())
        {
            let len = frame.bytes().len();
            small.room()[..len].copy_from_slice(frame.bytes());
            small.set_len(len);
            small.set_meta(frame.meta());
            frame = small;
        }
        let mut meta = Meta {
            path,
            from: u16::try_from(port).unwrap_or(u16::MAX),
            ..frame.meta()
        };
        if let Some(observer) = &mut self.observer {
            meta.tag = observer.enter(at, frame.bytes());
        }
        if self.trace.is_some() {
            let seen = look(frame.bytes(), frame.bytes().len());
            meta.payload = u16::try_from(seen.payload_len).unwrap_or(u16::MAX);
            if let Some(flow) = seen.flow {
                meta.src_port = flow.source_port;
                meta.dst_port = flow.destination_port;
            }
        }
        frame.set_meta(meta);
        self.offer(port, at, len, frame);
    }

    /// A card asked for a pause: the wire to it, if it obeys, does so when the PAUSE frame is in.
    fn hold(&mut self, at: PicoTime, port: usize, quanta: u16) {
        if let Some(Some(line)) = self.lines.get(port) {
            let (at, action) = pause(at, quanta, *line);
            let egress = self.ports.len() + port;
            self.schedule(at, egress, action);
        }
    }

    /// Passes on what a stage that is a drain asks for.
    fn pass_pauses(&mut self, stage: usize, now: PicoTime) {
        let Some((_, port)) = self.drains.iter().copied().find(|(s, _)| *s == stage) else {
            return;
        };
        while let Some(request) = self.stages.get_mut(stage).and_then(|s| s.take_pause(now)) {
            self.hold(request.at, port, request.quanta);
        }
    }

    fn route(&mut self, at: PicoTime, from: usize, bytes: &[u8]) -> Option<u16> {
        let mac: [u8; 6] = bytes.get(..6)?.try_into().ok()?;
        let whither = self.switches.whither(at, from, bytes);
        let to = usize::from(u16::from_be_bytes([mac[4], mac[5]]));
        let to = match whither {
            _ if mac == crate::host::mac_of(to) && to < self.ports.len() => to,
            Some(Whither::Port(port)) => port,
            Some(Whither::Everywhere) => return Some(FLOOD),
            Some(Whither::Nowhere) | None => return None,
        };
        let path = *self.table.get(from * self.ports.len() + to)?;
        (path != NO_PATH).then_some(path)
    }

    /// A flooded frame has passed a stage.
    fn flood(&mut self, stage: usize, at: PicoTime, len: FrameBytes, frame: Frame, write: &mut impl Exit) {
        match self.switches.after(stage) {
            Next::Stage(next) => self.offer(next, at, len, frame),
            Next::Leave(port) => {
                if let Some(counts) = self.ports.get_mut(port) {
                    write.leave(counts, port, at, len, frame);
                }
            }
            Next::Copies(stages) => {
                if let Some((last, others)) = stages.split_last() {
                    for next in others {
                        match frame.copy() {
                            Some(copy) => {
                                self.flooded[0].add(len);
                                self.offer(*next, at, len, copy);
                            }
                            None => self.flooded[1].add(len),
                        }
                    }
                    self.offer(*last, at, len, frame);
                }
            }
            Next::Nothing => {}
        }
    }

    fn offer(&mut self, stage: usize, at: PicoTime, len: FrameBytes, frame: Frame) {
        let Some(there) = self.stages.get_mut(stage) else {
            return;
        };
        let meta = frame.meta();
        let point = there.input;
        let fate = if there.faults().is_some_and(super::fault::Faults::loses) {
            Fate::Fault
        } else {
            match there.handle_frame(at, len, frame).map_err(|d| d.cause) {
                Ok(()) => Fate::Passed,
                Err(DropCause::QueueFull) => Fate::QueueFull,
                Err(DropCause::Aqm) => Fate::Refused,
                Err(DropCause::TooBig) => Fate::TooBig,
            }
        };
        self.pass_pauses(stage, at);
        // An arrival serves the queue first: what its discipline drops then is told in the order of the times.
        self.tell_lost(stage);
        let Some(there) = self.stages.get_mut(stage) else {
            return;
        };
        let next = there.next_wakeup_ps();
        self.due.set(stage, next);
        if let Some(observer) = self.observer.as_mut().filter(|o| o.wants(stage)) {
            observer.arrived(stage, at, fate, len, meta.tag, there.counters().queued);
        }
        self.note(at, point, fate, len, meta);
    }

    fn note(&mut self, at: PicoTime, point: Point, fate: Fate, len: FrameBytes, meta: Meta) {
        if let Some(trace) = &mut self.trace {
            trace.push(TraceRecord {
                at,
                point,
                fate,
                frame_len: u32::try_from(len.get()).unwrap_or(u32::MAX),
                payload_len: meta.payload,
                from_port: meta.from,
                src_port: meta.src_port,
                dst_port: meta.dst_port,
            });
        }
    }

    /// Adds a change at an exact time; one that is past happens now, before anything else.
    pub fn schedule(&mut self, at: PicoTime, stage: usize, action: Action) {
        let place = self.changes.partition_point(|(t, ..)| *t <= at);
        self.changes.insert(place, (at, stage, action));
    }

    /// When the next event is due, ps of the run.
    pub fn next_ps(&self) -> u64 {
        let change = self.changes.first().map_or(u64::MAX, |(t, ..)| t.as_ps());
        change.min(self.due.first().0)
    }

    /// Works off the next event if it is due by `now`: frames that leave the network go to
    /// `write`. `false` when nothing was due.
    pub fn step(&mut self, now: PicoTime, write: &mut impl Exit) -> bool {
        if self.next_ps() > now.as_ps() {
            return false;
        }
        let (due, stage) = self.due.first();
        if self.changes.first().is_some_and(|(t, ..)| t.as_ps() <= due) {
            let (at, stage, action) = self.changes.remove(0);
            if let Some(there) = self.stages.get_mut(stage) {
                there.apply(at, action);
                let next = there.next_wakeup_ps();
                self.due.set(stage, next);
            }
            self.tell_lost(stage);
            return true;
        }
        let at = PicoTime::from_ps(due);
        if let Some(handed) = self.share.came.get_mut(stage).and_then(VecDeque::pop_front) {
            let next = self.share.came[stage].front();
            self.due.set(stage, next.map_or(u64::MAX, |h| h.at.as_ps()));
            self.share.taken += 1;
            let frame = self.pool.adopt(handed.inner);
            self.onward(stage, handed.at, handed.len, frame, write);
            return true;
        }
        while let Some(departure) = self.stages.get_mut(stage).and_then(|s| s.poll(at)) {
            self.forward(stage, departure.at, departure.len, departure.token, write);
        }
        self.pass_pauses(stage, at);
        if let Some(there) = self.stages.get_mut(stage) {
            let next = there.next_wakeup_ps();
            self.due.set(stage, next);
        }
        self.tell_lost(stage);
        true
    }

    /// The meters hear of frames that a stage lost behind its entry.
    fn tell_lost(&mut self, stage: usize) {
        let Self {
            pool,
            observer,
            stages,
            ..
        } = self;
        pool.lost(|lost| {
            if let Some(observer) = observer.as_mut().filter(|o| o.wants(stage)) {
                let queued = stages.get_mut(stage).map(|s| s.counters().queued);
                observer.vanished(stage, lost, queued.unwrap_or(FrameBytes::ZERO));
            }
        });
    }

    /// What the meters are to see: stages by number.
    pub fn want(&mut self, stages: &[bool]) {
        self.pool.keep_lost(stages.contains(&true));
        if let Some(observer) = &mut self.observer {
            observer.want(stages);
        }
    }

    /// Tells the meters how far the run is, when everything due by `now` has been looked for.
    pub fn mark(&mut self, now: PicoTime) {
        let mark = now.min(PicoTime::from_ps(self.next_ps()));
        if let Some(observer) = &mut self.observer {
            observer.publish(mark);
        }
    }

    fn forward(
        &mut self,
        stage: usize,
        at: PicoTime,
        len: FrameBytes,
        mut frame: Frame,
        write: &mut impl Exit,
    ) {
        let mut meta = frame.meta();
        if let Some(there) = self.stages.get_mut(stage) {
            if let Some(faults) = there.faults().filter(|f| f.damages()) {
                faults.damage(frame.bytes_mut());
            }
            if let Some((port, gaps)) = self.fills.behind(stage, there, len)
                && let Some(counts) = self.ports.get_mut(port)
            {
                counts.gaps_sent.frames += gaps.frames();
                counts.gaps_sent.bytes += gaps.bytes();
            }
            if let Some(point) = there.output {
                self.note(at, point, Fate::Passed, len, meta);
            }
        }
        for &tap in self.mirrors.get(stage).map_or(&[][..], Vec::as_slice) {
            write.mirror(tap, len, &frame);
        }
        if let Some(observer) = self.observer.as_mut().filter(|o| o.wants(stage)) {
            let queued = self.stages.get_mut(stage).map(|s| s.counters().queued);
            observer.departed(stage, at, len, meta.tag, queued.unwrap_or(FrameBytes::ZERO));
        }
        meta.hop += 1;
        frame.set_meta(meta);
        let Share {
            own,
            plan,
            goes,
            given,
            ..
        } = &mut self.share;
        if plan.ahead.get(stage).is_some_and(Option::is_some) && plan.leads_to[stage] != *own {
            if let Some(inner) = frame.detach() {
                *given += 1;
                let handed = Handed {
                    at,
                    stage,
                    len,
                    inner,
                };
                goes[plan.leads_to[stage]].push(handed);
            }
            return;
        }
        self.onward(stage, at, len, frame, write);
        if let Some((wire, port, len, gap)) = self.fills.next_at(stage, &self.pool) {
            self.fill(wire, port, at, len, gap);
        }
    }

    /// A gap frame takes its place on the wire of an attached device.
    fn fill(&mut self, wire: usize, port: usize, at: PicoTime, len: FrameBytes, mut gap: Frame) {
        let mut meta = Meta {
            path: GAP_OUT,
            from: u16::try_from(port).unwrap_or(u16::MAX),
            ..gap.meta()
        };
        if let Some(observer) = &mut self.observer {
            meta.tag = observer.enter(at, gap.bytes());
        }
        gap.set_meta(meta);
        self.offer(wire, at, len, gap);
    }

    /// A frame goes to the next stage of its path, or leaves.
    fn onward(&mut self, stage: usize, at: PicoTime, len: FrameBytes, frame: Frame, write: &mut impl Exit) {
        let meta = frame.meta();
        if meta.path == GAP {
            if let Some(counts) = self.ports.get_mut(usize::from(meta.from)) {
                counts.gaps.add(len);
            }
            return;
        }
        if meta.path == GAP_OUT {
            let port = usize::from(meta.from);
            let taken = write.leave_gap(port, at, &frame);
            if let Some(counts) = self.ports.get_mut(port) {
                let counts = if taken {
                    &mut counts.gaps_sent
                } else {
                    &mut counts.not_taken
                };
                counts.add(len);
            }
            return;
        }
        if meta.path == FLOOD {
            self.flood(stage, at, len, frame, write);
            return;
        }
        let Some((way, to)) = self.paths.get(usize::from(meta.path)) else {
            return;
        };
        if let Some(&next) = way.get(usize::from(meta.hop)) {
            self.offer(next, at, len, frame);
            return;
        }
        let to = *to;
        if let Some(counts) = self.ports.get_mut(to) {
            write.leave(counts, to, at, len, frame);
        }
    }

    /// Takes what other threads have handed over; events up to the time that is returned may be done.
    pub fn receive(&mut self) -> PicoTime {
        let Self { share, due, pool, .. } = self;
        let Share {
            own, exchange, came, ..
        } = share;
        for memory in exchange.come_home(*own) {
            pool.give_back(memory);
        }
        exchange.take(*own, |handed| {
            let Some(row) = came.get_mut(handed.stage) else {
                return;
            };
            if row.is_empty() {
                due.set(handed.stage, handed.at.as_ps());
            }
            row.push_back(handed);
        })
    }

    /// Hands over what goes to other threads, and tells them that everything up to `limit` is done, or as much as is.
    pub fn publish(&mut self, limit: PicoTime) {
        let next = self.next_ps();
        let Share {
            own, exchange, goes, ..
        } = &mut self.share;
        for (to, frames) in goes.iter_mut().enumerate() {
            exchange.give(*own, to, frames);
        }
        let done = limit.as_ps().min(next.saturating_sub(1));
        exchange.promise(*own, PicoTime::from_ps(done));
        let mut strays: Vec<Vec<_>> = goes.iter().map(|_| Vec::new()).collect();
        self.pool.strays(|home, inner| {
            if let Some(row) = strays.get_mut(home) {
                row.push(inner);
            }
        });
        for (home, memory) in strays.iter_mut().enumerate().filter(|(_, m)| !m.is_empty()) {
            exchange.send_home(*own, home, memory);
        }
    }

    /// Frames handed to other threads, and taken from them.
    pub fn handed(&self) -> [u64; 2] {
        [self.share.given, self.share.taken]
    }

    /// The counters of a stage.
    pub fn stage_counters(&mut self, stage: usize) -> StageCounters {
        self.stages
            .get_mut(stage)
            .map_or_else(StageCounters::default, Stage::counters)
    }
}

/// The quanta of a frame that is a PAUSE frame.
fn pause_asked(frame: &[u8]) -> Option<u16> {
    // Most frames differ in the first byte already.
    let view = FrameView::new(frame).filter(|f| f.destination() == PAUSE_DESTINATION)?;
    pause_quanta(&view)
}

/// The taps by the stages behind which they are: a link's, or of a port what its host sent and what it is given.
fn mirrors(topology: &Topology, stages: usize) -> Vec<Vec<usize>> {
    let numbers = Numbers::of(topology);
    let (drains, exits) = (drain_stages(topology), exit_stages(topology));
    let mut all = vec![Vec::new(); stages];
    for (number, tap) in topology.taps.iter().enumerate() {
        let mut places: Vec<usize> = topology
            .link_numbers(&tap.at)
            .iter()
            .map(|l| numbers.link(*l))
            .collect();
        if let Some(port) = topology.port_number(&tap.at).filter(|_| places.is_empty()) {
            let last = drains.get(port).copied().flatten();
            places = vec![numbers.own_wire(port), last.unwrap_or(exits[port])];
        }
        for place in places {
            if let Some(taps) = all.get_mut(place) {
                taps.push(number);
            }
        }
    }
    all
}

/// Makes memory for what can be in flight and in queues, as far as the limit goes.
fn prepare(pool: &Pool, topology: &Topology, threads: usize) {
    let longest = topology
        .ports()
        .map(|(_, p)| p.mtu_bytes as usize + 18)
        .max()
        .unwrap_or(0);
    let links: u64 = topology
        .links
        .iter()
        .flat_map(|l| &l.wan)
        .map(|d| {
            let in_flight = d.rate.mean().bytes_in(d.one_way_delay);
            in_flight.saturating_add(match d.queue {
                Limit::Bytes(bytes) => bytes.get(),
                Limit::Frames(frames) => frames.saturating_mul(longest as u64),
            })
        })
        .fold(0, u64::saturating_add);
    let shapers: u64 = topology
        .ports()
        .filter_map(|(_, p)| p.shaper)
        .map(|s| s.queue.get())
        .fold(0, u64::saturating_add);
    let bytes = links.saturating_add(shapers).min(PREPARED_BYTES) / threads as u64;
    let frames = usize::try_from(bytes / (longest as u64 + 1)).unwrap_or(0) + 64;
    pool.prepare(longest, frames);
    pool.prepare(SMALL, frames);
}
