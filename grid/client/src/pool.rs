//! Connections to nodes, kept for a moment: a small file costs no handshake of its own.
//!
//! A node ends a connection that was silent for 10 s; one that was used within [`KEEP`] is taken again. It may have
//! ended all the same (the node was started anew): then the first request on it is made again on a new one.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kuroshio_proto::v1;
use kuroshio_service::{Endpoint, HttpConn};

use crate::error::ClientError;
use crate::near::Near;

/// How long an idle connection is kept.
const KEEP: Duration = Duration::from_secs(4);
/// Idle connections to one node at most.
const MAX_IDLE: usize = 64;

/// Idle connections by the node's key and address.
pub struct Pool {
    idle: Mutex<Idle>,
    /// Nodes of this host.
    pub near: Near,
}

impl Default for Pool {
    fn default() -> Self {
        Self {
            idle: Mutex::default(),
            near: Near::new(true),
        }
    }
}

/// By key and address of the node; each with the time of its last use.
type Idle = HashMap<(String, String), Vec<(HttpConn, Instant)>>;

/// A connection to a node.
pub struct Dialled {
    /// The connection, with the place's right.
    pub http: HttpConn,
    /// Whether it was used before, and so may have ended.
    pub kept: bool,
}

/// Connects to a node.
pub fn dial(place: &v1::Place) -> Result<HttpConn, ClientError> {
    let pin = place
        .pin
        .parse()
        .map_err(|e| ClientError::Protocol(format!("node {}: {e}", place.node)))?;
    let http = Endpoint::pinned(&place.address, pin, place.token.clone())?.dial(None, None)?;
    Ok(http)
}

impl Pool {
    fn idle(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection that is kept, or a new one.
    pub fn dial(&self, place: &v1::Place) -> Result<Dialled, ClientError> {
        let kept = {
            let mut idle = self.idle();
            let all = idle.get_mut(&(place.pin.clone(), place.address.clone()));
            // The one that was used last: the others may grow old.
            all.and_then(Vec::pop).filter(|(_, since)| since.elapsed() < KEEP)
        };
        if let Some((mut http, _)) = kept {
            http.use_token(&place.token);
            return Ok(Dialled { http, kept: true });
        }
        Ok(Dialled {
            http: dial(place)?,
            kept: false,
        })
    }

    /// Keeps a connection whose last answer was read whole.
    pub fn keep(&self, place: &v1::Place, http: HttpConn) {
        let mut idle = self.idle();
        let all = idle
            .entry((place.pin.clone(), place.address.clone()))
            .or_default();
        all.retain(|(_, since)| since.elapsed() < KEEP);
        if all.len() < MAX_IDLE {
            all.push((http, Instant::now()));
        }
    }
}
