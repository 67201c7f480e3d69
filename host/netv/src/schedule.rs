//! When each datagram of a part leaves.
//!
//! ```text
//!     picture n is due at n / rate; its datagrams are spaced by `core::pace` over 95 % of a picture's time, at frame level
//! ```

use kuroshio_core::pace::ByteClockPacer;
use kuroshio_core::units::{BitRate, FrameBytes, PS_PER_SEC, PicoDuration, PicoTime};
use kuroshio_core::video::{Packetizer, rtp_timestamp};

use crate::error::NetvError;

/// Headers below the payload, MAC header to FCS: Ethernet 18, UDP 8, IP 20 or 40.
#[must_use]
pub const fn overhead_bytes(v6: bool) -> u64 {
    18 + 8 + if v6 { 40 } else { 20 }
}

/// When picture `number` is due.
fn due(number: u64, (n, d): (u32, u32)) -> PicoTime {
    let ps = u128::from(number) * u128::from(d) * u128::from(PS_PER_SEC) / u128::from(n.max(1));
    PicoTime::from_ps(u64::try_from(ps).unwrap_or(u64::MAX))
}

/// The rate that spreads `bytes` over 95 % of the time of a picture.
fn pace(bytes: u64, rate: (u32, u32)) -> Option<BitRate> {
    let period = due(1, rate).as_ps() / 100 * 95;
    BitRate::of(bytes, PicoDuration::from_ps(period.max(1)))
}

/// The places of a part's datagrams, from the first picture's begin.
#[derive(Debug, Clone)]
pub struct Schedule {
    rate: (u32, u32),
    overhead: u64,
    pace: BitRate,
    pacer: ByteClockPacer,
}

impl Schedule {
    /// For the stream of a packetizer at so many pictures per second (a fraction), over IPv6 or IPv4.
    ///
    /// # Errors
    /// A rate that cannot be paced.
    pub fn new(packetizer: &Packetizer, rate: (u32, u32), v6: bool) -> Result<Self, NetvError> {
        let overhead = overhead_bytes(v6);
        let (count, bytes) = packetizer.per_picture();
        let pace = pace(bytes + count * overhead, rate);
        let pace = pace.ok_or_else(|| NetvError::BadInput("--fps: too slow to pace".into()))?;
        let pacer =
            ByteClockPacer::new(pace).map_err(|e| NetvError::BadInput(format!("--fps, --size: {e}")))?;
        Ok(Self {
            rate,
            overhead,
            pace,
            pacer,
        })
    }

    /// The rate at which its datagrams leave, frame level.
    #[must_use]
    pub fn pace(&self) -> BitRate {
        self.pace
    }

    /// Frame bytes around a datagram.
    #[must_use]
    pub fn overhead_bytes(&self) -> u64 {
        self.overhead
    }

    /// When picture `number` is due.
    #[must_use]
    pub fn due(&self, number: u64) -> PicoTime {
        due(number, self.rate)
    }

    /// The RTP time stamp of picture `number`.
    #[must_use]
    pub fn stamp(&self, number: u64) -> u32 {
        rtp_timestamp(number, self.rate.0, self.rate.1)
    }

    /// The place of the next datagram, of `len` bytes of picture `number`.
    pub fn place(&mut self, number: u64, len: usize) -> PicoTime {
        let frame = FrameBytes::new(len as u64 + self.overhead);
        self.pacer.depart(due(number, self.rate), frame).start
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kuroshio_core::video::{Geometry, PixelFormat};

    #[test]
    fn pictures_are_due_exactly() {
        assert_eq!(due(30_000, (30_000, 1_001)), PicoTime::from_secs(1_001));
        assert_eq!(due(1, (30, 1)).as_ps(), 33_333_333_333);
        assert_eq!(due(0, (0, 1)), PicoTime::ZERO);
    }

    #[test]
    fn a_picture_fills_95_percent_of_its_time() {
        let rate = pace(1_000_000, (25, 1)).expect("a rate");
        assert_eq!(rate.bps(), 1_000_000 * 8 * 25 * 100 / 95);
    }

    #[test]
    fn a_picture_begins_when_it_is_due_and_its_datagrams_follow_at_the_rate() {
        let geometry = Geometry::new(640, 90, PixelFormat::Rgb8).expect("a size");
        let mut schedule =
            Schedule::new(&Packetizer::new(geometry, 1_200, 96, 1, 0), (25, 1), false).expect("a schedule");
        assert_eq!(schedule.place(3, 1_200), PicoTime::from_ms(120));
        let gap = schedule.place(3, 1_200) - PicoTime::from_ms(120);
        let exact = 1_246 * 8 * u128::from(PS_PER_SEC) / u128::from(schedule.pace().bps());
        assert!(
            u128::from(gap.as_ps()).abs_diff(exact) <= 1,
            "{gap} for {exact} ps"
        );
        assert_eq!(schedule.place(4, 1_200), schedule.due(4));
    }
}
