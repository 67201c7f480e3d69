//! What sends and receives.

use super::{
    source::{OnOff, Running},
    stage::StageId,
};
use crate::tcp::{Receiver, ReceiverConfig, Segment, Sender, SenderConfig, Sizes};
use crate::units::PicoDuration;
use alloc::{boxed::Box, vec::Vec};

/// A flow of a [`Network`](super::Network), by the order in which it was added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowId(pub u32);

impl FlowId {
    pub(super) fn index(self) -> usize {
        self.0 as usize
    }
}

/// What travels through the stages.
#[derive(Debug, Clone, Copy)]
pub(super) struct Packet {
    pub flow: FlowId,
    /// Position on the way.
    pub hop: u16,
    /// Whether it goes from the receiver to the sender.
    pub back: bool,
    pub segment: Segment,
}

/// A TCP connection.
#[derive(Debug, Clone)]
pub struct TcpFlow {
    /// Its sender.
    pub sender: SenderConfig,
    /// Its receiver.
    pub receiver: ReceiverConfig,
    /// Stages from the sender to the receiver; the first is the sender's interface.
    pub forward: Vec<StageId>,
    /// Stages from the receiver to the sender.
    pub backward: Vec<StageId>,
}

/// Frames by the clock.
#[derive(Debug, Clone)]
pub struct OnOffFlow {
    /// Its source.
    pub source: OnOff,
    /// Stages to the receiver.
    pub forward: Vec<StageId>,
}

/// The part of the smoothed queueing time that every frame replaces (PSPacer's sch_psp.c, `QTIME_ALPHA` 4).
const QUEUE_TIME_PART: u64 = 16;

#[derive(Debug, Clone)]
pub(super) struct Tcp {
    pub sender: Sender,
    pub receiver: Receiver,
    pub sizes: Sizes,
    /// Bytes in the sender's interface, and the most before it waits (TSQ).
    pub local_bytes: u64,
    pub local_limit: u64,
    /// The shaper of the interface follows the window (dynamic pacing).
    pub window_paced: bool,
    /// How long its frames wait in the interface, smoothed by a sixteenth; `None` before the first.
    pub queue_time: Option<PicoDuration>,
}

impl Tcp {
    /// A frame that waited so long leaves the interface.
    pub fn waited(&mut self, time: PicoDuration) {
        let smoothed = self.queue_time.map_or(time, |old| {
            let old = old.as_ps();
            PicoDuration::from_ps(old - old / QUEUE_TIME_PART + time.as_ps() / QUEUE_TIME_PART)
        });
        self.queue_time = Some(smoothed);
    }
}

#[derive(Debug, Clone)]
pub(super) enum End {
    Tcp(Box<Tcp>),
    OnOff(Running),
}

#[derive(Debug, Clone)]
pub(super) struct Flow {
    pub end: End,
    pub forward: Vec<StageId>,
    pub backward: Vec<StageId>,
}
