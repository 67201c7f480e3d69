//! Faults on a running grid, from a seed.
//!
//! ```text
//!                 hub (bridge)                       one PostgreSQL server (socket in the file system)
//!      ┌─────────────┼──────────────┐
//!    tokyo        tsukuba          load              each a network namespace; a cut takes its link down
//!    metad a      metad b          threads that put, overwrite, read and remove files of their own
//!    n1 n2        n3 n4 (n4's spool: a small ext4 of its own)
//! ```
//!
//! One *episode*: the load goes on while several faults come, one after another; then everything is healed, the
//! grid settles, and every file is compared. What must hold, always: a read that succeeds gives the content that
//! was acknowledged last; and after each episode
//!
//! - every acknowledged file is there, and what was removed is not;
//! - of what was not answered, either the former or the new content is there;
//! - every replica that the catalog calls valid was read from its node and is right (no entry to bytes that are
//!   not there, no replica below its digest), and the files have as many as their rule wants;
//! - the catalog's own check finds nothing.
//!
//! Faults that take bytes away (a lost disk, bit rot) come when every file has its two copies, and one of them
//! in an episode: with both copies gone nothing could hold.

pub mod fault;
pub mod load;
pub mod net;
pub mod soak;
pub mod world;

#[path = "../../../grid/catalog/tests/suite/server.rs"]
#[allow(missing_docs, dead_code)]
pub mod server;
