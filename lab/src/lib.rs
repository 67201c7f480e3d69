//! The papers' experiments as data, their runner and their reports.
//!
//! The way of a run: [`experiment`] (a TOML file: topology, workload, the paper's figure, the checks)
//! -> a live run -> captured frames -> windows -> checks -> `run.json`, `trace.csv`,
//! `report.html` and PNG plots. [`report`] stands on its own and is used by every verb that shows
//! figures.

pub mod report;
