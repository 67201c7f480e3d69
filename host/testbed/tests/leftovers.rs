//! `kill -9` of whoever started the testbed leaves nothing behind.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use kuroshio_testbed::{Testbed, Topology, isolate};

const TOPOLOGY: &str = r#"
name = "left"
[[router]]
name = "r"
[[host]]
name = "one"
[[host.port]]
name = "p0"
address = "10.0.0.1/24"
router = "r"
[[host]]
name = "two"
[[host.port]]
name = "p0"
address = "10.0.0.2/24"
router = "r"
"#;

const BACKLOG: &str = "/proc/sys/net/core/netdev_max_backlog";

const ROLE: &str = "--starter";

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    if isolate::is_inside() {
        inside();
    }
    if args.iter().any(|a| a == ROLE) {
        // The process that will be killed: it only waits for the testbed.
        return match isolate::run(&args) {
            Ok(_) => ExitCode::SUCCESS,
            Err(e) => {
                eprintln!("{e}");
                ExitCode::FAILURE
            }
        };
    }
    match judge() {
        Ok(()) => {
            println!("test kill_leaves_nothing ... ok");
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("test kill_leaves_nothing ... FAILED: {e}");
            ExitCode::FAILURE
        }
    }
}

/// Brings the network up with a process in each host, says so, and stays.
fn inside() -> ! {
    let topology = Topology::from_toml(TOPOLOGY).expect("topology");
    let testbed = Testbed::up(&topology).expect("up");
    let children: Vec<_> = ["one", "two"]
        .iter()
        .map(|h| {
            testbed
                .command(h, "sleep")
                .expect("host")
                .arg("3600")
                .spawn()
                .expect("sleep")
        })
        .collect();
    let ns = std::fs::read_link("/proc/self/ns/pid").expect("namespace");
    println!("up {}", ns.display());
    loop {
        std::thread::park();
        assert_eq!(children.len(), 2);
    }
}

/// Every process of the machine in a PID namespace, seen from outside.
fn members(ns: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .map(|e| e.path())
        .filter(|p| std::fs::read_link(p.join("ns/pid")).is_ok_and(|l| l.as_os_str() == ns))
        .collect()
}

fn judge() -> Result<(), Box<dyn std::error::Error>> {
    let backlog = std::fs::read(BACKLOG);
    let mut starter = Command::new("/proc/self/exe")
        .arg(ROLE)
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    if let Some(out) = starter.stdout.take() {
        BufReader::new(out).read_line(&mut line)?;
    }
    let ns = line.strip_prefix("up ").unwrap_or_default().trim().to_owned();
    let before = members(&ns).len();
    starter.kill()?;
    starter.wait()?;
    // The one thing that a killed starter cannot put back (root only).
    if let Ok(backlog) = &backlog {
        let _ = std::fs::write(BACKLOG, backlog);
    }
    if before < 4 {
        return Err(format!("{before} processes in namespace {ns:?}: init, program, two children").into());
    }
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let left = members(&ns);
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() > end {
            return Err(format!("still there: {left:?}").into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
