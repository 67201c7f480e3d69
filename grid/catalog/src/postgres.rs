//! The catalog of several services.

use crate::engine::{Engine, Options};
use crate::sql::postgres::PostgresServer;
use crate::{Caller, Catalog, CatalogError, Done, Op};

/// A catalog in a PostgreSQL database, which any number of processes may have open. Ends its threads when
/// dropped, after all that was submitted is answered.
pub struct Postgres {
    engine: Engine<PostgresServer>,
}

impl Postgres {
    /// Connects to a database that is there, and makes an empty catalog in it if it has none.
    ///
    /// `url` is a connection string (`host=/run/postgresql user=grid dbname=grid`) or a `postgresql://` URL;
    /// with `sslmode=require` the connection is encrypted, with `sslmode=verify-full` and `sslrootcert=FILE` its server
    /// is known too; without, it is a socket of the machine, or a network of its own.
    ///
    /// # Errors
    /// The server cannot be reached or refuses, or the catalog is of a newer program.
    pub fn connect(url: &str, options: Options) -> Result<Self, CatalogError> {
        let writers = options.writers;
        let server = PostgresServer::new(url)?;
        Ok(Self {
            engine: Engine::start(server, options, writers)?,
        })
    }
}

impl Catalog for Postgres {
    fn submit(&self, caller: &Caller, op: Op, done: Done) {
        self.engine.submit(caller, op, done);
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn describe(&self) -> String {
        self.engine.describe()
    }
}
