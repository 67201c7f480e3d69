//! Why video could not be sent or received.

use std::io;

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub enum NetvError {
    /// An option or file that means nothing: what, and what would be valid.
    #[error("{0}")]
    BadInput(String),
    /// A system call or file failed.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: String,
        /// What the system said.
        source: io::Error,
    },
}

impl NetvError {
    /// Whether the input was wrong, so that trying again cannot help.
    pub fn is_bad_input(&self) -> bool {
        matches!(self, Self::BadInput(_))
    }

    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}
