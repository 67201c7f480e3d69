//! Objects that were found damaged: moved out of the way, so that a good copy can take their place, and kept,
//! so that a person can look at them.

use crate::error::StoreError;
use crate::id::ObjectId;
use crate::inner::Inner;
use crate::limits::{MAX_WHY_BYTES, in_blocks};
use crate::spool::{WHY, object_path};
use crate::store::Store;
use crate::trace::Step;
use std::io::{Read, Write};
use std::time::SystemTime;

/// A damaged object that was moved out of the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quarantined {
    /// Which object it was.
    pub id: ObjectId,
    /// What was wrong.
    pub why: String,
    /// Its file, bytes.
    pub file_bytes: u64,
    /// When it was moved, seconds since 1970 (UTC).
    pub since_unix_s: u64,
}

/// Most objects of one name that are moved within a second.
const MAX_SAME: u32 = 1000;

/// Reads the name of a quarantined file: `ID.seconds.number`.
pub(crate) fn parse(name: &str) -> Option<(ObjectId, u64)> {
    let (id, rest) = name.split_at_checked(crate::id::ID_TEXT_BYTES)?;
    let (seconds, number) = rest.strip_prefix('.')?.split_once('.')?;
    number.parse::<u32>().ok()?;
    Some((id.parse().ok()?, seconds.parse().ok()?))
}

impl Inner {
    /// Moves an object away, when its file is still the one with this number (`None`: any). Durable when this
    /// returns; `false` when it is gone or another.
    pub(crate) fn quarantine(
        &self,
        id: ObjectId,
        number: Option<u64>,
        why: &str,
    ) -> Result<bool, StoreError> {
        let (objects, quarantine) = (&self.spool.objects, &self.spool.quarantine);
        let path = object_path(id);
        let there = objects.number(&path)?;
        if there.is_none() || number.is_some() && number != there {
            return Ok(false);
        }
        let now_s = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .map_or(0, |d| d.as_secs());
        let mut moved = None;
        for n in 0..MAX_SAME {
            let name = format!("{id}.{now_s}.{n}");
            if objects.rename_new(&path, quarantine, &name)? {
                moved = Some(name);
                break;
            }
        }
        let Some(name) = moved else {
            return Err(StoreError::TooMany("quarantined objects of one name"));
        };
        self.space.change(|c| {
            c.objects = c.objects.saturating_sub(1);
            c.quarantined += 1;
        });
        self.trace(Step::Moved, id);
        let reason = format!("{name}{WHY}");
        let mut cut = why.len().min(MAX_WHY_BYTES);
        while !why.is_char_boundary(cut) {
            cut -= 1;
        }
        let mut file = quarantine.create(&reason)?;
        file.write_all(why.get(..cut).unwrap_or_default().as_bytes())
            .and_then(|()| file.sync_all())
            .map_err(|e| quarantine.error("write", &reason, e))?;
        self.settle_incoming()?;
        quarantine.sync()?;
        self.spool.sync_bucket(id.bucket())?;
        self.trace(Step::Quarantined, id);
        Ok(true)
    }
}

impl Store {
    /// Moves an object to quarantine: durable when this returns.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], [`StoreError::Io`].
    pub fn quarantine(&self, id: ObjectId, why: &str) -> Result<(), StoreError> {
        if self.inner.quarantine(id, None, why)? {
            Ok(())
        } else {
            Err(StoreError::NotFound(id))
        }
    }

    /// What is in quarantine.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn quarantined(&self) -> Result<Vec<Quarantined>, StoreError> {
        let folder = &self.inner.spool.quarantine;
        let mut out = Vec::new();
        for (name, _) in folder.names()? {
            let name = String::from_utf8_lossy(&name).into_owned();
            let Some((id, since_unix_s)) = parse(&name) else {
                continue;
            };
            let Some((file_bytes, _)) = folder.stat(&name)? else {
                continue;
            };
            let mut why = Vec::new();
            if let Some(file) = folder.read_file(&format!("{name}{WHY}"))? {
                file.take(MAX_WHY_BYTES as u64)
                    .read_to_end(&mut why)
                    .map_err(|e| folder.error("read", &name, e))?;
            }
            out.push(Quarantined {
                id,
                why: String::from_utf8_lossy(&why).into_owned(),
                file_bytes,
                since_unix_s,
            });
        }
        Ok(out)
    }

    /// Removes everything in quarantine; gives the bytes that this freed, in blocks.
    ///
    /// # Errors
    /// [`StoreError::Io`]; some of it may be removed.
    pub fn purge_quarantine(&self) -> Result<u64, StoreError> {
        let folder = &self.inner.spool.quarantine;
        let mut freed = 0u64;
        for (name, _) in folder.names()? {
            let name = String::from_utf8_lossy(&name).into_owned();
            let reason_of = name.strip_suffix(WHY);
            if parse(reason_of.unwrap_or(&name)).is_none() {
                continue;
            }
            let len = folder.stat(&name)?.map_or(0, |(len, _)| len);
            if folder.unlink(&name)? && reason_of.is_none() {
                freed = freed.saturating_add(in_blocks(len));
                self.inner.space.change(|c| {
                    c.quarantined = c.quarantined.saturating_sub(1);
                    c.object_bytes = c.object_bytes.saturating_sub(in_blocks(len));
                });
            }
        }
        folder.sync()?;
        Ok(freed)
    }
}
