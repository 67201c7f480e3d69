//! What a service needs before it starts: its catalog, and the keys of a grid that is there already.

use std::path::Path;
use std::sync::Arc;

use kuroshio_catalog::{Catalog, Options, Postgres, Sqlite};
use kuroshio_service::{Identity, ServiceError, private};

use crate::config::Config;
use crate::receipt::{self, Master};
use crate::server::MetadError;

/// Folder of the embedded catalog in a service's folder.
const CATALOG: &str = "catalog";
/// Log of the embedded catalog that is made in advance, bytes: what it has when it is copied back, and the largest commit.
const LOG_BYTES: u64 = 36 << 20;
/// What services beside each other have in common: key and certificate, and the secret of receipts.
const COMMON: [&str; 3] = ["key.der", "cert.der", receipt::FILE];
/// Largest of these files, bytes.
const MAX_KEY_BYTES: u64 = 64 * 1024;

/// Opens the catalog that the configuration in `dir` names: a database, or the file in `dir`.
///
/// # Errors
/// It cannot be reached, another process has the file open, or it is of a newer program.
pub fn open_catalog(dir: &Path, config: &Config) -> Result<Arc<dyn Catalog>, MetadError> {
    let catalog: Arc<dyn Catalog> = match &config.database {
        Some(database) => Arc::new(Postgres::connect(database, Options::default())?),
        None => {
            let options = Options {
                log_bytes: LOG_BYTES,
                ..Options::default()
            };
            Arc::new(Sqlite::open(&dir.join(CATALOG), options)?)
        }
    };
    Ok(catalog)
}

/// Makes the keys of a new service in `dir`, if they are not there.
///
/// # Errors
/// Files that cannot be made or read.
pub fn make_keys(dir: &Path) -> Result<Identity, MetadError> {
    let identity = Identity::open(dir)?;
    Master::open(dir)?;
    Ok(identity)
}

/// Gives the folder `dir` the keys of the service in `other` ([`make_keys`]): a service that is
/// started there is one of the same grid.
///
/// # Errors
/// `other` has no keys yet, or they cannot be read or written.
pub fn beside(other: &Path, dir: &Path) -> Result<(), MetadError> {
    let mut files = Vec::new();
    for name in COMMON {
        let path = other.join(name);
        let Some(bytes) = private::read(&path, MAX_KEY_BYTES)? else {
            return Err(MetadError::Service(ServiceError::Invalid(format!(
                "{}: no such file; the folder of a metadata service, or a whole copy of it, is valid",
                path.display()
            ))));
        };
        files.push((name, bytes));
    }
    for (name, bytes) in files {
        private::write(&dir.join(name), &bytes)?;
    }
    Ok(())
}
