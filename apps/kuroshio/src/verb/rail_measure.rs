//! Both placements of a rail, measured against a peer.
//!
//! Published advice disagrees (paper 002: the application on the card's node; ESnet's EScp: not on it), so the two
//! are run in turn, A B A B ..., in processes of their own that are bound before they start; the medians decide. A
//! difference below [`MARGIN_PERCENT`] is none: then the application stays at the card.

use std::process::{Command, Stdio};

use kuroshio_rail::{Machine, Placement, PlanRequest, rails};
use serde::Serialize;

use crate::error::Failure;

/// Runs of each placement.
const RUNS: usize = 3;
/// How long each takes.
const RUN: &str = "2s";
/// Difference of the medians that counts, in hundredths of the local one.
const MARGIN_PERCENT: u64 = 3;

/// What was measured.
#[derive(Debug, Serialize)]
pub(super) struct Measured {
    /// Identity of the rail.
    rail: String,
    /// Goodput of each run near the card, bit/s.
    local_goodput_bps: Vec<u64>,
    /// Goodput of each run away from it; empty where there is no other node.
    other_goodput_bps: Vec<u64>,
    /// The placement to keep.
    pub better: Placement,
}

impl Measured {
    /// What was found, in words.
    pub fn sentence(&self) -> String {
        match median(&self.other_goodput_bps) {
            None => format!(
                "measured rail {}: {} bit/s goodput near the card; there is no other node to compare with",
                self.rail,
                median(&self.local_goodput_bps).unwrap_or(0)
            ),
            Some(other) => format!(
                "measured rail {}: {} bit/s goodput near the card, {other} away from it (medians of {RUNS}): {:?} is kept",
                self.rail,
                median(&self.local_goodput_bps).unwrap_or(0),
                self.better
            ),
        }
    }
}

fn median(values: &[u64]) -> Option<u64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied()
}

/// Measures the rail that leads to the peer.
pub(super) fn measure(machine: &Machine, request: &PlanRequest, peer: &str) -> Result<Measured, Failure> {
    let (host, port) = match peer.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') => (host, port.parse().ok()),
        _ => (peer, Some(kuroshio_probe::IPERF_PORT)),
    };
    let port: u16 = port.ok_or_else(|| {
        Failure::usage(format!(
            "--measure {peer}: write HOST or HOST:PORT, such as 192.0.2.1:5201"
        ))
    })?;
    let interface = crate::rail::route_to((host, port));
    let rail = kuroshio_rail::find(machine, "auto", interface.as_deref())?;
    let two = machine.other_node(rail.node).is_some();
    let mut found = Measured {
        rail: rail.id.clone(),
        local_goodput_bps: Vec::new(),
        other_goodput_bps: Vec::new(),
        better: Placement::Local,
    };
    debug_assert!(rails(machine).iter().any(|r| r.id == rail.id));
    for _ in 0..RUNS {
        found
            .local_goodput_bps
            .push(one(&rail.id, "local", host, port, request)?);
        if two {
            found
                .other_goodput_bps
                .push(one(&rail.id, "other", host, port, request)?);
        }
    }
    let local = median(&found.local_goodput_bps).unwrap_or(0);
    if median(&found.other_goodput_bps).is_some_and(|other| other > local + local * MARGIN_PERCENT / 100) {
        found.better = Placement::Other;
    }
    Ok(found)
}

/// One run, in a process that is bound before it starts.
fn one(rail: &str, placement: &str, host: &str, port: u16, request: &PlanRequest) -> Result<u64, Failure> {
    let me = std::env::current_exe().map_err(|e| Failure::failed(format!("this program's path: {e}")))?;
    let mut command = Command::new(&me);
    command
        .args(["rail", "run", rail, "--placement", placement, "--"])
        .arg(&me);
    command.args(["probe", "-c", host, "-p", &port.to_string(), "-t", RUN, "--json"]);
    command.args(["--rate", &request.rate.to_string()]);
    let out = command
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .map_err(|e| Failure::failed(format!("starting a measurement: {e}")))?;
    let bad = |what: &str| {
        let said = String::from_utf8_lossy(&out.stderr);
        Failure::failed(format!(
            "--measure {host}:{port}, {placement}: {what}: {}",
            said.trim()
        ))
    };
    if !out.status.success() {
        return Err(bad("the probe failed"));
    }
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).map_err(|_| bad("no report"))?;
    let rate = report["end"]["sum_received"]["bits_per_second"]
        .as_f64()
        .ok_or_else(|| bad("no rate in the report"))?;
    Ok(rate as u64)
}
