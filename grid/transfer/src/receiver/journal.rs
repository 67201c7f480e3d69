//! What an earlier run left: an append-only file of fixed records, each with its own checksum.
//!
//! ```text
//!  0 kind u8 | 1 zero * 3 | 4 len u32 | 8 key * 16 | 24 offset u64 | 32 digest * 32 | 64 checksum u64
//! ```
//!
//! | kind | meaning |
//! |---|---|
//! | 1 begin | first record; `digest` = boot id hashed, `len` = digest mode |
//! | 2 piece | `[offset, offset+len)` of part file `key` was written; `digest` is the sender's |
//! | 3 drop | that piece was wrong |
//! | 4 done | the file `key` is published and flushed |
//! | 5 verified | its content is flushed and right; the rename comes next, so without a part file it happened |
//!
//! `key` names path and source identity together, so a source that changed is another file. Reading stops
//! at the first record that is torn or wrong, and the file is cut there. A record of a piece is appended
//! after its write returned; it is not flushed: after a crash of the machine a journalled piece may be
//! missing on disk, which the verification before publishing finds. Without a digest mode nothing would
//! find it, so such a journal counts only within one boot.

use crate::options::DigestMode;
use crate::sys::{self, open_beneath};
use crate::wire::{Identity, Part};
use rustix::fs::{FlockOperation, Mode, OFlags};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};

const RECORD: usize = 72;
const NAME: &[u8] = b"journal";
const BEGIN: u8 = 1;
const PIECE: u8 = 2;
const DROP: u8 = 3;
const DONE: u8 = 4;
const VERIFIED: u8 = 5;

/// Names a part file: path and source identity.
pub(super) type Key = [u8; 16];

/// Pieces of one part file: first byte -> length and digest.
pub(super) type Pieces = BTreeMap<u64, (u32, [u8; 32])>;

/// Key of a file.
pub(super) fn key(path: &[u8], identity: &Identity) -> Key {
    let mut h = blake3::Hasher::new_derive_key("kuroshio part file key v1");
    h.update(&(path.len() as u64).to_le_bytes());
    h.update(path);
    for n in [identity.dev, identity.ino, identity.size] {
        h.update(&n.to_le_bytes());
    }
    for (s, ns) in [identity.mtime, identity.ctime] {
        h.update(&s.to_le_bytes());
        h.update(&ns.to_le_bytes());
    }
    h.finalize().as_bytes().first_chunk().copied().unwrap_or_default()
}

/// What the journal said at the start.
#[derive(Debug, Default)]
pub(super) struct Loaded {
    pub parts: HashMap<Key, Pieces>,
    pub done: HashSet<Key>,
    pub verified: HashSet<Key>,
}

/// The open journal.
#[derive(Debug)]
pub(super) struct Journal {
    file: Mutex<std::fs::File>,
}

struct Record {
    kind: u8,
    len: u32,
    key: Key,
    offset: u64,
    digest: [u8; 32],
}

impl Record {
    fn to_bytes(&self) -> [u8; RECORD] {
        let mut out = [0u8; RECORD];
        let fields: [&[u8]; 5] = [
            &[self.kind, 0, 0, 0],
            &self.len.to_le_bytes(),
            &self.key,
            &self.offset.to_le_bytes(),
            &self.digest,
        ];
        for (to, from) in out.iter_mut().zip(fields.iter().flat_map(|f| f.iter())) {
            *to = *from;
        }
        let sum = checksum(&out);
        if let Some(tail) = out.last_chunk_mut::<8>() {
            *tail = sum;
        }
        out
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; RECORD] = bytes.first_chunk()?;
        if bytes.last_chunk::<8>() != Some(&checksum(bytes)) {
            return None;
        }
        Some(Self {
            kind: *bytes.first()?,
            len: u32::from_le_bytes(bytes.get(4..8)?.try_into().ok()?),
            key: bytes.get(8..24)?.try_into().ok()?,
            offset: u64::from_le_bytes(bytes.get(24..32)?.try_into().ok()?),
            digest: bytes.get(32..64)?.try_into().ok()?,
        })
    }
}

fn checksum(bytes: &[u8; RECORD]) -> [u8; 8] {
    let hash = blake3::hash(bytes.get(..64).unwrap_or_default());
    hash.as_bytes().first_chunk().copied().unwrap_or_default()
}

/// The identity of this boot, hashed; zeros when the system does not tell.
fn boot() -> [u8; 32] {
    std::fs::read("/proc/sys/kernel/random/boot_id").map_or([0; 32], |id| *blake3::hash(&id).as_bytes())
}

impl Journal {
    /// Opens or makes the journal in the state folder, and reads it. The lock on it keeps a second receiver
    /// of the same session away until this one ends.
    ///
    /// # Errors
    /// `WouldBlock` when another receiver holds it; what the file system gives.
    pub(super) fn open(state: impl AsFd, mode: DigestMode) -> io::Result<(Self, Loaded)> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::APPEND | OFlags::NOFOLLOW;
        let fd = open_beneath(state, NAME, flags, Mode::from_raw_mode(0o600))?;
        rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive)?;
        let mut file = std::fs::File::from(fd);
        let mut loaded = Loaded::default();
        let valid = read_all(&mut file, mode, &mut loaded)?;
        file.set_len(valid)?;
        let journal = Self {
            file: Mutex::new(file),
        };
        if valid == 0 {
            loaded = Loaded::default();
            journal.append(&[Record {
                kind: BEGIN,
                len: mode as u32,
                key: [0; 16],
                offset: 0,
                digest: boot(),
            }])?;
        }
        Ok((journal, loaded))
    }

    /// A journal that keeps nothing, for a run that writes nothing.
    ///
    /// # Errors
    /// What opening `/dev/null` gives.
    pub(super) fn none() -> io::Result<Self> {
        Ok(Self {
            file: Mutex::new(std::fs::OpenOptions::new().write(true).open("/dev/null")?),
        })
    }

    /// Whether the journal still has its name (and was not removed while this side waited for its lock).
    pub(super) fn is_linked(&self) -> bool {
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        rustix::fs::fstat(&*file).is_ok_and(|st| st.st_nlink > 0)
    }

    fn append(&self, records: &[Record]) -> io::Result<()> {
        let mut buf = Vec::with_capacity(records.len() * RECORD);
        records.iter().for_each(|r| buf.extend_from_slice(&r.to_bytes()));
        self.file
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .write_all(&buf)
    }

    /// A piece was written.
    pub(super) fn piece(&self, key: Key, part: &Part, digest: [u8; 32]) -> io::Result<()> {
        self.append(&[Record {
            kind: PIECE,
            len: part.len,
            key,
            offset: part.offset,
            digest,
        }])
    }

    /// A piece was wrong.
    pub(super) fn drop_piece(&self, key: Key, offset: u64, len: u32) -> io::Result<()> {
        self.append(&[Record {
            kind: DROP,
            len,
            key,
            offset,
            digest: [0; 32],
        }])
    }

    /// Files are flushed and right, and will be renamed now.
    pub(super) fn verified(&self, keys: impl Iterator<Item = Key>) -> io::Result<()> {
        self.append_all(VERIFIED, keys)
    }

    /// Files are published and flushed.
    pub(super) fn done(&self, keys: impl Iterator<Item = Key>) -> io::Result<()> {
        self.append_all(DONE, keys)
    }

    fn append_all(&self, kind: u8, keys: impl Iterator<Item = Key>) -> io::Result<()> {
        let record = |key| Record {
            kind,
            len: 0,
            key,
            offset: 0,
            digest: [0; 32],
        };
        self.append(&keys.map(record).collect::<Vec<_>>())
    }
}

/// Reads records into `loaded`; returns the length of the valid beginning, 0 when the journal as a whole
/// does not count.
fn read_all(file: &mut std::fs::File, mode: DigestMode, loaded: &mut Loaded) -> io::Result<u64> {
    let mut reader = io::BufReader::with_capacity(RECORD * 4096, file);
    let mut bytes = [0u8; RECORD];
    let mut valid = 0u64;
    loop {
        match reader.read_exact(&mut bytes) {
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(valid),
            other => other?,
        }
        let Some(r) = Record::from_bytes(&bytes) else {
            return Ok(valid);
        };
        let first = valid == 0;
        match r.kind {
            BEGIN if first => {
                let same_boot = mode != DigestMode::None || r.digest == boot();
                if r.len != mode as u32 || !same_boot {
                    return Ok(0);
                }
            }
            _ if first => return Ok(0),
            PIECE => {
                loaded
                    .parts
                    .entry(r.key)
                    .or_default()
                    .insert(r.offset, (r.len, r.digest));
            }
            DROP => {
                if let Some(p) = loaded.parts.get_mut(&r.key) {
                    p.remove(&r.offset);
                }
                loaded.verified.remove(&r.key);
            }
            DONE => {
                loaded.parts.remove(&r.key);
                loaded.done.insert(r.key);
            }
            VERIFIED => {
                loaded.verified.insert(r.key);
            }
            _ => return Ok(valid),
        }
        valid += RECORD as u64;
    }
}

/// Whether a folder holds a journal.
pub(super) fn exists(state: impl AsFd) -> bool {
    sys::lstat(state, NAME).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::FileRef;

    fn part(offset: u64) -> Part {
        Part {
            file: FileRef { id: 1, generation: 0 },
            offset,
            len: 4096,
        }
    }

    #[test]
    fn comes_back_and_ignores_a_torn_tail() {
        let dir = tempfile::tempdir().expect("folder");
        let state = sys::open_dir(rustix::fs::CWD, b"/").err();
        assert!(state.is_some(), "an absolute path is never beneath");
        let state = std::fs::File::open(dir.path()).expect("open");
        let (j, loaded) = Journal::open(&state, DigestMode::Blake3).expect("journal");
        assert!(loaded.parts.is_empty() && loaded.done.is_empty());
        j.piece([1; 16], &part(0), [5; 32]).expect("append");
        j.piece([1; 16], &part(4096), [6; 32]).expect("append");
        j.drop_piece([1; 16], 0, 4096).expect("append");
        j.done([[2; 16]].into_iter()).expect("append");
        assert_eq!(
            Journal::open(&state, DigestMode::Blake3)
                .expect_err("locked")
                .kind(),
            io::ErrorKind::WouldBlock
        );
        drop(j);
        let path = dir.path().join("journal");
        let whole = std::fs::read(&path).expect("read");
        for cut in [RECORD - 1, 20, 1] {
            let mut torn = whole.clone();
            torn.extend_from_slice(&whole[RECORD..RECORD + cut]);
            std::fs::write(&path, &torn).expect("write");
            let (_, loaded) = Journal::open(&state, DigestMode::Blake3).expect("journal");
            assert_eq!(loaded.parts[&[1; 16]], Pieces::from([(4096, (4096, [6; 32]))]));
            assert!(loaded.done.contains(&[2; 16]));
            assert_eq!(std::fs::metadata(&path).expect("stat").len(), whole.len() as u64);
        }
    }

    #[test]
    fn another_digest_mode_begins_again() {
        let dir = tempfile::tempdir().expect("folder");
        let state = std::fs::File::open(dir.path()).expect("open");
        let (j, _) = Journal::open(&state, DigestMode::None).expect("journal");
        j.piece([1; 16], &part(0), [0; 32]).expect("append");
        drop(j);
        let (j, loaded) = Journal::open(&state, DigestMode::None).expect("journal");
        assert_eq!(loaded.parts.len(), 1);
        drop(j);
        let (_, loaded) = Journal::open(&state, DigestMode::Blake3).expect("journal");
        assert_eq!(loaded.parts.len(), 0);
    }
}
