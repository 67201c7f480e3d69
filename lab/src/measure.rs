//! Figures of a phase, with units in their names.

use serde_json::{Map, Value, json};

use crate::check::What;
use crate::experiment::{Experiment, Level};
use crate::flow::Sent;
use crate::trace::{Trace, mbps, peak_in_any_window};

/// Window in which the share of time above a rate is counted.
const SHARE_WINDOW_NS: u64 = 2_000_000;
/// The rate of 003, section 3.3 ("well over the bandwidth of over 200Mbps").
const SHARE_MBPS: f64 = 200.0;

/// The time of a phase that its checks look at; the whole phase when none says.
pub fn looked_at(e: &Experiment, phase: &str, duration_ns: u64) -> (u64, u64) {
    let stated = e.phases.iter().find(|p| p.name == phase);
    if let Some(stated) = stated.and_then(|p| p.looked_at_ns) {
        return stated;
    }
    e.checks
        .iter()
        .filter(|c| c.phases().contains(&phase))
        .find_map(|c| match &c.what {
            What::Mean { from, to, .. }
            | What::MeanShare { from, to, .. }
            | What::WindowsInRange { from, to, .. }
            | What::WindowsNearMean { from, to, .. }
            | What::WindowPeak { from, to, .. } => Some((from.ns(), to.ns().min(duration_ns))),
            _ => None,
        })
        .unwrap_or((0, duration_ns))
}

/// The figures of one phase.
pub fn phase(e: &Experiment, t: &Trace, sent: &[Sent]) -> Value {
    let (from, to) = looked_at(e, &t.phase, t.duration_ns);
    let level = e.meter.level;
    let mut streams = Vec::new();
    for (i, s) in t.streams.iter().enumerate() {
        let who = sent.get(i).cloned().unwrap_or_default();
        let cpu = t.usage.get(i).map(|u| u.table(from / 1_000_000, to / 1_000_000));
        streams.push(json!({
            "name": s.name,
            "frames": s.frames.len(),
            "mean_frame_mbps": round(t.stream_mean_mbps(i, Level::Frame, from, to)),
            "mean_goodput_mbps": round(t.stream_mean_mbps(i, Level::Goodput, from, to)),
            "congestion": who.congestion,
            "retransmitted_segments": who.retrans_segments,
            "mss_bytes": who.mss_bytes,
            "rtt_least_us": who.samples.iter().map(|s| s.rtt_us).filter(|rtt| *rtt > 0).min(),
            "cpu": cpu,
            "rtt_last_us": who.samples.last().map(|s| s.rtt_us),
        }));
    }
    let mut m = Map::new();
    m.insert("from_s".into(), json!(from as f64 / 1e9));
    m.insert("to_s".into(), json!(to as f64 / 1e9));
    m.insert("level".into(), json!(level.name()));
    for (name, l) in [
        ("mean_sum_frame_mbps", Level::Frame),
        ("mean_sum_goodput_mbps", Level::Goodput),
    ] {
        m.insert(name.into(), json!(round(t.mean_mbps(l, from, to))));
    }
    let paced =
        |c: &crate::check::CheckSpec| matches!(&c.what, What::PacedRate { phase, .. } if *phase == t.phase);
    if let Some((rate, _)) = t.paced_mbps().filter(|_| e.checks.iter().any(paced)) {
        m.insert("paced_mbps".into(), json!(rate));
        m.insert("paced_kbps".into(), json!(rate * 1e3));
    }
    for (name, width) in [("narrow", e.meter.narrow.ns()), ("wide", e.meter.wide.ns())] {
        m.insert(format!("{name}_windows"), windows(t, level, width, from, to));
    }
    if t.bin_ns <= SHARE_WINDOW_NS {
        m.insert(
            "share_of_2ms_windows_above_200_mbps".into(),
            json!(round(share_above(t, level, from, to))),
        );
        m.insert(
            "peak_bytes_in_any_2ms_at_the_far_port".into(),
            json!(captured_peak(t, SHARE_WINDOW_NS)),
        );
    }
    for (w, b) in &t.scheduled_peaks {
        m.insert(format!("scheduled_peak_bytes_in_any_{}us", w / 1000), json!(b));
    }
    m.insert("dropped_router_frames".into(), json!(t.drops.routers));
    m.insert("dropped_shaper_frames".into(), json!(t.drops.shapers));
    m.insert("dropped_port_frames".into(), json!(t.drops.ports));
    if t.drops.cards > 0 {
        m.insert("dropped_card_frames".into(), json!(t.drops.cards));
    }
    if !t.vars.is_empty() {
        m.insert("sweep".into(), json!(t.vars));
    }
    if !t.cuts.is_empty() {
        m.insert("window_cuts".into(), json!(t.cuts));
    }
    if !t.losses_ms.is_empty() {
        let list: Vec<_> = t
            .losses_ms
            .iter()
            .map(|(t_ms, frames)| json!({ "t_ms": t_ms, "frames": frames }))
            .collect();
        m.insert("losses".into(), Value::Array(list));
    }
    m.insert("streams".into(), Value::Array(streams));
    Value::Object(m)
}

fn round(v: f64) -> f64 {
    (v * 1e4).round() / 1e4
}

fn windows(t: &Trace, level: Level, width: u64, from: u64, to: u64) -> Value {
    let mut w = t.sum_windows(level, width, from, to);
    w.sort_unstable();
    let at = |share: f64| {
        let i = ((share * w.len() as f64).ceil() as usize).clamp(1, w.len().max(1)) - 1;
        round(mbps(w.get(i).copied().unwrap_or(0), width))
    };
    json!({
        "width_ms": width as f64 / 1e6,
        "windows": w.len(),
        "lowest_mbps": at(0.0),
        "p50_mbps": at(0.5),
        "p99_mbps": at(0.99),
        "highest_mbps": at(1.0),
    })
}

fn share_above(t: &Trace, level: Level, from: u64, to: u64) -> f64 {
    let w = t.sum_windows(level, SHARE_WINDOW_NS, from, to);
    let above = w
        .iter()
        .filter(|b| mbps(**b, SHARE_WINDOW_NS) > SHARE_MBPS)
        .count();
    above as f64 / w.len().max(1) as f64
}

fn captured_peak(t: &Trace, width_ns: u64) -> u64 {
    let mut events: Vec<(i64, u64)> = t
        .streams
        .iter()
        .flat_map(|s| s.frames.iter().map(|f| (f.t_ns, u64::from(f.frame))))
        .collect();
    events.sort_unstable();
    peak_in_any_window(&events, width_ns)
}
