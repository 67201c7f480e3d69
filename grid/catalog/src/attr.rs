//! Attributes of an inode.

use crate::{CopyRule, Generation, Ino};

/// What an inode is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Regular file.
    File,
    /// Directory.
    Dir,
    /// Symbolic link.
    Symlink,
    /// A FIFO: a name for processes of one host to meet at; it has no content.
    Fifo,
    /// A socket: as a FIFO.
    Socket,
}

impl Kind {
    /// Whether it is a name alone, with nothing behind it that the grid keeps.
    #[must_use]
    pub fn is_special(self) -> bool {
        matches!(self, Kind::Fifo | Kind::Socket)
    }
}

/// Nanoseconds since 1970-01-01 UTC: 1677 to 2262.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// The machine's clock now, held to the range.
    #[must_use]
    pub fn now() -> Self {
        use std::time::{SystemTime, UNIX_EPOCH};
        let ns = match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(d) => i64::try_from(d.as_nanos()).unwrap_or(i64::MAX),
            Err(e) => i64::try_from(e.duration().as_nanos()).map_or(i64::MIN, |n| -n),
        };
        Self(ns)
    }
}

/// How [`crate::SetAttr`] sets a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The catalog's clock (allowed to whoever may write the file).
    Now,
    /// A given time (allowed to the owner).
    At(Timestamp),
}

/// Permission asked for; a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access(u8);

impl Access {
    /// Nothing but that the file is there.
    pub const EXISTS: Access = Access(0);
    /// Execute, or search of a directory.
    pub const EXECUTE: Access = Access(1);
    /// Write.
    pub const WRITE: Access = Access(2);
    /// Read.
    pub const READ: Access = Access(4);

    /// Both sets.
    #[must_use]
    pub const fn and(self, other: Access) -> Access {
        Access(self.0 | other.0)
    }

    /// The bits `rwx` as 4, 2, 1.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }
}

/// Attributes of an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attr {
    /// Number.
    pub ino: Ino,
    /// What it is.
    pub kind: Kind,
    /// Permission bits with set-user-ID, set-group-ID and sticky: 0 to 0o7777. With an ACL the group bits
    /// are its mask, as in POSIX.1e.
    pub mode: u32,
    /// Owner.
    pub owner: String,
    /// Owning group.
    pub group: String,
    /// Hard links (a directory: 2 and one for each subdirectory). 0: unlinked, held open.
    pub links: u32,
    /// Payload bytes: of the content, or of a symbolic link's target; 0 for a directory.
    pub size: u64,
    /// Content now published ([`Generation::EMPTY`] for what has none).
    pub generation: Generation,
    /// Counts changes of the content of this inode.
    pub version: u64,
    /// Fragments of the content.
    pub fragments: u32,
    /// Last read that was recorded (only [`crate::SetAttr`] does).
    pub atime: Timestamp,
    /// Last change of content or entries.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Creation.
    pub btime: Timestamp,
    /// Copies wanted; for a directory, of what is made in it.
    pub copies: CopyRule,
    /// Whether there is an access ACL beyond the mode.
    pub acl: bool,
}
