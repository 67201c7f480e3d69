//! Generated traffic across an emulated network: gaps exact to the byte, figures of known impairments, capacity.

#[path = "../../testbed/tests/common/mod.rs"]
mod common;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kuroshio_clock::Watch;
use kuroshio_core::capacity::{CapacityConfig, Outcome};
use kuroshio_core::traffic::{Pattern, Sizes, Timing};
use kuroshio_core::units::{BitRate, FrameBytes, PicoDuration};
use kuroshio_core::wire::LineRate;
use kuroshio_gen::{CapacityReport, RunResult, Server, Session, find_capacity};
use kuroshio_testbed::{Point, Testbed};

use common::{in_host, spawn, two_hosts};

fn main() -> ExitCode {
    common::run(&[
        ("gaps_behind_a_shaper_are_exact", gaps_behind_a_shaper_are_exact),
        ("streams_are_shaped_apart", streams_are_shaped_apart),
        (
            "impairments_are_seen_as_they_are",
            impairments_are_seen_as_they_are,
        ),
        ("raw_frames_arrive", raw_frames_arrive),
        ("gap_frames_keep_the_wire_full", gap_frames_keep_the_wire_full),
        ("capacity_is_found", capacity_is_found),
    ])
}

/// Runs `work` in east against a receiver in west.
fn between<T: Send + 'static>(tb: &Testbed, work: impl FnOnce(SocketAddr) -> T + Send + 'static) -> T {
    let (server, at, stop) = in_host(tb, "west", || {
        let listen: SocketAddr = "10.0.0.2:0".parse().expect("an address");
        let server = Server::bind(listen, false, Arc::new(|_, _| {})).expect("a receiver");
        let (at, stop) = (server.address().expect("its address"), server.stopper());
        (server, at, stop)
    });
    let serving = spawn(tb, "west", move || server.serve());
    let result = spawn(tb, "east", move || work(at)).join();
    stop.store(true, Ordering::Release);
    let served = serving
        .join()
        .expect("the receiver's thread")
        .expect("entering west");
    served.expect("served");
    result.expect("the sender's thread").expect("entering east")
}

fn pattern(timing: Timing, frames: u64) -> Pattern {
    Pattern {
        timing,
        sizes: Sizes::Fixed(FrameBytes::new(1_518)),
        streams: 2,
        seed: 1,
        time: None,
        frames: Some(frames),
    }
}

fn run(tb: &Testbed, pattern: Pattern, raw: Option<&'static str>) -> RunResult {
    between(tb, move |at| {
        let raw = raw.map(|mac| ("e0", mac));
        let mut session = Session::connect(at, 2, raw).expect("a session");
        session.run(pattern, &AtomicBool::new(false)).expect("a run")
    })
}

/// A shaper with a gap of 1510 bytes on a gigabit: 500 Mbps of 1518. Frames come faster, so they wait for it.
fn gaps_behind_a_shaper_are_exact() {
    let link = "capacity = \"900Mbps\"\none_way_delay = \"1ms\"";
    let tb = Testbed::up(&two_hosts("wire = \"1Gbps\"\ngap = \"1510B\"", link)).expect("up");
    tb.trace_start(20_000).expect("a trace");
    let result = run(&tb, pattern(Timing::Rate(BitRate::from_mbps(800)), 2_000), None);
    let trace = tb.trace_stop().expect("the trace");
    assert_eq!(trace.lost, 0);
    let lost: u64 = result.received.streams.iter().map(|s| s.lost_frames).sum();
    assert_eq!(lost, result.received.receiver_dropped_frames);
    let times = |point: Point| -> Vec<(u64, u32)> {
        let at = trace
            .records
            .iter()
            .filter(|r| r.point == point && r.from_port == 0);
        at.map(|r| (r.at.as_ps(), r.frame_len)).collect()
    };
    let (arrivals, departures, far) = (
        times(Point::ShaperIn(0)),
        times(Point::LinkIn(0)),
        times(Point::PortOut(1)),
    );
    assert!(arrivals.len() >= 2_000 && departures.len() == arrivals.len() && far.len() == arrivals.len());
    // Eight ns for each byte of preamble, frame and gap, to the picosecond.
    let (mut free, mut waited) = (0, 0);
    for (n, ((at, len), (left, _))) in arrivals.iter().zip(&departures).enumerate() {
        let len = u64::from(*len).max(64);
        let start = free.max(*at);
        assert_eq!(*left, start + (8 + len) * 8_000, "frame {n}");
        waited += u64::from(start > *at);
        free = start + (8 + len + 1_510) * 8_000;
    }
    assert!(waited > 0, "no frame had to wait for its gap");
    // At the far port each frame that waited is one frame and its gap behind the one before it.
    let exact = (8 + 1_518 + 1_510) * 8_000;
    let gaps = |list: &[(u64, u32)]| -> Vec<u64> {
        let pairs = list.windows(2).filter(|w| w.iter().all(|(_, len)| *len == 1_518));
        pairs.map(|w| w[1].0 - w[0].0).collect()
    };
    let (at_shaper, at_far) = (gaps(&departures), gaps(&far));
    assert!(at_far.iter().all(|gap| *gap >= exact), "a gap below {exact} ps");
    let count = |gaps: &[u64]| gaps.iter().filter(|gap| **gap == exact).count();
    assert_eq!(count(&at_far), count(&at_shaper));
    println!(
        "  {} of {} gaps at the far port are {exact} ps",
        count(&at_far),
        at_far.len()
    );
}

/// Two streams of one port, told by their ports, at 100 and 150 of a ceiling of 200 Mbps: at the router's input neither is
/// above its rate nor their sum above the ceiling, in any window longer than a frame.
fn streams_are_shaped_apart() {
    let port = "wire = \"1Gbps\"\nshape = [{ stream = \"udp and dst port 7001\", rate = \"100Mbps\" }, \
                { stream = \"udp and dst port 7002\", rate = \"150Mbps\" }]\nceiling = \"200Mbps\"";
    let tb = Testbed::up(&two_hosts(
        port,
        "capacity = \"900Mbps\"\none_way_delay = \"1ms\"",
    ))
    .expect("up");
    tb.trace_start(20_000).expect("a trace");
    in_host(&tb, "east", || {
        let socket = std::net::UdpSocket::bind("10.0.0.1:0").expect("a socket");
        let payload = [0; 1_472];
        for _ in 0..1_000 {
            for port in [7_001, 7_002] {
                // Nobody listens, which an ICMP error may tell.
                let _ = socket.send_to(&payload, ("10.0.0.2", port));
            }
        }
    });
    let held = || tb.counters().expect("counters").held_frames();
    let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while held() > 0 {
        assert!(std::time::Instant::now() < end, "frames are held");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let trace = tb.trace_stop().expect("the trace");
    assert_eq!(trace.lost, 0);
    let starts = |ports: &[u16]| -> Vec<(i128, i128)> {
        let at = trace
            .records
            .iter()
            .filter(|r| r.point == Point::LinkIn(0) && r.from_port == 0);
        // Arrival at the link is the end of the frame; its start is preamble and frame before that.
        at.filter(|r| ports.is_empty() || ports.contains(&r.dst_port))
            .map(|r| {
                let len = i128::from(r.frame_len.max(64));
                (i128::from(r.at.as_ps()) - (8 + len) * 8_000, len)
            })
            .collect()
    };
    for (ports, rate_bps) in [
        (&[7_001][..], 100_000_000),
        (&[7_002], 150_000_000),
        (&[], 200_000_000),
    ] {
        let list = starts(ports);
        // The interface's queue holds 1,000 frames of both while the emulator waits for its turn.
        assert!(list.len() >= 250, "{} frames of {ports:?}", list.len());
        let (mut highest, mut before) = (i128::MIN, 0);
        for (at, len) in list {
            // The share of the time up to a frame less what was sent before it: falls by a frame at most.
            let room = rate_bps * at - before;
            highest = highest.max(room);
            assert!(room + rate_bps >= highest, "{ports:?} above {rate_bps} bit/s");
            before += len * 8_000_000_000_000;
        }
    }
}

/// Every 10th frame lost, two milliseconds of delay: both are seen.
fn impairments_are_seen_as_they_are() {
    let link =
        "capacity = \"1Gbps\"\none_way_delay = \"2ms\"\nloss = \"every 10\"\n[link.reverse]\nloss = \"0\"";
    let tb = Testbed::up(&two_hosts("", link)).expect("up");
    let dropped = || {
        let counters = tb.counters().expect("counters");
        counters.links.iter().map(|l| l.stage.lost.frames).sum::<u64>()
    };
    let slow = Timing::Interval(PicoDuration::from_us(200));
    let result = run(&tb, pattern(slow, 1_000), None);
    let received: Vec<_> = result.received.streams.iter().collect();
    let lost: u64 = received.iter().map(|s| s.lost_frames).sum();
    // The connection's own segments are counted and lost too, which are few.
    assert!((90..=100).contains(&lost) && lost <= dropped(), "{lost} lost");
    for stream in received {
        // Two milliseconds and the wires; the machine may add to that, not take from it.
        assert!(stream.one_way_delay_us["min"] >= 2_000.0, "{stream:?}");
        assert_eq!(stream.reordered_frames, 0);
    }
}

fn raw_frames_arrive() {
    let tb = Testbed::up(&two_hosts("", "capacity = \"1Gbps\"\none_way_delay = \"1ms\"")).expect("up");
    let mac = west_mac(&tb);
    let slow = Timing::Interval(PicoDuration::from_us(200));
    let result = run(&tb, pattern(slow, 200), Some(Box::leak(mac.into_boxed_str())));
    let arrived: u64 = result.received.streams.iter().map(|s| s.received_frames).sum();
    assert_eq!(
        arrived + result.received.receiver_dropped_frames,
        200,
        "{:?}",
        result.received
    );
}

/// 50 Mbps of 1518 on a wire of 100 Mbps: each frame owns 3036 bytes of it, 1538 its own, the rest one gap frame. The wire
/// keeps the distance to the byte; the router drops what fills it.
///
/// A machine that stands still for longer than the port's queue holds (84 ms) lets the sender catch up in a burst, of
/// which the port drops: such a run is made again.
fn gap_frames_keep_the_wire_full() {
    let runs = (0..5).take_while(|_| !wire_is_kept_full()).count();
    assert!(runs < 5, "frames were dropped in each of five runs");
}

/// Whether the port took all frames in time; then what must hold is checked.
fn wire_is_kept_full() -> bool {
    let port = "wire = \"100Mbps\"\nqueue = \"1MiB\"";
    let link = "capacity = \"200Mbps\"\none_way_delay = \"1ms\"";
    let tb = Testbed::up(&two_hosts(port, link)).expect("up");
    let to: &'static str = Box::leak(west_mac(&tb).into_boxed_str());
    let before = tb.counters().expect("counters");
    tb.trace_start(20_000).expect("a trace");
    let result = between(&tb, move |at| {
        let mut session = Session::connect(at, 2, Some(("e0", to))).expect("a session");
        let wire = LineRate::new(BitRate::from_mbps(100));
        session.fill("e0", wire).expect("raw");
        let rate = Timing::Rate(BitRate::from_mbps(50));
        session
            .run(pattern(rate, 2_000), &AtomicBool::new(false))
            .expect("a run")
    });
    let trace = tb.trace_stop().expect("the trace");
    let after = tb.counters().expect("counters");
    let sent = result.sent;
    let port = after.port("east/e0").expect("port");
    if port.wire.dropped().frames > 0 {
        println!("  {} frames dropped at the port", port.wire.dropped().frames);
        return false;
    }
    assert_eq!((sent.frames, sent.not_sent), (2_000, 0));
    assert_eq!(
        (sent.gap_frames, sent.gap_bytes),
        (1_999, 1_999 * (3_036 - 1_538 - 20))
    );
    let gaps = |c: &kuroshio_testbed::Counters| c.port("east/e0").expect("port").gaps_received;
    assert_eq!(gaps(&after).frames - gaps(&before).frames, sent.gap_frames);
    assert_eq!(port.pauses_received.frames, 0);
    let arrived: u64 = result.received.streams.iter().map(|s| s.received_frames).sum();
    assert_eq!(arrived + result.received.receiver_dropped_frames, 2_000);
    // At the router, in bytes of the wire; gap frames are gone there. Others, of TCP and ARP, delay some of ours.
    let all: Vec<_> = trace
        .records
        .iter()
        .filter(|r| r.point == Point::LinkIn(0) && r.from_port == 0)
        .collect();
    assert!(all.iter().all(|r| r.payload_len > 0 || r.frame_len < 1_518));
    let pairs = all.windows(2).filter(|w| w.iter().all(|r| r.frame_len == 1_518));
    let distances: Vec<u64> = pairs
        .map(|w| (w[1].at.as_ps() - w[0].at.as_ps()) / 80_000)
        .collect();
    let exact = distances.iter().filter(|d| **d == 3_036).count();
    println!(
        "  {exact} of {} distances are 3036 bytes, {} gap frames, {} late by more than the queue holds",
        distances.len(),
        sent.gap_frames,
        sent.gaps_late
    );
    assert!(distances.len() > 1_900);
    // What was later than the queue holds has moved what follows; with nothing late all are exact.
    assert!(
        distances.len() - exact <= 2 * sent.gaps_late as usize + 20,
        "{distances:?}"
    );
    assert!(distances.iter().all(|d| *d >= 1_538));
    true
}

/// The address that east's neighbour table has for west.
fn west_mac(tb: &Testbed) -> String {
    let table = in_host(tb, "east", || {
        std::fs::read_to_string("/proc/thread-self/net/arp")
    });
    let table = table.expect("the table");
    let line = table
        .lines()
        .find(|l| l.starts_with("10.0.0.2 "))
        .expect("west is a neighbour");
    line.split_whitespace().nth(3).expect("its address").to_owned()
}

fn search(capacity: &str, frame: u64, max_mbps: u32) -> CapacityReport {
    let port = |name: &str, address: &str, router: &str| {
        format!(
            "[[host]]\nname = \"{name}\"\n[[host.port]]\nname = \"{name}0\"\nwire = \"10Gbps\"\nmtu = \"9000B\"\n\
             address = [\"{address}/24\"]\nrouter = \"{router}\"\n"
        )
    };
    let (east, west) = (port("east", "10.0.0.1", "a"), port("west", "10.0.0.2", "b"));
    let text = format!(
        "name = \"two\"\n[[router]]\nname = \"a\"\n[[router]]\nname = \"b\"\n{east}{west}\
         [[link]]\nname = \"sea\"\nbetween = [\"a\", \"b\"]\ncapacity = \"{capacity}\"\n\
         one_way_delay = \"5ms\"\nqueue = \"1MiB\"\n"
    );
    let topology = kuroshio_testbed::Topology::from_toml(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let tb = Testbed::up(&topology).expect("up");
    between(&tb, move |at| {
        let mut session = Session::connect(at, 1, None).expect("a session");
        let mut config = CapacityConfig::new(
            FrameBytes::new(frame),
            BitRate::from_mbps(1),
            BitRate::from_mbps(max_mbps),
        );
        config.train_time = PicoDuration::from_ms(500);
        find_capacity(&mut session, config, &AtomicBool::new(false), &mut |_| {}).expect("a search")
    })
}

/// Within 0.5 % when the machine was not disturbed: of three searches, one that was not must be right, and one
/// that was may only say that it knows nothing or less.
fn capacity_is_found() {
    for (capacity, mbps, frame, max_mbps) in [
        ("100Mbps", 100u32, 1_518, 5_000),
        ("2340Mbps", 2_340, 9_018, 6_000),
    ] {
        let truth = u64::from(mbps) * 1_000_000;
        let mut told = Vec::new();
        let right = (0..3).any(|_| {
            let watch = Watch::start(None, &[]).expect("witnesses");
            let report = search(capacity, frame, max_mbps);
            let disturbed = watch.report().verdict(&kuroshio_clock::Limits::default());
            println!("  {capacity}: {} (disturbed: {disturbed:?})", report.sentence());
            let found = report.capacity().map_or(0, |(rate, _)| rate.bps());
            let right = found.abs_diff(truth) <= truth / 200;
            assert!(
                report.verdict.outcome != Outcome::AtLeast
                    || report.verdict.clear.is_some_and(|r| r.bps() <= truth * 201 / 200),
                "{}",
                report.to_json()
            );
            told.push((right, disturbed.is_some()));
            right
        });
        let calm = told.iter().any(|(_, disturbed)| !disturbed);
        assert!(right || !calm, "{capacity}: no search was right: {told:?}");
    }
}
