//! Processor time: of the threads that carry a test, and of the machine by kind.
//!
//! A test's own time is the sum over its threads (`getrusage(RUSAGE_THREAD)`), so tests that run beside each
//! other in one server are told apart. The kernel does most of a receiver's work in soft interrupts, which
//! belong to no thread: the machine's figures (`/proc/stat`) show them.

use serde::Serialize;
use std::ops::AddAssign;

/// Processor time, microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cpu {
    pub user_us: u64,
    pub system_us: u64,
}

impl AddAssign for Cpu {
    fn add_assign(&mut self, other: Cpu) {
        self.user_us += other.user_us;
        self.system_us += other.system_us;
    }
}

impl Cpu {
    /// What the calling thread has used since it began.
    pub(crate) fn of_this_thread() -> Self {
        // SAFETY: `rusage` is plain old data; all-zero bytes are a valid value of it.
        let mut raw: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: the pointer is to a whole `rusage` that lives over the call, which only writes there.
        let ret = unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut raw) };
        if ret != 0 {
            return Self::default();
        }
        let micros = |t: libc::timeval| {
            u64::try_from(t.tv_sec).unwrap_or(0) * 1_000_000 + u64::try_from(t.tv_usec).unwrap_or(0)
        };
        Self {
            user_us: micros(raw.ru_utime),
            system_us: micros(raw.ru_stime),
        }
    }

    /// What was used since `before`.
    pub(crate) fn since(self, before: Cpu) -> Cpu {
        Cpu {
            user_us: self.user_us.saturating_sub(before.user_us),
            system_us: self.system_us.saturating_sub(before.system_us),
        }
    }
}

/// Shares of the machine's processor time, percent of all cores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct MachinePercent {
    /// Programs.
    pub user: f64,
    /// The kernel on behalf of programs.
    pub system: f64,
    /// Soft interrupts: most of the network's receive side.
    pub softirq: f64,
    /// Interrupts.
    pub irq: f64,
    /// Taken by the host of a virtual machine.
    pub steal: f64,
    /// Nothing to do, or waiting for a disk.
    pub idle: f64,
}

/// The counters of `/proc/stat`, in ticks since the machine started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MachineTicks([u64; 8]);

impl MachineTicks {
    pub(crate) fn now() -> Self {
        std::fs::read_to_string("/proc/stat")
            .ok()
            .and_then(|text| Self::parse(&text))
            .unwrap_or_default()
    }

    /// Reads the first line: user, nice, system, idle, iowait, irq, softirq, steal (proc(5)).
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.lines().next()?.split_whitespace();
        (words.next()? == "cpu").then_some(())?;
        let mut ticks = [0u64; 8];
        for tick in &mut ticks {
            *tick = words.next()?.parse().ok()?;
        }
        Some(Self(ticks))
    }

    /// The shares of the time since `before`; `None` when no tick has passed.
    pub(crate) fn since(self, before: MachineTicks) -> Option<MachinePercent> {
        let mut part = [0u64; 8];
        for (part, (now, before)) in part.iter_mut().zip(self.0.iter().zip(before.0)) {
            *part = now.saturating_sub(before);
        }
        let all: u64 = part.iter().sum();
        let percent = |ticks: u64| 100.0 * ticks as f64 / all as f64;
        let [user, nice, system, idle, iowait, irq, softirq, steal] = part;
        (all > 0).then(|| MachinePercent {
            user: percent(user + nice),
            system: percent(system),
            softirq: percent(softirq),
            irq: percent(irq),
            steal: percent(steal),
            idle: percent(idle + iowait),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_thread_has_used_time() {
        let before = Cpu::of_this_thread();
        let mut n = 0u64;
        while Cpu::of_this_thread().since(before) == Cpu::default() {
            n = std::hint::black_box(n + 1);
        }
        assert!(n > 0);
    }

    #[test]
    fn shares_of_the_machine_sum_to_one() {
        let read = |text| MachineTicks::parse(text);
        let before = read("cpu  10 0 20 30 0 0 0 0 0 0\ncpu0 1\n").expect("ticks");
        let after = read("cpu  20 0 40 90 0 0 10 0 0 0\n").expect("ticks");
        let shares = after.since(before).expect("shares");
        assert_eq!(
            (shares.user, shares.system, shares.softirq, shares.idle),
            (10.0, 20.0, 10.0, 60.0)
        );
        assert_eq!(before.since(before), None);
        for bad in [
            "",
            "cpu",
            "cpu 1 2 3",
            "cpu 1 2 3 4 5 6 7 x",
            "intr 1 2 3 4 5 6 7 8",
        ] {
            assert_eq!(read(bad), None, "{bad:?}");
        }
        assert_ne!(MachineTicks::now(), MachineTicks::default());
    }
}
