//! What the network is: hosts with ports, routers, links; read from TOML and checked.
//!
//! ```text
//! host --port wire (L1)--> [shaper] --> router ==link (frame level, delay, queue)==> router --port wire--> host
//! ```
//!
//! Every quantity carries its unit. Ports whose addresses are in one subnet reach each other,
//! over the routers, on the path with the fewest links; a link with `carries` is for those
//! subnets alone, and goes before links without. On routers each host knows the others' hardware addresses from the
//! start; on switches hosts ask, and groups are flooded. Switches and routers are not joined by links. A link's parameters are the settings of
//! `kuroshio_core::wan::setting`, by the same names and in the same form.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use kuroshio_core::pace::Spacing;
use kuroshio_core::units::{BitRate, FrameBytes, PicoDuration};
use kuroshio_core::wan::{DrainConfig, LinkConfig, StreamShape, WanConfig};
use kuroshio_core::wire::LineRate;

use crate::files;
use crate::net::Net;
use crate::path;
use crate::raw;

/// Most bytes of a topology file.
pub const MAX_TEXT: usize = 1 << 20;
/// Most hosts.
pub const MAX_HOSTS: usize = 64;
/// Most ports of all hosts together.
pub const MAX_PORTS: usize = 64;
/// Most routers.
pub const MAX_ROUTERS: usize = 64;
/// Most links (each is two directions).
pub const MAX_LINKS: usize = 64;
/// Most addresses of a port.
pub const MAX_ADDRESSES: usize = 8;
/// Most subnets in a link's `carries`.
pub const MAX_CARRIES: usize = 64;
/// Most kernel parameters of a host.
pub const MAX_SYSCTLS: usize = 64;
/// Most bytes of a name of a host, router or link.
pub const MAX_NAME: usize = 32;
/// Smallest MTU: what IPv4 asks of a host (RFC 791).
pub const MIN_MTU: u64 = 576;
/// Smallest MTU of a port with an IPv6 address (RFC 8200).
pub const MIN_MTU_V6: u64 = 1280;
/// Largest MTU: what the jumbo frames of the papers' cards had (9198) and a little more.
pub const MAX_MTU: u64 = 9216;
/// Largest rate of a wire or link.
pub const MAX_RATE_BPS: u64 = 100_000_000_000;
/// Longest one-way delay.
pub const MAX_DELAY: PicoDuration = PicoDuration::from_secs(10);
/// Largest queue.
pub const MAX_QUEUE: u64 = 4 << 30;
/// Shortest and longest departure quantum of segment mode.
pub const QUANTUM: [PicoDuration; 2] = [PicoDuration::from_us(50), PicoDuration::from_us(100)];

/// Most taps.
pub const MAX_TAPS: usize = 64;
/// Most threads of the emulator.
pub const MAX_THREADS: u64 = 16;

/// How frames pass between hosts and emulator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Each frame alone, at its exact time.
    #[default]
    Frame,
    /// Hosts give and take superframes. In between, each segment is a frame with its exact times; what departs to a
    /// host within one quantum is handed over together.
    Segment {
        /// The departure quantum.
        quantum: PicoDuration,
    },
}

impl Mode {
    /// Its name in files and results: `frame` or `segment`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Frame => "frame",
            Self::Segment { .. } => "segment",
        }
    }
}

/// Why a topology is refused: where, and what would be valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopologyError {
    /// The place, as `host "tokyo", port "la1": mtu`.
    pub place: String,
    /// What is wrong and what would be valid.
    pub problem: String,
}

impl TopologyError {
    pub(crate) fn new(place: impl Into<String>, problem: impl Into<String>) -> Self {
        Self {
            place: place.into(),
            problem: problem.into(),
        }
    }
}

impl fmt::Display for TopologyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "topology: {}: {}", self.place, self.problem)
    }
}

impl std::error::Error for TopologyError {}

/// A checked topology.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    /// Its name.
    pub name: String,
    /// Seed of the links' losses: the same seed loses the same frames of the same sequence.
    pub seed: u64,
    /// How frames pass between hosts and emulator.
    pub mode: Mode,
    /// Threads of the emulator that were asked for.
    pub threads: usize,
    /// The hosts.
    pub hosts: Vec<Host>,
    /// The routers' names, and behind them the switches'.
    pub routers: Vec<String>,
    /// How many of them are switches.
    pub switches: usize,
    /// The links.
    pub links: Vec<Link>,
    /// Copies of what passes somewhere.
    pub taps: Vec<Mirror>,
    /// The meters that run from the start, checked.
    pub meters: Vec<crate::meter::MeterRequest>,
    pub(crate) paths: Vec<Path>,
}

/// What is attached in place of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attached {
    /// An interface that exists.
    Interface,
    /// A TAP device that the testbed makes.
    Tap,
}

/// A host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Its name.
    pub name: String,
    /// Not a namespace of the testbed but a device of the machine, named as the port.
    pub attached: Option<Attached>,
    /// Kernel parameters of its namespace, all of `net.*`.
    pub sysctl: BTreeMap<String, String>,
    /// Its ports.
    pub ports: Vec<Port>,
}

/// A port of a host: a card with its wire to a router.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// The interface's name in the host.
    pub name: String,
    /// Largest IP packet, bytes.
    pub mtu_bytes: u32,
    /// Rate of the wire, both directions, L1.
    pub wire: LineRate,
    /// Its addresses.
    pub addresses: Vec<Net>,
    /// Index of the router or switch at the other end.
    pub router: usize,
    /// Queue of the host's card.
    pub queue: FrameBytes,
    /// Queue of the router before this port's wire.
    pub egress_queue: FrameBytes,
    /// Shaper between the host's wire and the router; of an attached device behind the switch, in place of its egress wire.
    pub shaper: Option<PortShaper>,
    /// Streams that are shaped apart; the shaper is then their ceiling, and has the queue of all other frames.
    pub streams: Vec<StreamShape>,
    /// The host's card behind the wire, when it drains at a rate of its own.
    pub drain: Option<DrainConfig>,
    /// Whether the router's wire to the host obeys PAUSE frames (802.3x) of the host or of its card; else they are dropped
    /// at the router's input, as by a switch without flow control.
    pub obey_pause: bool,
}

/// A shaper on a port's way out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortShaper {
    /// By rate (frame level) or a fixed gap.
    pub spacing: Spacing,
    /// Its queue.
    pub queue: FrameBytes,
    /// Whether gaps before a frame that waits are filled by gap frames (802.3x PAUSE of time 0), which the router drops at its
    /// input; by an attached device they leave.
    pub fill: bool,
}

/// A TAP device in a host that shows what passes a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mirror {
    /// The device's name.
    pub name: String,
    /// Index of the host in which it is.
    pub host: usize,
    /// A link, one of its directions, or a port.
    pub at: String,
}

/// A link: two directions between two routers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Its name.
    pub name: String,
    /// Indices of the routers at its ends.
    pub between: [usize; 2],
    /// From the first router to the second, and back: all that was asked for.
    pub wan: [WanConfig; 2],
    /// The plain part of the same: capacity, delay, queue and ratio of loss.
    pub directions: [LinkConfig; 2],
    /// The subnets it is for; empty for all.
    pub carries: Vec<Net>,
}

/// The way from a port to another: numbers of ports, and of links' directions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Path {
    pub from: usize,
    pub to: usize,
    /// `2 * link + direction`, in order.
    pub links: Vec<usize>,
}

impl Topology {
    /// Reads and checks a topology's file. Traces and samples that it names are looked for beside it.
    ///
    /// # Errors
    /// As [`Topology::from_toml`], or the file cannot be read.
    pub fn from_file(path: &std::path::Path) -> Result<Self, TopologyError> {
        let text = files::read(path, MAX_TEXT as u64).map_err(|e| TopologyError::new("the file", e))?;
        Self::read(&text, path.parent().unwrap_or(std::path::Path::new(".")))
    }

    /// Reads and checks a topology. Traces and samples that it names are looked for in the current folder.
    ///
    /// # Errors
    /// The first thing that is wrong: where it is and what would be valid.
    pub fn from_toml(text: &str) -> Result<Self, TopologyError> {
        Self::read(text, std::path::Path::new("."))
    }

    fn read(text: &str, folder: &std::path::Path) -> Result<Self, TopologyError> {
        if text.len() > MAX_TEXT {
            return Err(TopologyError::new(
                "the file",
                format!("{} bytes: at most {MAX_TEXT}", text.len()),
            ));
        }
        let raw: raw::Topology =
            toml::from_str(text).map_err(|e| TopologyError::new("the file", e.to_string().trim_end()))?;
        let mut topology = raw.check(folder)?;
        topology.paths = path::all(&topology)?;
        crate::meter::check_all(&topology)?;
        Ok(topology)
    }

    /// Whether a router, by its index, is a switch.
    #[must_use]
    pub fn is_switch(&self, router: usize) -> bool {
        router >= self.routers.len().saturating_sub(self.switches)
    }

    /// All ports with their numbers' order: by host, then by port.
    pub fn ports(&self) -> impl Iterator<Item = (&Host, &Port)> {
        self.hosts
            .iter()
            .flat_map(|h| h.ports.iter().map(move |p| (h, p)))
    }

    /// The full name of every port, `host/port`, by number.
    #[must_use]
    pub fn port_names(&self) -> Vec<String> {
        self.ports()
            .map(|(h, p)| format!("{}/{}", h.name, p.name))
            .collect()
    }

    /// The number of a port by its full name `host/port`, or by its bare name where only one host
    /// has it.
    #[must_use]
    pub fn port_number(&self, name: &str) -> Option<usize> {
        let matches = |(host, port): (&Host, &Port)| match name.split_once('/') {
            Some((h, p)) => host.name == h && port.name == p,
            None => port.name == name,
        };
        let mut found = self
            .ports()
            .enumerate()
            .filter(|(_, p)| matches(*p))
            .map(|(n, _)| n);
        match (found.next(), found.next()) {
            (Some(number), None) => Some(number),
            _ => None,
        }
    }

    /// The name of every direction of every link, `link:from>to`, by number (`2 * link +
    /// direction`).
    #[must_use]
    pub fn link_names(&self) -> Vec<String> {
        let router = |index: usize| self.routers.get(index).map_or("?", String::as_str);
        self.links
            .iter()
            .flat_map(|l| {
                let [a, b] = l.between.map(router);
                [format!("{}:{a}>{b}", l.name), format!("{}:{b}>{a}", l.name)]
            })
            .collect()
    }

    /// The numbers of the directions that a name means: `la:tokyo-gw>sandiego-gw` is one, `la`
    /// both. Empty when there is none.
    #[must_use]
    pub fn link_numbers(&self, name: &str) -> Vec<usize> {
        self.link_names()
            .iter()
            .enumerate()
            .filter(|(_, full)| *full == name || full.split(':').next() == Some(name))
            .map(|(number, _)| number)
            .collect()
    }

    /// The way from a port to another of its subnet, by their numbers: the numbers of the links'
    /// directions, in order.
    #[must_use]
    pub fn way(&self, from: usize, to: usize) -> Option<&[usize]> {
        let path = self.paths.iter().find(|p| (p.from, p.to) == (from, to))?;
        Some(&path.links)
    }

    /// The addresses that a port reaches, with the number of the port that has each.
    pub(crate) fn neighbours(&self, port: usize) -> Vec<(IpAddr, usize)> {
        let ports: Vec<&Port> = self.ports().map(|(_, p)| p).collect();
        // On a switch, hosts ask.
        let Some(own) = ports.get(port).filter(|p| !self.is_switch(p.router)) else {
            return Vec::new();
        };
        ports
            .iter()
            .enumerate()
            .filter(|(number, _)| *number != port)
            .flat_map(|(number, other)| other.addresses.iter().map(move |net| (net, number)))
            .filter(|(net, _)| own.addresses.iter().any(|mine| mine.same_subnet(net)))
            .map(|(net, number)| (net.ip, number))
            .collect()
    }
}

/// Parsed quantities' defaults.
pub(crate) mod default {
    /// Departure quantum of segment mode.
    pub const QUANTUM: &str = "64us";
    /// A host's port.
    pub const MTU: &str = "1500B";
    pub const WIRE: &str = "1Gbps";
    /// A card that never drops what TCP gives it: 0.5 s at 1 Gbps.
    pub const QUEUE: &str = "64MiB";
    pub const SHAPE_QUEUE: &str = "8MiB";
    pub const LINK_QUEUE: &str = "1MiB";
    /// What a card holds that drains slower than its wire.
    pub const DRAIN_BUFFER: &str = "512KiB";
}

pub(crate) fn capacity_limit(rate: BitRate) -> Result<BitRate, String> {
    if rate.bps() > MAX_RATE_BPS {
        return Err(format!("{rate}: at most 100Gbps"));
    }
    Ok(rate)
}
