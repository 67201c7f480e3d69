//! `kuroshio rail`: the host's rails, plans for a rate, and running something on one.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use kuroshio_core::units::{BitRate, PicoDuration};
use kuroshio_rail::{
    Binding, Machine, Placement, Plan, PlanRequest, Rail, RailPlan, Roots, Source, Steering, bind, discover,
    find, plan, rails, svg, undo,
};
use kuroshio_tune::link::default_dev;
use serde_json::json;

use super::rail_measure;
use crate::error::{EXIT_FAILED, Failure};
use crate::{output, signal};

const EXAMPLE: &str = "\
Examples:
  kuroshio rail ls                                     cores, memory and cards of this host, and its rails
  kuroshio rail ls --svg host.svg --topology host.xml  a picture of another host (`lstopo host.xml` there)
  kuroshio rail plan --rate 40G --explain              rails, cores and memory for 40 Gbps, and why
  kuroshio rail plan --rate 20G --lanes 10G,10G,4G     and which stream goes by which lane
  kuroshio rail plan --rate 10G --measure 192.0.2.1    measure the application near the card and away from it
  kuroshio rail run 2 -- iperf3 -c 192.0.2.1           a program on rail 2
  kuroshio rail run eth2 --interrupts -- CMD           and, as root, the card's interrupts and queues too
  kuroshio rail undo                                   bring back interrupts that a killed run left
Rates are frame level (MAC header to FCS). Exit codes: 0 done, 1 failed or not enough rails, 2 bad input; run: that of CMD.";

/// Arguments of `kuroshio rail`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLE)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// List nodes, cores, caches, cards and rails
    #[command(after_help = EXAMPLE)]
    Ls(Ls),
    /// Plan rails, cores and memory for a rate
    #[command(after_help = EXAMPLE)]
    Plan(Box<PlanArgs>),
    /// Run a program bound to a rail
    #[command(after_help = EXAMPLE)]
    Run(Run),
    /// Bring back interrupts and queues that a killed `rail run --interrupts` left
    #[command(after_help = EXAMPLE)]
    Undo(Undo),
}

#[derive(clap::Args)]
struct Ls {
    /// Another machine: FILE.xml of lstopo, or synthetic:DESCRIPTION
    #[arg(long, value_name = "TOPOLOGY")]
    topology: Option<String>,
    /// Write a picture
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
pub(super) struct PlanArgs {
    /// Rate of all rails in sum, for example 40G
    #[arg(long, value_name = "RATE")]
    rate: String,
    /// What a core carries [default: 7G, paper 004]
    #[arg(long, value_name = "RATE")]
    core_rate: Option<String>,
    /// What a card carries that does not say so itself
    #[arg(long, value_name = "RATE")]
    card_rate: Option<String>,
    /// Round-trip time, for the memory of socket buffers
    #[arg(long, value_name = "TIME", default_value = "200ms")]
    rtt: String,
    /// At least so many rails
    #[arg(long, value_name = "N", default_value_t = 1)]
    min_rails: usize,
    /// Where the application is: local (on the card's node) or other
    #[arg(long, value_name = "WHERE", default_value = "local")]
    placement: String,
    /// Capacities of lanes: assign streams to rails and lanes so that their sum is largest
    #[arg(long, value_name = "RATE,...", value_delimiter = ',')]
    lanes: Vec<String>,
    /// Streams over the lanes
    #[arg(long, value_name = "N", requires = "lanes")]
    streams: Option<usize>,
    /// Another machine: FILE.xml of lstopo, or synthetic:DESCRIPTION
    #[arg(long, value_name = "TOPOLOGY", conflicts_with = "measure")]
    topology: Option<String>,
    /// Measure both placements against a `kuroshio probe -s` (or iperf3 -s) there, and keep the better
    #[arg(long, value_name = "HOST[:PORT]", conflicts_with = "placement")]
    measure: Option<String>,
    /// Say why
    #[arg(long)]
    explain: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct Run {
    /// The rail: its number, PCI address or interface, or auto
    #[arg(value_name = "RAIL")]
    rail: String,
    /// Where the program is: local (on the card's node) or other
    #[arg(long, value_name = "WHERE", default_value = "local")]
    placement: String,
    /// Move the card's interrupts and queues to the rail as well (root), and back at the end
    #[arg(long)]
    interrupts: bool,
    /// Where what was before is kept [default: $XDG_STATE_HOME/kuroshio/rail-undo.json]
    #[arg(long, value_name = "FILE")]
    undo_file: Option<PathBuf>,
    /// The program and its arguments
    #[arg(required = true, last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

#[derive(clap::Args)]
struct Undo {
    /// Where what was before is kept [default: $XDG_STATE_HOME/kuroshio/rail-undo.json]
    #[arg(long, value_name = "FILE")]
    undo_file: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the verb.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    match args.what {
        What::Ls(args) => ls(&args),
        What::Plan(args) => make_plan(&args),
        What::Run(args) => execute(&args),
        What::Undo(args) => bring_back(&args),
    }
}

fn machine(topology: Option<&str>) -> Result<Machine, Failure> {
    let source = topology.map_or(Ok(Source::Here), str::parse)?;
    Ok(discover(&source, &Roots::default())?)
}

fn ls(args: &Ls) -> Result<ExitCode, Failure> {
    let machine = machine(args.topology.as_deref())?;
    let rails = rails(&machine);
    if let Some(path) = &args.svg {
        std::fs::write(path, svg(&machine, &rails))
            .map_err(|e| Failure::failed(format!("--svg {}: {e}", path.display())))?;
    }
    if args.json {
        output::line(&json!({"machine": machine, "rails": rails}).to_string())?;
        return Ok(ExitCode::SUCCESS);
    }
    for node in &machine.nodes {
        output::line(&format!(
            "node {}: {:.1} GiB, cores {}",
            node.node,
            node.memory_bytes as f64 / f64::from(1 << 30),
            ranges(&node.cores)
        ))?;
    }
    for rail in &rails {
        output::line(&line(&machine, rail))?;
    }
    for note in &machine.notes {
        output::line(&format!("note {note}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn line(machine: &Machine, rail: &Rail) -> String {
    let card = machine.cards.iter().find(|c| Some(&c.pci) == rail.card.as_ref());
    let rate = rail
        .rate_bps
        .and_then(BitRate::new)
        .map_or_else(|| "rate not told".to_owned(), |r| format!("{r} L1"));
    let what = match card {
        None => "no card".to_owned(),
        Some(card) => format!(
            "{} {}, {rate}, at {}, {} interrupts",
            rail.interfaces.join(" "),
            card.model,
            card.node
                .map_or_else(|| "a node that is not known".to_owned(), |n| format!("node {n}")),
            card.interrupts.len()
        ),
    };
    format!(
        "rail {} {}: cores {} of node {}; {what}",
        rail.number,
        rail.id,
        ranges(&rail.pus),
        rail.node
    )
}

/// `0-3,8`
fn ranges(numbers: &[u32]) -> String {
    let mut sorted = numbers.to_vec();
    sorted.sort_unstable();
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for n in sorted {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == n => *last = n,
            _ => runs.push((n, n)),
        }
    }
    let texts = runs
        .iter()
        .map(|(a, b)| if a == b { a.to_string() } else { format!("{a}-{b}") });
    let text = texts.collect::<Vec<_>>().join(",");
    if text.is_empty() { "none".to_owned() } else { text }
}

fn rate(flag: &str, text: &str) -> Result<BitRate, Failure> {
    text.parse().map_err(|e| Failure::usage(format!("{flag}: {e}")))
}

fn placement(text: &str) -> Result<Placement, Failure> {
    match text {
        "local" => Ok(Placement::Local),
        "other" => Ok(Placement::Other),
        _ => Err(Failure::usage(format!(
            "--placement {text}: local or other is valid"
        ))),
    }
}

fn request(args: &PlanArgs) -> Result<PlanRequest, Failure> {
    let mut request = PlanRequest::new(rate("--rate", &args.rate)?);
    if let Some(text) = &args.core_rate {
        request.core_rate = rate("--core-rate", text)?;
    }
    request.card_rate = args
        .card_rate
        .as_deref()
        .map(|t| rate("--card-rate", t))
        .transpose()?;
    request.rtt = args
        .rtt
        .parse()
        .map_err(|e| Failure::usage(format!("--rtt: {e}")))?;
    if request.rtt > PicoDuration::from_secs(60) {
        return Err(Failure::usage(format!(
            "--rtt {}: up to 60s is valid",
            request.rtt
        )));
    }
    request.min_rails = args.min_rails;
    request.placement = placement(&args.placement)?;
    let lanes = args.lanes.iter().map(|t| rate("--lanes", t));
    request.lanes = lanes.collect::<Result<_, _>>()?;
    request.streams = args.streams;
    Ok(request)
}

fn make_plan(args: &PlanArgs) -> Result<ExitCode, Failure> {
    let mut request = request(args)?;
    let machine = machine(args.topology.as_deref())?;
    let mut made = plan(&machine, &request)?;
    let mut measured = None;
    if let Some(peer) = &args.measure {
        let found = rail_measure::measure(&machine, &request, peer)?;
        request.placement = found.better;
        made = plan(&machine, &request)?;
        made.explain.push(found.sentence());
        measured = Some(found);
    }
    let enough = made.carried_bps >= made.rate_bps;
    if args.json {
        let mut object = serde_json::to_value(&made).map_err(|e| Failure::failed(e.to_string()))?;
        object["measured"] = json!(measured);
        output::line(&object.to_string())?;
    } else {
        show(&made, args.explain || measured.is_some())?;
    }
    Ok(if enough {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(EXIT_FAILED)
    })
}

fn show(plan: &Plan, explain: bool) -> Result<(), Failure> {
    for r in &plan.rails {
        output::line(&rail_line(r))?;
    }
    if let Some(lanes) = &plan.lanes {
        let proven = if lanes.proven {
            "no other is larger"
        } else {
            "not proven largest"
        };
        output::line(&format!(
            "streams: {} bit/s in sum of at most {} ({proven})",
            lanes.total_bps, lanes.bound_bps
        ))?;
        for (n, (path, bps)) in lanes
            .streams
            .paths
            .iter()
            .zip(&lanes.streams.rates_bps)
            .enumerate()
        {
            let Some(path) = path else {
                output::line(&format!("stream {n}: not sent"))?;
                continue;
            };
            let rail = plan.rails.get(path.rail);
            let pu = rail
                .and_then(|r| r.stack_cores.get(path.core))
                .copied()
                .unwrap_or(0);
            let rail = rail.map_or(0, |r| r.rail);
            output::line(&format!(
                "stream {n}: rail {rail}, core {pu}, lane {}: {bps} bit/s",
                path.lane + 1
            ))?;
        }
    }
    if let Some(condition) = plan.condition {
        output::line(&format!("condition {condition:?} of paper 002"))?;
    }
    if plan.carried_bps < plan.rate_bps {
        output::line(&format!(
            "NOT ENOUGH: {} of {} bit/s",
            plan.carried_bps, plan.rate_bps
        ))?;
    }
    for sentence in plan.explain.iter().filter(|_| explain) {
        output::line(&format!("because {sentence}"))?;
    }
    Ok(())
}

fn rail_line(r: &RailPlan) -> String {
    let share = BitRate::new(r.rate_bps).map_or_else(|| "0bps".to_owned(), |b| b.to_string());
    format!(
        "rail {} {} {}: {share}; application {}, stack {}, interrupts {}; {:.2} GiB on node {}",
        r.rail,
        r.id,
        r.interfaces.join(" "),
        ranges(&r.application),
        ranges(&r.stack),
        ranges(&r.interrupts),
        r.memory_bytes as f64 / f64::from(1 << 30),
        r.memory_node
    )
}

/// Where `rail run` puts a program.
pub(super) fn binding(machine: &Machine, rail: &Rail, placement: Placement) -> Result<Binding, Failure> {
    let here = Binding {
        pus: rail.pus.clone(),
        memory_node: rail.node,
    };
    if placement == Placement::Local {
        return Ok(here);
    }
    let node = machine.other_node(rail.node).ok_or_else(|| {
        Failure::usage("--placement other: this machine has one node with cores; local is valid".to_owned())
    })?;
    let cores = machine
        .cores
        .iter()
        .filter(|c| c.node == node)
        .take(rail.cores.len());
    Ok(Binding {
        pus: cores.flat_map(|c| c.pus.iter().copied()).collect(),
        memory_node: node,
    })
}

fn undo_file(given: Option<&PathBuf>) -> Result<PathBuf, Failure> {
    if let Some(path) = given {
        return Ok(path.clone());
    }
    let absolute = |name: &str| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|p| p.is_absolute())
    };
    let base = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local").join("state")));
    let none =
        || Failure::usage("no place for the undo file: give --undo-file FILE, or set HOME or XDG_STATE_HOME");
    Ok(base.ok_or_else(none)?.join("kuroshio").join("rail-undo.json"))
}

fn execute(args: &Run) -> Result<ExitCode, Failure> {
    let placement = placement(&args.placement)?;
    let machine = machine(None)?;
    let rail = find(&machine, &args.rail, default_dev().as_deref())?;
    let binding = binding(&machine, &rail, placement)?;
    let steering = if args.interrupts {
        // Half of the rail's units for interrupts, the others for the stack; one for both where there is one.
        let (first, rest) = rail.pus.split_at(rail.pus.len().div_ceil(2));
        let stack = if rest.is_empty() { first } else { rest };
        let file = undo_file(args.undo_file.as_ref())?;
        let begun = Steering::begin(&Roots::default(), &machine, &rail, first, stack, &file)?;
        for refused in &begun.refused {
            eprintln!("kuroshio: not moved: {refused}");
        }
        eprintln!("kuroshio: {} interrupts and queues moved", begun.changed);
        Some(begun)
    } else {
        None
    };
    for note in bind(&machine, &binding)? {
        eprintln!("kuroshio: rail {}: {note}", rail.id);
    }
    let (program, rest) = args
        .command
        .split_first()
        .ok_or_else(|| Failure::usage("rail run: no program"))?;
    let mut child = Command::new(program)
        .args(rest)
        .spawn()
        .map_err(|e| Failure::usage(format!("{}: {e}", program.to_string_lossy())))?;
    let pid = i32::try_from(child.id())
        .ok()
        .and_then(rustix::process::Pid::from_raw);
    // A terminal's Ctrl-C reaches the program itself; a SIGTERM is passed on. Either way its end is waited for.
    signal::on_stop(move || {
        if let Some(pid) = pid {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
    })?;
    let status = child
        .wait()
        .map_err(|e| Failure::failed(format!("waiting for the program: {e}")))?;
    for failed in steering.map(Steering::end).unwrap_or_default() {
        eprintln!("kuroshio: not brought back: {failed}");
    }
    use std::os::unix::process::ExitStatusExt;
    let code = status
        .code()
        .or_else(|| status.signal().map(|s| 128 + s))
        .unwrap_or(1);
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(EXIT_FAILED)))
}

fn bring_back(args: &Undo) -> Result<ExitCode, Failure> {
    let (restored, failed) = undo(&Roots::default(), &undo_file(args.undo_file.as_ref())?)?;
    if args.json {
        output::line(&json!({"restored": restored, "failed": failed}).to_string())?;
    } else {
        output::line(&format!("{restored} interrupts and queues are as they were"))?;
        for text in &failed {
            output::line(&format!("FAILED {text}"))?;
        }
    }
    Ok(if failed.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(EXIT_FAILED)
    })
}
