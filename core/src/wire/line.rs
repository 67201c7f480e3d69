//! Sizes and rates of an Ethernet wire.

use crate::units::{BitRate, FrameBytes, PS_BITS_PER_BYTE, PicoDuration, UnitError, WireBytes};
use core::{fmt, str::FromStr};

/// Bytes of preamble and start delimiter before a frame.
pub const PREAMBLE: u64 = 8;
/// Bytes of the frame check sequence, the last of a frame.
pub const FCS: u64 = 4;
/// Smallest gap after a frame, in bytes.
pub const IFG_MIN: u64 = 12;
/// Smallest frame, MAC header to FCS, in bytes.
pub const FRAME_MIN: u64 = 64;
/// Bytes of destination, source and type before the payload, without VLAN tags.
pub const ETHERNET_HEADER: u64 = 14;
/// What a frame occupies of a wire beyond itself, in bytes.
pub const L1_OVERHEAD: u64 = PREAMBLE + IFG_MIN;

/// The frame as a wire carries it: padded to [`FRAME_MIN`].
#[inline]
pub fn pad(frame: FrameBytes) -> FrameBytes {
    frame.max(FrameBytes::new(FRAME_MIN))
}

/// The frame that a captured or TAP packet of `len` bytes is on a wire: with FCS, padded.
///
/// Capture (AF_PACKET, pcap) and TAP devices show a frame without its FCS.
#[inline]
pub fn frame_of_capture(len: usize) -> FrameBytes {
    pad(FrameBytes::new(len as u64) + FrameBytes::new(FCS))
}

/// What a frame occupies of a wire at least: preamble, frame of 64 or more, gap of 12.
#[inline]
pub fn l1_bytes(frame: FrameBytes) -> WireBytes {
    WireBytes::new(pad(frame).get()) + WireBytes::new(L1_OVERHEAD)
}

/// What a wire's "1 Gbps" means: every byte of it, also preamble and gap (L1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LineRate(BitRate);

impl LineRate {
    /// Gigabit Ethernet, 8000 ps per byte.
    pub const GIGABIT: LineRate = LineRate(BitRate::from_mbps(1_000));
    /// 10 Gigabit Ethernet, 800 ps per byte.
    pub const TEN_GIGABIT: LineRate = LineRate(BitRate::from_mbps(10_000));

    /// A wire that carries `rate` at L1.
    pub const fn new(rate: BitRate) -> Self {
        LineRate(rate)
    }

    /// Its bits per second at L1.
    pub const fn bit_rate(self) -> BitRate {
        self.0
    }

    /// Picoseconds per byte, where that is a whole number, as it is for every Ethernet.
    pub const fn ps_per_byte(self) -> Option<u64> {
        let rate = self.0.bps();
        if PS_BITS_PER_BYTE.is_multiple_of(rate) {
            Some(PS_BITS_PER_BYTE / rate)
        } else {
            None
        }
    }

    /// The time of some bytes of the wire, rounded up to a whole ps.
    #[inline]
    pub fn time_of(self, bytes: WireBytes) -> PicoDuration {
        match bytes.get().checked_mul(PS_BITS_PER_BYTE) {
            Some(bits) => PicoDuration::from_ps(bits.div_ceil(self.0.bps())),
            None => self.0.time_for(bytes.get()),
        }
    }
}

impl From<BitRate> for LineRate {
    fn from(rate: BitRate) -> Self {
        LineRate(rate)
    }
}

impl FromStr for LineRate {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        text.parse().map(LineRate)
    }
}

impl fmt::Display for LineRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
