//! The opening of a paced connection: segments that the kernel does not pace.
//!
//! Linux spaces a connection's segments from its eleventh data segment on (`tcp_update_skb_after_send` in
//! `net/ipv4/tcp_output.c`, "do not pace first 10 MSS", as `sch_fq` before it). The first ten leave as fast as window and card
//! let them, whatever `SO_MAX_PACING_RATE` says. With frames of 6,000 bytes that is a burst of 60 kB, more than the whole
//! queue of a narrow link may hold. So who writes to a paced socket writes its opening in single segments, each
//! in its own time:
//!
//! ```text
//!   data segments sent < 10:   write at most one segment,  then wait  frame * 8 / rate
//!                     >= 10:   write what there is, the kernel paces it
//! ```

use std::io;
use std::num::NonZeroU32;
use std::os::fd::AsFd;
use std::time::Duration;

use kuroshio_core::units::BitRate;

use crate::framing::Framing;
use crate::info::tcp_info;
use crate::opt::is_ipv6;

/// Data segments of a connection that the kernel sends without pacing.
pub const UNPACED_SEGMENTS: u32 = 10;
/// A step leaves so much of its segment to the headers of what carries the payload (a TLS record, an HTTP answer), bytes.
const HEADER_ROOM: u32 = 512;
/// Longest time of a step: a socket that is slower is not worth a thread's time.
const LONGEST: Duration = Duration::from_secs(1);

/// What may be written now, and what has to pass before more is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpeningStep {
    /// Bytes to be written at most: they fit into one segment with some headers.
    pub bytes: NonZeroU32,
    /// Time of a whole frame at the rate, 1 s at most.
    pub time: Duration,
}

/// The next step of the opening at `rate` (frame level); `None` when it is over and the kernel paces.
///
/// # Errors
/// What `getsockopt` gives; `NotConnected` when the socket has no segment size yet.
pub fn opening(socket: &impl AsFd, rate: BitRate) -> io::Result<Option<OpeningStep>> {
    let info = tcp_info(socket)?;
    if info.data_segments_sent >= UNPACED_SEGMENTS {
        return Ok(None);
    }
    let framing = info.framing(is_ipv6(socket)?).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::NotConnected,
            "opening of a paced connection: it has no segment size yet",
        )
    })?;
    Ok(Some(step(framing, rate)))
}

fn step(framing: Framing, rate: BitRate) -> OpeningStep {
    let payload = framing.payload.get();
    // Of a tiny segment half is left.
    let bytes = payload - HEADER_ROOM.min(payload / 2);
    let bits = u64::from(framing.frame.get()) * 8;
    let time = Duration::from_nanos(bits.saturating_mul(1_000_000_000) / rate.bps());
    OpeningStep {
        bytes: NonZeroU32::new(bytes).unwrap_or(NonZeroU32::MIN),
        time: time.min(LONGEST),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::opt::{set_mss, set_nodelay, set_pacing};
    use socket2::{Domain, SockAddr, Socket, Type};
    use std::io::Write as _;
    use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
    use std::time::Instant;

    const LIMIT: Duration = Duration::from_secs(20);

    /// Both ends of a connection with small segments.
    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback");
        let near = Socket::new(Domain::IPV4, Type::STREAM, None).expect("socket");
        set_mss(&near, 1_000).expect("before it is connected");
        let address: SocketAddr = listener.local_addr().expect("bound");
        near.connect(&SockAddr::from(address)).expect("listens");
        let (far, _) = listener.accept().expect("connected");
        (near.into(), far)
    }

    fn sent(socket: &TcpStream) -> u32 {
        tcp_info(socket).expect("a TCP socket").data_segments_sent
    }

    #[test]
    fn a_step_is_a_segment_less_headers_in_the_time_of_its_frame() {
        let rate = BitRate::from_mbps(1);
        let jumbo = step(Framing::new(5_948, true, false).expect("mss"), rate);
        assert_eq!(jumbo.bytes.get(), 5_948 - 512);
        assert_eq!(jumbo.time, Duration::from_nanos(6_018 * 8 * 1_000));
        let tiny = step(Framing::new(88, false, true).expect("mss"), BitRate::MIN);
        assert_eq!((tiny.bytes.get(), tiny.time), (44, LONGEST));
    }

    /// What the module is for: the kernel lets ten segments go at once at a rate that gives each two minutes. A train has two
    /// segments at least.
    #[test]
    fn the_kernel_paces_from_the_eleventh_segment_on() {
        let (mut near, _far) = pair();
        set_pacing(&near, BitRate::new(80)).expect("connected");
        near.write_all(&[7; 40_000]).expect("fits in the buffer");
        let begun = Instant::now();
        while sent(&near) < UNPACED_SEGMENTS {
            assert!(begun.elapsed() < LIMIT, "only {} left", sent(&near));
            std::thread::yield_now();
        }
        assert!(sent(&near) < UNPACED_SEGMENTS + 2, "{} left", sent(&near));
        assert_eq!(opening(&near, BitRate::from_mbps(1)).expect("connected"), None);
    }

    #[test]
    fn an_opening_ends_with_the_tenth_segment() {
        let (mut near, _far) = pair();
        set_nodelay(&near, true).expect("a TCP socket");
        let rate = BitRate::from_mbps(10);
        let mut steps = 0;
        while let Some(step) = opening(&near, rate).expect("connected") {
            steps += 1;
            assert!(steps <= UNPACED_SEGMENTS, "{} have left", sent(&near));
            let part = vec![7; step.bytes.get() as usize];
            near.write_all(&part).expect("room");
            let begun = Instant::now();
            while sent(&near) < steps {
                assert!(begun.elapsed() < LIMIT, "{} of {steps}", sent(&near));
                std::thread::yield_now();
            }
            assert_eq!(sent(&near), steps, "one segment for each step");
        }
        assert_eq!(steps, UNPACED_SEGMENTS);
    }
}
