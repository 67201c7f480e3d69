//! Experiments on rails and video that are code: `rails-fps` and `plb-global` (paper 002).
//!
//! ```text
//! [`run`] -> fps (live)      two senders of video, each bound as a row of the paper's table says -> pictures per second
//!         -> fps_vm          the same in a virtual machine of two memory nodes -> where work and memory were
//!         -> global_sim      core::video through core::lane in virtual time, at full size
//!         -> global_live     netv through two tunnels over the testbed
//! then    a result as of every experiment (`run.json`), a page (`report.html`), pictures
//! ```
//!
//! Parameters stand in each run's `settings` with their source; what must hold in its `checks`.

mod fps;
mod fps_vm;
mod global;
mod global_live;
mod global_sim;
#[cfg(test)]
mod tests;
mod work;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde_json::{Map, Value, json};

use crate::check::Check;
use crate::experiment::Mode;
use crate::page;
use crate::report::{Picture, Report, Table, Verdict};
use crate::result::{Calibration, Instrument, RunResult, Versions};
use crate::vm::VmError;

/// An experiment of this module.
#[derive(Debug, Clone, Copy)]
pub struct About {
    /// Its name.
    pub name: &'static str,
    /// One line about it.
    pub title: &'static str,
    /// Paper, figure and section.
    pub source: &'static str,
    /// How it can be run; the first is the default.
    pub modes: &'static [Mode],
    /// What `--set` may change, and to what.
    pub keys: &'static [&'static str],
}

impl About {
    /// Whether it runs inside [`kuroshio_testbed::isolate::run`] only.
    #[must_use]
    pub fn needs_testbed(&self, mode: Mode) -> bool {
        self.name == "plb-global" && mode == Mode::Live
    }
}

/// What is here.
pub const ALL: [About; 2] = [
    About {
        name: "rails-fps",
        title: "Pictures per second of uncompressed 4K over two rails, by where their cores and memory are",
        source: "002 MultiRail and MultiLane, fig. 4, section II",
        modes: &[Mode::Live, Mode::Vm],
        keys: &["size", "time", "runs", "held"],
    },
    About {
        name: "plb-global",
        title: "Two halves of a 4K picture over two lanes, 150 ms apart, with de-skew and without",
        source: "002 MultiRail and MultiLane, fig. 7 and 8, section IV",
        modes: &[Mode::Live, Mode::Sim],
        keys: &["size", "time"],
    },
];

/// The experiment of a name.
#[must_use]
pub fn about(name: &str) -> Option<&'static About> {
    ALL.iter().find(|a| a.name == name)
}

/// How to run.
#[derive(Debug, Clone)]
pub struct Request {
    /// In which mode.
    pub mode: Mode,
    /// Keys and their values, of `--set`.
    pub sets: Vec<(String, String)>,
    /// Folder for what a virtual machine leaves.
    pub work: PathBuf,
}

/// A run that could not be made.
#[derive(Debug, thiserror::Error)]
pub enum RailsError {
    /// An option that means nothing, or something that is missing: what, and what would be valid. Nothing was started.
    #[error("{0}")]
    Bad(String),
    /// It was started and failed.
    #[error("{0}")]
    Failed(String),
}

impl From<VmError> for RailsError {
    fn from(e: VmError) -> Self {
        match e {
            VmError::Missing(text) => Self::Bad(text),
            VmError::Failed(text) => Self::Failed(text),
        }
    }
}

pub(crate) fn failed(what: &str) -> impl FnOnce(&dyn std::fmt::Display) -> RailsError {
    let what = what.to_owned();
    move |e| RailsError::Failed(format!("{what}: {e}"))
}

/// What a run leaves.
#[derive(Debug, Clone)]
pub struct Made {
    /// The figures.
    pub result: RunResult,
    /// Its own tables of the page.
    pub tables: Vec<Table>,
    /// Pictures, with the stem of their file.
    pub pictures: Vec<(String, Picture)>,
}

/// Runs an experiment. `plb-global` live must be called inside [`kuroshio_testbed::isolate::run`].
///
/// `say` gets one line per step.
///
/// # Errors
/// A mode or key that it does not have, or a run that could not be made; a check that fails is no error.
pub fn run(about: &About, request: &Request, say: &mut dyn FnMut(&str)) -> Result<Made, RailsError> {
    if !about.modes.contains(&request.mode) {
        let modes: Vec<_> = about.modes.iter().map(|m| m.option()).collect();
        return Err(RailsError::Bad(format!("runs with {} only", modes.join(" or "))));
    }
    if let Some((key, _)) = request
        .sets
        .iter()
        .find(|(key, _)| !about.keys.contains(&key.as_str()))
    {
        let keys = about.keys.join(", ");
        return Err(RailsError::Bad(format!("--set {key}: one of {keys} is valid")));
    }
    match (about.name, request.mode) {
        ("rails-fps", Mode::Vm) => fps_vm::run(about, request, say),
        ("rails-fps", _) => fps::run(about, request, say),
        (_, Mode::Sim) => global_sim::run(about, request, say),
        _ => global_live::run(about, request, say),
    }
}

/// The value of a key, read by `read`.
fn set<T>(
    request: &Request,
    key: &str,
    valid: &str,
    read: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>, RailsError> {
    let of_key = |(k, _): &&(String, String)| k == key;
    let Some((_, value)) = request.sets.iter().rev().find(of_key) else {
        return Ok(None);
    };
    let found = read(value);
    found
        .map(Some)
        .ok_or_else(|| RailsError::Bad(format!("--set {key}={value}: {valid} is valid")))
}

/// A duration in a range, ms.
fn time_within(text: &str, least_ms: u64, most_ms: u64) -> Option<std::time::Duration> {
    let time = text.parse::<kuroshio_core::units::PicoDuration>().ok()?.to_std();
    let ms = u64::try_from(time.as_millis()).ok()?;
    (least_ms..=most_ms).contains(&ms).then_some(time)
}

/// `WIDTHxHEIGHT` of 24-bit RGB that two halves can be made of.
fn size_within(text: &str) -> Option<kuroshio_core::video::Geometry> {
    let (width, height) = text.split_once('x')?;
    let (width, height) = (width.parse().ok()?, height.parse().ok()?);
    let all =
        kuroshio_core::video::Geometry::new(width, height, kuroshio_core::video::PixelFormat::Rgb8).ok()?;
    (width >= 64 && height >= 32).then_some(all)
}

/// A row of `settings`.
fn setting(name: &str, value: impl Into<String>, from: &str) -> Value {
    json!({ "name": name, "value": value.into(), "from": from })
}

/// A check.
fn check(name: impl Into<String>, bound: impl Into<String>, value: impl Into<String>, ok: bool) -> Check {
    Check {
        name: name.into(),
        bound: bound.into(),
        value: value.into(),
        ok,
    }
}

/// A result without figures.
fn empty(about: &About, mode: &str, scale: &str) -> RunResult {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    RunResult {
        experiment: about.name.into(),
        title: about.title.into(),
        source: about.source.into(),
        mode: mode.into(),
        variant: String::new(),
        scale: scale.into(),
        started_unix_s: since.map_or(0, |d| d.as_secs()),
        paper: Value::Null,
        settings: Value::Null,
        measured: Map::new(),
        compared: Vec::new(),
        checks: Vec::new(),
        instrument: Instrument {
            calibration: Calibration {
                vector: "none: no frame of a known gap is sent".into(),
                ..Calibration::default()
            },
            lateness: Vec::new(),
        },
        disturbed: false,
        disturbed_by: String::new(),
        versions: Versions::here(),
        seed: 0,
        notes: Vec::new(),
    }
}

impl Made {
    /// The page of the run.
    #[must_use]
    pub fn report(&self) -> Report {
        let r = &self.result;
        let mut report = Report {
            title: format!("{}: {}", r.experiment, r.title),
            intro: vec![page::run_line(r)],
            verdicts: r.checks.iter().map(verdict).collect(),
            tables: vec![page::paper_table(r)],
            pictures: self.pictures.iter().map(|(_, p)| p.clone()).collect(),
            notes: r.notes.clone(),
            ..Report::default()
        };
        if r.disturbed {
            report
                .intro
                .push(format!("The machine disturbed this run: {}.", r.disturbed_by));
        }
        report.tables.extend(self.tables.iter().cloned());
        let mut settings = page::settings_table(r);
        settings.after_plots = true;
        report.tables.push(settings);
        report
    }

    /// Writes `run.json`, `report.html` and the pictures into a folder. Returns the page's path.
    ///
    /// # Errors
    /// When one cannot be written.
    pub fn write(&self, dir: &Path) -> io::Result<PathBuf> {
        self.result.write(dir)?;
        for (stem, picture) in &self.pictures {
            fs::write(dir.join(format!("{stem}.png")), &picture.png)?;
        }
        self.report().write(dir)
    }
}

fn verdict(c: &Check) -> Verdict {
    Verdict {
        name: c.name.clone(),
        bound: c.bound.clone(),
        value: c.value.clone(),
        ok: c.ok,
    }
}
