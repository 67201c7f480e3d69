//! What can go wrong.

use std::io;
use std::path::PathBuf;

/// Why a tunnel cannot be, or is no longer.
#[derive(Debug, thiserror::Error)]
pub enum LaneError {
    /// A file that cannot be read or written.
    #[error("{path}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A configuration or key that says what cannot be.
    #[error("{0}")]
    Bad(String),
    /// Something of the machine.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
    /// The seal's library refused.
    #[error("handshake: {0}")]
    Noise(#[from] snow::Error),
}

impl LaneError {
    /// Names what was tried.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }

    /// Whether the caller's input is at fault.
    #[must_use]
    pub fn is_bad_input(&self) -> bool {
        matches!(self, Self::Bad(_) | Self::File { .. })
    }
}
