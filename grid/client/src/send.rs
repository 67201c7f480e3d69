//! Content on its way to a node.
//!
//! ```text
//!   small, node on this host ──memory file──> node                    (crate::near)
//!   else ──part──part──...──last part──> node (durable, receipt)      each part is hashed while it is sent
//! ```

use std::io::Read;
use std::time::Duration;

use kuroshio_proto::v1;
use kuroshio_service::ServiceError;

use crate::content::{Cancel, PART_BYTES, SMALL_BYTES, Stored, hex, unhex};
use crate::error::ClientError;
use crate::near::Written;
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
    let mut at = 0u64;
    let mut part = read_part(source, SMALL_BYTES)?;
    if part.is_empty() {
        // Nothing is stored of an empty file.
        return Ok(Kept {
            size: 0,
            digest: *hasher.finalize().as_bytes(),
            mac: Vec::new(),
        });
    }
    if part.len() < SMALL_BYTES
        && let Some(written) = nodes.near.put(place, &part)
    {
        let Written { digest, mac } = written?;
        cancel.moved(part.len())?;
        hasher.update(&part);
        return kept_of(place, part.len() as u64, &hasher, (&digest, &mac));
    }
    let Dialled { mut http, mut kept } = nodes.dial(place)?;
    http.set_limit(FLUSH_LIMIT)?;
    loop {
        // One byte ahead tells whether this part is the last one.
        let next = if at == 0 && part.len() < SMALL_BYTES {
            Vec::new()
        } else {
            read_part(source, PART_BYTES)?
        };
        let total = next.is_empty().then(|| at + part.len() as u64);
        let mut answer = std::thread::scope(|scope| {
            if part.len() >= SMALL_BYTES {
                // A large part is hashed while it is sent and the node is at work.
                scope.spawn(|| {
                    hasher.update(&part);
                });
            } else {
                hasher.update(&part);
            }
            http.put_part(&place.path, "", at, &part, total)
        });
        if kept
            && matches!(
                answer,
                Err(ServiceError::Peer { .. } | ServiceError::Protocol { .. })
            )
        {
            // It had ended while it was idle; a part that was taken nevertheless is taken again.
            http = dial(place)?;
            http.set_limit(FLUSH_LIMIT)?;
            answer = http.put_part(&place.path, "", at, &part, total);
        }
        kept = false;
        let stored: Stored = answer?;
        at += part.len() as u64;
        cancel.moved(part.len())?;
        if total.is_none() {
            part = next;
            continue;
        }
        if !stored.done {
            let text = format!("node {}: a part is missing", place.node);
            return Err(ClientError::Protocol(text));
        }
        let whole = kept_of(place, at, &hasher, (&stored.digest, &stored.mac))?;
        nodes.keep(place, http);
        return Ok(whole);
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

/// As many bytes as there are, at most `limit`.
fn read_part(source: &mut impl Read, limit: usize) -> Result<Vec<u8>, ClientError> {
    let mut part = Vec::new();
    let read = source.take(limit as u64).read_to_end(&mut part);
    read.map_err(|e| ClientError::local("(source)", e))?;
    Ok(part)
}
