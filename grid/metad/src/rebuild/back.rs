//! What a snapshot of the catalog gives back beyond contents.
//!
//! ```text
//!   folders, the highest first: mode 0700, their quotas counted ──> files ──> links, empty files
//!     ──> attributes of those folders, the deepest first ──> bounds
//! ```
//!
//! What the catalog knows stays as it is: an older one that was put back gets what it does not have. The root gets its
//! attributes back if the catalog was empty.

use std::collections::HashSet;
use std::sync::Arc;

use kuroshio_catalog as cat;
use kuroshio_catalog::{AclKind, Caller, ErrorKind, Ino, Place, QuotaSubject, SetTime, Timestamp};
use kuroshio_proto::v1;

use super::{FOLDER_MODE, MAX_REASONS, Run, lock, together};
use crate::convert;
use crate::snapshot::{Kept, Snapshot};

/// A folder that was made: its path, and its number in the snapshot.
type Folder = (Vec<u8>, u64);

impl Run {
    fn known(&self) -> Option<Arc<Snapshot>> {
        self.snapshot.clone()
    }

    /// Makes the folders of the snapshot that are missing; which, the highest first.
    pub(super) async fn folders(self: Arc<Self>, reply: &mut v1::SpoolsReply) -> Vec<Folder> {
        let Some(snapshot) = self.known() else {
            return Vec::new();
        };
        reply.snapshot_ns = snapshot.taken_ns;
        let counted: Arc<HashSet<u64>> = Arc::new(snapshot.bounds.iter().map(|b| b.directory).collect());
        let mut made = Vec::new();
        if self.fresh {
            made.push((b"/".to_vec(), Ino::ROOT.0));
        }
        for (_, level) in snapshot.directories() {
            let make = |(path, ino): Folder| {
                let (run, counted) = (self.clone(), counted.clone());
                async move { run.folder(path, ino, counted.contains(&ino)).await }
            };
            together(level, make, |done| {
                // Else it is there, or its name is another's: what is below finds its place, or goes to /lost+found.
                if let Ok(Some(folder)) = done {
                    reply.directories += 1;
                    made.push(folder);
                }
            })
            .await;
        }
        made
    }

    async fn folder(&self, path: Vec<u8>, ino: u64, counted: bool) -> Result<Option<Folder>, String> {
        let make = cat::MakeDir {
            place: Place::path(&path),
            mode: FOLDER_MODE,
            umask: 0,
        };
        match self.inner.try_ask(&Caller::admin(), make).await {
            Ok(_) => {}
            Err(e) if e.kind() == ErrorKind::Exists => return Ok(None),
            Err(e) => return Err(e.to_string()),
        }
        lock(&self.folders).insert(path.clone());
        if counted {
            // While it is empty; the bounds come last.
            self.bound(dir(&path), &v1::SnapshotBound::default()).await?;
        }
        Ok(Some((path, ino)))
    }

    /// Makes symbolic links and empty files that are missing.
    pub(super) async fn names(self: Arc<Self>, reply: &mut v1::SpoolsReply) {
        let Some(snapshot) = self.known() else { return };
        let (mut make, mut missing) = (Vec::new(), Vec::new());
        for (ino, kept) in &snapshot.inodes {
            let there = lock(&self.there).contains(ino);
            if there || self.is_known(*ino, kept).await {
                continue;
            }
            let empty = kept.inode.attr.as_ref().is_some_and(|a| a.size_bytes == 0);
            match kept.kind() {
                v1::Kind::Directory | v1::Kind::Unspecified => {}
                v1::Kind::File if !empty => missing.push(snapshot.paths(kept).into_iter().next()),
                _ => make.push(*ino),
            }
        }
        reply.missing = missing.len() as u64;
        reply.missing_paths = missing.into_iter().flatten().take(MAX_REASONS).collect();
        reply.missing_paths.sort();
        let make_one = |ino| {
            let (run, snapshot) = (self.clone(), snapshot.clone());
            async move { run.name(ino, &snapshot).await }
        };
        together(make, make_one, |done| reply.names += done.unwrap_or(0)).await;
    }

    /// Whether an older catalog that was put back knows this inode.
    async fn is_known(&self, ino: u64, kept: &Kept) -> bool {
        if self.fresh {
            return false;
        }
        let stat = cat::Stat {
            place: Place::ino(Ino(ino)),
            follow: false,
        };
        let there = self.inner.try_ask(&Caller::admin(), stat).await;
        there.is_ok_and(|a| convert::kind(a.kind) == kept.kind() && a.links > 0)
    }

    /// Makes a symbolic link or an empty file with all of its names; how many.
    async fn name(&self, ino: u64, snapshot: &Snapshot) -> Result<u64, String> {
        let Some(kept) = snapshot.inodes.get(&ino) else {
            return Ok(0);
        };
        let admin = Caller::admin();
        let (mut made, mut names) = (None, 0);
        for path in snapshot.paths(kept) {
            self.make_folders(&path).await?;
            let place = Place::path(&path);
            let done = match (made, kept.kind()) {
                (Some(ino), _) => {
                    let link = cat::Link {
                        from: Place::ino(ino),
                        to: place,
                    };
                    self.inner.try_ask(&admin, link).await
                }
                (None, v1::Kind::Symlink) => {
                    let target = kept.inode.target.clone();
                    self.inner.try_ask(&admin, cat::Symlink { place, target }).await
                }
                (None, kind @ (v1::Kind::Fifo | v1::Kind::Socket)) => {
                    let kind = if kind == v1::Kind::Fifo {
                        cat::Kind::Fifo
                    } else {
                        cat::Kind::Socket
                    };
                    let make = cat::MakeSpecial {
                        place,
                        kind,
                        mode: 0,
                        umask: 0,
                    };
                    self.inner.try_ask(&admin, make).await
                }
                (None, _) => {
                    let create = cat::Create {
                        place,
                        mode: 0,
                        umask: 0,
                        exclusive: true,
                        open: false,
                    };
                    self.inner.try_ask(&admin, create).await.map(|c| c.attr)
                }
            };
            // A name that something later has stays with that.
            let Ok(attr) = done else { continue };
            names += 1;
            if made.is_none() {
                made = Some(attr.ino);
                self.dress(Place::ino(attr.ino), kept, None).await?;
            }
        }
        Ok(names)
    }

    /// Gives what is there its attributes, access lists and extended attributes. Of a file whose content is `late` owner, group,
    /// times and the mode, which is given then, are known better.
    pub(super) async fn dress(&self, place: Place, kept: &Kept, late: Option<u32>) -> Result<(), String> {
        let admin = Caller::admin();
        let (ask, attr) = (&self.inner, kept.attr());
        let text = |e: cat::CatalogError| e.to_string();
        let set = |mode, owner, group, times: bool| cat::SetAttr {
            place: place.clone(),
            follow: false,
            mode,
            owner,
            group,
            atime: times.then_some(SetTime::At(Timestamp(attr.atime_ns))),
            mtime: times.then_some(SetTime::At(Timestamp(attr.mtime_ns))),
        };
        let link = kept.kind() == v1::Kind::Symlink;
        if late.is_none() {
            let owner = set(None, Some(attr.owner.clone()), Some(attr.group.clone()), link);
            ask.try_ask(&admin, owner).await.map_err(text)?;
        }
        if link {
            return Ok(());
        }
        if let Ok(rule) = attr.copies.parse() {
            let place = place.clone();
            ask.try_ask(&admin, cat::SetCopies { place, rule })
                .await
                .map_err(text)?;
        }
        self.give_lists(&place, kept).await?;
        for (name, value) in &kept.xattrs {
            let xattr = cat::SetXattr {
                place: place.clone(),
                name: name.clone(),
                value: value.clone(),
                mode: cat::SetXattrMode::Any,
            };
            ask.try_ask(&admin, xattr).await.map_err(text)?;
        }
        let mode = match late {
            Some(mode) => set(Some(mode & 0o777), None, None, false),
            None => set(Some(attr.mode), None, None, true),
        };
        ask.try_ask(&admin, mode).await.map_err(text)?;
        Ok(())
    }

    /// Access lists. What a folder above has given by default is taken away.
    async fn give_lists(&self, place: &Place, kept: &Kept) -> Result<(), String> {
        let mut lists = vec![(AclKind::Access, &kept.inode.acl)];
        if kept.kind() == v1::Kind::Directory {
            lists.push((AclKind::Default, &kept.inode.default_acl));
        }
        for (kind, entries) in lists {
            let acl = if entries.is_empty() {
                None
            } else {
                Some(convert::acl_of(entries).map_err(|e| e.to_string())?)
            };
            let place = place.clone();
            let set = cat::SetAcl { place, kind, acl };
            let set = self.inner.try_ask(&Caller::admin(), set).await;
            set.map_err(|e| e.to_string())?;
        }
        Ok(())
    }

    /// Attributes of the folders that were made, and bounds.
    pub(super) async fn finish(&self, made: Vec<Folder>, left: &mut Vec<String>) {
        let Some(snapshot) = self.known() else { return };
        for (path, ino) in made.iter().rev() {
            let Some(kept) = snapshot.inodes.get(ino) else {
                continue;
            };
            if let Err(e) = self.dress(Place::path(path), kept, None).await {
                left.push(format!("attributes of {}: {e}", String::from_utf8_lossy(path)));
            }
        }
        for bound in &snapshot.bounds {
            let of_made = made.iter().find(|(_, ino)| *ino == bound.directory);
            let subject = match (of_made, bound) {
                (Some((path, _)), _) => dir(path),
                (None, b) if !b.user.is_empty() => QuotaSubject::User(b.user.clone()),
                (None, b) if !b.group.is_empty() => QuotaSubject::Group(b.group.clone()),
                // The directory was there: its bounds are those that the catalog knows.
                (None, _) => continue,
            };
            let known = cat::GetUsage {
                subject: subject.clone(),
            };
            let known = self.inner.try_ask(&Caller::admin(), known).await;
            if known.is_ok_and(|u| u.max_files.is_some() || u.max_bytes.is_some()) {
                continue;
            }
            if let Err(e) = self.bound(subject, bound).await {
                left.push(format!("a quota: {e}"));
            }
        }
    }

    async fn bound(&self, subject: QuotaSubject, bound: &v1::SnapshotBound) -> Result<(), String> {
        let set = cat::SetQuota {
            subject,
            max_files: bound.max_files,
            max_bytes: bound.max_bytes,
        };
        let set = self.inner.try_ask(&Caller::admin(), set).await;
        set.map_err(|e| e.to_string())
    }
}

fn dir(path: &[u8]) -> QuotaSubject {
    QuotaSubject::Dir(Place::path(path))
}
