//! Contents: drafts, publishing, open files, the end of contents.

use super::bed::Bed;
use super::{Env, at, commit, digest, fragment, ok, refused};
use kuroshio_catalog::*;

fn open_write(env: &Env, path: &str) -> Draft {
    ok(env.call(OpenWrite { place: at(path) }))
}

fn open_read(env: &Env, path: &str) -> OpenFile {
    ok(env.call(OpenRead { place: at(path) }))
}

fn release(env: &Env, handle: Handle) {
    ok(env.call(Release { handle }));
}

pub fn put_is_one_step(bed: &dyn Bed) {
    let env = bed.env();
    env.site("s", &["n1", "n2"]);
    let a = env.put("/a", 100, &["n1", "n2"]);
    assert_eq!((a.size, a.version, a.fragments, a.links), (100, 1, 1, 1));
    let layout = env.layout("/a");
    assert_eq!(layout.attr, a);
    let f = &layout.fragments[0];
    assert_eq!(f.object, ObjectId { ino: a.ino, generation: a.generation, fragment: 0 });
    assert_eq!((f.size, f.digest), (100, digest(0, 100)));
    let replicas: Vec<_> = f.replicas.iter().map(|r| (r.node.as_str(), r.state)).collect();
    assert_eq!(replicas, [("n1", ReplicaState::Valid), ("n2", ReplicaState::Valid)]);
    // Over a file: another inode, as by a rename.
    let b = env.put("/a", 7, &["n2"]);
    assert_ne!(a.ino, b.ino);
    assert_eq!(env.user_usage("admin"), (2, 7));
    let draft = ok(env.call(Allocate {}));
    let put = |place: &str, draft: Draft, fragments: Vec<NewFragment>, exclusive| {
        env.call(PutFile { place: at(place), draft, mode: 0o600, umask: 0, fragments, exclusive, mtime: None })
    };
    refused(put("/a", draft, vec![], true), ErrorKind::Exists);
    refused(put("/", draft, vec![], false), ErrorKind::IsDir);
    refused(put("/x", draft, vec![fragment(1, 5, &["n1"])], false), ErrorKind::Invalid);
    refused(put("/x", draft, vec![fragment(0, 5, &[])], false), ErrorKind::Invalid);
    refused(put("/x", draft, vec![fragment(0, 5, &["n1", "n1"])], false), ErrorKind::Invalid);
    refused(put("/x", draft, vec![fragment(0, 5, &["n3"])], false), ErrorKind::NotFound);
    refused(put("/x", draft, vec![fragment(0, 1 << 61, &["n1"])], false), ErrorKind::TooBig);
    let twice = vec![fragment(0, 5, &["n1"]), fragment(0, 5, &["n2"])];
    refused(put("/x", draft, twice, false), ErrorKind::Invalid);
    refused(env.stat("/x"), ErrorKind::NotFound);
    let three: Vec<_> = (0..3).map(|i| fragment(i, 5, &["n1"])).collect();
    let c = ok(put("/c", draft, three, true));
    assert_eq!((c.ino, c.size, c.fragments, c.mode), (draft.ino, 15, 3, 0o600));
    refused(put("/d", draft, vec![], true), ErrorKind::Stale);
    assert_eq!(env.reap(), 1, "the content that was put over");
    env.invariants_hold();
}

pub fn a_commit_replaces_and_readers_keep(bed: &dyn Bed) {
    let env = bed.env();
    env.site("s", &["n1"]);
    let a = env.put("/a", 10, &["n1"]);
    let reader = open_read(&env, "/a");
    let draft = open_write(&env, "/a");
    assert_eq!((draft.ino, draft.base), (a.ino, a.generation));
    assert!(draft.generation > a.generation);
    let b = ok(env.call(commit(draft, vec![fragment(0, 25, &["n1"])])));
    assert_eq!((b.size, b.version, b.generation, b.ino), (25, 2, draft.generation, a.ino));
    assert!(b.mtime >= a.mtime);
    assert_eq!(env.user_usage("admin"), (2, 25));
    // The reader's content is there until it is released.
    env.reap();
    let old = reader.fragments[0].object;
    assert_eq!(ok(env.call(GetFragment { object: old })).replicas[0].state, ReplicaState::Valid);
    assert!(env.on_node("n1", Some(ReplicaState::Removing)).is_empty());
    release(&env, reader.handle);
    env.reap();
    refused(env.call(GetFragment { object: old }), ErrorKind::NotFound);
    let removing = env.on_node("n1", Some(ReplicaState::Removing));
    assert_eq!(removing.iter().map(|r| r.object).collect::<Vec<_>>(), [old]);
    ok(env.call(DropReplica { object: old, node: "n1".into() }));
    assert_eq!(env.on_node("n1", None).len(), 1);
    refused(env.call(DropReplica { object: old, node: "n1".into() }), ErrorKind::NotFound);
    // Two drafts: the later commit is what stays, unless it asks for its base.
    let (one, two) = (open_write(&env, "/a"), open_write(&env, "/a"));
    ok(env.call(commit(one, vec![fragment(0, 1, &["n1"])])));
    let mut careful = commit(two, vec![fragment(0, 2, &["n1"])]);
    careful.expect = Some(two.base);
    refused(env.call(careful.clone()), ErrorKind::Stale);
    careful.expect = None;
    careful.mtime = Some(Timestamp(77));
    let done = ok(env.call(careful));
    assert_eq!((done.size, done.mtime), (2, Timestamp(77)));
    // To nothing.
    let empty = open_write(&env, "/a");
    assert_eq!(ok(env.call(commit(empty, vec![]))).size, 0);
    assert!(open_read(&env, "/a").fragments.is_empty());
    env.invariants_hold();
}

pub fn drafts_are_checked(bed: &dyn Bed) {
    let env = bed.env();
    env.site("s", &["n1"]);
    env.mkdir("/d");
    env.chmod("/d", 0o777);
    let (ann, eve) = (Caller::user("ann", &[]), Caller::user("eve", &[]));
    let make = Create { place: at("/d/a"), mode: 0o444, umask: 0, exclusive: true, open: true };
    let draft = ok(env.by(&ann, make)).draft.expect("asked for");
    let one = |draft| commit(draft, vec![fragment(0, 9, &["n1"])]);
    refused(env.by(&eve, one(draft)), ErrorKind::Access);
    let other = Draft { ino: Ino::ROOT, ..draft };
    refused(env.by(&ann, one(other)), ErrorKind::IsDir);
    let other = Draft { ino: Ino(1 << 50), ..draft };
    refused(env.by(&ann, one(other)), ErrorKind::Stale);
    let other = Draft { generation: Generation::EMPTY, ..draft };
    refused(env.by(&ann, one(other)), ErrorKind::Stale);
    let other = Draft { generation: Generation(u64::MAX), ..draft };
    refused(env.by(&ann, one(other)), ErrorKind::Limit);
    // Read-only by its mode, but whoever made it may write what it made.
    ok(env.by(&ann, one(draft)));
    refused(env.by(&ann, one(draft)), ErrorKind::Stale);
    refused(env.by(&ann, AbandonDraft { draft }), ErrorKind::Stale);
    // Superseded: the number is used up all the same.
    env.chmod("/d/a", 0o644);
    let next = ok(env.by(&ann, OpenWrite { place: at("/d/a") }));
    ok(env.by(&ann, one(next)));
    refused(env.by(&ann, one(draft)), ErrorKind::Stale);
    // Others cannot use or release an allocation.
    let mine = ok(env.by(&ann, Allocate {}));
    let put = |who: &Caller, draft| {
        let fragments = vec![fragment(0, 1, &["n1"])];
        let place = at("/d/p");
        env.by(who, PutFile { place, draft, mode: 0o644, umask: 0, fragments, exclusive: true, mtime: None })
    };
    refused(put(&eve, mine), ErrorKind::Stale);
    ok(env.by(&eve, Release { handle: mine.handle }));
    let forged = Draft { ino: Ino(mine.ino.0 + 100), ..mine };
    refused(put(&ann, forged), ErrorKind::Stale);
    ok(put(&ann, mine));
    ok(env.by(&ann, Release { handle: mine.handle }));
    refused(put(&ann, mine), ErrorKind::Stale);
}

pub fn staged_and_kept_fragments(bed: &dyn Bed) {
    let env = bed.env();
    env.site("s", &["n1", "n2"]);
    env.create("/f");
    let draft = open_write(&env, "/f");
    let stage = |draft, f| env.call(StageFragment { draft, fragment: f });
    ok(stage(draft, fragment(1, 20, &["n2"])));
    refused(stage(draft, fragment(1, 20, &["n1"])), ErrorKind::Exists);
    refused(stage(draft, fragment(65_536, 20, &["n1"])), ErrorKind::Limit);
    refused(env.call(commit(draft, vec![fragment(1, 5, &["n1"])])), ErrorKind::Exists);
    refused(env.call(commit(draft, vec![fragment(2, 5, &["n1"])])), ErrorKind::Invalid);
    assert_eq!(ok(env.stat("/f")).size, 0, "nothing is published yet");
    env.reap();
    ok(stage(draft, fragment(2, 30, &["n1"])));
    let attr = ok(env.call(commit(draft, vec![fragment(0, 10, &["n1"])])));
    assert_eq!((attr.size, attr.fragments), (60, 3));
    env.invariants_hold();
    // One fragment anew, the others kept: their objects stay where they are.
    let next = open_write(&env, "/f");
    let mut change = commit(next, vec![fragment(1, 5, &["n1"]), fragment(3, 1, &["n1"])]);
    change.keep = vec![0, 0];
    refused(env.call(change.clone()), ErrorKind::Invalid);
    change.keep = vec![0, 1, 2];
    refused(env.call(change.clone()), ErrorKind::Exists);
    change.keep = vec![0, 2];
    let attr = ok(env.call(change));
    assert_eq!((attr.size, attr.fragments), (10 + 5 + 30 + 1, 4));
    let objects: Vec<_> = env.layout("/f").fragments.iter().map(|f| f.object.generation).collect();
    assert_eq!(objects, [draft.generation, next.generation, draft.generation, next.generation]);
    assert_eq!(env.reap(), 1);
    let removing: Vec<_> = env.on_node("n2", Some(ReplicaState::Removing)).iter().map(|r| r.object).collect();
    assert_eq!(removing, [ObjectId { ino: attr.ino, generation: draft.generation, fragment: 1 }]);
    assert!(env.on_node("n1", Some(ReplicaState::Removing)).is_empty());
    env.invariants_hold();
    // An object of an earlier content is still found by its name.
    let kept = ObjectId { ino: attr.ino, generation: draft.generation, fragment: 2 };
    assert_eq!(ok(env.call(GetFragment { object: kept })).size, 30);
    ok(env.call(AddReplica { object: kept, node: "n2".into() }));
    env.invariants_hold();
}

pub fn unlinked_while_open(bed: &dyn Bed) {
    let env = bed.env();
    env.site("s", &["n1"]);
    let a = env.put("/a", 10, &["n1"]);
    let reader = open_read(&env, "/a");
    let draft = open_write(&env, "/a");
    assert_eq!(ok(env.unlink("/a")).links, 0);
    assert_eq!(env.user_usage("admin"), (1, 0), "not charged any more");
    env.reap();
    let inode = Place::ino(a.ino);
    assert_eq!(ok(env.call(Stat { place: inode.clone(), follow: true })).links, 0);
    refused(env.call(OpenRead { place: inode.clone() }), ErrorKind::Stale);
    refused(env.call(OpenWrite { place: inode.clone() }), ErrorKind::Stale);
    refused(env.call(Link { from: inode.clone(), to: at("/b") }), ErrorKind::NotFound);
    // Its writer may still write.
    assert_eq!(ok(env.call(commit(draft, vec![fragment(0, 33, &["n1"])]))).size, 33);
    assert_eq!(env.user_usage("admin"), (1, 0));
    env.reap();
    assert_eq!(env.on_node("n1", Some(ReplicaState::Valid)).len(), 2);
    release(&env, reader.handle);
    env.reap();
    ok(env.call(Stat { place: inode.clone(), follow: true }));
    release(&env, draft.handle);
    assert_eq!(env.reap(), 1);
    refused(env.call(Stat { place: inode, follow: true }), ErrorKind::Stale);
    assert_eq!(env.on_node("n1", Some(ReplicaState::Removing)).len(), 2);
    env.invariants_hold();
}

pub fn another_service_holds(bed: &dyn Bed) {
    let env = bed.env();
    let Some(other) = bed.second() else { return };
    env.site("s", &["n1"]);
    let a = env.put("/a", 10, &["n1"]);
    env.reap();
    other.reap();
    let reader = open_read(&other, "/a");
    ok(env.unlink("/a"));
    // Before the other service has seen the death, and while it holds the content, nothing goes.
    assert_eq!(env.reap(), 0);
    assert_eq!(other.reap(), 0);
    assert_eq!(env.reap(), 0);
    let object = reader.fragments[0].object;
    assert_eq!(ok(env.call(GetFragment { object })).size, 10);
    release(&other, reader.handle);
    assert_eq!(other.reap(), 1);
    refused(env.call(Stat { place: Place::ino(a.ino), follow: true }), ErrorKind::Stale);
    // A service that does not call any more holds nothing after its time to live.
    let b = env.put("/b", 10, &["n1"]);
    ok(other.call(OpenRead { place: at("/b") }));
    ok(other.call(Reap { limit: 1, ttl_ms: 1 }));
    ok(env.unlink("/b"));
    std::thread::sleep(std::time::Duration::from_millis(2));
    assert_eq!(env.reap(), 1);
    refused(env.call(Stat { place: Place::ino(b.ino), follow: true }), ErrorKind::Stale);
}

pub fn abandoned_drafts(bed: &dyn Bed) {
    let env = bed.env();
    env.site("s", &["n1"]);
    let f = env.create("/f");
    let draft = open_write(&env, "/f");
    ok(env.call(AbandonDraft { draft }));
    let draft = open_write(&env, "/f");
    ok(env.call(StageFragment { draft, fragment: fragment(0, 3, &["n1"]) }));
    ok(env.call(AbandonDraft { draft }));
    let removing = env.on_node("n1", None);
    assert_eq!(removing.len(), 1);
    assert_eq!(removing[0].state, ReplicaState::Removing);
    assert_eq!(removing[0].object.ino, f.ino);
    env.invariants_hold();
}

pub fn reserved_numbers_last(bed: &dyn Bed) {
    let env = bed.env();
    let mut last = ok(env.call(Allocate {}));
    // More than one block of numbers, without any other change.
    for _ in 0..limits::ID_BLOCK {
        let next = ok(env.call(Allocate {}));
        assert!(next.ino > last.ino && next.generation > last.generation);
        ok(env.call(Release { handle: last.handle }));
        last = next;
    }
    let made = env.create("/f").ino;
    drop(env);
    let again = bed.env();
    assert!(again.create("/g").ino > made);
    refused(
        again.call(PutFile {
            place: at("/h"),
            draft: last,
            mode: 0o644,
            umask: 0,
            fragments: vec![],
            exclusive: true,
            mtime: None,
        }),
        ErrorKind::Stale,
    );
}
