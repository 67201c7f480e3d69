//! `kuroshio trust`: the tickets of services, kept in `$XDG_CONFIG_HOME/kuroshio/trust.toml` (mode 0600).

use std::io::Read;
use std::process::ExitCode;

use clap::Subcommand;
use kuroshio_service::{MAX_TICKET_BYTES, Ticket, TrustStore};

use crate::error::Failure;
use crate::output;

const EXAMPLE: &str = "\
Example:
  kuroshio trust add sandiego < ticket        keep the ticket that `kuroshio serve` printed
  kuroshio trust ls
  curl -K <(kuroshio trust show sandiego --curl) -r 0-99 https://HOST:PORT/path";

/// Arguments of `kuroshio trust`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLE)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Read a ticket from standard input and keep it under a name
    #[command(after_help = EXAMPLE)]
    Add {
        /// The service's name from now on
        name: String,
        /// Reach the service at this HOST:PORT instead of the ticket's address
        #[arg(long, value_name = "HOST:PORT")]
        address: Option<String>,
    },
    /// List the services that are trusted
    #[command(after_help = EXAMPLE)]
    Ls {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Forget a service
    #[command(after_help = EXAMPLE)]
    Rm {
        /// The service's name
        name: String,
    },
    /// Show a service's address and pin, or a curl configuration with its secrets
    #[command(after_help = EXAMPLE)]
    Show {
        /// The service's name
        name: String,
        /// Print a configuration for `curl -K`: pin and token (a secret: never in argv)
        #[arg(long)]
        curl: bool,
    },
}

/// Runs the verb.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    let mut store = TrustStore::open(&TrustStore::default_path()?)?;
    match args.action {
        Action::Add { name, address } => add(&mut store, &name, address.as_deref())?,
        Action::Ls { json } => list(&store, json)?,
        Action::Rm { name } => store.remove(&name)?,
        Action::Show { name, curl } => show(store.get(&name)?, curl)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn add(store: &mut TrustStore, name: &str, address: Option<&str>) -> Result<(), Failure> {
    let mut text = String::new();
    std::io::stdin()
        .take(MAX_TICKET_BYTES as u64 + 1)
        .read_to_string(&mut text)
        .map_err(|e| Failure::usage(format!("cannot read a ticket from standard input: {e}")))?;
    let mut ticket = text
        .parse::<Ticket>()
        .map_err(|e| Failure::usage(format!("standard input: {e}")))?;
    if let Some(address) = address {
        ticket = Ticket::new(address, ticket.pin(), ticket.token().to_owned())
            .map_err(|e| Failure::usage(format!("--address: {e}")))?;
    }
    let address = ticket.addresses().to_owned();
    let earlier = store.add(name, ticket)?;
    let done = if earlier { "replaced" } else { "kept" };
    eprintln!("{done}: {name} is {address}; try `kuroshio cp FILE {name}:/`");
    Ok(())
}

fn list(store: &TrustStore, json: bool) -> Result<(), Failure> {
    if json {
        let services = store.iter().map(|(name, ticket)| {
            serde_json::json!({"name": name, "address": ticket.addresses(), "pin": ticket.pin().to_string()})
        });
        return output::line(&serde_json::json!({"services": services.collect::<Vec<_>>()}).to_string());
    }
    for (name, ticket) in store.iter() {
        output::line(&format!("{name}  {}  {}", ticket.addresses(), ticket.pin()))?;
    }
    Ok(())
}

fn show(ticket: &Ticket, curl: bool) -> Result<(), Failure> {
    if !curl {
        output::line(&format!("address {}", ticket.addresses()))?;
        return output::line(&format!("pin     {}", ticket.pin()));
    }
    // The pin takes the place of the certificate chain, which is self-signed.
    output::line("# for curl -K; holds a secret")?;
    output::line("insecure")?;
    output::line(&format!("pinnedpubkey = \"{}\"", ticket.pin()))?;
    output::line(&format!("header = \"Authorization: Bearer {}\"", ticket.token()))
}
