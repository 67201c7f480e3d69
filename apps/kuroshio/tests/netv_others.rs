//! `kuroshio netv` with GStreamer and FFmpeg at the other end. Where they are not installed (`scripts/deps test` does), each test
//! says so and looks at nothing.

use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use kuroshio_core::video::{Geometry, PixelFormat};
use kuroshio_netv::{Pattern, parse_header};

/// How long another program may take to do anything.
const PATIENCE: Duration = Duration::from_secs(60);

/// Whether a program starts.
fn there(program: &str) -> bool {
    let version = if program == "ffmpeg" {
        "-version"
    } else {
        "--version"
    };
    let started = Command::new(program)
        .arg(version)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    let there = started.is_ok_and(|s| s.success());
    if !there {
        eprintln!("SKIPPED: {program} is not installed; `scripts/deps test` installs it");
    }
    there
}

/// A program that ends with the test.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn kuroshio(args: &[&str]) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_kuroshio"));
    c.arg("netv").args(args).stdin(Stdio::null());
    c
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < end, "waited {PATIENCE:?} for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whether a socket of this machine is bound to a UDP port.
fn bound(port: u16) -> bool {
    let end = format!(":{port:04X}");
    ["/proc/net/udp", "/proc/net/udp6"].iter().any(|file| {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        text.lines().any(|l| {
            l.split_whitespace()
                .nth(1)
                .is_some_and(|local| local.ends_with(&end))
        })
    })
}

/// A port that nobody has.
fn free_port() -> u16 {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    socket.local_addr().expect("an address").port()
}

/// Pictures of the pattern's lower half, one after the other, as the wire has them.
fn lower_half(geometry: Geometry, pictures: u64) -> Vec<u8> {
    let (pattern, mut picture, mut all) = (Pattern::new(geometry, 2), Vec::new(), Vec::new());
    let (_, range) = geometry.part(1, 2).expect("a part");
    for number in 0..pictures {
        pattern.draw(number, &mut picture);
        all.extend_from_slice(&picture[range.clone()]);
    }
    all
}

/// Sends a pattern to two ports of which `port` is the lower half's, until `done`.
fn send_until(port: u16, format: &str, sdp: Option<&str>, done: impl FnMut() -> bool) {
    let nobody = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let to = format!("{},127.0.0.1:{port}", nobody.local_addr().expect("an address"));
    let mut args = vec![
        "send", "--to", &to, "--size", "320x180", "--fps", "10", "--format", format,
    ];
    if let Some(prefix) = sdp {
        args.extend(["--sdp", prefix]);
    }
    let sender = kuroshio(&args)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let _sender = Ends(sender.expect("started"));
    wait_for("pictures at the other end", done);
}

/// Whether two pictures that followed each other when they were sent do so in what came. A slow machine may have lost others.
fn follows(got: &[u8], sent: &[u8], bytes: usize) -> bool {
    let pairs =
        || (0..(sent.len() / bytes).saturating_sub(1)).filter_map(|n| sent.get(n * bytes..(n + 2) * bytes));
    let two = |i: usize| got.get(i * bytes..(i + 2) * bytes);
    (0..got.len() / bytes)
        .filter_map(two)
        .any(|two| pairs().any(|pair| pair == two))
}

#[test]
fn gstreamer_receives_a_part() {
    if !there("gst-launch-1.0") {
        return;
    }
    for (format, kind, sampling, depth) in [
        ("yuv422-8", PixelFormat::Yuv422b8, "YCbCr-4:2:2", "8"),
        ("rgb8", PixelFormat::Rgb8, "RGB", "8"),
    ] {
        let here = tempfile::tempdir().expect("a folder");
        let file = here.path().join("part.raw");
        let port = free_port();
        let caps = format!(
            "application/x-rtp,media=video,clock-rate=90000,encoding-name=RAW,sampling={sampling},depth=(string){depth},\
             width=(string)320,height=(string)90"
        );
        let gst = Command::new("gst-launch-1.0")
            .args([
                "-q",
                "udpsrc",
                "address=127.0.0.1",
                &format!("port={port}"),
                &format!("caps={caps}"),
            ])
            .args(["!", "rtpvrawdepay", "!", "filesink", "buffer-mode=unbuffered"])
            .arg(format!("location={}", file.display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        let _gst = Ends(gst.expect("started"));
        wait_for("GStreamer's socket", || bound(port));
        let geometry = Geometry::new(320, 180, kind).expect("a size");
        let (part, _) = geometry.part(1, 2).expect("a part");
        // 20 s of pictures; the first come within one or two.
        let sent = lower_half(geometry, 200);
        send_until(port, format, None, || {
            let got = std::fs::read(&file).unwrap_or_default();
            got.len() >= 4 * part.bytes() && follows(&got, &sent, part.bytes())
        });
    }
}

/// Receives y4m from `args` and gives what was written.
fn received(sender: impl FnOnce(&str) -> Child, pictures: u64, format: &str) -> Vec<u8> {
    let number = pictures.to_string();
    let mut receive = kuroshio(&[
        "recv",
        "--listen",
        "127.0.0.1:0,127.0.0.1:0",
        "--size",
        "320x180",
        "--fps",
        "25",
        "--format",
        format,
        "--wait",
        "5s",
        "--time",
        "60s",
        "--pictures",
        &number,
        "--out",
        "-",
    ]);
    let child = receive.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut receiver = Ends(child.expect("started"));
    let mut err = BufReader::new(receiver.0.stderr.take().expect("a pipe"));
    let mut line = String::new();
    while !line.contains("video on ") {
        line.clear();
        assert!(err.read_line(&mut line).expect("a line") > 0, "no address");
    }
    let to: Vec<SocketAddr> = line
        .trim()
        .rsplit("video on ")
        .next()
        .unwrap_or_default()
        .split(", ")
        .map(|a| a.parse().expect("an address"))
        .collect();
    let to = to.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let mut sender = Ends(sender(&to));
    let mut out = Vec::new();
    receiver
        .0
        .stdout
        .take()
        .expect("a pipe")
        .read_to_end(&mut out)
        .expect("video");
    assert!(receiver.0.wait().expect("ended").success());
    assert!(sender.0.wait().expect("ended").success());
    out
}

/// A program's output into `netv send --source -`.
fn piped(mut source: Command, to: &str) -> Child {
    let mut made = source
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("started");
    let pipe = made.stdout.take().expect("a pipe");
    let sender = kuroshio(&["send", "--to", to, "--source", "-"])
        .stdin(pipe)
        .stdout(Stdio::null())
        .spawn()
        .expect("started");
    // It ends when it has written all; nobody waits for it before that.
    std::thread::spawn(move || made.wait());
    sender
}

/// The planes of each picture of a y4m stream.
fn pictures(y4m: &[u8]) -> (Geometry, Vec<Vec<u8>>) {
    let end = y4m.iter().position(|b| *b == b'\n').expect("a header");
    let header = parse_header(&y4m[..end]).expect("a header");
    let planes = kuroshio_netv::planar_bytes(header.geometry);
    let mut rest = &y4m[end + 1..];
    let mut all = Vec::new();
    while let Some(line) = rest.iter().position(|b| *b == b'\n') {
        assert!(rest.starts_with(b"FRAME"));
        all.push(rest[line + 1..line + 1 + planes].to_vec());
        rest = &rest[line + 1 + planes..];
    }
    (header.geometry, all)
}

#[test]
fn gstreamer_s_pictures_come_out_of_the_far_end() {
    if !there("gst-launch-1.0") {
        return;
    }
    // `ball` has no noise: two runs draw the same.
    let source = || {
        let mut gst = Command::new("gst-launch-1.0");
        gst.args(["-q", "videotestsrc", "pattern=ball", "num-buffers=6", "!"])
            .args(["video/x-raw,format=I420,width=320,height=180,framerate=25/1", "!"])
            .args(["y4menc", "!", "fdsink", "fd=1"]);
        gst
    };
    let drawn = source().stdin(Stdio::null()).output().expect("started").stdout;
    let out = received(|to| piped(source(), to), 6, "yuv420-8");
    let ((size, sent), (_, got)) = (pictures(&drawn), pictures(&out));
    assert_eq!((size.width(), size.height(), sent.len()), (320, 180, 6));
    assert!(got == sent, "other pictures than GStreamer drew");
    assert!(sent[0] != sent[5], "the ball moves");
}

#[test]
fn ffmpeg_s_pictures_come_out_of_the_far_end() {
    if !there("ffmpeg") {
        return;
    }
    for (format, theirs) in [
        ("yuv422-8", "yuv422p"),
        ("yuv422-10", "yuv422p10le"),
        ("yuv444-8", "yuv444p"),
    ] {
        let source = || {
            let mut ffmpeg = Command::new("ffmpeg");
            ffmpeg
                .args([
                    "-v",
                    "error",
                    "-f",
                    "lavfi",
                    "-i",
                    "testsrc2=size=320x180:rate=25",
                    "-frames:v",
                    "6",
                ])
                .args(["-pix_fmt", theirs, "-strict", "-1", "-f", "yuv4mpegpipe", "-"]);
            ffmpeg
        };
        let drawn = source().stdin(Stdio::null()).output().expect("started").stdout;
        let out = received(|to| piped(source(), to), 6, format);
        let ((_, sent), (_, got)) = (pictures(&drawn), pictures(&out));
        assert_eq!(sent.len(), 6);
        assert!(got == sent, "{format}: other pictures than FFmpeg drew");
    }
}

#[test]
fn ffmpeg_receives_a_part_by_its_description() {
    if !there("ffmpeg") {
        return;
    }
    let here = tempfile::tempdir().expect("a folder");
    let port = free_port();
    let prefix = here.path().join("part");
    let (file, sdp) = (here.path().join("part.raw"), here.path().join("part-2.sdp"));
    let geometry = Geometry::new(320, 180, PixelFormat::Yuv422b8).expect("a size");
    let (part, _) = geometry.part(1, 2).expect("a part");
    let mut ffmpeg: Option<Ends> = None;
    send_until(port, "yuv422-8", prefix.to_str(), || {
        let written = |path: &Path| std::fs::read_to_string(path).is_ok_and(|text| text.contains("a=fmtp"));
        if ffmpeg.is_none() && written(&sdp) {
            let started = Command::new("ffmpeg")
                .args([
                    "-v",
                    "error",
                    "-protocol_whitelist",
                    "file,udp,rtp",
                    "-buffer_size",
                    "4000000",
                    "-i",
                ])
                .arg(&sdp)
                .args(["-frames:v", "5", "-pix_fmt", "uyvy422", "-f", "rawvideo"])
                .arg(&file)
                .stdin(Stdio::null())
                .spawn();
            ffmpeg = Some(Ends(started.expect("started")));
        }
        let ended = ffmpeg
            .as_mut()
            .is_some_and(|f| f.0.try_wait().is_ok_and(|s| s.is_some()));
        ended && file.exists()
    });
    let got = std::fs::read(&file).expect("pictures");
    let sent = lower_half(geometry, 400);
    assert!(
        follows(&got, &sent, part.bytes()),
        "other pictures than were sent"
    );
}
