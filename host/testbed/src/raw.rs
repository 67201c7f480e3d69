//! The topology file as it is written, and its checks.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::net::IpAddr;
use std::path::Path;
use std::str::FromStr;

use kuroshio_core::pace::Spacing;
use kuroshio_core::units::{BitRate, FrameBytes, WireBytes, parse_bytes};
use kuroshio_core::wan::{DrainConfig, WaterMarks};
use kuroshio_core::wire::LineRate;
use serde::Deserialize;

use crate::net::Net;
use crate::raw_link;
use crate::topology::{
    self as checked, MAX_ADDRESSES, MAX_HOSTS, MAX_LINKS, MAX_MTU, MAX_NAME, MAX_PORTS, MAX_QUEUE,
    MAX_ROUTERS, MAX_SYSCTLS, MIN_MTU, MIN_MTU_V6, TopologyError, capacity_limit, default,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Topology {
    name: String,
    #[serde(default)]
    seed: u64,
    #[serde(default)]
    host: Vec<Host>,
    #[serde(default)]
    router: Vec<Router>,
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
    address: OneOrMany,
    router: String,
    queue: Option<String>,
    egress_queue: Option<String>,
    shape: Option<String>,
    gap: Option<String>,
    shape_queue: Option<String>,
    drain: Option<String>,
    drain_buffer: Option<String>,
    pause_high: Option<String>,
    pause_low: Option<String>,
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
        at_most("routers", self.router.len(), MAX_ROUTERS)?;
        at_most("links", self.link.len(), MAX_LINKS)?;
        at_most("ports", self.host.iter().map(|h| h.port.len()).sum(), MAX_PORTS)?;
        if self.host.is_empty() {
            return Err(TopologyError::new("hosts", "none: at least one [[host]]"));
        }
        let routers: Vec<String> = self.router.into_iter().map(|r| r.name).collect();
        for router in &routers {
            name(&format!("router {router:?}"), router, MAX_NAME)?;
        }
        unique("router", routers.iter())?;
        unique("host", self.host.iter().map(|h| &h.name))?;
        unique("link", self.link.iter().map(raw_link::Link::name))?;
        let hosts = self
            .host
            .into_iter()
            .map(|h| h.check(&routers))
            .collect::<Checked<Vec<_>>>()?;
        let links = self
            .link
            .into_iter()
            .map(|l| l.check(&routers, folder))
            .collect::<Checked<Vec<_>>>()?;
        addresses_once(&hosts)?;
        Ok(checked::Topology {
            name: self.name,
            seed: self.seed,
            hosts,
            routers,
            links,
            meters: self.meter,
            paths: Vec::new(),
        })
    }
}

impl Host {
    fn check(self, routers: &[String]) -> Checked<checked::Host> {
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
            .map(|p| p.check(&place, routers))
            .collect::<Checked<Vec<_>>>()?;
        one_port_per_subnet(&place, &ports)?;
        Ok(checked::Host {
            name: self.name,
            sysctl: self.sysctl,
            ports,
        })
    }
}

impl Port {
    fn check(self, host: &str, routers: &[String]) -> Checked<checked::Port> {
        let place = format!("{host}, port {:?}", self.name);
        name(&place, &self.name, kuroshio_port::MAX_NAME)?;
        if self.name == "lo" {
            return Err(TopologyError::new(place, "lo is the loopback's name"));
        }
        let texts = match self.address {
            OneOrMany::One(text) => vec![text],
            OneOrMany::Many(texts) => texts,
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
        let shaper = shaper(&place, self.shape, self.gap, self.shape_queue, wire)?;
        let marks = (self.pause_high, self.pause_low);
        let drain = drain(&place, self.drain, self.drain_buffer, marks, wire)?;
        Ok(checked::Port {
            mtu_bytes: u32::try_from(mtu).unwrap_or(u32::MAX),
            wire,
            router: index(&format!("{place}: router"), &self.router, routers)?,
            queue,
            egress_queue: egress,
            shaper,
            drain,
            addresses,
            name: self.name,
        })
    }
}

fn shaper(
    place: &str,
    shape: Option<String>,
    gap: Option<String>,
    limit: Option<String>,
    wire: LineRate,
) -> Checked<Option<checked::PortShaper>> {
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
    Ok(Some(checked::PortShaper { spacing, queue }))
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

fn size(place: &str, field: &str, text: &str) -> Checked<u64> {
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
