//! Whole trees: find, sums, removal.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::process::ExitCode;

use indicatif::HumanBytes;
use kuroshio_client::v1::{self, request::Op};
use serde_json::json;

use super::{Context, attr_json, below, kind_name, last_name, paths_of, shown};
use crate::error::Failure;
use crate::output;

/// Removals on their way at once.
const AT_ONCE: usize = 256;

/// Visits `top` and all below it, each directory before what is in it; symbolic links are not followed.
pub fn visit(
    cx: &Context,
    top: &[u8],
    mut each: impl FnMut(&[u8], &v1::Attr) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let attr = cx.grid.stat(top, false)?;
    each(top, &attr)?;
    if attr.kind() != v1::Kind::Directory {
        return Ok(());
    }
    let mut folders = vec![top.to_vec()];
    while let Some(folder) = folders.pop() {
        for entry in cx.grid.list(&folder) {
            let entry = entry?;
            let (path, attr) = (below(&folder, &entry.name), entry.attr.unwrap_or_default());
            each(&path, &attr)?;
            if attr.kind() == v1::Kind::Directory {
                folders.push(path);
            }
        }
    }
    Ok(())
}

/// Removes a directory with all that is in it; says how many names went.
pub fn remove_tree(cx: &Context, top: &[u8]) -> Result<u64, Failure> {
    let (mut files, mut folders) = (Vec::new(), Vec::new());
    visit(cx, top, |path, attr| {
        let list = if attr.kind() == v1::Kind::Directory {
            &mut folders
        } else {
            &mut files
        };
        list.push(path.to_vec());
        Ok(())
    })?;
    let mut pending = VecDeque::new();
    let mut removed = 0;
    for path in files {
        let directory = false;
        pending.push_back(
            cx.grid
                .submit(Op::Remove(v1::RemoveRequest { path, directory }))?,
        );
        if pending.len() >= AT_ONCE
            && let Some(first) = pending.pop_front()
        {
            first.wait()?;
            removed += 1;
        }
    }
    for last in pending {
        last.wait()?;
        removed += 1;
    }
    // Deepest first: a directory is listed before those in it.
    folders.sort_by_key(|f| std::cmp::Reverse(f.iter().filter(|b| **b == b'/').count()));
    for folder in folders {
        cx.grid.remove(&folder, true)?;
        removed += 1;
    }
    Ok(removed)
}

/// Arguments of `fs find`.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  kuroshio fs find /data --name '*.dat' --kind file")]
pub struct FindArgs {
    /// Where to begin
    #[arg(default_value = "/")]
    paths: Vec<OsString>,
    /// Only names that match; `*` is any text, `?` any character
    #[arg(long, value_name = "PATTERN")]
    name: Option<String>,
    /// Only this kind
    #[arg(long, value_parser = ["file", "directory", "symlink", "fifo", "socket"])]
    kind: Option<String>,
}

/// Runs `fs find`.
pub fn find(cx: &Context, args: FindArgs) -> Result<ExitCode, Failure> {
    for top in paths_of(&args.paths)? {
        visit(cx, &top, |path, attr| {
            let name = String::from_utf8_lossy(last_name(path));
            let named = args.name.as_deref().is_none_or(|p| matches(p, &name));
            if !named || args.kind.as_deref().is_some_and(|k| k != kind_name(attr)) {
                return Ok(());
            }
            if !cx.print_json(&attr_json(path, attr))? {
                output::line(&shown(path))?;
            }
            Ok(())
        })?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether `text` matches a pattern of `*` and `?`. After a `*` that matched too little, it takes one more
/// character; only the last `*` ever has to.
fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (
        pattern.chars().collect::<Vec<_>>(),
        text.chars().collect::<Vec<_>>(),
    );
    let (mut p, mut t) = (0, 0);
    let mut star = None;
    while let Some(c) = text.get(t) {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(q) if *q == '?' || q == c => {
                p += 1;
                t += 1;
            }
            _ => match star {
                Some((at, from)) => {
                    star = Some((at, from + 1));
                    p = at + 1;
                    t = from + 1;
                }
                None => return false,
            },
        }
    }
    pattern.iter().skip(p).all(|c| *c == '*')
}

/// Arguments of `fs du`.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  kuroshio fs du /data\n  kuroshio fs du --users")]
pub struct DuArgs {
    /// Directories or files
    #[arg(default_value = "/")]
    paths: Vec<OsString>,
    /// What users own, in place of paths
    #[arg(long, conflicts_with = "groups")]
    users: bool,
    /// What groups own, in place of paths
    #[arg(long)]
    groups: bool,
}

/// Runs `fs du`.
pub fn du(cx: &Context, args: DuArgs) -> Result<ExitCode, Failure> {
    if args.users || args.groups {
        return owners(cx, args.groups);
    }
    for top in paths_of(&args.paths)? {
        let (mut bytes, mut files, mut folders) = (0u64, 0u64, 0u64);
        let mut seen = std::collections::HashSet::new();
        visit(cx, &top, |_, attr| {
            match attr.kind() {
                v1::Kind::Directory => folders += 1,
                // A file with several names counts once.
                _ if attr.links > 1 && !seen.insert(attr.inode) => {}
                _ => {
                    files += 1;
                    bytes = bytes.saturating_add(attr.size_bytes);
                }
            }
            Ok(())
        })?;
        let value = json!({ "path": shown(&top), "bytes": bytes, "files": files, "directories": folders });
        if !cx.print_json(&value)? {
            output::line(&format!(
                "{:>12}  {files} files  {}",
                HumanBytes(bytes).to_string(),
                shown(&top)
            ))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn owners(cx: &Context, groups: bool) -> Result<ExitCode, Failure> {
    let uses = cx.grid.uses(groups)?;
    if cx.json {
        let uses = uses.iter().map(|u| {
            json!({
                "name": u.name, "files": u.files, "bytes": u.bytes, "max_files": u.max_files, "max_bytes": u.max_bytes,
            })
        });
        output::line(&json!({ "uses": uses.collect::<Vec<_>>() }).to_string())?;
        return Ok(ExitCode::SUCCESS);
    }
    for u in uses {
        let bound = u
            .max_bytes
            .map_or(String::new(), |b| format!(" of {}", HumanBytes(b)));
        output::line(&format!(
            "{:<16} {:>10} files  {}{bound}",
            u.name,
            u.files,
            HumanBytes(u.bytes)
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns_match_whole_names() {
        for (pattern, text) in [
            ("*", ""),
            ("*.dat", "a.dat"),
            ("a*b*c", "axxbxbc"),
            ("?", "ü"),
            ("a", "a"),
            ("**", "x"),
        ] {
            assert!(matches(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [
            ("", "a"),
            ("*.dat", "a.data"),
            ("a*b", "axc"),
            ("?", ""),
            ("A", "a"),
        ] {
            assert!(!matches(pattern, text), "{pattern} {text}");
        }
    }
}
