//! What of a partial object is written: an append-only file beside it.
//!
//! ```text
//!   header: magic * 16 | meta 24 | size u64 (all ones: not known) | names | checksum * 32
//!   record: piece u64 | digest * 32 | checksum * 8
//! ```
//!
//! A record says that piece `piece` was written (pieces are chunks; of 1 MiB when the size is not known), and the BLAKE3 chaining value of its bytes; of two
//! records for one piece the later one counts. Reading stops at the first torn or wrong record. Nothing is
//! flushed: after a crash of the machine a recorded piece may be missing on disk. Finishing compares all
//! recorded pieces with what is on disk, so that is found, and asked for again.

use crate::id::ObjectId;
use crate::limits::{MAX_OBJECT_BYTES, MAX_UNSIZED_BYTES, MIN_CHUNK_BYTES};
use crate::meta::{Bytes, Fixed, Meta};
use kuroshio_core::chunk::Digest;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};

const MAGIC: [u8; 16] = *b"KUROSHIO-RESUME1";
const CONTEXT: &str = "kuroshio resume file v1";
const RECORD: usize = 48;
/// Bytes of the header before the names.
const HEAD: usize = 16 + crate::meta::META_BYTES + 8;
/// Most pieces of an object; those of an object with a known size are as large as its chunks.
const MAX_PIECES: u64 = MAX_UNSIZED_BYTES / MIN_CHUNK_BYTES;
/// A resume file is not read beyond this: every piece written twice over.
const MAX_BYTES: u64 = 2 * MAX_PIECES * RECORD as u64;

/// What an earlier writer left.
#[derive(Debug, Default)]
pub(crate) struct Left {
    pub meta: Meta,
    pub size: Option<u64>,
    pub pieces: BTreeMap<u64, Digest>,
}

fn checksum(id: ObjectId, bytes: &[u8]) -> [u8; 32] {
    let mut h = blake3::Hasher::new_derive_key(CONTEXT);
    h.update(id.to_string().as_bytes());
    h.update(bytes);
    *h.finalize().as_bytes()
}

/// The first bytes of the resume file of an object.
pub(crate) fn header(id: ObjectId, meta: &Meta, size: Option<u64>) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    meta.put_fixed(&mut out);
    out.extend_from_slice(&size.unwrap_or(u64::MAX).to_le_bytes());
    meta.put_names(&mut out);
    let sum = checksum(id, &out);
    out.extend_from_slice(&sum);
    out
}

/// Appends a record of a piece to `out`.
pub(crate) fn record(id: ObjectId, piece: u64, digest: &Digest, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&piece.to_le_bytes());
    out.extend_from_slice(digest);
    let sum = checksum(id, out.get(start..).unwrap_or_default());
    out.extend_from_slice(sum.first_chunk::<8>().map_or(&[], |s| s.as_slice()));
}

/// Reads a resume file; `None` when it is not one. The length is that of the valid beginning, to go on from.
pub(crate) fn read(id: ObjectId, file: &mut File) -> io::Result<Option<(Left, u64)>> {
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(parse(id, &bytes))
}

fn parse(id: ObjectId, bytes: &[u8]) -> Option<(Left, u64)> {
    let mut b = Bytes(bytes);
    if b.take::<16>()? != MAGIC {
        return None;
    }
    let fixed = Fixed::read(&mut b)?;
    let size = match b.u64()? {
        u64::MAX => None,
        size if size <= MAX_OBJECT_BYTES => Some(size),
        _ => return None,
    };
    let head = HEAD + fixed.names_len();
    let meta = fixed.with_names(&mut b)?;
    if b.take::<32>()? != checksum(id, bytes.get(..head)?) {
        return None;
    }
    let mut left = Left {
        meta,
        size,
        pieces: BTreeMap::new(),
    };
    while let Some(one) = b.slice(RECORD) {
        let (body, sum) = one.split_at(RECORD - 8);
        let mut r = Bytes(body);
        let (Some(piece), Some(digest)) = (r.u64(), r.take()) else {
            break;
        };
        if checksum(id, body).first_chunk::<8>().map(|s| s.as_slice()) != Some(sum) || piece >= MAX_PIECES {
            let valid = bytes.len() - b.0.len() - RECORD;
            return Some((left, valid as u64));
        }
        left.pieces.insert(piece, digest);
    }
    let valid = bytes.len() - b.0.len();
    Some((left, valid as u64))
}

/// Writes bytes at the end.
pub(crate) fn append(mut file: &File, bytes: &[u8]) -> io::Result<()> {
    file.write_all(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: ObjectId = ObjectId {
        inode: 1,
        generation: 1,
        fragment: 0,
    };

    fn whole() -> (Vec<u8>, usize) {
        let meta = Meta {
            owner: "o".into(),
            name_hint: b"/x".to_vec(),
            ..Meta::default()
        };
        let mut bytes = header(ID, &meta, Some(9 << 20));
        let head = bytes.len();
        record(ID, 4, &[1; 32], &mut bytes);
        record(ID, 2, &[2; 32], &mut bytes);
        record(ID, 4, &[3; 32], &mut bytes);
        (bytes, head)
    }

    #[test]
    fn later_records_count_and_torn_ones_do_not() {
        let (bytes, head) = whole();
        let (left, valid) = parse(ID, &bytes).expect("a resume file");
        assert_eq!(left.pieces, BTreeMap::from([(2, [2; 32]), (4, [3; 32])]));
        assert_eq!((left.size, valid as usize), (Some(9 << 20), bytes.len()));
        assert_eq!(left.meta.owner, "o");
        for cut in head..bytes.len() {
            let (left, valid) = parse(ID, &bytes[..cut]).expect("header is whole");
            let records = (cut - head) / RECORD;
            assert_eq!(valid as usize, head + records * RECORD);
            assert_eq!(left.pieces.len(), records.min(2));
        }
        for cut in 0..head {
            assert!(parse(ID, &bytes[..cut]).is_none(), "{cut}");
        }
    }

    #[test]
    fn a_flipped_bit_ends_the_reading() {
        let (bytes, head) = whole();
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 0x10;
            match parse(ID, &bad) {
                None => assert!(at < head, "byte {at}"),
                Some((_, valid)) => assert_eq!(valid as usize, head + (at - head) / RECORD * RECORD),
            }
        }
        let other = ObjectId { inode: 2, ..ID };
        assert!(parse(other, &bytes).is_none(), "of another object");
    }
}
