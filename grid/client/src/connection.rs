//! One pipelined connection to the metadata service, without a thread of its own: those who wait for answers do its work.
//!
//! ```text
//!   submit ──encrypt──> out ──the first who comes writes, for all who come meanwhile──> service
//!   wait ──nobody reads?──yes──> read for all, until one's own answer is here ──> another who waits reads on
//!               └──no──> sleep until woken: the answer is here, or it is one's turn to read
//! ```
//!
//! So one caller alone has no other thread between itself and the network. While nobody waits nobody reads; that a
//! connection has ended meanwhile is seen before the next request is sent on it. When it ends, every request that waits is
//! told so; nothing is sent twice. [`crate::service`] chooses the service and opens the next one.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, Thread};
use std::time::Duration;

use kuroshio_proto::v1::{
    ClientFrame, Context, Failure, Hello, Request, ServerFrame, client_frame, request, response,
};
use kuroshio_proto::{ALPN_FRAMES, MAX_IN_FLIGHT, frame};
use kuroshio_service::{Pin, Security, ServiceError, dial_tls_blocking};
use rustix::net::RecvFlags;
use rustls::ClientConnection;
use socket2::{SockRef, TcpKeepalive};

use crate::error::ClientError;

/// Bytes that are read at once.
const READ_BYTES: usize = 64 * 1024;
/// A buffer that has grown beyond this is given back when it is empty, bytes.
const KEPT_BYTES: usize = 256 * 1024;

/// How long a service may leave bytes unacknowledged, or keep-alive probes, when there is another one to go to.
const SILENCE: Duration = Duration::from_millis(1500);
/// Keep-alive probes of such a connection: how often (the kernel counts whole seconds).
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// Longest wait for a connection and its handshake when there is another service.
const DIAL_LIMIT: Duration = Duration::from_millis(1500);
/// Longest silence while what was asked, and nobody waits for, is answered before the connection goes.
const LAST_ANSWERS: Duration = Duration::from_secs(5);

type Answer = Result<response::Result, Broken>;

/// How a request was left without an answer.
#[derive(Debug, Clone)]
pub enum Broken {
    /// It was never sent.
    NotSent(String),
    /// It was sent.
    Sent(String),
}

/// A request on its way.
#[derive(Default)]
struct Expected {
    answer: Option<Answer>,
    /// Who sleeps until it is here.
    waiter: Option<Thread>,
    /// Nobody wants the answer any more.
    dropped: bool,
}

struct State {
    tls: ClientConnection,
    /// Encrypted bytes that nobody has taken to be written.
    out: Vec<u8>,
    /// The next request's number.
    next: u64,
    /// Requests from this number on are in `out`.
    unsent: u64,
    /// Somebody writes, or reads, without holding the lock.
    writing: bool,
    reading: bool,
    /// Where to read into; its reader has it.
    buffer: Vec<u8>,
    /// Decrypted bytes that are no whole message yet.
    plain: Vec<u8>,
    expected: HashMap<u64, Expected>,
    /// Those of them that are not answered yet.
    open: usize,
    /// Who wait for one place among the requests on their way.
    crowd: usize,
    /// Who are to be woken when the lock is given back.
    woken: Vec<Thread>,
    ended: Option<String>,
    /// The service refused the connection, and said why.
    refusal: Option<Failure>,
}

struct Shared {
    socket: TcpStream,
    state: Mutex<State>,
    /// For those in `crowd`: there may be a place, or nobody reads.
    room: Condvar,
}

/// A connection; dropping it ends it, once what was asked is answered.
pub struct Connection(Arc<Shared>);

/// An answer that has not come yet.
pub struct Waiting {
    shared: Arc<Shared>,
    /// The request; none once its answer was taken.
    number: Option<u64>,
    /// The answer to a request that was not sent.
    at_once: Option<Answer>,
}

impl Connection {
    /// Connects to one service and presents the token. If there are `others`, one that is silent is left soon.
    pub fn open(address: &str, security: &Security, others: bool) -> Result<Self, ClientError> {
        let Security::Pinned { pin, token } = security else {
            return Err(ClientError::Invalid(
                "a grid is spoken to with a pin and a token".into(),
            ));
        };
        let (socket, mut tls) = if others {
            let dialled = dial_soon(address, *pin)?;
            impatient(&dialled.0);
            dialled
        } else {
            dial_tls_blocking(address, *pin, ALPN_FRAMES)?
        };
        // Requests on their way are bounded by their number.
        tls.set_buffer_limit(None);
        let mut state = State {
            tls,
            out: Vec::new(),
            next: 1,
            unsent: 1,
            writing: false,
            reading: false,
            buffer: vec![0; READ_BYTES],
            plain: Vec::new(),
            expected: HashMap::new(),
            open: 0,
            crowd: 0,
            woken: Vec::new(),
            ended: None,
            refusal: None,
        };
        let hello = client_frame::Body::Hello(Hello { token: token.clone() });
        let sent = state.send(0, hello);
        sent.map_err(|e| ClientError::Lost(format!("the token: {e}")))?;
        let shared = Shared {
            socket,
            state: Mutex::new(state),
            room: Condvar::new(),
        };
        drop(shared.write(shared.lock()));
        Ok(Self(Arc::new(shared)))
    }

    /// Whether it has ended, also if nobody has waited for anything since.
    pub fn is_ended(&self) -> bool {
        let mut state = self.0.lock();
        if !state.reading {
            self.0.look(&mut state);
        }
        let ended = state.ended.is_some();
        self.0.unlock(state);
        ended
    }

    /// Sends a request; its answer comes later. Waits only while [`MAX_IN_FLIGHT`] others are on their way.
    pub fn submit(&self, op: request::Op, context: Option<Context>) -> Waiting {
        let shared = &self.0;
        let mut state = shared.lock();
        let crowded = state.open >= MAX_IN_FLIGHT;
        while state.open >= MAX_IN_FLIGHT && state.ended.is_none() {
            state = shared.step(state, None);
        }
        let mut waiting = Waiting {
            shared: shared.clone(),
            number: None,
            at_once: None,
        };
        if let Some(why) = &state.ended {
            waiting.at_once = Some(state.left(Broken::NotSent(why.clone())));
        } else {
            let number = state.next;
            let request = Request {
                op: Some(op),
                context,
            };
            match state.send(number, client_frame::Body::Request(request)) {
                Ok(()) => {
                    state.next += 1;
                    state.open += 1;
                    state.expected.insert(number, Expected::default());
                    waiting.number = Some(number);
                    state = shared.write(state);
                }
                Err(e) => waiting.at_once = Some(Err(Broken::NotSent(e))),
            }
        }
        if crowded {
            shared.pass_on(&mut state);
        }
        shared.unlock(state);
        waiting
    }
}

impl Waiting {
    /// Waits for the answer.
    pub fn wait(mut self) -> Answer {
        if let Some(answer) = self.at_once.take() {
            return answer;
        }
        let closed = || Err(Broken::Sent("the connection was closed".into()));
        let Some(number) = self.number.take() else {
            return closed();
        };
        let shared = &self.shared;
        let mut state = shared.lock();
        loop {
            let here = state.expected.get_mut(&number).map(|e| e.answer.take());
            if let Some(None) = here {
                state = shared.step(state, Some(number));
                continue;
            }
            state.expected.remove(&number);
            shared.pass_on(&mut state);
            shared.unlock(state);
            return here.flatten().unwrap_or_else(closed);
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        let mut state = self.shared.lock();
        let Some(expected) = state.expected.get_mut(&number) else {
            return;
        };
        if expected.answer.is_none() {
            expected.dropped = true;
        } else {
            state.expected.remove(&number);
            self.shared.pass_on(&mut state);
            self.shared.unlock(state);
        }
    }
}

/// Dials, at most for [`DIAL_LIMIT`]: a look-up of a name, too, must not hold the caller.
fn dial_soon(address: &str, pin: Pin) -> Result<(TcpStream, ClientConnection), ClientError> {
    let (done, dialled) = mpsc::sync_channel(1);
    let to = address.to_owned();
    let dial = move || {
        // Who asked may have gone on.
        let _ = done.send(dial_tls_blocking(&to, pin, ALPN_FRAMES));
    };
    thread::Builder::new()
        .name("dial".into())
        .spawn(dial)
        .map_err(|e| ClientError::Invalid(format!("cannot start a thread that connects: {e}")))?;
    let late = ServiceError::Peer {
        address: address.to_owned(),
        what: "cannot connect",
        source: io::ErrorKind::TimedOut.into(),
    };
    Ok(dialled.recv_timeout(DIAL_LIMIT).unwrap_or(Err(late))?)
}

/// Ends a connection soon whose service does not answer the network any more. A system that cannot leaves it as
/// it is: then it ends later.
fn impatient(socket: &TcpStream) {
    let socket = SockRef::from(socket);
    let probes = TcpKeepalive::new()
        .with_time(PROBE_EVERY)
        .with_interval(PROBE_EVERY);
    let _ = socket.set_tcp_keepalive(&probes);
    let _ = socket.set_tcp_user_timeout(Some(SILENCE));
}

impl Drop for Connection {
    fn drop(&mut self) {
        let shared = &self.0;
        let mut state = shared.lock();
        if state.open > 0 {
            // Bytes that were never read would make the kernel throw away what the service has not read yet.
            let _ = shared.socket.set_read_timeout(Some(LAST_ANSWERS));
            while state.open > 0 && state.ended.is_none() {
                state = shared.step(state, None);
            }
        }
        state.end("the connection was closed");
        state.tls.send_close_notify();
        if state.encrypted().is_ok() {
            state = shared.write(state);
        }
        shared.unlock(state);
        let _ = shared.socket.shutdown(Shutdown::Both);
    }
}

impl State {
    /// Encrypts one message to be written.
    fn send(&mut self, number: u64, body: client_frame::Body) -> Result<(), String> {
        let message = ClientFrame {
            number,
            body: Some(body),
        };
        let mut bytes = Vec::with_capacity(256);
        frame::append(&mut bytes, &message).map_err(|e| e.to_string())?;
        let written = self.tls.writer().write_all(&bytes);
        written.and_then(|()| self.encrypted()).map_err(|e| e.to_string())
    }

    /// Takes encrypted bytes from the session.
    fn encrypted(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            self.tls.write_tls(&mut self.out)?;
        }
        Ok(())
    }

    /// Decrypts what has come and hands out the answers in it; why the connection is of no use any more.
    fn take_in(&mut self, mut bytes: &[u8]) -> Result<(), String> {
        let why = |e: &dyn std::fmt::Display| e.to_string();
        while !bytes.is_empty() {
            if self.tls.read_tls(&mut bytes).map_err(|e| why(&e))? == 0 {
                // Nothing counts after the service's last word.
                break;
            }
            let known = self.tls.process_new_packets().map_err(|e| why(&e))?;
            let at = self.plain.len();
            self.plain.resize(at + known.plaintext_bytes_to_read(), 0);
            let into = self.plain.get_mut(at..).unwrap_or_default();
            self.tls.reader().read_exact(into).map_err(|e| why(&e))?;
            self.hand_out()?;
        }
        self.encrypted().map_err(|e| why(&e))
    }

    fn hand_out(&mut self) -> Result<(), String> {
        let plain = std::mem::take(&mut self.plain);
        let mut left = plain.as_slice();
        while let Some((message, used)) = frame::split::<ServerFrame>(left).map_err(|e| e.to_string())? {
            self.hand_over(message)?;
            left = left.get(used..).unwrap_or_default();
        }
        let used = plain.len() - left.len();
        self.plain = plain;
        self.plain.drain(..used);
        if self.plain.is_empty() && self.plain.capacity() > KEPT_BYTES {
            self.plain = Vec::new();
        }
        Ok(())
    }

    fn hand_over(&mut self, message: ServerFrame) -> Result<(), String> {
        let number = message.number;
        let result = message.response.and_then(|r| r.result);
        if let (0, Some(response::Result::Failure(refusal))) = (number, &result) {
            self.refusal = Some(refusal.clone());
            return Err(refusal.text.clone());
        }
        let expected = self.expected.get_mut(&number).filter(|e| e.answer.is_none());
        let (Some(result), Some(expected)) = (result, expected) else {
            return Err(format!("an answer {number} that nobody waits for"));
        };
        self.open -= 1;
        if expected.dropped {
            self.expected.remove(&number);
            return Ok(());
        }
        expected.answer = Some(Ok(result));
        self.woken.extend(expected.waiter.take());
        Ok(())
    }

    /// What a request gets that was left without an answer.
    fn left(&self, broken: Broken) -> Answer {
        match &self.refusal {
            Some(refusal) => Ok(response::Result::Failure(refusal.clone())),
            None => Err(broken),
        }
    }

    /// Tells all who wait.
    fn end(&mut self, why: &str) {
        if self.ended.is_some() {
            return;
        }
        self.ended = Some(why.to_owned());
        self.open = 0;
        self.expected.retain(|_, e| !e.dropped);
        let mut expected = std::mem::take(&mut self.expected);
        for (number, one) in expected.iter_mut().filter(|(_, e)| e.answer.is_none()) {
            let broken = if *number < self.unsent {
                Broken::Sent
            } else {
                Broken::NotSent
            };
            one.answer = Some(self.left(broken(why.to_owned())));
            self.woken.extend(one.waiter.take());
        }
        self.expected = expected;
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the lock back, and wakes whom that concerns.
    fn unlock(&self, mut state: MutexGuard<'_, State>) {
        let woken = std::mem::take(&mut state.woken);
        let crowd = state.crowd > 0;
        drop(state);
        for thread in woken {
            thread.unpark();
        }
        if crowd {
            self.room.notify_one();
        }
    }

    /// Takes what has come, without waiting. Nobody reads.
    fn look(&self, state: &mut State) {
        let mut buffer = std::mem::take(&mut state.buffer);
        while state.ended.is_none() {
            let got = rustix::net::recv(&self.socket, buffer.as_mut_slice(), RecvFlags::DONTWAIT);
            match got {
                Err(rustix::io::Errno::AGAIN) => break,
                Err(rustix::io::Errno::INTR) => {}
                got => came(state, got.map(|(n, _)| n).map_err(io::Error::from), &buffer),
            }
        }
        state.buffer = buffer;
    }

    /// Waits until something may have changed: reads for all if nobody does, else until somebody else has. Who waits for
    /// the answer `number` is woken by that; who waits for a place, by any.
    fn step<'a>(&'a self, mut state: MutexGuard<'a, State>, number: Option<u64>) -> MutexGuard<'a, State> {
        if !state.reading {
            return self.read(state);
        }
        let Some(number) = number else {
            state.crowd += 1;
            let waited = self.room.wait(state);
            let mut state = waited.unwrap_or_else(PoisonError::into_inner);
            state.crowd -= 1;
            return state;
        };
        if let Some(expected) = state.expected.get_mut(&number) {
            expected.waiter = Some(thread::current());
        }
        drop(state);
        thread::park();
        self.lock()
    }

    fn read<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        state.reading = true;
        let mut buffer = std::mem::take(&mut state.buffer);
        drop(state);
        let got = (&self.socket).read(&mut buffer);
        let mut state = self.lock();
        state.reading = false;
        if !matches!(&got, Err(e) if e.kind() == io::ErrorKind::Interrupted) {
            came(&mut state, got, &buffer);
        }
        state.buffer = buffer;
        if !state.woken.is_empty() {
            self.unlock(state);
            state = self.lock();
        }
        self.write(state)
    }

    /// Writes what there is, unless somebody does: then that one takes it along.
    fn write<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        if state.writing {
            return state;
        }
        state.writing = true;
        while !state.out.is_empty() {
            let mut bytes = std::mem::take(&mut state.out);
            state.unsent = state.next;
            drop(state);
            let written = (&self.socket).write_all(&bytes);
            state = self.lock();
            if let Err(e) = written {
                // What the service has said before, its refusal, is heard first.
                let _ = self.socket.shutdown(Shutdown::Both);
                state.out.clear();
                if !state.reading {
                    self.look(&mut state);
                    state.end(&e.to_string());
                }
                break;
            }
            bytes.clear();
            if state.out.is_empty() && bytes.capacity() <= KEPT_BYTES {
                state.out = bytes;
            }
        }
        state.writing = false;
        state
    }

    /// If nobody reads: somebody else who waits is to go on with it.
    fn pass_on(&self, state: &mut State) {
        if state.reading {
            return;
        }
        let mut sleepers = state.expected.values_mut().filter(|e| e.answer.is_none());
        let next = sleepers.find_map(|e| e.waiter.take());
        state.woken.extend(next);
    }
}

/// What a read has given.
fn came(state: &mut State, got: io::Result<usize>, buffer: &[u8]) {
    let taken = match got {
        Ok(0) => Err("the service ended the connection".to_owned()),
        Ok(n) => state.take_in(buffer.get(..n).unwrap_or_default()),
        Err(e) => Err(e.to_string()),
    };
    if let Err(why) = taken {
        state.end(&why);
    }
}
