//! What went by: bytes per window per stream, and the spread of gaps and delays.
//!
//! [`Windows`] adds up bytes in windows of one width from an origin; [`worst_window`] slides instead and
//! finds the most bytes in any window of that width; [`Histogram`] keeps percentiles in fixed memory;
//! [`variation_ppm`] is the spread of windows around their mean.
//!
//! A [`StageMeter`] follows one stage of an emulated network for as long as it runs, in bounded memory: of the streams
//! ([`StreamKey`]) that a [`Filter`] takes it keeps [`RollingWindows`] of several widths and a [`Spread`].

mod filter;
mod histogram;
mod key;
mod series;
mod spread;
mod stage_meter;
mod windows;

pub use filter::{FILTER_BYTES_MAX, FILTER_DEPTH_MAX, FILTER_STEPS_MAX, Filter, FilterError};
pub use histogram::{Histogram, Summary};
pub use key::StreamKey;
pub use series::{Cause, Event, RollingWindows, Sum, What};
pub use spread::Spread;
pub use stage_meter::{
    METER_KEEP_MAX, METER_STREAMS_MAX, METER_WIDTH_MAX, METER_WIDTH_MIN, METER_WIDTHS_MAX, MeterConfig,
    MeterSeries, STREAM_NUMBERS_MAX, StageMeter,
};
pub use windows::{MeterError, STREAMS_MAX, StreamId, WINDOWS_MAX, Windows, variation_ppm, worst_window};

#[cfg(test)]
mod stage_tests;
#[cfg(test)]
mod tests;
