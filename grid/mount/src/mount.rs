//! Mounting.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use fuser::{BackgroundSession, Config, MountOption, Session, SessionACL};
use kuroshio_client::{ClientError, Grid, host_name, v1};
use kuroshio_service::Ticket;

use crate::dir::Dirs;
use crate::fetch::{Pool, Workers};
use crate::files::Files;
use crate::fs::{Core, Fs};
use crate::ids::{Ids, Whose};

/// Threads that answer the kernel: so many requests at once.
const THREADS: usize = 16;
/// How far the kernel reads ahead, KiB.
const READ_AHEAD_KIB: &str = "1024";

/// How a grid is mounted.
#[derive(Clone, Debug)]
pub struct Options {
    /// The directory of the grid that becomes the mount's root.
    pub path: Vec<u8>,
    /// All local users, each as the grid user of its name; needs the administrator's ticket.
    pub allow_other: bool,
    /// Nothing can be changed.
    pub read_only: bool,
    /// How long the kernel keeps names and attributes.
    pub cache: Duration,
    /// Folder for what is written and not yet published.
    pub drafts: PathBuf,
    /// Nodes of this host are read and written directly, not through TLS.
    pub near: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            path: b"/".to_vec(),
            allow_other: false,
            read_only: false,
            cache: Duration::from_secs(1),
            drafts: PathBuf::from("/var/tmp"),
            near: true,
        }
    }
}

/// Why a grid cannot be mounted.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The metadata service.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// What was asked for cannot be.
    #[error("{0}")]
    Invalid(String),
    /// The kernel, or this host's files.
    #[error("{}: {source}", dir.display())]
    System {
        /// Where.
        dir: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// A mounted grid: unmounted when it is dropped.
pub struct Mount {
    session: Option<BackgroundSession>,
    dir: PathBuf,
}

impl Mount {
    /// Mounts a grid at a folder. It is there when this returns.
    ///
    /// # Errors
    /// See [`MountError`].
    pub fn start(ticket: &Ticket, dir: &Path, options: Options) -> Result<Self, MountError> {
        let failed = |source| MountError::System {
            dir: dir.to_owned(),
            source,
        };
        let core = Arc::new(core(ticket, options).map_err(|e| match e {
            MountError::System { source, .. } => failed(source),
            e => e,
        })?);
        let mut config = Config::default();
        config.mount_options = vec![
            MountOption::FSName(format!("kuroshio:{}", ticket.address())),
            MountOption::Subtype("kuroshio".into()),
            MountOption::NoDev,
            MountOption::NoSuid,
        ];
        if core.options.read_only {
            config.mount_options.push(MountOption::RO);
        }
        if core.options.allow_other {
            config.acl = SessionACL::All;
        }
        config.n_threads = Some(THREADS);
        config.clone_fd = true;
        let session = Session::new(Fs(core.clone()), dir, &config).map_err(failed)?;
        let session = session.spawn().map_err(failed)?;
        // Nobody else sets it.
        let _ = core.notifier.set(session.notifier());
        read_ahead(dir);
        Ok(Self {
            session: Some(session),
            dir: dir.to_owned(),
        })
    }

    /// Where it is mounted.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Unmounts it, and waits until what was open is closed.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn unmount(mut self) -> Result<(), MountError> {
        let Some(session) = self.session.take() else {
            return Ok(());
        };
        session.umount_and_join().map_err(|source| MountError::System {
            dir: self.dir.clone(),
            source,
        })
    }

    /// Waits until somebody unmounts it.
    ///
    /// # Errors
    /// The connection to the kernel broke.
    pub fn wait(mut self) -> Result<(), MountError> {
        let Some(mut session) = self.session.take() else {
            return Ok(());
        };
        let failed = |source| MountError::System {
            dir: self.dir.clone(),
            source,
        };
        // Something has to stand in the place of the threads that are taken out.
        let none = std::thread::Builder::new().spawn(|| Ok(())).map_err(failed)?;
        let threads = std::mem::replace(&mut session.guard, none);
        let ended = threads.join().unwrap_or_else(|_| {
            let text = "a thread of the mount ended abnormally";
            Err(std::io::Error::other(text))
        });
        match ended {
            Ok(()) => {
                // It is unmounted. To drop the session would unmount the folder again, and what somebody has mounted there since.
                std::mem::forget(session);
                Ok(())
            }
            Err(source) => Err(failed(source)),
        }
    }
}

/// Lets the kernel read as far ahead as one request can carry; only root may, others keep the 128 KiB of its
/// default.
fn read_ahead(dir: &Path) {
    use std::os::unix::fs::MetadataExt;
    let Ok(meta) = std::fs::metadata(dir) else { return };
    let (major, minor) = (libc::major(meta.dev()), libc::minor(meta.dev()));
    // Without it reading in order is slower, nothing else.
    let _ = std::fs::write(
        format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"),
        READ_AHEAD_KIB,
    );
}

fn core(ticket: &Ticket, options: Options) -> Result<Core, MountError> {
    let grid = Grid::connect(ticket)?;
    let who = grid.status()?;
    let root = grid.stat(&options.path, true)?;
    if root.kind() != v1::Kind::Directory {
        let path = String::from_utf8_lossy(&options.path).into_owned();
        return Err(MountError::Invalid(format!(
            "{path}: not a directory of the grid"
        )));
    }
    let whose = if options.allow_other {
        Whose::All
    } else {
        Whose::One
    };
    if whose == Whose::All {
        // Says now what each request would say.
        let actor = v1::Actor {
            user: who.user.clone(),
            groups: who.groups.clone(),
        };
        let context = v1::Context {
            inode: root.inode,
            to_inode: 0,
            actor: Some(actor),
        };
        let space = v1::request::Op::Space(v1::SpaceRequest {});
        grid.call_in(space, context).map_err(|e| match e.code() {
            Some(v1::Code::Permission) => MountError::Invalid(
                "a mount for all users (allow_other) acts for each of them: it needs the administrator's ticket".into(),
            ),
            _ => MountError::Client(e),
        })?;
    }
    // A folder where no file can be made would fail at the first write.
    let made = tempfile::tempfile_in(&options.drafts);
    made.map_err(|e| MountError::Invalid(format!("{}: {e}", options.drafts.display())))?;
    let group = who.groups.first().unwrap_or(&who.user).clone();
    let workers = Workers::start().map_err(|source| MountError::System {
        dir: PathBuf::new(),
        source,
    })?;
    Ok(Core {
        pool: Pool::new(options.near),
        ids: Ids::new(whose, who.user, group),
        grid,
        options,
        host: host_name(),
        root: root.inode,
        files: Files::default(),
        dirs: Dirs::default(),
        workers,
        notifier: OnceLock::new(),
    })
}
