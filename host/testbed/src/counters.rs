//! What went through the network, and what did not, by place and cause.
//!
//! For every path, frames are conserved at any moment:
//!
//! ```text
//! sent = unrouted + no_memory + pauses_received + own wire's arrivals
//! departures of the own wire = gaps_received + what goes on
//! arrivals of a stage + duplicated = departures + dropped by cause + held
//! departures of the last stage = delivered + not_taken + grouped
//! ```

use kuroshio_core::units::PicoTime;
use kuroshio_core::wan::{Count, StageCounters, WanValues};

use crate::emulator::{Numbers, Snapshot, drain_stages, shaper_stages};
use crate::host::CardCounters;
use crate::topology::Topology;

/// A port's counters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// `host/port`.
    pub name: String,
    /// Frames that the host sent.
    pub sent: Count,
    /// Of these, frames to no port that it reaches: broadcast, multicast, unknown. Dropped.
    pub unrouted: Count,
    /// Of these, frames that found no memory. Dropped.
    pub no_memory: Count,
    /// The host's own wire with the card's queue.
    pub wire: StageCounters,
    /// The router's queue before this port's wire, and the wire to the host.
    pub egress: StageCounters,
    /// PAUSE frames that the host sent: the wire to it obeyed them, or they were dropped (`obey_pause`).
    pub pauses_received: Count,
    /// PAUSE frames of time 0 (gap frames) that crossed the host's wire: the router dropped them at its input.
    pub gaps_received: Count,
    /// Gap frames that the port's shaper sent (`gap = "frames"`): the router dropped them at its input.
    pub gaps_sent: Count,
    /// The host's card behind the wire, when it drains at a rate of its own.
    pub drain: Option<StageCounters>,
    /// PAUSE frames that this card sent.
    pub pauses_sent: u64,
    /// Frames that the host was given.
    pub delivered: Count,
    /// Frames that the host's kernel had no room for.
    pub not_taken: Count,
    /// Segments that wait for the end of their departure quantum (segment mode).
    pub grouped: Count,
    /// What the kernel counted at the card.
    pub card: CardCounters,
}

/// Counters of one direction of a link.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// `link:from>to`.
    pub name: String,
    /// The link itself.
    pub stage: StageCounters,
    /// What it is set to now; `None` only in counters that no emulator made.
    pub values: Option<WanValues>,
    /// Whether it is cut.
    pub cut: bool,
    /// Frames that a fault took before the queue.
    pub fault_dropped: u64,
    /// Frames that a fault damaged.
    pub corrupted: u64,
}

/// Counters of a port's shaper.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShaperCounters {
    /// `host/port`.
    pub name: String,
    /// The shaper.
    pub stage: StageCounters,
}

/// Counters of a tap.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TapCounters {
    /// Its name.
    pub name: String,
    /// Copies that it showed.
    pub shown: Count,
    /// Copies for which its host's kernel had no room.
    pub not_shown: Count,
}

/// All counters at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters {
    /// When, since the start of the run.
    pub at: PicoTime,
    /// Every direction of every link.
    pub links: Vec<LinkCounters>,
    /// Every shaper.
    pub shapers: Vec<ShaperCounters>,
    /// Every port.
    pub ports: Vec<PortCounters>,
    /// Every tap.
    pub taps: Vec<TapCounters>,
    /// Copies that switches made of frames to groups and unknown addresses.
    pub flooded: Count,
    /// Copies for which there was no memory.
    pub not_flooded: Count,
    /// Frames between two threads of the emulator: they have left a link and not arrived behind it.
    pub between_threads: u64,
}

impl Counters {
    /// A direction of a link by its name.
    #[must_use]
    pub fn link(&self, name: &str) -> Option<&LinkCounters> {
        self.links.iter().find(|l| l.name == name)
    }

    /// A port by its name, `host/port`.
    #[must_use]
    pub fn port(&self, name: &str) -> Option<&PortCounters> {
        self.ports.iter().find(|p| p.name == name)
    }

    /// Frames that were lost anywhere in the emulated network: full queues of wires, shapers and
    /// links, loss and faults of links. Not counted: `unrouted`, and what the machine itself lost
    /// ([`Counters::machine_lost`]).
    #[must_use]
    pub fn dropped_frames(&self) -> u64 {
        let links: u64 = self
            .links
            .iter()
            .map(|l| l.stage.dropped().frames + l.fault_dropped)
            .sum();
        let shapers: u64 = self.shapers.iter().map(|s| s.stage.dropped().frames).sum();
        let ports: u64 = self
            .ports
            .iter()
            .flat_map(|p| [Some(p.wire), Some(p.egress), p.drain])
            .map(|s| s.map_or(0, |s| s.dropped().frames))
            .sum();
        links + shapers + ports
    }

    /// Frames that the emulator or the kernel lost and no emulated queue: a run in which this is
    /// not zero does not show the network that was asked for.
    #[must_use]
    pub fn machine_lost(&self) -> u64 {
        self.ports
            .iter()
            .map(|p| p.no_memory.frames + p.not_taken.frames + p.card.tx_dropped + p.card.rx_dropped)
            .sum()
    }

    /// Frames inside the network now: waiting, being serialised or in flight.
    #[must_use]
    pub fn held_frames(&self) -> u64 {
        let stages = self
            .links
            .iter()
            .map(|l| &l.stage)
            .chain(self.shapers.iter().map(|s| &s.stage))
            .chain(self.ports.iter().flat_map(|p| [&p.wire, &p.egress]))
            .chain(self.ports.iter().filter_map(|p| p.drain.as_ref()));
        let grouped: u64 = self.ports.iter().map(|p| p.grouped.frames).sum();
        stages.map(|s| s.held.frames).sum::<u64>() + grouped + self.between_threads
    }

    /// Gives the emulator's numbers their names.
    pub(crate) fn name(topology: &Topology, snapshot: &Snapshot, cards: Vec<CardCounters>) -> Self {
        let numbers = Numbers::of(topology);
        let stage = |n: usize| snapshot.stages.get(n).copied().unwrap_or_default();
        let links = topology
            .link_names()
            .into_iter()
            .enumerate()
            .map(|(n, name)| {
                let number = numbers.link(n);
                let (fault_dropped, corrupted) = snapshot.faults.get(number).copied().unwrap_or_default();
                let values = snapshot.values.get(number).copied().flatten();
                LinkCounters {
                    name,
                    values: values.map(|v| v.0),
                    cut: values.is_some_and(|v| v.1),
                    stage: stage(number),
                    fault_dropped,
                    corrupted,
                }
            })
            .collect();
        let names = topology.port_names();
        let drains = drain_stages(topology);
        let shapers = names
            .iter()
            .zip(shaper_stages(topology))
            .filter_map(|(name, number)| {
                Some(ShaperCounters {
                    name: name.clone(),
                    stage: stage(number?),
                })
            })
            .collect();
        let ports = names
            .into_iter()
            .enumerate()
            .zip(cards)
            .map(|((n, name), card)| {
                let drain = drains.get(n).copied().flatten();
                let [
                    sent,
                    unrouted,
                    no_memory,
                    delivered,
                    not_taken,
                    pauses_received,
                    gaps_received,
                    gaps_sent,
                    grouped,
                ] = snapshot.ports.get(n).copied().unwrap_or_default();
                PortCounters {
                    name,
                    sent,
                    unrouted,
                    no_memory,
                    wire: stage(numbers.own_wire(n)),
                    egress: stage(numbers.egress(n)),
                    pauses_received,
                    gaps_received,
                    gaps_sent,
                    drain: drain.map(stage),
                    pauses_sent: drain.and_then(|d| snapshot.pauses.get(d)).copied().unwrap_or(0),
                    delivered,
                    not_taken,
                    grouped,
                    card,
                }
            })
            .collect();
        Self {
            at: snapshot.at,
            links,
            shapers,
            ports,
            taps: topology
                .taps
                .iter()
                .zip(&snapshot.mirrored)
                .map(|(tap, [shown, not_shown])| TapCounters {
                    name: tap.name.clone(),
                    shown: *shown,
                    not_shown: *not_shown,
                })
                .collect(),
            flooded: snapshot.flooded[0],
            not_flooded: snapshot.flooded[1],
            between_threads: snapshot.handed[0].saturating_sub(snapshot.handed[1]),
        }
    }
}
