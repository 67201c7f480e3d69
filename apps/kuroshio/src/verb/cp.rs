//! `kuroshio cp`.

use std::process::ExitCode;

use crate::error::Failure;

/// Arguments of `kuroshio cp`.
#[derive(clap::Args)]
pub struct Args {}

/// Runs the verb.
pub fn run(_args: Args) -> Result<ExitCode, Failure> {
    Err(Failure::failed("cp: not built yet"))
}
