//! `kuroshio netv`: uncompressed video in several paced parts, and its receiver.

use std::io::{BufReader, BufWriter};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kuroshio_core::units::{BitRate, PicoDuration, parse_bytes};
use kuroshio_core::video::{Geometry, PixelFormat};
use kuroshio_netv::{
    MAX_HELD, NetvError, Output, PartTarget, Pattern, Prepare, Receiver, RecvConfig, RecvReport, SendConfig,
    SendReport, Source, sdp, send,
};
use kuroshio_rail::{Binding, Roots, bind, discover, find, interface_of};

use crate::error::{EXIT_FAILED, Failure};
use crate::{output, signal};

mod window;

use window::{Closed, Window};

const EXAMPLE: &str = "\
Examples:
  kuroshio netv recv --listen 127.0.0.1:5004,127.0.0.1:5006 --size 1280x720 --display   in a window of ffplay or mpv
  kuroshio netv recv --listen 192.0.2.1:5004 --size 1280x720 --out - | ffplay -
  kuroshio netv send --to 127.0.0.1:5004,127.0.0.1:5006 --size 1280x720 --fps 30        two halves of a test pattern
  kuroshio netv send --to 192.0.2.1:5004 --source film.y4m --mtu 9000B                  size and rate from the file
  kuroshio netv send --to 192.0.2.1:5004,192.0.2.1:5006 --rail 1,2 --size 3840x2160 --fps 60 --format yuv422-10
  kuroshio netv recv --listen 127.0.0.1:5004 --pictures 60 --snapshot last.png --json
Formats: rgb8 rgb10 yuv444-8 yuv444-10 yuv422-8 yuv422-10 yuv420-8. Both sides need the same size, format and number of parts.
Each part is RTP with the payload of RFC 4175: --sdp PREFIX writes what GStreamer or ffplay needs to show one.
Nobody is asked who he is and nothing is encrypted. Exit codes: 0 done, 1 failed, 2 bad input.";

/// Arguments of `kuroshio netv`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLE)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// Send a test pattern, a file or a pipe
    #[command(after_help = EXAMPLE)]
    Send(Box<Send>),
    /// Receive, align and write or measure
    #[command(after_help = EXAMPLE)]
    Recv(Box<Recv>),
}

#[derive(clap::Args)]
struct Kind {
    /// Width and height, pixels
    #[arg(long, value_name = "WxH", default_value = "1920x1080")]
    size: String,
    /// Pictures per second, also as a fraction such as 30000/1001
    #[arg(long, value_name = "RATE", default_value = "30")]
    fps: String,
    /// Pixel format
    #[arg(long, value_name = "FORMAT", default_value = "yuv422-8")]
    format: String,
    /// Rails of the parts: one for all, or one each; a number, PCI address, interface or auto
    #[arg(long, value_name = "auto|RAIL,...", value_delimiter = ',')]
    rail: Vec<String>,
    /// End after so many pictures
    #[arg(long, value_name = "N")]
    pictures: Option<u64>,
    /// Print one JSON object at the end
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct Send {
    /// Where each part goes, from the top of the picture: as many parts as addresses
    #[arg(long, required = true, value_name = "ADDR:PORT,...", value_delimiter = ',')]
    to: Vec<SocketAddr>,
    /// Local address of each part
    #[arg(long, value_name = "ADDR,...", value_delimiter = ',')]
    bind: Vec<IpAddr>,
    /// pattern; held:N: N pictures of it, drawn once by each part and sent in turn; a file or pipe of y4m (`-`: standard input);
    /// raw:FILE or raw:- for rows of pixel groups (rgb24, uyvy422)
    #[arg(long, value_name = "SOURCE", default_value = "pattern")]
    source: String,
    /// MTU of the paths: a datagram fills it
    #[arg(long, value_name = "SIZE", default_value = "1500B")]
    mtu: String,
    /// Write PREFIX-1.sdp, PREFIX-2.sdp, ... for other receivers
    #[arg(long, value_name = "PREFIX")]
    sdp: Option<String>,
    #[command(flatten)]
    kind: Kind,
}

#[derive(clap::Args)]
struct Recv {
    /// Where each part comes, from the top of the picture
    #[arg(long, required = true, value_name = "ADDR:PORT,...", value_delimiter = ',')]
    listen: Vec<SocketAddr>,
    /// Longest wait for the other parts of a picture [default: half a picture's time: a display that does not align]
    #[arg(long, value_name = "TIME")]
    wait: Option<String>,
    /// Write shown pictures: y4m, or raw rows of pixel groups for RGB; `-`: standard output
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Show pictures in a window: starts ffplay or mpv on a pipe; closing the window ends the receiver
    #[arg(long, conflicts_with = "out")]
    display: bool,
    /// Write a shown picture as PNG
    #[arg(long, value_name = "FILE")]
    snapshot: Option<PathBuf>,
    /// Which one, from 0 [default: the last]
    #[arg(long, value_name = "N", requires = "snapshot")]
    snapshot_at: Option<u64>,
    /// End after this time
    #[arg(long, value_name = "TIME")]
    time: Option<String>,
    /// End when nothing came for this time after the first picture
    #[arg(long, value_name = "TIME")]
    idle: Option<String>,
    #[command(flatten)]
    kind: Kind,
}

impl From<NetvError> for Failure {
    fn from(e: NetvError) -> Self {
        if e.is_bad_input() {
            Self::usage(e.to_string())
        } else {
            Self::failed(e.to_string())
        }
    }
}

/// Runs the verb.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    match args.what {
        What::Send(args) => {
            let json = args.kind.json;
            let (config, source) = sending(*args)?;
            let flag = Arc::clone(&stop);
            signal::on_stop(move || flag.store(true, Ordering::Release))?;
            let report = send(config, source, &stop)?;
            if json {
                print(&report)?
            } else {
                show_sent(&report)?
            }
            Ok(code(report.interrupted))
        }
        What::Recv(args) => {
            let (json, quiet) = (args.kind.json, args.out.as_deref() == Some("-".as_ref()));
            let (config, closed) = receiving(*args, &stop)?;
            let receiver = Receiver::bind(config)?;
            let flag = Arc::clone(&stop);
            signal::on_stop(move || flag.store(true, Ordering::Release))?;
            let addresses: Vec<String> = receiver.addresses()?.iter().map(ToString::to_string).collect();
            eprintln!("kuroshio: video on {}", addresses.join(", "));
            let mut report = receiver.run(&stop)?;
            // A window that its user closed is the end that he wanted.
            report.interrupted &= !closed.is_some_and(|closed| closed.load(Ordering::Acquire));
            match (json, quiet) {
                // Standard output is the video's.
                (true, true) => eprintln!("{}", text(&report)?),
                (false, true) => shown_lines(&report).iter().for_each(|l| eprintln!("{l}")),
                (true, false) => print(&report)?,
                (false, false) => shown_lines(&report).iter().try_for_each(|l| output::line(l))?,
            }
            Ok(code(report.interrupted))
        }
    }
}

fn code(interrupted: bool) -> ExitCode {
    if interrupted {
        ExitCode::from(EXIT_FAILED)
    } else {
        ExitCode::SUCCESS
    }
}

fn text(report: &impl serde::Serialize) -> Result<String, Failure> {
    serde_json::to_string(report).map_err(|e| Failure::failed(e.to_string()))
}

fn print(report: &impl serde::Serialize) -> Result<(), Failure> {
    output::line(&text(report)?)
}

fn time(flag: &str, text: Option<&String>) -> Result<Option<PicoDuration>, Failure> {
    let read = |t: &String| match t.parse::<PicoDuration>() {
        Ok(time) if time <= PicoDuration::from_secs(86_400) => Ok(time),
        Ok(time) => Err(Failure::usage(format!("{flag} {time}: up to 24h is valid"))),
        Err(e) => Err(Failure::usage(format!("{flag}: {e}"))),
    };
    text.map(read).transpose()
}

/// `30` or `30000/1001`.
fn fps(text: &str) -> Result<(u32, u32), Failure> {
    let (n, d) = text.split_once('/').unwrap_or((text, "1"));
    match (n.parse::<u32>(), d.parse::<u32>()) {
        (Ok(n), Ok(d)) if d > 0 && n >= d.div_ceil(60) && u64::from(n) <= 1_000 * u64::from(d) => Ok((n, d)),
        _ => Err(Failure::usage(format!(
            "--fps {text}: from 1/60 to 1000 pictures per second, such as 30 or 30000/1001, is valid"
        ))),
    }
}

fn geometry(kind: &Kind) -> Result<Geometry, Failure> {
    let format: PixelFormat = kind
        .format
        .parse()
        .map_err(|e| Failure::usage(format!("--{e}")))?;
    let size = kind
        .size
        .split_once('x')
        .and_then(|(w, h)| Some((w.parse().ok()?, h.parse().ok()?)));
    let (width, height) = size.ok_or_else(|| {
        Failure::usage(format!(
            "--size {}: write WIDTHxHEIGHT, such as 1920x1080",
            kind.size
        ))
    })?;
    Geometry::new(width, height, format).map_err(|e| Failure::usage(format!("--{e}")))
}

/// What each part's thread does first: binds itself to its rail.
fn prepares(names: &[String], ends: &[SocketAddr]) -> Result<Vec<Option<Prepare>>, Failure> {
    if names.is_empty() {
        return Ok(ends.iter().map(|_| None).collect());
    }
    if names.len() != 1 && names.len() != ends.len() {
        return Err(Failure::usage(format!(
            "--rail: {} rails for {} parts: one, or one for each, is valid",
            names.len(),
            ends.len()
        )));
    }
    let machine = Arc::new(discover(&kuroshio_rail::Source::Here, &Roots::default())?);
    let each = ends.iter().zip(names.iter().cycle()).map(|(end, name)| {
        let near = crate::rail::route_to((&end.ip().to_string(), end.port()));
        let interface = near.or_else(|| interface_of(end.ip()).ok().flatten());
        let rail = find(&machine, name, interface.as_deref())?;
        let binding = Binding {
            pus: rail.pus,
            memory_node: rail.node,
        };
        let machine = Arc::clone(&machine);
        let prepare: Prepare = Box::new(move || match bind(&machine, &binding) {
            Ok(notes) => {
                notes.iter().for_each(|n| eprintln!("kuroshio: rail: {n}"));
                Ok(())
            }
            Err(e) => Err(NetvError::BadInput(format!("--rail: {e}"))),
        });
        Ok(Some(prepare))
    });
    each.collect()
}

fn sending(args: Send) -> Result<(SendConfig, Source), Failure> {
    let open = |path: &str| -> Result<Box<dyn std::io::BufRead + std::marker::Send>, Failure> {
        if path == "-" {
            return Ok(Box::new(BufReader::with_capacity(1 << 20, std::io::stdin())));
        }
        let file = std::fs::File::open(path).map_err(|e| Failure::usage(format!("--source {path}: {e}")))?;
        Ok(Box::new(BufReader::with_capacity(1 << 20, file)))
    };
    let parts = u32::try_from(args.to.len()).unwrap_or(u32::MAX);
    let (mut geometry, mut rate) = (geometry(&args.kind)?, fps(&args.kind.fps)?);
    let source = match args.source.as_str() {
        "pattern" => Source::Pattern(Pattern::new(geometry, parts)),
        held if held.starts_with("held:") => match held["held:".len()..].parse() {
            Ok(pictures @ 1..=MAX_HELD) => Source::Held(pictures),
            _ => {
                return Err(Failure::usage(format!(
                    "--source {held}: held:1 to held:{MAX_HELD} is valid"
                )));
            }
        },
        raw if raw.starts_with("raw:") => Source::Raw {
            from: open(&raw["raw:".len()..])?,
            geometry,
        },
        path => Source::y4m(open(path)?)?,
    };
    if let Source::Y4m { header, .. } = &source {
        (geometry, rate) = (header.geometry, header.rate);
    }
    let mtu = parse_bytes(&args.mtu).map_err(|e| Failure::usage(format!("--mtu: {e}")))?;
    if !(576..=65_535).contains(&mtu) {
        return Err(Failure::usage(format!(
            "--mtu {}: from 576B to 65535B is valid",
            args.mtu
        )));
    }
    if !args.bind.is_empty() && args.bind.len() != args.to.len() {
        return Err(Failure::usage("--bind: one address for each of --to is valid"));
    }
    let v6 = args.to.iter().any(SocketAddr::is_ipv6);
    let datagram_bytes = mtu as usize - if v6 { 48 } else { 28 };
    let prepares = prepares(&args.kind.rail, &args.to)?;
    if let Some(prefix) = &args.sdp {
        for (i, to) in args.to.iter().enumerate() {
            let part = geometry
                .part(i as u32, parts)
                .map_err(|e| Failure::usage(format!("--to: {e}")))?
                .0;
            let path = format!("{prefix}-{}.sdp", i + 1);
            let text = sdp(
                part,
                rate,
                *to,
                &format!("kuroshio netv, part {} of {parts}", i + 1),
            );
            std::fs::write(&path, text).map_err(|e| Failure::usage(format!("--sdp {path}: {e}")))?;
        }
    }
    let targets = args
        .to
        .iter()
        .enumerate()
        .zip(prepares)
        .map(|((i, to), prepare)| PartTarget {
            to: *to,
            from: args.bind.get(i).map(|ip| SocketAddr::new(*ip, 0)),
            prepare,
            inspect: None,
        });
    let config = SendConfig {
        geometry,
        rate,
        parts: targets.collect(),
        datagram_bytes,
        pictures: args.kind.pictures,
        ssrc: std::process::id(),
    };
    Ok((config, source))
}

/// What to receive, and with `--display` what tells whether its window was closed.
fn receiving(args: Recv, stop: &Arc<AtomicBool>) -> Result<(RecvConfig, Option<Closed>), Failure> {
    let (geometry, rate) = (geometry(&args.kind)?, fps(&args.kind.fps)?);
    let half = PicoDuration::from_ns(500_000_000 * u64::from(rate.1) / u64::from(rate.0));
    let wait = time("--wait", args.wait.as_ref())?.unwrap_or(half);
    if wait > PicoDuration::from_secs(10) {
        return Err(Failure::usage(format!("--wait {wait}: up to 10s is valid")));
    }
    let prepares = prepares(&args.kind.rail, &args.listen)?;
    let mut closed = None;
    let video: Option<Box<dyn std::io::Write + std::marker::Send>> = match args.out.as_deref() {
        None if args.display => {
            let window = Window::open(geometry, rate, Arc::clone(stop))?;
            closed = Some(window.closed());
            Some(Box::new(BufWriter::with_capacity(1 << 20, window)))
        }
        None => None,
        Some(path) if path == "-" => Some(Box::new(BufWriter::with_capacity(1 << 20, std::io::stdout()))),
        Some(path) => {
            let file = std::fs::File::create(path)
                .map_err(|e| Failure::usage(format!("--out {}: {e}", path.display())))?;
            Some(Box::new(BufWriter::with_capacity(1 << 20, file)))
        }
    };
    let config = RecvConfig {
        geometry,
        rate,
        listen: args.listen.into_iter().zip(prepares).collect(),
        wait,
        pictures: args.kind.pictures,
        time: time("--time", args.time.as_ref())?.map(PicoDuration::to_std),
        idle: time("--idle", args.idle.as_ref())?.map(PicoDuration::to_std),
        output: Output {
            video,
            snapshot: args.snapshot,
            snapshot_at: args.snapshot_at,
        },
    };
    Ok((config, closed))
}

fn show_sent(r: &SendReport) -> Result<(), Failure> {
    let rate = BitRate::new(r.frame_rate_bps).map_or_else(|| "0bps".to_owned(), |b| b.to_string());
    output::line(&format!(
        "{} pictures, {:.3} of {:.3} per second, {rate} frame level, {} late from the source",
        r.pictures, r.rate_fps, r.rate_asked_fps, r.late_pictures
    ))?;
    for p in &r.parts {
        output::line(&format!(
            "{}: {} lines, {} datagrams in {} calls, {} not sent; departures late p50 {} us, p99 {} us, max {} us",
            p.to,
            p.lines,
            p.datagrams,
            p.calls,
            p.not_sent_datagrams,
            p.lateness_p50_ns / 1000,
            p.lateness_p99_ns / 1000,
            p.lateness_max_ns / 1000
        ))?;
    }
    Ok(())
}

fn shown_lines(r: &RecvReport) -> Vec<String> {
    let mut lines = vec![format!(
        "{} pictures shown, {} whole, {} torn, {} late parts, {:.3} per second; parts aligned within p50 {:.1} us, p99 {:.1} us, max {:.1} us",
        r.shown,
        r.whole,
        r.torn,
        r.late_parts,
        r.rate_fps,
        r.alignment_p50_us,
        r.alignment_p99_us,
        r.alignment_max_us
    )];
    lines.extend(r.parts.iter().map(|p| {
        format!(
            "{}: {} datagrams, {} refused, {} late, {} repeated; {} whole parts, {} incomplete",
            p.listen,
            p.datagrams,
            p.refused_datagrams,
            p.late_datagrams,
            p.repeated_datagrams,
            p.whole,
            p.incomplete
        )
    }));
    lines
}
