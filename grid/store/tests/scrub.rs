//! Bit rot is found, told and moved away; fsck lists exactly what is there.

mod common;

use common::*;
use kuroshio_store::{Finding, FsckState, Limits, ObjectId, ScrubOptions, Stop, Store, StoreError};
use std::collections::BTreeMap;

const FAST: ScrubOptions = ScrubOptions {
    rate_bytes_per_s: 0,
    quarantine: true,
};

fn scrub(store: &Store, options: &ScrubOptions) -> (kuroshio_store::ScrubReport, Vec<Finding>) {
    let mut findings = Vec::new();
    let report = store
        .scrub_pass(options, &Stop::default(), &mut |f| findings.push(f.clone()))
        .expect("scrub");
    (report, findings)
}

#[test]
fn every_kind_of_rot_is_found_and_moved_away() {
    let dir = tempfile::tempdir().expect("folder");
    let store = open(dir.path());
    let len = (3 << 20) + 500;
    for n in 0..8 {
        store.put(id(n), &meta("/a"), &bytes(n, len), None).expect("put");
    }
    let (report, findings) = scrub(&store, &FAST);
    assert_eq!((report.pass, report.objects, report.findings), (1, 8, 0));
    assert_eq!((report.bytes, report.complete), (8 * len as u64, true));
    assert!(findings.is_empty());

    flip(&file_of(dir.path(), id(1)), (2 << 20) + 9); // in its third chunk
    flip(&file_of(dir.path(), id(2)), len as u64 - 1); // the last byte
    flip(&file_of(dir.path(), id(3)), len as u64); // the table behind the content
    let cut = std::fs::File::options()
        .write(true)
        .open(file_of(dir.path(), id(4)))
        .expect("open");
    cut.set_len(1000).expect("cut");
    std::fs::copy(file_of(dir.path(), id(6)), file_of(dir.path(), id(5))).expect("another's bytes");

    let rotten: Vec<ObjectId> = (1..=5).map(id).collect();
    // Looking alone moves nothing.
    let (report, findings) = scrub(
        &store,
        &ScrubOptions {
            quarantine: false,
            ..FAST
        },
    );
    assert_eq!((report.pass, report.findings), (2, 5));
    assert!(findings.iter().all(|f| !f.quarantined));
    let (report, findings) = scrub(&store, &FAST);
    assert_eq!(report.findings, 5);
    let by_id: BTreeMap<ObjectId, Finding> = findings.into_iter().map(|f| (f.id, f)).collect();
    assert_eq!(by_id.keys().copied().collect::<Vec<_>>(), rotten);
    assert!(by_id.values().all(|f| f.quarantined));
    assert_eq!(by_id[&id(1)].damage.ranges, only(2 << 20..3 << 20));
    assert_eq!(by_id[&id(2)].damage.ranges, only(3 << 20..len as u64));
    for (n, word) in [(3, "checksum"), (4, "no trailer"), (5, "that of object")] {
        assert!(by_id[&id(n)].damage.what.contains(word), "{:?}", by_id[&id(n)]);
    }
    for &id in &rotten {
        assert!(matches!(store.read(id), Err(StoreError::NotFound(_))));
    }
    let kept = store.quarantined().expect("list");
    assert_eq!(kept.iter().map(|q| q.id).collect::<Vec<_>>(), rotten);
    assert!(kept[2].why.contains("checksum"));
    // A good copy takes the place, also after a restart.
    drop(store);
    let store = open(dir.path());
    assert_eq!(store.status().expect("status").quarantined, 5);
    store.put(id(1), &meta("/a"), &bytes(1, len), None).expect("put");
    let (report, findings) = scrub(&store, &FAST);
    assert_eq!((report.pass, report.objects, findings.len()), (4, 4, 0));
    let before = store.status().expect("status").object_bytes;
    let freed = store.purge_quarantine().expect("purge");
    let after = store.status().expect("status");
    assert_eq!((after.quarantined, before - after.object_bytes), (0, freed));
    assert!(names(dir.path(), "quarantine").is_empty());
}

#[test]
fn rot_between_content_and_trailer_is_found_too() {
    let dir = tempfile::tempdir().expect("folder");
    let limits = Limits {
        slots: 8,
        ..Limits::default()
    };
    let store = Store::open(dir.path(), limits).expect("open");
    store.prepare().expect("slots");
    for n in [1, 2] {
        store.put(id(n), &meta("/a"), &bytes(n, 1000), None).expect("put");
    }
    let file = file_of(dir.path(), id(1));
    assert_eq!(file.metadata().expect("there").len(), 4096, "it fills a page");
    assert!(scrub(&store, &FAST).1.is_empty());
    flip(&file, 2000);
    let (_, findings) = scrub(&store, &FAST);
    assert_eq!(findings.iter().map(|f| f.id).collect::<Vec<_>>(), [id(1)]);
    assert!(findings[0].damage.what.contains("not zeros"), "{findings:?}");
}

#[test]
fn a_stopped_pass_goes_on_where_it_was() {
    let dir = tempfile::tempdir().expect("folder");
    let store = open(dir.path());
    for n in 0..20 {
        store
            .put(id(n), &meta("/a"), &bytes(n, 10_000), None)
            .expect("put");
    }
    // Bit rot in the seventh: the pass is stopped when it is told.
    flip(&file_of(dir.path(), id(6)), 5);
    let stop = Stop::default();
    let at_finding = stop.clone();
    let report = store
        .scrub_pass(&FAST, &stop, &mut |_| at_finding.stop())
        .expect("scrub");
    assert_eq!((report.pass, report.objects, report.complete), (1, 7, false));
    drop(store);
    let store = open(dir.path());
    let (report, _) = scrub(&store, &FAST);
    assert_eq!((report.pass, report.objects, report.complete), (1, 13, true));
    let (report, _) = scrub(&store, &FAST);
    assert_eq!((report.pass, report.objects), (2, 19));
}

#[test]
fn reading_is_slowed_to_the_rate() {
    let dir = tempfile::tempdir().expect("folder");
    let store = open(dir.path());
    store
        .put(id(1), &meta("/a"), &bytes(1, 1 << 20), None)
        .expect("put");
    let slow = ScrubOptions {
        rate_bytes_per_s: 4 << 20,
        quarantine: true,
    };
    let begun = std::time::Instant::now();
    let (report, _) = scrub(&store, &slow);
    assert_eq!(report.bytes, 1 << 20);
    assert!(
        begun.elapsed() >= std::time::Duration::from_millis(250),
        "{:?}",
        begun.elapsed()
    );
    // One pass at a time: a second one, from inside the first, is refused.
    flip(&file_of(dir.path(), id(1)), 5);
    let other = store.clone();
    let mut refused = false;
    store
        .scrub_pass(&FAST, &Stop::default(), &mut |_| {
            let second = other.scrub_pass(&FAST, &Stop::default(), &mut |_| {});
            refused = matches!(second, Err(StoreError::TooMany(_)));
        })
        .expect("scrub");
    assert!(refused);
}

#[test]
fn fsck_lists_exactly_what_is_there() {
    let dir = tempfile::tempdir().expect("folder");
    let store = open(dir.path());
    let mut wanted = BTreeMap::new();
    for n in 0..6u64 {
        let mut m = meta(&format!("/data/{n}"));
        m.owner = format!("user{n}");
        m.fragments = n as u32;
        let data = bytes(n, 1000 * n as usize);
        store.put(id(n), &m, &data, None).expect("put");
        wanted.insert(id(n), (data.len() as u64, digest(&data), m));
    }
    flip(&file_of(dir.path(), id(5)), 3);
    store.quarantine(id(4), "by hand").expect("move");
    wanted.remove(&id(4));
    let writer = store.begin(id(7), begin(Some(9 << 20), true)).expect("begin");
    writer.write_at(0, &bytes(7, 5 << 20)).expect("write");
    for foreign in [
        "notes.txt",
        "objects/zz",
        "objects/00/readme",
        "incoming/x",
        "quarantine/y",
    ] {
        std::fs::write(dir.path().join(foreign), "hello").expect("write");
    }
    // An object in the wrong bucket is not found by its name: nobody's.
    std::fs::copy(
        file_of(dir.path(), id(1)),
        dir.path().join(format!("objects/00/{}", id(1))),
    )
    .expect("copy");

    for deep in [false, true] {
        let mut objects = BTreeMap::new();
        let (mut foreign, mut others) = (Vec::new(), Vec::new());
        let report = store
            .fsck(deep, &mut |e| match &e.state {
                FsckState::Right | FsckState::Damaged(_) => {
                    let told = (e.size, e.digest.expect("digest"), e.meta.clone().expect("meta"));
                    let damaged = matches!(e.state, FsckState::Damaged(_));
                    assert_eq!(damaged, deep && e.id == Some(id(5)), "{e:?}");
                    assert!(objects.insert(e.id.expect("id"), told).is_none());
                }
                FsckState::Foreign => foreign.push(e.path.display().to_string()),
                other => others.push((e.id.expect("id"), other.clone())),
            })
            .expect("fsck");
        assert_eq!(objects, wanted);
        let right = if deep { 4 } else { 5 };
        assert_eq!((report.right, report.damaged), (right, 5 - right));
        assert_eq!((report.partial, report.quarantined, report.foreign), (1, 1, 6));
        foreign.sort();
        assert_eq!(
            foreign,
            [
                "incoming/x".to_owned(),
                "notes.txt".into(),
                format!("objects/00/{}", id(1)),
                "objects/00/readme".into(),
                "objects/zz".into(),
                "quarantine/y".into(),
            ]
        );
        let written_bytes = 5 << 20;
        assert_eq!(
            others,
            [
                (id(7), FsckState::Partial { written_bytes }),
                (id(4), FsckState::Quarantined)
            ]
        );
    }
}

#[test]
fn parts_are_verified_alone() {
    let dir = tempfile::tempdir().expect("folder");
    let store = open(dir.path());
    let len = 4u64 << 20;
    store
        .put(id(1), &meta("/a"), &bytes(1, len as usize), None)
        .expect("put");
    flip(&file_of(dir.path(), id(1)), 2_500_000);
    let reader = store.read(id(1)).expect("there");
    assert_eq!(reader.verify_range(0..1 << 20).expect("read"), None);
    assert_eq!(reader.verify_range(3 << 20..len).expect("read"), None);
    let damage = reader
        .verify_range(2_400_000..2_400_001)
        .expect("read")
        .expect("damage");
    assert_eq!(damage.ranges, only(2 << 20..3 << 20));
    assert_eq!(store.verify(id(1)).expect("read"), Some(damage));
    assert!(matches!(store.verify(id(2)), Err(StoreError::NotFound(_))));
}
