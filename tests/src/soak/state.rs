//! What a receiver has left in its state folder, read from outside: the journal (72-byte records: kind u8,
//! length u32 at 4, key at 8, offset u64 at 24) and the part files that it names.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Name of the folder.
pub const STATE: &str = ".kuroshio-partial";
const RECORD: usize = 72;
const PIECE: u8 = 2;
const DROP: u8 = 3;
const DONE: u8 = 4;
const VERIFIED: u8 = 5;

/// One part file.
#[derive(Debug, Default, Clone)]
pub struct Part {
    /// Where it is.
    pub path: PathBuf,
    /// Its length, bytes; none when it is no longer (or not yet) there.
    pub there: Option<u64>,
    /// Journalled pieces: first byte and length.
    pub pieces: BTreeMap<u64, u64>,
    /// Pieces that were found wrong, by first byte.
    pub dropped: BTreeSet<u64>,
    /// It was compared with the sender's digests.
    pub verified: bool,
}

impl Part {
    /// Bytes of its pieces.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.pieces.values().sum()
    }

    /// Flips one bit of the byte at `at`; gives it before and after.
    ///
    /// # Errors
    /// What the file system gives.
    pub fn flip(&self, at: u64, bit: u64) -> io::Result<(u8, u8)> {
        let file = OpenOptions::new().read(true).write(true).open(&self.path)?;
        let mut byte = [0u8];
        file.read_exact_at(&mut byte, at)?;
        let [before] = byte;
        let after = before ^ (1 << (bit & 7));
        file.write_all_at(&[after], at)?;
        Ok((before, after))
    }
}

/// Part files in the journals of all sessions beneath a destination folder, in order of their names.
#[must_use]
pub fn parts(root: &Path) -> Vec<Part> {
    let mut out = Vec::new();
    let Ok(sessions) = fs::read_dir(root.join(STATE)) else {
        return out;
    };
    for session in sessions.flatten() {
        let journal = fs::read(session.path().join("journal")).unwrap_or_default();
        for (key, mut part) in records(&journal) {
            let name: String = key.iter().map(|b| format!("{b:02x}")).collect();
            part.path = session.path().join(name);
            part.there = part.path.symlink_metadata().ok().map(|meta| meta.len());
            out.push(part);
        }
    }
    out
}

fn number<const N: usize>(record: &[u8], at: usize) -> Option<u64> {
    let mut wide = [0u8; 8];
    wide.get_mut(..N)?.copy_from_slice(record.get(at..at + N)?);
    Some(u64::from_le_bytes(wide))
}

fn records(journal: &[u8]) -> BTreeMap<Vec<u8>, Part> {
    let mut out: BTreeMap<Vec<u8>, Part> = BTreeMap::new();
    for record in journal.chunks_exact(RECORD) {
        let (Some(kind), Some(len), Some(key), Some(offset)) = (
            record.first(),
            number::<4>(record, 4),
            record.get(8..24),
            number::<8>(record, 24),
        ) else {
            continue;
        };
        if !(PIECE..=VERIFIED).contains(kind) {
            continue;
        }
        let part = out.entry(key.to_vec()).or_default();
        match *kind {
            PIECE => drop(part.pieces.insert(offset, len)),
            DROP => {
                part.pieces.remove(&offset);
                part.dropped.insert(offset);
            }
            VERIFIED | DONE => part.verified = true,
            _ => {}
        }
    }
    out
}
