//! Where new copies go.
//!
//! Copies are placed one after the other. For each the nodes that may take it (up, with room, without a copy)
//! are compared by, in this order:
//!
//! 1. copies of the fragment at its site, fewest first (of a rule per site: only that site's nodes);
//! 2. how full it would be, in 16 classes;
//! 3. how busy it is, in 16 classes;
//! 4. a number drawn from seed, fragment and node.
//!
//! The last makes nodes of one class take turns over fragments, and the same question has the same answer.

use super::types::{CopyRule, FragmentId, Node, NodeId, Nodes, SiteId, lot};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// What is to be placed.
#[derive(Clone, Copy, Debug)]
pub struct Wish<'a> {
    /// The fragment.
    pub fragment: FragmentId,
    /// Bytes of one copy on disk.
    pub size_bytes: u64,
    /// How many copies there shall be.
    pub rule: &'a CopyRule,
    /// Nodes whose copies count (there, or on their way).
    pub counted: &'a [NodeId],
    /// Nodes that may not take one for any other reason (a copy that does not count, too busy).
    pub excluded: &'a [NodeId],
}

/// Where the copies that are missing go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// One new copy each, in the order of their choice.
    pub nodes: Vec<NodeId>,
    /// Copies that no node can take; of a rule per site by site.
    pub unplaced: Vec<(Option<SiteId>, usize)>,
}

/// Chooses nodes for the copies that `wish` lacks.
#[must_use]
pub fn place(wish: &Wish<'_>, nodes: &Nodes, seed: u64) -> Placement {
    let mut at_site: BTreeMap<SiteId, usize> = BTreeMap::new();
    for node in wish.counted.iter().filter_map(|n| nodes.get(n)) {
        *at_site.entry(node.site).or_default() += 1;
    }
    let mut out = Placement::default();
    match wish.rule {
        CopyRule::Anywhere(n) => {
            let missing = usize::from(*n).saturating_sub(wish.counted.len());
            choose(wish, nodes, seed, None, missing, &mut at_site, &mut out);
        }
        CopyRule::PerSite(sites) => {
            for (&site, n) in sites {
                let there = at_site.get(&site).copied().unwrap_or(0);
                let missing = usize::from(*n).saturating_sub(there);
                choose(wish, nodes, seed, Some(site), missing, &mut at_site, &mut out);
            }
        }
    }
    out
}

/// Chooses `missing` nodes, at one site or anywhere.
fn choose(
    wish: &Wish<'_>,
    nodes: &Nodes,
    seed: u64,
    site: Option<SiteId>,
    missing: usize,
    at_site: &mut BTreeMap<SiteId, usize>,
    out: &mut Placement,
) {
    for placed in 0..missing {
        let may = |n: &&Node| {
            takes(n, wish.size_bytes)
                && site.is_none_or(|s| s == n.site)
                && !wish.counted.contains(&n.id)
                && !wish.excluded.contains(&n.id)
                && !out.nodes.contains(&n.id)
        };
        let rank = |n: &&Node| {
            (
                at_site.get(&n.site).copied().unwrap_or(0),
                n.fill_class(wish.size_bytes),
                n.load_class(),
                lot(seed, wish.fragment, n.id),
                n.id,
            )
        };
        let Some(best) = nodes.values().filter(may).min_by_key(rank) else {
            out.unplaced.push((site, missing - placed));
            return;
        };
        *at_site.entry(best.site).or_default() += 1;
        out.nodes.push(best.id);
    }
}

/// Whether a node can take a copy of this size.
pub(super) fn takes(node: &Node, size_bytes: u64) -> bool {
    node.state == super::types::NodeState::Up && node.free_bytes >= size_bytes
}
