//! The emulator's figures on this machine: lateness, exact capacities, frames per second, segment mode.
//!
//! `cargo run --release -p kuroshio-testbed --example figures -- [--quick] [--json] [CASE...]`
//!
//! | case | what runs |
//! |---|---|
//! | `both-1g` | 1500-byte packets both ways at once on wires of 1 Gbps (L1), 100 ms each way, 60 s, offered at that rate |
//! | `both-700m` | the same at 700 Mbps (frame level) |
//! | `tcp-both-1g`, `tcp-both-700m` | TCP in place of them: its acknowledgements come in bursts of thousands of 64-byte frames, 1.5 million a second |
//! | `cap-10m`, `cap-100m`, `cap-500m`, `cap-1000m` | one way through that capacity, measured at the far port |
//! | `frames-1500`, `frames-9000` | one way, as fast as it goes, frame mode |
//! | `segment-1500`, `segment-9000` | one way through 10 Gbps, 50 ms each way, segment mode |
//!
//! Rates are of the far port's kernel stamps, between the first and last fifth of the run; they are frame level. What
//! the witnesses of the machine saw stands beside each. Run it alone.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kuroshio_testbed::{Captured, Counters, Direction, Testbed, Topology, isolate};
use serde_json::{Value, json};

type Failure = Box<dyn std::error::Error + Send + Sync>;

struct Case {
    name: &'static str,
    mode: &'static str,
    mtu: u32,
    wire: &'static str,
    capacity: &'static str,
    /// What the far port should show, bps at frame level, where that is exact.
    exact_bps: Option<f64>,
    one_way_ms: u64,
    both: bool,
    /// Full frames a second that each sender offers by UDP; 0: TCP.
    offered: u64,
    seconds: u64,
    quick_seconds: u64,
    /// Most bytes that a sender has on the way.
    window: u64,
}

const PLAIN: Case = Case {
    name: "",
    mode: "frame",
    mtu: 1500,
    wire: "10Gbps",
    capacity: "10Gbps",
    exact_bps: None,
    one_way_ms: 1,
    both: false,
    offered: 0,
    seconds: 20,
    quick_seconds: 4,
    window: 8 << 20,
};

/// 1 Gbps at L1 in full frames: 1518 of 1538 bytes.
const FULL_FRAMES_1G: f64 = 1e9 * 1518.0 / 1538.0;

/// Bits of a full frame of MTU 1500, MAC header to FCS, and on the wire.
const FULL_FRAME_BITS: u64 = 1518 * 8;
const FULL_FRAME_WIRE_BITS: u64 = 1538 * 8;

const CASES: [Case; 12] = [
    Case {
        name: "both-1g",
        wire: "1Gbps",
        capacity: "1Gbps l1",
        one_way_ms: 100,
        both: true,
        offered: 1_000_000_000 / FULL_FRAME_WIRE_BITS,
        seconds: 60,
        quick_seconds: 8,
        ..PLAIN
    },
    Case {
        name: "both-700m",
        wire: "1Gbps",
        capacity: "700Mbps",
        one_way_ms: 100,
        both: true,
        offered: 700_000_000 / FULL_FRAME_BITS,
        seconds: 60,
        quick_seconds: 8,
        ..PLAIN
    },
    Case {
        name: "tcp-both-1g",
        wire: "1Gbps",
        capacity: "1Gbps l1",
        one_way_ms: 100,
        both: true,
        seconds: 60,
        quick_seconds: 8,
        window: 64 << 20,
        ..PLAIN
    },
    Case {
        name: "tcp-both-700m",
        wire: "1Gbps",
        capacity: "700Mbps",
        one_way_ms: 100,
        both: true,
        seconds: 60,
        quick_seconds: 8,
        window: 48 << 20,
        ..PLAIN
    },
    Case {
        name: "cap-10m",
        capacity: "10Mbps",
        exact_bps: Some(1e7),
        ..PLAIN
    },
    Case {
        name: "cap-100m",
        capacity: "100Mbps",
        exact_bps: Some(1e8),
        ..PLAIN
    },
    Case {
        name: "cap-500m",
        capacity: "500Mbps",
        exact_bps: Some(5e8),
        ..PLAIN
    },
    Case {
        name: "cap-1000m",
        capacity: "1Gbps",
        exact_bps: Some(1e9),
        ..PLAIN
    },
    Case {
        name: "frames-1500",
        ..PLAIN
    },
    Case {
        name: "frames-9000",
        mtu: 9000,
        window: 32 << 20,
        ..PLAIN
    },
    Case {
        name: "segment-1500",
        mode: "segment",
        one_way_ms: 50,
        seconds: 30,
        quick_seconds: 8,
        window: 320 << 20,
        ..PLAIN
    },
    Case {
        name: "segment-9000",
        mode: "segment",
        mtu: 9000,
        one_way_ms: 50,
        seconds: 30,
        quick_seconds: 8,
        window: 320 << 20,
        ..PLAIN
    },
];

impl Case {
    fn topology(&self) -> Result<Topology, Failure> {
        let Self { mode, mtu, wire, .. } = self;
        // Linux offers a third of the receive buffer at most (paper 004), so the sender's bounds what is on the way.
        let (send, receive) = (self.window, 3 * self.window);
        let host = |name: &str, port: &str, ip: u8, router: &str| {
            format!(
                "[[host]]\nname = \"{name}\"\n\
                 sysctl = {{ \"net.ipv4.tcp_wmem\" = \"4096 {send} {send}\", \
                 \"net.ipv4.tcp_rmem\" = \"4096 {receive} {receive}\", \
                 \"net.ipv4.tcp_no_metrics_save\" = \"1\" }}\n\
                 [[host.port]]\nname = \"{port}\"\nmtu = \"{mtu}B\"\nwire = \"{wire}\"\nqueue = \"1GiB\"\n\
                 address = \"10.0.0.{ip}/24\"\nrouter = \"{router}\"\n"
            )
        };
        let text = format!(
            "name = \"{}\"\nmode = \"{mode}\"\n{}{}[[router]]\nname = \"a\"\n[[router]]\nname = \"b\"\n\
             [[link]]\nname = \"sea\"\nbetween = [\"a\", \"b\"]\ncapacity = \"{}\"\none_way_delay = \"{}ms\"\n\
             queue = \"1GiB\"\n",
            self.name,
            host("east", "e0", 1, "a"),
            host("west", "w0", 2, "b"),
            self.capacity,
            self.one_way_ms,
        );
        Ok(Topology::from_toml(&text)?)
    }

    fn run(&self, quick: bool) -> Result<Value, Failure> {
        let seconds = if quick { self.quick_seconds } else { self.seconds };
        let testbed = Testbed::up(&self.topology()?)?;
        let stop = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        let ways: &[_] = if self.both {
            &[("east", "west", 2), ("west", "east", 1)]
        } else {
            &[("east", "west", 2)]
        };
        for (from, to, ip) in ways.iter().copied() {
            let stop = Arc::clone(&stop);
            let offered = self.offered;
            if offered > 0 {
                threads.push(testbed.in_host(from, move || offer(ip, offered, &stop))?);
            } else {
                threads.push(testbed.in_host(to, receive)?);
                threads.push(testbed.in_host(from, move || send(ip, &stop))?);
            }
        }
        // Slow start is over, and every window stands.
        std::thread::sleep(Duration::from_millis(2_000 + 20 * self.one_way_ms));
        testbed.begin()?;
        let before = testbed.counters()?;
        let capture = testbed.capture(&["west/w0", "east/e0"])?;
        std::thread::sleep(Duration::from_secs(seconds));
        let captured = capture.stop()?;
        let report = testbed.report()?;
        let after = testbed.counters()?;
        stop.store(true, Ordering::Relaxed);
        drop(testbed);
        // The threads see their connections end with the hosts, or time out.
        drop(threads);
        let l = report.lateness;
        let rates: Vec<Value> = (0..ways.len() as u16).map(|port| rate(&captured, port)).collect();
        let error_ppm = self.exact_bps.and_then(|exact| {
            let measured = rates.first()?.get("frame_bps")?.as_f64()?;
            Some((measured / exact - 1.0) * 1e6)
        });
        Ok(json!({
            "case": self.name,
            "mode": self.mode,
            "mtu_bytes": self.mtu,
            "one_way_delay_ms": self.one_way_ms,
            "seconds": seconds,
            "far_ports": rates,
            "full_frames_bps": (self.capacity == "1Gbps l1").then_some(FULL_FRAMES_1G),
            "error_ppm": error_ppm,
            "lateness_us": {
                "p50": l.p50_ns as f64 / 1e3,
                "p99": l.p99_ns as f64 / 1e3,
                "p999": l.p999_ns as f64 / 1e3,
                "max": l.max_ns as f64 / 1e3,
            },
            "emulator_frames_per_s": (delivered(&after) - delivered(&before)) as f64
                / (after.at - before.at).as_ns() as f64 * 1e9,
            "lost_by_emulator": after.machine_lost() - before.machine_lost(),
            "dropped_in_network": after.dropped_frames() - before.dropped_frames(),
            "capture_missed": captured.missed,
            "machine": report.machine.to_string(),
            "disturbed": report.disturbed,
        }))
    }
}

/// Frames that crossed the network so far, data and acknowledgements.
fn delivered(counters: &Counters) -> u64 {
    counters.ports.iter().map(|p| p.delivered.frames).sum()
}

/// Rate of what a far port was given, in the middle three fifths: slope between the first and the last stamp of them.
fn rate(captured: &Captured, port: u16) -> Value {
    let stamps: Vec<_> = captured
        .records
        .iter()
        .filter(|r| r.port == port && r.direction == Direction::In)
        .collect();
    let (Some(first), Some(last)) = (stamps.first(), stamps.last()) else {
        return Value::Null;
    };
    let fifth = (last.t_ns - first.t_ns) / 5;
    let middle = first.t_ns + fifth..last.t_ns - fifth;
    let in_middle: Vec<_> = stamps.iter().filter(|r| middle.contains(&r.t_ns)).collect();
    let (Some(from), Some(to)) = (in_middle.first(), in_middle.last()) else {
        return Value::Null;
    };
    // The first one's bytes came before its stamp.
    let bytes: u64 = in_middle.iter().skip(1).map(|r| u64::from(r.frame_len)).sum();
    let payload: u64 = in_middle.iter().skip(1).map(|r| u64::from(r.payload_len)).sum();
    let time_s = (to.t_ns - from.t_ns).max(1) as f64 / 1e9;
    json!({
        "frame_bps": bytes as f64 * 8.0 / time_s,
        "goodput_bps": payload as f64 * 8.0 / time_s,
        "stamps_per_s": in_middle.len() as f64 / time_s,
    })
}

fn receive() -> std::io::Result<()> {
    let listener = TcpListener::bind("0.0.0.0:5000")?;
    let (mut stream, _) = listener.accept()?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut buffer = vec![0; 1 << 18];
    while stream.read(&mut buffer)? > 0 {}
    Ok(())
}

fn send(ip: u8, stop: &AtomicBool) -> std::io::Result<()> {
    let to = format!("10.0.0.{ip}:5000");
    let deadline = Instant::now() + Duration::from_secs(5);
    let mut stream = loop {
        match TcpStream::connect(&to) {
            Ok(stream) => break stream,
            Err(e) if Instant::now() > deadline => return Err(e),
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    rustix::net::sockopt::set_tcp_congestion(&stream, "cubic")?;
    stream.set_write_timeout(Some(Duration::from_secs(5)))?;
    let buffer = vec![0; 1 << 18];
    while !stop.load(Ordering::Relaxed) {
        stream.write_all(&buffer)?;
    }
    Ok(())
}

/// Payload of a full UDP packet of MTU 1500.
const PAYLOAD: usize = 1500 - 28;

/// Sends full packets at a rate, a millisecond's at a time: the port's wire spaces them.
fn offer(ip: u8, frames_per_s: u64, stop: &AtomicBool) -> std::io::Result<()> {
    let socket = UdpSocket::bind("0.0.0.0:5000")?;
    socket.connect(format!("10.0.0.{ip}:5000"))?;
    // Forty at a time: a system call for each costs the machine's other core more than it has.
    kuroshio_sock::set_udp_segment(&socket, PAYLOAD as u16)?;
    let packets = vec![0; PAYLOAD * 40];
    let start = Instant::now();
    let mut sent: u64 = 0;
    while !stop.load(Ordering::Relaxed) {
        let due = start.elapsed().as_micros() as u64 * frames_per_s / 1_000_000;
        // What the machine's stops made late is not caught up in one burst that its own queue would drop.
        sent = sent.max(due.saturating_sub(400));
        while sent < due {
            let many = (due - sent).min(40);
            match socket.send(&packets[..many as usize * PAYLOAD]) {
                // The far socket is not there yet: its host says so.
                Err(e) if e.kind() != std::io::ErrorKind::ConnectionRefused => return Err(e),
                _ => sent += many,
            }
        }
        std::thread::sleep(Duration::from_micros(500));
    }
    Ok(())
}

fn inside(args: &[String]) -> Result<(), Failure> {
    let flag = |name: &str| args.iter().any(|a| a == name);
    let named: Vec<&String> = args.iter().filter(|a| !a.starts_with("--")).collect();
    for name in &named {
        if !CASES.iter().any(|c| c.name == name.as_str()) {
            let known: Vec<&str> = CASES.iter().map(|c| c.name).collect();
            return Err(format!("no case {name:?}, but {}", known.join(", ")).into());
        }
    }
    for case in &CASES {
        if !named.is_empty() && !named.iter().any(|n| *n == case.name) {
            continue;
        }
        let value = case.run(flag("--quick"))?;
        if flag("--json") {
            println!("{value}");
        } else {
            table(&value);
        }
    }
    Ok(())
}

fn table(v: &Value) {
    let f = |value: &Value| value.as_f64().unwrap_or(f64::NAN);
    let late = &v["lateness_us"];
    println!(
        "{}: mode {}, MTU {}, {} ms one way, {} s",
        v["case"].as_str().unwrap_or(""),
        v["mode"].as_str().unwrap_or(""),
        v["mtu_bytes"],
        v["one_way_delay_ms"],
        v["seconds"]
    );
    for port in v["far_ports"].as_array().into_iter().flatten() {
        println!(
            "  far port: {:.3} Mbps frame level, {:.3} Mbps goodput, {:.1} k stamps/s",
            f(&port["frame_bps"]) / 1e6,
            f(&port["goodput_bps"]) / 1e6,
            f(&port["stamps_per_s"]) / 1e3
        );
    }
    println!(
        "  all frames that crossed the emulator: {:.1} k/s",
        f(&v["emulator_frames_per_s"]) / 1e3
    );
    if let Some(ppm) = v["error_ppm"].as_f64() {
        println!("  against the capacity: {ppm:+.0} ppm");
    }
    println!(
        "  lateness p50 {:.2}, p99 {:.1}, p99.9 {:.1}, max {:.0} us; lost by the emulator {}, dropped in the network {}",
        f(&late["p50"]),
        f(&late["p99"]),
        f(&late["p999"]),
        f(&late["max"]),
        v["lost_by_emulator"],
        v["dropped_in_network"]
    );
    println!(
        "  capture missed {}; {}; disturbed: {}",
        v["capture_missed"],
        v["machine"].as_str().unwrap_or(""),
        v["disturbed"].as_str().unwrap_or("no")
    );
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = if isolate::is_inside() {
        inside(&args)
    } else {
        let own: Vec<_> = std::env::args_os().skip(1).collect();
        match isolate::run(&own) {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("inside: {status}").into()),
            Err(e) => Err(e.into()),
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("figures: {e}");
            ExitCode::FAILURE
        }
    }
}
