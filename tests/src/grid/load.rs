//! Threads that use the grid, each files of its own, and remember what was acknowledged.

use std::collections::BTreeMap;
use std::io::Cursor;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use kuroshio_client::{Cancel, ClientError, Grid, PutOptions, v1};
use kuroshio_service::Ticket;

use crate::grid::net;
use crate::soak::rng::Rng;

/// Names that one thread uses.
const NAMES: u64 = 24;
/// Largest file, bytes. A few are larger than what goes in one request.
const MOST: u64 = 200_000;
const LARGE: u64 = 3_000_000;
/// Pause between two operations: the faults are what is tested, not the speed.
const PAUSE: Duration = Duration::from_millis(4);

/// A content by its seed; none: no such file.
pub type Version = Option<u64>;

/// What a name may stand for: one thing, or several after a call that was not answered.
pub type Model = BTreeMap<String, Vec<Version>>;

/// The bytes of a version.
#[must_use]
pub fn content(seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let most = if seed.is_multiple_of(31) { LARGE } else { MOST };
    let len = rng.below(most);
    let mut out = vec![0; usize::try_from(len).unwrap_or_default()];
    rng.fill(&mut out);
    out
}

/// Puts a version.
///
/// # Errors
/// The client's.
pub fn put(grid: &Grid, path: &str, seed: u64) -> Result<(), ClientError> {
    let bytes = content(seed);
    let options = PutOptions {
        exclusive: false,
        mode: 0o644,
        umask: 0,
        near_host: String::new(),
        mtime_ns: None,
    };
    let hint = bytes.len() as u64;
    let source = &mut Cursor::new(bytes);
    grid.put(path.as_bytes(), source, hint, &options, &Cancel::default())
        .map(drop)
}

/// Reads a file; none if there is none.
///
/// # Errors
/// The client's.
pub fn get(grid: &Grid, path: &str) -> Result<Option<Vec<u8>>, ClientError> {
    let mut out = Vec::new();
    match grid.read_to(path.as_bytes(), &mut out, &Cancel::default()) {
        Ok(_) => Ok(Some(out)),
        Err(e) if e.code() == Some(v1::Code::NoEntry) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Whether what was read is this version.
#[must_use]
pub fn is_version(read: Option<&Vec<u8>>, version: Version) -> bool {
    match (read, version) {
        (None, None) => true,
        (Some(bytes), Some(seed)) => *bytes == content(seed),
        _ => false,
    }
}

/// What the threads share.
#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    gate: Mutex<Gate>,
    moved: Condvar,
    model: Mutex<Model>,
    problems: Mutex<Vec<String>>,
    done: AtomicU64,
    failed: AtomicU64,
}

#[derive(Default)]
struct Gate {
    closed: bool,
    waiting: usize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A load that runs; ended when dropped.
pub struct Load {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    /// Starts so many threads, at a place if there is one.
    #[must_use]
    pub fn start(ticket: &Ticket, door: Option<&std::fs::File>, threads: u64, seed: u64) -> Self {
        let shared = Arc::new(Shared::default());
        let start = |n: u64| {
            let (shared, ticket) = (shared.clone(), ticket.clone());
            let door = door.and_then(|d| d.try_clone().ok());
            std::thread::spawn(move || {
                if let Some(Err(e)) = door.as_ref().map(net::enter) {
                    lock(&shared.problems).push(e);
                    return;
                }
                work(&shared, &ticket, n, &mut Rng::new(seed ^ (n << 40)));
            })
        };
        let threads = (1..=threads).map(start).collect();
        Self { shared, threads }
    }

    /// Waits until every thread stands still between two operations.
    pub fn pause(&self) {
        let mut gate = lock(&self.shared.gate);
        gate.closed = true;
        let running = self.threads.iter().filter(|t| !t.is_finished()).count();
        while gate.waiting < running {
            gate = self
                .shared
                .moved
                .wait_timeout(gate, Duration::from_millis(200))
                .unwrap_or_else(PoisonError::into_inner)
                .0;
            if self.threads.iter().any(JoinHandle::is_finished) {
                return;
            }
        }
    }

    /// Lets the threads go on.
    pub fn go_on(&self) {
        lock(&self.shared.gate).closed = false;
        self.shared.moved.notify_all();
    }

    /// What each name may stand for. Only while it stands still.
    #[must_use]
    pub fn model(&self) -> Model {
        lock(&self.shared.model).clone()
    }

    /// What a name was found to stand for.
    pub fn found(&self, name: &str, version: Version) {
        lock(&self.shared.model).insert(name.to_owned(), vec![version]);
    }

    /// Operations that were acknowledged, and that failed, so far.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        let of = |n: &AtomicU64| n.load(Ordering::Relaxed);
        (of(&self.shared.done), of(&self.shared.failed))
    }

    /// What was wrong since this was asked last.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        std::mem::take(&mut *lock(&self.shared.problems))
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.go_on();
        for thread in self.threads.drain(..) {
            // One that panicked has said so.
            let _ = thread.join();
        }
    }
}

fn work(shared: &Shared, ticket: &Ticket, me: u64, rng: &mut Rng) {
    let mut grid = None;
    let mut serial = 0;
    while !shared.stop.load(Ordering::Relaxed) {
        {
            let mut gate = lock(&shared.gate);
            while gate.closed && !shared.stop.load(Ordering::Relaxed) {
                gate.waiting += 1;
                shared.moved.notify_all();
                gate = shared.moved.wait(gate).unwrap_or_else(PoisonError::into_inner);
                gate.waiting -= 1;
            }
        }
        std::thread::sleep(PAUSE);
        let Some(grid) = connected(&mut grid, ticket) else {
            continue;
        };
        let name = format!("/t{me}f{}", rng.below(NAMES));
        let now = lock(&shared.model).get(&name).cloned().unwrap_or(vec![None]);
        let [now] = now.as_slice() else {
            // Not known what it is: left alone until it was looked at.
            continue;
        };
        serial += 1;
        step(shared, grid, &name, *now, (me << 32) | serial, rng);
    }
}

fn connected<'a>(grid: &'a mut Option<Grid>, ticket: &Ticket) -> Option<&'a Grid> {
    if grid.is_none() {
        *grid = Grid::connect(ticket).ok();
    }
    grid.as_ref()
}

/// One operation on a name that stands for `now`.
fn step(shared: &Shared, grid: &Grid, name: &str, now: Version, seed: u64, rng: &mut Rng) {
    let set = |versions| {
        lock(&shared.model).insert(name.to_owned(), versions);
    };
    let (next, result) = match (now, rng.below(10)) {
        (Some(_), 0) => (None, grid.remove(name.as_bytes(), false)),
        (Some(_), 1..=5) => {
            match get(grid, name) {
                Ok(read) if is_version(read.as_ref(), now) => {}
                Ok(read) => {
                    let len = read.map(|r| r.len());
                    lock(&shared.problems).push(format!(
                        "{name}: version {now:?} was acknowledged, what was read ({len:?} bytes) is another"
                    ));
                }
                Err(_) => {
                    shared.failed.fetch_add(1, Ordering::Relaxed);
                    return;
                }
            }
            shared.done.fetch_add(1, Ordering::Relaxed);
            return;
        }
        _ => (Some(seed), put(grid, name, seed)),
    };
    match result {
        Ok(()) => {
            set(vec![next]);
            shared.done.fetch_add(1, Ordering::Relaxed);
        }
        Err(_) => {
            set(vec![now, next]);
            shared.failed.fetch_add(1, Ordering::Relaxed);
        }
    }
}
