//! Which of many stages has the earliest event: a tournament over their next times.
//!
//! A complete binary tree in an array, leaves at `size + i`; every inner node holds the smaller
//! of its children as `(time, index)`, so that at one time the lower index goes first. Setting is
//! logarithmic, asking is constant.

/// Times in picoseconds; `u64::MAX` is never.
pub(super) struct Tourney {
    nodes: Vec<(u64, u32)>,
    size: usize,
}

impl Tourney {
    pub fn new(count: usize) -> Self {
        let size = count.max(1).next_power_of_two();
        let mut nodes = vec![(u64::MAX, u32::MAX); 2 * size];
        for (index, node) in (0u32..).zip(nodes.iter_mut().skip(size)) {
            node.1 = index;
        }
        let mut tourney = Self { nodes, size };
        for at in (1..size).rev() {
            tourney.decide(at);
        }
        tourney
    }

    fn decide(&mut self, at: usize) {
        self.nodes[at] = self.nodes[2 * at].min(self.nodes[2 * at + 1]);
    }

    /// Sets when `index` is next due.
    pub fn set(&mut self, index: usize, time: u64) {
        if index >= self.size {
            return;
        }
        let mut at = self.size + index;
        if self.nodes[at].0 == time {
            return;
        }
        self.nodes[at].0 = time;
        while at > 1 {
            at /= 2;
            self.decide(at);
        }
    }

    /// The earliest time and whose it is.
    pub fn first(&self) -> (u64, usize) {
        let (time, index) = self.nodes[1];
        (time, index as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn always_the_earliest_and_then_the_lowest() {
        for count in [1, 2, 3, 7, 64] {
            let mut tourney = Tourney::new(count);
            assert_eq!(tourney.first().0, u64::MAX);
            let mut times = vec![u64::MAX; count];
            let mut random = 1u64;
            for _ in 0..1000 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let index = (random >> 33) as usize % count;
                times[index] = (random >> 40) % 50;
                tourney.set(index, times[index]);
                let expected = times
                    .iter()
                    .enumerate()
                    .map(|(i, t)| (*t, i))
                    .min()
                    .expect("not empty");
                assert_eq!(tourney.first(), expected);
            }
        }
    }
}
