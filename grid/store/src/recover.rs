//! What is done when a spool is opened: finish what was whole, keep what can be gone on with, remove the rest.
//!
//! | found in `incoming` | done |
//! |---|---|
//! | `slot.N` with a trailer | becomes `ID.sealed` |
//! | other `slot.N` | removed: nothing was in it |
//! | `ID.sealed`, digest right, place free | flushed, then named: it may have been acknowledged |
//! | `ID.sealed`, digest right, object there with the same content | removed |
//! | `ID.sealed`, anything else | removed: its flush had not ended, so nobody was told of it |
//! | `ID.part` with a valid `ID.resume`, not too old | kept |
//! | other `ID.part`, `ID.resume` | removed |
//! | anything else | left alone; `fsck` tells of it |
//!
//! Then the objects are counted.

use crate::error::StoreError;
use crate::id::ObjectId;
use crate::inner::{Inner, part_name, resume_name, sealed_name};
use crate::journal;
use crate::limits::in_blocks;
use crate::reader::{compare, expect_id};
use crate::slots;
use crate::spool::{PART, RESUME, SEALED, SLOT, WHY, object_path};
use crate::sys::Kind;
use crate::trailer::Trailer;
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::time::SystemTime;

/// What recovery did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// The spool was made new.
    pub made: bool,
    /// Objects that were whole and got their names.
    pub published: Vec<ObjectId>,
    /// Files of objects that were not, removed.
    pub discarded: u64,
    /// Objects that can be gone on with.
    pub partials: u64,
}

/// An object's name without its ending.
pub(crate) fn strip(name: &[u8], ending: &str) -> Option<ObjectId> {
    ObjectId::from_bytes(name.strip_suffix(ending.as_bytes())?)
}

/// Repairs the spool and counts what is in it.
pub(crate) fn run(inner: &Inner) -> Result<Recovered, StoreError> {
    let mut done = Recovered {
        made: inner.spool.made,
        ..Recovered::default()
    };
    let incoming = &inner.spool.incoming;
    for (name, _) in incoming.names()?.iter().filter(|(_, kind)| *kind == Kind::File) {
        let text = std::str::from_utf8(name).unwrap_or_default();
        if text.starts_with(SLOT) {
            done.discarded += u64::from(!take_up(inner, text)?);
        }
    }
    let mut parts = BTreeSet::new();
    let mut resumes = BTreeSet::new();
    let names = incoming.names()?;
    for (name, _) in names.iter().filter(|(_, kind)| *kind == Kind::File) {
        if let Some(id) = strip(name, SEALED) {
            if finish(inner, id)? {
                done.published.push(id);
            } else {
                done.discarded += 1;
            }
        } else if let Some(id) = strip(name, PART) {
            parts.insert(id);
        } else if let Some(id) = strip(name, RESUME) {
            resumes.insert(id);
        }
    }
    for &id in parts.union(&resumes) {
        if parts.contains(&id) && resumes.contains(&id) && can_be_resumed(inner, id)? {
            inner.partials().insert(id);
            inner.note_numbers(id);
            done.partials += 1;
        } else {
            inner.remove_unfinished(id)?;
            done.discarded += 1;
        }
    }
    if !done.published.is_empty() || done.discarded > 0 {
        let buckets: BTreeSet<u8> = done.published.iter().map(|id| id.bucket()).collect();
        for bucket in buckets {
            inner.spool.sync_bucket(bucket)?;
        }
        incoming.sync()?;
    }
    count(inner)?;
    Ok(done)
}

/// Makes the object in a slot a sealed one; `false` when there was none, and the slot is gone.
fn take_up(inner: &Inner, name: &str) -> Result<bool, StoreError> {
    let incoming = &inner.spool.incoming;
    let Some(file) = incoming.write_file(name)? else {
        return Ok(false);
    };
    let left = slots::left_in(&file).map_err(|e| incoming.error("read", name, e))?;
    if let Some(id) = left
        && incoming.rename_new(name, incoming, &sealed_name(id))?
    {
        return Ok(true);
    }
    incoming.unlink(name)?;
    // An empty one was nobody's.
    Ok(left.is_none())
}

/// Gives a sealed object its name when it is right; otherwise removes it and says `false`.
fn finish(inner: &Inner, id: ObjectId) -> Result<bool, StoreError> {
    let incoming = &inner.spool.incoming;
    let name = sealed_name(id);
    let Some(file) = incoming.read_file(&name)? else {
        return Ok(false);
    };
    let right = is_right(&file, id).map_err(|e| incoming.error("read", &name, e))?;
    if right {
        // It may be in memory only: a killed process leaves it so.
        file.sync_all().map_err(|e| incoming.error("flush", &name, e))?;
        if incoming.rename_new(&name, &inner.spool.objects, &object_path(id))? {
            return Ok(true);
        }
    }
    incoming.unlink(&name)?;
    Ok(false)
}

/// Whether a file holds a whole object of this name. Bytes that cannot be read are not whole.
fn is_right(file: &File, id: ObjectId) -> io::Result<bool> {
    let Ok(trailer) = Trailer::read(file)?.and_then(|t| expect_id(t, id)) else {
        return Ok(false);
    };
    let found = compare(file, &trailer, 0..trailer.size, &mut |_| true)?;
    Ok(matches!(found, Some(None)))
}

fn can_be_resumed(inner: &Inner, id: ObjectId) -> Result<bool, StoreError> {
    let incoming = &inner.spool.incoming;
    let Some((_, changed_unix_s)) = incoming.stat(&part_name(id))? else {
        return Ok(false);
    };
    if inner.spool.objects.stat(&object_path(id))?.is_some() {
        return Ok(false);
    }
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |d| d.as_secs());
    let age_s = now.saturating_sub(u64::try_from(changed_unix_s).unwrap_or(0));
    if age_s > inner.limits.partial_keep.as_secs() {
        return Ok(false);
    }
    let name = resume_name(id);
    let Some(mut file) = incoming.read_file(&name)? else {
        return Ok(false);
    };
    let left = journal::read(id, &mut file).map_err(|e| incoming.error("read", &name, e))?;
    Ok(left.is_some())
}

/// Counts objects and quarantined files, and their bytes.
fn count(inner: &Inner) -> Result<(), StoreError> {
    let (mut objects, mut bytes, mut quarantined) = (0u64, 0u64, 0u64);
    for bucket in 0..=u8::MAX {
        let folder = inner.spool.objects.folder(&format!("{bucket:02x}"))?;
        for (name, _) in folder.names()? {
            let Some(id) = ObjectId::from_bytes(&name) else {
                continue;
            };
            if let Some((len, _)) = folder.stat(&id.to_string())? {
                inner.note_numbers(id);
                objects += 1;
                bytes = bytes.saturating_add(in_blocks(len));
            }
        }
    }
    for (name, _) in inner.spool.quarantine.names()? {
        let text = String::from_utf8_lossy(&name);
        if !text.ends_with(WHY)
            && let Some((len, _)) = inner.spool.quarantine.stat(&text)?
        {
            quarantined += 1;
            bytes = bytes.saturating_add(in_blocks(len));
        }
    }
    inner.space.change(|c| {
        c.objects = objects;
        c.object_bytes = bytes;
        c.quarantined = quarantined;
    });
    Ok(())
}
