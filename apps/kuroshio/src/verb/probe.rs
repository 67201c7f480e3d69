//! `kuroshio probe`: memory to memory between two hosts.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use kuroshio_core::units::{BitRate, PicoDuration, parse_bytes};
use kuroshio_gen::Session;
use kuroshio_probe::{
    ClientConfig, Connection, Direction, Event, Family, IPERF_PORT, Interval, Length, Limits, OnEvent,
    Params, ProbeError, Protocol, Server, ServerEvent, TestReport, dial_capacity, header, interval_lines,
    run_client, summary_lines,
};

use super::capacity;
use super::r#gen::failure;
use crate::error::{EXIT_FAILED, Failure};
use crate::rail::RailFlag;
use crate::{output, signal};

const EXAMPLE: &str = "\
Example:
  kuroshio probe -s                                   serve on loopback
  kuroshio probe -s --listen 192.0.2.1                serve whoever reaches that address
  kuroshio probe -c 192.0.2.1 -P 4 --rate 2G          four streams, 2 Gbps at frame level in sum
  kuroshio probe -c 192.0.2.1 --find-capacity         highest rate without loss or queue growth
  kuroshio probe -c 192.0.2.1 -R -t 60s --distance 15461km --json
Either side may be iperf3 (3.7 or later).";

/// Arguments of `kuroshio probe`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLE)]
#[command(group = clap::ArgGroup::new("role").required(true).args(["server", "client"]))]
pub struct Args {
    /// Serve tests, without asking who comes: on loopback unless --listen says otherwise
    #[arg(short = 's', long)]
    server: bool,
    /// Test against the server on HOST
    #[arg(short = 'c', long, value_name = "HOST")]
    client: Option<String>,
    /// The server's port
    #[arg(short = 'p', long, default_value_t = IPERF_PORT)]
    port: u16,
    /// Print one JSON object for each test, in iperf3's shape
    #[arg(short = 'J', long)]
    json: bool,
    #[command(flatten)]
    rail: RailFlag,
    #[command(flatten)]
    serving: Serving,
    #[command(flatten)]
    asking: Asking,
    /// Search the usable capacity of the path to a Kuroshio server instead of a test: --bind, -4, -6 and the
    /// options of the search apply
    #[arg(long, conflicts_with = "server")]
    find_capacity: bool,
    #[command(flatten)]
    searching: capacity::Options,
}

#[derive(clap::Args)]
#[command(next_help_heading = "Server")]
struct Serving {
    /// Where to listen: an address, or ADDRESS:PORT (port 0 is any free one) [default: 127.0.0.1 and ::1]
    #[arg(long, value_name = "ADDR", conflicts_with = "client")]
    listen: Vec<String>,
    /// Tests at the same time [default: 4]
    #[arg(long, value_name = "N", conflicts_with = "client")]
    sessions: Option<u32>,
    /// Longest test [default: 1h]
    #[arg(long, value_name = "TIME", conflicts_with = "client")]
    max_time: Option<String>,
    /// Largest test [default: 64TiB]
    #[arg(long, value_name = "SIZE", conflicts_with = "client")]
    max_bytes: Option<String>,
    /// End after one test
    #[arg(short = '1', long, conflicts_with = "client")]
    one_off: bool,
}

#[derive(clap::Args)]
#[command(next_help_heading = "Client")]
struct Asking {
    /// UDP instead of TCP
    #[arg(short = 'u', long, conflicts_with = "server")]
    udp: bool,
    /// IPv4 only
    #[arg(short = '4', conflicts_with_all = ["server", "v6"])]
    v4: bool,
    /// IPv6 only
    #[arg(short = '6', conflicts_with = "server")]
    v6: bool,
    /// Local address to leave from
    #[arg(short = 'B', long, value_name = "ADDRESS", conflicts_with = "server")]
    bind: Option<IpAddr>,
    /// Streams of each direction
    #[arg(short = 'P', long, value_name = "N", conflicts_with = "server")]
    parallel: Option<u32>,
    /// The server sends
    #[arg(short = 'R', long, conflicts_with_all = ["server", "bidir"])]
    reverse: bool,
    /// Both send
    #[arg(long, conflicts_with = "server")]
    bidir: bool,
    /// How long, not counting what is omitted [default: 10s]
    #[arg(short = 't', long, value_name = "TIME", conflicts_with_all = ["server", "bytes"])]
    time: Option<String>,
    /// How much instead of how long
    #[arg(short = 'n', long, value_name = "SIZE", conflicts_with = "server")]
    bytes: Option<String>,
    /// Whole seconds at the begin that count for nothing
    #[arg(short = 'O', long, value_name = "TIME", conflicts_with = "server")]
    omit: Option<String>,
    /// Time between two reports [default: 1s]
    #[arg(short = 'i', long, value_name = "TIME", conflicts_with = "server")]
    interval: Option<String>,
    /// Pace: rate of all streams of a direction in sum, frame level (MAC header to FCS)
    #[arg(long, value_name = "RATE", conflicts_with = "server")]
    rate: Option<String>,
    /// Socket buffers of every stream; the kernel tunes them if this is left out
    #[arg(short = 'w', long, value_name = "SIZE", conflicts_with = "server")]
    window: Option<String>,
    /// Bytes of one write or datagram [default: 128KiB; UDP: what a segment on the path holds]
    #[arg(short = 'l', long, value_name = "SIZE", conflicts_with = "server")]
    length: Option<String>,
    /// Segment size, options counted
    #[arg(short = 'M', long, value_name = "SIZE", conflicts_with = "server")]
    mss: Option<String>,
    /// Congestion control, for example cubic
    #[arg(short = 'C', long, value_name = "NAME", conflicts_with = "server")]
    congestion: Option<String>,
    /// Send small segments at once (TCP_NODELAY)
    #[arg(short = 'N', long, conflicts_with = "server")]
    no_delay: bool,
    /// Send from the page cache (sendfile)
    #[arg(short = 'Z', long, conflicts_with = "server")]
    zerocopy: bool,
    /// Length of the path, for example 15461km: adds the land-speed metric
    #[arg(long, value_name = "KM", conflicts_with = "server")]
    distance: Option<String>,
    /// Limit of an attempt to connect [default: 10s]
    #[arg(long, value_name = "TIME", conflicts_with = "server")]
    connect_timeout: Option<String>,
    /// A title, repeated in the JSON output
    #[arg(short = 'T', long, value_name = "TEXT", conflicts_with = "server")]
    title: Option<String>,
}

/// Runs the verb.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    args.rail
        .bind(args.client.as_deref().map(|host| (host, args.port)))?;
    if let (Some(host), true) = (&args.client, args.find_capacity) {
        let search = args.searching.config()?;
        let config = config(host, args.port, &args.asking)?;
        let stream = dial_capacity(&config)?;
        let mut session = Session::over(stream, 1, None).map_err(failure)?;
        let more = serde_json::json!({ "receiver": format!("{host}:{}", args.port) });
        return capacity::search(&mut session, search, more, args.json);
    }
    if args.searching.given() {
        return Err(Failure::usage(
            "probe: the options of the capacity search need --find-capacity and -c HOST",
        ));
    }
    match &args.client {
        Some(host) => ask(config(host, args.port, &args.asking)?, args.json),
        None => serve(&args),
    }
}

impl From<ProbeError> for Failure {
    fn from(e: ProbeError) -> Self {
        if e.is_bad_input() {
            Self::usage(e.to_string())
        } else {
            Self::failed(e.to_string())
        }
    }
}

fn read<T>(flag: &str, text: Option<&str>) -> Result<Option<T>, Failure>
where
    T: std::str::FromStr,
    T::Err: std::fmt::Display,
{
    let Some(text) = text else { return Ok(None) };
    let bad = |e: T::Err| Failure::usage(format!("{flag} {text}: {e}"));
    text.parse().map(Some).map_err(bad)
}

/// A size that fits the wire's 32 bits.
fn size(flag: &str, text: Option<&str>) -> Result<Option<u32>, Failure> {
    let Some(text) = text else { return Ok(None) };
    let bytes = parse_bytes(text).map_err(|e| Failure::usage(format!("{flag} {text}: {e}")))?;
    match u32::try_from(bytes) {
        Ok(bytes) if bytes > 0 => Ok(Some(bytes)),
        _ => Err(Failure::usage(format!("{flag} {text}: from 1B to 4GiB"))),
    }
}

/// `15461km`, `357.5km` or `900m`, in metres.
fn distance(text: &str) -> Result<u64, Failure> {
    let bad = || {
        Failure::usage(format!(
            "--distance {text}: write a number and km or m, such as 15461km"
        ))
    };
    let (number, metres) = match text.strip_suffix("km") {
        Some(number) => (number, 1000.0),
        None => (text.strip_suffix('m').ok_or_else(bad)?, 1.0),
    };
    let number = number.trim();
    // Only digits and a point: no signs, exponents or names of numbers.
    if number.is_empty() || !number.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
        return Err(bad());
    }
    let metres = number.parse::<f64>().map_err(|_| bad())? * metres;
    if !(1.0..=1e12).contains(&metres) {
        return Err(bad());
    }
    Ok(metres.round() as u64)
}

fn config(host: &str, port: u16, a: &Asking) -> Result<ClientConfig, Failure> {
    let time = |flag, text: &Option<String>| read::<PicoDuration>(flag, text.as_deref());
    let mut config = ClientConfig::new(host);
    config.port = port;
    config.family = match (a.v4, a.v6) {
        (true, _) => Some(Family::V4),
        (_, true) => Some(Family::V6),
        _ => None,
    };
    config.local = a.bind;
    config.rate = read::<BitRate>("--rate", a.rate.as_deref())?;
    if let Some(limit) = time("--connect-timeout", &a.connect_timeout)? {
        if limit == PicoDuration::ZERO {
            return Err(Failure::usage("--connect-timeout 0s: a time above zero is valid"));
        }
        config.connect_timeout = limit.to_std();
    }
    if let Some(interval) = time("--interval", &a.interval)? {
        config.interval = interval.to_std();
    }
    config.distance_m = a.distance.as_deref().map(distance).transpose()?;
    let p: &mut Params = &mut config.params;
    p.protocol = if a.udp { Protocol::Udp } else { Protocol::Tcp };
    p.direction = match (a.reverse, a.bidir) {
        (true, _) => Direction::Reverse,
        (_, true) => Direction::Both,
        _ => Direction::Forward,
    };
    if let Some(streams) = a.parallel {
        if streams == 0 {
            return Err(Failure::usage("--parallel 0: from 1 to 128 streams are valid"));
        }
        p.streams = streams;
    }
    if let Some(time) = time("--time", &a.time)? {
        p.length = Length::Time(time.as_ns());
    }
    if let Some(text) = &a.bytes {
        let bytes = parse_bytes(text).map_err(|e| Failure::usage(format!("--bytes {text}: {e}")))?;
        p.length = Length::Bytes(bytes);
    }
    if let Some(omit) = time("--omit", &a.omit)? {
        let seconds = omit.as_ms() / 1000;
        if PicoDuration::from_secs(seconds) != omit {
            return Err(Failure::usage(format!(
                "--omit {omit}: whole seconds are valid, such as 2s"
            )));
        }
        p.omit_s = u32::try_from(seconds).unwrap_or(u32::MAX);
    }
    p.window_bytes = size("--window", a.window.as_deref())?;
    p.block_bytes = size("--length", a.length.as_deref())?;
    p.mss_bytes = size("--mss", a.mss.as_deref())?;
    p.congestion.clone_from(&a.congestion);
    p.title.clone_from(&a.title);
    (p.nodelay, p.zerocopy) = (a.no_delay, a.zerocopy);
    config.check()?;
    Ok(config)
}

fn connection_line(c: &Connection) -> String {
    format!("[{:>3}] local {} connected to {}", c.id, c.local, c.remote)
}

fn ask(config: ClientConfig, json: bool) -> Result<ExitCode, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    signal::on_stop(move || flag.store(true, Ordering::Release))?;
    // Standard output that is closed ends the printing, and with it the verb, not the test's clean end.
    let mut printed = Ok(());
    let mut print = |line: &str| {
        if printed.is_ok() && !json {
            printed = output::line(line);
        }
    };
    print(&format!(
        "Connecting to host {}, port {}",
        config.host, config.port
    ));
    let report = run_client(&config, &stop, &mut |event| match event {
        Event::Connected(connections) => {
            for connection in connections {
                print(&connection_line(connection));
            }
            print(&header(&config.params));
        }
        Event::Interval(interval) => {
            for line in interval_lines(&config.params, interval) {
                print(&line);
            }
        }
    })?;
    printed?;
    if json {
        output::line(&report.to_json().map_err(|e| Failure::failed(e.to_string()))?)?;
    } else {
        for line in summary_lines(&report) {
            output::line(&line)?;
        }
    }
    Ok(if report.interrupted {
        ExitCode::from(EXIT_FAILED)
    } else {
        ExitCode::SUCCESS
    })
}

/// Where to listen: what was named, or loopback of both families.
fn addresses(args: &Args) -> Result<(Vec<SocketAddr>, bool), Failure> {
    let mut named = Vec::new();
    for text in &args.serving.listen {
        let address = text.parse::<SocketAddr>().or_else(|_| {
            let bare = text.trim_start_matches('[').trim_end_matches(']');
            bare.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, args.port))
        });
        named.push(address.map_err(|_| {
            Failure::usage(format!(
                "--listen {text}: write an address of this host, with or without a port, such as 192.0.2.1, \
                 [::]:5201 or 0.0.0.0"
            ))
        })?);
    }
    if !named.is_empty() {
        return Ok((named, false));
    }
    let loopback = [
        IpAddr::from(Ipv4Addr::LOCALHOST),
        IpAddr::from(Ipv6Addr::LOCALHOST),
    ];
    Ok((loopback.map(|ip| SocketAddr::new(ip, args.port)).to_vec(), true))
}

fn limits(serving: &Serving) -> Result<Limits, Failure> {
    let mut limits = Limits::default();
    if let Some(sessions) = serving.sessions {
        if !(1..=64).contains(&sessions) {
            return Err(Failure::usage(format!(
                "--sessions {sessions}: from 1 to 64 are valid"
            )));
        }
        limits.sessions = sessions;
    }
    if let Some(time) = read::<PicoDuration>("--max-time", serving.max_time.as_deref())? {
        if !(PicoDuration::from_secs(1)..=PicoDuration::from_secs(86_400)).contains(&time) {
            return Err(Failure::usage(format!(
                "--max-time {time}: from 1s to 24h is valid"
            )));
        }
        limits.time = time.to_std();
    }
    if let Some(text) = &serving.max_bytes {
        limits.bytes = parse_bytes(text).map_err(|e| Failure::usage(format!("--max-bytes {text}: {e}")))?;
        if limits.bytes == 0 {
            return Err(Failure::usage("--max-bytes 0B: at least 1B is valid"));
        }
    }
    Ok(limits)
}

fn serve(args: &Args) -> Result<ExitCode, Failure> {
    let limits = limits(&args.serving)?;
    let (mut addresses, loopback) = addresses(args)?;
    let json = args.json;
    let broken = Arc::new(Mutex::new(None));
    let sink = Arc::clone(&broken);
    let on: OnEvent = Arc::new(move |event| {
        if let Err(e) = tell(&event, json) {
            *sink.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(e);
        }
    });
    let one_off = args.serving.one_off;
    let bind = |addresses: &[SocketAddr]| Server::bind(addresses, limits, one_off, Arc::clone(&on));
    let server = match bind(&addresses) {
        // A host without IPv6 has one loopback address.
        Err(_) if loopback => {
            addresses.truncate(1);
            bind(&addresses)
        }
        done => done,
    }?;
    let stop = server.stopper();
    signal::on_stop(move || stop.store(true, Ordering::Release))?;
    let shown: Vec<String> = server.addresses().iter().map(ToString::to_string).collect();
    if json {
        eprintln!(
            "{}",
            serde_json::json!({"event": "listening", "addresses": shown})
        );
    } else {
        eprintln!("kuroshio: probe server on {}", shown.join(", "));
    }
    server.serve()?;
    let failed = broken
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
        .take();
    failed.map_or(Ok(ExitCode::SUCCESS), Err)
}

/// What a server prints; several tests at once are told apart by their number.
fn tell(event: &ServerEvent<'_>, json: bool) -> Result<(), Failure> {
    match event {
        ServerEvent::Failed { session, peer, error } => {
            let peer = peer.map_or_else(|| "a client".to_owned(), |p| p.to_string());
            if json {
                let text = error.to_string();
                let line =
                    serde_json::json!({"event": "failed", "session": session, "peer": peer, "error": text});
                eprintln!("{line}");
            } else {
                eprintln!("kuroshio: test {session} with {peer}: {error}");
            }
            Ok(())
        }
        ServerEvent::Finished { session, report } => finished(*session, report, json),
        _ if json => Ok(()),
        ServerEvent::Started {
            session,
            connections,
            params,
        } => {
            for connection in *connections {
                output::line(&format!("test {session}: {}", connection_line(connection)))?;
            }
            output::line(&format!("test {session}: {}", header(params)))
        }
        ServerEvent::Interval {
            session,
            interval,
            params,
        } => interval_text(*session, params, interval),
    }
}

fn interval_text(session: u64, params: &Params, interval: &Interval) -> Result<(), Failure> {
    for line in interval_lines(params, interval) {
        output::line(&format!("test {session}: {line}"))?;
    }
    Ok(())
}

fn finished(session: u64, report: &TestReport, json: bool) -> Result<(), Failure> {
    if json {
        return output::line(&report.to_json().map_err(|e| Failure::failed(e.to_string()))?);
    }
    for line in summary_lines(report) {
        output::line(&format!("test {session}: {line}"))?;
    }
    Ok(())
}
