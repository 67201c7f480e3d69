//! The meters' own thread: takes the emulator's records and gives them to the meters.
//!
//! Without a meter it sleeps; with one it looks for batches every [`LOOK_NS`], so that the emulator never has to wake it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;
use std::{collections::BTreeMap, io};

use kuroshio_core::meter::StageMeter;
use kuroshio_core::units::PicoTime;
use rustix::time::{ClockId, clock_gettime};

use super::observer::{Batch, Ends, Observer, Record, StreamTable};
use super::spec::{MAX_METERS, MAX_SERIES, MAX_WINDOWS, MeterSpec};
use crate::topology::Topology;

/// Between two looks for batches.
const LOOK_NS: u64 = 5_000_000;

/// A meter that runs.
#[derive(Debug)]
pub(crate) struct Named {
    pub spec: MeterSpec,
    pub stage: usize,
    /// The run's time from which it counts.
    pub since: PicoTime,
    pub meter: StageMeter,
}

/// What the meters have cost, since the first of them.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cost {
    /// Frames that entered the network.
    pub frames: u64,
    /// Records that were taken.
    pub events: u64,
    /// Records that found no room.
    pub missed_events: u64,
    /// Time in the emulator's thread, estimated from samples.
    pub emulator_ns: u64,
    /// Processor time of the meters' thread.
    pub thread_ns: u64,
    /// Time with at least one meter.
    pub wall_ns: u64,
}

/// What the thread and those who ask share.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub meters: BTreeMap<String, Named>,
    pub cost: Cost,
    /// All events before it are counted.
    pub mark: PicoTime,
    active_since_ns: Option<u64>,
}

impl State {
    /// Starts or ends the time of the cost when there is a first meter or none any more.
    fn clock(&mut self) {
        self.active_since_ns = match (self.meters.is_empty(), self.active_since_ns) {
            (true, Some(since)) => {
                self.cost.wall_ns += kuroshio_clock::now_ns().saturating_sub(since);
                None
            }
            (true, None) => None,
            (false, since) => since.or_else(|| Some(kuroshio_clock::now_ns())),
        };
    }

    /// The cost so far.
    pub fn cost(&self) -> Cost {
        let mut cost = self.cost;
        if let Some(since) = self.active_since_ns {
            cost.wall_ns += kuroshio_clock::now_ns().saturating_sub(since);
        }
        cost
    }

    /// `mark`: no event before it comes from any thread of the emulator.
    fn take(&mut self, batch: &Batch, mark: PicoTime, table: &StreamTable) {
        for named in self.meters.values_mut() {
            let own = |r: &&Record| usize::from(r.stage) == named.stage && r.event.at >= named.since;
            for record in batch.records.iter().filter(own) {
                let key = || table.key(record.stream);
                named.meter.add(record.stream, key, &record.event);
            }
            named.meter.close_until(mark);
        }
        self.mark = self.mark.max(mark);
        self.cost.events += batch.records.len() as u64;
        self.cost.missed_events += batch.missed;
        self.cost.frames += batch.frames;
        self.cost.emulator_ns += batch.cost_ns;
    }
}

/// The running meters of a testbed.
pub(crate) struct Meters {
    state: Arc<Mutex<State>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Meters {
    /// Starts the thread, and makes the observers for so many threads of the emulator.
    pub fn start(threads: usize) -> io::Result<(Self, Vec<Observer>)> {
        let table = Arc::new(StreamTable::default());
        let each = (0..threads).map(|_| Observer::new(Arc::clone(&table)));
        let (observers, ends): (Vec<Observer>, Vec<Ends>) = each.unzip();
        let state = Arc::new(Mutex::new(State::default()));
        let stop = Arc::new(AtomicBool::new(false));
        let (theirs, halt) = (Arc::clone(&state), Arc::clone(&stop));
        let thread = std::thread::Builder::new()
            .name("meters".into())
            .spawn(move || run(&theirs, &ends, &table, &halt))?;
        let meters = Self {
            state,
            stop,
            thread: Some(thread),
        };
        Ok((meters, observers))
    }

    /// The meters, held still.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn thread(&self) -> Option<&Thread> {
        self.thread.as_ref().map(JoinHandle::thread)
    }

    /// Adds meters, all or none, and returns which stages are metered then.
    ///
    /// # Errors
    /// Which name is taken, or which limit is reached.
    pub fn add(
        &self,
        topology: &Topology,
        specs: Vec<MeterSpec>,
        now: PicoTime,
        stages: usize,
    ) -> Result<Vec<bool>, String> {
        let mut state = self.lock();
        let mut names: Vec<&str> = state.meters.keys().map(String::as_str).collect();
        for spec in &specs {
            if names.contains(&spec.name.as_str()) {
                return Err(format!("meter {:?}: the name is there already", spec.name));
            }
            names.push(&spec.name);
        }
        if names.len() > MAX_METERS {
            return Err(format!("{} meters: at most {MAX_METERS}", names.len()));
        }
        let configs = || {
            let running = state.meters.values().map(|n| n.meter.config());
            running.chain(specs.iter().map(|s| &s.config))
        };
        let series: usize = configs().map(|c| c.series()).sum();
        if series > MAX_SERIES {
            return Err(format!(
                "{series} series (streams and sums) of all meters: at most {MAX_SERIES}"
            ));
        }
        let windows: usize = configs().map(|c| c.windows()).sum();
        if windows > MAX_WINDOWS {
            return Err(format!(
                "{windows} windows to be kept by all meters (series x widths x keep): at most {MAX_WINDOWS}"
            ));
        }
        for spec in specs {
            let Some(stage) = spec.stage(topology) else {
                return Err(format!("meter {:?}: its place does not exist", spec.name));
            };
            let meter = StageMeter::new(spec.config.clone(), spec.line(topology));
            let named = Named {
                stage,
                since: now,
                meter,
                spec,
            };
            state.meters.insert(named.spec.name.clone(), named);
        }
        state.clock();
        if let Some(thread) = self.thread() {
            thread.unpark();
        }
        Ok(wanted(&state, stages))
    }

    /// Removes a meter and returns which stages are metered then; `None` when there is no such.
    pub fn remove(&self, name: &str, stages: usize) -> Option<Vec<bool>> {
        let mut state = self.lock();
        state.meters.remove(name)?;
        state.clock();
        Some(wanted(&state, stages))
    }
}

fn wanted(state: &State, stages: usize) -> Vec<bool> {
    let has = |n: usize| state.meters.values().any(|named| named.stage == n);
    (0..stages).map(has).collect()
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Meters {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

fn run(state: &Mutex<State>, ends: &[Ends], table: &StreamTable, stop: &AtomicBool) {
    let mut marks = vec![PicoTime::ZERO; ends.len()];
    while !stop.load(Ordering::Relaxed) {
        let mut idle = true;
        for (own, ends) in ends.iter().enumerate() {
            while let Ok(mut batch) = ends.full.try_recv() {
                idle = false;
                if let Some(mark) = marks.get_mut(own) {
                    *mark = batch.mark.max(*mark);
                }
                let mark = marks.iter().copied().min().unwrap_or(PicoTime::ZERO);
                // The lock is held for one batch at a time, so that who asks gets its turn.
                lock(state).take(&batch, mark, table);
                batch.records.clear();
                let _ = ends.empty.try_send(batch.records);
            }
        }
        if !idle {
            let cpu = clock_gettime(ClockId::ThreadCPUTime);
            let cpu_ns = cpu.tv_sec as u64 * 1_000_000_000 + cpu.tv_nsec as u64;
            lock(state).cost.thread_ns = cpu_ns;
        }
        let sleeps = lock(state).meters.is_empty();
        if sleeps {
            std::thread::park_timeout(Duration::from_millis(250));
        } else {
            std::thread::park_timeout(Duration::from_nanos(LOOK_NS));
        }
    }
}
