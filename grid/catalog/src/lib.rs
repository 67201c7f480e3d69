//! Namespace and replica catalog of the grid file system.
//!
//! # Model
//!
//! ```text
//!   name --(directory entry)--> inode --(current generation)--> fragments --> replicas on nodes
//!   /a/b                        owner, mode, times, ACL,        0, 1, 2...     node, state
//!                               xattrs, copy rule               size, digest
//! ```
//!
//! Every operation ([`Op`]) is one whole transaction with the caller's permissions checked inside it. A
//! [`Catalog`] takes an operation and answers when it is **durable** (operations that change something) or
//! when it was read from a snapshot at least as new as every change answered before.
//!
//! Content is never changed in place. A writer gets a [`Draft`]: a generation number that no other content
//! of the grid has or ever had. It stores objects ([`ObjectId`]: inode, generation, fragment index) on
//! nodes, then [`Commit`] publishes them as the file's content in one step. Readers of the former content
//! keep it until they release it; so does a file that was unlinked while open.
//!
//! ```text
//!   replica:  (none) --AddReplica--> Writing --SetReplica--> Valid --(scrub)--> Stale --> Removing
//!                                       |                      |  \--(node lost)--> Lost     |
//!                                       \--DropReplica         \--RemoveReplica--> Removing -+--DropReplica--> (none)
//! ```
//!
//! The last valid replica of a fragment that is in use cannot be removed.
//!
//! # Back ends
//!
//! [`Sqlite`] is embedded (one process); [`Postgres`] lets several processes work beside each other on one
//! database. Both run the same operations (`ops`) over one small layer of SQL (`sql`), and one conformance
//! suite. `docs/catalog.md` has the schema, the invariants and the limits.

mod acl;
mod answer;
mod attr;
mod catalog;
mod content;
mod dump;
mod engine;
mod error;
mod id;
mod job;
pub mod limits;
mod node;
mod op;
mod ops;
mod postgres;
mod reply;
mod sql;
mod sqlite;
mod state;

pub use acl::{Acl, AclEntry, AclKind, AclTag};
pub use answer::{
    Created, DirEntry, DirPage, NodeReplica, QuotaKind, QuotaSubject, RenameMode, SetXattrMode, Usage,
};
pub use attr::{Access, Attr, Kind, SetTime, Timestamp};
pub use catalog::{Catalog, CatalogExt, Done};
pub use content::{
    ContentLayout, CopyBalance, CopyRule, Digest, Draft, Fragment, NewFragment, OffCopies, OpenFile, Replica,
    ReplicaState,
};
pub use dump::{DumpRow, DumpSink, DumpedInode};
pub use engine::{Options, Trace, TraceEvent};
pub use error::{CatalogError, ErrorKind};
pub use id::{Caller, Generation, Handle, Ino, JobId, ObjectId, Place, Role, is_principal};
pub use job::{Job, JobFilter, JobKind, JobState, NewJob};
pub use node::{Lease, Node, NodeReport, NodeState, Presence, PresenceKind, Route, Site, SpaceTotals, Turn};
pub use op::*;
pub use postgres::Postgres;
pub use reply::Reply;
pub use sqlite::Sqlite;
pub use state::Clock;
