//! Instruments: meters at ports and links, TCP's own figures, captures, and the clocks that all of them share.
//!
//! ```text
//!  emulator's thread                        meters' thread
//!  engine -> observer (records of 64 B) ──> StageMeters (core) ──> control socket: meter-add, -rm, -ls, -read
//!
//!  in a host's namespace, a process of its own:   tcp_info (sock_diag)   capture (AF_PACKET) -> pcapng
//! ```
//!
//! All times are nanoseconds or picoseconds of the run, which is `CLOCK_MONOTONIC` less the run's begin; the head of
//! every output ([`ClockHead`]) puts `CLOCK_TAI` and the state of its synchronisation next to it.

mod answer;
mod clocks;
mod observer;
mod pcapng;
mod service;
mod spec;
mod tcp_info;

pub use clocks::{ClockHead, SyncState};
pub use pcapng::{CaptureOptions, CaptureReport, SNAPLEN_MAX, capture};
pub use spec::{Direction, MAX_METERS, MAX_SERIES, MAX_WINDOWS, MeterRequest, Place};
pub use tcp_info::{MAX_SOCKETS, Sampler, TcpSample};

pub(crate) use answer::{cost, histogram, meter as described, rows};
pub(crate) use observer::{LONGEST_SLEEP_NS, Observer, Tag};
pub(crate) use service::{Meters, Named, State};
pub(crate) use spec::check_all;
