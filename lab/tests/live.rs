//! A live run from end to end, and one in which the emulator is held on purpose.
//!
//! The program runs itself again inside the testbed's namespaces.

#[path = "../../host/testbed/tests/common/mod.rs"]
mod common;

use std::process::ExitCode;
use std::time::Duration;

use kuroshio_lab::experiment::parse;
use kuroshio_lab::lane::{self, Asked};
use kuroshio_lab::live::{Options, Run, run};
use kuroshio_lab::page;
use kuroshio_lab::result::{RunResult, write_trace};

fn main() -> ExitCode {
    common::run(&[
        ("a_run_leaves_its_figures", a_run_leaves_its_figures),
        ("a_stall_of_5_ms_is_seen", a_stall_of_5_ms_is_seen),
        ("a_download_over_lanes", a_download_over_lanes),
        ("packets_are_deskewed", packets_are_deskewed),
    ])
}

fn tiny(options: Options) -> Run {
    let e = parse("tiny", include_str!("tiny.toml")).expect("experiment");
    run(&e, options, &mut |line| eprintln!("{line}")).expect("run")
}

fn holds(r: &RunResult, name: &str) -> bool {
    let c = r.checks.iter().find(|c| c.name == name).expect(name);
    eprintln!("{}: {} [{}]: {}", c.name, c.value, c.bound, c.ok);
    c.ok
}

fn a_run_leaves_its_figures() {
    let run = tiny(Options::default());
    let r = &run.result;
    // What does not depend on the machine's leisure.
    assert!(holds(r, "lossless"));
    assert!(holds(r, "before the queue, by scheduled stamps"));
    let mean = r.measured["gap"]["mean_sum_goodput_mbps"].as_f64().expect("mean");
    // 8972 bytes of every 9018 + 8 + 36000; a stall at an end of the time shifts a few frames.
    let exact = 8972.0 / 45026.0 * 1000.0;
    assert!((mean / exact - 1.0).abs() < 0.05, "{mean} of {exact} Mbps");
    assert!(r.instrument.lateness[0].frames > 5000);
    assert_eq!(
        r.instrument.calibration.gaps,
        r.instrument.calibration.gaps_expected
    );
    // Half of the gaps are right to 100 us even beside a full load of compilers.
    assert!(
        r.instrument.calibration.error.p50_ns < 100_000,
        "{:?}",
        r.instrument.calibration
    );
    let dir = tempfile::tempdir().expect("folder");
    let e = parse("tiny", include_str!("tiny.toml")).expect("experiment");
    r.write(dir.path()).expect("run.json");
    write_trace(dir.path(), &e, &run.traces, 2_000_000).expect("trace");
    let page = page::run_report(&e, r, &run.traces, &run.sent)
        .write(dir.path())
        .expect("report");
    let read = RunResult::read(&dir.path().join("run.json")).expect("read back");
    assert_eq!((&read.checks, read.exit_code()), (&r.checks, r.exit_code()));
    let html = std::fs::read_to_string(page).expect("page");
    assert!(html.contains("16 ms") && html.contains("<svg"));
    let trace = std::fs::read_to_string(dir.path().join("trace.csv")).expect("trace");
    assert_eq!(trace.lines().count(), 2 + 1000);
}

fn a_stall_of_5_ms_is_seen() {
    let r = tiny(Options {
        stall: Some(Duration::from_millis(5)),
    })
    .result;
    assert!(!holds(&r, "every 16 ms window within 2.5 % of the mean"));
    assert!(!holds(&r, "emulator on time"));
    // By scheduled times nothing happened: only the instrument was late, and nothing was lost.
    assert!(holds(&r, "before the queue, by scheduled stamps"));
    assert!(holds(&r, "lossless"));
    assert_ne!(r.exit_code(), 0);
}

fn lanes(name: &str, only: &[&str]) -> RunResult {
    let asked = Asked {
        live: true,
        only: only.iter().map(|part| (*part).to_owned()).collect(),
    };
    let run = lane::run(name, &asked, &mut |line| eprintln!("{line}"));
    let (result, report) = run.expect("known").expect("run");
    let folder = tempfile::tempdir().expect("a folder");
    report.write(folder.path()).expect("a report");
    result.write(folder.path()).expect("a result");
    RunResult::read(&folder.path().join("run.json")).expect("read")
}

/// One profile through the tunnel, over MPTCP and over either lane: every figure is there. How large they are is the lab's matter.
fn a_download_over_lanes() {
    let result = lanes("lane-matrix", &["bw_4to1"]);
    let cell = &result.measured["mqvpn, bw_4to1"];
    let mbps = |key: &str| cell[key].as_f64().unwrap_or(0.0);
    for (key, most) in [
        ("goodput_mbps", 62.0),
        ("mptcp_goodput_mbps", 62.0),
        ("best_alone_goodput_mbps", 50.0),
    ] {
        assert!(mbps(key) > 0.1 && mbps(key) < most, "{key}: {cell}");
    }
    for frames in ["tunnel_frames_of_lanes", "mptcp_frames_of_lanes"] {
        let both = cell[frames].as_array().expect("two lanes");
        assert!(both.iter().all(|f| f.as_u64() > Some(50)), "{frames}: {cell}");
    }
    assert!(result.checks.iter().any(|c| c.name.contains("MPTCP")));
    assert_eq!(result.instrument.lateness.len(), 1);
}

/// Every packet of every phase comes, in order.
fn packets_are_deskewed() {
    let result = lanes("plb-deskew", &[]);
    assert_eq!(result.measured.len(), 5);
    for check in result.checks.iter().filter(|c| c.name.ends_with("packets")) {
        assert!(check.ok, "{}: {}", check.name, check.value);
    }
}
