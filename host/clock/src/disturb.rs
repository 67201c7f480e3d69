//! Was a run disturbed? Decided by the machine's own witnesses.
//!
//! ```text
//! steal share   = steal ns of all cores / wall ns
//! run-delay share = run-queue delay of the watched thread / wall ns
//! canary        = longest delay of a thread that only sleeps
//! ```
//!
//! A run is disturbed when one of them passes its limit. The lateness of the emulator is not
//! among them: lateness without a witness is a failure of ours, not an excuse.

use std::fmt;
use std::io;
use std::time::{Duration, Instant};

use crate::canary::{Canary, CanaryReport};
use crate::procfs::{run_delay_ns, steal_ns};
use crate::wake::now_ns;

/// What a run may suffer and still count, in parts per thousand of its wall time and in ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Steal of all cores together, per mille of wall time.
    pub steal_permille: u64,
    /// Steal below this is one or two ticks of the counter and says nothing, ns.
    pub steal_floor_ns: u64,
    /// Run-queue delay of the watched thread, per mille of wall time.
    pub run_delay_permille: u64,
    /// Run-queue delay below this is ignored, ns.
    pub run_delay_floor_ns: u64,
    /// Longest delay of a canary at real-time priority, ns.
    pub canary_realtime_ns: u64,
    /// Longest delay of a canary without it, which also waits for its turn, ns.
    pub canary_ordinary_ns: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            steal_permille: 10,
            steal_floor_ns: 30_000_000,
            // A preferred group on a loaded machine still waits 11 per mille.
            run_delay_permille: 20,
            run_delay_floor_ns: 20_000_000,
            canary_realtime_ns: 5_000_000,
            canary_ordinary_ns: 20_000_000,
        }
    }
}

/// The witnesses' figures for one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disturbance {
    /// Wall time watched, ns.
    pub wall_ns: u64,
    /// Time the hypervisor took from all cores together, ns.
    pub steal_ns: u64,
    /// Run-queue delay of the watched threads together, ns.
    pub run_delay_ns: u64,
    /// The canary's figures.
    pub canary: CanaryReport,
}

impl Disturbance {
    /// Why the run does not count, or `None` when it does.
    #[must_use]
    pub fn verdict(&self, limits: &Limits) -> Option<String> {
        let share = |permille: u64, floor: u64| (self.wall_ns / 1000 * permille).max(floor);
        let canary_limit = if self.canary.realtime {
            limits.canary_realtime_ns
        } else {
            limits.canary_ordinary_ns
        };
        let rows = [
            (
                "steal",
                self.steal_ns,
                share(limits.steal_permille, limits.steal_floor_ns),
            ),
            (
                "run-queue delay",
                self.run_delay_ns,
                share(limits.run_delay_permille, limits.run_delay_floor_ns),
            ),
            ("canary delay", self.canary.max_ns, canary_limit),
        ];
        let over: Vec<String> = rows
            .iter()
            .filter(|(_, value, limit)| value > limit)
            .map(|(name, value, limit)| format!("{name} {:.1} ms (limit {:.1} ms)", ms(*value), ms(*limit)))
            .collect();
        (!over.is_empty()).then(|| over.join(", "))
    }
}

impl fmt::Display for Disturbance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "steal {:.1} ms, run-queue delay {:.1} ms, canary {:.2} ms in {:.1} s",
            ms(self.steal_ns),
            ms(self.run_delay_ns),
            ms(self.canary.max_ns),
            ms(self.wall_ns) / 1000.0
        )
    }
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

/// Watches a run from [`Watch::start`] to [`Watch::report`].
#[derive(Debug)]
pub struct Watch {
    canary: Canary,
    start_ns: u64,
    steal_start_ns: u64,
    threads: Vec<(u32, u64)>,
}

impl Watch {
    /// Starts a canary (bound to `core` if given) and notes where the counters stand. `threads`
    /// are the ids of the threads of this process whose run-queue delay counts.
    ///
    /// # Errors
    /// When a counter cannot be read or the canary cannot start.
    pub fn start(core: Option<usize>, threads: &[u32]) -> io::Result<Self> {
        let threads = threads
            .iter()
            .map(|&tid| run_delay_ns(tid).map(|ns| (tid, ns)))
            .collect::<io::Result<Vec<_>>>()?;
        Ok(Self {
            canary: Canary::start(core)?,
            start_ns: now_ns(),
            steal_start_ns: steal_ns()?,
            threads,
        })
    }

    /// The figures from the start until now. A watched thread that has ended counts what was
    /// seen of it at the start, so report before ending it.
    #[must_use]
    pub fn report(&self) -> Disturbance {
        let run_delay = self
            .threads
            .iter()
            .map(|&(tid, start)| run_delay_ns(tid).map_or(0, |ns| ns.saturating_sub(start)))
            .sum();
        Disturbance {
            wall_ns: now_ns().saturating_sub(self.start_ns),
            steal_ns: steal_ns()
                .unwrap_or(self.steal_start_ns)
                .saturating_sub(self.steal_start_ns),
            run_delay_ns: run_delay,
            canary: self.canary.report(),
        }
    }
}

/// Waits until nothing has disturbed the machine for `window`; `false` when that has not come within `limit`.
/// A virtual machine that has just freed much memory is stopped for tens of milliseconds every two seconds,
/// as long as it hands the pages back.
///
/// # Errors
/// As [`Watch::start`].
pub fn wait_for_quiet(core: Option<usize>, window: Duration, limit: Duration) -> io::Result<bool> {
    let deadline = Instant::now() + limit;
    loop {
        let watch = Watch::start(core, &[])?;
        std::thread::sleep(window);
        if watch.report().verdict(&Limits::default()).is_none() {
            return Ok(true);
        }
        if Instant::now() + window > deadline {
            return Ok(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_for_quiet_ends() {
        let (window, limit) = (Duration::from_millis(20), Duration::from_millis(60));
        let begun = Instant::now();
        let quiet = wait_for_quiet(None, window, limit).expect("witnesses");
        assert!(begun.elapsed() >= window);
        // Not quiet is said only when there was no room for one more window.
        assert!(quiet || begun.elapsed() > limit - window);
    }

    fn quiet() -> Disturbance {
        Disturbance {
            wall_ns: 10_000_000_000,
            steal_ns: 0,
            run_delay_ns: 0,
            canary: CanaryReport {
                realtime: true,
                ..CanaryReport::default()
            },
        }
    }

    #[test]
    fn each_witness_alone_decides() {
        let limits = Limits::default();
        assert_eq!(quiet().verdict(&limits), None);
        let steal = Disturbance {
            steal_ns: 100_000_001,
            ..quiet()
        };
        assert!(steal.verdict(&limits).is_some_and(|v| v.starts_with("steal")));
        let queue = Disturbance {
            run_delay_ns: 200_000_001,
            ..quiet()
        };
        assert!(queue.verdict(&limits).is_some_and(|v| v.starts_with("run-queue")));
        let mut canary = quiet();
        canary.canary.max_ns = 5_000_001;
        assert!(canary.verdict(&limits).is_some_and(|v| v.starts_with("canary")));
        canary.canary.realtime = false;
        assert_eq!(canary.verdict(&limits), None);
    }

    #[test]
    fn short_runs_have_floors() {
        let run = Disturbance {
            wall_ns: 1_000_000,
            steal_ns: 20_000_000,
            run_delay_ns: 10_000_000,
            ..quiet()
        };
        assert_eq!(run.verdict(&Limits::default()), None);
    }

    #[test]
    fn watches_a_spinning_thread() {
        let watch = Watch::start(None, &[crate::thread_id()]).expect("watch");
        crate::spin_until(now_ns() + 2_000_000);
        let seen = watch.report();
        assert!(seen.wall_ns >= 2_000_000);
    }
}
