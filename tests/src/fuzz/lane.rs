//! Datagrams of lanes: no panic on any bytes; what is read is written as it was; an end that is fed anything keeps its bounds.

use kuroshio_core::{
    lane::{Bundle, BundleConfig, Datagram, HELD_PACKETS_MAX, Mode, ecn, wire},
    units::{BitRate, PicoDuration, PicoTime},
};

use super::Input;

/// The outside, the inside, and classes of service.
pub(super) fn datagram(data: &[u8]) {
    if let Some((lane, session, number)) = wire::read_outside(data) {
        let mut outside = Vec::new();
        wire::write_outside(&mut outside, lane, session, number);
        assert_eq!(outside, data[..wire::OUTSIDE_BYTES]);
        assert_eq!(wire::nonce(lane, number) >> 56, u64::from(lane));
    }
    if let Ok(body) = wire::read_inside(data) {
        let mut inside = Vec::new();
        wire::write_inside(&mut inside, &body);
        // Of the others the unused part of the head, and what fills a train's datagram, are not kept.
        if matches!(body, wire::Body::Data { .. } | wire::Body::Probe { .. }) {
            assert_eq!(inside, data);
        }
        assert_eq!(wire::read_inside(&inside), Ok(body));
    }
    let mut packet = data.to_vec();
    for outside in 0..4 {
        let kept = ecn::decapsulate(&mut packet, outside);
        assert!(kept || outside == 3);
        assert_eq!(packet.len(), data.len());
    }
}

/// An end that gets datagrams of any content at any time.
pub(super) fn end(data: &[u8]) {
    let mut input = Input(data);
    let mode = [Mode::Deskew, Mode::InOrder, Mode::Mirror][input.below(3) as usize];
    let mut config = BundleConfig::new(mode, &[BitRate::from_mbps(10), BitRate::from_mbps(100)]);
    config.repair = input.below(2) == 1;
    config.lanes[1].measured = true;
    config.hold_bytes = 1 << 16;
    let mut end = Bundle::new(&config).expect("a configuration");
    let mut now = PicoTime::from_ms(1);
    while input.more() {
        now += PicoDuration::from_us(input.below(2_000_000));
        match input.below(4) {
            0 => {
                end.handle_packet(now, vec![0; input.below(1_500) as usize]);
            }
            // A packet of a plausible number.
            1 => {
                let body = wire::Body::Data {
                    number: input.below(300),
                    stamp_ns: now.as_ns().saturating_sub(input.number()),
                    again: input.below(2) == 1,
                    copy: false,
                    quick: input.below(8) == 1,
                    packet: vec![0; input.below(1_500) as usize],
                };
                take(&mut end, now, &mut input, body);
            }
            // Anything that parses.
            _ => {
                let bytes: Vec<u8> = (0..input.below(60)).map(|_| input.byte()).collect();
                if let Ok(body) = wire::read_inside(&bytes) {
                    take(&mut end, now, &mut input, body);
                }
            }
        }
        for _ in 0..2_000 {
            if end.poll_datagram(now).is_none() {
                break;
            }
        }
        let mut last = None;
        while let Some(delivery) = end.poll_packet(now) {
            if !delivery.late {
                assert!(last < Some(delivery.number));
                last = Some(delivery.number);
            }
        }
        let held = end.status(now).inward;
        assert!(held.held_max <= HELD_PACKETS_MAX as u64 + 1 && held.held_bytes_max <= (1 << 16) + 1_500);
        assert!(end.next_wakeup(now) >= now);
    }
}

fn take(end: &mut Bundle<Vec<u8>>, now: PicoTime, input: &mut Input<'_>, body: wire::Body<Vec<u8>>) {
    end.handle_datagram(
        now,
        Datagram {
            lane: input.below(3) as u8,
            lane_number: input.number(),
            body,
        },
    );
}
