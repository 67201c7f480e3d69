//! `kuroshio plan`.

use std::process::ExitCode;

use crate::error::Failure;

/// Arguments of `kuroshio plan`.
#[derive(clap::Args)]
pub struct Args {}

/// Runs the verb.
pub fn run(_args: Args) -> Result<ExitCode, Failure> {
    Err(Failure::failed("plan: not built yet"))
}
