//! Data service: identity, HTTP ranges, upgrade to framed streams, rate leases.
//!
//! ```text
//!   curl, rclone ──GET/HEAD ranges──┐                        ┌─ root (files, openat2 beneath)
//!   cp ──POST /.kuroshio/sessions───┤ front (TLS, token) ────┼─ sessions ─ transfer::send / receive
//!   cp ──GET  …/fwd|rev|data (101)──┤                        ├─ third-party copy ─ client
//!   cp ──POST /.kuroshio/leases─────┘                        └─ leases (core::plan::Arbiter)
//! ```
//!
//! The front door is asynchronous (hyper); after `101 Switching Protocols` a socket belongs to the
//! blocking threads of the data mover. One identity mechanism holds everywhere: TLS 1.3 with the
//! service's key pinned by its fingerprint, and a token that says which operation on which path until
//! when. A [`Ticket`] is address, pin and token on one line.

pub mod api;
pub mod body;
mod client;
mod copies;
pub mod door;
mod error;
mod files;
mod front;
mod handle;
mod identity;
pub mod near;
mod paced;
mod pacer;
mod path;
mod pin;
mod plan;
pub mod private;
mod range;
pub mod report;
mod server;
mod sessions;
mod ticket;
mod tls;
mod token;
mod trust;
mod wire;

pub use client::{
    BetweenJob, Endpoint, HttpConn, PullJob, PushJob, RemotePlan, Route, Security, check_congestion,
    copy_between, dial_tls, plan_change, plan_report, pull, push,
};
pub use error::ServiceError;
pub use front::{HANDSHAKE_LIMIT_S, HEADER_LIMIT_S, MAX_CONNECTIONS, MAX_HEADER_BYTES, MAX_HEADERS};
pub use identity::{DEFAULT_VALIDITY_S, Identity};
pub use paced::PacedSocket;
pub use pacer::{FollowWindow, OwnLimit, PaceGuard, Paced, Pacer};
pub use path::{PathError, Root, RootPath};
pub use pin::Pin;
pub use plan::{LocalPlan, PlanKeeper};
pub use server::{STOP_LIMIT_S, Security as ServeSecurity, ServeConfig, Service};
pub use sessions::{CONTROL_LIMIT_S, JOIN_LIMIT_S, MAX_SESSIONS};
pub use ticket::{MAX_ADDRESSES, MAX_TICKET_BYTES, Ticket, TicketError, check_address, check_addresses};
pub use token::{
    Claims, DEFAULT_SCOPE, FileFacts, MAX_TOKEN_BYTES, Operation, TokenError, Verifier, check_scope,
    now_unix_s,
};
pub use trust::{MAX_NAME_BYTES, MAX_TRUST_BYTES, TrustStore, check_name};
