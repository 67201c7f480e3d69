//! A grid as a POSIX file system, by FUSE.
//!
//! ```text
//!   process ──system call──> kernel ──FUSE──> names, attributes ──> metadata service (durable when answered)
//!                                      │
//!                                      ├─ read:  open file ──> node's data service, or its file on this host
//!                                      └─ write: draft (local file) ──fsync, close──> node ──> commit
//! ```
//!
//! # Consistency
//!
//! Close to open: who opens a file sees what every `close` and `fsync` before has acknowledged, through whichever
//! mount. An open file keeps the content that it was opened with; handles of one file on one mount share
//! what was written there. Of two mounts that write one file the later commit stays, whole. Names and
//! attributes may be as old as [`Options::cache`].
//!
//! # Durability
//!
//! A change of names or attributes is durable when the call returns. Written bytes are in a local file without a
//! name until `fsync` or `close`; when those return without an error the bytes are on the disk of a node and
//! published by one transaction. When the mount's process ends before, they are gone, and the file is as it was.

mod acl;
mod answer;
mod attr;
mod commit;
mod dir;
mod draft;
mod errno;
mod fetch;
mod files;
mod fs;
mod guard;
mod ids;
mod mount;
mod names;
mod open;
mod xattr;

pub use guard::{guard, unmount};
pub use mount::{Mount, MountError, Options};
