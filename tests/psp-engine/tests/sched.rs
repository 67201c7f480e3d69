//! Many classes on one wire: rates, ceilings, gaps to the byte, and who may be late by how much.

use kuroshio_psp_engine::{Ahead, Next, Wire, cases, ns_to_ps};
use proptest::prelude::*;

/// 1 Gbps.
const PS_PER_BYTE: u64 = 8_000;
const LINE_BPS: u64 = 1_000_000_000;
const GAP_LIMIT: u32 = 1518;
const B: u128 = 8_000_000_000_000;

/// A frame on the wire: its class, when it started, its place in the schedule.
#[derive(Debug, Clone, Copy)]
struct Sent {
    class: usize,
    at_ps: u64,
    start_ps: u64,
    bytes: u32,
}

/// Runs a wire whose classes always have a frame of their size waiting until `end_ps`; checks that frames and gap
/// frames fill it without a hole.
fn saturated(wire: &mut Wire, sizes: &[u32], end_ps: u64) -> Vec<Sent> {
    for (class, bytes) in sizes.iter().enumerate() {
        wire.wake(class, *bytes);
    }
    let (mut sent, mut filled) = (Vec::new(), wire.wire_ps());
    while wire.wire_ps() < end_ps {
        let bytes = match wire.next() {
            Next::Frame { class, start_ps } => {
                let bytes = sizes[class];
                sent.push(Sent {
                    class,
                    at_ps: wire.wire_ps(),
                    start_ps,
                    bytes,
                });
                assert_eq!(wire.sent(class, bytes, bytes), start_ps);
                bytes
            }
            Next::Gap { bytes, .. } => {
                assert!((64..=GAP_LIMIT).contains(&bytes), "a gap frame of {bytes}");
                wire.gap_sent(bytes);
                bytes
            }
            Next::Idle => panic!("frames wait"),
        };
        filled += u64::from(bytes.max(64) + 20) * PS_PER_BYTE;
        assert_eq!(wire.wire_ps(), filled);
    }
    sent
}

/// Where the n-th frame of a stream belongs, rounded down to a ps.
fn place(n: usize, bytes: u32, rate_bps: u64) -> u64 {
    (n as u128 * u128::from(bytes) * B / u128::from(rate_bps)) as u64
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(512), failure_persistence: None, ..ProptestConfig::default() })]

    /// Below the bound of 64-byte gap frames each frame leaves less than a byte of wire time behind its place.
    #[test]
    fn one_class_is_exact_to_the_byte(bytes in 64u32..=1518, share in 1u64..=1000, offset in 0u64..1000) {
        let bound = LINE_BPS * u64::from(bytes) / u64::from(bytes + 104);
        let rate_bps = (bound / 1000 * share).max(8_000) - offset.min(7);
        let rate_bps = rate_bps.max(8_000);
        let mut wire = Wire::new(PS_PER_BYTE, GAP_LIMIT);
        wire.class(rate_bps, None);
        let end_ps = place(40, bytes, rate_bps).min(200_000_000_000);
        for (n, frame) in saturated(&mut wire, &[bytes], end_ps).iter().enumerate() {
            prop_assert_eq!(frame.start_ps, place(n, bytes, rate_bps));
            prop_assert!((frame.start_ps..frame.start_ps + PS_PER_BYTE).contains(&frame.at_ps));
        }
        prop_assert_eq!(wire.lost_ps(0), 0);
    }

    /// Above it the mean is kept and a frame is late by less than a gap frame and a byte.
    #[test]
    fn above_the_bound_the_mean_is_kept(bytes in 64u32..=1518, part in 1u64..1000) {
        let (low, high) = (LINE_BPS * u64::from(bytes) / u64::from(bytes + 104),
                           LINE_BPS * u64::from(bytes) / u64::from(bytes + 20));
        let rate_bps = low + (high - low) * part / 1000;
        let mut wire = Wire::new(PS_PER_BYTE, GAP_LIMIT);
        wire.class(rate_bps, None);
        for (n, frame) in saturated(&mut wire, &[bytes], place(3000, bytes, rate_bps)).iter().enumerate() {
            prop_assert_eq!(frame.start_ps, place(n, bytes, rate_bps));
            prop_assert!((frame.start_ps..frame.start_ps + 85 * PS_PER_BYTE).contains(&frame.at_ps));
        }
    }

    /// Rates that fit: each class's n-th frame keeps its place in the schedule, and is late by one frame of each other
    /// class, one unpaced frame and one gap frame at most.
    #[test]
    fn rates_of_many_classes_are_exact(classes in prop::collection::vec((64u32..=1518, 1u64..1000), 2..12),
                                       load in 50u64..950, unpaced: bool) {
        let sum: u64 = classes.iter().map(|c| c.1).sum();
        let mut wire = Wire::new(PS_PER_BYTE, GAP_LIMIT);
        let mut sizes: Vec<u32> = classes.iter().map(|c| c.0).collect();
        // Of the wire each class takes its weight, with the 20 bytes of each frame.
        let rates: Vec<u64> = classes.iter().map(|(bytes, weight)| {
            (LINE_BPS * load / 1000 * weight / sum * u64::from(*bytes) / u64::from(bytes + 20)).max(8_000)
        }).collect();
        for rate in &rates {
            wire.class(*rate, None);
        }
        if unpaced {
            sizes.push(1518);
            wire.class(0, None);
        }
        let bound: u64 = sizes.iter().map(|b| u64::from(b + 20)).sum::<u64>() + 84 + 1;
        let mut count = vec![0usize; sizes.len()];
        for frame in saturated(&mut wire, &sizes, 20_000_000_000) {
            if let Some(rate) = rates.get(frame.class) {
                prop_assert_eq!(frame.start_ps, place(count[frame.class], frame.bytes, *rate));
                prop_assert!(frame.at_ps >= frame.start_ps);
                prop_assert!(frame.at_ps - frame.start_ps <= bound * PS_PER_BYTE);
            }
            count[frame.class] += 1;
        }
        for (class, rate) in rates.iter().enumerate() {
            prop_assert_eq!(wire.lost_ps(class), 0);
            // Every frame whose place came in time has gone.
            prop_assert!(place(count[class], sizes[class], *rate) + bound * PS_PER_BYTE >= 20_000_000_000);
        }
        if unpaced {
            prop_assert!(count[rates.len()] > 0, "what is left of the wire is the unpaced class's");
        }
    }

    /// In any window a group sends its ceiling and one frame per class at most; nobody in it starves.
    #[test]
    fn a_group_keeps_its_ceiling(members in prop::collection::vec((64u32..=1518, 1_000_000u64..900_000_000), 2..8),
                                 ceiling in 1_000_000u64..700_000_000, others in 0usize..3) {
        let mut wire = Wire::new(PS_PER_BYTE, GAP_LIMIT);
        let group = wire.group(ceiling);
        let mut sizes = Vec::new();
        for (bytes, rate) in &members {
            sizes.push(*bytes);
            wire.class(*rate, Some(group));
        }
        sizes.extend(std::iter::repeat_n(1518, others));
        for _ in 0..others {
            wire.class(20_000_000, None);
        }
        let sent = saturated(&mut wire, &sizes, 50_000_000_000);
        let of_group: Vec<Sent> = sent.into_iter().filter(|s| s.class < members.len()).collect();
        let slack: u128 = sizes.iter().map(|b| u128::from(*b)).sum();
        for from in (0..of_group.len()).step_by(1 + of_group.len() / 50) {
            let (mut wire_bytes, mut plan_bytes) = (0u128, 0u128);
            for frame in &of_group[from..] {
                let on_wire = u128::from(frame.at_ps - of_group[from].at_ps);
                prop_assert!(wire_bytes * B <= on_wire * u128::from(ceiling) + slack * B);
                // Places in the schedule are exact; a ps of rounding at either end.
                let plan = u128::from(frame.start_ps - of_group[from].start_ps) + 1;
                prop_assert!(plan_bytes * B <= plan * u128::from(ceiling));
                wire_bytes += u128::from(frame.bytes);
                plan_bytes += u128::from(frame.bytes);
            }
        }
        for (class, (_, rate)) in members.iter().enumerate() {
            let bytes: u64 = of_group.iter().filter(|s| s.class == class).map(|s| u64::from(s.bytes)).sum();
            prop_assert!(u128::from(bytes) * B
                <= 50_000_000_000 * u128::from(*rate) + 2 * 1518 * B, "its own rate holds, too");
        }
        // Frames of all members that could have had more: one each before anybody has many.
        let rounds = of_group.len() / members.len();
        let least = members.iter().map(|m| m.1).min().unwrap_or(0);
        if rounds > 20 && least > ceiling {
            for class in 0..members.len() {
                let own = of_group.iter().filter(|s| s.class == class).count();
                prop_assert!(own * 40 > rounds, "class {} sent {} of {}", class, own, of_group.len());
            }
        }
    }

    /// A new epoch changes nothing.
    #[test]
    fn rebase_keeps_the_schedule(rates in prop::collection::vec(1_000_000u64..200_000_000, 1..5),
                                 at in 0u64..10_000_000_000) {
        let base = 1u64 << 62;
        let sizes = vec![1000; rates.len()];
        let mut plain = Wire::new(PS_PER_BYTE, GAP_LIMIT);
        let mut moved = Wire::new(PS_PER_BYTE, GAP_LIMIT);
        for rate in &rates {
            let group = (plain.group(2 * rate), moved.group(2 * rate));
            plain.class(*rate, Some(group.0));
            moved.class(*rate, Some(group.1));
        }
        plain.resync(base);
        moved.resync(base);
        let before = (saturated(&mut plain, &sizes, base + at), saturated(&mut moved, &sizes, base + at));
        prop_assert_eq!(before.0.len(), before.1.len());
        moved.rebase(base);
        prop_assert_eq!(moved.wire_ps(), plain.wire_ps() - base);
        let next = base + at + 10_000_000_000;
        let after = (saturated(&mut plain, &sizes, next), saturated(&mut moved, &sizes, next - base));
        prop_assert!(!after.0.is_empty() && after.0.len() == after.1.len());
        for (a, b) in after.0.iter().zip(&after.1) {
            prop_assert_eq!((a.class, a.at_ps - base, a.start_ps - base), (b.class, b.at_ps, b.start_ps));
        }
    }
}

#[test]
fn the_paper_s_gap_is_1478_bytes_in_one_frame() {
    // 1518 bytes at 500 of 1000 Mbps own 3036 bytes of the wire: 1538 of their own, a gap frame of 1478 and its 20.
    let mut wire = Wire::new(PS_PER_BYTE, GAP_LIMIT);
    wire.class(500_000_000, None);
    wire.wake(0, 1518);
    assert_eq!(
        wire.next(),
        Next::Frame {
            class: 0,
            start_ps: 0
        }
    );
    wire.sent(0, 1518, 1518);
    let start_ps = 3036 * PS_PER_BYTE;
    assert_eq!(
        wire.next(),
        Next::Gap {
            class: 0,
            bytes: 1478,
            start_ps
        }
    );
    wire.gap_sent(1478);
    assert_eq!(wire.next(), Next::Frame { class: 0, start_ps });
}

#[test]
fn gap_frames_share_a_long_gap_as_core_splits_it() {
    use kuroshio_core::{
        pace::gap_packets_on_wire,
        units::{BitRate, FrameBytes},
        wire::LineRate,
    };
    for rate_bps in [
        8_000,
        100_000,
        1_000_000,
        10_000_000,
        123_456_789,
        333_333_334,
        930_000_000,
    ] {
        let mut wire = Wire::new(PS_PER_BYTE, GAP_LIMIT);
        wire.class(rate_bps, None);
        wire.wake(0, 1518);
        wire.sent(0, 1518, 1518);
        let mut gaps = Vec::new();
        while let Next::Gap { bytes, .. } = wire.next() {
            gaps.push(u64::from(bytes));
            wire.gap_sent(bytes);
        }
        let rate = BitRate::from_bps(rate_bps).expect("not 0");
        let core = gap_packets_on_wire(
            FrameBytes::new(1518),
            rate,
            LineRate::GIGABIT,
            FrameBytes::new(1518),
        );
        let core: Vec<u64> = core.expect("in range").map(FrameBytes::get).collect();
        assert_eq!(
            gaps.iter().sum::<u64>() + 20 * gaps.len() as u64,
            core.iter().sum::<u64>() + 20 * core.len() as u64,
            "{rate_bps}"
        );
        // A frame at a time is divided anew, so that among tens of thousands one may be spared. (Core rounds the
        // exact share up to a byte, the scheduler a place that is a whole ps: rates where that differs are not here.)
        if core.len() < 1000 {
            assert_eq!(gaps, core, "{rate_bps}");
        }
    }
}

#[test]
fn idle_earns_no_credit() {
    let mut wire = Wire::new(PS_PER_BYTE, GAP_LIMIT);
    wire.class(100_000_000, None);
    wire.wake(0, 1000);
    assert_eq!(wire.sent(0, 1000, 0), 0);
    assert_eq!(wire.next(), Next::Idle);
    // A second of silence, then two frames: the second waits for 80 us.
    wire.resync(1_000_000_000_000);
    wire.wake(0, 1000);
    assert_eq!(wire.sent(0, 1000, 1000), 1_000_000_000_000);
    assert!(matches!(
        wire.next(),
        Next::Gap {
            start_ps: 1_000_080_000_000,
            ..
        }
    ));
    // One that comes back before its time is over waits as well.
    wire.sleep(0);
    wire.wake(0, 1000);
    assert!(matches!(
        wire.next(),
        Next::Gap {
            start_ps: 1_000_080_000_000,
            ..
        }
    ));
}

#[test]
fn an_overbooked_wire_gives_no_burst_afterwards() {
    let mut wire = Wire::new(PS_PER_BYTE, GAP_LIMIT);
    for _ in 0..2 {
        wire.class(900_000_000, None);
    }
    saturated(&mut wire, &[1518, 1518], 1_000_000_000_000);
    assert!(
        wire.lost_ps(0) > 400_000_000_000,
        "half a second each was not to be had"
    );
    wire.sleep(1);
    wire.sleep(0);
    let from = wire.wire_ps();
    let alone = saturated(&mut wire, &[1518], from + 1_000_000_000);
    // A millisecond at 900 Mbps, and what the bound on lateness leaves: five frames.
    let bytes: u64 = alone.iter().map(|s| u64::from(s.bytes)).sum();
    assert!(bytes <= 112_500 + 5 * 1518, "{bytes} bytes in a millisecond");
    assert!(bytes >= 112_500 - 1518, "{bytes} bytes in a millisecond");
}

#[test]
fn unpaced_classes_take_turns_and_what_is_left() {
    let mut wire = Wire::new(PS_PER_BYTE, GAP_LIMIT);
    wire.class(500_000_000, None);
    wire.class(0, None);
    wire.class(0, None);
    let sent = saturated(&mut wire, &[1518, 1518, 1518], 100_000_000_000);
    let bytes = |class| {
        sent.iter()
            .filter(|s| s.class == class)
            .map(|s| u64::from(s.bytes))
            .sum::<u64>()
    };
    // 0.1 s at 500 Mbps, and one frame.
    assert!(bytes(0).abs_diff(6_250_000) <= 2 * 1518, "{}", bytes(0));
    assert!(bytes(1).abs_diff(bytes(2)) <= 1518, "{} {}", bytes(1), bytes(2));
    assert!(bytes(1) > 2_900_000, "{}", bytes(1));
}

/// Wakes late by `late_ps` behind a first frame; the place of the frame that waited.
fn place_after_late_wake(late_ps: u64) -> u64 {
    let mut wire = Wire::new(PS_PER_BYTE, GAP_LIMIT);
    wire.set_slack_ps(1_000_000_000);
    wire.class(100_000_000, None);
    wire.wake(0, 1000);
    wire.sent(0, 1000, 1000);
    wire.resync(80_000_000 + late_ps);
    match wire.next() {
        Next::Frame { start_ps, .. } => start_ps,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_late_timer_is_made_good_up_to_its_slack() {
    // 1000 bytes at 100 Mbps: the second frame's place is at 80 us.
    assert_eq!(place_after_late_wake(0), 80_000_000);
    assert_eq!(place_after_late_wake(900_000_000), 80_000_000);
    // A whole millisecond beyond: what is beyond the slack (and three frames) is lost.
    let lost = place_after_late_wake(2_000_000_000);
    assert!((1_000_000_000..=1_080_000_000).contains(&lost), "{lost}");
}

const DAY_NS: u64 = 86_400_000_000_000;
const HOUR_NS: u64 = DAY_NS / 24;

/// What the qdisc does when its wire was idle up to `passed_ns` after the epoch; returns what has then passed since it.
fn catch_up(wire: &mut Wire, passed_ns: u64) -> u64 {
    let by_ns = wire.rebase_due_ns(passed_ns);
    if by_ns > 0 {
        wire.rebase(ns_to_ps(by_ns));
    }
    let passed_ns = passed_ns.saturating_sub(by_ns);
    wire.resync(ns_to_ps(passed_ns));
    passed_ns
}

#[test]
fn the_epoch_moves_on_before_time_overflows() {
    let mut wire = Wire::new(PS_PER_BYTE, GAP_LIMIT);
    wire.class(8_000, None);
    assert_eq!(wire.rebase_due_ns(50 * DAY_NS), 0);
    // The wire's own time, by bytes that were sent: 60 days.
    wire.resync(ns_to_ps(60 * DAY_NS));
    assert_eq!(wire.rebase_due_ns(0), 60 * DAY_NS - HOUR_NS);
    assert_eq!(wire.rebase_due_ns(70 * DAY_NS), 70 * DAY_NS - HOUR_NS);
    // 2^64 ps are 213.5 days.
    assert_eq!(ns_to_ps(213 * DAY_NS), 213 * DAY_NS * 1000);
    assert_eq!(ns_to_ps(214 * DAY_NS), u64::MAX);
}

/// Silence of any length: the frame behind the next one waits its 1.5 s, as it would after a minute.
#[test]
fn a_year_of_silence_is_like_a_minute() {
    for silence_ns in [
        60_000_000_000,
        52 * DAY_NS,
        54 * DAY_NS,
        100 * DAY_NS,
        250 * DAY_NS,
        400 * DAY_NS,
    ] {
        let mut wire = Wire::new(PS_PER_BYTE, GAP_LIMIT);
        wire.class(8_000, None);
        let begun_ns = catch_up(&mut wire, 20 * DAY_NS);
        wire.wake(0, 1500);
        wire.sent(0, 1500, 0);
        let passed_ns = catch_up(&mut wire, begun_ns + silence_ns);
        assert!(passed_ns < 54 * DAY_NS, "{passed_ns} ns since the epoch");
        assert_eq!(wire.wire_ps(), passed_ns * 1000, "the wire stands at now");
        wire.wake(0, 1500);
        let start_ps = wire.sent(0, 1500, 1500);
        assert_eq!(
            start_ps,
            passed_ns * 1000,
            "nothing to wait for after {silence_ns} ns"
        );
        match wire.next() {
            Next::Gap { start_ps, .. } => assert_eq!(start_ps, passed_ns * 1000 + 1_500_000_000_000),
            other => panic!("{other:?}"),
        }
    }
}

const MS: u64 = 1_000_000_000;

#[test]
fn a_device_that_never_blocks_is_noticed() {
    let mut wire = Wire::new(PS_PER_BYTE, GAP_LIMIT);
    wire.set_ahead_max_ps(100 * MS);
    wire.resync(100 * MS);
    assert_eq!(wire.look_ahead(0), Ahead::InTime);
    wire.resync(100 * MS + 1);
    assert_eq!(wire.look_ahead(0), Ahead::Runaway(100 * MS + 1));
    // Idle for a minute before it began: forgiven once, and then no more.
    wire.resync(60_200 * MS);
    assert_eq!(wire.look_ahead(60_000 * MS), Ahead::Skewed(150 * MS));
    assert_eq!(wire.look_ahead(60_150 * MS), Ahead::InTime);
    wire.resync(60_251 * MS);
    assert_eq!(wire.look_ahead(60_150 * MS), Ahead::Runaway(101 * MS));
}

/// A wire that is busy for a day with a clock that is faster by `ppm`; whether gap frames went on all day.
fn busy_for_a_day(ppm: u64) -> bool {
    let mut wire = Wire::new(PS_PER_BYTE, GAP_LIMIT);
    wire.set_ahead_max_ps(100 * MS);
    let mut epoch_back_ps = 0;
    // Looked at each 20 ms: a ring of 3 ms, and what the wire gained.
    for n in 0..24 * 3600 * 50 {
        let passed_ps = n * 20 * MS;
        wire.resync(passed_ps + 3 * MS + passed_ps / 1_000_000 * ppm);
        match wire.look_ahead(passed_ps + epoch_back_ps) {
            Ahead::InTime => {}
            Ahead::Skewed(back_ps) => epoch_back_ps += back_ps,
            Ahead::Runaway(_) => return false,
        }
    }
    // What was forgiven is what was gained, but for what may be ahead.
    let gained_ps = 24 * 3_600_000 * MS / 1_000_000 * ppm;
    assert!(
        epoch_back_ps <= gained_ps + 3 * MS && epoch_back_ps + 100 * MS >= gained_ps,
        "{epoch_back_ps}"
    );
    true
}

#[test]
fn a_faster_crystal_is_no_runaway() {
    assert!(busy_for_a_day(0));
    assert!(busy_for_a_day(200), "two crystals of 100 ppm each");
    assert!(!busy_for_a_day(20_000), "2 % is another speed");
}
