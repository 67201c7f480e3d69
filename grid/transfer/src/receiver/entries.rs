//! What the sender announces: names are made or wanted, and at the end links and folders are finished.

use super::file::InFile;
use super::journal;
use super::{Receiver, control_error};
use crate::conn::Conn;
use crate::error::{FileErrorKind, TransferError};
use crate::limits::{MAX_BATCH, MAX_DEFERRED, MAX_EXTENTS, MAX_IN_FLIGHT, STREAM_BUFFER};
use crate::options::{DigestMode, SyncMode};
use crate::progress::{Event, add};
use crate::sys;
use crate::wire::{
    self, Entry, Failure, FileMeta, FileRef, Fwd, Kind, Missing, Rev, check_path, read_message,
};
use rustix::fs::FileType;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};

/// Name and final state of a folder, or of a further name of a file.
struct Late {
    id: u32,
    name: Vec<u8>,
    path: Vec<u8>,
    what: LateKind,
}

enum LateKind {
    Dir { mode: u32, mtime: (i64, u32) },
    Link { target: Vec<u8> },
}

/// What is done when all files are durable.
#[derive(Default)]
pub(super) struct Tree {
    dirs: Vec<Late>,
    links: Vec<Late>,
}

/// Reads control messages to the end of the connection.
pub(super) fn run(rx: &Receiver<'_>, fwd: &mut Conn, tree_tx: &mpsc::Sender<Tree>) {
    let mut tree = Some(Tree::default());
    let mut scratch = Vec::new();
    let mut next_id = 0u32;
    loop {
        let done = match read_message::<Fwd>(fwd, &mut scratch) {
            Ok(Some(message)) => handle(rx, message, &mut tree, &mut next_id, tree_tx),
            Ok(None) if rx.is_done() => return,
            Ok(None) => Err(control_error(io::ErrorKind::UnexpectedEof.into())),
            Err(_) if rx.is_done() => return,
            Err(e) => Err(control_error(e)),
        };
        if let Err(e) = done {
            if matches!(e, TransferError::Connection { .. }) {
                // What the sender had sent before it went is still in the sockets: less to send next time.
                rx.let_streams_drain();
            }
            if matches!(e, TransferError::Protocol(_)) {
                rx.outbox.post(Rev::Abort(wire::bounded_text(e.to_string())));
            }
            rx.end.fail(e);
            return;
        }
    }
}

fn handle(
    rx: &Receiver<'_>,
    message: Fwd,
    tree: &mut Option<Tree>,
    next_id: &mut u32,
    tree_tx: &mpsc::Sender<Tree>,
) -> Result<(), TransferError> {
    let protocol = |text: &str| Err(TransferError::Protocol(text.into()));
    match message {
        Fwd::Hello { .. } => return protocol("a second Hello"),
        Fwd::Bye => rx.said_bye.store(true, Ordering::SeqCst),
        Fwd::Abort(text) => return Err(TransferError::Peer(wire::bounded_text(text))),
        Fwd::Entries(entries) => {
            let Some(tree) = tree.as_mut() else {
                return protocol("entries after the end");
            };
            if entries.len() > MAX_BATCH || rx.files.len() > MAX_IN_FLIGHT + MAX_BATCH {
                return protocol("more entries in flight than the limit");
            }
            let mut wants = Vec::new();
            for entry in entries {
                if entry.id != *next_id {
                    return protocol("entry numbers are not in order");
                }
                *next_id = next_id
                    .checked_add(1)
                    .ok_or(TransferError::Protocol("too many entries".into()))?;
                announced(rx, entry, tree, &mut wants)?;
            }
            if !wants.is_empty() {
                rx.outbox.post(Rev::Want(wants));
            }
        }
        Fwd::Changed { file, mode, meta } => changed(rx, file, mode, meta)?,
        Fwd::FileDone(files) => {
            for file in files {
                sent(rx, file);
            }
        }
        Fwd::Failed(failures) => failures.into_iter().for_each(|f| source_failed(rx, f)),
        Fwd::End { entries } => {
            let Some(tree) = tree.take().filter(|_| entries == *next_id) else {
                return protocol("the end does not fit the entries");
            };
            // The session waits for the tree only after this; it is gone when the session is over.
            let _ = tree_tx.send(tree);
            rx.all_announced.store(true, Ordering::SeqCst);
            rx.progress.counters.walk_done.store(true, Ordering::Relaxed);
            rx.look();
        }
    }
    Ok(())
}

fn refuse(rx: &Receiver<'_>, id: u32, name: Vec<u8>, kind: FileErrorKind, errno: i32, text: String) {
    rx.failed(id, name, kind, errno, text, true);
}

/// One announced name.
fn announced(
    rx: &Receiver<'_>,
    entry: Entry,
    tree: &mut Tree,
    wants: &mut Vec<(FileRef, Missing)>,
) -> Result<(), TransferError> {
    let Entry {
        id,
        path: wire::Bytes(name),
        mode,
        mtime,
        kind,
    } = entry;
    if let Err(text) = check_path(&name) {
        refuse(rx, id, name, FileErrorKind::Escape, 0, text);
        return Ok(());
    }
    let path = rx.place.map(&name);
    let made = match kind {
        Kind::File(meta) => {
            wanted(rx, id, name, path, mode, meta, wants);
            return Ok(());
        }
        Kind::Dir => {
            let made = if rx.options.dry_run {
                Ok(())
            } else {
                rx.place.make_dir(&path, mode)
            };
            if made.is_ok() {
                tree.dirs.push(Late {
                    id,
                    name: name.clone(),
                    path,
                    what: LateKind::Dir { mode, mtime },
                });
            }
            made
        }
        Kind::Symlink(wire::Bytes(target)) => {
            let made = match wire::check_target(&target) {
                Err(text) => Err(io::Error::new(io::ErrorKind::InvalidInput, text)),
                Ok(()) if rx.options.dry_run => Ok(()),
                Ok(()) => rx.place.symlink(&rx.state, &path, &target, mtime),
            };
            if made.is_ok() {
                add(&rx.progress.counters.others_done, 1);
            }
            made
        }
        Kind::Hardlink(wire::Bytes(target)) => match check_path(&target) {
            Err(text) => Err(io::Error::new(io::ErrorKind::InvalidInput, text)),
            Ok(()) => {
                let target = rx.place.map(&target);
                tree.links.push(Late {
                    id,
                    name: name.clone(),
                    path,
                    what: LateKind::Link { target },
                });
                Ok(())
            }
        },
    };
    if tree.dirs.len() + tree.links.len() > MAX_DEFERRED {
        return Err(TransferError::Protocol(format!(
            "more than {MAX_DEFERRED} folders and links"
        )));
    }
    if let Err(e) = made {
        refuse(
            rx,
            id,
            name,
            FileErrorKind::Destination,
            sys::errno(&e),
            format!("make: {e}"),
        );
    }
    Ok(())
}

/// A file was announced: skip it, or want what is missing of it.
fn wanted(
    rx: &Receiver<'_>,
    id: u32,
    name: Vec<u8>,
    path: Vec<u8>,
    mode: u32,
    meta: FileMeta,
    wants: &mut Vec<(FileRef, Missing)>,
) {
    let c = &rx.progress.counters;
    let size = meta.identity.size;
    add(&c.files_scheduled, 1);
    add(&c.bytes_scheduled, size);
    if let Err(text) = check_extents(&meta) {
        refuse(rx, id, name, FileErrorKind::Source, 0, text);
        return;
    }
    let key = journal::key(&name, &meta.identity);
    if has(rx, &path, &meta, &key) {
        add(&c.files_skipped, 1);
        add(&c.bytes_present, size);
        add(&c.bytes_durable, size);
        rx.outbox.post(Rev::Have(vec![id]));
        rx.progress.event(&Event::Skipped { path });
        return;
    }
    let at = FileRef { id, generation: 0 };
    let file = Arc::new(InFile::new(at, name, path, meta, mode, key));
    let missing = resume(rx, &file);
    if rx.options.dry_run {
        let bytes = file.lock().missing.bytes();
        rx.progress.event(&Event::WouldSend {
            path: file.path.clone(),
            bytes,
        });
        wants.push((at, missing));
        return;
    }
    begin_file(rx, file, missing, wants);
}

fn begin_file(rx: &Receiver<'_>, file: Arc<InFile>, missing: Missing, wants: &mut Vec<(FileRef, Missing)>) {
    let ready = {
        let mut s = file.lock();
        // Without data nothing is sent. What came whole in an earlier run still needs the sender's word that
        // its source is the same.
        s.sent = s.missing.is_empty() && s.pieces.is_empty();
        InFile::ready(&mut s)
    };
    rx.files.insert(Arc::clone(&file));
    if ready {
        rx.publisher.queue(file);
    } else {
        wants.push((file.at, missing));
    }
}

fn check_extents(meta: &FileMeta) -> Result<(), String> {
    let Some(list) = &meta.extents else { return Ok(()) };
    let size = meta.identity.size;
    let mut at = 0u64;
    for &(offset, len) in list {
        let end = offset
            .checked_add(len)
            .filter(|e| *e <= size && len > 0 && offset >= at);
        at = end.ok_or("data extents that are out of order or beyond the end of the file")?;
    }
    if list.len() > MAX_EXTENTS {
        Err(format!("more than {MAX_EXTENTS} data extents"))
    } else {
        Ok(())
    }
}

/// Whether the destination has the file already, from an earlier run of this session or by `--sync`.
fn has(rx: &Receiver<'_>, path: &[u8], meta: &FileMeta, key: &journal::Key) -> bool {
    let Ok(stat) = rx.place.lstat(path) else {
        return false;
    };
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return false;
    }
    let there = sys::identity(&stat);
    if there.size != meta.identity.size {
        return false;
    }
    let (done, verified) = {
        let loaded = rx
            .loaded
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        (loaded.done.contains(key), loaded.verified.contains(key))
    };
    // Verified and renamed, and the last run ended before it could say so.
    let done = done || verified && sys::lstat(&rx.state, &super::file::part_name(key)).is_err();
    if done && there.mtime == meta.identity.mtime {
        return true;
    }
    match rx.options.sync {
        SyncMode::Off => false,
        SyncMode::Size => true,
        SyncMode::Time => there.mtime == meta.identity.mtime,
        SyncMode::Digest => {
            let digest = rx
                .place
                .open_file(path)
                .and_then(|fd| crate::hash::file_digest(&fd, there.size));
            meta.digest.is_some() && digest.ok().flatten() == meta.digest
        }
    }
}

/// Takes over what an earlier run wrote of the file, if its part file is still there.
fn resume(rx: &Receiver<'_>, file: &Arc<InFile>) -> Missing {
    let Some(pieces) = rx.take_resumed(&file.key) else {
        return Missing::All;
    };
    let mut s = file.lock();
    let there = sys::lstat(&rx.state, &file.part)
        .is_ok_and(|st| FileType::from_raw_mode(st.st_mode) == FileType::RegularFile);
    if !there {
        return Missing::All;
    }
    let mut bytes = 0u64;
    for (offset, (len, digest)) in pieces {
        if offset
            .checked_add(u64::from(len))
            .is_some_and(|end| end <= file.size() && len > 0)
        {
            s.insert(offset, len, digest);
            bytes += u64::from(len);
        }
    }
    rx.resumed.fetch_add(bytes, Ordering::Relaxed);
    add(&rx.progress.counters.bytes_present, bytes);
    let ranges: Vec<_> = s.missing.iter().map(|r| (r.start, r.end)).collect();
    // A message has its limits: beyond them the file is sent whole, which costs time only.
    if ranges.len() > STREAM_BUFFER / 64 {
        Missing::All
    } else {
        Missing::Ranges(ranges)
    }
}

/// The source changed: what is here of the old one is dropped.
fn changed(rx: &Receiver<'_>, at: FileRef, mode: u32, meta: FileMeta) -> Result<(), TransferError> {
    let Some(old) = rx.files.get(at.id) else {
        return Ok(());
    };
    if at.generation <= old.at.generation {
        return Err(TransferError::Protocol(
            "a file began again under an older number".into(),
        ));
    }
    if let Err(text) = check_extents(&meta) {
        return Err(TransferError::Protocol(text));
    }
    {
        let mut s = old.lock();
        s.dead = true;
        s.fd = None;
    }
    if let Err(e) = super::place::unlink_if_there(&rx.state, &old.part) {
        return Err(TransferError::Local {
            what: "remove a part file".into(),
            source: e,
        });
    }
    // The new one takes its place in the table in one step: a table that were empty for a moment would end
    // the session.
    add(&rx.progress.counters.files_restarted, 1);
    rx.progress.event(&Event::Restarted {
        path: old.path.clone(),
    });
    let key = journal::key(&old.name, &meta.identity);
    let file = Arc::new(InFile::new(
        at,
        old.name.clone(),
        old.path.clone(),
        meta,
        mode,
        key,
    ));
    let mut wants = Vec::new();
    begin_file(rx, file, Missing::All, &mut wants);
    if !wants.is_empty() {
        rx.outbox.post(Rev::Want(wants));
    }
    Ok(())
}

/// The sender has sent all of a file and its source is the same as announced.
fn sent(rx: &Receiver<'_>, at: FileRef) {
    let Some(file) = rx.files.get(at.id).filter(|f| f.at == at) else {
        return;
    };
    let ready = {
        let mut s = file.lock();
        s.sent = true;
        InFile::ready(&mut s)
    };
    if ready {
        rx.publisher.queue(file);
        rx.look();
    }
}

/// A file will not come.
fn source_failed(rx: &Receiver<'_>, failure: Failure) {
    let Failure {
        id,
        path: wire::Bytes(path),
        kind,
        errno,
        text,
    } = failure;
    if let Some(file) = rx.files.get(id) {
        {
            let mut s = file.lock();
            s.dead = true;
            s.fd = None;
        }
        // What cannot be removed goes with the state folder.
        let _ = super::place::unlink_if_there(&rx.state, &file.part);
        rx.files.remove(&file);
    }
    rx.failed(id, path, kind, errno, text, false);
    rx.look();
}

/// Links, folders, the last flush, and the last word.
pub(super) fn finish(rx: &Receiver<'_>, tree: Tree) {
    if !rx.options.dry_run {
        for late in tree.links {
            if let LateKind::Link { target } = &late.what {
                let made = rx.place.hardlink(&rx.state, &late.path, target);
                count_late(rx, late, made, "link to its first name");
            }
        }
        // Deepest first: a folder's time must not be touched by what is made in it.
        for late in tree.dirs.into_iter().rev() {
            if let LateKind::Dir { mode, mtime } = late.what {
                let made = rx.place.finish_dir(&late.path, mode, mtime);
                count_late(rx, late, made, "set mode and time");
            }
        }
        if let Err(e) = rx.place.sync_all() {
            rx.local_error("flush the destination", e);
            return;
        }
    }
    let verified = rx
        .summary
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
        .files_verified;
    rx.outbox.post(Rev::Finished {
        others: rx.progress.counters.others_done.load(Ordering::Relaxed),
        verified: if rx.options.digest == DigestMode::Blake3 {
            verified
        } else {
            0
        },
        resumed: rx.resumed.load(Ordering::Relaxed),
    });
}

fn count_late(rx: &Receiver<'_>, late: Late, made: io::Result<()>, what: &str) {
    match made {
        Ok(()) => add(&rx.progress.counters.others_done, 1),
        Err(e) => {
            refuse(
                rx,
                late.id,
                late.name,
                FileErrorKind::Destination,
                sys::errno(&e),
                format!("{what}: {e}"),
            );
        }
    }
}
