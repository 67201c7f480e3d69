//! `WanLink`: the plain case is `Link`, every parameter does what its file says, and frames are conserved.

use kuroshio_core::{
    units::{BitRate, FrameBytes, PicoDuration, PicoTime, Ratio},
    wan::{
        Cargo, DropCause, Link, LinkConfig, Mark, Schedule, Stage, StageCounters, WanChange, WanConfig,
        WanLink, setting,
    },
    wire::LineRate,
};
use proptest::prelude::*;

fn frame(len: u64) -> FrameBytes {
    FrameBytes::new(len)
}

fn us(us: u64) -> PicoTime {
    PicoTime::from_us(us)
}

/// 800 Mbps, so a byte is 10 ns and a frame of 1000 bytes 10 us; no delay, room for 1 MB.
fn plain() -> LinkConfig {
    LinkConfig {
        capacity: BitRate::from_mbps(800),
        wire: None,
        one_way_delay: PicoDuration::ZERO,
        queue_limit: frame(1_000_000),
        loss: Ratio::ZERO,
    }
}

/// Files that settings name: a trace and samples.
fn file(name: &str) -> Result<String, String> {
    match name {
        "trace" => Ok("0\n5\n5\n12\n".into()),
        "busy" => Ok((1..=10).map(|ms| format!("{ms}\n").repeat(20)).collect()),
        "samples" => Ok("1ms\n2ms\n\n5ms\n".into()),
        _ => Err(format!("no file {name:?}")),
    }
}

fn change(key: &str, value: &str) -> WanChange {
    setting(key, value, &mut file).unwrap_or_else(|e| panic!("{e}"))
}

fn config(settings: &[(&str, &str)]) -> WanConfig {
    let mut config = WanConfig::from(plain());
    for (key, value) in settings {
        change(key, value).describe(&mut config);
    }
    config
}

/// A frame that is a number and may be marked.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Segment {
    id: u64,
    capable: bool,
    marked: bool,
}

impl Segment {
    fn new(id: u64) -> Self {
        Segment {
            id,
            capable: true,
            marked: false,
        }
    }
}

impl Cargo for Segment {
    fn copy(&self) -> Option<Self> {
        Some(self.clone())
    }

    fn mark(&mut self) -> Mark {
        if !self.capable {
            return Mark::NotCapable;
        }
        self.marked = true;
        Mark::Marked
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

/// Departures in us of frames of 1000 bytes that arrive at given us.
fn through(settings: &[(&str, &str)], arrivals: &[u64]) -> Vec<(u64, u64)> {
    let mut link = WanLink::new(config(settings), 1);
    for (id, at) in (0u64..).zip(arrivals) {
        let _ = link.handle_frame(us(*at), frame(1_000), id);
    }
    drain(&mut link)
        .into_iter()
        .map(|(at, id)| (at.as_us(), id))
        .collect()
}

#[test]
fn an_l1_capacity_counts_preamble_and_gap() {
    let mut link = WanLink::new(config(&[("capacity", "1Gbps l1")]), 0);
    for id in 0..2u64 {
        assert_eq!(link.handle_frame(us(0), frame(1_518), id), Ok(()));
    }
    let step = 1_538 * 8;
    assert_eq!(
        drain(&mut link),
        [(PicoTime::from_ns(step), 0), (PicoTime::from_ns(2 * step), 1)]
    );
}

#[test]
fn a_queue_of_frames_counts_frames() {
    // One is on the wire, two wait, the fourth is one too many, whatever its size.
    let mut link = WanLink::new(config(&[("queue", "2 frames")]), 0);
    let taken: Vec<bool> = (0..4u64)
        .map(|id| link.handle_frame(us(0), frame(64 + 2_000 * id), id).is_ok())
        .collect();
    assert_eq!(taken, [true, true, true, false]);
    assert_eq!(link.counters().queue_full.frames, 1);
}

#[test]
fn a_frame_that_falls_behind_is_overtaken() {
    // Every frame falls 15 us behind: order stays. Then one in two, by the seed.
    assert_eq!(
        through(&[("reorder", "100% 15us")], &[0, 0, 0]),
        [(25, 0), (35, 1), (45, 2)]
    );
    let some = through(&[("reorder", "50% 15us")], &[0; 40]);
    assert_eq!(some.len(), 40);
    assert!(some.windows(2).any(|w| w[0].1 > w[1].1));
    for (at, id) in some {
        let turn = (id + 1) * 10;
        assert!(at == turn || at == turn + 15, "{id} at {at}");
    }
}

#[test]
fn every_nth_frame_is_lost() {
    let left: Vec<u64> = through(&[("loss", "every 3")], &[0; 10])
        .into_iter()
        .map(|(_, id)| id)
        .collect();
    assert_eq!(left, [0, 1, 3, 4, 6, 7, 9]);
}

#[test]
fn a_copy_arrives_right_behind_and_takes_no_capacity() {
    let mut link = WanLink::new(config(&[("duplicate", "100%")]), 1);
    for id in 0..2u64 {
        assert_eq!(link.handle_frame(us(0), frame(1_000), id), Ok(()));
    }
    assert_eq!(
        link.counters().held.frames,
        3,
        "one started and was copied, one waits"
    );
    let out: Vec<_> = drain(&mut link)
        .into_iter()
        .map(|(at, id)| (at.as_us(), id))
        .collect();
    assert_eq!(out, [(10, 0), (10, 0), (20, 1), (20, 1)]);
    let c = link.counters();
    assert_eq!(
        (c.arrived.frames, c.duplicated.frames, c.departed.frames),
        (2, 2, 4)
    );
}

#[test]
fn a_hold_keeps_the_next_frame_and_a_shorter_one_ends_it() {
    let mut link = WanLink::new(config(&[]), 0);
    for id in 0..2u64 {
        assert_eq!(link.handle_frame(us(0), frame(1_000), id), Ok(()));
    }
    link.change(us(5), change("hold", "1s"));
    assert_eq!(
        link.next_wakeup(),
        Some(us(10)),
        "the frame on the wire is finished"
    );
    link.change(us(50), change("hold", "0s"));
    assert_eq!(drain(&mut link), [(us(10), 0), (us(60), 1)]);
}

#[test]
fn a_trace_sends_when_it_says() {
    // Chances at 0, 5, 5, 12, 12, 17, 17, 24 ms of 1504 bytes; a frame of 1518 needs one, one of 64 needs 50 bytes.
    let sent = |frames: &[(u64, u64)]| {
        let mut link = WanLink::new(config(&[("trace", "trace")]), 0);
        for (id, (ms, len)) in (0u64..).zip(frames) {
            assert_eq!(link.handle_frame(PicoTime::from_ms(*ms), frame(*len), id), Ok(()));
        }
        drain(&mut link)
            .iter()
            .map(|(at, _)| at.as_ms())
            .collect::<Vec<_>>()
    };
    assert_eq!(sent(&[(1, 1_518); 5]), [5, 5, 12, 12, 17]);
    assert_eq!(sent(&[(5, 1_518), (13, 1_518)]), [5, 17]);
    // Two small ones share a chance, a third that comes later finds it gone.
    assert_eq!(sent(&[(1, 64), (1, 64), (6, 64)]), [5, 5, 12]);
    // 4500 bytes need three chances, and 12 bytes of the third are left: too few for the next.
    assert_eq!(sent(&[(1, 4_514), (1, 64), (1, 1_518)]), [12, 12, 17]);
    // A period's end that is the next one's start is passed once.
    assert_eq!(sent(&[(12, 1_518), (12, 1_518), (12, 1_518)]), [12, 12, 17]);
    assert_eq!(sent(&[(1_200_001, 1_518)]), [1_200_005]);
}

#[test]
fn a_schedule_changes_at_its_times_and_again() {
    let steps = vec![
        (PicoDuration::from_us(100), change("capacity", "80Mbps")),
        (PicoDuration::from_us(250), change("capacity", "800Mbps")),
    ];
    let repeat = Some(PicoDuration::from_us(400));
    let schedule = Schedule { steps, repeat };
    let mut link = WanLink::new(
        WanConfig {
            schedule,
            ..config(&[])
        },
        0,
    );
    let arrivals = [0, 100, 101, 300, 501, 700];
    for (id, at) in (0u64..).zip(arrivals) {
        assert_eq!(link.handle_frame(us(at), frame(1_000), id), Ok(()));
        while link.poll(us(at)).is_some() {}
    }
    // The frame that arrives at the instant of the change starts behind it: ten times as long.
    let mut link2 = link.clone();
    assert_eq!(link2.poll(us(710)).map(|d| (d.at, d.token)), Some((us(710), 5)));
    let at = through_schedule(&arrivals);
    assert_eq!(at, [10, 200, 300, 310, 601, 710]);
}

/// The times of the schedule above, asked for at the end only.
fn through_schedule(arrivals: &[u64]) -> Vec<u64> {
    let steps = vec![
        (PicoDuration::from_us(100), change("capacity", "80Mbps")),
        (PicoDuration::from_us(250), change("capacity", "800Mbps")),
    ];
    let repeat = Some(PicoDuration::from_us(400));
    let mut link = WanLink::new(
        WanConfig {
            schedule: Schedule { steps, repeat },
            ..config(&[])
        },
        0,
    );
    for (id, at) in (0u64..).zip(arrivals) {
        assert_eq!(link.handle_frame(us(*at), frame(1_000), id), Ok(()));
    }
    std::iter::from_fn(|| link.poll(us(5_000)))
        .map(|d| d.at.as_us())
        .collect()
}

#[test]
fn codel_drops_by_the_square_root() {
    // Twice the capacity for 2 s: the sojourn passes 5 ms at the frame that starts at 10 ms.
    for ecn in [false, true] {
        let aqm = if ecn {
            "codel 5ms 100ms ecn"
        } else {
            "codel 5ms 100ms"
        };
        let mut link = WanLink::new(config(&[("aqm", aqm), ("queue", "1GiB")]), 0);
        let mut refused: Vec<u64> = Vec::new();
        let mut next = 0;
        for id in 0..400_000u64 {
            let now = us(id * 5);
            assert_eq!(link.handle_frame(now, frame(1_000), Segment::new(id)), Ok(()));
            while let Some(d) = link.poll(now) {
                if d.token.marked || d.token.id > next {
                    refused.push(d.at.as_us());
                }
                next = d.token.id + 1;
            }
        }
        let c = link.counters();
        assert_eq!(c.marked > 0, ecn);
        assert_eq!(c.aqm_dropped.frames > 0, !ecn);
        assert!(refused.len() > 100, "{}", refused.len());
        assert!(
            (110_000..=110_040).contains(&refused[0]),
            "first at {} us",
            refused[0]
        );
        for (count, pair) in (1u64..).zip(refused.windows(2)).take(100) {
            let expected = 100_000.0 / (count as f64).sqrt();
            let seen = (pair[1] - pair[0]) as f64;
            assert!(
                (seen - expected).abs() <= 20.0,
                "gap {count}: {seen} us, not {expected}"
            );
        }
    }
}

#[test]
fn codel_leaves_a_short_queue_alone() {
    let mut link = WanLink::new(config(&[("aqm", "codel")]), 0);
    // Bursts of 400 frames, 4 ms of queue, drained before the next.
    for burst in 0..200u64 {
        for id in 0..400u64 {
            assert_eq!(link.handle_frame(us(burst * 5_000), frame(1_000), id), Ok(()));
        }
    }
    drain(&mut link);
    assert_eq!(link.counters().aqm_dropped.frames, 0);
}

#[test]
fn red_marks_the_capable_and_drops_the_others() {
    let run = |aqm: &str, capable: bool| {
        let mut link = WanLink::new(config(&[("aqm", aqm), ("queue", "1GiB")]), 3);
        for id in 0..200_000u64 {
            // 1.2 times the capacity.
            let now = PicoTime::from_ns(id * 8_333);
            let segment = Segment {
                capable,
                ..Segment::new(id)
            };
            let _ = link.handle_frame(now, frame(1_000), segment);
            while link.poll(now).is_some() {}
        }
        link.counters()
    };
    let red = "red 50kB 150kB 10%";
    let dropped = run(red, true);
    assert_eq!((dropped.marked, dropped.queue_full.frames), (0, 0));
    // A sixth has to go for the queue to stand still, and it stands below the gentle end.
    let share = dropped.aqm_dropped.frames as f64 / dropped.arrived.frames as f64;
    assert!((share - 1.0 / 6.0).abs() < 0.01, "{share}");
    assert!(dropped.queued_max < frame(400_000), "{}", dropped.queued_max);
    let marked = run(&format!("{red} ecn"), true);
    // Nobody slows down: marks alone do not hold the queue, the end of the gentle part does.
    assert!(marked.marked > 1_000 && marked.aqm_dropped.frames > 1_000);
    let deaf = run(&format!("{red} ecn"), false);
    assert_eq!(deaf.marked, 0);
    assert_eq!(deaf.aqm_dropped, dropped.aqm_dropped);
}

#[test]
fn red_forgets_in_idle_time() {
    let mut link = WanLink::new(config(&[("aqm", "red 10kB 20kB 100% weight 2")]), 3);
    for id in 0..100u64 {
        let _ = link.handle_frame(us(0), frame(1_000), id);
    }
    assert!(link.counters().aqm_dropped.frames > 0);
    drain(&mut link);
    // A second of idle time is 100,000 mean frames.
    let before = link.counters().aqm_dropped.frames;
    for id in 0..9u64 {
        assert_eq!(link.handle_frame(us(1_000_000), frame(1_000), id), Ok(()));
    }
    assert_eq!(link.counters().aqm_dropped.frames, before);
}

#[test]
fn a_change_loses_nobody_who_waits_or_is_on_the_way() {
    let mut link = WanLink::new(config(&[("one_way_delay", "1ms")]), 0);
    for id in 0..100u64 {
        assert_eq!(link.handle_frame(us(0), frame(1_000), id), Ok(()));
    }
    for (key, value) in [
        ("queue", "0B"),
        ("aqm", "red 1B 2B 1%"),
        ("aqm", "codel 1s 1s"),
        ("order", "free"),
        ("jitter", "uniform 5us"),
        ("trace", "busy"),
        ("order", "kept"),
        ("one_way_delay", "0s"),
        ("capacity", "8kbps"),
        ("mtu", "68B"),
        ("capacity", "100Gbps"),
    ] {
        link.change(us(500), change(key, value));
    }
    assert!(matches!(
        link.handle_frame(us(500), frame(1_000), 100),
        Err(d) if d.cause == DropCause::TooBig
    ));
    let mut ids: Vec<u64> = drain(&mut link).into_iter().map(|(_, id)| id).collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..100).collect::<Vec<_>>());
}

/// What a test does to a link.
#[derive(Debug, Clone)]
enum Step {
    Arrive { after_ps: u64, len: u64, capable: bool },
    Poll { after_ps: u64 },
    Change { after_ps: u64, setting: usize },
}

/// Values that any parameter may take.
const VALUES: [(&str, &str); 34] = [
    ("capacity", "1Mbps"),
    ("capacity", "3Gbps"),
    ("capacity", "123456789bps l1"),
    ("capacity", "100Gbps"),
    ("trace", "trace"),
    ("trace", "busy"),
    ("one_way_delay", "0s"),
    ("one_way_delay", "33us"),
    ("jitter", "none"),
    ("jitter", "uniform 40us"),
    ("jitter", "normal 10us 15us"),
    ("jitter", "pareto 5us 1.5"),
    ("jitter", "replay samples"),
    ("order", "kept"),
    ("order", "free"),
    ("queue", "30kB"),
    ("queue", "3 frames"),
    ("queue", "0 frames"),
    ("aqm", "drop-tail"),
    ("aqm", "codel 10us 50us"),
    ("aqm", "codel 1us 20us ecn"),
    ("aqm", "red 2kB 9kB 50% weight 1"),
    ("aqm", "red 1kB 20kB 20% weight 3 ecn"),
    ("loss", "0"),
    ("loss", "30%"),
    ("loss", "gilbert 20% 30% 1% 90%"),
    ("loss", "every 2"),
    ("duplicate", "0"),
    ("duplicate", "40%"),
    ("reorder", "none"),
    ("reorder", "30% 60us"),
    ("corrupt", "50%"),
    ("mtu", "4kB"),
    ("hold", "25us"),
];

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let after = prop_oneof![Just(0u64), 0u64..3_000_000, 0u64..100_000_000];
    let step = (after, 0..12, 64u64..9_019, any::<bool>(), 0..VALUES.len()).prop_map(
        |(after_ps, kind, len, capable, setting)| match kind {
            0..8 => Step::Arrive {
                after_ps,
                len,
                capable,
            },
            8..10 => Step::Poll { after_ps },
            _ => Step::Change { after_ps, setting },
        },
    );
    prop::collection::vec(step, 1..200)
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Caller {
    Punctual,
    Sometimes,
    Never,
}

type Outcome = (Vec<(PicoTime, FrameBytes, Segment)>, Vec<u64>, StageCounters);

fn conserved(link: &WanLink<Segment>, out: &Outcome, arrived: u64) -> Result<(), TestCaseError> {
    let c = link.counters();
    prop_assert_eq!(c.arrived.frames, arrived);
    prop_assert_eq!(c.departed.frames, out.0.len() as u64);
    prop_assert_eq!(c.departed.bytes, out.0.iter().map(|d| d.1).sum());
    let refused = c.queue_full.frames + c.too_big.frames;
    prop_assert!(refused <= out.1.len() as u64 && out.1.len() as u64 <= refused + c.aqm_dropped.frames);
    let (inn, gone) = (c.arrived.frames + c.duplicated.frames, c.dropped().frames);
    prop_assert_eq!(inn, c.departed.frames + gone + c.held.frames);
    let (inn, gone) = (c.arrived.bytes + c.duplicated.bytes, c.dropped().bytes);
    prop_assert_eq!(inn, c.departed.bytes + gone + c.held.bytes);
    prop_assert!(c.queued <= c.queued_max && c.queued <= c.held.bytes);
    Ok(())
}

fn run(config: &WanConfig, seed: u64, steps: &[Step], caller: Caller) -> Result<Outcome, TestCaseError> {
    let mut link = WanLink::new(config.clone(), seed);
    let mut out: Outcome = (vec![], vec![], StageCounters::default());
    let (mut now, mut id) = (PicoTime::ZERO, 0);
    let end = Step::Poll {
        after_ps: 100_000_000_000_000,
    };
    for step in steps.iter().cloned().chain([end]) {
        let (Step::Arrive { after_ps, .. } | Step::Poll { after_ps } | Step::Change { after_ps, .. }) = step;
        let next = now + PicoDuration::from_ps(after_ps);
        while caller == Caller::Punctual
            && let Some(wakeup) = link.next_wakeup().filter(|w| *w < next)
        {
            while let Some(d) = link.poll(wakeup) {
                // A wakeup is never too late.
                prop_assert!(d.at == wakeup || d.at <= now, "{} at {wakeup}", d.at);
                out.0.push((d.at, d.len, d.token));
            }
            prop_assert!(link.next_wakeup().is_none_or(|w| w > wakeup), "twice at {wakeup}");
            now = now.max(wakeup);
        }
        now = next;
        match step {
            Step::Arrive { len, capable, .. } => {
                let segment = Segment {
                    capable,
                    ..Segment::new(id)
                };
                if let Err(dropped) = link.handle_frame(now, frame(len), segment) {
                    prop_assert_eq!(dropped.token.id, id);
                    out.1.push(id);
                }
                id += 1;
            }
            Step::Poll { .. } if caller == Caller::Sometimes || after_ps > 1_000_000_000 => {
                while let Some(d) = link.poll(now) {
                    prop_assert!(d.at <= now);
                    out.0.push((d.at, d.len, d.token));
                }
            }
            Step::Poll { .. } => {}
            Step::Change { setting, .. } => {
                let (key, value) = VALUES[setting];
                link.change(now, change(key, value));
            }
        }
        conserved(&link, &out, id)?;
    }
    out.2 = link.counters();
    prop_assert_eq!(out.2.held, Default::default());
    prop_assert!(out.0.windows(2).all(|w| w[0].0 <= w[1].0));
    Ok(out)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn frames_are_conserved_and_times_do_not_depend_on_the_caller(
        steps in steps(), settings in prop::collection::vec(0..VALUES.len(), 0..8), seed in any::<u64>(),
    ) {
        let settings: Vec<_> = settings.into_iter().map(|s| VALUES[s]).collect();
        let config = config(&settings);
        let punctual = run(&config, seed, &steps, Caller::Punctual)?;
        for caller in [Caller::Sometimes, Caller::Never] {
            prop_assert_eq!(&run(&config, seed, &steps, caller)?, &punctual, "{:?}", caller);
        }
    }

    #[test]
    fn order_is_kept_where_it_is_asked_for(steps in steps(), seed in any::<u64>()) {
        let steps: Vec<_> = steps.into_iter().filter(|s| !matches!(s, Step::Change { .. })).collect();
        let config = config(&[("jitter", "uniform 1ms"), ("one_way_delay", "1ms"), ("duplicate", "20%")]);
        let (departures, ..) = run(&config, seed, &steps, Caller::Never)?;
        prop_assert!(departures.windows(2).all(|w| w[0].2.id <= w[1].2.id));
    }

    #[test]
    fn a_plain_one_is_a_link(
        steps in steps(), bps in 1_000_000u64..20_000_000_000, delay in 0u64..90_000_000,
        loss in prop::sample::select(vec![(0, 1), (1, 3), (1, 1)]), seed in any::<u64>(),
    ) {
        let config = LinkConfig {
            capacity: BitRate::from_bps(bps)?,
            wire: Some(LineRate::TEN_GIGABIT),
            one_way_delay: PicoDuration::from_ps(delay),
            queue_limit: frame(30_000),
            loss: Ratio::new(loss.0, loss.1)?,
        };
        let mut link = Link::new(config, seed);
        let mut wan = WanLink::new(config.into(), seed);
        let mut now = PicoTime::ZERO;
        for (id, step) in (0u64..).zip(steps) {
            match step {
                Step::Arrive { after_ps, len, .. } => {
                    now += PicoDuration::from_ps(after_ps);
                    prop_assert_eq!(wan.handle_frame(now, frame(len), id), link.handle_frame(now, frame(len), id));
                }
                Step::Poll { after_ps } => now += PicoDuration::from_ps(after_ps),
                Step::Change { after_ps, setting } => {
                    now += PicoDuration::from_ps(after_ps);
                    let rate = BitRate::from_mbps(1 + setting as u32 * 100);
                    let delay = PicoDuration::from_us(setting as u64);
                    link.set_capacity(now, rate);
                    link.set_one_way_delay(now, delay);
                    wan.change(now, change("capacity", &format!("{}Mbps", 1 + setting * 100)));
                    wan.change(now, WanChange::OneWayDelay(delay));
                }
            }
            prop_assert_eq!(wan.counters(), link.counters());
            prop_assert_eq!(wan.next_wakeup(), link.next_wakeup());
            prop_assert_eq!(wan.poll(now), link.poll(now));
        }
        prop_assert_eq!(drain(&mut wan), drain(&mut link));
    }
}
