//! Nodes, sites, routes and leases on routes.

use crate::Timestamp;

/// What a node may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NodeState {
    /// Reads and writes.
    Up,
    /// Not heard of; its replicas count as long as it is not `Lost`.
    Down,
    /// To be emptied: reads, no new replicas; its replicas do not count as copies.
    Drain,
    /// Reads only; its replicas count.
    ReadOnly,
    /// Gone with its disk: its replicas are `Lost`.
    Lost,
}

/// A host that stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Name, unique in the grid.
    pub name: String,
    /// Site that it belongs to.
    pub site: String,
    /// Where its data service listens (`host:port`).
    pub address: String,
    /// Fingerprint of its key (SPKI, `sha256//...`).
    pub pin: String,
    /// See [`NodeState`].
    pub state: NodeState,
    /// Bytes of the spool's file system.
    pub capacity_bytes: u64,
    /// Of them free.
    pub free_bytes: u64,
    /// Load average of one minute, in thousandths.
    pub load_milli: u32,
    /// Last heartbeat, by the catalog's clock.
    pub heartbeat: Timestamp,
    /// When the state was set.
    pub since: Timestamp,
}

/// What a node says of itself with each heartbeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeReport {
    /// Which node.
    pub node: String,
    /// Bytes of the spool's file system.
    pub capacity_bytes: u64,
    /// Of them free.
    pub free_bytes: u64,
    /// Load average of one minute, in thousandths.
    pub load_milli: u32,
}

/// What makes itself heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PresenceKind {
    /// A node, by its name.
    Node,
    /// A metadata service, by the address that clients dial.
    Service,
}

/// Who is heard of, and by which service. Several services on one catalog so know of each other's nodes. Whether
/// it lives is seen by the change of `beat`; no clock is compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Presence {
    /// What it is.
    pub kind: PresenceKind,
    /// Its name, or a service's address.
    pub name: String,
    /// The service that heard it (its name as a worker of jobs).
    pub via: String,
    /// How often it was recorded. Not read by [`crate::Hear`].
    pub beat: u64,
    /// A node's host name, else empty.
    pub host: String,
    /// Identity of a node's spool, else empty: another one has none of the former one's objects.
    pub spool: String,
    /// Objects that a node keeps.
    pub objects: u64,
    /// Whether a node takes nothing new, by its own word.
    pub closed: bool,
}

/// Whose turn a task of the whole grid is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The service.
    pub holder: String,
    /// Renewals so far. A turn that does not change any more may be taken by others.
    pub beat: u64,
}

/// Nodes behind one uplink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// Name, unique in the grid.
    pub name: String,
    /// Free text.
    pub note: String,
}

/// Site to site, one way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Source site.
    pub from: String,
    /// Destination site.
    pub to: String,
    /// Frame-level capacity that all streams share, bits per second.
    pub capacity_bps: u64,
    /// Sum of the leases that have not ended, bits per second.
    pub leased_bps: u64,
}

/// A part of a route's capacity, until a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Source site.
    pub from: String,
    /// Destination site.
    pub to: String,
    /// Who holds it; one lease for each holder and route.
    pub holder: String,
    /// Frame-level rate, bits per second.
    pub rate_bps: u64,
    /// When it ends, by the catalog's clock.
    pub expires: Timestamp,
}

/// Sums over the grid, for `df`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SpaceTotals {
    /// Bytes of all nodes that are `Up`, `ReadOnly` or `Drain`.
    pub capacity_bytes: u64,
    /// Free bytes of nodes that are `Up`.
    pub free_bytes: u64,
    /// Payload bytes of all published files, each counted once.
    pub used_bytes: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// Nodes that are `Up`.
    pub nodes_up: u32,
    /// All nodes.
    pub nodes: u32,
}
