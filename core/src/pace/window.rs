//! Dynamic pacing: one congestion window per round trip, evenly.
//!
//! ```text
//!     rate = min(bound, frame * cwnd / RTT)        frame level; no rate before the first RTT
//! ```
//!
//! cwnd in segments, RTT smoothed as TCP has it, `frame` the bytes of a full segment's frame, MAC header to FCS.
//! Where the kernel's own window does not reach the qdisc, whoever paces looks again four times a round trip
//! ([`look_again_after`]), so that a window that doubles in a round trip (slow start) is held to four fifths of its
//! rate at the least.
//!
//! Source: paper 001, dynamic mode.

use crate::units::{BitRate, FrameBytes, PicoDuration};

/// Shortest time between two looks at a window.
pub const LOOK_MIN: PicoDuration = PicoDuration::from_ms(4);
/// Longest time between two looks at a window.
pub const LOOK_MAX: PicoDuration = PicoDuration::from_ms(100);

/// The rate of one window per round trip, `bound` at most; `bound` alone where there is no RTT yet, or no window.
pub fn window_rate(
    frame: FrameBytes,
    cwnd_segments: u32,
    rtt: PicoDuration,
    bound: Option<BitRate>,
) -> Option<BitRate> {
    let bytes = frame.get().saturating_mul(u64::from(cwnd_segments));
    match (BitRate::of(bytes, rtt), bound) {
        (Some(rate), Some(bound)) => Some(rate.min(bound)),
        (rate, bound) => rate.or(bound),
    }
}

/// How long a rate may stand before the window is looked at again: a quarter of the round trip, [`LOOK_MIN`] to
/// [`LOOK_MAX`].
pub fn look_again_after(rtt: PicoDuration) -> PicoDuration {
    PicoDuration::from_ps(rtt.as_ps() / 4).clamp(LOOK_MIN, LOOK_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::PicoTime;

    const FRAME: FrameBytes = FrameBytes::new(1518);

    fn rate(cwnd: u32, rtt_us: u64, bound: Option<u64>) -> Option<u64> {
        let bound = bound.and_then(BitRate::new);
        window_rate(FRAME, cwnd, PicoDuration::from_us(rtt_us), bound).map(BitRate::bps)
    }

    #[test]
    fn a_window_per_round_trip_is_the_paper_s_rate() {
        // 100 frames of 1518 bytes in 100 ms.
        assert_eq!(rate(100, 100_000, None), Some(12_144_000));
        assert_eq!(rate(100, 100_000, Some(10_000_000)), Some(10_000_000));
        assert_eq!(rate(100, 100_000, Some(20_000_000)), Some(12_144_000));
        // Nothing is known yet.
        assert_eq!(rate(10, 0, None), None);
        assert_eq!(rate(10, 0, Some(10_000_000)), Some(10_000_000));
        assert_eq!(rate(0, 100, Some(10_000_000)), Some(10_000_000));
        assert_eq!(rate(0, 100, None), None);
    }

    #[test]
    fn no_number_makes_it_panic() {
        for frame in [0, 1, u64::MAX] {
            for cwnd in [0, 1, u32::MAX] {
                for rtt in [0, 1, u64::MAX] {
                    let rtt = PicoDuration::from_ps(rtt);
                    let bound = BitRate::new(1_000);
                    let rate = window_rate(FrameBytes::new(frame), cwnd, rtt, bound);
                    assert!(rate.is_some_and(|r| r.bps() <= 1_000));
                    assert!((LOOK_MIN..=LOOK_MAX).contains(&look_again_after(rtt)));
                }
            }
        }
    }

    /// A window that doubles each round trip, evenly within it, looked at as the rule says, in virtual time: the rate
    /// told is below the present window's by a quarter of a round trip's growth at most.
    #[test]
    fn the_rate_keeps_up_with_slow_start() {
        let rtt = PicoDuration::from_ms(100);
        let window = |at: PicoTime| {
            let (round, ms) = (at.as_ms() / 100, at.as_ms() % 100);
            u32::try_from((1_000u64 << round) * (100 + ms) / 100).expect("twenty rounds")
        };
        let (mut now, mut next, mut told) = (PicoTime::ZERO, PicoTime::ZERO, 0);
        let (mut looks, mut behind) = (0, 0);
        while now < PicoTime::ZERO + PicoDuration::from_secs(2) {
            let due = window_rate(FRAME, window(now), rtt, None).map_or(0, BitRate::bps);
            if now >= next {
                (told, looks) = (due, looks + 1);
                next = now + look_again_after(rtt);
            }
            assert!(told <= due && told * 125 >= due * 100, "{now:?}: {told} of {due}");
            behind += u32::from(told < due);
            now += PicoDuration::from_ms(1);
        }
        assert_eq!((looks, behind), (80, 2_000 - 80));
    }
}
