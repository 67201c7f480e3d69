//! One pipelined connection to the metadata service.
//!
//! ```text
//!   submit ──queue──> writer task ──ClientFrame──>           service
//!                        │ number -> waiting answer
//!   Waiting <──oneshot── reader task <──ServerFrame──
//! ```
//!
//! Both tasks live on a runtime thread of their own. When the connection ends, every request that waits is
//! told so; nothing is sent twice. [`crate::service`] chooses the service and opens the next one.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use kuroshio_proto::frame::{self, FrameError};
use kuroshio_proto::v1::{
    ClientFrame, Context, Failure, Hello, Request, ServerFrame, client_frame, request, response,
};
use kuroshio_proto::{ALPN_FRAMES, MAX_IN_FLIGHT};
use kuroshio_service::{Security, ServiceError, dial_tls};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::error::ClientError;

/// Requests that wait to be written.
const QUEUE: usize = 64;
/// Bytes that are gathered into one write.
const GATHER_BYTES: usize = 64 * 1024;

/// How long a service may leave bytes unacknowledged, or keep-alive probes, when there is another one to go to.
const SILENCE: Duration = Duration::from_millis(1500);
/// Keep-alive probes of such a connection: how often (the kernel counts whole seconds).
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// Longest wait for a connection and its handshake when there is another service.
const DIAL_LIMIT: Duration = Duration::from_millis(1500);

type Answer = Result<response::Result, Broken>;

/// How a request was left without an answer.
#[derive(Debug, Clone)]
pub enum Broken {
    /// It was never sent.
    NotSent(String),
    /// It was sent.
    Sent(String),
}

struct Outgoing {
    op: request::Op,
    context: Option<Context>,
    answer: oneshot::Sender<Answer>,
}

struct Expected {
    answer: oneshot::Sender<Answer>,
    _place: OwnedSemaphorePermit,
}

#[derive(Default)]
struct Table {
    expected: HashMap<u64, Expected>,
    ended: Option<String>,
    /// The service refused the connection, and said why.
    refusal: Option<Failure>,
}

/// A connection; dropping it ends it.
pub struct Connection {
    queue: Option<mpsc::Sender<Outgoing>>,
    table: Arc<Mutex<Table>>,
    thread: Option<JoinHandle<()>>,
}

/// An answer that has not come yet.
pub struct Waiting(oneshot::Receiver<Answer>);

impl Waiting {
    /// Waits for the answer.
    pub fn wait(self) -> Answer {
        self.0
            .blocking_recv()
            .unwrap_or_else(|_| Err(Broken::Sent("the connection was closed".into())))
    }
}

impl Connection {
    /// Connects to one service and presents the token. If there are `others`, one that is silent is left soon.
    pub fn open(address: &str, security: &Security, others: bool) -> Result<Self, ClientError> {
        let Security::Pinned { pin, token } = security else {
            return Err(ClientError::Invalid(
                "a grid is spoken to with a pin and a token".into(),
            ));
        };
        let (pin, token, address) = (*pin, token.clone(), address.to_owned());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| ClientError::Invalid(format!("cannot start the connection's thread: {e}")))?;
        let (queue, requests) = mpsc::channel(QUEUE);
        let table = Arc::new(Mutex::new(Table::default()));
        let (opened, is_open) = oneshot::channel::<Result<(), ServiceError>>();
        let shared = table.clone();
        let thread = std::thread::Builder::new()
            .name("grid".into())
            .spawn(move || {
                runtime.block_on(async move {
                    let dial = dial_tls(&address, pin, ALPN_FRAMES);
                    let dialled = if others {
                        let dialled = tokio::time::timeout(DIAL_LIMIT, dial).await;
                        dialled.unwrap_or_else(|_| Err(late(&address)))
                    } else {
                        dial.await
                    };
                    let stream = match dialled {
                        Ok(stream) => stream,
                        Err(e) => return drop(opened.send(Err(e))),
                    };
                    if others {
                        impatient(stream.get_ref().0);
                    }
                    let (from, to) = tokio::io::split(stream);
                    let _ = opened.send(Ok(()));
                    let why = speak(from, to, &token, requests, &shared).await;
                    end(&shared, &why);
                });
                // A blocking look-up of a name must not hold the caller.
                runtime.shutdown_background();
            })
            .map_err(|e| ClientError::Invalid(format!("cannot start the connection's thread: {e}")))?;
        match is_open.blocking_recv() {
            Ok(Ok(())) => Ok(Self {
                queue: Some(queue),
                table,
                thread: Some(thread),
            }),
            Ok(Err(e)) => Err(e.into()),
            Err(_) => Err(ClientError::Lost("its thread ended".into())),
        }
    }

    /// Whether it has ended.
    pub fn is_ended(&self) -> bool {
        lock(&self.table).ended.is_some()
    }

    /// Sends a request; its answer comes later. Waits only while the queue is full.
    pub fn submit(&self, op: request::Op, context: Option<Context>) -> Waiting {
        let (answer, waiting) = oneshot::channel();
        let outgoing = Outgoing { op, context, answer };
        if let Some(queue) = &self.queue
            && let Err(mpsc::error::SendError(left)) = queue.blocking_send(outgoing)
        {
            let table = lock(&self.table);
            let why = table.ended.clone();
            let why = why.unwrap_or_else(|| "the connection was closed".into());
            let _ = left.answer.send(table.left(Broken::NotSent(why)));
        }
        Waiting(waiting)
    }
}

fn late(address: &str) -> ServiceError {
    ServiceError::Peer {
        address: address.to_owned(),
        what: "cannot connect",
        source: io::ErrorKind::TimedOut.into(),
    }
}

/// Ends a connection soon whose service does not answer the network any more. A system that cannot leaves it as
/// it is: then it ends later.
fn impatient(socket: &tokio::net::TcpStream) {
    let socket = SockRef::from(socket);
    let probes = TcpKeepalive::new()
        .with_time(PROBE_EVERY)
        .with_interval(PROBE_EVERY);
    let _ = socket.set_tcp_keepalive(&probes);
    let _ = socket.set_tcp_user_timeout(Some(SILENCE));
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Table {
    /// What a request gets that was left without an answer.
    fn left(&self, broken: Broken) -> Answer {
        match &self.refusal {
            Some(refusal) => Ok(response::Result::Failure(refusal.clone())),
            None => Err(broken),
        }
    }
}

fn lock(table: &Mutex<Table>) -> std::sync::MutexGuard<'_, Table> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Tells all who wait.
fn end(table: &Mutex<Table>, why: &str) {
    let mut table = lock(table);
    table.ended = Some(why.to_owned());
    for (_, expected) in std::mem::take(&mut table.expected) {
        let _ = expected.answer.send(table.left(Broken::Sent(why.to_owned())));
    }
}

/// Speaks until either side ends; says why it ended.
async fn speak(
    from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    token: &str,
    mut requests: mpsc::Receiver<Outgoing>,
    table: &Mutex<Table>,
) -> String {
    let hello = ClientFrame {
        number: 0,
        body: Some(client_frame::Body::Hello(Hello {
            token: token.to_owned(),
        })),
    };
    if let Err(e) = frame::write(&mut to, &hello).await {
        return e.to_string();
    }
    let mut from = BufReader::with_capacity(GATHER_BYTES, from);
    let why = tokio::select! {
        why = read_answers(&mut from, table) => why,
        why = write_requests(&mut to, &mut requests, table) => why,
    };
    requests.close();
    while let Ok(left) = requests.try_recv() {
        let _ = left.answer.send(lock(table).left(Broken::NotSent(why.clone())));
    }
    let _ = to.shutdown().await;
    why
}

async fn read_answers(from: &mut (impl AsyncRead + Unpin), table: &Mutex<Table>) -> String {
    loop {
        match frame::read::<ServerFrame>(from).await {
            Ok(None) => return "the service ended the connection".into(),
            Err(e) => return e.to_string(),
            Ok(Some(ServerFrame { number, response })) => {
                let result = response.and_then(|r| r.result);
                if let (0, Some(response::Result::Failure(refusal))) = (number, &result) {
                    lock(table).refusal = Some(refusal.clone());
                    return refusal.text.clone();
                }
                let (Some(result), Some(expected)) = (result, lock(table).expected.remove(&number)) else {
                    return format!("an answer {number} that nobody waits for");
                };
                let _ = expected.answer.send(Ok(result));
            }
        }
    }
}

async fn write_requests(
    to: &mut (impl AsyncWrite + Unpin),
    requests: &mut mpsc::Receiver<Outgoing>,
    table: &Mutex<Table>,
) -> String {
    let places = Arc::new(Semaphore::new(MAX_IN_FLIGHT));
    let mut number = 0;
    let mut bytes = Vec::new();
    let mut next = requests.recv().await;
    while let Some(outgoing) = next.take() {
        let Ok(place) = places.clone().acquire_owned().await else {
            return "closed".into();
        };
        number += 1;
        append(&mut bytes, number, outgoing, place, table);
        if bytes.len() < GATHER_BYTES
            && places.available_permits() > 0
            && let Ok(more) = requests.try_recv()
        {
            next = Some(more);
            continue;
        }
        if let Err(e) = write_all(to, &bytes).await {
            return e.to_string();
        }
        bytes.clear();
        next = requests.recv().await;
    }
    // Whoever asks no more may still wait for answers.
    let _all = places.acquire_many(MAX_IN_FLIGHT as u32).await;
    "closed".into()
}

fn append(
    bytes: &mut Vec<u8>,
    number: u64,
    outgoing: Outgoing,
    place: OwnedSemaphorePermit,
    table: &Mutex<Table>,
) {
    let message = ClientFrame {
        number,
        body: Some(client_frame::Body::Request(Request {
            op: Some(outgoing.op),
            context: outgoing.context,
        })),
    };
    if let Err(e) = frame::append(bytes, &message) {
        let _ = outgoing.answer.send(Err(Broken::NotSent(e.to_string())));
        return;
    }
    let expected = Expected {
        answer: outgoing.answer,
        _place: place,
    };
    lock(table).expected.insert(number, expected);
}

async fn write_all(to: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> Result<(), FrameError> {
    to.write_all(bytes).await?;
    Ok(to.flush().await?)
}
