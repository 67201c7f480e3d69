//! One TCP segment at three levels, and rates from level to level.
//!
//! With time stamps a full segment of MTU m carries m - 52 bytes of payload on IPv4 (20 + 20 + 12 of
//! headers) and m - 72 on IPv6, in a frame of m + 18, which occupies m + 38 of the wire.

use super::{ETHERNET_HEADER, FCS, l1_bytes};
use crate::units::{BitRate, FrameBytes, PayloadBytes, Ratio, WireBytes};

/// Smallest MTU that [`tcp_levels`] takes: that of IPv4 (RFC 791), and 1280 for IPv6 (RFC 8200).
pub const MTU_MIN: u64 = 68;
/// Smallest MTU of IPv6.
pub const MTU_MIN_V6: u64 = 1_280;
/// Largest MTU: the length field of IP.
pub const MTU_MAX: u64 = 65_535;

/// Bytes of IPv4 and TCP headers with time stamps (RFC 7323).
const HEADERS_V4: u64 = 20 + 20 + 12;
/// Bytes of IPv6 and TCP headers with time stamps.
const HEADERS_V6: u64 = 40 + 20 + 12;

/// A full TCP segment at every level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpLevels {
    /// TCP payload (goodput).
    pub payload: PayloadBytes,
    /// MAC header to FCS.
    pub frame: FrameBytes,
    /// Preamble to the end of the smallest gap.
    pub l1: WireBytes,
}

/// A full segment with time stamps over IPv4; `None` for an MTU outside [`MTU_MIN`] to [`MTU_MAX`].
pub fn tcp_levels(mtu_bytes: u64) -> Option<TcpLevels> {
    (MTU_MIN..=MTU_MAX)
        .contains(&mtu_bytes)
        .then(|| levels(mtu_bytes, HEADERS_V4))
}

/// The same over IPv6; `None` for an MTU outside [`MTU_MIN_V6`] to [`MTU_MAX`].
pub fn tcp_levels_v6(mtu_bytes: u64) -> Option<TcpLevels> {
    (MTU_MIN_V6..=MTU_MAX)
        .contains(&mtu_bytes)
        .then(|| levels(mtu_bytes, HEADERS_V6))
}

fn levels(mtu_bytes: u64, headers: u64) -> TcpLevels {
    let frame = FrameBytes::new(mtu_bytes + ETHERNET_HEADER + FCS);
    TcpLevels {
        payload: PayloadBytes::new(mtu_bytes - headers),
        frame,
        l1: l1_bytes(frame),
    }
}

/// Rates from level to level, exact but for one rounding down to a whole bit/s, so that a limit that is
/// converted is never exceeded. `None` when that is zero or does not fit.
impl TcpLevels {
    /// The goodput of a frame-level rate.
    pub fn goodput_of_frame(&self, rate: BitRate) -> Option<BitRate> {
        scaled(rate, self.payload.get(), self.frame.get())
    }

    /// The frame-level rate of a goodput.
    pub fn frame_of_goodput(&self, goodput: BitRate) -> Option<BitRate> {
        scaled(goodput, self.frame.get(), self.payload.get())
    }

    /// The L1 rate of a frame-level rate.
    pub fn l1_of_frame(&self, rate: BitRate) -> Option<BitRate> {
        scaled(rate, self.l1.get(), self.frame.get())
    }

    /// The frame-level rate of an L1 rate: what a wire of that rate carries at most.
    pub fn frame_of_l1(&self, l1_rate: BitRate) -> Option<BitRate> {
        scaled(l1_rate, self.frame.get(), self.l1.get())
    }
}

fn scaled(rate: BitRate, num: u64, den: u64) -> Option<BitRate> {
    rate.checked_mul_ratio(Ratio::new(num, den).ok()?)
}
