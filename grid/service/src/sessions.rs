//! Sessions: from the request to the last byte.
//!
//! ```text
//!   POST ──> waiting ──fwd and rev are here──> running ──its thread returns──> gone
//!              │ CONTROL_LIMIT_S                  │ data streams join until all are here or JOIN_LIMIT_S
//!              └──────────> gone                  └ cancelled when the service stops
//! ```
//!
//! A session is named by 128 random bits; each of its connections is made under the token that made it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::IpAddr;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use kuroshio_core::units::BitRate;
use kuroshio_transfer::{
    Conn, DataConn, Progress, ReceiveJob, SendJob, SessionConns, Source, Summary, TransferError,
};

use crate::error::ServiceError;
use crate::pacer::{PaceGuard, Pacer};
use crate::path::{Root, RootPath};

/// Sessions at once, waiting and running.
pub const MAX_SESSIONS: usize = 64;
/// Longest wait for both control connections, seconds.
pub const CONTROL_LIMIT_S: u64 = 15;
/// Ended sessions whose reason is kept, for connections that come too late.
const REASONS: usize = 256;
/// Longest time in which data streams may join, seconds.
pub const JOIN_LIMIT_S: u64 = 60;

/// What a session does at the service.
pub enum Work {
    /// The client sends.
    Receive(ReceiveJob),
    /// The service sends, paced.
    Send(SendJob),
}

/// One of a session's connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slot {
    /// Control, sender to receiver.
    Fwd,
    /// Control, receiver to sender.
    Rev,
    /// Data stream by number.
    Data(u32),
}

/// A group of streams, as granted.
#[derive(Debug, Clone, Copy)]
pub struct Group {
    /// How many.
    pub streams: u32,
    /// Limit of each, frame level.
    pub stream_rate: Option<BitRate>,
}

/// One session.
struct Session {
    owner: String,
    work: Option<Work>,
    groups: Vec<Group>,
    congestion: Option<String>,
    fwd: Option<Conn>,
    rev: Option<Conn>,
    taken: HashSet<u32>,
    reserved_fwd: bool,
    reserved_rev: bool,
    joined: u32,
    sends: bool,
    data_in: Option<Sender<DataConn>>,
    data_out: Option<Receiver<DataConn>>,
    leases: Vec<PaceGuard>,
    progress: Arc<Progress>,
}

/// The sessions of a service.
pub struct Sessions {
    table: Mutex<HashMap<String, Session>>,
    /// Names of sessions that failed, and why.
    reasons: Mutex<VecDeque<(String, String)>>,
    pacer: Arc<dyn Pacer>,
}

/// Why a connection cannot join.
#[derive(Debug, PartialEq, Eq)]
pub enum JoinError {
    /// No such session, or it is over, or another's.
    Unknown,
    /// The place is taken, or there is no such place.
    Taken,
}

impl Sessions {
    /// No sessions yet; data streams that leave are paced by `pacer`.
    pub fn new(pacer: Arc<dyn Pacer>) -> Arc<Self> {
        Arc::new(Self {
            table: Mutex::default(),
            reasons: Mutex::default(),
            pacer,
        })
    }

    fn table(&self) -> MutexGuard<'_, HashMap<String, Session>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a session for `owner` (a token's subject and identity) and returns its name; `None` when there
    /// are [`MAX_SESSIONS`].
    pub fn open(
        &self,
        owner: &str,
        work: Work,
        groups: Vec<Group>,
        congestion: Option<String>,
    ) -> Result<Option<String>, ServiceError> {
        let id = crate::identity::random_hex()?;
        let (data_in, data_out) = mpsc::channel();
        let session = Session {
            owner: owner.to_owned(),
            sends: matches!(work, Work::Send(_)),
            work: Some(work),
            groups,
            congestion,
            fwd: None,
            rev: None,
            taken: HashSet::new(),
            reserved_fwd: false,
            reserved_rev: false,
            joined: 0,
            data_in: Some(data_in),
            data_out: Some(data_out),
            leases: Vec::new(),
            progress: Arc::new(Progress::new()),
        };
        let mut table = self.table();
        if table.len() >= MAX_SESSIONS {
            return Ok(None);
        }
        table.insert(id.clone(), session);
        Ok(Some(id))
    }

    /// Why a session failed, if it did lately.
    pub fn reason(&self, id: &str) -> Option<String> {
        let reasons = self.reasons.lock().unwrap_or_else(PoisonError::into_inner);
        reasons
            .iter()
            .find(|(name, _)| name == id)
            .map(|(_, reason)| reason.clone())
    }

    fn keep_reason(&self, id: &str, reason: String) {
        let mut reasons = self.reasons.lock().unwrap_or_else(PoisonError::into_inner);
        if reasons.len() >= REASONS {
            reasons.pop_front();
        }
        reasons.push_back((id.to_owned(), reason));
    }

    /// Keeps a place for a connection that is about to be upgraded.
    pub fn reserve(&self, id: &str, owner: &str, slot: Slot) -> Result<(), JoinError> {
        let mut table = self.table();
        let session = table
            .get_mut(id)
            .filter(|s| s.owner == owner)
            .ok_or(JoinError::Unknown)?;
        let free = match slot {
            Slot::Fwd => !std::mem::replace(&mut session.reserved_fwd, true),
            Slot::Rev => !std::mem::replace(&mut session.reserved_rev, true),
            Slot::Data(n) => n < session.streams() && session.data_in.is_some() && session.taken.insert(n),
        };
        if free { Ok(()) } else { Err(JoinError::Taken) }
    }

    /// Puts a connection in its place; the session begins when both controls are here.
    pub fn join(
        self: &Arc<Self>,
        id: &str,
        slot: Slot,
        conn: Conn,
        peer: IpAddr,
    ) -> Result<(), ServiceError> {
        let gone = || ServiceError::Transfer("the session is over".into());
        if let Slot::Data(n) = slot {
            return self.join_data(id, n, conn, peer);
        }
        let mut table = self.table();
        let session = table.get_mut(id).ok_or_else(gone)?;
        match slot {
            Slot::Fwd => session.fwd = Some(conn),
            _ => session.rev = Some(conn),
        }
        if session.fwd.is_none() || session.rev.is_none() {
            return Ok(());
        }
        let (Some(fwd), Some(rev)) = (session.fwd.take(), session.rev.take()) else {
            return Ok(());
        };
        let (Some(work), Some(data)) = (session.work.take(), session.data_out.take()) else {
            return Err(gone());
        };
        let conns = SessionConns { fwd, rev, data };
        let progress = session.progress.clone();
        drop(table);
        let (sessions, name) = (self.clone(), id.to_owned());
        std::thread::Builder::new()
            .name("session".into())
            .spawn(move || sessions.run(&name, work, conns, &progress, peer))
            .map(drop)
            .map_err(|e| {
                self.remove(id);
                ServiceError::Transfer(format!("cannot start a thread: {e}"))
            })
    }

    fn join_data(&self, id: &str, n: u32, conn: Conn, peer: IpAddr) -> Result<(), ServiceError> {
        let gone = || ServiceError::Transfer("the session is over".into());
        let (sends, congestion, route, limit) = {
            let table = self.table();
            let session = table.get(id).ok_or_else(gone)?;
            let (route, group) = session.group_of(n).ok_or_else(gone)?;
            (
                session.sends,
                session.congestion.clone(),
                route,
                group.stream_rate,
            )
        };
        let mut data = DataConn {
            route,
            ..DataConn::unpaced(conn)
        };
        let mut guard = None;
        if sends {
            if let (Some(name), Some(socket)) = (congestion, data.conn.tcp()) {
                kuroshio_sock::set_congestion(socket, &name)
                    .map_err(|e| ServiceError::peer(peer, "cannot set the congestion control", e))?;
            }
            // Outside the table's lock: a pacer may wait.
            let paced = self.pacer.pace(peer, limit)?;
            data.rate = paced.rate;
            guard = paced.guard;
        }
        let mut table = self.table();
        let session = table.get_mut(id).ok_or_else(gone)?;
        session.leases.extend(guard);
        let sent = session.data_in.as_ref().is_some_and(|tx| tx.send(data).is_ok());
        session.joined += 1;
        if session.joined >= session.streams() {
            session.data_in = None;
        }
        if sent { Ok(()) } else { Err(gone()) }
    }

    fn run(&self, id: &str, work: Work, conns: SessionConns, progress: &Progress, peer: IpAddr) {
        let _ended = Ended { sessions: self, id };
        let begun = Instant::now();
        let (what, result) = match work {
            Work::Receive(job) => ("receive", kuroshio_transfer::receive(conns, job, progress)),
            Work::Send(job) => ("send", kuroshio_transfer::send(conns, job, progress)),
        };
        if let Err(e) = &result {
            self.keep_reason(id, e.to_string());
        }
        log_end(what, peer, begun, &result);
    }

    fn remove(&self, id: &str) {
        // The entry (with its leases) is dropped after the lock is given back.
        let entry = self.table().remove(id);
        drop(entry);
    }

    /// Ends a session whose controls have not come; called after [`CONTROL_LIMIT_S`].
    pub fn end_if_waiting(&self, id: &str) {
        let waiting = self.table().get(id).is_some_and(|s| s.work.is_some());
        if waiting {
            tracing::warn!(
                "refused: a session's control connections did not come within {CONTROL_LIMIT_S} s"
            );
            self.remove(id);
        }
    }

    /// Lets no more data streams join; called after [`JOIN_LIMIT_S`].
    pub fn close_joining(&self, id: &str) {
        if let Some(session) = self.table().get_mut(id) {
            session.data_in = None;
        }
    }

    /// Cancels all sessions.
    pub fn cancel_all(&self) {
        for session in self.table().values_mut() {
            session.progress.cancel();
            session.data_in = None;
        }
    }

    /// How many sessions run.
    pub fn running(&self) -> usize {
        self.table().values().filter(|s| s.work.is_none()).count()
    }
}

/// Takes a session out of the table when its thread ends, in whatever way.
struct Ended<'a> {
    sessions: &'a Sessions,
    id: &'a str,
}

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.sessions.remove(self.id);
    }
}

impl Session {
    fn streams(&self) -> u32 {
        self.groups.iter().map(|g| g.streams).sum()
    }

    /// The group of stream `n`: streams are numbered through the groups in order.
    fn group_of(&self, n: u32) -> Option<(u32, Group)> {
        let mut end = 0;
        for (route, group) in self.groups.iter().enumerate() {
            end += group.streams;
            if n < end {
                return Some((u32::try_from(route).ok()?, *group));
            }
        }
        None
    }
}

fn log_end(what: &str, peer: IpAddr, begun: Instant, result: &Result<Summary, TransferError>) {
    let seconds = begun.elapsed().as_secs_f64();
    match result {
        Ok(s) => tracing::info!(
            %peer,
            seconds,
            files_durable = s.files_durable,
            files_failed = s.files_failed,
            bytes_sent = s.bytes_sent,
            "{what} ended"
        ),
        Err(e) => tracing::warn!(%peer, seconds, "{what} ended early: {e}"),
    }
}

/// Sources below a served root.
pub fn sources_of(root: &Root, paths: &[RootPath]) -> Result<Vec<Source>, ServiceError> {
    let sources = paths.iter().map(|path| {
        Ok(Source {
            base: root.duplicate()?,
            path: path.relative().to_vec(),
            name: path.source_name().to_vec(),
        })
    });
    sources.collect()
}
