//! `kuroshio demo`.

use std::process::ExitCode;

use crate::error::Failure;

/// Arguments of `kuroshio demo`.
#[derive(clap::Args)]
pub struct Args {}

/// Runs the verb.
pub fn run(_args: Args) -> Result<ExitCode, Failure> {
    Err(Failure::failed("demo: not built yet"))
}
