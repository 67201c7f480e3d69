//! Our client and our server over real sockets on loopback.

mod common;

use common::{LONG, Ours, config, free_port, run};
use kuroshio_core::units::BitRate;
use kuroshio_probe::{Direction, Length, Limits, Pace, ProbeError, Protocol, Role, run_client};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

#[test]
fn both_families_and_directions_move_data_and_both_sides_agree() {
    for at in ["127.0.0.1:0", "[::1]:0"] {
        let server = Ours::start(at, Limits::default());
        for direction in [Direction::Forward, Direction::Reverse, Direction::Both] {
            let report = run(&config(server.address, 600, |p| {
                p.direction = direction;
                p.streams = 2;
            }))
            .expect("a test");
            let theirs = server.report().expect("a test");
            assert_eq!((report.role, theirs.role), (Role::Client, Role::Server));
            assert_eq!(report.cookie, theirs.cookie);
            let ids: Vec<u32> = report.run.streams.iter().map(|s| s.span.id).collect();
            let expected: &[u32] = if direction == Direction::Both {
                &[1, 3, 4, 5]
            } else {
                &[1, 3]
            };
            assert_eq!(ids, expected);
            let ways: &[bool] = match direction {
                Direction::Forward => &[true],
                Direction::Reverse => &[false],
                Direction::Both => &[true, false],
            };
            for sends in ways {
                let sum = report.sum(*sends);
                assert!(sum.received_bytes > 0, "{direction:?} {sends}");
                assert!(sum.sent_s > 0.59 && sum.received_s > 0.5, "{sum:?}");
                // What a side told is what the other reports of it.
                let far = theirs.sum(!sends);
                assert_eq!(far.received_bytes, sum.received_bytes, "{direction:?} {sends}");
                assert_eq!(far.sent_bytes, sum.sent_bytes);
            }
            assert_eq!(report.run.streams[0].congestion.as_deref(), Some("cubic"));
            assert_eq!(report.peer.congestion.as_deref(), Some("cubic"));
            assert!(report.run.cpu.total > 0.0 && report.peer.cpu.total > 0.0);
            assert!(report.run.intervals.len() >= 2, "{}", report.run.intervals.len());
            assert!(report.peer.extension.is_some());
        }
    }
}

#[test]
fn a_test_by_bytes_delivers_every_byte() {
    let server = Ours::start("127.0.0.1:0", Limits::default());
    for direction in [Direction::Forward, Direction::Reverse] {
        for zerocopy in [false, true] {
            let bytes = 50_000_003;
            let report = run(&config(server.address, 0, |p| {
                p.length = Length::Bytes(bytes);
                (p.direction, p.zerocopy, p.streams) = (direction, zerocopy, 3);
            }))
            .expect("a test");
            let sum = report.sum(direction == Direction::Forward);
            if direction == Direction::Forward {
                assert_eq!((sum.sent_bytes, sum.received_bytes), (bytes, bytes));
            } else {
                assert!(sum.received_bytes >= bytes, "{sum:?}");
            }
            assert_eq!(server.report().expect("a test").params.zerocopy, zerocopy);
        }
    }
}

/// A slow machine can only make it less; more than the rate is an error of the conversion or of the sharing.
#[test]
fn a_pace_is_the_sum_of_all_streams_at_frame_level() {
    let server = Ours::start("127.0.0.1:0", Limits::default());
    let rate = BitRate::from_mbps(200);
    for (protocol, direction) in [
        (Protocol::Tcp, Direction::Forward),
        (Protocol::Tcp, Direction::Reverse),
        (Protocol::Udp, Direction::Forward),
        (Protocol::Udp, Direction::Reverse),
    ] {
        let mut asked = config(server.address, 2000, |p| {
            (p.protocol, p.direction, p.streams, p.omit_s) = (protocol, direction, 4, 1);
            p.mss_bytes = (protocol == Protocol::Tcp).then_some(1460);
            p.block_bytes = (protocol == Protocol::Udp).then_some(1400);
            p.congestion = p.congestion.take().filter(|_| protocol == Protocol::Tcp);
        });
        asked.rate = Some(rate);
        let report = run(&asked).expect("a test");
        let sum = report.sum(direction == Direction::Forward);
        let off = sum.frame_rate_bps / rate.bps() as f64 - 1.0;
        println!(
            "{protocol:?} {direction:?}: {:.0} bit/s, {:.2} % off",
            sum.frame_rate_bps,
            100.0 * off
        );
        assert!(off < 0.03, "{protocol:?} {direction:?}: {}", sum.frame_rate_bps);
        assert!(off > -0.5, "{protocol:?} {direction:?}: {}", sum.frame_rate_bps);
        assert_eq!(report.params.pace, Pace::Frame(BitRate::from_mbps(50)));
        let ratio = sum.goodput_bps() / sum.frame_rate_bps;
        let expected = match protocol {
            Protocol::Tcp => 1448.0 / 1518.0,
            Protocol::Udp => 1400.0 / 1446.0,
        };
        assert!((ratio / expected - 1.0).abs() < 0.05, "{ratio} {expected}");
        server.report().expect("a test");
    }
}

#[test]
fn udp_counts_what_arrives() {
    let server = Ours::start("[::1]:0", Limits::default());
    let mut asked = config(server.address, 500, |p| {
        (p.protocol, p.congestion, p.block_bytes) = (Protocol::Udp, None, Some(1000));
    });
    asked.rate = Some(BitRate::from_mbps(20));
    let report = run(&asked).expect("a test");
    let sum = report.sum(true);
    let theirs = server.report().expect("a test");
    assert!(sum.packets > 100, "{sum:?}");
    assert_eq!(sum.received_bytes, 1000 * (sum.packets - sum.lost));
    assert_eq!(sum.received_bytes, theirs.run.streams[0].span.bytes);
    assert_eq!(sum.sent_bytes % 1000, 0);
}

/// Cookies that come in another order than the connections do not swap the streams.
#[test]
fn streams_keep_the_order_of_their_connections() {
    let server = Ours::start("127.0.0.1:0", Limits::default());
    let cookie = b"abcdefghijklmnopqrstuvwxyz2345672345\0";
    let mut control = TcpStream::connect(server.address).expect("connected");
    control.set_read_timeout(Some(LONG)).expect("limit");
    let expect = |control: &mut TcpStream, states: &[u8]| {
        let mut read = vec![0; states.len()];
        control.read_exact(&mut read).expect("states");
        assert_eq!(read, states);
    };
    control.write_all(cookie).expect("cookie");
    expect(&mut control, &[9]);
    let text = br#"{"tcp":true,"bidirectional":true,"parallel":2,"time":1}"#;
    control
        .write_all(&u32::try_from(text.len()).expect("short").to_be_bytes())
        .expect("length");
    control.write_all(text).expect("parameters");
    expect(&mut control, &[10]);
    let mut streams: Vec<TcpStream> = (0..4)
        .map(|_| TcpStream::connect(server.address).expect("connected"))
        .collect();
    for stream in streams.iter_mut().rev() {
        stream.write_all(cookie).expect("cookie");
    }
    expect(&mut control, &[1, 2]);
    // The server sends on the second half, and on nothing else.
    for (index, stream) in streams.iter_mut().enumerate() {
        if index >= 2 {
            stream.set_read_timeout(Some(LONG)).expect("limit");
            stream.read_exact(&mut [0]).expect("data");
        } else {
            stream.set_nonblocking(true).expect("mode");
            let nothing = stream.read(&mut [0]).expect_err("no data");
            assert_eq!(nothing.kind(), std::io::ErrorKind::WouldBlock, "stream {index}");
        }
    }
    control.write_all(&[12]).expect("the end");
    server.report().expect_err("ended by the client");
}

#[test]
fn several_tests_run_at_once_and_no_more_than_the_limit() {
    let limits = Limits {
        sessions: 2,
        ..Limits::default()
    };
    let server = Ours::start("127.0.0.1:0", limits);
    let address = server.address;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (begun, begins) = std::sync::mpsc::channel();
        let mut tests = Vec::new();
        for _ in 0..2 {
            let (begun, stop) = (begun.clone(), &stop);
            tests.push(scope.spawn(move || {
                let config = config(address, 60_000, |p| p.streams = 2);
                run_client(&config, stop, &mut |event| {
                    if matches!(event, kuroshio_probe::Event::Connected(_)) {
                        begun.send(()).expect("told");
                    }
                })
            }));
        }
        for _ in 0..2 {
            begins.recv_timeout(LONG).expect("both begin");
        }
        let refused = run(&config(address, 500, |_| ()));
        assert!(matches!(refused, Err(ProbeError::Busy)), "{refused:?}");
        stop.store(true, Ordering::Release);
        for test in tests {
            let report = test.join().expect("no panic").expect("results");
            assert!(report.interrupted);
            assert!(report.sum(true).received_bytes > 0);
        }
    });
}

#[test]
fn limits_of_time_and_bytes_hold() {
    let limits = Limits {
        time: Duration::from_secs(2),
        bytes: 1_000_000,
        ..Limits::default()
    };
    let server = Ours::start("127.0.0.1:0", limits);
    let too_long = run(&config(server.address, 3000, |_| ()));
    assert!(
        matches!(too_long, Err(ProbeError::Remote { code: 5, .. })),
        "{too_long:?}"
    );
    assert!(server.report().expect_err("refused").contains("at most 2 s"));
    let too_much = run(&config(server.address, 0, |p| {
        p.length = Length::Bytes(1_000_001)
    }));
    assert!(matches!(too_much, Err(ProbeError::Remote { .. })), "{too_much:?}");
    assert!(server.report().expect_err("refused").contains("at most 1000000"));
    // One that does not say how much it sends is ended on the way.
    let flood = run(&config(server.address, 2000, |_| ()));
    assert!(flood.is_err(), "{flood:?}");
    assert!(
        server
            .report()
            .expect_err("ended")
            .contains("beyond this server's limit")
    );
}

#[test]
fn garbage_ends_its_own_connection_only() {
    let server = Ours::start("127.0.0.1:0", Limits::default());
    let json = |text: &[u8]| {
        let mut bytes = b"abcdefghijklmnopqrstuvwxyz2345672345\0".to_vec();
        bytes.extend(u32::try_from(text.len()).expect("short").to_be_bytes());
        bytes.extend(text);
        bytes
    };
    let mut huge = json(b"");
    huge.truncate(37);
    huge.extend(u32::MAX.to_be_bytes());
    let cases: Vec<Vec<u8>> = vec![
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n............".to_vec(),
        vec![0; 64],
        vec![255; 1000],
        huge,
        json(b"not json at all"),
        json(b"{\"parallel\":1e9}"),
        json(b"{\"tcp\":true,\"udp\":true}"),
        json(b"[1]"),
    ];
    for case in &cases {
        let mut stream = TcpStream::connect(server.address).expect("connected");
        stream.set_read_timeout(Some(LONG)).expect("limit");
        // The server may have closed already.
        let _ = stream.write_all(case);
        let _ = stream.read_to_end(&mut Vec::new());
        let why = server.report().expect_err("refused");
        assert!(!why.is_empty());
    }
    // A client that goes away in the middle.
    drop(TcpStream::connect(server.address).expect("connected"));
    server.report().expect_err("went away");
    run(&config(server.address, 300, |_| ())).expect("still serves");
}

#[test]
fn a_server_that_stops_tells_its_clients() {
    let server = Ours::start("127.0.0.1:0", Limits::default());
    let stop = AtomicBool::new(false);
    let ended = run_client(&config(server.address, 60_000, |_| ()), &stop, &mut |event| {
        if matches!(event, kuroshio_probe::Event::Interval(_)) {
            server.stop();
        }
    });
    assert!(
        matches!(ended, Err(ProbeError::Ended { who: "server" })),
        "{ended:?}"
    );
    server.report().expect_err("ended");
}

#[test]
fn nobody_listening_and_a_silent_server_are_errors_in_time() {
    let begun = Instant::now();
    let nobody = run(&config(([127, 0, 0, 1], free_port()).into(), 300, |_| ()));
    assert!(matches!(nobody, Err(ProbeError::Connect(_))), "{nobody:?}");
    let mut unknown = config(([127, 0, 0, 1], 1).into(), 300, |_| ());
    unknown.host = "no-such-host.invalid".into();
    assert!(matches!(run(&unknown), Err(ProbeError::Resolve { .. })));
    assert!(begun.elapsed() < LONG);
    // A server of another protocol.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("listener");
    let address = listener.local_addr().expect("address");
    let other = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("accepted");
        stream.write_all(b"220 mail.example ESMTP\r\n").expect("written");
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let odd = run(&config(address, 300, |_| ()));
    assert!(matches!(odd, Err(ProbeError::Protocol(_))), "{odd:?}");
    other.join().expect("no panic");
}
