//! A running service.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::body::Incoming;
use hyper::{Request, StatusCode};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use crate::body::Answer;
use crate::error::ServiceError;
use crate::front;
use crate::handle::{self, Refusal};
use crate::identity::Identity;
use crate::pacer::{OwnLimit, Pacer};
use crate::path::{Root, RootPath};
use crate::plan::{LocalPlan, PlanKeeper};
use crate::sessions::Sessions;
use crate::tls;
use crate::token::Verifier;

/// Threads of the front door; sessions have their own.
const FRONT_THREADS: usize = 2;
/// Longest wait for sessions and copies to end cleanly when the service stops, seconds.
pub const STOP_LIMIT_S: u64 = 10;
/// How often a stopping service looks whether they have ended, ms.
const STOP_POLL_MS: u64 = 20;

/// Who may speak to a service.
pub enum Security<'a> {
    /// TLS with this identity's key, and its tokens.
    Pinned(&'a Identity),
    /// Anybody, in clear text. `anywhere`: also on other than loopback addresses.
    Insecure {
        /// Whether the second flag was given.
        anywhere: bool,
    },
}

/// What to serve.
pub struct ServeConfig<'a> {
    /// The folder.
    pub root: PathBuf,
    /// Where to listen; port 0 is any free one.
    pub listen: Vec<SocketAddr>,
    /// Who may speak to it.
    pub security: Security<'a>,
    /// The rate plan of the site, if this service owns it.
    pub plan: Option<Arc<PlanKeeper>>,
}

/// What requests share.
pub struct Inner {
    pub(crate) root: Arc<Root>,
    pub(crate) verifier: Option<Verifier>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) pacer: Arc<dyn Pacer>,
    pub(crate) copies: Arc<crate::copies::Copies>,
    plan: Option<Arc<PlanKeeper>>,
}

impl Inner {
    /// The rate plan, or the refusal that there is none.
    pub(crate) fn plan(&self) -> Result<Arc<PlanKeeper>, Refusal> {
        self.plan.clone().ok_or_else(|| {
            Refusal::new(
                StatusCode::NOT_FOUND,
                "this service has no rate plan (`kuroshio serve --plan FILE`)",
            )
        })
    }

    /// Whether a source can be opened now: a missing one is refused before a session begins. A symbolic link
    /// is copied as a link, so only its folder must exist.
    pub(crate) fn check_readable(&self, path: &RootPath) -> Result<(), Refusal> {
        use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
        use rustix::io::Errno;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        match openat2(&*self.root, path.relative(), flags, Mode::empty(), resolve) {
            Ok(_) => Ok(()),
            Err(Errno::NOENT | Errno::NOTDIR) => Err(Refusal::new(
                StatusCode::NOT_FOUND,
                format!("{path}: no such file or folder"),
            )),
            Err(Errno::XDEV) => Err(Refusal::new(
                StatusCode::FORBIDDEN,
                format!("{path}: leaves the served folder"),
            )),
            Err(e) => Err(Refusal::new(StatusCode::FORBIDDEN, format!("{path}: {e}"))),
        }
    }
}

impl front::Speaker for Inner {
    async fn speak(self: Arc<Self>, door: front::Door, peer: SocketAddr, stop: watch::Receiver<bool>) {
        front::speak_http(self, door, peer, stop).await;
    }
}

impl front::Handler for Inner {
    async fn answer(self: Arc<Self>, peer: SocketAddr, request: Request<Incoming>) -> Answer {
        handle::answer(self, peer, request).await
    }
}

/// A service that runs until it is stopped or dropped.
pub struct Service {
    runtime: Option<Runtime>,
    inner: Arc<Inner>,
    stop: watch::Sender<bool>,
    addresses: Vec<SocketAddr>,
}

impl Service {
    /// Opens the root, listens, and serves in threads of its own.
    ///
    /// # Errors
    /// An insecure service on an address that is not loopback, a root that cannot be opened, an address that
    /// cannot be listened on.
    pub fn start(config: ServeConfig<'_>) -> Result<Self, ServiceError> {
        let anywhere = matches!(
            config.security,
            Security::Insecure { anywhere: true } | Security::Pinned(_)
        );
        if let Some(open) = config.listen.iter().find(|a| !anywhere && !a.ip().is_loopback()) {
            return Err(ServiceError::Invalid(format!(
                "--insecure serves everybody who can reach {open}, in clear text: use 127.0.0.1 or [::1], or add \
                 --insecure-anywhere"
            )));
        }
        let root = Arc::new(Root::open(&config.root)?);
        let (verifier, acceptor) = match config.security {
            Security::Pinned(identity) => (
                Some(identity.verifier()),
                Some(TlsAcceptor::from(tls::server_config(
                    identity,
                    &[tls::ALPN_HTTP],
                )?)),
            ),
            Security::Insecure { .. } => (None, None),
        };
        let pacer: Arc<dyn Pacer> = match &config.plan {
            Some(plan) => Arc::new(LocalPlan(plan.clone())),
            None => Arc::new(OwnLimit),
        };
        let inner = Arc::new(Inner {
            root,
            verifier,
            sessions: Sessions::new(pacer.clone()),
            pacer,
            copies: Arc::default(),
            plan: config.plan,
        });
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(FRONT_THREADS)
            .thread_name("front")
            .enable_all()
            .build()
            .map_err(|e| ServiceError::Crypto(format!("cannot start the front door's threads: {e}")))?;
        let (stop, stopped) = watch::channel(false);
        let mut addresses = Vec::new();
        for address in &config.listen {
            let cannot = |e| ServiceError::peer(address, "cannot listen", e);
            let listener: TcpListener = kuroshio_sock::listen(*address).map_err(cannot)?;
            listener.set_nonblocking(true).map_err(cannot)?;
            addresses.push(listener.local_addr().map_err(cannot)?);
            let _in_runtime = runtime.enter();
            let listener = tokio::net::TcpListener::from_std(listener).map_err(cannot)?;
            runtime.spawn(front::accept_loop(
                inner.clone(),
                listener,
                acceptor.clone(),
                stopped.clone(),
            ));
        }
        Ok(Self {
            runtime: Some(runtime),
            inner,
            stop,
            addresses,
        })
    }

    /// Where it listens, with the ports that were chosen.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The served folder.
    pub fn root(&self) -> &std::path::Path {
        self.inner.root.path()
    }

    /// Stops accepting, asks sessions to end (what they moved stays for the next run) and waits for them, at
    /// most [`STOP_LIMIT_S`].
    pub fn stop(mut self) {
        self.shut_down();
    }

    fn shut_down(&mut self) {
        let Some(runtime) = self.runtime.take() else {
            return;
        };
        let _ = self.stop.send(true);
        self.inner.sessions.cancel_all();
        self.inner.copies.cancel_all();
        let deadline = Instant::now() + Duration::from_secs(STOP_LIMIT_S);
        while self.inner.sessions.running() + self.inner.copies.running() > 0 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(STOP_POLL_MS));
        }
        runtime.shutdown_timeout(Duration::from_secs(1));
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.shut_down();
    }
}
