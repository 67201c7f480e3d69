use super::*;
use crate::units::{BitRate, FrameBytes, PicoDuration, WireBytes};
use alloc::{
    string::{String, ToString},
    vec,
    vec::Vec,
};
use proptest::prelude::*;

#[test]
fn levels_of_a_full_segment() {
    let at = |mtu| tcp_levels(mtu).map(|l| (l.payload.get(), l.frame.get(), l.l1.get()));
    assert_eq!(at(1_500), Some((1_448, 1_518, 1_538)));
    assert_eq!(at(6_000), Some((5_948, 6_018, 6_038)));
    assert_eq!(at(9_000), Some((8_948, 9_018, 9_038)));
    assert_eq!(tcp_levels_v6(1_500).map(|l| l.payload.get()), Some(1_428));
    assert_eq!(
        (tcp_levels(67), tcp_levels(65_536), tcp_levels_v6(1_279)),
        (None, None, None)
    );
}

#[test]
fn rates_from_level_to_level() {
    let Some(levels) = tcp_levels(1_500) else {
        panic!("1500 is an MTU")
    };
    let mbps = BitRate::from_mbps;
    assert_eq!(
        levels.frame_of_l1(mbps(1_000)).map(BitRate::bps),
        Some(986_996_098)
    );
    assert_eq!(levels.goodput_of_frame(mbps(1_518)), Some(mbps(1_448)));
    assert_eq!(levels.frame_of_goodput(mbps(1_448)), Some(mbps(1_518)));
    assert_eq!(levels.l1_of_frame(mbps(1_518)), Some(mbps(1_538)));
    assert_eq!(levels.l1_of_frame(BitRate::MAX), None);
    assert_eq!(levels.goodput_of_frame(BitRate::MIN), None);
}

#[test]
fn bytes_of_a_wire() {
    assert_eq!(l1_bytes(FrameBytes::new(1_518)), WireBytes::new(1_538));
    assert_eq!(l1_bytes(FrameBytes::new(1)), WireBytes::new(84));
    assert_eq!(frame_of_capture(42), FrameBytes::new(64));
    assert_eq!(frame_of_capture(1_514), FrameBytes::new(1_518));
    let ps = |gbps: u32| LineRate::new(BitRate::from_mbps(gbps * 1_000)).ps_per_byte();
    assert_eq!(
        [1, 10, 100, 400, 800].map(ps),
        [Some(8_000), Some(800), Some(80), Some(20), Some(10)]
    );
    assert_eq!(LineRate::new(BitRate::from_mbps(468)).ps_per_byte(), None);
    assert_eq!(
        LineRate::GIGABIT.time_of(WireBytes::new(84)),
        PicoDuration::from_ns(672)
    );
    let narrow = LineRate::new(BitRate::from_mbps(468)); // 1435897.4 ps, rounded up
    assert_eq!(
        narrow.time_of(WireBytes::new(84)),
        PicoDuration::from_ps(1_435_898)
    );
    assert_eq!(LineRate::GIGABIT.time_of(WireBytes::MAX), PicoDuration::MAX);
    assert_eq!(
        "200Mbps".parse::<LineRate>().map(LineRate::ps_per_byte),
        Ok(Some(40_000))
    );
}

/// An Ethernet header, then `rest`.
fn ethernet(ethertype: &[u8], rest: &[u8]) -> Vec<u8> {
    [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2][..], ethertype, rest].concat()
}

/// Ports 5001 to 80, sequence 7, acknowledgement 9, PSH and ACK, window 512, 12 bytes of options.
fn tcp_header() -> Vec<u8> {
    let fixed = [
        0x13, 0x89, 0, 80, 0, 0, 0, 7, 0, 0, 0, 9, 0x80, 0x18, 2, 0, 0, 0, 0, 0,
    ];
    [&fixed[..], &[0; 12]].concat()
}

fn ipv4_header(total: u16, fragment: u16, protocol: u8) -> Vec<u8> {
    let ([t0, t1], [f0, f1]) = (total.to_be_bytes(), fragment.to_be_bytes());
    vec![
        0x45, 0, t0, t1, 0, 0, f0, f1, 64, protocol, 0, 0, 10, 1, 1, 1, 10, 1, 1, 2,
    ]
}

fn ipv6_header(length: u16, next: u8) -> Vec<u8> {
    let [l0, l1] = length.to_be_bytes();
    let mut address = [0u8; 16];
    (address[0], address[15]) = (0xfd, 1);
    let fixed = [0x60, 0, 0, 0, l0, l1, next, 64];
    [&fixed[..], &address, &address].concat()
}

/// Stream, then sequence, acknowledgement and "an ACK that is no SYN" of TCP, then payload bytes.
type Described = (String, Option<(u32, u32, bool)>, u64);

fn described(frame: &[u8]) -> Option<Described> {
    let packet = packet_of(frame)?;
    let tcp = packet
        .tcp
        .map(|t| (t.sequence, t.acknowledgement, t.flags.ack() && !t.flags.syn()));
    Some((packet.flow.to_string(), tcp, packet.payload.get()))
}

#[test]
fn streams_of_frames() {
    let tcp = Some((7, 9, true));
    let v4 = "tcp [10.1.1.1]:5001 > [10.1.1.2]:80";
    let v6 = "tcp [fd00::1]:5001 > [fd00::1]:80";
    let segment = [ipv4_header(20 + 32 + 1_448, 0x4000, 6), tcp_header()].concat();
    let extended = [
        ipv6_header(24 + 32 + 5, 0),
        vec![60, 1],
        vec![0xff; 14],
        vec![6, 0],
        vec![0; 6],
    ];
    let udp = [ipv4_header(20 + 8 + 100, 0, 17), vec![0, 53, 0, 54, 0, 0, 0, 0]].concat();
    // (name, frame, what is read)
    let table = [
        (
            "cut after TCP",
            ethernet(&[8, 0], &segment),
            Some((v4.into(), tcp, 1_448)),
        ),
        (
            "one tag",
            ethernet(&[0x81, 0, 0, 5, 8, 0], &segment),
            Some((v4.into(), tcp, 1_448)),
        ),
        (
            "two tags",
            ethernet(&[0x88, 0xa8, 0, 5, 0x81, 0, 0, 6, 8, 0], &segment),
            Some((v4.into(), tcp, 1_448)),
        ),
        (
            "three tags",
            ethernet(&[0x81, 0, 0, 5, 0x81, 0, 0, 6, 0x81, 0, 0, 6, 8, 0], &segment),
            None,
        ),
        (
            "bare ACK with padding",
            ethernet(
                &[8, 0],
                &[ipv4_header(52, 0, 6), tcp_header(), vec![0; 6]].concat(),
            ),
            Some((v4.into(), tcp, 0)),
        ),
        (
            "length left open",
            ethernet(
                &[8, 0],
                &[ipv4_header(0, 0, 6), tcp_header(), vec![0; 600]].concat(),
            ),
            Some((v4.into(), tcp, 600)),
        ),
        (
            "later fragment",
            ethernet(&[8, 0], &[ipv4_header(120, 185, 6), tcp_header()].concat()),
            Some(("tcp [10.1.1.1]:0 > [10.1.1.2]:0".into(), None, 100)),
        ),
        (
            "TCP header beyond the packet",
            ethernet(&[8, 0], &[ipv4_header(40, 0, 6), tcp_header()].concat()),
            Some((v4.into(), None, 20)),
        ),
        (
            "UDP",
            ethernet(&[8, 0], &udp),
            Some(("udp [10.1.1.1]:53 > [10.1.1.2]:54".into(), None, 100)),
        ),
        (
            "ICMP",
            ethernet(&[8, 0], &ipv4_header(84, 0, 1)),
            Some(("ip1 [10.1.1.1]:0 > [10.1.1.2]:0".into(), None, 64)),
        ),
        (
            "IPv6",
            ethernet(
                &[0x86, 0xdd],
                &[ipv6_header(32 + 1_428, 6), tcp_header()].concat(),
            ),
            Some((v6.into(), tcp, 1_428)),
        ),
        (
            "IPv6 with extensions",
            ethernet(&[0x86, 0xdd], &[extended.concat(), tcp_header()].concat()),
            Some((v6.into(), tcp, 5)),
        ),
        (
            "total below the header",
            ethernet(&[8, 0], &ipv4_header(19, 0, 6)),
            None,
        ),
        ("version 5", ethernet(&[8, 0], &[0x55; 40]), None),
        ("ARP", ethernet(&[8, 6], &[0; 28]), None),
        ("short", vec![0; 13], None),
    ];
    for (name, frame, expected) in table {
        assert_eq!(described(&frame), expected, "{name}");
    }
}

#[test]
fn a_stream_has_two_directions() {
    let segment = [ipv4_header(52, 0, 6), tcp_header()].concat();
    let Some(packet) = packet_of(&ethernet(&[8, 0], &segment)) else {
        panic!("a TCP frame")
    };
    assert_eq!(
        packet.flow.reversed().to_string(),
        "tcp [10.1.1.2]:80 > [10.1.1.1]:5001"
    );
    assert_eq!(packet.flow.reversed().reversed(), packet.flow);
}

#[test]
fn pause_frames() {
    let frame = pause_frame(MacAddr([2, 0, 0, 0, 0, 9]), 0xffff);
    let view = FrameView::new(&frame);
    assert_eq!(view.and_then(|v| pause_quanta(&v)), Some(0xffff));
    assert_eq!(view.map(|v| v.destination()), Some(PAUSE_DESTINATION));
    assert_eq!(
        view.map(|v| v.source().to_string()).as_deref(),
        Some("02:00:00:00:00:09")
    );
    assert_eq!(frame[18..60], [0; 42]);
    let gap = pause_frame(MacAddr([2, 0, 0, 0, 0, 9]), 0);
    assert_eq!(FrameView::new(&gap).and_then(|v| pause_quanta(&v)), Some(0));
    let mut other = frame;
    other[15] = 2;
    assert_eq!(FrameView::new(&other).and_then(|v| pause_quanta(&v)), None);
    assert_eq!(
        pause_time(0xffff, LineRate::GIGABIT),
        PicoDuration::from_ns(65_535 * 512)
    );
}

#[test]
fn fcs_is_crc_32() {
    // The check value of CRC-32 in every catalogue of CRCs, and the residue over a frame with its FCS.
    assert_eq!(frame_check_sequence(b"123456789"), 0xcbf4_3926_u32.to_le_bytes());
    assert_eq!(
        frame_check_sequence(&pause_frame(MacAddr([2; 6]), 7)),
        0x2144_df1c_u32.to_le_bytes()
    );
}

proptest! {
    #[test]
    fn any_bytes_are_a_frame(
        ethertype in prop::sample::select(vec![[8, 0], [0x86, 0xdd], [0x81, 0], [0x88, 8], [0, 0]]),
        version in prop::sample::select(vec![0x45u8, 0x4f, 0x60, 0x00]),
        mut rest in prop::collection::vec(prop_oneof![any::<u8>(), prop::sample::select(vec![0u8, 6, 17, 43, 44, 60])], 0..120),
    ) {
        if let Some(first) = rest.first_mut() {
            *first = version;
        }
        let frame = ethernet(&ethertype, &rest);
        for end in 0..=frame.len() {
            let Some(view) = FrameView::new(&frame[..end]) else { continue };
            let _ = pause_quanta(&view);
            if let Some(packet) = view.packet() {
                prop_assert!(packet.payload.get() <= 65_535);
            }
        }
    }
}
