//! A full disk: refused with a clear error, nothing half is left, and what was acknowledged stays right.

mod common;

use common::*;
use kuroshio_store::{Limits, Store, StoreError};
use std::path::Path;
use std::process::Command;

const MIB: u64 = 1 << 20;
const DIR: &str = "KUROSHIO_TEST_MOUNT";

fn limited(dir: &Path, capacity_bytes: Option<u64>) -> Store {
    let limits = Limits {
        capacity_bytes,
        keep_free_bytes: 0,
        ..Limits::default()
    };
    Store::open(dir, limits).expect("open")
}

/// Puts objects of 1 MiB until there is no space; how many went in.
fn fill(store: &Store, first: u64) -> u64 {
    for n in 0..1000 {
        let data = bytes(n, MIB as usize);
        match store.put(id(first + n), &meta("/a"), &data, Some(digest(&data))) {
            Ok(_) => {}
            Err(StoreError::NoSpace {
                wanted_bytes,
                free_bytes,
            }) => {
                assert!(wanted_bytes > MIB && wanted_bytes < MIB + 8192 && free_bytes < wanted_bytes);
                return n;
            }
            Err(e) => panic!("{e}"),
        }
    }
    panic!("never full");
}

fn check_full(dir: &Path, store: &Store, most: u64) {
    let n = fill(store, 0);
    assert!(n > 0 && n <= most, "{n} objects");
    assert!(!store.exists(id(n)).expect("look"));
    assert!(names(dir, "incoming").is_empty(), "nothing half is left");
    let e = store
        .begin(id(500), begin(Some(most * 2 * MIB), false))
        .expect_err("too large");
    assert!(matches!(e, StoreError::NoSpace { .. }), "{e}");
    assert!(names(dir, "incoming").is_empty());
    let status = store.status().expect("status");
    assert_eq!((status.objects, status.reserved_bytes), (n, 0));
    assert!(status.free_bytes < MIB + 8192, "{status:?}");
    let report = store.fsck(true, &mut |_| {}).expect("fsck");
    assert_eq!((report.right, report.damaged), (n, 0));
    // What is removed makes room for as much.
    store.delete(id(0)).expect("delete");
    store
        .put(id(600), &meta("/a"), &bytes(600, MIB as usize), None)
        .expect("room");
    assert!(matches!(
        store.put(id(601), &meta("/a"), &bytes(601, MIB as usize), None),
        Err(StoreError::NoSpace { .. })
    ));
    store.delete(id(600)).expect("delete");
    // What is promised to a writer is not given to another, and comes back.
    let all = store.status().expect("status").free_bytes - 8192;
    let writer = store.begin(id(602), begin(Some(all), false)).expect("room");
    assert!(matches!(
        store.put(id(603), &meta("/a"), &bytes(603, MIB as usize / 2), None),
        Err(StoreError::NoSpace { .. })
    ));
    writer.abort();
    store
        .put(id(603), &meta("/a"), &bytes(603, MIB as usize / 2), None)
        .expect("room");
}

#[test]
fn the_capacity_is_a_limit() {
    let dir = tempfile::tempdir().expect("folder");
    let store = limited(dir.path(), Some(10 * MIB));
    assert_eq!(store.status().expect("status").capacity_bytes, 10 * MIB);
    assert_eq!(store.status().expect("status").free_bytes, 10 * MIB);
    check_full(dir.path(), &store, 9);
    let used = store.status().expect("status").object_bytes;
    assert!(used <= 10 * MIB);
    drop(store);
    // A restart counts the same, and a smaller limit refuses at once.
    let store = limited(dir.path(), Some(5 * MIB));
    let status = store.status().expect("status");
    assert_eq!((status.object_bytes, status.free_bytes), (used, 0));
    assert!(matches!(
        store.put(id(700), &meta("/a"), b"x", None),
        Err(StoreError::NoSpace { .. })
    ));
}

#[test]
fn an_object_without_a_size_meets_the_limit_on_its_way() {
    let dir = tempfile::tempdir().expect("folder");
    let store = limited(dir.path(), Some(40 * MIB));
    let writer = store.begin(id(1), begin(None, false)).expect("begin");
    let data = bytes(1, MIB as usize);
    let mut written = 0;
    let e = loop {
        match writer.write_at(written * MIB, &data) {
            Ok(()) => written += 1,
            Err(e) => break e,
        }
        assert!(written < 41, "beyond the limit");
    };
    assert!(matches!(e, StoreError::NoSpace { .. }), "{e}");
    assert_eq!(written, 39, "all but the trailer's block");
    assert_eq!(writer.written().bytes(), 39 * MIB);
    let sealed = writer
        .finish(finish(39 * MIB, None))
        .expect("what fits is finished");
    assert_eq!(sealed.size, 39 * MIB);
    let status = store.status().expect("status");
    assert!(
        status.object_bytes <= 40 * MIB && status.reserved_bytes == 0,
        "{status:?}"
    );
}

/// Not a test by itself: runs on a small file system of its own.
#[test]
fn child_on_a_small_file_system() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let mount = Path::new(&dir);
    let spool = mount.join("spool");
    let store = limited(&spool, None);
    check_full(&spool, &store, 24);
    for (listed, _) in store.list(None, 1000).expect("list").0.iter().zip(0..) {
        store.delete(listed.id).expect("delete");
    }
    // Others fill the disk behind the account: the kernel itself refuses.
    let data = bytes(1, MIB as usize / 2);
    let writer = store
        .begin(id(1), begin(Some(data.len() as u64), false))
        .expect("begin");
    let filler = mount.join("filler");
    let mut file = std::fs::File::create(&filler).expect("create");
    let full = std::iter::repeat_with(|| std::io::Write::write_all(&mut file, &[1; 65536]))
        .take(10_000)
        .find_map(Result::err);
    assert_eq!(full.map(|e| e.kind()), Some(std::io::ErrorKind::StorageFull));
    let e = writer.write_at(0, &data).expect_err("full");
    assert!(matches!(e, StoreError::NoSpace { .. }), "{e}");
    assert!(matches!(
        store.put(id(2), &meta("/a"), &data, None),
        Err(StoreError::NoSpace { .. })
    ));
    assert_eq!(
        names(&spool, "incoming").len(),
        1,
        "the one that is being written"
    );
    drop(file);
    std::fs::remove_file(&filler).expect("remove");
    writer.write_at(0, &data).expect("room again");
    writer
        .finish(finish(data.len() as u64, Some(digest(&data))))
        .expect("finish");
    assert_eq!(content(&store, id(1)), data);
    assert_eq!(
        store.status().expect("status").io_errors,
        0,
        "a full disk is no error of the disk"
    );
    std::fs::write(mount.join("passed"), "").expect("write");
    std::fs::copy(
        mount.join("passed"),
        std::env::var_os("KUROSHIO_TEST_REPORT").expect("set"),
    )
    .expect("tell");
}

#[test]
fn a_real_disk_that_is_full() {
    let dir = tempfile::tempdir().expect("folder");
    let mount = dir.path().join("mount");
    std::fs::create_dir(&mount).expect("folder");
    let report = dir.path().join("passed");
    // A mount and user namespace of its own: the mount is gone with the process.
    let script = "mount -t tmpfs -o size=24m,mode=0700 store-test \"$1\" && shift && exec \"$@\"";
    let status = Command::new("unshare")
        .args(["-Urm", "sh", "-c", script, "sh"])
        .arg(&mount)
        .arg(std::env::current_exe().expect("this program"))
        .args(["--exact", "child_on_a_small_file_system", "--test-threads=1"])
        .env(DIR, &mount)
        .env("KUROSHIO_TEST_REPORT", &report)
        .status()
        .expect("unshare (util-linux) runs");
    assert!(status.success(), "{status}");
    assert!(report.exists(), "the child did the work");
    assert_eq!(
        std::fs::read_dir(&mount).expect("read").count(),
        0,
        "the mount is gone"
    );
}
