use super::place_tests::{fragment, node};
use super::*;
use crate::sim::Random;
use crate::units::{BitRate, PicoDuration, PicoTime};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use proptest::prelude::*;

const GB: u64 = 1_000_000_000;

fn at(secs: u64) -> PicoTime {
    PicoTime::from_secs(secs)
}

fn ids(list: &[u32]) -> Vec<NodeId> {
    list.iter().map(|n| NodeId(*n)).collect()
}

fn config() -> KeeperConfig {
    KeeperConfig {
        repair_delay: PicoDuration::from_secs(100),
        ..KeeperConfig::default()
    }
}

fn keeper(config: KeeperConfig, list: &[Node]) -> Keeper {
    let mut k = Keeper::new(config, at(0));
    for n in list {
        k.set_node(*n, at(0)).expect("node");
    }
    k
}

fn held(k: &mut Keeper, inode: u64, size_gb: u64, rule: CopyRule, copies: &[u32], now: u64) {
    let f = Fragment {
        size_bytes: size_gb * GB,
        rule,
        copies: ids(copies),
    };
    k.set_fragment(fragment(inode), &f, at(now)).expect("fragment");
}

/// All that is to be done at a time, one line each.
fn told(k: &mut Keeper, now: u64) -> String {
    let mut out = Vec::new();
    while let Some(action) = k.poll(at(now)) {
        out.push(match action {
            Action::Copy(c) => {
                let from: Vec<String> = c.sources.iter().map(|n| format!("{}", n.0)).collect();
                let (i, from, to) = (c.fragment.inode, from.join(","), c.to.0);
                format!("copy#{} {i}: {from}->{to} {:?}", c.id.0, c.reason)
            }
            Action::Cancel(id) => format!("cancel#{}", id.0),
            Action::Remove { fragment, node } => format!("remove {}: {}", fragment.inode, node.0),
        });
    }
    out.join("; ")
}

fn with(mut n: Node, state: NodeState) -> Node {
    n.state = state;
    n
}

#[test]
fn a_lost_node_is_repaired_after_the_delay_and_what_comes_back_is_trimmed() {
    let list = [node(1, 1, 900), node(2, 2, 900), node(3, 1, 800), node(4, 2, 500)];
    let mut k = keeper(config(), &list);
    held(&mut k, 1, 1, CopyRule::Anywhere(2), &[1, 2], 0);
    assert_eq!(told(&mut k, 0), "");
    k.set_node(with(list[1], NodeState::Down), at(10)).expect("node");
    assert_eq!(told(&mut k, 50), "");
    assert_eq!(k.next_wakeup(), Some(at(110)));
    assert_eq!(told(&mut k, 110), "copy#0 1: 1->4 Missing");
    // It comes back before the copy is there: the copy is not wanted any more.
    k.set_node(list[1], at(120)).expect("node");
    assert_eq!(told(&mut k, 120), "cancel#0");
    k.set_node(with(list[1], NodeState::Down), at(130)).expect("node");
    assert_eq!(told(&mut k, 230), "copy#1 1: 1->4 Missing");
    k.copied(CopyId(0), true, at(231));
    assert_eq!(
        k.copies(fragment(1)).expect("known").len(),
        2,
        "a cancelled copy is not one"
    );
    k.copied(CopyId(1), true, at(240));
    assert_eq!(told(&mut k, 240), "");
    // Three copies: the rule asks for two, so one of the site with two goes.
    k.set_node(list[1], at(300)).expect("node");
    assert_eq!(told(&mut k, 300), "remove 1: 4");
    k.removed(fragment(1), NodeId(4), true, at(301));
    assert_eq!(told(&mut k, 301), "");
}

#[test]
fn the_fewest_copies_come_first_at_the_rate() {
    let list: Vec<Node> = (1..=6).map(|n| node(n, n, 900)).collect();
    let mut c = config();
    c.rate = BitRate::new(8_000_000_000); // 1 GB per second
    let mut k = keeper(c, &list);
    held(&mut k, 1, 5, CopyRule::Anywhere(3), &[1, 2], 0);
    held(&mut k, 2, 5, CopyRule::Anywhere(3), &[3], 0);
    held(&mut k, 3, 5, CopyRule::Anywhere(3), &[], 0);
    let first = told(&mut k, 0);
    assert!(
        first.starts_with("copy#0 2: 3->") && !first.contains(';'),
        "{first}"
    );
    assert_eq!(k.next_wakeup(), Some(at(5)));
    assert_eq!(told(&mut k, 4), "");
    // Still one readable copy: before the fragment with two.
    assert!(told(&mut k, 5).starts_with("copy#1 2: 3->"));
    assert!(told(&mut k, 10).starts_with("copy#2 1: "));
    assert_eq!(k.lacking(), (0, 0));
    assert_eq!(k.next_wakeup(), None, "of the third there is nothing to copy");
}

#[test]
fn drain_adds_before_it_removes_and_keeps_what_it_cannot_place() {
    let list = [node(1, 1, 900), node(2, 1, 900), node(3, 1, 900)];
    let mut k = keeper(config(), &list);
    held(&mut k, 1, 1, CopyRule::Anywhere(2), &[1, 2], 0);
    held(&mut k, 2, 1, CopyRule::Anywhere(3), &[1, 2, 3], 0);
    k.set_node(with(list[0], NodeState::Drain), at(1)).expect("node");
    let first = told(&mut k, 1);
    assert!(
        first == "copy#0 1: 1,2->3 Missing" || first == "copy#0 1: 2,1->3 Missing",
        "{first}"
    );
    assert_eq!(k.lacking(), (1, 1), "three copies have no place on two nodes");
    k.copied(CopyId(0), true, at(2));
    assert_eq!(told(&mut k, 2), "remove 1: 1");
    k.removed(fragment(1), NodeId(1), true, at(3));
    assert_eq!(told(&mut k, 3), "");
    // A fourth node: now the other one can move, too.
    k.set_node(node(4, 1, 900), at(4)).expect("node");
    assert!(told(&mut k, 4).ends_with("->4 Missing"));
    k.copied(CopyId(1), true, at(5));
    assert_eq!(told(&mut k, 5), "remove 2: 1");
}

#[test]
fn a_changed_rule_adds_at_one_site_and_then_removes_at_the_other() {
    let list = [node(1, 1, 900), node(2, 1, 900), node(3, 2, 900), node(4, 2, 900)];
    let mut k = keeper(config(), &list);
    let at_2 = CopyRule::PerSite(BTreeMap::from([(SiteId(2), 1)]));
    held(&mut k, 1, 1, at_2, &[1, 2], 0);
    let first = told(&mut k, 0);
    assert!(
        first.starts_with("copy#0 1: ") && !first.contains("remove"),
        "{first}"
    );
    k.copied(CopyId(0), false, at(1));
    assert_eq!(told(&mut k, 1), "");
    assert_eq!(k.next_wakeup(), Some(at(31)), "it rests after a failure");
    assert!(told(&mut k, 31).starts_with("copy#1 1: "));
    k.copied(CopyId(1), true, at(32));
    let (mut gone, mut now) = (BTreeSet::new(), 32);
    while let Some(Action::Remove { node, .. }) = k.poll(at(now)) {
        now += 1;
        gone.insert(node);
        k.removed(fragment(1), node, true, at(now));
    }
    assert_eq!(gone, BTreeSet::from([NodeId(1), NodeId(2)]));
}

#[test]
fn migration_and_balance_move_one_copy() {
    let list = [node(1, 1, 100), node(2, 1, 900), node(3, 2, 950)];
    let mut k = keeper(config(), &list);
    held(&mut k, 1, 10, CopyRule::Anywhere(1), &[1], 0);
    let f = fragment(1);
    assert_eq!(
        k.migrate(f, NodeId(1), NodeId(1), at(0)),
        Err(ReplicaError::HasCopy(f, NodeId(1)))
    );
    assert_eq!(
        k.migrate(f, NodeId(2), NodeId(3), at(0)),
        Err(ReplicaError::NoCopy(f, NodeId(2)))
    );
    assert_eq!(
        k.migrate(f, NodeId(1), NodeId(9), at(0)),
        Err(ReplicaError::UnknownNode(NodeId(9)))
    );
    assert_eq!(k.migrate(f, NodeId(1), NodeId(3), at(0)), Ok(CopyId(0)));
    assert_eq!(told(&mut k, 0), "copy#0 1: 1->3 Migrate");
    k.copied(CopyId(0), true, at(1));
    assert_eq!(told(&mut k, 1), "remove 1: 1");
    k.removed(f, NodeId(1), false, at(2));
    assert_eq!(told(&mut k, 2), "");
    assert_eq!(told(&mut k, 32), "remove 1: 1", "asked again");

    let mut c = config();
    c.balance_permille = Some(100);
    let mut k = keeper(c, &list);
    for inode in 0..5 {
        held(&mut k, inode, 100, CopyRule::Anywhere(1), &[1], 0);
    }
    let (mut now, mut moves) = (0, 0);
    while let Some(action) = k.poll(at(now)) {
        now += 1;
        match action {
            Action::Copy(copy) => {
                assert_eq!(copy.reason, Reason::Balance);
                k.copied(copy.id, true, at(now));
                moves += 1;
            }
            Action::Remove { fragment, node } => {
                assert_eq!(node, NodeId(1));
                k.removed(fragment, node, true, at(now));
            }
            Action::Cancel(_) => panic!("nothing to cancel"),
        }
    }
    // 900, 100, 50 of 1000 used: 100 each to the emptier, until they are 600, 200, 250 ... 500, 300, 250; the
    // next move leaves 400, 300, 350, within 100.
    assert_eq!(moves, 5);
}

#[test]
fn the_last_copy_is_never_removed() {
    let list = [node(1, 1, 900), with(node(2, 1, 900), NodeState::ReadOnly)];
    let mut k = keeper(config(), &list);
    held(&mut k, 1, 1, CopyRule::Anywhere(0), &[1], 0);
    assert_eq!(told(&mut k, 0), "");
    held(&mut k, 1, 1, CopyRule::Anywhere(0), &[1, 2], 0);
    assert_eq!(told(&mut k, 0), "remove 1: 1", "a read-only node removes nothing");
    k.removed(fragment(1), NodeId(1), true, at(1));
    assert_eq!(told(&mut k, 1), "");
    k.lost(fragment(1), NodeId(2), at(2));
    held(&mut k, 2, 1, CopyRule::Anywhere(1), &[2], 2);
    k.forget_node(NodeId(2), at(3));
    assert_eq!(told(&mut k, 3), "");
    assert_eq!(k.copies(fragment(2)), Some(Vec::new()));
}

#[test]
fn limits_are_refused() {
    let mut k = keeper(config(), &[]);
    let f = Fragment {
        size_bytes: 1,
        rule: CopyRule::Anywhere(MAX_COPIES + 1),
        copies: Vec::new(),
    };
    assert!(k.set_fragment(fragment(1), &f, at(0)).is_err());
    assert_eq!(
        k.migrate(fragment(1), NodeId(1), NodeId(2), at(0)),
        Err(ReplicaError::UnknownFragment(fragment(1)))
    );
    k.forget_fragment(fragment(1), at(0));
    k.copied(CopyId(9), true, at(0));
    k.removed(fragment(1), NodeId(1), true, at(0));
    assert_eq!(told(&mut k, 0), "");
}

/// A world that does what the keeper orders, late and not always, and where nodes come and go.
struct World {
    keeper: Keeper,
    random: Random,
    now: u64,
    nodes: BTreeMap<NodeId, Node>,
    /// What is really on the disks.
    copies: BTreeMap<FragmentId, BTreeSet<NodeId>>,
    rules: BTreeMap<FragmentId, (u64, CopyRule)>,
    orders: Vec<Order>,
    actions: u64,
}

enum Order {
    Copy(Copy),
    Remove(FragmentId, NodeId),
}

impl World {
    fn new(seed: u64, sites: u32, node_count: u32, fragments: u64) -> Self {
        let mut random = Random::new(seed);
        let config = KeeperConfig {
            max_copies: 5,
            max_copies_per_node: 2,
            rate: BitRate::new(400_000_000_000),
            balance_permille: (random.below(2) == 1).then_some(150),
            seed,
            ..config()
        };
        let mut world = Self {
            keeper: Keeper::new(config, at(0)),
            random,
            now: 0,
            nodes: BTreeMap::new(),
            copies: BTreeMap::new(),
            rules: BTreeMap::new(),
            orders: Vec::new(),
            actions: 0,
        };
        for n in 0..node_count {
            world.nodes.insert(NodeId(n), node(n, n % sites, 1000));
        }
        for inode in 0..fragments {
            let size = world.random.below(200) * GB;
            let n = 1 + world.random.below(3) as u8;
            let rule = match world.random.below(3) {
                0 => CopyRule::PerSite(BTreeMap::from([(
                    SiteId(world.random.below(u64::from(sites)) as u32),
                    n,
                )])),
                _ => CopyRule::Anywhere(n),
            };
            world.rules.insert(fragment(inode), (size, rule));
            // On a node with room; the fragment is empty when there is none.
            let start = world.random.below(u64::from(node_count)) as u32;
            let mut order = (0..node_count).map(|n| NodeId((start + n) % node_count));
            let roomy = order.find(|n| world.used(*n) + size <= 1000 * GB);
            if roomy.is_none() {
                world.rules.entry(fragment(inode)).and_modify(|r| r.0 = 0);
            }
            let first = roomy.unwrap_or(NodeId(start));
            world.copies.insert(fragment(inode), BTreeSet::from([first]));
        }
        for n in world.nodes.keys().copied().collect::<Vec<_>>() {
            world.heartbeat(n);
        }
        for id in world.rules.keys().copied().collect::<Vec<_>>() {
            world.enter(id);
        }
        world
    }

    fn used(&self, node: NodeId) -> u64 {
        let there = self.copies.iter().filter(|(_, on)| on.contains(&node));
        there.map(|(id, _)| self.rules[id].0).sum()
    }

    fn heartbeat(&mut self, node: NodeId) {
        let used = self.used(node);
        if let Some(n) = self.nodes.get_mut(&node) {
            n.free_bytes = n.capacity_bytes.saturating_sub(used);
            self.keeper.set_node(*n, at(self.now)).expect("node");
        }
    }

    fn enter(&mut self, id: FragmentId) {
        let (size_bytes, rule) = self.rules[&id].clone();
        let copies = self.copies[&id].iter().copied().collect();
        let f = Fragment {
            size_bytes,
            rule,
            copies,
        };
        self.keeper.set_fragment(id, &f, at(self.now)).expect("fragment");
    }

    /// Copies that are there on nodes that stay, and their sites.
    fn strong(&self, id: FragmentId) -> Vec<SiteId> {
        let on = self.copies[&id].iter().map(|n| &self.nodes[n]);
        on.filter(|n| n.state.stays()).map(|n| n.site).collect()
    }

    fn take_orders(&mut self) {
        while let Some(action) = self.keeper.poll(at(self.now)) {
            self.actions += 1;
            match action {
                Action::Copy(copy) => {
                    let on = &self.copies[&copy.fragment];
                    assert!(!on.contains(&copy.to), "two copies on one node");
                    let twice = self.orders.iter().any(|o| match o {
                        Order::Copy(c) => c.fragment == copy.fragment && c.to == copy.to,
                        Order::Remove(..) => false,
                    });
                    assert!(!twice, "ordered twice to one node");
                    assert_eq!(self.nodes[&copy.to].state, NodeState::Up);
                    assert!(!copy.sources.is_empty());
                    for s in &copy.sources {
                        assert!(on.contains(s) && self.nodes[s].state.reads(), "no source");
                    }
                    self.orders.push(Order::Copy(copy));
                    let coming = |n: NodeId| -> u64 {
                        let to = self.orders.iter().filter_map(|o| match o {
                            Order::Copy(c) if c.to == n => Some(c.size_bytes),
                            _ => None,
                        });
                        to.sum()
                    };
                    for n in self.nodes.values() {
                        assert!(
                            self.used(n.id) + coming(n.id) <= n.capacity_bytes,
                            "beyond the disk"
                        );
                    }
                    let copies = self.orders.iter().filter(|o| matches!(o, Order::Copy(_))).count();
                    assert!(copies <= 5, "more than at once");
                }
                Action::Cancel(id) => self.orders.retain(|o| !matches!(o, Order::Copy(c) if c.id == id)),
                Action::Remove { fragment, node } => {
                    assert!(self.nodes[&node].state.removes());
                    assert!(self.copies[&fragment].contains(&node));
                    // From here on the copy may be gone: those that stay meet the rule.
                    let mut rest = self.copies[&fragment].clone();
                    rest.remove(&node);
                    for o in &self.orders {
                        if let Order::Remove(f, n) = o
                            && *f == fragment
                        {
                            rest.remove(n);
                        }
                    }
                    let sites: Vec<SiteId> = rest
                        .iter()
                        .map(|n| &self.nodes[n])
                        .filter(|n| n.state.stays())
                        .map(|n| n.site)
                        .collect();
                    assert!(
                        self.rules[&fragment].1.is_met_by(&sites),
                        "removed below the rule"
                    );
                    assert!(!sites.is_empty(), "removed the last copy");
                    self.orders.push(Order::Remove(fragment, node));
                }
            }
        }
    }

    /// One order ends, well or not.
    fn answer(&mut self, always_well: bool) {
        if self.orders.is_empty() {
            return;
        }
        let which = self.random.below(self.orders.len() as u64) as usize;
        let well = always_well || self.random.below(4) > 0;
        match self.orders.swap_remove(which) {
            Order::Copy(copy) => {
                let readable = copy.sources.iter().any(|s| self.nodes[s].state.reads());
                let well = well && readable;
                if well {
                    self.copies.entry(copy.fragment).or_default().insert(copy.to);
                }
                self.keeper.copied(copy.id, well, at(self.now));
            }
            Order::Remove(fragment, node) => {
                let well = well && self.nodes[&node].state.removes();
                if well {
                    self.copies.entry(fragment).or_default().remove(&node);
                }
                self.keeper.removed(fragment, node, well, at(self.now));
            }
        }
    }

    /// Something happens to a node or a rule.
    fn disturb(&mut self) {
        let n = NodeId(self.random.below(self.nodes.len() as u64) as u32);
        match self.random.below(8) {
            0..=4 => {
                let states = [
                    NodeState::Up,
                    NodeState::Down,
                    NodeState::Drain,
                    NodeState::ReadOnly,
                    NodeState::Up,
                ];
                let state = states[self.random.below(5) as usize];
                self.nodes.get_mut(&n).expect("node").state = state;
                self.heartbeat(n);
            }
            5 => self.heartbeat(n),
            _ => {
                let inode = self.random.below(self.rules.len() as u64);
                let id = fragment(inode);
                let rule = CopyRule::Anywhere(1 + self.random.below(3) as u8);
                self.rules.get_mut(&id).expect("fragment").1 = rule;
                self.enter_rule(id);
            }
        }
    }

    /// The catalog tells a new rule, with the copies it knows.
    fn enter_rule(&mut self, id: FragmentId) {
        let before: BTreeSet<NodeId> = self.copies[&id].clone();
        self.enter(id);
        assert_eq!(self.copies[&id], before);
    }

    fn run(&mut self, steps: u64) {
        for _ in 0..steps {
            match self.random.below(4) {
                0 => self.disturb(),
                1 => self.now += self.random.below(60),
                _ => self.answer(false),
            }
            self.take_orders();
        }
    }

    /// All nodes are up and everything works from now on: how many actions until nothing is left to do.
    fn settle(&mut self) -> u64 {
        for n in self.nodes.keys().copied().collect::<Vec<_>>() {
            self.nodes.get_mut(&n).expect("node").state = NodeState::Up;
            self.heartbeat(n);
        }
        self.actions = 0;
        loop {
            self.take_orders();
            if !self.orders.is_empty() {
                self.answer(true);
            } else if let Some(wake) = self.keeper.next_wakeup() {
                assert!(wake > at(self.now), "a wake-up in the past");
                self.now = wake.as_ps().div_ceil(1_000_000_000_000);
            } else {
                return self.actions;
            }
            assert!(self.actions < 20_000, "does not end");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn never_below_never_twice_never_too_full_and_it_ends(
        seed: u64, sites in 1u32..4, node_count in 2u32..8, fragments in 1u64..16, steps in 0u64..400,
    ) {
        let mut world = World::new(seed, sites, node_count, fragments);
        world.take_orders();
        world.run(steps);
        world.settle();
        // Every fragment has what its rule asks for, or no node can take another copy.
        for (id, (size, rule)) in &world.rules {
            let strong = world.strong(*id);
            if rule.is_met_by(&strong) {
                prop_assert!(strong.len() <= rule.total().max(1), "{id:?} has too many");
                continue;
            }
            let could = world.nodes.values().any(|n| {
                let fits = world.used(n.id) + size <= n.capacity_bytes;
                let helps = match rule {
                    CopyRule::Anywhere(_) => true,
                    CopyRule::PerSite(wanted) => wanted.get(&n.site).is_some_and(|w| {
                        strong.iter().filter(|s| **s == n.site).count() < usize::from(*w)
                    }),
                };
                fits && helps && !world.copies[id].contains(&n.id)
            });
            prop_assert!(!could, "{id:?} could have another copy");
        }
    }
}

#[test]
fn what_fails_in_a_row_rests_longer_each_time() {
    let list = [node(1, 1, 900), node(2, 1, 900)];
    let mut k = keeper(config(), &list);
    held(&mut k, 1, 1, CopyRule::Anywhere(2), &[1], 0);
    let mut now = 0;
    // 30 s, doubled with each failure, at most 64 times as long.
    for (n, rest) in [30, 60, 120, 240, 480, 960, 1920, 1920].into_iter().enumerate() {
        assert_eq!(
            told(&mut k, now),
            format!("copy#{n} 1: 1->2 Missing"),
            "at {now} s"
        );
        k.copied(CopyId(n as u64), false, at(now));
        assert_eq!(told(&mut k, now + rest - 1), "", "{n}");
        now += rest;
    }
    assert_eq!(told(&mut k, now), "copy#8 1: 1->2 Missing");
    k.copied(CopyId(8), true, at(now));
    k.lost(fragment(1), NodeId(2), at(now));
    assert_eq!(told(&mut k, now), "copy#9 1: 1->2 Missing");
    k.copied(CopyId(9), false, at(now));
    assert_eq!(
        told(&mut k, now + 30),
        "copy#10 1: 1->2 Missing",
        "after a success it is short again"
    );
}
