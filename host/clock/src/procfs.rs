//! What the kernel counted against us: steal and run-queue delay.
//!
//! `/proc/stat`, line `cpuN user nice system idle iowait irq softirq steal ...`, in ticks of
//! `USER_HZ` (100 per second in every Linux ABI). `/proc/self/task/TID/schedstat`:
//! `on-cpu-ns run-queue-wait-ns timeslices` (Documentation/scheduler/sched-stats.rst).

use std::io;

/// Nanoseconds per tick of `/proc/stat`: `USER_HZ` is 100 for user space on every architecture
/// we run on.
const NS_PER_TICK: u64 = 10_000_000;

/// Time that the hypervisor took from all cores together since boot, ns, in steps of 10 ms.
///
/// # Errors
/// When `/proc/stat` cannot be read or has no `cpu` line.
pub fn steal_ns() -> io::Result<u64> {
    let text = std::fs::read_to_string("/proc/stat")?;
    parse_steal_ticks(&text)
        .map(|t| t.saturating_mul(NS_PER_TICK))
        .ok_or_else(|| bad("/proc/stat: no steal column in the line that begins with \"cpu \""))
}

/// Time that a thread of this process has waited on a run queue although it could run, ns.
///
/// # Errors
/// When there is no such thread or the kernel has no scheduler statistics.
pub fn run_delay_ns(tid: u32) -> io::Result<u64> {
    let path = format!("/proc/self/task/{tid}/schedstat");
    let text = std::fs::read_to_string(&path)?;
    parse_schedstat(&text).ok_or_else(|| bad(&format!("{path}: expected three numbers, got {text:?}")))
}

/// The calling thread's id, as its `/proc/self/task` entry is named.
#[must_use]
pub fn thread_id() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()
}

/// The steal ticks of all cores in the text of `/proc/stat`.
#[must_use]
pub fn parse_steal_ticks(text: &str) -> Option<u64> {
    let line = text.lines().find(|l| l.starts_with("cpu "))?;
    line.split_ascii_whitespace().nth(8)?.parse().ok()
}

/// The run-queue wait in the text of a `schedstat` file, ns.
#[must_use]
pub fn parse_schedstat(text: &str) -> Option<u64> {
    text.split_ascii_whitespace().nth(1)?.parse().ok()
}

fn bad(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_the_kernel_s_tables() {
        let stat = "cpu  1 2 3 4 5 6 7 81 9 10\ncpu0 1 2 3 4 5 6 7 8 9 10\n";
        assert_eq!(parse_steal_ticks(stat), Some(81));
        assert_eq!(parse_steal_ticks("cpu  1 2 3\n"), None);
        assert_eq!(parse_steal_ticks("intr 1\n"), None);
        assert_eq!(parse_schedstat("123 456 7\n"), Some(456));
        assert_eq!(parse_schedstat(""), None);
        assert_eq!(parse_schedstat("1 x 2"), None);
    }

    #[test]
    fn reads_this_machine() {
        steal_ns().expect("/proc/stat");
        run_delay_ns(thread_id()).expect("own schedstat");
        assert!(run_delay_ns(0).is_err());
    }
}
