//! Tests that cross crates: floors, the state of the house, smoke runs of the fuzz targets.
//!
//! The checks are functions from data to a list of findings, so that each can be shown to find something;
//! the tests in `tests/` run them over this repository.

pub mod floors;
pub mod fuzz;
pub mod grid;
pub mod licence;
pub mod soak;
pub mod tidy;

use std::path::{Path, PathBuf};

/// The root of the repository.
#[must_use]
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}
