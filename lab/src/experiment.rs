//! An experiment as data: `NAME.toml`.
//!
//! ```text
//! name, title, scale, what
//! [source]      which paper, figure and section the set-up and the figures are from
//! [meter]       narrow and wide window; frame level or goodput
//! [[figure]]    what the paper printed
//! [[setting]]   one per parameter: value, where it is from
//! [topology]    in the testbed's form ([[topology.host]], [[topology.host.port]], [[topology.link]])
//! [[sweep]]     many phases in few lines (see [`crate::sweep`]); [topology] may then have holes
//! [[phase]]     one run: duration, [[phase.flow]] workload, [[phase.shape]] shapers laid over ports,
//!               [phase.set] links and ports that differ
//! [[check]]     what must hold; with `mode` only in that mode
//! [sim]         parameters of the simulator ([phase.sim] goes before it)
//! [vm]          what the virtual machine does; phases with `vm` are run there
//! ```
//!
//! A phase may take its topology and flows from another experiment (`as = "gnet1-shaped"`): the
//! reference a check compares with is then run in the same session. The files are part of the
//! binary. Every parameter stands in the file with the place it is from; none is fitted.

use kuroshio_core::units::{BitRate, PicoDuration, parse_bytes};
use serde::Deserialize;

use crate::check::{CheckSpec, EVERY_PHASE};
use crate::compare::Ours;
use crate::sim::Settings;
use crate::sweep::{self, Sweep, Vars};
use crate::variant::Today;

pub use crate::sweep::MAX_PHASES;

/// Largest experiment file read.
pub const MAX_FILE_BYTES: usize = 256 * 1024;
/// Most flows of a phase.
pub const MAX_FLOWS: usize = 64;
/// Longest phase: four hours and what they take to begin.
pub const MAX_PHASE_SECONDS: u64 = 15_000;

/// The experiments that are part of the binary: name and file.
const FILES: &[(&str, &str)] = &[
    ("gnet1-collision", include_str!("../gnet1-collision.toml")),
    ("gnet1-unshaped", include_str!("../gnet1-unshaped.toml")),
    ("gnet1-shaped", include_str!("../gnet1-shaped.toml")),
    ("gfarm-burst", include_str!("../gfarm-burst.toml")),
    ("gfarm-ifg", include_str!("../gfarm-ifg.toml")),
    ("psp-bic", include_str!("../psp-bic.toml")),
    ("psp-range", include_str!("../psp-range.toml")),
    ("cross-500", include_str!("../cross-500.toml")),
    ("sc2003", include_str!("../sc2003.toml")),
    ("lfn-window", include_str!("../lfn-window.toml")),
    ("lfn-startup", include_str!("../lfn-startup.toml")),
    ("lfn-cpu", include_str!("../lfn-cpu.toml")),
    ("lfn-pause", include_str!("../lfn-pause.toml")),
    ("lfn-real", include_str!("../lfn-real.toml")),
    ("psp-slow-start", include_str!("../psp-slow-start.toml")),
    ("pfldnet", include_str!("../pfldnet.toml")),
    ("psp-controls", include_str!("../psp-controls.toml")),
    ("psp-sync", include_str!("../psp-sync.toml")),
];

/// An experiment that cannot be used, and why.
#[derive(Debug, thiserror::Error)]
#[error("experiment {name}: {problem}")]
pub struct ExperimentError {
    /// Which one.
    pub name: String,
    /// What is wrong and what would be right.
    pub problem: String,
}

impl ExperimentError {
    pub(crate) fn new(name: &str, problem: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            problem: problem.into(),
        }
    }
}

/// Which bytes are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// MAC header to check sequence.
    Frame,
    /// Payload of TCP or UDP.
    Goodput,
}

impl Level {
    /// The level's name as it stands in reports.
    pub fn name(self) -> &'static str {
        match self {
            Level::Frame => "frame level",
            Level::Goodput => "goodput",
        }
    }
}

/// How an experiment is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Real TCP in namespaces, on the wall clock.
    Live,
    /// In virtual time.
    Sim,
    /// In a virtual machine with its own kernel, in virtual time.
    Vm,
}

impl Mode {
    /// The option of `lab run` that asks for it.
    pub fn option(self) -> &'static str {
        match self {
            Mode::Live => "--live",
            Mode::Sim => "--sim",
            Mode::Vm => "--vm",
        }
    }
}

/// The modes of an experiment that states none.
fn every_mode() -> Vec<Mode> {
    vec![Mode::Live, Mode::Sim]
}

/// Where an experiment comes from.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// Number and short title of the paper.
    pub paper: String,
    /// Figure or table.
    pub figure: String,
    /// Section, in the paper's words.
    pub section: String,
}

/// The windows of the experiment's figure.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Meter {
    /// Narrow window.
    pub narrow: Span,
    /// Wide window.
    pub wide: Span,
    /// Which bytes are counted.
    pub level: Level,
}

/// One printed figure of the paper.
#[derive(Debug, Clone, Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// What was measured.
    pub name: String,
    /// The printed value with its unit.
    pub value: String,
    /// Which of our figures stands beside it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ours: Option<Ours>,
}

/// One parameter and where it is from.
#[derive(Debug, Clone, Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields)]
pub struct Setting {
    /// Which parameter.
    pub name: String,
    /// Its value with its unit.
    pub value: String,
    /// Where it is from: paper and section, or the reason it differs.
    pub from: String,
}

/// How a flow sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// One TCP connection, memory to memory, as much as it takes.
    Tcp,
    /// UDP datagrams of full frames: `rate` during `on`, nothing during `off`, repeated.
    UdpOnOff,
}

/// One flow of a phase.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Flow {
    /// Name in figures.
    pub name: String,
    /// Sending host.
    pub from: String,
    /// Receiving host.
    pub to: String,
    /// The receiver's address.
    pub address: std::net::IpAddr,
    /// The receiver's port where the flow is captured, `host/port`.
    pub far_port: String,
    /// How it sends.
    pub kind: Kind,
    /// Congestion control asked of the kernel (TCP).
    #[serde(default)]
    pub congestion: Option<String>,
    /// The one to take where the kernel has none of that name and this user may not load it (TCP).
    #[serde(default)]
    pub congestion_else: Option<String>,
    /// Congestion control of the paper, where it differs (TCP).
    #[serde(default)]
    pub congestion_of_paper: Option<String>,
    /// When it starts, from the start of the phase.
    pub start: Span,
    /// Effective window: the most payload bytes on the way (TCP).
    #[serde(default)]
    pub window: Option<Bytes>,
    /// TCP-internal pacing (`SO_MAX_PACING_RATE`), frame level (TCP).
    #[serde(default)]
    pub pacing: Option<Rate>,
    /// Frame-level rate while on (UDP).
    #[serde(default)]
    pub rate: Option<Rate>,
    /// Payload of a datagram (UDP).
    #[serde(default)]
    pub datagram: Option<Bytes>,
    /// Length of the sending part of a period (UDP).
    #[serde(default)]
    pub on: Option<Span>,
    /// Length of the silent part of a period (UDP).
    #[serde(default)]
    pub off: Option<Span>,
}

/// A shaper laid over a host's port for one phase.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shape {
    /// `host/port`.
    pub port: String,
    /// Frame-level rate held by inter-frame gaps.
    #[serde(default)]
    pub rate: Option<Rate>,
    /// Fixed gap after each frame instead.
    #[serde(default)]
    pub gap: Option<Bytes>,
    /// Queue of the shaper.
    pub queue: Bytes,
}

/// One run of an experiment.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Phase {
    /// Name in figures and checks.
    pub name: String,
    /// Another experiment whose topology, shapers and flows this phase takes (its first phase).
    #[serde(default, rename = "as")]
    pub as_experiment: Option<String>,
    /// How long the flows send, from the start of the phase.
    pub duration: Span,
    /// What sends.
    #[serde(default, rename = "flow")]
    pub flows: Vec<Flow>,
    /// Shapers.
    #[serde(default, rename = "shape")]
    pub shapes: Vec<Shape>,
    /// Parameters of the simulator for this phase.
    #[serde(default)]
    pub sim: Settings,
    /// How it is run in the virtual machine; where it says nothing, it is not.
    #[serde(default)]
    pub vm: Option<crate::vm::Settings>,
    /// What the phase of a sweep stands for; empty for others.
    #[serde(skip)]
    pub vars: Vars,
    /// Links and ports that differ in this phase: keys of [`crate::set`].
    #[serde(default)]
    pub set: std::collections::BTreeMap<String, String>,
    /// The testbed's topology with the shapers in place; made from `[topology]` when parsed.
    #[serde(skip)]
    pub topology_toml: String,
    /// The time its figures are of, where no check of its own says so: from and to, ns.
    #[serde(skip)]
    pub looked_at_ns: Option<(u64, u64)>,
}

/// An experiment.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// Name, also of the file.
    pub name: String,
    /// One line.
    pub title: String,
    /// What is tried and what to see, one paragraph.
    pub what: String,
    /// `1` at the paper's own size, else a fraction.
    pub scale: String,
    /// Where it comes from.
    pub source: Source,
    /// Its windows.
    pub meter: Meter,
    /// What the paper printed.
    #[serde(rename = "figure")]
    pub figures: Vec<Figure>,
    /// Its parameters and where they are from.
    #[serde(rename = "setting")]
    pub settings: Vec<Setting>,
    /// Remarks that go into every result.
    #[serde(default)]
    pub notes: Vec<String>,
    /// The topology as it stands in the file.
    pub(crate) topology: toml::Table,
    /// How it is run.
    #[serde(default = "every_mode")]
    pub modes: Vec<Mode>,
    /// Parameters of the simulator.
    #[serde(default)]
    pub sim: Settings,
    /// What the virtual machine does.
    #[serde(default)]
    pub vm: Option<crate::vm::Machine>,
    /// How it is run with today's congestion controls.
    #[serde(default)]
    pub today: Option<Today>,
    /// Runs in a compact form, which stand behind the others.
    #[serde(default, rename = "sweep")]
    pub sweeps: Vec<Sweep>,
    /// Its runs.
    #[serde(default, rename = "phase")]
    pub phases: Vec<Phase>,
    /// What must hold.
    #[serde(rename = "check")]
    pub checks: Vec<CheckSpec>,
    /// Empty for the paper's own set-up, else how this one differs (see [`crate::variant`]).
    #[serde(skip)]
    pub variant: String,
}

impl Experiment {
    /// The testbed's topology without any phase's shapers.
    pub(crate) fn bare_topology(&self) -> String {
        toml::to_string(&self.topology).unwrap_or_default()
    }
}

/// The names of all experiments.
pub fn names() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|(n, _)| *n)
}

/// The experiment of that name.
///
/// # Errors
/// When there is none of that name (the message lists those there are) or its file is wrong.
pub fn load(name: &str) -> Result<Experiment, ExperimentError> {
    load_with(name, &[])
}

/// The experiment of that name with keys of [`crate::set`] changed, in their order.
///
/// # Errors
/// As [`load`], and when a key is unknown or names nothing in the experiment.
pub fn load_with(name: &str, sets: &[(String, String)]) -> Result<Experiment, ExperimentError> {
    let Some((_, text)) = FILES.iter().find(|(n, _)| *n == name) else {
        let known: Vec<_> = names().collect();
        return Err(ExperimentError::new(
            name,
            format!("there is none of that name; there are {}", known.join(", ")),
        ));
    };
    parse_with(name, text, sets)
}

/// Reads an experiment file.
///
/// # Errors
/// When the file is no such experiment: the message says where and what would be valid.
pub fn parse(name: &str, text: &str) -> Result<Experiment, ExperimentError> {
    parse_with(name, text, &[])
}

fn parse_with(name: &str, text: &str, sets: &[(String, String)]) -> Result<Experiment, ExperimentError> {
    let fail = |p: String| ExperimentError::new(name, p);
    if text.len() > MAX_FILE_BYTES {
        return Err(fail(format!("{} bytes: at most {MAX_FILE_BYTES}", text.len())));
    }
    let mut e: Experiment = match sets {
        // From the text, so that a message can say the line.
        [] => toml::from_str(text).map_err(|e| fail(e.to_string()))?,
        sets => {
            let mut table: toml::Table = toml::from_str(text).map_err(|e| fail(e.to_string()))?;
            for (key, value) in sets {
                crate::set::experiment(&mut table, key, value).map_err(fail)?;
            }
            table
                .try_into()
                .map_err(|e: toml::de::Error| fail(e.to_string()))?
        }
    };
    if e.name != name {
        return Err(fail(format!("its name field says {:?}", e.name)));
    }
    for sweep in &e.sweeps {
        e.phases.extend(sweep.phases().map_err(fail)?);
    }
    if e.phases.is_empty() || e.phases.len() > MAX_PHASES {
        return Err(fail(format!("{} phases: want 1 to {MAX_PHASES}", e.phases.len())));
    }
    let (narrow, wide) = (e.meter.narrow.ns(), e.meter.wide.ns());
    if narrow == 0 || wide < narrow || wide % narrow != 0 {
        return Err(fail(
            "the wide window must be a multiple of the narrow one".into(),
        ));
    }
    let mut phases = std::mem::take(&mut e.phases);
    for p in &mut phases {
        complete(&e, p).map_err(fail)?;
    }
    e.phases = phases;
    for (n, p) in e.phases.iter().enumerate() {
        if e.phases.iter().skip(n + 1).any(|other| other.name == p.name) {
            return Err(fail(format!("two phases are called {:?}", p.name)));
        }
        p.sim
            .or(&e.sim)
            .validate()
            .map_err(|m| fail(format!("phase {:?}: sim: {m}", p.name)))?;
    }
    if e.modes.is_empty() {
        return Err(fail("modes: want some of live, sim and vm".into()));
    }
    crate::vm::validate(&e).map_err(fail)?;
    for figure in &e.figures {
        if let Some(ours) = &figure.ours
            && !e.phases.iter().any(|p| p.name == ours.phase)
        {
            return Err(fail(format!(
                "figure {:?} names no phase: {:?}",
                figure.name, ours.phase
            )));
        }
    }
    if let Some(today) = &e.today {
        today.validate(&e).map_err(|m| fail(format!("today: {m}")))?;
    }
    for c in &e.checks {
        for phase in c.phases() {
            if phase != EVERY_PHASE && !e.phases.iter().any(|p| p.name == phase) {
                return Err(fail(format!("check {:?} names no phase: {phase:?}", c.name)));
            }
        }
        c.validate()
            .map_err(|m| fail(format!("check {:?}: {m}", c.name)))?;
    }
    Ok(e)
}

/// Fills a phase from the experiment it borrows from, lays its shapers over the topology, and
/// checks its flows.
fn complete(e: &Experiment, p: &mut Phase) -> Result<(), String> {
    if let Some(other) = &p.as_experiment {
        if !p.flows.is_empty() || !p.shapes.is_empty() || !p.set.is_empty() || *other == e.name {
            return Err(format!(
                "phase {:?}: `as` stands alone and names another one",
                p.name
            ));
        }
        let borrowed = load(other).map_err(|m| m.to_string())?;
        let Some(first) = borrowed.phases.into_iter().next() else {
            return Err(format!("{other} has no phase"));
        };
        p.flows = first.flows;
        p.shapes = first.shapes;
        p.sim = p.sim.or(&first.sim).or(&borrowed.sim);
        p.topology_toml = first.topology_toml;
    } else {
        let mut topology = e.topology.clone();
        sweep::fill(&mut topology, &p.vars).map_err(|m| format!("phase {:?}: topology: {m}", p.name))?;
        for (key, value) in &p.set {
            crate::set::topology(&mut topology, key, value)
                .map_err(|m| format!("phase {:?}: {m}", p.name))?;
        }
        for s in &p.shapes {
            lay(&mut topology, s).map_err(|m| format!("phase {:?}: {m}", p.name))?;
        }
        p.topology_toml = toml::to_string(&topology).map_err(|m| m.to_string())?;
    }
    if p.flows.is_empty() || p.flows.len() > MAX_FLOWS {
        return Err(format!(
            "phase {:?}: {} flows, want 1 to {MAX_FLOWS}",
            p.name,
            p.flows.len()
        ));
    }
    if p.duration.ns() == 0 || p.duration.ns() > MAX_PHASE_SECONDS * 1_000_000_000 {
        return Err(format!(
            "phase {:?}: want a duration up to {MAX_PHASE_SECONDS} s",
            p.name
        ));
    }
    for f in &p.flows {
        let whole = match f.kind {
            Kind::Tcp => f.congestion.is_some(),
            Kind::UdpOnOff => f.rate.is_some() && f.datagram.is_some() && f.on.is_some() && f.off.is_some(),
        };
        if !whole {
            return Err(format!(
                "flow {:?}: tcp wants congestion; udp-on-off wants rate, datagram, on and off",
                f.name
            ));
        }
    }
    Ok(())
}

/// Writes one shaper into the port's table of a topology.
fn lay(topology: &mut toml::Table, s: &Shape) -> Result<(), String> {
    let Some((host, port)) = s.port.split_once('/') else {
        return Err(format!("shaper at {:?}: want HOST/PORT", s.port));
    };
    let named = |list: Option<&mut toml::Value>, name: &str| -> Option<usize> {
        list?
            .as_array()?
            .iter()
            .position(|v| v.get("name").and_then(toml::Value::as_str) == Some(name))
    };
    let missing = || format!("shaper at {:?}: no such port in the topology", s.port);
    let h = named(topology.get_mut("host"), host).ok_or_else(missing)?;
    let host = topology
        .get_mut("host")
        .and_then(|v| v.as_array_mut())
        .and_then(|a| a.get_mut(h))
        .ok_or_else(missing)?;
    let i = named(host.get_mut("port"), port).ok_or_else(missing)?;
    let table = host
        .get_mut("port")
        .and_then(|v| v.as_array_mut())
        .and_then(|a| a.get_mut(i))
        .and_then(toml::Value::as_table_mut)
        .ok_or_else(missing)?;
    match (&s.rate, &s.gap) {
        (Some(r), None) => table.insert("shape".into(), r.text.clone().into()),
        (None, Some(g)) => table.insert("gap".into(), g.text.clone().into()),
        _ => return Err(format!("shaper at {:?}: want either rate or gap", s.port)),
    };
    table.insert("shape_queue".into(), s.queue.text.clone().into());
    Ok(())
}

/// A length of time, written with its unit.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Span {
    value: PicoDuration,
    /// As written.
    pub text: String,
}

impl Span {
    /// In nanoseconds, rounded down.
    pub fn ns(&self) -> u64 {
        self.value.as_ns()
    }
}

impl TryFrom<String> for Span {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        let value = text.parse::<PicoDuration>().map_err(|e| e.to_string())?;
        Ok(Self { value, text })
    }
}

/// A rate, written with its unit.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Rate {
    /// In bits per second.
    pub value: BitRate,
    /// As written.
    pub text: String,
}

impl TryFrom<String> for Rate {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        let value = text.parse::<BitRate>().map_err(|e| e.to_string())?;
        Ok(Self { value, text })
    }
}

/// A size, written with its unit.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Bytes {
    /// In bytes.
    pub value: u64,
    /// As written.
    pub text: String,
}

impl TryFrom<String> for Bytes {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        let value = parse_bytes(&text).map_err(|e| e.to_string())?;
        Ok(Self { value, text })
    }
}
