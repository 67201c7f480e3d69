//! `gfarm-replicate`: a grid of eleven services over the emulated Pacific, replicated by `fs rep`.
//!
//! ```text
//!   us-la1 ─┐                                               ┌─ jp-la1
//!   us-la2 ─┼─ us-gw ══ la  117 Mbps, RTT 141 ms ══ jp-gw ──┼─ jp-la2
//!   us-la3 ─┘     │                                   │     └─ jp-la3
//!   us-chi ───────┼════ chi  25 Mbps, RTT 250 ms ═════┼─────── jp-chi
//!   us-ny  ───────┴════ ny   50 Mbps, RTT 285 ms ═════┴─────── jp-ny
//!   meta: every host has a second port in a network without delay, for the control plane
//! ```
//!
//! A site is the nodes behind one uplink: `us-la` has three nodes, `us-chi` and `us-ny` one each, and so in Japan. The
//! three routes are `[[route]]` of metad.toml; the grid's own plan keeps all streams of all nodes below them. Parameters
//! are those of paper 000's SC2003 run, with the usable Los Angeles capacity of figures.md, at 1/20: two cores run
//! the emulator, eleven services and TLS at both ends of every stream. Every node sends files whose sizes are in proportion to its part of its route, so that
//! all end together.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use kuroshio_lab::check::Check;
use kuroshio_lab::result::{Calibration, Instrument, RunResult, Versions};
use kuroshio_metad::{Config, Replication, RouteConfig, Timing};
use kuroshio_node::NodeConfig;
use kuroshio_service::Ticket;
use kuroshio_testbed::{Captured, Direction, Testbed, Topology, isolate};
use serde_json::{Value, json};

use crate::error::Failure;
use crate::verb::demo::share::{Share, Stamp, Timeline, rate_between, share};

/// Its name and title.
pub const NAME: (&str, &str) = (
    "gfarm-replicate",
    "Replication by `fs rep` between two sides of five node pairs over three trans-Pacific routes",
);

/// One part in so many of the real capacities.
const SCALE: u64 = 20;
/// A route: name, Mbps at full scale (frame level), one-way delay in us, nodes on each side.
const ROUTES: [(&str, u64, u32, &[&str]); 3] = [
    ("la", 2_340, 70_500, &["la1", "la2", "la3"]),
    ("chi", 500, 125_000, &["chi"]),
    ("ny", 1_000, 142_500, &["ny"]),
];
/// L1 rate of a port at full scale, Mbps; not below what two ports of Los Angeles need.
const PORT_MBPS: u64 = 1_000;
/// MTU of the SC2003 hosts, bytes.
const MTU: u32 = 6_000;
/// Queue of a router per Mbps of full-scale capacity (512 KB for each 500 Mbps), bytes; scaled with it.
const QUEUE_PER_MBPS: u64 = 1_024;
/// The part of each route that the plan does not give out.
const HEADROOM: &str = "1.5%";
/// How long the routes are filled, seconds.
const SECONDS: u64 = 40;
/// Files of each node.
const FILES: u64 = 2;
/// What must hold.
const LEAST_SHARE: f64 = 0.97;
/// Port of every service.
const PORT: u16 = 7400;
/// Longest wait for a state.
const LIMIT: Duration = Duration::from_secs(300);

fn failed(e: impl std::fmt::Display) -> Failure {
    Failure::failed(e.to_string())
}

fn capacity_bps(mbps: u64) -> u64 {
    mbps * 1_000_000 / SCALE
}

/// Every pair: index of its route, index in it, name.
fn pairs() -> impl Iterator<Item = (usize, usize, &'static str)> {
    let of = |(r, route): (usize, &(&str, u64, u32, &'static [&'static str]))| {
        let nodes: &'static [&'static str] = route.3;
        nodes.iter().enumerate().map(move |(p, name)| (r, p, *name))
    };
    ROUTES.iter().enumerate().flat_map(of)
}

fn address(side: u8, route: usize, pair: usize) -> String {
    format!("10.{}.{}.{side}", route + 1, pair + 1)
}

fn topology() -> String {
    let mut text = String::from("name = \"gfarm-replicate\"\n");
    for router in ["us-gw", "jp-gw", "control"] {
        let _ = writeln!(text, "[[router]]\nname = \"{router}\"");
    }
    let mut control = 1;
    let mut second = |text: &mut String| {
        let _ = writeln!(
            text,
            "[[host.port]]\nname = \"ctl\"\nmtu = \"1500B\"\nwire = \"1Gbps\"\naddress = \"10.9.0.{control}/24\"\n\
             router = \"control\"\nqueue = \"4MiB\""
        );
        control += 1;
    };
    let _ = writeln!(text, "[[host]]\nname = \"meta\"");
    second(&mut text);
    let wire_bps = PORT_MBPS * 1_000_000 / SCALE;
    for (side, gateway, number) in [("us", "us-gw", 1), ("jp", "jp-gw", 2)] {
        for (r, p, name) in pairs() {
            let _ = writeln!(
                text,
                "[[host]]\nname = \"{side}-{name}\"\n[[host.port]]\nname = \"wan\"\nmtu = \"{MTU}B\"\n\
                 wire = \"{wire_bps}bps\"\naddress = \"{}/24\"\nrouter = \"{gateway}\"\nqueue = \"64MiB\"",
                address(number, r, p)
            );
            second(&mut text);
        }
    }
    for (r, (name, mbps, delay_us, nodes)) in ROUTES.iter().enumerate() {
        let carries: Vec<String> = (0..nodes.len())
            .map(|p| format!("\"10.{}.{}.0/24\"", r + 1, p + 1))
            .collect();
        let _ = writeln!(
            text,
            "[[link]]\nname = \"{name}\"\nbetween = [\"us-gw\", \"jp-gw\"]\ncapacity = \"{}bps\"\n\
             one_way_delay = \"{delay_us}us\"\nqueue = \"{}B\"\ncarries = [{}]",
            capacity_bps(*mbps),
            mbps * QUEUE_PER_MBPS / SCALE,
            carries.join(", ")
        );
    }
    text
}

/// Bytes of one file of a node on a route: its part of the route's payload for [`SECONDS`], in [`FILES`] files.
fn file_bytes(route: usize) -> u64 {
    let (_, mbps, _, nodes) = ROUTES[route];
    let payload = capacity_bps(mbps) / 8 * SECONDS * u64::from(MTU - 52) / u64::from(MTU + 18);
    payload / nodes.len() as u64 / FILES
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
        let route = |from: &str, to: &str, mbps: u64| RouteConfig {
            from: from.to_owned(),
            to: to.to_owned(),
            capacity: format!("{}bps", capacity_bps(mbps)),
        };
        let routes = ROUTES
            .iter()
            .map(|(name, mbps, ..)| route(&format!("us-{name}"), &format!("jp-{name}"), *mbps));
        let config = Config {
            name: "gfarm-replicate".into(),
            listen: ([10, 9, 0, 1], PORT).into(),
            advertise: None,
            database: None,
            timing: Timing {
                // A busy machine is not a lost node.
                down_after_ms: 20_000,
                transfers: 32,
                ..Timing::default()
            },
            replication: Replication {
                headroom: HEADROOM.into(),
                ..Replication::default()
            },
            routes: routes.collect(),
        };
        config.save(&dir)?;
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
                write_content(&local, file_bytes(r), (bytes + n).wrapping_add(1))?;
                bytes += file_bytes(r);
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
    let topology = Topology::from_toml(&topology()).map_err(failed)?;
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
        sum_bps() as f64 / 1e6
    );
    let begun = Instant::now();
    world.replicate()?;
    let seconds = begun.elapsed().as_secs_f64();
    let captured = capture.stop().map_err(failed)?;
    let counters = net.counters().map_err(failed)?;
    let whole = world.replicated()?;
    drop(services);
    let report = net.down().map_err(failed)?;
    let (all, routes) = shares(&captured)?;
    let measured = json!({
        "frame_bps": all.rate_bps, "share_of_capacity": all.of_capacity, "routes": routes,
        "dropped_frames": counters.dropped_frames(), "machine_lost_frames": counters.machine_lost(),
        "capture_missed_frames": captured.missed, "payload_bytes": bytes, "seconds": seconds,
        "goodput_bps": (bytes as f64 * 8.0 / seconds) as u64, "files": count as u64 * FILES, "files_replicated": whole,
        "lateness_p50_ns": report.lateness.p50_ns, "lateness_p99_ns": report.lateness.p99_ns,
        "lateness_max_ns": report.lateness.max_ns, "out": out.display().to_string(),
    });
    let disturbed_by = report.disturbed.unwrap_or_default();
    Ok(result(
        (started_unix_s, disturbed_by),
        measured,
        all.of_capacity,
        counters.dropped_frames(),
        whole,
        count as u64 * FILES,
    ))
}

/// The share of the routes' sum from 20 % to 80 % of the bytes, and each route's in that time.
fn shares(captured: &Captured) -> Result<(Share, Vec<Value>), Failure> {
    let stamps = |wanted: &dyn Fn(usize) -> bool| {
        let inward = captured
            .records
            .iter()
            .filter(|r| r.direction == Direction::In && wanted(usize::from(r.port)));
        let mut stamps: Vec<Stamp> = inward
            .map(|r| Stamp {
                at_ns: r.t_ns,
                frame_bytes: u64::from(r.frame_len),
            })
            .collect();
        stamps.sort_by_key(|s| s.at_ns);
        stamps
    };
    let capacities: Vec<Timeline> = ROUTES
        .iter()
        .map(|(_, m, ..)| Timeline::constant(capacity_bps(*m)))
        .collect();
    let all = share(&stamps(&|_| true), &capacities).ok_or_else(|| failed("too few frames were stamped"))?;
    let routes = ROUTES.iter().enumerate().map(|(r, (name, mbps, ..))| {
        let mine = |port: usize| pairs().nth(port).is_some_and(|(of, ..)| of == r);
        let rate = rate_between(&stamps(&mine), all.from_ns, all.to_ns);
        json!({
            "route": name, "capacity_bps": capacity_bps(*mbps), "frame_bps": rate,
            "share": rate as f64 / capacity_bps(*mbps) as f64,
        })
    });
    Ok((all, routes.collect()))
}

fn sum_bps() -> u64 {
    ROUTES.iter().map(|(_, mbps, ..)| capacity_bps(*mbps)).sum()
}

fn result(
    (started_unix_s, disturbed_by): (u64, String),
    measured: Value,
    of_capacity: f64,
    dropped: u64,
    whole: u64,
    files: u64,
) -> RunResult {
    let check = |name: &str, value: String, bound: &str, ok| Check {
        name: name.to_owned(),
        value,
        bound: bound.to_owned(),
        ok,
    };
    RunResult {
        experiment: NAME.0.into(),
        title: NAME.1.into(),
        source: "003 Gfarm, replication of 8 GB by three node pairs; 000 GNET-1, SC2003 run for the routes".into(),
        mode: "live".into(),
        variant: String::new(),
        scale: format!("1/{SCALE}"),
        started_unix_s,
        paper: json!({
            "three node pairs, 10 s average (CHEP 2003)": "741 Mbps of 893 Mbps (83 %)",
            "SC2003 with GNET-1": "3.78 Gbps of 3.9 Gbps (97 %)",
        }),
        settings: json!({
            "routes": "Los Angeles 2,340 Mbps (figures.md), Chicago 500, New York 1,000; RTT 141, 250, 285 ms (000), all rates at 1/20",
            "ports": "1 Gbps L1 at 1/20, MTU 6000 (000)",
            "queues": "512 KiB for each 500 Mbps, at 1/20 (000, emulated network)",
            "headroom": HEADROOM, "tcp": "CUBIC of this kernel", "streams": "one for each transfer",
            "fill_s": SECONDS, "files_per_node": FILES,
        }),
        measured: [("replication".to_owned(), measured)].into_iter().collect(),
        compared: Vec::new(),
        checks: vec![
            check(
                "the routes' sum is used",
                format!("{:.2} %", of_capacity * 100.0),
                "97 % or more, frame level, from 20 % to 80 % of the bytes",
                of_capacity >= LEAST_SHARE,
            ),
            check("nothing is dropped", format!("{dropped} frames"), "0 frames at any router or port", dropped == 0),
            check("every file has both replicas", format!("{whole} of {files}"), "all", whole == files),
        ],
        instrument: Instrument {
            calibration: Calibration {
                vector: "none: what is counted are bytes in seconds".into(),
                ..Calibration::default()
            },
            lateness: Vec::new(),
        },
        disturbed: !disturbed_by.is_empty(),
        disturbed_by,
        versions: Versions::here(),
        seed: 1,
        notes: vec![
            "The control plane has a network of its own without delay; every byte of content crosses the routes.".into(),
            "Rates are at frame level by stamps of the receiving hosts' kernel.".into(),
        ],
    }
}

/// What a plan of routes at this scale looks like is checked without a machine.
#[cfg(test)]
mod tests {
    use super::*;
    use kuroshio_core::units::{BitRate, Ratio};

    #[test]
    fn the_network_is_one() {
        let topology = Topology::from_toml(&topology());
        assert!(topology.is_ok(), "{:?}", topology.err());
        assert_eq!(sum_bps(), 192_000_000);
        for (name, mbps, ..) in ROUTES {
            assert!(BitRate::new(capacity_bps(mbps)).is_some(), "{name}");
        }
        assert!(HEADROOM.parse::<Ratio>().is_ok());
        // 117 Mbps for 40 s in six files.
        assert_eq!(file_bytes(0), 117_000_000 / 8 * 40 * 5948 / 6018 / 6);
    }
}
