//! Files that are open on this mount. All handles of a file share one state.
//!
//! ```text
//!   open, create ──> state {content, right to write, draft} <── read, write, truncate
//!                       │                        └── flush, fsync, last release: publish
//!   last release ───────┴──> rights given back
//! ```
//!
//! Locks: the table before a state. `io` is shared by what changes a draft and held alone by what publishes it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use kuroshio_client::v1;

use crate::draft::Draft;
use crate::fetch::Content;

/// Generations remembered to know whether the kernel's pages are still right.
const MAX_SEEN: usize = 65_536;

/// A right to write.
pub struct Writer {
    /// The metadata service's number for it.
    pub handle: u64,
    /// Whose.
    pub actor: Option<v1::Actor>,
}

/// What is known of an open file.
#[derive(Default)]
pub struct State {
    /// Handles that the kernel has, and operations that need the state to stay.
    pub uses: u32,
    /// Attributes as the metadata service last told them.
    pub attr: v1::Attr,
    /// The content that it was opened with, if it was opened to be read.
    pub content: Option<Arc<Content>>,
    /// The metadata service's number for the right to read it; 0 is none.
    pub read_handle: u64,
    /// The right to write.
    pub writer: Option<Writer>,
    /// What was written.
    pub draft: Option<Draft>,
}

impl State {
    /// Size as this mount sees it.
    pub fn size(&self) -> u64 {
        match (&self.draft, &self.content) {
            (Some(draft), _) => draft.size,
            (None, Some(content)) => content.size,
            (None, None) => self.attr.size_bytes,
        }
    }

    /// Whether something waits to be published.
    pub fn is_dirty(&self) -> bool {
        self.draft.as_ref().is_some_and(|d| d.dirty)
    }

    /// Newer attributes; the content stays the one that was opened.
    pub fn take_attr(&mut self, attr: v1::Attr) {
        self.attr = v1::Attr {
            generation: self.attr.generation,
            size_bytes: self.attr.size_bytes,
            ..attr
        };
    }

    /// Attributes with what only this mount knows.
    pub fn shown(&self, mut attr: v1::Attr) -> v1::Attr {
        attr.size_bytes = self.size();
        if let Some(draft) = self.draft.as_ref().filter(|d| d.dirty) {
            attr.mtime_ns = draft.mtime_ns;
            attr.ctime_ns = attr.ctime_ns.max(draft.changed_ns);
        }
        attr
    }
}

/// One open file.
pub struct Node {
    /// Its inode number in the grid.
    pub ino: u64,
    /// Held alone while a draft is published.
    pub io: RwLock<()>,
    state: Mutex<State>,
}

impl Node {
    /// Its state.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All open files of a mount.
#[derive(Default)]
pub struct Files {
    open: Mutex<HashMap<u64, Arc<Node>>>,
    seen: Mutex<HashMap<u64, u64>>,
}

impl Files {
    fn table(&self) -> MutexGuard<'_, HashMap<u64, Arc<Node>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An open file.
    pub fn get(&self, ino: u64) -> Option<Arc<Node>> {
        self.table().get(&ino).cloned()
    }

    /// The state of a file, made with these attributes if it is not open; it stays until [`Self::give_back`].
    pub fn take(&self, attr: &v1::Attr) -> Arc<Node> {
        let mut table = self.table();
        let node = table.entry(attr.inode).or_insert_with(|| {
            Arc::new(Node {
                ino: attr.inode,
                io: RwLock::new(()),
                state: Mutex::new(State {
                    attr: attr.clone(),
                    ..State::default()
                }),
            })
        });
        node.lock().uses += 1;
        node.clone()
    }

    /// Ends one use; what is left of the state after the last one.
    pub fn give_back(&self, node: &Arc<Node>) -> Option<State> {
        let mut table = self.table();
        let mut state = node.lock();
        state.uses = state.uses.saturating_sub(1);
        if state.uses > 0 {
            return None;
        }
        table.remove(&node.ino);
        Some(std::mem::take(&mut *state))
    }

    /// Attributes with what only this mount knows.
    pub fn shown(&self, attr: v1::Attr) -> v1::Attr {
        match self.get(attr.inode) {
            Some(node) => node.lock().shown(attr),
            None => attr,
        }
    }

    /// A name of a file is gone, or was made: `attr` is as it is now.
    pub fn names_changed(&self, attr: &v1::Attr) {
        if let Some(node) = self.get(attr.inode) {
            let mut state = node.lock();
            state.attr.links = attr.links;
            state.attr.ctime_ns = attr.ctime_ns;
        }
    }

    /// Whether the kernel's pages of a file are of this generation; they are from now on.
    pub fn pages_are(&self, ino: u64, generation: u64) -> bool {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.len() >= MAX_SEEN && !seen.contains_key(&ino) {
            seen.clear();
        }
        seen.insert(ino, generation) == Some(generation)
    }
}
