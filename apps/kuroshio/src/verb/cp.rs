//! `kuroshio cp`: copies files and trees; see [`crate::copy`] for the work.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::ValueEnum;
use kuroshio_core::units::{BitRate, FrameBytes};
use kuroshio_service::Route;
use kuroshio_service::api::{MAX_ROUTES, MAX_STREAMS};
use kuroshio_transfer::{DigestMode, Options, Placement, SyncMode};

use crate::copy::{self, Plan};
use crate::error::Failure;
use crate::local::names_folder;
use crate::place::{self, Place};
use crate::rail::RailFlag;

/// Full-size frame of an Ethernet with MTU 1500, MAC header to FCS: the smallest that a stream paces.
const FRAME: FrameBytes = FrameBytes::new(1518);
/// Streams when nothing is said.
const DEFAULT_STREAMS: u32 = 4;

const EXAMPLE: &str = "\
Examples:
  kuroshio cp -q big.dat tokyo:/in/                   push; `tokyo` is a name from `kuroshio trust add`
  kuroshio cp tokyo:/data/run7 .                      pull a tree
  kuroshio cp tokyo:/data/run7 sandiego:/data/        third party: the data never passes here
  kuroshio cp --streams 5 --via 10.1.1.2@450M,10.2.1.2@480M run7 sandiego:/data/
  kuroshio cp --sync --dry-run --json run7 sandiego:/data/
Rates are frame level (MAC header to FCS) and need a unit: 800M, 800Mbps, 2.34G, 50MB/s.
The same command again after an interruption moves only what is missing.
Exit codes: 0 done, 1 failed (resume by the same command), 2 bad input.";

/// Arguments of `kuroshio cp`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLE, override_usage = "kuroshio cp [OPTIONS] SRC... DST")]
pub struct Args {
    /// Sources, then the destination: PATH, NAME:/path, or http://HOST:PORT/path with --insecure
    #[arg(required = true, num_args = 2.., value_name = "PATH")]
    paths: Vec<OsString>,
    /// Data streams of each route
    #[arg(long, default_value_t = DEFAULT_STREAMS, value_name = "N")]
    streams: u32,
    /// Rate of all streams in sum, frame level, for example 800M
    #[arg(long, value_name = "RATE")]
    rate: Option<String>,
    /// Routes: addresses of the remote service, each with its own group of streams and, after @, its own rate
    #[arg(long, value_name = "ADDR[@RATE],...", value_delimiter = ',')]
    via: Vec<String>,
    /// Skip what the destination has already, by: size; time (size and time of change); digest
    #[arg(long, value_name = "HOW", num_args = 0..=1, require_equals = true, default_missing_value = "time")]
    sync: Option<Sync>,
    /// Say what would be sent; change nothing
    #[arg(long)]
    dry_run: bool,
    /// End-to-end check of every chunk against the destination file
    #[arg(long, value_enum, default_value = "blake3", value_name = "KIND")]
    digest: Digest,
    /// Congestion control of the sending sockets, for example cubic
    #[arg(long, value_name = "NAME")]
    congestion: Option<String>,
    /// Ask the service NAME of this site for rate leases
    #[arg(long, value_name = "NAME")]
    plan: Option<String>,
    /// DST is the new name of the one source, also if a folder of that name exists
    #[arg(long, short = 'T')]
    no_target_directory: bool,
    #[command(flatten)]
    rail: RailFlag,
    /// One JSON object on standard output at the end, progress as JSON lines on standard error
    #[arg(long)]
    json: bool,
    /// No progress
    #[arg(long, short)]
    quiet: bool,
    /// Allow http://HOST:PORT/path: clear text, no token
    #[arg(long)]
    insecure: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Sync {
    Size,
    Time,
    Digest,
}

#[derive(Clone, Copy, ValueEnum)]
enum Digest {
    Blake3,
    None,
}

/// Runs the verb.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    let json = args.json;
    let rail = args.rail.clone();
    // Bound before the first thread starts, so that all of them are.
    let result = plan(args).and_then(|plan| rail.bind(None).and_then(|()| copy::run(plan)));
    match result {
        Err(failure) if json => {
            crate::output::line(&serde_json::json!({"ok": false, "error": failure.to_string()}).to_string())?;
            Err(failure)
        }
        other => other,
    }
}

/// Checks everything that can be checked before anything starts.
fn plan(args: Args) -> Result<Plan, Failure> {
    let mut places = Vec::new();
    for path in &args.paths {
        places.push(place::parse(path, args.insecure)?);
    }
    let (Some(destination), Some(last)) = (places.pop(), args.paths.last()) else {
        return Err(Failure::usage("cp needs SRC... DST"));
    };
    let is_folder = match &destination {
        Place::Local(_) => names_folder(last),
        Place::Remote { path, .. } => path.has_trailing_slash() || path.as_bytes() == b"/",
    };
    let placement = match (args.no_target_directory, is_folder || places.len() > 1) {
        (true, _) if places.len() > 1 => {
            return Err(Failure::usage("-T (--no-target-directory) takes one source"));
        }
        (true, _) => Placement::Exact,
        (false, true) => Placement::Into,
        (false, false) => Placement::Auto,
    };
    let routes = routes(&args)?;
    if places.iter().any(|p| matches!(p, Place::Local(_))) {
        kuroshio_service::check_congestion(args.congestion.as_deref())?;
    }
    if !args.via.is_empty()
        && places
            .iter()
            .chain([&destination])
            .all(|p| matches!(p, Place::Local(_)))
    {
        return Err(Failure::usage(
            "--via names addresses of a remote side; both sides are local here",
        ));
    }
    let options = Options {
        digest: match args.digest {
            Digest::Blake3 => DigestMode::Blake3,
            Digest::None => DigestMode::None,
        },
        sync: match args.sync {
            None => SyncMode::Off,
            Some(Sync::Size) => SyncMode::Size,
            Some(Sync::Time) => SyncMode::Time,
            Some(Sync::Digest) => SyncMode::Digest,
        },
        placement,
        dry_run: args.dry_run,
        ..Options::default()
    };
    let plan_service = args
        .plan
        .as_deref()
        .map(|name| place::service(name, args.insecure))
        .transpose()?;
    Ok(Plan {
        sources: places,
        destination,
        options,
        routes,
        congestion: args.congestion,
        plan_service,
        json: args.json,
        quiet: args.quiet,
    })
}

fn parse_rate(flag: &str, text: &str) -> Result<BitRate, Failure> {
    text.parse().map_err(|e| Failure::usage(format!("{flag}: {e}")))
}

/// The groups of streams. `--rate` is shared equally among routes that name no rate of their own.
fn routes(args: &Args) -> Result<Vec<Route>, Failure> {
    if args.streams == 0 {
        return Err(Failure::usage("--streams 0: at least 1 is valid"));
    }
    let mut routes = Vec::new();
    for via in &args.via {
        let (address, rate) = match via.rsplit_once('@') {
            None => (via.as_str(), None),
            Some((address, rate)) => (address, Some(parse_rate(&format!("--via {via}"), rate)?)),
        };
        if address.is_empty() {
            return Err(Failure::usage(format!(
                "--via `{via}`: the form is ADDR[@RATE],ADDR[@RATE],..."
            )));
        }
        routes.push(Route {
            via: Some(address.to_owned()),
            streams: args.streams,
            rate,
        });
    }
    if routes.is_empty() {
        routes.push(Route {
            via: None,
            streams: args.streams,
            rate: None,
        });
    }
    if routes.len() > MAX_ROUTES || args.streams.saturating_mul(routes.len() as u32) > MAX_STREAMS {
        return Err(Failure::usage(format!(
            "{} routes of {} streams: at most {MAX_ROUTES} routes and {MAX_STREAMS} streams in all are valid",
            routes.len(),
            args.streams
        )));
    }
    if let Some(text) = &args.rate {
        share_rate(parse_rate("--rate", text)?, text, &mut routes)?;
    }
    for route in &routes {
        check_rate(route)?;
    }
    Ok(routes)
}

fn share_rate(rate: BitRate, text: &str, routes: &mut [Route]) -> Result<(), Failure> {
    let named = routes
        .iter()
        .filter_map(|r| r.rate)
        .fold(0u64, |sum, r| sum.saturating_add(r.bps()));
    let unnamed = routes.iter().filter(|r| r.rate.is_none()).count() as u64;
    if unnamed == 0 {
        if named > rate.bps() {
            return Err(Failure::usage(format!(
                "--rate {text}: the rates in --via are more than that in sum"
            )));
        }
        return Ok(());
    }
    let each = rate
        .bps()
        .checked_sub(named)
        .and_then(|left| left.checked_div(unnamed))
        .and_then(BitRate::new);
    let Some(each) = each else {
        return Err(Failure::usage(format!(
            "--rate {text}: the rates in --via leave nothing for the other routes"
        )));
    };
    for route in routes.iter_mut().filter(|r| r.rate.is_none()) {
        route.rate = Some(each);
    }
    Ok(())
}

/// A stream that sends less than one frame per second is refused.
fn check_rate(route: &Route) -> Result<(), Failure> {
    let Some(rate) = route.rate else { return Ok(()) };
    let least = FRAME.get() * 8 * u64::from(route.streams);
    if rate.bps() >= least {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "a rate of {rate} for {} streams is less than one frame of {} bytes per second on each: at least {least}bps \
         is valid, or fewer --streams",
        route.streams,
        FRAME.get()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(rate: Option<u64>) -> Route {
        Route {
            via: None,
            streams: 2,
            rate: rate.and_then(BitRate::new),
        }
    }

    #[test]
    fn a_rate_is_shared_by_the_routes_without_one() {
        let mut routes = [route(Some(100_000_000)), route(None), route(None)];
        share_rate(BitRate::from_mbps(500), "500M", &mut routes).expect("enough");
        let rates = routes
            .iter()
            .filter_map(|r| r.rate)
            .map(BitRate::bps)
            .collect::<Vec<_>>();
        assert_eq!(rates, [100_000_000, 200_000_000, 200_000_000]);
        assert!(
            share_rate(
                BitRate::from_mbps(100),
                "100M",
                &mut [route(Some(100_000_000)), route(None)]
            )
            .is_err()
        );
        assert!(share_rate(BitRate::from_mbps(99), "99M", &mut [route(Some(100_000_000))]).is_err());
    }

    #[test]
    fn less_than_a_frame_per_second_is_refused() {
        assert!(check_rate(&route(Some(2 * 1518 * 8))).is_ok());
        assert!(check_rate(&route(Some(2 * 1518 * 8 - 1))).is_err());
    }
}
