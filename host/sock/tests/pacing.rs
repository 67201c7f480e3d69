//! Real sockets on loopback: options take effect, and the pace is the one that was asked for.

use kuroshio_core::units::BitRate;
use kuroshio_sock::{
    ConnectOptions, Framing, buffers, congestion, connect, listen, set_congestion, set_notsent_lowat,
    set_pacing, tcp_info,
};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

fn pair(at: &str) -> (TcpStream, TcpStream) {
    let listener = listen(at.parse().expect("address")).expect("listen");
    let options = ConnectOptions {
        congestion: Some("cubic".into()),
        ..ConnectOptions::default()
    };
    let near = connect(listener.local_addr().expect("address"), &options).expect("connect");
    (near, listener.accept().expect("accept").0)
}

#[test]
fn options_are_set_before_the_handshake_and_names_are_checked() {
    let (near, _far) = pair("127.0.0.1:0");
    assert_eq!(congestion(&near).expect("name"), "cubic");
    set_congestion(&near, "reno").expect("reno");
    assert_eq!(congestion(&near).expect("name"), "reno");
    assert_eq!(
        set_congestion(&near, "no such thing")
            .expect_err("unknown")
            .kind(),
        ErrorKind::NotFound
    );
    assert_eq!(
        set_congestion(&near, "").expect_err("empty").kind(),
        ErrorKind::InvalidInput
    );
    assert_eq!(
        set_congestion(&near, "a name too long")
            .expect_err("unknown")
            .kind(),
        ErrorKind::NotFound
    );
    assert_eq!(
        set_congestion(&near, "one that is too long")
            .expect_err("long")
            .kind(),
        ErrorKind::InvalidInput
    );
    set_notsent_lowat(&near, 1 << 16).expect("low-water mark");
    assert!(near.nodelay().expect("TCP_NODELAY"));
}

#[test]
fn buffers_and_segment_size_belong_to_the_handshake() {
    let listener = listen("127.0.0.1:0".parse().expect("address")).expect("listen");
    let options = ConnectOptions {
        buffer_bytes: Some(150_000),
        mss_bytes: Some(1000),
        ..ConnectOptions::default()
    };
    let near = connect(listener.local_addr().expect("address"), &options).expect("connect");
    let (far, _) = listener.accept().expect("accept");
    let granted = buffers(&near).expect("buffers");
    assert_eq!((granted.send_bytes, granted.receive_bytes), (300_000, 300_000));
    for end in [&near, &far] {
        assert_eq!(tcp_info(end).expect("info").snd_mss, 1000 - 12);
    }
}

#[test]
fn rates_of_datagrams_and_payload_are_converted_by_frames() {
    let framing = |payload, ipv6| Framing::of_datagram(payload, ipv6).map(|f| f.frame.get());
    assert_eq!(framing(1472, false), Some(1518));
    assert_eq!(framing(1452, true), Some(1518));
    assert_eq!(framing(1, false), Some(64));
    assert_eq!(framing(0, false), None);
    assert_eq!(framing(65_537, false), None);
    let full = Framing::new(1448, true, false).expect("framing");
    let goodput = BitRate::from_bps(1_448_000_000).expect("rate");
    assert_eq!(full.frame_level(goodput).bps(), 1_518_000_000);
    assert_eq!(full.payload_bytes_per_s(full.frame_level(goodput)), 181_000_000);
    assert_eq!(full.frame_level(BitRate::MAX), BitRate::MAX);
}

#[test]
fn a_refused_connection_says_where() {
    let at = listen("127.0.0.1:0".parse().expect("address"))
        .expect("listen")
        .local_addr()
        .expect("address");
    let e = connect(at, &ConnectOptions::default()).expect_err("nobody listens");
    assert_eq!(e.to, at);
    assert!(e.to_string().contains(&at.to_string()), "{e}");
}

#[test]
fn a_local_address_is_the_one_that_is_left_from() {
    let listener = listen("127.0.0.1:0".parse().expect("address")).expect("listen");
    let local = "127.0.0.77".parse().expect("address");
    let options = ConnectOptions {
        local: Some(local),
        ..ConnectOptions::default()
    };
    let near = connect(listener.local_addr().expect("address"), &options).expect("connect");
    assert_eq!(near.local_addr().expect("address").ip(), local);
}

#[test]
fn the_pace_is_told_to_the_kernel_in_payload_bytes() {
    for at in ["127.0.0.1:0", "[::1]:0"] {
        let (near, _far) = pair(at);
        let pacing = set_pacing(&near, Some(BitRate::from_bps(800_000_000).expect("rate"))).expect("set");
        let framing = pacing.framing.expect("framing");
        let info = tcp_info(&near).expect("info");
        assert_eq!(framing.payload.get(), info.snd_mss);
        let ip = if at.starts_with('[') { 40 } else { 20 };
        assert_eq!(framing.frame.get(), info.snd_mss + 12 + 20 + ip + 18);
        assert_eq!(info.max_pacing_rate_bytes_per_s, pacing.payload_bytes_per_s);
        set_pacing(&near, None).expect("no limit");
        assert_eq!(
            tcp_info(&near).expect("info").max_pacing_rate_bytes_per_s,
            u64::MAX
        );
    }
}

/// The kernel's own count of what was acknowledged over its own time, against the rate asked for. A slow
/// machine can only make it less; more than the rate is an error of the conversion.
#[test]
fn a_paced_stream_keeps_its_rate() {
    let (mut near, mut far) = pair("127.0.0.1:0");
    let rate = BitRate::from_bps(400_000_000).expect("rate");
    let framing = set_pacing(&near, Some(rate))
        .expect("set")
        .framing
        .expect("framing");
    let reading = std::thread::spawn(move || {
        let mut buf = vec![0u8; 1 << 18];
        while far.read(&mut buf).expect("read") > 0 {}
    });
    set_notsent_lowat(&near, 1 << 17).expect("low-water mark");
    let buf = vec![0u8; 1 << 16];
    let until = |near: &mut TcpStream, end: Instant| {
        while Instant::now() < end {
            near.write_all(&buf).expect("write");
        }
        (Instant::now(), tcp_info(near).expect("info").bytes_acked)
    };
    let (t0, b0) = until(&mut near, Instant::now() + Duration::from_millis(300));
    let (t1, b1) = until(&mut near, Instant::now() + Duration::from_secs(2));
    drop(near);
    reading.join().expect("reader");
    let frame_bits = 8.0 * framing.frame_bytes(b1 - b0) as f64;
    let got = frame_bits / (t1 - t0).as_secs_f64();
    let off = got / rate.bps() as f64 - 1.0;
    println!("{got:.0} bit/s, {:.3} % off", off * 100.0);
    assert!(off < 0.005, "{got} bit/s for {}", rate.bps());
    assert!(off > -0.5, "{got} bit/s for {}", rate.bps());
}
