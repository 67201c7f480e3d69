//! The papers' experiments as data, their runner and their reports.
//!
//! The way of a run: [`experiment`] (a TOML file: topology, workload, the paper's figure, the checks)
//! -> [`live`] (namespaces, TCP, the emulator; frames captured at the far port) or [`sim`] (virtual
//! time) -> [`trace`] (windows) -> [`check`] -> [`result`] (`run.json`, `trace.csv`) and [`page`] (`report.html`, PNG).
//! [`report`] stands on its own and is used by every verb that shows figures.

mod calibrate;
pub mod check;
pub mod experiment;
pub mod flow;
pub mod live;
pub mod measure;
pub mod page;
pub mod report;
pub mod result;
pub mod set;
pub mod sim;
mod sockopt;
pub mod trace;

#[cfg(test)]
mod tests;
