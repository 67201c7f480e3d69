//! Every limit of a session, in one place. What a peer sends beyond one of them ends the session (or the
//! file) with an error that names the limit.

/// Longest relative path, bytes (`PATH_MAX` of Linux).
pub const MAX_PATH: usize = 4096;
/// Longest path component, bytes (`NAME_MAX` of Linux).
pub const MAX_NAME: usize = 255;
/// Deepest nesting of directories in one transfer.
pub const MAX_DEPTH: usize = 512;
/// Longest control message, bytes, after its length field.
pub const MAX_MESSAGE: usize = 1 << 20;
/// Entries in one `Entries` message.
pub const MAX_BATCH: usize = 1024;
/// Entries announced and not yet durable, failed or skipped; the sender's walk waits there.
pub const MAX_IN_FLIGHT: usize = 16_384;
/// Entries in one transfer (ids are u32).
pub const MAX_ENTRIES: u32 = u32::MAX - 1;
/// Directories and hard links kept to the end of the session for their final metadata.
pub const MAX_DEFERRED: usize = 4_000_000;
/// Data extents of one sparse file; a file with more is sent as if it were dense.
pub const MAX_EXTENTS: usize = 16_384;
/// Least chunk, bytes.
pub const MIN_CHUNK: u32 = 64 << 10;
/// Default chunk, bytes: the unit of digest, acknowledgement and resume.
pub const DEFAULT_CHUNK: u32 = 1 << 20;
/// Largest chunk, bytes.
pub const MAX_CHUNK: u32 = 1 << 30;
/// Chunks of one file; the sender takes larger chunks for files beyond it, so 64 TiB is the largest file.
pub const MAX_CHUNKS: u64 = 1 << 16;
/// Files up to this size are read whole, sent in one frame and published in groups, bytes.
pub const SMALL_FILE: u64 = 256 << 10;
/// Files in one durable group.
pub const GROUP_FILES: usize = 256;
/// Bytes in one durable group.
pub const GROUP_BYTES: u64 = 64 << 20;
/// Longest wait of a finished small file for its group, milliseconds.
pub const GROUP_WAIT_MS: u64 = 100;
/// Times a chunk is sent again after a wrong digest before its file fails.
pub const MAX_RESENDS: u32 = 8;
/// Times a file that changes while it is read is begun again before it fails.
pub const MAX_RESTARTS: u32 = 3;
/// Data streams of one session.
pub const MAX_STREAMS: usize = 256;
/// Buffer of one data stream's thread, bytes: a piece stays in the second-level cache between its copy
/// and its digest. A session uses `streams * STREAM_BUFFER` at each end, and one chunk digest (32 bytes)
/// per chunk of the files in flight.
pub const STREAM_BUFFER: usize = 256 << 10;
/// Bytes read and digested at a time: reading them back and forth leaves the second-level cache to both the
/// source lines and the copy.
pub const HASH_BUFFER: usize = 128 << 10;
/// Pipe of one receiving stream on plain TCP, bytes (the largest that an unprivileged process may have).
pub const PIPE_BYTES: usize = 1 << 20;
/// Payloads of at least this size go from socket to file through the pipe, bytes.
pub const SPLICE_MIN: u32 = SMALL_FILE as u32 + 1;
/// Unsent bytes that a paced stream may hold (`TCP_NOTSENT_LOWAT`), so that pulls follow the wire.
pub const NOTSENT_LOWAT: u32 = 512 << 10;
/// Interval of the rate setter and sampler, milliseconds.
pub const TICK_MS: u64 = 100;
/// Longest wait for the other side's last words once the work is done, seconds.
pub const GOODBYE_S: u64 = 30;
/// Name of the folder for partial state, in the destination directory; never sent, never accepted.
pub const STATE_DIR: &str = ".kuroshio-partial";
/// Longest text of an error that a peer may send, bytes.
pub const MAX_ERROR_TEXT: usize = 1024;
