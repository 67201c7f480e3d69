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

mod error;
mod identity;
mod pin;
mod private;
mod ticket;
mod tls;
mod token;
mod trust;

pub use error::ServiceError;
pub use identity::{DEFAULT_VALIDITY_S, Identity};
pub use pin::Pin;
pub use ticket::{MAX_TICKET_BYTES, Ticket, TicketError};
pub use token::{Claims, DEFAULT_SCOPE, Operation, TokenError, Verifier};
pub use trust::{MAX_NAME_BYTES, MAX_TRUST_BYTES, TrustStore};
