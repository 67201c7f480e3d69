//! What only the embedded back end has: its file, its lock, its disk.

use super::{Env, ok, refused};
use kuroshio_catalog::*;
use std::path::Path;
use std::process::Command;

/// Where the child of `a_full_disk_is_said_and_survived` works.
const SMALL_DISK: &str = "KUROSHIO_CATALOG_SMALL_DISK";

#[test]
fn one_process_has_it_open() {
    let dir = tempfile::tempdir().unwrap();
    let first = Sqlite::open(dir.path(), Options::default()).unwrap();
    let second = Sqlite::open(dir.path(), Options::default());
    let error = second.err().expect("refused");
    assert!(error.to_string().contains("another process"), "{error}");
    drop(first);
    Sqlite::open(dir.path(), Options::default()).unwrap();
}

#[test]
fn a_newer_or_broken_file_is_refused_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("catalog.sqlite");
    let open = || Sqlite::open(dir.path(), Options::default()).map(drop);
    open().unwrap();
    let file = rusqlite::Connection::open(&path).unwrap();
    let version = |set: Option<i64>| -> i64 {
        if let Some(v) = set {
            file.execute("UPDATE meta SET value = ?1 WHERE name = 'schema'", [v])
                .unwrap();
        }
        file.query_row("SELECT value FROM meta WHERE name = 'schema'", [], |r| r.get(0))
            .unwrap()
    };
    let known = version(None);
    open().unwrap();
    assert_eq!(version(None), known);
    for odd in [known + 1, -1] {
        version(Some(odd));
        let error = open().expect_err("refused");
        assert!(error.to_string().contains(&format!("version {odd}")), "{error}");
        assert_eq!(version(None), odd);
    }
    drop(file);
    std::fs::write(
        &path,
        "this is not a catalog, and it is longer than a header of one hundred bytes".repeat(9),
    )
    .unwrap();
    refused(open(), ErrorKind::Io);
    refused(
        Sqlite::open(Path::new("/proc/none"), Options::default()).map(drop),
        ErrorKind::Io,
    );
}

/// Tables as version 2 had them: each in two B-trees.
#[test]
fn a_catalog_of_two_trees_becomes_one_of_one() {
    let dir = tempfile::tempdir().unwrap();
    let open = || {
        let options = Options::default();
        Env::new(std::sync::Arc::new(Sqlite::open(dir.path(), options).unwrap()))
    };
    let env = open();
    let made = env.create("/f");
    env.symlink("/l", "f");
    drop(env);
    let file = rusqlite::Connection::open(dir.path().join("catalog.sqlite")).unwrap();
    let defined = |table: &str| -> String {
        let sql = "SELECT sql FROM sqlite_master WHERE name = ?1";
        file.query_row(sql, [table], |r| r.get(0)).unwrap()
    };
    for table in ["inode", "usage"] {
        let new = defined(table);
        assert!(new.contains("INTEGER PRIMARY KEY"), "{new}");
        let old = new.replace("INTEGER PRIMARY KEY", "BIGINT PRIMARY KEY");
        let batch = format!(
            "ALTER TABLE {table} RENAME TO now; {old}; INSERT INTO {table} SELECT * FROM now; DROP TABLE now;"
        );
        file.execute_batch(&batch).unwrap();
        assert!(defined(table).contains("BIGINT PRIMARY KEY"));
    }
    file.execute("UPDATE meta SET value = 2 WHERE name = 'schema'", [])
        .unwrap();
    let env = open();
    for table in ["inode", "usage"] {
        assert!(
            defined(table).contains("INTEGER PRIMARY KEY"),
            "{}",
            defined(table)
        );
    }
    assert_eq!(ok(env.stat("/f")).ino, made.ino);
    assert_eq!(ok(env.stat("/l")).kind, Kind::Symlink);
    env.create("/g");
    assert!(ok(env.call(CheckInvariants { limit: 10 })).is_empty());
}

#[test]
fn a_row_that_cannot_be_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let open = || {
        Env::new(std::sync::Arc::new(
            Sqlite::open(dir.path(), Options::default()).unwrap(),
        ))
    };
    let env = open();
    env.create("/f");
    env.symlink("/l", "f");
    drop(env);
    let file = rusqlite::Connection::open(dir.path().join("catalog.sqlite")).unwrap();
    let spoil = |sql: &str| file.execute(sql, []).unwrap();
    for sql in [
        "UPDATE inode SET kind = 9 WHERE kind = 0",
        "UPDATE inode SET kind = 0, size = -1 WHERE kind = 9",
        "UPDATE inode SET size = 0, uid = 999 WHERE size = -1",
        "UPDATE inode SET uid = 2, mode = 'x' WHERE uid = 999",
    ] {
        assert_eq!(spoil(sql), 1);
        let env = open();
        refused(env.stat("/f"), ErrorKind::Corrupt);
        assert_eq!(ok(env.stat("/")).kind, Kind::Dir, "the others are there");
    }
    spoil("UPDATE inode SET mode = 420 WHERE mode = 'x'");
    spoil("UPDATE inode SET target = NULL WHERE kind = 2");
    spoil("UPDATE inode SET nlink = 7 WHERE kind = 0");
    let env = open();
    refused(
        env.call(Stat {
            place: super::at("/l"),
            follow: true,
        }),
        ErrorKind::Corrupt,
    );
    let found = ok(env.call(CheckInvariants { limit: 100 }));
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with(b"a file or symbolic link's links are not its names"));
}

#[test]
fn a_log_made_in_advance_keeps_its_length_and_what_was_answered() {
    const LOG_BYTES: u64 = 3 << 20;
    let (dir, image) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let open = |dir: &Path| {
        let log_bytes = LOG_BYTES;
        let options = Options {
            log_bytes,
            ..Options::default()
        };
        Env::new(std::sync::Arc::new(Sqlite::open(dir, options).unwrap()))
    };
    let log = dir.path().join("catalog.sqlite-wal");
    let length = || log.metadata().unwrap().len();
    let env = open(dir.path());
    assert_eq!(length(), LOG_BYTES);
    let names = || (0..50).map(|n| format!("/f{n}"));
    names().for_each(|n| drop(env.create(&n)));
    assert_eq!(length(), LOG_BYTES, "commits write over what is there");
    // What a crash leaves: the log has all of it.
    for file in ["catalog.sqlite", "catalog.sqlite-wal"] {
        std::fs::copy(dir.path().join(file), image.path().join(file)).unwrap();
    }
    let left = open(image.path());
    for name in names() {
        assert_eq!(ok(left.stat(&name)).kind, Kind::File);
    }
    assert!(ok(left.call(CheckInvariants { limit: 10 })).is_empty());
}

/// The child: the folder is a file system of 6 MiB, one of them taken.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(SMALL_DISK) else {
        return;
    };
    let dir = Path::new(&dir);
    std::fs::write(dir.join("ballast"), vec![0; 1 << 20]).unwrap();
    let env = Env::new(std::sync::Arc::new(
        Sqlite::open(&dir.join("catalog"), Options::default()).unwrap(),
    ));
    let create = |n: u32| {
        let place = super::at(&format!("/{n}-{}", "n".repeat(200)));
        env.call(Create {
            place,
            mode: 0o644,
            umask: 0,
            exclusive: true,
            open: false,
        })
    };
    let mut made = 0;
    let error = loop {
        match create(made) {
            Ok(_) => made += 1,
            Err(e) => break e,
        }
    };
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    assert!(made > 100, "{made}");
    assert_eq!(
        env.names("/", 1000).len() as u32,
        made,
        "what was acknowledged, and nothing else"
    );
    refused(create(made), ErrorKind::NoSpace);
    std::fs::remove_file(dir.join("ballast")).unwrap();
    ok(create(made));
    env.invariants_hold();
}

#[test]
fn a_full_disk_is_said_and_survived() {
    let dir = tempfile::tempdir().unwrap();
    // A mount namespace of its own: the small disk goes with the child.
    let script = "mount -t tmpfs -o size=6m none \"$0\" && exec \"$@\"";
    let mut run = Command::new("unshare");
    run.args(["-Urm", "sh", "-c", script])
        .arg(dir.path())
        .arg(std::env::current_exe().unwrap());
    run.args(["--exact", "suite::embedded::child", "--nocapture"])
        .env(SMALL_DISK, dir.path());
    let out = run.output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(
        out.status.success(),
        "{text}\n{}",
        String::from_utf8_lossy(&out.stderr)
    );
    assert!(text.contains("1 passed"), "{text}");
}
