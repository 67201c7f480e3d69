//! Segment mode with real TCP: superframes in and out, every segment accounted for alone.

mod common;

use std::process::ExitCode;

use common::{connect, in_host, transfer, wait_for};
use kuroshio_testbed::{Counters, Direction, Fate, FlowKey, Mode, Point, Testbed, Topology, TraceRecord};

fn main() -> ExitCode {
    common::run(&[
        (
            "a_transfer_is_intact_and_conserved",
            a_transfer_is_intact_and_conserved,
        ),
        ("the_named_segment_alone_is_lost", the_named_segment_alone_is_lost),
        (
            "a_capacity_holds_and_groups_are_small",
            a_capacity_holds_and_groups_are_small,
        ),
        ("impaired_segments_are_noticed", impaired_segments_are_noticed),
    ])
}

/// Two hosts as those of `common`, in segment mode, with a wire of 10 Gbps.
fn up(mtu: &str, link: &str) -> Testbed {
    let text = format!(
        r#"
name = "super"
mode = "segment"
quantum = "50us"
[[router]]
name = "a"
[[router]]
name = "b"
[[host]]
name = "east"
[[host.port]]
name = "e0"
address = ["10.0.0.1/24", "fd00::1/64"]
router = "a"
wire = "10Gbps"
mtu = "{mtu}"
[[host]]
name = "west"
[[host.port]]
name = "w0"
address = ["10.0.0.2/24", "fd00::2/64"]
router = "b"
wire = "10Gbps"
mtu = "{mtu}"
[[link]]
name = "sea"
between = ["a", "b"]
{link}
"#
    );
    let topology = Topology::from_toml(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    assert_ne!(topology.mode, Mode::Frame);
    Testbed::up(&topology).expect("up")
}

/// The counters once nothing is held any more, checked for conservation at every place.
fn settled(tb: &Testbed) -> Counters {
    let mut counters = tb.counters().expect("counters");
    wait_for("an empty network", || {
        counters = tb.counters().expect("counters");
        counters.held_frames() == 0
    });
    for port in &counters.ports {
        let entered = port.unrouted.frames + port.no_memory.frames + port.wire.arrived.frames;
        assert_eq!(port.sent.frames, entered, "{}", port.name);
        assert_eq!(port.egress.departed, port.delivered, "{}", port.name);
        assert_eq!(port.not_taken.frames, 0);
    }
    for link in &counters.links {
        let s = link.stage;
        let out = s.departed.frames + s.dropped().frames;
        assert_eq!(s.arrived.frames + s.duplicated.frames, out, "{}", link.name);
    }
    counters
}

fn data(records: &[TraceRecord]) -> impl Iterator<Item = &TraceRecord> {
    records.iter().filter(|r| r.payload_len > 0)
}

fn a_transfer_is_intact_and_conserved() {
    for (mtu, to) in [("1500B", "10.0.0.2:5000"), ("9000B", "[fd00::2]:5001")] {
        let tb = up(
            mtu,
            "capacity = \"2Gbps\"\none_way_delay = \"1ms\"\nqueue = \"64MiB\"",
        );
        let capture = tb.capture(&["east/e0", "west/w0"]).expect("capture");
        let (from, into) = connect(&tb, to);
        transfer(from, into, 8_000_000);
        let counters = settled(&tb);
        assert_eq!(counters.dropped_frames(), 0);
        let captured = capture.stop().expect("capture");
        assert_eq!(captured.missed, 0);
        let most = if mtu == "1500B" { 1518 } else { 9018 };
        let at = |port, direction| {
            captured
                .records
                .iter()
                .filter(move |r| r.port == port && r.direction == direction)
        };
        // The host did give superframes and was given such: the same segments, the same bytes at the level of frames.
        let mut totals = Vec::new();
        for (port, direction) in [(0, Direction::Out), (1, Direction::In)] {
            let sent = at(port, direction).filter(|r| r.payload_len > 0 && captured.flow(r).is_some_and(tcp));
            let big = sent.clone().filter(|r| r.frame_len > most).count();
            assert!(big > 0, "{mtu}: no superframes at port {port}");
            let frame_bytes: u64 = sent.clone().map(|r| u64::from(r.frame_len)).sum();
            let payload: u64 = sent.map(|r| u64::from(r.payload_len)).sum();
            // More when a host sends something again.
            assert!(payload >= 8_000_000);
            totals.push((frame_bytes, payload));
        }
        assert_eq!(totals[0], totals[1]);
    }
}

fn tcp(flow: &FlowKey) -> bool {
    flow.protocol == 6
}

fn the_named_segment_alone_is_lost() {
    let tb = up(
        "1500B",
        "capacity = \"1Gbps\"\none_way_delay = \"2ms\"\nlose = \"flow 1 data 3\"",
    );
    tb.trace_start(1 << 16).expect("trace");
    let (from, into) = connect(&tb, "10.0.0.2:5000");
    transfer(from, into, 500_000);
    let counters = settled(&tb);
    let trace = tb.trace_stop().expect("trace");
    let sea = tb.topology().link_numbers("sea:a>b")[0] as u16;
    let lost: Vec<u64> = counters.links.iter().map(|l| l.stage.lost.frames).collect();
    assert_eq!(lost, [1, 0], "one segment, not the superframe around it");
    assert_eq!(counters.links[0].stage.lost.bytes.get(), 1518);
    assert_eq!(trace.lost, 0);
    // All three of the first segments came in one superframe: at one time.
    let entered: Vec<&TraceRecord> = data(&trace.records)
        .filter(|r| r.point == Point::PortIn(0))
        .collect();
    assert!(
        entered.len() > 3
            && entered
                .windows(3)
                .any(|w| w[0].at == w[1].at && w[1].at == w[2].at)
    );
    let into_link: Vec<&TraceRecord> = data(&trace.records)
        .filter(|r| r.point == Point::LinkIn(sea))
        .collect();
    let out_of_link = data(&trace.records)
        .filter(|r| r.point == Point::LinkOut(sea))
        .count();
    assert_eq!(into_link.len(), out_of_link + 1);
    // What came out is what went in, later by the same time, and without the third.
    let out: Vec<&TraceRecord> = data(&trace.records)
        .filter(|r| r.point == Point::LinkOut(sea))
        .collect();
    assert!(out[1].at < out[2].at);
    let second_to_fourth = out[2].at - out[1].at;
    // Two frames of 1518 bytes at 1 Gbps: 24.288 us. Never less, and the same when they were queued.
    assert!(second_to_fourth.as_ns() >= 24_288, "{second_to_fourth}");
    assert!(trace.records.iter().all(|r| r.fate == Fate::Passed));
}

fn a_capacity_holds_and_groups_are_small() {
    let tb = up(
        "1500B",
        "capacity = \"500Mbps\"\none_way_delay = \"2ms\"\nqueue = \"64MiB\"",
    );
    let capture = tb.capture(&["west/w0"]).expect("capture");
    tb.trace_start(1 << 17).expect("trace");
    let (from, into) = connect(&tb, "10.0.0.2:5000");
    transfer(from, into, 12_000_000);
    settled(&tb);
    let trace = tb.trace_stop().expect("trace");
    let captured = capture.stop().expect("capture");
    assert_eq!((captured.missed, trace.lost), (0, 0));
    // Segments leave the link at the capacity, exactly: those that queue, back to back.
    let out: Vec<&TraceRecord> = data(&trace.records)
        .filter(|r| r.point == Point::LinkOut(0))
        .collect();
    let gaps: Vec<u64> = out
        .windows(2)
        .filter(|w| w[1].frame_len == 1518)
        .map(|w| (w[1].at - w[0].at).as_ps())
        .collect();
    let exact = 1518 * 8 * 2_000;
    assert!(gaps.iter().all(|g| *g >= exact), "{:?}", gaps.iter().min());
    let queued = gaps.iter().filter(|g| **g == exact).count();
    assert!(queued > gaps.len() / 2, "{queued} of {}", gaps.len());
    // 50 us at 500 Mbps: two frames of 24.3 us and the one that opens the group, never 64 KB at once.
    let largest = captured
        .records
        .iter()
        .filter(|r| r.direction == Direction::In)
        .map(|r| r.frame_len)
        .max();
    assert_eq!(largest, Some(3 * 1518));
}

fn impaired_segments_are_noticed() {
    let tb = up(
        "1500B",
        "capacity = \"1Gbps\"\none_way_delay = \"1ms\"\ncorrupt = \"1%\"\nduplicate = \"1%\"\nloss = \"1%\"\nreorder = \"1% 1ms\"",
    );
    let (from, into) = connect(&tb, "[fd00::2]:5000");
    // TCP's checksum finds every damaged segment, or the content would not be the same.
    transfer(from, into, 4_000_000);
    let counters = settled(&tb);
    let stage = counters.links[0].stage;
    assert!(stage.corrupted > 0 && stage.lost.frames > 0 && stage.duplicated.frames > 0);
    let errors = in_host(&tb, "west", || {
        std::fs::read_to_string("/proc/thread-self/net/snmp").expect("snmp")
    });
    let tcp: Vec<&str> = errors.lines().filter(|l| l.starts_with("Tcp:")).collect();
    let names = tcp[0].split_whitespace().zip(tcp[1].split_whitespace());
    let (_, wrong) = names
        .clone()
        .find(|(name, _)| *name == "InCsumErrors")
        .expect("counted");
    assert!(wrong.parse::<u64>().expect("a number") > 0, "{errors}");
}
