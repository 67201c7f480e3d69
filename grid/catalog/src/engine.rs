//! Queues and threads between callers and connections: the group commit.
//!
//! ```text
//!   submit --> writes --> writer: begin; op, op, op; commit (one flush); answer, answer, answer
//!          \-> reads  --> readers: one snapshot each; answer
//! ```
//!
//! A writer takes all changes that wait (at most [`MAX_BATCH`]) into one transaction, and answers them after
//! its commit returned. While the commit flushes, the next batch gathers: nobody waits for a timer, and one
//! caller alone has one flush for each change.
//!
//! An operation that is refused has, as a rule, changed nothing yet, and the others of its batch go on. If it
//! had, or if the database was in the way, the batch is rolled back and its operations run one by one.

use crate::error::{CatalogError, ErrorKind};
use crate::limits::{ID_BLOCK, MAX_BATCH, MAX_QUEUE};
use crate::ops::{Effect, Tx};
use crate::sql::{Backend, Conn, DbError, DbKind, Fault, Sql, p};
use crate::state::{Clock, Ids, Opens, Shared, Texts};
use crate::{Caller, Done, Op, Reply, Role, Timestamp};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Times that a change is run again when other transactions were in its way.
const ATTEMPTS: u32 = 50;
/// How long an operation waits for a database that cannot be reached before it says `Unavailable`.
const PATIENCE: Duration = Duration::from_secs(10);
/// Pause between attempts to reach it.
const RECONNECT: Duration = Duration::from_millis(50);
/// Reading connections kept for callers that wait themselves.
const POOL: usize = 8;

/// What a trace hears, in the order in which it happens on the writer's thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceEvent {
    /// A transaction with so many changes begins.
    Begin {
        /// Operations in it.
        operations: usize,
    },
    /// Its commit returned: it is flushed.
    Durable {
        /// Operations in it.
        operations: usize,
    },
    /// The next change is answered.
    Answer,
}

/// Hears what the writer does.
pub type Trace = Arc<dyn Fn(TraceEvent) + Send + Sync>;

/// How a catalog is opened.
#[derive(Clone)]
pub struct Options {
    /// Threads that read for [`crate::Catalog::submit`], 1 to 64.
    pub readers: usize,
    /// Threads that write, 1 to 16; SQLite always has one.
    pub writers: usize,
    /// Bytes of log that SQLite gets in advance, so that a commit writes where the file system has a place for it already; 0:
    /// none, at most [`crate::limits::MAX_LOG_BYTES`]. PostgreSQL does so by itself.
    pub log_bytes: u64,
    /// Times are taken from here.
    pub clock: Clock,
    /// Hears the group commit; for tests and logs.
    pub trace: Option<Trace>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            readers: 2,
            writers: 2,
            log_bytes: 0,
            clock: Arc::new(Timestamp::now),
            trace: None,
        }
    }
}

struct Request {
    caller: Caller,
    op: Op,
    done: Done,
}

#[derive(Default)]
struct Queue {
    waiting: Mutex<(VecDeque<Request>, bool)>,
    some: Condvar,
}

impl Queue {
    /// Gives the request back if there is no room or the catalog is closing.
    fn push(&self, request: Request) -> Result<(), Box<(Request, ErrorKind)>> {
        let mut q = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if q.1 {
            return Err(Box::new((request, ErrorKind::Unavailable)));
        }
        if q.0.len() >= MAX_QUEUE {
            return Err(Box::new((request, ErrorKind::Busy)));
        }
        q.0.push_back(request);
        drop(q);
        self.some.notify_one();
        Ok(())
    }

    /// Waits for requests and takes up to `most`; none when closed and empty.
    fn take(&self, most: usize) -> Option<Vec<Request>> {
        let mut q = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if !q.0.is_empty() {
                let n = q.0.len().min(most);
                return Some(q.0.drain(..n).collect());
            }
            if q.1 {
                return None;
            }
            q = self.some.wait(q).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn close(&self) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).1 = true;
        self.some.notify_all();
    }
}

struct Inner<B: Backend> {
    backend: B,
    shared: Shared,
    writes: Queue,
    reads: Queue,
    pool: Mutex<Vec<B::Conn>>,
    trace: Option<Trace>,
}

/// Threads, queues and connections of an open catalog.
pub(crate) struct Engine<B: Backend> {
    inner: Arc<Inner<B>>,
    threads: Vec<JoinHandle<()>>,
}

impl<B: Backend> Engine<B> {
    /// Connects, brings the schema up to date and starts the threads.
    ///
    /// # Errors
    /// What the database says.
    pub fn start(backend: B, options: Options, writers: usize) -> Result<Self, CatalogError> {
        let mut first = backend.connect(true)?;
        crate::sql::schema::migrate(&mut first)?;
        let shared = Shared {
            ids: Ids::default(),
            texts: Texts::default(),
            opens: Opens::default(),
            clock: options.clock,
            standing: crate::state::Standing::default(),
            session: AtomicU64::new(0),
        };
        refill(&mut first, &shared)?;
        let session = shared.ids.take(true).unwrap_or_default();
        shared.session.store(session, Ordering::Relaxed);
        let now = (shared.clock)();
        first.exec(
            "UPDATE inode SET atime = ?1, mtime = ?1, ctime = ?1, btime = ?1 WHERE ino = 1 AND btime = 0",
            p![now.0],
        )?;
        let inner = Arc::new(Inner {
            backend,
            shared,
            writes: Queue::default(),
            reads: Queue::default(),
            pool: Mutex::new(Vec::new()),
            trace: options.trace,
        });
        let mut engine = Self {
            inner,
            threads: Vec::new(),
        };
        let mut first = Some(first);
        for i in 0..writers.clamp(1, 16) {
            let conn = first.take();
            engine.spawn(format!("catalog-write-{i}"), move |inner| inner.write_loop(conn))?;
        }
        for i in 0..options.readers.clamp(1, 64) {
            engine.spawn(format!("catalog-read-{i}"), |inner| inner.read_loop())?;
        }
        Ok(engine)
    }

    fn spawn(
        &mut self,
        name: String,
        run: impl FnOnce(&Inner<B>) + Send + 'static,
    ) -> Result<(), CatalogError> {
        let inner = self.inner.clone();
        let thread = std::thread::Builder::new()
            .name(name)
            .spawn(move || run(&inner))
            .map_err(|e| {
                CatalogError::new(
                    ErrorKind::Io,
                    format!("a thread of the catalog cannot start: {e}"),
                )
                .with_source(e)
            })?;
        self.threads.push(thread);
        Ok(())
    }

    pub fn submit(&self, caller: &Caller, op: Op, done: Done) {
        let writes = op.writes();
        let request = Request {
            caller: caller.clone(),
            op,
            done,
        };
        let queue = if writes {
            &self.inner.writes
        } else {
            &self.inner.reads
        };
        refuse_if_full(queue.push(request));
    }

    /// Runs a reading operation on the caller's own thread; a change waits for the writer.
    pub fn wait(&self, caller: &Caller, op: Op) -> Answer {
        if !op.writes()
            && let Some(answer) = self.inner.read_here(caller, &op)
        {
            return answer;
        }
        let (tx, rx) = std::sync::mpsc::sync_channel(1);
        let done = Box::new(move |answer| {
            // The receiver waits below; it cannot be gone.
            let _ = tx.send(answer);
        });
        refuse_if_full(self.inner.writes.push(Request {
            caller: caller.clone(),
            op,
            done,
        }));
        rx.recv().unwrap_or_else(|_| {
            Err(CatalogError::new(
                ErrorKind::Unavailable,
                "the catalog was shut down",
            ))
        })
    }

    /// Runs a quick reading operation on the caller's own thread; none if it is to be submitted.
    pub fn read_now(&self, caller: &Caller, op: &Op) -> Option<Answer> {
        if op.writes() || !op.is_quick() {
            return None;
        }
        self.inner.read_here(caller, op)
    }

    pub fn describe(&self) -> String {
        self.inner.backend.describe()
    }
}

impl<B: Backend> Drop for Engine<B> {
    fn drop(&mut self) {
        self.inner.reads.close();
        self.inner.writes.close();
        for thread in self.threads.drain(..) {
            // A thread that panicked has said so already; its requests' callers see `Unavailable`.
            let _ = thread.join();
        }
    }
}

fn refuse_if_full(pushed: Result<(), Box<(Request, ErrorKind)>>) {
    if let Err(refused) = pushed {
        let (request, kind) = *refused;
        let what = match kind {
            ErrorKind::Busy => "too many operations wait (65,536)",
            _ => "the catalog is closing",
        };
        (request.done)(Err(CatalogError::new(kind, what)));
    }
}

/// Reserves numbers, in a transaction of its own, if few are left.
fn refill<C: Conn>(conn: &mut C, shared: &Shared) -> Result<(), DbError> {
    if !shared.ids.low() {
        return Ok(());
    }
    // The statement is its own transaction: durable when it returns.
    let rows = conn.query(
        "UPDATE meta SET value = value + ?1 WHERE name = 'ids' RETURNING value",
        p![ID_BLOCK],
    )?;
    let end: u64 = rows.first().and_then(|r| r.num(0).ok()).ok_or_else(|| DbError {
        kind: DbKind::Broken,
        source: "table meta has no usable row 'ids'".into(),
    })?;
    shared.ids.add(end.saturating_sub(ID_BLOCK)..end);
    Ok(())
}

/// What one operation came to, before the commit.
type Answer = Result<Reply, CatalogError>;

/// Why a transaction did not commit.
enum Failed {
    /// Before the commit was asked for: nothing happened.
    Before(DbError),
    /// While it was asked for: not known whether it happened.
    During(DbError),
    /// An operation was refused after it had changed something.
    HalfDone,
}

impl<B: Backend> Inner<B> {
    fn write_loop(&self, mut conn: Option<B::Conn>) {
        while let Some(batch) = self.writes.take(MAX_BATCH) {
            self.write_batch(&mut conn, batch);
            if let Some(c) = &mut conn
                && c.rest().is_err()
            {
                conn = None;
            }
        }
    }

    fn write_batch(&self, conn: &mut Option<B::Conn>, batch: Vec<Request>) {
        let operations: Vec<(&Caller, &Op)> = batch.iter().map(|r| (&r.caller, &r.op)).collect();
        match self.write_once(conn, &operations) {
            Ok(answers) => {
                for (request, answer) in batch.into_iter().zip(answers) {
                    self.answer(request, answer);
                }
            }
            Err(Failed::During(e)) => {
                let what = e.source.to_string();
                let kind = CatalogError::from(e).kind();
                for request in batch {
                    let text = format!("{what}; whether the change took place is not known");
                    self.answer(request, Err(CatalogError::new(kind, text)));
                }
            }
            Err(_) => {
                for request in batch {
                    let answer = self.write_alone(conn, &request);
                    self.answer(request, answer);
                }
            }
        }
    }

    fn answer(&self, request: Request, answer: Answer) {
        if let Some(trace) = &self.trace {
            trace(TraceEvent::Answer);
        }
        (request.done)(answer);
    }

    /// One operation in a transaction of its own, until it is committed, refused or out of patience.
    fn write_alone(&self, conn: &mut Option<B::Conn>, request: &Request) -> Answer {
        let begun = Instant::now();
        let mut attempts = 0;
        loop {
            attempts += 1;
            let error = match self.write_once(conn, &[(&request.caller, &request.op)]) {
                Ok(answers) => {
                    let none = || {
                        Err(CatalogError::new(
                            ErrorKind::Corrupt,
                            "an operation had no answer",
                        ))
                    };
                    return answers.into_iter().next().unwrap_or_else(none);
                }
                Err(Failed::Before(e)) => e,
                Err(Failed::During(e)) => return Err(e.into()),
                // One alone answers with its refusal and is rolled back; it is not half done.
                Err(Failed::HalfDone) => {
                    return Err(CatalogError::new(
                        ErrorKind::Corrupt,
                        "an operation was left half done",
                    ));
                }
            };
            match error.kind {
                DbKind::Again if attempts < ATTEMPTS => {
                    std::thread::sleep(Duration::from_micros(200 * u64::from(attempts.min(20))));
                }
                DbKind::Gone if begun.elapsed() < PATIENCE => std::thread::sleep(RECONNECT),
                _ => return Err(error.into()),
            }
        }
    }

    fn trace(&self, event: TraceEvent) {
        if let Some(trace) = &self.trace {
            trace(event);
        }
    }

    /// All operations in one transaction. Its effects on what is in memory follow the commit.
    fn write_once(
        &self,
        slot: &mut Option<B::Conn>,
        operations: &[(&Caller, &Op)],
    ) -> Result<Vec<Answer>, Failed> {
        let conn = match slot {
            Some(c) => c,
            None => slot.insert(self.backend.connect(true).map_err(Failed::Before)?),
        };
        let result = self.write_with(conn, operations);
        let lost = match &result {
            Ok(_) => false,
            Err(Failed::Before(e) | Failed::During(e)) if e.kind == DbKind::Gone => true,
            Err(_) => conn.rollback().is_err(),
        };
        if lost {
            *slot = None;
        }
        result
    }

    fn write_with(&self, conn: &mut B::Conn, operations: &[(&Caller, &Op)]) -> Result<Vec<Answer>, Failed> {
        refill(conn, &self.shared).map_err(Failed::Before)?;
        self.trace(TraceEvent::Begin {
            operations: operations.len(),
        });
        let under_way = self.shared.opens.under_way();
        conn.begin(true).map_err(Failed::Before)?;
        let now = (self.shared.clock)();
        let mut answers = Vec::with_capacity(operations.len());
        let mut effects = Vec::new();
        for (caller, op) in operations {
            let mut tx = Tx::new(conn, &self.shared, &under_way, caller, now, true, &mut effects);
            let result = tx.run(op);
            let changed = tx.changed();
            match result {
                Ok(reply) => answers.push(Ok(reply)),
                Err(Fault::Refused(e)) if !changed => answers.push(Err(e)),
                Err(Fault::Refused(e)) if operations.len() == 1 => {
                    // Alone: rolled back, and this is its answer.
                    conn.rollback().map_err(Failed::Before)?;
                    return Ok(vec![Err(e)]);
                }
                Err(Fault::Refused(_)) => return Err(Failed::HalfDone),
                Err(Fault::Db(e)) => return Err(Failed::Before(e)),
                Err(Fault::NeedsWriter) => {
                    let source = "a batch used up the reserved numbers".into();
                    return Err(Failed::Before(DbError {
                        kind: DbKind::Again,
                        source,
                    }));
                }
            }
        }
        conn.commit().map_err(Failed::During)?;
        self.trace(TraceEvent::Durable {
            operations: operations.len(),
        });
        self.apply(effects);
        drop(under_way);
        Ok(answers)
    }

    fn apply(&self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Open(handle, open) => self.shared.opens.insert(handle, open),
                Effect::Close(handle, user) => self.shared.opens.remove(handle, user.as_deref()),
                Effect::Numbers(first) => self.shared.ids.skip_below(first),
                Effect::Intern(kind, id, text) => self.shared.texts.add(kind, id, &text),
            }
        }
    }

    fn read_loop(&self) {
        while let Some(batch) = self.reads.take(1) {
            for request in batch {
                match self.read_here(&request.caller, &request.op) {
                    Some(answer) => (request.done)(answer),
                    None => refuse_if_full(self.writes.push(request)),
                }
            }
        }
    }

    /// Runs a reading operation on this thread; none if it needs a writer.
    fn read_here(&self, caller: &Caller, op: &Op) -> Option<Answer> {
        if let Op::Release(release) = op {
            // What is open is in memory alone.
            let user = (caller.role == Role::User).then_some(caller.user.as_str());
            self.shared.opens.remove(release.handle, user);
            return Some(Ok(Reply::Done));
        }
        let begun = Instant::now();
        let mut attempts = 0;
        loop {
            attempts += 1;
            let pooled = self.pool.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let conn = pooled.map_or_else(|| self.backend.connect(false), Ok);
            let error = match conn {
                Ok(mut conn) => {
                    let result = self.read_with(&mut conn, caller, op);
                    let keep = match &result {
                        Ok(_) => true,
                        Err(Fault::Db(e)) if e.kind == DbKind::Gone => false,
                        Err(_) => conn.rollback().is_ok(),
                    };
                    if keep {
                        let mut pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
                        if pool.len() < POOL {
                            pool.push(conn);
                        }
                    }
                    match result {
                        Ok(reply) => return Some(Ok(reply)),
                        Err(Fault::Refused(e)) => return Some(Err(e)),
                        Err(Fault::NeedsWriter) => return None,
                        Err(Fault::Db(e)) => e,
                    }
                }
                Err(e) => e,
            };
            match error.kind {
                DbKind::Again if attempts < ATTEMPTS => std::thread::yield_now(),
                DbKind::Gone if begun.elapsed() < PATIENCE => {
                    // Connections made before the database went are of no use either.
                    self.pool.lock().unwrap_or_else(PoisonError::into_inner).clear();
                    std::thread::sleep(RECONNECT);
                }
                _ => return Some(Err(error.into())),
            }
        }
    }

    fn read_with(&self, conn: &mut B::Conn, caller: &Caller, op: &Op) -> Result<Reply, Fault> {
        let under_way = self.shared.opens.under_way();
        conn.begin(false)?;
        let now = (self.shared.clock)();
        let mut effects = Vec::new();
        let reply = Tx::new(conn, &self.shared, &under_way, caller, now, false, &mut effects).run(op)?;
        conn.commit()?;
        self.apply(effects);
        Ok(reply)
    }
}
