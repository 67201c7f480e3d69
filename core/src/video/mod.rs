//! Uncompressed video in RTP: RFC 4175, a picture in several parts, and their alignment at the far end.
//!
//! A picture is kept as the wire has it: rows of **pixel groups** ([`PixelFormat`]), the smallest whole number of
//! bytes that hold whole pixels. It is cut into horizontal parts ([`Geometry::part`]); every part is an RTP
//! stream of its own, with lines counted from its own top, so that any receiver of RFC 4175 can show a part:
//!
//! ```text
//!     picture -> parts -> Packetizer -> datagrams ... datagrams -> Assembler -> parts -> Joiner -> picture
//! ```
//!
//! The parts of one picture carry the same RTP time stamp (90 kHz). A [`Joiner`] shows a picture when all parts
//! are there, or after a bounded wait whatever there is: a picture whose parts are of different times is *torn*.

mod assemble;
mod format;
mod join;
mod packetize;
mod rtp;

pub use assemble::{Assembler, AssemblerCounts, MAX_PENDING, Part};
pub use format::{FormatError, Geometry, MAX_HEIGHT, MAX_PARTS, MAX_WIDTH, PixelFormat, Sampling};
pub use join::{JoinCounts, Joiner, MAX_WAITING, Shown};
pub use packetize::{Cursor, MAX_DATAGRAM, MIN_DATAGRAM, Packetizer};
pub use rtp::{Packet, PacketError, Segment};

/// RTP's clock for video, ticks per second (RFC 4175, 6.1).
pub const RTP_HZ: u64 = 90_000;

/// The RTP time stamp of picture `number` at `num / den` pictures per second; wraps after 13 hours.
pub fn rtp_timestamp(number: u64, num: u32, den: u32) -> u32 {
    let ticks = u128::from(number) * u128::from(den) * u128::from(RTP_HZ) / u128::from(num.max(1));
    // The stamp is the low 32 bits by definition.
    (ticks & 0xffff_ffff) as u32
}

#[cfg(test)]
mod tests;
