//! iperf3's control connection: cookie, state bytes, JSON with its length.
//!
//! ```text
//! client                                   server
//!   cookie (37 bytes: 36 characters, NUL)  ->
//!                                          <-  PARAM_EXCHANGE
//!   u32 length (big endian), JSON          ->
//!                                          <-  CREATE_STREAMS
//!   per stream: TCP and the cookie, or a UDP datagram that is answered
//!                                          <-  TEST_START, TEST_RUNNING
//!                     ... data ...
//!   TEST_END                               ->
//!                                          <-  EXCHANGE_RESULTS
//!   u32 length, JSON                       ->
//!                                          <-  u32 length, JSON
//!                                          <-  DISPLAY_RESULTS
//!   IPERF_DONE                             ->
//! ```
//!
//! Instead of any state the server may send ACCESS_DENIED, SERVER_TERMINATE, or SERVER_ERROR with two numbers
//! (u32, big endian): its error and its `errno`. The client may send CLIENT_TERMINATE. The numbers of the
//! states are those of `src/iperf_api.h` of iperf 3.

use crate::error::ProbeError;
use kuroshio_clock::now_ns;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::Value;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Bytes of a cookie, its final NUL counted.
pub const COOKIE_BYTES: usize = 37;
/// Longest JSON text that is taken from the other side, bytes.
pub const MAX_JSON_BYTES: u32 = 4 << 20;
/// A message that was begun, or an answer of the set-up, must be complete within this time.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(15);

/// Characters of cookies that this side makes (as iperf3: base 32 without look-alikes).
const COOKIE_CHARACTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// Where a test stands; one signed byte on the control connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Streams are there; timers are made.
    TestStart,
    /// Data flows.
    TestRunning,
    /// The client says that the test is over.
    TestEnd,
    /// The server waits for the parameters.
    ParamExchange,
    /// The server waits for the streams.
    CreateStreams,
    /// The server stops.
    ServerTerminate,
    /// The client stops.
    ClientTerminate,
    /// The server waits for the client's results.
    ExchangeResults,
    /// Both have everything.
    DisplayResults,
    /// Before the first message.
    IperfStart,
    /// The client is done.
    IperfDone,
    /// The server is busy.
    AccessDenied,
    /// The server failed; two numbers follow.
    ServerError,
}

const STATES: [(State, i8); 13] = [
    (State::TestStart, 1),
    (State::TestRunning, 2),
    (State::TestEnd, 4),
    (State::ParamExchange, 9),
    (State::CreateStreams, 10),
    (State::ServerTerminate, 11),
    (State::ClientTerminate, 12),
    (State::ExchangeResults, 13),
    (State::DisplayResults, 14),
    (State::IperfStart, 15),
    (State::IperfDone, 16),
    (State::AccessDenied, -1),
    (State::ServerError, -2),
];

impl State {
    /// The state of a byte; `None` for bytes that iperf3 does not use.
    pub fn from_byte(byte: u8) -> Option<Self> {
        STATES
            .iter()
            .find(|(_, number)| number.cast_unsigned() == byte)
            .map(|(state, _)| *state)
    }

    /// The byte of a state.
    pub fn to_byte(self) -> u8 {
        STATES
            .iter()
            .find(|(state, _)| *state == self)
            .map_or(0, |(_, number)| number.cast_unsigned())
    }
}

/// What tells the connections of one test from those of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cookie([u8; COOKIE_BYTES]);

impl Cookie {
    /// Of a search for capacity, which Kuroshio's server alone understands: what follows on the connection is
    /// `kuroshio_gen`'s control protocol.
    pub const CAPACITY: Cookie = Cookie(*b"kuroshiocapacitysearchkuroshiosearch\0");

    /// A cookie that nobody guesses.
    ///
    /// # Errors
    /// When the system gives no random bytes.
    pub fn random() -> Result<Self, ProbeError> {
        let mut bytes = [0u8; COOKIE_BYTES];
        let fill = |bytes: &mut [u8]| std::fs::File::open("/dev/urandom")?.read_exact(bytes);
        let (text, _nul) = bytes.split_at_mut(COOKIE_BYTES - 1);
        fill(text).map_err(ProbeError::io("random bytes for the cookie"))?;
        for byte in text {
            *byte = COOKIE_CHARACTERS[usize::from(*byte % 32)];
        }
        Ok(Self(bytes))
    }

    /// A cookie as it came: printable ASCII and a NUL; `None` for anything else.
    pub fn from_bytes(bytes: [u8; COOKIE_BYTES]) -> Option<Self> {
        let (text, nul) = bytes.split_at(COOKIE_BYTES - 1);
        (text.iter().all(u8::is_ascii_graphic) && nul == [0]).then_some(Self(bytes))
    }

    /// The bytes that are sent.
    pub fn as_bytes(&self) -> &[u8; COOKIE_BYTES] {
        &self.0
    }

    /// The text without its NUL.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(self.0.get(..COOKIE_BYTES - 1).unwrap_or_default()).into_owned()
    }
}

/// Reads the 37 bytes with which every connection begins.
///
/// # Errors
/// Silence, an early end, or bytes that are no cookie.
pub fn read_cookie(stream: &mut TcpStream, within: Duration) -> Result<Cookie, ProbeError> {
    let mut bytes = [0u8; COOKIE_BYTES];
    read_full(stream, &mut bytes, within, "the cookie")?;
    Cookie::from_bytes(bytes).ok_or_else(|| ProbeError::Protocol("the first 37 bytes are no cookie".into()))
}

/// Fills `buf` before `within` has passed.
fn read_full(
    stream: &mut TcpStream,
    buf: &mut [u8],
    within: Duration,
    what: &'static str,
) -> Result<(), ProbeError> {
    let until = Instant::now() + within;
    let mut filled = 0;
    while let Some(rest) = buf.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ProbeError::Timeout { what, after: within });
        }
        stream
            .set_read_timeout(Some(left))
            .map_err(ProbeError::io(what))?;
        match stream.read(rest) {
            Ok(0) => return Err(ProbeError::Closed { what }),
            Ok(n) => filled += n,
            Err(e) if is_retry(&e) => {}
            Err(source) => return Err(ProbeError::Io { what, source }),
        }
    }
    Ok(())
}

/// Whether an error only means that nothing could be done now.
pub(crate) fn is_retry(e: &io::Error) -> bool {
    matches!(
        e.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
    )
}

/// Reads JSON: an object of at most [`MAX_JSON_BYTES`].
///
/// # Errors
/// What is wrong with it.
pub fn parse_json(bytes: &[u8]) -> Result<Value, ProbeError> {
    let value: Value =
        serde_json::from_slice(bytes).map_err(|e| ProbeError::Protocol(format!("JSON: {e}")))?;
    if !value.is_object() {
        return Err(ProbeError::Protocol("JSON: not an object".into()));
    }
    Ok(value)
}

/// One side of a control connection.
#[derive(Debug)]
pub struct Control {
    stream: TcpStream,
    /// The other side's address.
    pub peer: SocketAddr,
    /// This side's address.
    pub local: SocketAddr,
}

impl Control {
    /// Takes a connection whose cookie was sent or read.
    ///
    /// # Errors
    /// A connection that is gone already.
    pub fn new(stream: TcpStream) -> Result<Self, ProbeError> {
        let what = "control connection";
        kuroshio_sock::set_nodelay(&stream, true).map_err(ProbeError::io(what))?;
        stream
            .set_write_timeout(Some(ANSWER_LIMIT))
            .map_err(ProbeError::io(what))?;
        let peer = stream.peer_addr().map_err(ProbeError::io(what))?;
        let local = stream.local_addr().map_err(ProbeError::io(what))?;
        Ok(Self { stream, peer, local })
    }

    /// The socket, for its `TCP_INFO`.
    pub fn socket(&self) -> &TcpStream {
        &self.stream
    }

    /// Sends a state.
    ///
    /// # Errors
    /// What writing gives.
    pub fn send(&mut self, state: State) -> Result<(), ProbeError> {
        self.stream
            .write_all(&[state.to_byte()])
            .map_err(ProbeError::io("sending on the control connection"))
    }

    /// Sends a failure of the server.
    ///
    /// # Errors
    /// What writing gives.
    pub fn send_error(&mut self, code: i32) -> Result<(), ProbeError> {
        let mut bytes = vec![State::ServerError.to_byte()];
        bytes.extend(code.to_be_bytes());
        bytes.extend(0i32.to_be_bytes());
        self.stream
            .write_all(&bytes)
            .map_err(ProbeError::io("sending on the control connection"))
    }

    /// Waits for a state.
    ///
    /// # Errors
    /// Silence, an end, an unknown byte, and what the server sends in place of a state.
    pub fn receive(&mut self, within: Duration, what: &'static str) -> Result<State, ProbeError> {
        let mut byte = [0u8];
        read_full(&mut self.stream, &mut byte, within, what)?;
        let state = State::from_byte(byte[0])
            .ok_or_else(|| ProbeError::Protocol(format!("unknown state {}", byte[0].cast_signed())))?;
        match state {
            State::AccessDenied => Err(ProbeError::Busy),
            State::ServerTerminate => Err(ProbeError::Ended { who: "server" }),
            State::ClientTerminate => Err(ProbeError::Ended { who: "client" }),
            State::ServerError => {
                let mut numbers = [0u8; 8];
                read_full(&mut self.stream, &mut numbers, ANSWER_LIMIT, "the server's error")?;
                let number = u64::from_be_bytes(numbers);
                Err(ProbeError::Remote {
                    code: (number >> 32) as i32,
                    errno: number as i32,
                })
            }
            state => Ok(state),
        }
    }

    /// Waits for one state, and for no other.
    ///
    /// # Errors
    /// As [`Control::receive`], and another state.
    pub fn expect(&mut self, wanted: State, what: &'static str) -> Result<(), ProbeError> {
        match self.receive(ANSWER_LIMIT, what)? {
            state if state == wanted => Ok(()),
            other => Err(ProbeError::Protocol(format!("{other:?} instead of {wanted:?}"))),
        }
    }

    /// Waits until `until_ns` (`CLOCK_MONOTONIC`) for a state; `None` when none came.
    ///
    /// # Errors
    /// As [`Control::receive`].
    pub fn poll_until(&mut self, until_ns: u64, what: &'static str) -> Result<Option<State>, ProbeError> {
        let left_ns = until_ns.saturating_sub(now_ns());
        let timeout = Timespec {
            tv_sec: i64::try_from(left_ns / 1_000_000_000).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(left_ns % 1_000_000_000).unwrap_or(0),
        };
        let mut fds = [PollFd::new(&self.stream, PollFlags::IN)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => Ok(None),
            Ok(_) => self.receive(ANSWER_LIMIT, what).map(Some),
            Err(e) => Err(ProbeError::Io {
                what,
                source: e.into(),
            }),
        }
    }

    /// Sends a JSON object.
    ///
    /// # Errors
    /// An object that is too long, and what writing gives.
    pub fn send_json(&mut self, value: &Value) -> Result<(), ProbeError> {
        let text = value.to_string();
        let len = u32::try_from(text.len())
            .ok()
            .filter(|len| *len <= MAX_JSON_BYTES);
        let len = len.ok_or_else(|| ProbeError::Protocol(format!("{} bytes of JSON", text.len())))?;
        let mut bytes = len.to_be_bytes().to_vec();
        bytes.extend(text.as_bytes());
        self.stream
            .write_all(&bytes)
            .map_err(ProbeError::io("sending on the control connection"))
    }

    /// Waits for a JSON object.
    ///
    /// # Errors
    /// Silence, an end, a length beyond [`MAX_JSON_BYTES`], or text that is no JSON object.
    pub fn receive_json(&mut self, what: &'static str) -> Result<Value, ProbeError> {
        let mut len = [0u8; 4];
        read_full(&mut self.stream, &mut len, ANSWER_LIMIT, what)?;
        let len = u32::from_be_bytes(len);
        if len > MAX_JSON_BYTES {
            return Err(ProbeError::Protocol(format!(
                "{what}: {len} bytes, at most {MAX_JSON_BYTES}"
            )));
        }
        let mut bytes = vec![0u8; len as usize];
        read_full(&mut self.stream, &mut bytes, ANSWER_LIMIT, what)?;
        parse_json(&bytes)
    }
}
