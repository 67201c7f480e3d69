//! A stage of any kind.

use super::flow::Packet;
use crate::{
    pace::Spacing,
    units::{FrameBytes, PicoTime},
    wan::{Departure, DrainPort, Link, PortWire, Shaper, Stage, StageCounters, WanLink},
};
use alloc::boxed::Box;

/// A stage of a [`Network`](super::Network), by the order in which it was added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StageId(pub u32);

impl StageId {
    pub(super) fn index(self) -> usize {
        self.0 as usize
    }
}

#[derive(Debug, Clone)]
pub(super) enum Kind {
    Port(PortWire<Packet>),
    Shaper(Shaper<Packet>),
    Link(Link<Packet>),
    Wan(Box<WanLink<Packet>>),
    Drain(Box<DrainPort<Packet>>),
}

macro_rules! each {
    ($self:expr, $stage:ident => $call:expr) => {
        match $self {
            Kind::Port($stage) => $call,
            Kind::Shaper($stage) => $call,
            Kind::Link($stage) => $call,
            Kind::Wan($stage) => $call,
            Kind::Drain($stage) => $call,
        }
    };
}

impl Kind {
    /// Whether the frame was taken.
    #[inline]
    pub fn take(&mut self, now: PicoTime, len: FrameBytes, packet: Packet) -> bool {
        each!(self, stage => stage.handle_frame(now, len, packet).is_ok())
    }

    #[inline]
    pub fn poll(&mut self, now: PicoTime) -> Option<Departure<Packet>> {
        each!(self, stage => stage.poll(now))
    }

    #[inline]
    pub fn next_wakeup(&self) -> Option<PicoTime> {
        each!(self, stage => stage.next_wakeup())
    }

    pub fn counters(&self) -> StageCounters {
        each!(self, stage => stage.counters())
    }

    /// Changes a shaper's spacing; other stages have none.
    pub fn set_spacing(&mut self, now: PicoTime, spacing: Spacing) {
        if let Kind::Shaper(shaper) = self {
            shaper.set_spacing(now, spacing);
        }
    }
}
