//! What client and service say to each other before a socket is upgraded: JSON over HTTP/1.1.
//!
//! ```text
//!   POST /.kuroshio/sessions              SessionRequest  -> 201 SessionGranted
//!   GET  /.kuroshio/sessions/ID/fwd       Upgrade: kuroshio/1 -> 101, control sender -> receiver
//!   GET  /.kuroshio/sessions/ID/rev       likewise, control receiver -> sender
//!   GET  /.kuroshio/sessions/ID/data/N    likewise, data stream N
//!   POST /.kuroshio/copies                CopyRequest     -> 200, one CopyLine per line until the end
//!   POST /.kuroshio/copies/ID/told        (nothing)       -> 204, the user has seen the end
//!   GET  /.kuroshio/plan                                  -> 200 PlanReport
//!   POST /.kuroshio/plan                  PlanChange      -> 200 PlanReport
//!   POST /.kuroshio/leases                LeaseRequest    -> 201 LeaseGranted
//!   POST /.kuroshio/leases/renew          LeaseRenewal    -> 200 LeaseGranted (waits for a change)
//!   POST /.kuroshio/leases/release        LeaseRelease    -> 204
//! ```
//!
//! Paths in JSON are percent-encoded (names are bytes). Unknown members are refused: a service never
//! ignores what a client asked for.

use kuroshio_transfer::{Options, SessionKey};
use serde::{Deserialize, Serialize};

use crate::report::{CopyReport, EventReport, ProgressReport};

/// Prefix of every endpoint; files of this name at the root are not served.
pub const API_PREFIX: &str = "/.kuroshio/";
/// Value of the `Upgrade` header.
pub const UPGRADE: &str = "kuroshio/1";
/// Largest request body.
pub const MAX_BODY_BYTES: usize = 1024 * 1024;
/// Data streams of one session, all routes together.
pub const MAX_STREAMS: u32 = 256;
/// Routes of one session.
pub const MAX_ROUTES: usize = 64;
/// Sources of one session.
pub const MAX_SOURCES: usize = 1024;

/// Which way the data flows, seen from the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Client sends.
    Push,
    /// Service sends.
    Pull,
}

/// Asks for a session.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SessionRequest {
    /// Which way.
    pub direction: Direction,
    /// Push: the one destination. Pull: the sources. Percent-encoded.
    pub paths: Vec<String>,
    /// Groups of streams.
    pub routes: Vec<RouteRequest>,
    /// Congestion control of a sending service's sockets.
    pub congestion: Option<String>,
    /// Options of a sending service (a receiving one learns them from the sender).
    pub options: Options,
    /// Names the transfer for resume.
    pub key: SessionKey,
}

/// One group of streams.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteRequest {
    /// How many streams.
    pub streams: u32,
    /// Rate of the group in sum, frame level, bit/s.
    pub rate_bps: Option<u64>,
}

/// A session waits for its connections.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SessionGranted {
    /// Its name in the upgrade requests.
    pub session: String,
}

/// Asks a service to send to another service.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CopyRequest {
    /// Sources at the service that is asked, percent-encoded.
    pub sources: Vec<String>,
    /// Who receives.
    pub to: Receiver,
    /// Where at the receiver, percent-encoded.
    pub destination: String,
    /// Groups of streams: where each dials (`HOST:PORT`; none: the receiver's own address).
    pub routes: Vec<CopyRoute>,
    /// Congestion control of the sender's sockets.
    pub congestion: Option<String>,
    /// Options.
    pub options: Options,
    /// Names the transfer for resume.
    pub key: SessionKey,
}

/// The receiving service of a third-party copy.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Receiver {
    /// `HOST:PORT`.
    pub address: String,
    /// Pin and token; none only between insecure services.
    pub identity: Option<(String, String)>,
}

/// One group of streams of a third-party copy.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CopyRoute {
    /// Address to dial for this route.
    pub via: Option<String>,
    /// How many streams.
    pub streams: u32,
    /// Rate in sum, frame level, bit/s.
    pub rate_bps: Option<u64>,
}

/// One line of a third-party copy's answer.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CopyLine {
    /// The first line: the copy's name.
    Started {
        /// Hexadecimal; `copies/ID/told` says that the user has seen the end.
        id: String,
    },
    /// Where it stands.
    Progress(ProgressReport),
    /// Something happened to one file.
    Event(EventReport),
    /// The last line of a session that came to its end.
    Done(CopyReport),
    /// The last line of one that did not.
    Error(String),
}

/// Asks for rate leases, one per stream.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeaseRequest {
    /// The streams.
    pub streams: Vec<LeaseStream>,
}

/// A stream that wants to leave the site.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeaseStream {
    /// IP address it goes to.
    pub to: std::net::IpAddr,
    /// Most that it can use, frame level, bit/s.
    pub max_bps: Option<u64>,
}

/// Leases and their rates.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseGranted {
    /// How long each rate may be used, ms, counted from when the request was sent.
    pub ttl_ms: u64,
    /// In the order that was asked; of a renewal, those that are known.
    pub leases: Vec<Lease>,
    /// Leases that are not known any more: ask for others.
    #[serde(default)]
    pub gone: Vec<String>,
}

/// One stream's lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Names it when renewing; none when no route of the plan leads there.
    pub id: Option<String>,
    /// The route it goes over.
    pub route: Option<String>,
    /// Rises with the rate's changes; the next renewal shows it.
    pub serial: u64,
    /// Rate now, frame level, bit/s; none is no limit.
    pub rate_bps: Option<u64>,
    /// Rate once the lease has ended without renewal, frame level, bit/s; none is no limit.
    pub floor_bps: Option<u64>,
}

/// Renews leases; answered at once when a rate changes, else after `wait_ms`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeaseRenewal {
    /// Which.
    pub leases: Vec<LeaseHeld>,
    /// Longest wait, ms; at most a third of the time to live is used.
    pub wait_ms: u64,
}

/// A lease as its holder knows it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeaseHeld {
    /// Its name.
    pub id: String,
    /// The serial of the grant that is used.
    pub serial: u64,
}

/// Gives leases back.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeaseRelease {
    /// Which.
    pub ids: Vec<String>,
}

/// The rate plan now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanReport {
    /// Routes in the order of the plan file.
    pub routes: Vec<PlanRoute>,
    /// Time to live of a lease, ms.
    pub ttl_ms: u64,
    /// Whether all of the routes can be given out: not until leases of an earlier life have ended.
    pub ready: bool,
}

/// One route of the plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanRoute {
    /// Its name.
    pub name: String,
    /// Destinations, as CIDR.
    pub to: Vec<String>,
    /// Capacity, frame level, bit/s.
    pub capacity_bps: u64,
    /// What streams may use in sum after the headroom, frame level, bit/s.
    pub usable_bps: u64,
    /// Rate of a stream without a lease, frame level, bit/s.
    pub floor_bps: u64,
    /// Streams with leases now.
    pub streams: u64,
    /// Sum of their rates, frame level, bit/s.
    pub granted_bps: u64,
}

/// Changes a route.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanChange {
    /// Which.
    pub route: String,
    /// Capacity from now, frame level, bit/s.
    pub capacity_bps: u64,
}
