//! The folder of a spool: how it is made, recognised and locked, and its small files of state.
//!
//! ```text
//!   SPOOL            "kuroshio-spool 1" and the spool's random identity; written last when a spool is made
//!   lock             held (flock) by the process that has the spool open
//!   mode             normal, read-only or drain
//!   scrub            number of the pass, and where it stands
//!   objects/xx/ID    objects, in 256 buckets by the low byte of inode + fragment
//!   incoming/ID.part     being written     incoming/ID.resume  what of it is written
//!   incoming/ID.sealed   whole, with its trailer; on its way to the disk and to its name
//!   incoming/slot.N      a place for a small object, made in advance
//!   quarantine/ID.S.N    found damaged at S (seconds since 1970); .why beside it says how
//! ```
//!
//! A small file is written beside, flushed and renamed, so it is always one or the other version.

use crate::error::{StoreError, hex};
use crate::id::ObjectId;
use crate::limits::MAX_STATE_BYTES;
use crate::sys::{self, Folder, Kind};
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;

const FORMAT: &str = "kuroshio-spool 1";
pub(crate) const IDENTITY: &str = "SPOOL";
pub(crate) const LOCK: &str = "lock";
pub(crate) const MODE: &str = "mode";
pub(crate) const SCRUB: &str = "scrub";
pub(crate) const OBJECTS: &str = "objects";
pub(crate) const INCOMING: &str = "incoming";
pub(crate) const QUARANTINE: &str = "quarantine";
/// Ending of a state file that is being written.
const NEW: &str = ".new";

/// Ending of an object that is being written.
pub(crate) const PART: &str = ".part";
/// Ending of the record of what is written of it.
pub(crate) const RESUME: &str = ".resume";
/// Ending of an object that is whole and waits for its name.
pub(crate) const SEALED: &str = ".sealed";
/// Beginning of a place for a small object.
pub(crate) const SLOT: &str = "slot.";
/// Ending of the reason beside a quarantined object.
pub(crate) const WHY: &str = ".why";

/// The open folders of a spool. Who holds it has the spool for itself.
#[derive(Debug)]
pub(crate) struct Spool {
    pub root: Arc<Folder>,
    pub objects: Folder,
    pub incoming: Arc<Folder>,
    pub quarantine: Folder,
    pub id: [u8; 16],
    /// Whether this call made it.
    pub made: bool,
    _lock: File,
}

/// Where an object lies, beneath `objects`.
pub(crate) fn object_path(id: ObjectId) -> String {
    format!("{:02x}/{id}", id.bucket())
}

impl Spool {
    /// Opens the spool in `dir`, or makes one where the folder is missing or empty.
    ///
    /// # Errors
    /// [`StoreError::Locked`], [`StoreError::NotASpool`], [`StoreError::Io`].
    pub(crate) fn open(dir: &Path) -> Result<Self, StoreError> {
        make_missing(dir)?;
        let root = Folder::open(dir)?;
        refuse_foreign(&root)?;
        let lock = root.open_or_create(LOCK)?;
        if !sys::lock(&lock).map_err(|e| root.error("lock", LOCK, e))? {
            return Err(StoreError::Locked(dir.to_owned()));
        }
        // What another process made while this one came for the lock is seen now.
        let identity = read_state(&root, IDENTITY)?;
        let made = identity.is_none();
        let id = match identity {
            Some(text) => parse_identity(dir, &text)?,
            None => make(&root)?,
        };
        Ok(Self {
            objects: root.folder(OBJECTS)?,
            incoming: Arc::new(root.folder(INCOMING)?),
            quarantine: root.folder(QUARANTINE)?,
            root: Arc::new(root),
            id,
            made,
            _lock: lock,
        })
    }

    /// Flushes the names of an object's bucket.
    pub(crate) fn sync_bucket(&self, bucket: u8) -> Result<(), StoreError> {
        self.objects.folder(&format!("{bucket:02x}"))?.sync()
    }
}

/// Makes the folder itself; the one that it lies in must be there.
fn make_missing(dir: &Path) -> Result<(), StoreError> {
    match std::fs::create_dir(dir) {
        Ok(()) => match dir.parent().filter(|p| !p.as_os_str().is_empty()) {
            Some(parent) => Folder::open(parent)?.sync(),
            None => Ok(()),
        },
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(e) => Err(StoreError::io("make the folder", dir, e)),
    }
}

/// Refuses a folder without an identity that holds something: it is somebody else's, or lost its identity.
fn refuse_foreign(root: &Folder) -> Result<(), StoreError> {
    let names = root.names()?;
    if names.iter().any(|(n, _)| n == IDENTITY.as_bytes()) {
        return Ok(());
    }
    let not = |what: String| StoreError::NotASpool {
        path: root.path().to_owned(),
        what,
    };
    for (name, kind) in names {
        let text = String::from_utf8_lossy(&name).into_owned();
        let ours = match text.as_str() {
            LOCK => kind == Kind::File,
            OBJECTS | INCOMING | QUARANTINE => kind == Kind::Folder,
            // What a file system makes by itself in its root.
            "lost+found" => true,
            other => other.strip_suffix(NEW) == Some(IDENTITY),
        };
        if !ours {
            return Err(not(format!(
                "it holds \"{}\" and no {IDENTITY}; give an empty folder, or one that does not exist",
                text.escape_default()
            )));
        }
        if text == OBJECTS && holds_objects(root)? {
            return Err(not(format!(
                "{IDENTITY} is missing although objects are there; write it anew with the two lines \"{FORMAT}\" \
                 and \"id \" with 32 hexadecimal digits"
            )));
        }
    }
    Ok(())
}

fn holds_objects(root: &Folder) -> Result<bool, StoreError> {
    let objects = root.folder(OBJECTS)?;
    for (name, kind) in objects.names()? {
        let name = String::from_utf8_lossy(&name).into_owned();
        if kind != Kind::Folder || !objects.folder(&name)?.names()?.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Makes the folders, flushes them, then writes the identity. Whatever part of it was done before is kept.
fn make(root: &Folder) -> Result<[u8; 16], StoreError> {
    for name in [OBJECTS, INCOMING, QUARANTINE] {
        root.make_folder(name)?;
    }
    let objects = root.folder(OBJECTS)?;
    for bucket in 0..=u8::MAX {
        objects.make_folder(&format!("{bucket:02x}"))?;
    }
    objects.sync()?;
    let mut id = [0u8; 16];
    File::open("/dev/urandom")
        .and_then(|mut f| f.read_exact(&mut id))
        .map_err(|e| StoreError::io("read", "/dev/urandom", e))?;
    write_state(root, IDENTITY, &format!("{FORMAT}\nid {}\n", hex(&id)))?;
    Ok(id)
}

fn parse_identity(dir: &Path, text: &str) -> Result<[u8; 16], StoreError> {
    let not = |what: String| StoreError::NotASpool {
        path: dir.join(IDENTITY),
        what,
    };
    let mut lines = text.lines();
    match lines.next() {
        Some(FORMAT) => {}
        Some(other) => {
            let other: String = other.chars().take(40).collect();
            return Err(not(format!(
                "its first line is \"{}\", but this version reads \"{FORMAT}\"",
                other.escape_default()
            )));
        }
        None => return Err(not("it is empty".to_owned())),
    }
    let id = lines.next().and_then(|l| l.strip_prefix("id ")).and_then(unhex);
    id.ok_or_else(|| not("its second line is not \"id \" with 32 hexadecimal digits".to_owned()))
}

fn unhex(text: &str) -> Option<[u8; 16]> {
    let plain = text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit());
    let value = u128::from_str_radix(text, 16).ok().filter(|_| plain)?;
    Some(value.to_be_bytes())
}

/// Reads a file of state; `None` when there is none.
///
/// # Errors
/// One that is too long or no text, and [`StoreError::Io`].
pub(crate) fn read_state(root: &Folder, name: &str) -> Result<Option<String>, StoreError> {
    let Some(file) = root.read_file(name)? else {
        return Ok(None);
    };
    let mut text = String::new();
    file.take(MAX_STATE_BYTES + 1)
        .read_to_string(&mut text)
        .map_err(|e| root.error("read", name, e))?;
    if text.len() as u64 > MAX_STATE_BYTES {
        let e = io::Error::new(io::ErrorKind::InvalidData, "longer than 4 KiB");
        return Err(root.error("read", name, e));
    }
    Ok(Some(text))
}

/// Writes a file of state: durable when it returns.
pub(crate) fn write_state(root: &Folder, name: &str, text: &str) -> Result<(), StoreError> {
    let new = format!("{name}{NEW}");
    let mut file = root.create(&new)?;
    file.write_all(text.as_bytes())
        .and_then(|()| file.sync_all())
        .map_err(|e| root.error("write", &new, e))?;
    root.rename_over(&new, name)?;
    root.sync()
}

/// Removes what a crash left of files of state.
pub(crate) fn clean_state(root: &Folder) -> Result<(), StoreError> {
    for name in [IDENTITY, MODE, SCRUB] {
        root.unlink(&format!("{name}{NEW}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_once_then_found_and_held_by_one() {
        let dir = tempfile::tempdir().expect("folder");
        let path = dir.path().join("spool");
        let spool = Spool::open(&path).expect("made");
        assert!(spool.made);
        assert!(matches!(Spool::open(&path), Err(StoreError::Locked(_))));
        let id = spool.id;
        drop(spool);
        let spool = Spool::open(&path).expect("found");
        assert_eq!((spool.made, spool.id), (false, id));
    }

    #[test]
    fn an_interrupted_beginning_is_finished() {
        let dir = tempfile::tempdir().expect("folder");
        std::fs::create_dir_all(dir.path().join("objects/7f")).expect("folder");
        std::fs::write(dir.path().join("SPOOL.new"), "kuro").expect("write");
        assert!(Spool::open(dir.path()).expect("made").made);
        assert!(dir.path().join("objects/ff").is_dir());
    }

    #[test]
    fn somebody_elses_folder_is_left_alone() {
        let dir = tempfile::tempdir().expect("folder");
        std::fs::write(dir.path().join("thesis.tex"), "x").expect("write");
        let e = Spool::open(dir.path()).expect_err("foreign");
        assert!(e.to_string().contains("thesis.tex"), "{e}");
        assert_eq!(std::fs::read_dir(dir.path()).expect("read").count(), 1);
    }

    #[test]
    fn a_lost_or_wrong_identity_is_told() {
        let dir = tempfile::tempdir().expect("folder");
        drop(Spool::open(dir.path()).expect("made"));
        let identity = dir.path().join(IDENTITY);
        for (text, word) in [
            ("kuroshio-spool 2\nid 00\n", "kuroshio-spool 2"),
            ("kuroshio-spool 1\nid 00\n", "32 hexadecimal"),
            ("", "empty"),
        ] {
            std::fs::write(&identity, text).expect("write");
            let e = Spool::open(dir.path()).expect_err("wrong");
            assert!(e.to_string().contains(word), "{e}");
        }
        std::fs::remove_file(&identity).expect("remove");
        std::fs::write(dir.path().join("objects/01/x"), "").expect("write");
        let e = Spool::open(dir.path()).expect_err("lost");
        assert!(e.to_string().contains("SPOOL is missing"), "{e}");
    }
}
