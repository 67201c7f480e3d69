//! Why a request is not done, as an HTTP status and a sentence.

use hyper::StatusCode;
use kuroshio_client::{ClientError, v1::Code};
use kuroshio_service::ServiceError;

/// A refusal.
#[derive(Debug, Clone)]
pub struct Refusal {
    /// What the client gets.
    pub status: StatusCode,
    /// What, where, and what would be valid.
    pub text: String,
}

impl Refusal {
    /// A refusal with this status.
    pub fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self {
            status,
            text: text.into(),
        }
    }

    /// Bad input.
    pub fn bad(text: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, text)
    }

    /// Beyond a limit that passes.
    pub fn busy(text: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, text)
    }
}

impl From<ClientError> for Refusal {
    fn from(e: ClientError) -> Self {
        let status = match &e {
            ClientError::Failed(failure) => status_of(failure.code()),
            ClientError::Service(ServiceError::Refused { status: 507, .. }) => {
                StatusCode::INSUFFICIENT_STORAGE
            }
            ClientError::Service(_) => StatusCode::BAD_GATEWAY,
            ClientError::Lost(_) | ClientError::NoReplica(_) => StatusCode::SERVICE_UNAVAILABLE,
            ClientError::Invalid(_) => StatusCode::BAD_REQUEST,
            ClientError::Local { .. }
            | ClientError::Digest(_)
            | ClientError::Protocol(_)
            | ClientError::Cancelled => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, e.to_string())
    }
}

fn status_of(code: Code) -> StatusCode {
    match code {
        Code::NoEntry => StatusCode::NOT_FOUND,
        Code::Exists
        | Code::NotEmpty
        | Code::NotDirectory
        | Code::IsDirectory
        | Code::Stale
        | Code::LastReplica
        | Code::TooManyLinks
        | Code::CrossQuota => StatusCode::CONFLICT,
        Code::Access | Code::Permission => StatusCode::FORBIDDEN,
        Code::Invalid => StatusCode::BAD_REQUEST,
        Code::NameTooLong => StatusCode::URI_TOO_LONG,
        Code::NoSpace | Code::Quota => StatusCode::INSUFFICIENT_STORAGE,
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::Busy | Code::NoNode | Code::NoReplica | Code::Unavailable | Code::Limit => {
            StatusCode::SERVICE_UNAVAILABLE
        }
        Code::TooBig => StatusCode::PAYLOAD_TOO_LARGE,
        Code::Loop => StatusCode::LOOP_DETECTED,
        Code::Unsupported => StatusCode::NOT_IMPLEMENTED,
        Code::NoData => StatusCode::NOT_FOUND,
        Code::Internal | Code::Unspecified => StatusCode::INTERNAL_SERVER_ERROR,
    }
}
