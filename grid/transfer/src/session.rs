//! The two sides of a session as the caller sees them.

use crate::conn::Conn;
use crate::error::{FileError, TransferError};
use crate::options::{Options, SessionKey};
use crate::progress::Progress;
use kuroshio_core::units::BitRate;
use kuroshio_sock::Trim;
use std::io;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The target rate of one stream, frame level; shared between the stream and whoever owns the plan.
#[derive(Debug, Default)]
pub struct StreamRate {
    /// Bits per second; 0 is no limit.
    bps: AtomicU64,
    /// Whether it is a bound on one window per round trip (dynamic pacing).
    follows: AtomicBool,
    /// The stream's socket once the session has it, and what holds its average.
    socket: Mutex<Option<(TcpStream, Trim)>>,
}

impl StreamRate {
    /// A rate; `None` is no limit.
    pub fn new(frame_level: Option<BitRate>) -> Arc<Self> {
        Arc::new(Self {
            bps: AtomicU64::new(frame_level.map_or(0, |r| r.bps())),
            follows: AtomicBool::new(false),
            socket: Mutex::new(None),
        })
    }

    /// From now on the stream sends one congestion window per round trip ([`kuroshio_sock::follow_window`]), with
    /// its rate as the bound.
    pub fn follow_window(&self) {
        self.follows.store(true, Ordering::SeqCst);
    }

    /// Whether it sends one window per round trip.
    pub fn follows_window(&self) -> bool {
        self.follows.load(Ordering::SeqCst)
    }

    /// Sets the rate and, when the stream runs, tells its socket at once.
    ///
    /// # Errors
    /// What [`kuroshio_sock::keep_pacing`] gives; the rate is kept and tried again at the next tick.
    pub fn set(&self, frame_level: Option<BitRate>) -> io::Result<()> {
        self.bps
            .store(frame_level.map_or(0, |r| r.bps()), Ordering::SeqCst);
        self.apply()
    }

    /// The rate; `None` is no limit.
    pub fn get(&self) -> Option<BitRate> {
        BitRate::from_bps(self.bps.load(Ordering::SeqCst)).ok()
    }

    pub(crate) fn attach(&self, socket: &TcpStream) -> io::Result<()> {
        *self.socket.lock().unwrap_or_else(PoisonError::into_inner) =
            Some((socket.try_clone()?, Trim::default()));
        if self.get().is_some() || self.follows_window() {
            self.apply()
        } else {
            Ok(())
        }
    }

    pub(crate) fn detach(&self) {
        *self.socket.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Tells the socket its rate of this moment; `None` when there is no need to look again before the next tick.
    pub(crate) fn look(&self) -> io::Result<Option<Duration>> {
        if !self.follows_window() {
            return self.apply().map(|()| None);
        }
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        match socket.as_ref() {
            Some((socket, _)) => {
                let (_, after) = kuroshio_sock::follow_window(socket, self.get())?;
                Ok(Some(after))
            }
            None => Ok(None),
        }
    }

    pub(crate) fn apply(&self) -> io::Result<()> {
        if self.follows_window() {
            return self.look().map(drop);
        }
        let mut socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        match socket.as_mut() {
            Some((socket, trim)) => kuroshio_sock::keep_pacing(socket, self.get(), trim).map(|_| ()),
            None => Ok(()),
        }
    }
}

/// One data stream of a session.
#[derive(Debug)]
pub struct DataConn {
    /// The connection.
    pub conn: Conn,
    /// Route it belongs to, as the caller numbers routes.
    pub route: u32,
    /// Its pace (used by the sender only).
    pub rate: Arc<StreamRate>,
}

impl DataConn {
    /// A stream of route 0 without a rate limit.
    pub fn unpaced(conn: Conn) -> Self {
        Self {
            conn,
            route: 0,
            rate: StreamRate::new(None),
        }
    }
}

/// The connections of a session.
#[derive(Debug)]
pub struct SessionConns {
    /// Control, sender to receiver.
    pub fwd: Conn,
    /// Control, receiver to sender.
    pub rev: Conn,
    /// Data streams as they come: later ones join while the session runs. Keep the other end of the channel
    /// as long as streams may still join; once it is dropped and all streams have broken, the session ends.
    pub data: Receiver<DataConn>,
}

impl SessionConns {
    /// A session with a fixed set of streams.
    pub fn new(fwd: Conn, rev: Conn, data: Vec<DataConn>) -> Self {
        let (tx, rx) = mpsc::channel();
        for conn in data {
            // The receiver is alive in this scope, so the channel takes every stream.
            let _ = tx.send(conn);
        }
        Self { fwd, rev, data: rx }
    }
}

/// One thing to send: a file, a symbolic link or a directory with all below it.
#[derive(Debug)]
pub struct Source {
    /// Folder that `path` is beneath; nothing outside of it is ever read.
    pub base: OwnedFd,
    /// Path beneath `base`, bytes; empty or `.` is `base` itself.
    pub path: Vec<u8>,
    /// Name at the destination (one component); empty sends the contents of a directory without its name.
    pub name: Vec<u8>,
}

/// What the sender does.
#[derive(Debug)]
pub struct SendJob {
    /// What to send; names must differ.
    pub sources: Vec<Source>,
    /// How.
    pub options: Options,
    /// Finds the state of an earlier run of the same command ([`crate::session_key`]).
    pub key: SessionKey,
}

/// What the receiver does.
#[derive(Debug)]
pub struct ReceiveJob {
    /// Folder that the destination is beneath; nothing outside of it is ever written.
    pub root: OwnedFd,
    /// Destination path beneath `root`, bytes; empty or `.` is `root` itself.
    pub dest: Vec<u8>,
}

/// How a session ended, when it came to its end; both sides return the same counts as far as each sees them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Files announced.
    pub files: u64,
    /// Files published and flushed in this run.
    pub files_durable: u64,
    /// Files among them whose content was compared with the sender's digest.
    pub files_verified: u64,
    /// Files that the destination had already.
    pub files_skipped: u64,
    /// Directories, symbolic links and hard links made.
    pub others: u64,
    /// Payload bytes of all files announced.
    pub bytes: u64,
    /// File bytes sent in this run, those sent again included.
    pub bytes_sent: u64,
    /// File bytes found at the destination from an earlier run.
    pub bytes_resumed: u64,
    /// Chunks sent again after a wrong digest.
    pub chunks_resent: u64,
    /// Bytes of them.
    pub bytes_resent: u64,
    /// Times a file was begun again because its source changed.
    pub files_restarted: u64,
    /// Files that were not moved; the first [`Summary::MAX_ERRORS`] of them.
    pub errors: Vec<FileError>,
    /// How many were not moved in all.
    pub files_failed: u64,
}

impl Summary {
    /// Errors kept in a summary; all of them go to the event sink.
    pub const MAX_ERRORS: usize = 1000;

    /// Whether every file is at the destination, durable and checked as asked.
    pub fn is_complete(&self) -> bool {
        self.files_failed == 0
    }
}

/// Runs the sender's side to its end. Raises this process's soft limit of open files to the hard one.
///
/// Returns `Ok` when the session came to its end, also if single files failed ([`Summary::is_complete`]).
///
/// # Errors
/// [`TransferError`]; the same command again goes on where this one ended.
pub fn send(conns: SessionConns, job: SendJob, progress: &Progress) -> Result<Summary, TransferError> {
    crate::sys::raise_open_files();
    crate::sender::run(conns, job, progress)
}

/// Runs the receiver's side to its end. Raises this process's soft limit of open files to the hard one.
///
/// Returns `Ok` when the session came to its end, also if single files failed ([`Summary::is_complete`]).
///
/// # Errors
/// [`TransferError`]; what was written stays in the state folder for the next run.
pub fn receive(conns: SessionConns, job: ReceiveJob, progress: &Progress) -> Result<Summary, TransferError> {
    crate::sys::raise_open_files();
    crate::receiver::run(conns, job, progress)
}
