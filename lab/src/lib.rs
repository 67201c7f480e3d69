//! The papers' experiments as data, their runner and their reports.
//!
//! The way of a run: [`experiment`] (a TOML file: topology, workload, the paper's figure, the checks)
//! -> [`live`] (namespaces, TCP, the emulator; frames captured at the far port), [`sim`] (virtual
//! time) or [`vm`] (another kernel in virtual time) -> [`trace`] (windows) -> [`check`] -> [`result`] (`run.json`, `trace.csv`) and [`page`] (`report.html`, PNG).
//! [`variant`] runs the same otherwise, [`compare`] sets figures beside the paper's, [`overview`] makes one page of many runs.
//! [`lane`] and [`rails`] are experiments that are code.
//! [`report`] stands on its own and is used by every verb that shows figures.

mod calibrate;
pub mod check;
mod check_tcp;
pub mod compare;
pub mod cpu;
pub mod experiment;
pub mod flow;
pub mod lane;
pub mod live;
pub mod measure;
pub mod overview;
pub mod page;
pub mod rails;
pub mod report;
pub mod result;
pub mod set;
pub mod sim;
mod sockopt;
pub mod sweep;
pub mod trace;
pub mod variant;
pub mod vm;

#[cfg(test)]
mod tests;
