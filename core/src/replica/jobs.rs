//! Jobs of replication and their transfers: what goes in and out of the [`Planner`](super::Planner).

use super::types::{FragmentId, NodeId, SiteId};
use crate::units::{BitRate, PicoDuration};
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

/// Most jobs at once.
pub const MAX_JOBS: usize = 4096;
/// Most items of all jobs.
pub const MAX_ITEMS: usize = 16 << 20;
/// Most transfers at once.
pub const MAX_RUNNING: usize = 1024;
/// Largest weight of a job.
const MAX_WEIGHT: u32 = 1000;

/// Limits of a [`Planner`](super::Planner). Rates are at frame level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannerConfig {
    /// Transfers at once, of all jobs; at most [`MAX_RUNNING`].
    pub max_running: usize,
    /// Transfers that read from one node at once, and as many that write to it.
    pub max_per_node: usize,
    /// The most that one stream carries (a window over the round trip, or one core); `None`: no limit.
    pub stream_max: Option<BitRate>,
    /// Most streams of one transfer.
    pub max_streams: u32,
    /// No further transfer is begun where less than this is left.
    pub min_rate: BitRate,
    /// How often an item is tried before it has failed.
    pub max_attempts: u32,
    /// How long an item rests after it failed.
    pub retry_after: PicoDuration,
}

impl Default for PlannerConfig {
    /// As many at once as there may be, 4 per node, streams without limit and 8 at most, 1 Mbit/s, 5 attempts, 10 s.
    fn default() -> Self {
        Self {
            max_running: MAX_RUNNING,
            max_per_node: 4,
            stream_max: None,
            max_streams: 8,
            min_rate: BitRate::from_mbps(1),
            max_attempts: 5,
            retry_after: PicoDuration::from_secs(10),
        }
    }
}

/// What a node's disk can do, in bit/s of frames that carry its bytes; `None`: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskLimits {
    /// Reading.
    pub read: Option<BitRate>,
    /// Writing.
    pub write: Option<BitRate>,
}

/// A job's number, chosen by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub u64);

/// An item's place in its job's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ItemId(pub usize);

/// A transfer's number, never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransferId(pub u64);

/// One thing to move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobItem {
    /// What.
    pub fragment: FragmentId,
    /// Which bytes of it; the whole, or a part when there are several sources ([`split`](super::split)).
    pub range: Range<u64>,
    /// Who can give it, best first.
    pub sources: Vec<NodeId>,
    /// Who gets it.
    pub to: NodeId,
}

/// A transfer that begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Number to answer with.
    pub id: TransferId,
    /// Of which job.
    pub job: JobId,
    /// Which of its items.
    pub item: ItemId,
    /// What.
    pub fragment: FragmentId,
    /// Which bytes of it.
    pub range: Range<u64>,
    /// From where.
    pub source: NodeId,
    /// Where to.
    pub to: NodeId,
    /// The sites that it goes between.
    pub route: (SiteId, SiteId),
    /// Over how many streams.
    pub streams: u32,
    /// How fast all of them together, frame level.
    pub rate: BitRate,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Begin.
    Start(Transfer),
    /// Go on at another rate (frame level); `None`: pause.
    Rate(TransferId, Option<BitRate>),
    /// End at once: the job was cancelled. No answer.
    Stop(TransferId),
    /// Every item is done or has failed.
    Finished(JobId),
}

/// How a transfer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The copy is durable and right.
    Done,
    /// It is not.
    Failed,
}

/// State of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobView {
    /// Items that wait or rest.
    pub waiting: usize,
    /// Items that run.
    pub running: usize,
    /// Items that are done.
    pub done: usize,
    /// Items that were tried too often.
    pub failed: usize,
    /// Bytes of items that are done.
    pub done_bytes: u64,
    /// Bytes of all items.
    pub bytes: u64,
}

/// Why a call was refused; nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlannerError {
    /// There is a job of this number.
    DuplicateJob(JobId),
    /// There is none.
    UnknownJob(JobId),
    /// An item without a source, with an empty or inverted range, or to a node that gives it.
    BadItem(ItemId),
    /// A weight of 0 or above 1000.
    BadWeight(u32),
    /// A limit.
    TooMany(&'static str),
}

impl fmt::Display for PlannerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DuplicateJob(j) => write!(f, "job {} was added twice", j.0),
            Self::UnknownJob(j) => write!(f, "no job {}", j.0),
            Self::BadItem(i) => write!(
                f,
                "item {} needs a range, a source, and a destination that is no source",
                i.0
            ),
            Self::BadWeight(w) => write!(f, "the weight of a job is from 1 to {MAX_WEIGHT}, not {w}"),
            Self::TooMany(what) => write!(f, "too many {what}"),
        }
    }
}

impl core::error::Error for PlannerError {}

pub(super) fn check_weight(weight: u32) -> Result<(), PlannerError> {
    if (1..=MAX_WEIGHT).contains(&weight) {
        Ok(())
    } else {
        Err(PlannerError::BadWeight(weight))
    }
}
