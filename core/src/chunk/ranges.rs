//! Sets of bytes of one file as disjoint half-open ranges `[start, end)`.
//!
//! Normal form: sorted by start, no empty range, no two ranges that touch. So two sets with the same bytes
//! are equal, and the number of ranges is the least possible. Every operation on one range costs
//! O(log n + ranges removed) with n ranges held.

use alloc::collections::BTreeMap;
use core::fmt;
use core::ops::Range;

/// A range that ends before it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeError {
    /// Offset of the first byte.
    pub start: u64,
    /// Offset after the last byte; it is less than `start`.
    pub end: u64,
}

impl fmt::Display for RangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "range {}..{} ends before it starts", self.start, self.end)
    }
}

impl core::error::Error for RangeError {}

/// A set of byte offsets, kept as disjoint ranges in normal form.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct RangeSet {
    /// start -> end
    map: BTreeMap<u64, u64>,
    bytes: u64,
}

impl RangeSet {
    /// The empty set.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            map: BTreeMap::new(),
            bytes: 0,
        }
    }

    /// The set of one range; an empty or inverted range gives the empty set.
    #[must_use]
    pub fn from_range(range: Range<u64>) -> Self {
        let mut set = Self::new();
        set.insert(range);
        set
    }

    /// The set of all of `ranges`, in any order, overlapping or not.
    ///
    /// # Errors
    /// The first range that ends before it starts (an empty one is allowed).
    pub fn try_from_ranges(ranges: impl IntoIterator<Item = Range<u64>>) -> Result<Self, RangeError> {
        let mut set = Self::new();
        for r in ranges {
            if r.end < r.start {
                return Err(RangeError {
                    start: r.start,
                    end: r.end,
                });
            }
            set.insert(r);
        }
        Ok(set)
    }

    /// Bytes in the set.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Number of disjoint ranges.
    #[must_use]
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Whether no byte is in the set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// The ranges, lowest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Range<u64>> + '_ {
        self.map.iter().map(|(&s, &e)| s..e)
    }

    /// The lowest range.
    #[must_use]
    pub fn first(&self) -> Option<Range<u64>> {
        self.iter().next()
    }

    /// Whether every byte of `range` is in the set (true for an empty range).
    #[must_use]
    pub fn contains(&self, range: Range<u64>) -> bool {
        range.start >= range.end
            || self
                .map
                .range(..=range.start)
                .next_back()
                .is_some_and(|(_, &e)| e >= range.end)
    }

    /// The parts of the set inside `range`, lowest first.
    pub fn overlaps(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let from = self
            .map
            .range(..range.start)
            .next_back()
            .map_or(range.start, |(&s, _)| s);
        let upto = range.end.max(from);
        self.map
            .range(from..upto)
            .map(move |(&s, &e)| s.max(range.start)..e.min(range.end))
            .filter(|r| r.start < r.end)
    }

    /// Adds `range`; returns how many bytes were not in the set before. An inverted range adds nothing.
    pub fn insert(&mut self, range: Range<u64>) -> u64 {
        let Range { mut start, mut end } = range;
        if start >= end {
            return 0;
        }
        let before = self.bytes;
        // One range may begin at or before `start` and touch it.
        if let Some((&s, &e)) = self.map.range(..=start).next_back() {
            if e >= end {
                return 0;
            }
            if e >= start {
                start = s;
                self.map.remove(&s);
                self.bytes -= e - s;
            }
        }
        while let Some((&s, &e)) = self.map.range(start..=end).next() {
            end = end.max(e);
            self.map.remove(&s);
            self.bytes -= e - s;
        }
        self.map.insert(start, end);
        self.bytes += end - start;
        self.bytes - before
    }

    /// Removes `range`; returns how many bytes were in the set before.
    pub fn remove(&mut self, range: Range<u64>) -> u64 {
        let Range { start, end } = range;
        if start >= end {
            return 0;
        }
        let before = self.bytes;
        if let Some((&s, &e)) = self.map.range(..start).next_back()
            && e > start
        {
            self.map.insert(s, start);
            self.bytes -= e - start;
            if e > end {
                self.map.insert(end, e);
                self.bytes += e - end;
            }
        }
        while let Some((&s, &e)) = self.map.range(start..end).next() {
            self.map.remove(&s);
            self.bytes -= e - s;
            if e > end {
                self.map.insert(end, e);
                self.bytes += e - end;
            }
        }
        before - self.bytes
    }

    /// Adds every range of `other`.
    pub fn union_with(&mut self, other: &Self) {
        for r in other.iter() {
            self.insert(r);
        }
    }

    /// Removes every range of `other`.
    pub fn subtract(&mut self, other: &Self) {
        for r in other.iter() {
            self.remove(r);
        }
    }

    /// What of a file of `len` bytes is not in the set.
    #[must_use]
    pub fn missing(&self, len: u64) -> Self {
        let mut out = Self::from_range(0..len);
        out.subtract(self);
        out
    }

    /// The set with every range widened to multiples of `grain` bytes, but not beyond `len`.
    /// `grain` must be a power of two; bytes at or beyond `len` are dropped.
    #[must_use]
    pub fn widened(&self, grain: u64, len: u64) -> Self {
        let mut out = Self::new();
        for r in self.iter() {
            out.insert(widen(r, grain, len));
        }
        out
    }
}

/// `range` widened outwards to multiples of `grain` (a power of two), cut at `len`.
pub(super) fn widen(range: Range<u64>, grain: u64, len: u64) -> Range<u64> {
    let mask = grain.wrapping_sub(1);
    let start = range.start & !mask;
    let end = range.end.checked_add(mask).map_or(len, |e| (e & !mask).min(len));
    start..end
}

impl fmt::Debug for RangeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    fn model(set: &RangeSet, size: usize) -> Vec<bool> {
        let mut v = alloc::vec![false; size];
        for r in set.iter() {
            for x in &mut v[r.start as usize..r.end as usize] {
                *x = true;
            }
        }
        v
    }

    #[test]
    fn merges_and_splits() {
        let mut s = RangeSet::new();
        assert_eq!(s.insert(10..20), 10);
        assert_eq!(s.insert(30..40), 10);
        assert_eq!(s.insert(20..30), 10);
        assert_eq!((s.first(), s.len()), (Some(10..40), 1));
        assert_eq!(s.remove(15..17), 2);
        assert_eq!(s.iter().collect::<Vec<_>>(), [10..15, 17..40]);
        assert_eq!(s.missing(50).iter().collect::<Vec<_>>(), [0..10, 15..17, 40..50]);
        assert_eq!(s.overlaps(12..18).collect::<Vec<_>>(), [12..15, 17..18]);
        assert!(s.contains(17..40) && !s.contains(14..18));
    }

    #[test]
    fn refuses_inverted() {
        let inverted = Range { start: 5, end: 4 };
        let e = RangeSet::try_from_ranges([0..1, inverted]).expect_err("inverted");
        assert_eq!(alloc::format!("{e}"), "range 5..4 ends before it starts");
    }

    #[test]
    fn widen_stays_in_the_file() {
        assert_eq!(widen(5000..5001, 4096, 6000), 4096..6000);
        assert_eq!(widen(0..1, 4096, u64::MAX), 0..4096);
        assert_eq!(
            widen(u64::MAX - 2..u64::MAX - 1, 4096, u64::MAX),
            u64::MAX - 4095..u64::MAX
        );
    }

    proptest! {
        /// Against a vector of booleans: same bytes, normal form, exact return values.
        #[test]
        fn like_a_bitmap(ops in prop::collection::vec((any::<bool>(), 0u64..64, 0u64..64), 1..60)) {
            let mut set = RangeSet::new();
            let mut bits = alloc::vec![false; 64];
            for (add, a, b) in ops {
                let (s, e) = (a.min(b), a.max(b));
                let there = bits[s as usize..e as usize].iter().filter(|x| **x).count() as u64;
                let moved = if add { set.insert(s..e) } else { set.remove(s..e) };
                prop_assert_eq!(moved, if add { e - s - there } else { there });
                bits[s as usize..e as usize].fill(add);
                prop_assert_eq!(&model(&set, 64), &bits);
                prop_assert_eq!(set.bytes(), bits.iter().filter(|x| **x).count() as u64);
                let v: Vec<_> = set.iter().collect();
                prop_assert!(v.iter().all(|r| r.start < r.end));
                prop_assert!(v.windows(2).all(|w| w[0].end < w[1].start));
                let inside: u64 = set.overlaps(a..b).map(|r| r.end - r.start).sum();
                let want = if a < b { bits[a as usize..b as usize].iter().filter(|x| **x).count() } else { 0 };
                prop_assert_eq!(inside, want as u64);
                prop_assert_eq!(set.contains(s..e), bits[s as usize..e as usize].iter().all(|x| *x));
            }
        }
    }
}
