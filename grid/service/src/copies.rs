//! Third-party copies: this service is asked to send to another one. The one that asks sees the progress
//! as lines of JSON until the end; when it goes away, the copy is cancelled (and can be resumed).
//!
//! ```text
//!   POST copies ──> Started{id} ──> Progress, Event ... ──> Done ──> POST copies/id/told ──> end
//! ```
//!
//! Until it is told that its user has seen `Done`, the service lets the receiver keep what a resume needs,
//! but no longer than [`TOLD_LIMIT_S`].

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::{self as std_mpsc, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hyper::body::Bytes;
use hyper::header::{self, HeaderValue};
use hyper::{Response, StatusCode};
use kuroshio_core::units::BitRate;
use kuroshio_transfer::{Event, Progress};
use tokio::sync::mpsc;

use crate::api::{CopyLine, CopyRequest, MAX_SOURCES, RouteRequest};
use crate::body::{Answer, ChannelBody};
use crate::client::{self, Endpoint, PushJob, Route};
use crate::error::ServiceError;
use crate::handle::{self, Caller, Refusal};
use crate::path::RootPath;
use crate::report::{CopyReport, EventReport, ProgressReport};
use crate::server::Inner;
use crate::sessions::sources_of;
use crate::token::Operation;

/// Third-party copies at once.
pub const MAX_COPIES: usize = 32;
/// How often progress is told, ms.
const TELL_MS: u64 = 250;
/// Lines that wait for a slow client; events beyond them are dropped, progress is told later.
const LINES: usize = 1024;

/// Longest wait for the word that the user has seen the end, seconds.
const TOLD_LIMIT_S: u64 = 15;

/// A copy that runs.
struct Running {
    owner: String,
    progress: Arc<Progress>,
    told: std_mpsc::Sender<()>,
}

/// The copies that run, by name.
#[derive(Default)]
pub struct Copies {
    running: Mutex<HashMap<String, Running>>,
}

impl Copies {
    fn table(&self) -> MutexGuard<'_, HashMap<String, Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(self: &Arc<Self>, id: String, running: Running) -> Option<Place> {
        let mut table = self.table();
        if table.len() >= MAX_COPIES {
            return None;
        }
        table.insert(id.clone(), running);
        Some(Place {
            copies: self.clone(),
            id,
        })
    }

    /// The user has seen the end of a copy of `owner`; says whether there is such a copy.
    pub fn told(&self, id: &str, owner: &str) -> bool {
        let table = self.table();
        let running = table.get(id).filter(|r| r.owner == owner);
        running.is_some_and(|r| r.told.send(()).is_ok())
    }

    /// How many run.
    pub fn running(&self) -> usize {
        self.table().len()
    }

    /// Cancels all.
    pub fn cancel_all(&self) {
        for running in self.table().values() {
            running.progress.cancel();
        }
    }
}

/// A running copy's place among [`MAX_COPIES`].
struct Place {
    copies: Arc<Copies>,
    id: String,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.copies.table().remove(&self.id);
    }
}

/// Starts a copy and answers with its lines.
pub fn start(
    inner: &Arc<Inner>,
    peer: SocketAddr,
    wanted: CopyRequest,
    caller: &Caller,
) -> Result<Answer, Refusal> {
    let (endpoint, job) = prepare(inner, wanted, caller)?;
    let (tx, stream) = ChannelBody::pair(LINES, None);
    let (events, last) = (tx.clone(), tx.clone());
    let (told, has_told) = std_mpsc::channel();
    let has_told = Mutex::new(has_told);
    let progress = Progress::with_events(move |event: &Event| {
        // A slow client loses events of single files, never the result.
        if !matches!(event, Event::Durable { .. }) {
            let _ = events.try_send(line(&CopyLine::Event(EventReport::from(event))));
        }
    });
    let progress = Arc::new(progress.telling(move |summary, snapshot| {
        let _ = last.blocking_send(line(&CopyLine::Progress(ProgressReport::from(snapshot))));
        let _ = last.blocking_send(line(&CopyLine::Done(CopyReport::new(summary, snapshot))));
        wait_until_told(&has_told, &last)
    }));
    let id = crate::identity::random_hex()?;
    // The channel is empty.
    let _ = tx.try_send(line(&CopyLine::Started { id: id.clone() }));
    let running = Running {
        owner: caller.owner(),
        progress: progress.clone(),
        told,
    };
    let Some(place) = inner.copies.add(id, running) else {
        return Err(Refusal::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "too many copies at once; try again later",
        ));
    };
    tracing::info!(%peer, to = endpoint.address(), "third-party copy begins");
    let pacer = inner.pacer.clone();
    std::thread::Builder::new()
        .name("copy".into())
        .spawn(move || {
            let _place = place;
            run(peer, &endpoint, job, &progress, &*pacer, &tx);
        })
        .map_err(|e| {
            Refusal::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                format!("cannot start a thread: {e}"),
            )
        })?;
    let mut answer = Response::new(stream);
    answer.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/x-ndjson"),
    );
    Ok(answer)
}

fn prepare(inner: &Inner, wanted: CopyRequest, caller: &Caller) -> Result<(Endpoint, PushJob), Refusal> {
    let invalid = |text: String| Refusal::from(ServiceError::Invalid(text));
    wanted.options.check().map_err(invalid)?;
    if wanted.sources.is_empty() || wanted.sources.len() > MAX_SOURCES {
        return Err(invalid(format!("1 to {MAX_SOURCES} sources are valid")));
    }
    let paths = wanted
        .sources
        .iter()
        .map(|p| RootPath::from_url(p))
        .collect::<Result<Vec<_>, _>>()?;
    for path in &paths {
        caller.may(Operation::Read, path.as_bytes())?;
        inner.check_readable(path)?;
    }
    client::check_congestion(wanted.congestion.as_deref())?;
    let groups = wanted
        .routes
        .iter()
        .map(|r| RouteRequest {
            streams: r.streams,
            rate_bps: r.rate_bps,
        })
        .collect::<Vec<_>>();
    handle::groups_of(&groups)?;
    let routes = wanted.routes.into_iter().map(|route| Route {
        via: route.via,
        streams: route.streams,
        rate: route.rate_bps.and_then(BitRate::new),
    });
    let endpoint = match wanted.to.identity {
        Some((pin, token)) => Endpoint::pinned(&wanted.to.address, pin.parse().map_err(invalid)?, token),
        None if inner.verifier.is_some() => {
            return Err(invalid(
                "this service does not send in clear text: the receiver needs pin and token".into(),
            ));
        }
        None => Endpoint::insecure(&wanted.to.address),
    }?;
    let job = PushJob {
        sources: sources_of(&inner.root, &paths)?,
        destination: RootPath::from_url(&wanted.destination)?,
        options: wanted.options,
        key: wanted.key,
        routes: routes.collect(),
        congestion: wanted.congestion,
    };
    Ok((endpoint, job))
}

fn line(line: &CopyLine) -> io::Result<Bytes> {
    let mut bytes = serde_json::to_vec(line).map_err(io::Error::other)?;
    bytes.push(b'\n');
    Ok(bytes.into())
}

fn run(
    peer: SocketAddr,
    endpoint: &Endpoint,
    job: PushJob,
    progress: &Arc<Progress>,
    pacer: &dyn crate::pacer::Pacer,
    tx: &mpsc::Sender<io::Result<Bytes>>,
) {
    let (ended_tx, ended) = std_mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(|| tell(progress, tx, ended));
        let result = client::push(endpoint, job, progress, pacer);
        drop(ended_tx);
        match result {
            Ok(summary) => {
                tracing::info!(%peer, to = endpoint.address(), bytes = summary.bytes_sent, "third-party copy ended");
            }
            Err(e) => {
                tracing::warn!(%peer, to = endpoint.address(), "third-party copy ended early: {e}");
                let snapshot = ProgressReport::from(&progress.snapshot());
                let _ = tx.blocking_send(line(&CopyLine::Progress(snapshot)));
                let _ = tx.blocking_send(line(&CopyLine::Error(e.to_string())));
            }
        }
    });
}

/// Waits for the word that the user knows, as long as somebody listens.
fn wait_until_told(told: &Mutex<std_mpsc::Receiver<()>>, tx: &mpsc::Sender<io::Result<Bytes>>) -> bool {
    let told = told.lock().unwrap_or_else(PoisonError::into_inner);
    let deadline = Instant::now() + Duration::from_secs(TOLD_LIMIT_S);
    while Instant::now() < deadline {
        match told.recv_timeout(Duration::from_millis(TELL_MS)) {
            Ok(()) => return true,
            Err(RecvTimeoutError::Timeout) if !tx.is_closed() => {}
            Err(_) => return false,
        }
    }
    false
}

/// Tells progress until the copy ends; cancels it when nobody listens any more.
fn tell(progress: &Progress, tx: &mpsc::Sender<io::Result<Bytes>>, ended: std_mpsc::Receiver<()>) {
    while ended.recv_timeout(Duration::from_millis(TELL_MS)) == Err(RecvTimeoutError::Timeout) {
        if tx.is_closed() {
            progress.cancel();
        }
        let _ = tx.try_send(line(&CopyLine::Progress(ProgressReport::from(
            &progress.snapshot(),
        ))));
    }
}
