//! When the next frame may start.
//!
//! A pacer is asked for each frame in turn, `depart(now, len)`, and answers with the frame's [`Slot`]. It
//! holds no frames and no timer. Idle time earns no credit: after a pause the next frame starts at once
//! and the spacing begins anew.
//!
//! Bound, for every pacer held to a frame-level rate m and every half-open window of T ps:
//!
//! ```text
//!     bytes of the frames that start in it  <=  m * T / 8 + the last of these frames
//! ```

mod byte_clock;
mod error;
mod gap;
mod ifg;
mod window;

pub use byte_clock::{ByteClockPacer, PACER_RATE_MAX, PACER_RATE_MIN};
pub use error::PaceError;
pub use gap::{
    GAP_FRAME_LIMIT_MIN, GapFiller, GapPackets, gap_packets, gap_packets_in, gap_packets_on_wire,
    gap_rate_max,
};
pub use ifg::{IfgShaper, Spacing, ifg_bytes};
pub use window::{LOOK_MAX, LOOK_MIN, look_again_after, window_rate};

use crate::units::PicoTime;

/// A frame's place on a medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// When its first bit leaves, on a wire that of the preamble.
    pub start: PicoTime,
    /// When the last bit of its FCS has left.
    pub end: PicoTime,
}

#[cfg(test)]
mod tests;
