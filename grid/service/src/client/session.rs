//! Push, pull, and the copy between two services.

use std::net::{IpAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::mpsc::Sender;
use std::sync::{Mutex, PoisonError};

use kuroshio_core::units::BitRate;
use kuroshio_transfer::{
    Conn, DataConn, Options, Progress, ReceiveJob, SendJob, SessionConns, SessionKey, Source, Summary,
};

use super::http::{Endpoint, HttpConn, Security};
use crate::api::{
    CopyLine, CopyRequest, CopyRoute, Direction, Receiver, RouteRequest, SessionGranted, SessionRequest,
};
use crate::error::ServiceError;
use crate::pacer::{PaceGuard, Pacer};
use crate::path::RootPath;

/// One group of streams over one route.
#[derive(Debug, Clone)]
pub struct Route {
    /// Address to dial, with or without port; none is the service's own.
    pub via: Option<String>,
    /// How many streams.
    pub streams: u32,
    /// Rate in sum, frame level.
    pub rate: Option<BitRate>,
}

/// What to send.
pub struct PushJob {
    /// Sources here.
    pub sources: Vec<Source>,
    /// Where at the service.
    pub destination: RootPath,
    /// How.
    pub options: Options,
    /// Names the transfer for resume.
    pub key: SessionKey,
    /// Groups of streams, at least one.
    pub routes: Vec<Route>,
    /// Congestion control of the data sockets.
    pub congestion: Option<String>,
}

/// What to fetch.
pub struct PullJob {
    /// Sources at the service.
    pub sources: Vec<RootPath>,
    /// Folder here that the destination is beneath.
    pub root: OwnedFd,
    /// Destination beneath it, bytes.
    pub destination: Vec<u8>,
    /// How.
    pub options: Options,
    /// Names the transfer for resume.
    pub key: SessionKey,
    /// Groups of streams, at least one.
    pub routes: Vec<Route>,
    /// Congestion control of the service's data sockets.
    pub congestion: Option<String>,
}

/// Checks the name of a congestion control against this host's kernel before anything starts.
///
/// # Errors
/// It cannot be used here.
pub fn check_congestion(name: Option<&str>) -> Result<(), ServiceError> {
    let Some(name) = name else { return Ok(()) };
    let probe = std::net::TcpListener::bind(("127.0.0.1", 0));
    let probe = probe.map_err(|e| ServiceError::peer("127.0.0.1", "cannot listen", e))?;
    kuroshio_sock::set_congestion(&probe, name).map_err(|e| {
        ServiceError::Invalid(format!(
            "congestion control `{name}` cannot be used at the sender: {e}"
        ))
    })
}

/// Refuses a rate below one full frame per second of this very connection.
fn check_frame_rate(socket: &TcpStream, to: IpAddr, limit: Option<BitRate>) -> Result<(), ServiceError> {
    let Some(limit) = limit else { return Ok(()) };
    let Ok(info) = kuroshio_sock::tcp_info(socket) else {
        return Ok(());
    };
    let Some(framing) = info.framing(to.to_canonical().is_ipv6()) else {
        return Ok(());
    };
    let frame = framing.frame_bytes(u64::from(info.snd_mss));
    let least_bps = frame.saturating_mul(8);
    if limit.bps() >= least_bps {
        return Ok(());
    }
    Err(ServiceError::Invalid(format!(
        "a stream's rate of {limit} is less than one of its frames ({frame} bytes) per second: at least \
         {least_bps}bps for each stream is valid; use fewer streams or a higher rate"
    )))
}

/// The limit of each stream of a route.
fn stream_limit(route: &Route) -> Option<BitRate> {
    route.rate.and_then(|r| r.checked_div(u64::from(route.streams)))
}

fn route_requests(routes: &[Route]) -> Vec<RouteRequest> {
    let of = |r: &Route| RouteRequest {
        streams: r.streams,
        rate_bps: r.rate.map(BitRate::bps),
    };
    routes.iter().map(of).collect()
}

fn slot_path(session: &str, slot: &str) -> String {
    format!("/.kuroshio/sessions/{session}/{slot}")
}

/// A granted session and its control connections.
struct Opened {
    session: String,
    fwd: Conn,
    rev: Conn,
}

fn open(endpoint: &Endpoint, routes: &[Route], request: &SessionRequest) -> Result<Opened, ServiceError> {
    let via = routes.first().and_then(|r| r.via.as_deref());
    let mut first = endpoint.dial(via, None)?;
    // Before anything begins; each stream is checked again on its own connection.
    for route in routes {
        check_frame_rate(first.socket(), first.peer().ip(), stream_limit(route))?;
    }
    let granted: SessionGranted = first.ask("POST", "/.kuroshio/sessions", Some(request))?;
    let session = granted.session;
    if session.is_empty() || !session.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(ServiceError::Protocol {
            address: endpoint.address().to_owned(),
            text: "the name of its session is not hexadecimal".into(),
        });
    }
    let second = endpoint.dial(via, None)?;
    let fwd = first.upgrade(&slot_path(&session, "fwd"))?;
    let rev = second.upgrade(&slot_path(&session, "rev"))?;
    Ok(Opened { session, fwd, rev })
}

/// What the threads that dial data streams share.
struct Dialling<'a> {
    endpoint: &'a Endpoint,
    session: &'a str,
    congestion: Option<&'a str>,
    /// Paces streams that leave from here; none when the service sends.
    pacer: Option<&'a dyn Pacer>,
    leases: Mutex<Vec<PaceGuard>>,
    first_error: Mutex<Option<ServiceError>>,
}

impl Dialling<'_> {
    /// Dials stream `n` of group `index` and hands it to the session.
    fn stream(&self, n: u32, index: u32, route: &Route, tx: &Sender<DataConn>) {
        if let Err(e) = self.try_stream(n, index, route, tx) {
            tracing::warn!("data stream {n} did not come about: {e}");
            self.first_error
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .get_or_insert(e);
        }
    }

    fn try_stream(
        &self,
        n: u32,
        index: u32,
        route: &Route,
        tx: &Sender<DataConn>,
    ) -> Result<(), ServiceError> {
        let http: HttpConn = self.endpoint.dial(route.via.as_deref(), self.congestion)?;
        let to = http.peer().ip();
        check_frame_rate(http.socket(), to, stream_limit(route))?;
        let conn = http.upgrade(&slot_path(self.session, &format!("data/{n}")))?;
        let limit = stream_limit(route);
        let mut data = DataConn {
            route: index,
            ..DataConn::unpaced(conn)
        };
        if let Some(pacer) = self.pacer {
            let paced = pacer.pace(to, limit)?;
            data.rate = paced.rate;
            self.leases
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .extend(paced.guard);
        }
        // The session may have ended already; then nobody takes the stream.
        let _ = tx.send(data);
        Ok(())
    }
}

/// Runs `work` on a session's connections while its data streams are dialled.
fn with_streams<R>(
    dialling: &Dialling<'_>,
    routes: &[Route],
    fwd: Conn,
    rev: Conn,
    work: impl FnOnce(SessionConns) -> R,
) -> R {
    let (tx, data) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let mut n = 0;
        for (index, route) in routes.iter().enumerate() {
            for _ in 0..route.streams {
                let (tx, number, index) = (tx.clone(), n, u32::try_from(index).unwrap_or(u32::MAX));
                scope.spawn(move || dialling.stream(number, index, route, &tx));
                n += 1;
            }
        }
        drop(tx);
        work(SessionConns { fwd, rev, data })
    })
}

fn ended(
    dialling: &Dialling<'_>,
    result: Result<Summary, kuroshio_transfer::TransferError>,
) -> Result<Summary, ServiceError> {
    use kuroshio_transfer::TransferError::{Cancelled, Input, Local, Peer};
    result.map_err(|e| {
        // When no data stream came about, that is the reason, not what the session made of it; unless one of
        // its sides says why.
        let first = dialling
            .first_error
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        match (e, first) {
            (e @ (Cancelled | Input(_) | Local { .. } | Peer(_)), _) => ServiceError::Transfer(e.to_string()),
            (_, Some(first)) => first,
            (e, None) => ServiceError::Transfer(e.to_string()),
        }
    })
}

/// Sends to a service.
pub fn push(
    endpoint: &Endpoint,
    job: PushJob,
    progress: &Progress,
    pacer: &dyn Pacer,
) -> Result<Summary, ServiceError> {
    let request = SessionRequest {
        direction: Direction::Push,
        paths: vec![job.destination.to_url()],
        routes: route_requests(&job.routes),
        congestion: None,
        options: job.options.clone(),
        key: job.key,
    };
    let opened = open(endpoint, &job.routes, &request)?;
    let dialling = Dialling {
        endpoint,
        session: &opened.session,
        congestion: job.congestion.as_deref(),
        pacer: Some(pacer),
        leases: Mutex::default(),
        first_error: Mutex::default(),
    };
    let send = SendJob {
        sources: job.sources,
        options: job.options,
        key: job.key,
    };
    let result = with_streams(&dialling, &job.routes, opened.fwd, opened.rev, |conns| {
        kuroshio_transfer::send(conns, send, progress)
    });
    ended(&dialling, result)
}

/// Fetches from a service.
pub fn pull(endpoint: &Endpoint, job: PullJob, progress: &Progress) -> Result<Summary, ServiceError> {
    let request = SessionRequest {
        direction: Direction::Pull,
        paths: job.sources.iter().map(RootPath::to_url).collect(),
        routes: route_requests(&job.routes),
        congestion: job.congestion,
        options: job.options,
        key: job.key,
    };
    let opened = open(endpoint, &job.routes, &request)?;
    let dialling = Dialling {
        endpoint,
        session: &opened.session,
        congestion: None,
        pacer: None,
        leases: Mutex::default(),
        first_error: Mutex::default(),
    };
    let receive = ReceiveJob {
        root: job.root,
        dest: job.destination,
    };
    let result = with_streams(&dialling, &job.routes, opened.fwd, opened.rev, |conns| {
        kuroshio_transfer::receive(conns, receive, progress)
    });
    ended(&dialling, result)
}

/// What to copy from one service to another.
pub struct BetweenJob {
    /// Sources at the sending service.
    pub sources: Vec<RootPath>,
    /// Where at the receiving one.
    pub destination: RootPath,
    /// How.
    pub options: Options,
    /// Names the transfer for resume.
    pub key: SessionKey,
    /// Groups of streams that the sender dials.
    pub routes: Vec<Route>,
    /// Congestion control of the sender's sockets.
    pub congestion: Option<String>,
}

/// Asks service `from` to send to service `to`; every line of its answer goes to `each`. Once `each` has
/// returned from [`CopyLine::Done`] the user knows, and what a resume would need is given up.
pub fn copy_between(
    from: &Endpoint,
    to: &Endpoint,
    job: BetweenJob,
    mut each: impl FnMut(CopyLine),
) -> Result<(), ServiceError> {
    let identity = match to.security() {
        Security::Pinned { pin, token } => Some((pin.to_string(), token.clone())),
        Security::Insecure => None,
    };
    let routes = job.routes.into_iter().map(|route| CopyRoute {
        via: route.via,
        streams: route.streams,
        rate_bps: route.rate.map(BitRate::bps),
    });
    let request = CopyRequest {
        sources: job.sources.iter().map(RootPath::to_url).collect(),
        to: Receiver {
            address: to.address().to_owned(),
            identity,
        },
        destination: job.destination.to_url(),
        routes: routes.collect(),
        congestion: job.congestion,
        options: job.options,
        key: job.key,
    };
    let (mut name, mut done) = (String::new(), false);
    from.dial(None, None)?
        .ask_lines("/.kuroshio/copies", &request, |line| {
            match line {
                CopyLine::Started { id } if id.bytes().all(|b| b.is_ascii_hexdigit()) => name = id,
                CopyLine::Done(_) => {
                    done = true;
                    each(line);
                    tell_end(from, &name);
                }
                _ if done => {}
                line => each(line),
            }
            Ok(())
        })
}

/// Says that the user has seen the end. All is durable by then: without this word only some state stays at
/// the receiver for the next run.
fn tell_end(from: &Endpoint, name: &str) {
    let path = format!("/.kuroshio/copies/{name}/told");
    let told = from
        .dial(None, None)
        .and_then(|mut http| http.tell("POST", &path, &()));
    if let Err(e) = told {
        tracing::warn!("the state for a resume stays at the receiver: {e}");
    }
}
