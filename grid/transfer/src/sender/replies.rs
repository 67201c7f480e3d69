//! What the receiver says.

use super::{Sender, stream};
use crate::conn::Conn;
use crate::error::{FileError, TransferError};
use crate::options::DigestMode;
use crate::progress::{Event, add};
use crate::wire::{self, FileRef, Fwd, Missing, Part, Rev, read_message};
use kuroshio_core::chunk::{FileId, RangeSet, ScheduleError};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

fn control_error(source: io::Error) -> TransferError {
    if source.kind() == io::ErrorKind::InvalidData {
        TransferError::Protocol(source.to_string())
    } else {
        TransferError::Connection {
            what: "control connection from the receiver",
            source,
        }
    }
}

fn protocol<T>(text: impl Into<String>) -> Result<T, TransferError> {
    Err(TransferError::Protocol(text.into()))
}

/// Reads until the connection ends, which it may only after `Finished`.
pub(super) fn run(tx: &Sender<'_>, rev: &mut Conn) {
    let mut scratch = Vec::new();
    let mut welcome = false;
    loop {
        let done = match read_message::<Rev>(rev, &mut scratch) {
            Ok(Some(Rev::Welcome { version })) if !welcome && version == wire::VERSION => {
                welcome = true;
                Ok(())
            }
            Ok(Some(Rev::Abort(text))) => Err(TransferError::Peer(wire::bounded_text(text))),
            Ok(Some(_)) if !welcome => protocol("the first answer is not a welcome in this version"),
            Ok(Some(message)) => handle(tx, message),
            Ok(None) | Err(_) if tx.finished.load(Ordering::SeqCst) => return,
            Ok(None) => Err(control_error(io::ErrorKind::UnexpectedEof.into())),
            Err(e) => Err(control_error(e)),
        };
        if let Err(e) = done {
            tx.end.fail(e);
            tx.wake_all();
            return;
        }
    }
}

fn handle(tx: &Sender<'_>, message: Rev) -> Result<(), TransferError> {
    match message {
        Rev::Welcome { .. } => return protocol("a second welcome"),
        Rev::Want(wants) => {
            for (at, missing) in wants {
                want(tx, at, missing)?;
            }
            tx.sched_changed.notify_all();
        }
        Rev::Have(ids) => {
            for id in ids {
                have(tx, id);
            }
        }
        Rev::Written(parts) => {
            for part in parts {
                written(tx, part)?;
            }
        }
        Rev::Bad(parts) => {
            for part in parts {
                bad(tx, part)?;
            }
            tx.sched_changed.notify_all();
        }
        Rev::Durable(files) => {
            for (id, digest) in files {
                durable(tx, id, digest);
            }
        }
        Rev::Failed(failures) => {
            for f in failures {
                let known = tx.files.get(f.id).map(|file| file.name.clone());
                tx.finish_file(f.id);
                let path = known.unwrap_or(f.path.0);
                tx.record(FileError {
                    path,
                    kind: f.kind,
                    errno: f.errno,
                    text: wire::bounded_text(f.text),
                });
            }
            tx.sched_changed.notify_all();
        }
        Rev::Limits { disk_permille } => {
            let permille = u64::from(disk_permille.min(1000));
            tx.progress
                .counters
                .receiver_busy_permille
                .store(permille, Ordering::Relaxed);
        }
        Rev::Finished {
            others,
            verified,
            resumed,
        } => {
            let walked = tx.progress.counters.walk_done.load(Ordering::SeqCst);
            if !walked || !tx.files.is_empty() {
                return protocol("it says that all is done while files are missing");
            }
            tx.progress.counters.others_done.store(others, Ordering::Relaxed);
            let mut summary = tx.summary();
            summary.files_verified = if tx.options.digest == DigestMode::Blake3 {
                verified
            } else {
                0
            };
            summary.bytes_resumed = resumed;
            drop(summary);
            tx.finished.store(true, Ordering::SeqCst);
            tx.wake_all();
        }
        Rev::Abort(text) => return Err(TransferError::Peer(wire::bounded_text(text))),
    }
    Ok(())
}

fn want(tx: &Sender<'_>, at: FileRef, missing: Missing) -> Result<(), TransferError> {
    // A file that failed here meanwhile is wanted no more.
    let Some(file) = tx.files.get(at.id) else {
        return Ok(());
    };
    let mut s = file.lock();
    let restart = s.changed;
    let expected = s.generation.saturating_add(u16::from(restart));
    if at.generation != expected {
        return protocol("a file is wanted under a number that was never announced");
    }
    let size = s.identity().size;
    let wanted = ranges(&s.meta, missing)?;
    if tx.options.dry_run {
        drop(s);
        tx.progress.event(&Event::WouldSend {
            path: file.name.clone(),
            bytes: wanted.bytes(),
        });
        tx.finish_file(at.id);
        return Ok(());
    }
    let resumed = size.saturating_sub(wanted.bytes());
    let mut sched = tx.sched();
    let id = FileId(at.id);
    let complete = if restart {
        match sched.restart_file(id, size, &wanted) {
            Ok(generation) if generation == at.generation => Ok(wanted.is_empty()),
            Ok(_) => return protocol("restarts are out of step"),
            Err(e) => Err(e),
        }
    } else {
        sched.add_file(id, size, &wanted)
    };
    drop(sched);
    let complete = complete.or_else(|e| protocol(e.to_string()))?;
    s.generation = expected;
    s.changed = false;
    s.sent_stable = false;
    drop(s);
    if !restart {
        tx.answered(&file);
        add(&tx.progress.counters.bytes_present, resumed);
    }
    if complete {
        check_sent(tx, &file);
    }
    Ok(())
}

/// What is wanted of a file, checked against its size.
fn ranges(meta: &wire::FileMeta, missing: Missing) -> Result<RangeSet, TransferError> {
    let size = meta.identity.size;
    let list = match (missing, &meta.extents) {
        (Missing::All, None) => return Ok(RangeSet::from_range(0..size)),
        (Missing::All, Some(list)) => list.iter().map(|&(o, l)| (o, o.saturating_add(l))).collect(),
        (Missing::Ranges(list), _) => list,
    };
    if list.iter().any(|&(start, end)| start > end || end > size) {
        return protocol("a range is wanted that the file does not have");
    }
    RangeSet::try_from_ranges(list.into_iter().map(|(start, end)| start..end))
        .or_else(|e| protocol(e.to_string()))
}

fn have(tx: &Sender<'_>, id: u32) {
    let Some(file) = tx.files.get(id) else { return };
    let size = file.lock().identity().size;
    let c = &tx.progress.counters;
    add(&c.files_skipped, 1);
    add(&c.bytes_present, size);
    add(&c.bytes_durable, size);
    tx.progress.event(&Event::Skipped {
        path: file.name.clone(),
    });
    tx.finish_file(id);
}

fn written(tx: &Sender<'_>, part: Part) -> Result<(), TransferError> {
    let Part {
        file: FileRef { id, generation },
        offset,
        len,
    } = part;
    let acked = tx.sched().written(FileId(id), generation, offset, u64::from(len));
    match acked {
        Ok(acked) => {
            add(&tx.progress.counters.bytes_acknowledged, acked.bytes);
            if acked.complete
                && acked.bytes > 0
                && let Some(file) = tx.files.get(id)
            {
                check_sent(tx, &file);
            }
            Ok(())
        }
        // A file that failed or finished meanwhile, or a piece that came twice over a lost stream.
        Err(ScheduleError::UnknownFile(_) | ScheduleError::NotSent { .. }) => Ok(()),
        Err(e) => protocol(e.to_string()),
    }
}

fn bad(tx: &Sender<'_>, part: Part) -> Result<(), TransferError> {
    let Part {
        file: FileRef { id, generation },
        offset,
        len,
    } = part;
    let again = tx.sched().bad(FileId(id), generation, offset, u64::from(len));
    match again {
        Ok(bytes) => {
            if let Some(file) = tx.files.get(id) {
                file.lock().sent_stable = false;
                tx.progress.event(&Event::Resent {
                    path: file.name.clone(),
                    offset,
                    len,
                });
            }
            add(&tx.progress.counters.chunks_resent, 1);
            tx.summary().bytes_resent += bytes;
            Ok(())
        }
        Err(ScheduleError::UnknownFile(_)) => Ok(()),
        Err(e) => protocol(e.to_string()),
    }
}

/// Everything wanted of a file was written: if the source is still the same, the receiver may publish it.
fn check_sent(tx: &Sender<'_>, file: &Arc<super::file::OutFile>) {
    let (fd, announced, at, stable) = {
        let mut s = file.lock();
        if s.changed {
            return;
        }
        (s.fd.take(), s.identity(), s.at(file.id), s.sent_stable)
    };
    if stable {
        return;
    }
    let same = match fd {
        Some(fd) => stream::is_same(&fd, announced),
        None => tx.open_again(file).and_then(|fd| stream::is_same(&fd, announced)),
    };
    match same {
        Ok(true) => tx.outbox.post(Fwd::FileDone(vec![at])),
        Ok(false) => tx.changed(file, at.generation),
        Err(e) => tx.fail_file(file, "read", &e),
    }
}

fn durable(tx: &Sender<'_>, id: u32, digest: Option<[u8; 32]>) {
    let Some(file) = tx.files.get(id) else { return };
    let size = file.lock().identity().size;
    let c = &tx.progress.counters;
    if tx.finish_file(id) {
        add(&c.files_durable, 1);
        add(&c.bytes_durable, size);
        tx.progress.event(&Event::Durable {
            path: file.name.clone(),
            size,
            digest,
        });
    }
}
