//! Replicas: where they are, how many there shall be, and making them.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use indicatif::HumanBytes;
use kuroshio_catalog::CopyRule;
use kuroshio_client::v1::{self, request::Op, response::Result as Answer};
use serde_json::{Value, json};

use super::content::Show;
use super::{Context, attr_json, path_of, paths_of, shown, sizes, walk};
use crate::error::Failure;
use crate::output;

/// How often jobs are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Jobs that are asked about at once.
const JOBS_AT_ONCE: usize = 500;
/// Longest silence while replicas are waited for.
const STALL_LIMIT: Duration = Duration::from_secs(120);
/// BLAKE3 of nothing: the digest of an empty file.
const EMPTY_DIGEST: &str = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262";

/// Arguments of `fs where`.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  kuroshio fs where /data/run1.dat")]
pub struct WhereArgs {
    /// Files
    #[arg(required = true)]
    paths: Vec<OsString>,
}

/// Runs `fs where`.
pub fn locate(cx: &Context, args: WhereArgs) -> Result<ExitCode, Failure> {
    for path in paths_of(&args.paths)? {
        let found = cx.grid.locate(&path)?;
        if cx.print_json(&where_json(&path, &found))? {
            continue;
        }
        output::line(&format!("{}:", shown(&path)))?;
        for fragment in &found.fragments {
            for place in &fragment.places {
                let up = if place.up { "" } else { "  (node is down)" };
                let which = if found.fragments.len() > 1 {
                    format!("{:>4}  ", fragment.index)
                } else {
                    String::new()
                };
                output::line(&format!(
                    "  {which}{:<12} {:<8} {}{up}",
                    place.node, place.state, place.address
                ))?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn where_json(path: &[u8], found: &v1::ReadGrant) -> Value {
    let fragments = found.fragments.iter().map(|f| {
        let replicas = f
            .places
            .iter()
            .map(|p| json!({ "node": p.node, "state": p.state, "up": p.up, "address": p.address }));
        json!({
            "index": f.index, "size_bytes": f.size_bytes, "digest": sizes::hex(&f.digest),
            "replicas": replicas.collect::<Vec<_>>(),
        })
    });
    let attr = found.attr.clone().unwrap_or_default();
    json!({
        "path": shown(path), "size_bytes": attr.size_bytes, "ncopy": attr.copies, "valid_copies": valid(found),
        "fragments": fragments.collect::<Vec<_>>(),
    })
}

/// Valid replicas of the fragment that has the fewest; `None` of an empty file.
fn valid(found: &v1::ReadGrant) -> Option<usize> {
    let of = |f: &v1::Fragment| f.places.iter().filter(|p| p.state == "valid").count();
    // Nothing is stored of an empty one.
    found.fragments.iter().filter(|f| f.size_bytes > 0).map(of).min()
}

/// Arguments of `fs cksum`.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  kuroshio fs cksum /data/run1.dat     BLAKE3, as b3sum prints it")]
pub struct CksumArgs {
    /// Files
    #[arg(required = true)]
    paths: Vec<OsString>,
}

/// Runs `fs cksum`.
pub fn cksum(cx: &Context, args: CksumArgs) -> Result<ExitCode, Failure> {
    for path in paths_of(&args.paths)? {
        let found = cx.grid.locate(&path)?;
        let size = found.attr.as_ref().map_or(0, |a| a.size_bytes);
        let fragments = found
            .fragments
            .iter()
            .map(|f| sizes::hex(&f.digest))
            .collect::<Vec<_>>();
        let digest = match fragments.as_slice() {
            [] => Some(EMPTY_DIGEST.to_owned()),
            [one] => Some(one.clone()),
            _ => None,
        };
        let value = json!({
            "path": shown(&path), "algorithm": "blake3", "digest": digest, "size_bytes": size, "fragments": fragments,
        });
        if cx.print_json(&value)? {
            continue;
        }
        match digest {
            Some(digest) => output::line(&format!("{digest}  {}", shown(&path)))?,
            None => {
                for (n, digest) in fragments.iter().enumerate() {
                    output::line(&format!("{digest}  {}#{n}", shown(&path)))?;
                }
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Arguments of `fs ncopy`.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  kuroshio fs ncopy /data                        show\n  \
                        kuroshio fs ncopy -s 2 /data                   what is made in it from now on\n  \
                        kuroshio fs ncopy -s tokyo=1,tsukuba=1 -r /data   and what is in it already"
)]
pub struct NcopyArgs {
    /// Files or directories
    #[arg(required = true)]
    paths: Vec<OsString>,
    /// Set: a number, or SITE=N,SITE=N; the grid makes what is missing
    #[arg(short = 's', long, value_name = "COPIES")]
    set: Option<String>,
    /// All below too
    #[arg(short = 'r', long, requires = "set")]
    recursive: bool,
}

/// Whether a text is a rule for replicas; the rule itself.
pub fn check_rule(text: &str) -> Result<String, Failure> {
    let rule = text.parse::<CopyRule>();
    rule.map(|r| r.to_string())
        .map_err(|e| Failure::usage(e.to_string()))
}

/// Runs `fs ncopy`.
pub fn ncopy(cx: &Context, args: NcopyArgs) -> Result<ExitCode, Failure> {
    let rule = args.set.as_deref().map(check_rule).transpose()?;
    for path in paths_of(&args.paths)? {
        let attr = match &rule {
            None => cx.grid.stat(&path, true)?,
            Some(rule) => {
                if args.recursive {
                    set_below(cx, &path, rule)?;
                }
                cx.grid.set_copies(&path, rule)?
            }
        };
        if !cx.print_json(&attr_json(&path, &attr))? {
            output::line(&format!("{}  {}", attr.copies, shown(&path)))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn set_below(cx: &Context, top: &[u8], rule: &str) -> Result<(), Failure> {
    walk::visit(cx, top, |path, attr| {
        if attr.kind() != v1::Kind::Symlink {
            cx.grid.set_copies(path, rule)?;
        }
        Ok(())
    })
}

/// Waits until these files have what their rule wants.
pub fn wait_for_rule(cx: &Context, paths: &[Vec<u8>]) -> Result<(), Failure> {
    for path in paths {
        let begun = Instant::now();
        loop {
            let found = cx.grid.locate(path)?;
            let attr = found.attr.clone().unwrap_or_default();
            let wanted = attr.copies.parse::<CopyRule>().map_or(1, |r| r.total() as usize);
            if valid(&found).is_none_or(|v| v >= wanted) {
                break;
            }
            if begun.elapsed() > STALL_LIMIT {
                return Err(Failure::failed(format!(
                    "{}: stored, but {} of {wanted} replicas are there after {} s; the grid goes on trying (see \
                     `kuroshio fs job ls`, `kuroshio fs node ls`)",
                    shown(path),
                    valid(&found).unwrap_or_default(),
                    STALL_LIMIT.as_secs()
                )));
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
    Ok(())
}

/// Arguments of `fs rep`.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  kuroshio fs rep -N 2 /data          at least two replicas of all below\n  \
                        kuroshio fs rep -D node3 /data/run1.dat   one on node3\n  \
                        kuroshio fs rep -D node3 --leave node1 /data   what node1 has of it moves to node3"
)]
pub struct RepArgs {
    /// Files or directories
    #[arg(required = true)]
    paths: Vec<OsString>,
    /// At least so many replicas of each file [default: 2]
    #[arg(short = 'N', long, value_name = "N", conflicts_with = "destination")]
    copies: Option<u32>,
    /// A replica on this node; may be given several times
    #[arg(short = 'D', long, value_name = "NODE")]
    destination: Vec<String>,
    /// Move: the replica on this node goes when the new one is there (gfrep -m)
    #[arg(long, value_name = "NODE", conflicts_with = "copies")]
    leave: Option<String>,
    /// Share of routes relative to others, 1 to 100 [default: 10]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    priority: Option<u32>,
    /// Do not wait; `kuroshio fs job ls` shows how far it is
    #[arg(long)]
    no_wait: bool,
    /// No progress
    #[arg(short = 'q', long)]
    quiet: bool,
}

/// Runs `fs rep`.
pub fn rep(cx: &Context, args: RepArgs) -> Result<ExitCode, Failure> {
    let copies = match args.copies {
        Some(0) => return Err(Failure::usage("-N 0: 1 or more is valid")),
        Some(n) => n,
        None => 2,
    };
    let mut jobs = Vec::new();
    for top in paths_of(&args.paths)? {
        let mut pending = Vec::new();
        walk::visit(cx, &top, |path, attr| {
            if attr.kind() == v1::Kind::File {
                let request = Op::Replicate(v1::ReplicateRequest {
                    path: path.to_vec(),
                    copies,
                    nodes: args.destination.clone(),
                    priority: args.priority.unwrap_or(0),
                    leave: args.leave.clone().unwrap_or_default(),
                });
                pending.push((path.to_vec(), cx.grid.submit(request)?));
            }
            Ok(())
        })?;
        for (path, asked) in pending {
            let answer = asked
                .wait()
                .map_err(|e| Failure::failed(format!("{}: {e}", shown(&path))))?;
            if let Answer::Jobs(reply) = answer {
                jobs.extend(reply.jobs);
            }
        }
    }
    if !args.no_wait {
        jobs = follow(cx, jobs, args.quiet)?;
    }
    let failed = jobs
        .iter()
        .filter(|j| matches!(j.state.as_str(), "failed" | "cancelled"))
        .count();
    if !cx.print_json(&json!({ "jobs": jobs.iter().map(job_json).collect::<Vec<_>>() }))? {
        let bytes = jobs.iter().map(|j| j.bytes_total).sum();
        let done = jobs.iter().filter(|j| j.state == "done").count();
        output::line(&format!(
            "{done} of {} replicas made, {}",
            jobs.len(),
            HumanBytes(bytes)
        ))?;
    }
    if failed > 0 {
        let first = jobs
            .iter()
            .find(|j| j.state == "failed" || j.state == "cancelled");
        let why = first
            .map(|j| format!("{}: {} {}", shown(&j.path), j.state, j.error))
            .unwrap_or_default();
        return Err(Failure::failed(format!("{failed} replicas were not made; {why}")));
    }
    Ok(ExitCode::SUCCESS)
}

/// A job as JSON.
pub fn job_json(j: &v1::Job) -> Value {
    json!({
        "job": j.job, "kind": j.kind, "state": j.state, "path": shown(&j.path), "fragment": j.fragment,
        "owner": j.owner, "destination": j.destination, "bytes_done": j.bytes_done, "bytes_total": j.bytes_total,
        "attempts": j.attempts, "error": j.error, "rate_bps": j.rate_bps, "transfers": j.transfers, "source": j.source,
    })
}

/// Waits until all jobs have ended; as they ended.
fn follow(cx: &Context, jobs: Vec<v1::Job>, quiet: bool) -> Result<Vec<v1::Job>, Failure> {
    let total = jobs.iter().map(|j| j.bytes_total).sum();
    let show = Show::new(cx.json, quiet, jobs.len() as u64, total);
    let mut now = jobs.into_iter().map(|j| (j.job, j)).collect::<BTreeMap<_, _>>();
    loop {
        let is_open = |j: &v1::Job| matches!(j.state.as_str(), "queued" | "running");
        let open = now
            .values()
            .filter(|j| is_open(j))
            .map(|j| j.job)
            .collect::<Vec<_>>();
        let done = |j: &v1::Job| {
            if j.state == "done" {
                j.bytes_total
            } else {
                j.bytes_done
            }
        };
        let bytes = now.values().map(done).sum();
        show.update(bytes, (now.len() - open.len()) as u64);
        if open.is_empty() {
            show.finish(bytes, now.len() as u64);
            return Ok(now.into_values().collect());
        }
        std::thread::sleep(LOOK_EVERY);
        for some in open.chunks(JOBS_AT_ONCE) {
            let found = cx.grid.jobs(some, false)?;
            let missing = some.iter().filter(|id| !found.iter().any(|j| j.job == **id));
            // Forgotten by the grid: it ended long ago.
            for id in missing.copied().collect::<BTreeSet<_>>() {
                now.remove(&id);
            }
            now.extend(found.into_iter().map(|j| (j.job, j)));
        }
    }
}

/// Arguments of `fs sched`.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  kuroshio fs sched /data/run1.dat /data/run2.dat")]
pub struct SchedArgs {
    /// Files or directories that a computation reads
    #[arg(required = true)]
    paths: Vec<OsString>,
}

#[derive(Default)]
struct Held {
    bytes: u64,
    fragments: u64,
}

/// Runs `fs sched`: nodes by how much of the files they hold, then by load.
pub fn sched(cx: &Context, args: SchedArgs) -> Result<ExitCode, Failure> {
    let mut held: BTreeMap<String, Held> = BTreeMap::new();
    let (mut total, mut fragments) = (0u64, 0u64);
    for top in &args.paths {
        walk::visit(cx, &path_of(top)?, |path, attr| {
            if attr.kind() != v1::Kind::File {
                return Ok(());
            }
            for fragment in cx.grid.locate(path)?.fragments {
                total += fragment.size_bytes;
                fragments += 1;
                for place in fragment.places.iter().filter(|p| p.up && p.state == "valid") {
                    let node = held.entry(place.node.clone()).or_default();
                    node.bytes += fragment.size_bytes;
                    node.fragments += 1;
                }
            }
            Ok(())
        })?;
    }
    let nodes = cx.grid.nodes()?;
    let load = |name: &str| nodes.iter().find(|n| n.name == name).map_or(0, |n| n.load_milli);
    let mut order = held.into_iter().collect::<Vec<_>>();
    order.sort_by_key(|(name, h)| (u64::MAX - h.bytes, load(name), name.clone()));
    if cx.json {
        let nodes = order.iter().map(|(name, h)| {
            json!({
                "node": name, "local_bytes": h.bytes, "local_fragments": h.fragments, "load_milli": load(name),
            })
        });
        let value = json!({
            "total_bytes": total, "fragments": fragments, "nodes": nodes.collect::<Vec<_>>(),
        });
        output::line(&value.to_string())?;
        return Ok(ExitCode::SUCCESS);
    }
    for (name, h) in order {
        let load = f64::from(load(&name)) / 1000.0;
        let why = format!("{} of {fragments} fragments local, load {load:.2}", h.fragments);
        output::line(&format!(
            "{name:<12} {:>12} of {}  ({why})",
            HumanBytes(h.bytes).to_string(),
            HumanBytes(total)
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}
