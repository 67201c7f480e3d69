//! A blocking HTTP/1.1 client, just large enough: one connection, one request at a time, answers with a
//! length or in chunks (RFC 9112, section 7.1), and upgrades.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use kuroshio_sock::ConnectOptions;
use kuroshio_transfer::Conn;
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::api::UPGRADE;
use crate::error::ServiceError;
use crate::pin::Pin;
use crate::ticket::{Ticket, check_address};
use crate::{tls, wire};

/// Longest wait for one answer, seconds; a long poll must be shorter.
pub const ANSWER_LIMIT_S: u64 = 30;
/// Longest header of an answer, bytes.
const MAX_HEADER_BYTES: u64 = 64 * 1024;
/// Most header fields of an answer.
const MAX_HEADERS: usize = 64;
/// Longest answer that is read into memory, bytes.
const MAX_ANSWER_BYTES: u64 = 4 * 1024 * 1024;
/// Longest line of a chunked answer, bytes.
const MAX_LINE_BYTES: u64 = 1024 * 1024;
/// Longest size line of a chunk, bytes.
const MAX_CHUNK_LINE_BYTES: u64 = 256;
/// Longest part of a foreign answer that is shown, characters.
const SHOWN_CHARS: usize = 500;

/// How to speak to a service.
#[derive(Clone)]
pub enum Security {
    /// TLS with this pin, and this token.
    Pinned {
        /// The key.
        pin: Pin,
        /// The secret.
        token: String,
    },
    /// Clear text without token.
    Insecure,
}

/// A service as a client sees it.
#[derive(Clone)]
pub struct Endpoint {
    address: String,
    security: Security,
}

impl Endpoint {
    /// The service of a ticket.
    pub fn from_ticket(ticket: &Ticket) -> Self {
        let security = Security::Pinned {
            pin: ticket.pin(),
            token: ticket.token().to_owned(),
        };
        Self {
            address: ticket.address().to_owned(),
            security,
        }
    }

    /// A service by address (`HOST:PORT`), pin and token.
    pub fn pinned(address: &str, pin: Pin, token: String) -> Result<Self, ServiceError> {
        Ok(Self::from_ticket(&Ticket::new(address, pin, token)?))
    }

    /// An insecure service by address (`HOST:PORT`).
    pub fn insecure(address: &str) -> Result<Self, ServiceError> {
        check_address(address).map_err(ServiceError::Invalid)?;
        Ok(Self {
            address: address.to_owned(),
            security: Security::Insecure,
        })
    }

    /// `HOST:PORT`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// How it is spoken to.
    pub fn security(&self) -> &Security {
        &self.security
    }

    /// What names this service in session keys: its pin, or its address when it has none.
    pub fn identity(&self) -> String {
        match &self.security {
            Security::Pinned { pin, .. } => pin.to_string(),
            Security::Insecure => self.address.clone(),
        }
    }

    /// The address to dial for a route: `via` with this service's port when it names none.
    ///
    /// # Errors
    /// [`ServiceError::Invalid`]: no `HOST:PORT`.
    pub fn via_address(&self, via: Option<&str>) -> Result<String, ServiceError> {
        let Some(via) = via else {
            return Ok(self.address.clone());
        };
        let port = self.address.rsplit_once(':').map_or("", |(_, port)| port);
        let with_port = match via.parse::<std::net::IpAddr>() {
            Ok(std::net::IpAddr::V6(v6)) => format!("[{v6}]:{port}"),
            Ok(std::net::IpAddr::V4(v4)) => format!("{v4}:{port}"),
            Err(_) if via.ends_with(']') || !via.contains(':') => format!("{via}:{port}"),
            Err(_) => via.to_owned(),
        };
        check_address(&with_port).map_err(|e| ServiceError::Invalid(format!("route `{via}`: {e}")))?;
        Ok(with_port)
    }

    /// The same service with another token.
    pub fn with_token(&self, token: &str) -> Self {
        let security = match &self.security {
            Security::Pinned { pin, .. } => Security::Pinned {
                pin: *pin,
                token: token.to_owned(),
            },
            Security::Insecure => Security::Insecure,
        };
        Self {
            address: self.address.clone(),
            security,
        }
    }

    /// Connects, with TLS if it is pinned; through `via` in place of the service's address.
    ///
    /// # Errors
    /// The service cannot be reached, or shows another key.
    pub fn dial(&self, via: Option<&str>, congestion: Option<&str>) -> Result<HttpConn, ServiceError> {
        let address = self.via_address(via)?;
        let options = ConnectOptions {
            congestion: congestion.map(str::to_owned),
            ..ConnectOptions::default()
        };
        let mut socket = connect(&address, &options)?;
        let broken = |e| ServiceError::peer(&address, "cannot use the connection", e);
        let peer = socket.peer_addr().map_err(broken)?;
        let limit = Some(Duration::from_secs(ANSWER_LIMIT_S));
        socket.set_read_timeout(limit).map_err(broken)?;
        socket.set_write_timeout(limit).map_err(broken)?;
        let wire = match &self.security {
            Security::Insecure => Wire::Plain(socket),
            Security::Pinned { pin, .. } => {
                let session = handshake(&address, &mut socket, *pin, tls::ALPN_HTTP)?;
                Wire::Tls(Box::new(StreamOwned::new(session, socket)))
            }
        };
        Ok(HttpConn {
            endpoint: self.clone(),
            address,
            peer,
            wire: BufReader::new(wire),
        })
    }
}

/// Connects to the first address of a name that answers.
pub(super) fn connect(address: &str, options: &ConnectOptions) -> Result<TcpStream, ServiceError> {
    let resolved = address
        .to_socket_addrs()
        .map_err(|e| ServiceError::peer(address, "cannot find the host", e))?;
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for candidate in resolved {
        match kuroshio_sock::connect(candidate, options) {
            Ok(socket) => return Ok(socket),
            Err(e) => last = e.into(),
        }
    }
    Err(ServiceError::peer(address, "cannot connect", last))
}

/// Shakes hands for one protocol (ALPN name), within the time limits of the socket.
pub(super) fn handshake(
    address: &str,
    socket: &mut TcpStream,
    pin: Pin,
    protocol: &[u8],
) -> Result<ClientConnection, ServiceError> {
    let (config, verifier) = tls::client_config(pin, protocol)?;
    let name = ServerName::try_from("kuroshio.invalid").map_err(|e| ServiceError::Crypto(e.to_string()))?;
    let mut session = ClientConnection::new(config, name).map_err(|e| ServiceError::Crypto(e.to_string()))?;
    while session.is_handshaking() {
        if let Err(e) = session.complete_io(socket) {
            return Err(match verifier.refused() {
                Some(found) => ServiceError::WrongPin {
                    address: address.to_owned(),
                    pinned: pin,
                    found,
                },
                None => ServiceError::peer(address, "TLS handshake failed (is it a Kuroshio service?)", e),
            });
        }
    }
    Ok(session)
}

/// The bytes of a connection.
pub(super) enum Wire {
    /// Clear text.
    Plain(TcpStream),
    /// TLS.
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Wire {
    fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(tls) => &tls.sock,
        }
    }
}

impl Read for Wire {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.read(buf),
            Self::Tls(tls) => tls.read(buf),
        }
    }
}

impl Write for Wire {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.write(buf),
            Self::Tls(tls) => tls.write(buf),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(socket) => socket.flush(),
            Self::Tls(tls) => tls.flush(),
        }
    }
}

/// How an answer's body is delimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Length {
    Bytes(u64),
    Chunked,
}

/// One connection to a service: one request at a time.
pub struct HttpConn {
    endpoint: Endpoint,
    address: String,
    peer: SocketAddr,
    pub(super) wire: BufReader<Wire>,
}

impl HttpConn {
    /// The address that was reached.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// The next requests are made with another token: for a connection that is kept.
    pub fn use_token(&mut self, token: &str) {
        self.endpoint = self.endpoint.with_token(token);
    }

    /// The TCP socket.
    pub fn socket(&self) -> &TcpStream {
        self.wire.get_ref().socket()
    }

    pub(super) fn broken(&self, what: &'static str, e: io::Error) -> ServiceError {
        let text = match e.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => io::Error::new(
                io::ErrorKind::TimedOut,
                format!("no answer within {ANSWER_LIMIT_S} s"),
            ),
            _ => e,
        };
        ServiceError::peer(&self.address, what, text)
    }

    pub(super) fn foreign(&self, text: impl Into<String>) -> ServiceError {
        ServiceError::Protocol {
            address: self.address.clone(),
            text: text.into(),
        }
    }

    /// The head of a request with a body of `len` bytes; `more` is whole header lines.
    pub(super) fn head(&self, method: &str, path: &str, more: &str, len: u64) -> String {
        let authorization = match self.endpoint.security() {
            Security::Pinned { token, .. } => format!("Authorization: Bearer {token}\r\n"),
            Security::Insecure => String::new(),
        };
        format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\n{authorization}{more}Content-Length: {len}\r\n\r\n",
            self.endpoint.address(),
        )
    }

    fn write_request(
        &mut self,
        method: &str,
        path: &str,
        more: &str,
        body: &[u8],
    ) -> Result<(), ServiceError> {
        let mut request = self.head(method, path, more, body.len() as u64).into_bytes();
        request.extend_from_slice(body);
        let wire = self.wire.get_mut();
        wire.write_all(&request)
            .and_then(|()| wire.flush())
            .map_err(|e| self.broken("cannot send the request", e))
    }

    /// Reads the head of an answer; refusals (status 400 and above) become errors with the service's words.
    pub(super) fn read_head(&mut self) -> Result<(u16, Length), ServiceError> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let left = MAX_HEADER_BYTES.saturating_sub(head.len() as u64);
            let n = (&mut self.wire).take(left).read_until(b'\n', &mut head);
            match n {
                Ok(0) => return Err(self.foreign("the connection ended inside the answer's header")),
                Ok(_) => {}
                Err(e) => return Err(self.broken("no answer", e)),
            }
        }
        let mut fields = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut answer = httparse::Response::new(&mut fields);
        if let Err(e) = answer.parse(&head) {
            return Err(self.foreign(format!("its answer is not HTTP/1.1 ({e})")));
        }
        let status = answer.code.unwrap_or_default();
        let field = |name: &str| {
            let found = answer.headers.iter().find(|h| h.name.eq_ignore_ascii_case(name));
            found
                .and_then(|h| std::str::from_utf8(h.value).ok())
                .map(str::trim)
        };
        let length = match (field("transfer-encoding"), field("content-length")) {
            (Some(coding), _) if coding.eq_ignore_ascii_case("chunked") => Length::Chunked,
            (Some(coding), _) => return Err(self.foreign(format!("unknown transfer coding `{coding}`"))),
            (None, Some(n)) => match n.parse() {
                Ok(n) => Length::Bytes(n),
                Err(_) => return Err(self.foreign("its content-length is not a number")),
            },
            (None, None) => Length::Bytes(0),
        };
        if status < 400 {
            return Ok((status, length));
        }
        let text = match length {
            Length::Bytes(n) => self.read_exact_bytes(n.min(MAX_LINE_BYTES))?,
            Length::Chunked => Vec::new(),
        };
        let text = String::from_utf8_lossy(&text)
            .trim()
            .chars()
            .take(SHOWN_CHARS)
            .collect();
        Err(ServiceError::Refused {
            address: self.address.clone(),
            status,
            text,
        })
    }

    pub(super) fn read_exact_bytes(&mut self, n: u64) -> Result<Vec<u8>, ServiceError> {
        if n > MAX_ANSWER_BYTES {
            return Err(self.foreign(format!("an answer of {n} bytes")));
        }
        let mut bytes = Vec::new();
        match (&mut self.wire).take(n).read_to_end(&mut bytes) {
            Ok(got) if got as u64 == n => Ok(bytes),
            Ok(_) => Err(self.foreign("the connection ended inside an answer")),
            Err(e) => Err(self.broken("no answer", e)),
        }
    }

    /// Asks with a JSON body (or none) and reads a JSON answer.
    pub fn ask<T: DeserializeOwned>(
        &mut self,
        method: &str,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<T, ServiceError> {
        let (_, length) = self.request(method, path, body)?;
        let Length::Bytes(n) = length else {
            return Err(self.foreign("an answer in chunks, where none was due"));
        };
        let bytes = self.read_exact_bytes(n)?;
        serde_json::from_slice(&bytes).map_err(|e| self.foreign(format!("its answer is not as agreed ({e})")))
    }

    /// Asks with a JSON body for an answer without one.
    pub fn tell(&mut self, method: &str, path: &str, body: &impl Serialize) -> Result<(), ServiceError> {
        match self.request(method, path, Some(body))?.1 {
            Length::Bytes(n) => self.read_exact_bytes(n).map(drop),
            Length::Chunked => Err(self.foreign("an answer in chunks, where none was due")),
        }
    }

    /// Asks with a JSON body; every line of the answer goes to `each` as it comes.
    pub fn ask_lines<T: DeserializeOwned>(
        &mut self,
        path: &str,
        body: &impl Serialize,
        mut each: impl FnMut(T) -> Result<(), ServiceError>,
    ) -> Result<(), ServiceError> {
        let (_, length) = self.request("POST", path, Some(body))?;
        if length != Length::Chunked {
            return Err(self.foreign("an answer in one piece, where lines were due"));
        }
        let mut line = Vec::new();
        while let Some(chunk) = self.read_chunk()? {
            for byte in chunk {
                if byte != b'\n' {
                    line.push(byte);
                    continue;
                }
                let parsed = serde_json::from_slice(&line);
                each(parsed.map_err(|e| self.foreign(format!("a line is not as agreed ({e})")))?)?;
                line.clear();
            }
            if line.len() as u64 > MAX_LINE_BYTES {
                return Err(self.foreign("a line without end"));
            }
        }
        Ok(())
    }

    fn read_chunk(&mut self) -> Result<Option<Vec<u8>>, ServiceError> {
        let size = self.read_chunk_line()?;
        let digits = size.split(';').next().unwrap_or_default().trim();
        let n = u64::from_str_radix(digits, 16).map_err(|_| self.foreign("a broken chunk"))?;
        if n == 0 {
            // Trailer fields, then an empty line.
            while !self.read_chunk_line()?.is_empty() {}
            return Ok(None);
        }
        let bytes = self.read_exact_bytes(n)?;
        if !self.read_chunk_line()?.is_empty() {
            return Err(self.foreign("a broken chunk"));
        }
        Ok(Some(bytes))
    }

    fn read_chunk_line(&mut self) -> Result<String, ServiceError> {
        let mut line = Vec::new();
        match (&mut self.wire)
            .take(MAX_CHUNK_LINE_BYTES)
            .read_until(b'\n', &mut line)
        {
            Ok(_) if line.ends_with(b"\n") => Ok(String::from_utf8_lossy(&line).trim_end().to_owned()),
            Ok(_) => Err(self.foreign("the connection ended inside an answer")),
            Err(e) => Err(self.broken("no answer", e)),
        }
    }

    fn request(
        &mut self,
        method: &str,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<(u16, Length), ServiceError> {
        let (more, body) = match body {
            None => ("", Vec::new()),
            Some(body) => {
                let bytes = serde_json::to_vec(body).map_err(|e| ServiceError::Invalid(e.to_string()))?;
                ("Content-Type: application/json\r\n", bytes)
            }
        };
        self.write_request(method, path, more, &body)?;
        let (status, length) = self.read_head()?;
        if !(200..300).contains(&status) {
            return Err(self.foreign(format!("status {status}, where an answer was due")));
        }
        Ok((status, length))
    }

    /// Turns the connection into one of a session's.
    pub fn upgrade(mut self, path: &str) -> Result<Conn, ServiceError> {
        self.write_request(
            "GET",
            path,
            &format!("Connection: Upgrade\r\nUpgrade: {UPGRADE}\r\n"),
            b"",
        )?;
        let (status, _) = self.read_head()?;
        if status != 101 {
            return Err(self.foreign(format!("status {status} instead of an upgrade")));
        }
        let prefix = self.wire.buffer().to_vec();
        let wire = self.wire.into_inner();
        let unlimited = wire
            .socket()
            .set_read_timeout(None)
            .and_then(|()| wire.socket().set_write_timeout(None));
        unlimited.map_err(|e| ServiceError::peer(&self.address, "cannot use the connection", e))?;
        Ok(match wire {
            Wire::Plain(socket) => Conn::plain_with_prefix(socket, prefix),
            Wire::Tls(tls) => wire::client_conn(*tls, prefix),
        })
    }
}
