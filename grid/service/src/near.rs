//! A data service and a client on one host: files are handed over instead of copied through TLS.
//!
//! ```text
//!   client ──{token, path, read}──────────────────────> node        abstract Unix socket of the node's pin
//!          <──{size} + descriptor of the object's file──
//!   client ──{token, path, part} + descriptor─────────> node        the node copies
//!          <──{}─────────────────────────────────────────
//!          ──{token, path, last part} + descriptor────>             the node copies, verifies, flushes
//!          <──{digest, receipt}──────────────────────────
//! ```
//!
//! Each message is a length (4 bytes, little endian) and so much JSON, with one descriptor at most. Messages go one
//! way at a time. The same tokens are needed as through TLS. A name in the abstract namespace is anybody's, so a
//! client speaks only to a process of root or of its own user; and nobody is reached from another network
//! namespace. A descriptor handed over shows that its sender may read the file.

use std::io::{self, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::pin::Pin;

/// Longest message, bytes.
pub const MAX_MESSAGE_BYTES: usize = 16 * 1024;

/// What a client asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ask {
    /// The file of an object.
    Read {
        /// The right to it.
        token: String,
        /// Of the object at the data service.
        path: String,
    },
    /// A part of an object, or all of it, from the beginning of the file whose descriptor comes along.
    Part {
        /// The right to it.
        token: String,
        /// Of the object at the data service.
        path: String,
        /// Where the part begins in the object, payload bytes.
        at_bytes: u64,
        /// Payload bytes of the part.
        size_bytes: u64,
        /// Payload bytes of the whole object, if that is known; the last part says it.
        total_bytes: Option<u64>,
    },
}

/// What a node answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Told {
    /// A file comes along; its first bytes are the content.
    Read {
        /// Payload bytes.
        size_bytes: u64,
    },
    /// The part is written, and more is to come.
    Taken {},
    /// The object is durable.
    Written {
        /// BLAKE3 in hexadecimal.
        digest: String,
        /// The node's receipt in hexadecimal.
        mac: String,
    },
    /// It is refused.
    Refused {
        /// As by HTTP.
        status: u16,
        /// Why.
        text: String,
    },
}

fn address(pin: Pin) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("kuroshio-node-{pin}"))
}

/// Listens for clients of this host.
///
/// # Errors
/// The name is taken.
pub fn listen(pin: Pin) -> io::Result<UnixListener> {
    UnixListener::bind_addr(&address(pin)?)
}

/// Connects to the node of this key, if it is on this host and may be believed.
///
/// # Errors
/// There is none, or it is another user's process.
pub fn connect(pin: Pin, limit: Duration) -> io::Result<UnixStream> {
    let stream = UnixStream::connect_addr(&address(pin)?)?;
    let peer = rustix::net::sockopt::socket_peercred(&stream)?;
    if !peer.uid.is_root() && peer.uid != rustix::process::geteuid() {
        let text = "a process of another user has the node's name";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    stream.set_read_timeout(Some(limit))?;
    stream.set_write_timeout(Some(limit))?;
    Ok(stream)
}

fn broken(text: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.into())
}

/// Sends a message, with a descriptor.
///
/// # Errors
/// The connection broke, or the message is longer than [`MAX_MESSAGE_BYTES`].
pub fn send(to: &UnixStream, message: &impl Serialize, file: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let body = serde_json::to_vec(message).map_err(|e| broken(e.to_string()))?;
    if body.len() > MAX_MESSAGE_BYTES {
        return Err(broken(format!("a message of {} bytes", body.len())));
    }
    let mut bytes = (body.len() as u32).to_le_bytes().to_vec();
    bytes.extend_from_slice(&body);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = file.map(|f| [f]);
    if let Some(files) = &files {
        control.push(SendAncillaryMessage::ScmRights(files));
    }
    let sent = rustix::net::sendmsg(to, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)?;
    let left = bytes.get(sent..).unwrap_or_default();
    io::Write::write_all(&mut &*to, left)
}

/// Receives a message and the descriptor that came with it; none at the end of the connection.
///
/// # Errors
/// The connection broke, or what came is no message.
pub fn receive<T: DeserializeOwned>(from: &UnixStream) -> io::Result<Option<(T, Option<OwnedFd>)>> {
    let mut length = [0; 4];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut into = [IoSliceMut::new(&mut length)];
    let received = rustix::net::recvmsg(from, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    if received.bytes == 0 {
        return Ok(None);
    }
    let mut file = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(files) = message {
            // One at most is wanted; others are closed here.
            file = files.last();
        }
    }
    if received.flags.contains(ReturnFlags::CTRUNC) {
        return Err(broken("more than one descriptor"));
    }
    let rest = length.get_mut(received.bytes..).unwrap_or_default();
    (&mut &*from).read_exact(rest)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_MESSAGE_BYTES {
        return Err(broken(format!(
            "a message of {length} bytes; at most {MAX_MESSAGE_BYTES} are valid"
        )));
    }
    let mut body = vec![0; length];
    (&mut &*from).read_exact(&mut body)?;
    let message = serde_json::from_slice(&body).map_err(|e| broken(e.to_string()))?;
    Ok(Some((message, file)))
}

/// Asks and waits for the answer.
///
/// # Errors
/// The connection broke, or the answer is none.
pub fn ask(at: &UnixStream, ask: &Ask, file: Option<BorrowedFd<'_>>) -> io::Result<(Told, Option<OwnedFd>)> {
    send(at, ask, file)?;
    receive(at)?.ok_or_else(|| broken("the node ended the connection"))
}

/// A descriptor to be sent.
pub fn file_of(file: &impl AsFd) -> Option<BorrowedFd<'_>> {
    Some(file.as_fd())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Seek, Write};

    #[test]
    fn messages_and_files_arrive() {
        let (a, b) = UnixStream::pair().expect("pair");
        let mut file = tempfile::tempfile().expect("file");
        file.write_all(b"content").expect("written");
        let question = Ask::Part {
            token: "t".into(),
            path: "/p".into(),
            at_bytes: 0,
            size_bytes: 7,
            total_bytes: None,
        };
        send(&a, &question, file_of(&file)).expect("sent");
        let (found, given) = receive::<Ask>(&b).expect("received").expect("a message");
        assert_eq!(found, question);
        let mut given = std::fs::File::from(given.expect("a file"));
        given.rewind().expect("sought");
        let mut text = String::new();
        given.read_to_string(&mut text).expect("read");
        assert_eq!(text, "content");
        send(&b, &Told::Read { size_bytes: 7 }, None).expect("sent");
        let (told, none) = receive::<Told>(&a).expect("received").expect("a message");
        assert_eq!((told, none.is_none()), (Told::Read { size_bytes: 7 }, true));
        drop(b);
        assert!(receive::<Told>(&a).expect("the end").is_none());
    }

    #[test]
    fn broken_messages_are_refused() {
        for bytes in [
            &[0xff, 0xff, 0xff, 0xff][..],
            &[1, 0, 0, 0, b'x'],
            &[9, 0, 0, 0, b'{'],
            &[1],
        ] {
            let (a, b) = UnixStream::pair().expect("pair");
            (&a).write_all(bytes).expect("written");
            drop(a);
            assert!(receive::<Ask>(&b).is_err(), "{bytes:?}");
        }
        let (a, _b) = UnixStream::pair().expect("pair");
        let long = Ask::Read {
            token: "t".repeat(MAX_MESSAGE_BYTES),
            path: String::new(),
        };
        assert!(send(&a, &long, None).is_err());
    }

    #[test]
    fn only_one_listens() {
        let pin = Pin::of_spki(b"a key of this test alone, and of nobody else");
        let first = listen(pin).expect("listens");
        assert!(listen(pin).is_err());
        assert!(connect(pin, Duration::from_secs(1)).is_ok());
        drop(first);
        assert!(connect(pin, Duration::from_secs(1)).is_err());
    }
}
