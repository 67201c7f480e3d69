//! The play-out buffer: packets by number until their turn and their time.
//!
//! ```text
//!   ... delivered | next |  gap  | held | held | gap | held ...
//!                    ^ missing: waited for, asked for, or given up
//! ```
//!
//! A number is given up when the verdict on it is [`Verdict::Lost`], when what it holds up has reached its play-out time (deskew
//! without repair) or has waited for `hold_max`, and when the buffer is full. With repair what may still be on its way is waited for: a
//! packet that a slow machine delivers late is late, but not lost to the TCP above.

use super::{
    config::{LatePolicy, Mode},
    seen::{Novelty, SEEN_PACKETS, Seen},
    status::InCounters,
};
use crate::units::PicoTime;
use alloc::collections::{BTreeMap, VecDeque};

/// Most packets held.
pub const HELD_PACKETS_MAX: usize = 1 << 16;

/// A packet that leaves the tunnel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery<T> {
    /// Its number.
    pub number: u64,
    /// When, on this end's clock: in `deskew` its exact play-out time, which the poll may follow late.
    pub at: PicoTime,
    /// Its stamp, ns of the sender's clock.
    pub stamp_ns: u64,
    /// Whether it is out of order: a late one, by [`LatePolicy::Deliver`].
    pub late: bool,
    /// It.
    pub packet: T,
}

/// What is known of a missing number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It may still be on its way.
    Unknown,
    /// It is lost on its lane; it may come again until then, ns.
    Wait(i64),
    /// It will not come.
    Lost,
}

/// A packet that arrived.
#[derive(Debug, Clone)]
pub struct Arrived<T> {
    pub number: u64,
    pub stamp_ns: u64,
    pub len_bytes: u64,
    pub arrived_ns: i64,
    /// Its play-out time on our clock.
    pub due_ns: i64,
    pub packet: T,
}

/// Bounds and rules of a buffer.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    pub mode: Mode,
    pub repair: bool,
    pub late: LatePolicy,
    pub hold_ns: i64,
    pub margin_ns: i64,
    pub hold_bytes: u64,
}

/// The buffer.
#[derive(Debug, Clone)]
pub struct PlayOut<T> {
    rules: Rules,
    held: BTreeMap<u64, Arrived<T>>,
    held_bytes: u64,
    late: VecDeque<Arrived<T>>,
    next: u64,
    last_ns: i64,
    seen: Seen,
    wakeup_ns: Option<i64>,
}

fn time(ns: i64) -> PicoTime {
    PicoTime::from_ns(u64::try_from(ns).unwrap_or(0))
}

impl<T> PlayOut<T> {
    pub fn new(rules: Rules) -> Self {
        PlayOut {
            rules,
            held: BTreeMap::new(),
            held_bytes: 0,
            late: VecDeque::new(),
            next: 0,
            last_ns: i64::MIN,
            seen: Seen::new(SEEN_PACKETS),
            wakeup_ns: None,
        }
    }

    /// The number whose turn it is.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Whether a number has arrived.
    pub fn has(&self, number: u64) -> bool {
        self.seen.check(number) != Novelty::New
    }

    /// Takes a packet.
    pub fn take(&mut self, packet: Arrived<T>, counters: &mut InCounters) {
        match self.seen.note(packet.number) {
            Novelty::New => {}
            Novelty::Repeat => {
                counters.duplicates += 1;
                return;
            }
            Novelty::TooOld => {
                counters.late_dropped += 1;
                return;
            }
        }
        if packet.number < self.next {
            let old = packet.arrived_ns.saturating_sub(packet.due_ns) > self.rules.hold_ns;
            if self.rules.late == LatePolicy::Drop || old || self.late.len() >= HELD_PACKETS_MAX {
                counters.late_dropped += 1;
            } else {
                self.late.push_back(packet);
            }
            return;
        }
        if self.rules.mode == Mode::Deskew && packet.arrived_ns > packet.due_ns {
            counters.behind += 1;
        }
        self.held_bytes += packet.len_bytes;
        self.held.insert(packet.number, packet);
        counters.held_max = counters.held_max.max(self.held.len() as u64);
        counters.held_bytes_max = counters.held_bytes_max.max(self.held_bytes);
    }

    /// The next packet that leaves at `now_ns`, asked with what is known of missing numbers.
    pub fn poll(
        &mut self,
        now_ns: i64,
        verdict: impl Fn(u64) -> Verdict,
        counters: &mut InCounters,
    ) -> Option<Delivery<T>> {
        if let Some(late) = self.late.pop_front() {
            counters.late_delivered += 1;
            return Some(deliver(late, now_ns, true));
        }
        self.wakeup_ns = None;
        loop {
            let number = *self.held.first_key_value()?.0;
            let full = self.held.len() > HELD_PACKETS_MAX || self.held_bytes > self.rules.hold_bytes;
            if number.saturating_sub(self.next) > SEEN_PACKETS {
                // No number that far below can still be told from a repeat.
                let skipped = number - SEEN_PACKETS - self.next;
                self.give_up(skipped, counters);
            }
            let first = self.held.get(&number)?;
            if number > self.next && !full {
                match self.patience(first, verdict(self.next)) {
                    Some(until) if until > now_ns => {
                        self.wakeup_ns = Some(until);
                        return None;
                    }
                    _ => self.give_up(1, counters),
                }
                continue;
            }
            let at = match self.rules.mode {
                Mode::Deskew => first.due_ns.max(self.last_ns),
                _ => first.arrived_ns.max(self.last_ns),
            };
            if at > now_ns && !full {
                self.wakeup_ns = Some(at);
                return None;
            }
            return self.release(number, if full { now_ns } else { at }, full, counters);
        }
    }

    /// Until when the number whose turn it is is waited for; `None`: no longer.
    fn patience(&self, held_up: &Arrived<T>, verdict: Verdict) -> Option<i64> {
        let rules = &self.rules;
        let last = held_up.arrived_ns.saturating_add(rules.hold_ns);
        let until = match (rules.mode, verdict) {
            (_, Verdict::Lost) => return None,
            (Mode::Deskew, _) if !rules.repair => held_up.due_ns,
            (_, Verdict::Wait(until)) => until,
            (_, Verdict::Unknown) => last,
        };
        // In deskew what waits for its play-out time is not held up by the gap.
        let last = last.max(held_up.due_ns.saturating_add(rules.margin_ns));
        Some(until.min(last))
    }

    fn give_up(&mut self, numbers: u64, counters: &mut InCounters) {
        self.next += numbers;
        counters.lost += numbers;
    }

    fn release(
        &mut self,
        number: u64,
        at: i64,
        full: bool,
        counters: &mut InCounters,
    ) -> Option<Delivery<T>> {
        let packet = self.held.remove(&number)?;
        self.held_bytes -= packet.len_bytes;
        counters.lost += number - self.next;
        counters.forced += u64::from(full);
        counters.delivered += 1;
        self.next = number + 1;
        self.last_ns = at;
        Some(deliver(packet, at, false))
    }

    /// When `poll` will have something to do; asked after it was `None`.
    pub fn next_wakeup(&self) -> Option<PicoTime> {
        self.wakeup_ns.map(time)
    }
}

fn deliver<T>(packet: Arrived<T>, at: i64, late: bool) -> Delivery<T> {
    Delivery {
        number: packet.number,
        at: time(at),
        stamp_ns: packet.stamp_ns,
        late,
        packet: packet.packet,
    }
}
