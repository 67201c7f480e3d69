//! `kuroshio lab sweep`: one experiment in virtual time for every combination of values.
//!
//! ```text
//!   --set A=1,2 --set B=x,y   ->  A=1 B=x   A=1 B=y   A=2 B=x   A=2 B=y      each a process of its own:
//!                                 kuroshio lab run NAME --sim --json --set A=1 --set B=x --out DIR/0001
//!   at most N of them at once ->  DIR/sweep.csv, DIR/sweep.json: one row per combination and phase
//! ```
//!
//! Every combination is read and checked before the first one is started. A check that fails is a result
//! of a sweep, not its failure. The processes end with this one, whatever ends it: each asks the kernel to be
//! killed with its parent.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use kuroshio_lab::experiment::{self, Mode};
use kuroshio_lab::result::RunResult;
use kuroshio_testbed::Topology;
use serde_json::{Map, Value, json};

use super::{Set, print};
use crate::error::Failure;

/// Most combinations of one sweep.
const MAX_COMBINATIONS: usize = 1_000;
/// Most processes at once.
const MAX_JOBS: usize = 64;
/// How often ended processes are looked for.
const LOOK: Duration = Duration::from_millis(20);

const EXAMPLE: &str = "\
Example:
  kuroshio lab sweep psp-bic --set link.ocean.queue=256kB,1MB,4MB --set sim.profile=linux-2.6.14,modern
  kuroshio lab sweep pfldnet --set sim.fast_alpha=20,200 --set duration=60s --jobs 2 --json
Keys:
  link.NAME.{capacity|one_way_delay|queue|loss}     port.HOST/PORT.{wire|mtu|queue}
  flow.NAME.{congestion|window|start}               shape.HOST/PORT.rate
  vm.load, duration, seed
  sim.{profile|pace|local_congestion|send_buffer|receive_buffer|frame_memory|cpu_per_frame|reaction|fast_alpha|seeds}
Exit code: 0 every combination was run, 1 one could not be, 2 bad input (nothing is started).";

/// Arguments of `kuroshio lab sweep`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLE)]
pub struct Args {
    /// Name of the experiment (see `kuroshio lab list`)
    name: String,
    /// A key and its values, separated by commas; every combination of all keys is run
    #[arg(long = "set", value_name = "KEY=V1,V2,...", required = true, value_parser = values)]
    sets: Vec<(String, Vec<String>)>,
    /// Processes at once [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=MAX_JOBS as i64))]
    jobs: Option<u16>,
    /// Folder of the table and of every run
    #[arg(long, value_name = "DIR", default_value = "lab-sweep")]
    out: PathBuf,
    /// Print the table as JSON
    #[arg(long)]
    json: bool,
}

fn values(text: &str) -> Result<(String, Vec<String>), String> {
    let (key, list) = text.split_once('=').ok_or("want KEY=V1,V2,...")?;
    let list: Vec<String> = list.split(',').map(str::to_owned).collect();
    match key.is_empty() || list.iter().any(String::is_empty) {
        true => Err("want KEY=V1,V2,... without empty values".into()),
        false => Ok((key.into(), list)),
    }
}

/// Every combination of the values, the last key changing fastest.
fn combinations(sets: &[(String, Vec<String>)]) -> Result<Vec<Vec<Set>>, Failure> {
    let count = sets
        .iter()
        .try_fold(1usize, |n, (_, list)| n.checked_mul(list.len()))
        .filter(|n| *n <= MAX_COMBINATIONS);
    if count.is_none() {
        return Err(Failure::usage(format!(
            "lab sweep: more than {MAX_COMBINATIONS} combinations"
        )));
    }
    let mut all = vec![Vec::new()];
    for (number, (key, list)) in sets.iter().enumerate() {
        if sets.iter().take(number).any(|(other, _)| other == key) {
            return Err(Failure::usage(format!("lab sweep: --set {key} stands twice")));
        }
        let longer = |so_far: &Vec<Set>| -> Vec<Vec<Set>> {
            list.iter()
                .map(|value| {
                    let mut one = so_far.clone();
                    one.push((key.clone(), value.clone()));
                    one
                })
                .collect()
        };
        all = all.iter().flat_map(longer).collect();
    }
    Ok(all)
}

/// Refuses a combination that could not be run.
fn check(name: &str, sets: &[Set]) -> Result<(), Failure> {
    let wrong = |m: String| Failure::usage(format!("lab sweep {name}: {m}"));
    let e = experiment::load_with(name, sets).map_err(|m| wrong(m.to_string()))?;
    if !e.modes.contains(&Mode::Sim) {
        return Err(wrong("does not run in --sim".into()));
    }
    for p in &e.phases {
        Topology::from_toml(&p.topology_toml).map_err(|m| wrong(format!("phase {}: {m}", p.name)))?;
        for name in p.flows.iter().filter_map(|f| f.congestion.as_ref()) {
            let known = name.parse::<kuroshio_core::tcp::cc::Algorithm>();
            known.map_err(|m| wrong(format!("{name:?}: {m}")))?;
        }
    }
    Ok(())
}

/// A combination and its folder.
struct Job {
    sets: Vec<Set>,
    dir: PathBuf,
}

impl Job {
    fn start(&self, name: &str) -> std::io::Result<Child> {
        fs::create_dir_all(&self.dir)?;
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(["lab", "run", name, "--sim", "--json", "--parent"])
            .arg(std::process::id().to_string())
            .arg("--out")
            .arg(&self.dir);
        for (key, value) in &self.sets {
            command.arg("--set").arg(format!("{key}={value}"));
        }
        command
            .stdin(Stdio::null())
            .stdout(File::create(self.dir.join("result.json"))?)
            .stderr(File::create(self.dir.join("log.txt"))?)
            .spawn()
    }

    /// The table's rows, one per phase; why there are none otherwise.
    fn rows(&self) -> Result<Vec<Value>, String> {
        let result = RunResult::read(&self.dir.join("result.json")).map_err(|m| {
            let log = fs::read_to_string(self.dir.join("log.txt")).unwrap_or_default();
            log.lines().last().map_or_else(|| m.to_string(), str::to_owned)
        })?;
        let checks_hold = result.all_hold();
        let row = |(phase, figures): (&String, &Value)| {
            let mut row = Map::new();
            for (key, value) in &self.sets {
                row.insert(key.clone(), json!(value));
            }
            row.insert("phase".into(), json!(phase));
            for figure in FIGURES {
                row.insert(figure.into(), figures.get(figure).cloned().unwrap_or(Value::Null));
            }
            let streams = figures.get("streams").and_then(Value::as_array);
            let resent: u64 = streams
                .into_iter()
                .flatten()
                .filter_map(|s| s.get("retransmitted_segments")?.as_u64())
                .sum();
            row.insert("retransmitted_segments".into(), json!(resent));
            row.insert("checks_hold".into(), json!(checks_hold));
            row.insert("run".into(), json!(self.dir));
            Value::Object(row)
        };
        Ok(result.measured.iter().map(row).collect())
    }
}

/// What the table says of a phase.
const FIGURES: [&str; 5] = [
    "mean_sum_frame_mbps",
    "mean_sum_goodput_mbps",
    "dropped_router_frames",
    "dropped_shaper_frames",
    "dropped_port_frames",
];

/// Runs the verb.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let all = combinations(&args.sets)?;
    for sets in &all {
        check(&args.name, sets)?;
    }
    if args.out.join("sweep.json").exists() {
        return Err(Failure::usage(format!(
            "lab sweep: {} holds a sweep already: give another --out",
            args.out.display()
        )));
    }
    let jobs: Vec<Job> = all
        .into_iter()
        .enumerate()
        .map(|(number, sets)| Job {
            sets,
            dir: args.out.join(format!("{:04}", number + 1)),
        })
        .collect();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let at_once = args.jobs.map_or(cores.min(MAX_JOBS), usize::from);
    work_off(&jobs, &args.name, at_once)?;
    let (mut rows, mut failed) = (Vec::new(), 0);
    for job in &jobs {
        match job.rows() {
            Ok(more) => rows.extend(more),
            Err(problem) => {
                failed += 1;
                eprintln!("kuroshio: {}: {problem}", job.dir.display());
            }
        }
    }
    let table = json!({ "experiment": args.name, "mode": "sim", "combinations": jobs.len(), "failed": failed, "rows": rows });
    let keys: Vec<&str> = args.sets.iter().map(|(key, _)| key.as_str()).collect();
    let csv = csv(&keys, &rows);
    write(&args.out, &table, &csv).map_err(|m| Failure::failed(format!("{}: {m}", args.out.display())))?;
    if args.json {
        print(&serde_json::to_string_pretty(&table).map_err(|m| Failure::failed(m.to_string()))?);
    } else {
        print(csv.trim_end());
        print(&format!("table: {}", args.out.join("sweep.csv").display()));
    }
    Ok(ExitCode::from(u8::from(failed > 0)))
}

/// Runs all of them, at most `at_once` at a time.
fn work_off(jobs: &[Job], name: &str, at_once: usize) -> Result<(), Failure> {
    let failed = |job: &Job, m: std::io::Error| Failure::failed(format!("{}: {m}", job.dir.display()));
    let mut waiting = jobs.iter();
    let mut running: Vec<(&Job, Child)> = Vec::new();
    let mut done = 0;
    loop {
        while running.len() < at_once
            && let Some(job) = waiting.next()
        {
            match job.start(name) {
                Ok(child) => running.push((job, child)),
                Err(m) => {
                    stop(&mut running);
                    return Err(failed(job, m));
                }
            }
        }
        if running.is_empty() {
            return Ok(());
        }
        std::thread::sleep(LOOK);
        let mut still = Vec::new();
        for (job, mut child) in running {
            match child.try_wait() {
                Ok(None) => still.push((job, child)),
                Ok(Some(_)) => {
                    done += 1;
                    let what: Vec<String> = job.sets.iter().map(|(k, v)| format!("{k}={v}")).collect();
                    eprintln!("{done} of {}: {}", jobs.len(), what.join(" "));
                }
                Err(m) => {
                    still.push((job, child));
                    stop(&mut still);
                    return Err(failed(job, m));
                }
            }
        }
        running = still;
    }
}

fn stop(running: &mut Vec<(&Job, Child)>) {
    for (_, child) in running.iter_mut() {
        // It may have ended by itself.
        let _ = child.kill();
        let _ = child.wait();
    }
    running.clear();
}

fn write(out: &Path, table: &Value, csv: &str) -> std::io::Result<()> {
    fs::create_dir_all(out)?;
    fs::write(out.join("sweep.csv"), csv)?;
    let mut file = File::create(out.join("sweep.json"))?;
    serde_json::to_writer_pretty(&mut file, table).map_err(std::io::Error::other)?;
    writeln!(file)
}

/// The rows under their columns: the keys, then what was measured.
fn csv(keys: &[&str], rows: &[Value]) -> String {
    let cell = |value: &Value| match value {
        Value::String(text) if text.contains(['"', ',', '\n']) => {
            format!("\"{}\"", text.replace('"', "\"\""))
        }
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let measured = ["retransmitted_segments", "checks_hold", "run"];
    let columns: Vec<&str> = keys
        .iter()
        .copied()
        .chain(["phase"])
        .chain(FIGURES)
        .chain(measured)
        .collect();
    let mut text = columns.join(",");
    text.push('\n');
    for row in rows {
        let line: Vec<String> = columns
            .iter()
            .map(|c| row.get(c).map(cell).unwrap_or_default())
            .collect();
        text.push_str(&line.join(","));
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{combinations, csv, values};
    use serde_json::json;

    #[test]
    fn every_combination_comes_once() {
        let sets = [values("a=1,2").expect("a"), values("b=x,y,z").expect("b")];
        let all = combinations(&sets).expect("six");
        let text: Vec<String> = all
            .iter()
            .map(|c| c.iter().map(|(k, v)| format!("{k}{v}")).collect())
            .collect();
        assert_eq!(text, ["a1bx", "a1by", "a1bz", "a2bx", "a2by", "a2bz"]);
    }

    #[test]
    fn too_many_twice_and_empty_are_refused() {
        let many: Vec<String> = (0..1_001).map(|n| n.to_string()).collect();
        assert!(combinations(&[("seed".into(), many)]).is_err());
        let twice = [values("a=1").expect("a"), values("a=2").expect("a")];
        assert!(combinations(&twice).is_err());
        for text in ["a", "=1", "a=", "a=1,,2"] {
            assert!(values(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_cell_with_a_comma_is_quoted() {
        let rows = [json!({ "k": "x, \"y\"", "phase": "p", "dropped_router_frames": 7 })];
        let text = csv(&["k"], &rows);
        let mut lines = text.lines();
        assert_eq!(
            lines
                .next()
                .map(|l| l.starts_with("k,phase,mean_sum_frame_mbps,")),
            Some(true)
        );
        assert_eq!(lines.next(), Some("\"x, \"\"y\"\"\",p,,,7,,,,,"));
    }
}
