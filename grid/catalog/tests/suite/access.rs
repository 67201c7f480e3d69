//! Permissions, ACLs, attributes.

use super::bed::Bed;
use super::{Env, at, ok, refused, set};
use kuroshio_catalog::*;

fn ann() -> Caller {
    Caller::user("ann", &["staff", "grid"])
}

fn bob() -> Caller {
    Caller::user("bob", &["staff"])
}

fn eve() -> Caller {
    Caller::user("eve", &["other"])
}

fn may(env: &Env, who: &Caller, path: &str, access: Access) -> bool {
    match env.by(
        who,
        CheckAccess {
            place: at(path),
            access,
        },
    ) {
        Ok(_) => true,
        Err(e) => {
            assert_eq!(e.kind(), ErrorKind::Access, "{e}");
            false
        }
    }
}

fn create(env: &Env, who: &Caller, path: &str, mode: u32) -> Result<Created, CatalogError> {
    env.by(
        who,
        Create {
            place: at(path),
            mode,
            umask: 0o022,
            exclusive: true,
            open: true,
        },
    )
}

fn home(env: &Env) {
    env.mkdir("/desk");
    env.chown("/desk", "ann", "staff");
    env.chmod("/desk", 0o750);
}

pub fn search_read_write(bed: &dyn Bed) {
    let env = bed.env();
    home(&env);
    let f = ok(create(&env, &ann(), "/desk/f", 0o640)).attr;
    assert_eq!(
        (f.owner.as_str(), f.group.as_str(), f.mode),
        ("ann", "staff", 0o640)
    );
    refused(create(&env, &bob(), "/desk/g", 0o644), ErrorKind::Access);
    refused(create(&env, &bob(), "/g", 0o644), ErrorKind::Access);
    refused(
        env.by(
            &eve(),
            Stat {
                place: at("/desk/f"),
                follow: true,
            },
        ),
        ErrorKind::Access,
    );
    refused(
        env.by(
            &eve(),
            Stat {
                place: at("/desk/none"),
                follow: true,
            },
        ),
        ErrorKind::Access,
    );
    ok(env.by(
        &eve(),
        Stat {
            place: at("/desk"),
            follow: true,
        },
    ));
    let list = |who: &Caller, attrs| {
        env.by(
            who,
            ReadDir {
                place: at("/desk"),
                after: None,
                limit: 10,
                attrs,
            },
        )
    };
    assert_eq!(ok(list(&bob(), true)).entries.len(), 1);
    refused(list(&eve(), false), ErrorKind::Access);
    env.chmod("/desk", 0o754);
    assert_eq!(ok(list(&eve(), false)).entries.len(), 1);
    refused(list(&eve(), true), ErrorKind::Access);
    let open = |who: &Caller| env.by(who, OpenRead { place: at("/desk/f") }).map(|o| o.handle);
    let write = |who: &Caller| env.by(who, OpenWrite { place: at("/desk/f") }).map(|d| d.handle);
    ok(open(&ann()));
    ok(open(&bob()));
    refused(open(&eve()), ErrorKind::Access);
    ok(write(&ann()));
    refused(write(&bob()), ErrorKind::Access);
    refused(env.by(&ann(), OpenWrite { place: at("/desk") }), ErrorKind::IsDir);
    refused(
        env.by(&Caller::service("node1"), OpenRead { place: at("/desk/f") }),
        ErrorKind::Access,
    );
    refused(env.by(&bob(), Unlink { place: at("/desk/f") }), ErrorKind::Access);
    ok(env.by(&ann(), Unlink { place: at("/desk/f") }));
}

pub fn a_number_gives_no_right(bed: &dyn Bed) {
    let env = bed.env();
    env.mkdir("/top");
    env.chmod("/top", 0o711);
    env.mkdir("/top/desk");
    env.chown("/top/desk", "ann", "staff");
    env.chmod("/top/desk", 0o700);
    let f = ok(create(&env, &ann(), "/top/desk/f", 0o666)).attr;
    let d = ok(env.by(
        &ann(),
        MakeDir {
            place: at("/top/desk/d"),
            mode: 0o777,
            umask: 0,
        },
    ));
    for who in [ann(), env.admin.clone(), Caller::service("n1")] {
        ok(env.by(
            &who,
            Stat {
                place: Place::ino(f.ino),
                follow: true,
            },
        ));
    }
    refused(
        env.by(
            &bob(),
            Stat {
                place: Place::ino(f.ino),
                follow: true,
            },
        ),
        ErrorKind::Access,
    );
    refused(
        env.by(
            &bob(),
            OpenRead {
                place: Place::ino(f.ino),
            },
        ),
        ErrorKind::Access,
    );
    refused(create_in(&env, &bob(), d.ino), ErrorKind::Access);
    // A path with a leading slash does not begin there.
    ok(env.by(
        &bob(),
        Stat {
            place: Place::at(d.ino, "/top"),
            follow: true,
        },
    ));
    // Removed, but open: for whoever has it open.
    let open = ok(env.by(
        &ann(),
        OpenRead {
            place: at("/top/desk/f"),
        },
    ));
    ok(env.by(
        &ann(),
        Unlink {
            place: at("/top/desk/f"),
        },
    ));
    assert_eq!(
        ok(env.by(
            &ann(),
            Stat {
                place: Place::ino(f.ino),
                follow: true
            }
        ))
        .links,
        0
    );
    refused(
        env.by(
            &bob(),
            Stat {
                place: Place::ino(f.ino),
                follow: true,
            },
        ),
        ErrorKind::Stale,
    );
    ok(env.by(&ann(), Release { handle: open.handle }));
}

fn create_in(env: &Env, who: &Caller, dir: Ino) -> Result<Created, CatalogError> {
    env.by(
        who,
        Create {
            place: Place::at(dir, "x"),
            mode: 0o644,
            umask: 0,
            exclusive: true,
            open: false,
        },
    )
}

pub fn owner_group_other_and_acl(bed: &dyn Bed) {
    let env = bed.env();
    env.create("/f");
    env.chown("/f", "ann", "staff");
    env.chmod("/f", 0o046);
    let (r, w, x) = (Access::READ, Access::WRITE, Access::EXECUTE);
    // The owner's bits count for the owner, also when the group's would grant more.
    assert!(!may(&env, &ann(), "/f", r));
    assert!(may(&env, &bob(), "/f", r) && !may(&env, &bob(), "/f", w));
    assert!(may(&env, &eve(), "/f", r.and(w)));
    assert!(may(&env, &env.admin, "/f", r.and(w)) && !may(&env, &env.admin, "/f", x));
    let entry = |tag, bits| AclEntry { tag, bits };
    let acl = ok(Acl::new(vec![
        entry(AclTag::UserObj, 7),
        entry(AclTag::User("eve".into()), 7),
        entry(AclTag::GroupObj, 0),
        entry(AclTag::Group("grid".into()), 6),
        entry(AclTag::Mask, 5),
        entry(AclTag::Other, 2),
    ]));
    let set_acl = |who: &Caller, acl: Option<Acl>| {
        env.by(
            who,
            SetAcl {
                place: at("/f"),
                kind: AclKind::Access,
                acl,
            },
        )
    };
    refused(set_acl(&bob(), Some(acl.clone())), ErrorKind::NotPermitted);
    ok(set_acl(&ann(), Some(acl.clone())));
    let attr = ok(env.stat("/f"));
    assert_eq!(
        (attr.mode, attr.acl),
        (0o752, true),
        "the mask is the group's bits"
    );
    let got = ok(env.call(GetAcl {
        place: at("/f"),
        kind: AclKind::Access,
    }));
    assert_eq!(got, Some(acl));
    assert!(
        may(&env, &eve(), "/f", r.and(x)) && !may(&env, &eve(), "/f", w),
        "masked"
    );
    assert!(
        !may(&env, &bob(), "/f", w),
        "of a group that matched: others' bits do not count"
    );
    let zoe = Caller::user("zoe", &["grid"]);
    assert!(may(&env, &zoe, "/f", r) && !may(&env, &zoe, "/f", w));
    assert!(may(&env, &Caller::user("joe", &[]), "/f", w));
    // chmod changes the mask.
    env.chmod("/f", 0o724);
    assert!(may(&env, &zoe, "/f", Access::EXISTS) && !may(&env, &zoe, "/f", r));
    ok(set_acl(&ann(), None));
    let attr = ok(env.stat("/f"));
    assert_eq!((attr.mode, attr.acl), (0o704, false));
    // A list that a mode can say is only a mode.
    ok(set_acl(&ann(), Some(Acl::from_mode(0o640))));
    assert_eq!(ok(env.stat("/f")).mode, 0o640);
    assert_eq!(
        ok(env.call(GetAcl {
            place: at("/f"),
            kind: AclKind::Access
        })),
        None
    );
    refused(
        env.by(
            &ann(),
            SetAcl {
                place: at("/f"),
                kind: AclKind::Default,
                acl: None,
            },
        ),
        ErrorKind::Access,
    );
}

pub fn default_acl_and_set_gid(bed: &dyn Bed) {
    let env = bed.env();
    home(&env);
    env.chmod("/desk", 0o2770);
    let made = ok(create(&env, &bob(), "/desk/x", 0o666)).attr;
    assert_eq!((made.group.as_str(), made.mode), ("staff", 0o644));
    let grid = Caller::user("gil", &["grid", "staff"]);
    let dir = ok(env.by(
        &grid,
        MakeDir {
            place: at("/desk/d"),
            mode: 0o777,
            umask: 0o022,
        },
    ));
    assert_eq!(
        (dir.group.as_str(), dir.mode),
        ("staff", 0o2755),
        "the group and its bit are the parent's"
    );
    let acl = ok(Acl::new(vec![
        AclEntry {
            tag: AclTag::UserObj,
            bits: 7,
        },
        AclEntry {
            tag: AclTag::User("eve".into()),
            bits: 7,
        },
        AclEntry {
            tag: AclTag::GroupObj,
            bits: 5,
        },
        AclEntry {
            tag: AclTag::Mask,
            bits: 7,
        },
        AclEntry {
            tag: AclTag::Other,
            bits: 0,
        },
    ]));
    ok(env.call(SetAcl {
        place: at("/desk/d"),
        kind: AclKind::Default,
        acl: Some(acl.clone()),
    }));
    let f = ok(create(&env, &grid, "/desk/d/f", 0o666)).attr;
    assert_eq!(
        (f.mode, f.acl),
        (0o660, true),
        "the mode bounds the mask, the umask is not used"
    );
    let sub = ok(env.by(
        &grid,
        MakeDir {
            place: at("/desk/d/s"),
            mode: 0o755,
            umask: 0o077,
        },
    ));
    assert_eq!(sub.mode & 0o777, 0o750);
    let handed = ok(env.call(GetAcl {
        place: at("/desk/d/s"),
        kind: AclKind::Default,
    }));
    assert_eq!(handed, Some(acl));
}

pub fn who_changes_what(bed: &dyn Bed) {
    let env = bed.env();
    home(&env);
    env.chmod("/desk", 0o777);
    ok(create(&env, &ann(), "/desk/f", 0o644));
    let by = |who: &Caller, change: &dyn Fn(&mut SetAttr)| env.by(who, set("/desk/f", change));
    refused(by(&bob(), &|s| s.mode = Some(0o777)), ErrorKind::NotPermitted);
    refused(
        by(&ann(), &|s| s.owner = Some("bob".into())),
        ErrorKind::NotPermitted,
    );
    ok(by(&ann(), &|s| s.owner = Some("ann".into())));
    refused(
        by(&ann(), &|s| s.group = Some("other".into())),
        ErrorKind::NotPermitted,
    );
    assert_eq!(ok(by(&ann(), &|s| s.mode = Some(0o6711))).mode, 0o6711);
    let moved = ok(by(&ann(), &|s| s.group = Some("grid".into())));
    assert_eq!(
        (moved.group.as_str(), moved.mode),
        ("grid", 0o711),
        "a change of group clears the set-ID bits"
    );
    refused(by(&ann(), &|s| s.mode = Some(0o10000)), ErrorKind::Invalid);
    env.chown("/desk/f", "ann", "foreign");
    assert_eq!(
        ok(by(&ann(), &|s| s.mode = Some(0o2755))).mode,
        0o755,
        "not in the group: no set-group-ID"
    );
    refused(
        env.call(set("/desk/f", |s| s.owner = Some("a b".into()))),
        ErrorKind::Invalid,
    );
    assert_eq!(env.user_usage("ann"), (2, 0));
    env.chown("/desk/f", "bob", "foreign");
    assert_eq!((env.user_usage("ann").0, env.user_usage("bob").0), (1, 1));
    env.symlink("/desk/l", "f");
    let link = SetAttr {
        follow: false,
        ..set("/desk/l", |s| s.mode = Some(0o600))
    };
    refused(env.call(link), ErrorKind::Unsupported);
    env.invariants_hold();
}

pub fn times(bed: &dyn Bed) {
    let env = bed.env();
    env.mkdir("/d");
    let before = ok(env.stat("/d"));
    let f = env.create("/d/f");
    assert!(f.btime == f.mtime && f.mtime == f.ctime && f.ctime == f.atime);
    let after = ok(env.stat("/d"));
    assert!(
        after.mtime >= before.mtime && after.mtime == f.mtime,
        "making a name changes the directory"
    );
    env.chown("/d/f", "ann", "staff");
    env.chmod("/d/f", 0o664);
    let then = Timestamp(-1_500_000_001);
    let at_then = |s: &mut SetAttr| s.mtime = Some(SetTime::At(then));
    let got = ok(env.by(&ann(), set("/d/f", at_then)));
    assert_eq!(got.mtime, then);
    assert!(got.ctime >= f.ctime && got.atime == f.atime);
    refused(env.by(&bob(), set("/d/f", at_then)), ErrorKind::NotPermitted);
    let now = |s: &mut SetAttr| s.atime = Some(SetTime::Now);
    assert!(
        ok(env.by(&bob(), set("/d/f", now))).atime >= f.atime,
        "whoever may write sets the time to now"
    );
    refused(env.by(&eve(), set("/d/f", now)), ErrorKind::Access);
    ok(env.rename("/d/f", "/d/g"));
    let moved = ok(env.stat("/d/g"));
    assert!(moved.mtime == then && moved.ctime >= got.ctime);
}

pub fn extended_attributes(bed: &dyn Bed) {
    let env = bed.env();
    env.create("/f");
    env.chown("/f", "ann", "staff");
    let put = |who: &Caller, name: &str, value: &[u8], mode| {
        env.by(
            who,
            SetXattr {
                place: at("/f"),
                name: name.into(),
                value: value.to_vec(),
                mode,
            },
        )
    };
    let get = |who: &Caller, name: &str| {
        env.by(
            who,
            GetXattr {
                place: at("/f"),
                name: name.into(),
            },
        )
    };
    ok(put(&ann(), "user.b", b"\0one", SetXattrMode::Create));
    ok(put(&ann(), "user.a", b"", SetXattrMode::Any));
    assert_eq!(ok(get(&bob(), "user.b")), b"\0one");
    assert_eq!(ok(get(&bob(), "user.a")), b"");
    refused(
        put(&ann(), "user.b", b"x", SetXattrMode::Create),
        ErrorKind::Exists,
    );
    refused(
        put(&ann(), "user.c", b"x", SetXattrMode::Replace),
        ErrorKind::NoData,
    );
    refused(put(&bob(), "user.c", b"x", SetXattrMode::Any), ErrorKind::Access);
    ok(put(&ann(), "user.b", b"two", SetXattrMode::Replace));
    assert_eq!(ok(get(&ann(), "user.b")), b"two");
    refused(
        put(&ann(), "trusted.t", b"x", SetXattrMode::Any),
        ErrorKind::NotPermitted,
    );
    ok(put(&env.admin, "trusted.t", b"x", SetXattrMode::Any));
    refused(get(&ann(), "trusted.t"), ErrorKind::NoData);
    refused(
        put(&ann(), "system.posix_acl_access", b"x", SetXattrMode::Any),
        ErrorKind::Unsupported,
    );
    refused(
        put(&ann(), "user.", b"x", SetXattrMode::Any),
        ErrorKind::Unsupported,
    );
    let names = |who: &Caller| ok(env.by(who, ListXattr { place: at("/f") }));
    assert_eq!(names(&bob()), [b"user.a", b"user.b"]);
    assert_eq!(names(&env.admin).len(), 3);
    let long = format!("user.{}", "n".repeat(251));
    refused(put(&ann(), &long, b"", SetXattrMode::Any), ErrorKind::NameTooLong);
    refused(
        put(
            &ann(),
            "user.big",
            &vec![0; limits::MAX_XATTR_VALUE + 1],
            SetXattrMode::Any,
        ),
        ErrorKind::Limit,
    );
    let big = vec![0; limits::MAX_XATTR_VALUE];
    for i in 0..3 {
        ok(put(&ann(), &format!("user.big{i}"), &big, SetXattrMode::Any));
    }
    refused(
        put(&ann(), "user.big3", &big, SetXattrMode::Any),
        ErrorKind::NoSpace,
    );
    ok(put(&ann(), "user.big2", &big, SetXattrMode::Any));
    let remove = |name: &str| {
        env.by(
            &ann(),
            RemoveXattr {
                place: at("/f"),
                name: name.into(),
            },
        )
    };
    ok(remove("user.a"));
    refused(remove("user.a"), ErrorKind::NoData);
    // They go with the file.
    env.symlink("/l", "nowhere");
    let link = SetXattr {
        place: at("/l"),
        name: b"user.x".to_vec(),
        value: vec![],
        mode: SetXattrMode::Any,
    };
    refused(env.call(link), ErrorKind::NotFound);
    ok(env.unlink("/f"));
    env.reap_until(1);
    env.invariants_hold();
}

pub fn callers_are_checked(bed: &dyn Bed) {
    let env = bed.env();
    let stat = |who: &Caller| {
        env.by(
            who,
            Stat {
                place: at("/"),
                follow: true,
            },
        )
    };
    for name in ["", "a b", "a:b", "a,b", "a=b", "a/b", "a\nb", &"n".repeat(129)] {
        refused(stat(&Caller::user(name, &[])), ErrorKind::Invalid);
        refused(stat(&Caller::user("ann", &[name])), ErrorKind::Invalid);
    }
    let groups: Vec<String> = (0..=limits::MAX_GROUPS).map(|i| format!("g{i}")).collect();
    let many: Vec<&str> = groups.iter().map(String::as_str).collect();
    refused(stat(&Caller::user("ann", &many)), ErrorKind::Limit);
    ok(stat(&Caller::user("ann", &many[1..])));
    for who in [ann(), Caller::user("admin", &["admin"])] {
        refused(
            env.by(&who, CheckInvariants { limit: 1 }),
            ErrorKind::NotPermitted,
        );
        refused(
            env.by(&who, Reap { limit: 1, ttl_ms: 1 }),
            ErrorKind::NotPermitted,
        );
        let quota = SetQuota {
            subject: QuotaSubject::User("ann".into()),
            max_files: None,
            max_bytes: None,
        };
        refused(env.by(&who, quota), ErrorKind::NotPermitted);
    }
}
