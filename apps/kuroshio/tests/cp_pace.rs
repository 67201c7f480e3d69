//! What `kuroshio cp` says about who paces.

use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn cp(args: &[&str], dir: &std::path::Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kuroshio"))
        .arg("cp")
        .args(args)
        .current_dir(dir)
        .env("XDG_CONFIG_HOME", dir.join("config"))
        .stdin(Stdio::null())
        .output()
        .expect("started")
}

#[test]
fn a_copy_names_who_paces_it() {
    let dir = tempfile::tempdir().expect("folder");
    std::fs::write(dir.path().join("a"), vec![1; 1 << 20]).expect("written");
    let none: Vec<Value> = Vec::new();
    let tcp = vec![Value::from("TCP itself")];
    for (flags, by) in [
        (&["--json"][..], none),
        (&["--json", "--rate", "800M"], tcp.clone()),
        (&["--json", "--pace", "dynamic"], tcp.clone()),
        (&["--json", "--pace", "dynamic", "--rate", "800M"], tcp),
    ] {
        let done = cp(&[flags, &["a", "b"]].concat(), dir.path());
        let err = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{flags:?}: {err}");
        let report: Value = serde_json::from_slice(&done.stdout).expect("json");
        assert_eq!(report["paced_by"], Value::from(by), "{flags:?}");
    }
    let done = cp(&["-q", "--rate", "800M", "a", "b"], dir.path());
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(text.trim_end().ends_with("; paced by TCP itself"), "{text}");
    for (args, why) in [
        (&["--pace", "fast", "a", "b"][..], "invalid value"),
        (
            &["--pace", "dynamic", "--insecure", "http://127.0.0.1:9/a", "b"],
            "goes with a local source",
        ),
    ] {
        let done = cp(args, dir.path());
        let err = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(2), "{args:?}: {err}");
        assert!(err.contains(why), "{args:?}: {err}");
    }
}
