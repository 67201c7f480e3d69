//! `kuroshio testbed tcp`: what TCP itself says of every connection of a host, again and again.

use std::io::{BufWriter, Write as _};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kuroshio_core::meter::{Filter, StreamKey};
use kuroshio_core::units::PicoDuration;
use kuroshio_core::wire::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, FlowKey, PROTOCOL_TCP};
use kuroshio_testbed::control;
use kuroshio_testbed::meter::{Sampler, TcpSample};
use serde_json::json;

use super::{asked, failed, host_of, pick, watch_over};
use crate::error::Failure;

const EXAMPLE: &str = "\
Example:
  kuroshio testbed tcp tokyo --interval 10ms --for 30s --filter 'port 5201' > tcp.csv
";

/// Shortest and longest distance of samples.
const INTERVALS: (PicoDuration, PicoDuration) = (PicoDuration::from_ms(1), PicoDuration::from_secs(60));

#[derive(clap::Args)]
#[command(after_help = EXAMPLE)]
pub struct Args {
    /// Host
    host: String,
    /// Distance of two samples, 1ms to 60s
    #[arg(long, value_name = "TIME", default_value = "10ms")]
    interval: PicoDuration,
    /// Which connections, by the stream that they send
    #[arg(long, value_name = "EXPR", default_value = "")]
    filter: String,
    /// End after so long; without, at Ctrl-C
    #[arg(long = "for", value_name = "TIME")]
    time: Option<PicoDuration>,
    #[command(flatten)]
    which: super::Which,
}

/// The stream that a connection sends.
fn stream_of(sample: &TcpSample) -> StreamKey {
    // A socket of version 6 may speak version 4.
    let (source, destination) = (
        sample.source.ip().to_canonical(),
        sample.destination.ip().to_canonical(),
    );
    StreamKey {
        vlan: None,
        ethertype: if source.is_ipv4() {
            ETHERTYPE_IPV4
        } else {
            ETHERTYPE_IPV6
        },
        flow: Some(FlowKey {
            protocol: PROTOCOL_TCP,
            source,
            destination,
            source_port: sample.source.port(),
            destination_port: sample.destination.port(),
        }),
    }
}

pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let usage = |problem: String| Failure::usage(format!("testbed tcp: {problem}"));
    let filter: Filter = args.filter.parse().map_err(|e| usage(format!("{e}")))?;
    if args.interval < INTERVALS.0 || args.interval > INTERVALS.1 {
        return Err(usage(format!("--interval {}: 1ms to 60s", args.interval)));
    }
    let (_, mut client) = pick(args.which.name.as_deref())?;
    let status = client.ask(&json!({ "do": "status" })).map_err(asked)?;
    let entry = host_of(&client, &status, &args.host)?;
    let head = super::meter::head(&status["run_begin_monotonic_ns"]);
    control::enter_network(&entry).map_err(failed)?;
    let mut sampler = Sampler::open_here().map_err(failed)?;
    let stop = Arc::new(AtomicBool::new(false));
    watch_over(&entry, &stop)?;
    let told = |e: std::io::Error| Failure::failed(format!("standard output: {e}"));
    let mut out = BufWriter::new(std::io::stdout().lock());
    let json = args.which.json;
    writeln!(out, "{}", super::meter::head_line(&head, json)).map_err(told)?;
    if !json {
        writeln!(out, "{}", TcpSample::CSV_HEAD).map_err(told)?;
    }
    out.flush().map_err(told)?;
    let begin = Instant::now();
    let end = args.time.map(|t| begin + t.to_std());
    let step = args.interval.to_std();
    let (mut next, mut flushed, mut late) = (begin, begin, 0u64);
    while !stop.load(Ordering::Relaxed) && end.is_none_or(|end| Instant::now() < end) {
        let samples = sampler.sample().map_err(failed)?;
        for sample in samples.iter().filter(|s| filter.takes(&stream_of(s))) {
            let text = if json {
                let mut value = serde_json::to_value(sample).unwrap_or_default();
                value["event"] = json!("tcp");
                value["host"] = json!(args.host);
                value["at_ns"] = json!(sample.monotonic_ns.saturating_sub(head.run_begin_monotonic_ns));
                value.to_string()
            } else {
                sample.csv(head.run_begin_monotonic_ns)
            };
            writeln!(out, "{text}").map_err(told)?;
        }
        next += step;
        let now = Instant::now();
        if now > next {
            // No catching up: the times in the rows say when it was.
            late += 1;
            next = now;
        }
        if now - flushed > Duration::from_millis(200) {
            out.flush().map_err(told)?;
            flushed = now;
        }
        std::thread::sleep(next - now);
    }
    out.flush().map_err(told)?;
    if late > 0 || sampler.left_out() > 0 {
        eprintln!(
            "testbed tcp: {late} samples were late; {} connections found no room",
            sampler.left_out()
        );
    }
    stop.store(true, Ordering::Relaxed);
    Ok(ExitCode::SUCCESS)
}
