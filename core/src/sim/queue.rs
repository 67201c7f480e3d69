//! The event queue: for each of a fixed number of places the moment of its next event.
//!
//! A tournament: the leaves are the places, every node above holds the number of the earlier of its two
//! children, the root the earliest of all. Setting a place replays its matches to the root, or to the
//! first one that it neither won before nor wins now.
//!
//! ```text
//!                 [2]            root: place 2 is next
//!           [1]         [2]
//!         0   1       2   3      places
//!        9ns 4ns     3ns  -
//! ```

use crate::units::PicoTime;
use alloc::{vec, vec::Vec};

const NEVER: u64 = u64::MAX;

/// The next event of every place.
#[derive(Debug, Clone)]
pub struct EventQueue {
    /// Moments in ps by place; a power of two of them.
    at: Vec<u64>,
    /// Winners; node n has the children 2n and 2n + 1, the root is 1.
    winner: Vec<u32>,
}

impl EventQueue {
    /// A queue of `places` places without events.
    pub fn new(places: usize) -> Self {
        let leaves = places.max(2).next_power_of_two();
        let mut queue = EventQueue {
            at: vec![NEVER; leaves],
            winner: vec![0; leaves],
        };
        for node in (1..leaves).rev() {
            let first = queue.child(2 * node);
            if let Some(winner) = queue.winner.get_mut(node) {
                *winner = first;
            }
        }
        queue
    }

    /// The winner at a node or leaf.
    #[inline]
    fn child(&self, node: usize) -> u32 {
        match node.checked_sub(self.at.len()) {
            // Places are fewer than 2^32.
            Some(place) => place as u32,
            None => self.winner.get(node).copied().unwrap_or(0),
        }
    }

    #[inline]
    fn moment(&self, place: u32) -> u64 {
        self.at.get(place as usize).copied().unwrap_or(NEVER)
    }

    /// Sets the next event of a place. A place that is not there is ignored.
    #[inline]
    pub fn set(&mut self, place: usize, moment: Option<PicoTime>) {
        let moment = moment.map_or(NEVER, PicoTime::as_ps);
        match self.at.get_mut(place) {
            Some(at) if *at != moment => *at = moment,
            _ => return,
        }
        let mut node = (place + self.at.len()) / 2;
        while node > 0 {
            let (left, right) = (self.child(2 * node), self.child(2 * node + 1));
            let now = if self.moment(right) < self.moment(left) {
                right
            } else {
                left
            };
            let Some(winner) = self.winner.get_mut(node) else {
                return;
            };
            if *winner == now && now as usize != place {
                return;
            }
            *winner = now;
            node /= 2;
        }
    }

    /// The earliest event and its place; of several the lowest place.
    #[inline]
    pub fn first(&self) -> Option<(PicoTime, usize)> {
        let place = self.child(1);
        match self.moment(place) {
            NEVER => None,
            at => Some((PicoTime::from_ps(at), place as usize)),
        }
    }
}
