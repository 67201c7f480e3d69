//! Where running testbeds are found: a folder with a lock and a socket for each.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::topology::{MAX_NAME, TopologyError};

/// Environment: another folder than the user's own.
const ENV_DIR: &str = "KUROSHIO_TESTBED_DIR";

/// Most testbeds that are listed.
const MAX_LISTED: usize = 1_000;

/// Files of a testbed with a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    folder: PathBuf,
    name: String,
}

/// Whether a testbed is there.
#[derive(Debug)]
pub enum State {
    /// It runs, or is about to.
    Running,
    /// Nobody is there; as long as the file is open nobody else can start.
    Free(File),
}

impl Place {
    /// The place of a name, in the folder of the user (made when it is missing).
    ///
    /// # Errors
    /// A name that is no file name, or a folder that cannot be made or belongs to somebody else.
    pub fn new(name: &str) -> io::Result<Self> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let start = name.starts_with(|c: char| c.is_ascii_alphanumeric());
        if !start || name.len() > MAX_NAME || !name.chars().all(allowed) {
            let problem = format!("{name:?}: 1 to {MAX_NAME} letters, digits, '-', '_' or '.'");
            let error = TopologyError::new("testbed name", problem);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, error.to_string()));
        }
        Ok(Self {
            folder: folder()?,
            name: name.to_owned(),
        })
    }

    /// Every name with a lock.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn all() -> io::Result<Vec<Self>> {
        let folder = folder()?;
        let mut names: Vec<String> = std::fs::read_dir(&folder)?
            .flatten()
            .filter_map(|entry| {
                entry
                    .file_name()
                    .to_str()?
                    .strip_suffix(".lock")
                    .map(str::to_owned)
            })
            .take(MAX_LISTED)
            .collect();
        names.sort();
        let place = |name| Self {
            folder: folder.clone(),
            name,
        };
        Ok(names.into_iter().map(place).collect())
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The variable by which another process finds this folder, whatever user it is.
    pub(super) fn environment(&self) -> (&'static str, &Path) {
        (ENV_DIR, &self.folder)
    }

    /// The control socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.folder.join(format!("{}.sock", self.name))
    }

    /// What the testbed says when nobody listens any more.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.folder.join(format!("{}.log", self.name))
    }

    fn lock(&self) -> PathBuf {
        self.folder.join(format!("{}.lock", self.name))
    }

    /// Takes the place if nobody is there, and removes a socket that was left over.
    ///
    /// # Errors
    /// When the lock cannot be opened.
    pub fn take(&self) -> io::Result<State> {
        loop {
            let file = OpenOptions::new()
                .create(true)
                .truncate(false)
                .write(true)
                .open(self.lock())?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => return Ok(State::Running),
                Err(e) => return Err(e.into()),
            }
            // Removed between opening and locking: the lock is on a file that nobody finds.
            let here = std::fs::metadata(self.lock()).map(|m| m.ino()).ok();
            if here == Some(file.metadata()?.ino()) {
                remove(&self.socket())?;
                return Ok(State::Free(file));
            }
        }
    }

    /// Removes what a testbed leaves in the folder. `lock` is from [`Place::take`].
    ///
    /// # Errors
    /// When a file cannot be removed.
    pub fn clear(&self, lock: File) -> io::Result<()> {
        remove(&self.socket())?;
        remove(&self.log())?;
        // The lock goes last, while it is held.
        remove(&self.lock())?;
        drop(lock);
        Ok(())
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// The user's folder: only the user may enter it, which is what guards the sockets.
fn folder() -> io::Result<PathBuf> {
    let uid = rustix::process::geteuid();
    let folder = match (std::env::var_os(ENV_DIR), std::env::var_os("XDG_RUNTIME_DIR")) {
        (Some(dir), _) if !dir.is_empty() => PathBuf::from(dir),
        (_, Some(dir)) if !uid.is_root() && !dir.is_empty() => Path::new(&dir).join("kuroshio-testbed"),
        _ if uid.is_root() => PathBuf::from("/run/kuroshio-testbed"),
        _ => std::env::temp_dir().join(format!("kuroshio-testbed-{}", uid.as_raw())),
    };
    let named = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", folder.display()));
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&folder)
        .map_err(named)?;
    let meta = std::fs::symlink_metadata(&folder).map_err(named)?;
    if !meta.is_dir() || meta.uid() != uid.as_raw() || meta.mode() & 0o022 != 0 {
        let problem = "must be a folder of this user that nobody else may write";
        return Err(named(io::Error::new(io::ErrorKind::PermissionDenied, problem)));
    }
    Ok(folder)
}
