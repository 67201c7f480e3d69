//! What a meter is asked to be: the same words in the topology file, on the command line and on the control socket.
//!
//! ```toml
//! [[meter]]
//! name = "tokyo-iperf"
//! at = "tokyo/p0"               # a port, or one direction of a link as "pacific:japan>california"
//! direction = "received"        # of a port: sent, shaped or received
//! filter = "tcp and port 5201"
//! windows = ["1ms", "1s"]
//! keep = 2000                   # windows of each width
//! streams = 8                   # kept apart as well
//! ```

use std::fmt;
use std::str::FromStr;

use kuroshio_core::meter::{Filter, MeterConfig};
use kuroshio_core::units::PicoDuration;
use serde::{Deserialize, Serialize};

use crate::emulator::{Numbers, exit_stages, shaper_stages};
use crate::raw::at_most;
use crate::topology::{MAX_NAME, Topology, TopologyError};

/// Most meters of a testbed.
pub const MAX_METERS: usize = 64;
/// Most series of all meters: each has five histograms, 290 KiB.
pub const MAX_SERIES: usize = 256;
/// Most windows that all meters may keep, 176 bytes each.
pub const MAX_WINDOWS: usize = 1 << 20;

const DEFAULT_WINDOWS: [&str; 2] = ["10ms", "1s"];
const DEFAULT_KEEP: usize = 1_000;

/// Which way frames go through a port.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// On the host's own wire, behind its card's queue.
    Sent,
    /// Behind the port's shaper.
    Shaped,
    /// On the wire to the host, behind the router's queue.
    #[default]
    Received,
}

impl FromStr for Direction {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "sent" => Ok(Self::Sent),
            "shaped" => Ok(Self::Shaped),
            "received" => Ok(Self::Received),
            _ => Err(format!("{text:?}: sent, shaped or received")),
        }
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sent => "sent",
            Self::Shaped => "shaped",
            Self::Received => "received",
        })
    }
}

/// A meter as it is asked for, in words.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeterRequest {
    /// Its name: letters, digits, `-`, `_` and `.`.
    pub name: String,
    /// A port (`host/port`) or one direction of a link (`link:from>to`).
    pub at: String,
    /// Of a port; `received` without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub direction: Option<Direction>,
    /// Which streams: an expression of `kuroshio_core::meter::Filter`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub filter: String,
    /// Widths of the windows, with units; 10 ms and 1 s without.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub windows: Vec<String>,
    /// Windows that are kept of each width; 1000 without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep: Option<usize>,
    /// Streams that are kept apart; 0 without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streams: Option<usize>,
}

/// Where a meter is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A port, by number.
    Port(usize, Direction),
    /// A direction of a link, by number.
    Link(usize),
}

/// A checked meter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MeterSpec {
    pub name: String,
    pub place: Place,
    /// The place in words.
    pub at: String,
    pub config: MeterConfig,
}

impl MeterRequest {
    /// Checks the words against a network.
    ///
    /// # Errors
    /// What is wrong, where, and what would be valid.
    pub(crate) fn check(&self, topology: &Topology) -> Result<MeterSpec, String> {
        let fail = |problem: String| format!("meter {:?}: {problem}", self.name);
        crate::raw::name("", &self.name, MAX_NAME).map_err(|e| fail(e.problem))?;
        let place = self.place(topology).map_err(fail)?;
        let filter: Filter = self.filter.parse().map_err(|e| fail(format!("{e}")))?;
        let texts: Vec<&str> = match self.windows.is_empty() {
            true => DEFAULT_WINDOWS.to_vec(),
            false => self.windows.iter().map(String::as_str).collect(),
        };
        let widths = texts
            .into_iter()
            .map(|text| text.parse::<PicoDuration>())
            .collect::<Result<Vec<_>, _>>()
            .map_err(|e| fail(format!("windows: {e}")))?;
        let config = MeterConfig {
            filter,
            widths,
            keep: self.keep.unwrap_or(DEFAULT_KEEP),
            streams: self.streams.unwrap_or(0),
        };
        config.check().map_err(fail)?;
        if (1..config.widths.len()).any(|n| config.widths[..n].contains(&config.widths[n])) {
            return Err(fail("windows: a width is there twice".into()));
        }
        let at = match &place {
            Place::Port(port, direction) => {
                let names = topology.port_names();
                format!("{} {direction}", names.get(*port).map_or("?", String::as_str))
            }
            Place::Link(link) => {
                let names = topology.link_names();
                names.get(*link).cloned().unwrap_or_default()
            }
        };
        Ok(MeterSpec {
            name: self.name.clone(),
            place,
            at,
            config,
        })
    }

    fn place(&self, topology: &Topology) -> Result<Place, String> {
        if let [link] = topology.link_numbers(&self.at)[..] {
            if self.direction.is_some() {
                return Err("direction: a link's is in its name, link:from>to".into());
            }
            return Ok(Place::Link(link));
        }
        if let Some(port) = topology.port_number(&self.at) {
            let direction = self.direction.unwrap_or_default();
            if direction == Direction::Shaped
                && shaper_stages(topology).get(port).copied().flatten().is_none()
            {
                return Err(format!("direction: {} has no shaper", self.at));
            }
            return Ok(Place::Port(port, direction));
        }
        let known = [topology.port_names(), topology.link_names()].concat();
        Err(format!(
            "at: no port or direction of a link {:?}, but {}",
            self.at,
            known.join(", ")
        ))
    }
}

/// Checks the meters of a topology's file.
pub(crate) fn check_all(topology: &Topology) -> Result<(), TopologyError> {
    at_most("meters", topology.meters.len(), MAX_METERS)?;
    let mut names: Vec<&str> = Vec::new();
    for request in &topology.meters {
        request
            .check(topology)
            .map_err(|problem| TopologyError::new("[[meter]]", problem))?;
        if names.contains(&request.name.as_str()) {
            let place = format!("meter {:?}", request.name);
            return Err(TopologyError::new(place, "the name is there twice"));
        }
        names.push(&request.name);
    }
    Ok(())
}

impl MeterSpec {
    /// The number of the stage that it looks at.
    pub fn stage(&self, topology: &Topology) -> Option<usize> {
        let numbers = Numbers::of(topology);
        match self.place {
            Place::Port(port, Direction::Sent) => Some(numbers.own_wire(port)),
            Place::Port(port, Direction::Received) => exit_stages(topology).get(port).copied(),
            Place::Port(port, Direction::Shaped) => shaper_stages(topology).get(port).copied().flatten(),
            Place::Link(link) => Some(numbers.link(link)),
        }
    }

    /// The wire on which its frames leave, where there is one.
    pub fn line(&self, topology: &Topology) -> Option<kuroshio_core::wire::LineRate> {
        match self.place {
            Place::Port(port, _) => topology.ports().nth(port).map(|(_, p)| p.wire),
            Place::Link(_) => None,
        }
    }
}
