//! Where the headers of a frame are, and the Internet checksum kept right when a word changes.
//!
//! A word `m` of a checksummed header becomes `m'`: `HC' = ~(~HC + ~m + m')` in ones' complement
//! arithmetic (RFC 1624, equation 3). Sources: IEEE 802.1Q, RFC 791, RFC 8200, RFC 1071, RFC 1624.

use crate::wire::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, EXTENSIONS_MAX, VLAN_TAGS_MAX};

/// EtherType of an 802.1Q tag.
pub(super) const TAG: u16 = 0x8100;
/// EtherType of an 802.1ad tag.
pub(super) const PROVIDER_TAG: u16 = 0x88a8;
/// Offset of the first type field.
pub(super) const TYPE_AT: usize = 12;
/// Bytes of an 802.1Q tag.
pub(super) const TAG_BYTES: usize = 4;

/// Which network protocol, and where its header starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Network {
    /// IPv4, with at least 20 bytes at hand.
    V4(usize),
    /// IPv6, with at least 40 bytes at hand.
    V6(usize),
    /// Neither.
    Other(usize),
}

/// The network header of a frame, behind its tags; `None` when the frame is cut before it.
pub(super) fn network(frame: &[u8]) -> Option<Network> {
    let mut at = TYPE_AT;
    let mut kind = word(frame, at)?;
    for _ in 0..VLAN_TAGS_MAX {
        if kind != TAG && kind != PROVIDER_TAG {
            break;
        }
        at += TAG_BYTES;
        kind = word(frame, at)?;
    }
    let at = at + 2;
    let first = frame.get(at)?;
    let rest = frame.len() - at;
    Some(match (kind, first >> 4) {
        (ETHERTYPE_IPV4, 4) if rest >= 20 => Network::V4(at),
        (ETHERTYPE_IPV6, 6) if rest >= 40 => Network::V6(at),
        _ => Network::Other(at),
    })
}

/// The 16-bit word at an offset.
pub(super) fn word(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|b| u16::from_be_bytes(*b))
}

/// Writes a word; nothing when it is beyond the end.
pub(super) fn put(bytes: &mut [u8], at: usize, value: u16) {
    if let Some(place) = bytes.get_mut(at..).and_then(|b| b.first_chunk_mut()) {
        *place = value.to_be_bytes();
    }
}

/// The checksum after a word that it covers changed from `old` to `new`.
pub(super) fn updated(checksum: u16, old: u16, new: u16) -> u16 {
    let sum = u32::from(!checksum) + u32::from(!old) + u32::from(new);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    // Folded twice, the sum of three words is below 2^16.
    !(sum as u16)
}

/// Updates the checksum that stands at `at` for a changed word.
pub(super) fn update(bytes: &mut [u8], at: usize, old: u16, new: u16) {
    if let Some(checksum) = word(bytes, at) {
        put(bytes, at, updated(checksum, old, new));
    }
}

/// Protocol and offset of the transport header; `None` for a later fragment, or when it is cut off.
pub(super) fn transport(frame: &[u8], network: Network) -> Option<(u8, usize)> {
    match network {
        Network::V4(at) => {
            let header = usize::from(frame.get(at)? & 0x0f) * 4;
            let first = word(frame, at + 6)? & 0x1fff == 0;
            let protocol = *frame.get(at + 9)?;
            (first && header >= 20).then_some((protocol, at + header))
        }
        Network::V6(at) => {
            let mut next = *frame.get(at + 6)?;
            let mut here = at + 40;
            for _ in 0..EXTENSIONS_MAX {
                let length = match next {
                    // Hop-by-hop options, routing, destination options.
                    0 | 43 | 60 => (usize::from(*frame.get(here + 1)?) + 1) * 8,
                    44 if word(frame, here + 2)? >> 3 != 0 => return None,
                    44 => 8,
                    _ => break,
                };
                next = *frame.get(here)?;
                here += length;
            }
            Some((next, here))
        }
        Network::Other(_) => None,
    }
}
