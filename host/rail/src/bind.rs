//! Binding the calling thread, and all that it starts from then on, to a rail.
//!
//! Processors: `sched_setaffinity`; memory: `set_mempolicy(MPOL_BIND)`; both through hwloc. Threads and programs
//! that are started later inherit both: `/proc/PID/status` (`Cpus_allowed_list`) and `/proc/PID/numa_maps` show it.

use std::net::IpAddr;

use hwlocality::Topology;
use hwlocality::cpu::binding::CpuBindingFlags;
use hwlocality::cpu::cpuset::CpuSet;
use hwlocality::memory::binding::{MemoryBindingFlags, MemoryBindingPolicy};
use hwlocality::memory::nodeset::NodeSet;

use crate::error::RailError;
use crate::machine::Machine;
use crate::rails::{Rail, rails};
use crate::sys;

/// What to bind to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binding {
    /// Processing units.
    pub pus: Vec<u32>,
    /// Node of new memory.
    pub memory_node: u32,
}

/// Binds the calling thread. Returns what could not be done and does not matter, for the person: memory is not
/// bound where there is one node and the system forbids it.
///
/// # Errors
/// No processing units, ones that this process may not use, or a refusal of the system.
pub fn bind(machine: &Machine, binding: &Binding) -> Result<Vec<String>, RailError> {
    if !machine.here {
        return Err(RailError::BadInput(
            "a topology from a file or a description cannot be bound to".into(),
        ));
    }
    let mut notes = Vec::new();
    let topology = Topology::new().map_err(|e| RailError::Hwloc(e.to_string()))?;
    let mut pus = CpuSet::new();
    for &pu in &binding.pus {
        pus.set(pu as usize);
    }
    if pus.is_empty() {
        return Err(RailError::BadInput(
            "a rail without processing units cannot be bound to".into(),
        ));
    }
    topology
        .bind_cpu(&pus, CpuBindingFlags::THREAD)
        .map_err(|e| RailError::Hwloc(format!("processing units {:?}: {e}", binding.pus)))?;
    let mut nodes = NodeSet::new();
    nodes.set(binding.memory_node as usize);
    let memory = topology.bind_memory(
        &nodes,
        MemoryBindingPolicy::Bind,
        MemoryBindingFlags::THREAD | MemoryBindingFlags::STRICT,
    );
    if let Err(e) = memory {
        let text = format!("memory of node {}: {e}", binding.memory_node);
        if machine.nodes.len() > 1 {
            return Err(RailError::Hwloc(text));
        }
        notes.push(format!("{text}; there is no other node"));
    }
    Ok(notes)
}

/// The nodes in whose memory the pages of `bytes` are, by `move_pages(2)`; ascending.
///
/// # Errors
/// What the system says; nothing to look at.
pub fn memory_nodes(bytes: &[u8]) -> Result<Vec<u32>, RailError> {
    let topology = Topology::new().map_err(|e| RailError::Hwloc(e.to_string()))?;
    let nodes: NodeSet = topology
        .area_memory_location(bytes, MemoryBindingFlags::empty())
        .map_err(|e| RailError::Hwloc(format!("where {} bytes of memory are: {e}", bytes.len())))?;
    Ok(nodes.iter_set().map(|n| usize::from(n) as u32).collect())
}

/// The rail that a text names: a number, PCI address, `nodeN` or interface; `auto`: the rail of `interface`.
///
/// # Errors
/// No such rail.
pub fn find(machine: &Machine, name: &str, interface: Option<&str>) -> Result<Rail, RailError> {
    let all = rails(machine);
    let known = || {
        let each = all.iter().map(|r| match r.interfaces.first() {
            Some(interface) => format!("{} ({}, {interface})", r.number, r.id),
            None => format!("{} ({})", r.number, r.id),
        });
        each.collect::<Vec<_>>().join(", ")
    };
    let found = if name == "auto" {
        let of = interface.and_then(|i| all.iter().find(|r| r.interfaces.iter().any(|n| n == i)));
        // An interface without a card (loopback, a tunnel) is near every node.
        of.or_else(|| all.first())
    } else {
        all.iter().find(|r| r.is_called(name))
    };
    found
        .cloned()
        .ok_or_else(|| RailError::BadInput(format!("rail {name:?}: there is none; valid: auto, {}", known())))
}

/// The interface of this host that has an address.
///
/// # Errors
/// What the system says.
pub fn interface_of(address: IpAddr) -> Result<Option<String>, RailError> {
    sys::interface_with(address).map_err(RailError::io("the interfaces' addresses"))
}
