//! The cases of pjdfstest (and more), each run on a local file system first and then through the mount.
//!
//! ```text
//!   case NAME
//!     EXPECTED [@UID:GID[:GROUP,GROUP]] OPERATION ARGUMENTS...
//! ```
//!
//! EXPECTED is `ok`, an error's name, or `=VALUE` for what looks at something. `{N}` is a name of N bytes, `{long}` a
//! path beyond the limit. `newer FIELD PATH : OPERATION` needs the field to advance by a successful operation,
//! `same FIELD PATH : OPERATION` needs it to stay. The local run holds the table itself to what Linux does;
//! what the mount does otherwise is in [`KNOWN`], with the reason.

mod common;

use std::ffi::OsString;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use common::{TestGrid, as_user};
use rustix::fs::{self as sys, AtFlags, CWD, Mode, OFlags, RenameFlags, Timespec, Timestamps};
use rustix::io::Errno;

/// The cases, by system call.
const TABLES: &[&str] = &[
    include_str!("posix/names.cases"),
    include_str!("posix/attributes.cases"),
    include_str!("posix/open.cases"),
];

/// Cases that fail through the mount, with the reason (as `docs/mount.md` has it).
const KNOWN: &[(&str, &str)] = &[];

struct Line<'a> {
    number: usize,
    expected: &'a str,
    user: Option<(u32, u32, Vec<u32>)>,
    words: Vec<&'a str>,
}

struct Case<'a> {
    name: &'a str,
    lines: Vec<Line<'a>>,
}

fn parse(table: &str) -> Vec<Case<'_>> {
    let mut cases: Vec<Case<'_>> = Vec::new();
    for (number, text) in table.lines().enumerate() {
        let words = text.split_ascii_whitespace().collect::<Vec<_>>();
        match words.as_slice() {
            [] => {}
            [comment, ..] if comment.starts_with('#') => {}
            ["case", name] => cases.push(Case {
                name,
                lines: Vec::new(),
            }),
            [expected, rest @ ..] => {
                let user = rest.first().and_then(|w| w.strip_prefix('@')).map(credentials);
                let words = rest.iter().skip(usize::from(user.is_some())).copied().collect();
                let line = Line {
                    number: number + 1,
                    expected,
                    user,
                    words,
                };
                cases.last_mut().expect("a case first").lines.push(line);
            }
        }
    }
    cases
}

fn credentials(text: &str) -> (u32, u32, Vec<u32>) {
    let mut parts = text.split(':');
    let mut number = || parts.next().and_then(|p| p.parse().ok());
    let (uid, gid) = (number().expect("uid"), number().expect("gid"));
    let groups = parts
        .next()
        .map(|g| g.split(',').map(|g| g.parse().expect("group")).collect());
    (uid, gid, groups.unwrap_or_default())
}

/// What a word stands for: names of a given length.
fn word(text: &str) -> OsString {
    if text == "{long}" {
        return OsString::from("x/".repeat(2100));
    }
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        let (count, tail) = after.split_once('}').expect("a closing brace");
        out.push_str(before);
        out.push_str(&"n".repeat(count.parse().expect("a length")));
        rest = tail;
    }
    out.push_str(rest);
    OsString::from(out)
}

fn octal(text: &str) -> u32 {
    u32::from_str_radix(text, 8).expect("an octal mode")
}

fn flags(text: &str) -> OFlags {
    let all = text.split(',').map(|f| match f {
        "O_RDONLY" => OFlags::RDONLY,
        "O_WRONLY" => OFlags::WRONLY,
        "O_RDWR" => OFlags::RDWR,
        "O_CREAT" => OFlags::CREATE,
        "O_EXCL" => OFlags::EXCL,
        "O_TRUNC" => OFlags::TRUNC,
        "O_APPEND" => OFlags::APPEND,
        "O_NOFOLLOW" => OFlags::NOFOLLOW,
        "O_DIRECTORY" => OFlags::DIRECTORY,
        other => panic!("flag {other}"),
    });
    all.fold(OFlags::empty(), |a, b| a | b)
}

fn time(text: &str) -> Timespec {
    let special = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
    match text {
        "now" => special(libc::UTIME_NOW),
        "omit" => special(libc::UTIME_OMIT),
        ns => {
            let ns = ns.parse::<i64>().expect("nanoseconds");
            Timespec {
                tv_sec: ns.div_euclid(1_000_000_000),
                tv_nsec: ns.rem_euclid(1_000_000_000),
            }
        }
    }
}

/// Looks at something.
fn field(path: &Path, name: &str) -> Result<String, Errno> {
    let stat = std::fs::symlink_metadata(path).map_err(|e| Errno::from_io_error(&e).expect("a number"))?;
    let ns = |s: i64, n: i64| (i128::from(s) * 1_000_000_000 + i128::from(n)).to_string();
    Ok(match name {
        "mode" => format!("{:04o}", stat.mode() & 0o7777),
        "uid" => stat.uid().to_string(),
        "gid" => stat.gid().to_string(),
        "nlink" => stat.nlink().to_string(),
        "size" => stat.len().to_string(),
        "atime" => ns(stat.atime(), stat.atime_nsec()),
        "mtime" => ns(stat.mtime(), stat.mtime_nsec()),
        "ctime" => ns(stat.ctime(), stat.ctime_nsec()),
        "type" => match stat.mode() & libc::S_IFMT {
            libc::S_IFREG => "file",
            libc::S_IFDIR => "dir",
            libc::S_IFLNK => "link",
            libc::S_IFIFO => "fifo",
            libc::S_IFSOCK => "socket",
            _ => "other",
        }
        .into(),
        other => panic!("field {other}"),
    })
}

fn chown(path: &Path, uid: &str, gid: &str, at: AtFlags) -> Result<(), Errno> {
    let number = |text: &str| text.parse::<i64>().expect("a number");
    let uid = u32::try_from(number(uid))
        .ok()
        .map(rustix::process::Uid::from_raw);
    let gid = u32::try_from(number(gid))
        .ok()
        .map(rustix::process::Gid::from_raw);
    sys::chownat(CWD, path, uid, gid, at)
}

/// Does one operation; what it found, if it looks at something.
fn perform(dir: &Path, words: &[&str]) -> Result<String, Errno> {
    let at = |text: &str| -> PathBuf { dir.join(word(text)) };
    let mode = |text: &str| Mode::from_raw_mode(octal(text));
    let nix = |e: nix::errno::Errno| Errno::from_raw_os_error(e as i32);
    match words {
        ["create", p, m] => {
            sys::open(at(p), OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY, mode(m)).map(drop)
        }
        ["open", p, f] => sys::open(at(p), flags(f), Mode::empty()).map(drop),
        ["open", p, f, m] => sys::open(at(p), flags(f), mode(m)).map(drop),
        ["mkdir", p, m] => sys::mkdir(at(p), mode(m)),
        ["rmdir", p] => sys::rmdir(at(p)),
        ["unlink", p] => sys::unlink(at(p)),
        ["link", a, b] => sys::linkat(CWD, at(a), CWD, at(b), AtFlags::empty()),
        ["symlink", target, p] => sys::symlink(word(target), at(p)),
        ["readlink", p] => {
            let target = sys::readlink(at(p), Vec::new())?;
            return Ok(target.to_string_lossy().into_owned());
        }
        ["rename", a, b] => sys::rename(at(a), at(b)),
        ["rename_noreplace", a, b] => sys::renameat_with(CWD, at(a), CWD, at(b), RenameFlags::NOREPLACE),
        ["exchange", a, b] => sys::renameat_with(CWD, at(a), CWD, at(b), RenameFlags::EXCHANGE),
        ["mkfifo", p, m] => sys::mknodat(CWD, at(p), sys::FileType::Fifo, mode(m), 0),
        ["mksocket", p, m] => sys::mknodat(CWD, at(p), sys::FileType::Socket, mode(m), 0),
        ["mknod", p, m] => sys::mknodat(CWD, at(p), sys::FileType::RegularFile, mode(m), 0),
        ["chmod", p, m] => sys::chmod(at(p), mode(m)),
        ["chown", p, u, g] => chown(&at(p), u, g, AtFlags::empty()),
        ["lchown", p, u, g] => chown(&at(p), u, g, AtFlags::SYMLINK_NOFOLLOW),
        ["truncate", p, n] => nix::unistd::truncate(&at(p), n.parse().expect("bytes")).map_err(nix),
        ["ftruncate", p, n] => {
            let file = sys::open(at(p), OFlags::RDWR, Mode::empty())?;
            sys::ftruncate(&file, n.parse().expect("bytes"))
        }
        ["write", p, offset, text] => {
            let file = std::fs::File::from(sys::open(at(p), OFlags::WRONLY, Mode::empty())?);
            let offset = offset.parse().expect("an offset");
            let done = file.write_all_at(text.as_bytes(), offset);
            done.map_err(|e| Errno::from_io_error(&e).expect("a number"))
        }
        ["utimens", p, a, m] => {
            let times = Timestamps {
                last_access: time(a),
                last_modification: time(m),
            };
            sys::utimensat(CWD, at(p), &times, AtFlags::SYMLINK_NOFOLLOW)
        }
        ["access", p, what] => {
            let mut wanted = sys::Access::EXISTS;
            for (letter, one) in [
                ('r', sys::Access::READ_OK),
                ('w', sys::Access::WRITE_OK),
                ('x', sys::Access::EXEC_OK),
            ] {
                if what.contains(letter) {
                    wanted |= one;
                }
            }
            sys::accessat(CWD, at(p), wanted, AtFlags::EACCESS)
        }
        ["list", p] => {
            let found = std::fs::read_dir(at(p)).map_err(|e| Errno::from_io_error(&e).expect("a number"))?;
            let mut names = found
                .map(|e| {
                    e.map(|e| e.file_name().to_string_lossy().into_owned())
                        .expect("an entry")
                })
                .collect::<Vec<_>>();
            names.sort();
            return Ok(names.join(","));
        }
        ["newer", name, p, ":", rest @ ..] => return compare(dir, name, &at(p), rest, true),
        ["same", name, p, ":", rest @ ..] => return compare(dir, name, &at(p), rest, false),
        [
            name @ ("type" | "mode" | "uid" | "gid" | "nlink" | "size" | "mtime" | "atime"),
            p,
        ] => {
            return field(&at(p), name);
        }
        ["set_ids_after_write", p] => {
            let file = std::fs::File::from(sys::open(at(p), OFlags::RDWR, Mode::empty())?);
            file.write_all_at(b"x", 0)
                .map_err(|e| Errno::from_io_error(&e).expect("a number"))?;
            let found = file
                .metadata()
                .map_err(|e| Errno::from_io_error(&e).expect("a number"))?;
            return Ok(format!("{:04o}", found.permissions().mode() & 0o7777));
        }
        other => panic!("operation {other:?}"),
    }?;
    Ok("ok".into())
}

/// Whether a field advances by an operation. Clocks of files may tick every 4 ms (or 10).
fn compare(dir: &Path, name: &str, path: &Path, words: &[&str], advances: bool) -> Result<String, Errno> {
    let before = field(path, name)?;
    std::thread::sleep(Duration::from_millis(30));
    perform(dir, words)?;
    let after = field(path, name)?;
    let number = |text: &str| text.parse::<i128>().expect("nanoseconds");
    let right = if advances {
        number(&after) > number(&before)
    } else {
        after == before
    };
    Ok(if right {
        "ok".into()
    } else {
        format!("{name} {before} -> {after}")
    })
}

/// Runs a case in a folder of its own; what was otherwise.
fn run(case: &Case<'_>, root: &Path) -> Option<String> {
    let dir = root.join(case.name.replace('/', "-"));
    std::fs::create_dir(&dir).expect("a folder");
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o755)).expect("its mode");
    for line in &case.lines {
        let work = || perform(&dir, &line.words);
        let found = match &line.user {
            None => work(),
            Some((uid, gid, groups)) => as_user(*uid, *gid, groups, work),
        };
        let found = match found {
            Ok(found) => found,
            Err(e) => format!("{:?}", nix::errno::Errno::from_raw(e.raw_os_error())),
        };
        let expected = line.expected.strip_prefix('=').unwrap_or(line.expected);
        if expected != found {
            let (number, words) = (line.number, line.words.join(" "));
            let words: String = words.chars().take(120).collect();
            return Some(format!(
                "line {number}: {words}: expected {expected}, was {found}"
            ));
        }
    }
    None
}

#[test]
fn what_posix_says() {
    rustix::process::umask(Mode::empty());
    let cases = TABLES.iter().flat_map(|t| parse(t)).collect::<Vec<_>>();
    let local = tempfile::tempdir_in("/var/tmp").expect("a local folder");
    std::fs::set_permissions(local.path(), std::fs::Permissions::from_mode(0o755)).expect("its mode");
    let wrong = cases
        .iter()
        .filter_map(|c| Some((c.name, run(c, local.path())?)))
        .collect::<Vec<_>>();
    assert!(
        wrong.is_empty(),
        "the table is not what this host's own file system does: {wrong:#?}"
    );
    let grid = TestGrid::start(1);
    let mount = grid.mount();
    let failed = cases
        .iter()
        .filter_map(|c| Some((c.name, run(c, mount.path())?)))
        .collect::<Vec<_>>();
    let known = |name: &str| KNOWN.iter().any(|(k, _)| *k == name);
    let unknown = failed.iter().filter(|(n, _)| !known(n)).collect::<Vec<_>>();
    assert!(
        unknown.is_empty(),
        "{} of {} cases: {unknown:#?}",
        unknown.len(),
        cases.len()
    );
    let healed = KNOWN
        .iter()
        .filter(|(k, _)| !failed.iter().any(|(n, _)| n == k))
        .collect::<Vec<_>>();
    assert!(healed.is_empty(), "said to fail, and do not: {healed:?}");
    let lines = cases.iter().map(|c| c.lines.len()).sum::<usize>();
    println!(
        "{} cases of {lines} steps, {} known to fail",
        cases.len(),
        failed.len()
    );
}
