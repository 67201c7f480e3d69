use super::*;
use crate::units::{BitRate, PicoDuration, PicoTime};
use alloc::{string::ToString, vec, vec::Vec};
use proptest::prelude::*;

fn ms(ms: u64) -> PicoTime {
    PicoTime::from_ms(ms)
}

#[test]
fn bytes_fall_into_their_window() {
    let Ok(mut windows) = Windows::starting_at(ms(10), PicoDuration::from_ms(2)) else {
        panic!("2 ms wide")
    };
    let (a, b) = (StreamId(1), StreamId(7));
    let stamps = [
        (a, ms(10), 1),
        (a, ms(12) - PicoDuration::from_ps(1), 10),
        (a, ms(12), 100),
        (b, ms(17), 5),
        (a, ms(11), 1_000),
    ];
    for (stream, at, bytes) in stamps {
        assert_eq!(windows.add(stream, at, bytes), Ok(()));
    }
    assert_eq!(windows.series(a), [1_011, 100]);
    assert_eq!(windows.series(b), [0, 0, 0, 5]);
    assert_eq!(windows.series(StreamId(2)), []);
    assert_eq!(windows.sum(), [1_011, 100, 0, 5]);
    assert_eq!(windows.streams().collect::<Vec<_>>(), [a, b]);
    assert_eq!(windows.start_of(3), ms(16));
    assert_eq!(windows.rate_of(125_000), Some(BitRate::from_mbps(500)));
    assert_eq!(windows.rate_of(0), None);
}

#[test]
fn what_cannot_be_metered_says_so() {
    assert_eq!(Windows::new(PicoDuration::ZERO), Err(MeterError::ZeroWidth));
    let Ok(mut windows) = Windows::starting_at(ms(1), PicoDuration::from_ps(1)) else {
        panic!("1 ps wide")
    };
    let last = ms(1) + PicoDuration::from_ps(WINDOWS_MAX as u64 - 1);
    let beyond = last + PicoDuration::from_ps(1);
    assert_eq!(
        windows.add(StreamId(0), beyond, 1),
        Err(MeterError::TooManyWindows(beyond))
    );
    assert_eq!(
        windows.add(StreamId(0), PicoTime::MAX, 1),
        Err(MeterError::TooManyWindows(PicoTime::MAX))
    );
    assert_eq!(
        windows.add(StreamId(0), ms(0), 1),
        Err(MeterError::BeforeOrigin(ms(0)))
    );
    assert_eq!(windows.streams().count(), 0);
    assert_eq!(windows.add(StreamId(0), last, 1), Ok(()));
    for stream in 1..STREAMS_MAX as u32 {
        assert_eq!(windows.add(StreamId(stream), ms(1), 1), Ok(()));
    }
    assert_eq!(
        windows.add(StreamId(u32::MAX), ms(1), 1),
        Err(MeterError::TooManyStreams)
    );
    assert_eq!(windows.add(StreamId(1), ms(1), 1), Ok(()));
    assert!(
        MeterError::TooManyWindows(beyond)
            .to_string()
            .contains("4194304 windows")
    );
}

#[test]
fn the_worst_window_slides() {
    let stamps: Vec<_> = [(0, 1), (9, 10), (10, 20), (18, 5), (19, 100)]
        .map(|(t, b)| (ms(t), b))
        .to_vec();
    let worst = |width| worst_window(&stamps, PicoDuration::from_ms(width));
    assert_eq!(worst(10), Some((ms(10), 125))); // 10 to 19; 9 to 19 would be 10 ms, and the 19 is out
    assert_eq!(worst(11), Some((ms(9), 135)));
    assert_eq!(worst(20), Some((ms(0), 136)));
    assert_eq!(worst(0), Some((ms(19), 100)));
    assert_eq!(worst_window(&[], PicoDuration::from_ms(1)), None);
    let burst = [(ms(1), 3), (ms(1), 4)];
    assert_eq!(worst_window(&burst, PicoDuration::from_ps(1)), Some((ms(1), 7)));
}

#[test]
fn variation_in_millionths() {
    let table: &[(&[u64], u64)] = &[
        (&[], 0),
        (&[0, 0], 0),
        (&[5], 0),
        (&[7, 7, 7], 0),
        (&[0, 2], 1_000_000),
        (&[1, 3], 500_000),
        (&[99, 101], 10_000),
        (&[1, 1, 4], 707_106),
        (&[999_999_999_999, 1_000_000_000_001], 0),
        (&[u64::MAX, 0], 1_000_000),
        (&[u64::MAX / 2, u64::MAX / 2 / 3], 500_000),
    ];
    for (values, expected) in table {
        assert_eq!(variation_ppm(values), *expected, "{values:?}");
    }
    let mut one_of_many = vec![0; 1_000_000];
    one_of_many[0] = 1;
    assert_eq!(variation_ppm(&one_of_many), 999_999_499); // sqrt(999999)
}

#[test]
fn an_empty_histogram_has_no_figures() {
    let empty = Histogram::new();
    assert_eq!(
        (
            empty.min(),
            empty.max(),
            empty.mean(),
            empty.percentile_ppm(500_000)
        ),
        (None, None, None, None)
    );
    assert_eq!(empty.summary(), Summary::default());
}

#[test]
fn percentiles_of_small_values_are_exact() {
    let mut histogram = Histogram::new();
    (1..=200).for_each(|value| histogram.record(value));
    let expected = Summary {
        count: 200,
        min: 1,
        mean: 100,
        p50: 100,
        p99: 198,
        p999: 200,
        max: 200,
    };
    assert_eq!(histogram.summary(), expected);
    assert_eq!(histogram.percentile_ppm(0), Some(1));
    assert_eq!(histogram.percentile_ppm(u32::MAX), Some(200));
}

#[test]
fn a_percentile_is_never_above_the_largest_value() {
    // 1000 shares its bucket with 1001 to 1003.
    let mut histogram = Histogram::new();
    histogram.record(1_000);
    assert_eq!(histogram.percentile_ppm(500_000), Some(1_000));
    histogram.record(5_000);
    assert_eq!(histogram.percentile_ppm(500_000), Some(1_003));
}

#[test]
fn the_ends_of_the_range_are_counted() {
    let mut histogram = Histogram::new();
    [0, u64::MAX, u64::MAX, u64::MAX]
        .into_iter()
        .for_each(|value| histogram.record(value));
    assert_eq!(histogram.percentile_ppm(1), Some(0));
    assert_eq!(histogram.percentile_ppm(500_000), Some(u64::MAX));
    assert_eq!(histogram.mean(), Some((u128::from(u64::MAX) * 3 / 4) as u64));
}

proptest! {
    #[test]
    fn percentiles_are_close_from_above(
        mut values in prop::collection::vec((any::<u64>(), 0u32..64).prop_map(|(v, s)| v >> s), 1..500),
        ppm in 0u32..=1_000_000,
        cut in 0usize..500,
    ) {
        let (mut first, mut second) = (Histogram::new(), Histogram::new());
        values.iter().take(cut).for_each(|v| first.record(*v));
        values.iter().skip(cut).for_each(|v| second.record(*v));
        first.merge(&second);
        values.sort_unstable();
        let rank = (values.len() as u64 * u64::from(ppm)).div_ceil(1_000_000).max(1) as usize;
        let exact = values[rank - 1];
        let Some(given) = first.percentile_ppm(ppm) else { panic!("not empty") };
        prop_assert!(given >= exact && given - exact <= exact / 128, "{} for {}", given, exact);
        prop_assert_eq!(first.max(), values.last().copied());
        prop_assert_eq!(first.min(), values.first().copied());
        prop_assert_eq!(first.count(), values.len() as u64);
        for (low, high, count) in first.buckets() {
            let inside = values.iter().filter(|v| (low..=high).contains(*v)).count() as u64;
            prop_assert_eq!(count, inside);
        }
        prop_assert_eq!(first.buckets().map(|b| b.2).sum::<u64>(), first.count());
    }

    #[test]
    fn the_worst_window_is_that_of_every_window(
        steps in prop::collection::vec((0u64..6, 1u64..9), 1..60), width in 1u64..12,
    ) {
        let mut at = PicoTime::ZERO;
        let stamps: Vec<_> = steps.iter().map(|(step, bytes)| {
            at += PicoDuration::from_ps(*step);
            (at, *bytes)
        }).collect();
        let width = PicoDuration::from_ps(width);
        let bytes_from = |start: PicoTime| -> u64 {
            stamps.iter().filter(|(t, _)| *t >= start && *t < start + width).map(|(_, b)| b).sum()
        };
        let most = stamps.iter().map(|(start, _)| bytes_from(*start)).max();
        let given = worst_window(&stamps, width);
        prop_assert_eq!(given.map(|(_, bytes)| bytes), most);
        prop_assert_eq!(given.map(|(start, _)| bytes_from(start)), most);
    }
}
