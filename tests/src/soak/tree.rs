//! The tree that is copied, and its comparison with the copy.
//!
//! Every regular file has a size of its own, so that a part file at the destination tells which source it
//! belongs to.

use super::rng::Rng;
use rustix::fs::{AtFlags, SeekFrom, Timespec, Timestamps};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// How large a tree is.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Regular files in all.
    pub files: usize,
    /// Largest of the many, bytes.
    pub most: u64,
    /// How many large files.
    pub large: usize,
    /// Size of a large file, bytes.
    pub large_bytes: u64,
    /// How many sparse files, of `most` bytes or so with little data.
    pub sparse: usize,
}

const MODES: [u32; 5] = [0o644, 0o600, 0o755, 0o444, 0o640];

fn content(path: &Path, size: u64, rng: &mut Rng) -> io::Result<()> {
    let mut file = File::create(path)?;
    let mut left = size;
    let mut buf = vec![0u8; 256 << 10];
    while left > 0 {
        let n = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let part = buf.get_mut(..n).unwrap_or_default();
        rng.fill(part);
        file.write_all(part)?;
        left -= n as u64;
    }
    Ok(())
}

fn sparse(path: &Path, size: u64, rng: &mut Rng) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.set_len(size)?;
    let mut island = vec![0u8; 64 << 10];
    for _ in 0..3 {
        rng.fill(&mut island);
        // Far from the end, so that the size stays.
        let at = rng.below(size.saturating_sub(1 << 20) >> 16) << 16;
        file.seek(io::SeekFrom::Start(at))?;
        file.write_all(&island)?;
    }
    Ok(())
}

/// Mode and time of a name, the time with nanoseconds.
fn dress(path: &Path, rng: &mut Rng) -> io::Result<()> {
    if !path.is_symlink() {
        let mode = MODES.get(rng.index(MODES.len())).copied().unwrap_or(0o644);
        let mode = if path.is_dir() { mode | 0o700 } else { mode };
        fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    }
    let time = Timespec {
        tv_sec: 1_000_000_000 + i64::try_from(rng.below(700_000_000)).unwrap_or(0),
        tv_nsec: i64::try_from(rng.below(1_000_000_000)).unwrap_or(0),
    };
    let times = Timestamps {
        last_access: time,
        last_modification: time,
    };
    Ok(rustix::fs::utimensat(
        rustix::fs::CWD,
        path,
        &times,
        AtFlags::SYMLINK_NOFOLLOW,
    )?)
}

/// Makes the tree.
///
/// # Errors
/// What the file system gives.
pub fn make(root: &Path, shape: Shape, seed: u64) -> io::Result<()> {
    let mut rng = Rng::new(seed);
    let mut folders = vec![root.to_path_buf()];
    for n in 0..12usize {
        let parent = folders.get(rng.index(folders.len())).cloned().unwrap_or_default();
        let name: Vec<u8> = if n % 4 == 3 {
            vec![b'd', 0xff, 0xc3, b'0' + n as u8]
        } else {
            format!("dir {n}").into_bytes()
        };
        folders.push(parent.join(OsStr::from_bytes(&name)));
    }
    for folder in &folders {
        fs::create_dir_all(folder)?;
    }
    fs::create_dir_all(root.join("empty/also empty"))?;
    let mut sizes = BTreeSet::new();
    let mut names: Vec<PathBuf> = Vec::new();
    for n in 0..shape.files {
        let large = n < shape.large;
        let holes = !large && n < shape.large + shape.sparse;
        let mut size = match n {
            _ if large => shape.large_bytes + rng.below(1 << 20),
            _ if holes => shape.most + rng.below(1 << 20),
            // As many small ones as large ones at each power of two; the first is empty.
            _ => shape.most >> rng.below(u64::from(shape.most.max(2).ilog2()) + 1),
        };
        if !large && !holes {
            size = if n == shape.files - 1 {
                0
            } else {
                size / 2 + rng.below(size / 2 + 1)
            };
        }
        while !sizes.insert(size) {
            size += 1;
        }
        let name: Vec<u8> = if n % 29 == 7 {
            [b"f\xfe\x80 ", n.to_string().as_bytes()].concat()
        } else {
            format!("file-{n}").into_bytes()
        };
        let folder = folders.get(rng.index(folders.len())).cloned().unwrap_or_default();
        let path = folder.join(OsStr::from_bytes(&name));
        if holes {
            sparse(&path, size, &mut rng)?
        } else {
            content(&path, size, &mut rng)?
        }
        names.push(path);
    }
    for n in 0..8usize {
        let of = names.get(rng.index(names.len())).cloned().unwrap_or_default();
        let folder = folders.get(rng.index(folders.len())).cloned().unwrap_or_default();
        fs::hard_link(of, folder.join(format!("link {n}")))?;
    }
    for (n, target) in [&b"file-1"[..], b"../nowhere", b"/etc/hostname", b"\xff\xfe", b"."]
        .iter()
        .enumerate()
    {
        let folder = folders.get(rng.index(folders.len())).cloned().unwrap_or_default();
        let path = folder.join(format!("symbolic {n}"));
        symlink(OsStr::from_bytes(target), &path)?;
        dress(&path, &mut rng)?;
    }
    for path in &names {
        dress(path, &mut rng)?;
    }
    // Folders last: what is made in them touches their times. The deepest first, for the same reason.
    folders.sort();
    for folder in folders.iter().rev() {
        dress(folder, &mut rng)?;
    }
    Ok(())
}

/// One name of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// File type and permission bits.
    pub mode: u32,
    /// Seconds and nanoseconds.
    pub mtime: (i64, i64),
    /// Bytes; 0 for folders.
    pub size: u64,
    /// Target of a symbolic link.
    pub target: Option<Vec<u8>>,
    /// Device and inode.
    pub inode: (u64, u64),
    /// Names of the inode; 1 for folders.
    pub links: u64,
    /// Allocated bytes.
    pub allocated: u64,
}

impl Item {
    /// Whether it is a regular file.
    #[must_use]
    pub const fn is_file(&self) -> bool {
        self.mode & 0o170_000 == 0o100_000
    }
}

/// All names beneath `root` (which is the empty name), by relative path.
///
/// # Errors
/// What the file system gives.
pub fn walk(root: &Path) -> io::Result<BTreeMap<Vec<u8>, Item>> {
    let mut out = BTreeMap::new();
    let mut todo = vec![PathBuf::new()];
    while let Some(rel) = todo.pop() {
        let path = if rel.as_os_str().is_empty() {
            root.to_path_buf()
        } else {
            root.join(&rel)
        };
        let meta = fs::symlink_metadata(&path)?;
        if meta.is_dir() {
            for entry in fs::read_dir(&path)? {
                todo.push(rel.join(entry?.file_name()));
            }
        }
        let target = if meta.is_symlink() {
            Some(fs::read_link(&path)?.into_os_string().into_vec())
        } else {
            None
        };
        let item = Item {
            mode: meta.mode(),
            mtime: (meta.mtime(), meta.mtime_nsec()),
            size: if meta.is_dir() { 0 } else { meta.size() },
            target,
            inode: (meta.dev(), meta.ino()),
            links: if meta.is_dir() { 1 } else { meta.nlink() },
            allocated: meta.blocks() * 512,
        };
        out.insert(rel.into_os_string().into_vec(), item);
    }
    Ok(out)
}

/// Path of a relative name.
#[must_use]
pub fn beneath(root: &Path, rel: &[u8]) -> PathBuf {
    if rel.is_empty() {
        root.to_path_buf()
    } else {
        root.join(OsStr::from_bytes(rel))
    }
}

/// BLAKE3 of a file.
///
/// # Errors
/// What reading gives.
pub fn digest(path: &Path) -> io::Result<[u8; 32]> {
    let mut file = File::open(path)?;
    let mut hasher = blake3::Hasher::new();
    let mut buf = vec![0u8; 256 << 10];
    loop {
        let n = file.read(&mut buf)?;
        if n == 0 {
            return Ok(*hasher.finalize().as_bytes());
        }
        hasher.update(buf.get(..n).unwrap_or_default());
    }
}

/// Bytes of a file that are not holes.
///
/// # Errors
/// What the file system gives.
pub fn data_bytes(path: &Path, size: u64) -> io::Result<u64> {
    let file = File::open(path)?;
    let (mut at, mut sum) = (0u64, 0u64);
    while at < size {
        let begin = match rustix::fs::seek(&file, SeekFrom::Data(at)) {
            Ok(begin) => begin,
            Err(rustix::io::Errno::NXIO) => break,
            Err(e) => return Err(e.into()),
        };
        let end = rustix::fs::seek(&file, SeekFrom::Hole(begin))?;
        sum += end.saturating_sub(begin);
        at = end;
    }
    Ok(sum)
}

/// Every way in which `copy` differs from `source`, whose contents are `digests`.
///
/// # Errors
/// What the file system gives.
pub fn differences(
    source: &BTreeMap<Vec<u8>, Item>,
    digests: &HashMap<Vec<u8>, [u8; 32]>,
    copy: &Path,
) -> io::Result<Vec<String>> {
    let there = walk(copy)?;
    let mut out = Vec::new();
    for name in there.keys().filter(|n| !source.contains_key(*n)) {
        out.push(format!("{}: only in the copy", name.escape_ascii()));
    }
    // First name of each inode, on both sides.
    let (mut here_first, mut there_first) = (HashMap::new(), HashMap::new());
    for (name, want) in source {
        let mut bad = |text: String| out.push(format!("{}: {text}", name.escape_ascii()));
        let Some(got) = there.get(name) else {
            bad("missing".into());
            continue;
        };
        if (got.mode, got.size) != (want.mode, want.size) {
            bad(format!(
                "mode {:o}, {} bytes; {:o}, {} at the source",
                got.mode, got.size, want.mode, want.size
            ));
        }
        if got.mtime != want.mtime {
            bad(format!("time {:?}; {:?} at the source", got.mtime, want.mtime));
        }
        if got.target != want.target {
            bad("another target".into());
        }
        let (a, b) = (
            here_first.entry(want.inode).or_insert(name),
            there_first.entry(got.inode).or_insert(name),
        );
        if *a != *b || got.links != want.links {
            bad(format!(
                "hard links differ: {} names, {} at the source",
                got.links, want.links
            ));
        }
        if want.allocated < want.size && got.allocated > want.allocated + (256 << 10) {
            bad(format!(
                "holes are filled: {} bytes allocated, {} at the source",
                got.allocated, want.allocated
            ));
        }
        if want.is_file() && got.is_file() && digests.get(name) != Some(&digest(&beneath(copy, name))?) {
            bad("other content".into());
        }
    }
    Ok(out)
}
