//! How many of a lane's datagrams have come, of those that can no longer be on their way.
//!
//! ```text
//!   numbers:  ... settled | block | block | block |  open  ->
//!             end ^         each: the numbers that became the highest within 5 ms, and how many of them are here
//!   a block settles when the lane's spread of delay has passed since its time; at once on a lane that keeps its order
//! ```
//!
//! On a lane that reorders, the numbers just below the highest are late and not lost: counted as lost they would make
//! a lane with jitter look like one that loses, and the more so the higher its rate. What comes later than that still counts as arrived, and
//! so does what was missing before the first datagram came behind a later one.

use alloc::collections::VecDeque;

/// Time of a block, ns.
const BLOCK_NS: i64 = 5_000_000;
/// Most blocks: beyond so many the oldest settles early.
pub const BLOCKS_MAX: usize = 1 << 10;

#[derive(Debug, Clone, Copy)]
struct Block {
    since_ns: i64,
    /// The number after its last.
    end: u64,
    arrived: u64,
}

/// What has come on a lane.
#[derive(Debug, Clone, Default)]
pub struct Arrivals {
    /// The number after the highest.
    end: u64,
    settled_end: u64,
    settled: u64,
    blocks: VecDeque<Block>,
    /// Datagrams that arrived, whatever their number.
    pub total: u64,
    /// Whether one came behind a later one.
    pub reorders: bool,
}

impl Arrivals {
    /// A datagram has arrived.
    pub fn note(&mut self, now_ns: i64, number: u64) {
        self.total += 1;
        if number >= self.end {
            self.end = number.saturating_add(1);
            match self.blocks.back_mut() {
                Some(last) if now_ns < last.since_ns + BLOCK_NS => {
                    (last.end, last.arrived) = (self.end, last.arrived + 1);
                }
                _ => self.blocks.push_back(Block {
                    since_ns: now_ns,
                    end: self.end,
                    arrived: 1,
                }),
            }
            if self.blocks.len() > BLOCKS_MAX {
                self.settle_first();
            }
            return;
        }
        self.reorders = true;
        let place = self.blocks.partition_point(|block| block.end <= number);
        match self.blocks.get_mut(place).filter(|_| number >= self.settled_end) {
            Some(block) => block.arrived += 1,
            None => self.settled += 1,
        }
    }

    fn settle_first(&mut self) {
        if let Some(block) = self.blocks.pop_front() {
            self.settled_end = block.end;
            self.settled += block.arrived;
        }
    }

    /// Of the numbers below the first figure so many have come as the second says, when delays are apart by `spread_ns`.
    pub fn settled(&mut self, now_ns: i64, spread_ns: i64) -> (u64, u64) {
        while let Some(first) = self.blocks.front()
            && (!self.reorders || now_ns >= first.since_ns.saturating_add(BLOCK_NS).saturating_add(spread_ns))
        {
            self.settle_first();
        }
        (self.settled_end, self.settled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    const MS: i64 = 1_000_000;

    #[test]
    fn a_lane_that_keeps_its_order_is_counted_at_once() {
        let mut lane = Arrivals::default();
        for number in [0, 1, 2, 5] {
            lane.note(MS, number);
        }
        assert_eq!(lane.settled(MS, 0), (6, 4));
    }

    proptest! {
        /// A datagram each 100 us, each late by up to the spread, one of ten lost: never more missing than are lost, and at the end just those.
        #[test]
        fn what_is_late_is_not_lost(delays_us in prop::collection::vec(0..30_000i64, 2_000)) {
            let lost = |n: u64| n % 10 == 7;
            let sent = delays_us.iter().zip(0u64..).filter(|(_, n)| !lost(*n));
            let mut coming: Vec<(i64, u64)> = sent.map(|(d, n)| ((n as i64 * 100 + d) * 1_000, n)).collect();
            coming.sort_unstable();
            let mut lane = Arrivals { reorders: true, ..Arrivals::default() };
            let mut last = 0;
            for (at_ns, number) in coming {
                lane.note(at_ns, number);
                let (end, arrived) = lane.settled(at_ns, 30 * MS);
                prop_assert!(end >= last && arrived <= end);
                let gone = (0..end).filter(|n| lost(*n)).count() as u64;
                prop_assert_eq!(end - arrived, gone, "of {}", end);
                last = end;
            }
            prop_assert_eq!(lane.settled(1_000 * MS, 30 * MS), (lane.end, lane.total));
            prop_assert!(lane.blocks.len() <= 8);
        }
    }

    #[test]
    fn memory_is_bounded() {
        let mut lane = Arrivals::default();
        lane.note(0, 1);
        lane.note(0, 0);
        for n in 0..10_000 {
            lane.note(n * BLOCK_NS, n as u64 + 2);
            lane.settled(n * BLOCK_NS, i64::MAX);
        }
        assert_eq!(lane.blocks.len(), BLOCKS_MAX);
    }
}
