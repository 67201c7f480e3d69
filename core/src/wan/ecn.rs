//! Marking a packet as one that has met congestion.
//!
//! ```text
//!   ECN field: 00 not ECN-capable   01 or 10 capable   11 congestion experienced (CE)
//!   IPv4: bits 6 and 7 of the second byte, covered by the header checksum
//!   IPv6: bits 2 and 3 of the second byte (the low bits of the traffic class), no checksum
//! ```
//!
//! Source: RFC 3168, sections 5 and 23.1.

use super::header::{Network, network, put, update, word};

/// What marking did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// The packet's ends do not understand marks: it has to be dropped instead.
    NotCapable,
    /// It now carries CE, or already did.
    Marked,
}

const CE: u16 = 0b11;

/// Sets CE in an IPv4 or IPv6 packet whose ends are ECN-capable.
pub fn mark(frame: &mut [u8]) -> Mark {
    let (at, shift, checksum) = match network(frame) {
        Some(Network::V4(at)) => (at, 0, Some(at + 10)),
        Some(Network::V6(at)) => (at, 4, None),
        _ => return Mark::NotCapable,
    };
    let Some(old) = word(frame, at) else {
        return Mark::NotCapable;
    };
    if old & (CE << shift) == 0 {
        return Mark::NotCapable;
    }
    let new = old | (CE << shift);
    put(frame, at, new);
    if let Some(checksum) = checksum {
        update(frame, checksum, old, new);
    }
    Mark::Marked
}
