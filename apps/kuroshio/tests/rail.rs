//! `kuroshio rail` and `--rail` as a person starts them.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

fn kuroshio(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kuroshio"))
        .args(args)
        .stdin(Stdio::null())
        .output()
        .expect("started")
}

fn paper() -> String {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.join("host/rail/tests/topologies/paper-002.xml")
        .to_string_lossy()
        .into_owned()
}

fn json(out: &Output) -> Value {
    let text = String::from_utf8_lossy(&out.stdout);
    serde_json::from_str(&text)
        .unwrap_or_else(|e| panic!("{e}: {text} {}", String::from_utf8_lossy(&out.stderr)))
}

#[test]
fn bad_input_is_refused_with_a_clear_text() {
    let paper = paper();
    let table: &[(&[&str], &str)] = &[
        (&["rail"], "Usage"),
        (&["rail", "ls", "--topology", "/nonexistent.xml"], "No such file"),
        (&["rail", "ls", "--topology", "/proc/self/cmdline"], "lstopo"),
        (
            &["rail", "ls", "--topology", "synthetic:core:0"],
            "from 1 to 4096",
        ),
        (&["rail", "plan"], "--rate"),
        (&["rail", "plan", "--rate", "40"], "has no unit"),
        (&["rail", "plan", "--rate", "40G", "--rtt", "2h"], "up to 60s"),
        (
            &["rail", "plan", "--rate", "40G", "--placement", "far"],
            "local or other",
        ),
        (
            &["rail", "plan", "--rate", "9G", "--topology", &paper],
            "--card-rate",
        ),
        (
            &[
                "rail",
                "plan",
                "--rate",
                "9G",
                "--lanes",
                "5",
                "--topology",
                &paper,
            ],
            "has no unit",
        ),
        (
            &[
                "rail",
                "plan",
                "--rate",
                "9G",
                "--lanes",
                "5G",
                "--streams",
                "0",
                "--topology",
                &paper,
                "--card-rate",
                "10G",
            ],
            "at least one stream",
        ),
        (
            &[
                "rail",
                "plan",
                "--rate",
                "9G",
                "--card-rate",
                "10G",
                "--measure",
                "h:x",
            ],
            "HOST:PORT",
        ),
        (&["rail", "run", "99", "--", "true"], "valid: auto"),
        (
            &["rail", "run", "1", "--", "/nonexistent/program"],
            "/nonexistent/program",
        ),
        (&["rail", "run", "1"], "CMD"),
        (
            &["rail", "undo", "--undo-file", "/nonexistent/undo.json"],
            "No such file",
        ),
        (
            &["rail", "undo", "--undo-file", "/proc/self/cmdline"],
            "undo file",
        ),
        (&["probe", "-s", "--rail", "99"], "valid: auto"),
        (
            &["serve", "--root", "/nonexistent", "--insecure", "--rail", "99"],
            "valid: auto",
        ),
        (
            &["stored", "--dir", "/nonexistent", "--rail", "99"],
            "valid: auto",
        ),
        (
            &["cp", "--rail", "99", "/etc/hostname", "/nonexistent/x"],
            "valid: auto",
        ),
    ];
    for (args, why) in table {
        let done = kuroshio(args);
        let err = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(2), "{args:?}: {err}");
        assert!(err.contains(why), "{args:?}: {err}");
    }
}

#[test]
fn the_paper_s_host_is_planned_as_condition_a() {
    let args = [
        "rail",
        "plan",
        "--rate",
        "17.715456G",
        "--card-rate",
        "10G",
        "--topology",
        &paper(),
        "--json",
    ];
    let out = kuroshio(&args);
    assert_eq!(out.status.code(), Some(0), "{out:?}");
    let plan = json(&out);
    assert_eq!(plan["condition"], "A");
    assert_eq!(plan["rails"].as_array().map(Vec::len), Some(2));
    let out = kuroshio(&[
        "rail",
        "plan",
        "--rate",
        "100G",
        "--card-rate",
        "10G",
        "--topology",
        &paper(),
    ]);
    assert_eq!(out.status.code(), Some(1), "{out:?}");
    assert!(String::from_utf8_lossy(&out.stdout).contains("NOT ENOUGH"));
}

#[test]
fn ls_lists_and_draws() {
    let here = tempfile::tempdir().expect("a folder");
    let svg = here.path().join("host.svg");
    let out = kuroshio(&[
        "rail",
        "ls",
        "--json",
        "--topology",
        &paper(),
        "--svg",
        svg.to_str().expect("a path"),
    ]);
    let list = json(&out);
    assert_eq!(list["rails"][1]["id"], "0001:83:00.0");
    assert_eq!(list["machine"]["nodes"].as_array().map(Vec::len), Some(2));
    let picture = std::fs::read_to_string(svg).expect("a picture");
    assert!(picture.starts_with("<svg") && picture.contains("0001:83:00.0"));
    assert_eq!(kuroshio(&["rail", "ls"]).status.code(), Some(0));
}

#[test]
fn a_program_runs_on_a_rail() {
    let rail = &json(&kuroshio(&["rail", "ls", "--json"]))["rails"][0];
    let (id, node) = (
        rail["id"].as_str().expect("an id"),
        rail["node"].as_u64().expect("a node"),
    );
    let script = "grep Cpus_allowed_list /proc/self/status; grep -c bind: /proc/self/numa_maps; exit 7";
    let out = kuroshio(&["rail", "run", id, "--", "sh", "-c", script]);
    let (text, err) = (
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr),
    );
    assert_eq!(out.status.code(), Some(7), "{text} {err}");
    let mut pus: Vec<u64> = rail["pus"]
        .as_array()
        .expect("units")
        .iter()
        .filter_map(Value::as_u64)
        .collect();
    pus.sort_unstable();
    let mut lines = text.lines();
    let allowed = lines
        .next()
        .and_then(|l| l.split_whitespace().nth(1))
        .expect("a list")
        .to_owned();
    assert_eq!(numbers(&allowed), pus);
    let bound = lines.next().is_some_and(|n| n.trim() != "0");
    assert!(
        bound || err.contains(&format!("memory of node {node}")),
        "{text} {err}"
    );
}

/// A service that ends with the test.
struct Service(Child);

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_service_is_on_its_rail_before_it_listens() {
    let root = tempfile::tempdir().expect("a folder");
    let rail = &json(&kuroshio(&["rail", "ls", "--json"]))["rails"][0];
    let mut pus: Vec<u64> = rail["pus"]
        .as_array()
        .expect("units")
        .iter()
        .filter_map(Value::as_u64)
        .collect();
    pus.sort_unstable();
    let child = Command::new(env!("CARGO_BIN_EXE_kuroshio"))
        .args([
            "serve",
            "--insecure",
            "--listen",
            "127.0.0.1:0",
            "--rail",
            "1",
            "--json",
            "--root",
        ])
        .arg(root.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    let mut service = Service(child);
    let mut err = BufReader::new(service.0.stderr.take().expect("a pipe"));
    let (mut said, mut line) = (String::new(), String::new());
    while !line.contains("\"listening\"") {
        line.clear();
        assert!(err.read_line(&mut line).expect("a line") > 0, "{said}");
        said.push_str(&line);
    }
    let proc = PathBuf::from(format!("/proc/{}", service.0.id()));
    let maps = std::fs::read_to_string(proc.join("numa_maps")).unwrap_or_default();
    assert!(
        maps.contains("bind:") || said.contains("memory of node"),
        "{said}"
    );
    for task in std::fs::read_dir(proc.join("task")).expect("tasks").flatten() {
        let status = std::fs::read_to_string(task.path().join("status")).unwrap_or_default();
        let allowed = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:"));
        // A thread may have ended in between.
        if let Some(allowed) = allowed {
            assert_eq!(numbers(allowed.trim()), pus);
        }
    }
}

#[test]
fn a_tunnel_takes_a_rail_that_is_there() {
    let here = tempfile::tempdir().expect("a folder");
    let key = here.path().join("a.key");
    let made = kuroshio(&["lane", "key", key.to_str().expect("a path")]);
    let public = String::from_utf8_lossy(&made.stdout).trim().to_owned();
    let file = here.path().join("t.toml");
    let text = format!(
        "name = \"t0\"\nkey = \"a.key\"\npeer = \"{public}\"\n[[lane]]\nname = \"one\"\nlocal = \"127.0.0.1:7000\"\n\
         remote = \"127.0.0.1:7001\"\ncapacity = \"10Mbps\"\n"
    );
    std::fs::write(&file, text).expect("a file");
    let out = kuroshio(&["lane", "up", file.to_str().expect("a path"), "--rail", "99"]);
    let err = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{err}");
    assert!(err.contains("valid: auto"), "{err}");
}

/// `0-3,8`
fn numbers(list: &str) -> Vec<u64> {
    let each = list.split(',').flat_map(|run| {
        let (a, b) = run.split_once('-').unwrap_or((run, run));
        a.parse::<u64>().expect("a number")..=b.parse().expect("a number")
    });
    each.collect()
}

#[test]
fn a_signal_ends_the_program_and_is_told() {
    let out = kuroshio(&["rail", "run", "1", "--", "sh", "-c", "kill -9 $$"]);
    assert_eq!(out.status.code(), Some(137), "{out:?}");
}
