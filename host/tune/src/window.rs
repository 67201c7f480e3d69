//! The window that a path needs, and the socket buffer that lets a kernel offer it.
//!
//! ```text
//! window = rate * RTT                    bandwidth-delay product
//! buffer = 3 * window                    Linux advertises (buffer - used) / 2 (paper 004, section 3.3)
//! ```

use kuroshio_core::units::{BitRate, PS_BITS_PER_BYTE, PicoDuration};

/// Socket buffer over window (paper 004, figure 6).
pub const BUFFER_FACTOR: u64 = 3;
/// Largest window that TCP can advertise, bytes: 65,535 scaled by 2^14 (RFC 7323, section 2.3), rounded down
/// to a whole KiB.
pub const MAX_WINDOW_BYTES: u64 = 65_535 << 14;
/// Largest socket buffer of Linux, bytes: an `int`.
pub const MAX_BUFFER_BYTES: u64 = i32::MAX as u64;

/// Bytes in flight that fill a path of `rate` and `rtt`, rounded up.
pub fn bdp_bytes(rate: BitRate, rtt: PicoDuration) -> u64 {
    let bits_ps = u128::from(rate.bps()) * u128::from(rtt.as_ps());
    u64::try_from(bits_ps.div_ceil(u128::from(PS_BITS_PER_BYTE))).unwrap_or(u64::MAX)
}

/// The socket buffer for a window: three times; saturates.
pub fn buffer_bytes(window: u64) -> u64 {
    window.saturating_mul(BUFFER_FACTOR)
}

/// The least number of streams whose windows and buffers together carry `window` bytes.
pub fn least_streams(window: u64) -> u64 {
    let one = MAX_WINDOW_BYTES.min(MAX_BUFFER_BYTES / BUFFER_FACTOR);
    window.div_ceil(one).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_paper_s_window_and_buffer() {
        let window = bdp_bytes(BitRate::from_mbps(7_000), PicoDuration::from_ms(400));
        assert_eq!(window, 350_000_000);
        assert_eq!(buffer_bytes(window), 1_050_000_000);
        assert_eq!(least_streams(window), 1);
    }

    #[test]
    fn parts_of_a_byte_round_up_and_ends_saturate() {
        let one = BitRate::MIN;
        assert_eq!(bdp_bytes(one, PicoDuration::from_ps(1)), 1);
        assert_eq!(bdp_bytes(one, PicoDuration::ZERO), 0);
        assert_eq!(bdp_bytes(BitRate::MAX, PicoDuration::MAX), u64::MAX);
        assert_eq!(buffer_bytes(u64::MAX), u64::MAX);
        assert_eq!(least_streams(0), 1);
        // 100 Gbps over 200 ms: 2.5 GB, three times that is more than three buffers can be.
        assert_eq!(least_streams(2_500_000_000), 4);
        assert_eq!(least_streams(715_827_882), 1);
        assert_eq!(least_streams(715_827_883), 2);
    }
}
