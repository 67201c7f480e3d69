//! Routes: of how much of each this service may plan, by holds in the catalog.
//!
//! ```text
//!   a job uses it: hold taken, then renewed ──refused, or not renewed in time──> closed: nothing more is sent
//!   no job does:   hold given back                                          (a little is left for the floors)
//! ```

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kuroshio_catalog as cat;
use kuroshio_core::plan::{Route, RouteId};
use kuroshio_core::replica::{MAX_RUNNING, SiteId};
use kuroshio_core::units::{BitRate, PicoTime, Ratio};

use super::{State, Traffic, rules};
use crate::server::Inner;

/// Capacity of a route of which this service holds nothing, bit/s: room for the floors.
const CLOSED_BPS: u64 = 4 * MAX_RUNNING as u64;
/// How long a hold on a route in the catalog stands, milliseconds.
const HOLD_MS: u64 = 15_000;
/// How often it is renewed.
const RENEW: Duration = Duration::from_secs(4);
/// Without renewal for so long nothing more is sent over the route.
const GIVE_UP: Duration = Duration::from_secs(10);

/// A route as this service plans it.
pub(super) struct Way {
    /// As the catalog has it.
    route: Route,
    /// At the arbiter.
    pub id: RouteId,
    /// What this service holds of it, and when that was renewed.
    held: Option<(u64, Instant)>,
    asked: Option<Instant>,
}

/// Gives the holds back: another service need not wait for their end.
pub(super) async fn release(inner: &Inner) {
    let held: Vec<(String, String)> = {
        let state = inner.traffic.state();
        let held = state.ways.iter().filter(|(_, w)| w.held.is_some());
        let name = |site| state.names.site_name(site).to_owned();
        held.map(|((from, to), _)| (name(*from), name(*to))).collect()
    };
    for (from, to) in held {
        let holder = inner.worker.clone();
        let _ = inner
            .try_ask(&inner.service(), cat::DropLease { from, to, holder })
            .await;
    }
}

/// Holds, in the catalog, the routes that jobs use, and gives back those that none does.
pub(super) async fn hold(inner: &Arc<Inner>) -> Result<(), cat::CatalogError> {
    let traffic = &inner.traffic;
    let busy = !traffic.state().jobs.is_empty();
    if busy {
        let routes = inner.try_ask(&inner.service(), cat::ListRoutes {}).await?;
        traffic.know(&routes);
    }
    for (way, from, to, wanted_bps) in traffic.due() {
        let (service, holder) = (inner.service(), inner.worker.clone());
        if wanted_bps == 0 {
            inner
                .try_ask(&service, cat::DropLease { from, to, holder })
                .await?;
            traffic.held(way, None);
            continue;
        }
        let take = cat::TakeLease {
            from,
            to,
            holder,
            rate_bps: wanted_bps,
            least_bps: 1,
            ttl_ms: HOLD_MS,
        };
        match inner.try_ask(&service, take).await {
            Ok(lease) => traffic.held(way, Some(lease.rate_bps)),
            // Another service has all of it.
            Err(e) if e.kind() == cat::ErrorKind::Busy => traffic.held(way, None),
            Err(e) => return Err(e),
        }
    }
    traffic.wake.notify_one();
    Ok(())
}

impl Traffic {
    /// The catalog's routes now.
    pub(super) fn know(&self, routes: &[cat::Route]) {
        let now = self.now();
        let mut state = self.state();
        let state = &mut *state;
        for r in routes {
            let way = (state.names.site(&r.from), state.names.site(&r.to));
            let Some(capacity) = BitRate::new(r.capacity_bps) else {
                continue;
            };
            let route = Route {
                capacity,
                headroom: self.headroom,
            };
            if let Some(known) = state.ways.get_mut(&way) {
                if known.route != route {
                    known.route = route;
                    known.asked = None;
                }
                continue;
            }
            let closed = Route {
                capacity: BitRate::new(CLOSED_BPS).unwrap_or(BitRate::MIN),
                headroom: Ratio::ZERO,
            };
            let (floor, streams) = rules::floors();
            match state.arbiter.add_route(
                Route {
                    headroom: self.headroom,
                    ..closed
                },
                floor,
                streams,
            ) {
                Ok(id) => {
                    state.arbiter.tick(now);
                    state.planner.set_route(way.0, way.1, Some(closed));
                    let new = Way {
                        route,
                        id,
                        held: None,
                        asked: None,
                    };
                    state.ways.insert(way, new);
                }
                Err(e) => tracing::warn!(from = r.from, to = r.to, "the route is not planned: {e}"),
            }
        }
    }

    /// Routes of which a hold is to be taken or renewed (bit/s that are wanted), or given back (0).
    fn due(&self) -> Vec<((SiteId, SiteId), String, String, u64)> {
        let now = self.now();
        let mut state = self.state();
        let state = &mut *state;
        let used: BTreeSet<(SiteId, SiteId)> =
            state.jobs.values().flat_map(|w| w.ways.iter().copied()).collect();
        let mut due = Vec::new();
        let mut stale = Vec::new();
        for (&way, w) in &mut state.ways {
            if w.held.is_some_and(|(_, at)| at.elapsed() > GIVE_UP) {
                stale.push(way);
            }
            let wanted = used.contains(&way);
            let ask = if wanted {
                w.asked.is_none_or(|at| at.elapsed() >= RENEW)
            } else {
                w.held.is_some()
            };
            if ask {
                w.asked = wanted.then(Instant::now);
                let name = |site| state.names.site_name(site).to_owned();
                let bps = if wanted { w.route.capacity.bps() } else { 0 };
                due.push((way, name(way.0), name(way.1), bps));
            }
        }
        for way in stale {
            state.open(way, None, now);
        }
        due
    }

    fn held(&self, way: (SiteId, SiteId), held_bps: Option<u64>) {
        let now = self.now();
        self.state().open(way, held_bps, now);
    }
}

impl State {
    /// This service now holds so much of a route; `None`: nothing.
    fn open(&mut self, way: (SiteId, SiteId), held_bps: Option<u64>, now: PicoTime) {
        let Some(w) = self.ways.get_mut(&way) else { return };
        let before = w.held.map(|(bps, _)| bps);
        w.held = held_bps.map(|bps| (bps, Instant::now()));
        if before == held_bps && held_bps.is_some() {
            return;
        }
        let bps = held_bps.unwrap_or(0).min(w.route.capacity.bps()).max(CLOSED_BPS);
        let route = Route {
            capacity: BitRate::new(bps).unwrap_or(BitRate::MIN),
            headroom: w.route.headroom,
        };
        if let Err(e) = self.arbiter.set_capacity(w.id, route.capacity, now) {
            tracing::warn!("route: {e}");
        }
        self.planner.set_route(way.0, way.1, Some(route));
    }
}
