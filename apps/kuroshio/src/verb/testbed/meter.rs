//! `kuroshio testbed meter`: meters at ports and links of a running network, and what they saw.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use kuroshio_core::units::PicoDuration;
use kuroshio_testbed::meter::{ClockHead, Direction, MeterRequest};
use serde_json::{Value, json};

use super::{asked, failed, pick, text};
use crate::error::Failure;
use crate::output::line;

const EXAMPLES: &str = "\
Examples:
  kuroshio testbed meter add web tokyo/p0 --direction sent --filter 'tcp and dst port 80' --window 1ms --window 1s
  kuroshio testbed meter add sea 'pacific:japan>california' --streams 8
  kuroshio testbed meter read sea --window 10ms --for 10s > sea.csv
  kuroshio testbed meter histogram web --of gap
  kuroshio testbed meter report web sea --out plots
";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// Start a meter
    #[command(after_help = EXAMPLES)]
    Add {
        /// Name of the meter
        meter: String,
        /// A port (HOST/PORT) or one direction of a link (LINK:FROM>TO)
        at: String,
        /// Of a port: sent, shaped or received (received without)
        #[arg(long)]
        direction: Option<Direction>,
        /// Which streams, such as 'tcp and dst port 5001 and src 10.0.1.0/24'; all without
        #[arg(long, value_name = "EXPR", default_value = "")]
        filter: String,
        /// Width of windows, 500us to 1h; up to eight of them (10ms and 1s without)
        #[arg(long = "window", value_name = "TIME")]
        windows: Vec<String>,
        /// Windows that are kept of each width, 65536 at most (1000 without)
        #[arg(long)]
        keep: Option<usize>,
        /// Streams that are kept apart as well, 64 at most
        #[arg(long)]
        streams: Option<usize>,
        #[command(flatten)]
        which: super::Which,
    },
    /// End a meter and forget what it saw
    #[command(after_help = EXAMPLES)]
    Rm {
        /// Name of the meter
        meter: String,
        #[command(flatten)]
        which: super::Which,
    },
    /// List the meters with their totals and what they cost
    #[command(after_help = EXAMPLES)]
    Ls(super::Which),
    /// Print the closed windows of a meter as CSV, or as JSON lines with --json
    #[command(after_help = EXAMPLES)]
    Read {
        /// Name of the meter
        meter: String,
        /// Width of the windows; the narrowest without
        #[arg(long, value_name = "TIME")]
        window: Option<String>,
        /// Go on with the windows to come, for so long
        #[arg(long = "for", value_name = "TIME")]
        time: Option<PicoDuration>,
        #[command(flatten)]
        which: super::Which,
    },
    /// Print a histogram of a meter as CSV, or as JSON with --json
    #[command(after_help = EXAMPLES)]
    Histogram {
        /// Name of the meter
        meter: String,
        /// gap (idle wire), start or end (distance of frames' starts or ends), delay (one-way)
        #[arg(long, default_value = "gap")]
        of: String,
        /// One of the streams that it keeps apart, by the name that `meter ls` prints
        #[arg(long)]
        stream: Option<String>,
        #[command(flatten)]
        which: super::Which,
    },
    /// Write plots of what meters have kept: report.html and PNG files
    #[command(after_help = EXAMPLES)]
    Report {
        /// Names of meters
        #[arg(required = true)]
        meters: Vec<String>,
        /// Width of the windows; the narrowest of each meter without
        #[arg(long, value_name = "TIME")]
        window: Option<String>,
        /// Folder, made when missing
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
        #[command(flatten)]
        which: super::Which,
    },
}

pub fn run(args: Args) -> Result<ExitCode, Failure> {
    match args.what {
        What::Add {
            meter,
            at,
            direction,
            filter,
            windows,
            keep,
            streams,
            which,
        } => {
            let request = MeterRequest {
                name: meter,
                at,
                direction,
                filter,
                windows,
                keep,
                streams,
            };
            ask(&which, &json!({ "do": "meter-add", "meter": request }))
        }
        What::Rm { meter, which } => ask(&which, &json!({ "do": "meter-rm", "name": meter })),
        What::Ls(which) => ls(&which),
        What::Read {
            meter,
            window,
            time,
            which,
        } => read(&meter, window.as_deref(), time, &which),
        What::Histogram {
            meter,
            of,
            stream,
            which,
        } => histogram(&meter, &of, stream.as_deref(), &which),
        What::Report {
            meters,
            window,
            out,
            which,
        } => super::report::write(&meters, window.as_deref(), &out, &which),
    }
}

fn ask(which: &super::Which, request: &Value) -> Result<ExitCode, Failure> {
    let (_, mut client) = pick(which.name.as_deref())?;
    let result = client.ask(request).map_err(asked)?;
    if which.json {
        line(&result.to_string())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn ls(which: &super::Which) -> Result<ExitCode, Failure> {
    let (_, mut client) = pick(which.name.as_deref())?;
    let all = client.ask(&json!({ "do": "meter-ls" })).map_err(asked)?;
    if which.json {
        line(&all.to_string())?;
        return Ok(ExitCode::SUCCESS);
    }
    for meter in all["meters"].as_array().into_iter().flatten() {
        let filter = match meter["filter"].as_str() {
            Some("") | None => "everything".to_owned(),
            Some(filter) => filter.to_owned(),
        };
        line(&format!(
            "{} at {}: {filter}",
            text(&meter["meter"]),
            text(&meter["at"])
        ))?;
        for series in meter["series"].as_array().into_iter().flatten() {
            let stream = series["stream"].as_str().unwrap_or("all");
            let spread = &series["spread"];
            let ns = |of: &str, name: &str| {
                spread[of][name]
                    .as_u64()
                    .map_or("-".to_owned(), |ns| ns.to_string())
            };
            line(&format!(
                "  {stream}: in {}, out {} frames, {} B; dropped {}; gap p50 {} ns; ends p50 {} ns apart; one-way \
                 delay p50 {} p99 {} ns; jitter {} ns",
                series["arrived_frames"],
                series["departed_frames"],
                series["departed_bytes"],
                dropped(series),
                ns("gap_ns", "p50"),
                ns("end_to_end_ns", "p50"),
                ns("one_way_delay_ns", "p50"),
                ns("one_way_delay_ns", "p99"),
                spread["jitter_rfc3550_ns"],
            ))?;
        }
    }
    line(&cost_line(&all["cost"]))?;
    Ok(ExitCode::SUCCESS)
}

/// Frames of every cause.
fn dropped(series: &Value) -> u64 {
    let causes = kuroshio_core::meter::Cause::ALL;
    let frames = causes.map(|c| series[format!("dropped_{}_frames", c.name()).as_str()].as_u64());
    frames.into_iter().flatten().sum()
}

/// What the meters cost, for a person.
pub(super) fn cost_line(cost: &Value) -> String {
    let percent = |ppm: &Value| {
        ppm.as_f64()
            .map_or("?".to_owned(), |ppm| format!("{:.2} %", ppm / 1e4))
    };
    let ns = |v: &Value| v.as_u64().map_or("?".to_owned(), |ns| format!("{ns} ns"));
    format!(
        "meters cost: {} per frame in the emulator ({} of its core), {} per frame in a thread of their own ({} of a \
         core); missed events {}",
        ns(&cost["emulator_ns_per_frame"]),
        percent(&cost["emulator_share_of_a_core_ppm"]),
        ns(&cost["meters_thread_ns_per_frame"]),
        percent(&cost["meters_thread_share_of_a_core_ppm"]),
        cost["missed_events"]
    )
}

/// The columns of a window in CSV: all that a row has but the kind of the event.
const COLUMNS: [&str; 22] = [
    "meter",
    "at",
    "stream",
    "window",
    "start_ns",
    "width_ns",
    "departed_rate_bps",
    "arrived_frames",
    "arrived_bytes",
    "departed_frames",
    "departed_bytes",
    "departed_payload_bytes",
    "dropped_queue_full_frames",
    "dropped_aqm_frames",
    "dropped_too_big_frames",
    "dropped_fault_frames",
    "dropped_lost_frames",
    "queue_max_bytes",
    "queue_mean_bytes",
    "one_way_delay_min_ns",
    "one_way_delay_mean_ns",
    "one_way_delay_max_ns",
];

fn csv(row: &Value) -> String {
    let field = |name: &&str| match &row[*name] {
        Value::Null => String::new(),
        // Names hold no quotes and no commas.
        other => text(other),
    };
    COLUMNS.iter().map(field).collect::<Vec<_>>().join(",")
}

/// The head of an output.
pub(super) fn head(run_begin_monotonic_ns: &Value) -> ClockHead {
    ClockHead::read(run_begin_monotonic_ns.as_u64().unwrap_or(0))
}

/// The head as the first line of an output.
pub(super) fn head_line(head: &ClockHead, json: bool) -> String {
    if json {
        let mut value = serde_json::to_value(head).unwrap_or_default();
        value["event"] = json!("head");
        value.to_string()
    } else {
        format!("# {}", head.line())
    }
}

/// Looks for windows this often.
const LOOK: Duration = Duration::from_millis(20);

fn read(
    meter: &str,
    window: Option<&str>,
    time: Option<PicoDuration>,
    which: &super::Which,
) -> Result<ExitCode, Failure> {
    let (_, mut client) = pick(which.name.as_deref())?;
    let end = time.map(|t| Instant::now() + t.to_std());
    let mut from = 0u64;
    let mut first = true;
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let told = |e: std::io::Error| Failure::failed(format!("standard output: {e}"));
    loop {
        // Looked at before asking: what closed before the end is printed.
        let last = end.is_none_or(|end| Instant::now() >= end);
        let request = json!({ "do": "meter-read", "name": meter, "window": window, "from": from });
        let answer = client.ask(&request).map_err(asked)?;
        if first {
            let head = head(&answer["run_begin_monotonic_ns"]);
            writeln!(out, "{}", head_line(&head, which.json)).map_err(told)?;
            if !which.json {
                writeln!(out, "{}", COLUMNS.join(",")).map_err(told)?;
            }
        } else if let Some(kept) = answer["kept_from"].as_u64().filter(|kept| *kept > from) {
            let problem =
                format!("windows {from} to {kept} left the meter before they were read: a larger keep");
            return Err(failed(problem));
        }
        first = false;
        let rows = answer["rows"].as_array().map_or(&[][..], Vec::as_slice);
        for row in rows {
            let text = if which.json { row.to_string() } else { csv(row) };
            writeln!(out, "{text}").map_err(told)?;
        }
        let next = answer["next"].as_u64().unwrap_or(from);
        let more = next > from && !rows.is_empty();
        from = next.max(from);
        if more {
            continue;
        }
        out.flush().map_err(told)?;
        if last {
            if let Some(missed) = answer["missed_events"].as_u64().filter(|m| *m > 0) {
                return Err(failed(format!(
                    "the meters missed {missed} events: their figures are too low"
                )));
            }
            return Ok(ExitCode::SUCCESS);
        }
        std::thread::sleep(LOOK);
    }
}

fn histogram(meter: &str, of: &str, stream: Option<&str>, which: &super::Which) -> Result<ExitCode, Failure> {
    let (_, mut client) = pick(which.name.as_deref())?;
    let request = json!({ "do": "meter-histogram", "name": meter, "of": of, "stream": stream });
    let answer = client.ask(&request).map_err(asked)?;
    if which.json {
        line(&answer.to_string())?;
        return Ok(ExitCode::SUCCESS);
    }
    line("from_ps,to_ps,frames")?;
    for bucket in answer["buckets"].as_array().into_iter().flatten() {
        line(&format!(
            "{},{},{}",
            bucket["from_ps"], bucket["to_ps"], bucket["frames"]
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}
