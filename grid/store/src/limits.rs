//! Every limit of a store, in one place.

use std::time::Duration;

/// Largest object, bytes (64 TiB).
pub const MAX_OBJECT_BYTES: u64 = 64 << 40;
/// Largest object that is begun without its size, bytes (1 TiB).
pub const MAX_UNSIZED_BYTES: u64 = 1 << 40;
/// Longest name of an owner or a group, bytes.
pub const MAX_OWNER_BYTES: usize = 255;
/// Longest path kept as a hint, bytes (`PATH_MAX` of Linux).
pub const MAX_HINT_BYTES: usize = 4096;
/// Largest object that [`Store::put`](crate::Store::put) takes in one call, bytes.
pub const MAX_PUT_BYTES: usize = 8 << 20;
/// Least chunk of an object, bytes: the unit of digest and resume, and what a scrub narrows damage down to.
pub const MIN_CHUNK_BYTES: u64 = 1 << 20;
/// Most chunks of an object; larger objects have larger chunks.
pub const MAX_CHUNKS: u64 = 1 << 16;
/// A partial object is kept for resuming when this much of it was written in whole chunks, bytes; smaller ones
/// begin again.
pub const RESUME_BYTES: u64 = 4 << 20;
/// Space is asked of the file system in advance for objects from this size on, bytes.
pub const PREALLOCATE_BYTES: u64 = 1 << 20;
/// An object whose size is not known reserves this much at a time, bytes.
pub const RESERVE_STEP_BYTES: u64 = 16 << 20;
/// Finished objects that wait at the same moment are flushed by one `syncfs` from this number on, else one by one.
pub const GROUP_MIN: usize = 4;
/// Most objects in one flush.
pub const GROUP_MAX: usize = 1024;
/// Objects up to this size are flushed in groups, bytes: a larger one would make the others wait.
pub const GROUP_OBJECT_BYTES: u64 = 8 << 20;
/// The largest slots, bytes: content and trailer of a small object.
pub const SLOT_BYTES: usize = 16 << 10;
/// When slots could not be made: how long until that is tried again.
pub const SLOT_PAUSE: Duration = Duration::from_secs(10);
/// Bytes read and digested at a time.
pub const HASH_BUFFER_BYTES: usize = 128 << 10;
/// Bytes of a large object that are written before they are flushed while more is written.
pub const FLUSH_AHEAD_BYTES: u64 = 32 << 20;
/// Objects of a store that are flushed while they are written, at once.
pub const MAX_FLUSHES_AHEAD: usize = 4;
/// Threads that digest one large object.
pub const MAX_HASHERS: usize = 4;
/// An object of at least this many chunks is digested by several threads.
pub const PARALLEL_CHUNKS: u64 = 8;
/// Ranges named in an error.
pub const MAX_RANGES_TOLD: usize = 16;
/// Most entries of one page of [`Store::list`](crate::Store::list).
pub const MAX_PAGE: usize = 65_536;
/// Files larger than this in the spool's own state (mode, scrub, identity) are refused, bytes.
pub const MAX_STATE_BYTES: u64 = 4096;
/// Longest reason kept with a quarantined object, bytes.
pub const MAX_WHY_BYTES: usize = 200;

/// What a store may use.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Most bytes the spool may hold (files with their trailers, in blocks of 4 KiB); `None`: what the file
    /// system has.
    pub capacity_bytes: Option<u64>,
    /// The file system is never filled beyond this many free bytes.
    pub keep_free_bytes: u64,
    /// Partial objects that were not touched for so long are removed when the store is opened.
    pub partial_keep: Duration,
    /// Objects being written at the same time; each holds a descriptor or two.
    pub max_writers: usize,
    /// Places for small objects that are kept ready, each of 4, 8 or 16 KiB and an open file; 0: none.
    pub slots: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            capacity_bytes: None,
            keep_free_bytes: 64 << 20,
            partial_keep: Duration::from_secs(7 * 24 * 3600),
            max_writers: 1024,
            slots: 0,
        }
    }
}

/// The chunk of an object of `size` bytes: a power of two, so that at most [`MAX_CHUNKS`] are needed.
#[must_use]
pub fn chunk_bytes(size: u64) -> u64 {
    let least = size.div_ceil(MAX_CHUNKS).max(1);
    least
        .checked_next_power_of_two()
        .unwrap_or(1 << 63)
        .max(MIN_CHUNK_BYTES)
}

/// A file's bytes as counted against the capacity: whole blocks of 4 KiB.
#[must_use]
pub(crate) fn in_blocks(file_bytes: u64) -> u64 {
    file_bytes.checked_next_multiple_of(4096).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_few_enough() {
        for (size, chunk) in [
            (0, MIN_CHUNK_BYTES),
            (1, MIN_CHUNK_BYTES),
            (64 << 30, MIN_CHUNK_BYTES),
            ((64 << 30) + 1, 2 << 20),
            (MAX_OBJECT_BYTES, 1 << 30),
        ] {
            assert_eq!(chunk_bytes(size), chunk, "{size}");
            assert!(size.div_ceil(chunk) <= MAX_CHUNKS);
        }
    }
}
