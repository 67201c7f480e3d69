//! Files made anew from what nodes keep, after the catalog was lost or an older one was put back.
//!
//! ```text
//!   nodes tell of objects that nobody knows, each with what is kept beside it of its file ──> Found
//!   when all have told:
//!     a snapshot of the catalog is among them ──> the newest one is read; folders of its names
//!     of each inode the newest content that is whole:
//!       inode known, published content older ──commit──> the file has it again
//!       inode not known ──> a file at its paths (`choose`); if there is none or it is taken: /lost+found/INODE
//!     what else the snapshot names ──> links, empty files; attributes of folders; quotas (`back`)
//! ```
//!
//! Numbers are given out in rising order, so the highest generation of an inode is its newest content, and of two
//! files that were written as one name the higher one was the later. Folders that no snapshot knows are the administrator's,
//! for nobody else: what their modes were is not kept, and nothing becomes readable that was not. Set-ID bits come from a
//! snapshot alone, and a file that none knows wants as many copies as were found of it.

mod back;
mod choose;

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kuroshio_catalog as cat;
use kuroshio_catalog::{Caller, CopyRule, Draft, ErrorKind, Generation, Handle, Ino, Place, Timestamp};
use kuroshio_proto::MAX_COPIES;
use kuroshio_proto::v1::{self, Code, Failure};
use tokio::task::JoinSet;

use crate::convert;
use crate::server::Inner;
use crate::snapshot::{PREFIX, Snapshot};
use choose::{Job, choose};

/// Objects that one comparison gathers; more are left to the next one.
const MAX_FOUND: u64 = 1_000_000;
/// Files that are made at once.
const AT_ONCE: usize = 64;
/// Reasons that are told.
const MAX_REASONS: usize = 100;
/// Where files go whose name is not known or taken.
const LOST_AND_FOUND: &[u8] = b"/lost+found";
/// Mode of folders that are made.
const FOLDER_MODE: u32 = 0o700;

/// A fragment and where it is.
struct Piece {
    size: u64,
    digest: cat::Digest,
    nodes: Vec<String>,
}

/// A content as nodes have told of it.
#[derive(Default)]
struct Content {
    file: v1::FileFacts,
    pieces: BTreeMap<u32, Piece>,
}

/// Contents by inode, the newest first.
#[derive(Default)]
pub struct Gathered {
    contents: BTreeMap<(u64, Reverse<u64>), Content>,
    objects: u64,
    more: bool,
}

/// What nodes have told of while their spools are compared.
#[derive(Default)]
pub struct Found(Mutex<Option<Gathered>>);

/// The one comparison that gathers now.
pub struct Gathering<'a>(&'a Found);

impl Drop for Gathering<'_> {
    fn drop(&mut self) {
        *self.0.lock() = None;
    }
}

impl Gathering<'_> {
    /// What was told.
    pub fn take(self) -> Gathered {
        self.0.lock().take().unwrap_or_default()
    }
}

impl Found {
    fn lock(&self) -> MutexGuard<'_, Option<Gathered>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to gather.
    ///
    /// # Errors
    /// Another comparison does.
    pub fn begin(&self) -> Result<Gathering<'_>, Failure> {
        let mut found = self.lock();
        if found.is_some() {
            return Err(Failure::new(Code::Busy, "the spools are compared already"));
        }
        *found = Some(Gathered::default());
        Ok(Gathering(self))
    }

    /// A node has this object, and nobody knows it.
    pub fn add(&self, node: &str, object: &v1::ObjectName) {
        let (Some(gathered), Some(file)) = (&mut *self.lock(), &object.file) else {
            return;
        };
        let Ok(digest) = convert::digest(&object.digest) else {
            return;
        };
        if gathered.objects >= MAX_FOUND {
            gathered.more = true;
            return;
        }
        gathered.objects += 1;
        let key = (object.inode, Reverse(object.generation));
        let content = gathered.contents.entry(key).or_default();
        if content.pieces.is_empty() || file.kept_ns > content.file.kept_ns {
            content.file = file.clone();
        }
        let piece = content.pieces.entry(object.fragment).or_insert(Piece {
            size: object.size_bytes,
            digest,
            nodes: Vec::new(),
        });
        // Two objects of one name are the same content; what is not stays at its node.
        if (piece.size, piece.digest) == (object.size_bytes, digest) && piece.nodes.iter().all(|n| n != node)
        {
            piece.nodes.push(node.to_owned());
        }
    }
}

impl Gathered {
    /// Snapshots of the catalog, the newest first, and the rest.
    fn split(mut self) -> (Vec<Job>, Self) {
        let (own, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut self.contents)
            .into_iter()
            .partition(|(_, c)| c.file.path.starts_with(PREFIX) && c.file.owner == "admin" && c.is_whole());
        self.contents = rest.into_iter().collect();
        let mut jobs: Vec<Job> = own
            .into_iter()
            .map(|((ino, Reverse(generation)), content)| Job {
                ino: Ino(ino),
                generation: Generation(generation),
                paths: vec![content.file.path.clone()],
                content,
                late: false,
            })
            .collect();
        jobs.sort_by_key(|j| Reverse(j.generation.0));
        (jobs, self)
    }
}

impl Content {
    /// Whether every fragment is there.
    fn is_whole(&self) -> bool {
        let last = self.pieces.keys().next_back().map_or(0, |i| u64::from(*i) + 1);
        let count = match self.file.fragments {
            0 => last,
            n => n.into(),
        };
        count > 0 && last == count && self.pieces.len() as u64 == count
    }

    fn fragments(&self) -> Vec<cat::NewFragment> {
        let pieces = self.pieces.iter().map(|(index, p)| cat::NewFragment {
            index: *index,
            size: p.size,
            digest: p.digest,
            nodes: p.nodes.clone(),
        });
        pieces.collect()
    }

    /// As many copies as there are of each fragment.
    fn rule(&self) -> CopyRule {
        let least = self.pieces.values().map(|p| p.nodes.len()).min().unwrap_or(1);
        let least = u32::try_from(least).unwrap_or(MAX_COPIES);
        CopyRule::Count(least.clamp(1, MAX_COPIES))
    }
}

/// What became of a content.
enum Made {
    /// By its name, and so many further ones.
    Named(u64),
    Unnamed,
    Renewed,
}

/// Folders that are there for sure.
type Folders = Mutex<HashSet<Vec<u8>>>;

/// One run.
struct Run {
    inner: Arc<Inner>,
    /// What the catalog knew at a time that it has forgotten.
    snapshot: Option<Arc<Snapshot>>,
    /// Whether the catalog was empty.
    fresh: bool,
    folders: Folders,
    /// Inodes that are there again.
    there: Mutex<HashSet<u64>>,
    /// What of them is not as it was.
    trouble: Mutex<Vec<String>>,
}

impl Inner {
    /// Makes files of what was told.
    pub async fn rebuild(self: &Arc<Self>, gathered: Gathered, reply: &mut v1::SpoolsReply) {
        reply.more = gathered.more;
        let (snapshots, gathered) = gathered.split();
        let mut run = Run {
            inner: self.clone(),
            snapshot: None,
            fresh: self.is_empty().await,
            folders: Folders::default(),
            there: Mutex::default(),
            trouble: Mutex::default(),
        };
        let mut left = Vec::new();
        run.read_newest(snapshots, &mut left).await;
        let run = Arc::new(run);
        run.clone().all(gathered, reply, &mut left).await;
        left.append(&mut lock(&run.trouble));
        tracing::info!(
            named = reply.rebuilt,
            unnamed = reply.unnamed,
            renewed = reply.renewed,
            directories = reply.directories,
            left = left.len(),
            "files made anew from spools"
        );
        reply.left = left.len() as u64;
        left.truncate(MAX_REASONS);
        reply.reasons = left;
    }

    /// Whether there is nothing in the namespace but the root.
    async fn is_empty(&self) -> bool {
        let list = cat::ReadDir {
            place: Place::path("/"),
            after: None,
            limit: 1,
            attrs: false,
        };
        let page = self.try_ask(&Caller::admin(), list).await;
        page.is_ok_and(|p| p.entries.is_empty())
    }
}

impl Run {
    /// The newest snapshot that can be read becomes a file of the grid again, and is what this run knows.
    async fn read_newest(&mut self, snapshots: Vec<Job>, left: &mut Vec<String>) {
        for job in snapshots {
            let name = format!("{}.{}: a snapshot of the catalog", job.ino, job.generation);
            if self.snapshot.is_some() {
                left.push(format!("{name}: there is a newer one"));
                continue;
            }
            match self.read_one(&job).await {
                Ok(snapshot) => self.snapshot = Some(Arc::new(snapshot)),
                Err(e) => left.push(format!("{name}: {e}")),
            }
        }
    }

    async fn read_one(&self, job: &Job) -> Result<Snapshot, String> {
        self.restore(job).await?;
        let admin = Caller::admin();
        let path = self.inner.try_ask(&admin, cat::PathOf { ino: job.ino }).await;
        let path = path.map_err(|e| e.to_string())?;
        let read = self.inner.read_snapshot(path).await;
        let snapshot = read.map_err(|e| e.to_string())?;
        // Nor are numbers given out again that no object bears.
        let highest = snapshot.next.saturating_sub(1);
        let raised = self.inner.try_ask(&admin, cat::RaiseNumbers { highest }).await;
        raised.map_err(|e| e.to_string())?;
        Ok(snapshot)
    }

    async fn all(self: Arc<Self>, gathered: Gathered, reply: &mut v1::SpoolsReply, left: &mut Vec<String>) {
        let made = match &self.snapshot {
            Some(_) => self.clone().folders(reply).await,
            None => Vec::new(),
        };
        let chosen = choose(gathered, self.snapshot.as_deref());
        left.extend(chosen.left);
        self.clone().files(chosen.first, reply, left).await;
        if self.snapshot.is_some() {
            self.clone().names(reply).await;
        }
        self.clone().files(chosen.last, reply, left).await;
        if self.snapshot.is_some() {
            self.finish(made, left).await;
        }
    }

    async fn files(self: Arc<Self>, jobs: Vec<Job>, reply: &mut v1::SpoolsReply, left: &mut Vec<String>) {
        let restore = |job: Job| {
            let run = self.clone();
            async move { run.restore(&job).await.map(|made| (made, job.ino)) }
        };
        together(jobs, restore, |done| match done {
            Ok((made, ino)) => {
                lock(&self.there).insert(ino.0);
                match made {
                    Made::Named(more) => {
                        reply.rebuilt += 1;
                        reply.names += more;
                    }
                    Made::Unnamed => reply.unnamed += 1,
                    Made::Renewed => reply.renewed += 1,
                }
            }
            Err(why) => left.push(why),
        })
        .await;
    }

    async fn restore(&self, job: &Job) -> Result<Made, String> {
        let (ino, generation) = (job.ino, job.generation);
        let stat = cat::Stat {
            place: Place::ino(ino),
            follow: false,
        };
        match self.inner.try_ask(&Caller::admin(), stat).await {
            Ok(there)
                if there.kind == cat::Kind::File && there.links > 0 && generation > there.generation =>
            {
                return self.renew(job, &there).await;
            }
            Ok(there) => {
                let text = format!("{ino}.{generation}: inode {ino} is of something else by now");
                let later = format!("{ino}.{generation}: the file has a later content");
                let same = there.kind == cat::Kind::File && there.generation >= generation;
                return Err(if same { later } else { text });
            }
            Err(e) if matches!(e.kind(), ErrorKind::Stale | ErrorKind::NotFound) => {}
            Err(e) => return Err(format!("{ino}.{generation}: {e}")),
        }
        let mut why = String::from("its name is not known");
        for (n, path) in job.paths.iter().enumerate() {
            match self.restore_at(job, path).await {
                Ok(()) => {
                    let more = self.link(job, job.paths.get(n + 1..).unwrap_or_default()).await;
                    return Ok(Made::Named(more));
                }
                Err(e) => why = e,
            }
        }
        for name in [ino.to_string(), format!("{ino}.{generation}")] {
            let aside = [LOST_AND_FOUND, b"/", name.as_bytes()].concat();
            match self.restore_at(job, &aside).await {
                Ok(()) => return Ok(Made::Unnamed),
                Err(e) => why = e,
            }
        }
        Err(format!("{ino}.{generation}: {why}"))
    }

    /// Gives a file that is there its further names; how many.
    async fn link(&self, job: &Job, paths: &[Vec<u8>]) -> u64 {
        let mut linked = 0;
        for path in paths {
            let link = cat::Link {
                from: Place::ino(job.ino),
                to: Place::path(path),
            };
            let made = match self.make_folders(path).await {
                Ok(()) => self.inner.try_ask(&Caller::admin(), link).await.is_ok(),
                Err(_) => false,
            };
            linked += u64::from(made);
        }
        linked
    }

    /// A file that the catalog knows gets the later content that it has forgotten.
    async fn renew(&self, job: &Job, there: &cat::Attr) -> Result<Made, String> {
        let commit = cat::Commit {
            draft: Draft {
                ino: job.ino,
                generation: job.generation,
                handle: Handle(0),
                base: there.generation,
            },
            fragments: job.content.fragments(),
            keep: Vec::new(),
            expect: Some(there.generation),
            mtime: Some(Timestamp(job.content.file.mtime_ns)),
        };
        match self.inner.try_ask(&self.inner.service(), commit).await {
            Ok(_) => Ok(Made::Renewed),
            Err(e) => Err(format!("{}.{}: {e}", job.ino, job.generation)),
        }
    }

    async fn restore_at(&self, job: &Job, path: &[u8]) -> Result<(), String> {
        self.make_folders(path).await?;
        let kept = self.snapshot.as_ref().and_then(|s| s.inodes.get(&job.ino.0));
        let kept = kept.filter(|k| k.kind() == v1::Kind::File);
        // What was written after the snapshot knows better; but what is kept beside an object is not all.
        let file = match kept {
            Some(kept) if !job.late => {
                let attr = kept.attr();
                v1::FileFacts {
                    owner: attr.owner,
                    group: attr.group,
                    mode: attr.mode,
                    mtime_ns: attr.mtime_ns,
                    ..v1::FileFacts::default()
                }
            }
            _ => job.content.file.clone(),
        };
        let rule = kept.and_then(|k| k.attr().copies.parse().ok());
        let or_admin = |name: &str| {
            let name = if cat::is_principal(name) { name } else { "admin" };
            name.to_owned()
        };
        let restore = cat::RestoreFile {
            place: Place::path(path),
            ino: job.ino,
            generation: job.generation,
            owner: or_admin(&file.owner),
            group: or_admin(&file.group),
            mode: file.mode,
            rule: rule.unwrap_or_else(|| job.content.rule()),
            mtime: Timestamp(file.mtime_ns),
            fragments: job.content.fragments(),
        };
        let made = self.inner.try_ask(&Caller::admin(), restore).await;
        made.map_err(|e| e.to_string())?;
        if let Some(kept) = kept {
            let late = job.late.then_some(job.content.file.mode);
            // The file is there all the same.
            if let Err(e) = self.dress(Place::ino(job.ino), kept, late).await {
                let text = format!("attributes of {}: {e}", String::from_utf8_lossy(path));
                lock(&self.trouble).push(text);
            }
        }
        Ok(())
    }

    /// Makes the folders above a path that are missing.
    async fn make_folders(&self, path: &[u8]) -> Result<(), String> {
        let slashes = path.iter().enumerate().skip(1).filter(|(_, b)| **b == b'/');
        for folder in slashes.filter_map(|(at, _)| path.get(..at)) {
            if lock(&self.folders).contains(folder) {
                continue;
            }
            let make = cat::MakeDir {
                place: Place::path(folder),
                mode: FOLDER_MODE,
                umask: 0,
            };
            match self.inner.try_ask(&Caller::admin(), make).await {
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::Exists => {}
                Err(e) => return Err(e.to_string()),
            }
            lock(&self.folders).insert(folder.to_vec());
        }
        Ok(())
    }
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does the same with all items, [`AT_ONCE`] of them at a time: they share the catalog's flushes.
async fn together<I, T, F>(
    items: impl IntoIterator<Item = I>,
    work: impl Fn(I) -> F,
    mut done: impl FnMut(Result<T, String>),
) where
    T: Send + 'static,
    F: Future<Output = Result<T, String>> + Send + 'static,
{
    let mut running = JoinSet::new();
    let mut items = items.into_iter();
    loop {
        while running.len() < AT_ONCE
            && let Some(item) = items.next()
        {
            running.spawn(work(item));
        }
        match running.join_next().await {
            None => break,
            Some(Ok(ended)) => done(ended),
            Some(Err(e)) => done(Err(format!("a task has failed: {e}"))),
        }
    }
}
