//! Rate leases from the site's service, for streams that leave from this host.
//!
//! One thread renews all leases over one connection, at least every [`RENEW_MS`]; the service answers at
//! once when a rate changes. Another thread watches the clock: a rate counts from when its request was
//! sent, and a lease that has ended falls to its floor. A service that is away is dialled again and again;
//! leases that it has forgotten are asked for anew.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kuroshio_core::units::BitRate;
use kuroshio_transfer::StreamRate;

use super::http::{Endpoint, HttpConn};
use crate::api::{
    Lease, LeaseGranted, LeaseHeld, LeaseRelease, LeaseRenewal, LeaseRequest, LeaseStream, PlanChange,
    PlanReport,
};
use crate::error::ServiceError;
use crate::pacer::{Paced, Pacer};

/// Longest time from one renewal to the next, ms.
const RENEW_MS: u64 = 100;
/// Wait before a service that is away is dialled again, ms.
const REDIAL_MS: u64 = 200;
/// How often the watch looks at the clock, ms.
const WATCH_MS: u64 = 20;

/// A lease that this host holds.
struct HeldLease {
    /// Its name at the service; none while it is asked for anew.
    id: Option<String>,
    serial: u64,
    to: IpAddr,
    limit: Option<BitRate>,
    floor: Option<BitRate>,
    /// When its rate ends.
    until: Instant,
    lapsed: bool,
    rate: Arc<StreamRate>,
}

impl HeldLease {
    fn set(&mut self, rate: Option<BitRate>) {
        // A refusal is tried again by the stream at its next tick.
        let _ = self.rate.set(rate);
    }

    /// Takes over what the service granted to a request that was sent at `sent`.
    fn take(&mut self, lease: &Lease, ttl: Duration, sent: Instant) {
        self.id.clone_from(&lease.id);
        self.until = sent + ttl;
        self.floor = lease.floor_bps.and_then(BitRate::new);
        let rate = lease.rate_bps.and_then(BitRate::new);
        if self.lapsed || lease.serial != self.serial || self.rate.get() != rate {
            self.lapsed = false;
            self.serial = lease.serial;
            self.set(rate);
        }
    }
}

#[derive(Default)]
struct Table {
    next: u64,
    leases: HashMap<u64, HeldLease>,
    released: Vec<String>,
}

struct Shared {
    endpoint: Endpoint,
    table: Mutex<Table>,
    stop: AtomicBool,
}

impl Shared {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }
}

/// The rate plan of a site, as a host sees it that does not own it.
pub struct RemotePlan {
    shared: Arc<Shared>,
}

impl RemotePlan {
    /// Uses the plan of the service `endpoint`.
    ///
    /// # Errors
    /// The service cannot be reached, refuses, or has no plan.
    pub fn open(endpoint: &Endpoint) -> Result<Self, ServiceError> {
        plan_report(endpoint)?;
        let shared = Arc::new(Shared {
            endpoint: endpoint.clone(),
            table: Mutex::default(),
            stop: AtomicBool::new(false),
        });
        for (name, work) in [("lease", renew_while_used as fn(&Shared)), ("lease-watch", watch)] {
            let shared = shared.clone();
            std::thread::Builder::new()
                .name(name.into())
                .spawn(move || work(&shared))
                .map_err(|e| ServiceError::Transfer(format!("cannot start a thread: {e}")))?;
        }
        Ok(Self { shared })
    }
}

impl Drop for RemotePlan {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        let ids = std::mem::take(&mut self.shared.table().released);
        if !ids.is_empty()
            && let Ok(mut http) = self.shared.endpoint.dial(None, None)
        {
            // Leases that cannot be given back end by themselves.
            let _ = http.tell("POST", "/.kuroshio/leases/release", &LeaseRelease { ids });
        }
    }
}

struct Held {
    shared: Arc<Shared>,
    number: u64,
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut table = self.shared.table();
        if let Some(lease) = table.leases.remove(&self.number) {
            table.released.extend(lease.id);
        }
    }
}

impl Pacer for RemotePlan {
    fn pace(&self, to: IpAddr, limit: Option<BitRate>) -> Result<Paced, ServiceError> {
        let to = to.to_canonical();
        let sent = Instant::now();
        let granted = acquire(&mut self.shared.endpoint.dial(None, None)?, &[(to, limit)])?;
        let Some(lease) = granted.leases.first() else {
            return Err(ServiceError::Transfer(
                "the plan's service granted no lease".into(),
            ));
        };
        let rate = StreamRate::new(lease.rate_bps.and_then(BitRate::new));
        if lease.id.is_none() {
            return Ok(Paced { rate, guard: None });
        }
        let mut held = HeldLease {
            id: None,
            serial: lease.serial,
            to,
            limit,
            floor: None,
            until: sent,
            lapsed: false,
            rate: rate.clone(),
        };
        held.take(lease, Duration::from_millis(granted.ttl_ms), sent);
        let mut table = self.shared.table();
        table.next += 1;
        let number = table.next;
        table.leases.insert(number, held);
        drop(table);
        Ok(Paced {
            rate,
            guard: Some(Box::new(Held {
                shared: self.shared.clone(),
                number,
            })),
        })
    }
}

fn acquire(http: &mut HttpConn, streams: &[(IpAddr, Option<BitRate>)]) -> Result<LeaseGranted, ServiceError> {
    let of = |(to, limit): &(IpAddr, Option<BitRate>)| LeaseStream {
        to: *to,
        max_bps: limit.map(BitRate::bps),
    };
    let request = LeaseRequest {
        streams: streams.iter().map(of).collect(),
    };
    let granted: LeaseGranted = http.ask("POST", "/.kuroshio/leases", Some(&request))?;
    if granted.leases.len() != streams.len() {
        return Err(ServiceError::Transfer(
            "the plan's service granted another number of leases".into(),
        ));
    }
    Ok(granted)
}

fn renew_while_used(shared: &Shared) {
    let mut http = None;
    while !shared.stopped() {
        let result = match http.take() {
            Some(conn) => Ok(conn),
            None => shared.endpoint.dial(None, None),
        };
        match result.and_then(|mut conn| one_round(shared, &mut conn).map(|()| conn)) {
            Ok(conn) => http = Some(conn),
            Err(e) => {
                tracing::warn!("rate leases cannot be renewed: {e}");
                std::thread::sleep(Duration::from_millis(REDIAL_MS));
            }
        }
    }
}

/// Gives back, asks anew, renews.
fn one_round(shared: &Shared, http: &mut HttpConn) -> Result<(), ServiceError> {
    let ids = std::mem::take(&mut shared.table().released);
    if !ids.is_empty() {
        http.tell("POST", "/.kuroshio/leases/release", &LeaseRelease { ids })?;
    }
    let lost = {
        let table = shared.table();
        let lost = table.leases.iter().filter(|(_, l)| l.id.is_none());
        lost.map(|(n, l)| (*n, (l.to, l.limit))).collect::<Vec<_>>()
    };
    if !lost.is_empty() {
        let sent = Instant::now();
        let granted = acquire(http, &lost.iter().map(|(_, s)| *s).collect::<Vec<_>>())?;
        let ttl = Duration::from_millis(granted.ttl_ms);
        let mut table = shared.table();
        for ((number, _), lease) in lost.iter().zip(&granted.leases) {
            match table.leases.get_mut(number) {
                Some(held) => held.take(lease, ttl, sent),
                None => table.released.extend(lease.id.clone()),
            }
        }
    }
    renew(shared, http)
}

fn renew(shared: &Shared, http: &mut HttpConn) -> Result<(), ServiceError> {
    let held = {
        let table = shared.table();
        let known = table.leases.values().filter_map(|l| {
            Some(LeaseHeld {
                id: l.id.clone()?,
                serial: l.serial,
            })
        });
        known.collect::<Vec<_>>()
    };
    if held.is_empty() {
        std::thread::sleep(Duration::from_millis(WATCH_MS));
        return Ok(());
    }
    let sent = Instant::now();
    let renewal = LeaseRenewal {
        leases: held,
        wait_ms: RENEW_MS,
    };
    let granted: LeaseGranted = http.ask("POST", "/.kuroshio/leases/renew", Some(&renewal))?;
    let ttl = Duration::from_millis(granted.ttl_ms);
    let mut table = shared.table();
    for lease in table.leases.values_mut() {
        let Some(id) = lease.id.clone() else { continue };
        if granted.gone.contains(&id) {
            lease.id = None;
        } else if let Some(renewed) = granted.leases.iter().find(|l| l.id.as_ref() == Some(&id)) {
            lease.take(renewed, ttl, sent);
        }
    }
    Ok(())
}

/// Lets leases that have ended fall to their floor.
fn watch(shared: &Shared) {
    while !shared.stopped() {
        let now = Instant::now();
        for lease in shared.table().leases.values_mut() {
            if !lease.lapsed && lease.until <= now {
                lease.lapsed = true;
                let floor = lease.floor;
                lease.set(floor);
            }
        }
        std::thread::sleep(Duration::from_millis(WATCH_MS));
    }
}

/// The rate plan of a service.
pub fn plan_report(endpoint: &Endpoint) -> Result<PlanReport, ServiceError> {
    endpoint
        .dial(None, None)?
        .ask("GET", "/.kuroshio/plan", None::<&()>)
}

/// Changes a route of a service's rate plan.
pub fn plan_change(endpoint: &Endpoint, route: &str, capacity: BitRate) -> Result<PlanReport, ServiceError> {
    let change = PlanChange {
        route: route.to_owned(),
        capacity_bps: capacity.bps(),
    };
    endpoint
        .dial(None, None)?
        .ask("POST", "/.kuroshio/plan", Some(&change))
}
