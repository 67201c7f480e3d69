//! Which time an output's times are in: the role of GNET-1's GPS port.
//!
//! ```text
//! CLOCK_MONOTONIC = run_begin_monotonic_ns + time of the run
//! CLOCK_TAI       = CLOCK_MONOTONIC + tai_minus_monotonic_ns          (+- reading_uncertainty_ns, at the head's moment)
//! ```
//!
//! The offset is read between two readings of the monotonic clock, the tightest of a few. Whether CLOCK_TAI means anything
//! to another machine is what `sync` says: adjtimex(2) has the kernel's view (`STA_UNSYNC`, `maxerror`, the TAI offset,
//! which is 0 as long as nobody has set it and then CLOCK_TAI is UTC), and the list of processes says who disciplines.

use std::io;

use kuroshio_clock::Epoch;
use rustix::time::{DynamicClockId, clock_gettime_dynamic};
use serde::Serialize;

use crate::sys;

/// Programs that keep a clock, by the names of their processes (15 bytes).
const DAEMONS: [&str; 6] = [
    "chronyd",
    "ntpd",
    "ptp4l",
    "phc2sys",
    "systemd-timesyn",
    "openntpd",
];

/// How the machine's clock is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SyncState {
    /// Whether the kernel says that its clock is synchronised (`STA_UNSYNC` is not set).
    pub synchronised: bool,
    /// Largest error that the kernel allows for, us; it grows by 500 us a second while nobody disciplines.
    pub max_error_us: i64,
    /// The discipline's own estimate of its error, us.
    pub est_error_us: i64,
    /// Status word of adjtimex(2).
    pub status: i32,
    /// Seconds from UTC to TAI in the kernel; 0 where nobody has set it.
    pub tai_offset_s: i32,
    /// Whether that has been set, so that `CLOCK_TAI` is TAI.
    pub tai_known: bool,
    /// Programs that run here and keep clocks; those of another PID namespace are not seen.
    pub daemons: Vec<String>,
}

/// The clocks at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ClockHead {
    /// Zero of the run's time, `CLOCK_MONOTONIC`, ns.
    pub run_begin_monotonic_ns: u64,
    /// When the clocks were read, in the run's time, ns.
    pub read_at_ns: u64,
    /// `CLOCK_TAI` less `CLOCK_MONOTONIC` then, ns.
    pub tai_minus_monotonic_ns: i64,
    /// `CLOCK_REALTIME` less `CLOCK_MONOTONIC` then, ns.
    pub realtime_minus_monotonic_ns: i64,
    /// Time between the monotonic readings around the others, ns: the offsets are right to half of it.
    pub reading_uncertainty_ns: u64,
    /// How the clock is kept; `None` where the kernel does not say.
    pub sync: Option<SyncState>,
}

impl SyncState {
    /// Asks the kernel, and looks at the processes that this one sees.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn read() -> io::Result<Self> {
        let (state, result) = sys::clock_state()?;
        Ok(Self {
            synchronised: state.status & libc::STA_UNSYNC == 0 && result != libc::TIME_ERROR,
            max_error_us: state.maxerror,
            est_error_us: state.esterror,
            status: state.status,
            tai_offset_s: state.tai,
            tai_known: state.tai != 0,
            daemons: daemons(),
        })
    }
}

fn daemons() -> Vec<String> {
    let mut found: Vec<String> = std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter(|e| {
            e.file_name()
                .to_string_lossy()
                .starts_with(|c: char| c.is_ascii_digit())
        })
        .filter_map(|e| std::fs::read_to_string(e.path().join("comm")).ok())
        .map(|name| name.trim_end().to_owned())
        .filter(|name| DAEMONS.contains(&name.as_str()))
        .collect();
    found.sort();
    found.dedup();
    found
}

impl ClockHead {
    /// Reads the clocks, for a run that began at this moment of `CLOCK_MONOTONIC`.
    #[must_use]
    pub fn read(run_begin_monotonic_ns: u64) -> Self {
        let epoch = Epoch::at_ns(run_begin_monotonic_ns);
        // CLOCK_TAI is as old as Linux 3.10; a kernel without it would give 1970.
        let ns = |id| {
            let zero = rustix::time::Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            let t = clock_gettime_dynamic(id).unwrap_or(zero);
            i128::from(t.tv_sec) * 1_000_000_000 + i128::from(t.tv_nsec)
        };
        let sandwich = || {
            let before = ns(DynamicClockId::Known(rustix::time::ClockId::Monotonic));
            let tai = ns(DynamicClockId::Tai);
            let real = ns(DynamicClockId::Known(rustix::time::ClockId::Realtime));
            let after = ns(DynamicClockId::Known(rustix::time::ClockId::Monotonic));
            let middle = (before + after) / 2;
            (after - before, tai - middle, real - middle)
        };
        let (width, tai, real) = (0..8).map(|_| sandwich()).min().unwrap_or_default();
        let narrow = |ns: i128| i64::try_from(ns).unwrap_or(i64::MAX);
        Self {
            run_begin_monotonic_ns,
            read_at_ns: epoch.pico_now().as_ns(),
            tai_minus_monotonic_ns: narrow(tai),
            realtime_minus_monotonic_ns: narrow(real),
            reading_uncertainty_ns: u64::try_from(width).unwrap_or(0),
            sync: SyncState::read().ok(),
        }
    }

    /// One line for the head of a CSV file, without its `#`.
    #[must_use]
    pub fn line(&self) -> String {
        let sync = match &self.sync {
            None => "sync unknown".to_owned(),
            Some(s) => format!(
                "synchronised={} max_error_us={} tai_offset_s={} tai_known={} daemons={}",
                s.synchronised,
                s.max_error_us,
                s.tai_offset_s,
                s.tai_known,
                if s.daemons.is_empty() {
                    "none".to_owned()
                } else {
                    s.daemons.join("+")
                }
            ),
        };
        format!(
            "run_begin_monotonic_ns={} tai_minus_monotonic_ns={} reading_uncertainty_ns={} {sync}",
            self.run_begin_monotonic_ns, self.tai_minus_monotonic_ns, self.reading_uncertainty_ns
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clocks_agree_with_the_system_s() {
        let head = ClockHead::read(kuroshio_clock::now_ns());
        let real = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .expect("after 1970")
            .as_nanos() as i128;
        let by_head = i128::from(kuroshio_clock::now_ns()) + i128::from(head.realtime_minus_monotonic_ns);
        assert!((real - by_head).abs() < 1_000_000_000, "{real} {by_head}");
        let sync = head.sync.as_ref().expect("adjtimex");
        // Read one after the other between two readings of the third.
        let leap = head.tai_minus_monotonic_ns - head.realtime_minus_monotonic_ns;
        let apart = (leap - i64::from(sync.tai_offset_s) * 1_000_000_000).unsigned_abs();
        assert!(apart <= head.reading_uncertainty_ns, "{head:?}");
        assert_eq!(sync.tai_known, sync.tai_offset_s != 0);
        assert!(head.line().contains("max_error_us="));
    }
}
