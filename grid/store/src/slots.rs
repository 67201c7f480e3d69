//! Places for small objects, made and flushed in advance: such an object costs one flush of its own bytes, and none of the
//! file system's journal.
//!
//! ```text
//!   incoming/slot.N   zeros, flushed with many others   ──content, zeros, trailer──>  flushed (the data alone: no length, no
//!                                                                                     name changes)
//!                     ──renamed──>  objects/xx/ID           not flushed: what undoes it leaves the slot
//! ```
//!
//! There are slots of 4, 8 and 16 KiB. The trailer ends with the last page that the object touches; pages of the slot that
//! are left are cut off, which the object of the right slot is spared. A slot that a crash has left is an object with its
//! trailer at the end of a page, or one that nobody was told of; opening the spool takes it up as `ID.sealed` and looks
//! whether it is whole. Slots are made by a thread of their own, while objects go another way.

use crate::error::StoreError;
use crate::id::ObjectId;
use crate::limits::{SLOT_BYTES, SLOT_PAGE_BYTES, SLOT_PAUSE};
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

/// Bytes of a slot that an object of `len` bytes touches.
fn touched(len: usize) -> usize {
    len.next_multiple_of(SLOT_PAGE_BYTES)
}

/// An object as it is put into a slot: its trailer at the end of a page.
pub(crate) fn in_pages(content: &[u8], trailer: &[u8]) -> Vec<u8> {
    let len = touched(content.len() + trailer.len());
    let mut bytes = Vec::with_capacity(len);
    bytes.extend_from_slice(content);
    bytes.resize(len - trailer.len(), 0);
    bytes.extend_from_slice(trailer);
    bytes
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
        if self.pool.most == 0 || touched(len) > SLOT_BYTES {
            return None;
        }
        let mut ready = lock(&self.pool.ready);
        let fits = |(i, (size, part)): (usize, (usize, usize))| (size >= touched(len)).then_some((i, part));
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
    /// Puts an object into the slot, as [`in_pages`] has made it; not flushed.
    pub(crate) fn write(&self, object: &[u8]) -> io::Result<()> {
        self.file.write_all_at(object, 0)
    }

    /// Flushes it, then cuts off what is left of the slot.
    pub(crate) fn flush(&self, len: u64) -> io::Result<()> {
        // Neither its length nor its place on the disk has changed since its own flush.
        self.file.sync_data()?;
        if len < self.size as u64 {
            self.file.set_len(len)?;
        }
        Ok(())
    }
}

/// Which object a slot is that a crash has left; cut to it. None: it is none.
pub(crate) fn left_in(file: &File) -> io::Result<Option<ObjectId>> {
    let len = file.metadata()?.len();
    let mut end = len.min(SLOT_BYTES as u64);
    while end > 0 {
        if let Ok(trailer) = Trailer::read_before(file, end)? {
            if end < len {
                file.set_len(end)?;
            }
            return Ok(Some(trailer.id));
        }
        end = (end - 1) / SLOT_PAGE_BYTES as u64 * SLOT_PAGE_BYTES as u64;
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    fn object(len: usize) -> Vec<u8> {
        let trailer = [9; 100];
        in_pages(&vec![7; len - trailer.len()], &trailer)
    }

    #[test]
    fn an_object_gets_the_smallest_slot_and_fills_its_last_page() {
        let dir = tempfile::tempdir().expect("folder");
        let folder = Arc::new(Folder::open(dir.path()).expect("open"));
        let slots = Slots::new(Arc::clone(&folder), 8, 0);
        assert!(slots.take(1).is_none(), "none is made before it is asked for");
        slots.fill().expect("made");
        let pages = |n: usize| n * SLOT_PAGE_BYTES;
        for (len, slot_bytes, file_bytes) in [
            (100, pages(1), pages(1)),
            (pages(1), pages(1), pages(1)),
            (pages(1) + 1, pages(2), pages(2)),
            (pages(2) + 1, pages(4), pages(3)),
            (pages(4), pages(4), pages(4)),
        ] {
            let slot = slots.take(len).expect("ready");
            assert_eq!(slot.size, slot_bytes, "for {len} bytes");
            let object = object(len);
            assert_eq!(object.len(), file_bytes);
            slot.write(&object).expect("written");
            assert_eq!(slot.file.metadata().expect("there").size(), slot_bytes as u64);
            slot.flush(object.len() as u64).expect("flushed");
            assert_eq!(std::fs::read(dir.path().join(&slot.name)).expect("read"), object);
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
        let expected = [1, 2, 2, 4].map(|n| Some(n * SLOT_PAGE_BYTES));
        assert_eq!(sizes[..4], expected);
        assert_eq!(sizes[4], None);
        slots.pool.making.store(false, Ordering::Release);
    }
}
