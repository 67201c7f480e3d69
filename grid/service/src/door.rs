//! The front door for other services of a grid: the same accept loop, TLS and limits, another speaker.

use std::net::SocketAddr;
use std::sync::Arc;

use hyper::header::{self, HeaderMap};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

pub use crate::files::{Content, Pieces, ReadAt, Version, send, send_bytes, send_from};
pub use crate::front::{Door, Handler, Speaker, speak_http};
pub use crate::tls::ALPN_HTTP;

use crate::error::ServiceError;
use crate::identity::Identity;
use crate::token::{Claims, TokenError, Verifier};
use crate::{front, tls};

/// Listens at `address` (port 0 is any free one) and serves with TLS in tasks of the current runtime until
/// `stop` says so. `protocols` are the ALPN names that `speaker` understands. Gives the address with its port.
///
/// # Errors
/// The address cannot be listened on; TLS cannot be set up; called outside a runtime's context.
pub fn open<S: Speaker>(
    identity: &Identity,
    protocols: &[&[u8]],
    address: SocketAddr,
    speaker: Arc<S>,
    stop: watch::Receiver<bool>,
) -> Result<SocketAddr, ServiceError> {
    let cannot = |e| ServiceError::peer(address, "cannot listen", e);
    let runtime = tokio::runtime::Handle::try_current().map_err(|e| ServiceError::Crypto(e.to_string()))?;
    let acceptor = TlsAcceptor::from(tls::server_config(identity, protocols)?);
    let listener = kuroshio_sock::listen(address).map_err(cannot)?;
    listener.set_nonblocking(true).map_err(cannot)?;
    let bound = listener.local_addr().map_err(cannot)?;
    let listener = TcpListener::from_std(listener).map_err(cannot)?;
    runtime.spawn(front::accept_loop(speaker, listener, Some(acceptor), stop));
    Ok(bound)
}

/// The claims of the `Authorization: Bearer` token of a request.
///
/// # Errors
/// There is none, or it is not good.
pub fn bearer(verifier: &Verifier, headers: &HeaderMap) -> Result<Claims, TokenError> {
    let value = headers.get(header::AUTHORIZATION).and_then(|v| v.to_str().ok());
    let (scheme, token) = value.and_then(|v| v.split_once(' ')).ok_or(TokenError::Missing)?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Err(TokenError::Missing);
    }
    verifier.check(token.trim())
}
