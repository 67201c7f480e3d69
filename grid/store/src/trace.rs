//! The steps of a store, for tests that stop it at one of them and for logs that show their order.

use crate::id::ObjectId;
use std::fmt;
use std::sync::Arc;

/// Something that has just happened on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// The file of a new object was made.
    Created,
    /// Some of its bytes, or all of a small object, were written.
    Written,
    /// A piece of it was recorded for resuming.
    Recorded,
    /// Its bytes were read back and are right.
    Verified,
    /// The trailer was written.
    Trailer,
    /// It has the name of a whole object that waits for the disk.
    Sealed,
    /// The flush of its content and of that name has ended: from here on it is durable.
    Flushed,
    /// It has its place among the objects. What follows is the acknowledgement.
    Named,
    /// Its file was removed.
    Unlinked,
    /// The flush of the removal has ended. What follows is the acknowledgement.
    Removed,
    /// It was moved to quarantine.
    Moved,
    /// The flush of the move has ended.
    Quarantined,
}

/// Hears of every step.
#[derive(Clone)]
pub struct Trace(Arc<dyn Fn(Step, ObjectId) + Send + Sync>);

impl Trace {
    /// Calls `hear` in the thread that made the step, right after it.
    pub fn new(hear: impl Fn(Step, ObjectId) + Send + Sync + 'static) -> Self {
        Self(Arc::new(hear))
    }

    pub(crate) fn tell(&self, step: Step, id: ObjectId) {
        (self.0)(step, id);
    }
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Trace")
    }
}
