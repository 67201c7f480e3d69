//! Names and attributes.

use std::ffi::OsString;
use std::process::ExitCode;

use kuroshio_client::v1;
use serde_json::json;

use super::{Context, attr_json, below, is_dir, last_name, path_of, paths_of, shown, sizes, umask, walk};
use crate::error::Failure;
use crate::output;

const DONE: Result<ExitCode, Failure> = Ok(ExitCode::SUCCESS);

/// Arguments of `fs ls`.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  kuroshio fs ls -l /data")]
pub struct LsArgs {
    /// Directories or files
    #[arg(default_value = "/")]
    paths: Vec<OsString>,
    /// Mode, links, owner, group, size, time and wanted replicas of each
    #[arg(short = 'l', long)]
    long: bool,
    /// The directory itself, not what is in it
    #[arg(short = 'd', long)]
    directory: bool,
    /// Directories below too
    #[arg(short = 'R', long)]
    recursive: bool,
}

/// Runs `fs ls`.
pub fn ls(cx: &Context, args: LsArgs) -> Result<ExitCode, Failure> {
    let paths = paths_of(&args.paths)?;
    let several = paths.len() > 1 || args.recursive;
    let mut entries = Vec::new();
    let mut folders = std::collections::VecDeque::new();
    for path in paths {
        let attr = cx.grid.stat(&path, !args.directory)?;
        if attr.kind() == v1::Kind::Directory && !args.directory {
            folders.push_back(path);
        } else if cx.json {
            entries.push(attr_json(&path, &attr));
        } else {
            ls_line(cx, &path, &shown(&path), &attr, args.long)?;
        }
    }
    while let Some(folder) = folders.pop_front() {
        if several && !cx.json {
            output::line(&format!("{}:", shown(&folder)))?;
        }
        for entry in cx.grid.list(&folder) {
            let entry = entry?;
            let (path, attr) = (below(&folder, &entry.name), entry.attr.unwrap_or_default());
            if cx.json {
                entries.push(attr_json(&path, &attr));
            } else {
                ls_line(cx, &path, &shown(&entry.name), &attr, args.long)?;
            }
            if args.recursive && attr.kind() == v1::Kind::Directory {
                folders.push_back(path);
            }
        }
    }
    if cx.json {
        output::line(&json!({ "entries": entries }).to_string())?;
    }
    DONE
}

fn ls_line(cx: &Context, path: &[u8], name: &str, attr: &v1::Attr, long: bool) -> Result<(), Failure> {
    if !long {
        let slash = if attr.kind() == v1::Kind::Directory {
            "/"
        } else {
            ""
        };
        return output::line(&format!("{name}{slash}"));
    }
    let target = match attr.kind() {
        v1::Kind::Symlink => format!(" -> {}", shown(&cx.grid.read_link(path)?)),
        _ => String::new(),
    };
    output::line(&format!(
        "{} {:>3} {:<10} {:<10} {:>14} {} {:>3} {name}{target}",
        sizes::mode_text(attr),
        attr.links,
        attr.owner,
        attr.group,
        attr.size_bytes,
        sizes::time_text(attr.mtime_ns),
        attr.copies,
    ))
}

/// Arguments of `fs stat`.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  kuroshio fs stat --json /data/run1.dat")]
pub struct StatArgs {
    /// Files or directories
    #[arg(required = true)]
    paths: Vec<OsString>,
    /// A symbolic link itself, not what it points to
    #[arg(short = 'P', long)]
    no_follow: bool,
}

/// Runs `fs stat`.
pub fn stat(cx: &Context, args: StatArgs) -> Result<ExitCode, Failure> {
    for path in paths_of(&args.paths)? {
        let attr = cx.grid.stat(&path, !args.no_follow)?;
        if cx.print_json(&attr_json(&path, &attr))? {
            continue;
        }
        output::line(&format!("path        {}", shown(&path)))?;
        output::line(&format!("kind        {}", super::kind_name(&attr)))?;
        output::line(&format!("size        {} bytes", attr.size_bytes))?;
        output::line(&format!(
            "mode        {:04o} {}",
            attr.mode,
            sizes::mode_text(&attr)
        ))?;
        output::line(&format!("owner       {}:{}", attr.owner, attr.group))?;
        output::line(&format!(
            "inode       {} (links {}, generation {})",
            attr.inode, attr.links, attr.generation
        ))?;
        output::line(&format!("ncopy       {}", attr.copies))?;
        output::line(&format!("modified    {} UTC", sizes::time_text(attr.mtime_ns)))?;
        output::line(&format!("changed     {} UTC", sizes::time_text(attr.ctime_ns)))?;
    }
    DONE
}

/// Arguments of `fs mkdir`.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  kuroshio fs mkdir -p /data/2003")]
pub struct MkdirArgs {
    /// Directories to make
    #[arg(required = true)]
    paths: Vec<OsString>,
    /// Parents too; no error if it is there
    #[arg(short = 'p', long)]
    parents: bool,
    /// Permission bits, octal
    #[arg(short = 'm', long, default_value = "777")]
    mode: String,
}

/// Runs `fs mkdir`.
pub fn mkdir(cx: &Context, args: MkdirArgs) -> Result<ExitCode, Failure> {
    let mode = sizes::mode(&args.mode)?;
    let mut made = Vec::new();
    for path in paths_of(&args.paths)? {
        let attr = if args.parents {
            make_parents(cx, &path, mode)?
        } else {
            cx.grid.make_dir(&path, mode, umask())?
        };
        made.push(attr_json(&path, &attr));
    }
    cx.print_json(&json!({ "made": made }))?;
    DONE
}

/// Makes a directory and those above it, as far as they are missing.
pub fn make_parents(cx: &Context, path: &[u8], mode: u32) -> Result<v1::Attr, Failure> {
    match cx.grid.make_dir(path, mode, umask()) {
        Ok(attr) => Ok(attr),
        Err(e) if e.code() == Some(v1::Code::Exists) => {
            let attr = cx.grid.stat(path, true)?;
            if attr.kind() == v1::Kind::Directory {
                return Ok(attr);
            }
            Err(e.into())
        }
        Err(e) if e.code() == Some(v1::Code::NoEntry) => {
            let cut = path.strip_suffix(b"/").unwrap_or(path);
            let at = cut.iter().rposition(|b| *b == b'/').unwrap_or_default();
            if at == 0 {
                return Err(e.into());
            }
            make_parents(cx, cut.get(..at).unwrap_or_default(), 0o777)?;
            Ok(cx.grid.make_dir(path, mode, umask())?)
        }
        Err(e) => Err(e.into()),
    }
}

/// Arguments of `fs rm`.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  kuroshio fs rm -r /data/2003")]
pub struct RmArgs {
    /// Files or directories
    #[arg(required = true)]
    paths: Vec<OsString>,
    /// Directories with all that is in them
    #[arg(short = 'r', long)]
    recursive: bool,
    /// No error if it is not there
    #[arg(short = 'f', long)]
    force: bool,
    /// An empty directory
    #[arg(short = 'd', long)]
    directory: bool,
}

/// Runs `fs rm`.
pub fn rm(cx: &Context, args: RmArgs) -> Result<ExitCode, Failure> {
    let mut removed = 0u64;
    for path in paths_of(&args.paths)? {
        let attr = match cx.grid.stat(&path, false) {
            Ok(attr) => attr,
            Err(e) if args.force && e.code() == Some(v1::Code::NoEntry) => continue,
            Err(e) => return Err(e.into()),
        };
        if attr.kind() != v1::Kind::Directory {
            cx.grid.remove(&path, false)?;
            removed += 1;
        } else if args.recursive {
            removed += walk::remove_tree(cx, &path)?;
        } else if args.directory {
            cx.grid.remove(&path, true)?;
            removed += 1;
        } else {
            return Err(Failure::usage(format!(
                "{}: a directory; -r removes it with all in it",
                shown(&path)
            )));
        }
    }
    cx.print_json(&json!({ "removed": removed }))?;
    DONE
}

/// Arguments of `fs mv`.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  kuroshio fs mv /data/a /data/b")]
pub struct MvArgs {
    /// What is there, and last the new name or the directory that it goes into
    #[arg(required = true, num_args = 2..)]
    paths: Vec<OsString>,
    /// Never over what is there
    #[arg(short = 'n', long)]
    no_replace: bool,
}

/// Runs `fs mv`.
pub fn mv(cx: &Context, args: MvArgs) -> Result<ExitCode, Failure> {
    let mut paths = paths_of(&args.paths)?;
    let Some(to) = paths.pop() else {
        return Err(Failure::usage("a source and a destination are needed"));
    };
    let into = is_dir(&cx.grid, &to)?;
    if !into && paths.len() > 1 {
        return Err(Failure::usage(format!(
            "{}: not a directory, for several sources",
            shown(&to)
        )));
    }
    let mut moved = Vec::new();
    for from in paths {
        let to = if into {
            below(&to, last_name(&from))
        } else {
            to.clone()
        };
        cx.grid.rename(&from, &to, args.no_replace)?;
        moved.push(json!({ "from": shown(&from), "to": shown(&to) }));
    }
    cx.print_json(&json!({ "moved": moved }))?;
    DONE
}

/// Arguments of `fs ln`.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  kuroshio fs ln -s /data/run1.dat /latest")]
pub struct LnArgs {
    /// What is there; with -s any text
    target: OsString,
    /// The new name
    path: OsString,
    /// A symbolic link
    #[arg(short = 's', long)]
    symbolic: bool,
}

/// Runs `fs ln`.
pub fn ln(cx: &Context, args: LnArgs) -> Result<ExitCode, Failure> {
    use std::os::unix::ffi::OsStrExt;
    let path = path_of(&args.path)?;
    let attr = if args.symbolic {
        cx.grid.symlink(args.target.as_bytes(), &path)?
    } else {
        cx.grid.link(&path_of(&args.target)?, &path)?
    };
    cx.print_json(&attr_json(&path, &attr))?;
    DONE
}

/// Arguments of `fs chmod`.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  kuroshio fs chmod 640 /data/run1.dat")]
pub struct ChmodArgs {
    /// Permission bits, octal
    mode: String,
    /// Files or directories
    #[arg(required = true)]
    paths: Vec<OsString>,
}

/// Runs `fs chmod`.
pub fn chmod(cx: &Context, args: ChmodArgs) -> Result<ExitCode, Failure> {
    let mode = sizes::mode(&args.mode)?;
    for path in paths_of(&args.paths)? {
        let attr = cx.grid.set_attr(v1::SetAttrRequest {
            path: path.clone(),
            mode: Some(mode),
            ..v1::SetAttrRequest::default()
        })?;
        cx.print_json(&attr_json(&path, &attr))?;
    }
    DONE
}

/// Arguments of `fs chown`.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  kuroshio fs chown alice:physics /data/run1.dat\n  kuroshio fs chown :physics /data"
)]
pub struct ChownArgs {
    /// OWNER, OWNER:GROUP or :GROUP
    who: String,
    /// Files or directories
    #[arg(required = true)]
    paths: Vec<OsString>,
}

/// Runs `fs chown`.
pub fn chown(cx: &Context, args: ChownArgs) -> Result<ExitCode, Failure> {
    let (owner, group) = args.who.split_once(':').unwrap_or((&args.who, ""));
    let given = |name: &str| (!name.is_empty()).then(|| name.to_owned());
    let (owner, group) = (given(owner), given(group));
    if owner.is_none() && group.is_none() {
        return Err(Failure::usage(format!(
            "`{}`: OWNER, OWNER:GROUP or :GROUP is valid",
            args.who
        )));
    }
    for path in paths_of(&args.paths)? {
        let attr = cx.grid.set_attr(v1::SetAttrRequest {
            path: path.clone(),
            owner: owner.clone(),
            group: group.clone(),
            ..v1::SetAttrRequest::default()
        })?;
        cx.print_json(&attr_json(&path, &attr))?;
    }
    DONE
}
