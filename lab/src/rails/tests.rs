//! Runs at small sizes, and what is refused.

use super::*;

fn request(mode: Mode, sets: &[(&str, &str)]) -> Request {
    let sets = sets.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
    Request {
        mode,
        sets: sets.collect(),
        work: PathBuf::new(),
    }
}

fn made(name: &str, request: &Request) -> Made {
    let about = about(name).expect("an experiment");
    run(about, request, &mut |line| eprintln!("{line}")).expect("a run")
}

#[test]
fn what_an_experiment_does_not_have_is_refused() {
    let fps = about("rails-fps").expect("an experiment");
    let global = about("plb-global").expect("an experiment");
    assert!(about("rails").is_none());
    for (about, request, says) in [
        (fps, request(Mode::Sim, &[]), "--live or --vm"),
        (global, request(Mode::Vm, &[]), "--live or --sim"),
        (
            fps,
            request(Mode::Live, &[("seed", "1")]),
            "size, time, runs, held",
        ),
        (fps, request(Mode::Live, &[("time", "1")]), "10ms to 60s"),
        (fps, request(Mode::Live, &[("held", "65")]), "1 to 64"),
        (fps, request(Mode::Live, &[("runs", "0")]), "1 to 99"),
        (
            global,
            request(Mode::Sim, &[("size", "8x8")]),
            "64x32 to 7680x4320",
        ),
        (global, request(Mode::Sim, &[("time", "1h")]), "1s to 600s"),
    ] {
        let error = run(about, &request, &mut |_| {}).expect_err(says);
        assert!(
            matches!(&error, RailsError::Bad(text) if text.contains(says)),
            "{error}"
        );
    }
}

#[test]
fn the_lanes_are_de_skewed_in_virtual_time() {
    let request = request(Mode::Sim, &[("size", "480x270"), ("time", "2s")]);
    let made = made("plb-global", &request);
    let failed: Vec<_> = made.result.checks.iter().filter(|c| !c.ok).collect();
    assert!(failed.is_empty(), "{failed:?}");
    assert_eq!(made.result.measured["deskewed"]["whole_pictures"], 60);
    // What is left is whole, and the picture is in it.
    let dir = tempfile::tempdir().expect("a folder");
    let page = made.write(dir.path()).expect("written");
    let html = std::fs::read_to_string(page).expect("a page");
    assert!(html.contains("data:image/png;base64,") && html.contains("150 ms"));
    let png = std::fs::read(dir.path().join("plb-global.png")).expect("a picture");
    assert_eq!(&png[1..4], b"PNG");
    let read = RunResult::read(&dir.path().join("run.json")).expect("a result");
    assert!(read.all_hold());
    assert_eq!(read.checks, made.result.checks);
}

#[test]
fn two_senders_are_measured_where_they_were_put() {
    let sets = [
        ("size", "320x180"),
        ("time", "50ms"),
        ("runs", "1"),
        ("held", "2"),
    ];
    let made = made("rails-fps", &request(Mode::Live, &sets));
    let held = |name: &str| {
        let found = made.result.checks.iter().find(|c| c.name == name).expect(name);
        assert!(found.ok, "{found:?}");
    };
    held("plan for the paper's host");
    held("it carries the paper's pictures");
    held("every thread and its memory where its row says");
    for row in ["A", "B", "C", "D"] {
        // How many a busy machine sends in so short a time is not the test's.
        assert!(made.result.measured[row]["pictures_fps"].is_f64(), "{row}");
    }
    assert!(
        made.report()
            .tables
            .iter()
            .any(|t| t.title == "The paper's rows on this machine")
    );
}
