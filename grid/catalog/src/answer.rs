//! Arguments and answers of operations.

use crate::{Attr, Digest, Draft, Ino, Kind, ObjectId, Place, ReplicaState};

/// What [`crate::Rename`] does with what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    /// Replaces it.
    Replace,
    /// Refuses (`Exists`).
    NoReplace,
    /// Exchanges the two names.
    Exchange,
}

/// Whether an extended attribute must be there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetXattrMode {
    /// Either.
    Any,
    /// It must not (`Exists`).
    Create,
    /// It must (`NoData`).
    Replace,
}

/// Whose quota.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QuotaSubject {
    /// What a user owns.
    User(String),
    /// What a group owns.
    Group(String),
    /// A directory and all below it.
    Dir(Place),
}

/// Kinds of [`QuotaSubject`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaKind {
    /// Users.
    User,
    /// Groups.
    Group,
    /// Directories.
    Dir,
}

/// Usage and quota.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage {
    /// User or group name, or the directory's inode number in decimal.
    pub name: String,
    /// Inodes.
    pub files: u64,
    /// Payload bytes of published contents, each file counted once.
    pub bytes: u64,
    /// Bound of the inodes.
    pub max_files: Option<u64>,
    /// Bound of the bytes.
    pub max_bytes: Option<u64>,
}

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// Name: 1 to 255 bytes, no slash, no zero.
    pub name: Vec<u8>,
    /// Inode.
    pub ino: Ino,
    /// What it is.
    pub kind: Kind,
    /// Attributes, if asked for.
    pub attr: Option<Attr>,
}

/// A page of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirPage {
    /// In the order of the names' bytes. The last name is the next page's `after`.
    pub entries: Vec<DirEntry>,
    /// Whether there is more.
    pub more: bool,
}

/// What [`crate::Create`] did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Created {
    /// Attributes.
    pub attr: Attr,
    /// Whether the file is new.
    pub created: bool,
    /// The draft, if asked for.
    pub draft: Option<Draft>,
}

/// A replica with what a node needs to know of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeReplica {
    /// The fragment.
    pub object: ObjectId,
    /// State of the node's replica.
    pub state: ReplicaState,
    /// Payload bytes.
    pub size: u64,
    /// BLAKE3.
    pub digest: Digest,
}
