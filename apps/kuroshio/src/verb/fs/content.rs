//! Content in and out, with progress.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::File;
use std::io::IsTerminal;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use indicatif::{HumanBytes, ProgressBar, ProgressDrawTarget, ProgressStyle};
use kuroshio_client::{Cancel, ClientError, Once, Part, PutOptions, host_name, v1};
use serde_json::{Value, json};

use super::files::make_parents;
use super::{Context, below, fragments, is_dir, last_name, path_of, paths_of, replicas, shown, sizes, umask};
use crate::error::Failure;

/// How often progress is shown on a terminal.
const DRAW_EVERY: Duration = Duration::from_millis(200);
/// How often it is written elsewhere.
const LINE_EVERY: Duration = Duration::from_secs(1);
/// The rate that is shown is that of so long.
const RATE_OVER: Duration = Duration::from_secs(3);
/// Most files at once.
const MAX_AT_ONCE: u32 = 64;

/// How files are moved.
#[derive(clap::Args)]
pub struct How {
    /// Files at once
    #[arg(short = 'j', long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=MAX_AT_ONCE as i64))]
    jobs: u32,
    /// No progress
    #[arg(short = 'q', long)]
    quiet: bool,
}

/// Arguments of `fs put`.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  kuroshio fs put --ncopy 2 run1.dat /data/\n  kuroshio fs put -r results /data\n  \
                        tar c dir | kuroshio fs put - /dir.tar\n  \
                        kuroshio fs put --fragments 8 --lines words.txt /words   eight fragments on several nodes\n  \
                        kuroshio fs put --fragment 3/8 part3 /words              one of eight processes"
)]
pub struct PutArgs {
    /// Local files, `-` for standard input, and last the path in the grid
    #[arg(required = true, num_args = 2..)]
    paths: Vec<OsString>,
    /// Directories with all that is in them
    #[arg(short = 'r', long)]
    recursive: bool,
    /// Never over what is there
    #[arg(short = 'n', long)]
    no_replace: bool,
    /// So many replicas, and wait for them: a number, or SITE=N,SITE=N
    #[arg(long, value_name = "COPIES")]
    ncopy: Option<String>,
    #[command(flatten)]
    cut: fragments::CutArgs,
    #[command(flatten)]
    how: How,
}

/// Arguments of `fs get`.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  kuroshio fs get /data/run1.dat .\n  kuroshio fs get -r /data .\n  \
                        kuroshio fs get --view section --fragment 3 /words part3\n  \
                        kuroshio fs get --view local --node n2 /words DIR      the fragments on n2, a file each"
)]
pub struct GetArgs {
    /// Paths in the grid, and last the local file or directory
    #[arg(required = true, num_args = 2..)]
    paths: Vec<OsString>,
    /// Directories with all that is in them
    #[arg(short = 'r', long)]
    recursive: bool,
    #[command(flatten)]
    view: fragments::ViewArgs,
    #[command(flatten)]
    how: How,
}

/// Arguments of `fs cat`.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  kuroshio fs cat /data/run1.dat | sha256sum\n  kuroshio fs cat --fragment 3 /words"
)]
pub struct CatArgs {
    /// Files
    #[arg(required = true)]
    paths: Vec<OsString>,
    /// Only this fragment of each, from 0
    #[arg(long, value_name = "N")]
    fragment: Option<u32>,
}

/// One file to be moved.
struct Item {
    local: PathBuf,
    grid: Vec<u8>,
    bytes: u64,
}

/// Runs `fs put`.
pub fn put(cx: &Context, mut args: PutArgs) -> Result<ExitCode, Failure> {
    let to = path_of(&args.paths.pop().unwrap_or_default())?;
    let rule = args.ncopy.as_deref().map(replicas::check_rule).transpose()?;
    if args.paths.iter().any(|p| p == "-") && args.paths.len() > 1 {
        return Err(Failure::usage("`-` stands alone: standard input is one file"));
    }
    if args.cut.is_used() {
        return fragments::put(cx, &args.cut, &args.paths, &to, args.no_replace, rule.as_deref());
    }
    let into = to.ends_with(b"/") || is_dir(&cx.grid, &to)?;
    let mut items = VecDeque::new();
    for source in &args.paths {
        let local = PathBuf::from(source);
        let meta = (source != "-").then(|| local.metadata()).transpose();
        let meta = meta.map_err(|e| Failure::usage(format!("{}: {e}", local.display())))?;
        let name = local.file_name().map(OsString::from).unwrap_or_default();
        if into && source == "-" {
            return Err(Failure::usage(format!(
                "{}: standard input needs a file's name",
                shown(&to)
            )));
        }
        let target = if into {
            below(&to, name.as_bytes())
        } else {
            to.clone()
        };
        match meta {
            Some(meta) if meta.is_dir() => {
                if !args.recursive {
                    let text = format!("{}: a directory; -r takes it with all in it", local.display());
                    return Err(Failure::usage(text));
                }
                walk_local(cx, &local, &target, &mut items)?;
            }
            _ if !into && args.paths.len() > 1 => {
                return Err(Failure::usage(format!(
                    "{}: not a directory, for several sources",
                    shown(&to)
                )));
            }
            meta => items.push_back(Item {
                local,
                grid: target,
                bytes: meta.map_or(0, |m| m.len()),
            }),
        }
    }
    let umask = umask();
    let done = move_all(cx, items, &args.how, |item, cancel| {
        let sent = put_one(cx, item, args.no_replace, umask, cancel)?;
        if let Some(rule) = &rule {
            cx.grid.set_copies(&item.grid, rule)?;
        }
        Ok(json!({
            "path": shown(&item.grid), "size_bytes": sent.attr.size_bytes, "digest": sizes::hex(&sent.digest),
            "node": sent.node, "inode": sent.attr.inode,
        }))
    })?;
    let (files, paths) = done;
    if rule.is_some() {
        replicas::wait_for_rule(cx, &paths)?;
    }
    cx.print_json(&json!({ "files": files }))?;
    Ok(ExitCode::SUCCESS)
}

fn walk_local(cx: &Context, local: &Path, grid: &[u8], items: &mut VecDeque<Item>) -> Result<(), Failure> {
    let failed = |e: std::io::Error| Failure::failed(format!("{}: {e}", local.display()));
    make_parents(cx, grid, 0o777)?;
    for entry in std::fs::read_dir(local).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let (path, to) = (entry.path(), below(grid, entry.file_name().as_bytes()));
        let meta = path.symlink_metadata().map_err(failed)?;
        if meta.is_dir() {
            walk_local(cx, &path, &to, items)?;
        } else if meta.is_symlink() {
            let target = std::fs::read_link(&path).map_err(failed)?;
            cx.grid.symlink(target.as_os_str().as_bytes(), &to)?;
        } else if meta.is_file() {
            items.push_back(Item {
                local: path,
                grid: to,
                bytes: meta.len(),
            });
        } else {
            eprintln!(
                "kuroshio: {}: not a file, directory or link: left out",
                path.display()
            );
        }
    }
    Ok(())
}

fn put_one(
    cx: &Context,
    item: &Item,
    exclusive: bool,
    umask: u32,
    cancel: &Cancel,
) -> Result<kuroshio_client::Sent, Failure> {
    let mut options = PutOptions {
        exclusive,
        mode: 0o666,
        umask,
        near_host: host_name(),
        mtime_ns: None,
    };
    if item.local == Path::new("-") {
        let mut source = Once(std::io::stdin().lock());
        return Ok(cx.grid.put(&item.grid, &mut source, 0, &options, cancel)?);
    }
    let failed = |e: std::io::Error| Failure::failed(format!("{}: {e}", item.local.display()));
    let mut file = File::open(&item.local).map_err(failed)?;
    let meta = file.metadata().map_err(failed)?;
    options.mode = meta.permissions().mode() & 0o777;
    options.mtime_ns = meta
        .mtime()
        .checked_mul(1_000_000_000)
        .and_then(|t| t.checked_add(meta.mtime_nsec()));
    if !meta.is_file() {
        // A pipe has no end to know and cannot be begun anew.
        return Ok(cx.grid.put(&item.grid, &mut Once(file), 0, &options, cancel)?);
    }
    Ok(cx.grid.put(&item.grid, &mut file, meta.len(), &options, cancel)?)
}

/// Runs `fs get`.
pub fn get(cx: &Context, mut args: GetArgs) -> Result<ExitCode, Failure> {
    let to = PathBuf::from(args.paths.pop().unwrap_or_default());
    let paths = paths_of(&args.paths)?;
    let part = args.view.part()?;
    if args.view.is_local() {
        return fragments::get_local(cx, &args.view, &paths, &to);
    }
    let into = to.is_dir();
    if !into && paths.len() > 1 {
        return Err(Failure::usage(format!(
            "{}: not a directory, for several sources",
            to.display()
        )));
    }
    let mut items = VecDeque::new();
    for path in paths {
        let name = OsString::from_vec(last_name(&path).to_vec());
        let local = if into { to.join(&name) } else { to.clone() };
        let attr = cx.grid.stat(&path, true)?;
        if attr.kind() != v1::Kind::Directory {
            items.push_back(Item {
                local,
                grid: path,
                bytes: attr.size_bytes,
            });
        } else if args.recursive {
            walk_grid(cx, &path, &local, &mut items)?;
        } else {
            return Err(Failure::usage(format!(
                "{}: a directory; -r takes it with all in it",
                shown(&path)
            )));
        }
    }
    let (files, _) = move_all(cx, items, &args.how, |item, cancel| {
        let got = cx.grid.get_part(&item.grid, part, None, &item.local, cancel)?;
        Ok(json!({
            "path": shown(&item.grid), "to": item.local.display().to_string(), "size_bytes": got.bytes,
            "digest": sizes::hex(&got.digest), "nodes": got.nodes, "failovers": got.failovers,
        }))
    })?;
    cx.print_json(&json!({ "files": files }))?;
    Ok(ExitCode::SUCCESS)
}

fn walk_grid(cx: &Context, grid: &[u8], local: &Path, items: &mut VecDeque<Item>) -> Result<(), Failure> {
    let failed = |e: std::io::Error| Failure::failed(format!("{}: {e}", local.display()));
    std::fs::create_dir_all(local).map_err(failed)?;
    for entry in cx.grid.list(grid) {
        let entry = entry?;
        // A name from elsewhere: only what is one component is used as one.
        let name = OsString::from_vec(entry.name.clone());
        if entry.name.contains(&b'/') || name == ".." || name == "." || name.is_empty() {
            return Err(Failure::failed(format!(
                "{}: a name that cannot be",
                shown(&entry.name)
            )));
        }
        let (path, to) = (below(grid, &entry.name), local.join(&name));
        let attr = entry.attr.unwrap_or_default();
        match attr.kind() {
            v1::Kind::Directory => walk_grid(cx, &path, &to, items)?,
            v1::Kind::Symlink => {
                let target = OsString::from_vec(cx.grid.read_link(&path)?);
                std::os::unix::fs::symlink(target, &to).map_err(failed)?;
            }
            v1::Kind::Fifo | v1::Kind::Socket => {
                let (path, kind) = (shown(&path), super::kind_name(&attr));
                eprintln!("kuroshio: {path}: a {kind} is left out");
            }
            _ => items.push_back(Item {
                local: to,
                grid: path,
                bytes: attr.size_bytes,
            }),
        }
    }
    Ok(())
}

/// Runs `fs cat`.
pub fn cat(cx: &Context, args: CatArgs) -> Result<ExitCode, Failure> {
    if cx.json {
        return Err(Failure::usage(
            "cat writes the content itself: --json has no meaning here",
        ));
    }
    let mut out = std::io::stdout().lock();
    for path in paths_of(&args.paths)? {
        match args.fragment {
            None => cx.grid.read_to(&path, &mut out, &Cancel::default())?,
            Some(n) => cx
                .grid
                .read_part_to(&path, Part::Fragment(n), &mut out, &Cancel::default())?,
        };
    }
    std::io::Write::flush(&mut out).map_err(|e| Failure::failed(format!("standard output: {e}")))?;
    Ok(ExitCode::SUCCESS)
}

/// Moves all items, several at once, and shows progress. The first failure stops the rest; what was moved
/// stays. Gives what each item gave, in order, and their paths in the grid.
fn move_all(
    cx: &Context,
    items: VecDeque<Item>,
    how: &How,
    one: impl Fn(&Item, &Cancel) -> Result<Value, Failure> + Sync,
) -> Result<(Vec<Value>, Vec<Vec<u8>>), Failure> {
    let total_bytes = items.iter().map(|i| i.bytes).sum();
    let paths = items.iter().map(|i| i.grid.clone()).collect::<Vec<_>>();
    let total = items.len();
    let workers = (how.jobs as usize).min(total);
    let cancel = Cancel::default();
    let files = AtomicU64::new(0);
    let failed = AtomicBool::new(false);
    let queue = Mutex::new(items.into_iter().enumerate());
    let (tx, rx) = mpsc::channel();
    let display = Show::new(cx.json, how.quiet, total as u64, total_bytes);
    let results = std::thread::scope(|scope| {
        for _ in 0..workers {
            let tx = tx.clone();
            scope.spawn(|| {
                let tx = tx;
                loop {
                    let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
                    let Some((n, item)) = next.filter(|_| !failed.load(Ordering::Relaxed)) else {
                        return;
                    };
                    let result = one(&item, &cancel);
                    match &result {
                        Ok(_) => {
                            files.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(_) => {
                            failed.store(true, Ordering::Relaxed);
                            cancel.stop();
                        }
                    }
                    // The receiver lives as long as the scope.
                    let _ = tx.send((n, result));
                }
            });
        }
        drop(tx);
        collect(&rx, &display, &cancel, &files)
    })?;
    display.finish(cancel.bytes(), files.load(Ordering::Relaxed));
    Ok((results, paths))
}

type Told = (usize, Result<Value, Failure>);

fn collect(
    rx: &mpsc::Receiver<Told>,
    display: &Show,
    cancel: &Cancel,
    files: &AtomicU64,
) -> Result<Vec<Value>, Failure> {
    let mut results = Vec::new();
    let mut first = None;
    loop {
        match rx.recv_timeout(DRAW_EVERY) {
            Ok((n, Ok(value))) => results.push((n, value)),
            // What was stopped because of another one's failure is not what went wrong.
            Ok((_, Err(e))) => {
                let stopped = e.to_string() == ClientError::Cancelled.to_string();
                if first.is_none() && !stopped {
                    first = Some(e);
                }
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
        }
        display.update(cancel.bytes(), files.load(Ordering::Relaxed));
    }
    if let Some(e) = first {
        return Err(e);
    }
    results.sort_by_key(|(n, _)| *n);
    Ok(results.into_iter().map(|(_, value)| value).collect())
}

/// Progress: a bar on a terminal, a line each second elsewhere, JSON lines on request; on standard error.
pub struct Show {
    bar: Option<ProgressBar>,
    json: bool,
    quiet: bool,
    begun: Instant,
    last: Mutex<Instant>,
    /// Where it stood in the last seconds.
    recent: Mutex<VecDeque<(Instant, u64)>>,
    files: u64,
    bytes: u64,
}

impl Show {
    /// A display of so many files and bytes.
    pub fn new(json: bool, quiet: bool, files: u64, bytes: u64) -> Self {
        let bar = (!json && !quiet && std::io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::with_draw_target(Some(bytes.max(1)), ProgressDrawTarget::stderr());
            if let Ok(style) = ProgressStyle::with_template("{bar:32} {percent:>3}% {wide_msg}") {
                bar.set_style(style);
            }
            bar
        });
        Self {
            bar,
            json,
            quiet,
            begun: Instant::now(),
            last: Mutex::new(Instant::now()),
            recent: Mutex::default(),
            files,
            bytes,
        }
    }

    /// Payload rate over the last seconds in bit/s, and seconds to the end at that rate.
    fn rate(&self, bytes: u64) -> (u64, Option<u64>) {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.push_back((Instant::now(), bytes));
        while recent.len() > 1 && recent.front().is_some_and(|(at, _)| at.elapsed() > RATE_OVER) {
            recent.pop_front();
        }
        let (at, before) = recent.front().copied().unwrap_or((self.begun, 0));
        let (at, before) = if recent.len() > 1 {
            (at, before)
        } else {
            (self.begun, 0)
        };
        let seconds = at.elapsed().as_secs_f64().max(0.001);
        let bps = (bytes.saturating_sub(before) as f64 * 8.0 / seconds) as u64;
        let left = self.bytes.saturating_sub(bytes).saturating_mul(8);
        (
            bps,
            (self.bytes > 0)
                .then(|| left.div_ceil(bps.max(1)))
                .filter(|_| bps > 0),
        )
    }

    /// Where it stands.
    pub fn update(&self, bytes: u64, files: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(bytes.min(self.bytes));
            bar.set_message(self.sentence(bytes, files));
            return;
        }
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.quiet && last.elapsed() >= LINE_EVERY {
            *last = Instant::now();
            self.line(bytes, files);
        }
    }

    fn line(&self, bytes: u64, files: u64) {
        if self.json {
            let (rate, eta) = self.rate(bytes);
            let progress = json!({
                "bytes_done": bytes, "bytes_total": self.bytes, "files_done": files, "files_total": self.files,
                "goodput_bps": rate, "eta_s": eta,
            });
            eprintln!("{}", json!({ "progress": progress }));
        } else {
            eprintln!("{}", self.sentence(bytes, files));
        }
    }

    fn sentence(&self, bytes: u64, files: u64) -> String {
        let (rate, eta) = self.rate(bytes);
        let rate = crate::progress::rate(rate);
        let eta = eta.map_or_else(String::new, |s| format!(", {s} s to go"));
        // The size of a pipe is not known.
        let of = if self.bytes == 0 {
            String::new()
        } else {
            format!(" of {}", HumanBytes(self.bytes))
        };
        format!(
            "{}{of}, {files} of {} files, {rate} goodput{eta}",
            HumanBytes(bytes),
            self.files
        )
    }

    /// The end.
    pub fn finish(&self, bytes: u64, files: u64) {
        match &self.bar {
            Some(bar) => bar.finish_and_clear(),
            None if !self.quiet && self.begun.elapsed() >= LINE_EVERY => self.line(bytes, files),
            None => {}
        }
    }
}
