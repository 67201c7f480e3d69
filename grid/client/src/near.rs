//! Nodes of this host: their files are read directly, and content is handed over as a file (see `kuroshio_service::near`).
//!
//! ```text
//!   get   open ──> file of the object ──pieces──> destination          this thread
//!                                        └──────> digest               another one, for content of more than a piece
//!   put   part ──> memory file ──> node, part after part; it reads back, compares and flushes ──> digest, receipt
//! ```
//!
//! The same tokens, digests and receipts as by HTTP; what is saved is TLS, its copies and two changes of threads.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use kuroshio_proto::v1;
use kuroshio_service::near::{self, Ask, Told};
use kuroshio_service::{Pin, ServiceError};
use rustix::fs::MemfdFlags;

use crate::error::ClientError;

/// Longest wait for a file to be opened.
const OPEN_LIMIT: Duration = Duration::from_secs(5);
/// Longest wait for a draft to be durable, and more by its size.
const FLUSH_LIMIT: Duration = Duration::from_secs(120);
/// A node's slowest disk, bytes per second.
const SLOWEST: u64 = 10_000_000;
/// How long a node is taken not to be here.
const ABSENT: Duration = Duration::from_secs(30);
/// Connections kept to one node.
const MAX_IDLE: usize = 16;
/// Bytes of an object's file that are read at once.
const PIECE_BYTES: u64 = 256 * 1024;
/// Pieces that are read and not yet digested.
const PIECES_AHEAD: usize = 3;

#[derive(Default)]
struct Known {
    idle: Vec<UnixStream>,
    absent: Option<Instant>,
}

/// Connections to nodes of this host.
pub struct Near {
    wanted: AtomicBool,
    known: Mutex<HashMap<String, Known>>,
}

/// What a node said of a draft.
pub struct Written {
    /// BLAKE3 in hexadecimal.
    pub digest: String,
    /// Its receipt in hexadecimal.
    pub mac: String,
}

impl Near {
    /// None are known yet; if they are not wanted, none ever will be.
    pub fn new(wanted: bool) -> Self {
        Self {
            wanted: AtomicBool::new(wanted),
            known: Mutex::default(),
        }
    }

    /// Whether nodes of this host are to be spoken to directly.
    pub fn want(&self, wanted: bool) {
        self.wanted.store(wanted, Ordering::Relaxed);
    }

    fn with<T>(&self, place: &v1::Place, work: impl FnOnce(&mut Known) -> T) -> T {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        work(known.entry(place.pin.clone()).or_default())
    }

    fn ask(
        &self,
        place: &v1::Place,
        ask: &Ask,
        file: Option<&File>,
        limit: Duration,
    ) -> Option<(Told, Option<File>)> {
        if !self.wanted.load(Ordering::Relaxed) {
            return None;
        }
        let pin = place.pin.parse::<Pin>().ok()?;
        if self.with(place, |k| k.absent.is_some_and(|since| since.elapsed() < ABSENT)) {
            return None;
        }
        loop {
            let kept = self.with(place, |k| k.idle.pop());
            let was_kept = kept.is_some();
            let stream = match kept {
                Some(stream) => Ok(stream),
                None => near::connect(pin, OPEN_LIMIT),
            };
            let Ok(stream) = stream else {
                self.with(place, |k| k.absent = Some(Instant::now()));
                return None;
            };
            let asked = stream
                .set_read_timeout(Some(limit))
                .and_then(|()| near::ask(&stream, ask, file.and_then(near::file_of)));
            match asked {
                Ok((told, given)) => {
                    self.with(place, |k| {
                        if k.idle.len() < MAX_IDLE {
                            k.idle.push(stream);
                        }
                    });
                    return Some((told, given.map(File::from)));
                }
                // The node may have ended a connection that waited.
                Err(e) if was_kept && !matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(e) => {
                    // Who comes next does not wait for it as long again.
                    self.with(place, |k| k.absent = Some(Instant::now()));
                    tracing::warn!(node = place.node, "a node of this host does not answer: {e}");
                    return None;
                }
            }
        }
    }

    /// The file of an object, if its node is on this host.
    pub fn open(&self, place: &v1::Place, size: u64) -> Option<File> {
        let ask = Ask::Read {
            token: place.token.clone(),
            path: place.path.clone(),
        };
        match self.ask(place, &ask, None, OPEN_LIMIT)? {
            (Told::Read { size_bytes }, Some(file)) if size_bytes == size => Some(file),
            (told, _) => {
                tracing::warn!(
                    node = place.node,
                    "the file of an object is not to be had: {told:?}"
                );
                None
            }
        }
    }

    /// Hands a whole draft over; none if the node is not on this host.
    pub fn store(&self, place: &v1::Place, file: &File, size: u64) -> Option<Result<Written, ServiceError>> {
        let whole = 0..size;
        match self.part(place, file, whole, Some(size))? {
            Ok(Some(written)) => Some(Ok(written)),
            Ok(None) => None,
            Err(e) => Some(Err(e)),
        }
    }

    /// Hands a part of an object over, which is at the beginning of `file`; what the node said of the object if this was the
    /// last part, and none at all if the node is not on this host.
    fn part(
        &self,
        place: &v1::Place,
        file: &File,
        part: Range<u64>,
        total: Option<u64>,
    ) -> Option<Result<Option<Written>, ServiceError>> {
        let ask = Ask::Part {
            token: place.token.clone(),
            path: place.path.clone(),
            at_bytes: part.start,
            size_bytes: part.end - part.start,
            total_bytes: total,
        };
        let limit = FLUSH_LIMIT + Duration::from_secs(total.unwrap_or(part.end) / SLOWEST);
        match self.ask(place, &ask, Some(file), limit)?.0 {
            Told::Taken {} => Some(Ok(None)),
            Told::Written { digest, mac } => Some(Ok(Some(Written { digest, mac }))),
            Told::Refused { status, text } => Some(Err(ServiceError::Refused {
                address: place.address.clone(),
                status,
                text,
            })),
            Told::Read { .. } => None,
        }
    }

    /// A way to hand content in memory over; none if that is not wanted, or no memory file can be had.
    pub(crate) fn hand(&self) -> Option<Hand<'_>> {
        if !self.wanted.load(Ordering::Relaxed) {
            return None;
        }
        let file = rustix::fs::memfd_create("content", MemfdFlags::CLOEXEC).ok()?;
        Some(Hand {
            near: self,
            file: File::from(file),
        })
    }
}

/// Hands content over through a memory file, one part after the other.
pub(crate) struct Hand<'a> {
    near: &'a Near,
    file: File,
}

impl Hand<'_> {
    /// As [`Near::part`].
    pub(crate) fn part(
        &self,
        place: &v1::Place,
        at: u64,
        content: &[u8],
        total: Option<u64>,
    ) -> Option<Result<Option<Written>, ServiceError>> {
        self.file.write_all_at(content, 0).ok()?;
        let part = at..at + content.len() as u64;
        self.near.part(place, &self.file, part, total)
    }
}

/// Reads a range of an object's file piece by piece: `take` gets each, in this thread, and then `digests` count it. What
/// `take` has got when this fails was counted.
pub(crate) fn read(
    file: &File,
    range: Range<u64>,
    digests: &mut [&mut blake3::Hasher],
    take: &mut dyn FnMut(&[u8]) -> Result<(), ClientError>,
) -> Result<(), ClientError> {
    let mut at = range.start;
    let mut piece = |buffer: &mut Vec<u8>| -> Result<bool, ClientError> {
        let len = (range.end - at).min(PIECE_BYTES);
        buffer.resize(usize::try_from(len).unwrap_or(0), 0);
        file.read_exact_at(buffer, at).map_err(short)?;
        at += len;
        if len > 0 {
            take(buffer)?;
        }
        Ok(len > 0)
    };
    if range.end - range.start <= PIECE_BYTES {
        let mut buffer = Vec::new();
        piece(&mut buffer)?;
        count(digests, &buffer);
        return Ok(());
    }
    thread::scope(|scope| {
        let (read, ready) = mpsc::sync_channel::<Vec<u8>>(PIECES_AHEAD);
        let (done, free) = mpsc::channel::<Vec<u8>>();
        for _ in 0..PIECES_AHEAD {
            // The other end is below.
            let _ = done.send(Vec::new());
        }
        scope.spawn(move || {
            for buffer in ready {
                count(digests, &buffer);
                // Who reads may have ended.
                let _ = done.send(buffer);
            }
        });
        // It ends when all is read: the digests have all of it when the scope ends.
        while let Ok(mut buffer) = free.recv() {
            if !piece(&mut buffer)? || read.send(buffer).is_err() {
                break;
            }
        }
        Ok(())
    })
}

fn count(digests: &mut [&mut blake3::Hasher], piece: &[u8]) {
    for digest in digests {
        digest.update(piece);
    }
}

/// The file of an object cannot be read.
fn short(source: io::Error) -> ClientError {
    ClientError::NoReplica(format!("the file of an object: {source}"))
}
