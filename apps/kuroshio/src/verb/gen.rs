//! `kuroshio gen`: test traffic on a schedule between two hosts.

use std::io::Read as _;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kuroshio_core::traffic::{Pattern, Sizes, Timing, parse_list};
use kuroshio_core::units::{BitRate, FrameBytes, PicoDuration, Ratio, WireBytes};
use kuroshio_core::wire::LineRate;
use kuroshio_gen::{
    Common, GEN_PORT, GenError, Raw, Recording, RunReport, RunResult, SendReport, Server, Session,
    find_throughput, replay_raw,
};
use serde_json::{Value, json};

use super::capacity;
use crate::error::Failure;
use crate::{output, signal};

const EXAMPLE: &str = "\
Example:
  kuroshio gen recv --listen 192.0.2.1
  kuroshio gen send 192.0.2.1 --pattern poisson --rate 100Mbps --size 1518B --streams 4 --time 10s --json
  kuroshio gen send 192.0.2.1 --size imix --rate 1Gbps --find-throughput --time 60s
  kuroshio gen capacity 192.0.2.1 --max-rate 2.5Gbps --frame 9018B
Rates are at frame level (MAC header to FCS) and of all streams in sum; sizes are frames with FCS.";

/// Most bytes of a list.
const MAX_LIST_BYTES: u64 = 64 << 20;
/// Length of a run without --time, --frames or a list that ends.
const DEFAULT_TIME: PicoDuration = PicoDuration::from_secs(10);

/// Arguments of `kuroshio gen`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLE)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// Receive: says where it listens, then the figures of every run
    #[command(after_help = EXAMPLE)]
    Recv(Recv),
    /// Send a pattern to a receiver and print what arrived
    #[command(after_help = EXAMPLE)]
    Send(Box<Send>),
    /// Search the usable capacity of the path to a receiver
    #[command(after_help = EXAMPLE)]
    Capacity {
        /// The receiver: a host, or HOST:PORT
        to: String,
        #[command(flatten)]
        options: capacity::Options,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Put the frames of a recording on an interface as they are (root); nobody need receive them
    #[command(after_help = EXAMPLE)]
    Replay {
        /// pcap or pcapng, Ethernet
        file: PathBuf,
        /// The interface
        #[arg(long, value_name = "IFACE")]
        raw: String,
        /// All times multiplied by this
        #[arg(long, value_name = "RATIO", default_value = "1")]
        scale: String,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
}

#[derive(clap::Args)]
struct Recv {
    /// Where to listen: an address, or ADDRESS:PORT (port 0 is any free one) [default: 127.0.0.1]
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1")]
    listen: String,
    /// End with the first sender
    #[arg(short = '1', long)]
    one_off: bool,
    /// Print JSON: one line with "listening", then one for each run
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct Send {
    /// The receiver: a host, or HOST:PORT
    to: String,
    /// constant, poisson, on-off, list or replay
    #[arg(long, default_value = "constant")]
    pattern: String,
    /// Frame-level rate of all streams in sum; of on-off while on
    #[arg(long, value_name = "RATE")]
    rate: Option<String>,
    /// Constant: time from start to start instead of a rate
    #[arg(long, value_name = "TIME", conflicts_with = "rate")]
    interval: Option<String>,
    /// Constant: idle bytes behind each frame on the wire of --wire instead of a rate
    #[arg(long, value_name = "SIZE", conflicts_with_all = ["rate", "interval"], requires = "wire")]
    gap: Option<String>,
    /// L1 rate of the wire on which --gap is counted
    #[arg(long, value_name = "RATE", requires = "gap")]
    wire: Option<String>,
    /// Frames: a size, imix (7:4:1 of 64, 594, 1518 bytes), or a range such as 64B-1518B
    #[arg(long, value_name = "SIZE", default_value = "1518B")]
    size: String,
    /// On-off: how long it is on
    #[arg(long, value_name = "TIME")]
    on: Option<String>,
    /// On-off: how long it is off
    #[arg(long, value_name = "TIME")]
    off: Option<String>,
    /// List: lines of gap and size; replay: pcap or pcapng (times and sizes)
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Replay: all times multiplied by this
    #[arg(long, value_name = "RATIO")]
    scale: Option<String>,
    /// List and replay: begin again at the end, until --time or --frames
    #[arg(long)]
    repeat: bool,
    /// Streams, which take turns [1 to 1024]
    #[arg(long, value_name = "N", default_value_t = 1)]
    streams: u32,
    /// How long [default: 10s]
    #[arg(long, value_name = "TIME")]
    time: Option<String>,
    /// How many frames
    #[arg(long, value_name = "N")]
    frames: Option<u64>,
    /// What random times and sizes follow from
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Send whole frames on an interface (root) instead of a UDP socket; needs --mac
    #[arg(long, value_name = "IFACE", requires = "mac")]
    raw: Option<String>,
    /// MAC address of the receiver, or of the router before it
    #[arg(long, value_name = "MAC", requires = "raw")]
    mac: Option<String>,
    /// Keep the wire behind --raw, of this rate, full with gap frames (PAUSE of time 0), which the next switch drops
    #[arg(long, value_name = "RATE", requires = "raw")]
    fill: Option<String>,
    /// Search the highest rate without loss, from --rate down, each run --time long (RFC 2544)
    #[arg(long)]
    find_throughput: bool,
    /// Lowest rate of that search [default: 1Mbps]
    #[arg(long, value_name = "RATE", requires = "find_throughput")]
    min_rate: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the verb.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    match args.what {
        What::Recv(args) => receive(&args),
        What::Send(args) => send(&args),
        What::Capacity { to, options, json } => {
            let config = options.config()?;
            let mut session = Session::connect(address(&to)?, 1, None).map_err(failure)?;
            capacity::search(&mut session, config, json!({ "receiver": to }), json)
        }
        What::Replay {
            file,
            raw,
            scale,
            json,
        } => replay(&file, &raw, &scale, json),
    }
}

/// A failure of the generator as one of the command.
pub(super) fn failure(e: GenError) -> Failure {
    if e.is_bad_input() {
        Failure::usage(e.to_string())
    } else {
        Failure::failed(e.to_string())
    }
}

/// A quantity of an option.
pub(super) fn read<T>(flag: &str, text: Option<&str>) -> Result<Option<T>, Failure>
where
    T: std::str::FromStr,
    T::Err: std::fmt::Display,
{
    let Some(text) = text else { return Ok(None) };
    let bad = |e: T::Err| Failure::usage(format!("{flag} {text}: {e}"));
    text.parse().map(Some).map_err(bad)
}

fn needed<T>(flag: &str, text: Option<&str>, pattern: &str) -> Result<T, Failure>
where
    T: std::str::FromStr,
    T::Err: std::fmt::Display,
{
    let missing = || Failure::usage(format!("--pattern {pattern}: {flag} is missing"));
    read(flag, text)?.ok_or_else(missing)
}

/// A host, `HOST:PORT`, an IPv6 address or `[ADDRESS]:PORT`.
fn address(text: &str) -> Result<SocketAddr, Failure> {
    if let Ok(ip) = text.parse::<std::net::IpAddr>() {
        return Ok(SocketAddr::new(ip, GEN_PORT));
    }
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let found = if text.contains(':') {
        text.to_socket_addrs()
    } else {
        (text, GEN_PORT).to_socket_addrs()
    };
    let mut found = found.map_err(|e| Failure::usage(format!("{text}: {e}: write HOST or HOST:PORT")))?;
    let none = || Failure::usage(format!("{text}: no address of this name"));
    found.next().ok_or_else(none)
}

fn stopper() -> Result<Arc<AtomicBool>, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    signal::on_stop(move || flag.store(true, Ordering::Relaxed))?;
    Ok(stop)
}

fn receive(args: &Recv) -> Result<ExitCode, Failure> {
    let json = args.json;
    let told = move |from: SocketAddr, report: &RunReport| {
        let text = if json {
            json!({ "from": from, "report": report }).to_string()
        } else {
            format!("from {from}\n{}", report_text(report, None))
        };
        // A reader that is gone does not end the receiver.
        let _ = output::line(&text);
    };
    let server = Server::bind(address(&args.listen)?, args.one_off, Arc::new(told)).map_err(failure)?;
    let at = server.address().map_err(failure)?;
    output::line(&if json {
        json!({ "listening": at }).to_string()
    } else {
        format!("listening on {at}")
    })?;
    let stop = server.stopper();
    signal::on_stop(move || stop.store(true, Ordering::Release))?;
    server.serve().map_err(failure)?;
    Ok(ExitCode::SUCCESS)
}

/// The sizes that `--size` names.
fn sizes(text: &str) -> Result<Sizes, Failure> {
    if text == "imix" {
        return Ok(Sizes::Imix);
    }
    let size = |text: &str| -> Result<FrameBytes, Failure> {
        text.trim().parse().map_err(|e| {
            Failure::usage(format!(
                "--size {text}: {e}; or imix, or a range such as 64B-1518B"
            ))
        })
    };
    match text.split_once('-') {
        Some((least, most)) => Ok(Sizes::Range(size(least)?, size(most)?)),
        None => size(text).map(Sizes::Fixed),
    }
}

fn list(path: &Path) -> Result<Timing, Failure> {
    let bad = |e: String| Failure::usage(format!("{}: {e}", path.display()));
    let file = std::fs::File::open(path).map_err(|e| bad(e.to_string()))?;
    let mut text = String::new();
    file.take(MAX_LIST_BYTES + 1)
        .read_to_string(&mut text)
        .map_err(|e| bad(e.to_string()))?;
    if text.len() as u64 > MAX_LIST_BYTES {
        return Err(bad("more than 64 MiB".to_owned()));
    }
    let entries = parse_list(&text).map_err(|e| bad(e.to_string()))?;
    Ok(Timing::List {
        entries: entries.into(),
        repeat: false,
    })
}

fn constant(args: &Send) -> Result<Timing, Failure> {
    if let Some(interval) = read("--interval", args.interval.as_deref())? {
        return Ok(Timing::Interval(interval));
    }
    if let Some(gap) = read::<WireBytes>("--gap", args.gap.as_deref())? {
        let line = needed::<BitRate>("--wire", args.wire.as_deref(), "constant")?;
        return Ok(Timing::Gap(gap, LineRate::new(line)));
    }
    needed("--rate", args.rate.as_deref(), "constant").map(Timing::Rate)
}

/// The pattern that the options describe.
fn pattern(args: &Send) -> Result<Pattern, Failure> {
    let kind = args.pattern.as_str();
    let rate = || needed("--rate", args.rate.as_deref(), kind);
    let file = || {
        let missing = || Failure::usage(format!("--pattern {kind}: --file is missing"));
        args.file.as_deref().ok_or_else(missing)
    };
    let mut timing = match kind {
        "constant" => constant(args)?,
        "poisson" => Timing::Poisson(rate()?),
        "on-off" => Timing::OnOff {
            rate: rate()?,
            on: needed("--on", args.on.as_deref(), kind)?,
            off: needed("--off", args.off.as_deref(), kind)?,
        },
        "list" => list(file()?)?,
        "replay" => {
            let scale = read::<Ratio>("--scale", args.scale.as_deref())?.unwrap_or(Ratio::ONE);
            let recording = Recording::open(file()?, scale).map_err(failure)?;
            Timing::List {
                entries: recording.entries.into(),
                repeat: false,
            }
        }
        other => {
            return Err(Failure::usage(format!(
                "--pattern {other}: constant, poisson, on-off, list and replay are valid"
            )));
        }
    };
    let mut time = read::<PicoDuration>("--time", args.time.as_deref())?;
    let ends = time.is_some() || args.frames.is_some();
    match &mut timing {
        Timing::List { repeat, .. } => *repeat = args.repeat,
        _ if args.repeat => return Err(Failure::usage("--repeat: only for lists and recordings")),
        _ if !ends => time = Some(DEFAULT_TIME),
        _ => {}
    }
    let pattern = Pattern {
        timing,
        sizes: sizes(&args.size)?,
        streams: args.streams,
        seed: args.seed,
        time,
        frames: args.frames,
    };
    // What is not valid is said before anything is connected.
    kuroshio_core::traffic::Schedule::new(pattern.clone()).map_err(|e| Failure::usage(e.to_string()))?;
    Ok(pattern)
}

fn send(args: &Send) -> Result<ExitCode, Failure> {
    let pattern = pattern(args)?;
    let to = address(&args.to)?;
    let raw = args.raw.as_deref().zip(args.mac.as_deref());
    let mut session = Session::connect(to, args.streams, raw).map_err(failure)?;
    if let (Some(wire), Some(interface)) = (read::<BitRate>("--fill", args.fill.as_deref())?, &args.raw) {
        session.fill(interface, LineRate::new(wire)).map_err(failure)?;
    }
    let stop = stopper()?;
    if args.find_throughput {
        return throughput(args, &mut session, &pattern, &stop);
    }
    let result = session.run(pattern, &stop).map_err(failure)?;
    let common = session.common_clock();
    if args.json {
        let object = json!({
            "receiver": to,
            "pattern": args.pattern,
            "clock": common,
            "sent": result.sent.to_json(),
            "received": result.received,
        });
        output::line(&object.to_string())?;
    } else {
        output::line(&sent_text(&result.sent))?;
        output::line(&report_text(&result.received, Some(common)))?;
    }
    Ok(ExitCode::from(u8::from(result.sent.interrupted)))
}

fn throughput(
    args: &Send,
    session: &mut Session,
    pattern: &Pattern,
    stop: &AtomicBool,
) -> Result<ExitCode, Failure> {
    let min = read("--min-rate", args.min_rate.as_deref())?.unwrap_or(BitRate::from_mbps(1));
    let (mut runs, mut told) = (Vec::new(), Ok(()));
    let report = find_throughput(
        session,
        pattern,
        min,
        1_000,
        stop,
        &mut |rate, result, lossless| {
            runs.push(run_json(rate, result, lossless));
            if !args.json && told.is_ok() {
                let word = if lossless { "no loss" } else { "loss" };
                told = output::line(&format!("  {rate}: {word}; {}", sent_text(&result.sent)));
            }
        },
    )
    .map_err(failure)?;
    told?;
    let found = report.result;
    if args.json {
        let object = json!({
            "throughput_bps": found.lossless.map(BitRate::bps),
            "lossy_bps": found.lossy.map(BitRate::bps),
            "resolution_ppm": 1_000,
            "runs": runs,
            "machine_losses": report.machine_losses,
        });
        output::line(&object.to_string())?;
    } else {
        output::line(&match found.lossless {
            Some(rate) => format!("throughput at zero loss {rate} (frame level)"),
            None => format!("frames are lost even at {min}"),
        })?;
    }
    Ok(ExitCode::from(u8::from(found.lossless.is_none())))
}

fn run_json(rate: BitRate, result: &RunResult, lossless: bool) -> Value {
    let sum = |pick: fn(&kuroshio_gen::StreamFigures) -> u64| -> u64 {
        result.received.streams.iter().map(pick).sum()
    };
    json!({
        "rate_bps": rate.bps(),
        "lossless": lossless,
        "sent": result.sent.to_json(),
        "received_frames": sum(|s| s.received_frames),
        "lost_frames": sum(|s| s.lost_frames),
        "receiver_dropped_frames": result.received.receiver_dropped_frames,
    })
}

fn replay(file: &Path, interface: &str, scale: &str, json: bool) -> Result<ExitCode, Failure> {
    let scale = read::<Ratio>("--scale", Some(scale))?.unwrap_or(Ratio::ONE);
    let recording = Recording::open(file, scale).map_err(failure)?;
    let raw = Raw::replay(interface, &recording).map_err(failure)?;
    let stop = stopper()?;
    let sent = replay_raw(raw, recording, &stop).map_err(failure)?;
    output::line(&if json {
        sent.to_json().to_string()
    } else {
        sent_text(&sent)
    })?;
    Ok(ExitCode::from(u8::from(sent.interrupted)))
}

fn sent_text(sent: &SendReport) -> String {
    let late = &sent.lateness_ns;
    let us = |ns: u64| ns as f64 / 1e3;
    let rate = sent
        .rate
        .map_or_else(|| "-".to_owned(), |r| format!("{:.3} Mbps", r.bps() as f64 / 1e6));
    let gaps = match sent.gap_frames {
        0 => String::new(),
        n => format!(
            "; {n} gap frames, {} bytes, {} late",
            sent.gap_bytes, sent.gaps_late
        ),
    };
    format!(
        "sent {} frames, {} bytes, {rate}; late p50 {:.2} us, p99 {:.2} us, max {:.2} us; refused by the kernel {}{gaps}",
        sent.frames,
        sent.frame_bytes,
        us(late.p50),
        us(late.p99),
        us(late.max),
        sent.not_sent
    )
}

fn report_text(report: &RunReport, common: Option<Common>) -> String {
    let mut lines: Vec<String> = report
        .streams
        .iter()
        .map(|s| {
            let delay = |name| s.one_way_delay_us.get(name).copied().unwrap_or(0.0);
            format!(
                "  stream {}: {} of {} arrived, lost {}, copies {}, reordered {} (extent {}), {:.3} Mbps, \
                 delay p50 {:.1} us, p99 {:.1} us, jitter {:.1} us",
                s.stream,
                s.received_frames,
                s.sent_frames,
                s.lost_frames,
                s.duplicate_frames,
                s.reordered_frames,
                s.reorder_extent_max_frames,
                s.rate_bps as f64 / 1e6,
                delay("p50"),
                delay("p99"),
                s.jitter_us
            )
        })
        .collect();
    if report.receiver_dropped_frames > 0 {
        let dropped = report.receiver_dropped_frames;
        lines.push(format!(
            "  {dropped} frames were lost by the receiving machine: its buffer was full"
        ));
    }
    match common {
        Some(Common::None) => {
            lines.push("  the hosts have no common clock: delays are off by an unknown constant".to_owned());
        }
        Some(Common::Synchronised { max_error_us }) => {
            lines.push(format!(
                "  delays are right to {max_error_us} us, the clocks' own bound"
            ));
        }
        _ => {}
    }
    lines.join("\n")
}
