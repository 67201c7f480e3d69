//! What stands beside an object's content, and its bytes in trailers and resume files.

use crate::error::StoreError;
use crate::limits::{MAX_HINT_BYTES, MAX_OWNER_BYTES};

/// What a catalog would need if it had to be rebuilt from spools. All of it is as it was when the object was
/// written: names and owners that changed since are better known elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// Name of the owner, at most 255 bytes.
    pub owner: String,
    /// Name of the group, at most 255 bytes.
    pub group: String,
    /// Path in the namespace, at most 4,096 bytes.
    pub name_hint: Vec<u8>,
    /// Permission bits.
    pub mode: u32,
    /// How many fragments the file has; 0: not known.
    pub fragments: u32,
    /// Time of the content, nanoseconds since 1970 (UTC).
    pub modified_unix_ns: i64,
}

/// Bytes of the fixed part of a [`Meta`].
pub(crate) const META_BYTES: usize = 24;

impl Meta {
    /// Refuses what has no room in a trailer.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        for (what, len, most) in [
            ("owner", self.owner.len(), MAX_OWNER_BYTES),
            ("group", self.group.len(), MAX_OWNER_BYTES),
            ("path", self.name_hint.len(), MAX_HINT_BYTES),
        ] {
            if len > most {
                let text = format!("the {what} of an object has at most {most} bytes, not {len}");
                return Err(StoreError::Invalid(text));
            }
        }
        Ok(())
    }

    /// Bytes of the names.
    pub(crate) fn names_len(&self) -> usize {
        self.owner.len() + self.group.len() + self.name_hint.len()
    }

    /// Appends the names: owner, group, path.
    pub(crate) fn put_names(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.owner.as_bytes());
        out.extend_from_slice(self.group.as_bytes());
        out.extend_from_slice(&self.name_hint);
    }

    /// Appends the fixed part: time i64, mode u32, fragments u32, three lengths u16, zero u16.
    pub(crate) fn put_fixed(&self, out: &mut Vec<u8>) {
        let len = |n: usize| u16::try_from(n).unwrap_or(u16::MAX).to_le_bytes();
        out.extend_from_slice(&self.modified_unix_ns.to_le_bytes());
        out.extend_from_slice(&self.mode.to_le_bytes());
        out.extend_from_slice(&self.fragments.to_le_bytes());
        out.extend_from_slice(&len(self.owner.len()));
        out.extend_from_slice(&len(self.group.len()));
        out.extend_from_slice(&len(self.name_hint.len()));
        out.extend_from_slice(&[0; 2]);
    }
}

/// The fixed part, read: what the names need.
pub(crate) struct Fixed {
    modified_unix_ns: i64,
    mode: u32,
    fragments: u32,
    lens: [usize; 3],
}

impl Fixed {
    /// Reads the fixed part; `None` for lengths beyond the limits.
    pub(crate) fn read(bytes: &mut Bytes<'_>) -> Option<Self> {
        let modified_unix_ns = i64::from_le_bytes(bytes.take()?);
        let mode = bytes.u32()?;
        let fragments = bytes.u32()?;
        let mut lens = [0usize; 3];
        for (len, most) in lens
            .iter_mut()
            .zip([MAX_OWNER_BYTES, MAX_OWNER_BYTES, MAX_HINT_BYTES])
        {
            *len = usize::from(u16::from_le_bytes(bytes.take()?));
            if *len > most {
                return None;
            }
        }
        let zero: [u8; 2] = bytes.take()?;
        (zero == [0; 2]).then_some(Self {
            modified_unix_ns,
            mode,
            fragments,
            lens,
        })
    }

    /// Bytes of the names.
    pub(crate) fn names_len(&self) -> usize {
        self.lens.iter().sum()
    }

    /// With the names from their bytes; `None` for fewer bytes or an owner that is no UTF-8.
    pub(crate) fn with_names(self, names: &mut Bytes<'_>) -> Option<Meta> {
        let [owner, group, hint] = self.lens;
        Some(Meta {
            owner: String::from_utf8(names.slice(owner)?.to_vec()).ok()?,
            group: String::from_utf8(names.slice(group)?.to_vec()).ok()?,
            name_hint: names.slice(hint)?.to_vec(),
            mode: self.mode,
            fragments: self.fragments,
            modified_unix_ns: self.modified_unix_ns,
        })
    }
}

/// Bytes that are read from the front and may end too soon.
pub(crate) struct Bytes<'a>(pub(crate) &'a [u8]);

impl<'a> Bytes<'a> {
    pub(crate) fn slice(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(len)?;
        self.0 = tail;
        Some(head)
    }

    pub(crate) fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.slice(N)?.try_into().ok()
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take()?))
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take()?))
    }
}
