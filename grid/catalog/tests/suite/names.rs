//! Names: making, looking up, linking, listing, removing.

use super::bed::Bed;
use super::{Env, at, ok, refused};
use kuroshio_catalog::*;

pub fn make_and_look_up(bed: &dyn Bed) {
    let env = bed.env();
    let root = ok(env.stat("/"));
    assert_eq!(
        (root.ino, root.kind, root.links, root.mode),
        (Ino::ROOT, Kind::Dir, 2, 0o755)
    );
    let a = env.mkdir("/a");
    let b = env.mkdir("/a/b");
    let f = env.create("/a/b/f");
    assert_eq!((a.kind, a.links, a.mode), (Kind::Dir, 2, 0o755));
    assert_eq!(
        (f.kind, f.links, f.size, f.generation),
        (Kind::File, 1, 0, Generation::EMPTY)
    );
    assert_eq!((f.owner.as_str(), f.group.as_str()), ("admin", "admin"));
    assert_eq!(f.copies, CopyRule::Count(1));
    assert_eq!(ok(env.stat("/")).links, 3);
    assert_eq!(ok(env.stat("/a")).links, 3);
    assert_eq!(ok(env.stat("a/b/f")), f);
    assert_eq!(
        ok(env.call(Stat {
            place: Place::at(b.ino, "f"),
            follow: true
        })),
        f
    );
    assert_eq!(
        ok(env.call(Stat {
            place: Place::ino(f.ino),
            follow: true
        })),
        f
    );
    let numbers = [root.ino, a.ino, b.ino, f.ino];
    assert!(numbers.windows(2).all(|w| w[0] < w[1]), "{numbers:?}");
    refused(env.stat("/a/c"), ErrorKind::NotFound);
    refused(env.stat("/c/b"), ErrorKind::NotFound);
    refused(env.stat("/a/b/f/g"), ErrorKind::NotDir);
    refused(
        env.call(Stat {
            place: Place::ino(Ino(1 << 40)),
            follow: true,
        }),
        ErrorKind::Stale,
    );
    refused(
        env.call(Stat {
            place: Place::ino(Ino(u64::MAX)),
            follow: true,
        }),
        ErrorKind::Limit,
    );
}

pub fn create_opens_or_refuses(bed: &dyn Bed) {
    let env = bed.env();
    let create = |path: &str, exclusive, open| {
        env.call(Create {
            place: at(path),
            mode: 0o6777,
            umask: 0o22,
            exclusive,
            open,
        })
    };
    let new = ok(create("/f", false, true));
    assert!(new.created && new.draft.is_some());
    assert_eq!(new.attr.mode, 0o6755, "the mask takes permission bits only");
    let again = ok(create("/f", false, false));
    assert!(!again.created && again.draft.is_none());
    assert_eq!(again.attr, new.attr);
    refused(create("/f", true, false), ErrorKind::Exists);
    env.mkdir("/d");
    refused(create("/d", false, true), ErrorKind::IsDir);
    refused(create("/d", true, true), ErrorKind::Exists);
    refused(create("/no/f", false, true), ErrorKind::NotFound);
    refused(create("/f/g", false, true), ErrorKind::NotDir);
    // A dangling link is followed, unless the name must be new.
    env.symlink("/l", "d/target");
    refused(create("/l", true, false), ErrorKind::Exists);
    let through = ok(create("/l", false, true));
    assert!(through.created);
    assert_eq!(ok(env.stat("/d/target")).ino, through.attr.ino);
    refused(
        env.call(MakeDir {
            place: at("/l"),
            mode: 0o755,
            umask: 0,
        }),
        ErrorKind::Exists,
    );
}

pub fn dots_slashes_and_limits(bed: &dyn Bed) {
    let env = bed.env();
    let a = env.mkdir("/a/");
    let b = env.mkdir("//a///b");
    assert_eq!(ok(env.stat("/a/./b/../b/.")).ino, b.ino);
    assert_eq!(ok(env.stat("/../../a")).ino, a.ino);
    assert_eq!(
        ok(env.call(Stat {
            place: Place::at(b.ino, ".."),
            follow: true
        }))
        .ino,
        a.ino
    );
    assert_eq!(
        ok(env.call(Stat {
            place: Place::at(b.ino, "/a"),
            follow: true
        }))
        .ino,
        a.ino
    );
    let f = env.create("/a/f");
    refused(env.stat("/a/f/"), ErrorKind::NotDir);
    refused(env.stat("/a/f/."), ErrorKind::NotDir);
    refused(env.unlink("/a/f/"), ErrorKind::NotDir);
    refused(
        env.call(Create {
            place: at("/a/g/"),
            mode: 0o644,
            umask: 0,
            exclusive: false,
            open: false,
        }),
        ErrorKind::IsDir,
    );
    refused(
        env.call(Symlink {
            place: at("/a/g/"),
            target: b"x".to_vec(),
        }),
        ErrorKind::NotFound,
    );
    refused(env.link("/a/f", "/a/g/"), ErrorKind::NotFound);
    for special in ["/", ".", "/a/.", "/a/.."] {
        refused(
            env.call(MakeDir {
                place: at(special),
                mode: 0o755,
                umask: 0,
            }),
            ErrorKind::Exists,
        );
        refused(env.unlink(special), ErrorKind::IsDir);
        refused(env.rename(special, "/x"), ErrorKind::Busy);
        refused(env.rename("/a/f", special), ErrorKind::Busy);
    }
    let long = "n".repeat(limits::MAX_NAME);
    env.create(&long);
    refused(env.stat(&format!("{long}n")), ErrorKind::NameTooLong);
    refused(
        env.call(MakeDir {
            place: at(&format!("{long}n")),
            mode: 0o755,
            umask: 0,
        }),
        ErrorKind::NameTooLong,
    );
    refused(env.stat(&"a/../".repeat(1000)), ErrorKind::NameTooLong);
    refused(
        env.call(Stat {
            place: Place::path(b"a\0b"),
            follow: true,
        }),
        ErrorKind::Invalid,
    );
    // Names are bytes.
    let odd = Place::path(b"\xff\x01 '\"%");
    let made = ok(env.call(MakeDir {
        place: odd.clone(),
        mode: 0o755,
        umask: 0,
    }));
    assert_eq!(
        ok(env.call(Stat {
            place: odd,
            follow: true
        }))
        .ino,
        made.ino
    );
    assert_eq!(f.kind, Kind::File);
}

pub fn symbolic_links(bed: &dyn Bed) {
    let env = bed.env();
    env.mkdir("/d");
    let f = env.create("/d/f");
    let l = env.symlink("/l", "d/f");
    assert_eq!((l.kind, l.size, l.mode), (Kind::Symlink, 3, 0o777));
    let follow = |path: &str| {
        env.call(Stat {
            place: at(path),
            follow: true,
        })
    };
    assert_eq!(ok(follow("/l")).ino, f.ino);
    assert_eq!(ok(env.stat("/l")).ino, l.ino);
    assert_eq!(ok(env.call(ReadLink { place: at("/l") })), b"d/f");
    refused(env.call(ReadLink { place: at("/d/f") }), ErrorKind::Invalid);
    env.symlink("/d/up", "..");
    assert_eq!(
        ok(env.stat("/d/up/d/up/d/f")).ino,
        f.ino,
        "links on the way are followed"
    );
    env.symlink("/d/abs", "/d/");
    assert_eq!(ok(follow("/d/abs/f")).ino, f.ino);
    assert_eq!(
        ok(env.stat("/d/abs/")).kind,
        Kind::Dir,
        "a slash at the end follows"
    );
    env.symlink("/slash", "d/f/");
    refused(follow("/slash"), ErrorKind::NotDir);
    env.symlink("/dangling", "nowhere");
    refused(follow("/dangling"), ErrorKind::NotFound);
    env.symlink("/x", "y");
    env.symlink("/y", "x");
    refused(follow("/x"), ErrorKind::Loop);
    env.symlink("/c0", "d/f");
    for i in 1..=40 {
        env.symlink(&format!("/c{i}"), &format!("c{}", i - 1));
    }
    assert_eq!(ok(follow("/c39")).ino, f.ino, "40 links");
    refused(follow("/c40"), ErrorKind::Loop);
    refused(
        env.call(Symlink {
            place: at("/z"),
            target: Vec::new(),
        }),
        ErrorKind::Invalid,
    );
    refused(
        env.call(Symlink {
            place: at("/z"),
            target: vec![b'a'; 4096],
        }),
        ErrorKind::NameTooLong,
    );
    ok(env.unlink("/l"));
    assert_eq!(ok(env.stat("/d/f")).links, 1, "the link went, not the file");
}

pub fn hard_links(bed: &dyn Bed) {
    let env = bed.env();
    env.mkdir("/d");
    let f = env.create("/f");
    assert_eq!(ok(env.link("/f", "/d/g")).links, 2);
    assert_eq!(ok(env.stat("/d/g")).ino, f.ino);
    refused(env.link("/f", "/d/g"), ErrorKind::Exists);
    refused(env.link("/d", "/e"), ErrorKind::NotPermitted);
    refused(env.link("/no", "/e"), ErrorKind::NotFound);
    let l = env.symlink("/l", "f");
    assert_eq!(ok(env.link("/l", "/l2")).ino, l.ino, "the link itself");
    ok(env.unlink("/f"));
    assert_eq!(ok(env.stat("/d/g")).links, 1);
    assert_eq!(ok(env.unlink("/d/g")).links, 0);
    assert_eq!(
        env.user_usage("admin").0,
        2 + 1,
        "root, d and the symbolic link with its two names"
    );
    env.invariants_hold();
}

pub fn directories_are_removed_when_empty(bed: &dyn Bed) {
    let env = bed.env();
    let rmdir = |path: &str| env.call(RemoveDir { place: at(path) });
    env.mkdir("/a");
    env.mkdir("/a/b");
    refused(rmdir("/a"), ErrorKind::NotEmpty);
    refused(rmdir("/a/."), ErrorKind::Invalid);
    refused(rmdir("/a/b/.."), ErrorKind::NotEmpty);
    refused(rmdir("/"), ErrorKind::Busy);
    refused(rmdir("/c"), ErrorKind::NotFound);
    refused(env.unlink("/a"), ErrorKind::IsDir);
    ok(rmdir("/a/b/"));
    assert_eq!(ok(env.stat("/a")).links, 2);
    env.create("/a/f");
    refused(rmdir("/a"), ErrorKind::NotEmpty);
    refused(rmdir("/a/f"), ErrorKind::NotDir);
    ok(env.unlink("/a/f"));
    let a = ok(env.stat("/a"));
    ok(rmdir("/a"));
    assert_eq!(ok(env.stat("/")).links, 2);
    let late = Create {
        place: Place::at(a.ino, "f"),
        mode: 0o644,
        umask: 0,
        exclusive: true,
        open: false,
    };
    refused(env.call(late), ErrorKind::Stale);
    assert_eq!(env.user_usage("admin").0, 1);
}

pub fn listing_in_pages(bed: &dyn Bed) {
    let env = bed.env();
    env.mkdir("/d");
    assert!(env.names("/d", 1).is_empty());
    for i in 0..25 {
        env.create(&format!("/d/{i:02}"));
    }
    let all: Vec<String> = (0..25).map(|i| format!("{i:02}")).collect();
    for page in [1, 7, 25, 26] {
        assert_eq!(env.names("/d", page), all);
    }
    // What is there all the time is listed once, whatever comes and goes.
    let first = ok(env.call(ReadDir {
        place: at("/d"),
        after: None,
        limit: 10,
        attrs: true,
    }));
    assert!(first.more);
    assert_eq!(first.entries[9].name, b"09");
    assert_eq!(first.entries[9].attr.as_ref(), Some(&ok(env.stat("/d/09"))));
    ok(env.unlink("/d/09"));
    ok(env.unlink("/d/15"));
    env.create("/d/0a");
    env.create("/d/11b");
    let after = first.entries.last().map(|e| e.name.clone());
    let rest = ok(env.call(ReadDir {
        place: at("/d"),
        after,
        limit: 100,
        attrs: false,
    }));
    let rest: Vec<_> = rest
        .entries
        .iter()
        .map(|e| String::from_utf8_lossy(&e.name).into_owned())
        .collect();
    let mut expected: Vec<String> = all[10..].iter().filter(|n| *n != "15").cloned().collect();
    expected.extend(["0a".to_owned(), "11b".to_owned()]);
    expected.sort();
    assert_eq!(rest, expected);
    refused(
        env.call(ReadDir {
            place: at("/d"),
            after: None,
            limit: 0,
            attrs: false,
        }),
        ErrorKind::Invalid,
    );
    refused(
        env.call(ReadDir {
            place: at("/d"),
            after: None,
            limit: 10_001,
            attrs: false,
        }),
        ErrorKind::Invalid,
    );
    refused(
        env.call(ReadDir {
            place: at("/d/00"),
            after: None,
            limit: 1,
            attrs: false,
        }),
        ErrorKind::NotDir,
    );
}

pub fn paths_of_inodes(bed: &dyn Bed) {
    let env = bed.env();
    let path = |env: &Env, ino: Ino| env.call(PathOf { ino }).map(|p| String::from_utf8(p).unwrap());
    env.mkdir("/a");
    let b = env.mkdir("/a/b");
    let f = env.create("/a/b/f");
    assert_eq!(ok(path(&env, Ino::ROOT)), "/");
    assert_eq!(ok(path(&env, b.ino)), "/a/b");
    assert_eq!(ok(path(&env, f.ino)), "/a/b/f");
    ok(env.rename("/a/b", "/c"));
    ok(env.rename("/c/f", "/a/g"));
    assert_eq!(ok(path(&env, b.ino)), "/c");
    assert_eq!(ok(path(&env, f.ino)), "/a/g");
    refused(
        env.by(&Caller::user("u", &[]), PathOf { ino: f.ino }),
        ErrorKind::NotPermitted,
    );
}

pub fn fifos_and_sockets(bed: &dyn Bed) {
    let env = bed.env();
    env.site("s", &["n1"]);
    let make = |path: &str, kind| {
        env.call(MakeSpecial {
            place: at(path),
            kind,
            mode: 0o666,
            umask: 0o022,
        })
    };
    let fifo = ok(make("/p", Kind::Fifo));
    assert_eq!(
        (fifo.kind, fifo.mode, fifo.links, fifo.size),
        (Kind::Fifo, 0o644, 1, 0)
    );
    assert_eq!(ok(make("/s", Kind::Socket)).kind, Kind::Socket);
    let page = ok(env.call(ReadDir {
        place: at("/"),
        after: None,
        limit: 10,
        attrs: false,
    }));
    let kinds: Vec<Kind> = page.entries.iter().map(|e| e.kind).collect();
    assert_eq!(kinds, [Kind::Fifo, Kind::Socket]);
    refused(make("/p", Kind::Fifo), ErrorKind::Exists);
    refused(make("/f", Kind::File), ErrorKind::Invalid);
    refused(make("/no/p", Kind::Fifo), ErrorKind::NotFound);
    refused(env.call(OpenRead { place: at("/p") }), ErrorKind::Invalid);
    refused(env.call(OpenWrite { place: at("/p") }), ErrorKind::Invalid);
    ok(env.link("/p", "/q"));
    ok(env.rename("/q", "/r"));
    assert_eq!(ok(env.unlink("/p")).links, 1);
    // A file takes its place, as any name's.
    env.put("/r", 10, &["n1"]);
    assert_eq!(ok(env.stat("/r")).kind, Kind::File);
    ok(env.unlink("/s"));
    refused(env.stat("/s"), ErrorKind::NotFound);
    assert_eq!(env.reap(), 0, "nothing of them waits for its end");
    env.invariants_hold();
}
