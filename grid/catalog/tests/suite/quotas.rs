//! Usage and quotas.

use super::bed::Bed;
use super::{Env, at, commit, fragment, ok, refused};
use kuroshio_catalog::*;

fn quota(env: &Env, subject: QuotaSubject, max_files: Option<u64>, max_bytes: Option<u64>) {
    ok(env.call(SetQuota { subject, max_files, max_bytes }));
}

fn usage(env: &Env, subject: QuotaSubject) -> (u64, u64) {
    let u = ok(env.call(GetUsage { subject }));
    (u.files, u.bytes)
}

fn open_house(env: &Env) {
    env.site("s", &["n1"]);
    env.mkdir("/d");
    env.chmod("/d", 0o777);
}

pub fn of_users_and_groups(bed: &dyn Bed) {
    let env = bed.env();
    open_house(&env);
    let ann = Caller::user("ann", &["g"]);
    let bob = Caller::user("bob", &["g"]);
    quota(&env, QuotaSubject::User("ann".into()), Some(2), Some(100));
    ok(env.put_by(&ann, "/d/a", 60, &["n1"]));
    refused(env.put_by(&ann, "/d/b", 41, &["n1"]), ErrorKind::Quota);
    ok(env.put_by(&ann, "/d/b", 40, &["n1"]));
    assert_eq!(env.user_usage("ann"), (2, 100));
    refused(env.by(&ann, MakeDir { place: at("/d/x"), mode: 0o755, umask: 0 }), ErrorKind::Quota);
    refused(env.by(&ann, Symlink { place: at("/d/x"), target: b"a".to_vec() }), ErrorKind::Quota);
    assert_eq!(env.user_usage("ann"), (2, 100), "what was refused is not counted");
    // Less is always possible, also beyond a quota that was lowered.
    quota(&env, QuotaSubject::User("ann".into()), Some(1), Some(10));
    let draft = ok(env.by(&ann, OpenWrite { place: at("/d/a") }));
    ok(env.by(&ann, commit(draft, vec![fragment(0, 50, &["n1"])])));
    let draft = ok(env.by(&ann, OpenWrite { place: at("/d/a") }));
    refused(env.by(&ann, commit(draft, vec![fragment(0, 51, &["n1"])])), ErrorKind::Quota);
    ok(env.by(&ann, Unlink { place: at("/d/b") }));
    assert_eq!(env.user_usage("ann"), (1, 50));
    quota(&env, QuotaSubject::User("ann".into()), None, None);
    quota(&env, QuotaSubject::Group("g".into()), None, Some(120));
    ok(env.put_by(&bob, "/d/c", 70, &["n1"]));
    refused(env.put_by(&bob, "/d/e", 1, &["n1"]), ErrorKind::Quota);
    assert_eq!(usage(&env, QuotaSubject::Group("g".into())), (2, 120));
    // Giving a file away needs room there.
    quota(&env, QuotaSubject::User("zoe".into()), Some(0), None);
    refused(env.call(super::set("/d/a", |s| s.owner = Some("zoe".into()))), ErrorKind::Quota);
    assert_eq!(ok(env.stat("/d/a")).owner, "ann");
    // Who may ask.
    refused(env.by(&bob, GetUsage { subject: QuotaSubject::User("ann".into()) }), ErrorKind::Access);
    ok(env.by(&bob, GetUsage { subject: QuotaSubject::Group("g".into()) }));
    let all = ok(env.call(ListUsage { kind: QuotaKind::User, after: Some("admin".into()), limit: 10 }));
    assert_eq!(all.iter().map(|u| u.name.as_str()).collect::<Vec<_>>(), ["ann", "bob", "zoe"]);
    env.invariants_hold();
}

pub fn of_directories(bed: &dyn Bed) {
    let env = bed.env();
    open_house(&env);
    let dir = |path: &str| QuotaSubject::Dir(at(path));
    env.mkdir("/d/q");
    quota(&env, dir("/d/q"), Some(4), Some(100));
    env.mkdir("/d/q/sub");
    env.mkdir("/d/q/sub/deep");
    quota(&env, dir("/d/q/sub/deep"), None, Some(60));
    env.put("/d/q/a", 30, &["n1"]);
    refused(env.put_by(&env.admin, "/d/q/sub/deep/b", 61, &["n1"]), ErrorKind::Quota);
    refused(env.put_by(&env.admin, "/d/q/sub/b", 71, &["n1"]), ErrorKind::Quota);
    env.put("/d/q/sub/deep/b", 60, &["n1"]);
    assert_eq!(usage(&env, dir("/d/q")), (4, 90));
    assert_eq!(usage(&env, dir("/d/q/sub/deep")), (1, 60));
    refused(
        env.call(Create { place: at("/d/q/x"), mode: 0o644, umask: 0, exclusive: true, open: false }),
        ErrorKind::Quota,
    );
    refused(env.call(GetUsage { subject: dir("/d") }), ErrorKind::NotFound);
    let not_empty = SetQuota { subject: dir("/d"), max_files: None, max_bytes: None };
    refused(env.call(not_empty), ErrorKind::NotEmpty);
    env.invariants_hold();
    ok(env.unlink("/d/q/sub/deep/b"));
    ok(env.call(RemoveDir { place: at("/d/q/sub/deep") }));
    assert_eq!(usage(&env, dir("/d/q")), (2, 30));
    let listed = ok(env.call(ListUsage { kind: QuotaKind::Dir, after: None, limit: 10 }));
    assert_eq!(listed.len(), 1, "the row goes with the directory");
    env.invariants_hold();
}

pub fn moves_between_quotas(bed: &dyn Bed) {
    let env = bed.env();
    open_house(&env);
    let dir = |path: &str| QuotaSubject::Dir(at(path));
    for q in ["/d/p", "/d/q"] {
        env.mkdir(q);
        quota(&env, dir(q), Some(10), Some(100));
    }
    env.put("/d/p/f", 40, &["n1"]);
    ok(env.rename("/d/p/f", "/d/q/f"));
    assert_eq!((usage(&env, dir("/d/p")), usage(&env, dir("/d/q"))), ((0, 0), (1, 40)));
    env.put("/d/p/g", 80, &["n1"]);
    refused(env.rename("/d/p/g", "/d/q/g"), ErrorKind::Quota);
    assert_eq!(usage(&env, dir("/d/p")), (1, 80));
    refused(env.link("/d/p/g", "/d/q/g"), ErrorKind::CrossQuota);
    ok(env.link("/d/p/g", "/d/p/h"));
    refused(env.rename("/d/p/g", "/d/g"), ErrorKind::CrossQuota);
    env.mkdir("/d/p/dir");
    refused(env.rename("/d/p/dir", "/d/dir"), ErrorKind::CrossQuota);
    // The directory with the quota itself may move where its charge stays.
    env.mkdir("/d/other");
    ok(env.rename("/d/p", "/d/other/p"));
    refused(env.rename("/d/other/p", "/d/q/p"), ErrorKind::CrossQuota);
    ok(env.rename("/d/q/f", "/d/f"));
    assert_eq!(usage(&env, dir("/d/q")), (0, 0));
    env.put("/d/q/f", 5, &["n1"]);
    let exchange = Rename { from: at("/d/f"), to: at("/d/q/f"), mode: RenameMode::Exchange };
    ok(env.call(exchange));
    assert_eq!(usage(&env, dir("/d/q")), (1, 40));
    ok(env.rename("/d/f", "/d/q/f"));
    assert_eq!(usage(&env, dir("/d/q")), (1, 5), "the one that was there is gone");
    env.invariants_hold();
}

pub fn totals(bed: &dyn Bed) {
    let env = bed.env();
    open_house(&env);
    env.site("s", &["n1", "n2", "n3"]);
    env.put("/d/a", 30, &["n1", "n2"]);
    ok(env.link("/d/a", "/d/b"));
    let state = |node: &str, state| ok(env.call(SetNodeState { node: node.into(), state }));
    state("n2", NodeState::ReadOnly);
    state("n3", NodeState::Down);
    let t = ok(env.call(StatFs {}));
    assert_eq!((t.inodes, t.used_bytes), (3, 30));
    assert_eq!((t.capacity_bytes, t.free_bytes, t.nodes_up, t.nodes), (2000, 600, 1, 3));
}
