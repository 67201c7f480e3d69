//! Every parameter of a link on real frames: what a host's kernel receives, and what the counters say.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::UdpSocket;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use common::{PATIENCE, connect, in_host, transfer, two_hosts, wait_for};
use kuroshio_core::units::{BitRate, PicoDuration};
use kuroshio_core::wan::{StageCounters, WanChange, setting};
use kuroshio_testbed::{Change, Counters, Testbed, Topology};

fn main() -> ExitCode {
    common::run(&[
        ("copies_arrive_twice", copies_arrive_twice),
        ("frames_overtake_when_they_may", frames_overtake_when_they_may),
        ("damage_is_counted_and_repaired", damage_is_counted_and_repaired),
        ("a_frame_is_lost_by_its_name", a_frame_is_lost_by_its_name),
        (
            "marks_reach_the_receiver_s_kernel",
            marks_reach_the_receiver_s_kernel,
        ),
        (
            "headers_are_rewritten_in_passing",
            headers_are_rewritten_in_passing,
        ),
        (
            "large_packets_are_dropped_and_counted",
            large_packets_are_dropped_and_counted,
        ),
        ("a_slow_card_pauses_its_wire", a_slow_card_pauses_its_wire),
        (
            "a_schedule_and_a_trace_from_the_file",
            a_schedule_and_a_trace_from_the_file,
        ),
        (
            "ten_thousand_changes_lose_no_frame",
            ten_thousand_changes_lose_no_frame,
        ),
    ])
}

const FAST: &str = "capacity = \"500Mbps\"\none_way_delay = \"1ms\"";

fn up(port: &str, link: &str) -> Testbed {
    Testbed::up(&two_hosts(port, link)).expect("up")
}

fn with(link: &str) -> Testbed {
    up(
        "",
        &format!("{FAST}\n{link}\n[link.reverse]\nloss = \"0\"\njitter = \"none\""),
    )
}

fn change(key: &str, value: &str) -> WanChange {
    setting(key, value, &mut |name| Err(name.to_owned())).unwrap_or_else(|e| panic!("{e}"))
}

/// A UDP socket in west, and one in east that is connected to it.
fn pair(tb: &Testbed) -> (UdpSocket, UdpSocket) {
    let sink = in_host(tb, "west", || UdpSocket::bind("10.0.0.2:9").expect("bind"));
    sink.set_read_timeout(Some(PATIENCE)).expect("timeout");
    let source = in_host(tb, "east", || UdpSocket::bind("10.0.0.1:0").expect("bind"));
    source.connect("10.0.0.2:9").expect("connect");
    (source, sink)
}

/// The counters once nothing is held any more.
fn settled(tb: &Testbed) -> Counters {
    let mut counters = tb.counters().expect("counters");
    wait_for("an empty network", || {
        counters = tb.counters().expect("counters");
        counters.held_frames() == 0
    });
    counters
}

fn sea(tb: &Testbed) -> StageCounters {
    settled(tb).link("sea:a>b").expect("the link").stage
}

/// First bytes of the datagrams that wait in a socket.
fn received(sink: &UdpSocket) -> Vec<u8> {
    sink.set_nonblocking(true).expect("nonblocking");
    let mut bytes = [0u8; 2000];
    let mut out = Vec::new();
    loop {
        match sink.recv(&mut bytes) {
            Ok(_) => out.push(bytes[0]),
            Err(e) if e.kind() == ErrorKind::WouldBlock => return out,
            Err(e) => panic!("{e}"),
        }
    }
}

/// Sends datagrams that begin with 0, 1, 2 ... and gives what arrives, in order, once `count` are there.
fn exchange(tb: &Testbed, sent: u8, count: usize) -> Vec<u8> {
    let (source, sink) = pair(tb);
    for id in 0..sent {
        source.send(&[id; 200]).expect("send");
    }
    settled(tb);
    let mut got = Vec::new();
    wait_for("datagrams", || {
        got.extend(received(&sink));
        got.len() >= count
    });
    got
}

fn copies_arrive_twice() {
    let tb = with("duplicate = \"100%\"");
    let got = exchange(&tb, 20, 40);
    let expected: Vec<u8> = (0..20).flat_map(|id| [id, id]).collect();
    assert_eq!(got, expected);
    assert_eq!(sea(&tb).duplicated.frames, sea(&tb).arrived.frames);
}

fn frames_overtake_when_they_may() {
    let tb = with("jitter = \"uniform 900us\"\norder = \"free\"");
    let mut got = exchange(&tb, 100, 100);
    assert!(got.windows(2).any(|w| w[0] > w[1]), "{got:?}");
    got.sort_unstable();
    assert_eq!(got, (0..100).collect::<Vec<u8>>());
    let kept = with("jitter = \"uniform 900us\"");
    assert_eq!(exchange(&kept, 100, 100), (0..100).collect::<Vec<u8>>());
}

fn damage_is_counted_and_repaired() {
    let tb = with("corrupt = \"2% bits 3\"");
    let (from, into) = connect(&tb, "10.0.0.2:5000");
    transfer(from, into, 2_000_000);
    let stage = sea(&tb);
    assert!(stage.corrupted > 10, "{stage:?}");
    assert_eq!(stage.dropped().frames, 0, "{stage:?}");
}

fn a_frame_is_lost_by_its_name() {
    let tb = with("lose = \"flow 2 data 3\"");
    for (to, lost) in [("10.0.0.2:5000", 0), ("10.0.0.2:5001", 1)] {
        let (from, into) = connect(&tb, to);
        transfer(from, into, 200_000);
        assert_eq!(sea(&tb).lost.frames, lost, "{to}");
    }
}

/// Sets a parameter of IPv4 in a host.
fn sysctl(tb: &Testbed, host: &str, key: &str, value: &str) {
    let path = format!("/proc/sys/net/ipv4/{key}");
    let value = value.to_owned();
    in_host(tb, host, move || {
        std::fs::write(&path, &value).unwrap_or_else(|e| panic!("{path} = {value}: {e}"));
    });
}

/// Packets with CE that a host's kernel has received.
fn marks_seen(tb: &Testbed, host: &str, v6: bool) -> u64 {
    in_host(tb, host, move || {
        if v6 {
            let text = std::fs::read_to_string("/proc/thread-self/net/snmp6").expect("snmp6");
            let value = text
                .lines()
                .find_map(|l| l.strip_prefix("Ip6InCEPkts")?.trim().parse().ok());
            return value.expect("a counter");
        }
        let text = std::fs::read_to_string("/proc/thread-self/net/netstat").expect("netstat");
        let lines: Vec<&str> = text.lines().filter(|l| l.starts_with("IpExt")).collect();
        let at = lines[0].split(' ').position(|n| n == "InCEPkts").expect("a name");
        lines[1]
            .split(' ')
            .nth(at)
            .and_then(|v| v.parse().ok())
            .expect("a counter")
    })
}

fn marks_reach_the_receiver_s_kernel() {
    for v6 in [false, true] {
        let link =
            "capacity = \"50Mbps\"\none_way_delay = \"5ms\"\nqueue = \"16MiB\"\naqm = \"codel 2ms 20ms ecn\"";
        let tb = up("", link);
        for host in ["east", "west"] {
            sysctl(&tb, host, "tcp_ecn", "1");
        }
        let (from, into) = connect(&tb, if v6 { "[fd00::2]:5000" } else { "10.0.0.2:5000" });
        rustix::net::sockopt::set_tcp_congestion(&from, "reno").expect("reno");
        transfer(from, into, 5_000_000);
        let stage = sea(&tb);
        let seen = marks_seen(&tb, "west", v6);
        println!(
            "  {} marked, {} seen by the receiver's kernel (v6: {v6})",
            stage.marked, seen
        );
        assert!(stage.marked > 0, "{stage:?}");
        assert_eq!(stage.lost.frames + stage.queue_full.frames, 0, "{stage:?}");
        assert_eq!(seen, stage.marked, "v6: {v6}");
    }
}

fn headers_are_rewritten_in_passing() {
    // A tag that the host does not know keeps frames from it; popped again they arrive.
    let tb = with("rewrite = \"push-vlan 5, pop-vlan, address 10.0.0.1 10.0.0.77\"");
    let (source, sink) = pair(&tb);
    source.send(b"hello").expect("send");
    let mut bytes = [0u8; 100];
    let (len, from) = sink.recv_from(&mut bytes).expect("arrives");
    assert_eq!(
        (&bytes[..len], from.ip().to_string().as_str()),
        (&b"hello"[..], "10.0.0.77")
    );
    tb.apply(&Change::Set("sea:a>b".into(), change("rewrite", "push-vlan 5")))
        .expect("change");
    let before = sea_now(&tb).arrived.frames;
    source.send(b"tagged").expect("send");
    wait_for("the tagged frame", || sea_now(&tb).arrived.frames > before);
    tb.apply(&Change::Set("sea:a>b".into(), change("rewrite", "none")))
        .expect("change");
    settled(&tb);
    source.send(b"plain").expect("send");
    let (len, from) = sink.recv_from(&mut bytes).expect("arrives");
    assert_eq!(
        (&bytes[..len], from.ip().to_string().as_str()),
        (&b"plain"[..], "10.0.0.1")
    );
}

fn large_packets_are_dropped_and_counted() {
    let tb = with("mtu = \"1000B\"");
    let (source, sink) = pair(&tb);
    // 28 bytes of headers: 972 of payload fit.
    for (id, payload) in [(0u8, 973), (1, 972), (2, 1_400)] {
        source.send(&vec![id; payload]).expect("send");
    }
    let mut bytes = [0u8; 2000];
    assert_eq!(sink.recv(&mut bytes).expect("arrives"), 972);
    wait_for("the last frame", || sea_now(&tb).arrived.frames >= 3);
    assert_eq!(sea(&tb).too_big.frames, 2);
    assert!(received(&sink).is_empty());
}

fn a_slow_card_pauses_its_wire() {
    let text = |pause: &str| {
        format!(
            "name = \"slow\"\n[[router]]\nname = \"r\"\n[[host]]\nname = \"east\"\n[[host.port]]\nname = \"e0\"\n\
             address = \"10.0.0.1/24\"\nrouter = \"r\"\n[[host]]\nname = \"west\"\n[[host.port]]\nname = \"w0\"\n\
             address = \"10.0.0.2/24\"\nrouter = \"r\"\ndrain = \"20Mbps\"\ndrain_buffer = \"64KiB\"\n{pause}\n"
        )
    };
    // Asked for and obeyed, not asked for, asked for and dropped as by a switch without flow control.
    for (asked, paused) in [(true, true), (false, false), (true, false)] {
        let marks = match asked {
            true => format!("pause_high = \"40KiB\"\npause_low = \"10KiB\"\nobey_pause = {paused}"),
            false => String::new(),
        };
        let topology = Topology::from_toml(&text(&marks)).expect("topology");
        let tb = Testbed::up(&topology).expect("up");
        let (source, _sink) = pair(&tb);
        for _ in 0..500 {
            source.send(&[1u8; 1_000]).expect("send");
        }
        let sent = |tb: &Testbed| {
            tb.counters()
                .expect("counters")
                .port("east/e0")
                .expect("east")
                .sent
                .frames
        };
        wait_for("what was sent", || sent(&tb) >= 500);
        let counters = settled(&tb);
        let west = counters.port("west/w0").expect("west");
        let drain = west.drain.expect("a drain");
        assert_eq!(drain.queue_full.frames == 0, paused, "{drain:?}");
        assert_eq!(west.pauses_sent > 2, asked, "{}", west.pauses_sent);
        assert_eq!(
            drain.departed.frames,
            west.delivered.frames + west.not_taken.frames
        );
        assert_eq!(counters.dropped_frames(), drain.queue_full.frames);
        assert!(west.delivered.frames >= 60);
        tb.apply(&Change::Drain("west/w0".into(), BitRate::from_mbps(900)))
            .expect("a drain");
        assert!(tb.apply(&Change::Drain("east/e0".into(), BitRate::MIN)).is_err());
    }
}

fn a_schedule_and_a_trace_from_the_file() {
    let folder = std::env::temp_dir().join(format!("kuroshio-wan-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("folder");
    // 12.144 Mbps of full frames: one each ms.
    std::fs::write(folder.join("one.trace"), "1\n2\n3\n").expect("trace");
    let text = "name = \"t\"\n[[router]]\nname = \"a\"\n[[router]]\nname = \"b\"\n[[host]]\nname = \"east\"\n\
        [[host.port]]\nname = \"e0\"\naddress = \"10.0.0.1/24\"\nrouter = \"a\"\n[[host]]\nname = \"west\"\n\
        [[host.port]]\nname = \"w0\"\naddress = \"10.0.0.2/24\"\nrouter = \"b\"\n[[link]]\nname = \"sea\"\n\
        between = [\"a\", \"b\"]\ntrace = \"one.trace\"\none_way_delay = \"1ms\"\n\
        [[link.schedule]]\nat = \"500ms\"\nloss = \"100%\"\nqueue = \"1000 frames\"\n";
    let file = folder.join("topology.toml");
    std::fs::write(&file, text).expect("topology");
    let topology = Topology::from_file(&file);
    std::fs::remove_dir_all(&folder).expect("clean");
    let topology = topology.expect("topology");
    assert_eq!(topology.links[0].directions[0].capacity.bps(), 12_144_000);
    let tb = Testbed::up(&topology).expect("up");
    let (source, sink) = pair(&tb);
    let sent_early = tb.epoch().pico_now() < kuroshio_core::units::PicoTime::from_ms(300);
    for id in 0..40u8 {
        source.send(&[id; 1_472]).expect("send");
    }
    if sent_early && tb.epoch().pico_now() < kuroshio_core::units::PicoTime::from_ms(400) {
        let start = Instant::now();
        settled(&tb);
        assert!(
            start.elapsed() > Duration::from_millis(20),
            "40 frames took {:?}",
            start.elapsed()
        );
        let mut got = 0;
        wait_for("the frames before the loss", || {
            got += received(&sink).len();
            got == 40
        });
    }
    let half = tb.epoch();
    wait_for("the change", || {
        half.pico_now() > kuroshio_core::units::PicoTime::from_ms(501)
    });
    let before = sea(&tb);
    for id in 0..10u8 {
        source.send(&[id; 1_000]).expect("send");
    }
    wait_for("the frames", || {
        sea_now(&tb).arrived.frames >= before.arrived.frames + 10
    });
    assert_eq!(sea(&tb).lost.frames, before.lost.frames + 10);
}

fn ten_thousand_changes_lose_no_frame() {
    let tb = up(
        "",
        "capacity = \"300Mbps\"\none_way_delay = \"2ms\"\nqueue = \"64MiB\"\norder = \"free\"",
    );
    for host in ["east", "west"] {
        sysctl(&tb, host, "tcp_wmem", "4096 65536 4194304");
        sysctl(&tb, host, "tcp_rmem", "4096 131072 4194304");
    }
    let (mut from, mut into) = connect(&tb, "10.0.0.2:5000");
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let stopped = std::sync::Arc::clone(&stop);
    let sender = std::thread::spawn(move || {
        let data = vec![0u8; 1 << 16];
        while !stopped.load(std::sync::atomic::Ordering::Relaxed) {
            from.write_all(&data).expect("send");
        }
    });
    let receiver = std::thread::spawn(move || {
        let mut data = vec![0u8; 1 << 16];
        while into.read(&mut data).expect("receive") > 0 {}
    });
    let values = [
        ("capacity", "200Mbps"),
        ("one_way_delay", "500us"),
        ("jitter", "uniform 200us"),
        ("queue", "60000 frames"),
        ("order", "kept"),
        ("reorder", "1% 300us"),
        ("capacity", "310Mbps l1"),
        ("jitter", "pareto 20us 3"),
        ("one_way_delay", "3ms"),
        ("aqm", "codel 1s 1s"),
        ("duplicate", "0.1%"),
        ("queue", "64MiB"),
        ("jitter", "normal 100us"),
        ("aqm", "drop-tail"),
        ("order", "free"),
        ("hold", "100us"),
        ("loss", "0"),
        ("mtu", "1500B"),
    ];
    let before = sea_now(&tb);
    for n in 0..10_000 {
        let (key, value) = values[n % values.len()];
        tb.apply(&Change::Set("sea".into(), change(key, value)))
            .expect("change");
        if n % 100 == 0 {
            // An answer means that all of these are done: the load goes on between.
            sea_now(&tb);
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    let under_load = sea_now(&tb).departed.frames - before.departed.frames;
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    sender.join().expect("sender");
    receiver.join().expect("receiver");
    let counters = settled(&tb);
    println!("  {under_load} frames passed during 10000 changes");
    assert!(under_load > 1_000, "{under_load}");
    assert_eq!(counters.dropped_frames(), 0, "{counters:#?}");
    for link in &counters.links {
        let s = link.stage;
        assert_eq!(s.arrived.frames + s.duplicated.frames, s.departed.frames, "{s:?}");
    }
    let delay = PicoDuration::from_ms(1);
    assert!(tb.apply(&Change::OneWayDelay("sea".into(), delay)).is_ok());
}

fn sea_now(tb: &Testbed) -> StageCounters {
    let counters = tb.counters().expect("counters");
    counters.link("sea:a>b").expect("the link").stage
}
