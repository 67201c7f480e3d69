//! The state of the files: lengths, floats and `std` in core, stubs, licence headers, lints, machine paths.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Lines that a source file may have.
pub const MAX_LINES: usize = 800;

/// Longer files, with the length they may not exceed. The list only gets shorter, the numbers smaller.
pub const LONG_FILES: &[(&str, usize)] = &[];

/// Endings of files that are source code.
const SOURCE: &[&str] = &["rs", "py", "c", "h", "sh", "js", "proto"];

/// Paths of the repository's files relative to `root`: what git knows or would take, or, where there is no
/// git, everything but build products.
///
/// # Errors
/// A folder that cannot be read.
pub fn files(root: &Path) -> std::io::Result<Vec<PathBuf>> {
    let listed = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output();
    if let Ok(out) = listed
        && out.status.success()
    {
        let names = out.stdout.split(|b| *b == 0).filter(|n| !n.is_empty());
        let paths = names.map(|n| PathBuf::from(String::from_utf8_lossy(n).into_owned()));
        // Files that are deleted but still in the index are gone.
        return Ok(paths.filter(|p| root.join(p).is_file()).collect());
    }
    let mut out = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(root.join(&folder))? {
            let entry = entry?;
            let path = folder.join(entry.file_name());
            let kind = entry.file_type()?;
            let skip = ["target", ".git", "node_modules"]
                .iter()
                .any(|s| entry.file_name() == *s);
            if kind.is_dir() && !skip {
                folders.push(path);
            } else if kind.is_file() {
                out.push(path);
            }
        }
    }
    Ok(out)
}

/// Reads the repository's text files and gives every finding.
///
/// # Errors
/// A file or folder that cannot be read.
pub fn repository(root: &Path) -> std::io::Result<Vec<String>> {
    let mut out = Vec::new();
    for path in files(root)? {
        let bytes = std::fs::read(root.join(&path))?;
        if let Ok(text) = String::from_utf8(bytes) {
            out.extend(findings(&path.to_string_lossy(), &text));
        }
    }
    Ok(out)
}

/// What is wrong with one file; `path` is relative to the repository's root, with slashes.
#[must_use]
pub fn findings(path: &str, text: &str) -> Vec<String> {
    let ending = path.rsplit_once('.').map_or("", |(_, e)| e);
    let mut out = Vec::new();
    if SOURCE.contains(&ending) {
        let lines = text.lines().count();
        let limit = LONG_FILES
            .iter()
            .find(|(p, _)| *p == path)
            .map_or(MAX_LINES, |(_, n)| *n);
        if lines > limit {
            out.push(format!("{path}: {lines} lines, at most {limit}"));
        }
    }
    if path.ends_with("Cargo.toml") {
        out.extend(manifest(path, text));
    }
    if (path.starts_with("kernel/") || path.starts_with("bpf/")) && ["c", "h"].contains(&ending) {
        let head: Vec<&str> = text.lines().take(3).collect();
        if !head
            .iter()
            .any(|l| l.contains("SPDX-License-Identifier: GPL-2.0"))
        {
            out.push(format!(
                "{path}: the first three lines lack SPDX-License-Identifier: GPL-2.0"
            ));
        }
    }
    // This file and its test name what they look for.
    if !path.starts_with("tests/") {
        out.extend(words(path, ending, text));
    }
    if ending == "rs" && path.starts_with("core/src/") && !is_test_file(path) {
        out.extend(core_source(path, text));
    }
    out
}

fn is_test_file(path: &str) -> bool {
    path.ends_with("/tests.rs") || path.ends_with("_tests.rs") || path.contains("/tests/")
}

fn manifest(path: &str, text: &str) -> Vec<String> {
    let mut out = Vec::new();
    let squeezed: String = text.chars().filter(|c| *c != ' ').collect();
    if text.contains("[workspace.lints.rust]") {
        if !squeezed.contains("missing_docs=\"warn\"") && !squeezed.contains("missing_docs=\"deny\"") {
            out.push(format!("{path}: missing_docs is not on"));
        }
    } else if !path.starts_with("fuzz/") && !squeezed.contains("[lints]\nworkspace=true") {
        out.push(format!("{path}: lacks [lints] workspace = true"));
    }
    out
}

/// Stubs and leftovers, and paths of one machine.
fn words(path: &str, ending: &str, text: &str) -> Vec<String> {
    const STUBS: &[&str] = &["todo!(", "unimplemented!(", "TODO", "FIXME", "XXX"];
    const PLACES: &[&str] = &["/root/", "/home/"];
    let mut out = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let stubs = STUBS.iter().filter(|_| SOURCE.contains(&ending));
        for word in stubs.chain(PLACES).filter(|w| line.contains(**w)) {
            out.push(format!("{path}:{}: {word}", i + 1));
        }
    }
    out
}

/// Floats and `std` in a file of core, outside of comments and of the test module at its end.
fn core_source(path: &str, text: &str) -> Vec<String> {
    let mut out = Vec::new();
    let mut test = false;
    for (i, line) in text.lines().enumerate() {
        // A test module stands at the end of its file; `mod name;` behind the attribute is another file.
        if test && line.trim_start().starts_with("mod ") && line.trim_end().ends_with('{') {
            break;
        }
        test = line.trim() == "#[cfg(test)]";
        let code = line.split("//").next().unwrap_or_default();
        let mut names = code.split(|c: char| !c.is_alphanumeric() && c != '_');
        if let Some(float) = names.find(|n| ["f32", "f64"].contains(n)) {
            out.push(format!("{path}:{}: {float} in core", i + 1));
        }
        if code
            .match_indices("std::")
            .any(|(at, _)| !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_'))
        {
            out.push(format!("{path}:{}: std:: in core", i + 1));
        }
    }
    out
}
