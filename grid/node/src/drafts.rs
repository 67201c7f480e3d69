//! Objects that are written in parts, by HTTP or from files of clients on this host.
//!
//! ```text
//!   part, total not known or something missing ──> written              the writer waits for more, IDLE_LIMIT at most
//!   part, total known and nothing missing ──> read back, flushed ──> durable; its digest
//!   part that is the whole and small ──> durable at once, without a writer
//! ```

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use hyper::StatusCode;
use kuroshio_service::Claims;
use kuroshio_store::{Begin, Finish, Holes, MAX_PUT_BYTES, Meta, ObjectId, ObjectWriter, Sealed, Store};

use crate::data::{Refusal, meta_of};

/// Objects that are written in parts at once.
const MAX_WRITERS: usize = 256;
/// An object of which no part came for so long is put aside; what can be resumed stays in the spool.
const IDLE_LIMIT: Duration = Duration::from_secs(120);
/// Bytes that are copied at once: a chunk of an object up to 64 GiB, which is digested from memory then.
const COPY_BYTES: u64 = 1024 * 1024;
/// Threads that copy a part out of a file: one writes while another one digests.
const COPIERS: usize = 2;

/// A part of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Its first byte's place in the object.
    pub start: u64,
    /// Payload bytes.
    pub len: u64,
    /// Payload bytes of the whole object, if that is known.
    pub total: Option<u64>,
}

impl Part {
    /// Whether it is the whole object.
    pub fn is_whole(&self) -> bool {
        self.start == 0 && self.total == Some(self.len)
    }
}

/// Where the bytes of a part are.
pub enum Bytes<'a> {
    /// In memory.
    Memory(&'a [u8]),
    /// In a file of a client of this host, from its beginning.
    File(&'a File),
}

/// An object that is written in parts.
struct Writing {
    writer: Arc<ObjectWriter>,
    /// The user whose token began it.
    owner: String,
    touched: Instant,
}

/// All of them.
#[derive(Default)]
pub struct Drafts {
    writing: Mutex<HashMap<ObjectId, Writing>>,
}

impl Drafts {
    /// Writes a part; what it sealed, if it was the last one.
    pub fn write(
        &self,
        store: &Store,
        id: ObjectId,
        part: &Part,
        bytes: &Bytes<'_>,
        claims: &Claims,
    ) -> Result<Option<Sealed>, Refusal> {
        let meta = meta_of(claims);
        if part.is_whole() && part.len <= MAX_PUT_BYTES as u64 {
            let sealed = match bytes {
                Bytes::Memory(bytes) => store.put(id, &meta, bytes, None)?,
                Bytes::File(file) => {
                    let mut whole = vec![0; usize::try_from(part.len).unwrap_or(0)];
                    file.read_exact_at(&mut whole, 0).map_err(|e| unread(&e))?;
                    store.put(id, &meta, &whole, None)?
                }
            };
            return Ok(Some(sealed));
        }
        let writer = self.writer(store, id, meta, &claims.sub, part.total)?;
        match bytes {
            Bytes::Memory(bytes) => writer.write_at(part.start, bytes)?,
            Bytes::File(file) => copy(&writer, file, part)?,
        }
        let Some(total) = part.total else {
            return Ok(None);
        };
        let written = writer.written();
        if !(written.len() == 1 && written.contains(0..total)) {
            return Ok(None);
        }
        let finish = Finish {
            size: total,
            digest: None,
            holes: Holes::Refuse,
        };
        let sealed = writer.finish(finish)?;
        self.writing().remove(&id);
        Ok(Some(sealed))
    }

    fn writing(&self) -> MutexGuard<'_, HashMap<ObjectId, Writing>> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The writer of an object: the one that is open, or a new one.
    fn writer(
        &self,
        store: &Store,
        id: ObjectId,
        meta: Meta,
        user: &str,
        size: Option<u64>,
    ) -> Result<Arc<ObjectWriter>, Refusal> {
        let mut writing = self.writing();
        writing.retain(|_, w| w.touched.elapsed() < IDLE_LIMIT);
        if let Some(open) = writing.get_mut(&id) {
            if open.owner != user {
                return Err(Refusal(
                    StatusCode::FORBIDDEN,
                    "another user writes this object".into(),
                ));
            }
            open.touched = Instant::now();
            return Ok(open.writer.clone());
        }
        if writing.len() >= MAX_WRITERS {
            return Err(Refusal::unavailable(format!(
                "{MAX_WRITERS} objects are written already; try again later"
            )));
        }
        let begin = Begin {
            meta,
            size,
            resume: true,
        };
        let writer = Arc::new(store.begin(id, begin)?);
        let open = Writing {
            writer: writer.clone(),
            owner: user.to_owned(),
            touched: Instant::now(),
        };
        writing.insert(id, open);
        Ok(writer)
    }
}

/// Copies a part out of a file, piece by piece.
fn copy(writer: &ObjectWriter, file: &File, part: &Part) -> Result<(), Refusal> {
    let next = AtomicU64::new(0);
    let work = || -> Result<(), Refusal> {
        let mut buffer = vec![0; usize::try_from(part.len.min(COPY_BYTES)).unwrap_or(0)];
        loop {
            let at = next.fetch_add(COPY_BYTES, Ordering::Relaxed);
            if at >= part.len {
                return Ok(());
            }
            let len = usize::try_from((part.len - at).min(COPY_BYTES)).unwrap_or(0);
            let piece = buffer.get_mut(..len).unwrap_or_default();
            file.read_exact_at(piece, at).map_err(|e| unread(&e))?;
            writer.write_at(part.start + at, piece)?;
        }
    };
    if part.len <= COPY_BYTES {
        return work();
    }
    thread::scope(|scope| {
        let others: Vec<_> = (1..COPIERS).map(|_| scope.spawn(work)).collect();
        let mut done = work();
        for other in others {
            let theirs = other.join();
            done = done.and(theirs.unwrap_or_else(|_| Err(Refusal::failed("a copy ended abnormally"))));
        }
        done
    })
}

fn unread(e: &io::Error) -> Refusal {
    Refusal::bad(format!("the file: {e}"))
}
