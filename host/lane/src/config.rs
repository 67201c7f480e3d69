//! The tunnel's file.
//!
//! ```toml
//! name = "sea0"                       # the interface
//! kind = "tun"                        # tun (IP packets, default) or tap (Ethernet frames)
//! address = ["10.9.0.1/30"]           # of the interface; may be empty
//! key = "tokyo.key"                   # private key, from `kuroshio lane key`; relative to this file
//! peer = "bXkga2V5..."                # the other end's public key
//! mode = "deskew"                     # deskew, inorder or mirror
//! margin = "2ms"                      # and smoothing, hold_max, queue_time, skew_max, slack; repair = true; late = "drop"; guard = true; realtime = true
//!
//! [[lane]]                            # in the same order at both ends
//! name = "north"
//! local = "192.0.2.1:7000"
//! remote = "198.51.100.1:7000"
//! capacity = "1Gbps"                  # frame level; without it, or "auto": measured
//! interface = "eth1"                  # optional: only this interface
//! mtu = 1500                          # optional: of the path, bytes of IP packet
//! ```

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use kuroshio_core::{
    lane::{BundleConfig, CAPACITY_START, LANES_MAX, LaneConfig, LatePolicy, Mode, wire},
    units::{BitRate, PicoDuration},
};
use serde::Deserialize;

use crate::{LaneError, key::PublicKey};

/// Longest file, bytes.
pub const FILE_MAX: u64 = 64 << 10;
/// Most addresses of the interface.
pub const ADDRESSES_MAX: usize = 16;
/// How late the thread may wake without a lane's rate suffering, where the file does not say.
pub const SLACK: PicoDuration = PicoDuration::from_us(500);
/// Smallest MTU of a path.
pub const MTU_MIN: u32 = 1_280;
/// Largest MTU of a path.
pub const MTU_MAX: u32 = 65_535;

/// What the interface carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TunnelKind {
    /// IP packets.
    #[default]
    Tun,
    /// Ethernet frames, VLAN tags included.
    Tap,
}

/// One `[[lane]]`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaneToml {
    /// Its name in status, add and drop.
    pub name: String,
    /// Our address and port.
    pub local: SocketAddr,
    /// The other end's.
    pub remote: SocketAddr,
    /// The only interface that it uses.
    pub interface: Option<String>,
    capacity: Option<String>,
    /// MTU of the path, bytes of IP packet.
    #[serde(default = "mtu")]
    pub mtu: u32,
}

fn mtu() -> u32 {
    1_500
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: String,
    #[serde(default)]
    kind: TunnelKind,
    #[serde(default)]
    address: Vec<String>,
    key: PathBuf,
    peer: String,
    mode: Option<String>,
    margin: Option<String>,
    smoothing: Option<String>,
    hold_max: Option<String>,
    queue_time: Option<String>,
    skew_max: Option<String>,
    slack: Option<String>,
    repair: Option<bool>,
    guard: Option<bool>,
    late: Option<String>,
    #[serde(default)]
    realtime: bool,
    control: Option<PathBuf>,
    #[serde(default)]
    lane: Vec<LaneToml>,
}

/// A tunnel's configuration, checked.
#[derive(Debug, Clone)]
pub struct TunnelConfig {
    /// The interface's name.
    pub name: String,
    /// What it carries.
    pub kind: TunnelKind,
    /// Its addresses, `ip/prefix`.
    pub addresses: Vec<(std::net::IpAddr, u8)>,
    /// The private key's file.
    pub key: PathBuf,
    /// The other end.
    pub peer: PublicKey,
    /// What `core::lane` needs.
    pub bundle: BundleConfig,
    /// The lanes.
    pub lanes: Vec<LaneToml>,
    /// Whether the thread runs before all ordinary ones (`SCHED_FIFO`).
    pub realtime: bool,
    /// The control socket.
    pub control: PathBuf,
}

fn bad(text: String) -> LaneError {
    LaneError::Bad(text)
}

impl TunnelConfig {
    /// Reads a file.
    ///
    /// # Errors
    /// What in it cannot be, with what would be valid.
    pub fn load(path: &Path) -> Result<Self, LaneError> {
        let at = |source| LaneError::File {
            path: path.to_owned(),
            source,
        };
        if fs::metadata(path).map_err(at)?.len() > FILE_MAX {
            return Err(bad(format!("{}: more than {FILE_MAX} bytes", path.display())));
        }
        let text = fs::read_to_string(path).map_err(at)?;
        let folder = path.parent().unwrap_or(Path::new("."));
        Self::from_toml(&text, folder).map_err(|e| bad(format!("{}: {e}", path.display())))
    }

    /// Reads a text; `folder` is what relative paths start from.
    ///
    /// # Errors
    /// As [`TunnelConfig::load`].
    pub fn from_toml(text: &str, folder: &Path) -> Result<Self, LaneError> {
        let file: File = toml::from_str(text).map_err(|e| bad(e.to_string()))?;
        if file.name.is_empty() || file.name.len() > kuroshio_port::MAX_NAME || file.name.contains('/') {
            return Err(bad(format!(
                "name {:?}: an interface's name has 1 to {} bytes",
                file.name,
                kuroshio_port::MAX_NAME
            )));
        }
        let lanes = check_lanes(&file.lane)?;
        let mut addresses = Vec::new();
        for text in &file.address {
            addresses.push(address(text)?);
        }
        if addresses.len() > ADDRESSES_MAX {
            return Err(bad(format!(
                "{} addresses: at most {ADDRESSES_MAX}",
                addresses.len()
            )));
        }
        let control = file.control.as_ref().map(|c| folder.join(c));
        Ok(Self {
            control: control.unwrap_or_else(|| crate::control::default_path(&file.name)),
            bundle: bundle(&file, lanes)?,
            peer: file.peer.parse()?,
            key: folder.join(&file.key),
            name: file.name,
            kind: file.kind,
            realtime: file.realtime,
            addresses,
            lanes: file.lane,
        })
    }

    /// Largest packet (in `tap`: without its Ethernet header) that every lane carries whole, bytes.
    #[must_use]
    pub fn mtu(&self) -> u32 {
        let lanes = self
            .lanes
            .iter()
            .map(|lane| inner_mtu(self.kind, lane.remote, lane.mtu));
        lanes.min().unwrap_or(MTU_MIN)
    }
}

/// What of a path's MTU is left for a packet.
pub(crate) fn inner_mtu(kind: TunnelKind, remote: SocketAddr, mtu: u32) -> u32 {
    let outside = if remote.is_ipv4() { 28 } else { 48 } + wire::OVERHEAD_BYTES as u32;
    let ethernet = if kind == TunnelKind::Tap { 18 } else { 0 };
    mtu.saturating_sub(outside + ethernet)
}

fn check_lanes(lanes: &[LaneToml]) -> Result<Vec<LaneConfig>, LaneError> {
    if lanes.is_empty() || lanes.len() > LANES_MAX {
        return Err(bad(format!("{} [[lane]]s: 1 to {LANES_MAX}", lanes.len())));
    }
    let mut configs = Vec::new();
    for (index, lane) in lanes.iter().enumerate() {
        let name = &lane.name;
        if name.is_empty() || name.len() > 32 || lanes.iter().take(index).any(|l| l.name == *name) {
            return Err(bad(format!("lane name {name:?}: 1 to 32 bytes, each once")));
        }
        if lane.local.is_ipv4() != lane.remote.is_ipv4() {
            return Err(bad(format!(
                "lane {name}: local {} and remote {} are of different IP versions",
                lane.local, lane.remote
            )));
        }
        if !(MTU_MIN..=MTU_MAX).contains(&lane.mtu) {
            return Err(bad(format!(
                "lane {name}: mtu {}: {MTU_MIN} to {MTU_MAX}",
                lane.mtu
            )));
        }
        let stated = lane.capacity.as_deref().filter(|text| *text != "auto");
        let capacity = match stated {
            None => CAPACITY_START,
            Some(text) => text
                .parse::<BitRate>()
                .map_err(|e| bad(format!("lane {name}: capacity: {e}; or \"auto\", to measure it")))?,
        };
        let ip = if lane.remote.is_ipv4() { 20 } else { 40 };
        configs.push(LaneConfig {
            capacity,
            measured: stated.is_none(),
            overhead_bytes: 18 + ip + 8 + wire::OVERHEAD_BYTES as u64,
        });
    }
    Ok(configs)
}

fn bundle(file: &File, lanes: Vec<LaneConfig>) -> Result<BundleConfig, LaneError> {
    let mode = match file.mode.as_deref() {
        None | Some("deskew") => Mode::Deskew,
        Some("inorder") => Mode::InOrder,
        Some("mirror") => Mode::Mirror,
        Some(other) => return Err(bad(format!("mode {other:?}: deskew, inorder or mirror"))),
    };
    let mut config = BundleConfig::new(mode, &[]);
    config.lanes = lanes;
    config.slack = SLACK;
    let times: [(&str, &Option<String>, &mut PicoDuration); 6] = [
        ("margin", &file.margin, &mut config.margin),
        ("smoothing", &file.smoothing, &mut config.smoothing),
        ("hold_max", &file.hold_max, &mut config.hold_max),
        ("queue_time", &file.queue_time, &mut config.queue_time),
        ("skew_max", &file.skew_max, &mut config.skew_max),
        ("slack", &file.slack, &mut config.slack),
    ];
    for (name, text, to) in times {
        if let Some(text) = text {
            *to = text.parse().map_err(|e| bad(format!("{name}: {e}")))?;
        }
    }
    config.repair = file.repair.unwrap_or(config.repair);
    config.guard = file.guard.unwrap_or(config.guard);
    config.late = match file.late.as_deref() {
        None | Some("drop") => LatePolicy::Drop,
        Some("deliver") => LatePolicy::Deliver,
        Some(other) => return Err(bad(format!("late {other:?}: drop or deliver"))),
    };
    config.check().map_err(|e| bad(e.to_string()))?;
    Ok(config)
}

fn address(text: &str) -> Result<(std::net::IpAddr, u8), LaneError> {
    let parse = || {
        let (ip, prefix) = text.split_once('/')?;
        let ip: std::net::IpAddr = ip.parse().ok()?;
        let prefix: u8 = prefix.parse().ok()?;
        let most = if ip.is_ipv4() { 32 } else { 128 };
        (1..=most).contains(&prefix).then_some((ip, prefix))
    };
    parse().ok_or_else(|| {
        bad(format!(
            "address {text:?}: an address with a prefix, such as 10.9.0.1/30"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
name = "sea0"
address = ["10.9.0.1/30", "fd00::1/64"]
key = "a.key"
peer = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
margin = "3ms"
[[lane]]
name = "north"
local = "192.0.2.1:7000"
remote = "198.51.100.1:7000"
capacity = "1Gbps"
[[lane]]
name = "south"
local = "[2001:db8::1]:7000"
remote = "[2001:db8::2]:7000"
capacity = "100Mbps"
mtu = 9000
"#;

    #[test]
    fn a_good_file() {
        let config = TunnelConfig::from_toml(GOOD, Path::new("/etc/k")).expect("good");
        assert_eq!(config.key, Path::new("/etc/k/a.key"));
        assert_eq!(config.bundle.margin, PicoDuration::from_ms(3));
        // 20 + 8 + 48 of the lane with the smaller path.
        assert_eq!(config.mtu(), 1_424);
        assert_eq!(config.bundle.lanes[1].overhead_bytes, 18 + 40 + 8 + 48);
    }

    #[test]
    fn bad_files_say_what_would_be_good() {
        for (from, to, says) in [
            ("\"1Gbps\"", "\"1\"", "lane north: capacity"),
            ("north", "south", "each once"),
            ("mtu = 9000", "mtu = 100", "lane south: mtu 100: 1280 to 65535"),
            ("margin = \"3ms\"", "margin = \"3\"", "margin: "),
            ("margin = \"3ms\"", "margin = \"30s\"", "at most 5s"),
            ("margin", "margni", "unknown field"),
            (
                "name = \"sea0\"",
                "name = \"a-name-of-an-interface\"",
                "1 to 15 bytes",
            ),
            ("10.9.0.1/30", "10.9.0.1", "such as 10.9.0.1/30"),
            ("AAECAwQ", "", "is not a public key"),
            ("\"198.51.100.1:7000\"", "\"[::1]:1\"", "different IP versions"),
            ("key =", "mode = \"fast\"\nkey =", "deskew, inorder or mirror"),
        ] {
            assert!(GOOD.contains(from), "{from}");
            let text = GOOD.replacen(from, to, 1);
            let error = TunnelConfig::from_toml(&text, Path::new(".")).expect_err(to);
            assert!(error.to_string().contains(says), "{to}: {error}");
        }
    }
}
