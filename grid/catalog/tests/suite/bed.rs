//! A catalog to test, by back end.

use super::server::Server;
use super::Env;
use kuroshio_catalog::{Catalog, Options, Postgres, Sqlite};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

/// Makes catalogs over one set of data.
pub trait Bed {
    /// Opens with options. SQLite is for one process: opening again closes what was open.
    fn open_with(&self, options: Options) -> Arc<dyn Catalog>;

    /// Another service on the same data, where the back end can have one.
    fn second(&self) -> Option<Env>;

    fn env(&self) -> Env {
        Env::new(self.open_with(Options::default()))
    }

    /// Every case ends with all invariants checked on a freshly opened catalog.
    fn finish(&self) {
        self.env().invariants_hold();
    }
}

pub struct SqliteBed {
    dir: tempfile::TempDir,
    open: Mutex<Option<std::sync::Weak<dyn Catalog>>>,
}

impl SqliteBed {
    pub fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), open: Mutex::new(None) }
    }
}

impl Bed for SqliteBed {
    fn open_with(&self, options: Options) -> Arc<dyn Catalog> {
        let mut open = self.open.lock().unwrap();
        if let Some(former) = open.take() {
            assert!(former.upgrade().is_none(), "a case drops its catalog before it opens it again");
        }
        let catalog: Arc<dyn Catalog> = Arc::new(Sqlite::open(self.dir.path(), options).unwrap());
        *open = Some(Arc::downgrade(&catalog));
        catalog
    }

    fn second(&self) -> Option<Env> {
        None
    }
}

/// A database of its own on the server that all cases of this process share.
pub struct PostgresBed {
    url: String,
}

impl PostgresBed {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("case{}", NEXT.fetch_add(1, Ordering::Relaxed));
        Self { url: Server::shared().database(&name) }
    }
}

impl Bed for PostgresBed {
    fn open_with(&self, options: Options) -> Arc<dyn Catalog> {
        Arc::new(Postgres::connect(&self.url, options).unwrap())
    }

    fn second(&self) -> Option<Env> {
        Some(self.env())
    }
}
