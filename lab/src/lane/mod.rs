//! Experiments on lanes: `plb-deskew` and `lane-matrix`, in virtual time and live.
//!
//! Their topology has no router in common and their streams go through a tunnel of [`kuroshio_lane`], so they are code and not a file:
//!
//! ```text
//!   cells (what the lanes are) -> sim: both ends of core::lane over core::wan      \
//!                              -> live: tunnel, MPTCP, plain TCP in namespaces      -> judged -> RunResult, report
//! ```
//!
//! What they leave has the form of every other run: `run.json`, `report.html`, pictures; `lab report` takes them in.

mod bed;
mod cells;
mod deskew;
mod deskew_live;
mod judged;
mod live;
mod sim;
mod stream;
mod table;

pub(crate) use bed::may_run_first;

use std::io;
use std::time::SystemTime;

use kuroshio_core::lane::ConfigError;
use kuroshio_lane::LaneError;
use kuroshio_testbed::TestbedError;
use serde_json::{Map, Value};

use crate::check::Check;
use crate::page;
use crate::report::{Plot, Report};
use crate::result::{Instrument, Lateness, RunResult, Versions};

/// What `kuroshio lab` knows besides the files: name and title.
pub const ALL: [(&str, &str); 2] = [
    (
        "plb-deskew",
        "Two lanes, one with 20 us of delay and jitter, de-skewed",
    ),
    (
        "lane-matrix",
        "Bulk TCP over two lanes: share of the sum and of the best lane, beside MPTCP and mqvpn's profiles",
    ),
];

/// How a run is asked for.
#[derive(Debug, Clone, Default)]
pub struct Asked {
    /// Live instead of in virtual time.
    pub live: bool,
    /// Only the cells in whose name one of these stands; all without.
    pub only: Vec<String>,
}

impl Asked {
    fn wants(&self, cell: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|part| cell.contains(part.as_str()))
    }

    /// Takes a `--set KEY=VALUE`.
    ///
    /// # Errors
    /// A key that there is not, or a value that names no cell, with what would be valid.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        if key != "only" {
            return Err(format!("--set {key}: experiments on lanes know only=TEXT[,TEXT]"));
        }
        let names: Vec<String> = cells::bulk(0, 3, 0, 3)
            .iter()
            .chain(&cells::mqvpn())
            .map(cells::Cell::name)
            .collect();
        for part in value.split(',').map(str::trim) {
            if !names.iter().any(|name| name.contains(part)) {
                return Err(format!(
                    "--set only={part}: in the name of no cell; there are {}",
                    names.join("; ")
                ));
            }
            self.only.push(part.to_owned());
        }
        Ok(())
    }
}

/// Why a run could not be made.
#[derive(Debug, thiserror::Error)]
pub enum LaneRunError {
    /// A configuration out of its range: a mistake here.
    #[error("{0}")]
    Config(#[from] ConfigError),
    /// The testbed failed.
    #[error("testbed: {0}")]
    Testbed(#[from] TestbedError),
    /// The tunnel failed.
    #[error("tunnel: {0}")]
    Tunnel(#[from] LaneError),
    /// A stream failed.
    #[error("stream {0}: {1}")]
    Stream(&'static str, io::Error),
    /// Something else of the machine.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Something else.
    #[error("{0}")]
    Other(String),
}

/// What a run found.
#[derive(Debug, Clone, Default)]
struct Outcome {
    scale: String,
    settings: Value,
    measured: Map<String, Value>,
    checks: Vec<Check>,
    notes: Vec<String>,
    plots: Vec<Plot>,
    lateness: Vec<Lateness>,
    disturbed: Vec<String>,
}

impl Outcome {
    /// Adds a remark, once.
    fn note(&mut self, text: String) {
        if !self.notes.contains(&text) {
            self.notes.push(text);
        }
    }
}

/// Runs an experiment by its name, and makes its report; `None` for any other name. A live one must be called inside
/// [`kuroshio_testbed::isolate::run`].
///
/// # Errors
/// When the network, the tunnel or a stream fails; a check that fails is no error.
pub fn run(
    name: &str,
    asked: &Asked,
    tell: &mut dyn FnMut(&str),
) -> Option<Result<(RunResult, Report), LaneRunError>> {
    let (name, title) = *ALL.iter().find(|(known, _)| *known == name)?;
    let started_unix_s = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |d| d.as_secs());
    let matrix = name == "lane-matrix";
    let outcome = match (matrix, asked.live) {
        (false, false) => deskew::sim().map_err(LaneRunError::from),
        (false, true) => deskew_live::run(tell),
        (true, false) => sim::run(asked, tell).map_err(LaneRunError::from),
        (true, true) => live::run(asked, tell),
    };
    Some(outcome.map(|mut outcome| {
        if !asked.only.is_empty() {
            outcome.note(format!("Only the cells of: {}.", asked.only.join(", ")));
        }
        let plots = std::mem::take(&mut outcome.plots);
        let (source, paper) = if matrix {
            (
                "002 MultiRail and MultiLane; mqvpn; mptcp #168",
                Value::Array(Vec::new()),
            )
        } else {
            ("002 MultiRail and MultiLane, section III", deskew::paper())
        };
        let result = RunResult {
            experiment: name.into(),
            title: title.into(),
            source: source.into(),
            mode: if asked.live { "live" } else { "sim" }.into(),
            variant: String::new(),
            scale: outcome.scale,
            started_unix_s,
            paper,
            settings: outcome.settings,
            measured: outcome.measured,
            compared: Vec::new(),
            checks: outcome.checks,
            instrument: Instrument {
                calibration: calibration(asked.live),
                lateness: outcome.lateness,
            },
            disturbed: !outcome.disturbed.is_empty(),
            disturbed_by: outcome.disturbed.join("; "),
            versions: Versions::here(),
            seed: 1,
            notes: outcome.notes,
        };
        let report = report(&result, matrix, plots);
        (result, report)
    }))
}

fn calibration(live: bool) -> crate::result::Calibration {
    crate::result::Calibration {
        vector: if live {
            "none: what is counted are bytes in seconds, and delays by one clock"
        } else {
            "none: virtual time is exact"
        }
        .into(),
        ..crate::result::Calibration::default()
    }
}

fn report(result: &RunResult, matrix: bool, plots: Vec<Plot>) -> Report {
    let mut report = page::summary(result);
    // One table of all cells or phases in place of one for each, which is for streams.
    report.tables.retain(|t| !t.title.starts_with("Measured, "));
    let own = if matrix {
        table::matrix(result)
    } else {
        table::delays(result)
    };
    report.tables.insert(0, own);
    report.plots = plots;
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_names_no_cell_is_refused() {
        let mut asked = Asked::default();
        asked.set("only", "jit_5,10:1").expect("cells");
        assert!(asked.wants("mqvpn, jit_5") && asked.wants("10:1, 2x") && !asked.wants("1:1, 2x"));
        let error = asked.set("only", "11:1").expect_err("no cell");
        assert!(error.contains("there are 1:1, equal; 1:1, 2x"), "{error}");
        assert!(
            asked
                .set("rate", "1Gbps")
                .expect_err("no key")
                .contains("only=TEXT")
        );
    }

    #[test]
    fn a_cell_in_virtual_time_has_a_result_and_a_report() {
        let asked = Asked {
            live: false,
            only: vec!["bw_4to1".into()],
        };
        let (result, report) = run("lane-matrix", &asked, &mut |_| {})
            .expect("known")
            .expect("run");
        assert!(run("no-such", &asked, &mut |_| {}).is_none());
        let cell = &result.measured["mqvpn, bw_4to1"];
        let goodput = cell["goodput_mbps"].as_f64().expect("a goodput");
        // 62 Mbps of lanes, and a slow start of a download of three seconds.
        assert!((30.0..56.1).contains(&goodput), "{cell}");
        assert_eq!(cell["mqvpn_published"]["best_path_mbps"], 40.6);
        assert!(result.all_hold(), "{:?}", result.checks);
        let folder = tempfile::tempdir().expect("a folder");
        let page = report.write(folder.path()).expect("a page");
        let text = std::fs::read_to_string(page).expect("read");
        assert!(
            text.contains("bw_4to1") && text.contains("15.6"),
            "no row of the cell"
        );
    }
}
