//! One file on its way out, and the table of them.

use crate::limits::MAX_IN_FLIGHT;
use crate::wire::{FileMeta, FileRef, Identity};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A file that was announced and is not yet durable, failed or skipped.
pub(super) struct OutFile {
    pub id: u32,
    /// Which source it belongs to.
    pub source: usize,
    /// Path beneath the source's base.
    pub path: Vec<u8>,
    /// Path as announced.
    pub name: Vec<u8>,
    /// The receiver has said what it wants of it.
    pub answered: AtomicBool,
    state: Mutex<State>,
}

/// What changes of it.
pub(super) struct State {
    pub generation: u16,
    pub meta: FileMeta,
    pub fd: Option<Arc<OwnedFd>>,
    /// A change was announced and the receiver has not asked for the new content yet.
    pub changed: bool,
    /// All of it left in one frame that was checked against the source.
    pub sent_stable: bool,
    pub restarts: u32,
}

impl OutFile {
    pub(super) fn new(id: u32, source: usize, path: Vec<u8>, name: Vec<u8>, meta: FileMeta) -> Self {
        let state = State {
            generation: 0,
            meta,
            fd: None,
            changed: false,
            sent_stable: false,
            restarts: 0,
        };
        Self {
            id,
            source,
            path,
            name,
            answered: AtomicBool::new(false),
            state: Mutex::new(state),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    pub(super) fn identity(&self) -> Identity {
        self.meta.identity
    }

    pub(super) fn at(&self, id: u32) -> FileRef {
        FileRef {
            id,
            generation: self.generation,
        }
    }
}

/// Files by number; bounded, so that the walk cannot run away from the streams.
#[derive(Default)]
pub(super) struct Table {
    files: Mutex<HashMap<u32, Arc<OutFile>>>,
    room: Condvar,
}

impl Table {
    fn lock(&self) -> MutexGuard<'_, HashMap<u32, Arc<OutFile>>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self, id: u32) -> Option<Arc<OutFile>> {
        self.lock().get(&id).cloned()
    }

    pub(super) fn is_full(&self) -> bool {
        self.lock().len() >= MAX_IN_FLIGHT
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Waits for room for a while; says whether there is some.
    pub(super) fn wait_for_room(&self, at_most: Duration) -> bool {
        let files = self.lock();
        let full = |files: &mut HashMap<u32, Arc<OutFile>>| files.len() >= MAX_IN_FLIGHT;
        let (files, _) = self
            .room
            .wait_timeout_while(files, at_most, full)
            .unwrap_or_else(PoisonError::into_inner);
        files.len() < MAX_IN_FLIGHT
    }

    pub(super) fn insert(&self, file: Arc<OutFile>) {
        self.lock().insert(file.id, file);
    }

    pub(super) fn remove(&self, id: u32) -> Option<Arc<OutFile>> {
        let mut files = self.lock();
        let gone = files.remove(&id);
        if files.len() + 1 == MAX_IN_FLIGHT || files.len().is_multiple_of(256) {
            self.room.notify_all();
        }
        gone
    }
}
