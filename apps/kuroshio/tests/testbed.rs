//! `kuroshio testbed` with the topology of `docs/testbed.md`: up, enter, change, count, down, kill.
//!
//! Needs root or user namespaces, as the testbed itself. Each test has a folder of its own for the sockets, and
//! takes its testbed down also when it fails.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(60);

/// A folder with the topology, and the testbeds that are up from it.
struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let guide = include_str!("../../../docs/testbed.md");
        let (_, rest) = guide.split_once("```toml\n").expect("a topology in the guide");
        let (topology, _) = rest.split_once("```").expect("its end");
        std::fs::write(dir.path().join("three.toml"), topology).expect("the topology");
        Bench { dir }
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("three.toml")
    }

    fn run(&self, args: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_kuroshio"))
            .arg("testbed")
            .args(args)
            .current_dir(self.dir.path())
            .env("KUROSHIO_TESTBED_DIR", self.dir.path().join("run"))
            .output()
            .expect("kuroshio")
    }

    fn ok(&self, args: &[&str]) -> String {
        let out = self.run(args);
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        let error = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{args:?}: {} {text} {error}", out.status);
        text
    }

    fn json(&self, args: &[&str]) -> Value {
        let text = self.ok(args);
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{args:?}: {e}: {text}"))
    }

    /// Runs a command that is refused, and gives its exit code and what it says.
    fn refused(&self, args: &[&str]) -> (Option<i32>, String) {
        let out = self.run(args);
        (
            out.status.code(),
            String::from_utf8_lossy(&out.stderr).into_owned(),
        )
    }

    /// This test program in a host, as what [`in_a_host`] is told to be.
    fn role(&self, host: &str, role: &str, address: &str, patience: Duration) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kuroshio"));
        command
            .args(["testbed", "exec", host, "--"])
            .arg(std::env::current_exe().expect("this program"))
            .args(["--exact", "in_a_host", "--ignored", "--quiet"])
            .env("KUROSHIO_TESTBED_DIR", self.dir.path().join("run"))
            .env("ROLE", format!("{role} {address} {}", patience.as_millis()))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }

    fn listen(&self, host: &str, address: &str) -> Killed {
        Killed(
            self.role(host, "listen", address, PATIENCE)
                .spawn()
                .expect("kuroshio"),
        )
    }

    fn reaches(&self, host: &str, address: &str, patience: Duration) -> bool {
        let status = self.role(host, "connect", address, patience).status();
        status.expect("kuroshio").success()
    }

    fn left(&self) -> Vec<String> {
        std::fs::read_dir(self.dir.path().join("run"))
            .expect("the folder of sockets")
            .flatten()
            .map(|e| e.file_name().to_string_lossy().into_owned())
            .collect()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        for name in ["three", "other"] {
            self.run(&["down", "--name", name]);
        }
    }
}

/// A process that ends with the test.
struct Killed(std::process::Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What other tests run in a host: listens at an address, or connects to one and reads a greeting.
#[test]
#[ignore = "run in hosts by the other tests"]
fn in_a_host() {
    let role = std::env::var("ROLE").expect("a role");
    let words: Vec<&str> = role.split(' ').collect();
    let [what, address, patience] = words[..] else {
        panic!("{role}")
    };
    let address: SocketAddr = address.parse().expect("an address");
    if what == "listen" {
        let listener = TcpListener::bind(address).expect("bind");
        for mut stream in listener.incoming().flatten() {
            let _ = stream.write_all(b"hello");
        }
    }
    let end = Instant::now() + Duration::from_millis(patience.parse().expect("a number"));
    loop {
        // Refused is what a listener that is about to start answers.
        let left = end
            .saturating_duration_since(Instant::now())
            .max(Duration::from_millis(1));
        if let Ok(mut stream) = TcpStream::connect_timeout(&address, left) {
            stream.set_read_timeout(Some(left)).expect("timeout");
            let mut text = [0u8; 5];
            std::io::Read::read_exact(&mut stream, &mut text).expect("a greeting");
            assert_eq!(&text, b"hello");
            return;
        }
        assert!(Instant::now() < end, "{address} is not reached");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Every process of the machine in a PID namespace.
fn members(ns: &Path) -> usize {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return 0;
    };
    entries
        .flatten()
        .filter(|e| std::fs::read_link(e.path().join("ns/pid")).is_ok_and(|l| l == ns))
        .count()
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < end, "waited {PATIENCE:?} for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn link<'a>(stats: &'a Value, name: &str) -> &'a Value {
    stats["links"]
        .as_array()
        .and_then(|links| links.iter().find(|l| l["link"] == name))
        .unwrap_or_else(|| panic!("no {name} in {stats}"))
}

#[test]
fn the_guide_s_topology_lives_and_ends() {
    let bench = Bench::new();
    let up = bench.json(&["up", bench.file().to_str().expect("a path"), "--json"]);
    assert_eq!(up["name"], "three");
    assert_eq!(up["hosts"].as_array().map(Vec::len), Some(3));
    assert_eq!(up["links"].as_array().map(Vec::len), Some(4));
    let pid = up["pid"].as_i64().expect("a process");
    let ns = std::fs::read_link(format!("/proc/{pid}/ns/pid")).expect("its namespace");
    assert!(members(&ns) >= 2);

    // Frames cross both links there and back, in both versions of IP.
    for address in ["10.0.1.3:7", "[fd00:1::3]:7"] {
        let listener = bench.listen("chicago", address);
        assert!(bench.reaches("tokyo", address, PATIENCE), "{address}");
        drop(listener);
    }
    let stats = bench.json(&["stats", "--json"]);
    assert!(link(&stats, "plains:california>illinois")["departed"]["frames"].as_u64() >= Some(4));
    assert_eq!(stats["dropped_frames"], 0);

    // The exit code of a program is that of exec, and the line for nsenter does the same.
    assert_eq!(
        bench
            .run(&["exec", "tokyo", "--", "sh", "-c", "exit 7"])
            .status
            .code(),
        Some(7)
    );
    let nsenter = up["hosts"][2]["nsenter"].as_str().expect("a line").to_owned();
    let out = Command::new("sh")
        .args(["-c", &format!("{nsenter} ip -br addr")])
        .output()
        .expect("sh");
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(
        text.contains("10.0.1.3"),
        "{text} {}",
        String::from_utf8_lossy(&out.stderr)
    );

    // A change holds at once, for the direction that was named.
    bench.ok(&[
        "set",
        "pacific:japan>california",
        "loss=100%",
        "jitter=normal 10us",
    ]);
    let _listener = bench.listen("sandiego", "10.0.1.2:7");
    assert!(!bench.reaches("tokyo", "10.0.1.2:7", Duration::from_secs(1)));
    let stats = bench.json(&["stats", "--json"]);
    assert!(link(&stats, "pacific:japan>california")["lost"]["frames"].as_u64() >= Some(1));
    assert_eq!(link(&stats, "pacific:california>japan")["lost"]["frames"], 0);
    bench.ok(&["set", "pacific", "loss=0", "cut=off"]);
    assert!(bench.reaches("tokyo", "10.0.1.2:7", PATIENCE));

    refusals(&bench);
    assert!(bench.ok(&["ls"]).contains("three: tokyo sandiego chicago"));
    bench.ok(&["down"]);
    wait_for("the end of its processes", || members(&ns) == 0);
    assert_eq!(bench.left(), Vec::<String>::new());
    assert_eq!(bench.refused(&["status"]).0, Some(1));
}

fn refusals(bench: &Bench) {
    for (args, code, words) in [
        (&["set", "atlantic", "loss=0"][..], 2, "pacific:japan>california"),
        (&["set", "pacific", "speed=1Gbps"], 2, "capacity"),
        (&["set", "pacific", "loss=0", "capacity=1"], 2, "8kbps"),
        (&["set", "pacific", "loss"], 2, "KEY=VALUE"),
        (&["set", "tokyo/p0", "shape=1Mbps"], 2, "no shaper"),
        (&["set", "tokyo/p0", "loss=1%"], 2, "shape"),
        (&["set", "pacific", "jitter=samples nowhere"], 2, "nowhere"),
        (&["exec", "osaka", "--", "true"], 2, "sandiego"),
        (&["status", "--name", "no/name"], 2, "letters"),
        (&["up", "nowhere.toml"], 2, "nowhere.toml"),
        (&["up", "three.toml"], 1, "up already"),
    ] {
        let (got, text) = bench.refused(args);
        assert_eq!(got, Some(code), "{args:?}: {text}");
        assert!(text.contains(words), "{args:?}: {words:?} is not in: {text}");
    }
}

#[test]
fn the_socket_speaks_lines_of_json() {
    let bench = Bench::new();
    let up = bench.json(&["up", "three.toml", "--name", "other", "--json"]);
    let stream = UnixStream::connect(up["socket"].as_str().expect("a path")).expect("connect");
    stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
    let mut lines = BufReader::new(stream.try_clone().expect("stream")).lines();
    let mut ask = |text: &str| -> Value {
        (&stream).write_all(format!("{text}\n").as_bytes()).expect("send");
        let line = lines.next().expect("an answer").expect("a line");
        serde_json::from_str(&line).expect("JSON")
    };
    let set =
        r#"{"do": "set", "target": "plains", "settings": {"loss": "1e-9", "queue": "5 frames"}, "id": [7]}"#;
    assert_eq!(
        ask(set),
        json!({ "ok": true, "result": { "changed": 4 }, "id": [7] })
    );
    let at =
        r#"{"do": "set", "target": "plains:illinois>california", "settings": {"cut": "on"}, "at": "1h"}"#;
    assert_eq!(ask(at)["result"]["changed"], 1);
    for wrong in [
        "",
        "{}",
        "[]",
        "\u{1}",
        r#"{"do": "fly"}"#,
        r#"{"do": "set"}"#,
        r#"{"do": "stats", "x": 1}"#,
    ] {
        let answer = ask(wrong);
        assert_eq!(
            (answer["ok"].clone(), answer["bad_input"].clone()),
            (json!(false), json!(true)),
            "{wrong}"
        );
    }
    assert_eq!(ask(r#"{"do": "status"}"#)["result"]["topology"], "three");
    assert!(ask(r#"{"do": "stats"}"#)["result"]["at_ns"].as_u64() > Some(0));
    // Two are up: one has to be named.
    bench.ok(&["up", "three.toml"]);
    assert_eq!(bench.refused(&["stats"]).0, Some(2));
    bench.ok(&["down", "--name", "three"]);
    assert!(ask(r#"{"do": "down"}"#)["result"]["lateness_ns"].is_object());
    wait_for("an empty folder", || {
        bench.ok(&["ls"]);
        bench.left().is_empty()
    });
}

#[test]
fn kill_leaves_nothing_and_the_next_one_starts() {
    let bench = Bench::new();
    // First the testbed itself is killed, then the keeper outside.
    for keeper in [false, true] {
        let up = bench.json(&["up", "three.toml", "--json"]);
        let pid = up["pid"].as_i64().expect("a process");
        let ns = std::fs::read_link(format!("/proc/{pid}/ns/pid")).expect("its namespace");
        let mut sleeper = Command::new(env!("CARGO_BIN_EXE_kuroshio"))
            .args(["testbed", "exec", "chicago", "--", "sleep", "3600"])
            .env("KUROSHIO_TESTBED_DIR", bench.dir.path().join("run"))
            .stderr(Stdio::null())
            .spawn()
            .expect("kuroshio");
        let before = members(&ns);
        wait_for("the program in the host", || members(&ns) > before);
        let victim = if keeper { keeper_of(pid) } else { pid };
        let status = Command::new("kill")
            .args(["-9", &victim.to_string()])
            .status()
            .expect("kill");
        assert!(status.success());
        wait_for("the end of its processes", || members(&ns) == 0);
        assert!(!sleeper.wait().expect("exec").success());
        wait_for("an empty folder", || {
            bench.ok(&["ls"]);
            bench.left().is_empty()
        });
    }
    bench.ok(&["up", "three.toml"]);
    bench.ok(&["down"]);
}

/// The process outside of the namespaces: the topmost above `pid` that is `kuroshio testbed keep`.
fn keeper_of(pid: i64) -> i64 {
    let parent = |pid: i64| -> Option<i64> {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        status
            .lines()
            .find_map(|l| l.strip_prefix("PPid:")?.trim().parse().ok())
    };
    let keeps = |pid: i64| {
        std::fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| line.split(|b| *b == 0).any(|word| word == b"keep"))
    };
    let mut top = pid;
    while let Some(above) = parent(top).filter(|p| *p > 1 && keeps(*p)) {
        top = above;
    }
    assert_ne!(top, pid);
    top
}
