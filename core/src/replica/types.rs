//! Nodes, sites, rules: what replica decisions are made from.

use crate::sim::split_mix;
use alloc::collections::BTreeMap;
use core::fmt;

/// Most nodes of one grid.
pub const MAX_NODES: usize = 4096;
/// Most copies of a fragment.
pub const MAX_COPIES: u8 = 64;
/// Fill and load are compared in this many classes, so that nearly equal nodes are chosen in turns.
const CLASSES: u64 = 16;

/// A node's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

/// A site's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SiteId(pub u32);

/// The content of one fragment of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FragmentId {
    /// The file's number in the namespace.
    pub inode: u64,
    /// Which content of it.
    pub generation: u32,
    /// Which fragment, from 0.
    pub fragment: u32,
}

/// What a node does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NodeState {
    /// All.
    Up,
    /// It serves reads; nothing is written or removed.
    ReadOnly,
    /// It serves reads and removes; its copies are to move elsewhere.
    Drain,
    /// It does not answer.
    Down,
}

impl NodeState {
    /// Whether it can be read from.
    #[must_use]
    pub const fn reads(self) -> bool {
        !matches!(self, Self::Down)
    }

    /// Whether a copy there counts for a rule.
    #[must_use]
    pub const fn stays(self) -> bool {
        matches!(self, Self::Up | Self::ReadOnly)
    }

    /// Whether a copy there can be removed.
    #[must_use]
    pub const fn removes(self) -> bool {
        matches!(self, Self::Up | Self::Drain)
    }
}

/// A node as its last heartbeat told. Bytes are those of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its number.
    pub id: NodeId,
    /// Where it stands.
    pub site: SiteId,
    /// What it does.
    pub state: NodeState,
    /// All it could hold.
    pub capacity_bytes: u64,
    /// What it could still take.
    pub free_bytes: u64,
    /// How busy it is: 0 idle, 1000 fully.
    pub load_permille: u16,
}

impl Node {
    /// How full it is with `more` bytes, in 1/1000.
    #[must_use]
    pub fn fill_permille(&self, more: u64) -> u64 {
        let free = self.free_bytes.saturating_sub(more).min(self.capacity_bytes);
        let used = u128::from(self.capacity_bytes - free) * 1000;
        u64::try_from(used / u128::from(self.capacity_bytes.max(1))).unwrap_or(1000)
    }

    /// The class of its fill with `more` bytes.
    pub(super) fn fill_class(&self, more: u64) -> u64 {
        self.fill_permille(more) * CLASSES / 1001
    }

    /// The class of its load.
    pub(super) fn load_class(&self) -> u64 {
        u64::from(self.load_permille.min(1000)) * CLASSES / 1001
    }
}

/// Nodes by number.
pub type Nodes = BTreeMap<NodeId, Node>;

/// How many copies there shall be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyRule {
    /// So many, on different nodes, over as many sites as possible.
    Anywhere(u8),
    /// So many at each of these sites.
    PerSite(BTreeMap<SiteId, u8>),
}

impl CopyRule {
    /// Copies in all.
    #[must_use]
    pub fn total(&self) -> usize {
        match self {
            Self::Anywhere(n) => usize::from(*n),
            Self::PerSite(sites) => sites.values().map(|n| usize::from(*n)).sum(),
        }
    }

    /// Whether copies at these sites (one entry per copy) are enough.
    #[must_use]
    pub fn is_met_by(&self, sites: &[SiteId]) -> bool {
        match self {
            Self::Anywhere(n) => sites.len() >= usize::from(*n),
            Self::PerSite(wanted) => wanted
                .iter()
                .all(|(site, n)| sites.iter().filter(|s| *s == site).count() >= usize::from(*n)),
        }
    }
}

/// A number that is the same for the same seed, fragment and node, and spread evenly otherwise.
pub(super) fn lot(seed: u64, fragment: FragmentId, node: NodeId) -> u64 {
    let mut state = seed;
    for part in [
        fragment.inode,
        u64::from(fragment.generation) << 32 | u64::from(fragment.fragment),
        u64::from(node.0),
    ] {
        state = split_mix(&mut state) ^ part;
    }
    split_mix(&mut state)
}

/// Why a call was refused; nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicaError {
    /// There is no such node.
    UnknownNode(NodeId),
    /// There is no such fragment.
    UnknownFragment(FragmentId),
    /// The fragment has no copy there, or not a whole one.
    NoCopy(FragmentId, NodeId),
    /// The fragment has a copy there, or one is on its way.
    HasCopy(FragmentId, NodeId),
    /// The node takes no copies, or has no space for this one.
    NoRoom(NodeId),
    /// A limit.
    TooMany(&'static str),
}

impl fmt::Display for ReplicaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownNode(n) => write!(f, "no node {}", n.0),
            Self::UnknownFragment(i) => write!(f, "no fragment {} of inode {}", i.fragment, i.inode),
            Self::NoCopy(i, n) => write!(f, "inode {} has no whole copy on node {}", i.inode, n.0),
            Self::HasCopy(i, n) => write!(f, "inode {} has a copy on node {} already", i.inode, n.0),
            Self::NoRoom(n) => write!(f, "node {} takes no copy of that size now", n.0),
            Self::TooMany(what) => write!(f, "too many {what}"),
        }
    }
}

impl core::error::Error for ReplicaError {}
