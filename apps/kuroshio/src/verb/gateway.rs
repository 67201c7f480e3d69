//! `kuroshio gateway`: a grid by HTTP and WebDAV.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc;

use kuroshio_client::host_name;
use kuroshio_gateway::{Gateway, GatewayConfig, GatewayError, Network};

use crate::error::Failure;
use crate::signal;
use crate::verb::grid::Which;
use crate::verb::{serve, stored};

/// Port of a gateway that names none.
const DEFAULT_PORT: u16 = 8443;

const EXAMPLE: &str = "\
Example:
  kuroshio gateway --grid g                            https://127.0.0.1:8443, until it is ended (SIGTERM)
  kuroshio gateway --grid g --listen 192.0.2.1:8443 --name grid.example.org
  curl --cacert ~/.local/state/kuroshio/gateway/cert.pem -H @header https://localhost:8443/FILE
     (the file `header`: Authorization: Bearer TOKEN, the last of the four parts of a ticket)
Log level: KUROSHIO_LOG=debug";

/// Arguments of `kuroshio gateway`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLE)]
pub struct Args {
    #[command(flatten)]
    grid: Which,
    /// Where it listens; port 0 is any free one
    #[arg(long, value_name = "ADDR", default_value_t = SocketAddr::from(([127, 0, 0, 1], DEFAULT_PORT)))]
    listen: SocketAddr,
    /// Key and certificate are kept here [default: $XDG_STATE_HOME/kuroshio/gateway]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// A host name or address of the gateway, for its certificate (beside localhost and this host's name)
    #[arg(long, value_name = "HOST")]
    name: Vec<String>,
    /// File (mode 0600) with the ticket that requests without a token use; without it they are refused
    #[arg(long, value_name = "FILE")]
    guest: Option<PathBuf>,
    /// A network that is not global, but that third-party copies may reach, for example 10.1.0.0/16
    #[arg(long, value_name = "CIDR")]
    allow: Vec<String>,
    /// File of certificates (PEM) that third-party copies trust beside the system's
    #[arg(long, value_name = "FILE")]
    trust: Vec<PathBuf>,
    /// Tell the listening address as a line of JSON on standard error
    #[arg(long)]
    json: bool,
}

impl From<GatewayError> for Failure {
    fn from(e: GatewayError) -> Self {
        match e {
            GatewayError::Service(e) => e.into(),
            GatewayError::Invalid(text) => Self::usage(text),
            GatewayError::Machine(text) => Self::failed(text),
        }
    }
}

/// Runs `kuroshio gateway`.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    serve::start_log();
    let config = config(&args)?;
    let gateway = Gateway::start(&config)?;
    let (stop, stopped) = mpsc::channel::<()>();
    signal::on_stop(move || drop(stop))?;
    let certificate = gateway.certificate().display().to_string();
    if args.json {
        let line = serde_json::json!({
            "event": "listening", "address": gateway.address().to_string(), "pin": gateway.pin().to_string(),
            "certificate": certificate, "grid": config.grid_address,
        });
        eprintln!("{line}");
    } else {
        eprintln!(
            "kuroshio: gateway on https://{} (certificate {certificate})",
            gateway.address()
        );
    }
    let _ = stopped.recv();
    tracing::info!("stopping");
    gateway.stop();
    Ok(ExitCode::SUCCESS)
}

fn config(args: &Args) -> Result<GatewayConfig, Failure> {
    let grid = args.grid.ticket()?;
    let guest = args.guest.as_deref().map(stored::read_ticket).transpose()?;
    if let Some(guest) = &guest
        && guest.pin() != grid.pin()
    {
        return Err(Failure::usage("--guest: the ticket of another grid"));
    }
    let allow = args.allow.iter().map(|net| net.parse::<Network>());
    let allow = allow
        .collect::<Result<_, _>>()
        .map_err(|e| Failure::usage(format!("--allow: {e}")))?;
    let mut names = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).to_vec();
    names.push(host_name());
    if !args.listen.ip().is_unspecified() {
        names.push(args.listen.ip().to_string());
    }
    names.extend(args.name.iter().cloned());
    names.retain(|name| !name.is_empty());
    names.sort();
    names.dedup();
    Ok(GatewayConfig {
        dir: serve::state_dir(args.state.as_ref(), "gateway")?,
        listen: args.listen,
        names,
        grid_address: grid.address().to_owned(),
        grid_pin: grid.pin(),
        guest,
        allow,
        trust: args.trust.clone(),
    })
}
