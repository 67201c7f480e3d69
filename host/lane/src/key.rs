//! Keys: an X25519 pair each; the private one in a file of its owner alone, the public one as text.
//!
//! A key file is one line, the 32 bytes in base64. The public key is what the other end's configuration names as `peer`.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use base64::{Engine, engine::general_purpose::STANDARD};

use crate::{LaneError, seal};

/// Bytes of a key.
pub const KEY_BYTES: usize = 32;
/// Longest key file, bytes.
pub const KEY_FILE_MAX: u64 = 256;

/// A public key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublicKey(pub [u8; KEY_BYTES]);

impl std::fmt::Display for PublicKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&STANDARD.encode(self.0))
    }
}

impl std::str::FromStr for PublicKey {
    type Err = LaneError;

    fn from_str(text: &str) -> Result<Self, LaneError> {
        decode(text).map(Self).ok_or_else(|| {
            LaneError::Bad(format!(
                "{text:?} is not a public key: `kuroshio lane key` prints one, 44 characters of base64"
            ))
        })
    }
}

/// A private key with its public one. It is not printed.
#[derive(Clone)]
pub struct PrivateKey {
    pub(crate) secret: [u8; KEY_BYTES],
    /// The public one.
    pub public: PublicKey,
}

impl std::fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PrivateKey of {}", self.public)
    }
}

fn decode(text: &str) -> Option<[u8; KEY_BYTES]> {
    STANDARD.decode(text.trim()).ok()?.try_into().ok()
}

/// Makes a pair and writes the private key to a new file that only its owner may read.
///
/// # Errors
/// When the file is there already or cannot be written; nothing is changed then.
pub fn generate(path: &Path) -> Result<PublicKey, LaneError> {
    let at = |source| LaneError::File {
        path: path.to_owned(),
        source,
    };
    let (secret, public) = seal::generate_pair()?;
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(at)?;
    writeln!(file, "{}", STANDARD.encode(secret)).map_err(at)?;
    file.sync_all().map_err(at)?;
    Ok(PublicKey(public))
}

/// Reads a private key.
///
/// # Errors
/// When there is no such file, others may read it, or it holds no key.
pub fn load(path: &Path) -> Result<PrivateKey, LaneError> {
    let at = |source| LaneError::File {
        path: path.to_owned(),
        source,
    };
    let about = fs::metadata(path).map_err(at)?;
    if about.mode() & 0o077 != 0 {
        let text = format!(
            "a private key that others may read (mode {:o}): chmod 600",
            about.mode() & 0o777
        );
        return Err(at(io::Error::new(io::ErrorKind::PermissionDenied, text)));
    }
    let bad = || {
        at(io::Error::new(
            io::ErrorKind::InvalidData,
            "no private key of `kuroshio lane key`",
        ))
    };
    if about.len() > KEY_FILE_MAX {
        return Err(bad());
    }
    let secret = decode(&fs::read_to_string(path).map_err(at)?).ok_or_else(bad)?;
    let public = PublicKey(seal::public_of(&secret)?);
    Ok(PrivateKey { secret, public })
}
