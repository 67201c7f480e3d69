//! The ways between the ports of a subnet: fewest links, by breadth-first search.
//!
//! Between two routers, a link whose `carries` names the subnet goes before links without
//! `carries`; a link whose `carries` does not name it is not used. Two equally short ways are an
//! error: which one was meant must be written down.

use std::collections::BTreeSet;

use crate::net::Net;
use crate::topology::{Path, Port, Topology, TopologyError};

/// Every ordered pair of ports that share a subnet, with its way.
pub(crate) fn all(topology: &Topology) -> Result<Vec<Path>, TopologyError> {
    let names = topology.port_names();
    let ports: Vec<&Port> = topology.ports().map(|(_, p)| p).collect();
    let tree = tree(topology);
    let mut paths = Vec::new();
    for (from, a) in ports.iter().enumerate() {
        for (to, b) in ports.iter().enumerate() {
            if from == to {
                continue;
            }
            let subnet = shared(a, b);
            let switched = topology.is_switch(a.router) && topology.is_switch(b.router);
            if subnet.is_none() && !switched {
                continue;
            }
            let place = || {
                let subnet = subnet.map_or(String::new(), |s| format!(" in {s}"));
                format!("way from {:?} to {:?}{subnet}", names[from], names[to])
            };
            let ways = Ways {
                topology,
                subnet,
                tree: &tree,
            };
            let links = match shortest(&ways, a.router, b.router) {
                Ok(links) => links,
                Err(problem) if subnet.is_some() => return Err(TopologyError::new(place(), problem)),
                // Switches of two domains.
                Err(_) => continue,
            };
            if let Some(mtu) = smaller_mtu(a, b) {
                return Err(TopologyError::new(
                    place(),
                    format!("the ports of a subnet need one mtu, not {mtu}"),
                ));
            }
            paths.push(Path { from, to, links });
        }
    }
    Ok(paths)
}

fn smaller_mtu(a: &Port, b: &Port) -> Option<String> {
    (a.mtu_bytes != b.mtu_bytes).then(|| format!("{}B and {}B", a.mtu_bytes, b.mtu_bytes))
}

/// The first subnet of `a` in which `b` is, too.
fn shared(a: &Port, b: &Port) -> Option<Net> {
    a.addresses
        .iter()
        .find(|mine| b.addresses.iter().any(|theirs| mine.same_subnet(theirs)))
        .map(Net::subnet)
}

/// The links between switches that carry frames, by number of the link: the others would close a loop.
pub(crate) fn tree(topology: &Topology) -> Vec<bool> {
    let mut part: Vec<usize> = (0..topology.routers.len()).collect();
    let links = topology.links.iter().map(|link| {
        let [a, b] = link.between;
        if !topology.is_switch(a) || part[a] == part[b] {
            return false;
        }
        let (from, to) = (part[b], part[a]);
        part.iter_mut().filter(|p| **p == from).for_each(|p| *p = to);
        true
    });
    links.collect()
}

/// Where to look for a way.
struct Ways<'a> {
    topology: &'a Topology,
    subnet: Option<Net>,
    tree: &'a [bool],
}

/// The directions that leave a router and may carry a subnet: `(number, next router)`.
fn exits(ways: &Ways<'_>, router: usize) -> Vec<(usize, usize)> {
    let Ways {
        topology,
        subnet,
        tree,
    } = ways;
    let mut named = Vec::new();
    let mut open = Vec::new();
    for (index, link) in topology.links.iter().enumerate() {
        let [a, b] = link.between;
        let exit = match router {
            r if r == a => (2 * index, b),
            r if r == b => (2 * index + 1, a),
            _ => continue,
        };
        let blocked = topology.is_switch(router) && !tree[index];
        if blocked {
            continue;
        }
        if subnet.is_some_and(|s| link.carries.contains(&s)) {
            named.push(exit);
        } else if link.carries.is_empty() {
            open.push(exit);
        }
    }
    let reached: BTreeSet<usize> = named.iter().map(|(_, next)| *next).collect();
    open.retain(|(_, next)| !reached.contains(next));
    named.append(&mut open);
    named
}

fn shortest(search: &Ways<'_>, from: usize, to: usize) -> Result<Vec<usize>, String> {
    let topology = search.topology;
    // Each entry is a way and the router it has reached; all entries have the same length.
    let mut ways = vec![(Vec::new(), from)];
    let mut seen = BTreeSet::new();
    loop {
        let arrived: Vec<&Vec<usize>> = ways
            .iter()
            .filter(|(_, router)| *router == to)
            .map(|(way, _)| way)
            .collect();
        match arrived.as_slice() {
            [] => {}
            [way] => return Ok((*way).clone()),
            [one, two, ..] => return Err(ambiguous(topology, one, two)),
        }
        seen.extend(ways.iter().map(|(_, router)| *router));
        let mut further: Vec<(Vec<usize>, usize)> = Vec::new();
        for (way, router) in &ways {
            for (number, next) in exits(search, *router) {
                // Two ways to a router decide nothing yet; a third adds nothing.
                let known = further.iter().filter(|(_, r)| *r == next).count();
                if !seen.contains(&next) && known < 2 {
                    let mut longer = way.clone();
                    longer.push(number);
                    further.push((longer, next));
                }
            }
        }
        if further.is_empty() {
            let name = |r: usize| topology.routers.get(r).map_or("?", String::as_str);
            return Err(format!(
                "no links join router {:?} to router {:?} for this subnet: add a [[link]] or name \
                 the subnet in its carries",
                name(from),
                name(to)
            ));
        }
        ways = further;
    }
}

fn ambiguous(topology: &Topology, one: &[usize], two: &[usize]) -> String {
    let names = topology.link_names();
    let show = |way: &[usize]| {
        way.iter()
            .filter_map(|n| names.get(*n))
            .cloned()
            .collect::<Vec<_>>()
            .join(" ")
    };
    format!(
        "two ways are equally short, {} and {}: name the subnet in the carries of the one that is \
         meant",
        show(one),
        show(two)
    )
}
