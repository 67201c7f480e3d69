//! Connecting and listening, with a time limit and the options that every stream carries.

use crate::opt::{
    USER_TIMEOUT_MS, set_buffers, set_congestion, set_keepalive, set_mss, set_nodelay, set_user_timeout,
};
use socket2::{Domain, Protocol, Socket, Type};
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

/// Default limit of one attempt to connect, seconds.
const CONNECT_TIMEOUT_S: u64 = 10;
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;

/// How to connect.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// Local address to leave from (chooses the route on a host with several ports).
    pub local: Option<IpAddr>,
    /// Limit of the attempt.
    pub timeout: Duration,
    /// Congestion control by name; `None` keeps the system's.
    pub congestion: Option<String>,
    /// `TCP_USER_TIMEOUT`, milliseconds.
    pub user_timeout_ms: u32,
    /// Socket buffers of both directions, bytes; `None` leaves them to the kernel's autotuning.
    pub buffer_bytes: Option<u32>,
    /// Largest segment of both directions (`TCP_MAXSEG`, options counted), bytes; `None` for the path's.
    pub mss_bytes: Option<u32>,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            local: None,
            timeout: Duration::from_secs(CONNECT_TIMEOUT_S),
            congestion: None,
            user_timeout_ms: USER_TIMEOUT_MS,
            buffer_bytes: None,
            mss_bytes: None,
        }
    }
}

/// A connection that could not be made: where, and why.
#[derive(Debug)]
pub struct ConnectError {
    /// The address asked for.
    pub to: SocketAddr,
    /// What was being done.
    pub step: &'static str,
    /// What the system said.
    pub source: io::Error,
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}: {}", self.step, self.to, self.source)
    }
}

impl std::error::Error for ConnectError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

impl From<ConnectError> for io::Error {
    fn from(e: ConnectError) -> Self {
        io::Error::new(e.source.kind(), e.to_string())
    }
}

/// Connects with `TCP_NODELAY`, keep-alive, the user time-out and the congestion control set before the
/// first segment leaves, so that also the handshake belongs to the chosen control.
///
/// # Errors
/// [`ConnectError`] with the step that failed.
pub fn connect(to: SocketAddr, options: &ConnectOptions) -> Result<TcpStream, ConnectError> {
    let fail = |step: &'static str| move |source: io::Error| ConnectError { to, step, source };
    let socket =
        Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP)).map_err(fail("socket"))?;
    if let Some(name) = &options.congestion {
        set_congestion(&socket, name).map_err(fail("congestion control"))?;
    }
    set_nodelay(&socket, true).map_err(fail("TCP_NODELAY"))?;
    set_keepalive(&socket).map_err(fail("keep-alive"))?;
    set_user_timeout(&socket, options.user_timeout_ms).map_err(fail("TCP_USER_TIMEOUT"))?;
    // Both belong to the handshake: the window's scale and the segment size are agreed in it.
    if let Some(bytes) = options.buffer_bytes {
        set_buffers(&socket, bytes).map_err(fail("socket buffers"))?;
    }
    if let Some(mss) = options.mss_bytes {
        set_mss(&socket, mss).map_err(fail("TCP_MAXSEG"))?;
    }
    if let Some(local) = options.local {
        socket
            .bind(&SocketAddr::new(local, 0).into())
            .map_err(fail("bind to the local address"))?;
    }
    socket
        .connect_timeout(&to.into(), options.timeout)
        .map_err(fail("connect"))?;
    Ok(socket.into())
}

/// Listens on an address (port 0: any free one), with `SO_REUSEADDR`; an IPv6 wildcard takes IPv4 too.
///
/// # Errors
/// What `socket`, `bind` and `listen` give.
pub fn listen(at: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(at), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if at.is_ipv6() && at.ip().is_unspecified() {
        socket.set_only_v6(false)?;
    }
    socket.bind(&at.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}
