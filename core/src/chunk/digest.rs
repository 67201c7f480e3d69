//! The digest of a file as a tree: BLAKE3 chaining values of pieces, merged in any order.
//!
//! # What a piece is
//!
//! BLAKE3 (paper, section 2.1) hashes leaves of 1024 bytes and joins them in a binary tree whose left
//! subtrees hold powers of two of leaves. So the bytes
//!
//! ```text
//!   [offset, min(offset + size, file_len))   size a power of two >= 1024, offset a multiple of size
//! ```
//!
//! are exactly the leaves under one node, and the node's *chaining value* can be computed from these bytes
//! and `offset` alone. Such a range is a **piece**. Pieces of differing sizes merge: two siblings give
//! their parent.
//!
//! # What is sent for a piece
//!
//! The node at the top is finalised differently (the ROOT flag), so one rule decides what stands in a frame:
//!
//! - a piece that covers the whole file (`offset == 0 && len == file_len`): the **root**, which is
//!   `blake3::hash` of the file;
//! - any other piece: the chaining value of its subtree;
//! - an empty file has no piece; its digest is [`EMPTY_ROOT`].
//!
//! [`piece_digest`] and [`SubtreeHasher`] apply the rule; [`DigestTree::insert`] expects it.

use super::ranges::RangeSet;
use alloc::collections::BTreeMap;
use blake3::Hasher;
use blake3::hazmat::{HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};
use core::fmt;

/// Bytes of one BLAKE3 leaf ("chunk" in the BLAKE3 paper): the least piece that is not a file's last.
pub const LEAF_BYTES: u64 = 1024;

/// Nodes that one [`DigestTree`] holds at most (about 64 bytes each). Pieces that arrive in order leave
/// O(log n) nodes; only isolated pieces add up.
pub const MAX_TREE_NODES: usize = 1 << 20;

/// A chaining value or a root; which of the two, the module's rule says.
pub type Digest = [u8; 32];

/// `blake3::hash` of the empty input: the digest of an empty file.
pub const EMPTY_ROOT: Digest = [
    0xaf, 0x13, 0x49, 0xb9, 0xf5, 0xf9, 0xa1, 0xa6, 0xa0, 0x40, 0x4d, 0xea, 0x36, 0xdc, 0xc9, 0x49, 0x9b,
    0xcb, 0x25, 0xc9, 0xad, 0xc1, 0x12, 0xb7, 0xcc, 0x9a, 0x93, 0xca, 0xe4, 0x1f, 0x32, 0x62,
];

/// Why a piece or its digest was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DigestError {
    /// The range is not a piece of a file of this length (see the module's definition).
    NotAPiece {
        /// First byte.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// Length of the file in bytes.
        file_len: u64,
    },
    /// More or fewer bytes were given to a [`SubtreeHasher`] than its piece has.
    WrongLength {
        /// Bytes of the piece.
        expected: u64,
        /// Bytes given so far.
        given: u64,
    },
    /// The same piece was inserted before with another digest.
    Conflict {
        /// First byte of the piece.
        offset: u64,
    },
    /// The tree would hold more than [`MAX_TREE_NODES`] nodes.
    TooManyNodes,
}

impl fmt::Display for DigestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAPiece {
                offset,
                len,
                file_len,
            } => write!(
                f,
                "{len} bytes at offset {offset} of a file of {file_len} bytes are not a digest subtree: \
                 a length must be a power of two from 1024 bytes and divide the offset (only the last piece \
                 of a file may be shorter)"
            ),
            Self::WrongLength { expected, given } => {
                write!(f, "digest of a piece of {expected} bytes was fed {given} bytes")
            }
            Self::Conflict { offset } => write!(f, "two digests for the piece at offset {offset}"),
            Self::TooManyNodes => write!(f, "more than {MAX_TREE_NODES} isolated pieces in one file"),
        }
    }
}

impl core::error::Error for DigestError {}

/// Whether `[offset, offset + len)` is a piece of a file of `file_len` bytes.
fn check_piece(offset: u64, len: u64, file_len: u64) -> Result<(), DigestError> {
    let err = DigestError::NotAPiece {
        offset,
        len,
        file_len,
    };
    let end = offset.checked_add(len).ok_or(err)?;
    if len == 0 || end > file_len {
        return Err(err);
    }
    if offset == 0 && end == file_len {
        return Ok(());
    }
    if !offset.is_multiple_of(LEAF_BYTES) {
        return Err(err);
    }
    // The largest block that may start here: the lowest set bit of the offset, any size at 0.
    let align = if offset == 0 {
        u64::MAX
    } else {
        offset & offset.wrapping_neg()
    };
    let is_block = len.is_power_of_two() && len >= LEAF_BYTES;
    if len <= align && (is_block || end == file_len) {
        Ok(())
    } else {
        Err(err)
    }
}

/// Chaining value of the subtree over `input` that begins at byte `offset` of its file. For a piece that is
/// the whole file use [`piece_digest`].
///
/// # Errors
/// [`DigestError::NotAPiece`] when `input` at `offset` cannot be one subtree of any file.
pub fn subtree_cv(input: &[u8], offset: u64) -> Result<Digest, DigestError> {
    let len = input.len() as u64;
    // Any piece that is not a block is a last one: check it as the end of the shortest file that has it.
    let end = offset.checked_add(len).ok_or(DigestError::NotAPiece {
        offset,
        len,
        file_len: u64::MAX,
    })?;
    check_piece(offset, len, end)?;
    let mut hasher = Hasher::new();
    hasher.set_input_offset(offset);
    hasher.update(input);
    Ok(hasher.finalize_non_root())
}

/// What is sent for the piece `input` at `offset` of a file of `file_len` bytes: root or chaining value.
///
/// # Errors
/// [`DigestError::NotAPiece`].
pub fn piece_digest(file_len: u64, offset: u64, input: &[u8]) -> Result<Digest, DigestError> {
    let mut hasher = SubtreeHasher::new(file_len, offset, input.len() as u64)?;
    hasher.update(input)?;
    hasher.finish()
}

/// The digest of one piece, computed from its bytes in order, in parts of any size. Parts of 128 KiB or
/// more, themselves powers of two, keep every SIMD lane of BLAKE3 busy.
#[derive(Clone, Debug)]
pub struct SubtreeHasher {
    hasher: Hasher,
    expected: u64,
    given: u64,
    whole: bool,
}

impl SubtreeHasher {
    /// Starts the piece `[offset, offset + len)` of a file of `file_len` bytes.
    ///
    /// # Errors
    /// [`DigestError::NotAPiece`].
    pub fn new(file_len: u64, offset: u64, len: u64) -> Result<Self, DigestError> {
        check_piece(offset, len, file_len)?;
        let mut hasher = Hasher::new();
        hasher.set_input_offset(offset);
        Ok(Self {
            hasher,
            expected: len,
            given: 0,
            whole: offset == 0 && len == file_len,
        })
    }

    /// Feeds the next bytes of the piece.
    ///
    /// # Errors
    /// [`DigestError::WrongLength`] when that is more than the piece has; the bytes are not taken.
    pub fn update(&mut self, bytes: &[u8]) -> Result<(), DigestError> {
        let given = self.given.saturating_add(bytes.len() as u64);
        if given > self.expected {
            return Err(DigestError::WrongLength {
                expected: self.expected,
                given,
            });
        }
        self.given = given;
        self.hasher.update(bytes);
        Ok(())
    }

    /// The digest to send for the piece.
    ///
    /// # Errors
    /// [`DigestError::WrongLength`] when bytes are missing.
    pub fn finish(&self) -> Result<Digest, DigestError> {
        if self.given != self.expected {
            return Err(DigestError::WrongLength {
                expected: self.expected,
                given: self.given,
            });
        }
        Ok(if self.whole {
            *self.hasher.finalize().as_bytes()
        } else {
            self.hasher.finalize_non_root()
        })
    }
}

/// What [`DigestTree::insert`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inserted {
    /// The piece (or a part of it) was not known before.
    New,
    /// All its bytes were covered already; nothing changed. When the piece is part of a larger node, its
    /// digest can no longer be compared.
    Known,
}

/// The digest of one file, collected from the digests of its pieces in any order.
///
/// Holds the topmost known nodes only; siblings are merged as soon as both are there.
#[derive(Clone, Debug)]
pub struct DigestTree {
    file_len: u64,
    /// start -> (length, value); disjoint, never two siblings.
    nodes: BTreeMap<u64, (u64, Digest)>,
    covered: RangeSet,
    root: Option<Digest>,
}

impl DigestTree {
    /// A tree for a file of `file_len` bytes; complete at once when that is 0.
    #[must_use]
    pub fn new(file_len: u64) -> Self {
        let root = (file_len == 0).then_some(EMPTY_ROOT);
        Self {
            file_len,
            nodes: BTreeMap::new(),
            covered: RangeSet::new(),
            root,
        }
    }

    /// The length the tree was made for, in bytes.
    #[must_use]
    pub const fn file_len(&self) -> u64 {
        self.file_len
    }

    /// Which bytes are covered by inserted pieces.
    #[must_use]
    pub const fn covered(&self) -> &RangeSet {
        &self.covered
    }

    /// Enters the digest of the piece `[offset, offset + len)`. A piece over several known smaller ones
    /// replaces them.
    ///
    /// # Errors
    /// [`DigestError::NotAPiece`]; [`DigestError::Conflict`] when the same piece is known with another
    /// value; [`DigestError::TooManyNodes`]. The tree is unchanged by an error.
    pub fn insert(&mut self, offset: u64, len: u64, digest: Digest) -> Result<Inserted, DigestError> {
        check_piece(offset, len, self.file_len)?;
        let end = offset + len;
        if self
            .root
            .is_some_and(|root| len == self.file_len && root != digest)
        {
            return Err(DigestError::Conflict { offset });
        }
        if let Some((known, value)) = self.nodes.get(&offset)
            && *known == len
            && *value != digest
        {
            return Err(DigestError::Conflict { offset });
        }
        if self.covered.contains(offset..end) {
            return Ok(Inserted::Known);
        }
        if self.nodes.len() >= MAX_TREE_NODES {
            return Err(DigestError::TooManyNodes);
        }
        while let Some((&s, _)) = self.nodes.range(offset..end).next() {
            self.nodes.remove(&s);
        }
        self.covered.insert(offset..end);
        if len == self.file_len {
            self.root = Some(digest);
        } else {
            self.merge_up(offset, len, digest);
        }
        Ok(Inserted::New)
    }

    /// Enters a range of zero bytes (a hole of a sparse file), cut into pieces. It costs the hashing of
    /// `len` bytes: chaining values depend on the offset, so zeros have no short cut.
    ///
    /// # Errors
    /// As [`insert`](Self::insert); `offset` must be a multiple of [`LEAF_BYTES`], and `len` too unless the
    /// range ends the file.
    pub fn insert_zeros(&mut self, offset: u64, len: u64) -> Result<(), DigestError> {
        const ZEROS: [u8; 16 << 10] = [0; 16 << 10];
        let bad = DigestError::NotAPiece {
            offset,
            len,
            file_len: self.file_len,
        };
        let end = offset
            .checked_add(len)
            .filter(|e| *e <= self.file_len)
            .ok_or(bad)?;
        let mut at = offset;
        while at < end {
            let align = if at == 0 {
                ZEROS.len() as u64
            } else {
                at & at.wrapping_neg()
            };
            let mut size = align.min(ZEROS.len() as u64);
            while at + size > end && !(end == self.file_len && size >= end - at) && size > LEAF_BYTES {
                size /= 2;
            }
            if end == self.file_len {
                size = size.min(end - at);
            }
            let digest = piece_digest(self.file_len, at, &ZEROS[..size as usize])?;
            if at + size > end {
                return Err(bad);
            }
            self.insert(at, size, digest)?;
            at += size;
        }
        Ok(())
    }

    /// The file's digest (equal to `blake3::hash` of its bytes) once every piece is in.
    #[must_use]
    pub const fn root(&self) -> Option<Digest> {
        self.root
    }

    /// Puts a node in, joining it with its sibling for as long as that is there.
    fn merge_up(&mut self, mut start: u64, mut len: u64, mut value: Digest) {
        loop {
            let end = start + len;
            // Lowest set bit of the offset: the size of the largest block that may start here.
            let align = start & start.wrapping_neg();
            let left = start != 0 && (end == self.file_len || len == align);
            let sibling = if left { start - align } else { end };
            let expected = if left { align } else { len.min(self.file_len - end) };
            match self.nodes.get(&sibling) {
                Some(&(known, other)) if known == expected => {
                    self.nodes.remove(&sibling);
                    let (a, b) = if left { (other, value) } else { (value, other) };
                    start = start.min(sibling);
                    len += expected;
                    if len == self.file_len {
                        self.root = Some(*merge_subtrees_root(&a, &b, Mode::Hash).as_bytes());
                        return;
                    }
                    value = merge_subtrees_non_root(&a, &b, Mode::Hash);
                }
                _ => {
                    self.nodes.insert(start, (len, value));
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    fn data(len: usize) -> Vec<u8> {
        (0..len)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 7) as u8)
            .collect()
    }

    fn tree_of(bytes: &[u8], pieces: &[(u64, u64)]) -> DigestTree {
        let len = bytes.len() as u64;
        let mut tree = DigestTree::new(len);
        for &(o, l) in pieces {
            assert_eq!(tree.root(), None);
            let d = piece_digest(len, o, &bytes[o as usize..(o + l) as usize]).expect("a piece");
            assert_eq!(tree.insert(o, l, d).expect("inserted"), Inserted::New);
        }
        tree
    }

    fn cut(len: u64, size: u64) -> Vec<(u64, u64)> {
        (0..len.div_ceil(size))
            .map(|i| (i * size, size.min(len - i * size)))
            .collect()
    }

    #[test]
    fn equals_the_plain_hash() {
        for chunk in [1024u64, 4096, 65536] {
            let k = chunk as usize;
            let lens = [
                0,
                1,
                1023,
                1024,
                1025,
                k - 1,
                k,
                k + 1,
                2 * k,
                3 * k,
                3 * k + 1,
                5 * k - 1,
                7 * k,
                13 * k + 700,
            ];
            for len in lens {
                let bytes = data(len);
                let mut pieces = cut(len as u64, chunk);
                for turn in 0..3 {
                    let tree = tree_of(&bytes, &pieces);
                    assert_eq!(
                        tree.root(),
                        Some(*blake3::hash(&bytes).as_bytes()),
                        "{len} by {chunk}"
                    );
                    match turn {
                        0 => pieces.reverse(),
                        _ => pieces.sort_by_key(|p| (p.0 / chunk) % 3),
                    }
                }
            }
        }
    }

    #[test]
    fn empty_file_is_complete() {
        assert_eq!(DigestTree::new(0).root(), Some(*blake3::hash(b"").as_bytes()));
    }

    #[test]
    fn in_order_stays_small() {
        let bytes = data(1 << 20);
        let mut tree = DigestTree::new(1 << 20);
        for (o, l) in cut(1 << 20, 1024) {
            let d = piece_digest(1 << 20, o, &bytes[o as usize..(o + l) as usize]).expect("piece");
            tree.insert(o, l, d).expect("insert");
            assert!(tree.nodes.len() <= 10, "{}", tree.nodes.len());
        }
        assert_eq!(tree.root(), Some(*blake3::hash(&bytes).as_bytes()));
    }

    #[test]
    fn refuses_what_is_no_piece() {
        let file = 10_000;
        for (o, l) in [
            (0, 0),
            (512, 1024),
            (1024, 2048),
            (0, 3000),
            (4096, 5904),
            (8192, 2048),
            (u64::MAX, 2),
        ] {
            let r = DigestTree::new(file).insert(o, l, [0; 32]);
            assert_eq!(
                r,
                Err(DigestError::NotAPiece {
                    offset: o,
                    len: l,
                    file_len: file
                }),
                "{o} {l}"
            );
        }
        // 8192..10000 ends the file, 0..8192 is a block, 0..10000 the whole.
        for (o, l) in [(8192, 1808), (0, 8192), (0, 10_000), (9216, 784)] {
            assert_eq!(
                DigestTree::new(file).insert(o, l, [0; 32]),
                Ok(Inserted::New),
                "{o} {l}"
            );
        }
        assert!(subtree_cv(&[0; 2048], 1024).is_err());
        assert!(subtree_cv(&[], 1024).is_err());
    }

    #[test]
    fn conflict_and_known() {
        let mut t = DigestTree::new(8192);
        assert_eq!(t.insert(0, 2048, [1; 32]), Ok(Inserted::New));
        assert_eq!(t.insert(0, 2048, [1; 32]), Ok(Inserted::Known));
        assert_eq!(
            t.insert(0, 2048, [2; 32]),
            Err(DigestError::Conflict { offset: 0 })
        );
        assert_eq!(t.insert(0, 4096, [3; 32]), Ok(Inserted::New));
        assert_eq!(t.insert(1024, 1024, [9; 32]), Ok(Inserted::Known));
        assert_eq!(t.covered().bytes(), 4096);
    }

    #[test]
    fn hasher_counts_its_bytes() {
        let mut h = SubtreeHasher::new(4096, 1024, 1024).expect("piece");
        h.update(&[0; 1000]).expect("fits");
        assert_eq!(
            h.finish(),
            Err(DigestError::WrongLength {
                expected: 1024,
                given: 1000
            })
        );
        assert_eq!(
            h.update(&[0; 25]),
            Err(DigestError::WrongLength {
                expected: 1024,
                given: 1025
            })
        );
        h.update(&[0; 24]).expect("fits");
        assert_eq!(h.finish(), subtree_cv(&[0; 1024], 1024));
    }

    #[test]
    fn holes_are_hashed_as_zeros() {
        for len in [100_000usize, 65536, 65537, 200_704] {
            let mut bytes = data(len);
            bytes[4096..60 << 10].fill(0);
            let last = len as u64 / 4096 * 4096 - 4096;
            bytes[last as usize..].fill(0);
            let mut tree = DigestTree::new(len as u64);
            tree.insert_zeros(4096, (60 << 10) - 4096).expect("hole");
            tree.insert_zeros(last, len as u64 - last)
                .expect("hole at the end");
            for (o, l) in cut(len as u64, 4096) {
                let d = piece_digest(len as u64, o, &bytes[o as usize..(o + l) as usize]).expect("piece");
                tree.insert(o, l, d).expect("insert");
            }
            assert_eq!(tree.root(), Some(*blake3::hash(&bytes).as_bytes()));
        }
        assert!(DigestTree::new(10_000).insert_zeros(0, 1500).is_err());
        assert!(DigestTree::new(10_000).insert_zeros(100, 1024).is_err());
    }

    /// Cuts `[start, start + size)` of the file at random into pieces, by halving.
    fn random_cut(start: u64, size: u64, len: u64, bits: &mut u64, out: &mut Vec<(u64, u64)>) {
        if start >= len {
            return;
        }
        let split = *bits & 1 == 1;
        *bits = bits
            .rotate_right(1)
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        if split && size > LEAF_BYTES && size / 2 < len {
            random_cut(start, size / 2, len, bits, out);
            random_cut(start + size / 2, size / 2, len, bits, out);
        } else {
            out.push((start, size.min(len - start)));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn pieces_of_any_size_in_any_order(len in 1usize..200_000, mut bits in any::<u64>(), order in any::<u64>()) {
            let bytes = data(len);
            let mut pieces = Vec::new();
            random_cut(0, (len as u64).next_power_of_two().max(1024), len as u64, &mut bits, &mut pieces);
            pieces.sort_by_key(|p| p.0.wrapping_mul(order | 1).rotate_left(17));
            let tree = tree_of(&bytes, &pieces);
            prop_assert_eq!(tree.root(), Some(*blake3::hash(&bytes).as_bytes()));
            prop_assert!(tree.nodes.is_empty());
        }
    }
}
