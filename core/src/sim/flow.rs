//! What sends and receives.

use super::{
    source::{OnOff, Running},
    stage::StageId,
};
use crate::{
    tcp::{Kind, Receiver, ReceiverConfig, Segment, Sender, SenderConfig, Sizes},
    units::{PayloadBytes, PicoDuration, PicoTime},
    wan::{Cargo, Mark},
    wire::{FlowKey, PROTOCOL_TCP, PROTOCOL_UDP, Packet as IpPacket, TcpFlags, TcpHeader},
};
use alloc::{boxed::Box, collections::VecDeque, vec::Vec};
use core::net::{IpAddr, Ipv4Addr};

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
    /// Whether it is a datagram of a source.
    pub datagram: bool,
}

impl Cargo for Packet {
    fn copy(&self) -> Option<Self> {
        Some(*self)
    }

    /// What names of frames go by: the flow (its number stands for the addresses), the payload and the flags.
    fn packet(&self) -> Option<IpPacket> {
        const SYN: u8 = 0x02;
        const ACK: u8 = 0x10;
        let flow = IpAddr::V4(Ipv4Addr::from_bits(self.flow.0));
        let (source_port, destination_port) = if self.back { (1, 0) } else { (0, 1) };
        let flags = match self.segment.kind {
            Kind::Syn => SYN,
            Kind::SynAck => SYN | ACK,
            Kind::Data | Kind::Ack => ACK,
        };
        Some(IpPacket {
            flow: FlowKey {
                protocol: if self.datagram { PROTOCOL_UDP } else { PROTOCOL_TCP },
                source: flow,
                destination: flow,
                source_port,
                destination_port,
            },
            tcp: (!self.datagram).then_some(TcpHeader {
                // Numbers are not looked at, and a header holds 32 bits of them.
                sequence: self.segment.seq as u32,
                acknowledgement: self.segment.ack as u32,
                flags: TcpFlags(flags),
                window: 0,
            }),
            payload: PayloadBytes::new(u64::from(self.segment.len)),
        })
    }

    fn mark(&mut self) -> Mark {
        Mark::NotCapable
    }
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
    /// ACKs that wait for the sender's processor, where its time is counted.
    pub inbox: VecDeque<Segment>,
    pub has_cpu: bool,
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

impl Tcp {
    /// An ACK has arrived. A sender whose processor's time is counted looks at it when it has sent all that it may
    /// and the processor is free: as in the kernel, where one soft interrupt handles an ACK and sends what
    /// that allows before it takes the next.
    #[inline]
    pub fn take_ack(&mut self, now: PicoTime, segment: &Segment) {
        if self.has_cpu {
            self.inbox.push_back(*segment);
        } else {
            self.sender.handle_segment(now, segment);
        }
    }

    /// Looks at the next ACK that waits, if the processor is free; says whether it did.
    #[inline]
    pub fn next_ack(&mut self, now: PicoTime) -> bool {
        if self.inbox.is_empty() || self.sender.busy_to() > now {
            return false;
        }
        let Some(segment) = self.inbox.pop_front() else {
            return false;
        };
        self.sender.handle_segment(now, &segment);
        true
    }

    /// When the next ACK that waits can be looked at.
    #[inline]
    pub fn inbox_at(&self) -> Option<PicoTime> {
        (!self.inbox.is_empty()).then(|| self.sender.busy_to())
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
