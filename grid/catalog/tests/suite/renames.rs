//! Rename.

use super::bed::Bed;
use super::{at, ok, refused};
use kuroshio_catalog::*;

pub fn files(bed: &dyn Bed) {
    let env = bed.env();
    env.mkdir("/d");
    let f = env.create("/f");
    ok(env.rename("/f", "/g"));
    refused(env.stat("/f"), ErrorKind::NotFound);
    assert_eq!(ok(env.stat("/g")).ino, f.ino);
    let h = env.create("/d/h");
    ok(env.rename("/g", "/d/h"));
    assert_eq!(ok(env.stat("/d/h")).ino, f.ino, "over what was there");
    assert_eq!(env.names("/d", 10), ["h"]);
    refused(env.rename("/no", "/x"), ErrorKind::NotFound);
    refused(env.rename("/d/h", "/no/x"), ErrorKind::NotFound);
    refused(env.rename("/d/h", "/d"), ErrorKind::IsDir);
    refused(env.rename("/d/h/", "/x"), ErrorKind::NotDir);
    refused(env.rename("/d/h", "/x/"), ErrorKind::NotDir);
    // Two names of one file: nothing happens.
    ok(env.link("/d/h", "/i"));
    ok(env.rename("/d/h", "/i"));
    assert_eq!(ok(env.stat("/i")).links, 2);
    assert_eq!(ok(env.stat("/d/h")).ino, ok(env.stat("/i")).ino);
    // A link is renamed, not what it leads to, and replaced as a link.
    env.symlink("/l", "i");
    env.create("/j");
    ok(env.rename("/j", "/l"));
    assert_eq!(ok(env.stat("/l")).kind, Kind::File);
    assert_ne!(h.ino, f.ino);
    env.invariants_hold();
}

pub fn directories(bed: &dyn Bed) {
    let env = bed.env();
    env.mkdir("/a");
    env.mkdir("/b");
    let s = env.mkdir("/a/s");
    env.create("/a/s/f");
    ok(env.rename("/a/s", "/b/t"));
    assert_eq!((ok(env.stat("/a")).links, ok(env.stat("/b")).links), (2, 3));
    assert_eq!(ok(env.call(Stat { place: Place::at(s.ino, ".."), follow: true })).ino, ok(env.stat("/b")).ino);
    assert_eq!(env.names("/b/t", 10), ["f"]);
    env.mkdir("/a/empty");
    ok(env.rename("/b/t", "/a/empty"));
    assert_eq!((ok(env.stat("/a")).links, ok(env.stat("/b")).links), (3, 2));
    assert_eq!(ok(env.stat("/a/empty")).ino, s.ino, "over an empty directory");
    env.mkdir("/a/other");
    refused(env.rename("/a/other", "/a/empty"), ErrorKind::NotEmpty);
    env.create("/f");
    refused(env.rename("/a/other", "/f"), ErrorKind::NotDir);
    ok(env.rename("/a/other/", "/a/again/"));
    assert_eq!(ok(env.stat("/a")).links, 4);
    env.invariants_hold();
}

pub fn below_itself(bed: &dyn Bed) {
    let env = bed.env();
    env.mkdir("/a");
    env.mkdir("/a/b");
    env.mkdir("/a/b/c");
    refused(env.rename("/a", "/a/x"), ErrorKind::Invalid);
    refused(env.rename("/a", "/a/b/c/x"), ErrorKind::Invalid);
    refused(env.rename("/a/b/c", "/a"), ErrorKind::NotEmpty);
    let exchange = Rename { from: at("/a"), to: at("/a/b"), mode: RenameMode::Exchange };
    refused(env.call(exchange), ErrorKind::Invalid);
    let exchange = Rename { from: at("/a/b/c"), to: at("/a"), mode: RenameMode::Exchange };
    refused(env.call(exchange), ErrorKind::Invalid);
    assert_eq!(env.names("/a/b", 10), ["c"]);
}

pub fn no_replace_and_exchange(bed: &dyn Bed) {
    let env = bed.env();
    let by = |from: &str, to: &str, mode| env.call(Rename { from: at(from), to: at(to), mode });
    env.mkdir("/d");
    env.mkdir("/d/sub");
    let f = env.create("/f");
    let sub = ok(env.stat("/d/sub"));
    refused(by("/f", "/d/sub", RenameMode::NoReplace), ErrorKind::Exists);
    refused(by("/f", "/no", RenameMode::Exchange), ErrorKind::NotFound);
    ok(by("/f", "/d/sub", RenameMode::Exchange));
    assert_eq!((ok(env.stat("/f")).ino, ok(env.stat("/d/sub")).ino), (sub.ino, f.ino));
    assert_eq!((ok(env.stat("/")).links, ok(env.stat("/d")).links), (4, 2));
    assert_eq!(ok(env.call(Stat { place: at("/f/.."), follow: true })).ino, Ino::ROOT);
    ok(by("/d/sub", "/g", RenameMode::NoReplace));
    assert_eq!(ok(env.stat("/g")).ino, f.ino);
    env.create("/d/one");
    env.create("/d/two");
    let (one, two) = (ok(env.stat("/d/one")).ino, ok(env.stat("/d/two")).ino);
    ok(by("/d/one", "/d/two", RenameMode::Exchange));
    assert_eq!((ok(env.stat("/d/one")).ino, ok(env.stat("/d/two")).ino), (two, one));
    env.invariants_hold();
}

pub fn sticky_and_permissions(bed: &dyn Bed) {
    let env = bed.env();
    let (ann, bob) = (Caller::user("ann", &["g"]), Caller::user("bob", &["g"]));
    env.mkdir("/t");
    env.chmod("/t", 0o1777);
    let make = |who: &Caller, path: &str| {
        ok(env.by(who, Create { place: at(path), mode: 0o644, umask: 0, exclusive: true, open: false }));
    };
    make(&ann, "/t/ann");
    make(&bob, "/t/bob");
    let mv = |who: &Caller, from: &str, to: &str| {
        env.by(who, Rename { from: at(from), to: at(to), mode: RenameMode::Replace })
    };
    refused(env.by(&bob, Unlink { place: at("/t/ann") }), ErrorKind::NotPermitted);
    refused(mv(&bob, "/t/ann", "/t/x"), ErrorKind::NotPermitted);
    refused(mv(&bob, "/t/bob", "/t/ann"), ErrorKind::NotPermitted);
    ok(mv(&ann, "/t/ann", "/t/x"));
    refused(mv(&ann, "/t/x", "/x"), ErrorKind::Access);
    // A directory that changes its parent needs write permission on itself.
    env.mkdir("/t/closed");
    env.chown("/t/closed", "root", "root");
    env.chmod("/t", 0o777);
    refused(mv(&ann, "/t/closed", "/closed"), ErrorKind::Access);
    env.mkdir("/t/open");
    env.chmod("/t/open", 0o777);
    refused(mv(&ann, "/t/closed", "/t/open/c"), ErrorKind::Access);
    ok(mv(&ann, "/t/closed", "/t/moved"));
}
