//! Test traffic: when each frame leaves, what it carries, and what its receiver learns from it.
//!
//! ```text
//!   Pattern -> Schedule: (time, stream, size) ... -> [Stamp] -> network -> [Stamp] -> Tally: loss, order, delay
//! ```
//!
//! A [`Schedule`] is exact: departures are whole picoseconds of a sum that is rounded once. Sizes are frames,
//! MAC header to FCS. Rates are at frame level and of all streams in sum.
//!
//! [`Throughput`] is the search of RFC 2544 over whole runs. The search for the usable capacity, which looks
//! into each train of frames, is [`crate::capacity`].

mod exponential;
mod list;
mod schedule;
mod stamp;
mod tally;
mod throughput;
mod window;

pub use list::{Entry, ListError, ListProblem, MAX_ENTRIES, parse_list};
pub use schedule::{
    Departure, IMIX, MAX_FRAME, MAX_STREAMS, MIN_FRAME, Pattern, PatternError, Schedule, Sizes, Timing,
};
pub use stamp::{STAMP_BYTES, Stamp};
pub use tally::{StreamReport, StreamTally, THRESHOLDS};
pub use throughput::{Throughput, ThroughputResult};
pub use window::{EXTENT_WINDOW, SEQUENCE_WINDOW};

#[cfg(test)]
mod tests;
