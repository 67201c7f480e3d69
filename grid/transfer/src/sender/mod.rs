//! The sending side.
//!
//! ```text
//!  walk --entries--> Fwd        Rev reader --wants, acks--> core::chunk::Scheduler
//!    |                              |                              |
//!    '--> table of files <----------'            data streams (one thread each) pull pieces
//! ```
//!
//! A stream that breaks gives its unacknowledged pieces to the others; the session ends when a control
//! connection breaks, or when no stream is left and none can join.

mod file;
mod replies;
mod stream;
mod tick;
mod walk;

use crate::conn::Conn;
use crate::end::End;
use crate::error::{FileError, FileErrorKind, TransferError};
use crate::limits::{MAX_IN_FLIGHT, MAX_NAME, MAX_RESTARTS, MAX_STREAMS, NOTSENT_LOWAT, SMALL_FILE, TICK_MS};
use crate::options::{Options, Placement};
use crate::outbox::Outbox;
use crate::progress::{Event, Progress, add};
use crate::session::{DataConn, SendJob, SessionConns, Source, Summary};
use crate::streams::{Wake, forward};
use crate::sys;
use crate::wire::{self, Bytes, Failure, FileMeta, FileRef, Fwd};
use file::{OutFile, Table};
use kuroshio_core::chunk::{Config, FileId, Piece, Scheduler, StreamId};
use kuroshio_core::units::{PicoDuration, PicoTime};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};
use tick::Ticker;

/// Pieces that may be under way at once, over all streams.
const MAX_UNACKED: usize = 1 << 16;

/// What all threads of one sending session share.
struct Sender<'a> {
    progress: &'a Progress,
    end: End,
    outbox: Outbox<Fwd>,
    options: Options,
    sources: Vec<Source>,
    files: Table,
    sched: Mutex<Scheduler>,
    sched_changed: Condvar,
    /// Announced files of which the receiver has not said what it wants.
    unanswered: AtomicUsize,
    /// The receiver has said its last word.
    finished: AtomicBool,
    wake: mpsc::Sender<Wake>,
    summary: Mutex<Summary>,
}

fn config(options: &Options) -> Config {
    Config {
        chunk: u64::from(options.chunk),
        min_piece: SMALL_FILE.min(u64::from(options.chunk)),
        grain: walk::GRAIN,
        max_files: MAX_IN_FLIGHT + 1,
        max_unacked: MAX_UNACKED,
        ..Config::default()
    }
}

/// Checks what the caller asked for.
fn check(job: &SendJob) -> Result<Options, TransferError> {
    job.options.check().map_err(TransferError::Input)?;
    let mut options = job.options.clone();
    let mut names = std::collections::HashSet::new();
    for source in &job.sources {
        let name = &source.name;
        let valid = name.is_empty() || wire::check_path(name).is_ok() && !name.contains(&b'/');
        if !valid || name.len() > MAX_NAME {
            let text = format!("\"{}\" cannot be a name at the destination", name.escape_ascii());
            return Err(TransferError::Input(text));
        }
        if !name.is_empty() && !names.insert(name) {
            let text = format!("two sources would both become \"{}\"", name.escape_ascii());
            return Err(TransferError::Input(text));
        }
        if name.is_empty() && options.placement == Placement::Auto {
            options.placement = Placement::Into;
        }
    }
    match options.placement {
        _ if job.sources.is_empty() => Err(TransferError::Input(
            "nothing to send: name at least one source".into(),
        )),
        Placement::Exact if job.sources.len() > 1 || job.sources.iter().any(|s| s.name.is_empty()) => Err(
            TransferError::Input("several sources cannot become one name".into()),
        ),
        _ => Ok(options),
    }
}

/// Runs the sender's side; see [`crate::send`].
pub(crate) fn run(conns: SessionConns, job: SendJob, progress: &Progress) -> Result<Summary, TransferError> {
    let options = check(&job)?;
    let sched = Scheduler::new(config(&options)).map_err(|e| TransferError::Input(e.to_string()))?;
    let SessionConns { fwd, rev, data } = conns;
    let (wake, woken) = mpsc::channel();
    let sources = u32::try_from(job.sources.len()).unwrap_or(u32::MAX);
    let tx = Sender {
        progress,
        end: End::default(),
        outbox: Outbox::new(),
        options: options.clone(),
        sources: job.sources,
        files: Table::default(),
        sched: Mutex::new(sched),
        sched_changed: Condvar::new(),
        unanswered: AtomicUsize::new(0),
        finished: AtomicBool::new(false),
        wake: wake.clone(),
        summary: Mutex::default(),
    };
    tx.end.watch(&fwd);
    tx.end.watch(&rev);
    tx.outbox.post(Fwd::Hello {
        version: wire::VERSION,
        key: job.key,
        options,
        sources,
    });
    forward(data, wake);
    std::thread::scope(|scope| session(&tx, scope, fwd, rev, &woken));
    drop(woken);
    match tx.end.take_error() {
        Some(e) => Err(e),
        None => Ok(tx.summarise()),
    }
}

/// All threads of the session.
fn session<'scope>(
    tx: &'scope Sender<'_>,
    scope: &'scope std::thread::Scope<'scope, '_>,
    mut fwd: Conn,
    mut rev: Conn,
    woken: &mpsc::Receiver<Wake>,
) {
    let writer = scope.spawn(move || {
        if let Err(source) = tx.outbox.run(&mut fwd)
            && !tx.finished.load(Ordering::SeqCst)
        {
            // The receiver's own words, if it left some, say more than the broken connection.
            std::thread::sleep(Duration::from_millis(TICK_MS));
            tx.end.fail(TransferError::Connection {
                what: "control connection to the receiver",
                source,
            });
            tx.wake_all();
        }
        // The receiver may have closed first.
        let _ = fwd.finish();
    });
    let reader = scope.spawn(move || replies::run(tx, &mut rev));
    scope.spawn(|| walk::run(tx));
    let streams = main_loop(tx, scope, woken);
    tx.sched_changed.notify_all();
    for stream in streams {
        // A stream's panic is the scope's to report; its end carries nothing else.
        let _ = stream.join();
    }
    let finished = tx.finished.load(Ordering::SeqCst) && !tx.end.is_over();
    if finished && tx.progress.tell(&tx.summarise()) != Some(false) {
        tx.outbox.post(Fwd::Bye);
    }
    tx.outbox.close();
    let _ = writer.join();
    if !tx.end.is_over() {
        let _ = reader.join();
        tx.end.finish();
    }
}

type StreamThread<'scope> = std::thread::ScopedJoinHandle<'scope, ()>;

/// Starts a thread for each stream that joins, ticks, and returns when all is said or the session is over.
fn main_loop<'scope>(
    tx: &'scope Sender<'_>,
    scope: &'scope std::thread::Scope<'scope, '_>,
    woken: &mpsc::Receiver<Wake>,
) -> Vec<StreamThread<'scope>> {
    let mut threads = Vec::new();
    let mut more = true;
    let mut ticker = Ticker::new();
    while !tx.end.is_over() && !tx.finished.load(Ordering::SeqCst) {
        if tx.progress.is_cancelled() {
            tx.outbox.post(Fwd::Abort("cancelled".into()));
            tx.end.fail(TransferError::Cancelled);
        }
        match woken.recv_timeout(ticker.patience()) {
            Ok(Wake::Stream(data)) if threads.len() < MAX_STREAMS => {
                if let Some(thread) = start_stream(tx, scope, data, threads.len(), &mut ticker) {
                    threads.push(thread);
                }
            }
            Ok(Wake::Stream(_)) => tx.fail_session(format!("more than {MAX_STREAMS} data streams")),
            Ok(Wake::NoMoreStreams) => more = false,
            Ok(Wake::Look) | Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => more = false,
        }
        if !more && threads.iter().all(StreamThread::is_finished) && !tx.finished.load(Ordering::SeqCst) {
            let needed = !tx.is_all_sent();
            if needed && !tx.end.is_over() {
                let source = io::Error::new(io::ErrorKind::NotConnected, "every data stream broke");
                tx.end.fail(TransferError::Connection {
                    what: "data streams",
                    source,
                });
            }
        }
        ticker.tick(tx);
    }
    ticker.last(tx);
    threads
}

fn start_stream<'scope>(
    tx: &'scope Sender<'_>,
    scope: &'scope std::thread::Scope<'scope, '_>,
    data: DataConn,
    number: usize,
    ticker: &mut Ticker,
) -> Option<StreamThread<'scope>> {
    let DataConn {
        mut conn,
        route,
        rate,
    } = data;
    tx.end.watch(&conn);
    let id = u32::try_from(number).ok()?;
    if let Some(tcp) = conn.tcp() {
        // A stream whose pace cannot be set must not run unpaced; its time-outs are a matter of comfort.
        let _ = kuroshio_sock::set_user_timeout(tcp, kuroshio_sock::USER_TIMEOUT_MS);
        let _ = kuroshio_sock::set_keepalive(tcp);
        let _ = kuroshio_sock::set_notsent_lowat(tcp, NOTSENT_LOWAT);
        if let Err(e) = rate.attach(tcp) {
            tx.progress.event(&Event::StreamLost {
                stream: number,
                text: format!("its pace cannot be set: {e}"),
            });
            return None;
        }
    }
    if tx.sched().add_stream(StreamId(id)).is_err() {
        return None;
    }
    let alive = ticker.add(route, Arc::clone(&rate), conn.tcp());
    Some(scope.spawn(move || {
        let ended = stream::run(tx, id, &mut conn);
        tx.sched().lose_stream(StreamId(id));
        tx.sched_changed.notify_all();
        alive.store(false, Ordering::SeqCst);
        rate.detach();
        if let Err(e) = ended
            && !tx.end.is_over()
            && !tx.finished.load(Ordering::SeqCst)
        {
            tx.progress.event(&Event::StreamLost {
                stream: number,
                text: e.to_string(),
            });
        }
        let _ = tx.wake.send(Wake::Look);
    }))
}

impl Sender<'_> {
    fn sched(&self) -> MutexGuard<'_, Scheduler> {
        self.sched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn summary(&self) -> MutexGuard<'_, Summary> {
        self.summary.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake_all(&self) {
        self.sched_changed.notify_all();
        let _ = self.wake.send(Wake::Look);
    }

    fn fail_session(&self, text: String) {
        self.outbox.post(Fwd::Abort(text.clone()));
        self.end.fail(TransferError::Input(text));
        self.wake_all();
    }

    /// Nothing is left that a data stream would have to carry.
    fn is_all_sent(&self) -> bool {
        self.progress.counters.walk_done.load(Ordering::SeqCst)
            && self.unanswered.load(Ordering::SeqCst) == 0
            && self.sched().is_idle()
    }

    fn now(&self) -> PicoTime {
        let since = PicoDuration::from_std(self.progress.begun.elapsed());
        PicoTime::from_ps(since.as_ps())
    }

    /// The next piece for a stream; waits for one. `None` when the session is at its end.
    fn next_piece(&self, number: u32, conn: &Conn) -> io::Result<Option<Piece>> {
        let begun = Instant::now();
        let mut sched = self.sched();
        loop {
            if self.end.is_over() || self.finished.load(Ordering::SeqCst) {
                return Ok(None);
            }
            if let Some(piece) = sched.next(StreamId(number), self.now()) {
                drop(sched);
                let idle = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(0);
                add(&self.progress.counters.idle_ns, idle);
                return Ok(Some(piece));
            }
            let wait = Duration::from_millis(TICK_MS);
            let (next, waited) = self
                .sched_changed
                .wait_timeout(sched, wait)
                .unwrap_or_else(PoisonError::into_inner);
            sched = next;
            if waited.timed_out()
                && let Some(tcp) = conn.tcp()
                && sys::peer_gone(tcp.as_fd())
                && !self.finished.load(Ordering::SeqCst)
            {
                return Err(io::Error::new(
                    io::ErrorKind::ConnectionReset,
                    "the receiver closed this stream",
                ));
            }
        }
    }

    /// The receiver has said what it wants of a file.
    fn answered(&self, file: &OutFile) {
        if !file.answered.swap(true, Ordering::SeqCst) {
            self.unanswered.fetch_sub(1, Ordering::SeqCst);
            self.close_when_answered();
        }
    }

    /// Once all wishes are known, pieces are cut so that the streams end together.
    fn close_when_answered(&self) {
        let walked = self.progress.counters.walk_done.load(Ordering::SeqCst);
        if walked && self.unanswered.load(Ordering::SeqCst) == 0 {
            self.sched().close();
            self.sched_changed.notify_all();
        }
    }

    /// Forgets a file; says whether it was known.
    fn finish_file(&self, id: u32) -> bool {
        let Some(file) = self.files.remove(id) else {
            return false;
        };
        self.sched().finish_file(FileId(id));
        self.answered(&file);
        true
    }

    fn open_again(&self, file: &OutFile) -> io::Result<Arc<OwnedFd>> {
        let source = self.sources.get(file.source).ok_or(io::ErrorKind::NotFound)?;
        sys::open_source(&source.base, &file.path).map(Arc::new)
    }

    /// A file cannot be read: it fails alone.
    fn fail_file(&self, file: &Arc<OutFile>, what: &str, e: &io::Error) {
        self.fail_with(file, FileErrorKind::Source, sys::errno(e), format!("{what}: {e}"));
    }

    fn fail_with(&self, file: &Arc<OutFile>, kind: FileErrorKind, errno: i32, text: String) {
        if !self.finish_file(file.id) {
            return;
        }
        let path = Bytes(file.name.clone());
        let failure = Failure {
            id: file.id,
            path,
            kind,
            errno,
            text: wire::bounded_text(text.clone()),
        };
        self.outbox.post(Fwd::Failed(vec![failure]));
        self.failed(file.name.clone(), kind, errno, text);
    }

    fn failed(&self, path: Vec<u8>, kind: FileErrorKind, errno: i32, text: String) {
        self.record(FileError {
            path,
            kind,
            errno,
            text,
        });
    }

    fn record(&self, error: FileError) {
        add(&self.progress.counters.files_failed, 1);
        self.progress.event(&Event::Failed(error.clone()));
        let mut summary = self.summary();
        summary.files_failed += 1;
        if summary.errors.len() < Summary::MAX_ERRORS {
            summary.errors.push(error);
        }
    }

    /// The source of a file is not what was announced: announces it anew, a bounded number of times.
    fn changed(&self, file: &Arc<OutFile>, generation: u16) {
        let fd = match self.open_again(file) {
            Ok(fd) => fd,
            Err(e) => return self.fail_file(file, "open", &e),
        };
        let looked = rustix::fs::fstat(&*fd).map_err(io::Error::from).and_then(|stat| {
            let identity = sys::identity(&stat);
            let sparse = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512) < identity.size;
            let extents = match sparse {
                true => sys::extents(&*fd, identity.size, walk::GRAIN, crate::limits::MAX_EXTENTS)?,
                false => None,
            };
            Ok((
                stat.st_mode & 0o7777,
                FileMeta {
                    identity,
                    extents,
                    digest: None,
                },
            ))
        });
        let (mode, meta) = match looked {
            Ok(looked) => looked,
            Err(e) => return self.fail_file(file, "read", &e),
        };
        let mut s = file.lock();
        if s.changed || s.generation != generation {
            return;
        }
        s.restarts += 1;
        if s.restarts > MAX_RESTARTS {
            drop(s);
            let text = format!("it changed {} times while it was read", MAX_RESTARTS + 1);
            return self.fail_with(file, FileErrorKind::Changed, 0, text);
        }
        let sizes = (s.identity().size, meta.identity.size);
        s.changed = true;
        s.fd = None;
        s.meta = meta.clone();
        let at = FileRef {
            id: file.id,
            generation: s.generation.saturating_add(1),
        };
        drop(s);
        self.progress
            .counters
            .bytes_scheduled
            .fetch_add(sizes.1.wrapping_sub(sizes.0), Ordering::Relaxed);
        add(&self.progress.counters.files_restarted, 1);
        self.progress.event(&Event::Restarted {
            path: file.name.clone(),
        });
        self.outbox.post(Fwd::Changed { file: at, mode, meta });
    }

    fn summarise(&self) -> Summary {
        let mut summary = self.summary().clone();
        let s = self.progress.snapshot();
        summary.files = s.files_scheduled;
        summary.files_durable = s.files_durable;
        summary.files_skipped = s.files_skipped;
        summary.others = s.others_done;
        summary.bytes = s.bytes_scheduled;
        summary.bytes_sent = s.bytes_sent;
        summary.chunks_resent = s.chunks_resent;
        summary.files_restarted = s.files_restarted;
        summary
    }
}
