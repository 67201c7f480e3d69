//! The embedded catalog.

use crate::engine::{Engine, Options};
use crate::limits::MAX_LOG_BYTES;
use crate::sql::sqlite::SqliteFile;
use crate::{Caller, Catalog, CatalogError, Done, Op, Reply};
use std::path::Path;

/// A catalog in a folder of this machine, for one process. Ends its threads when dropped, after all that was
/// submitted is answered.
pub struct Sqlite {
    engine: Engine<SqliteFile>,
}

impl Sqlite {
    /// Opens the catalog of a folder, or makes an empty one: a root directory `0755` of `admin`, one copy
    /// wanted of each file, no sites and nodes.
    ///
    /// # Errors
    /// The folder cannot be made or written, another process has the catalog open, or it is of a newer program.
    pub fn open(dir: &Path, options: Options) -> Result<Self, CatalogError> {
        let file = SqliteFile::open(dir, options.log_bytes.min(MAX_LOG_BYTES))?;
        Ok(Self {
            engine: Engine::start(file, options, 1)?,
        })
    }
}

impl Catalog for Sqlite {
    fn submit(&self, caller: &Caller, op: Op, done: Done) {
        self.engine.submit(caller, op, done);
    }

    fn wait(&self, caller: &Caller, op: Op) -> Result<Reply, CatalogError> {
        self.engine.wait(caller, op)
    }

    fn read_now(&self, caller: &Caller, op: &Op) -> Option<Result<Reply, CatalogError>> {
        self.engine.read_now(caller, op)
    }

    fn is_shared(&self) -> bool {
        false
    }

    fn describe(&self) -> String {
        self.engine.describe()
    }
}
