//! The keeper: holds every fragment at its rule while nodes come, go, fill up and are emptied.
//!
//! # Model
//!
//! A copy on a node is *coming* (ordered, not there), *valid*, or *going* (its removal is ordered).
//!
//! ```text
//!              Copy              copied(ok)             Remove              removed(ok)
//!   (none) ----------> coming ------------> valid ----------------> going ------------> (none)
//!                        |                    ^                       |
//!                        | copied(failed),    '-----------------------' removed(failed)
//!                        v Cancel
//!                      (none), again after `retry_after`, doubled with each failure in a row
//! ```
//!
//! - A copy *counts* when it is coming or valid on a node that is up or read-only, or that went down less than
//!   `repair_delay` ago, and is not meant to leave its node. When those that count do not meet the rule,
//!   another is ordered (repair, drain, a raised rule), fragments with the fewest readable copies first.
//! - A copy is *strong* when it is valid on a node that is up or read-only and is not meant to leave. A copy is
//!   removed only when the strong ones **without it** meet the rule, and are one at least. So every change adds
//!   before it removes, and a fragment that cannot be brought to its rule keeps what it has.
//! - Copies are ordered at `rate` at most (bytes ordered over time; idle time earns no credit), `max_copies` at
//!   once, `max_copies_per_node` to one node.
//! - When nothing else is to be done and the fullest and the emptiest node differ by more than
//!   `balance_permille`, one copy at a time moves between them, as long as that leaves the first not less full
//!   than the second.
//!
//! # Order of calls
//!
//! Any event (`set_node`, `set_fragment`, `copied`, ...) with a time that does not go back, then drain
//! [`Keeper::poll`], then sleep until [`Keeper::next_wakeup`]. An order is answered once by `copied` or
//! `removed`, unless `Cancel` came first; a cancelled copy that arrived all the same is told by `set_fragment`.

use super::place::takes;
use super::types::{
    CopyRule, FragmentId, MAX_COPIES, MAX_NODES, Node, NodeId, NodeState, Nodes, ReplicaError,
};
use crate::units::{BitRate, PicoDuration, PicoTime, TxClock};
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

/// Most fragments of one keeper (some 200 bytes each).
pub const MAX_FRAGMENTS: usize = 16 << 20;

/// The rest after a failure is doubled so often at most.
const MAX_DOUBLINGS: u32 = 6;

/// Times and limits of a [`Keeper`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeeperConfig {
    /// How long a node may be down before its copies are replaced.
    pub repair_delay: PicoDuration,
    /// Content ordered per time (goodput); `None`: no limit.
    pub rate: Option<BitRate>,
    /// Copies on their way at once.
    pub max_copies: usize,
    /// Copies on their way to one node at once.
    pub max_copies_per_node: usize,
    /// How long a fragment rests after an order of it failed; twice as long after the next failure in a row, and
    /// so on to 64 times.
    pub retry_after: PicoDuration,
    /// Difference of fill from which copies move for balance, in 1/1000; `None`: never.
    pub balance_permille: Option<u64>,
    /// For choices among equals.
    pub seed: u64,
}

impl Default for KeeperConfig {
    /// 10 minutes' delay, no rate limit, 64 copies at once and 4 to a node, retry after 30 s, no balancing.
    fn default() -> Self {
        Self {
            repair_delay: PicoDuration::from_secs(600),
            rate: None,
            max_copies: 64,
            max_copies_per_node: 4,
            retry_after: PicoDuration::from_secs(30),
            balance_permille: None,
            seed: 0,
        }
    }
}

/// A fragment as the catalog knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Bytes of one copy on disk.
    pub size_bytes: u64,
    /// How many copies there shall be.
    pub rule: CopyRule,
    /// Nodes with a valid copy.
    pub copies: Vec<NodeId>,
}

/// Number of an ordered copy, never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CopyId(pub u64);

/// Why a copy was ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The copies that count do not meet the rule.
    Missing,
    /// Its node is fuller than others.
    Balance,
    /// Somebody asked for it.
    Migrate,
}

/// An order to copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copy {
    /// Number to answer with.
    pub id: CopyId,
    /// What to copy.
    pub fragment: FragmentId,
    /// Bytes of it.
    pub size_bytes: u64,
    /// Where to read it, best first.
    pub sources: Vec<NodeId>,
    /// Where to.
    pub to: NodeId,
    /// The copy that goes when this one is there (balance, migration).
    pub leaves: Option<NodeId>,
    /// Why.
    pub reason: Reason,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Copy, verify, enter the copy in the catalog; then [`Keeper::copied`].
    Copy(Copy),
    /// The copy is no longer wanted, or its node is gone. No answer.
    Cancel(CopyId),
    /// Take the copy from the catalog, then from the node; then [`Keeper::removed`].
    Remove {
        /// Of what.
        fragment: FragmentId,
        /// Where.
        node: NodeId,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CopyState {
    Valid,
    Coming(CopyId),
    Going,
}

#[derive(Clone, Debug)]
pub(super) struct Held {
    pub size: u64,
    pub rule: CopyRule,
    pub copies: BTreeMap<NodeId, CopyState>,
    /// Copies that are to leave their nodes (balance, migration) when others do for them.
    pub leave: BTreeSet<NodeId>,
    pub retry_at: PicoTime,
    /// Orders that failed since the last one that did not.
    pub failures: u32,
    /// Its key in the queue of fragments that lack copies.
    pub rank: Option<usize>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Active {
    pub fragment: FragmentId,
    pub to: NodeId,
    pub from: Option<NodeId>,
    pub reason: Reason,
}

/// Keeps fragments at their rules; see the module's model.
#[derive(Debug)]
pub struct Keeper {
    pub(super) config: KeeperConfig,
    pub(super) now: PicoTime,
    /// As told, with the space of copies on their way taken off.
    pub(super) nodes: Nodes,
    /// Nodes that are down: since when, and whether their copies still count.
    pub(super) down: BTreeMap<NodeId, (PicoTime, bool)>,
    pub(super) coming_bytes: BTreeMap<NodeId, u64>,
    pub(super) coming_count: BTreeMap<NodeId, usize>,
    pub(super) held: BTreeMap<FragmentId, Held>,
    pub(super) on_node: BTreeMap<NodeId, BTreeSet<FragmentId>>,
    pub(super) active: BTreeMap<CopyId, Active>,
    /// To be looked at.
    pub(super) dirty: BTreeSet<FragmentId>,
    /// Lack copies: fewest readable ones first.
    pub(super) queue: BTreeSet<(usize, FragmentId)>,
    /// Lack copies that no node can take now.
    pub(super) stuck: BTreeSet<FragmentId>,
    pub(super) resting: BTreeSet<(PicoTime, FragmentId)>,
    pub(super) clock: Option<TxClock>,
    pub(super) actions: VecDeque<Action>,
    next_copy: u64,
}

impl Keeper {
    /// A keeper of nothing, at `now`.
    #[must_use]
    pub fn new(config: KeeperConfig, now: PicoTime) -> Self {
        Self {
            config,
            now,
            nodes: Nodes::new(),
            down: BTreeMap::new(),
            coming_bytes: BTreeMap::new(),
            coming_count: BTreeMap::new(),
            held: BTreeMap::new(),
            on_node: BTreeMap::new(),
            active: BTreeMap::new(),
            dirty: BTreeSet::new(),
            queue: BTreeSet::new(),
            stuck: BTreeSet::new(),
            resting: BTreeSet::new(),
            clock: config.rate.map(TxClock::new),
            actions: VecDeque::new(),
            next_copy: 0,
        }
    }

    /// A node as its heartbeat told, or its silence.
    ///
    /// # Errors
    /// [`ReplicaError::TooMany`] beyond [`MAX_NODES`].
    pub fn set_node(&mut self, node: Node, now: PicoTime) -> Result<(), ReplicaError> {
        self.advance(now);
        let old = self.nodes.get(&node.id).copied();
        if old.is_none() && self.nodes.len() >= MAX_NODES {
            return Err(ReplicaError::TooMany("nodes"));
        }
        let coming = self.coming_bytes.get(&node.id).copied().unwrap_or(0);
        let mut told = node;
        told.free_bytes = node.free_bytes.saturating_sub(coming);
        self.nodes.insert(node.id, told);
        let changed = old.is_none_or(|o| (o.state, o.site) != (node.state, node.site));
        if changed {
            match node.state {
                NodeState::Down => {
                    self.down.insert(node.id, (self.now, true));
                    self.cancel_to(node.id);
                }
                NodeState::Up => {
                    self.down.remove(&node.id);
                }
                NodeState::ReadOnly | NodeState::Drain => {
                    self.down.remove(&node.id);
                    self.cancel_to(node.id);
                }
            }
            self.look_at_node(node.id);
        }
        if changed || old.is_some_and(|o| o.free_bytes < told.free_bytes) {
            self.look_at_stuck();
        }
        Ok(())
    }

    /// A node that is gone for ever, with its disk: its copies are no more.
    pub fn forget_node(&mut self, node: NodeId, now: PicoTime) {
        self.advance(now);
        self.cancel_to(node);
        self.look_at_node(node);
        for fragment in self.on_node.remove(&node).unwrap_or_default() {
            if let Some(held) = self.held.get_mut(&fragment) {
                held.copies.remove(&node);
                held.leave.remove(&node);
            }
        }
        self.nodes.remove(&node);
        self.down.remove(&node);
    }

    /// A fragment as the catalog knows it: new or changed. Orders that are under way stay.
    ///
    /// # Errors
    /// [`ReplicaError::TooMany`] for a rule of more than [`MAX_COPIES`], or beyond [`MAX_FRAGMENTS`].
    pub fn set_fragment(
        &mut self,
        id: FragmentId,
        fragment: &Fragment,
        now: PicoTime,
    ) -> Result<(), ReplicaError> {
        self.advance(now);
        if fragment.rule.total() > usize::from(MAX_COPIES) {
            return Err(ReplicaError::TooMany("copies of a fragment"));
        }
        if !self.held.contains_key(&id) && self.held.len() >= MAX_FRAGMENTS {
            return Err(ReplicaError::TooMany("fragments"));
        }
        let held = self.held.entry(id).or_insert_with(|| Held {
            size: fragment.size_bytes,
            rule: fragment.rule.clone(),
            copies: BTreeMap::new(),
            leave: BTreeSet::new(),
            retry_at: PicoTime::ZERO,
            failures: 0,
            rank: None,
        });
        held.rule = fragment.rule.clone();
        let told: BTreeSet<NodeId> = fragment.copies.iter().copied().collect();
        let gone = |(n, s): (&NodeId, &CopyState)| {
            (!told.contains(n) && !matches!(s, CopyState::Coming(_))).then_some(*n)
        };
        let gone: Vec<NodeId> = held.copies.iter().filter_map(gone).collect();
        for node in gone {
            held.copies.remove(&node);
            held.leave.remove(&node);
            if let Some(set) = self.on_node.get_mut(&node) {
                set.remove(&id);
            }
        }
        for node in told {
            held.copies.entry(node).or_insert(CopyState::Valid);
            self.on_node.entry(node).or_default().insert(id);
        }
        self.dirty.insert(id);
        Ok(())
    }

    /// A fragment that is no more (its file was removed): nothing is kept of it, copies under way are cancelled.
    pub fn forget_fragment(&mut self, id: FragmentId, now: PicoTime) {
        self.advance(now);
        let Some(held) = self.held.remove(&id) else { return };
        if let Some(rank) = held.rank {
            self.queue.remove(&(rank, id));
        }
        self.stuck.remove(&id);
        self.dirty.remove(&id);
        for (node, state) in held.copies {
            if let Some(set) = self.on_node.get_mut(&node) {
                set.remove(&id);
            }
            if let CopyState::Coming(copy) = state {
                self.active.remove(&copy);
                self.arrived(node, held.size, false);
                self.actions.push_back(Action::Cancel(copy));
            }
        }
    }

    /// A copy turned out to be lost or damaged: it is no more.
    pub fn lost(&mut self, id: FragmentId, node: NodeId, now: PicoTime) {
        self.advance(now);
        let Some(held) = self.held.get_mut(&id) else {
            return;
        };
        if matches!(held.copies.get(&node), Some(CopyState::Valid | CopyState::Going)) {
            self.drop_copy(id, node);
            self.dirty.insert(id);
        }
    }

    /// Answer to [`Action::Copy`]. Of a copy that was cancelled: nothing happens.
    pub fn copied(&mut self, copy: CopyId, ok: bool, now: PicoTime) {
        self.advance(now);
        let Some(active) = self.active.remove(&copy) else {
            return;
        };
        let Some(held) = self.held.get_mut(&active.fragment) else {
            return;
        };
        let size = held.size;
        if ok {
            held.failures = 0;
            held.copies.insert(active.to, CopyState::Valid);
        } else {
            let rest = self
                .config
                .retry_after
                .saturating_mul(1 << held.failures.min(MAX_DOUBLINGS));
            held.failures = held.failures.saturating_add(1);
            held.retry_at = self.now + rest;
            if let Some(from) = active.from {
                held.leave.remove(&from);
            }
            self.drop_copy(active.fragment, active.to);
        }
        self.arrived(active.to, size, ok);
        self.dirty.insert(active.fragment);
        self.look_at_stuck();
    }

    /// Answer to [`Action::Remove`].
    pub fn removed(&mut self, id: FragmentId, node: NodeId, ok: bool, now: PicoTime) {
        self.advance(now);
        let Some(held) = self.held.get_mut(&id) else {
            return;
        };
        if held.copies.get(&node) != Some(&CopyState::Going) {
            return;
        }
        if ok {
            let size = held.size;
            self.drop_copy(id, node);
            if let Some(n) = self.nodes.get_mut(&node) {
                n.free_bytes = n.free_bytes.saturating_add(size).min(n.capacity_bytes);
            }
            self.look_at_stuck();
        } else {
            held.copies.insert(node, CopyState::Valid);
            held.retry_at = self.now + self.config.retry_after;
        }
        self.dirty.insert(id);
    }

    /// Moves a copy from one node to another: adds there, then removes here.
    ///
    /// # Errors
    /// [`ReplicaError::UnknownFragment`], [`ReplicaError::UnknownNode`], [`ReplicaError::NoCopy`],
    /// [`ReplicaError::HasCopy`], [`ReplicaError::NoRoom`].
    pub fn migrate(
        &mut self,
        id: FragmentId,
        from: NodeId,
        to: NodeId,
        now: PicoTime,
    ) -> Result<CopyId, ReplicaError> {
        self.advance(now);
        let held = self.held.get(&id).ok_or(ReplicaError::UnknownFragment(id))?;
        let target = self.nodes.get(&to).ok_or(ReplicaError::UnknownNode(to))?;
        if held.copies.get(&from) != Some(&CopyState::Valid) || held.leave.contains(&from) {
            return Err(ReplicaError::NoCopy(id, from));
        }
        if held.copies.contains_key(&to) {
            return Err(ReplicaError::HasCopy(id, to));
        }
        if !takes(target, held.size) {
            return Err(ReplicaError::NoRoom(to));
        }
        if self.sources(id, to).is_empty() {
            return Err(ReplicaError::NoCopy(id, from));
        }
        Ok(self.order(id, to, Some(from), Reason::Migrate))
    }

    /// What is to be done next, if anything is at `now`.
    pub fn poll(&mut self, now: PicoTime) -> Option<Action> {
        self.advance(now);
        if self.actions.is_empty() {
            self.decide();
        }
        self.actions.pop_front()
    }

    /// When to call [`poll`](Self::poll) again although nothing was told.
    #[must_use]
    pub fn next_wakeup(&self) -> Option<PicoTime> {
        let given_up = self.down.values().filter(|(_, counts)| *counts);
        let delay = given_up.map(|(since, _)| *since + self.config.repair_delay).min();
        let rested = self.resting.first().map(|(at, _)| *at);
        let paced = match &self.clock {
            Some(clock) if !self.queue.is_empty() && clock.at() > self.now => Some(clock.at()),
            _ => None,
        };
        [delay, rested, paced].into_iter().flatten().min()
    }

    /// Fragments whose copies that count do not meet the rule, and of these, those that no node can take now.
    #[must_use]
    pub fn lacking(&self) -> (usize, usize) {
        (self.queue.len() + self.stuck.len(), self.stuck.len())
    }

    /// Nodes with a valid copy, and whether they can be read now. `None` for a fragment not known.
    #[must_use]
    pub fn copies(&self, id: FragmentId) -> Option<Vec<(NodeId, bool)>> {
        let held = self.held.get(&id)?;
        let valid = held.copies.iter().filter(|(_, s)| **s == CopyState::Valid);
        Some(valid.map(|(n, _)| (*n, self.reads(*n))).collect())
    }

    /// Moves the clock on; nodes that were down for long enough no longer count.
    fn advance(&mut self, now: PicoTime) {
        self.now = self.now.max(now);
        let delay = self.config.repair_delay;
        let over = |(n, (since, counts)): (&NodeId, &(PicoTime, bool))| {
            (*counts && *since + delay <= self.now).then_some(*n)
        };
        let over: Vec<NodeId> = self.down.iter().filter_map(over).collect();
        for node in over {
            if let Some((_, counts)) = self.down.get_mut(&node) {
                *counts = false;
            }
            self.look_at_node(node);
        }
        while let Some(&(at, id)) = self.resting.first().filter(|(at, _)| *at <= self.now) {
            self.resting.remove(&(at, id));
            self.dirty.insert(id);
        }
    }

    fn look_at_node(&mut self, node: NodeId) {
        if let Some(set) = self.on_node.get(&node) {
            self.dirty.extend(set.iter().copied());
        }
    }

    fn look_at_stuck(&mut self) {
        self.dirty.append(&mut self.stuck);
    }

    /// Cancels copies on their way to a node.
    fn cancel_to(&mut self, node: NodeId) {
        let to: Vec<CopyId> = self
            .active
            .iter()
            .filter_map(|(id, a)| (a.to == node).then_some(*id))
            .collect();
        for copy in to {
            self.cancel(copy);
        }
    }

    /// Takes an order back.
    pub(super) fn cancel(&mut self, copy: CopyId) {
        let Some(active) = self.active.remove(&copy) else {
            return;
        };
        if let Some(held) = self.held.get_mut(&active.fragment) {
            let size = held.size;
            if let Some(from) = active.from {
                held.leave.remove(&from);
            }
            self.drop_copy(active.fragment, active.to);
            self.arrived(active.to, size, false);
            self.dirty.insert(active.fragment);
        }
        self.actions.push_back(Action::Cancel(copy));
    }

    fn drop_copy(&mut self, id: FragmentId, node: NodeId) {
        if let Some(held) = self.held.get_mut(&id) {
            held.copies.remove(&node);
            held.leave.remove(&node);
        }
        if let Some(set) = self.on_node.get_mut(&node) {
            set.remove(&id);
        }
    }

    /// A copy is no longer on its way; its space is used or free again.
    fn arrived(&mut self, node: NodeId, size: u64, there: bool) {
        if let Some(bytes) = self.coming_bytes.get_mut(&node) {
            *bytes = bytes.saturating_sub(size);
        }
        if let Some(n) = self.coming_count.get_mut(&node) {
            *n = n.saturating_sub(1);
        }
        if let Some(n) = self.nodes.get_mut(&node).filter(|_| !there) {
            n.free_bytes = n.free_bytes.saturating_add(size).min(n.capacity_bytes);
        }
    }

    /// Orders a copy.
    pub(super) fn order(
        &mut self,
        fragment: FragmentId,
        to: NodeId,
        from: Option<NodeId>,
        reason: Reason,
    ) -> CopyId {
        let id = CopyId(self.next_copy);
        self.next_copy += 1;
        let sources = self.sources(fragment, to);
        let mut size_bytes = 0;
        if let Some(held) = self.held.get_mut(&fragment) {
            size_bytes = held.size;
            held.copies.insert(to, CopyState::Coming(id));
            held.leave.extend(from);
        }
        self.on_node.entry(to).or_default().insert(fragment);
        let active = Active {
            fragment,
            to,
            from,
            reason,
        };
        self.active.insert(id, active);
        *self.coming_bytes.entry(to).or_default() += size_bytes;
        *self.coming_count.entry(to).or_default() += 1;
        if let Some(n) = self.nodes.get_mut(&to) {
            n.free_bytes = n.free_bytes.saturating_sub(size_bytes);
        }
        if let Some(clock) = &mut self.clock {
            clock.catch_up(self.now);
            clock.advance(size_bytes);
        }
        self.actions.push_back(Action::Copy(Copy {
            id,
            fragment,
            size_bytes,
            sources,
            to,
            leaves: from,
            reason,
        }));
        id
    }
}
