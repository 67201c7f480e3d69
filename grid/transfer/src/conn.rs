//! One connection, plain TCP or a stream made elsewhere (TLS), with the descriptors that pacing,
//! `TCP_INFO` and zero-copy need.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

/// A byte stream that is not a plain TCP socket, for example TLS over one.
///
/// A session uses each connection in one direction only.
pub trait Stream: Read + Write + Send {
    /// The TCP socket below, for pacing, `TCP_INFO` and shutdown; `None` when there is none.
    fn tcp(&self) -> Option<&TcpStream>;

    /// Ends the writing direction cleanly (TLS: `close_notify`, then the socket's).
    ///
    /// # Errors
    /// What the stream gives.
    fn finish(&mut self) -> io::Result<()>;
}

/// A connection of a session.
pub enum Conn {
    /// Plain TCP: `sendfile` goes here.
    Plain {
        /// The socket, blocking.
        socket: TcpStream,
        /// Bytes that were read from it already and come first.
        prefix: Vec<u8>,
    },
    /// Anything else.
    Other(Box<dyn Stream>),
}

impl fmt::Debug for Conn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain { socket, .. } => write!(f, "Conn::Plain({socket:?})"),
            Self::Other(s) => write!(f, "Conn::Other({:?})", s.tcp()),
        }
    }
}

impl Conn {
    /// A plain TCP connection.
    pub fn plain(socket: TcpStream) -> Self {
        Self::Plain {
            socket,
            prefix: Vec::new(),
        }
    }

    /// A plain TCP connection of which `prefix` was read already (an HTTP server's buffer after an upgrade).
    pub fn plain_with_prefix(socket: TcpStream, prefix: Vec<u8>) -> Self {
        Self::Plain { socket, prefix }
    }

    /// A stream made elsewhere.
    pub fn other(stream: impl Stream + 'static) -> Self {
        Self::Other(Box::new(stream))
    }

    /// The TCP socket below.
    pub fn tcp(&self) -> Option<&TcpStream> {
        match self {
            Self::Plain { socket, .. } => Some(socket),
            Self::Other(s) => s.tcp(),
        }
    }

    /// The descriptor for `sendfile`, when bytes written to it reach the peer as they are.
    pub fn plain_fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Plain { socket, .. } => Some(socket.as_fd()),
            Self::Other(_) => None,
        }
    }

    /// The descriptor for `splice`, when the next bytes from the peer come out of it as they are.
    pub(crate) fn splice_fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Plain { socket, prefix } if prefix.is_empty() => Some(socket.as_fd()),
            Self::Plain { .. } | Self::Other(_) => None,
        }
    }

    /// Ends the writing direction cleanly.
    ///
    /// # Errors
    /// What the stream gives; a peer that is gone already is no error.
    pub fn finish(&mut self) -> io::Result<()> {
        let done = match self {
            Self::Plain { socket, .. } => socket.shutdown(Shutdown::Write),
            Self::Other(s) => s.finish(),
        };
        match done {
            Err(e) if e.kind() == io::ErrorKind::NotConnected => Ok(()),
            other => other,
        }
    }
}

impl Read for Conn {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain { socket, prefix } if prefix.is_empty() => socket.read(buf),
            Self::Plain { prefix, .. } => {
                let n = prefix.len().min(buf.len());
                for (to, from) in buf.iter_mut().zip(prefix.drain(..n)) {
                    *to = from;
                }
                Ok(n)
            }
            Self::Other(s) => s.read(buf),
        }
    }
}

impl Write for Conn {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain { socket, .. } => socket.write(buf),
            Self::Other(s) => s.write(buf),
        }
    }

    fn write_vectored(&mut self, bufs: &[io::IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Plain { socket, .. } => socket.write_vectored(bufs),
            Self::Other(s) => s.write_vectored(bufs),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain { socket, .. } => socket.flush(),
            Self::Other(s) => s.flush(),
        }
    }
}
