//! `kuroshio lab run rails-fps`: what a run leaves, here and from a virtual machine. The machine is a script in its place, which
//! leaves a run of this machine with the nodes and counters that a machine of two nodes would have.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

fn run(args: &[&str], out: &Path, vars: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kuroshio"));
    command.args(["lab", "run"]).args(args).arg("--out").arg(out);
    command.stdin(Stdio::null()).envs(vars.iter().copied());
    command.output().expect("it runs")
}

fn json_of(run: &Output) -> Value {
    let text = String::from_utf8_lossy(&run.stderr);
    serde_json::from_slice(&run.stdout).unwrap_or_else(|e| panic!("{e}: {text}"))
}

fn held(result: &Value, name: &str) -> bool {
    let checks = result["checks"].as_array().expect("checks");
    let found = checks.iter().find(|c| c["name"] == name).expect(name);
    found["ok"].as_bool().expect("a verdict")
}

const SMALL: [&str; 8] = [
    "--set",
    "size=64x32",
    "--set",
    "time=10ms",
    "--set",
    "runs=1",
    "--set",
    "held=16",
];

/// The rows of a run as two nodes with a card each would have them, and `pages` of B from the other node.
fn two_nodes(mut run: Value, pages: u64) -> Value {
    for (row, cores, memory) in [
        ("A", [0, 2], [0, 1]),
        ("B", [2, 0], [0, 1]),
        ("C", [0, 1], [0, 0]),
        ("D", [0, 0], [0, 0]),
    ] {
        let of_row = &mut run["measured"][row];
        of_row["same_as"] = Value::Null;
        of_row["runs"][0]["other_node_pages"] = json!(if row == "B" { pages } else { 0 });
        for i in 0..2 {
            of_row["rails"][i] = json!({
                "card": format!("card {i}"), "card_node": i, "core": cores[i], "core_node": cores[i] / 2, "pus": [cores[i]],
                "memory_node": memory[i],
            });
            of_row["runs"][0]["seen"][i] = json!({ "allowed": [cores[i]], "memory_nodes": [memory[i]] });
        }
    }
    run
}

#[test]
fn what_two_nodes_leave_becomes_a_result() {
    let dir = tempfile::tempdir().expect("a folder");
    let here = run(&[&["rails-fps", "--json"], &SMALL[..]].concat(), dir.path(), &[]);
    let here = json_of(&here);
    assert_eq!(here["mode"], "live");
    assert!(
        held(&here, "plan for the paper's host")
            && held(&here, "every thread and its memory where its row says")
    );

    let tree = tempfile::tempdir().expect("a folder");
    let left = tree.path().join("left.json");
    let vm = format!(
        "#!/bin/sh\n[ \"$1\" = run ] || {{ echo 6.99.1; exit 0; }}\nwhile [ \"$1\" != --out ]; do shift; done\ncp '{}' \"$2/run.json\"\n",
        left.display()
    );
    let names = [
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
    ];
    let mut files = vec![
        ("kernel/test/run".to_owned(), ""),
        ("tests/vm/rails-fps.sh".to_owned(), ""),
        ("tests/vm/vm".to_owned(), vm.as_str()),
    ];
    files.extend(names.map(|name| (format!("bin/{name}"), "")));
    for (name, text) in files {
        let file = tree.path().join(name);
        std::fs::create_dir_all(file.parent().expect("a folder")).expect("folders");
        std::fs::write(&file, text).expect("a file");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).expect("mode");
    }
    let path = format!(
        "{}/bin:{}",
        tree.path().display(),
        std::env::var("PATH").expect("a path")
    );
    let vars = [
        ("PATH", path.as_str()),
        ("KUROSHIO_SOURCE", tree.path().to_str().expect("text")),
    ];
    // 16 pictures of 64x32 in 24 bits are 24 pages.
    for (pages, good) in [(24, true), (23, false)] {
        std::fs::write(&left, two_nodes(here.clone(), pages).to_string()).expect("a file");
        let made = run(
            &[&["rails-fps", "--vm", "--json"], &SMALL[..]].concat(),
            dir.path(),
            &vars,
        );
        let result = json_of(&made);
        assert_eq!(
            (result["mode"].as_str(), made.status.code()),
            (Some("vm"), Some(i32::from(!good)))
        );
        assert_eq!(result["versions"]["kernel"], "6.99.1 (virtual machine)");
        assert_eq!(
            held(&result, "B takes its pictures' memory from the other node"),
            good
        );
        assert!(held(
            &result,
            "four placements as in the paper's table, over two cards"
        ));
    }
}

#[test]
fn bad_input_is_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    for (args, says) in [
        (&["rails-fps", "--sim"][..], "--live or --vm"),
        (&["rails-fps", "--today"], "without --today"),
        (&["plb-global", "--vm"], "--live or --sim"),
        (&["plb-global", "--sim", "--set", "size=4k"], "64x32 to 7680x4320"),
        (&["plb-global", "--sim", "--set", "seed=1"], "size, time"),
    ] {
        let out = dir.path().join("runs");
        let made = run(args, &out, &[]);
        let err = String::from_utf8_lossy(&made.stderr);
        assert_eq!(made.status.code(), Some(2), "{args:?}: {err}");
        assert!(err.contains(says) && !out.exists(), "{args:?}: {err}");
    }
}
