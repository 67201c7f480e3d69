//! Which sequence numbers were seen, and in which order: enough of the past to tell copies and reordering.

use alloc::{collections::VecDeque, vec, vec::Vec};

/// Sequence numbers below the highest one for which it is known whether they came.
pub const SEQUENCE_WINDOW: u64 = 1 << 16;
/// Arrivals that are looked back on for the extent of reordering.
pub const EXTENT_WINDOW: usize = 1 << 10;

/// What is known of an arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arrival {
    /// The first of its number.
    New,
    /// Its number was there before.
    Copy,
    /// Too far behind the highest number to know.
    Old,
}

/// The numbers that came.
#[derive(Debug, Clone, Default)]
pub(super) struct Seen {
    /// Bits of the last [`SEQUENCE_WINDOW`] numbers, by number modulo that.
    bits: Vec<u64>,
    /// One more than the highest number.
    end: u64,
}

impl Seen {
    pub fn end(&self) -> u64 {
        self.end
    }

    /// The number whose last 32 bits are given that is nearest to the highest one.
    pub fn unwrap(&self, low: u32) -> u64 {
        let ahead = low.wrapping_sub(self.end as u32);
        // The upper half of the circle is behind.
        if ahead < 1 << 31 {
            self.end + u64::from(ahead)
        } else {
            self.end.saturating_sub(u64::from(ahead.wrapping_neg()))
        }
    }

    pub fn arrive(&mut self, number: u64) -> Arrival {
        if self.bits.is_empty() {
            self.bits = vec![0; (SEQUENCE_WINDOW / 64) as usize];
        }
        if number.saturating_add(SEQUENCE_WINDOW) < self.end {
            return Arrival::Old;
        }
        if number >= self.end {
            // Numbers that enter the window have not come yet.
            let fresh = (number - self.end + 1).min(SEQUENCE_WINDOW);
            for n in (number + 1 - fresh)..=number {
                self.set(n, false);
            }
            self.end = number + 1;
        }
        if self.set(number, true) {
            Arrival::Copy
        } else {
            Arrival::New
        }
    }

    /// Sets a number's bit and gives what it was.
    fn set(&mut self, number: u64, to: bool) -> bool {
        let place = (number % SEQUENCE_WINDOW) as usize;
        let Some(word) = self.bits.get_mut(place / 64) else {
            return false;
        };
        let bit = 1 << (place % 64);
        let was = *word & bit != 0;
        *word = if to { *word | bit } else { *word & !bit };
        was
    }
}

/// The last arrivals' numbers, oldest first.
#[derive(Debug, Clone, Default)]
pub(super) struct Order {
    last: VecDeque<u64>,
}

impl Order {
    /// Remembers an arrival, and for one that comes late says how late, in arrivals: since the first that
    /// overtook it, and how many right before it all did (RFC 4737, sections 4.2.2 and 5.4).
    pub fn arrive(&mut self, number: u64, late: bool) -> Option<(u64, u64)> {
        let lateness = late.then(|| {
            let extent = self.last.iter().position(|&n| n > number);
            let extent = extent.map_or(0, |place| self.last.len() - place);
            let run = self.last.iter().rev().take_while(|&&n| n > number).count();
            (extent as u64, run as u64)
        });
        if self.last.len() == EXTENT_WINDOW {
            self.last.pop_front();
        }
        self.last.push_back(number);
        lateness
    }
}
