//! The share of the routes' capacity that a run used, from stamps of frames at the far ports.
//!
//! ```text
//!            bytes on the wire (frame level, as stamped) between t20 and t80
//!   share = -----------------------------------------------------------------
//!            integral of the routes' capacity over the same time
//! ```
//!
//! t20 and t80 are when 20 % and 80 % of the run's bytes had arrived: start-up and tail are left out, and
//! nothing else. Retransmitted frames count as bytes on the wire; the goodput stands beside it.

/// A capacity from a moment on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapacityStep {
    /// Monotonic nanoseconds.
    pub at_ns: u64,
    /// Frame-level bits per second.
    pub capacity_bps: u64,
}

/// One stamped frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Monotonic nanoseconds at the far port.
    pub at_ns: u64,
    /// Bytes from MAC header to FCS.
    pub frame_bytes: u64,
}

/// A measured share and the interval it was taken over.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// When 20 % of the bytes had arrived, monotonic nanoseconds.
    pub from_ns: u64,
    /// When 80 % of the bytes had arrived, monotonic nanoseconds.
    pub to_ns: u64,
    /// Frame-level bytes in the interval.
    pub frame_bytes: u64,
    /// Frame-level rate in the interval.
    pub rate_bps: u64,
    /// Share of the capacity; 1.0 is all of it.
    pub of_capacity: f64,
}

/// The capacity of a route over time: steps by rising time, the first at 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline(pub Vec<CapacityStep>);

impl Timeline {
    /// A capacity that does not change.
    pub fn constant(capacity_bps: u64) -> Self {
        Self(vec![CapacityStep {
            at_ns: 0,
            capacity_bps,
        }])
    }

    /// Capacity times time between two moments, in bit-nanoseconds per second.
    fn integral(&self, from_ns: u64, to_ns: u64) -> u128 {
        let until = |i: usize| self.0.get(i + 1).map_or(to_ns, |next| next.at_ns.min(to_ns));
        let parts = self.0.iter().enumerate().map(|(i, step)| {
            let time_ns = until(i).saturating_sub(step.at_ns.max(from_ns));
            u128::from(step.capacity_bps) * u128::from(time_ns)
        });
        parts.sum()
    }

    /// Mean capacity between two moments, bits per second.
    pub fn mean_bps(&self, from_ns: u64, to_ns: u64) -> u64 {
        let time_ns = u128::from(to_ns.saturating_sub(from_ns));
        self.integral(from_ns, to_ns).checked_div(time_ns).unwrap_or(0) as u64
    }

    /// The capacity after the last step, bits per second.
    pub fn last_bps(&self) -> u64 {
        self.0.last().map_or(0, |step| step.capacity_bps)
    }
}

/// The share of the routes' capacity in sum that `stamps` (ordered by time) used between 20 % and 80 % of the bytes; `None` when
/// there are too few frames to tell.
pub fn share(stamps: &[Stamp], routes: &[Timeline]) -> Option<Share> {
    let all: u64 = stamps.iter().map(|s| s.frame_bytes).sum();
    let (low, high) = (all / 5, all / 5 * 4);
    let mut seen = 0;
    let (mut from, mut to, mut bytes) = (None, None, 0);
    for stamp in stamps {
        seen += stamp.frame_bytes;
        if seen >= low && from.is_none() {
            // The interval starts after this frame, so its bytes do not count.
            from = Some(stamp.at_ns);
        } else if from.is_some() && to.is_none() {
            bytes += stamp.frame_bytes;
            if seen >= high {
                to = Some(stamp.at_ns);
            }
        }
    }
    let (from_ns, to_ns) = (from?, to?);
    let possible: u128 = routes.iter().map(|r| r.integral(from_ns, to_ns)).sum();
    if to_ns <= from_ns || possible == 0 {
        return None;
    }
    let bit_ns = u128::from(bytes) * 8 * 1_000_000_000;
    Some(Share {
        from_ns,
        to_ns,
        frame_bytes: bytes,
        rate_bps: (bit_ns / u128::from(to_ns - from_ns)) as u64,
        of_capacity: bit_ns as f64 / possible as f64,
    })
}

/// Frame-level rate of `stamps` between two moments, bits per second.
pub fn rate_between(stamps: &[Stamp], from_ns: u64, to_ns: u64) -> u64 {
    let bytes: u64 = stamps
        .iter()
        .filter(|s| s.at_ns > from_ns && s.at_ns <= to_ns)
        .map(|s| s.frame_bytes)
        .sum();
    (u128::from(bytes) * 8_000_000_000 / u128::from(to_ns.saturating_sub(from_ns).max(1))) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Frames of 1,000 bytes each `gap_ns`.
    fn steady(count: u64, gap_ns: u64) -> Vec<Stamp> {
        (1..=count)
            .map(|i| Stamp {
                at_ns: i * gap_ns,
                frame_bytes: 1_000,
            })
            .collect()
    }

    #[test]
    fn a_steady_stream_at_the_capacity_has_share_one() {
        // 1,000 bytes each 80 us are 100 Mbps.
        // Two routes: the sum counts.
        let steps = [Timeline::constant(40_000_000), Timeline::constant(60_000_000)];
        let got = share(&steady(1_000, 80_000), &steps).unwrap();
        assert!((got.of_capacity - 1.0).abs() < 1e-9, "{got:?}");
        assert_eq!(got.rate_bps, 100_000_000);
        assert_eq!(got.frame_bytes, 600_000);
    }

    #[test]
    fn a_slow_start_and_a_tail_do_not_count() {
        let mut stamps = steady(1_000, 80_000);
        stamps[0].at_ns = 0;
        let last = stamps.len() - 1;
        stamps[last].at_ns += 5_000_000_000;
        let steps = [Timeline::constant(200_000_000)];
        let got = share(&stamps, &steps).unwrap();
        assert!((got.of_capacity - 0.5).abs() < 1e-9, "{got:?}");
    }

    #[test]
    fn a_loss_of_capacity_is_integrated() {
        // Half of the interval (40 ms of 80 ms; 20 to 80 % is 16 to 64 ms) at 100, then at 50 Mbps.
        let shrinking = Timeline(vec![
            CapacityStep {
                at_ns: 0,
                capacity_bps: 100_000_000,
            },
            CapacityStep {
                at_ns: 40_000_000,
                capacity_bps: 50_000_000,
            },
        ]);
        assert_eq!(shrinking.mean_bps(20_000_000, 60_000_000), 75_000_000);
        assert_eq!(shrinking.last_bps(), 50_000_000);
        let steps = [shrinking];
        let got = share(&steady(1_000, 80_000), &steps).unwrap();
        let expected = 100.0 * 48.0 / (100.0 * 24.0 + 50.0 * 24.0);
        assert!((got.of_capacity - expected).abs() < 1e-9, "{got:?}");
    }

    #[test]
    fn nothing_is_said_of_nothing() {
        assert_eq!(share(&[], &[Timeline::constant(1)]), None);
        assert_eq!(share(&steady(100, 1_000), &[]), None);
    }
}
