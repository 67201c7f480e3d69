//! Content by HTTP: a range of it into a sink, or a part of it from a buffer.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use rustls::ClientConnection;
use rustls::pki_types::ServerName;
use serde::de::DeserializeOwned;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::http::{self, HttpConn, Length};
use crate::error::ServiceError;
use crate::front::HANDSHAKE_LIMIT_S;
use crate::pin::Pin;
use crate::ticket::check_address;
use crate::tls;

/// Bytes that are read at a time.
const PIECE_BYTES: usize = 256 * 1024;
/// A body up to this size goes with its header in one write.
const TOGETHER_BYTES: usize = 64 * 1024;

impl HttpConn {
    /// Limits every read and write on this connection, in place of the 30 s of an answer.
    ///
    /// # Errors
    /// The socket refuses it (a limit of zero).
    pub fn set_limit(&self, limit: Duration) -> Result<(), ServiceError> {
        let socket = self.socket();
        let set = socket
            .set_read_timeout(Some(limit))
            .and_then(|()| socket.set_write_timeout(Some(limit)));
        set.map_err(|e| self.broken("cannot use the connection", e))
    }

    /// Fetches `len` bytes from `start` of `path` (percent-encoded); each piece goes to `sink` as it comes.
    ///
    /// # Errors
    /// A refusal, a broken connection, fewer bytes than asked for, and what `sink` gives
    /// ([`ServiceError::Transfer`]). What `sink` has taken until then is right.
    pub fn get_range(
        &mut self,
        path: &str,
        start: u64,
        len: u64,
        sink: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<(), ServiceError> {
        if len == 0 {
            return Ok(());
        }
        self.ask_range(path, start, len, "")?;
        self.take_range(len, sink)
    }

    /// Asks for a range without waiting for it: its bytes come after those of all ranges asked for before. `more` is whole
    /// header lines. `len` is above 0.
    ///
    /// # Errors
    /// A broken connection.
    pub fn ask_range(&mut self, path: &str, start: u64, len: u64, more: &str) -> Result<(), ServiceError> {
        let end = start.saturating_add(len.saturating_sub(1));
        let head = self.head("GET", path, &format!("Range: bytes={start}-{end}\r\n{more}"), 0);
        self.send(head.as_bytes())
    }

    /// Takes the answer to the oldest [`Self::ask_range`] that was not taken.
    ///
    /// # Errors
    /// As [`Self::get_range`].
    pub fn take_range(
        &mut self,
        len: u64,
        sink: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<(), ServiceError> {
        let (status, length) = self.read_head()?;
        if status != 206 || length != Length::Bytes(len) {
            return Err(self.foreign(format!(
                "status {status} with {length:?}, where a range of {len} bytes was due"
            )));
        }
        let mut piece = vec![0; PIECE_BYTES.min(usize::try_from(len).unwrap_or(PIECE_BYTES))];
        let mut left = len;
        while left > 0 {
            let want = piece.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let into = piece.get_mut(..want).unwrap_or_default();
            let got = match self.wire.read(into) {
                Ok(0) => return Err(self.foreign("the connection ended inside the content")),
                Ok(got) => got,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(self.broken("the content broke off", e)),
            };
            sink(into.get(..got).unwrap_or_default()).map_err(|e| ServiceError::Transfer(e.to_string()))?;
            left -= got as u64;
        }
        Ok(())
    }

    /// Sends `bytes` as the content of `path` from byte `start` on, of `total` bytes if that is known;
    /// a JSON answer.
    ///
    /// # Errors
    /// A refusal, a broken connection, another answer than agreed.
    pub fn put_part<T: DeserializeOwned>(
        &mut self,
        path: &str,
        more: &str,
        start: u64,
        bytes: &[u8],
        total: Option<u64>,
    ) -> Result<T, ServiceError> {
        let total = total.map_or_else(|| "*".to_owned(), |t| t.to_string());
        let range = match bytes.len() as u64 {
            0 => String::new(),
            n => format!("Content-Range: bytes {start}-{}/{total}\r\n", start + n - 1),
        };
        let head = self.head("PUT", path, &format!("{range}{more}"), bytes.len() as u64);
        if bytes.len() <= TOGETHER_BYTES {
            // One packet, one waking of the service.
            self.send(&[head.as_bytes(), bytes].concat())?;
        } else {
            self.send(head.as_bytes())?;
            self.send(bytes)?;
        }
        let (status, length) = self.read_head()?;
        let (true, Length::Bytes(n)) = ((200..300).contains(&status), length) else {
            return Err(self.foreign(format!(
                "status {status} with {length:?}, where an answer was due"
            )));
        };
        let answer = self.read_exact_bytes(n)?;
        serde_json::from_slice(&answer)
            .map_err(|e| self.foreign(format!("its answer is not as agreed ({e})")))
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), ServiceError> {
        let wire = self.wire.get_mut();
        wire.write_all(bytes)
            .and_then(|()| wire.flush())
            .map_err(|e| self.broken("cannot send the request", e))
    }
}

/// Dials a service with TLS and one protocol (ALPN name), for a client whose threads wait for it themselves. The socket has
/// no time limits for reading and writing afterwards.
///
/// # Errors
/// The service cannot be reached, shows another key, or does not speak the protocol.
pub fn dial_tls_blocking(
    address: &str,
    pin: Pin,
    protocol: &[u8],
) -> Result<(TcpStream, ClientConnection), ServiceError> {
    check_address(address).map_err(ServiceError::Invalid)?;
    let mut socket = http::connect(address, &Default::default())?;
    let limit = |socket: &TcpStream, limit: Option<Duration>| {
        let set = socket
            .set_read_timeout(limit)
            .and_then(|()| socket.set_write_timeout(limit));
        set.map_err(|e| ServiceError::peer(address, "cannot use the connection", e))
    };
    limit(&socket, Some(Duration::from_secs(HANDSHAKE_LIMIT_S)))?;
    let session = http::handshake(address, &mut socket, pin, protocol)?;
    if session.alpn_protocol() != Some(protocol) {
        return Err(ServiceError::peer(
            address,
            "TLS handshake failed (is it a Kuroshio service?)",
            io::Error::other("it does not speak this protocol"),
        ));
    }
    limit(&socket, None)?;
    Ok((socket, session))
}

/// Dials a service with TLS and one protocol (ALPN name), for an asynchronous client.
///
/// # Errors
/// The service cannot be reached, shows another key, or does not speak the protocol.
pub async fn dial_tls(
    address: &str,
    pin: Pin,
    protocol: &[u8],
) -> Result<TlsStream<tokio::net::TcpStream>, ServiceError> {
    check_address(address).map_err(ServiceError::Invalid)?;
    let name = address.to_owned();
    let socket = tokio::task::spawn_blocking(move || http::connect(&name, &Default::default()))
        .await
        .map_err(|e| ServiceError::Crypto(e.to_string()))??;
    let unusable = |e| ServiceError::peer(address, "cannot use the connection", e);
    socket.set_nonblocking(true).map_err(unusable)?;
    let socket = tokio::net::TcpStream::from_std(socket).map_err(unusable)?;
    let (config, verifier) = tls::client_config(pin, protocol)?;
    let name = ServerName::try_from("kuroshio.invalid").map_err(|e| ServiceError::Crypto(e.to_string()))?;
    let limit = Duration::from_secs(HANDSHAKE_LIMIT_S);
    let shaken = tokio::time::timeout(limit, TlsConnector::from(config).connect(name, socket)).await;
    let failed = match shaken {
        Ok(Ok(stream)) if stream.get_ref().1.alpn_protocol() == Some(protocol) => return Ok(stream),
        Ok(Ok(_)) => io::Error::other("it does not speak this protocol"),
        Ok(Err(e)) => e,
        Err(_) => io::Error::new(io::ErrorKind::TimedOut, "no TLS handshake in time"),
    };
    Err(match verifier.refused() {
        Some(found) => ServiceError::WrongPin {
            address: address.to_owned(),
            pinned: pin,
            found,
        },
        None => ServiceError::peer(
            address,
            "TLS handshake failed (is it a Kuroshio service?)",
            failed,
        ),
    })
}
