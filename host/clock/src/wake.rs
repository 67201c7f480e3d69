//! Reading the clock, waking at a deadline, and pinning threads to cores.
//!
//! ```text
//! now ------------------ sleep (clock_nanosleep, absolute) ----------> deadline - spin -- spin --> deadline
//! ```

use std::io;

use kuroshio_core::units::PicoTime;
use rustix::thread::{ClockId, CpuSet, clock_nanosleep_absolute};
use rustix::time::{Timespec, clock_gettime};

/// The last stretch before a deadline that is spun instead of slept, ns, by a thread that shares its core:
/// longer than the p99 of a kernel timer's wake-up (10 to 22 us) by a margin, so that the wake-up itself is
/// late rarely.
pub const SPIN_NS: u64 = 60_000;

/// The same, ns, by a thread that has a core of its own: a virtual core that halts is given to others and
/// comes back late. Frames every 360 us for 27 s on two virtual cores: p99.9 of the lateness 390 to 610 us
/// with 60 us, 14 to 18 us with 500 us.
pub const SPIN_ALONE_NS: u64 = 500_000;

const NS_PER_SEC: u64 = 1_000_000_000;

/// How long a thread spins before a deadline, ns: [`SPIN_ALONE_NS`] with a core of its own; [`SPIN_NS`] when it shares
/// `cores` with others; not at all when that is one, where spinning takes the time from those that it waits for.
#[must_use]
pub fn spin_ns(own_core: bool, cores: usize) -> u64 {
    match (own_core, cores) {
        (true, _) => SPIN_ALONE_NS,
        (false, 0 | 1) => 0,
        (false, _) => SPIN_NS,
    }
}

/// Lets the kernel delay this thread's sleeps by 1 ns to join them with other wake-ups, instead of the 50 us that
/// a thread has by default (`PR_SET_TIMERSLACK`): for deadlines before which nothing is spun.
///
/// # Errors
/// What the kernel says.
pub fn exact_sleep() -> io::Result<()> {
    rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1))?;
    Ok(())
}

/// `CLOCK_MONOTONIC`, ns.
#[must_use]
pub fn now_ns() -> u64 {
    let t = clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(t.tv_sec).unwrap_or(0) * NS_PER_SEC + u64::try_from(t.tv_nsec).unwrap_or(0)
}

/// Sleeps until `spin_ns` before `t_ns` (`CLOCK_MONOTONIC`) and spins the rest. Returns the
/// lateness: how much later than `t_ns` it was when the loop ended, ns.
pub fn sleep_until(t_ns: u64, spin_ns: u64) -> u64 {
    let sleep_to = t_ns.saturating_sub(spin_ns);
    while now_ns() < sleep_to {
        let at = Timespec {
            tv_sec: i64::try_from(sleep_to / NS_PER_SEC).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(sleep_to % NS_PER_SEC).unwrap_or(0),
        };
        // An error is a signal's interruption: the loop's condition decides what remains.
        let _ = clock_nanosleep_absolute(ClockId::Monotonic, &at);
    }
    spin_until(t_ns)
}

/// Spins until `t_ns` (`CLOCK_MONOTONIC`). Returns the lateness at the end, ns.
pub fn spin_until(t_ns: u64) -> u64 {
    loop {
        let now = now_ns();
        if now >= t_ns {
            return now - t_ns;
        }
        std::hint::spin_loop();
    }
}

/// The start of a run on the machine's clock: the zero of its [`PicoTime`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Epoch {
    start_ns: u64,
}

impl Epoch {
    /// An epoch that begins now.
    #[must_use]
    pub fn now() -> Self {
        Self { start_ns: now_ns() }
    }

    /// An epoch at a given `CLOCK_MONOTONIC`, ns.
    #[must_use]
    pub fn at_ns(start_ns: u64) -> Self {
        Self { start_ns }
    }

    /// Where the run's zero is on `CLOCK_MONOTONIC`, ns.
    #[must_use]
    pub fn start_ns(self) -> u64 {
        self.start_ns
    }

    /// The run's time at a machine time, saturating at both ends (213 days).
    #[must_use]
    pub fn pico_at(self, mono_ns: u64) -> PicoTime {
        PicoTime::from_ps(mono_ns.saturating_sub(self.start_ns).saturating_mul(1000))
    }

    /// The run's time now.
    #[must_use]
    pub fn pico_now(self) -> PicoTime {
        self.pico_at(now_ns())
    }

    /// The first machine nanosecond at or after a time of the run.
    #[must_use]
    pub fn mono_ns(self, t: PicoTime) -> u64 {
        self.start_ns.saturating_add(t.as_ps().div_ceil(1000))
    }
}

/// Binds the calling thread to one core.
///
/// # Errors
/// `InvalidInput` when there is no such core, else what the kernel says (`EINVAL` when the core is
/// outside the process's cpuset).
pub fn pin_to_core(core: usize) -> io::Result<()> {
    pin_to_cores(&[core])
}

/// Binds the calling thread, and the children it makes from now on, to some cores.
///
/// # Errors
/// `InvalidInput` for an empty list or an index beyond the kernel's mask; else the kernel's error.
pub fn pin_to_cores(cores: &[usize]) -> io::Result<()> {
    let mut set = CpuSet::new();
    for &core in cores {
        if core >= CpuSet::MAX_CPU {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("core {core}: the largest possible is {}", CpuSet::MAX_CPU - 1),
            ));
        }
        set.set(core);
    }
    if cores.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "no core given to pin to",
        ));
    }
    rustix::thread::sched_setaffinity(None, &set)?;
    Ok(())
}

/// The cores that the calling thread may run on, ascending.
///
/// # Errors
/// The kernel's error.
pub fn allowed_cores() -> io::Result<Vec<usize>> {
    let set = rustix::thread::sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|&c| set.is_set(c)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_forward_and_wakes_not_early() {
        let t = now_ns() + 2_000_000;
        sleep_until(t, SPIN_NS);
        assert!(now_ns() >= t);
        let past = now_ns() - 5_000;
        assert!(sleep_until(past, SPIN_NS) >= 5_000);
    }

    #[test]
    fn spins_only_where_somebody_else_can_run() {
        assert_eq!(spin_ns(true, 1), SPIN_ALONE_NS);
        assert_eq!(spin_ns(false, 2), SPIN_NS);
        assert_eq!(spin_ns(false, 1), 0);
    }

    #[test]
    fn sleeps_are_not_joined() {
        std::thread::spawn(|| {
            exact_sleep().expect("a thread may set its own slack");
            assert_eq!(rustix::thread::current_timer_slack().expect("slack"), 1);
        })
        .join()
        .expect("thread");
    }

    #[test]
    fn epoch_maps_both_ways() {
        let e = Epoch::at_ns(1_000);
        assert_eq!(e.pico_at(1_005).as_ps(), 5_000);
        assert_eq!(e.pico_at(10).as_ps(), 0);
        assert_eq!(e.mono_ns(PicoTime::from_ps(5_000)), 1_005);
        assert_eq!(e.mono_ns(PicoTime::from_ps(5_001)), 1_006);
    }

    #[test]
    fn pins_and_refuses_nonsense() {
        std::thread::spawn(|| {
            let cores = allowed_cores().expect("affinity is readable");
            let last = *cores.last().expect("one core at least");
            pin_to_core(last).expect("an allowed core");
            assert_eq!(allowed_cores().expect("affinity"), vec![last]);
            assert!(pin_to_core(1 << 20).is_err());
            assert!(pin_to_cores(&[]).is_err());
        })
        .join()
        .expect("thread");
    }
}
