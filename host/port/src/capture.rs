//! Frames seen at an interface, stamped by the kernel.
//!
//! An `AF_PACKET` socket with a ring (version 2: a frame is visible at once). Only the first
//! bytes are kept, enough for the headers. Stamps are `CLOCK_REALTIME`, taken when the frame
//! enters or leaves the interface; they are converted with the distance of the two clocks
//! measured at every [`Capture::drain`]:
//!
//! ```text
//! monotonic_ns = stamp_ns - (realtime_ns - monotonic_ns at the drain)
//! ```
//!
//! The ring is polled by its owner's clock, not by wake-ups: a wake-up for each frame would cost
//! more than the frame.

use std::io;
use std::os::fd::OwnedFd;

use kuroshio_core::wire::{FlowKey, packet_of};
use rustix::time::{ClockId, clock_gettime};

use crate::{frame_level, sys};

/// Bytes of a ring slot: header, address and the first 190 bytes of the frame.
const SLOT_BYTES: usize = 256;

/// Bytes that a slot holds before the frame: the kernel's header, the address, and what aligns them.
const SLOT_HEAD: usize = 80;

/// Most bytes of a frame that a capture keeps: a slot of 16 KiB.
pub const SNAP_MAX: usize = (1 << 14) - SLOT_HEAD;

/// Memory of a ring with larger slots.
const RING_BYTES: usize = 16 << 20;

/// Slots of a ring: at 190,000 frames per second it holds a third of a second.
const SLOTS: usize = 1 << 16;

/// Which way a frame passed the interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Sent by the host.
    Out,
    /// Received by the host.
    In,
}

/// The headers of one frame, as far as they could be understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// The flow, `None` for what is not IP.
    pub flow: Option<FlowKey>,
    /// Bytes after the transport header.
    pub payload_len: u32,
}

/// One captured frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamped {
    /// `CLOCK_MONOTONIC` when it passed, ns.
    pub t_ns: u64,
    /// Frame-level bytes (with check sequence and padding); of a superframe, those of its segments together.
    pub frame_len: u32,
    /// Frames that it is on a wire: more than one for a superframe.
    pub segments: u32,
    /// Which way it passed.
    pub direction: Direction,
    /// Its headers.
    pub seen: Seen,
}

/// One captured frame with its first bytes.
#[derive(Debug, Clone, Copy)]
pub struct CapturedFrame<'a> {
    /// `CLOCK_MONOTONIC` when it passed, ns.
    pub t_ns: u64,
    /// The kernel's own stamp, `CLOCK_REALTIME`, ns.
    pub real_ns: u64,
    /// Bytes of the frame without its check sequence.
    pub len: usize,
    /// Payload of each segment of a superframe; 0 for a frame.
    pub mss: usize,
    /// Which way it passed.
    pub direction: Direction,
    /// Its first bytes, as many as were kept.
    pub bytes: &'a [u8],
}

/// What a capture itself lost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CaptureStats {
    /// Frames that passed the socket, lost ones included.
    pub frames: u64,
    /// Frames that found the ring full: they are in no record.
    pub dropped: u64,
}

/// A running capture of one interface.
pub struct Capture {
    ring: sys::Ring,
    fd: OwnedFd,
    stats: CaptureStats,
}

impl Capture {
    /// Starts capturing an interface of the calling thread's network namespace.
    ///
    /// # Errors
    /// `EPERM` without `CAP_NET_RAW`, `ENODEV` when there is no such interface, `ENOMEM` when
    /// there is no room for the ring (16 MiB).
    pub fn open_here(interface: &str) -> io::Result<Self> {
        Self::open_slots(interface, SLOTS, SLOT_BYTES)
    }

    /// The same, keeping `snap` bytes of each frame ([`SNAP_MAX`] at most) for [`Capture::drain_frames`].
    ///
    /// # Errors
    /// As [`Capture::open_here`].
    pub fn open_snap(interface: &str, snap: usize) -> io::Result<Self> {
        let slot = (snap.min(SNAP_MAX) + SLOT_HEAD)
            .next_power_of_two()
            .max(SLOT_BYTES);
        Self::open_slots(interface, RING_BYTES / slot, slot)
    }

    fn open_slots(interface: &str, slots: usize, slot_bytes: usize) -> io::Result<Self> {
        let fd = sys::packet_socket()?;
        let ring = sys::Ring::map(&fd, slots, slot_bytes)?;
        sys::packet_bind(&fd, sys::interface_index(interface)?)?;
        Ok(Self {
            ring,
            fd,
            stats: CaptureStats::default(),
        })
    }

    /// Hands every frame that is in the ring to `take`, oldest first, and returns how many there
    /// were. Call it at least every 100 ms, or the ring fills.
    pub fn drain(&mut self, mut take: impl FnMut(Stamped)) -> usize {
        self.drain_frames(|frame| {
            let seen = look(frame.bytes, frame.len);
            let (segments, frame_len) = on_the_wire(frame.len, seen.payload_len as usize, frame.mss);
            take(Stamped {
                t_ns: frame.t_ns,
                frame_len: u32::try_from(frame_len).unwrap_or(u32::MAX),
                segments: u32::try_from(segments).unwrap_or(u32::MAX),
                direction: frame.direction,
                seen,
            });
        })
    }

    /// The same with the bytes that were kept.
    pub fn drain_frames(&mut self, mut take: impl FnMut(CapturedFrame<'_>)) -> usize {
        let offset_ns = realtime_minus_monotonic_ns();
        let mut count = 0;
        while let Some(()) = self.ring.next(|slot| {
            let mss = crate::segment::Vnet::read(slot.vnet).map_or(0, |v| v.mss);
            take(CapturedFrame {
                t_ns: i128::from(slot.real_ns)
                    .saturating_sub(offset_ns)
                    .try_into()
                    .unwrap_or(0),
                real_ns: slot.real_ns,
                len: slot.len,
                mss: usize::from(mss),
                direction: if slot.outgoing {
                    Direction::Out
                } else {
                    Direction::In
                },
                bytes: slot.snap,
            });
        }) {
            count += 1;
            if count == SLOTS {
                break;
            }
        }
        count
    }

    /// What the capture has seen and lost so far.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn stats(&mut self) -> io::Result<CaptureStats> {
        let (frames, dropped) = sys::packet_statistics(&self.fd)?;
        self.stats.frames += frames;
        self.stats.dropped += dropped;
        Ok(self.stats)
    }
}

/// Frames, and their frame-level bytes, of what has `len` bytes with so much payload, in segments of `mss` if not 0.
fn on_the_wire(len: usize, payload: usize, mss: usize) -> (usize, u64) {
    if mss == 0 || payload <= mss {
        return (1, frame_level(len));
    }
    let header = len.saturating_sub(payload);
    let full = payload / mss;
    let rest = payload % mss;
    let bytes = full as u64 * frame_level(header + mss);
    match rest {
        0 => (full, bytes),
        rest => (full + 1, bytes + frame_level(header + rest)),
    }
}

/// The distance of the two clocks: the tightest of a few sandwiches.
fn realtime_minus_monotonic_ns() -> i128 {
    let ns = |id| {
        let t = clock_gettime(id);
        i128::from(t.tv_sec) * 1_000_000_000 + i128::from(t.tv_nsec)
    };
    (0..3)
        .map(|_| {
            let before = ns(ClockId::Monotonic);
            let real = ns(ClockId::Realtime);
            let after = ns(ClockId::Monotonic);
            (after - before, real - (before + after) / 2)
        })
        .min()
        .map_or(0, |(_, offset)| offset)
}

/// The headers of a frame of `len` bytes of which `bytes` are at hand.
#[must_use]
pub fn look(bytes: &[u8], len: usize) -> Seen {
    let packet = packet_of(bytes);
    let payload = match packet {
        Some(packet) => packet.payload.get(),
        None => len.saturating_sub(14) as u64,
    };
    Seen {
        flow: packet.map(|p| p.flow),
        payload_len: u32::try_from(payload).unwrap_or(u32::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp_frame(payload: usize) -> Vec<u8> {
        let mut f = vec![0u8; 14];
        f[12..14].copy_from_slice(&[0x08, 0x00]);
        let total = u16::try_from(20 + 32 + payload).expect("small");
        let mut ip = vec![0x45, 0];
        ip.extend(total.to_be_bytes());
        ip.extend([0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        let mut tcp = vec![0u8; 32];
        tcp[0..4].copy_from_slice(&[0x12, 0x34, 0x00, 0x50]);
        tcp[12] = 8 << 4;
        f.extend(ip);
        f.extend(tcp);
        f.resize(f.len() + payload, 7);
        f
    }

    #[test]
    fn understands_tcp_and_ignores_padding() {
        let mut frame = tcp_frame(3);
        frame.resize(80, 0);
        let seen = look(&frame, frame.len());
        assert_eq!(seen.payload_len, 3);
        let flow = seen.flow.expect("ip");
        assert_eq!((flow.source_port, flow.destination_port), (0x1234, 80));
        assert_eq!(flow.source, std::net::IpAddr::from([10, 0, 0, 1]));
        // Only the head is at hand: the length still comes from the IP header.
        let frame = tcp_frame(1448);
        assert_eq!(look(&frame[..128], frame.len()).payload_len, 1448);
    }

    #[test]
    fn any_prefix_of_a_frame_is_survived() {
        let frame = tcp_frame(10);
        for end in 0..frame.len() {
            let seen = look(&frame[..end], end);
            assert!(seen.payload_len <= 76);
        }
        let mut v6 = tcp_frame(10);
        v6[12..14].copy_from_slice(&[0x86, 0xdd]);
        for end in 0..v6.len() {
            assert!(look(&v6[..end], end).payload_len <= 76);
        }
    }

    #[test]
    fn a_superframe_counts_as_its_segments() {
        assert_eq!(on_the_wire(1514, 1448, 0), (1, 1518));
        assert_eq!(on_the_wire(66 + 2 * 1448, 2 * 1448, 1448), (2, 2 * 1518));
        assert_eq!(on_the_wire(66 + 1449, 1449, 1448), (2, 1518 + 71));
        assert_eq!(on_the_wire(66 + 1448, 1448, 1448), (1, 1518));
    }

    #[test]
    fn clocks_differ_by_a_constant() {
        let a = realtime_minus_monotonic_ns();
        let b = realtime_minus_monotonic_ns();
        assert!((a - b).abs() < 1_000_000, "{a} and {b}");
    }
}
