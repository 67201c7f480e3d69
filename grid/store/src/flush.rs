//! Flushing of objects that finish at the same time, together.
//!
//! ```text
//!   idle --first caller leads--> flushing [its batch] --> others that came meanwhile: one of them leads --> ...
//! ```
//!
//! Nobody waits for company: a caller that is alone flushes at once, and those that come while a flush runs
//! make up the next batch. A small batch is flushed file by file, then the folder; a larger one by one `syncfs`.
//! A flush that failed is not tried again: what the kernel did with the pages is not known, so every object of
//! that batch has failed.

use crate::error::StoreError;
use crate::limits::{GROUP_MAX, GROUP_MIN};
use crate::sys::Folder;
use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

#[derive(Debug, Default)]
struct Queue {
    next_ticket: u64,
    waiting: VecDeque<(u64, Arc<File>)>,
    led: bool,
    /// What became of batches, for those of their callers that have not looked yet.
    results: HashMap<u64, Option<Failure>>,
}

/// An error that many callers get.
#[derive(Debug, Clone)]
struct Failure {
    what: &'static str,
    path: PathBuf,
    kind: io::ErrorKind,
    code: Option<i32>,
}

/// Flushes files and the folder that names them.
#[derive(Debug)]
pub(crate) struct Flusher {
    queue: Mutex<Queue>,
    changed: Condvar,
    folder: Arc<Folder>,
    flushes: AtomicU64,
    grouped: AtomicU64,
}

impl Flusher {
    /// For files whose names are in `folder`.
    pub(crate) fn new(folder: Arc<Folder>) -> Self {
        Self {
            queue: Mutex::default(),
            changed: Condvar::new(),
            folder,
            flushes: AtomicU64::new(0),
            grouped: AtomicU64::new(0),
        }
    }

    /// `(batches flushed, objects that shared one)`.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (
            self.flushes.load(Ordering::Relaxed),
            self.grouped.load(Ordering::Relaxed),
        )
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Content, length and name of a file are on disk when this returns.
    ///
    /// # Errors
    /// What the flush gave; the file is then to be thrown away.
    pub(crate) fn flush(&self, file: &Arc<File>) -> Result<(), StoreError> {
        let mut q = self.lock();
        let ticket = q.next_ticket;
        q.next_ticket += 1;
        q.waiting.push_back((ticket, Arc::clone(file)));
        loop {
            if let Some(result) = q.results.remove(&ticket) {
                return result.map_or(Ok(()), |f| Err(f.error()));
            }
            if q.led {
                q = self.changed.wait(q).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            q.led = true;
            let n = q.waiting.len().min(GROUP_MAX);
            let batch: Vec<(u64, Arc<File>)> = q.waiting.drain(..n).collect();
            drop(q);
            let failure = self.flush_batch(&batch).err().map(|e| Failure::of(&e));
            q = self.lock();
            q.led = false;
            for (ticket, _) in batch {
                q.results.insert(ticket, failure.clone());
            }
            self.changed.notify_all();
        }
    }

    /// A flush that another has done.
    pub(crate) fn count_one(&self) {
        self.flushes.fetch_add(1, Ordering::Relaxed);
    }

    /// One file that is large: not in a batch, so that others do not wait for it.
    pub(crate) fn flush_alone(&self, file: &File) -> Result<(), StoreError> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        self.flush_file(file)?;
        self.folder.sync()
    }

    fn flush_batch(&self, batch: &[(u64, Arc<File>)]) -> Result<(), StoreError> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        if batch.len() > 1 {
            self.grouped.fetch_add(batch.len() as u64, Ordering::Relaxed);
        }
        if batch.len() >= GROUP_MIN {
            return self.folder.sync_all();
        }
        for (_, file) in batch {
            self.flush_file(file)?;
        }
        self.folder.sync()
    }

    fn flush_file(&self, file: &File) -> Result<(), StoreError> {
        file.sync_all()
            .map_err(|e| StoreError::io("flush an object in", self.folder.path(), e))
    }
}

impl Failure {
    fn of(e: &StoreError) -> Self {
        match e {
            StoreError::Io { what, path, source } => Self {
                what: *what,
                path: path.clone(),
                kind: source.kind(),
                code: source.raw_os_error(),
            },
            _ => Self {
                what: "flush",
                path: PathBuf::new(),
                kind: io::ErrorKind::Other,
                code: None,
            },
        }
    }

    fn error(self) -> StoreError {
        let source = match self.code {
            Some(code) => io::Error::from_raw_os_error(code),
            None => io::Error::from(self.kind),
        };
        StoreError::io(self.what, self.path, source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_caller_is_answered_once() {
        let dir = tempfile::tempdir().expect("folder");
        let folder = Arc::new(Folder::open(dir.path()).expect("open"));
        let flusher = Flusher::new(Arc::clone(&folder));
        let done = AtomicU64::new(0);
        std::thread::scope(|s| {
            for i in 0..16 {
                let (flusher, folder, done) = (&flusher, &folder, &done);
                s.spawn(move || {
                    for j in 0..8 {
                        let file = Arc::new(folder.create(&format!("{i}-{j}")).expect("create"));
                        flusher.flush(&file).expect("flush");
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(done.into_inner(), 128);
        assert!(flusher.lock().results.is_empty() && flusher.lock().waiting.is_empty());
        let (flushes, grouped) = flusher.counts();
        assert!(
            flushes <= 128 && (grouped > 0) == (flushes < 128),
            "{flushes} {grouped}"
        );
    }
}
