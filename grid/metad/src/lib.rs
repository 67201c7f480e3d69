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
//!
//! Several services may stand beside each other on one PostgreSQL catalog; they have the same keys (`init
//! --beside`), so that a right that one gave is good at all. A node speaks to one of them, `presence` tells the
//! others; jobs go to the service that the destination speaks to; `turn` says who does the upkeep of the whole.

mod answer;
mod auth;
mod config;
mod content;
mod convert;
mod damage;
mod door;
mod jobs;
mod meta;
mod node;
mod place;
mod posix;
mod presence;
mod rebuild;
mod receipt;
mod registry;
mod repair;
mod rpc;
mod server;
mod snapshot;
mod spools;
mod stage;
mod start;
mod traffic;
mod turn;
mod upkeep;

pub use config::{Config, Replication, RouteConfig, Timing};
pub use node::HEARTBEAT_MS;
pub use server::{Metad, MetadError};
#[doc(hidden)]
pub use snapshot::try_records;
pub use start::{beside, make_keys, open_catalog};
pub use traffic::rules;
