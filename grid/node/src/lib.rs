//! A node of a grid: keeps objects in a spool, gives and takes them by HTTP, and does what the metadata
//! service orders.
//!
//! ```text
//!   client, node ──GET ranges / PUT parts (TLS, token of the grid)──> data ──> spool
//!   metadata service <──join, heartbeat── control ──orders──> pull ──> spool
//! ```

mod config;
mod control;
mod data;
mod drafts;
mod flow;
mod inventory;
mod local;
mod look;
mod memory;
mod pull;
mod scrub;
mod server;

pub use config::NodeConfig;
pub use data::MAX_PART_BYTES;
pub use pull::AHEAD;
pub use server::{Node, NodeError};
