//! Capacity that nobody stated: found by trains, and followed, in virtual time.

mod lane_common;

use kuroshio_core::{
    lane::{
        BundleConfig, Mode,
        trial::{FarClock, Pair, TrialLane},
    },
    units::{BitRate, PicoDuration, PicoTime, Ratio},
    wan::{Jitter, Level, Rate, WanChange},
};
use lane_common::Packet;

fn mbps(rate: u32) -> BitRate {
    BitRate::from_mbps(rate)
}

fn pair(lanes: &[TrialLane]) -> Pair<Packet> {
    let mut config = BundleConfig::new(
        Mode::Deskew,
        &vec![kuroshio_core::lane::CAPACITY_START; lanes.len()],
    );
    for lane in &mut config.lanes {
        lane.measured = true;
    }
    let clock = FarClock {
        offset: PicoDuration::from_secs(11),
        drift_ppb: -20_000,
    };
    Pair::new(&config, lanes, clock, 5).expect("configuration")
}

/// Keeps the entry queue full until `to`, and says what came out since `from`, payload bit/s.
fn saturate(pair: &mut Pair<Packet>, now: &mut PicoTime, from: PicoTime, to: PicoTime) -> u64 {
    let mut bytes = 0;
    let mut id = 0;
    while *now < to {
        while pair.enter_near(*now, Packet::new(id, *now, 1_424)) {
            id += 1;
        }
        pair.run(*now);
        while pair.at_far.pop_front().is_some() {
            bytes += if *now >= from { 1_424 } else { 0 };
        }
        // Looked at each half millisecond at least, so that the queue does not run empty.
        let next = pair.next_wakeup().min(*now + PicoDuration::from_us(500));
        *now = next.max(*now + PicoDuration::from_ps(1));
    }
    BitRate::of(bytes, to - from).map_or(0, BitRate::bps)
}

fn near(found: BitRate, want: BitRate, percent: u64) {
    let off = found.bps().abs_diff(want.bps());
    assert!(off * 100 <= want.bps() * percent, "{found} for {want}");
}

fn capacities(pair: &Pair<Packet>, now: PicoTime) -> Vec<BitRate> {
    pair.near.status(now).lanes.iter().map(|l| l.capacity).collect()
}

#[test]
fn the_capacity_is_found_within_five_percent() {
    for (rates, delays) in [([3, 20], [5, 40]), ([50, 400], [1, 20]), ([200, 8], [10, 80])] {
        let lanes: Vec<TrialLane> = rates
            .iter()
            .zip(delays)
            .map(|(rate, delay)| TrialLane::new(mbps(*rate), PicoDuration::from_ms(delay)))
            .collect();
        let mut pair = pair(&lanes);
        let mut now = PicoTime::ZERO;
        let (from, to) = (PicoTime::from_secs(2), PicoTime::from_secs(4));
        let carried = saturate(&mut pair, &mut now, from, to);
        for (found, want) in capacities(&pair, now).into_iter().zip(rates) {
            near(found, mbps(want), 5);
        }
        // And the lanes are used up to it: payload of full frames, less pacing and trains.
        let sum: u64 = rates.iter().map(|r| u64::from(*r) * 1_000_000).sum();
        let ideal = sum * 1_424 / 1_518;
        assert!(carried * 100 >= ideal * 93, "{carried} of {ideal} on {rates:?}");
        let lost = pair.far.status(pair.far_time(now)).inward.lost;
        assert!(lost * 100 < carried / 8 / 1_424 * 4, "{lost} lost on {rates:?}");
    }
}

#[test]
fn a_change_is_followed() {
    let mut lane = TrialLane::new(mbps(50), PicoDuration::from_ms(20));
    lane.path.schedule.steps = [(10, 20), (20, 80), (30, 47)]
        .map(|(at, rate)| {
            let change = WanChange::Rate(Rate::Capacity(mbps(rate), Level::Frame));
            (PicoDuration::from_secs(at), change)
        })
        .to_vec();
    let mut pair = pair(&[lane]);
    let mut now = PicoTime::ZERO;
    for (to, want) in [(9, 50), (16, 20), (26, 80), (36, 47)] {
        let end = PicoTime::from_secs(to);
        let from = PicoTime::from_secs(to - 2);
        let carried = saturate(&mut pair, &mut now, from, end);
        near(capacities(&pair, now)[0], mbps(want), 5);
        let ideal = u64::from(want) * 1_000_000 * 1_424 / 1_518;
        assert!(carried * 100 >= ideal * 90, "{carried} of {ideal} at {to} s");
    }
}

#[test]
fn loss_and_jitter_do_not_mislead_it() {
    let one_percent = Ratio::new(1, 100).expect("a ratio");
    let mut lane = TrialLane::new(mbps(40), PicoDuration::from_ms(20)).losing(one_percent);
    // A fifth of a train's length, either way.
    lane.path.jitter = Jitter::Uniform(PicoDuration::from_us(500));
    let mut pair = pair(&[lane]);
    let mut now = PicoTime::ZERO;
    saturate(&mut pair, &mut now, PicoTime::ZERO, PicoTime::from_secs(12));
    near(capacities(&pair, now)[0], mbps(40), 8);
}
