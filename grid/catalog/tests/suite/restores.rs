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
