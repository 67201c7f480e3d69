//! `kuroshio lab`: the papers' experiments, run and reported.
//!
//! `list` names them, `run NAME` runs one in its own namespaces and leaves a folder (`run.json`,
//! `trace.csv`, `report.html`, PNG), `sweep` runs one in virtual time with every combination of values, and
//! `report` makes one page over all runs of a folder. Exit codes of `run`: 0 every check holds, 1 one fails, 3 the machine disturbed the run, 2 bad input.

mod rails;
mod replicate;
mod sweep;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use kuroshio_lab::experiment::{self, Experiment, Mode};
use kuroshio_lab::lane;
use kuroshio_lab::live::{self, Options};
use kuroshio_lab::overview;
use kuroshio_lab::page;
use kuroshio_lab::result::{RunResult, write_trace};
use kuroshio_lab::sim;
use kuroshio_lab::variant;
use kuroshio_lab::vm::{self, VmError};
use kuroshio_testbed::isolate;

use crate::error::Failure;

/// Window of `trace.csv`.
const TRACE_WINDOW_NS: u64 = 2_000_000;
/// Most run folders that one report reads.
const MAX_RUNS: usize = 10_000;
/// Where runs go without `--out`.
const DEFAULT_OUT: &str = "lab-runs";

/// Arguments of `kuroshio lab`.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// Name the experiments, the papers they are from and what must hold
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Run an experiment: exit code 0 when every check holds, 1 when one fails, 3 when disturbed
    Run(RunArgs),
    /// Run an experiment in virtual time for every combination of values, in parallel processes
    Sweep(sweep::Args),
    /// Make one page over all runs of a folder
    Report {
        /// Folder that holds the runs
        #[arg(long, value_name = "DIR", default_value = DEFAULT_OUT)]
        out: PathBuf,
    },
}

const RUN_EXAMPLE: &str = "\
Example:
  kuroshio lab run gfarm-ifg
  kuroshio lab run psp-bic --sim --set duration=30s
  kuroshio lab run psp-range --vm --json
  kuroshio lab run psp-bic --vm --dilation 5
Exit code: 0 every check holds, 1 one fails, 3 the machine disturbed the run, 2 bad input or something is missing.";

#[derive(clap::Args)]
#[command(after_help = RUN_EXAMPLE)]
struct RunArgs {
    /// Name of the experiment (see `kuroshio lab list`)
    name: String,
    /// Real TCP in namespaces over the emulator, on the wall clock (the default)
    #[arg(long, conflicts_with_all = ["sim", "vm"])]
    live: bool,
    /// In the simulator, in virtual time
    #[arg(long, conflicts_with = "vm")]
    sim: bool,
    /// In a virtual machine with a kernel of its own, in virtual time; needs the source tree, QEMU and Debian's kernels
    /// (`scripts/deps vm`)
    #[arg(long)]
    vm: bool,
    /// The same path with CUBIC, BBR (live) and TCP-internal pacing instead of the paper's TCP
    #[arg(long, conflicts_with_all = ["stack", "vm"])]
    today: bool,
    /// TCP stack of the simulator, `linux-2.6.14` or `modern`, with the live run's congestion control
    #[arg(long, value_name = "NAME", requires = "sim")]
    stack: Option<String>,
    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
    /// Folder under which the run's own folder is made
    #[arg(long, value_name = "DIR", default_value = DEFAULT_OUT)]
    out: PathBuf,
    /// Hold the emulator on purpose in the middle of every phase, to see that the checks notice
    #[arg(long, value_name = "TIME", value_parser = stall, conflicts_with = "vm")]
    stall_emulator: Option<Duration>,
    /// With --vm: rates divided and times multiplied by K in the machine, 1 to 100; the result is in the path's rates and times
    #[arg(long, value_name = "K", default_value = "1", requires = "vm")]
    dilation: vm::Dilation,
    /// With --vm: the folder of a run that was interrupted; phases over a path that it has already are not run again
    #[arg(long, value_name = "FOLDER", requires = "vm", conflicts_with = "out")]
    resume: Option<PathBuf>,
    /// Change a key of the experiment (see `kuroshio lab sweep --help`); with --sim or --vm
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = set)]
    sets: Vec<Set>,
    /// Process to end with
    #[arg(long, hide = true)]
    parent: Option<u32>,
}

/// A key of an experiment and its value.
type Set = (String, String);

fn set(text: &str) -> Result<Set, String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() && !value.is_empty() => Ok((key.into(), value.into())),
        _ => Err("want KEY=VALUE".into()),
    }
}

/// Has the kernel end this process with its parent; ends it now when that is gone already.
fn end_with(parent: u32) -> Result<(), Failure> {
    use rustix::process::{Signal, getppid, set_parent_process_death_signal};
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|m| Failure::failed(format!("cannot end with process {parent}: {m}")))?;
    match getppid().map(|pid| pid.as_raw_nonzero().get()) {
        Some(pid) if u32::try_from(pid) == Ok(parent) => Ok(()),
        _ => Err(Failure::failed(format!("process {parent} is not the parent"))),
    }
}

fn stall(text: &str) -> Result<Duration, String> {
    text.parse::<kuroshio_core::units::PicoDuration>()
        .map(|d| d.to_std())
        .map_err(|e| e.to_string())
}

/// Runs the verb.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    match args.what {
        What::List { json } => list(json),
        What::Run(args) => run_one(&args),
        What::Sweep(args) => sweep::run(&args),
        What::Report { out } => report(&out),
    }
}

/// Writes to standard output; a reader that has gone away is no failure of the run.
fn print(text: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{text}");
}

fn list(json: bool) -> Result<ExitCode, Failure> {
    let mut all = Vec::new();
    for name in experiment::names() {
        let e = experiment::load(name).map_err(|e| Failure::failed(e.to_string()))?;
        if json {
            all.push(serde_json::json!({
                "experiment": e.name,
                "title": e.title,
                "source": { "paper": e.source.paper, "figure": e.source.figure, "section": e.source.section },
                "scale": e.scale,
                "modes": e.modes,
                "paper": e.figures,
                "checks": e.checks.iter().map(|c| serde_json::json!({ "name": c.name, "bound": c.bound })).collect::<Vec<_>>(),
            }));
            continue;
        }
        print(&format!(
            "{name}: {} ({}, {}; scale {})",
            e.title, e.source.paper, e.source.figure, e.scale
        ));
        for c in &e.checks {
            print(&format!("    {}: {}", c.name, c.bound));
        }
    }
    for (name, title) in lane::ALL {
        if json {
            all.push(serde_json::json!({ "experiment": name, "title": title, "modes": ["live", "sim"] }));
        } else {
            print(&format!("{name}: {title}"));
        }
    }
    all.extend(rails::list(json));
    let (name, title) = replicate::NAME;
    if json {
        all.push(serde_json::json!({ "experiment": name, "title": title, "modes": ["live", "sim"] }));
    } else {
        print(&format!("{name}: {title} (live, sim)"));
    }
    if json {
        print(&serde_json::to_string_pretty(&all).map_err(|e| Failure::failed(e.to_string()))?);
    }
    Ok(ExitCode::SUCCESS)
}

fn run_one(args: &RunArgs) -> Result<ExitCode, Failure> {
    if let Some(parent) = args.parent {
        end_with(parent)?;
    }
    if lane::ALL.iter().any(|(name, _)| *name == args.name) {
        return run_lanes(args);
    }
    if let Some(about) = kuroshio_lab::rails::about(&args.name) {
        return rails::run(args, about);
    }
    if args.name == replicate::NAME.0 {
        return run_replicate(args);
    }
    let mut e = experiment::load_with(&args.name, &args.sets).map_err(|e| Failure::usage(e.to_string()))?;
    let changed = args
        .sets
        .iter()
        .map(|(key, value)| format!("Changed: {key} = {value}."));
    e.notes.extend(changed);
    let mode = match (args.sim, args.vm) {
        (true, _) => Mode::Sim,
        (_, true) => Mode::Vm,
        _ => Mode::Live,
    };
    if mode == Mode::Live && !args.sets.is_empty() {
        return Err(Failure::usage("lab run: --set is for --sim and --vm"));
    }
    let e = varied(e, args, mode).map_err(|m| Failure::usage(format!("lab run {}: {m}", args.name)))?;
    if !e.modes.contains(&mode) {
        let others: Vec<_> = e.modes.iter().map(|m| m.option()).collect();
        return Err(Failure::usage(format!(
            "lab run {}: runs with {} only",
            e.name,
            others.join(" or ")
        )));
    }
    if let Some(there) = args.resume.as_ref().filter(|there| !there.join("vm").is_dir()) {
        return Err(Failure::usage(format!(
            "lab run --resume {}: not the folder of a run in the machine: it has no folder vm",
            there.display()
        )));
    }
    if args.vm {
        return in_machine(args, &e);
    }
    if args.sim {
        if args.stall_emulator.is_some() {
            return Err(Failure::usage("--stall-emulator: there is no emulator in --sim"));
        }
        let run = sim::run(&e, &mut |line| eprintln!("{line}"))
            .map_err(|m| Failure::failed(format!("lab run {}: {m}", e.name)))?;
        return finish(args, &e, &run);
    }
    if !isolate::is_inside() {
        return isolated();
    }
    let options = Options {
        stall: args.stall_emulator,
    };
    let run = live::run(&e, options, &mut |line| eprintln!("{line}"))
        .map_err(|m| Failure::failed(format!("lab run {}: {m}", e.name)))?;
    finish(args, &e, &run)
}

/// In the virtual machine; what it leaves is kept in the run's folder, under `vm`.
fn in_machine(args: &RunArgs, e: &Experiment) -> Result<ExitCode, Failure> {
    let started_unix_s = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |d| d.as_secs());
    let options = vm::Options {
        work: run_folder(args, e, "vm", started_unix_s).join("vm"),
        started_unix_s,
        dilation: args.dilation,
    };
    let run = vm::run(e, &options, &mut |line| eprintln!("{line}")).map_err(|m| {
        let text = format!("lab run {}: {m}", e.name);
        match m {
            VmError::Missing(_) => Failure::usage(text),
            VmError::Failed(_) => Failure::failed(text),
        }
    })?;
    finish(args, e, &run)
}

/// Runs an experiment on lanes, which are code.
fn run_lanes(args: &RunArgs) -> Result<ExitCode, Failure> {
    let name = &args.name;
    let usage = |m: String| Failure::usage(format!("lab run {name}: {m}"));
    if args.vm || args.today || args.stack.is_some() || args.stall_emulator.is_some() {
        return Err(usage(
            "runs with --live or --sim, without --today, --stack and --stall-emulator".into(),
        ));
    }
    let mut asked = lane::Asked {
        live: !args.sim,
        ..lane::Asked::default()
    };
    for (key, value) in &args.sets {
        asked.set(key, value).map_err(usage)?;
    }
    if asked.live && !isolate::is_inside() {
        return isolated();
    }
    let run = lane::run(name, &asked, &mut |line| eprintln!("{line}"));
    let run = run.ok_or_else(|| usage("no such experiment".into()))?;
    let (result, report) = run.map_err(|m| Failure::failed(format!("lab run {name}: {m}")))?;
    let suffix = if asked.live { "" } else { "-sim" };
    let dir = args.out.join(format!("{name}{suffix}-{}", result.started_unix_s));
    let page = result
        .write(&dir)
        .and_then(|_| report.write(&dir))
        .map_err(|m| Failure::failed(format!("{}: {m}", dir.display())))?;
    tell(args, &result, &page)
}

/// Runs the grid over the emulated Pacific, or its plan in virtual time.
fn run_replicate(args: &RunArgs) -> Result<ExitCode, Failure> {
    let name = &args.name;
    if args.vm || args.today || args.stack.is_some() || args.stall_emulator.is_some() || !args.sets.is_empty()
    {
        return Err(Failure::usage(format!(
            "lab run {name}: runs with --live or --sim, without --set, --today, --stack and --stall-emulator"
        )));
    }
    let (result, size, suffix) = if args.sim {
        (
            replicate::sim::run(replicate::setup::FULL)?,
            replicate::setup::FULL,
            "-sim",
        )
    } else if isolate::is_inside() {
        (replicate::run(&args.out)?, replicate::setup::LIVE, "")
    } else {
        return isolated();
    };
    let dir = args.out.join(format!("{name}{suffix}-{}", result.started_unix_s));
    let page = result
        .write(&dir)
        .and_then(|_| std::fs::write(dir.join(replicate::TOPOLOGY), size.topology()))
        .and_then(|()| kuroshio_lab::page::summary(&result).write(&dir))
        .map_err(|m| Failure::failed(format!("{}: {m}", dir.display())))?;
    tell(args, &result, &page)
}

/// Runs this command again inside the testbed's namespaces.
fn isolated() -> Result<ExitCode, Failure> {
    let list: Vec<_> = std::env::args_os().skip(1).collect();
    let status = isolate::run(&list).map_err(|e| Failure::failed(format!("lab: {e}")))?;
    Ok(ExitCode::from(
        status.code().and_then(|c| u8::try_from(c).ok()).unwrap_or(1),
    ))
}

/// The experiment as it is asked for.
fn varied(e: Experiment, args: &RunArgs, mode: Mode) -> Result<Experiment, String> {
    if args.today {
        return variant::today(&e, mode);
    }
    match &args.stack {
        None => Ok(e),
        Some(stack) => {
            let other = variant::with_stack(&e, stack);
            for p in &other.phases {
                p.sim.stack().map_err(|m| format!("--stack: {m}"))?;
            }
            Ok(other)
        }
    }
}

/// Name of a run's folder.
fn folder(e: &Experiment, mode: &str, started_unix_s: u64) -> String {
    let mut name = e.name.clone();
    if mode != "live" {
        name = format!("{name}-{mode}");
    }
    if !e.variant.is_empty() {
        name = format!("{name}-{}", e.variant);
    }
    format!("{name}-{started_unix_s}")
}

/// Where a run's files go.
fn run_folder(args: &RunArgs, e: &Experiment, mode: &str, started_unix_s: u64) -> PathBuf {
    match &args.resume {
        Some(there) => there.clone(),
        None => args.out.join(folder(e, mode, started_unix_s)),
    }
}

/// Keeps and prints what a run left.
fn finish(args: &RunArgs, e: &Experiment, run: &live::Run) -> Result<ExitCode, Failure> {
    let dir = run_folder(args, e, &run.result.mode, run.result.started_unix_s);
    let page = keep(e, run, &dir).map_err(|m| Failure::failed(format!("{}: {m}", dir.display())))?;
    tell(args, &run.result, &page)
}

/// Prints a result as it is asked for.
fn tell(args: &RunArgs, result: &RunResult, page: &Path) -> Result<ExitCode, Failure> {
    if args.json {
        let text = serde_json::to_string_pretty(result).map_err(|m| Failure::failed(m.to_string()))?;
        print(&text);
    } else {
        show(result, page);
    }
    Ok(ExitCode::from(result.exit_code()))
}

/// Writes everything a run leaves.
fn keep(e: &Experiment, run: &live::Run, dir: &Path) -> std::io::Result<PathBuf> {
    run.result.write(dir)?;
    write_trace(dir, e, &run.traces, TRACE_WINDOW_NS)?;
    page::run_report(e, &run.result, &run.traces, &run.sent).write(dir)
}

fn show(r: &RunResult, page: &Path) {
    print(&format!(
        "{} ({}, scale {}): {}",
        r.experiment, r.mode, r.scale, r.source
    ));
    for c in &r.checks {
        let word = if c.ok { "holds" } else { "FAILS" };
        print(&format!("  {word}  {}: {} [{}]", c.name, c.value, c.bound));
    }
    for c in &r.compared {
        print(&format!(
            "  paper {} {}, ours {:.2} ({}, {})",
            c.name, c.paper, c.ours, c.phase, c.figure
        ));
    }
    for (phase, figures) in &r.measured {
        if let Some(raw) = figures.get("in_the_machine") {
            print(&format!("  in the machine, {phase}: {raw}"));
        }
    }
    for l in &r.instrument.lateness {
        print(&format!(
            "  emulator, {}: lateness p50 {:.1} p99 {:.1} p99.9 {:.1} max {:.1} us over {} frames",
            l.phase,
            l.lateness.p50_ns as f64 / 1e3,
            l.lateness.p99_ns as f64 / 1e3,
            l.lateness.p999_ns as f64 / 1e3,
            l.lateness.max_ns as f64 / 1e3,
            l.frames
        ));
    }
    let c = &r.instrument.calibration;
    if c.gaps_expected == 0 {
        print(&format!("  calibration: {}", c.vector));
        return ending(r, page);
    }
    print(&format!(
        "  calibration: gap error p50 {:.1} p99 {:.1} max {:.1} us over {} of {} gaps",
        c.error.p50_ns as f64 / 1e3,
        c.error.p99_ns as f64 / 1e3,
        c.error.max_ns as f64 / 1e3,
        c.gaps,
        c.gaps_expected
    ));
    ending(r, page);
}

fn ending(r: &RunResult, page: &Path) {
    if r.disturbed {
        print(&format!("  DISTURBED: {}", r.disturbed_by));
    }
    print(&format!("  report: {}", page.display()));
}

fn report(out: &Path) -> Result<ExitCode, Failure> {
    let fail = |m: std::io::Error| Failure::usage(format!("lab report {}: {m}", out.display()));
    let mut dirs: Vec<PathBuf> = std::fs::read_dir(out)
        .map_err(fail)?
        .filter_map(|d| d.ok().map(|d| d.path()))
        .filter(|d| d.join("run.json").is_file())
        .take(MAX_RUNS)
        .collect();
    dirs.sort();
    if dirs.is_empty() {
        return Err(Failure::usage(format!(
            "lab report {}: no run is there; make one with `kuroshio lab run`",
            out.display()
        )));
    }
    let runs = dirs
        .iter()
        .map(|d| overview::read(d))
        .collect::<std::io::Result<Vec<_>>>()
        .map_err(fail)?;
    let page = overview::overview(&runs)
        .and_then(|page| page.write(out))
        .map_err(fail)?;
    print(&page.display().to_string());
    Ok(ExitCode::SUCCESS)
}
