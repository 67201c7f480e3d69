//! Headers of a frame that is built here: Ethernet, IPv4 or IPv6, UDP.

use std::net::SocketAddr;

/// Bytes of a frame beside its UDP payload with IPv4: Ethernet 14 and 4 (FCS), IP 20, UDP 8.
pub const UDP4_OVERHEAD: u64 = 46;
/// The same with IPv6: its header is 20 bytes longer.
pub const UDP6_OVERHEAD: u64 = 66;

/// Bytes of a frame (with FCS) beside its UDP payload.
#[must_use]
pub fn frame_overhead(v6: bool) -> u64 {
    if v6 { UDP6_OVERHEAD } else { UDP4_OVERHEAD }
}

/// UDP's protocol number.
const UDP: u8 = 17;
/// Hops that a frame may take.
const HOPS: u8 = 64;

/// A frame without FCS around a UDP payload.
pub(crate) fn build(
    to_mac: [u8; 6],
    from_mac: [u8; 6],
    from: SocketAddr,
    to: SocketAddr,
    payload: &[u8],
    out: &mut Vec<u8>,
) {
    out.clear();
    out.extend(to_mac);
    out.extend(from_mac);
    // A payload has at most 9018 bytes.
    let udp_len = (payload.len() + 8) as u16;
    let pseudo = match (from, to) {
        (SocketAddr::V4(a), SocketAddr::V4(b)) => {
            out.extend([0x08, 0x00]);
            let start = out.len();
            out.extend([0x45, 0]);
            out.extend((udp_len + 20).to_be_bytes());
            // No identification, never to be fragmented.
            out.extend([0, 0, 0x40, 0, HOPS, UDP, 0, 0]);
            out.extend(a.ip().octets());
            out.extend(b.ip().octets());
            let sum = finish(add(0, out.get(start..).unwrap_or_default()));
            if let Some(place) = out.get_mut(start + 10..start + 12) {
                place.copy_from_slice(&sum.to_be_bytes());
            }
            add(add(0, &a.ip().octets()), &b.ip().octets())
        }
        (SocketAddr::V6(a), SocketAddr::V6(b)) => {
            out.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            out.extend(udp_len.to_be_bytes());
            out.extend([UDP, HOPS]);
            out.extend(a.ip().octets());
            out.extend(b.ip().octets());
            add(add(0, &a.ip().octets()), &b.ip().octets())
        }
        _ => return,
    };
    let start = out.len();
    out.extend(from.port().to_be_bytes());
    out.extend(to.port().to_be_bytes());
    out.extend(udp_len.to_be_bytes());
    out.extend([0, 0]);
    out.extend(payload);
    let sum = pseudo + u64::from(UDP) + u64::from(udp_len);
    let sum = match finish(add(sum, out.get(start..).unwrap_or_default())) {
        // Zero means that there is none (RFC 768).
        0 => 0xffff,
        sum => sum,
    };
    if let Some(place) = out.get_mut(start + 6..start + 8) {
        place.copy_from_slice(&sum.to_be_bytes());
    }
}

/// The Internet checksum's sum (RFC 1071), not yet folded.
fn add(sum: u64, bytes: &[u8]) -> u64 {
    bytes.chunks(2).fold(sum, |sum, pair| {
        let high = pair.first().copied().unwrap_or(0);
        let low = pair.get(1).copied().unwrap_or(0);
        sum + u64::from(u16::from_be_bytes([high, low]))
    })
}

fn finish(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    !(sum as u16)
}
