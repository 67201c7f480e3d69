//! Places for small objects, made and flushed in advance: such an object costs one flush of its own bytes, and none of the
//! file system's journal.
//!
//! ```text
//!   incoming/slot.N   zeros, flushed with many others   ──content, zeros, trailer──>  flushed (the data alone: no length, no
//!                                                                                     name changes)
//!                     ──renamed──>  objects/xx/ID           not flushed: what undoes it leaves the slot
//! ```
//!
//! There are slots of 4, 8 and 16 KiB. An object fills its slot: the trailer is at the slot's end, zeros between it and the
//! content. So the file's length never changes, and whatever a crash keeps or undoes of its name, the file is the object, or one
//! that nobody was told of; opening the spool takes a slot that has a trailer up as `ID.sealed` and looks whether it is
//! whole. Slots are made by a thread of their own, while objects go another way.

use crate::error::StoreError;
use crate::id::ObjectId;
use crate::limits::{SLOT_BYTES, SLOT_PAUSE};
use crate::spool::SLOT;
use crate::sys::Folder;
use crate::trailer::Trailer;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

/// Sizes of slots, bytes, and which part of all of them has each: most small files are of a page or less, which with the trailer
/// are two.
const SIZES: [(usize, usize); 3] = [(SLOT_BYTES / 4, 4), (SLOT_BYTES / 2, 2), (SLOT_BYTES, 4)];

/// One place.
#[derive(Debug)]
pub(crate) struct Slot {
    pub name: String,
    file: File,
    /// Bytes of it.
    size: usize,
}

/// Slots by their size, as [`SIZES`].
type BySize = [Vec<Slot>; SIZES.len()];

#[derive(Debug)]
struct Pool {
    incoming: Arc<Folder>,
    /// Most of them.
    most: usize,
    keep_free_bytes: u64,
    ready: Mutex<BySize>,
    next: AtomicU64,
    /// Somebody makes some.
    making: AtomicBool,
    stop: AtomicBool,
    /// The last time that none could be made.
    failed: Mutex<Option<Instant>>,
}

/// The places that are ready.
#[derive(Debug)]
pub(crate) struct Slots {
    pool: Arc<Pool>,
    maker: Mutex<Option<JoinHandle<()>>>,
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether files of so many bytes may be slots.
pub(crate) fn is_size(file_bytes: u64) -> bool {
    SIZES.iter().any(|(size, _)| *size as u64 == file_bytes)
}

impl Slots {
    /// None yet; `most` at any time, none ever if that is 0.
    pub(crate) fn new(incoming: Arc<Folder>, most: usize, keep_free_bytes: u64) -> Self {
        let pool = Pool {
            incoming,
            most,
            keep_free_bytes,
            ready: Mutex::default(),
            next: AtomicU64::new(0),
            making: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            failed: Mutex::default(),
        };
        Self {
            pool: Arc::new(pool),
            maker: Mutex::default(),
        }
    }

    /// A place for an object whose content and trailer have `len` bytes, if one is ready: of the smallest size that has one.
    pub(crate) fn take(&self, len: usize) -> Option<Slot> {
        if self.pool.most == 0 || len > SLOT_BYTES {
            return None;
        }
        let mut ready = lock(&self.pool.ready);
        let fits = |(i, (size, part)): (usize, (usize, usize))| (size >= len).then_some((i, part));
        let mut low = false;
        let mut slot = None;
        for (i, part) in SIZES.into_iter().enumerate().filter_map(fits) {
            slot = ready.get_mut(i).and_then(Vec::pop);
            low |= ready.get(i).is_some_and(|r| r.len() <= self.pool.most / part / 2);
            if slot.is_some() {
                break;
            }
        }
        drop(ready);
        if low {
            self.make_more();
        }
        slot
    }

    /// Makes as many as there may be, now.
    pub(crate) fn fill(&self) -> Result<(), StoreError> {
        self.pool.make()
    }

    fn make_more(&self) {
        let pool = &self.pool;
        let rests = lock(&pool.failed).is_some_and(|at| at.elapsed() < SLOT_PAUSE);
        if rests || pool.making.swap(true, Ordering::AcqRel) {
            return;
        }
        let theirs = Arc::clone(pool);
        let make = move || {
            if theirs.make().is_err() {
                // Objects go the other way, and say what is wrong.
                *lock(&theirs.failed) = Some(Instant::now());
            }
            theirs.making.store(false, Ordering::Release);
        };
        let made = std::thread::Builder::new().name("slots".into()).spawn(make);
        match made {
            // The former one has ended, or is about to.
            Ok(thread) => drop(lock(&self.maker).replace(thread)),
            Err(_) => pool.making.store(false, Ordering::Release),
        }
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        self.pool.stop.store(true, Ordering::Relaxed);
        if let Some(maker) = lock(&self.maker).take() {
            let _ = maker.join();
        }
        // Nobody else has the spool now: they go with it.
        for slot in lock(&self.pool.ready).iter_mut().flat_map(|r| r.drain(..)) {
            let _ = self.pool.incoming.unlink(&slot.name);
        }
    }
}

impl Pool {
    fn make(&self) -> Result<(), StoreError> {
        let mut missing = [0; SIZES.len()];
        let mut bytes = 0;
        for ((missing, have), (size, part)) in missing.iter_mut().zip(&*lock(&self.ready)).zip(SIZES) {
            *missing = (self.most / part).saturating_sub(have.len());
            bytes += (*missing * size) as u64;
        }
        let (free, _) = self.incoming.space()?;
        if free.saturating_sub(bytes) < self.keep_free_bytes {
            return Ok(());
        }
        let mut made = BySize::default();
        let done = self.make_files(missing, &mut made);
        // Lengths and names of all of them at once.
        let done = done.and_then(|()| self.incoming.sync_all());
        let mut ready = lock(&self.ready);
        for (made, ready) in made.iter_mut().zip(&mut *ready) {
            match done {
                Ok(()) => ready.append(made),
                Err(_) => made.iter().for_each(|s| drop(self.incoming.unlink(&s.name))),
            }
        }
        done
    }

    fn make_files(&self, missing: [usize; SIZES.len()], made: &mut BySize) -> Result<(), StoreError> {
        let zeros = [0; SLOT_BYTES];
        for ((missing, made), (size, _)) in missing.into_iter().zip(made).zip(SIZES) {
            for _ in 0..missing {
                if self.stop.load(Ordering::Relaxed) {
                    return Ok(());
                }
                let name = format!("{SLOT}{}", self.next.fetch_add(1, Ordering::Relaxed));
                let mut file = self.incoming.create(&name)?;
                let written = file.write_all(zeros.get(..size).unwrap_or_default());
                let error = |e| self.incoming.error("write", &name, e);
                let written = written.map_err(error);
                made.push(Slot { name, file, size });
                written?;
            }
        }
        Ok(())
    }
}

impl Slot {
    /// Bytes of the file, which do not change.
    pub(crate) fn bytes(&self) -> u64 {
        self.size as u64
    }

    /// Puts an object into the slot that was taken for it; not flushed.
    pub(crate) fn write(&self, content: &[u8], trailer: &[u8]) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(self.size);
        bytes.extend_from_slice(content);
        bytes.resize(self.size.saturating_sub(trailer.len()), 0);
        bytes.extend_from_slice(trailer);
        self.file.write_all_at(&bytes, 0)
    }

    /// Flushes it: neither its length nor its place on the disk has changed since its own flush.
    pub(crate) fn flush(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

/// Which object a slot is that a crash has left. None: it is none.
pub(crate) fn left_in(file: &File) -> io::Result<Option<ObjectId>> {
    Ok(Trailer::read(file)?.ok().map(|t| t.id))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = SLOT_BYTES / 4;

    #[test]
    fn an_object_gets_the_smallest_slot_and_fills_it() {
        let dir = tempfile::tempdir().expect("folder");
        let folder = Arc::new(Folder::open(dir.path()).expect("open"));
        let slots = Slots::new(Arc::clone(&folder), 8, 0);
        assert!(slots.take(1).is_none(), "none is made before it is asked for");
        slots.fill().expect("made");
        let pages = |n: usize| n * PAGE;
        for (len, slot_bytes) in [
            (100, pages(1)),
            (pages(1), pages(1)),
            (pages(1) + 1, pages(2)),
            (pages(2) + 1, pages(4)),
            (pages(4), pages(4)),
        ] {
            let slot = slots.take(len).expect("ready");
            assert_eq!(slot.size, slot_bytes, "for {len} bytes");
            let (content, trailer) = (vec![7; len - 100], [9; 100]);
            slot.write(&content, &trailer).expect("written");
            slot.flush().expect("flushed");
            let mut expected = content;
            expected.resize(slot_bytes - 100, 0);
            expected.extend(trailer);
            assert_eq!(
                std::fs::read(dir.path().join(&slot.name)).expect("read"),
                expected
            );
        }
        assert!(slots.take(SLOT_BYTES + 1).is_none(), "too large");
    }

    #[test]
    fn a_larger_slot_is_taken_when_the_right_ones_are_used_up() {
        let dir = tempfile::tempdir().expect("folder");
        let folder = Arc::new(Folder::open(dir.path()).expect("open"));
        let slots = Slots::new(folder, 4, 0);
        slots.fill().expect("made");
        // No more while this is held.
        slots.pool.making.store(true, Ordering::Release);
        let sizes: Vec<_> = (0..5).map(|_| slots.take(1).map(|s| s.size)).collect();
        let expected = [1, 2, 2, 4].map(|n| Some(n * PAGE));
        assert_eq!(sizes[..4], expected);
        assert_eq!(sizes[4], None);
        slots.pool.making.store(false, Ordering::Release);
    }
}
