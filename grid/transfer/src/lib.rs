//! Data mover: framed streams, chunk scheduling, resume, digests.
//!
//! # Model
//!
//! A session moves one tree from a sender to a receiver over unidirectional byte streams:
//!
//! ```text
//!            Fwd  Hello, Entries, Changed, FileDone, End, Bye
//!   sender  ------------------------------------------->  receiver
//!   walker   Rev  Welcome, Want, Have, Written, Bad, Durable, Failed, Limits, Finished
//!   streams <-------------------------------------------  writers
//!            Data x N: header of 64 bytes, payload
//!           ------------------------------------------->  publisher
//! ```
//!
//! Either side may have dialled any of the connections ([`Conn`]); TLS, HTTP and tokens are made
//! elsewhere. [`send`] and [`receive`] each run one side to its end in the calling thread (and threads of
//! their own, all joined before they return).
//!
//! The way of a file: *entry* (walked, announced) -> *wanted* (missing ranges) -> *chunks* (header with
//! digest, payload) -> *part file* (written, journalled, acknowledged) -> *verified* (read back from the
//! destination, compared with the sender's digests) -> *published* (metadata, rename) -> *durable*
//! (flushed, then told to the sender).
//!
//! # Limits
//!
//! All limits are constants of [`limits`]; what a peer sends is checked against them.

pub mod conn;
mod end;
mod error;
mod hash;
pub mod limits;
mod options;
mod outbox;
mod progress;
mod receiver;
mod sender;
mod session;
mod streams;
mod sys;
pub mod wire;
mod zero_copy;

pub use conn::{Conn, Stream};
pub use error::{FileError, FileErrorKind, TransferError};
pub use options::{DigestMode, Options, Placement, SessionKey, SyncMode, session_key};
pub use progress::{Event, Limiter, Progress, Snapshot, StreamSnapshot};
pub use session::{DataConn, ReceiveJob, SendJob, SessionConns, Source, StreamRate, Summary, receive, send};
