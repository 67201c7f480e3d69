//! `kuroshio serve`: a data service for one folder.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc;

use kuroshio_core::units::PicoDuration;
use kuroshio_service::{
    DEFAULT_SCOPE, DEFAULT_VALIDITY_S, Identity, PlanKeeper, ServeConfig, ServeSecurity, Service,
    check_address,
};

use crate::error::Failure;
use crate::rail::RailFlag;
use crate::{output, signal};

/// Port of a service that names none.
const DEFAULT_PORT: u16 = 7420;

const EXAMPLE: &str = "\
Example:
  kuroshio serve --root /data                      prints a ticket on standard output at first start
  kuroshio serve --root /data --listen 192.0.2.1:7420 --plan routes.toml
  kuroshio serve --root /data --rail auto          on the cores and memory of the card it listens on
  kuroshio serve --print-ticket                    the ticket once more
  kuroshio serve --print-ticket --scope storage.read:/pub --valid 7d
The other side keeps the ticket:  kuroshio trust add NAME < ticket
Log level: KUROSHIO_LOG=debug";

/// Arguments of `kuroshio serve`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLE)]
pub struct Args {
    /// The folder to serve; nothing outside of it is read or written
    #[arg(long, value_name = "DIR", required_unless_present = "print_ticket")]
    root: Option<PathBuf>,
    /// Where to listen, HOST address and port; port 0 is any free one; every address, port 7420, by default
    #[arg(long, value_name = "ADDR")]
    listen: Vec<SocketAddr>,
    /// The address that tickets name, HOST or HOST:PORT [default: where it listens, or the host's name]
    #[arg(long, value_name = "HOST[:PORT]")]
    advertise: Option<String>,
    /// Key, certificate and token are kept here [default: $XDG_STATE_HOME/kuroshio/serve]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Own the site's rate plan: a TOML file of routes
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// Print the ticket and end
    #[arg(long)]
    print_ticket: bool,
    /// With --print-ticket: what another ticket allows (storage.read:/PATH storage.modify:/PATH kuroshio.lease
    /// kuroshio.plan)
    #[arg(long, requires = "print_ticket", value_name = "SCOPE")]
    scope: Option<String>,
    /// With --print-ticket: how long another ticket is good, for example 24h or 7d
    #[arg(long, requires = "print_ticket", value_name = "TIME")]
    valid: Option<String>,
    /// Clear text and no token, for tests: only on loopback addresses
    #[arg(long)]
    insecure: bool,
    /// With --insecure: also on other addresses; whoever reaches them reads and writes the folder
    #[arg(long, requires = "insecure")]
    insecure_anywhere: bool,
    /// Tell the listening address as a line of JSON on standard error
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    rail: RailFlag,
}

/// Runs the verb.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    if args.print_ticket {
        return print_ticket(&args);
    }
    let root = args
        .root
        .clone()
        .ok_or_else(|| Failure::usage("--root DIR is missing"))?;
    args.rail
        .bind_listening(args.listen.first().map(SocketAddr::ip))?;
    start_log();
    let identity = if args.insecure {
        None
    } else {
        Some(Identity::open(&state_dir(args.state.as_ref(), "serve")?)?)
    };
    let plan = args.plan.as_deref().map(PlanKeeper::open).transpose()?;
    let config = |listen: Vec<SocketAddr>| ServeConfig {
        root: root.clone(),
        listen,
        security: match &identity {
            Some(identity) => ServeSecurity::Pinned(identity),
            None => ServeSecurity::Insecure {
                anywhere: args.insecure_anywhere,
            },
        },
        plan: plan.clone(),
    };
    let service = if !args.listen.is_empty() {
        Service::start(config(args.listen.clone()))?
    } else if args.insecure {
        Service::start(config(vec![SocketAddr::from(([127, 0, 0, 1], DEFAULT_PORT))]))?
    } else {
        // A host without IPv6 has no wildcard for both.
        let both = SocketAddr::from(([0u16; 8], DEFAULT_PORT));
        Service::start(config(vec![both]))
            .or_else(|_| Service::start(config(vec![SocketAddr::from(([0, 0, 0, 0], DEFAULT_PORT))])))?
    };
    // Signals are caught before anybody is told that the service runs.
    let (stop, stopped) = mpsc::channel::<()>();
    signal::on_stop(move || drop(stop))?;
    announce(&args, &service, identity.as_ref())?;
    let _ = stopped.recv();
    tracing::info!("stopping; transfers can be resumed");
    service.stop();
    Ok(ExitCode::SUCCESS)
}

/// Sends the log to standard error, as `KUROSHIO_LOG` says.
pub fn start_log() {
    use tracing_subscriber::EnvFilter;
    let filter = EnvFilter::try_from_env("KUROSHIO_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    // A second subscriber in one process is refused; the first one stays.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .try_init();
}

/// The folder of a service's identity: as given, or below the user's state.
pub fn state_dir(given: Option<&PathBuf>, service: &str) -> Result<PathBuf, Failure> {
    if let Some(dir) = given {
        return Ok(dir.clone());
    }
    let absolute = |name: &str| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|p| p.is_absolute())
    };
    let base = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local").join("state")));
    match base {
        Some(base) => Ok(base.join("kuroshio").join(service)),
        None => Err(Failure::usage(
            "no place for the key: give --state DIR, or set HOME or XDG_STATE_HOME",
        )),
    }
}

/// The address that tickets name.
fn advertised(args: &Args, service: &Service) -> Result<String, Failure> {
    let first = service.addresses().first().copied();
    let listening = first.ok_or_else(|| Failure::failed("the service listens nowhere"))?;
    let address = match &args.advertise {
        Some(host) if check_address(host).is_ok() => host.clone(),
        Some(host) => match host.parse::<std::net::Ipv6Addr>() {
            Ok(v6) => format!("[{v6}]:{}", listening.port()),
            Err(_) => format!("{host}:{}", listening.port()),
        },
        None if listening.ip().is_unspecified() => format!("{}:{}", host_name(), listening.port()),
        None => listening.to_string(),
    };
    check_address(&address).map_err(|e| Failure::usage(format!("--advertise: {e}")))?;
    Ok(address)
}

/// This host's name, or `localhost`.
pub fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() {
        "localhost".to_owned()
    } else {
        name.to_owned()
    }
}

fn announce(args: &Args, service: &Service, identity: Option<&Identity>) -> Result<(), Failure> {
    let addresses = service
        .addresses()
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>();
    let pin = identity.map(|i| i.pin().to_string());
    if let Some(identity) = identity {
        let address = advertised(args, service)?;
        let moved = identity.address()?.as_deref() != Some(&address);
        if identity.is_first_start() || moved {
            let ticket = identity.ticket(&address, identity.first_token()?)?;
            output::line(&ticket.to_line())?;
            identity.keep_address(&address)?;
        }
    }
    if args.json {
        let line = serde_json::json!({
            "event": "listening", "addresses": addresses, "root": service.root().to_string_lossy(), "pin": pin,
        });
        eprintln!("{line}");
        return Ok(());
    }
    let how = match &pin {
        Some(pin) => format!("TLS, pin {pin}"),
        None => "insecure: clear text, no token".to_owned(),
    };
    eprintln!(
        "kuroshio: serving {} on {} ({how})",
        service.root().display(),
        addresses.join(", ")
    );
    Ok(())
}

fn print_ticket(args: &Args) -> Result<ExitCode, Failure> {
    let dir = state_dir(args.state.as_ref(), "serve")?;
    if !dir.join("key.der").exists() {
        return Err(Failure::usage(format!(
            "{}: no service was started with this state folder; `kuroshio serve --root DIR` makes one",
            dir.display()
        )));
    }
    let identity = Identity::open(&dir)?;
    let address = match (&args.advertise, identity.address()?) {
        (Some(address), _) => address.clone(),
        (None, Some(address)) => address,
        (None, None) => {
            return Err(Failure::usage(
                "the service's address is not known: give --advertise HOST:PORT",
            ));
        }
    };
    let token = if args.scope.is_none() && args.valid.is_none() {
        identity.first_token()?
    } else {
        let valid_s = args.valid.as_deref().map_or(Ok(DEFAULT_VALIDITY_S), validity_s)?;
        let scope = args.scope.as_deref().unwrap_or(DEFAULT_SCOPE);
        identity
            .issue("ticket", scope, valid_s)
            .map_err(|e| Failure::usage(format!("--scope: {e}")))?
    };
    output::line(&identity.ticket(&address, token)?.to_line())?;
    Ok(ExitCode::SUCCESS)
}

/// Reads `7d`, `24h`, or any duration of the core; in seconds.
fn validity_s(text: &str) -> Result<u64, Failure> {
    let whole = |suffix: char, seconds: u64| {
        let n = text.strip_suffix(suffix)?.parse::<u64>().ok()?;
        n.checked_mul(seconds)
    };
    let seconds = whole('d', 86_400).or_else(|| whole('h', 3_600)).or_else(|| {
        let duration = text.parse::<PicoDuration>().ok()?;
        Some(duration.as_ns() / 1_000_000_000)
    });
    match seconds {
        Some(s) if s > 0 => Ok(s),
        _ => Err(Failure::usage(format!(
            "--valid {text}: a time of at least 1s is valid, for example 7d, 24h, 90min"
        ))),
    }
}
