//! A serial medium and what is on it: the bytes of a frame at each level, frames as views, PAUSE.
//!
//! ```text
//!  | preamble 8 | dst 6 | src 6 | type 2 | payload, padded to 46 | FCS 4 | gap 12 or more |
//!               |<------------------- frame, 64 or more -------------->|
//!  |<------------------------------------ L1: frame + 20 -------------------------------->|
//! ```
//!
//! Source: IEEE 802.3 clause 3 (frame), clause 4 (gap), annex 31B (PAUSE).

mod level;
mod line;
mod pause;
mod view;

pub use level::{MTU_MAX, MTU_MIN, MTU_MIN_V6, TcpLevels, tcp_levels, tcp_levels_v6};
pub use line::{
    ETHERNET_HEADER, FCS, FRAME_MIN, IFG_MIN, L1_OVERHEAD, LineRate, PREAMBLE, frame_of_capture, l1_bytes,
    pad,
};
pub use pause::{
    PAUSE_DESTINATION, PAUSE_FRAME, PAUSE_OPCODE, QUANTUM_BYTES, frame_check_sequence, pause_frame,
    pause_quanta, pause_time,
};
pub use view::{
    ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_MAC_CONTROL, EXTENSIONS_MAX, FlowKey, FrameView, MacAddr,
    PROTOCOL_TCP, PROTOCOL_UDP, Packet, TcpFlags, TcpHeader, VLAN_TAGS_MAX, packet_of,
};

#[cfg(test)]
mod tests;
