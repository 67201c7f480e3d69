//! The report of a run: the paper's figure next to ours.

use serde_json::Value;

use crate::check::What;
use crate::compare::Compared;
use crate::experiment::Experiment;
use crate::flow::Sent;
use crate::report::{Align, Color, Plot, Report, Series, StreamWindows, Table, Verdict, width_words};
use crate::result::RunResult;
use crate::trace::Trace;

/// Most phases with plots of their own, when they are of a sweep.
const MAX_PLOTTED_PHASES: usize = 8;
/// Windows of the close view of streams whose wide window is much longer than a round trip.
const CLOSE_NS: u64 = 2_000_000;
/// Length of the close view.
const CLOSE_SPAN_NS: u64 = 1_000_000_000;

/// The report of one run, with its plots.
pub fn run_report(e: &Experiment, r: &RunResult, traces: &[Trace], sent: &[Vec<Sent>]) -> Report {
    let mut report = summary(r);
    report.intro.insert(0, e.what.trim().to_owned());
    report.plots.extend(knees(e, traces));
    for (i, t) in traces.iter().enumerate() {
        if !t.vars.is_empty() && traces.len() > MAX_PLOTTED_PHASES {
            continue;
        }
        report.plots.push(bandwidth(e, t));
        if e.meter.wide.ns() > 10 * CLOSE_SPAN_NS / 2 && t.bin_ns <= CLOSE_NS {
            report.plots.push(close(e, t));
        }
        if let Some(s) = sent.get(i)
            && let Some(p) = windows_plot(t, s)
        {
            report.plots.push(p);
        }
    }
    report
}

/// The tables of a result, without plots.
pub fn summary(r: &RunResult) -> Report {
    let mut report = Report {
        title: format!("{}: {}", r.experiment, r.title),
        intro: vec![run_line(r)],
        ..Report::default()
    };
    if r.disturbed {
        report
            .intro
            .push(format!("The machine disturbed this run: {}.", r.disturbed_by));
    }
    report.verdicts = r
        .checks
        .iter()
        .map(|c| Verdict {
            name: c.name.clone(),
            bound: c.bound.clone(),
            value: c.value.clone(),
            ok: c.ok,
        })
        .collect();
    report.tables.push(paper_table(r));
    if !r.compared.is_empty() {
        report.tables.push(compared_table(r));
    }
    for (phase, m) in &r.measured {
        report.tables.push(phase_table(phase, m));
    }
    for mut t in [instrument_table(r), calibration_table(r), settings_table(r)] {
        t.after_plots = true;
        report.tables.push(t);
    }
    report.notes.clone_from(&r.notes);
    report
}

/// Where a run is from, how it was run and by what.
pub(crate) fn run_line(r: &RunResult) -> String {
    format!(
        "{}. Mode {}, scale {}. kuroshio {}, Linux {}, {}.",
        r.source, r.mode, r.scale, r.versions.kuroshio, r.versions.kernel, r.versions.rustc
    )
}

pub(crate) fn text(v: &Value, key: &str) -> String {
    match v.get(key) {
        Some(Value::String(s)) => s.clone(),
        Some(Value::Number(n)) => n.to_string(),
        _ => String::new(),
    }
}

pub(crate) fn words(title: &str, columns: &[&str]) -> Table {
    let mut t = Table::new(title, columns);
    for c in &mut t.columns {
        c.1 = Align::Left;
    }
    t
}

pub(crate) fn paper_table(r: &RunResult) -> Table {
    let mut t = words("What the paper printed", &["figure", "value"]);
    for f in r.paper.as_array().into_iter().flatten() {
        t = t.row([text(f, "name"), text(f, "value")]);
    }
    t.remark.clone_from(&r.source);
    t
}

fn compared_table(r: &RunResult) -> Table {
    let mut t = words(
        "The paper's figures beside ours",
        &["figure", "paper", "ours", "distance", "reason, where over 15 %"],
    );
    for c in &r.compared {
        t = t.row(compared_cells(c));
    }
    t
}

/// Name, paper, ours, distance and reason of a compared figure.
pub(crate) fn compared_cells(c: &Compared) -> [String; 5] {
    let off = match c.paper == 0.0 {
        true => String::new(),
        false => format!("{:+.1} %", c.off * 100.0),
    };
    let reason = match (&c.reason, c.is_far()) {
        (Some(reason), _) => reason.clone(),
        (None, true) => "none given".into(),
        (None, false) => String::new(),
    };
    let unit = match c.figure.rsplit('_').next() {
        Some("mbps") => "Mbps",
        other => other.unwrap_or_default(),
    };
    [
        c.name.clone(),
        format!("{} {unit}", c.paper),
        format!("{} {unit}", (c.ours * 100.0).round() / 100.0),
        off,
        reason,
    ]
}

pub(crate) fn settings_table(r: &RunResult) -> Table {
    let mut t = words("Settings and where they are from", &["setting", "value", "from"]);
    for s in r.settings.as_array().into_iter().flatten() {
        t = t.row([text(s, "name"), text(s, "value"), text(s, "from")]);
    }
    t
}

fn phase_table(phase: &str, m: &Value) -> Table {
    let title = format!(
        "Measured, {phase}: {} to {} s",
        text(m, "from_s"),
        text(m, "to_s")
    );
    let mut t = Table::new(
        title,
        &[
            "stream",
            "frame level [Mbps]",
            "goodput [Mbps]",
            "sent again [segments]",
            "congestion control",
        ],
    );
    for s in m.get("streams").and_then(Value::as_array).into_iter().flatten() {
        t = t.row([
            text(s, "name"),
            text(s, "mean_frame_mbps"),
            text(s, "mean_goodput_mbps"),
            text(s, "retransmitted_segments"),
            text(s, "congestion"),
        ]);
    }
    t = t.row([
        "sum".to_owned(),
        text(m, "mean_sum_frame_mbps"),
        text(m, "mean_sum_goodput_mbps"),
    ]);
    let mut remark = String::new();
    for (key, name) in [("narrow_windows", "narrow"), ("wide_windows", "wide")] {
        if let Some(w) = m.get(key) {
            remark += &format!(
                "{name} windows of {} ms, {}: lowest {}, median {}, p99 {}, highest {} Mbps. ",
                text(w, "width_ms"),
                text(m, "level"),
                text(w, "lowest_mbps"),
                text(w, "p50_mbps"),
                text(w, "p99_mbps"),
                text(w, "highest_mbps")
            );
        }
    }
    remark += &format!(
        "Frames dropped: {} at routers, {} at shapers, {} at ports. Share of 2 ms windows above 200 Mbps: {}.",
        text(m, "dropped_router_frames"),
        text(m, "dropped_shaper_frames"),
        text(m, "dropped_port_frames"),
        text(m, "share_of_2ms_windows_above_200_mbps"),
    );
    t.remark = remark;
    t
}

fn us(ns: i64) -> String {
    format!("{:.1}", ns as f64 / 1e3)
}

fn instrument_table(r: &RunResult) -> Table {
    let mut t = Table::new(
        "The emulator's own error: departure against schedule",
        &[
            "phase",
            "frames",
            "p50 [us]",
            "p99 [us]",
            "p99.9 [us]",
            "largest [us]",
            "not taken [frames]",
            "capture lost [frames]",
            "steal [ms]",
            "waited for core [ms]",
            "canary [us]",
        ],
    );
    for l in &r.instrument.lateness {
        t = t.row([
            l.phase.clone(),
            l.frames.to_string(),
            us(l.lateness.p50_ns),
            us(l.lateness.p99_ns),
            us(l.lateness.p999_ns),
            us(l.lateness.max_ns),
            l.not_taken_frames.to_string(),
            l.capture_dropped_frames.to_string(),
            format!("{:.1}", l.steal_ns as f64 / 1e6),
            format!("{:.1}", l.run_delay_ns as f64 / 1e6),
            format!("{:.1}", l.canary_max_ns as f64 / 1e3),
        ]);
    }
    t
}

fn calibration_table(r: &RunResult) -> Table {
    let c = &r.instrument.calibration;
    let mut t = Table::new(
        "The instrument's own error: captured gaps against a known vector",
        &["error up to [us]", "gaps"],
    );
    for (end, n) in &c.histogram {
        let end = if *end == 0 {
            "above".to_owned()
        } else {
            format!("{}", *end as f64 / 1e3)
        };
        t = t.row([end, n.to_string()]);
    }
    t.remark = format!(
        "{}; {} of {} gaps; error p50 {} us, p99 {} us, p99.9 {} us, largest {} us; length of the whole vector {:+.2} ppm.",
        c.vector,
        c.gaps,
        c.gaps_expected,
        us(c.error.p50_ns),
        us(c.error.p99_ns),
        us(c.error.p999_ns),
        us(c.error.max_ns),
        c.length_error_ppm
    );
    t
}

/// A phase's name as part of a file's.
fn stem(phase: &str) -> String {
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() || c == '-' {
            c
        } else {
            '-'
        }
    };
    phase.chars().map(plain).collect()
}

/// Rate by buffer, a line for each round-trip time, for every check on a knee: the form of 004, figures 3 and 9.
pub(crate) fn knees(e: &Experiment, traces: &[Trace]) -> Vec<Plot> {
    let mut plots = Vec::new();
    for c in &e.checks {
        let What::Knee(knee) = &c.what else { continue };
        let mut p = Plot::new(format!("knee-{}", plots.len() + 1), c.name.clone());
        p.x_label = "receive buffer [MB]".into();
        p.y_label = "goodput [Gbps]".into();
        for (i, curve) in knee.points(traces).into_iter().flatten().enumerate() {
            p.series.push(Series {
                name: format!("{:.0} ms", curve.rtt_s * 1e3),
                color: Color::stream(i),
                width: 2,
                points: curve.points.iter().map(|(b, r)| (b / 1e6, r / 1e9)).collect(),
            });
        }
        p.caption = format!("Compare {} of {}.", e.source.figure, e.source.paper);
        if !p.series.is_empty() {
            plots.push(p);
        }
    }
    plots
}

fn bandwidth(e: &Experiment, t: &Trace) -> Plot {
    let (narrow, wide, level) = (e.meter.narrow.ns(), e.meter.wide.ns(), e.meter.level);
    let all: Vec<Vec<u64>> = (0..t.streams.len())
        .map(|i| t.windows(i, level, narrow, 0, t.duration_ns))
        .collect();
    let streams: Vec<StreamWindows<'_>> = t
        .streams
        .iter()
        .zip(&all)
        .map(|(s, bytes)| StreamWindows { name: &s.name, bytes })
        .collect();
    let mut p = Plot::bandwidth(
        format!("bandwidth-{}", stem(&t.phase)),
        format!("{}, {}", e.name, t.phase),
        narrow,
        wide,
        &streams,
    );
    p.x_range = Some((0.0, t.duration_ns as f64 / 1e9));
    p.caption = format!(
        "{} at the far port, by the kernel's stamps, in windows of {} and {}; compare {} of {}.",
        level.name(),
        width_words(narrow),
        width_words(wide),
        e.source.figure,
        e.source.paper
    );
    p
}

/// One second at 2 ms, from the middle of the phase.
fn close(e: &Experiment, t: &Trace) -> Plot {
    let from = (t.duration_ns / 2).saturating_sub(CLOSE_SPAN_NS / 2);
    let to = (from + CLOSE_SPAN_NS).min(t.duration_ns);
    let bytes = t.sum_windows(e.meter.level, CLOSE_NS, from, to);
    let mut p = Plot::new(
        format!("close-{}", stem(&t.phase)),
        format!("{}, {}: one second", e.name, t.phase),
    );
    p.series.push(Series::mbps(
        format!("sum, {}", width_words(CLOSE_NS)),
        Color::SUM,
        1,
        i64::try_from(from).unwrap_or(0),
        CLOSE_NS,
        &bytes,
    ));
    let narrow = e.meter.narrow.ns();
    let wide = t.sum_windows(e.meter.level, narrow, from, to);
    p.series.push(Series::mbps(
        format!("sum, {}", width_words(narrow)),
        Color::MEAN,
        2,
        i64::try_from(from).unwrap_or(0),
        narrow,
        &wide,
    ));
    p.x_range = Some((from as f64 / 1e9, to as f64 / 1e9));
    p.caption = format!("{} at the far port, five round trips.", e.meter.level.name());
    p
}

/// The senders' congestion windows.
fn windows_plot(t: &Trace, sent: &[Sent]) -> Option<Plot> {
    let mut p = Plot::new(
        format!("cwnd-{}", stem(&t.phase)),
        format!("Congestion window, {}", t.phase),
    );
    p.y_label = "window [segments]".into();
    for (i, (s, stream)) in sent.iter().zip(&t.streams).enumerate() {
        if s.samples.is_empty() {
            continue;
        }
        let points = s
            .samples
            .iter()
            .map(|x| (x.t_ms as f64 / 1e3, f64::from(x.cwnd_segments)))
            .collect();
        p.series.push(Series {
            name: stream.name.clone(),
            color: Color::stream(i),
            width: 2,
            points,
        });
    }
    p.x_range = Some((0.0, t.duration_ns as f64 / 1e9));
    p.caption = "TCP_INFO of the senders, every 100 ms.".into();
    (!p.series.is_empty()).then_some(p)
}
