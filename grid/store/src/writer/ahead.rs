//! Flushing of a large object while it is still written, so that its end does not wait for the disk to take all of it.
//!
//! ```text
//!   written ....|....|....|..          a flush begins when FLUSH_AHEAD_BYTES were written since the last one began
//!   flushed ....|....|                 and that one has ended; MAX_FLUSHES_AHEAD in a store
//! ```
//!
//! Nothing rests on it: `finish` flushes all. But the kernel tells a failure once, to whoever flushes first, so it is kept
//! here: the object can neither be finished nor gone on with any more.

use crate::limits::{FLUSH_AHEAD_BYTES, MAX_FLUSHES_AHEAD};
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{Builder, JoinHandle};

/// The flushes of one object.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    /// Bytes written since the last flush began.
    unflushed: u64,
    running: Option<JoinHandle<io::Result<()>>>,
    failure: Option<(io::ErrorKind, String)>,
}

impl Ahead {
    /// Counts what was written, and flushes if that is enough.
    pub(super) fn wrote(&mut self, bytes: u64, file: &Arc<File>, all: &Arc<AtomicUsize>) -> io::Result<()> {
        self.unflushed = self.unflushed.saturating_add(bytes);
        let busy = self.running.as_ref().is_some_and(|r| !r.is_finished());
        if self.unflushed < FLUSH_AHEAD_BYTES || busy {
            return self.known();
        }
        self.wait()?;
        if all.fetch_add(1, Ordering::Relaxed) >= MAX_FLUSHES_AHEAD {
            all.fetch_sub(1, Ordering::Relaxed);
            return Ok(());
        }
        let (file, theirs) = (Arc::clone(file), Arc::clone(all));
        let work = move || {
            let flushed = file.sync_data();
            theirs.fetch_sub(1, Ordering::Relaxed);
            flushed
        };
        match Builder::new().name("flush ahead".into()).spawn(work) {
            Ok(thread) => {
                self.running = Some(thread);
                self.unflushed = 0;
            }
            Err(_) => {
                all.fetch_sub(1, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Waits for the flush that runs; the first failure of any.
    pub(super) fn wait(&mut self) -> io::Result<()> {
        if let Some(running) = self.running.take() {
            let ended = running.join();
            let ended = ended.unwrap_or_else(|_| Err(io::Error::other("a flush ended abnormally")));
            self.note(&ended);
        }
        self.known()
    }

    /// Keeps the failure of a flush.
    pub(super) fn note(&mut self, flushed: &io::Result<()>) {
        if let Err(e) = flushed {
            self.failure.get_or_insert_with(|| (e.kind(), e.to_string()));
        }
    }

    fn known(&self) -> io::Result<()> {
        match &self.failure {
            None => Ok(()),
            Some((kind, text)) => Err(io::Error::new(*kind, text.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_not_forgotten() {
        let mut ahead = Ahead::default();
        assert!(ahead.wait().is_ok());
        ahead.note(&Err(io::Error::new(io::ErrorKind::StorageFull, "full")));
        ahead.note(&Ok(()));
        ahead.note(&Err(io::Error::other("later")));
        for _ in 0..2 {
            assert_eq!(
                ahead.wait().expect_err("known").kind(),
                io::ErrorKind::StorageFull
            );
        }
        let (file, all) = (Arc::new(tempfile::tempfile().expect("file")), Arc::default());
        assert!(ahead.wrote(1, &file, &all).is_err());
    }

    #[test]
    fn a_flush_runs_when_enough_was_written() {
        let (file, all) = (Arc::new(tempfile::tempfile().expect("file")), Arc::default());
        let mut ahead = Ahead::default();
        ahead.wrote(FLUSH_AHEAD_BYTES - 1, &file, &all).expect("counted");
        assert!(ahead.running.is_none());
        ahead.wrote(1, &file, &all).expect("flushes");
        assert!(ahead.running.is_some() && ahead.unflushed == 0);
        ahead.wait().expect("flushed");
        assert_eq!(all.load(Ordering::Relaxed), 0);
        // Where enough others are flushed it stays counted.
        all.store(MAX_FLUSHES_AHEAD, Ordering::Relaxed);
        ahead.wrote(FLUSH_AHEAD_BYTES, &file, &all).expect("counted");
        assert!(ahead.running.is_none() && ahead.unflushed == FLUSH_AHEAD_BYTES);
    }
}
