//! What a host needs to send and receive at a rate over a round-trip time, and setting it.
//!
//! ```text
//! Facts (sysctl, link) + Request -> need() -> Need: items with reason, current and wanted value, command
//!                                              |
//!                                              +-> apply(): undo file first, then the changes; undo()
//! ```
//!
//! [`window`] holds the arithmetic (three times the bandwidth-delay product, paper 004), [`sysctl`] the access to
//! kernel parameters, [`link`] that to an interface.

mod apply;
pub mod link;
mod need;
pub mod sysctl;
pub mod window;

pub use apply::{Outcome, TuneError, apply, undo};
pub use need::{Change, Facts, Item, JUMBO_MTU, Need, Parameter, Request, SYSCTLS, need};
