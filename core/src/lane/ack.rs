//! Which IP packets only acknowledge: TCP without payload and with no flag but ACK, ECE and CWR.
//!
//! A packet of which the other side measures a round trip (data, SYN, FIN) is none: one that were quicker than the rest would make a
//! sender believe in a shorter path, and leave slow start early when the rest turns out slower (HyStart).

const TCP: u8 = 6;
const ACK: u8 = 0x10;
/// ECE and CWR.
const ECN: u8 = 0xc0;

/// Whether an IP packet only acknowledges. Anything else, however cut, does not.
pub fn is_acknowledgement(packet: &[u8]) -> bool {
    tcp_of(packet).is_some_and(|tcp| {
        let header = tcp.get(12).map_or(0, |b| usize::from(b >> 4) * 4);
        let flags = tcp.get(13).copied().unwrap_or(0);
        header >= 20 && header == tcp.len() && flags & !ECN == ACK
    })
}

/// The TCP segment of a packet with plain IP headers.
fn tcp_of(packet: &[u8]) -> Option<&[u8]> {
    let word = |at: usize| {
        Some(usize::from(u16::from_be_bytes([
            *packet.get(at)?,
            *packet.get(at + 1)?,
        ])))
    };
    match packet.first()? >> 4 {
        4 => {
            let header = usize::from(packet.first()? & 15) * 4;
            let whole = word(2)? == packet.len() && word(6)? & 0x3fff == 0;
            let plain = whole && header >= 20 && *packet.get(9)? == TCP;
            plain.then(|| packet.get(header..))?
        }
        6 => {
            let plain = word(4)? + 40 == packet.len() && *packet.get(6)? == TCP;
            plain.then(|| packet.get(40..))?
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{vec, vec::Vec};

    fn packet(v6: bool, options: usize, payload: usize, flags: u8) -> Vec<u8> {
        let ip = if v6 { 40 } else { 20 };
        let len = ip + 20 + options + payload;
        let mut packet = vec![0; len];
        if v6 {
            packet[0] = 0x60;
            packet[4..6].copy_from_slice(&((len - 40) as u16).to_be_bytes());
            packet[6] = TCP;
        } else {
            packet[0] = 0x45;
            packet[2..4].copy_from_slice(&(len as u16).to_be_bytes());
            packet[6] = 0x40;
            packet[9] = TCP;
        }
        packet[ip + 12] = (((20 + options) / 4) << 4) as u8;
        packet[ip + 13] = flags;
        packet
    }

    #[test]
    fn acknowledgements_and_what_is_none() {
        for v6 in [false, true] {
            for options in [0, 12, 36] {
                assert!(is_acknowledgement(&packet(v6, options, 0, ACK)));
                assert!(is_acknowledgement(&packet(v6, options, 0, ACK | 0x40)), "ECE");
            }
            assert!(!is_acknowledgement(&packet(v6, 12, 1, ACK)), "payload");
            for (flag, name) in [(0x02, "SYN"), (0x01, "FIN"), (0x04, "RST"), (0x08, "PSH")] {
                assert!(!is_acknowledgement(&packet(v6, 12, 0, ACK | flag)), "{name}");
            }
            let mut udp = packet(v6, 0, 0, ACK);
            udp[if v6 { 6 } else { 9 }] = 17;
            assert!(!is_acknowledgement(&udp));
            let whole = packet(v6, 12, 0, ACK);
            for len in 0..whole.len() {
                assert!(!is_acknowledgement(&whole[..len]), "{len}");
            }
        }
        let mut fragment = packet(false, 12, 0, ACK);
        fragment[6] = 0x20;
        assert!(!is_acknowledgement(&fragment));
    }
}
