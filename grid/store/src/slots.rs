//! Places for small objects, made and flushed in advance: such an object costs one flush of its own bytes, and none of the
//! file system's journal.
//!
//! ```text
//!   incoming/slot.N   zeros, flushed with many others   ──content, trailer, mark──>  flushed (the data alone: no length, no
//!                                                                                    name changes)
//!                     ──cut behind the trailer, renamed──>  objects/xx/ID            not flushed: what undoes it leaves the slot
//! ```
//!
//! The mark says how long the object is. It stands at the end of the last page that the object touches, so a slot that a
//! crash has left is the object with its mark, or one that nobody was told of; opening the spool takes it up as `ID.sealed`
//! and looks whether it is whole. A file system may also keep the rename and undo the cut: such an object is cut again. Slots are made by a thread of their own, while objects go another way.

use crate::error::StoreError;
use crate::id::ObjectId;
use crate::limits::{SLOT_BYTES, SLOT_PAUSE};
use crate::reader::{compare, expect_id};
use crate::spool::SLOT;
use crate::sys::{Folder, read_full};
use crate::trailer::Trailer;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

const MAGIC: [u8; 8] = *b"KURSLOT1";
/// Bytes of a mark: magic, then the length of content and trailer as u64, little endian.
const MARK_BYTES: usize = 16;
/// What a mark stands at the end of, bytes.
const PAGE: usize = 4096;

/// One place.
#[derive(Debug)]
pub(crate) struct Slot {
    pub name: String,
    pub file: File,
}

#[derive(Debug)]
struct Pool {
    incoming: Arc<Folder>,
    /// Most of them.
    most: usize,
    keep_free_bytes: u64,
    ready: Mutex<Vec<Slot>>,
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

/// Bytes of a slot that an object of `len` bytes with its mark touches.
fn touched(len: usize) -> usize {
    (len + MARK_BYTES).next_multiple_of(PAGE)
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

    /// A place for an object whose content and trailer have `len` bytes, if one is ready.
    pub(crate) fn take(&self, len: usize) -> Option<Slot> {
        if self.pool.most == 0 || touched(len) > SLOT_BYTES {
            return None;
        }
        let mut ready = lock(&self.pool.ready);
        let slot = ready.pop();
        let low = ready.len() <= self.pool.most / 2;
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
        for slot in lock(&self.pool.ready).drain(..) {
            let _ = self.pool.incoming.unlink(&slot.name);
        }
    }
}

impl Pool {
    fn make(&self) -> Result<(), StoreError> {
        let missing = self.most.saturating_sub(lock(&self.ready).len());
        let bytes = (missing * SLOT_BYTES) as u64;
        let (free, _) = self.incoming.space()?;
        if free.saturating_sub(bytes) < self.keep_free_bytes {
            return Ok(());
        }
        let mut made = Vec::with_capacity(missing);
        let done = self.make_files(missing, &mut made);
        // Lengths and names of all of them at once.
        let done = done.and_then(|()| self.incoming.sync_all());
        match done {
            Ok(()) => lock(&self.ready).append(&mut made),
            Err(_) => {
                for slot in made {
                    let _ = self.incoming.unlink(&slot.name);
                }
            }
        }
        done
    }

    fn make_files(&self, count: usize, made: &mut Vec<Slot>) -> Result<(), StoreError> {
        let zeros = [0; SLOT_BYTES];
        for _ in 0..count {
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            let name = format!("{SLOT}{}", self.next.fetch_add(1, Ordering::Relaxed));
            let mut file = self.incoming.create(&name)?;
            let written = file.write_all(&zeros);
            let error = |e| self.incoming.error("write", &name, e);
            let written = written.map_err(error);
            made.push(Slot { name, file });
            written?;
        }
        Ok(())
    }
}

impl Slot {
    /// Puts content and trailer into the slot, with the mark behind them; not flushed.
    pub(crate) fn write(&self, object: &[u8]) -> io::Result<()> {
        let mut bytes = vec![0; touched(object.len())];
        let (front, mark) = bytes.split_at_mut(touched(object.len()) - MARK_BYTES);
        if let Some(front) = front.get_mut(..object.len()) {
            front.copy_from_slice(object);
        }
        let (magic, len) = mark.split_at_mut(MAGIC.len());
        magic.copy_from_slice(&MAGIC);
        len.copy_from_slice(&(object.len() as u64).to_le_bytes());
        self.file.write_all_at(&bytes, 0)
    }

    /// Flushes it, then cuts it to the object.
    pub(crate) fn flush(&self, len: u64) -> io::Result<()> {
        // Neither its length nor its place on the disk has changed since its own flush.
        self.file.sync_data()?;
        self.file.set_len(len)
    }
}

/// Which object a slot is that a crash has left; cut to it. None: it is none.
pub(crate) fn left_in(file: &File) -> io::Result<Option<ObjectId>> {
    let len = file.metadata()?.len();
    if len == SLOT_BYTES as u64 {
        let mut bytes = [0; SLOT_BYTES];
        read_full(file, &mut bytes, 0)?;
        let Some(len) = bytes.chunks(PAGE).rev().find_map(length) else {
            return Ok(None);
        };
        file.set_len(len)?;
    }
    Ok(Trailer::read(file)?.ok().map(|t| t.id))
}

/// What a file of a slot's size is that stands among the objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Uncut {
    /// An object with its mark; it is cut now.
    Object,
    /// A slot that no whole object is in.
    Nothing,
    /// Something else: an object that is just as long, or a damaged one.
    Other,
}

/// Cuts what was named and not cut before a crash.
pub(crate) fn cut_again(file: &File, id: ObjectId) -> io::Result<Uncut> {
    if Trailer::read(file)?.is_ok() {
        return Ok(Uncut::Other);
    }
    let mut bytes = [0; SLOT_BYTES];
    read_full(file, &mut bytes, 0)?;
    let Some(len) = bytes.chunks(PAGE).rev().find_map(length) else {
        let empty = bytes.iter().all(|b| *b == 0);
        return Ok(if empty { Uncut::Nothing } else { Uncut::Other });
    };
    file.set_len(len)?;
    let Ok(trailer) = Trailer::read(file)?.and_then(|t| expect_id(t, id)) else {
        return Ok(Uncut::Nothing);
    };
    let right = matches!(
        compare(file, &trailer, 0..trailer.size, &mut |_| true)?,
        Some(None)
    );
    if right {
        file.sync_all()?;
    }
    Ok(if right { Uncut::Object } else { Uncut::Nothing })
}

/// What the mark at the end of a page says.
fn length(page: &[u8]) -> Option<u64> {
    let (_, mark) = page.split_last_chunk::<MARK_BYTES>()?;
    let (magic, len) = mark.split_first_chunk::<8>()?;
    let len = u64::from_le_bytes(len.try_into().ok()?);
    (*magic == MAGIC && len <= SLOT_BYTES as u64).then_some(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_into_a_slot_is_found_by_its_mark() {
        let dir = tempfile::tempdir().expect("folder");
        let folder = Arc::new(Folder::open(dir.path()).expect("open"));
        let slots = Slots::new(Arc::clone(&folder), 4, 0);
        assert!(slots.take(1).is_none(), "none is made before it is asked for");
        slots.fill().expect("made");
        // Sizes at which the mark just fits into a page, and just does not.
        for len in [
            1,
            PAGE - MARK_BYTES,
            PAGE - MARK_BYTES + 1,
            SLOT_BYTES - MARK_BYTES,
        ] {
            let slot = slots.take(len).expect("ready");
            slot.write(&vec![7; len]).expect("written");
            let bytes = std::fs::read(dir.path().join(&slot.name)).expect("read");
            assert_eq!(bytes.len(), SLOT_BYTES);
            assert_eq!(bytes.chunks(PAGE).rev().find_map(length), Some(len as u64));
            assert!(bytes[..len].iter().all(|b| *b == 7));
            slot.flush(len as u64).expect("flushed");
            assert_eq!(slot.file.metadata().expect("there").len(), len as u64);
        }
        assert!(slots.take(SLOT_BYTES - MARK_BYTES + 1).is_none(), "too large");
        assert_eq!([0; PAGE].chunks(PAGE).find_map(length), None);
    }
}
