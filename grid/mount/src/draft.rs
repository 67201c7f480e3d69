//! What was written to an open file and is not published yet, or was published from here.
//!
//! ```text
//!   byte x of the file:   x < base_len and not in `have`   the content that it was opened with
//!                         else                             the local file (holes are zeros)
//! ```
//!
//! The local file has no name: it goes with the process.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use kuroshio_core::chunk::RangeSet;

/// Ranges that are told apart; beyond, all of the content is fetched.
pub const MAX_RANGES: usize = 4096;
/// Largest file: the catalog's limit, bytes.
pub const MAX_FILE_BYTES: u64 = 1 << 60;

/// A local copy with changes.
pub struct Draft {
    file: Arc<File>,
    /// Bytes of the content below `base_len` that are in the local file.
    have: RangeSet,
    /// Bytes of the content that still show through.
    base_len: u64,
    /// Size of the file, bytes.
    pub size: u64,
    /// Modification time, nanoseconds since 1970.
    pub mtime_ns: i64,
    /// Time of the last change here, nanoseconds since 1970.
    pub changed_ns: i64,
    /// Whether there is something to be published.
    pub dirty: bool,
}

impl Draft {
    /// A draft over a content of `size` bytes that was last changed at `mtime_ns`.
    pub fn new(folder: &Path, size: u64, mtime_ns: i64) -> io::Result<Self> {
        let file = tempfile::tempfile_in(folder)?;
        file.set_len(size)?;
        Ok(Self {
            file: Arc::new(file),
            have: RangeSet::new(),
            base_len: size,
            size,
            mtime_ns,
            changed_ns: mtime_ns,
            dirty: false,
        })
    }

    /// The local file.
    pub fn file(&self) -> Arc<File> {
        self.file.clone()
    }

    /// Something changed at `now_ns`.
    pub fn touch(&mut self, now_ns: i64) {
        self.dirty = true;
        self.mtime_ns = now_ns;
        self.changed_ns = now_ns;
    }

    /// Bytes were written to the local file.
    pub fn wrote(&mut self, range: Range<u64>) {
        self.size = self.size.max(range.end);
        self.fetched(range);
    }

    /// Bytes of the content were written to the local file.
    pub fn fetched(&mut self, range: Range<u64>) {
        self.have.insert(range.start..range.end.min(self.base_len));
        if self.have.contains(0..self.base_len) {
            self.all_here();
        }
    }

    /// Everything is in the local file.
    pub fn all_here(&mut self) {
        self.base_len = 0;
        self.have = RangeSet::new();
    }

    /// Cuts the file off, or lengthens it by zeros.
    pub fn set_size(&mut self, size: u64) -> io::Result<()> {
        self.file.set_len(size)?;
        self.base_len = self.base_len.min(size);
        self.have.remove(self.base_len..u64::MAX);
        self.size = size;
        Ok(())
    }

    /// Whether the ranges have become too many.
    pub fn is_ragged(&self) -> bool {
        self.have.len() > MAX_RANGES
    }

    /// The parts of a range that only the content has.
    pub fn missing(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let end = range.end.min(self.base_len);
        if range.start >= end {
            return Vec::new();
        }
        let mut missing = Vec::new();
        let mut at = range.start;
        for have in self.have.overlaps(range.start..end) {
            if have.start > at {
                missing.push(at..have.start);
            }
            at = at.max(have.end);
        }
        if at < end {
            missing.push(at..end);
        }
        missing
    }

    /// All that only the content has.
    pub fn all_missing(&self) -> Vec<Range<u64>> {
        self.missing(0..self.base_len)
    }
}

/// Reads from a local file; what is beyond its end is zeros.
pub fn read_local(file: &File, offset: u64, into: &mut [u8]) -> io::Result<()> {
    let mut at = 0;
    while at < into.len() {
        match file.read_at(into.get_mut(at..).unwrap_or_default(), offset + at as u64) {
            Ok(0) => {
                into.get_mut(at..).unwrap_or_default().fill(0);
                break;
            }
            Ok(n) => at += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_what_only_the_content_has() {
        let mut d = Draft::new(&std::env::temp_dir(), 100, 5).expect("made");
        assert_eq!(d.all_missing(), vec![0..100]);
        d.wrote(10..20);
        d.wrote(30..40);
        assert_eq!(d.missing(0..35), vec![0..10, 20..30]);
        assert_eq!(d.missing(12..18), vec![]);
        assert_eq!(d.missing(15..200), vec![20..30, 40..100]);
        // What was cut off does not come back when the file grows.
        d.set_size(25).expect("cut");
        d.set_size(60).expect("grown");
        assert_eq!(d.all_missing(), vec![0..10, 20..25]);
        d.wrote(90..95);
        assert_eq!((d.size, d.all_missing()), (95, vec![0..10, 20..25]));
        d.fetched(0..10);
        d.fetched(20..25);
        assert_eq!(d.all_missing(), vec![]);
        assert!(!d.dirty && !d.is_ragged());
        d.touch(7);
        assert_eq!((d.dirty, d.mtime_ns), (true, 7));
    }
}
