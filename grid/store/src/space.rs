//! Who may take how much of the disk.
//!
//! ```text
//!   |-- objects --|-- reserved for writers -----------|-- free --|-- keep_free --|
//!                 |-- on disk --|-- not yet on disk --|
//!
//!   free = min( disk's free - not yet on disk - keep_free,  capacity - objects - reserved )
//! ```
//!
//! A writer reserves what it will need before it writes, so a full disk is met at the beginning and not in the
//! middle, and what was promised to one is not given to another. Bytes are counted in blocks of 4 KiB.

use crate::error::StoreError;
use crate::limits::Limits;
use crate::sys::Folder;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The sums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Objects in the spool.
    pub objects: u64,
    /// Their files, in blocks.
    pub object_bytes: u64,
    /// Files in quarantine.
    pub quarantined: u64,
    /// Promised to writers.
    pub reserved_bytes: u64,
    /// The part of it that the disk does not know of yet.
    pub pending_bytes: u64,
}

/// The account of one spool.
#[derive(Debug)]
pub(crate) struct Space {
    counts: Mutex<Counts>,
    root: Arc<Folder>,
    capacity_bytes: Option<u64>,
    keep_free_bytes: u64,
}

impl Space {
    pub(crate) fn new(root: Arc<Folder>, limits: &Limits) -> Self {
        Self {
            counts: Mutex::default(),
            root,
            capacity_bytes: limits.capacity_bytes,
            keep_free_bytes: limits.keep_free_bytes,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn counts(&self) -> Counts {
        *self.lock()
    }

    /// Changes the sums.
    pub(crate) fn change(&self, f: impl FnOnce(&mut Counts)) {
        f(&mut self.lock());
    }

    fn free(&self, counts: &Counts) -> Result<u64, StoreError> {
        let (disk_free, _) = self.root.space()?;
        let on_disk = disk_free
            .saturating_sub(counts.pending_bytes)
            .saturating_sub(self.keep_free_bytes);
        let used = counts.object_bytes.saturating_add(counts.reserved_bytes);
        Ok(match self.capacity_bytes {
            Some(capacity) => on_disk.min(capacity.saturating_sub(used)),
            None => on_disk,
        })
    }

    /// `(capacity, free for new objects)` in bytes. Without a limit the capacity is what the spool holds and
    /// could hold.
    pub(crate) fn capacity_and_free(&self) -> Result<(u64, u64), StoreError> {
        let counts = self.counts();
        let free = self.free(&counts)?;
        let held = counts.object_bytes.saturating_add(counts.reserved_bytes);
        let whole = held.saturating_add(free);
        Ok((self.capacity_bytes.unwrap_or(whole), free))
    }

    /// A reservation of nothing.
    pub(crate) fn reservation(self: &Arc<Self>) -> Reservation {
        Reservation {
            space: Arc::clone(self),
            bytes: 0,
            on_disk: 0,
        }
    }

    /// The error for a disk that turned out to be full.
    pub(crate) fn full(&self, wanted_bytes: u64) -> StoreError {
        let free_bytes = self.free(&self.counts()).unwrap_or(0);
        StoreError::NoSpace {
            wanted_bytes,
            free_bytes,
        }
    }
}

/// What one writer was promised; given back when dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    space: Arc<Space>,
    bytes: u64,
    on_disk: u64,
}

impl Reservation {
    /// Bytes promised.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Raises the promise to `bytes` in all.
    ///
    /// # Errors
    /// [`StoreError::NoSpace`]; the promise is as before.
    pub(crate) fn grow_to(&mut self, bytes: u64) -> Result<(), StoreError> {
        let Some(more) = bytes.checked_sub(self.bytes).filter(|m| *m > 0) else {
            return Ok(());
        };
        let mut counts = self.space.lock();
        let free_bytes = self.space.free(&counts)?;
        if more > free_bytes {
            return Err(StoreError::NoSpace {
                wanted_bytes: more,
                free_bytes,
            });
        }
        counts.reserved_bytes = counts.reserved_bytes.saturating_add(more);
        counts.pending_bytes = counts.pending_bytes.saturating_add(more);
        self.bytes = bytes;
        Ok(())
    }

    /// So much of the promise is on disk now (as written or taken in advance).
    pub(crate) fn on_disk(&mut self, bytes: u64) {
        let bytes = bytes.min(self.bytes);
        if bytes > self.on_disk {
            let more = bytes - self.on_disk;
            self.on_disk = bytes;
            self.space
                .change(|c| c.pending_bytes = c.pending_bytes.saturating_sub(more));
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let (bytes, pending) = (self.bytes, self.bytes.saturating_sub(self.on_disk));
        self.space.change(|c| {
            c.reserved_bytes = c.reserved_bytes.saturating_sub(bytes);
            c.pending_bytes = c.pending_bytes.saturating_sub(pending);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promises_are_kept_and_given_back() {
        let dir = tempfile::tempdir().expect("folder");
        let root = Arc::new(Folder::open(dir.path()).expect("open"));
        let limits = Limits {
            capacity_bytes: Some(100 * 4096),
            keep_free_bytes: 0,
            ..Limits::default()
        };
        let space = Arc::new(Space::new(root, &limits));
        space.change(|c| c.object_bytes = 20 * 4096);
        let mut a = space.reservation();
        let mut b = space.reservation();
        a.grow_to(50 * 4096).expect("room");
        b.grow_to(30 * 4096).expect("room");
        match b.grow_to(31 * 4096) {
            Err(StoreError::NoSpace {
                wanted_bytes,
                free_bytes,
            }) => {
                assert_eq!((wanted_bytes, free_bytes), (4096, 0));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(b.bytes(), 30 * 4096);
        a.on_disk(10 * 4096);
        a.on_disk(5 * 4096);
        let c = space.counts();
        assert_eq!((c.reserved_bytes, c.pending_bytes), (80 * 4096, 70 * 4096));
        drop(a);
        let c = space.counts();
        assert_eq!((c.reserved_bytes, c.pending_bytes), (30 * 4096, 30 * 4096));
        b.grow_to(80 * 4096).expect("room again");
        drop(b);
        assert_eq!(space.capacity_and_free().expect("space"), (100 * 4096, 80 * 4096));
    }
}
