//! The trait that services use, and typed calls over it.

use crate::op::wrong_reply;
use crate::{Caller, CatalogError, ErrorKind, Op, Operation, Reply};
use std::sync::mpsc;

/// What is called with the answer, exactly once, on a thread of the catalog: it must not block and must not
/// wait for another answer.
pub type Done = Box<dyn FnOnce(Result<Reply, CatalogError>) + Send>;

/// A namespace and replica catalog. Shared by all threads of a service.
pub trait Catalog: Send + Sync {
    /// Hands an operation over and returns at once. `done` is called when a change is durable, or when an
    /// answer was read. Operations that are under way together may take effect in any order; one that is
    /// submitted after another's answer sees its effect.
    ///
    /// Never blocks; when [`crate::limits::MAX_QUEUE`] operations wait, `done` gets `Busy`.
    fn submit(&self, caller: &Caller, op: Op, done: Done);

    /// Runs an operation and waits for its answer: a reading one, where the back end can, on the caller's own
    /// thread. Not from a completion, and not on a thread that must not block.
    ///
    /// # Errors
    /// What the operation says; `Unavailable` if the catalog was shut down meanwhile.
    fn wait(&self, caller: &Caller, op: Op) -> Result<Reply, CatalogError> {
        let (tx, rx) = mpsc::sync_channel(1);
        self.submit(
            caller,
            op,
            Box::new(move |answer| {
                // The receiver waits below; it cannot be gone.
                let _ = tx.send(answer);
            }),
        );
        rx.recv().unwrap_or_else(|_| {
            Err(CatalogError::new(
                ErrorKind::Unavailable,
                "the catalog was shut down",
            ))
        })
    }

    /// Answers a quick reading operation ([`Op::is_quick`]) on the caller's own thread, where that does not wait for
    /// another machine or process; none if it is to be submitted.
    fn read_now(&self, _caller: &Caller, _op: &Op) -> Option<Result<Reply, CatalogError>> {
        None
    }

    /// Whether other services may have the same data open.
    fn is_shared(&self) -> bool;

    /// Which back end this is and where, for people (`sqlite /path`, `postgresql ...` without secrets).
    fn describe(&self) -> String;
}

/// Typed calls.
pub trait CatalogExt: Catalog {
    /// Runs an operation and waits for its answer; see [`Catalog::wait`].
    ///
    /// # Errors
    /// What the operation says; `Unavailable` if the catalog was shut down meanwhile.
    fn call<O: Operation>(&self, caller: &Caller, op: O) -> Result<O::Output, CatalogError> {
        let op: Op = op.into();
        let name = op.name();
        self.wait(caller, op)
            .and_then(|r| O::output(r).ok_or_else(|| wrong_reply(name)))
    }

    /// Hands an operation over; see [`Catalog::submit`].
    fn begin<O: Operation>(
        &self,
        caller: &Caller,
        op: O,
        done: impl FnOnce(Result<O::Output, CatalogError>) + Send + 'static,
    ) {
        self.begin_op::<O>(caller, op.into(), done);
    }

    /// As [`Self::begin`], with the operation in its general form, which must be that of an `O`.
    fn begin_op<O: Operation>(
        &self,
        caller: &Caller,
        op: Op,
        done: impl FnOnce(Result<O::Output, CatalogError>) + Send + 'static,
    ) {
        let name = op.name();
        self.submit(
            caller,
            op,
            Box::new(move |answer| done(answer.and_then(|r| O::output(r).ok_or_else(|| wrong_reply(name))))),
        );
    }

    /// Answers an operation, which must be that of an `O`, at once if that can be; see [`Catalog::read_now`].
    fn try_now<O: Operation>(&self, caller: &Caller, op: &Op) -> Option<Result<O::Output, CatalogError>> {
        let answer = self.read_now(caller, op)?;
        Some(answer.and_then(|r| O::output(r).ok_or_else(|| wrong_reply(op.name()))))
    }
}

impl<C: Catalog + ?Sized> CatalogExt for C {}
