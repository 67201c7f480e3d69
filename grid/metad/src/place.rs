//! The catalog's nodes and rules as [`kuroshio_core::replica`] sees them: where new copies go, which copy is read first.

use std::collections::BTreeMap;

use kuroshio_catalog as cat;
use kuroshio_catalog::{NodeState, ReplicaState};
use kuroshio_core::replica::{self, FragmentId, NodeId, Nodes, Reader, SiteId, WayCosts, Wish};

use crate::node::{Known, MARGIN_BYTES};

/// For choices among equals.
pub const SEED: u64 = 0;
/// What 10^12 / capacity is the cost of a way of.
const COST_BPS: u64 = 1_000_000_000_000;

/// Names of nodes and sites as numbers, given out as they come.
#[derive(Default)]
pub struct Names {
    nodes: Vec<String>,
    sites: Vec<String>,
}

fn number(list: &mut Vec<String>, name: &str) -> u32 {
    let found = list.iter().position(|n| n == name).unwrap_or_else(|| {
        list.push(name.to_owned());
        list.len() - 1
    });
    u32::try_from(found).unwrap_or(u32::MAX)
}

impl Names {
    /// A node's number.
    pub fn node(&mut self, name: &str) -> NodeId {
        NodeId(number(&mut self.nodes, name))
    }

    /// A site's number.
    pub fn site(&mut self, name: &str) -> SiteId {
        SiteId(number(&mut self.sites, name))
    }

    /// A node's name.
    pub fn node_name(&self, id: NodeId) -> &str {
        self.nodes.get(id.0 as usize).map_or("", String::as_str)
    }

    /// A site's name.
    pub fn site_name(&self, id: SiteId) -> &str {
        self.sites.get(id.0 as usize).map_or("", String::as_str)
    }

    /// A node as decisions need it. A little space is left to those who write.
    pub fn known(&mut self, known: &Known) -> replica::Node {
        let state = match known.node.state {
            _ if !known.gives() => replica::NodeState::Down,
            NodeState::Drain => replica::NodeState::Drain,
            NodeState::Up if !known.read_only => replica::NodeState::Up,
            _ => replica::NodeState::ReadOnly,
        };
        replica::Node {
            id: self.node(&known.node.name),
            site: self.site(&known.node.site),
            state,
            capacity_bytes: known.node.capacity_bytes,
            free_bytes: known.node.free_bytes.saturating_sub(MARGIN_BYTES),
            load_permille: u16::try_from(known.node.load_milli.min(1000)).unwrap_or(1000),
        }
    }

    /// A rule.
    pub fn rule(&mut self, rule: &cat::CopyRule) -> replica::CopyRule {
        let few = |n: u32| u8::try_from(n).unwrap_or(u8::MAX);
        match rule {
            cat::CopyRule::Count(n) => replica::CopyRule::Anywhere(few(*n)),
            cat::CopyRule::PerSite(sites) => {
                let each = sites.iter().map(|(site, n)| (self.site(site), few(*n)));
                replica::CopyRule::PerSite(each.collect())
            }
        }
    }
}

/// An object's number.
pub fn fragment_id(object: cat::ObjectId) -> FragmentId {
    FragmentId {
        inode: object.ino.0,
        // A spool names no higher ones.
        generation: u32::try_from(object.generation.0).unwrap_or(u32::MAX),
        fragment: object.fragment,
    }
}

/// All nodes at one moment.
pub struct View<'a> {
    known: &'a [Known],
    names: Names,
    nodes: Nodes,
}

impl<'a> View<'a> {
    /// Of what is known now.
    pub fn new(known: &'a [Known]) -> Self {
        let mut names = Names::default();
        let nodes = known.iter().map(|k| names.known(k)).map(|n| (n.id, n));
        Self {
            nodes: nodes.collect(),
            known,
            names,
        }
    }

    fn named(&self, id: NodeId) -> Option<&'a Known> {
        // Numbers are places in the list.
        self.known.get(id.0 as usize)
    }

    /// Where up to `most` new copies of a fragment go, best first; never where it has a row already.
    pub fn place(&mut self, fragment: &cat::Fragment, most: usize) -> Vec<String> {
        let holds = |r: &&cat::Replica| matches!(r.state, ReplicaState::Valid | ReplicaState::Writing);
        let (counted, others): (Vec<_>, Vec<_>) = fragment.replicas.iter().partition(holds);
        let counted: Vec<NodeId> = counted.iter().map(|r| self.names.node(&r.node)).collect();
        let excluded: Vec<NodeId> = others.iter().map(|r| self.names.node(&r.node)).collect();
        let total = u8::try_from(counted.len() + most).unwrap_or(u8::MAX);
        let wish = Wish {
            fragment: fragment_id(fragment.object),
            size_bytes: fragment.size,
            rule: &replica::CopyRule::Anywhere(total),
            counted: &counted,
            excluded: &excluded,
        };
        let chosen = replica::place(&wish, &self.nodes, SEED).nodes;
        chosen
            .iter()
            .map(|n| self.names.node_name(*n).to_owned())
            .collect()
    }

    /// Every node that takes `bytes` of new content, best first.
    pub fn takers(&mut self, inode: u64, bytes: u64, avoid: &[String]) -> Vec<&'a Known> {
        let excluded: Vec<NodeId> = avoid.iter().map(|n| self.names.node(n)).collect();
        let wish = Wish {
            fragment: FragmentId {
                inode,
                ..FragmentId::default()
            },
            size_bytes: bytes,
            rule: &replica::CopyRule::Anywhere(u8::MAX),
            counted: &[],
            excluded: &excluded,
        };
        let chosen = replica::place(&wish, &self.nodes, SEED).nodes;
        chosen.iter().filter_map(|n| self.named(*n)).collect()
    }

    /// Valid copies that can be read, best first, for a reader at a node or on a host; and whether at its site.
    pub fn sources(
        &mut self,
        fragment: &cat::Fragment,
        reader: (Option<&str>, &str),
        routes: &[cat::Route],
    ) -> Vec<(&'a Known, bool)> {
        let (node, host) = reader;
        let on_host = |k: &&Known| !host.is_empty() && k.host == host;
        let local = node.or_else(|| self.known.iter().find(on_host).map(|k| k.node.name.as_str()));
        let reader = Reader {
            node: local.map(|n| self.names.node(n)),
            site: None,
        };
        let mut costs: WayCosts = BTreeMap::new();
        for r in routes {
            let way = (self.names.site(&r.from), self.names.site(&r.to));
            costs.insert(way, COST_BPS / r.capacity_bps.max(1));
        }
        let valid = fragment
            .replicas
            .iter()
            .filter(|r| r.state == ReplicaState::Valid);
        let holders: Vec<NodeId> = valid.map(|r| self.names.node(&r.node)).collect();
        let id = fragment_id(fragment.object);
        let order = replica::read_order(reader, id, &holders, &self.nodes, &costs, SEED);
        let near = |n| matches!(n, replica::Nearness::Local | replica::Nearness::SameSite);
        let mut found: Vec<(&Known, bool)> = Vec::new();
        for (id, nearness) in order {
            found.extend(self.named(id).map(|k| (k, near(nearness))));
        }
        // Several nodes may be on the reader's host.
        found.sort_by_key(|(k, _)| host.is_empty() || k.host != host);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kuroshio_catalog::{Digest, Fragment, Generation, Ino, Node, ObjectId, Replica, Timestamp};

    const GIB: u64 = 1 << 30;

    fn known(name: &str, site: &str, free: u64) -> Known {
        Known {
            node: Node {
                name: name.into(),
                site: site.into(),
                address: String::new(),
                pin: String::new(),
                state: NodeState::Up,
                capacity_bytes: 10 * GIB,
                free_bytes: free,
                load_milli: 0,
                heartbeat: Timestamp(0),
                since: Timestamp(0),
            },
            live: true,
            host: format!("host-of-{name}"),
            read_only: false,
            disk: replica::DiskLimits::default(),
        }
    }

    fn fragment(holders: &[&str]) -> Fragment {
        let replicas = holders.iter().map(|n| Replica {
            node: (*n).into(),
            state: ReplicaState::Valid,
        });
        Fragment {
            object: ObjectId {
                ino: Ino(2),
                generation: Generation(1),
                fragment: 0,
            },
            size: 100,
            digest: Digest([0; 32]),
            replicas: replicas.collect(),
        }
    }

    #[test]
    fn replicas_spread_over_sites_then_free_space() {
        let mut nodes = vec![
            known("a1", "a", 9 * GIB),
            known("a2", "a", 8 * GIB),
            known("b1", "b", GIB),
            known("b2", "b", 5 * GIB),
            known("b3", "b", 0),
        ];
        let place = |nodes: &[Known]| View::new(nodes).place(&fragment(&["a1"]), 3);
        assert_eq!(place(&nodes), ["b2", "a2", "b1"]);
        nodes[3].node.state = NodeState::Drain;
        assert_eq!(View::new(&nodes).place(&fragment(&["a1"]), 1), ["b1"]);
        nodes[2].live = false;
        assert_eq!(place(&nodes), ["a2"], "b3 is full");
    }

    #[test]
    fn sources_are_on_the_host_then_at_the_site_then_by_capacity() {
        let mut nodes = vec![
            known("a1", "a", GIB),
            known("a2", "a", GIB),
            known("b1", "b", GIB),
            known("c1", "c", GIB),
            known("d1", "a", GIB),
        ];
        nodes[4].node.state = NodeState::Lost;
        let route = |from: &str, capacity_bps| cat::Route {
            from: from.into(),
            to: "a".into(),
            capacity_bps,
            leased_bps: 0,
        };
        let routes = [route("b", 1_000_000), route("c", 500_000_000)];
        let held = fragment(&["a2", "b1", "c1", "d1"]);
        let order = |reader: (Option<&str>, &str)| {
            let found = View::new(&nodes).sources(&held, reader, &routes);
            let text = found
                .iter()
                .map(|(k, near)| format!("{}{}", k.node.name, if *near { "" } else { "!" }));
            text.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(order((Some("a1"), "")), "a2 c1! b1!");
        assert!(order((None, "host-of-b1")).starts_with("b1 "));
    }
}
