//! What only the catalog knows, as rows: what a snapshot of it is made of.
//!
//! ```text
//!   Begin, Inode by number, Name by directory and name, Xattr by inode and name, Bound
//! ```
//!
//! All of one moment (one transaction). Contents, replicas, nodes and jobs are not among them: nodes tell of those themselves.

use crate::{Acl, Attr, Ino, QuotaKind, Timestamp};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// An inode with all that belongs to it but its names and extended attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DumpedInode {
    /// Its attributes.
    pub attr: Attr,
    /// The directory that it was last made in or renamed into.
    pub parent: Ino,
    /// Its access ACL, if it has one beyond the mode.
    pub acl: Option<Acl>,
    /// Of a directory: what is made in it begins with.
    pub default_acl: Option<Acl>,
    /// Target of a symbolic link.
    pub target: Option<Vec<u8>>,
}

/// A row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DumpRow {
    /// The first row. A dump that is begun again begins with it again: rows before it are void.
    Begin {
        /// No number from this one on was given out (on PostgreSQL: reserved) when the dump began.
        next: u64,
        /// When it began.
        taken: Timestamp,
    },
    /// An inode that has a name.
    Inode(Box<DumpedInode>),
    /// A name.
    Name {
        /// Directory.
        parent: Ino,
        /// Name.
        name: Vec<u8>,
        /// What it leads to.
        ino: Ino,
    },
    /// An extended attribute.
    Xattr {
        /// Of which inode.
        ino: Ino,
        /// Its name with its namespace.
        name: Vec<u8>,
        /// Its value.
        value: Vec<u8>,
    },
    /// A quota.
    Bound {
        /// Whose.
        kind: QuotaKind,
        /// User, group, or decimal inode number of a directory.
        name: String,
        /// Files at most.
        max_files: Option<u64>,
        /// Bytes at most.
        max_bytes: Option<u64>,
    },
}

type Take = dyn FnMut(DumpRow) -> Result<(), String> + Send;

/// Takes rows, on a thread of the catalog; what it refuses ends the dump with these words.
#[derive(Clone)]
pub struct DumpSink(Arc<Mutex<Take>>);

impl DumpSink {
    /// Gives each row to `take`.
    pub fn new(take: impl FnMut(DumpRow) -> Result<(), String> + Send + 'static) -> Self {
        Self(Arc::new(Mutex::new(take)))
    }

    pub(crate) fn give(&self, row: DumpRow) -> Result<(), String> {
        (self.0.lock().unwrap_or_else(PoisonError::into_inner))(row)
    }
}

impl fmt::Debug for DumpSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DumpSink")
    }
}

impl PartialEq for DumpSink {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
