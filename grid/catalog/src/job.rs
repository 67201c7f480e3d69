//! Durable jobs: what is to be done with replicas, and how far it is.
//!
//! ```text
//!   Queued --ClaimJobs--> Running --FinishJob--> Done | Failed
//!     |  ^                  |  |
//!     |  \--(claim ended)---/  \--CancelJob (the worker hears by JobProgress)--> Cancelled
//!     \--CancelJob--> Cancelled
//! ```

use crate::{JobId, ObjectId, Timestamp};

/// What a job does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JobKind {
    /// A new replica.
    Replicate,
    /// A new replica, then one removed at the source.
    Migrate,
    /// A replica removed.
    Remove,
    /// A replica read and compared with its digest.
    Verify,
}

/// How far a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JobState {
    /// Waits for a worker.
    Queued,
    /// Claimed by a worker.
    Running,
    /// Succeeded.
    Done,
    /// Given up, with an error.
    Failed,
    /// Ended by a person.
    Cancelled,
}

/// A job to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewJob {
    /// What to do.
    pub kind: JobKind,
    /// With which fragment.
    pub object: ObjectId,
    /// Node to read from; none: the worker chooses.
    pub source: Option<String>,
    /// Node to write to (`Remove`, `Verify`: the node concerned); none: the worker chooses.
    pub destination: Option<String>,
    /// Higher goes first.
    pub priority: i32,
}

/// A job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Number, rising.
    pub id: JobId,
    /// What was asked.
    pub what: NewJob,
    /// Who asked.
    pub owner: String,
    /// How far it is.
    pub state: JobState,
    /// Payload bytes done.
    pub done_bytes: u64,
    /// Payload bytes in all (the fragment's size).
    pub total_bytes: u64,
    /// Times it was claimed.
    pub attempts: u32,
    /// Worker that has it.
    pub worker: Option<String>,
    /// Why it failed, or the last attempt's error.
    pub error: Option<String>,
    /// Made.
    pub created: Timestamp,
    /// Last change.
    pub updated: Timestamp,
    /// When the worker's claim ends unless renewed.
    pub claimed_until: Option<Timestamp>,
}

/// Which jobs [`crate::ListJobs`] lists.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct JobFilter {
    /// Only in this state.
    pub state: Option<JobState>,
    /// Only of this inode.
    pub ino: Option<crate::Ino>,
}
