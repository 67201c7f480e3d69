//! Writing of an object in ranges.
//!
//! ```text
//!            write_at (any order, any threads)
//!   begun ------------------------------------> written --finish--> verified --> sealed --> durable, named
//!     |                                            |  ^                |
//!     '-- dropped: kept when resumable             |  '-- Damaged -----'   (those ranges are missing again)
//!         abort: removed                           '-- Digest: the whole content is another
//! ```
//!
//! Pieces that are whole get a digest when their last byte is written, from memory where one call brought all
//! of it. From [`RESUME_BYTES`] on they are recorded in the resume file. `finish` reads everything back and
//! compares: with those digests, and with the one announced. Until then any byte may be written again; a piece
//! that is touched loses its digest before the write and gets another after it, so a digest never stands for
//! bytes of two writes.

mod ahead;
mod finish;

use crate::error::StoreError;
use crate::hash;
use crate::id::ObjectId;
use crate::inner::{Claim, Inner, part_name, resume_name};
use crate::journal;
use crate::limits::{
    HASH_BUFFER_BYTES, MAX_OBJECT_BYTES, MAX_UNSIZED_BYTES, PREALLOCATE_BYTES, RESERVE_STEP_BYTES,
    RESUME_BYTES, chunk_bytes, in_blocks,
};
use crate::meta::Meta;
use crate::space::Reservation;
use crate::sys::{self, read_full};
use crate::trace::Step;
use crate::trailer::FOOTER_BYTES;
use ahead::Ahead;
use kuroshio_core::chunk::{Digest, RangeSet, subtree_cv};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// How an object is begun.
#[derive(Clone, Debug, Default)]
pub struct Begin {
    /// What stands beside the content.
    pub meta: Meta,
    /// Bytes of content, when known: the space is taken in advance.
    pub size: Option<u64>,
    /// Go on with what an earlier writer of the same id and size left; otherwise that is thrown away.
    pub resume: bool,
}

impl Begin {
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        self.meta.check()?;
        check_size(self.size.unwrap_or(0), MAX_OBJECT_BYTES)
    }
}

/// What becomes of bytes that were never written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holes {
    /// Finishing is refused.
    Refuse,
    /// They are zeros.
    Zeros,
}

/// How an object is finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finish {
    /// Bytes of content.
    pub size: u64,
    /// BLAKE3 that the content must have; `None`: whatever was written.
    pub digest: Option<Digest>,
    /// What becomes of bytes that were never written.
    pub holes: Holes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Open,
    Finished,
}

#[derive(Debug, Default, Clone, Copy)]
struct Piece {
    /// Rises with every write that touches it.
    epoch: u64,
    digest: Option<Digest>,
}

#[derive(Debug)]
struct State {
    written: RangeSet,
    pieces: BTreeMap<u64, Piece>,
    /// Pieces that have a digest.
    whole: u64,
    space: Reservation,
    journal: Option<File>,
    ahead: Ahead,
    /// Nothing is kept when the writer is dropped.
    discard: bool,
    /// Given back when the object is finished.
    claim: Option<Claim>,
}

/// An object that is being written. Its methods may be called from several threads.
#[derive(Debug)]
pub struct ObjectWriter {
    inner: Arc<Inner>,
    id: ObjectId,
    meta: Meta,
    size: Option<u64>,
    piece_bytes: u64,
    /// Whether pieces are given digests while it is written: not for objects that are small for sure.
    tracked: bool,
    file: Arc<File>,
    /// Writers share it; finishing has it alone.
    life: RwLock<Life>,
    state: Mutex<State>,
}

fn check_size(size: u64, most: u64) -> Result<(), StoreError> {
    if size <= most {
        return Ok(());
    }
    Err(StoreError::Invalid(format!(
        "an object of {size} bytes is too large: at most {most} bytes"
    )))
}

/// Bytes of an object's trailer.
fn trailer_bytes(size: u64, meta: &Meta) -> u64 {
    let table = match hash::count(size, chunk_bytes(size)) {
        0 | 1 => 0,
        n => n * 32,
    };
    table + (meta.names_len() + FOOTER_BYTES) as u64
}

impl ObjectWriter {
    pub(crate) fn begin(
        inner: &Arc<Inner>,
        claim: Claim,
        id: ObjectId,
        begin: Begin,
    ) -> Result<Self, StoreError> {
        if inner
            .spool
            .objects
            .stat(&crate::spool::object_path(id))?
            .is_some()
        {
            return Err(StoreError::Exists(id));
        }
        let Begin { meta, size, resume } = begin;
        let mut space = inner.space.reservation();
        if let Some(size) = size {
            space.grow_to(in_blocks(size + trailer_bytes(size, &meta)))?;
        }
        let piece_bytes = chunk_bytes(size.unwrap_or(0));
        let left = take_up(inner, id, size, resume)?;
        let fresh = left.is_none();
        let (file, journal, digests) = match left {
            Some(left) => left,
            None => {
                inner.remove_unfinished(id)?;
                (
                    inner.spool.incoming.create(&part_name(id))?,
                    None,
                    BTreeMap::new(),
                )
            }
        };
        inner.partials().remove(&id);
        let mut written = RangeSet::new();
        let mut pieces = BTreeMap::new();
        for (index, digest) in digests {
            written.insert(index * piece_bytes..(index + 1) * piece_bytes);
            let digest = Some(digest);
            pieces.insert(index, Piece { epoch: 0, digest });
        }
        let writer = Self {
            state: Mutex::new(State {
                whole: pieces.len() as u64,
                written,
                pieces,
                space,
                journal,
                ahead: Ahead::default(),
                discard: false,
                claim: Some(claim),
            }),
            inner: Arc::clone(inner),
            id,
            meta,
            size,
            piece_bytes,
            tracked: size.is_none_or(|s| s >= RESUME_BYTES),
            file: Arc::new(file),
            life: RwLock::new(Life::Open),
        };
        writer.preallocate()?;
        if fresh {
            inner.trace(Step::Created, id);
        }
        Ok(writer)
    }

    /// Takes the space of an object of known size from the file system.
    fn preallocate(&self) -> Result<(), StoreError> {
        let mut s = self.lock();
        let bytes = s.space.bytes();
        if self.size.is_none_or(|size| size < PREALLOCATE_BYTES) {
            return Ok(());
        }
        match sys::preallocate(&self.file, bytes) {
            Ok(true) => s.space.on_disk(bytes),
            Ok(false) => {}
            Err(e) => {
                s.discard = true;
                drop(s);
                let name = part_name(self.id);
                return Err(self.inner.failed("take space for", &name, bytes, e));
            }
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Which object.
    #[must_use]
    pub fn id(&self) -> ObjectId {
        self.id
    }

    /// Its size as begun.
    #[must_use]
    pub fn size(&self) -> Option<u64> {
        self.size
    }

    /// What has been written.
    #[must_use]
    pub fn written(&self) -> RangeSet {
        self.lock().written.clone()
    }

    /// What of the size begun with was not written; nothing when that is not known.
    #[must_use]
    pub fn missing(&self) -> RangeSet {
        self.lock().written.missing(self.size.unwrap_or(0))
    }

    /// Writes bytes at an offset.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] beyond the size, [`StoreError::NoSpace`], [`StoreError::Io`] (the range then
    /// counts as missing), [`StoreError::Closed`].
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), StoreError> {
        let life = self.life.read().unwrap_or_else(PoisonError::into_inner);
        if *life == Life::Finished {
            return Err(StoreError::Closed(self.id));
        }
        let end = offset.saturating_add(bytes.len() as u64);
        let most = self.size.unwrap_or(MAX_UNSIZED_BYTES);
        if end > most {
            return Err(StoreError::Invalid(format!(
                "bytes {offset}..{end} are beyond the end of object {} ({most} bytes)",
                self.id
            )));
        }
        if bytes.is_empty() {
            return Ok(());
        }
        let range = offset..end;
        {
            let mut s = self.lock();
            self.reserve(&mut s, bytes.len() as u64)?;
            s.written.remove(range.clone());
            self.touch(&mut s, &range);
        }
        if let Err(e) = self.file.write_all_at(bytes, offset) {
            let name = part_name(self.id);
            return Err(self.inner.failed("write", &name, bytes.len() as u64, e));
        }
        let whole = {
            let mut s = self.lock();
            s.written.insert(range.clone());
            let on_disk = in_blocks(s.written.bytes());
            s.space.on_disk(on_disk);
            if let Err(e) = s.ahead.wrote(bytes.len() as u64, &self.file, &self.inner.ahead) {
                // Who goes on with it would find in the cache what is not on the disk.
                s.discard = true;
                return Err(self.inner.failed("flush", &part_name(self.id), 0, e));
            }
            self.touch(&mut s, &range)
        };
        self.inner.trace(Step::Written, self.id);
        for (index, epoch) in whole {
            self.digest_piece(index, epoch, offset, bytes)?;
        }
        Ok(())
    }

    /// Promises space for an object that grows.
    fn reserve(&self, s: &mut State, more: u64) -> Result<(), StoreError> {
        if self.size.is_some() {
            return Ok(());
        }
        let content = s.written.bytes().saturating_add(more);
        let exact = in_blocks(content + trailer_bytes(content, &self.meta));
        if exact <= s.space.bytes() {
            return Ok(());
        }
        let generous = exact.next_multiple_of(RESERVE_STEP_BYTES);
        match s.space.grow_to(generous) {
            Err(StoreError::NoSpace { .. }) => s.space.grow_to(exact),
            other => other,
        }
    }

    /// Takes their digests from the pieces that a range touches; gives those that are whole, with their epochs.
    fn touch(&self, s: &mut State, range: &Range<u64>) -> Vec<(u64, u64)> {
        let mut out = Vec::new();
        if !self.tracked {
            return out;
        }
        for index in range.start / self.piece_bytes..range.end.div_ceil(self.piece_bytes) {
            let start = index * self.piece_bytes;
            let is_whole = s.written.contains(start..start + self.piece_bytes);
            let piece = s.pieces.entry(index).or_default();
            piece.epoch += 1;
            if piece.digest.take().is_some() {
                s.whole -= 1;
            }
            if is_whole {
                out.push((index, piece.epoch));
            }
        }
        out
    }

    /// Computes the digest of a whole piece, from `bytes` (at `offset`) when they hold all of it.
    fn digest_piece(&self, index: u64, epoch: u64, offset: u64, bytes: &[u8]) -> Result<(), StoreError> {
        let start = index * self.piece_bytes;
        let end = start + self.piece_bytes;
        let held = start.checked_sub(offset).and_then(|from| {
            let from = usize::try_from(from).ok()?;
            let len = usize::try_from(self.piece_bytes).ok()?;
            bytes.get(from..from.checked_add(len)?)
        });
        let digest = match held {
            Some(piece) => subtree_cv(piece, start).ok(),
            None => {
                let mut buf = vec![0u8; HASH_BUFFER_BYTES];
                // The size is any beyond the piece: so it is not taken for the whole object.
                hash::piece(&self.file, end + 1, &(start..end), &mut buf, &mut |_| {})
                    .map_err(|e| self.inner.failed("read back", &part_name(self.id), 0, e))?
            }
        };
        let Some(digest) = digest else { return Ok(()) };
        let mut s = self.lock();
        let Some(piece) = s.pieces.get_mut(&index).filter(|p| p.epoch == epoch) else {
            return Ok(());
        };
        piece.digest = Some(digest);
        s.whole += 1;
        self.record(&mut s, index, &digest);
        Ok(())
    }

    /// Records a piece for resuming. When that fails the object cannot be resumed, and nothing else is wrong.
    fn record(&self, s: &mut State, index: u64, digest: &Digest) {
        if s.journal.is_none() {
            self.begin_journal(s);
            return;
        }
        let mut bytes = Vec::new();
        journal::record(self.id, index, digest, &mut bytes);
        self.append(s, &bytes);
    }

    /// Makes the resume file, with all pieces that are whole, when there are enough of them.
    fn begin_journal(&self, s: &mut State) {
        if s.whole.saturating_mul(self.piece_bytes) < RESUME_BYTES || s.discard {
            return;
        }
        let Ok(file) = self.inner.spool.incoming.create(&resume_name(self.id)) else {
            s.discard = true;
            return;
        };
        s.journal = Some(file);
        let mut bytes = journal::header(self.id, &self.meta, self.size);
        for (index, piece) in &s.pieces {
            if let Some(digest) = &piece.digest {
                journal::record(self.id, *index, digest, &mut bytes);
            }
        }
        self.append(s, &bytes);
    }

    fn append(&self, s: &mut State, bytes: &[u8]) {
        let appended = s.journal.as_ref().map(|file| journal::append(file, bytes));
        if matches!(appended, Some(Ok(()))) {
            self.inner.trace(Step::Recorded, self.id);
        } else {
            s.journal = None;
            s.discard = true;
        }
    }

    /// Reads what was written so far; holes are zeros. Returns how much there was.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize, StoreError> {
        read_full(&self.file, buf, offset)
            .map_err(|e| self.inner.failed("read back", &part_name(self.id), 0, e))
    }

    /// Forgets everything from byte `size` on, of an object that was begun without a size.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] for one with a size, [`StoreError::Closed`], [`StoreError::Io`].
    pub fn truncate(&self, size: u64) -> Result<(), StoreError> {
        let life = self.life.write().unwrap_or_else(PoisonError::into_inner);
        if *life == Life::Finished {
            return Err(StoreError::Closed(self.id));
        }
        if let Some(fixed) = self.size {
            return Err(StoreError::Invalid(format!(
                "object {} was begun with {fixed} bytes and is not cut",
                self.id
            )));
        }
        check_size(size, MAX_UNSIZED_BYTES)?;
        self.set_len(size)?;
        let mut s = self.lock();
        let end = u64::MAX;
        s.written.remove(size..end);
        let touched: Vec<u64> = s
            .pieces
            .range(size / self.piece_bytes..)
            .map(|(i, _)| *i)
            .collect();
        for index in touched {
            if let Some(piece) = s.pieces.get_mut(&index) {
                piece.epoch += 1;
                if piece.digest.take().is_some() {
                    s.whole -= 1;
                }
            }
        }
        // What was recorded of the bytes that are gone would be taken for written by a later writer.
        if s.journal.take().is_some() {
            let name = resume_name(self.id);
            self.inner.spool.incoming.unlink(&name)?;
            self.begin_journal(&mut s);
        }
        Ok(())
    }

    fn set_len(&self, size: u64) -> Result<(), StoreError> {
        self.file
            .set_len(size)
            .map_err(|e| self.inner.failed("set the length of", &part_name(self.id), 0, e))
    }

    /// Ends the writing and removes what was written.
    pub fn abort(self) {
        self.lock().discard = true;
    }
}

impl Drop for ObjectWriter {
    fn drop(&mut self) {
        let finished = *self.life.get_mut().unwrap_or_else(PoisonError::into_inner) == Life::Finished;
        let s = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if finished {
            return;
        }
        if s.journal.is_some() && !s.discard {
            self.inner.partials().insert(self.id);
        } else {
            // What stays is removed when the store is opened next.
            let _ = self.inner.remove_unfinished(self.id);
        }
    }
}

type TakenUp = (File, Option<File>, BTreeMap<u64, Digest>);

/// What an earlier writer of the same object and size left, when it is to be gone on with.
fn take_up(
    inner: &Inner,
    id: ObjectId,
    size: Option<u64>,
    resume: bool,
) -> Result<Option<TakenUp>, StoreError> {
    if !resume || !inner.partials().contains(&id) {
        return Ok(None);
    }
    let incoming = &inner.spool.incoming;
    let name = resume_name(id);
    let (Some(file), Some(mut journal)) = (incoming.write_file(&part_name(id))?, incoming.write_file(&name)?)
    else {
        return Ok(None);
    };
    let read = journal::read(id, &mut journal).map_err(|e| incoming.error("read", &name, e))?;
    let Some((left, valid)) = read.filter(|(left, _)| left.size == size) else {
        return Ok(None);
    };
    let seek = |mut f: &File| io::Seek::seek(&mut f, io::SeekFrom::Start(valid));
    journal
        .set_len(valid)
        .and_then(|()| seek(&journal))
        .map_err(|e| incoming.error("cut", &name, e))?;
    // A record beyond the end of a known size would be a piece that is not there.
    let most = size.unwrap_or(MAX_UNSIZED_BYTES) / chunk_bytes(size.unwrap_or(0));
    let pieces = left.pieces.into_iter().filter(|(index, _)| *index < most);
    Ok(Some((file, Some(journal), pieces.collect())))
}
