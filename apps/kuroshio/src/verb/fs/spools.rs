//! `fs fsck` and `fs df --bench`: what all nodes do at once for the administrator.

use std::collections::BTreeMap;
use std::process::ExitCode;

use indicatif::HumanBytes;
use kuroshio_client::v1;
use kuroshio_core::units::parse_bytes;
use serde_json::{Value, json};

use super::Context;
use crate::error::Failure;
use crate::output;

/// Arguments of `fs fsck`.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  kuroshio fs fsck             sizes and stored digests, all nodes\n  \
                  kuroshio fs fsck --deep n1   every byte of n1\n\
                  Replicas that the catalog did not know are adopted; those that are not there or damaged are given up and \
                  made anew from others. After the catalog was lost or an older one put back, files are made anew from \
                  what nodes keep: with names, links, access lists, attributes and quotas of the newest snapshot \
                  (`kuroshio fs snapshot`); those without a name of their own go to /lost+found."
)]
pub struct FsckArgs {
    /// Nodes [default: all]
    nodes: Vec<String>,
    /// Read everything and compare it with its digests
    #[arg(long)]
    deep: bool,
    /// Make files of what no file has, also at nodes that have not noticed that the catalog lost its memory; while nobody
    /// writes
    #[arg(long)]
    rebuild: bool,
}

/// Runs `fs fsck`.
pub fn fsck(cx: &Context, args: FsckArgs) -> Result<ExitCode, Failure> {
    let reply = cx.grid.spools(v1::SpoolsRequest {
        nodes: args.nodes,
        bench_bytes: 0,
        deep: args.deep,
        rebuild: args.rebuild,
        ..v1::SpoolsRequest::default()
    })?;
    let nodes = &reply.nodes;
    let gone = reply.gone_paths.iter().map(|p| String::from_utf8_lossy(p));
    let gone: Vec<String> = gone.map(|p| p.escape_debug().to_string()).collect();
    let missing = reply.missing_paths.iter().map(|p| String::from_utf8_lossy(p));
    let missing: Vec<String> = missing.map(|p| p.escape_debug().to_string()).collect();
    let sum = |of: fn(&v1::NodeSpool) -> u64| nodes.iter().map(of).sum::<u64>();
    let value = json!({
        "objects": sum(|n| n.objects), "adopted": sum(|n| n.adopted), "lost": sum(|n| n.lost),
        "unknown": sum(|n| n.unknown), "rebuilt": reply.rebuilt, "unnamed": reply.unnamed, "renewed": reply.renewed,
        "left": reply.left, "reasons": reply.reasons, "gone": reply.gone, "gone_paths": gone, "more": reply.more,
        "snapshot_unix_ns": (reply.snapshot_ns != 0).then_some(reply.snapshot_ns), "directories": reply.directories,
        "names": reply.names, "missing": reply.missing, "missing_paths": missing,
        "nodes": nodes.iter().map(|n| json!({
            "node": n.node, "ok": n.ok, "error": n.text, "objects": n.objects, "adopted": n.adopted, "lost": n.lost,
            "unknown": n.unknown, "held": n.held,
        })).collect::<Vec<_>>(),
    });
    if !cx.print_json(&value)? {
        print(&reply, &gone, &missing)?;
    }
    Ok(if nodes.iter().all(|n| n.ok) && reply.gone == 0 && !reply.more {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Arguments of `fs snapshot`.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  kuroshio fs snapshot\n\
                  The metadata service does so by itself, every `snapshot_s` of metad.toml, when something has changed. A \
                  snapshot is an ordinary file (/.kuroshio/catalog.0 and .1 in turn, the administrator's alone).")]
pub struct SnapshotArgs {}

/// Runs `fs snapshot`.
pub fn snapshot(cx: &Context, _: &SnapshotArgs) -> Result<ExitCode, Failure> {
    let asked = v1::SpoolsRequest {
        snapshot: true,
        ..v1::SpoolsRequest::default()
    };
    let taken = cx.grid.spools(asked)?.snapshot.unwrap_or_default();
    let path = String::from_utf8_lossy(&taken.path).escape_debug().to_string();
    let value = json!({ "path": path, "bytes": taken.bytes, "inodes": taken.inodes });
    if !cx.print_json(&value)? {
        let size = HumanBytes(taken.bytes);
        output::line(&format!("{} inodes, {size}, as {path}", taken.inodes))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn print(reply: &v1::SpoolsReply, gone: &[String], missing: &[String]) -> Result<(), Failure> {
    for n in &reply.nodes {
        let what = if n.ok {
            let held = if n.held {
                ", kept: the catalog is older"
            } else {
                ""
            };
            format!(
                "{} objects, {} adopted, {} lost, {} of no file{held}",
                n.objects, n.adopted, n.lost, n.unknown
            )
        } else {
            n.text.clone()
        };
        output::line(&format!("{:<12} {what}", n.node))?;
    }
    let (rebuilt, unnamed, renewed) = (reply.rebuilt, reply.unnamed, reply.renewed);
    if rebuilt + unnamed + renewed + reply.left > 0 {
        output::line(&format!(
            "files made anew: {rebuilt} by name, {unnamed} in /lost+found, {renewed} with a later content; {} contents left \
             in quarantine",
            reply.left
        ))?;
    }
    if reply.snapshot_ns != 0 {
        output::line(&format!(
            "from the snapshot of {} UTC: {} directories, {} links, empty files and further names",
            super::sizes::time_text(reply.snapshot_ns),
            reply.directories,
            reply.names
        ))?;
    }
    if reply.missing > 0 {
        output::line(&format!(
            "files that the snapshot names and of which no copy was found (removed since, or lost): {}",
            reply.missing
        ))?;
    }
    for path in missing {
        output::line(&format!("not found: {path}"))?;
    }
    for reason in &reply.reasons {
        output::line(&format!("left: {}", reason.escape_debug()))?;
    }
    if reply.more {
        output::line("there is more: run it again")?;
    }
    if reply.gone > 0 {
        output::line(&format!(
            "files without a copy on any node that is there: {}",
            reply.gone
        ))?;
    }
    for path in gone {
        output::line(&format!("gone: {path}"))?;
    }
    Ok(())
}

#[derive(Default)]
struct Site {
    nodes: u64,
    capacity_bytes: u64,
    read_bps: u64,
    write_bps: u64,
}

/// Runs `fs df --bench`: the table of paper 003 for this grid.
pub fn bench(cx: &Context, size: &str) -> Result<ExitCode, Failure> {
    let bytes = parse_bytes(size).map_err(|e| Failure::usage(format!("--bench: {e}")))?;
    if bytes == 0 {
        return Err(Failure::usage(
            "--bench 0B: 1B or more is valid, for example 1GiB",
        ));
    }
    let asked = v1::SpoolsRequest {
        bench_bytes: bytes,
        ..v1::SpoolsRequest::default()
    };
    let nodes = cx.grid.spools(asked)?.nodes;
    let mut sites: BTreeMap<&str, Site> = BTreeMap::new();
    for n in nodes.iter().filter(|n| n.ok) {
        let site = sites.entry(&n.site).or_default();
        site.nodes += 1;
        site.capacity_bytes += n.capacity_bytes;
        site.read_bps += n.read_bps;
        site.write_bps += n.write_bps;
    }
    let failed: Vec<&v1::NodeSpool> = nodes.iter().filter(|n| !n.ok).collect();
    let node = |n: &v1::NodeSpool| -> Value {
        json!({
            "node": n.node, "site": n.site, "ok": n.ok, "error": n.text, "capacity_bytes": n.capacity_bytes,
            "read_bps": n.read_bps, "write_bps": n.write_bps,
        })
    };
    let rows = sites.iter().map(|(name, s)| {
        json!({
            "site": name, "nodes": s.nodes, "capacity_bytes": s.capacity_bytes, "read_bps": s.read_bps,
            "write_bps": s.write_bps,
        })
    });
    let total = sites.values().fold(Site::default(), |sum, s| Site {
        nodes: sum.nodes + s.nodes,
        capacity_bytes: sum.capacity_bytes.saturating_add(s.capacity_bytes),
        read_bps: sum.read_bps.saturating_add(s.read_bps),
        write_bps: sum.write_bps.saturating_add(s.write_bps),
    });
    let value = json!({
        "bench_bytes": bytes, "level": "payload, flushed", "sites": rows.collect::<Vec<_>>(),
        "total": {
            "nodes": total.nodes, "capacity_bytes": total.capacity_bytes, "read_bps": total.read_bps,
            "write_bps": total.write_bps,
        },
        "nodes": nodes.iter().map(node).collect::<Vec<_>>(),
    });
    if !cx.print_json(&value)? {
        // The columns and units of the paper's table.
        output::line(&format!(
            "{:<16} {:>6} {:>14} {:>14} {:>14}",
            "site", "nodes", "capacity [GB]", "write [MB/s]", "read [MB/s]"
        ))?;
        for (name, s) in sites.iter().map(|(n, s)| (*n, s)).chain([("total", &total)]) {
            output::line(&format!(
                "{name:<16} {:>6} {:>14} {:>14} {:>14}",
                s.nodes,
                s.capacity_bytes / 1_000_000_000,
                mb_per_second(s.write_bps),
                mb_per_second(s.read_bps)
            ))?;
        }
        output::line(&format!(
            "every node at once, {} each; writes flushed, reads from the disk",
            HumanBytes(bytes)
        ))?;
        for n in &failed {
            output::line(&format!("{}: {}", n.node, n.text))?;
        }
    }
    Ok(if failed.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Whole MB/s; one digit more below 100, as the paper has it.
fn mb_per_second(bps: u64) -> String {
    let tenths = bps / 800_000;
    match tenths {
        1_000.. => (tenths / 10).to_string(),
        _ => format!("{}.{}", tenths / 10, tenths % 10),
    }
}

#[cfg(test)]
mod tests {
    use super::mb_per_second;

    #[test]
    fn rates_are_those_of_the_paper_s_table() {
        let printed = [
            (2_300_000_000, "2300"),
            (128_000_000, "128"),
            (43_400_000, "43.4"),
            (0, "0.0"),
        ];
        for (bytes_per_s, text) in printed {
            assert_eq!(mb_per_second(bytes_per_s * 8), text);
        }
    }
}
