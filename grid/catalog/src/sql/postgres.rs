//! PostgreSQL, and what speaks its protocol: several processes beside each other on one database.
//!
//! Changes run at `READ COMMITTED` and lock the rows that a decision rests on (`FOR UPDATE`): the directory
//! whose entries change, the inode whose content, links or replicas change, the route, the job. Two
//! transactions that lock in another order end by the server's deadlock detection, and one is run again.
//! Reads run at `REPEATABLE READ`, so that an answer is of one snapshot. `synchronous_commit` is set `on` for
//! each session: a commit returns when its log is flushed.

use super::postgres_tls as tls;
use super::{Backend, Conn, DbError, DbKind, Dialect, P, Row, Sql, Value};
use postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};
use postgres::{Client, Config, NoTls, Statement};
use std::collections::HashMap;
use std::error::Error;
use std::time::Duration;
use tokio_postgres_rustls::MakeRustlsConnect;

/// Longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A server and a database on it.
pub(crate) struct PostgresServer {
    config: Config,
    tls: Option<MakeRustlsConnect>,
    name: String,
}

impl PostgresServer {
    /// From a connection string (`host=/run/postgresql user=grid dbname=grid`, or a `postgresql://` URL); for TLS see
    /// [`super::postgres_tls`].
    ///
    /// # Errors
    /// A string or root certificates that cannot be read.
    pub fn new(url: &str) -> Result<Self, DbError> {
        let tls::Split { rest, mode } = tls::split(url)?;
        let (ssl_mode, tls) = tls::connector(&mode)?;
        let mut config: Config = rest.parse().map_err(|e: postgres::Error| {
            // The string may hold a password: the parser's words, never the string.
            DbError {
                kind: DbKind::Broken,
                source: format!("connection string: {}", deepest(&e)).into(),
            }
        })?;
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
        config.ssl_mode(ssl_mode);
        config.application_name("kuroshio-catalog");
        let hosts: Vec<String> = config.get_hosts().iter().map(|h| format!("{h:?}")).collect();
        let name = format!(
            "postgresql {} on {}",
            config.get_dbname().unwrap_or("(default)"),
            hosts.join(", ")
        );
        Ok(Self { config, tls, name })
    }
}

impl Backend for PostgresServer {
    type Conn = PostgresConn;

    fn connect(&self, _write: bool) -> Result<PostgresConn, DbError> {
        let mut client = match &self.tls {
            None => self.config.connect(NoTls)?,
            Some(tls) => self.config.connect(tls.clone())?,
        };
        client.batch_execute(
            "SET synchronous_commit = on; SET lock_timeout = '10s'; SET statement_timeout = '60s';
             SET idle_in_transaction_session_timeout = '60s'",
        )?;
        Ok(PostgresConn {
            client,
            statements: HashMap::new(),
        })
    }

    fn describe(&self) -> String {
        self.name.clone()
    }
}

/// One connection.
pub(crate) struct PostgresConn {
    client: Client,
    /// By the shared text of the statement.
    statements: HashMap<&'static str, Statement>,
}

fn deepest(e: &dyn Error) -> String {
    let mut text = e.to_string();
    let mut at = e;
    while let Some(next) = at.source() {
        text = format!("{text}: {next}");
        at = next;
    }
    text
}

impl From<postgres::Error> for DbError {
    fn from(e: postgres::Error) -> Self {
        use postgres::error::SqlState as S;
        let kind = match e.code() {
            Some(c) if *c == S::T_R_SERIALIZATION_FAILURE || *c == S::T_R_DEADLOCK_DETECTED => DbKind::Again,
            // Two transactions made the same row (a user's first file): the same again finds it.
            Some(c) if *c == S::UNIQUE_VIOLATION || *c == S::LOCK_NOT_AVAILABLE => DbKind::Again,
            Some(c) if *c == S::DISK_FULL => DbKind::Full,
            // Class 57P: the administrator or a crash ends the session; class 08: the connection;
            // class 53: no more connections.
            Some(c)
                if c.code().starts_with("57P")
                    || c.code().starts_with("08")
                    || c.code().starts_with("53") =>
            {
                DbKind::Gone
            }
            Some(_) => DbKind::Broken,
            // Without a state it is the connection that failed, or a value that cannot be sent or read.
            None if e.is_closed() || e.source().is_none_or(|s| s.is::<std::io::Error>()) => DbKind::Gone,
            None => DbKind::Broken,
        };
        DbError {
            kind,
            source: deepest(&e).into(),
        }
    }
}

impl ToSql for P<'_> {
    fn to_sql(
        &self,
        ty: &Type,
        out: &mut postgres::types::private::BytesMut,
    ) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        match self {
            P::Null => Ok(IsNull::Yes),
            P::Int(n) if *ty == Type::INT4 => i32::try_from(*n)?.to_sql(ty, out),
            P::Int(n) => n.to_sql(ty, out),
            P::Text(t) => t.to_sql(ty, out),
            P::Bytes(b) => b.to_sql(ty, out),
        }
    }

    fn accepts(ty: &Type) -> bool {
        matches!(*ty, Type::INT8 | Type::INT4 | Type::TEXT | Type::BYTEA)
    }

    to_sql_checked!();
}

impl<'a> FromSql<'a> for Value {
    fn from_sql(ty: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(match *ty {
            Type::INT8 => Value::Int(i64::from_sql(ty, raw)?),
            Type::INT4 => Value::Int(i32::from_sql(ty, raw)?.into()),
            Type::TEXT => Value::Text(String::from_sql(ty, raw)?),
            _ => Value::Bytes(raw.to_vec()),
        })
    }

    fn from_sql_null(_: &Type) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Value::Null)
    }

    fn accepts(ty: &Type) -> bool {
        matches!(*ty, Type::INT8 | Type::INT4 | Type::TEXT | Type::BYTEA)
    }
}

impl PostgresConn {
    fn statement(&mut self, sql: &'static str) -> Result<Statement, DbError> {
        if let Some(s) = self.statements.get(sql) {
            return Ok(s.clone());
        }
        let s = self.client.prepare(&Dialect::Postgres.translate(sql))?;
        self.statements.insert(sql, s.clone());
        Ok(s)
    }
}

impl Sql for PostgresConn {
    fn dialect(&self) -> Dialect {
        Dialect::Postgres
    }

    fn query(&mut self, sql: &'static str, params: &[P<'_>]) -> Result<Vec<Row>, DbError> {
        let statement = self.statement(sql)?;
        let params: Vec<&(dyn ToSql + Sync)> = params.iter().map(|p| p as &(dyn ToSql + Sync)).collect();
        let rows = self.client.query(&statement, &params)?;
        let mut out = Vec::with_capacity(rows.len());
        for row in rows {
            let values: Result<Vec<Value>, _> = (0..row.len()).map(|i| row.try_get(i)).collect();
            out.push(Row(values?));
        }
        Ok(out)
    }

    fn exec(&mut self, sql: &'static str, params: &[P<'_>]) -> Result<u64, DbError> {
        let statement = self.statement(sql)?;
        let params: Vec<&(dyn ToSql + Sync)> = params.iter().map(|p| p as &(dyn ToSql + Sync)).collect();
        Ok(self.client.execute(&statement, &params)?)
    }
}

impl Conn for PostgresConn {
    fn begin(&mut self, write: bool) -> Result<(), DbError> {
        let sql = if write {
            "BEGIN ISOLATION LEVEL READ COMMITTED"
        } else {
            "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
        };
        Ok(self.client.batch_execute(sql)?)
    }

    fn commit(&mut self) -> Result<(), DbError> {
        Ok(self.client.batch_execute("COMMIT")?)
    }

    fn rollback(&mut self) -> Result<(), DbError> {
        Ok(self.client.batch_execute("ROLLBACK")?)
    }
}
