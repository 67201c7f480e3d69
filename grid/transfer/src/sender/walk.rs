//! The walk over the sources: parents before children, the entries of a folder in the order of their inodes
//! (which is about the order of the disk), announced in batches while data flows.

use super::Sender;
use super::file::OutFile;
use crate::error::FileErrorKind;
use crate::limits::{MAX_BATCH, MAX_DEPTH, MAX_ENTRIES, MAX_EXTENTS, MAX_PATH, STATE_DIR, TICK_MS};
use crate::options::SyncMode;
use crate::progress::add;
use crate::sys::{self, join, open_beneath, open_dir, open_source, split_last};
use crate::wire::{Bytes, Entry, FileMeta, Fwd, Kind, check_path};
use rustix::fs::{FileType, Mode, OFlags, Stat};
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A batch is sent when it holds about so many bytes.
const BATCH_BYTES: usize = 256 << 10;
/// Extents are widened to multiples of this, the grain of the scheduler, bytes.
pub(super) const GRAIN: u64 = 4096;
/// Files with further names whose first name is remembered.
const MAX_LINKS: usize = 4_000_000;

struct Walk<'w, 'a> {
    tx: &'w Sender<'a>,
    next_id: u32,
    batch: Vec<Entry>,
    batch_bytes: usize,
    /// Entries that make a batch; grows, so that the first data starts early.
    batch_goal: usize,
    /// (device, inode) -> announced path.
    links: HashMap<(u64, u64), Vec<u8>>,
}

/// What a walk stops with before its end.
enum Stop {
    Over,
    TooMany,
}

/// Announces every source.
pub(super) fn run(tx: &Sender<'_>) {
    let mut walk = Walk {
        tx,
        next_id: 0,
        batch: Vec::new(),
        batch_bytes: 0,
        batch_goal: 8,
        links: HashMap::new(),
    };
    for source in 0..tx.sources.len() {
        match walk.source(source) {
            Ok(()) => {}
            Err(Stop::Over) => return,
            Err(Stop::TooMany) => {
                tx.fail_session(format!("more than {MAX_ENTRIES} names in one transfer"));
                return;
            }
        }
    }
    walk.flush();
    // Before the message: the answer to it asks for this.
    tx.progress.counters.walk_done.store(true, Ordering::SeqCst);
    tx.outbox.post(Fwd::End {
        entries: walk.next_id,
    });
    tx.close_when_answered();
}

impl Walk<'_, '_> {
    fn source(&mut self, number: usize) -> Result<(), Stop> {
        let Some(source) = self.tx.sources.get(number) else {
            return Ok(());
        };
        let mut end = source.path.len();
        while end > 0 && matches!(source.path.get(end - 1), Some(b'/')) {
            end -= 1;
        }
        let path = match source.path.get(..end).unwrap_or_default() {
            b"." => &[][..],
            other => other,
        };
        let name = source.name.clone();
        let stat = match path {
            b"" => rustix::fs::fstat(&source.base).map_err(io::Error::from),
            _ => {
                let (parent, last) = split_last(path);
                open_dir(&source.base, parent).and_then(|dir| match last {
                    b".." => Err(io::Error::new(
                        io::ErrorKind::InvalidInput,
                        "a source cannot end in ..",
                    )),
                    b"." => Ok(rustix::fs::fstat(&dir)?),
                    _ => sys::lstat(&dir, last),
                })
            }
        };
        let stat = match stat {
            Ok(stat) => stat,
            Err(e) => {
                self.local_failure(if name.is_empty() { path.to_vec() } else { name }, "read", &e);
                return Ok(());
            }
        };
        let path = path.to_vec();
        let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        if !name.is_empty() {
            self.entry(number, path.clone(), name.clone(), &stat)?;
        } else if !is_dir {
            let e = io::Error::new(
                io::ErrorKind::NotADirectory,
                "only a folder can be sent without its name",
            );
            self.local_failure(path, "read", &e);
            return Ok(());
        }
        if is_dir {
            self.tree(number, path, name)
        } else {
            Ok(())
        }
    }

    /// All below a folder.
    fn tree(&mut self, number: usize, path: Vec<u8>, name: Vec<u8>) -> Result<(), Stop> {
        let mut folders = vec![(path, name, 0usize)];
        while let Some((path, name, depth)) = folders.pop() {
            let Some(source) = self.tx.sources.get(number) else {
                return Ok(());
            };
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
            let listed = open_beneath(&source.base, &path, flags, Mode::empty())
                .and_then(|dir| list(&dir).map(|names| (dir, names)));
            let (dir, names) = match listed {
                Ok(listed) => listed,
                Err(e) => {
                    self.local_failure(name, "read the folder", &e);
                    continue;
                }
            };
            let mut below = Vec::new();
            for (_, child) in names {
                let (child_path, child_name) = (join(&path, &child), join(&name, &child));
                let stat = match sys::lstat(&dir, &child) {
                    Ok(stat) => stat,
                    Err(e) => {
                        self.local_failure(child_name, "read", &e);
                        continue;
                    }
                };
                let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
                if child_path.len() > MAX_PATH || depth >= MAX_DEPTH {
                    let e = io::Error::new(io::ErrorKind::InvalidInput, "the path is too long or too deep");
                    self.local_failure(child_name, "send", &e);
                    continue;
                }
                self.entry(number, child_path.clone(), child_name.clone(), &stat)?;
                if is_dir {
                    below.push((child_path, child_name, depth + 1));
                }
            }
            folders.extend(below.into_iter().rev());
        }
        Ok(())
    }

    /// Announces one name.
    fn entry(&mut self, source: usize, path: Vec<u8>, name: Vec<u8>, stat: &Stat) -> Result<(), Stop> {
        if let Err(text) = check_path(&name) {
            let e = io::Error::new(io::ErrorKind::InvalidInput, text);
            self.local_failure(name, "send", &e);
            return Ok(());
        }
        let identity = sys::identity(stat);
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => match self.further_name(stat, &name) {
                Some(first) => Ok(Kind::Hardlink(Bytes(first))),
                None => self.content(source, &path, stat).map(Kind::File),
            },
            FileType::Directory => Ok(Kind::Dir),
            FileType::Symlink => self.link_target(source, &path).map(|t| Kind::Symlink(Bytes(t))),
            _ => {
                let text =
                    "not a regular file, folder or link: devices, sockets and pipes are not sent".to_string();
                self.tx.failed(name, FileErrorKind::Unsupported, 0, text);
                return Ok(());
            }
        };
        let kind = match kind {
            Ok(kind) => kind,
            Err(e) => {
                self.local_failure(name, "read", &e);
                return Ok(());
            }
        };
        if self.next_id >= MAX_ENTRIES {
            return Err(Stop::TooMany);
        }
        let id = self.next_id;
        self.next_id += 1;
        if let Kind::File(meta) = &kind {
            self.wait_for_room()?;
            let c = &self.tx.progress.counters;
            add(&c.files_scheduled, 1);
            add(&c.bytes_scheduled, identity.size);
            self.tx.unanswered.fetch_add(1, Ordering::SeqCst);
            self.tx.files.insert(Arc::new(OutFile::new(
                id,
                source,
                path,
                name.clone(),
                meta.clone(),
            )));
        }
        let bytes = match &kind {
            Kind::File(meta) => meta.extents.as_ref().map_or(0, |e| e.len() * 20),
            Kind::Symlink(target) | Kind::Hardlink(target) => target.0.len(),
            Kind::Dir => 0,
        };
        self.batch_bytes += name.len() + bytes + 128;
        self.batch.push(Entry {
            id,
            path: Bytes(name),
            mode: stat.st_mode & 0o7777,
            mtime: identity.mtime,
            kind,
        });
        if self.batch.len() >= self.batch_goal || self.batch_bytes >= BATCH_BYTES {
            self.flush();
        }
        Ok(())
    }

    /// First announced name of a file that has several.
    fn further_name(&mut self, stat: &Stat, name: &[u8]) -> Option<Vec<u8>> {
        if stat.st_nlink < 2 {
            return None;
        }
        let key = (stat.st_dev, stat.st_ino);
        if let Some(first) = self.links.get(&key) {
            return Some(first.clone());
        }
        if self.links.len() < MAX_LINKS {
            self.links.insert(key, name.to_vec());
        }
        None
    }

    fn content(&self, source: usize, path: &[u8], stat: &Stat) -> io::Result<FileMeta> {
        let tx = self.tx;
        let identity = sys::identity(stat);
        let sparse = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512) < identity.size
            && identity.size >= 2 * GRAIN;
        let by_digest = tx.options.sync == SyncMode::Digest;
        let mut meta = FileMeta {
            identity,
            extents: None,
            digest: None,
        };
        if sparse || by_digest {
            let Some(source) = tx.sources.get(source) else {
                return Ok(meta);
            };
            let fd = open_source(&source.base, path)?;
            if sparse {
                meta.extents = sys::extents(&fd, identity.size, GRAIN, MAX_EXTENTS)?;
            }
            if by_digest {
                meta.digest = crate::hash::file_digest(&fd, identity.size)?;
            }
        }
        Ok(meta)
    }

    fn link_target(&self, source: usize, path: &[u8]) -> io::Result<Vec<u8>> {
        let Some(source) = self.tx.sources.get(source) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let (parent, last) = split_last(path);
        let dir = open_dir(&source.base, parent)?;
        Ok(rustix::fs::readlinkat(&dir, &sys::c_path(last)?, Vec::new())?.into_bytes())
    }

    fn wait_for_room(&mut self) -> Result<(), Stop> {
        if self.tx.files.is_full() {
            self.flush();
            while !self.tx.files.wait_for_room(Duration::from_millis(TICK_MS)) {
                if self.tx.end.is_over() {
                    return Err(Stop::Over);
                }
            }
        }
        if self.tx.end.is_over() {
            Err(Stop::Over)
        } else {
            Ok(())
        }
    }

    fn flush(&mut self) {
        if !self.batch.is_empty() {
            self.tx.outbox.post(Fwd::Entries(std::mem::take(&mut self.batch)));
            self.batch_bytes = 0;
            self.batch_goal = (self.batch_goal * 2).min(MAX_BATCH);
        }
    }

    /// A name that cannot be announced.
    fn local_failure(&self, name: Vec<u8>, what: &str, e: &io::Error) {
        self.tx
            .failed(name, FileErrorKind::Source, sys::errno(e), format!("{what}: {e}"));
    }
}

/// Names of a folder by inode; the folder of partial state is left out.
fn list(dir: &OwnedFd) -> io::Result<Vec<(u64, Vec<u8>)>> {
    let mut names = Vec::new();
    let mut entries = rustix::fs::Dir::read_from(dir)?;
    while let Some(entry) = entries.read() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") && name != STATE_DIR.as_bytes() {
            names.push((entry.ino(), name.to_vec()));
        }
    }
    names.sort();
    Ok(names)
}
