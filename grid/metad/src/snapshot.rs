//! What only the catalog knows, kept where the contents are: as a file of the grid.
//!
//! ```text
//!   every `snapshot_s`: dump (one transaction) ──> local file ──differs from the last──> put, as any content
//!   /.kuroshio/catalog.0, catalog.1     in turn, so the one before has all of its copies when the next one comes
//! ```
//!
//! So it is flushed, has copies, is scrubbed and repaired, and its generation says which is the later one. `rebuild` reads it
//! when the catalog is lost. The folder is the administrator's alone; a MAC says that a metadata service wrote it.

mod record;

use std::fs::{File, OpenOptions};
use std::io::{BufReader, BufWriter, Seek};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use kuroshio_catalog as cat;
use kuroshio_catalog::{Caller, DumpRow, DumpSink, ErrorKind, Ino, Place};
use kuroshio_client::{Cancel, Grid, Part, PutOptions};
use kuroshio_proto::v1::{self, Code, Failure};
use tokio::sync::watch;

pub use record::{Kept, Snapshot, try_records};

use crate::node::Known;
use crate::server::Inner;

/// The folder of snapshots, and its name in the root.
const FOLDER: &[u8] = b"/.kuroshio";
const FOLDER_NAME: &[u8] = b".kuroshio";
/// What their paths begin with; a digit follows.
pub const PREFIX: &[u8] = b"/.kuroshio/catalog.";
/// Copies wanted of a snapshot, if there are as many nodes.
const COPIES: usize = 3;
/// A snapshot may take one part of so many of the time.
const SHARE: u32 = 20;
/// Longest pause after one that failed.
const RETRY: Duration = Duration::from_secs(60);
/// Names of the local files until they are open; they have none afterwards.
const WRITTEN: &str = "snapshot.written";
const READ: &str = "snapshot.read";

/// What is remembered from one snapshot to the next.
#[derive(Default)]
pub struct Snapshots {
    /// Of all but the time.
    last: Mutex<Option<[u8; 32]>>,
    /// One at a time.
    taking: tokio::sync::Mutex<()>,
}

/// Takes snapshots until `stop` says so.
pub async fn run(inner: Arc<Inner>, mut stop: watch::Receiver<bool>) {
    let every = Duration::from_secs(inner.config.timing.snapshot_s);
    if every.is_zero() {
        return;
    }
    let mut pause = every;
    loop {
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = stop.changed() => return,
        }
        let begun = Instant::now();
        pause = match turn(&inner).await {
            Ok(()) => every.max(begun.elapsed() * SHARE),
            Err(e) => {
                tracing::warn!("no snapshot of the catalog: {e}");
                every.min(RETRY)
            }
        };
    }
}

async fn turn(inner: &Arc<Inner>) -> Result<(), Failure> {
    if inner.leads().await? {
        inner.take_snapshot(false).await?;
    }
    Ok(())
}

/// A dump on its way into a local file.
type Dumping = Arc<Mutex<Option<record::Writer<BufWriter<File>>>>>;

impl Inner {
    /// Takes a snapshot and puts it into the grid; unless something is `wanted`, only if it differs from the last.
    ///
    /// # Errors
    /// No node takes it, the catalog is older than the spools, or the folder is not the administrator's alone.
    pub async fn take_snapshot(self: &Arc<Self>, wanted: bool) -> Result<v1::SnapshotTaken, Failure> {
        let _one = self.snapshots.taking.lock().await;
        let nodes = self.nodes().await?;
        if nodes.iter().any(|n| self.registry.is_held(&n.node.name)) {
            let text = "the catalog is older than what nodes have: run `kuroshio fs fsck` first";
            return Err(Failure::new(Code::Busy, text));
        }
        let takers = nodes.iter().filter(|n| Known::takes(n, 0)).count();
        if takers == 0 {
            return Err(Failure::new(Code::NoNode, "no node takes it"));
        }
        let folder = self.snapshot_folder(takers.min(COPIES)).await?;
        let (file, inodes, body) = self.dump(folder).await?;
        let mut taken = v1::SnapshotTaken {
            inodes,
            ..v1::SnapshotTaken::default()
        };
        let last = || self.snapshots.last.lock().unwrap_or_else(PoisonError::into_inner);
        if !wanted && *last() == Some(body) {
            return Ok(taken);
        }
        let path = self.older_snapshot().await?;
        let ticket = self.own_ticket()?;
        taken.path.clone_from(&path);
        taken.bytes = blocking(move || {
            let grid = Grid::connect(&ticket).map_err(|e| e.to_string())?;
            put(&grid, &path, file)
        })
        .await?;
        *last() = Some(body);
        tracing::info!(
            inodes,
            bytes = taken.bytes,
            path = %String::from_utf8_lossy(&taken.path),
            "snapshot of the catalog"
        );
        Ok(taken)
    }

    /// Makes the folder, or sees that nobody else has a right to it.
    async fn snapshot_folder(&self, copies: usize) -> Result<Ino, Failure> {
        let admin = Caller::admin();
        let place = Place::path(FOLDER);
        let make = cat::MakeDir {
            place: place.clone(),
            mode: 0o700,
            umask: 0,
        };
        let made = self.try_ask(&admin, make).await;
        let attr = match made {
            Err(e) if e.kind() == ErrorKind::Exists => {
                let stat = cat::Stat {
                    place: place.clone(),
                    follow: false,
                };
                self.ask(&admin, stat).await?
            }
            other => other.map_err(|e| crate::convert::failure(&e))?,
        };
        if attr.kind != cat::Kind::Dir || attr.owner != admin.user || attr.mode & 0o077 != 0 || attr.acl {
            let text = "/.kuroshio is not a directory of the administrator alone (mode 0700)";
            return Err(Failure::new(Code::Permission, text));
        }
        let rule = cat::CopyRule::Count(u32::try_from(copies).unwrap_or(1));
        if attr.copies != rule {
            self.ask(&admin, cat::SetCopies { place, rule }).await?;
        }
        Ok(attr.ino)
    }

    /// Dumps the catalog, but for snapshots, into a local file without a name; also how many inodes, and a digest of all but
    /// the time.
    async fn dump(&self, folder: Ino) -> Result<(File, u64, [u8; 32]), Failure> {
        let internal = |e: String| Failure::new(Code::Internal, e);
        let file = nameless(&self.folder().join(WRITTEN)).map_err(internal)?;
        let writer = record::Writer::new(BufWriter::new(file), self.master.snapshot_key());
        let dumping: Dumping = Arc::new(Mutex::new(Some(writer)));
        let theirs = Arc::clone(&dumping);
        let sink = DumpSink::new(move |row| take_row(&theirs, folder, row));
        self.ask(&self.service(), cat::Dump { sink }).await?;
        let writer = dumping.lock().unwrap_or_else(PoisonError::into_inner).take();
        let writer = writer.ok_or_else(|| internal("the dump is not there".into()))?;
        let (out, inodes, body) = writer.end().map_err(internal)?;
        let file = out.into_inner().map_err(|e| internal(e.to_string()))?;
        Ok((file, inodes, body))
    }

    /// The path whose snapshot is the older one, or not there.
    async fn older_snapshot(&self) -> Result<Vec<u8>, Failure> {
        let mut oldest = None;
        for digit in [b'0', b'1'] {
            let path = [PREFIX, &[digit]].concat();
            let stat = cat::Stat {
                place: Place::path(&path),
                follow: false,
            };
            let generation = match self.try_ask(&Caller::admin(), stat).await {
                Ok(attr) => attr.generation.0,
                Err(e) if e.kind() == ErrorKind::NotFound => 0,
                Err(e) => return Err(crate::convert::failure(&e)),
            };
            if oldest.as_ref().is_none_or(|(least, _)| generation < *least) {
                oldest = Some((generation, path));
            }
        }
        Ok(oldest.map(|(_, path)| path).unwrap_or_default())
    }

    /// Reads the snapshot that is a file of the grid again.
    ///
    /// # Errors
    /// It cannot be read, or no service of this grid wrote it.
    pub async fn read_snapshot(&self, path: Vec<u8>) -> Result<Snapshot, Failure> {
        let (ticket, key) = (self.own_ticket()?, self.master.snapshot_key());
        let local = self.folder().join(READ);
        blocking(move || {
            let grid = Grid::connect(&ticket).map_err(|e| e.to_string())?;
            let mut file = nameless(&local)?;
            let read = grid.read_into(&path, Part::All, None, &mut file, &Cancel::default());
            read.map_err(|e| e.to_string())?;
            file.rewind().map_err(|e| e.to_string())?;
            Snapshot::read(&mut BufReader::new(file), &key)
        })
        .await
    }
}

/// Keeps a row, unless it is of the snapshots themselves: they change with each of them.
fn take_row(dumping: &Dumping, folder: Ino, row: DumpRow) -> Result<(), String> {
    let mut dumping = dumping.lock().unwrap_or_else(PoisonError::into_inner);
    let writer = dumping.as_mut().ok_or("it has ended")?;
    let own = match &row {
        DumpRow::Begin { .. } => {
            let out = writer.reset();
            let begun = out.rewind().and_then(|()| out.get_ref().set_len(0));
            begun.map_err(|e| e.to_string())?;
            false
        }
        DumpRow::Inode(inode) => inode.attr.ino == folder || inode.parent == folder,
        DumpRow::Name { parent, name, .. } => {
            *parent == folder || (*parent == Ino::ROOT && name == FOLDER_NAME)
        }
        DumpRow::Xattr { ino, .. } => *ino == folder,
        DumpRow::Bound { .. } => false,
    };
    if own { Ok(()) } else { writer.row(row) }
}

/// A private local file that goes with its last handle.
fn nameless(path: &Path) -> Result<File, String> {
    let error = |e: std::io::Error| format!("{}: {e}", path.display());
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(error(e)),
        _ => {}
    }
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create_new(true).mode(0o600);
    let file = options.open(path).map_err(error)?;
    std::fs::remove_file(path).map_err(error)?;
    Ok(file)
}

/// Puts the snapshot; the answer is its size in bytes.
fn put(grid: &Grid, path: &[u8], mut file: File) -> Result<u64, String> {
    file.rewind().map_err(|e| e.to_string())?;
    let size = file.metadata().map_err(|e| e.to_string())?.len();
    let options = PutOptions {
        exclusive: false,
        mode: 0o600,
        umask: 0,
        near_host: String::new(),
        mtime_ns: None,
    };
    let sent = grid.put(path, &mut file, size, &options, &Cancel::default());
    sent.map(|_| size).map_err(|e| e.to_string())
}

/// Runs what waits on a thread of its own.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, Failure> {
    let done = tokio::task::spawn_blocking(work).await;
    let done = done.unwrap_or_else(|e| Err(e.to_string()));
    done.map_err(|e| Failure::new(Code::Internal, e))
}
