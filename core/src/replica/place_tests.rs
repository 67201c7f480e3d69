use super::*;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use proptest::prelude::*;

const GB: u64 = 1_000_000_000;

pub(super) fn node(id: u32, site: u32, free_gb: u64) -> Node {
    Node {
        id: NodeId(id),
        site: SiteId(site),
        state: NodeState::Up,
        capacity_bytes: 1000 * GB,
        free_bytes: free_gb * GB,
        load_permille: 0,
    }
}

pub(super) fn nodes(list: &[Node]) -> Nodes {
    list.iter().map(|n| (n.id, *n)).collect()
}

pub(super) fn fragment(inode: u64) -> FragmentId {
    FragmentId {
        inode,
        generation: 1,
        fragment: 0,
    }
}

fn ids(list: &[u32]) -> Vec<NodeId> {
    list.iter().map(|n| NodeId(*n)).collect()
}

fn wish<'a>(rule: &'a CopyRule, counted: &'a [NodeId]) -> Wish<'a> {
    Wish {
        fragment: fragment(1),
        size_bytes: GB,
        rule,
        counted,
        excluded: &[],
    }
}

#[test]
fn spreads_over_sites_then_takes_the_emptier() {
    let all = nodes(&[
        node(1, 1, 900),
        node(2, 1, 100),
        node(3, 2, 100),
        node(4, 2, 500),
        node(5, 3, 50),
    ]);
    let two = CopyRule::Anywhere(2);
    assert_eq!(place(&wish(&two, &ids(&[1])), &all, 0).nodes, ids(&[4]));
    let four = CopyRule::Anywhere(4);
    let got = place(&wish(&four, &[]), &all, 0);
    assert_eq!(got.nodes, ids(&[1, 4, 5, 2]));
    assert!(got.unplaced.is_empty());
    let nine = CopyRule::Anywhere(9);
    assert_eq!(place(&wish(&nine, &[]), &all, 0).unplaced, [(None, 4)]);
}

#[test]
fn a_rule_per_site_is_kept_at_each() {
    let all = nodes(&[node(1, 1, 900), node(2, 1, 100), node(3, 2, 100), node(4, 3, 500)]);
    let rule = CopyRule::PerSite(BTreeMap::from([(SiteId(1), 2), (SiteId(2), 2), (SiteId(9), 1)]));
    assert_eq!(rule.total(), 5);
    let got = place(&wish(&rule, &ids(&[2, 4])), &all, 0);
    assert_eq!(got.nodes, ids(&[1, 3]));
    assert_eq!(got.unplaced, [(Some(SiteId(2)), 1), (Some(SiteId(9)), 1)]);
}

#[test]
fn only_nodes_that_are_up_with_room_and_not_busy() {
    let mut list = [
        node(1, 1, 900),
        node(2, 1, 900),
        node(3, 2, 900),
        node(4, 2, 0),
        node(5, 3, 900),
    ];
    list[0].state = NodeState::Drain;
    list[1].state = NodeState::ReadOnly;
    list[2].load_permille = 1000;
    let rule = CopyRule::Anywhere(3);
    let mut w = wish(&rule, &[]);
    let excluded = ids(&[5]);
    w.excluded = &excluded;
    let got = place(&w, &nodes(&list), 0);
    assert_eq!((got.nodes, got.unplaced), (ids(&[3]), alloc::vec![(None, 2)]));
}

#[test]
fn equals_take_turns() {
    let list: Vec<Node> = (0..10).map(|n| node(n, 1, 500)).collect();
    let all = nodes(&list);
    let rule = CopyRule::Anywhere(1);
    let mut count = [0u32; 10];
    for inode in 0..2000 {
        let mut w = wish(&rule, &[]);
        w.fragment = fragment(inode);
        let first = place(&w, &all, 7).nodes;
        assert_eq!(
            first,
            place(&w, &all, 7).nodes,
            "the same question has the same answer"
        );
        count[first[0].0 as usize] += 1;
    }
    // 200 each; five standard deviations of a binomial are 67.
    assert!(count.iter().all(|c| (133..=267).contains(c)), "{count:?}");
}

pub(super) fn any_node(id: u32, sites: u32) -> impl Strategy<Value = Node> {
    let state = prop_oneof![
        6 => Just(NodeState::Up),
        1 => Just(NodeState::ReadOnly),
        1 => Just(NodeState::Drain),
        1 => Just(NodeState::Down),
    ];
    (0..sites, state, 0u64..=1000, 0u16..=1000).prop_map(move |(site, state, free, load_permille)| Node {
        state,
        load_permille,
        ..node(id, site, free)
    })
}

pub(super) fn any_rule(sites: u32) -> impl Strategy<Value = CopyRule> {
    prop_oneof![
        (0u8..6).prop_map(CopyRule::Anywhere),
        prop::collection::btree_map((0..sites).prop_map(SiteId), 0u8..3, 0..4).prop_map(CopyRule::PerSite),
    ]
}

proptest! {
    #[test]
    fn never_two_on_a_node_never_without_room_never_fewer_than_possible(
        list in (1u32..12).prop_flat_map(|n| (0..n).map(|i| any_node(i, 4)).collect::<Vec<_>>()),
        rule in any_rule(4),
        counted in prop::collection::btree_set(0u32..12, 0..4),
        excluded in prop::collection::btree_set(0u32..12, 0..4),
        size_gb in 0u64..600,
        seed: u64,
    ) {
        let all = nodes(&list);
        let counted: Vec<NodeId> = counted.into_iter().map(NodeId).filter(|n| all.contains_key(n)).collect();
        let excluded: Vec<NodeId> = excluded.into_iter().map(NodeId).collect();
        let w = Wish {
            fragment: fragment(3), size_bytes: size_gb * GB, rule: &rule, counted: &counted, excluded: &excluded,
        };
        let got = place(&w, &all, seed);
        let mut distinct = got.nodes.clone();
        distinct.sort();
        distinct.dedup();
        prop_assert_eq!(distinct.len(), got.nodes.len());
        let may = |n: &Node| {
            n.state == NodeState::Up && n.free_bytes >= size_gb * GB
                && !counted.contains(&n.id) && !excluded.contains(&n.id)
        };
        for n in &got.nodes {
            prop_assert!(may(&all[n]));
        }
        let mut after = counted.clone();
        after.extend(&got.nodes);
        let sites: Vec<SiteId> = after.iter().map(|n| all[n].site).collect();
        prop_assert_eq!(rule.is_met_by(&sites), got.unplaced.is_empty());
        // What is not placed is so because every node that may is taken.
        for (site, missing) in got.unplaced {
            prop_assert!(missing > 0);
            let mut free = all.values().filter(|n| may(n) && site.is_none_or(|s| s == n.site));
            prop_assert!(free.all(|n| got.nodes.contains(&n.id)));
        }
    }
}
