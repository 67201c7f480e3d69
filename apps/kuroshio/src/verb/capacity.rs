//! The search for usable capacity, which `gen capacity`, `testbed capacity` and `probe --find-capacity` share.

use std::io::{BufRead as _, BufReader};
use std::net::IpAddr;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kuroshio_core::capacity::{CapacityConfig, Outcome};
use kuroshio_core::units::{BitRate, FrameBytes, PicoDuration, Ratio};
use kuroshio_gen::{CapacityReport, Session, TrainLog, find_capacity};
use kuroshio_testbed::Net;
use kuroshio_testbed::control::{self, HostEntry};
use serde_json::{Value, json};

use super::r#gen::{failure, read};
use crate::error::{EXIT_FAILED, Failure};
use crate::{output, signal};

/// What a search may be told.
#[derive(clap::Args, Clone)]
#[command(next_help_heading = "Capacity search")]
pub struct Options {
    /// Size of the trains' frames, MAC header to FCS [default: 1518B; 64B to 9018B, what the path's MTU carries]
    #[arg(long, value_name = "SIZE")]
    frame: Option<String>,
    /// Lowest rate that is tried, frame level [default: 1Mbps]
    #[arg(long, value_name = "RATE")]
    min_rate: Option<String>,
    /// Highest rate that is tried, frame level [default: 10Gbps]
    #[arg(long, value_name = "RATE")]
    max_rate: Option<String>,
    /// How near the highest clear and the lowest congested rate come [default: 0.2%; 0.05% to 10%]
    #[arg(long, value_name = "RATIO")]
    resolution: Option<String>,
    /// Length of the trains that decide [default: 1s; 10ms to 10s]
    #[arg(long, value_name = "TIME")]
    train_time: Option<String>,
    /// Share of frames that the path may lose for other reasons [default: 0]
    #[arg(long, value_name = "RATIO")]
    loss_tolerance: Option<String>,
}

fn ppm(flag: &str, text: Option<&str>, default: u64) -> Result<u64, Failure> {
    let Some(ratio) = read::<Ratio>(flag, text)? else {
        return Ok(default);
    };
    if ratio.num() > ratio.den() {
        return Err(Failure::usage(format!("{flag} {ratio}: at most 1")));
    }
    let ppm = u128::from(ratio.num()) * 1_000_000 / u128::from(ratio.den());
    Ok(u64::try_from(ppm).unwrap_or(u64::MAX))
}

impl Options {
    /// The options as arguments of another `kuroshio`.
    pub fn words(&self) -> Vec<String> {
        let all = [
            ("--frame", &self.frame),
            ("--min-rate", &self.min_rate),
            ("--max-rate", &self.max_rate),
            ("--resolution", &self.resolution),
            ("--train-time", &self.train_time),
            ("--loss-tolerance", &self.loss_tolerance),
        ];
        let given = all
            .into_iter()
            .filter_map(|(flag, text)| Some((flag, text.as_ref()?)));
        given
            .flat_map(|(flag, text)| [flag.to_owned(), text.clone()])
            .collect()
    }

    /// Whether any is there.
    pub fn given(&self) -> bool {
        !self.words().is_empty()
    }

    /// The search that they describe.
    pub fn config(&self) -> Result<CapacityConfig, Failure> {
        let rate = |flag, text: &Option<String>| read::<BitRate>(flag, text.as_deref());
        let frame = read::<FrameBytes>("--frame", self.frame.as_deref())?;
        let mut config = CapacityConfig::new(
            frame.unwrap_or(FrameBytes::new(1_518)),
            rate("--min-rate", &self.min_rate)?.unwrap_or(BitRate::from_mbps(1)),
            rate("--max-rate", &self.max_rate)?.unwrap_or(BitRate::from_mbps(10_000)),
        );
        config.resolution_ppm = ppm("--resolution", self.resolution.as_deref(), config.resolution_ppm)?;
        config.tolerated_loss_ppm = ppm("--loss-tolerance", self.loss_tolerance.as_deref(), 0)?;
        if let Some(time) = read::<PicoDuration>("--train-time", self.train_time.as_deref())? {
            config.train_time = time;
        }
        // What is not valid is said before anything is connected.
        kuroshio_core::capacity::Search::new(config).map_err(|e| Failure::usage(e.to_string()))?;
        Ok(config)
    }
}

/// Searches over a session and prints what was found. Exit code 0 when a capacity, or a lower bound of it, is known.
pub fn search(
    session: &mut Session,
    config: CapacityConfig,
    more: Value,
    json: bool,
) -> Result<ExitCode, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    signal::on_stop(move || flag.store(true, Ordering::Relaxed))?;
    let mut told = Ok(());
    let report = find_capacity(session, config, &stop, &mut |log| {
        if !json && told.is_ok() {
            told = output::line(&train_line(log));
        }
    })
    .map_err(failure)?;
    told?;
    if json {
        let mut object = report.to_json();
        for (name, value) in more.as_object().into_iter().flatten() {
            object[name] = value.clone();
        }
        object["clock"] = json!(session.common_clock());
        output::line(&object.to_string())?;
    } else {
        output::line(&report.sentence())?;
    }
    Ok(exit(&report))
}

/// A process that is ended with this.
struct Held(Child);

impl Drop for Held {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An address of `to` in a subnet of `from`, by a testbed's status.
pub fn address_between(status: &Value, from: &str, to: &str) -> Option<IpAddr> {
    let nets = |name: &str| -> Vec<Net> {
        let hosts = status["hosts"].as_array().into_iter().flatten();
        let ports = hosts
            .filter(|h| h["host"] == name)
            .flat_map(|h| h["ports"].as_array().into_iter().flatten());
        let texts = ports.flat_map(|p| p["addresses"].as_array().into_iter().flatten());
        texts.filter_map(|t| t.as_str()?.parse().ok()).collect()
    };
    let own = nets(from);
    let shared = |net: &Net| own.iter().any(|mine| mine.same_subnet(net));
    nets(to).into_iter().find(shared).map(|net| net.ip)
}

/// Searches from one host of a testbed to another: a receiver and a sender, each this program in its host.
pub fn between(
    from: &HostEntry,
    to: &HostEntry,
    address: IpAddr,
    options: &Options,
    json: bool,
) -> Result<ExitCode, Failure> {
    let failed =
        |what: &str, e: &dyn std::fmt::Display| Failure::failed(format!("testbed capacity: {what}: {e}"));
    options.config()?;
    let program = || Command::new("/proc/self/exe");
    let mut receiver = program();
    let listen = std::net::SocketAddr::new(address, 0).to_string();
    receiver.args(["gen", "recv", "--one-off", "--json", "--listen", &listen]);
    receiver.stdin(Stdio::null()).stdout(Stdio::piped());
    let own = kuroshio_testbed::control::enter(to, &mut receiver);
    own.map_err(|e| failed("entering the receiver's host", &e))?;
    let mut receiver = Held(receiver.spawn().map_err(|e| failed("the receiver", &e))?);
    let mut first = String::new();
    if let Some(out) = receiver.0.stdout.take() {
        let read = BufReader::new(out).read_line(&mut first);
        read.map_err(|e| failed("the receiver", &e))?;
    }
    let heard: Value = serde_json::from_str(&first).unwrap_or_default();
    let Some(at) = heard["listening"].as_str() else {
        return Err(failed("the receiver", &"it does not listen"));
    };
    let mut sender = program();
    sender.args(["gen", "capacity", at]).args(options.words());
    if json {
        sender.arg("--json");
    }
    control::enter(from, &mut sender).map_err(|e| failed("entering the sender's host", &e))?;
    let status = sender.status().map_err(|e| failed("the sender", &e))?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(ExitCode::from(code.unwrap_or(EXIT_FAILED)))
}

fn exit(report: &CapacityReport) -> ExitCode {
    match report.verdict.outcome {
        Outcome::Found | Outcome::Dispersion | Outcome::AtLeast => ExitCode::SUCCESS,
        _ => ExitCode::from(EXIT_FAILED),
    }
}

fn train_line(log: &TrainLog) -> String {
    let rate = |r: Option<BitRate>| {
        r.map_or_else(|| "-".to_owned(), |r| format!("{:.3} Mbps", r.bps() as f64 / 1e6))
    };
    let lost = log.train.frames.saturating_sub(log.digest.received);
    format!(
        "  {:>6} frames at {}: sent {}, arrived {}, lost {lost}, delay grows {} +- {} ppm; late p99 {:.1} us",
        log.train.frames,
        rate(Some(log.train.rate)),
        rate(log.digest.sent_rate),
        rate(log.digest.received_rate),
        log.digest.slope_ppm,
        log.digest.slope_error_ppm,
        log.sent.lateness_ns.p99 as f64 / 1e3,
    )
}
