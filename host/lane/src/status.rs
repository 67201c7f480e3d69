//! What `kuroshio lane status` prints.

use kuroshio_core::lane::BundleStatus;
use serde::{Deserialize, Serialize};

use crate::{late::Lateness, seal::SealCounters};

/// One lane.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LaneLine {
    /// Its name in the configuration.
    pub name: String,
    /// `new`, `used`, `dead`, `too-slow`, `lossy` or `dropped`.
    pub state: String,
    /// What it is held to, frame level.
    pub paced_bps: u64,
    /// What its path carries, frame level.
    pub capacity_bps: u64,
    /// Whether that is measured; stated otherwise.
    pub capacity_measured: bool,
    /// Round trip of its probes.
    pub rtt_us: Option<u64>,
    /// One-way delay above the fastest lane's.
    pub skew_us: Option<u64>,
    /// Losses in a million.
    pub loss_ppm: u64,
    /// How much the delay from the peer varied in the last second.
    pub jitter_us: Option<u64>,
    /// Datagrams sent.
    pub sent: u64,
    /// Frame bytes sent.
    pub sent_bytes: u64,
    /// Datagrams that arrived.
    pub arrived: u64,
    /// Times that it went out of use.
    pub outages: u64,
    /// MTU of its path, bytes of IP packet.
    pub mtu_bytes: u32,
}

/// A tunnel.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TunnelStatus {
    /// Its interface.
    pub name: String,
    /// Whether the peer has been heard and a session is open.
    pub open: bool,
    /// MTU of the interface, bytes.
    pub mtu_bytes: u32,
    /// Its lanes.
    pub lanes: Vec<LaneLine>,
    /// Packets that entered, were refused by the full queue, sent, copied, sent again.
    pub entered: u64,
    /// Packets that the full entry queue refused.
    pub refused: u64,
    /// Packets sent again.
    pub repaired: u64,
    /// Packets delivered in order.
    pub delivered: u64,
    /// Packets given up.
    pub lost: u64,
    /// Packets that came twice.
    pub duplicates: u64,
    /// Packets behind their turn, dropped and delivered.
    pub late_dropped: u64,
    /// Packets behind their turn that were delivered.
    pub late_delivered: u64,
    /// Play-out time above the fastest lane's least delay.
    pub play_out_us: u64,
    /// How much faster this clock runs than the peer's.
    pub drift_ppb: i64,
    /// The peer's clock less ours, and how far off that may be.
    pub offset_ns: Option<i64>,
    /// Bound of the offset.
    pub offset_error_ns: Option<u64>,
    /// Datagrams turned away and sessions made.
    pub seal: serde_json::Value,
    /// Most packets held at a time.
    pub held_max: u64,
    /// Packets delivered in order but after their play-out time.
    pub behind: u64,
    /// How late the thread came to send what was due: half of the times, 99 of 100 times, and the longest of the last ten seconds.
    pub late_p50_us: u64,
    /// 99 of 100 times.
    pub late_p99_us: u64,
    /// The longest.
    pub late_max_us: u64,
}

impl TunnelStatus {
    pub(crate) fn new(
        name: &str,
        lanes: &[(String, u32)],
        mtu_bytes: u32,
        open: bool,
        bundle: &BundleStatus,
        seal: &SealCounters,
        lateness: &Lateness,
    ) -> Self {
        let lines = bundle
            .lanes
            .iter()
            .zip(lanes)
            .map(|(lane, (name, mtu))| LaneLine {
                name: name.clone(),
                state: lane.state.name().to_owned(),
                paced_bps: lane.paced.bps(),
                capacity_bps: lane.capacity.bps(),
                capacity_measured: lane.measured,
                rtt_us: lane.rtt.map(|d| d.as_us()),
                skew_us: lane.skew.map(|d| d.as_us()),
                loss_ppm: lane.loss_ppm,
                jitter_us: lane.jitter.map(|d| d.as_us()),
                sent: lane.sent,
                sent_bytes: lane.sent_bytes,
                arrived: lane.arrived,
                outages: lane.outages,
                mtu_bytes: *mtu,
            });
        Self {
            name: name.to_owned(),
            open,
            mtu_bytes,
            lanes: lines.collect(),
            entered: bundle.out.entered,
            refused: bundle.out.refused,
            repaired: bundle.out.repaired,
            delivered: bundle.inward.delivered,
            lost: bundle.inward.lost,
            duplicates: bundle.inward.duplicates,
            late_dropped: bundle.inward.late_dropped,
            late_delivered: bundle.inward.late_delivered,
            play_out_us: bundle.play_out.as_us(),
            drift_ppb: bundle.drift_ppb,
            offset_ns: bundle.offset_ns.map(|(offset, _)| offset),
            offset_error_ns: bundle.offset_ns.map(|(_, bound)| bound),
            seal: serde_json::to_value(seal).unwrap_or_default(),
            held_max: bundle.inward.held_max,
            behind: bundle.inward.behind,
            late_p50_us: lateness.quantile_us(500),
            late_p99_us: lateness.quantile_us(990),
            late_max_us: lateness.longest().as_us(),
        }
    }
}
