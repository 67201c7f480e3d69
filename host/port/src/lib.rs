//! Frames in and out of the machine: TAP devices, attached interfaces and packet capture.
//!
//! Lengths: a TAP device and a capture see a frame from its MAC header to the end of its payload.
//! The frame level counts the check sequence (4 bytes) and the padding to 64 bytes as well:
//! [`frame_level`] converts, in this one place.

mod capture;
mod interface;
pub mod segment;
mod sys;
mod tap;

pub use capture::{Capture, CaptureStats, CapturedFrame, Direction, SNAP_MAX, Seen, Stamped, look};
pub use interface::{Drops, Interface, joins_arrivals, set_joins_arrivals};
pub use tap::{MAX_NAME, Tap};

/// Bytes of the frame check sequence, which the kernel's devices do not carry.
const FCS: usize = 4;

/// The smallest frame on a wire, bytes, MAC header to check sequence (IEEE 802.3).
const FRAME_MIN: usize = 64;

/// Frame-level bytes (MAC header to check sequence, padded to 64) of a frame that has `tap_len`
/// bytes without its check sequence.
#[must_use]
pub fn frame_level(tap_len: usize) -> u64 {
    (tap_len + FCS).max(FRAME_MIN) as u64
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_check_sequence_and_the_padding_count() {
        assert_eq!(super::frame_level(1514), 1518);
        assert_eq!(super::frame_level(60), 64);
        assert_eq!(super::frame_level(42), 64);
        assert_eq!(super::frame_level(61), 65);
    }
}
