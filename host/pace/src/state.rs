//! What was changed, written down before it is changed.
//!
//! ```text
//! file with no step -> (step written, flushed, renamed; then made)... -> whole: true
//! ```
//!
//! So a process that is killed at any moment leaves a file that names at least everything it did; a step that was
//! written and not made is found missing and passed over when it is taken back. The file is per network namespace,
//! and belongs to one boot: what it names is in the kernel's memory only.

use crate::backend::{Backend, index_of};
use crate::program::Ids;
use crate::rule::{MAX_RULES, Rule};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Largest state file that is read, bytes.
const MAX_STATE_BYTES: u64 = 1 << 20;
const VERSION: u32 = 1;
/// How long a lock is waited for that nobody holds long, and how often it is tried.
const LOCK_WAIT: Duration = Duration::from_secs(2);
const LOCK_LOOK: Duration = Duration::from_millis(5);

/// Something that was changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Step {
    /// A qdisc at the root of an interface, where the kernel's own was.
    Qdisc {
        /// The interface.
        dev: String,
        /// Its index.
        index: u32,
        /// Its kind.
        kind: String,
        /// Its number.
        handle: u32,
    },
    /// A class in a psp that was there before.
    Class {
        /// The interface.
        dev: String,
        /// Its index.
        index: u32,
        /// Its number.
        classid: u32,
    },
    /// A filter in a psp that was there before.
    Filter {
        /// The interface.
        dev: String,
        /// Its index.
        index: u32,
        /// The qdisc's number.
        parent: u32,
        /// Its preference.
        preference: u16,
        /// Its ethertype.
        protocol: u16,
    },
    /// A BPF program on a control group.
    Program {
        /// The control group.
        cgroup: PathBuf,
        /// Its numbers.
        ids: Ids,
    },
}

impl Step {
    /// In words.
    pub fn text(&self) -> String {
        match self {
            Self::Qdisc {
                dev, kind, handle, ..
            } => {
                format!("qdisc {kind} {:x}: at the root of {dev}", handle >> 16)
            }
            Self::Class { dev, classid, .. } => {
                format!("class {:x}:{:x} at {dev}", classid >> 16, classid & 0xffff)
            }
            Self::Filter { dev, preference, .. } => format!("filter {preference} at {dev}"),
            Self::Program { cgroup, .. } => format!("BPF program on {}", cgroup.display()),
        }
    }

    /// Whether the interface that it names has its index still: another of the same name is not ours.
    pub(crate) fn dev_is_there(dev: &str, index: u32) -> bool {
        index_of(dev).is_ok_and(|now| now == index)
    }
}

/// A state file that is none, or cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// Not a state file, or not of this boot and network namespace, or one too many or too few.
    #[error("{}: {why}", path.display())]
    Wrong {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what to do.
        why: String,
    },
    /// It cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl StateError {
    /// Whether another file or another command would help.
    pub(crate) fn is_bad_input(&self) -> bool {
        matches!(self, Self::Wrong { .. })
    }
}

/// The file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct State {
    version: u32,
    boot_id: String,
    net_namespace: String,
    pub backend: Backend,
    pub dev: Option<String>,
    pub rules: Vec<Rule>,
    pub steps: Vec<Step>,
    /// Whether all was made that was to be.
    pub whole: bool,
}

fn boot_id() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}

fn net_namespace() -> String {
    let link = std::fs::read_link("/proc/thread-self/ns/net").unwrap_or_default();
    link.to_string_lossy().into_owned()
}

/// Where the state of this network namespace is kept: `/run/kuroshio` for root, else `$XDG_RUNTIME_DIR/kuroshio`.
pub fn default_path() -> Option<PathBuf> {
    let base = if rustix::process::geteuid().is_root() {
        PathBuf::from("/run")
    } else {
        let dir = PathBuf::from(std::env::var_os("XDG_RUNTIME_DIR")?);
        dir.is_absolute().then_some(dir)?
    };
    let inode: String = net_namespace().chars().filter(char::is_ascii_digit).collect();
    Some(base.join("kuroshio").join(format!("pace-{inode}.json")))
}

/// Held while the state is changed: one process at a time.
pub(crate) struct Lock(#[expect(dead_code, reason = "closing it gives the lock back")] File);

impl Lock {
    /// Waits for nobody: who is second is told so.
    pub(crate) fn take(path: &Path) -> Result<Self, StateError> {
        let io = |source| StateError::Io {
            path: path.to_path_buf(),
            source,
        };
        let folder = folder_of(path);
        std::fs::create_dir_all(folder).map_err(io)?;
        let mut name = path.as_os_str().to_owned();
        name.push(".lock");
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(false).mode(0o600);
        let file = file.open(&name).map_err(io)?;
        match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self(file)),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(StateError::Wrong {
                path: path.to_path_buf(),
                why: "another process changes the pacing of this network namespace: wait for it".into(),
            }),
            Err(e) => Err(io(e.into())),
        }
    }
}

impl Lock {
    /// Waits a moment: for what is held while a few messages go to the kernel.
    pub(crate) fn take_soon(path: &Path) -> Result<Self, StateError> {
        let begun = Instant::now();
        loop {
            match Self::take(path) {
                Err(StateError::Wrong { .. }) if begun.elapsed() < LOCK_WAIT => {
                    std::thread::sleep(LOCK_LOOK);
                }
                other => return other,
            }
        }
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent()
        .filter(|p| !p.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

impl State {
    pub(crate) fn new(backend: Backend, dev: Option<String>, rules: Vec<Rule>) -> Self {
        Self {
            version: VERSION,
            boot_id: boot_id(),
            net_namespace: net_namespace(),
            backend,
            dev,
            rules,
            steps: Vec::new(),
            whole: false,
        }
    }

    /// Whether it was made before this boot: nothing of it is in force.
    pub(crate) fn is_of_another_boot(&self) -> bool {
        self.boot_id != boot_id()
    }

    /// Reads a file, if there is one, and refuses what this program cannot have written.
    pub(crate) fn load(path: &Path) -> Result<Option<Self>, StateError> {
        let io = |source| StateError::Io {
            path: path.to_path_buf(),
            source,
        };
        let wrong = |why: String| StateError::Wrong {
            path: path.to_path_buf(),
            why,
        };
        let file = match File::open(path) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(io(e)),
        };
        if !file.metadata().map_err(io)?.is_file() {
            return Err(wrong("not a state file of kuroshio pace".into()));
        }
        let mut text = Vec::new();
        file.take(MAX_STATE_BYTES + 1)
            .read_to_end(&mut text)
            .map_err(io)?;
        if text.len() as u64 > MAX_STATE_BYTES {
            return Err(wrong("too large for a state file of kuroshio pace".into()));
        }
        let state: Self = serde_json::from_slice(&text)
            .map_err(|e| wrong(format!("not a state file of kuroshio pace: {e}")))?;
        if state.version != VERSION {
            return Err(wrong(format!(
                "state file of version {}, not {VERSION}",
                state.version
            )));
        }
        if state.rules.len() > MAX_RULES {
            return Err(wrong(format!("{} rules, at most {MAX_RULES}", state.rules.len())));
        }
        if state.net_namespace != net_namespace() && !state.is_of_another_boot() {
            return Err(wrong("made in another network namespace: use it there".into()));
        }
        Ok(Some(state))
    }

    /// Written to a file beside it, flushed, renamed; then the folder is flushed.
    pub(crate) fn store(&self, path: &Path) -> Result<(), StateError> {
        let store = || -> io::Result<()> {
            let folder = folder_of(path);
            let mut beside = path.as_os_str().to_owned();
            beside.push(".new");
            let mut options = OpenOptions::new();
            let options = options.write(true).create(true).truncate(true).mode(0o600);
            let mut file = options.open(&beside)?;
            file.write_all(serde_json::to_string_pretty(self)?.as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&beside, path)?;
            File::open(folder)?.sync_all()
        };
        store().map_err(|source| StateError::Io {
            path: path.to_path_buf(),
            source,
        })
    }

    pub(crate) fn remove(path: &Path) -> Result<(), StateError> {
        std::fs::remove_file(path).map_err(|source| StateError::Io {
            path: path.to_path_buf(),
            source,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_comes_back_as_it_was_and_others_are_refused() {
        let dir = tempfile::tempdir().expect("folder");
        let path = dir.path().join("deep/pace.json");
        let lock = Lock::take(&path).expect("free");
        assert!(matches!(Lock::take(&path), Err(StateError::Wrong { .. })));
        drop(lock);
        drop(Lock::take(&path).expect("free again"));
        assert_eq!(State::load(&path).expect("none"), None);
        let mut state = State::new(Backend::Tcp, None, Vec::new());
        state.steps.push(Step::Qdisc {
            dev: "eth0".into(),
            index: 2,
            kind: "fq".into(),
            handle: 0x4b50_0000,
        });
        state.store(&path).expect("stored");
        assert_eq!(State::load(&path).expect("there"), Some(state.clone()));
        assert_eq!(state.steps[0].text(), "qdisc fq 4b50: at the root of eth0");
        let text = std::fs::read_to_string(&path).expect("text");
        let here = net_namespace();
        for (text, why) in [
            (String::new(), "not a state file"),
            (text.replace("\"version\": 1", "\"version\": 2"), "version 2"),
            (text.replace(&here, "net:[1]"), "another network namespace"),
            (text.replace("whole", "hole"), "hole"),
            ("x".repeat(MAX_STATE_BYTES as usize + 1), "too large"),
        ] {
            std::fs::write(&path, text).expect("written");
            let e = State::load(&path).expect_err(why);
            assert!(e.to_string().contains(why) && e.is_bad_input(), "{e}");
        }
        assert!(State::load(dir.path()).is_err());
    }
}
