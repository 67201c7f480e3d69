//! Content on its way to a node.
//!
//! ```text
//!   source ──part n + 1──> (read and hashed here)
//!            part n ──────> node                    another thread: by a memory file if the node is on this host
//!                                                   (crate::near), else by HTTP; the last part is answered when all
//!                                                   is durable, with the node's digest and receipt
//! ```

use std::io::Read;
use std::thread;
use std::time::Duration;

use kuroshio_proto::v1;
use kuroshio_service::{HttpConn, ServiceError};

use crate::content::{Cancel, PART_BYTES, SMALL_BYTES, Stored, hex, unhex};
use crate::error::ClientError;
use crate::near::{Hand, Written};
use crate::pool::{Dialled, Pool, dial};

/// Longest wait for a node to make a part durable.
const FLUSH_LIMIT: Duration = Duration::from_secs(120);

/// What a node has kept.
pub(crate) struct Kept {
    pub size: u64,
    pub digest: [u8; 32],
    pub mac: Vec<u8>,
}

/// Sends all of `source` to a node.
pub(crate) fn store(
    nodes: &Pool,
    place: &v1::Place,
    source: &mut impl Read,
    cancel: &Cancel,
) -> Result<Kept, ClientError> {
    let mut hasher = blake3::Hasher::new();
    let mut part = Vec::new();
    read_part(source, SMALL_BYTES, &mut part)?;
    hasher.update(&part);
    if part.is_empty() {
        // Nothing is stored of an empty file.
        return Ok(Kept {
            size: 0,
            digest: *hasher.finalize().as_bytes(),
            mac: Vec::new(),
        });
    }
    let mut way = Way::new(nodes, place);
    // One part ahead tells whether this one is the last.
    let (mut next, mut spare) = (Vec::new(), Vec::new());
    if part.len() == SMALL_BYTES {
        read_part(source, PART_BYTES, &mut next)?;
        hasher.update(&next);
    }
    let mut at = 0u64;
    loop {
        let total = next.is_empty().then(|| at + part.len() as u64);
        let written = if next.len() < PART_BYTES {
            // Nothing is behind the next one.
            spare.clear();
            way.send(at, &part, total)?
        } else {
            thread::scope(|scope| {
                let sent = scope.spawn(|| way.send(at, &part, total));
                let read = read_part(source, PART_BYTES, &mut spare);
                hasher.update(&spare);
                let sent = sent.join();
                let sent =
                    sent.unwrap_or_else(|_| Err(ClientError::Protocol("a sender ended abnormally".into())))?;
                read.map(|()| sent)
            })?
        };
        at += part.len() as u64;
        cancel.moved(part.len())?;
        if let Some(Written { digest, mac }) = written {
            way.keep();
            return kept_of(place, at, &hasher, (&digest, &mac));
        }
        if total.is_some() {
            let text = format!("node {}: a part is missing", place.node);
            return Err(ClientError::Protocol(text));
        }
        (part, next, spare) = (next, spare, part);
    }
}

/// The way to a node.
struct Way<'a> {
    nodes: &'a Pool,
    place: &'a v1::Place,
    /// While the node is on this host.
    hand: Option<Hand<'a>>,
    /// Otherwise, and whether it was used before and so may have ended.
    http: Option<(HttpConn, bool)>,
}

impl<'a> Way<'a> {
    fn new(nodes: &'a Pool, place: &'a v1::Place) -> Self {
        Self {
            nodes,
            place,
            hand: nodes.near.hand(),
            http: None,
        }
    }

    /// Sends a part; what the node said of the whole, if nothing is missing.
    fn send(&mut self, at: u64, part: &[u8], total: Option<u64>) -> Result<Option<Written>, ClientError> {
        if let Some(hand) = &self.hand {
            if let Some(answer) = hand.part(self.place, at, part, total) {
                return Ok(answer?);
            }
            // What it took is there: the rest goes the other way.
            self.hand = None;
        }
        let (mut http, kept) = match self.http.take() {
            Some(way) => way,
            None => {
                let Dialled { http, kept } = self.nodes.dial(self.place)?;
                http.set_limit(FLUSH_LIMIT)?;
                (http, kept)
            }
        };
        let mut answer = http.put_part(&self.place.path, "", at, part, total);
        if kept
            && matches!(
                answer,
                Err(ServiceError::Peer { .. } | ServiceError::Protocol { .. })
            )
        {
            // It had ended while it was idle; a part that was taken nevertheless is taken again.
            http = dial(self.place)?;
            http.set_limit(FLUSH_LIMIT)?;
            answer = http.put_part(&self.place.path, "", at, part, total);
        }
        let Stored { done, digest, mac } = answer?;
        self.http = Some((http, false));
        Ok(done.then_some(Written { digest, mac }))
    }

    /// The way was right to its end.
    fn keep(self) {
        if let Some((http, _)) = self.http {
            self.nodes.keep(self.place, http);
        }
    }
}

/// What a node says it has, if that is what was sent.
fn kept_of(
    place: &v1::Place,
    size: u64,
    sent: &blake3::Hasher,
    (digest, mac): (&str, &str),
) -> Result<Kept, ClientError> {
    let sent = *sent.finalize().as_bytes();
    if digest != hex(&sent) {
        return Err(ClientError::Digest(format!(
            "node {} stored something else than was sent (digest {digest}, sent {})",
            place.node,
            hex(&sent)
        )));
    }
    let mac =
        unhex(mac).ok_or_else(|| ClientError::Protocol(format!("node {}: a broken receipt", place.node)))?;
    Ok(Kept {
        size,
        digest: sent,
        mac,
    })
}

/// Gives `part` as many bytes as there are, at most `limit`, in place of what it has.
fn read_part(source: &mut impl Read, limit: usize, part: &mut Vec<u8>) -> Result<(), ClientError> {
    part.clear();
    let read = source.take(limit as u64).read_to_end(part);
    read.map_err(|e| ClientError::local("(source)", e))?;
    Ok(())
}
