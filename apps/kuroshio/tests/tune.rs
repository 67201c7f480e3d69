//! `kuroshio tune` as a person starts it. Changes are made in a network namespace of the test's own only.

use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

fn kuroshio(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kuroshio"))
        .arg("tune")
        .args(args)
        .stdin(Stdio::null())
        .output()
        .expect("started")
}

#[test]
fn bad_input_is_refused_with_a_clear_text() {
    let table: &[(&[&str], &str)] = &[
        (&[], "--rate"),
        (&["--rate", "10G"], "--rtt"),
        (&["--rate", "10", "--rtt", "200ms"], "has no unit"),
        (&["--rate", "0bps", "--rtt", "200ms"], "is zero"),
        (&["--rate", "10G", "--rtt", "200"], "has no unit"),
        (&["--rate", "10G", "--rtt", "0s"], "from 1us to 60s"),
        (&["--rate", "10G", "--rtt", "61s"], "from 1us to 60s"),
        (
            &["--rate", "10G", "--rtt", "200ms", "--streams", "0"],
            "from 1 to 10000",
        ),
        (
            &["--rate", "10G", "--rtt", "200ms", "--dev", "a/b"],
            "not the name of an interface",
        ),
        (
            &["--rate", "10G", "--rtt", "200ms", "--dev", "no-such-dev"],
            "--dev no-such-dev",
        ),
        (
            &["--rate", "10G", "--rtt", "200ms", "--mtu", "9000"],
            "has no unit",
        ),
        (
            &["--rate", "10G", "--rtt", "200ms", "--mtu", "100B"],
            "from 1280B",
        ),
        (&["--undo", "--apply"], "cannot be used with"),
        (
            &["--undo", "--undo-file", "/nonexistent/undo.json"],
            "no such file",
        ),
        (&["--undo", "--undo-file", "/proc/self/cmdline"], "undo file"),
    ];
    for (args, why) in table {
        let done = kuroshio(args);
        let err = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(2), "{args:?}: {err}");
        assert!(err.contains(why), "{args:?}: {err}");
    }
}

#[test]
fn the_paper_s_path_is_explained() {
    let done = kuroshio(&["--rate", "7G", "--rtt", "400ms", "--dev", "lo", "--json"]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let need: Value = serde_json::from_slice(&done.stdout).expect("json");
    assert_eq!(need["window_bytes"], 350_000_000);
    assert_eq!(need["socket_buffer_bytes"], 1_050_000_000);
    assert_eq!(need["applied"], Value::Null);
    let items = need["items"].as_array().expect("items");
    for item in items {
        for key in ["name", "current", "wanted", "ok", "reason", "command"] {
            assert!(item.get(key).is_some(), "{key} in {item}");
        }
        assert_ne!(item["reason"], "", "{item}");
    }
    for name in [
        "net.ipv4.tcp_rmem",
        "net.core.netdev_max_backlog",
        "lo txqueuelen",
        "lo mtu",
        "lo qdisc",
    ] {
        assert!(items.iter().any(|i| i["name"] == name), "{name}");
    }
    let text = kuroshio(&["--rate", "7G", "--rtt", "400ms"]);
    assert!(String::from_utf8_lossy(&text.stdout).contains("350000000 bytes"));
}

/// In one namespace: a device, apply, a look, undo, a look. The parts are told apart by lines of `--`.
const SCRIPT: &str = r#"
set -eu
[ "$(readlink /proc/self/ns/net)" != "$OUTSIDE" ] || exit 9
look() {
    cat /proc/sys/net/ipv4/tcp_rmem /proc/sys/net/ipv4/tcp_wmem /proc/sys/net/ipv4/tcp_slow_start_after_idle
    ip -o link show dev v0 | sed 's/.*mtu \([0-9]*\).*qlen \([0-9]*\).*/\1 \2/'
}
ip link add v0 type veth peer name v1
ip link set dev v0 up
look; echo --
"$BIN" tune --rate 10G --rtt 200ms --dev v0 --mtu 9000B --apply --undo-file "$UNDO" --json; echo --
look; echo --
test -s "$UNDO"
"$BIN" tune --rate 10G --rtt 200ms --dev v0 --mtu 9000B --apply --undo-file "$UNDO" --json; echo --
"$BIN" tune --undo --undo-file "$UNDO" --json; echo --
look; echo --
test ! -e "$UNDO"
"#;

#[test]
fn what_is_applied_in_a_namespace_is_there_and_is_undone() {
    let dir = TempDir::new().expect("folder");
    let outside = std::fs::read_link("/proc/self/ns/net").expect("namespace");
    let flags = if rustix::process::geteuid().is_root() {
        "-n"
    } else {
        "-Urn"
    };
    let host = || std::fs::read_to_string("/proc/sys/net/ipv4/tcp_rmem").expect("tcp_rmem");
    let host_before = host();
    let done = Command::new("unshare")
        .args([flags, "sh", "-c", SCRIPT])
        .env("BIN", env!("CARGO_BIN_EXE_kuroshio"))
        .env("UNDO", dir.path().join("state/undo.json"))
        .env("OUTSIDE", outside)
        .stdin(Stdio::null())
        .output()
        .expect("unshare");
    let (out, err) = (
        String::from_utf8_lossy(&done.stdout),
        String::from_utf8_lossy(&done.stderr),
    );
    assert!(done.status.success(), "{out}\n{err}");
    let parts: Vec<&str> = out.split("--\n").map(str::trim).collect();
    let [before, applied, between, again, undone, after, ""] = parts[..] else {
        panic!("{out}");
    };
    let applied: Value = serde_json::from_str(applied).expect("json");
    let outcomes = applied["applied"].as_array().expect("outcomes");
    assert!(outcomes.len() >= 4, "{applied}");
    assert!(outcomes.iter().all(|o| o["error"].is_null()), "{applied}");
    let lines: Vec<&str> = between.lines().collect();
    assert!(lines[0].ends_with("750000000"), "{between}");
    assert!(lines[1].ends_with("750000000"), "{between}");
    assert_eq!(lines[2], "0", "{between}");
    // 12 ms of 10 Gbps in frames of 9018 bytes are 1,664.
    assert_eq!(lines[3], "9000 1664", "{between}");
    assert_ne!(before, between);
    let again: Value = serde_json::from_str(again).expect("json");
    assert_eq!(again["applied"].as_array().map(Vec::len), Some(0), "{again}");
    let undone: Value = serde_json::from_str(undone).expect("json");
    assert_eq!(undone["undone"].as_array().map(Vec::len), Some(outcomes.len()));
    assert_eq!(before, after);
    assert_eq!(host(), host_before);
}
