//! Runs in virtual time: conservation, replay, exactness, and the shape of what TCP does.

use kuroshio_core::{
    pace::Spacing,
    sim::{
        EventQueue, FlowId, Meter, Network, OnOff, OnOffFlow, Random, Silent, SimError, StageId, TcpFlow,
        Totals,
    },
    tcp::{IpVersion, Profile, ReceiverConfig, SenderConfig, Sizes, cc::Algorithm},
    units::{BitRate, FrameBytes, PicoDuration, PicoTime, Ratio, WireBytes},
    wan::{
        DrainConfig, FrameKind, FrameName, Level, Limit, LinkConfig, Rate, Rewrite, ShaperConfig, WanChange,
        WanConfig, WaterMarks,
    },
    wire::LineRate,
};
use proptest::prelude::*;

const ROOM: FrameBytes = FrameBytes::new(64 << 20);

fn link(mbps: u32, queue: u64, loss: Ratio) -> LinkConfig {
    LinkConfig {
        capacity: BitRate::from_mbps(mbps),
        wire: None,
        one_way_delay: PicoDuration::from_ms(10),
        queue_limit: FrameBytes::new(queue),
        loss,
    }
}

/// A way of port, link and port; the link is the second stage.
fn way(net: &mut Network, config: LinkConfig, seed: u64) -> Vec<StageId> {
    let port = net.add_port(LineRate::GIGABIT, ROOM);
    let link = net.add_link(config, seed);
    let far = net.add_port(LineRate::GIGABIT, ROOM);
    [port, link, far]
        .into_iter()
        .collect::<Result<_, _>>()
        .expect("stages")
}

fn tcp(profile: Profile, algorithm: Algorithm, forward: Vec<StageId>, backward: Vec<StageId>) -> TcpFlow {
    let sizes = Sizes::of_mtu(1_500, IpVersion::V4).expect("an MTU");
    TcpFlow {
        sender: SenderConfig::new(profile, algorithm, sizes),
        receiver: ReceiverConfig {
            profile,
            window: 8 << 20,
            read_rate: None,
            memory: None,
            mss: sizes.mss,
        },
        forward,
        backward,
    }
}

fn connection(profile: Profile, algorithm: Algorithm, config: LinkConfig, seed: u64) -> (Network, FlowId) {
    let mut net = Network::new();
    let forward = way(&mut net, config, seed);
    let backward = way(&mut net, link(1_000, 8 << 20, Ratio::ZERO), !seed);
    let mut flow = tcp(profile, algorithm, forward, backward);
    flow.sender.seed = seed;
    flow.sender.reaction_max = PicoDuration::from_us(12);
    let id = net.add_tcp(flow).expect("a flow");
    (net, id)
}

fn assert_conserved(totals: Totals) {
    let Totals {
        emitted,
        duplicated,
        delivered,
        dropped,
        held,
    } = totals;
    assert!(emitted.frames > 0);
    assert_eq!(
        emitted.frames + duplicated.frames,
        delivered.frames + dropped.frames + held.frames
    );
    assert_eq!(
        emitted.bytes + duplicated.bytes,
        delivered.bytes + dropped.bytes + held.bytes
    );
}

#[test]
fn frames_are_conserved_at_every_moment() {
    for profile in Profile::ALL {
        for algorithm in Algorithm::ALL {
            let loss = Ratio::new(1, 2_000).expect("a ratio");
            let (mut net, flow) = connection(profile, algorithm, link(100, 100_000, loss), 7);
            for step in 1..=100 {
                net.run_until(PicoTime::from_ms(50 * step), &mut Silent);
                assert_conserved(net.totals());
            }
            let stats = net.sender(flow).expect("a sender").stats();
            assert!(stats.resent_segments > 0, "{} {}", profile.name, algorithm.name());
            assert!(net.totals().dropped.frames > 0);
            for stage in (0..6).map(StageId) {
                let c = net.counters(stage).expect("a stage");
                assert_eq!(
                    c.arrived.frames,
                    c.departed.frames + c.queue_full.frames + c.lost.frames + c.held.frames
                );
            }
        }
    }
}

#[test]
fn a_run_is_a_function_of_its_seed() {
    let run = |seed, steps: u64| {
        let loss = Ratio::new(1, 1_000).expect("a ratio");
        let (mut net, flow) = connection(Profile::MODERN, Algorithm::Cubic, link(200, 200_000, loss), seed);
        let mut meter = Meter::new(PicoDuration::from_ms(1)).expect("a meter");
        for step in 1..=steps {
            net.run_until(PicoTime::from_ms(2_000 / steps * step), &mut meter);
        }
        let stats = net.sender(flow).expect("a sender").stats();
        (net.totals(), stats, meter.windows().sum())
    };
    assert_eq!(run(1, 1), run(1, 1));
    // Where a run is cut changes nothing.
    assert_eq!(run(1, 1), run(1, 100));
    assert_ne!(run(1, 1).2, run(2, 1).2);
}

#[test]
fn every_stack_and_control_fills_a_clean_path() {
    for profile in Profile::ALL {
        for algorithm in Algorithm::ALL {
            // FAST alone takes long: alpha / 2 segments a round trip.
            let (mut net, flow) = connection(profile, algorithm, link(100, 4 << 20, Ratio::ZERO), 3);
            net.run_until(PicoTime::from_secs(20), &mut Silent);
            let before = net.receiver(flow).expect("a receiver").stats().bytes;
            net.run_until(PicoTime::from_secs(30), &mut Silent);
            let bytes = net.receiver(flow).expect("a receiver").stats().bytes - before;
            let share = bytes as f64 * 8.0 / 10.0 / (100e6 * 1448.0 / 1518.0);
            assert!(
                (0.97..=1.001).contains(&share),
                "{} {}: {share}",
                profile.name,
                algorithm.name()
            );
        }
    }
}

#[test]
fn a_window_bounds_a_rate() {
    let (mut net, flow) = connection(
        Profile::LINUX_2_6_14,
        Algorithm::Reno,
        link(900, 8 << 20, Ratio::ZERO),
        1,
    );
    // 8 MiB in 20 ms would be 3.3 Gbps: the link is the limit.
    net.run_until(PicoTime::from_secs(5), &mut Silent);
    let sender = net.sender(flow).expect("a sender");
    assert!(
        sender.rtt().smoothed().expect("an RTT") > PicoDuration::from_ms(60),
        "its queue is full"
    );
    assert_eq!(net.totals().dropped.frames, 0);
}

#[test]
fn a_shaped_stream_is_exactly_at_its_rate() {
    let mut net = Network::new();
    let port = net.add_port(LineRate::GIGABIT, ROOM).expect("a port");
    let shaper = net
        .add_shaper(ShaperConfig {
            line: LineRate::GIGABIT,
            spacing: Spacing::Rate(BitRate::from_mbps(250)),
            queue_limit: ROOM,
        })
        .expect("a shaper");
    let backward = way(&mut net, link(1_000, 8 << 20, Ratio::ZERO), 0);
    net.add_tcp(tcp(
        Profile::LINUX_2_6_14,
        Algorithm::Reno,
        vec![port, shaper],
        backward,
    ))
    .expect("a flow");
    let mut meter = Meter::new(PicoDuration::from_ms(100)).expect("a meter");
    net.run_until(PicoTime::from_secs(3), &mut meter);
    let windows = meter.windows().sum();
    // 250 Mbps in 100 ms, to a frame.
    for bytes in &windows[10..30] {
        assert!(bytes.abs_diff(3_125_000) <= 1_518, "{bytes}");
    }
}

#[test]
fn the_interface_follows_the_window() {
    let mut net = Network::new();
    let interface = net
        .add_shaper(ShaperConfig {
            line: LineRate::GIGABIT,
            spacing: Spacing::Gap(WireBytes::new(12)),
            queue_limit: ROOM,
        })
        .expect("a shaper");
    let link_stage = net
        .add_link(link(500, 1_000_000, Ratio::ZERO), 0)
        .expect("a link");
    let backward = way(&mut net, link(1_000, 8 << 20, Ratio::ZERO), 0);
    let flow = net
        .add_tcp(tcp(
            Profile::LINUX_2_6_14,
            Algorithm::Reno,
            vec![interface, link_stage],
            backward,
        ))
        .expect("a flow");
    net.pace_by_window(flow).expect("an interface that shapes");
    net.run_until(PicoTime::from_ms(200), &mut Silent);
    // Slow start at one window per round trip never queues more than a frame or two at the link.
    let counters = net.counters(link_stage).expect("a link");
    assert!(counters.departed.frames > 100);
    assert!(counters.queued_max.get() <= 2 * 1_518, "{}", counters.queued_max);
}

#[test]
fn an_interface_that_follows_the_window_does_not_keep_a_queue() {
    let mut net = Network::new();
    let interface = net
        .add_shaper(ShaperConfig {
            line: LineRate::GIGABIT,
            spacing: Spacing::Gap(WireBytes::new(12)),
            queue_limit: ROOM,
        })
        .expect("a shaper");
    let far = net
        .add_link(link(500, 1_000_000, Ratio::ZERO), 0)
        .expect("a link");
    let backward = way(&mut net, link(1_000, 8 << 20, Ratio::ZERO), 0);
    let ways = (vec![interface, far], backward);
    let flow = net
        .add_tcp(tcp(Profile::LINUX_2_6_14, Algorithm::Bic, ways.0, ways.1))
        .expect("a flow");
    net.pace_by_window(flow).expect("an interface that shapes");
    net.run_until(PicoTime::from_ms(600), &mut Silent);
    let sender = net.sender(flow).expect("a sender");
    assert!(sender.window().cwnd > 100, "past its slow start");
    // 20 ms there and back. A pacer that took the whole RTT would keep what slow start left here: 40 ms.
    let rtt = sender.rtt().smoothed().expect("a sample");
    assert!(rtt < PicoDuration::from_ms(25), "{rtt}");
}

/// A pace that is changed on the way holds from the next segment on, to the frame.
#[test]
fn a_pace_can_be_changed_while_it_sends() {
    let path = link(1_000, 1 << 20, Ratio::ZERO);
    let (mut net, flow) = connection(Profile::MODERN, Algorithm::Reno, path, 1);
    let at = |ms| PicoTime::ZERO + PicoDuration::from_ms(ms);
    net.set_pace(flow, BitRate::from_mbps(100)).expect("a connection");
    let mut got = Vec::new();
    for ms in [2_000, 3_000, 4_000, 5_000] {
        net.run_until(at(ms), &mut Silent);
        got.push(net.receiver(flow).expect("a connection").stats().segments);
        if ms == 3_000 {
            net.set_pace(flow, BitRate::from_mbps(25)).expect("a connection");
        }
    }
    let frames = |mbps: u64| mbps * 1_000_000 / 8 / 1_518;
    // A segment that waits for the reaction to an ACK loses that time.
    let close = |a: u64, b: u64| assert!(a <= b + 2 && a + 2 + b / 500 >= b, "{a} {b}");
    close(got[1] - got[0], frames(100));
    // What was under way when it changed was sent at the old one: 10 ms of it.
    close(got[2] - got[1], frames(25) + (frames(100) - frames(25)) / 100);
    close(got[3] - got[2], frames(25));
    let slow = net.set_pace(flow, BitRate::MIN);
    assert!(matches!(slow, Err(SimError::Pace(_))), "{slow:?}");
    assert_eq!(
        net.set_pace(FlowId(9), BitRate::from_mbps(1)),
        Err(SimError::NoConnection(FlowId(9)))
    );
}

fn on_off(forward: Vec<StageId>) -> OnOffFlow {
    OnOffFlow {
        source: OnOff {
            start: PicoTime::from_ms(5),
            end: PicoTime::from_ms(205),
            rate: BitRate::from_mbps(100),
            frame: FrameBytes::new(1_250),
            payload: 1_204,
            on: PicoDuration::from_ms(10),
            off: PicoDuration::from_ms(30),
        },
        forward,
    }
}

#[test]
fn a_source_sends_by_the_clock() {
    let mut net = Network::new();
    let port = net.add_port(LineRate::GIGABIT, ROOM).expect("a port");
    net.add_on_off(on_off(vec![port])).expect("a flow");
    let mut meter = Meter::new(PicoDuration::from_ms(10)).expect("a meter");
    net.run_until(PicoTime::from_secs(1), &mut meter);
    // Five periods with 10 ms of 100 Mbps: 100 frames of 0.1 ms each.
    assert_eq!(net.totals().delivered.frames, 500);
    let windows = meter.windows().sum();
    // From 5 to 15 ms, and then from 45 ms.
    assert_eq!(windows[..4], [50 * 1_250, 50 * 1_250, 0, 0]);
}

/// 800 Mbps towards a receiver that drains 500: with and without PAUSE.
#[test]
fn pause_keeps_a_receiver_from_overflowing() {
    for paused in [false, true] {
        let mut net = Network::new();
        let port = net.add_port(LineRate::GIGABIT, ROOM).expect("a port");
        let config = DrainConfig {
            rate: BitRate::from_mbps(500),
            buffer: FrameBytes::new(100_000),
            pause: paused.then_some(WaterMarks {
                high: FrameBytes::new(50_000),
                low: FrameBytes::new(20_000),
                quanta: u16::MAX,
            }),
            line: LineRate::GIGABIT,
        };
        let drain = net.add_drain(config, port).expect("a receiver");
        let mut flow = on_off(vec![port, drain]);
        flow.source.rate = BitRate::from_mbps(800);
        flow.source.off = PicoDuration::ZERO;
        flow.source.end = PicoTime::MAX;
        net.add_on_off(flow).expect("a flow");
        net.run_until(PicoTime::from_ms(500), &mut Silent);
        assert_conserved(net.totals());
        assert_eq!(net.totals().dropped.frames == 0, paused);
        assert_eq!(net.pauses_sent() > 0, paused);
        // The receiver is never idle: 500 Mbps of 0.495 s in frames of 1250 bytes.
        let delivered = net.totals().delivered.frames;
        assert!((24_650..=24_751).contains(&delivered), "{delivered}");
        // A buffer that is held is never empty and never above the mark and what was on the wire.
        let counters = net.counters(drain).expect("counters");
        let most = if paused { 50_000 + 3 * 1_250 } else { 100_000 };
        assert!(counters.queued_max.get() <= most, "{}", counters.queued_max.get());
    }
}

fn wan_way(net: &mut Network, config: WanConfig, seed: u64) -> Vec<StageId> {
    let port = net.add_port(LineRate::GIGABIT, ROOM);
    let link = net.add_wan(config, seed);
    let far = net.add_port(LineRate::GIGABIT, ROOM);
    [port, link, far]
        .into_iter()
        .collect::<Result<_, _>>()
        .expect("stages")
}

fn over_wan(config: WanConfig) -> (Totals, u64, u64) {
    let mut net = Network::new();
    let forward = wan_way(&mut net, config, 7);
    let backward = way(&mut net, link(1_000, 8 << 20, Ratio::ZERO), 8);
    let id = net
        .add_tcp(tcp(Profile::MODERN, Algorithm::Reno, forward, backward))
        .expect("a flow");
    net.run_until(PicoTime::from_secs(3), &mut Silent);
    assert_conserved(net.totals());
    let sender = net.sender(id).expect("a sender");
    (
        net.totals(),
        sender.stats().resent_segments,
        sender.acknowledged(),
    )
}

#[test]
fn the_whole_link_is_there() {
    let plain = link(100, 200_000, Ratio::ZERO);
    let whole = |change: &dyn Fn(&mut WanConfig)| {
        let mut config = WanConfig::from(plain);
        change(&mut config);
        over_wan(config)
    };
    let (_, resent, bytes) = whole(&|_| {});
    assert!(resent > 0 && bytes > 25_000_000, "{resent} {bytes}");
    // A jitter of a picosecond changes nothing but the kind of stage: the two agree closely.
    let (_, _, other) = whole(&|c| c.mtu = Some(1_500));
    assert_eq!(
        bytes, other,
        "a link without its plain form gives the same frames the same times"
    );
    // Half of the bytes pass when the capacity falls to nearly nothing after half of the time.
    let (.., halved) = whole(&|c| {
        let slow = Rate::Capacity(BitRate::from_mbps(1), Level::Frame);
        let at = PicoDuration::from_ms(1_500);
        c.schedule.steps = vec![(at, WanChange::Rate(slow))];
    });
    assert!(halved < bytes * 6 / 10, "{halved} of {bytes}");
    let (totals, ..) = whole(&|c| c.duplicate = "1/10".parse().expect("a ratio"));
    assert!(totals.duplicated.frames > 1_000, "{}", totals.duplicated.frames);
    // Named frames: the third data segment is lost, and with a queue that takes all it is the only one.
    let (totals, resent, _) = whole(&|c| {
        c.queue = Limit::Bytes(ROOM);
        let (flow, kind, nth) = (1, FrameKind::Data, 3);
        c.lose = vec![FrameName { flow, kind, nth }];
    });
    assert_eq!(totals.dropped.frames, 1);
    assert!(resent >= 1);
    let (totals, ..) = whole(&|c| c.mtu = Some(1_499));
    assert!(totals.dropped.frames > 0, "full segments are too big");
}

/// Paper 004: at 4 us per frame a sender of 1500-byte packets ends near 3 Gbps, at any round trip. It must get there in
/// slow start, so ACKs that come while it sends must not find an unused window.
#[test]
fn the_processor_limits_the_rate() {
    let fast = LineRate::TEN_GIGABIT;
    let mut net = Network::new();
    let mut config = link(10_000, 64 << 20, Ratio::ZERO);
    config.one_way_delay = PicoDuration::from_ms(25);
    let mut way = || {
        let port = net.add_port(fast, ROOM).expect("a port");
        let link = net.add_link(config, 0).expect("a link");
        vec![port, link]
    };
    let (forward, backward) = (way(), way());
    let mut flow = tcp(Profile::LINUX_2_6_14, Algorithm::Reno, forward, backward);
    flow.sender.cpu_per_frame = PicoDuration::from_us(4);
    flow.receiver.window = 64 << 20;
    let id = net.add_tcp(flow).expect("a flow");
    net.run_until(PicoTime::from_secs(3), &mut Silent);
    let before = net.sender(id).expect("a sender").acknowledged();
    net.run_until(PicoTime::from_secs(4), &mut Silent);
    let second = net.sender(id).expect("a sender").acknowledged() - before;
    // 250,000 frames of 1448 bytes in a second, but for ACKs that came at its ends.
    assert!((358_000_000..=362_010_000).contains(&second), "{second}");
    assert_conserved(net.totals());
}

#[test]
fn what_needs_bytes_is_refused() {
    let mut net = Network::new();
    let mut config = WanConfig::from(link(100, 200_000, Ratio::ZERO));
    config.rewrite = vec![Rewrite::PopTag];
    assert_eq!(net.add_wan(config.clone(), 0), Err(SimError::NeedsBytes));
    config.rewrite.clear();
    let later = WanChange::Rewrite(vec![Rewrite::PopTag]);
    config.schedule.steps = vec![(PicoDuration::from_ms(1), later)];
    assert_eq!(net.add_wan(config, 0), Err(SimError::NeedsBytes));
    let link = net.add_link(link(100, 200_000, Ratio::ZERO), 0).expect("a link");
    let drain = DrainConfig {
        rate: BitRate::from_mbps(1),
        buffer: ROOM,
        pause: None,
        line: LineRate::GIGABIT,
    };
    assert_eq!(net.add_drain(drain, link), Err(SimError::WrongStage(link)));
    assert_eq!(
        net.add_drain(drain, StageId(9)),
        Err(SimError::NoStage(StageId(9)))
    );
}

#[test]
fn what_does_not_fit_is_refused() {
    let mut net = Network::new();
    let port = net.add_port(LineRate::GIGABIT, ROOM).expect("a port");
    let gone = StageId(9);
    let flow = |forward: Vec<StageId>| tcp(Profile::MODERN, Algorithm::Reno, forward, vec![port]);
    assert_eq!(net.add_tcp(flow(vec![])), Err(SimError::Way(0)));
    assert_eq!(net.add_tcp(flow(vec![port, gone])), Err(SimError::NoStage(gone)));
    let id = net.add_tcp(flow(vec![port])).expect("a flow");
    assert_eq!(net.pace_by_window(id), Err(SimError::WrongStage(port)));
    assert_eq!(
        net.pace_by_window(FlowId(5)),
        Err(SimError::NoConnection(FlowId(5)))
    );
    assert_eq!(
        net.set_spacing(port, Spacing::Gap(WireBytes::new(12))),
        Err(SimError::WrongStage(port))
    );
}

proptest! {
    /// The tournament always knows the earliest, and of several the lowest place.
    #[test]
    fn the_queue_gives_the_earliest(
        places in 1usize..40,
        sets in proptest::collection::vec((0usize..40, proptest::option::of(0u64..50)), 1..200),
    ) {
        let mut queue = EventQueue::new(places);
        let mut model = vec![None; places];
        for (place, at) in sets {
            let place = place % places;
            queue.set(place, at.map(PicoTime::from_ps));
            model[place] = at;
            let wanted = model
                .iter()
                .enumerate()
                .filter_map(|(place, at)| at.map(|at| (PicoTime::from_ps(at), place)))
                .min();
            prop_assert_eq!(queue.first(), wanted);
        }
    }

    #[test]
    fn draws_are_below_their_limit(seed: u64, limit in 1u64..) {
        let mut random = Random::new(seed);
        prop_assert!((0..50).all(|_| random.below(limit) < limit));
    }
}
