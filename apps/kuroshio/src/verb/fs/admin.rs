//! The grid itself: space, state, nodes, jobs, tickets, names.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use indicatif::HumanBytes;
use kuroshio_client::v1;
use serde_json::{Value, json};

use super::replicas::job_json;
use super::{Context, shown, sizes};
use crate::error::Failure;
use crate::output;
use crate::verb::{grid, stored};

const DONE: Result<ExitCode, Failure> = Ok(ExitCode::SUCCESS);

/// Arguments of `fs df`.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  kuroshio fs df\n  kuroshio fs df --bench 1GiB     every disk at once: rates by site"
)]
pub struct DfArgs {
    /// Write and read so much at every node, all at once; administrator
    #[arg(long, value_name = "SIZE", num_args = 0..=1, default_missing_value = "1GiB")]
    bench: Option<String>,
}

/// Arguments of `fs route`.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  kuroshio fs route --json     capacities are [[route]] of metad.toml")]
pub struct RouteArgs {}

/// Runs `fs route`.
pub fn routes(cx: &Context) -> Result<ExitCode, Failure> {
    let routes = cx.grid.routes()?;
    let value = |r: &v1::GridRoute| {
        json!({
            "from": r.from, "to": r.to, "capacity_bps": r.capacity_bps, "leased_bps": r.leased_bps,
            "granted_bps": r.granted_bps, "transfers": r.transfers,
        })
    };
    if cx.print_json(&json!({ "routes": routes.iter().map(value).collect::<Vec<_>>() }))? {
        return DONE;
    }
    let rate = crate::progress::rate;
    for r in &routes {
        let (capacity, granted) = (rate(r.capacity_bps), rate(r.granted_bps));
        output::line(&format!(
            "{:<12} -> {:<12} {capacity:>12} frame level, {granted} given to {} transfers",
            r.from, r.to, r.transfers
        ))?;
    }
    DONE
}

/// Runs `fs df`.
pub fn df(cx: &Context, args: DfArgs) -> Result<ExitCode, Failure> {
    if let Some(size) = &args.bench {
        return super::spools::bench(cx, size);
    }
    let (nodes, status) = (cx.grid.nodes()?, cx.grid.status()?);
    if cx.json {
        let value = json!({
            "capacity_bytes": status.capacity_bytes, "free_bytes": status.free_bytes, "file_bytes": status.bytes,
            "nodes": nodes.iter().map(node_json).collect::<Vec<_>>(),
        });
        output::line(&value.to_string())?;
        return DONE;
    }
    output::line(&format!(
        "{:<12} {:<10} {:<9} {:>12} {:>12}",
        "node", "site", "state", "capacity", "free"
    ))?;
    for n in &nodes {
        let (capacity, free) = (
            HumanBytes(n.capacity_bytes).to_string(),
            HumanBytes(n.free_bytes).to_string(),
        );
        output::line(&format!(
            "{:<12} {:<10} {:<9} {capacity:>12} {free:>12}",
            n.name, n.site, n.state
        ))?;
    }
    let (capacity, free) = (HumanBytes(status.capacity_bytes), HumanBytes(status.free_bytes));
    output::line(&format!(
        "{:<33} {:>12} {:>12}",
        "all that are up",
        capacity.to_string(),
        free.to_string()
    ))?;
    output::line(&format!(
        "files: {} (each counted once)",
        HumanBytes(status.bytes)
    ))?;
    DONE
}

/// Arguments of `fs status`.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  kuroshio fs status --json")]
pub struct StatusArgs {}

/// Runs `fs status`.
pub fn status(cx: &Context, _: StatusArgs) -> Result<ExitCode, Failure> {
    let s = cx.grid.status()?;
    let value = json!({
        "name": s.name, "address": cx.grid.address(), "pin": s.pin, "catalog": s.catalog, "user": s.user,
        "groups": s.groups, "inodes": s.inodes, "bytes": s.bytes, "nodes_up": s.nodes_up, "nodes": s.nodes,
        "capacity_bytes": s.capacity_bytes, "free_bytes": s.free_bytes, "fragments_below_ncopy": s.below_copies,
        "jobs_open": s.jobs_active, "orders": s.orders_active, "services": s.services,
    });
    if cx.print_json(&value)? {
        return DONE;
    }
    output::line(&format!("grid      {} at {}", s.name, cx.grid.address()))?;
    if s.services.len() > 1 {
        output::line(&format!("services  {}", s.services.join(", ")))?;
    }
    output::line(&format!("catalog   {}", s.catalog))?;
    output::line(&format!("you       {} ({})", s.user, s.groups.join(", ")))?;
    output::line(&format!("nodes     {} of {} up", s.nodes_up, s.nodes))?;
    let (free, capacity) = (HumanBytes(s.free_bytes), HumanBytes(s.capacity_bytes));
    output::line(&format!("space     {free} free of {capacity}"))?;
    output::line(&format!(
        "inodes    {}, {} in files",
        s.inodes,
        HumanBytes(s.bytes)
    ))?;
    output::line(&format!(
        "replicas  {} fragments have fewer than wanted",
        s.below_copies
    ))?;
    output::line(&format!(
        "jobs      {} open, {} orders at nodes",
        s.jobs_active, s.orders_active
    ))?;
    DONE
}

/// Arguments of `fs node`.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  kuroshio fs node ls\n  kuroshio fs node drain node2")]
pub struct NodeArgs {
    #[command(subcommand)]
    action: NodeAction,
}

#[derive(Subcommand)]
enum NodeAction {
    /// All nodes with state and space
    Ls,
    /// Empty a node: nothing new, and its replicas are made elsewhere
    Drain {
        /// The node
        name: String,
    },
    /// Nothing new; what it has is read and counts
    Readonly {
        /// The node
        name: String,
    },
    /// Take a node into service again
    Up {
        /// The node
        name: String,
    },
    /// Give a node up with its disk: its replicas are made anew at once
    Lost {
        /// The node
        name: String,
    },
}

/// Runs `fs node`.
pub fn node(cx: &Context, args: NodeArgs) -> Result<ExitCode, Failure> {
    let nodes = match &args.action {
        NodeAction::Ls => cx.grid.nodes()?,
        NodeAction::Drain { name } => cx.grid.set_node(name, "drain")?,
        NodeAction::Readonly { name } => cx.grid.set_node(name, "readonly")?,
        NodeAction::Up { name } => cx.grid.set_node(name, "up")?,
        NodeAction::Lost { name } => cx.grid.set_node(name, "lost")?,
    };
    if cx.print_json(&json!({ "nodes": nodes.iter().map(node_json).collect::<Vec<_>>() }))? {
        return DONE;
    }
    for n in &nodes {
        output::line(&format!(
            "{:<12} {:<9} {:<10} {:<22} {:>12} free  {:>8} objects  load {:.2}",
            n.name,
            n.state,
            n.site,
            n.address,
            HumanBytes(n.free_bytes).to_string(),
            n.objects,
            f64::from(n.load_milli) / 1000.0
        ))?;
    }
    DONE
}

fn node_json(n: &v1::Node) -> Value {
    json!({
        "name": n.name, "site": n.site, "state": n.state, "address": n.address, "pin": n.pin, "host": n.host,
        "capacity_bytes": n.capacity_bytes, "free_bytes": n.free_bytes, "load_milli": n.load_milli,
        "objects": n.objects, "heard_ms_ago": n.heard_ms_ago,
    })
}

/// Arguments of `fs job`.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  kuroshio fs job ls\n  kuroshio fs job cancel 17")]
pub struct JobArgs {
    #[command(subcommand)]
    action: JobAction,
}

#[derive(Subcommand)]
enum JobAction {
    /// Jobs that are queued or run
    Ls {
        /// Those that have ended too
        #[arg(short = 'a', long)]
        all: bool,
    },
    /// One job
    Show {
        /// Its number
        job: u64,
    },
    /// Cancel a job; a replica that is half made goes
    Cancel {
        /// Its number
        job: u64,
    },
}

/// Runs `fs job`.
pub fn job(cx: &Context, args: JobArgs) -> Result<ExitCode, Failure> {
    let jobs = match args.action {
        JobAction::Ls { all } => cx.grid.jobs(&[], !all)?,
        JobAction::Show { job } => {
            let found = cx.grid.jobs(&[job], false)?;
            if found.is_empty() {
                return Err(Failure::failed(format!("there is no job {job}")));
            }
            found
        }
        JobAction::Cancel { job } => cx.grid.cancel_job(job)?,
    };
    if cx.print_json(&json!({ "jobs": jobs.iter().map(job_json).collect::<Vec<_>>() }))? {
        return DONE;
    }
    for j in &jobs {
        let error = if j.error.is_empty() {
            String::new()
        } else {
            format!("  ({})", j.error)
        };
        output::line(&format!(
            "{:>6} {:<9} {:<9} {} of {}  {} -> {}{error}",
            j.job,
            j.kind,
            j.state,
            HumanBytes(j.bytes_done),
            HumanBytes(j.bytes_total),
            shown(&j.path),
            j.destination
        ))?;
    }
    DONE
}

/// Arguments of `fs ticket`.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  kuroshio fs ticket alice --group physics --valid 30d > alice.ticket\n  \
                        kuroshio fs ticket --node n3 > n3.ticket        a host joins with it\n\
                        The ticket is a secret: whoever has it is this user until it ends."
)]
pub struct TicketArgs {
    /// The user
    #[arg(required_unless_present = "node")]
    user: Option<String>,
    /// A group that the user is in; the first one owns what the user makes
    #[arg(short = 'g', long = "group")]
    groups: Vec<String>,
    /// What it allows (storage.read:/PATH storage.modify:/PATH) [default: all that the user may]
    #[arg(long)]
    scope: Option<String>,
    /// How long it is good, for example 12h or 30d [default: 30 days; a node's: 10 years]
    #[arg(long)]
    valid: Option<String>,
    /// For a node of this name
    #[arg(long, value_name = "NAME", conflicts_with_all = ["user", "groups", "scope"])]
    node: Option<String>,
}

/// Ten years, in seconds.
const NODE_VALID_S: u64 = 10 * 365 * 24 * 3600;

/// Runs `fs ticket`.
pub fn ticket(cx: &Context, args: TicketArgs) -> Result<ExitCode, Failure> {
    let valid_s = args.valid.as_deref().map(sizes::seconds).transpose()?;
    let for_node = args.node.is_some();
    let ticket = cx.grid.issue_ticket(v1::IssueTicketRequest {
        user: args.node.or(args.user).unwrap_or_default(),
        groups: args.groups,
        scope: args.scope.unwrap_or_default(),
        valid_s: valid_s.unwrap_or(if for_node { NODE_VALID_S } else { 0 }),
        for_node,
    })?;
    if cx.print_json(&json!({ "ticket": ticket.to_line() }))? {
        return DONE;
    }
    output::line(&ticket.to_line())?;
    DONE
}

/// Arguments of `fs grid`.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  kuroshio fs grid add pacific < alice.ticket\n  kuroshio fs --grid pacific ls /"
)]
pub struct GridArgs {
    #[command(subcommand)]
    action: GridAction,
}

#[derive(Subcommand)]
enum GridAction {
    /// Keep a grid's ticket under a name
    Add {
        /// The name
        name: String,
        /// File with the ticket (0600); `-` is standard input
        #[arg(default_value = "-")]
        ticket: PathBuf,
    },
    /// All names
    Ls,
    /// Forget a name
    Rm {
        /// The name
        name: String,
    },
}

/// Runs `fs grid`.
pub fn grids(args: GridArgs, json: bool) -> Result<ExitCode, Failure> {
    let mut store = grid::store()?;
    match args.action {
        GridAction::Add { name, ticket } => {
            let ticket = stored::read_ticket(&ticket)?;
            store.add(&name, ticket)?;
        }
        GridAction::Rm { name } => store.remove(&name)?,
        GridAction::Ls => {}
    }
    let all = store
        .iter()
        .map(|(name, t)| (name.to_owned(), t.addresses().to_owned(), t.pin()));
    let all = all.collect::<Vec<_>>();
    if json {
        let grids = all
            .iter()
            .map(|(name, address, pin)| json!({ "name": name, "address": address, "pin": pin.to_string() }));
        output::line(&json!({ "grids": grids.collect::<Vec<_>>() }).to_string())?;
        return DONE;
    }
    for (name, address, pin) in all {
        output::line(&format!("{name}  {address}  {pin}"))?;
    }
    DONE
}
