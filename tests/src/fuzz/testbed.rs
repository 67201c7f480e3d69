//! Files that a testbed is given: topologies, recordings of capacity, samples of delay; and superframes.
//!
//! Input as text; or, when its first byte is odd, as edits of a good file: place (two bytes), what is put there.

use kuroshio_core::wan::setting;
use kuroshio_testbed::segment::{Partial, Run, Superframe, VNET_HEADER, Vnet, complete};
use kuroshio_testbed::{MAX_PORTS, Topology};

const GOOD: &str = r#"
name = "x"
mode = "segment"
quantum = "64us"
threads = 2
[[router]]
name = "a"
[[router]]
name = "b"
[[switch]]
name = "s"
[[host]]
name = "h"
sysctl = { "net.ipv4.tcp_sack" = "1" }
[[host.port]]
name = "p"
mtu = "1500B"
wire = "1Gbps"
address = ["10.0.0.1/24", "fd00::1/64"]
router = "a"
shape = "160Mbps"
drain = "200Mbps"
pause_high = "64KiB"
pause_low = "16KiB"
[[host]]
name = "i"
[[host.port]]
name = "p"
address = "10.0.0.2/24"
router = "b"
[[attach]]
name = "u"
tap = "t0"
switch = "s"
[[link]]
name = "l"
between = ["a", "b"]
capacity = "468Mbps"
one_way_delay = "70.5ms"
aqm = "red 10KB 30KB 0.1 ecn"
loss = "gilbert 1% 10%"
lose = "flow 1 data 3"
rewrite = "push-vlan 5"
carries = ["10.0.0.0/24"]
[[link.schedule]]
at = "1s"
capacity = "1Mbps"
[link.reverse]
jitter = "normal 1ms"
"#;

fn text(data: &[u8], good: &str) -> String {
    let Some((1, edits)) = data.split_first().map(|(first, rest)| (first % 2, rest)) else {
        return String::from_utf8_lossy(data).into_owned();
    };
    let mut bytes = good.as_bytes().to_vec();
    for edit in edits.chunks_exact(3) {
        let place = usize::from(u16::from_be_bytes([edit[0], edit[1]])) % bytes.len();
        match edit[2] {
            0 => {
                bytes.remove(place);
            }
            1 => bytes.truncate(place.max(1)),
            2 => bytes.insert(place, b'0'),
            other => bytes[place] = other,
        }
        if bytes.is_empty() {
            break;
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A topology is understood, or refused with a sentence; what is understood is within its limits.
pub fn topology(data: &[u8]) {
    match Topology::from_toml(&text(data, GOOD)) {
        Ok(topology) => {
            let ports = topology.port_names();
            assert!(ports.len() <= MAX_PORTS);
            for (number, name) in ports.iter().enumerate() {
                assert_eq!(topology.port_number(name), Some(number));
            }
            for from in 0..ports.len() {
                for to in 0..ports.len() {
                    let links = topology.way(from, to).unwrap_or(&[]);
                    assert!(links.iter().all(|l| *l < 2 * topology.links.len()));
                }
            }
        }
        Err(e) => assert!(e.to_string().starts_with("topology: ")),
    }
}

/// A mahimahi trace.
pub fn trace(data: &[u8]) {
    let text = text(data, "1\n1\n3\n10\n");
    let read = setting("trace", "file", &mut |_: &str| Ok(text.clone()));
    if let Err(e) = read {
        assert!(!e.to_string().is_empty());
    }
}

/// Samples of delay, drawn and replayed.
pub fn samples(data: &[u8]) {
    let text = text(data, "1ms\n-20us\n3.5ms\n");
    for how in ["samples file", "replay file"] {
        let read = setting("jitter", how, &mut |_: &str| Ok(text.clone()));
        if let Err(e) = read {
            assert!(!e.to_string().is_empty());
        }
    }
}

/// A superframe, which a host may make of anything: its segments fit into it, and what is joined is no longer.
pub fn superframe(data: &[u8]) {
    let Some(vnet) = Vnet::read(data) else { return };
    let frame = &data[VNET_HEADER..];
    if let Some(partial) = vnet.partial {
        complete(&mut frame.to_vec(), partial);
        if let Some(mut run) = Run::start(frame, partial) {
            let _ = run.join(frame, frame, partial);
            let mut header = frame[..run.header_len()].to_vec();
            let _ = run.finish(&mut header, frame);
        }
    }
    let Some(superframe) = Superframe::new(&vnet, frame) else {
        return;
    };
    let partial: Partial = superframe.partial();
    for index in 0..superframe.count() {
        let mut room = vec![0; frame.len()];
        let len = superframe.write(index, &mut room);
        assert!(len > 0 && len <= frame.len() && len == superframe.len_of(index));
        let _ = Run::start(&room[..len], partial);
    }
}
