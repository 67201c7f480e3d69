//! Digests of objects: pieces are BLAKE3 subtrees ([`kuroshio_core::chunk`]), their merge is the object's digest.
//!
//! Of `n` pieces the left subtree holds the largest power of two of them that is below `n` (BLAKE3 paper, 2.1):
//!
//! ```text
//!   merge(c[0..n]) = parent(merge(c[0..k]), merge(c[k..n]))   k = 2^m, k < n <= 2k
//! ```

use crate::limits::{HASH_BUFFER_BYTES, MAX_HASHERS, PARALLEL_CHUNKS};
use crate::sys::read_full;
use blake3::hazmat::{Mode, merge_subtrees_non_root, merge_subtrees_root};
use kuroshio_core::chunk::{Digest, EMPTY_ROOT, SubtreeHasher};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many pieces of `piece` bytes an object of `size` bytes has.
pub(crate) fn count(size: u64, piece: u64) -> u64 {
    size.div_ceil(piece)
}

/// The bytes of one piece.
pub(crate) fn range(size: u64, piece: u64, index: u64) -> Range<u64> {
    let start = index.saturating_mul(piece).min(size);
    start..start.saturating_add(piece).min(size)
}

/// The digest of one piece of a file, as [`kuroshio_core::chunk::piece_digest`]; `None` when the file ends inside.
/// `told` hears of every read, in bytes, and may wait.
pub(crate) fn piece(
    file: &File,
    size: u64,
    range: &Range<u64>,
    buf: &mut [u8],
    told: &mut dyn FnMut(u64),
) -> io::Result<Option<Digest>> {
    let Ok(mut hasher) = SubtreeHasher::new(size, range.start, range.end.saturating_sub(range.start)) else {
        return Ok(None);
    };
    let mut at = range.start;
    while at < range.end {
        let want = buf
            .len()
            .min(usize::try_from(range.end - at).unwrap_or(usize::MAX));
        let into = buf.get_mut(..want).unwrap_or_default();
        if want == 0 || read_full(file, into, at)? < want || hasher.update(into).is_err() {
            return Ok(None);
        }
        at += want as u64;
        told(want as u64);
    }
    Ok(hasher.finish().ok())
}

/// The digests of all pieces of a file's first `size` bytes, large files by several threads.
pub(crate) fn pieces(file: &File, size: u64, piece_bytes: u64) -> io::Result<Vec<Option<Digest>>> {
    let n = count(size, piece_bytes);
    let threads = if n >= PARALLEL_CHUNKS {
        std::thread::available_parallelism().map_or(1, |t| t.get().min(MAX_HASHERS))
    } else {
        1
    };
    let next = AtomicU64::new(0);
    let work = || -> io::Result<Vec<(u64, Option<Digest>)>> {
        let mut buf = vec![0u8; HASH_BUFFER_BYTES];
        let mut out = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= n {
                return Ok(out);
            }
            let digest = piece(
                file,
                size,
                &range(size, piece_bytes, index),
                &mut buf,
                &mut |_| {},
            )?;
            out.push((index, digest));
        }
    };
    let mut found = vec![None; usize::try_from(n).unwrap_or(usize::MAX)];
    std::thread::scope(|scope| -> io::Result<()> {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let mut parts = vec![work()];
        for other in others {
            parts.push(
                other
                    .join()
                    .unwrap_or_else(|_| Err(io::Error::other("a digest thread ended abnormally"))),
            );
        }
        for part in parts {
            for (index, digest) in part? {
                if let Some(place) = usize::try_from(index).ok().and_then(|i| found.get_mut(i)) {
                    *place = digest;
                }
            }
        }
        Ok(())
    })?;
    Ok(found)
}

/// The object's digest from those of its pieces (of an object of one piece it is that).
pub(crate) fn root(digests: &[Digest]) -> Digest {
    match digests {
        [] => EMPTY_ROOT,
        [one] => *one,
        many => {
            let (left, right) = many.split_at(left_len(many.len()));
            *merge_subtrees_root(&merged(left), &merged(right), Mode::Hash).as_bytes()
        }
    }
}

/// Digests of larger pieces, each of `per` (a power of two) smaller ones. There must be more than one larger.
pub(crate) fn join(digests: &[Digest], per: usize) -> Vec<Digest> {
    digests.chunks(per.max(1)).map(merged).collect()
}

fn merged(digests: &[Digest]) -> Digest {
    match digests {
        [] => EMPTY_ROOT,
        [one] => *one,
        many => {
            let (left, right) = many.split_at(left_len(many.len()));
            merge_subtrees_non_root(&merged(left), &merged(right), Mode::Hash)
        }
    }
}

/// The largest power of two below `n`, for `n >= 2`.
fn left_len(n: usize) -> usize {
    n.next_power_of_two() / 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use kuroshio_core::chunk::piece_digest;
    use proptest::prelude::*;

    fn bytes(len: usize) -> Vec<u8> {
        (0..len)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 9) as u8)
            .collect()
    }

    fn cut(data: &[u8], piece: usize) -> Vec<Digest> {
        let each = data.chunks(piece).enumerate();
        each.map(|(i, c)| piece_digest(data.len() as u64, (i * piece) as u64, c).expect("piece"))
            .collect()
    }

    proptest! {
        #[test]
        fn merges_are_the_plain_hash(len in 0usize..40_000, log in 10u32..14, up in 0u32..3) {
            let data = bytes(len);
            let piece = 1usize << log;
            let small = cut(&data, piece);
            prop_assert_eq!(root(&small), *blake3::hash(&data).as_bytes());
            let large = piece << up;
            if len > large {
                prop_assert_eq!(join(&small, 1 << up), cut(&data, large));
            }
        }
    }

    #[test]
    fn files_like_memory_and_short_files_are_noticed() {
        let data = bytes(50_000);
        let dir = tempfile::tempdir().expect("folder");
        let path = dir.path().join("f");
        std::fs::write(&path, &data).expect("write");
        let file = File::open(&path).expect("open");
        let found = pieces(&file, 50_000, 4096).expect("read");
        let wanted: Vec<Option<Digest>> = cut(&data, 4096).into_iter().map(Some).collect();
        assert_eq!(found, wanted);
        let longer = pieces(&file, 50_001, 4096).expect("read");
        assert_eq!(longer.last(), Some(&None));
    }
}
