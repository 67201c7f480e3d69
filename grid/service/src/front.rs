//! The front door: accepts, does TLS, speaks HTTP/1.1, hands requests on.
//!
//! A peer that sends nothing, garbage, or one byte a minute holds one connection for at most
//! [`HANDSHAKE_LIMIT_S`] and [`HEADER_LIMIT_S`]; a peer that stops acknowledging, for the user time-out
//! of the socket.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::Upgraded;
use hyper_util::rt::{TokioIo, TokioTimer};
use kuroshio_transfer::Conn;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::body::Answer;
use crate::paced::PacedSocket;
use crate::wire;

/// Connections at the front door at once (upgraded ones not counted).
pub const MAX_CONNECTIONS: usize = 1024;
/// Longest TLS handshake, seconds.
pub const HANDSHAKE_LIMIT_S: u64 = 10;
/// Longest wait for a complete request header, also between requests, seconds.
pub const HEADER_LIMIT_S: u64 = 10;
/// Largest request header, bytes.
pub const MAX_HEADER_BYTES: usize = 64 * 1024;
/// Most header fields of a request.
pub const MAX_HEADERS: usize = 64;
/// Wait after `accept` failed (no descriptors left), ms.
const ACCEPT_PAUSE_MS: u64 = 100;

/// A connection at the front door.
pub enum Door {
    /// Insecure mode.
    Plain(TcpStream),
    /// TLS.
    Tls(Box<TlsStream<TcpStream>>),
}

impl Door {
    /// The protocol that the TLS handshake agreed on, if one was.
    pub fn alpn(&self) -> Option<&[u8]> {
        match self {
            Self::Plain(_) => None,
            Self::Tls(tls) => tls.get_ref().1.alpn_protocol(),
        }
    }

    /// A handle on the socket below.
    fn socket(&self) -> io::Result<OwnedFd> {
        match self {
            Self::Plain(tcp) => tcp.as_fd().try_clone_to_owned(),
            Self::Tls(tls) => tls.get_ref().0.as_fd().try_clone_to_owned(),
        }
    }

    /// Takes the connection out of the asynchronous world, with `prefix` read already.
    fn into_conn(self, prefix: Vec<u8>) -> io::Result<Conn> {
        let blocking = |tcp: TcpStream| -> io::Result<std::net::TcpStream> {
            let socket = tcp.into_std()?;
            socket.set_nonblocking(false)?;
            Ok(socket)
        };
        match self {
            Self::Plain(tcp) => Ok(Conn::plain_with_prefix(blocking(tcp)?, prefix)),
            Self::Tls(tls) => {
                let (tcp, session) = tls.into_inner();
                Ok(wire::server_conn(session, blocking(tcp)?, prefix))
            }
        }
    }
}

/// The connection below an upgraded request.
pub fn upgraded_conn(upgraded: Upgraded) -> io::Result<Conn> {
    match upgraded.downcast::<TokioIo<Door>>() {
        Ok(parts) => parts.io.into_inner().into_conn(parts.read_buf.to_vec()),
        Err(_) => Err(io::Error::other("the upgraded connection is of another kind")),
    }
}

impl AsyncRead for Door {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(s) => Pin::new(s).poll_read(cx, buf),
            Self::Tls(s) => Pin::new(s).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Door {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(s) => Pin::new(s).poll_write(cx, buf),
            Self::Tls(s) => Pin::new(s).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(s) => Pin::new(s).poll_flush(cx),
            Self::Tls(s) => Pin::new(s).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(s) => Pin::new(s).poll_shutdown(cx),
            Self::Tls(s) => Pin::new(s).poll_shutdown(cx),
        }
    }
}

/// What speaks on a connection once its handshake is done.
pub trait Speaker: Send + Sync + 'static {
    /// Speaks until the connection ends or `stop` says so; refusals are logged here.
    fn speak(
        self: Arc<Self>,
        door: Door,
        peer: SocketAddr,
        stop: watch::Receiver<bool>,
    ) -> impl Future<Output = ()> + Send;
}

/// What answers HTTP requests.
pub trait Handler: Send + Sync + 'static {
    /// The answer to one request.
    fn answer(
        self: Arc<Self>,
        peer: SocketAddr,
        request: Request<Incoming>,
    ) -> impl Future<Output = Answer> + Send;
}

/// Accepts until `stop` says so.
pub async fn accept_loop<S: Speaker>(
    inner: Arc<S>,
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    mut stop: watch::Receiver<bool>,
) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else {
            return;
        };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.changed() => return,
        };
        match accepted {
            Ok((tcp, peer)) => {
                let (inner, tls, stop) = (inner.clone(), tls.clone(), stop.clone());
                tokio::spawn(async move {
                    serve(inner, tcp, peer, tls, stop).await;
                    drop(place);
                });
            }
            Err(e) => {
                tracing::warn!("cannot accept: {e}");
                tokio::time::sleep(Duration::from_millis(ACCEPT_PAUSE_MS)).await;
            }
        }
    }
}

async fn serve<S: Speaker>(
    inner: Arc<S>,
    tcp: TcpStream,
    peer: SocketAddr,
    tls: Option<TlsAcceptor>,
    stop: watch::Receiver<bool>,
) {
    let options = kuroshio_sock::set_nodelay(&tcp, true)
        .and_then(|()| kuroshio_sock::set_keepalive(&tcp))
        .and_then(|()| kuroshio_sock::set_user_timeout(&tcp, kuroshio_sock::USER_TIMEOUT_MS));
    if let Err(e) = options {
        tracing::warn!(%peer, "refused: cannot set socket options: {e}");
        return;
    }
    let door = match tls {
        None => Door::Plain(tcp),
        Some(acceptor) => {
            let limit = Duration::from_secs(HANDSHAKE_LIMIT_S);
            match tokio::time::timeout(limit, acceptor.accept(tcp)).await {
                Ok(Ok(stream)) => Door::Tls(Box::new(stream)),
                Ok(Err(e)) => {
                    tracing::warn!(%peer, "refused: TLS handshake: {e}");
                    return;
                }
                Err(_) => {
                    tracing::warn!(%peer, "refused: no TLS handshake within {HANDSHAKE_LIMIT_S} s");
                    return;
                }
            }
        }
    };
    inner.speak(door, peer, stop).await;
}

/// Speaks HTTP/1.1 on a connection.
pub async fn speak_http<H: Handler>(
    handler: Arc<H>,
    door: Door,
    peer: SocketAddr,
    mut stop: watch::Receiver<bool>,
) {
    let socket = match door.socket() {
        Ok(socket) => PacedSocket::new(socket),
        Err(e) => {
            tracing::warn!(%peer, "refused: {e}");
            return;
        }
    };
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(socket.clone());
        let handler = handler.clone();
        async move { Ok::<_, std::convert::Infallible>(handler.answer(peer, request).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_secs(HEADER_LIMIT_S))
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_HEADER_BYTES)
        .serve_connection(TokioIo::new(door), service)
        .with_upgrades();
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        _ = stop.changed() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(e) = ended {
        let what = if e.is_parse() {
            "refused: not HTTP/1.1"
        } else {
            "connection ended"
        };
        tracing::warn!(%peer, "{what}: {e}");
    }
}
