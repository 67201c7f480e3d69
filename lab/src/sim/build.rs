//! The network of a phase, from its topology and flows.
//!
//! The stages are those of the live emulator: a host's port, its shaper, the links' directions, and the
//! router's port before the receiving host.

use std::collections::BTreeMap;

use kuroshio_core::pace::Spacing;
use kuroshio_core::sim::{FlowId, Network, OnOff, OnOffFlow, SimError, StageId, TcpFlow, split_mix};
use kuroshio_core::tcp::cc::{Algorithm, FAST_ALPHA};
use kuroshio_core::tcp::{IpVersion, Pacing, ReceiverConfig, SenderConfig, Sizes};
use kuroshio_core::units::{FrameBytes, PicoDuration, PicoTime};
use kuroshio_core::wan::ShaperConfig;
use kuroshio_testbed::{Port, Topology};

use super::settings::{Pace, Settings};
use crate::experiment::{Flow, Kind, Phase};

/// Effective window of a flow that states none: what never limits the experiments here.
const WINDOW: u64 = 256 << 20;

/// A network with the numbers of its stages.
pub(super) struct Built {
    pub net: Network,
    pub flows: Vec<FlowId>,
    pub ports: Vec<StageId>,
    pub egress: Vec<StageId>,
    pub shapers: BTreeMap<usize, StageId>,
    pub links: Vec<StageId>,
    /// Receivers' cards with a rate of their own, by port.
    pub drains: BTreeMap<usize, StageId>,
    /// The congestion control of every flow; empty for UDP.
    pub congestion: Vec<String>,
    pub mss: Vec<u32>,
}

/// Builds the network of a phase for one seed.
pub(super) fn network(p: &Phase, topology: &Topology, s: &Settings, seed: u64) -> Result<Built, String> {
    let mut b = Built {
        net: Network::new(),
        flows: Vec::new(),
        ports: Vec::new(),
        egress: Vec::new(),
        shapers: BTreeMap::new(),
        links: Vec::new(),
        drains: BTreeMap::new(),
        congestion: Vec::new(),
        mss: Vec::new(),
    };
    if topology.ports().any(|(_, port)| !port.streams.is_empty()) {
        return Err("shape: streams that are shaped apart are for --live".to_owned());
    }
    stages(&mut b, topology, s, seed).map_err(|e| e.to_string())?;
    let mut random = seed;
    for f in &p.flows {
        let seed = split_mix(&mut random);
        flow(&mut b, f, p, topology, s, seed).map_err(|m| format!("flow {:?}: {m}", f.name))?;
    }
    Ok(b)
}

fn stages(b: &mut Built, topology: &Topology, s: &Settings, seed: u64) -> Result<(), SimError> {
    let ports: Vec<&Port> = topology.ports().map(|(_, p)| p).collect();
    for port in &ports {
        let stage = match s.pace {
            Some(Pace::InterfaceWindow) => b.net.add_shaper(ShaperConfig {
                line: port.wire,
                spacing: Spacing::Rate(port.wire.bit_rate()),
                queue_limit: port.queue,
            })?,
            _ => b.net.add_port(port.wire, port.queue)?,
        };
        b.ports.push(stage);
    }
    for port in &ports {
        b.egress.push(b.net.add_port(port.wire, port.egress_queue)?);
    }
    for (number, port) in ports.iter().enumerate() {
        if let Some(shaper) = port.shaper {
            let stage = b.net.add_shaper(ShaperConfig {
                line: port.wire,
                spacing: shaper.spacing,
                queue_limit: shaper.queue,
            })?;
            b.shapers.insert(number, stage);
        }
    }
    for (number, config) in topology.links.iter().flat_map(|l| l.wan.clone()).enumerate() {
        let link = b.net.add_wan(config, seed ^ ((number as u64) << 48))?;
        b.links.push(link);
    }
    for (number, (port, egress)) in ports.iter().zip(&b.egress).enumerate() {
        if let Some(mut drain) = port.drain {
            // What is not obeyed is as if it were not asked for.
            drain.pause = drain.pause.filter(|_| port.obey_pause);
            b.drains.insert(number, b.net.add_drain(drain, *egress)?);
        }
    }
    Ok(())
}

/// The stages from a port to another.
fn way(b: &Built, topology: &Topology, from: usize, to: usize) -> Result<Vec<StageId>, String> {
    let links = topology
        .way(from, to)
        .ok_or("no way between its hosts in a common subnet")?;
    let mut stages = Vec::new();
    stages.extend(b.ports.get(from));
    stages.extend(b.shapers.get(&from));
    stages.extend(links.iter().filter_map(|l| b.links.get(*l)));
    stages.extend(b.egress.get(to));
    stages.extend(b.drains.get(&to));
    Ok(stages)
}

fn flow(b: &mut Built, f: &Flow, p: &Phase, t: &Topology, s: &Settings, seed: u64) -> Result<(), String> {
    let ports: Vec<_> = t.ports().collect();
    let find = |host: &str, fits: &dyn Fn(&Port) -> bool| {
        ports.iter().position(|(h, port)| h.name == host && fits(port))
    };
    let to = find(&f.to, &|port| port.addresses.iter().any(|a| a.ip == f.address))
        .ok_or_else(|| format!("host {:?} has no port with address {}", f.to, f.address))?;
    let from = (0..ports.len())
        .find(|n| ports.get(*n).is_some_and(|(h, _)| h.name == f.from) && t.way(*n, to).is_some())
        .ok_or_else(|| format!("host {:?} has no port in the subnet of {}", f.from, f.address))?;
    let forward = way(b, t, from, to)?;
    let backward = way(b, t, to, from)?;
    let mtu = ports.get(from).map_or(1500, |(_, port)| port.mtu_bytes);
    let ip = if f.address.is_ipv4() {
        IpVersion::V4
    } else {
        IpVersion::V6
    };
    match f.kind {
        Kind::Tcp => tcp(
            b,
            f,
            s,
            Sizes::of_mtu(mtu, ip).ok_or("mtu too small")?,
            seed,
            (forward, backward),
        ),
        Kind::UdpOnOff => on_off(b, f, p, ip, forward),
    }
}

fn tcp(
    b: &mut Built,
    f: &Flow,
    s: &Settings,
    sizes: Sizes,
    seed: u64,
    (forward, backward): (Vec<StageId>, Vec<StageId>),
) -> Result<(), String> {
    let name = f.congestion_of_paper.as_ref().or(f.congestion.as_ref());
    let name = name.ok_or("tcp wants congestion")?;
    let algorithm: Algorithm = name.parse().map_err(|m| format!("{name:?}: {m}"))?;
    let profile = s.stack()?;
    let ns = |span: &Option<crate::experiment::Span>| {
        span.as_ref()
            .map_or(PicoDuration::ZERO, |v| PicoDuration::from_ns(v.ns()))
    };
    let sender = SenderConfig {
        fast_alpha: s.fast_alpha.unwrap_or(FAST_ALPHA),
        start: PicoTime::from_ns(f.start.ns()),
        send_buffer: s.send_buffer.as_ref().map_or(u64::MAX, |v| v.value),
        pacing: match (&f.pacing, s.pace) {
            (Some(rate), _) => Pacing::Rate(rate.value),
            (None, Some(Pace::TcpWindow)) => Pacing::Window,
            _ => Pacing::None,
        },
        local_congestion: s.local_congestion.map(Into::into).unwrap_or_default(),
        cpu_per_frame: ns(&s.cpu_per_frame),
        cpu_per_ack: ns(&s.cpu_per_ack),
        reaction_max: ns(&s.reaction),
        seed,
        ..SenderConfig::new(profile, algorithm, sizes)
    };
    let receiver = ReceiverConfig {
        profile,
        window: window(f, s),
        read_rate: s.read_rate.as_ref().map(|rate| rate.value),
        memory: s.receive_memory()?,
        mss: sizes.mss,
    };
    let id = b
        .net
        .add_tcp(TcpFlow {
            sender,
            receiver,
            forward,
            backward,
        })
        .map_err(|m| m.to_string())?;
    if s.pace == Some(Pace::InterfaceWindow) {
        b.net.pace_by_window(id).map_err(|m| m.to_string())?;
    }
    b.flows.push(id);
    b.congestion.push(algorithm.name().into());
    b.mss.push(sizes.mss);
    Ok(())
}

/// The effective window: as stated, or a third of the receive buffer. Paper 004, section II.B: Linux advertises
/// (buffer - used) / 2, and what is used is the window itself, so the buffer must be three times that.
fn window(f: &Flow, s: &Settings) -> u64 {
    // Where the memory of what waits is counted, the window follows from that.
    let buffer = s.receive_buffer.as_ref().filter(|_| s.frame_memory.is_none());
    let third = buffer.map(|buffer| buffer.value / 3);
    let stated = f.window.as_ref().map(|w| w.value);
    match (stated, third) {
        (Some(a), Some(b)) => a.min(b),
        (a, b) => a.or(b).unwrap_or(WINDOW),
    }
}

fn on_off(b: &mut Built, f: &Flow, p: &Phase, ip: IpVersion, forward: Vec<StageId>) -> Result<(), String> {
    let (Some(rate), Some(size), Some(on), Some(off)) = (&f.rate, &f.datagram, &f.on, &f.off) else {
        return Err("udp-on-off wants rate, datagram, on and off".into());
    };
    // Ethernet 14 and 4, IP, UDP 8.
    let overhead = 18 + 8 + if ip == IpVersion::V4 { 20 } else { 40 };
    let source = OnOff {
        start: PicoTime::from_ns(f.start.ns()),
        end: PicoTime::from_ns(p.duration.ns()),
        rate: rate.value,
        frame: FrameBytes::new(size.value + overhead),
        payload: u32::try_from(size.value).map_err(|_| "a datagram of over 4 GiB")?,
        on: PicoDuration::from_ns(on.ns()),
        off: PicoDuration::from_ns(off.ns()),
    };
    let id = b
        .net
        .add_on_off(OnOffFlow { source, forward })
        .map_err(|m| m.to_string())?;
    b.flows.push(id);
    b.congestion.push(String::new());
    b.mss.push(source.payload);
    Ok(())
}
