//! Fragments, views and commands at the nodes that hold them, as a person uses them.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

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
    fn up(nodes: &str) -> Self {
        let grid = Self {
            home: tempfile::tempdir().expect("temp dir"),
        };
        grid.want(0, &["up", "--dir", "g", "--nodes", nodes]);
        grid
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kuroshio"));
        command
            .args(args)
            .current_dir(self.home.path())
            .stdin(Stdio::null());
        command
            .env("XDG_CONFIG_HOME", self.path("config"))
            .env("XDG_STATE_HOME", self.path("state"));
        command
            .env_remove("KUROSHIO_GRID")
            .env("TMPDIR", self.home.path());
        command
    }

    /// Runs and wants an exit code.
    fn want(&self, code: i32, args: &[&str]) -> Output {
        let output = self.command(args).output().expect("started");
        let (out, err) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        assert_eq!(output.status.code(), Some(code), "{args:?}\n{out}\n{err}");
        output
    }

    fn out(&self, args: &[&str]) -> String {
        String::from_utf8_lossy(&self.want(0, args).stdout).into_owned()
    }

    fn json(&self, args: &[&str]) -> Value {
        let args = [&["fs", "--json"], args].concat();
        serde_json::from_str(&self.out(&args)).expect("one JSON object")
    }
}

/// Lines of words of different lengths, and how many words there are.
fn words(lines: u32) -> (String, u32) {
    let (mut text, mut count) = (String::new(), 0);
    for n in 0..lines {
        for w in 0..n % 7 {
            text.push_str(&format!("w{} ", n * w));
            count += 1;
        }
        text.push('\n');
    }
    (text, count)
}

#[test]
fn words_are_counted_where_they_lie() {
    let grid = Grid::up("3");
    let (text, count) = words(20_000);
    fs::write(grid.path("words"), &text).expect("written");
    grid.want(2, &["fs", "put", "--fragments", "0", "words", "/words"]);
    grid.want(2, &["fs", "put", "--fragment", "8/8", "words", "/words"]);
    grid.want(2, &["fs", "put", "--fragments", "2", "words", "words", "/words"]);
    let put = grid.json(&["put", "--fragments", "7", "--lines", "words", "/words"]);
    assert_eq!(put["fragments"], 7);
    // Global and section view.
    assert_eq!(grid.out(&["fs", "cat", "/words"]), text);
    let each: String = (0..7)
        .map(|n| grid.out(&["fs", "cat", "--fragment", &n.to_string(), "/words"]))
        .collect();
    assert_eq!(each, text);
    grid.want(
        0,
        &[
            "fs",
            "get",
            "-q",
            "--view",
            "section",
            "--fragment",
            "3",
            "/words",
            "three",
        ],
    );
    assert!(
        fs::read_to_string(grid.path("three"))
            .expect("there")
            .ends_with('\n'),
        "cut at a line's end"
    );
    grid.want(2, &["fs", "get", "--view", "section", "/words", "x"]);
    grid.want(2, &["fs", "cat", "--fragment", "7", "/words"]);
    // Local views are the whole file, each fragment once.
    let mut seen = 0;
    for node in ["node1", "node2", "node3"] {
        let view = grid.json(&["get", "--view", "local", "--node", node, "/words", node]);
        let files = view["files"].as_array().expect("files");
        assert!(files.iter().all(|f| f["nodes"][0] == node), "{view}");
        assert!(!files.is_empty(), "{node} holds some");
        seen += files.len();
    }
    assert_eq!(seen, 7);
    // One run for each fragment, on its node.
    let ran = grid.json(&["run", "--per-fragment", "/words", "--", "wc", "-w"]);
    assert_eq!(
        (&ran["engine"], &ran["failed"], &ran["remote_bytes"]),
        (&"local".into(), &0.into(), &0.into())
    );
    assert_eq!(ran["local_bytes"], text.len());
    let runs = ran["runs"].as_array().expect("runs");
    let number = |r: &Value| {
        r["stdout"]
            .as_str()
            .and_then(|s| s.trim().parse::<u32>().ok())
            .expect("a number")
    };
    assert_eq!(runs.len(), 7);
    assert_eq!(runs.iter().map(number).sum::<u32>(), count);
    // In order, for people; with what the environment says.
    let script = "echo $KUROSHIO_FRAGMENT of $KUROSHIO_FRAGMENTS: $(cat \"$KUROSHIO_FRAGMENT_FILE\" | wc -c) \
                  $(ls | tr '\\n' ' ')= $KUROSHIO_LOCAL_FRAGMENTS";
    let said = grid.out(&["fs", "run", "--per-fragment", "/words", "--", "sh", "-c", script]);
    for (n, line) in said.lines().enumerate() {
        assert!(line.starts_with(&format!("{n} of 7: ")), "{said}");
        let (files, local) = line.split_once('=').expect("both");
        assert!(
            files.trim().ends_with(local.trim()),
            "the folder has the local fragments: {line}"
        );
    }
    assert_eq!(said.lines().count(), 7);
    // Once on each node.
    let per_node = grid.json(&["run", "/words", "--", "sh", "-c", "cat ?"]);
    let per_node = per_node["runs"].as_array().expect("runs").len();
    assert_eq!(per_node, 3);
    let failed = grid.want(
        1,
        &["fs", "--json", "run", "--per-fragment", "/words", "--", "false"],
    );
    let failed: Value = serde_json::from_slice(&failed.stdout).expect("JSON");
    assert_eq!(failed["failed"], 7);
    // Other engines are started by these command lines.
    let plan = grid.json(&[
        "run",
        "--per-fragment",
        "--engine",
        "slurm",
        "--dry-run",
        "/words",
        "--",
        "wc",
        "-w",
    ]);
    let argv = plan["tasks"][0]["argv"].to_string();
    assert!(
        argv.contains("\"srun\"") && argv.contains("--nodelist="),
        "{argv}"
    );
    let plan = grid.json(&[
        "run",
        "--engine",
        "ssh",
        "--dry-run",
        "/words",
        "--",
        "wc",
        "it's",
    ]);
    let line = plan["tasks"][0]["argv"][4]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    assert!(
        line.starts_with("'kuroshio' 'fs'") && line.ends_with("'wc' 'it'\\''s'"),
        "{line}"
    );
    grid.want(2, &["fs", "run", "--engine", "dask", "/words", "--", "wc"]);
    assert!(
        fs::read_dir(grid.home.path())
            .expect("home")
            .flatten()
            .all(|e| !e.file_name().to_string_lossy().contains("view")),
        "nothing is left over"
    );
}

#[test]
fn processes_write_one_file_and_the_administrator_looks_after_it() {
    let grid = Grid::up("2");
    let mut each = Vec::new();
    for n in 0..4 {
        fs::write(grid.path(&format!("part{n}")), format!("part {n}\n")).expect("written");
        let (which, part, node) = (format!("{n}/4"), format!("part{n}"), format!("node{}", 1 + n % 2));
        let args = [
            "fs",
            "--json",
            "put",
            "-q",
            "--fragment",
            &which,
            "--node",
            &node,
            &part,
            "/all",
        ];
        each.push(
            grid.command(&args)
                .stdout(Stdio::piped())
                .spawn()
                .expect("started"),
        );
    }
    let mut published = 0;
    for child in each {
        let out = child.wait_with_output().expect("ended");
        assert!(out.status.success());
        let said: Value = serde_json::from_slice(&out.stdout).expect("JSON");
        published += u32::from(said["published"] == true);
    }
    assert!(published >= 1);
    assert_eq!(
        grid.out(&["fs", "cat", "/all"]),
        "part 0\npart 1\npart 2\npart 3\n"
    );
    let bench = grid.json(&["df", "--bench", "3MiB"]);
    let site = &bench["sites"][0];
    assert_eq!(
        (&site["nodes"], &bench["bench_bytes"]),
        (&2.into(), &(3 << 20).into())
    );
    assert!(
        site["read_bps"].as_u64() > Some(0) && site["write_bps"].as_u64() > Some(0),
        "{bench}"
    );
    for figure in ["nodes", "capacity_bytes", "read_bps", "write_bps"] {
        assert_eq!(bench["total"][figure], site[figure], "one site is all: {bench}");
    }
    let table = grid.out(&["fs", "df", "--bench", "3MiB"]);
    let rows: Vec<&str> = table.lines().collect();
    let head: Vec<&str> = rows[0].split_whitespace().collect();
    let columns = [
        "site", "nodes", "capacity", "[GB]", "write", "[MB/s]", "read", "[MB/s]",
    ];
    assert_eq!(head, columns, "{table}");
    assert!(rows[2].starts_with("total"), "{table}");
    grid.want(2, &["fs", "df", "--bench", "3"]);
    let fsck = grid.json(&["fsck", "--deep"]);
    assert_eq!(
        (&fsck["objects"], &fsck["lost"], &fsck["unknown"]),
        (&4.into(), &0.into(), &0.into())
    );
    assert_eq!(grid.json(&["route"])["routes"], serde_json::json!([]));
    let moved = grid.json(&[
        "rep",
        "-q",
        "-D",
        "node2",
        "--leave",
        "node1",
        "--priority",
        "50",
        "/all",
    ]);
    assert_eq!(moved["jobs"].as_array().map(Vec::len), Some(2), "{moved}");
    grid.want(2, &["fs", "rep", "--priority", "101", "/all"]);
}
