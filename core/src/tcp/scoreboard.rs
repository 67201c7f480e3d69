//! What the sender knows of every segment between the first unacknowledged one and the next to be sent.
//!
//! ```text
//!      una                                   nxt
//!   ----|--S--S--L--R--S--S--.--.--.--.--.----|----      S sacked, L lost, R lost and sent again
//!
//!   in flight = (nxt - una) - sacked - lost + sent again
//! ```
//!
//! Segments are numbered; all but the last of a finite source are full. As in Linux, a segment that is
//! lost stays counted as lost while its retransmission is on the way, and is taken out when it is SACKed
//! or acknowledged.

use super::ranges::Ranges;
use alloc::collections::VecDeque;

const SACKED: u8 = 1;
const LOST: u8 = 2;
const RESENT: u8 = 4;

#[derive(Debug, Clone, Copy)]
struct Entry {
    /// Number of its latest transmission.
    transmission: u64,
    flags: u8,
}

/// A transmission in order, for finding what was lost.
#[derive(Debug, Clone, Copy)]
struct Sent {
    segment: u64,
    transmission: u64,
    /// The next segment to be sent when it was sent again.
    nxt: u64,
}

/// What an ACK moved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Advance {
    /// Segments acknowledged cumulatively.
    pub segments: u32,
    /// Those of them that no SACK had told before.
    pub fresh: u32,
}

/// The state of every segment on the way.
#[derive(Debug, Clone, Default)]
pub struct Scoreboard {
    una: u64,
    nxt: u64,
    entries: VecDeque<Entry>,
    sacked: Ranges,
    /// Lost segments that are to be sent again.
    pending: Ranges,
    /// The segment after the highest that was SACKed.
    high_sacked: u64,
    /// Everything below it was looked at by [`mark_below`](Self::mark_below).
    marked_to: u64,
    sacked_out: u32,
    lost_out: u32,
    resent_out: u32,
    transmissions: u64,
    /// The latest transmission that arrived.
    arrived: u64,
    /// All transmissions for RACK, retransmissions alone for FACK.
    order: VecDeque<Sent>,
}

impl Scoreboard {
    /// First segment that is not acknowledged.
    #[inline]
    pub fn una(&self) -> u64 {
        self.una
    }

    /// First segment that was never sent.
    #[inline]
    pub fn nxt(&self) -> u64 {
        self.nxt
    }

    /// Segments between the two.
    #[inline]
    pub fn outstanding(&self) -> u64 {
        self.nxt - self.una
    }

    /// Segments that are taken to be on the way.
    #[inline]
    pub fn in_flight(&self) -> u32 {
        let out = self.entries.len() as u32 + self.resent_out;
        out.saturating_sub(self.sacked_out + self.lost_out)
    }

    /// Segments SACKed above `una`.
    #[inline]
    pub fn sacked_out(&self) -> u32 {
        self.sacked_out
    }

    /// Segments lost, sent again or not.
    #[inline]
    pub fn lost_out(&self) -> u32 {
        self.lost_out
    }

    /// Lost segments sent again that have not arrived.
    #[inline]
    pub fn resent_out(&self) -> u32 {
        self.resent_out
    }

    /// Segments from `una` to the highest SACKed one (Linux `fackets_out`).
    #[inline]
    pub fn forward(&self) -> u64 {
        self.high_sacked.saturating_sub(self.una)
    }

    fn entry(&mut self, segment: u64) -> Option<&mut Entry> {
        let index = usize::try_from(segment.checked_sub(self.una)?).ok()?;
        self.entries.get_mut(index)
    }

    /// Sends the next segment for the first time. `remember` keeps its place in the order (RACK).
    #[inline]
    pub fn send_next(&mut self, remember: bool) -> u64 {
        let segment = self.nxt;
        self.transmissions += 1;
        self.entries.push_back(Entry {
            transmission: self.transmissions,
            flags: 0,
        });
        self.nxt += 1;
        if remember {
            self.order.push_back(Sent {
                segment,
                transmission: self.transmissions,
                nxt: self.nxt,
            });
        }
        segment
    }

    /// Whether a segment was sent once.
    pub fn is_first_transmission(&mut self, segment: u64) -> bool {
        self.entry(segment).is_some_and(|entry| entry.flags == 0)
    }

    /// The host did not take the segment just sent for the first time.
    pub fn take_back(&mut self) {
        if self.entries.pop_back().is_some() {
            self.nxt -= 1;
            if self.order.back().is_some_and(|sent| sent.segment == self.nxt) {
                self.order.pop_back();
            }
        }
    }

    /// The host did not take a segment sent again: it is still to be sent.
    pub fn take_back_resent(&mut self, segment: u64) {
        if let Some(entry) = self.entry(segment)
            && entry.flags & RESENT != 0
        {
            entry.flags &= !RESENT;
            self.resent_out -= 1;
            self.pending.insert(segment, segment + 1, |_, _| {});
            self.order.pop_back();
        }
    }

    /// The lowest segment that is to be sent again; it counts as sent.
    #[inline]
    pub fn resend(&mut self) -> Option<u64> {
        loop {
            let segment = self.pending.pop_lowest()?;
            let transmission = self.transmissions + 1;
            let nxt = self.nxt;
            // What was acknowledged or SACKed meanwhile is passed over.
            if let Some(entry) = self.entry(segment)
                && entry.flags == LOST
            {
                entry.flags |= RESENT;
                entry.transmission = transmission;
                self.transmissions = transmission;
                self.resent_out += 1;
                self.order.push_back(Sent {
                    segment,
                    transmission,
                    nxt,
                });
                return Some(segment);
            }
        }
    }

    /// Whether something is to be sent again.
    #[inline]
    pub fn has_pending(&mut self) -> bool {
        self.pending.forget_below(self.una);
        !self.pending.is_empty()
    }

    /// Everything below `segment` is acknowledged.
    #[inline]
    pub fn acknowledge(&mut self, segment: u64) -> Advance {
        let mut advance = Advance::default();
        while self.una < segment {
            let Some(entry) = self.entries.pop_front() else {
                break;
            };
            self.una += 1;
            advance.segments += 1;
            self.arrived = self.arrived.max(entry.transmission);
            if entry.flags & SACKED != 0 {
                self.sacked_out -= 1;
                continue;
            }
            advance.fresh += 1;
            self.lost_out -= u32::from(entry.flags & LOST != 0);
            self.resent_out -= u32::from(entry.flags & RESENT != 0);
        }
        self.sacked.forget_below(self.una);
        self.high_sacked = self.high_sacked.max(self.una);
        advance
    }

    /// Segments from `start` to `end` have arrived; returns how many of them are news.
    #[inline]
    pub fn sack(&mut self, start: u64, end: u64) -> u32 {
        let (start, end) = (start.max(self.una), end.min(self.nxt));
        let mut news = 0;
        let (entries, una) = (&mut self.entries, self.una);
        let (sacked_out, lost_out, resent_out) =
            (&mut self.sacked_out, &mut self.lost_out, &mut self.resent_out);
        let arrived = &mut self.arrived;
        self.sacked.insert(start, end, |from, to| {
            for segment in from..to {
                let Some(entry) = entries.get_mut((segment - una) as usize) else {
                    break;
                };
                *lost_out -= u32::from(entry.flags & LOST != 0);
                *resent_out -= u32::from(entry.flags & RESENT != 0);
                *sacked_out += 1;
                *arrived = (*arrived).max(entry.transmission);
                entry.flags = SACKED;
                news += 1;
            }
        });
        self.high_sacked = self.high_sacked.max(end);
        news
    }

    /// Takes a segment for lost: for the first time, or its retransmission.
    fn lose(&mut self, segment: u64) -> bool {
        let Some(entry) = self.entry(segment) else {
            return false;
        };
        if entry.flags & SACKED != 0 || entry.flags == LOST {
            return false;
        }
        let (was_lost, was_resent) = (entry.flags & LOST != 0, entry.flags & RESENT != 0);
        entry.flags = LOST;
        self.lost_out += u32::from(!was_lost);
        self.resent_out -= u32::from(was_resent);
        self.pending.insert(segment, segment + 1, |_, _| {});
        true
    }

    /// FACK: everything below `limit` that has not arrived is lost. Returns how many are lost anew.
    pub fn mark_below(&mut self, limit: u64) -> u32 {
        let mut lost = 0;
        for segment in self.marked_to.max(self.una)..limit.min(self.nxt) {
            // One that was sent again has its own rule.
            if self.entry(segment).is_some_and(|entry| entry.flags == 0) {
                lost += u32::from(self.lose(segment));
            }
        }
        self.marked_to = self.marked_to.max(limit);
        lost
    }

    /// FACK: a retransmission is lost when a segment first sent after it has arrived.
    pub fn mark_resent(&mut self) -> u32 {
        let mut lost = 0;
        while let Some(sent) = self.order.front().copied()
            && (sent.nxt < self.high_sacked || sent.segment < self.una)
        {
            self.order.pop_front();
            lost += u32::from(self.lose_transmission(sent));
        }
        lost
    }

    /// RACK: whatever was sent before something that has arrived is lost.
    pub fn mark_older(&mut self) -> u32 {
        let mut lost = 0;
        while let Some(sent) = self.order.front().copied()
            && sent.transmission <= self.arrived
        {
            self.order.pop_front();
            lost += u32::from(self.lose_transmission(sent));
        }
        lost
    }

    /// Takes a transmission for lost, unless it has arrived or been repeated.
    fn lose_transmission(&mut self, sent: Sent) -> bool {
        let latest = self
            .entry(sent.segment)
            .is_some_and(|entry| entry.transmission == sent.transmission);
        latest && self.lose(sent.segment)
    }

    /// Everything that has not arrived is lost (after an RTO).
    pub fn lose_all(&mut self) {
        self.order.clear();
        self.pending.clear();
        let mut lost = 0;
        let mut first = None;
        for (segment, entry) in (self.una..).zip(&mut self.entries) {
            if entry.flags & SACKED == 0 {
                entry.flags = LOST;
                lost += 1;
                first.get_or_insert(segment);
            } else if let Some(from) = first.take() {
                self.pending.insert(from, segment, |_, _| {});
            }
        }
        if let Some(from) = first {
            self.pending.insert(from, self.nxt, |_, _| {});
        }
        self.lost_out = lost;
        self.resent_out = 0;
        self.marked_to = self.nxt;
    }

    /// Forgets what the order says of segments that are acknowledged, when losses are not looked for.
    #[inline]
    pub fn trim_order(&mut self) {
        while self.order.front().is_some_and(|sent| sent.segment < self.una) {
            self.order.pop_front();
        }
    }
}
