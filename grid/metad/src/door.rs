//! Connections: pipelined frames or gRPC, by what the TLS handshake agreed on. Every refusal is logged.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kuroshio_catalog::{Handle, Release};
use kuroshio_proto::frame::{self, FrameError};
use kuroshio_proto::v1::{
    ClientFrame, Code, Failure, Response, ServerFrame, client_frame, request, response,
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

/// What one connection has.
pub struct Session {
    /// Who speaks.
    pub who: Who,
    /// From where.
    pub peer: SocketAddr,
    handles: Mutex<HashSet<u64>>,
}

impl Session {
    /// A session of a known caller.
    pub fn new(who: Who, peer: SocketAddr) -> Self {
        Self {
            who,
            peer,
            handles: Mutex::default(),
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
        let op = match body {
            Some(client_frame::Body::Request(request)) => request.op,
            _ => None,
        };
        let Ok(place) = places.clone().acquire_owned().await else {
            return Ok(());
        };
        let (inner, session, answers) = (inner.clone(), session.clone(), answers.clone());
        tokio::spawn(async move {
            let result = answer(&inner, &session, op).await;
            // The peer may be gone.
            let _ = answers.send(answer_frame(number, result)).await;
            drop(place);
        });
    }
    Ok(())
}

/// Answers one request; refusals are logged.
pub async fn answer(inner: &Arc<Inner>, session: &Session, op: Option<request::Op>) -> response::Result {
    let result = match (op, session.who.check_time()) {
        (_, Err(e)) => Err(e),
        (None, _) => Err(Failure::new(
            Code::Invalid,
            "a request without an operation that this service knows",
        )),
        (Some(op), Ok(())) => inner.answer(session, op).await,
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
