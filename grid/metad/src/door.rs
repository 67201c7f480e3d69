//! Connections: pipelined frames or gRPC, by what the TLS handshake agreed on. Every refusal is logged.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kuroshio_catalog::{Handle, Ino, Place, Release};
use kuroshio_proto::frame::{self, FrameError};
use kuroshio_proto::v1::{
    ClientFrame, Code, Context, Failure, Request, Response, ServerFrame, client_frame, response,
};
use kuroshio_proto::{ALPN_GRPC, MAX_IN_FLIGHT, code_name};
use kuroshio_service::door::{Door, Speaker};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::{Semaphore, mpsc, watch};

use crate::auth::Who;
use crate::rpc;
use crate::server::Inner;

/// Longest wait for the first message.
const HELLO_LIMIT: Duration = Duration::from_secs(10);
/// Bytes gathered into one write, and read at once.
const GATHER_BYTES: usize = 64 * 1024;
/// Rights to read that one connection may hold.
pub const MAX_HANDLES: usize = 4096;

/// What one connection has, as one request sees it.
pub struct Session {
    /// Who speaks, or for whom.
    pub who: Arc<Who>,
    /// From where.
    pub peer: SocketAddr,
    handles: Arc<Mutex<HashSet<u64>>>,
    writers: Arc<Mutex<HashMap<u64, Writer>>>,
    /// Inodes that the first and the second path begin at.
    at: [u64; 2],
}

/// A right to write a file, that was checked when it was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Writer {
    /// The file.
    pub ino: Ino,
    /// Whose right.
    pub user: String,
}

impl Session {
    /// A session of a known caller.
    pub fn new(who: Who, peer: SocketAddr) -> Self {
        Self {
            who: Arc::new(who),
            peer,
            handles: Arc::default(),
            writers: Arc::default(),
            at: [0; 2],
        }
    }

    /// The same connection with a request's context.
    fn with(&self, context: &Context) -> Result<Self, Failure> {
        let who = match &context.actor {
            None => self.who.clone(),
            Some(actor) => Arc::new(self.who.acting(actor)?),
        };
        Ok(Self {
            who,
            peer: self.peer,
            handles: self.handles.clone(),
            writers: self.writers.clone(),
            at: [context.inode, context.to_inode],
        })
    }

    /// Where a request's path leads.
    pub fn place(&self, path: &[u8]) -> Place {
        place(self.at[0], path)
    }

    /// Where the second path of a request leads.
    pub fn to_place(&self, path: &[u8]) -> Place {
        place(self.at[1], path)
    }

    /// Keeps a right to write; refuses beyond [`MAX_HANDLES`].
    pub fn keep_writer(&self, handle: u64, writer: Writer) -> bool {
        let mut writers = self.writers.lock().unwrap_or_else(PoisonError::into_inner);
        if writers.len() >= MAX_HANDLES {
            return false;
        }
        writers.insert(handle, writer);
        true
    }

    /// The caller's right to write of this number.
    pub fn writer(&self, handle: u64) -> Option<Writer> {
        let writers = self.writers.lock().unwrap_or_else(PoisonError::into_inner);
        let user = &self.who.caller.user;
        writers.get(&handle).filter(|w| w.user == *user).cloned()
    }

    /// Whether the caller has a right to write this file.
    pub fn writes(&self, ino: Ino) -> bool {
        let writers = self.writers.lock().unwrap_or_else(PoisonError::into_inner);
        let user = &self.who.caller.user;
        writers.values().any(|w| w.ino == ino && w.user == *user)
    }

    /// Ends a right to write.
    pub fn end_writer(&self, handle: u64) {
        if self.writer(handle).is_some() {
            let mut writers = self.writers.lock().unwrap_or_else(PoisonError::into_inner);
            writers.remove(&handle);
        }
    }

    fn handles(&self) -> std::sync::MutexGuard<'_, HashSet<u64>> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a right to read; refuses beyond [`MAX_HANDLES`].
    pub fn keep(&self, handle: Handle) -> bool {
        let mut handles = self.handles();
        handles.len() < MAX_HANDLES && handles.insert(handle.0)
    }

    /// Gives up what is left at the end.
    pub async fn end(&self, inner: &Inner) {
        let left = std::mem::take(&mut *self.handles());
        for handle in left {
            let handle = Handle(handle);
            // An unknown handle is as good as a released one.
            let _ = inner.ask(&inner.service(), Release { handle }).await;
        }
    }

    /// Gives a right up; says whether it was this session's.
    pub fn give_up(&self, handle: u64) -> bool {
        self.handles().remove(&handle)
    }
}

/// A path from an inode (which may be empty: the inode itself), or from the root.
fn place(at: u64, path: &[u8]) -> Place {
    match at {
        0 if path.starts_with(b"/") => Place::path(path),
        // Refused when the right to it is looked for: there is no such inode.
        0 => Place::at(Ino(0), path),
        at => Place::at(Ino(at), path),
    }
}

impl Speaker for Inner {
    async fn speak(self: Arc<Self>, door: Door, peer: SocketAddr, stop: watch::Receiver<bool>) {
        if door.alpn() == Some(ALPN_GRPC) {
            rpc::speak(self, door, peer, stop).await;
        } else {
            frames(self, door, peer, stop).await;
        }
    }
}

async fn frames(inner: Arc<Inner>, door: Door, peer: SocketAddr, mut stop: watch::Receiver<bool>) {
    let (from, mut to) = tokio::io::split(door);
    let mut from = BufReader::with_capacity(GATHER_BYTES, from);
    let who = match tokio::time::timeout(HELLO_LIMIT, hello(&inner, &mut from)).await {
        Ok(Ok(who)) => who,
        Ok(Err(failure)) => {
            tracing::warn!(%peer, "refused: {failure}");
            let _ = frame::write(&mut to, &answer_frame(0, failure.into())).await;
            let _ = to.shutdown().await;
            return;
        }
        Err(_) => {
            tracing::warn!(%peer, "refused: no token within {} s", HELLO_LIMIT.as_secs());
            return;
        }
    };
    let session = Arc::new(Session::new(who, peer));
    let (answers, waiting) = mpsc::channel(MAX_IN_FLIGHT);
    let writer = tokio::spawn(write_answers(to, waiting));
    let ended = tokio::select! {
        ended = read_requests(&inner, &session, &mut from, &answers) => ended,
        _ = stop.changed() => Ok(()),
    };
    if let Err(e) = ended {
        tracing::warn!(%peer, user = session.who.caller.user, "refused: {e}");
        let failure = Failure::new(Code::Invalid, e.to_string());
        let _ = answers.send(answer_frame(0, failure.into())).await;
    }
    drop(answers);
    // Answers that are still made go out; a peer that does not read them ends with its socket.
    let _ = writer.await;
    session.end(&inner).await;
}

/// The first message, and who it comes from.
async fn hello(inner: &Inner, from: &mut (impl AsyncRead + Unpin)) -> Result<Who, Failure> {
    let first = frame::read::<ClientFrame>(from)
        .await
        .map_err(|e| Failure::new(Code::Invalid, e.to_string()))?;
    match first.and_then(|f| f.body) {
        Some(client_frame::Body::Hello(hello)) => inner.who(&hello.token),
        _ => Err(Failure::new(
            Code::Unauthenticated,
            "the first message of a connection carries the token",
        )),
    }
}

async fn read_requests(
    inner: &Arc<Inner>,
    session: &Arc<Session>,
    from: &mut (impl AsyncRead + Unpin),
    answers: &mpsc::Sender<ServerFrame>,
) -> Result<(), FrameError> {
    let places = Arc::new(Semaphore::new(MAX_IN_FLIGHT));
    while let Some(ClientFrame { number, body }) = frame::read::<ClientFrame>(from).await? {
        let request = match body {
            Some(client_frame::Body::Request(request)) => request,
            _ => Request::default(),
        };
        let Ok(place) = places.clone().acquire_owned().await else {
            return Ok(());
        };
        let (inner, session, answers) = (inner.clone(), session.clone(), answers.clone());
        tokio::spawn(async move {
            let result = answer(&inner, &session, request).await;
            // The peer may be gone.
            let _ = answers.send(answer_frame(number, result)).await;
            drop(place);
        });
    }
    Ok(())
}

/// Answers one request; refusals are logged.
pub async fn answer(inner: &Arc<Inner>, session: &Session, request: Request) -> response::Result {
    let result = match (request.op, session.who.check_time()) {
        (_, Err(e)) => Err(e),
        (None, _) => Err(Failure::new(
            Code::Invalid,
            "a request without an operation that this service knows",
        )),
        (Some(op), Ok(())) => match &request.context {
            None => inner.answer(session, op).await,
            Some(context) => match session.with(context) {
                Ok(session) => inner.answer(&session, op).await,
                Err(e) => Err(e),
            },
        },
    };
    result.unwrap_or_else(|failure| {
        let refused = matches!(
            failure.code(),
            Code::Access | Code::Permission | Code::Unauthenticated | Code::Invalid
        );
        if refused {
            let (peer, user, code) = (session.peer, &session.who.caller.user, code_name(failure.code()));
            tracing::warn!(%peer, user, code, "refused: {failure}");
        }
        failure.into()
    })
}

fn answer_frame(number: u64, result: response::Result) -> ServerFrame {
    ServerFrame {
        number,
        response: Some(Response { result: Some(result) }),
    }
}

/// Writes answers as they come, many in one write.
async fn write_answers(mut to: impl AsyncWrite + Unpin, mut waiting: mpsc::Receiver<ServerFrame>) {
    let mut bytes = Vec::new();
    while let Some(first) = waiting.recv().await {
        let mut next = Some(first);
        while let Some(answer) = next.take() {
            append(&mut bytes, answer);
            if bytes.len() < GATHER_BYTES {
                next = waiting.try_recv().ok();
            }
        }
        if to.write_all(&bytes).await.is_err() || to.flush().await.is_err() {
            return;
        }
        bytes.clear();
    }
    let _ = to.shutdown().await;
}

fn append(bytes: &mut Vec<u8>, answer: ServerFrame) {
    if let Err(e) = frame::append(bytes, &answer) {
        let failure = Failure::new(Code::Limit, format!("the answer: {e}"));
        // A failure always fits.
        let _ = frame::append(bytes, &answer_frame(answer.number, failure.into()));
    }
}
