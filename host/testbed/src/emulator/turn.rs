//! One thread of the emulator.
//!
//! ```text
//! loop: take what other threads handed over; work off what is due; hand over; read what has come;
//!       nothing due within 500 us: sleep, else spin (60 us without a core of its own, nothing on a machine with one core)
//! look: what is due within 1.5 us, the time of a look at the cards and one read, goes before that look when the last
//!       one left nothing to be read
//! ```
//!
//! With other threads, events are done up to their promises only, and no sleep is longer than half of the shortest lead
//! of a link between threads: so promises and frames come in time (`plan`, `exchange`).

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};

use kuroshio_clock::now_ns;
use kuroshio_core::units::{PicoDuration, PicoTime};

use super::cards::Cards;
use super::engine::{Engine, PortCounts};
use super::{Command, Snapshot, stage};
use crate::meter::{self, Observer};
use crate::sys;

/// Events worked off before cards are read again.
const EVENT_BATCH: usize = 64;

/// The longest sleep: a command wakes the thread, this is for nothing but safety.
const LONGEST_SLEEP_NS: u64 = 1_000_000_000;

/// How long a thread waits for a promise before it looks again.
const WAIT_NS: u64 = 10_000;

/// A look at the cards and one read take so long: what is due sooner would be late by it.
const LOOK_NS: u64 = 1_500;

pub(super) struct Turn {
    pub engine: Engine,
    pub cards: Cards,
    pub epoll: OwnedFd,
    pub wake: Arc<OwnedFd>,
    pub commands: Receiver<Command>,
    pub spin_ns: u64,
    /// The shortest lead of a link to or from another thread.
    pub lead: Option<PicoDuration>,
}

impl Turn {
    pub fn run(mut self) {
        let mut events = vec![libc::epoll_event { events: 0, u64: 0 }; self.cards.count() + 1];
        let mut all_read = false;
        loop {
            let limit = self.work_off();
            if all_read && self.spin_to_due() {
                // Then the cards have their turn, so that reading keeps up with writing.
                all_read = false;
                continue;
            }
            let timeout = self.pause_ns(limit);
            let ready = sys::epoll_wait(&self.epoll, &mut events, timeout).unwrap_or(0);
            all_read = true;
            for event in events.iter().take(ready) {
                let index = usize::try_from(event.u64).unwrap_or(usize::MAX);
                if index < self.cards.count() {
                    all_read &= self.cards.read(index, &mut self.engine);
                } else if !self.obey() {
                    return;
                }
            }
        }
    }

    /// Waits for what is due within [`LOOK_NS`], if anything is and this thread may spin.
    fn spin_to_due(&self) -> bool {
        let next = self.engine.next_ps().min(self.cards.next_ps());
        if self.spin_ns == 0 || next == u64::MAX {
            return false;
        }
        let due_ns = self.cards.epoch.mono_ns(PicoTime::from_ps(next));
        if due_ns > now_ns() + LOOK_NS {
            return false;
        }
        while now_ns() < due_ns {
            std::hint::spin_loop();
        }
        true
    }

    /// Works off what is due, and returns up to when that may be.
    fn work_off(&mut self) -> PicoTime {
        let Self {
            engine, cards, lead, ..
        } = self;
        let now = cards.epoch.pico_now();
        let limit = lead.map_or(now, |_| now.min(engine.receive()));
        for _ in 0..EVENT_BATCH {
            if !engine.step(limit, cards) {
                // Every frame that departs by now has left.
                cards.flush(limit, &mut engine.ports);
                break;
            }
        }
        engine.mark(limit);
        if lead.is_some() {
            engine.publish(limit);
        }
        limit
    }

    /// How long to sleep now: not at all within the spinning distance of the next event.
    fn pause_ns(&self, limit: PicoTime) -> u64 {
        let next = self.engine.next_ps().min(self.cards.next_ps());
        let now_ns = now_ns();
        let metered = self.engine.observer.as_ref().is_some_and(Observer::is_active);
        let longest = match metered {
            true => meter::LONGEST_SLEEP_NS,
            false => LONGEST_SLEEP_NS,
        };
        let most = self.lead.map_or(longest, |lead| longest.min(lead.as_ns() / 2));
        if next == u64::MAX {
            return most;
        }
        let epoch = &self.cards.epoch;
        let due_ns = epoch.mono_ns(PicoTime::from_ps(next));
        // A thread alone never waits for what has become due since it looked.
        if self.lead.is_some() && due_ns <= now_ns && next > limit.as_ps() {
            return WAIT_NS;
        }
        due_ns
            .saturating_sub(now_ns)
            .saturating_sub(self.spin_ns)
            .min(most)
    }

    /// Does what was asked; `false` means to end.
    fn obey(&mut self) -> bool {
        let mut count = [0u8; 8];
        let _ = rustix::io::read(&*self.wake, &mut count);
        loop {
            match self.commands.try_recv() {
                Ok(Command::Change(at, actions)) => {
                    let at = at.unwrap_or_else(|| self.cards.epoch.pico_now());
                    for (stage, action) in actions {
                        self.engine.schedule(at, stage, action);
                    }
                }
                Ok(Command::Stall(time)) => {
                    kuroshio_clock::sleep_until(now_ns() + time.as_nanos() as u64, 0);
                }
                Ok(Command::Counters(answer)) => {
                    let _ = answer.try_send(self.snapshot());
                }
                Ok(Command::Lateness(answer)) => {
                    let _ = answer.try_send(self.cards.lateness.clone());
                }
                Ok(Command::Restart) => self.cards.lateness.clear(),
                Ok(Command::TraceStart(trace)) => self.engine.trace = Some(trace),
                Ok(Command::TraceStop(answer)) => {
                    let _ = answer.try_send(self.engine.trace.take());
                }
                Ok(Command::Observe(observer)) => self.engine.observer = Some(*observer),
                Ok(Command::Want(stages)) => self.engine.want(&stages),
                Ok(Command::Stop) | Err(TryRecvError::Disconnected) => return false,
                Err(TryRecvError::Empty) => return true,
            }
        }
    }

    fn snapshot(&mut self) -> Snapshot {
        let each = |(port, c): (usize, &PortCounts)| {
            [
                c.sent,
                c.unrouted,
                c.no_memory,
                c.delivered,
                c.not_taken,
                c.pauses,
                c.gaps,
                c.gaps_sent,
                self.cards.grouped(port),
            ]
        };
        let ports = self.engine.ports.iter().enumerate().map(each).collect();
        let stages = 0..self.engine.stages.len();
        Snapshot {
            at: self.cards.epoch.pico_now(),
            ports,
            stages: stages.clone().map(|s| self.engine.stage_counters(s)).collect(),
            pauses: self.engine.stages.iter().map(stage::Stage::pauses).collect(),
            faults: self
                .engine
                .stages
                .iter_mut()
                .map(|s| s.faults().map_or((0, 0), |f| (f.dropped, f.corrupted)))
                .collect(),
            values: self.engine.stages.iter().map(stage::Stage::values).collect(),
            mirrored: self.cards.mirrored.clone(),
            flooded: self.engine.flooded,
            handed: self.engine.handed(),
        }
    }
}
