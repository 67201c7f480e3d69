//! The fingerprint of a service's key: SHA-256 over the DER SubjectPublicKeyInfo (RFC 7469, section
//! 2.4), written as curl's `--pinnedpubkey` does: `sha256//` and standard base64 with padding.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

const PREFIX: &str = "sha256//";

/// SHA-256 of a SubjectPublicKeyInfo.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pin([u8; 32]);

impl Pin {
    /// The pin of a key given as DER SubjectPublicKeyInfo.
    pub fn of_spki(spki_der: &[u8]) -> Self {
        let digest = ring::digest::digest(&ring::digest::SHA256, spki_der);
        let mut pin = [0; 32];
        pin.copy_from_slice(digest.as_ref());
        Self(pin)
    }

    /// The 32 bytes of the fingerprint.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", STANDARD.encode(self.0))
    }
}

impl fmt::Debug for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pin({self})")
    }
}

impl FromStr for Pin {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let valid = "a pin is `sha256//` and 44 characters of base64";
        let encoded = s
            .strip_prefix(PREFIX)
            .ok_or_else(|| format!("no `sha256//` in front: {valid}"))?;
        let bytes = STANDARD.decode(encoded).map_err(|e| format!("{e}: {valid}"))?;
        let pin = bytes
            .try_into()
            .map_err(|b: Vec<u8>| format!("{} bytes instead of 32: {valid}", b.len()))?;
        Ok(Self(pin))
    }
}
