//! Runs in virtual time: conservation, replay, exactness, and the shape of what TCP does.

use kuroshio_core::{
    pace::Spacing,
    sim::{
        EventQueue, FlowId, Meter, Network, OnOff, OnOffFlow, PauseRule, Random, Silent, SimError, StageId,
        TcpFlow, Totals,
    },
    tcp::{IpVersion, Profile, ReceiverConfig, SenderConfig, Sizes, cc::Algorithm},
    units::{BitRate, FrameBytes, PicoDuration, PicoTime, Ratio, WireBytes},
    wan::{LinkConfig, ShaperConfig},
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
        delivered,
        dropped,
        held,
    } = totals;
    assert!(emitted.frames > 0);
    assert_eq!(emitted.frames, delivered.frames + dropped.frames + held.frames);
    assert_eq!(emitted.bytes, delivered.bytes + dropped.bytes + held.bytes);
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

/// Three streams of 600 Mbps into a port of 1 Gbps: with and without PAUSE towards the stage before.
#[test]
fn pause_keeps_a_port_from_overflowing() {
    for paused in [false, true] {
        let mut net = Network::new();
        let port = net.add_port(LineRate::GIGABIT, ROOM).expect("a port");
        let drain = net
            .add_link(link(500, 200_000, Ratio::ZERO), 0)
            .expect("a receiver that drains 500 Mbps");
        if paused {
            net.add_pause(PauseRule {
                watch: drain,
                high: FrameBytes::new(100_000),
                hold: port,
                time: PicoDuration::from_us(500),
            })
            .expect("a port");
        }
        let mut flow = on_off(vec![port, drain]);
        flow.source.rate = BitRate::from_mbps(800);
        flow.source.off = PicoDuration::ZERO;
        net.add_on_off(flow).expect("a flow");
        net.run_until(PicoTime::from_secs(1), &mut Silent);
        assert_conserved(net.totals());
        assert_eq!(net.totals().dropped.frames == 0, paused);
        assert_eq!(net.pauses_sent() > 0, paused);
    }
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
