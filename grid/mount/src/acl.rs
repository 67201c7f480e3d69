//! Access lists as the kernel has them in `system.posix_acl_access` and `system.posix_acl_default`.
//!
//! ```text
//!   version u32 = 2 | (tag u16, permissions u16, id u32)*        little endian; linux/posix_acl_xattr.h
//! ```

use fuser::Errno;
use kuroshio_client::v1::{AclEntry, AclTag};

use crate::ids::Ids;

/// Attribute with the access list.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
/// Attribute with a directory's list for what is made in it.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const HEADER_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;
/// Most entries: the catalog's limit.
const MAX_ENTRIES: usize = 256;
/// Id of an entry without one.
const NO_ID: u32 = u32::MAX;

const TAGS: [(u16, AclTag); 6] = [
    (0x01, AclTag::Owner),
    (0x02, AclTag::User),
    (0x04, AclTag::GroupOwner),
    (0x08, AclTag::Group),
    (0x10, AclTag::Mask),
    (0x20, AclTag::Other),
];

/// The kernel's form of a list.
pub fn to_bytes(entries: &[AclEntry], ids: &Ids) -> Vec<u8> {
    let mut out = VERSION.to_le_bytes().to_vec();
    for e in entries {
        let tag = TAGS
            .iter()
            .find(|(_, tag)| *tag == e.tag())
            .map_or(0, |(n, _)| *n);
        let id = match e.tag() {
            AclTag::User => ids.uid(&e.name),
            AclTag::Group => ids.gid(&e.name),
            _ => NO_ID,
        };
        out.extend_from_slice(&tag.to_le_bytes());
        out.extend_from_slice(&(e.bits as u16).to_le_bytes());
        out.extend_from_slice(&id.to_le_bytes());
    }
    out
}

/// A list from the kernel's form; an empty one removes it.
pub fn from_bytes(bytes: &[u8], ids: &Ids) -> Result<Vec<AclEntry>, Errno> {
    let (version, rest) = bytes.split_first_chunk::<HEADER_BYTES>().ok_or(Errno::EINVAL)?;
    if u32::from_le_bytes(*version) != VERSION {
        return Err(Errno::EOPNOTSUPP);
    }
    if rest.len() % ENTRY_BYTES != 0 || rest.len() / ENTRY_BYTES > MAX_ENTRIES {
        return Err(Errno::EINVAL);
    }
    rest.chunks_exact(ENTRY_BYTES).map(|e| entry(e, ids)).collect()
}

fn entry(bytes: &[u8], ids: &Ids) -> Result<AclEntry, Errno> {
    let Ok([t0, t1, p0, p1, i0, i1, i2, i3]) = <[u8; ENTRY_BYTES]>::try_from(bytes) else {
        return Err(Errno::EINVAL);
    };
    let number = u16::from_le_bytes([t0, t1]);
    let found = TAGS.iter().find(|(n, _)| *n == number);
    let (_, tag) = found.ok_or(Errno::EINVAL)?;
    let id = u32::from_le_bytes([i0, i1, i2, i3]);
    let name = match tag {
        AclTag::User => ids.user(id),
        AclTag::Group => ids.group(id),
        _ => String::new(),
    };
    Ok(AclEntry {
        tag: (*tag).into(),
        name,
        bits: u16::from_le_bytes([p0, p1]).into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Whose;

    #[test]
    fn lists_come_back_and_broken_ones_are_refused() {
        let ids = Ids::new(Whose::All, "admin".into(), "admin".into());
        let entry = |tag: AclTag, name: &str, bits| AclEntry {
            tag: tag.into(),
            name: name.into(),
            bits,
        };
        let list = vec![
            entry(AclTag::Owner, "", 7),
            entry(AclTag::User, "4000000123", 5),
            entry(AclTag::GroupOwner, "", 5),
            entry(AclTag::Group, "4000000124", 4),
            entry(AclTag::Mask, "", 5),
            entry(AclTag::Other, "", 0),
        ];
        let bytes = to_bytes(&list, &ids);
        assert_eq!(bytes.len(), 4 + 6 * 8);
        assert_eq!(from_bytes(&bytes, &ids).ok(), Some(list));
        for bad in [
            &[][..],
            &[2, 0, 0],
            &[1, 0, 0, 0],
            &[2, 0, 0, 0, 1],
            &bytes[..11],
            &[2, 0, 0, 0, 3, 0, 7, 0, 0, 0, 0, 0],
        ] {
            assert!(from_bytes(bad, &ids).is_err(), "{bad:?}");
        }
    }
}
