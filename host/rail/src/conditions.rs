//! The rows of paper 002's table (figure 4) on a machine: where two rails have their core and memory.
//!
//! ```text
//!            A          B          C          D
//!     rail   1    2     1    2     1    2     1    2
//!     core   1a   2a    2a   1a    1a   1b    1a   1a
//!     memory 1    2     1    2     1    1     1    1
//!     card   1    2     1    2     1    2     1    2
//! ```
//!
//! 1 and 2 are the nodes of the first two cards of different nodes, else the first two nodes with cores, else the only node
//! twice. 1a and 1b are the first two cores of node 1 and 2a the first of node 2 that is not 1a. Where a machine has less than
//! the paper's, rows fall together: [`Row::same_as`] says which.

use serde::{Deserialize, Serialize};

use crate::error::RailError;
use crate::machine::Machine;
use crate::plan::Condition;
use crate::rails::rails;

/// Where a rail's work and memory are.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Place {
    /// PCI address of its card; `None` where there are no cards of two nodes.
    pub card: Option<String>,
    /// Node of the card.
    pub card_node: Option<u32>,
    /// Its core, by the lowest processing unit.
    pub core: u32,
    /// Node of the core.
    pub core_node: u32,
    /// Processing units of the core.
    pub pus: Vec<u32>,
    /// Node of its memory.
    pub memory_node: u32,
}

/// A row of the table on a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// Which.
    pub condition: Condition,
    /// Rails 1 and 2.
    pub rails: [Place; 2],
    /// An earlier row that is the same here, its rails exchanged or not.
    pub same_as: Option<Condition>,
}

/// The rows A to D on a machine.
///
/// # Errors
/// A machine without a core.
pub fn rows(machine: &Machine) -> Result<[Row; 4], RailError> {
    let mut with_cores = machine.nodes.iter().filter(|n| !n.cores.is_empty());
    let rails = rails(machine);
    let known = || rails.iter().filter(|r| r.card_node == Some(r.node));
    let one = known().next();
    let cards = one.and_then(|one| Some((one, known().find(|r| r.node != one.node)?)));
    let none = || {
        RailError::BadInput(format!(
            "{}: no node with a core: the rows A to D need one",
            machine.name
        ))
    };
    let [node1, node2] = match cards {
        Some((one, other)) => [one.node, other.node],
        None => {
            let first = with_cores.next().ok_or_else(none)?.node;
            [first, with_cores.next().map_or(first, |n| n.node)]
        }
    };
    let cores = |node: u32| machine.node(node).map(|n| n.cores.as_slice()).unwrap_or_default();
    let core_1a = *cores(node1).first().ok_or_else(none)?;
    let core_1b = cores(node1).get(1).copied().unwrap_or(core_1a);
    let core_2a = cores(node2)
        .iter()
        .copied()
        .find(|c| *c != core_1a)
        .unwrap_or(core_1a);
    let place = |rail: usize, core: u32, memory_node: u32| {
        let card = cards.map(|(one, other)| [one, other][rail]);
        let found = machine.core(core);
        Place {
            card: card.and_then(|c| c.card.clone()),
            card_node: card.and_then(|c| c.card_node),
            core,
            core_node: found.map_or(memory_node, |c| c.node),
            pus: found.map(|c| c.pus.clone()).unwrap_or_default(),
            memory_node,
        }
    };
    let row = |condition, cores: [u32; 2], memory: [u32; 2]| Row {
        condition,
        rails: [place(0, cores[0], memory[0]), place(1, cores[1], memory[1])],
        same_as: None,
    };
    let mut rows = [
        row(Condition::A, [core_1a, core_2a], [node1, node2]),
        row(Condition::B, [core_2a, core_1a], [node1, node2]),
        row(Condition::C, [core_1a, core_1b], [node1, node1]),
        row(Condition::D, [core_1a, core_1a], [node1, node1]),
    ];
    let sorted = |row: &Row| {
        let mut rails = row.rails.clone();
        rails.sort_by_key(|r| (r.core, r.memory_node, r.card.clone()));
        rails
    };
    for at in 1..rows.len() {
        let same = rows[..at]
            .iter()
            .find(|earlier| sorted(earlier) == sorted(&rows[at]));
        rows[at].same_as = same.map(|earlier| earlier.condition);
    }
    Ok(rows)
}
