//! The instruments of `kuroshio testbed` against traffic whose frames are known: meters, metrics, captures, TCP's figures.
//!
//! Needs root or user namespaces, as the testbed itself. The testbed is taken down also when a test fails.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use pcap_file::pcapng::{Block, PcapNgReader};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(60);
/// Datagrams of a burst, and the bytes of each.
const BURST: u64 = 500;
const PAYLOAD: u64 = 1_000;
/// UDP, IPv4, MAC header, FCS.
const FRAME: u64 = PAYLOAD + 8 + 20 + 14 + 4;

const METER: &str = r#"
[[meter]]
name = "sea"
at = "pacific:japan>california"
windows = ["1ms", "100ms"]
keep = 20000
"#;

struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    fn up() -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let guide = include_str!("../../../docs/testbed.md");
        let (_, rest) = guide.split_once("```toml\n").expect("a topology in the guide");
        let (topology, _) = rest.split_once("```").expect("its end");
        std::fs::write(dir.path().join("three.toml"), format!("{topology}{METER}")).expect("the topology");
        let bench = Bench { dir };
        bench.ok(&["up", "three.toml"]);
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kuroshio"));
        command
            .arg("testbed")
            .args(args)
            .current_dir(self.dir.path())
            .env("KUROSHIO_TESTBED_DIR", self.path("run"));
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("kuroshio")
    }

    fn ok(&self, args: &[&str]) -> String {
        let out = self.run(args);
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        let error = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{args:?}: {} {text} {error}", out.status);
        text
    }

    fn json(&self, args: &[&str]) -> Value {
        let text = self.ok(args);
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{args:?}: {e}: {text}"))
    }

    fn refused(&self, args: &[&str], code: i32, words: &str) {
        let out = self.run(args);
        let text = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(code), "{args:?}: {text}");
        assert!(text.contains(words), "{args:?}: {words:?} is not in: {text}");
    }

    /// This test program in a host, as what [`in_a_host`] is told to be.
    fn role(&self, host: &str, role: &str) -> Command {
        let this = std::env::current_exe().expect("this program");
        let this = this.to_str().expect("a path");
        let words = [
            "exec",
            host,
            "--",
            this,
            "--exact",
            "in_a_host",
            "--ignored",
            "--quiet",
        ];
        let mut command = self.command(&words);
        command
            .env("ROLE", role)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }

    /// A burst of datagrams from tokyo to sandiego.
    fn burst(&self, port: u16) {
        let status = self.role("tokyo", &format!("burst 10.0.1.2:{port}")).status();
        assert!(status.expect("kuroshio").success());
    }

    /// The series of a meter, `None` for the sum.
    fn series(&self, meter: &str, stream: Option<&str>) -> Value {
        let all = self.json(&["meter", "ls", "--json"]);
        let found = all["meters"]
            .as_array()
            .expect("meters")
            .iter()
            .find(|m| m["meter"] == meter);
        let series = found.unwrap_or_else(|| panic!("no {meter} in {all}"))["series"].clone();
        let series = series.as_array().expect("series").clone();
        let wanted = |s: &&Value| match (s["stream"].as_str(), stream) {
            (None, None) => true,
            (Some(name), Some(part)) => name.contains(part),
            _ => false,
        };
        series.iter().find(wanted).cloned().unwrap_or(Value::Null)
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.run(&["down", "--name", "three"]);
    }
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < end, "waited {PATIENCE:?} for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Bytes of a transfer by TCP.
const TRANSFER: usize = 4 << 20;

#[test]
#[ignore = "run in hosts by the other tests"]
fn in_a_host() {
    let role = std::env::var("ROLE").expect("a role");
    let (what, address) = role.split_once(' ').expect("two words");
    let address: SocketAddr = address.parse().expect("an address");
    match what {
        "burst" => {
            let socket = UdpSocket::bind("0.0.0.0:0").expect("bind");
            for _ in 0..BURST {
                // Not connected: that nobody listens is then no error of a later datagram.
                let sent = socket.send_to(&[7; PAYLOAD as usize], address);
                assert_eq!(sent.expect("send") as u64, PAYLOAD);
            }
        }
        "receive" => {
            let listener = TcpListener::bind(address).expect("bind");
            for mut stream in listener.incoming().flatten() {
                let mut all = Vec::new();
                stream.read_to_end(&mut all).expect("read");
                stream
                    .write_all(&(all.len() as u64).to_be_bytes())
                    .expect("write");
            }
        }
        _ => {
            let end = Instant::now() + PATIENCE;
            let mut stream = loop {
                match TcpStream::connect(address) {
                    Ok(stream) => break stream,
                    Err(e) => assert!(Instant::now() < end, "{address}: {e}"),
                }
            };
            stream.write_all(&vec![7; TRANSFER]).expect("write");
            stream.shutdown(std::net::Shutdown::Write).expect("shutdown");
            let mut count = [0; 8];
            stream.read_exact(&mut count).expect("an answer");
            assert_eq!(u64::from_be_bytes(count), TRANSFER as u64);
        }
    }
}

fn sum(rows: &[Value], name: &str) -> u64 {
    rows.iter().filter_map(|r| r[name].as_u64()).sum()
}

/// The rows of `meter read --json`, with the head checked.
fn rows(bench: &Bench, meter: &str, window: &str) -> Vec<Value> {
    let text = bench.ok(&["meter", "read", meter, "--window", window, "--json"]);
    let mut lines = text
        .lines()
        .map(|l| serde_json::from_str::<Value>(l).expect("JSON"));
    let head = lines.next().expect("a head");
    assert_eq!(head["event"], "head");
    assert!(head["run_begin_monotonic_ns"].as_u64() > Some(0));
    assert!(head["sync"]["max_error_us"].is_i64(), "{head}");
    lines.collect()
}

#[test]
fn meters_count_every_frame_once() {
    let bench = Bench::up();
    bench.ok(&[
        "meter",
        "add",
        "web",
        "sandiego/p0",
        "--filter",
        "udp and dst port 7001 and src 10.0.1.0/24",
        "--window",
        "500us",
        "--window",
        "1s",
        "--streams",
        "2",
        "--keep",
        "20000",
    ]);
    bench.ok(&[
        "meter",
        "add",
        "none",
        "tokyo/p0",
        "--direction",
        "sent",
        "--filter",
        "vlan or tcp",
    ]);
    // Slow enough for any sender to fill the link.
    bench.ok(&["set", "pacific", "capacity=50Mbps"]);
    bench.burst(7_001);
    bench.burst(7_002);
    let out = |meter: &str, stream| bench.series(meter, stream)["departed_frames"].as_u64();
    wait_for("both bursts", || out("sea", None) == Some(2 * BURST));
    wait_for("the burst to port 7001", || out("web", None) == Some(BURST));
    assert_eq!(bench.series("none", None)["arrived_frames"], 0);

    // The stream of its own has everything that the sum has; what is known of each frame is exact.
    let web = bench.series("web", Some(":7001"));
    assert_eq!(web["departed_bytes"], BURST * FRAME);
    assert_eq!(web["departed_payload_bytes"], BURST * PAYLOAD);
    assert_eq!(web["late_events"], 0);
    // 1 Gbps with preamble, 50 Mbps without, 5 ms, 1 Gbps with preamble.
    let crossing = (FRAME + 8) * 8 + FRAME * 160 + 5_000_000 + (FRAME + 8) * 8;
    assert_eq!(web["one_way_delay_min_ns"], crossing);
    assert_eq!(web["spread"]["gap_ns"]["count"], BURST - 1);
    // Behind 50 Mbps the idle part of 1 Gbps is what the frame itself does not take.
    let gap = web["spread"]["gap_ns"]["min"].as_u64().expect("a gap");
    assert_eq!(gap, FRAME * 160 - (FRAME + 8) * 8);

    // The windows of either width add up to the counters, as JSON and as CSV.
    for (meter, window, frames) in [
        ("sea", "1ms", 2 * BURST),
        ("sea", "100ms", 2 * BURST),
        ("web", "500us", BURST),
    ] {
        wait_for("closed windows", || {
            let all = rows(&bench, meter, window);
            let own: Vec<Value> = all.into_iter().filter(|r| r["stream"].is_null()).collect();
            sum(&own, "departed_frames") == frames && sum(&own, "departed_bytes") == frames * FRAME
        });
    }
    let csv = bench.ok(&["meter", "read", "sea", "--window", "100ms"]);
    let mut lines = csv.lines();
    assert!(
        lines
            .next()
            .expect("a head")
            .starts_with("# run_begin_monotonic_ns=")
    );
    let columns: Vec<&str> = lines.next().expect("columns").split(',').collect();
    let place = columns
        .iter()
        .position(|c| *c == "departed_frames")
        .expect("a column");
    let cells = lines
        .map(|l| l.split(',').collect::<Vec<_>>())
        .inspect(|l| assert_eq!(l.len(), columns.len()));
    assert_eq!(
        cells
            .map(|l| l[place].parse::<u64>().expect("a number"))
            .sum::<u64>(),
        2 * BURST
    );
    let buckets = bench.json(&["meter", "histogram", "web", "--of", "delay", "--json"]);
    assert_eq!(
        sum(buckets["buckets"].as_array().expect("buckets"), "frames"),
        BURST
    );

    causes(&bench);
    report_and_cost(&bench);
    refusals(&bench);
    bench.ok(&["meter", "rm", "web"]);
    bench.refused(&["meter", "read", "web"], 2, "none, sea");
}

/// Each drop has its cause, and arrivals are departures and drops.
fn causes(bench: &Bench) {
    let link = "pacific:japan>california";
    let before = bench.series("sea", None);
    for port in ["7001", "7002"] {
        let filter = format!("udp and dst port {port}");
        bench.ok(&["meter", "add", port, link, "--filter", &filter]);
    }
    bench.ok(&["set", link, "drop_next=7"]);
    bench.burst(7_001);
    let grown = |name: &str| {
        bench.series("sea", None)[name].as_u64().expect(name) - before[name].as_u64().expect(name)
    };
    wait_for("the first burst", || grown("departed_frames") == BURST - 7);
    bench.ok(&["set", link, "loss=100%"]);
    bench.burst(7_001);
    wait_for("the losses", || grown("dropped_lost_frames") == BURST);
    // A frame that was lost on the way is of its stream.
    for (port, lost) in [("7001", BURST), ("7002", 0)] {
        assert_eq!(bench.series(port, None)["dropped_lost_frames"], lost);
        bench.ok(&["meter", "rm", port]);
    }
    assert_eq!(grown("dropped_fault_frames"), 7);
    assert_eq!(grown("arrived_frames"), 2 * BURST);
    assert_eq!(grown("departed_frames"), BURST - 7);
    bench.ok(&["set", link, "loss=0", "queue=20000B", "capacity=1Mbps"]);
    bench.burst(7_001);
    wait_for("a full queue", || {
        grown("dropped_queue_full_frames") > 0 && grown("arrived_frames") == 3 * BURST
    });
    wait_for("the rest", || {
        let out = grown("departed_frames") + grown("dropped_queue_full_frames");
        out == 2 * BURST - 7
    });
    let queue = bench.series("sea", None)["queue_max_bytes"]
        .as_u64()
        .expect("bytes");
    assert!(
        queue > 20_000,
        "the deepest queue is that of the bursts before: {queue}"
    );
    // The machine's own counters say the same.
    let stats = bench.json(&["stats", "--json"]);
    let own = stats["links"]
        .as_array()
        .expect("links")
        .iter()
        .find(|l| l["link"] == link)
        .expect("the link");
    let all = bench.series("sea", None);
    assert_eq!(own["queue_full"]["frames"], all["dropped_queue_full_frames"]);
    assert_eq!(own["lost"]["frames"], all["dropped_lost_frames"]);
    assert_eq!(own["departed"]["bytes"], all["departed_bytes"]);
    assert_eq!(own["queued_max_bytes"], all["queue_max_bytes"]);
}

fn report_and_cost(bench: &Bench) {
    let made = bench.json(&["meter", "report", "sea", "web", "--out", "plots", "--json"]);
    assert_eq!(made["plots"], 6);
    for file in ["report.html", "sea-bandwidth.png", "web-delay.png"] {
        assert!(bench.path("plots").join(file).is_file(), "{file}");
    }
    let status = bench.json(&["status", "--json"]);
    let cost = &status["meters_cost"];
    assert!(cost["emulator_ns_per_frame"].is_u64(), "{cost}");
    assert!(cost["meters_thread_ns_per_frame"].as_u64() > Some(0), "{cost}");
    assert_eq!(cost["missed_events"], 0);
    let text = bench.ok(&["watch", "--count", "2", "--interval", "50ms"]);
    assert_eq!(text.matches("testbed three,").count(), 2);
    assert!(
        text.contains("sandiego/p0 received") && text.contains("sea: all"),
        "{text}"
    );
    let seen = bench.json(&["watch", "--count", "1", "--interval", "50ms", "--json"]);
    assert!(
        seen["rows"]
            .as_array()
            .is_some_and(|r| r.iter().any(|r| r["kind"] == "meter")),
        "{seen}"
    );
}

fn refusals(bench: &Bench) {
    for (args, words) in [
        (&["meter", "add", "sea", "tokyo/p0"][..], "already"),
        (&["meter", "add", "x", "osaka/p0"], "sandiego/p0"),
        (&["meter", "add", "x", "pacific"], "pacific:japan>california"),
        (&["meter", "add", "x/y", "tokyo/p0"], "letters"),
        (
            &["meter", "add", "x", "tokyo/p0", "--filter", "tcp and prt 5"],
            "character 9",
        ),
        (&["meter", "add", "x", "tokyo/p0", "--window", "100us"], "500us"),
        (&["meter", "add", "x", "tokyo/p0", "--window", "10"], "unit"),
        (
            &[
                "meter", "add", "x", "tokyo/p0", "--window", "1s", "--window", "1000ms",
            ],
            "twice",
        ),
        (
            &["meter", "add", "x", "tokyo/p0", "--direction", "shaped"],
            "no shaper",
        ),
        (
            &["meter", "add", "x", "tokyo/p0", "--direction", "up"],
            "received",
        ),
        (&["meter", "add", "x", "tokyo/p0", "--keep", "0"], "65536"),
        (
            &[
                "meter",
                "add",
                "x",
                "tokyo/p0",
                "--keep",
                "65536",
                "--streams",
                "64",
            ],
            "1048576",
        ),
        (&["meter", "rm", "x"], "sea"),
        (&["meter", "read", "sea", "--window", "2ms"], "1ms"),
        (&["meter", "histogram", "sea", "--of", "size"], "gap, start"),
        (&["meter", "histogram", "sea", "--stream", "tcp"], "no stream"),
        (&["capture", "tokyo/p9", "-o", "x"], "p0"),
        (&["capture", "tokyo", "-o", "x"], "HOST/PORT"),
        (&["capture", "tokyo/p0", "-o", "x", "--snaplen", "0"], "1 to"),
        (&["capture", "tokyo/p0", "-o", "x", "--filter", "("], "a term"),
        (&["tcp", "osaka"], "sandiego"),
        (&["tcp", "tokyo", "--interval", "1us"], "1ms"),
        (&["watch", "--interval", "1ms"], "50ms"),
        (&["metrics", "--listen", "192.0.2.1:80"], "loopback"),
    ] {
        bench.refused(args, 2, words);
    }
    assert!(!bench.path("x").exists());
}

#[test]
fn a_capture_holds_the_frames_that_passed() {
    let bench = Bench::up();
    let count = BURST.to_string();
    let filter = [
        "--filter",
        "udp and dst port 7001",
        "--snaplen",
        "100",
        "--count",
        &count,
    ];
    let args = [&["capture", "sandiego/p0", "-o", "port.pcapng"][..], &filter].concat();
    let child = bench
        .command(&args)
        .stderr(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut child = Killed(child.expect("kuroshio"));
    let mut said = String::new();
    let stderr = child.0.stderr.take().expect("its errors");
    BufReader::new(stderr).read_line(&mut said).expect("a line");
    assert!(said.starts_with("capturing"), "{said}");
    bench.burst(7_002);
    bench.burst(7_001);
    wait_for("the capture's end", || {
        child.0.try_wait().expect("wait").is_some()
    });

    let file = std::fs::File::open(bench.path("port.pcapng")).expect("the file");
    let mut reader = PcapNgReader::new(file).expect("pcapng");
    let (mut stamps, mut statistics) = (Vec::new(), 0);
    while let Some(block) = reader.next_block() {
        match block.expect("a block") {
            Block::InterfaceDescription(about) => {
                let text = format!("{:?}", about.options);
                assert!(
                    text.contains("IfTsResol(9)") && text.contains("sandiego/p0"),
                    "{text}"
                );
            }
            Block::EnhancedPacket(packet) => {
                // As TAP devices carry it, without FCS; the port is where UDP has it.
                assert_eq!((packet.original_len as u64, packet.data.len()), (FRAME - 4, 100));
                assert_eq!(packet.data[36..38], 7_001u16.to_be_bytes());
                stamps.push(packet.timestamp);
            }
            Block::InterfaceStatistics(_) => statistics += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((stamps.len() as u64, statistics), (BURST, 1));
    assert!(stamps.is_sorted());
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .expect("after 1970");
    let age = now.saturating_sub(stamps[0]);
    assert!(
        stamps[0] <= now && age < 2 * PATIENCE,
        "{:?} at {now:?}",
        stamps[0]
    );
    assert!(stamps.iter().any(|t| !t.subsec_nanos().is_multiple_of(1_000)));
    tshark_agrees(&bench);
}

/// Where tshark is installed it reads the same.
fn tshark_agrees(bench: &Bench) {
    let file = bench.path("port.pcapng");
    let read = Command::new("tshark")
        .arg("-r")
        .arg(&file)
        .args([
            "-T",
            "fields",
            "-e",
            "frame.interface_name",
            "-e",
            "udp.dstport",
            "-e",
            "frame.len",
        ])
        .output();
    let Ok(read) = read else {
        println!("tshark is not installed: the file was read by the library alone");
        return;
    };
    let text = String::from_utf8_lossy(&read.stdout);
    let expected = format!("sandiego/p0\t7001\t{}", FRAME - 4);
    assert_eq!(
        text.lines().filter(|l| *l == expected).count() as u64,
        BURST,
        "{text}"
    );
}

#[test]
fn metrics_are_served_on_loopback() {
    let bench = Bench::up();
    bench.burst(7_001);
    let line = |name: &str, labels: &str, value: u64| {
        format!("kuroshio_testbed_{name}{{testbed=\"three\",{labels}}} {value}")
    };
    let meter = "meter=\"sea\",at=\"pacific:japan>california\",stream=\"all\"";
    let counted = line("meter_departed_frames_total", meter, BURST);
    let link = line(
        "link_departed_frames_total",
        "link=\"pacific:japan>california\"",
        BURST,
    );
    wait_for("the burst", || {
        bench.ok(&["metrics"]).lines().any(|l| l == counted)
    });
    let text = bench.ok(&["metrics"]);
    assert!(text.lines().any(|l| l == link), "{text}");
    let mut typed = std::collections::BTreeSet::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a kind");
            assert!(
                ["counter", "gauge"].contains(&kind) && typed.insert(name.to_owned()),
                "{line}"
            );
        } else if !line.starts_with('#') {
            let (name, rest) = line.split_once('{').expect("labels");
            let (_, value) = rest.rsplit_once("} ").expect("a value");
            assert!(typed.contains(name), "{line}");
            assert!(value.parse::<f64>().is_ok(), "{line}");
        }
    }
    let child = bench
        .command(&["metrics", "--listen", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .spawn();
    let mut child = Killed(child.expect("kuroshio"));
    let mut url = String::new();
    BufReader::new(child.0.stdout.take().expect("its output"))
        .read_line(&mut url)
        .expect("a line");
    let address = url
        .trim()
        .strip_prefix("http://")
        .and_then(|u| u.strip_suffix("/metrics"))
        .expect("an address");
    for (path, status) in [("/metrics", "200"), ("/", "404"), ("/metrics?x=1", "200")] {
        let mut stream = TcpStream::connect(address).expect("connect");
        stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
        // In two parts: a request need not come at once.
        stream
            .write_all(format!("GET {path} HTTP/1.1\r\nHo").as_bytes())
            .expect("send");
        stream.write_all(b"st: x\r\n\r\n").expect("send");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        assert_eq!(answer.contains(&counted), status == "200");
    }
}

#[test]
fn tcp_s_own_figures_are_sampled() {
    let bench = Bench::up();
    let args = [
        "tcp",
        "tokyo",
        "--interval",
        "2ms",
        "--filter",
        "dst port 7001",
        "--json",
    ];
    let child = bench.command(&args).stdout(Stdio::piped()).spawn();
    let mut child = Killed(child.expect("kuroshio"));
    let lines = BufReader::new(child.0.stdout.take().expect("its output")).lines();
    // Read all the time: a full pipe would hold the sampler.
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| tell.send(line)));
    let next = move || -> Value {
        let line = told.recv_timeout(PATIENCE).expect("a line");
        serde_json::from_str(&line).expect("JSON")
    };
    let head = next();
    assert_eq!(head["event"], "head");
    for address in ["10.0.1.2:7001", "[fd00:1::2]:7001"] {
        let _receiver = Killed(
            bench
                .role("sandiego", &format!("receive {address}"))
                .spawn()
                .expect("kuroshio"),
        );
        let sender = bench.role("tokyo", &format!("send {address}")).status();
        assert!(sender.expect("kuroshio").success());
        // Samples of this connection, until nearly all of it is acknowledged.
        let (mut acked, mut at, mut seen) = (0, 0, 0);
        while acked < TRANSFER as u64 / 2 {
            let sample = next();
            if sample["destination"] != address || sample["state"] == "SYN-SENT" {
                continue;
            }
            let now = sample["at_ns"].as_u64().expect("a time");
            let now_acked = sample["acked_payload_bytes"].as_u64().expect("bytes");
            assert!(now >= at && now_acked >= acked, "{sample}");
            (at, acked) = (now, now_acked);
            seen += 1;
            // 10 ms there and back, and what the queue adds.
            assert!(sample["rtt_us"].as_u64() >= Some(10_000), "{sample}");
            assert!(sample["cwnd_segments"].as_u64() > Some(0), "{sample}");
            assert_eq!(
                sample["mss_bytes"].as_u64().map(|m| (500..1_461).contains(&m)),
                Some(true),
                "{sample}"
            );
        }
        assert!(seen >= 2, "{address}: {seen} samples");
    }
    // It ends with the network.
    bench.ok(&["down"]);
    wait_for("its end", || child.0.try_wait().expect("wait").is_some());
}
