//! Access control lists in the text of POSIX `getfacl` and `setfacl`, with names of the grid's users and groups.
//!
//! ```text
//!   user::rw-   user:alice:r--   group::r--   group:physics:rw-   mask::rw-   other::---      default:... of a directory
//! ```

use std::ffi::OsString;
use std::process::ExitCode;

use clap::ArgAction;
use kuroshio_client::v1::{self, AclTag};
use serde_json::json;

use super::{Context, path_of, paths_of, shown};
use crate::error::Failure;
use crate::output;

const DONE: Result<ExitCode, Failure> = Ok(ExitCode::SUCCESS);

/// One entry as it is written: the owner and the owning group are a user and a group without a name.
#[derive(Debug, Clone, PartialEq, Eq)]
struct AclEntry {
    tag: &'static str,
    name: String,
    bits: u32,
}

impl AclEntry {
    fn of(e: &v1::AclEntry) -> Self {
        let tag = match e.tag() {
            AclTag::Owner | AclTag::User => "user",
            AclTag::GroupOwner | AclTag::Group => "group",
            AclTag::Mask => "mask",
            AclTag::Other | AclTag::Unspecified => "other",
        };
        Self {
            tag,
            name: e.name.clone(),
            bits: e.bits,
        }
    }

    fn on_the_wire(&self) -> v1::AclEntry {
        let tag = match (self.tag, self.name.is_empty()) {
            ("user", true) => AclTag::Owner,
            ("user", false) => AclTag::User,
            ("group", true) => AclTag::GroupOwner,
            ("group", false) => AclTag::Group,
            ("mask", _) => AclTag::Mask,
            _ => AclTag::Other,
        };
        v1::AclEntry {
            tag: tag.into(),
            name: self.name.clone(),
            bits: self.bits,
        }
    }
}

/// The list that is there; empty when there is none.
fn list_of(cx: &Context, path: &[u8], default_list: bool) -> Result<Vec<AclEntry>, Failure> {
    Ok(cx
        .grid
        .acl(path, default_list)?
        .iter()
        .map(AclEntry::of)
        .collect())
}

/// Arguments of `fs getfacl`.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  kuroshio fs getfacl /data")]
pub struct GetArgs {
    /// Files and directories
    #[arg(required = true)]
    paths: Vec<OsString>,
}

/// Arguments of `fs setfacl`.
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  kuroshio fs setfacl -m u:alice:rw,g:physics:r /data/f     entries changed or added
  kuroshio fs setfacl -x u:alice /data/f                    an entry removed
  kuroshio fs setfacl -d -m g:physics:rwx /data             what is made in /data begins with it
  kuroshio fs setfacl -b /data/f                            the whole list removed
The mask is made anew from the entries of groups and named users unless `m:` is given.")]
pub struct SetArgs {
    /// Entries to change or add: u:NAME:rwx, u::rwx, g:NAME:rwx, g::rwx, m::rwx, o::rwx, joined by commas
    #[arg(short = 'm', long = "modify", value_name = "ENTRIES", action = ArgAction::Append)]
    modify: Vec<String>,
    /// Entries to remove: u:NAME, g:NAME, m
    #[arg(short = 'x', long = "remove", value_name = "ENTRIES", action = ArgAction::Append)]
    remove: Vec<String>,
    /// Remove the list: the mode alone says who may
    #[arg(short = 'b', long = "remove-all", conflicts_with_all = ["modify", "remove"])]
    all: bool,
    /// The default list of a directory
    #[arg(short = 'd', long = "default")]
    default_list: bool,
    /// Files and directories
    #[arg(required = true)]
    paths: Vec<OsString>,
}

/// Runs `fs getfacl`.
pub fn get(cx: &Context, args: GetArgs) -> Result<ExitCode, Failure> {
    for path in paths_of(&args.paths)? {
        let attr = cx.grid.stat(&path, true)?;
        let access = access_list(cx, &path, &attr)?;
        let default = if attr.kind() == v1::Kind::Directory {
            list_of(cx, &path, true)?
        } else {
            Vec::new()
        };
        let lines = |list: &[AclEntry]| list.iter().map(text).collect::<Vec<_>>();
        let value = json!({
            "path": shown(&path), "owner": attr.owner, "group": attr.group,
            "access": lines(&access), "default": lines(&default),
        });
        if cx.print_json(&value)? {
            continue;
        }
        output::line(&format!("# file: {}", shown(&path)))?;
        output::line(&format!("# owner: {}\n# group: {}", attr.owner, attr.group))?;
        for line in lines(&access) {
            output::line(&line)?;
        }
        for line in lines(&default) {
            output::line(&format!("default:{line}"))?;
        }
        output::line("")?;
    }
    DONE
}

/// The list, or what the mode says.
fn access_list(cx: &Context, path: &[u8], attr: &v1::Attr) -> Result<Vec<AclEntry>, Failure> {
    let list = list_of(cx, path, false)?;
    Ok(if list.is_empty() {
        from_mode(attr.mode)
    } else {
        list
    })
}

fn from_mode(mode: u32) -> Vec<AclEntry> {
    ["user", "group", "other"]
        .iter()
        .zip([6u32, 3, 0])
        .map(|(tag, shift)| AclEntry {
            tag,
            name: String::new(),
            bits: (mode >> shift) & 7,
        })
        .collect()
}

/// Runs `fs setfacl`.
pub fn set(cx: &Context, args: SetArgs) -> Result<ExitCode, Failure> {
    if !args.all && args.modify.is_empty() && args.remove.is_empty() {
        return Err(Failure::usage(
            "nothing to do: -m ENTRIES, -x ENTRIES or -b is valid, for example -m u:alice:rw",
        ));
    }
    let modify = parse_all(&args.modify, true)?;
    let remove = parse_all(&args.remove, false)?;
    let paths = args
        .paths
        .iter()
        .map(|p| path_of(p))
        .collect::<Result<Vec<_>, _>>()?;
    let mut told = Vec::new();
    for path in paths {
        let list = if args.all {
            Vec::new()
        } else {
            let attr = cx.grid.stat(&path, true)?;
            let mut list = if args.default_list {
                list_of(cx, &path, true)?
            } else {
                access_list(cx, &path, &attr)?
            };
            if list.is_empty() {
                list = from_mode(attr.mode);
            }
            changed(list, &modify, &remove)?
        };
        let entries = list.iter().map(AclEntry::on_the_wire).collect();
        cx.grid.set_acl(&path, args.default_list, entries)?;
        told.push(json!({ "path": shown(&path), "entries": list.iter().map(text).collect::<Vec<_>>() }));
    }
    cx.print_json(&json!({ "default": args.default_list, "files": told }))?;
    DONE
}

/// A list after a change: named entries bring a mask, which is made anew unless it was given.
fn changed(
    mut list: Vec<AclEntry>,
    modify: &[AclEntry],
    remove: &[AclEntry],
) -> Result<Vec<AclEntry>, Failure> {
    let same = |a: &AclEntry, b: &AclEntry| a.tag == b.tag && a.name == b.name;
    for gone in remove {
        if gone.name.is_empty() && gone.tag != "mask" {
            return Err(Failure::usage(format!(
                "-x {}: the entries of the owner, the owning group and others always stay; change them by -m",
                text(gone)
            )));
        }
        let before = list.len();
        list.retain(|e| !same(e, gone));
        if list.len() == before {
            return Err(Failure::failed(format!(
                "-x {}: there is no such entry",
                text(gone)
            )));
        }
    }
    for new in modify {
        match list.iter_mut().find(|e| same(e, new)) {
            Some(old) => old.bits = new.bits,
            None => list.push(new.clone()),
        }
    }
    let named = list.iter().any(|e| !e.name.is_empty());
    let given = modify.iter().any(|e| e.tag == "mask");
    if !given {
        list.retain(|e| e.tag != "mask");
        if named {
            let class = list.iter().filter(|e| e.tag == "group" || !e.name.is_empty());
            let bits = class.fold(0, |bits, e| bits | e.bits);
            list.push(AclEntry {
                tag: "mask",
                name: String::new(),
                bits,
            });
        }
    }
    Ok(list)
}

fn parse_all(texts: &[String], with_bits: bool) -> Result<Vec<AclEntry>, Failure> {
    let each = texts.iter().flat_map(|t| t.split(','));
    each.map(|t| parse(t, with_bits)).collect()
}

/// One entry: `u:alice:rw`, without the bits where one is removed.
fn parse(entry: &str, with_bits: bool) -> Result<AclEntry, Failure> {
    let valid = if with_bits {
        "u:NAME:rwx, u::rwx, g:NAME:rwx, g::rwx, m::rwx and o::rwx are valid"
    } else {
        "u:NAME, g:NAME and m are valid"
    };
    let bad = || Failure::usage(format!("ACL entry `{}`: {valid}", entry.escape_debug()));
    let mut parts = entry.split(':');
    let tag = match parts.next().unwrap_or_default() {
        "u" | "user" => "user",
        "g" | "group" => "group",
        "m" | "mask" => "mask",
        "o" | "other" => "other",
        _ => return Err(bad()),
    };
    let rest = parts.collect::<Vec<_>>();
    let (name, bits) = match (rest.as_slice(), with_bits) {
        ([name, bits], true) => (*name, parse_bits(bits).ok_or_else(bad)?),
        // `m:rx` and `o:r`, as setfacl takes them.
        ([bits], true) if matches!(tag, "mask" | "other") => ("", parse_bits(bits).ok_or_else(bad)?),
        ([name] | [name, ""], false) => (*name, 0),
        ([], false) => ("", 0),
        _ => return Err(bad()),
    };
    if matches!(tag, "mask" | "other") && !name.is_empty() {
        return Err(bad());
    }
    Ok(AclEntry {
        tag,
        name: name.to_owned(),
        bits,
    })
}

/// `rwx` in any order with `-` for nothing, or one octal digit.
fn parse_bits(text: &str) -> Option<u32> {
    if let Ok(number) = text.parse::<u32>() {
        return (number <= 7 && text.len() == 1).then_some(number);
    }
    if text.is_empty() || text.len() > 3 {
        return None;
    }
    text.chars().try_fold(0, |bits, c| match c {
        'r' => Some(bits | 4),
        'w' => Some(bits | 2),
        'x' => Some(bits | 1),
        '-' => Some(bits),
        _ => None,
    })
}

fn text(e: &AclEntry) -> String {
    let bit = |bit: u32, c: char| if e.bits & bit != 0 { c } else { '-' };
    format!(
        "{}:{}:{}{}{}",
        e.tag,
        e.name,
        bit(4, 'r'),
        bit(2, 'w'),
        bit(1, 'x')
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_read_and_written() {
        let table = [
            ("u:alice:rw", "user:alice:rw-"),
            ("g::r-x", "group::r-x"),
            ("m:rx", "mask::r-x"),
            ("o::-", "other::---"),
            ("group:p:7", "group:p:rwx"),
        ];
        for (given, written) in table {
            assert_eq!(
                parse(given, true).map(|e| text(&e)).ok().as_deref(),
                Some(written)
            );
        }
        for bad in [
            "", "u", "u:a", "x:a:r", "u:a:rwz", "u:a:8", "m:a:r", "u:a:r:x", "u:a:",
        ] {
            assert!(parse(bad, true).is_err(), "{bad}");
        }
        assert!(parse("u:alice", false).is_ok() && parse("u:alice:rw", false).is_err());
    }

    #[test]
    fn the_mask_follows_the_entries() {
        let list = changed(from_mode(0o640), &[parse("u:alice:rw", true).expect("good")], &[]);
        let list = list.map_err(|e| e.to_string()).expect("changed");
        let texts = |l: &[AclEntry]| l.iter().map(text).collect::<Vec<_>>();
        assert_eq!(
            texts(&list),
            [
                "user::rw-",
                "group::r--",
                "other::---",
                "user:alice:rw-",
                "mask::rw-"
            ]
        );
        let alice = parse("u:alice", false).expect("good");
        let back = changed(list.clone(), &[], std::slice::from_ref(&alice));
        let back = back.map_err(|e| e.to_string()).expect("changed");
        assert_eq!(texts(&back), ["user::rw-", "group::r--", "other::---"]);
        let given = changed(list, &[parse("m::r", true).expect("good")], &[]);
        let given = given.map_err(|e| e.to_string()).expect("changed");
        assert!(texts(&given).contains(&"mask::r--".to_owned()));
        assert!(changed(from_mode(0o640), &[], &[alice]).is_err(), "not there");
        let owner = parse("u", false).expect("good");
        assert!(
            changed(from_mode(0o640), &[], &[owner]).is_err(),
            "the owner's stays"
        );
    }
}
