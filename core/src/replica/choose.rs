//! Which copy is read, by whom, and where computation goes.
//!
//! # Order of copies
//!
//! A reader (a process, or a node that is to get a copy) takes the first and, when that fails, the next:
//!
//! 1. on the reader's own node; 2. at its site; 3. elsewhere, by the cost of the way (lowest first);
//!
//! within each by load class, and then by a number drawn from seed, fragment and node, so that many readers of
//! many files use all copies. Nodes that are down are left out.
//!
//! # Affinity
//!
//! Fragments go to the nodes that hold them, largest first, each to the holder with the least work so far
//! (longest processing time first: the longest list is at most 4/3 - 1/3m of the shortest possible one; Graham,
//! "Bounds on multiprocessing timing anomalies", SIAM J. Appl. Math. 17, 1969, for the case that every node
//! holds every fragment). Work is bytes per slot.

use super::types::{FragmentId, Node, NodeId, Nodes, SiteId, lot};
use crate::chunk::LEAF_BYTES;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::ops::Range;

/// Who reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reader {
    /// The node it runs on, when it runs on one.
    pub node: Option<NodeId>,
    /// The site it is at, when that is known.
    pub site: Option<SiteId>,
}

/// Why a copy stands where it does in an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Nearness {
    /// On the reader's node.
    Local,
    /// At its site.
    SameSite,
    /// Elsewhere, at this cost.
    Remote(u64),
}

/// Costs of ways between sites: smaller is better (say 10^12 / capacity in bit/s, or a delay). A way that is
/// not in it costs [`u64::MAX`].
pub type WayCosts = BTreeMap<(SiteId, SiteId), u64>;

/// The copies that can be read, best first, and why.
#[must_use]
pub fn read_order(
    reader: Reader,
    fragment: FragmentId,
    holders: &[NodeId],
    nodes: &Nodes,
    costs: &WayCosts,
    seed: u64,
) -> Vec<(NodeId, Nearness)> {
    let site = reader.site.or_else(|| Some(nodes.get(&reader.node?)?.site));
    let near = |n: &Node| {
        if reader.node == Some(n.id) {
            return Nearness::Local;
        }
        match site {
            Some(s) if s == n.site => Nearness::SameSite,
            Some(s) => Nearness::Remote(costs.get(&(n.site, s)).copied().unwrap_or(u64::MAX)),
            None => Nearness::Remote(u64::MAX),
        }
    };
    let mut order: Vec<(Nearness, u64, u64, NodeId)> = holders
        .iter()
        .filter_map(|id| nodes.get(id))
        .filter(|n| n.state.reads())
        .map(|n| (near(n), n.load_class(), lot(seed, fragment, n.id), n.id))
        .collect();
    order.sort_unstable();
    order.dedup_by_key(|o| o.3);
    order.into_iter().map(|(near, _, _, id)| (id, near)).collect()
}

/// One source's part of a copy from several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourcePart {
    /// Where it is read.
    pub node: NodeId,
    /// Its bytes of the fragment.
    pub range: Range<u64>,
}

/// Divides a fragment among sources in proportion to `weights` (rates, say), in whole chunks, in order. Sources
/// whose part would be less than a chunk are left out from the back; all ranges together are the fragment.
/// Weights of 0 count as 1. `chunk_bytes` below [`LEAF_BYTES`] counts as that.
#[must_use]
pub fn split(size_bytes: u64, chunk_bytes: u64, sources: &[(NodeId, u64)]) -> Vec<SourcePart> {
    let chunk = chunk_bytes.max(LEAF_BYTES);
    let chunks = size_bytes.div_ceil(chunk).max(1);
    let few = usize::try_from(chunks).unwrap_or(usize::MAX).min(sources.len());
    let used = sources.get(..few).unwrap_or_default();
    let mut weight_left: u128 = used.iter().map(|(_, w)| u128::from((*w).max(1))).sum();
    let (mut at, mut left, mut others) = (0u64, chunks, used.len() as u64);
    let mut out = Vec::with_capacity(used.len());
    for &(node, weight) in used {
        let weight = u128::from(weight.max(1));
        others -= 1;
        let share = u128::from(left) * weight / weight_left;
        // At least one for this one and for each after it.
        let share = u64::try_from(share).unwrap_or(left).clamp(1, left - others);
        let end = at.saturating_add(share.saturating_mul(chunk)).min(size_bytes);
        out.push(SourcePart { node, range: at..end });
        (at, left) = (end, left - share);
        weight_left -= weight;
    }
    out
}

/// A fragment to compute on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    /// The fragment.
    pub fragment: FragmentId,
    /// Bytes to read.
    pub size_bytes: u64,
    /// Nodes with a whole copy.
    pub holders: Vec<NodeId>,
}

/// Where a fragment is computed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assigned {
    /// The fragment.
    pub fragment: FragmentId,
    /// The node.
    pub node: NodeId,
    /// Whether it holds the fragment; otherwise the bytes cross the network.
    pub local: bool,
}

/// A node in the order of what it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Affine {
    /// The node.
    pub node: NodeId,
    /// Bytes of the input that it holds.
    pub held_bytes: u64,
    /// Fragments of the input that it holds.
    pub held_fragments: u64,
    /// Bytes assigned to it.
    pub assigned_bytes: u64,
}

/// The answer to "where should this run".
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// One entry per fragment, in the order given. Empty when no node can be used.
    pub assigned: Vec<Assigned>,
    /// Every node that holds or was assigned something: most bytes held first.
    pub nodes: Vec<Affine>,
    /// Bytes that are read where they lie.
    pub local_bytes: u64,
    /// Bytes that cross the network.
    pub remote_bytes: u64,
}

/// Assigns fragments to nodes. `slots` are the nodes that may compute and how much each can do at once (0 counts
/// as 1); nodes that are down are left out.
#[must_use]
pub fn schedule(inputs: &[Input], slots: &BTreeMap<NodeId, u32>, nodes: &Nodes, seed: u64) -> Schedule {
    let usable: BTreeMap<NodeId, u64> = slots
        .iter()
        .filter(|(id, _)| nodes.get(id).is_some_and(|n| n.state.reads()))
        .map(|(&id, &n)| (id, u64::from(n.max(1))))
        .collect();
    let mut out = Schedule::default();
    if usable.is_empty() {
        return out;
    }
    let mut stats: BTreeMap<NodeId, Affine> = BTreeMap::new();
    for input in inputs {
        let mut seen: Vec<NodeId> = input.holders.clone();
        seen.sort_unstable();
        seen.dedup();
        for id in seen.into_iter().filter(|id| usable.contains_key(id)) {
            let held = entry(&mut stats, id);
            held.held_bytes = held.held_bytes.saturating_add(input.size_bytes);
            held.held_fragments += 1;
        }
    }
    let mut order: Vec<usize> = (0..inputs.len()).collect();
    order.sort_by_key(|&i| inputs.get(i).map(|f| (Reverse(f.size_bytes), f.fragment)));
    let mut chosen: Vec<Option<Assigned>> = alloc::vec![None; inputs.len()];
    // Fragments that somebody holds first: what crosses the network then fills the gaps.
    for local in [true, false] {
        for &i in &order {
            let Some(input) = inputs.get(i) else { continue };
            let held = |id: &NodeId| input.holders.contains(id);
            let is_held = usable.keys().any(held);
            if is_held != local {
                continue;
            }
            let rank = |id: &NodeId| {
                let work = stats.get(id).map_or(0, |a| a.assigned_bytes).saturating_add(input.size_bytes);
                // Bytes per slot, compared exactly to 2^-20 of a byte.
                let slots = usable.get(id).copied().unwrap_or(1);
                ((u128::from(work) << 20) / u128::from(slots), lot(seed, input.fragment, *id), *id)
            };
            let best = usable.keys().filter(|id| !local || held(id)).copied().min_by_key(rank);
            let Some(node) = best else { continue };
            let assigned = entry(&mut stats, node);
            assigned.assigned_bytes = assigned.assigned_bytes.saturating_add(input.size_bytes);
            let sum = if local { &mut out.local_bytes } else { &mut out.remote_bytes };
            *sum = sum.saturating_add(input.size_bytes);
            if let Some(place) = chosen.get_mut(i) {
                let fragment = input.fragment;
                *place = Some(Assigned { fragment, node, local });
            }
        }
    }
    out.assigned = chosen.into_iter().flatten().collect();
    out.nodes = stats.into_values().collect();
    out.nodes.sort_by_key(|a| (Reverse(a.held_bytes), a.node));
    out
}

fn entry(stats: &mut BTreeMap<NodeId, Affine>, node: NodeId) -> &mut Affine {
    stats.entry(node).or_insert(Affine {
        node,
        held_bytes: 0,
        held_fragments: 0,
        assigned_bytes: 0,
    })
}
