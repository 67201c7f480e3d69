//! One stage of the emulated network, of any kind, and what can be changed in it.

use kuroshio_core::pace::Spacing;
use kuroshio_core::units::{BitRate, FrameBytes, PicoDuration, PicoTime, WireBytes};
use kuroshio_core::wan::{
    Departure, DrainPort, Dropped, PauseRequest, PortWire, Shaper, ShaperConfig, Stage as _, StageCounters,
    StreamShaper, StreamShaperConfig, WanChange, WanLink, WanValues,
};
use kuroshio_core::wire::{FRAME_MIN, LineRate, PREAMBLE, pause_time};

use super::fault::{Damage, Faults};
use super::pool::Frame;
use super::trace::Point;
use crate::topology::Topology;

pub(super) enum Kind {
    Wire(PortWire<Frame>),
    Shaper(Shaper<Frame>),
    Streams(Box<StreamShaper<Frame>>),
    Link(Box<(WanLink<Frame>, Faults)>),
    Drain(Box<DrainPort<Frame>>),
}

/// A stage with its place in the network.
pub(super) struct Stage {
    pub kind: Kind,
    /// How its input is called in a trace.
    pub input: Point,
    /// How its output is called in a trace, where that is not the next one's input.
    pub output: Option<Point>,
    /// How long before its arrival a frame is handed to another thread.
    pub ahead: Option<PicoDuration>,
}

macro_rules! each {
    ($self:expr, $stage:ident => $call:expr) => {
        match &mut $self.kind {
            Kind::Wire($stage) => $call,
            Kind::Shaper($stage) => $call,
            Kind::Streams($stage) => $call,
            Kind::Drain($stage) => $call,
            Kind::Link(link) => {
                let $stage = &mut link.0;
                $call
            }
        }
    };
}

impl Stage {
    pub fn handle_frame(
        &mut self,
        at: PicoTime,
        len: FrameBytes,
        frame: Frame,
    ) -> Result<(), Dropped<Frame>> {
        each!(self, stage => stage.handle_frame(at, len, frame))
    }

    pub fn poll(&mut self, now: PicoTime) -> Option<Departure<Frame>> {
        if let (Some(ahead), Kind::Link(link)) = (self.ahead, &mut self.kind) {
            return link.0.poll_ahead(now, now + ahead);
        }
        each!(self, stage => stage.poll(now))
    }

    pub fn next_wakeup_ps(&mut self) -> u64 {
        if let (Some(ahead), Kind::Link(link)) = (self.ahead, &self.kind) {
            let next = link.0.next_wakeup_ahead(ahead);
            return next.map_or(u64::MAX, PicoTime::as_ps);
        }
        each!(self, stage => stage.next_wakeup()).map_or(u64::MAX, PicoTime::as_ps)
    }

    pub fn counters(&mut self) -> StageCounters {
        each!(self, stage => stage.counters())
    }

    pub fn faults(&mut self) -> Option<&mut Faults> {
        match &mut self.kind {
            Kind::Link(link) => Some(&mut link.1),
            _ => None,
        }
    }

    /// What a link is set to now, and whether it is cut.
    pub fn values(&self) -> Option<(WanValues, bool)> {
        match &self.kind {
            Kind::Link(link) => Some((link.0.values(), link.1.cut)),
            _ => None,
        }
    }

    /// What a card asks of the wire before it.
    pub fn take_pause(&mut self, now: PicoTime) -> Option<PauseRequest> {
        match &mut self.kind {
            Kind::Drain(drain) => drain.poll_pause(now),
            _ => None,
        }
    }

    /// The gap before the next frame of a shaper, behind one of `len` bytes; none while no frame waits.
    pub fn gap_behind(&mut self, len: FrameBytes, line: LineRate) -> Option<WireBytes> {
        match &mut self.kind {
            Kind::Shaper(shaper) if shaper.counters().queued > FrameBytes::ZERO => {
                Some(shaper.spacing().gap(len, line))
            }
            _ => None,
        }
    }

    /// PAUSE frames that a card has sent.
    pub fn pauses(&self) -> u64 {
        match &self.kind {
            Kind::Drain(drain) => drain.pauses(),
            _ => 0,
        }
    }

    /// Does what was asked, at an exact time. What does not fit the kind of stage does nothing:
    /// the testbed checks names before it asks.
    pub fn apply(&mut self, at: PicoTime, action: Action) {
        match (&mut self.kind, action) {
            (Kind::Shaper(shaper), Action::Spacing(spacing)) => shaper.set_spacing(at, spacing),
            (Kind::Streams(streams), Action::Spacing(spacing)) => streams.set_ceiling(at, spacing),
            (Kind::Wire(wire), Action::Hold(time)) => wire.hold(at, time),
            (Kind::Drain(drain), Action::Drain(rate)) => drain.set_rate(at, rate),
            (Kind::Link(link), action) => {
                let (link, faults) = link.as_mut();
                match action {
                    Action::Set(change) => link.change(at, change),
                    Action::Cut(cut) => faults.cut = cut,
                    Action::DropNext(count) => faults.drop_next = count,
                    Action::CorruptNext(count, kind) => {
                        faults.corrupt_next = (count > 0).then_some((count, kind));
                    }
                    Action::CorruptEvery(every, kind) => {
                        faults.corrupt_every = (every > 0).then_some((every, kind));
                    }
                    Action::Spacing(_) | Action::Hold(_) | Action::Drain(_) => {}
                }
            }
            _ => {}
        }
    }
}

/// A change of one stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    Set(WanChange),
    Cut(bool),
    DropNext(u64),
    CorruptNext(u64, Damage),
    CorruptEvery(u64, Damage),
    Spacing(Spacing),
    Hold(PicoDuration),
    Drain(BitRate),
}

/// When a PAUSE frame that is sent at `at` is in, and how long it holds the wire from then.
pub(super) fn pause(at: PicoTime, quanta: u16, line: LineRate) -> (PicoTime, Action) {
    let crossing = line.time_of(WireBytes::new(PREAMBLE + FRAME_MIN));
    (at + crossing, Action::Hold(pause_time(quanta, line)))
}

/// The numbers of the stages: ports' own wires, egress wires, links, shapers, drains.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Numbers {
    pub ports: usize,
    pub links: usize,
    pub shapers: usize,
    pub drains: usize,
}

impl Numbers {
    pub fn of(topology: &Topology) -> Self {
        Self {
            ports: topology.ports().count(),
            links: 2 * topology.links.len(),
            shapers: topology.ports().filter(|(_, p)| p.shaper.is_some()).count(),
            drains: topology.ports().filter(|(_, p)| p.drain.is_some()).count(),
        }
    }

    /// All stages.
    pub fn all(self) -> usize {
        2 * self.ports + self.links + self.shapers + self.drains
    }

    pub fn own_wire(self, port: usize) -> usize {
        port
    }

    pub fn egress(self, port: usize) -> usize {
        self.ports + port
    }

    pub fn link(self, link: usize) -> usize {
        2 * self.ports + link
    }

    /// Of the port with a shaper that is the `nth` such.
    pub fn shaper(self, nth: usize) -> usize {
        2 * self.ports + self.links + nth
    }

    /// Of the port with a drain that is the `nth` such.
    pub fn drain(self, nth: usize) -> usize {
        2 * self.ports + self.links + self.shapers + nth
    }
}

/// The stage of every port's drain, by port.
pub(crate) fn drain_stages(topology: &Topology) -> Vec<Option<usize>> {
    let numbers = Numbers::of(topology);
    let mut nth = 0;
    topology
        .ports()
        .map(|(_, port)| {
            port.drain.map(|_| {
                nth += 1;
                numbers.drain(nth - 1)
            })
        })
        .collect()
}

/// The stage of every port's shaper, by port.
pub(crate) fn shaper_stages(topology: &Topology) -> Vec<Option<usize>> {
    let numbers = Numbers::of(topology);
    let mut nth = 0;
    topology
        .ports()
        .map(|(_, port)| {
            port.shaper.map(|_| {
                nth += 1;
                numbers.shaper(nth - 1)
            })
        })
        .collect()
}

/// The shaper of what enters at a port, by port: an attached device's is of what leaves.
pub(super) fn entry_shapers(topology: &Topology) -> Vec<Option<usize>> {
    let own = topology.ports().zip(shaper_stages(topology));
    own.map(|((host, _), stage)| stage.filter(|_| host.attached.is_none()))
        .collect()
}

/// The wire by which frames leave a port, by port: an attached device's shaper is its wire, too.
pub(crate) fn exit_stages(topology: &Topology) -> Vec<usize> {
    let numbers = Numbers::of(topology);
    let ports = topology.ports().zip(shaper_stages(topology)).enumerate();
    ports
        .map(|(port, ((host, _), stage))| {
            let shaper = stage.filter(|_| host.attached.is_some());
            shaper.unwrap_or(numbers.egress(port))
        })
        .collect()
}

/// All stages, in the order of their numbers.
pub(super) fn build(topology: &Topology) -> Vec<Stage> {
    let ports: Vec<_> = topology.ports().map(|(_, p)| p).collect();
    let numbered = || (0u16..).zip(&ports);
    let own = numbered().map(|(n, p)| Stage {
        kind: Kind::Wire(PortWire::new(p.wire, p.queue)),
        input: Point::PortIn(n),
        output: None,
        ahead: None,
    });
    let egress = numbered().map(|(n, p)| Stage {
        kind: Kind::Wire(PortWire::new(p.wire, p.egress_queue)),
        input: Point::EgressIn(n),
        output: p.drain.is_none().then_some(Point::PortOut(n)),
        ahead: None,
    });
    let directions = topology.links.iter().flat_map(|l| l.wan.clone());
    let links = (0u16..).zip(directions).map(|(n, config)| Stage {
        kind: Kind::Link(Box::new((
            WanLink::new(config, topology.seed ^ (u64::from(n) << 48)),
            Faults::default(),
        ))),
        input: Point::LinkIn(n),
        output: Some(Point::LinkOut(n)),
        ahead: None,
    });
    let attached = topology.ports().map(|(host, _)| host.attached.is_some());
    let shapers = numbered().zip(attached).filter_map(|((n, p), attached)| {
        let shaper = p.shaper?;
        let kind = if p.streams.is_empty() {
            Kind::Shaper(Shaper::new(ShaperConfig {
                line: p.wire,
                spacing: shaper.spacing,
                queue_limit: shaper.queue,
            }))
        } else {
            Kind::Streams(Box::new(StreamShaper::new(StreamShaperConfig {
                line: p.wire,
                streams: p.streams.clone(),
                ceiling: Some(shaper.spacing),
                rest_queue_limit: shaper.queue,
            })))
        };
        Some(Stage {
            kind,
            input: Point::ShaperIn(n),
            output: attached.then_some(Point::PortOut(n)),
            ahead: None,
        })
    });
    let drains = numbered().filter_map(|(n, p)| {
        Some(Stage {
            kind: Kind::Drain(Box::new(DrainPort::new(p.drain?))),
            input: Point::CardIn(n),
            output: Some(Point::PortOut(n)),
            ahead: None,
        })
    });
    own.chain(egress)
        .chain(links)
        .chain(shapers)
        .chain(drains)
        .collect()
}
