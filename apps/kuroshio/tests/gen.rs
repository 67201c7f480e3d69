//! `kuroshio gen` between two processes on loopback: figures, exit codes, and what is refused.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

fn kuroshio(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kuroshio"))
        .args(args)
        .output()
        .expect("kuroshio")
}

/// A receiver, ended with this.
struct Receiver {
    child: Child,
    at: String,
}

impl Receiver {
    fn start() -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_kuroshio"))
            .args(["gen", "recv", "--json", "--listen", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("a receiver");
        let mut line = String::new();
        let out = child.stdout.take().expect("its output");
        BufReader::new(out).read_line(&mut line).expect("a line");
        let heard: Value = serde_json::from_str(&line).expect("JSON");
        let at = heard["listening"].as_str().expect("an address").to_owned();
        Self { child, at }
    }

    fn send(&self, more: &[&str]) -> (Option<i32>, Value, String) {
        let out = kuroshio(&[&["gen", "send", &self.at], more].concat());
        let value = serde_json::from_slice(&out.stdout).unwrap_or(Value::Null);
        (
            out.status.code(),
            value,
            String::from_utf8_lossy(&out.stderr).into_owned(),
        )
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn every_pattern_is_sent_and_counted() {
    let receiver = Receiver::start();
    let dir = tempfile::tempdir().expect("a folder");
    let list = dir.path().join("list");
    std::fs::write(&list, "0s, 64B\n100us, 1518B\n").expect("a list");
    let list = list.to_str().expect("UTF-8");
    for (pattern, more) in [
        ("constant", &["--rate", "10Mbps", "--size", "imix"][..]),
        (
            "constant",
            &["--gap", "12000B", "--wire", "1Gbps", "--size", "64B-9018B"],
        ),
        ("poisson", &["--rate", "10Mbps", "--streams", "4"]),
        ("on-off", &["--rate", "50Mbps", "--on", "1ms", "--off", "1ms"]),
        ("list", &["--file", list, "--repeat"]),
    ] {
        let all = [&["--pattern", pattern, "--frames", "200", "--json"], more].concat();
        let (code, report, error) = receiver.send(&all);
        assert_eq!(code, Some(0), "{pattern}: {error}");
        assert_eq!(report["sent"]["frames"], 200, "{report}");
        assert_eq!(report["clock"]["kind"], "same_machine");
        let streams = report["received"]["streams"].as_array().expect("streams");
        let sum = |name: &str| streams.iter().filter_map(|s| s[name].as_u64()).sum::<u64>();
        let dropped = report["received"]["receiver_dropped_frames"].as_u64();
        assert_eq!(Some(sum("lost_frames")), dropped, "{report}");
        assert_eq!(sum("sent_frames"), 200);
    }
}

#[test]
fn what_means_nothing_is_refused_with_exit_code_two() {
    let receiver = Receiver::start();
    for (args, says) in [
        (&["--rate", "5"][..], "no unit"),
        (&["--pattern", "sine"], "poisson"),
        (&["--rate", "1Mbps", "--size", "63B"], "64B to 9018B"),
        (&["--rate", "1Mbps", "--streams", "1025"], "1024"),
        (&["--pattern", "poisson"], "--rate is missing"),
        (&["--pattern", "replay", "--file", "/dev/null"], "too short"),
        (&["--rate", "1Mbps", "--repeat"], "only for lists"),
    ] {
        let (code, _, error) = receiver.send(args);
        assert_eq!(code, Some(2), "{args:?}: {error}");
        assert!(error.contains(says), "{args:?}: {error}");
    }
    let (code, report, _) = receiver.send(&["--rate", "1Mbps", "--frames", "3", "--json"]);
    assert_eq!((code, &report["sent"]["frames"]), (Some(0), &Value::from(3)));
}

#[test]
fn a_search_for_capacity_is_answered_by_a_probe_server() {
    let mut server = Command::new(env!("CARGO_BIN_EXE_kuroshio"))
        .args(["probe", "-s", "-1", "--listen", "127.0.0.1:0"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a server");
    let mut line = String::new();
    let out = server.stderr.take().expect("its output");
    BufReader::new(out).read_line(&mut line).expect("a line");
    let port = line.trim().rsplit(':').next().unwrap_or_default().to_owned();
    let out = kuroshio(&[
        "probe",
        "-c",
        "127.0.0.1",
        "-p",
        &port,
        "--find-capacity",
        "--max-rate",
        "5Mbps",
        "--train-time",
        "50ms",
        "--json",
    ]);
    let _ = server.kill();
    let _ = server.wait();
    let report: Value = serde_json::from_slice(&out.stdout).unwrap_or(Value::Null);
    let error = String::from_utf8_lossy(&out.stderr);
    // Loopback has more than that; a busy machine may send less evenly, which it says.
    let outcome = report["outcome"].as_str().unwrap_or_default().to_owned();
    assert!(
        !outcome.is_empty() && report["trains"].as_u64() > Some(0),
        "{line} {report} {error}"
    );
    assert_eq!(
        out.status.code(),
        Some(i32::from(
            !["at_least", "found", "dispersion"].contains(&&*outcome)
        ))
    );
    let refused = kuroshio(&["probe", "-c", "127.0.0.1", "--max-rate", "5Mbps"]);
    assert_eq!(refused.status.code(), Some(2));
}
