//! Test traffic between two hosts, and what is searched for with it.
//!
//! ```text
//!   sender                                                        receiver
//!   Schedule -> sleep, spin -> stamp -> UDP socket or raw frames -> kernel's stamp -> Tally, digest
//!      \________ control: JSON lines over TCP, one question, one answer ___________________/
//! ```
//!
//! One session is one control connection; in it runs follow each other, each with a number that its frames
//! carry. The receiver answers a run with the figures of each stream, or with the digest of a train.
//!
//! Two stamps make a delay: the sender's `CLOCK_TAI` right before the system call, and the receiving kernel's,
//! from when the frame entered it. The delay means something only with a common clock: on one machine, or
//! between two whose clocks are disciplined. [`Clock`] says which, and every report repeats it.

mod clock;
mod control;
mod error;
mod frame;
mod receive;
mod replay;
mod search;
mod send;
mod server;
mod session;
mod sys;

pub use clock::{Clock, Common};
pub use control::{MAX_ANSWER_BYTES, MAX_REQUEST_BYTES, fuzz_lines};
pub use error::GenError;
pub use frame::{UDP4_OVERHEAD, UDP6_OVERHEAD, frame_overhead};
pub use receive::{RunReport, StreamFigures};
pub use replay::{MAX_RECORDING_BYTES, Recording};
pub use search::{CapacityReport, ThroughputReport, TrainLog, find_capacity, find_throughput};
pub use send::{FILL_AHEAD_NS, Port, Raw, SendReport, replay_raw};
pub use server::{GEN_PORT, MAX_SESSIONS, OnReport, Server, refuse, serve_control};
pub use session::{RunResult, Session};
