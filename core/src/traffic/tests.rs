use super::{exponential::exponential, *};
use crate::{
    sim::Random,
    units::{BitRate, FrameBytes, PicoDuration, PicoTime, WireBytes},
    wire::LineRate,
};
use alloc::{string::ToString, vec, vec::Vec};

fn pattern(timing: Timing, sizes: Sizes) -> Pattern {
    Pattern {
        timing,
        sizes,
        streams: 1,
        seed: 1,
        time: None,
        frames: Some(100_000),
    }
}

fn frame(len: u64) -> FrameBytes {
    FrameBytes::new(len)
}

fn all(pattern: Pattern) -> Vec<Departure> {
    Schedule::new(pattern).map(Iterator::collect).unwrap_or_default()
}

#[test]
fn a_rate_is_exact_after_any_number_of_frames() {
    let rate = BitRate::from_mbps(930);
    let departures = all(pattern(Timing::Rate(rate), Sizes::Fixed(frame(1_518))));
    assert_eq!(departures.len(), 100_000);
    for (n, departure) in (0u128..).zip(&departures) {
        let at = n * 1_518 * 8_000_000_000_000 / 930_000_000;
        assert_eq!(u128::from(departure.at.as_ps()), at, "frame {n}");
    }
}

#[test]
fn a_gap_is_exact_to_the_byte_and_never_below_twelve() {
    for (gap, used) in [(36_000, 36_000), (12, 12), (0, 12)] {
        let timing = Timing::Gap(WireBytes::new(gap), LineRate::GIGABIT);
        let departures = all(pattern(timing, Sizes::Fixed(frame(9_018))));
        let last = departures.last().map(|d| d.at.as_ns());
        assert_eq!(last, Some(99_999 * (8 + 9_018 + used) * 8), "gap {gap}");
    }
}

#[test]
fn imix_has_its_shares_and_a_range_its_ends() {
    let timing = Timing::Interval(PicoDuration::from_us(1));
    let mut imix = pattern(timing.clone(), Sizes::Imix);
    imix.frames = Some(12_000);
    let count = |list: &[Departure], len| list.iter().filter(|d| d.len == frame(len)).count();
    let list = all(imix);
    assert_eq!(
        [64, 594, 1_518].map(|len| count(&list, len)),
        [7_000, 4_000, 1_000]
    );
    let list = all(pattern(timing, Sizes::Range(frame(64), frame(67))));
    // 100,000 draws of four sizes: mean 25,000, sigma 137; six of them.
    for len in 64..=67 {
        assert!(count(&list, len).abs_diff(25_000) < 822, "{len}");
    }
    assert_eq!(list.last().map(|d| d.at), Some(PicoTime::from_us(99_999)));
}

#[test]
fn poisson_gaps_are_exponential() {
    let rate = BitRate::from_mbps(100);
    let departures = all(pattern(Timing::Poisson(rate), Sizes::Fixed(frame(1_250))));
    // The mean gap is 100 us. Of 99,999 gaps, a share exp(-x) is longer than x means.
    let gaps: Vec<u64> = departures
        .windows(2)
        .filter_map(|w| Some((w.get(1)?.at - w.first()?.at).as_ns()))
        .collect();
    for (limit_ns, expected) in [
        (10_000, 90_483u64),
        (100_000, 36_788),
        (300_000, 4_979),
        (500_000, 674),
    ] {
        let longer = gaps.iter().filter(|&&ns| ns > limit_ns).count() as u64;
        // Five sigmas of a binomial, rounded up.
        let sigma = (expected * (100_000 - expected) / 100_000).isqrt() + 1;
        assert!(
            longer.abs_diff(expected) <= 5 * sigma,
            "{longer} above {limit_ns} ns, not {expected}"
        );
    }
    let mean = gaps.iter().sum::<u64>() / gaps.len() as u64;
    assert!(
        mean.abs_diff(100_000) < 5 * 317,
        "mean {mean} ns, sigma of the mean 316 ns"
    );
}

#[test]
fn the_exponential_has_its_moments() {
    let mut random = Random::new(7);
    let draws = 200_000u64;
    let mut wholes = [0u64; 3];
    for _ in 0..draws {
        let (whole, _) = exponential(&mut random);
        if let Some(count) = wholes.get_mut(usize::try_from(whole).unwrap_or(usize::MAX)) {
            *count += 1;
        }
    }
    // P(whole = k) = exp(-k) (1 - exp(-1)): 0.63212, 0.23254, 0.08555; sigma below 216.
    for (count, expected) in wholes.iter().zip([126_424, 46_509, 17_109]) {
        assert!(count.abs_diff(expected) < 1_080, "{count} {expected}");
    }
}

#[test]
fn on_and_off() {
    let timing = Timing::OnOff {
        rate: BitRate::from_mbps(100),
        on: PicoDuration::from_ms(1),
        off: PicoDuration::from_ms(9),
    };
    let mut p = pattern(timing, Sizes::Fixed(frame(1_250)));
    p.time = Some(PicoDuration::from_secs(1));
    let departures = all(p);
    // 100 us per frame: 10 in each of 100 times on.
    assert_eq!(departures.len(), 1_000);
    assert!(departures.iter().all(|d| d.at.as_us() % 10_000 < 1_000));
}

#[test]
fn streams_take_turns_and_times_end_runs() {
    let mut p = pattern(
        Timing::Interval(PicoDuration::from_ms(1)),
        Sizes::Fixed(frame(64)),
    );
    p.streams = 3;
    p.time = Some(PicoDuration::from_ms(6));
    let list = all(p.clone());
    assert_eq!(
        list.iter().map(|d| d.stream).collect::<Vec<_>>(),
        [0, 1, 2, 0, 1, 2]
    );
    p.timing = Timing::Poisson(BitRate::from_mbps(1));
    p.time = None;
    let list = all(p);
    for stream in 0..3 {
        let count = list.iter().filter(|d| d.stream == stream).count();
        assert!(count.abs_diff(33_333) < 750, "five sigmas of 149: {count}");
    }
}

#[test]
fn lists_are_read_and_repeated() {
    let entries = parse_list("# two\n0s, 64B\n\n 5us 1518B # last\n").unwrap_or_default();
    assert_eq!(entries.len(), 2);
    let timing = Timing::List {
        entries: entries.into(),
        repeat: true,
    };
    let mut p = pattern(timing, Sizes::Imix);
    p.frames = Some(5);
    let list: Vec<_> = all(p)
        .iter()
        .map(|d| (d.at.as_us(), d.len.get(), d.entry))
        .collect();
    assert_eq!(
        list,
        [(0, 64, 0), (5, 1_518, 1), (5, 64, 0), (10, 1_518, 1), (10, 64, 0)]
    );
}

#[test]
fn bad_lists_and_patterns_say_where() {
    let error = |text: &str| parse_list(text).err().map(|e| e.to_string()).unwrap_or_default();
    assert!(error("1us 64B\n2us\n").starts_with("line 2: write a gap"));
    assert!(error("1us 63B").contains("64 to 9018 bytes"));
    assert!(error("5 64B").starts_with("line 1: "));
    assert!(error("# nothing").contains("no frame"));
    assert!(error("0s 64B\n0s 64B").contains("all gaps are 0"));
    let timing = Timing::Rate(BitRate::MIN);
    let of = |p: Pattern| Schedule::new(p).err();
    let good = pattern(timing.clone(), Sizes::Fixed(frame(64)));
    assert_eq!(of(good.clone()), None);
    assert_eq!(
        of(pattern(timing, Sizes::Fixed(frame(9_019)))),
        Some(PatternError::Size)
    );
    assert_eq!(
        of(Pattern {
            streams: 1_025,
            ..good.clone()
        }),
        Some(PatternError::Streams)
    );
    assert_eq!(
        of(Pattern {
            frames: None,
            ..good.clone()
        }),
        Some(PatternError::Endless)
    );
    let still = Timing::Interval(PicoDuration::ZERO);
    assert_eq!(
        of(Pattern {
            timing: still,
            ..good
        }),
        Some(PatternError::NoTime)
    );
}

#[test]
fn a_stamp_survives_and_damage_is_seen() {
    let stamp = Stamp {
        run: 63,
        stream: 1_023,
        sequence: 0xfedc_ba98,
        sent_ns: 1_795_000_000_123_456_789,
    };
    let bytes = stamp.to_bytes();
    assert_eq!(Stamp::from_payload(&bytes), Some(stamp));
    assert_eq!(Stamp::from_payload(bytes.get(..17).unwrap_or(&[])), None);
    for bit in 0..bytes.len() * 8 {
        let mut damaged = bytes;
        if let Some(byte) = damaged.get_mut(bit / 8) {
            *byte ^= 1 << (bit % 8);
        }
        assert_eq!(Stamp::from_payload(&damaged), None, "bit {bit}");
    }
}

fn tally(numbers: &[u32]) -> StreamReport {
    let mut tally = StreamTally::new();
    for (turn, &sequence) in (0u64..).zip(numbers) {
        let stamp = Stamp {
            run: 0,
            stream: 0,
            sequence,
            sent_ns: turn * 1_000,
        };
        tally.handle(&stamp, turn * 1_000 + 500, 125);
    }
    tally.report(Some(10))
}

#[test]
fn order_by_rfc_4737() {
    // 7, 8 and 9 are overtaken by 10.
    let report = tally(&[1, 2, 3, 4, 5, 6, 10, 7, 8, 9]);
    assert_eq!((report.reordered, report.extent_max), (3, 3));
    // Only 7 comes right behind a larger number; before 8 stands 7.
    assert_eq!(report.n_reordered, [1, 0, 0, 0]);
    // 4 is overtaken by three in a row.
    let report = tally(&[1, 2, 3, 5, 6, 7, 4, 8, 9]);
    assert_eq!(
        (report.reordered, report.extent_max, report.n_reordered),
        (1, 3, [1, 1, 1, 0])
    );
    assert_eq!(tally(&[0, 1, 2, 3]).reordered, 0);
}

#[test]
fn losses_copies_delay_and_rate() {
    let report = tally(&[0, 1, 1, 3, 4, 3]);
    assert_eq!((report.received, report.duplicates, report.lost), (4, 2, 6));
    // Copies are not reordered ones.
    assert_eq!(report.reordered, 0);
    assert_eq!(report.one_way_delay_ns.max, 500);
    assert_eq!(report.jitter_ns, 0);
    // Five frames of 125 bytes in five microseconds.
    assert_eq!(report.rate, Some(BitRate::from_mbps(1_000)));
}

#[test]
fn numbers_go_round_and_old_ones_are_not_guessed() {
    let mut tally = StreamTally::new();
    let mut take = |sequence: u32| {
        tally.handle(
            &Stamp {
                run: 0,
                stream: 0,
                sequence,
                sent_ns: 9,
            },
            5,
            64,
        )
    };
    for number in [0, 0x7fff_ffff, u32::MAX - 1, u32::MAX, 0, 100_000, 1] {
        take(number);
    }
    let report = tally.report(None);
    assert_eq!((report.received, report.old, report.reordered), (6, 1, 0));
    assert_eq!((report.before_sent, report.sent), (6, (1 << 32) + 100_001));
}

#[test]
fn jitter_by_rfc_3550() {
    let mut tally = StreamTally::new();
    for n in 0..1_000u64 {
        let stamp = Stamp {
            run: 0,
            stream: 0,
            sequence: n as u32,
            sent_ns: n * 1_000_000,
        };
        // Transit times in turn 10 and 26 us: every difference is 16 us.
        tally.handle(&stamp, stamp.sent_ns + 10_000 + 16_000 * (n % 2), 64);
    }
    let jitter_ns = tally.report(None).jitter_ns;
    assert!(jitter_ns.abs_diff(16_000) < 2, "{jitter_ns}");
}

#[test]
fn throughput_is_found_by_halving() {
    let mbps = |m| BitRate::from_mbps(m);
    for (limit, min, max) in [
        (468u32, 1, 1_000),
        (2_340, 10, 10_000),
        (1, 1, 10),
        (999, 1, 1_000),
    ] {
        let mut search = Throughput::new(mbps(min), mbps(max), 1_000);
        while let Some(rate) = search.next() {
            assert!(search.result().runs < 40, "no end for {limit}");
            search.handle(rate <= mbps(limit));
        }
        let found = search.result().lossless.map_or(0, BitRate::bps);
        let limit_bps = u64::from(limit) * 1_000_000;
        assert!(
            found <= limit_bps && limit_bps - found <= limit_bps / 900,
            "{limit}: {found}"
        );
    }
    let outcome = |lossless: bool| {
        let mut search = Throughput::new(mbps(1), mbps(1_000), 1_000);
        while search.next().is_some() {
            assert!(search.result().runs < 40);
            search.handle(lossless);
        }
        search.result()
    };
    assert_eq!(
        (outcome(true).lossless, outcome(true).runs),
        (Some(mbps(1_000)), 1)
    );
    assert_eq!(
        (outcome(false).lossless, outcome(false).lossy),
        (None, Some(mbps(1)))
    );
    assert_eq!(vec![outcome(true).lossy], [None]);
}
