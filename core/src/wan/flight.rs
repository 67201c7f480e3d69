//! Frames on the way: those that keep their order in a row, those that may overtake in a heap.
//!
//! A frame of the row arrives no earlier than the one in front of it, so the row is sorted by time. The
//! earliest of all is the front of the row or the top of the heap; at one instant, the one that was sent first.

use crate::units::{FrameBytes, PicoTime};
use alloc::collections::{BinaryHeap, VecDeque};
use core::cmp::Ordering;

/// Frames for which room is made at once.
const INITIAL_FRAMES: usize = 64;

/// What happens to a frame at the end of its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Arrives,
    Corrupted,
    Lost,
}

#[derive(Debug, Clone)]
pub(super) struct InFlight<T> {
    pub at: PicoTime,
    pub sent: u64,
    pub len: FrameBytes,
    pub end: End,
    pub token: T,
}

/// In a heap the earliest is on top, so the order is turned round.
#[derive(Debug, Clone)]
struct Turned<T>(InFlight<T>);

impl<T> Turned<T> {
    fn key(&self) -> (PicoTime, u64) {
        (self.0.at, self.0.sent)
    }
}

impl<T> PartialEq for Turned<T> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<T> Eq for Turned<T> {}

impl<T> PartialOrd for Turned<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Turned<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        other.key().cmp(&self.key())
    }
}

#[derive(Debug, Clone)]
pub(super) struct Flight<T> {
    row: VecDeque<InFlight<T>>,
    heap: BinaryHeap<Turned<T>>,
    sent: u64,
    last_at: PicoTime,
}

impl<T> Flight<T> {
    pub fn new() -> Self {
        Flight {
            row: VecDeque::with_capacity(INITIAL_FRAMES),
            heap: BinaryHeap::new(),
            sent: 0,
            last_at: PicoTime::ZERO,
        }
    }

    /// When a frame that keeps its order and could arrive at `at` does.
    #[inline]
    pub fn in_row(&self, at: PicoTime) -> PicoTime {
        at.max(self.last_at)
    }

    /// Adds a frame behind the others: it arrives at `at`, or with the one in front of it.
    #[inline]
    pub fn keep(&mut self, at: PicoTime, len: FrameBytes, end: End, token: T) {
        let at = self.in_row(at);
        self.last_at = at;
        let sent = self.number();
        self.row.push_back(InFlight {
            at,
            sent,
            len,
            end,
            token,
        });
    }

    /// Adds a frame that arrives at `at`, whoever else does.
    pub fn free(&mut self, at: PicoTime, len: FrameBytes, end: End, token: T) {
        let sent = self.number();
        self.heap.push(Turned(InFlight {
            at,
            sent,
            len,
            end,
            token,
        }));
    }

    fn number(&mut self) -> u64 {
        self.sent += 1;
        self.sent
    }

    /// When the earliest arrives.
    #[inline]
    pub fn first(&self) -> Option<PicoTime> {
        match (self.row.front(), self.heap.peek()) {
            (Some(a), Some(b)) => Some(a.at.min(b.0.at)),
            (Some(a), None) => Some(a.at),
            (None, b) => b.map(|b| b.0.at),
        }
    }

    /// Whether a frame is in the row: then none that keeps its order arrives before it.
    #[inline]
    pub fn has_row(&self) -> bool {
        !self.row.is_empty()
    }

    /// Takes the earliest, if it arrives by `now`.
    #[inline]
    pub fn pop(&mut self, now: PicoTime) -> Option<InFlight<T>> {
        let row = self.row.front().map(|f| (f.at, f.sent));
        let heap = self.heap.peek().map(Turned::key);
        match (row, heap) {
            (Some(r), h) if r.0 <= now && h.is_none_or(|h| r < h) => self.row.pop_front(),
            (_, Some(h)) if h.0 <= now => self.heap.pop().map(|t| t.0),
            _ => None,
        }
    }
}
