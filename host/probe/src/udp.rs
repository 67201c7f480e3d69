//! Datagrams: numbered, stamped, and what a receiver learns from them.
//!
//! ```text
//! seconds u32 | microseconds u32 | number u32 or u64        all big endian; then anything
//! ```
//!
//! Numbers begin at 1. A gap counts as lost at once; a late datagram takes one loss back. Jitter is that of
//! RFC 1889: `J += (|D| - J) / 16`, with D the change of the transit time between two datagrams; the clocks
//! of both sides need not agree.

/// What a client sends to make a stream, and older clients (host byte order, as iperf3).
pub const HELLO: [u32; 2] = [0x3637_3839, 123_456_789];
/// What the server answers, and older servers.
pub const ANSWER: [u32; 2] = [0x3938_3736, 987_654_321];

/// What a datagram's header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// When it was sent, microseconds of the sender's clock.
    pub sent_us: u64,
    /// Its number, from 1 on.
    pub number: u64,
}

impl Stamp {
    /// Writes the header; a buffer that is too short is left alone.
    pub fn write(self, wide: bool, buf: &mut [u8]) {
        let seconds = (self.sent_us / 1_000_000) as u32;
        let micros = (self.sent_us % 1_000_000) as u32;
        let mut header = [0u8; 16];
        header[..4].copy_from_slice(&seconds.to_be_bytes());
        header[4..8].copy_from_slice(&micros.to_be_bytes());
        let len = if wide {
            header[8..].copy_from_slice(&self.number.to_be_bytes());
            16
        } else {
            header[8..12].copy_from_slice(&(self.number as u32).to_be_bytes());
            12
        };
        if let Some(front) = buf.get_mut(..len) {
            front.copy_from_slice(&header[..len]);
        }
    }

    /// Reads a header; `None` when the datagram is too short for one.
    pub fn read(wide: bool, datagram: &[u8]) -> Option<Self> {
        let u32_at = |at: usize| -> Option<u32> {
            Some(u32::from_be_bytes(datagram.get(at..at + 4)?.try_into().ok()?))
        };
        let number = if wide {
            u64::from_be_bytes(datagram.get(8..16)?.try_into().ok()?)
        } else {
            u64::from(u32_at(8)?)
        };
        Some(Self {
            sent_us: u64::from(u32_at(0)?) * 1_000_000 + u64::from(u32_at(4)?),
            number,
        })
    }
}

/// What a receiver has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tally {
    /// Payload bytes received.
    pub bytes: u64,
    /// Datagrams received.
    pub received: u64,
    /// Highest number seen.
    pub highest: u64,
    /// Datagrams missing below the highest number.
    pub lost: u64,
    /// Datagrams that came after one with a higher number.
    pub out_of_order: u64,
    /// Jitter, seconds.
    pub jitter_s: f64,
    transit_us: Option<i64>,
}

impl Tally {
    /// Counts a datagram of `bytes` that arrived at `now_us` of the receiver's clock.
    pub fn take(&mut self, stamp: Stamp, bytes: u64, now_us: u64) {
        self.bytes += bytes;
        self.received += 1;
        if stamp.number > self.highest {
            self.lost = self.lost.saturating_add(stamp.number - 1 - self.highest);
            self.highest = stamp.number;
        } else {
            self.out_of_order += 1;
            self.lost = self.lost.saturating_sub(1);
        }
        let transit = now_us.cast_signed().wrapping_sub(stamp.sent_us.cast_signed());
        if let Some(before) = self.transit_us.replace(transit) {
            let change_s = transit.wrapping_sub(before).unsigned_abs() as f64 / 1e6;
            self.jitter_s += (change_s - self.jitter_s) / 16.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn gaps_are_losses_and_late_datagrams_take_them_back() {
        let mut tally = Tally::default();
        for number in [1, 2, 5, 4, 6, 6] {
            tally.take(Stamp { sent_us: 0, number }, 100, 0);
        }
        assert_eq!((tally.bytes, tally.received, tally.highest), (600, 6, 6));
        // 3 and 4 were missing, 4 came; the second 6 is taken for another late one, as iperf3 does.
        assert_eq!((tally.lost, tally.out_of_order), (0, 2));
    }

    #[test]
    fn jitter_is_a_sixteenth_of_each_change() {
        let mut tally = Tally::default();
        for (number, sent_us, now_us) in [(1, 0, 5_000_000), (2, 1000, 5_001_160), (3, 2000, 5_002_160)] {
            tally.take(Stamp { sent_us, number }, 1, now_us);
        }
        let expected = 0.00016 / 16.0 * (15.0 / 16.0);
        assert!((tally.jitter_s - expected).abs() < 1e-12, "{}", tally.jitter_s);
    }

    proptest! {
        #[test]
        fn a_header_is_read_back(sent_us in 0..4_294_967_296_000_000u64, number: u64, wide: bool) {
            let number = if wide { number } else { number & 0xffff_ffff };
            let stamp = Stamp { sent_us, number };
            let mut buf = [0u8; 16];
            stamp.write(wide, &mut buf);
            prop_assert_eq!(Stamp::read(wide, &buf), Some(stamp));
            prop_assert_eq!(Stamp::read(wide, &buf[..11]), None);
        }

        #[test]
        fn no_datagrams_make_a_tally_panic(
            datagrams in proptest::collection::vec((proptest::collection::vec(any::<u8>(), 0..24), any::<u64>()), 0..50),
            wide: bool,
        ) {
            let mut tally = Tally::default();
            let mut read = 0;
            for (bytes, now_us) in datagrams {
                if let Some(stamp) = Stamp::read(wide, &bytes) {
                    tally.take(stamp, bytes.len() as u64, now_us);
                    read += 1;
                }
            }
            prop_assert_eq!(tally.received, read);
            prop_assert!(tally.lost <= tally.highest);
        }
    }
}
