//! The parts of a picture, aligned by their stamps.
//!
//! ```text
//!     first part of a stamp comes --> waiting --all parts are there--> shown whole
//!                                        |
//!                                        +--- wait is over ---> shown torn: what is missing stays as it was
//! ```
//!
//! Pictures are shown in the order of their stamps. A part that comes when its picture was shown is late. With a
//! wait of half the time of a picture this is a display that does not align: it shows what it has.
//!
//! Order of calls: [`handle_part`](Joiner::handle_part) or a time passes, then [`poll`](Joiner::poll) until `None`,
//! then sleep until [`next_wakeup`](Joiner::next_wakeup).

use crate::units::{PicoDuration, PicoTime};
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

/// Pictures that wait for parts at once; beyond, the oldest is shown as it is.
pub const MAX_WAITING: usize = 64;
/// A stamp this far from the last, in ticks of 90 kHz (10 s), begins anew.
const JUMP: u64 = 900_000;

/// A picture to show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// RTP time stamp.
    pub timestamp: u32,
    /// Whether each part has come.
    pub parts: Vec<bool>,
    /// From the part that was whole first to the one that was last, of those that came.
    pub spread: PicoDuration,
}

impl Shown {
    /// Whether a part is missing.
    pub fn is_torn(&self) -> bool {
        self.parts.contains(&false)
    }
}

/// What was shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct JoinCounts {
    /// Pictures with all parts of one stamp.
    pub whole: u64,
    /// Pictures with parts of different stamps.
    pub torn: u64,
    /// Parts that came when their picture had been shown.
    pub late_parts: u64,
    /// Parts that came again.
    pub repeated_parts: u64,
    /// Stamps that jumped.
    pub jumps: u64,
}

struct Waiting {
    timestamp: u32,
    came_at: Vec<Option<PicoTime>>,
    deadline: PicoTime,
}

/// Aligns parts.
pub struct Joiner {
    parts: usize,
    wait: PicoDuration,
    /// By unwrapped stamp.
    waiting: BTreeMap<u64, Waiting>,
    /// The newest unwrapped stamp that came, and the newest that was shown.
    newest: Option<u64>,
    shown: Option<u64>,
    counts: JoinCounts,
}

impl Joiner {
    /// Pictures of `parts` parts (1 at least), each shown at most `wait` after its first part.
    pub fn new(parts: usize, wait: PicoDuration) -> Self {
        Joiner {
            parts: parts.max(1),
            wait,
            waiting: BTreeMap::new(),
            newest: None,
            shown: None,
            counts: JoinCounts::default(),
        }
    }

    /// What was shown so far.
    pub fn counts(&self) -> JoinCounts {
        self.counts
    }

    /// Takes a whole part; `false` when it is late or came again, and is not needed.
    pub fn handle_part(&mut self, now: PicoTime, part: usize, timestamp: u32) -> bool {
        if part >= self.parts {
            return false;
        }
        let stamp = self.unwrapped(timestamp);
        if self.shown.is_some_and(|shown| stamp <= shown) {
            self.counts.late_parts += 1;
            return false;
        }
        let (parts, deadline) = (self.parts, now + self.wait);
        let waiting = self.waiting.entry(stamp).or_insert_with(|| Waiting {
            timestamp,
            came_at: vec![None; parts],
            deadline,
        });
        let slot = &mut waiting.came_at[part];
        if slot.is_some() {
            self.counts.repeated_parts += 1;
            return false;
        }
        *slot = Some(now);
        true
    }

    /// The next picture to show at `now`.
    pub fn poll(&mut self, now: PicoTime) -> Option<Shown> {
        let (&stamp, first) = self.waiting.first_key_value()?;
        let whole = first.came_at.iter().all(Option::is_some);
        if !whole && now < first.deadline && self.waiting.len() <= MAX_WAITING {
            return None;
        }
        let picture = self.waiting.remove(&stamp)?;
        self.shown = Some(stamp);
        let times = || picture.came_at.iter().flatten();
        let spread = match (times().min(), times().max()) {
            (Some(&first), Some(&last)) => last - first,
            _ => PicoDuration::ZERO,
        };
        if whole {
            self.counts.whole += 1;
        } else {
            self.counts.torn += 1;
        }
        Some(Shown {
            timestamp: picture.timestamp,
            parts: picture.came_at.iter().map(Option::is_some).collect(),
            spread,
        })
    }

    /// When the oldest picture is shown at the latest.
    pub fn next_wakeup(&self) -> Option<PicoTime> {
        self.waiting.first_key_value().map(|(_, w)| w.deadline)
    }

    /// The stamp without its wrap at 2^32, by the nearest to the newest one; a jump forgets all.
    fn unwrapped(&mut self, timestamp: u32) -> u64 {
        let Some(newest) = self.newest else {
            let stamp = (1 << 32) + u64::from(timestamp);
            self.newest = Some(stamp);
            return stamp;
        };
        // The low 32 bits are the wrapped stamp by definition.
        let ahead = timestamp
            .wrapping_sub((newest & 0xffff_ffff) as u32)
            .cast_signed();
        let stamp = newest.saturating_add_signed(i64::from(ahead));
        if newest.abs_diff(stamp) > JUMP {
            self.counts.jumps += 1;
            self.waiting.clear();
            // Above everything that was: what is shown must not look older.
            let stamp = ((newest >> 32) + 2) << 32 | u64::from(timestamp);
            (self.newest, self.shown) = (Some(stamp), None);
            return stamp;
        }
        self.newest = Some(newest.max(stamp));
        stamp
    }
}
