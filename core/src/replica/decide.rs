//! The decisions of the [`Keeper`](super::Keeper); its model is in `keeper.rs`.

use super::choose::{Reader, WayCosts, read_order};
use super::keeper::{Action, CopyState, Held, Keeper, Reason};
use super::place::{Wish, place, takes};
use super::types::{CopyRule, FragmentId, NodeId, NodeState, SiteId, lot};
use alloc::vec::Vec;
use core::cmp::Reverse;

/// Fragments of the queue that are tried when those before them wait for a busy node.
const LOOK_AHEAD: usize = 256;

impl Keeper {
    /// Looks at what changed, orders what is missing and removes what is too many.
    pub(super) fn decide(&mut self) {
        while let Some(id) = self.dirty.pop_first() {
            self.look(id);
        }
        self.start();
        if self.actions.is_empty() && self.active.is_empty() && self.queue.is_empty() {
            self.balance();
        }
    }

    /// Whether a node can be read.
    pub(super) fn reads(&self, node: NodeId) -> bool {
        self.nodes.get(&node).is_some_and(|n| n.state.reads())
    }

    fn stays(&self, node: NodeId) -> bool {
        self.nodes.get(&node).is_some_and(|n| n.state.stays())
    }

    /// Nodes whose copies count, valid or coming.
    fn counted(&self, held: &Held) -> Vec<NodeId> {
        let counts = |n: &NodeId| self.stays(*n) || self.down.get(n).is_some_and(|(_, counts)| *counts);
        let there = held.copies.iter().filter(|(_, s)| **s != CopyState::Going);
        let counted = there.filter(|(n, _)| counts(n) && !held.leave.contains(n));
        counted.map(|(n, _)| *n).collect()
    }

    /// Nodes with a strong copy.
    fn strong(&self, held: &Held) -> Vec<NodeId> {
        let valid = held.copies.iter().filter(|(_, s)| **s == CopyState::Valid);
        let strong = valid.filter(|(n, _)| self.stays(**n) && !held.leave.contains(n));
        strong.map(|(n, _)| *n).collect()
    }

    fn sites(&self, nodes: &[NodeId]) -> Vec<SiteId> {
        nodes
            .iter()
            .filter_map(|n| Some(self.nodes.get(n)?.site))
            .collect()
    }

    /// Where a copy for a node is read, best first.
    pub(super) fn sources(&self, id: FragmentId, to: NodeId) -> Vec<NodeId> {
        let Some(held) = self.held.get(&id) else {
            return Vec::new();
        };
        let valid = held.copies.iter().filter(|(_, s)| **s == CopyState::Valid);
        let holders: Vec<NodeId> = valid.map(|(n, _)| *n).collect();
        let reader = Reader {
            node: Some(to),
            site: None,
        };
        let order = read_order(
            reader,
            id,
            &holders,
            &self.nodes,
            &WayCosts::new(),
            self.config.seed,
        );
        order.into_iter().map(|(n, _)| n).collect()
    }

    /// Decides what one fragment needs: puts it in the queue, orders a removal, or neither.
    fn look(&mut self, id: FragmentId) {
        let Some(held) = self.held.get(&id) else { return };
        if let Some(rank) = held.rank {
            self.queue.remove(&(rank, id));
        }
        let readable = held
            .copies
            .iter()
            .filter(|(n, s)| **s == CopyState::Valid && self.reads(**n))
            .count();
        let lacks = !held.rule.is_met_by(&self.sites(&self.counted(held)));
        let rests = held.retry_at > self.now;
        let mut rank = None;
        if rests {
            self.resting.insert((held.retry_at, id));
        } else if lacks {
            rank = (readable > 0).then_some(readable);
        } else if let Some(copy) = self.needless(held) {
            self.cancel(copy);
            return;
        } else if let Some(node) = self.surplus(id, held) {
            if let Some(held) = self.held.get_mut(&id) {
                held.copies.insert(node, CopyState::Going);
            }
            self.actions.push_back(Action::Remove { fragment: id, node });
        }
        if let Some(held) = self.held.get_mut(&id) {
            held.rank = rank;
        }
        self.queue.extend(rank.map(|r| (r, id)));
    }

    /// A copy that was ordered as missing and is not any more (its node came back).
    fn needless(&self, held: &Held) -> Option<super::CopyId> {
        if !held.rule.is_met_by(&self.sites(&self.strong(held))) {
            return None;
        }
        held.copies.values().find_map(|s| match s {
            CopyState::Coming(copy) => {
                let missing = self.active.get(copy).is_some_and(|a| a.reason == Reason::Missing);
                missing.then_some(*copy)
            }
            _ => None,
        })
    }

    /// The copy to remove next, when the strong ones without it meet the rule. One removal at a time.
    fn surplus(&self, id: FragmentId, held: &Held) -> Option<NodeId> {
        if held.copies.values().any(|s| *s == CopyState::Going) {
            return None;
        }
        let strong = self.strong(held);
        let site_of = |n: NodeId| self.nodes.get(&n).map(|n| n.site);
        let at_site = |n: NodeId| strong.iter().filter(|s| site_of(**s) == site_of(n)).count();
        let outside = |n: NodeId| match &held.rule {
            CopyRule::Anywhere(_) => false,
            CopyRule::PerSite(sites) => site_of(n).is_none_or(|s| !sites.contains_key(&s)),
        };
        let valid = held.copies.iter().filter(|(_, s)| **s == CopyState::Valid);
        valid
            .filter_map(|(n, _)| self.nodes.get(n))
            .filter(|n| n.state.removes())
            .filter(|n| {
                let rest: Vec<NodeId> = strong.iter().copied().filter(|s| *s != n.id).collect();
                !rest.is_empty() && held.rule.is_met_by(&self.sites(&rest))
            })
            .max_by_key(|n| {
                let leaves = n.state == NodeState::Drain || held.leave.contains(&n.id);
                let lot = lot(self.config.seed, id, n.id);
                (leaves, outside(n.id), at_site(n.id), n.fill_class(0), lot, n.id)
            })
            .map(|n| n.id)
    }

    /// Orders copies from the queue as far as limits allow.
    fn start(&mut self) {
        let waiting: Vec<(usize, FragmentId)> = self.queue.iter().take(LOOK_AHEAD).copied().collect();
        for (rank, id) in waiting {
            if self.active.len() >= self.config.max_copies
                || self.clock.as_ref().is_some_and(|c| c.at() > self.now)
            {
                return;
            }
            match self.target(id) {
                Target::Node(to) => {
                    self.queue.remove(&(rank, id));
                    if let Some(held) = self.held.get_mut(&id) {
                        held.rank = None;
                    }
                    self.order(id, to, None, Reason::Missing);
                    // It may lack more than one.
                    self.look(id);
                }
                Target::Busy => {}
                Target::None => {
                    self.queue.remove(&(rank, id));
                    if let Some(held) = self.held.get_mut(&id) {
                        held.rank = None;
                    }
                    self.stuck.insert(id);
                }
            }
        }
    }

    /// Where the next missing copy of a fragment goes.
    fn target(&self, id: FragmentId) -> Target {
        let Some(held) = self.held.get(&id) else {
            return Target::None;
        };
        let counted = self.counted(held);
        let others: Vec<NodeId> = held
            .copies
            .keys()
            .copied()
            .filter(|n| !counted.contains(n))
            .collect();
        let busy = self
            .coming_count
            .iter()
            .filter(|(_, n)| **n >= self.config.max_copies_per_node)
            .map(|(node, _)| *node);
        let excluded: Vec<NodeId> = others.iter().copied().chain(busy).collect();
        let mut wish = Wish {
            fragment: id,
            size_bytes: held.size,
            rule: &held.rule,
            counted: &counted,
            excluded: &excluded,
        };
        let seed = self.config.seed;
        if let Some(&node) = place(&wish, &self.nodes, seed).nodes.first() {
            return Target::Node(node);
        }
        wish.excluded = &others;
        if place(&wish, &self.nodes, seed).nodes.is_empty() {
            Target::None
        } else {
            Target::Busy
        }
    }

    /// Moves one copy from the fullest node to an emptier one.
    fn balance(&mut self) {
        let Some(threshold) = self.config.balance_permille else {
            return;
        };
        let up = || self.nodes.values().filter(|n| n.state == NodeState::Up);
        let Some(full) = up().max_by_key(|n| (n.fill_permille(0), n.id)) else {
            return;
        };
        let mut empties: Vec<(u64, NodeId)> = up().map(|n| (n.fill_permille(0), n.id)).collect();
        empties.sort_unstable();
        let far = |(fill, _): &(u64, NodeId)| fill.saturating_add(threshold) < full.fill_permille(0);
        for (_, empty) in empties.into_iter().take_while(far) {
            if let Some(id) = self.movable(full.id, empty) {
                self.order(id, empty, Some(full.id), Reason::Balance);
                return;
            }
        }
    }

    /// The largest fragment whose move from one node to another brings them nearer, and keeps rule and spread.
    fn movable(&self, from: NodeId, to: NodeId) -> Option<FragmentId> {
        let (full, empty) = (self.nodes.get(&from)?, self.nodes.get(&to)?);
        let fits = |id: &FragmentId| {
            let held = self.held.get(id)?;
            let alone = held.copies.values().all(|s| *s == CopyState::Valid) && held.leave.is_empty();
            let free_there = takes(empty, held.size) && !held.copies.contains_key(&to);
            let mut less = *full;
            less.free_bytes = full.free_bytes.saturating_add(held.size);
            let nearer = empty.fill_permille(held.size) <= less.fill_permille(0);
            let before = self.strong(held);
            let mut after: Vec<NodeId> = before.iter().copied().filter(|n| *n != from).collect();
            after.push(to);
            let spread = |nodes: &[NodeId]| {
                let mut sites = self.sites(nodes);
                sites.sort_unstable();
                sites.dedup();
                sites.len()
            };
            let keeps = held.rule.is_met_by(&self.sites(&after)) && spread(&after) >= spread(&before);
            let rested = held.retry_at <= self.now;
            (alone && free_there && nearer && keeps && rested && held.size > 0).then_some(held.size)
        };
        let there = self.on_node.get(&from)?;
        let sized = there.iter().filter_map(|id| Some((fits(id)?, Reverse(*id))));
        sized.max().map(|(_, Reverse(id))| id)
    }
}

enum Target {
    Node(NodeId),
    /// Only nodes that are busy now could take it.
    Busy,
    /// No node can take it.
    None,
}
