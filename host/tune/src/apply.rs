//! Making the changes, and taking them back.
//!
//! ```text
//! read what is there -> undo file written, flushed, renamed, folder flushed -> changes, one by one
//! ```
//!
//! So at every moment after the first change the file holds what was before. A second `--apply` keeps the
//! older values and adds what it changes beyond them. The file is deleted when everything was restored.

use crate::link;
use crate::need::{Change, Need, SYSCTLS};
use crate::sysctl::Sysctls;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Largest undo file that is read, bytes.
const MAX_UNDO_BYTES: u64 = 1 << 20;
/// Longest value of a parameter in an undo file, bytes.
const MAX_VALUE: usize = 256;

/// Why changes could not be made or taken back.
#[derive(Debug, thiserror::Error)]
pub enum TuneError {
    /// The undo file is not one, or not of this boot and network namespace.
    #[error("{}: {why}", path.display())]
    Undo {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what to do.
        why: String,
    },
    /// The undo file cannot be read or written; nothing was changed.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// What became of a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// The command of the same effect.
    pub command: String,
    /// Why it could not be done; `None` when it was.
    pub error: Option<String>,
}

/// What was before the changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct UndoFile {
    version: u32,
    /// Parameters do not outlive a boot, and each network namespace has its own.
    boot_id: String,
    net_namespace: String,
    before: Vec<Change>,
}

/// Whether two changes are of the same thing.
fn same(a: &Change, b: &Change) -> bool {
    match (a, b) {
        (Change::Sysctl { name: a, .. }, Change::Sysctl { name: b, .. }) => a == b,
        (Change::Mtu { dev: a, .. }, Change::Mtu { dev: b, .. })
        | (Change::Txqueuelen { dev: a, .. }, Change::Txqueuelen { dev: b, .. }) => a == b,
        _ => false,
    }
}

impl UndoFile {
    fn here(sysctls: &Sysctls) -> Self {
        let link = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
        Self {
            version: 1,
            boot_id: sysctls.read("kernel.random.boot_id").unwrap_or_default(),
            net_namespace: link.to_string_lossy().into_owned(),
            before: Vec::new(),
        }
    }

    /// Reads a file, if there is one, and refuses what this program cannot have written.
    fn load(path: &Path, sysctls: &Sysctls) -> Result<Option<Self>, TuneError> {
        let io = |source| TuneError::Io {
            path: path.to_path_buf(),
            source,
        };
        let wrong = |why: String| TuneError::Undo {
            path: path.to_path_buf(),
            why,
        };
        match std::fs::metadata(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(io(e)),
            Ok(m) if !m.is_file() || m.len() > MAX_UNDO_BYTES => {
                return Err(wrong("not an undo file".into()));
            }
            Ok(_) => {}
        }
        let text = std::fs::read(path).map_err(io)?;
        let file: Self =
            serde_json::from_slice(&text).map_err(|e| wrong(format!("not an undo file: {e}")))?;
        let here = Self::here(sysctls);
        if file.version != here.version {
            return Err(wrong(format!("undo file of version {}, not 1", file.version)));
        }
        if file.boot_id != here.boot_id {
            return Err(wrong(
                "made before this boot, so nothing of it is in force: delete it".into(),
            ));
        }
        if file.net_namespace != here.net_namespace {
            return Err(wrong("made in another network namespace: use it there".into()));
        }
        if let Some(odd) = file.before.iter().find(|c| !is_ours(c)) {
            return Err(wrong(format!(
                "not an undo file: `{}` is none of tune's",
                odd.command()
            )));
        }
        Ok(Some(file))
    }

    /// Written to a file beside it, flushed, renamed; then the folder is flushed.
    fn store(&self, path: &Path) -> Result<(), TuneError> {
        let store = || -> io::Result<()> {
            let folder = path
                .parent()
                .filter(|p| !p.as_os_str().is_empty())
                .unwrap_or(Path::new("."));
            std::fs::create_dir_all(folder)?;
            let mut beside = path.as_os_str().to_owned();
            beside.push(format!(".{}", std::process::id()));
            let mut options = OpenOptions::new();
            let mut file = options
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&beside)?;
            file.write_all(serde_json::to_string_pretty(self)?.as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&beside, path)?;
            File::open(folder)?.sync_all()
        };
        store().map_err(|source| TuneError::Io {
            path: path.to_path_buf(),
            source,
        })
    }
}

fn is_ours(change: &Change) -> bool {
    match change {
        Change::Sysctl { name, value } => {
            let plain = |b: u8| b.is_ascii_alphanumeric() || b == b' ' || b == b'_' || b == b'-';
            SYSCTLS.contains(&name.as_str()) && value.len() <= MAX_VALUE && value.bytes().all(plain)
        }
        Change::Mtu { dev, .. } | Change::Txqueuelen { dev, .. } => link::is_name(dev),
    }
}

/// What is there now, in the form of the change that brings it back.
fn present(change: &Change, sysctls: &Sysctls) -> io::Result<Change> {
    let missing = || io::Error::new(io::ErrorKind::NotFound, "the interface does not tell");
    Ok(match change {
        Change::Sysctl { name, .. } => Change::Sysctl {
            name: name.clone(),
            value: sysctls.read(name)?,
        },
        Change::Mtu { dev, .. } => Change::Mtu {
            dev: dev.clone(),
            value: link::read(dev)?.mtu.ok_or_else(missing)?,
        },
        Change::Txqueuelen { dev, .. } => Change::Txqueuelen {
            dev: dev.clone(),
            value: link::read(dev)?.txqueuelen.ok_or_else(missing)?,
        },
    })
}

fn make(change: &Change, sysctls: &Sysctls) -> Outcome {
    let done = match change {
        Change::Sysctl { name, value } => sysctls.write(name, value),
        Change::Mtu { dev, value } => link::set_mtu(dev, *value),
        Change::Txqueuelen { dev, value } => link::set_txqueuelen(dev, *value),
    };
    Outcome {
        command: change.command(),
        error: done.err().map(|e| e.to_string()),
    }
}

/// Makes the changes of a need that this host still lacks; what was before is in `undo` first.
///
/// # Errors
/// [`TuneError`], with nothing changed. A change that fails is in its [`Outcome`]; the others are made.
pub fn apply(need: &Need, sysctls: &Sysctls, undo: &Path) -> Result<Vec<Outcome>, TuneError> {
    let changes: Vec<&Change> = need
        .items
        .iter()
        .filter_map(|item| item.change.as_ref())
        .collect();
    if changes.is_empty() {
        return Ok(Vec::new());
    }
    let mut file = UndoFile::load(undo, sysctls)?.unwrap_or_else(|| UndoFile::here(sysctls));
    let mut outcomes = Vec::new();
    let mut ready = Vec::new();
    for change in changes {
        if file.before.iter().any(|before| same(before, change)) {
            ready.push(change);
            continue;
        }
        // What cannot be read cannot be brought back, so it is not changed.
        match present(change, sysctls) {
            Ok(before) => {
                file.before.push(before);
                ready.push(change);
            }
            Err(e) => outcomes.push(Outcome {
                command: change.command(),
                error: Some(e.to_string()),
            }),
        }
    }
    file.store(undo)?;
    outcomes.extend(ready.into_iter().map(|change| make(change, sysctls)));
    Ok(outcomes)
}

/// Restores what was before, the latest change first, and deletes the file when all of it is back.
///
/// # Errors
/// [`TuneError`]: no file, or not one of this boot and namespace.
pub fn undo(sysctls: &Sysctls, undo: &Path) -> Result<Vec<Outcome>, TuneError> {
    let Some(mut file) = UndoFile::load(undo, sysctls)? else {
        return Err(TuneError::Undo {
            path: undo.to_path_buf(),
            why: "no such file: nothing was applied from here, or it was undone".into(),
        });
    };
    let outcomes: Vec<Outcome> = file
        .before
        .iter()
        .rev()
        .map(|change| make(change, sysctls))
        .collect();
    if outcomes.iter().all(|o| o.error.is_none()) {
        std::fs::remove_file(undo).map_err(|source| TuneError::Io {
            path: undo.to_path_buf(),
            source,
        })?;
    } else {
        let failed = |change: &Change| {
            let command = change.command();
            outcomes.iter().any(|o| o.error.is_some() && o.command == command)
        };
        file.before.retain(failed);
        file.store(undo)?;
    }
    Ok(outcomes)
}

#[cfg(test)]
#[path = "apply_tests.rs"]
mod tests;
