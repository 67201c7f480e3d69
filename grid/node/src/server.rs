//! A running node.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use kuroshio_client::ClientError;
use kuroshio_service::{Identity, ServiceError, Ticket, Verifier, door};
use kuroshio_store::{Limits, Sealed, Store, StoreError, hex};
use tokio::runtime::Runtime;
use tokio::sync::watch;

use crate::config::NodeConfig;
use crate::control;
use crate::data::Data;
use crate::drafts::Drafts;
use crate::local::Near;
use crate::memory::Memory;
use crate::pull::Pulls;

/// Threads of the data service; reading and writing the spool has its own.
const THREADS: usize = 2;
/// Places for small objects that are kept ready: 2.25 MiB, and so many open files.
const SLOTS: usize = 256;
/// Longest wait for requests to end when the node stops, seconds.
const STOP_LIMIT_S: u64 = 5;

/// Why a node does not start.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// Identity, TLS, configuration or the network.
    #[error(transparent)]
    Service(#[from] ServiceError),
    /// The spool.
    #[error("spool: {0}")]
    Store(#[from] StoreError),
    /// The metadata service.
    #[error("metadata service: {0}")]
    Client(#[from] ClientError),
    /// Threads.
    #[error("{0}")]
    Thread(String),
}

/// What the grid has told this node when it joined.
pub struct Joined {
    /// Checks the grid's tokens.
    pub verifier: Verifier,
    /// For receipts.
    pub receipt_key: Vec<u8>,
}

/// What the threads of a node share.
pub struct Shared {
    pub store: Store,
    pub stop: AtomicBool,
    /// Set when the node has joined once; requests before that are refused.
    pub joined: OnceLock<Joined>,
    /// Objects that are fetched now.
    pub pulls: Pulls,
    /// Objects that are written in parts now.
    pub drafts: Drafts,
    /// Congestion control of what is sent, if not the system's.
    pub congestion: Option<String>,
    /// Bytes that the scrub reads per second, and seconds between two passes.
    pub scrub: (u64, u64),
    /// What it was told of the catalog.
    pub memory: Memory,
    /// Folder on the spool's file system, for trying the disk.
    pub dir: PathBuf,
}

impl Shared {
    /// Whether the node is to end.
    pub fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// This node's word that it has flushed an object, in hexadecimal.
    pub fn receipt(&self, sealed: &Sealed) -> String {
        let key = self.joined.get().map(|j| j.receipt_key.as_slice());
        let id = sealed.id;
        let object = (id.inode, u64::from(id.generation), id.fragment);
        let mac = kuroshio_proto::receipt::mac(key.unwrap_or_default(), object, sealed.size, &sealed.digest);
        hex(&mac)
    }
}

/// A node that runs until it is stopped or dropped.
pub struct Node {
    runtime: Option<Runtime>,
    shared: Arc<Shared>,
    stop: watch::Sender<bool>,
    control: Option<JoinHandle<()>>,
    near: Option<Near>,
    address: SocketAddr,
}

impl Node {
    /// Starts the node of `dir`. It serves once it has joined; it goes on trying to join when the metadata
    /// service is away.
    ///
    /// # Errors
    /// See [`NodeError`].
    pub fn start(dir: &Path) -> Result<Self, NodeError> {
        let (config, ticket) = NodeConfig::load(dir)?;
        let identity = Identity::open(dir)?;
        let limits = Limits {
            capacity_bytes: config.capacity_bytes,
            slots: SLOTS,
            ..Limits::default()
        };
        let store = Store::open(&dir.join("spool"), limits)?;
        let memory = Memory::open(dir).map_err(|e| {
            NodeError::Thread(format!("{}: what is known of the catalog: {e}", dir.display()))
        })?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("node")
            .enable_all()
            .build()
            .map_err(|e| NodeError::Thread(format!("cannot start threads: {e}")))?;
        let shared = Arc::new(Shared {
            store,
            stop: AtomicBool::new(false),
            joined: OnceLock::new(),
            pulls: Pulls::default(),
            drafts: Drafts::default(),
            congestion: config.congestion.clone(),
            scrub: config.scrub(),
            memory,
            dir: dir.to_owned(),
        });
        let (stop, stopped) = watch::channel(false);
        let address = {
            let _in_runtime = runtime.enter();
            let data = Arc::new(Data::new(shared.clone()));
            let listen = listen_address(&config, &identity)?;
            door::open(&identity, &[door::ALPN_HTTP], listen, data, stopped)?
        };
        let advertised = config.advertise.clone().unwrap_or_else(|| address.to_string());
        identity.keep_address(&advertised)?;
        let near = Near::start(shared.clone(), identity.pin());
        let control = start_control(&shared, (dir, ticket), &config, &advertised, &identity)?;
        tracing::info!(%address, "node runs");
        Ok(Self {
            runtime: Some(runtime),
            shared,
            stop,
            control: Some(control),
            near,
            address,
        })
    }

    /// Where its data service listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops it: what was acknowledged is durable already.
    pub fn stop(mut self) {
        self.shut_down();
    }

    fn shut_down(&mut self) {
        let Some(runtime) = self.runtime.take() else {
            return;
        };
        self.shared.stop.store(true, Ordering::Relaxed);
        let _ = self.stop.send(true);
        if let Some(near) = self.near.take() {
            near.stop();
        }
        runtime.shutdown_timeout(Duration::from_secs(STOP_LIMIT_S));
        if let Some(control) = self.control.take() {
            let _ = control.join();
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.shut_down();
    }
}

fn start_control(
    shared: &Arc<Shared>,
    (dir, ticket): (&Path, Ticket),
    config: &NodeConfig,
    advertised: &str,
    identity: &Identity,
) -> Result<JoinHandle<()>, NodeError> {
    let me = control::Me {
        dir: dir.to_owned(),
        ticket: Mutex::new(ticket),
        site: config.site.clone(),
        address: advertised.to_owned(),
        pin: identity.pin().to_string(),
        disk_bps: config.disk_bps(),
    };
    let shared = shared.clone();
    std::thread::Builder::new()
        .name("control".into())
        .spawn(move || control::run(&shared, &me))
        .map_err(|e| NodeError::Thread(format!("cannot start a thread: {e}")))
}

/// The configured address, with the port that an earlier start has found.
fn listen_address(config: &NodeConfig, identity: &Identity) -> Result<SocketAddr, ServiceError> {
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
