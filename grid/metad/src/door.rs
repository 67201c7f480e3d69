//! Connections: pipelined frames or gRPC, by what the TLS handshake agreed on. Every refusal is logged.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use kuroshio_catalog::{Handle, Ino, Place, Release};
use kuroshio_proto::frame::{self, FrameError};
use kuroshio_proto::v1::{
    ClientFrame, Code, Context, Failure, Request, Response, ServerFrame, client_frame, response,
};
use kuroshio_proto::{ALPN_GRPC, MAX_IN_FLIGHT, code_name};
use kuroshio_service::door::{Door, Speaker};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::{mpsc, watch};

use crate::auth::Who;
use crate::rpc;
use crate::server::Inner;

/// Longest wait for the first message.
const HELLO_LIMIT: Duration = Duration::from_secs(10);
/// Bytes read at once; buffers beyond four times as many are given back.
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

/// A connection of pipelined requests, in one task.
///
/// ```text
///   read ──> request ──at once?──yes──────────────────────────> gathered answers ──> written
///                        └──no──> task of its own ──finished──────────^
/// ```
///
/// What is answered from memory, or from the embedded catalog's cache, never leaves this task. It goes on reading while
/// answers wait to be written, up to [`MAX_IN_FLIGHT`] of them: a client that keeps to that number never waits for itself.
async fn frames(inner: Arc<Inner>, door: Door, peer: SocketAddr, stop: watch::Receiver<bool>) {
    let (from, to) = tokio::io::split(door);
    let mut requests = Requests::new(from);
    let mut answers = Answers::new(to);
    let who = match tokio::time::timeout(HELLO_LIMIT, hello(&inner, &mut requests)).await {
        Ok(Ok(who)) => who,
        Ok(Err(failure)) => {
            tracing::warn!(%peer, "refused: {failure}");
            answers.append(&answer_frame(0, failure.into()));
            let _ = answers.write().await;
            let _ = answers.to.shutdown().await;
            return;
        }
        Err(_) => {
            tracing::warn!(%peer, "refused: no token within {} s", HELLO_LIMIT.as_secs());
            return;
        }
    };
    let session = Arc::new(Session::new(who, peer));
    let (done, mut finished) = mpsc::channel(MAX_IN_FLIGHT);
    let spoken = speak(
        &inner,
        &session,
        (&mut requests, &mut answers),
        (&done, &mut finished),
        stop,
    );
    if let Err(e) = spoken.await {
        tracing::warn!(%peer, user = session.who.caller.user, "refused: {e}");
        let failure = Failure::new(Code::Invalid, e.to_string());
        answers.append(&answer_frame(0, failure.into()));
    }
    drop(done);
    // Answers that are still made go out; a peer that does not read them ends with its socket.
    let mut broken = answers.write().await.is_err();
    while let Some(answer) = finished.recv().await {
        if !broken {
            answers.append(&answer);
            broken = answers.write().await.is_err();
        }
    }
    let _ = answers.to.shutdown().await;
    session.end(&inner).await;
}

type Finished = mpsc::Sender<ServerFrame>;

/// Reads requests and writes answers until the peer ends it or `stop` says so; the error is the peer's fault.
async fn speak(
    inner: &Arc<Inner>,
    session: &Arc<Session>,
    (requests, answers): (&mut Requests<ReadHalf<Door>>, &mut Answers<WriteHalf<Door>>),
    (done, finished): (&Finished, &mut mpsc::Receiver<ServerFrame>),
    mut stop: watch::Receiver<bool>,
) -> Result<(), FrameError> {
    // Requests whose answers are not written yet.
    let mut open = 0;
    loop {
        while open < MAX_IN_FLIGHT
            && let Some(ClientFrame { number, body }) = requests.next()?
        {
            let request = match body {
                Some(client_frame::Body::Request(request)) => request,
                _ => Request::default(),
            };
            open += 1;
            if let Some(answer) = begin(inner, session, (number, request), done).await {
                answers.append(&answer);
            }
        }
        tokio::select! {
            biased;
            _ = stop.changed() => return Ok(()),
            written = answers.write(), if !answers.is_idle() => match written {
                Ok(count) => open -= count,
                Err(_) => return Ok(()),
            },
            Some(answer) = finished.recv() => {
                answers.append(&answer);
                while let Ok(answer) = finished.try_recv() {
                    answers.append(&answer);
                }
            }
            more = requests.more(), if open < MAX_IN_FLIGHT => {
                if more? == 0 {
                    return requests.end();
                }
            }
        }
    }
}

/// Begins to answer a request: the answer, if it is there at once; else `done` gets it.
async fn begin(
    inner: &Arc<Inner>,
    session: &Arc<Session>,
    (number, request): (u64, Request),
    done: &Finished,
) -> Option<ServerFrame> {
    let (inner, session) = (inner.clone(), session.clone());
    let mut work = Box::pin(async move { answer(&inner, &session, request).await });
    let first = std::future::poll_fn(|cx| Poll::Ready(work.as_mut().poll(cx))).await;
    if let Poll::Ready(result) = first {
        return Some(answer_frame(number, result));
    }
    let done = done.clone();
    tokio::spawn(async move {
        let result = work.await;
        // The peer may be gone.
        let _ = done.send(answer_frame(number, result)).await;
    });
    None
}

/// The first message, and who it comes from.
async fn hello<R: AsyncRead + Unpin>(inner: &Inner, requests: &mut Requests<R>) -> Result<Who, Failure> {
    let invalid = |e: FrameError| Failure::new(Code::Invalid, e.to_string());
    let first = loop {
        if let Some(first) = requests.next().map_err(invalid)? {
            break first.body;
        }
        if requests.more().await.map_err(invalid)? == 0 {
            requests.end().map_err(invalid)?;
            break None;
        }
    };
    match first {
        Some(client_frame::Body::Hello(hello)) => inner.who(&hello.token),
        _ => Err(Failure::new(
            Code::Unauthenticated,
            "the first message of a connection carries the token",
        )),
    }
}

/// Requests as they come.
struct Requests<R> {
    from: R,
    bytes: Vec<u8>,
    /// So many of them were taken.
    taken: usize,
}

impl<R: AsyncRead + Unpin> Requests<R> {
    fn new(from: R) -> Self {
        let bytes = Vec::new();
        Self {
            from,
            bytes,
            taken: 0,
        }
    }

    /// The next message that is here whole.
    fn next(&mut self) -> Result<Option<ClientFrame>, FrameError> {
        let found = frame::split(self.bytes.get(self.taken..).unwrap_or_default())?;
        Ok(found.map(|(message, used)| {
            self.taken += used;
            message
        }))
    }

    /// Reads what there is, at least a byte; 0 at the end. May be given up at any time.
    async fn more(&mut self) -> Result<usize, FrameError> {
        self.bytes.drain(..self.taken);
        self.taken = 0;
        if self.bytes.is_empty() && self.bytes.capacity() > 4 * GATHER_BYTES {
            self.bytes = Vec::new();
        }
        // It grows with what has come, not with what was announced.
        self.bytes.reserve(GATHER_BYTES);
        Ok(self.from.read_buf(&mut self.bytes).await?)
    }

    /// After the end: whether it was between two messages.
    fn end(&self) -> Result<(), FrameError> {
        if self.taken < self.bytes.len() {
            return Err(FrameError::Io(io::ErrorKind::UnexpectedEof.into()));
        }
        Ok(())
    }
}

/// Answers on their way out, many in one write.
struct Answers<W> {
    to: W,
    bytes: Vec<u8>,
    written: usize,
    /// Answers in `bytes`.
    count: usize,
}

impl<W: AsyncWrite + Unpin> Answers<W> {
    fn new(to: W) -> Self {
        Self {
            to,
            bytes: Vec::new(),
            written: 0,
            count: 0,
        }
    }

    fn is_idle(&self) -> bool {
        self.count == 0
    }

    fn append(&mut self, answer: &ServerFrame) {
        self.count += 1;
        if let Err(e) = frame::append(&mut self.bytes, answer) {
            let failure = Failure::new(Code::Limit, format!("the answer: {e}"));
            // A failure always fits.
            let _ = frame::append(&mut self.bytes, &answer_frame(answer.number, failure.into()));
        }
    }

    /// Writes all; how many answers that were. May be given up at any time, and goes on then where it was.
    async fn write(&mut self) -> io::Result<usize> {
        while let Some(left) = self.bytes.get(self.written..).filter(|left| !left.is_empty()) {
            match self.to.write(left).await? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                n => self.written += n,
            }
        }
        self.to.flush().await?;
        self.written = 0;
        if self.bytes.capacity() > 4 * GATHER_BYTES {
            self.bytes = Vec::new();
        }
        self.bytes.clear();
        Ok(std::mem::take(&mut self.count))
    }
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
