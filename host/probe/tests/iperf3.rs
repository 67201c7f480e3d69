//! Against the real iperf3, both ways. `scripts/deps test` installs it.

mod common;

use common::{Iperf3, Ours, config, iperf3_client, run};
use kuroshio_core::units::BitRate;
use kuroshio_probe::{Direction, Length, Limits, Protocol};
use serde_json::Value;

#[test]
fn our_client_tests_against_the_real_server_with_tcp() {
    for ip in ["127.0.0.1", "::1"] {
        for (direction, streams) in [
            (Direction::Forward, 1),
            (Direction::Forward, 3),
            (Direction::Reverse, 2),
            (Direction::Both, 2),
        ] {
            let server = Iperf3::start(ip);
            let report = run(&config(server.address, 1200, |p| {
                (p.direction, p.streams) = (direction, streams);
            }))
            .unwrap_or_else(|e| panic!("{direction:?} {streams}: {e}"));
            for sends in [true, false] {
                let used = match direction {
                    Direction::Forward => sends,
                    Direction::Reverse => !sends,
                    Direction::Both => true,
                };
                let sum = report.sum(sends);
                assert_eq!(sum.received_bytes > 0, used, "{direction:?} {sends}: {sum:?}");
                assert_eq!(sum.retransmits.is_some(), used, "{direction:?} {sends}: {sum:?}");
            }
            assert_eq!(report.peer.streams.len(), report.run.streams.len());
            assert_eq!(report.peer.congestion.as_deref(), Some("cubic"));
            assert!(report.peer.extension.is_none());
            let role = if direction == Direction::Reverse {
                "sender"
            } else {
                "receiver"
            };
            assert!(server.output().contains(role));
        }
    }
}

#[test]
fn our_client_s_bytes_omission_and_pace_are_kept_by_the_real_server() {
    let server = Iperf3::start("127.0.0.1");
    let bytes = 30_000_000;
    let report = run(&config(server.address, 0, |p| p.length = Length::Bytes(bytes))).expect("a test");
    assert_eq!(report.sum(true).sent_bytes, bytes);
    server.output();

    let server = Iperf3::start("127.0.0.1");
    let mut asked = config(server.address, 2000, |p| {
        (p.direction, p.streams, p.omit_s, p.mss_bytes) = (Direction::Reverse, 2, 1, Some(1460));
    });
    asked.rate = Some(BitRate::from_mbps(100));
    let report = run(&asked).expect("a test");
    let sum = report.sum(false);
    println!("paced by iperf3: {:.0} bit/s at frame level", sum.frame_rate_bps);
    assert!((50e6..105e6).contains(&sum.frame_rate_bps), "{sum:?}");
    assert!(sum.received_s < 2.5, "{sum:?}");
    server.output();
}

#[test]
fn our_client_tests_against_the_real_server_with_udp() {
    for (direction, streams) in [(Direction::Forward, 2), (Direction::Reverse, 1)] {
        let server = Iperf3::start("127.0.0.1");
        let mut asked = config(server.address, 1000, |p| {
            (p.protocol, p.congestion, p.block_bytes) = (Protocol::Udp, None, Some(1200));
            (p.direction, p.streams) = (direction, streams);
        });
        asked.rate = Some(BitRate::from_mbps(10));
        let report = run(&asked).unwrap_or_else(|e| panic!("{direction:?}: {e}"));
        let sum = report.sum(direction == Direction::Forward);
        assert!(sum.packets > 100, "{direction:?} {sum:?}");
        assert!(
            sum.received_bytes >= 1200 * (sum.packets - sum.lost) / 2,
            "{sum:?}"
        );
        assert!(sum.frame_rate_bps < 10.5e6, "{sum:?}");
        server.output();
    }
}

fn positive(report: &Value, path: &str) {
    let value = report.pointer(path).and_then(Value::as_f64);
    assert!(value.is_some_and(|v| v > 0.0), "{path}: {value:?} in {report}");
}

#[test]
fn the_real_client_tests_against_our_server() {
    for at in ["127.0.0.1:0", "[::1]:0"] {
        let server = Ours::start(at, Limits::default());
        for args in [
            &["-t", "1", "-C", "cubic"][..],
            &["-t", "1", "-P", "3"],
            &["-t", "1", "-R", "-P", "2"],
            &["-t", "1", "--bidir"],
            &["-n", "20M"],
            &["-k", "100", "-R"],
            &["-t", "1", "-O", "1"],
            &["-t", "1", "-w", "256K", "-M", "1400", "-N", "-Z"],
        ] {
            let report = iperf3_client(server.address, args);
            assert_eq!(report.get("error"), None, "{args:?}: {report}");
            positive(&report, "/end/sum_received/bytes");
            positive(&report, "/end/sum_sent/bytes");
            positive(&report, "/end/cpu_utilization_percent/remote_total");
            let ours = server.report().unwrap_or_else(|e| panic!("{args:?}: {e}"));
            assert!(!ours.params.extension);
            let told = &report["end"]["sum_received"]["bytes"];
            if !args.contains(&"-R") && !args.contains(&"--bidir") {
                assert_eq!(told.as_u64(), Some(ours.sum(false).received_bytes), "{args:?}");
            }
        }
    }
}

#[test]
fn the_real_client_s_bytes_all_arrive() {
    let server = Ours::start("127.0.0.1:0", Limits::default());
    let report = iperf3_client(server.address, &["-n", "20000000", "-l", "100000"]);
    assert_eq!(report["end"]["sum_sent"]["bytes"], 20_000_000, "{report}");
    assert_eq!(report["end"]["sum_received"]["bytes"], 20_000_000, "{report}");
}

#[test]
fn the_real_client_s_pace_and_datagrams_are_served() {
    let server = Ours::start("127.0.0.1:0", Limits::default());
    let report = iperf3_client(server.address, &["-t", "1", "-R", "-b", "50M", "-M", "1448"]);
    let goodput = report["end"]["sum_received"]["bits_per_second"].as_f64();
    println!("paced by us for iperf3: {goodput:?} bit/s goodput");
    assert!(goodput.is_some_and(|g| (25e6..55e6).contains(&g)), "{report}");
    server.report().expect("a test");
    for args in [
        &["-u", "-b", "20M", "-t", "1", "-l", "1000"][..],
        &["-u", "-b", "20M", "-t", "1", "-l", "1000", "-R"],
        &["-u", "-b", "5M", "-t", "1", "-P", "3"],
        &["-u", "-b", "5M", "-t", "1", "--udp-counters-64bit"],
    ] {
        let report = iperf3_client(server.address, args);
        assert_eq!(report.get("error"), None, "{args:?}: {report}");
        positive(&report, "/end/sum/packets");
        positive(&report, "/end/sum/bytes");
        let rate = report["end"]["sum"]["bits_per_second"].as_f64().expect("rate");
        assert!(rate < 22e6, "{args:?}: {rate}");
        server.report().unwrap_or_else(|e| panic!("{args:?}: {e}"));
    }
}

#[test]
fn the_real_client_understands_our_refusals() {
    let limits = Limits {
        time: std::time::Duration::from_secs(5),
        ..Limits::default()
    };
    let server = Ours::start("127.0.0.1:0", limits);
    let report = iperf3_client(server.address, &["-t", "6"]);
    let error = report["error"].as_str().expect("an error");
    assert!(error.contains("duration"), "{error}");
    server.report().expect_err("refused");
}
