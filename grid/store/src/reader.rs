//! Reading of objects, and comparing them with their digests.

use crate::error::StoreError;
use crate::hash;
use crate::id::ObjectId;
use crate::inner::Inner;
use crate::limits::{HASH_BUFFER_BYTES, SLOT_BYTES};
use crate::meta::Meta;
use crate::spool::object_path;
use crate::sys::read_full;
use crate::trailer::Trailer;
use kuroshio_core::chunk::{Digest, RangeSet};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// What is wrong with an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// In words.
    pub what: String,
    /// The chunks that differ, merged; empty when it is not the content.
    pub ranges: Vec<Range<u64>>,
}

/// An open object. Its methods may be called from several threads.
#[derive(Debug)]
pub struct ObjectReader {
    file: File,
    trailer: Trailer,
    path: String,
    inner: Arc<Inner>,
}

impl ObjectReader {
    pub(crate) fn open(inner: &Arc<Inner>, id: ObjectId) -> Result<Self, StoreError> {
        let path = object_path(id);
        let file = inner.open_object(id)?.ok_or(StoreError::NotFound(id))?;
        let read = Trailer::read(&file).map_err(|e| inner.failed("read", &path, 0, e))?;
        let trailer = read.and_then(|t| expect_id(t, id));
        Ok(Self {
            file,
            trailer: trailer.map_err(|what| StoreError::Corrupt { id, what })?,
            path,
            inner: Arc::clone(inner),
        })
    }

    /// Which object.
    #[must_use]
    pub fn id(&self) -> ObjectId {
        self.trailer.id
    }

    /// Bytes of content.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.trailer.size
    }

    /// BLAKE3 of the content.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.trailer.digest
    }

    /// What stands beside the content.
    #[must_use]
    pub fn meta(&self) -> &Meta {
        &self.trailer.meta
    }

    /// Bytes of a chunk; the last one may be shorter.
    #[must_use]
    pub fn chunk_bytes(&self) -> u64 {
        self.trailer.chunk_bytes
    }

    /// The digest of a chunk, as [`kuroshio_core::chunk::piece_digest`] gives it.
    #[must_use]
    pub fn chunk_digest(&self, index: u64) -> Option<Digest> {
        chunk_digest(&self.trailer, index)
    }

    /// Reads at an offset; fewer bytes than `buf` has only at the end of the content.
    ///
    /// # Errors
    /// [`StoreError::Io`], [`StoreError::Corrupt`] when the file became shorter.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize, StoreError> {
        let left = self.trailer.size.saturating_sub(offset);
        let most = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let into = buf.get_mut(..most).unwrap_or_default();
        let got =
            read_full(&self.file, into, offset).map_err(|e| self.inner.failed("read", &self.path, 0, e))?;
        if got < most {
            return Err(StoreError::Corrupt {
                id: self.id(),
                what: format!("it ends at byte {}", offset.saturating_add(got as u64)),
            });
        }
        Ok(got)
    }

    /// The file: its first [`size`](Self::size) bytes are the content. A trailer follows.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Compares the whole content with its digests. `None`: all is right.
    ///
    /// # Errors
    /// [`StoreError::Io`] when it cannot be read.
    pub fn verify(&self) -> Result<Option<Damage>, StoreError> {
        self.verify_range(0..self.size())
    }

    /// Compares the chunks that `range` touches with their digests. `None`: they are right.
    ///
    /// # Errors
    /// [`StoreError::Io`] when they cannot be read.
    pub fn verify_range(&self, range: Range<u64>) -> Result<Option<Damage>, StoreError> {
        compare(&self.file, &self.trailer, range, &mut |_| true)
            .map(|found| found.flatten())
            .map_err(|e| self.inner.failed("read", &self.path, 0, e))
    }
}

/// Refuses the trailer of another object.
pub(crate) fn expect_id(trailer: Trailer, id: ObjectId) -> Result<Trailer, String> {
    if trailer.id == id {
        Ok(trailer)
    } else {
        Err(format!("its trailer is that of object {}", trailer.id))
    }
}

fn chunk_digest(trailer: &Trailer, index: u64) -> Option<Digest> {
    if trailer.table.is_empty() {
        return (index == 0 && trailer.size > 0).then_some(trailer.digest);
    }
    trailer.table.get(usize::try_from(index).ok()?).copied()
}

/// Compares the chunks that `range` touches. `told` hears of each read in bytes and may end it: `None` then;
/// otherwise `Some(damage)`.
pub(crate) fn compare(
    file: &File,
    trailer: &Trailer,
    range: Range<u64>,
    told: &mut dyn FnMut(u64) -> bool,
) -> io::Result<Option<Option<Damage>>> {
    let (size, chunk) = (trailer.size, trailer.chunk_bytes);
    if hash::root(&trailer.table) != trailer.digest && !trailer.table.is_empty() {
        return Ok(Some(Some(Damage {
            what: "the digests of its chunks do not make up its digest".to_owned(),
            ranges: Vec::new(),
        })));
    }
    let mut buf = vec![0u8; HASH_BUFFER_BYTES];
    let mut wrong = RangeSet::new();
    let mut going = true;
    let last = hash::count(range.end.min(size), chunk);
    for index in range.start / chunk..last {
        let bytes = hash::range(size, chunk, index);
        let found = hash::piece(file, size, &bytes, &mut buf, &mut |n| going &= told(n))?;
        if !going {
            return Ok(None);
        }
        if found.is_none() || found != chunk_digest(trailer, index) {
            wrong.insert(bytes);
        }
    }
    if wrong.is_empty() {
        let whole = range.end < size || zeros_follow(file, trailer)?;
        return Ok(Some((!whole).then(|| Damage {
            what: "what stands between its content and its trailer are not zeros".to_owned(),
            ranges: Vec::new(),
        })));
    }
    Ok(Some(Some(Damage {
        what: format!("{} bytes of its content differ from their digest", wrong.bytes()),
        ranges: wrong.iter().collect(),
    })))
}

/// Whether nothing but zeros stands between content and trailer: an object that was written into a slot has some there.
fn zeros_follow(file: &File, trailer: &Trailer) -> io::Result<bool> {
    let used = trailer.size.saturating_add(trailer.len());
    let between = file.metadata()?.len().saturating_sub(used);
    let mut bytes = vec![0; usize::try_from(between).unwrap_or(0).min(SLOT_BYTES)];
    let got = read_full(file, &mut bytes, trailer.size)?;
    Ok(got == bytes.len() && bytes.iter().all(|b| *b == 0))
}
