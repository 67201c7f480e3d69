//! The control socket: one question a connection, one line of JSON for an answer.
//!
//! ```text
//!   status            the tunnel's status
//!   drop LANE         takes a lane out of use
//!   add LANE          takes it in again
//! ```
//!
//! The socket's file belongs to the one who started the tunnel (mode 600). An error is `{"error": "..."}`.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::{LaneError, status::TunnelStatus};

/// Longest question and longest answer, bytes.
pub const QUESTION_MAX: u64 = 256;
/// Longest answer, bytes.
pub const ANSWER_MAX: u64 = 1 << 20;
/// How long either side waits for the other.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// Where the socket of a tunnel is when its file does not say.
#[must_use]
pub fn default_path(name: &str) -> PathBuf {
    let folder = std::env::var_os("XDG_RUNTIME_DIR").map_or_else(|| PathBuf::from("/run"), PathBuf::from);
    folder.join(format!("kuroshio-lane-{name}.sock"))
}

/// What is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Question {
    Status,
    Drop(String),
    Add(String),
}

impl Question {
    fn read(line: &str) -> Option<Self> {
        match line.trim_end().split_once(' ') {
            None if line.trim_end() == "status" => Some(Self::Status),
            Some(("drop", lane)) => Some(Self::Drop(lane.to_owned())),
            Some(("add", lane)) => Some(Self::Add(lane.to_owned())),
            _ => None,
        }
    }
}

/// The listening end. Its file is removed when it is dropped.
#[derive(Debug)]
pub(crate) struct Control {
    listener: UnixListener,
    path: PathBuf,
}

impl Control {
    pub(crate) fn listen(path: &Path) -> Result<Self, LaneError> {
        let at = |source| LaneError::File {
            path: path.to_owned(),
            source,
        };
        if UnixStream::connect(path).is_ok() {
            return Err(at(io::Error::new(
                io::ErrorKind::AddrInUse,
                "a tunnel answers there already",
            )));
        }
        // Of a process that was killed.
        let _ = std::fs::remove_file(path);
        let listener = UnixListener::bind(path).map_err(at)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(at)?;
        Ok(Self {
            listener,
            path: path.to_owned(),
        })
    }

    /// Answers every question until `stop` says so. A question is handed on and its answer waited for.
    pub(crate) fn serve(&self, mut answer: impl FnMut(Question) -> String, stop: impl Fn() -> bool) {
        while !stop() {
            let Ok((stream, _)) = self.listener.accept() else {
                return;
            };
            if stop() {
                return;
            }
            // One that hangs up or says nothing gets no answer.
            let _ = talk(&stream, &mut answer);
        }
    }

    /// Wakes [`Control::serve`].
    pub(crate) fn wake(path: &Path) {
        let _ = UnixStream::connect(path);
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn talk(mut stream: &UnixStream, answer: &mut impl FnMut(Question) -> String) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    BufReader::new(stream.take(QUESTION_MAX)).read_line(&mut line)?;
    let text = match Question::read(&line) {
        Some(question) => answer(question),
        None => error("the question is `status`, `drop LANE` or `add LANE`"),
    };
    writeln!(stream, "{text}")
}

pub(crate) fn error(text: &str) -> String {
    serde_json::json!({ "error": text }).to_string()
}

/// Asks a running tunnel.
///
/// # Errors
/// When none answers there, or it refuses.
pub fn ask(path: &Path, question: &str) -> Result<TunnelStatus, LaneError> {
    let at = |source| LaneError::File {
        path: path.to_owned(),
        source,
    };
    let mut stream = UnixStream::connect(path).map_err(at)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(at)?;
    writeln!(stream, "{question}").map_err(at)?;
    let mut text = String::new();
    stream.take(ANSWER_MAX).read_to_string(&mut text).map_err(at)?;
    let value: serde_json::Value = serde_json::from_str(&text).map_err(|e| {
        at(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("no answer of a tunnel: {e}"),
        ))
    })?;
    if let Some(error) = value.get("error").and_then(|e| e.as_str()) {
        return Err(LaneError::Bad(error.to_owned()));
    }
    serde_json::from_value(value).map_err(|e| at(io::Error::new(io::ErrorKind::InvalidData, e)))
}
