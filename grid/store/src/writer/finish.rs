//! The end of writing: reading back, comparing, trailer, and on to the disk and the name.

use super::{Finish, Holes, Life, ObjectWriter, check_size, trailer_bytes};
use crate::error::{StoreError, told};
use crate::hash;
use crate::inner::{part_name, resume_name, sealed_name};
use crate::limits::{GROUP_OBJECT_BYTES, MAX_OBJECT_BYTES, MAX_UNSIZED_BYTES, chunk_bytes, in_blocks};
use crate::store::Sealed;
use crate::trace::Step;
use crate::trailer::Trailer;
use kuroshio_core::chunk::{Digest, RangeSet};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::PoisonError;

impl ObjectWriter {
    /// Reads back, compares, flushes and names the object: durable when this returns.
    ///
    /// # Errors
    /// [`StoreError::Incomplete`] and [`StoreError::Damaged`]: write those ranges and finish again.
    /// [`StoreError::Digest`]: the content is another. [`StoreError::Exists`], [`StoreError::NoSpace`],
    /// [`StoreError::Io`], [`StoreError::Closed`].
    pub fn finish(&self, finish: Finish) -> Result<Sealed, StoreError> {
        let mut life = self.life.write().unwrap_or_else(PoisonError::into_inner);
        if *life == Life::Finished {
            return Err(StoreError::Closed(self.id));
        }
        let size = finish.size;
        self.check_finish(&finish)?;
        let file_bytes = size + trailer_bytes(size, &self.meta);
        self.lock().space.grow_to(in_blocks(file_bytes))?;
        let there = self
            .file
            .metadata()
            .map_err(|e| self.inner.failed("look at", &part_name(self.id), 0, e))?;
        if there.len() != size {
            self.set_len(size)?;
        }
        let digests = self.read_back(size)?;
        let digest = hash::root(&digests);
        if let Some(expected) = finish.digest.filter(|e| *e != digest) {
            self.lock().discard = true;
            let (id, found) = (self.id, digest);
            return Err(StoreError::Digest { id, expected, found });
        }
        self.inner.trace(Step::Verified, self.id);
        if let Some(known) = self.inner.known(self.id, size, digest)? {
            *life = Life::Finished;
            self.inner.remove_unfinished(self.id)?;
            self.give_back();
            return Ok(known);
        }
        self.seal(size, digest, &digests)?;
        *life = Life::Finished;
        let published = self.inner.publish(self.id, &self.file, file_bytes);
        self.inner.spool.incoming.unlink(&resume_name(self.id))?;
        self.give_back();
        published?;
        Ok(Sealed {
            id: self.id,
            size,
            digest,
            known: false,
        })
    }

    /// Nothing is written any more: others may have the space and the name.
    fn give_back(&self) {
        let mut s = self.lock();
        s.space.release();
        let claim = s.claim.take();
        drop(s);
        drop(claim);
    }

    fn check_finish(&self, finish: &Finish) -> Result<(), StoreError> {
        let most = if self.size.is_some() {
            MAX_OBJECT_BYTES
        } else {
            MAX_UNSIZED_BYTES
        };
        check_size(finish.size, most)?;
        let s = self.lock();
        let beyond = s
            .written
            .iter()
            .next_back()
            .is_some_and(|last| last.end > finish.size);
        if beyond || self.size.is_some_and(|fixed| fixed != finish.size) {
            return Err(StoreError::Invalid(format!(
                "object {} was begun or written with other bytes than the {} it is finished with",
                self.id, finish.size
            )));
        }
        let missing = s.written.missing(finish.size);
        if finish.holes == Holes::Refuse && !missing.is_empty() {
            return Err(StoreError::Incomplete {
                id: self.id,
                missing: told(&missing),
            });
        }
        Ok(())
    }

    /// The digests of all pieces as they are in the file; those that differ from what was written are missing
    /// from then on. A large object is flushed meanwhile.
    fn read_back(&self, size: u64) -> Result<Vec<Digest>, StoreError> {
        let name = part_name(self.id);
        let read = || hash::pieces(&self.file, size, self.piece_bytes);
        let mut ahead = std::mem::take(&mut self.lock().ahead);
        let found = if size > GROUP_OBJECT_BYTES {
            std::thread::scope(|scope| {
                let flush = scope.spawn(|| {
                    let flushed = self.file.sync_all();
                    ahead.note(&flushed);
                    ahead.wait()
                });
                let found = read();
                let flushed = flush
                    .join()
                    .unwrap_or_else(|_| Err(io::Error::other("the flush ended abnormally")));
                flushed.and(found)
            })
        } else {
            ahead.wait().and_then(|()| read())
        };
        {
            let mut s = self.lock();
            s.discard |= ahead.wait().is_err();
            s.ahead = ahead;
        }
        let found = found.map_err(|e| self.inner.failed("flush and read back", &name, size, e))?;
        let mut s = self.lock();
        let mut bad = RangeSet::new();
        // The digest of an only piece is the object's: what was written is compared by the caller.
        let comparable = found.len() > 1;
        let mut digests = Vec::with_capacity(found.len());
        for (index, there) in (0u64..).zip(&found) {
            let was = s.pieces.get(&index).and_then(|p| p.digest);
            match there {
                Some(there) if !comparable || was.is_none_or(|was| was == *there) => digests.push(*there),
                _ => {
                    bad.insert(hash::range(size, self.piece_bytes, index));
                }
            }
        }
        if bad.is_empty() {
            return Ok(digests);
        }
        for range in bad.iter() {
            s.written.remove(range.clone());
            self.touch(&mut s, &range);
        }
        Err(StoreError::Damaged {
            id: self.id,
            ranges: told(&bad),
        })
    }

    /// Writes the trailer and gives the file the name of a whole object.
    fn seal(&self, size: u64, digest: Digest, digests: &[Digest]) -> Result<(), StoreError> {
        let chunk = chunk_bytes(size);
        let table = if size > chunk {
            let per = usize::try_from(chunk / self.piece_bytes).unwrap_or(1);
            hash::join(digests, per)
        } else {
            Vec::new()
        };
        let trailer = Trailer {
            id: self.id,
            size,
            digest,
            meta: self.meta.clone(),
            chunk_bytes: chunk,
            table,
        };
        let name = part_name(self.id);
        if let Err(e) = self.file.write_all_at(&trailer.encode(), size) {
            let error = self.inner.failed("write", &name, trailer.len(), e);
            self.set_len(size)?;
            return Err(error);
        }
        self.inner.trace(Step::Trailer, self.id);
        self.inner
            .spool
            .incoming
            .rename_over(&name, &sealed_name(self.id))?;
        self.inner.trace(Step::Sealed, self.id);
        Ok(())
    }
}
