//! What a node remembers of the catalog, so that a catalog that has lost its memory is noticed.
//!
//! ```text
//!   catalog counts how often it recorded this node (beat) ──told in heartbeats──> kept in the file `catalog`
//!   join: the node says the highest it was told ──> the catalog's own count is lower: it is older than this spool
//!                                                    (another one, or a backup)
//!         behind ──> held: nothing is removed because nobody knows it ──fsck has settled it──> not held
//! ```
//!
//! While the spool is held, the count on the disk stays as it was, so that a restart finds the same.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Name of the file.
const FILE: &str = "catalog";

/// Kept when the spool is held although no count was known: a restart finds a catalog that is behind.
const NEVER: u64 = u64::MAX >> 1;

struct State {
    file: File,
    kept: u64,
    told: u64,
    /// While the spool is held: objects with generations up to this one are of before the catalog lost its memory.
    held: Option<u64>,
}

/// What is remembered of the catalog.
pub struct Memory(Mutex<State>);

/// One length for all counts: the file is written over in place.
fn text(beat: u64) -> String {
    format!("beat {beat:020}\n")
}

impl Memory {
    /// Reads what was kept in the node's folder. What cannot be understood is taken for nothing.
    ///
    /// # Errors
    /// The file's.
    pub fn open(dir: &Path) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(dir.join(FILE))?;
        let mut bytes = vec![0; text(0).len()];
        let len = file.read_at(&mut bytes, 0)?;
        bytes.truncate(len);
        let words = String::from_utf8_lossy(&bytes);
        let kept = words
            .trim_end()
            .strip_prefix("beat ")
            .and_then(|n| n.parse().ok());
        Ok(Self(Mutex::new(State {
            file,
            kept: kept.unwrap_or(0),
            told: 0,
            held: None,
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The highest count that this node was told.
    pub fn beat(&self) -> u64 {
        self.state().kept
    }

    /// The catalog's answer to the join, and the highest number in the spool before it.
    pub fn joined(&self, behind: bool, highest: u64) {
        let mut state = self.state();
        if behind && state.held.is_none() {
            tracing::warn!(
                "the catalog is older than this spool: nothing is removed until `kuroshio fs fsck` has gone through"
            );
        }
        if behind {
            // What came since the first of several joins is of the catalog as it is now.
            state.held = Some(state.held.unwrap_or(highest));
            if state.kept == 0 {
                state.keep(NEVER);
            }
        }
        state.told = 0;
    }

    /// Whether what nobody knows is to be kept.
    pub fn is_held(&self) -> bool {
        self.state().held.is_some()
    }

    /// Whether an object of this generation may be of what the catalog has forgotten.
    pub fn is_forgotten(&self, generation: u32) -> bool {
        self.state()
            .held
            .is_some_and(|highest| u64::from(generation) <= highest)
    }

    /// The catalog's count now.
    pub fn told(&self, beat: u64) {
        let mut state = self.state();
        state.told = beat;
        if state.held.is_none() {
            state.keep(beat);
        }
    }

    /// The spool was compared with the catalog, which knows all of it now that can be known.
    pub fn settled(&self) {
        let mut state = self.state();
        state.held = None;
        let told = state.told;
        state.keep(told);
    }
}

impl State {
    /// Not flushed: a count that is lost by a power cut is a few seconds old.
    fn keep(&mut self, beat: u64) {
        if beat == self.kept || beat == 0 {
            return;
        }
        match self.file.write_all_at(text(beat).as_bytes(), 0) {
            Ok(()) => self.kept = beat,
            Err(e) => tracing::warn!("{FILE}: {e}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_kept_unless_the_catalog_is_behind() {
        let dir = tempfile::tempdir().expect("folder");
        let open = || Memory::open(dir.path()).expect("opened");
        let memory = open();
        assert_eq!(memory.beat(), 0);
        memory.joined(false, 50);
        memory.told(7);
        assert_eq!(open().beat(), 7);
        memory.joined(true, 50);
        memory.joined(true, 60);
        memory.told(2);
        assert!(memory.is_held() && memory.is_forgotten(50) && !memory.is_forgotten(51));
        assert_eq!((memory.beat(), open().beat()), (7, 7), "a restart finds the same");
        memory.joined(false, 70);
        assert!(memory.is_held(), "until it was settled");
        memory.told(2);
        memory.settled();
        assert!(!memory.is_held() && !memory.is_forgotten(1));
        assert_eq!(open().beat(), 2);
        std::fs::write(dir.path().join(FILE), "beat many\n").expect("written");
        let without = open();
        assert_eq!(without.beat(), 0);
        without.joined(true, 5);
        assert_eq!(
            open().beat(),
            NEVER,
            "held by its numbers, and after a restart too"
        );
    }
}
