//! A running gateway.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kuroshio_service::{Identity, Pin, ServiceError, door};
use tokio::runtime::Runtime;
use tokio::sync::watch;

use crate::config::{GatewayConfig, GatewayError};
use crate::copies::Copies;
use crate::handler::Shared;
use crate::session::Sessions;

/// Threads that do not wait.
const THREADS: usize = 2;
/// Threads that may wait: for the metadata service, and with content.
const WAITING_THREADS: usize = 512;
/// Stack of a thread: what reads XML, and what copies a tree, goes down level by level.
const STACK_BYTES: usize = 8 * 1024 * 1024;
/// Longest wait for requests to end when the gateway stops, seconds.
const STOP_LIMIT_S: u64 = 5;
/// The certificate for clients, in the gateway's folder.
const CERTIFICATE: &str = "cert.pem";

/// A gateway that runs until it is stopped or dropped.
pub struct Gateway {
    runtime: Option<Runtime>,
    stop: watch::Sender<bool>,
    address: SocketAddr,
    pin: Pin,
    certificate: PathBuf,
}

impl Gateway {
    /// Starts a gateway.
    ///
    /// # Errors
    /// See [`GatewayError`].
    pub fn start(config: &GatewayConfig) -> Result<Self, GatewayError> {
        let copies = Copies::new(config)?;
        let identity = Identity::open_named(&config.dir, &config.names)?;
        let certificate = config.dir.join(CERTIFICATE);
        std::fs::write(&certificate, identity.certificate_pem())
            .map_err(|e| GatewayError::Machine(format!("cannot write {}: {e}", certificate.display())))?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .max_blocking_threads(WAITING_THREADS)
            .thread_stack_size(STACK_BYTES)
            .thread_name("gateway")
            .enable_all()
            .build()
            .map_err(|e| GatewayError::Machine(format!("cannot start threads: {e}")))?;
        let guest = config.guest.as_ref().map(|ticket| ticket.token().to_owned());
        let sessions = Sessions::new(&config.grid_address, config.grid_pin, guest);
        let shared = Arc::new(Shared::new(sessions, copies));
        let (stop, stopped) = watch::channel(false);
        let address = {
            let _in_runtime = runtime.enter();
            door::open(
                &identity,
                &[door::ALPN_HTTP],
                listen(config, &identity)?,
                shared,
                stopped,
            )?
        };
        identity.keep_address(&address.to_string())?;
        tracing::info!(%address, grid = config.grid_address, "gateway runs");
        Ok(Self {
            runtime: Some(runtime),
            stop,
            address,
            pin: identity.pin(),
            certificate,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its key.
    pub fn pin(&self) -> Pin {
        self.pin
    }

    /// The certificate that clients may trust, a file.
    pub fn certificate(&self) -> &PathBuf {
        &self.certificate
    }

    /// Stops it; what was acknowledged is durable already.
    pub fn stop(mut self) {
        self.shut_down();
    }

    fn shut_down(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            let _ = self.stop.send(true);
            runtime.shutdown_timeout(Duration::from_secs(STOP_LIMIT_S));
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.shut_down();
    }
}

/// The configured address, with the port that an earlier start has found.
fn listen(config: &GatewayConfig, identity: &Identity) -> Result<SocketAddr, ServiceError> {
    let mut listen = config.listen;
    if listen.port() == 0
        && let Some(kept) = identity.address()?
        && let Some((_, port)) = kept.rsplit_once(':')
        && let Ok(port) = port.parse()
    {
        listen.set_port(port);
    }
    Ok(listen)
}
