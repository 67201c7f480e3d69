//! Tables, and how one version becomes the next.
//!
//! `docs/catalog.md` explains each table. A version is never edited once released: a change is a new entry of
//! [`VERSIONS`]. Each is applied in one transaction with the number it leads to.

use super::{Conn, DbError, DbKind, Dialect, p};

/// Statements from version `i` to `i + 1`.
pub(crate) const VERSIONS: &[&[&str]] = &[V1, PRESENCE, ONE_TREE];

/// Begins a statement that only SQLite gets.
const SQLITE: &str = "{sqlite}";

const V1: &[&str] = &[
    // Owners, groups and copy rules by number. Rows are never changed or removed, so they may be cached.
    "CREATE TABLE intern (id BIGINT PRIMARY KEY, kind BIGINT NOT NULL, text TEXT NOT NULL, UNIQUE (kind, text))",
    "CREATE TABLE inode (ino BIGINT PRIMARY KEY, kind BIGINT NOT NULL, mode BIGINT NOT NULL, uid BIGINT NOT NULL,
        gid BIGINT NOT NULL, nlink BIGINT NOT NULL, size BIGINT NOT NULL, gen BIGINT NOT NULL,
        version BIGINT NOT NULL, frags BIGINT NOT NULL, atime BIGINT NOT NULL, mtime BIGINT NOT NULL,
        ctime BIGINT NOT NULL, btime BIGINT NOT NULL, parent BIGINT NOT NULL, qdir BIGINT NOT NULL,
        rule BIGINT NOT NULL, acl {bytes}, dacl {bytes}, target {bytes})",
    "CREATE TABLE dirent (parent BIGINT NOT NULL, name {bytes} NOT NULL, ino BIGINT NOT NULL,
        kind BIGINT NOT NULL, PRIMARY KEY (parent, name)) {rowless}",
    "CREATE TABLE xattr (ino BIGINT NOT NULL, name {bytes} NOT NULL, value {bytes} NOT NULL,
        PRIMARY KEY (ino, name)) {rowless}",
    "CREATE TABLE fragment (ino BIGINT NOT NULL, gen BIGINT NOT NULL, idx BIGINT NOT NULL, ogen BIGINT NOT NULL,
        size BIGINT NOT NULL, digest {bytes} NOT NULL, PRIMARY KEY (ino, gen, idx)) {rowless}",
    "CREATE TABLE replica (ino BIGINT NOT NULL, ogen BIGINT NOT NULL, idx BIGINT NOT NULL, node BIGINT NOT NULL,
        state BIGINT NOT NULL, PRIMARY KEY (ino, ogen, idx, node)) {rowless}",
    "CREATE INDEX replica_node ON replica (node, ino, ogen, idx)",
    // Those that somebody has to do something about: all states but Valid (1).
    "CREATE INDEX replica_odd ON replica (node, state, ino, ogen, idx) WHERE state <> 1",
    // Published fragments whose valid replicas are not what their rule wants.
    "CREATE TABLE off_copies (ino BIGINT NOT NULL, ogen BIGINT NOT NULL, idx BIGINT NOT NULL,
        missing BIGINT NOT NULL, surplus BIGINT NOT NULL, PRIMARY KEY (ino, ogen, idx)) {rowless}",
    // Kind 0 user, 1 group, 2 directory. Numbers of all three are of one sequence.
    "CREATE TABLE usage (id BIGINT PRIMARY KEY, kind BIGINT NOT NULL, files BIGINT NOT NULL, bytes BIGINT NOT NULL,
        max_files BIGINT, max_bytes BIGINT, up BIGINT NOT NULL)",
    "CREATE TABLE site (name TEXT PRIMARY KEY, note TEXT NOT NULL)",
    "CREATE TABLE node (id BIGINT PRIMARY KEY, name TEXT NOT NULL UNIQUE, site TEXT NOT NULL,
        address TEXT NOT NULL, pin TEXT NOT NULL, state BIGINT NOT NULL, capacity BIGINT NOT NULL,
        free BIGINT NOT NULL, load BIGINT NOT NULL, heartbeat BIGINT NOT NULL, since BIGINT NOT NULL)",
    "CREATE TABLE route (src TEXT NOT NULL, dst TEXT NOT NULL, capacity BIGINT NOT NULL, PRIMARY KEY (src, dst))",
    "CREATE TABLE lease (src TEXT NOT NULL, dst TEXT NOT NULL, holder TEXT NOT NULL, rate BIGINT NOT NULL,
        expires BIGINT NOT NULL, PRIMARY KEY (src, dst, holder))",
    "CREATE TABLE job (id BIGINT PRIMARY KEY, kind BIGINT NOT NULL, ino BIGINT NOT NULL, ogen BIGINT NOT NULL,
        idx BIGINT NOT NULL, source TEXT, destination TEXT, priority BIGINT NOT NULL, owner TEXT NOT NULL,
        state BIGINT NOT NULL, done BIGINT NOT NULL, total BIGINT NOT NULL, attempts BIGINT NOT NULL, worker TEXT,
        error TEXT, created BIGINT NOT NULL, updated BIGINT NOT NULL, claimed BIGINT)",
    "CREATE INDEX job_state ON job (state, priority, id)",
    "CREATE INDEX job_ino ON job (ino)",
    // Contents that no name leads to, until nobody has them open. `whole`: the inode goes too.
    "CREATE TABLE dead (ino BIGINT NOT NULL, gen BIGINT NOT NULL, whole BIGINT NOT NULL, seq BIGINT NOT NULL,
        PRIMARY KEY (ino, gen)) {rowless}",
    "CREATE INDEX dead_seq ON dead (seq)",
    // Drafts with staged fragments.
    "CREATE TABLE draft (ino BIGINT NOT NULL, gen BIGINT NOT NULL, touched BIGINT NOT NULL,
        PRIMARY KEY (ino, gen)) {rowless}",
    "CREATE TABLE session (id BIGINT PRIMARY KEY, seen BIGINT NOT NULL, expires BIGINT NOT NULL)",
    "CREATE TABLE hold (session BIGINT NOT NULL, ino BIGINT NOT NULL, gen BIGINT NOT NULL,
        PRIMARY KEY (session, ino, gen)) {rowless}",
    "CREATE INDEX hold_ino ON hold (ino)",
    // The root, its owner, group and rule; numbers from 16 on are given out.
    "INSERT INTO intern (id, kind, text) VALUES (2, 0, 'admin'), (3, 1, 'admin'), (4, 2, '1')",
    "INSERT INTO inode VALUES (1, 1, 493, 2, 3, 2, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 4, NULL, NULL, NULL)",
    "INSERT INTO usage (id, kind, files, bytes, up) VALUES (2, 0, 1, 0, 0), (3, 1, 1, 0, 0)",
    "INSERT INTO meta (name, value) VALUES ('ids', 16)",
];

/// Services beside each other: who hears which node, which services there are, whose turn a task is. `beat` counts
/// the times that a row was written: whether something lives is seen by its change, never by a clock.
const PRESENCE: &[&str] = &[
    // Kind 0 node, 1 service (its name is its address). `via`: the service that hears it.
    "CREATE TABLE presence (kind BIGINT NOT NULL, name TEXT NOT NULL, via TEXT NOT NULL, beat BIGINT NOT NULL,
        host TEXT NOT NULL, spool TEXT NOT NULL, objects BIGINT NOT NULL, closed BIGINT NOT NULL,
        PRIMARY KEY (kind, name)) {rowless}",
    "CREATE TABLE turn (name TEXT PRIMARY KEY, holder TEXT NOT NULL, beat BIGINT NOT NULL)",
];

/// A key of SQLite is the row's own number only if it is declared as `INTEGER`: one B-tree for a table, not two. These are the
/// tables in which each operation looks something up.
const ONE_TREE: &[&str] = &[
    "{sqlite}ALTER TABLE inode RENAME TO old_inode",
    "{sqlite}CREATE TABLE inode (ino INTEGER PRIMARY KEY, kind BIGINT NOT NULL, mode BIGINT NOT NULL, uid BIGINT NOT NULL,
        gid BIGINT NOT NULL, nlink BIGINT NOT NULL, size BIGINT NOT NULL, gen BIGINT NOT NULL,
        version BIGINT NOT NULL, frags BIGINT NOT NULL, atime BIGINT NOT NULL, mtime BIGINT NOT NULL,
        ctime BIGINT NOT NULL, btime BIGINT NOT NULL, parent BIGINT NOT NULL, qdir BIGINT NOT NULL,
        rule BIGINT NOT NULL, acl BLOB, dacl BLOB, target BLOB)",
    "{sqlite}INSERT INTO inode SELECT * FROM old_inode ORDER BY ino",
    "{sqlite}DROP TABLE old_inode",
    "{sqlite}ALTER TABLE usage RENAME TO old_usage",
    "{sqlite}CREATE TABLE usage (id INTEGER PRIMARY KEY, kind BIGINT NOT NULL, files BIGINT NOT NULL, bytes BIGINT NOT NULL,
        max_files BIGINT, max_bytes BIGINT, up BIGINT NOT NULL)",
    "{sqlite}INSERT INTO usage SELECT * FROM old_usage",
    "{sqlite}DROP TABLE old_usage",
];

/// Brings the database to the newest version; several processes may do it at once.
///
/// # Errors
/// A database made by a newer program, or what the database says.
pub(crate) fn migrate<C: Conn>(conn: &mut C) -> Result<(), DbError> {
    conn.begin(true)?;
    let done = migrate_in(conn);
    match done {
        Ok(()) => conn.commit(),
        Err(e) => {
            conn.rollback()?;
            Err(e)
        }
    }
}

fn migrate_in<C: Conn>(conn: &mut C) -> Result<(), DbError> {
    conn.query("SELECT {dirlock}", p![])?;
    conn.exec(
        "CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value BIGINT NOT NULL)",
        p![],
    )?;
    let rows = conn.query("SELECT value FROM meta WHERE name = 'schema'", p![])?;
    let found = rows.first().map_or(Ok(0), |r| r.int(0)).map_err(broken)?;
    let newest = VERSIONS.len();
    let Some(from) = usize::try_from(found).ok().filter(|v| *v <= newest) else {
        return Err(broken(format!(
            "the catalog has schema version {found}; this program knows versions to {newest}: use a newer program"
        )));
    };
    for version in &VERSIONS[from..] {
        for sql in *version {
            let sql = match sql.strip_prefix(SQLITE) {
                Some(_) if conn.dialect() != Dialect::Sqlite => continue,
                Some(sql) => sql,
                None => sql,
            };
            conn.exec(sql, p![])?;
        }
    }
    conn.exec(
        "INSERT INTO meta (name, value) VALUES ('schema', ?1) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        p![newest as u64],
    )?;
    Ok(())
}

fn broken(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> DbError {
    DbError {
        kind: DbKind::Broken,
        source: source.into(),
    }
}
