//! Replicas, copy rules, nodes, sites, routes.

use super::bed::Bed;
use super::{Env, at, digest, node, ok, refused};
use kuroshio_catalog::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

fn copies(env: &Env, path: &str, rule: &str) -> Result<Attr, CatalogError> {
    env.call(SetCopies { place: at(path), rule: rule.parse()? })
}

fn object(env: &Env, path: &str) -> ObjectId {
    env.layout(path).fragments[0].object
}

fn replicate(env: &Env, object: ObjectId, node: &str, size: u64) {
    ok(env.call(AddReplica { object, node: node.into() }));
    let state = ReplicaState::Valid;
    ok(env.call(SetReplica { object, node: node.into(), state, digest: Some(digest(0, size)) }));
}

fn remove(env: &Env, object: ObjectId, node: &str, below: bool) -> Result<(), CatalogError> {
    env.call(RemoveReplica { object, node: node.into(), below })
}

fn reckon(env: &Env, node: &str) {
    let mut after = None;
    loop {
        after = ok(env.call(ReckonNode { node: node.into(), after, limit: 2 }));
        if after.is_none() {
            return;
        }
    }
}

pub fn short_and_surplus(bed: &dyn Bed) {
    let env = bed.env();
    env.site("s", &["n1", "n2", "n3"]);
    env.mkdir("/d");
    assert_eq!(ok(copies(&env, "/d", "2")).copies, CopyRule::Count(2));
    let f = env.put("/d/f", 10, &["n1"]);
    assert_eq!(f.copies, CopyRule::Count(2), "from the directory");
    let o = object(&env, "/d/f");
    let off = env.off(CopyBalance::Short);
    assert_eq!(off.len(), 1);
    assert_eq!((off[0].fragment.object, off[0].missing, off[0].surplus), (o, 1, 0));
    assert_eq!(off[0].fragment.replicas, [Replica { node: "n1".into(), state: ReplicaState::Valid }]);
    ok(env.call(AddReplica { object: o, node: "n2".into() }));
    assert_eq!(env.off(CopyBalance::Short).len(), 1, "not before it is valid");
    refused(env.call(AddReplica { object: o, node: "n2".into() }), ErrorKind::Exists);
    let valid = |d| {
        let node = "n2".into();
        env.call(SetReplica { object: o, node, state: ReplicaState::Valid, digest: d })
    };
    refused(valid(None), ErrorKind::Invalid);
    refused(valid(Some(digest(0, 11))), ErrorKind::Invalid);
    ok(valid(Some(digest(0, 10))));
    assert!(env.off(CopyBalance::Short).is_empty());
    replicate(&env, o, "n3", 10);
    assert_eq!(env.off(CopyBalance::Surplus)[0].surplus, 1);
    ok(remove(&env, o, "n1", false));
    assert!(env.off(CopyBalance::Surplus).is_empty());
    refused(valid_on_removed(&env, o), ErrorKind::Stale);
    // A copy that rotted is not one.
    ok(env.call(SetReplica { object: o, node: "n3".into(), state: ReplicaState::Stale, digest: None }));
    assert_eq!(env.off(CopyBalance::Short)[0].missing, 1);
    ok(copies(&env, "/d/f", "1"));
    assert!(env.off(CopyBalance::Short).is_empty());
    // Removed files need no repair; a new content begins anew.
    ok(copies(&env, "/d/f", "3"));
    assert_eq!(env.off(CopyBalance::Short)[0].missing, 2);
    let draft = ok(env.call(OpenWrite { place: at("/d/f") }));
    ok(env.call(super::commit(draft, vec![super::fragment(0, 4, &["n1", "n2"])])));
    let off = env.off(CopyBalance::Short);
    assert_eq!((off.len(), off[0].missing, off[0].fragment.object.generation), (1, 1, draft.generation));
    ok(env.unlink("/d/f"));
    assert!(env.off(CopyBalance::Short).is_empty());
    env.invariants_hold();
}

fn valid_on_removed(env: &Env, object: ObjectId) -> Result<(), CatalogError> {
    let digest = Some(digest(0, 10));
    env.call(SetReplica { object, node: "n1".into(), state: ReplicaState::Valid, digest })
}

pub fn per_site(bed: &dyn Bed) {
    let env = bed.env();
    env.site("tokyo", &["t1", "t2"]);
    env.site("tsukuba", &["k1"]);
    let rule = ok(copies(&env, "/", "tsukuba=1,tokyo=1")).copies;
    assert_eq!(rule.to_string(), "tokyo=1,tsukuba=1");
    env.put("/f", 10, &["t1", "t2"]);
    let o = object(&env, "/f");
    let of = |b| env.off(b).iter().map(|x| (x.missing, x.surplus)).collect::<Vec<_>>();
    assert_eq!(of(CopyBalance::Short), [(1, 1)]);
    assert_eq!(of(CopyBalance::Surplus), [(1, 1)]);
    replicate(&env, o, "k1", 10);
    ok(remove(&env, o, "t2", false));
    refused(remove(&env, o, "t1", false), ErrorKind::LastReplica);
    assert!(of(CopyBalance::Short).is_empty() && of(CopyBalance::Surplus).is_empty());
    for bad in ["", "0", "65", "a=", "a=0", "=1", "a=1,a=2", "a=1,b", "a=40,b=40", "-1", "1 "] {
        refused(bad.parse::<CopyRule>(), ErrorKind::Invalid);
    }
    refused(env.call(SetCopies { place: at("/f"), rule: CopyRule::Count(0) }), ErrorKind::Invalid);
    refused(env.call(SetCopies { place: at("/f"), rule: CopyRule::PerSite(vec![]) }), ErrorKind::Invalid);
    let user = Caller::user("u", &[]);
    refused(env.by(&user, SetCopies { place: at("/f"), rule: CopyRule::Count(1) }), ErrorKind::NotPermitted);
}

pub fn the_last_one_stays(bed: &dyn Bed) {
    let env = bed.env();
    env.site("s", &["n1", "n2"]);
    ok(copies(&env, "/", "2"));
    env.put("/f", 10, &["n1", "n2"]);
    let o = object(&env, "/f");
    refused(remove(&env, o, "n1", false), ErrorKind::LastReplica);
    ok(remove(&env, o, "n1", true));
    refused(remove(&env, o, "n2", true), ErrorKind::LastReplica);
    refused(env.call(DropReplica { object: o, node: "n2".into() }), ErrorKind::Invalid);
    ok(env.call(DropReplica { object: o, node: "n1".into() }));
    refused(remove(&env, o, "n1", true), ErrorKind::NotFound);
    // The content of an open file that was removed is in use too.
    let open = ok(env.call(OpenRead { place: at("/f") }));
    ok(env.unlink("/f"));
    refused(remove(&env, o, "n2", true), ErrorKind::LastReplica);
    ok(env.call(Release { handle: open.handle }));
    env.reap();
    refused(remove(&env, o, "n2", true), ErrorKind::NotFound);
    let user = Caller::user("u", &[]);
    refused(env.by(&user, RemoveReplica { object: o, node: "n2".into(), below: true }), ErrorKind::NotPermitted);
}

pub fn a_lost_node(bed: &dyn Bed) {
    let env = bed.env();
    env.site("s", &["n1", "n2", "n3"]);
    ok(copies(&env, "/", "2"));
    for i in 0..5 {
        env.put(&format!("/f{i}"), 10 + i, &["n1", "n2"]);
    }
    env.put("/only", 99, &["n1"]);
    env.put("/gone", 1, &["n1", "n2"]);
    ok(env.unlink("/gone"));
    env.reap();
    let set = |state| ok(env.call(SetNodeState { node: "n1".into(), state }));
    set(NodeState::Down);
    reckon(&env, "n1");
    assert_eq!(env.off(CopyBalance::Short).len(), 1, "a node that is down still counts");
    refused(env.call(AddReplica { object: object(&env, "/only"), node: "n1".into() }), ErrorKind::Busy);
    set(NodeState::Lost);
    refused(remove(&env, object(&env, "/f0"), "n2", true), ErrorKind::LastReplica);
    reckon(&env, "n1");
    let short = env.off(CopyBalance::Short);
    assert_eq!(short.len(), 6);
    let only = short.iter().find(|s| s.fragment.size == 99).expect("the file without another copy");
    assert_eq!(only.missing, 2);
    assert_eq!(env.on_node("n1", Some(ReplicaState::Lost)).len(), 6);
    assert!(env.on_node("n1", Some(ReplicaState::Removing)).is_empty(), "went with the disk");
    env.invariants_hold();
    refused(env.call(RemoveNode { node: "n1".into() }), ErrorKind::Busy);
    for r in env.on_node("n1", None) {
        ok(env.call(DropReplica { object: r.object, node: "n1".into() }));
    }
    ok(env.call(RemoveNode { node: "n1".into() }));
    refused(env.call(RemoveNode { node: "n1".into() }), ErrorKind::NotFound);
    // In pages, by object.
    let first = ok(env.call(ListOffCopies { balance: CopyBalance::Short, after: None, limit: 4 }));
    let after = first.last().map(|s| s.fragment.object);
    let rest = ok(env.call(ListOffCopies { balance: CopyBalance::Short, after, limit: 4 }));
    assert_eq!((first.len(), rest.len()), (4, 2));
    assert!(first.last().unwrap().fragment.object < rest[0].fragment.object);
}

pub fn a_drained_node(bed: &dyn Bed) {
    let env = bed.env();
    env.site("s", &["n1", "n2"]);
    env.put("/f", 10, &["n1"]);
    let o = object(&env, "/f");
    ok(env.call(SetNodeState { node: "n1".into(), state: NodeState::Drain }));
    reckon(&env, "n1");
    assert_eq!(env.off(CopyBalance::Short).len(), 1, "to be copied before it is emptied");
    refused(remove(&env, o, "n1", false), ErrorKind::LastReplica);
    replicate(&env, o, "n2", 10);
    assert!(env.off(CopyBalance::Short).is_empty());
    ok(remove(&env, o, "n1", false));
    env.invariants_hold();
}

pub fn adopted(bed: &dyn Bed) {
    let env = bed.env();
    env.site("s", &["n1", "n2"]);
    ok(copies(&env, "/", "2"));
    env.put("/f", 10, &["n1"]);
    let o = object(&env, "/f");
    let adopt = |node: &str, size, d| {
        env.call(AdoptReplica { object: o, node: node.into(), size, digest: d })
    };
    refused(adopt("n2", 10, digest(1, 10)), ErrorKind::Invalid);
    refused(adopt("n2", 11, digest(0, 10)), ErrorKind::Invalid);
    refused(adopt("n3", 10, digest(0, 10)), ErrorKind::NotFound);
    ok(adopt("n2", 10, digest(0, 10)));
    assert!(env.off(CopyBalance::Short).is_empty());
    // A node that was lost comes back with its disk.
    ok(env.call(SetNodeState { node: "n1".into(), state: NodeState::Lost }));
    reckon(&env, "n1");
    assert_eq!(env.off(CopyBalance::Short).len(), 1);
    ok(env.call(PutNode { node: node("n1", "s") }));
    ok(adopt("n1", 10, digest(0, 10)));
    assert!(env.off(CopyBalance::Short).is_empty());
    env.invariants_hold();
}

pub fn nodes_and_sites(bed: &dyn Bed) {
    let now = Arc::new(AtomicI64::new(1000));
    let clock = now.clone();
    let clock: Clock = Arc::new(move || Timestamp(clock.load(Ordering::Relaxed)));
    let env = Env::new(bed.open_with(Options { clock, ..Options::default() }));
    refused(env.call(PutNode { node: node("n", "nowhere") }), ErrorKind::NotFound);
    env.site("b", &["n2", "n1"]);
    env.site("a", &[]);
    let sites: Vec<_> = ok(env.call(ListSites {})).into_iter().map(|s| s.name).collect();
    assert_eq!(sites, ["a", "b"]);
    let get = |name: &str| ok(env.call(ListNodes {})).into_iter().find(|n| n.name == name).expect("there");
    assert_eq!((get("n1").heartbeat, get("n1").state), (Timestamp(1000), NodeState::Up));
    now.store(2000, Ordering::Relaxed);
    ok(env.call(SetNodeState { node: "n1".into(), state: NodeState::Down }));
    assert_eq!(get("n1").since, Timestamp(2000));
    now.store(3000, Ordering::Relaxed);
    let report = |node: &str| NodeReport { node: node.into(), capacity_bytes: 9, free_bytes: 8, load_milli: 7 };
    assert_eq!(ok(env.call(Heartbeat { reports: vec![report("n1"), report("n2"), report("n9")] })), 2);
    let n1 = get("n1");
    assert_eq!((n1.state, n1.since, n1.heartbeat), (NodeState::Up, Timestamp(3000), Timestamp(3000)));
    assert_eq!((n1.capacity_bytes, n1.free_bytes, n1.load_milli), (9, 8, 7));
    assert_eq!(get("n2").since, Timestamp(1000));
    ok(env.call(SetNodeState { node: "n2".into(), state: NodeState::ReadOnly }));
    ok(env.call(Heartbeat { reports: vec![report("n2")] }));
    ok(env.call(PutNode { node: Node { address: "elsewhere:1".into(), ..node("n2", "a") } }));
    let n2 = get("n2");
    assert_eq!((n2.state, n2.site.as_str(), n2.address.as_str()), (NodeState::ReadOnly, "a", "elsewhere:1"));
    refused(env.call(SetNodeState { node: "n9".into(), state: NodeState::Up }), ErrorKind::NotFound);
    refused(env.call(PutNode { node: node("n 3", "a") }), ErrorKind::Invalid);
    refused(env.by(&Caller::user("u", &[]), PutNode { node: node("n3", "a") }), ErrorKind::NotPermitted);
    ok(env.by(&Caller::service("n1"), Heartbeat { reports: vec![report("n1")] }));
}

pub fn routes_and_leases(bed: &dyn Bed) {
    let now = Arc::new(AtomicI64::new(0));
    let clock = now.clone();
    let clock: Clock = Arc::new(move || Timestamp(clock.load(Ordering::Relaxed)));
    let env = Env::new(bed.open_with(Options { clock, ..Options::default() }));
    env.site("a", &[]);
    env.site("b", &[]);
    let route = |capacity_bps| env.call(PutRoute { from: "a".into(), to: "b".into(), capacity_bps });
    refused(route(0), ErrorKind::Invalid);
    refused(route(u64::MAX), ErrorKind::Invalid);
    ok(route(1000));
    let take = |holder: &str, rate_bps, least_bps| {
        let (from, to, holder) = ("a".into(), "b".into(), holder.into());
        env.call(TakeLease { from, to, holder, rate_bps, least_bps, ttl_ms: 10 })
    };
    assert_eq!(ok(take("x", 700, 1)).rate_bps, 700);
    assert_eq!(ok(take("y", 700, 1)).rate_bps, 300, "what is left");
    refused(take("z", 700, 1), ErrorKind::Busy);
    refused(take("x", 900, 701), ErrorKind::Busy);
    assert_eq!(ok(take("x", 400, 1)).rate_bps, 400, "an own lease is replaced");
    assert_eq!(ok(env.call(ListRoutes {}))[0].leased_bps, 700);
    let list = || ok(env.call(ListLeases { from: "a".into(), to: "b".into() }));
    assert_eq!(list().iter().map(|l| (l.holder.as_str(), l.rate_bps)).collect::<Vec<_>>(), [("x", 400), ("y", 300)]);
    ok(env.call(DropLease { from: "a".into(), to: "b".into(), holder: "x".into() }));
    now.store(5_000_000, Ordering::Relaxed);
    assert_eq!(ok(take("z", 700, 700)).rate_bps, 700);
    now.store(10_000_000, Ordering::Relaxed);
    assert_eq!(list().iter().map(|l| l.holder.as_str()).collect::<Vec<_>>(), ["z"], "the others ended");
    assert_eq!(ok(take("y", 1000, 1)).rate_bps, 300);
    // A capacity that was lowered below what is leased leaves nothing.
    ok(route(100));
    refused(take("w", 1, 1), ErrorKind::Busy);
    let none = TakeLease {
        from: "b".into(),
        to: "a".into(),
        holder: "x".into(),
        rate_bps: 1,
        least_bps: 1,
        ttl_ms: 10,
    };
    refused(env.call(none), ErrorKind::NotFound);
}
