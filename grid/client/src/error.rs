//! What can go wrong between a client and a grid.

use std::io;
use std::path::PathBuf;

use kuroshio_proto::v1::{Code, Failure};
use kuroshio_service::ServiceError;

/// An error of the client library.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// A service could not be reached or refused (bad ticket, wrong pin).
    #[error(transparent)]
    Service(#[from] ServiceError),
    /// The metadata service answered with a failure.
    #[error("{0}")]
    Failed(Failure),
    /// The connection was lost after the request was sent: whether it was done is not known.
    #[error(
        "the connection to the metadata service was lost ({0}); whether the change was made is not known"
    )]
    Lost(String),
    /// A local file.
    #[error("{}: {source}", path.display())]
    Local {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// No replica could be read.
    #[error("{0}")]
    NoReplica(String),
    /// Content is not what its digest says.
    #[error("{0}")]
    Digest(String),
    /// The answer is not one to this request.
    #[error("the metadata service answered with something else than was asked for: {0}")]
    Protocol(String),
    /// Input that is never sent.
    #[error("{0}")]
    Invalid(String),
    /// The caller stopped it.
    #[error("stopped")]
    Cancelled,
}

impl ClientError {
    /// The metadata service's code, if it answered with a failure.
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Failed(failure) => Some(failure.code()),
            _ => None,
        }
    }

    /// Whether the input was at fault (exit code 2), not the work (exit code 1).
    pub fn is_bad_input(&self) -> bool {
        match self {
            Self::Invalid(_) => true,
            Self::Service(e) => e.is_bad_input(),
            Self::Failed(failure) => matches!(failure.code(), Code::Invalid | Code::NameTooLong),
            _ => false,
        }
    }

    pub(crate) fn local(path: impl Into<PathBuf>, source: io::Error) -> Self {
        Self::Local {
            path: path.into(),
            source,
        }
    }
}
