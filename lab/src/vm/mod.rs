//! The run of an experiment in a virtual machine: a stock kernel with its own modules and ours, in virtual time.
//!
//! ```text
//! tree      the checkout that holds kernel/test/run and tests/vm/vm; QEMU and the other programs; kernel and headers
//! range     one boot:            static pacing target by target -> stamps of the test wire -> traces
//! path      one boot per phase:  TCP of that kernel, psp or none, tbf and netem behind the wire -> windows -> trace
//! then      the same checks and the same result as of the other modes
//! ```
//!
//! A path that is too fast for the one virtual processor is run slower and longer ([`Dilation`]).
//!
//! Nothing disturbs virtual time, so no such run is disturbed; what the one virtual processor could not do in time is a
//! check of its own. The scripts and the module's sources are not part of the binary: they are looked for in
//! `KUROSHIO_SOURCE`, then upwards from the current folder, then from the program's.

mod dilation;
mod nodes;
mod path;
mod range;
mod tree;

pub(crate) use nodes::{Nodes, on_nodes};

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::check::Check;
use crate::compare;
use crate::experiment::{Experiment, Mode, Phase};
use crate::flow::Sent;
use crate::live::Run;
use crate::measure;
use crate::result::{Calibration, Instrument, RunResult, Versions};
use crate::trace::Trace;

pub use dilation::{Dilation, MAX_DILATION, UNSCALED};

/// Most modules that an experiment loads.
const MAX_LOAD: usize = 16;
/// Largest file of results that is read from the machine.
const MAX_RESULT_BYTES: u64 = 256 << 20;

/// `[vm]` of an experiment: what the machine does.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Which of the tests of `kernel/test/run`.
    pub run: Kind,
    /// Modules with their parameters that it loads.
    #[serde(default)]
    pub load: Vec<String>,
}

/// A test of `kernel/test/run`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Static pacing, target by target.
    Range,
    /// TCP over a wide-area path.
    Path,
}

/// How the streams of a phase are paced in the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pace {
    /// Not.
    None,
    /// At the rate of the phase's shaper, all together.
    Static,
    /// Each by its own window and round-trip time.
    Dynamic,
}

/// `vm` of a phase, which is then run in the machine.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// How its streams are paced.
    pub pace: Pace,
    /// Those that are not.
    #[serde(default)]
    pub unpaced: Vec<String>,
}

/// A run in the machine that could not be made.
#[derive(Debug, thiserror::Error)]
pub enum VmError {
    /// Something that it needs is not there: what, and how to get it. Nothing was started.
    #[error("{0}")]
    Missing(String),
    /// It was started and failed.
    #[error("{0}")]
    Failed(String),
}

/// Where and when.
#[derive(Debug, Clone)]
pub struct Options {
    /// Folder for what the machine leaves.
    pub work: PathBuf,
    /// When the run began, seconds since 1970.
    pub started_unix_s: u64,
    /// How much longer the machine takes for what is on the path.
    pub dilation: Dilation,
}

/// A phase that was run.
struct Ran {
    trace: Trace,
    sent: Vec<Sent>,
    /// Figures beside those of every mode.
    figures: Map<String, Value>,
}

/// Refuses an experiment whose `vm` parts do not fit.
pub(crate) fn validate(e: &Experiment) -> Result<(), String> {
    let asked = e.modes.contains(&Mode::Vm);
    let Some(machine) = &e.vm else {
        return match asked || e.phases.iter().any(|p| p.vm.is_some()) {
            true => Err("vm: want a table [vm] with `run`".into()),
            false => Ok(()),
        };
    };
    if !asked || !e.phases.iter().any(|p| p.vm.is_some()) {
        return Err("vm: want \"vm\" among the modes and a phase with `vm`".into());
    }
    if machine.load.len() > MAX_LOAD {
        return Err(format!("vm: {} modules: at most {MAX_LOAD}", machine.load.len()));
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || "_= ".contains(c);
    if let Some(bad) = machine
        .load
        .iter()
        .find(|l| l.is_empty() || !l.chars().all(plain))
    {
        return Err(format!("vm: load {bad:?}: want MODULE PARAMETER=VALUE..."));
    }
    for p in &e.phases {
        let Some(s) = &p.vm else { continue };
        if (machine.run == Kind::Range || s.pace == Pace::Static) && static_rate_bps(p).is_none() {
            return Err(format!(
                "phase {:?}: vm: static pacing wants one shaper with a rate",
                p.name
            ));
        }
        if let Some(name) = s
            .unpaced
            .iter()
            .find(|name| !p.flows.iter().any(|f| f.name == **name))
        {
            return Err(format!("phase {:?}: vm: no flow {name:?}", p.name));
        }
    }
    Ok(())
}

/// The rate of a phase's only shaper.
fn static_rate_bps(p: &Phase) -> Option<u64> {
    match p.shapes.as_slice() {
        [one] => one.rate.as_ref().map(|r| r.value.bps()),
        _ => None,
    }
}

/// Runs an experiment in the machine.
///
/// `say` gets one line per step.
///
/// # Errors
/// When something that it needs is missing, or the machine ends without results; a check that fails is no error.
pub fn run(e: &Experiment, o: &Options, say: &mut dyn FnMut(&str)) -> Result<Run, VmError> {
    let Some(machine) = &e.vm else {
        return Err(VmError::Missing("the experiment has no [vm]".into()));
    };
    if machine.run == Kind::Range && o.dilation.is_on() {
        return Err(VmError::Missing(
            "--dilation is for experiments over a path: here the wire's stamps are the result".into(),
        ));
    }
    let tree = tree::Tree::find()?;
    tree::programs()?;
    let kernel = tree.kernel()?;
    let (ran, own) = match machine.run {
        Kind::Range => range::run(e, &tree, &o.work, say)?,
        Kind::Path => path::run(e, machine, &tree, o, say)?,
    };
    Ok(finish(e, o, ran, own, kernel))
}

fn finish(e: &Experiment, o: &Options, ran: Vec<Ran>, own: Vec<Check>, kernel: String) -> Run {
    let mut measured = Map::new();
    let (mut traces, mut sent) = (Vec::new(), Vec::new());
    for r in ran {
        let mut figures = measure::phase(e, &r.trace, &r.sent);
        if let Value::Object(m) = &mut figures {
            m.extend(r.figures);
            if o.dilation.is_on() {
                let raw = o.dilation.raw(m);
                m.insert("in_the_machine".into(), raw);
            }
        }
        measured.insert(r.trace.phase.clone(), figures);
        traces.push(r.trace);
        sent.push(r.sent);
    }
    let specs = e.checks.iter().filter(|c| c.is_for(Mode::Vm));
    let mut checks: Vec<Check> = specs.map(|c| c.evaluate(&traces)).collect();
    checks.extend(own);
    let mut notes = e.notes.clone();
    notes.push(
        "Run in a virtual machine in virtual time: one instruction takes one nanosecond, on one processor."
            .into(),
    );
    if o.dilation.is_on() {
        notes.push(o.dilation.note());
    }
    let result = RunResult {
        experiment: e.name.clone(),
        title: e.title.clone(),
        source: format!("{}, {}, {}", e.source.paper, e.source.figure, e.source.section),
        mode: "vm".into(),
        variant: e.variant.clone(),
        scale: e.scale.clone(),
        started_unix_s: o.started_unix_s,
        paper: json!(e.figures),
        settings: json!(e.settings),
        compared: compare::beside(&e.figures, &measured),
        measured,
        checks,
        instrument: Instrument {
            calibration: Calibration {
                vector: "none: virtual time".into(),
                ..Calibration::default()
            },
            lateness: Vec::new(),
        },
        disturbed: false,
        disturbed_by: String::new(),
        versions: Versions {
            kernel: format!("{kernel} (virtual machine)"),
            ..Versions::here()
        },
        seed: 0,
        notes,
    };
    Run { result, traces, sent }
}

/// A file that the machine left.
fn read(path: &Path) -> Result<String, VmError> {
    let bad = |m: String| VmError::Failed(format!("{}: {m}", path.display()));
    let len = std::fs::metadata(path)
        .map_err(|m| bad(format!("the machine left none: {m}")))?
        .len();
    if len > MAX_RESULT_BYTES {
        return Err(bad(format!("{len} bytes: at most {MAX_RESULT_BYTES}")));
    }
    std::fs::read_to_string(path).map_err(|m| bad(m.to_string()))
}

/// The numbers of a line; none when one is none.
fn numbers(line: &str) -> Option<Vec<u64>> {
    line.split_ascii_whitespace().map(|w| w.parse().ok()).collect()
}
