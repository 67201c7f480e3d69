//! How exactly `kuroshio cp --rate` keeps its rate: the real program between two hosts of the testbed.
//!
//! ```text
//!   east: cp --rate R  ==== 1 Gbps wire, 10 ms one-way, MTU 1500 ====  west: serve
//!                                                                  \__ capture: kernel stamps
//!   |-- first second --|---------- ten seconds ----------|
//!   first full frame   rate, windows of 10 ms and 2 ms
//! ```
//!
//! All frames that arrive at the far port count, at frame level (MAC header to FCS): retransmissions,
//! handshakes and control too. Time begins with the first full-sized frame. Both hosts use CUBIC.
//!
//! `cargo run --release -p kuroshio --example rate_testbed -- --out rate-testbed.json` (after building the
//! program itself). Exit codes: 0 all checks hold, 1 one does not, 2 bad input, 3 the machine disturbed a run.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitCode, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use clap::Parser;
use kuroshio_core::meter::variation_ppm;
use kuroshio_core::units::BitRate;
use kuroshio_testbed::{Captured, Direction, EmulatorReport, Testbed, Topology, isolate};
use serde_json::{Value, json};

type Failure = Box<dyn std::error::Error>;

/// What the file holds at the rate: the first second, ten more, and a tail.
const SECONDS_OF_DATA: f64 = 12.5;
const SECOND_NS: u64 = 1_000_000_000;
/// The measured span after the first second.
const SPAN_NS: u64 = 10 * SECOND_NS;
/// Windows of the first second.
const FIRST_WINDOW_NS: u64 = 100_000_000;
/// Windows of the variation.
const VARIATION_WINDOW_NS: u64 = 10_000_000;
/// Windows of the burst factor.
const BURST_WINDOW_NS: u64 = 2_000_000;
/// Largest distance of the rate from its target.
const RATE_BOUND: f64 = 0.005;
/// The most that the first second may be above the target, mean and every 100 ms: one burst of the kernel
/// (1 ms of data) in 100 ms.
const OVERSHOOT_BOUND: f64 = 1.01;
/// Largest coefficient of variation of 10 ms windows.
const VARIATION_BOUND: f64 = 0.1;
/// MAC header and FCS: what a full frame has over the MTU.
const MAC_AND_FCS_BYTES: u32 = 18;
/// The kernel's own pacing through iperf3 on the same machine: target in Mbps, p99 of 2 ms windows over mean.
const KERNEL_BURST: [(u64, f64); 4] = [(50, 1.39), (250, 1.46), (500, 1.46), (900, 1.16)];
/// A run that the machine disturbed is made again until there were so many times the runs asked for; what is
/// missing then is filled with disturbed ones, which are marked.
const TRIES: u32 = 3;
/// A service that has not printed its ticket by then has failed.
const START_DEADLINE: Duration = Duration::from_secs(20);

/// The network: one sea between two hosts.
fn topology(args: &Args) -> Result<Topology, Failure> {
    let (mtu, delay) = (args.mtu_bytes, args.one_way_delay_us);
    let text = TOPOLOGY
        .replace("{mtu}", &format!("{mtu}B"))
        .replace("{delay}", &format!("{delay}us"));
    Ok(Topology::from_toml(&text)?)
}

const TOPOLOGY: &str = r#"
name = "rate"
[[router]]
name = "a"
[[router]]
name = "b"
[[host]]
name = "east"
[[host.port]]
name = "e0"
address = ["10.0.0.1/24"]
router = "a"
wire = "1Gbps"
mtu = "{mtu}"
[[host]]
name = "west"
[[host.port]]
name = "w0"
address = ["10.0.0.2/24"]
router = "b"
wire = "1Gbps"
mtu = "{mtu}"
[[link]]
name = "sea"
between = ["a", "b"]
capacity = "1Gbps"
one_way_delay = "{delay}"
queue = "4MiB"
"#;

#[derive(Parser)]
struct Args {
    /// The program; default: the one built beside this example
    #[arg(long)]
    kuroshio: Option<PathBuf>,
    /// Rates, frame level
    #[arg(long, value_delimiter = ',', default_value = "50M,250M,500M,900M")]
    targets: Vec<BitRate>,
    /// Numbers of streams
    #[arg(long, value_delimiter = ',', default_value = "1,4")]
    streams: Vec<u32>,
    /// Runs of each
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
    /// MTU of both hosts, bytes
    #[arg(long, default_value_t = 1500)]
    mtu_bytes: u32,
    /// One-way delay of the sea, microseconds
    #[arg(long, default_value_t = 10_000)]
    one_way_delay_us: u32,
    /// Folder for the files, in memory by default
    #[arg(long, default_value = "/dev/shm")]
    scratch: PathBuf,
    /// Writes the result there
    #[arg(long)]
    out: Option<PathBuf>,
    /// Prints the result as one JSON object instead of the table
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let own: Vec<_> = std::env::args_os().skip(1).collect();
    let code = if isolate::is_inside() {
        inside(&args)
    } else {
        isolate::run(&own)
            .map(|status| u8::try_from(status.code().unwrap_or(1)).unwrap_or(1))
            .map_err(Into::into)
    };
    code.map_or_else(
        |e| {
            eprintln!("rate_testbed: {e}");
            ExitCode::from(2)
        },
        ExitCode::from,
    )
}

/// A process that is ended when this goes.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A folder that is removed when this goes.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// One combination of rate and streams.
#[derive(Clone, Copy)]
struct Case {
    target: BitRate,
    streams: u32,
}

/// What one run showed. Rates are over the target.
#[derive(Debug, Clone, Copy)]
struct Figures {
    /// Ten seconds after the first second.
    rate: f64,
    /// Ten seconds from the first full frame.
    rate_from_first_frame: f64,
    first_second: f64,
    first_second_peak_100ms: f64,
    variation_10ms: f64,
    burst_2ms_p99: f64,
    burst_2ms_max: f64,
}

fn inside(args: &Args) -> Result<u8, Failure> {
    let program = match &args.kuroshio {
        Some(program) => program.clone(),
        None => beside()?,
    };
    let folder = args.scratch.join(format!("kuroshio-rate-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let scratch = Scratch(folder);
    let (mut cases, mut held, mut disturbed) = (Vec::new(), true, false);
    for &streams in &args.streams {
        for &target in &args.targets {
            let case = Case { target, streams };
            let file = scratch.0.join("source");
            fill(&file, target)?;
            let mut runs = Vec::new();
            let mut left = args.runs * TRIES;
            while runs.len() < args.runs as usize {
                let one = run(args, &program, &scratch.0, &file, case)?;
                let (figures, emulator, _) = &one;
                eprintln!(
                    "{:5} Mbps {streams} streams: {:+.3} %, variation {:.3}, burst {:.2}, late p99.9 {} us{}",
                    target.bps() / 1_000_000,
                    (figures.rate - 1.0) * 100.0,
                    figures.variation_10ms,
                    figures.burst_2ms_p99,
                    emulator.lateness.p999_ns / 1000,
                    emulator
                        .disturbed
                        .as_ref()
                        .map_or(String::new(), |d| format!("; disturbed: {d}"))
                );
                left -= 1;
                let counts = emulator.disturbed.is_none() && emulator.machine_lost == 0;
                if counts || (left as usize) < args.runs as usize - runs.len() {
                    disturbed |= !counts;
                    runs.push(one);
                }
            }
            let (value, ok) = told(case, &runs);
            held &= ok;
            cases.push(value);
        }
    }
    finish(args, cases, held, disturbed)
}

fn finish(args: &Args, cases: Vec<Value>, held: bool, disturbed: bool) -> Result<u8, Failure> {
    let table = table(&cases);
    let result = json!({
        "work": format!(
            "`kuroshio cp --rate` between two hosts of the testbed: 1 Gbps wire, {} ms one-way, MTU {}, \
             CUBIC, TLS and BLAKE3 on, frames stamped at the far port",
            f64::from(args.one_way_delay_us) / 1e3,
            args.mtu_bytes
        ),
        "unit": "rates over the target, frame level, ten seconds after the first",
        "runs": args.runs,
        "cases": cases,
        "held": held,
        "disturbed": disturbed,
    });
    if let Some(out) = &args.out {
        std::fs::write(out, serde_json::to_string_pretty(&result)? + "\n")?;
    }
    if args.json {
        println!("{result}");
    } else {
        print!("{table}");
    }
    Ok(match (held, disturbed) {
        (true, _) => 0,
        (false, true) => 3,
        (false, false) => 1,
    })
}

/// The program of the same build.
fn beside() -> Result<PathBuf, Failure> {
    let here = std::env::current_exe()?;
    let folder = here
        .parent()
        .and_then(Path::parent)
        .ok_or("this program is in no folder")?;
    let program = folder.join("kuroshio");
    if !program.exists() {
        return Err(format!("{} is not there: build it, or say --kuroshio", program.display()).into());
    }
    Ok(program)
}

/// A file that nothing can shorten, for [`SECONDS_OF_DATA`] at the rate.
fn fill(path: &Path, target: BitRate) -> Result<(), Failure> {
    let bytes = (target.bps() as f64 / 8.0 * SECONDS_OF_DATA) as usize;
    let mut file = std::io::BufWriter::with_capacity(1 << 20, std::fs::File::create(path)?);
    let mut x = 0x9e37_79b9_7f4a_7c15u64;
    for _ in 0..bytes / 8 {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        file.write_all(&x.to_le_bytes())?;
    }
    Ok(file.flush()?)
}

/// One copy over a fresh network.
fn run(
    args: &Args,
    program: &Path,
    scratch: &Path,
    file: &Path,
    case: Case,
) -> Result<(Figures, EmulatorReport, u64), Failure> {
    let here = Scratch(scratch.join("run"));
    for folder in ["root", "config", "state"] {
        std::fs::create_dir_all(here.0.join(folder))?;
    }
    let sea = Testbed::up(&topology(args)?)?;
    let _service = serve(&sea, program, &here.0)?;
    let capture = sea.capture(&["west/w0"])?;
    sea.begin()?;
    let rate = format!("{}bps", case.target.bps());
    let streams = case.streams.to_string();
    let mut cp = sea.command("east", program)?;
    cp.env("XDG_CONFIG_HOME", here.0.join("config"));
    cp.args([
        "cp",
        "-q",
        "--json",
        "--congestion",
        "cubic",
        "--rate",
        &rate,
        "--streams",
        &streams,
    ]);
    let done = cp.arg(file).arg("west:/").stdin(Stdio::null()).output()?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        return Err(format!("kuroshio cp --rate {rate}: {}: {}", done.status, said.trim()).into());
    }
    let captured = capture.stop()?;
    if captured.missed > 0 {
        return Err(format!("the capture missed {} frames", captured.missed).into());
    }
    let report = sea.down()?;
    let said: Value = serde_json::from_slice(&done.stdout)?;
    let retransmissions = said.get("retransmissions").and_then(Value::as_u64).unwrap_or(0);
    Ok((
        figures(&captured, case.target, args.mtu_bytes + MAC_AND_FCS_BYTES)?,
        report,
        retransmissions,
    ))
}

/// Starts the service and makes the client trust it under the name `west`.
fn serve(sea: &Testbed, program: &Path, here: &Path) -> Result<Running, Failure> {
    let mut command = sea.command("west", program)?;
    command
        .arg("serve")
        .arg("--root")
        .arg(here.join("root"))
        .arg("--state")
        .arg(here.join("state"));
    let log = std::fs::File::create(here.join("log"))?;
    let child = command
        .args(["--listen", "10.0.0.2:7420"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()?;
    let mut service = Running(child);
    let out = service.0.stdout.take().ok_or("the service has no output")?;
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || {
        let mut lines = BufReader::new(out).lines();
        let _ = send.send(lines.next());
        // The rest is read away: a service must not block on its output.
        lines.for_each(drop);
    });
    let ticket = receive
        .recv_timeout(START_DEADLINE)?
        .ok_or("the service gave no ticket")??;
    let mut trust = sea.command("east", program)?;
    trust.env("XDG_CONFIG_HOME", here.join("config"));
    let mut trusting = trust
        .args(["trust", "add", "west"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()?;
    if let Some(mut stdin) = trusting.stdin.take() {
        stdin.write_all((ticket + "\n").as_bytes())?;
    }
    let status = trusting.wait()?;
    if !status.success() {
        return Err(format!("kuroshio trust add: {status}").into());
    }
    Ok(service)
}

fn figures(captured: &Captured, target: BitRate, full_frame_bytes: u32) -> Result<Figures, Failure> {
    let mut frames: Vec<(u64, u64, bool)> = captured
        .records
        .iter()
        .filter(|r| r.direction == Direction::In)
        .map(|r| (r.t_ns, u64::from(r.frame_len), r.frame_len >= full_frame_bytes))
        .collect();
    frames.sort_unstable();
    let zero = frames.iter().find(|f| f.2).ok_or("no full frame arrived")?.0;
    let last = frames.last().map_or(0, |f| f.0);
    let end = SECOND_NS + SPAN_NS;
    if last < zero + end {
        return Err(format!("the copy took {:.2} s: too short", (last - zero) as f64 / 1e9).into());
    }
    let windows = |from: u64, span: u64, width: u64| -> Vec<u64> {
        let mut sums = vec![0; usize::try_from(span / width).unwrap_or(0)];
        for (t, len, _) in &frames {
            let at = t
                .checked_sub(zero + from)
                .and_then(|t| usize::try_from(t / width).ok());
            if let Some(sum) = at.and_then(|at| sums.get_mut(at)) {
                *sum += len;
            }
        }
        sums
    };
    let over_target = |bytes: u64, span: u64| bytes as f64 * 8e9 / span as f64 / target.bps() as f64;
    let mean = |from, span| over_target(windows(from, span, span).iter().sum(), span);
    let peak = windows(0, SECOND_NS, FIRST_WINDOW_NS)
        .into_iter()
        .max()
        .unwrap_or(0);
    let mut bursts = windows(SECOND_NS, SPAN_NS, BURST_WINDOW_NS);
    bursts.sort_unstable();
    let mean_burst = bursts.iter().sum::<u64>() as f64 / bursts.len() as f64;
    let burst = |share: f64| {
        let at = ((bursts.len() - 1) as f64 * share).round() as usize;
        bursts.get(at).map_or(0.0, |b| *b as f64 / mean_burst)
    };
    Ok(Figures {
        rate: mean(SECOND_NS, SPAN_NS),
        rate_from_first_frame: mean(0, SPAN_NS),
        first_second: mean(0, SECOND_NS),
        first_second_peak_100ms: over_target(peak, FIRST_WINDOW_NS),
        variation_10ms: variation_ppm(&windows(SECOND_NS, SPAN_NS, VARIATION_WINDOW_NS)) as f64 / 1e6,
        burst_2ms_p99: burst(0.99),
        burst_2ms_max: burst(1.0),
    })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// A figure by its name in the result.
type Pick = (&'static str, fn(&Figures) -> f64);

/// A case as it stands in the result, and whether its checks hold: each for the median of its runs.
fn told(case: Case, runs: &[(Figures, EmulatorReport, u64)]) -> (Value, bool) {
    let all = |pick: fn(&Figures) -> f64| runs.iter().map(|r| pick(&r.0)).collect::<Vec<_>>();
    let picks: [Pick; 7] = [
        ("rate", |f| f.rate),
        ("rate_from_first_frame", |f| f.rate_from_first_frame),
        ("first_second", |f| f.first_second),
        ("first_second_peak_100ms", |f| f.first_second_peak_100ms),
        ("variation_10ms", |f| f.variation_10ms),
        ("burst_2ms_p99", |f| f.burst_2ms_p99),
        ("burst_2ms_max", |f| f.burst_2ms_max),
    ];
    let mut medians = BTreeMap::new();
    let mut each = BTreeMap::new();
    for (name, pick) in picks {
        medians.insert(name, median(all(pick)));
        each.insert(name, all(pick));
    }
    let error = median(all(|f| f.rate)) - 1.0;
    let first = median(all(|f| f.first_second.max(f.first_second_peak_100ms)));
    let variation = median(all(|f| f.variation_10ms));
    let checks = [
        (
            "rate",
            "within 0.5 % of the target over 10 s",
            error,
            error.abs() <= RATE_BOUND,
        ),
        (
            "overshoot",
            "no 100 ms of the first second above 1.01 times the target",
            first,
            first <= OVERSHOOT_BOUND,
        ),
        (
            "variation",
            "coefficient of variation of 10 ms windows below 0.1",
            variation,
            variation < VARIATION_BOUND,
        ),
    ];
    let kernel = KERNEL_BURST
        .iter()
        .find(|k| k.0 * 1_000_000 == case.target.bps())
        .map(|k| k.1);
    let value = json!({
        "target_bps": case.target.bps(),
        "streams": case.streams,
        "median": medians,
        "each": each,
        "kernel_burst_2ms_p99": kernel,
        "checks": checks.map(|(name, bound, value, ok)| json!({"name": name, "bound": bound, "value": value, "ok": ok})),
        "retransmissions": runs.iter().map(|r| r.2).collect::<Vec<_>>(),
        "lateness_p999_ns": runs.iter().map(|r| r.1.lateness.p999_ns).collect::<Vec<_>>(),
        "machine_lost_frames": runs.iter().map(|r| r.1.machine_lost).sum::<u64>(),
        "disturbed": runs.iter().filter_map(|r| r.1.disturbed.clone()).collect::<Vec<_>>(),
    });
    (value, checks.iter().all(|c| c.3))
}

/// The medians as a table.
fn table(cases: &[Value]) -> String {
    let mut text = String::from(
        "  target streams    error  from 1st frame  1st second  100 ms peak  variation  burst p99   max  kernel  checks\n",
    );
    for case in cases {
        let number = |pointer: &str| case.pointer(pointer).and_then(Value::as_f64).unwrap_or(f64::NAN);
        let median = |name: &str| number(&format!("/median/{name}"));
        let failed: Vec<&str> = case
            .get("checks")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter(|c| c.get("ok") != Some(&Value::Bool(true)))
            .filter_map(|c| c.get("name").and_then(Value::as_str))
            .collect();
        text += &format!(
            "{:5.0} M {:8.0} {:+7.3} % {:+13.3} % {:11.4} {:12.4} {:10.4} {:10.3} {:5.2} {:7.2}  {}\n",
            number("/target_bps") / 1e6,
            number("/streams"),
            (median("rate") - 1.0) * 100.0,
            (median("rate_from_first_frame") - 1.0) * 100.0,
            median("first_second"),
            median("first_second_peak_100ms"),
            median("variation_10ms"),
            median("burst_2ms_p99"),
            median("burst_2ms_max"),
            number("/kernel_burst_2ms_p99"),
            if failed.is_empty() {
                "hold".to_owned()
            } else {
                format!("FAIL: {}", failed.join(", "))
            }
        );
    }
    text
}
