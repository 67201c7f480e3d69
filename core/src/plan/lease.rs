//! What goes in and out of the arbiter: numbers, grants, errors.

use crate::units::{BitRate, PicoDuration, PicoTime};
use core::fmt;

/// A route's number in its plan, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteId(pub u32);

/// A lease's number, unique over restarts of the arbiter when `instance` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId {
    /// The arbiter's instance.
    pub instance: u64,
    /// Counted from 0 in that instance.
    pub number: u64,
}

/// What a holder is told. The one with the highest serial counts, from the moment it arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The lease, to renew and release it by.
    pub id: LeaseId,
    /// Its route.
    pub route: RouteId,
    /// Rate to send at, frame level.
    pub rate: BitRate,
    /// Rate to fall to when `ttl` has passed without another grant, frame level.
    pub floor: BitRate,
    /// How long `rate` may be used, counted from the moment the request was **sent**.
    pub ttl: PicoDuration,
    /// Rises with each change of the rate; the next renewal shows it.
    pub serial: u64,
}

/// A renewal of this lease would now give another rate, or the lease has lapsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseChanged {
    /// The lease.
    pub id: LeaseId,
    /// The rate that a renewal gives now; of a lapsed lease the floor that it has fallen to. Frame level.
    pub rate: BitRate,
    /// Whether the lease ran out.
    pub lapsed: bool,
}

/// One lease as an administrator sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseView {
    /// The lease.
    pub id: LeaseId,
    /// The most it asked for, frame level.
    pub max: BitRate,
    /// The rate granted last, frame level.
    pub rate: BitRate,
    /// Its fair share, which it reaches as the others come down, in bit/s, frame level.
    pub target_bps: u64,
    /// What it is counted at in the route's sum, in bit/s, frame level.
    pub charge_bps: u64,
    /// When the arbiter takes the last grant for ended.
    pub until: PicoTime,
    /// Whether the lease ran out.
    pub lapsed: bool,
}

/// Why the plan refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanError {
    /// No such route.
    UnknownRoute(RouteId),
    /// No such lease: released, forgotten, or of an earlier arbiter. Acquire another.
    UnknownLease(LeaseId),
    /// A serial that was never granted.
    UnknownSerial(LeaseId),
    /// The route has as many streams as it may have (or as it has bits per second).
    TooManyStreams(RouteId),
    /// The floors of all streams do not fit in the usable capacity.
    FloorsExceedCapacity {
        /// The route.
        route: RouteId,
        /// Floor times streams, in bit/s, frame level.
        floors_bps: u128,
        /// Capacity less headroom, in bit/s, frame level.
        usable_bps: u64,
    },
    /// More routes, streams per route than the arbiter's limits, or a time to live of zero.
    BadConfig(&'static str),
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownRoute(r) => write!(f, "no route {} in the plan", r.0),
            Self::UnknownLease(l) => write!(f, "no lease {}: acquire another", l.number),
            Self::UnknownSerial(l) => write!(f, "lease {} was never granted that serial", l.number),
            Self::TooManyStreams(r) => write!(f, "route {} has no place for another stream", r.0),
            Self::FloorsExceedCapacity {
                route,
                floors_bps,
                usable_bps,
            } => write!(
                f,
                "route {}: the floors of all its streams are {floors_bps}bit/s, more than the {usable_bps}bit/s \
                 that its capacity leaves after the headroom; lower the floor or the number of streams",
                route.0
            ),
            Self::BadConfig(what) => f.write_str(what),
        }
    }
}

impl core::error::Error for PlanError {}
