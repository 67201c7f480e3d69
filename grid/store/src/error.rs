//! What can go wrong, in words a person can act on.

use crate::Mode;
use crate::id::ObjectId;
use kuroshio_core::chunk::Digest;
use std::io;
use std::ops::Range;
use std::path::PathBuf;

/// An error of a store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// An argument was wrong; nothing changed. Says what and what would be valid.
    #[error("{0}")]
    Invalid(String),
    /// There is no such object.
    #[error("no object {0} in this store")]
    NotFound(ObjectId),
    /// The object is there with other content. A new content is a new generation.
    #[error("object {0} is there already with other content; a new content is a new generation")]
    Exists(ObjectId),
    /// Somebody else writes it at this moment.
    #[error("object {0} is being written by somebody else")]
    Busy(ObjectId),
    /// This writer has finished.
    #[error("object {0} is finished and cannot be written any more")]
    Closed(ObjectId),
    /// The space is not there. Nothing of the refused request was kept.
    #[error("no space: {wanted_bytes} bytes wanted, {free_bytes} free for objects")]
    NoSpace {
        /// What the request needs, in blocks of 4 KiB.
        wanted_bytes: u64,
        /// What could be given.
        free_bytes: u64,
    },
    /// The store's mode forbids it.
    #[error("refused: the store is {0}")]
    Refused(Mode),
    /// Bytes are missing.
    #[error("object {id} is not complete: bytes {} are missing", spans(.missing))]
    Incomplete {
        /// Which object.
        id: ObjectId,
        /// The first of the missing ranges.
        missing: Vec<Range<u64>>,
    },
    /// All bytes are there, and are others than were announced.
    #[error("object {id} has digest {}, but {} was announced", hex(.found), hex(.expected))]
    Digest {
        /// Which object.
        id: ObjectId,
        /// The digest announced.
        expected: Digest,
        /// The digest of what was written.
        found: Digest,
    },
    /// Bytes read back differ from those written. They count as missing now: write them again, then finish.
    #[error("object {id}: bytes {} read back differently from how they were written", spans(.ranges))]
    Damaged {
        /// Which object.
        id: ObjectId,
        /// The first of the ranges to write again.
        ranges: Vec<Range<u64>>,
    },
    /// A stored object is not what it should be.
    #[error("object {id} is damaged: {what}")]
    Corrupt {
        /// Which object.
        id: ObjectId,
        /// What was found.
        what: String,
    },
    /// Another process has the spool open.
    #[error("{}: another process has this spool open", .0.display())]
    Locked(PathBuf),
    /// The folder holds something else.
    #[error("{}: not a spool: {what}", path.display())]
    NotASpool {
        /// The folder.
        path: PathBuf,
        /// What was found or is missing.
        what: String,
    },
    /// A limit of this store.
    #[error("too many {0} at once")]
    TooMany(&'static str),
    /// The machine refused.
    #[error("{what} {}: {source}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// On which file, beneath the spool or absolute.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
}

impl StoreError {
    pub(crate) fn io(what: &'static str, path: impl Into<PathBuf>, source: impl Into<io::Error>) -> Self {
        Self::Io {
            what,
            path: path.into(),
            source: source.into(),
        }
    }
}

/// Hexadecimal digits of a digest.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: [char; 16] = [
        '0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f',
    ];
    let digits = bytes.iter().flat_map(|b| [b >> 4, b & 15]);
    digits.filter_map(|d| DIGITS.get(usize::from(d))).collect()
}

fn spans(list: &[Range<u64>]) -> String {
    let texts: Vec<String> = list.iter().map(|r| format!("{}..{}", r.start, r.end)).collect();
    texts.join(", ")
}

/// The first ranges of a set, for an error.
pub(crate) fn told(set: &kuroshio_core::chunk::RangeSet) -> Vec<Range<u64>> {
    set.iter().take(crate::limits::MAX_RANGES_TOLD).collect()
}
