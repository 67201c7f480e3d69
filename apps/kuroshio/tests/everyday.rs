//! The real command: serve, trust, cp and plan as a person starts them.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// A home of its own, so that no test sees another's trust.
struct Home {
    dir: TempDir,
}

impl Home {
    fn new() -> Self {
        Self {
            dir: tempfile::tempdir().expect("temp dir"),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kuroshio"));
        command.args(args).current_dir(self.dir.path());
        command
            .env("XDG_CONFIG_HOME", self.path("config"))
            .env("XDG_STATE_HOME", self.path("state"));
        command.env("KUROSHIO_LOG", "info").stdin(Stdio::null());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("started")
    }

    /// Runs and wants an exit code; both outputs are in the message if it differs.
    fn want(&self, code: i32, args: &[&str]) -> (String, String) {
        let output = self.run(args);
        let out = String::from_utf8_lossy(&output.stdout).into_owned();
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{args:?}\n{out}\n{err}");
        (out, err)
    }

    fn trust(&self, name: &str, ticket: &str) {
        let mut child = self
            .command(&["trust", "add", name])
            .stdin(Stdio::piped())
            .spawn()
            .expect("started");
        child
            .stdin
            .take()
            .expect("stdin")
            .write_all(ticket.as_bytes())
            .expect("written");
        assert!(child.wait().expect("ended").success());
    }

    fn tree(&self, name: &str) -> PathBuf {
        let at = self.path(name);
        fs::create_dir_all(at.join("sub")).expect("mkdir");
        for n in 0..30usize {
            fs::write(at.join(format!("sub/f{n}")), vec![n as u8; n * 1000]).expect("write");
        }
        let big = (0..3_000_000u32)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 11) as u8)
            .collect::<Vec<_>>();
        fs::write(at.join("big"), big).expect("write");
        at
    }
}

/// A `kuroshio serve` of a test; ended with it.
struct Serve {
    child: Child,
    ticket: String,
    address: String,
}

impl Serve {
    fn start(home: &Home, root: &str, more: &[&str]) -> Self {
        fs::create_dir_all(home.path(root)).expect("mkdir");
        let mut args = vec!["serve", "--root", root, "--json"];
        args.extend(more);
        if !more.contains(&"--listen") {
            args.extend(["--listen", "127.0.0.1:0"]);
        }
        let mut child = home
            .command(&args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("started");
        let mut log = BufReader::new(child.stderr.take().expect("stderr"));
        let mut line = String::new();
        while !line.starts_with('{') {
            line.clear();
            assert!(log.read_line(&mut line).expect("log") > 0, "serve ended");
        }
        let told: Value = serde_json::from_str(&line).expect("json");
        let address = told["addresses"][0].as_str().expect("address").to_owned();
        // The log must not fill its pipe.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        let mut ticket = String::new();
        if !more.contains(&"--insecure") {
            let mut out = BufReader::new(child.stdout.take().expect("stdout"));
            out.read_line(&mut ticket).expect("ticket");
        }
        Self {
            child,
            ticket,
            address,
        }
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(
            Command::new("kill")
                .args([name, &pid])
                .status()
                .expect("kill")
                .success()
        );
    }

    fn stop(mut self) {
        self.signal("-TERM");
        assert!(self.child.wait().expect("ended").success());
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn same(one: &Path, two: &Path) {
    let output = Command::new("diff")
        .arg("-r")
        .arg(one)
        .arg(two)
        .output()
        .expect("diff");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
}

fn json(text: &str) -> Value {
    serde_json::from_str(text.trim()).unwrap_or_else(|e| panic!("{e}: {text}"))
}

#[test]
fn copies_here_there_back_and_between() {
    let home = Home::new();
    let tree = home.tree("tree");
    fs::create_dir(home.path("here")).expect("mkdir");
    home.want(0, &["cp", "tree", "here"]);
    same(&tree, &home.path("here/tree"));
    home.want(0, &["cp", "--digest", "none", "tree/big", "renamed"]);
    assert_eq!(
        fs::read(tree.join("big")).expect("big"),
        fs::read(home.path("renamed")).expect("renamed")
    );
    home.want(0, &["cp", "tree/.", "contents/"]);
    same(&tree, &home.path("contents"));
    home.want(0, &["cp", "-T", "tree", "here"]);
    same(&tree.join("sub"), &home.path("here/sub"));

    let one = Serve::start(&home, "one", &["--state", "s1"]);
    let two = Serve::start(&home, "two", &["--state", "s2", "--listen", "[::1]:0"]);
    home.trust("one", &one.ticket);
    home.trust("two", &two.ticket);
    home.want(0, &["cp", "-q", "tree", "one:/"]);
    same(&tree, &home.path("one/tree"));
    let (out, err) = home.want(0, &["cp", "--json", "one:/tree", "two:/"]);
    same(&tree, &home.path("two/tree"));
    let report = json(&out);
    assert_eq!(
        (&report["ok"], &report["files_verified"]),
        (&Value::Bool(true), &Value::from(31))
    );
    assert!(
        err.lines()
            .all(|l| json(l).get("progress").is_some() || json(l).get("event").is_some()),
        "{err}"
    );
    home.want(0, &["cp", "two:/tree", "back"]);
    same(&tree, &home.path("back"));

    // Nothing to do is success; a dry run changes nothing and says what is missing.
    let (out, _) = home.want(0, &["cp", "--json", "--sync", "tree", "one:/"]);
    assert_eq!(
        (&json(&out)["files_skipped"], &json(&out)["bytes_sent"]),
        (&Value::from(31), &Value::from(0))
    );
    fs::write(home.path("one/tree/sub/f3"), "other").expect("write");
    let (out, _) = home.want(0, &["cp", "--sync", "--dry-run", "tree", "one:/"]);
    assert!(out.contains("sub/f3") && !out.contains("sub/f4"), "{out}");
    assert_eq!(fs::read(home.path("one/tree/sub/f3")).expect("kept"), b"other");
    let (out, _) = home.want(0, &["cp", "--json", "--sync=digest", "tree", "one:/"]);
    assert_eq!(json(&out)["files_durable"], Value::from(1));
    same(&tree, &home.path("one/tree"));
    one.stop();
    two.stop();
}

#[test]
fn bad_input_is_told_with_exit_code_2() {
    let home = Home::new();
    home.tree("tree");
    let site = Serve::start(&home, "root", &[]);
    home.trust("t", &site.ticket);
    let table: &[(&[&str], &str)] = &[
        (&["cp", "--rate", "800", "tree", "t:/"], "unit"),
        (&["cp", "--rate", "0bps", "tree", "t:/"], "--rate"),
        (
            &["cp", "--rate", "12kbps", "--streams", "1", "tree", "t:/"],
            "frame",
        ),
        (&["cp", "--rate", "100kbps", "tree/big", "t:/"], "frame"),
        (&["cp", "--via", "127.0.0.1@9", "tree", "t:/"], "unit"),
        (&["cp", "--via", "a b", "tree", "t:/"], "a b"),
        (&["cp", "--via", "x", "tree", "y"], "--via"),
        (&["cp", "--streams", "0", "tree", "t:/"], "--streams"),
        (&["cp", "--streams", "300", "tree", "t:/"], "256"),
        (&["cp", "--sync=maybe", "tree", "t:/"], "maybe"),
        (&["cp", "--digest", "md5", "tree", "t:/"], "md5"),
        (&["cp", "--congestion", "nope", "tree", "t:/"], "nope"),
        (&["cp", "--congestion", "nope", "t:/", "x"], "nope"),
        (&["cp", "--plan", "t", "tree", "t:/"], "no rate plan"),
        (&["cp", "missing", "t:/"], "missing"),
        (&["cp", "t:/missing", "x"], "missing"),
        (&["cp", "tree", "no/such/folder"], "no/such/folder"),
        (&["cp", "unknown:/x", "y"], "unknown"),
        (&["cp", "t:/../x", "y"], ".."),
        (&["cp", "tree", "t:/a/../../x"], ".."),
        (&["cp", "tree", "tree/sub", "tree/../tree", "t:/"], "`tree`"),
        (&["cp", "tree", "t:/", "x"], "at a service"),
        (&["cp", "http://127.0.0.1:1/x", "y"], "--insecure"),
        (&["cp", "https://127.0.0.1:1/x", "y"], "ticket"),
        (&["cp", "--insecure", "http://127.0.0.1/x", "y"], "port"),
        (&["cp", "tree"], "SRC... DST"),
        (&["cp", "", "x"], "empty"),
        (&["plan", "set", "t", "la", "capacity=1"], "unit"),
        (&["plan", "set", "t", "la", "speed=1G"], "capacity=RATE"),
        (&["plan", "show", "t"], "no rate plan"),
        (&["trust", "show", "unknown"], "unknown"),
        (&["trust", "rm", "unknown"], "unknown"),
        (&["trust", "add", "x"], "not a ticket"),
        (
            &["serve", "--root", "r", "--insecure", "--listen", "0.0.0.0:0"],
            "--insecure-anywhere",
        ),
        (&["serve", "--root", "tree", "--plan", "tree/big"], "plan"),
        (
            &["serve", "--print-ticket", "--scope", "storage.write:/"],
            "storage.write",
        ),
        (&["serve", "--print-ticket", "--valid", "0d"], "--valid"),
        (&["serve", "--print-ticket", "--state", "none"], "none"),
        (&["serve"], "--root"),
    ];
    for (args, why) in table {
        let output = home.run(args);
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        let code = output.status.code();
        let wanted = if args.contains(&"tree/big") && args.contains(&"--plan") {
            1..=2
        } else {
            2..=2
        };
        assert!(
            code.is_some_and(|c| wanted.contains(&c)),
            "{args:?}: {code:?} {err}"
        );
        assert!(err.contains(why), "{args:?}: {err}");
        assert!(!err.contains("panicked"), "{args:?}: {err}");
    }
    let (out, _) = home.want(2, &["cp", "--json", "missing", "t:/"]);
    assert_eq!(json(&out)["ok"], Value::Bool(false));
    assert_eq!(
        fs::read_dir(home.path("root")).expect("root").count(),
        0,
        "something was written"
    );
}

#[test]
fn failures_of_the_other_side_have_exit_code_1() {
    let home = Home::new();
    home.tree("tree");
    let one = Serve::start(&home, "one", &["--state", "s1"]);
    let two = Serve::start(&home, "two", &["--state", "s2"]);
    let parts = |ticket: &str| ticket.trim().split(',').map(str::to_owned).collect::<Vec<_>>();
    let (a, b) = (parts(&one.ticket), parts(&two.ticket));
    home.trust("pin", &format!("kuroshio1,{},{},{}", a[1], b[2], a[3]));
    home.trust("token", &format!("kuroshio1,{},{},{}", a[1], a[2], b[3]));
    let (_, err) = home.want(1, &["cp", "-q", "tree", "pin:/"]);
    assert!(err.contains(&a[2]) && err.contains(&b[2]), "{err}");
    let (_, err) = home.want(1, &["cp", "-q", "tree", "token:/"]);
    assert!(err.contains("401") && err.contains("wrong token"), "{err}");
    assert!(!err.contains(&b[3]), "the token is shown: {err}");
    home.trust("one", &one.ticket);
    one.stop();
    let (_, err) = home.want(1, &["cp", "-q", "tree", "one:/"]);
    assert!(err.contains("cannot connect"), "{err}");
}

#[test]
fn the_ticket_is_told_once_and_kept_privately() {
    let home = Home::new();
    let site = Serve::start(&home, "root", &[]);
    let ticket = site.ticket.trim().to_owned();
    let address = site.address.clone();
    assert!(ticket.contains(&address), "{ticket} {address}");
    site.stop();
    let again = home.command(&["serve", "--root", "root", "--json", "--listen", &address]);
    let mut again = { again }
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    let mut log = BufReader::new(again.stderr.take().expect("stderr"));
    let mut line = String::new();
    while !line.starts_with('{') {
        line.clear();
        assert!(log.read_line(&mut line).expect("log") > 0, "serve ended");
    }
    let pid = again.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-INT", &pid])
            .status()
            .expect("kill")
            .success()
    );
    assert!(again.wait().expect("ended").success());
    let mut out = String::new();
    again
        .stdout
        .take()
        .expect("stdout")
        .read_to_string(&mut out)
        .expect("read");
    assert_eq!(out, "", "the ticket was told again");
    let (out, _) = home.want(0, &["serve", "--print-ticket"]);
    assert_eq!(out.trim(), ticket);
    home.trust("t", &ticket);
    let file = home.path("config/kuroshio/trust.toml");
    assert_eq!(
        fs::metadata(&file).expect("trust").permissions().mode() & 0o777,
        0o600
    );
    let (out, _) = home.want(0, &["trust", "ls"]);
    let token = ticket.rsplit(',').next().expect("token");
    assert!(out.contains(&address) && !out.contains(token), "{out}");
    let (out, _) = home.want(0, &["trust", "show", "t", "--curl"]);
    assert!(out.contains(token) && out.contains("pinnedpubkey"), "{out}");
    home.want(0, &["trust", "rm", "t"]);
    home.want(2, &["trust", "show", "t"]);
}

#[test]
fn a_killed_copy_goes_on_where_it_was() {
    let home = Home::new();
    let tree = home.tree("tree");
    // Ten seconds at the rate below, of which the two that are ended have one or two each.
    fs::write(tree.join("more"), vec![5; 12_000_000]).expect("write");
    let site = Serve::start(&home, "root", &["--insecure"]);
    let to = format!("http://{}/in", site.address);
    for signal in ["-KILL", "-INT"] {
        let args = [
            "cp",
            "--insecure",
            "--json",
            "--rate",
            "12M",
            "--streams",
            "2",
            "tree",
            &to,
        ];
        let mut child = home
            .command(&args)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("started");
        // The first progress line comes after a second, with more than a megabyte moved.
        let mut lines = BufReader::new(child.stderr.take().expect("stderr")).lines();
        let moved = lines.find_map(|line| {
            json(&line.ok()?)["progress"]["bytes_acknowledged"]
                .as_u64()
                .filter(|n| *n > 0)
        });
        assert!(moved.is_some(), "ended before it could be ended");
        let pid = child.id().to_string();
        assert!(
            Command::new("kill")
                .args([signal, &pid])
                .status()
                .expect("kill")
                .success()
        );
        assert_ne!(child.wait().expect("ended").code(), Some(0));
    }
    // The service lets go of the session when it sees the end of its connections.
    let deadline = Instant::now() + Duration::from_secs(60);
    let report = loop {
        let output = home.run(&["cp", "--insecure", "--json", "tree", &to]);
        let report = json(&String::from_utf8_lossy(&output.stdout));
        if report["ok"] == Value::Bool(true) {
            break report;
        }
        assert!(Instant::now() < deadline, "{report}");
    };
    let number = |name: &str| {
        report[name]
            .as_u64()
            .unwrap_or_else(|| panic!("{name}: {report}"))
    };
    assert!(
        number("bytes_sent") < number("bytes"),
        "all was sent again: {report}"
    );
    same(&tree, &home.path("root/in"));
    assert!(!home.path("root/.kuroshio-partial").exists());
}

#[test]
fn a_plan_is_shown_and_changed() {
    let home = Home::new();
    fs::write(
        home.path("plan.toml"),
        "[[route]]\nname = \"la\"\ncapacity = \"400Mbps\"\nheadroom = \"0\"\nto = [\"127.0.0.0/8\"]\n",
    )
    .expect("write");
    let site = Serve::start(&home, "root", &["--plan", "plan.toml"]);
    home.trust("t", &site.ticket);
    home.tree("tree");
    let (out, _) = home.want(0, &["plan", "show", "t"]);
    assert!(out.contains("la") && out.contains("400"), "{out}");
    let (out, _) = home.want(0, &["plan", "set", "t", "la", "capacity=312Mbps", "--json"]);
    assert_eq!(
        json(&out)["routes"][0]["capacity_bps"],
        Value::from(312_000_000u64)
    );
    let (_, err) = home.want(2, &["plan", "set", "t", "ny", "capacity=312Mbps"]);
    assert!(err.contains("la"), "{err}");
    home.want(0, &["cp", "-q", "--plan", "t", "tree", "t:/"]);
    same(&home.path("tree"), &home.path("root/tree"));
    home.want(0, &["cp", "-q", "t:/tree", "back"]);
    same(&home.path("tree"), &home.path("back"));
}

#[test]
fn every_verb_helps_with_an_example() {
    let home = Home::new();
    for args in [
        &["serve", "--help"][..],
        &["trust", "--help"],
        &["cp", "--help"],
        &["plan", "--help"],
        &["plan", "set", "--help"],
    ] {
        let (out, _) = home.want(0, args);
        assert!(out.contains("Example"), "{args:?}");
    }
}
