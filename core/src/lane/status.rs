//! What an end tells of itself.

use crate::units::{BitRate, PicoDuration};
use alloc::vec::Vec;
use core::fmt;

/// Whether a lane is used for sending, and why not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaneState {
    /// No probe was answered yet, or its capacity is being measured for the first time.
    New,
    /// It carries packets.
    Used,
    /// It does not answer.
    Dead,
    /// It would make the bundle slower: its one-way delay is too far above the fastest lane's.
    TooSlow,
    /// It would make the bundle slower: it loses too much.
    Lossy,
    /// It was taken out by hand.
    Dropped,
}

impl LaneState {
    /// Its name in texts.
    pub fn name(self) -> &'static str {
        match self {
            LaneState::New => "new",
            LaneState::Used => "used",
            LaneState::Dead => "dead",
            LaneState::TooSlow => "too-slow",
            LaneState::Lossy => "lossy",
            LaneState::Dropped => "dropped",
        }
    }
}

impl fmt::Display for LaneState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneStatus {
    /// Whether it is used for sending.
    pub state: LaneState,
    /// What it is held to now, frame level.
    pub paced: BitRate,
    /// What its path carries, frame level.
    pub capacity: BitRate,
    /// Whether that is measured; stated otherwise.
    pub measured: bool,
    /// Smoothed round trip of its probes.
    pub rtt: Option<PicoDuration>,
    /// Its one-way delay towards the peer above the fastest lane's, as the peer sees it.
    pub skew: Option<PicoDuration>,
    /// Losses towards the peer in a million datagrams, a moving average.
    pub loss_ppm: u64,
    /// How much the delay from the peer varied of late.
    pub jitter: Option<PicoDuration>,
    /// Datagrams sent.
    pub sent: u64,
    /// Frame bytes sent.
    pub sent_bytes: u64,
    /// Datagrams that arrived.
    pub arrived: u64,
    /// Times that it went out of use.
    pub outages: u64,
}

/// What the sending side counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OutCounters {
    /// Packets that entered.
    pub entered: u64,
    /// Those of them that the full entry queue refused.
    pub refused: u64,
    /// Packets put on a lane.
    pub sent: u64,
    /// Second copies put on a lane.
    pub copies: u64,
    /// Packets sent again.
    pub repaired: u64,
    /// Packets asked for that the store no longer had.
    pub unrepairable: u64,
}

/// What the receiving side counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InCounters {
    /// Data that arrived.
    pub arrived: u64,
    /// Packets delivered in order.
    pub delivered: u64,
    /// Packets that had been there before.
    pub duplicates: u64,
    /// Packets behind their turn that were dropped.
    pub late_dropped: u64,
    /// Packets behind their turn that were delivered out of order.
    pub late_delivered: u64,
    /// Packets delivered in order but after their play-out time (of `delivered`).
    pub behind: u64,
    /// Numbers given up: lost.
    pub lost: u64,
    /// Packets that left early because the buffer was full.
    pub forced: u64,
    /// Numbers asked for.
    pub asked: u64,
    /// Data with a stamp or number that cannot be.
    pub invalid: u64,
    /// Most packets held.
    pub held_max: u64,
    /// Most bytes held.
    pub held_bytes_max: u64,
}

/// One end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BundleStatus {
    /// Its lanes.
    pub lanes: Vec<LaneStatus>,
    /// What it sent.
    pub out: OutCounters,
    /// What it received.
    pub inward: InCounters,
    /// How much faster its clock runs than the peer's, parts in 10^9.
    pub drift_ppb: i64,
    /// The peer's clock less ours, ns, and how far off that may be at most.
    pub offset_ns: Option<(i64, u64)>,
    /// Play-out time above the least delay of the fastest lane.
    pub play_out: PicoDuration,
}
