//! Rails and plans of real servers: topologies of hwloc's own test suite, which `scripts/topologies` fetches.
//!
//! What a file holds is counted in its text, apart from hwloc's reader. Without the files each test says so and looks at nothing.

use std::collections::BTreeSet;
use std::path::PathBuf;

use kuroshio_rail::{Condition, Machine, PlanRequest, Roots, Source, discover, plan, rails, rows, svg};

/// The files that are looked at, and their memory nodes. Of the last one's eight the job that wrote it had two.
const SERVERS: [(&str, usize); 5] = [
    ("24em64t-2n6c2t-pci.xml", 2),
    ("32em64t-2n8c2t-pci-normalio.xml", 2),
    ("16intel64-manyVFs.xml", 2),
    ("96em64t-4n4d3ca2co-pci.xml", 4),
    ("64intel64-3g2n+2n-irregulargroups+pci.xml", 2),
];

/// Name, text and machine of each server.
fn servers() -> Vec<(&'static str, String, Machine)> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
    let folder = cache.unwrap_or_default().join("kuroshio-hwloc");
    if !folder.is_dir() {
        eprintln!("SKIPPED: no topologies of real servers; `scripts/topologies` fetches them");
        return Vec::new();
    }
    let read = |(name, nodes): (&'static str, usize)| {
        let path = folder.join(name);
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let machine =
            discover(&Source::Xml(path), &Roots::default()).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(machine.nodes.len(), nodes, "{name}");
        (name, text, machine)
    };
    SERVERS.into_iter().map(read).collect()
}

/// Objects of a type whose line holds `word`.
fn count(text: &str, kind: &str, word: &str) -> usize {
    let of_kind = format!("<object type=\"{kind}\"");
    text.lines()
        .filter(|l| l.contains(&of_kind) && l.contains(word))
        .count()
}

/// Whether the job that wrote a file had the whole machine.
fn is_whole(text: &str) -> bool {
    let root = text
        .lines()
        .find(|l| l.contains("<object type=\"Machine\""))
        .expect("a machine");
    let of = |key: &str| {
        root.split(key)
            .nth(1)
            .and_then(|rest| rest.split('"').nth(1))
            .expect("a set")
            .to_owned()
    };
    of(" complete_cpuset=") == of(" allowed_cpuset=")
}

#[test]
fn every_node_core_and_card_is_there() {
    let servers = servers();
    assert!(servers.is_empty() || servers.iter().filter(|(_, text, _)| is_whole(text)).count() == 4);
    for (name, text, machine) in servers {
        if !is_whole(&text) {
            assert!(machine.cores.len() < count(&text, "Core", ""), "{name}");
            continue;
        }
        assert_eq!(machine.nodes.len(), count(&text, "NUMANode", ""), "{name}");
        assert_eq!(machine.cores.len(), count(&text, "Core", ""), "{name}");
        let units: usize = machine.cores.iter().map(|c| c.pus.len()).sum();
        assert_eq!(units, count(&text, "PU", ""), "{name}");
        // PCI class 02: network controllers. InfiniBand cards (0c06) have interfaces only where the file names them.
        let network = count(&text, "PCIDev", "pci_type=\"02");
        let cards = machine.cards.len();
        assert!(cards >= network, "{name}: {cards} of {network} cards");
        let memory: u64 = machine.nodes.iter().map(|n| n.memory_bytes).sum();
        assert!(memory > 1 << 30, "{name}");
    }
}

#[test]
fn every_rail_is_near_its_card() {
    for (name, _, machine) in servers() {
        let rails = rails(&machine);
        // Eleven of the virtual functions of one server have no interface: they take no cores from the others.
        let with_interfaces = machine.cards.iter().filter(|c| !c.interfaces.is_empty()).count();
        assert_eq!(rails.len(), with_interfaces, "{name}");
        for rail in &rails {
            let node = machine.node(rail.node).expect("a node");
            assert!(!rail.cores.is_empty(), "{name}: rail {}", rail.id);
            assert!(
                rail.cores.iter().all(|c| node.cores.contains(c)),
                "{name}: {rail:?}"
            );
            assert!(rail.card_node.is_none_or(|n| n == rail.node), "{name}: {rail:?}");
            let others = rails
                .iter()
                .filter(|o| o.number != rail.number && !o.shares_cores && !rail.shares_cores);
            let taken: BTreeSet<u32> = others.flat_map(|o| o.cores.iter().copied()).collect();
            assert!(rail.cores.iter().all(|c| !taken.contains(c)), "{name}: {rail:?}");
        }
    }
}

#[test]
fn plans_stay_on_their_nodes_and_say_what_they_carry() {
    for (name, _, machine) in servers() {
        for gbps in [5, 20, 80] {
            let mut want = PlanRequest::new(format!("{gbps}G").parse().expect("a rate"));
            want.card_rate = Some("10G".parse().expect("a rate"));
            let made = plan(&machine, &want).unwrap_or_else(|e| panic!("{name}: {e}"));
            let sum: u64 = made.rails.iter().map(|r| r.rate_bps).sum();
            assert_eq!(sum, made.carried_bps, "{name}");
            assert!(made.carried_bps <= made.rate_bps, "{name}");
            for rail in &made.rails {
                assert!(rail.rate_bps <= rail.carries_bps, "{name}: {rail:?}");
                let node = machine.node(rail.application_node).expect("a node");
                let units: BTreeSet<u32> = node
                    .cores
                    .iter()
                    .filter_map(|c| machine.core(*c))
                    .flat_map(|c| c.pus.iter().copied())
                    .collect();
                for pu in rail.application.iter().chain(&rail.stack).chain(&rail.interrupts) {
                    assert!(units.contains(pu), "{name}: {rail:?}");
                }
            }
            let nodes: BTreeSet<_> = made.rails.iter().filter_map(|r| r.card_node).collect();
            if made.rails.len() > 1 && made.rails.iter().all(|r| r.card_node.is_some()) && nodes.len() > 1 {
                assert_eq!(made.condition, Some(Condition::A), "{name}: {made:?}");
            }
        }
    }
}

#[test]
fn two_rails_are_of_two_nodes_where_cards_are() {
    for (name, _, machine) in servers() {
        let mut want = PlanRequest::new("2G".parse().expect("a rate"));
        want.card_rate = Some("1G".parse().expect("a rate"));
        let made = plan(&machine, &want).unwrap_or_else(|e| panic!("{name}: {e}"));
        let near: BTreeSet<u32> = rails(&machine).iter().filter_map(|r| r.card_node).collect();
        let used: BTreeSet<u32> = made.rails.iter().filter_map(|r| r.card_node).collect();
        assert_eq!((made.rails.len(), used.len()), (2, near.len().min(2)), "{name}");
    }
}

#[test]
fn the_rows_of_the_paper_differ_on_every_server() {
    for (name, _, machine) in servers() {
        let rows = rows(&machine).expect("rows");
        assert!(rows.iter().all(|r| r.same_as.is_none()), "{name}: {rows:?}");
        assert_ne!(rows[0].rails[0].core_node, rows[0].rails[1].core_node, "{name}");
    }
}

#[test]
fn every_core_and_card_is_in_the_picture() {
    for (name, _, machine) in servers() {
        let picture = svg(&machine, &rails(&machine));
        assert_eq!(
            picture.matches("width=\"46\" height=\"46\"").count(),
            machine.cores.len(),
            "{name}"
        );
        for card in rails(&machine).iter().filter_map(|r| r.card.as_ref()) {
            assert!(picture.contains(card.as_str()), "{name}: {card}");
        }
    }
}
