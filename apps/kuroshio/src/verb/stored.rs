//! `kuroshio join` and `kuroshio stored`: a node of a grid.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc;

use kuroshio_client::Grid;
use kuroshio_node::{Node, NodeConfig};
use kuroshio_service::{MAX_TICKET_BYTES, Ticket, private};

use crate::error::Failure;
use crate::rail::RailFlag;
use crate::verb::fs::sizes;
use crate::verb::serve;
use crate::{output, signal};

/// Port of a node that names none.
const DEFAULT_PORT: u16 = 7422;

const JOIN_EXAMPLE: &str = "\
Example:
  kuroshio join --dir /data/n1 --listen 192.0.2.7:7422 --site tokyo < n1.ticket
  kuroshio join --dir /data/n1 n1.ticket       a file that only its owner may read (0600)
  kuroshio stored --dir /data/n1               starts the node";

const STORED_EXAMPLE: &str = "\
Example:
  kuroshio stored --dir /data/n1            runs until it is ended (SIGTERM); log level: KUROSHIO_LOG=debug
  kuroshio stored --dir /data/n1 --rail auto   on the cores and memory of the card it listens on";

/// Arguments of `kuroshio join`.
#[derive(clap::Args)]
#[command(after_help = JOIN_EXAMPLE)]
pub struct JoinArgs {
    /// File with the node's ticket (`kuroshio fs ticket --node NAME` makes one); `-` is standard input
    #[arg(default_value = "-", value_name = "TICKET")]
    ticket: PathBuf,
    /// Folder of the node: configuration, key, objects
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Site that it belongs to [default: the grid's default]
    #[arg(long, default_value = "", hide_default_value = true)]
    site: String,
    /// Where its data service listens
    #[arg(long, value_name = "ADDR", default_value_t = SocketAddr::from(([127, 0, 0, 1], DEFAULT_PORT)))]
    listen: SocketAddr,
    /// The address that others dial, if it is another one
    #[arg(long, value_name = "HOST:PORT")]
    advertise: Option<String>,
    /// Most bytes it may hold, for example 500GiB [default: what the file system has]
    #[arg(long, value_name = "SIZE")]
    capacity: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Arguments of `kuroshio stored`.
#[derive(clap::Args)]
#[command(after_help = STORED_EXAMPLE)]
pub struct Args {
    /// Folder that `kuroshio join` made
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Tell the listening address as a line of JSON on standard error
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    rail: RailFlag,
}

/// Reads a ticket from standard input or from a private file.
pub fn read_ticket(from: &Path) -> Result<Ticket, Failure> {
    use std::io::Read;
    let text = if from == Path::new("-") {
        let mut text = String::new();
        let read = std::io::stdin()
            .take(MAX_TICKET_BYTES as u64 + 1)
            .read_to_string(&mut text);
        read.map_err(|e| Failure::usage(format!("cannot read a ticket from standard input: {e}")))?;
        text
    } else {
        let bytes = private::read(from, MAX_TICKET_BYTES as u64)?;
        let bytes = bytes.ok_or_else(|| Failure::usage(format!("{}: no such file", from.display())))?;
        String::from_utf8(bytes).map_err(|_| Failure::usage(format!("{}: not a ticket", from.display())))?
    };
    let shown = if from == Path::new("-") {
        "standard input".to_owned()
    } else {
        from.display().to_string()
    };
    text.parse().map_err(|e| Failure::usage(format!("{shown}: {e}")))
}

/// Runs `kuroshio join`.
pub fn join(args: JoinArgs) -> Result<ExitCode, Failure> {
    let dir = &args.dir;
    if NodeConfig::path(dir).exists() {
        return Err(Failure::usage(format!(
            "{}: there is a node already; `kuroshio stored --dir {}` starts it",
            NodeConfig::path(dir).display(),
            dir.display()
        )));
    }
    let capacity_bytes = args.capacity.as_deref().map(sizes::parse).transpose()?;
    let ticket = read_ticket(&args.ticket)?;
    // Says now what a wrong ticket would say when the node starts.
    let grid = Grid::connect(&ticket)?.status()?;
    let config = NodeConfig {
        advertise: args.advertise.clone(),
        capacity_bytes,
        ..NodeConfig::new(&args.site, args.listen)
    };
    config.save(dir, &ticket)?;
    if args.json {
        let line = serde_json::json!({
            "node": grid.user, "grid": grid.name, "metad": ticket.addresses(), "dir": dir.display().to_string(),
        });
        output::line(&line.to_string())?;
    } else {
        output::line(&format!(
            "node {} of grid {} at {}",
            grid.user,
            grid.name,
            ticket.addresses()
        ))?;
        output::line(&format!("start it: kuroshio stored --dir {}", dir.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs `kuroshio stored`.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    // A folder without a node says so when it starts.
    let listen = NodeConfig::load(&args.dir)
        .ok()
        .map(|(config, _)| config.listen.ip());
    args.rail.bind_listening(listen)?;
    serve::start_log();
    let node = Node::start(&args.dir)?;
    let (stop, stopped) = mpsc::channel::<()>();
    signal::on_stop(move || drop(stop))?;
    if args.json {
        let line = serde_json::json!({ "event": "listening", "address": node.address().to_string() });
        eprintln!("{line}");
    } else {
        eprintln!("kuroshio: node on {}", node.address());
    }
    let _ = stopped.recv();
    tracing::info!("stopping");
    node.stop();
    Ok(ExitCode::SUCCESS)
}
