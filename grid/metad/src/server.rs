//! A running metadata service.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kuroshio_catalog::{
    Caller, Catalog, CatalogError, CatalogExt, ListSites, Op, Operation, PutRoute, PutSite, Site,
};
use kuroshio_proto::receipt::rights_key;
use kuroshio_proto::v1::{Code, Failure};
use kuroshio_proto::{ALPN_FRAMES, ALPN_GRPC, objects_audience};
use kuroshio_service::{FileFacts, Identity, ServiceError, Ticket, Verifier, door, private};
use ring::rand::{SecureRandom, SystemRandom};
use tokio::runtime::Runtime;
use tokio::sync::{oneshot, watch};

use crate::config::Config;
use crate::convert;
use crate::presence::Services;
use crate::rebuild::Found;
use crate::receipt::Master;
use crate::registry::Registry;
use crate::snapshot::{self, Snapshots};
use crate::traffic::{self, Traffic};
use crate::turn::Upkeep;
use crate::{jobs, upkeep};

/// Threads of the service; the catalog has its own.
const THREADS: usize = 2;
/// Longest wait for connections to end when the service stops, seconds.
const STOP_LIMIT_S: u64 = 5;
/// What the administrator's ticket allows.
const ADMIN_SCOPE: &str = "storage.read:/ storage.modify:/ kuroshio.admin";
/// File of the administrator's ticket in the service's folder.
const ADMIN_TICKET: &str = "admin.ticket";
/// How long the administrator's ticket is good: ten years, in seconds.
const ADMIN_VALID_S: u64 = 10 * 365 * 24 * 3600;
/// The site of nodes that name none.
pub const DEFAULT_SITE: &str = "here";

/// Why a metadata service does not start.
#[derive(Debug, thiserror::Error)]
pub enum MetadError {
    /// Bad configuration or state.
    #[error("{0}")]
    Invalid(String),
    /// Identity, TLS or the network.
    #[error(transparent)]
    Service(#[from] ServiceError),
    /// The catalog.
    #[error("catalog: {0}")]
    Catalog(#[from] CatalogError),
}

/// What requests share.
pub struct Inner {
    pub catalog: Arc<dyn Catalog>,
    pub identity: Identity,
    /// Checks users' and nodes' tokens.
    pub verifier: Verifier,
    /// Checks rights to objects.
    pub grants: Verifier,
    objects: String,
    pub master: Master,
    pub config: Config,
    pub registry: Registry,
    /// The services beside this one.
    pub presence: Services,
    /// Whose turn the upkeep of the whole grid is.
    pub upkeep: Upkeep,
    /// What nodes have told of while their spools are compared.
    pub found: Found,
    /// Snapshots of the catalog.
    pub snapshots: Snapshots,
    /// Transfers between nodes.
    pub traffic: Traffic,
    /// Names this process as a worker of jobs, among all processes.
    pub worker: String,
    dir: PathBuf,
    /// Numbers of handles to write.
    handles: AtomicU64,
}

impl Inner {
    /// A number that this process has not given before, from 1.
    pub fn next_handle(&self) -> u64 {
        self.handles.fetch_add(1, Ordering::Relaxed)
    }

    /// Runs an operation of the catalog; durable when it returns.
    pub async fn ask<O>(&self, caller: &Caller, op: O) -> Result<O::Output, Failure>
    where
        O: Operation,
        O::Output: Send + 'static,
    {
        self.try_ask(caller, op).await.map_err(|e| convert::failure(&e))
    }

    /// As [`Self::ask`], with the catalog's own error.
    pub async fn try_ask<O>(&self, caller: &Caller, op: O) -> Result<O::Output, CatalogError>
    where
        O: Operation,
        O::Output: Send + 'static,
    {
        let op: Op = op.into();
        // What the embedded catalog knows is there sooner than another thread would wake.
        if let Some(answer) = self.catalog.try_now::<O>(caller, &op) {
            return answer;
        }
        let (tx, rx) = oneshot::channel();
        self.catalog.begin_op::<O>(caller, op, move |answer| {
            // Whoever asked may be gone.
            let _ = tx.send(answer);
        });
        rx.await.unwrap_or_else(|_| {
            Err(CatalogError::new(
                kuroshio_catalog::ErrorKind::Unavailable,
                "the catalog was shut down",
            ))
        })
    }

    /// Keeps the administrator's ticket with these addresses.
    pub fn keep_admin_ticket(&self, services: &[String]) {
        if let Err(e) = admin_ticket(&self.identity, &self.dir, &services.join("+")) {
            tracing::warn!("the administrator's ticket cannot be kept: {e}");
        }
    }

    /// The service's folder.
    pub fn folder(&self) -> &Path {
        &self.dir
    }

    /// A ticket with which this service is a client of the grid.
    pub fn own_ticket(&self) -> Result<Ticket, Failure> {
        let failed = |text: String| Failure::new(Code::Internal, text);
        let kept = Metad::kept_admin_ticket(&self.dir).map_err(|e| failed(e.to_string()))?;
        kept.ok_or_else(|| failed("the administrator's ticket is not there".into()))
    }

    /// This service as a caller.
    pub fn service(&self) -> Caller {
        Caller::service("metad")
    }

    /// A right to objects, which nodes check. One to write says what the file is, which nodes keep beside the content.
    pub fn grant(&self, subject: &str, scope: &str, file: Option<FileFacts>) -> Result<String, Failure> {
        let valid_s = self.config.timing.grant_s;
        let token = self
            .identity
            .issue_for_file(subject, &self.objects, scope, valid_s, file);
        token.map_err(|e| Failure::new(Code::Internal, e.to_string()))
    }

    /// As [`Self::grant`], at one node: signed with its secret where it is known to take that.
    pub fn grant_at(
        &self,
        node: &str,
        subject: &str,
        scope: &str,
        file: Option<FileFacts>,
    ) -> Result<Option<String>, Failure> {
        if !self.registry.shares(node) {
            return Ok(None);
        }
        let valid_s = self.config.timing.grant_s;
        let secret = rights_key(&self.master.node_key(node));
        let token = self
            .identity
            .issue_shared(subject, &self.objects, scope, valid_s, (node, &secret), file);
        token
            .map(Some)
            .map_err(|e| Failure::new(Code::Internal, e.to_string()))
    }

    /// A token of a user or node.
    pub fn issue(
        &self,
        subject: &str,
        groups: &[String],
        scope: &str,
        valid_s: u64,
    ) -> Result<String, Failure> {
        let token = self
            .identity
            .issue_to(subject, groups, &self.identity.name(), scope, valid_s);
        token.map_err(|e| Failure::new(Code::Invalid, e.to_string()))
    }
}

/// A metadata service that runs until it is stopped or dropped.
pub struct Metad {
    runtime: Option<Runtime>,
    stop: watch::Sender<bool>,
    inner: Arc<Inner>,
    address: SocketAddr,
    advertised: String,
}

impl Metad {
    /// Makes the key and the administrator's ticket of a service in `dir`, without starting it, if they are
    /// not there. The ticket names `address`.
    ///
    /// # Errors
    /// Files that cannot be made.
    pub fn admin_ticket(dir: &Path, address: &str) -> Result<Ticket, MetadError> {
        let identity = Identity::open(dir)?;
        admin_ticket(&identity, dir, address)
    }

    /// The administrator's ticket that the service in `dir` keeps, if it was ever started.
    ///
    /// # Errors
    /// A file that cannot be read or that others may read.
    pub fn kept_admin_ticket(dir: &Path) -> Result<Option<Ticket>, MetadError> {
        let bytes = private::read(&dir.join(ADMIN_TICKET), 64 * 1024)?;
        let Some(text) = bytes.and_then(|b| String::from_utf8(b).ok()) else {
            return Ok(None);
        };
        Ok(Some(text.trim().parse().map_err(ServiceError::from)?))
    }

    /// Starts the service of `dir` on `catalog`.
    ///
    /// # Errors
    /// See [`MetadError`].
    pub fn start(dir: &Path, catalog: Arc<dyn Catalog>) -> Result<Self, MetadError> {
        let config = Config::load(dir)?;
        let identity = Identity::open(dir)?;
        let listen = listen_address(&config, &identity)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("metad")
            .enable_all()
            .build()
            .map_err(|e| MetadError::Invalid(format!("cannot start threads: {e}")))?;
        let timing = config.timing;
        let objects = objects_audience(&identity.name());
        let inner = Arc::new(Inner {
            catalog,
            verifier: identity.verifier(),
            grants: Verifier::for_audience(identity.token_key(), &identity.name(), &objects),
            objects,
            master: Master::open(dir)?,
            registry: Registry::new(Duration::from_millis(timing.down_after_ms)),
            found: Found::default(),
            snapshots: Snapshots::default(),
            traffic: Traffic::new(&config, instance()),
            worker: worker_name()?,
            presence: Services::default(),
            upkeep: Upkeep::default(),
            dir: dir.to_owned(),
            handles: AtomicU64::new(1),
            identity,
            config,
        });
        let site = Site {
            name: DEFAULT_SITE.into(),
            note: String::new(),
        };
        inner.catalog.call(&Caller::admin(), PutSite { site })?;
        put_routes(&inner)?;
        let (stop, stopped) = watch::channel(false);
        let address = {
            let _in_runtime = runtime.enter();
            door::open(
                &inner.identity,
                &[ALPN_FRAMES, ALPN_GRPC],
                listen,
                inner.clone(),
                stopped.clone(),
            )?
        };
        let advertised = match &inner.config.advertise {
            Some(advertised) => advertised.clone(),
            None => address.to_string(),
        };
        inner.identity.keep_address(&advertised)?;
        inner.presence.set_me(&advertised);
        admin_ticket(&inner.identity, dir, &advertised)?;
        runtime.spawn(upkeep::run(inner.clone(), stopped.clone()));
        runtime.spawn(jobs::run(inner.clone(), stopped.clone()));
        runtime.spawn(snapshot::run(inner.clone(), stopped.clone()));
        runtime.spawn(traffic::run(inner.clone(), stopped));
        tracing::info!(%address, catalog = inner.catalog.describe(), "metadata service runs");
        Ok(Self {
            runtime: Some(runtime),
            stop,
            inner,
            address,
            advertised,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address that its tickets name.
    pub fn advertised(&self) -> &str {
        &self.advertised
    }

    /// The fingerprint of its key.
    pub fn pin(&self) -> kuroshio_service::Pin {
        self.inner.identity.pin()
    }

    /// Stops it: what was acknowledged is durable already.
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

impl Drop for Metad {
    fn drop(&mut self) {
        self.shut_down();
    }
}

/// The configured routes become rows of the catalog, and their sites too.
fn put_routes(inner: &Inner) -> Result<(), MetadError> {
    let admin = Caller::admin();
    let mut known: Vec<String> = inner
        .catalog
        .call(&admin, ListSites {})?
        .into_iter()
        .map(|s| s.name)
        .collect();
    for route in &inner.config.routes {
        for name in [&route.from, &route.to] {
            if !known.contains(name) {
                let (name, note) = (name.clone(), String::new());
                known.push(name.clone());
                inner.catalog.call(
                    &admin,
                    PutSite {
                        site: Site { name, note },
                    },
                )?;
            }
        }
        let put = PutRoute {
            from: route.from.clone(),
            to: route.to.clone(),
            capacity_bps: route.capacity_bps().map_err(MetadError::Invalid)?,
        };
        inner.catalog.call(&admin, put)?;
    }
    Ok(())
}

/// A number that no other start has.
fn instance() -> u64 {
    let mut bytes = [0; 8];
    // Without random bytes the time of the start differs.
    if SystemRandom::new().fill(&mut bytes).is_err() {
        return kuroshio_service::now_unix_s();
    }
    u64::from_le_bytes(bytes)
}

/// The configured address, with the port that an earlier start has found.
fn listen_address(config: &Config, identity: &Identity) -> Result<SocketAddr, MetadError> {
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

/// A name that no other process has.
fn worker_name() -> Result<String, MetadError> {
    let mut chance = [0; 8];
    let random = ring::rand::SystemRandom::new();
    ring::rand::SecureRandom::fill(&random, &mut chance)
        .map_err(|_| MetadError::Invalid("the system gives no random bytes".into()))?;
    Ok(format!("metad-{:016x}", u64::from_be_bytes(chance)))
}

/// The administrator's ticket: kept in the folder, made anew when the addresses have changed.
fn admin_ticket(identity: &Identity, dir: &Path, addresses: &str) -> Result<Ticket, MetadError> {
    if let Some(kept) = Metad::kept_admin_ticket(dir)?
        && kept.addresses() == addresses
        && kept.pin() == identity.pin()
        && identity.verifier().check(kept.token()).is_ok()
    {
        return Ok(kept);
    }
    let groups = ["admin".to_owned()];
    let token = identity.issue_to("admin", &groups, &identity.name(), ADMIN_SCOPE, ADMIN_VALID_S)?;
    let ticket = identity.ticket(addresses, token)?;
    private::write(
        &dir.join(ADMIN_TICKET),
        format!("{}\n", ticket.to_line()).as_bytes(),
    )?;
    Ok(ticket)
}
