//! From written to durable: flush, read back and compare, set metadata, rename, flush the names.
//!
//! Small files go in groups with one `syncfs` for a group:
//!
//! ```text
//!   collect group k -> syncfs -> names of group k-1 are durable: tell
//!                            \-> content of group k is on disk: read back, compare, rename -> group k+1 ...
//! ```
//!
//! so one flush serves the content of one group and the names of the one before. A large file is flushed
//! and compared at the same time (on several threads), then renamed alone.

use super::Receiver;
use super::file::{InFile, part_fd};
use crate::end::End;
use crate::error::FileErrorKind;
use crate::hash::piece_digest;
use crate::limits::{GROUP_BYTES, GROUP_FILES, GROUP_WAIT_MS, HASH_BUFFER, MAX_RESENDS};
use crate::options::DigestMode;
use crate::progress::{Event, add};
use crate::sys::times;
use crate::wire::{Part, Rev};
use kuroshio_core::chunk::{DigestTree, EMPTY_ROOT};
use rustix::fs::Mode;
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Files up to this size are published in groups, bytes.
const GROUP_FILE_MAX: u64 = 8 << 20;
/// Finished files that may wait to be published; writers wait beyond (each holds a descriptor).
const MAX_WAITING: usize = 2 * GROUP_FILES;
/// Threads that compare one large file.
const MAX_VERIFIERS: usize = 4;
/// A file with at least this many pieces is compared by several threads.
const PARALLEL_PIECES: usize = 8;

#[derive(Default)]
struct Queues {
    small: VecDeque<Arc<InFile>>,
    small_bytes: u64,
    large: VecDeque<Arc<InFile>>,
    /// No more work will come before what is queued is published: do not wait for a fuller group.
    hurry: bool,
    closed: bool,
}

impl Queues {
    /// Whether a whole group waits.
    fn has_group(&self) -> bool {
        self.small.len() >= GROUP_FILES || self.small_bytes >= GROUP_BYTES
    }
}

/// The queues of finished files.
#[derive(Default)]
pub(super) struct Publisher {
    queues: Mutex<Queues>,
    changed: Condvar,
}

impl Publisher {
    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A file is complete.
    pub(super) fn queue(&self, file: Arc<InFile>) {
        let mut q = self.lock();
        let wake = if file.size() <= GROUP_FILE_MAX {
            q.small_bytes += file.size();
            q.small.push_back(file);
            // Between the first file of a group and the last the publisher only waits for more: it is not
            // woken for each.
            q.small.len() == 1 || q.hurry || q.has_group()
        } else {
            q.large.push_back(file);
            true
        };
        drop(q);
        if wake {
            self.changed.notify_all();
        }
    }

    /// Whether groups should be published without waiting for more files.
    pub(super) fn hurry(&self, on: bool) {
        let mut q = self.lock();
        if q.hurry != on {
            q.hurry = on;
            drop(q);
            self.changed.notify_all();
        }
    }

    /// Ends the threads; what is queued is left to the next run.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// Waits while too many finished files hold descriptors.
    pub(super) fn wait_for_room(&self, end: &End) {
        let mut q = self.lock();
        while q.small.len() >= MAX_WAITING && !q.closed && !end.is_over() {
            let wait = Duration::from_millis(GROUP_WAIT_MS);
            q = self
                .changed
                .wait_timeout(q, wait)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// The next group: full, or old enough, or in a hurry. `None` when closed. An empty group only when
    /// `pending` (names of the group before wait for a flush).
    fn next_group(&self, pending: bool) -> Option<Vec<Arc<InFile>>> {
        let mut q = self.lock();
        let mut deadline = pending.then(|| Instant::now() + Duration::from_millis(GROUP_WAIT_MS));
        loop {
            if q.closed {
                return None;
            }
            if q.has_group() || q.hurry && (pending || !q.small.is_empty()) {
                break;
            }
            if deadline.is_none() && !q.small.is_empty() {
                deadline = Some(Instant::now() + Duration::from_millis(GROUP_WAIT_MS));
            }
            let left = match deadline {
                Some(d) => d.saturating_duration_since(Instant::now()),
                None => Duration::from_secs(3600),
            };
            if left.is_zero() {
                break;
            }
            q = self
                .changed
                .wait_timeout(q, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        let (mut group, mut bytes) = (Vec::new(), 0u64);
        while group.len() < GROUP_FILES && bytes < GROUP_BYTES {
            let Some(file) = q.small.pop_front() else { break };
            bytes += file.size();
            group.push(file);
        }
        q.small_bytes = q.small_bytes.saturating_sub(bytes);
        drop(q);
        self.changed.notify_all();
        Some(group)
    }

    fn next_large(&self) -> Option<Arc<InFile>> {
        let mut q = self.lock();
        loop {
            if q.closed {
                return None;
            }
            if let Some(file) = q.large.pop_front() {
                return Some(file);
            }
            q = self.changed.wait(q).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Publishes small files until closed.
pub(super) fn run_groups(rx: &Receiver<'_>) {
    let mut renamed: Vec<Done> = Vec::new();
    let mut buf = vec![0u8; HASH_BUFFER];
    while let Some(group) = rx.publisher.next_group(!renamed.is_empty()) {
        if group.is_empty() && renamed.is_empty() {
            continue;
        }
        let begun = Instant::now();
        for file in &group {
            if let Err(e) = prepare(rx, file) {
                rx.fail_file(file, FileErrorKind::Destination, "set size, mode and time", &e);
            }
        }
        if let Err(e) = rx.place.sync_all() {
            rx.local_error("flush the destination", e);
            return;
        }
        rx.durable(std::mem::take(&mut renamed));
        let right = group
            .into_iter()
            .filter(|file| verify(rx, file, &mut buf))
            .collect();
        renamed = rename(rx, right);
        rx.spent_on_disk(begun);
    }
}

/// Publishes large files until closed.
pub(super) fn run_large(rx: &Receiver<'_>) {
    let mut buf = vec![0u8; HASH_BUFFER];
    while let Some(file) = rx.publisher.next_large() {
        let begun = Instant::now();
        let right = match prepare(rx, &file) {
            Ok(Some(fd)) => flush_and_verify(rx, &file, &fd, &mut buf),
            Ok(None) => Ok(false),
            Err(e) => Err(e),
        };
        let right = right.unwrap_or_else(|e| {
            rx.fail_file(&file, FileErrorKind::Destination, "flush", &e);
            false
        });
        if right {
            let done = rename(rx, vec![Arc::clone(&file)]);
            match rx.place.sync_folder(&file.path) {
                Ok(()) => rx.durable(done),
                Err(e) => rx.fail_file(&file, FileErrorKind::Destination, "flush the folder", &e),
            }
        }
        rx.spent_on_disk(begun);
    }
}

/// Waits for the disk and reads back at once; both must have ended before the file gets its name.
fn flush_and_verify(rx: &Receiver<'_>, file: &Arc<InFile>, fd: &OwnedFd, buf: &mut [u8]) -> io::Result<bool> {
    std::thread::scope(|scope| {
        let flush = scope.spawn(|| rustix::fs::fsync(fd));
        let right = verify(rx, file, buf);
        let flushed = flush.join();
        flushed.map_err(|_| io::Error::other("the flush ended abnormally"))??;
        Ok(right)
    })
}

/// A file that has its name.
pub(super) struct Done {
    pub file: Arc<InFile>,
    pub digest: Option<[u8; 32]>,
}

/// Size, mode and time of the part file. `None` for a file that failed meanwhile.
fn prepare(rx: &Receiver<'_>, file: &Arc<InFile>) -> io::Result<Option<Arc<OwnedFd>>> {
    let fd = {
        let mut s = file.lock();
        if s.dead {
            return Ok(None);
        }
        part_fd(file, &mut s, &rx.state)?
    };
    let size = rustix::fs::fstat(&*fd)?.st_size;
    if u64::try_from(size).ok() != Some(file.size()) {
        rustix::fs::ftruncate(&*fd, file.size())?;
    }
    rustix::fs::fchmod(&*fd, Mode::from_raw_mode(file.mode & 0o777))?;
    rustix::fs::futimens(&*fd, &times(file.meta.identity.mtime))?;
    Ok(Some(fd))
}

/// Compares a flushed file with the sender's digests; `false` for one that failed or is asked for again.
fn verify(rx: &Receiver<'_>, file: &Arc<InFile>, buf: &mut [u8]) -> bool {
    let fd = {
        let s = file.lock();
        match &s.fd {
            Some(fd) if !s.dead => Arc::clone(fd),
            _ => return false,
        }
    };
    if rx.options.digest == DigestMode::None {
        return true;
    }
    match wrong_pieces(file, &fd, buf) {
        Ok(wrong) if wrong.is_empty() => true,
        Ok(wrong) => {
            ask_again(rx, file, &wrong);
            false
        }
        Err(e) => {
            rx.fail_file(file, FileErrorKind::Destination, "read back", &e);
            false
        }
    }
}

/// Journals that files are right, by one write, then gives them their names.
fn rename(rx: &Receiver<'_>, files: Vec<Arc<InFile>>) -> Vec<Done> {
    if files.is_empty() {
        return Vec::new();
    }
    if let Err(e) = rx.journal.verified(files.iter().map(|f| f.key)) {
        rx.local_error("write the journal", e);
        return Vec::new();
    }
    let mut done = Vec::with_capacity(files.len());
    for file in files {
        if let Err(e) = rx.place.publish(&rx.state, &file.part, &file.path) {
            rx.fail_file(&file, FileErrorKind::Destination, "rename into place", &e);
            continue;
        }
        let mut s = file.lock();
        s.fd = None;
        let digest = if rx.options.digest == DigestMode::Blake3 {
            root(&file, &s.pieces)
        } else {
            None
        };
        drop(s);
        done.push(Done { file, digest });
    }
    done
}

/// Digest of the whole file from its pieces; `None` for a sparse file.
fn root(file: &InFile, pieces: &super::journal::Pieces) -> Option<[u8; 32]> {
    if file.size() == 0 {
        return Some(EMPTY_ROOT);
    }
    let mut tree = DigestTree::new(file.size());
    for (&offset, &(len, digest)) in pieces {
        tree.insert(offset, u64::from(len), digest).ok()?;
    }
    tree.root()
}

/// Pieces of the destination file that differ from what the sender digested.
fn wrong_pieces(file: &InFile, fd: &OwnedFd, buf: &mut [u8]) -> io::Result<Vec<(u64, u32)>> {
    let todo: Vec<(u64, u32, [u8; 32])> = {
        let s = file.lock();
        let unverified = s
            .pieces
            .iter()
            .filter(|(o, (len, _))| !s.verified.contains(**o..o.saturating_add(u64::from(*len))));
        unverified.map(|(&o, &(len, digest))| (o, len, digest)).collect()
    };
    // Counting cores reads files of the control group: not for each small file.
    let threads = if todo.len() >= PARALLEL_PIECES {
        std::thread::available_parallelism().map_or(1, |n| n.get().min(MAX_VERIFIERS))
    } else {
        1
    };
    let next = AtomicUsize::new(0);
    let check = |buf: &mut [u8]| -> io::Result<Vec<(u64, u32)>> {
        let mut wrong = Vec::new();
        while let Some(&(offset, len, digest)) = todo.get(next.fetch_add(1, Ordering::Relaxed)) {
            let there = piece_digest(file.size(), fd, offset, len, buf)?;
            if there.map(|(digest, _)| digest) != Some(digest) {
                wrong.push((offset, len));
            }
        }
        Ok(wrong)
    };
    let mut wrong = Vec::new();
    std::thread::scope(|scope| -> io::Result<()> {
        let others: Vec<_> = (1..threads)
            .map(|_| scope.spawn(|| check(&mut vec![0u8; HASH_BUFFER])))
            .collect();
        wrong = check(buf)?;
        for other in others {
            let part = other
                .join()
                .map_err(|_| io::Error::other("a verifier ended abnormally"))?;
            wrong.extend(part?);
        }
        Ok(())
    })?;
    let mut s = file.lock();
    for &(offset, len, _) in &todo {
        s.verified.insert(offset..offset.saturating_add(u64::from(len)));
    }
    Ok(wrong)
}

/// Wrong pieces are forgotten and asked for again, a bounded number of times.
fn ask_again(rx: &Receiver<'_>, file: &Arc<InFile>, wrong: &[(u64, u32)]) {
    let mut worst = 0;
    {
        let mut s = file.lock();
        for &(offset, len) in wrong {
            worst = worst.max(s.drop_piece(offset, len));
        }
        s.queued = false;
        // The sender looks at its source again before it says once more that all is sent.
        s.sent = false;
    }
    for &(offset, len) in wrong {
        if let Err(e) = rx.journal.drop_piece(file.key, offset, len) {
            rx.local_error("write the journal", e);
            return;
        }
        rx.progress.event(&Event::Resent {
            path: file.path.clone(),
            offset,
            len,
        });
    }
    add(&rx.progress.counters.chunks_resent, wrong.len() as u64);
    if worst > MAX_RESENDS {
        let e = io::Error::other(format!("the digest was wrong {worst} times"));
        rx.fail_file(file, FileErrorKind::Digest, "verify", &e);
        return;
    }
    let parts = wrong.iter().map(|&(offset, len)| Part {
        file: file.at,
        offset,
        len,
    });
    rx.publisher.hurry(false);
    rx.outbox.post(Rev::Bad(parts.collect()));
}
