//! The site's rate plan at its service: a file of routes, [`kuroshio_core::plan::Arbiter`] over them, and
//! the leases of streams here (in process) and on other hosts (by request).
//!
//! ```toml
//! ttl = "2s"                 # of a lease; optional
//! [[route]]
//! name = "la"
//! capacity = "468Mbps"       # frame level
//! headroom = "2%"            # of the capacity, not given out; optional
//! to = ["10.1.0.0/16"]       # destinations; the longest prefix wins
//! floor = "64kbps"           # of a stream without lease; optional
//! max_streams = 64           # whose floors are reserved; optional
//! ```
//!
//! A plan that has just started knows nothing of the leases of an earlier life, so it has only floors to
//! give until they have ended, one time to live later. A stream that asks meanwhile waits (at most
//! [`READY_LIMIT_S`]): one that began at its floor would hold the kernel to that pace's next send time for
//! seconds after the rate has risen.
//!
//! A change reaches streams here at once: whoever causes it renews their leases in the same call. Holders
//! elsewhere wait in a renewal request that is answered when their rate changes.

mod cidr;

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use kuroshio_core::plan::{Arbiter, Config, Grant, LeaseId, Route, RouteId};
use kuroshio_core::units::{BitRate, PicoDuration, PicoTime, Ratio};
use kuroshio_transfer::StreamRate;
use ring::rand::{SecureRandom, SystemRandom};
use serde::Deserialize;
use tokio::sync::watch;

use self::cidr::Cidr;
use crate::api::{Lease, LeaseGranted, LeaseRenewal, LeaseRequest, PlanChange, PlanReport, PlanRoute};
use crate::error::ServiceError;
use crate::pacer::{Paced, Pacer};

/// Largest plan file.
const MAX_PLAN_BYTES: u64 = 1024 * 1024;
/// Destinations of one route.
const MAX_DESTINATIONS: usize = 1024;
/// Leases of one request.
pub const MAX_LEASES: usize = 1024;
/// Headroom of a route that names none.
const DEFAULT_HEADROOM: &str = "2%";
/// Floor of a route that names none, frame level.
const DEFAULT_FLOOR: &str = "64kbps";
/// Streams of a route that names no number.
const DEFAULT_MAX_STREAMS: u32 = 64;
/// Shortest and longest time to live, ms.
const TTL_MS: std::ops::RangeInclusive<u64> = 100..=600_000;
/// How often time passes for the arbiter and leases here are looked at, ms.
const TICK_MS: u64 = 20;
/// Longest wait of a stream for a plan that has just started, seconds.
const READY_LIMIT_S: u64 = 5;
/// Renewals until a lease here has settled: one that lowers, one that shows it.
const SETTLE_TRIES: usize = 3;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PlanFile {
    ttl: Option<String>,
    #[serde(default)]
    route: Vec<RouteFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RouteFile {
    name: String,
    capacity: String,
    headroom: Option<String>,
    to: Vec<String>,
    floor: Option<String>,
    max_streams: Option<u32>,
}

struct PlannedRoute {
    name: String,
    id: RouteId,
    to: Vec<Cidr>,
    to_text: Vec<String>,
}

/// A lease of a stream in this process.
struct LocalLease {
    serial: u64,
    rate: Arc<StreamRate>,
    renew_at: Instant,
}

struct State {
    arbiter: Arbiter,
    local: HashMap<u64, LocalLease>,
}

/// The rate plan of a site.
pub struct PlanKeeper {
    routes: Vec<PlannedRoute>,
    ttl: Duration,
    epoch: Instant,
    /// When all of the routes can be given out.
    ready_at: Instant,
    instance: u64,
    state: Mutex<State>,
    /// Counts changes; holders elsewhere wait on it.
    changes: watch::Sender<u64>,
}

impl PlanKeeper {
    /// Reads a plan file and starts the plan.
    pub fn open(path: &Path) -> Result<Arc<Self>, ServiceError> {
        use std::io::Read;
        let failed = |e| ServiceError::file("cannot read the plan", path, e);
        let mut text = String::new();
        let file = std::fs::File::open(path).map_err(failed)?;
        file.take(MAX_PLAN_BYTES)
            .read_to_string(&mut text)
            .map_err(failed)?;
        Self::from_toml(&text).map_err(|e| ServiceError::Invalid(format!("{}: {e}", path.display())))
    }

    /// Starts the plan of a file's text.
    ///
    /// # Errors
    /// A sentence that says which route and what would be valid.
    pub fn from_toml(text: &str) -> Result<Arc<Self>, String> {
        let file: PlanFile = toml::from_str(text).map_err(|e| e.to_string())?;
        if file.route.is_empty() {
            return Err("no [[route]]: a plan has at least one, with name, capacity and to".into());
        }
        let ttl = match &file.ttl {
            None => Config::default().ttl,
            Some(text) => text.parse::<PicoDuration>().map_err(|e| format!("ttl: {e}"))?,
        };
        let ttl_ms = ttl.as_ns() / 1_000_000;
        if !TTL_MS.contains(&ttl_ms) {
            return Err(format!("ttl {ttl}: from 100ms to 10min is valid"));
        }
        let mut random = [0; 8];
        SystemRandom::new()
            .fill(&mut random)
            .map_err(|_| "the system gives no random bytes".to_owned())?;
        let instance = u64::from_le_bytes(random);
        let config = Config {
            ttl,
            instance,
            ..Config::default()
        };
        let mut arbiter = Arbiter::new(config, PicoTime::ZERO).map_err(|e| e.to_string())?;
        let mut routes: Vec<PlannedRoute> = Vec::new();
        for route in &file.route {
            if routes.iter().any(|r| r.name == route.name) {
                return Err(format!("route `{}` is there twice", route.name));
            }
            let planned =
                add_route(&mut arbiter, route).map_err(|e| format!("route `{}`: {e}", route.name))?;
            routes.push(planned);
        }
        let epoch = Instant::now();
        let keeper = Arc::new(Self {
            routes,
            ttl: Duration::from_millis(ttl_ms),
            epoch,
            ready_at: epoch + (config.ttl + config.guard).to_std(),
            instance,
            state: Mutex::new(State {
                arbiter,
                local: HashMap::new(),
            }),
            changes: watch::Sender::new(0),
        });
        let weak = Arc::downgrade(&keeper);
        std::thread::Builder::new()
            .name("plan".into())
            .spawn(move || tick_while_used(&weak))
            .map_err(|e| format!("cannot start a thread: {e}"))?;
        Ok(keeper)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> PicoTime {
        PicoTime::ZERO + PicoDuration::from_std(self.epoch.elapsed())
    }

    fn route_to(&self, to: IpAddr) -> Option<&PlannedRoute> {
        let matching = self.routes.iter().flat_map(|r| r.to.iter().map(move |c| (r, c)));
        let matching = matching.filter(|(_, cidr)| cidr.contains(to));
        // Of equal prefixes the first of the file.
        matching
            .rev()
            .max_by_key(|(_, cidr)| cidr.len)
            .map(|(route, _)| route)
    }

    fn id_text(&self, id: LeaseId) -> String {
        format!("{:016x}-{}", id.instance, id.number)
    }

    fn id_of(&self, text: &str) -> Option<LeaseId> {
        let (instance, number) = text.split_once('-')?;
        let instance = u64::from_str_radix(instance, 16)
            .ok()
            .filter(|i| *i == self.instance)?;
        Some(LeaseId {
            instance,
            number: number.parse().ok()?,
        })
    }

    fn lease(&self, grant: &Grant) -> Lease {
        let name = self
            .routes
            .iter()
            .find(|r| r.id == grant.route)
            .map(|r| r.name.clone());
        Lease {
            id: Some(self.id_text(grant.id)),
            route: name,
            serial: grant.serial,
            rate_bps: Some(grant.rate.bps()),
            floor_bps: Some(grant.floor.bps()),
        }
    }

    /// How long a stream that asks now waits.
    fn until_ready(&self) -> Duration {
        let left = self.ready_at.saturating_duration_since(Instant::now());
        left.min(Duration::from_secs(READY_LIMIT_S))
    }

    /// Grants leases to streams on another host; waits for a plan that has just started.
    pub async fn grant(&self, wanted: &LeaseRequest) -> Result<LeaseGranted, ServiceError> {
        tokio::time::sleep(self.until_ready()).await;
        self.grant_now(wanted)
    }

    fn grant_now(&self, wanted: &LeaseRequest) -> Result<LeaseGranted, ServiceError> {
        if wanted.streams.is_empty() || wanted.streams.len() > MAX_LEASES {
            return Err(ServiceError::Invalid(format!(
                "1 to {MAX_LEASES} streams are valid"
            )));
        }
        let mut leases = Vec::new();
        let mut granted = Vec::new();
        let mut state = self.state();
        for stream in &wanted.streams {
            let max = match stream.max_bps {
                None => BitRate::MAX,
                Some(bps) => BitRate::from_bps(bps).map_err(|e| ServiceError::Invalid(e.to_string()))?,
            };
            let Some(route) = self.route_to(stream.to) else {
                let rate_bps = stream.max_bps;
                leases.push(Lease {
                    id: None,
                    route: None,
                    serial: 0,
                    rate_bps,
                    floor_bps: rate_bps,
                });
                continue;
            };
            match state.arbiter.acquire(route.id, max, self.now()) {
                Ok(grant) => {
                    granted.push(grant.id);
                    leases.push(self.lease(&grant));
                }
                Err(e) => {
                    for id in granted {
                        let _ = state.arbiter.release(id, self.now());
                    }
                    return Err(ServiceError::Transfer(format!("route `{}`: {e}", route.name)));
                }
            }
        }
        self.pump(&mut state);
        Ok(LeaseGranted {
            ttl_ms: self.ttl_ms(),
            leases,
            gone: Vec::new(),
        })
    }

    fn ttl_ms(&self) -> u64 {
        u64::try_from(self.ttl.as_millis()).unwrap_or(u64::MAX)
    }

    /// Renews leases of another host's streams; waits for a change.
    pub async fn renew(&self, renewal: &LeaseRenewal) -> Result<LeaseGranted, ServiceError> {
        if renewal.leases.len() > MAX_LEASES {
            return Err(ServiceError::Invalid(format!(
                "at most {MAX_LEASES} leases are valid"
            )));
        }
        let longest = self.ttl / 3;
        let deadline = tokio::time::Instant::now() + Duration::from_millis(renewal.wait_ms).min(longest);
        let mut changes = self.changes.subscribe();
        loop {
            let (answer, changed) = self.renew_now(renewal);
            if changed || tokio::time::Instant::now() >= deadline {
                return Ok(answer);
            }
            let _ = tokio::time::timeout_at(deadline, changes.changed()).await;
        }
    }

    /// Renews once; says whether anything differs from what the holder knows.
    fn renew_now(&self, renewal: &LeaseRenewal) -> (LeaseGranted, bool) {
        let mut answer = LeaseGranted {
            ttl_ms: self.ttl_ms(),
            leases: Vec::new(),
            gone: Vec::new(),
        };
        let mut changed = false;
        let mut state = self.state();
        for held in &renewal.leases {
            let known = self
                .id_of(&held.id)
                .filter(|id| !state.local.contains_key(&id.number));
            let renewed = known.and_then(|id| state.arbiter.renew(id, held.serial, self.now()).ok());
            match renewed {
                Some(grant) => {
                    changed |= grant.serial != held.serial;
                    answer.leases.push(self.lease(&grant));
                }
                None => {
                    changed = true;
                    answer.gone.push(held.id.clone());
                }
            }
        }
        self.pump(&mut state);
        (answer, changed)
    }

    /// Takes leases of another host's streams back.
    pub fn release(&self, ids: &[String]) {
        let mut state = self.state();
        for id in ids.iter().take(MAX_LEASES).filter_map(|text| self.id_of(text)) {
            if !state.local.contains_key(&id.number) {
                let _ = state.arbiter.release(id, self.now());
            }
        }
        self.pump(&mut state);
    }

    /// Changes a route's capacity; streams here have their new rates when this returns.
    pub fn change(&self, change: &PlanChange) -> Result<PlanReport, ServiceError> {
        let Some(route) = self.routes.iter().find(|r| r.name == change.route) else {
            let known = self
                .routes
                .iter()
                .map(|r| r.name.as_str())
                .collect::<Vec<_>>()
                .join(", ");
            return Err(ServiceError::Invalid(format!(
                "no route `{}` in the plan (it has: {known})",
                change.route
            )));
        };
        let capacity =
            BitRate::from_bps(change.capacity_bps).map_err(|e| ServiceError::Invalid(e.to_string()))?;
        {
            let mut state = self.state();
            let changed = state.arbiter.set_capacity(route.id, capacity, self.now());
            changed.map_err(|e| ServiceError::Invalid(format!("route `{}`: {e}", route.name)))?;
            self.pump(&mut state);
        }
        Ok(self.report())
    }

    /// The plan now.
    pub fn report(&self) -> PlanReport {
        let state = self.state();
        let routes = self.routes.iter().filter_map(|route| {
            let view = state.arbiter.route(route.id)?;
            let live = view.leases.iter().filter(|l| !l.lapsed);
            Some(PlanRoute {
                name: route.name.clone(),
                to: route.to_text.clone(),
                capacity_bps: view.route.capacity.bps(),
                usable_bps: view.route.usable_bps(),
                floor_bps: view.floor.bps(),
                streams: live.clone().count() as u64,
                granted_bps: live.fold(0, |sum, l| sum.saturating_add(l.rate.bps())),
            })
        });
        PlanReport {
            routes: routes.collect(),
            ttl_ms: self.ttl_ms(),
            ready: state.arbiter.is_ready(),
        }
    }

    /// Lets time pass and carries every change to its holder.
    fn pump(&self, state: &mut State) {
        let now = self.now();
        state.arbiter.tick(now);
        let mut elsewhere = false;
        while let Some(changed) = state.arbiter.poll() {
            if state.local.contains_key(&changed.id.number) {
                self.settle(state, changed.id.number);
            } else {
                elsewhere = true;
            }
        }
        if elsewhere {
            self.changes.send_modify(|n| *n += 1);
        }
    }

    /// Renews a lease here until its rate is the one on offer.
    fn settle(&self, state: &mut State, number: u64) {
        let Some(lease) = state.local.get_mut(&number) else {
            return;
        };
        let id = LeaseId {
            instance: self.instance,
            number,
        };
        for _ in 0..SETTLE_TRIES {
            let Ok(grant) = state.arbiter.renew(id, lease.serial, self.now()) else {
                return;
            };
            lease.renew_at = Instant::now() + self.ttl / 3;
            if grant.serial == lease.serial {
                return;
            }
            lease.serial = grant.serial;
            if let Err(e) = lease.rate.set(Some(grant.rate)) {
                tracing::warn!("a stream's pace could not be set, it is tried again: {e}");
            }
        }
    }

    fn tick(&self) {
        let mut state = self.state();
        let now = Instant::now();
        let due = state
            .local
            .iter()
            .filter(|(_, l)| l.renew_at <= now)
            .map(|(n, _)| *n)
            .collect::<Vec<_>>();
        for number in due {
            self.settle(&mut state, number);
        }
        self.pump(&mut state);
    }
}

fn tick_while_used(keeper: &Weak<PlanKeeper>) {
    while let Some(keeper) = keeper.upgrade() {
        keeper.tick();
        drop(keeper);
        std::thread::sleep(Duration::from_millis(TICK_MS));
    }
}

fn add_route(arbiter: &mut Arbiter, file: &RouteFile) -> Result<PlannedRoute, String> {
    let capacity = file
        .capacity
        .parse::<BitRate>()
        .map_err(|e| format!("capacity: {e}"))?;
    let headroom = file.headroom.as_deref().unwrap_or(DEFAULT_HEADROOM);
    let headroom = headroom.parse::<Ratio>().map_err(|e| format!("headroom: {e}"))?;
    let floor = file.floor.as_deref().unwrap_or(DEFAULT_FLOOR);
    let floor = floor.parse::<BitRate>().map_err(|e| format!("floor: {e}"))?;
    if file.to.is_empty() || file.to.len() > MAX_DESTINATIONS {
        return Err(format!("to: 1 to {MAX_DESTINATIONS} destinations are valid"));
    }
    let to = file
        .to
        .iter()
        .map(|t| t.parse())
        .collect::<Result<Vec<Cidr>, _>>()?;
    let max_streams = file.max_streams.unwrap_or(DEFAULT_MAX_STREAMS);
    let id = arbiter
        .add_route(Route { capacity, headroom }, floor, max_streams)
        .map_err(|e| e.to_string())?;
    Ok(PlannedRoute {
        name: file.name.clone(),
        id,
        to,
        to_text: file.to.clone(),
    })
}

/// The lease of a stream here; given back when dropped.
struct Held {
    keeper: Weak<PlanKeeper>,
    number: u64,
}

impl Drop for Held {
    fn drop(&mut self) {
        let Some(keeper) = self.keeper.upgrade() else {
            return;
        };
        let mut state = keeper.state();
        state.local.remove(&self.number);
        let id = LeaseId {
            instance: keeper.instance,
            number: self.number,
        };
        let _ = state.arbiter.release(id, keeper.now());
        keeper.pump(&mut state);
    }
}

/// Streams of this process take their leases directly.
pub struct LocalPlan(pub Arc<PlanKeeper>);

impl Pacer for LocalPlan {
    fn pace(&self, to: IpAddr, limit: Option<BitRate>) -> Result<Paced, ServiceError> {
        let keeper = &self.0;
        let Some(route) = keeper.route_to(to) else {
            return Ok(Paced {
                rate: StreamRate::new(limit),
                guard: None,
            });
        };
        std::thread::sleep(keeper.until_ready());
        let mut state = keeper.state();
        let acquired = state
            .arbiter
            .acquire(route.id, limit.unwrap_or(BitRate::MAX), keeper.now());
        let grant = acquired
            .map_err(|e| ServiceError::Transfer(format!("rate plan, route `{}`: {e}", route.name)))?;
        let rate = StreamRate::new(Some(grant.rate));
        let lease = LocalLease {
            serial: grant.serial,
            rate: rate.clone(),
            renew_at: Instant::now(),
        };
        state.local.insert(grant.id.number, lease);
        keeper.pump(&mut state);
        let held = Held {
            keeper: Arc::downgrade(keeper),
            number: grant.id.number,
        };
        Ok(Paced {
            rate,
            guard: Some(Box::new(held)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !done() {
            assert!(Instant::now() < deadline, "not within 20 s: {what}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    const PLAN: &str = r#"
        ttl = "300ms"
        [[route]]
        name = "la"
        capacity = "100Mbps"
        headroom = "0"
        to = ["10.1.0.0/16", "2001:db8::/32"]
        floor = "100kbps"
        max_streams = 10
        [[route]]
        name = "rest"
        capacity = "10Mbps"
        to = ["0.0.0.0/0"]
    "#;

    #[test]
    fn bad_plans_say_where() {
        let table = [
            ("", "no [[route]]"),
            (
                "ttl = \"1\"\n[[route]]\nname=\"a\"\ncapacity=\"1Gbps\"\nto=[\"::/0\"]",
                "ttl",
            ),
            (
                "ttl = \"1ms\"\n[[route]]\nname=\"a\"\ncapacity=\"1Gbps\"\nto=[\"::/0\"]",
                "100ms",
            ),
            (
                "[[route]]\nname=\"a\"\ncapacity=\"100\"\nto=[\"::/0\"]",
                "`a`: capacity",
            ),
            ("[[route]]\nname=\"a\"\ncapacity=\"1Gbps\"\nto=[]", "`a`: to"),
            (
                "[[route]]\nname=\"a\"\ncapacity=\"1Gbps\"\nto=[\"x\"]",
                "not a CIDR",
            ),
            (
                "[[route]]\nname=\"a\"\ncapacity=\"1kbps\"\nto=[\"::/0\"]",
                "floors",
            ),
            (
                "[[route]]\nname=\"a\"\ncapacity=\"1Gbps\"\nto=[\"::/0\"]\nspeed=1",
                "speed",
            ),
        ];
        for (text, why) in table {
            let error = PlanKeeper::from_toml(text).err().expect(text);
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn streams_share_a_route_and_follow_its_capacity() {
        let keeper = PlanKeeper::from_toml(PLAN).expect("plan");
        let pacer = LocalPlan(keeper.clone());
        let to = "10.1.2.3".parse().expect("address");
        let one = pacer.pace(to, None).expect("lease");
        let two = pacer.pace(to, BitRate::new(20_000_000)).expect("lease");
        let bps = |p: &Paced| p.rate.get().map_or(0, BitRate::bps);
        // 100 Mbit/s less the floors of eight free places.
        wait_for("fair rates", || {
            bps(&one) + bps(&two) == 99_200_000 && bps(&two) == 20_000_000
        });
        let change = PlanChange {
            route: "la".into(),
            capacity_bps: 60_000_000,
        };
        keeper.change(&change).expect("changed");
        // Carried in the same call.
        assert_eq!((bps(&one), bps(&two)), (39_200_000, 20_000_000));
        drop(two);
        wait_for("the rest", || bps(&one) == 59_100_000);
        assert_eq!(
            keeper.report().routes.first().map(|r| (r.streams, r.granted_bps)),
            Some((1, 59_100_000))
        );
        let unplanned = pacer
            .pace("2001:db9::1".parse().expect("address"), None)
            .expect("no route");
        assert!(unplanned.rate.get().is_none() && unplanned.guard.is_none());
    }

    #[test]
    fn streams_wait_for_a_plan_that_has_just_started() {
        let keeper = PlanKeeper::from_toml(PLAN).expect("plan");
        assert!(!keeper.report().ready);
        let first = LocalPlan(keeper.clone())
            .pace("10.1.0.1".parse().expect("address"), None)
            .expect("paced");
        // 100 Mbit/s less the nine floors that are kept free.
        assert_eq!(first.rate.get(), BitRate::new(99_100_000));
        assert!(keeper.report().ready);
        let wanted = LeaseRequest {
            streams: vec![crate::api::LeaseStream {
                to: "10.1.0.1".parse().expect("address"),
                max_bps: None,
            }],
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("runtime");
        let keeper = PlanKeeper::from_toml(PLAN).expect("plan");
        let granted = runtime.block_on(keeper.grant(&wanted)).expect("granted");
        assert_eq!(granted.leases[0].rate_bps, Some(99_100_000));
    }

    #[test]
    fn holders_elsewhere_are_told() {
        let keeper = PlanKeeper::from_toml(PLAN).expect("plan");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("runtime");
        let stream = |max_bps| crate::api::LeaseStream {
            to: "10.1.0.1".parse().expect("address"),
            max_bps,
        };
        let wanted = LeaseRequest {
            streams: vec![stream(None), stream(Some(30_000_000))],
        };
        let granted = keeper.grant_now(&wanted).expect("granted");
        let held = |g: &LeaseGranted| {
            let of = |l: &Lease| crate::api::LeaseHeld {
                id: l.id.clone().expect("id"),
                serial: l.serial,
            };
            LeaseRenewal {
                leases: g.leases.iter().map(of).collect(),
                wait_ms: 50,
            }
        };
        let mut latest = granted;
        let sum = |g: &LeaseGranted| g.leases.iter().filter_map(|l| l.rate_bps).sum::<u64>();
        wait_for("fair rates", || {
            latest = runtime.block_on(keeper.renew(&held(&latest))).expect("renewed");
            assert!(sum(&latest) <= 100_000_000, "{latest:?}");
            sum(&latest) == 99_200_000
        });
        let change = PlanChange {
            route: "la".into(),
            capacity_bps: 50_000_000,
        };
        keeper.change(&change).expect("changed");
        latest = runtime.block_on(keeper.renew(&held(&latest))).expect("renewed");
        assert_eq!(sum(&latest), 49_200_000);
        let ids = latest
            .leases
            .iter()
            .filter_map(|l| l.id.clone())
            .collect::<Vec<_>>();
        keeper.release(&ids);
        let gone = runtime.block_on(keeper.renew(&held(&latest))).expect("answered");
        assert_eq!((gone.gone, gone.leases.len()), (ids, 0));
    }
}
