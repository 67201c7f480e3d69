//! One direction of an emulated path, as stages that a frame passes one after another.
//!
//! ```text
//!   handle_frame -> Queue (bytes, drop-tail) -> Wire (rate) -> Pipe (one-way delay) -> Impair -> poll
//!                     | full                     one frame       frames in flight        | lost
//!                     v                          at a time                               v
//!                   Err(Dropped)                                                      counted
//! ```
//!
//! | stage | wire | frame leaves when |
//! |---|---|---|
//! | [`PortWire`] | L1 rate: preamble, frame, gap of 12 | its FCS is out |
//! | [`Shaper`] | L1 rate: preamble, frame, chosen gap | its FCS is out |
//! | [`StreamShaper`] | L1 rate: preamble, frame, the longer of two gaps | its FCS is out |
//! | [`Link`] | frame-level capacity, and never less than the L1 time of a wire below it | that time has passed, plus the one-way delay |
//! | [`WanLink`] | the same, an L1 capacity, or a recording ([`Rate`]) | that time has passed, plus a delay that may vary |
//! | [`DrainPort`] | frame-level rate of the receiver | that time has passed |
//!
//! A [`WanLink`] is a [`Link`] that can do everything else as well: it refuses early ([`Aqm`]), marks
//! ([`mark`]), varies its delay ([`Jitter`]), loses by model or by name ([`Loss`], [`FrameName`]), copies, holds
//! back ([`Reorder`]), damages ([`Corruption`]) and rewrites ([`Rewrite`]) frames, and changes over time
//! ([`Schedule`]). Each is in a file of its own, with its model and source on top.
//!
//! All have the shape of [`Stage`]. Calls, in order, at any `now`:
//!
//! 1. `handle_frame(now, len, token)` for frames that arrived;
//! 2. `poll(now)` until it is `None`;
//! 3. sleep until `next_wakeup()` or the next arrival.
//!
//! **Event-exact.** A departure's `at` follows from the arrivals alone. However late `poll` is called, and
//! however often, the same frames leave at the same picosecond; being late only shows in `now - at`. A
//! `now` below an earlier one counts as that earlier one.
//!
//! **What the queue is charged.** A frame is charged, with its frame bytes, from its arrival until its
//! serialisation starts. A frame that finds the wire idle is never charged, nor is one being serialised,
//! nor one in flight. At the same instant a start comes before an arrival. A queue filled exactly to its
//! limit is not full; one byte more is dropped.
//!
//! **Changes in the middle of a run** (capacity, delay, loss, spacing) hold for frames whose serialisation
//! starts after them. A shorter delay never makes a frame overtake one that is in flight.
//!
//! **Memory.** Waiting frames are bounded by the queue limit (a frame counts as 64 bytes at least), frames
//! in flight by capacity times delay. Buffers grow to that and stay; there is no allocation per frame.

mod cargo;
mod codel;
mod config;
mod corrupt;
mod drain;
mod ecn;
mod flight;
mod gate;
mod header;
mod jitter;
mod link;
mod loss;
mod medium;
mod named;
mod normal;
mod opportunity;
mod pareto;
mod port;
mod random;
mod red;
mod rewrite;
mod schedule;
mod serial;
mod setting;
mod stream_shaper;
mod wan_link;

pub use cargo::{Cargo, Gone};
pub use codel::CoDel;
pub use config::{Aqm, Limit, MAX_STEPS, Reorder, Schedule, WanChange, WanConfig, WanValues};
pub use corrupt::{Corruption, Damage, MAX_FLIPS};
pub use drain::{DrainConfig, DrainPort, PauseRequest, WaterMarks};
pub use ecn::{Mark, mark};
pub use gate::{Level, MAX_CAPACITY, MIN_CAPACITY, Rate};
pub use jitter::{Jitter, MAX_DELAY, MAX_SAMPLES, MIN_SHAPE, Order};
pub use link::{Link, LinkConfig};
pub use loss::Loss;
pub use named::{FrameKind, FrameName, MAX_FLOWS, MAX_NAMED};
pub use opportunity::{
    MAX_OPPORTUNITIES, MAX_PERIOD_MS, OPPORTUNITY_BYTES, Opportunities, TraceError, TraceProblem,
};
pub use port::{PortWire, Shaper, ShaperConfig};
pub use red::{MAX_WEIGHT_LOG2, Red};
pub use rewrite::{MAX_REWRITES, MAX_VLAN, Rewrite};
pub use setting::{Files, MAX_QUEUE, MAX_VALUE, MIN_LINK_MTU, SETTINGS, SettingError, setting};
pub use stream_shaper::{
    FilterError, MAX_SHAPED_STREAMS, StreamFilter, StreamShape, StreamShaper, StreamShaperConfig,
};
pub use wan_link::WanLink;

use crate::units::{FrameBytes, PicoTime};

/// Why a stage did not take a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DropCause {
    /// The queue had no room for it.
    QueueFull,
    /// The queue's discipline refused it at its arrival.
    Aqm,
    /// Its packet was larger than the link's MTU.
    TooBig,
}

/// A frame that was not taken, given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dropped<T> {
    /// Why.
    pub cause: DropCause,
    /// What came with the frame.
    pub token: T,
}

/// A frame that leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Departure<T> {
    /// The exact moment, at or before the `now` of the poll.
    pub at: PicoTime,
    /// The frame's size, MAC header to FCS.
    pub len: FrameBytes,
    /// What came with the frame.
    pub token: T,
}

/// A number of frames and their bytes, MAC header to FCS, a frame below 64 counting as 64.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    /// Frames.
    pub frames: u64,
    /// Their bytes.
    pub bytes: FrameBytes,
}

impl Count {
    /// Counts one more frame.
    #[inline]
    pub fn add(&mut self, len: FrameBytes) {
        self.frames += 1;
        self.bytes += len;
    }

    #[inline]
    pub(crate) fn remove(&mut self, len: FrameBytes) {
        self.frames -= 1;
        self.bytes -= len;
    }
}

/// What went through a stage. At all times
/// `arrived + duplicated = departed + queue_full + aqm_dropped + too_big + lost + held`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StageCounters {
    /// Every frame given to `handle_frame`.
    pub arrived: Count,
    /// Every frame returned by `poll`.
    pub departed: Count,
    /// Frames dropped because the queue was full.
    pub queue_full: Count,
    /// Frames dropped by the loss ratio; counted when they would have departed.
    pub lost: Count,
    /// Frames dropped by the queue's discipline, at arrival (RED) or at their turn (CoDel).
    pub aqm_dropped: Count,
    /// Frames dropped because their packet was larger than the link's MTU.
    pub too_big: Count,
    /// Copies that were made.
    pub duplicated: Count,
    /// Frames inside: waiting, being serialised, in flight.
    pub held: Count,
    /// Bytes waiting in the queue.
    pub queued: FrameBytes,
    /// The most bytes that ever waited.
    pub queued_max: FrameBytes,
    /// Frames marked with CE by the queue's discipline.
    pub marked: u64,
    /// Frames that arrived damaged.
    pub corrupted: u64,
    /// Frames that were held back so that others overtake.
    pub reordered: u64,
    /// Copies that were to be made and for which there was no memory.
    pub not_copied: u64,
}

impl StageCounters {
    /// Frames and bytes that did not come out and never will.
    pub fn dropped(&self) -> Count {
        let causes = [self.queue_full, self.aqm_dropped, self.too_big, self.lost];
        Count {
            frames: causes.iter().map(|c| c.frames).sum(),
            bytes: causes.iter().map(|c| c.bytes).sum(),
        }
    }
}

/// The shape of every stage. `T` is the frame itself or whatever stands for it; the token of a frame
/// that is lost on the way is dropped in `poll`.
pub trait Stage<T> {
    /// A frame arrives. `Err` gives the token back when the queue is full.
    fn handle_frame(&mut self, now: PicoTime, len: FrameBytes, token: T) -> Result<(), Dropped<T>>;

    /// The next frame that has left by `now`, in order of departure.
    fn poll(&mut self, now: PicoTime) -> Option<Departure<T>>;

    /// When `poll` will next have something to do, if no frame arrives: asked after `poll` was `None`.
    fn next_wakeup(&self) -> Option<PicoTime>;

    /// What went through so far.
    fn counters(&self) -> StageCounters;
}
