//! Client of a grid: speaks to the metadata service, reads and writes content at the nodes.
//!
//! ```text
//!   Grid ──requests (pipelined, TLS, pinned)──> metadata service
//!     │          <── grants: places with a token each ──┘
//!     ├──HTTP ranges (TLS, pinned, the grant's token)──> data service of a node
//!     └──files handed over (Unix socket, the same token)─> data service of a node on this host
//! ```
//!
//! All calls block; [`Grid::submit`] begins a request without waiting for its answer, so that many may be
//! on their way. A [`Grid`] may be used from many threads.

mod check;
mod connection;
mod content;
mod error;
mod fragments;
mod grid;
mod meta;
mod near;
mod pool;
mod range;
mod send;
mod service;

pub use check::CheckedReplica;
pub use content::{
    Cancel, Once, PART_BYTES, Part, PutOptions, Received, SMALL_BYTES, Sent, Sink, Stored, unhex,
};
pub use error::ClientError;
pub use fragments::{Draft, DraftPlace, cut};
pub use grid::{Entries, Grid, Pending, RETRY_LIMIT, host_name};
pub use kuroshio_proto::{code_name, v1};
pub use near::{Near, Written};
