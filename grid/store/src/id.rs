//! Names of objects.
//!
//! ```text
//!   00000000000000a1.00000003.00000000
//!   inode (16 hex)   generation fragment (8 hex each)
//! ```
//!
//! The text is the file's name in the spool, so it has exactly one form: lower case, all digits there.

use std::fmt;
use std::str::FromStr;

/// Length of the text of an [`ObjectId`], bytes.
pub const ID_TEXT_BYTES: usize = 16 + 1 + 8 + 1 + 8;

/// The content of one fragment of a file. A new content of a file is a new generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId {
    /// The file's number in the namespace.
    pub inode: u64,
    /// Which content of it.
    pub generation: u32,
    /// Which fragment, from 0; an ordinary file has the one.
    pub fragment: u32,
}

/// Text that is not the name of an object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{}\" is not an object's name: 16, 8 and 8 lower-case hexadecimal digits with dots between are", .0.escape_default())]
pub struct BadId(String);

impl ObjectId {
    /// The bucket that it lies in: consecutive inodes, and the fragments of one file, are spread evenly.
    #[must_use]
    pub fn bucket(self) -> u8 {
        let [low, ..] = self.inode.wrapping_add(u64::from(self.fragment)).to_le_bytes();
        low
    }

    /// Reads the name of a file in the spool.
    pub(crate) fn from_bytes(name: &[u8]) -> Option<Self> {
        std::str::from_utf8(name).ok()?.parse().ok()
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:016x}.{:08x}.{:08x}",
            self.inode, self.generation, self.fragment
        )
    }
}

impl FromStr for ObjectId {
    type Err = BadId;

    fn from_str(text: &str) -> Result<Self, BadId> {
        let bad = || BadId(text.chars().take(64).collect());
        let digits = |s: &str| s.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        if text.len() != ID_TEXT_BYTES {
            return Err(bad());
        }
        let parts: Vec<&str> = text.split('.').collect();
        let [inode, generation, fragment] = parts.as_slice() else {
            return Err(bad());
        };
        let right_lengths = (inode.len(), generation.len(), fragment.len()) == (16, 8, 8);
        if !right_lengths || ![inode, generation, fragment].iter().all(|s| digits(s)) {
            return Err(bad());
        }
        Ok(Self {
            inode: u64::from_str_radix(inode, 16).map_err(|_| bad())?,
            generation: u32::from_str_radix(generation, 16).map_err(|_| bad())?,
            fragment: u32::from_str_radix(fragment, 16).map_err(|_| bad())?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn text_and_back(inode: u64, generation: u32, fragment: u32) {
            let id = ObjectId { inode, generation, fragment };
            prop_assert_eq!(id.to_string().len(), ID_TEXT_BYTES);
            prop_assert_eq!(id.to_string().parse(), Ok(id));
        }

        #[test]
        fn any_text_is_an_id_or_refused(text in "[0-9a-fA-F.+ ]{30,36}") {
            if let Ok(id) = text.parse::<ObjectId>() {
                prop_assert_eq!(id.to_string(), text);
            }
        }
    }

    #[test]
    fn one_form_only() {
        let good = "00000000000000a1.00000003.00000000";
        assert_eq!(
            good.parse(),
            Ok(ObjectId {
                inode: 0xa1,
                generation: 3,
                fragment: 0
            })
        );
        for bad in [
            "00000000000000A1.00000003.00000000",
            "+0000000000000a1.00000003.00000000",
            "0000000000000a1.000000003.00000000",
            "00000000000000a1.00000003.0000000",
            "00000000000000a1/00000003.00000000",
            "",
        ] {
            assert!(bad.parse::<ObjectId>().is_err(), "{bad}");
        }
    }
}
