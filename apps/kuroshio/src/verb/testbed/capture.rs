//! `kuroshio testbed capture`: a port's frames as a pcapng file.

use std::fs::File;
use std::io::BufWriter;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kuroshio_core::meter::Filter;
use kuroshio_core::units::PicoDuration;
use kuroshio_testbed::control;
use kuroshio_testbed::meter::{CaptureOptions, SNAPLEN_MAX, capture};
use serde_json::json;

use super::{asked, failed, host_of, pick, watch_over};
use crate::error::Failure;
use crate::output::line;

const EXAMPLE: &str = "\
Example:
  kuroshio testbed capture tokyo/p0 -o tokyo.pcapng --filter 'tcp and port 5201' --for 10s
";

#[derive(clap::Args)]
#[command(after_help = EXAMPLE)]
pub struct Args {
    /// Port, as HOST/PORT
    port: String,
    /// File to write
    #[arg(short, long, value_name = "FILE")]
    out: PathBuf,
    /// Which frames, such as 'udp or vlan 5'; all without
    #[arg(long, value_name = "EXPR", default_value = "")]
    filter: String,
    /// Bytes of each frame that are kept
    #[arg(long, default_value_t = 256)]
    snaplen: usize,
    /// End after so many frames
    #[arg(long)]
    count: Option<u64>,
    /// End after so long; without, at Ctrl-C
    #[arg(long = "for", value_name = "TIME")]
    time: Option<PicoDuration>,
    #[command(flatten)]
    which: super::Which,
}

pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let usage = |problem: String| Failure::usage(format!("testbed capture: {problem}"));
    let filter: Filter = args.filter.parse().map_err(|e| usage(format!("{e}")))?;
    if args.snaplen == 0 || args.snaplen > SNAPLEN_MAX {
        return Err(usage(format!(
            "--snaplen {}: 1 to {SNAPLEN_MAX} bytes",
            args.snaplen
        )));
    }
    let Some((host, interface)) = args.port.split_once('/') else {
        return Err(usage(format!(
            "{:?}: a port is HOST/PORT, such as tokyo/p0",
            args.port
        )));
    };
    let (_, mut client) = pick(args.which.name.as_deref())?;
    let status = client.ask(&json!({ "do": "status" })).map_err(asked)?;
    let entry = host_of(&client, &status, host)?;
    let hosts = status["hosts"].as_array().into_iter().flatten();
    let ports: Vec<&str> = hosts
        .filter(|h| h["host"] == host)
        .flat_map(|h| h["ports"].as_array().into_iter().flatten())
        .filter_map(|p| p["port"].as_str())
        .collect();
    if !ports.contains(&interface) {
        return Err(usage(format!(
            "no port {interface:?} of {host}, but {}",
            ports.join(", ")
        )));
    }
    let options = CaptureOptions {
        interface: interface.to_owned(),
        name: args.port.clone(),
        filter,
        snaplen: args.snaplen,
        count: args.count,
        duration: args.time.map(PicoDuration::to_std),
        head: super::meter::head(&status["run_begin_monotonic_ns"]),
    };
    let file = File::create(&args.out).map_err(|e| failed(format!("{}: {e}", args.out.display())))?;
    let stop = Arc::new(AtomicBool::new(false));
    control::enter_network(&entry).map_err(failed)?;
    watch_over(&entry, &stop)?;
    let begun = || {
        if !args.which.json {
            eprintln!("capturing {} to {}", args.port, args.out.display());
        }
    };
    let report = capture(&options, BufWriter::new(file), &stop, begun)
        .map_err(|e| failed(format!("capture of {}: {e}", args.port)))?;
    let (frames, missed) = (report.frames, report.missed_frames);
    if args.which.json {
        let seen = report.seen_frames;
        line(
            &json!({ "file": args.out, "frames": frames, "seen_frames": seen, "missed_frames": missed })
                .to_string(),
        )?;
    } else {
        line(&format!("{frames} frames; missed {missed}"))?;
    }
    stop.store(true, Ordering::Relaxed);
    if missed > 0 {
        return Err(failed(format!("{missed} frames found the capture's ring full")));
    }
    Ok(ExitCode::SUCCESS)
}
