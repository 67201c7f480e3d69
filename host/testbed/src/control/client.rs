//! The side that asks.

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{MAX_LINE, Place, State};
use crate::sys;

/// How long an answer may take: the slowest is a report behind a change on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Why a request was not done.
#[derive(Debug)]
pub enum ControlError {
    /// The testbed says that the request is wrong.
    BadInput(String),
    /// The testbed could not do it.
    Failed(String),
    /// It cannot be reached.
    Io(io::Error),
}

impl fmt::Display for ControlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadInput(text) | Self::Failed(text) => f.write_str(text),
            Self::Io(e) => write!(f, "control socket: {e}"),
        }
    }
}

impl std::error::Error for ControlError {}

impl From<io::Error> for ControlError {
    fn from(e: io::Error) -> Self {
        Self::Io(e)
    }
}

/// A connection to a running testbed.
#[derive(Debug)]
pub struct Client {
    reader: BufReader<UnixStream>,
    pid: i32,
}

/// A host of a running testbed, as seen from outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostEntry {
    /// Its name.
    pub name: String,
    /// Process that holds its namespace.
    pub pid: i32,
    /// Descriptor of that process.
    pub fd: i32,
}

impl HostEntry {
    /// The file that is the host's network namespace, as long as the testbed is up.
    #[must_use]
    pub fn netns(&self) -> String {
        format!("/proc/{}/fd/{}", self.pid, self.fd)
    }

    /// The command that enters the host; a program follows. What is started so ends with the testbed.
    #[must_use]
    pub fn nsenter(&self) -> String {
        let user = if rustix::process::geteuid().is_root() {
            ""
        } else {
            " --user --preserve-credentials"
        };
        format!(
            "nsenter --target {}{user} --mount --pid --net={}",
            self.pid,
            self.netns()
        )
    }
}

impl Client {
    /// Connects to the testbed of a place.
    ///
    /// # Errors
    /// When nobody listens there.
    pub fn connect(place: &Place) -> io::Result<Self> {
        let stream = UnixStream::connect(place.socket())?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let peer = rustix::net::sockopt::socket_peercred(&stream)?;
        Ok(Self {
            pid: peer.pid.as_raw_nonzero().get(),
            reader: BufReader::new(stream),
        })
    }

    /// The process inside, by its number out here.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Asks and waits for the result.
    ///
    /// # Errors
    /// What the testbed says, or that it cannot be reached.
    pub fn ask(&mut self, request: &Value) -> Result<Value, ControlError> {
        let mut line = request.to_string();
        line.push('\n');
        self.reader.get_mut().write_all(line.as_bytes())?;
        let mut answer = Vec::new();
        let read = self
            .reader
            .by_ref()
            .take(MAX_LINE as u64)
            .read_until(b'\n', &mut answer)?;
        if read == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        let mut answer: Value = serde_json::from_slice(&answer).map_err(io::Error::from)?;
        if answer["ok"].as_bool() == Some(true) {
            return Ok(answer["result"].take());
        }
        let text = answer["error"].as_str().unwrap_or("no reason given").to_owned();
        match answer["bad_input"].as_bool() {
            Some(true) => Err(ControlError::BadInput(text)),
            _ => Err(ControlError::Failed(text)),
        }
    }

    /// The hosts of a `status`.
    #[must_use]
    pub fn hosts(&self, status: &Value) -> Vec<HostEntry> {
        let none = Vec::new();
        let hosts = status["hosts"].as_array().unwrap_or(&none);
        let entry = |host: &Value| {
            Some(HostEntry {
                name: host["host"].as_str()?.to_owned(),
                pid: self.pid,
                fd: i32::try_from(host["netns_fd"].as_i64()?).ok()?,
            })
        };
        hosts.iter().filter_map(entry).collect()
    }
}

/// How long a testbed may take to come up or to end.
const LIFE_PATIENCE: Duration = Duration::from_secs(60);

/// Between two looks at whether that has happened.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Starts this program again with `args`, apart from the caller's terminal, as the [`keeper`](super::keeper) of a
/// place, and waits until the testbed there can be reached.
///
/// # Errors
/// When a testbed of this name runs, or what the keeper said when it ended.
pub fn start(place: &Place, args: &[OsString]) -> io::Result<Client> {
    match place.take()? {
        State::Running => {
            let problem = format!("a testbed {:?} is up already", place.name());
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, problem));
        }
        // The keeper takes it.
        State::Free(lock) => drop(lock),
    }
    let log = File::create(place.log())?;
    let mut command = Command::new("/proc/self/exe");
    let (key, folder) = place.environment();
    command
        .args(args)
        .env(key, folder)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    sys::detach(&mut command);
    let mut keeper = command.spawn()?;
    let end = Instant::now() + LIFE_PATIENCE;
    loop {
        if let Ok(client) = Client::connect(place) {
            return Ok(client);
        }
        let ended = keeper.try_wait()?;
        if ended.is_some() || Instant::now() > end {
            let _ = keeper.kill();
            let _ = keeper.wait();
            let said = std::fs::read_to_string(place.log()).unwrap_or_default();
            wait_free(place)?;
            return Err(io::Error::other(match said.trim() {
                "" => "the testbed did not come up and said nothing".to_owned(),
                said => said.strip_prefix("kuroshio: ").unwrap_or(said).to_owned(),
            }));
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// Waits until nobody is at a place, and removes what was left there.
///
/// # Errors
/// When somebody still is after a minute.
pub fn wait_free(place: &Place) -> io::Result<()> {
    let end = Instant::now() + LIFE_PATIENCE;
    loop {
        match place.take()? {
            State::Free(lock) => return place.clear(lock),
            State::Running if Instant::now() > end => {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "the testbed does not end",
                ));
            }
            State::Running => std::thread::sleep(LOOK_AGAIN),
        }
    }
}

/// Moves the calling process into a host's network, where it keeps its own processes and mounts. It must have one thread
/// only; later ones are in that network as well.
///
/// # Errors
/// When the testbed has ended or the namespaces may not be entered.
pub fn enter_network(host: &HostEntry) -> io::Result<()> {
    let open = |path: String| {
        File::open(&path)
            .map(OwnedFd::from)
            .map_err(|e| io::Error::new(e.kind(), format!("{path}: {e}")))
    };
    let net = open(host.netns())?;
    let user_path = format!("/proc/{}/ns/user", host.pid);
    let user = open(user_path.clone())?;
    if std::fs::read_link(user_path)? != std::fs::read_link("/proc/self/ns/user")? {
        sys::set_namespace(user.as_fd(), sys::Namespace::User)?;
    }
    sys::enter_netns(net.as_raw_fd())
}

/// Arranges that a command runs in a host: its network, the testbed's mounts and processes, so that it ends
/// with the testbed; and it ends with this process.
///
/// The calling process must have one thread only; its later children are in the testbed's PID namespace.
///
/// # Errors
/// When the testbed has ended or the namespaces may not be entered.
pub fn enter(host: &HostEntry, command: &mut Command) -> io::Result<()> {
    let open = |path: String| {
        File::open(&path)
            .map(OwnedFd::from)
            .map_err(|e| io::Error::new(e.kind(), format!("{path}: {e}")))
    };
    let of = |kind: &str| format!("/proc/{}/ns/{kind}", host.pid);
    let net = open(host.netns())?;
    let (user, pid, mnt) = (open(of("user"))?, open(of("pid"))?, open(of("mnt"))?);
    let own_user = std::fs::read_link("/proc/self/ns/user")?;
    if std::fs::read_link(of("user"))? != own_user {
        sys::set_namespace(user.as_fd(), sys::Namespace::User)?;
    }
    sys::set_namespace(pid.as_fd(), sys::Namespace::Pid)?;
    sys::run_in_host(command, net, mnt);
    Ok(())
}
