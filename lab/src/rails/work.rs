//! Whether other programs had a part of the processors while a run lasted.

/// Processor time of other programs that a run may suffer, percent of its wall time; not below some ticks of the counter.
const OTHERS_PERCENT: u64 = 5;
const OTHERS_FLOOR_MS: u64 = 50;
/// A tick of the processors' counters (proc(5)).
const TICK_MS: u64 = 10;

/// Processor time so far, ms: of the machine's programs, and of this one.
pub(super) struct Work {
    machine_ms: u64,
    own_ms: u64,
}

impl Work {
    pub(super) fn now() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let (machine, own) = (read("/proc/stat"), read("/proc/self/stat"));
        // The first line is of all processors: user, nice, system.
        let all = machine.split_ascii_whitespace().skip(1).take(3);
        // The 14th and 15th field, the 2nd being a name in brackets: user, system.
        let behind = own.rsplit_once(')').map_or("", |(_, behind)| behind);
        let mine = behind.split_ascii_whitespace().skip(11).take(2);
        let sum =
            |ticks: &mut dyn Iterator<Item = &str>| ticks.filter_map(|t| t.parse::<u64>().ok()).sum::<u64>();
        let (mut all, mut mine) = (all, mine);
        Self {
            machine_ms: sum(&mut all).saturating_mul(TICK_MS),
            own_ms: sum(&mut mine).saturating_mul(TICK_MS),
        }
    }

    /// What says that other programs worked meanwhile: rows on one core and on two suffer from them differently.
    pub(super) fn others(&self, wall_ns: u64) -> Option<String> {
        let now = Self::now();
        let own_ms = now.own_ms.saturating_sub(self.own_ms);
        let others_ms = now
            .machine_ms
            .saturating_sub(self.machine_ms)
            .saturating_sub(own_ms);
        let limit_ms = (wall_ns / 1_000_000 * OTHERS_PERCENT / 100).max(OTHERS_FLOOR_MS);
        (others_ms > limit_ms).then(|| format!("other programs {others_ms} ms (limit {limit_ms} ms)"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_at_work_are_seen() {
        let before = Work::now();
        let own = Work {
            own_ms: before.own_ms.saturating_sub(400),
            machine_ms: before.machine_ms.saturating_sub(400),
        };
        // All of it was this program's own, but for what the machine did in between.
        let wall_ns = 100_000_000_000;
        assert_eq!(own.others(wall_ns), None);
        let others = Work {
            machine_ms: before.machine_ms.saturating_sub(60_000),
            ..before
        };
        assert!(
            others
                .others(wall_ns)
                .is_some_and(|why| why.starts_with("other programs"))
        );
    }
}
