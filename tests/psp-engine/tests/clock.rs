//! The clock and the gap sizes of the engine in C against `core::pace`, the shared vectors and exact arithmetic.

use kuroshio_core::{
    pace::{ByteClockPacer, GapPackets, PaceError, gap_packets, gap_packets_on_wire},
    units::{BitRate, FrameBytes, PicoTime},
    wire::LineRate,
};
use kuroshio_psp_engine::{Clock, Gap, cases, dynamic_rate, gap_on_wire, gap_plain, path_rtt, smooth_wait};
use proptest::prelude::*;

/// Fields of a vector file's lines behind its header, with the line's number.
fn rows(text: &str, header: &str) -> Vec<(usize, Vec<String>)> {
    let mut lines = text.lines().enumerate();
    assert_eq!(lines.next().map(|(_, l)| l), Some(header));
    let rows: Vec<_> = lines
        .map(|(i, l)| (i + 1, l.split(',').map(str::to_owned).collect()))
        .collect();
    assert!(rows.len() > 50, "vectors are missing");
    rows
}

fn number(field: &str) -> u64 {
    field.parse().unwrap_or_else(|e| panic!("{field:?}: {e}"))
}

fn small(field: &str) -> u32 {
    number(field).try_into().expect("a frame's size")
}

#[test]
fn pacer_vectors() {
    let text = include_str!("../../../core/vectors/pacer.csv");
    let mut clock = (String::new(), Clock::new(0));
    for (at, f) in rows(text, "case,rate_bps,now_ps,frame_bytes,start_ps") {
        if clock.0 != f[0] {
            clock = (f[0].clone(), Clock::new(number(&f[1])));
        }
        let start_ps = clock.1.depart(number(&f[2]), small(&f[3]));
        assert_eq!(start_ps, number(&f[4]), "line {at}");
    }
}

#[test]
fn gap_vectors() {
    let text = include_str!("../../../core/vectors/gap.csv");
    let header = "kind,frame_bytes,target_bps,max_bps,limit_bytes,gap_frames,gap_frame_bytes,largest_bytes,\
                  smallest_bytes";
    for (at, f) in rows(text, header) {
        let engine = match f[0].as_str() {
            "plain" => gap_plain,
            "on_wire" => gap_on_wire,
            other => panic!("{other:?} is no kind"),
        };
        let gap = engine(small(&f[1]), number(&f[2]), number(&f[3]), small(&f[4]));
        let gap = gap.unwrap_or_else(|| panic!("line {at} is refused"));
        let largest = gap.size + u64::from(gap.larger > 0);
        let bytes = gap.frames * gap.size + gap.larger;
        assert_eq!(
            [gap.frames, bytes, largest, gap.size],
            [number(&f[5]), number(&f[6]), number(&f[7]), number(&f[8])],
            "line {at}"
        );
    }
}

fn pacer(rate_bps: u64) -> ByteClockPacer {
    ByteClockPacer::new(BitRate::from_bps(rate_bps).expect("not 0")).expect("in range")
}

/// 8 kbps to 800 Gbps, small ones as often as large ones.
fn rates() -> impl Strategy<Value = u64> {
    prop_oneof![
        8_000u64..=800_000_000_000,
        8_000u64..=10_000_000,
        (3u32..=11).prop_map(|e| 8 * 10u64.pow(e)),
        1_000_000u64..=1_000_000_000,
    ]
}

#[derive(Debug, Clone)]
enum Step {
    /// Ready after a pause of so many ps from the last start; 0 is a frame that waited.
    Frame(u64, u32),
    Rate(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        16 => (prop_oneof![Just(0u64), 0u64..100_000_000, 0u64..10_000_000_000_000], 1u32..=70_000)
            .prop_map(|(pause, bytes)| Step::Frame(pause, bytes)),
        1 => rates().prop_map(Step::Rate),
    ];
    prop::collection::vec(step, 1..400)
}

fn as_gap(gap: Result<GapPackets, PaceError>) -> Option<Gap> {
    let gap = gap.ok()?;
    let sizes: Vec<u64> = gap.map(FrameBytes::get).collect();
    let size = sizes.last().copied().unwrap_or(0);
    Some(Gap {
        frames: sizes.len() as u64,
        size,
        larger: sizes.iter().filter(|s| **s > size).count() as u64,
    })
}

proptest! {
    // 8192 schedules of 200 frames on average: 1.6 million frames; PROPTEST_CASES for more.
    #![proptest_config(ProptestConfig { cases: cases(8192), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn starts_are_those_of_core(rate_bps in rates(), steps in steps()) {
        let mut clock = Clock::new(rate_bps);
        let mut core = pacer(rate_bps);
        let mut now_ps = 0;
        for step in steps {
            match step {
                Step::Frame(pause_ps, bytes) => {
                    now_ps += pause_ps;
                    let expected = core.depart(PicoTime::from_ps(now_ps), FrameBytes::new(bytes.into()));
                    prop_assert_eq!(clock.depart(now_ps, bytes), expected.start.as_ps());
                    prop_assert_eq!(clock.at_ps, expected.end.as_ps());
                }
                Step::Rate(rate_bps) => {
                    clock.set_rate(rate_bps);
                    core.set_rate(BitRate::from_bps(rate_bps).expect("not 0")).expect("in range");
                }
            }
        }
    }

    #[test]
    fn gaps_are_those_of_core(bytes in 1u32..20_000, target in 100_000u64..=800_000_000_000, line in rates(),
                              limit in 100u32..10_000) {
        // Core has no bound on the number of frames; listing them must end.
        prop_assume!(line / target < 10_000);
        let (rate, max) = (BitRate::from_bps(target).expect("not 0"), BitRate::from_bps(line).expect("not 0"));
        let (len, lim) = (FrameBytes::new(bytes.into()), FrameBytes::new(limit.into()));
        prop_assert_eq!(gap_plain(bytes, target, line, limit), as_gap(gap_packets(len, rate, max, lim)));
        let on_wire = gap_packets_on_wire(len, rate, LineRate::new(max), lim);
        prop_assert_eq!(gap_on_wire(bytes, target, line, limit), as_gap(on_wire));
    }

    #[test]
    fn dynamic_rates_are_exact_and_bounded(cwnd in prop_oneof![0u32..100, any::<u32>()], bytes in 1u32..70_000, rtt_us: u32, max in rates()) {
        let exact = (u128::from(cwnd) * u128::from(bytes) * 8_000_000).checked_div(rtt_us.into());
        let expected = match exact {
            None => max,
            Some(_) if cwnd == 0 => max,
            Some(rate) => rate.max(8_000).min(max.into()) as u64,
        };
        prop_assert_eq!(dynamic_rate(cwnd, bytes, rtt_us, max), expected);
    }

    #[test]
    fn a_path_s_round_trip_is_between_the_least_and_the_smoothed(srtt: u32, least: u32, waits in prop::collection::vec(any::<u32>(), 0..50)) {
        // Waits of any length overflow nothing and stay below the longest that is counted.
        let wait = waits.iter().fold(0, |so_far, one| smooth_wait(so_far, *one));
        prop_assert!(u64::from(wait) <= 16 * 10_000_000 + 16, "{}", wait);
        let path = path_rtt(srtt, least, wait);
        prop_assert!(path <= srtt && path >= least.min(srtt));
        prop_assert!(path == least.min(srtt) || path == srtt - wait / 16, "{}", path);
    }
}

/// A wait that lasts is known to a microsecond, one that is over is forgotten.
#[test]
fn the_own_host_s_wait_is_smoothed_by_a_sixteenth() {
    let mut wait = 0;
    wait = smooth_wait(wait, 1600);
    assert_eq!(wait / 16, 100, "the first counts a sixteenth");
    for _ in 0..400 {
        wait = smooth_wait(wait, 1600);
    }
    assert!((1599..=1600).contains(&(wait / 16)), "{wait}");
    assert!((98_400..=98_401).contains(&path_rtt(100_000, 90_000, wait)));
    assert_eq!(path_rtt(100_000, 99_000, wait), 99_000, "not below the least");
    assert_eq!(
        path_rtt(100_000, u32::MAX, wait),
        100_000,
        "no sample: what is smoothed"
    );
    assert_eq!(path_rtt(0, 0, wait), 0, "nothing is known");
    for _ in 0..400 {
        wait = smooth_wait(wait, 0);
    }
    assert_eq!(wait / 16, 0);
}

/// After `frames` frames of `bytes` each the clock stands where exact arithmetic puts it.
fn no_drift(rate_bps: u64, bytes: u32, frames: u64) {
    let mut clock = Clock::new(rate_bps);
    for _ in 0..frames {
        clock.depart(0, bytes);
    }
    let exact = u128::from(frames) * u128::from(bytes) * 8_000_000_000_000;
    assert_eq!(
        u128::from(clock.at_ps),
        exact / u128::from(rate_bps),
        "{rate_bps}"
    );
    assert_eq!(u128::from(clock.rem), exact % u128::from(rate_bps), "{rate_bps}");
}

#[test]
fn no_drift_in_10_to_the_12_bytes_at_1_gbps() {
    no_drift(1_000_000_000, 65_535, 1_000_000_000_000 / 65_535 + 1);
    // A rate that no power of two or ten divides, with the frame of MTU 1500.
    no_drift(999_999_937, 1518, 10_000_000_000 / 1518);
}

#[test]
fn no_drift_in_10_to_the_9_bytes_at_8_kbps() {
    // 10^9 bytes are 11.6 days at 8 kbps.
    no_drift(8_000, 1518, 1_000_000_000 / 1518 + 1);
    no_drift(8_009, 1518, 1_000_000_000 / 1518 + 1);
}

#[test]
fn no_overflow_up_to_800_gbps() {
    no_drift(800_000_000_000, 1_048_576, 10_000_000);
    // The largest remainder beside the largest frame: traps on overflow, were there one.
    let mut clock = Clock {
        at_ps: 5,
        rem: 799_999_999_998,
        rate_bps: 799_999_999_999,
    };
    clock.depart(0, 1_048_576);
    let n = 1_048_576u128 * 8_000_000_000_000 + 799_999_999_998;
    assert_eq!(u128::from(clock.at_ps), 5 + n / 799_999_999_999);
    // At the end of time the clock stands still instead of starting anew.
    let mut clock = Clock {
        at_ps: u64::MAX - 10,
        rem: 0,
        rate_bps: 8_000,
    };
    clock.depart(0, 1518);
    assert_eq!(clock.at_ps, u64::MAX);
    // A frame beyond what products can hold counts as the largest.
    for bytes in [1_048_577, 3_000_000, u32::MAX] {
        let mut clock = Clock::new(8_000);
        clock.depart(0, bytes);
        assert_eq!(clock.at_ps, 1_048_576 * 1_000_000_000, "{bytes}");
    }
    assert_eq!(gap_on_wire(u32::MAX, 8_000, 1_000_000_000, 1518), None);
    assert_eq!(gap_on_wire(1518, 0, 1_000_000_000, 1518), None);
    assert_eq!(gap_plain(1518, 8_000, u64::MAX, 1518), None);
}
