//! The instrument measured by itself: a known vector of gaps through the live path.
//!
//! ```text
//! UDP frames of eight sizes -> port -> shaper -> link -> port -> capture (kernel stamps)
//!
//! expected gap between the last bits of frames i and i+1 at the far port, in bytes of a 1 Gbps wire:
//!   gap(len_i) + 8 + len_{i+1}      the shaper's own spacing, 000 section 2
//!   + (len_{i+1} - len_i)           the link at 1 Gbps frame level
//!   + (len_{i+1} - len_i)           the far port's wire
//! ```
//!
//! The frames wait in the shaper before it sends them, so the spacing is the shaper's alone. The error
//! is the distance of each captured gap from the expected one.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use kuroshio_clock::{now_ns, sleep_until};
use kuroshio_core::pace::ifg_bytes;
use kuroshio_core::units::{BitRate, FrameBytes};
use kuroshio_core::wire::LineRate;
use kuroshio_testbed::{Testbed, Topology};

use crate::live::LiveError;
use crate::result::{Calibration, Quantiles};

/// Frame sizes of the vector, repeated.
const SIZES: [u64; 8] = [64, 1518, 590, 1518, 128, 1024, 256, 1518];
/// Repetitions of the sizes.
const ROUNDS: usize = 600;
/// Rate the shaper holds, frame level.
const RATE_MBPS: u32 = 100;
/// Wire of both ports and the link.
const WIRE_MBPS: u32 = 1000;
const PS_PER_BYTE: i64 = 8000;
/// Frame bytes around a UDP datagram: Ethernet 14 + 4, IPv4 20, UDP 8.
const OVERHEAD: u64 = 46;
const PORT: u16 = 4999;
/// Upper ends of the histogram's bins, ns; one more bin has no end.
const BINS_NS: [u64; 10] = [
    500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 1_000_000, 10_000_000,
];

const TOPOLOGY: &str = r#"
name = "calibration"
[[host]]
name = "source"
[[host.port]]
name = "eth0"
address = "10.9.0.1/24"
router = "near"
shape = "100Mbps"
shape_queue = "16MiB"
[[host]]
name = "sink"
[[host.port]]
name = "eth0"
address = "10.9.0.2/24"
router = "far"
[[router]]
name = "near"
[[router]]
name = "far"
[[link]]
name = "path"
between = ["near", "far"]
capacity = "1Gbps"
one_way_delay = "10ms"
queue = "1MiB"
"#;

fn io_error(e: io::Error) -> LiveError {
    LiveError::Io("calibration", e)
}

/// Sends the vector and compares.
///
/// # Errors
/// When the testbed cannot be made.
pub(crate) fn run() -> Result<Calibration, LiveError> {
    let topology = Topology::from_toml(TOPOLOGY).map_err(|m| LiveError::Topology("calibration".into(), m))?;
    let tb = Testbed::up(&topology)?;
    let sink = tb
        .in_host("sink", || UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT)))?
        .join()
        .unwrap_or_else(|_| Err(io::Error::other("panicked")))
        .and_then(|s| s)
        .map_err(io_error)?;
    let capture = tb.capture(&["sink/eth0"])?;
    let sender = tb.in_host("source", || {
        send_vector((Ipv4Addr::new(10, 9, 0, 2), PORT).into())
    })?;
    sender
        .join()
        .unwrap_or_else(|_| Err(io::Error::other("panicked")))
        .and_then(|s| s)
        .map_err(io_error)?;
    let bytes: u64 = SIZES.iter().sum::<u64>() * ROUNDS as u64;
    let length = Duration::from_nanos(bytes * 8000 / u64::from(RATE_MBPS));
    sleep_until(
        now_ns() + (length + Duration::from_millis(150)).as_nanos() as u64,
        0,
    );
    let captured = capture.stop().map_err(io_error)?;
    drop(sink);
    drop(tb);
    let seen: Vec<(u64, u64)> = captured
        .records
        .iter()
        .filter(|r| captured.flow(r).is_some_and(|f| f.destination_port == PORT))
        .map(|r| (r.t_ns, u64::from(r.frame_len)))
        .collect();
    Ok(compare(&seen))
}

fn send_vector(to: SocketAddr) -> io::Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.connect(to)?;
    let buffer = [0u8; 1500];
    for len in SIZES.iter().cycle().take(SIZES.len() * ROUNDS) {
        let payload = usize::try_from(len - OVERHEAD).unwrap_or(0);
        socket.send(buffer.get(..payload).unwrap_or(&buffer))?;
    }
    Ok(())
}

/// Expected picoseconds between the ends of two frames at the far port.
fn expected_ps(len: u64, next: u64) -> i64 {
    let line = LineRate::new(BitRate::from_mbps(WIRE_MBPS));
    let gap = ifg_bytes(FrameBytes::new(len), BitRate::from_mbps(RATE_MBPS), line).get();
    let bytes = |v: u64| i64::try_from(v).unwrap_or(i64::MAX);
    (bytes(gap) + 8 + bytes(next) + 2 * (bytes(next) - bytes(len))) * PS_PER_BYTE
}

/// Compares the captured (time in ns, frame length) with the vector.
fn compare(seen: &[(u64, u64)]) -> Calibration {
    let sent: Vec<u64> = SIZES.iter().copied().cycle().take(SIZES.len() * ROUNDS).collect();
    let mut errors = Vec::new();
    let mut ideal_ps = 0i64;
    for (pair, lens) in seen.windows(2).zip(sent.windows(2)) {
        let ([(t0, l0), (t1, l1)], [s0, s1]) = (pair, lens) else {
            continue;
        };
        // A frame that is missing would shift everything after it: stop there.
        if (l0, l1) != (s0, s1) {
            break;
        }
        let expected = expected_ps(*s0, *s1);
        let gap_ns = i64::try_from(i128::from(*t1) - i128::from(*t0)).unwrap_or(i64::MAX);
        errors.push((gap_ns - expected / 1000).saturating_abs());
        ideal_ps += expected;
    }
    let mut histogram: Vec<(u64, u64)> = BINS_NS.iter().map(|b| (*b, 0)).chain([(0, 0)]).collect();
    for e in &errors {
        let e = e.unsigned_abs();
        if let Some(bin) = histogram.iter_mut().find(|(end, _)| *end == 0 || e <= *end) {
            bin.1 += 1;
        }
    }
    let span_ns = match (seen.first(), seen.get(errors.len())) {
        (Some((a, _)), Some((b, _))) => b.saturating_sub(*a) as f64,
        _ => 0.0,
    };
    Calibration {
        vector: format!(
            "{} UDP frames of {SIZES:?} bytes (frame level) repeated, held to {RATE_MBPS} Mbps by gaps on a {WIRE_MBPS} Mbps wire, one-way delay 10 ms",
            sent.len()
        ),
        gaps: errors.len() as u64,
        gaps_expected: sent.len() as u64 - 1,
        error: Quantiles::of(errors),
        histogram,
        length_error_ppm: if ideal_ps > 0 {
            (span_ns / (ideal_ps as f64 / 1e3) - 1.0) * 1e6
        } else {
            0.0
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ideal() -> Vec<(u64, u64)> {
        let lens: Vec<u64> = SIZES.iter().copied().cycle().take(SIZES.len() * ROUNDS).collect();
        let mut t = 1_000_000_000_000i64;
        let mut list = vec![(1_000_000_000u64, lens[0])];
        for w in lens.windows(2) {
            t += expected_ps(w[0], w[1]);
            list.push(((t / 1000) as u64, w[1]));
        }
        list
    }

    #[test]
    fn the_vector_keeps_its_rate() {
        // One round at the rate, whatever the sizes within.
        let round: i64 = (0..8).map(|i| expected_ps(SIZES[i], SIZES[(i + 1) % 8])).sum();
        let bytes: u64 = SIZES.iter().sum();
        assert_eq!(round as u64, bytes * 8 * 1_000_000 / u64::from(RATE_MBPS));
    }

    #[test]
    fn a_perfect_capture_has_no_error() {
        let c = compare(&ideal());
        assert_eq!((c.gaps, c.gaps_expected), (4799, 4799));
        assert!(c.error.max_ns <= 1, "{c:?}");
        assert!(c.length_error_ppm.abs() < 0.01);
        assert_eq!(c.histogram[0].1, 4799);
    }

    #[test]
    fn a_late_frame_shows_in_two_gaps_and_a_lost_one_ends_the_comparison() {
        let mut seen = ideal();
        seen[100].0 += 30_000;
        let c = compare(&seen);
        assert_eq!(c.error.max_ns, 30_000);
        assert_eq!(c.histogram[6], (50_000, 2));
        seen.remove(2000);
        assert_eq!(compare(&seen).gaps, 1999);
        assert_eq!(compare(&[]).gaps, 0);
    }
}
