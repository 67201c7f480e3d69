//! One request: who asks, may they, what is the answer. Every refusal is logged with the peer's address
//! and the reason; tokens never reach the log.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::header::{self, HeaderValue};
use hyper::{Method, Request, StatusCode};
use kuroshio_core::units::BitRate;
use kuroshio_transfer::{ReceiveJob, SendJob};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::api::{
    API_PREFIX, CopyRequest, Direction, LeaseRelease, LeaseRenewal, LeaseRequest, MAX_BODY_BYTES, MAX_ROUTES,
    MAX_SOURCES, MAX_STREAMS, PlanChange, RouteRequest, SessionGranted, SessionRequest, UPGRADE,
};
use crate::body::{self, Answer};
use crate::error::ServiceError;
use crate::path::{PathError, RootPath};
use crate::server::Inner;
use crate::sessions::{CONTROL_LIMIT_S, Group, JOIN_LIMIT_S, JoinError, Slot, Work, sources_of};
use crate::token::{Claims, Operation, TokenError};
use crate::{client, copies, door, files, front};

/// Longest wait for a request's body, seconds.
const BODY_LIMIT_S: u64 = 15;

/// A refusal: what the client is told.
pub struct Refusal {
    status: StatusCode,
    text: String,
}

impl Refusal {
    /// A refusal with a status and a sentence.
    pub fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self {
            status,
            text: text.into(),
        }
    }

    fn bad(text: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, text)
    }
}

impl From<TokenError> for Refusal {
    fn from(e: TokenError) -> Self {
        let status = match e {
            TokenError::Scope { .. } => StatusCode::FORBIDDEN,
            _ => StatusCode::UNAUTHORIZED,
        };
        Self::new(status, e.to_string())
    }
}

impl From<PathError> for Refusal {
    fn from(e: PathError) -> Self {
        let status = match e {
            PathError::Escapes => StatusCode::FORBIDDEN,
            PathError::Malformed(_) => StatusCode::BAD_REQUEST,
        };
        Self::new(status, e.to_string())
    }
}

impl From<ServiceError> for Refusal {
    fn from(e: ServiceError) -> Self {
        let status = if e.is_bad_input() {
            StatusCode::BAD_REQUEST
        } else {
            StatusCode::INTERNAL_SERVER_ERROR
        };
        Self::new(status, e.to_string())
    }
}

/// Who asks: the claims of a good token, or anybody in insecure mode.
pub struct Caller(Option<Claims>);

impl Caller {
    /// Whether this may be done on `path`.
    pub fn may(&self, operation: Operation, path: &[u8]) -> Result<(), TokenError> {
        match &self.0 {
            Some(claims) => claims.allow(operation, path),
            None => Ok(()),
        }
    }

    /// Names the caller: the same token is the same owner.
    pub fn owner(&self) -> String {
        self.0
            .as_ref()
            .map_or_else(|| "anybody".to_owned(), |c| format!("{}/{}", c.sub, c.jti))
    }
}

/// Answers a request.
pub async fn answer(inner: Arc<Inner>, peer: SocketAddr, mut request: Request<Incoming>) -> Answer {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    match route(&inner, peer, &mut request).await {
        Ok(answer) => {
            if answer.status().is_client_error() {
                tracing::warn!(%peer, %method, path, status = answer.status().as_u16(), "refused");
            } else {
                tracing::debug!(%peer, %method, path, status = answer.status().as_u16(), "answered");
            }
            answer
        }
        Err(refusal) => {
            let status = refusal.status.as_u16();
            tracing::warn!(%peer, %method, path, status, "refused: {}", refusal.text);
            let mut answer = body::text(refusal.status, &refusal.text);
            if refusal.status == StatusCode::UNAUTHORIZED {
                let challenge = HeaderValue::from_static("Bearer realm=\"kuroshio\"");
                answer.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
            }
            answer
        }
    }
}

fn authenticate(inner: &Inner, request: &Request<Incoming>) -> Result<Caller, TokenError> {
    let Some(verifier) = &inner.verifier else {
        return Ok(Caller(None));
    };
    Ok(Caller(Some(door::bearer(verifier, request.headers())?)))
}

async fn route(
    inner: &Arc<Inner>,
    peer: SocketAddr,
    request: &mut Request<Incoming>,
) -> Result<Answer, Refusal> {
    let caller = authenticate(inner, request)?;
    let path = request.uri().path().to_owned();
    if let Some(endpoint) = path.strip_prefix(API_PREFIX) {
        return api(inner, peer, request, &caller, endpoint).await;
    }
    let path = RootPath::from_url(&path)?;
    let head_only = match *request.method() {
        Method::GET => false,
        Method::HEAD => true,
        _ => {
            let mut answer = body::text(StatusCode::METHOD_NOT_ALLOWED, "files are read by GET and HEAD");
            answer
                .headers_mut()
                .insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
            return Ok(answer);
        }
    };
    caller.may(Operation::Read, path.as_bytes())?;
    Ok(files::answer(inner.root.clone(), path, request.headers(), head_only).await)
}

async fn api(
    inner: &Arc<Inner>,
    peer: SocketAddr,
    request: &mut Request<Incoming>,
    caller: &Caller,
    endpoint: &str,
) -> Result<Answer, Refusal> {
    let parts = endpoint.split('/').collect::<Vec<_>>();
    match (request.method(), parts.as_slice()) {
        (&Method::POST, ["sessions"]) => open_session(inner, &read(request).await?, caller),
        (&Method::GET, ["sessions", id, slot @ ..]) => {
            let slot = match slot {
                ["fwd"] => Slot::Fwd,
                ["rev"] => Slot::Rev,
                ["data", n] => Slot::Data(n.parse().map_err(|_| Refusal::bad("not a stream number"))?),
                _ => {
                    return Err(Refusal::new(
                        StatusCode::NOT_FOUND,
                        "no such connection of a session",
                    ));
                }
            };
            upgrade(inner, peer, request, caller, (*id).to_owned(), slot)
        }
        (&Method::POST, ["copies"]) => {
            let copy: CopyRequest = read(request).await?;
            Ok(copies::start(inner, peer, copy, caller)?)
        }
        (&Method::POST, ["copies", id, "told"]) if inner.copies.told(id, &caller.owner()) => {
            Ok(body::empty(StatusCode::NO_CONTENT))
        }
        (&Method::GET, ["plan"]) => {
            caller.may(Operation::Lease, b"")?;
            Ok(body::json(StatusCode::OK, &inner.plan()?.report()))
        }
        (&Method::POST, ["plan"]) => {
            caller.may(Operation::Plan, b"")?;
            let change: PlanChange = read(request).await?;
            tracing::info!(%peer, route = change.route, capacity_bps = change.capacity_bps, "plan changed");
            Ok(body::json(StatusCode::OK, &inner.plan()?.change(&change)?))
        }
        (&Method::POST, ["leases", what @ ..]) => {
            caller.may(Operation::Lease, b"")?;
            leases(inner, request, what).await
        }
        _ => Err(Refusal::new(StatusCode::NOT_FOUND, "no such endpoint")),
    }
}

async fn leases(
    inner: &Arc<Inner>,
    request: &mut Request<Incoming>,
    what: &[&str],
) -> Result<Answer, Refusal> {
    let plan = inner.plan()?;
    match what {
        [] => {
            let wanted: LeaseRequest = read(request).await?;
            Ok(body::json(StatusCode::CREATED, &plan.grant(&wanted).await?))
        }
        ["renew"] => {
            let renewal: LeaseRenewal = read(request).await?;
            Ok(body::json(StatusCode::OK, &plan.renew(&renewal).await?))
        }
        ["release"] => {
            let release: LeaseRelease = read(request).await?;
            plan.release(&release.ids);
            Ok(body::empty(StatusCode::NO_CONTENT))
        }
        _ => Err(Refusal::new(StatusCode::NOT_FOUND, "no such endpoint")),
    }
}

/// Reads a JSON body within its limits.
async fn read<T: DeserializeOwned + Serialize>(request: &mut Request<Incoming>) -> Result<T, Refusal> {
    let body = Limited::new(request.body_mut(), MAX_BODY_BYTES).collect();
    let whole = tokio::time::timeout(Duration::from_secs(BODY_LIMIT_S), body)
        .await
        .map_err(|_| Refusal::new(StatusCode::REQUEST_TIMEOUT, "the body did not come in time"))?
        .map_err(|e| Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, format!("body: {e}")))?;
    serde_json::from_slice(&whole.to_bytes()).map_err(|e| Refusal::bad(format!("body: {e}")))
}

/// Checks the groups of streams of a session and shares each group's rate among its streams.
pub fn groups_of(routes: &[RouteRequest]) -> Result<Vec<Group>, Refusal> {
    let streams = routes.iter().fold(0u32, |sum, r| sum.saturating_add(r.streams));
    if routes.is_empty() || routes.len() > MAX_ROUTES || routes.iter().any(|r| r.streams == 0) {
        return Err(Refusal::bad(format!(
            "1 to {MAX_ROUTES} routes of at least one stream each are valid"
        )));
    }
    if streams > MAX_STREAMS {
        return Err(Refusal::bad(format!(
            "{streams} streams; at most {MAX_STREAMS} are valid"
        )));
    }
    let groups = routes.iter().map(|route| {
        let stream_rate = match route.rate_bps {
            None => None,
            Some(bps) => {
                let rate = BitRate::from_bps(bps / u64::from(route.streams));
                Some(rate.map_err(|e| Refusal::bad(e.to_string()))?)
            }
        };
        Ok(Group {
            streams: route.streams,
            stream_rate,
        })
    });
    groups.collect()
}

fn open_session(inner: &Arc<Inner>, wanted: &SessionRequest, caller: &Caller) -> Result<Answer, Refusal> {
    let groups = groups_of(&wanted.routes)?;
    wanted.options.check().map_err(Refusal::bad)?;
    if wanted.paths.is_empty() || wanted.paths.len() > MAX_SOURCES {
        return Err(Refusal::bad(format!("1 to {MAX_SOURCES} paths are valid")));
    }
    let paths = wanted
        .paths
        .iter()
        .map(|p| RootPath::from_url(p))
        .collect::<Result<Vec<_>, _>>()?;
    let work = match wanted.direction {
        Direction::Push => {
            let [dest] = paths.as_slice() else {
                return Err(Refusal::bad("a push has one destination"));
            };
            caller.may(Operation::Modify, dest.as_bytes())?;
            let dest = dest.relative().to_vec();
            Work::Receive(ReceiveJob {
                root: inner.root.duplicate()?,
                dest,
            })
        }
        Direction::Pull => {
            client::check_congestion(wanted.congestion.as_deref())?;
            for path in &paths {
                caller.may(Operation::Read, path.as_bytes())?;
                inner.check_readable(path)?;
            }
            let sources = sources_of(&inner.root, &paths)?;
            Work::Send(SendJob {
                sources,
                options: wanted.options.clone(),
                key: wanted.key,
            })
        }
    };
    let owner = caller.owner();
    let opened = inner
        .sessions
        .open(&owner, work, groups, wanted.congestion.clone())?;
    let Some(session) = opened else {
        return Err(Refusal::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "too many sessions at once; try again later",
        ));
    };
    let (sessions, id) = (inner.sessions.clone(), session.clone());
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(CONTROL_LIMIT_S)).await;
        sessions.end_if_waiting(&id);
        tokio::time::sleep(Duration::from_secs(JOIN_LIMIT_S - CONTROL_LIMIT_S)).await;
        sessions.close_joining(&id);
    });
    Ok(body::json(StatusCode::CREATED, &SessionGranted { session }))
}

fn upgrade(
    inner: &Arc<Inner>,
    peer: SocketAddr,
    request: &mut Request<Incoming>,
    caller: &Caller,
    id: String,
    slot: Slot,
) -> Result<Answer, Refusal> {
    let asks = request
        .headers()
        .get(header::UPGRADE)
        .and_then(|v| v.to_str().ok());
    if asks != Some(UPGRADE) {
        let mut answer = body::text(
            StatusCode::UPGRADE_REQUIRED,
            "this endpoint needs `Upgrade: kuroshio/1`",
        );
        answer
            .headers_mut()
            .insert(header::UPGRADE, HeaderValue::from_static(UPGRADE));
        return Ok(answer);
    }
    inner
        .sessions
        .reserve(&id, &caller.owner(), slot)
        .map_err(|e| match e {
            JoinError::Unknown => {
                let why = inner
                    .sessions
                    .reason(&id)
                    .unwrap_or_else(|| "it has ended or never was".into());
                Refusal::new(StatusCode::GONE, format!("no such session: {why}"))
            }
            JoinError::Taken => Refusal::new(
                StatusCode::CONFLICT,
                "that connection of the session is here already",
            ),
        })?;
    let on = hyper::upgrade::on(request);
    let sessions = inner.sessions.clone();
    tokio::spawn(async move {
        let upgraded = match on.await {
            Ok(upgraded) => upgraded,
            Err(e) => return tracing::warn!(%peer, "an upgrade failed: {e}"),
        };
        // Joining may wait for a lease, so it leaves the asynchronous threads.
        let joined = tokio::task::spawn_blocking(move || {
            let conn = front::upgraded_conn(upgraded).map_err(|e| ServiceError::peer(peer, "upgrade", e))?;
            sessions.join(&id, slot, conn, peer.ip().to_canonical())
        });
        match joined.await {
            Ok(Ok(())) => {}
            Ok(Err(e)) => tracing::warn!(%peer, "a connection could not join its session: {e}"),
            Err(e) => tracing::warn!(%peer, "a connection could not join its session: {e}"),
        }
    });
    let mut answer = body::empty(StatusCode::SWITCHING_PROTOCOLS);
    answer
        .headers_mut()
        .insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    answer
        .headers_mut()
        .insert(header::UPGRADE, HeaderValue::from_static(UPGRADE));
    Ok(answer)
}
