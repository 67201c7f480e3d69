//! Digests of files and of pieces of them, by reads that stay in the cache of a core.

use crate::limits::HASH_BUFFER;
use crate::sys::pread_full;
use kuroshio_core::chunk::SubtreeHasher;
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// BLAKE3 of the first `size` bytes of a file; `None` when it is shorter.
///
/// # Errors
/// What reading gives.
pub(crate) fn file_digest(file: impl AsFd, size: u64) -> io::Result<Option<[u8; 32]>> {
    let mut hasher = blake3::Hasher::new();
    let mut buf = vec![0u8; HASH_BUFFER];
    let mut at = 0u64;
    while at < size {
        let want = buf.len().min(usize::try_from(size - at).unwrap_or(usize::MAX));
        let into = buf.get_mut(..want).unwrap_or_default();
        if pread_full(file.as_fd(), into, at)? < want {
            return Ok(None);
        }
        hasher.update(into);
        at += want as u64;
    }
    Ok(Some(*hasher.finalize().as_bytes()))
}

/// Digest of a piece of a file, with the time that went into hashing; `None` when the file ends inside or
/// the range is no piece.
pub(crate) fn piece_digest(
    size: u64,
    fd: impl AsFd,
    offset: u64,
    len: u32,
    buf: &mut [u8],
) -> io::Result<Option<([u8; 32], Duration)>> {
    let Ok(mut hasher) = SubtreeHasher::new(size, offset, u64::from(len)) else {
        return Ok(None);
    };
    let most = buf.len().min(HASH_BUFFER);
    let buf = buf.get_mut(..most).unwrap_or_default();
    let (mut at, end) = (offset, offset.saturating_add(u64::from(len)));
    let mut hashing = Duration::ZERO;
    while at < end {
        let want = buf.len().min(usize::try_from(end - at).unwrap_or(usize::MAX));
        let into = buf.get_mut(..want).unwrap_or_default();
        if pread_full(fd.as_fd(), into, at)? < want {
            return Ok(None);
        }
        let begun = Instant::now();
        if hasher.update(into).is_err() {
            return Ok(None);
        }
        hashing += begun.elapsed();
        at += want as u64;
    }
    Ok(hasher.finish().ok().map(|digest| (digest, hashing)))
}
