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
                  what nodes keep; those without a name of their own go to /lost+found."
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
    })?;
    let nodes = &reply.nodes;
    let gone = reply.gone_paths.iter().map(|p| String::from_utf8_lossy(p));
    let gone: Vec<String> = gone.map(|p| p.escape_debug().to_string()).collect();
    let sum = |of: fn(&v1::NodeSpool) -> u64| nodes.iter().map(of).sum::<u64>();
    let value = json!({
        "objects": sum(|n| n.objects), "adopted": sum(|n| n.adopted), "lost": sum(|n| n.lost),
        "unknown": sum(|n| n.unknown), "rebuilt": reply.rebuilt, "unnamed": reply.unnamed, "renewed": reply.renewed,
        "left": reply.left, "reasons": reply.reasons, "gone": reply.gone, "gone_paths": gone, "more": reply.more,
        "nodes": nodes.iter().map(|n| json!({
            "node": n.node, "ok": n.ok, "error": n.text, "objects": n.objects, "adopted": n.adopted, "lost": n.lost,
            "unknown": n.unknown, "held": n.held,
        })).collect::<Vec<_>>(),
    });
    if !cx.print_json(&value)? {
        print(&reply, &gone)?;
    }
    Ok(if nodes.iter().all(|n| n.ok) && reply.gone == 0 && !reply.more {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn print(reply: &v1::SpoolsReply, gone: &[String]) -> Result<(), Failure> {
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
    let value = json!({
        "bench_bytes": bytes, "level": "payload, flushed", "sites": rows.collect::<Vec<_>>(),
        "nodes": nodes.iter().map(node).collect::<Vec<_>>(),
    });
    if !cx.print_json(&value)? {
        output::line(&format!(
            "{:<16} {:>6} {:>14} {:>14} {:>14}",
            "site", "nodes", "capacity", "read", "write"
        ))?;
        for (name, s) in &sites {
            output::line(&format!(
                "{name:<16} {:>6} {:>14} {:>14} {:>14}",
                s.nodes,
                HumanBytes(s.capacity_bytes).to_string(),
                per_second(s.read_bps),
                per_second(s.write_bps)
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

/// As the paper's table has it.
fn per_second(bps: u64) -> String {
    format!("{} MB/s", bps / 8_000_000)
}
