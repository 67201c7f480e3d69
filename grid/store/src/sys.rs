//! Calls on the file system, always beneath a folder's descriptor; errors say what was tried on which file.

use crate::error::StoreError;
use rustix::fs::{AtFlags, FallocateFlags, FlockOperation, Mode, OFlags, RawDir, RenameFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const FILE_MODE: Mode = Mode::from_raw_mode(0o600);
const DIR_MODE: Mode = Mode::from_raw_mode(0o700);
/// Buffer for reading a folder, bytes.
const DIR_BUFFER: usize = 32 << 10;

/// An open folder, and its path for messages.
#[derive(Debug)]
pub(crate) struct Folder {
    fd: OwnedFd,
    path: PathBuf,
}

/// What a name in a folder stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Folder,
    Other,
}

impl Folder {
    /// Opens a folder by its path.
    pub(crate) fn open(path: &Path) -> Result<Self, StoreError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty())
            .map_err(|e| StoreError::io("open the folder", path, e))?;
        Ok(Self {
            fd,
            path: path.to_owned(),
        })
    }

    /// Opens a folder in this one, without following a link in its place.
    pub(crate) fn folder(&self, name: &str) -> Result<Self, StoreError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let fd = rustix::fs::openat(&self.fd, name, flags, Mode::empty())
            .map_err(|e| self.error("open the folder", name, e))?;
        Ok(Self {
            fd,
            path: self.path.join(name),
        })
    }

    /// Makes a folder in this one unless it is there.
    pub(crate) fn make_folder(&self, name: &str) -> Result<(), StoreError> {
        match rustix::fs::mkdirat(&self.fd, name, DIR_MODE) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(e) => Err(self.error("make the folder", name, e)),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn error(&self, what: &'static str, name: &str, e: impl Into<io::Error>) -> StoreError {
        StoreError::io(what, self.path.join(name), e)
    }

    /// Opens a regular file for reading; `None` when there is nothing of the name. A link, and anything else
    /// that is no regular file, is an error; a fifo is not waited for.
    pub(crate) fn read_file(&self, name: &str) -> Result<Option<File>, StoreError> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        self.existing(name, flags)
    }

    /// Opens a regular file for reading and writing; `None` when there is nothing of the name.
    pub(crate) fn write_file(&self, name: &str) -> Result<Option<File>, StoreError> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        self.existing(name, flags)
    }

    fn existing(&self, name: &str, flags: OFlags) -> Result<Option<File>, StoreError> {
        let file = match rustix::fs::openat(&self.fd, name, flags, Mode::empty()) {
            Ok(fd) => File::from(fd),
            Err(Errno::NOENT) => return Ok(None),
            Err(e) => return Err(self.error("open", name, e)),
        };
        let meta = file.metadata().map_err(|e| self.error("look at", name, e))?;
        if meta.is_file() {
            return Ok(Some(file));
        }
        let e = io::Error::new(io::ErrorKind::InvalidInput, "not a regular file");
        Err(self.error("open", name, e))
    }

    /// Makes a file, or empties the one of that name.
    pub(crate) fn create(&self, name: &str) -> Result<File, StoreError> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        rustix::fs::openat(&self.fd, name, flags, FILE_MODE)
            .map(File::from)
            .map_err(|e| self.error("make", name, e))
    }

    /// Opens a file, making it when it is missing.
    pub(crate) fn open_or_create(&self, name: &str) -> Result<File, StoreError> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        rustix::fs::openat(&self.fd, name, flags, FILE_MODE)
            .map(File::from)
            .map_err(|e| self.error("open", name, e))
    }

    /// Gives a file another name in `to`, where nothing may be of that name: `false` when something is.
    pub(crate) fn rename_new(&self, old: &str, to: &Folder, new: &str) -> Result<bool, StoreError> {
        match rustix::fs::renameat_with(&self.fd, old, &to.fd, new, RenameFlags::NOREPLACE) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            Err(e) => Err(self.error("rename", old, e)),
        }
    }

    /// Gives a file another name in this folder, over what is there.
    pub(crate) fn rename_over(&self, old: &str, new: &str) -> Result<(), StoreError> {
        rustix::fs::renameat(&self.fd, old, &self.fd, new).map_err(|e| self.error("rename", old, e))
    }

    /// Removes a file; `false` when there is none.
    pub(crate) fn unlink(&self, name: &str) -> Result<bool, StoreError> {
        match rustix::fs::unlinkat(&self.fd, name, AtFlags::empty()) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(e) => Err(self.error("remove", name, e)),
        }
    }

    /// Length in bytes and time of the last change (seconds since 1970) of a file; `None` when it is not there.
    pub(crate) fn stat(&self, name: &str) -> Result<Option<(u64, i64)>, StoreError> {
        match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(s) => Ok(Some((u64::try_from(s.st_size).unwrap_or(0), s.st_mtime))),
            Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(self.error("look at", name, e)),
        }
    }

    /// The file system's number of a file; `None` when it is not there.
    pub(crate) fn number(&self, name: &str) -> Result<Option<u64>, StoreError> {
        match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(s) => Ok(Some(s.st_ino)),
            Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(self.error("look at", name, e)),
        }
    }

    /// Flushes the names in this folder.
    pub(crate) fn sync(&self) -> Result<(), StoreError> {
        rustix::fs::fsync(&self.fd).map_err(|e| StoreError::io("flush the folder", &self.path, e))
    }

    /// Flushes the whole file system.
    pub(crate) fn sync_all(&self) -> Result<(), StoreError> {
        rustix::fs::syncfs(&self.fd).map_err(|e| StoreError::io("flush the file system of", &self.path, e))
    }

    /// Every name in the folder but `.` and `..`, sorted.
    pub(crate) fn names(&self) -> Result<Vec<(Vec<u8>, Kind)>, StoreError> {
        let failed = |e: Errno| StoreError::io("read the folder", &self.path, e);
        // A descriptor of its own: two readers of one descriptor share its position.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.fd, ".", flags, Mode::empty()).map_err(failed)?;
        let mut buffer = vec![MaybeUninit::<u8>::uninit(); DIR_BUFFER];
        let mut entries = RawDir::new(&fd, &mut buffer);
        let mut names = Vec::new();
        while let Some(entry) = entries.next() {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            let kind = match entry.file_type() {
                rustix::fs::FileType::Unknown => self.kind(name)?,
                other => kind_of(other),
            };
            names.push((name.to_vec(), kind));
        }
        names.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        Ok(names)
    }

    fn kind(&self, name: &[u8]) -> Result<Kind, StoreError> {
        let stat = rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|e| StoreError::io("look at", self.path.join(OsStr::from_bytes(name)), e))?;
        Ok(kind_of(rustix::fs::FileType::from_raw_mode(stat.st_mode)))
    }

    /// Free bytes and size of the file system, for a user who is not root.
    pub(crate) fn space(&self) -> Result<(u64, u64), StoreError> {
        let s = rustix::fs::fstatvfs(&self.fd)
            .map_err(|e| StoreError::io("ask for the free space of", &self.path, e))?;
        Ok((
            s.f_bavail.saturating_mul(s.f_frsize),
            s.f_blocks.saturating_mul(s.f_frsize),
        ))
    }
}

fn kind_of(kind: rustix::fs::FileType) -> Kind {
    match kind {
        rustix::fs::FileType::RegularFile => Kind::File,
        rustix::fs::FileType::Directory => Kind::Folder,
        _ => Kind::Other,
    }
}

/// Takes the lock of a file for this process; `false` when another one has it.
pub(crate) fn lock(file: &File) -> io::Result<bool> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// Takes `len` bytes from the file system for a file. `Ok(false)`: this file system cannot; writing will tell.
pub(crate) fn preallocate(file: &File, len: u64) -> io::Result<bool> {
    match rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, 0, len) {
        Ok(()) => Ok(true),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// Drops clean pages of a file from the cache, so that what is read next comes from the disk. Only advice.
pub(crate) fn drop_cache(file: impl AsFd) {
    // Where the advice is not taken the cache is read: nothing is wrong with that.
    let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed);
}

/// Whether an error means that the disk is full, for this user or for all.
pub(crate) fn is_full(e: &io::Error) -> bool {
    matches!(
        e.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

/// Reads until `buf` is full or the file ends; how much.
pub(crate) fn read_full(file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut got = 0usize;
    while let Some(rest) = buf.get_mut(got..).filter(|r| !r.is_empty()) {
        match file.read_at(rest, offset.saturating_add(got as u64)) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(got)
}
