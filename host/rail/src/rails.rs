//! A machine's rails.
//!
//! One for each card, with the cores of its node; cards of one node share them out in whole caches where that
//! goes. A card without an interface, such as a virtual function that programs drive themselves, has no rail where others have
//! one. A card of unknown node is given the node with the fewest rails per core. A machine without cards has a
//! rail for each node with cores.

use serde::Serialize;

use crate::machine::{Card, Machine};

/// Cores, memory and card that are near each other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Rail {
    /// 1, 2, ... by PCI address (then by node): a shorthand on this host.
    pub number: u32,
    /// Absolute identity: the card's PCI address, or `nodeN`.
    pub id: String,
    /// PCI address of its card.
    pub card: Option<String>,
    /// The card's interfaces.
    pub interfaces: Vec<String>,
    /// Node of the card, where known.
    pub card_node: Option<u32>,
    /// Node of its memory.
    pub node: u32,
    /// Its cores, by their lowest processing unit.
    pub cores: Vec<u32>,
    /// All processing units of these cores.
    pub pus: Vec<u32>,
    /// Memory of its node, bytes, shared with the node's other rails.
    pub memory_bytes: u64,
    /// What the card carries, L1, bit/s, where known.
    pub rate_bps: Option<u64>,
    /// Whether other rails use the same cores, for want of more.
    pub shares_cores: bool,
}

impl Rail {
    /// Whether a text names this rail: its number, identity or one of its interfaces.
    #[must_use]
    pub fn is_called(&self, name: &str) -> bool {
        name == self.id || name.parse() == Ok(self.number) || self.interfaces.iter().any(|i| i == name)
    }
}

/// The rails of a machine.
#[must_use]
pub fn rails(machine: &Machine) -> Vec<Rail> {
    let with_cores: Vec<u32> = machine
        .nodes
        .iter()
        .filter(|n| !n.cores.is_empty())
        .map(|n| n.node)
        .collect();
    let mut places: Vec<(Option<&Card>, u32)> = Vec::new();
    let named = machine.cards.iter().any(|c| !c.interfaces.is_empty());
    let cards: Vec<&Card> = machine
        .cards
        .iter()
        .filter(|c| !named || !c.interfaces.is_empty())
        .collect();
    if cards.is_empty() {
        places.extend(with_cores.iter().map(|n| (None, *n)));
    }
    for &card in &cards {
        let known = card.node.filter(|n| with_cores.contains(n));
        // Memory without cores near a card: the nearest node with cores.
        let known = known.or_else(|| card.node.and_then(|n| machine.other_node(n)));
        let candidates: &[u32] = if known.is_none() { &with_cores } else { &[] };
        // Cards that are known to be there count before those that are put there.
        let told = |node: u32| cards.iter().filter(|c| c.node == Some(node)).count();
        let put = |node: u32| {
            places
                .iter()
                .filter(|(c, n)| *n == node && c.is_some_and(|c| c.node.is_none()))
                .count()
        };
        let on = |node: u32| told(node) + put(node);
        let cores = |node: u32| machine.node(node).map_or(1, |n| n.cores.len());
        let freest = candidates
            .iter()
            .copied()
            .min_by_key(|n| ((on(*n) + 1) * 10_000 / cores(*n), *n));
        if let Some(node) = known.or(freest) {
            places.push((Some(card), node));
        }
    }
    let made = places.iter().enumerate().map(|(i, (card, node))| {
        let before = places[..i].iter().filter(|(_, n)| n == node).count();
        let all = places.iter().filter(|(_, n)| n == node).count();
        rail(machine, i as u32 + 1, *card, *node, before, all)
    });
    made.collect()
}

/// Rail `index` of the `all` on a node.
fn rail(machine: &Machine, number: u32, card: Option<&Card>, node: u32, index: usize, all: usize) -> Rail {
    let mut cores: Vec<_> = machine.cores.iter().filter(|c| c.node == node).collect();
    cores.sort_by_key(|c| (c.cache, c.core));
    let shares_cores = cores.len() < all;
    let mine = if shares_cores {
        cores.iter().skip(index % cores.len().max(1)).take(1)
    } else {
        let edge = |i: usize| i * cores.len() / all;
        cores.iter().skip(edge(index)).take(edge(index + 1) - edge(index))
    };
    let mine: Vec<_> = mine.collect();
    Rail {
        number,
        id: card.map_or_else(|| format!("node{node}"), |c| c.pci.clone()),
        card: card.map(|c| c.pci.clone()),
        interfaces: card
            .map(|c| c.interfaces.iter().map(|i| i.name.clone()).collect())
            .unwrap_or_default(),
        card_node: card.and_then(|c| c.node),
        node,
        cores: mine.iter().map(|c| c.core).collect(),
        pus: mine.iter().flat_map(|c| c.pus.iter().copied()).collect(),
        memory_bytes: machine.node(node).map_or(0, |n| n.memory_bytes),
        rate_bps: card.and_then(Card::rate_bps),
        shares_cores,
    }
}
