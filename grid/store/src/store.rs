//! The store: what a node's daemon holds.

use crate::error::StoreError;
use crate::hash;
use crate::id::ObjectId;
use crate::inner::{Inner, resume_name, sealed_name};
use crate::journal;
use crate::limits::{GROUP_MIN, Limits, MAX_PAGE, MAX_PUT_BYTES, chunk_bytes, in_blocks};
use crate::meta::Meta;
use crate::reader::ObjectReader;
use crate::recover::{self, Recovered};
use crate::spool::{self, MODE, Spool, object_path, write_state};
use crate::trace::{Step, Trace};
use crate::trailer::Trailer;
use crate::writer::{Begin, ObjectWriter};
use kuroshio_core::chunk::{Digest, piece_digest};
use std::collections::BTreeSet;
use std::fmt;
use std::io::Write;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What a store does with requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// All.
    Normal,
    /// No new objects and no removals. Objects that were begun before may be finished.
    ReadOnly,
    /// No new objects: those that are there move elsewhere and are removed here.
    Drain,
}

impl Mode {
    const ALL: [(Self, &'static str); 3] = [
        (Self::Normal, "normal"),
        (Self::ReadOnly, "read-only"),
        (Self::Drain, "drain"),
    ];
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Normal => "normal",
            Self::ReadOnly => "read-only",
            Self::Drain => "drain",
        })
    }
}

impl FromStr for Mode {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Self, StoreError> {
        let found = Self::ALL.iter().find(|(_, name)| *name == text);
        found.map(|(mode, _)| *mode).ok_or_else(|| {
            let text: String = text.chars().take(40).collect();
            StoreError::Invalid(format!(
                "\"{}\" is no mode of a store: normal, read-only or drain",
                text.escape_default()
            ))
        })
    }
}

/// An object that is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sealed {
    /// Which.
    pub id: ObjectId,
    /// Bytes of content.
    pub size: u64,
    /// BLAKE3 of the content.
    pub digest: Digest,
    /// It was there already, with the same content.
    pub known: bool,
}

/// State of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// What it does with requests.
    pub mode: Mode,
    /// Objects in it.
    pub objects: u64,
    /// Their files with trailers, in blocks of 4 KiB.
    pub object_bytes: u64,
    /// The limit, or what it holds and could hold.
    pub capacity_bytes: u64,
    /// What a new object could take at this moment.
    pub free_bytes: u64,
    /// Promised to objects that are being written.
    pub reserved_bytes: u64,
    /// Objects being written.
    pub writers: u64,
    /// Files in quarantine.
    pub quarantined: u64,
    /// Errors that the disk gave since the store was opened.
    pub io_errors: u64,
    /// Flushes of new objects since then.
    pub flushes: u64,
    /// Objects that shared a flush with another since then.
    pub grouped: u64,
}

/// An entry of [`Store::list`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Which object.
    pub id: ObjectId,
    /// Its file with the trailer, bytes.
    pub file_bytes: u64,
}

/// Where a listing stands: after an object, in the order of buckets and then of ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor(pub(crate) ObjectId);

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Cursor {
    type Err = crate::id::BadId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

/// An object that was begun and can be gone on with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partial {
    /// Which.
    pub id: ObjectId,
    /// Its size, when it was known.
    pub size: Option<u64>,
    /// Bytes that need not be written again.
    pub written_bytes: u64,
    /// As given when it was begun.
    pub meta: Meta,
}

/// Objects in a spool. Clones share it; the spool stays open, and locked, until they and all readers and writers
/// are dropped.
#[derive(Clone, Debug)]
pub struct Store {
    pub(crate) inner: Arc<Inner>,
    recovered: Arc<Recovered>,
}

impl Store {
    /// Opens the spool in `dir`, making it where the folder is empty or missing, and repairs what a crash left.
    /// Looks at the length of every object: some seconds for a million.
    ///
    /// # Errors
    /// [`StoreError::Locked`], [`StoreError::NotASpool`], [`StoreError::Io`].
    pub fn open(dir: &Path, limits: Limits) -> Result<Self, StoreError> {
        Self::open_with(dir, limits, None)
    }

    /// As [`open`](Self::open); `trace` hears of every step.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_traced(dir: &Path, limits: Limits, trace: Trace) -> Result<Self, StoreError> {
        Self::open_with(dir, limits, Some(trace))
    }

    fn open_with(dir: &Path, limits: Limits, trace: Option<Trace>) -> Result<Self, StoreError> {
        let spool = Spool::open(dir)?;
        spool::clean_state(&spool.root)?;
        let mode = match spool::read_state(&spool.root, MODE)? {
            Some(text) => text.trim_end().parse().map_err(|_| StoreError::NotASpool {
                path: dir.join(MODE),
                what: "it does not say normal, read-only or drain".to_owned(),
            })?,
            None => Mode::Normal,
        };
        let inner = Arc::new(Inner::new(spool, limits, trace));
        inner.set_mode(mode);
        let recovered = recover::run(&inner)?;
        Ok(Self {
            inner,
            recovered: Arc::new(recovered),
        })
    }

    /// What recovery did when the store was opened.
    #[must_use]
    pub fn recovered(&self) -> &Recovered {
        &self.recovered
    }

    /// The spool's identity, random, the same for ever.
    #[must_use]
    pub fn spool_id(&self) -> [u8; 16] {
        self.inner.spool.id
    }

    /// Stores a small object in one call: durable when it returns. The digest is computed from `content`.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] beyond [`MAX_PUT_BYTES`], [`StoreError::Digest`] when `expected` differs,
    /// [`StoreError::Exists`], [`StoreError::Busy`], [`StoreError::NoSpace`], [`StoreError::Refused`],
    /// [`StoreError::Io`]. Nothing is left behind.
    pub fn put(
        &self,
        id: ObjectId,
        meta: &Meta,
        content: &[u8],
        expected: Option<Digest>,
    ) -> Result<Sealed, StoreError> {
        let inner = &self.inner;
        inner.allow_new()?;
        meta.check()?;
        if content.len() > MAX_PUT_BYTES {
            return Err(StoreError::Invalid(format!(
                "an object of {} bytes is not put in one call (at most {MAX_PUT_BYTES}): begin it and write ranges",
                content.len()
            )));
        }
        let trailer = trailer_of(id, meta, content)?;
        if let Some(expected) = expected.filter(|e| *e != trailer.digest) {
            let found = trailer.digest;
            return Err(StoreError::Digest { id, expected, found });
        }
        let _claim = inner.claim(id)?;
        if let Some(known) = inner.known(id, trailer.size, trailer.digest)? {
            return Ok(known);
        }
        let end = trailer.encode();
        let len = content.len() + end.len();
        let mut space = inner.space.reservation();
        space.grow_to(in_blocks(len as u64))?;
        // Several that come at once share one flush better without slots.
        let alone = inner.writers() < GROUP_MIN as u64;
        match alone.then(|| inner.slots.take(len)).flatten() {
            Some(slot) => {
                inner.trace(Step::Created, id);
                put_aside(inner, &slot.name, slot.write(content, &end), slot.bytes())?;
                inner.trace(Step::Sealed, id);
                inner.publish_slot(id, &slot)?;
            }
            None => {
                let (name, bytes) = (sealed_name(id), [content, &end].concat());
                let mut file = inner.spool.incoming.create(&name)?;
                inner.trace(Step::Created, id);
                put_aside(inner, &name, file.write_all(&bytes), len as u64)?;
                inner.trace(Step::Sealed, id);
                inner.publish(id, &Arc::new(file), len as u64)?;
            }
        }
        if inner.partials().remove(&id) {
            inner.remove_unfinished(id)?;
        }
        Ok(Sealed {
            id,
            size: trailer.size,
            digest: trailer.digest,
            known: false,
        })
    }

    /// Makes the slots for small objects that [`Limits::slots`] allows; without this they are made once the first object has
    /// asked for one.
    ///
    /// # Errors
    /// [`StoreError::Io`]; objects are stored without slots then.
    pub fn prepare(&self) -> Result<(), StoreError> {
        self.inner.slots.fill()
    }

    /// Begins an object that is written in ranges, or goes on with one.
    ///
    /// # Errors
    /// [`StoreError::Exists`], [`StoreError::Busy`], [`StoreError::NoSpace`] (for a known size, at once),
    /// [`StoreError::Refused`], [`StoreError::Invalid`], [`StoreError::TooMany`], [`StoreError::Io`].
    pub fn begin(&self, id: ObjectId, begin: Begin) -> Result<ObjectWriter, StoreError> {
        self.inner.allow_new()?;
        begin.check()?;
        let claim = self.inner.claim(id)?;
        ObjectWriter::begin(&self.inner, claim, id, begin)
    }

    /// Opens an object for reading. It stays readable through the handle when it is deleted meanwhile.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], [`StoreError::Corrupt`], [`StoreError::Io`].
    pub fn read(&self, id: ObjectId) -> Result<ObjectReader, StoreError> {
        ObjectReader::open(&self.inner, id)
    }

    /// Whether there is an object of this name (right or not).
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn exists(&self, id: ObjectId) -> Result<bool, StoreError> {
        Ok(self.inner.spool.objects.stat(&object_path(id))?.is_some())
    }

    /// Removes an object: for ever when this returns.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], [`StoreError::Refused`], [`StoreError::Io`].
    pub fn delete(&self, id: ObjectId) -> Result<(), StoreError> {
        self.delete_many(&[id])?.pop().unwrap_or(Ok(()))
    }

    /// Removes objects with few flushes; one answer for each. Removed for ever when this returns.
    ///
    /// # Errors
    /// [`StoreError::Refused`], or the flush failed: then any of them may come back after a crash.
    pub fn delete_many(&self, ids: &[ObjectId]) -> Result<Vec<Result<(), StoreError>>, StoreError> {
        let inner = &self.inner;
        inner.allow_removal()?;
        let mut buckets = BTreeSet::new();
        let answers = ids.iter().map(|&id| {
            let path = object_path(id);
            let Some((file_bytes, _)) = inner.spool.objects.stat(&path)? else {
                return Err(StoreError::NotFound(id));
            };
            if !inner.spool.objects.unlink(&path)? {
                return Err(StoreError::NotFound(id));
            }
            inner.space.change(|c| {
                c.objects = c.objects.saturating_sub(1);
                c.object_bytes = c.object_bytes.saturating_sub(in_blocks(file_bytes));
            });
            buckets.insert(id.bucket());
            inner.trace(Step::Unlinked, id);
            Ok(())
        });
        let answers: Vec<Result<(), StoreError>> = answers.collect();
        inner.settle_incoming()?;
        for bucket in buckets {
            inner.spool.sync_bucket(bucket)?;
        }
        for (id, _) in ids.iter().zip(&answers).filter(|(_, a)| a.is_ok()) {
            inner.trace(Step::Removed, *id);
        }
        Ok(answers)
    }

    /// One page of all objects, in the order of buckets and then of ids, after `after`; with the cursor of the
    /// next page, `None` at the end. Objects that come or go meanwhile are in it or not; others are exactly once.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn list(
        &self,
        after: Option<Cursor>,
        max: usize,
    ) -> Result<(Vec<Listed>, Option<Cursor>), StoreError> {
        let max = max.clamp(1, MAX_PAGE);
        let objects = &self.inner.spool.objects;
        let mut page = Vec::new();
        let first = after.map_or(0, |c| c.0.bucket());
        for bucket in first..=u8::MAX {
            let folder = format!("{bucket:02x}");
            for (name, _) in objects.folder(&folder)?.names()? {
                let Some(id) = ObjectId::from_bytes(&name).filter(|id| id.bucket() == bucket) else {
                    continue;
                };
                if after.is_some_and(|c| bucket == first && id <= c.0) {
                    continue;
                }
                let Some((file_bytes, _)) = objects.stat(&object_path(id))? else {
                    continue;
                };
                page.push(Listed { id, file_bytes });
                if page.len() == max {
                    return Ok((page, Some(Cursor(id))));
                }
            }
        }
        Ok((page, None))
    }

    /// Objects that were begun, are not being written now, and can be gone on with.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn partials(&self) -> Result<Vec<Partial>, StoreError> {
        let ids: Vec<ObjectId> = self.inner.partials().iter().copied().collect();
        let incoming = &self.inner.spool.incoming;
        let mut out = Vec::new();
        for id in ids {
            let name = resume_name(id);
            let Some(mut file) = incoming.read_file(&name)? else {
                continue;
            };
            let read = journal::read(id, &mut file).map_err(|e| incoming.error("read", &name, e))?;
            let Some((left, _)) = read else { continue };
            let piece = chunk_bytes(left.size.unwrap_or(0));
            out.push(Partial {
                id,
                size: left.size,
                written_bytes: (left.pieces.len() as u64).saturating_mul(piece),
                meta: left.meta,
            });
        }
        Ok(out)
    }

    /// Removes what was written of an object that nobody writes now.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], [`StoreError::Busy`], [`StoreError::Io`].
    pub fn discard_partial(&self, id: ObjectId) -> Result<(), StoreError> {
        let _claim = self.inner.claim(id)?;
        if !self.inner.partials().remove(&id) {
            return Err(StoreError::NotFound(id));
        }
        self.inner.remove_unfinished(id)
    }

    /// State and space.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn status(&self) -> Result<Status, StoreError> {
        let counts = self.inner.space.counts();
        let (capacity_bytes, free_bytes) = self.inner.space.capacity_and_free()?;
        let (flushes, grouped) = self.inner.flush_counts();
        Ok(Status {
            mode: self.inner.mode(),
            objects: counts.objects,
            object_bytes: counts.object_bytes,
            capacity_bytes,
            free_bytes,
            reserved_bytes: counts.reserved_bytes,
            writers: self.inner.writers(),
            quarantined: counts.quarantined,
            io_errors: self.inner.io_errors(),
            flushes,
            grouped,
        })
    }

    /// Highest inode or generation that an object here bears, or has borne since the store was opened: whoever gives
    /// numbers to new objects must be beyond it.
    #[must_use]
    pub fn highest_number(&self) -> u64 {
        self.inner.highest.load(Ordering::Relaxed)
    }

    /// What the store does with requests.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.inner.mode()
    }

    /// Changes what the store does with requests; a restart remembers it.
    ///
    /// # Errors
    /// [`StoreError::Io`]; the mode is as before.
    pub fn set_mode(&self, mode: Mode) -> Result<(), StoreError> {
        write_state(&self.inner.spool.root, MODE, &format!("{mode}\n"))?;
        self.inner.set_mode(mode);
        Ok(())
    }
}

/// What became of writing a small object; removed if it failed.
fn put_aside(
    inner: &Inner,
    name: &str,
    written: std::io::Result<()>,
    file_bytes: u64,
) -> Result<(), StoreError> {
    written.map_err(|e| {
        // Recovery would find its digest wrong: nothing is wrong should it stay.
        let _ = inner.spool.incoming.unlink(name);
        inner.failed("write", name, file_bytes, e)
    })
}

/// The trailer of an object in memory.
fn trailer_of(id: ObjectId, meta: &Meta, content: &[u8]) -> Result<Trailer, StoreError> {
    let size = content.len() as u64;
    let chunk = chunk_bytes(size);
    let step = usize::try_from(chunk).unwrap_or(usize::MAX);
    let mut table = Vec::new();
    for (part, offset) in content.chunks(step).zip((0u64..).step_by(step)) {
        let digest = piece_digest(size, offset, part).map_err(|e| StoreError::Invalid(e.to_string()))?;
        table.push(digest);
    }
    let digest = hash::root(&table);
    if table.len() < 2 {
        table.clear();
    }
    Ok(Trailer {
        id,
        size,
        digest,
        meta: meta.clone(),
        chunk_bytes: chunk,
        table,
    })
}
