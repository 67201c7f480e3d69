//! What callers see: objects are whole, right and durable, or an error says why not.

mod common;

use common::*;
use kuroshio_store::{Finish, Holes, Limits, Mode, ObjectId, Step, Store, StoreError, Trace};
use std::sync::{Arc, Mutex};

const MIB: usize = 1 << 20;

#[test]
fn small_objects_come_back_after_a_restart() {
    let dir = tempfile::tempdir().expect("folder");
    let store = open(dir.path());
    for len in [0usize, 1, 4096, 1023, MIB, MIB + 1, 3 * MIB + 77] {
        let data = bytes(len as u64, len);
        let sealed = store
            .put(id(len as u64), &meta("/a"), &data, Some(digest(&data)))
            .expect("put");
        assert_eq!(
            (sealed.size, sealed.digest, sealed.known),
            (len as u64, digest(&data), false)
        );
    }
    let spool_id = store.spool_id();
    drop(store);
    let store = open(dir.path());
    assert_eq!(store.spool_id(), spool_id);
    assert_eq!(store.status().expect("status").objects, 7);
    for len in [0usize, 1, 4096, 1023, MIB, MIB + 1, 3 * MIB + 77] {
        let data = bytes(len as u64, len);
        let reader = store.read(id(len as u64)).expect("there");
        assert_eq!(reader.digest(), digest(&data));
        assert_eq!(reader.meta(), &meta("/a"));
        assert_eq!(reader.verify().expect("read"), None);
        assert_eq!(content(&store, id(len as u64)), data);
        let mut tail = [0; 100];
        let from = len.saturating_sub(40);
        assert_eq!(reader.read_at(from as u64, &mut tail).expect("read"), len - from);
        assert_eq!(tail[..len - from], data[from..]);
        assert_eq!(reader.read_at(len as u64 + 5, &mut tail).expect("read"), 0);
    }
    assert!(names(dir.path(), "incoming").is_empty());
}

#[test]
fn the_flush_comes_before_the_name_and_the_acknowledgement() {
    let dir = tempfile::tempdir().expect("folder");
    let log = Arc::new(Mutex::new(Vec::new()));
    let hear = Arc::clone(&log);
    let trace = Trace::new(move |step, id| hear.lock().expect("log").push((step, id)));
    let store = Store::open_traced(dir.path(), Limits::default(), trace).expect("open");
    store.put(id(1), &meta("/a"), b"abc", None).expect("put");
    let steps: Vec<Step> = log.lock().expect("log").drain(..).map(|(s, _)| s).collect();
    assert_eq!(steps, [Step::Created, Step::Sealed, Step::Flushed, Step::Named]);
    let writer = store.begin(id(2), begin(Some(6), false)).expect("begin");
    writer.write_at(3, b"def").expect("write");
    writer.write_at(0, b"abc").expect("write");
    writer.finish(finish(6, Some(digest(b"abcdef")))).expect("finish");
    let steps: Vec<Step> = log.lock().expect("log").drain(..).map(|(s, _)| s).collect();
    assert_eq!(
        steps,
        [
            Step::Created,
            Step::Written,
            Step::Written,
            Step::Verified,
            Step::Trailer,
            Step::Sealed,
            Step::Flushed,
            Step::Named
        ]
    );
    store.delete(id(2)).expect("delete");
    let steps: Vec<Step> = log.lock().expect("log").drain(..).map(|(s, _)| s).collect();
    assert_eq!(steps, [Step::Unlinked, Step::Removed]);
}

#[test]
fn ranges_in_any_order_from_many_threads() {
    let dir = tempfile::tempdir().expect("folder");
    let store = open(dir.path());
    let len = 9 * MIB + 12_345;
    let data = bytes(3, len);
    for (inode, size) in [(1, Some(len as u64)), (2, None)] {
        let writer = store.begin(id(inode), begin(size, false)).expect("begin");
        std::thread::scope(|s| {
            for t in 0..4usize {
                let (writer, data) = (&writer, &data);
                s.spawn(move || {
                    // Every fourth range, backwards, of a length that divides nothing.
                    let mut starts: Vec<usize> = (0..len).step_by(70_001).skip(t).step_by(4).collect();
                    starts.reverse();
                    for at in starts {
                        let end = (at + 70_001).min(len);
                        writer.write_at(at as u64, &data[at..end]).expect("write");
                    }
                });
            }
        });
        assert_eq!(writer.written().bytes(), len as u64);
        assert!(writer.missing().is_empty());
        let sealed = writer
            .finish(finish(len as u64, Some(digest(&data))))
            .expect("finish");
        assert_eq!(sealed.digest, digest(&data));
        assert!(matches!(writer.write_at(0, b"x"), Err(StoreError::Closed(_))));
        let reader = store.read(id(inode)).expect("there");
        assert_eq!(reader.verify().expect("read"), None);
        let chunk = reader.chunk_bytes() as usize;
        let part = &data[chunk..2 * chunk];
        let wanted = kuroshio_core::chunk::piece_digest(len as u64, chunk as u64, part).expect("piece");
        assert_eq!(reader.chunk_digest(1), Some(wanted));
        assert_eq!(reader.chunk_digest(10), None);
        assert_eq!(content(&store, id(inode)), data);
    }
    assert_eq!(store.status().expect("status").reserved_bytes, 0);
}

#[test]
fn bytes_may_be_written_again_until_the_end() {
    let dir = tempfile::tempdir().expect("folder");
    let store = open(dir.path());
    let len = 6 * MIB;
    let old = bytes(1, len);
    let mut data = old.clone();
    let writer = store.begin(id(1), begin(None, false)).expect("begin");
    writer.write_at(0, &old).expect("write");
    for (at, n) in [(5 * MIB - 10, 20usize), (0, 1), (2 * MIB + 5, MIB)] {
        let new = bytes(at as u64 + 99, n);
        data[at..at + n].copy_from_slice(&new);
        writer.write_at(at as u64, &new).expect("write");
    }
    let mut there = vec![0; 100];
    assert_eq!(
        writer.read_at(5 * MIB as u64 - 50, &mut there).expect("read"),
        100
    );
    assert_eq!(there, data[5 * MIB - 50..5 * MIB + 50]);
    // Two threads write the same range at once: either content, but one of them and with its digest.
    std::thread::scope(|s| {
        for seed in [7, 8] {
            let writer = &writer;
            s.spawn(move || writer.write_at(3 * MIB as u64, &bytes(seed, MIB)).expect("write"));
        }
    });
    let mut won = vec![0; MIB];
    writer.read_at(3 * MIB as u64, &mut won).expect("read");
    data[3 * MIB..4 * MIB].copy_from_slice(&won);
    let cut = 5 * MIB + 3;
    writer.truncate(cut as u64).expect("cut");
    data.truncate(cut);
    let end = cut as u64 + 10;
    let sealed = writer.finish(finish(end, None)).expect_err("a hole");
    assert!(
        matches!(sealed, StoreError::Incomplete { ref missing, .. } if *missing == only(cut as u64..end))
    );
    data.resize(cut + 10, 0);
    let sealed = writer
        .finish(Finish {
            size: end,
            digest: None,
            holes: Holes::Zeros,
        })
        .expect("finish");
    assert_eq!(sealed.digest, digest(&data));
    assert_eq!(content(&store, id(1)), data);
}

#[test]
fn what_is_not_right_is_not_named() {
    let dir = tempfile::tempdir().expect("folder");
    let store = open(dir.path());
    let data = bytes(1, 5 * MIB);
    let e = store
        .put(id(1), &meta("/a"), b"abc", Some([1; 32]))
        .expect_err("digest");
    assert!(matches!(e, StoreError::Digest { .. }), "{e}");

    let writer = store
        .begin(id(1), begin(Some(data.len() as u64), false))
        .expect("begin");
    writer.write_at(0, &data[..MIB]).expect("write");
    let e = writer
        .finish(finish(data.len() as u64, None))
        .expect_err("incomplete");
    assert!(e.to_string().contains("1048576..5242880"), "{e}");
    assert!(matches!(
        writer.write_at(5 * MIB as u64 - 1, b"ab"),
        Err(StoreError::Invalid(_))
    ));
    assert!(matches!(
        writer.finish(finish(7, None)),
        Err(StoreError::Invalid(_))
    ));
    writer.write_at(MIB as u64, &data[MIB..]).expect("write");
    // A bit flips between the write and the reading back.
    let part = dir.path().join(format!("incoming/{}.part", id(1)));
    flip(&part, 3 * MIB as u64 + 17);
    let e = writer
        .finish(finish(data.len() as u64, Some(digest(&data))))
        .expect_err("damaged");
    let bad = 3 * MIB as u64..4 * MIB as u64;
    assert!(
        matches!(&e, StoreError::Damaged { ranges, .. } if *ranges == only(bad.clone())),
        "{e}"
    );
    assert_eq!(writer.missing().iter().collect::<Vec<_>>(), only(bad));
    writer
        .write_at(3 * MIB as u64, &data[3 * MIB..4 * MIB])
        .expect("write");
    let e = writer
        .finish(finish(data.len() as u64, Some([2; 32])))
        .expect_err("digest");
    assert!(matches!(e, StoreError::Digest { .. }), "{e}");
    assert!(!store.exists(id(1)).expect("look"));
    writer
        .finish(finish(data.len() as u64, Some(digest(&data))))
        .expect("finish");
    assert_eq!(content(&store, id(1)), data);
}

#[test]
fn the_same_again_is_known_and_another_refused() {
    let dir = tempfile::tempdir().expect("folder");
    let store = open(dir.path());
    store.put(id(1), &meta("/a"), b"abc", None).expect("put");
    assert!(store.put(id(1), &meta("/b"), b"abc", None).expect("known").known);
    assert!(matches!(
        store.put(id(1), &meta("/a"), b"abd", None),
        Err(StoreError::Exists(_))
    ));
    assert!(matches!(
        store.begin(id(1), begin(Some(3), true)),
        Err(StoreError::Exists(_))
    ));
    let one = store.begin(id(2), begin(Some(3), true)).expect("begin");
    assert!(matches!(
        store.begin(id(2), begin(Some(3), true)),
        Err(StoreError::Busy(_))
    ));
    assert!(matches!(
        store.put(id(2), &meta("/a"), b"x", None),
        Err(StoreError::Busy(_))
    ));
    one.abort();
    assert!(names(dir.path(), "incoming").is_empty());
    store.put(id(2), &meta("/a"), b"x", None).expect("free again");
    let status = store.status().expect("status");
    assert_eq!((status.objects, status.writers, status.reserved_bytes), (2, 0, 0));
}

#[test]
fn what_appears_in_its_place_meanwhile_is_kept() {
    let dir = tempfile::tempdir().expect("folder");
    let place = file_of(dir.path(), id(1));
    let trace = Trace::new(move |step, _| {
        if step == Step::Sealed {
            std::fs::write(&place, "somebody else's").expect("write");
        }
    });
    let store = Store::open_traced(dir.path(), Limits::default(), trace).expect("open");
    let e = store.put(id(1), &meta("/a"), b"abc", None).expect_err("taken");
    assert!(matches!(e, StoreError::Exists(_)), "{e}");
    assert!(names(dir.path(), "incoming").is_empty());
    let there = std::fs::read(file_of(dir.path(), id(1))).expect("read");
    assert_eq!(there, b"somebody else's");
    assert_eq!(store.status().expect("status").objects, 0);
}

#[test]
fn deleted_is_gone_and_open_handles_still_read() {
    let dir = tempfile::tempdir().expect("folder");
    let store = open(dir.path());
    for n in 0..5 {
        store.put(id(n), &meta("/a"), &bytes(n, 5000), None).expect("put");
    }
    let before = store.status().expect("status").object_bytes;
    let reader = store.read(id(0)).expect("there");
    let answers = store.delete_many(&[id(0), id(9), id(1)]).expect("flushed");
    assert!(answers[0].is_ok() && answers[2].is_ok());
    assert!(matches!(answers[1], Err(StoreError::NotFound(_))));
    let mut buf = vec![0; 5000];
    assert_eq!(reader.read_at(0, &mut buf).expect("read"), 5000);
    assert_eq!(buf, bytes(0, 5000));
    assert!(matches!(store.read(id(0)), Err(StoreError::NotFound(_))));
    let after = store.status().expect("status");
    assert_eq!((after.objects, after.object_bytes), (3, before / 5 * 3));
    // An open handle holds the spool.
    drop((reader, store));
    let store = open(dir.path());
    assert_eq!(store.status().expect("status"), {
        let mut s = after;
        (s.flushes, s.grouped) = (0, 0);
        s.free_bytes = store.status().expect("status").free_bytes;
        s.capacity_bytes = store.status().expect("status").capacity_bytes;
        s
    });
    store
        .put(id(0), &meta("/a"), b"new", None)
        .expect("its name is free");
}

#[test]
fn modes_refuse_and_are_remembered() {
    let dir = tempfile::tempdir().expect("folder");
    let store = open(dir.path());
    store.put(id(1), &meta("/a"), b"abc", None).expect("put");
    let begun = store.begin(id(2), begin(Some(3), false)).expect("begin");
    for (mode, deletes) in [(Mode::ReadOnly, false), (Mode::Drain, true)] {
        store.set_mode(mode).expect("set");
        assert!(
            matches!(store.put(id(3), &meta("/a"), b"x", None), Err(StoreError::Refused(m)) if m == mode)
        );
        assert!(matches!(
            store.begin(id(3), begin(None, true)),
            Err(StoreError::Refused(_))
        ));
        assert_eq!(content(&store, id(1)), b"abc");
        assert_eq!(store.delete(id(1)).is_ok(), deletes, "{mode}");
    }
    begun.write_at(0, b"xyz").expect("write");
    begun.finish(finish(3, None)).expect("what was begun is finished");
    drop((begun, store));
    let store = open(dir.path());
    assert_eq!(store.mode(), Mode::Drain);
    store.set_mode(Mode::Normal).expect("set");
    store.put(id(3), &meta("/a"), b"x", None).expect("put");
    std::fs::write(dir.path().join("mode"), "sideways\n").expect("write");
    drop(store);
    let e = Store::open(dir.path(), Limits::default()).expect_err("a mode that is none");
    assert!(e.to_string().contains("normal, read-only or drain"), "{e}");
}

#[test]
fn a_partial_object_is_gone_on_with() {
    let dir = tempfile::tempdir().expect("folder");
    let len = 12 * MIB + 5;
    let data = bytes(5, len);
    let store = open(dir.path());
    let writer = store.begin(id(1), begin(Some(len as u64), true)).expect("begin");
    writer.write_at(0, &data[..6 * MIB + 100]).expect("write");
    writer
        .write_at(8 * MIB as u64, &data[8 * MIB..9 * MIB])
        .expect("write");
    drop(writer);
    let small = store
        .begin(id(2), begin(Some(3 * MIB as u64), true))
        .expect("begin");
    small.write_at(0, &data[..2 * MIB]).expect("write");
    drop(small);
    drop(store);
    let store = open(dir.path());
    assert_eq!(store.recovered().partials, 1);
    let partials = store.partials().expect("list");
    assert_eq!(partials.len(), 1, "small ones begin again");
    assert_eq!((partials[0].id, partials[0].size), (id(1), Some(len as u64)));
    assert_eq!(partials[0].written_bytes, 7 * MIB as u64);
    assert_eq!(partials[0].meta, meta("/data/run"));
    // One recorded piece never reached the disk.
    flip(
        &dir.path().join(format!("incoming/{}.part", id(1))),
        2 * MIB as u64,
    );
    let writer = store.begin(id(1), begin(Some(len as u64), true)).expect("begin");
    let missing: Vec<_> = writer.missing().iter().collect();
    let m = MIB as u64;
    assert_eq!(missing, [6 * m..8 * m, 9 * m..len as u64]);
    for r in missing {
        writer
            .write_at(r.start, &data[r.start as usize..r.end as usize])
            .expect("write");
    }
    let e = writer
        .finish(finish(len as u64, Some(digest(&data))))
        .expect_err("the lost piece");
    assert!(
        matches!(&e, StoreError::Damaged { ranges, .. } if *ranges == only(2 * m..3 * m)),
        "{e}"
    );
    writer.write_at(2 * m, &data[2 * MIB..3 * MIB]).expect("write");
    writer
        .finish(finish(len as u64, Some(digest(&data))))
        .expect("finish");
    assert_eq!(content(&store, id(1)), data);
    assert!(names(dir.path(), "incoming").is_empty());
    assert!(store.partials().expect("list").is_empty());
}

#[test]
fn what_was_cut_off_is_not_gone_on_with() {
    let dir = tempfile::tempdir().expect("folder");
    let store = open(dir.path());
    let data = bytes(5, 8 * MIB);
    let cut = (5 * MIB + 7) as u64;
    let writer = store.begin(id(1), begin(None, true)).expect("begin");
    writer.write_at(0, &data).expect("write");
    writer.truncate(cut).expect("cut");
    drop(writer);
    let writer = store.begin(id(1), begin(None, true)).expect("begin");
    let whole = 5 * MIB as u64;
    assert_eq!(writer.written().iter().collect::<Vec<_>>(), only(0..whole));
    writer
        .write_at(whole, &data[5 * MIB..cut as usize])
        .expect("write");
    writer
        .finish(finish(cut, Some(digest(&data[..cut as usize]))))
        .expect("finish");
    assert_eq!(content(&store, id(1)), data[..cut as usize]);
}

#[test]
fn a_partial_object_of_another_size_or_age_begins_again() {
    let dir = tempfile::tempdir().expect("folder");
    let data = bytes(5, 8 * MIB);
    let store = open(dir.path());
    let write = |store: &Store| {
        let writer = store
            .begin(id(1), begin(Some(9 * MIB as u64), true))
            .expect("begin");
        writer.write_at(0, &data).expect("write");
    };
    write(&store);
    let other = store
        .begin(id(1), begin(Some(10 * MIB as u64), true))
        .expect("begin");
    assert_eq!(other.written().bytes(), 0);
    drop(other);
    write(&store);
    let not_wanted = store
        .begin(id(1), begin(Some(9 * MIB as u64), false))
        .expect("begin");
    assert_eq!(not_wanted.written().bytes(), 0);
    drop(not_wanted);
    write(&store);
    store.discard_partial(id(1)).expect("discard");
    assert!(names(dir.path(), "incoming").is_empty());
    assert!(matches!(
        store.discard_partial(id(1)),
        Err(StoreError::NotFound(_))
    ));
    write(&store);
    drop(store);
    let part = dir.path().join(format!("incoming/{}.part", id(1)));
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(8 * 24 * 3600);
    let file = std::fs::File::options().write(true).open(&part).expect("open");
    file.set_modified(old).expect("set the time");
    let store = open(dir.path());
    assert_eq!((store.recovered().partials, store.recovered().discarded), (0, 1));
    assert!(names(dir.path(), "incoming").is_empty());
}

#[test]
fn listing_is_paged_and_complete() {
    let dir = tempfile::tempdir().expect("folder");
    let store = open(dir.path());
    let mut wanted: Vec<ObjectId> = (0..40)
        .flat_map(|n| {
            [1, 2].map(|generation| ObjectId {
                inode: n * 100,
                generation,
                fragment: (n % 3) as u32,
            })
        })
        .collect();
    for &id in &wanted {
        store.put(id, &meta("/a"), b"x", None).expect("put");
    }
    wanted.sort_by_key(|id| (id.bucket(), *id));
    let (mut got, mut after) = (Vec::new(), None);
    loop {
        let (page, next) = store.list(after, 7).expect("list");
        assert!(page.len() == 7 || next.is_none());
        got.extend(page.iter().map(|l| l.id));
        match next {
            Some(cursor) => after = Some(cursor.to_string().parse().expect("text and back")),
            None => break,
        }
    }
    assert_eq!(got, wanted);
}

#[test]
fn too_long_and_too_large_is_refused() {
    let dir = tempfile::tempdir().expect("folder");
    let limits = Limits {
        max_writers: 2,
        ..Limits::default()
    };
    let store = Store::open(dir.path(), limits).expect("open");
    let mut long = meta("/a");
    long.name_hint = vec![b'x'; 4097];
    let e = store.put(id(1), &long, b"x", None).expect_err("hint");
    assert!(e.to_string().contains("4096"), "{e}");
    let e = store
        .put(id(1), &meta("/a"), &vec![0; (8 << 20) + 1], None)
        .expect_err("put");
    assert!(e.to_string().contains("begin it"), "{e}");
    let e = store
        .begin(id(1), begin(Some((64 << 40) + 1), false))
        .expect_err("size");
    assert!(matches!(e, StoreError::Invalid(_)), "{e}");
    let a = store.begin(id(1), begin(None, false)).expect("begin");
    let b = store.begin(id(2), begin(None, false)).expect("begin");
    assert!(matches!(
        store.begin(id(3), begin(None, false)),
        Err(StoreError::TooMany(_))
    ));
    assert!(matches!(a.write_at(1 << 40, b"x"), Err(StoreError::Invalid(_))));
    assert!(matches!(a.write_at(u64::MAX, b"xy"), Err(StoreError::Invalid(_))));
    drop((a, b));
    store.begin(id(3), begin(None, false)).expect("a place is free");
}

#[test]
fn links_and_folders_in_place_of_objects_are_not_followed() {
    let dir = tempfile::tempdir().expect("folder");
    let store = open(dir.path());
    std::os::unix::fs::symlink("/etc/passwd", file_of(dir.path(), id(1))).expect("link");
    std::fs::create_dir(file_of(dir.path(), id(2))).expect("folder");
    let e = store.read(id(1)).expect_err("a link");
    assert!(matches!(e, StoreError::Io { .. }), "{e}");
    let e = store.read(id(2)).expect_err("a folder");
    assert!(e.to_string().contains("not a regular file"), "{e}");
    std::fs::write(file_of(dir.path(), id(3)), "no trailer").expect("write");
    assert!(matches!(store.read(id(3)), Err(StoreError::Corrupt { .. })));
    store.put(id(4), &meta("/a"), b"x", None).expect("put");
    std::fs::copy(file_of(dir.path(), id(4)), file_of(dir.path(), id(5))).expect("copy");
    let e = store.read(id(5)).expect_err("another's trailer");
    assert!(e.to_string().contains("that of object"), "{e}");
    let short = std::fs::File::options()
        .write(true)
        .open(file_of(dir.path(), id(4)))
        .expect("open");
    let reader = store.read(id(4)).expect("open");
    short.set_len(0).expect("cut");
    assert!(matches!(
        reader.read_at(0, &mut [0; 1]),
        Err(StoreError::Corrupt { .. })
    ));
}

#[test]
fn many_writers_and_readers_at_once() {
    let dir = tempfile::tempdir().expect("folder");
    let store = open(dir.path());
    std::thread::scope(|s| {
        for t in 0..8u64 {
            let store = store.clone();
            s.spawn(move || {
                for n in 0..12u64 {
                    let id = id(t * 100 + n);
                    let data = bytes(id.inode, 3000 + n as usize * 977);
                    if n % 2 == 0 {
                        store
                            .put(id, &meta("/a"), &data, Some(digest(&data)))
                            .expect("put");
                    } else {
                        let w = store
                            .begin(id, begin(Some(data.len() as u64), true))
                            .expect("begin");
                        w.write_at(1000, &data[1000..]).expect("write");
                        w.write_at(0, &data[..1000]).expect("write");
                        w.finish(finish(data.len() as u64, Some(digest(&data))))
                            .expect("finish");
                    }
                    assert_eq!(content(&store, id), data);
                    if n % 3 == 0 {
                        store.delete(id).expect("delete");
                        assert!(!store.exists(id).expect("look"));
                    }
                }
            });
        }
    });
    let status = store.status().expect("status");
    assert_eq!(
        (status.objects, status.reserved_bytes, status.writers),
        (8 * 8, 0, 0)
    );
    assert!(status.flushes <= 96, "{status:?}");
    let report = store.fsck(true, &mut |_| {}).expect("fsck");
    assert_eq!(
        (report.right, report.damaged, report.partial, report.foreign),
        (64, 0, 0, 0)
    );
}
