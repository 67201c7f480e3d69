//! A catalog that has lost its memory: files by their old numbers, numbers that are taken.

use super::bed::Bed;
use super::{Env, at, fragment, ok, refused};
use kuroshio_catalog::*;

fn restore(path: &str, ino: u64, generation: u64, fragments: Vec<NewFragment>) -> RestoreFile {
    RestoreFile {
        place: at(path),
        ino: Ino(ino),
        generation: Generation(generation),
        owner: "ann".into(),
        group: "physics".into(),
        mode: 0o4640,
        rule: CopyRule::Count(2),
        mtime: Timestamp(77),
        fragments,
    }
}

fn two(size: u64) -> Vec<NewFragment> {
    vec![fragment(0, size, &["n1", "n2"])]
}

pub fn a_file_with_its_numbers(bed: &dyn Bed) {
    let env: Env = bed.env();
    env.site("s", &["n1", "n2"]);
    env.mkdir("/d");
    ok(env.call(RaiseNumbers { highest: 90_001 }));
    let a = ok(env.call(restore("/d/a", 90_000, 90_001, two(100))));
    assert_eq!(
        (a.ino.0, a.generation.0, a.size, a.links),
        (90_000, 90_001, 100, 1)
    );
    assert_eq!(
        (a.owner.as_str(), a.group.as_str(), a.mode),
        ("ann", "physics", 0o640)
    );
    assert_eq!((a.mtime, a.copies.total()), (Timestamp(77), 2));
    assert_eq!(env.layout("/d/a").fragments[0].replicas.len(), 2);
    assert_eq!(env.user_usage("ann"), (1, 100));
    // One copy where two are wanted: it is to be made.
    let one = vec![fragment(0, 5, &["n1"])];
    ok(env.call(restore("/d/b", 80_000, 80_001, one)));
    let short = ok(env.call(ListOffCopies {
        balance: CopyBalance::Short,
        after: None,
        limit: 10,
    }));
    assert_eq!(short.len(), 1);
    assert_eq!(short[0].fragment.object.ino.0, 80_000);

    refused(
        env.call(restore("/d/a", 70_000, 70_001, two(1))),
        ErrorKind::Exists,
    );
    refused(
        env.call(restore("/d/c", 90_000, 70_001, two(1))),
        ErrorKind::Stale,
    );
    refused(
        env.call(restore("/none/c", 70_000, 70_001, two(1))),
        ErrorKind::NotFound,
    );
    refused(
        env.call(restore("/d/c", 70_000, 70_001, vec![fragment(1, 5, &["n1"])])),
        ErrorKind::Invalid,
    );
    let user = Caller::user("ann", &["physics"]);
    refused(
        env.by(&user, restore("/d/c", 70_000, 70_001, two(1))),
        ErrorKind::NotPermitted,
    );
    refused(
        env.by(&user, RaiseNumbers { highest: 1 }),
        ErrorKind::NotPermitted,
    );
    // A later content takes the place of the one that the catalog knows.
    let later = ok(env.call(Commit {
        draft: Draft {
            ino: Ino(80_000),
            generation: Generation(80_500),
            handle: Handle(0),
            base: Generation::EMPTY,
        },
        fragments: two(9),
        keep: Vec::new(),
        expect: None,
        mtime: None,
    }));
    assert_eq!((later.generation.0, later.size), (80_500, 9));
}

pub fn numbers_are_raised(bed: &dyn Bed) {
    let env: Env = bed.env();
    let first = env.create("/a");
    let next = ok(env.call(RaiseNumbers { highest: 0 }));
    assert!(next > first.ino.0, "{next}");
    // Of a block that is reserved already, and beyond it.
    for high in [next + 7, next + 100_000] {
        ok(env.call(RaiseNumbers { highest: high }));
        for n in 0..3 {
            let made = env.create(&format!("/{high}-{n}"));
            assert!(made.ino.0 > high, "{}", made.ino);
        }
        let draft = ok(env.call(Allocate {}));
        assert!(draft.ino.0 > high && draft.generation.0 > high);
    }
    // What is below changes nothing.
    assert!(ok(env.call(RaiseNumbers { highest: 5 })) > next + 100_000);
}

/// More of each than fits on a page of the dump.
pub fn a_dump_is_all_that_only_the_catalog_knows(bed: &dyn Bed) {
    let env: Env = bed.env();
    env.mkdir("/d");
    let mut wanted = std::collections::BTreeSet::new();
    for n in 0..1_050 {
        let path = format!("/d/{n:04}");
        let made = ok(env.call(Create {
            place: at(&path),
            mode: 0o644,
            umask: 0,
            exclusive: true,
            open: false,
        }));
        ok(env.call(SetXattr {
            place: at(&path),
            name: b"user.n".to_vec(),
            value: vec![7; 3],
            mode: SetXattrMode::Any,
        }));
        wanted.insert((made.attr.ino, path.into_bytes()[3..].to_vec()));
    }
    ok(env.call(Symlink {
        place: at("/link"),
        target: b"d/0001".to_vec(),
    }));
    let user = QuotaSubject::User("ann".into());
    ok(env.call(SetQuota {
        subject: user,
        max_files: Some(9),
        max_bytes: None,
    }));
    let rows = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let theirs = rows.clone();
    let sink = DumpSink::new(move |row| {
        theirs.lock().unwrap().push(row);
        Ok(())
    });
    let count = ok(env.call(Dump { sink }));
    let rows = std::mem::take(&mut *rows.lock().unwrap());
    assert_eq!(rows.len() as u64, count);
    let DumpRow::Begin { next, .. } = rows[0] else {
        panic!("{:?}", rows[0]);
    };
    let (mut names, mut inodes, mut xattrs, mut bounds, mut targets) = (Default::default(), 0, 0, 0, 0);
    let d = ok(env.stat("/d")).ino;
    for row in &rows {
        match row {
            DumpRow::Begin { .. } => {}
            DumpRow::Inode(i) => {
                assert!(i.attr.ino.0 < next, "{i:?}");
                inodes += 1;
                targets += u64::from(i.target.as_deref() == Some(b"d/0001"));
            }
            DumpRow::Name { parent, name, ino } if *parent == d => {
                std::collections::BTreeSet::insert(&mut names, (*ino, name.clone()));
            }
            DumpRow::Name { .. } => {}
            DumpRow::Xattr { value, .. } => {
                assert_eq!(value, &[7; 3]);
                xattrs += 1;
            }
            DumpRow::Bound {
                kind,
                name,
                max_files,
                max_bytes,
            } => {
                assert_eq!((*kind, name.as_str()), (QuotaKind::User, "ann"));
                assert_eq!((*max_files, *max_bytes), (Some(9), None));
                bounds += 1;
            }
        }
    }
    assert!(names == wanted, "{} of {} names", names.len(), wanted.len());
    assert_eq!((inodes, xattrs, bounds, targets), (1_050 + 3, 1_050, 1, 1));
    let full = DumpSink::new(|_| Err("the disk is full".into()));
    let refusal = env.call(Dump { sink: full }).expect_err("refused");
    assert!(refusal.to_string().contains("the disk is full"), "{refusal}");
    let user = Caller::user("ann", &["physics"]);
    let sink = DumpSink::new(|_| Ok(()));
    refused(env.by(&user, Dump { sink }), ErrorKind::NotPermitted);
}
