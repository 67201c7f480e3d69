//! Rails: cores, memory and card of a host that are near each other (paper 002).
//!
//! ```text
//!     hwloc, /sys, /proc -> Machine -> rails -> plan for a rate -> bind threads, memory, interrupts
//! ```
//!
//! Everything has an absolute identity: a processing unit and a memory node by the system's number, a card by its
//! PCI address, an interface by its name and MAC address. Numbers of rails are only a shorthand on one host.

mod bind;
mod conditions;
mod discover;
mod error;
mod irq;
mod machine;
mod plan;
mod rails;
mod solve;
mod source;
mod svg;
mod sys;
mod sysfs;

pub use bind::{Binding, bind, find, interface_of, memory_nodes};
pub use conditions::{Place, Row, rows};
pub use discover::discover;
pub use error::RailError;
pub use irq::{Steering, undo};
pub use machine::{Cache, Card, Core, Interface, Interrupt, MAX_CARDS, MAX_PUS, Machine, Node};
pub use plan::{Condition, Placement, Plan, PlanRequest, RailPlan, condition, plan};
pub use rails::{Rail, rails};
pub use solve::{Method, Solution, solve};
pub use source::{MAX_SYNTHETIC_BYTES, MAX_XML_BYTES, Source};
pub use svg::svg;
pub use sysfs::Roots;
