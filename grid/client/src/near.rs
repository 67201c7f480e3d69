//! Nodes of this host: their files are read directly, and drafts are handed over (see `kuroshio_service::near`).

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use kuroshio_client::v1;
use kuroshio_service::near::{self, Ask, Told};
use kuroshio_service::{Pin, ServiceError};

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

#[derive(Default)]
struct Known {
    idle: Vec<UnixStream>,
    absent: Option<Instant>,
}

/// Connections to nodes of this host.
pub struct Near {
    wanted: bool,
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
            wanted,
            known: Mutex::default(),
        }
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
        if !self.wanted {
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
                Err(_) if was_kept => {}
                Err(e) => {
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

    /// Hands a draft over; none if the node is not on this host.
    pub fn store(&self, place: &v1::Place, file: &File, size: u64) -> Option<Result<Written, ServiceError>> {
        let ask = Ask::Write {
            token: place.token.clone(),
            path: place.path.clone(),
            size_bytes: size,
        };
        let limit = FLUSH_LIMIT + Duration::from_secs(size / SLOWEST);
        match self.ask(place, &ask, Some(file), limit)?.0 {
            Told::Written { digest, mac } => Some(Ok(Written { digest, mac })),
            Told::Refused { status, text } => Some(Err(ServiceError::Refused {
                address: place.address.clone(),
                status,
                text,
            })),
            Told::Read { .. } => None,
        }
    }
}
