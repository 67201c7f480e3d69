//! Congestion marks and classes of service across a tunnel.
//!
//! The datagram carries the packet's DSCP and ECN field outside (RFC 2983, uniform model; RFC 6040, section 4.1, normal mode); at
//! the far end a mark that the datagram met on its lane is put on the packet (RFC 6040, section 4.2):
//!
//! ```text
//!              outside   Not-ECT   ECT(0)    ECT(1)    CE
//!   inside Not-ECT       Not-ECT   Not-ECT   Not-ECT   drop
//!          ECT(0)        ECT(0)    ECT(0)    ECT(1)    CE
//!          ECT(1)        ECT(1)    ECT(1)    ECT(1)    CE
//!          CE            CE        CE        CE        CE
//! ```

const ECN: u8 = 0b11;
const CE: u8 = 0b11;
const ECT_1: u8 = 0b01;
const ECT_0: u8 = 0b10;
const V4_HEADER: usize = 20;

/// The traffic class (DSCP and ECN) of an IP packet; 0 for what is none.
pub fn class_of(packet: &[u8]) -> u8 {
    match packet {
        [first, class, ..] if first >> 4 == 4 => *class,
        [first, second, ..] if first >> 4 == 6 => first << 4 | second >> 4,
        _ => 0,
    }
}

/// Combines the field that a datagram arrived with into its packet. `false`: the packet has to be dropped.
#[must_use]
pub fn decapsulate(packet: &mut [u8], outside: u8) -> bool {
    let inside = class_of(packet) & ECN;
    let marked = match (inside, outside & ECN) {
        (0, CE) => return false,
        (ECT_0 | ECT_1, CE) => CE,
        (ECT_0, ECT_1) => ECT_1,
        _ => return true,
    };
    set_ecn(packet, marked);
    true
}

fn set_ecn(packet: &mut [u8], ecn: u8) {
    match packet.first().map(|b| b >> 4) {
        Some(4) if packet.len() >= V4_HEADER => {
            let old = u16::from_be_bytes([packet[0], packet[1]]);
            packet[1] = packet[1] & !ECN | ecn;
            let new = u16::from_be_bytes([packet[0], packet[1]]);
            // RFC 1624: HC' = ~(~HC + ~m + m').
            let sum =
                u32::from(!u16::from_be_bytes([packet[10], packet[11]])) + u32::from(!old) + u32::from(new);
            let sum = (sum & 0xffff) + (sum >> 16);
            let sum = (sum & 0xffff) + (sum >> 16);
            let checksum = !(sum as u16);
            packet[10..12].copy_from_slice(&checksum.to_be_bytes());
        }
        Some(6) if packet.len() >= 2 => packet[1] = packet[1] & !(ECN << 4) | ecn << 4,
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header_sum(packet: &[u8]) -> u16 {
        let sum: u32 = packet[..20]
            .chunks(2)
            .map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])))
            .sum();
        let sum = (sum & 0xffff) + (sum >> 16);
        ((sum & 0xffff) + (sum >> 16)) as u16
    }

    fn v4(class: u8) -> [u8; 20] {
        let mut packet = [0u8; 20];
        packet[0] = 0x45;
        packet[1] = class;
        packet[8] = 64;
        packet[12..20].copy_from_slice(&[10, 1, 2, 3, 10, 9, 8, 7]);
        let checksum = !header_sum(&packet);
        packet[10..12].copy_from_slice(&checksum.to_be_bytes());
        packet
    }

    #[test]
    fn the_whole_table_of_rfc_6040() {
        // Rows: inside; columns: outside Not-ECT, ECT(0), ECT(1), CE; None is a drop.
        let table = [
            (0, [Some(0), Some(0), Some(0), None]),
            (2, [Some(2), Some(2), Some(1), Some(3)]),
            (1, [Some(1), Some(1), Some(1), Some(3)]),
            (3, [Some(3), Some(3), Some(3), Some(3)]),
        ];
        for (inside, row) in table {
            for (outside, want) in [0u8, 2, 1, 3].into_iter().zip(row) {
                for dscp in [0u8, 46] {
                    let mut packet = v4(dscp << 2 | inside);
                    let kept = decapsulate(&mut packet, outside);
                    assert_eq!(kept.then_some(class_of(&packet)), want.map(|w| dscp << 2 | w));
                    assert_eq!(header_sum(&packet), 0xffff, "checksum");
                    let mut six = [0u8; 40];
                    six[0] = 0x60 | dscp >> 2;
                    six[1] = (dscp << 2 | inside) << 4 | 0x0a;
                    assert_eq!(class_of(&six), dscp << 2 | inside);
                    let kept = decapsulate(&mut six, outside);
                    assert_eq!(kept.then_some(class_of(&six)), want.map(|w| dscp << 2 | w));
                    assert_eq!(six[1] & 0x0f, 0x0a, "flow label");
                }
            }
        }
        assert!(!decapsulate(&mut [], 3));
        assert!(decapsulate(&mut [0x45], 0));
        assert_eq!(class_of(&[0x45]), 0);
    }
}
