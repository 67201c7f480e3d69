//! `kuroshio probe` as a person starts it: with itself, with the real iperf3, in namespaces of its own.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Only a hang lasts so long.
const LONG: Duration = Duration::from_secs(60);

/// A program that ends with its test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A network namespace, held by a process that sleeps.
struct Namespace(Running);

impl Namespace {
    fn new() -> Self {
        let flags = if rustix::process::geteuid().is_root() {
            "-n"
        } else {
            "-Urn"
        };
        let child = Command::new("unshare")
            .args([flags, "sleep", "300"])
            .spawn()
            .expect("unshare");
        let it = Self(Running(child));
        // Until the process is in a namespace of its own and has become `sleep`.
        let ours = std::fs::read_link("/proc/self/ns/net").expect("namespace");
        let until = Instant::now() + LONG;
        let proc = PathBuf::from(format!("/proc/{}", it.pid()));
        while std::fs::read_link(proc.join("ns/net")).ok().as_ref() == Some(&ours)
            || std::fs::read_to_string(proc.join("comm"))
                .unwrap_or_default()
                .trim()
                != "sleep"
        {
            assert!(Instant::now() < until, "no namespace");
            std::thread::yield_now();
        }
        it
    }

    fn pid(&self) -> u32 {
        self.0.0.id()
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        let user = if rustix::process::geteuid().is_root() {
            vec![]
        } else {
            vec!["-U", "--preserve-credentials"]
        };
        command
            .args(["-t", &self.pid().to_string(), "-n"])
            .args(user)
            .arg(program);
        command
    }

    fn ip(&self, args: &str) {
        let status = self.command("ip").args(args.split(' ')).status().expect("ip");
        assert!(status.success(), "ip {args}");
    }
}

/// Two hosts on one wire of MTU 1500, 10.9.0.1 and .2, fd09::1 and ::2.
fn hosts() -> (Namespace, Namespace) {
    let (a, b) = (Namespace::new(), Namespace::new());
    a.ip(&format!(
        "link add wire0 mtu 1500 type veth peer name wire1 mtu 1500 netns {}",
        b.pid()
    ));
    for (host, dev, n) in [(&a, "wire0", 1), (&b, "wire1", 2)] {
        host.ip(&format!("addr add 10.9.0.{n}/24 dev {dev}"));
        host.ip(&format!("addr add fd09::{n}/64 dev {dev} nodad"));
        host.ip("link set lo up");
        host.ip(&format!("link set dev {dev} up"));
    }
    (a, b)
}

/// A server of ours; `wrap` may start it elsewhere.
struct Server {
    _running: Running,
    port: String,
    out: BufReader<std::process::ChildStdout>,
}

fn serve(mut command: Command, args: &[&str]) -> Server {
    command.args(["probe", "-s", "--json"]).args(args);
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    let mut running = Running(child);
    let mut log = BufReader::new(running.0.stderr.take().expect("stderr"));
    let mut line = String::new();
    assert!(log.read_line(&mut line).expect("log") > 0, "the server ended");
    let told: Value = serde_json::from_str(&line).expect(&line);
    assert_eq!(told["event"], "listening");
    let address = told["addresses"][0].as_str().expect("address");
    std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
    Server {
        port: address.rsplit(':').next().expect("port").to_owned(),
        out: BufReader::new(running.0.stdout.take().expect("stdout")),
        _running: running,
    }
}

fn kuroshio() -> Command {
    Command::new(env!("CARGO_BIN_EXE_kuroshio"))
}

fn output(mut command: Command, args: &[&str]) -> Output {
    command.args(args).stdin(Stdio::null()).output().expect("started")
}

fn json(output: &Output) -> Value {
    let (out, err) = (&output.stdout, String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{err}");
    serde_json::from_slice(out).unwrap_or_else(|e| panic!("{e}: {} {err}", String::from_utf8_lossy(out)))
}

fn keys(value: &Value) -> BTreeSet<String> {
    value.as_object().expect("an object").keys().cloned().collect()
}

#[test]
fn bad_input_is_refused_with_a_clear_text() {
    let table: &[(&[&str], &str)] = &[
        (&[], "required"),
        (&["-s", "-c", "h"], "cannot be used with"),
        (&["-c", "h", "-t", "10"], "has no unit"),
        (&["-c", "h", "-t", "0s"], "the time is from 1ms to 24h"),
        (&["-c", "h", "-t", "25h"], "at most 86400"),
        (&["-c", "h", "-t", "1s", "-n", "1MB"], "cannot be used with"),
        (&["-c", "h", "-n", "0B"], "at least 1B"),
        (&["-c", "h", "-n", "5"], "has no unit"),
        (
            &["-c", "h", "-n", "1MB", "-O", "1s"],
            "omitted seconds go with a time",
        ),
        (&["-c", "h", "-O", "1.5s"], "whole seconds"),
        (&["-c", "h", "-O", "601s"], "at most 600"),
        (&["-c", "h", "-i", "10ms"], "the interval is from 100ms"),
        (&["-c", "h", "-t", "24h", "-i", "100ms"], "take a longer interval"),
        (&["-c", "h", "-P", "0"], "from 1 to 128"),
        (&["-c", "h", "-P", "129"], "at most 128"),
        (&["-c", "h", "-P", "x"], "invalid value"),
        (&["-c", "h", "--rate", "800"], "has no unit"),
        (&["-c", "h", "--rate", "0bps"], "is zero"),
        (&["-c", "h", "--rate", "3bps", "-P", "4"], "cannot be shared by 4"),
        (&["-c", "h", "-w", "64K"], "unknown unit"),
        (&["-c", "h", "-w", "2GiB"], "window"),
        (&["-c", "h", "-l", "2MiB"], "at most 1048576"),
        (&["-c", "h", "-u", "-l", "8B"], "at least 16"),
        (&["-c", "h", "-u", "-l", "66000B"], "at most 65507"),
        (&["-c", "h", "-M", "50B"], "MSS below 88"),
        (&["-c", "h", "-C", "a name that is far too long"], "congestion"),
        (&["-c", "h", "-u", "-C", "cubic"], "leave --udp out"),
        (&["-c", "h", "-R", "--bidir"], "cannot be used with"),
        (&["-c", "h", "-4", "-6"], "cannot be used with"),
        (&["-c", "h", "-B", "here"], "invalid value"),
        (&["-c", "h", "-p", "70000"], "invalid value"),
        (&["-c", "h", "--distance", "35755"], "such as 15461km"),
        (&["-c", "h", "--distance", "-1km"], "such as 15461km"),
        (&["-c", "h", "--distance", "infkm"], "such as 15461km"),
        (&["-c", "h", "--connect-timeout", "0s"], "above zero"),
        (&["-c", "h", "--listen", "::"], "cannot be used with"),
        (&["-s", "-P", "2"], "cannot be used with"),
        (&["-s", "--listen", "localhost"], "write an address"),
        (&["-s", "--listen", "10.0.0.256"], "write an address"),
        (&["-s", "--sessions", "0"], "from 1 to 64"),
        (&["-s", "--max-time", "0s"], "from 1s to 24h"),
        (&["-s", "--max-bytes", "0B"], "at least 1B"),
    ];
    for (args, why) in table {
        // clap takes what begins with a dash as a flag unless it is joined.
        let all: Vec<&str> = ["probe"].iter().chain(args.iter()).copied().collect();
        let all: Vec<String> = if all.contains(&"-1km") {
            vec!["probe".into(), "-c".into(), "h".into(), "--distance=-1km".into()]
        } else {
            all.into_iter().map(str::to_owned).collect()
        };
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let done = output(kuroshio(), &all);
        let err = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(2), "{args:?}: {err}");
        assert!(err.contains(why), "{args:?}: {err}");
        assert!(done.stdout.is_empty(), "{args:?}");
    }
}

#[test]
fn failures_of_the_network_exit_with_one() {
    // Nobody listens on a port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .expect("bound")
        .local_addr()
        .expect("address")
        .port();
    for args in [
        &["probe", "-c", "127.0.0.1", "-p", &port.to_string()][..],
        &["probe", "-c", "no-such-host.invalid"],
        &["probe", "-s", "--listen", "192.0.2.77:0"],
    ] {
        let done = output(kuroshio(), args);
        let err = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(1), "{args:?}: {err}");
        assert!(err.starts_with("kuroshio: "), "{err}");
    }
}

/// Everything that iperf3 has in its JSON is in ours, but for what we have no word for.
#[test]
fn our_json_has_iperf3_s_shape() {
    let server = serve(kuroshio(), &["--listen", "127.0.0.1:0"]);
    for extra in [&[][..], &["-R"], &["-u"], &["--bidir"]] {
        let (seconds, our_seconds) = (["-t", "1"], ["-t", "1s"]);
        let theirs = {
            let mut command = Command::new("iperf3");
            command
                .args(["-c", "127.0.0.1", "-p", &server.port, "-J"])
                .args(seconds)
                .args(extra);
            json(&command.output().expect("iperf3 is installed (scripts/deps test)"))
        };
        let ours = {
            let mut command = kuroshio();
            command
                .args(["probe", "-c", "127.0.0.1", "-p", &server.port, "--json"])
                .args(our_seconds)
                .args(extra);
            json(&command.output().expect("started"))
        };
        let pairs: &[(&str, &[&str])] = &[
            ("", &[]),
            ("/start", &[]),
            ("/start/connected/0", &[]),
            ("/start/test_start", &[]),
            ("/intervals/0", &[]),
            ("/intervals/0/sum", &[]),
            ("/intervals/0/streams/0", &[]),
            ("/end", &[]),
            ("/end/sum_sent", &[]),
            ("/end/sum_received", &[]),
            ("/end/streams/0", &[]),
            ("/end/cpu_utilization_percent", &[]),
        ];
        for (path, without) in pairs {
            let Some(wanted) = theirs.pointer(path) else {
                continue;
            };
            let found = ours
                .pointer(path)
                .unwrap_or_else(|| panic!("{extra:?}: no {path}"));
            let missing: Vec<String> = keys(wanted)
                .difference(&keys(found))
                .filter(|k| !without.contains(&k.as_str()))
                .cloned()
                .collect();
            assert!(missing.is_empty(), "{extra:?} {path}: {missing:?}");
        }
        let own = &ours["kuroshio"];
        for key in [
            "frame_rate_bps",
            "startup",
            "window_advice",
            "remote",
            "pacing",
            "machine_cpu_percent",
        ] {
            assert!(
                own.get(key).is_some_and(|v| !v.is_null()),
                "{extra:?}: {key} in {own}"
            );
        }
    }
}

#[test]
fn two_hosts_on_a_wire_of_mtu_1500() {
    let (a, b) = hosts();
    let bin = env!("CARGO_BIN_EXE_kuroshio");
    let mut server = serve(b.command(bin), &["--listen", "[::]:0"]);
    for (address, payload) in [("10.9.0.2", 1448), ("fd09::2", 1428)] {
        let args = [
            "probe",
            "-c",
            address,
            "-p",
            &server.port,
            "-t",
            "2s",
            "-i",
            "500ms",
            "--rate",
            "100M",
        ];
        let more = ["-P", "2", "-C", "cubic", "--distance", "35755km", "--json"];
        let done = json(&output(a.command(bin), &[&args[..], &more].concat()));
        let own = &done["kuroshio"];
        let frame = own["frame_rate_bps"].as_f64().expect("rate");
        println!("{address}: {frame:.0} bit/s at frame level for 100 Mbps");
        assert!((50e6..102e6).contains(&frame), "{own}");
        assert_eq!(done["start"]["tcp_mss_default"], payload);
        assert_eq!(own["mtu_advice"]["path_mtu_bytes"], 1500);
        assert_eq!(own["target_rate_bps"], 100_000_000);
        let goodput = own["goodput_bps"].as_f64().expect("goodput");
        let ratio = goodput / frame / (f64::from(payload) / 1518.0);
        assert!((0.9..1.1).contains(&ratio), "{goodput} of {frame}");
        let speed = own["land_speed_tbm_per_s"].as_f64().expect("land speed");
        assert!(
            (speed - goodput * 35_755_000.0 / 1e12).abs() <= 1.0,
            "{speed} {goodput}"
        );
        // A machine that stops for half a second makes one of two.
        let intervals = done["intervals"].as_array().expect("intervals");
        assert!((1..=4).contains(&intervals.len()), "{done}");
        let counted: u64 = intervals.iter().filter_map(|i| i["sum"]["bytes"].as_u64()).sum();
        assert_eq!(Some(counted), done["end"]["sum_sent"]["bytes"].as_u64());
        let mut line = String::new();
        server.out.read_line(&mut line).expect("the server's report");
        let theirs: Value = serde_json::from_str(&line).expect("json");
        assert_eq!(
            theirs["end"]["sum_received"]["bytes"],
            done["end"]["sum_received"]["bytes"]
        );
    }
    for (address, payload) in [("10.9.0.2", 1448), ("fd09::2", 1428)] {
        let udp = [
            "probe",
            "-c",
            address,
            "-p",
            &server.port,
            "-u",
            "-t",
            "1s",
            "--rate",
            "20M",
            "--json",
        ];
        let done = json(&output(a.command(bin), &udp));
        // What fits a segment on this path fits a datagram's frame.
        assert_eq!(done["start"]["test_start"]["blksize"], payload);
        assert!(
            done["end"]["sum"]["packets"].as_u64().is_some_and(|n| n > 100),
            "{done}"
        );
    }
}

#[test]
fn the_table_for_people_has_intervals_and_a_summary() {
    let server = serve(kuroshio(), &["--listen", "127.0.0.1:0"]);
    let args = [
        "probe",
        "-c",
        "127.0.0.1",
        "-p",
        &server.port,
        "-t",
        "1s",
        "-i",
        "500ms",
        "-P",
        "2",
    ];
    let done = output(kuroshio(), &args);
    let text = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{text}");
    for part in [
        "[ ID] Interval",
        "[  3]",
        "[SUM]",
        "sent from here",
        "received",
        "CPU",
        "window",
        "MTU",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn a_server_listens_on_loopback_only_and_ends_after_one_test() {
    let (a, b) = hosts();
    let bin = env!("CARGO_BIN_EXE_kuroshio");
    let mut server = serve(b.command(bin), &["-1", "-p", "5999"]);
    assert_eq!(server.port, "5999");
    let away = output(
        a.command(bin),
        &["probe", "-c", "10.9.0.2", "-p", "5999", "-t", "1s"],
    );
    assert_eq!(
        away.status.code(),
        Some(1),
        "{}",
        String::from_utf8_lossy(&away.stdout)
    );
    for address in ["127.0.0.1", "::1"] {
        let near = output(
            b.command(bin),
            &["probe", "-c", address, "-p", "5999", "-n", "1MB", "--json"],
        );
        let expected = if address == "::1" { Some(1) } else { Some(0) };
        assert_eq!(
            near.status.code(),
            expected,
            "{address}: {}",
            String::from_utf8_lossy(&near.stderr)
        );
    }
    let mut rest = String::new();
    server.out.read_to_string(&mut rest).expect("its output");
    assert_eq!(rest.lines().count(), 1, "{rest}");
}
