//! The end of an object's file: what the content is, and its checksums.
//!
//! ```text
//!   content | table of chunk digests | owner | group | path | footer
//!   size      chunks * 32              as long as the footer says   144 bytes
//!
//!   footer:  0 magic * 16 | 16 inode u64 | 24 generation u32 | 28 fragment u32 | 32 size u64 | 40 digest * 32
//!           72 time i64 | 80 mode u32 | 84 fragments u32 | 88 owner, group, path lengths u16 * 3 | 94 zero u16
//!           96 chunk_bytes u64 | 104 chunks u32 | 108 zero u32 | 112 checksum * 32
//! ```
//!
//! Integers are little endian. The checksum is BLAKE3 (key derivation mode, [`CONTEXT`]) over everything from
//! the table to byte 112 of the footer. The content begins at byte 0, so a reader sends the file's first `size`
//! bytes as they are. An object of one chunk has no table: its digest is the chunk's. Of an object that was written into a slot
//! (`slots`) the file has the slot's size: then zeros stand between content and table.

use crate::id::ObjectId;
use crate::limits::{MAX_CHUNKS, MAX_HINT_BYTES, MAX_OBJECT_BYTES, MAX_OWNER_BYTES};
use crate::meta::{Bytes, Fixed, META_BYTES, Meta};
use crate::slots;
use crate::sys::read_full;
use kuroshio_core::chunk::{Digest, LEAF_BYTES};
use std::fs::File;
use std::io;

const MAGIC: [u8; 16] = *b"KUROSHIO-OBJECT1";
const CONTEXT: &str = "kuroshio object trailer v1";
/// Bytes of the footer.
pub(crate) const FOOTER_BYTES: usize = 144;
const SUMMED: usize = FOOTER_BYTES - 32;
/// Most bytes of a trailer.
const MAX_TRAILER_BYTES: u64 = MAX_CHUNKS * 32 + (2 * MAX_OWNER_BYTES + MAX_HINT_BYTES + FOOTER_BYTES) as u64;
/// Read from the end of a file at first: enough for an object of one chunk with a path of usual length.
const FIRST_READ: u64 = 1024;

/// What a trailer says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trailer {
    pub id: ObjectId,
    pub size: u64,
    pub digest: Digest,
    pub meta: Meta,
    pub chunk_bytes: u64,
    /// Digests of the chunks; empty when there is one at most.
    pub table: Vec<Digest>,
}

impl Trailer {
    /// Bytes of the encoded trailer.
    pub(crate) fn len(&self) -> u64 {
        (self.table.len() * 32 + self.meta.names_len() + FOOTER_BYTES) as u64
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(usize::try_from(self.len()).unwrap_or(0));
        self.table.iter().for_each(|d| out.extend_from_slice(d));
        self.meta.put_names(&mut out);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&self.id.inode.to_le_bytes());
        out.extend_from_slice(&self.id.generation.to_le_bytes());
        out.extend_from_slice(&self.id.fragment.to_le_bytes());
        out.extend_from_slice(&self.size.to_le_bytes());
        out.extend_from_slice(&self.digest);
        self.meta.put_fixed(&mut out);
        out.extend_from_slice(&self.chunk_bytes.to_le_bytes());
        let chunks = u32::try_from(self.table.len()).unwrap_or(u32::MAX);
        out.extend_from_slice(&chunks.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        let sum = checksum(&out);
        out.extend_from_slice(&sum);
        out
    }

    /// Reads the trailer of a file; `Ok(Err(..))` says why it is none.
    pub(crate) fn read(file: &File) -> io::Result<Result<Self, String>> {
        let file_len = file.metadata()?.len();
        let mut tail = vec![0u8; usize::try_from(file_len.min(FIRST_READ)).unwrap_or(0)];
        let start = file_len.saturating_sub(tail.len() as u64);
        if read_full(file, &mut tail, start)? < tail.len() {
            return Ok(Err("the file became shorter".to_owned()));
        }
        let footer = match Footer::read(&tail, file_len) {
            Ok(footer) => footer,
            Err(what) => return Ok(Err(what)),
        };
        let len = usize::try_from(footer.trailer_len()).unwrap_or(usize::MAX);
        if len > tail.len() {
            tail = vec![0u8; len];
            if read_full(file, &mut tail, file_len.saturating_sub(len as u64))? < len {
                return Ok(Err("the file became shorter".to_owned()));
            }
        }
        let skip = tail.len().saturating_sub(len);
        Ok(footer.with_rest(tail.get(skip..).unwrap_or_default()))
    }
}

fn checksum(bytes: &[u8]) -> [u8; 32] {
    *blake3::Hasher::new_derive_key(CONTEXT)
        .update(bytes)
        .finalize()
        .as_bytes()
}

/// The fixed end of a trailer.
struct Footer {
    id: ObjectId,
    size: u64,
    digest: Digest,
    fixed: Fixed,
    chunk_bytes: u64,
    chunks: u32,
}

impl Footer {
    /// Reads the footer at the end of `tail`; `file_len` is the whole file's.
    fn read(tail: &[u8], file_len: u64) -> Result<Self, String> {
        let none = || "it has no trailer (cut short, or not an object)".to_owned();
        let at = tail.len().checked_sub(FOOTER_BYTES).ok_or_else(none)?;
        let mut b = Bytes(tail.get(at..).unwrap_or_default());
        if b.take::<16>() != Some(MAGIC) {
            return Err(none());
        }
        let footer = Self::fields(&mut b).ok_or("its trailer has lengths beyond the limits")?;
        let right_table = match footer.size.div_ceil(footer.chunk_bytes) {
            0 | 1 => footer.chunks == 0,
            n => u64::from(footer.chunks) == n,
        };
        if !right_table {
            return Err("its trailer has a table of the wrong length".to_owned());
        }
        let used = footer.size.saturating_add(footer.trailer_len());
        // In a slot there are zeros between the two.
        if used != file_len && !(used < file_len && slots::is_size(file_len)) {
            return Err(format!(
                "the file has {file_len} bytes, but {} of content and {} of trailer are announced",
                footer.size,
                footer.trailer_len()
            ));
        }
        Ok(footer)
    }

    fn fields(b: &mut Bytes<'_>) -> Option<Self> {
        let id = ObjectId {
            inode: b.u64()?,
            generation: b.u32()?,
            fragment: b.u32()?,
        };
        let size = b.u64().filter(|s| *s <= MAX_OBJECT_BYTES)?;
        let digest = b.take()?;
        let fixed = Fixed::read(b)?;
        let chunk_bytes = b.u64().filter(|c| c.is_power_of_two() && *c >= LEAF_BYTES)?;
        let chunks = b.u32().filter(|c| u64::from(*c) <= MAX_CHUNKS)?;
        (b.u32()? == 0).then_some(Self {
            id,
            size,
            digest,
            fixed,
            chunk_bytes,
            chunks,
        })
    }

    fn trailer_len(&self) -> u64 {
        let table = u64::from(self.chunks) * 32;
        (table + (self.fixed.names_len() + FOOTER_BYTES) as u64).min(MAX_TRAILER_BYTES)
    }

    /// The trailer from its bytes.
    fn with_rest(self, bytes: &[u8]) -> Result<Trailer, String> {
        let summed = bytes.len().saturating_sub(32);
        let (body, sum) = bytes.split_at(summed);
        if checksum(body) != sum {
            return Err("the checksum of its trailer is wrong".to_owned());
        }
        let short = || "its trailer is cut short".to_owned();
        let mut b = Bytes(bytes);
        let mut table = Vec::with_capacity(usize::try_from(self.chunks).unwrap_or(0));
        for _ in 0..self.chunks {
            table.push(b.take().ok_or_else(short)?);
        }
        let meta = self
            .fixed
            .with_names(&mut b)
            .ok_or("the owner or group in its trailer is no UTF-8")?;
        Ok(Trailer {
            id: self.id,
            size: self.size,
            digest: self.digest,
            meta,
            chunk_bytes: self.chunk_bytes,
            table,
        })
    }
}

// The layout above, so that a change of one place is noticed.
const _: () = assert!(SUMMED == 16 + 16 + 8 + 32 + META_BYTES + 8 + 4 + 4);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn trailer(size: u64, table: usize, hint: Vec<u8>) -> Trailer {
        Trailer {
            id: ObjectId {
                inode: 7,
                generation: 2,
                fragment: 1,
            },
            size,
            digest: [9; 32],
            meta: Meta {
                owner: "ann".into(),
                group: "physics".into(),
                name_hint: hint,
                mode: 0o640,
                fragments: 3,
                modified_unix_ns: -5,
            },
            chunk_bytes: 1024,
            table: (0..table).map(|i| [i as u8; 32]).collect(),
        }
    }

    fn read(bytes: &[u8]) -> Result<Trailer, String> {
        let dir = tempfile::tempdir().expect("folder");
        let path = dir.path().join("f");
        std::fs::write(&path, bytes).expect("write");
        Trailer::read(&File::open(path).expect("open")).expect("read")
    }

    fn file(t: &Trailer) -> Vec<u8> {
        let mut bytes = vec![1u8; t.size as usize];
        bytes.extend_from_slice(&t.encode());
        bytes
    }

    #[test]
    fn comes_back() {
        for (size, table, hint) in [
            (0u64, 0usize, Vec::new()),
            (1024, 0, b"/a/b".to_vec()),
            (5000, 5, vec![b'x'; MAX_HINT_BYTES]),
            (100_000, 98, vec![0xff; 3]),
        ] {
            let t = trailer(size, table, hint);
            assert_eq!(t.encode().len() as u64, t.len());
            assert_eq!(read(&file(&t)), Ok(t));
        }
    }

    #[test]
    fn zeros_are_before_it_up_to_the_size_of_a_slot_and_no_other() {
        for size in [0u64, 1, 500, 1024] {
            let t = trailer(size, 0, vec![b'p'; 3000]);
            let (end, used) = (t.encode(), size as usize + t.encode().len());
            let with_zeros = |len: usize| {
                let mut bytes = vec![1u8; size as usize];
                bytes.resize(len - end.len(), 0);
                [bytes, end.clone()].concat()
            };
            for len in [4096, 8192, 16384].into_iter().filter(|len| *len >= used) {
                assert_eq!(read(&with_zeros(len)).as_ref(), Ok(&t), "{size} bytes in {len}");
            }
            let odd = [used + 1, 4097, 8191, 12_288, 16_383, 16_385, 32_768];
            for len in odd.into_iter().filter(|len| *len > used) {
                assert!(read(&with_zeros(len)).is_err(), "{size} bytes in {len}");
            }
        }
        let large = trailer(40_000, 40, b"/p".to_vec());
        let mut bytes = file(&large);
        let gap = bytes.len().next_multiple_of(4096) - bytes.len();
        bytes.splice(40_000..40_000, vec![0; gap]);
        assert!(read(&bytes).is_err(), "no slot is so large");
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_noticed() {
        let t = trailer(3000, 3, b"/p".to_vec());
        let good = file(&t);
        for at in 3000..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1 << (at % 8);
            assert!(read(&bad).is_err(), "byte {at}");
        }
        for len in (0..good.len()).step_by(7) {
            assert!(read(&good[..len]).is_err(), "{len} bytes");
        }
        let mut longer = good.clone();
        longer.insert(0, 0);
        assert!(read(&longer).is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_are_taken_for_a_trailer(mut bytes in prop::collection::vec(any::<u8>(), 0..600), magic: bool) {
            if magic && bytes.len() >= FOOTER_BYTES {
                let at = bytes.len() - FOOTER_BYTES;
                bytes[at..at + 16].copy_from_slice(&MAGIC);
            }
            prop_assert!(read(&bytes).is_err());
        }
    }
}
