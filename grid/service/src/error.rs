//! What can go wrong in the service and its client, in words a person can act on.

use std::io;
use std::path::PathBuf;

use crate::pin::Pin;
use crate::ticket::TicketError;
use crate::token::TokenError;

/// An error of the data service or of its client.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// Input was wrong; nothing was started. Says what, where, and what would be valid.
    #[error("{0}")]
    Invalid(String),
    /// A file or folder of ours could not be used.
    #[error("{what} {}: {source}", path.display())]
    File {
        /// What was tried.
        what: &'static str,
        /// Which file.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// A ticket could not be read.
    #[error(transparent)]
    Ticket(#[from] TicketError),
    /// A token could not be made or was refused.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The peer's key is not the one that was pinned.
    #[error(
        "{address}: the service's key is {found}, but the pinned key is {pinned}: another service answers \
         there, or its state was made anew; if that is right, give its ticket to `kuroshio trust add`"
    )]
    WrongPin {
        /// Who was dialled.
        address: String,
        /// The pin from the ticket.
        pinned: Pin,
        /// The pin of the key that the peer showed.
        found: Pin,
    },
    /// The peer could not be reached, or the connection broke.
    #[error("{address}: {what}: {source}")]
    Peer {
        /// Who was dialled.
        address: String,
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// The service answered with a refusal.
    #[error("{address}: the service refused ({status}): {text}")]
    Refused {
        /// Who was dialled.
        address: String,
        /// HTTP status.
        status: u16,
        /// The service's own words.
        text: String,
    },
    /// The peer does not speak this protocol.
    #[error("{address}: not a Kuroshio service: {text}")]
    Protocol {
        /// Who was dialled.
        address: String,
        /// What it sent.
        text: String,
    },
    /// The transfer itself failed.
    #[error("{0}")]
    Transfer(String),
    /// Keys or TLS could not be set up.
    #[error("{0}")]
    Crypto(String),
}

impl ServiceError {
    pub(crate) fn file(what: &'static str, path: impl Into<PathBuf>, source: io::Error) -> Self {
        Self::File {
            what,
            path: path.into(),
            source,
        }
    }

    pub(crate) fn peer(address: impl ToString, what: &'static str, source: io::Error) -> Self {
        Self::Peer {
            address: address.to_string(),
            what,
            source,
        }
    }

    /// Whether the input was at fault (exit code 2), not the work (exit code 1).
    pub fn is_bad_input(&self) -> bool {
        matches!(
            self,
            Self::Invalid(_)
                | Self::Ticket(_)
                | Self::Refused {
                    status: 400 | 404,
                    ..
                }
        )
    }
}
