//! Standard output that may be closed by its reader.

use std::io::Write;

use crate::error::Failure;

/// Writes one line to standard output at once.
pub fn line(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    let written = writeln!(out, "{text}").and_then(|()| out.flush());
    written.map_err(|e| Failure::failed(format!("standard output: {e}")))
}
