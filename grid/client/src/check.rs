//! Every replica of a file read and compared with what the catalog knows.

use kuroshio_proto::v1;

use crate::content::{Cancel, SILENCE, hex};
use crate::error::ClientError;
use crate::grid::Grid;
use crate::pool::dial;

/// What one replica is.
#[derive(Debug, Clone)]
pub struct CheckedReplica {
    /// The fragment's number.
    pub fragment: u32,
    /// The node.
    pub node: String,
    /// Its state in the catalog.
    pub state: String,
    /// Payload bytes that were read.
    pub bytes: u64,
    /// Why it is not right; `None` when it is.
    pub problem: Option<String>,
    /// Whether the node could be asked at all.
    pub reached: bool,
}

impl Grid {
    /// Reads each valid replica of `path` whole. A node that cannot be reached is told as that, not as wrong.
    ///
    /// # Errors
    /// See [`ClientError`]; what is wrong with a replica is no error.
    pub fn check_replicas(&self, path: &[u8], cancel: &Cancel) -> Result<Vec<CheckedReplica>, ClientError> {
        let grant = self.open(path)?;
        let mut all = Vec::new();
        for fragment in &grant.fragments {
            for place in &fragment.places {
                match check(fragment, place, cancel) {
                    Ok(checked) => all.push(checked),
                    Err(e) => {
                        self.close(&grant);
                        return Err(e);
                    }
                }
            }
        }
        self.close(&grant);
        Ok(all)
    }
}

fn check(fragment: &v1::Fragment, place: &v1::Place, cancel: &Cancel) -> Result<CheckedReplica, ClientError> {
    let mut checked = CheckedReplica {
        fragment: fragment.index,
        node: place.node.clone(),
        state: place.state.clone(),
        bytes: 0,
        problem: None,
        reached: false,
    };
    let mut http = match dial(place) {
        Ok(http) => http,
        Err(e) => {
            checked.problem = Some(e.to_string());
            return Ok(checked);
        }
    };
    http.set_limit(SILENCE)?;
    checked.reached = true;
    let mut hasher = blake3::Hasher::new();
    let mut bytes = 0;
    let read = http.get_range(&place.path, 0, fragment.size_bytes, &mut |piece| {
        hasher.update(piece);
        bytes += piece.len() as u64;
        cancel.add(piece.len() as u64);
        if cancel.is_stopped() {
            return Err(std::io::Error::other("stopped"));
        }
        Ok(())
    });
    if cancel.is_stopped() {
        return Err(ClientError::Cancelled);
    }
    checked.bytes = bytes;
    let digest = hasher.finalize();
    checked.problem = match read {
        Err(e) => {
            checked.reached = !matches!(e, kuroshio_service::ServiceError::Peer { .. });
            Some(e.to_string())
        }
        Ok(()) if digest.as_bytes().as_slice() != fragment.digest => Some(format!(
            "its digest is {digest}, the catalog's {}",
            hex(&fragment.digest)
        )),
        Ok(()) => None,
    };
    Ok(checked)
}
