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
                  made anew from others."
)]
pub struct FsckArgs {
    /// Nodes [default: all]
    nodes: Vec<String>,
    /// Read everything and compare it with its digests
    #[arg(long)]
    deep: bool,
}

/// Runs `fs fsck`.
pub fn fsck(cx: &Context, args: FsckArgs) -> Result<ExitCode, Failure> {
    let nodes = cx.grid.spools(v1::SpoolsRequest {
        nodes: args.nodes,
        bench_bytes: 0,
        deep: args.deep,
    })?;
    let sum = |of: fn(&v1::NodeSpool) -> u64| nodes.iter().map(of).sum::<u64>();
    let value = json!({
        "objects": sum(|n| n.objects), "adopted": sum(|n| n.adopted), "lost": sum(|n| n.lost),
        "unknown": sum(|n| n.unknown),
        "nodes": nodes.iter().map(|n| json!({
            "node": n.node, "ok": n.ok, "error": n.text, "objects": n.objects, "adopted": n.adopted, "lost": n.lost,
            "unknown": n.unknown,
        })).collect::<Vec<_>>(),
    });
    if !cx.print_json(&value)? {
        for n in &nodes {
            let what = if n.ok {
                format!(
                    "{} objects, {} adopted, {} lost, {} of no file",
                    n.objects, n.adopted, n.lost, n.unknown
                )
            } else {
                n.text.clone()
            };
            output::line(&format!("{:<12} {what}", n.node))?;
        }
    }
    Ok(if nodes.iter().all(|n| n.ok) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
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
    let nodes = cx.grid.spools(v1::SpoolsRequest {
        bench_bytes: bytes,
        ..v1::SpoolsRequest::default()
    })?;
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
