//! A set of numbers as sorted ranges that do not touch.
//!
//! Adding at the end or to a neighbour is constant time; adding in the middle moves what lies behind it.

use alloc::collections::VecDeque;

/// Numbers as ranges `start <= n < end`, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ranges {
    list: VecDeque<(u64, u64)>,
}

impl Ranges {
    /// No numbers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds `start <= n < end` and calls `fresh` for every part that was not there before, in order.
    #[inline]
    pub fn insert(&mut self, start: u64, end: u64, mut fresh: impl FnMut(u64, u64)) {
        if start >= end {
            return;
        }
        // The first range that touches or lies behind the new one; mostly the last one does.
        let first = match self.list.back() {
            Some(back) if back.1 < start => self.list.len(),
            Some(back) if back.0 <= start => self.list.len() - 1,
            _ => self.list.partition_point(|range| range.1 < start),
        };
        let (mut at, mut low, mut high) = (start, start, end);
        let mut behind = first;
        while let Some(&(s, e)) = self.list.get(behind)
            && s <= end
        {
            if at < s {
                fresh(at, s);
            }
            at = at.max(e);
            low = low.min(s);
            high = high.max(e);
            behind += 1;
        }
        if at < end {
            fresh(at, end);
        }
        match self.list.get_mut(first) {
            Some(range) if behind > first => {
                *range = (low, high);
                if behind > first + 1 {
                    self.list.drain(first + 1..behind);
                }
            }
            _ => self.list.insert(first, (low, high)),
        }
    }

    /// Forgets everything below `limit`.
    #[inline]
    pub fn forget_below(&mut self, limit: u64) {
        while let Some(range) = self.list.front_mut() {
            if range.0 >= limit {
                return;
            }
            if range.1 > limit {
                range.0 = limit;
                return;
            }
            self.list.pop_front();
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.list.clear();
    }

    /// The lowest range.
    #[inline]
    pub fn first(&self) -> Option<(u64, u64)> {
        self.list.front().copied()
    }

    /// The range that holds `n`.
    pub fn range_of(&self, n: u64) -> Option<(u64, u64)> {
        let index = self.list.partition_point(|range| range.1 <= n);
        self.list.get(index).copied().filter(|range| range.0 <= n)
    }

    /// Takes the lowest number out.
    #[inline]
    pub fn pop_lowest(&mut self) -> Option<u64> {
        let range = self.list.front_mut()?;
        let lowest = range.0;
        range.0 += 1;
        if range.0 == range.1 {
            self.list.pop_front();
        }
        Some(lowest)
    }

    /// Whether there is no number.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The ranges in order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.list.iter().copied()
    }
}
