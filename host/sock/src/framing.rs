//! From the frame level of a plan to the payload level of the kernel's pacing, exactly.

use kuroshio_core::units::BitRate;
use std::num::NonZeroU32;

/// TCP header without options, bytes (RFC 9293).
const TCP_HEADER: u64 = 20;
/// The timestamp option with its padding, bytes (RFC 7323, appendix A).
const TIMESTAMPS: u64 = 12;
/// IPv4 header without options, bytes.
const IPV4_HEADER: u64 = 20;
/// IPv6 header without extensions, bytes.
const IPV6_HEADER: u64 = 40;
/// UDP header, bytes (RFC 768).
const UDP_HEADER: u64 = 8;
/// Shortest Ethernet frame, MAC header to FCS, bytes (IEEE 802.3).
const MIN_FRAME: u64 = 64;
/// Ethernet MAC header and frame check sequence, bytes.
const MAC_AND_FCS: u64 = 14 + 4;

/// Payload and frame bytes of one full segment of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Framing {
    /// TCP payload bytes of a full segment.
    pub payload: NonZeroU32,
    /// Bytes of the frame that carries it, MAC header to FCS.
    pub frame: NonZeroU32,
}

impl Framing {
    /// Framing of a connection with segments of `mss` payload bytes (timestamps already taken off, as
    /// `tcpi_snd_mss` counts), with or without the timestamp option, over IPv4 or IPv6.
    ///
    /// `None` when `mss` is 0 or so large that no frame could carry it (above 2^24 bytes).
    pub fn new(mss: u32, timestamps: bool, ipv6: bool) -> Option<Self> {
        if mss > 1 << 24 {
            return None;
        }
        let options = if timestamps { TIMESTAMPS } else { 0 };
        let ip = if ipv6 { IPV6_HEADER } else { IPV4_HEADER };
        let frame = u64::from(mss) + options + TCP_HEADER + ip + MAC_AND_FCS;
        Some(Self {
            payload: NonZeroU32::new(mss)?,
            frame: NonZeroU32::new(u32::try_from(frame).ok()?)?,
        })
    }

    /// Framing of UDP datagrams of `payload` bytes, one frame each, over IPv4 or IPv6.
    ///
    /// `None` when `payload` is 0 or beyond what a datagram can carry (2^16 bytes).
    pub fn of_datagram(payload: u32, ipv6: bool) -> Option<Self> {
        if payload > 1 << 16 {
            return None;
        }
        let ip = if ipv6 { IPV6_HEADER } else { IPV4_HEADER };
        let frame = (u64::from(payload) + UDP_HEADER + ip + MAC_AND_FCS).max(MIN_FRAME);
        Some(Self {
            payload: NonZeroU32::new(payload)?,
            frame: NonZeroU32::new(u32::try_from(frame).ok()?)?,
        })
    }

    /// The frame-level rate that carries a rate of payload in full segments, rounded to nearest; at least
    /// 1 bit/s.
    pub fn frame_level(&self, goodput: BitRate) -> BitRate {
        let num = u128::from(goodput.bps()) * u128::from(self.frame.get());
        let den = u128::from(self.payload.get());
        u64::try_from((num + den / 2) / den)
            .ok()
            .map_or(BitRate::MAX, |bps| BitRate::new(bps).unwrap_or(BitRate::MIN))
    }

    /// TCP payload bytes per second of a frame-level rate: `rate / 8 * payload / frame`, rounded to
    /// nearest, at least 1 (0 would mean "no limit" to nobody, and a stopped socket to the kernel).
    pub fn payload_bytes_per_s(&self, frame_level: BitRate) -> u64 {
        let num = u128::from(frame_level.bps()) * u128::from(self.payload.get());
        let den = 8 * u128::from(self.frame.get());
        u64::try_from((num + den / 2) / den)
            .unwrap_or(u64::MAX - 1)
            .max(1)
    }

    /// Frame-level bytes that carry `payload` bytes of TCP payload in full segments, rounded up.
    pub fn frame_bytes(&self, payload: u64) -> u64 {
        let num = u128::from(payload) * u128::from(self.frame.get());
        u64::try_from(num.div_ceil(u128::from(self.payload.get()))).unwrap_or(u64::MAX)
    }
}

/// What a socket was told about its pace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pacing {
    /// Payload bytes per second given to `SO_MAX_PACING_RATE`; `u64::MAX` is no limit.
    pub payload_bytes_per_s: u64,
    /// Segment size used for the conversion; `None` when there is no limit.
    pub framing: Option<Framing>,
}
