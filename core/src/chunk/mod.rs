//! What of which file goes on which stream next, and what a file's digest is made of.
//!
//! ```text
//!            wanted ranges                 piece                      frame
//!  receiver ---------------> Scheduler --------------> stream thread ---------> wire
//!                              ^   ^                        |
//!            Written, Bad -----'   '---- stream lost        '--> SubtreeHasher -> DigestTree -> file digest
//! ```
//!
//! - [`RangeSet`]: disjoint byte ranges of one file, sorted, merged.
//! - [`Scheduler`]: cuts wanted ranges into *pieces* (aligned powers of two, the file's last one shorter)
//!   and keeps for every wanted byte exactly one state: to send, on a stream, or written.
//! - [`SubtreeHasher`], [`DigestTree`]: the BLAKE3 chaining value of each piece, and their merge into the
//!   digest of the file in any order of arrival.
//!
//! All lengths and offsets are payload bytes of a file.

mod digest;
mod ranges;
mod scheduler;
#[cfg(test)]
mod scheduler_tests;
mod tail;
mod types;

pub use digest::{
    Digest, DigestError, DigestTree, EMPTY_ROOT, Inserted, LEAF_BYTES, MAX_TREE_NODES, SubtreeHasher,
    piece_digest, subtree_cv,
};
pub use ranges::{RangeError, RangeSet};
pub use scheduler::Scheduler;
pub use types::{
    Acked, Config, FileId, MAX_CHUNK_BYTES, MAX_STREAMS, Piece, RECHECK, ScheduleError, Stats, StreamId,
};
