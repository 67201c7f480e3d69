use super::*;
use crate::units::{PicoDuration, PicoTime};
use alloc::vec;
use alloc::vec::Vec;
use proptest::prelude::*;

const PT: u8 = 96;

fn picture(geometry: Geometry, seed: u8) -> Vec<u8> {
    (0..geometry.bytes())
        .map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed) ^ (i >> 8) as u8)
        .collect()
}

fn datagrams(packetizer: &mut Packetizer, timestamp: u32, picture: &[u8]) -> Vec<Vec<u8>> {
    let (mut cursor, mut out, mut all) = (Cursor::default(), Vec::new(), Vec::new());
    while packetizer.next(&mut cursor, timestamp, picture, &mut out) {
        all.push(out.clone());
    }
    all
}

#[test]
fn the_first_datagram_is_the_one_of_the_rfc() {
    // 4:2:2 in 8 bits, 8 pixels by 2 lines: two rows of 16 bytes in one datagram.
    let geometry = Geometry::new(8, 2, PixelFormat::Yuv422b8).expect("a size");
    let bytes: Vec<u8> = (0..32).collect();
    let mut packetizer = Packetizer::new(geometry, 1400, PT, 0x0102_0304, 0x0005_fffe);
    let all = datagrams(&mut packetizer, 0xa0b0_c0d0, &bytes);
    let mut expected = vec![0x80, 0x80 | PT, 0xff, 0xfe, 0xa0, 0xb0, 0xc0, 0xd0, 1, 2, 3, 4];
    expected.extend([0, 5, 0, 16, 0, 0, 0x80, 0, 0, 16, 0, 1, 0, 0]);
    expected.extend(0..32);
    assert_eq!(all, [expected]);
    let packet = Packet::parse(&all[0]).expect("a packet");
    assert_eq!((packet.sequence, packet.marker), (0x0005_fffe, true));
    assert_eq!(packetizer.per_picture(), (1, all[0].len() as u64));
}

#[test]
fn groups_of_two_lines_count_lines_by_two() {
    let geometry = Geometry::new(4, 4, PixelFormat::Yuv420b8).expect("a size");
    let all = datagrams(
        &mut Packetizer::new(geometry, 1400, PT, 1, 0),
        0,
        &picture(geometry, 1),
    );
    let lines: Vec<u16> = Packet::parse(&all[0])
        .expect("a packet")
        .segments()
        .map(|s| s.line)
        .collect();
    assert_eq!(lines, [0, 2]);
}

#[test]
fn parts_cover_the_picture_once() {
    for (height, parts) in [(2160, 2), (1080, 7), (9, 4), (3, 3)] {
        let whole = Geometry::new(16, height, PixelFormat::Yuv422b10).expect("a size");
        let mut at = 0;
        for i in 0..parts {
            let (part, range) = whole.part(i, parts).expect("a part");
            assert_eq!((range.start, range.len()), (at, part.bytes()));
            at = range.end;
        }
        assert_eq!(at, whole.bytes());
    }
    let small = Geometry::new(2, 2, PixelFormat::Yuv420b8).expect("a size");
    assert_eq!(small.part(0, 2), Err(FormatError::Parts(2)));
    assert_eq!(small.part(0, 0), Err(FormatError::Parts(0)));
}

#[test]
fn sizes_and_names_are_checked() {
    assert_eq!(
        Geometry::new(3, 2, PixelFormat::Yuv422b8),
        Err(FormatError::Groups(3, 2, PixelFormat::Yuv422b8))
    );
    assert_eq!(
        Geometry::new(0, 2, PixelFormat::Rgb8),
        Err(FormatError::Size(0, 2))
    );
    assert!(Geometry::new(MAX_WIDTH + 1, 2, PixelFormat::Rgb8).is_err());
    for format in PixelFormat::ALL {
        assert_eq!(format.name().parse(), Ok(format));
        let samples = match format.sampling() {
            Sampling::Rgb | Sampling::Yuv444 => 3 * format.group_pixels(),
            Sampling::Yuv422 => 2 * format.group_pixels(),
            Sampling::Yuv420 => 6,
        };
        assert_eq!(samples * format.bits(), 8 * format.group_bytes(), "{format}");
    }
    assert!("yuv".parse::<PixelFormat>().is_err());
}

#[test]
fn stamps_follow_the_rate() {
    assert_eq!(rtp_timestamp(60, 60, 1), 90_000);
    assert_eq!(rtp_timestamp(30_000, 30_000, 1_001), 90_090_000);
    assert_eq!(rtp_timestamp(1 << 32, 90_000, 1), 0);
}

#[test]
fn a_picture_that_lacks_a_datagram_is_given_up_when_others_press() {
    let geometry = Geometry::new(64, 16, PixelFormat::Rgb8).expect("a size");
    let mut packetizer = Packetizer::new(geometry, 500, PT, 1, 0);
    let mut assembler = Assembler::new(geometry, PT);
    let lost = datagrams(&mut packetizer, 0, &picture(geometry, 0));
    for d in &lost[1..] {
        assert_eq!(assembler.handle(PicoTime::ZERO, d), Ok(None));
    }
    for n in 1..=MAX_PENDING as u32 {
        let all = datagrams(&mut packetizer, n, &picture(geometry, n as u8));
        for d in &all[1..] {
            assert_eq!(assembler.handle(PicoTime::ZERO, d), Ok(None));
        }
    }
    assert_eq!(assembler.counts().incomplete, 1);
    assert_eq!(assembler.handle(PicoTime::ZERO, &lost[0]), Ok(None));
    let counts = assembler.counts();
    assert_eq!((counts.late, counts.pictures), (1, 0));
}

#[test]
fn what_does_not_belong_is_refused() {
    let geometry = Geometry::new(8, 2, PixelFormat::Yuv422b8).expect("a size");
    let good = datagrams(
        &mut Packetizer::new(geometry, 1400, PT, 1, 0),
        0,
        &picture(geometry, 0),
    )
    .remove(0);
    let try_with = |change: &dyn Fn(&mut Vec<u8>)| {
        let (mut bytes, mut assembler) = (good.clone(), Assembler::new(geometry, PT));
        change(&mut bytes);
        let result = assembler.handle(PicoTime::ZERO, &bytes);
        assert_eq!(assembler.counts().refused, u64::from(result.is_err()));
        result.map(|p| p.is_some())
    };
    assert_eq!(try_with(&|_| ()), Ok(true));
    assert_eq!(try_with(&|b| b[0] = 0x40), Err(PacketError::Version));
    assert_eq!(try_with(&|b| b[1] = 97), Err(PacketError::PayloadType));
    assert_eq!(try_with(&|b| b.truncate(20)), Err(PacketError::Short));
    assert_eq!(
        try_with(&|b| {
            b.pop();
        }),
        Err(PacketError::Short)
    );
    assert_eq!(try_with(&|b| b[17] = 200), Err(PacketError::Place));
    assert_eq!(try_with(&|b| b[19] = 1), Err(PacketError::Place));
    assert_eq!(try_with(&|b| b[16] = 0x80), Err(PacketError::Interlaced));
    assert_eq!(
        try_with(&|b| {
            b[0] |= 0x20;
            *b.last_mut().expect("bytes") = 255;
        }),
        Err(PacketError::Padding)
    );
}

#[test]
fn parts_of_one_stamp_are_one_picture() {
    let ms = PicoTime::from_ms;
    let mut joiner = Joiner::new(2, PicoDuration::from_ms(10));
    assert!(joiner.handle_part(ms(1), 0, 3000));
    assert_eq!((joiner.poll(ms(1)), joiner.next_wakeup()), (None, Some(ms(11))));
    assert!(joiner.handle_part(ms(3), 1, 3000));
    let shown = joiner.poll(ms(3)).expect("a picture");
    assert_eq!((shown.is_torn(), shown.spread), (false, PicoDuration::from_ms(2)));
    // The next one waits in vain, and its part is late.
    assert!(joiner.handle_part(ms(20), 1, 6000));
    assert_eq!(joiner.poll(ms(29)), None);
    let shown = joiner.poll(ms(30)).expect("a torn picture");
    assert_eq!(shown.parts, [false, true]);
    assert!(!joiner.handle_part(ms(31), 0, 6000));
    let counts = joiner.counts();
    assert_eq!((counts.whole, counts.torn, counts.late_parts), (1, 1, 1));
}

#[test]
fn stamps_wrap_and_jump() {
    let ms = PicoTime::from_ms;
    let mut joiner = Joiner::new(1, PicoDuration::ZERO);
    let mut next = |at, stamp| {
        joiner.handle_part(ms(at), 0, stamp);
        joiner.poll(ms(at)).map(|s| s.timestamp)
    };
    assert_eq!(next(0, u32::MAX - 10), Some(u32::MAX - 10));
    assert_eq!(next(1, 20), Some(20));
    assert_eq!(next(2, u32::MAX), None);
    assert_eq!(next(3, 1 << 30), Some(1 << 30));
    assert_eq!(next(4, 5), Some(5));
    assert_eq!(joiner.counts().jumps, 2);
}

#[test]
fn a_display_that_does_not_align_tears_where_the_delays_differ() {
    // 30 pictures per second, one half 150 ms behind the other.
    let run = |wait, behind_ms: u64| {
        let mut joiner = Joiner::new(2, PicoDuration::from_ms(wait));
        let mut events: Vec<(u64, usize, u64)> = (0..60)
            .flat_map(|n| [(n * 1000 / 30, 0, n), (n * 1000 / 30 + behind_ms, 1, n)])
            .collect();
        events.sort_unstable();
        for (at, part, n) in events {
            while joiner.poll(PicoTime::from_ms(at)).is_some() {}
            joiner.handle_part(PicoTime::from_ms(at), part, rtp_timestamp(n, 30, 1));
            while joiner.poll(PicoTime::from_ms(at)).is_some() {}
        }
        while joiner.poll(PicoTime::MAX).is_some() {}
        joiner.counts()
    };
    let (torn, aligned, same) = (run(16, 150), run(200, 150), run(16, 0));
    assert_eq!((torn.whole, torn.torn, torn.late_parts), (0, 60, 60));
    assert_eq!((aligned.whole, aligned.torn), (60, 0));
    assert_eq!((same.whole, same.torn), (60, 0));
}

fn any_format() -> impl Strategy<Value = PixelFormat> {
    proptest::sample::select(PixelFormat::ALL.to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_order_and_repetition_gives_the_picture(
        format in any_format(), wide in 1u32..40, high in 1u32..20, limit in 64usize..1500,
        order in proptest::collection::vec(any::<u16>(), 0..200), seed: u8,
    ) {
        let geometry = Geometry::new(4 * wide, 2 * high, format).expect("a size");
        let bytes = picture(geometry, seed);
        let mut packetizer = Packetizer::new(geometry, limit, PT, 7, u32::MAX - 1);
        let (count, total) = packetizer.per_picture();
        let all = datagrams(&mut packetizer, 99, &bytes);
        prop_assert_eq!(all.len() as u64, count);
        prop_assert_eq!(all.iter().map(|d| d.len() as u64).sum::<u64>(), total);
        prop_assert!(all.iter().all(|d| d.len() <= limit.max(MIN_DATAGRAM)));
        let markers: Vec<bool> = all.iter().map(|d| Packet::parse(d).expect("ours").marker).collect();
        prop_assert!(markers.iter().rev().skip(1).all(|m| !m) && markers.last() == Some(&true));
        let mut assembler = Assembler::new(geometry, PT);
        let mut sent: Vec<&Vec<u8>> = order.iter().map(|&i| &all[usize::from(i) % all.len()]).collect();
        sent.extend(&all);
        let mut done = Vec::new();
        for d in sent {
            done.extend(assembler.handle(PicoTime::ZERO, d).expect("ours"));
        }
        prop_assert_eq!(done.len(), 1);
        prop_assert_eq!(&done[0].picture, &bytes);
    }

    #[test]
    fn any_bytes_are_taken_or_refused(
        bytes in proptest::collection::vec(any::<u8>(), 0..300), flips in proptest::collection::vec(any::<(u16, u8)>(), 0..6),
    ) {
        let geometry = Geometry::new(16, 8, PixelFormat::Rgb8).expect("a size");
        let mut assembler = Assembler::new(geometry, PT);
        let _ = assembler.handle(PicoTime::ZERO, &bytes);
        for mut d in datagrams(&mut Packetizer::new(geometry, 200, PT, 1, 0), 5, &picture(geometry, 3)) {
            for (at, value) in &flips {
                let at = usize::from(*at) % d.len();
                d[at] ^= value;
            }
            let _ = assembler.handle(PicoTime::ZERO, &d);
            if let Ok(packet) = Packet::parse(&d) {
                prop_assert!(packet.segments().map(|s| s.data.len()).sum::<usize>() <= d.len());
            }
        }
    }

    #[test]
    fn a_joiner_shows_each_stamp_once_and_in_order(
        parts in 1usize..4, events in proptest::collection::vec((0usize..4, 0u32..40, 0u64..5), 0..200), wait in 0u64..30,
    ) {
        let (mut joiner, mut now, mut last) = (Joiner::new(parts, PicoDuration::from_ms(wait)), 0, None);
        let mut shown = 0;
        for (part, frame, later) in events {
            now += later;
            joiner.handle_part(PicoTime::from_ms(now), part, frame * 3000);
            while let Some(s) = joiner.poll(PicoTime::from_ms(now)) {
                prop_assert!(last.is_none_or(|l| l < s.timestamp));
                last = Some(s.timestamp);
                shown += 1;
            }
            prop_assert!(joiner.next_wakeup().is_none_or(|at| at > PicoTime::from_ms(now)));
        }
        let counts = joiner.counts();
        prop_assert_eq!(counts.whole + counts.torn, shown);
    }
}
