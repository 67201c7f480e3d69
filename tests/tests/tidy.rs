//! The state of the files of this repository.

use kuroshio_tests::{root, tidy};

#[test]
fn this_repository_is_tidy() {
    assert!(
        tidy::files(&root())
            .expect("a list of files")
            .iter()
            .any(|p| p.ends_with("core/src/lib.rs"))
    );
    let findings = tidy::repository(&root()).expect("readable files");
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

#[test]
fn each_rule_finds_what_breaks_it() {
    let long = "x\n".repeat(801);
    let cases: &[(&str, &str, &[&str])] = &[
        ("host/a.rs", &long, &["host/a.rs: 801 lines, at most 800"]),
        ("docs/a.md", &long, &[]),
        (
            "host/a.rs",
            "fn a() {\n    todo!()\n}\n",
            &["host/a.rs:2: todo!("],
        ),
        ("host/a.rs", "// FIXME later\n", &["host/a.rs:1: FIXME"]),
        ("docs/a.md", "see /home/me\n", &["docs/a.md:1: /home/"]),
        (
            "core/src/a.rs",
            "fn a(x: f64) {}\n",
            &["core/src/a.rs:1: f64 in core"],
        ),
        (
            "core/src/a.rs",
            "use std::time::Instant;\n",
            &["core/src/a.rs:1: std:: in core"],
        ),
        (
            "core/src/a.rs",
            "// f64, std::time\nfn mystd() { my_std::x(); }\n",
            &[],
        ),
        (
            "core/src/a.rs",
            "#[cfg(test)]\nmod tests {\n    use std::vec::Vec;\n}\n",
            &[],
        ),
        (
            "core/src/a.rs",
            "#[cfg(test)]\nmod a_tests;\nuse std::x;\n",
            &["core/src/a.rs:3: std:: in core"],
        ),
        ("core/src/a_tests.rs", "use std::x;\n", &[]),
        ("host/src/a.rs", "use std::x; const A: f64 = 1.0;\n", &[]),
        (
            "bpf/a.c",
            "int x;\n",
            &["bpf/a.c: the first three lines lack SPDX-License-Identifier: GPL-2.0"],
        ),
        (
            "kernel/psp/a.h",
            "/* SPDX-License-Identifier: GPL-2.0-only */\nint x;\n",
            &[],
        ),
        (
            "host/a/Cargo.toml",
            "[package]\n",
            &["host/a/Cargo.toml: lacks [lints] workspace = true"],
        ),
        ("host/a/Cargo.toml", "[package]\n[lints]\nworkspace = true\n", &[]),
        (
            "Cargo.toml",
            "[workspace.lints.rust]\n",
            &["Cargo.toml: missing_docs is not on"],
        ),
    ];
    for (path, text, expected) in cases {
        assert_eq!(tidy::findings(path, text), *expected, "{path}: {text:.60}");
    }
}
