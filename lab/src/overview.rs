//! One page of all runs of a folder.
//!
//! ```text
//! newest undisturbed run of every (experiment, mode, variant) -> verdicts, paper beside ours, pictures
//! live and sim runs of one experiment with the same TCP       -> goodput and losses beside each other
//! every run, rejected ones too                                -> list at the end
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::page::{compared_cells, text, words};
use crate::report::{Picture, Report, Table};
use crate::result::RunResult;

/// Most pictures of one run on the page.
const PICTURES_OF_A_RUN: usize = 4;
/// Goodput of simulator and live testbed may differ so much, and losses by so many times (figures.md does
/// not say; these are the bounds of the testbed's own specification).
const GOODPUT_WITHIN: f64 = 0.10;
const LOSSES_WITHIN: f64 = 2.0;

/// A run and the folder it is in.
#[derive(Debug, Clone)]
pub struct Kept {
    /// The run's folder.
    pub dir: PathBuf,
    /// Its result.
    pub result: RunResult,
}

/// Reads the run in a folder.
///
/// # Errors
/// As [`RunResult::read`].
pub fn read(dir: &Path) -> io::Result<Kept> {
    Ok(Kept {
        dir: dir.to_owned(),
        result: RunResult::read(&dir.join("run.json"))?,
    })
}

type Key<'a> = (&'a str, &'a str, &'a str);

/// For each experiment, mode and variant the newest run that nothing disturbed, else the newest.
fn chosen(runs: &[Kept]) -> BTreeMap<Key<'_>, &Kept> {
    let mut best: BTreeMap<Key<'_>, &Kept> = BTreeMap::new();
    for run in runs {
        let r = &run.result;
        let rank = |k: &Kept| (!k.result.disturbed, k.result.started_unix_s);
        let place = best.entry((&r.experiment, &r.mode, &r.variant)).or_insert(run);
        if rank(run) > rank(place) {
            *place = run;
        }
    }
    best
}

/// The page over several runs.
///
/// # Errors
/// When a picture of a run cannot be read.
pub fn overview(runs: &[Kept]) -> io::Result<Report> {
    let best = chosen(runs);
    let mut report = Report {
        title: "The papers' experiments, run here".into(),
        intro: vec![format!(
            "{} runs. Figures are those of the newest run of each kind that nothing disturbed; every run is listed at the end, \
             disturbed ones too, and has its own report in its folder.",
            runs.len()
        )],
        ..Report::default()
    };
    report.tables.push(verdicts(&best));
    report.tables.push(beside(&best));
    report.tables.extend(cross(&best));
    report.tables.extend(today(&best));
    let mut all = every_run(runs);
    all.after_plots = true;
    report.tables.push(all);
    for ((experiment, mode, variant), run) in &best {
        report
            .pictures
            .extend(pictures(&kind(experiment, mode, variant), &run.dir)?);
    }
    Ok(report)
}

fn kind(experiment: &str, mode: &str, variant: &str) -> String {
    match variant {
        "" => format!("{experiment}, {mode}"),
        variant => format!("{experiment}, {mode}, {variant}"),
    }
}

fn verdicts(best: &BTreeMap<Key<'_>, &Kept>) -> Table {
    let mut t = words(
        "Verdicts",
        &[
            "experiment",
            "mode",
            "scale",
            "checks that hold",
            "verdict",
            "disturbed",
        ],
    );
    for ((experiment, mode, variant), run) in best {
        if !variant.is_empty() {
            continue;
        }
        let r = &run.result;
        let held = r.checks.iter().filter(|c| c.ok).count();
        let failed: Vec<_> = r
            .checks
            .iter()
            .filter(|c| !c.ok)
            .map(|c| c.name.as_str())
            .collect();
        let verdict = match failed.is_empty() {
            true => "holds".to_owned(),
            false => format!("FAILS: {}", failed.join("; ")),
        };
        t = t.row([
            (*experiment).to_owned(),
            (*mode).to_owned(),
            r.scale.clone(),
            format!("{held} of {}", r.checks.len()),
            verdict,
            if r.disturbed {
                r.disturbed_by.clone()
            } else {
                "no".into()
            },
        ]);
    }
    t
}

fn beside(best: &BTreeMap<Key<'_>, &Kept>) -> Table {
    let mut t = words(
        "The papers' figures beside ours",
        &[
            "experiment",
            "mode",
            "figure",
            "paper",
            "ours",
            "distance",
            "reason, where over 15 %",
        ],
    );
    for ((experiment, mode, variant), run) in best {
        if !variant.is_empty() {
            continue;
        }
        let r = &run.result;
        for f in r.paper.as_array().into_iter().flatten() {
            let name = text(f, "name");
            let cells = match r.compared.iter().find(|c| c.name == name) {
                Some(c) => compared_cells(c),
                None => [
                    name,
                    text(f, "value"),
                    "see its report".into(),
                    String::new(),
                    String::new(),
                ],
            };
            t = t.row([[(*experiment).to_owned(), (*mode).to_owned()].as_slice(), &cells].concat());
        }
    }
    t
}

fn number(v: &Value, key: &str) -> Option<f64> {
    v.get(key)?.as_f64()
}

/// The simulator with today's stack against the live testbed, phase by phase.
fn cross(best: &BTreeMap<Key<'_>, &Kept>) -> Option<Table> {
    let mut t = words(
        "The simulator against the live testbed",
        &[
            "experiment",
            "phase",
            "goodput, sim [Mbps]",
            "goodput, live [Mbps]",
            "distance",
            "within 10 %",
            "frames lost, sim",
            "frames lost, live",
            "within a factor of 2",
        ],
    );
    t.remark = "Simulator: the TCP stack `modern`, the congestion control of the live run; losses: frames dropped by queues.".into();
    for ((experiment, mode, variant), live) in best {
        let Some(sim) = best.get(&(*experiment, "sim", "modern")) else {
            continue;
        };
        if *mode != "live" || !variant.is_empty() {
            continue;
        }
        for (phase, live) in &live.result.measured {
            let Some(sim) = sim.result.measured.get(phase) else {
                continue;
            };
            if let Some(cells) = cross_cells(sim, live) {
                t = t.row([[(*experiment).to_owned(), phase.clone()].as_slice(), &cells].concat());
            }
        }
    }
    (!t.rows.is_empty()).then_some(t)
}

fn cross_cells(sim: &Value, live: &Value) -> Option<[String; 7]> {
    let rate = |v| number(v, "mean_sum_goodput_mbps");
    let lost = |v| {
        let of = |key| number(v, key).unwrap_or(0.0);
        of("dropped_router_frames") + of("dropped_shaper_frames") + of("dropped_port_frames")
    };
    let (a, b) = (rate(sim)?, rate(live)?);
    let off = (a - b) / b;
    let (m, n) = (lost(sim), lost(live));
    let near = (m == 0.0 && n == 0.0) || (m <= n * LOSSES_WITHIN && n <= m * LOSSES_WITHIN);
    let word = |ok| if ok { "yes" } else { "NO" }.to_owned();
    Some([
        format!("{a:.2}"),
        format!("{b:.2}"),
        format!("{:+.1} %", off * 100.0),
        word(off.abs() <= GOODPUT_WITHIN),
        format!("{m}"),
        format!("{n}"),
        word(near),
    ])
}

/// Today's congestion controls on the papers' paths.
fn today(best: &BTreeMap<Key<'_>, &Kept>) -> Option<Table> {
    let mut t = words(
        "Today's congestion controls and TCP-internal pacing on the identical paths",
        &[
            "experiment",
            "mode",
            "run",
            "goodput [Mbps]",
            "frames lost",
            "sent again [segments]",
            "disturbed",
        ],
    );
    for ((experiment, mode, variant), run) in best {
        if *variant != "today" {
            continue;
        }
        for (phase, m) in &run.result.measured {
            let again: f64 = m
                .get("streams")
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
                .filter_map(|s| number(s, "retransmitted_segments"))
                .sum();
            t = t.row([
                (*experiment).to_owned(),
                (*mode).to_owned(),
                phase.clone(),
                text(m, "mean_sum_goodput_mbps"),
                text(m, "dropped_router_frames"),
                format!("{again}"),
                if run.result.disturbed { "yes" } else { "no" }.into(),
            ]);
        }
    }
    (!t.rows.is_empty()).then_some(t)
}

fn every_run(runs: &[Kept]) -> Table {
    let mut t = words(
        "Every run",
        &[
            "experiment",
            "mode",
            "check",
            "bound",
            "measured",
            "holds",
            "disturbed",
        ],
    );
    for Kept { result: r, .. } in runs {
        let what = kind(&r.experiment, "", &r.variant);
        for (i, c) in r.checks.iter().enumerate() {
            let first = |s: &str| if i == 0 { s.to_owned() } else { String::new() };
            t = t.row([
                first(what.trim_end_matches(", ")),
                first(&r.mode),
                c.name.clone(),
                c.bound.clone(),
                c.value.clone(),
                if c.ok { "yes" } else { "NO" }.to_owned(),
                first(if r.disturbed { &r.disturbed_by } else { "no" }),
            ]);
        }
    }
    t
}

/// The plots of bandwidth that a run has left.
fn pictures(title: &str, dir: &Path) -> io::Result<Vec<Picture>> {
    let mut files: Vec<PathBuf> = fs::read_dir(dir)?
        .filter_map(|f| f.ok().map(|f| f.path()))
        .filter(|f| {
            let name = f.file_name().and_then(|n| n.to_str()).unwrap_or_default();
            name.starts_with("bandwidth-") && name.ends_with(".png")
        })
        .collect();
    files.sort();
    let mut list = Vec::new();
    for (i, file) in files.iter().take(PICTURES_OF_A_RUN).enumerate() {
        let phase = file.file_stem().and_then(|n| n.to_str()).unwrap_or_default();
        list.push(Picture {
            title: if i == 0 { title.to_owned() } else { String::new() },
            caption: format!("{title}: {}", phase.trim_start_matches("bandwidth-")),
            png: fs::read(file)?,
        });
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A run of `x` with one phase, as its file would hold it.
    fn run(mode: &str, variant: &str, started: u64, disturbed: bool, goodput: f64, drops: u64) -> Kept {
        let quantiles = json!({ "p50_ns": 0, "p99_ns": 0, "p999_ns": 0, "max_ns": 0 });
        let result = serde_json::from_value(json!({
            "experiment": "x", "title": "t", "source": "s", "mode": mode, "variant": variant, "scale": "1",
            "started_unix_s": started, "paper": [{ "name": "rate", "value": "100 Mbps" }], "settings": [],
            "measured": { "a": { "mean_sum_goodput_mbps": goodput, "dropped_router_frames": drops } },
            "compared": [{ "name": "rate", "phase": "a", "figure": "mean_sum_goodput_mbps", "paper": 100.0,
                "ours": goodput, "off": goodput / 100.0 - 1.0, "reason": null }],
            "checks": [{ "name": "c", "bound": "b", "value": "v", "ok": goodput > 50.0 }],
            "instrument": { "calibration": { "vector": "", "gaps": 0, "gaps_expected": 0, "error": quantiles,
                "histogram": [], "length_error_ppm": 0.0 }, "lateness": [] },
            "disturbed": disturbed, "disturbed_by": if disturbed { "steal" } else { "" },
            "versions": { "kuroshio": "0", "kernel": "0", "rustc": "0" }, "seed": 1, "notes": []
        }))
        .expect("result");
        Kept {
            dir: PathBuf::new(),
            result,
        }
    }

    #[test]
    fn the_newest_run_that_nothing_disturbed_speaks() {
        let runs = [
            run("live", "", 1, false, 90.0, 0),
            run("live", "", 2, false, 40.0, 0),
            run("live", "", 3, true, 99.0, 0),
        ];
        let best = chosen(&runs);
        let t = verdicts(&best);
        assert_eq!(t.rows.len(), 1);
        assert_eq!(t.rows[0][4], "FAILS: c");
        // Only disturbed ones: the newest, and it says so.
        let runs = [
            run("live", "", 3, true, 99.0, 0),
            run("live", "", 2, true, 40.0, 0),
        ];
        let best = chosen(&runs);
        let t = verdicts(&best);
        assert_eq!((t.rows[0][4].as_str(), t.rows[0][5].as_str()), ("holds", "steal"));
    }

    #[test]
    fn a_distance_without_a_reason_is_named() {
        let runs = [run("live", "", 1, false, 40.0, 0)];
        let t = beside(&chosen(&runs));
        assert_eq!(t.rows[0][3..], ["100 Mbps", "40 Mbps", "-60.0 %", "none given"]);
    }

    #[test]
    fn the_simulator_is_compared_with_the_same_tcp_alone() {
        let live = || run("live", "", 1, false, 100.0, 100);
        let of = |runs: &[Kept]| cross(&chosen(runs)).map(|t| t.rows[0][4..].to_vec());
        assert!(of(&[live(), run("sim", "", 1, false, 100.0, 100)]).is_none());
        let near = of(&[live(), run("sim", "modern", 1, false, 109.0, 200)]).expect("row");
        assert_eq!(near, ["+9.0 %", "yes", "200", "100", "yes"]);
        let far = of(&[live(), run("sim", "modern", 1, false, 89.0, 201)]).expect("row");
        assert_eq!(far, ["-11.0 %", "NO", "201", "100", "NO"]);
        let lossless = of(&[live(), run("sim", "modern", 1, false, 100.0, 0)]).expect("row");
        assert_eq!(lossless[4], "NO");
    }
}
