//! `kuroshio testbed metrics`: counters and meters in the Prometheus text format (0.0.4), once or for a scraper.
//!
//! With `--listen` a small HTTP/1.1 server on loopback answers `GET /metrics`, one connection after another; each answer
//! is read afresh from the testbed.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use kuroshio_testbed::control::Client;
use serde_json::{Value, json};

use super::{asked, failed, pick, text};
use crate::error::Failure;
use crate::output::line;

const EXAMPLES: &str = "\
Examples:
  kuroshio testbed metrics
  kuroshio testbed metrics --listen 127.0.0.1:9090
";

/// Longest request that is read, and how long it may take.
const REQUEST_BYTES: usize = 8 << 10;
const REQUEST_TIME: Duration = Duration::from_secs(2);

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Serve them at http://ADDRESS/metrics until Ctrl-C or the network's end; loopback only
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    #[command(flatten)]
    which: super::Which,
}

pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let (place, mut client) = pick(args.which.name.as_deref())?;
    let Some(address) = args.listen else {
        let text = exposition(&mut client, place.name())?;
        if args.which.json {
            line(&json!({ "format": "text/plain; version=0.0.4", "text": text }).to_string())?;
        } else {
            line(text.trim_end())?;
        }
        return Ok(ExitCode::SUCCESS);
    };
    if !address.ip().is_loopback() {
        let problem =
            format!("testbed metrics: --listen {address}: a loopback address, such as 127.0.0.1:9090");
        return Err(Failure::usage(problem));
    }
    let listener = TcpListener::bind(address).map_err(|e| failed(format!("{address}: {e}")))?;
    let bound = listener.local_addr().map_err(failed)?;
    if args.which.json {
        line(&json!({ "listening": bound }).to_string())?;
    } else {
        line(&format!("http://{bound}/metrics"))?;
    }
    for stream in listener.incoming().flatten() {
        // A scraper that breaks off is its own problem; a testbed that has ended is ours.
        if let Err(Gone(problem)) = serve(&stream, &mut client, place.name()) {
            return Err(problem);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The testbed cannot be asked any more.
struct Gone(Failure);

fn serve(stream: &TcpStream, client: &mut Client, name: &str) -> Result<(), Gone> {
    let Some(path) = request(stream) else {
        return Ok(());
    };
    let (status, body) = match path.as_str() {
        "/metrics" => ("200 OK", exposition(client, name).map_err(Gone)?),
        _ => ("404 Not Found", "GET /metrics\n".to_owned()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    let mut stream = stream;
    let _ = stream
        .write_all(head.as_bytes())
        .and_then(|()| stream.write_all(body.as_bytes()));
    Ok(())
}

/// The path of a GET, read to the end of its head.
fn request(mut stream: &TcpStream) -> Option<String> {
    let end = Instant::now() + REQUEST_TIME;
    stream.set_write_timeout(Some(REQUEST_TIME)).ok()?;
    let mut head = Vec::new();
    let mut part = [0u8; 1024];
    while !head.windows(4).any(|w| w == b"\r\n\r\n") {
        let left = end
            .checked_duration_since(Instant::now())
            .filter(|d| !d.is_zero())?;
        stream.set_read_timeout(Some(left)).ok()?;
        let read = stream.read(&mut part).ok().filter(|n| *n > 0)?;
        head.extend_from_slice(part.get(..read)?);
        if head.len() > REQUEST_BYTES {
            return None;
        }
    }
    let text = String::from_utf8_lossy(&head);
    let mut words = text.split_ascii_whitespace();
    (words.next()? == "GET").then_some(())?;
    Some(words.next()?.split('?').next()?.to_owned())
}

/// Metrics by their names, each with its type and its samples.
#[derive(Default)]
struct Metrics {
    order: Vec<(String, &'static str, &'static str)>,
    samples: std::collections::BTreeMap<String, String>,
}

impl Metrics {
    fn add(
        &mut self,
        name: &str,
        kind: &'static str,
        help: &'static str,
        labels: &[(&str, &str)],
        value: &Value,
    ) {
        // What was not measured has no sample.
        if value.is_null() {
            return;
        }
        let name = format!("kuroshio_testbed_{name}");
        let samples = self.samples.entry(name.clone()).or_insert_with(|| {
            self.order.push((name.clone(), kind, help));
            String::new()
        });
        let labels: Vec<String> = labels
            .iter()
            .map(|(key, value)| format!("{key}=\"{}\"", escaped(value)))
            .collect();
        let _ = writeln!(samples, "{name}{{{}}} {}", labels.join(","), text(value));
    }

    fn text(&self) -> String {
        let mut all = String::new();
        for (name, kind, help) in &self.order {
            let samples = self.samples.get(name).map_or("", String::as_str);
            let _ = write!(all, "# HELP {name} {help}\n# TYPE {name} {kind}\n{samples}");
        }
        all
    }
}

fn escaped(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

fn exposition(client: &mut Client, name: &str) -> Result<String, Failure> {
    let stats = client.ask(&json!({ "do": "stats" })).map_err(asked)?;
    let meters = client.ask(&json!({ "do": "meter-ls" })).map_err(asked)?;
    let mut metrics = Metrics::default();
    let own = ("testbed", name);
    for link in stats["links"].as_array().into_iter().flatten() {
        let link_name = text(&link["link"]);
        stage(&mut metrics, "link", link, &[own, ("link", &link_name)]);
        metrics.add(
            "link_dropped_frames_total",
            "counter",
            "Frames that did not come out, by cause",
            &[own, ("link", &link_name), ("cause", "fault")],
            &link["fault_dropped"],
        );
    }
    for port in stats["ports"].as_array().into_iter().flatten() {
        let port_name = text(&port["port"]);
        for (direction, stage_name) in [("sent", "wire"), ("received", "egress")] {
            let labels = [own, ("port", port_name.as_str()), ("direction", direction)];
            stage(&mut metrics, "port", &port[stage_name], &labels);
        }
    }
    let lost = &stats["machine_lost_frames"];
    metrics.add(
        "machine_lost_frames_total",
        "counter",
        "Frames that the machine lost",
        &[own],
        lost,
    );
    for meter in meters["meters"].as_array().into_iter().flatten() {
        let (meter_name, at) = (text(&meter["meter"]), text(&meter["at"]));
        for series in meter["series"].as_array().into_iter().flatten() {
            let stream = series["stream"].as_str().unwrap_or("all");
            let labels = [
                own,
                ("meter", meter_name.as_str()),
                ("at", at.as_str()),
                ("stream", stream),
            ];
            metered(&mut metrics, series, &labels);
        }
    }
    let cost = &meters["cost"];
    let help = "Events that the meters missed: their figures are too low";
    metrics.add(
        "meter_missed_events_total",
        "counter",
        help,
        &[own],
        &cost["missed_events"],
    );
    let help = "Time that metering a frame takes in the emulator's thread";
    metrics.add(
        "meter_emulator_ns_per_frame",
        "gauge",
        help,
        &[own],
        &cost["emulator_ns_per_frame"],
    );
    Ok(metrics.text())
}

fn stage(metrics: &mut Metrics, kind: &str, stage: &Value, labels: &[(&str, &str)]) {
    let mut count = |name: &str, help, value: &Value| {
        metrics.add(&format!("{kind}_{name}"), "counter", help, labels, value);
    };
    count(
        "arrived_frames_total",
        "Frames that arrived",
        &stage["arrived"]["frames"],
    );
    count(
        "departed_frames_total",
        "Frames that came out",
        &stage["departed"]["frames"],
    );
    count(
        "departed_bytes_total",
        "Bytes that came out, MAC header to FCS",
        &stage["departed"]["bytes"],
    );
    let help = "Bytes of frames that wait in the queue";
    metrics.add(
        &format!("{kind}_queued_bytes"),
        "gauge",
        help,
        labels,
        &stage["queued_bytes"],
    );
    for (cause, field) in [
        ("queue_full", "queue_full"),
        ("aqm", "aqm_dropped"),
        ("too_big", "too_big"),
        ("lost", "lost"),
    ] {
        let labels = [labels, &[("cause", cause)]].concat();
        metrics.add(
            &format!("{kind}_dropped_frames_total"),
            "counter",
            "Frames that did not come out, by cause",
            &labels,
            &stage[field]["frames"],
        );
    }
}

fn metered(metrics: &mut Metrics, series: &Value, labels: &[(&str, &str)]) {
    for (name, help) in [
        ("arrived_frames", "Frames that arrived, by meter"),
        ("departed_frames", "Frames that came out, by meter"),
        (
            "departed_bytes",
            "Bytes that came out, MAC header to FCS, by meter",
        ),
        ("departed_payload_bytes", "Payload bytes that came out, by meter"),
    ] {
        metrics.add(
            &format!("meter_{name}_total"),
            "counter",
            help,
            labels,
            &series[name],
        );
    }
    for cause in ["queue_full", "aqm", "too_big", "fault", "lost"] {
        let labels = [labels, &[("cause", cause)]].concat();
        let value = &series[format!("dropped_{cause}_frames").as_str()];
        let help = "Frames that did not come out, by meter and cause";
        metrics.add("meter_dropped_frames_total", "counter", help, &labels, value);
    }
    let spread = &series["spread"];
    for (name, field) in [("gap", "gap_ns"), ("one_way_delay", "one_way_delay_ns")] {
        for (quantile, field_name) in [("0.5", "p50"), ("0.99", "p99"), ("0.999", "p999")] {
            if spread[field]["count"].as_u64().is_none_or(|count| count == 0) {
                continue;
            }
            let labels = [labels, &[("quantile", quantile)]].concat();
            let help = "Nanoseconds, since the meter's start";
            metrics.add(
                &format!("meter_{name}_ns"),
                "gauge",
                help,
                &labels,
                &spread[field][field_name],
            );
        }
    }
    let jitter = &spread["jitter_rfc3550_ns"];
    metrics.add("meter_jitter_ns", "gauge", "Jitter of RFC 3550", labels, jitter);
}
