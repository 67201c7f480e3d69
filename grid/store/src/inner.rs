//! What all handles of one store share, and the last steps of every new object.

use crate::error::StoreError;
use crate::flush::Flusher;
use crate::id::ObjectId;
use crate::limits::{GROUP_OBJECT_BYTES, Limits, in_blocks};
use crate::slots::{Slot, Slots};
use crate::space::Space;
use crate::spool::{PART, RESUME, SEALED, Spool, object_path};
use crate::sys;
use crate::trace::{Step, Trace};
use crate::trailer::Trailer;
use crate::{Mode, Sealed};
use kuroshio_core::chunk::Digest;
use std::collections::{BTreeSet, HashSet};
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// The shared part of a store.
#[derive(Debug)]
pub(crate) struct Inner {
    // They go first: the spool's lock is held until they have gone.
    pub slots: Slots,
    pub spool: Spool,
    pub space: Arc<Space>,
    pub limits: Limits,
    flusher: Flusher,
    mode: Mutex<Mode>,
    /// Objects that somebody writes.
    claims: Mutex<HashSet<ObjectId>>,
    /// Objects that nobody writes and that can be gone on with.
    partials: Mutex<BTreeSet<ObjectId>>,
    /// Held (shared) around a rename out of the folder of incoming objects, until it is counted.
    renaming: RwLock<()>,
    /// Renames out of that folder so far, and how many of them were flushed for sure.
    renames: AtomicU64,
    settled: Mutex<u64>,
    io_errors: AtomicU64,
    /// Objects that are flushed while they are written, now.
    pub ahead: Arc<AtomicUsize>,
    /// Highest inode or generation that an object here bears, or one that was begun.
    pub highest: AtomicU64,
    trace: Option<Trace>,
    /// One pass of the scrub at a time.
    pub scrubbing: Mutex<()>,
}

/// An object that only the holder may write.
#[derive(Debug)]
pub(crate) struct Claim {
    inner: Arc<Inner>,
    id: ObjectId,
}

impl Drop for Claim {
    fn drop(&mut self) {
        lock(&self.inner.claims).remove(&self.id);
    }
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Name of an object while it is written.
pub(crate) fn part_name(id: ObjectId) -> String {
    format!("{id}{PART}")
}

/// Name of the record of what is written of it.
pub(crate) fn resume_name(id: ObjectId) -> String {
    format!("{id}{RESUME}")
}

/// Name of an object that is whole.
pub(crate) fn sealed_name(id: ObjectId) -> String {
    format!("{id}{SEALED}")
}

impl Inner {
    pub(crate) fn new(spool: Spool, limits: Limits, trace: Option<Trace>) -> Self {
        Self {
            slots: Slots::new(Arc::clone(&spool.incoming), limits.slots, limits.keep_free_bytes),
            space: Arc::new(Space::new(Arc::clone(&spool.root), &limits)),
            flusher: Flusher::new(Arc::clone(&spool.incoming)),
            spool,
            limits,
            mode: Mutex::new(Mode::Normal),
            claims: Mutex::default(),
            partials: Mutex::default(),
            renaming: RwLock::new(()),
            renames: AtomicU64::new(0),
            settled: Mutex::new(0),
            io_errors: AtomicU64::new(0),
            ahead: Arc::default(),
            highest: AtomicU64::new(0),
            trace,
            scrubbing: Mutex::default(),
        }
    }

    pub(crate) fn mode(&self) -> Mode {
        *lock(&self.mode)
    }

    pub(crate) fn set_mode(&self, mode: Mode) {
        *lock(&self.mode) = mode;
    }

    pub(crate) fn partials(&self) -> MutexGuard<'_, BTreeSet<ObjectId>> {
        lock(&self.partials)
    }

    pub(crate) fn trace(&self, step: Step, id: ObjectId) {
        if let Some(trace) = &self.trace {
            trace.tell(step, id);
        }
    }

    pub(crate) fn flush_counts(&self) -> (u64, u64) {
        self.flusher.counts()
    }

    pub(crate) fn io_errors(&self) -> u64 {
        self.io_errors.load(Ordering::Relaxed)
    }

    /// Counts an error that the disk gave, and makes the one that the caller gets. A full disk is no error of
    /// the disk.
    pub(crate) fn failed(&self, what: &'static str, name: &str, wanted: u64, e: io::Error) -> StoreError {
        if sys::is_full(&e) {
            return self.space.full(in_blocks(wanted));
        }
        self.io_errors.fetch_add(1, Ordering::Relaxed);
        self.spool.incoming.error(what, name, e)
    }

    /// Refuses new objects where the mode does.
    pub(crate) fn allow_new(&self) -> Result<(), StoreError> {
        match self.mode() {
            Mode::Normal => Ok(()),
            other => Err(StoreError::Refused(other)),
        }
    }

    /// Refuses removals where the mode does.
    pub(crate) fn allow_removal(&self) -> Result<(), StoreError> {
        match self.mode() {
            Mode::Normal | Mode::Drain => Ok(()),
            Mode::ReadOnly => Err(StoreError::Refused(Mode::ReadOnly)),
        }
    }

    /// Makes the caller the only writer of an object.
    pub(crate) fn claim(self: &Arc<Self>, id: ObjectId) -> Result<Claim, StoreError> {
        let mut claims = lock(&self.claims);
        if claims.len() >= self.limits.max_writers {
            return Err(StoreError::TooMany("objects being written"));
        }
        if !claims.insert(id) {
            return Err(StoreError::Busy(id));
        }
        self.note_numbers(id);
        Ok(Claim {
            inner: Arc::clone(self),
            id,
        })
    }

    /// An object of these numbers is or will be here.
    pub(crate) fn note_numbers(&self, id: ObjectId) {
        let number = id.inode.max(id.generation.into());
        self.highest.fetch_max(number, Ordering::Relaxed);
    }

    pub(crate) fn writers(&self) -> u64 {
        lock(&self.claims).len() as u64
    }

    /// Opens an object's file; `None` when there is none.
    pub(crate) fn open_object(&self, id: ObjectId) -> Result<Option<File>, StoreError> {
        self.spool.objects.read_file(&object_path(id))
    }

    /// What is answered when the object is there already: known with this content, or an error.
    pub(crate) fn known(
        &self,
        id: ObjectId,
        size: u64,
        digest: Digest,
    ) -> Result<Option<Sealed>, StoreError> {
        let Some(file) = self.open_object(id)? else {
            return Ok(None);
        };
        let path = object_path(id);
        let trailer = Trailer::read(&file).map_err(|e| self.spool.objects.error("read", &path, e))?;
        match trailer {
            Ok(t) if t.size == size && t.digest == digest => Ok(Some(Sealed {
                id,
                size,
                digest,
                known: true,
            })),
            Ok(_) => Err(StoreError::Exists(id)),
            Err(what) => Err(StoreError::Corrupt { id, what }),
        }
    }

    /// Flushes a sealed object and gives it its place. When that fails it is removed.
    pub(crate) fn publish(&self, id: ObjectId, file: &Arc<File>, file_bytes: u64) -> Result<(), StoreError> {
        let name = sealed_name(id);
        let flushed = if file_bytes <= GROUP_OBJECT_BYTES {
            self.flusher.flush(file)
        } else {
            self.flusher.flush_alone(file)
        };
        self.name(id, &name, file_bytes, flushed)
    }

    /// Flushes a small object in its slot and gives it its place. When that fails it is removed.
    pub(crate) fn publish_slot(&self, id: ObjectId, slot: &Slot) -> Result<(), StoreError> {
        let flushed = slot.flush();
        self.flusher.count_one();
        let flushed = flushed.map_err(|e| self.spool.incoming.error("flush", &slot.name, e));
        self.name(id, &slot.name, slot.bytes(), flushed)
    }

    /// Gives an object that was flushed its place among the objects; otherwise removes it.
    fn name(
        &self,
        id: ObjectId,
        name: &str,
        file_bytes: u64,
        flushed: Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let named = flushed.and_then(|()| {
            self.trace(Step::Flushed, id);
            let _shared = self.renaming.read().unwrap_or_else(PoisonError::into_inner);
            let new = object_path(id);
            let named = self.spool.incoming.rename_new(name, &self.spool.objects, &new);
            self.renames.fetch_add(1, Ordering::Release);
            named
        });
        match named {
            Ok(true) => {
                self.space.change(|c| {
                    c.objects += 1;
                    c.object_bytes = c.object_bytes.saturating_add(in_blocks(file_bytes));
                });
                self.trace(Step::Named, id);
                Ok(())
            }
            other => {
                // Recovery would look at it again: nothing is wrong should it stay.
                let _ = self.spool.incoming.unlink(name);
                Err(match other {
                    Ok(_) => StoreError::Exists(id),
                    Err(e) => {
                        self.io_errors.fetch_add(1, Ordering::Relaxed);
                        e
                    }
                })
            }
        }
    }

    /// Flushes the folder of incoming objects when names have left it. Otherwise an object that was renamed
    /// and then removed could come back: its removal would be on disk and the rename before it not. Whoever
    /// has seen a name among the objects before this call has its rename counted here.
    pub(crate) fn settle_incoming(&self) -> Result<(), StoreError> {
        drop(self.renaming.write().unwrap_or_else(PoisonError::into_inner));
        let wanted = self.renames.load(Ordering::Acquire);
        let mut settled = lock(&self.settled);
        if *settled < wanted {
            let flushed = self.renames.load(Ordering::Acquire);
            self.spool.incoming.sync()?;
            *settled = flushed;
        }
        Ok(())
    }

    /// Removes what is left of an object that was not finished.
    pub(crate) fn remove_unfinished(&self, id: ObjectId) -> Result<(), StoreError> {
        self.spool.incoming.unlink(&part_name(id))?;
        self.spool.incoming.unlink(&resume_name(id))?;
        Ok(())
    }
}
