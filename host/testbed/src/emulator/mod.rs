//! The emulator's threads: TAPs in, the engine, TAPs out, on time.
//!
//! ```text
//!        read TAPs (stamp = time of reading)            write TAPs (lateness = time of writing - exact time)
//! hosts ------------------------------------> engine ---------------------------------------------> hosts
//!                                              ^ commands
//! ```
//!
//! Each thread has its loop ([`turn`]) and its part of the network ([`plan`]). A single thread is bound to a core of its own. No thread allocates per frame; each reads a card eagerly
//! into the port's queue, so that a host is never stalled by its interface queue. When it is late
//! it writes at once; exact times are not affected, only `lateness` shows it.

mod cards;
mod engine;
mod exchange;
mod fault;
mod fill;
mod groups;
mod lateness;
mod plan;
mod pool;
mod stage;
mod switch;
mod tourney;
mod trace;
mod turn;

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use kuroshio_clock::{Epoch, exact_sleep, pin_to_core, spin_ns, thread_id};
use kuroshio_core::units::{PicoDuration, PicoTime};
use kuroshio_core::wan::{Count, StageCounters, WanValues};
use kuroshio_port::Tap;
use rustix::event::{EventfdFlags, eventfd};

use crate::host::Device;
use crate::meter::Observer;
use crate::sys;
use crate::topology::Topology;

use cards::Cards;
use engine::Engine;
use exchange::Exchange;
use turn::Turn;

pub use fault::Damage;
pub use lateness::Lateness;
pub use pool::MAX_POOL_BYTES;
pub use switch::MAX_LEARNED;
pub use trace::{Fate, Point, Trace, TraceRecord};

pub(crate) use lateness::Histogram;
pub(crate) use plan::Plan;
pub(crate) use pool::Lost;
pub(crate) use stage::{Action, Numbers, drain_stages, exit_stages, shaper_stages};

/// What the thread can be asked.
pub(crate) enum Command {
    /// At one time, `None` for now: stages and what changes in them.
    Change(Option<PicoTime>, Vec<(usize, Action)>),
    Stall(Duration),
    Counters(SyncSender<Snapshot>),
    Lateness(SyncSender<Histogram>),
    Restart,
    TraceStart(Trace),
    TraceStop(SyncSender<Option<Trace>>),
    /// From now on the meters see what happens.
    Observe(Box<Observer>),
    /// The stages that they look at, by number.
    Want(Vec<bool>),
    Stop,
}

/// The engine's counters at one moment.
pub(crate) struct Snapshot {
    pub at: PicoTime,
    /// By port: sent, unrouted, without memory, delivered, not taken, PAUSE, gap frames, those of its shaper, in open
    /// groups.
    pub ports: Vec<[Count; 9]>,
    pub stages: Vec<StageCounters>,
    /// By stage: frames lost and damaged by faults.
    pub faults: Vec<(u64, u64)>,
    /// By stage: PAUSE frames sent.
    pub pauses: Vec<u64>,
    /// By stage: what a link is set to, and whether it is cut.
    pub values: Vec<Option<(WanValues, bool)>>,
    /// By tap of the topology: copies that were written, and those that found no room.
    pub mirrored: Vec<[Count; 2]>,
    /// Copies that switches made, and those for which there was no memory.
    pub flooded: [Count; 2],
    /// Frames that were handed to another thread, and that were taken from one.
    pub handed: [u64; 2],
}

/// With several threads, how long after it was asked for a change is made: every thread has it by then.
const CHANGE_LEAD: PicoDuration = PicoDuration::from_us(500);

struct Thread {
    commands: Sender<Command>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

/// The running threads.
pub(crate) struct Emulator {
    threads: Vec<Thread>,
    pub tids: Vec<u32>,
    pub epoch: Epoch,
    pub plan: Arc<Plan>,
}

/// What a thread needs to start.
struct Start {
    own: usize,
    taps: Vec<Option<Device>>,
    mirrors: Arc<Vec<Tap>>,
    core: Option<usize>,
    wake: Arc<OwnedFd>,
    commands: Receiver<Command>,
    topology: Topology,
    plan: Arc<Plan>,
    exchange: Arc<Exchange>,
}

impl Start {
    /// Makes the thread's part of the network, says that it stands, and runs it from the time that it is told.
    fn run(self, tell: &SyncSender<io::Result<u32>>, epoch: &Receiver<Epoch>) {
        let Self { own, core, taps, .. } = self;
        let pinned = core.map_or(Ok(()), pin_to_core).and_then(|()| exact_sleep());
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let mut fds = Cards::descriptors(&taps);
        fds.push((taps.len(), self.wake.as_raw_fd()));
        let epoll = match pinned.and_then(|()| sys::epoll_of(&fds)) {
            Ok(epoll) => epoll,
            Err(e) => {
                let _ = tell.send(Err(e));
                return;
            }
        };
        let engine = Engine::new(&self.topology, &self.plan, &self.exchange, own);
        let _ = tell.send(Ok(thread_id()));
        let Ok(epoch) = epoch.recv() else { return };
        Turn {
            engine,
            cards: Cards::new(taps, self.mirrors, self.topology.mode, epoch),
            epoll,
            wake: self.wake,
            commands: self.commands,
            spin_ns: spin_ns(core.is_some(), cores),
            lead: self.exchange.shortest_lead(own),
        }
        .run();
    }
}

impl Emulator {
    /// Starts the threads. `taps` are in the order of the ports' numbers, `mirrors`
    /// in that of the topology's taps; a single thread has `core` for itself.
    pub fn start(
        topology: &Topology,
        taps: Vec<Device>,
        mirrors: Vec<Tap>,
        core: Option<usize>,
    ) -> io::Result<Self> {
        let mirrors = Arc::new(mirrors);
        let plan = Arc::new(Plan::of(topology));
        let exchange = Arc::new(Exchange::new(&plan));
        let mut taps: Vec<Option<Device>> = taps.into_iter().map(Some).collect();
        let mut emulator = Self {
            threads: Vec::new(),
            tids: Vec::new(),
            epoch: Epoch::now(),
            plan: Arc::clone(&plan),
        };
        let mut epochs = Vec::new();
        for own in 0..plan.threads {
            let (commands, receiver) = channel();
            let wake = Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?);
            let theirs = taps.iter_mut().zip(&plan.ports);
            let start = Start {
                own,
                mirrors: Arc::clone(&mirrors),
                taps: theirs.map(|(t, p)| t.take_if(|_| *p == own)).collect(),
                core: core.filter(|_| plan.threads == 1),
                wake: Arc::clone(&wake),
                commands: receiver,
                topology: topology.clone(),
                plan: Arc::clone(&plan),
                exchange: Arc::clone(&exchange),
            };
            let (tell, told) = sync_channel(1);
            let (epoch, begin) = sync_channel(1);
            let name = if plan.threads == 1 {
                "emulator".to_owned()
            } else {
                format!("emulator-{own}")
            };
            let thread = std::thread::Builder::new()
                .name(name)
                .spawn(move || start.run(&tell, &begin))?;
            emulator.threads.push(Thread {
                commands,
                wake,
                thread: Some(thread),
            });
            let at_once = || Err(io::Error::other("the emulator's thread ended at once"));
            emulator.tids.push(told.recv().unwrap_or_else(|_| at_once())?);
            epochs.push(epoch);
        }
        emulator.epoch = Epoch::now();
        for epoch in epochs {
            epoch.send(emulator.epoch).map_err(|_| ended())?;
        }
        Ok(emulator)
    }

    /// Makes changes of stages at one time, `None` for now.
    pub fn change(&self, at: Option<PicoTime>, actions: Vec<(usize, Action)>) -> io::Result<()> {
        let at = match at {
            None if self.threads.len() > 1 => Some(self.epoch.pico_now() + CHANGE_LEAD),
            at => at,
        };
        let mut parts: Vec<Vec<(usize, Action)>> = self.threads.iter().map(|_| Vec::new()).collect();
        for (stage, action) in actions {
            let owner = self.plan.stages.get(stage).copied().unwrap_or(0);
            if let Some(part) = parts.get_mut(owner) {
                part.push((stage, action));
            }
        }
        for (thread, part) in self.threads.iter().zip(parts) {
            if !part.is_empty() {
                thread.tell(Command::Change(at, part))?;
            }
        }
        Ok(())
    }

    /// Gives every thread its observer, in the order of the threads.
    pub fn observe(&self, observers: Vec<Observer>) -> io::Result<()> {
        for (thread, observer) in self.threads.iter().zip(observers) {
            thread.tell(Command::Observe(Box::new(observer)))?;
        }
        Ok(())
    }

    /// Gives every thread a command. An error means that one has ended.
    pub fn tell_all(&self, mut command: impl FnMut() -> Command) -> io::Result<()> {
        self.threads.iter().try_for_each(|t| t.tell(command()))
    }

    /// Asks every thread and waits for the answers, in the order of the threads.
    pub fn ask_all<T>(&self, command: impl Fn(SyncSender<T>) -> Command) -> io::Result<Vec<T>> {
        let waits = self.threads.iter().map(|thread| {
            let (answer, wait) = sync_channel(1);
            thread.tell(command(answer)).map(|()| wait)
        });
        let waits: Vec<_> = waits.collect::<io::Result<_>>()?;
        waits.into_iter().map(|w| w.recv().map_err(|_| ended())).collect()
    }

    /// The counters of all threads, each stage's from its owner.
    pub fn snapshot(&self) -> io::Result<Snapshot> {
        let parts = self.ask_all(Command::Counters)?;
        let given: u64 = parts.iter().map(|p| p.handed[0]).sum();
        let taken: u64 = parts.iter().map(|p| p.handed[1]).sum();
        let mut parts = parts.into_iter();
        let mut all = parts.next().ok_or_else(ended)?;
        for (own, part) in (1..).zip(parts) {
            for (stage, owner) in self.plan.stages.iter().enumerate() {
                if *owner == own {
                    all.stages[stage] = part.stages[stage];
                    all.faults[stage] = part.faults[stage];
                    all.pauses[stage] = part.pauses[stage];
                    all.values[stage] = part.values[stage];
                }
            }
            for (port, owner) in self.plan.ports.iter().enumerate() {
                if *owner == own {
                    all.ports[port] = part.ports[port];
                }
            }
            all.at = all.at.max(part.at);
            let mirrored = all.mirrored.iter_mut().flatten();
            let more = part.mirrored.iter().flatten().chain(&part.flooded);
            for (sum, more) in mirrored.chain(&mut all.flooded).zip(more) {
                sum.frames += more.frames;
                sum.bytes += more.bytes;
            }
        }
        all.handed = [given, taken];
        Ok(all)
    }

    /// Starts records of `records` frames in all.
    pub fn trace_start(&self, records: usize) -> io::Result<()> {
        let share = records.div_ceil(self.threads.len().max(1));
        self.tell_all(|| Command::TraceStart(Trace::with_room(share)))
    }

    /// Ends the records and joins them by their times.
    pub fn trace_stop(&self) -> io::Result<Trace> {
        let mut all = Trace::default();
        let several = self.threads.len() > 1;
        for part in self.ask_all(Command::TraceStop)?.into_iter().flatten() {
            all.lost += part.lost;
            if several {
                all.records.extend(part.records);
            } else {
                all.records = part.records;
            }
        }
        if several {
            all.records.sort_by_key(|r| r.at);
        }
        Ok(all)
    }

    /// How late frames were written.
    pub fn lateness(&self) -> io::Result<Lateness> {
        let mut all = Histogram::new();
        self.ask_all(Command::Lateness)?.iter().for_each(|h| all.add(h));
        Ok(all.summary())
    }
}

impl Thread {
    fn tell(&self, command: Command) -> io::Result<()> {
        self.commands.send(command).map_err(|_| ended())?;
        rustix::io::write(&*self.wake, &1u64.to_ne_bytes())?;
        Ok(())
    }
}

fn ended() -> io::Error {
    io::Error::other("the emulator's thread has ended")
}

impl Drop for Emulator {
    fn drop(&mut self) {
        for thread in &self.threads {
            let _ = thread.tell(Command::Stop);
        }
        for thread in &mut self.threads {
            if let Some(thread) = thread.thread.take() {
                let _ = thread.join();
            }
        }
    }
}

#[cfg(test)]
#[path = "threads_tests.rs"]
mod tests;
