//! `kuroshio lane`: a tunnel over several paths between two hosts.
//!
//! `key` makes a pair of keys, `up FILE.toml` carries packets until it is stopped, `status`, `add` and `drop` ask or change a tunnel that
//! is up, by its name or its file. Exit codes: 0 done, 1 the tunnel failed or none answers, 2 bad input.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Subcommand;
use kuroshio_core::units::BitRate;
use kuroshio_lane::{LaneError, Tunnel, TunnelConfig, control, key, status::TunnelStatus};

use crate::error::Failure;
use crate::rail::{RailFlag, route_to};
use crate::{output, signal};

const EXAMPLE: &str = "\
Example:
  kuroshio lane key tokyo.key             makes the private key's file, prints the public key
  kuroshio lane up sea0.toml              both ends; as root, until Ctrl-C
  kuroshio lane up sea0.toml --rail auto  on the cores and memory of the first lane's card
  kuroshio lane status sea0 --json
  kuroshio lane drop sea0 north           and back: kuroshio lane add sea0 north

The file (both ends name the lanes in the same order):
  name = \"sea0\"
  address = [\"10.9.0.1/30\"]
  key = \"tokyo.key\"
  peer = \"PUBLIC KEY OF THE OTHER END\"
  mode = \"deskew\"                         deskew, inorder or mirror
  [[lane]]
  name = \"north\"
  local = \"192.0.2.1:7000\"
  remote = \"198.51.100.1:7000\"
  capacity = \"1Gbps\"                      frame level";

/// Arguments of `kuroshio lane`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLE)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Make a pair of keys: the private one into a new file, the public one is printed
    #[command(after_help = EXAMPLE)]
    Key {
        /// The private key's file; it must not be there yet
        file: PathBuf,
        /// Print the public key of a file that is there instead
        #[arg(long)]
        show: bool,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Bring a tunnel up and carry packets until it is stopped
    #[command(after_help = EXAMPLE)]
    Up {
        /// The tunnel's file
        file: PathBuf,
        /// Only check the file and print what it means
        #[arg(long)]
        check: bool,
        /// Print one JSON object when the tunnel is up
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        rail: RailFlag,
    },
    /// Show a tunnel that is up
    #[command(after_help = EXAMPLE)]
    Status {
        #[command(flatten)]
        which: Which,
    },
    /// Take a lane into use again
    #[command(after_help = EXAMPLE)]
    Add {
        #[command(flatten)]
        which: Which,
        /// Name of the lane
        lane: String,
    },
    /// Take a lane out of use
    #[command(after_help = EXAMPLE)]
    Drop {
        #[command(flatten)]
        which: Which,
        /// Name of the lane
        lane: String,
    },
}

#[derive(clap::Args)]
struct Which {
    /// Name of the tunnel's interface, or its file
    tunnel: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl From<LaneError> for Failure {
    fn from(e: LaneError) -> Self {
        if e.is_bad_input() {
            Self::usage(format!("lane: {e}"))
        } else {
            Self::failed(format!("lane: {e}"))
        }
    }
}

/// Runs the verb.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    match args.action {
        Action::Key { file, show, json } => make_key(&file, show, json),
        Action::Up {
            file,
            check,
            json,
            rail,
        } => up(&file, check, json, &rail),
        Action::Status { which } => ask(&which, "status"),
        Action::Add { which, lane } => ask(&which, &format!("add {lane}")),
        Action::Drop { which, lane } => ask(&which, &format!("drop {lane}")),
    }
}

fn make_key(file: &Path, show: bool, json: bool) -> Result<ExitCode, Failure> {
    let public = if show {
        key::load(file)?.public
    } else {
        key::generate(file)?
    };
    if json {
        let text = serde_json::json!({ "public_key": public.to_string(), "file": file });
        output::line(&text.to_string())?;
    } else {
        output::line(&public.to_string())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn up(file: &Path, check: bool, json: bool, rail: &RailFlag) -> Result<ExitCode, Failure> {
    let config = TunnelConfig::load(file)?;
    let about = serde_json::json!({
        "name": config.name,
        "mtu_bytes": config.mtu(),
        "lanes": config.lanes.iter().map(|l| &l.name).collect::<Vec<_>>(),
        "control": config.control,
    });
    let told = if json {
        about.to_string()
    } else {
        format!(
            "{}: {} lanes, MTU {} bytes, control {}",
            config.name,
            config.lanes.len(),
            config.mtu(),
            config.control.display()
        )
    };
    if check {
        key::load(&config.key)?;
        output::line(&told)?;
        return Ok(ExitCode::SUCCESS);
    }
    // One thread carries the tunnel; `auto` is the rail of the first lane's card.
    rail.bind_to(|| {
        let first = config.lanes.first()?;
        let peer = (first.remote.ip().to_string(), first.remote.port());
        let named = first.interface.clone();
        named.or_else(|| route_to((&peer.0, peer.1)))
    })?;
    let tunnel = Tunnel::up(config)?;
    let stop = tunnel.stop_handle();
    signal::on_stop(move || stop.stop())?;
    output::line(&told)?;
    tunnel.run()?;
    Ok(ExitCode::SUCCESS)
}

fn ask(which: &Which, question: &str) -> Result<ExitCode, Failure> {
    let path = if Path::new(&which.tunnel).extension().is_some_and(|e| e == "toml") {
        TunnelConfig::load(Path::new(&which.tunnel))?.control
    } else {
        control::default_path(&which.tunnel)
    };
    let status = control::ask(&path, question).map_err(|e| match e {
        LaneError::File { .. } => Failure::failed(format!("lane: no tunnel answers: {e}")),
        e => e.into(),
    })?;
    if which.json {
        let text = serde_json::to_string(&status).map_err(|e| Failure::failed(e.to_string()))?;
        output::line(&text)?;
    } else {
        show(&status)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn show(s: &TunnelStatus) -> Result<(), Failure> {
    let open = if s.open { "open" } else { "no session yet" };
    output::line(&format!(
        "{}  {open}  MTU {} bytes  play-out {} us above the fastest lane  clock drift {} ppb",
        s.name, s.mtu_bytes, s.play_out_us, s.drift_ppb
    ))?;
    let us = |v: Option<u64>| v.map_or_else(|| "-".to_owned(), |v| format!("{v}us"));
    for lane in &s.lanes {
        let rate = BitRate::from_bps(lane.paced_bps).map_or_else(|_| "0".to_owned(), |r| r.to_string());
        output::line(&format!(
            "  {:<12} {:<8} paced {rate}  rtt {}  skew {}  jitter {}  loss {} ppm  sent {} ({} B)  arrived {}  outages {}",
            lane.name,
            lane.state,
            us(lane.rtt_us),
            us(lane.skew_us),
            us(lane.jitter_us),
            lane.loss_ppm,
            lane.sent,
            lane.sent_bytes,
            lane.arrived,
            lane.outages
        ))?;
    }
    output::line(&format!(
        "  entered {} (refused {})  sent again {}  delivered {}  lost {}  late {} dropped, {} delivered  duplicates {}",
        s.entered, s.refused, s.repaired, s.delivered, s.lost, s.late_dropped, s.late_delivered, s.duplicates
    ))
}
