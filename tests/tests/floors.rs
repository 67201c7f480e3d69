//! The arrows between the floors, and what comes from outside.

use kuroshio_tests::{floors, root};
use serde_json::{Value, json};

#[test]
fn this_repository_keeps_its_floors() {
    let metadata = floors::metadata(&root()).expect("cargo metadata");
    let findings = floors::findings(&metadata);
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

/// A workspace in which core uses `blake3` and the transfer uses core; `change` may spoil it.
fn workspace(change: impl FnOnce(&mut Value)) -> Vec<String> {
    let crates_io = "registry+https://github.com/rust-lang/crates.io-index";
    let package = |id: &str, path: &str, source: Value| json!({"id": id, "name": id, "manifest_path": path, "source": source, "license": "MIT OR Apache-2.0"});
    let dep = |to: &str, kind: Value| json!({"name": to, "pkg": to, "dep_kinds": [{"kind": kind}]});
    let mut m = json!({
        "workspace_root": "/w",
        "packages": [
            package("core", "/w/core/Cargo.toml", Value::Null),
            package("transfer", "/w/grid/transfer/Cargo.toml", Value::Null),
            package("blake3", "/r/blake3/Cargo.toml", json!(crates_io)),
            package("proptest", "/r/proptest/Cargo.toml", json!(crates_io)),
        ],
        "resolve": {"nodes": [
            {"id": "core", "deps": [dep("blake3", Value::Null), dep("proptest", json!("dev"))]},
            {"id": "transfer", "deps": [dep("core", Value::Null)]},
            {"id": "blake3", "deps": []},
            {"id": "proptest", "deps": []},
        ]},
    });
    change(&mut m);
    floors::findings(&m)
}

type Change = Box<dyn FnOnce(&mut Value)>;

#[test]
fn each_rule_finds_what_breaks_it() {
    assert_eq!(workspace(|_| ()), Vec::<String>::new());
    let up = json!({"name": "transfer", "pkg": "transfer", "dep_kinds": [{"kind": "dev"}]});
    let cases: [(&str, Change); 7] = [
        (
            "arrow up: core (core) depends on transfer (grid)",
            Box::new(|m| m["resolve"]["nodes"][0]["deps"][0] = up),
        ),
        (
            "core depends on proptest, which is not on its list",
            Box::new(|m| m["resolve"]["nodes"][0]["deps"][1]["dep_kinds"][0]["kind"] = Value::Null),
        ),
        (
            "blake3: licence GPL-3.0-only is not on the list",
            Box::new(|m| m["packages"][2]["license"] = json!("GPL-3.0-only")),
        ),
        (
            "blake3: licence (none) is not on the list",
            Box::new(|m| m["packages"][2]["license"] = Value::Null),
        ),
        (
            "blake3: comes from git+https://example.org/x, not from crates.io",
            Box::new(|m| m["packages"][2]["source"] = json!("git+https://example.org/x")),
        ),
        (
            "openssl is banned: TLS is rustls",
            Box::new(|m| m["packages"][3]["name"] = json!("openssl")),
        ),
        (
            "transfer: a crate outside of the floors' folders (Some(\"attic\"))",
            Box::new(|m| m["packages"][1]["manifest_path"] = json!("/w/attic/transfer/Cargo.toml")),
        ),
    ];
    for (expected, change) in cases {
        assert_eq!(workspace(change), [expected]);
    }
    // Through another crate, too.
    let through = workspace(|m| {
        m["resolve"]["nodes"][2]["deps"] =
            json!([{"name": "proptest", "pkg": "proptest", "dep_kinds": [{"kind": null}]}]);
    });
    assert_eq!(through, ["core depends on proptest, which is not on its list"]);
    assert_eq!(
        workspace(|m| m["packages"] = json!([])),
        ["cargo metadata lists no package"]
    );
}
