//! Fetches a fragment from other nodes: one that fails is followed by the next at the byte where it failed.
//! What was fetched before a restart is not fetched again. The spool verifies the whole before it counts.

use std::io;
use std::time::Duration;

use kuroshio_client::{Cancel, v1};
use kuroshio_service::Endpoint;
use kuroshio_store::{Begin, Finish, Holes, Meta, ObjectId, ObjectWriter, StoreError};

use crate::server::Shared;

/// Longest silence of a source before the next one is asked.
const SILENCE: Duration = Duration::from_secs(10);

/// Carries out one pull; without sources, what is here already is verified.
pub fn run(shared: &Shared, id: ObjectId, wanted: &v1::Pull, cancel: &Cancel) -> Result<(), String> {
    let digest = <[u8; 32]>::try_from(wanted.digest.as_slice())
        .map_err(|_| format!("a digest of {} bytes", wanted.digest.len()))?;
    if is_right(shared, id, wanted.size_bytes, digest) {
        return Ok(());
    }
    if wanted.sources.is_empty() {
        return Err("it is not here".into());
    }
    let begin = Begin {
        meta: Meta {
            owner: wanted.owner.clone(),
            name_hint: wanted.name.clone().into_bytes(),
            ..Meta::default()
        },
        size: Some(wanted.size_bytes),
        resume: true,
    };
    let writer = shared.store.begin(id, begin).map_err(|e| e.to_string())?;
    let mut errors = Vec::new();
    for source in &wanted.sources {
        match from_source(shared, &writer, source, cancel) {
            Ok(()) => {}
            Err(_) if cancel.is_stopped() => return Err("called off".into()),
            Err(e) => {
                errors.push(format!("{}: {e}", source.node));
                continue;
            }
        }
        let finish = Finish {
            size: wanted.size_bytes,
            digest: Some(digest),
            holes: Holes::Refuse,
        };
        match writer.finish(finish) {
            Ok(_) => return Ok(()),
            // Written again from the next source, or whole but another: begun anew.
            Err(e @ StoreError::Digest { .. }) => {
                writer.abort();
                return Err(format!("from {}: {e}", source.node));
            }
            Err(e) => errors.push(e.to_string()),
        }
    }
    Err(errors.join("; "))
}

/// Whether what is here is whole and right.
fn is_right(shared: &Shared, id: ObjectId, size: u64, digest: [u8; 32]) -> bool {
    let Ok(reader) = shared.store.read(id) else {
        return false;
    };
    let same = reader.size() == size && reader.digest() == digest;
    let verified = same && matches!(shared.store.verify(id), Ok(None));
    if !verified {
        let _ = shared.store.quarantine(id, "not what the catalog knows");
    }
    verified
}

/// Fetches what is missing from one source.
fn from_source(
    shared: &Shared,
    writer: &ObjectWriter,
    source: &v1::Place,
    cancel: &Cancel,
) -> Result<(), String> {
    let pin = source.pin.parse()?;
    let endpoint = Endpoint::pinned(&source.address, pin, source.token.clone()).map_err(|e| e.to_string())?;
    let mut http = endpoint.dial(None, None).map_err(|e| e.to_string())?;
    http.set_limit(SILENCE).map_err(|e| e.to_string())?;
    for range in writer.missing().iter() {
        let mut at = range.start;
        let fetched = http.get_range(&source.path, range.start, range.end - range.start, &mut |piece| {
            if cancel.is_stopped() || shared.is_stopping() {
                return Err(io::Error::other("called off"));
            }
            writer
                .write_at(at, piece)
                .map_err(|e| io::Error::other(e.to_string()))?;
            at += piece.len() as u64;
            cancel.add(piece.len() as u64);
            Ok(())
        });
        fetched.map_err(|e| e.to_string())?;
    }
    Ok(())
}
