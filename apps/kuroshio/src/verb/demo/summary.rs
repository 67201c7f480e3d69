//! What a run showed: figures per route and in all, for the table, the report and `--json`.

use kuroshio_lab::report::{Align, Plot, Report, StreamWindows, Table, Verdict};
use serde::Serialize;

use super::net::{ROUTES, ports};
use super::run::{Kind, Outcome, SETTLED_AFTER, SHRINKING};
use super::share::{Share, Stamp, rate_between, share};

/// Narrow and wide windows of the papers' figures, in nanoseconds.
const NARROW_NS: u64 = 2_000_000;
const WIDE_NS: u64 = 200_000_000;
/// Height of a plot in capacities of all routes: above the ports' wires together.
const PLOT_HEIGHT: f64 = 1.5;
/// The least share of the capacity that a paced run must reach.
const LEAST_SHARE: f64 = 0.97;
/// An emulator that cannot carry the load is late by more and more: then even 99 % of the frames are not
/// within this.
const KEPT_UP_NS: u64 = 2_000_000;

/// One run in `--json`.
#[derive(Debug, Serialize)]
pub struct RunSummary {
    /// `unpaced`, `paced` or `capacity-loss`.
    pub name: &'static str,
    /// Frame-level egress over the integral of capacity, from 20 % to 80 % of the bytes.
    pub share_of_capacity: f64,
    /// Frames lost at any router or port of the network.
    pub dropped_frames: u64,
    /// Payload bytes of the files that are complete.
    pub bytes: u64,
    /// Wall time of the copy.
    pub seconds: f64,
    /// Files that had to move.
    pub files: usize,
    /// Files found equal to their source by a comparison of their own.
    pub files_verified: usize,
    /// Whether the copy came to its end.
    pub finished: bool,
    /// Frame-level rate in all, from 20 % to 80 % of the bytes.
    pub rate_bps: u64,
    /// TCP payload stamped at the receiver over the whole run.
    pub goodput_bps: u64,
    /// TCP segments sent again.
    pub retransmissions: u64,
    /// Frames that the machine itself lost; not zero means the emulator did not keep up.
    pub machine_lost_frames: u64,
    /// Frames that the captures missed.
    pub capture_missed_frames: u64,
    /// The emulator's lateness, nanoseconds.
    pub lateness_p50_ns: u64,
    /// See above.
    pub lateness_p99_ns: u64,
    /// See above.
    pub lateness_p999_ns: u64,
    /// See above.
    pub lateness_max_ns: u64,
    /// Who kept the streams' rates; null in a run without a pace.
    pub paced_by: Option<String>,
    /// Why the machine disturbed the run.
    pub disturbed: Option<String>,
    /// Per route.
    pub routes: Vec<RouteSummary>,
    /// After the loss of capacity.
    pub settled: Option<Settled>,
}

/// One route of one run.
#[derive(Debug, Serialize)]
pub struct RouteSummary {
    /// Name of the route.
    pub name: &'static str,
    /// Bytes at frame level that arrived.
    pub frame_bytes: u64,
    /// Frame-level rate from 20 % to 80 % of the run's bytes.
    pub rate_bps: u64,
    /// TCP payload over the whole run.
    pub goodput_bps: u64,
    /// Share of the route's own capacity, from 20 % to 80 % of the run's bytes.
    pub share_of_capacity: f64,
    /// Frames dropped at the route's routers, both directions.
    pub dropped_frames: u64,
}

/// What held after a route lost capacity and the plan was told.
#[derive(Debug, Serialize)]
pub struct Settled {
    /// From the loss to the plan being told.
    pub told_after_ms: u64,
    /// Frames dropped at any router later than two seconds after the plan was told.
    pub dropped_frames_after: u64,
    /// Frame-level rate on the route from then to 80 % of the bytes.
    pub rate_bps: u64,
    /// Its capacity by then.
    pub capacity_bps: u64,
}

/// Frames of the data direction at one port.
fn stamps(outcome: &Outcome, wanted: impl Fn(usize) -> bool) -> Vec<Stamp> {
    let mut stamps: Vec<Stamp> = outcome
        .captured
        .records
        .iter()
        .filter(|r| r.direction == kuroshio_testbed::Direction::In && wanted(usize::from(r.port)))
        .map(|r| Stamp {
            at_ns: r.t_ns,
            frame_bytes: u64::from(r.frame_len),
        })
        .collect();
    stamps.sort_by_key(|s| s.at_ns);
    stamps
}

fn payload(outcome: &Outcome, wanted: impl Fn(usize) -> bool) -> u64 {
    let records = outcome.captured.records.iter();
    let inward =
        records.filter(|r| r.direction == kuroshio_testbed::Direction::In && wanted(usize::from(r.port)));
    inward.map(|r| u64::from(r.payload_len)).sum()
}

fn per_second(bytes: u64, seconds: f64) -> u64 {
    if seconds > 0.0 {
        (bytes as f64 * 8.0 / seconds) as u64
    } else {
        0
    }
}

/// Which ports belong to a route, by their number in [`ports`].
fn of_route(route: usize) -> impl Fn(usize) -> bool {
    move |port| ports().nth(port).is_some_and(|(r, _, _)| r == route)
}

fn route_summary(outcome: &Outcome, route: usize, whole: Option<&Share>) -> RouteSummary {
    let frames = stamps(outcome, of_route(route));
    let name = ROUTES[route].name;
    let rate_bps = whole.map_or(0, |s| rate_between(&frames, s.from_ns, s.to_ns));
    let mean_capacity = whole.map_or(0, |s| outcome.capacity[route].mean_bps(s.from_ns, s.to_ns));
    let links = outcome
        .counters
        .links
        .iter()
        .filter(|l| l.name.split(':').next() == Some(name));
    RouteSummary {
        name,
        frame_bytes: frames.iter().map(|s| s.frame_bytes).sum(),
        rate_bps,
        goodput_bps: per_second(payload(outcome, of_route(route)), outcome.seconds),
        share_of_capacity: if mean_capacity > 0 {
            rate_bps as f64 / mean_capacity as f64
        } else {
            0.0
        },
        dropped_frames: links.map(|l| l.stage.dropped().frames + l.fault_dropped).sum(),
    }
}

fn settled(outcome: &Outcome, whole: Option<&Share>) -> Option<Settled> {
    let shrink = outcome.shrink?;
    let from_ns = shrink.told_ns + SETTLED_AFTER.as_nanos() as u64;
    let to_ns = whole?.to_ns;
    let frames = stamps(outcome, of_route(SHRINKING));
    let dropped = outcome.counters.dropped_frames();
    Some(Settled {
        told_after_ms: (shrink.told_ns - shrink.at_ns) / 1_000_000,
        dropped_frames_after: dropped - shrink.dropped_when_settled.unwrap_or(0),
        rate_bps: rate_between(&frames, from_ns, to_ns),
        capacity_bps: outcome.capacity[SHRINKING].last_bps(),
    })
}

impl RunSummary {
    /// The figures of a run.
    pub fn of(outcome: &Outcome) -> Self {
        let whole = share(&stamps(outcome, |_| true), &outcome.capacity);
        let complete = outcome.files_verified == outcome.asked.files;
        let bytes = if complete {
            outcome.asked.bytes
        } else {
            outcome.progress.bytes_durable
        };
        let retransmissions = outcome.copy.retransmissions.max(outcome.progress.retransmissions);
        let lateness = &outcome.emulator.lateness;
        Self {
            name: outcome.kind.name(),
            share_of_capacity: whole.map_or(0.0, |s| s.of_capacity),
            dropped_frames: outcome.counters.dropped_frames(),
            bytes,
            seconds: outcome.seconds,
            files: outcome.asked.files,
            files_verified: outcome.files_verified,
            finished: outcome.finished,
            paced_by: outcome.paced_by.clone(),
            rate_bps: whole.map_or(0, |s| s.rate_bps),
            goodput_bps: per_second(payload(outcome, |_| true), outcome.seconds),
            retransmissions,
            machine_lost_frames: outcome.emulator.machine_lost,
            capture_missed_frames: outcome.captured.missed,
            lateness_p50_ns: lateness.p50_ns,
            lateness_p99_ns: lateness.p99_ns,
            lateness_p999_ns: lateness.p999_ns,
            lateness_max_ns: lateness.max_ns,
            disturbed: outcome.emulator.disturbed.clone(),
            routes: (0..ROUTES.len())
                .map(|r| route_summary(outcome, r, whole.as_ref()))
                .collect(),
            settled: settled(outcome, whole.as_ref()),
        }
    }

    /// Whether the emulator carried every frame, and when.
    pub fn emulator(&self) -> String {
        let kept = self.machine_lost_frames == 0 && self.lateness_p99_ns <= KEPT_UP_NS;
        let us = |ns: u64| ns as f64 / 1e3;
        format!(
            "{}: the emulator {}: {} frames lost by the machine; late by p50 {:.1} us, p99 {:.0} us, p99.9 {:.0} us, \
             at most {:.0} us",
            self.name,
            if kept { "kept up" } else { "did not keep up" },
            self.machine_lost_frames,
            us(self.lateness_p50_ns),
            us(self.lateness_p99_ns),
            us(self.lateness_p999_ns),
            us(self.lateness_max_ns),
        )
    }

    /// What must hold of this run; `None` for the run that has to show how it goes wrong.
    pub fn verdicts(&self) -> Vec<Verdict> {
        let verdict = |name: &str, bound: String, value: String, ok: bool| Verdict {
            name: format!("{}: {name}", self.name),
            bound,
            value,
            ok,
        };
        let mut list = Vec::new();
        let percent = |x: f64| format!("{:.2} %", x * 100.0);
        match self.name {
            "unpaced" => {
                list.push(verdict(
                    "frames dropped",
                    "more than 0".into(),
                    self.dropped_frames.to_string(),
                    self.dropped_frames > 0,
                ));
                list.push(verdict(
                    "share of capacity",
                    format!("below {}", percent(LEAST_SHARE)),
                    percent(self.share_of_capacity),
                    self.share_of_capacity < LEAST_SHARE,
                ));
            }
            _ => {
                list.push(verdict(
                    "files verified",
                    self.files.to_string(),
                    self.files_verified.to_string(),
                    self.files_verified == self.files,
                ));
                if let Some(settled) = &self.settled {
                    list.push(verdict(
                        "frames dropped later than 2 s after the plan was told",
                        "0".into(),
                        settled.dropped_frames_after.to_string(),
                        settled.dropped_frames_after == 0,
                    ));
                    list.push(verdict(
                        "rate on the smaller route from then on",
                        format!("97 % to 100 % of {}", mbps(settled.capacity_bps)),
                        mbps(settled.rate_bps),
                        settled.rate_bps <= settled.capacity_bps
                            && settled.rate_bps as f64 >= settled.capacity_bps as f64 * LEAST_SHARE,
                    ));
                } else {
                    list.push(verdict(
                        "share of capacity",
                        format!("{} or more", percent(LEAST_SHARE)),
                        percent(self.share_of_capacity),
                        self.share_of_capacity >= LEAST_SHARE,
                    ));
                    list.push(verdict(
                        "frames dropped",
                        "0".into(),
                        self.dropped_frames.to_string(),
                        self.dropped_frames == 0,
                    ));
                }
            }
        }
        list
    }
}

fn mbps(bps: u64) -> String {
    format!("{:.1} Mbps", bps as f64 / 1e6)
}

/// The table of all runs, a row per route and one in all.
pub fn table(runs: &[RunSummary]) -> Table {
    let mut table = Table::new(
        "What each run showed",
        &[
            "run",
            "route",
            "bytes [MB]",
            "seconds",
            "frame level [Mbps]",
            "goodput [Mbps]",
            "share of capacity [%]",
            "frames dropped",
            "sent again",
            "files verified",
        ],
    );
    if let Some(route) = table.columns.get_mut(1) {
        route.1 = Align::Left;
    }
    let number = |bps: u64| format!("{:.1}", bps as f64 / 1e6);
    for run in runs {
        for route in &run.routes {
            let title = ROUTES
                .iter()
                .find(|r| r.name == route.name)
                .map_or("", |r| r.title);
            table = table.row([
                String::new(),
                title.to_owned(),
                number(route.frame_bytes),
                String::new(),
                number(route.rate_bps),
                number(route.goodput_bps),
                format!("{:.2}", route.share_of_capacity * 100.0),
                route.dropped_frames.to_string(),
                String::new(),
                String::new(),
            ]);
        }
        let name = if run.finished {
            run.name.to_owned()
        } else {
            format!("{} (ended)", run.name)
        };
        table = table.row([
            name,
            "all".to_owned(),
            number(run.bytes),
            format!("{:.1}", run.seconds),
            number(run.rate_bps),
            number(run.goodput_bps),
            format!("{:.2}", run.share_of_capacity * 100.0),
            run.dropped_frames.to_string(),
            run.retransmissions.to_string(),
            format!("{}/{}", run.files_verified, run.files),
        ]);
    }
    table.remark = "Bytes: per route frame level as stamped at the receiver, in all payload of durable files. \
                    Frame level and share: from 20 % to 80 % of the bytes. Goodput: TCP payload over the whole \
                    run. Dropped: at the routers of the route, both directions; in all also at the ports. \
                    Sent again: TCP segments, as the sender's kernel counted them."
        .to_owned();
    table
}

/// Mean payload of the windows of one run, stream by stream and in sum, as in the papers.
pub fn plot(outcome: &Outcome) -> Plot {
    let Some(begin_ns) = outcome.captured.records.iter().map(|r| r.t_ns).min() else {
        return Plot::new(outcome.kind.name(), outcome.kind.name());
    };
    let names: Vec<&str> = ports().map(|(_, _, name)| name).collect();
    let windows: Vec<Vec<u64>> = (0..names.len())
        .map(|port| {
            let mut windows = Vec::new();
            for stamp in stamps(outcome, |p| p == port) {
                let index = ((stamp.at_ns - begin_ns) / NARROW_NS) as usize;
                if windows.len() <= index {
                    windows.resize(index + 1, 0);
                }
                windows[index] += stamp.frame_bytes;
            }
            windows
        })
        .collect();
    let streams: Vec<StreamWindows<'_>> = names
        .iter()
        .zip(&windows)
        .map(|(name, bytes)| StreamWindows { name, bytes })
        .collect();
    let title = match outcome.kind {
        Kind::Unpaced => "Unpaced: as TCP sends",
        Kind::Paced => "Paced by the rate plan",
        Kind::CapacityLoss => "Paced; Los Angeles loses a third of its capacity half-way",
    };
    let mut plot = Plot::bandwidth(outcome.kind.name(), title, NARROW_NS, WIDE_NS, &streams);
    plot.caption = "Frame level, by the stamps of the receiver's kernel. Higher peaks are cut off.".into();
    let capacity_bps: u64 = outcome.capacity.iter().map(|route| route.mean_bps(0, 1)).sum();
    plot.y_range = Some((0.0, capacity_bps as f64 / 1e6 * PLOT_HEIGHT));
    plot
}

/// The table in plain text, columns aligned.
pub fn plain(table: &Table) -> String {
    let mut rows: Vec<Vec<String>> = vec![table.columns.iter().map(|c| c.0.clone()).collect()];
    rows.extend(table.rows.iter().cloned());
    let width = |i: usize| {
        rows.iter()
            .filter_map(|r| r.get(i))
            .map(|c| c.chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..table.columns.len()).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        for ((cell, width), (_, align)) in row.iter().zip(&widths).zip(&table.columns) {
            match align {
                Align::Left => text.push_str(&format!("{cell:<width$}  ")),
                Align::Right => text.push_str(&format!("{cell:>width$}  ")),
            }
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}

/// The whole report.
pub fn report(runs: &[RunSummary], outcomes_plots: Vec<Plot>, intro: Vec<String>) -> Report {
    let mut instrument = Table::new(
        "The instrument's own error",
        &[
            "run",
            "late p50 [us]",
            "p99 [us]",
            "p99.9 [us]",
            "max [us]",
            "frames lost by the machine",
            "missed by capture",
            "disturbed",
        ],
    );
    for run in runs {
        let us = |ns: u64| format!("{:.1}", ns as f64 / 1e3);
        instrument = instrument.row([
            run.name.to_owned(),
            us(run.lateness_p50_ns),
            us(run.lateness_p99_ns),
            us(run.lateness_p999_ns),
            us(run.lateness_max_ns),
            run.machine_lost_frames.to_string(),
            run.capture_missed_frames.to_string(),
            run.disturbed.clone().unwrap_or_else(|| "no".into()),
        ]);
    }
    Report {
        title: "Kuroshio: real files across an emulated Pacific".into(),
        intro,
        verdicts: runs.iter().flat_map(RunSummary::verdicts).collect(),
        tables: vec![table(runs), instrument],
        plots: outcomes_plots,
        notes: vec![
            "Lateness: time at which the emulator wrote a frame less its exact departure time.".into(),
            "A run is disturbed by steal, run-queue delay or a canary thread's delay, never by that lateness.".into(),
        ],
        ..Report::default()
    }
}
