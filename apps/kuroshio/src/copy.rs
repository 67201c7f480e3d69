//! The work of `cp`: four ways from sources to a destination, one display, one report.
//!
//! | from | to | who sends | who dials |
//! |---|---|---|---|
//! | here | here | this process | this process, over loopback |
//! | here | service | this process | this process |
//! | service | here | the service | this process |
//! | service | service | the first service | the first service |

use std::net::Ipv4Addr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};

use kuroshio_service::api::CopyLine;
use kuroshio_service::report::{CopyReport, EventReport, ProgressReport};
use kuroshio_service::{
    BetweenJob, Endpoint, FollowWindow, OwnLimit, Pacer, PullJob, PushJob, RemotePlan, RootPath, Route,
    ServiceError, copy_between, pull, push,
};
use kuroshio_transfer::{
    DataConn, DigestMode, Event, Options, Progress, ReceiveJob, SendJob, SessionConns, SessionKey, Snapshot,
    Source, StreamRate, Summary, session_key,
};

use crate::error::{EXIT_FAILED, Failure};
use crate::local::{self, Destination};
use crate::paced::{Noting, PacedBy, classes};
use crate::place::Place;
use crate::progress::{DRAW_EVERY, Display, rate};
use crate::verb::serve::host_name;
use crate::{output, signal};

/// A checked command.
pub struct Plan {
    /// What to copy.
    pub sources: Vec<Place>,
    /// Where to.
    pub destination: Place,
    /// How.
    pub options: Options,
    /// Groups of streams.
    pub routes: Vec<Route>,
    /// Congestion control of the sending sockets.
    pub congestion: Option<String>,
    /// Whether streams send one window per round trip, with their rate as the bound.
    pub dynamic: bool,
    /// The service that owns the site's rate plan.
    pub plan_service: Option<Endpoint>,
    /// Report as JSON.
    pub json: bool,
    /// No progress.
    pub quiet: bool,
}

/// Sources of one kind.
enum From {
    Here(Vec<PathBuf>),
    Service(Endpoint, Vec<RootPath>),
}

fn sources(places: Vec<Place>) -> Result<From, Failure> {
    let mut here = Vec::new();
    let mut there: Option<(Endpoint, Vec<RootPath>)> = None;
    for place in places {
        match (place, &mut there) {
            (Place::Local(path), _) => here.push(path),
            (Place::Remote { endpoint, path }, None) => there = Some((endpoint, vec![path])),
            (Place::Remote { endpoint, path }, Some((first, paths))) => {
                if first.address() != endpoint.address() || first.identity() != endpoint.identity() {
                    return Err(Failure::usage(
                        "the sources are at different services: copy from one at a time",
                    ));
                }
                paths.push(path);
            }
        }
    }
    match there {
        None => Ok(From::Here(here)),
        Some((endpoint, paths)) if here.is_empty() => Ok(From::Service(endpoint, paths)),
        Some(_) => Err(Failure::usage(
            "some sources are here and some at a service: copy from one at a time",
        )),
    }
}

/// Runs a checked command and reports.
pub fn run(plan: Plan) -> Result<ExitCode, Failure> {
    let shown = Shown {
        json: plan.json,
        dry_run: plan.options.dry_run,
        digest: plan.options.digest,
        paced_by: PacedBy::default(),
    };
    let display = Arc::new(Mutex::new(Display::new(plan.json, plan.quiet)));
    let ways = Ways {
        shown: Arc::new(shown),
        options: plan.options,
        routes: plan.routes,
        congestion: plan.congestion,
        dynamic: plan.dynamic,
        display,
    };
    let from = sources(plan.sources)?;
    if plan.plan_service.is_some()
        && !matches!((&from, &plan.destination), (From::Here(_), Place::Remote { .. }))
    {
        return Err(Failure::usage(
            "--plan asks for leases of streams that leave this host: it goes with a local source and a remote \
             destination; a sending service uses its own plan",
        ));
    }
    if plan.dynamic && !matches!(from, From::Here(_)) {
        return Err(Failure::usage(
            "--pace dynamic is of streams that leave this host: it goes with a local source",
        ));
    }
    match (from, plan.destination) {
        (From::Here(paths), Place::Local(to)) => ways.here_to_here(&paths, &local::destination(&to)?),
        (From::Here(paths), Place::Remote { endpoint, path }) => {
            ways.push(&paths, &endpoint, path, plan.plan_service.as_ref())
        }
        (From::Service(endpoint, paths), Place::Local(to)) => {
            ways.pull(&endpoint, paths, local::destination(&to)?)
        }
        (From::Service(from, paths), Place::Remote { endpoint, path }) => {
            ways.between(&from, &endpoint, paths, path)
        }
    }
}

/// What all four ways share.
struct Ways {
    options: Options,
    routes: Vec<Route>,
    congestion: Option<String>,
    dynamic: bool,
    display: Arc<Mutex<Display>>,
    shown: Arc<Shown>,
}

fn local_key(paths: &[PathBuf], destination: &[u8]) -> SessionKey {
    let mut identity = host_name().into_bytes();
    for path in paths {
        identity.push(0);
        identity.extend_from_slice(&local::absolute(path));
    }
    session_key(destination, &identity)
}

fn remote_key(endpoint: &Endpoint, paths: &[RootPath], destination: &[u8]) -> SessionKey {
    let mut identity = endpoint.identity().into_bytes();
    for path in paths {
        identity.push(0);
        identity.extend_from_slice(path.to_url().as_bytes());
    }
    session_key(destination, &identity)
}

fn remote_destination(endpoint: &Endpoint, path: &RootPath) -> Vec<u8> {
    [endpoint.identity().as_bytes(), b"\0", path.as_bytes()].concat()
}

fn local_sources(paths: &[PathBuf]) -> Result<Vec<Source>, Failure> {
    let sources = paths
        .iter()
        .map(|p| local::source(p))
        .collect::<Result<Vec<_>, _>>()?;
    for (i, one) in sources.iter().enumerate() {
        if !one.name.is_empty() && sources.iter().take(i).any(|other| other.name == one.name) {
            let name = String::from_utf8_lossy(&one.name);
            return Err(Failure::usage(format!(
                "two sources are named `{name}`: they would overwrite each other"
            )));
        }
    }
    Ok(sources)
}

impl Ways {
    fn here_to_here(&self, paths: &[PathBuf], to: &Destination) -> Result<ExitCode, Failure> {
        let sources = local_sources(paths)?;
        let key = local_key(paths, to.absolute.as_os_str().as_bytes());
        let root = to.root.try_clone().map_err(|e| Failure::failed(e.to_string()))?;
        let (fwd, fwd_there) = local::pair()?;
        let (rev, rev_there) = local::pair()?;
        let (mut data, mut data_there) = (Vec::new(), Vec::new());
        for (route, group) in self.routes.iter().enumerate() {
            let limit = group.rate.and_then(|r| r.checked_div(u64::from(group.streams)));
            for _ in 0..group.streams {
                let (here, there) = local::pair()?;
                if let (Some(name), Some(socket)) = (&self.congestion, here.tcp()) {
                    kuroshio_sock::set_congestion(socket, name)
                        .map_err(|e| Failure::usage(format!("--congestion {name}: {e}")))?;
                }
                let route = u32::try_from(route).unwrap_or(u32::MAX);
                let rate = StreamRate::new(limit);
                if self.dynamic {
                    rate.follow_window();
                }
                if limit.is_some() || self.dynamic {
                    self.shown.paced_by.note(Ipv4Addr::LOCALHOST.into());
                }
                data.push(DataConn {
                    conn: here,
                    route,
                    rate,
                });
                data_there.push(DataConn::unpaced(there));
            }
        }
        let send = SendJob {
            sources,
            options: self.options.clone(),
            key,
        };
        let receive = ReceiveJob {
            root,
            dest: to.path.clone(),
        };
        let receiving = Arc::new(Progress::new());
        let other = receiving.clone();
        self.watched(
            move || other.cancel(),
            |progress| {
                std::thread::scope(|scope| {
                    let conns = SessionConns::new(fwd_there, rev_there, data_there);
                    let receiver = scope.spawn(|| kuroshio_transfer::receive(conns, receive, &receiving));
                    let sent = kuroshio_transfer::send(SessionConns::new(fwd, rev, data), send, progress);
                    let received = receiver.join();
                    match (sent, received) {
                        (Ok(summary), _) => Ok(summary),
                        (Err(_), Ok(Err(e)))
                            if !matches!(e, kuroshio_transfer::TransferError::Connection { .. }) =>
                        {
                            Err(ServiceError::Transfer(e.to_string()))
                        }
                        (Err(e), _) => Err(ServiceError::Transfer(e.to_string())),
                    }
                })
            },
        )
    }

    fn push(
        &self,
        paths: &[PathBuf],
        to: &Endpoint,
        destination: RootPath,
        plan_service: Option<&Endpoint>,
    ) -> Result<ExitCode, Failure> {
        let job = PushJob {
            sources: local_sources(paths)?,
            key: local_key(paths, &remote_destination(to, &destination)),
            destination,
            options: self.options.clone(),
            routes: self.routes.clone(),
            congestion: self.congestion.clone(),
        };
        let pacer: Box<dyn Pacer> = match plan_service {
            Some(service) => Box::new(RemotePlan::open(service)?),
            None => Box::new(OwnLimit),
        };
        let inner = if self.dynamic {
            Box::new(FollowWindow(pacer))
        } else {
            pacer
        };
        // A lease changes its rate, a class does not.
        let own = if plan_service.is_some() || self.options.dry_run {
            Vec::new()
        } else {
            classes(to, &self.routes, self.dynamic)
        };
        let by = self.shown.paced_by.clone();
        by.has_classes(&own);
        let pacer = Noting { inner, by };
        self.watched(|| (), |progress| push(to, job, progress, &pacer))
    }

    fn pull(&self, from: &Endpoint, paths: Vec<RootPath>, to: Destination) -> Result<ExitCode, Failure> {
        let job = PullJob {
            key: remote_key(from, &paths, to.absolute.as_os_str().as_bytes()),
            sources: paths,
            root: to.root,
            destination: to.path,
            options: self.options.clone(),
            routes: self.routes.clone(),
            congestion: self.congestion.clone(),
        };
        self.watched(|| (), |progress| pull(from, job, progress))
    }

    fn between(
        &self,
        from: &Endpoint,
        to: &Endpoint,
        paths: Vec<RootPath>,
        destination: RootPath,
    ) -> Result<ExitCode, Failure> {
        // The service cancels its copy when this process goes away.
        signal::on_stop(|| {
            eprintln!("kuroshio: stopped; the same command again moves only what is missing");
            std::process::exit(i32::from(EXIT_FAILED));
        })?;
        let job = BetweenJob {
            key: remote_key(from, &paths, &remote_destination(to, &destination)),
            sources: paths,
            destination,
            options: self.options.clone(),
            routes: self.routes.clone(),
            congestion: self.congestion.clone(),
        };
        let mut last = ProgressReport::default();
        let mut end = None;
        let result = copy_between(from, to, job, |line| {
            let mut display = self.display.lock().unwrap_or_else(PoisonError::into_inner);
            match line {
                CopyLine::Progress(report) => {
                    display.update(&report);
                    last = report;
                }
                CopyLine::Event(event) => display.event(&event),
                CopyLine::Started { .. } => {}
                CopyLine::Done(report) => {
                    display.finish(&last);
                    end = Some(self.shown.end(&report));
                }
                CopyLine::Error(text) => {
                    display.finish(&last);
                    end = Some(Err(Failure::failed(format!("{}: {text}", from.address()))));
                }
            }
        });
        // What was shown as done is done, also if the connection broke behind it.
        if end.is_none() {
            result?;
        }
        end.unwrap_or_else(|| {
            Err(Failure::failed(format!(
                "{}: the copy ended without a result",
                from.address()
            )))
        })
    }

    /// Runs `work` with its progress shown; a signal cancels it, and calls `also_cancel`.
    fn watched(
        &self,
        also_cancel: impl FnOnce() + Send + 'static,
        work: impl FnOnce(&Progress) -> Result<Summary, ServiceError>,
    ) -> Result<ExitCode, Failure> {
        let display = self.display.clone();
        let progress = Progress::with_events(move |event: &Event| {
            display
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .event(&EventReport::from(event));
        });
        let end = Arc::new(Mutex::new(None));
        let progress = Arc::new(progress.telling(self.at_the_end(&end)));
        let stopped = progress.clone();
        signal::on_stop(move || {
            eprintln!("kuroshio: stopping; the same command again moves only what is missing");
            stopped.cancel();
            also_cancel();
        })?;
        let (ended_tx, ended) = mpsc::channel::<()>();
        let result = std::thread::scope(|scope| {
            let progress = &*progress;
            scope.spawn(move || {
                while ended.recv_timeout(DRAW_EVERY) == Err(RecvTimeoutError::Timeout) {
                    let report = ProgressReport::from(&progress.snapshot());
                    self.display
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .update(&report);
                }
            });
            let result = work(progress);
            drop(ended_tx);
            result
        });
        let shown = end.lock().unwrap_or_else(PoisonError::into_inner).take();
        if shown.is_none() {
            let last = ProgressReport::from(&progress.snapshot());
            self.display
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .finish(&last);
        }
        result?;
        shown.unwrap_or_else(|| Err(Failure::failed("the copy ended without a result")))
    }

    /// Shows the end, before what a resume would need is given up; keeps the exit code in `end`.
    fn at_the_end(
        &self,
        end: &Arc<Mutex<Option<Result<ExitCode, Failure>>>>,
    ) -> impl Fn(&Summary, &Snapshot) -> bool + Send + Sync + 'static {
        let (end, display, shown) = (end.clone(), self.display.clone(), self.shown.clone());
        move |summary, last| {
            display
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .finish(&ProgressReport::from(last));
            let code = shown.end(&CopyReport::new(summary, last));
            let told = code.is_ok();
            *end.lock().unwrap_or_else(PoisonError::into_inner) = Some(code);
            told
        }
    }
}

/// How the end is told.
struct Shown {
    json: bool,
    dry_run: bool,
    digest: DigestMode,
    paced_by: PacedBy,
}

impl Shown {
    fn end(&self, report: &CopyReport) -> Result<ExitCode, Failure> {
        if self.json {
            let mut value = serde_json::to_value(report).map_err(|e| Failure::failed(e.to_string()))?;
            if let Some(object) = value.as_object_mut() {
                object.insert("ok".into(), report.complete.into());
                object.insert("dry_run".into(), self.dry_run.into());
                let digest = if self.digest == DigestMode::None {
                    "none"
                } else {
                    "blake3"
                };
                object.insert("digest".into(), digest.into());
                object.insert("paced_by".into(), self.paced_by.all().into());
            }
            output::line(&value.to_string())?;
        } else {
            output::line(&self.sentence(report))?;
        }
        for error in &report.errors {
            eprintln!("kuroshio: {}: {}", error.path, error.text);
        }
        Ok(if report.complete {
            ExitCode::SUCCESS
        } else {
            ExitCode::from(EXIT_FAILED)
        })
    }

    fn sentence(&self, r: &CopyReport) -> String {
        if self.dry_run {
            return format!(
                "would send of {} files, {} bytes, what is listed above; nothing changed",
                r.files, r.bytes
            );
        }
        let mut text = format!(
            "{} files durable, {} verified, {} skipped, {} failed; {} bytes sent in {:.2} s ({} goodput)",
            r.files_durable,
            r.files_verified,
            r.files_skipped,
            r.files_failed,
            r.bytes_sent,
            r.seconds,
            rate(r.goodput_bps)
        );
        for (n, what) in [
            (r.bytes_resumed, "bytes were there from an earlier run"),
            (r.bytes_resent, "bytes sent again after a wrong digest"),
            (r.files_restarted, "files sent again because they changed"),
            (r.retransmissions, "TCP segments sent again"),
        ] {
            if n > 0 {
                text.push_str(&format!("; {n} {what}"));
            }
        }
        let by = self.paced_by.all();
        if !by.is_empty() {
            text.push_str(&format!("; paced by {}", by.join(", ")));
        }
        text
    }
}
