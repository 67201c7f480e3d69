//! The destination folder: where names go, and the calls on them.
//!
//! Everything is relative to one descriptor; folders are opened with `openat2(RESOLVE_BENEATH)`, and the
//! last component of a name is only ever made, renamed over or looked at, never followed.

use crate::limits::STATE_DIR;
use crate::options::{Options, Placement, SessionKey};
use crate::sys::{self, c_path, join, open_beneath, open_dir, split_last, times};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

/// Folder descriptors kept open.
const MAX_CACHED: usize = 128;

/// The destination.
pub(super) struct Place {
    dir: OwnedFd,
    /// Takes the place of the first component of every path.
    rename_to: Option<Vec<u8>>,
    folders: Mutex<HashMap<Vec<u8>, Arc<OwnedFd>>>,
    key: SessionKey,
}

/// Opens a folder, making its last component when it is missing and that is wanted.
fn open_or_make(root: &OwnedFd, dest: &[u8], make: bool) -> io::Result<OwnedFd> {
    match open_dir(root, dest) {
        Err(e) if e.kind() == io::ErrorKind::NotFound && make => {
            let (parent, name) = split_last(dest);
            rustix::fs::mkdirat(
                open_dir(root, parent)?,
                &c_path(name)?,
                Mode::from_raw_mode(0o777),
            )?;
            open_dir(root, dest)
        }
        other => other,
    }
}

/// Name of a session's state folder.
fn state_name(key: &SessionKey) -> String {
    key.iter().map(|b| format!("{b:02x}")).collect()
}

/// Whether the session has state in the folder that `dest` lies in.
fn begun_beside(root: &OwnedFd, dest: &[u8], key: &SessionKey) -> bool {
    let (parent, _) = split_last(dest);
    let top = join(parent, STATE_DIR.as_bytes());
    !dest.is_empty() && open_dir(root, &join(&top, state_name(key).as_bytes())).is_ok()
}

/// Whether a folder holds the state of this session.
fn has_state(root: &OwnedFd, folder: &[u8], key: &SessionKey) -> bool {
    let path = join(&join(folder, STATE_DIR.as_bytes()), state_name(key).as_bytes());
    open_dir(root, &path).is_ok()
}

impl Place {
    /// Finds the destination folder as [`Placement`] says.
    pub(super) fn open(
        root: &OwnedFd,
        dest: &[u8],
        options: &Options,
        sources: u32,
        key: SessionKey,
    ) -> io::Result<Self> {
        let mut end = dest.len();
        while end > 0 && dest.get(end - 1) == Some(&b'/') {
            end -= 1;
        }
        let slash = end < dest.len();
        let dest = dest.get(..end).unwrap_or_default();
        let exact = match options.placement {
            Placement::Into => false,
            Placement::Exact => true,
            // An earlier run of this very command took the destination as a name: so does this one, although
            // that run has made the folder meanwhile.
            Placement::Auto if sources == 1 && !slash && has_state(root, split_last(dest).0, &key) => true,
            Placement::Auto => match open_dir(root, dest) {
                // Made by an earlier run of the same command that was to make it: that run goes on.
                Ok(_) if sources == 1 && !slash && begun_beside(root, dest, &key) => true,
                Ok(_) => false,
                Err(e)
                    if sources == 1
                        && !slash
                        && matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
                {
                    true
                }
                Err(e) => return Err(e),
            },
        };
        let (dir, rename_to) = if exact {
            let (parent, name) = split_last(dest);
            if matches!(name, b"" | b"." | b"..") || name == STATE_DIR.as_bytes() {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "the destination has no name of its own",
                ));
            }
            (open_dir(root, parent)?, Some(name.to_vec()))
        } else {
            (open_or_make(root, dest, !options.dry_run)?, None)
        };
        Ok(Self {
            dir,
            rename_to,
            folders: Mutex::default(),
            key,
        })
    }

    /// The destination folder.
    pub(super) fn dir(&self) -> &OwnedFd {
        &self.dir
    }

    /// Where an announced path goes.
    pub(super) fn map(&self, path: &[u8]) -> Vec<u8> {
        match &self.rename_to {
            None => path.to_vec(),
            Some(name) => {
                let rest = path
                    .iter()
                    .position(|&b| b == b'/')
                    .and_then(|at| path.get(at + 1..));
                join(name, rest.unwrap_or_default())
            }
        }
    }

    /// Opens (and makes, when asked) the state folder of the session.
    pub(super) fn state(&self, make: bool) -> io::Result<OwnedFd> {
        let name = state_name(&self.key);
        let mode = Mode::from_raw_mode(0o700);
        if make {
            exists_ok(rustix::fs::mkdirat(&self.dir, STATE_DIR, mode))?;
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        let top = open_beneath(&self.dir, STATE_DIR.as_bytes(), flags, Mode::empty())?;
        if make {
            exists_ok(rustix::fs::mkdirat(&top, name.as_str(), mode))?;
        }
        open_beneath(&top, name.as_bytes(), flags, Mode::empty())
    }

    /// Removes the state folder with all in it; the common one too when no other session uses it.
    pub(super) fn remove_state(&self, state: &OwnedFd) -> io::Result<()> {
        let mut dir = rustix::fs::Dir::read_from(state)?;
        while let Some(entry) = dir.read() {
            let entry = entry?;
            let name = entry.file_name();
            if !matches!(name.to_bytes(), b"." | b"..") {
                rustix::fs::unlinkat(state, name, AtFlags::empty())?;
            }
        }
        let name = state_name(&self.key);
        let top = open_dir(&self.dir, STATE_DIR.as_bytes())?;
        rustix::fs::unlinkat(&top, name.as_str(), AtFlags::REMOVEDIR)?;
        match rustix::fs::unlinkat(&self.dir, STATE_DIR, AtFlags::REMOVEDIR) {
            Err(Errno::NOTEMPTY | Errno::EXIST) | Ok(()) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// The folder of a mapped path, from a small cache.
    pub(super) fn folder(&self, path: &[u8]) -> io::Result<Arc<OwnedFd>> {
        let mut folders = self.folders.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(fd) = folders.get(path) {
            return Ok(Arc::clone(fd));
        }
        let fd = Arc::new(open_dir(&self.dir, path)?);
        if folders.len() >= MAX_CACHED {
            folders.clear();
        }
        folders.insert(path.to_vec(), Arc::clone(&fd));
        Ok(fd)
    }

    /// Makes a folder; one that is there already is kept.
    pub(super) fn make_dir(&self, path: &[u8], mode: u32) -> io::Result<()> {
        let (parent, name) = split_last(path);
        let parent = self.folder(parent)?;
        // The owner must be able to fill it; the announced mode is set at the end.
        let mode = Mode::from_raw_mode(mode & 0o777 | 0o700);
        match rustix::fs::mkdirat(&*parent, &c_path(name)?, mode) {
            Err(Errno::EXIST) => {
                let dir = open_dir(&*parent, name)?;
                let old = rustix::fs::fstat(&dir)?.st_mode & 0o7777;
                if old & 0o700 != 0o700 {
                    rustix::fs::fchmod(&dir, Mode::from_raw_mode(old | 0o700))?;
                }
                Ok(())
            }
            other => Ok(other?),
        }
    }

    /// Sets a folder's final mode and time.
    pub(super) fn finish_dir(&self, path: &[u8], mode: u32, mtime: (i64, u32)) -> io::Result<()> {
        let dir = open_dir(&self.dir, path)?;
        rustix::fs::fchmod(&dir, Mode::from_raw_mode(mode & 0o1777))?;
        Ok(rustix::fs::futimens(&dir, &times(mtime))?)
    }

    /// Makes a symbolic link in the state folder and renames it into place.
    pub(super) fn symlink(
        &self,
        state: &OwnedFd,
        path: &[u8],
        target: &[u8],
        mtime: (i64, u32),
    ) -> io::Result<()> {
        let (parent, name) = split_last(path);
        let parent = self.folder(parent)?;
        unlink_if_there(state, b"link")?;
        rustix::fs::symlinkat(&c_path(target)?, state, c"link")?;
        rustix::fs::utimensat(state, c"link", &times(mtime), AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(rustix::fs::renameat(state, c"link", &*parent, &c_path(name)?)?)
    }

    /// Gives `path` to the file that is at `target`.
    pub(super) fn hardlink(&self, state: &OwnedFd, path: &[u8], target: &[u8]) -> io::Result<()> {
        let ((to_dir, to), (from_dir, from)) = (split_last(path), split_last(target));
        let (to_dir, from_dir) = (self.folder(to_dir)?, self.folder(from_dir)?);
        unlink_if_there(state, b"link")?;
        rustix::fs::linkat(&*from_dir, &c_path(from)?, state, c"link", AtFlags::empty())?;
        rustix::fs::renameat(state, c"link", &*to_dir, &c_path(to)?)?;
        // Two names of one file already: rename then leaves both.
        unlink_if_there(state, b"link")
    }

    /// Renames a part file into place.
    pub(super) fn publish(&self, state: &OwnedFd, part: &[u8], path: &[u8]) -> io::Result<()> {
        let (parent, name) = split_last(path);
        let parent = self.folder(parent)?;
        Ok(rustix::fs::renameat(
            state,
            &c_path(part)?,
            &*parent,
            &c_path(name)?,
        )?)
    }

    /// Flushes the folder of a published name.
    pub(super) fn sync_folder(&self, path: &[u8]) -> io::Result<()> {
        Ok(rustix::fs::fsync(&*self.folder(split_last(path).0)?)?)
    }

    /// Flushes the destination's file system.
    pub(super) fn sync_all(&self) -> io::Result<()> {
        Ok(rustix::fs::syncfs(self.dir.as_fd())?)
    }

    /// What is at a mapped path, not followed.
    pub(super) fn lstat(&self, path: &[u8]) -> io::Result<rustix::fs::Stat> {
        let (parent, name) = split_last(path);
        sys::lstat(&*self.folder(parent)?, name)
    }

    /// Opens an existing destination file for reading.
    pub(super) fn open_file(&self, path: &[u8]) -> io::Result<OwnedFd> {
        let (parent, name) = split_last(path);
        sys::open_source(&*self.folder(parent)?, name)
    }
}

/// Unlinks a name of the state folder; one that is not there is fine.
pub(super) fn unlink_if_there(dir: &OwnedFd, name: &[u8]) -> io::Result<()> {
    match rustix::fs::unlinkat(dir, &c_path(name)?, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

fn exists_ok(done: Result<(), Errno>) -> io::Result<()> {
    match done {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(e) => Err(e.into()),
    }
}
