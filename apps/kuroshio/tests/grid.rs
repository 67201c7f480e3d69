//! A whole grid as a person starts it: up, fs, kill -9, up again, down.

use std::fs;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// Longest wait for a state.
const LIMIT: Duration = Duration::from_secs(60);

/// A grid with a home of its own; ended with the test, whatever happens.
struct Grid {
    home: TempDir,
}

impl Drop for Grid {
    fn drop(&mut self) {
        let _ = self.command(&["down", "--dir", "g"]).output();
    }
}

impl Grid {
    fn new() -> Self {
        Self {
            home: tempfile::tempdir().expect("temp dir"),
        }
    }

    fn up(args: &[&str]) -> Self {
        let grid = Self::new();
        grid.want(0, &[&["up", "--dir", "g"][..], args].concat());
        grid
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kuroshio"));
        command.args(args).current_dir(self.home.path());
        command
            .env("XDG_CONFIG_HOME", self.path("config"))
            .env_remove("KUROSHIO_GRID");
        command
            .env("XDG_STATE_HOME", self.path("state"))
            .stdin(Stdio::null());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("started")
    }

    /// Runs and wants an exit code; gives standard output.
    fn want(&self, code: i32, args: &[&str]) -> String {
        let output = self.run(args);
        let out = String::from_utf8_lossy(&output.stdout).into_owned();
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{args:?}\n{out}\n{err}");
        if code == 0 { out } else { err }
    }

    fn json(&self, args: &[&str]) -> Value {
        let out = self.want(0, &[args, &["--json"]].concat());
        serde_json::from_str(out.lines().next_back().unwrap_or_default()).expect("one JSON object")
    }

    fn file(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, content).expect("write");
        path
    }

    fn pid(&self, service: &str) -> i32 {
        let text = fs::read_to_string(self.path("g/run").join(format!("{service}.pid"))).expect("pid");
        text.split(' ')
            .next()
            .and_then(|p| p.parse().ok())
            .expect("number")
    }

    /// kill -9.
    fn kill(&self, service: &str) {
        let pid = rustix::process::Pid::from_raw(self.pid(service)).expect("pid");
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("killed");
    }

    /// Nodes with a valid replica that are up.
    fn holders(&self, path: &str) -> Vec<String> {
        let found = self.json(&["fs", "where", path]);
        let replicas = found["fragments"][0]["replicas"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let valid = replicas
            .iter()
            .filter(|r| r["state"] == "valid" && r["up"] == true);
        valid
            .filter_map(|r| Some(r["node"].as_str()?.to_owned()))
            .collect()
    }
}

fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut out = vec![0; len];
    blake3::Hasher::new()
        .update(&seed.to_le_bytes())
        .finalize_xof()
        .fill(&mut out);
    out
}

fn wait_for(what: &str, mut reached: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !reached() {
        assert!(Instant::now() < deadline, "not reached in {LIMIT:?}: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn is_alive(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

#[test]
fn a_grid_is_one_command_and_leaves_nothing_behind() {
    let grid = Grid::new();
    let told = grid.json(&["up", "--dir", "g"]);
    assert_eq!(told["nodes"], serde_json::json!(["node1"]));
    let pids = [grid.pid("metad"), grid.pid("node1")];
    assert!(pids.iter().all(|p| is_alive(*p)));
    // Again: nothing is started twice.
    grid.want(0, &["up", "--dir", "g"]);
    assert_eq!(pids, [grid.pid("metad"), grid.pid("node1")]);

    let content = bytes(3_000_000, 1);
    grid.file("f", &content);
    grid.want(0, &["fs", "mkdir", "-p", "/a/b"]);
    let put = grid.json(&["fs", "put", "f", "/a/b/"]);
    let digest = blake3::hash(&content).to_string();
    assert_eq!(put["files"][0]["digest"], digest);
    assert_eq!(grid.want(0, &["fs", "ls", "/a/b"]), "f\n");
    let stat = grid.json(&["fs", "stat", "/a/b/f"]);
    assert_eq!(
        (&stat["size_bytes"], &stat["kind"]),
        (&3_000_000.into(), &"file".into())
    );
    assert_eq!(grid.json(&["fs", "cksum", "/a/b/f"])["digest"], digest);
    assert_eq!(grid.holders("/a/b/f"), ["node1"]);
    grid.want(0, &["fs", "mv", "/a/b/f", "/a/g"]);
    grid.want(0, &["fs", "get", "/a/g", "back"]);
    assert!(fs::read(grid.path("back")).expect("read") == content);
    let cat = grid.run(&["fs", "cat", "/a/g"]);
    assert!(cat.status.success() && cat.stdout == content);
    grid.want(0, &["fs", "rm", "-r", "/a"]);
    assert_eq!(grid.want(0, &["fs", "ls"]), "");

    grid.want(0, &["down", "--dir", "g"]);
    assert!(!pids.iter().any(|p| is_alive(*p)));
    assert!(!grid.path("g/run/metad.pid").exists());
    grid.want(2, &["fs", "ls"]);
}

#[test]
fn trees_pipes_and_every_command() {
    let grid = Grid::up(&["--nodes", "2"]);
    fs::create_dir_all(grid.path("t/sub")).expect("mkdir");
    for n in 0..20 {
        grid.file(&format!("t/sub/f{n}"), &bytes(n * 1000, n as u64));
    }
    std::os::unix::fs::symlink("sub/f1", grid.path("t/link")).expect("link");
    grid.want(0, &["fs", "put", "-r", "t", "/"]);
    grid.want(2, &["fs", "put", "t", "/"]);
    grid.want(0, &["fs", "get", "-r", "/t", "out"]);
    for n in 0..20 {
        assert_eq!(
            fs::read(grid.path(&format!("out/sub/f{n}"))).expect("read"),
            bytes(n * 1000, n as u64)
        );
    }
    assert_eq!(
        fs::read_link(grid.path("out/link")).expect("link"),
        PathBuf::from("sub/f1")
    );
    assert_eq!(grid.json(&["fs", "du", "/t"])["files"], 21);
    assert_eq!(
        grid.want(0, &["fs", "find", "/t", "--name", "f1?", "--kind", "file"])
            .lines()
            .count(),
        10
    );

    let mut child = grid
        .command(&["fs", "put", "-", "/piped"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("started");
    let content = bytes(10_000_000, 9);
    child
        .stdin
        .take()
        .expect("stdin")
        .write_all(&content)
        .expect("written");
    assert!(child.wait().expect("ended").success());
    assert!(grid.run(&["fs", "cat", "/piped"]).stdout == content);

    grid.want(0, &["fs", "chmod", "600", "/piped"]);
    grid.want(0, &["fs", "chown", "alice:users", "/piped"]);
    let stat = grid.json(&["fs", "stat", "/piped"]);
    assert_eq!(
        (&stat["mode"], &stat["owner"], &stat["group"]),
        (&"0600".into(), &"alice".into(), &"users".into())
    );
    grid.want(0, &["fs", "ln", "-s", "piped", "/s"]);
    grid.want(0, &["fs", "ln", "/piped", "/hard"]);
    assert_eq!(grid.json(&["fs", "stat", "/s"])["links"], 2);
    assert_eq!(
        grid.json(&["fs", "rep", "-N", "2", "/piped"])["jobs"][0]["state"],
        "done"
    );
    assert_eq!(grid.holders("/piped").len(), 2);
    assert_eq!(
        grid.json(&["fs", "sched", "/piped"])["nodes"]
            .as_array()
            .map(Vec::len),
        Some(2)
    );
    assert_eq!(grid.json(&["fs", "ncopy", "-s", "2", "/t", "-r"])["ncopy"], "2");
    assert_eq!(grid.json(&["fs", "status"])["nodes_up"], 2);
    assert_eq!(
        grid.json(&["fs", "node", "ls"])["nodes"].as_array().map(Vec::len),
        Some(2)
    );
    for args in [
        vec!["fs", "df"],
        vec!["fs", "job", "ls", "-a"],
        vec!["fs", "ls", "-lR", "/"],
        vec!["fs", "where", "/s"],
    ] {
        assert!(!grid.want(0, &args).is_empty(), "{args:?}");
    }
    for (code, args) in [
        (2, vec!["fs", "stat", "relative"]),
        (1, vec!["fs", "stat", "/none"]),
        (2, vec!["fs", "ncopy", "-s", "0", "/t"]),
        (2, vec!["fs", "--grid", "nowhere", "ls"]),
        (2, vec!["fs", "rm", "/t"]),
        (1, vec!["fs", "job", "show", "999999"]),
        (2, vec!["up", "--dir", "g", "--nodes", "1"]),
    ] {
        grid.want(code, &args);
    }
}

#[test]
fn what_was_acknowledged_survives_kill_9() {
    let grid = Grid::up(&[]);
    let mut acknowledged = Vec::new();
    for round in 0..3u64 {
        // One service dies while files are put; each put that says so is to be there afterwards.
        let victim = if round % 2 == 0 { "metad" } else { "node1" };
        let mut writers: Vec<(String, u64, Child)> = Vec::new();
        for n in 0..12 {
            let (name, seed) = (format!("r{round}f{n}"), round * 100 + n);
            grid.file(&name, &bytes(200_000, seed));
            let put = grid
                .command(&["fs", "put", "-q", &name, &format!("/{name}")])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .expect("started");
            writers.push((name, seed, put));
            if n == 5 {
                grid.kill(victim);
            }
        }
        for (name, seed, mut put) in writers {
            if put.wait().expect("ended").success() {
                acknowledged.push((name, seed));
            }
        }
        grid.want(0, &["up", "--dir", "g"]);
        grid.file("after", b"x");
        grid.want(0, &["fs", "put", "after", &format!("/after{round}")]);
    }
    for (name, seed) in &acknowledged {
        let cat = grid.run(&["fs", "cat", &format!("/{name}")]);
        assert!(
            cat.status.success() && cat.stdout == bytes(200_000, *seed),
            "{name}"
        );
    }
    // No name stands for bytes that are not there.
    let listed = grid.json(&["fs", "ls", "/"]);
    for entry in listed["entries"].as_array().expect("entries") {
        let path = entry["path"].as_str().expect("path");
        let size = entry["size_bytes"].as_u64().expect("size");
        assert_eq!(grid.run(&["fs", "cat", path]).stdout.len() as u64, size, "{path}");
    }
}

#[test]
fn a_reader_and_the_grid_survive_a_node() {
    let grid = Grid::up(&["--nodes", "3", "--lost-after", "2"]);
    let content = bytes(48_000_000, 3);
    grid.file("f", &content);
    grid.want(0, &["fs", "put", "--ncopy", "2", "f", "/f"]);
    let held = grid.holders("/f");
    assert_eq!(held.len(), 2);
    let mut cat = grid
        .command(&["fs", "cat", "/f"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("started");
    let mut out = cat.stdout.take().expect("stdout");
    let mut got = vec![0; 1_000_000];
    out.read_exact(&mut got).expect("the beginning");
    // The reader waits for its pipe: far more than what is on its way is still to come.
    grid.kill(&held[0]);
    out.read_to_end(&mut got).expect("the rest");
    assert!(cat.wait().expect("ended").success());
    assert!(got == content);
    wait_for("two replicas on nodes that are there", || {
        let now = grid.holders("/f");
        now.len() == 2 && !now.contains(&held[0])
    });
    grid.want(0, &["fs", "get", "/f", "back"]);
    assert!(fs::read(grid.path("back")).expect("read") == content);
}

#[test]
fn a_grid_by_init_and_join() {
    let grid = Grid::new();
    grid.want(
        0,
        &[
            "init",
            "--dir",
            "g/metad",
            "--name",
            "made",
            "--listen",
            "127.0.0.1:0",
        ],
    );
    grid.want(2, &["init", "--dir", "g/metad"]);
    grid.want(2, &["stored", "--dir", "n1"]);
    let start = |args: &[&str]| {
        let child = grid
            .command(args)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Service(child.expect("started"))
    };
    let _metad = start(&["metad", "--dir", "g/metad"]);
    wait_for("the service answers", || {
        grid.run(&["fs", "--grid", "g", "status"]).status.success()
    });
    let ticket = grid.want(0, &["fs", "--grid", "g", "ticket", "--node", "n1"]);
    let mut join = grid
        .command(&[
            "join",
            "--dir",
            "n1",
            "--listen",
            "127.0.0.1:0",
            "--site",
            "tokyo",
            "--capacity",
            "1GiB",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("started");
    join.stdin
        .take()
        .expect("stdin")
        .write_all(ticket.as_bytes())
        .expect("written");
    assert!(join.wait().expect("ended").success());
    let _node = start(&["stored", "--dir", "n1"]);
    wait_for("the node is there", || {
        let nodes = grid.json(&["fs", "--grid", "g", "node", "ls"]);
        nodes["nodes"][0]["state"] == "up" && nodes["nodes"][0]["site"] == "tokyo"
    });
    // A user of their own.
    let alice = grid.want(0, &["fs", "--grid", "g", "ticket", "alice", "-g", "users"]);
    let mut add = grid
        .command(&["fs", "grid", "add", "mine"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("started");
    add.stdin
        .take()
        .expect("stdin")
        .write_all(alice.as_bytes())
        .expect("written");
    assert!(add.wait().expect("ended").success());
    assert_eq!(grid.json(&["fs", "status"])["user"], "alice");
    grid.file("f", b"content");
    grid.want(1, &["fs", "put", "f", "/f"]);
    grid.want(0, &["fs", "--grid", "g", "mkdir", "/desk"]);
    grid.want(0, &["fs", "--grid", "g", "chown", "alice:users", "/desk"]);
    grid.want(0, &["fs", "put", "f", "/desk/f"]);
    assert_eq!(grid.want(0, &["fs", "cat", "/desk/f"]), "content");
}

/// A service in the foreground; ended with the test.
struct Service(Child);

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
