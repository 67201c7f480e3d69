//! Memory to memory between two hosts: the job of iperf3 for long fat networks.
//!
//! Client and server speak the control protocol of iperf 3 ([`protocol`]), so either may be iperf3 itself. What
//! they add is told under the JSON member `kuroshio`, which iperf3 ignores.
//!
//! ```text
//! client, server --(params, results)--> control connection
//!      |
//!      v
//!     run: every 100 ms look (sample), renew the pace, add to the start-up curve
//!      |
//!      v
//!   stream: one thread each, TCP or UDP, blocks for 100 ms at most
//! ```
//!
//! Rates that are asked for are at frame level (Ethernet MAC header to FCS), of all streams of a direction in
//! sum. TCP is paced by the kernel through `kuroshio_sock::keep_pacing`, UDP by a timer per datagram.

pub mod advice;
mod client;
mod cpu;
mod error;
mod json;
mod params;
pub mod protocol;
mod report;
mod results;
mod run;
mod sample;
mod server;
pub mod startup;
mod stream;
mod text;
pub mod udp;

pub use client::{
    ClientConfig, DEFAULT_UDP_RATE, Event, Family, MAX_INTERVALS, UDP_BUFFER_BYTES, dial_capacity, run_client,
};
pub use cpu::MachinePercent;
pub use error::ProbeError;
pub use params::{
    DEFAULT_BLOCK_BYTES, DEFAULT_DATAGRAM_BYTES, Direction, Length, MAX_BLOCK_BYTES, MAX_DATAGRAM_BYTES,
    MAX_OMIT_S, MAX_STREAMS, MAX_TIME_S, MAX_WINDOW_BYTES, MIN_DATAGRAM_BYTES, MSS_BYTES, Pace, Params,
    Protocol,
};
pub use report::{Connection, Role, Sum, TestReport};
pub use results::{CpuPercent, Results, StreamResult};
pub use run::{Interval, MAX_STREAM_INTERVALS, RunReport, StreamTotal, TICK_NS};
pub use sample::{Extremes, StreamSpan};
pub use server::{GRACE, GREETING_LIMIT, Limits, MAX_GREETINGS, OnEvent, Server, ServerEvent};
pub use text::{header, interval_lines, summary_lines};

/// Port of a server that names none (as iperf3).
pub const IPERF_PORT: u16 = 5201;

/// The version of iperf whose protocol is spoken; its servers look at it.
pub(crate) const IPERF_VERSION: &str = "3.12";
