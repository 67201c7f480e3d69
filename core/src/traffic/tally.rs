//! What a receiver learns of one stream.
//!
//! | figure | definition |
//! |---|---|
//! | lost | sent and never arrived; copies do not make up for losses |
//! | duplicates | arrivals of a number that had arrived (RFC 4737: taken out before order is looked at) |
//! | reordered | arrivals below the highest number so far (RFC 4737, type-P-reordered) |
//! | extent | arrivals from the first that overtook a reordered one to it (section 4.2.2) |
//! | n-reordered | reordered behind n arrivals that all had overtaken it (section 5.4); TCP's threshold is 3 |
//! | one-way delay | arrival less stamp; means something only with a common clock |
//! | jitter | `J += (abs(D) - J) / 16` over differences D of transit times (RFC 3550, section 6.4.1, A.8) |
//! | rate | frame bytes behind the first arrival, over the time from the first to the last |

use super::{
    stamp::Stamp,
    window::{Arrival, Order, Seen},
};
use crate::{
    meter::{Histogram, Summary},
    units::{BitRate, FrameBytes, PicoDuration},
};

/// The n for which n-reordered frames are counted.
pub const THRESHOLDS: [u64; 4] = [1, 2, 3, 8];

/// The figures of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StreamReport {
    /// Frames that its sender says it sent, or, where that is not known, the highest number that came.
    pub sent: u64,
    /// Frames that arrived, copies not counted.
    pub received: u64,
    /// Frames that did not arrive.
    pub lost: u64,
    /// Copies.
    pub duplicates: u64,
    /// Frames that arrived too far behind to know whether they are copies; counted in no other figure.
    pub old: u64,
    /// Frames that arrived behind later ones.
    pub reordered: u64,
    /// The largest extent of reordering, arrivals; at least this much where the window ends.
    pub extent_max: u64,
    /// Frames that were n-reordered, for each n of [`THRESHOLDS`].
    pub n_reordered: [u64; 4],
    /// Arrivals at a time before their stamp: the clocks are not common.
    pub before_sent: u64,
    /// One-way delay, ns, of the others.
    pub one_way_delay_ns: Summary,
    /// Jitter, ns, at the end.
    pub jitter_ns: u64,
    /// Bytes of all frames that arrived, copies included, MAC header to FCS.
    pub bytes: FrameBytes,
    /// Frame-level rate of arrival.
    pub rate: Option<BitRate>,
}

/// One stream's arrivals.
#[derive(Debug, Clone, Default)]
pub struct StreamTally {
    report: StreamReport,
    seen: Seen,
    order: Order,
    delay: Option<Histogram>,
    transit_ns: Option<i64>,
    /// Jitter in sixteenths of a ns.
    jitter: u64,
    first: Option<(u64, u64)>,
    last_ns: u64,
}

impl StreamTally {
    /// Nothing has arrived yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// A frame of `frame_bytes` arrived at `received_ns` of the receiver's `CLOCK_TAI`.
    pub fn handle(&mut self, stamp: &Stamp, received_ns: u64, frame_bytes: u64) {
        self.report.bytes += FrameBytes::new(frame_bytes);
        self.first.get_or_insert((received_ns, frame_bytes));
        self.last_ns = self.last_ns.max(received_ns);
        let highest = self.seen.end();
        let number = self.seen.unwrap(stamp.sequence);
        match self.seen.arrive(number) {
            Arrival::Copy => self.report.duplicates += 1,
            Arrival::Old => self.report.old += 1,
            Arrival::New => {
                self.report.received += 1;
                self.order(number, number < highest);
                self.delay(stamp.sent_ns, received_ns);
            }
        }
    }

    fn order(&mut self, number: u64, late: bool) {
        let Some((extent, run)) = self.order.arrive(number, late) else {
            return;
        };
        self.report.reordered += 1;
        self.report.extent_max = self.report.extent_max.max(extent);
        for (count, n) in self.report.n_reordered.iter_mut().zip(THRESHOLDS) {
            *count += u64::from(run >= n);
        }
    }

    fn delay(&mut self, sent_ns: u64, received_ns: u64) {
        let transit_ns = received_ns.wrapping_sub(sent_ns) as i64;
        match u64::try_from(transit_ns) {
            Ok(ns) => self.delay.get_or_insert_with(Histogram::new).record(ns),
            Err(_) => self.report.before_sent += 1,
        }
        if let Some(last) = self.transit_ns.replace(transit_ns) {
            // A stamp that lies cannot make the sum of sixteenths overflow.
            let differs = transit_ns.abs_diff(last).min(u64::MAX >> 8);
            self.jitter = self.jitter + differs - ((self.jitter + 8) >> 4);
        }
    }

    /// Time of the last arrival, ns of `CLOCK_TAI`.
    pub fn last_ns(&self) -> u64 {
        self.last_ns
    }

    /// All delays so far.
    pub fn delays(&self) -> Option<&Histogram> {
        self.delay.as_ref()
    }

    /// The figures, with the number of frames that were sent where that is known.
    pub fn report(&self, sent: Option<u64>) -> StreamReport {
        let mut report = self.report.clone();
        report.sent = sent.unwrap_or(self.seen.end());
        report.lost = report.sent.saturating_sub(report.received + report.old);
        report.jitter_ns = self.jitter >> 4;
        if let Some(delay) = &self.delay {
            report.one_way_delay_ns = delay.summary();
        }
        if let Some((first_ns, first_bytes)) = self.first {
            let time = PicoDuration::from_ns(self.last_ns.saturating_sub(first_ns));
            report.rate = BitRate::of(report.bytes.get().saturating_sub(first_bytes), time);
        }
        report
    }
}
