//! Devices of the machine as ports: a veth in a network namespace of the test's own stands for a real card.
//!
//! ```text
//!  testbed: host east -- switch -- attached "vin" | veth | "vout" in host far (which has the kernel's full offloads)
//! ```

mod common;

use std::io::{IoSlice, Read as _, Write as _};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::{Command, ExitCode};

use common::{PATIENCE, in_host, pattern, wait_for};
use kuroshio_port::segment::VNET_HEADER;
use kuroshio_port::{Interface, joins_arrivals, set_joins_arrivals};
use kuroshio_testbed::{Testbed, Topology, isolate};

fn main() -> ExitCode {
    if !isolate::is_inside() {
        if !rustix::process::geteuid().is_root() {
            println!("attaching needs root: not run");
            return ExitCode::SUCCESS;
        }
        // The testbed's caller gets a network of its own: nothing of the machine is touched, and all goes with it.
        // SAFETY: CLONE_NEWNET changes the calling thread's network namespace alone.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
            eprintln!("a network namespace: {}", std::io::Error::last_os_error());
            return ExitCode::FAILURE;
        }
        ip(&mut Command::new("ip"), "link add vin type veth peer name vout");
        // The machine sends nothing of its own there.
        for end in ["vin", "vout"] {
            let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{end}/disable_ipv6"), "1");
        }
        ip(&mut Command::new("ip"), "link set dev vin up");
        // Software joins frames on this interface, as on most cards.
        set_joins_arrivals("vin", [true, false]).expect("GRO");
    }
    common::run(&[
        (
            "an_interface_is_a_port_and_is_left_as_it_was",
            an_interface_is_a_port_and_is_left_as_it_was,
        ),
        ("a_tap_device_is_a_port", a_tap_device_is_a_port),
        (
            "gap_frames_leave_by_an_attached_interface",
            gap_frames_leave_by_an_attached_interface,
        ),
        ("what_cannot_be_attached_is_said", what_cannot_be_attached_is_said),
    ])
}

fn ip(command: &mut Command, args: &str) {
    let status = command.args(args.split(' ')).status().expect("ip is needed");
    assert!(status.success(), "ip {args}: {status}");
}

fn topology(mode: &str, attach: &str) -> Topology {
    let text = text(mode, &format!("{attach}\nwire = \"10Gbps\""));
    Topology::from_toml(&text).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

fn text(mode: &str, attach: &str) -> String {
    format!(
        r#"
name = "attach"
mode = "{mode}"
[[switch]]
name = "lan"
[[router]]
name = "r"
[[host]]
name = "east"
[[host.port]]
name = "e0"
address = "10.0.0.1/24"
switch = "lan"
[[host]]
name = "far"
[[host.port]]
name = "f0"
address = "10.7.0.1/24"
router = "r"
[[attach]]
name = "uplink"
{attach}
switch = "lan"
"#
    )
}

/// Sends a pattern from one host to another, both ways one after the other.
fn both_ways(tb: &Testbed, far: &str) {
    for (from, to, address) in [(far, "east", "10.0.0.1:5000"), ("east", far, "10.0.0.9:5000")] {
        let listener = in_host(tb, to, move || TcpListener::bind(address).expect("listen"));
        let sender = common::spawn(tb, from, move || {
            let address = address.parse().expect("address");
            let mut stream = TcpStream::connect_timeout(&address, PATIENCE).expect("connect");
            stream.set_write_timeout(Some(PATIENCE)).expect("timeout");
            stream.write_all(&pattern(5_000_000)).expect("send");
        });
        let (mut stream, peer) = listener.accept().expect("accept");
        assert!(peer.to_string().starts_with("10.0.0."));
        stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
        let mut got = Vec::new();
        stream.read_to_end(&mut got).expect("receive");
        assert!(
            got == pattern(5_000_000),
            "{} bytes from {from} to {to}",
            got.len()
        );
        sender.join().expect("sender").expect("in the host");
    }
}

fn an_interface_is_a_port_and_is_left_as_it_was() {
    let tb = Testbed::up(&topology("frame", "tap = \"kt0\"")).expect("up");
    let before = in_host(&tb, "uplink", || joins_arrivals("vin").expect("ethtool"));
    drop(tb);
    assert_eq!(before, [true, false]);
    for mode in ["frame", "segment"] {
        let tb = Testbed::up(&topology(mode, "interface = \"vin\"")).expect("up");
        let joins = || in_host(&tb, "uplink", || joins_arrivals("vin").expect("ethtool"));
        assert_eq!(joins(), [false, false]);
        // The other end goes to a host: a machine behind the card, with offloads of its own.
        let mut keeper = tb
            .command("far", "sleep")
            .expect("far")
            .arg("600")
            .spawn()
            .expect("sleep");
        let pid = keeper.id();
        in_host(&tb, "uplink", move || {
            ip(&mut Command::new("ip"), &format!("link set dev vout netns {pid}"));
        });
        ip(
            &mut tb.command("far", "ip").expect("far"),
            "addr add 10.0.0.9/24 dev vout",
        );
        ip(&mut tb.command("far", "ip").expect("far"), "link set dev vout up");
        // While the other end was down, nothing could be sent: what the switch flooded then is counted as not taken.
        let early = tb
            .counters()
            .expect("counters")
            .port("uplink/vin")
            .expect("port")
            .not_taken;
        both_ways(&tb, "far");
        let mut counters = tb.counters().expect("counters");
        wait_for("an empty network", || {
            counters = tb.counters().expect("counters");
            counters.held_frames() == 0
        });
        let card = counters.port("uplink/vin").expect("port");
        assert_eq!((card.not_taken, card.card.tx_dropped), (early, 0));
        // Superframes came from the card's machine; the network saw frames of its MTU alone.
        assert!(card.sent.frames > 5_000_000 / 1448 && card.sent.bytes.get() / card.sent.frames <= 1518);
        // The veth goes back to where it was, for the next round.
        let mut outer = in_host(&tb, "uplink", || {
            let mut sleep = Command::new("sleep").arg("600").spawn().expect("sleep");
            let id = sleep.id();
            (id, move || {
                sleep.kill().expect("kill");
                sleep.wait().expect("wait");
            })
        });
        ip(
            &mut tb.command("far", "ip").expect("far"),
            &format!("link set dev vout netns {}", outer.0),
        );
        outer.1();
        keeper.kill().expect("kill");
        keeper.wait().expect("wait");
        drop(tb);
    }
    let tb = Testbed::up(&topology("frame", "tap = \"kt0\"")).expect("up");
    let joins = in_host(&tb, "uplink", || joins_arrivals("vin").expect("ethtool"));
    assert_eq!(joins, before, "as it was");
}

fn a_tap_device_is_a_port() {
    let tb = Testbed::up(&topology("frame", "tap = \"kt0\"")).expect("up");
    // A program of the machine uses it: here, the machine's own TCP.
    in_host(&tb, "uplink", || {
        ip(&mut Command::new("ip"), "addr add 10.0.0.9/24 dev kt0")
    });
    both_ways(&tb, "uplink");
    let counters = tb.counters().expect("counters");
    assert!(counters.port("uplink/kt0").expect("port").sent.frames > 1000);
}

/// Frames and gap frames as they arrive behind the interface, MAC header to FCS, and whether each is a PAUSE frame: up to
/// the last of `count` datagrams.
fn arriving(card: &Interface, count: usize) -> Vec<(u64, bool)> {
    let (mut seen, mut room, mut datagrams) = (Vec::new(), vec![0; VNET_HEADER + 2000], 0);
    wait_for("all datagrams", || {
        while let Some(bytes) = card.read(&mut room).expect("read") {
            let frame = &room[VNET_HEADER..bytes];
            let pause = frame[..6] == [1, 0x80, 0xc2, 0, 0, 1] && frame[12..18] == [0x88, 8, 0, 1, 0, 0];
            datagrams += usize::from(frame.len() == 1514 && !pause);
            seen.push((frame.len() as u64 + 4, pause));
        }
        datagrams == count
    });
    seen
}

/// A host sends datagrams; gives the gap frames that came among them.
fn filled(tb: &Testbed, card: &Interface, datagrams: usize) -> u64 {
    in_host(tb, "east", move || {
        let socket = UdpSocket::bind("10.0.0.1:0").expect("socket");
        for _ in 0..datagrams {
            socket.send_to(&[7; 1472], "10.0.0.9:9").expect("send");
        }
    });
    let seen = arriving(card, datagrams);
    let wire = |bytes: u64| bytes.max(64) + 20;
    // Others' small frames have their places among them, too.
    let first = seen.iter().position(|(bytes, pause)| *bytes == 1518 && !pause);
    let mut starts = (first.expect("a datagram")..seen.len()).filter(|i| !seen[*i].1);
    let mut from = starts.next().expect("a frame");
    let (mut filled, mut alone) = (0, 0);
    for next in starts {
        let taken: u64 = seen[from..next].iter().map(|(bytes, _)| wire(*bytes)).sum();
        if next == from + 1 {
            // The host was late: nothing waited behind this one.
            alone += 1;
        } else {
            let due = 4 * seen[from].0.max(64);
            assert_eq!(taken, due, "frame {filled}: {:?}", &seen[from..next]);
            filled += 1;
        }
        from = next;
    }
    println!("{filled} distances to the byte, {alone} frames with none behind them");
    assert!(filled >= datagrams - 20, "{filled} and {alone}");
    seen.iter().filter(|(_, pause)| *pause).count() as u64
}

/// 2.5 of 10 Mbps: from the start of a frame to that of the next are four times its bytes of the wire, filled to the byte.
fn gap_frames_leave_by_an_attached_interface() {
    const DATAGRAMS: usize = 150;
    let port = "interface = \"vin\"\nwire = \"10Mbps\"\nshape = \"2.5Mbps\"\nshape_queue = \"4MiB\"\ngap = \"frames\"";
    let error = Topology::from_toml(&text("segment", port)).expect_err("superframes");
    assert!(error.to_string().contains("frame mode only"), "{error}");
    let topology = Topology::from_toml(&text("frame", port)).expect("topology");
    let tb = Testbed::up(&topology).expect("up");
    let card = in_host(&tb, "uplink", || {
        ip(&mut Command::new("ip"), "link set dev vout up");
        Interface::attach_here("vout").expect("the other end")
    });
    ip(
        &mut tb.command("east", "ip").expect("east"),
        "neigh replace 10.0.0.9 lladdr 02:00:00:00:99:99 dev e0 nud permanent",
    );
    // To an address that the switch does not know, which it floods, and then to the same one, known.
    let mut gaps = filled(&tb, &card, DATAGRAMS);
    let sent = || {
        tb.counters()
            .expect("counters")
            .port("uplink/vin")
            .expect("port")
            .sent
            .frames
    };
    let before = sent();
    let mut hello = vec![0; VNET_HEADER + 60];
    hello[VNET_HEADER..][..14].copy_from_slice(&[2, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0x99, 0x99, 8, 0]);
    assert!(card.write_parts(&[IoSlice::new(&hello)]).expect("sent"));
    wait_for("the address to be learned", || sent() > before);
    gaps += filled(&tb, &card, DATAGRAMS);
    let counters = tb.counters().expect("counters");
    let port = counters.port("uplink/vin").expect("port");
    println!("{gaps} gap frames of {} came", port.gaps_sent.frames);
    assert!(
        port.gaps_sent.frames >= gaps && port.not_taken.frames == 0,
        "{port:?}"
    );
    in_host(&tb, "uplink", || {
        ip(&mut Command::new("ip"), "link set dev vout down")
    });
}

fn what_cannot_be_attached_is_said() {
    let error = Testbed::up(&topology("frame", "interface = \"none9\""))
        .expect_err("not there")
        .to_string();
    assert!(
        error.contains("uplink") && error.contains("none9") && error.contains("No such device"),
        "{error}"
    );
    let both = "name = \"x\"\n[[switch]]\nname = \"s\"\n[[host]]\nname = \"h\"\n[[attach]]\nname = \"a\"\nswitch = \"s\"\n";
    let error = Topology::from_toml(both).expect_err("neither").to_string();
    assert!(
        error.contains("attach \"a\"") && error.contains("one of them"),
        "{error}"
    );
}
