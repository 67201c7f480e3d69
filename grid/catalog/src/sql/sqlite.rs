//! SQLite: one file, one process, one writing connection and several reading ones.
//!
//! WAL with `synchronous=FULL`: a commit appends the changed pages to the log and flushes it (one
//! `fdatasync`) before it returns; readers see the last commit before they began. The log is copied back into
//! the file by the writer when it has [`CHECKPOINT_PAGES`], and then overwritten from its beginning, so that
//! most commits flush a file whose size does not change.

use super::{Backend, Conn, DbError, DbKind, Dialect, P, Row, Sql, Value};
use rusqlite::types::{ToSql, ToSqlOutput, ValueRef};
use rusqlite::{Connection, OpenFlags, params_from_iter};
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

/// Pages of the log after which it is copied back: 32 MiB. Smaller copies pages more often that change again
/// and again; larger makes the log that a reader searches, and a start after a crash, longer.
const CHECKPOINT_PAGES: u32 = 8192;
/// Page cache of the writer, KiB.
const WRITER_CACHE_KIB: i64 = 64 << 10;
/// Page cache of each reader, KiB.
const READER_CACHE_KIB: i64 = 16 << 10;
/// Prepared statements kept by a connection; the catalog has fewer.
const STATEMENTS: usize = 256;

/// A database file in a folder that is locked for this process.
pub(crate) struct SqliteFile {
    path: PathBuf,
    /// Held as long as the catalog is open: its caches and open files belong to one process.
    _lock: File,
}

impl SqliteFile {
    /// Opens or makes `catalog.sqlite` in a folder.
    ///
    /// # Errors
    /// The folder cannot be made or written, or another process has the catalog open.
    pub fn open(dir: &Path) -> Result<Self, DbError> {
        let fault = |e: std::io::Error, what: &str| DbError {
            kind: DbKind::Broken,
            source: format!("{}: {what}: {e}", dir.display()).into(),
        };
        std::fs::create_dir_all(dir).map_err(|e| fault(e, "cannot be made"))?;
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(dir.join("catalog.lock"))
            .map_err(|e| fault(e, "catalog.lock"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let source = format!("{}: another process has this catalog open", dir.display());
                return Err(DbError { kind: DbKind::Broken, source: source.into() });
            }
            Err(TryLockError::Error(e)) => return Err(fault(e, "catalog.lock")),
        }
        Ok(Self { path: dir.join("catalog.sqlite"), _lock: lock })
    }
}

impl Backend for SqliteFile {
    type Conn = SqliteConn;

    fn connect(&self, write: bool) -> Result<SqliteConn, DbError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let conn = Connection::open_with_flags(&self.path, flags)?;
        conn.set_prepared_statement_cache_capacity(STATEMENTS);
        conn.busy_timeout(std::time::Duration::from_secs(10))?;
        conn.pragma_update(None, "journal_mode", "WAL")?;
        conn.pragma_update(None, "synchronous", "FULL")?;
        conn.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
        conn.pragma_update(None, "temp_store", "MEMORY")?;
        conn.pragma_update(None, "cache_size", -(if write { WRITER_CACHE_KIB } else { READER_CACHE_KIB }))?;
        if !write {
            conn.pragma_update(None, "query_only", true)?;
        }
        Ok(SqliteConn { conn })
    }

    fn describe(&self) -> String {
        format!("sqlite {}", self.path.display())
    }
}

/// One connection.
pub(crate) struct SqliteConn {
    conn: Connection,
}

impl From<rusqlite::Error> for DbError {
    fn from(e: rusqlite::Error) -> Self {
        use rusqlite::ErrorCode as C;
        let kind = match e.sqlite_error_code() {
            Some(C::DatabaseBusy | C::DatabaseLocked) => DbKind::Again,
            Some(C::DiskFull) => DbKind::Full,
            _ => DbKind::Broken,
        };
        DbError { kind, source: Box::new(e) }
    }
}

impl ToSql for P<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            P::Null => ValueRef::Null,
            P::Int(n) => ValueRef::Integer(*n),
            P::Text(t) => ValueRef::Text(t.as_bytes()),
            P::Bytes(b) => ValueRef::Blob(b),
        }))
    }
}

fn value(v: ValueRef<'_>) -> Value {
    match v {
        ValueRef::Integer(n) => Value::Int(n),
        ValueRef::Text(t) => Value::Text(String::from_utf8_lossy(t).into_owned()),
        ValueRef::Blob(b) => Value::Bytes(b.to_vec()),
        // The catalog stores no floats; reading one as anything says `Corrupt`.
        ValueRef::Null | ValueRef::Real(_) => Value::Null,
    }
}

impl Sql for SqliteConn {
    fn dialect(&self) -> Dialect {
        Dialect::Sqlite
    }

    fn query(&mut self, sql: &'static str, params: &[P<'_>]) -> Result<Vec<Row>, DbError> {
        let mut statement = self.conn.prepare_cached(&Dialect::Sqlite.translate(sql))?;
        let columns = statement.column_count();
        let mut rows = statement.query(params_from_iter(params))?;
        let mut out = Vec::new();
        while let Some(row) = rows.next()? {
            let mut values = Vec::with_capacity(columns);
            for i in 0..columns {
                values.push(value(row.get_ref(i)?));
            }
            out.push(Row(values));
        }
        Ok(out)
    }

    fn exec(&mut self, sql: &'static str, params: &[P<'_>]) -> Result<u64, DbError> {
        let mut statement = self.conn.prepare_cached(&Dialect::Sqlite.translate(sql))?;
        Ok(statement.execute(params_from_iter(params))? as u64)
    }
}

impl Conn for SqliteConn {
    fn begin(&mut self, write: bool) -> Result<(), DbError> {
        self.exec(if write { "BEGIN IMMEDIATE" } else { "BEGIN" }, &[]).map(|_| ())
    }

    fn commit(&mut self) -> Result<(), DbError> {
        self.exec("COMMIT", &[]).map(|_| ())
    }

    fn rollback(&mut self) -> Result<(), DbError> {
        // SQLite ends a transaction itself after some failures.
        if self.conn.is_autocommit() {
            return Ok(());
        }
        self.exec("ROLLBACK", &[]).map(|_| ())
    }
}
