//! Rates for as long as a process wants them, for its own streams: a class of psp where psp is loaded.
//!
//! ```text
//! pace-NETNS-own-PID-N.json        the state file, as of `apply`
//! pace-NETNS-own-PID-N.json.held   locked while its process lives; the kernel gives the lock back however it ends
//!
//! Temporary::psp -> apply ... drop -> clear
//! killed         -> both files stay; clear_left_behind(), at the next one and by `kuroshio pace clear`, takes back
//!                   what belongs to a lock that nobody holds
//! ```
//!
//! Rates that `kuroshio pace apply` has put in force in the network namespace come first: then none are made here.

use std::fs::{File, OpenOptions};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use kuroshio_core::units::BitRate;
use rustix::fs::{FlockOperation, flock};

use crate::apply::{Request, apply, clear};
use crate::backend::{Backend, Presence, Wish, active, find, psp_is_loaded};
use crate::rule::{Mode, Prefix, Rule};
use crate::state::{StateError, default_path};
use crate::{MAX_RULES, PaceError};

/// Most state files of one process, and most files of a folder that are looked at.
const MAX_OWN: u32 = 64;
const MAX_FILES: usize = 4_096;
const HELD: &str = ".held";
/// The loopback's name in every network namespace: what never leaves the host has no wire to be paced for.
const LOOPBACK: &str = "lo";

/// Streams of this process that share a rate: those to one address and port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Own {
    /// Where to.
    pub to: SocketAddr,
    /// All of them in sum, frame level; for `dynamic` ones the bound.
    pub rate: BitRate,
    /// Static or dynamic.
    pub mode: Mode,
}

impl Own {
    fn rule(&self) -> Result<Rule, PaceError> {
        let to: Prefix = self
            .to
            .ip()
            .to_canonical()
            .to_string()
            .parse()
            .map_err(PaceError::BadInput)?;
        Ok(Rule {
            to: Some(to),
            port: Some(self.to.port()),
            cgroup: None,
            rate_bps: self.rate.bps(),
            mode: self.mode,
        })
    }
}

/// Rates that go with this value, and with its process. To be dropped in the network namespace in which it was made.
#[derive(Debug)]
pub struct Temporary {
    path: PathBuf,
    dev: String,
    /// Its lock is the word that the process lives.
    held: Option<File>,
}

impl Temporary {
    /// Classes of psp for own streams, at each interface by which they leave and where psp is loaded and can be: it is
    /// at the interface's root, or the kernel's own qdisc is. Elsewhere, and without root, none is made: the list is
    /// then shorter, or empty. What a killed process left is taken back first.
    ///
    /// # Errors
    /// [`PaceError`]: nothing was changed, or what was made was taken back.
    pub fn psp(streams: &[Own]) -> Result<Vec<Self>, PaceError> {
        if !rustix::process::geteuid().is_root() {
            return Ok(Vec::new());
        }
        let Some(names) = Names::here() else {
            return Ok(Vec::new());
        };
        names.clear_left_behind()?;
        if default_path().is_some_and(|path| path.exists()) {
            return Ok(Vec::new());
        }
        let mut by_dev: Vec<(String, Vec<Rule>)> = Vec::new();
        for stream in streams {
            let Some((backend, dev)) = active(stream.to.ip()).filter(|(_, dev)| dev != LOOPBACK) else {
                continue;
            };
            // Where it is not loaded, looking for it would load it.
            let there = backend == Backend::Psp || psp_is_loaded();
            if !there || find(Some(dev.as_str()))?.of(Backend::Psp) != &Presence::Ready {
                continue;
            }
            let rule = stream.rule()?;
            match by_dev.iter_mut().find(|(name, _)| *name == dev) {
                Some((_, rules)) if rules.len() < MAX_RULES => rules.push(rule),
                Some(_) => {}
                None => by_dev.push((dev, vec![rule])),
            }
        }
        by_dev
            .into_iter()
            .map(|(dev, rules)| Self::at(&names, dev, rules))
            .collect()
    }

    fn at(names: &Names, dev: String, rules: Vec<Rule>) -> Result<Self, PaceError> {
        let (path, held) = names.new_file()?;
        let made = Self {
            path,
            dev: dev.clone(),
            held: Some(held),
        };
        let request = Request {
            wish: Wish::Only(Backend::Psp),
            dev: Some(dev),
            rules,
        };
        // Where this fails, `made` goes with it, and its files.
        apply(&request, &made.path, &mut |_, _| {})?;
        Ok(made)
    }

    /// The interface.
    pub fn dev(&self) -> &str {
        &self.dev
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // What cannot be taken back stays in its file, for the next one to try.
        if !self.path.exists() || clear(&self.path).is_ok() {
            remove_beside(&self.path);
        }
        drop(self.held.take());
    }
}

fn with(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// The files beside a state file that is gone.
fn remove_beside(path: &Path) {
    for ending in [".lock", ".new", HELD] {
        let _ = std::fs::remove_file(with(path, ending));
    }
}

fn io_error(path: &Path) -> impl Fn(io::Error) -> PaceError + '_ {
    |source| {
        PaceError::State(StateError::Io {
            path: path.to_path_buf(),
            source,
        })
    }
}

fn open(held: &Path, create: bool) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .create(create)
        .truncate(false)
        .mode(0o600)
        .open(held)
}

/// Where processes of a network namespace keep such files: their folder, and the start of their names.
struct Names {
    folder: PathBuf,
    start: String,
}

impl Names {
    fn here() -> Option<Self> {
        let path = default_path()?;
        let stem = path.file_stem()?.to_str()?;
        Some(Self {
            folder: path.parent()?.to_path_buf(),
            start: format!("{stem}-own-"),
        })
    }

    /// A state file of this process that is not there yet, and its lock.
    fn new_file(&self) -> Result<(PathBuf, File), PaceError> {
        std::fs::create_dir_all(&self.folder).map_err(io_error(&self.folder))?;
        let pid = std::process::id();
        for number in 0..MAX_OWN {
            let path = self.folder.join(format!("{}{pid}-{number}.json", self.start));
            if path.exists() {
                continue;
            }
            let held = with(&path, HELD);
            let file = open(&held, true).map_err(io_error(&held))?;
            // Somebody who looked for what was left behind may have been quicker, and have taken it away.
            if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() && held.exists() {
                return Ok((path, file));
            }
        }
        Err(PaceError::BadInput(format!(
            "{MAX_OWN} state files of this process are there already"
        )))
    }

    fn clear_left_behind(&self) -> Result<Vec<String>, PaceError> {
        let entries = match std::fs::read_dir(&self.folder) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.map_err(io_error(&self.folder))?,
        };
        let (mut steps, mut problem) = (Vec::new(), None);
        for entry in entries.flatten().take(MAX_FILES) {
            let name = entry.file_name();
            let Some(state) = name.to_str().and_then(|n| n.strip_suffix(HELD)) else {
                continue;
            };
            if !state.starts_with(&self.start) {
                continue;
            }
            let path = self.folder.join(state);
            // Gone since: its own process has taken it back.
            let Ok(held) = open(&entry.path(), false) else {
                continue;
            };
            if flock(&held, FlockOperation::NonBlockingLockExclusive).is_err() {
                continue;
            }
            let cleared = if path.exists() {
                clear(&path)
            } else {
                Ok(Vec::new())
            };
            match cleared {
                Ok(mut some) => {
                    steps.append(&mut some);
                    remove_beside(&path);
                }
                Err(e) => problem = problem.or(Some(e)),
            }
        }
        problem.map_or(Ok(steps), Err)
    }
}

/// Takes back what processes of this network namespace have left that were killed. Gives what was taken back.
///
/// # Errors
/// The first [`PaceError`]; the others were tried all the same.
pub fn clear_left_behind() -> Result<Vec<String>, PaceError> {
    Names::here().map_or(Ok(Vec::new()), |names| names.clear_left_behind())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::State;

    #[test]
    fn a_stream_is_a_rule_for_its_far_end() {
        let own = Own {
            to: "[::ffff:192.0.2.7]:7420".parse().expect("address"),
            rate: BitRate::from_mbps(500),
            mode: Mode::Static,
        };
        let rule = own.rule().expect("rule");
        assert_eq!(rule.to_string(), "to 192.0.2.7/32 port 7420: 500Mbps");
        let v6 = Own {
            to: "[2001:db8::1]:80".parse().expect("address"),
            ..own
        };
        assert_eq!(
            v6.rule().expect("rule").to_string(),
            "to 2001:db8::1/128 port 80: 500Mbps"
        );
    }

    #[test]
    fn what_lives_is_left_alone_and_what_was_killed_is_not() {
        let dir = tempfile::tempdir().expect("folder");
        let names = Names {
            folder: dir.path().join("deep"),
            start: "pace-1-own-".into(),
        };
        assert_eq!(names.clear_left_behind().expect("no folder"), [""; 0]);
        let store = |path: &Path| State::new(Backend::Psp, None, Vec::new()).store(path);
        let (path, held) = names.new_file().expect("a file");
        store(&path).expect("stored");
        let (second, also_held) = names.new_file().expect("another");
        store(&second).expect("stored");
        assert_ne!(path, second);
        names.clear_left_behind().expect("cleared");
        assert!(path.exists() && second.exists());
        // What a kill -9 does to the lock.
        drop(held);
        names.clear_left_behind().expect("cleared");
        assert!(!path.exists() && !with(&path, HELD).exists(), "nobody holds it");
        assert!(second.exists() && with(&second, HELD).exists(), "held still");
        // One that cannot be read is said, and stays.
        std::fs::write(&second, "?").expect("written");
        drop(also_held);
        assert!(names.clear_left_behind().is_err());
        assert!(second.exists() && with(&second, HELD).exists());
        std::fs::remove_file(&second).expect("removed");
        names.clear_left_behind().expect("cleared");
        assert_eq!(std::fs::read_dir(&names.folder).expect("folder").count(), 0);
    }
}
