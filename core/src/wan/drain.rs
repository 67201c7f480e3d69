//! A port that receives into a buffer and drains it at a rate; it asks the other end to pause.
//!
//! ```text
//!   frames -> buffer -> drained, one at a time, at the rate
//!               | above `high`: PAUSE with `quanta`, and again after half of that time while it lasts
//!               | down to `low`: PAUSE with 0
//!               | full: dropped
//! ```
//!
//! A frame is charged from its arrival until it is drained. What the port asks for comes from
//! [`DrainPort::poll_pause`] with its exact time; the caller gives it to the wire at the other end
//! ([`PortWire::hold`](super::PortWire::hold)) when the PAUSE frame has crossed. With a buffer above `high` of what can
//! arrive until then (one frame on the wire, the PAUSE frame, and the wire's delay both ways) no frame is lost.
//! At one instant: the end of a drain, then a repeated PAUSE, then an arrival.
//!
//! Source: IEEE 802.3, annex 31B.

use super::{Departure, DropCause, Dropped, Stage, StageCounters};
use crate::{
    units::{BitRate, FrameBytes, PicoDuration, PicoTime, TxClock},
    wire::{LineRate, pad, pause_time},
};
use alloc::collections::VecDeque;

/// When to ask for a pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaterMarks {
    /// Above so much a pause is asked for.
    pub high: FrameBytes,
    /// Down to so much it is ended; below `high`.
    pub low: FrameBytes,
    /// For how long, in quanta of 512 bit times of the line.
    pub quanta: u16,
}

/// What a [`DrainPort`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrainConfig {
    /// How fast frames are drained, frame level.
    pub rate: BitRate,
    /// Most bytes of frames that are held.
    pub buffer: FrameBytes,
    /// Whether, and when, PAUSE is sent.
    pub pause: Option<WaterMarks>,
    /// The wire on which frames come, L1.
    pub line: LineRate,
}

/// A PAUSE frame that the port sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PauseRequest {
    /// When.
    pub at: PicoTime,
    /// Its time; 0 ends the pause.
    pub quanta: u16,
}

/// A port that drains at a rate.
#[derive(Debug, Clone)]
pub struct DrainPort<T> {
    config: DrainConfig,
    now: PicoTime,
    clock: TxClock,
    /// In front, the frame that is being drained until `clock.at()`.
    buffer: VecDeque<(FrameBytes, T)>,
    drained: VecDeque<Departure<T>>,
    requests: VecDeque<PauseRequest>,
    /// When the pause that was asked for is asked for again.
    again: Option<PicoTime>,
    inside: FrameBytes,
    counters: StageCounters,
    pauses: u64,
}

impl<T> DrainPort<T> {
    /// An empty port.
    pub fn new(config: DrainConfig) -> Self {
        DrainPort {
            config,
            now: PicoTime::ZERO,
            clock: TxClock::new(config.rate),
            buffer: VecDeque::new(),
            drained: VecDeque::new(),
            requests: VecDeque::new(),
            again: None,
            inside: FrameBytes::ZERO,
            counters: StageCounters::default(),
            pauses: 0,
        }
    }

    /// Changes the rate for frames whose draining starts after `now`.
    pub fn set_rate(&mut self, now: PicoTime, rate: BitRate) {
        self.serve(now);
        // The frame that is being drained is behind the clock already.
        self.clock.set_rate(rate);
        self.config.rate = rate;
    }

    /// The wire on which frames come.
    pub fn line(&self) -> LineRate {
        self.config.line
    }

    /// The next PAUSE frame that has been sent by `now`.
    pub fn poll_pause(&mut self, now: PicoTime) -> Option<PauseRequest> {
        self.serve(now);
        self.requests.pop_front()
    }

    /// PAUSE frames sent so far.
    pub fn pauses(&self) -> u64 {
        self.pauses
    }

    fn ask(&mut self, at: PicoTime, quanta: u16) {
        self.pauses += 1;
        self.requests.push_back(PauseRequest { at, quanta });
        self.again = (quanta > 0).then(|| {
            let half = pause_time(quanta, self.config.line).as_ps() / 2;
            // Never at once again, however fast the line.
            at + PicoDuration::from_ps(half.max(1))
        });
    }

    fn serve(&mut self, now: PicoTime) -> PicoTime {
        self.now = self.now.max(now);
        loop {
            let done = (!self.buffer.is_empty()).then(|| self.clock.at());
            match (done, self.again) {
                (Some(done), again) if done <= self.now && again.is_none_or(|a| done <= a) => {
                    self.drain(done)
                }
                (_, Some(again)) if again <= self.now => self.repeat(again),
                _ => return self.now,
            }
        }
    }

    fn repeat(&mut self, at: PicoTime) {
        match self.config.pause {
            Some(marks) => self.ask(at, marks.quanta),
            None => self.again = None,
        }
    }

    fn drain(&mut self, at: PicoTime) {
        let Some((len, token)) = self.buffer.pop_front() else {
            return;
        };
        self.inside -= len;
        self.drained.push_back(Departure { at, len, token });
        if let Some((next, _)) = self.buffer.front() {
            self.clock.advance(next.get());
        }
        if let Some(marks) = self.config.pause
            && self.again.is_some()
            && self.inside <= marks.low
        {
            self.ask(at, 0);
        }
    }
}

impl<T> Stage<T> for DrainPort<T> {
    fn handle_frame(&mut self, now: PicoTime, len: FrameBytes, token: T) -> Result<(), Dropped<T>> {
        let len = pad(len);
        let now = self.serve(now);
        self.counters.arrived.add(len);
        if self.inside + len > self.config.buffer {
            self.counters.queue_full.add(len);
            let cause = DropCause::QueueFull;
            return Err(Dropped { cause, token });
        }
        if self.buffer.is_empty() {
            self.clock.catch_up(now);
            self.clock.advance(len.get());
        }
        self.inside += len;
        self.counters.held.add(len);
        self.counters.queued_max = self.counters.queued_max.max(self.inside);
        self.buffer.push_back((len, token));
        if let Some(marks) = self.config.pause
            && self.again.is_none()
            && self.inside > marks.high
        {
            self.ask(now, marks.quanta);
        }
        Ok(())
    }

    fn poll(&mut self, now: PicoTime) -> Option<Departure<T>> {
        self.serve(now);
        let departure = self.drained.pop_front()?;
        self.counters.held.remove(departure.len);
        self.counters.departed.add(departure.len);
        Some(departure)
    }

    fn next_wakeup(&self) -> Option<PicoTime> {
        let waiting = self.drained.front().map(|d| d.at);
        let asked = self.requests.front().map(|r| r.at);
        let done = (!self.buffer.is_empty()).then(|| self.clock.at());
        [waiting, asked, done, self.again].into_iter().flatten().min()
    }

    fn counters(&self) -> StageCounters {
        StageCounters {
            queued: self.inside,
            ..self.counters
        }
    }
}
