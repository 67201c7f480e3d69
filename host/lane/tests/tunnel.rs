//! A tunnel over two emulated lanes: real TCP through it, one lane cut and restored, ECN, status.

#[path = "../../testbed/tests/common/mod.rs"]
mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use kuroshio_lane::{LaneError, Stop, Tunnel, TunnelConfig, control, key, status::TunnelStatus};
use kuroshio_testbed::{Change, Testbed, Topology};

use common::{PATIENCE, in_host, pattern, spawn, wait_for};

fn main() -> ExitCode {
    common::run(&[
        ("tcp_takes_both_lanes", tcp_takes_both_lanes),
        (
            "a_cut_lane_is_left_and_taken_again",
            a_cut_lane_is_left_and_taken_again,
        ),
        ("frames_and_vlans_cross_a_tap", frames_and_vlans_cross_a_tap),
        ("garbage_changes_nothing", garbage_changes_nothing),
        (
            "a_peer_that_begins_anew_is_met_again",
            a_peer_that_begins_anew_is_met_again,
        ),
    ])
}

/// East and west with two lanes between them: `north` over IPv4, `south` over IPv6.
fn two_lanes(north: &str, south: &str) -> Topology {
    let text = format!(
        r#"
name = "lanes"
[[router]]
name = "na"
[[router]]
name = "nb"
[[router]]
name = "sa"
[[router]]
name = "sb"
[[host]]
name = "east"
[[host.port]]
name = "e0"
address = ["10.0.0.1/24"]
router = "na"
[[host.port]]
name = "e1"
address = ["fd00:1::1/64"]
router = "sa"
[[host]]
name = "west"
[[host.port]]
name = "w0"
address = ["10.0.0.2/24"]
router = "nb"
[[host.port]]
name = "w1"
address = ["fd00:1::2/64"]
router = "sb"
[[link]]
name = "north"
between = ["na", "nb"]
{north}
[[link]]
name = "south"
between = ["sa", "sb"]
{south}
"#
    );
    Topology::from_toml(&text).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

struct End {
    stop: Stop,
    thread: Option<std::thread::JoinHandle<std::io::Result<Result<(), LaneError>>>>,
    config: TunnelConfig,
}

impl End {
    fn up(tb: &Testbed, host: &str, config: &TunnelConfig) -> Self {
        let (to, from) = std::sync::mpsc::channel();
        let moved = config.clone();
        let thread = spawn(tb, host, move || {
            let tunnel = Tunnel::up(moved)?;
            to.send(tunnel.stop_handle()).expect("the test listens");
            tunnel.run()
        });
        let Ok(stop) = from.recv_timeout(PATIENCE) else {
            panic!("{host}: {:?}", thread.join());
        };
        Self {
            stop,
            thread: Some(thread),
            config: config.clone(),
        }
    }

    fn status(&self) -> TunnelStatus {
        control::ask(&self.config.control, "status").expect("an answer")
    }

    fn state(&self, lane: usize) -> String {
        self.status().lanes[lane].state.clone()
    }

    fn down(mut self) {
        self.stop.stop();
        let thread = self.thread.take().expect("a thread");
        thread
            .join()
            .expect("joined")
            .expect("in its host")
            .expect("ended well");
        assert!(!self.config.control.exists(), "the control socket is gone");
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.stop.stop();
    }
}

/// Both ends' configurations, keys in `folder`.
fn configs(folder: &Path, more: &str, capacities: [&str; 2]) -> [TunnelConfig; 2] {
    let public = ["east", "west"].map(|name| {
        let path = folder.join(format!("{name}.key"));
        key::generate(&path).expect("a key")
    });
    [("east", 1, 2), ("west", 2, 1)].map(|(name, own, other)| {
        let text = format!(
            r#"
name = "sea0"
address = ["10.9.0.{own}/24", "fd09::{own}/64"]
key = "{name}.key"
peer = "{}"
control = "{name}.sock"
{more}
[[lane]]
name = "north"
local = "10.0.0.{own}:7000"
remote = "10.0.0.{other}:7000"
capacity = "{}"
[[lane]]
name = "south"
local = "[fd00:1::{own}]:7000"
remote = "[fd00:1::{other}]:7000"
capacity = "{}"
"#,
            public[other - 1],
            capacities[0],
            capacities[1]
        );
        TunnelConfig::from_toml(&text, folder).unwrap_or_else(|e| panic!("{e}\n{text}"))
    })
}

struct Bed {
    tb: Testbed,
    ends: [End; 2],
    _folder: tempfile::TempDir,
}

fn bed(links: [&str; 2], more: &str, capacities: [&str; 2]) -> Bed {
    let tb = Testbed::up(&two_lanes(links[0], links[1])).expect("testbed");
    let folder = tempfile::tempdir().expect("a folder");
    let [east, west] = configs(folder.path(), more, capacities);
    let ends = [End::up(&tb, "east", &east), End::up(&tb, "west", &west)];
    wait_for("both lanes at both ends", || {
        ends.iter()
            .all(|end| (0..2).all(|lane| end.state(lane) == "used"))
    });
    Bed {
        tb,
        ends,
        _folder: folder,
    }
}

fn connect(tb: &Testbed, to: &'static str) -> (TcpStream, TcpStream) {
    common::connect(tb, to)
}

fn tcp_takes_both_lanes() {
    let link = "capacity = \"40Mbps\"\none_way_delay = \"5ms\"\nqueue = \"200kB\"";
    for mode in ["mode = \"deskew\"", "mode = \"inorder\""] {
        let bed = bed([link, link], mode, ["40Mbps", "40Mbps"]);
        for to in ["10.9.0.2:5001", "[fd09::2]:5001"] {
            let (from, to) = connect(&bed.tb, to);
            let bytes = 8 << 20;
            let seconds = common::transfer(from, to, bytes);
            let goodput_mbps = bytes as f64 * 8.0 / seconds / 1e6;
            println!("{mode} {goodput_mbps:.1} Mbps of goodput over 2 x 40 Mbps");
        }
        let status = bed.ends[0].status();
        let shares: Vec<u64> = status.lanes.iter().map(|l| l.sent_bytes).collect();
        // Both carried: 16 MiB in all, half each.
        assert!(shares.iter().all(|s| *s > 6 << 20), "{shares:?}");
        assert_eq!(bed.ends[1].status().lost, 0, "{:?}", bed.ends[1].status());
        for end in bed.ends {
            end.down();
        }
    }
}

/// Sends a pattern without end until told; counts what arrives right.
fn endless(
    mut from: TcpStream,
    mut to: TcpStream,
    stop: Arc<AtomicBool>,
    count: Arc<AtomicU64>,
) -> impl FnOnce() {
    let data = pattern(1 << 20);
    let want = data.clone();
    let sender = std::thread::spawn(move || {
        while !stop.load(Ordering::Acquire) {
            from.write_all(&data).expect("send");
        }
    });
    let receiver = std::thread::spawn(move || {
        let mut room = vec![0; 64 << 10];
        let mut at = 0;
        loop {
            let got = to.read(&mut room).expect("receive");
            if got == 0 {
                return;
            }
            for part in room[..got].chunks(4_096) {
                let start = at % want.len();
                let end = (start + part.len()).min(want.len());
                assert_eq!(part[..end - start], want[start..end], "byte {at}");
                at += part.len();
            }
            count.fetch_add(got as u64, Ordering::AcqRel);
        }
    });
    move || {
        sender.join().expect("sender");
        receiver.join().expect("receiver");
    }
}

fn a_cut_lane_is_left_and_taken_again() {
    let link = "capacity = \"30Mbps\"\none_way_delay = \"10ms\"\nqueue = \"300kB\"";
    let bed = bed([link, link], "mode = \"inorder\"", ["30Mbps", "30Mbps"]);
    let (from, to) = connect(&bed.tb, "10.9.0.2:5001");
    let (stop, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let join = endless(from, to, stop.clone(), count.clone());
    let more = |bytes: u64| {
        let from = count.load(Ordering::Acquire);
        wait_for("more bytes", || count.load(Ordering::Acquire) > from + bytes);
    };
    more(8 << 20);
    bed.tb.apply(&Change::Cut("south".into())).expect("cut");
    wait_for("the lane out at both ends", || {
        bed.ends.iter().all(|e| e.state(1) == "dead")
    });
    more(4 << 20);
    let sent = bed.ends[0].status().lanes[1].sent_bytes;
    more(2 << 20);
    // Probes alone go on.
    assert!(bed.ends[0].status().lanes[1].sent_bytes < sent + (64 << 10));
    bed.tb.apply(&Change::Restore("south".into())).expect("restored");
    wait_for("the lane back at both ends", || {
        bed.ends.iter().all(|e| e.state(1) == "used")
    });
    let sent = bed.ends[0].status().lanes[1].sent_bytes;
    more(4 << 20);
    assert!(bed.ends[0].status().lanes[1].sent_bytes > sent + (1 << 20));
    // By hand.
    control::ask(&bed.ends[0].config.control, "drop north").expect("dropped");
    wait_for("the lane dropped", || bed.ends[0].state(0) == "dropped");
    more(2 << 20);
    control::ask(&bed.ends[0].config.control, "add north").expect("added");
    wait_for("the lane added", || bed.ends[0].state(0) == "used");
    let error = control::ask(&bed.ends[0].config.control, "drop east").expect_err("no such lane");
    assert!(
        error
            .to_string()
            .contains("no lane \"east\": there are north, south"),
        "{error}"
    );
    stop.store(true, Ordering::Release);
    join();
}

fn frames_and_vlans_cross_a_tap() {
    let link = "capacity = \"40Mbps\"\none_way_delay = \"2ms\"\nqueue = \"200kB\"";
    let bed = bed([link, link], "kind = \"tap\"", ["40Mbps", "40Mbps"]);
    // ARP and neighbour discovery, and TCP with superframes.
    for to in ["10.9.0.2:5001", "[fd09::2]:5001"] {
        let (from, to) = connect(&bed.tb, to);
        common::transfer(from, to, 2 << 20);
    }
}

fn garbage_changes_nothing() {
    let link = "capacity = \"40Mbps\"\none_way_delay = \"1ms\"\nqueue = \"200kB\"";
    let bed = bed([link, link], "", ["40Mbps", "40Mbps"]);
    let before = bed.ends[1].status();
    // From another port the socket does not even see it; so from the right one, whose tunnel is down.
    let [east, west] = bed.ends;
    east.down();
    let sent = in_host(&bed.tb, "east", || {
        let socket = UdpSocket::bind("10.0.0.1:7000").expect("the port");
        socket.connect("10.0.0.2:7000").expect("connected");
        let mut sent = 0;
        for n in 0..2_000u32 {
            let mut bytes = pattern(64 + (n as usize % 900));
            bytes[0] = (n % 6) as u8;
            sent += u64::from(socket.send(&bytes).is_ok());
        }
        sent
    });
    assert_eq!(sent, 2_000);
    let turned_away = || {
        let seal = west.status().seal;
        ["garbage", "strangers", "forged", "refused"]
            .iter()
            .map(|k| seal[k].as_u64().expect("a count"))
            .sum::<u64>()
    };
    // What the link's queue has room for.
    wait_for("some of it seen", || turned_away() > 200);
    let after = west.status();
    assert_eq!(after.seal["sessions"], before.seal["sessions"]);
    assert_eq!(after.delivered, before.delivered);
}

fn a_peer_that_begins_anew_is_met_again() {
    let link = "capacity = \"40Mbps\"\none_way_delay = \"1ms\"\nqueue = \"200kB\"";
    let bed = bed([link, link], "mode = \"inorder\"", ["40Mbps", "40Mbps"]);
    let [east, west] = bed.ends;
    let mut ends = [Some(east), Some(west)];
    for (turn, host) in [(0, "east"), (1, "west")] {
        let (from, to) = connect(&bed.tb, "10.9.0.2:5001");
        common::transfer(from, to, 1 << 20);
        let old = ends[turn].take().expect("an end");
        let config = old.config.clone();
        old.down();
        ends[turn] = Some(End::up(&bed.tb, host, &config));
        let mut to = None;
        wait_for("a connection over the new session", || {
            let listener = in_host(&bed.tb, "west", || TcpListener::bind("10.9.0.2:5002"));
            let Ok(listener) = listener else { return false };
            let address: SocketAddr = "10.9.0.2:5002".parse().expect("an address");
            let from = in_host(&bed.tb, "east", move || {
                TcpStream::connect_timeout(&address, Duration::from_secs(2))
            });
            to = from.ok().map(|from| (from, listener.accept().expect("accept").0));
            to.is_some()
        });
        let (from, to) = to.expect("connected");
        common::transfer(from, to, 1 << 20);
    }
}
