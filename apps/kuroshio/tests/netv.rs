//! `kuroshio netv` as a person starts it: two processes over loopback.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

fn command(args: &[&str]) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_kuroshio"));
    c.arg("netv").args(args).stdin(Stdio::null());
    c
}

fn kuroshio(args: &[&str]) -> Output {
    command(args).output().expect("started")
}

/// A folder with an `ffplay` that does what this script says.
fn player(script: &str) -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("ffplay");
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("a script");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("executable");
    folder
}

/// A receiver with a window, its player's folder first in PATH, and the address that it listens at.
fn with_window(folder: &std::path::Path, more: &[&str]) -> (Receiver, String) {
    let mut receive = command(&["recv", "--listen", "127.0.0.1:0", "--display", "--time", "60s"]);
    let path = format!("{}:/usr/bin:/bin", folder.display());
    receive
        .args(["--size", "64x32", "--fps", "50", "--json"])
        .args(more)
        .env("PATH", path)
        .env("DISPLAY", ":0")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut receiver = Receiver(receive.spawn().expect("started"));
    let mut err = BufReader::new(receiver.0.stderr.take().expect("a pipe"));
    let mut line = String::new();
    while !line.contains("video on") {
        line.clear();
        assert!(err.read_line(&mut line).expect("a line") > 0, "no address");
    }
    let to = line.trim().rsplit(' ').next().unwrap_or_default().to_owned();
    (receiver, to)
}

#[test]
fn a_window_shows_what_comes() {
    let folder = player("echo \"$@\" > \"$(dirname \"$0\")/told\"; cat > \"$(dirname \"$0\")/seen\"");
    let (mut receiver, to) = with_window(folder.path(), &["--pictures", "5"]);
    let sent = kuroshio(&[
        "send",
        "--to",
        &to,
        "--size",
        "64x32",
        "--fps",
        "50",
        "--pictures",
        "5",
    ]);
    assert_eq!(sent.status.code(), Some(0), "{sent:?}");
    assert!(receiver.0.wait().expect("ended").success());
    let read = |name: &str| std::fs::read(folder.path().join(name)).expect("the player's file");
    assert!(String::from_utf8_lossy(&read("told")).contains("-f yuv4mpegpipe -i -"));
    let seen = read("seen");
    let header = b"YUV4MPEG2 W64 H32 F50:1 Ip A1:1 C422\n";
    assert!(seen.starts_with(header));
    assert_eq!(seen.len(), header.len() + 5 * (b"FRAME\n".len() + 64 * 32 * 2));
}

#[test]
fn a_window_that_is_closed_ends_the_receiver_well() {
    let folder = player("head -c 100 > /dev/null");
    let (mut receiver, to) = with_window(folder.path(), &[]);
    // The sender goes on until the receiver has ended.
    let _sender = Receiver(
        command(&["send", "--to", &to, "--size", "64x32", "--fps", "50"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("started"),
    );
    let mut text = String::new();
    let mut out = receiver.0.stdout.take().expect("a pipe");
    out.read_to_string(&mut text).expect("text");
    assert!(receiver.0.wait().expect("ended").success(), "{text}");
    let report: Value = serde_json::from_str(&text).expect("json");
    assert_eq!(report["interrupted"], false, "{text}");
}

#[test]
fn a_window_needs_a_display_and_a_player() {
    let refused = |args: &[&str], path: &str, display: &str| {
        let mut c = command(&["recv", "--listen", "127.0.0.1:0", "--display"]);
        c.args(args)
            .env("PATH", path)
            .env("DISPLAY", display)
            .env_remove("WAYLAND_DISPLAY");
        let done = c.output().expect("started");
        assert_eq!(done.status.code(), Some(2), "{done:?}");
        String::from_utf8_lossy(&done.stderr).into_owned()
    };
    let folder = player("cat > /dev/null");
    let path = folder.path().to_str().expect("a path");
    assert!(refused(&[], path, "").contains("neither DISPLAY nor WAYLAND_DISPLAY"));
    assert!(refused(&[], "/nonexistent", ":0").contains("neither ffplay (ffmpeg) nor mpv"));
    assert!(refused(&["--format", "rgb10"], path, ":0").contains("rgb10"));
    assert!(refused(&["--out", "-"], path, ":0").contains("--out"));
}

/// A receiver that ends with the test.
struct Receiver(Child);

impl Drop for Receiver {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn bad_input_is_refused_with_a_clear_text() {
    let to = "127.0.0.1:9";
    let table: &[(&[&str], &str)] = &[
        (&["send"], "--to"),
        (&["send", "--to", "nowhere"], "nowhere"),
        (&["send", "--to", to, "--size", "1920"], "1920x1080"),
        (&["send", "--to", to, "--size", "99999x2"], "from 1x1"),
        (&["send", "--to", to, "--size", "3x2"], "multiple of 2"),
        (&["send", "--to", to, "--format", "yuv"], "yuv422-8"),
        (&["send", "--to", to, "--fps", "0"], "30000/1001"),
        (&["send", "--to", to, "--fps", "30/0"], "30000/1001"),
        (&["send", "--to", to, "--mtu", "1500"], "has no unit"),
        (&["send", "--to", to, "--mtu", "100B"], "from 576B"),
        (
            &["send", "--to", to, "--source", "/nonexistent.y4m"],
            "No such file",
        ),
        (&["send", "--to", to, "--source", "/proc/self/cmdline"], "y4m"),
        (&["send", "--to", to, "--bind", "127.0.0.1,127.0.0.1"], "--bind"),
        (
            &[
                "send",
                "--to",
                "127.0.0.1:9,127.0.0.1:9,127.0.0.1:9",
                "--size",
                "8x2",
            ],
            "parts",
        ),
        (&["send", "--to", to, "--rail", "1,1"], "2 rails for 1 parts"),
        (&["recv", "--listen", "192.0.2.1:5004"], "--listen 192.0.2.1:5004"),
        (
            &["recv", "--listen", "127.0.0.1:0", "--wait", "20"],
            "has no unit",
        ),
        (&["recv", "--listen", "127.0.0.1:0", "--wait", "20s"], "up to 10s"),
        (
            &["recv", "--listen", "127.0.0.1:0", "--out", "/nonexistent/x"],
            "--out",
        ),
    ];
    for (args, why) in table {
        let done = kuroshio(args);
        let err = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(2), "{args:?}: {err}");
        assert!(err.contains(why), "{args:?}: {err}");
    }
}

#[test]
fn two_halves_arrive_and_are_measured() {
    let here = tempfile::tempdir().expect("a folder");
    let png = here.path().join("last.png");
    let sdp = here.path().join("part");
    let (png_text, sdp_text) = (png.to_str().expect("a path"), sdp.to_str().expect("a path"));
    let size = ["--size", "320x180", "--fps", "25", "--pictures", "10", "--json"];
    let mut receive = command(&[
        "recv",
        "--listen",
        "127.0.0.1:0,127.0.0.1:0",
        "--wait",
        "5s",
        "--time",
        "60s",
    ]);
    receive
        .args(["--snapshot", png_text, "--rail", "auto"])
        .args(size)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut receiver = Receiver(receive.spawn().expect("started"));
    let mut err = BufReader::new(receiver.0.stderr.take().expect("a pipe"));
    let mut line = String::new();
    while !line.contains("video on") {
        line.clear();
        assert!(err.read_line(&mut line).expect("a line") > 0, "no address");
    }
    let to: Vec<&str> = line
        .trim()
        .rsplit("video on ")
        .next()
        .unwrap_or_default()
        .split(", ")
        .collect();
    let sent = command(&["send", "--to", &to.join(","), "--sdp", sdp_text])
        .args(size)
        .output()
        .expect("started");
    assert_eq!(sent.status.code(), Some(0), "{sent:?}");
    let report: Value = serde_json::from_slice(&sent.stdout).expect("json");
    assert_eq!(
        (report["pictures"].as_u64(), report["parts"][1]["lines"].as_u64()),
        (Some(10), Some(90))
    );
    let mut text = String::new();
    receiver
        .0
        .stdout
        .take()
        .expect("a pipe")
        .read_to_string(&mut text)
        .expect("text");
    assert!(receiver.0.wait().expect("ended").success());
    let report: Value = serde_json::from_str(&text).expect("json");
    assert_eq!(
        (report["whole"].as_u64(), report["torn"].as_u64()),
        (Some(10), Some(0)),
        "{text}"
    );
    assert!(
        report["alignment_max_us"].as_f64().is_some_and(|us| us >= 0.0),
        "{text}"
    );
    assert_eq!(&std::fs::read(png).expect("a picture")[1..4], b"PNG");
    let sdp = std::fs::read_to_string(here.path().join("part-2.sdp")).expect("a description");
    assert!(
        sdp.contains("a=rtpmap:96 raw/90000") && sdp.contains("height=90"),
        "{sdp}"
    );
}
