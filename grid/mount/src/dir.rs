//! Open directories: a snapshot that grows page by page, so that what was listed once is not listed again
//! whatever is made or removed meanwhile. Going back to the beginning begins a new one.
//!
//! Places in a listing: 0 `.`, 1 `..`, 2 and so on the entries in the order of their names' bytes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use fuser::Errno;
use kuroshio_client::v1::{self, Actor, request::Op, response::Result as Answer};

use crate::fs::{Core, unexpected};

/// Directories that are open at once, of one mount.
const MAX_OPEN: usize = 65_536;

/// One open directory.
#[derive(Default)]
pub struct Listing {
    /// Entries so far.
    pub entries: Vec<v1::Entry>,
    /// Name after which the next page begins.
    after: Vec<u8>,
    /// Whether all were fetched.
    complete: bool,
    /// The caller may not look at what is in it: entries have a number and a kind only.
    pub plain: bool,
}

/// All open directories.
#[derive(Default)]
pub struct Dirs {
    open: Mutex<(u64, Open)>,
}

/// By handle.
type Open = HashMap<u64, Arc<Mutex<Listing>>>;

impl Dirs {
    /// A new handle.
    pub fn open(&self) -> Result<u64, Errno> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.1.len() >= MAX_OPEN {
            return Err(Errno::ENFILE);
        }
        open.0 += 1;
        let handle = open.0;
        open.1.insert(handle, Arc::default());
        Ok(handle)
    }

    /// The listing of a handle.
    pub fn get(&self, handle: u64) -> Option<Arc<Mutex<Listing>>> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.1.get(&handle).cloned()
    }

    /// Ends a handle.
    pub fn close(&self, handle: u64) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.1.remove(&handle);
    }
}

impl Listing {
    /// Whether there is an entry of this index, fetched now if need be.
    pub fn has(&mut self, core: &Core, ino: u64, index: usize, actor: &Option<Actor>) -> Result<bool, Errno> {
        while index >= self.entries.len() && !self.complete {
            self.page(core, ino, actor)?;
        }
        Ok(index < self.entries.len())
    }

    fn page(&mut self, core: &Core, ino: u64, actor: &Option<Actor>) -> Result<(), Errno> {
        let request = |attrs: bool, after: &[u8]| {
            Op::ReadDir(v1::ReadDirRequest {
                path: Vec::new(),
                after: after.to_vec(),
                limit: 0,
                attrs,
            })
        };
        let mut answer = core.ask(ino, 0, actor.clone(), request(!self.plain, &self.after));
        if !self.plain && answer.as_ref().err() == Some(&Errno::EACCES) {
            // It may be read, not searched: names are all there is.
            self.plain = true;
            answer = core.ask(ino, 0, actor.clone(), request(false, &self.after));
        }
        match answer? {
            Answer::List(page) => {
                self.complete = page.next.is_empty();
                self.after = page.next;
                self.entries.extend(page.entries);
                Ok(())
            }
            other => Err(unexpected(&other)),
        }
    }
}
