//! One file on its way to the destination.
//!
//! ```text
//!   wanted --pieces--> missing is empty, sender says "done" --> queued --> verified --> published --> durable
//!      ^                                                                      |
//!      '------------------------------- wrong pieces -------------------------'
//! ```

use super::journal::{Key, Pieces};
use crate::wire::{FileMeta, FileRef, Header};
use kuroshio_core::chunk::RangeSet;
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A file that is wanted.
pub(super) struct InFile {
    pub at: FileRef,
    /// Path as announced.
    pub name: Vec<u8>,
    /// Path beneath the destination folder.
    pub path: Vec<u8>,
    pub meta: FileMeta,
    pub mode: u32,
    pub key: Key,
    /// Name of the part file in the state folder.
    pub part: Vec<u8>,
    state: Mutex<State>,
}

/// What changes of it.
#[derive(Default)]
pub(super) struct State {
    pub fd: Option<Arc<OwnedFd>>,
    /// Data that is not written (or was wrong).
    pub missing: RangeSet,
    /// Bytes of `pieces`.
    pub have: RangeSet,
    pub pieces: Pieces,
    /// Pieces that were compared with the destination file.
    pub verified: RangeSet,
    /// The sender has sent all that was wanted and its source did not change.
    pub sent: bool,
    /// In a publishing queue.
    pub queued: bool,
    /// Failed or replaced: nothing more is done with it.
    pub dead: bool,
    /// How often each piece was wrong.
    pub wrong: HashMap<u64, u32>,
}

/// What to do with a frame.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Write it.
    Write,
    /// It is there already: acknowledge.
    Known,
    /// It belongs to nothing that is wanted.
    Ignore,
}

impl InFile {
    /// A file with the pieces that an earlier run left.
    pub(super) fn new(
        at: FileRef,
        name: Vec<u8>,
        path: Vec<u8>,
        meta: FileMeta,
        mode: u32,
        key: Key,
    ) -> Self {
        let size = meta.identity.size;
        let missing = match &meta.extents {
            None => RangeSet::from_range(0..size),
            Some(list) => {
                let mut set = RangeSet::new();
                for &(offset, len) in list {
                    set.insert(offset.min(size)..offset.saturating_add(len).min(size));
                }
                set
            }
        };
        let part = part_name(&key);
        let state = Mutex::new(State {
            missing,
            ..State::default()
        });
        Self {
            at,
            name,
            path,
            meta,
            mode,
            key,
            part,
            state,
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn size(&self) -> u64 {
        self.meta.identity.size
    }

    /// What to do with a frame of this file.
    ///
    /// # Errors
    /// A frame beyond the end of the file.
    pub(super) fn judge(&self, header: &Header) -> Result<Verdict, String> {
        if header.part.file.generation != self.at.generation {
            return Ok(Verdict::Ignore);
        }
        let end = header.part.offset.saturating_add(u64::from(header.part.len));
        if end > self.size() {
            return Err(format!(
                "data frame up to byte {end} of \"{}\", which has {}",
                self.name.escape_ascii(),
                self.size()
            ));
        }
        let s = self.lock();
        Ok(match () {
            () if s.dead => Verdict::Ignore,
            () if s.have.contains(header.part.offset..end) => Verdict::Known,
            () => Verdict::Write,
        })
    }

    /// The file became complete by whatever just happened, and is to be queued by the caller.
    pub(super) fn ready(s: &mut State) -> bool {
        let ready = s.missing.is_empty() && s.sent && !s.queued && !s.dead;
        s.queued |= ready;
        ready
    }
}

impl State {
    /// A piece was written.
    pub(super) fn insert(&mut self, offset: u64, len: u32, digest: [u8; 32]) {
        let range = offset..offset.saturating_add(u64::from(len));
        let inside: Vec<u64> = self.pieces.range(range.clone()).map(|(k, _)| *k).collect();
        for old in inside {
            self.pieces.remove(&old);
        }
        self.verified.remove(range.clone());
        self.missing.remove(range.clone());
        self.have.insert(range);
        self.pieces.insert(offset, (len, digest));
    }

    /// A piece was wrong.
    pub(super) fn drop_piece(&mut self, offset: u64, len: u32) -> u32 {
        let range = offset..offset.saturating_add(u64::from(len));
        self.pieces.remove(&offset);
        self.have.remove(range.clone());
        self.verified.remove(range.clone());
        self.missing.insert(range);
        let times = self.wrong.entry(offset).or_default();
        *times += 1;
        *times
    }
}

/// Name of a part file in the state folder.
pub(super) fn part_name(key: &Key) -> Vec<u8> {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let digits = key.iter().flat_map(|b| [b >> 4, b & 15]);
    digits.filter_map(|d| HEX.get(usize::from(d)).copied()).collect()
}

/// A part file's descriptor, opened on first use.
pub(super) fn part_fd(file: &InFile, s: &mut State, state_dir: &OwnedFd) -> io::Result<Arc<OwnedFd>> {
    use rustix::fs::{Mode, OFlags};
    if let Some(fd) = &s.fd {
        return Ok(Arc::clone(fd));
    }
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW;
    let fd = crate::sys::open_beneath(state_dir, &file.part, flags, Mode::from_raw_mode(0o600))?;
    if file.meta.extents.is_some() || file.size() > crate::limits::SMALL_FILE || file.size() == 0 {
        rustix::fs::ftruncate(&fd, file.size())?;
    }
    let fd = Arc::new(fd);
    s.fd = Some(Arc::clone(&fd));
    Ok(fd)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Identity;

    fn file(size: u64) -> InFile {
        let identity = Identity {
            size,
            ..Identity::default()
        };
        let meta = FileMeta {
            identity,
            extents: None,
            digest: None,
        };
        InFile::new(
            FileRef { id: 1, generation: 2 },
            b"a".to_vec(),
            b"a".to_vec(),
            meta,
            0o644,
            [0; 16],
        )
    }

    fn header(offset: u64, len: u32, generation: u16) -> Header {
        let file = FileRef { id: 1, generation };
        Header {
            flags: 0,
            part: crate::wire::Part { file, offset, len },
            digest: [0; 32],
        }
    }

    #[test]
    fn frames_are_judged() {
        let f = file(100);
        assert_eq!(f.judge(&header(0, 50, 2)), Ok(Verdict::Write));
        assert_eq!(f.judge(&header(0, 50, 1)), Ok(Verdict::Ignore));
        assert!(f.judge(&header(60, 50, 2)).is_err());
        f.lock().insert(0, 50, [0; 32]);
        assert_eq!(f.judge(&header(0, 50, 2)), Ok(Verdict::Known));
        assert_eq!(f.judge(&header(0, 100, 2)), Ok(Verdict::Write));
        f.lock().dead = true;
        assert_eq!(f.judge(&header(50, 50, 2)), Ok(Verdict::Ignore));
    }

    #[test]
    fn is_ready_once_and_again_after_a_wrong_piece() {
        let f = file(100);
        let mut s = f.lock();
        s.insert(0, 60, [0; 32]);
        s.sent = true;
        assert!(!InFile::ready(&mut s));
        s.insert(60, 40, [0; 32]);
        assert!(InFile::ready(&mut s));
        assert!(!InFile::ready(&mut s));
        assert_eq!(s.drop_piece(60, 40), 1);
        s.queued = false;
        assert!(!InFile::ready(&mut s));
        s.insert(60, 40, [0; 32]);
        assert!(InFile::ready(&mut s));
        s.queued = false;
        assert_eq!(s.drop_piece(60, 40), 2);
    }
}
