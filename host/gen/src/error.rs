//! Why traffic could not be sent, received or searched with.

use std::io;

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub enum GenError {
    /// An option, file or combination that means nothing: what, and what would be valid.
    #[error("{0}")]
    BadInput(String),
    /// A system call failed.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: String,
        /// What the system said.
        source: io::Error,
    },
    /// The other side sent something that is not this protocol, or kept silent.
    #[error("not as kuroshio gen speaks: {0}")]
    Protocol(String),
    /// The receiver refused.
    #[error("the receiver refused: {0}")]
    Refused(String),
    /// Stopped from outside.
    #[error("interrupted")]
    Interrupted,
}

impl GenError {
    /// Whether the input was wrong, so that trying again cannot help.
    pub fn is_bad_input(&self) -> bool {
        matches!(self, Self::BadInput(_))
    }

    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}
