use super::*;
use crate::{
    units::{BitRate, FrameBytes, PS_BITS_PER_BYTE, PicoDuration, PicoTime, WireBytes},
    wire::LineRate,
};
use alloc::vec::Vec;
use proptest::prelude::*;

const GIGABIT: LineRate = LineRate::GIGABIT;

fn mbps(rate: u32) -> BitRate {
    BitRate::from_mbps(rate)
}

fn frame(len: u64) -> FrameBytes {
    FrameBytes::new(len)
}

#[test]
fn inter_frame_gaps() {
    // (frame bytes, Mbps on a wire of 1000, gap bytes)
    let table = [
        (1_518, 500, 1_510),
        (64, 950, 12), // the formula alone gives -4.6
        (64, 1_000, 12),
        (1_518, 1_000, 12),
        (1_518, 2_000, 12),
        (1_518, 250, 4_546),
        (1_518, 986, 14),    // 13.55 rounded up
        (6_018, 800, 1_497), // 1496.5 rounded up
        (6_018, 750, 1_998),
        (1, 500, 56), // as a frame of 64
    ];
    for (len, rate, gap) in table {
        let given = ifg_bytes(frame(len), mbps(rate), GIGABIT);
        assert_eq!(given, WireBytes::new(gap), "{len} bytes at {rate} Mbps");
    }
    let widest = ifg_bytes(FrameBytes::MAX, BitRate::MIN, LineRate::new(BitRate::MAX));
    assert_eq!(widest, WireBytes::new(12).max(widest), "no overflow");
}

#[test]
fn a_fixed_gap_is_never_below_twelve() {
    let gap = |bytes| {
        Spacing::Gap(WireBytes::new(bytes))
            .gap(frame(1_518), GIGABIT)
            .get()
    };
    assert_eq!([0, 11, 12, 36_000].map(gap), [12, 12, 12, 36_000]);
}

#[test]
fn a_fixed_gap_of_36000_gives_the_goodput_of_gfarm_ifg() {
    let mut shaper = IfgShaper::new(GIGABIT, Spacing::Gap(WireBytes::new(36_000)));
    let first = shaper.depart(PicoTime::ZERO, frame(9_018)).start;
    let second = shaper.depart(PicoTime::ZERO, frame(9_018)).start;
    // (9000 - 52) of payload in 9018 + 8 + 36000 of the wire.
    assert_eq!(BitRate::of(8_948, second - first), BitRate::new(198_729_622));
}

#[test]
fn a_shortfall_is_no_credit() {
    // Frames of 64 at 950 are slower than their share; the full frame after them keeps its whole gap.
    let mut shaper = IfgShaper::new(GIGABIT, Spacing::Rate(mbps(500)));
    for _ in 0..100 {
        shaper.depart(PicoTime::ZERO, frame(64));
    }
    shaper.set_spacing(Spacing::Rate(mbps(950)));
    for _ in 0..100 {
        let slot = shaper.depart(PicoTime::ZERO, frame(64));
        assert_eq!(shaper.free_at() - slot.start, PicoDuration::from_ns(84 * 8));
    }
    shaper.set_spacing(Spacing::Rate(mbps(500)));
    let slot = shaper.depart(PicoTime::ZERO, frame(1_518));
    assert_eq!(
        shaper.free_at() - slot.start,
        PicoDuration::from_ns((8 + 1_518 + 1_510) * 8)
    );
    assert_eq!(slot.end - slot.start, PicoDuration::from_ns((8 + 1_518) * 8));
}

#[test]
fn idle_time_is_no_credit() {
    let second = PicoTime::from_secs(1);
    let mut shaper = IfgShaper::new(GIGABIT, Spacing::Rate(mbps(500)));
    let Ok(mut pacer) = ByteClockPacer::new(mbps(500)) else {
        panic!("500 Mbps is in range")
    };
    shaper.depart(PicoTime::ZERO, frame(1_518));
    pacer.depart(PicoTime::ZERO, frame(1_518));
    let ready = [second, second, second];
    let spacing = PicoDuration::from_ns(1_518 * 16);
    let expected = [second, second + spacing, second + spacing + spacing];
    assert_eq!(ready.map(|now| shaper.depart(now, frame(1_518)).start), expected);
    assert_eq!(ready.map(|now| pacer.depart(now, frame(1_518)).start), expected);
}

#[test]
fn the_byte_clock_has_a_range() {
    let error = |bps| BitRate::from_bps(bps).map(|r| ByteClockPacer::new(r).err());
    assert_eq!(error(8_000), Ok(None));
    assert_eq!(error(800_000_000_000), Ok(None));
    assert!(matches!(error(7_999), Ok(Some(PaceError::RateOutOfRange(_)))));
    assert!(matches!(
        error(800_000_000_001),
        Ok(Some(PaceError::RateOutOfRange(_)))
    ));
    let message = ByteClockPacer::new(BitRate::MIN)
        .map_err(|e| alloc::format!("{e}"))
        .err();
    assert_eq!(
        message.as_deref(),
        Some("rate 1bps cannot be paced: valid are 8kbps to 800Gbps")
    );
}

/// Start of frame `n` (from 0) in ps, in closed form.
fn closed_form(n: u64, len: u64, rate: BitRate) -> u128 {
    u128::from(n) * u128::from(len) * u128::from(PS_BITS_PER_BYTE) / u128::from(rate.bps())
}

#[test]
fn no_drift_over_ten_million_frames() {
    // None of these divides into whole picoseconds.
    let cases = [
        (1_518, 930_000_007, 10_000_000),
        (9_018, 7_777_777_777, 1_000_000),
        (64, 799_999_999_999, 1_000_000),
    ];
    for (len, bps, frames) in cases {
        let Ok(rate) = BitRate::from_bps(bps) else {
            panic!("not zero")
        };
        let Ok(mut pacer) = ByteClockPacer::new(rate) else {
            panic!("in range")
        };
        let mut last = PicoTime::ZERO;
        for _ in 0..=frames {
            last = pacer.depart(PicoTime::ZERO, frame(len)).start;
        }
        assert_eq!(u128::from(last.as_ps()), closed_form(frames, len, rate), "{bps}");
    }
}

#[test]
fn no_drift_over_a_billion_frames() {
    // One step of n * len bytes leaves the clock exactly where n steps of len do: both keep
    // at * rate + remainder = bytes * 8 * 10^12 (checked for every step in `units`). So jump to a
    // billion, and walk the frames around it one by one.
    for (len, bps) in [
        (1_518, 930_000_007),
        (9_018, 7_777_777_777),
        (1_518, 799_999_999_999),
    ] {
        let Ok(rate) = BitRate::from_bps(bps) else {
            panic!("not zero")
        };
        let Ok(mut pacer) = ByteClockPacer::new(rate) else {
            panic!("in range")
        };
        let before = 1_000_000_000 - 5_000;
        pacer.depart(PicoTime::ZERO, frame(before * len));
        for n in before..before + 10_000 {
            let start = pacer.depart(PicoTime::ZERO, frame(len)).start;
            assert_eq!(
                u128::from(start.as_ps()),
                closed_form(n, len, rate),
                "frame {n} at {bps}"
            );
        }
    }
}

#[test]
fn gap_packets_of_the_paper() {
    let gap = |size, target, limit| {
        gap_packets(frame(size), mbps(target), mbps(1_000), frame(limit))
            .map(|g| g.map(FrameBytes::get).collect::<Vec<_>>())
    };
    assert_eq!(gap(1_500, 500, 1_500), Ok([1_500].to_vec()));
    assert_eq!(gap(1_500, 500, 1_499), Ok([750, 750].to_vec()));
    assert_eq!(gap(1_501, 400, 1_500), Ok([1_126, 1_126].to_vec())); // 2251.5 rounded up
    assert_eq!(gap(1_500, 999, 1_500), Ok([64].to_vec()));
    assert_eq!(gap(1_500, 1_000, 1_500), Ok([].to_vec()));
    assert_eq!(gap(1_500, 2_000, 1_500), Ok([].to_vec()));
    assert_eq!(gap(1_500, 300, 1_518), Ok([1_167, 1_167, 1_166].to_vec()));
    assert_eq!(gap(1_500, 500, 167), Err(PaceError::GapFrameLimit(frame(167))));
    let slowest = gap_packets(frame(1_500), PACER_RATE_MIN, mbps(1_000), frame(1_500));
    assert_eq!(
        slowest.map(|g| (g.frames(), g.bytes())),
        Ok((124_999, frame(1_500 * 124_999)))
    );
    let beyond = gap_packets(FrameBytes::MAX, BitRate::MIN, BitRate::MAX, frame(1_500));
    assert_eq!(beyond, Err(PaceError::GapTooLarge));
}

#[test]
fn gap_packets_have_an_upper_bound() {
    let frame_level = gap_rate_max(frame(1_518), GIGABIT).map(BitRate::bps);
    assert_eq!(frame_level, Some(935_881_627)); // 1518/1622
    let on_wire = |bps| {
        let rate = BitRate::from_bps(bps).map_err(|_| PaceError::GapTooLarge)?;
        gap_packets_on_wire(frame(1_518), rate, GIGABIT, frame(1_518)).map(|g| (g.frames(), g.bytes().get()))
    };
    assert_eq!(on_wire(935_881_627), Ok((1, 65))); // 1622.0000008 bytes of the wire, rounded up
    assert_eq!(on_wire(935_881_628), Ok((1, 64)));
    assert_eq!(on_wire(980_000_000), Ok((1, 64)));
    assert_eq!(on_wire(986_996_099), Ok((0, 0)));
    assert_eq!(on_wire(500_000_000), Ok((1, 3_036 - 1_538 - 20)));
}

/// The bound of the module: the bytes that start from frame i up to any later frame j, without j itself,
/// fit the time between the two starts. Every window of whole ps that holds frames i to j is longer than
/// that time, so it holds at most its share and frame j.
fn check_bound(starts: &[(PicoTime, u64)], rate: BitRate) -> Result<(), TestCaseError> {
    let mut floor = i128::MIN;
    let mut sent: i128 = 0;
    for &(start, len) in starts {
        // rate * start - sent is the room at this frame; the window from the frame with most room used
        // up so far is the worst. Starts are rounded down, so a window of [start_i, start_j] spans
        // start_j - start_i + 1 ps.
        let room = i128::from(rate.bps()) * i128::from(start.as_ps()) - sent;
        prop_assert!(room + i128::from(rate.bps()) > floor, "above {rate} at {start}");
        floor = floor.max(room);
        sent += i128::from(len) * i128::from(PS_BITS_PER_BYTE);
    }
    Ok(())
}

#[test]
fn the_bound_can_fail() {
    let Ok(rate) = BitRate::from_bps(8_000_000_000) else {
        panic!("not zero")
    };
    let at = |ns, len| (PicoTime::from_ns(ns), len);
    assert!(check_bound(&[at(0, 100), at(100, 100), at(200, 1)], rate).is_ok());
    assert!(check_bound(&[at(0, 100), at(100, 101), at(200, 1)], rate).is_err());
    assert!(check_bound(&[at(0, 1), at(500, 100), at(599, 100)], rate).is_err());
}

proptest! {
    #[test]
    fn no_window_is_above_the_rate(
        bps in 8_000u64..=800_000_000_000,
        line_bps in prop::sample::select([1_000_000_000u64, 10_000_000_000, 468_000_000].to_vec()),
        frames in prop::collection::vec((0u64..40_000_000, 64u64..9_019), 1..300),
    ) {
        let rate = BitRate::from_bps(bps)?;
        let mut pacer = ByteClockPacer::new(rate).map_err(|e| TestCaseError::fail(alloc::format!("{e}")))?;
        let mut shaper = IfgShaper::new(LineRate::new(BitRate::from_bps(line_bps)?), Spacing::Rate(rate));
        let (mut paced, mut shaped, mut now) = (Vec::new(), Vec::new(), PicoTime::ZERO);
        for (idle, len) in frames {
            now += PicoDuration::from_ps(idle);
            paced.push((pacer.depart(now, frame(len)).start, len));
            shaped.push((shaper.depart(now, frame(len)).start, len));
        }
        check_bound(&paced, rate)?;
        check_bound(&shaped, rate)?;
    }

    #[test]
    fn a_busy_shaper_is_within_a_byte_of_the_rate(bps in 1_000_000u64..900_000_000, len in 300u64..9_019) {
        // The gap is rounded up by less than a byte, and at these sizes the wire's 12 do not bind.
        let rate = BitRate::from_bps(bps)?;
        let owned = u128::from(ifg_bytes(frame(len), rate, GIGABIT).get() + 8 + len);
        prop_assert!(owned * u128::from(bps) >= u128::from(len) * 1_000_000_000);
        prop_assert!((owned - 1) * u128::from(bps) < u128::from(len) * 1_000_000_000);
    }

    #[test]
    fn gap_frames_fill_the_gap(
        len in 64u64..9_019, bps in 8_000u64..1_000_000_000, limit in 168u64..9_019,
    ) {
        let rate = BitRate::from_bps(bps)?;
        let share = (u128::from(len) * 1_000_000_000).div_ceil(u128::from(bps));
        let fail = |e: PaceError| TestCaseError::fail(alloc::format!("{e}"));
        let on_wire = gap_packets_on_wire(frame(len), rate, GIGABIT, frame(limit)).map_err(fail)?;
        let plain = gap_packets(frame(len), rate, mbps(1_000), frame(limit)).map_err(fail)?;
        let rest = share.saturating_sub(u128::from(len) + 20);
        let on_wire_least = if rest == 0 { 0 } else { rest.max(84) };
        for (gaps, least, overhead) in [(on_wire, on_wire_least, 20), (plain, (share - u128::from(len)).max(64), 0)] {
            let filled = u128::from(gaps.bytes().get() + overhead * gaps.frames());
            prop_assert_eq!(filled, least);
            let sum = gaps.take(1_000).map(FrameBytes::get).collect::<Vec<_>>();
            prop_assert!(sum.iter().all(|size| (64..=limit).contains(size)));
            if gaps.frames() <= 1_000 {
                prop_assert_eq!(sum.iter().sum::<u64>(), gaps.bytes().get());
                prop_assert_eq!(sum.len() as u64, gaps.frames());
            }
        }
    }
}

#[test]
fn gap_frames_fill_a_gap_of_the_wire_to_the_byte() {
    let limit = FrameBytes::new(1518);
    for gap in (0..5_000).chain([190_000_000]) {
        let gaps = gap_packets_in(WireBytes::new(gap), limit).unwrap();
        let filled = gaps.bytes().get() + 20 * gaps.frames();
        // The 12 after the frame are the wire's own.
        let expected = if gap < 12 + 84 { 0 } else { gap - 12 };
        assert_eq!(filled, expected, "{gap}");
        assert!(gaps.take(10).all(|g| (64..=1518).contains(&g.get())), "{gap}");
    }
    assert!(gap_packets_in(WireBytes::new(1_000), FrameBytes::new(100)).is_err());
    // The shaper's gap at 500 of 1000 Mbps is the paper's, and the preamble before the next frame is that frame's.
    let gap = Spacing::Rate(BitRate::from_mbps(500)).gap(FrameBytes::new(1518), LineRate::GIGABIT);
    let mut gaps = gap_packets_in(gap, limit).unwrap();
    assert_eq!((gaps.next(), gaps.next()), (Some(FrameBytes::new(1478)), None));
}

#[test]
fn a_filled_wire_has_every_frame_in_its_place() {
    let line = LineRate::GIGABIT;
    let limit = FrameBytes::new(1518);
    // 300 Mbps of 1518 at frame level: a frame each 5060 bytes of the wire.
    let mut filler = GapFiller::new(line, limit).unwrap();
    let mut cursor = 0;
    for n in 0..10_000u64 {
        let due = PicoTime::from_ps(n * 5060 * 8_000);
        for gap in filler.before(due, FrameBytes::new(1518)).unwrap() {
            assert!((64..=1518).contains(&gap.get()));
            cursor += gap.get() + 20;
        }
        assert_eq!(cursor, n * 5060);
        cursor += 1538;
        assert_eq!(filler.time_before_end(1538), due);
    }
    // Gaps of 40 bytes are too short for a frame: left out and then in one, never more than 83 bytes early.
    let mut filler = GapFiller::new(line, limit).unwrap();
    let (mut cursor, mut gaps) = (0u64, 0);
    for n in 0..1_000u64 {
        let due = n * 1578;
        for gap in filler
            .before(PicoTime::from_ps(due * 8_000), FrameBytes::new(1518))
            .unwrap()
        {
            (cursor, gaps) = (cursor + gap.get() + 20, gaps + 1);
        }
        assert!(
            cursor <= due && due - cursor < 84,
            "frame {n}: {cursor} for {due}"
        );
        cursor += 1538;
    }
    assert!((300..=500).contains(&gaps), "{gaps}");
    // Above the wire's rate there is nothing to fill.
    let mut filler = GapFiller::new(line, limit).unwrap();
    let all = (0..100).map(|n| filler.before(PicoTime::from_ps(n * 8_000), FrameBytes::new(64)));
    assert!(all.into_iter().all(|gaps| gaps.unwrap().frames() == 0));
    assert!(GapFiller::new(line, FrameBytes::new(100)).is_err());
    assert!(GapFiller::new(LineRate::new(BitRate::from_bps(56_000_000_000).unwrap()), limit).is_err());
}
