//! What went by: bytes per window per stream, and the spread of gaps and delays.
//!
//! [`Windows`] adds up bytes in windows of one width from an origin; [`worst_window`] slides instead and
//! finds the most bytes in any window of that width; [`Histogram`] keeps percentiles in fixed memory;
//! [`variation_ppm`] is the spread of windows around their mean.

mod histogram;
mod windows;

pub use histogram::{Histogram, Summary};
pub use windows::{MeterError, STREAMS_MAX, StreamId, WINDOWS_MAX, Windows, variation_ppm, worst_window};

#[cfg(test)]
mod tests;
