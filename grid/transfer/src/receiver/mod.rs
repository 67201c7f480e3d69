//! The receiving side.
//!
//! ```text
//!  Fwd reader --entries--> table of wanted files <--pieces-- data streams (one thread each)
//!      |                          |
//!      '-- Want, Have --> Rev     '--complete--> publisher (small groups; large files) --> Durable
//! ```
//!
//! Directories are made at once and get their mode and time at the end; hard links are made at the end.

mod entries;
mod file;
mod journal;
mod place;
mod publish;
mod stream;

use crate::conn::Conn;
use crate::end::End;
use crate::error::{FileError, FileErrorKind, TransferError};
use crate::limits::{GOODBYE_S, MAX_STREAMS, TICK_MS};
use crate::options::{Options, SessionKey};
use crate::outbox::Outbox;
use crate::progress::{Event, Progress, add};
use crate::session::{ReceiveJob, SessionConns, Summary};
use crate::streams::{Wake, forward};
use crate::sys;
use crate::wire::{self, Bytes, Failure, Fwd, Header, Rev, read_message};
use entries::Tree;
use file::InFile;
use journal::{Journal, Key, Loaded};
use place::Place;
use publish::{Done, Publisher};
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// How long a receiver waits for an earlier one of the same session to let go of the journal: as long as
/// that one may need to notice that its network is cut.
const LOCK_WAIT: Duration = Duration::from_millis(kuroshio_sock::USER_TIMEOUT_MS as u64 + 5_000);

/// How long streams may read on when the sender's control connection has ended. A sender that is gone ends
/// them at once; this is for a network that is cut in a part of its connections only.
const DRAIN: Duration = Duration::from_secs(GOODBYE_S);

/// Files that are wanted and not yet durable.
#[derive(Default)]
struct Table {
    files: Mutex<HashMap<u32, Arc<InFile>>>,
}

impl Table {
    fn get(&self, id: u32) -> Option<Arc<InFile>> {
        self.files
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&id)
            .cloned()
    }

    fn insert(&self, file: Arc<InFile>) {
        self.files
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(file.at.id, file);
    }

    /// Removes this very file (not one that took its number).
    fn remove(&self, file: &Arc<InFile>) {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if files.get(&file.at.id).is_some_and(|f| Arc::ptr_eq(f, file)) {
            files.remove(&file.at.id);
        }
    }

    fn len(&self) -> usize {
        self.files.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

/// What all threads of one receiving session share.
struct Receiver<'a> {
    progress: &'a Progress,
    end: End,
    outbox: Outbox<Rev>,
    options: Options,
    place: Place,
    /// State folder; the destination folder itself in a dry run, where nothing is ever made in it.
    state: OwnedFd,
    journal: Journal,
    loaded: Mutex<Loaded>,
    files: Table,
    publisher: Publisher,
    /// The sender has announced everything.
    all_announced: AtomicBool,
    wake: mpsc::Sender<Wake>,
    summary: Mutex<Summary>,
    resumed: AtomicU64,
    disk_ns: AtomicU64,
    live_streams: AtomicUsize,
    /// The sender has read the last word, and its user knows.
    said_bye: AtomicBool,
}

/// Runs the receiver's side; see [`crate::receive`].
pub(crate) fn run(
    conns: SessionConns,
    job: ReceiveJob,
    progress: &Progress,
) -> Result<Summary, TransferError> {
    let SessionConns {
        mut fwd,
        mut rev,
        data,
    } = conns;
    let mut scratch = Vec::new();
    let begun = begin(&mut fwd, &job, &mut scratch);
    let (options, place, key) = match begun {
        Ok(begun) => begun,
        Err(e) => {
            refuse(&mut rev, &e);
            return Err(e);
        }
    };
    let end = End::default();
    let opened = open_state(&place, &options, key, &end, progress);
    let (state, journal, loaded) = match opened {
        Ok(opened) => opened,
        Err(e) => {
            refuse(&mut rev, &e);
            return Err(e);
        }
    };
    end.watch(&fwd);
    end.watch(&rev);
    let (wake, woken) = mpsc::channel();
    let rx = Receiver {
        progress,
        end,
        outbox: Outbox::new(),
        options,
        place,
        state,
        journal,
        loaded: Mutex::new(loaded),
        files: Table::default(),
        publisher: Publisher::default(),
        all_announced: AtomicBool::new(false),
        wake: wake.clone(),
        summary: Mutex::default(),
        resumed: AtomicU64::new(0),
        disk_ns: AtomicU64::new(0),
        live_streams: AtomicUsize::new(0),
        said_bye: AtomicBool::new(false),
    };
    rx.outbox.post(Rev::Welcome {
        version: wire::VERSION,
    });
    forward(data, wake);
    let result = std::thread::scope(|scope| session(&rx, scope, fwd, rev, &woken));
    drop(woken);
    match rx.end.take_error() {
        Some(e) => Err(e),
        None => result.map(|()| rx.summarise()),
    }
}

/// Tells the sender why it is refused; it may be gone already.
fn refuse(rev: &mut Conn, why: &TransferError) {
    use std::io::Write;
    if let Ok(bytes) = wire::encode(&Rev::Abort(wire::bounded_text(why.to_string()))) {
        let _ = rev
            .write_all(&bytes)
            .and_then(|()| rev.flush())
            .and_then(|()| rev.finish());
    }
}

fn control_error(source: io::Error) -> TransferError {
    if source.kind() == io::ErrorKind::InvalidData {
        TransferError::Protocol(source.to_string())
    } else {
        TransferError::Connection {
            what: "control connection from the sender",
            source,
        }
    }
}

/// Reads `Hello` and finds the destination.
fn begin(
    fwd: &mut Conn,
    job: &ReceiveJob,
    scratch: &mut Vec<u8>,
) -> Result<(Options, Place, SessionKey), TransferError> {
    let hello = read_message::<Fwd>(fwd, scratch).map_err(control_error)?;
    let (version, key, options, sources) = match hello {
        Some(Fwd::Hello {
            version,
            key,
            options,
            sources,
        }) => (version, key, options, sources),
        Some(Fwd::Abort(text)) => return Err(TransferError::Peer(wire::bounded_text(text))),
        Some(_) => return Err(TransferError::Protocol("the first message is not Hello".into())),
        None => return Err(control_error(io::ErrorKind::UnexpectedEof.into())),
    };
    if version != wire::VERSION {
        let text = format!(
            "version {version} of the transfer protocol; this side speaks {}",
            wire::VERSION
        );
        return Err(TransferError::Protocol(text));
    }
    options.check().map_err(TransferError::Protocol)?;
    let place =
        Place::open(&job.root, &job.dest, &options, sources, key).map_err(|source| TransferError::Local {
            what: format!("destination \"{}\"", job.dest.escape_ascii()),
            source,
        })?;
    Ok((options, place, key))
}

/// Opens state folder and journal. A dry run makes neither and reads what is there.
fn open_state(
    place: &Place,
    options: &Options,
    _key: SessionKey,
    end: &End,
    progress: &Progress,
) -> Result<(OwnedFd, Journal, Loaded), TransferError> {
    let local = |what: &str| {
        let what = what.to_string();
        move |source: io::Error| TransferError::Local { what, source }
    };
    if options.dry_run {
        let state = match place.state(false) {
            Ok(state) if journal::exists(&state) => state,
            _ => place.dir().try_clone().map_err(local("open the destination"))?,
        };
        return Ok((
            state,
            Journal::none().map_err(local("open /dev/null"))?,
            Loaded::default(),
        ));
    }
    let deadline = Instant::now() + LOCK_WAIT;
    loop {
        let state = place
            .state(true)
            .map_err(local("make the folder for partial files at the destination"))?;
        match Journal::open(&state, options.digest) {
            Ok((journal, loaded)) if journal.is_linked() => return Ok((state, journal, loaded)),
            // The one before has just removed the folder: make it again.
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(TICK_MS / 2));
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                let text = "another transfer of the same source to the same destination is running";
                return Err(TransferError::Input(text.into()));
            }
            Err(e) => return Err(local("open the journal at the destination")(e)),
        }
        if progress.is_cancelled() || end.is_over() {
            return Err(TransferError::Cancelled);
        }
    }
}

/// All threads of the session; returns when all is done or [`End`] says so.
fn session<'scope, 'env>(
    rx: &'scope Receiver<'env>,
    scope: &'scope std::thread::Scope<'scope, '_>,
    mut fwd: Conn,
    mut rev: Conn,
    woken: &mpsc::Receiver<Wake>,
) -> Result<(), TransferError> {
    let writer = scope.spawn(move || {
        if let Err(source) = rx.outbox.run(&mut rev) {
            rx.let_streams_drain();
            rx.end.fail(TransferError::Connection {
                what: "control connection to the sender",
                source,
            });
        }
        rev
    });
    let (gone_tx, gone) = mpsc::channel::<()>();
    let (tree_tx, tree_rx) = mpsc::channel::<Tree>();
    scope.spawn(move || {
        entries::run(rx, &mut fwd, &tree_tx);
        let _ = rx.wake.send(Wake::Look);
        drop(gone_tx);
    });
    let groups = scope.spawn(|| publish::run_groups(rx));
    let large = scope.spawn(|| publish::run_large(rx));
    main_loop(rx, scope, woken);
    rx.publisher.close();
    let joined = groups.join().and_then(|()| large.join());
    if joined.is_err() {
        rx.end
            .fail(TransferError::Protocol("a publisher ended abnormally".into()));
    }
    if !rx.end.is_over() {
        match tree_rx.recv() {
            Ok(tree) => entries::finish(rx, tree),
            Err(_) => rx
                .end
                .fail(TransferError::Protocol("the sender said nothing".into())),
        }
    }
    rx.outbox.close();
    let mut rev = writer.join().ok();
    let mut hang_up = || rev.take().is_some_and(|mut rev| rev.finish().is_ok());
    if !rx.end.is_over() {
        // A user who was not told comes again with the same command, and must find that nothing is missing.
        let told = rx.progress.tell(&rx.summarise());
        if told.is_some() {
            hang_up();
        }
        // Its last word is on the way; a connection closed under it would be reset.
        let _ = gone.recv_timeout(Duration::from_secs(GOODBYE_S));
        if told.unwrap_or_else(|| rx.said_bye.load(Ordering::SeqCst))
            && let Err(source) = rx.forget()
        {
            rx.end.fail(TransferError::Local {
                what: "remove the folder for partial files".into(),
                source,
            });
        }
    }
    // A sender that tells its user waits for this: the folder is gone when it returns.
    hang_up();
    if !rx.end.is_over() {
        rx.end.finish();
    }
    Ok(())
}

/// Starts a thread for each stream that joins, until everything is durable or the session is over.
fn main_loop<'scope>(
    rx: &'scope Receiver<'_>,
    scope: &'scope std::thread::Scope<'scope, '_>,
    woken: &mpsc::Receiver<Wake>,
) {
    let mut streams = 0usize;
    let mut ticked = Instant::now();
    while !rx.end.is_over() && !rx.is_done() {
        if rx.progress.is_cancelled() {
            rx.outbox.post(Rev::Abort("cancelled".into()));
            rx.end.fail(TransferError::Cancelled);
        }
        match woken.recv_timeout(Duration::from_millis(TICK_MS)) {
            Ok(Wake::Stream(data)) if streams < MAX_STREAMS => {
                let number = streams;
                streams += 1;
                let mut conn = data.conn;
                rx.end.watch(&conn);
                rx.live_streams.fetch_add(1, Ordering::SeqCst);
                scope.spawn(move || {
                    let ended = stream::run(rx, &mut conn);
                    rx.live_streams.fetch_sub(1, Ordering::SeqCst);
                    let text = match ended {
                        stream::StreamEnd::Closed => return,
                        stream::StreamEnd::Broken(e) => e.to_string(),
                        stream::StreamEnd::Garbage(text) => {
                            rx.end.fail(TransferError::Protocol(text.clone()));
                            text
                        }
                    };
                    if let Some(tcp) = conn.tcp() {
                        // So that the sender notices; it may be gone already.
                        let _ = tcp.shutdown(std::net::Shutdown::Both);
                    }
                    if !rx.end.is_over() {
                        rx.progress.event(&Event::StreamLost { stream: number, text });
                    }
                });
            }
            Ok(Wake::Stream(_)) => {
                rx.end.fail(TransferError::Protocol(format!(
                    "more than {MAX_STREAMS} data streams"
                )));
            }
            Ok(Wake::Look | Wake::NoMoreStreams) | Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => std::thread::sleep(Duration::from_millis(1)),
        }
        if ticked.elapsed() >= Duration::from_millis(TICK_MS) {
            rx.tick(ticked.elapsed());
            ticked = Instant::now();
        }
    }
}

impl Receiver<'_> {
    /// Removes the state folder, unless a file failed and the same command may want to go on.
    fn forget(&self) -> io::Result<()> {
        let failed = self
            .summary
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .files_failed;
        if self.options.dry_run || failed > 0 {
            return Ok(());
        }
        self.place.remove_state(&self.state)
    }

    fn is_done(&self) -> bool {
        self.all_announced.load(Ordering::SeqCst) && self.files.len() == 0
    }

    /// Lets the publisher hurry when nothing else can come before it publishes.
    fn look(&self) {
        if self.all_announced.load(Ordering::SeqCst) {
            let waiting = {
                let files = self.files.files.lock().unwrap_or_else(PoisonError::into_inner);
                // With few files left, looking at each is cheap; with many, a group fills by itself.
                files.len() <= 2 * crate::limits::GROUP_FILES && files.values().all(|f| f.lock().queued)
            };
            self.publisher.hurry(waiting);
            if self.is_done() {
                let _ = self.wake.send(Wake::Look);
            }
        }
    }

    fn tick(&self, since: Duration) {
        let spent = self.disk_ns.swap(0, Ordering::Relaxed)
            + self.progress.counters.write_ns.swap(0, Ordering::Relaxed);
        let permille = u128::from(spent) * 1000 / since.as_nanos().max(1);
        let disk_permille = u32::try_from(permille.min(1000)).unwrap_or(1000);
        self.outbox.post(Rev::Limits { disk_permille });
        self.look();
    }

    /// Waits until the streams have read what is left in their sockets, for a bounded time.
    fn let_streams_drain(&self) {
        let deadline = Instant::now() + DRAIN;
        while self.live_streams.load(Ordering::SeqCst) > 0 && !self.end.is_over() && Instant::now() < deadline
        {
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn spent_on_disk(&self, begun: Instant) {
        add(
            &self.disk_ns,
            u64::try_from(begun.elapsed().as_nanos()).unwrap_or(0),
        );
    }

    fn local_error(&self, what: &str, source: io::Error) {
        let error = TransferError::Local {
            what: what.into(),
            source,
        };
        self.outbox
            .post(Rev::Abort(wire::bounded_text(error.to_string())));
        self.end.fail(error);
    }

    fn journal_piece(&self, file: &InFile, header: &Header) -> io::Result<()> {
        self.journal.piece(file.key, &header.part, header.digest)
    }

    /// A file failed here: its part file goes, the sender is told.
    fn fail_file(&self, file: &Arc<InFile>, kind: FileErrorKind, what: &str, e: &io::Error) {
        {
            let mut s = file.lock();
            if std::mem::replace(&mut s.dead, true) {
                return;
            }
            s.fd = None;
        }
        // Without its part file nothing of it is left; one that cannot be removed goes with the state folder.
        let _ = place::unlink_if_there(&self.state, &file.part);
        self.files.remove(file);
        self.failed(
            file.at.id,
            file.name.clone(),
            kind,
            sys::errno(e),
            format!("{what}: {e}"),
            true,
        );
        self.look();
    }

    /// Counts and reports a failure; tells the sender when it does not know yet.
    fn failed(&self, id: u32, path: Vec<u8>, kind: FileErrorKind, errno: i32, text: String, tell: bool) {
        add(&self.progress.counters.files_failed, 1);
        let text = wire::bounded_text(text);
        if tell {
            let failure = Failure {
                id,
                path: Bytes(path.clone()),
                kind,
                errno,
                text: text.clone(),
            };
            self.outbox.post(Rev::Failed(vec![failure]));
        }
        let error = FileError {
            path,
            kind,
            errno,
            text,
        };
        self.progress.event(&Event::Failed(error.clone()));
        let mut summary = self.summary.lock().unwrap_or_else(PoisonError::into_inner);
        summary.files_failed += 1;
        if summary.errors.len() < Summary::MAX_ERRORS {
            summary.errors.push(error);
        }
    }

    /// Files whose content and name are flushed: journalled, then told.
    fn durable(&self, done: Vec<Done>) {
        if done.is_empty() {
            return;
        }
        if let Err(e) = self.journal.done(done.iter().map(|d| d.file.key)) {
            self.local_error("write the journal", e);
            return;
        }
        let verified = self.options.digest == crate::DigestMode::Blake3;
        for Done { file, digest } in &done {
            self.files.remove(file);
            add(&self.progress.counters.files_durable, 1);
            add(&self.progress.counters.bytes_durable, file.size());
            self.progress.event(&Event::Durable {
                path: file.path.clone(),
                size: file.size(),
                digest: *digest,
            });
        }
        {
            let mut summary = self.summary.lock().unwrap_or_else(PoisonError::into_inner);
            summary.files_durable += done.len() as u64;
            summary.files_verified += if verified { done.len() as u64 } else { 0 };
        }
        self.outbox.post(Rev::Durable(
            done.iter().map(|d| (d.file.at.id, d.digest)).collect(),
        ));
        self.look();
    }

    fn take_resumed(&self, key: &Key) -> Option<journal::Pieces> {
        self.loaded
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .parts
            .remove(key)
    }

    fn summarise(&self) -> Summary {
        let mut summary = self
            .summary
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let s = self.progress.snapshot();
        summary.files = s.files_scheduled;
        summary.files_skipped = s.files_skipped;
        summary.others = s.others_done;
        summary.bytes = s.bytes_scheduled;
        summary.bytes_sent = s.bytes_acknowledged;
        summary.bytes_resumed = self.resumed.load(Ordering::Relaxed);
        summary.chunks_resent = s.chunks_resent;
        summary.files_restarted = s.files_restarted;
        summary
    }
}
