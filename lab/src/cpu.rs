//! Who used the processors while a stream ran: paper 004, figures 7 and 8, of a live run.
//!
//! ```text
//! /proc/thread-self/stat   user and system time of the thread that sends, and of the one that receives
//! /proc/stat               per processor: user, system, softirq, irq, steal, idle
//! ```
//!
//! Each end is a thread of its own, so *application* is its user time and *TCP in its calls* its system time. The rest
//! of TCP runs in soft interrupts, which belong to no thread: they are counted per processor, and both ends share
//! the processors, so that a sender's cannot be told from a receiver's. Where the emulator has a processor of its own,
//! soft interrupts of the others are those of the two ends (and what the machine does beside). All counters are in
//! ticks (10 ms by proc(5)): shares over seconds are exact to a percent.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Milliseconds of a tick: `sysconf(_SC_CLK_TCK)` is 100 on every Linux platform this runs on (proc(5)).
const TICK_MS: u64 = 10;
/// Parts of a processor's time that are told apart.
const PARTS: [&str; 6] = ["user", "system", "softirq", "irq", "steal", "idle"];

/// One reading, by a thread of an end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usage {
    /// From the start of the phase.
    pub t_ms: u64,
    /// User time of the thread so far.
    pub user_ms: u64,
    /// System time of the thread so far.
    pub system_ms: u64,
    /// Of every processor: ticks by part since the machine started.
    pub processors: Vec<[u64; PARTS.len()]>,
}

impl Usage {
    /// Of the calling thread and the machine, now; none when `/proc` cannot be read.
    pub(crate) fn now(t_ms: u64) -> Option<Self> {
        let thread = std::fs::read_to_string("/proc/thread-self/stat").ok()?;
        let machine = std::fs::read_to_string("/proc/stat").ok()?;
        let (user_ms, system_ms) = thread_times(&thread)?;
        Some(Self {
            t_ms,
            user_ms,
            system_ms,
            processors: processors(&machine),
        })
    }
}

/// User and system time of a thread, ms: the 14th and 15th field, the 2nd being a name in brackets.
fn thread_times(stat: &str) -> Option<(u64, u64)> {
    let (_, behind) = stat.rsplit_once(')')?;
    let mut fields = behind.split_ascii_whitespace().skip(11);
    let mut next = || fields.next()?.parse::<u64>().ok()?.checked_mul(TICK_MS);
    Some((next()?, next()?))
}

/// The lines of the single processors, in their order.
fn processors(stat: &str) -> Vec<[u64; PARTS.len()]> {
    let lines = stat.lines().filter_map(|line| {
        let (name, rest) = line.split_once(' ')?;
        let number = name.strip_prefix("cpu")?;
        (!number.is_empty()).then_some(rest)
    });
    lines.filter_map(processor).collect()
}

/// user, nice, system, idle, iowait, irq, softirq, steal (proc(5)).
fn processor(line: &str) -> Option<[u64; PARTS.len()]> {
    let numbers: Vec<u64> = line
        .split_ascii_whitespace()
        .map_while(|w| w.parse().ok())
        .collect();
    let [user, nice, system, idle, iowait, irq, softirq, steal, ..] = *numbers.as_slice() else {
        return None;
    };
    Some([user + nice, system, softirq, irq, steal, idle + iowait])
}

/// Whose time it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Who {
    /// The thread that sends.
    Sender,
    /// The thread that receives.
    Receiver,
}

/// The readings of a flow.
#[derive(Debug, Clone, Default)]
pub struct Ends {
    /// By the thread that sends.
    pub sender: Vec<Usage>,
    /// By the thread that receives.
    pub receiver: Vec<Usage>,
}

/// The first and the last reading of a time.
fn ends(list: &[Usage], from_ms: u64, to_ms: u64) -> Option<(&Usage, &Usage)> {
    let first = list.iter().find(|u| u.t_ms >= from_ms)?;
    let last = list.iter().rev().find(|u| u.t_ms <= to_ms)?;
    (last.t_ms > first.t_ms).then_some((first, last))
}

impl Ends {
    fn of(&self, who: Who) -> &[Usage] {
        match who {
            Who::Sender => &self.sender,
            Who::Receiver => &self.receiver,
        }
    }

    /// User and system time of an end as shares of one processor, percent; none without two readings.
    pub fn shares(&self, who: Who, from_ms: u64, to_ms: u64) -> Option<(f64, f64)> {
        let (first, last) = ends(self.of(who), from_ms, to_ms)?;
        let time = (last.t_ms - first.t_ms) as f64;
        let share = |a: u64, b: u64| 100.0 * b.saturating_sub(a) as f64 / time;
        Some((
            share(first.user_ms, last.user_ms),
            share(first.system_ms, last.system_ms),
        ))
    }

    /// The paper's table: percent of one processor.
    pub fn table(&self, from_ms: u64, to_ms: u64) -> Value {
        let end = |who| {
            self.shares(who, from_ms, to_ms)
                .map(|(user, system)| json!({"application_percent": round(user), "tcp_in_its_calls_percent": round(system)}))
        };
        let processors = ends(&self.sender, from_ms, to_ms).map(|(first, last)| {
            let pairs = first.processors.iter().zip(&last.processors);
            pairs.map(|(a, b)| parts(a, b)).collect::<Vec<_>>()
        });
        json!({
            "sender": end(Who::Sender),
            "receiver": end(Who::Receiver),
            "processors": processors,
        })
    }
}

/// Shares of one processor's time between two readings, percent.
fn parts(before: &[u64; PARTS.len()], after: &[u64; PARTS.len()]) -> Value {
    let used: Vec<u64> = before
        .iter()
        .zip(after)
        .map(|(a, b)| b.saturating_sub(*a))
        .collect();
    let all = used.iter().sum::<u64>().max(1) as f64;
    PARTS
        .iter()
        .zip(&used)
        .map(|(name, ticks)| {
            (
                format!("{name}_percent"),
                json!(round(100.0 * *ticks as f64 / all)),
            )
        })
        .collect::<serde_json::Map<_, _>>()
        .into()
}

fn round(v: f64) -> f64 {
    (v * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_read_behind_its_name() {
        let stat = "7 (a) b (c) R 1 1 1 0 -1 0 0 0 0 0 12 34 0 0 20 0 1 0 5";
        assert_eq!(thread_times(stat), Some((120, 340)));
        for wrong in ["", "7 (a", "7 (a) R 1", "7 (a) R 1 1 1 0 -1 0 0 0 0 0 x 34"] {
            assert_eq!(thread_times(wrong), None, "{wrong}");
        }
        assert!(Usage::now(0).is_some_and(|u| !u.processors.is_empty()));
    }

    #[test]
    fn processors_are_told_from_their_sum() {
        let stat =
            "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\ncpu1 10 0 0 0 0 0 0 0\nintr 5\ncpu2 1 2\n";
        assert_eq!(processors(stat), [[3, 3, 7, 6, 8, 9], [10, 0, 0, 0, 0, 0]]);
    }

    #[test]
    fn shares_are_of_the_time_looked_at() {
        let at = |t_ms, user_ms, system_ms, busy| Usage {
            t_ms,
            user_ms,
            system_ms,
            processors: vec![[0, 0, busy, 0, 0, 1_000 - busy]],
        };
        let ends = Ends {
            sender: vec![at(0, 0, 0, 0), at(1_000, 500, 0, 0), at(3_000, 520, 800, 40)],
            receiver: Vec::new(),
        };
        assert_eq!(ends.shares(Who::Sender, 1_000, 3_000), Some((1.0, 40.0)));
        assert_eq!(
            ends.shares(Who::Sender, 2_000, 3_000),
            None,
            "one reading is no share"
        );
        assert_eq!(ends.shares(Who::Receiver, 0, 3_000), None);
        let table = ends.table(0, 3_000);
        assert_eq!(table["sender"]["application_percent"], 17.3);
        assert_eq!(table["receiver"], Value::Null);
    }
}
