//! Congestion controls of the papers that today's kernels are often built without: BIC (Linux 2.6.14's
//! parameters), HighSpeed TCP (RFC 3649) and Scalable TCP, as BPF programs of `bpf/`.
//!
//! ```text
//!   load(name) --> in tcp_available_congestion_control, for every network namespace
//!   drop, or the process ends in whatever way --> gone; connections that use it keep it until they end
//! ```
//!
//! Needs root (CAP_BPF, CAP_NET_ADMIN), a kernel of 6.4 or later with BTF.

use libbpf_rs::{Link, MapCore, MapType, Object, ObjectBuilder};

/// Names that can be loaded.
pub const NAMES: [&str; 3] = ["bic", "highspeed", "scalable"];

/// The kernel's list.
const AVAILABLE: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";

/// Why a congestion control is not there.
#[derive(Debug, thiserror::Error)]
pub enum BpfError {
    /// No such program.
    #[error("no congestion control `{0}` to load: bic, highspeed and scalable are valid")]
    Unknown(String),
    /// The kernel or its rights.
    #[error(
        "congestion control `{name}` cannot be loaded (root and a kernel of 6.4 or later with BTF are needed): {source}"
    )]
    Load {
        /// Which.
        name: &'static str,
        /// What libbpf says.
        source: libbpf_rs::Error,
    },
    /// The kernel's list cannot be read.
    #[error("{AVAILABLE}: {0}")]
    List(std::io::Error),
}

/// A congestion control that is registered as long as this lives.
#[derive(Debug)]
pub struct CongestionControl {
    name: &'static str,
    _link: Link,
    _object: Object,
}

impl CongestionControl {
    /// Its name, as `TCP_CONGESTION` takes it.
    pub fn name(&self) -> &'static str {
        self.name
    }
}

/// Congestion controls that the kernel has now.
///
/// # Errors
/// The list cannot be read.
pub fn available() -> Result<Vec<String>, BpfError> {
    let list = std::fs::read_to_string(AVAILABLE).map_err(BpfError::List)?;
    Ok(list.split_whitespace().map(str::to_owned).collect())
}

/// Registers a congestion control; `None` when the kernel has one of that name already.
///
/// # Errors
/// [`BpfError`].
pub fn load(name: &str) -> Result<Option<CongestionControl>, BpfError> {
    let (name, object) = match name {
        "bic" => (
            "bic",
            include_bytes!(concat!(env!("OUT_DIR"), "/bic.bpf.o")).as_slice(),
        ),
        "highspeed" => (
            "highspeed",
            include_bytes!(concat!(env!("OUT_DIR"), "/highspeed.bpf.o")).as_slice(),
        ),
        "scalable" => (
            "scalable",
            include_bytes!(concat!(env!("OUT_DIR"), "/scalable.bpf.o")).as_slice(),
        ),
        other => return Err(BpfError::Unknown(other.to_owned())),
    };
    if available()?.iter().any(|there| there == name) {
        return Ok(None);
    }
    let failed = |source| BpfError::Load { name, source };
    let mut object = ObjectBuilder::default()
        .open_memory(object)
        .and_then(libbpf_rs::OpenObject::load)
        .map_err(failed)?;
    let link = object
        .maps_mut()
        .find(|map| map.map_type() == MapType::StructOps)
        .ok_or_else(|| failed(std::io::Error::from(std::io::ErrorKind::InvalidData).into()))
        .and_then(|mut map| map.attach_struct_ops().map_err(failed))?;
    Ok(Some(CongestionControl {
        name,
        _link: link,
        _object: object,
    }))
}
