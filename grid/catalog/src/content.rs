//! Contents, fragments, replicas, and how many copies are wanted.

use crate::limits::{MAX_COPIES, MAX_PRINCIPAL, MAX_RULE_SITES};
use crate::{Attr, CatalogError, ErrorKind, Generation, Handle, Ino, ObjectId};
use std::fmt;
use std::str::FromStr;

/// BLAKE3 of a fragment's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

/// How many copies of each fragment are wanted. Text: `2`, or `tokyo=1,tsukuba=2`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CopyRule {
    /// So many, anywhere: 1 to [`MAX_COPIES`].
    Count(u32),
    /// So many on each site, sorted by site; 1 to [`MAX_COPIES`] in sum.
    PerSite(Vec<(String, u32)>),
}

impl CopyRule {
    /// Copies wanted in sum.
    #[must_use]
    pub fn total(&self) -> u32 {
        match self {
            Self::Count(n) => *n,
            Self::PerSite(sites) => sites.iter().map(|(_, n)| n).sum(),
        }
    }

    /// Copies that are missing, given the sites of the valid ones.
    #[must_use]
    pub fn missing(&self, sites: &[&str]) -> u32 {
        let short = |have: usize, want: u32| want.saturating_sub(u32::try_from(have).unwrap_or(u32::MAX));
        match self {
            Self::Count(n) => short(sites.len(), *n),
            Self::PerSite(rule) => {
                let at = |name: &str| sites.iter().filter(|s| **s == name).count();
                rule.iter().map(|(site, n)| short(at(site), *n)).sum()
            }
        }
    }

    /// Copies beyond the rule, given the sites of the valid ones.
    #[must_use]
    pub fn surplus(&self, sites: &[&str]) -> u32 {
        let have = u32::try_from(sites.len()).unwrap_or(u32::MAX);
        // What is not missing of the total is met; every other copy is beyond it.
        have.saturating_sub(self.total().saturating_sub(self.missing(sites)))
    }
}

impl fmt::Display for CopyRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(n) => n.fmt(f),
            Self::PerSite(sites) => {
                for (i, (site, n)) in sites.iter().enumerate() {
                    let comma = if i == 0 { "" } else { "," };
                    write!(f, "{comma}{site}={n}")?;
                }
                Ok(())
            }
        }
    }
}

impl FromStr for CopyRule {
    type Err = CatalogError;

    fn from_str(text: &str) -> Result<Self, CatalogError> {
        let bad = || {
            CatalogError::new(
                ErrorKind::Invalid,
                format!("copies '{}': valid are 1 to {MAX_COPIES}, or SITE=NUMBER,... with that sum", text.escape_debug()),
            )
        };
        let number = |t: &str| t.parse::<u32>().ok().filter(|n| (1..=MAX_COPIES).contains(n)).ok_or_else(bad);
        if !text.contains('=') {
            return number(text).map(Self::Count);
        }
        let mut sites = Vec::new();
        for part in text.split(',') {
            let (site, n) = part.split_once('=').ok_or_else(bad)?;
            if !crate::id::is_principal(site) {
                return Err(bad());
            }
            sites.push((site.to_owned(), number(n)?));
        }
        sites.sort();
        let double = sites.windows(2).any(|w| w[0].0 == w[1].0);
        let rule = Self::PerSite(sites.clone());
        if double || sites.len() > MAX_RULE_SITES || rule.total() > MAX_COPIES {
            return Err(bad());
        }
        debug_assert!(sites.iter().all(|(s, _)| s.len() <= MAX_PRINCIPAL));
        Ok(rule)
    }
}

/// What is known of one copy of a fragment on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReplicaState {
    /// Being written; not to be read.
    Writing,
    /// Complete, durable, of the fragment's digest.
    Valid,
    /// Not of the digest any more (scrub): not to be read, to be removed or repaired.
    Stale,
    /// On a node that is lost with its disk.
    Lost,
    /// To be deleted by its node, which then says [`crate::DropReplica`].
    Removing,
}

/// One copy of a fragment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replica {
    /// Node that holds it.
    pub node: String,
    /// See [`ReplicaState`].
    pub state: ReplicaState,
}

/// One fragment of a content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// What nodes know it as; its `fragment` is the index in the file. Differs from the content's
    /// generation if it was kept from an earlier content ([`crate::Commit::keep`]).
    pub object: ObjectId,
    /// Payload bytes.
    pub size: u64,
    /// BLAKE3 of its bytes.
    pub digest: Digest,
    /// Where copies are, by node name.
    pub replicas: Vec<Replica>,
}

/// A fragment that was stored and is to be published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewFragment {
    /// Index in the file, from 0.
    pub index: u32,
    /// Payload bytes.
    pub size: u64,
    /// BLAKE3 of its bytes.
    pub digest: Digest,
    /// Nodes that hold it durably and verified; at least one, unless the size is 0.
    pub nodes: Vec<String>,
}

/// A content being written. Not durable itself: after a restart of the service it may still be committed,
/// as long as its inode is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draft {
    /// Inode that will have it.
    pub ino: Ino,
    /// Identity of the new content.
    pub generation: Generation,
    /// Keeps the inode while it is open, also when unlinked; give it back by [`crate::Release`].
    pub handle: Handle,
    /// The content published when the draft was made.
    pub base: Generation,
}

/// A content that is open for reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenFile {
    /// Keeps the content until [`crate::Release`].
    pub handle: Handle,
    /// Attributes when it was opened.
    pub attr: Attr,
    /// All fragments by index, with their replicas.
    pub fragments: Vec<Fragment>,
}

/// A content and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContentLayout {
    /// Attributes.
    pub attr: Attr,
    /// All fragments by index, with their replicas.
    pub fragments: Vec<Fragment>,
}

/// Which fragments [`crate::ListOffCopies`] lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyBalance {
    /// With fewer valid replicas than wanted.
    Short,
    /// With more.
    Surplus,
}

/// A published fragment whose valid replicas are not as many, or not where, its rule wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffCopies {
    /// The fragment, with all replicas.
    pub fragment: Fragment,
    /// What is wanted.
    pub rule: CopyRule,
    /// Copies missing.
    pub missing: u32,
    /// Copies beyond the rule.
    pub surplus: u32,
}
