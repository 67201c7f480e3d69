//! The server of tests: several at once, each within limits.
//!
//! Nobody is asked who he is, so a server listens on loopback unless told otherwise, and everything a client
//! can make it do is bounded by [`Limits`]. A UDP stream only goes to the address from which the control
//! connection came, so that nobody can point it at others.
//!
//! ```text
//! accept -> cookie -+- known: a stream of a test that waits for it
//!                   +- new:   a test of its own, in this thread
//! ```
//!
//! Every connection's cookie is read in a thread of its own, so cookies may come in another order than the
//! connections. Which stream is which, and in a test both ways who sends on it, is told by the order of the
//! connections alone: they are numbered when they are accepted, and put in order when all are there.

use crate::client::udp_buffers;
use crate::error::{ProbeError, code};
use crate::params::{Length, MAX_TIME_S, Params, Protocol};
use crate::protocol::{ANSWER_LIMIT, Control, Cookie, State, is_retry, read_cookie};
use crate::report::{Connection, Role, TestReport};
use crate::results::{Results, stream_id};
use crate::run::{Interval, Made, Run};
use crate::stream::DataSocket;
use crate::udp;
use kuroshio_clock::now_ns;
use kuroshio_sock::{buffers, listen, set_buffers, set_congestion, set_nodelay, tcp_info};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, Socket, Type};
use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Connections whose cookie has not come yet, at most; more are closed at once.
pub const MAX_GREETINGS: u32 = 64;
/// How long a cookie may take.
pub const GREETING_LIMIT: Duration = Duration::from_secs(10);
/// How long after its time a test may still be unended by its client.
pub const GRACE: Duration = Duration::from_secs(30);
/// Time between two reports of a server.
const INTERVAL_NS: u64 = 1_000_000_000;
/// How long the loop that accepts sleeps at most before it looks whether it is to stop.
const ACCEPT_WAIT: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

/// What clients can make a server do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Tests at the same time.
    pub sessions: u32,
    /// Length of one test.
    pub time: Duration,
    /// Payload bytes of one test, both directions.
    pub bytes: u64,
}

impl Default for Limits {
    /// Four tests of at most an hour and 64 TiB (100 Gbps for an hour is 45 TB).
    fn default() -> Self {
        Self {
            sessions: 4,
            time: Duration::from_secs(3600),
            bytes: 64 << 40,
        }
    }
}

/// What a server tells while it works.
#[derive(Debug)]
pub enum ServerEvent<'a> {
    /// A test begins.
    Started {
        /// Its number, from 1 on.
        session: u64,
        /// Its streams.
        connections: &'a [Connection],
        /// What it is.
        params: &'a Params,
    },
    /// An interval of a test ended.
    Interval {
        /// The test's number.
        session: u64,
        /// The interval.
        interval: &'a Interval,
        /// What the test is.
        params: &'a Params,
    },
    /// A test is over.
    Finished {
        /// The test's number.
        session: u64,
        /// What was measured.
        report: &'a TestReport,
    },
    /// A test failed, or never began (number 0).
    Failed {
        /// The test's number.
        session: u64,
        /// Who asked for it.
        peer: Option<SocketAddr>,
        /// Why.
        error: &'a ProbeError,
    },
}

/// Takes what a server tells; called from several threads.
pub type OnEvent = Arc<dyn Fn(ServerEvent<'_>) + Send + Sync>;

/// A stream of a test with its place in the order in which connections were accepted.
type Accepted = (u64, TcpStream);

struct Inner {
    limits: Limits,
    one_off: bool,
    on: OnEvent,
    stop: Arc<AtomicBool>,
    /// Tests that wait for streams.
    waiting: Mutex<HashMap<Cookie, Sender<Accepted>>>,
    greetings: AtomicU32,
    sessions: AtomicU32,
    numbers: AtomicU32,
    /// UDP streams carry no cookie, so only one test makes them at a time.
    udp_door: Mutex<()>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A server that listens.
pub struct Server {
    listeners: Vec<TcpListener>,
    addresses: Vec<SocketAddr>,
    inner: Arc<Inner>,
}

impl Server {
    /// Listens; with `one_off` for a single test.
    ///
    /// # Errors
    /// [`ProbeError::Io`] for an address that cannot be had.
    pub fn bind(
        addresses: &[SocketAddr],
        limits: Limits,
        one_off: bool,
        on: OnEvent,
    ) -> Result<Self, ProbeError> {
        let mut listeners = Vec::new();
        for address in addresses {
            let named = |e: io::Error| io::Error::new(e.kind(), format!("{address}: {e}"));
            let listener = listen(*address)
                .map_err(named)
                .map_err(ProbeError::io("listening"))?;
            listener
                .set_nonblocking(true)
                .map_err(ProbeError::io("listening"))?;
            listeners.push(listener);
        }
        let addresses = listeners
            .iter()
            .map(TcpListener::local_addr)
            .collect::<Result<_, _>>();
        Ok(Self {
            addresses: addresses.map_err(ProbeError::io("listening"))?,
            listeners,
            inner: Arc::new(Inner {
                limits,
                one_off,
                on,
                stop: Arc::default(),
                waiting: Mutex::default(),
                greetings: AtomicU32::new(0),
                sessions: AtomicU32::new(0),
                numbers: AtomicU32::new(0),
                udp_door: Mutex::default(),
            }),
        })
    }

    /// Where it listens.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Set to true, this ends [`Server::serve`] and the tests.
    pub fn stopper(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.inner.stop)
    }

    /// Serves until it is stopped or, with `one_off`, until one test is over. Returns when no test runs any more.
    ///
    /// # Errors
    /// When waiting for connections fails for good.
    pub fn serve(&self) -> Result<(), ProbeError> {
        let mut accepted = 0u64;
        while !self.inner.stop.load(Ordering::Acquire) {
            let mut fds: Vec<PollFd<'_>> = self
                .listeners
                .iter()
                .map(|l| PollFd::new(l, PollFlags::IN))
                .collect();
            match poll(&mut fds, Some(&ACCEPT_WAIT)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => continue,
                Ok(_) => {}
                Err(e) => {
                    return Err(ProbeError::Io {
                        what: "waiting for connections",
                        source: e.into(),
                    });
                }
            }
            for listener in &self.listeners {
                // A connection that is gone already, or too few descriptors: the others go on.
                if let Ok((stream, _)) = listener.accept() {
                    accepted += 1;
                    greet(accepted, stream, &self.inner);
                }
            }
        }
        // Every test looks at the flag ten times a second, and its parts have limits.
        let until = Instant::now() + GRACE;
        while self.inner.sessions.load(Ordering::Acquire) > 0 && Instant::now() < until {
            kuroshio_clock::sleep_until(now_ns() + 5_000_000, 0);
        }
        Ok(())
    }
}

/// A place among a limited number; given back when dropped.
struct Place<'a>(&'a AtomicU32);

impl<'a> Place<'a> {
    fn take(count: &'a AtomicU32, limit: u32) -> Option<Self> {
        let more = |n: u32| (n < limit).then_some(n + 1);
        count
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, more)
            .ok()
            .map(|_| Self(count))
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Reads the cookie of a connection in a thread of its own.
fn greet(order: u64, stream: TcpStream, inner: &Arc<Inner>) {
    let shared = Arc::clone(inner);
    let body = move || {
        let inner = &*shared;
        // Beyond the limit the connection is closed without a word.
        let Some(place) = Place::take(&inner.greetings, MAX_GREETINGS) else {
            return;
        };
        let mut stream = stream;
        let peer = stream.peer_addr().ok();
        let fail = |session: u64, error: &ProbeError| {
            (inner.on)(ServerEvent::Failed { session, peer, error });
        };
        // A socket accepted from one that does not block may not block either.
        let cookie = stream
            .set_nonblocking(false)
            .map_err(ProbeError::io("a connection"))
            .and_then(|()| read_cookie(&mut stream, GREETING_LIMIT));
        drop(place);
        let cookie = match cookie {
            Ok(cookie) => cookie,
            Err(e) => return fail(0, &e),
        };
        if cookie == Cookie::CAPACITY {
            return search_capacity(inner, stream);
        }
        let waiting = lock(&inner.waiting).get(&cookie).cloned();
        if let Some(test) = waiting {
            // A test that has all its streams takes no more.
            let _ = test.send((order, stream));
            return;
        }
        let mut control = match Control::new(stream) {
            Ok(control) => control,
            Err(e) => return fail(0, &e),
        };
        let Some(_place) = Place::take(&inner.sessions, inner.limits.sessions) else {
            let _ = control.send(State::AccessDenied);
            return fail(0, &ProbeError::Busy);
        };
        let session = u64::from(inner.numbers.fetch_add(1, Ordering::AcqRel)) + 1;
        match serve_test(inner, session, &cookie, &mut control) {
            Ok(report) => (inner.on)(ServerEvent::Finished {
                session,
                report: &report,
            }),
            Err(e) => fail(session, &e),
        }
        if inner.one_off {
            inner.stop.store(true, Ordering::Release);
        }
    };
    // Without a thread the connection is closed.
    let _ = std::thread::Builder::new()
        .name("probe-session".into())
        .spawn(body);
}

/// Receives the trains of a search for capacity. It counts as a test.
fn search_capacity(inner: &Inner, stream: TcpStream) {
    let peer = stream.peer_addr().ok();
    let Some(_place) = Place::take(&inner.sessions, inner.limits.sessions) else {
        kuroshio_gen::refuse(stream, "the server is busy with other tests");
        return (inner.on)(ServerEvent::Failed {
            session: 0,
            peer,
            error: &ProbeError::Busy,
        });
    };
    let session = u64::from(inner.numbers.fetch_add(1, Ordering::AcqRel)) + 1;
    if let Err(e) = kuroshio_gen::serve_control(stream, &inner.stop, &|_, _| {}) {
        let error = &ProbeError::Capacity(e.to_string());
        (inner.on)(ServerEvent::Failed { session, peer, error });
    }
    if inner.one_off {
        inner.stop.store(true, Ordering::Release);
    }
}

fn serve_test(
    inner: &Inner,
    session: u64,
    cookie: &Cookie,
    control: &mut Control,
) -> Result<TestReport, ProbeError> {
    control.send(State::ParamExchange)?;
    let asked = control.receive_json("the client's parameters");
    let params = asked.and_then(|object| Params::from_json(&object));
    let params = params.inspect_err(|e| refuse(control, e))?;
    check(&params, &inner.limits)
        .inspect_err(|(number, _)| drop(control.send_error(*number)))
        .map_err(|(_, e)| e)?;
    let made = accept_streams(inner, cookie, &params, control).inspect_err(|e| {
        if !matches!(e, ProbeError::Ended { .. } | ProbeError::Closed { .. }) {
            let _ = control.send_error(code::ACCEPT);
        }
    })?;
    let connections: Vec<Connection> = made.iter().filter_map(Connection::of).collect();
    let granted = made.first().and_then(|m| buffers(&m.socket).ok());
    (inner.on)(ServerEvent::Started {
        session,
        connections: &connections,
        params: &params,
    });
    control.send(State::TestStart)?;
    let mut run = Run::prepare(made, &params, INTERVAL_NS, None)
        .inspect_err(|_| drop(control.send_error(code::INIT)))?;
    control.send(State::TestRunning)?;
    let started_unix_s = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_secs());
    run.start()?;
    watch(inner, session, &params, &mut run, control)?;
    match params.length {
        Length::Time(_) => run.halt(),
        Length::Bytes(_) => run.drain_and_halt(),
    }
    let info = tcp_info(control.socket()).unwrap_or_default();
    let (run, last) = run.report();
    if let Some(interval) = &last {
        (inner.on)(ServerEvent::Interval {
            session,
            interval,
            params: &params,
        });
    }
    control.send(State::ExchangeResults)?;
    let peer = Results::from_json(&control.receive_json("the client's results")?)?;
    control.send_json(&run.results(true).to_json())?;
    control.send(State::DisplayResults)?;
    // The client is done when it says so or goes away.
    let _ = control.receive(ANSWER_LIMIT, "the client's last word");
    Ok(TestReport {
        role: Role::Server,
        host: control.peer.ip().to_string(),
        port: control.peer.port(),
        peer_address: control.peer,
        cookie: cookie.text(),
        started_unix_s,
        params,
        rate: None,
        interval_s: INTERVAL_NS as f64 / 1e9,
        connections,
        granted,
        control: info,
        run,
        peer,
        distance_m: None,
        interrupted: false,
    })
}

/// Tells a client whose parameters cannot be taken.
fn refuse(control: &mut Control, e: &ProbeError) {
    let number = match e {
        ProbeError::Limit(text) if text.starts_with("parallel") => code::STREAMS,
        ProbeError::Limit(text) if text.starts_with("time") => code::DURATION,
        ProbeError::Limit(text) if text.starts_with("len") => code::BLOCK,
        ProbeError::Limit(_) | ProbeError::Protocol(_) => code::PARAMETERS,
        _ => return,
    };
    // The connection may be gone.
    let _ = control.send_error(number);
}

/// What this server does not do, with iperf3's number for it.
fn check(params: &Params, limits: &Limits) -> Result<(), (i32, ProbeError)> {
    let limit_s = limits.time.as_secs();
    match params.length {
        // A client that names no end is ended at the limit.
        Length::Time(ns) if ns == MAX_TIME_S * 1_000_000_000 => Ok(()),
        Length::Time(ns) if ns.div_ceil(1_000_000_000) + u64::from(params.omit_s) > limit_s => Err((
            code::DURATION,
            ProbeError::Limit(format!("a test of {} s, at most {limit_s} s", ns / 1_000_000_000)),
        )),
        Length::Bytes(bytes) if bytes > limits.bytes => Err((
            code::PARAMETERS,
            ProbeError::Limit(format!("a test of {bytes} bytes, at most {}", limits.bytes)),
        )),
        Length::Time(_) | Length::Bytes(_) => Ok(()),
    }
}

/// Until the client ends the test.
fn watch(
    inner: &Inner,
    session: u64,
    params: &Params,
    run: &mut Run,
    control: &mut Control,
) -> Result<(), ProbeError> {
    let asked = match params.length {
        Length::Time(ns) => Duration::from_nanos(ns) + Duration::from_secs(params.omit_s.into()),
        Length::Bytes(_) => inner.limits.time,
    };
    let longest = asked.min(inner.limits.time) + GRACE;
    let end_ns = run.start_ns() + u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX);
    loop {
        if inner.stop.load(Ordering::Acquire) {
            let _ = control.send(State::ServerTerminate);
            return Err(ProbeError::Ended { who: "server" });
        }
        let beyond = if now_ns() >= end_ns {
            Some(format!("a test of {} s", longest.as_secs()))
        } else if run.all_bytes() > inner.limits.bytes {
            Some(format!("a test of {} bytes", run.all_bytes()))
        } else {
            None
        };
        if let Some(what) = beyond {
            let _ = control.send_error(code::DURATION);
            return Err(ProbeError::Limit(what));
        }
        match control.poll_until(run.next_tick_ns(), "the client during the test")? {
            Some(State::TestEnd) => return Ok(()),
            Some(other) => {
                let _ = control.send_error(code::MESSAGE);
                return Err(ProbeError::Protocol(format!("{other:?} during the test")));
            }
            None => {}
        }
        if let Some(interval) = run.tick() {
            (inner.on)(ServerEvent::Interval {
                session,
                interval: &interval,
                params,
            });
        }
    }
}

/// A test that waits for streams under its cookie; forgotten when dropped.
struct Waiting<'a> {
    inner: &'a Inner,
    cookie: Cookie,
    streams: Receiver<Accepted>,
}

impl<'a> Waiting<'a> {
    fn register(inner: &'a Inner, cookie: &Cookie) -> Self {
        let (sender, streams) = channel();
        lock(&inner.waiting).insert(*cookie, sender);
        Self {
            inner,
            cookie: *cookie,
            streams,
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        lock(&self.inner.waiting).remove(&self.cookie);
    }
}

fn accept_streams(
    inner: &Inner,
    cookie: &Cookie,
    params: &Params,
    control: &mut Control,
) -> Result<Vec<Made>, ProbeError> {
    let mut made = Vec::new();
    let mut add = |socket| {
        let index = u32::try_from(made.len()).unwrap_or(u32::MAX);
        made.push(Made {
            id: stream_id(index),
            sends: !params.client_sends(index),
            socket,
        });
    };
    match params.protocol {
        Protocol::Tcp => {
            let waiting = Waiting::register(inner, cookie);
            control.send(State::CreateStreams)?;
            let mut streams: Vec<Accepted> = Vec::new();
            for _ in 0..params.all_streams() {
                let one = waiting
                    .streams
                    .recv_timeout(ANSWER_LIMIT)
                    .map_err(|_| ProbeError::Timeout {
                        what: "a stream of the client",
                        after: ANSWER_LIMIT,
                    })?;
                if one.1.peer_addr().map(|a| a.ip()).ok() != Some(control.peer.ip()) {
                    return Err(ProbeError::Protocol("a stream from another address".into()));
                }
                set_up_tcp(&one.1, params).map_err(ProbeError::io("a stream's options"))?;
                streams.push(one);
            }
            streams.sort_by_key(|(order, _)| *order);
            streams
                .into_iter()
                .for_each(|(_, stream)| add(DataSocket::Tcp(stream)));
        }
        Protocol::Udp => {
            let _door = lock(&inner.udp_door);
            let failed = ProbeError::io("a UDP stream");
            let listener = udp_socket(control.local).map_err(&failed)?;
            control.send(State::CreateStreams)?;
            for _ in 0..params.all_streams() {
                let peer = udp_hello(&listener, control.peer)?;
                let socket = udp_socket(control.local).map_err(&failed)?;
                socket.connect(peer).map_err(&failed)?;
                udp_buffers(&socket, params.window_bytes).map_err(&failed)?;
                socket.send(&udp::ANSWER[0].to_ne_bytes()).map_err(&failed)?;
                add(DataSocket::Udp(socket));
            }
        }
    }
    Ok(made)
}

fn set_up_tcp(stream: &TcpStream, params: &Params) -> io::Result<()> {
    set_nodelay(stream, params.nodelay)?;
    if let Some(bytes) = params.window_bytes {
        set_buffers(stream, bytes)?;
    }
    match params
        .congestion
        .as_deref()
        .map(|name| set_congestion(stream, name))
    {
        // As iperf3: the results name what was used.
        Some(Err(e)) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Some(done) => done,
        None => Ok(()),
    }
}

fn udp_socket(at: SocketAddr) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(at), Type::DGRAM, None)?;
    // Connected sockets of tests share the port with the one that waits for first datagrams.
    socket.set_reuse_address(true)?;
    socket.bind(&at.into())?;
    Ok(socket.into())
}

/// Waits for the first datagram of a stream from the control connection's host.
fn udp_hello(listener: &UdpSocket, control: SocketAddr) -> Result<SocketAddr, ProbeError> {
    let what = "a UDP stream's first datagram";
    let until = Instant::now() + ANSWER_LIMIT;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ProbeError::Timeout {
                what,
                after: ANSWER_LIMIT,
            });
        }
        listener
            .set_read_timeout(Some(left))
            .map_err(ProbeError::io(what))?;
        let mut hello = [0u8; 8];
        match listener.recv_from(&mut hello) {
            Ok((4, from)) if from.ip() == control.ip() => {
                let word = u32::from_ne_bytes([hello[0], hello[1], hello[2], hello[3]]);
                if udp::HELLO.contains(&word) {
                    return Ok(from);
                }
            }
            Ok(_) => {}
            Err(e) if is_retry(&e) => {}
            Err(e) => return Err(ProbeError::Io { what, source: e }),
        }
    }
}
