//! `kuroshio testbed`: an emulated network that stays up in the background.
//!
//! `meter`, `metrics`, `watch`, `capture` and `tcp` are its instruments, a file each in `testbed/`.
//!
//! `up` starts it and prints how its hosts are entered, `exec` runs a program in one, `set` changes links and
//! ports while it runs, `stats` and `status` look at it, `down` ends it. The socket that all of these
//! speak to, and its lines of JSON, are described in `kuroshio_testbed::control`.

mod capture;
mod meter;
mod metrics;
mod report;
mod tcp;
mod watch;

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kuroshio_testbed::control::{self, Client, ControlError, HostEntry, Place, State};
use kuroshio_testbed::{Topology, TopologyError, isolate};
use serde_json::{Value, json};

use crate::error::Failure;
use crate::output::line;

/// Arguments of `kuroshio testbed`.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// Bring a network up from a topology file and leave it running
    Up {
        /// Topology file
        file: PathBuf,
        /// Another name than the topology's
        #[arg(long)]
        name: Option<String>,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Hold a network (what `up` starts)
    #[command(hide = true)]
    Keep {
        file: PathBuf,
        #[arg(long)]
        name: String,
    },
    /// Take a network down
    Down(Which),
    /// Show a network: hosts, links, how late the emulator is
    Status(Which),
    /// Show every counter of a network
    Stats(Which),
    /// Change a link (NAME or NAME:FROM>TO) or a port (HOST/PORT) while it runs
    Set {
        /// Link or port
        target: String,
        /// Settings, as in the topology file: capacity=100Mbps loss=1e-6 "jitter=normal 1ms"
        #[arg(required = true, value_name = "KEY=VALUE")]
        settings: Vec<String>,
        /// Time of the run at which the change happens; at once without
        #[arg(long, value_name = "TIME")]
        at: Option<String>,
        #[command(flatten)]
        which: Which,
    },
    /// Meter ports, links and streams while it runs
    Meter(meter::Args),
    /// Show links, ports and meters again and again
    Watch(watch::Args),
    /// Print counters and meters for Prometheus, or serve them
    Metrics(metrics::Args),
    /// Write a port's frames to a pcapng file
    Capture(capture::Args),
    /// Sample what TCP says of every connection of a host
    Tcp(tcp::Args),
    /// List the networks that are up
    Ls {
        /// Print one JSON array
        #[arg(long)]
        json: bool,
    },
    /// Search the usable capacity from a host to another: the highest rate without loss or queue growth
    Capacity {
        /// Host that sends
        from: String,
        /// Host that receives
        to: String,
        #[command(flatten)]
        options: super::capacity::Options,
        #[command(flatten)]
        which: Which,
    },
    /// Run a program in a host
    Exec {
        /// Host
        host: String,
        /// Name of the network; not needed when one is up
        #[arg(long)]
        name: Option<String>,
        /// The program and its arguments, behind --
        #[arg(required = true, last = true)]
        command: Vec<OsString>,
    },
}

#[derive(clap::Args)]
struct Which {
    /// Name of the network; not needed when one is up
    #[arg(long)]
    name: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the verb.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    match args.what {
        What::Up { file, name, json } => up(&file, name, json),
        What::Keep { file, name } => keep(&file, &name),
        What::Down(which) => down(&which),
        What::Status(which) => status(&which),
        What::Stats(which) => stats(&which),
        What::Set {
            target,
            settings,
            at,
            which,
        } => set(&target, &settings, at.as_deref(), &which),
        What::Meter(args) => meter::run(args),
        What::Watch(args) => watch::run(&args),
        What::Metrics(args) => metrics::run(&args),
        What::Capture(args) => capture::run(&args),
        What::Tcp(args) => tcp::run(&args),
        What::Ls { json } => ls(json),
        What::Capacity {
            from,
            to,
            options,
            which,
        } => capacity(&from, &to, &options, &which),
        What::Exec { host, name, command } => exec(&host, name.as_deref(), &command),
    }
}

fn failed(e: impl std::fmt::Display) -> Failure {
    Failure::failed(format!("testbed: {e}"))
}

fn asked(e: ControlError) -> Failure {
    match e {
        ControlError::BadInput(text) => Failure::usage(format!("testbed: {text}")),
        other => failed(other),
    }
}

fn place(name: &str) -> Result<Place, Failure> {
    Place::new(name).map_err(|e| match e.kind() {
        std::io::ErrorKind::InvalidInput => Failure::usage(e.to_string()),
        _ => failed(e),
    })
}

fn topology(file: &std::path::Path) -> Result<Topology, Failure> {
    let usage = |e: TopologyError| Failure::usage(format!("{}: {e}", file.display()));
    Topology::from_file(file).map_err(usage)
}

fn up(file: &std::path::Path, name: Option<String>, json: bool) -> Result<ExitCode, Failure> {
    let file = file
        .canonicalize()
        .map_err(|e| Failure::usage(format!("{}: {e}", file.display())))?;
    let topology = topology(&file)?;
    let place = place(name.as_deref().unwrap_or(&topology.name))?;
    let args: [OsString; 5] = [
        "testbed".into(),
        "keep".into(),
        file.into(),
        "--name".into(),
        place.name().into(),
    ];
    let mut client = control::start(&place, &args).map_err(failed)?;
    let status = client.ask(&json!({ "do": "status" })).map_err(asked)?;
    show(&place, &client, &status, json)?;
    Ok(ExitCode::SUCCESS)
}

/// The keeper outside, and the testbed inside of the namespaces that it makes.
fn keep(file: &std::path::Path, name: &str) -> Result<ExitCode, Failure> {
    let place = place(name)?;
    if isolate::is_inside() {
        let topology = topology(file)?;
        control::keep(&topology, &place).map_err(failed)?;
        return Ok(ExitCode::SUCCESS);
    }
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    let status = control::keeper(&place, &args).map_err(failed)?;
    Ok(code(status))
}

fn code(status: std::process::ExitStatus) -> ExitCode {
    let code = status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

/// The networks that are up; what others have left is removed.
fn running() -> Result<Vec<(Place, Client)>, Failure> {
    let mut found = Vec::new();
    for place in Place::all().map_err(failed)? {
        match place.take().map_err(failed)? {
            State::Free(lock) => place.clear(lock).map_err(failed)?,
            // One that is coming up or going down does not listen.
            State::Running => {
                if let Ok(client) = Client::connect(&place) {
                    found.push((place, client));
                }
            }
        }
    }
    Ok(found)
}

/// The network that was named, or the only one.
fn pick(name: Option<&str>) -> Result<(Place, Client), Failure> {
    if let Some(name) = name {
        let place = place(name)?;
        return match place.take().map_err(failed)? {
            State::Free(lock) => {
                place.clear(lock).map_err(failed)?;
                Err(failed(format!("{name:?} is not up")))
            }
            State::Running => {
                let client = Client::connect(&place).map_err(failed)?;
                Ok((place, client))
            }
        };
    }
    let mut found = running()?;
    match (found.pop(), found.len()) {
        (Some(one), 0) => Ok(one),
        (None, _) => Err(failed("none is up: kuroshio testbed up FILE")),
        (Some(last), _) => {
            found.push(last);
            let names: Vec<&str> = found.iter().map(|(place, _)| place.name()).collect();
            Err(Failure::usage(format!(
                "testbed: {} are up: say which with --name",
                names.join(", ")
            )))
        }
    }
}

/// A status with what only the outside knows.
fn described(place: &Place, client: &Client, status: &Value) -> Value {
    let mut status = status.clone();
    let entries = client.hosts(&status);
    status["name"] = json!(place.name());
    status["socket"] = json!(place.socket());
    status["pid"] = json!(client.pid());
    for (host, entry) in status["hosts"].as_array_mut().into_iter().flatten().zip(entries) {
        host["netns"] = json!(entry.netns());
        host["nsenter"] = json!(entry.nsenter());
    }
    status
}

fn show(place: &Place, client: &Client, status: &Value, json: bool) -> Result<(), Failure> {
    let all = described(place, client, status);
    if json {
        return line(&all.to_string());
    }
    line(&format!(
        "testbed {} is up, mode {}",
        place.name(),
        text(&all["mode"])
    ))?;
    line(&format!("  control socket {}", place.socket().display()))?;
    for host in all["hosts"].as_array().into_iter().flatten() {
        let ports = host["ports"].as_array().into_iter().flatten();
        let addresses: Vec<String> = ports
            .flat_map(|p| p["addresses"].as_array().into_iter().flatten())
            .map(text)
            .collect();
        line(&format!("  {}: {}", text(&host["host"]), addresses.join(" ")))?;
        line(&format!("    {} CMD", text(&host["nsenter"])))?;
    }
    Ok(())
}

/// A value as a person reads it.
fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn down(which: &Which) -> Result<ExitCode, Failure> {
    let (place, mut client) = pick(which.name.as_deref())?;
    let report = client.ask(&json!({ "do": "down" })).map_err(asked)?;
    control::wait_free(&place).map_err(failed)?;
    if which.json {
        line(&json!({ "name": place.name(), "report": report }).to_string())?;
    } else {
        line(&format!("testbed {} is down", place.name()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn status(which: &Which) -> Result<ExitCode, Failure> {
    let (place, mut client) = pick(which.name.as_deref())?;
    let status = client.ask(&json!({ "do": "status" })).map_err(asked)?;
    show(&place, &client, &status, which.json)?;
    if !which.json {
        for link in status["links"].as_array().into_iter().flatten() {
            line(&format!(
                "  link {}: {} bit/s, {} ns",
                text(&link["link"]),
                link["capacity_bps"],
                link["one_way_delay_ns"]
            ))?;
        }
        line(&format!("  lateness, ns: {}", status["report"]["lateness_ns"]))?;
        if status["meters"].as_array().is_some_and(|m| !m.is_empty()) {
            line(&format!("  {}", meter::cost_line(&status["meters_cost"])))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn stats(which: &Which) -> Result<ExitCode, Failure> {
    let (_, mut client) = pick(which.name.as_deref())?;
    let stats = client.ask(&json!({ "do": "stats" })).map_err(asked)?;
    if which.json {
        line(&stats.to_string())?;
        return Ok(ExitCode::SUCCESS);
    }
    for link in stats["links"].as_array().into_iter().flatten() {
        let frames = |cause: &str| text(&link[cause]["frames"]);
        line(&format!(
            "{}: in {}, out {}, queue full {}, aqm {}, too big {}, lost {}, copies {}, marked {}, damaged {}, \
             held {}; frames",
            text(&link["link"]),
            frames("arrived"),
            frames("departed"),
            frames("queue_full"),
            frames("aqm_dropped"),
            frames("too_big"),
            frames("lost"),
            frames("duplicated"),
            link["marked"],
            link["corrupted"],
            frames("held"),
        ))?;
    }
    line(&format!(
        "dropped {}, lost by the machine {}; frames",
        stats["dropped_frames"], stats["machine_lost_frames"]
    ))?;
    Ok(ExitCode::SUCCESS)
}

fn set(target: &str, settings: &[String], at: Option<&str>, which: &Which) -> Result<ExitCode, Failure> {
    let mut all = serde_json::Map::new();
    for setting in settings {
        let Some((key, value)) = setting.split_once('=') else {
            return Err(Failure::usage(format!(
                "testbed set: {setting:?}: KEY=VALUE, such as capacity=100Mbps"
            )));
        };
        if all.insert(key.to_owned(), json!(value)).is_some() {
            return Err(Failure::usage(format!("testbed set: {key} is there twice")));
        }
    }
    let (_, mut client) = pick(which.name.as_deref())?;
    let folder = std::env::current_dir().map_err(failed)?;
    let mut request = json!({ "do": "set", "target": target, "settings": all, "folder": folder });
    if let Some(at) = at {
        request["at"] = json!(at);
    }
    let result = client.ask(&request).map_err(asked)?;
    if which.json {
        line(&result.to_string())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn ls(json: bool) -> Result<ExitCode, Failure> {
    let mut all = Vec::new();
    for (place, mut client) in running()? {
        let Ok(status) = client.ask(&json!({ "do": "status" })) else {
            continue;
        };
        if json {
            all.push(described(&place, &client, &status));
        } else {
            let hosts: Vec<String> = client.hosts(&status).into_iter().map(|h| h.name).collect();
            line(&format!("{}: {}", place.name(), hosts.join(" ")))?;
        }
    }
    if json {
        line(&Value::Array(all).to_string())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn capacity(
    from: &str,
    to: &str,
    options: &super::capacity::Options,
    which: &Which,
) -> Result<ExitCode, Failure> {
    let (_, mut client) = pick(which.name.as_deref())?;
    let status = client.ask(&json!({ "do": "status" })).map_err(asked)?;
    let (sender, receiver) = (host_of(&client, &status, from)?, host_of(&client, &status, to)?);
    let Some(address) = super::capacity::address_between(&status, from, to) else {
        return Err(Failure::usage(format!(
            "testbed: {from} and {to} share no subnet"
        )));
    };
    super::capacity::between(&sender, &receiver, address, options, which.json)
}

/// A host of a network that is up.
fn host_of(client: &Client, status: &Value, host: &str) -> Result<HostEntry, Failure> {
    let hosts: Vec<HostEntry> = client.hosts(status);
    let names: Vec<&str> = hosts.iter().map(|h| h.name.as_str()).collect();
    let problem = format!("testbed: no host {host:?}, but {}", names.join(", "));
    let entry = hosts.iter().find(|h| h.name == host).cloned();
    entry.ok_or_else(|| Failure::usage(problem))
}

/// Sets `stop` at a signal, and when the network ends: what watches a host must not keep it.
fn watch_over(host: &HostEntry, stop: &Arc<AtomicBool>) -> Result<(), Failure> {
    let theirs = Arc::clone(stop);
    crate::signal::on_stop(move || theirs.store(true, Ordering::Relaxed))?;
    let theirs = Arc::clone(stop);
    let process = PathBuf::from(format!("/proc/{}", host.pid));
    let wait = move || {
        while process.exists() && !theirs.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(50));
        }
        theirs.store(true, Ordering::Relaxed);
    };
    std::thread::Builder::new()
        .name("network".into())
        .spawn(wait)
        .map(drop)
        .map_err(failed)
}

fn exec(host: &str, name: Option<&str>, words: &[OsString]) -> Result<ExitCode, Failure> {
    let (_, mut client) = pick(name)?;
    let status = client.ask(&json!({ "do": "status" })).map_err(asked)?;
    let entry = host_of(&client, &status, host)?;
    let Some((program, args)) = words.split_first() else {
        return Err(Failure::usage("testbed exec: a program is missing"));
    };
    let mut command = Command::new(program);
    command.args(args);
    control::enter(&entry, &mut command).map_err(failed)?;
    let status = command
        .status()
        .map_err(|e| failed(format!("{}: {e}", program.display())))?;
    Ok(code(status))
}
