//! The `kuroshio` command: a thin `main`, one file per verb under `verb/`.
//!
//! A verb is an arguments struct and `run(args) -> Result<ExitCode, Failure>`. Adding one is an arm
//! in [`Verb`], an arm in [`run`] and a file. Exit codes: 0 done, 1 the work failed, 2 bad input
//! (also clap's own code for a bad command line); a verb may define more for itself.

mod copy;
mod error;
mod local;
mod output;
mod paced;
mod place;
mod progress;
mod rail;
mod signal;
mod verb;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::error::Failure;

/// Moves large data over long fat networks, steadily.
#[derive(Parser)]
#[command(
    name = "kuroshio",
    version,
    propagate_version = true,
    arg_required_else_help = true
)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

/// What the command can be asked to do.
#[derive(Subcommand)]
enum Verb {
    /// Offer a folder to other hosts: ranges for curl, framed streams for cp
    Serve(verb::serve::Args),
    /// Keep, list and remove the tickets of services
    Trust(verb::trust::Args),
    /// Copy files and trees between here and services, or between two services
    Cp(verb::cp::Args),
    /// Show or change the rate plan of a service
    Plan(verb::plan::Args),
    /// Measure memory to memory between two hosts, as iperf3 does and with it
    Probe(Box<verb::probe::Args>),
    /// Send and receive test traffic on a schedule; search throughput and usable capacity
    Gen(verb::r#gen::Args),
    /// The host's rails: cores, memory and card that are near each other; plan for a rate, run on one
    Rail(verb::rail::Args),
    /// Send and receive uncompressed video in several paced parts
    Netv(verb::netv::Args),
    /// Show or set what this host needs for a rate and a round-trip time
    Tune(verb::tune::Args),
    /// Put rates per destination or process in force on this host
    Pace(verb::pace::Args),
    /// Join several paths between two hosts to one steady tunnel
    Lane(verb::lane::Args),
    /// Start a whole grid file system on this machine
    Up(verb::up::UpArgs),
    /// End a grid that `up` started; the data stays
    Down(verb::up::DownArgs),
    /// Files, replicas, nodes and jobs of a grid
    Fs(verb::fs::Args),
    /// Mount a grid as a file system
    Mount(verb::mount::Args),
    /// Unmount a grid
    Umount(verb::mount::UmountArgs),
    /// Make the metadata service of a grid: configuration, key, administrator's ticket
    Init(verb::metad::InitArgs),
    /// Make this host a node of a grid
    Join(verb::stored::JoinArgs),
    /// Run the metadata service of a grid
    Metad(verb::metad::Args),
    /// Run a node of a grid
    Stored(verb::stored::Args),
    /// Offer a grid by HTTP and WebDAV: curl, rclone, davix, file managers, Python
    Gateway(verb::gateway::Args),
    /// Run the papers' experiments
    Lab(verb::lab::Args),
    /// Keep an emulated network up, change it and look at it
    Testbed(verb::testbed::Args),
    /// Move real files across an emulated Pacific
    Demo(verb::demo::Args),
}

fn run(verb: Verb) -> Result<ExitCode, Failure> {
    match verb {
        Verb::Serve(args) => verb::serve::run(args),
        Verb::Trust(args) => verb::trust::run(args),
        Verb::Cp(args) => verb::cp::run(args),
        Verb::Plan(args) => verb::plan::run(args),
        Verb::Probe(args) => verb::probe::run(*args),
        Verb::Gen(args) => verb::r#gen::run(args),
        Verb::Rail(args) => verb::rail::run(args),
        Verb::Netv(args) => verb::netv::run(args),
        Verb::Tune(args) => verb::tune::run(args),
        Verb::Pace(args) => verb::pace::run(args),
        Verb::Lane(args) => verb::lane::run(args),
        Verb::Up(args) => verb::up::up(args),
        Verb::Down(args) => verb::up::down(args),
        Verb::Fs(args) => verb::fs::run(args),
        Verb::Mount(args) => verb::mount::run(args),
        Verb::Umount(args) => verb::mount::umount(args),
        Verb::Init(args) => verb::metad::init(args),
        Verb::Join(args) => verb::stored::join(args),
        Verb::Metad(args) => verb::metad::run(args),
        Verb::Stored(args) => verb::stored::run(args),
        Verb::Gateway(args) => verb::gateway::run(args),
        Verb::Lab(args) => verb::lab::run(args),
        Verb::Testbed(args) => verb::testbed::run(args),
        Verb::Demo(args) => verb::demo::run(args),
    }
}

fn main() -> ExitCode {
    match run(Cli::parse().verb) {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("kuroshio: {failure}");
            failure.exit_code()
        }
    }
}
