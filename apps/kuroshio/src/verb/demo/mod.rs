//! `kuroshio demo`: real files, disk to disk, across an emulated Pacific; unpaced, paced by a rate plan, and
//! paced while a route loses capacity. The network is in [`net`], a run in [`mod@run`], the figures in
//! [`summary`] and [`share`].

mod classes;
mod data;
mod net;
mod run;
pub mod share;
mod site;
mod summary;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use kuroshio_core::units::Ratio;
use kuroshio_testbed::isolate;
use serde::Serialize;

use crate::error::Failure;
use net::Net;
use run::{Job, Kind};
use summary::RunSummary;

/// Exit code when a figure that must hold does not.
const EXIT_NOT_HELD: u8 = 1;
/// Exit code when the machine disturbed a run.
const EXIT_DISTURBED: u8 = 3;

/// Arguments of `kuroshio demo`.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  kuroshio demo --data /data/run7 --out demo-run7\n\n\
    Exit codes: 0 all figures hold, 1 one does not, 2 bad input, 3 the machine was disturbed."
)]
pub struct Args {
    /// Multiplies capacities, ports and queues of the real network; delays stay real
    #[arg(long, default_value = "1/5", value_name = "RATIO")]
    scale: Ratio,
    /// Tree to copy instead of a selection of this machine's own files
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Where the report goes, and (until the end) the copies
    #[arg(long, default_value = "kuroshio-demo", value_name = "DIR")]
    out: PathBuf,
    /// TCP congestion control of every run
    #[arg(long, default_value = "cubic", value_name = "NAME")]
    congestion: String,
    /// Which runs
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "unpaced,paced,capacity-loss"
    )]
    runs: Vec<Kind>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Summary {
    runs: Vec<RunSummary>,
    scale: String,
    congestion: String,
    disturbed: bool,
    held: bool,
    report: PathBuf,
}

fn failed(what: &str, e: impl std::fmt::Display) -> Failure {
    Failure::failed(format!("{what}: {e}"))
}

/// Runs the verb: outside, it makes a private world and runs itself there.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    let Some(net) = Net::new(args.scale) else {
        return Err(Failure::usage(format!(
            "--scale {}: every route needs 1 Mbps or more and at most ten times its real capacity; valid: 1/500 to 10",
            args.scale
        )));
    };
    if let Some(data) = &args.data
        && !data.is_dir()
    {
        return Err(Failure::usage(format!(
            "--data {}: not a folder that can be read",
            data.display()
        )));
    }
    if isolate::is_inside() {
        return inside(&args, net);
    }
    let own: Vec<_> = std::env::args_os().skip(1).collect();
    let status = isolate::run(&own).map_err(|e| failed("demo", e))?;
    Ok(ExitCode::from(
        u8::try_from(status.code().unwrap_or(1)).unwrap_or(1),
    ))
}

/// A folder that is removed when this goes.
struct Scratch(PathBuf);

impl Scratch {
    fn new(path: PathBuf) -> Result<Self, Failure> {
        std::fs::create_dir_all(&path).map_err(|e| failed(&path.display().to_string(), e))?;
        let path = path
            .canonicalize()
            .map_err(|e| failed(&path.display().to_string(), e))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn inside(args: &Args, net: Net) -> Result<ExitCode, Failure> {
    let work = Scratch::new(args.out.join("work"))?;
    let staging = work.0.join("source");
    let (source, asked) = match &args.data {
        Some(data) => {
            let data = data.canonicalize().map_err(|e| failed("--data", e))?;
            let size = data::measure(&data).map_err(|e| failed("--data", e))?;
            (data, size)
        }
        None => {
            eprintln!("Choosing files of this machine ...");
            let size = data::stage(&staging).map_err(|e| failed("choosing files", e))?;
            (staging, size)
        }
    };
    eprintln!(
        "{} files, {:.2} GB, San Diego to Tokyo over {:.0} Mbps in three routes (scale {}), {} TCP",
        asked.files,
        asked.bytes as f64 / 1e9,
        net.capacity_sum_bps() as f64 / 1e6,
        args.scale,
        args.congestion
    );
    let bars = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let job = Job {
        net,
        source: &source,
        asked,
        work: &work.0,
        congestion: &args.congestion,
        bars,
    };
    let (mut runs, mut plots) = (Vec::new(), Vec::new());
    for kind in &args.runs {
        let outcome = job.run(*kind)?;
        let summary = RunSummary::of(&outcome);
        eprintln!("{}", line(&summary));
        plots.push(summary::plot(&outcome));
        runs.push(summary);
    }
    finish(args, &args.out, runs, plots)
}

/// One run in one line, as soon as it is over.
fn line(run: &RunSummary) -> String {
    format!(
        "{:14} {:5.1} s  {:6.1} Mbps frame level = {:5.2} % of capacity, {} frames dropped, {} of {} files verified{}{}{}",
        run.name,
        run.seconds,
        run.rate_bps as f64 / 1e6,
        run.share_of_capacity * 100.0,
        run.dropped_frames,
        run.files_verified,
        run.files,
        run.paced_by
            .as_ref()
            .map_or(String::new(), |by| format!("; paced by {by}")),
        if run.machine_lost_frames > 0 {
            "; THE EMULATOR DID NOT KEEP UP"
        } else {
            ""
        },
        run.disturbed
            .as_ref()
            .map_or(String::new(), |why| format!("; disturbed: {why}")),
    )
}

fn finish(
    args: &Args,
    out: &Path,
    runs: Vec<RunSummary>,
    plots: Vec<kuroshio_lab::report::Plot>,
) -> Result<ExitCode, Failure> {
    let intro = vec![format!(
        "Tokyo and San Diego, joined by the three trans-Pacific routes of the SC2003 Bandwidth Challenge at scale {}: \
         Los Angeles, Chicago and New York with their real round-trip times of 141, 250 and 285 ms. {} files were copied \
         from disk to disk with {} TCP.",
        args.scale,
        runs.first().map_or(0, |r| r.files),
        args.congestion
    )];
    let table = summary::table(&runs);
    let report = summary::report(&runs, plots, intro);
    let held = report.verdicts.iter().all(|v| v.ok);
    let path = report.write(out).map_err(|e| failed("report", e))?;
    let path = path.canonicalize().unwrap_or(path);
    let disturbed = runs.iter().any(|r| r.disturbed.is_some());
    if args.json {
        let summary = Summary {
            runs,
            scale: args.scale.to_string(),
            congestion: args.congestion.clone(),
            disturbed,
            held,
            report: path,
        };
        println!(
            "{}",
            serde_json::to_string(&summary).map_err(|e| failed("result", e))?
        );
    } else {
        println!("\n{}", summary::plain(&table));
        for run in &runs {
            println!("{}", run.emulator());
        }
        println!();
        for v in &report.verdicts {
            println!(
                "{}  {}: {} (must be {})",
                if v.ok { "holds" } else { "FAILS" },
                v.name,
                v.value,
                v.bound
            );
        }
        println!("\nReport: {}", path.display());
    }
    Ok(match (held, disturbed) {
        (true, _) => ExitCode::SUCCESS,
        (false, true) => ExitCode::from(EXIT_DISTURBED),
        (false, false) => ExitCode::from(EXIT_NOT_HELD),
    })
}
