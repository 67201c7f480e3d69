//! A live emulated network from a topology file.
//!
//! ```text
//!  namespace "tokyo"                emulator thread                       namespace "sandiego"
//!  TCP -> TAP la1 --read--> wire -> [shaper] -> link(s) -> wire --write--> TAP la1 -> TCP
//!         \___ AF_PACKET capture (kernel stamps)       AF_PACKET capture (kernel stamps) ___/
//! ```
//!
//! [`isolate::run`] makes the private world in which the testbed lives, [`Topology`] says what
//! the network is, [`Testbed::up`] brings it up. Departure times are those of `kuroshio_core::wan`
//! to the picosecond; how late frames were really written is measured and reported
//! ([`EmulatorReport`]), and whether the machine was disturbed is decided apart from it.

mod captures;
pub mod control;
mod counters;
mod emulator;
mod files;
mod host;
pub mod isolate;
pub mod meter;
mod net;
mod netlink;
mod path;
mod raw;
mod raw_link;
mod raw_shape;
mod sys;
mod sysctl;
mod testbed;
mod topology;

pub use captures::{CaptureSet, Captured, Record};
pub use counters::{Counters, LinkCounters, PortCounters, ShaperCounters, TapCounters};
pub use emulator::{Damage, Fate, Lateness, MAX_LEARNED, MAX_POOL_BYTES, Point, Trace, TraceRecord};
pub use files::MAX_FILE;
pub use host::CardCounters;
pub use kuroshio_core::wire::FlowKey;
pub use kuroshio_port::{Direction, segment};
pub use net::Net;
pub use testbed::{Change, EmulatorReport, MAX_TRACE_RECORDS, Testbed, TestbedError};
pub use topology::{
    Attached, Host, Link, MAX_ADDRESSES, MAX_CARRIES, MAX_DELAY, MAX_HOSTS, MAX_LINKS, MAX_MTU, MAX_NAME,
    MAX_PORTS, MAX_QUEUE, MAX_RATE_BPS, MAX_ROUTERS, MAX_SYSCTLS, MAX_TAPS, MAX_TEXT, MAX_THREADS, MIN_MTU,
    MIN_MTU_V6, Mode, Port, PortShaper, QUANTUM, Topology, TopologyError,
};
