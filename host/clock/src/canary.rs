//! A thread that does nothing but sleep to a deadline and record how late it woke.
//!
//! ```text
//! deadline_k = start + k * period        delay_k = wake_k - deadline_k
//! ```
//!
//! It is asked to run at the lowest real-time priority, so that what it measures is the machine
//! (hypervisor, interrupts) and not the run's own load; without that right it runs as an ordinary
//! thread, and its delay then includes waiting for its turn. The report says which.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use crate::sched::fifo_lowest;
use crate::wake::{now_ns, pin_to_core, sleep_until};

/// How often the canary wakes, ns.
const PERIOD_NS: u64 = 1_000_000;

/// Delays longer than this are counted apart, ns.
const LONG_NS: u64 = 1_000_000;

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    max_ns: AtomicU64,
    long: AtomicU64,
    wakes: AtomicU64,
}

/// What a canary saw.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CanaryReport {
    /// The longest delay of a wake-up, ns.
    pub max_ns: u64,
    /// Wake-ups that were later than 1 ms.
    pub long: u64,
    /// Wake-ups in all.
    pub wakes: u64,
    /// Whether it ran at real-time priority.
    pub realtime: bool,
}

/// The running thread. Dropping it ends it.
#[derive(Debug)]
pub struct Canary {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    realtime: bool,
}

impl Canary {
    /// Starts a canary, bound to `core` when one is given.
    ///
    /// # Errors
    /// When the thread cannot be made or bound.
    pub fn start(core: Option<usize>) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let (tell, told) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new().name("canary".into()).spawn(move || {
            let ready = core.map_or(Ok(()), pin_to_core).map(|()| fifo_lowest().is_ok());
            let ok = ready.is_ok();
            let _ = tell.send(ready);
            if ok {
                watch(&theirs);
            }
        })?;
        let realtime = told
            .recv()
            .unwrap_or_else(|_| Err(io::Error::other("the canary thread ended at once")))?;
        Ok(Self {
            shared,
            thread: Some(thread),
            realtime,
        })
    }

    /// What it saw so far.
    #[must_use]
    pub fn report(&self) -> CanaryReport {
        CanaryReport {
            max_ns: self.shared.max_ns.load(Ordering::Relaxed),
            long: self.shared.long.load(Ordering::Relaxed),
            wakes: self.shared.wakes.load(Ordering::Relaxed),
            realtime: self.realtime,
        }
    }
}

impl Drop for Canary {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn watch(shared: &Shared) {
    let mut deadline = now_ns() + PERIOD_NS;
    while !shared.stop.load(Ordering::Relaxed) {
        let late = sleep_until(deadline, 0);
        shared.max_ns.fetch_max(late, Ordering::Relaxed);
        shared.wakes.fetch_add(1, Ordering::Relaxed);
        if late > LONG_NS {
            shared.long.fetch_add(1, Ordering::Relaxed);
        }
        // Deadlines that passed while it was held are skipped: one hold is one delay.
        deadline += PERIOD_NS * (1 + late / PERIOD_NS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_its_wake_ups() {
        let canary = Canary::start(None).expect("canary");
        let until = now_ns() + 5_000_000_000;
        while canary.report().wakes < 3 {
            assert!(now_ns() < until, "three wake-ups within five seconds");
            std::thread::yield_now();
        }
        assert!(canary.report().max_ns > 0);
    }

    #[test]
    fn a_core_that_is_not_there_is_an_error() {
        assert!(Canary::start(Some(4_000_000)).is_err());
    }
}
