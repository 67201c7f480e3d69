//! Quantities with their units in the type.
//!
//! | type | counts | range |
//! |---|---|---|
//! | [`BitRate`] | bits per second, SI prefixes | 1 to 2^64 - 1, never 0 |
//! | [`PicoTime`] | picoseconds since the start of a run | 0 to 213 days |
//! | [`PicoDuration`] | picoseconds | 0 to 213 days |
//! | [`FrameBytes`] | an Ethernet frame, MAC header to FCS | u64 |
//! | [`WireBytes`] | time on a wire: preamble, frame, gap | u64 |
//! | [`PayloadBytes`] | what an application moves | u64 |
//! | [`Ratio`] | a fraction in lowest terms | u64 / u64 |
//!
//! Text is read exactly, digit by digit, without floats: a number and a unit (`800Mbps`, `70.5ms`,
//! `512KiB`). A bare number is refused, as is one that is not a whole number of the smallest unit
//! (bit/s, ps, byte). Every `Display` prints what its `FromStr` reads back to the same value.
//!
//! Arithmetic operators saturate at the ends of the range; `checked_` methods tell. Neither panics.
//!
//! Size / rate = time is exact: [`TxClock`] carries the part of a picosecond that does not fit.

mod error;
mod parse;
mod rate;
mod ratio;
mod size;
mod time;
mod tx;

pub use error::{Problem, Quantity, UnitError};
pub use parse::MAX_TEXT_BYTES;
pub use rate::BitRate;
pub use ratio::Ratio;
pub use size::{FrameBytes, PayloadBytes, WireBytes, parse_bytes};
pub use time::{PicoDuration, PicoTime};
pub use tx::TxClock;

/// Picoseconds in a second.
pub const PS_PER_SEC: u64 = 1_000_000_000_000;

/// Bits times picoseconds in a byte-second: `bytes * PS_BITS_PER_BYTE / rate_bps` is a time in ps.
pub const PS_BITS_PER_BYTE: u64 = 8 * PS_PER_SEC;

#[cfg(test)]
mod tests;
