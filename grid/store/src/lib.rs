//! A node's store: objects in a spool on a local file system, whole or not there.
//!
//! # What an object is
//!
//! The content of one fragment of a file, named by inode, generation and fragment number ([`ObjectId`]). It is
//! written once, then only read: a new content is a new generation. Its file in the spool holds the content
//! from byte 0 on, and after it a trailer with length, BLAKE3 digest (of the whole and of each chunk), owner
//! and a hint at the path, so that a catalog can be rebuilt from spools (`trailer.rs`; layout in `spool.rs`).
//!
//! # When it is durable
//!
//! ```text
//!   incoming/ID.part --verified, trailer--> incoming/ID.sealed --flushed--> durable --renamed--> objects/xx/ID
//! ```
//!
//! Every acknowledgement comes after: the digest was compared, the trailer written, the file flushed, and the
//! name `ID.sealed` flushed. The last rename is not flushed: a crash that undoes it leaves `ID.sealed`, which
//! opening the spool finds, compares and names again. So one flush is enough for a small object, and a name
//! among the objects always stands for content that is on the disk.
//!
//! # Who may call
//!
//! [`Store`] is a handle that can be cloned and used from any thread; calls block. One process has a spool open.

mod error;
mod flush;
mod fsck;
mod hash;
mod id;
mod inner;
mod journal;
mod limits;
mod meta;
mod quarantine;
mod reader;
mod recover;
mod scrub;
mod slots;
mod space;
mod spool;
mod store;
mod sys;
mod trace;
mod trailer;
mod writer;

pub use error::{StoreError, hex};
pub use fsck::{FsckEntry, FsckReport, FsckState};
pub use id::{BadId, ID_TEXT_BYTES, ObjectId};
pub use limits::*;
pub use meta::Meta;
pub use quarantine::Quarantined;
pub use reader::{Damage, ObjectReader};
pub use recover::Recovered;
pub use scrub::{Finding, ScrubOptions, ScrubReport, Stop};
pub use store::{Cursor, Listed, Mode, Partial, Sealed, Status, Store};
pub use trace::{Step, Trace};
pub use writer::{Begin, Finish, Holes, ObjectWriter};

pub use kuroshio_core::chunk::{Digest, RangeSet};
