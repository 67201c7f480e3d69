//! What is in a spool: every file, and what it says of itself. Enough to rebuild a catalog from spools.

use crate::error::StoreError;
use crate::id::ObjectId;
use crate::inner::resume_name;
use crate::journal;
use crate::limits::chunk_bytes;
use crate::meta::Meta;
use crate::quarantine;
use crate::reader::{Damage, expect_id};
use crate::recover::strip;
use crate::scrub::look;
use crate::spool::{
    IDENTITY, INCOMING, LOCK, MODE, OBJECTS, PART, QUARANTINE, RESUME, SCRUB, SEALED, SLOT, WHY,
};
use crate::store::Store;
use crate::sys::{Folder, Kind};
use crate::trailer::Trailer;
use kuroshio_core::chunk::Digest;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// What a file in the spool is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FsckState {
    /// An object; its trailer is right, and its content when that was read.
    Right,
    /// An object that is not.
    Damaged(Damage),
    /// Being written, or can be gone on with.
    Partial {
        /// Bytes in pieces that are whole.
        written_bytes: u64,
    },
    /// Whole, on its way to its name.
    Sealed,
    /// Found damaged before.
    Quarantined,
    /// Not ours: left alone.
    Foreign,
}

/// One file of the spool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FsckEntry {
    /// Beneath the spool.
    pub path: PathBuf,
    /// Which object; `None` for foreign files.
    pub id: Option<ObjectId>,
    /// Bytes of content, or of the file where the content is not known.
    pub size: u64,
    /// As the trailer says.
    pub digest: Option<Digest>,
    /// As the trailer says.
    pub meta: Option<Meta>,
    /// What it is.
    pub state: FsckState,
}

/// Sums of what was visited.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FsckReport {
    /// Objects that are right.
    pub right: u64,
    /// Objects that are not.
    pub damaged: u64,
    /// Objects that are not finished (being written, resumable, or sealed).
    pub partial: u64,
    /// Files in quarantine.
    pub quarantined: u64,
    /// Files that are not ours.
    pub foreign: u64,
    /// Bytes of content of the objects that are right.
    pub content_bytes: u64,
}

struct Walk<'a> {
    deep: bool,
    visit: &'a mut dyn FnMut(&FsckEntry),
    report: FsckReport,
}

impl Store {
    /// Visits every file of the spool. `deep` reads all content. Objects that come or go meanwhile are visited
    /// or not.
    ///
    /// # Errors
    /// [`StoreError::Io`] when a folder cannot be read; an object that cannot be is damaged.
    pub fn fsck(&self, deep: bool, visit: &mut dyn FnMut(&FsckEntry)) -> Result<FsckReport, StoreError> {
        let spool = &self.inner.spool;
        let mut walk = Walk {
            deep,
            visit,
            report: FsckReport::default(),
        };
        for (name, kind) in spool.root.names()? {
            let text = String::from_utf8_lossy(&name);
            let ours = match kind {
                Kind::File => matches!(&*text, IDENTITY | LOCK | MODE | SCRUB),
                Kind::Folder => matches!(&*text, OBJECTS | INCOMING | QUARANTINE | "lost+found"),
                Kind::Other => false,
            };
            if !ours {
                walk.foreign(&spool.root, "", &name)?;
            }
        }
        walk.objects(&spool.objects)?;
        walk.incoming(&spool.incoming)?;
        walk.quarantine(&spool.quarantine)?;
        Ok(walk.report)
    }
}

impl Walk<'_> {
    fn tell(&mut self, entry: &FsckEntry) {
        let r = &mut self.report;
        match entry.state {
            FsckState::Right => {
                r.right += 1;
                r.content_bytes = r.content_bytes.saturating_add(entry.size);
            }
            FsckState::Damaged(_) => r.damaged += 1,
            FsckState::Partial { .. } | FsckState::Sealed => r.partial += 1,
            FsckState::Quarantined => r.quarantined += 1,
            FsckState::Foreign => r.foreign += 1,
        }
        (self.visit)(entry);
    }

    fn foreign(&mut self, folder: &Folder, beneath: &str, name: &[u8]) -> Result<(), StoreError> {
        let text = String::from_utf8_lossy(name);
        let size = folder.stat(&text)?.map_or(0, |(len, _)| len);
        self.tell(&FsckEntry {
            path: PathBuf::from(beneath).join(OsStr::from_bytes(name)),
            id: None,
            size,
            digest: None,
            meta: None,
            state: FsckState::Foreign,
        });
        Ok(())
    }

    fn objects(&mut self, objects: &Folder) -> Result<(), StoreError> {
        for (bucket_name, kind) in objects.names()? {
            let text = String::from_utf8_lossy(&bucket_name).into_owned();
            let bucket = u8::from_str_radix(&text, 16).ok();
            let Some(bucket) = bucket.filter(|b| kind == Kind::Folder && text == format!("{b:02x}")) else {
                self.foreign(objects, OBJECTS, &bucket_name)?;
                continue;
            };
            let folder = objects.folder(&text)?;
            let beneath = format!("{OBJECTS}/{text}");
            for (name, kind) in folder.names()? {
                let id = ObjectId::from_bytes(&name).filter(|id| id.bucket() == bucket && kind == Kind::File);
                match id {
                    Some(id) => self.object(&folder, &beneath, id)?,
                    None => self.foreign(&folder, &beneath, &name)?,
                }
            }
        }
        Ok(())
    }

    fn object(&mut self, folder: &Folder, beneath: &str, id: ObjectId) -> Result<(), StoreError> {
        let name = id.to_string();
        let Some((len, _)) = folder.stat(&name)? else {
            return Ok(());
        };
        let mut entry = FsckEntry {
            path: PathBuf::from(beneath).join(&name),
            id: Some(id),
            size: len,
            digest: None,
            meta: None,
            state: FsckState::Right,
        };
        let bad = |what: String| {
            FsckState::Damaged(Damage {
                what,
                ranges: Vec::new(),
            })
        };
        match folder.read_file(&name) {
            Ok(None) => return Ok(()),
            Err(e) => entry.state = bad(format!("it cannot be opened: {e}")),
            Ok(Some(file)) => match Trailer::read(&file) {
                Err(e) => entry.state = bad(format!("its trailer cannot be read: {e}")),
                Ok(read) => match read.and_then(|t| expect_id(t, id)) {
                    Err(what) => entry.state = bad(what),
                    Ok(trailer) => {
                        entry.size = trailer.size;
                        entry.digest = Some(trailer.digest);
                        entry.meta = Some(trailer.meta);
                        let damage = self.deep.then(|| look(&file, id, &mut |_| true).flatten());
                        if let Some(damage) = damage.flatten() {
                            entry.state = FsckState::Damaged(damage);
                        }
                    }
                },
            },
        }
        self.tell(&entry);
        Ok(())
    }

    fn incoming(&mut self, incoming: &Folder) -> Result<(), StoreError> {
        for (name, kind) in incoming.names()? {
            let file = kind == Kind::File;
            if let Some(id) = strip(&name, PART).filter(|_| file) {
                self.unfinished(incoming, &name, id, true)?;
            } else if let Some(id) = strip(&name, SEALED).filter(|_| file) {
                self.unfinished(incoming, &name, id, false)?;
            } else if !file || (strip(&name, RESUME).is_none() && !name.starts_with(SLOT.as_bytes())) {
                self.foreign(incoming, INCOMING, &name)?;
            }
        }
        Ok(())
    }

    fn unfinished(
        &mut self,
        folder: &Folder,
        name: &[u8],
        id: ObjectId,
        part: bool,
    ) -> Result<(), StoreError> {
        let Some((size, _)) = folder.stat(&String::from_utf8_lossy(name))? else {
            return Ok(());
        };
        let mut state = FsckState::Sealed;
        let mut meta = None;
        if part {
            let mut written_bytes = 0;
            let resume = resume_name(id);
            if let Some(mut file) = folder.read_file(&resume)? {
                let left = journal::read(id, &mut file).map_err(|e| folder.error("read", &resume, e))?;
                if let Some((left, _)) = left {
                    let piece = chunk_bytes(left.size.unwrap_or(0));
                    written_bytes = (left.pieces.len() as u64).saturating_mul(piece);
                    meta = Some(left.meta);
                }
            }
            state = FsckState::Partial { written_bytes };
        }
        self.tell(&FsckEntry {
            path: PathBuf::from(INCOMING).join(OsStr::from_bytes(name)),
            id: Some(id),
            size,
            digest: None,
            meta,
            state,
        });
        Ok(())
    }

    fn quarantine(&mut self, folder: &Folder) -> Result<(), StoreError> {
        for (name, kind) in folder.names()? {
            let text = String::from_utf8_lossy(&name).into_owned();
            let reason_of = text.strip_suffix(WHY);
            let parsed = quarantine::parse(reason_of.unwrap_or(&text));
            let Some((id, _)) = parsed.filter(|_| kind == Kind::File) else {
                self.foreign(folder, QUARANTINE, &name)?;
                continue;
            };
            if reason_of.is_some() {
                continue;
            }
            let Some((size, _)) = folder.stat(&text)? else {
                continue;
            };
            self.tell(&FsckEntry {
                path: PathBuf::from(QUARANTINE).join(&text),
                id: Some(id),
                size,
                digest: None,
                meta: None,
                state: FsckState::Quarantined,
            });
        }
        Ok(())
    }
}
