//! `kuroshio pace` as a person starts it; what changes anything runs in a network namespace of the test's own.

use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

fn kuroshio(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kuroshio"))
        .arg("pace")
        .args(args)
        .stdin(Stdio::null())
        .output()
        .expect("started")
}

#[test]
fn bad_input_is_refused_with_a_clear_text() {
    let dir = TempDir::new().expect("folder");
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).expect("written");
        path.to_str().expect("text").to_owned()
    };
    let odd = file("odd.toml", "[[rule]]\nrate = \"1M\"\nspeed = 1\n");
    let none = file("none.toml", "");
    let state = file("state.json", "{}");
    let table: &[(&[&str], &str)] = &[
        (&[], "Usage"),
        (&["apply"], "--rate"),
        (&["apply", "--rate", "500"], "has no unit"),
        (&["apply", "--rate", "0bps"], "is zero"),
        (&["apply", "--rate", "1kbps"], "8kbps to 800G is valid"),
        (
            &["apply", "--rate", "1M", "--to", "10.0.0.1/8"],
            "bits after the prefix",
        ),
        (&["apply", "--rate", "1M", "--to", "tokyo"], "not an IP address"),
        (&["apply", "--rate", "1M", "--port", "0"], "1 to 65535 is valid"),
        (&["apply", "--rate", "1M", "--port", "65536"], "65536"),
        (&["apply", "--rate", "1M", "--cgroup", "bulk"], "absolute path"),
        (&["apply", "--rate", "1M", "--cgroup", "/proc"], "cgroup.procs"),
        (&["apply", "--rate", "1M", "--mode", "fast"], "invalid value"),
        (
            &["apply", "--rate", "1M", "--backend", "tbf"],
            "auto, psp, fq and tcp are valid",
        ),
        (
            &["apply", "--rate", "1M", "--dev", "no/dev"],
            "not the name of an interface",
        ),
        (
            &["apply", "--rate", "1M", "--dev", "no-such-dev"],
            "--dev no-such-dev",
        ),
        (
            &["apply", "--config", &odd, "--rate", "1M"],
            "cannot be used with",
        ),
        (&["apply", "--config", &odd], "speed"),
        (&["apply", "--config", &none], "rule"),
        (&["apply", "--config", "/nonexistent.toml"], "No such file"),
        (&["show", "--dev", "no-such-dev"], "--dev no-such-dev"),
        (&["show", "--state-file", &state], "not a state file"),
        (&["clear", "--state-file", &state], "not a state file"),
    ];
    let unused = dir.path().join("unused.json");
    for (args, why) in table {
        let mut args = args.to_vec();
        if !args.is_empty() && !args.contains(&"--state-file") {
            args.extend(["--state-file", unused.to_str().expect("text")]);
        }
        let done = kuroshio(&args);
        let err = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(2), "{args:?}: {err}");
        assert!(err.contains(why), "{args:?}: {err}");
        assert!(!unused.exists(), "{args:?}");
    }
    let done = kuroshio(&["clear", "--state-file", unused.to_str().expect("text")]);
    assert_eq!(done.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&done.stderr).contains("no rates are in force"));
}

/// In one namespace: rules of a file in force, looked at, taken off. The parts are told apart by lines of `--`.
const SCRIPT: &str = r#"
set -eu
[ "$(readlink /proc/self/ns/net)" != "$OUTSIDE" ] || exit 9
ip link set dev lo up
pace() { "$BIN" pace --state-file "$STATE" "$@"; }
pace apply --backend tcp --config "$RULES"; echo --
pace show --dev lo; echo --
pace show --dev lo --json; echo --
if pace apply --rate 1M 2>"$STATE.err"; then exit 8; else [ $? = 2 ] || exit 7; fi
cat "$STATE.err"; echo --
pace clear; echo --
pace show --dev lo --json; echo --
test ! -e "$STATE"
"#;

#[test]
fn rates_are_put_in_force_shown_and_taken_off() {
    if !rustix::process::geteuid().is_root() {
        println!("a BPF program needs root: not run");
        return;
    }
    let dir = TempDir::new().expect("folder");
    let rules = dir.path().join("rules.toml");
    let text = "[[rule]]\nto = \"127.0.0.0/8\"\nport = 2811\nrate = \"500M\"\n\
                [[rule]]\nto = \"::1\"\nrate = \"1G\"\nmode = \"dynamic\"\n";
    std::fs::write(&rules, text).expect("written");
    let done = Command::new("unshare")
        .args(["-n", "sh", "-c", SCRIPT])
        .env("BIN", env!("CARGO_BIN_EXE_kuroshio"))
        .env("STATE", dir.path().join("pace.json"))
        .env("RULES", &rules)
        .env(
            "OUTSIDE",
            std::fs::read_link("/proc/self/ns/net").expect("namespace"),
        )
        .stdin(Stdio::null())
        .output()
        .expect("unshare");
    let (out, err) = (
        String::from_utf8_lossy(&done.stdout),
        String::from_utf8_lossy(&done.stderr),
    );
    assert!(done.status.success(), "{out}\n{err}");
    let parts: Vec<&str> = out.split("--\n").map(str::trim).collect();
    let [applied, shown, json, twice, cleared, after, ""] = parts[..] else {
        panic!("{out}");
    };
    for text in [
        "paced by tcp: TCP itself",
        "rule to 127.0.0.0/8 port 2811: 500Mbps",
        "rule to ::1/128: cwnd / RTT, 1Gbps at most",
        "note the rate is each connection's own",
        "note bursts of about 1 ms",
    ] {
        assert!(applied.contains(text), "{text}: {applied}");
    }
    assert!(
        shown.contains("(0 connections so far)") && shown.contains("tcp: ready"),
        "{shown}"
    );
    let json: Value = serde_json::from_str(json).expect("json");
    assert_eq!(json["in_force"]["backend"], "tcp");
    assert_eq!(json["in_force"]["whole"], true);
    assert_eq!(json["in_force"]["rules"][0]["rule"]["rate_bps"], 500_000_000);
    assert_eq!(json["in_force"]["rules"][1]["rule"]["mode"], "dynamic");
    assert_eq!(json["host"]["tcp"], "ready");
    assert!(twice.contains("in force already"), "{twice}");
    assert!(cleared.starts_with("gone: BPF program on "), "{cleared}");
    let after: Value = serde_json::from_str(after).expect("json");
    assert_eq!(after["in_force"], Value::Null);
}
