use super::{GAP_FRAME_LIMIT_MIN, PACER_RATE_MAX, PACER_RATE_MIN};
use crate::units::{BitRate, FrameBytes};
use core::fmt;

/// Why something cannot be paced so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PaceError {
    /// Outside the byte clock's range.
    RateOutOfRange(BitRate),
    /// Gap frames may not be limited to so few bytes.
    GapFrameLimit(FrameBytes),
    /// A gap beyond u64 bytes.
    GapTooLarge,
    /// A wire whose time per byte is no whole number of ps.
    NoWholePicoseconds(BitRate),
}

impl fmt::Display for PaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PaceError::RateOutOfRange(rate) => {
                write!(
                    f,
                    "rate {rate} cannot be paced: valid are {PACER_RATE_MIN} to {PACER_RATE_MAX}"
                )
            }
            PaceError::GapFrameLimit(limit) => {
                write!(
                    f,
                    "gap frames of at most {limit} are too small: the limit is at least {GAP_FRAME_LIMIT_MIN}"
                )
            }
            PaceError::NoWholePicoseconds(rate) => {
                write!(
                    f,
                    "a wire of {rate} has no whole number of ps per byte: 1, 10 and 100 Gbps have"
                )
            }
            PaceError::GapTooLarge => {
                f.write_str("the gap is above 2^64 bytes: the target rate is too far below the wire's")
            }
        }
    }
}

impl core::error::Error for PaceError {}
