//! The client of a test: connects, asks, measures, and exchanges results.

use crate::IPERF_PORT;
use crate::error::ProbeError;
use crate::params::{Direction, Length, MAX_TIME_S, Pace, Params, Protocol};
use crate::protocol::{ANSWER_LIMIT, Control, Cookie, State};
use crate::report::{Connection, Role, TestReport};
use crate::results::{Results, stream_id};
use crate::run::{Interval, Made, Run, RunReport, TICK_NS};
use crate::stream::DataSocket;
use crate::udp;
use kuroshio_clock::now_ns;
use kuroshio_core::units::BitRate;
use kuroshio_sock::{Buffers, ConnectOptions, Framing, buffers, connect, is_ipv6, set_buffers, tcp_info};
use socket2::{Domain, Socket, Type};
use std::io::Write;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Rate of a UDP test that names none, frame level.
pub const DEFAULT_UDP_RATE: BitRate = BitRate::from_mbps(1);
/// Buffers of a UDP socket when no window is named, bytes (as far as the kernel grants them).
pub const UDP_BUFFER_BYTES: u32 = 4 << 20;
/// Streams times intervals of one test at most.
pub const MAX_INTERVALS: u64 = 100_000;
/// How long a server may take to accept all streams, and to answer after the end.
const SERVER_LIMIT: Duration = Duration::from_secs(30);
/// How long the server's reason is waited for after a stream broke, ns: some times the longest round trip on earth.
const REASON_NS: u64 = 1_000_000_000;

/// Which addresses of a name are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4 only.
    V4,
    /// IPv6 only.
    V6,
}

/// What a client is to do.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Name or address of the server.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Which of its addresses.
    pub family: Option<Family>,
    /// Local address to leave from.
    pub local: Option<IpAddr>,
    /// Limit of each attempt to connect.
    pub connect_timeout: Duration,
    /// The test; `pace` is set from `rate`.
    pub params: Params,
    /// Frame-level rate of all streams of a direction in sum.
    pub rate: Option<BitRate>,
    /// Time between two reports.
    pub interval: Duration,
    /// Length of the path, metres, for the land-speed metric.
    pub distance_m: Option<u64>,
}

impl ClientConfig {
    /// A TCP test of ten seconds on one stream.
    pub fn new(host: impl Into<String>) -> Self {
        Self {
            host: host.into(),
            port: IPERF_PORT,
            family: None,
            local: None,
            connect_timeout: Duration::from_secs(10),
            params: Params {
                protocol: Protocol::Tcp,
                direction: Direction::Forward,
                streams: 1,
                omit_s: 0,
                length: Length::Time(10_000_000_000),
                block_bytes: None,
                window_bytes: None,
                mss_bytes: None,
                congestion: None,
                pace: Pace::None,
                follow_window: false,
                nodelay: false,
                zerocopy: false,
                wide_counters: true,
                title: None,
                extension: true,
            },
            rate: None,
            interval: Duration::from_secs(1),
            distance_m: None,
        }
    }

    /// Whether the parts fit each other.
    ///
    /// # Errors
    /// [`ProbeError::BadInput`] with what does not, and what would.
    pub fn check(&self) -> Result<(), ProbeError> {
        let bad = |text: String| Err(ProbeError::BadInput(text));
        let p = &self.params;
        // What a server would refuse is refused before anything is sent.
        match Params::from_json(&p.to_json(None)) {
            Err(ProbeError::Limit(text) | ProbeError::Protocol(text)) => return bad(text),
            Err(e) => return bad(e.to_string()),
            Ok(_) => {}
        }
        let interval_ns = u64::try_from(self.interval.as_nanos()).unwrap_or(u64::MAX);
        if !(TICK_NS..=3_600_000_000_000).contains(&interval_ns) {
            return bad("the interval is from 100ms to 1h".into());
        }
        match p.length {
            Length::Time(ns) => {
                let longest = MAX_TIME_S * 1_000_000_000;
                if !(1_000_000..=longest).contains(&ns) {
                    return bad("the time is from 1ms to 24h".into());
                }
                let intervals = ns / interval_ns * u64::from(p.all_streams());
                if intervals > MAX_INTERVALS {
                    return bad(format!(
                        "{intervals} intervals of streams, at most {MAX_INTERVALS}: take a longer interval"
                    ));
                }
            }
            Length::Bytes(0) => return bad("the bytes to send are at least 1B".into()),
            Length::Bytes(_) if p.omit_s > 0 => {
                return bad("omitted seconds go with a time, not with bytes".into());
            }
            Length::Bytes(_) => {}
        }
        if p.protocol == Protocol::Udp && (p.congestion.is_some() || p.mss_bytes.is_some() || p.zerocopy) {
            return bad("congestion control, segment size and zerocopy are TCP's: leave --udp out".into());
        }
        if let Some(rate) = self.rate
            && rate.checked_div(u64::from(p.streams)).is_none()
        {
            return bad(format!("{rate} cannot be shared by {} streams", p.streams));
        }
        Ok(())
    }

    fn connect_options(&self, data: bool) -> ConnectOptions {
        let p = &self.params;
        ConnectOptions {
            local: self.local,
            timeout: self.connect_timeout,
            congestion: p.congestion.clone().filter(|_| data),
            buffer_bytes: p.window_bytes.filter(|_| data),
            // Also on the control connection: UDP takes its datagrams' size from it.
            mss_bytes: p.mss_bytes,
            ..ConnectOptions::default()
        }
    }

    fn addresses(&self) -> Result<Vec<SocketAddr>, ProbeError> {
        let failed = |source| ProbeError::Resolve {
            host: self.host.clone(),
            source,
        };
        let all = (self.host.as_str(), self.port)
            .to_socket_addrs()
            .map_err(|e| failed(Some(e)))?;
        let fits = |a: &SocketAddr| match self.family {
            None => true,
            Some(Family::V4) => a.is_ipv4(),
            Some(Family::V6) => a.is_ipv6(),
        };
        let fits_local = |a: &SocketAddr| self.local.is_none_or(|l| l.is_ipv4() == a.is_ipv4());
        let found: Vec<SocketAddr> = all.filter(fits).filter(fits_local).collect();
        if found.is_empty() {
            return Err(failed(None));
        }
        Ok(found)
    }
}

/// What a client tells while it works.
#[derive(Debug)]
pub enum Event<'a> {
    /// The streams are made.
    Connected(&'a [Connection]),
    /// An interval ended.
    Interval(&'a Interval),
}

/// Runs a test against a server of this crate or of iperf 3.7 and later. `stop` ends it early, with results.
///
/// # Errors
/// [`ProbeError`]; the server was told where that was possible.
pub fn run_client(
    config: &ClientConfig,
    stop: &AtomicBool,
    on: &mut dyn FnMut(Event<'_>),
) -> Result<TestReport, ProbeError> {
    config.check()?;
    let cookie = Cookie::random()?;
    let mut control = dial(config, &cookie)?;
    let mut params = config.params.clone();
    let done = converse(config, &mut params, &cookie, &mut control, stop, on);
    if !matches!(
        done,
        Ok(_) | Err(ProbeError::Remote { .. } | ProbeError::Busy | ProbeError::Ended { .. })
    ) {
        // The connection may be what failed.
        let _ = control.send(State::ClientTerminate);
    }
    done
}

/// A connection to a Kuroshio server over which the capacity of the path is searched.
///
/// # Errors
/// As [`run_client`] until a connection stands.
pub fn dial_capacity(config: &ClientConfig) -> Result<std::net::TcpStream, ProbeError> {
    dial_stream(config, &Cookie::CAPACITY)
}

fn dial(config: &ClientConfig, cookie: &Cookie) -> Result<Control, ProbeError> {
    Control::new(dial_stream(config, cookie)?)
}

fn dial_stream(config: &ClientConfig, cookie: &Cookie) -> Result<std::net::TcpStream, ProbeError> {
    let mut last = None;
    for address in config.addresses()? {
        match connect(address, &config.connect_options(false)) {
            Ok(mut stream) => {
                stream
                    .write_all(cookie.as_bytes())
                    .map_err(ProbeError::io("sending the cookie"))?;
                return Ok(stream);
            }
            Err(e) => last = Some(e),
        }
    }
    let nothing = || ProbeError::Resolve {
        host: config.host.clone(),
        source: None,
    };
    Err(last.map_or_else(nothing, ProbeError::Connect))
}

/// The rate of a stream, and the datagram's size from the path; gives the stream's rate as payload for an
/// iperf3 that sends.
fn complete(
    config: &ClientConfig,
    params: &mut Params,
    control: &Control,
) -> Result<Option<u64>, ProbeError> {
    let failed = ProbeError::io("control connection");
    let info = tcp_info(control.socket()).map_err(&failed)?;
    let ipv6 = is_ipv6(control.socket()).map_err(&failed)?;
    if params.protocol == Protocol::Udp && params.block_bytes.is_none() {
        let mss = info.snd_mss.min(crate::params::MAX_DATAGRAM_BYTES);
        params.block_bytes = Some(mss.max(crate::params::MIN_DATAGRAM_BYTES));
    }
    let rate = match params.protocol {
        Protocol::Tcp => config.rate,
        Protocol::Udp => Some(config.rate.unwrap_or(DEFAULT_UDP_RATE)),
    };
    let each = rate.and_then(|rate| rate.checked_div(u64::from(params.streams)));
    params.pace = each.map_or(Pace::None, Pace::Frame);
    let framing = match params.protocol {
        Protocol::Tcp => info.framing(ipv6),
        Protocol::Udp => Framing::of_datagram(params.block(), ipv6),
    };
    Ok(each.and_then(|each| Some(framing?.payload_bytes_per_s(each).saturating_mul(8))))
}

fn converse(
    config: &ClientConfig,
    params: &mut Params,
    cookie: &Cookie,
    control: &mut Control,
    stop: &AtomicBool,
    on: &mut dyn FnMut(Event<'_>),
) -> Result<TestReport, ProbeError> {
    control.expect(State::ParamExchange, "the server's greeting")?;
    let goodput_bps = complete(config, params, control)?;
    control.send_json(&params.to_json(goodput_bps))?;
    match control.receive(SERVER_LIMIT, "the server's answer to the parameters")? {
        State::CreateStreams => {}
        other => {
            return Err(ProbeError::Protocol(format!(
                "{other:?} instead of CreateStreams"
            )));
        }
    }
    let made = make_streams(config, params, cookie, control)?;
    let connections: Vec<Connection> = made.iter().filter_map(Connection::of).collect();
    let granted = made.first().and_then(|m| buffers(&m.socket).ok());
    on(Event::Connected(&connections));
    match control.receive(SERVER_LIMIT, "the start of the test")? {
        State::TestStart => {}
        other => return Err(ProbeError::Protocol(format!("{other:?} instead of TestStart"))),
    }
    let quota = match (params.length, params.direction) {
        (Length::Bytes(bytes), Direction::Forward | Direction::Both) => Some(bytes),
        _ => None,
    };
    let interval_ns = u64::try_from(config.interval.as_nanos()).unwrap_or(u64::MAX);
    let mut run = Run::prepare(made, params, interval_ns, quota)?;
    control.expect(State::TestRunning, "the start of the data")?;
    let started_unix_s = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_secs());
    run.start()?;
    let interrupted = measure(&mut run, control, stop, on)?;
    control.send(State::TestEnd)?;
    // Until the server has closed its streams these stay open: a reset would look like a failure to it.
    match control.receive(SERVER_LIMIT, "the server's end of the test")? {
        State::ExchangeResults => {}
        other => {
            return Err(ProbeError::Protocol(format!(
                "{other:?} instead of ExchangeResults"
            )));
        }
    }
    let info = tcp_info(control.socket()).unwrap_or_default();
    let (run, last) = run.report();
    if let Some(interval) = &last {
        on(Event::Interval(interval));
    }
    let peer = exchange(control, &run)?;
    Ok(TestReport {
        role: Role::Client,
        host: config.host.clone(),
        port: config.port,
        peer_address: control.peer,
        cookie: cookie.text(),
        started_unix_s,
        params: params.clone(),
        rate: config.rate,
        interval_s: config.interval.as_secs_f64(),
        connections,
        granted,
        control: info,
        run,
        peer,
        distance_m: config.distance_m,
        interrupted,
    })
}

/// Until the test is complete; gives whether it was stopped early.
fn measure(
    run: &mut Run,
    control: &mut Control,
    stop: &AtomicBool,
    on: &mut dyn FnMut(Event<'_>),
) -> Result<bool, ProbeError> {
    loop {
        let until_ns = run.next_tick_ns().min(run.end_ns());
        if let Some(state) = control.poll_until(until_ns, "the server during the test")? {
            return Err(ProbeError::Protocol(format!("{state:?} during the test")));
        }
        let interrupted = stop.load(Ordering::Acquire);
        if interrupted || run.is_complete() {
            run.halt();
            return Ok(interrupted);
        }
        if let Some(interval) = run.tick() {
            on(Event::Interval(&interval));
        }
        if let Some(failure) = run.failure() {
            return Err(why_ended(control, failure));
        }
    }
}

/// What the server says of a stream that broke: it tells its reason on the control connection before it closes the
/// streams, but the two are different connections, and either may be seen first. Without a reason, the failure.
fn why_ended(control: &mut Control, failure: ProbeError) -> ProbeError {
    match control.poll_until(now_ns() + REASON_NS, "the server's reason") {
        Err(reason @ (ProbeError::Ended { .. } | ProbeError::Remote { .. })) => reason,
        _ => failure,
    }
}

fn exchange(control: &mut Control, run: &RunReport) -> Result<Results, ProbeError> {
    control.send_json(&run.results(false).to_json())?;
    let peer = Results::from_json(&control.receive_json("the server's results")?)?;
    control.expect(State::DisplayResults, "the end of the exchange")?;
    control.send(State::IperfDone)?;
    Ok(peer)
}

fn make_streams(
    config: &ClientConfig,
    params: &Params,
    cookie: &Cookie,
    control: &Control,
) -> Result<Vec<Made>, ProbeError> {
    (0..params.all_streams())
        .map(|index| {
            let socket = match params.protocol {
                Protocol::Tcp => DataSocket::Tcp(tcp_stream(config, cookie, control.peer)?),
                Protocol::Udp => DataSocket::Udp(udp_stream(config, params, control)?),
            };
            Ok(Made {
                id: stream_id(index),
                sends: params.client_sends(index),
                socket,
            })
        })
        .collect()
}

fn tcp_stream(config: &ClientConfig, cookie: &Cookie, peer: SocketAddr) -> Result<TcpStream, ProbeError> {
    let mut stream = connect(peer, &config.connect_options(true)).map_err(ProbeError::Connect)?;
    stream
        .write_all(cookie.as_bytes())
        .map_err(ProbeError::io("sending a stream's cookie"))?;
    if !config.params.nodelay {
        kuroshio_sock::set_nodelay(&stream, false).map_err(ProbeError::io("TCP_NODELAY"))?;
    }
    Ok(stream)
}

/// A datagram to the server, which answers: then both know each other.
fn udp_stream(config: &ClientConfig, params: &Params, control: &Control) -> Result<UdpSocket, ProbeError> {
    let failed = ProbeError::io("making a UDP stream");
    let socket = Socket::new(Domain::for_address(control.peer), Type::DGRAM, None).map_err(&failed)?;
    if let Some(local) = config.local {
        socket.bind(&SocketAddr::new(local, 0).into()).map_err(&failed)?;
    }
    udp_buffers(&socket, params.window_bytes).map_err(&failed)?;
    socket.connect(&control.peer.into()).map_err(&failed)?;
    let socket: UdpSocket = socket.into();
    socket.send(&udp::HELLO[0].to_ne_bytes()).map_err(&failed)?;
    let what = "the answer to a UDP stream's first datagram (UDP may be filtered on the path)";
    let until_ns = now_ns() + ANSWER_LIMIT.as_nanos() as u64;
    loop {
        let left_ns = until_ns.saturating_sub(now_ns());
        if left_ns == 0 {
            return Err(ProbeError::Timeout {
                what,
                after: ANSWER_LIMIT,
            });
        }
        socket
            .set_read_timeout(Some(Duration::from_nanos(left_ns)))
            .map_err(&failed)?;
        let mut answer = [0u8; 4];
        match socket.recv(&mut answer) {
            Ok(4) if udp::ANSWER.contains(&u32::from_ne_bytes(answer)) => return Ok(socket),
            Ok(_) => {}
            Err(e) if crate::protocol::is_retry(&e) => {}
            Err(e) => return Err(failed(e)),
        }
    }
}

/// The window that was asked for, or as much of the default as the kernel grants.
pub(crate) fn udp_buffers(socket: &impl std::os::fd::AsFd, window: Option<u32>) -> std::io::Result<Buffers> {
    set_buffers(socket, window.unwrap_or(UDP_BUFFER_BYTES))
}
