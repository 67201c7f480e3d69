//! What a stream is to a meter: the outer VLAN tag, the EtherType and the 5-tuple of a frame.
//!
//! One direction of a TCP connection is one stream. Frames without IP are one stream per EtherType and VLAN.

use crate::wire::{FlowKey, FrameView};
use core::fmt;

const ETHERTYPE_VLAN: u16 = 0x8100;
const ETHERTYPE_PROVIDER_VLAN: u16 = 0x88a8;

/// A stream, by what its frames have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamKey {
    /// Identifier of the outermost tag (802.1Q or 802.1ad), 0 to 4095.
    pub vlan: Option<u16>,
    /// EtherType behind the tags; a length when below 1536; 0 of a frame that is cut short.
    pub ethertype: u16,
    /// The 5-tuple, for IP.
    pub flow: Option<FlowKey>,
}

impl StreamKey {
    /// Reads a frame, and the bytes behind its transport header as its IP length says. Any bytes are taken: a frame
    /// that cannot be read has EtherType 0 and no payload.
    pub fn of(frame: &[u8]) -> (StreamKey, u32) {
        let word = |at: usize| frame.get(at..)?.first_chunk().map(|b| u16::from_be_bytes(*b));
        let vlan = match word(12) {
            Some(ETHERTYPE_VLAN | ETHERTYPE_PROVIDER_VLAN) => word(14).map(|tag| tag & 0x0fff),
            _ => None,
        };
        let view = FrameView::new(frame);
        let packet = view.as_ref().and_then(FrameView::packet);
        let key = StreamKey {
            vlan,
            ethertype: view.map_or(0, |v| v.ethertype()),
            flow: packet.map(|p| p.flow),
        };
        let payload = packet.map_or(0, |p| u32::try_from(p.payload.get()).unwrap_or(u32::MAX));
        (key, payload)
    }
}

impl fmt::Display for StreamKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(vlan) = self.vlan {
            write!(f, "vlan {vlan} ")?;
        }
        match self.flow {
            Some(flow) => flow.fmt(f),
            None => write!(f, "ethertype 0x{:04x}", self.ethertype),
        }
    }
}
