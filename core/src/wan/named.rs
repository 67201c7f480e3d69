//! Frames that are lost by name: "the 3rd data segment of flow 2".
//!
//! Flows of TCP and UDP are numbered from 1 in the order in which a link first sees them in its direction; each
//! counts its frames by kind. A frame that is sent again counts again. The frame with a name takes its
//! turn in the queue and on the wire and is lost behind it, like any other loss.

use crate::{
    units::PayloadBytes,
    wire::{FlowKey, PROTOCOL_TCP, PROTOCOL_UDP, Packet},
};
use alloc::{collections::BTreeMap, vec::Vec};

/// Most names of a link.
pub const MAX_NAMED: usize = 1_024;
/// Flows that are numbered and counted; later ones have no names.
pub const MAX_FLOWS: usize = 65_536;

/// What kind of frame is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameKind {
    /// Every frame of the flow.
    Any,
    /// With payload.
    Data,
    /// TCP with ACK and without payload, SYN and FIN.
    Ack,
    /// TCP with SYN.
    Syn,
    /// TCP with FIN.
    Fin,
}

const KINDS: [FrameKind; 5] = [
    FrameKind::Any,
    FrameKind::Data,
    FrameKind::Ack,
    FrameKind::Syn,
    FrameKind::Fin,
];

impl FrameKind {
    fn holds(self, packet: &Packet) -> bool {
        let flags = packet.tcp.map(|t| t.flags);
        let data = packet.payload > PayloadBytes::ZERO;
        match self {
            FrameKind::Any => true,
            FrameKind::Data => data,
            FrameKind::Ack => flags.is_some_and(|f| f.ack() && !f.syn() && !f.fin() && !data),
            FrameKind::Syn => flags.is_some_and(|f| f.syn()),
            FrameKind::Fin => flags.is_some_and(|f| f.fin()),
        }
    }
}

/// The name of one frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameName {
    /// Number of its flow, from 1.
    pub flow: u32,
    /// What is counted.
    pub kind: FrameKind,
    /// Its number among the flow's frames of this kind, from 1.
    pub nth: u64,
}

#[derive(Debug, Clone)]
struct Flow {
    number: u32,
    seen: [u64; KINDS.len()],
}

/// The names of a link and what it has counted.
#[derive(Debug, Clone, Default)]
pub(super) struct Named {
    names: Vec<FrameName>,
    flows: BTreeMap<FlowKey, Flow>,
}

impl Named {
    /// Changes the names. Numbers and counts of the flows go on while there are names.
    pub fn set(&mut self, names: &[FrameName]) {
        self.names.clear();
        self.names.extend(names.iter().take(MAX_NAMED));
        if self.names.is_empty() {
            self.flows.clear();
        }
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Counts a packet, and says whether it has one of the names.
    pub fn meets(&mut self, packet: &Packet) -> bool {
        if packet.flow.protocol != PROTOCOL_TCP && packet.flow.protocol != PROTOCOL_UDP {
            return false;
        }
        let flows = self.flows.len();
        let flow = match self.flows.get_mut(&packet.flow) {
            Some(flow) => flow,
            None if flows >= MAX_FLOWS => return false,
            None => self.flows.entry(packet.flow).or_insert(Flow {
                // Below MAX_FLOWS.
                number: flows as u32 + 1,
                seen: [0; KINDS.len()],
            }),
        };
        let mut met = false;
        for (kind, seen) in KINDS.into_iter().zip(&mut flow.seen) {
            if kind.holds(packet) {
                *seen += 1;
                let here = FrameName {
                    flow: flow.number,
                    kind,
                    nth: *seen,
                };
                met |= self.names.contains(&here);
            }
        }
        met
    }
}
