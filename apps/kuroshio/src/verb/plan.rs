//! `kuroshio plan`: the rate plan that a site's service owns.

use std::process::ExitCode;

use clap::Subcommand;
use kuroshio_core::units::BitRate;
use kuroshio_service::api::PlanReport;

use crate::error::Failure;
use crate::{output, place};

const EXAMPLE: &str = "\
Example:
  kuroshio plan show tokyo
  kuroshio plan set tokyo la capacity=312Mbps     takes effect at once, until the service restarts";

/// Arguments of `kuroshio plan`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLE)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Show routes, capacities and what is granted (rates at frame level)
    #[command(after_help = EXAMPLE)]
    Show {
        /// Name of the site's service
        name: String,
        #[command(flatten)]
        how: How,
    },
    /// Change a route's capacity while it is used
    #[command(after_help = EXAMPLE)]
    Set {
        /// Name of the site's service
        name: String,
        /// Name of the route
        route: String,
        /// What to change: capacity=RATE, frame level, with its unit
        #[arg(value_name = "capacity=RATE")]
        change: String,
        #[command(flatten)]
        how: How,
    },
}

#[derive(clap::Args)]
struct How {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Allow NAME to be http://HOST:PORT, in clear text
    #[arg(long)]
    insecure: bool,
}

/// Runs the verb.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    let (report, json) = match args.action {
        Action::Show { name, how } => (
            kuroshio_service::plan_report(&place::service(&name, how.insecure)?)?,
            how.json,
        ),
        Action::Set {
            name,
            route,
            change,
            how,
        } => {
            let capacity = capacity(&change)?;
            let endpoint = place::service(&name, how.insecure)?;
            (
                kuroshio_service::plan_change(&endpoint, &route, capacity)?,
                how.json,
            )
        }
    };
    if json {
        let text = serde_json::to_string(&report).map_err(|e| Failure::failed(e.to_string()))?;
        output::line(&text)?;
    } else {
        show(&report)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn capacity(change: &str) -> Result<BitRate, Failure> {
    let Some(rate) = change.strip_prefix("capacity=") else {
        return Err(Failure::usage(format!(
            "`{change}`: the form is capacity=RATE, for example capacity=312Mbps"
        )));
    };
    rate.parse().map_err(|e| Failure::usage(format!("{change}: {e}")))
}

fn show(report: &PlanReport) -> Result<(), Failure> {
    let rate = |bps: u64| BitRate::from_bps(bps).map_or_else(|_| "0".to_owned(), |r| r.to_string());
    for route in &report.routes {
        output::line(&format!(
            "{}  capacity {}  usable {}  granted {} to {} streams  floor {}  to {}",
            route.name,
            rate(route.capacity_bps),
            rate(route.usable_bps),
            rate(route.granted_bps),
            route.streams,
            rate(route.floor_bps),
            route.to.join(" ")
        ))?;
    }
    Ok(())
}
