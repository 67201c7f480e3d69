//! Looking at a stream: counters at a moment, and the difference of two looks.

use crate::stream::{DataSocket, Shared};
use kuroshio_clock::now_ns;
use kuroshio_sock::{Framing, TcpInfo, tcp_info};
use serde::Serialize;

/// What a stream had counted at a moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Look {
    pub at_ns: u64,
    /// Payload bytes written or read.
    pub bytes: u64,
    /// Bytes of frames, MAC header to FCS; segments sent again count too.
    pub frame_bytes: u64,
    /// Payload bytes acknowledged; those read at a receiver.
    pub arrived: u64,
    /// Segments sent again.
    pub retransmits: u64,
    /// Datagrams sent or received.
    pub datagrams: u64,
    /// Highest number of a datagram sent or seen.
    pub highest: u64,
    pub lost: u64,
    pub out_of_order: u64,
    pub jitter_s: f64,
    pub info: Option<TcpInfo>,
}

/// Turns what a socket says into running counts; the kernel's own are of 32 bits in places.
#[derive(Debug)]
pub(crate) struct Looker {
    sends: bool,
    ipv6: bool,
    datagram: Option<Framing>,
    before: Option<TcpInfo>,
    frame_bytes: u64,
    retransmits: u64,
}

impl Looker {
    pub(crate) fn new(sends: bool, ipv6: bool, datagram: Option<Framing>) -> Self {
        Self {
            sends,
            ipv6,
            datagram,
            before: None,
            frame_bytes: 0,
            retransmits: 0,
        }
    }

    pub(crate) fn look(&mut self, socket: &DataSocket, shared: &Shared) -> Look {
        let mut look = Look {
            at_ns: now_ns(),
            bytes: shared.bytes(),
            ..Look::default()
        };
        match socket {
            DataSocket::Tcp(socket) => {
                // A socket that is gone says nothing more: the last counts stay.
                let info = tcp_info(socket).ok().or(self.before);
                if let Some(info) = info {
                    self.count_tcp(&info);
                    look.arrived = if self.sends { info.bytes_acked } else { look.bytes };
                }
                look.info = info;
                look.frame_bytes = self.frame_bytes;
                look.retransmits = self.retransmits;
            }
            DataSocket::Udp(_) => {
                let tally = shared.tally();
                (look.datagrams, look.highest) = if self.sends {
                    (shared.sent(), shared.sent())
                } else {
                    (tally.received, tally.highest)
                };
                (look.lost, look.out_of_order, look.jitter_s) =
                    (tally.lost, tally.out_of_order, tally.jitter_s);
                look.arrived = look.bytes;
                look.frame_bytes = self.datagram.map_or(0, |framing| {
                    let headers = u64::from(framing.frame.get() - framing.payload.get());
                    look.bytes + headers * look.datagrams
                });
            }
        }
        look
    }

    fn count_tcp(&mut self, info: &TcpInfo) {
        let before = self.before.replace(*info).unwrap_or_default();
        let headers = info
            .framing(self.ipv6)
            .map_or(0, |f| u64::from(f.frame.get() - f.payload.get()));
        let (payload, segments) = if self.sends {
            (
                info.bytes_sent.saturating_sub(before.bytes_sent),
                info.data_segments_sent.wrapping_sub(before.data_segments_sent),
            )
        } else {
            (
                info.bytes_received.saturating_sub(before.bytes_received),
                info.data_segments_received
                    .wrapping_sub(before.data_segments_received),
            )
        };
        self.frame_bytes += payload + headers * u64::from(segments);
        self.retransmits += u64::from(info.retrans_segments.wrapping_sub(before.retrans_segments));
    }
}

/// One stream over a stretch of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct StreamSpan {
    /// The stream's number.
    pub id: u32,
    /// Whether this side sends on it.
    pub sends: bool,
    /// Begin, seconds; 0 is the end of the omitted time.
    pub start_s: f64,
    /// End, seconds.
    pub end_s: f64,
    /// Payload bytes written or read.
    pub bytes: u64,
    /// Bytes of frames.
    pub frame_bytes: u64,
    /// Payload bytes acknowledged, or read.
    pub arrived_bytes: u64,
    /// Segments sent again.
    pub retransmits: u64,
    /// Datagrams sent or received.
    pub datagrams: u64,
    /// Datagrams sent, or expected by their numbers.
    pub expected: u64,
    /// Datagrams lost.
    pub lost: u64,
    /// Datagrams out of order.
    pub out_of_order: u64,
    /// Jitter at the end, seconds.
    pub jitter_s: f64,
    /// Congestion window at the end, bytes of payload.
    pub cwnd_bytes: u64,
    /// The other side's window at the end, bytes.
    pub peer_window_bytes: u64,
    /// Smoothed round-trip time at the end, microseconds.
    pub rtt_us: u32,
    /// Its variation, microseconds.
    pub rtt_var_us: u32,
    /// Path MTU, bytes.
    pub path_mtu_bytes: u32,
}

impl StreamSpan {
    /// What happened from `from` to `to`; times count from `zero_ns`.
    pub(crate) fn between(id: u32, sends: bool, from: &Look, to: &Look, zero_ns: u64) -> Self {
        let info = to.info.unwrap_or_default();
        let seconds = |ns: u64| ns.cast_signed().wrapping_sub(zero_ns.cast_signed()) as f64 / 1e9;
        let since = |get: fn(&Look) -> u64| get(to).saturating_sub(get(from));
        Self {
            id,
            sends,
            start_s: seconds(from.at_ns),
            end_s: seconds(to.at_ns),
            bytes: since(|l| l.bytes),
            frame_bytes: since(|l| l.frame_bytes),
            arrived_bytes: since(|l| l.arrived),
            retransmits: since(|l| l.retransmits),
            datagrams: since(|l| l.datagrams),
            expected: since(|l| l.highest),
            lost: since(|l| l.lost),
            out_of_order: since(|l| l.out_of_order),
            jitter_s: to.jitter_s,
            cwnd_bytes: u64::from(info.cwnd_segments) * u64::from(info.snd_mss),
            peer_window_bytes: u64::from(info.peer_window_bytes),
            rtt_us: info.rtt_us,
            rtt_var_us: info.rtt_var_us,
            path_mtu_bytes: info.path_mtu_bytes,
        }
    }

    /// The stretch's length, seconds.
    pub fn seconds(&self) -> f64 {
        self.end_s - self.start_s
    }

    /// Payload per second, bit/s.
    pub fn goodput_bps(&self) -> f64 {
        rate_bps(self.bytes, self.seconds())
    }

    /// Frames per second, bit/s.
    pub fn frame_rate_bps(&self) -> f64 {
        rate_bps(self.frame_bytes, self.seconds())
    }
}

/// Bits per second of bytes in a time; 0 where there is no time.
pub(crate) fn rate_bps(bytes: u64, seconds: f64) -> f64 {
    if seconds > 0.0 {
        8.0 * bytes as f64 / seconds
    } else {
        0.0
    }
}

/// The extremes of a TCP sender over a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Extremes {
    /// Largest congestion window, bytes.
    pub max_cwnd_bytes: u64,
    /// Largest window of the other side, bytes.
    pub max_peer_window_bytes: u64,
    /// Least round-trip time, microseconds.
    pub min_rtt_us: u32,
    /// Largest smoothed round-trip time, microseconds.
    pub max_rtt_us: u32,
    /// Mean of the smoothed round-trip times, microseconds.
    pub mean_rtt_us: u32,
    #[serde(skip)]
    sum_rtt_us: u64,
    #[serde(skip)]
    looks: u64,
}

impl Extremes {
    pub(crate) fn take(&mut self, info: &TcpInfo) {
        let cwnd = u64::from(info.cwnd_segments) * u64::from(info.snd_mss);
        self.max_cwnd_bytes = self.max_cwnd_bytes.max(cwnd);
        self.max_peer_window_bytes = self.max_peer_window_bytes.max(info.peer_window_bytes.into());
        if info.rtt_us == 0 {
            return;
        }
        self.max_rtt_us = self.max_rtt_us.max(info.rtt_us);
        self.min_rtt_us = match self.min_rtt_us {
            0 => info.rtt_us,
            least => least.min(info.rtt_us),
        };
        self.sum_rtt_us += u64::from(info.rtt_us);
        self.looks += 1;
        self.mean_rtt_us = u32::try_from(self.sum_rtt_us / self.looks).unwrap_or(u32::MAX);
    }
}
