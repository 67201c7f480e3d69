//! Switches with real hosts: who is asked for, where it is flooded, what is learned.

mod common;

use std::net::UdpSocket;
use std::process::ExitCode;

use common::{PATIENCE, connect, in_host, pattern, transfer, wait_for};
use kuroshio_testbed::{Counters, Point, Testbed, Topology};

fn main() -> ExitCode {
    common::run(&[
        ("a_tap_shows_what_passes", a_tap_shows_what_passes),
        ("hosts_find_each_other_by_asking", hosts_find_each_other_by_asking),
        (
            "a_broadcast_crosses_each_link_once",
            a_broadcast_crosses_each_link_once,
        ),
        (
            "output_ports_have_rates_and_queues",
            output_ports_have_rates_and_queues,
        ),
    ])
}

/// Three switches in a ring, the link that closes it blocked; a host at each, and one more at the first.
fn ring(west: &str) -> Testbed {
    let text = format!(
        r#"
name = "ring"
[[switch]]
name = "s0"
[[switch]]
name = "s1"
[[switch]]
name = "s2"
[[host]]
name = "east"
[[host.port]]
name = "p"
address = ["10.0.0.1/24", "fd00::1/64"]
switch = "s0"
[[host]]
name = "west"
[[host.port]]
name = "p"
address = ["10.0.0.2/24", "fd00::2/64"]
switch = "s1"
{west}
[[host]]
name = "north"
[[host.port]]
name = "p"
address = ["10.0.0.3/24", "fd00::3/64"]
switch = "s2"
[[host]]
name = "other"
[[host.port]]
name = "p"
address = "10.9.0.1/24"
switch = "s0"
[[link]]
name = "l01"
between = ["s0", "s1"]
capacity = "1Gbps"
one_way_delay = "1ms"
[[link]]
name = "l12"
between = ["s1", "s2"]
capacity = "1Gbps"
one_way_delay = "1ms"
[[link]]
name = "l20"
between = ["s2", "s0"]
capacity = "1Gbps"
one_way_delay = "1ms"
"#
    );
    let topology = Topology::from_toml(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    Testbed::up(&topology).expect("up")
}

fn settled(tb: &Testbed) -> Counters {
    let mut counters = tb.counters().expect("counters");
    wait_for("an empty network", || {
        counters = tb.counters().expect("counters");
        counters.held_frames() == 0
    });
    counters
}

fn hosts_find_each_other_by_asking() {
    let tb = ring("");
    // Nobody was told an address: without flooding this never connects.
    for to in ["10.0.0.2:5000", "[fd00::2]:5001"] {
        let (from, into) = connect(&tb, to);
        transfer(from, into, 1_000_000);
    }
    let neighbours = in_host(&tb, "east", || {
        std::fs::read_to_string("/proc/thread-self/net/arp").expect("arp")
    });
    // The third column: complete, and not permanent (0x6).
    assert!(
        neighbours
            .lines()
            .any(|l| l.starts_with("10.0.0.2 ") && l.contains(" 0x2 ")),
        "{neighbours}"
    );
    let counters = settled(&tb);
    assert!(counters.flooded.frames > 0 && counters.not_flooded.frames == 0);
    let idle: Vec<&str> = counters
        .links
        .iter()
        .filter(|l| l.stage.arrived.frames == 0)
        .map(|l| &*l.name)
        .collect();
    assert_eq!(idle, ["l20:s2>s0", "l20:s0>s2"], "the loop is blocked");
    // What is sent to one host goes to no other.
    let bytes = |name: &str| counters.port(name).expect("port").delivered.bytes.get();
    assert!(bytes("west/p") > 2_000_000 && bytes("north/p") < 100_000 && bytes("other/p") < 100_000);
}

fn a_broadcast_crosses_each_link_once() {
    let tb = ring("");
    let sockets: Vec<UdpSocket> = ["east", "west", "north"]
        .into_iter()
        .map(|h| {
            let socket = in_host(&tb, h, || UdpSocket::bind("0.0.0.0:9").expect("bind"));
            socket.set_broadcast(true).expect("broadcast");
            socket.set_read_timeout(Some(PATIENCE)).expect("timeout");
            socket
        })
        .collect();
    tb.trace_start(1 << 12).expect("trace");
    sockets[0].send_to(&pattern(700), "10.0.0.255:9").expect("send");
    let mut buffer = [0; 2000];
    for socket in &sockets[1..] {
        let (len, from) = socket.recv_from(&mut buffer).expect("the broadcast");
        assert_eq!((len, from.to_string()), (700, "10.0.0.1:9".into()));
    }
    settled(&tb);
    let trace = tb.trace_stop().expect("trace");
    let at = |point| {
        trace
            .records
            .iter()
            .filter(move |r| r.point == point && r.payload_len == 700)
            .map(|r| r.at)
    };
    let count = |point| at(point).count();
    let link = |name| tb.topology().link_numbers(name)[0] as u16;
    // One copy on each link away from the sender, none back; one at each port but its own.
    assert_eq!(count(Point::LinkIn(link("l01:s0>s1"))), 1);
    assert_eq!(count(Point::LinkIn(link("l12:s1>s2"))), 1);
    let other = ["l01:s1>s0", "l12:s2>s1", "l20:s2>s0", "l20:s0>s2"];
    assert!(
        other
            .into_iter()
            .all(|name| count(Point::LinkIn(link(name))) == 0)
    );
    assert_eq!([0, 1, 2, 3].map(|p| count(Point::PortOut(p))), [0, 1, 1, 1]);
    // Each switch passes it on at the moment at which it is in: 1 ms and its own time on the link.
    let [near, far] = ["l01:s0>s1", "l12:s1>s2"].map(|l| at(Point::LinkIn(link(l))).next().expect("one"));
    assert_eq!((far - near).as_ps(), 1_000_000_000 + 746 * 8_000);
}

fn output_ports_have_rates_and_queues() {
    let tb = ring("wire = \"100Mbps\"\nqueue = \"64MiB\"\negress_queue = \"20KiB\"");
    let sink = in_host(&tb, "west", || UdpSocket::bind("10.0.0.2:9").expect("bind"));
    let source = in_host(&tb, "east", || UdpSocket::bind("10.0.0.1:0").expect("bind"));
    source.connect("10.0.0.2:9").expect("connect");
    source.send(b"who has it").expect("send");
    sink.set_read_timeout(Some(PATIENCE)).expect("timeout");
    sink.recv(&mut [0; 16]).expect("found");
    let data = pattern(1400);
    for _ in 0..200 {
        source.send(&data).expect("send");
    }
    let counters = settled(&tb);
    let egress = counters.port("west/p").expect("port").egress;
    assert!(egress.queue_full.frames > 0, "1 Gbps into 100 Mbps and 20 KiB");
    assert!(egress.queued_max.get() <= 20 << 10 && egress.queued_max.get() > (20 << 10) - 1500);
    assert_eq!(
        egress.arrived.frames,
        egress.departed.frames + egress.queue_full.frames
    );
}

fn a_tap_shows_what_passes() {
    for mode in ["frame", "segment"] {
        let text = format!(
            r#"
name = "tapped"
mode = "{mode}"
[[router]]
name = "a"
[[router]]
name = "b"
[[host]]
name = "east"
[[host.port]]
name = "p"
address = "10.0.0.1/24"
router = "a"
[[host]]
name = "west"
[[host.port]]
name = "p"
address = "10.0.0.2/24"
router = "b"
[[host]]
name = "monitor"
[[link]]
name = "sea"
between = ["a", "b"]
capacity = "1Gbps"
one_way_delay = "1ms"
[[tap]]
name = "m0"
host = "monitor"
at = "sea:a>b"
[[tap]]
name = "m1"
host = "monitor"
at = "east/p"
"#
        );
        let topology = Topology::from_toml(&text).unwrap_or_else(|e| panic!("{e}"));
        let tb = Testbed::up(&topology).expect("up");
        // What a program in the monitor's namespace sees there, with its headers.
        let mut seen = in_host(&tb, "monitor", || {
            kuroshio_port::Capture::open_here("m0").expect("capture")
        });
        let (from, into) = connect(&tb, "10.0.0.2:5000");
        transfer(from, into, 1_000_000);
        let counters = settled(&tb);
        let [m0, m1] = [0, 1].map(|t| (counters.taps[t].shown, counters.taps[t].not_shown.frames));
        assert_eq!(m0, (counters.link("sea:a>b").expect("link").stage.departed, 0));
        let east = counters.port("east/p").expect("port");
        assert_eq!(
            m1.0.frames,
            east.wire.departed.frames + east.egress.departed.frames
        );
        let (mut payload, mut longest) = (0, 0);
        wait_for("the copies", || {
            seen.drain(|s| {
                payload += u64::from(s.seen.payload_len);
                longest = longest.max(s.seen.payload_len);
            });
            payload >= 1_000_000
        });
        assert_eq!(longest, 1448, "single segments");
    }
}
