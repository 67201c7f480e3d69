//! `kuroshio serve`.

use std::process::ExitCode;

use crate::error::Failure;

/// Arguments of `kuroshio serve`.
#[derive(clap::Args)]
pub struct Args {}

/// Runs the verb.
pub fn run(_args: Args) -> Result<ExitCode, Failure> {
    Err(Failure::failed("serve: not built yet"))
}
