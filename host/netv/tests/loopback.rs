//! Pictures over loopback, end to end.

use std::io::Write;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kuroshio_core::units::PicoDuration;
use kuroshio_core::video::{Geometry, PixelFormat};
use kuroshio_netv::{
    NetvError, Output, PartTarget, Pattern, Receiver, RecvConfig, RecvReport, SendConfig, SendReport, Source,
    pattern_number, send, to_planar, to_wire,
};

/// Standard output of a receiver, kept.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<u8>>>);

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("kept").extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

const LOCAL: ([u8; 4], u16) = ([127, 0, 0, 1], 0);

fn recv_config(geometry: Geometry, parts: usize, pictures: u64, output: Output) -> RecvConfig {
    RecvConfig {
        geometry,
        rate: (25, 1),
        listen: (0..parts).map(|_| (SocketAddr::from(LOCAL), None)).collect(),
        wait: PicoDuration::from_secs(5),
        pictures: Some(pictures),
        time: Some(Duration::from_secs(60)),
        idle: None,
        output,
    }
}

fn send_config(geometry: Geometry, to: &[SocketAddr], pictures: Option<u64>) -> SendConfig {
    SendConfig {
        geometry,
        rate: (25, 1),
        parts: to
            .iter()
            .map(|to| PartTarget {
                to: *to,
                from: None,
                prepare: None,
                inspect: None,
            })
            .collect(),
        datagram_bytes: 1_200,
        pictures,
        ssrc: 7,
    }
}

/// Sends from `source` and gives both reports and what was written.
fn run(geometry: Geometry, parts: usize, pictures: u64, source: Source) -> (SendReport, RecvReport, Vec<u8>) {
    let kept = Kept::default();
    let output = Output {
        video: Some(Box::new(kept.clone())),
        ..Output::default()
    };
    let receiver = Receiver::bind(recv_config(geometry, parts, pictures, output)).expect("a receiver");
    let to = receiver.addresses().expect("addresses");
    let stop = Arc::new(AtomicBool::new(false));
    let receiving = std::thread::spawn(move || receiver.run(&stop));
    let never = Arc::new(AtomicBool::new(false));
    let sent = send(send_config(geometry, &to, Some(pictures)), source, &never).expect("sent");
    let received = receiving.join().expect("a thread").expect("received");
    let bytes = kept.0.lock().expect("kept").clone();
    (sent, received, bytes)
}

#[test]
fn a_pattern_arrives_in_its_parts() {
    let geometry = Geometry::new(320, 90, PixelFormat::Yuv422b10).expect("a size");
    let (sent, received, bytes) = run(geometry, 2, 8, Source::Pattern(Pattern::new(geometry, 2)));
    assert_eq!(
        (sent.pictures, received.shown, received.whole, received.torn),
        (8, 8, 8, 0),
        "{received:?}"
    );
    let head = b"YUV4MPEG2 W320 H90 F25:1 Ip A1:1 C422p10 XYSCSS=422P10\n";
    assert!(bytes.starts_with(head));
    let pattern = Pattern::new(geometry, 2);
    let (mut expected, mut at, mut wire) = (Vec::new(), head.len(), Vec::new());
    for number in 0..8 {
        pattern.draw(number, &mut expected);
        let planar = to_planar(geometry, &expected);
        assert_eq!(&bytes[at..at + 6], b"FRAME\n");
        assert!(bytes[at + 6..at + 6 + planar.len()] == planar, "picture {number}");
        to_wire(geometry, &bytes[at + 6..at + 6 + planar.len()], &mut wire);
        for part in 0..2 {
            let (part, range) = geometry.part(part, 2).expect("a part");
            assert_eq!(pattern_number(part, &wire[range]), Some(number as u16));
        }
        at += 6 + planar.len();
    }
    assert_eq!(at, bytes.len());
    assert!(
        received
            .parts
            .iter()
            .all(|p| p.whole == 8 && p.incomplete == 0 && p.refused_datagrams == 0),
        "{received:?}"
    );
}

#[test]
fn held_pictures_are_sent_in_turn() {
    let geometry = Geometry::new(320, 90, PixelFormat::Rgb8).expect("a size");
    let (sent, received, bytes) = run(geometry, 2, 7, Source::Held(3));
    assert_eq!(
        (sent.pictures, received.whole, received.torn),
        (7, 7, 0),
        "{received:?}"
    );
    // 320 pixels of three bytes in datagrams of 1,200: all but the last of a picture are of one length.
    assert!(sent.parts.iter().all(|p| p.superframes), "{sent:?}");
    let pattern = Pattern::new(geometry, 2);
    let mut expected = Vec::new();
    for (number, picture) in bytes.chunks_exact(geometry.bytes()).enumerate() {
        pattern.draw(number as u64 % 3, &mut expected);
        assert!(picture == expected, "picture {number}");
    }
}

#[test]
fn a_sender_that_is_late_sends_what_is_due_together() {
    // A thousand pictures per second of 300 datagrams each: 3 us for one, far below a wake-up.
    let geometry = Geometry::new(640, 180, PixelFormat::Rgb8).expect("a size");
    let nobody = UdpSocket::bind(SocketAddr::from(LOCAL)).expect("a socket");
    let mut config = send_config(geometry, &[nobody.local_addr().expect("an address")], Some(100));
    config.rate = (1_000, 1);
    let never = Arc::new(AtomicBool::new(false));
    let seen = Arc::new(Mutex::new(0));
    let kept = Arc::clone(&seen);
    config.parts[0].inspect = Some(Box::new(move |picture| {
        *kept.lock().expect("kept") = picture.len()
    }));
    let sent = send(config, Source::Held(2), &never).expect("sent");
    let part = &sent.parts[0];
    assert_eq!(*seen.lock().expect("seen"), geometry.bytes());
    assert_eq!(part.pictures, 100);
    assert!(part.calls * 4 < part.datagrams, "{part:?}");
    assert!(part.frame_bytes > 100 * geometry.bytes() as u64, "{part:?}");
}

#[test]
fn raw_rgb_goes_through_as_it_is() {
    let geometry = Geometry::new(33, 17, PixelFormat::Rgb8).expect("a size");
    let raw: Vec<u8> = (0..3 * geometry.bytes())
        .map(|i| (i * 7 + i / 256) as u8)
        .collect();
    let from = Box::new(std::io::Cursor::new(raw.clone()));
    let (_, received, bytes) = run(geometry, 3, 3, Source::Raw { from, geometry });
    assert_eq!(received.torn, 0);
    assert!(bytes == raw);
}

#[test]
fn garbage_is_counted_and_changes_nothing() {
    let geometry = Geometry::new(64, 16, PixelFormat::Yuv420b8).expect("a size");
    let kept = Kept::default();
    let output = Output {
        video: Some(Box::new(kept.clone())),
        ..Output::default()
    };
    let receiver = Receiver::bind(recv_config(geometry, 1, 2, output)).expect("a receiver");
    let to = receiver.addresses().expect("addresses");
    let garbage = UdpSocket::bind(SocketAddr::from(LOCAL)).expect("a socket");
    for i in 0..50usize {
        garbage
            .send_to(&vec![i as u8 | 0x80; 3 * i], to[0])
            .expect("sent");
    }
    let stop = Arc::new(AtomicBool::new(false));
    let receiving = std::thread::spawn(move || receiver.run(&stop));
    let never = Arc::new(AtomicBool::new(false));
    let pattern = Source::Pattern(Pattern::new(geometry, 1));
    send(send_config(geometry, &to, Some(2)), pattern, &never).expect("sent");
    let received = receiving.join().expect("a thread").expect("received");
    assert_eq!(
        (received.whole, received.torn, received.parts[0].refused_datagrams),
        (2, 0, 50)
    );
}

#[test]
fn a_part_that_does_not_come_tears_the_picture() {
    let geometry = Geometry::new(64, 16, PixelFormat::Rgb8).expect("a size");
    let here = tempfile::tempdir().expect("a folder");
    let png = here.path().join("torn.png");
    let output = Output {
        snapshot: Some(png.clone()),
        ..Output::default()
    };
    let mut config = recv_config(geometry, 2, 3, output);
    config.wait = PicoDuration::from_ms(5);
    let receiver = Receiver::bind(config).expect("a receiver");
    let mut to = receiver.addresses().expect("addresses");
    // The lower half goes to a socket that nobody reads.
    let nowhere = UdpSocket::bind(SocketAddr::from(LOCAL)).expect("a socket");
    to[1] = nowhere.local_addr().expect("an address");
    let stop = Arc::new(AtomicBool::new(false));
    let receiving = std::thread::spawn(move || receiver.run(&stop));
    let never = Arc::new(AtomicBool::new(false));
    let pattern = Source::Pattern(Pattern::new(geometry, 2));
    send(send_config(geometry, &to, Some(3)), pattern, &never).expect("sent");
    let received = receiving.join().expect("a thread").expect("received");
    assert_eq!((received.shown, received.whole, received.torn), (3, 0, 3));
    let bytes = std::fs::read(png).expect("a picture");
    assert_eq!(&bytes[..8], b"\x89PNG\r\n\x1a\n");
}

#[test]
fn what_cannot_be_sent_is_refused() {
    let geometry = Geometry::new(64, 2, PixelFormat::Rgb8).expect("a size");
    let never = Arc::new(AtomicBool::new(false));
    let nowhere = UdpSocket::bind(SocketAddr::from(LOCAL)).expect("a socket");
    let to = nowhere.local_addr().expect("an address");
    let try_send = |config| send(config, Source::Pattern(Pattern::new(geometry, 1)), &never);
    // More parts than lines.
    let error = try_send(send_config(geometry, &[to; 3], Some(1))).expect_err("too many parts");
    assert!(matches!(error, NetvError::BadInput(_)), "{error}");
    let mut config = recv_config(geometry, 3, 1, Output::default());
    assert!(Receiver::bind(config).is_err());
    // An address of another host.
    config = recv_config(geometry, 1, 1, Output::default());
    config.listen[0].0 = SocketAddr::from(([192, 0, 2, 1], 5004));
    assert!(Receiver::bind(config).is_err_and(|e| e.is_bad_input()));
}

#[test]
fn both_ends_stop_when_told() {
    let geometry = Geometry::new(64, 16, PixelFormat::Rgb8).expect("a size");
    let receiver = Receiver::bind(recv_config(geometry, 1, u64::MAX, Output::default())).expect("a receiver");
    let to = receiver.addresses().expect("addresses");
    let stop = Arc::new(AtomicBool::new(false));
    let (flag, sender_flag) = (Arc::clone(&stop), Arc::clone(&stop));
    let receiving = std::thread::spawn(move || receiver.run(&flag));
    let sending = std::thread::spawn(move || {
        let pattern = Source::Pattern(Pattern::new(geometry, 1));
        send(send_config(geometry, &to, None), pattern, &sender_flag)
    });
    stop.store(true, Ordering::Release);
    assert!(sending.join().expect("a thread").expect("sent").interrupted);
    assert!(receiving.join().expect("a thread").expect("received").interrupted);
}
