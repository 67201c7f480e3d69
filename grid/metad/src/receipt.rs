//! The keys of receipts (see `kuroshio_proto::receipt`): a node's key is `HMAC-SHA256(master, name of the
//! node)`; the master never leaves the service. So a client cannot publish content that no node has, and no
//! state is needed to check it.

use kuroshio_proto::receipt::{self, RECEIPT_KEY_BYTES};
use ring::hmac;

use crate::server::MetadError;
use kuroshio_service::private;
use std::path::Path;

/// Name of the secret's file.
pub const FILE: &str = "receipts.key";

/// The secret from which the nodes' keys are made.
pub struct Master(hmac::Key);

impl Master {
    /// Reads the secret in `dir`, or makes one there.
    pub fn open(dir: &Path) -> Result<Self, MetadError> {
        let path = dir.join(FILE);
        if let Some(bytes) = private::read(&path, 64)? {
            if bytes.len() == RECEIPT_KEY_BYTES {
                return Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, &bytes)));
            }
            return Err(MetadError::Invalid(format!(
                "{}: {} bytes instead of {RECEIPT_KEY_BYTES}",
                path.display(),
                bytes.len()
            )));
        }
        let mut bytes = [0; RECEIPT_KEY_BYTES];
        let random = ring::rand::SystemRandom::new();
        ring::rand::SecureRandom::fill(&random, &mut bytes)
            .map_err(|_| MetadError::Invalid("the system gives no random bytes".into()))?;
        private::write(&path, &bytes)?;
        Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, &bytes)))
    }

    /// The key of snapshots of the catalog. No node has this name.
    pub fn snapshot_key(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &self.node_key("/snapshot"))
    }

    /// The key of a node.
    pub fn node_key(&self, node: &str) -> Vec<u8> {
        hmac::sign(&self.0, node.as_bytes()).as_ref().to_vec()
    }

    /// Whether a receipt is `node`'s for this object; compared in constant time.
    pub fn check(&self, node: &str, object: (u64, u64, u32), size: u64, digest: &[u8], mac: &[u8]) -> bool {
        receipt::check(&self.node_key(node), object, size, digest, mac)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use receipt::mac;

    #[test]
    fn a_receipt_is_for_one_object_of_one_node() {
        let dir = tempfile::tempdir().expect("temp dir");
        let master = Master::open(dir.path()).expect("made");
        let good = mac(&master.node_key("n1"), (1, 2, 3), 4, &[5; 32]);
        let again = Master::open(dir.path()).expect("read");
        assert!(again.check("n1", (1, 2, 3), 4, &[5; 32], &good));
        assert!(!again.check("n2", (1, 2, 3), 4, &[5; 32], &good));
        assert!(!again.check("n1", (1, 2, 4), 4, &[5; 32], &good));
        assert!(!again.check("n1", (1, 2, 3), 40, &[5; 32], &good));
        assert!(!again.check("n1", (1, 2, 3), 4, &[6; 32], &good));
        assert!(!again.check("n1", (1, 2, 3), 4, &[5; 32], b""));
    }
}
