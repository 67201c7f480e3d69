//! Progress of one side of a session: counters that any thread may read while it runs.

use crate::error::FileError;
use crate::session::Summary;
use kuroshio_sock::TcpInfo;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// Something that happened to one file, for event streams and lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A file is published and flushed at the destination.
    Durable {
        /// Path relative to the destination, bytes.
        path: Vec<u8>,
        /// Size, bytes.
        size: u64,
        /// BLAKE3 digest of the whole file, when it was computed.
        digest: Option<[u8; 32]>,
    },
    /// A file was skipped because the destination has it.
    Skipped {
        /// Path relative to the destination, bytes.
        path: Vec<u8>,
    },
    /// A dry run would send this.
    WouldSend {
        /// Path relative to the destination, bytes.
        path: Vec<u8>,
        /// Bytes missing at the destination.
        bytes: u64,
    },
    /// A chunk had a wrong digest at the destination and is sent again.
    Resent {
        /// Path relative to the destination, bytes.
        path: Vec<u8>,
        /// Where in the file, bytes.
        offset: u64,
        /// Length, bytes.
        len: u32,
    },
    /// A file changed while it was read and is sent again from the start.
    Restarted {
        /// Path relative to the destination, bytes.
        path: Vec<u8>,
    },
    /// A file was not moved.
    Failed(FileError),
    /// A data stream broke; the others took its work.
    StreamLost {
        /// Index of the stream in the session.
        stream: usize,
        /// What happened.
        text: String,
    },
}

/// Which resource held the transfer back over the last second or so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Limiter {
    /// Nothing known yet.
    #[default]
    Unknown,
    /// Reading at the sender.
    SenderDisk,
    /// The pace of the sockets.
    NetworkPace,
    /// The congestion or receive window.
    Window,
    /// Writing, verifying or flushing at the receiver.
    ReceiverDisk,
    /// Processor time.
    Cpu,
}

/// One data stream at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamSnapshot {
    /// Route the stream belongs to, as the caller numbered it.
    pub route: u32,
    /// Whether it still carries data.
    pub alive: bool,
    /// Frame-level rate that it was given, bits per second; 0 is no limit.
    pub rate_bps: u64,
    /// State of the TCP connection, when it has one.
    pub tcp: Option<TcpInfo>,
}

/// All counters at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Seconds since the session began, in microseconds.
    pub elapsed_us: u64,
    /// Payload bytes of the files announced so far (resumed and skipped bytes included).
    pub bytes_scheduled: u64,
    /// Whether the walk over the sources is complete, so that `bytes_scheduled` is final.
    pub walk_done: bool,
    /// Payload bytes handed to sockets, frames sent again included.
    pub bytes_sent: u64,
    /// Payload bytes that left for the wire: handed over, less what waits unsent in the sockets.
    pub bytes_on_wire: u64,
    /// File bytes that the receiver has written.
    pub bytes_acknowledged: u64,
    /// File bytes that were at the destination before (resumed or skipped).
    pub bytes_present: u64,
    /// File bytes published and flushed (present ones included).
    pub bytes_durable: u64,
    /// Files announced.
    pub files_scheduled: u64,
    /// Files published and flushed.
    pub files_durable: u64,
    /// Files skipped.
    pub files_skipped: u64,
    /// Files failed.
    pub files_failed: u64,
    /// Directories, symbolic links and hard links made.
    pub others_done: u64,
    /// Chunks sent again after a wrong digest.
    pub chunks_resent: u64,
    /// Files begun again because the source changed.
    pub files_restarted: u64,
    /// Segments sent again by TCP, all streams.
    pub retransmissions: u64,
    /// Acknowledged bytes per second over the last second or so.
    pub rate_bytes_per_s: u64,
    /// Seconds to the end at that rate; `None` while the walk goes on or nothing moves.
    pub eta_s: Option<u64>,
    /// Which resource limits now.
    pub limited_by: Limiter,
    /// The data streams.
    pub streams: Vec<StreamSnapshot>,
}

/// Callback for events.
type Sink = Box<dyn Fn(&Event) + Send + Sync>;
/// Callback for the end; says whether the user knows.
type Told = Box<dyn Fn(&Summary, &Snapshot) -> bool + Send + Sync>;

/// Progress of one side of one session. Share it by reference or `Arc`; all methods take `&self`.
pub struct Progress {
    pub(crate) begun: Instant,
    pub(crate) counters: Counters,
    pub(crate) live: Mutex<Live>,
    cancelled: AtomicBool,
    sink: Option<Sink>,
    told: Option<Told>,
}

/// The counters behind a [`Snapshot`].
#[derive(Default)]
pub(crate) struct Counters {
    pub bytes_scheduled: AtomicU64,
    pub bytes_sent: AtomicU64,
    pub bytes_acknowledged: AtomicU64,
    pub bytes_present: AtomicU64,
    pub bytes_durable: AtomicU64,
    pub files_scheduled: AtomicU64,
    pub files_durable: AtomicU64,
    pub files_skipped: AtomicU64,
    pub files_failed: AtomicU64,
    pub others_done: AtomicU64,
    pub chunks_resent: AtomicU64,
    pub files_restarted: AtomicU64,
    pub walk_done: AtomicBool,
    /// Nanoseconds that stream threads spent reading files.
    pub read_ns: AtomicU64,
    /// Nanoseconds that stream threads spent in digests.
    pub hash_ns: AtomicU64,
    /// Nanoseconds that stream threads spent in writes to sockets.
    pub write_ns: AtomicU64,
    /// Nanoseconds that stream threads had nothing to send.
    pub idle_ns: AtomicU64,
    /// Share of time, in 1/1000, that the receiver said it waits for its disk.
    pub receiver_busy_permille: AtomicU64,
}

/// What the sampler last saw.
#[derive(Default)]
pub(crate) struct Live {
    pub streams: Vec<StreamSnapshot>,
    pub rate_bytes_per_s: u64,
    pub limited_by: Limiter,
}

/// Adds to a counter.
pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

impl Default for Progress {
    fn default() -> Self {
        Self::new()
    }
}

impl Progress {
    /// Progress without a listener.
    pub fn new() -> Self {
        Self {
            begun: Instant::now(),
            counters: Counters::default(),
            live: Mutex::default(),
            cancelled: AtomicBool::new(false),
            sink: None,
            told: None,
        }
    }

    /// Progress that calls `sink` for each event, from the session's threads; it must return soon.
    pub fn with_events(sink: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        Self {
            sink: Some(Box::new(sink)),
            ..Self::new()
        }
    }

    /// Calls `told` once everything is durable and before the state for a resume is given up: it tells the
    /// user, and returns whether that was done. If not, or when the process dies before, the same command
    /// again finds what is there. A side without it trusts the other one to tell.
    #[must_use]
    pub fn telling(mut self, told: impl Fn(&Summary, &Snapshot) -> bool + Send + Sync + 'static) -> Self {
        self.told = Some(Box::new(told));
        self
    }

    /// Tells the user; `None` when that is not this side's business.
    pub(crate) fn tell(&self, summary: &Summary) -> Option<bool> {
        self.told.as_ref().map(|told| told(summary, &self.snapshot()))
    }

    /// Asks the session to end; it returns [`crate::TransferError::Cancelled`] within [`crate::limits::TICK_MS`]
    /// or so. What was moved stays for the next run.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::SeqCst);
    }

    /// Whether [`Self::cancel`] was called.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::SeqCst)
    }

    pub(crate) fn event(&self, event: &Event) {
        if let Some(sink) = &self.sink {
            sink(event);
        }
    }

    /// All counters now.
    pub fn snapshot(&self) -> Snapshot {
        let c = &self.counters;
        let get = |a: &AtomicU64| a.load(Ordering::Relaxed);
        let live = self
            .live
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let tcp = live.streams.iter().filter_map(|s| s.tcp);
        let unsent: u64 = tcp.clone().map(|t| u64::from(t.notsent_bytes)).sum();
        let retransmissions = tcp.map(|t| u64::from(t.retrans_segments)).sum();
        let bytes_scheduled = get(&c.bytes_scheduled);
        let walk_done = c.walk_done.load(Ordering::Relaxed);
        let left = bytes_scheduled.saturating_sub(get(&c.bytes_acknowledged) + get(&c.bytes_present));
        let eta_s = if walk_done {
            left.checked_div(live.rate_bytes_per_s)
        } else {
            None
        };
        Snapshot {
            elapsed_us: u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX),
            bytes_scheduled,
            walk_done,
            bytes_sent: get(&c.bytes_sent),
            bytes_on_wire: get(&c.bytes_sent).saturating_sub(unsent),
            bytes_acknowledged: get(&c.bytes_acknowledged),
            bytes_present: get(&c.bytes_present),
            bytes_durable: get(&c.bytes_durable),
            files_scheduled: get(&c.files_scheduled),
            files_durable: get(&c.files_durable),
            files_skipped: get(&c.files_skipped),
            files_failed: get(&c.files_failed),
            others_done: get(&c.others_done),
            chunks_resent: get(&c.chunks_resent),
            files_restarted: get(&c.files_restarted),
            retransmissions,
            rate_bytes_per_s: live.rate_bytes_per_s,
            eta_s,
            limited_by: live.limited_by,
            streams: live.streams.clone(),
        }
    }
}
