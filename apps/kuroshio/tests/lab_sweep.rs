//! `kuroshio lab sweep` as a person runs it.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn kuroshio(args: &[&str], out: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kuroshio"));
    command.args(["lab", "sweep"]).args(args).arg("--out").arg(out);
    command.stdin(Stdio::null());
    command
}

#[test]
fn a_sweep_leaves_a_row_for_every_combination_and_phase() {
    let dir = tempfile::tempdir().expect("a folder");
    let out = dir.path().join("sweep");
    let sets = [
        "psp-slow-start",
        "--set",
        "duration=1s",
        "--set",
        "link.ocean.queue=100kB,1MB",
        "--json",
    ];
    let run = kuroshio(&sets, &out).output().expect("it runs");
    assert_eq!(
        run.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&run.stderr)
    );
    let table: serde_json::Value = serde_json::from_slice(&run.stdout).expect("JSON");
    let rows = table["rows"].as_array().expect("rows");
    let seen: Vec<_> = rows
        .iter()
        .map(|r| (r["link.ocean.queue"].as_str(), r["phase"].as_str()))
        .collect();
    assert_eq!(
        seen,
        [
            (Some("100kB"), Some("dynamic")),
            (Some("100kB"), Some("none")),
            (Some("1MB"), Some("dynamic")),
            (Some("1MB"), Some("none")),
        ]
    );
    assert!(
        rows.iter()
            .all(|r| r["mean_sum_frame_mbps"].as_f64().is_some_and(|v| v > 1.0))
    );
    let csv = std::fs::read_to_string(out.join("sweep.csv")).expect("a table");
    assert!(csv.starts_with("duration,link.ocean.queue,phase,"), "{csv}");
    assert_eq!(csv.lines().count(), 1 + rows.len());
    // What stands there is not written over.
    let again = kuroshio(&sets, &out).output().expect("it runs");
    assert_eq!(again.status.code(), Some(2));
}

#[test]
fn what_cannot_be_run_is_refused_before_anything_is_started() {
    let dir = tempfile::tempdir().expect("a folder");
    let out = dir.path().join("sweep");
    for (set, says) in [
        ("link.nowhere.queue=1MB", "no link"),
        ("link.ocean.queue=1MB,7", "unit"),
        ("flow.stream.congestion=bbr", "reno, bic"),
        ("colour=red", "link.NAME"),
        ("seed=", "empty"),
    ] {
        let run = kuroshio(&["psp-slow-start", "--set", set], &out)
            .output()
            .expect("it runs");
        let text = String::from_utf8_lossy(&run.stderr).into_owned();
        assert_eq!(run.status.code(), Some(2), "{set}: {text}");
        assert!(text.contains(says), "{set}: {text}");
        assert!(!out.exists(), "{set}");
    }
}

/// The processes whose parent is `pid`.
fn children(pid: u32) -> Vec<u32> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().filter_map(|n| n.parse().ok()).collect()
}

/// Waits until `found` says yes; says whether it did within half a minute.
fn within(mut found: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + Duration::from_secs(30);
    while Instant::now() < end {
        if found() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    false
}

#[test]
fn runs_end_with_the_sweep_that_was_killed() {
    let dir = tempfile::tempdir().expect("a folder");
    let out = dir.path().join("sweep");
    // An hour of virtual time: longer than this test waits.
    let sets = [
        "pfldnet",
        "--set",
        "seed=1,2,3",
        "--set",
        "duration=3600s",
        "--jobs",
        "2",
    ];
    let mut sweep = kuroshio(&sets, &out)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let mut runs = Vec::new();
    let started = within(|| {
        runs = children(sweep.id());
        // Two at once, and both past the point where they tie themselves to their parent: they have said so.
        let said = |n: &str| std::fs::metadata(out.join(n).join("log.txt")).is_ok_and(|m| m.len() > 0);
        runs.len() == 2 && said("0001") && said("0002")
    });
    sweep.kill().expect("killed");
    sweep.wait().expect("ended");
    // A killed process that nobody has waited for yet has no command line.
    let lives = |pid: &u32| std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|text| !text.is_empty());
    let ended = within(|| !runs.iter().any(lives));
    for pid in runs.iter().filter(|pid| lives(pid)) {
        let _ = Command::new("kill").args(["-9", &pid.to_string()]).status();
    }
    assert!(started && ended, "started: {started}, ended: {ended}, {runs:?}");
}
