//! A grid by HTTP and WebDAV (RFC 9110, RFC 4918), for curl, rclone, davix and file managers.
//!
//! ```text
//!   client ──TLS, token of the user──> handler ──┬─ files    GET, HEAD: ranges, validators, checksums
//!                                                ├─ dav      PROPFIND, PUT, COPY, MOVE, LOCK ... (dav-server)
//!                                                ├─ copies   COPY with Source or a foreign Destination
//!                                                └─ api      where a file lies
//!                  the user's own connection ──> metadata service; content from and to the nodes
//! ```
//!
//! The gateway has no right of its own: each request carries the token of a user's ticket (`Authorization:
//! Bearer`, or the password of `Basic`), and the metadata service decides. A file appears, or gets new content,
//! in one step and only when it is durable; a request that breaks off changes nothing.
//!
//! Locks are the gateway's alone: they hold between its own clients, until it ends.

mod address;
mod api;
mod config;
mod copies;
mod dav;
mod digest;
mod files;
mod handler;
mod headers;
mod locks;
mod marker;
mod props;
mod refusal;
mod remote;
mod server;
mod session;
mod upload;

pub use address::Network;
pub use config::{GatewayConfig, GatewayError};
pub use server::Gateway;

/// Contents on their way at once, read and written together; each that is written takes up to 24 MiB of memory.
pub const MAX_TRANSFERS: usize = 64;
/// Tokens with a connection of their own to the metadata service.
pub const MAX_SESSIONS: usize = 256;
/// A token that is not used for so long loses its connection, seconds.
pub const SESSION_IDLE_S: u64 = 600;
/// Tokens that are tried at the metadata service at once.
pub const MAX_LOGINS: usize = 8;
/// Largest body of a request that is not content, bytes.
pub const MAX_XML_BYTES: usize = 64 * 1024;
/// Most elements in such a body: what reads it goes down into each.
pub const MAX_XML_ELEMENTS: usize = 512;
/// Longest silence of a client that sends content, seconds.
pub const BODY_SILENCE_S: u64 = 60;
/// Locks at once, and of one user.
pub const MAX_LOCKS: usize = 4096;
/// Locks of one user.
pub const MAX_USER_LOCKS: usize = 512;
/// Longest time of a lock that is not refreshed, seconds.
pub const MAX_LOCK_S: u64 = 24 * 3600;
/// Time of a lock that asks for none, seconds.
pub const DEFAULT_LOCK_S: u64 = 600;
/// Checksums kept in mind, so that a file is read once for each kind.
pub const MAX_KEPT_DIGESTS: usize = 16 * 1024;
/// Dead properties of one file or directory, bytes in sum.
pub const MAX_PROPERTY_BYTES: usize = 64 * 1024;
/// Time between two performance markers, seconds.
pub const MARKER_S: u64 = 5;
/// `TransferHeader` fields of a third-party copy.
pub const MAX_TRANSFER_HEADERS: usize = 16;
/// Redirects followed by a third-party copy.
pub const MAX_REDIRECTS: usize = 5;
/// Longest wait for another server to connect and to answer, seconds.
pub const REMOTE_LIMIT_S: u64 = 30;
/// Longest silence of another server inside content, seconds.
pub const REMOTE_SILENCE_S: u64 = 60;
/// Longest wait for the other server's word to send the content, seconds; it may not know that word.
pub const CONTINUE_LIMIT_S: u64 = 2;
