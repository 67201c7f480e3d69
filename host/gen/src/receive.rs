//! The receiving end of one run: datagrams in batches, stamped by the kernel, to figures.

use std::collections::BTreeMap;
use std::net::{IpAddr, UdpSocket};

use kuroshio_core::capacity::{Arrival, MAX_TRAIN_FRAMES, digest};
use kuroshio_core::meter::Histogram;
use kuroshio_core::traffic::{MAX_STREAMS, STAMP_BYTES, Stamp, StreamReport, StreamTally, THRESHOLDS};
use kuroshio_core::units::{BitRate, FrameBytes};
use serde::{Deserialize, Serialize};

use crate::clock::Clock;
use crate::control::{Kind, TrainDigest};
use crate::error::GenError;
use crate::frame::frame_overhead;
use crate::sys::{Batch, Datagram, tai_ns};

/// The figures of a stream (see `kuroshio_core::traffic::StreamReport` for each).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[allow(
    missing_docs,
    reason = "each is a figure of StreamReport under the same name, with its unit"
)]
pub struct StreamFigures {
    pub stream: u32,
    pub sent_frames: u64,
    pub received_frames: u64,
    pub lost_frames: u64,
    pub loss_ratio: f64,
    pub duplicate_frames: u64,
    pub old_frames: u64,
    pub reordered_frames: u64,
    pub reordered_ratio: f64,
    pub reorder_extent_max_frames: u64,
    /// Frames that are n-reordered, by n.
    pub n_reordered_frames: BTreeMap<String, u64>,
    pub received_before_sent_frames: u64,
    pub one_way_delay_us: BTreeMap<String, f64>,
    pub jitter_us: f64,
    pub received_frame_bytes: u64,
    /// Frame-level rate of arrival.
    pub rate_bps: u64,
}

impl StreamFigures {
    fn of(stream: u32, r: &StreamReport) -> Self {
        let share = |part: u64, whole: u64| {
            if whole == 0 {
                0.0
            } else {
                part as f64 / whole as f64
            }
        };
        let d = r.one_way_delay_ns;
        let delays = [
            ("min", d.min),
            ("mean", d.mean),
            ("p50", d.p50),
            ("p99", d.p99),
            ("p999", d.p999),
            ("max", d.max),
        ];
        Self {
            stream,
            sent_frames: r.sent,
            received_frames: r.received,
            lost_frames: r.lost,
            loss_ratio: share(r.lost, r.sent),
            duplicate_frames: r.duplicates,
            old_frames: r.old,
            reordered_frames: r.reordered,
            reordered_ratio: share(r.reordered, r.received),
            reorder_extent_max_frames: r.extent_max,
            n_reordered_frames: THRESHOLDS
                .map(|n| n.to_string())
                .into_iter()
                .zip(r.n_reordered)
                .collect(),
            received_before_sent_frames: r.before_sent,
            one_way_delay_us: delays
                .into_iter()
                .map(|(name, ns)| (name.to_owned(), ns as f64 / 1e3))
                .collect(),
            jitter_us: r.jitter_ns as f64 / 1e3,
            received_frame_bytes: r.bytes.get(),
            rate_bps: r.rate.map_or(0, BitRate::bps),
        }
    }
}

/// The figures of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RunReport {
    /// Each stream that sent or received something.
    pub streams: Vec<StreamFigures>,
    /// Time between arrivals of any stream, us.
    pub arrival_gap_us: BTreeMap<String, f64>,
    /// Datagrams that found the receiver's socket buffer full: lost by this machine, not by the path.
    pub receiver_dropped_frames: u64,
    /// Datagrams that carried no stamp of this run.
    pub foreign_frames: u64,
    /// Datagrams without the kernel's stamp, for which the time of reading was taken.
    pub unstamped_frames: u64,
}

/// One run's arrivals.
pub(crate) struct Run {
    number: u8,
    kind: Kind,
    peer: IpAddr,
    overhead: u64,
    tai_offset_ns: u64,
    streams: Vec<StreamTally>,
    gaps: Histogram,
    last_ns: Option<u64>,
    arrivals: Vec<Arrival>,
    pub received: u64,
    foreign: u64,
    unstamped: u64,
    dropped_before: u32,
    dropped: u32,
}

impl Run {
    pub fn new(number: u8, kind: Kind, streams: u32, peer: IpAddr, clock: &Clock, dropped: u32) -> Self {
        let offset_s = u64::try_from(clock.tai_offset_s).unwrap_or(0);
        Self {
            number,
            kind,
            peer,
            overhead: frame_overhead(peer.is_ipv6()),
            tai_offset_ns: offset_s * 1_000_000_000,
            streams: vec![StreamTally::new(); streams.min(MAX_STREAMS) as usize],
            gaps: Histogram::new(),
            last_ns: None,
            arrivals: Vec::new(),
            received: 0,
            foreign: 0,
            unstamped: 0,
            dropped_before: dropped,
            dropped,
        }
    }

    /// Takes what has arrived; returns how many datagrams.
    pub fn drain(&mut self, socket: &UdpSocket, batch: &mut Batch) -> Result<usize, GenError> {
        batch
            .receive(socket, |datagram| self.take(&datagram))
            .map_err(GenError::io("receiving"))
    }

    fn take(&mut self, datagram: &Datagram) {
        if let Some(dropped) = datagram.dropped {
            self.dropped = dropped;
        }
        let stamp = datagram
            .start
            .get(..datagram.filled.min(STAMP_BYTES))
            .and_then(Stamp::from_payload)
            .filter(|s| s.run == self.number && datagram.from == Some(self.peer));
        let tally = stamp.and_then(|s| Some((s, self.streams.get_mut(usize::from(s.stream))?)));
        let Some((stamp, tally)) = tally else {
            self.foreign += 1;
            return;
        };
        let received_ns = if datagram.real_ns == 0 {
            self.unstamped += 1;
            tai_ns()
        } else {
            datagram.real_ns.saturating_add(self.tai_offset_ns)
        };
        self.received += 1;
        match self.kind {
            Kind::Report => {
                let frame_bytes = datagram.payload_bytes as u64 + self.overhead;
                tally.handle(&stamp, received_ns, frame_bytes);
                if let Some(last) = self.last_ns.replace(received_ns) {
                    self.gaps.record(received_ns.saturating_sub(last));
                }
            }
            // A train is one stream, and its numbers do not go round.
            Kind::Digest { .. } if (self.arrivals.len() as u64) < 2 * MAX_TRAIN_FRAMES => {
                self.arrivals.push(Arrival {
                    number: u64::from(stamp.sequence),
                    sent_ns: stamp.sent_ns,
                    received_ns,
                });
            }
            Kind::Digest { .. } => self.foreign += 1,
        }
    }

    /// Where the socket's count of drops stands.
    pub fn dropped(&self) -> u32 {
        self.dropped
    }

    pub fn digest(&mut self, frame_bytes: u64) -> TrainDigest {
        let d = digest(&mut self.arrivals, FrameBytes::new(frame_bytes));
        TrainDigest {
            received: d.received,
            sent_rate_bps: d.sent_rate.map_or(0, BitRate::bps),
            received_rate_bps: d.received_rate.map_or(0, BitRate::bps),
            slope_ppm: d.slope_ppm,
            slope_error_ppm: d.slope_error_ppm,
            busy_rate_bps: d.busy_rate.map_or(0, BitRate::bps),
            rise_ns: d.rise_ns,
            receiver_dropped: u64::from(self.dropped.wrapping_sub(self.dropped_before)),
        }
    }

    pub fn report(&self, sent: &[u64]) -> RunReport {
        let streams = (0u32..).zip(&self.streams).filter_map(|(number, tally)| {
            let report = tally.report(sent.get(number as usize).copied());
            (report.sent > 0 || report.bytes > FrameBytes::ZERO).then(|| StreamFigures::of(number, &report))
        });
        let g = self.gaps.summary();
        let gaps = [
            ("min", g.min),
            ("p50", g.p50),
            ("mean", g.mean),
            ("p99", g.p99),
            ("max", g.max),
        ];
        RunReport {
            streams: streams.collect(),
            arrival_gap_us: gaps
                .into_iter()
                .map(|(name, ns)| (name.to_owned(), ns as f64 / 1e3))
                .collect(),
            receiver_dropped_frames: u64::from(self.dropped.wrapping_sub(self.dropped_before)),
            foreign_frames: self.foreign,
            unstamped_frames: self.unstamped,
        }
    }
}
