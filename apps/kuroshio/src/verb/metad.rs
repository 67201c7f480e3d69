//! `kuroshio init` and `kuroshio metad`: the metadata service of a grid.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc;

use kuroshio_metad::{Config, Metad, Timing, beside, make_keys, open_catalog};

use crate::error::Failure;
use crate::verb::serve;
use crate::{output, signal};

/// Port of a metadata service that names none.
const DEFAULT_PORT: u16 = 7421;

const INIT_EXAMPLE: &str = "\
Example:
  kuroshio init --dir /srv/grid --listen 192.0.2.1:7421      makes /srv/grid/metad.toml, key and administrator's ticket
  kuroshio metad --dir /srv/grid                             starts it
  kuroshio fs --grid /srv/grid ticket --node n1 > n1.ticket  a ticket with which another host joins
Two services beside each other (both may run on hosts of their own: copy the first one's folder there):
  kuroshio init --dir a --listen 192.0.2.1:7421 --database 'host=/run/postgresql user=grid dbname=grid'
  kuroshio init --dir b --listen 192.0.2.2:7421 --beside a";

const METAD_EXAMPLE: &str = "\
Example:
  kuroshio metad --dir /srv/grid            runs until it is ended (SIGTERM); log level: KUROSHIO_LOG=debug";

/// Arguments of `kuroshio init`.
#[derive(clap::Args)]
#[command(after_help = INIT_EXAMPLE)]
pub struct InitArgs {
    /// Folder of the metadata service: configuration, key, tickets, catalog
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Name of the grid, for people [default: the folder's name]
    #[arg(long)]
    name: Option<String>,
    /// Where it listens
    #[arg(long, value_name = "ADDR", default_value_t = SocketAddr::from(([127, 0, 0, 1], DEFAULT_PORT)))]
    listen: SocketAddr,
    /// The address that tickets name, if it is another one
    #[arg(long, value_name = "HOST:PORT")]
    advertise: Option<String>,
    /// Database of the catalog, without a password (that is written into metad.toml) [default: a file in the folder]
    #[arg(long, value_name = "CONNECTION", conflicts_with = "beside")]
    database: Option<String>,
    /// Another service of the same grid: its folder, or a copy of it, with keys and configuration
    #[arg(long, value_name = "DIR", conflicts_with = "name")]
    beside: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Arguments of `kuroshio metad`.
#[derive(clap::Args)]
#[command(after_help = METAD_EXAMPLE)]
pub struct Args {
    /// Folder that `kuroshio init` made
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Tell the listening address as a line of JSON on standard error
    #[arg(long)]
    json: bool,
}

/// A name for a grid from its folder's name.
pub fn name_of(dir: &Path) -> String {
    let absolute = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    let name = absolute
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    if kuroshio_service::check_name(&name).is_ok() {
        name
    } else {
        "grid".to_owned()
    }
}

/// Runs `kuroshio init`.
pub fn init(args: InitArgs) -> Result<ExitCode, Failure> {
    let dir = &args.dir;
    if Config::path(dir).exists() {
        return Err(Failure::usage(format!(
            "{}: there is a metadata service already; `kuroshio metad --dir {}` starts it",
            Config::path(dir).display(),
            dir.display()
        )));
    }
    let config = config_of(&args)?;
    config.check()?;
    if let Some(other) = &args.beside {
        beside(other, dir)?;
    }
    let pin = make_keys(dir)?.pin();
    let address = config
        .advertise
        .clone()
        .unwrap_or_else(|| config.listen.to_string());
    // A port that is not known yet is found by the first start, which makes the ticket then.
    if config.advertise.is_some() || config.listen.port() != 0 {
        Metad::admin_ticket(dir, &address)?;
    }
    config.save(dir)?;
    if args.json {
        return output::line(
            &serde_json::json!({
                "name": config.name, "address": address, "pin": pin.to_string(),
                "config": Config::path(dir).display().to_string(),
                "admin_ticket_file": dir.join("admin.ticket").display().to_string(),
            })
            .to_string(),
        )
        .map(|()| ExitCode::SUCCESS);
    }
    output::line(&format!("grid {} at {}, pin {}", config.name, address, pin))?;
    output::line(&format!(
        "configuration {}; the administrator's ticket (a secret) is beside it",
        Config::path(dir).display()
    ))?;
    output::line(&format!("start it: kuroshio metad --dir {}", dir.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// The configuration of a new service.
fn config_of(args: &InitArgs) -> Result<Config, Failure> {
    let (listen, advertise) = (args.listen, args.advertise.clone());
    if let Some(other) = &args.beside {
        let theirs = Config::load(other)?;
        if theirs.database.is_none() {
            return Err(Failure::usage(format!(
                "{}: its catalog is a file, which one service has for itself; services beside each other need \
                 `database = \"postgres://...\"`",
                Config::path(other).display()
            )));
        }
        return Ok(Config {
            listen,
            advertise,
            ..theirs
        });
    }
    if args.database.as_deref().is_some_and(has_password) {
        return Err(Failure::usage(
            "--database: a password in a command line is seen by everybody on this host; give it without one, and write it \
             into metad.toml",
        ));
    }
    Ok(Config {
        name: args.name.clone().unwrap_or_else(|| name_of(&args.dir)),
        listen,
        advertise,
        database: args.database.clone(),
        timing: Timing::default(),
        replication: kuroshio_metad::Replication::default(),
        routes: Vec::new(),
    })
}

/// Whether a connection string holds a password, in either of its forms.
fn has_password(connection: &str) -> bool {
    let in_url = connection
        .split_once("://")
        .and_then(|(_, rest)| rest.split('/').next()?.rsplit_once('@'))
        .is_some_and(|(user, _)| user.contains(':'));
    in_url || connection.contains("password")
}

/// Runs `kuroshio metad`.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    serve::start_log();
    // Before anything is opened: what is wrong with the folder is said, nothing is made.
    let config = Config::load(&args.dir)?;
    let metad = Metad::start(&args.dir, open_catalog(&args.dir, &config)?)?;
    let (stop, stopped) = mpsc::channel::<()>();
    signal::on_stop(move || drop(stop))?;
    if args.json {
        eprintln!(
            "{}",
            serde_json::json!({
                "event": "listening", "address": metad.address().to_string(), "advertised": metad.advertised(),
                "pin": metad.pin().to_string(),
            })
        );
    } else {
        eprintln!(
            "kuroshio: metadata service on {} (pin {})",
            metad.address(),
            metad.pin()
        );
    }
    let _ = stopped.recv();
    tracing::info!("stopping");
    metad.stop();
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::has_password;

    #[test]
    fn passwords_are_seen() {
        for with in [
            "postgres://grid:secret@db/grid",
            "postgresql://u:p@h:5432/d?x=y",
            "host=db user=grid password=x dbname=g",
        ] {
            assert!(has_password(with), "{with}");
        }
        for without in [
            "postgres://grid@db:5432/grid",
            "postgres://db:5432/grid",
            "host=/run/postgresql user=grid dbname=grid",
        ] {
            assert!(!has_password(without), "{without}");
        }
    }
}
