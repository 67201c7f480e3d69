//! The stages of an emulated path, in virtual time.

use kuroshio_core::{
    pace::Spacing,
    units::{BitRate, FrameBytes, PS_BITS_PER_BYTE, PicoDuration, PicoTime, Ratio, WireBytes},
    wan::{
        Departure, DropCause, Dropped, Link, LinkConfig, PortWire, Shaper, ShaperConfig, Stage, StageCounters,
    },
    wire::LineRate,
};
use proptest::prelude::*;

fn frame(len: u64) -> FrameBytes {
    FrameBytes::new(len)
}

fn ns(ns: u64) -> PicoTime {
    PicoTime::from_ns(ns)
}

/// 800 Mbps, so a byte is 10 ns; no delay, room for 1000 bytes, no loss.
fn plain() -> LinkConfig {
    LinkConfig {
        capacity: BitRate::from_mbps(800),
        wire: None,
        one_way_delay: PicoDuration::ZERO,
        queue_limit: frame(1_000),
        loss: Ratio::ZERO,
    }
}

/// Polls until nothing is left, each time at the moment that the stage asks for.
fn drain<T>(stage: &mut impl Stage<T>) -> Vec<(PicoTime, T)> {
    let mut out = Vec::new();
    while let Some(now) = stage.next_wakeup() {
        out.extend(std::iter::from_fn(|| stage.poll(now)).map(|d| (d.at, d.token)));
    }
    out
}

#[test]
fn a_full_queue_takes_the_last_byte_and_no_more() {
    for (third, taken) in [(100, true), (101, false)] {
        let mut link = Link::new(plain(), 0);
        assert_eq!(
            link.handle_frame(ns(0), frame(1_000), 0),
            Ok(()),
            "being serialised, not charged"
        );
        assert_eq!(link.handle_frame(ns(0), frame(900), 1), Ok(()));
        let full = Dropped {
            cause: DropCause::QueueFull,
            token: 2,
        };
        let expected = if taken { Ok(()) } else { Err(full) };
        assert_eq!(
            link.handle_frame(ns(0), frame(third), 2),
            expected,
            "{third} bytes in room for 100"
        );
        assert_eq!(link.counters().queue_full.frames, u64::from(!taken));
        assert_eq!(link.counters().queued, frame(if taken { 1_000 } else { 900 }));
    }
}

#[test]
fn a_start_comes_before_an_arrival_at_the_same_instant() {
    let mut link = Link::new(plain(), 0);
    for token in 0..2 {
        assert_eq!(link.handle_frame(ns(0), frame(1_000), token), Ok(()));
    }
    // The queue is full until frame 0 is through at 10 us and frame 1 starts.
    assert!(
        link.handle_frame(ns(10_000) - PicoDuration::from_ps(1), frame(1_000), 2)
            .is_err()
    );
    assert_eq!(link.handle_frame(ns(10_000), frame(1_000), 3), Ok(()));
    assert_eq!(
        drain(&mut link),
        [(ns(10_000), 0), (ns(20_000), 1), (ns(30_000), 3)]
    );
}

#[test]
fn a_queue_of_nothing_passes_frames_that_do_not_wait() {
    let mut link = Link::new(
        LinkConfig {
            queue_limit: FrameBytes::ZERO,
            ..plain()
        },
        0,
    );
    assert_eq!(link.handle_frame(ns(0), frame(100), 0), Ok(()));
    assert!(link.handle_frame(ns(999), frame(100), 1).is_err());
    assert_eq!(link.handle_frame(ns(1_000), frame(100), 2), Ok(()));
    assert_eq!(link.counters().queued_max, FrameBytes::ZERO);
}

#[test]
fn bytes_in_flight_are_not_charged_to_the_queue() {
    // 100 ms of 800 Mbps are 10 MB in flight, through a queue of 1000 bytes, at the full rate.
    let delay = PicoDuration::from_ms(100);
    let mut link = Link::new(
        LinkConfig {
            one_way_delay: delay,
            ..plain()
        },
        0,
    );
    for token in 0..10_000 {
        assert_eq!(link.handle_frame(ns(token * 10_000), frame(1_000), token), Ok(()));
    }
    assert_eq!(link.counters().held.bytes, frame(10_000_000));
    assert_eq!(link.counters().queued_max, FrameBytes::ZERO);
    let expected: Vec<_> = (0..10_000)
        .map(|token| (ns((token + 1) * 10_000) + delay, token))
        .collect();
    assert_eq!(drain(&mut link), expected);
}

#[test]
fn a_new_capacity_holds_from_the_next_frame() {
    let mut link = Link::new(
        LinkConfig {
            queue_limit: frame(10_000),
            ..plain()
        },
        0,
    );
    for token in 0..3 {
        assert_eq!(link.handle_frame(ns(0), frame(1_000), token), Ok(()));
    }
    // Frame 0 is on the wire until 10 us; the others take five times as long.
    link.set_capacity(ns(5_000), BitRate::from_mbps(160));
    assert_eq!(link.capacity(), BitRate::from_mbps(160));
    assert_eq!(
        drain(&mut link),
        [(ns(10_000), 0), (ns(60_000), 1), (ns(110_000), 2)]
    );
}

#[test]
fn a_late_change_does_not_reach_back() {
    // Frame 1 started at 10 us, long before the change, although nobody polled.
    let mut link = Link::new(
        LinkConfig {
            queue_limit: frame(10_000),
            ..plain()
        },
        0,
    );
    for token in 0..3 {
        assert_eq!(link.handle_frame(ns(0), frame(1_000), token), Ok(()));
    }
    link.set_capacity(ns(15_000), BitRate::from_mbps(160));
    link.set_one_way_delay(ns(15_000), PicoDuration::from_us(7));
    link.set_loss(ns(25_000), Ratio::ONE);
    assert_eq!(
        drain(&mut link),
        [(ns(10_000), 0), (ns(20_000), 1), (ns(77_000), 2)]
    );
    assert_eq!(link.handle_frame(ns(100_000), frame(1_000), 3), Ok(()));
    assert_eq!(drain(&mut link), []);
    assert_eq!(link.counters().lost.frames, 1);
}

#[test]
fn a_shorter_delay_overtakes_nobody() {
    let mut link = Link::new(
        LinkConfig {
            one_way_delay: PicoDuration::from_ms(1),
            ..plain()
        },
        0,
    );
    assert_eq!(link.handle_frame(ns(0), frame(100), 0), Ok(()));
    link.set_one_way_delay(ns(0), PicoDuration::ZERO);
    assert_eq!(link.handle_frame(ns(2_000), frame(100), 1), Ok(()));
    assert_eq!(link.handle_frame(ns(2_000_000), frame(100), 2), Ok(()));
    assert_eq!(
        drain(&mut link),
        [(ns(1_001_000), 0), (ns(1_001_000), 1), (ns(2_001_000), 2)]
    );
}

#[test]
fn a_smaller_queue_keeps_those_who_wait() {
    let mut link = Link::new(plain(), 0);
    for token in 0..2 {
        assert_eq!(link.handle_frame(ns(0), frame(1_000), token), Ok(()));
    }
    link.set_queue_limit(ns(0), frame(500));
    assert!(link.handle_frame(ns(0), frame(64), 2).is_err());
    assert_eq!(drain(&mut link).len(), 2);
}

#[test]
fn small_frames_take_the_time_of_the_wire_below() {
    // 1000 Mbps of frames on a wire of 1000 Mbps L1: a frame of 64 takes 84 bytes, one of 1518 1538.
    let wire = Some(LineRate::GIGABIT);
    let config = LinkConfig {
        capacity: BitRate::from_mbps(1_000),
        wire,
        queue_limit: frame(10_000),
        ..plain()
    };
    let mut link = Link::new(config, 0);
    for (token, len) in [64, 1_518, 64].into_iter().enumerate() {
        assert_eq!(link.handle_frame(ns(0), frame(len), token), Ok(()));
    }
    assert_eq!(
        drain(&mut link),
        [
            (ns(84 * 8), 0),
            (ns((84 + 1_538) * 8), 1),
            (ns((84 + 1_538 + 84) * 8), 2)
        ]
    );
    // At 990 Mbps a frame of 64 (517.2 ns) is still bound by the wire, one of 9018 (72873 ns) is not.
    let mut link = Link::new(
        LinkConfig {
            capacity: BitRate::from_mbps(990),
            ..config
        },
        0,
    );
    for (token, len) in [64, 9_018].into_iter().enumerate() {
        assert_eq!(link.handle_frame(ns(0), frame(len), token), Ok(()));
    }
    let second = 84 * 8_000 + 9_018 * 8_000_000_000_000 / 990_000_000;
    assert_eq!(
        drain(&mut link),
        [(ns(84 * 8), 0), (PicoTime::from_ps(second), 1)]
    );
}

#[test]
fn a_port_sends_back_to_back_with_the_smallest_gap() {
    let mut port = PortWire::new(LineRate::GIGABIT, frame(3_000));
    for token in 0..2 {
        assert_eq!(port.handle_frame(ns(0), frame(1_518), token), Ok(()));
    }
    let first = (8 + 1_518) * 8;
    let sent = drain(&mut port);
    assert_eq!(sent, [(ns(first), 0), (ns(first + 1_538 * 8), 1)]);
    // The gap of the last frame belongs to it.
    assert_eq!(port.handle_frame(ns(2 * 1_538 * 8 - 1), frame(60), 2), Ok(()));
    assert_eq!(port.counters().queued, frame(64));
    assert_eq!(drain(&mut port), [(ns((2 * 1_538 + 8 + 64) * 8), 2)]);
}

#[test]
fn a_paused_port_finishes_its_frame_and_waits() {
    let mut port = PortWire::new(LineRate::GIGABIT, frame(3_000));
    for token in 0..2 {
        assert_eq!(port.handle_frame(ns(0), frame(1_518), token), Ok(()));
    }
    port.hold(ns(1_000), PicoDuration::from_us(99));
    assert_eq!(
        drain(&mut port),
        [(ns((8 + 1_518) * 8), 0), (ns(100_000 + (8 + 1_518) * 8), 1)]
    );
}

#[test]
fn a_shaper_leaves_the_gap_of_the_formula() {
    let spacing = Spacing::Rate(BitRate::from_mbps(500));
    let config = ShaperConfig {
        line: LineRate::GIGABIT,
        spacing,
        queue_limit: frame(8_000_000),
    };
    let mut shaper = Shaper::new(config);
    for token in 0..3 {
        assert_eq!(shaper.handle_frame(ns(0), frame(1_518), token), Ok(()));
    }
    let end = |before: u64| ns((before + 8 + 1_518) * 8);
    assert_eq!(shaper.poll(end(0)).map(|d| d.at), Some(end(0)));
    assert_eq!(shaper.poll(end(0)), None);
    // Between two frames the wakeup is the end of the next one, although it has not started.
    assert_eq!(shaper.next_wakeup(), Some(end(3_036)));
    shaper.set_spacing(end(0), Spacing::Gap(WireBytes::new(36_000)));
    assert_eq!(
        drain(&mut shaper),
        [(end(3_036), 1), (end(3_036 + 8 + 1_518 + 36_000), 2)]
    );
}

#[test]
fn time_never_runs_back_and_ends_gently() {
    let mut link = Link::new(plain(), 0);
    assert_eq!(link.poll(ns(1_000)), None);
    assert_eq!(link.handle_frame(ns(10), frame(100), 0), Ok(()));
    assert_eq!(link.next_wakeup(), Some(ns(2_000)));
    assert_eq!(link.handle_frame(PicoTime::MAX, frame(100), 1), Ok(()));
    assert_eq!(link.handle_frame(PicoTime::MAX, FrameBytes::MAX, 2), Ok(()));
    assert_eq!(drain(&mut link).len(), 3);
}

#[test]
fn loss_is_the_ratio_and_the_seed() {
    let lost = |loss: &str, seed| {
        let loss = loss.parse().expect("a ratio");
        let mut link = Link::new(LinkConfig { loss, ..plain() }, seed);
        let kept: Vec<u64> = (0..100_000)
            .filter(|token| {
                let now = ns(token * 1_000);
                assert_eq!(link.handle_frame(now, frame(100), *token), Ok(()));
                link.poll(now + PicoDuration::from_ns(1_000)).is_some()
            })
            .collect();
        assert_eq!(kept.len() as u64 + link.counters().lost.frames, 100_000);
        (link.counters().lost.frames, kept)
    };
    assert_eq!(lost("0", 1).0, 0);
    assert_eq!(lost("100%", 1).0, 100_000);
    // 1000 expected, standard deviation 31.5; the seeds are fixed.
    for seed in 0..5 {
        assert!(
            (850..1_150).contains(&lost("1%", seed).0),
            "seed {seed}: {}",
            lost("1%", seed).0
        );
    }
    assert_eq!(lost("1%", 7).1, lost("1%", 7).1);
    assert_ne!(lost("1%", 7).1, lost("1%", 8).1);
}

/// What a test does to a stage.
#[derive(Debug, Clone, Copy)]
enum Step {
    Arrive {
        after_ps: u64,
        len: u64,
    },
    Poll {
        after_ps: u64,
    },
    Change {
        after_ps: u64,
        bps: u64,
        one_way_delay_ps: u64,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let after = prop_oneof![Just(0u64), 0u64..3_000_000, 0u64..100_000_000];
    let step = (
        after,
        0..10,
        64u64..9_019,
        1_000_000u64..20_000_000_000,
        0u64..90_000_000,
    )
        .prop_map(|(after_ps, kind, len, bps, one_way_delay_ps)| match kind {
            0..7 => Step::Arrive { after_ps, len },
            7..9 => Step::Poll { after_ps },
            _ => Step::Change {
                after_ps,
                bps,
                one_way_delay_ps,
            },
        });
    prop::collection::vec(step, 1..200)
}

/// One of the stages, with whatever of it can be changed.
trait Changing: Stage<usize> {
    fn change(&mut self, now: PicoTime, rate: BitRate, one_way_delay: PicoDuration);
    fn limit(&self) -> FrameBytes;
}

const LIMIT: FrameBytes = FrameBytes::new(30_000);

impl Changing for Link<usize> {
    fn change(&mut self, now: PicoTime, rate: BitRate, one_way_delay: PicoDuration) {
        self.set_capacity(now, rate);
        self.set_one_way_delay(now, one_way_delay);
    }
    fn limit(&self) -> FrameBytes {
        LIMIT
    }
}

impl Changing for PortWire<usize> {
    fn change(&mut self, now: PicoTime, _: BitRate, pause: PicoDuration) {
        self.hold(now, pause);
    }
    fn limit(&self) -> FrameBytes {
        LIMIT
    }
}

impl Changing for Shaper<usize> {
    fn change(&mut self, now: PicoTime, rate: BitRate, _: PicoDuration) {
        self.set_spacing(now, Spacing::Rate(rate));
    }
    fn limit(&self) -> FrameBytes {
        LIMIT
    }
}

/// When polls happen.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Caller {
    /// At every moment that the stage asks for, and a picosecond too early as well.
    Punctual,
    /// When the steps say so.
    Sometimes,
    /// At the very end.
    Never,
}

#[derive(Debug, PartialEq)]
struct Outcome {
    departures: Vec<Departure<usize>>,
    dropped: Vec<usize>,
    counters: StageCounters,
}

fn check(stage: &impl Stage<usize>, outcome: &Outcome, arrived: usize) -> Result<(), TestCaseError> {
    let c = stage.counters();
    prop_assert_eq!(c.arrived.frames, arrived as u64);
    prop_assert_eq!(c.departed.frames, outcome.departures.len() as u64);
    prop_assert_eq!(c.departed.bytes, outcome.departures.iter().map(|d| d.len).sum());
    prop_assert_eq!(c.queue_full.frames, outcome.dropped.len() as u64);
    prop_assert_eq!(
        c.arrived.frames,
        c.departed.frames + c.dropped().frames + c.held.frames
    );
    prop_assert_eq!(
        c.arrived.bytes,
        c.departed.bytes + c.dropped().bytes + c.held.bytes
    );
    prop_assert!(c.queued <= c.queued_max && c.queued <= c.held.bytes);
    Ok(())
}

fn run(stage: &mut impl Changing, steps: &[Step], caller: Caller) -> Result<Outcome, TestCaseError> {
    let mut outcome = Outcome {
        departures: vec![],
        dropped: vec![],
        counters: StageCounters::default(),
    };
    let (mut now, mut token) = (PicoTime::ZERO, 0);
    let poll_at = |stage: &mut dyn Stage<usize>, now, outcome: &mut Outcome| -> Result<(), TestCaseError> {
        while let Some(departure) = stage.poll(now) {
            prop_assert!(departure.at <= now);
            outcome.departures.push(departure);
        }
        Ok(())
    };
    let end = Step::Poll { after_ps: u64::MAX };
    for step in steps.iter().copied().chain([end]) {
        let (Step::Arrive { after_ps, .. } | Step::Poll { after_ps } | Step::Change { after_ps, .. }) = step;
        let next = now + PicoDuration::from_ps(after_ps);
        while caller == Caller::Punctual
            && let Some(wakeup) = stage.next_wakeup().filter(|w| *w < next)
        {
            // A frame whose turn has come while the caller slept departs at the wakeup, not before.
            if wakeup > now {
                prop_assert_eq!(stage.poll(wakeup - PicoDuration::from_ps(1)), None);
            }
            let before = stage.counters().held.frames;
            poll_at(stage, wakeup, &mut outcome)?;
            prop_assert!(
                stage.counters().held.frames < before,
                "woken for nothing at {}",
                wakeup
            );
        }
        now = next;
        match step {
            Step::Arrive { len, .. } => {
                if let Err(dropped) = stage.handle_frame(now, frame(len), token) {
                    prop_assert_eq!(dropped.token, token);
                    outcome.dropped.push(token);
                    prop_assert!(stage.counters().queued + frame(len) > stage.limit());
                }
                prop_assert!(stage.counters().queued <= stage.limit());
                token += 1;
            }
            Step::Poll { .. } if caller == Caller::Sometimes || after_ps == u64::MAX => {
                poll_at(stage, now, &mut outcome)?;
            }
            Step::Poll { .. } => {}
            Step::Change {
                bps,
                one_way_delay_ps,
                ..
            } => {
                stage.change(
                    now,
                    BitRate::from_bps(bps)?,
                    PicoDuration::from_ps(one_way_delay_ps),
                );
            }
        }
        check(stage, &outcome, token)?;
    }
    outcome.counters = stage.counters();
    prop_assert_eq!(outcome.counters.held, Default::default());
    prop_assert_eq!(stage.next_wakeup(), None);
    let order = |d: &[Departure<usize>]| {
        d.windows(2)
            .all(|w| w[0].token < w[1].token && w[0].at <= w[1].at)
    };
    prop_assert!(order(&outcome.departures));
    Ok(outcome)
}

fn all_callers<S: Changing>(make: impl Fn() -> S, steps: &[Step]) -> Result<Outcome, TestCaseError> {
    let punctual = run(&mut make(), steps, Caller::Punctual)?;
    for caller in [Caller::Sometimes, Caller::Never] {
        prop_assert_eq!(&run(&mut make(), steps, caller)?, &punctual, "{:?}", caller);
    }
    Ok(punctual)
}

/// Bytes in any half-open window of whole ps that departures span: at most the rate's share and one
/// frame, here the first of the window, as a departure is the end of a frame.
fn check_bound(departures: &[Departure<usize>], rate: BitRate) -> Result<(), TestCaseError> {
    let (mut sent, mut floor) = (0i128, i128::MIN);
    for departure in departures {
        sent += i128::from(departure.len.get()) * i128::from(PS_BITS_PER_BYTE);
        let room = i128::from(rate.bps()) * i128::from(departure.at.as_ps()) - sent;
        prop_assert!(
            room + i128::from(rate.bps()) > floor,
            "above {rate} at {}",
            departure.at
        );
        floor = floor.max(room);
    }
    Ok(())
}

fn link_config(bps: u64, one_way_delay_ps: u64, loss: (u64, u64)) -> Result<LinkConfig, TestCaseError> {
    Ok(LinkConfig {
        capacity: BitRate::from_bps(bps)?,
        wire: Some(LineRate::TEN_GIGABIT),
        one_way_delay: PicoDuration::from_ps(one_way_delay_ps),
        queue_limit: LIMIT,
        loss: Ratio::new(loss.0, loss.1)?,
    })
}

proptest! {
    #[test]
    fn links_keep_every_promise(
        steps in steps(), bps in 1_000_000u64..20_000_000_000, delay in 0u64..90_000_000,
        loss in prop::sample::select(vec![(0, 1), (1, 3), (1, 1)]), seed in any::<u64>(),
    ) {
        let config = link_config(bps, delay, loss)?;
        let outcome = all_callers(|| Link::new(config, seed), &steps)?;
        match loss {
            (0, _) => prop_assert_eq!(outcome.counters.lost.frames, 0),
            (1, 1) => prop_assert_eq!(outcome.counters.departed.frames, 0),
            _ => {}
        }
    }

    #[test]
    fn ports_keep_every_promise(steps in steps(), bps in 1_000_000u64..20_000_000_000) {
        let line = LineRate::new(BitRate::from_bps(bps)?);
        all_callers(|| PortWire::new(line, LIMIT), &steps)?;
    }

    #[test]
    fn shapers_keep_every_promise(steps in steps(), bps in 1_000_000u64..20_000_000_000) {
        let spacing = Spacing::Rate(BitRate::from_bps(bps)?);
        let config = ShaperConfig { line: LineRate::TEN_GIGABIT, spacing, queue_limit: LIMIT };
        all_callers(|| Shaper::new(config), &steps)?;
    }

    #[test]
    fn no_window_of_a_link_is_above_its_capacity(
        steps in steps(), bps in 1_000_000u64..20_000_000_000, delay in 0u64..90_000_000,
    ) {
        let steps: Vec<_> = steps.into_iter().filter(|s| !matches!(s, Step::Change { .. })).collect();
        let config = link_config(bps, delay, (0, 1))?;
        let outcome = run(&mut Link::new(config, 0), &steps, Caller::Never)?;
        check_bound(&outcome.departures, config.capacity)?;
    }

    #[test]
    fn no_window_of_a_shaper_is_above_its_rate(
        steps in steps(), bps in 1_000_000u64..9_000_000_000, len in 64u64..9_019,
    ) {
        // With frames of one size: ends are spaced as starts are. For mixed sizes the bound is on starts
        // and checked in `pace`.
        let steps: Vec<_> = steps
            .into_iter()
            .filter(|s| !matches!(s, Step::Change { .. }))
            .map(|s| match s {
                Step::Arrive { after_ps, .. } => Step::Arrive { after_ps, len },
                other => other,
            })
            .collect();
        let rate = BitRate::from_bps(bps)?;
        let config = ShaperConfig { line: LineRate::TEN_GIGABIT, spacing: Spacing::Rate(rate), queue_limit: LIMIT };
        let outcome = run(&mut Shaper::new(config), &steps, Caller::Never)?;
        check_bound(&outcome.departures, rate)?;
    }
}
