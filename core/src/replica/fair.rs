//! Fair rates of flows that each use several things: a route, the disk they read, the disk they write.
//!
//! # Model
//!
//! A *resource* has a capacity; a *flow* has a weight, a limit of its own, and resources that it uses all at its
//! rate. The rates are weighted max-min fair (Bertsekas, Gallager, "Data Networks", 2nd edition, 6.5.2): all
//! rates rise together, in proportion to their weights, until a resource is used up or a flow is at its limit;
//! the flows concerned stop there and the others go on.
//!
//! ```text
//!   level(resource) = what is left / weights of flows that still rise      level(flow) = limit / weight
//!   the least of all levels is the next to stop; rate = floor(weight * level)
//! ```
//!
//! So a flow that a slow disk holds back stops early, and what it leaves of its route goes to others. Rates are
//! rounded down to bit/s: no sum is ever above a capacity, and at most 1 bit/s per flow is not given out. For
//! flows of one resource the rates are those of [`max_min`](crate::plan::max_min) to that rounding.

use alloc::vec::Vec;

/// A resource's place in the list of capacities.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceId(pub usize);

/// What uses resources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Its share relative to others; 0 counts as 1.
    pub weight: u64,
    /// Its own limit in bit/s; `None`: none.
    pub max_bps: Option<u64>,
    /// What it uses, each at its whole rate. One that is not in the list of capacities is no limit.
    pub uses: Vec<ResourceId>,
}

/// Fraction `num / den` of bit/s per weight, with `den > 0`.
#[derive(Clone, Copy)]
struct Level {
    num: u128,
    den: u128,
}

impl Level {
    fn below(self, other: Self) -> bool {
        // Numerators are below 2^64 and denominators below 2^64 times the number of flows.
        self.num.saturating_mul(other.den) < other.num.saturating_mul(self.den)
    }
}

/// The weighted max-min fair rates in bit/s, in the order of `flows`. A flow without any limit gets
/// [`u64::MAX`].
#[must_use]
pub fn fair_rates(capacities_bps: &[u64], flows: &[Flow]) -> Vec<u64> {
    let mut left: Vec<u64> = capacities_bps.to_vec();
    let mut weights: Vec<u64> = alloc::vec![0; left.len()];
    let weight = |f: &Flow| f.weight.clamp(1, u64::from(u32::MAX));
    let uses: Vec<Vec<usize>> = flows
        .iter()
        .map(|f| {
            let mut list: Vec<usize> = f.uses.iter().map(|r| r.0).filter(|r| *r < left.len()).collect();
            list.sort_unstable();
            list.dedup();
            list
        })
        .collect();
    for (flow, list) in flows.iter().zip(&uses) {
        for &r in list {
            if let Some(w) = weights.get_mut(r) {
                *w += weight(flow);
            }
        }
    }
    let mut rates: Vec<Option<u64>> = alloc::vec![None; flows.len()];
    while let Some(level) = least_level(&left, &weights, flows, &rates, weight) {
        // Who stops at this level: those at their limit, and all on a resource of this level. They are found
        // before any stops, because what is left changes with each.
        let full: Vec<bool> = left
            .iter()
            .zip(&weights)
            .map(|(&l, &w)| w > 0 && !level.below(level_of(l, w)))
            .collect();
        for (i, flow) in flows.iter().enumerate() {
            let list = uses.get(i).map_or(&[][..], Vec::as_slice);
            let at_limit = flow
                .max_bps
                .is_some_and(|max| !level.below(level_of(max, weight(flow))));
            let on_full = list.iter().any(|r| full.get(*r).copied().unwrap_or(false));
            let Some(rate) = rates.get_mut(i).filter(|r| r.is_none() && (at_limit || on_full)) else {
                continue;
            };
            let fair = u128::from(weight(flow)).saturating_mul(level.num) / level.den;
            let stopped = u64::try_from(fair).unwrap_or(u64::MAX);
            *rate = Some(stopped);
            for &r in list {
                if let (Some(l), Some(w)) = (left.get_mut(r), weights.get_mut(r)) {
                    *l = l.saturating_sub(stopped);
                    *w -= weight(flow);
                }
            }
        }
    }
    rates.into_iter().map(|r| r.unwrap_or(u64::MAX)).collect()
}

fn level_of(bps: u64, weight: u64) -> Level {
    Level {
        num: u128::from(bps),
        den: u128::from(weight.max(1)),
    }
}

/// The least level of a resource with rising flows, or of a rising flow's limit.
fn least_level(
    left: &[u64],
    weights: &[u64],
    flows: &[Flow],
    rates: &[Option<u64>],
    weight: impl Fn(&Flow) -> u64,
) -> Option<Level> {
    let used = left.iter().zip(weights).filter(|(_, w)| **w > 0);
    let of_resources = used.map(|(&l, &w)| level_of(l, w));
    let rising = flows.iter().zip(rates).filter(|(_, r)| r.is_none());
    let of_flows = rising.filter_map(|(f, _)| Some(level_of(f.max_bps?, weight(f))));
    of_resources
        .chain(of_flows)
        .reduce(|a, b| if b.below(a) { b } else { a })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Demand, max_min};
    use crate::units::BitRate;
    use proptest::prelude::*;

    fn flow(weight: u64, max_bps: Option<u64>, uses: &[usize]) -> Flow {
        Flow {
            weight,
            max_bps,
            uses: uses.iter().map(|r| ResourceId(*r)).collect(),
        }
    }

    #[test]
    fn a_slow_disk_does_not_hold_a_fast_route() {
        // Route 0 of 1000; disk 1 of 100 is read by two flows, disk 2 of 5000 by one.
        let flows = [
            flow(1, None, &[0, 1]),
            flow(1, None, &[0, 1]),
            flow(1, None, &[0, 2]),
        ];
        assert_eq!(fair_rates(&[1000, 100, 5000], &flows), [50, 50, 900]);
        let heavy = [flow(1, None, &[0]), flow(3, None, &[0]), flow(1, Some(10), &[0])];
        assert_eq!(fair_rates(&[410], &heavy), [100, 300, 10]);
        assert_eq!(fair_rates(&[], &[flow(1, None, &[7])]), [u64::MAX]);
        assert_eq!(
            fair_rates(&[0, 9], &[flow(1, None, &[0, 1]), flow(1, None, &[1])]),
            [0, 9]
        );
        assert_eq!(
            fair_rates(&[u64::MAX], &[flow(1, None, &[0]), flow(1, None, &[0])]),
            [u64::MAX / 2; 2]
        );
    }

    proptest! {
        #[test]
        fn one_resource_is_the_plan_of_a_route(
            capacity in 0u64..1_000_000_000,
            list in prop::collection::vec((1u64..900_000_000, 1u32..6), 1..12),
        ) {
            let flows: Vec<Flow> = list.iter().map(|&(m, w)| flow(u64::from(w), Some(m), &[0])).collect();
            let demands: Vec<Demand> = list
                .iter()
                .map(|&(m, weight)| Demand { max: BitRate::new(m), weight })
                .collect();
            for (ours, theirs) in fair_rates(&[capacity], &flows).iter().zip(max_min(capacity, &demands)) {
                prop_assert!(ours.abs_diff(theirs) <= 16 * 6, "{ours} {theirs}");
            }
        }

        /// No sum above a capacity; and of every flow that is not at its limit some resource is used up, on
        /// which nobody has more per weight.
        #[test]
        fn sums_fit_and_nobody_can_have_more(
            capacities in prop::collection::vec(0u64..1_000_000, 1..6),
            list in prop::collection::vec(
                (1u64..5, prop::option::of(0u64..1_000_000), prop::collection::vec(0usize..6, 1..4)), 1..20),
        ) {
            let flows: Vec<Flow> = list.iter().map(|(w, m, uses)| flow(*w, *m, uses)).collect();
            let rates = fair_rates(&capacities, &flows);
            let sum = |r: usize| -> u128 {
                let on = flows.iter().zip(&rates).filter(|(f, _)| f.uses.contains(&ResourceId(r)));
                on.map(|(_, rate)| u128::from(*rate)).sum()
            };
            for (r, &capacity) in capacities.iter().enumerate() {
                prop_assert!(sum(r) <= u128::from(capacity), "resource {r}");
            }
            let slack = flows.len() as u64 * 5;
            for (f, &rate) in flows.iter().zip(&rates) {
                if f.max_bps.is_some_and(|m| rate >= m) || rate == u64::MAX {
                    continue;
                }
                let held = f.uses.iter().filter(|r| r.0 < capacities.len()).any(|r| {
                    let used_up = sum(r.0) + u128::from(slack) >= u128::from(capacities[r.0]);
                    let on = flows.iter().zip(&rates).filter(|(g, _)| g.uses.contains(r));
                    used_up && on.into_iter().all(|(g, &o)| o * f.weight <= (rate + slack) * g.weight)
                });
                prop_assert!(held, "{flows:?} {rates:?}");
            }
        }
    }
}
