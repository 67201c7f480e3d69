//! `gfarm-replicate`: a grid of eleven services over the emulated Pacific, replicated by `fs rep`.
//!
//! The network is in `setup`; here it is made and the services run in it, on the wall clock and at 1/20: two cores run the
//! emulator, eleven services and TLS at both ends of every stream. `sim` runs the plan and its streams in virtual time
//! at full size.

pub mod setup;
pub mod sim;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use kuroshio_lab::result::RunResult;
use kuroshio_node::NodeConfig;
use kuroshio_service::Ticket;
use kuroshio_testbed::{Captured, Counters, Direction, Testbed, Topology, isolate};
use serde_json::{Value, json};

use self::setup::{Counts, FILES, LIVE, PORT, ROUTES, Run, address, pairs};
use crate::error::Failure;
use crate::verb::demo::share::Stamp;

pub use self::setup::NAME;

/// Longest wait for a state.
const LIMIT: Duration = Duration::from_secs(300);
/// The topology file that a run leaves in its folder: other programs can be measured in the same network.
pub const TOPOLOGY: &str = "topology.toml";

fn failed(e: impl std::fmt::Display) -> Failure {
    Failure::failed(e.to_string())
}

/// A process that is ended when this goes.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A folder that is removed when this goes.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The emulated network with the grid in it.
struct World<'a> {
    net: &'a Testbed,
    dir: &'a Path,
    program: PathBuf,
}

impl World<'_> {
    fn command(&self, host: &str) -> Result<Command, Failure> {
        let mut command = self.net.command(host, &self.program).map_err(failed)?;
        command.env("XDG_CONFIG_HOME", self.dir.join("config"));
        Ok(command)
    }

    /// Runs one of our commands to its end; what it printed.
    fn run(&self, host: &str, args: &[&str]) -> Result<String, Failure> {
        let grid = self.dir.join("grid").display().to_string();
        let out = self
            .command(host)?
            .args(["fs", "--grid", &grid])
            .args(args)
            .output()
            .map_err(failed)?;
        if out.status.success() {
            return Ok(String::from_utf8_lossy(&out.stdout).into_owned());
        }
        let why = String::from_utf8_lossy(&out.stderr).trim().to_owned();
        Err(failed(format!("kuroshio fs {}: {why}", args.join(" "))))
    }

    /// Starts a service.
    fn serve(&self, host: &str, verb: &str, folder: &Path) -> Result<Running, Failure> {
        let log = self.dir.join(format!("{host}.log"));
        let log = std::fs::File::create(&log).map_err(|e| failed(format!("{}: {e}", log.display())))?;
        let mut command = self.command(host)?;
        command
            .arg(verb)
            .arg("--dir")
            .arg(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        Ok(Running(command.spawn().map_err(failed)?))
    }

    fn wait(&self, what: &str, mut reached: impl FnMut() -> Result<bool, Failure>) -> Result<(), Failure> {
        let deadline = Instant::now() + LIMIT;
        while !reached()? {
            if Instant::now() > deadline {
                return Err(failed(format!(
                    "{what}: not within {} s; see {}",
                    LIMIT.as_secs(),
                    self.dir.display()
                )));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    fn start_metad(&self) -> Result<Running, Failure> {
        let dir = self.dir.join("grid/metad");
        LIVE.config().save(&dir)?;
        let running = self.serve("meta", "metad", &dir)?;
        self.wait("the metadata service", || {
            Ok(self.run("meta", &["status"]).is_ok())
        })?;
        Ok(running)
    }

    fn start_node(
        &self,
        side: &str,
        number: u8,
        (r, p, name): (usize, usize, &str),
    ) -> Result<Running, Failure> {
        let host = format!("{side}-{name}");
        let ticket: Ticket = self
            .run("meta", &["ticket", "--node", &host])?
            .trim()
            .parse()
            .map_err(failed)?;
        let dir = self.dir.join("nodes").join(&host);
        let listen = format!("{}:{PORT}", address(number, r, p))
            .parse()
            .map_err(failed)?;
        let site = format!("{side}-{}", ROUTES[r].0);
        let config = NodeConfig {
            congestion: Some("cubic".into()),
            ..NodeConfig::new(&site, listen)
        };
        config.save(&dir, &ticket)?;
        self.serve(&host, "stored", &dir)
    }

    fn wait_for_nodes(&self, count: usize) -> Result<(), Failure> {
        self.wait("the nodes", || {
            let text = self.run("meta", &["--json", "node", "ls"])?;
            let value: Value = serde_json::from_str(&text).map_err(failed)?;
            let up = value["nodes"]
                .as_array()
                .map_or(0, |all| all.iter().filter(|n| n["state"] == "up").count());
            Ok(up >= count)
        })
    }

    /// Puts every node's files on it.
    fn put_files(&self) -> Result<u64, Failure> {
        let mut bytes = 0;
        let local = self.dir.join("content");
        for (r, _, name) in pairs() {
            self.run("meta", &["mkdir", &format!("/{name}")])?;
            for n in 0..FILES {
                write_content(&local, LIVE.file_bytes(r), (bytes + n).wrapping_add(1))?;
                bytes += LIVE.file_bytes(r);
                let host = format!("us-{name}");
                let (from, to) = (local.display().to_string(), format!("/{name}/f{n}"));
                self.run(
                    &host,
                    &["put", "-q", "--fragment", "0/1", "--node", &host, &from, &to],
                )?;
            }
        }
        std::fs::remove_file(&local).map_err(failed)?;
        Ok(bytes)
    }

    /// One `fs rep` for each pair, at once.
    fn replicate(&self) -> Result<(), Failure> {
        let results: Vec<Result<String, Failure>> = std::thread::scope(|scope| {
            let each: Vec<_> = pairs()
                .map(|(_, _, name)| {
                    scope.spawn(move || {
                        self.run(
                            "meta",
                            &[
                                "--json",
                                "rep",
                                "-q",
                                "-D",
                                &format!("jp-{name}"),
                                &format!("/{name}"),
                            ],
                        )
                    })
                })
                .collect();
            let joined = each.into_iter().map(|t| t.join());
            joined
                .map(|r| r.unwrap_or_else(|_| Err(failed("a thread has failed"))))
                .collect()
        });
        results.into_iter().try_for_each(|r| r.map(drop))
    }

    /// Files with a valid replica on both sides.
    fn replicated(&self) -> Result<u64, Failure> {
        let mut whole = 0;
        for (_, _, name) in pairs() {
            for n in 0..FILES {
                let text = self.run("meta", &["--json", "where", &format!("/{name}/f{n}")])?;
                let value: Value = serde_json::from_str(&text).map_err(failed)?;
                whole += u64::from(value["valid_copies"] == 2);
            }
        }
        Ok(whole)
    }
}

/// Bytes that nothing can make smaller, different for each seed.
fn write_content(path: &Path, bytes: u64, seed: u64) -> Result<(), Failure> {
    let mut out = blake3::Hasher::new_derive_key("kuroshio lab gfarm-replicate")
        .update(&seed.to_le_bytes())
        .finalize_xof();
    let file = std::fs::File::create(path).map_err(failed)?;
    std::io::copy(&mut std::io::Read::take(&mut out, bytes), &mut &file).map_err(failed)?;
    Ok(())
}

/// Runs the experiment, inside the testbed's namespaces.
pub fn run(out: &Path) -> Result<RunResult, Failure> {
    let started_unix_s = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |d| d.as_secs());
    let work = std::env::temp_dir().join(format!("kuroshio-gfarm-replicate-{}", std::process::id()));
    std::fs::create_dir_all(work.join("config")).map_err(failed)?;
    let scratch = Scratch(work);
    let topology = Topology::from_toml(&LIVE.topology()).map_err(failed)?;
    let net = Testbed::up(&topology).map_err(failed)?;
    let world = World {
        net: &net,
        dir: &scratch.0,
        program: std::env::current_exe().map_err(failed)?,
    };
    let mut services = vec![world.start_metad()?];
    let count = pairs().count();
    for pair in pairs() {
        services.push(world.start_node("us", 1, pair)?);
    }
    world.wait_for_nodes(count)?;
    eprintln!("files ...");
    let bytes = world.put_files()?;
    for pair in pairs() {
        services.push(world.start_node("jp", 2, pair)?);
    }
    world.wait_for_nodes(2 * count)?;
    let names: Vec<String> = pairs().map(|(_, _, name)| format!("jp-{name}/wan")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    kuroshio_clock::wait_for_quiet(
        isolate::emulator_core(),
        Duration::from_secs(2),
        Duration::from_secs(10),
    )
    .map_err(failed)?;
    let capture = net.capture(&names).map_err(failed)?;
    net.begin().map_err(failed)?;
    eprintln!(
        "{} files, {:.0} MB over {:.0} Mbps ...",
        count as u64 * FILES,
        bytes as f64 / 1e6,
        LIVE.sum_bps() as f64 / 1e6
    );
    let begun = Instant::now();
    world.replicate()?;
    let seconds = begun.elapsed().as_secs_f64();
    let captured = capture.stop().map_err(failed)?;
    let counters = net.counters().map_err(failed)?;
    let whole = world.replicated()?;
    drop(services);
    let report = net.down().map_err(failed)?;
    let (all, mut routes) = LIVE.shares(&stamps(&captured))?;
    queues(&mut routes, &counters);
    let measured = json!({
        "frame_bps": all.rate_bps, "share_of_capacity": all.of_capacity, "routes": routes,
        "dropped_frames": counters.dropped_frames(), "machine_lost_frames": counters.machine_lost(),
        "capture_missed_frames": captured.missed, "payload_bytes": bytes, "seconds": seconds,
        "goodput_bps": (bytes as f64 * 8.0 / seconds) as u64, "files": count as u64 * FILES, "files_replicated": whole,
        "lateness_p50_ns": report.lateness.p50_ns, "lateness_p99_ns": report.lateness.p99_ns,
        "lateness_max_ns": report.lateness.max_ns, "out": out.display().to_string(),
    });
    Ok(LIVE.result(Run {
        mode: "live",
        started_unix_s,
        disturbed_by: report.disturbed.unwrap_or_default(),
        tcp: "CUBIC of this kernel",
        measured,
        counts: Counts {
            of_capacity: all.of_capacity,
            dropped: counters.dropped_frames(),
            whole,
        },
        further: Vec::new(),
        notes: vec![
            "The control plane has a network of its own without delay; every byte of content crosses the routes.".into(),
            "Rates are at frame level by stamps of the receiving hosts' kernel.".into(),
        ],
    }))
}

/// The frames that came to Japan, by route.
fn stamps(captured: &Captured) -> Vec<Vec<Stamp>> {
    let mut by_route = vec![Vec::new(); ROUTES.len()];
    let route_of: Vec<usize> = pairs().map(|(r, ..)| r).collect();
    for r in captured.records.iter().filter(|r| r.direction == Direction::In) {
        let Some(route) = route_of.get(usize::from(r.port)) else {
            continue;
        };
        by_route[*route].push(Stamp {
            at_ns: r.t_ns,
            frame_bytes: u64::from(r.frame_len),
        });
    }
    by_route
}

/// How full each route's queue was, and what it refused.
fn queues(routes: &mut [Value], counters: &Counters) {
    for ((name, ..), route) in ROUTES.iter().zip(routes) {
        let link = counters.link(&format!("{name}:us-gw>jp-gw"));
        let stage = link.map(|l| l.stage).unwrap_or_default();
        route["queued_max_bytes"] = json!(stage.queued_max.get());
        route["dropped_frames"] = json!(stage.dropped().frames);
    }
}
