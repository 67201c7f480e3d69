//! `kuroshio up` and `kuroshio down`: a whole grid in one folder of this machine.
//!
//! ```text
//!   DIR/metad/          metadata service: metad.toml, key, administrator's ticket, catalog, log
//!   DIR/node1/ ...      nodes: node.toml, ticket, key, spool, log
//!   DIR/run/NAME.pid    process number and start time of a service that runs
//!   DIR/run/lock        held by `up` and `down` while they work
//! ```
//!
//! The services are processes of their own, in the background. `up` starts those that do not run, so it is
//! also what heals a grid after a crash. `down` ends them; the data stays.

use std::fs::{self, File, OpenOptions};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use kuroshio_client::{Grid, v1};
use kuroshio_metad::{Config, Metad, Timing};
use kuroshio_node::NodeConfig;
use kuroshio_service::{Endpoint, ServiceError, Ticket, private};

use crate::error::Failure;
use crate::verb::{grid, metad};
use crate::{output, signal};

/// Most nodes of one machine.
const MAX_NODES: u32 = 64;
/// Longest wait for all services to answer.
const START_LIMIT: Duration = Duration::from_secs(30);
/// Longest wait for a service to end by itself.
const STOP_LIMIT: Duration = Duration::from_secs(15);
/// How often a state is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Validity of the tickets of its nodes: ten years, in seconds.
const NODE_VALID_S: u64 = 10 * 365 * 24 * 3600;

const UP_EXAMPLE: &str = "\
Example:
  kuroshio up --dir g --nodes 2          a grid with two nodes, in the background
  kuroshio fs put --ncopy 2 FILE /FILE   a file with two replicas
  kuroshio down --dir g";

/// Arguments of `kuroshio up`.
#[derive(clap::Args)]
#[command(after_help = UP_EXAMPLE)]
pub struct UpArgs {
    /// Folder of the whole grid; it is made if it is not there
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// How many nodes [default: those that are there, else 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MAX_NODES as i64))]
    nodes: Option<u32>,
    /// A node that was down for so long is lost: its replicas are made anew, seconds (a new grid's)
    #[arg(long, value_name = "SECONDS", default_value_t = Timing::default().lost_after_s)]
    lost_after: u64,
    /// Stay, and end the grid on Ctrl-C
    #[arg(long)]
    foreground: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Arguments of `kuroshio down`.
#[derive(clap::Args)]
#[command(after_help = UP_EXAMPLE)]
pub struct DownArgs {
    /// Folder of the grid
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs `kuroshio up`.
pub fn up(args: UpArgs) -> Result<ExitCode, Failure> {
    let dir = absolute(&args.dir)?;
    let lock = lock(&dir)?;
    let have = nodes_there(&dir);
    let wanted = args.nodes.unwrap_or((have.len() as u32).max(1));
    if (have.len() as u32) > wanted {
        return Err(Failure::usage(format!(
            "{} has {} nodes already; --nodes {} or more is valid (`kuroshio fs node drain NAME` empties one)",
            dir.display(),
            have.len(),
            have.len()
        )));
    }
    make_metad(&dir, args.lost_after)?;
    let mut started = Vec::new();
    let result = start_all(&dir, wanted, &mut started);
    let ticket = match result {
        Ok(ticket) => ticket,
        Err(e) => {
            // Nothing that this command has started stays behind.
            for name in &started {
                let _ = end(&dir, name);
            }
            return Err(e);
        }
    };
    let name = Config::load(&grid::metad_dir(&dir))?.name;
    let note = remember(&name, &ticket);
    tell(&args, &dir, &name, &ticket, wanted, note.as_deref())?;
    drop(lock);
    if args.foreground {
        let (stop, stopped) = mpsc::channel::<()>();
        signal::on_stop(move || drop(stop))?;
        let _ = stopped.recv();
        end_all(&dir)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs `kuroshio down`.
pub fn down(args: DownArgs) -> Result<ExitCode, Failure> {
    let dir = absolute(&args.dir)?;
    if !grid::metad_dir(&dir).is_dir() {
        return Err(Failure::usage(format!(
            "{}: there is no grid in this folder",
            dir.display()
        )));
    }
    let _lock = lock(&dir)?;
    let ended = end_all(&dir)?;
    if args.json {
        output::line(&serde_json::json!({ "dir": dir.display().to_string(), "ended": ended }).to_string())?;
    } else if ended.is_empty() {
        output::line("nothing ran")?;
    } else {
        output::line(&format!(
            "ended {}; the data stays in {}",
            ended.join(", "),
            dir.display()
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn absolute(dir: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(dir).map_err(|e| Failure::usage(format!("{}: {e}", dir.display())))
}

/// Holds the grid's folder against another `up` or `down`.
fn lock(dir: &Path) -> Result<File, Failure> {
    let run = dir.join("run");
    private::make_dir(&run)?;
    let path = run.join("lock");
    let failed = |e: std::io::Error| Failure::failed(format!("{}: {e}", path.display()));
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(&path)
        .map_err(failed)?;
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).map_err(|e| failed(e.into()))?;
    Ok(file)
}

/// Numbers of the nodes in a grid's folder.
fn nodes_there(dir: &Path) -> Vec<u32> {
    let there = (1..=MAX_NODES).filter(|n| NodeConfig::path(&dir.join(node_name(*n))).exists());
    there.collect()
}

fn node_name(n: u32) -> String {
    format!("node{n}")
}

fn make_metad(dir: &Path, lost_after_s: u64) -> Result<(), Failure> {
    let metad = grid::metad_dir(dir);
    if Config::path(&metad).exists() {
        return Ok(());
    }
    let config = Config {
        name: metad::name_of(dir),
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        advertise: None,
        database: None,
        timing: Timing {
            lost_after_s,
            ..Timing::default()
        },
        replication: kuroshio_metad::Replication::default(),
        routes: Vec::new(),
    };
    Ok(config.save(&metad)?)
}

/// Starts what does not run; gives the administrator's ticket when all answers.
fn start_all(dir: &Path, nodes: u32, started: &mut Vec<String>) -> Result<Ticket, Failure> {
    let deadline = Instant::now() + START_LIMIT;
    start(dir, "metad", "metad", started)?;
    let (ticket, grid) = loop {
        let kept = Metad::kept_admin_ticket(&grid::metad_dir(dir))?;
        if let Some(ticket) = kept
            && let Ok(grid) = Grid::connect(&ticket)
            && grid.status().is_ok()
        {
            break (ticket, grid);
        }
        wait_or_fail(dir, "metad", deadline)?;
    };
    for n in 1..=nodes {
        let name = node_name(n);
        let folder = dir.join(&name);
        if !NodeConfig::path(&folder).exists() {
            let ticket = grid.issue_ticket(v1::IssueTicketRequest {
                user: name.clone(),
                valid_s: NODE_VALID_S,
                for_node: true,
                ..v1::IssueTicketRequest::default()
            })?;
            let config = NodeConfig::new("", SocketAddr::from(([127, 0, 0, 1], 0)));
            config.save(&folder, &ticket)?;
        }
        start(dir, &name, "stored", started)?;
    }
    for n in 1..=nodes {
        let name = node_name(n);
        loop {
            let known = grid.nodes()?;
            if known.iter().any(|k| k.name == name && k.joined && serves(k)) {
                break;
            }
            wait_or_fail(dir, &name, deadline)?;
        }
    }
    Ok(ticket)
}

/// Whether a node's data service answers for the grid. The metadata service may still believe in a process
/// that was killed a moment ago; a new one answers 503 until it has joined, then asks for a right (401).
fn serves(node: &v1::Node) -> bool {
    let pin = node.pin.parse().ok();
    let endpoint = pin.and_then(|pin| Endpoint::pinned(&node.address, pin, "no.right.yet".into()).ok());
    let asked = endpoint.map(|e| e.dial(None, None)?.get_range("/", 0, 1, &mut |_| Ok(())));
    matches!(asked, Some(Err(ServiceError::Refused { status: 401, .. })))
}

/// Waits a little; fails when the service has ended or the time has.
fn wait_or_fail(dir: &Path, name: &str, deadline: Instant) -> Result<(), Failure> {
    let log = log_path(dir, name);
    if running(dir, name).is_none() {
        let text = fs::read_to_string(&log).unwrap_or_default();
        let last = text.lines().last().unwrap_or("it wrote nothing");
        return Err(Failure::failed(format!(
            "{name} has ended: {last} (log: {})",
            log.display()
        )));
    }
    if Instant::now() > deadline {
        return Err(Failure::failed(format!(
            "{name} does not answer within {} s (log: {})",
            START_LIMIT.as_secs(),
            log.display()
        )));
    }
    std::thread::sleep(LOOK_EVERY);
    Ok(())
}

fn log_path(dir: &Path, name: &str) -> PathBuf {
    dir.join(name).join("log")
}

fn pid_path(dir: &Path, name: &str) -> PathBuf {
    dir.join("run").join(format!("{name}.pid"))
}

/// Starts a service in the background, unless it runs.
fn start(dir: &Path, name: &str, verb: &str, started: &mut Vec<String>) -> Result<(), Failure> {
    if running(dir, name).is_some() {
        return Ok(());
    }
    let failed = |what: &str, e: std::io::Error| Failure::failed(format!("{name}: {what}: {e}"));
    let program = std::env::current_exe().map_err(|e| failed("cannot find this program", e))?;
    let log = log_path(dir, name);
    let open = OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(&log);
    let open = open.map_err(|e| failed("cannot open its log", e))?;
    let twin = open.try_clone().map_err(|e| failed("cannot open its log", e))?;
    let mut command = Command::new(program);
    command.arg(verb).arg("--dir").arg(dir.join(name));
    command.stdin(Stdio::null()).stdout(twin).stderr(open);
    // A group of its own: Ctrl-C in a terminal is not meant for it.
    command.current_dir("/").process_group(0);
    let child = command.spawn().map_err(|e| failed("cannot start", e))?;
    let pid = child.id();
    started.push(name.to_owned());
    let since = start_time(pid).unwrap_or_default();
    private::write(&pid_path(dir, name), format!("{pid} {since}\n").as_bytes())?;
    // Not waited for: it outlives this process. A zombie until then counts as ended.
    drop(child);
    Ok(())
}

/// When a process was started, in ticks since boot (field 22 of proc's stat); `None` if it is not there or
/// has ended and was not waited for.
fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything.
    let rest = stat.rsplit_once(") ")?.1;
    let mut fields = rest.split(' ');
    let state = fields.next()?;
    if state == "Z" || state == "X" {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// The process of a service, if it is the one that was started.
fn running(dir: &Path, name: &str) -> Option<u32> {
    let text = fs::read_to_string(pid_path(dir, name)).ok()?;
    let (pid, since) = text.trim().split_once(' ')?;
    let pid = pid.parse().ok()?;
    let since = since.parse::<u64>().ok()?;
    (start_time(pid)? == since).then_some(pid)
}

/// Ends all services of a grid, nodes first; the names of those that ran.
fn end_all(dir: &Path) -> Result<Vec<String>, Failure> {
    let mut names = nodes_there(dir).into_iter().map(node_name).collect::<Vec<_>>();
    names.push("metad".to_owned());
    let mut ended = Vec::new();
    for name in names {
        if end(dir, &name)? {
            ended.push(name);
        }
    }
    forget(dir);
    Ok(ended)
}

/// Ends one service: SIGTERM, and SIGKILL after [`STOP_LIMIT`]. Says whether it ran.
fn end(dir: &Path, name: &str) -> Result<bool, Failure> {
    use rustix::process::{Pid, Signal, kill_process};
    let Some(pid) = running(dir, name) else {
        let _ = fs::remove_file(pid_path(dir, name));
        return Ok(false);
    };
    let Some(process) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
        return Err(Failure::failed(format!("{name}: {pid} is not a process number")));
    };
    let deadline = Instant::now() + STOP_LIMIT;
    let _ = kill_process(process, Signal::TERM);
    let mut killed = false;
    while running(dir, name).is_some() {
        if Instant::now() > deadline && !killed {
            killed = true;
            let _ = kill_process(process, Signal::KILL);
        } else if Instant::now() > deadline + STOP_LIMIT {
            return Err(Failure::failed(format!("{name} (process {pid}) does not end")));
        }
        std::thread::sleep(LOOK_EVERY);
    }
    let _ = fs::remove_file(pid_path(dir, name));
    Ok(true)
}

/// Keeps the grid among those that this user knows; a note if that was not possible.
fn remember(name: &str, ticket: &Ticket) -> Option<String> {
    let mut store = match grid::store() {
        Ok(store) => store,
        Err(e) => return Some(format!("not kept under a name ({e})")),
    };
    if let Ok(other) = store.get(name) {
        if other == ticket {
            return None;
        }
        if other.pin() != ticket.pin() {
            return Some(format!("not kept under its name: `{name}` is another grid"));
        }
    }
    store
        .add(name, ticket.clone())
        .err()
        .map(|e| format!("not kept under a name ({e})"))
}

/// Forgets the grid's name; a grid of another key stays.
fn forget(dir: &Path) {
    let metad = grid::metad_dir(dir);
    let (Ok(mut store), Ok(config)) = (grid::store(), Config::load(&metad)) else {
        return;
    };
    let ours = Metad::kept_admin_ticket(&metad).ok().flatten();
    let kept = store.get(&config.name).ok().map(Ticket::pin);
    if kept.is_some() && kept == ours.map(|t| t.pin()) {
        let _ = store.remove(&config.name);
    }
}

fn tell(
    args: &UpArgs,
    dir: &Path,
    name: &str,
    ticket: &Ticket,
    nodes: u32,
    note: Option<&str>,
) -> Result<(), Failure> {
    if args.json {
        let pids = |names: &mut dyn Iterator<Item = String>| {
            let found = names.map(|n| (n.clone(), running(dir, &n)));
            found.collect::<std::collections::BTreeMap<_, _>>()
        };
        let mut names = (1..=nodes).map(node_name).chain(["metad".to_owned()]);
        let line = serde_json::json!({
            "name": name, "dir": dir.display().to_string(), "address": ticket.addresses(),
            "pin": ticket.pin().to_string(), "nodes": (1..=nodes).map(node_name).collect::<Vec<_>>(),
            "processes": pids(&mut names), "note": note,
        });
        return output::line(&line.to_string());
    }
    output::line(&format!(
        "grid {name} with {nodes} node{} at {}, pin {}",
        if nodes == 1 { "" } else { "s" },
        ticket.addresses(),
        ticket.pin()
    ))?;
    if let Some(note) = note {
        output::line(note)?;
    }
    let which = if note.is_some() {
        format!(" --grid {}", dir.display())
    } else {
        String::new()
    };
    output::line(&format!("use it:  kuroshio fs{which} put FILE /FILE"))?;
    output::line(&format!("end it:  kuroshio down --dir {}", dir.display()))
}
