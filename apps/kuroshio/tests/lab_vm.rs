//! `kuroshio lab run --vm` where it cannot run: it says why, and starts nothing.

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
    // A version that no archive has, a cache without any, and the programs' names in a folder: none is started before.
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
    let cache = dir.path().to_str().expect("text");
    let path = std::env::var("PATH").expect("a path");
    let path = format!("{cache}:{path}");
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
