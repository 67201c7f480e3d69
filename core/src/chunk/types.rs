//! What goes in and out of the [`Scheduler`](super::Scheduler): numbers, sizes, limits, errors.

use crate::units::PicoDuration;
use core::fmt;
use core::ops::Range;

/// Largest piece that may be configured, in bytes (1 GiB): lengths of pieces fit 32 bits.
pub const MAX_CHUNK_BYTES: u64 = 1 << 30;
/// Most streams of one scheduler.
pub const MAX_STREAMS: usize = 1024;
/// A stream that was given nothing asks again after this time at the latest.
pub const RECHECK: PicoDuration = PicoDuration::from_ms(100);

/// A file's number, chosen by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u32);

/// A stream's number, chosen by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u32);

/// Sizes and limits of a [`Scheduler`](super::Scheduler). Sizes are powers of two, `1024 <= grain <= min_piece <= chunk`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Largest piece in bytes, at most [`MAX_CHUNK_BYTES`].
    pub chunk: u64,
    /// Smallest piece that is cut for balancing, in bytes.
    pub min_piece: u64,
    /// Wanted ranges are widened to multiples of this, in bytes.
    pub grain: u64,
    /// Files added and not yet finished, at most.
    pub max_files: usize,
    /// Pieces on streams and not yet acknowledged, at most; beyond, `next` gives nothing.
    pub max_unacked: usize,
    /// Separate ranges to send, over all files, at most (a file wanted whole counts none).
    pub max_ranges: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            chunk: 4 << 20,
            min_piece: 64 << 10,
            grain: 4 << 10,
            max_files: 1 << 20,
            max_unacked: 1 << 16,
            max_ranges: 1 << 20,
        }
    }
}

/// Why a call was refused. The scheduler is unchanged by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScheduleError {
    /// Sizes that are not powers of two or out of order.
    BadConfig,
    /// A file with this number is there already.
    DuplicateFile(FileId),
    /// No file with this number (or it is finished).
    UnknownFile(FileId),
    /// A range beyond the end of the file, or inverted.
    OutOfFile {
        /// The file.
        file: FileId,
        /// Start of the range in bytes.
        offset: u64,
        /// Length of the range in bytes.
        len: u64,
        /// Length of the file in bytes.
        file_len: u64,
    },
    /// Acknowledged bytes that were never given to a stream.
    NotSent {
        /// The file.
        file: FileId,
        /// First such byte.
        offset: u64,
    },
    /// A generation that this file has not reached.
    Generation(FileId),
    /// `max_files`, `max_ranges` or [`MAX_STREAMS`] reached.
    Full(&'static str),
}

impl fmt::Display for ScheduleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadConfig => write!(
                f,
                "chunk, least piece and grain must be powers of two, 1 KiB <= grain <= least piece <= chunk <= 1 GiB"
            ),
            Self::DuplicateFile(id) => write!(f, "file {} was added twice", id.0),
            Self::UnknownFile(id) => write!(f, "no file {} is being sent", id.0),
            Self::OutOfFile {
                file,
                offset,
                len,
                file_len,
            } => {
                write!(
                    f,
                    "{len} bytes at offset {offset} of file {}, which has {file_len} bytes",
                    file.0
                )
            }
            Self::NotSent { file, offset } => {
                write!(
                    f,
                    "byte {offset} of file {} was acknowledged but never sent",
                    file.0
                )
            }
            Self::Generation(id) => write!(f, "file {} has not been restarted that often", id.0),
            Self::Full(what) => write!(f, "too many {what} at once"),
        }
    }
}

impl core::error::Error for ScheduleError {}

/// What to send: `len` bytes at `offset` of `file`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The file.
    pub file: FileId,
    /// How often the file was restarted; goes with the frame and comes back with its acknowledgement.
    pub generation: u16,
    /// First byte.
    pub offset: u64,
    /// Length in bytes, at least 1.
    pub len: u32,
}

impl Piece {
    /// The bytes of the file that the piece covers.
    #[must_use]
    pub const fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.len as u64
    }
}

/// What an acknowledgement changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Acked {
    /// Bytes that were not acknowledged before.
    pub bytes: u64,
    /// Whether now every wanted byte of the file is written.
    pub complete: bool,
}

/// Sums over all files, in bytes unless named otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Not given to a stream (first time or again).
    pub to_send: u64,
    /// Given to a stream and not acknowledged.
    pub on_streams: u64,
    /// Acknowledged since the start.
    pub written: u64,
    /// Asked for again by `bad`, since the start.
    pub bad: u64,
    /// Taken back from lost streams, since the start.
    pub lost: u64,
    /// Pieces given to streams, since the start.
    pub pieces: u64,
    /// Files added and not finished.
    pub files: usize,
}
