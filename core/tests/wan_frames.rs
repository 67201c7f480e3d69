//! What a link does to the bytes of a frame: marks, damage, rewriting, names; and what settings refuse.

use kuroshio_core::{
    units::{BitRate, FrameBytes, PicoDuration, PicoTime, Ratio},
    wan::{
        Cargo as _, DrainConfig, DrainPort, DropCause, LinkConfig, Mark, Opportunities, PauseRequest,
        SETTINGS, Stage, TraceProblem, WanConfig, WanLink, WaterMarks, mark, setting,
    },
    wire::{LineRate, PROTOCOL_TCP, PROTOCOL_UDP, frame_of_capture, packet_of},
};
use proptest::prelude::*;

fn no_files(name: &str) -> Result<String, String> {
    Err(format!("no file {name:?}"))
}

fn link(settings: &[(&str, &str)]) -> WanLink<Vec<u8>> {
    let mut config = WanConfig::from(LinkConfig {
        capacity: BitRate::from_mbps(800),
        wire: None,
        one_way_delay: PicoDuration::ZERO,
        queue_limit: FrameBytes::new(1 << 30),
        loss: Ratio::ZERO,
    });
    for (key, value) in settings {
        setting(key, value, &mut no_files)
            .unwrap_or_else(|e| panic!("{e}"))
            .describe(&mut config);
    }
    WanLink::new(config, 5)
}

/// Passes frames through a link one after another; `None` for those that do not arrive.
fn pass(link: &mut WanLink<Vec<u8>>, frames: &[Vec<u8>]) -> Vec<Option<Vec<u8>>> {
    let mut now = PicoTime::ZERO;
    let mut out = Vec::new();
    for frame in frames {
        now += PicoDuration::from_ms(1);
        let len = frame_of_capture(frame.len());
        let taken = link.handle_frame(now, len, frame.clone());
        out.push(
            taken
                .ok()
                .and_then(|()| link.poll(now + PicoDuration::from_us(900)))
                .map(|d| d.token),
        );
    }
    out
}

/// Sum of 16-bit words in ones' complement, not inverted: 0xffff when a covered checksum is right.
fn sum(parts: &[&[u8]]) -> u16 {
    let bytes = parts.concat();
    let mut sum: u32 = bytes
        .chunks(2)
        .map(|w| u32::from(w[0]) << 8 | u32::from(*w.get(1).unwrap_or(&0)))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// A frame with right checksums: `tag` VLAN, addresses ending in `from` and `to`, ECN field.
#[derive(Debug, Clone, Copy)]
struct Made {
    v6: bool,
    tag: Option<u16>,
    protocol: u8,
    ecn: u8,
    flow: u16,
    flags: u8,
    payload: usize,
}

const PLAIN: Made = Made {
    v6: false,
    tag: None,
    protocol: PROTOCOL_TCP,
    ecn: 0,
    flow: 1,
    flags: 0x10,
    payload: 100,
};

impl Made {
    fn addresses(self) -> Vec<u8> {
        if self.v6 {
            let mut both = vec![0u8; 32];
            (both[0], both[15], both[16], both[31]) = (0xfd, 1, 0xfd, 2);
            both
        } else {
            vec![10, 0, 0, 1, 10, 0, 0, 2]
        }
    }

    fn transport(self) -> Vec<u8> {
        let [p0, p1] = (1000 + self.flow).to_be_bytes();
        let payload: Vec<u8> = (0..self.payload).map(|i| (i * 7 + 3) as u8).collect();
        let (mut header, at) = match self.protocol {
            PROTOCOL_UDP => {
                let [l0, l1] = (8 + self.payload as u16).to_be_bytes();
                (vec![p0, p1, 0, 80, l0, l1, 0, 0], 6)
            }
            PROTOCOL_TCP => {
                let fixed = [
                    p0, p1, 0, 80, 0, 0, 0, 7, 0, 0, 0, 9, 0x50, self.flags, 2, 0, 0, 0, 0, 0,
                ];
                (fixed.to_vec(), 16)
            }
            _ => (vec![128, 0, 0, 0, 0, 1, 0, 1], 2),
        };
        header.extend(payload);
        let pseudo = self.pseudo(header.len());
        let checksum = !sum(&[&pseudo, &header]);
        header[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
        header
    }

    fn pseudo(self, len: usize) -> Vec<u8> {
        let mut pseudo = self.addresses();
        pseudo.extend([0, self.protocol]);
        pseudo.extend((len as u16).to_be_bytes());
        pseudo
    }

    fn frame(self) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
        if let Some(tag) = self.tag {
            frame.extend([0x81, 0]);
            frame.extend(tag.to_be_bytes());
        }
        let transport = self.transport();
        if self.v6 {
            frame.extend([0x86, 0xdd, 0x60, self.ecn << 4, 0, 0]);
            frame.extend((transport.len() as u16).to_be_bytes());
            frame.extend([self.protocol, 64]);
        } else {
            let mut header = vec![0x45, self.ecn];
            header.extend((20 + transport.len() as u16).to_be_bytes());
            header.extend([0, 1, 0x40, 0, 64, self.protocol, 0, 0]);
            let checksum = !sum(&[&header, &self.addresses()]);
            header[10..12].copy_from_slice(&checksum.to_be_bytes());
            frame.extend([8, 0]);
            frame.extend(header);
        }
        frame.extend(self.addresses());
        frame.extend(transport);
        frame
    }
}

/// Whether every checksum of an untagged frame is right.
fn is_right(frame: &[u8]) -> bool {
    let (network, rest) = (&frame[14..], frame.len() - 14);
    let (own, protocol, addresses, header) = match network[0] >> 4 {
        4 => (sum(&[&network[..20]]) == 0xffff, network[9], &network[12..20], 20),
        _ => (true, network[6], &network[8..40], 40),
    };
    let length = ((rest - header) as u16).to_be_bytes();
    own && sum(&[addresses, &[0, protocol], &length, &network[header..]]) == 0xffff
}

fn made() -> impl Strategy<Value = Made> {
    (
        any::<bool>(),
        prop::sample::select(vec![6u8, 17, 58]),
        0u8..4,
        0u16..60_000,
        0usize..1_400,
    )
        .prop_map(|(v6, protocol, ecn, flow, payload)| Made {
            v6,
            // ICMPv6 is checked like the others only in IPv6.
            protocol: if v6 || protocol != 58 {
                protocol
            } else {
                PROTOCOL_TCP
            },
            ecn,
            flow,
            payload,
            ..PLAIN
        })
}

proptest! {
    #[test]
    fn marks_set_ce_and_keep_the_checksum(made in made()) {
        let before = made.frame();
        prop_assert!(is_right(&before), "the test's own frame");
        let mut frame = before.clone();
        let done = mark(&mut frame);
        prop_assert_eq!(done, if made.ecn == 0 { Mark::NotCapable } else { Mark::Marked });
        prop_assert!(is_right(&frame));
        let ce = Made { ecn: 3, ..made };
        prop_assert_eq!(frame, if made.ecn == 0 { before } else { ce.frame() });
    }

    #[test]
    fn addresses_are_replaced_and_checksums_stay_right(made in made(), to in any::<u128>(), source in any::<bool>()) {
        let before = made.frame();
        let (from, to) = if made.v6 {
            let from = if source { "fd00::1" } else { "fd00::2" };
            (from, std::net::Ipv6Addr::from_bits(to).to_string())
        } else {
            let from = if source { "10.0.0.1" } else { "10.0.0.2" };
            (from, std::net::Ipv4Addr::from_bits(to as u32).to_string())
        };
        let mut link = link(&[("rewrite", &format!("address {from} {to}"))]);
        let out = pass(&mut link, std::slice::from_ref(&before)).remove(0).expect("arrives");
        prop_assert!(is_right(&out));
        let flow = packet_of(&out).expect("a packet").flow;
        let replaced = if source { flow.source } else { flow.destination };
        prop_assert_eq!(replaced.to_string(), to);
    }

    #[test]
    fn damage_changes_as_many_bits_as_asked(made in made(), count in 1u32..=64) {
        let before = made.frame();
        let mut link = link(&[("corrupt", &format!("100% bits {count}"))]);
        let out = pass(&mut link, std::slice::from_ref(&before)).remove(0).expect("arrives");
        prop_assert_eq!(&out[..14], &before[..14]);
        let flipped: u32 = out.iter().zip(&before).map(|(a, b)| (a ^ b).count_ones()).sum();
        prop_assert_eq!(flipped, count);
        prop_assert_eq!(link.counters().corrupted, 1);
    }

    #[test]
    fn damage_that_keeps_the_checksum_changes_the_payload_alone(made in made()) {
        let before = made.frame();
        let mut link = link(&[("corrupt", "100% checksum-kept")]);
        let out = pass(&mut link, std::slice::from_ref(&before)).remove(0).expect("arrives");
        let payload = packet_of(&before).map_or(0, |p| p.payload.get() as usize);
        prop_assert!(is_right(&out));
        prop_assert_eq!(out != before, payload >= 8);
        let headers = before.len() - payload;
        prop_assert_eq!(&out[..headers], &before[..headers]);
    }

    #[test]
    fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let all = "pop-vlan, address 10.0.0.1 10.0.0.3, address fd00::1 fd00::9, push-vlan 7, source-mac 02:00:00:00:00:09";
        let mut link = link(&[("rewrite", all), ("corrupt", "50%"), ("lose", "flow 1 any 3"), ("mtu", "150B")]);
        pass(&mut link, &[bytes.clone(), bytes.clone(), bytes.clone()]);
        let mut bytes = bytes;
        mark(&mut bytes);
    }

    #[test]
    fn any_trace_is_an_answer(text in "[0-9\\n -x]{0,200}") {
        let _ = Opportunities::parse(&text);
    }

    #[test]
    fn any_setting_is_an_answer(key in 0..SETTINGS.len(), value in "\\PC{0,60}", words in "[a-z0-9%., ]{0,40}") {
        for value in [value, words] {
            let _ = setting(SETTINGS[key].0, &value, &mut |_| Ok("1ms\n2".into()));
        }
    }
}

#[test]
fn tags_are_pushed_and_popped() {
    let plain = PLAIN.frame();
    let tagged = Made {
        tag: Some(3 << 13 | 100),
        ..PLAIN
    }
    .frame();
    let mut push = link(&[("rewrite", "push-vlan 100 priority 3")]);
    assert_eq!(
        pass(&mut push, std::slice::from_ref(&plain)),
        [Some(tagged.clone())]
    );
    let c = push.counters();
    assert_eq!(c.arrived.bytes, frame_of_capture(tagged.len()));
    assert_eq!(c.departed.bytes, c.arrived.bytes);
    let mut pop = link(&[("rewrite", "pop-vlan")]);
    assert_eq!(
        pass(&mut pop, &[tagged, plain.clone()]),
        [Some(plain.clone()), Some(plain)]
    );
}

#[test]
fn macs_are_replaced() {
    let mut link = link(&[(
        "rewrite",
        "source-mac 02:00:00:00:00:0a, destination-mac 02:00:00:00:00:0b",
    )]);
    let out = pass(&mut link, &[PLAIN.frame()]).remove(0).expect("arrives");
    assert_eq!(out[..12], [2, 0, 0, 0, 0, 0x0b, 2, 0, 0, 0, 0, 0x0a]);
    assert_eq!(out[12..], PLAIN.frame()[12..]);
}

#[test]
fn packets_above_the_mtu_are_dropped_and_counted() {
    // 20 + 20 + 60 bytes of packet, tagged or not.
    let exact = Made { payload: 60, ..PLAIN };
    let tagged = Made {
        tag: Some(5),
        ..exact
    };
    let above = Made { payload: 61, ..PLAIN };
    let mut link = link(&[("mtu", "100B")]);
    let out = pass(&mut link, &[exact.frame(), tagged.frame(), above.frame()]);
    assert_eq!(
        out.iter().map(Option::is_some).collect::<Vec<_>>(),
        [true, true, false]
    );
    assert_eq!(link.counters().too_big.frames, 1);
    let refused = link.handle_frame(PicoTime::from_secs(1), FrameBytes::new(200), above.frame());
    assert_eq!(refused.map_err(|d| d.cause), Err(DropCause::TooBig));
}

#[test]
fn frames_are_lost_by_name() {
    let of = |flow, flags, payload| Made {
        flow,
        flags,
        payload,
        ..PLAIN
    };
    let (syn, ack, fin) = (0x02, 0x10, 0x11);
    let frames = [
        of(1, syn, 0),
        of(2, syn, 0),
        of(2, ack, 10),
        of(1, ack, 10),
        of(2, ack, 0),
        of(2, ack, 20),
        of(2, ack, 30), // the third data segment of flow 2
        of(1, fin, 0),
        of(2, ack, 0), // the second bare ACK of flow 2
        of(2, ack, 40),
    ]
    .map(Made::frame);
    let mut link = link(&[("lose", "flow 2 data 3, flow 2 ack 2, flow 1 fin 1, flow 3 any 1")]);
    let lost: Vec<usize> = pass(&mut link, &frames)
        .iter()
        .enumerate()
        .filter(|(_, f)| f.is_none())
        .map(|(i, _)| i)
        .collect();
    assert_eq!(lost, [6, 7, 8]);
    assert_eq!(link.counters().lost.frames, 3);
}

#[test]
fn a_copy_is_whole_when_its_original_is_damaged() {
    let mut link = link(&[("duplicate", "100%"), ("corrupt", "100%")]);
    let frame = PLAIN.frame();
    assert_eq!(
        link.handle_frame(PicoTime::ZERO, FrameBytes::new(200), frame.clone()),
        Ok(())
    );
    let out: Vec<_> = std::iter::from_fn(|| link.poll(PicoTime::from_ms(1)))
        .map(|d| d.token)
        .collect();
    assert_eq!(out.len(), 2);
    assert_ne!(out[0].bytes(), frame);
    assert_eq!(out[1].bytes(), frame);
}

#[test]
fn traces_are_read_or_refused_by_line() {
    let trace = Opportunities::parse("1\n\n 2 \n2\n10\n").expect("a trace");
    assert_eq!((trace.count(), trace.period()), (4, PicoDuration::from_ms(10)));
    for (text, line, problem) in [
        ("", 0, TraceProblem::NoPeriod),
        ("0\n0", 2, TraceProblem::NoPeriod),
        ("1\n2x", 2, TraceProblem::NotANumber),
        ("1\n-2", 2, TraceProblem::NotANumber),
        ("5\n4", 2, TraceProblem::Falls),
        ("86400001", 1, TraceProblem::TooLong),
        ("99999999999999999999999", 1, TraceProblem::TooLong),
    ] {
        let error = Opportunities::parse(text).expect_err(text);
        assert_eq!((error.line, error.problem), (line, problem), "{text:?}: {error}");
    }
}

#[test]
fn settings_say_what_they_take() {
    for (key, value, word) in [
        ("speed", "1Gbps", "capacity"),
        ("capacity", "7999bps", "8kbps"),
        ("capacity", "101Gbps", "100Gbps"),
        ("capacity", "800", "unit"),
        ("capacity", "", "8kbps"),
        ("one_way_delay", "10.1s", "10s"),
        ("jitter", "gamma 1ms", "pareto"),
        ("jitter", "pareto 1ms 0.9", "below 1"),
        ("jitter", "samples nowhere", "nowhere"),
        ("jitter", "normal 1s 1us", "thousandth"),
        ("order", "some", "free"),
        ("queue", "5GiB", "4GiB"),
        ("queue", "-1 frames", "1000 frames"),
        ("aqm", "red 2kB 1kB 10%", "below MAX"),
        ("aqm", "red 1kB 2kB 10% weight 21", "weight"),
        ("aqm", "codel 5ms 0s", "interval"),
        ("loss", "101%", "100%"),
        ("loss", "gilbert 1%", "gilbert P R"),
        ("lose", "flow 0 data 1", "flow 2 data 3"),
        ("lose", "flow 1 rst 1", "syn"),
        ("corrupt", "1% bits 65", "1 to 64"),
        ("rewrite", "push-vlan 4095", "push-vlan"),
        ("rewrite", "address 10.0.0.1 fd00::1", "versions"),
        ("rewrite", "source-mac 2:0:0:0:0:1", "MAC"),
        ("mtu", "67B", "68B"),
        ("trace", "nowhere", "nowhere"),
    ] {
        let error = setting(key, value, &mut no_files).expect_err(value).to_string();
        assert!(
            error.contains(word),
            "{key} {value:?}: {word:?} is not in: {error}"
        );
    }
    assert!(setting("loss", &"9".repeat(70_000), &mut no_files).is_err());
}

const GIGABIT: LineRate = LineRate::GIGABIT;

/// 100 Mbps, so a frame of 1000 bytes takes 80 us.
fn drain_port(buffer: u64, pause: Option<WaterMarks>) -> DrainPort<u64> {
    DrainPort::new(DrainConfig {
        rate: BitRate::from_mbps(100),
        buffer: FrameBytes::new(buffer),
        pause,
        line: GIGABIT,
    })
}

#[test]
fn a_drain_charges_until_it_is_done() {
    let mut port = drain_port(2_000, None);
    let taken: Vec<bool> = (0..3)
        .map(|id| {
            port.handle_frame(PicoTime::ZERO, FrameBytes::new(1_000), id)
                .is_ok()
        })
        .collect();
    assert_eq!(taken, [true, true, false]);
    assert!(
        port.handle_frame(PicoTime::from_us(79), FrameBytes::new(1_000), 3)
            .is_err()
    );
    assert_eq!(
        port.handle_frame(PicoTime::from_us(80), FrameBytes::new(1_000), 4),
        Ok(())
    );
    let out: Vec<_> = std::iter::from_fn(|| port.poll(PicoTime::from_ms(1)))
        .map(|d| (d.at.as_us(), d.token))
        .collect();
    assert_eq!(out, [(80, 0), (160, 1), (240, 4)]);
    let c = port.counters();
    assert_eq!(
        (c.arrived.frames, c.queue_full.frames, c.departed.frames),
        (5, 2, 3)
    );
    assert_eq!(port.next_wakeup(), None);
}

#[test]
fn a_drain_asks_for_pauses_at_its_marks() {
    // 1000 quanta of 512 bits at 1 Gbps are 512 us: asked for again after 256 us.
    let marks = WaterMarks {
        high: FrameBytes::new(5_000),
        low: FrameBytes::new(2_000),
        quanta: 1_000,
    };
    let mut port = drain_port(100_000, Some(marks));
    for id in 0..8 {
        assert_eq!(
            port.handle_frame(PicoTime::from_us(id), FrameBytes::new(1_000), id),
            Ok(())
        );
    }
    let mut asked = Vec::new();
    while let Some(now) = port.next_wakeup() {
        while port.poll(now).is_some() {}
        asked.extend(std::iter::from_fn(|| port.poll_pause(now)));
    }
    let at = |us, quanta| PauseRequest {
        at: PicoTime::from_us(us),
        quanta,
    };
    // Above 5000 with the sixth; down to 2000 when the sixth of eight is drained.
    assert_eq!(asked, [at(5, 1_000), at(261, 1_000), at(480, 0)]);
    assert_eq!(port.pauses(), 3);
}

#[test]
fn pause_keeps_a_slow_receiver_from_losing() {
    // A wire of 1 Gbps into a port that drains 100 Mbps: with PAUSE nothing is lost, without most is.
    for with in [true, false] {
        let marks = WaterMarks {
            high: FrameBytes::new(50_000),
            low: FrameBytes::new(20_000),
            quanta: 65_535,
        };
        let mut wire = kuroshio_core::wan::PortWire::new(GIGABIT, FrameBytes::new(1 << 30));
        let mut port = drain_port(53_000, with.then_some(marks));
        for id in 0..2_000u64 {
            assert_eq!(
                wire.handle_frame(PicoTime::ZERO, FrameBytes::new(1_000), id),
                Ok(())
            );
        }
        let mut delivered = 0;
        while let Some(now) = [wire.next_wakeup(), port.next_wakeup()]
            .into_iter()
            .flatten()
            .min()
        {
            while let Some(d) = wire.poll(now) {
                let _ = port.handle_frame(d.at, d.len, d.token);
            }
            while port.poll(now).is_some() {
                delivered += 1;
            }
            while let Some(request) = port.poll_pause(now) {
                let time = kuroshio_core::wire::pause_time(request.quanta, GIGABIT);
                wire.hold(request.at, time);
            }
        }
        let c = port.counters();
        assert_eq!(c.queue_full.frames + delivered, 2_000);
        assert_eq!(c.queue_full.frames == 0, with, "{c:?}");
        if with {
            // The port never ran dry: 2000 frames of 80 us, and the first's way.
            assert!(
                port.pauses() > 10 && c.queued_max <= FrameBytes::new(53_000),
                "{c:?}"
            );
        }
    }
}
