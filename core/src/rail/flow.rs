//! The largest flow through a small network with whole capacities (Edmonds and Karp, 1972): augment along a
//! shortest path until there is none. At most nodes * edges augmentations, whatever the capacities.

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

/// A network of numbered nodes. Capacities add up and saturate.
pub(super) struct Network {
    /// What may still flow from row to column.
    left: Vec<Vec<u64>>,
    capacity: Vec<Vec<u64>>,
}

impl Network {
    pub(super) fn new(nodes: usize) -> Self {
        Network {
            left: vec![vec![0; nodes]; nodes],
            capacity: vec![vec![0; nodes]; nodes],
        }
    }

    /// Allows `capacity` more from one node to another. Edges run one way: never add both directions.
    pub(super) fn edge(&mut self, from: usize, to: usize, capacity: u64) {
        let cell = &mut self.capacity[from][to];
        *cell = cell.saturating_add(capacity);
        self.left[from][to] = *cell;
    }

    /// Finds the largest flow from `source` to `sink` and returns it.
    pub(super) fn run(&mut self, source: usize, sink: usize) -> u64 {
        let mut total = 0u64;
        while let Some(before) = self.shortest(source, sink) {
            let steps = || {
                core::iter::successors(Some(sink), |&to| before[to])
                    .take_while(|&to| to != source)
                    .filter_map(|to| before[to].map(|from| (from, to)))
            };
            let Some(amount) = steps().map(|(from, to)| self.left[from][to]).min() else {
                break;
            };
            for (from, to) in steps() {
                self.left[from][to] -= amount;
                self.left[to][from] = self.left[to][from].saturating_add(amount);
            }
            total = total.saturating_add(amount);
        }
        total
    }

    /// What flows from one node to another.
    pub(super) fn flow(&self, from: usize, to: usize) -> u64 {
        self.capacity[from][to].saturating_sub(self.left[from][to])
    }

    /// The node before each node on a shortest path from the source, when the sink is reached.
    fn shortest(&self, source: usize, sink: usize) -> Option<Vec<Option<usize>>> {
        let nodes = self.left.len();
        let mut before: Vec<Option<usize>> = vec![None; nodes];
        let mut queue = VecDeque::from([source]);
        while let Some(from) = queue.pop_front() {
            for to in 0..nodes {
                if to != source && before[to].is_none() && self.left[from][to] > 0 {
                    before[to] = Some(from);
                    if to == sink {
                        return Some(before);
                    }
                    queue.push_back(to);
                }
            }
        }
        None
    }
}
