//! Max-min fair shares of one capacity.
//!
//! Water filling: streams in the order of `max / weight`; each gets the smaller of its `max` and its
//! weight's part of what is left. Whoever is limited by `max` leaves the rest to those behind it, so the
//! parts only grow, and those not limited all get the same part per weight. Parts are rounded down to
//! bit/s one after the other, each of what is left, so the sum is exact.

use super::lease::{PlanError, RouteId};
use crate::units::{BitRate, Ratio};
use alloc::vec::Vec;

/// What one stream asks of its route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// The most it can use (its port's wire, frame level); `None` for no limit of its own.
    pub max: Option<BitRate>,
    /// Its share relative to others; 1 is usual, 0 counts as 1.
    pub weight: u32,
}

impl Demand {
    /// A stream without limit, of weight 1.
    pub const UNLIMITED: Demand = Demand { max: None, weight: 1 };

    fn max_bps(self) -> u64 {
        self.max.map_or(u64::MAX, BitRate::bps)
    }

    fn weight(self) -> u64 {
        u64::from(self.weight.max(1))
    }
}

/// The max-min fair rates in bit/s of `demands` that share `usable_bps`, in the order given.
/// Their sum is `usable_bps` or the sum of all `max`, whichever is less.
#[must_use]
pub fn max_min(usable_bps: u64, demands: &[Demand]) -> Vec<u64> {
    let mut order: Vec<usize> = (0..demands.len()).collect();
    let level = |i: usize, j: usize| {
        let (a, b) = (demands[i], demands[j]);
        let left = u128::from(a.max_bps()) * u128::from(b.weight());
        left.cmp(&(u128::from(b.max_bps()) * u128::from(a.weight())))
    };
    order.sort_by(|&i, &j| level(i, j));
    let mut weights: u64 = demands.iter().map(|d| d.weight()).sum();
    let mut left = usable_bps;
    let mut rates = alloc::vec![0; demands.len()];
    for i in order {
        let part = u128::from(left) * u128::from(demands[i].weight()) / u128::from(weights);
        let rate = u64::try_from(part).unwrap_or(left).min(demands[i].max_bps());
        rates[i] = rate;
        left -= rate;
        weights -= demands[i].weight();
    }
    rates
}

/// A path from site to site whose capacity all its streams share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Frame-level capacity.
    pub capacity: BitRate,
    /// The part of it that is not given out, below 1.
    pub headroom: Ratio,
}

impl Route {
    /// `capacity * (1 - headroom)` in bit/s, rounded down; 0 when the headroom is all.
    #[must_use]
    pub fn usable_bps(&self) -> u64 {
        self.capacity
            .checked_mul_ratio(self.headroom.complement())
            .map_or(0, BitRate::bps)
    }
}

/// Streams on routes: the whole of a plan, without leases (a transfer that owns its routes).
#[derive(Clone, Debug, Default)]
pub struct RatePlan {
    routes: Vec<Route>,
    streams: Vec<(RouteId, Demand)>,
}

impl RatePlan {
    /// A plan without routes.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            routes: Vec::new(),
            streams: Vec::new(),
        }
    }

    /// Adds a route; they are numbered from 0.
    pub fn add_route(&mut self, route: Route) -> RouteId {
        let id = RouteId(u32::try_from(self.routes.len()).unwrap_or(u32::MAX));
        self.routes.push(route);
        id
    }

    /// Adds a stream; returns its place in [`rates`](Self::rates).
    ///
    /// # Errors
    /// [`PlanError::UnknownRoute`].
    pub fn add_stream(&mut self, route: RouteId, demand: Demand) -> Result<usize, PlanError> {
        if self.routes.get(route.0 as usize).is_none() {
            return Err(PlanError::UnknownRoute(route));
        }
        self.streams.push((route, demand));
        Ok(self.streams.len() - 1)
    }

    /// Changes a route's capacity or headroom.
    ///
    /// # Errors
    /// [`PlanError::UnknownRoute`].
    pub fn set_route(&mut self, id: RouteId, route: Route) -> Result<(), PlanError> {
        let place = self
            .routes
            .get_mut(id.0 as usize)
            .ok_or(PlanError::UnknownRoute(id))?;
        *place = route;
        Ok(())
    }

    /// The frame-level rate of every stream, in the order added.
    ///
    /// # Errors
    /// [`PlanError::TooManyStreams`] when a route cannot give each of its streams 1 bit/s.
    pub fn rates(&self) -> Result<Vec<BitRate>, PlanError> {
        let mut out: Vec<Option<BitRate>> = alloc::vec![None; self.streams.len()];
        for (r, route) in self.routes.iter().enumerate() {
            let on: Vec<usize> = (0..self.streams.len())
                .filter(|&i| self.streams[i].0.0 as usize == r)
                .collect();
            let demands: Vec<Demand> = on.iter().map(|&i| self.streams[i].1).collect();
            for (&i, rate) in on.iter().zip(max_min(route.usable_bps(), &demands)) {
                out[i] = BitRate::new(rate);
            }
        }
        let route_of = |i: usize| self.streams[i].0;
        out.into_iter()
            .enumerate()
            .map(|(i, r)| r.ok_or(PlanError::TooManyStreams(route_of(i))))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn demand(max: u64, weight: u32) -> Demand {
        Demand {
            max: BitRate::new(max),
            weight,
        }
    }

    #[test]
    fn table() {
        let d = |m| demand(m, 1);
        assert_eq!(max_min(100, &[]), []);
        assert_eq!(max_min(100, &[Demand::UNLIMITED; 3]), [33, 33, 34]);
        assert_eq!(max_min(100, &[d(10), d(200), d(20), d(200)]), [10, 35, 20, 35]);
        assert_eq!(max_min(100, &[d(10), d(20)]), [10, 20]);
        assert_eq!(max_min(90, &[demand(500, 1), demand(500, 2)]), [30, 60]);
        assert_eq!(
            max_min(u64::MAX, &[Demand::UNLIMITED; 2]),
            [u64::MAX / 2, u64::MAX / 2 + 1]
        );
    }

    /// Five ports of 200 Mbit/s (L1) over three routes, 2.34 Gbit/s in all scaled by 1/5.
    #[test]
    fn plan_of_three_routes() {
        let mut plan = RatePlan::new();
        let route = |mbps| Route {
            capacity: BitRate::from_mbps(mbps),
            headroom: Ratio::new(1, 50).expect("ratio"),
        };
        let la = plan.add_route(route(468));
        let ny = plan.add_route(route(100));
        let port = Demand {
            max: Some(BitRate::from_mbps(190)),
            weight: 1,
        };
        for _ in 0..2 {
            plan.add_stream(la, port).expect("route");
            plan.add_stream(ny, port).expect("route");
        }
        let bps: Vec<u64> = plan.rates().expect("room").iter().map(|r| r.bps()).collect();
        assert_eq!(bps, [190_000_000, 49_000_000, 190_000_000, 49_000_000]);
        plan.set_route(
            ny,
            Route {
                capacity: BitRate::MIN,
                headroom: Ratio::ZERO,
            },
        )
        .expect("route");
        assert_eq!(plan.rates(), Err(PlanError::TooManyStreams(ny)));
        assert_eq!(
            plan.add_stream(RouteId(2), port),
            Err(PlanError::UnknownRoute(RouteId(2)))
        );
    }

    /// Gives out one bit/s at a time to whoever has least per weight and is not full.
    fn brute(usable: u64, demands: &[Demand]) -> Vec<u64> {
        let mut rates = alloc::vec![0u64; demands.len()];
        for _ in 0..usable {
            let open = (0..rates.len()).filter(|&i| rates[i] < demands[i].max_bps());
            let Some(i) = open.min_by_key(|&i| (rates[i] + 1) * 27_720 / demands[i].weight()) else {
                break;
            };
            rates[i] += 1;
        }
        rates
    }

    proptest! {
        #[test]
        fn like_brute_force(usable in 0u64..3000, d in prop::collection::vec((1u64..900, 1u32..6), 1..9)) {
            let demands: Vec<Demand> = d.iter().map(|&(m, w)| demand(m, w)).collect();
            let rates = max_min(usable, &demands);
            let sum: u64 = rates.iter().sum();
            prop_assert_eq!(sum, usable.min(demands.iter().map(|d| d.max_bps()).sum()));
            for (i, (a, b)) in rates.iter().zip(brute(usable, &demands)).enumerate() {
                // Rounding moves at most one bit/s per unit of weight.
                prop_assert!(a.abs_diff(b) <= u64::from(d[i].1) + 1, "{:?} {:?}", rates, brute(usable, &demands));
            }
            // The max-min condition: who is not full has no less per weight than anyone.
            for i in (0..rates.len()).filter(|&i| rates[i] < demands[i].max_bps()) {
                for j in 0..rates.len() {
                    let (wi, wj) = (demands[i].weight(), demands[j].weight());
                    prop_assert!((rates[i] + wi) * wj + wi * wj >= rates[j] * wi, "{:?}", rates);
                }
            }
        }
    }
}
