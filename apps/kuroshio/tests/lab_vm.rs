//! `kuroshio lab run --vm`: what a machine leaves becomes a result; where it cannot run it says why, and starts nothing.
//!
//! The machine here is a script in its place: what the real one says is for the experiments, not for this test.

use std::path::Path;
use std::process::{Command, Output, Stdio};

fn run(args: &[&str], out: &Path, vars: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kuroshio"));
    command
        .args(["lab", "run"])
        .args(args)
        .arg("--out")
        .arg(out)
        .stdin(Stdio::null());
    for (name, value) in vars {
        command.env(name, value);
    }
    command.output().expect("it runs")
}

/// Exit code 2, the reason, and nothing in the folder.
fn refused(args: &[&str], vars: &[(&str, &str)], says: &[&str]) {
    let dir = tempfile::tempdir().expect("a folder");
    let out = dir.path().join("runs");
    let run = run(args, &out, vars);
    let text = String::from_utf8_lossy(&run.stderr);
    assert_eq!(run.status.code(), Some(2), "{args:?}: {text}");
    for word in says {
        assert!(text.contains(word), "{args:?}: {word:?} is not in {text}");
    }
    assert!(!out.exists(), "{args:?}: something was written");
    assert!(run.stdout.is_empty(), "{args:?}: something was printed");
}

#[test]
fn an_experiment_that_does_not_run_there_says_where_it_does() {
    refused(&["gnet1-shaped", "--vm"], &[], &["--live", "--sim"]);
    refused(&["psp-sync", "--sim"], &[], &["with --vm only"]);
    refused(&["psp-sync"], &[], &["with --vm only"]);
}

#[test]
fn options_of_other_modes_are_refused() {
    refused(&["psp-bic", "--vm", "--sim"], &[], &["cannot be used with"]);
    refused(&["psp-bic", "--vm", "--today"], &[], &["cannot be used with"]);
    refused(
        &["psp-bic", "--vm", "--stall-emulator", "5ms"],
        &[],
        &["cannot be used with"],
    );
    refused(
        &["gnet1-shaped", "--set", "duration=1s"],
        &[],
        &["--set is for --sim and --vm"],
    );
    refused(&["psp-bic", "--vm", "--set", "duration=1"], &[], &["unit"]);
}

#[test]
fn without_a_checkout_or_programs_it_says_what_is_missing() {
    let empty = tempfile::tempdir().expect("a folder");
    let nowhere = empty.path().to_str().expect("text");
    refused(
        &["psp-range", "--vm"],
        &[("KUROSHIO_SOURCE", nowhere)],
        &["KUROSHIO_SOURCE", "kernel/test/run"],
    );
    refused(
        &["psp-range", "--vm"],
        &[("PATH", nowhere)],
        &["qemu-system-x86_64", "scripts/deps vm"],
    );
}

#[test]
fn without_a_kernel_it_says_how_to_get_one() {
    // A version that no archive has, and a cache without any.
    let dir = programs();
    let cache = dir.path().to_str().expect("text");
    let path = path(dir.path());
    refused(
        &["psp-range", "--vm"],
        &[
            ("XDG_CACHE_HOME", cache),
            ("PATH", &path),
            ("KUROSHIO_VM_KERNEL", "1.2.3+deb0"),
        ],
        &["no kernel for the virtual machine", "1.2.3+deb0"],
    );
}

/// A folder with the names of the programs that are looked for: none of them is started here.
fn programs() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    for name in [
        "qemu-system-x86_64",
        "busybox",
        "cpio",
        "modprobe",
        "zstd",
        "xz",
        "ip",
        "tc",
        "make",
        "cc",
        "python3",
    ] {
        std::fs::write(dir.path().join(name), "").expect("a file");
    }
    dir
}

/// The path with a folder before all others.
fn path(first: &Path) -> String {
    let path = std::env::var("PATH").expect("a path");
    format!("{}:{path}", first.display())
}

/// A second of one stream at full windows of the size that its pacing stands for, in the form of meter.c and stream.c.
const MACHINE: &str = r#"#!/bin/sh
set -eu
[ "$1" = path ] || exit 2
[ -z "${MACHINE_FAILS:-}" ] || { echo "vm: not done within 5 s" >&2; exit 124; }
case "$(sed -n 's/^stream bic 0 //p' "$2/parameters")" in
none) bytes=12000 ;;
dynamic) bytes=20000 ;;
static) bytes=30000 ;;
esac
{
    echo "lost_frames ${MACHINE_MISSED:-0}"
    seq 1000000 500000 1000500000 | sed "s/.*/5001 & 20 $bytes $bytes/"
} >"$2/windows"
printf 'zero_ns 1000000\n5001 100 10 100100 0 3 1448\n5001 1000 900 116000 7 800 1448\n' >"$2/samples"
printf 'dropped_router_frames 0\ndropped_port_frames 0\nelapsed_cs 100\nidle_cs 40\n%s\n' \
    'processor_least_idle_permille 400' >"$2/counters"
"#;

/// A checkout whose machine is [`MACHINE`].
fn checkout() -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().expect("a folder");
    for (name, text) in [
        ("kernel/test/run", MACHINE),
        ("kernel/headers", "#!/bin/sh\necho /headers\n"),
        ("tests/vm/vm", "#!/bin/sh\necho 6.99.1\n"),
    ] {
        let file = dir.path().join(name);
        std::fs::create_dir_all(file.parent().expect("a folder")).expect("folders");
        std::fs::write(&file, text).expect("a file");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).expect("mode");
    }
    dir
}

fn with_machine(out: &Path, vars: &[(&str, &str)]) -> Output {
    let (names, tree) = (programs(), checkout());
    let path = path(names.path());
    let mut all = vec![
        ("PATH", path.as_str()),
        ("KUROSHIO_SOURCE", tree.path().to_str().expect("text")),
    ];
    all.extend(vars);
    run(&["psp-bic", "--vm", "--json", "--set", "duration=1s"], out, &all)
}

#[test]
fn what_the_machine_leaves_becomes_a_result() {
    let dir = tempfile::tempdir().expect("a folder");
    let run = with_machine(dir.path(), &[]);
    let text = String::from_utf8_lossy(&run.stderr);
    assert_eq!(run.status.code(), Some(0), "{text}");
    assert!(
        text.contains("psp-bic: none for 1s of virtual time, 1 of 3"),
        "{text}"
    );
    let result: serde_json::Value = serde_json::from_slice(&run.stdout).expect("JSON");
    assert_eq!(result["mode"], "vm");
    assert_eq!(result["versions"]["kernel"], "6.99.1 (virtual machine)");
    // 2,000 windows of 12,000, 20,000 and 30,000 bytes.
    for (phase, mbps) in [("none", 192.0), ("dynamic", 320.0), ("static", 480.0)] {
        let measured = &result["measured"][phase];
        assert_eq!(measured["mean_sum_frame_mbps"].as_f64(), Some(mbps), "{phase}");
        assert_eq!(measured["processor_busy_share"].as_f64(), Some(0.6));
        assert_eq!(measured["streams"][0]["retransmitted_segments"], 7);
    }
    let held = |name: &str| {
        let checks = result["checks"].as_array().expect("checks");
        let found = checks.iter().find(|c| c["name"] == name).expect(name);
        found["ok"].as_bool().expect("a verdict")
    };
    for name in [
        "static: zero drops",
        "none below dynamic",
        "dynamic below static",
        "meter whole",
        "virtual processor in time",
    ] {
        assert!(held(name), "{name}");
    }
    let folder = std::fs::read_dir(dir.path())
        .expect("a folder")
        .next()
        .expect("a run")
        .expect("its folder");
    for left in ["run.json", "trace.csv", "report.html", "vm/03/counters"] {
        assert!(folder.path().join(left).is_file(), "{left}");
    }
}

#[test]
fn a_meter_that_missed_a_frame_fails_a_check() {
    let dir = tempfile::tempdir().expect("a folder");
    let run = with_machine(dir.path(), &[("MACHINE_MISSED", "1")]);
    assert_eq!(run.status.code(), Some(1));
    let result: serde_json::Value = serde_json::from_slice(&run.stdout).expect("JSON");
    let checks = result["checks"].as_array().expect("checks");
    let failed: Vec<_> = checks
        .iter()
        .filter(|c| c["ok"] == false)
        .map(|c| c["name"].clone())
        .collect();
    assert_eq!(failed, ["meter whole"]);
}

#[test]
fn a_machine_that_does_not_end_in_time_is_no_result() {
    let dir = tempfile::tempdir().expect("a folder");
    let run = with_machine(dir.path(), &[("MACHINE_FAILS", "1")]);
    let text = String::from_utf8_lossy(&run.stderr);
    assert_eq!(run.status.code(), Some(1), "{text}");
    assert!(
        text.contains("was not done in its time") && text.contains("not done within 5 s"),
        "{text}"
    );
    assert!(run.stdout.is_empty(), "no result was printed");
}
