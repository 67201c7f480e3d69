//! The small layer of SQL that both back ends share.
//!
//! Operations write one SQL for both. Its placeholders are `?1`, `?2`, ...; where the dialects differ a word
//! in braces stands, which [`Dialect::translate`] replaces:
//!
//! | word | SQLite | PostgreSQL | why |
//! |---|---|---|---|
//! | `{lock}` | | `FOR UPDATE` | SQLite has one writer at a time; PostgreSQL locks the rows that a decision rests on |
//! | `{skip}` | | `FOR UPDATE SKIP LOCKED` | several services claim jobs without waiting for each other |
//! | `{bytes}` | `BLOB` | `BYTEA` | |
//! | `{rowless}` | `WITHOUT ROWID` | | one B-tree instead of two |
//! | `{death}` | `?4` | `?4` + the transaction's number | order of deaths of contents (`ops::upkeep`) |
//! | `{dirlock}` | | `pg_advisory_xact_lock(1)` | moves of directories, one at a time in the whole grid |
//!
//! All numbers are 64-bit signed, all texts UTF-8, names of files bytes.

pub(crate) mod postgres;
mod postgres_tls;
pub(crate) mod schema;
pub(crate) mod sqlite;

use crate::{CatalogError, ErrorKind};
use std::borrow::Cow;

/// A parameter.
#[derive(Clone, Copy, Debug)]
pub(crate) enum P<'a> {
    Null,
    Int(i64),
    Text(&'a str),
    Bytes(&'a [u8]),
}

impl From<i64> for P<'_> {
    fn from(n: i64) -> Self {
        P::Int(n)
    }
}

impl From<u64> for P<'_> {
    fn from(n: u64) -> Self {
        // Every number of the catalog is bounded below 2^63 where it enters (limits, `Place`, ids).
        P::Int(i64::try_from(n).unwrap_or(i64::MAX))
    }
}

impl From<u32> for P<'_> {
    fn from(n: u32) -> Self {
        P::Int(i64::from(n))
    }
}

impl<'a> From<&'a str> for P<'a> {
    fn from(t: &'a str) -> Self {
        P::Text(t)
    }
}

impl<'a> From<&'a String> for P<'a> {
    fn from(t: &'a String) -> Self {
        P::Text(t)
    }
}

impl<'a> From<&'a [u8]> for P<'a> {
    fn from(b: &'a [u8]) -> Self {
        P::Bytes(b)
    }
}

impl<'a> From<&'a Vec<u8>> for P<'a> {
    fn from(b: &'a Vec<u8>) -> Self {
        P::Bytes(b)
    }
}

impl<'a, T: Into<P<'a>>> From<Option<T>> for P<'a> {
    fn from(v: Option<T>) -> Self {
        v.map_or(P::Null, Into::into)
    }
}

/// Parameters of a statement, in order.
macro_rules! p {
    ($($value:expr),* $(,)?) => { &[$($crate::sql::P::from($value)),*] };
}
pub(crate) use p;

/// A value of a row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Null,
    Int(i64),
    Text(String),
    Bytes(Vec<u8>),
}

/// One row of an answer. Reading a column as what it is not says `Corrupt`: rows come from a file.
#[derive(Clone, Debug)]
pub(crate) struct Row(pub Vec<Value>);

impl Row {
    fn odd(&self, i: usize) -> CatalogError {
        let what = match self.0.get(i) {
            None => "missing",
            Some(Value::Null) => "null",
            Some(Value::Int(_)) => "a number out of range or not expected",
            Some(Value::Text(_)) => "a text",
            Some(Value::Bytes(_)) => "bytes",
        };
        CatalogError::new(
            ErrorKind::Corrupt,
            format!("column {i} of a row of the catalog is {what}"),
        )
    }

    pub fn int(&self, i: usize) -> Result<i64, CatalogError> {
        match self.0.get(i) {
            Some(Value::Int(n)) => Ok(*n),
            _ => Err(self.odd(i)),
        }
    }

    pub fn num<T: TryFrom<i64>>(&self, i: usize) -> Result<T, CatalogError> {
        T::try_from(self.int(i)?).map_err(|_| self.odd(i))
    }

    pub fn opt<T: TryFrom<i64>>(&self, i: usize) -> Result<Option<T>, CatalogError> {
        match self.0.get(i) {
            Some(Value::Null) => Ok(None),
            _ => self.num(i).map(Some),
        }
    }

    pub fn text(&self, i: usize) -> Result<String, CatalogError> {
        match self.0.get(i) {
            Some(Value::Text(t)) => Ok(t.clone()),
            _ => Err(self.odd(i)),
        }
    }

    pub fn opt_text(&self, i: usize) -> Result<Option<String>, CatalogError> {
        match self.0.get(i) {
            Some(Value::Null) => Ok(None),
            _ => self.text(i).map(Some),
        }
    }

    pub fn bytes(&self, i: usize) -> Result<Vec<u8>, CatalogError> {
        match self.0.get(i) {
            Some(Value::Bytes(b)) => Ok(b.clone()),
            _ => Err(self.odd(i)),
        }
    }

    pub fn opt_bytes(&self, i: usize) -> Result<Option<Vec<u8>>, CatalogError> {
        match self.0.get(i) {
            Some(Value::Null) => Ok(None),
            _ => self.bytes(i).map(Some),
        }
    }
}

/// What a database's failure means for the transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DbKind {
    /// Another transaction was in the way: the same again may succeed.
    Again,
    /// The connection is gone.
    Gone,
    /// No space.
    Full,
    /// Anything else.
    Broken,
}

/// A failure of the database.
#[derive(Debug)]
pub(crate) struct DbError {
    pub kind: DbKind,
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

impl From<DbError> for CatalogError {
    fn from(e: DbError) -> Self {
        let (kind, what) = match e.kind {
            DbKind::Again => (ErrorKind::Busy, "other changes were in the way again and again"),
            DbKind::Gone => (ErrorKind::Unavailable, "the catalog's database cannot be reached"),
            DbKind::Full => (ErrorKind::NoSpace, "no space for the catalog"),
            DbKind::Broken => (ErrorKind::Io, "the catalog's database failed"),
        };
        CatalogError::new(kind, format!("{what}: {}", e.source)).with_source(e.source)
    }
}

/// Why an operation ended without an answer.
#[derive(Debug)]
pub(crate) enum Fault {
    /// It is refused.
    Refused(CatalogError),
    /// The database failed.
    Db(DbError),
    /// It needs a writer (reserved numbers are used up).
    NeedsWriter,
}

impl From<CatalogError> for Fault {
    fn from(e: CatalogError) -> Self {
        Fault::Refused(e)
    }
}

impl From<DbError> for Fault {
    fn from(e: DbError) -> Self {
        Fault::Db(e)
    }
}

/// Result inside of an operation.
pub(crate) type R<T> = Result<T, Fault>;

/// A refusal about something.
pub(crate) fn refuse<T>(kind: ErrorKind, what: impl Into<String>) -> R<T> {
    Err(Fault::Refused(CatalogError::new(kind, what)))
}

/// Which SQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    Sqlite,
    Postgres,
}

impl Dialect {
    /// The shared SQL in this dialect.
    pub fn translate(self, sql: &'static str) -> Cow<'static, str> {
        const WORDS: [(&str, &str, &str); 6] = [
            ("{lock}", "", "FOR UPDATE"),
            ("{skip}", "", "FOR UPDATE SKIP LOCKED"),
            ("{bytes}", "BLOB", "BYTEA"),
            ("{rowless}", "WITHOUT ROWID", ""),
            (
                "{death}",
                "?4",
                "CAST(?4 AS BIGINT) + CAST(CAST(pg_current_xact_id() AS TEXT) AS BIGINT)",
            ),
            ("{dirlock}", "1", "1 FROM (SELECT pg_advisory_xact_lock(1)) held"),
        ];
        let mut out = Cow::Borrowed(sql);
        for (word, lite, pg) in WORDS {
            if out.contains(word) {
                let with = if self == Dialect::Sqlite { lite } else { pg };
                out = Cow::Owned(out.replace(word, with));
            }
        }
        if self == Dialect::Postgres && out.contains('?') {
            out = Cow::Owned(out.replace('?', "$"));
        }
        out
    }
}

/// A connection with statements.
pub(crate) trait Sql {
    fn dialect(&self) -> Dialect;
    /// All rows of a statement.
    fn query(&mut self, sql: &'static str, params: &[P<'_>]) -> Result<Vec<Row>, DbError>;
    /// Rows changed by a statement.
    fn exec(&mut self, sql: &'static str, params: &[P<'_>]) -> Result<u64, DbError>;
}

/// A connection with transactions.
pub(crate) trait Conn: Sql + Send {
    fn begin(&mut self, write: bool) -> Result<(), DbError>;
    /// Ends the transaction; when it returns, what it changed is durable.
    fn commit(&mut self) -> Result<(), DbError>;
    /// Ends the transaction without effect. A failure means that the connection is of no use any more.
    fn rollback(&mut self) -> Result<(), DbError>;
    /// Upkeep between transactions (checkpoints).
    fn rest(&mut self) -> Result<(), DbError> {
        Ok(())
    }
}

/// Where connections come from.
pub(crate) trait Backend: Send + Sync + 'static {
    type Conn: Conn + 'static;
    fn connect(&self, write: bool) -> Result<Self::Conn, DbError>;
    fn describe(&self) -> String;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_become_the_dialects() {
        let sql = "SELECT a FROM t WHERE b = ?1 AND c = ?2 {lock}";
        assert_eq!(
            Dialect::Sqlite.translate(sql),
            "SELECT a FROM t WHERE b = ?1 AND c = ?2 "
        );
        assert_eq!(
            Dialect::Postgres.translate(sql),
            "SELECT a FROM t WHERE b = $1 AND c = $2 FOR UPDATE"
        );
        assert_eq!(
            Dialect::Postgres.translate("CREATE TABLE x (a {bytes}) {rowless}"),
            "CREATE TABLE x (a BYTEA) "
        );
    }

    #[test]
    fn columns_are_what_they_are() {
        let row = Row(vec![Value::Int(-1), Value::Null, Value::Bytes(vec![1])]);
        assert_eq!(row.int(0).unwrap(), -1);
        assert_eq!(row.num::<u64>(0).unwrap_err().kind(), ErrorKind::Corrupt);
        assert_eq!(row.opt::<u64>(1).unwrap(), None);
        assert_eq!(row.text(2).unwrap_err().kind(), ErrorKind::Corrupt);
        assert_eq!(row.bytes(3).unwrap_err().kind(), ErrorKind::Corrupt);
    }
}
