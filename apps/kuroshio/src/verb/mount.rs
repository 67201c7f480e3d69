//! `kuroshio mount` and `kuroshio umount`: a grid as a file system of this host.
//!
//! ```text
//!   mount GRID DIR ──starts──> mount --foreground ──"mounted"──> the first one ends
//!                                  │ holds a pipe
//!                                  └──> umount --when-gone DIR: unmounts when the mount's process has died
//! ```

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write as _};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use kuroshio_mount::{Mount, MountError, Options};

use crate::error::Failure;
use crate::verb::grid::Which;
use crate::verb::serve;
use crate::{output, signal};

/// Longest time that the kernel may keep names and attributes.
const MAX_CACHE_MS: u64 = 3_600_000;
/// Lines of the log that are shown when a mount does not come up.
const SHOWN_LINES: usize = 3;

const EXAMPLE: &str = "\
Example:
  kuroshio mount g /mnt/grid                     the grid that `kuroshio up --dir g` started, for this user
  kuroshio mount g /mnt/grid -o allow_other      for all users of this host (root, administrator's ticket)
  kuroshio mount physics /mnt/p --path /data -o ro
  kuroshio umount /mnt/grid                      or: umount, fusermount3 -u";

/// Arguments of `kuroshio mount`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLE)]
pub struct Args {
    /// The grid: a folder made by `up` or `init`, or a kept name
    #[arg(value_name = "GRID")]
    grid: String,
    /// An empty folder
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// The directory of the grid that is mounted
    #[arg(long, value_name = "PATH", default_value = "/")]
    path: PathBuf,
    /// Options by commas: allow_other, ro
    #[arg(short = 'o', value_name = "OPTIONS", value_delimiter = ',')]
    options: Vec<String>,
    /// How long names and attributes may be kept, with its unit: 0ms to 1h
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_time)]
    cache: Duration,
    /// Folder for what is written and not yet published; it needs room for the largest file
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    drafts: PathBuf,
    /// Stay, and unmount on Ctrl-C
    #[arg(long)]
    foreground: bool,
    /// Print one JSON object when it is mounted
    #[arg(long)]
    json: bool,
}

/// Arguments of `kuroshio umount`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLE)]
pub struct UmountArgs {
    /// Where it is mounted
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Also while it is in use: what is open stays so until it is closed
    #[arg(long)]
    lazy: bool,
    /// Wait until standard input ends, then unmount it if nobody is behind it any more
    #[arg(long, hide = true)]
    when_gone: bool,
}

impl From<MountError> for Failure {
    fn from(e: MountError) -> Self {
        match e {
            MountError::Client(e) => e.into(),
            MountError::Invalid(text) => Self::usage(text),
            e => Self::failed(e.to_string()),
        }
    }
}

fn parse_time(text: &str) -> Result<Duration, String> {
    let at = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    let bad = || format!("`{text}`: a number with ms, s, m or h, at most 1h, for example 500ms or 1s");
    let number = number.parse::<u64>().map_err(|_| bad())?;
    let ms = match unit {
        "ms" => Some(number),
        "s" => number.checked_mul(1000),
        "m" => number.checked_mul(60_000),
        "h" => number.checked_mul(3_600_000),
        _ => None,
    };
    let ms = ms.filter(|ms| *ms <= MAX_CACHE_MS).ok_or_else(bad)?;
    Ok(Duration::from_millis(ms))
}

impl Args {
    fn options(&self) -> Result<Options, Failure> {
        let mut options = Options {
            path: self.path.as_os_str().as_bytes().to_vec(),
            cache: self.cache,
            drafts: self.drafts.clone(),
            ..Options::default()
        };
        for option in &self.options {
            match option.as_str() {
                "allow_other" => options.allow_other = true,
                "ro" => options.read_only = true,
                "rw" => options.read_only = false,
                other => {
                    return Err(Failure::usage(format!(
                        "-o {}: allow_other, ro and rw are valid",
                        other.escape_debug()
                    )));
                }
            }
        }
        Ok(options)
    }
}

/// Runs `kuroshio mount`.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    let options = args.options()?;
    let dir = folder(&args.dir)?;
    let which = Which {
        grid: Some(args.grid.clone()),
    };
    let ticket = which.ticket()?;
    if !args.foreground {
        return in_background(&args, &dir);
    }
    serve::start_log();
    let mount = Mount::start(&ticket, &dir, options)?;
    let mut alive = start_guard(&dir)?;
    let shown = dir.clone();
    signal::on_stop(move || stop(&shown))?;
    if args.json {
        let line = serde_json::json!({
            "event": "mounted", "dir": dir.display().to_string(), "grid": ticket.address(),
            "pid": std::process::id(),
        });
        output::line(&line.to_string())?;
    } else {
        output::line(&format!("mounted {} at {}", ticket.address(), dir.display()))?;
    }
    mount.wait()?;
    // The guard may be gone: then it unmounts nothing either.
    let _ = alive.write_all(b"x");
    Ok(ExitCode::SUCCESS)
}

/// The folder to mount at.
fn folder(dir: &Path) -> Result<PathBuf, Failure> {
    let failed = |e: std::io::Error| {
        let text = match e.raw_os_error() {
            // Transport endpoint is not connected.
            Some(107) => "a mount whose process has died; `kuroshio umount --lazy` takes it away".to_owned(),
            _ => e.to_string(),
        };
        Failure::usage(format!("{}: {text}", dir.display()))
    };
    let found = dir.canonicalize().map_err(failed)?;
    if found.is_dir() {
        return Ok(found);
    }
    Err(Failure::usage(format!("{}: not a folder", dir.display())))
}

/// Unmounts in order if it can be, else as soon as it is not in use any more.
fn stop(dir: &Path) {
    if let Err(e) = kuroshio_mount::unmount(dir, false) {
        tracing::warn!("{}: {e}; it goes when it is not in use any more", dir.display());
        if let Err(e) = kuroshio_mount::unmount(dir, true) {
            tracing::error!("{}: {e}", dir.display());
        }
    }
}

/// Starts what unmounts after this process has died; it lives as long as what is returned.
fn start_guard(dir: &Path) -> Result<std::io::PipeWriter, Failure> {
    let failed = |e: std::io::Error| Failure::failed(format!("cannot start the guard of the mount: {e}"));
    let (gone, alive) = std::io::pipe().map_err(failed)?;
    let program = std::env::current_exe().map_err(failed)?;
    let mut command = Command::new(program);
    command.args(["umount", "--when-gone"]).arg(dir);
    command.stdin(gone).stdout(Stdio::null()).stderr(Stdio::null());
    // A group of its own: what ends the mount shall not end its guard.
    command.current_dir("/").process_group(0);
    // Not waited for: it ends when this process has.
    command.spawn().map(drop).map_err(failed)?;
    Ok(alive)
}

fn log_path() -> Result<PathBuf, Failure> {
    let state = std::env::var_os("XDG_STATE_HOME")
        .filter(|s| !s.is_empty())
        .map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|h| PathBuf::from(h).join(".local/state"));
    let state = state.or_else(home).unwrap_or_else(|| PathBuf::from("/var/tmp"));
    let folder = state.join("kuroshio");
    let failed = |e: std::io::Error| Failure::failed(format!("{}: {e}", folder.display()));
    std::fs::create_dir_all(&folder).map_err(failed)?;
    Ok(folder.join("mount.log"))
}

/// Starts the mount in the background and returns when it is there.
fn in_background(args: &Args, dir: &Path) -> Result<ExitCode, Failure> {
    let failed = |e: std::io::Error| Failure::failed(format!("cannot start the mount: {e}"));
    let log = log_path()?;
    let begin = std::fs::metadata(&log).map_or(0, |m| m.len());
    let open = OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(&log);
    let open = open.map_err(|e| Failure::failed(format!("{}: {e}", log.display())))?;
    let program = std::env::current_exe().map_err(failed)?;
    let grid = if Path::new(&args.grid).exists() {
        std::path::absolute(&args.grid).map_err(failed)?
    } else {
        PathBuf::from(&args.grid)
    };
    let mut command = Command::new(program);
    command
        .arg("mount")
        .arg(grid)
        .arg(dir)
        .arg("--path")
        .arg(&args.path);
    command
        .arg("--cache")
        .arg(format!("{}ms", args.cache.as_millis()));
    let drafts = std::path::absolute(&args.drafts).map_err(failed)?;
    command.arg("--drafts").arg(drafts).arg("--foreground");
    if !args.options.is_empty() {
        command.arg("-o").arg(args.options.join(","));
    }
    if args.json {
        command.arg("--json");
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(open);
    command.current_dir("/").process_group(0);
    let mut child = command.spawn().map_err(failed)?;
    let mut line = String::new();
    if let Some(told) = child.stdout.take() {
        BufReader::new(told).read_line(&mut line).map_err(failed)?;
    }
    if line.is_empty() {
        let status = child.wait().map_err(failed)?;
        let text = std::fs::read(&log).unwrap_or_default();
        let new = text
            .get(usize::try_from(begin).unwrap_or(0)..)
            .unwrap_or_default();
        let new = String::from_utf8_lossy(new);
        let lines = new.lines().collect::<Vec<_>>();
        let last = lines
            .get(lines.len().saturating_sub(SHOWN_LINES)..)
            .unwrap_or_default();
        let text = last.join("; ");
        let text = text.strip_prefix("kuroshio: ").unwrap_or(&text).to_owned();
        return Err(match status.code() {
            Some(2) => Failure::usage(text),
            _ => Failure::failed(format!("{text} (log: {})", log.display())),
        });
    }
    output::line(line.trim_end())?;
    Ok(ExitCode::SUCCESS)
}

/// Runs `kuroshio umount`.
pub fn umount(args: UmountArgs) -> Result<ExitCode, Failure> {
    let dir = &args.dir;
    let failed = |e: std::io::Error| {
        let advice = match e.raw_os_error() {
            Some(16) => " (`--lazy` unmounts it when it is not in use any more)",
            Some(22) => " (nothing is mounted there)",
            _ => "",
        };
        Failure::failed(format!("{}: {e}{advice}", dir.display()))
    };
    if args.when_gone {
        kuroshio_mount::guard(dir, std::io::stdin()).map_err(failed)?;
    } else {
        kuroshio_mount::unmount(dir, args.lazy).map_err(failed)?;
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        let ms = |text: &str| parse_time(text).map(|d| d.as_millis());
        assert_eq!(ms("0ms"), Ok(0));
        assert_eq!(ms("500ms"), Ok(500));
        assert_eq!(ms("1s"), Ok(1000));
        assert_eq!(ms("1h"), Ok(3_600_000));
        for bad in ["", "1", "s", "1d", "2h", "1.5s", "-1s", "99999999999999999999s"] {
            assert!(parse_time(bad).is_err(), "{bad}");
        }
    }
}
