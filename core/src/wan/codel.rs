//! CoDel: frames are refused by how long they waited.
//!
//! ```text
//!            sojourn >= target for one interval             a frame is refused at drop_next,
//!   passing ------------------------------------> dropping  drop_next += interval / sqrt(count), count += 1
//!      ^------------------------------------------+
//!            sojourn < target, or no more than one largest frame waits
//! ```
//!
//! Entering again soon after leaving, the count goes on from where it had grown to. Judged when a frame is
//! about to be serialised, at that exact time. The square root is an integer's: `interval * 2^16 / isqrt(count *
//! 2^32)`, right to 2^-16.
//!
//! Source: RFC 8289, section 5 (the names are those of its pseudo-code).

use crate::units::{FrameBytes, PicoDuration, PicoTime};

/// The parameters of CoDel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CoDel {
    /// Sojourn that is accepted as standing queue.
    pub target: PicoDuration,
    /// How long it may be exceeded: a worst-case round trip.
    pub interval: PicoDuration,
    /// Mark instead of dropping.
    pub ecn: bool,
}

impl CoDel {
    /// What RFC 8289 recommends: 5 ms and 100 ms.
    pub const RFC_8289: CoDel = CoDel {
        target: PicoDuration::from_ms(5),
        interval: PicoDuration::from_ms(100),
        ecn: false,
    };
}

/// A frame taken from the head of the queue.
pub(super) struct Head<I> {
    pub item: I,
    pub sojourn: PicoDuration,
    /// Bytes that still wait behind it.
    pub left: FrameBytes,
}

/// The queue that CoDel takes from.
pub(super) trait Source {
    type Item;
    fn pop(&mut self) -> Option<Head<Self::Item>>;
    /// Marks and returns the frame, or drops it.
    fn refuse(&mut self, item: Self::Item) -> Option<Self::Item>;
}

/// The state of CoDel.
#[derive(Debug, Clone)]
pub(super) struct State {
    pub config: CoDel,
    first_above_time: Option<PicoTime>,
    drop_next: PicoTime,
    count: u64,
    last_count: u64,
    dropping: bool,
    max_packet: FrameBytes,
}

impl State {
    pub fn new(config: CoDel) -> Self {
        State {
            config,
            first_above_time: None,
            drop_next: PicoTime::ZERO,
            count: 0,
            last_count: 0,
            dropping: false,
            max_packet: FrameBytes::ZERO,
        }
    }

    /// Counts the size of an arriving frame: the largest is the queue that is always allowed.
    pub fn saw(&mut self, len: FrameBytes) {
        self.max_packet = self.max_packet.max(len);
    }

    /// A frame found the wire idle and waits no time.
    pub fn passed_idle(&mut self) {
        self.first_above_time = None;
        self.dropping = false;
    }

    /// The frame to be serialised at `now`, if one is left.
    pub fn dequeue<S: Source>(&mut self, now: PicoTime, source: &mut S) -> Option<S::Item> {
        let (mut item, mut ok_to_drop) = self.do_dequeue(now, source)?;
        if self.dropping {
            self.dropping = ok_to_drop;
            while self.dropping && now >= self.drop_next {
                self.count = self.count.saturating_add(1);
                if let Some(marked) = source.refuse(item) {
                    self.drop_next = self.control_law(self.drop_next);
                    return Some(marked);
                }
                (item, ok_to_drop) = self.do_dequeue(now, source)?;
                if ok_to_drop {
                    self.drop_next = self.control_law(self.drop_next);
                } else {
                    self.dropping = false;
                }
            }
            return Some(item);
        }
        if !ok_to_drop {
            return Some(item);
        }
        let recent = now - self.drop_next < self.config.interval.saturating_mul(16);
        let delta = self.count.saturating_sub(self.last_count);
        self.count = if delta > 1 && recent { delta } else { 1 };
        self.last_count = self.count;
        self.dropping = true;
        self.drop_next = self.control_law(now);
        match source.refuse(item) {
            Some(marked) => Some(marked),
            None => self.do_dequeue(now, source).map(|(item, _)| item),
        }
    }

    fn do_dequeue<S: Source>(&mut self, now: PicoTime, source: &mut S) -> Option<(S::Item, bool)> {
        let Some(head) = source.pop() else {
            self.first_above_time = None;
            return None;
        };
        if head.sojourn < self.config.target || head.left <= self.max_packet {
            self.first_above_time = None;
            return Some((head.item, false));
        }
        let first = *self.first_above_time.get_or_insert(now + self.config.interval);
        Some((head.item, now >= first))
    }

    fn control_law(&self, from: PicoTime) -> PicoTime {
        from + share(self.config.interval, self.count)
    }
}

/// `interval / sqrt(count)`.
fn share(interval: PicoDuration, count: u64) -> PicoDuration {
    let root = (u128::from(count.max(1)) << 32).isqrt();
    let ps = (u128::from(interval.as_ps()) << 16) / root;
    PicoDuration::from_ps(u64::try_from(ps).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_control_law_is_the_square_root() {
        let interval = PicoDuration::from_ms(100);
        for count in [1u64, 2, 3, 4, 100, 12_345, 1 << 40] {
            let exact = interval.as_ps() as f64 / (count as f64).sqrt();
            let ours = share(interval, count).as_ps() as f64;
            assert!((ours / exact - 1.0).abs() < 1e-4, "{count}: {ours} {exact}");
        }
        assert_eq!(share(interval, 4), PicoDuration::from_ms(50));
        assert_eq!(share(interval, 0), interval);
    }
}
