//! Floors, sources, licences and banned crates, read from `cargo metadata`.
//!
//! A crate's floor is the folder it lies in; a dependency may point to the same floor or down:
//! `core < host < grid < lab < apps < tests, bench, fuzz`.

use crate::licence;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

/// Folders from the ground up. Those of the last row stand beside each other on top of all.
const FLOORS: &[&[&str]] = &[
    &["core"],
    &["host"],
    &["grid"],
    &["lab"],
    &["apps"],
    &["tests", "bench", "fuzz"],
];

/// What `core` may depend on, directly or not (not counting tests and build scripts). `blake3` computes
/// digests; the others are what it is made of, none of which has a clock.
const CORE_ALLOWED: &[&str] = &[
    "arrayref",
    "arrayvec",
    "blake3",
    "cfg-if",
    "constant_time_eq",
    "cpufeatures",
    "libc",
];

/// Crates that nothing may depend on, and why.
const BANNED: &[(&str, &str)] = &[
    ("async-std", "the runtime is tokio, and only in the service"),
    ("native-tls", "TLS is rustls"),
    ("openssl", "TLS is rustls"),
    ("openssl-sys", "TLS is rustls"),
    ("reqwest", "the dialler writes its request itself"),
    ("time-macros-impl", "not maintained"),
];

/// Where packages may come from (`null` is a path in this repository).
const SOURCES: &[&str] = &["registry+https://github.com/rust-lang/crates.io-index"];

/// Runs `cargo metadata` with all dependencies for this machine's platform.
///
/// # Errors
/// What cargo printed.
pub fn metadata(root: &Path) -> Result<Value, String> {
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut error = String::new();
    // From what is there already; else cargo fetches what Cargo.lock names.
    for offline in [true, false] {
        let mut c = Command::new(&cargo);
        c.args([
            "metadata",
            "--format-version",
            "1",
            "--filter-platform",
            &platform,
        ])
        .current_dir(root);
        if offline {
            c.arg("--offline");
        }
        let out = c
            .output()
            .map_err(|e| format!("cannot run cargo metadata: {e}"))?;
        if out.status.success() {
            return serde_json::from_slice(&out.stdout).map_err(|e| format!("cargo metadata: {e}"));
        }
        error = String::from_utf8_lossy(&out.stderr).into_owned();
    }
    Err(error)
}

struct Package<'a> {
    name: &'a str,
    /// Floor and folder of a crate of this repository.
    floor: Option<(usize, String)>,
    source: Option<&'a str>,
    licence: Option<&'a str>,
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

fn items<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

/// Everything that `metadata` (of format 1) shows against the rules of the house.
#[must_use]
pub fn findings(metadata: &Value) -> Vec<String> {
    let root = Path::new(text(metadata, "workspace_root"));
    let mut out = Vec::new();
    let mut packages = BTreeMap::new();
    for p in items(metadata, "packages") {
        let source = p["source"].as_str();
        let folder = Path::new(text(p, "manifest_path"))
            .strip_prefix(root)
            .ok()
            .and_then(|f| f.iter().next());
        let folder = folder.map(|f| f.to_string_lossy().into_owned());
        let floor = folder.clone().and_then(|f| {
            FLOORS
                .iter()
                .position(|row| row.contains(&f.as_str()))
                .map(|i| (i, f))
        });
        let name = text(p, "name");
        if source.is_none() && floor.is_none() {
            out.push(format!(
                "{name}: a crate outside of the floors' folders ({folder:?})"
            ));
        }
        packages.insert(
            text(p, "id"),
            Package {
                name,
                floor,
                source,
                licence: p["license"].as_str(),
            },
        );
    }
    if packages.is_empty() {
        out.push("cargo metadata lists no package".into());
    }
    for p in packages.values() {
        out.extend(package_findings(p));
    }
    let nodes = items(&metadata["resolve"], "nodes");
    for node in nodes {
        let Some(from) = packages.get(text(node, "id")) else {
            continue;
        };
        for dep in items(node, "deps") {
            let Some(to) = packages.get(text(dep, "pkg")) else {
                continue;
            };
            if let (Some((a, from_folder)), Some((b, to_folder))) = (&from.floor, &to.floor)
                && b > a
            {
                let (from, to) = (from.name, to.name);
                out.push(format!(
                    "arrow up: {from} ({from_folder}) depends on {to} ({to_folder})"
                ));
            }
        }
    }
    out.extend(core_findings(&packages, nodes));
    out
}

fn package_findings(p: &Package) -> Vec<String> {
    let mut out = Vec::new();
    if let Some(source) = p.source.filter(|s| !SOURCES.contains(s)) {
        out.push(format!("{}: comes from {source}, not from crates.io", p.name));
    }
    match p.licence {
        Some(l) if licence::is_allowed(l) => {}
        l => out.push(format!(
            "{}: licence {} is not on the list",
            p.name,
            l.unwrap_or("(none)")
        )),
    }
    if let Some((_, why)) = BANNED.iter().find(|(name, _)| *name == p.name) {
        out.push(format!("{} is banned: {why}", p.name));
    }
    out
}

/// Normal dependencies of the crates on the lowest floor, followed to their ends.
fn core_findings(packages: &BTreeMap<&str, Package>, nodes: &[Value]) -> Vec<String> {
    let mut normal: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for node in nodes {
        let deps = items(node, "deps")
            .iter()
            .filter(|d| items(d, "dep_kinds").iter().any(|k| k["kind"].is_null()));
        normal.insert(text(node, "id"), deps.map(|d| text(d, "pkg")).collect());
    }
    let on_ground = packages
        .iter()
        .filter(|(_, p)| p.floor.as_ref().is_some_and(|f| f.0 == 0));
    let mut todo: Vec<&str> = on_ground.map(|(id, _)| *id).collect();
    let mut seen: BTreeSet<&str> = todo.iter().copied().collect();
    let mut out = Vec::new();
    while let Some(id) = todo.pop() {
        for dep in normal.get(id).into_iter().flatten() {
            let Some(p) = packages.get(dep).filter(|_| seen.insert(dep)) else {
                continue;
            };
            if !CORE_ALLOWED.contains(&p.name) && p.floor.is_none() {
                out.push(format!("core depends on {}, which is not on its list", p.name));
            }
            todo.push(dep);
        }
    }
    out
}
