//! Computation where the data is: `fs run` plans, an engine that is there starts, `fs view` works at each node.
//!
//! ```text
//!   fs run ──core::replica::schedule──> fragments of each node ──engine──> `fs view` on that node's host
//!                                       local, ssh: processes                │ fragments as files of a folder,
//!                                       slurm: srun --nodelist               │ CMD for each (or once), in it
//!                                       dask: workers=[the node's]           v
//!   output in the order of fragments <──────────── one JSON line each ───────┘
//! ```
//!
//! A fragment is read from the node itself, through its data service on the same host; what no node of the plan holds
//! crosses the network, and is counted.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use clap::ValueEnum;
use kuroshio_client::{Cancel, Part, host_name, v1};
use kuroshio_core::replica::{FragmentId, Input, Node, NodeId, NodeState, Nodes, SiteId, schedule};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::fragments::{file_name, node_here};
use super::{Context, path_of, shown};
use crate::error::Failure;
use crate::output;
use crate::verb::grid::Which;

/// What a worker of Dask does: runs the command line of its node, and gives what it wrote.
const DASK: &str = include_str!("run_dask.py");
/// For choices among equals.
const SEED: u64 = 0;

/// Who starts processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Engine {
    /// Processes on this host, for all nodes
    Local,
    /// ssh to each node's host
    Ssh,
    /// srun --nodelist
    Slurm,
    /// A Dask cluster whose workers are named as the nodes, or run on their hosts
    Dask,
}

/// Arguments of `fs run`.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  kuroshio fs run --per-fragment /words -- wc -w\n  \
                  kuroshio fs run --per-fragment --engine slurm /words -- ./count\n  \
                  kuroshio fs run --per-fragment --engine dask --scheduler tcp://h:8786 /words -- wc -w\n\
                  CMD finds its fragment on standard input and in $KUROSHIO_FRAGMENT_FILE; its working folder has all \
                  fragments of its node that the plan gives it. See `kuroshio fs view --help`.")]
pub struct RunArgs {
    /// Once for each fragment [default: once on each node]
    #[arg(long)]
    per_fragment: bool,
    /// Who starts the processes [default: local if all nodes are on this host, else ssh]
    #[arg(long, value_enum)]
    engine: Option<Engine>,
    /// Address of Dask's scheduler
    #[arg(long, value_name = "ADDRESS", required_if_eq("engine", "dask"))]
    scheduler: Option<String>,
    /// This program on the other hosts [default: local, slurm and dask: the same path; ssh: kuroshio]
    #[arg(long, value_name = "PATH")]
    program: Option<String>,
    /// Python for Dask
    #[arg(long, value_name = "PATH", default_value = "python3")]
    python: String,
    /// Show the plan and the command lines, and run nothing
    #[arg(long)]
    dry_run: bool,
    /// The file
    path: OsString,
    /// The command
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

/// Arguments of `fs view`.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  kuroshio fs view --per-fragment /words -- wc -w      the fragments on this host's node\n\
                  CMD has in its environment KUROSHIO_PATH, KUROSHIO_NODE, KUROSHIO_FRAGMENTS (how many the file has), \
                  KUROSHIO_LOCAL_FRAGMENTS (their numbers here), and with --per-fragment KUROSHIO_FRAGMENT and \
                  KUROSHIO_FRAGMENT_FILE. With --json each run is one line: exit code, output, bytes read here and elsewhere."
)]
pub struct ViewArgs {
    /// Once for each fragment [default: once]
    #[arg(long)]
    per_fragment: bool,
    /// The node whose fragments are meant [default: one on this host]
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
    /// These fragments, by number [default: all that the node holds]
    #[arg(long, value_name = "N,N", value_delimiter = ',')]
    fragments: Vec<u32>,
    /// Folder for the fragments' files [default: a new one that goes at the end]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// The file
    path: OsString,
    /// The command
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

/// What one run of the command did.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Ran {
    /// None: once for the node.
    fragment: Option<u32>,
    node: String,
    exit_code: i32,
    stdout: String,
    /// Payload bytes of input read from the node itself, and from others.
    local_bytes: u64,
    remote_bytes: u64,
}

/// A node's part of the work.
struct Task {
    node: String,
    host: String,
    fragments: Vec<u32>,
    argv: Vec<String>,
}

// ---- here ------------------------------------------------------------------------------------------------

/// A folder that goes with its owner, if it was made for it.
struct Folder {
    path: PathBuf,
    ours: bool,
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.ours {
            // What cannot be removed is in the system's folder for temporary files.
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

fn folder(dir: Option<&Path>) -> Result<Folder, Failure> {
    let failed = |path: &Path, e: std::io::Error| Failure::failed(format!("{}: {e}", path.display()));
    if let Some(dir) = dir {
        std::fs::create_dir_all(dir).map_err(|e| failed(dir, e))?;
        let path = std::path::absolute(dir).map_err(|e| failed(dir, e))?;
        return Ok(Folder { path, ours: false });
    }
    let mut n = 0;
    loop {
        let path = std::env::temp_dir().join(format!("kuroshio-view-{}-{n}", std::process::id()));
        match std::fs::create_dir(&path) {
            Ok(()) => return Ok(Folder { path, ours: true }),
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => n += 1,
            Err(e) => return Err(failed(&path, e)),
        }
    }
}

/// Runs `fs view`.
pub fn view(cx: &Context, args: &ViewArgs) -> Result<ExitCode, Failure> {
    let path = path_of(&args.path)?;
    let node = node_here(&cx.grid.nodes()?, args.node.as_deref())?;
    let found = cx.grid.locate(&path)?;
    let count = found.fragments.len();
    let wanted = |f: &&v1::Fragment| {
        if args.fragments.is_empty() {
            f.places
                .iter()
                .any(|p| p.node == node && p.up && p.state == "valid")
        } else {
            args.fragments.contains(&f.index)
        }
    };
    if let Some(n) = args.fragments.iter().find(|n| **n as usize >= count) {
        return Err(Failure::usage(format!(
            "{}: no fragment {n}; it has {count}, from 0",
            shown(&path)
        )));
    }
    let mine: Vec<u32> = found.fragments.iter().filter(wanted).map(|f| f.index).collect();
    let dir = folder(args.dir.as_deref())?;
    let inputs = fetch(cx, &path, &mine, count, &node, &dir.path)?;
    let numbers = mine.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
    let mut command = Command::new(args.command.first().map_or("", String::as_str));
    command.args(args.command.iter().skip(1)).current_dir(&dir.path);
    command.env("KUROSHIO_PATH", std::ffi::OsStr::from_bytes(&path));
    command
        .env("KUROSHIO_NODE", &node)
        .env("KUROSHIO_FRAGMENTS", count.to_string());
    command.env("KUROSHIO_LOCAL_FRAGMENTS", numbers);
    let bytes = |local: bool| inputs.iter().filter(|i| i.3 == local).map(|i| i.2).sum::<u64>();
    let mut worst = 0;
    if args.per_fragment {
        for (index, file, size, is_local) in &inputs {
            command
                .env("KUROSHIO_FRAGMENT", index.to_string())
                .env("KUROSHIO_FRAGMENT_FILE", file);
            let open = std::fs::File::open(file);
            let open = open.map_err(|e| Failure::failed(format!("{}: {e}", file.display())))?;
            let ran = Ran {
                fragment: Some(*index),
                local_bytes: if *is_local { *size } else { 0 },
                remote_bytes: if *is_local { 0 } else { *size },
                ..once(&mut command, Stdio::from(open), &node)?
            };
            worst = worst.max(ran.exit_code.abs());
            tell(cx, &ran)?;
        }
    } else {
        let ran = Ran {
            local_bytes: bytes(true),
            remote_bytes: bytes(false),
            ..once(&mut command, Stdio::null(), &node)?
        };
        worst = ran.exit_code.abs();
        tell(cx, &ran)?;
    }
    Ok(if worst == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// A fragment's number, its file here, its size, and whether its node gave it.
type Fetched = (u32, PathBuf, u64, bool);

/// Gets fragments as files of a folder, from `node` if it has them.
fn fetch(
    cx: &Context,
    path: &[u8],
    mine: &[u32],
    count: usize,
    node: &str,
    dir: &Path,
) -> Result<Vec<Fetched>, Failure> {
    let mut inputs = Vec::new();
    for index in mine {
        let file = dir.join(file_name(*index, count));
        let got = cx.grid.get_part(
            path,
            Part::Fragment(*index),
            Some(node),
            &file,
            &Cancel::default(),
        )?;
        let is_local = got.nodes.iter().all(|n| n == node);
        inputs.push((*index, file, got.bytes, is_local));
    }
    Ok(inputs)
}

fn once(command: &mut Command, input: Stdio, node: &str) -> Result<Ran, Failure> {
    let ran = command.stdin(input).stderr(Stdio::inherit()).output();
    let shown = command.get_program().to_string_lossy().into_owned();
    let ran = ran.map_err(|e| Failure::failed(format!("{shown}: {e}")))?;
    Ok(Ran {
        fragment: None,
        node: node.to_owned(),
        // A signal has no code.
        exit_code: ran.status.code().unwrap_or(128),
        stdout: String::from_utf8_lossy(&ran.stdout).into_owned(),
        local_bytes: 0,
        remote_bytes: 0,
    })
}

fn tell(cx: &Context, ran: &Ran) -> Result<(), Failure> {
    if cx.json {
        return output::line(&json!(ran).to_string());
    }
    let mut out = std::io::stdout().lock();
    let written = out.write_all(ran.stdout.as_bytes()).and_then(|()| out.flush());
    written.map_err(|e| Failure::failed(format!("standard output: {e}")))
}

// ---- everywhere ------------------------------------------------------------------------------------------

/// Runs `fs run`.
pub fn run(cx: &Context, which: &Which, args: &RunArgs) -> Result<ExitCode, Failure> {
    let path = path_of(&args.path)?;
    let nodes = cx.grid.nodes()?;
    let found = cx.grid.locate(&path)?;
    let mut tasks = plan(&nodes, &found)?;
    let engine = args.engine.unwrap_or_else(|| {
        let here = host_name();
        if tasks.iter().all(|t| t.host == here) {
            Engine::Local
        } else {
            Engine::Ssh
        }
    });
    for task in &mut tasks {
        task.argv = command_line(which, args, engine, task)?;
    }
    if args.dry_run {
        return show(cx, engine, &tasks);
    }
    let ran = if engine == Engine::Dask {
        dask(args, &tasks)?
    } else {
        start_all(&tasks)?
    };
    finish(
        cx,
        engine,
        args.per_fragment.then_some(found.fragments.len()),
        ran,
    )
}

/// Which node works at which fragments.
fn plan(nodes: &[v1::Node], found: &v1::ReadGrant) -> Result<Vec<Task>, Failure> {
    let id = |n: usize| NodeId(u32::try_from(n).unwrap_or(u32::MAX));
    let up = nodes
        .iter()
        .enumerate()
        .filter(|(_, n)| n.joined && n.state != "lost");
    let known: Nodes = up
        .map(|(n, node)| {
            let node = Node {
                id: id(n),
                site: SiteId(0),
                state: NodeState::Up,
                capacity_bytes: node.capacity_bytes,
                free_bytes: node.free_bytes,
                load_permille: u16::try_from(node.load_milli.min(1000)).unwrap_or(1000),
            };
            (node.id, node)
        })
        .collect();
    let inputs = found.fragments.iter().map(|f| {
        let holders = f.places.iter().filter(|p| p.up && p.state == "valid");
        let holders = holders
            .filter_map(|p| nodes.iter().position(|n| n.name == p.node))
            .map(id);
        Input {
            fragment: FragmentId {
                fragment: f.index,
                ..FragmentId::default()
            },
            size_bytes: f.size_bytes,
            holders: holders.collect(),
        }
    });
    let slots: BTreeMap<NodeId, u32> = known.keys().map(|n| (*n, 1)).collect();
    let schedule = schedule(&inputs.collect::<Vec<_>>(), &slots, &known, SEED);
    if schedule.assigned.is_empty() {
        return Err(Failure::failed(
            "the file is empty, or no node is up: there is nothing to run on",
        ));
    }
    let mut tasks: BTreeMap<NodeId, Task> = BTreeMap::new();
    for assigned in schedule.assigned {
        let Some(node) = nodes.get(assigned.node.0 as usize) else {
            continue;
        };
        let task = tasks.entry(assigned.node).or_insert_with(|| Task {
            node: node.name.clone(),
            host: node.host.clone(),
            fragments: Vec::new(),
            argv: Vec::new(),
        });
        task.fragments.push(assigned.fragment.fragment);
    }
    Ok(tasks.into_values().collect())
}

/// What starts `fs view` for a node.
fn command_line(which: &Which, args: &RunArgs, engine: Engine, task: &Task) -> Result<Vec<String>, Failure> {
    let this =
        std::env::current_exe().map_err(|e| Failure::failed(format!("cannot find this program: {e}")))?;
    let program = match (&args.program, engine) {
        (Some(program), _) => program.clone(),
        (None, Engine::Ssh) => "kuroshio".to_owned(),
        (None, _) => this.display().to_string(),
    };
    let mut view = vec![program, "fs".to_owned()];
    if let Some(grid) = &which.grid {
        // A folder is the same one wherever the process is started.
        let folder = Path::new(grid);
        let absolute = folder
            .is_dir()
            .then(|| std::path::absolute(folder).ok())
            .flatten();
        let grid = absolute.map_or_else(|| grid.clone(), |p| p.display().to_string());
        view.extend(["--grid".to_owned(), grid]);
    }
    let numbers = task
        .fragments
        .iter()
        .map(u32::to_string)
        .collect::<Vec<_>>()
        .join(",");
    view.extend(["--json", "view", "--node", &task.node, "--fragments", &numbers].map(str::to_owned));
    if args.per_fragment {
        view.push("--per-fragment".to_owned());
    }
    view.push(args.path.to_string_lossy().into_owned());
    view.push("--".to_owned());
    view.extend(args.command.iter().cloned());
    let before: Vec<String> = match engine {
        Engine::Local | Engine::Dask => Vec::new(),
        Engine::Slurm => {
            let list = format!("--nodelist={}", slurm_name(task));
            ["srun", "--quiet", "-N1", "-n1", &list]
                .map(str::to_owned)
                .to_vec()
        }
        Engine::Ssh => {
            let line = view.iter().map(|a| quoted(a)).collect::<Vec<_>>().join(" ");
            return Ok(["ssh", "-o", "BatchMode=yes", &task.host, &line]
                .map(str::to_owned)
                .to_vec());
        }
    };
    Ok(before.into_iter().chain(view).collect())
}

/// What Slurm calls a node: by its name in the grid if Slurm knows that, else by its host's.
fn slurm_name(task: &Task) -> &str {
    let asked = Command::new("sinfo")
        .args(["-h", "-N", "-o", "%N"])
        .stdin(Stdio::null())
        .output();
    let known = asked
        .map(|o| String::from_utf8_lossy(&o.stdout).into_owned())
        .unwrap_or_default();
    let is_known = |name: &str| known.lines().any(|l| l.trim() == name);
    let short = task.host.split('.').next().unwrap_or_default();
    let names = [task.node.as_str(), task.host.as_str(), short];
    names.into_iter().find(|n| is_known(n)).unwrap_or(&task.host)
}

/// For a shell at the other end.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

fn show(cx: &Context, engine: Engine, tasks: &[Task]) -> Result<ExitCode, Failure> {
    let value =
        |t: &Task| json!({ "node": t.node, "host": t.host, "fragments": t.fragments, "argv": t.argv });
    let engine = format!("{engine:?}").to_lowercase();
    if !cx.print_json(&json!({ "engine": engine, "tasks": tasks.iter().map(value).collect::<Vec<_>>() }))? {
        for t in tasks {
            output::line(&format!("{}: {}", t.node, t.argv.join(" ")))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// One process for each node, all at once.
fn start_all(tasks: &[Task]) -> Result<Vec<Ran>, Failure> {
    let results = std::thread::scope(|scope| {
        let each: Vec<_> = tasks.iter().map(|t| scope.spawn(|| start(t))).collect();
        let joined = each.into_iter().map(|t| t.join());
        joined
            .map(|r| r.unwrap_or_else(|_| Err(Failure::failed("a thread has failed"))))
            .collect::<Vec<_>>()
    });
    let mut ran = Vec::new();
    for result in results {
        ran.append(&mut result?);
    }
    Ok(ran)
}

fn start(task: &Task) -> Result<Vec<Ran>, Failure> {
    let failed = |e: std::io::Error| Failure::failed(format!("{}: {}: {e}", task.node, task.argv.join(" ")));
    let mut command = Command::new(task.argv.first().map_or("", String::as_str));
    command
        .args(task.argv.iter().skip(1))
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut child = command.spawn().map_err(failed)?;
    let lines = child
        .stdout
        .take()
        .map(|out| BufReader::new(out).lines().collect::<Result<Vec<_>, _>>());
    let status = child.wait().map_err(failed)?;
    let ran = parse(
        &task.node,
        lines.transpose().map_err(failed)?.unwrap_or_default().iter(),
    )?;
    if ran.is_empty() {
        return Err(Failure::failed(format!(
            "{}: nothing was run ({status})",
            task.node
        )));
    }
    Ok(ran)
}

fn parse<'a>(node: &str, lines: impl Iterator<Item = &'a String>) -> Result<Vec<Ran>, Failure> {
    let each = lines.map(|l| serde_json::from_str::<Ran>(l));
    let all = each.collect::<Result<Vec<_>, _>>();
    all.map_err(|e| Failure::failed(format!("{node}: its output is not as agreed ({e})")))
}

/// Gives the whole plan to a script, which gives each part to the worker of its node.
fn dask(args: &RunArgs, tasks: &[Task]) -> Result<Vec<Ran>, Failure> {
    let failed = |e: std::io::Error| Failure::failed(format!("{}: {e}", args.python));
    let scheduler = args.scheduler.as_deref().unwrap_or_default();
    let mut child = Command::new(&args.python)
        .args(["-c", DASK, scheduler])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let value = |t: &Task| json!({ "node": t.node, "host": t.host, "argv": t.argv });
    let plan = json!(tasks.iter().map(value).collect::<Vec<_>>()).to_string();
    if let Some(mut stdin) = child.stdin.take() {
        // A script that ends early says why by its exit code.
        let _ = stdin.write_all(plan.as_bytes());
    }
    let done = child.wait_with_output().map_err(failed)?;
    if !done.status.success() {
        return Err(Failure::failed(format!(
            "the Dask client failed ({})",
            done.status
        )));
    }
    let lines: Vec<String> = String::from_utf8_lossy(&done.stdout)
        .lines()
        .map(str::to_owned)
        .collect();
    parse("dask", lines.iter())
}

/// Shows what was written, in the order of fragments. `expected`: so many runs, if it was once for each fragment.
fn finish(
    cx: &Context,
    engine: Engine,
    expected: Option<usize>,
    mut ran: Vec<Ran>,
) -> Result<ExitCode, Failure> {
    ran.sort_by(|a, b| (a.fragment, &a.node).cmp(&(b.fragment, &b.node)));
    let sum = |of: fn(&Ran) -> u64| ran.iter().map(of).sum::<u64>();
    let (local, remote) = (sum(|r| r.local_bytes), sum(|r| r.remote_bytes));
    let failed = ran.iter().filter(|r| r.exit_code != 0).count();
    if cx.json {
        let value = json!({
            "engine": format!("{engine:?}").to_lowercase(), "runs": ran, "failed": failed, "local_bytes": local,
            "remote_bytes": remote,
        });
        output::line(&value.to_string())?;
    } else {
        for r in &ran {
            tell(cx, r)?;
        }
        eprintln!(
            "{} runs, {failed} failed; {local} bytes of input were local, {remote} came from other nodes",
            ran.len()
        );
    }
    if let Some(expected) = expected.filter(|n| *n != ran.len()) {
        return Err(Failure::failed(format!(
            "{} of {expected} fragments were worked at",
            ran.len()
        )));
    }
    Ok(if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_back_what_was_quoted() {
        for text in ["plain", "two words", "it's", "$HOME `x` \"y\" \\", ""] {
            let ran = Command::new("sh")
                .args(["-c", &format!("printf %s {}", quoted(text))])
                .output()
                .expect("sh");
            assert_eq!(String::from_utf8_lossy(&ran.stdout), text);
        }
    }

    #[test]
    fn work_goes_to_those_who_hold_it() {
        let node = |name: &str| v1::Node {
            name: name.into(),
            host: format!("{name}.host"),
            state: "up".into(),
            joined: true,
            ..v1::Node::default()
        };
        let fragment = |index, holders: &[&str]| v1::Fragment {
            index,
            size_bytes: 100,
            places: holders
                .iter()
                .map(|n| v1::Place {
                    node: (*n).into(),
                    up: true,
                    state: "valid".into(),
                    ..v1::Place::default()
                })
                .collect(),
            ..v1::Fragment::default()
        };
        let found = v1::ReadGrant {
            fragments: vec![
                fragment(0, &["b"]),
                fragment(1, &["a"]),
                fragment(2, &["a", "b", "gone"]),
            ],
            ..v1::ReadGrant::default()
        };
        let tasks = plan(&[node("a"), node("b"), node("c")], &found).expect("planned");
        let text = tasks
            .iter()
            .map(|t| format!("{}:{:?}", t.node, t.fragments))
            .collect::<Vec<_>>()
            .join(" ");
        assert!(
            ["a:[1] b:[0, 2]", "a:[1, 2] b:[0]"].contains(&text.as_str()),
            "{text}"
        );
        assert!(plan(&[], &found).is_err());
    }
}
