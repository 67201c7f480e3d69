//! The emulator's thread: TAPs in, the engine, TAPs out, on time.
//!
//! ```text
//!        read TAPs (stamp = time of reading)            write TAPs (lateness = time of writing - exact time)
//! hosts ------------------------------------> engine ---------------------------------------------> hosts
//!                                              ^ commands
//! loop: work off what is due; read what has come; nothing due within 500 us: sleep, else spin
//! (60 us without a core of its own)
//! ```
//!
//! The thread is bound to a core of its own, never allocates per frame, and reads a card eagerly
//! into the port's queue, so that a host is never stalled by its interface queue. When it is late
//! it writes at once; exact times are not affected, only `lateness` shows it.

mod engine;
mod fault;
mod lateness;
mod pool;
mod stage;
mod tourney;
mod trace;

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, TryRecvError, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use kuroshio_clock::{Epoch, SPIN_ALONE_NS, SPIN_NS, now_ns, pin_to_core, thread_id};
use kuroshio_core::units::PicoTime;
use kuroshio_core::wan::{Count, StageCounters};
use kuroshio_port::Tap;
use rustix::event::{EventfdFlags, eventfd};

use crate::meter::{self, Observer};
use crate::sys;
use crate::topology::Topology;

use engine::{Engine, PortCounts};
use lateness::Histogram;

pub use fault::Damage;
pub use lateness::Lateness;
pub use pool::MAX_POOL_BYTES;
pub use trace::{Fate, Point, Trace, TraceRecord};

pub(crate) use stage::{Action, Numbers, drain_stages, shaper_stages};

/// Frames read from one card before the others have their turn.
const READ_BATCH: usize = 32;

/// Events worked off before cards are read again.
const EVENT_BATCH: usize = 64;

/// The longest sleep: a command wakes the thread, this is for nothing but safety.
const LONGEST_SLEEP_NS: u64 = 1_000_000_000;

/// What the thread can be asked.
pub(crate) enum Command {
    /// At one time, `None` for now: stages and what changes in them.
    Change(Option<PicoTime>, Vec<(usize, Action)>),
    Stall(Duration),
    Counters(SyncSender<Snapshot>),
    Lateness(SyncSender<Lateness>),
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
    /// By port: sent, unrouted, without memory, delivered, not taken, PAUSE.
    pub ports: Vec<[Count; 6]>,
    pub stages: Vec<StageCounters>,
    /// By stage: frames lost and damaged by faults.
    pub faults: Vec<(u64, u64)>,
    /// By stage: PAUSE frames sent.
    pub pauses: Vec<u64>,
}

/// The running thread.
pub(crate) struct Emulator {
    commands: Sender<Command>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    pub tid: u32,
    pub epoch: Epoch,
}

impl Emulator {
    /// Starts the thread. `taps` are in the order of the ports' numbers.
    pub fn start(topology: &Topology, taps: Vec<Tap>, core: Option<usize>) -> io::Result<Self> {
        let (commands, receiver) = channel();
        let wake = Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?);
        let theirs = Arc::clone(&wake);
        let topology = topology.clone();
        let (tell, told) = sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("emulator".into())
            .spawn(move || {
                let pinned = core.map_or(Ok(()), pin_to_core);
                let fds: Vec<i32> = taps
                    .iter()
                    .map(|t| t.as_fd().as_raw_fd())
                    .chain([theirs.as_raw_fd()])
                    .collect();
                match pinned.and_then(|()| sys::epoll_of(&fds)) {
                    Ok(epoll) => {
                        let engine = Engine::new(&topology);
                        let epoch = Epoch::now();
                        let _ = tell.send(Ok((thread_id(), epoch)));
                        let spin_ns = if core.is_some() { SPIN_ALONE_NS } else { SPIN_NS };
                        Loop::new(engine, taps, epoll, theirs, receiver, epoch, spin_ns).run();
                    }
                    Err(e) => {
                        let _ = tell.send(Err(e));
                    }
                }
            })?;
        let (tid, epoch) = told
            .recv()
            .unwrap_or_else(|_| Err(io::Error::other("the emulator's thread ended at once")))?;
        Ok(Self {
            commands,
            wake,
            thread: Some(thread),
            tid,
            epoch,
        })
    }

    /// Gives the thread a command. An error means that the thread has ended.
    pub fn tell(&self, command: Command) -> io::Result<()> {
        self.commands.send(command).map_err(|_| ended())?;
        rustix::io::write(&*self.wake, &1u64.to_ne_bytes())?;
        Ok(())
    }

    /// Asks the thread and waits for the answer.
    pub fn ask<T>(&self, command: impl FnOnce(SyncSender<T>) -> Command) -> io::Result<T> {
        let (answer, wait) = sync_channel(1);
        self.tell(command(answer))?;
        wait.recv().map_err(|_| ended())
    }
}

fn ended() -> io::Error {
    io::Error::other("the emulator's thread has ended")
}

impl Drop for Emulator {
    fn drop(&mut self) {
        let _ = self.tell(Command::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Loop {
    engine: Engine,
    taps: Vec<Tap>,
    epoll: OwnedFd,
    wake: Arc<OwnedFd>,
    commands: Receiver<Command>,
    epoch: Epoch,
    lateness: Histogram,
    spare: Vec<u8>,
    spin_ns: u64,
}

impl Loop {
    fn new(
        engine: Engine,
        taps: Vec<Tap>,
        epoll: OwnedFd,
        wake: Arc<OwnedFd>,
        commands: Receiver<Command>,
        epoch: Epoch,
        spin_ns: u64,
    ) -> Self {
        Self {
            engine,
            taps,
            epoll,
            wake,
            commands,
            epoch,
            lateness: Histogram::new(),
            spare: vec![0; 1 << 14],
            spin_ns,
        }
    }

    fn run(mut self) {
        let mut events = vec![libc::epoll_event { events: 0, u64: 0 }; self.taps.len() + 1];
        loop {
            self.work_off();
            let timeout = self.pause_ns();
            let ready = sys::epoll_wait(&self.epoll, &mut events, timeout).unwrap_or(0);
            for event in events.iter().take(ready) {
                let index = usize::try_from(event.u64).unwrap_or(usize::MAX);
                if index < self.taps.len() {
                    self.read(index);
                } else if !self.obey() {
                    return;
                }
            }
        }
    }

    /// How long to sleep now: not at all within the spinning distance of the next event.
    fn pause_ns(&self) -> u64 {
        let next = self.engine.next_ps();
        let metered = self.engine.observer.as_ref().is_some_and(Observer::is_active);
        let longest = if metered {
            meter::LONGEST_SLEEP_NS
        } else {
            LONGEST_SLEEP_NS
        };
        if next == u64::MAX {
            return longest;
        }
        let wake_ns = self.epoch.mono_ns(PicoTime::from_ps(next));
        wake_ns
            .saturating_sub(now_ns())
            .saturating_sub(self.spin_ns)
            .min(longest)
    }

    fn work_off(&mut self) {
        let Self {
            engine,
            taps,
            epoch,
            lateness,
            ..
        } = self;
        let mut write = |port: usize, at: PicoTime, frame: &pool::Frame| {
            let late_ns = now_ns().saturating_sub(epoch.mono_ns(at));
            lateness.record(late_ns);
            taps.get(port)
                .is_some_and(|tap| tap.write(frame.bytes()).unwrap_or(false))
        };
        let now = epoch.pico_now();
        for _ in 0..EVENT_BATCH {
            if !engine.step(now, &mut write) {
                break;
            }
        }
        engine.publish(now);
    }

    fn read(&mut self, port: usize) {
        let Some(tap) = self.taps.get(port) else {
            return;
        };
        for _ in 0..READ_BATCH {
            let Some(mut frame) = self.engine.room_for(port) else {
                if let Ok(Some(len)) = tap.read(&mut self.spare) {
                    self.engine.no_memory(port, len);
                    continue;
                }
                return;
            };
            // An error means that the interface is down: nothing comes from it.
            let Ok(Some(len)) = tap.read(frame.room()) else {
                return;
            };
            frame.set_len(len);
            self.engine.ingress(self.epoch.pico_now(), port, frame);
        }
    }

    /// Does what was asked; `false` means to end.
    fn obey(&mut self) -> bool {
        let mut count = [0u8; 8];
        let _ = rustix::io::read(&*self.wake, &mut count);
        loop {
            match self.commands.try_recv() {
                Ok(Command::Change(at, actions)) => {
                    let at = at.unwrap_or_else(|| self.epoch.pico_now());
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
                    let _ = answer.try_send(self.lateness.summary());
                }
                Ok(Command::Restart) => self.lateness.clear(),
                Ok(Command::TraceStart(trace)) => self.engine.trace = Some(trace),
                Ok(Command::TraceStop(answer)) => {
                    let _ = answer.try_send(self.engine.trace.take());
                }
                Ok(Command::Observe(observer)) => self.engine.observer = Some(*observer),
                Ok(Command::Want(stages)) => {
                    if let Some(observer) = &mut self.engine.observer {
                        observer.want(&stages);
                    }
                }
                Ok(Command::Stop) | Err(TryRecvError::Disconnected) => return false,
                Err(TryRecvError::Empty) => return true,
            }
        }
    }

    fn snapshot(&mut self) -> Snapshot {
        let each = |c: &PortCounts| {
            [
                c.sent,
                c.unrouted,
                c.no_memory,
                c.delivered,
                c.not_taken,
                c.pauses,
            ]
        };
        let stages = 0..self.engine.stages.len();
        Snapshot {
            at: self.epoch.pico_now(),
            ports: self.engine.ports.iter().map(each).collect(),
            stages: stages.clone().map(|s| self.engine.stage_counters(s)).collect(),
            pauses: self.engine.stages.iter().map(stage::Stage::pauses).collect(),
            faults: self
                .engine
                .stages
                .iter_mut()
                .map(|s| s.faults().map_or((0, 0), |f| (f.dropped, f.corrupted)))
                .collect(),
        }
    }
}
