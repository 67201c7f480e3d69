//! The side that holds the testbed.

use std::ffi::OsString;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex};

use kuroshio_core::pace::Spacing;
use kuroshio_core::units::{PicoTime, WireBytes, parse_bytes};
use kuroshio_core::wan::{MAX_QUEUE, setting};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{MAX_CLIENTS, MAX_LINE, MAX_SETTINGS, Place, State, answer, metering};
use crate::meter::MeterRequest;
use crate::testbed::{Change, Testbed, TestbedError};
use crate::topology::Topology;
use crate::{files, isolate};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    id: Option<Value>,
    #[serde(rename = "do")]
    verb: Verb,
    target: Option<String>,
    settings: Option<std::collections::BTreeMap<String, String>>,
    at: Option<String>,
    folder: Option<PathBuf>,
    meter: Option<MeterRequest>,
    name: Option<String>,
    window: Option<String>,
    from: Option<u64>,
    of: Option<String>,
    stream: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Verb {
    Status,
    Stats,
    Set,
    Down,
    MeterAdd,
    MeterRm,
    MeterLs,
    MeterRead,
    MeterHistogram,
}

/// Why a request is not done.
enum Refusal {
    BadInput(String),
    Failed(String),
}

impl From<TestbedError> for Refusal {
    fn from(e: TestbedError) -> Self {
        match e {
            TestbedError::Io(_) | TestbedError::NotIsolated => Self::Failed(e.to_string()),
            _ => Self::BadInput(e.to_string()),
        }
    }
}

/// Outside: holds the place of a testbed while `args` run this program again inside of new namespaces, where
/// it calls [`keep`]. Whatever ends the inside, the place is cleared.
///
/// # Errors
/// When a testbed of this name runs, or the namespaces are refused.
pub fn keeper(place: &Place, args: &[OsString]) -> io::Result<ExitStatus> {
    let lock = match place.take()? {
        State::Free(lock) => lock,
        State::Running => {
            let problem = format!("a testbed {:?} is up already", place.name());
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, problem));
        }
    };
    let status = isolate::run(args);
    let failed = !matches!(&status, Ok(s) if s.success());
    if failed {
        // Whoever waits for the socket reads the log and clears.
        drop(lock);
    } else {
        place.clear(lock)?;
    }
    status
}

/// Inside: brings the network up, listens on the place's socket, and returns after a `down`.
///
/// # Errors
/// When the network cannot be made or the socket cannot be bound.
pub fn keep(topology: &Topology, place: &Place) -> Result<(), TestbedError> {
    let testbed = Arc::new(Testbed::up(topology)?);
    // Bound last: a testbed that can be reached is up.
    let listener = UnixListener::bind(place.socket())?;
    let (ended, end) = sync_channel(1);
    let clients = Arc::new(AtomicUsize::new(0));
    let held = Arc::clone(&testbed);
    // One request at a time changes the network: either all of its settings are made or none.
    let turn = Arc::new(Mutex::new(()));
    std::thread::Builder::new()
        .name("control".into())
        .spawn(move || {
            for stream in listener.incoming().flatten() {
                if clients.fetch_add(1, Ordering::Relaxed) >= MAX_CLIENTS {
                    clients.fetch_sub(1, Ordering::Relaxed);
                    continue;
                }
                let session = Session {
                    testbed: Arc::clone(&held),
                    ended: ended.clone(),
                    turn: Arc::clone(&turn),
                };
                let count = Arc::clone(&clients);
                let spawned = std::thread::Builder::new().name("client".into()).spawn(move || {
                    let _ = session.serve(&stream);
                    count.fetch_sub(1, Ordering::Relaxed);
                });
                if spawned.is_err() {
                    clients.fetch_sub(1, Ordering::Relaxed);
                }
            }
        })?;
    // The end of this process is the end of its threads and of the namespaces.
    let _ = end.recv();
    Ok(())
}

struct Session {
    testbed: Arc<Testbed>,
    ended: SyncSender<()>,
    turn: Arc<Mutex<()>>,
}

impl Session {
    fn serve(&self, stream: &UnixStream) -> io::Result<()> {
        let mut reader = BufReader::new(stream);
        let mut writer = stream;
        loop {
            let mut line = Vec::new();
            let read = reader
                .by_ref()
                .take(MAX_LINE as u64 + 1)
                .read_until(b'\n', &mut line)?;
            if read == 0 {
                return Ok(());
            }
            let long = read > MAX_LINE;
            let (mut answer, down) = if long {
                (
                    refused(Refusal::BadInput(format!("a line of more than {MAX_LINE} bytes"))),
                    false,
                )
            } else {
                self.answer(&line)
            };
            let mut text = std::mem::take(&mut answer).to_string();
            text.push('\n');
            let written = writer.write_all(text.as_bytes());
            if down {
                let _ = self.ended.try_send(());
                return Ok(());
            }
            written?;
            if long {
                return Ok(());
            }
        }
    }

    /// The answer, and whether it is the last of all.
    fn answer(&self, line: &[u8]) -> (Value, bool) {
        let request: Request = match serde_json::from_slice(line) {
            Ok(request) => request,
            Err(e) => return (refused(Refusal::BadInput(format!("request: {e}"))), false),
        };
        let result = match request.verb {
            Verb::Status => answer::status(&self.testbed).map_err(Refusal::from),
            Verb::Stats => self
                .testbed
                .counters()
                .map(|c| answer::stats(&c, self.testbed.topology().mode))
                .map_err(Refusal::from),
            Verb::Set => self.set(&request),
            Verb::MeterAdd => self.meter_add(&request),
            Verb::MeterRm => self.meter_rm(&request),
            Verb::MeterLs => Ok(metering::list(&self.testbed)),
            Verb::MeterRead => metering::read(
                &self.testbed,
                request.name.as_deref(),
                request.window.as_deref(),
                request.from.unwrap_or(0),
            )
            .map_err(Refusal::BadInput),
            Verb::MeterHistogram => metering::histogram(
                &self.testbed,
                request.name.as_deref(),
                request.of.as_deref().unwrap_or("gap"),
                request.stream.as_deref(),
            )
            .map_err(Refusal::BadInput),
            Verb::Down => self
                .testbed
                .report()
                .map(|r| answer::report(&r))
                .map_err(Refusal::from),
        };
        let down = matches!(request.verb, Verb::Down);
        let mut answer = match result {
            Ok(result) => json!({ "ok": true, "result": result }),
            Err(refusal) => refused(refusal),
        };
        if let Some(id) = request.id {
            answer["id"] = id;
        }
        (answer, down)
    }

    fn meter_add(&self, request: &Request) -> Result<Value, Refusal> {
        let missing = || Refusal::BadInput("meter-add: meter is missing".to_owned());
        let meter = request.meter.as_ref().ok_or_else(missing)?;
        let _turn = self.turn.lock();
        self.testbed.add_meters(std::slice::from_ref(meter))?;
        Ok(json!({ "added": meter.name }))
    }

    fn meter_rm(&self, request: &Request) -> Result<Value, Refusal> {
        let missing = || Refusal::BadInput("meter-rm: name is missing".to_owned());
        let name = request.name.as_deref().ok_or_else(missing)?;
        let _turn = self.turn.lock();
        self.testbed.remove_meter(name)?;
        Ok(json!({ "removed": name }))
    }

    fn set(&self, request: &Request) -> Result<Value, Refusal> {
        let bad = |text: &str| Refusal::BadInput(text.to_owned());
        let target = request
            .target
            .as_deref()
            .ok_or_else(|| bad("set: a target is missing"))?;
        let settings = request.settings.as_ref().filter(|s| !s.is_empty());
        let settings = settings.ok_or_else(|| bad("set: settings are missing"))?;
        if settings.len() > MAX_SETTINGS {
            return Err(bad("set: more than 64 settings"));
        }
        let at = request.at.as_deref().map(str::parse::<PicoTime>).transpose();
        let at = at.map_err(|e| Refusal::BadInput(format!("at: {e}")))?;
        let folder = request.folder.as_deref().unwrap_or(Path::new("/"));
        let changes = settings
            .iter()
            .map(|(key, value)| change(self.testbed.topology(), target, key, value, folder))
            .collect::<Result<Vec<_>, _>>()
            .map_err(Refusal::BadInput)?;
        let _turn = self.turn.lock();
        let changed = self.testbed.apply_all(at, &changes)?;
        Ok(json!({ "changed": changed }))
    }
}

/// What a setting of a link or port means.
fn change(
    topology: &Topology,
    target: &str,
    key: &str,
    value: &str,
    folder: &Path,
) -> Result<Change, String> {
    let name = target.to_owned();
    let fail = |problem: String| format!("{key}: {value:?}: {problem}");
    let is_port = topology.port_number(target).is_some() && topology.link_numbers(target).is_empty();
    if is_port {
        return Ok(match key {
            "shape" => {
                let rate = value.parse().map_err(|e| fail(format!("{e}")))?;
                Change::Shape(name, Spacing::Rate(rate))
            }
            "gap" => {
                let gap = parse_bytes(value).map_err(|e| fail(e.to_string()))?;
                if gap > MAX_QUEUE {
                    return Err(fail("at most 4GiB".into()));
                }
                Change::Shape(name, Spacing::Gap(WireBytes::new(gap)))
            }
            "drain" => Change::Drain(name, value.parse().map_err(|e| fail(format!("{e}")))?),
            _ => return Err(format!("{key}: no such setting of a port, but shape, gap, drain")),
        });
    }
    match (key, value) {
        ("cut", "on") => Ok(Change::Cut(name)),
        ("cut", "off") => Ok(Change::Restore(name)),
        ("cut", _) => Err(fail("on or off".into())),
        ("drop_next", _) => match value.parse() {
            Ok(count) => Ok(Change::DropNext(name, count)),
            Err(_) => Err(fail("a number of frames".into())),
        },
        _ => setting(key, value, &mut files::beside(folder))
            .map(|change| Change::Set(name, change))
            .map_err(|e| e.to_string()),
    }
}

fn refused(refusal: Refusal) -> Value {
    let (bad_input, error) = match refusal {
        Refusal::BadInput(text) => (true, text),
        Refusal::Failed(text) => (false, text),
    };
    json!({ "ok": false, "bad_input": bad_input, "error": error })
}
