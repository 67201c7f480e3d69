//! How many frames per second the simulator carries on one core, by its processor time and by the wall clock: on a
//! machine with other work only the first says what a core does.
//!
//! `cargo run --release -p kuroshio-lab --example sim_rate [VIRTUAL_SECONDS]`
//!
//! Counted is every frame emitted by an end, data and ACKs; each passes four stages (TCP) or three
//! (frames by the clock).

use std::time::{Duration, Instant};

use kuroshio_core::{
    pace::Spacing,
    sim::{Network, OnOff, OnOffFlow, Silent, StageId, TcpFlow},
    tcp::{IpVersion, Profile, ReceiverConfig, SenderConfig, Sizes, cc::Algorithm},
    units::{BitRate, FrameBytes, PicoDuration, PicoTime, Ratio},
    wan::{LinkConfig, ShaperConfig},
    wire::LineRate,
};

const QUEUE: FrameBytes = FrameBytes::new(64 << 20);

fn ways(net: &mut Network, shaped: bool) -> (Vec<StageId>, Vec<StageId>) {
    let link = LinkConfig {
        capacity: BitRate::from_mbps(1_000),
        wire: None,
        one_way_delay: PicoDuration::from_ms(100),
        queue_limit: FrameBytes::new(512 << 10),
        loss: Ratio::ZERO,
    };
    let mut way = |shaped: bool| {
        let mut stages = vec![net.add_port(LineRate::GIGABIT, QUEUE)];
        if shaped {
            let config = ShaperConfig {
                line: LineRate::GIGABIT,
                spacing: Spacing::Rate(BitRate::from_mbps(500)),
                queue_limit: QUEUE,
            };
            stages.push(net.add_shaper(config));
        }
        stages.push(net.add_link(link, 0));
        stages.push(net.add_port(LineRate::GIGABIT, QUEUE));
        stages
            .into_iter()
            .collect::<Result<Vec<_>, _>>()
            .expect("four stages")
    };
    (way(shaped), way(false))
}

fn tcp(algorithm: Algorithm, profile: Profile) -> Network {
    let mut net = Network::new();
    let (forward, backward) = ways(&mut net, true);
    let sizes = Sizes::of_mtu(1_500, IpVersion::V4).expect("an MTU");
    net.add_tcp(TcpFlow {
        sender: SenderConfig::new(profile, algorithm, sizes),
        receiver: ReceiverConfig {
            profile,
            window: 12_582_912,
            read_rate: None,
            memory: None,
            mss: sizes.mss,
        },
        forward,
        backward,
    })
    .expect("a flow");
    net
}

fn clocked() -> Network {
    let mut net = Network::new();
    let (forward, _) = ways(&mut net, false);
    net.add_on_off(OnOffFlow {
        source: OnOff {
            start: PicoTime::ZERO,
            end: PicoTime::MAX,
            rate: BitRate::from_mbps(900),
            frame: FrameBytes::new(1_518),
            payload: 1_472,
            on: PicoDuration::ZERO,
            off: PicoDuration::ZERO,
        },
        forward,
    })
    .expect("a flow");
    net
}

/// Processor time of this thread so far (`/proc/thread-self/schedstat`, first number, ns).
fn processor_time() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let ns = text.split_ascii_whitespace().next()?.parse().ok()?;
    Some(Duration::from_nanos(ns))
}

fn measure(name: &str, mut net: Network, end: PicoTime) {
    let (start, before) = (Instant::now(), processor_time());
    net.run_until(end, &mut Silent);
    let wall = start.elapsed();
    let core = processor_time()
        .zip(before)
        .map_or(wall, |(now, before)| now - before);
    let totals = net.totals();
    println!(
        "{name}: {} frames in {:.3} s of a core ({:.3} s by the wall), {:.2} million frames per second per core; dropped {}",
        totals.emitted.frames,
        core.as_secs_f64(),
        wall.as_secs_f64(),
        totals.emitted.frames as f64 / core.as_secs_f64() / 1e6,
        totals.dropped.frames,
    );
}

fn main() {
    let seconds = std::env::args().nth(1).and_then(|s| s.parse().ok()).unwrap_or(60);
    let end = PicoTime::from_secs(seconds);
    measure("frames by the clock", clocked(), end);
    for profile in Profile::ALL {
        for algorithm in Algorithm::ALL {
            let name = format!("{} {}", profile.name, algorithm.name());
            measure(&name, tcp(algorithm, profile), end);
        }
    }
}
