//! `metad.toml`: how a metadata service runs.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use kuroshio_service::{ServiceError, check_address, check_name, private};
use serde::{Deserialize, Serialize};

/// Name of the file in the service's folder.
const FILE: &str = "metad.toml";
/// Largest configuration that is read, bytes.
const MAX_CONFIG_BYTES: u64 = 64 * 1024;

/// Least `down_after_ms` where several services may be, milliseconds.
const SHARED_DOWN_MS: u64 = 2_000;

/// When a silent node counts as what, and how much is repaired at once.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Timing {
    /// A node that was not heard of for so long is down, milliseconds.
    pub down_after_ms: u64,
    /// A node that was down for so long is lost: its replicas are made anew elsewhere, seconds.
    pub lost_after_s: u64,
    /// Replications at once, of this service.
    pub transfers: u32,
    /// How long a right to read or write content holds, seconds.
    pub grant_s: u64,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            down_after_ms: 5_000,
            lost_after_s: 600,
            transfers: 16,
            grant_s: 3_600,
        }
    }
}

/// How a metadata service runs.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Name of the grid, for people.
    pub name: String,
    /// Where it listens; port 0 is any free one at the first start and the same one afterwards.
    pub listen: SocketAddr,
    /// The address that tickets name; none is where it listens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advertise: Option<String>,
    /// The database of the catalog (`postgres://USER:PASSWORD@HOST/DATABASE`, or `host=/run/postgresql user=grid
    /// dbname=grid`); none is an SQLite file in the service's folder. It may hold a password: the file is private.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub database: Option<String>,
    /// Limits in time.
    #[serde(default)]
    pub timing: Timing,
}

impl Config {
    /// Checks what can be checked without starting.
    ///
    /// # Errors
    /// What is wrong and what would be valid.
    pub fn check(&self) -> Result<(), ServiceError> {
        check_name(&self.name)?;
        if let Some(address) = &self.advertise {
            check_address(address).map_err(|e| ServiceError::Invalid(format!("advertise: {e}")))?;
        } else if self.listen.ip().is_unspecified() {
            return Err(ServiceError::Invalid(format!(
                "listen = \"{}\": name the address that others dial with advertise = \"HOST:PORT\"",
                self.listen
            )));
        }
        if let Some(database) = &self.database {
            // TOML's own quoting is kept simple: what a connection string never needs is refused.
            if database.is_empty() || database.contains(['"', '\\', '\n', '\r', '\0']) {
                return Err(ServiceError::Invalid(
                    "database: postgres://USER:PASSWORD@HOST:PORT/NAME or `host=... user=... dbname=...` is valid".into(),
                ));
            }
            if self.timing.down_after_ms < SHARED_DOWN_MS {
                return Err(ServiceError::Invalid(format!(
                    "timing.down_after_ms = {}: with a database at least {SHARED_DOWN_MS}, because services hear of each \
                     other's nodes later",
                    self.timing.down_after_ms
                )));
            }
        }
        let t = &self.timing;
        let bounds = [
            ("down_after_ms", t.down_after_ms, 500, 3_600_000),
            ("lost_after_s", t.lost_after_s, 1, 31_536_000),
            ("transfers", u64::from(t.transfers), 1, 1024),
            ("grant_s", t.grant_s, 10, 604_800),
        ];
        for (name, value, least, most) in bounds {
            if !(least..=most).contains(&value) {
                return Err(ServiceError::Invalid(format!(
                    "timing.{name} = {value}: {least} to {most} are valid"
                )));
            }
        }
        Ok(())
    }

    /// Path of the file in a service's folder.
    pub fn path(dir: &Path) -> PathBuf {
        dir.join(FILE)
    }

    /// Reads the configuration in `dir`.
    ///
    /// # Errors
    /// There is none, or it is not valid; the text says where.
    pub fn load(dir: &Path) -> Result<Self, ServiceError> {
        let path = Self::path(dir);
        let Some(bytes) = private::read(&path, MAX_CONFIG_BYTES)? else {
            return Err(ServiceError::Invalid(format!(
                "{}: there is no metadata service in this folder; `kuroshio init --dir DIR` makes one",
                path.display()
            )));
        };
        let invalid = |text: &str| ServiceError::Invalid(format!("{}: {text}", path.display()));
        let text = String::from_utf8(bytes).map_err(|_| invalid("not UTF-8"))?;
        let config = toml::from_str::<Self>(&text).map_err(|e| invalid(&e.to_string()))?;
        config.check().map_err(|e| invalid(&e.to_string()))?;
        Ok(config)
    }

    /// Writes the configuration into `dir`, with comments, durably.
    ///
    /// # Errors
    /// It is not valid, or cannot be written.
    pub fn save(&self, dir: &Path) -> Result<(), ServiceError> {
        self.check()?;
        let Timing {
            down_after_ms,
            lost_after_s,
            transfers,
            grant_s,
        } = self.timing;
        let advertise = match &self.advertise {
            Some(address) => format!("advertise = \"{address}\""),
            None => "# advertise = \"host.example:7421\"".to_owned(),
        };
        let database = match &self.database {
            Some(database) => format!("database = \"{database}\""),
            None => "# database = \"postgres://grid:PASSWORD@db.example/grid\"".to_owned(),
        };
        let text = format!(
            "# Metadata service of a grid. Secrets (key, tickets) are in other files of this folder.\n\n\
             # Name of the grid, for people.\nname = \"{}\"\n\
             # Where it listens; port 0 is any free one at the first start and the same one afterwards.\n\
             listen = \"{}\"\n\
             # The address that tickets name, if it is another one.\n{advertise}\n\
             # The database of the catalog; without one it is a file in this folder, for this service alone.\n\
             {database}\n\n[timing]\n\
             # A node that was not heard of for so long is down.\ndown_after_ms = {down_after_ms}\n\
             # A node that was down for so long is lost: its replicas are made anew on other nodes.\n\
             lost_after_s = {lost_after_s}\n\
             # Replications at once, of this service.\ntransfers = {transfers}\n\
             # How long a right to read or write content holds.\ngrant_s = {grant_s}\n",
            self.name, self.listen
        );
        private::write(&Self::path(dir), text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        Config {
            name: "g1".into(),
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            advertise: None,
            database: None,
            timing: Timing::default(),
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let dir = tempfile::tempdir().expect("temp dir");
        let mut written = config();
        written.advertise = Some("[2001:db8::1]:7421".into());
        written.timing.lost_after_s = 3;
        written.database = Some("postgres://grid:s3cret@db/grid".into());
        written.save(dir.path()).expect("saved");
        let read = Config::load(dir.path()).expect("read");
        assert_eq!(read.advertise, written.advertise);
        assert_eq!(read.timing.lost_after_s, 3);
        assert_eq!(read.database, written.database);
    }

    #[test]
    fn nonsense_is_refused() {
        let dir = tempfile::tempdir().expect("temp dir");
        assert!(Config::load(dir.path()).is_err());
        let mut bad = config();
        bad.name = "a/b".into();
        assert!(bad.save(dir.path()).is_err());
        let mut bad = config();
        bad.database = Some("a\"\nlisten = \"".into());
        assert!(bad.save(dir.path()).is_err());
        let mut bad = config();
        (bad.database, bad.timing.down_after_ms) = (Some("host=x".into()), 1000);
        assert!(bad.save(dir.path()).is_err());
        let mut bad = config();
        bad.timing.transfers = 0;
        assert!(bad.save(dir.path()).is_err());
        let mut bad = config();
        bad.listen = SocketAddr::from(([0, 0, 0, 0], 1));
        assert!(bad.save(dir.path()).is_err());
        for text in [
            "",
            "name = 1",
            "name=\"a\"\nlisten=\"x\"",
            "name=\"a\"\nlisten=\"127.0.0.1:1\"\nx=1",
        ] {
            private::write(&Config::path(dir.path()), text.as_bytes()).expect("written");
            assert!(Config::load(dir.path()).is_err(), "{text}");
        }
    }
}
