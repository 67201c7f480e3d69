//! Files made anew from what nodes keep, after the catalog was lost or an older one was put back.
//!
//! ```text
//!   nodes tell of objects that nobody knows, each with what is kept beside it of its file ──> Found
//!   when all have told, of each inode the newest content that is whole:
//!     inode known, published content older ──commit──> the file has it again
//!     inode not known ──> a file at the path that is kept; if that is not known or taken: /lost+found/INODE
//! ```
//!
//! Numbers are given out in rising order, so the highest generation of an inode is its newest content, and of two
//! files that were written as one name the higher one was the later. Folders that are missing are the administrator's, for
//! nobody else: what their modes were is not kept, and nothing becomes readable that was not. Set-ID bits are not
//! given back. A file wants as many copies as were found of it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kuroshio_catalog as cat;
use kuroshio_catalog::{Caller, CopyRule, Draft, ErrorKind, Generation, Handle, Ino, Place, Timestamp};
use kuroshio_proto::v1::{self, Code, Failure};
use kuroshio_proto::{MAX_COPIES, MAX_NAME_BYTES};
use tokio::task::JoinSet;

use crate::server::Inner;
use crate::{auth, convert};

/// Objects that one comparison gathers; more are left to the next one.
const MAX_FOUND: u64 = 1_000_000;
/// Files that are made at once: they share the catalog's flushes.
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

    /// The path that is kept, if it can be one.
    fn path(&self) -> Option<Vec<u8>> {
        let path = auth::plain_path(&self.file.path).ok()?;
        let long = |name: &[u8]| name.len() > MAX_NAME_BYTES;
        (path != b"/" && !path.split(|b| *b == b'/').any(long)).then_some(path)
    }
}

/// What became of a content.
enum Made {
    Named,
    Unnamed,
    Renewed,
}

/// A content that is to be published.
struct Job {
    ino: Ino,
    generation: Generation,
    content: Content,
    /// Its path, unless a later file was written as the same.
    path: Option<Vec<u8>>,
}

/// Of each inode the newest content that is whole; and what is left, in words.
fn choose(gathered: Gathered) -> (Vec<Job>, Vec<String>) {
    let (mut jobs, mut left): (Vec<Job>, Vec<String>) = (Vec::new(), Vec::new());
    let mut taken: Option<u64> = None;
    for ((ino, Reverse(generation)), content) in gathered.contents {
        let name = String::from_utf8_lossy(&content.file.path).into_owned();
        if taken == Some(ino) {
            left.push(format!(
                "{ino}.{generation} ({name}): an older content of a file that is there"
            ));
        } else if content.is_whole() {
            taken = Some(ino);
            let path = content.path();
            let (ino, generation) = (Ino(ino), Generation(generation));
            jobs.push(Job {
                ino,
                generation,
                content,
                path,
            });
        } else {
            let (have, of) = (content.pieces.len(), content.file.fragments);
            left.push(format!(
                "{ino}.{generation} ({name}): {have} of {of} fragments were found"
            ));
        }
    }
    let mut latest: HashMap<Vec<u8>, u64> = HashMap::new();
    for job in &jobs {
        if let Some(path) = &job.path {
            let newest = latest.entry(path.clone()).or_default();
            *newest = job.generation.0.max(*newest);
        }
    }
    for job in &mut jobs {
        let newest = job.path.as_ref().and_then(|p| latest.get(p));
        if newest.is_some_and(|n| *n > job.generation.0) {
            job.path = None;
        }
    }
    (jobs, left)
}

/// Folders that are there for sure.
type Folders = Mutex<HashSet<Vec<u8>>>;

impl Inner {
    /// Makes files of what was told.
    pub async fn rebuild(self: &Arc<Self>, gathered: Gathered, reply: &mut v1::SpoolsReply) {
        reply.more = gathered.more;
        let (jobs, mut left) = choose(gathered);
        let folders = Arc::new(Folders::default());
        let mut running = JoinSet::new();
        let mut jobs = jobs.into_iter();
        loop {
            while running.len() < AT_ONCE
                && let Some(job) = jobs.next()
            {
                let (inner, folders) = (self.clone(), folders.clone());
                running.spawn(async move { inner.restore(&job, &folders).await });
            }
            match running.join_next().await {
                None => break,
                Some(Ok(Ok(Made::Named))) => reply.rebuilt += 1,
                Some(Ok(Ok(Made::Unnamed))) => reply.unnamed += 1,
                Some(Ok(Ok(Made::Renewed))) => reply.renewed += 1,
                Some(Ok(Err(why))) => left.push(why),
                Some(Err(e)) => left.push(format!("a task has failed: {e}")),
            }
        }
        tracing::info!(
            named = reply.rebuilt,
            unnamed = reply.unnamed,
            renewed = reply.renewed,
            left = left.len(),
            "files made anew from spools"
        );
        reply.left = left.len() as u64;
        left.truncate(MAX_REASONS);
        reply.reasons = left;
    }

    async fn restore(&self, job: &Job, folders: &Folders) -> Result<Made, String> {
        let (ino, generation) = (job.ino, job.generation);
        let stat = cat::Stat {
            place: Place::ino(ino),
            follow: false,
        };
        match self.try_ask(&Caller::admin(), stat).await {
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
        let aside = |name: String| [LOST_AND_FOUND, b"/", name.as_bytes()].concat();
        let places = [
            job.path.clone(),
            Some(aside(ino.to_string())),
            Some(aside(format!("{ino}.{generation}"))),
        ];
        for (n, path) in places.into_iter().enumerate() {
            let Some(path) = path else { continue };
            match self.restore_at(job, path, folders).await {
                Ok(()) if n == 0 => return Ok(Made::Named),
                Ok(()) => return Ok(Made::Unnamed),
                Err(e) => why = e,
            }
        }
        Err(format!("{ino}.{generation}: {why}"))
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
        match self.try_ask(&self.service(), commit).await {
            Ok(_) => Ok(Made::Renewed),
            Err(e) => Err(format!("{}.{}: {e}", job.ino, job.generation)),
        }
    }

    async fn restore_at(&self, job: &Job, path: Vec<u8>, folders: &Folders) -> Result<(), String> {
        self.make_folders(&path, folders).await?;
        let file = &job.content.file;
        let or_admin = |name: &str| {
            let name = if cat::is_principal(name) { name } else { "admin" };
            name.to_owned()
        };
        let restore = cat::RestoreFile {
            place: Place::path(&path),
            ino: job.ino,
            generation: job.generation,
            owner: or_admin(&file.owner),
            group: or_admin(&file.group),
            mode: file.mode,
            rule: job.content.rule(),
            mtime: Timestamp(file.mtime_ns),
            fragments: job.content.fragments(),
        };
        let made = self.try_ask(&Caller::admin(), restore).await;
        made.map(drop).map_err(|e| e.to_string())
    }

    /// Makes the folders above a path that are missing.
    async fn make_folders(&self, path: &[u8], folders: &Folders) -> Result<(), String> {
        let slashes = path.iter().enumerate().skip(1).filter(|(_, b)| **b == b'/');
        for folder in slashes.filter_map(|(at, _)| path.get(..at)) {
            if lock(folders).contains(folder) {
                continue;
            }
            let make = cat::MakeDir {
                place: Place::path(folder),
                mode: FOLDER_MODE,
                umask: 0,
            };
            match self.try_ask(&Caller::admin(), make).await {
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::Exists => {}
                Err(e) => return Err(e.to_string()),
            }
            lock(folders).insert(folder.to_vec());
        }
        Ok(())
    }
}

fn lock(folders: &Folders) -> MutexGuard<'_, HashSet<Vec<u8>>> {
    folders.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(
        inode: u64,
        generation: u64,
        fragment: u32,
        path: &str,
        of: u32,
        kept_ns: i64,
    ) -> v1::ObjectName {
        v1::ObjectName {
            inode,
            generation,
            fragment,
            size_bytes: 5,
            digest: vec![7; 32],
            file: Some(v1::FileFacts {
                path: path.into(),
                fragments: of,
                kept_ns,
                ..v1::FileFacts::default()
            }),
        }
    }

    #[test]
    fn the_newest_whole_content_and_the_latest_name_are_taken() {
        let found = Found::default();
        let gathering = found.begin().expect("the first");
        assert!(found.begin().is_err(), "one at a time");
        for (node, object) in [
            // Two copies, the later one made after a rename.
            ("n1", object(20, 21, 0, "/old", 1, 1)),
            ("n2", object(20, 21, 0, "/new", 1, 2)),
            // A content with a fragment missing: the one before it is taken.
            ("n1", object(30, 31, 0, "/two", 1, 1)),
            ("n1", object(30, 35, 1, "/two", 2, 1)),
            // Later than inode 20, and of the name that it had.
            ("n1", object(40, 41, 0, "/new", 1, 1)),
            ("n1", object(50, 51, 0, "", 1, 1)),
            ("n1", object(60, 61, 0, "/../up", 0, 1)),
        ] {
            found.add(node, &object);
        }
        let (jobs, left) = choose(gathering.take());
        let told: Vec<_> = jobs
            .iter()
            .map(|j| {
                let path = j.path.as_ref().map(|p| String::from_utf8_lossy(p).into_owned());
                (j.ino.0, j.generation.0, path)
            })
            .collect();
        let new = Some("/new".to_owned());
        let two = Some("/two".to_owned());
        assert_eq!(
            told,
            [
                (20, 21, None),
                (30, 31, two),
                (40, 41, new),
                (50, 51, None),
                (60, 61, None)
            ]
        );
        assert_eq!(jobs[0].content.rule(), CopyRule::Count(2));
        assert_eq!(left.len(), 1, "{left:?}");
        assert!(found.begin().is_ok());
    }
}
