//! Whose clock the stamps are of, and whether two hosts have a common one.
//!
//! `CLOCK_TAI` is `CLOCK_REALTIME` plus the whole seconds that the kernel was told (37 in 2026, 0 where nobody
//! told it). A kernel's receive stamps are `CLOCK_REALTIME`; the same seconds are added to them.

use serde::{Deserialize, Serialize};

use crate::sys;

/// A host's clock as its kernel describes it (`adjtimex`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clock {
    /// The kernel's `boot_id`: the same on one running machine, also in all its namespaces.
    pub boot_id: String,
    /// Whether something disciplines the clock.
    pub synchronised: bool,
    /// The largest error that the discipline allows for, us.
    pub max_error_us: u64,
    /// `CLOCK_TAI` less `CLOCK_REALTIME`, s.
    pub tai_offset_s: i64,
}

/// Whether delays between two hosts mean anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Common {
    /// Both ends run on one machine.
    SameMachine,
    /// Two disciplined clocks: right to this error.
    Synchronised {
        /// The sum of both ends' largest errors, us.
        max_error_us: u64,
    },
    /// No: one-way delays are off by an unknown constant. Jitter and trends do hold.
    None,
}

/// Most bytes of a boot id that are compared.
const MAX_BOOT_ID: usize = 64;

impl Clock {
    /// This host's.
    #[must_use]
    pub fn here() -> Self {
        let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let (synchronised, max_error_us, tai_offset_s) = sys::clock_state();
        Self {
            boot_id: boot_id.trim().chars().take(MAX_BOOT_ID).collect(),
            synchronised,
            max_error_us,
            tai_offset_s,
        }
    }

    /// What this clock and another have in common.
    #[must_use]
    pub fn common(&self, other: &Self) -> Common {
        if !self.boot_id.is_empty() && self.boot_id == other.boot_id {
            return Common::SameMachine;
        }
        if self.synchronised && other.synchronised && self.tai_offset_s == other.tai_offset_s {
            let max_error_us = self.max_error_us.saturating_add(other.max_error_us);
            return Common::Synchronised { max_error_us };
        }
        Common::None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_are_common_on_one_machine_or_by_discipline() {
        let here = Clock::here();
        assert!(!here.boot_id.is_empty());
        assert_eq!(here.common(&Clock::here()), Common::SameMachine);
        let of = |boot_id: &str, synchronised, tai_offset_s| Clock {
            boot_id: boot_id.to_owned(),
            synchronised,
            max_error_us: 20,
            tai_offset_s,
        };
        let a = of("a", true, 37);
        assert_eq!(
            a.common(&of("b", true, 37)),
            Common::Synchronised { max_error_us: 40 }
        );
        assert_eq!(a.common(&of("b", false, 37)), Common::None);
        assert_eq!(a.common(&of("b", true, 0)), Common::None);
        assert_eq!(of("", false, 0).common(&of("", false, 0)), Common::None);
    }
}
