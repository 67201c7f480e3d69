//! A host as the planner sees it: nodes, cores, caches and cards, by absolute identities.

use serde::{Deserialize, Serialize};

/// Processing units of a machine.
pub const MAX_PUS: usize = 4_096;
/// Network cards of a machine.
pub const MAX_CARDS: usize = 256;

/// A host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// What it calls itself.
    pub name: String,
    /// Whether it is the machine this runs on, so that its rails can be bound to.
    pub here: bool,
    /// Memory nodes, by number.
    pub nodes: Vec<Node>,
    /// Cores, by their lowest processing unit.
    pub cores: Vec<Core>,
    /// Caches that several cores share.
    pub caches: Vec<Cache>,
    /// Network cards, by PCI address.
    pub cards: Vec<Card>,
    /// What was not to be known, for the person.
    pub notes: Vec<String>,
}

/// Memory that some cores are nearest to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// The system's number.
    pub node: u32,
    /// Its memory, bytes.
    pub memory_bytes: u64,
    /// Cores that are nearest to it; empty for memory without processors.
    pub cores: Vec<u32>,
    /// Distance to every node, by rising number: 10 is itself (ACPI SLIT); empty when it is not known.
    pub distances: Vec<u64>,
}

/// A core: processing units that share its execution units.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Core {
    /// Its lowest processing unit: its identity.
    pub core: u32,
    /// The system's numbers of its processing units.
    pub pus: Vec<u32>,
    /// The nearest memory node.
    pub node: u32,
    /// The system's number of its package.
    pub package: Option<u32>,
    /// The outermost cache it shares: that cache's lowest processing unit.
    pub cache: Option<u32>,
}

/// A cache.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cache {
    /// Its lowest processing unit: with the level, its identity.
    pub first_pu: u32,
    /// Level, 2 or more.
    pub level: u32,
    /// Size, bytes.
    pub bytes: u64,
    /// Cores below it.
    pub cores: Vec<u32>,
}

/// A network card: a PCI function with interfaces.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Card {
    /// PCI address, `0000:03:00.0`.
    pub pci: String,
    /// What it is.
    pub model: String,
    /// The memory node it is attached to; `None` where the system does not say (a virtual machine says -1).
    pub node: Option<u32>,
    /// Nodes that are equally near as far as is known.
    pub near_nodes: Vec<u32>,
    /// Rate of its PCI link, bit/s, where known.
    pub pci_rate_bps: Option<u64>,
    /// Its interfaces.
    pub interfaces: Vec<Interface>,
    /// Its interrupts.
    pub interrupts: Vec<Interrupt>,
}

impl Card {
    /// Rate of its interfaces in sum, L1, bit/s: what they negotiated.
    #[must_use]
    pub fn rate_bps(&self) -> Option<u64> {
        let known: Vec<u64> = self.interfaces.iter().filter_map(|i| i.rate_bps).collect();
        (!known.is_empty()).then(|| known.iter().fold(0u64, |sum, r| sum.saturating_add(*r)))
    }
}

/// A network interface.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its MAC address.
    pub mac: Option<String>,
    /// The rate it negotiated, L1, bit/s.
    pub rate_bps: Option<u64>,
    /// `up`, `down` or what the system says.
    pub state: Option<String>,
    /// Receive and transmit queues.
    pub queues: Option<(u32, u32)>,
}

/// An interrupt of a card.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interrupt {
    /// The system's number.
    pub irq: u32,
    /// What the driver calls it.
    pub name: String,
    /// Processing units that may take it, as the system lists them (`0-3,8`).
    pub pus: Option<String>,
}

impl Machine {
    /// A core by its identity.
    #[must_use]
    pub fn core(&self, core: u32) -> Option<&Core> {
        self.cores.iter().find(|c| c.core == core)
    }

    /// A node by its number.
    #[must_use]
    pub fn node(&self, node: u32) -> Option<&Node> {
        self.nodes.iter().find(|n| n.node == node)
    }

    /// The node with cores that is nearest to `node` and is not it: by distance, then by number.
    #[must_use]
    pub fn other_node(&self, node: u32) -> Option<u32> {
        let distances = self
            .node(node)
            .map(|n| n.distances.as_slice())
            .unwrap_or_default();
        let others = self.nodes.iter().enumerate();
        let others = others.filter(|(_, n)| n.node != node && !n.cores.is_empty());
        others
            .min_by_key(|(at, n)| (distances.get(*at).copied().unwrap_or(u64::MAX), n.node))
            .map(|(_, n)| n.node)
    }
}
