//! Switches: where a frame goes that no address of a port leads anywhere, and where addresses are learned.
//!
//! ```text
//!  frame from a port on a switch -> its source address is learned, unless it is the port's own
//!     to a port's own address, or a learned one      -> the way through the switches to that port
//!     to a group (broadcast, multicast), or unknown  -> a copy out of every port of every switch of the domain but its own
//! ```
//!
//! Switches that links join are one domain; a link that would close a loop is blocked, as a spanning tree would block it
//! (the later one in the file). A link carries one copy: it is multiplied behind it. What was learned is known to the whole
//! domain at once and forgotten after [`AGE`] (IEEE 802.1D: 300 s). Every copy waits in the queue of its own port.

use std::collections::HashMap;

use kuroshio_core::units::{PicoDuration, PicoTime};

use super::stage::{Numbers, drain_stages, entry_shapers, exit_stages};
use crate::topology::Topology;

/// How long a learned address is known after it was last seen.
const AGE: PicoDuration = PicoDuration::from_secs(300);

/// Most learned addresses; frames to further ones are flooded.
pub const MAX_LEARNED: usize = 4096;

/// What follows a stage for a frame that is flooded.
#[derive(Debug, Clone)]
pub(super) enum Next {
    /// Another stage of the same port.
    Stage(usize),
    /// Copies to these stages.
    Copies(Vec<usize>),
    /// It leaves to a port.
    Leave(usize),
    Nothing,
}

/// Where a frame that enters goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whither {
    Port(usize),
    Everywhere,
    /// Back to where it came from: a switch drops it.
    Nowhere,
}

pub(super) struct Switches {
    next: Vec<Next>,
    /// By port: the domain, for ports on a switch.
    domain: Vec<Option<usize>>,
    learned: HashMap<(usize, [u8; 6]), (usize, PicoTime)>,
}

impl Switches {
    pub fn new(topology: &Topology) -> Self {
        let numbers = Numbers::of(topology);
        let (shapers, exits) = (entry_shapers(topology), exit_stages(topology));
        let drains = drain_stages(topology);
        let nodes = topology.routers.len();
        let mut out = vec![Vec::new(); nodes];
        let mut domain: Vec<usize> = (0..nodes).collect();
        let tree = crate::path::tree(topology);
        for (port, (_, p)) in topology.ports().enumerate() {
            if topology.is_switch(p.router) {
                out[p.router].push(exits[port]);
            }
        }
        for (index, link) in topology.links.iter().enumerate().filter(|(i, _)| tree[*i]) {
            let [a, b] = link.between;
            out[a].push(numbers.link(2 * index));
            out[b].push(numbers.link(2 * index + 1));
            let (from, to) = (domain[b], domain[a]);
            domain.iter_mut().filter(|d| **d == from).for_each(|d| *d = to);
        }
        let but = |node: usize, own: usize| {
            let others = out[node].iter().copied().filter(|s| *s != own);
            Next::Copies(others.collect())
        };
        let mut next = vec![Next::Nothing; numbers.all()];
        for (port, (_, p)) in topology.ports().enumerate() {
            let (own, egress) = (numbers.own_wire(port), numbers.egress(port));
            let copies = but(p.router, exits[port]);
            next[exits[port]] = Next::Leave(port);
            match shapers[port] {
                Some(shaper) => {
                    next[own] = Next::Stage(shaper);
                    next[shaper] = copies;
                }
                None => next[own] = copies,
            }
            match drains[port] {
                Some(drain) => {
                    next[egress] = Next::Stage(drain);
                    next[drain] = Next::Leave(port);
                }
                None => next[egress] = Next::Leave(port),
            }
        }
        for (index, link) in topology.links.iter().enumerate().filter(|(i, _)| tree[*i]) {
            let [a, b] = link.between;
            let [there, back] = [numbers.link(2 * index), numbers.link(2 * index + 1)];
            next[there] = but(b, back);
            next[back] = but(a, there);
        }
        let ports = topology.ports().map(|(_, p)| p.router);
        Self {
            next,
            domain: ports.map(|r| topology.is_switch(r).then(|| domain[r])).collect(),
            learned: HashMap::new(),
        }
    }

    /// What follows a stage for a flooded frame.
    pub fn after(&self, stage: usize) -> Next {
        self.next.get(stage).cloned().unwrap_or(Next::Nothing)
    }

    /// Learns from a frame that enters at a port, and says where it goes when no port has its destination for its own.
    /// `None` when the port is on no switch.
    pub fn whither(&mut self, at: PicoTime, port: usize, frame: &[u8]) -> Option<Whither> {
        let domain = (*self.domain.get(port)?)?;
        let (to, from) = (mac(frame, 0)?, mac(frame, 6)?);
        let group = |m: [u8; 6]| m[0] & 1 == 1;
        if from != crate::host::mac_of(port) && !group(from) {
            let room = self.learned.len() < MAX_LEARNED;
            match self.learned.get_mut(&(domain, from)) {
                Some(known) => *known = (port, at),
                None if room => {
                    self.learned.insert((domain, from), (port, at));
                }
                None => self.forget(at),
            }
        }
        if group(to) {
            return Some(Whither::Everywhere);
        }
        let known = self.learned.get(&(domain, to));
        Some(match known.filter(|(_, seen)| at <= *seen + AGE) {
            Some((there, _)) if *there == port => Whither::Nowhere,
            Some((there, _)) => Whither::Port(*there),
            None => Whither::Everywhere,
        })
    }

    fn forget(&mut self, at: PicoTime) {
        self.learned.retain(|_, (_, seen)| at <= *seen + AGE);
    }
}

fn mac(frame: &[u8], at: usize) -> Option<[u8; 6]> {
    frame.get(at..at + 6)?.try_into().ok()
}
