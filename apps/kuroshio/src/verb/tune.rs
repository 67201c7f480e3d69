//! `kuroshio tune`: what this host needs for a rate and a round-trip time.

use std::path::PathBuf;
use std::process::ExitCode;

use kuroshio_core::units::{BitRate, PicoDuration, parse_bytes};
use kuroshio_tune::link::{default_dev, is_name, read};
use kuroshio_tune::sysctl::Sysctls;
use kuroshio_tune::{Facts, Need, Outcome, Request, TuneError, apply, need, undo};

use crate::error::{EXIT_FAILED, Failure};
use crate::output;

const EXAMPLE: &str = "\
Example:
  kuroshio tune --rate 10G --rtt 200ms            what is there, what is needed, why, and the commands
  kuroshio tune --rate 10G --rtt 200ms --apply    as root: set what is lacking, keeping what was before
  kuroshio tune --undo                            bring that back
Nothing outlives a reboot: put the commands where your system keeps them.";

/// Arguments of `kuroshio tune`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLE)]
pub struct Args {
    /// Rate of all streams in sum, frame level, for example 10G
    #[arg(long, value_name = "RATE", required_unless_present = "undo")]
    rate: Option<String>,
    /// Round-trip time of the path, for example 200ms
    #[arg(long, value_name = "TIME", required_unless_present = "undo")]
    rtt: Option<String>,
    /// Streams that share the rate
    #[arg(long, value_name = "N", default_value_t = 1)]
    streams: u32,
    /// Interface [default: that of the default route]
    #[arg(long, value_name = "NAME")]
    dev: Option<String>,
    /// MTU that the whole path carries, for example 9000B; only then --apply sets it
    #[arg(long, value_name = "SIZE")]
    mtu: Option<String>,
    /// Set what is lacking and can be set by sysctl or ip link
    #[arg(long)]
    apply: bool,
    /// Bring back what was before --apply
    #[arg(long, conflicts_with_all = ["apply", "rate", "rtt", "dev", "mtu"])]
    undo: bool,
    /// Where what was before is kept [default: $XDG_STATE_HOME/kuroshio/tune-undo.json]
    #[arg(long, value_name = "FILE")]
    undo_file: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl From<TuneError> for Failure {
    fn from(e: TuneError) -> Self {
        match e {
            TuneError::Undo { .. } => Self::usage(e.to_string()),
            TuneError::Io { .. } => Self::failed(e.to_string()),
        }
    }
}

/// Runs the verb.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    let sysctls = Sysctls::system();
    if args.undo {
        let outcomes = undo(&sysctls, &undo_file(&args)?)?;
        if args.json {
            output::line(&serde_json::json!({ "undone": outcomes }).to_string())?;
        } else {
            show_outcomes(&outcomes)?;
        }
        return Ok(code(&outcomes));
    }
    let request = request(&args)?;
    let link = match args.dev.clone().or_else(default_dev) {
        None => None,
        Some(dev) => match read(&dev) {
            Ok(link) => Some(link),
            Err(e) if args.dev.is_some() => return Err(Failure::usage(format!("--dev {dev}: {e}"))),
            Err(_) => None,
        },
    };
    let found = need(&request, &Facts::read(&sysctls, link));
    let outcomes = if args.apply {
        Some(apply(&found, &sysctls, &undo_file(&args)?)?)
    } else {
        None
    };
    if args.json {
        let mut object = serde_json::to_value(&found).map_err(|e| Failure::failed(e.to_string()))?;
        object["applied"] = serde_json::json!(outcomes);
        output::line(&object.to_string())?;
    } else {
        show(&found)?;
        if let Some(outcomes) = &outcomes {
            show_outcomes(outcomes)?;
        }
    }
    Ok(outcomes.map_or(ExitCode::SUCCESS, |outcomes| code(&outcomes)))
}

fn code(outcomes: &[Outcome]) -> ExitCode {
    if outcomes.iter().all(|o| o.error.is_none()) {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(EXIT_FAILED)
    }
}

fn request(args: &Args) -> Result<Request, Failure> {
    let rate = args.rate.as_deref().unwrap_or_default();
    let rtt = args.rtt.as_deref().unwrap_or_default();
    let rate: BitRate = rate.parse().map_err(|e| Failure::usage(format!("--rate: {e}")))?;
    let rtt: PicoDuration = rtt.parse().map_err(|e| Failure::usage(format!("--rtt: {e}")))?;
    if !(PicoDuration::from_us(1)..=PicoDuration::from_secs(60)).contains(&rtt) {
        return Err(Failure::usage(format!("--rtt {rtt}: from 1us to 60s is valid")));
    }
    if !(1..=10_000).contains(&args.streams) {
        return Err(Failure::usage(format!(
            "--streams {}: from 1 to 10000 are valid",
            args.streams
        )));
    }
    if let Some(dev) = args.dev.as_deref().filter(|dev| !is_name(dev)) {
        return Err(Failure::usage(format!(
            "--dev {dev:?}: not the name of an interface, such as eth0"
        )));
    }
    let mtu = args.mtu.as_deref().map(|text| {
        let bytes = parse_bytes(text).map_err(|e| Failure::usage(format!("--mtu: {e}")))?;
        match u32::try_from(bytes) {
            Ok(mtu) if (1280..=65_535).contains(&mtu) => Ok(mtu),
            _ => Err(Failure::usage(format!(
                "--mtu {text}: from 1280B to 65535B is valid"
            ))),
        }
    });
    Ok(Request {
        rate,
        rtt,
        streams: args.streams,
        mtu: mtu.transpose()?,
    })
}

fn undo_file(args: &Args) -> Result<PathBuf, Failure> {
    if let Some(path) = &args.undo_file {
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
    Ok(base.ok_or_else(none)?.join("kuroshio").join("tune-undo.json"))
}

fn show(need: &Need) -> Result<(), Failure> {
    output::line(&format!(
        "window {} bytes (rate * RTT), socket buffers {} bytes (three times, paper 004), {} bytes on each of {} streams",
        need.window_bytes, need.socket_buffer_bytes, need.stream_buffer_bytes, need.streams
    ))?;
    for item in &need.items {
        let mark = if item.ok { "ok  " } else { "need" };
        let current = item.current.as_deref().unwrap_or("(not to be seen)");
        let wanted = if item.ok {
            String::new()
        } else {
            format!(" -> {}", item.wanted)
        };
        output::line(&format!("{mark} {}: {current}{wanted}", item.name))?;
        if !item.ok {
            output::line(&format!("       {}", item.reason))?;
        }
        if let Some(command) = &item.command {
            output::line(&format!("       {command}"))?;
        }
    }
    for note in &need.notes {
        output::line(&format!("note {note}"))?;
    }
    Ok(())
}

fn show_outcomes(outcomes: &[Outcome]) -> Result<(), Failure> {
    for outcome in outcomes {
        match &outcome.error {
            None => output::line(&format!("done {}", outcome.command))?,
            Some(e) => output::line(&format!("FAILED {}: {e}", outcome.command))?,
        }
    }
    Ok(())
}
