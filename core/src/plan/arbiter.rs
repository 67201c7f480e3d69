//! The arbiter of leases; the model is in the module's head.

use super::lease::{Grant, LeaseChanged, LeaseId, LeaseView, PlanError, RouteId};
use super::share::{Demand, Route, max_min};
use crate::units::{BitRate, PicoDuration, PicoTime};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

/// Most routes of one arbiter.
pub const MAX_ROUTES: usize = 256;
/// Most streams of one route. Every call costs time in proportion to the streams of its route.
pub const MAX_STREAMS_PER_ROUTE: u32 = 1024;

/// Times of an [`Arbiter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// How long a grant may be used.
    pub ttl: PicoDuration,
    /// How much longer the arbiter counts it, for the drift of the holders' clocks.
    pub guard: PicoDuration,
    /// How long a lapsed lease keeps its place.
    pub linger: PicoDuration,
    /// Different for every start of the arbiter (random).
    pub instance: u64,
}

impl Default for Config {
    /// 2 s to live, 20 ms guard (clocks that differ by 1 %), a minute's linger, instance 0.
    fn default() -> Self {
        Self {
            ttl: PicoDuration::from_secs(2),
            guard: PicoDuration::from_ms(20),
            linger: PicoDuration::from_secs(60),
            instance: 0,
        }
    }
}

#[derive(Debug)]
struct RouteState {
    route: Route,
    floor: BitRate,
    max_streams: u32,
    leases: Vec<u64>,
}

/// State of a route, rates at frame level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteView {
    /// Capacity and headroom.
    pub route: Route,
    /// The rate of a stream without a lease.
    pub floor: BitRate,
    /// How many streams have their floor reserved.
    pub max_streams: u32,
    /// Sum of all charges and of the floors of free places, in bit/s.
    pub charged_bps: u64,
    /// Its leases, oldest first.
    pub leases: Vec<LeaseView>,
}

#[derive(Clone, Debug)]
struct Lease {
    route: RouteId,
    max: BitRate,
    target: u64,
    /// The last grant.
    rate: u64,
    serial: u64,
    until: PicoTime,
    /// The highest rate and the latest end of the grants before it that may still be in use.
    older: Option<(u64, PicoTime)>,
    lapsed: bool,
    /// Whether its number is in the queue of changes.
    queued: bool,
}

impl Lease {
    fn charge(&self, floor: u64) -> u64 {
        if self.lapsed {
            return floor;
        }
        self.older.map_or(0, |(rate, _)| rate).max(self.rate).max(floor)
    }

    /// When time alone changes this lease next.
    fn due(&self, linger: PicoDuration) -> PicoTime {
        if self.lapsed {
            return self.until + linger;
        }
        self.older.map_or(self.until, |(_, until)| until.min(self.until))
    }
}

/// Shares routes among leases; see the module's model.
#[derive(Debug)]
pub struct Arbiter {
    config: Config,
    now: PicoTime,
    ready_at: PicoTime,
    ready: bool,
    routes: Vec<RouteState>,
    leases: BTreeMap<u64, Lease>,
    next_number: u64,
    changes: VecDeque<u64>,
    /// No lease changes by time alone before this.
    due: PicoTime,
}

impl Arbiter {
    /// An arbiter that starts at `now` and grants no more than floors for `ttl + guard`.
    ///
    /// # Errors
    /// [`PlanError::BadConfig`] for a time to live of zero.
    pub fn new(config: Config, now: PicoTime) -> Result<Self, PlanError> {
        if config.ttl == PicoDuration::ZERO {
            return Err(PlanError::BadConfig(
                "the time to live of leases must be above zero",
            ));
        }
        Ok(Self {
            config,
            now,
            ready_at: now + config.ttl + config.guard,
            ready: false,
            routes: Vec::new(),
            leases: BTreeMap::new(),
            next_number: 0,
            changes: VecDeque::new(),
            due: PicoTime::MAX,
        })
    }

    /// Adds a route on which `max_streams` streams may fall to `floor` (frame level). Numbered from 0.
    ///
    /// # Errors
    /// [`PlanError::BadConfig`] beyond the limits, [`PlanError::FloorsExceedCapacity`].
    pub fn add_route(
        &mut self,
        route: Route,
        floor: BitRate,
        max_streams: u32,
    ) -> Result<RouteId, PlanError> {
        if self.routes.len() >= MAX_ROUTES {
            return Err(PlanError::BadConfig("more than 256 routes"));
        }
        if max_streams == 0 || max_streams > MAX_STREAMS_PER_ROUTE {
            return Err(PlanError::BadConfig("a route has from 1 to 1024 streams"));
        }
        let id = RouteId(u32::try_from(self.routes.len()).unwrap_or(u32::MAX));
        check_floors(id, &route, floor, max_streams)?;
        self.routes.push(RouteState {
            route,
            floor,
            max_streams,
            leases: Vec::new(),
        });
        Ok(id)
    }

    /// A lease for one more stream that can use at most `max` (frame level).
    ///
    /// # Errors
    /// [`PlanError::UnknownRoute`], [`PlanError::TooManyStreams`].
    pub fn acquire(&mut self, route: RouteId, max: BitRate, now: PicoTime) -> Result<Grant, PlanError> {
        self.tick(now);
        let state = self
            .routes
            .get_mut(route.0 as usize)
            .ok_or(PlanError::UnknownRoute(route))?;
        if state.leases.len() >= state.max_streams as usize {
            return Err(PlanError::TooManyStreams(route));
        }
        let number = self.next_number;
        self.next_number += 1;
        state.leases.push(number);
        // Enters at its place's floor, which was reserved; the first renewal raises it as far as there is room.
        let rate = state.floor.bps().min(max.bps());
        let (serial, older, lapsed, queued) = (0, None, false, false);
        let until = self.now;
        let lease = Lease {
            route,
            max,
            target: 0,
            rate,
            serial,
            until,
            older,
            lapsed,
            queued,
        };
        self.leases.insert(number, lease);
        self.share(route);
        self.regrant(number)
    }

    /// Extends a lease; the answer may carry another rate. `serial` is that of the grant that the holder uses.
    ///
    /// # Errors
    /// [`PlanError::UnknownLease`] (acquire another), [`PlanError::UnknownSerial`].
    pub fn renew(&mut self, id: LeaseId, serial: u64, now: PicoTime) -> Result<Grant, PlanError> {
        self.tick(now);
        let number = self.number(id)?;
        let lease = self.leases.get_mut(&number).ok_or(PlanError::UnknownLease(id))?;
        if serial > lease.serial {
            return Err(PlanError::UnknownSerial(id));
        }
        if serial == lease.serial {
            lease.older = None;
        }
        if lease.lapsed {
            lease.lapsed = false;
            // All it was granted has run out; it uses the floor.
            let floor = self
                .routes
                .get(lease.route.0 as usize)
                .map_or(1, |r| r.floor.bps());
            lease.rate = floor.min(lease.max.bps());
            lease.serial += 1;
            lease.older = None;
            let route = lease.route;
            self.share(route);
        }
        self.regrant(number)
    }

    /// The lease can now use at most `max` (frame level): its share is reckoned anew, and a renewal shows it.
    ///
    /// # Errors
    /// [`PlanError::UnknownLease`].
    pub fn set_max(&mut self, id: LeaseId, max: BitRate, now: PicoTime) -> Result<(), PlanError> {
        self.tick(now);
        let number = self.number(id)?;
        let lease = self.leases.get_mut(&number).ok_or(PlanError::UnknownLease(id))?;
        lease.max = max;
        let route = lease.route;
        self.share(route);
        self.announce(route);
        Ok(())
    }

    /// The holder has stopped sending.
    ///
    /// # Errors
    /// [`PlanError::UnknownLease`].
    pub fn release(&mut self, id: LeaseId, now: PicoTime) -> Result<(), PlanError> {
        self.tick(now);
        let number = self.number(id)?;
        let lease = self.leases.remove(&number).ok_or(PlanError::UnknownLease(id))?;
        self.forget(number, lease.route);
        self.share(lease.route);
        self.announce(lease.route);
        Ok(())
    }

    /// The route's capacity is now another one (frame level). Lower rates are announced at once.
    ///
    /// # Errors
    /// [`PlanError::UnknownRoute`]; [`PlanError::FloorsExceedCapacity`], and nothing is changed.
    pub fn set_capacity(&mut self, id: RouteId, capacity: BitRate, now: PicoTime) -> Result<(), PlanError> {
        self.tick(now);
        let state = self
            .routes
            .get_mut(id.0 as usize)
            .ok_or(PlanError::UnknownRoute(id))?;
        let route = Route {
            capacity,
            ..state.route
        };
        check_floors(id, &route, state.floor, state.max_streams)?;
        state.route = route;
        self.share(id);
        self.announce(id);
        Ok(())
    }

    /// Lets time pass: grants run out, lapsed leases are forgotten. A time that goes back counts as the last.
    pub fn tick(&mut self, now: PicoTime) {
        self.now = self.now.max(now);
        let became_ready = !self.ready && self.now >= self.ready_at;
        self.ready |= became_ready;
        if self.now < self.due && !became_ready {
            return;
        }
        let mut touched: Vec<bool> = alloc::vec![became_ready; self.routes.len()];
        let mut gone = Vec::new();
        self.due = PicoTime::MAX;
        for (number, lease) in &mut self.leases {
            let mut changed = false;
            if lease.older.is_some_and(|(_, until)| until <= self.now) {
                lease.older = None;
                changed = true;
            }
            if !lease.lapsed && lease.until <= self.now {
                lease.lapsed = true;
                lease.older = None;
                changed = true;
                if !lease.queued {
                    lease.queued = true;
                    self.changes.push_back(*number);
                }
            }
            if lease.lapsed && lease.until + self.config.linger <= self.now {
                gone.push((*number, lease.route));
            } else {
                self.due = self.due.min(lease.due(self.config.linger));
            }
            if changed && let Some(t) = touched.get_mut(lease.route.0 as usize) {
                *t = true;
            }
        }
        for (number, route) in gone {
            self.leases.remove(&number);
            self.forget(number, route);
            if let Some(t) = touched.get_mut(route.0 as usize) {
                *t = true;
            }
        }
        for (route, _) in touched.iter().enumerate().filter(|(_, t)| **t) {
            let id = RouteId(u32::try_from(route).unwrap_or(u32::MAX));
            self.share(id);
            self.announce(id);
        }
    }

    /// The next lease that a renewal would change, or that has lapsed.
    pub fn poll(&mut self) -> Option<LeaseChanged> {
        while let Some(number) = self.changes.pop_front() {
            let Some(lease) = self.leases.get_mut(&number) else {
                continue;
            };
            lease.queued = false;
            let lease = lease.clone();
            let id = LeaseId {
                instance: self.config.instance,
                number,
            };
            if lapsed_or_changed(&lease, self.offer(&lease, self.room(lease.route))) {
                let floor = self
                    .routes
                    .get(lease.route.0 as usize)?
                    .floor
                    .bps()
                    .min(lease.max.bps());
                let offer = self.offer(&lease, self.room(lease.route));
                let rate = BitRate::new(if lease.lapsed { floor } else { offer }).unwrap_or(BitRate::MIN);
                return Some(LeaseChanged {
                    id,
                    rate,
                    lapsed: lease.lapsed,
                });
            }
        }
        None
    }

    /// When to call [`tick`](Self::tick) at the latest; `None` when time alone changes nothing.
    #[must_use]
    pub fn next_wakeup(&self) -> Option<PicoTime> {
        let ready = if self.ready { PicoTime::MAX } else { self.ready_at };
        Some(self.due.min(ready)).filter(|t| *t < PicoTime::MAX)
    }

    /// Whether the first time to live has passed, so that more than floors are granted.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.ready
    }

    /// State of a route and its leases.
    #[must_use]
    pub fn route(&self, id: RouteId) -> Option<RouteView> {
        let r = self.routes.get(id.0 as usize)?;
        let instance = self.config.instance;
        let leases = r
            .leases
            .iter()
            .filter_map(|n| self.leases.get(n).map(|l| (*n, l)));
        let view = |(number, l): (u64, &Lease)| LeaseView {
            id: LeaseId { instance, number },
            max: l.max,
            rate: BitRate::new(l.rate).unwrap_or(BitRate::MIN),
            target_bps: l.target,
            charge_bps: l.charge(r.floor.bps()),
            until: l.until,
            lapsed: l.lapsed,
        };
        Some(RouteView {
            route: r.route,
            floor: r.floor,
            max_streams: r.max_streams,
            charged_bps: self.charged(r),
            leases: leases.map(view).collect(),
        })
    }

    fn number(&self, id: LeaseId) -> Result<u64, PlanError> {
        if id.instance == self.config.instance {
            Ok(id.number)
        } else {
            Err(PlanError::UnknownLease(id))
        }
    }

    fn forget(&mut self, number: u64, route: RouteId) {
        if let Some(state) = self.routes.get_mut(route.0 as usize) {
            state.leases.retain(|n| *n != number);
        }
    }

    /// Sum of the charges and of the floors of free places.
    fn charged(&self, r: &RouteState) -> u64 {
        let floor = r.floor.bps();
        let free = u64::from(r.max_streams) - r.leases.len() as u64;
        let charges = r
            .leases
            .iter()
            .filter_map(|n| self.leases.get(n))
            .map(|l| l.charge(floor));
        charges.fold(free.saturating_mul(floor), u64::saturating_add)
    }

    /// What may be granted beyond the charges.
    fn room(&self, route: RouteId) -> u64 {
        self.routes
            .get(route.0 as usize)
            .map_or(0, |r| r.route.usable_bps().saturating_sub(self.charged(r)))
    }

    /// Sets the fair share of every lease of the route: of what the floors of free and lapsed places leave.
    fn share(&mut self, route: RouteId) {
        let Some(r) = self.routes.get(route.0 as usize) else {
            return;
        };
        let live: Vec<u64> = r
            .leases
            .iter()
            .copied()
            .filter(|n| self.leases.get(n).is_some_and(|l| !l.lapsed))
            .collect();
        let others = u64::from(r.max_streams) - live.len() as u64;
        let usable = r
            .route
            .usable_bps()
            .saturating_sub(others.saturating_mul(r.floor.bps()));
        // Who can use less than the floor holds a place of a whole floor all the same.
        let demand = |n: &u64| Demand {
            max: self.leases.get(n).map(|l| l.max.max(r.floor)),
            weight: 1,
        };
        let demands: Vec<Demand> = live.iter().map(demand).collect();
        for (number, target) in live.iter().zip(max_min(usable, &demands)) {
            if let Some(lease) = self.leases.get_mut(number) {
                lease.target = target.min(lease.max.bps());
            }
        }
    }

    /// The rate that a renewal gives now, with `room` beyond all charges of the route.
    fn offer(&self, lease: &Lease, room: u64) -> u64 {
        let floor = self
            .routes
            .get(lease.route.0 as usize)
            .map_or(1, |r| r.floor.bps());
        let least = floor.min(lease.max.bps());
        if !self.ready {
            return least;
        }
        lease
            .target
            .min(lease.charge(floor).saturating_add(room))
            .max(least)
    }

    /// Answers a holder: the rate on offer, for another time to live.
    fn regrant(&mut self, number: u64) -> Result<Grant, PlanError> {
        let id = LeaseId {
            instance: self.config.instance,
            number,
        };
        let lease = self.leases.get(&number).ok_or(PlanError::UnknownLease(id))?;
        let route = lease.route;
        let offer = self.offer(lease, self.room(route));
        let floor = self
            .routes
            .get(route.0 as usize)
            .map_or(BitRate::MIN, |r| r.floor);
        let until = self.now + self.config.ttl + self.config.guard;
        let lease = self.leases.get_mut(&number).ok_or(PlanError::UnknownLease(id))?;
        if offer != lease.rate {
            let (rate, end) = lease.older.unwrap_or((0, PicoTime::ZERO));
            lease.older = Some((rate.max(lease.rate), end.max(lease.until)));
            lease.rate = offer;
            lease.serial += 1;
        }
        lease.until = until;
        self.due = self.due.min(lease.due(self.config.linger));
        let grant = Grant {
            id,
            route,
            rate: BitRate::new(lease.rate).unwrap_or(BitRate::MIN),
            floor: floor.min(lease.max),
            ttl: self.config.ttl,
            serial: lease.serial,
        };
        self.announce(route);
        Ok(grant)
    }

    /// Queues every lease of the route whose renewal would change it.
    fn announce(&mut self, route: RouteId) {
        let room = self.room(route);
        let Some(r) = self.routes.get(route.0 as usize) else {
            return;
        };
        let changed = |n: &&u64| {
            self.leases
                .get(*n)
                .is_some_and(|l| !l.queued && !l.lapsed && l.rate != self.offer(l, room))
        };
        let changed: Vec<u64> = r.leases.iter().filter(changed).copied().collect();
        for number in changed {
            if let Some(lease) = self.leases.get_mut(&number) {
                lease.queued = true;
                self.changes.push_back(number);
            }
        }
    }
}

fn lapsed_or_changed(lease: &Lease, offer: u64) -> bool {
    lease.lapsed || lease.rate != offer
}

fn check_floors(id: RouteId, route: &Route, floor: BitRate, max_streams: u32) -> Result<(), PlanError> {
    let floors_bps = u128::from(floor.bps()) * u128::from(max_streams);
    let usable_bps = route.usable_bps();
    if floors_bps > u128::from(usable_bps) {
        return Err(PlanError::FloorsExceedCapacity {
            route: id,
            floors_bps,
            usable_bps,
        });
    }
    Ok(())
}
