//! Access control lists as POSIX.1e (withdrawn draft 17) has them, with names instead of numbers.
//!
//! ```text
//!   owner          -> UserObj
//!   named user     -> User & Mask
//!   any group that matches (GroupObj or Group) and grants, & Mask; else refused if one matched
//!   everyone else  -> Other
//! ```

use crate::limits::{MAX_ACL_ENTRIES, MAX_PRINCIPAL};
use crate::{CatalogError, ErrorKind};

/// Which list of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AclKind {
    /// Decides access.
    Access,
    /// Of a directory: what is made in it begins with.
    Default,
}

/// Whom an entry is for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AclTag {
    /// The owner.
    UserObj,
    /// A user.
    User(String),
    /// The owning group.
    GroupObj,
    /// A group.
    Group(String),
    /// Upper bound for all but the owner and others.
    Mask,
    /// Everyone else.
    Other,
}

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AclEntry {
    /// For whom.
    pub tag: AclTag,
    /// `rwx` as 4, 2, 1: 0 to 7.
    pub bits: u8,
}

/// A valid list: one `UserObj`, `GroupObj` and `Other`, at most one `Mask` (needed with named entries), no
/// name twice; kept sorted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl(Vec<AclEntry>);

impl Acl {
    /// A list from entries in any order.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] with what is missing, double or out of range.
    pub fn new(mut entries: Vec<AclEntry>) -> Result<Self, CatalogError> {
        let bad = |what: &str| Err(CatalogError::new(ErrorKind::Invalid, format!("ACL: {what}")));
        if entries.len() > MAX_ACL_ENTRIES {
            return bad("more than 256 entries");
        }
        entries.sort();
        if entries.iter().any(|e| e.bits > 7) {
            return bad("permission bits are 0 to 7");
        }
        if entries.windows(2).any(|w| w[0].tag == w[1].tag) {
            return bad("an entry stands there twice");
        }
        let has = |t: &AclTag| entries.iter().any(|e| e.tag == *t);
        if !has(&AclTag::UserObj) || !has(&AclTag::GroupObj) || !has(&AclTag::Other) {
            return bad("needs one entry each for the owner, the owning group and others");
        }
        let mut named = false;
        for e in &entries {
            if let AclTag::User(n) | AclTag::Group(n) = &e.tag {
                named = true;
                if n.is_empty() || n.len() > MAX_PRINCIPAL {
                    return bad("names are 1 to 128 bytes");
                }
            }
        }
        if named && !has(&AclTag::Mask) {
            return bad("named entries need a mask");
        }
        Ok(Self(entries))
    }

    /// The list that a mode is.
    #[must_use]
    pub fn from_mode(mode: u32) -> Self {
        let bits = |shift: u32| ((mode >> shift) & 7) as u8;
        Self(vec![
            AclEntry { tag: AclTag::UserObj, bits: bits(6) },
            AclEntry { tag: AclTag::GroupObj, bits: bits(3) },
            AclEntry { tag: AclTag::Other, bits: bits(0) },
        ])
    }

    /// The entries, sorted.
    #[must_use]
    pub fn entries(&self) -> &[AclEntry] {
        &self.0
    }

    /// Whether a mode says the same.
    #[must_use]
    pub fn is_mode(&self) -> bool {
        self.0.len() == 3
    }

    pub(crate) fn bits(&self, tag: &AclTag) -> Option<u8> {
        self.0.iter().find(|e| e.tag == *tag).map(|e| e.bits)
    }

    pub(crate) fn set_bits(&mut self, tag: &AclTag, bits: u8) {
        if let Some(e) = self.0.iter_mut().find(|e| e.tag == *tag) {
            e.bits = bits & 7;
        }
    }

    /// Permission bits of the mode that goes with the list: the mask, if there is one, stands for the group.
    #[must_use]
    pub fn mode_bits(&self) -> u32 {
        let b = |t: &AclTag| u32::from(self.bits(t).unwrap_or(0));
        let group = self.bits(&AclTag::Mask).map_or_else(|| b(&AclTag::GroupObj), u32::from);
        b(&AclTag::UserObj) << 6 | group << 3 | b(&AclTag::Other)
    }

    /// Changes the entries that a mode's bits stand for (`chmod` on a file with an ACL).
    pub fn set_mode_bits(&mut self, mode: u32) {
        let bits = |shift: u32| ((mode >> shift) & 7) as u8;
        self.set_bits(&AclTag::UserObj, bits(6));
        let group = if self.bits(&AclTag::Mask).is_some() { AclTag::Mask } else { AclTag::GroupObj };
        self.set_bits(&group, bits(3));
        self.set_bits(&AclTag::Other, bits(0));
    }

    /// Whether `wanted` (4, 2, 1) is granted to a user with groups, on a file of `owner` and `group`.
    #[must_use]
    pub fn grants(&self, wanted: u8, user: &str, groups: &[String], owner: &str, group: &str) -> bool {
        let allows = |bits: u8| bits & wanted == wanted;
        if user == owner {
            return self.bits(&AclTag::UserObj).is_some_and(allows);
        }
        let mask = self.bits(&AclTag::Mask).unwrap_or(7);
        let mut matched = false;
        for e in &self.0 {
            match &e.tag {
                AclTag::User(n) if n == user => return allows(e.bits & mask),
                AclTag::GroupObj if groups.iter().any(|g| g == group) => {
                    matched = true;
                    if allows(e.bits & mask) {
                        return true;
                    }
                }
                AclTag::Group(n) if groups.iter().any(|g| g == n) => {
                    matched = true;
                    if allows(e.bits & mask) {
                        return true;
                    }
                }
                _ => {}
            }
        }
        !matched && self.bits(&AclTag::Other).is_some_and(allows)
    }
}
