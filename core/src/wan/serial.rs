//! The engine of every stage: a queue before a medium, a pipe behind it.
//!
//! A frame moves from `queue` to `flight` at the start of its serialisation, with its departure time
//! already known. Starts are worked off whenever a call brings a new `now`, at their own exact times;
//! that is what makes departures independent of when the calls come.

use super::{
    Departure, DropCause, Dropped, StageCounters,
    loss::{Loss, Losses},
    medium::Medium,
};
use crate::{
    units::{FrameBytes, PicoDuration, PicoTime},
    wire::pad,
};
use alloc::collections::VecDeque;

/// Frames for which room is made at once.
const INITIAL_FRAMES: usize = 64;

#[derive(Debug, Clone)]
struct InFlight<T> {
    at: PicoTime,
    len: FrameBytes,
    lost: bool,
    token: T,
}

#[derive(Debug, Clone)]
pub(super) struct Serial<T, M> {
    now: PicoTime,
    queue: VecDeque<(FrameBytes, T)>,
    queue_limit: FrameBytes,
    medium: M,
    one_way_delay: PicoDuration,
    last_at: PicoTime,
    flight: VecDeque<InFlight<T>>,
    loss: Losses,
    held_until: PicoTime,
    counters: StageCounters,
}

impl<T, M: Medium> Serial<T, M> {
    pub fn new(medium: M, queue_limit: FrameBytes, one_way_delay: PicoDuration, loss: Losses) -> Self {
        Serial {
            now: PicoTime::ZERO,
            queue: VecDeque::with_capacity(INITIAL_FRAMES),
            queue_limit,
            medium,
            one_way_delay,
            last_at: PicoTime::ZERO,
            flight: VecDeque::with_capacity(INITIAL_FRAMES),
            loss,
            held_until: PicoTime::ZERO,
            counters: StageCounters::default(),
        }
    }

    #[inline]
    pub fn handle_frame(&mut self, now: PicoTime, len: FrameBytes, token: T) -> Result<(), Dropped<T>> {
        let len = pad(len);
        let now = self.serve(now);
        self.counters.arrived.add(len);
        // Behind `serve`, a free medium means that nobody waits.
        if self.free_at() <= now {
            self.counters.held.add(len);
            self.start(now, len, token);
            return Ok(());
        }
        let queued = self.counters.queued + len;
        if queued > self.queue_limit {
            self.counters.queue_full.add(len);
            return Err(Dropped {
                cause: DropCause::QueueFull,
                token,
            });
        }
        self.counters.queued = queued;
        self.counters.queued_max = self.counters.queued_max.max(queued);
        self.counters.held.add(len);
        self.queue.push_back((len, token));
        Ok(())
    }

    #[inline]
    pub fn poll(&mut self, now: PicoTime) -> Option<Departure<T>> {
        let now = self.serve(now);
        while self.flight.front().is_some_and(|frame| frame.at <= now) {
            let InFlight { at, len, lost, token } = self.flight.pop_front()?;
            self.counters.held.remove(len);
            if lost {
                self.counters.lost.add(len);
                continue;
            }
            self.counters.departed.add(len);
            return Some(Departure { at, len, token });
        }
        None
    }

    #[inline]
    pub fn next_wakeup(&self) -> Option<PicoTime> {
        if let Some(frame) = self.flight.front() {
            return Some(frame.at);
        }
        // The gap after the last frame is not over: look ahead to the end of the next one.
        let (len, _) = self.queue.front()?;
        let mut medium = self.medium;
        Some(self.arrival(medium.send(self.free_at(), *len)))
    }

    pub fn counters(&self) -> StageCounters {
        self.counters
    }

    /// The medium, with every start up to `now` behind it, to be changed for later frames.
    pub fn medium_at(&mut self, now: PicoTime) -> &mut M {
        self.serve(now);
        &mut self.medium
    }

    pub fn medium(&self) -> &M {
        &self.medium
    }

    pub fn set_one_way_delay(&mut self, now: PicoTime, one_way_delay: PicoDuration) {
        self.serve(now);
        self.one_way_delay = one_way_delay;
    }

    pub fn set_loss(&mut self, now: PicoTime, loss: Loss) {
        self.serve(now);
        self.loss.set(loss);
    }

    pub fn set_queue_limit(&mut self, now: PicoTime, queue_limit: FrameBytes) {
        self.serve(now);
        self.queue_limit = queue_limit;
    }

    /// Nothing starts for `time` from `now`; replaces an earlier hold.
    pub fn hold(&mut self, now: PicoTime, time: PicoDuration) {
        self.held_until = self.serve(now) + time;
    }

    /// When the next frame may start, rounded down to a whole ps.
    #[inline]
    fn free_at(&self) -> PicoTime {
        self.medium.free_at().max(self.held_until)
    }

    /// Starts every waiting frame whose turn comes by `now`, and returns `now`, never going back.
    #[inline]
    fn serve(&mut self, now: PicoTime) -> PicoTime {
        self.now = self.now.max(now);
        while self.free_at() <= self.now {
            let Some((len, token)) = self.queue.pop_front() else {
                break;
            };
            self.counters.queued -= len;
            self.start(self.free_at(), len, token);
        }
        self.now
    }

    #[inline]
    fn start(&mut self, now: PicoTime, len: FrameBytes, token: T) {
        let through = self.medium.send(now, len);
        let at = self.arrival(through);
        self.last_at = at;
        let lost = self.loss.draw();
        self.flight.push_back(InFlight { at, len, lost, token });
    }

    /// When a frame that is through the medium arrives: order is kept when the delay has shrunk.
    #[inline]
    fn arrival(&self, through: PicoTime) -> PicoTime {
        (through + self.one_way_delay).max(self.last_at)
    }
}

/// Gives a stage its trait by passing every call to its `serial` field.
macro_rules! stage {
    ($name:ident) => {
        impl<T> crate::wan::Stage<T> for $name<T> {
            #[inline]
            fn handle_frame(
                &mut self,
                now: PicoTime,
                len: FrameBytes,
                token: T,
            ) -> Result<(), crate::wan::Dropped<T>> {
                self.serial.handle_frame(now, len, token)
            }

            #[inline]
            fn poll(&mut self, now: PicoTime) -> Option<crate::wan::Departure<T>> {
                self.serial.poll(now)
            }

            #[inline]
            fn next_wakeup(&self) -> Option<PicoTime> {
                self.serial.next_wakeup()
            }

            fn counters(&self) -> crate::wan::StageCounters {
                self.serial.counters()
            }
        }
    };
}
pub(super) use stage;
