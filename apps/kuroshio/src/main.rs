//! The `kuroshio` command: one file per verb under `verb/`.
fn main() {}
