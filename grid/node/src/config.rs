//! `node.toml`: how a node runs. Its ticket, a secret, is beside it in `node.ticket`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use kuroshio_core::units::{BitRate, UnitError};
use kuroshio_service::{ServiceError, Ticket, check_address, private};
use serde::{Deserialize, Serialize};

const FILE: &str = "node.toml";
const TICKET: &str = "node.ticket";
/// Largest file that is read, bytes.
const MAX_FILE_BYTES: u64 = 64 * 1024;

/// How a node runs.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeConfig {
    /// Site that it belongs to; empty is the grid's default.
    #[serde(default)]
    pub site: String,
    /// Where its data service listens; port 0 is any free one at the first start and the same one afterwards.
    pub listen: SocketAddr,
    /// The address that others dial; none is where it listens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advertise: Option<String>,
    /// Most bytes the spool may hold; none is what its file system has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity_bytes: Option<u64>,
    /// Congestion control of what it sends, by name; none is the system's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub congestion: Option<String>,
    /// What its disk can read and write, as rates of frames that carry it, for example `400Mbps`: replication is
    /// planned below it. None is no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_read: Option<String>,
    /// See `disk_read`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_write: Option<String>,
    /// How fast the scrub reads (payload), for example `80Mbps`; none is 80 Mbps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scrub: Option<String>,
    /// Pause between two passes of the scrub, seconds; none is a day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scrub_pause_s: Option<u64>,
}

/// Rate of the scrub when none is given, bit/s of payload.
const SCRUB_BPS: u64 = 80_000_000;
/// Pause between two passes of the scrub when none is given, seconds.
const SCRUB_PAUSE_S: u64 = 24 * 3600;

impl NodeConfig {
    /// At `listen`, with everything else as it is when nothing is said.
    pub fn new(site: &str, listen: SocketAddr) -> Self {
        Self {
            site: site.to_owned(),
            listen,
            advertise: None,
            capacity_bytes: None,
            congestion: None,
            disk_read: None,
            disk_write: None,
            scrub: None,
            scrub_pause_s: None,
        }
    }

    /// What its disk can read and write, bit/s at frame level; 0 is not known.
    pub fn disk_bps(&self) -> (u64, u64) {
        let bps = |text: &Option<String>| rate(text.as_deref()).ok().flatten().map_or(0, BitRate::bps);
        (bps(&self.disk_read), bps(&self.disk_write))
    }

    /// Bytes that the scrub reads per second, and its pause in seconds.
    pub fn scrub(&self) -> (u64, u64) {
        let scrub = rate(self.scrub.as_deref()).ok().flatten();
        let bps = scrub.map_or(SCRUB_BPS, BitRate::bps);
        ((bps / 8).max(1), self.scrub_pause_s.unwrap_or(SCRUB_PAUSE_S))
    }

    fn check(&self) -> Result<(), ServiceError> {
        let rates = [
            ("disk_read", &self.disk_read),
            ("disk_write", &self.disk_write),
            ("scrub", &self.scrub),
        ];
        for (name, text) in rates {
            rate(text.as_deref()).map_err(|e| ServiceError::Invalid(format!("{name}: {e}")))?;
        }
        if let Some(name) = &self.congestion {
            kuroshio_service::check_congestion(Some(name))?;
        }
        if let Some(address) = &self.advertise {
            check_address(address).map_err(|e| ServiceError::Invalid(format!("advertise: {e}")))
        } else if self.listen.ip().is_unspecified() {
            Err(ServiceError::Invalid(format!(
                "listen = \"{}\": name the address that others dial with advertise = \"HOST:PORT\"",
                self.listen
            )))
        } else {
            Ok(())
        }
    }

    /// Path of the file in a node's folder.
    pub fn path(dir: &Path) -> PathBuf {
        dir.join(FILE)
    }

    /// Reads configuration and ticket in `dir`.
    ///
    /// # Errors
    /// They are missing or not valid; the text says where.
    pub fn load(dir: &Path) -> Result<(Self, Ticket), ServiceError> {
        let path = Self::path(dir);
        let Some(bytes) = private::read(&path, MAX_FILE_BYTES)? else {
            return Err(ServiceError::Invalid(format!(
                "{}: there is no node in this folder; `kuroshio join --dir DIR < TICKET` makes one",
                path.display()
            )));
        };
        let invalid = |text: &str| ServiceError::Invalid(format!("{}: {text}", path.display()));
        let text = String::from_utf8(bytes).map_err(|_| invalid("not UTF-8"))?;
        let config = toml::from_str::<Self>(&text).map_err(|e| invalid(&e.to_string()))?;
        config.check().map_err(|e| invalid(&e.to_string()))?;
        let path = dir.join(TICKET);
        let ticket = private::read(&path, MAX_FILE_BYTES)?.and_then(|b| String::from_utf8(b).ok());
        let Some(ticket) = ticket else {
            return Err(ServiceError::Invalid(format!("{}: no ticket", path.display())));
        };
        Ok((config, ticket.trim().parse()?))
    }

    /// Writes the ticket into `dir`, durably.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn save_ticket(dir: &Path, ticket: &Ticket) -> Result<(), ServiceError> {
        private::write(&dir.join(TICKET), format!("{}\n", ticket.to_line()).as_bytes())
    }

    /// Writes configuration and ticket into `dir`, durably.
    ///
    /// # Errors
    /// It is not valid, or cannot be written.
    pub fn save(&self, dir: &Path, ticket: &Ticket) -> Result<(), ServiceError> {
        self.check()?;
        Self::save_ticket(dir, ticket)?;
        let advertise = match &self.advertise {
            Some(address) => format!("advertise = \"{address}\""),
            None => "# advertise = \"host.example:7422\"".to_owned(),
        };
        let capacity = match self.capacity_bytes {
            Some(bytes) => format!("capacity_bytes = {bytes}"),
            None => "# capacity_bytes = 1099511627776".to_owned(),
        };
        let line = |name: &str, value: &Option<String>, example: &str| match value {
            Some(value) => format!("{name} = \"{value}\"\n"),
            None => format!("# {name} = \"{example}\"\n"),
        };
        let rates = [
            "# Congestion control of what it sends, if not the system's.\n".to_owned(),
            line("congestion", &self.congestion, "cubic"),
            "# What its disk can do, as rates of frames that carry it: replication is planned below it.\n"
                .to_owned(),
            line("disk_read", &self.disk_read, "2Gbps"),
            line("disk_write", &self.disk_write, "1Gbps"),
            "# How fast the scrub reads (payload), and its pause between two passes.\n".to_owned(),
            line("scrub", &self.scrub, "80Mbps"),
            match self.scrub_pause_s {
                Some(s) => format!("scrub_pause_s = {s}\n"),
                None => format!("# scrub_pause_s = {SCRUB_PAUSE_S}\n"),
            },
        ]
        .concat();
        let text = format!(
            "# A node of a grid. Its ticket (a secret) is in {TICKET}, its key in key.der, its objects in spool/.\n\n\
             # Site that it belongs to; empty is the grid's default.\nsite = \"{}\"\n\
             # Where its data service listens; port 0 is any free one at the first start and the same one \
             afterwards.\nlisten = \"{}\"\n\
             # The address that others dial, if it is another one.\n{advertise}\n\
             # Most bytes the spool may hold, if it is not all that its file system has.\n{capacity}\n{rates}",
            self.site, self.listen
        );
        private::write(&Self::path(dir), text.as_bytes())
    }
}

fn rate(text: Option<&str>) -> Result<Option<BitRate>, UnitError> {
    text.map(str::parse).transpose()
}
