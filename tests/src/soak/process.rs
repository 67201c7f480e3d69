//! The real command: where it is, a service that can be killed, one run of `cp`.

use serde_json::Value;
use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

/// Longest wait for anything that must come; only a hang lasts so long.
pub const PATIENCE: Duration = Duration::from_secs(300);
/// Lines of standard error that are kept for a report.
const TAIL: usize = 30;

/// The command, built if it is missing or older than its sources. `KUROSHIO_BIN` names another.
///
/// # Errors
/// It cannot be built.
pub fn binary() -> Result<PathBuf, String> {
    if let Some(path) = std::env::var_os("KUROSHIO_BIN") {
        return Ok(path.into());
    }
    // TARGET/PROFILE/deps/soak-HASH
    let test = std::env::current_exe().map_err(|e| e.to_string())?;
    let profile = test
        .parent()
        .and_then(Path::parent)
        .ok_or("a test outside of a target folder")?;
    let path = profile.join("kuroshio");
    let built = path.metadata().and_then(|m| m.modified()).ok();
    if built.is_some_and(|built| newest_source() <= Some(built)) {
        return Ok(path);
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .args(["build", "--locked", "-p", "kuroshio"])
        .current_dir(crate::root());
    if profile.ends_with("release") {
        command.arg("--release");
    }
    if let Some(target) = profile.parent() {
        command.env("CARGO_TARGET_DIR", target);
    }
    let done = command.status().map_err(|e| format!("cargo build: {e}"))?;
    if done.success() && path.exists() {
        Ok(path)
    } else {
        Err(format!("cargo build: {done}"))
    }
}

fn newest_source() -> Option<SystemTime> {
    let root = crate::root();
    let files = crate::tidy::files(&root).unwrap_or_default();
    let of_command = files.iter().filter(|p| {
        ["core", "host", "grid", "lab", "apps"]
            .iter()
            .any(|floor| p.starts_with(floor))
            && p.components().any(|c| c.as_os_str() == "src")
    });
    of_command
        .filter_map(|p| root.join(p).metadata().ok()?.modified().ok())
        .max()
}

/// A place with a configuration of its own, in which the command runs.
pub struct Home {
    /// The command.
    pub binary: PathBuf,
    /// Everything that it keeps.
    pub dir: PathBuf,
}

impl Home {
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        command
            .args(args)
            .current_dir(&self.dir)
            .env("XDG_CONFIG_HOME", self.dir.join("config"))
            .env("XDG_STATE_HOME", self.dir.join("state"))
            .env("KUROSHIO_LOG", "info")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Keeps a ticket under a name, reached at another address.
    ///
    /// # Errors
    /// The command's own words.
    pub fn trust(&self, name: &str, ticket: &str, address: SocketAddr) -> Result<(), String> {
        let address = address.to_string();
        let mut child = self
            .command(&["trust", "add", name, "--address", &address])
            .stdin(Stdio::piped())
            .spawn()
            .map_err(|e| e.to_string())?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(ticket.as_bytes()).map_err(|e| e.to_string())?;
        }
        let out = child.wait_with_output().map_err(|e| e.to_string())?;
        if out.status.success() {
            Ok(())
        } else {
            Err(String::from_utf8_lossy(&out.stderr).into_owned())
        }
    }
}

/// The lines that a process says on standard error.
#[derive(Default)]
struct Log {
    tail: VecDeque<String>,
    panicked: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Log {
    fn line(&mut self, line: &str) {
        self.panicked |= line.contains("panicked");
        if self.tail.len() >= TAIL {
            self.tail.pop_front();
        }
        self.tail.push_back(line.to_owned());
    }

    fn text(&self) -> String {
        self.tail
            .iter()
            .fold(String::new(), |all, line| all + "\n    " + line)
    }
}

/// Kills with SIGKILL; `false` when the process had ended before.
fn kill_running(child: &mut Child) -> bool {
    if !matches!(child.try_wait(), Ok(None)) || child.kill().is_err() {
        return false;
    }
    child.wait().is_ok_and(|status| status.signal() == Some(9))
}

/// All threads of a process, stopped until this is dropped.
pub struct Stopped(rustix::process::Pid);

impl Stopped {
    /// Stops a process; `None` when it is gone.
    #[must_use]
    pub fn new(pid: u32) -> Option<Self> {
        let raw = i32::try_from(pid).ok()?;
        let pid = rustix::process::Pid::from_raw(raw)?;
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).ok()?;
        let stopped = Self(pid);
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            let mut tasks = fs::read_dir(format!("/proc/{raw}/task")).ok()?.flatten();
            let is_stopped = |stat: String| {
                stat.rsplit_once(") ")
                    .is_some_and(|(_, rest)| rest.starts_with('T'))
            };
            // A thread that ends meanwhile does not count.
            if tasks.all(|t| fs::read_to_string(t.path().join("stat")).is_ok_and(is_stopped)) {
                return Some(stopped);
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        None
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // It may have been killed while it was stopped.
        let _ = rustix::process::kill_process(self.0, rustix::process::Signal::CONT);
    }
}

/// A running `kuroshio serve`; killed when dropped.
pub struct Serve {
    child: Child,
    log: Arc<Mutex<Log>>,
    /// Where it listens.
    pub address: SocketAddr,
    tickets: mpsc::Receiver<String>,
}

impl Serve {
    /// Starts one and waits until it listens.
    ///
    /// # Errors
    /// Its own words.
    pub fn start(home: &Home, root: &str, insecure: bool) -> Result<Self, String> {
        let mut args = vec![
            "serve",
            "--root",
            root,
            "--json",
            "--listen",
            "127.0.0.1:0",
            "--state",
            "serve-state",
        ];
        if insecure {
            args.push("--insecure");
        }
        let mut child = home.command(&args).spawn().map_err(|e| e.to_string())?;
        let log = Arc::new(Mutex::new(Log::default()));
        let (told, tells) = mpsc::channel();
        if let Some(stderr) = child.stderr.take() {
            let log = Arc::clone(&log);
            std::thread::spawn(move || {
                for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                    lock(&log).line(&line);
                    if let Ok(value) = serde_json::from_str::<Value>(&line) {
                        let address = value["addresses"][0].as_str().and_then(|a| a.parse().ok());
                        // Told once; later lines have nobody waiting.
                        let _ = address.map(|a: SocketAddr| told.send(a));
                    }
                }
            });
        }
        let (ticket_in, ticket_out) = mpsc::channel();
        if let Some(stdout) = child.stdout.take() {
            std::thread::spawn(move || {
                for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                    let _ = ticket_in.send(line);
                }
            });
        }
        let Ok(address) = tells.recv_timeout(PATIENCE) else {
            let _ = child.kill();
            let _ = child.wait();
            return Err(format!("serve did not start:{}", lock(&log).text()));
        };
        Ok(Self {
            child,
            log,
            address,
            tickets: ticket_out,
        })
    }

    /// Waits for its ticket; empty when it tells none.
    #[must_use]
    pub fn ticket(&self) -> String {
        self.tickets.recv_timeout(PATIENCE).unwrap_or_default()
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills it with SIGKILL; `false` when it had ended before.
    pub fn kill(&mut self) -> bool {
        kill_running(&mut self.child)
    }

    /// What is wrong with it: it ended by itself, or a thread panicked.
    pub fn complaint(&mut self) -> Option<String> {
        let ended = self.child.try_wait().ok().flatten();
        let log = lock(&self.log);
        match ended {
            Some(status) => Some(format!("serve ended by itself ({status}):{}", log.text())),
            None if log.panicked => Some(format!("serve panicked:{}", log.text())),
            None => None,
        }
    }

    /// Its last words, for a report.
    #[must_use]
    pub fn tail(&self) -> String {
        lock(&self.log).text()
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An event of one run.
#[derive(Debug, Clone, Default)]
pub struct Told {
    /// What happened.
    pub event: String,
    /// The path as it is shown.
    pub path: String,
    /// Bytes concerned.
    pub bytes: u64,
    /// Where in the file.
    pub offset: u64,
    /// BLAKE3 of the file in hexadecimal, if told.
    pub blake3: Option<String>,
}

#[derive(Default)]
struct Said {
    log: Log,
    events: Vec<Told>,
    garbled: Option<String>,
}

/// One run of `cp`; killed when dropped.
pub struct Attempt {
    child: Child,
    said: Arc<Mutex<Said>>,
    readers: Vec<JoinHandle<()>>,
    out: Arc<Mutex<String>>,
    /// When it was started.
    pub begun: Instant,
}

impl Attempt {
    /// Starts `kuroshio cp --json ARGS`.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(home: &Home, args: &[&str]) -> Result<Self, String> {
        let all: Vec<&str> = ["cp", "--json"].iter().chain(args).copied().collect();
        let mut child = home.command(&all).spawn().map_err(|e| e.to_string())?;
        let said = Arc::new(Mutex::new(Said::default()));
        let out = Arc::new(Mutex::new(String::new()));
        let mut readers = Vec::new();
        if let Some(stderr) = child.stderr.take() {
            let said = Arc::clone(&said);
            readers.push(std::thread::spawn(move || {
                for line in BufReader::new(stderr).split(b'\n').map_while(Result::ok) {
                    listen(&mut lock(&said), &String::from_utf8_lossy(&line));
                }
            }));
        }
        if let Some(mut stdout) = child.stdout.take() {
            let out = Arc::clone(&out);
            readers.push(std::thread::spawn(move || {
                let mut text = String::new();
                // What is not text is no JSON either and is seen as missing.
                let _ = stdout.read_to_string(&mut text);
                *lock(&out) = text;
            }));
        }
        Ok(Self {
            child,
            said,
            readers,
            out,
            begun: Instant::now(),
        })
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Kills it with SIGKILL; `false` when it had ended before.
    pub fn kill(&mut self) -> bool {
        kill_running(&mut self.child)
    }

    /// How many events of a kind it has told.
    #[must_use]
    pub fn count(&self, event: &str) -> usize {
        lock(&self.said)
            .events
            .iter()
            .filter(|e| e.event == event)
            .count()
    }

    /// Waits for its end.
    #[must_use]
    pub fn end(mut self) -> Ended {
        let status = self.child.wait().ok();
        for reader in self.readers.drain(..) {
            // A reader that panicked has told less, which is seen.
            let _ = reader.join();
        }
        let mut said = lock(&self.said);
        Ended {
            status,
            events: std::mem::take(&mut said.events),
            complaint: match &said.garbled {
                _ if said.log.panicked => Some("cp panicked".into()),
                Some(line) => Some(format!("not a line of JSON: {line}")),
                None => None,
            },
            tail: said.log.text(),
            report: serde_json::from_str(lock(&self.out).trim()).unwrap_or_default(),
            seconds: self.begun.elapsed().as_secs_f64(),
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn listen(said: &mut Said, line: &str) {
    let Ok(value) = serde_json::from_str::<Value>(line) else {
        said.log.line(line);
        // Errors are told in words beside the JSON; a line cut by a kill has no end.
        if line.starts_with('{') && line.ends_with('}') {
            said.garbled.get_or_insert_with(|| line.to_owned());
        }
        return;
    };
    let event = &value["event"];
    let Some(kind) = event["event"].as_str() else {
        return;
    };
    if kind != "durable" {
        said.log.line(line);
    }
    said.events.push(Told {
        event: kind.to_owned(),
        path: event["path"].as_str().unwrap_or_default().to_owned(),
        bytes: event["bytes"].as_u64().unwrap_or(0),
        offset: event["offset_bytes"].as_u64().unwrap_or(0),
        blake3: event["blake3"].as_str().map(str::to_owned),
    });
}

/// What a run of `cp` left.
pub struct Ended {
    /// How it ended.
    pub status: Option<ExitStatus>,
    /// What it told.
    pub events: Vec<Told>,
    /// A panic, or words that are not JSON where JSON is promised.
    pub complaint: Option<String>,
    /// Its last words.
    pub tail: String,
    /// The object on standard output; null when there was none.
    pub report: Value,
    /// How long it ran.
    pub seconds: f64,
}

impl Ended {
    /// Whether it said that all is done; one that was killed behind that word is not run again.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.status.is_some_and(|s| s.success()) || self.report["ok"] == true
    }
}
