//! What can go wrong with a session and with one file of it.

use serde::{Deserialize, Serialize};
use std::io;

/// A session that ended before its work was done, or could not begin.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// A connection broke; the same command again moves what is missing.
    #[error("{what}: {source}")]
    Connection {
        /// Which connection.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The peer sent something that is not the protocol.
    #[error("the peer does not speak the protocol: {0}")]
    Protocol(String),
    /// The peer refused or gave up, in its own words.
    #[error("the other side ended the transfer: {0}")]
    Peer(String),
    /// The local side cannot begin or go on (destination not writable, source missing).
    #[error("{what}: {source}")]
    Local {
        /// What was done to which path.
        what: String,
        /// What the system said.
        source: io::Error,
    },
    /// An option or path that cannot be.
    #[error("{0}")]
    Input(String),
    /// The caller asked for the end ([`crate::Progress::cancel`]).
    #[error("cancelled")]
    Cancelled,
}

/// Why one file was not moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileErrorKind {
    /// A system call failed at the sender.
    Source,
    /// A system call failed at the receiver.
    Destination,
    /// The source kept changing while it was read.
    Changed,
    /// The digest was wrong too often.
    Digest,
    /// The path leaves the root, or is no valid relative path.
    Escape,
    /// The kind of file is not moved (device, socket, fifo).
    Unsupported,
}

/// One file that was not moved: nothing of it is published, the others went on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileError {
    /// Path relative to the destination, bytes.
    pub path: Vec<u8>,
    /// Why.
    pub kind: FileErrorKind,
    /// System error number, 0 when there is none.
    pub errno: i32,
    /// What happened, for people.
    pub text: String,
}

impl std::fmt::Display for FileError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.path.escape_ascii(), self.text)
    }
}
