//! Quotas, extended attributes, and the check of catalog and replicas.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use clap::Subcommand;
use indicatif::HumanBytes;
use kuroshio_client::{Cancel, v1};
use serde_json::{Value, json};

use super::{Context, path_of, paths_of, shown, sizes, walk};
use crate::error::Failure;
use crate::output;

const DONE: Result<ExitCode, Failure> = Ok(ExitCode::SUCCESS);
/// Largest value of an extended attribute, bytes.
const MAX_VALUE_BYTES: u64 = 64 * 1024;
/// Findings that are told.
const MAX_FINDINGS: u32 = 1000;

/// Arguments of `fs quota`.
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  kuroshio fs quota                                       what I use and may use
  kuroshio fs quota --user alice --bytes 500GiB           set a bound (administrator); the other one stays
  kuroshio fs quota --dir /data --files 1000000 --bytes none
A directory's quota counts all below it, and is set while the directory is empty.")]
pub struct QuotaArgs {
    /// Of this user [default: of whoever asks]
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Of this group
    #[arg(long, value_name = "NAME", conflicts_with = "user")]
    group: Option<String>,
    /// Of this directory and all below it
    #[arg(long, value_name = "PATH", conflicts_with_all = ["user", "group"])]
    dir: Option<OsString>,
    /// Set the most files (all inodes count), or `none`
    #[arg(long, value_name = "N|none")]
    files: Option<String>,
    /// Set the most payload bytes (each file once), for example 500GiB, or `none`
    #[arg(long, value_name = "SIZE|none")]
    bytes: Option<String>,
}

/// A bound in text: `none`, or what `read` makes of it.
fn bound(text: &str, read: impl FnOnce(&str) -> Result<u64, Failure>) -> Result<Option<u64>, Failure> {
    if text == "none" {
        return Ok(None);
    }
    read(text).map(Some)
}

/// Runs `fs quota`.
pub fn quota(cx: &Context, args: QuotaArgs) -> Result<ExitCode, Failure> {
    let number = |text: &str| {
        text.parse::<u64>().map_err(|_| {
            Failure::usage(format!(
                "--files {}: a number of files, or none, is valid",
                text.escape_debug()
            ))
        })
    };
    let files = args.files.as_deref().map(|t| bound(t, number)).transpose()?;
    let bytes = args
        .bytes
        .as_deref()
        .map(|t| bound(t, sizes::parse))
        .transpose()?;
    let path = args.dir.as_deref().map(path_of).transpose()?;
    let mut whose = v1::QuotaRequest {
        user: args.user.unwrap_or_default(),
        group: args.group.unwrap_or_default(),
        path: path.unwrap_or_default(),
    };
    if whose == v1::QuotaRequest::default() {
        whose.user = cx.grid.status()?.user;
    }
    if files.is_some() || bytes.is_some() {
        let now = match cx.grid.quota(whose.clone()) {
            // A directory that has no quota yet.
            Err(e) if !whose.path.is_empty() && e.code() == Some(v1::Code::NoEntry) => v1::Use::default(),
            now => now?,
        };
        cx.grid.set_quota(v1::SetQuotaRequest {
            whose: Some(whose.clone()),
            max_files: files.unwrap_or(now.max_files),
            max_bytes: bytes.unwrap_or(now.max_bytes),
        })?;
    }
    let (kind, name) = match (&whose.group, &whose.path) {
        (_, path) if !path.is_empty() => ("directory", shown(path)),
        (group, _) if !group.is_empty() => ("group", group.clone()),
        _ => ("user", whose.user.clone()),
    };
    let used = cx.grid.quota(whose)?;
    let value = json!({
        "kind": kind, "name": name, "files": used.files, "bytes": used.bytes,
        "max_files": used.max_files, "max_bytes": used.max_bytes,
    });
    if cx.print_json(&value)? {
        return DONE;
    }
    let most =
        |bound: Option<String>| bound.map_or_else(|| "no bound".to_owned(), |b| format!("at most {b}"));
    output::line(&format!(
        "{kind} {name}: {} files ({}), {} ({})",
        used.files,
        most(used.max_files.map(|n| n.to_string())),
        HumanBytes(used.bytes),
        most(used.max_bytes.map(|n| HumanBytes(n).to_string()))
    ))?;
    DONE
}

/// Arguments of `fs xattr`.
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  kuroshio fs xattr set /data/f user.run 2003-11
  kuroshio fs xattr get /data/f user.run
  kuroshio fs xattr ls /data/f
  kuroshio fs xattr rm /data/f user.run")]
pub struct XattrArgs {
    #[command(subcommand)]
    action: XattrAction,
}

#[derive(Subcommand)]
enum XattrAction {
    /// Names, sorted
    Ls {
        /// File or directory
        path: OsString,
    },
    /// The value, as it is, on standard output
    Get {
        /// File or directory
        path: OsString,
        /// Name with its namespace: user.NAME
        name: OsString,
    },
    /// Set a value
    Set {
        /// File or directory
        path: OsString,
        /// Name with its namespace: user.NAME
        name: OsString,
        /// The value; `-` reads it from standard input
        value: OsString,
        /// Refuse what is there already
        #[arg(long)]
        create: bool,
        /// Refuse what is not there yet
        #[arg(long, conflicts_with = "create")]
        replace: bool,
    },
    /// Remove one
    Rm {
        /// File or directory
        path: OsString,
        /// Name with its namespace: user.NAME
        name: OsString,
    },
}

/// Runs `fs xattr`.
pub fn xattr(cx: &Context, args: XattrArgs) -> Result<ExitCode, Failure> {
    match args.action {
        XattrAction::Ls { path } => {
            let path = path_of(&path)?;
            let names = cx.grid.xattrs(&path)?;
            let names = names.iter().map(|n| shown(n)).collect::<Vec<_>>();
            if !cx.print_json(&json!({ "path": shown(&path), "names": names }))? {
                for name in names {
                    output::line(&name)?;
                }
            }
        }
        XattrAction::Get { path, name } => {
            let path = path_of(&path)?;
            let value = cx.grid.xattr(&path, name.as_bytes())?;
            let told = json!({
                "path": shown(&path), "name": name.to_string_lossy(), "value": String::from_utf8(value.clone()).ok(),
                "value_hex": value.iter().map(|b| format!("{b:02x}")).collect::<String>(),
            });
            if !cx.print_json(&told)? {
                let mut out = std::io::stdout().lock();
                let written = out.write_all(&value).and_then(|()| out.flush());
                written.map_err(|e| Failure::failed(format!("standard output: {e}")))?;
            }
        }
        XattrAction::Set {
            path,
            name,
            value,
            create,
            replace,
        } => {
            let path = path_of(&path)?;
            let value = value_of(&value)?;
            let told = json!({ "path": shown(&path), "name": name.to_string_lossy(), "bytes": value.len() });
            cx.grid.set_xattr(v1::XattrRequest {
                path,
                name: name.as_bytes().to_vec(),
                value,
                create,
                replace,
            })?;
            cx.print_json(&told)?;
        }
        XattrAction::Rm { path, name } => {
            let path = path_of(&path)?;
            cx.grid.remove_xattr(&path, name.as_bytes())?;
            cx.print_json(&json!({ "path": shown(&path), "removed": name.to_string_lossy() }))?;
        }
    }
    DONE
}

fn value_of(given: &OsString) -> Result<Vec<u8>, Failure> {
    let mut value = given.as_bytes().to_vec();
    if value == b"-" {
        value.clear();
        let read = std::io::stdin().take(MAX_VALUE_BYTES + 1).read_to_end(&mut value);
        read.map_err(|e| Failure::usage(format!("standard input: {e}")))?;
    }
    if value.len() as u64 > MAX_VALUE_BYTES {
        return Err(Failure::usage(format!(
            "a value of more than {MAX_VALUE_BYTES} bytes; that is the most of an extended attribute"
        )));
    }
    Ok(value)
}

/// Arguments of `fs check`.
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  kuroshio fs check                    the catalog: links, sums, rows without their owner (administrator)
  kuroshio fs check --content /data    and every replica of every file below /data, read and compared
Exit code 1 when something is wrong. Replicas on nodes that cannot be reached are counted, not called wrong.")]
pub struct CheckArgs {
    /// Read all replicas of the files at or below these paths too
    #[arg(long = "content", value_name = "PATH", num_args = 1..)]
    content: Vec<OsString>,
}

/// Runs `fs check`.
pub fn check(cx: &Context, args: CheckArgs) -> Result<ExitCode, Failure> {
    let tops = paths_of(&args.content)?;
    let findings = cx.grid.check(MAX_FINDINGS)?;
    let findings = findings.iter().map(|f| shown(f)).collect::<Vec<_>>();
    let (mut files, mut right, mut unreached) = (0u64, 0u64, 0u64);
    let mut wrong: Vec<Value> = Vec::new();
    let cancel = Cancel::default();
    for top in &tops {
        let mut found = Vec::new();
        walk::visit(cx, top, |path, attr| {
            if attr.kind() == v1::Kind::File {
                found.push(path.to_vec());
            }
            Ok(())
        })?;
        for path in found {
            let checked = match cx.grid.check_replicas(&path, &cancel) {
                Ok(checked) => checked,
                // Removed since it was listed.
                Err(e) if e.code() == Some(v1::Code::NoEntry) => continue,
                Err(e) => return Err(e.into()),
            };
            files += 1;
            for replica in checked {
                match replica.problem {
                    None => right += 1,
                    Some(_) if !replica.reached => unreached += 1,
                    Some(problem) => wrong.push(json!({
                        "path": shown(&path), "fragment": replica.fragment, "node": replica.node, "problem": problem,
                    })),
                }
            }
        }
    }
    let good = findings.is_empty() && wrong.is_empty();
    let code = if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    };
    let value = json!({
        "findings": findings, "files": files, "replicas_right": right, "replicas_unreached": unreached,
        "replicas_wrong": wrong,
    });
    if cx.print_json(&value)? {
        return Ok(code);
    }
    for finding in &findings {
        output::line(&format!("catalog: {finding}"))?;
    }
    for bad in &wrong {
        let text = |key: &str| bad[key].as_str().unwrap_or_default().to_owned();
        output::line(&format!(
            "{} on {}: {}",
            text("path"),
            text("node"),
            text("problem")
        ))?;
    }
    output::line(&format!("catalog: {} findings", findings.len()))?;
    if !tops.is_empty() {
        output::line(&format!(
            "content: {files} files, {right} replicas right, {} wrong, {unreached} on nodes that were not reached",
            wrong.len()
        ))?;
    }
    Ok(code)
}
