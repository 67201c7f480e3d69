//! Metadata service of a grid.
//!
//! ```text
//!   client ──frames / gRPC (TLS, token)──> door ──> answer ──> catalog (durable)
//!                                                     │
//!   node ──join, heartbeat──> registry <──orders── jobs <── upkeep (repair, drain, removal, lost nodes)
//! ```
//!
//! What must survive is in the catalog. What is kept here and lost with the process: which nodes were heard
//! of lately, the orders that nodes work at, the rights to read that connections hold. A restart takes
//! running jobs over when their claims have ended.

mod answer;
mod auth;
mod config;
mod content;
mod convert;
mod door;
mod jobs;
mod node;
mod receipt;
mod registry;
mod rpc;
mod server;
mod upkeep;
mod xattr;

pub use config::{Config, Timing};
pub use server::{Metad, MetadError};
