//! A tunnel between two hosts over several paths.
//!
//! ```text
//!  programs -> TUN or TAP -> cut superframes -> core::lane -> seal -> UDP socket of a lane ==path==> far end
//!  programs <- TUN or TAP <------------------- core::lane <- open <- UDP socket of a lane <==path== far end
//! ```
//!
//! What happens to packets is decided by [`kuroshio_core::lane`]; this crate is its hands: [`Device`] (the interface),
//! a UDP socket (one for each lane, connected, so that the kernel turns strangers away), [`seal`] (who may, and that nobody
//! reads), [`Tunnel`] (the loop, one thread) and [`control`] (status, add, drop).
//!
//! **Limits.** One tunnel is one thread. A packet is at most 65,535 bytes. A lane's socket buffers 4 MiB where the system allows it.

pub mod config;
pub mod control;
mod device;
mod error;
pub mod key;
mod late;
mod messages;
mod netlink;
pub mod seal;
pub mod status;
mod sys;
mod tunnel;
mod udp;

pub use config::{LaneToml, TunnelConfig, TunnelKind};
pub use device::Device;
pub use error::LaneError;
pub use tunnel::{Stop, Tunnel};
