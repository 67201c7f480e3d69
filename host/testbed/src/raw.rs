//! The topology file as it is written, and its checks.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::net::IpAddr;
use std::path::Path;
use std::str::FromStr;

use kuroshio_core::pace::{GAP_FRAME_LIMIT_MIN, Spacing};
use kuroshio_core::units::{BitRate, FrameBytes, WireBytes, parse_bytes};
use kuroshio_core::wan::{DrainConfig, WaterMarks};
use kuroshio_core::wire::LineRate;
use serde::Deserialize;

use crate::net::Net;
use crate::raw_link;
use crate::raw_shape::{self, RawShape};
use crate::topology::{
    self as checked, MAX_ADDRESSES, MAX_HOSTS, MAX_LINKS, MAX_MTU, MAX_NAME, MAX_PORTS, MAX_QUEUE,
    MAX_ROUTERS, MAX_SYSCTLS, MAX_TAPS, MAX_THREADS, MIN_MTU, MIN_MTU_V6, QUANTUM, TopologyError,
    capacity_limit, default,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Topology {
    name: String,
    #[serde(default)]
    seed: u64,
    mode: Option<String>,
    quantum: Option<String>,
    threads: Option<u64>,
    #[serde(default)]
    host: Vec<Host>,
    #[serde(default)]
    tap: Vec<Mirror>,
    #[serde(default)]
    attach: Vec<Attach>,
    #[serde(default)]
    router: Vec<Router>,
    #[serde(default)]
    switch: Vec<Router>,
    #[serde(default)]
    link: Vec<raw_link::Link>,
    #[serde(default)]
    meter: Vec<crate::meter::MeterRequest>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Host {
    name: String,
    #[serde(default)]
    sysctl: BTreeMap<String, String>,
    #[serde(default)]
    port: Vec<Port>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Port {
    name: String,
    mtu: Option<String>,
    wire: Option<String>,
    address: Option<OneOrMany>,
    router: Option<String>,
    switch: Option<String>,
    queue: Option<String>,
    egress_queue: Option<String>,
    shape: Option<RawShape>,
    ceiling: Option<String>,
    gap: Option<String>,
    shape_queue: Option<String>,
    drain: Option<String>,
    drain_buffer: Option<String>,
    pause_high: Option<String>,
    pause_low: Option<String>,
    obey_pause: Option<bool>,
}

/// A copy of what passes a place, on a device in a host.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Mirror {
    name: String,
    host: String,
    at: String,
}

/// A device of the machine as a port of a switch.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Attach {
    name: String,
    interface: Option<String>,
    tap: Option<String>,
    switch: String,
    mtu: Option<String>,
    wire: Option<String>,
    queue: Option<String>,
    egress_queue: Option<String>,
    /// Of what leaves by the device, as are the two below.
    shape: Option<String>,
    gap: Option<String>,
    shape_queue: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Router {
    name: String,
}

pub(crate) type Checked<T> = Result<T, TopologyError>;

impl Topology {
    pub(crate) fn check(self, folder: &Path) -> Checked<checked::Topology> {
        name("topology name", &self.name, MAX_NAME)?;
        at_most("hosts", self.host.len(), MAX_HOSTS)?;
        at_most(
            "routers and switches",
            self.router.len() + self.switch.len(),
            MAX_ROUTERS,
        )?;
        at_most("links", self.link.len(), MAX_LINKS)?;
        let ports = self.host.iter().map(|h| h.port.len()).sum::<usize>() + self.attach.len();
        at_most("ports", ports, MAX_PORTS)?;
        at_most("hosts", self.host.len() + self.attach.len(), MAX_HOSTS)?;
        if self.host.is_empty() {
            return Err(TopologyError::new("hosts", "none: at least one [[host]]"));
        }
        let switches = self.switch.len();
        let nodes = self.router.into_iter().chain(self.switch);
        let routers: Vec<String> = nodes.map(|r| r.name).collect();
        for router in &routers {
            name(&format!("router {router:?}"), router, MAX_NAME)?;
        }
        unique("router", routers.iter())?;
        let attached = self.attach.iter().map(|a| &a.name);
        unique("host", self.host.iter().map(|h| &h.name).chain(attached))?;
        unique("link", self.link.iter().map(raw_link::Link::name))?;
        let hosts = self
            .host
            .into_iter()
            .map(|h| h.check(&routers, switches))
            .chain(self.attach.into_iter().map(|a| a.check(&routers, switches)))
            .collect::<Checked<Vec<_>>>()?;
        let links = self
            .link
            .into_iter()
            .map(|l| l.check(&routers, folder))
            .collect::<Checked<Vec<_>>>()?;
        addresses_once(&hosts)?;
        for link in &links {
            switches_apart(link, routers.len() - switches)?;
        }
        let mode = mode(self.mode.as_deref(), self.quantum.as_deref())?;
        if mode != checked::Mode::Frame {
            fills_by_frames(&hosts)?;
        }
        let mut topology = checked::Topology {
            name: self.name,
            seed: self.seed,
            mode,
            threads: threads(self.threads)?,
            hosts,
            routers,
            switches,
            links,
            taps: Vec::new(),
            meters: self.meter,
            paths: Vec::new(),
        };
        at_most("taps", self.tap.len(), MAX_TAPS)?;
        for tap in self.tap {
            let tap = tap.check(&topology)?;
            topology.taps.push(tap);
        }
        // In the order in which hosts make them.
        topology.taps.sort_by_key(|t| t.host);
        Ok(topology)
    }
}

/// Gap frames that really leave stand between single frames, not between superframes.
fn fills_by_frames(hosts: &[checked::Host]) -> Checked<()> {
    let fills =
        |h: &&checked::Host| h.attached.is_some() && h.ports.iter().any(|p| p.shaper.is_some_and(|s| s.fill));
    match hosts.iter().find(fills) {
        Some(host) => Err(TopologyError::new(
            format!("attach {:?}: gap", host.name),
            "gap frames leave by a device in frame mode only: mode = \"frame\"",
        )),
        None => Ok(()),
    }
}

fn threads(asked: Option<u64>) -> Checked<usize> {
    let threads = asked.unwrap_or(1);
    if !(1..=MAX_THREADS).contains(&threads) {
        let problem = format!("{threads}: 1 to {MAX_THREADS}");
        return Err(TopologyError::new("topology: threads", problem));
    }
    Ok(usize::try_from(threads).unwrap_or(1))
}

fn mode(mode: Option<&str>, quantum: Option<&str>) -> Checked<checked::Mode> {
    match mode {
        Some("segment") => {
            let quantum = parse("topology", "quantum", quantum.unwrap_or(default::QUANTUM))?;
            let [least, most] = QUANTUM;
            if !(least..=most).contains(&quantum) {
                return Err(TopologyError::new(
                    "topology: quantum",
                    format!("{quantum}: {least} to {most}"),
                ));
            }
            Ok(checked::Mode::Segment { quantum })
        }
        Some(other) if other != "frame" => Err(TopologyError::new(
            "topology: mode",
            format!("{other:?}: frame or segment"),
        )),
        _ if quantum.is_some() => Err(TopologyError::new(
            "topology: quantum",
            "there is one in segment mode only",
        )),
        _ => Ok(checked::Mode::Frame),
    }
}

impl Host {
    fn check(self, routers: &[String], switches: usize) -> Checked<checked::Host> {
        let place = format!("host {:?}", self.name);
        name(&place, &self.name, MAX_NAME)?;
        at_most(&format!("{place}: sysctls"), self.sysctl.len(), MAX_SYSCTLS)?;
        for (key, value) in &self.sysctl {
            sysctl(&format!("{place}: sysctl {key:?}"), key, value)?;
        }
        unique(&format!("{place}: port"), self.port.iter().map(|p| &p.name))?;
        let ports = self
            .port
            .into_iter()
            .map(|p| p.check(&place, routers, switches))
            .collect::<Checked<Vec<_>>>()?;
        one_port_per_subnet(&place, &ports)?;
        if let Some(port) = ports.iter().find(|p| p.addresses.is_empty()) {
            let place = format!("{place}, port {:?}", port.name);
            return Err(TopologyError::new(place, "an address is missing"));
        }
        Ok(checked::Host {
            name: self.name,
            attached: None,
            sysctl: self.sysctl,
            ports,
        })
    }
}

impl Mirror {
    fn check(self, topology: &checked::Topology) -> Checked<checked::Mirror> {
        let place = format!("tap {:?}", self.name);
        name(&place, &self.name, kuroshio_port::MAX_NAME)?;
        let named = |h: &checked::Host| h.name == self.host && h.attached.is_none();
        let Some(host) = topology.hosts.iter().position(named) else {
            let problem = format!("there is no host {:?}", self.host);
            return Err(TopologyError::new(format!("{place}: host"), problem));
        };
        let ports = topology.hosts[host].ports.iter().map(|p| &p.name);
        let taps = topology.taps.iter().filter(|t| t.host == host).map(|t| &t.name);
        if ports.chain(taps).any(|other| *other == self.name) || self.name == "lo" {
            return Err(TopologyError::new(
                place,
                "the host has an interface of that name",
            ));
        }
        let somewhere =
            !topology.link_numbers(&self.at).is_empty() || topology.port_number(&self.at).is_some();
        if !somewhere {
            let names = [topology.link_names(), topology.port_names()].concat();
            let problem = format!("{:?}: a link or a port, of {}", self.at, names.join(", "));
            return Err(TopologyError::new(format!("{place}: at"), problem));
        }
        Ok(checked::Mirror {
            name: self.name,
            host,
            at: self.at,
        })
    }
}

impl Attach {
    fn check(self, routers: &[String], switches: usize) -> Checked<checked::Host> {
        let place = format!("attach {:?}", self.name);
        name(&place, &self.name, MAX_NAME)?;
        let (device, attached) = match (self.interface, self.tap) {
            (Some(name), None) => (name, checked::Attached::Interface),
            (None, Some(name)) => (name, checked::Attached::Tap),
            _ => {
                return Err(TopologyError::new(
                    place,
                    "an interface that exists, or a tap to be made: one of them",
                ));
            }
        };
        let port = Port {
            name: device,
            mtu: self.mtu,
            wire: self.wire,
            address: None,
            router: None,
            switch: Some(self.switch),
            queue: self.queue,
            egress_queue: self.egress_queue,
            shape: self.shape.map(RawShape::Port),
            ceiling: None,
            gap: self.gap,
            shape_queue: self.shape_queue,
            drain: None,
            drain_buffer: None,
            pause_high: None,
            pause_low: None,
            obey_pause: None,
        };
        Ok(checked::Host {
            ports: vec![port.check(&place, routers, switches)?],
            attached: Some(attached),
            name: self.name,
            sysctl: BTreeMap::new(),
        })
    }
}

impl Port {
    fn check(self, host: &str, routers: &[String], switches: usize) -> Checked<checked::Port> {
        let place = format!("{host}, port {:?}", self.name);
        name(&place, &self.name, kuroshio_port::MAX_NAME)?;
        if self.name == "lo" {
            return Err(TopologyError::new(place, "lo is the loopback's name"));
        }
        let texts = match self.address {
            Some(OneOrMany::One(text)) => vec![text],
            Some(OneOrMany::Many(texts)) => texts,
            None => Vec::new(),
        };
        at_most(&format!("{place}: addresses"), texts.len(), MAX_ADDRESSES)?;
        let addresses = texts
            .iter()
            .map(|text| parse::<Net>(&place, "address", text))
            .collect::<Checked<Vec<_>>>()?;
        for net in &addresses {
            usable(&place, *net)?;
        }
        let v6 = addresses.iter().any(|n| n.ip.is_ipv6());
        let least = if v6 { MIN_MTU_V6 } else { MIN_MTU };
        let mtu = size(&place, "mtu", self.mtu.as_deref().unwrap_or(default::MTU))?;
        if !(least..=MAX_MTU).contains(&mtu) {
            return Err(TopologyError::new(
                format!("{place}: mtu"),
                format!("{mtu}B: {least}B to {MAX_MTU}B"),
            ));
        }
        let wire = wire(&place, self.wire.as_deref().unwrap_or(default::WIRE))?;
        let queue = queue(&place, "queue", self.queue.as_deref(), default::QUEUE)?;
        let egress = queue_or(&place, "egress_queue", self.egress_queue.as_deref(), queue)?;
        let (shape, streams) = match self.shape {
            Some(RawShape::Streams(rules)) => {
                if self.gap.is_some() {
                    return Err(TopologyError::new(place, "both shape and gap: only one of them"));
                }
                let streams = raw_shape::streams(&place, rules, wire)?;
                // What holds them together is the port's shaper.
                let ceiling = self.ceiling.unwrap_or_else(|| wire.bit_rate().to_string());
                (Some(ceiling), streams)
            }
            Some(RawShape::Port(_)) | None if self.ceiling.is_some() => {
                return Err(TopologyError::new(
                    format!("{place}: ceiling"),
                    "only beside shape = [{stream = ..., rate = ...}, ...]",
                ));
            }
            Some(RawShape::Port(text)) => (Some(text), Vec::new()),
            None => (None, Vec::new()),
        };
        let shaper = shaper(&place, shape, self.gap, self.shape_queue, wire)?;
        if shaper.is_some_and(|s| s.fill) && FrameBytes::new(mtu + 18) < GAP_FRAME_LIMIT_MIN {
            let problem = "gap frames want an mtu of 150B at least";
            return Err(TopologyError::new(format!("{place}: gap"), problem));
        }
        // A card that asks for pauses is there to get them.
        let obey_pause = self.obey_pause.unwrap_or(self.pause_high.is_some());
        let marks = (self.pause_high, self.pause_low);
        let drain = drain(&place, self.drain, self.drain_buffer, marks, wire)?;
        Ok(checked::Port {
            mtu_bytes: u32::try_from(mtu).unwrap_or(u32::MAX),
            wire,
            router: node(&place, self.router, self.switch, routers, switches)?,
            queue,
            egress_queue: egress,
            shaper,
            streams,
            drain,
            obey_pause,
            addresses,
            name: self.name,
        })
    }
}

/// The node that a port is at: a router or a switch.
fn node(
    place: &str,
    router: Option<String>,
    switch: Option<String>,
    nodes: &[String],
    switches: usize,
) -> Checked<usize> {
    let (routers, switches) = nodes.split_at(nodes.len() - switches);
    match (router, switch) {
        (Some(name), None) => index(&format!("{place}: router"), &name, routers),
        (None, Some(name)) => {
            let place = format!("{place}: switch");
            let found = switches.iter().position(|s| *s == name);
            found.map(|i| routers.len() + i).ok_or_else(|| {
                let problem = format!("there is no switch {name:?}, but {}", list(switches));
                TopologyError::new(place, problem)
            })
        }
        _ => Err(TopologyError::new(
            place,
            "a port is at a router or at a switch: one of them",
        )),
    }
}

/// A link joins routers or switches, and one between switches is for all.
fn switches_apart(link: &checked::Link, first_switch: usize) -> Checked<()> {
    let place = format!("link {:?}", link.name);
    let [a, b] = link.between.map(|r| r >= first_switch);
    if a != b {
        let problem = "between a router and a switch: two routers or two switches";
        return Err(TopologyError::new(place, problem));
    }
    if a && !link.carries.is_empty() {
        let problem = "a link between switches carries every subnet: leave carries out";
        return Err(TopologyError::new(place, problem));
    }
    Ok(())
}

/// In place of a gap's bytes: gap frames in the gaps of `shape`.
const GAP_FRAMES: &str = "frames";

fn shaper(
    place: &str,
    shape: Option<String>,
    gap: Option<String>,
    limit: Option<String>,
    wire: LineRate,
) -> Checked<Option<checked::PortShaper>> {
    // Not a gap of its own, but what is in the gaps of the rate.
    let fill = gap.as_deref() == Some(GAP_FRAMES);
    let gap = gap.filter(|_| !fill);
    if fill && shape.is_none() {
        return Err(TopologyError::new(
            format!("{place}: gap"),
            "\"frames\" fills what a rate leaves free: shape = RATE is missing",
        ));
    }
    let spacing = match (shape, gap) {
        (Some(_), Some(_)) => {
            return Err(TopologyError::new(place, "both shape and gap: only one of them"));
        }
        (Some(text), None) => {
            let rate: BitRate = parse(place, "shape", &text)?;
            if rate > wire.bit_rate() {
                return Err(TopologyError::new(
                    format!("{place}: shape"),
                    format!("{rate} is more than the wire's {wire}"),
                ));
            }
            Spacing::Rate(rate)
        }
        (None, Some(text)) => {
            let bytes = size(place, "gap", &text)?;
            if bytes > MAX_QUEUE {
                return Err(TopologyError::new(
                    format!("{place}: gap"),
                    format!("{text:?}: at most 4GiB"),
                ));
            }
            Spacing::Gap(WireBytes::new(bytes))
        }
        (None, None) if limit.is_some() => {
            return Err(TopologyError::new(
                format!("{place}: shape_queue"),
                "there is neither shape nor gap",
            ));
        }
        (None, None) => return Ok(None),
    };
    let queue = queue(place, "shape_queue", limit.as_deref(), default::SHAPE_QUEUE)?;
    Ok(Some(checked::PortShaper { spacing, queue, fill }))
}

/// A card that drains at a rate of its own, with water marks for PAUSE when they are given.
fn drain(
    place: &str,
    rate: Option<String>,
    buffer: Option<String>,
    marks: (Option<String>, Option<String>),
    line: LineRate,
) -> Checked<Option<DrainConfig>> {
    let Some(rate) = rate else {
        if buffer.is_some() || marks.0.is_some() || marks.1.is_some() {
            let problem = "drain_buffer, pause_high and pause_low need a drain";
            return Err(TopologyError::new(place, problem));
        }
        return Ok(None);
    };
    let rate = capacity_limit(parse(place, "drain", &rate)?)
        .map_err(|problem| TopologyError::new(format!("{place}: drain"), problem))?;
    let buffer = queue(place, "drain_buffer", buffer.as_deref(), default::DRAIN_BUFFER)?;
    let pause = match marks {
        (None, None) => None,
        (Some(high), Some(low)) => {
            let high = queue(place, "pause_high", Some(&high), "")?;
            let low = queue(place, "pause_low", Some(&low), "")?;
            if low >= high || high >= buffer {
                return Err(TopologyError::new(
                    format!("{place}: pause_high"),
                    "pause_low must be below pause_high, and that below drain_buffer",
                ));
            }
            // The longest pause: it is ended at the low mark.
            let quanta = u16::MAX;
            Some(WaterMarks { high, low, quanta })
        }
        _ => {
            let problem = "pause_high and pause_low go together";
            return Err(TopologyError::new(place, problem));
        }
    };
    Ok(Some(DrainConfig {
        rate,
        buffer,
        pause,
        line,
    }))
}

pub(crate) fn parse<T: FromStr<Err: Display>>(place: &str, field: &str, text: &str) -> Checked<T> {
    text.parse()
        .map_err(|e: T::Err| TopologyError::new(format!("{place}: {field}"), e.to_string()))
}

pub(crate) fn size(place: &str, field: &str, text: &str) -> Checked<u64> {
    parse_bytes(text).map_err(|e| TopologyError::new(format!("{place}: {field}"), e.to_string()))
}

pub(crate) fn wire(place: &str, text: &str) -> Checked<LineRate> {
    let line: LineRate = parse(place, "wire", text)?;
    capacity_limit(line.bit_rate()).map_err(|p| TopologyError::new(format!("{place}: wire"), p))?;
    Ok(line)
}

fn queue(place: &str, field: &str, text: Option<&str>, default: &str) -> Checked<FrameBytes> {
    let bytes = size(place, field, text.unwrap_or(default))?;
    if bytes > MAX_QUEUE {
        return Err(TopologyError::new(
            format!("{place}: {field}"),
            format!("{bytes}B: at most 4GiB"),
        ));
    }
    Ok(FrameBytes::new(bytes))
}

fn queue_or(place: &str, field: &str, text: Option<&str>, or: FrameBytes) -> Checked<FrameBytes> {
    match text {
        Some(text) => queue(place, field, Some(text), text),
        None => Ok(or),
    }
}

pub(crate) fn name(place: &str, text: &str, most: usize) -> Checked<()> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let valid = !text.is_empty()
        && text.len() <= most
        && text.chars().all(allowed)
        && text.starts_with(|c: char| c.is_ascii_alphanumeric());
    if valid {
        return Ok(());
    }
    Err(TopologyError::new(
        place,
        format!(
            "the name {text:?} must have 1 to {most} letters, digits, '-', '_' or '.', the first a \
             letter or digit"
        ),
    ))
}

fn sysctl(place: &str, key: &str, value: &str) -> Checked<()> {
    let part = |p: &str| {
        !p.is_empty()
            && p.chars()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'))
    };
    if !key.starts_with("net.") || !key.split('.').all(part) {
        return Err(TopologyError::new(
            place,
            "only parameters of the host's own network, such as net.ipv4.tcp_sack",
        ));
    }
    if value.len() > 256 || value.contains('\0') {
        return Err(TopologyError::new(place, "the value is at most 256 bytes"));
    }
    Ok(())
}

pub(crate) fn at_most(what: &str, count: usize, most: usize) -> Checked<()> {
    if count > most {
        return Err(TopologyError::new(what, format!("{count}: at most {most}")));
    }
    Ok(())
}

fn unique<'a>(what: &str, names: impl Iterator<Item = &'a String>) -> Checked<()> {
    let mut seen = BTreeSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(TopologyError::new(
                format!("{what} {name:?}"),
                "the name is there twice",
            ));
        }
    }
    Ok(())
}

pub(crate) fn index(place: &str, name: &str, routers: &[String]) -> Checked<usize> {
    routers.iter().position(|r| r == name).ok_or_else(|| {
        TopologyError::new(
            place,
            format!("there is no router {name:?}, but {}", list(routers)),
        )
    })
}

fn list(names: &[String]) -> String {
    if names.is_empty() {
        return "none at all".to_owned();
    }
    names.join(", ")
}

fn usable(place: &str, net: Net) -> Checked<()> {
    let bad = net.ip.is_unspecified() || net.ip.is_multicast() || net.ip.is_loopback();
    let edge = match net.ip {
        IpAddr::V4(_) => net.prefix < 31 && net.subnet().ip == net.ip,
        IpAddr::V6(_) => net.prefix < 127 && net.subnet().ip == net.ip,
    };
    if bad || edge {
        return Err(TopologyError::new(
            format!("{place}: address"),
            format!("{net} is not the address of a host, such as 10.1.1.1/24"),
        ));
    }
    Ok(())
}

fn one_port_per_subnet(place: &str, ports: &[checked::Port]) -> Checked<()> {
    let mut seen: BTreeMap<Net, &str> = BTreeMap::new();
    for port in ports {
        let own: BTreeSet<Net> = port.addresses.iter().map(Net::subnet).collect();
        for subnet in own {
            if let Some(other) = seen.insert(subnet, &port.name) {
                return Err(TopologyError::new(
                    place,
                    format!(
                        "ports {other:?} and {:?} are both in {subnet}: one port of a host per subnet",
                        port.name
                    ),
                ));
            }
        }
    }
    Ok(())
}

fn addresses_once(hosts: &[checked::Host]) -> Checked<()> {
    let mut seen: BTreeMap<IpAddr, String> = BTreeMap::new();
    for host in hosts {
        for port in &host.ports {
            for net in &port.addresses {
                let here = format!("host {:?}, port {:?}", host.name, port.name);
                if let Some(there) = seen.insert(net.ip, here.clone()) {
                    return Err(TopologyError::new(
                        here,
                        format!("the address {} is also that of {there}", net.ip),
                    ));
                }
            }
        }
    }
    Ok(())
}
