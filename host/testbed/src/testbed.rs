//! The testbed: hosts, emulator and instruments, from up to down.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::os::fd::AsRawFd;
use std::process::Command as Program;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use kuroshio_clock::{Disturbance, Epoch, Limits, Watch};
use kuroshio_core::pace::Spacing;
use kuroshio_core::units::{BitRate, FrameBytes, PicoDuration, PicoTime, Ratio};
use kuroshio_core::wan::{Level, Limit, Loss, MAX_DELAY, MAX_QUEUE, Rate, WanChange};
use kuroshio_port::Capture;

use crate::captures::CaptureSet;
use crate::counters::Counters;
use crate::emulator::{
    Action, Command, Damage, Emulator, Lateness, Numbers, Snapshot, Trace, drain_stages, shaper_stages,
};
use crate::host::{self, CardCounters, LiveHost};
use crate::meter::{MeterRequest, Meters};
use crate::topology::{Mode, Port, Topology};
use crate::{isolate, sys};

/// Most records of a trace: 32 bytes each.
pub const MAX_TRACE_RECORDS: usize = 1 << 26;

/// Longest deliberate stall of the emulator.
const MAX_STALL: Duration = Duration::from_secs(10);

/// Why the testbed could not do something.
#[derive(Debug)]
pub enum TestbedError {
    /// [`Testbed::up`] was called outside of [`isolate::run`].
    NotIsolated,
    /// There is no such host, port, link or shaper.
    Unknown {
        /// What was asked for: `host`, `port`, `link` or `shaper`.
        kind: &'static str,
        /// Its name.
        name: String,
        /// The names there are.
        known: Vec<String>,
    },
    /// A value is out of its range.
    Invalid(String),
    /// The machine refused.
    Io(io::Error),
}

impl fmt::Display for TestbedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotIsolated => write!(
                f,
                "the testbed runs in its own namespaces only: start it through isolate::run"
            ),
            Self::Unknown { kind, name, known } => {
                write!(f, "no {kind} {name:?}, but {}", known.join(", "))
            }
            Self::Invalid(text) => f.write_str(text),
            Self::Io(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for TestbedError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(e) => Some(e),
            _ => None,
        }
    }
}

impl From<io::Error> for TestbedError {
    fn from(e: io::Error) -> Self {
        Self::Io(e)
    }
}

/// A change of the running network. Links are named `link:from>to` for one direction or `link`
/// for both, ports `host/port`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A link's capacity, frame level.
    Capacity(String, BitRate),
    /// A link's one-way delay.
    OneWayDelay(String, PicoDuration),
    /// A link's loss.
    Loss(String, Ratio),
    /// A link's queue limit.
    Queue(String, FrameBytes),
    /// A port's shaper.
    Shape(String, Spacing),
    /// Any parameter of a link.
    Set(String, WanChange),
    /// How fast a port's card drains, when it has a `drain`.
    Drain(String, BitRate),
    /// A link loses every frame that arrives; what is in flight arrives.
    Cut(String),
    /// The end of a cut.
    Restore(String),
    /// A link loses the next so many frames that arrive.
    DropNext(String, u64),
    /// A link damages the next so many frames with payload.
    CorruptNext(String, u64, Damage),
    /// A link damages one of so many frames with payload; 0 ends it.
    CorruptEvery(String, u64, Damage),
}

/// How well the emulator did, and how well the machine let it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmulatorReport {
    /// How frames passed between hosts and emulator.
    pub mode: Mode,
    /// Lateness of the frames that were written: time of writing less exact departure; in segment mode of what was
    /// written together, from the end of its quantum.
    pub lateness: Lateness,
    /// Frames that a host's kernel had no room for, since the start.
    pub not_taken: u64,
    /// Frames that the machine lost at any place, `not_taken` among them, since the start.
    pub machine_lost: u64,
    /// What the witnesses saw.
    pub machine: Disturbance,
    /// Why the run does not count, decided by the witnesses alone.
    pub disturbed: Option<String>,
}

impl fmt::Display for EmulatorReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = |ns: u64| ns as f64 / 1000.0;
        let l = &self.lateness;
        write!(
            f,
            "mode {}; lateness p50 {:.2} us, p99 {:.1} us, p99.9 {:.1} us, max {:.1} us over {} frames; not \
             taken {}; {}",
            self.mode.name(),
            us(l.p50_ns),
            us(l.p99_ns),
            us(l.p999_ns),
            us(l.max_ns),
            l.frames,
            self.not_taken,
            self.machine
        )?;
        match &self.disturbed {
            Some(why) => write!(f, "; DISTURBED: {why}"),
            None => Ok(()),
        }
    }
}

/// A live network. Dropping it takes it down.
pub struct Testbed {
    topology: Topology,
    // Dropped in this order: the emulator closes the cards before the hosts go.
    watch: Mutex<Watch>,
    emulator: Emulator,
    meters: Meters,
    hosts: Vec<Arc<LiveHost>>,
    core: Option<usize>,
}

impl Testbed {
    /// Makes the hosts and starts the emulator.
    ///
    /// # Errors
    /// [`TestbedError::NotIsolated`] outside of [`isolate::run`]; else what the kernel refused,
    /// with the host and port.
    pub fn up(topology: &Topology) -> Result<Self, TestbedError> {
        if !isolate::is_inside() {
            return Err(TestbedError::NotIsolated);
        }
        let core = isolate::emulator_core();
        let rps_cores = match core {
            Some(core) => {
                let mut cores = kuroshio_clock::allowed_cores()?;
                cores.retain(|&c| c != core);
                cores
            }
            None => Vec::new(),
        };
        let numbered: Vec<(usize, &str, &Port)> = topology
            .ports()
            .enumerate()
            .map(|(n, (h, p))| (n, h.name.as_str(), p))
            .collect();
        let mut hosts = Vec::with_capacity(topology.hosts.len());
        let mut mirrors = Vec::new();
        let mut taps: Vec<host::Device> = Vec::with_capacity(numbered.len());
        for host in &topology.hosts {
            let ports: Vec<(usize, &Port)> = numbered
                .iter()
                .filter(|(_, h, _)| *h == host.name)
                .map(|(n, _, p)| (*n, *p))
                .collect();
            let (live, mut own, shown) = host::up(topology, host, &ports, &rps_cores)?;
            hosts.push(Arc::new(live));
            taps.append(&mut own);
            mirrors.extend(shown);
        }
        let emulator = Emulator::start(topology, taps, mirrors, core)?;
        let (meters, observers) = Meters::start(emulator.plan.threads)?;
        emulator.observe(observers)?;
        let watch = Watch::start(core, &emulator.tids)?;
        let testbed = Self {
            topology: topology.clone(),
            watch: Mutex::new(watch),
            emulator,
            meters,
            hosts,
            core,
        };
        testbed.add_meters(&topology.meters)?;
        Ok(testbed)
    }

    /// What the network is.
    #[must_use]
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// How many threads the emulator has: as many as were asked for, or as the network can be cut into.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.emulator.plan.threads
    }

    /// The zero of the run's time: maps captures' stamps and the trace's times to each other.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.emulator.epoch
    }

    /// A command that will run `program` in a host. It needs no death signal of its own: every
    /// process ends with the testbed's PID namespace.
    ///
    /// # Errors
    /// When there is no such host.
    pub fn command(&self, host: &str, program: impl AsRef<OsStr>) -> Result<Program, TestbedError> {
        let mut command = Program::new(program);
        sys::run_in_netns(&mut command, Arc::clone(&self.host(host)?.netns));
        Ok(command)
    }

    /// Runs a closure on a thread in a host's network: sockets that it makes belong to the host.
    ///
    /// # Errors
    /// When there is no such host or no thread can be made. The thread's own result is an error
    /// when it could not enter the host.
    pub fn in_host<T: Send + 'static>(
        &self,
        host: &str,
        run: impl FnOnce() -> T + Send + 'static,
    ) -> Result<JoinHandle<io::Result<T>>, TestbedError> {
        let live = Arc::clone(self.host(host)?);
        let thread = std::thread::Builder::new()
            .name(format!("in-{host}"))
            .spawn(move || {
                live.enter()?;
                Ok(run())
            })?;
        Ok(thread)
    }

    fn host(&self, name: &str) -> Result<&Arc<LiveHost>, TestbedError> {
        self.topology
            .hosts
            .iter()
            .position(|h| h.name == name)
            .and_then(|index| self.hosts.get(index))
            .ok_or_else(|| TestbedError::Unknown {
                kind: "host",
                name: name.to_owned(),
                known: self.topology.hosts.iter().map(|h| h.name.clone()).collect(),
            })
    }

    fn port(&self, name: &str) -> Result<usize, TestbedError> {
        self.topology
            .port_number(name)
            .ok_or_else(|| TestbedError::Unknown {
                kind: "port",
                name: name.to_owned(),
                known: self.topology.port_names(),
            })
    }

    /// Sets the capacity (frame level) of a link, both directions or one, now.
    ///
    /// # Errors
    /// As [`Testbed::apply`].
    pub fn set_capacity(&self, link: &str, rate: BitRate) -> Result<(), TestbedError> {
        self.apply(&Change::Capacity(link.to_owned(), rate))
    }

    /// Makes a change now.
    ///
    /// # Errors
    /// When a name is unknown or a value is out of its range.
    pub fn apply(&self, change: &Change) -> Result<(), TestbedError> {
        self.change(None, change)
    }

    /// Makes a change at an exact time of the run ([`Testbed::epoch`]).
    ///
    /// # Errors
    /// As [`Testbed::apply`].
    pub fn schedule(&self, at: PicoTime, change: &Change) -> Result<(), TestbedError> {
        self.change(Some(at), change)
    }

    /// Makes several changes at one moment, now or at a time of the run: all, or none when one is refused. Returns
    /// how many stages were changed.
    ///
    /// # Errors
    /// As [`Testbed::apply`].
    pub fn apply_all(&self, at: Option<PicoTime>, changes: &[Change]) -> Result<usize, TestbedError> {
        let mut actions = Vec::new();
        for change in changes {
            actions.extend(self.resolve(change)?);
        }
        let count = actions.len();
        self.emulator.change(at, actions)?;
        Ok(count)
    }

    /// Adds meters while the network runs, all or none.
    ///
    /// # Errors
    /// When one is not possible: which, and what would be.
    pub fn add_meters(&self, requests: &[MeterRequest]) -> Result<(), TestbedError> {
        let specs = requests
            .iter()
            .map(|r| r.check(&self.topology))
            .collect::<Result<Vec<_>, _>>()
            .map_err(TestbedError::Invalid)?;
        let now = self.epoch().pico_now();
        let stages = self
            .meters
            .add(&self.topology, specs, now, Numbers::of(&self.topology).all())
            .map_err(TestbedError::Invalid)?;
        Ok(self.emulator.tell_all(|| Command::Want(stages.clone()))?)
    }

    /// Removes a meter.
    ///
    /// # Errors
    /// When there is no such.
    pub fn remove_meter(&self, name: &str) -> Result<(), TestbedError> {
        let stages = self.meters.remove(name, Numbers::of(&self.topology).all());
        let Some(stages) = stages else {
            let known = self.meters.lock().meters.keys().cloned().collect();
            return Err(TestbedError::Unknown {
                kind: "meter",
                name: name.to_owned(),
                known,
            });
        };
        Ok(self.emulator.tell_all(|| Command::Want(stages.clone()))?)
    }

    /// The running meters.
    pub(crate) fn meters(&self) -> &Meters {
        &self.meters
    }

    /// The descriptors of the hosts' namespaces in this process, in the order of the hosts.
    pub(crate) fn descriptors(&self) -> Vec<i32> {
        self.hosts.iter().map(|h| h.netns.as_raw_fd()).collect()
    }

    fn change(&self, at: Option<PicoTime>, change: &Change) -> Result<(), TestbedError> {
        self.apply_all(at, std::slice::from_ref(change)).map(|_| ())
    }

    fn resolve(&self, change: &Change) -> Result<Vec<(usize, Action)>, TestbedError> {
        let (name, action) = match change {
            Change::Shape(port, spacing) => {
                let stage = self.shaper(port)?;
                return Ok(vec![(stage, Action::Spacing(*spacing))]);
            }
            Change::Drain(port, rate) => {
                let rate = crate::topology::capacity_limit(*rate).map_err(TestbedError::Invalid)?;
                return Ok(vec![(self.drain(port)?, Action::Drain(rate))]);
            }
            Change::Capacity(link, rate) => {
                let rate = crate::topology::capacity_limit(*rate).map_err(TestbedError::Invalid)?;
                (
                    link,
                    Action::Set(WanChange::Rate(Rate::Capacity(rate, Level::Frame))),
                )
            }
            Change::OneWayDelay(_, delay) if *delay > MAX_DELAY => {
                return Err(TestbedError::Invalid(format!("{delay}: at most 10s")));
            }
            Change::Queue(_, limit) if limit.get() > MAX_QUEUE => {
                return Err(TestbedError::Invalid(format!("{limit}: at most 4GiB")));
            }
            Change::OneWayDelay(link, delay) => (link, Action::Set(WanChange::OneWayDelay(*delay))),
            Change::Loss(link, loss) => (link, Action::Set(WanChange::Loss(Loss::Ratio(*loss)))),
            Change::Queue(link, limit) => (link, Action::Set(WanChange::Queue(Limit::Bytes(*limit)))),
            Change::Set(link, change) => (link, Action::Set(change.clone())),
            Change::Cut(link) => (link, Action::Cut(true)),
            Change::Restore(link) => (link, Action::Cut(false)),
            Change::DropNext(link, count) => (link, Action::DropNext(*count)),
            Change::CorruptNext(link, count, kind) => (link, Action::CorruptNext(*count, *kind)),
            Change::CorruptEvery(link, every, kind) => (link, Action::CorruptEvery(*every, *kind)),
        };
        let found = self.topology.link_numbers(name);
        if found.is_empty() {
            return Err(TestbedError::Unknown {
                kind: "link",
                name: name.clone(),
                known: self.topology.link_names(),
            });
        }
        let numbers = Numbers::of(&self.topology);
        if let Action::Set(change) = &action {
            for &n in &found {
                if let Some(problem) = self.emulator.plan.refuses(numbers.link(n), change) {
                    return Err(TestbedError::Invalid(problem));
                }
            }
        }
        Ok(found.iter().map(|&n| (numbers.link(n), action.clone())).collect())
    }

    fn shaper(&self, port: &str) -> Result<usize, TestbedError> {
        self.stage_of(port, "shaper", &shaper_stages(&self.topology))
    }

    fn drain(&self, port: &str) -> Result<usize, TestbedError> {
        self.stage_of(port, "drain", &drain_stages(&self.topology))
    }

    /// The number of a stage that only some ports have.
    fn stage_of(
        &self,
        port: &str,
        kind: &'static str,
        stages: &[Option<usize>],
    ) -> Result<usize, TestbedError> {
        let number = self.port(port)?;
        stages.get(number).copied().flatten().ok_or_else(|| {
            let names = self.topology.port_names().into_iter().zip(stages);
            TestbedError::Unknown {
                kind,
                name: port.to_owned(),
                known: names
                    .filter(|(_, stage)| stage.is_some())
                    .map(|(name, _)| name)
                    .collect(),
            }
        })
    }

    /// Holds the emulator on purpose (10 s at most), to see that its lateness shows it.
    ///
    /// # Errors
    /// When the time is too long or the emulator has ended.
    pub fn stall(&self, time: Duration) -> Result<(), TestbedError> {
        if time > MAX_STALL {
            return Err(TestbedError::Invalid(format!(
                "a stall of {time:?}: at most {MAX_STALL:?}"
            )));
        }
        Ok(self.emulator.tell_all(|| Command::Stall(time))?)
    }

    /// All counters now.
    ///
    /// # Errors
    /// When the emulator has ended or the kernel's counters cannot be read.
    pub fn counters(&self) -> Result<Counters, TestbedError> {
        let snapshot: Snapshot = self.emulator.snapshot()?;
        let mut cards: Vec<CardCounters> = Vec::new();
        for (host, live) in self.topology.hosts.iter().zip(&self.hosts) {
            for port in &host.ports {
                cards.push(live.card(&port.name)?);
            }
        }
        Ok(Counters::name(&self.topology, &snapshot, cards))
    }

    /// Starts capturing at some ports. In the records, ports are numbered in the order given.
    ///
    /// # Errors
    /// When a port is unknown or the kernel refuses.
    pub fn capture(&self, ports: &[&str]) -> Result<CaptureSet, TestbedError> {
        let mut captures = Vec::with_capacity(ports.len());
        for name in ports {
            let number = self.port(name)?;
            let Some((host, port)) = self.topology.ports().nth(number) else {
                continue;
            };
            let interface = port.name.clone();
            let opened = self
                .in_host(&host.name, move || Capture::open_here(&interface))?
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("the opening thread panicked")))?;
            captures.push(opened?);
        }
        Ok(CaptureSet::start(captures)?)
    }

    /// Starts recording frames by their scheduled times, at every point of the network. Memory
    /// for `records` (32 bytes each, [`MAX_TRACE_RECORDS`] at most) is made before.
    ///
    /// # Errors
    /// When there are too many records or the emulator has ended.
    pub fn trace_start(&self, records: usize) -> Result<(), TestbedError> {
        if records > MAX_TRACE_RECORDS {
            return Err(TestbedError::Invalid(format!(
                "a trace of {records} records: at most {MAX_TRACE_RECORDS}"
            )));
        }
        Ok(self.emulator.trace_start(records)?)
    }

    /// Ends the recording and returns it; empty when there was none.
    ///
    /// # Errors
    /// When the emulator has ended.
    pub fn trace_stop(&self) -> Result<Trace, TestbedError> {
        Ok(self.emulator.trace_stop()?)
    }

    /// Begins a run within the life of the testbed: lateness and the machine's witnesses start
    /// from zero. Counters and time go on.
    ///
    /// # Errors
    /// When the emulator has ended or a witness cannot start.
    pub fn begin(&self) -> Result<(), TestbedError> {
        let fresh = Watch::start(self.core, &self.emulator.tids)?;
        if let Ok(mut watch) = self.watch.lock() {
            *watch = fresh;
        }
        Ok(self.emulator.tell_all(|| Command::Restart)?)
    }

    /// How well the emulator did since [`Testbed::begin`] or the start.
    ///
    /// # Errors
    /// When the emulator has ended.
    pub fn report(&self) -> Result<EmulatorReport, TestbedError> {
        let machine = match self.watch.lock() {
            Ok(watch) => watch.report(),
            Err(broken) => broken.into_inner().report(),
        };
        let counters = self.counters()?;
        Ok(EmulatorReport {
            mode: self.topology.mode,
            lateness: self.emulator.lateness()?,
            not_taken: counters.ports.iter().map(|p| p.not_taken.frames).sum(),
            machine_lost: counters.machine_lost(),
            disturbed: machine.verdict(&Limits::default()),
            machine,
        })
    }

    /// Takes the network down and returns the last report.
    ///
    /// # Errors
    /// As [`Testbed::report`]; the network is down in any case.
    pub fn down(self) -> Result<EmulatorReport, TestbedError> {
        self.report()
    }
}

impl fmt::Debug for Testbed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fds = self.descriptors();
        write!(f, "Testbed({}, namespaces {fds:?})", self.topology.name)
    }
}
