//! Third-party copies: this service is asked to send to another one. The one that asks sees the progress
//! as lines of JSON until the end; when it goes away, the copy is cancelled (and can be resumed).

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
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

/// The copies that run.
#[derive(Default)]
pub struct Copies {
    running: Mutex<(u64, HashMap<u64, Arc<Progress>>)>,
}

impl Copies {
    fn add(self: &Arc<Self>, progress: &Arc<Progress>) -> Option<Place> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if running.1.len() >= MAX_COPIES {
            return None;
        }
        running.0 += 1;
        let id = running.0;
        running.1.insert(id, progress.clone());
        Some(Place {
            copies: self.clone(),
            id,
        })
    }

    /// How many run.
    pub fn running(&self) -> usize {
        self.running
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .1
            .len()
    }

    /// Cancels all.
    pub fn cancel_all(&self) {
        for progress in self
            .running
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .1
            .values()
        {
            progress.cancel();
        }
    }
}

/// A running copy's place among [`MAX_COPIES`].
struct Place {
    copies: Arc<Copies>,
    id: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.copies
            .running
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .1
            .remove(&self.id);
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
    let events = tx.clone();
    let progress = Arc::new(Progress::with_events(move |event: &Event| {
        // A slow client loses events of single files, never the result.
        if !matches!(event, Event::Durable { .. }) {
            let _ = events.try_send(line(&CopyLine::Event(EventReport::from(event))));
        }
    }));
    let Some(place) = inner.copies.add(&progress) else {
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
    let begun = Instant::now();
    let (ended_tx, ended) = std::sync::mpsc::channel::<()>();
    let last = std::thread::scope(|scope| {
        scope.spawn(|| tell(progress, tx, ended));
        let result = client::push(endpoint, job, progress, pacer);
        drop(ended_tx);
        match result {
            Ok(summary) => {
                let report = CopyReport::new(&summary, &progress.snapshot(), begun.elapsed().as_secs_f64());
                tracing::info!(%peer, to = endpoint.address(), bytes = report.bytes_sent, "third-party copy ended");
                CopyLine::Done(report)
            }
            Err(e) => {
                tracing::warn!(%peer, to = endpoint.address(), "third-party copy ended early: {e}");
                CopyLine::Error(e.to_string())
            }
        }
    });
    let _ = tx.blocking_send(line(&CopyLine::Progress(ProgressReport::from(
        &progress.snapshot(),
    ))));
    let _ = tx.blocking_send(line(&last));
}

/// Tells progress until the copy ends; cancels it when nobody listens any more.
fn tell(progress: &Progress, tx: &mpsc::Sender<io::Result<Bytes>>, ended: std::sync::mpsc::Receiver<()>) {
    use std::sync::mpsc::RecvTimeoutError;
    while ended.recv_timeout(Duration::from_millis(TELL_MS)) == Err(RecvTimeoutError::Timeout) {
        if tx.is_closed() {
            progress.cancel();
        }
        let _ = tx.try_send(line(&CopyLine::Progress(ProgressReport::from(
            &progress.snapshot(),
        ))));
    }
}
