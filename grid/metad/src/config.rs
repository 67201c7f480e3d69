//! `metad.toml`: how a metadata service runs.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use kuroshio_catalog::is_principal;
use kuroshio_core::units::{BitRate, Ratio, UnitError, parse_bytes};
use kuroshio_service::{ServiceError, check_address, check_name, private};
use serde::{Deserialize, Serialize};

/// Name of the file in the service's folder.
const FILE: &str = "metad.toml";
/// Largest configuration that is read, bytes.
const MAX_CONFIG_BYTES: u64 = 64 * 1024;

/// Least `down_after_ms` where several services may be, milliseconds.
const SHARED_DOWN_MS: u64 = 2_000;
/// Routes of a grid at most (the arbiter's limit).
const MAX_ROUTES: usize = 256;
/// Smallest and largest capacity of a route, bit/s at frame level.
const MIN_ROUTE_BPS: u64 = 1_000_000;
const MAX_ROUTE_BPS: u64 = 1 << 49;
/// Streams of one transfer at most.
const MAX_STREAMS: u32 = 64;
/// Smallest part of a file that is fetched from several replicas, bytes.
const MIN_SPLIT_BYTES: u64 = 1 << 20;

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
    /// How often a snapshot of the catalog is put into the grid, if something has changed, seconds; 0: never.
    pub snapshot_s: u64,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            down_after_ms: 5_000,
            lost_after_s: 600,
            transfers: 16,
            grant_s: 3_600,
            snapshot_s: 600,
        }
    }
}

/// A path from site to site whose capacity all replication shares.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteConfig {
    /// Source site.
    pub from: String,
    /// Destination site.
    pub to: String,
    /// Frame-level capacity with its unit, for example `480Mbps`.
    pub capacity: String,
}

impl RouteConfig {
    /// The capacity in bit/s, frame level.
    ///
    /// # Errors
    /// What is wrong and what would be valid.
    pub fn capacity_bps(&self) -> Result<u64, String> {
        let rate = self.capacity.parse::<BitRate>();
        let bps = rate
            .map_err(|e| format!("route {} to {}: capacity: {e}", self.from, self.to))?
            .bps();
        if !(MIN_ROUTE_BPS..=MAX_ROUTE_BPS).contains(&bps) {
            return Err(format!(
                "route {} to {}: capacity {}: {} to {} Mbps are valid",
                self.from,
                self.to,
                self.capacity,
                MIN_ROUTE_BPS / 1_000_000,
                MAX_ROUTE_BPS / 1_000_000
            ));
        }
        Ok(bps)
    }
}

/// How replicas are moved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Replication {
    /// The part of each route's capacity that is not given out, below 100 %.
    pub headroom: String,
    /// The most that one stream carries, frame level; a transfer that is given more gets more streams. Empty: no limit, and
    /// one stream.
    pub stream: String,
    /// Streams of one transfer at most.
    pub streams: u32,
    /// A file of at least twice this size is fetched from several replicas at once, in parts of at least this size.
    pub split: String,
    /// Repair by rule begins at most so much content per time (payload). Empty: no limit.
    pub repair: String,
    /// Replicas move from the fullest node to emptier ones while they differ by more than so many percent. 0: never.
    pub balance_percent: u32,
}

impl Default for Replication {
    fn default() -> Self {
        Self {
            headroom: "2%".into(),
            stream: String::new(),
            streams: 8,
            split: "64MiB".into(),
            repair: String::new(),
            balance_percent: 0,
        }
    }
}

impl Replication {
    fn check(&self) -> Result<(), String> {
        let headroom = self.headroom().map_err(|e| format!("headroom: {e}"))?;
        if headroom.num() >= headroom.den() {
            return Err(format!("headroom {}: less than 100% is valid", self.headroom));
        }
        rate(&self.stream).map_err(|e| format!("stream: {e}"))?;
        rate(&self.repair).map_err(|e| format!("repair: {e}"))?;
        if !(1..=MAX_STREAMS).contains(&self.streams) {
            return Err(format!(
                "streams = {}: 1 to {MAX_STREAMS} are valid",
                self.streams
            ));
        }
        if self.split_bytes().map_err(|e| format!("split: {e}"))? < MIN_SPLIT_BYTES {
            return Err(format!("split {}: 1MiB or more is valid", self.split));
        }
        if self.balance_percent > 100 {
            return Err(format!(
                "balance_percent = {}: 0 to 100 are valid",
                self.balance_percent
            ));
        }
        Ok(())
    }

    /// See the field.
    ///
    /// # Errors
    /// Not a ratio.
    pub fn headroom(&self) -> Result<Ratio, UnitError> {
        self.headroom.parse()
    }

    /// See the field; `None`: no limit.
    pub fn stream_max(&self) -> Option<BitRate> {
        rate(&self.stream).ok().flatten()
    }

    /// See the field; `None`: no limit.
    pub fn repair_rate(&self) -> Option<BitRate> {
        rate(&self.repair).ok().flatten()
    }

    /// See the field.
    ///
    /// # Errors
    /// Not a size.
    pub fn split_bytes(&self) -> Result<u64, UnitError> {
        parse_bytes(&self.split)
    }
}

fn rate(text: &str) -> Result<Option<BitRate>, UnitError> {
    if text.is_empty() {
        return Ok(None);
    }
    text.parse().map(Some)
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
    /// How replicas are moved.
    #[serde(default)]
    pub replication: Replication,
    /// Capacities between sites; pairs that are not named have no limit.
    #[serde(default, rename = "route")]
    pub routes: Vec<RouteConfig>,
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
            ("snapshot_s", t.snapshot_s, 0, 31_536_000),
        ];
        for (name, value, least, most) in bounds {
            if !(least..=most).contains(&value) {
                return Err(ServiceError::Invalid(format!(
                    "timing.{name} = {value}: {least} to {most} are valid"
                )));
            }
        }
        let replication = self.replication.check();
        replication.map_err(|e| ServiceError::Invalid(format!("replication: {e}")))?;
        self.check_routes().map_err(ServiceError::Invalid)
    }

    fn check_routes(&self) -> Result<(), String> {
        if self.routes.len() > MAX_ROUTES {
            return Err(format!(
                "{} routes: at most {MAX_ROUTES} are valid",
                self.routes.len()
            ));
        }
        for (n, route) in self.routes.iter().enumerate() {
            route.capacity_bps()?;
            for site in [&route.from, &route.to] {
                if !is_principal(site) {
                    return Err(format!(
                        "route {}: `{}` is not a site's name",
                        n + 1,
                        site.escape_debug()
                    ));
                }
            }
            let mut before = self.routes.iter().take(n);
            if before.any(|r| (&r.from, &r.to) == (&route.from, &route.to)) {
                return Err(format!("route {} to {} is there twice", route.from, route.to));
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
            snapshot_s,
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
             # How long a right to read or write content holds.\ngrant_s = {grant_s}\n\
             # How often what only the catalog knows is put into the grid, if it has changed; 0: never.\n\
             snapshot_s = {snapshot_s}\n",
            self.name, self.listen
        ) + &self.replication_text();
        private::write(&Self::path(dir), text.as_bytes())
    }

    fn replication_text(&self) -> String {
        let Replication {
            headroom,
            stream,
            streams,
            split,
            repair,
            balance_percent,
        } = &self.replication;
        let mut text = format!(
            "\n[replication]\n# The part of each route's capacity that is not given out.\nheadroom = \"{headroom}\"\n\
             # The most that one stream carries, for example \"200Mbps\" (frame level); empty: no limit.\n\
             stream = \"{stream}\"\n# Streams of one transfer at most.\nstreams = {streams}\n\
             # Files of twice this size are fetched from several replicas at once.\nsplit = \"{split}\"\n\
             # Repair begins at most so much content per time, for example \"500Mbps\" (payload); empty: no limit.\n\
             repair = \"{repair}\"\n\
             # Replicas move from the fullest node to emptier ones beyond this difference in percent; 0: never.\n\
             balance_percent = {balance_percent}\n\n\
             # Capacities from site to site (frame level): replication stays below them in sum.\n"
        );
        if self.routes.is_empty() {
            text.push_str("# [[route]]\n# from = \"tokyo\"\n# to = \"sandiego\"\n# capacity = \"1Gbps\"\n");
        }
        for r in &self.routes {
            let (from, to, capacity) = (&r.from, &r.to, &r.capacity);
            let route = format!("[[route]]\nfrom = \"{from}\"\nto = \"{to}\"\ncapacity = \"{capacity}\"\n");
            text.push_str(&route);
        }
        text
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
            replication: Replication::default(),
            routes: Vec::new(),
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
        written.routes.push(RouteConfig {
            from: "tokyo".into(),
            to: "sandiego".into(),
            capacity: "480Mbps".into(),
        });
        written.replication.stream = "200Mbps".into();
        written.save(dir.path()).expect("saved");
        let read = Config::load(dir.path()).expect("read");
        assert_eq!(
            (&read.routes, &read.replication),
            (&written.routes, &written.replication)
        );
        assert_eq!(read.routes[0].capacity_bps(), Ok(480_000_000));
    }

    #[test]
    fn routes_need_units_and_one_row_for_each_pair() {
        let dir = tempfile::tempdir().expect("temp dir");
        let refused = |change: &dyn Fn(&mut Config)| {
            let mut bad = config();
            bad.routes.push(RouteConfig {
                from: "a".into(),
                to: "b".into(),
                capacity: "100Mbps".into(),
            });
            change(&mut bad);
            bad.save(dir.path()).err().map(|e| e.to_string())
        };
        assert_eq!(refused(&|_| {}), None);
        let twice = |c: &mut Config| c.routes.push(c.routes[0].clone());
        assert!(refused(&twice).is_some_and(|e| e.contains("twice")));
        for capacity in ["100", "0bps", "1kbps", "1PB"] {
            let set = |c: &mut Config| c.routes[0].capacity = capacity.into();
            assert!(refused(&set).is_some(), "{capacity}");
        }
        assert!(refused(&|c| c.routes[0].to = "b c".into()).is_some());
        assert!(refused(&|c| c.replication.headroom = "100%".into()).is_some());
        assert!(refused(&|c| c.replication.streams = 0).is_some());
        assert!(refused(&|c| c.replication.split = "1".into()).is_some());
        assert!(refused(&|c| c.replication.repair = "fast".into()).is_some());
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
