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
//! | [`Link`] | frame-level capacity, and never less than the L1 time of a wire below it | that time has passed, plus the one-way delay |
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

mod link;
mod medium;
mod port;
mod serial;

pub use link::{Link, LinkConfig};
pub use port::{PortWire, Shaper, ShaperConfig};

use crate::units::{FrameBytes, PicoTime};

/// Why a stage did not take a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DropCause {
    /// The queue had no room for it.
    QueueFull,
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

/// What went through a stage. At all times `arrived = departed + queue_full + lost + held`.
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
    /// Frames inside: waiting, being serialised, in flight.
    pub held: Count,
    /// Bytes waiting in the queue.
    pub queued: FrameBytes,
    /// The most bytes that ever waited.
    pub queued_max: FrameBytes,
}

impl StageCounters {
    /// Frames and bytes that did not come out and never will.
    pub fn dropped(&self) -> Count {
        Count {
            frames: self.queue_full.frames + self.lost.frames,
            bytes: self.queue_full.bytes + self.lost.bytes,
        }
    }
}

/// The shape of every stage. `T` is the frame itself or whatever stands for it; the token of a frame
/// that is lost on the way is dropped in `poll`.
pub trait Stage<T> {
    /// A frame arrives. `Err` gives the token back when the queue is full.
    fn handle_frame(&mut self, now: PicoTime, len: FrameBytes, token: T) -> Result<(), Dropped<T>>;

    /// The next frame that has left by `now`, in order of arrival.
    fn poll(&mut self, now: PicoTime) -> Option<Departure<T>>;

    /// When `poll` will next have something to do, if no frame arrives: asked after `poll` was `None`.
    fn next_wakeup(&self) -> Option<PicoTime>;

    /// What went through so far.
    fn counters(&self) -> StageCounters;
}
