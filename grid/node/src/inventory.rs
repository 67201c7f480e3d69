//! Objects that nobody knows: a writer stored them and gave up, or a replica's row went while the node was
//! away. They are removed once no right to write can publish them any more.
//!
//! A right is given before its object is sealed and holds for `grant`; so an object that is older than that
//! and still not in the catalog on this node will never be. Unless the catalog has lost its memory: then nothing
//! goes until the spools were compared (`memory`).

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, SystemTime};

use kuroshio_client::{ClientError, Grid, v1};
use kuroshio_store::{ObjectId, StoreError};

use crate::server::Shared;

/// Objects that are asked about at once.
const PAGE: usize = 1000;
/// Clocks and flushes may take so long beyond a right's time.
const MARGIN: Duration = Duration::from_secs(30);
/// Longest time between two looks; a right's time if that is shorter.
const LOOK_EVERY: Duration = Duration::from_secs(3600);

/// Looks at once and then every hour, until the session is over.
pub fn run(shared: &Shared, grid: &Grid, grant: Duration, over: &Receiver<()>) {
    loop {
        match look(shared, grid, grant) {
            Ok(0) => {}
            Ok(unknown) if shared.memory.is_held() => {
                tracing::warn!(
                    unknown,
                    "objects that the catalog does not know are kept: run `kuroshio fs fsck`"
                );
            }
            Ok(removed) => tracing::info!(removed, "objects that nobody knew are removed"),
            Err(e) => tracing::warn!("inventory: {e}"),
        }
        if over.recv_timeout(LOOK_EVERY.min(grant + MARGIN)) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}

/// How many are removed, or, while the spool is held, known to nobody.
fn look(shared: &Shared, grid: &Grid, grant: Duration) -> Result<u64, String> {
    let mut removed = 0;
    let mut cursor = None;
    loop {
        let (page, next) = shared.store.list(cursor, PAGE).map_err(|e| e.to_string())?;
        let names = page.iter().map(|listed| v1::ObjectName {
            inode: listed.id.inode,
            generation: listed.id.generation.into(),
            fragment: listed.id.fragment,
            ..v1::ObjectName::default()
        });
        let names = names.collect::<Vec<_>>();
        if !names.is_empty() {
            let asked = v1::InventoryRequest {
                objects: names,
                ..v1::InventoryRequest::default()
            };
            let reply = grid.inventory(asked).map_err(|e: ClientError| e.to_string())?;
            for object in reply.unknown {
                // Those that are kept are counted, to be told of.
                let goes = shared.memory.is_held() || remove(shared, &object, grant)?;
                removed += u64::from(goes);
            }
        }
        if next.is_none() || shared.is_stopping() {
            return Ok(removed);
        }
        cursor = next;
    }
}

/// Removes an object that is old enough.
fn remove(shared: &Shared, object: &v1::ObjectName, grant: Duration) -> Result<bool, String> {
    let id: ObjectId = crate::control::object_id(object.inode, object.generation, object.fragment)?;
    let sealed = match shared.store.read(id) {
        Ok(reader) => reader.file().metadata().and_then(|m| m.modified()),
        Err(StoreError::NotFound(_)) => return Ok(false),
        Err(e) => return Err(e.to_string()),
    };
    let age = sealed.map(|at| SystemTime::now().duration_since(at).unwrap_or_default());
    if age.map_err(|e| e.to_string())? < grant + MARGIN {
        return Ok(false);
    }
    match shared.store.delete(id) {
        Ok(()) | Err(StoreError::NotFound(_)) => Ok(true),
        Err(e) => Err(e.to_string()),
    }
}
