//! A network of sixteen ports on four emulator threads, with real hosts.

mod common;

use std::fmt::Write as _;
use std::net::UdpSocket;
use std::process::ExitCode;
use std::time::Duration;

use common::{in_host, pattern, wait_for};
use kuroshio_core::units::PicoDuration;
use kuroshio_core::wan::{Jitter, WanChange};
use kuroshio_testbed::{Change, Point, Testbed, TestbedError, Topology};

fn main() -> ExitCode {
    common::run(&[
        ("sixteen_ports_on_four_threads", sixteen_ports_on_four_threads),
        (
            "a_change_that_would_break_the_cut_is_refused",
            a_change_that_would_break_the_cut_is_refused,
        ),
    ])
}

const ROUTERS: usize = 8;

fn row() -> Topology {
    let mut text = "name = \"row\"\nthreads = 4\n".to_owned();
    for r in 0..ROUTERS {
        let _ = writeln!(text, "[[router]]\nname = \"r{r}\"");
        for h in [2 * r, 2 * r + 1] {
            let _ = writeln!(
                text,
                "[[host]]\nname = \"h{h}\"\n[[host.port]]\nname = \"p\"\naddress = \"10.0.0.{}/24\"\nrouter = \"r{r}\"",
                h + 1
            );
        }
    }
    for l in 1..ROUTERS {
        let _ = writeln!(
            text,
            "[[link]]\nname = \"l{l}\"\nbetween = [\"r{}\", \"r{l}\"]\ncapacity = \"500Mbps\"\none_way_delay = \"1ms\"\nqueue = \"16MiB\"",
            l - 1
        );
    }
    Topology::from_toml(&text).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

fn sixteen_ports_on_four_threads() {
    const FRAMES: usize = 100;
    let tb = Testbed::up(&row()).expect("up");
    assert_eq!(tb.threads(), 4);
    tb.trace_start(1 << 18).expect("trace");
    let sockets: Vec<UdpSocket> = (0..2 * ROUTERS)
        .map(|h| {
            in_host(&tb, &format!("h{h}"), || {
                UdpSocket::bind("0.0.0.0:9").expect("bind")
            })
        })
        .collect();
    // Every host sends to every other, over up to seven links.
    let data = pattern(1000);
    for _ in 0..FRAMES {
        for from in &sockets {
            for to in 0..sockets.len() {
                from.send_to(&data, format!("10.0.0.{}:9", to + 1)).expect("send");
            }
        }
        // Below the capacity of the middle: 128 frames of 1046 bytes each way need 2.2 ms at 500 Mbps.
        std::thread::sleep(Duration::from_millis(3));
    }
    let mut counters = tb.counters().expect("counters");
    wait_for("an empty network", || {
        counters = tb.counters().expect("counters");
        counters.held_frames() == 0
    });
    let trace = tb.trace_stop().expect("trace");
    assert_eq!(
        (trace.lost, counters.machine_lost(), counters.dropped_frames()),
        (0, 0, 0)
    );
    assert!(trace.records.is_sorted_by_key(|r| r.at));
    let expected = FRAMES * 15;
    for (number, port) in counters.ports.iter().enumerate() {
        // What a host sends to itself never leaves it.
        assert_eq!(port.delivered.frames as usize, expected, "{}", port.name);
        let point = Point::PortOut(number as u16);
        let passed = trace.records.iter().filter(|r| r.point == point);
        assert_eq!(passed.count(), expected);
    }
    // The way from the first host to the last: seven links of 1 ms and a frame's time on nine wires, exactly.
    let wire = 1046 + 20;
    let least_ps = 7 * 1_000_000_000 + 7 * 1046 * 16_000 + 2 * wire * 8_000;
    let seen = |point, from| {
        trace
            .records
            .iter()
            .filter(move |r| (r.point, r.from_port) == (point, from))
    };
    let mut sent: Vec<u64> = seen(Point::PortIn(0), 0).map(|r| r.at.as_ps()).collect();
    sent.sort_unstable();
    let came: Vec<u64> = seen(Point::PortOut(15), 0).map(|r| r.at.as_ps()).collect();
    assert_eq!((sent.len(), came.len()), (expected, FRAMES));
    // The last of the fifteen frames of a round goes to the last host.
    let exact = sent
        .chunks(15)
        .zip(&came)
        .map(|(round, came)| came - round[14])
        .min();
    let exact = exact.expect("rounds");
    // The preamble is on the wire before the frame, the gap after it; nothing else may be added to the shortest.
    assert!(
        exact + 2 * 12 * 8_000 >= least_ps && exact < least_ps + 2_000_000_000,
        "{exact} ps, at least {least_ps}"
    );
}

fn a_change_that_would_break_the_cut_is_refused() {
    let tb = Testbed::up(&row()).expect("up");
    let refused = |link: &str, change: WanChange| match tb.apply(&Change::Set(link.into(), change)) {
        Err(TestbedError::Invalid(text)) => assert!(text.contains("two threads"), "{text}"),
        other => panic!("{other:?}"),
    };
    // A row of eight on four threads: some of its links join two of them.
    let links: Vec<String> = (1..ROUTERS).map(|l| format!("l{l}")).collect();
    let short = || WanChange::OneWayDelay(PicoDuration::from_us(100));
    let taken = links
        .iter()
        .filter(|l| tb.apply(&Change::Set((*l).clone(), short())).is_ok())
        .count();
    assert!(taken < links.len());
    let cut = links
        .iter()
        .find(|l| tb.apply(&Change::Set((*l).clone(), short())).is_err())
        .expect("one");
    refused(cut, WanChange::Jitter(Jitter::Uniform(PicoDuration::from_us(1))));
    refused(cut, short());
    let longer = WanChange::OneWayDelay(PicoDuration::from_us(600));
    tb.apply(&Change::Set(cut.clone(), longer))
        .expect("half of it and more is taken");
}
