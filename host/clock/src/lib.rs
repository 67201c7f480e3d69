//! Monotonic time, precise wake-up, core pinning, and what disturbed a run.
//!
//! Model: `CLOCK_MONOTONIC` in nanoseconds is the only clock. An [`Epoch`] maps it to the
//! `PicoTime` of the core's state machines: `t_ps = (now_ns - epoch_ns) * 1000`.
//!
//! Waking at a deadline is sleep-then-spin: the kernel's timer brings a thread to within tens of
//! microseconds, the last stretch is spun. Whether a run was disturbed is decided by [`Watch`]
//! from steal, run-queue delay and a canary thread, never from the lateness that it would excuse.

mod canary;
mod disturb;
mod procfs;
mod sched;
mod wake;

pub use canary::{Canary, CanaryReport};
pub use disturb::{Disturbance, Limits, Watch, wait_for_quiet};
pub use procfs::{parse_schedstat, parse_steal_ticks, run_delay_ns, steal_ns, thread_id};
pub use sched::fifo_lowest;
pub use wake::{
    Epoch, SPIN_ALONE_NS, SPIN_NS, allowed_cores, exact_sleep, now_ns, pin_to_core, pin_to_cores,
    sleep_until, spin_ns, spin_until,
};
