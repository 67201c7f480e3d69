//! What a sender is, and what it counts.

use crate::{
    tcp::{
        cc::{Algorithm, FAST_ALPHA},
        profile::Profile,
        segment::Sizes,
    },
    units::{BitRate, PicoDuration, PicoTime},
};

/// Pacing inside TCP, at frame level, by [`core::pace::ByteClockPacer`](crate::pace::ByteClockPacer).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Pacing {
    /// As fast as the interface takes it.
    #[default]
    None,
    /// At a rate (static; `SO_MAX_PACING_RATE` at frame level). A rate beyond the pacer's range is as none.
    Rate(BitRate),
    /// At one window per round trip (dynamic: `frame * cwnd / RTT`).
    Window,
}

/// What a full interface queue means.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LocalCongestion {
    /// The window is reduced, as Linux does (`tcp_enter_cwr`).
    #[default]
    Reduce,
    /// The window is left alone (Web100's `WAD_IFQ`).
    Ignore,
}

/// What a sender is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SenderConfig {
    /// Its stack.
    pub profile: Profile,
    /// Its congestion control.
    pub algorithm: Algorithm,
    /// Segments that FAST keeps in queues.
    pub fast_alpha: u32,
    /// Sizes of its segments.
    pub sizes: Sizes,
    /// When it connects.
    pub start: PicoTime,
    /// Payload to send; without end when `None`.
    pub source_bytes: Option<u64>,
    /// Most payload that is sent and not acknowledged, bytes: the usable part of the send buffer.
    pub send_buffer: u64,
    /// Pacing inside TCP.
    pub pacing: Pacing,
    /// What a full interface queue means.
    pub local_congestion: LocalCongestion,
    /// CPU time for every data frame sent.
    pub cpu_per_frame: PicoDuration,
    /// CPU time for every ACK received.
    pub cpu_per_ack: PicoDuration,
    /// Longest additional time before the reaction to an arrival, drawn evenly: without any, streams lock
    /// their phases to the bottleneck's (Floyd, Jacobson, "On traffic phase effects in packet-switched
    /// gateways", 1992, which advises one service time of the bottleneck).
    pub reaction_max: PicoDuration,
    /// Seed of those draws.
    pub seed: u64,
}

impl SenderConfig {
    /// An endless source without pacing, with buffers that never limit.
    pub fn new(profile: Profile, algorithm: Algorithm, sizes: Sizes) -> Self {
        SenderConfig {
            profile,
            algorithm,
            fast_alpha: FAST_ALPHA,
            sizes,
            start: PicoTime::ZERO,
            source_bytes: None,
            send_buffer: u64::MAX,
            pacing: Pacing::None,
            local_congestion: LocalCongestion::Reduce,
            cpu_per_frame: PicoDuration::ZERO,
            cpu_per_ack: PicoDuration::ZERO,
            reaction_max: PicoDuration::ZERO,
            seed: 0,
        }
    }
}

/// A window that was cut, by a loss or by the interface's full queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// When.
    pub at: PicoTime,
    /// The window before, segments.
    pub cwnd: u32,
    /// The threshold after, segments.
    pub ssthresh: u32,
    /// What the congestion control searches for from now on (BIC's last maximum, CUBIC's `W_max`), segments;
    /// the window before for those that search for nothing.
    pub target: u32,
    /// Whether the window was in slow start.
    pub in_slow_start: bool,
    /// Whether the retransmission timer cut it.
    pub timeout: bool,
}

/// What a sender has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SenderStats {
    /// Segments that the host took, SYNs too.
    pub sent_segments: u64,
    /// Those of them that were sent again.
    pub resent_segments: u64,
    /// Segments acknowledged.
    pub acked_segments: u64,
    /// Times that a recovery began.
    pub recoveries: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Segments that the interface queue refused.
    pub local_drops: u64,
    /// Times that local congestion reduced the window.
    pub local_reductions: u64,
    /// Largest congestion window, segments.
    pub cwnd_max: u32,
}
