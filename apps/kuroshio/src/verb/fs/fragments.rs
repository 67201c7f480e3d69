//! Files of several fragments: put in fragments, read by view (paper 003: global, section and local file view).

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::ValueEnum;
use kuroshio_client::{Cancel, Once, Part, PutOptions, cut, host_name, v1};
use serde_json::json;

use super::{Context, replicas, shown, umask};
use crate::error::Failure;
use crate::output;

/// Most fragments of one put.
const MAX_FRAGMENTS: u32 = 1024;

/// How `fs put` cuts.
#[derive(clap::Args)]
pub struct CutArgs {
    /// Cut the file into so many fragments on several nodes
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MAX_FRAGMENTS as i64))]
    fragments: Option<u32>,
    /// Cut at ends of lines
    #[arg(long, requires = "fragments")]
    lines: bool,
    /// This is fragment I (from 0) of N: the file appears when all have been put, by whichever processes
    #[arg(long, value_name = "I/N", conflicts_with_all = ["fragments", "no_replace", "recursive"])]
    fragment: Option<String>,
    /// With --fragment: on this node [default: one on this host]
    #[arg(long, value_name = "NODE", requires = "fragment")]
    node: Option<String>,
}

impl CutArgs {
    /// Whether anything of it was given.
    pub fn is_used(&self) -> bool {
        self.fragments.is_some() || self.fragment.is_some()
    }
}

/// `I/N`.
fn which(text: &str) -> Result<(u32, u32), Failure> {
    let numbers = text
        .split_once('/')
        .and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
    match numbers {
        Some((i, n)) if i < n && n <= MAX_FRAGMENTS => Ok((i, n)),
        _ => Err(Failure::usage(format!(
            "--fragment {text}: I/N is valid, for example 0/8 to 7/8, N at most {MAX_FRAGMENTS}"
        ))),
    }
}

/// Runs `fs put` with fragments.
pub fn put(
    cx: &Context,
    args: &CutArgs,
    sources: &[OsString],
    to: &[u8],
    exclusive: bool,
    rule: Option<&str>,
) -> Result<ExitCode, Failure> {
    let [source] = sources else {
        return Err(Failure::usage("fragments are of one file: give one source"));
    };
    let options = PutOptions {
        exclusive,
        mode: 0o666,
        umask: umask(),
        near_host: host_name(),
        mtime_ns: None,
    };
    let local = Path::new(source);
    let value = match (&args.fragment, args.fragments) {
        (Some(text), _) => {
            let (index, count) = which(text)?;
            put_one(cx, args, local, to, (index, count), &options)?
        }
        (None, count) => {
            let failed = |e| Failure::usage(format!("{}: {e}", local.display()));
            let ranges = cut(local, count.unwrap_or(1), args.lines).map_err(failed)?;
            let attr = cx
                .grid
                .put_fragments(to, local, &ranges, &options, &Cancel::default())?;
            json!({
                "path": shown(to), "size_bytes": attr.size_bytes, "fragments": attr.fragments, "inode": attr.inode,
                "published": true,
            })
        }
    };
    let published = value.get("published").and_then(serde_json::Value::as_bool) == Some(true);
    if let Some(rule) = rule.filter(|_| published) {
        cx.grid.set_copies(to, rule)?;
        replicas::wait_for_rule(cx, &[to.to_vec()])?;
    }
    cx.print_json(&value)?;
    Ok(ExitCode::SUCCESS)
}

fn put_one(
    cx: &Context,
    args: &CutArgs,
    local: &Path,
    to: &[u8],
    (index, count): (u32, u32),
    options: &PutOptions,
) -> Result<serde_json::Value, Failure> {
    let failed = |e: std::io::Error| Failure::usage(format!("{}: {e}", local.display()));
    let file = if local == Path::new("-") {
        None
    } else {
        Some(std::fs::File::open(local).map_err(failed)?)
    };
    let draft = cx.grid.begin_fragments(to, count, options)?;
    let (node, cancel) = (args.node.as_deref(), Cancel::default());
    let at = match file {
        None => cx
            .grid
            .put_fragment(&draft, index, &mut Once(std::io::stdin().lock()), node, &cancel)?,
        Some(mut file) => cx.grid.put_fragment(&draft, index, &mut file, node, &cancel)?,
    };
    let published = cx.grid.try_finish_fragments(&draft)?;
    Ok(json!({
        "path": shown(to), "fragment": index, "fragments": count, "size_bytes": cancel.bytes(), "node": at,
        "published": published,
    }))
}

/// A view of a file.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum View {
    /// All fragments, one after the other
    Global,
    /// One fragment
    Section,
    /// The fragments on one node, a file each
    Local,
}

/// How `fs get` looks at files.
#[derive(clap::Args)]
pub struct ViewArgs {
    /// What of the file
    #[arg(long, value_enum, default_value = "global")]
    view: View,
    /// Which fragment, from 0, of the section view
    #[arg(long, value_name = "N")]
    fragment: Option<u32>,
    /// The node of the local view [default: one on this host]
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
}

impl ViewArgs {
    /// Whether it is the local view.
    pub fn is_local(&self) -> bool {
        self.view == View::Local
    }

    /// What is read of each file.
    pub fn part(&self) -> Result<Part, Failure> {
        match (self.view, self.fragment) {
            (View::Section, None) => Err(Failure::usage(
                "--view section: name the fragment with --fragment N",
            )),
            (View::Section, Some(n)) => Ok(Part::Fragment(n)),
            (View::Global | View::Local, None) => Ok(Part::All),
            (View::Global | View::Local, Some(_)) => Err(Failure::usage("--fragment is of --view section")),
        }
    }
}

/// A fragment's file in a view's folder: its number with as many digits as the last one has.
pub fn file_name(index: u32, count: usize) -> String {
    let width = count.saturating_sub(1).to_string().len();
    format!("{index:0width$}")
}

/// The node meant by a name, or one on this host that is up.
pub fn node_here(nodes: &[v1::Node], named: Option<&str>) -> Result<String, Failure> {
    let host = host_name();
    let mut up = nodes.iter().filter(|n| n.joined);
    let found = match named {
        Some(name) => up.find(|n| n.name == name),
        None => up.find(|n| n.host == host),
    };
    found.map(|n| n.name.clone()).ok_or_else(|| match named {
        Some(name) => Failure::usage(format!("node {name} is not there; see `kuroshio fs node ls`")),
        None => Failure::usage("no node is on this host: name one with --node"),
    })
}

/// Runs `fs get --view local`: the fragments on a node as files of a folder.
pub fn get_local(cx: &Context, args: &ViewArgs, paths: &[Vec<u8>], to: &Path) -> Result<ExitCode, Failure> {
    let [path] = paths else {
        return Err(Failure::usage("--view local is of one file"));
    };
    let node = node_here(&cx.grid.nodes()?, args.node.as_deref())?;
    let found = cx.grid.locate(path)?;
    let here = |f: &&v1::Fragment| {
        f.places
            .iter()
            .any(|p| p.node == node && p.up && p.state == "valid")
    };
    std::fs::create_dir_all(to).map_err(|e| Failure::failed(format!("{}: {e}", to.display())))?;
    let mut files = Vec::new();
    for fragment in found.fragments.iter().filter(here) {
        let local: PathBuf = to.join(file_name(fragment.index, found.fragments.len()));
        let part = Part::Fragment(fragment.index);
        let got = cx
            .grid
            .get_part(path, part, Some(&node), &local, &Cancel::default())?;
        files.push(json!({
            "fragment": fragment.index, "file": local.display().to_string(), "size_bytes": got.bytes,
            "nodes": got.nodes,
        }));
    }
    let value = json!({
        "path": shown(path), "node": node, "fragments": found.fragments.len(), "files": files,
    });
    if !cx.print_json(&value)? {
        output::line(&format!(
            "{} of {} fragments are on {node}",
            files.len(),
            found.fragments.len()
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_many() {
        assert_eq!(which("0/1").ok(), Some((0, 1)));
        assert_eq!(which("7/8").ok(), Some((7, 8)));
        for bad in ["8/8", "1", "a/b", "-1/2", "0/0", "0/1025", "1/2/3"] {
            assert!(which(bad).is_err(), "{bad}");
        }
        assert_eq!((file_name(3, 8), file_name(3, 11)), ("3".into(), "03".into()));
    }
}
