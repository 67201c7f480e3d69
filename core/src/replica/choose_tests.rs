use super::place_tests::{any_node, fragment, node, nodes};
use super::*;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use proptest::prelude::*;

fn ids(list: &[u32]) -> Vec<NodeId> {
    list.iter().map(|n| NodeId(*n)).collect()
}

#[test]
fn local_then_site_then_the_cheapest_way() {
    let mut list = [
        node(1, 1, 9),
        node(2, 1, 9),
        node(3, 2, 9),
        node(4, 3, 9),
        node(5, 4, 9),
        node(6, 1, 9),
    ];
    list[1].load_permille = 900;
    list[4].state = NodeState::Drain;
    list[5].state = NodeState::Down;
    let all = nodes(&list);
    let costs = WayCosts::from([((SiteId(2), SiteId(1)), 50), ((SiteId(3), SiteId(1)), 7)]);
    let on_2 = Reader {
        node: Some(NodeId(2)),
        site: None,
    };
    let order = read_order(
        on_2,
        fragment(1),
        &ids(&[1, 2, 3, 4, 5, 6, 77, 1]),
        &all,
        &costs,
        0,
    );
    use Nearness::*;
    assert_eq!(
        order,
        [
            (NodeId(2), Local),
            (NodeId(1), SameSite),
            (NodeId(4), Remote(7)),
            (NodeId(3), Remote(50)),
            (NodeId(5), Remote(u64::MAX)),
        ]
    );
    let at_1 = Reader {
        node: None,
        site: Some(SiteId(1)),
    };
    let order = read_order(at_1, fragment(1), &ids(&[2, 1]), &all, &costs, 0);
    assert_eq!(
        order,
        [(NodeId(1), SameSite), (NodeId(2), SameSite)],
        "the idle one first"
    );
    let nowhere = Reader {
        node: None,
        site: None,
    };
    assert_eq!(read_order(nowhere, fragment(1), &ids(&[6]), &all, &costs, 0), []);
}

#[test]
fn readers_of_many_files_use_all_copies() {
    let all = nodes(&[node(1, 1, 9), node(2, 1, 9), node(3, 1, 9)]);
    let far = Reader {
        node: None,
        site: Some(SiteId(5)),
    };
    let mut first = BTreeMap::new();
    for inode in 0..900 {
        let order = read_order(far, fragment(inode), &ids(&[1, 2, 3]), &all, &WayCosts::new(), 3);
        *first.entry(order[0].0).or_insert(0u32) += 1;
    }
    // 300 each; five standard deviations are 71.
    assert!(
        first.len() == 3 && first.values().all(|n| (229..=371).contains(n)),
        "{first:?}"
    );
}

#[test]
fn several_sources_of_one_file() {
    let parts = |size, sources: &[(u32, u64)]| -> String {
        let sources: Vec<(NodeId, u64)> = sources.iter().map(|(n, w)| (NodeId(*n), *w)).collect();
        let list = split(size, 1 << 20, &sources);
        let texts: Vec<String> = list
            .iter()
            .map(|p| format!("{}:{}..{}", p.node.0, p.range.start >> 20, p.range.end >> 20))
            .collect();
        texts.join(" ")
    };
    assert_eq!(parts(10 << 20, &[(1, 1), (2, 1)]), "1:0..5 2:5..10");
    assert_eq!(
        parts(10 << 20, &[(1, 300), (2, 100), (3, 100)]),
        "1:0..6 2:6..8 3:8..10"
    );
    assert_eq!(parts(2 << 20, &[(1, 1), (2, 9), (3, 9)]), "1:0..1 2:1..2");
    assert_eq!(parts(9 << 20, &[(1, 1_000_000), (2, 0)]), "1:0..8 2:8..9");
    assert_eq!(
        parts(9 << 20, &[(1, 1_000_000), (2, 1), (3, 1)]),
        "1:0..7 2:7..8 3:8..9"
    );
    assert_eq!(parts(0, &[(1, 1), (2, 1)]), "1:0..0");
    assert_eq!(parts(5 << 20, &[]), "");
}

/// The paper's case: a file of six fragments on three nodes, two each, and a program per fragment.
#[test]
fn fragments_are_computed_where_they_lie() {
    let all = nodes(&[node(1, 1, 9), node(2, 1, 9), node(3, 2, 9), node(4, 2, 9)]);
    let input = |f: u32, size_bytes, holders: &[u32]| Input {
        fragment: FragmentId {
            fragment: f,
            ..fragment(1)
        },
        size_bytes,
        holders: ids(holders),
    };
    let inputs = [
        input(0, 100, &[1, 2]),
        input(1, 100, &[1, 3]),
        input(2, 300, &[2, 3]),
        input(3, 50, &[3]),
        input(4, 60, &[99]),
        input(5, 40, &[1, 1]),
    ];
    let slots: BTreeMap<NodeId, u32> = (1..=4).map(|n| (NodeId(n), 1)).collect();
    let got = schedule(&inputs, &slots, &all, 0);
    let text: Vec<String> = got
        .assigned
        .iter()
        .map(|a| {
            format!(
                "{}->{}{}",
                a.fragment.fragment,
                a.node.0,
                if a.local { "" } else { "!" }
            )
        })
        .collect();
    // The largest first on node 2 or 3; the only holder of 3 is node 3; nobody holds 4: it goes to the idle one.
    assert_eq!(text.join(" "), "0->1 1->3 2->2 3->3 4->4! 5->1");
    assert_eq!((got.local_bytes, got.remote_bytes), (590, 60));
    let order: Vec<(u32, u64, u64)> = got
        .nodes
        .iter()
        .map(|a| (a.node.0, a.held_bytes, a.assigned_bytes))
        .collect();
    assert_eq!(order, [(3, 450, 150), (2, 400, 300), (1, 240, 140), (4, 0, 60)]);
    assert_eq!(schedule(&inputs, &BTreeMap::new(), &all, 0), Schedule::default());
}

proptest! {
    #[test]
    fn parts_are_the_whole(
        size in 0u64..1 << 40, log in 10u32..31, weights in prop::collection::vec(0u64..1 << 40, 1..9),
    ) {
        let sources: Vec<(NodeId, u64)> = weights.iter().zip(0..).map(|(w, n)| (NodeId(n), *w)).collect();
        let parts = split(size, 1 << log, &sources);
        let mut at = 0;
        for (p, i) in parts.iter().zip(0u32..) {
            prop_assert_eq!(p.node, NodeId(i));
            prop_assert_eq!(p.range.start, at);
            prop_assert!(p.range.start % (1 << log) == 0 && (p.range.end > at || size == 0));
            at = p.range.end;
        }
        prop_assert_eq!(at, size);
    }

    #[test]
    fn every_fragment_once_and_local_when_it_can_be(
        list in (1u32..9).prop_flat_map(|n| (0..n).map(|i| any_node(i, 3)).collect::<Vec<_>>()),
        holders in prop::collection::vec((0u64..1000, prop::collection::vec(0u32..12, 0..4)), 0..20),
        seed: u64,
    ) {
        let all = nodes(&list);
        let inputs: Vec<Input> = holders.iter().zip(0u32..).map(|((size, on), f)| Input {
            fragment: FragmentId { fragment: f, ..fragment(1) },
            size_bytes: *size,
            holders: ids(on),
        }).collect();
        let slots: BTreeMap<NodeId, u32> = all.keys().map(|n| (*n, 1 + n.0 % 3)).collect();
        let usable = |n: &NodeId| all.get(n).is_some_and(|n| n.state.reads());
        let got = schedule(&inputs, &slots, &all, seed);
        prop_assert_eq!(&got, &schedule(&inputs, &slots, &all, seed));
        if !all.keys().any(usable) {
            prop_assert_eq!(got, Schedule::default());
            return Ok(());
        }
        prop_assert_eq!(got.assigned.len(), inputs.len());
        let mut sum: BTreeMap<NodeId, u64> = BTreeMap::new();
        for (a, input) in got.assigned.iter().zip(&inputs) {
            prop_assert_eq!(a.fragment, input.fragment);
            prop_assert!(usable(&a.node));
            prop_assert_eq!(a.local, input.holders.iter().any(usable));
            prop_assert!(!a.local || input.holders.contains(&a.node));
            *sum.entry(a.node).or_default() += input.size_bytes;
        }
        for n in &got.nodes {
            prop_assert_eq!(n.assigned_bytes, sum.get(&n.node).copied().unwrap_or(0));
        }
        let all_bytes: u64 = inputs.iter().map(|i| i.size_bytes).sum();
        prop_assert_eq!(got.local_bytes + got.remote_bytes, all_bytes);
    }
}
