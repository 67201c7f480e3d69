//! SQLite: one file, one process, one writing connection and several reading ones.
//!
//! WAL with `synchronous=FULL`: a commit appends the changed pages to the log and flushes it (one
//! `fdatasync`) before it returns; readers see the last commit before they began. The log is copied back into
//! the file by the writer when it has [`CHECKPOINT_PAGES`], and then overwritten from its beginning, so that
//! most commits flush a file whose size does not change. A log that is made in advance ([`Options::log_bytes`])
//! spares the others the file system's journal too: zeros are no frames, so SQLite takes them for an empty rest.
//!
//! [`Options::log_bytes`]: crate::Options::log_bytes

use super::{Backend, Conn, DbError, DbKind, Dialect, P, Row, Sql, Value};
use rusqlite::types::{ToSql, ToSqlOutput, ValueRef};
use rusqlite::{Connection, OpenFlags, params_from_iter};
use std::fs::{File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Pages of the log after which it is copied back: 32 MiB. Smaller copies pages more often that change again
/// and again; larger makes the log that a reader searches, and a start after a crash, longer.
const CHECKPOINT_PAGES: u32 = 8192;
/// Page cache of the writer, KiB.
const WRITER_CACHE_KIB: i64 = 64 << 10;
/// Page cache of each reader, KiB.
const READER_CACHE_KIB: i64 = 16 << 10;
/// Zeros that are written to the log at once, bytes.
const LOG_PIECE_BYTES: usize = 1 << 20;
/// Prepared statements kept by a connection; the catalog has fewer.
const STATEMENTS: usize = 256;

/// A database file in a folder that is locked for this process.
pub(crate) struct SqliteFile {
    path: PathBuf,
    log_bytes: u64,
    /// Held as long as the catalog is open: its caches and open files belong to one process.
    _lock: File,
}

impl SqliteFile {
    /// Opens or makes `catalog.sqlite` in a folder; its writer makes a log of `log_bytes` in advance.
    ///
    /// # Errors
    /// The folder cannot be made or written, or another process has the catalog open.
    pub fn open(dir: &Path, log_bytes: u64) -> Result<Self, DbError> {
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
                return Err(DbError {
                    kind: DbKind::Broken,
                    source: source.into(),
                });
            }
            Err(TryLockError::Error(e)) => return Err(fault(e, "catalog.lock")),
        }
        Ok(Self {
            path: dir.join("catalog.sqlite"),
            log_bytes,
            _lock: lock,
        })
    }
}

impl Backend for SqliteFile {
    type Conn = SqliteConn;

    fn connect(&self, write: bool) -> Result<SqliteConn, DbError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let conn = Connection::open_with_flags(&self.path, flags)?;
        conn.set_prepared_statement_cache_capacity(STATEMENTS);
        conn.busy_timeout(std::time::Duration::from_secs(10))?;
        conn.pragma_update(None, "journal_mode", "WAL")?;
        conn.pragma_update(None, "synchronous", "FULL")?;
        conn.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
        conn.pragma_update(None, "temp_store", "MEMORY")?;
        conn.pragma_update(
            None,
            "cache_size",
            -(if write { WRITER_CACHE_KIB } else { READER_CACHE_KIB }),
        )?;
        if write {
            // Makes the log, where there is none yet.
            conn.execute_batch("BEGIN IMMEDIATE; COMMIT")?;
            // The writer is one, and writes nothing yet. Without it commits are slower, nothing else.
            let _ = lengthen_log(&self.log(), self.log_bytes);
        } else {
            conn.pragma_update(None, "query_only", true)?;
        }
        Ok(SqliteConn { conn })
    }

    fn describe(&self) -> String {
        format!("sqlite {}", self.path.display())
    }
}

impl SqliteFile {
    /// Where SQLite keeps its log.
    fn log(&self) -> PathBuf {
        self.path.with_extension("sqlite-wal")
    }
}

/// Writes zeros behind what a log has, until it has so many bytes, and flushes them: from then on the file system has
/// a place for each of them. When that cannot be, the log is as it was.
fn lengthen_log(log: &Path, bytes: u64) -> io::Result<()> {
    let mut file = File::options().append(true).open(log)?;
    let had = file.metadata()?.len();
    let done = append_zeros(&mut file, bytes.saturating_sub(had));
    if done.is_err() {
        file.set_len(had)?;
    }
    done
}

fn append_zeros(file: &mut File, bytes: u64) -> io::Result<()> {
    let zeros = vec![0; LOG_PIECE_BYTES];
    let mut left = bytes;
    while left > 0 {
        let piece = zeros.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        file.write_all(zeros.get(..piece).unwrap_or_default())?;
        left -= piece as u64;
    }
    file.sync_all()
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
        DbError {
            kind,
            source: Box::new(e),
        }
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
        self.exec(if write { "BEGIN IMMEDIATE" } else { "BEGIN" }, &[])
            .map(|_| ())
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
