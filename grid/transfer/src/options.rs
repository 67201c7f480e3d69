//! What a session is asked to do; the sender's options travel to the receiver in `Hello`.

use crate::limits::{DEFAULT_CHUNK, MAX_CHUNK, MIN_CHUNK};
use serde::{Deserialize, Serialize};

/// How content is checked end to end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum DigestMode {
    /// No digest: sizes only.
    None,
    /// BLAKE3 per chunk at both ends, compared against the destination file before it is published.
    #[default]
    Blake3,
}

/// Which existing destination files count as equal and are skipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SyncMode {
    /// None: everything is sent.
    #[default]
    Off,
    /// Equal size.
    Size,
    /// Equal size and modification time.
    Time,
    /// Equal size and BLAKE3 digest (both sides read the file).
    Digest,
}

/// Where the sources go, with the meaning that `cp -r` gives to its last argument.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Placement {
    /// Into the destination when it is a directory (or there are several sources), else under its name.
    #[default]
    Auto,
    /// Into the destination, which is made when it is missing.
    Into,
    /// As the destination: the one source takes its name.
    Exact,
}

/// Names the state of one transfer at the destination: the same command again finds it.
pub type SessionKey = [u8; 16];

/// Session key of a destination path (as the user wrote it) and whatever names the source: host, path and,
/// where it is known, a file system identity.
pub fn session_key(destination: &[u8], source_identity: &[u8]) -> SessionKey {
    let mut hasher = blake3::Hasher::new_derive_key("kuroshio session key v1");
    hasher.update(&(destination.len() as u64).to_le_bytes());
    hasher.update(destination);
    hasher.update(source_identity);
    let mut key = [0; 16];
    key.copy_from_slice(hasher.finalize().as_bytes().get(..16).unwrap_or(&[0; 16]));
    key
}

/// Options of a session, chosen at the sender's side and told to the receiver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Options {
    /// End-to-end check.
    pub digest: DigestMode,
    /// Which existing files are skipped.
    pub sync: SyncMode,
    /// Where sources go.
    pub placement: Placement,
    /// Say what would be sent; change nothing.
    pub dry_run: bool,
    /// Chunk, bytes: a power of two from [`MIN_CHUNK`] to [`MAX_CHUNK`]; the unit of digest and resume.
    pub chunk: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            digest: DigestMode::default(),
            sync: SyncMode::default(),
            placement: Placement::default(),
            dry_run: false,
            chunk: DEFAULT_CHUNK,
        }
    }
}

impl Options {
    /// Checks what a caller or a peer chose.
    ///
    /// # Errors
    /// A sentence that says what would be valid.
    pub fn check(&self) -> Result<(), String> {
        if self.chunk.is_power_of_two() && (MIN_CHUNK..=MAX_CHUNK).contains(&self.chunk) {
            Ok(())
        } else {
            Err(format!(
                "chunk of {} bytes: a power of two from 64KiB to 1GiB is valid",
                self.chunk
            ))
        }
    }
}
