//! What a gateway is told when it starts.

use std::net::SocketAddr;
use std::path::PathBuf;

use kuroshio_service::{Pin, ServiceError, Ticket};

use crate::address::Network;

/// Settings of a gateway.
#[derive(Debug, Clone)]
pub struct GatewayConfig {
    /// Folder of its key and certificate (`cert.pem` is for clients).
    pub dir: PathBuf,
    /// Where it listens.
    pub listen: SocketAddr,
    /// Host names and addresses by which clients reach it, for the certificate.
    pub names: Vec<String>,
    /// `HOST:PORT` of the grid's metadata service.
    pub grid_address: String,
    /// Its key.
    pub grid_pin: Pin,
    /// What requests without a token may do; none is nothing.
    pub guest: Option<Ticket>,
    /// Internal networks that third-party copies may reach all the same.
    pub allow: Vec<Network>,
    /// Files with certificates (PEM) that third-party copies trust beside the system's.
    pub trust: Vec<PathBuf>,
}

/// Why a gateway does not start.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// Bad settings.
    #[error("{0}")]
    Invalid(String),
    /// Identity, TLS or the network.
    #[error(transparent)]
    Service(#[from] ServiceError),
    /// Threads or files.
    #[error("{0}")]
    Machine(String),
}
