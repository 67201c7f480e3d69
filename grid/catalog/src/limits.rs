//! Every limit of the catalog. An operation beyond one of them is refused with an error that names it.

/// Longest name of a directory entry, bytes (`NAME_MAX` of Linux).
pub const MAX_NAME: usize = 255;
/// Longest path given to an operation, bytes (`PATH_MAX` of Linux).
pub const MAX_PATH: usize = 4096;
/// Longest target of a symbolic link, bytes.
pub const MAX_TARGET: usize = 4095;
/// Symbolic links followed in one walk (Linux's `MAXSYMLINKS`).
pub const MAX_SYMLINKS: u32 = 40;
/// Deepest directory below the root that can be moved, told the path of, or begun from by a user.
pub const MAX_DEPTH: u32 = 2048;
/// Hard links to one file (ext4's limit).
pub const MAX_LINKS: u32 = 65_000;
/// Longest user, group, node or site name, bytes.
pub const MAX_PRINCIPAL: usize = 128;
/// Groups of one caller.
pub const MAX_GROUPS: usize = 1024;
/// Entries of one ACL.
pub const MAX_ACL_ENTRIES: usize = 256;
/// Longest name of an extended attribute, bytes (`XATTR_NAME_MAX`).
pub const MAX_XATTR_NAME: usize = 255;
/// Longest value of an extended attribute, bytes (`XATTR_SIZE_MAX`).
pub const MAX_XATTR_VALUE: usize = 64 << 10;
/// All names and values of one inode's extended attributes together, bytes.
pub const MAX_XATTR_TOTAL: usize = 256 << 10;
/// Fragments of one file.
pub const MAX_FRAGMENTS: usize = 65_536;
/// Replicas of one fragment.
pub const MAX_REPLICAS: usize = 256;
/// Size of one file, bytes.
pub const MAX_FILE_SIZE: u64 = 1 << 60;
/// Copies that a rule may ask for, in sum.
pub const MAX_COPIES: u32 = 64;
/// Sites that a copy rule may name.
pub const MAX_RULE_SITES: usize = 32;
/// Rows in one page of any listing.
pub const MAX_PAGE: u32 = 10_000;
/// Nodes of a grid.
pub const MAX_NODES: u64 = 10_000;
/// Sites of a grid.
pub const MAX_SITES: u64 = 1_000;
/// Leases on one route.
pub const MAX_LEASES: u64 = 10_000;
/// Jobs that are queued or running.
pub const MAX_OPEN_JOBS: u64 = 1_000_000;
/// Jobs made by one operation.
pub const MAX_NEW_JOBS: usize = 1000;
/// Replicas looked at by one [`crate::ReckonNode`].
pub const MAX_RECKON: u32 = 1000;
/// Contents given up by one [`crate::Reap`].
pub const MAX_REAP: u32 = 1000;
/// Longest life of a claim, lease or hold, milliseconds (a day).
pub const MAX_TTL_MS: u64 = 86_400_000;
/// How long a staged fragment waits for its commit after the last one was staged, nanoseconds (a day).
pub const STAGED_NS: i64 = 86_400_000_000_000;
/// Longest free text (a job's error, a node's address or pin), bytes.
pub const MAX_TEXT: usize = 1024;
/// Files and drafts that are open in one service; more are refused with `Busy`.
pub const MAX_OPEN: usize = 1_000_000;
/// Operations waiting for a writer; more are refused with `Busy`.
pub const MAX_QUEUE: usize = 65_536;
/// Operations of one group commit: bounds how long a reader of the log or a lock waits.
pub const MAX_BATCH: usize = 256;
/// Numbers reserved by one durable write for [`crate::Allocate`] and [`crate::OpenWrite`].
pub const ID_BLOCK: u64 = 4096;
/// Log of the embedded catalog that can be made in advance, bytes.
pub const MAX_LOG_BYTES: u64 = 64 << 20;
