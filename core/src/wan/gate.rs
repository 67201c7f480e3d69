//! The wire of a [`WanLink`](super::WanLink): a capacity or a trace, and whether it is held by PAUSE.
//!
//! | rate | a frame of `len` bytes takes |
//! |---|---|
//! | capacity at frame level | `len * 8 / capacity`, and never less than the L1 time of a wire below it |
//! | capacity at L1 | `(len + 20) * 8 / capacity` |
//! | trace | until the chance that takes its last byte |
//!
//! A PAUSE is obeyed between frames: the frame on the wire is finished, the next starts when the pause is
//! over. A later PAUSE replaces an earlier one, also with a shorter time or 0 (IEEE 802.3, annex 31B).

use super::{
    medium::{Capacity, Medium as _},
    opportunity::{Opportunities, TraceWire},
};
use crate::{
    units::{BitRate, FrameBytes, PicoDuration, PicoTime},
    wire::{LineRate, l1_bytes, pad},
};
use alloc::sync::Arc;

/// Smallest capacity of a link.
pub const MIN_CAPACITY: BitRate = match BitRate::new(8_000) {
    Some(rate) => rate,
    None => BitRate::MIN,
};
/// Largest capacity of a link.
pub const MAX_CAPACITY: BitRate = BitRate::from_mbps(100_000);

/// Which bytes a capacity counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Level {
    /// MAC header to FCS.
    #[default]
    Frame,
    /// With preamble and the smallest gap.
    L1,
}

/// How fast a link sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rate {
    /// Steadily.
    Capacity(BitRate, Level),
    /// As recorded.
    Trace(Arc<Opportunities>),
}

impl Rate {
    /// The rate, or of a trace the mean of full frames.
    pub fn mean(&self) -> BitRate {
        match self {
            Rate::Capacity(rate, _) => *rate,
            Rate::Trace(trace) => trace.mean_rate(),
        }
    }
}

#[derive(Debug, Clone)]
enum Kind {
    Capacity(Capacity, Level),
    Trace(TraceWire),
}

#[derive(Debug, Clone)]
pub(super) struct Gate {
    kind: Kind,
    wire: Option<LineRate>,
    held_until: PicoTime,
}

impl Gate {
    pub fn new(rate: &Rate, wire: Option<LineRate>) -> Self {
        Gate {
            kind: kind(rate, wire, PicoTime::ZERO),
            wire,
            held_until: PicoTime::ZERO,
        }
    }

    /// When the next frame may start, rounded down to a whole ps.
    #[inline]
    pub fn free_at(&self) -> PicoTime {
        let free = match &self.kind {
            Kind::Capacity(capacity, _) => capacity.free_at(),
            Kind::Trace(trace) => trace.free_at(),
        };
        free.max(self.held_until)
    }

    /// Sends a frame that is ready at `now`, and returns when it is through.
    #[inline]
    pub fn send(&mut self, now: PicoTime, len: FrameBytes) -> PicoTime {
        match &mut self.kind {
            Kind::Capacity(capacity, Level::Frame) => capacity.send(now, len),
            Kind::Capacity(capacity, Level::L1) => {
                capacity.clock.catch_up(now);
                capacity.clock.advance(l1_bytes(len).get());
                capacity.clock.at()
            }
            Kind::Trace(trace) => trace.send(now, pad(len)),
        }
    }

    /// Changes the rate for frames that start from here on.
    pub fn set(&mut self, now: PicoTime, rate: &Rate) {
        match (&mut self.kind, rate) {
            (Kind::Capacity(capacity, level), Rate::Capacity(rate, new)) => {
                capacity.clock.set_rate(*rate);
                *level = *new;
            }
            (_, rate) => self.kind = kind(rate, self.wire, self.free_at().max(now)),
        }
    }

    /// The rate, or of a trace the mean of full frames, and which bytes it counts.
    pub fn rate(&self) -> (BitRate, Level) {
        match &self.kind {
            Kind::Capacity(capacity, level) => (capacity.clock.rate(), *level),
            Kind::Trace(trace) => (trace.trace.mean_rate(), Level::Frame),
        }
    }

    /// Nothing starts for `time` from `now`; 0 ends a pause.
    pub fn hold(&mut self, now: PicoTime, time: PicoDuration) {
        self.held_until = now + time;
    }

    /// The time that a frame of `len` takes in the mean.
    pub fn mean_time(&self, len: FrameBytes) -> PicoDuration {
        match &self.kind {
            Kind::Capacity(capacity, _) => capacity.clock.rate().time_for(len.get()),
            Kind::Trace(trace) => trace.trace.mean_time(len),
        }
    }
}

fn kind(rate: &Rate, wire: Option<LineRate>, from: PicoTime) -> Kind {
    match rate {
        Rate::Capacity(rate, level) => {
            let mut capacity = Capacity::new(*rate, wire);
            capacity.clock.catch_up(from);
            Kind::Capacity(capacity, *level)
        }
        Rate::Trace(trace) => Kind::Trace(TraceWire::new(Arc::clone(trace), from)),
    }
}
