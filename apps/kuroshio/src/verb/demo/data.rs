//! The files that the demo moves: a tree of this machine's own files, small and large, or the user's.
//!
//! Selection is deterministic: candidates are regular, readable files below the usual system folders,
//! ordered by the BLAKE3 of their path. First come [`SMALL_FILES`] small ones and [`MEDIUM_FILES`]
//! medium ones, then large ones, largest first, until [`TARGET_BYTES`] is reached; medium ones again
//! fill what is missing. The chosen files are copied to a staging folder, so that both sides of the
//! demo are on a real disk and the originals are never at risk.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Files below this size count as small, in bytes.
const SMALL_BELOW_BYTES: u64 = 64 * 1024;
/// Files from this size on count as large, in bytes.
const LARGE_FROM_BYTES: u64 = 4 * 1024 * 1024;
/// No single file of the tree is larger than this, in bytes: one giant would make the tree one stream.
const LARGEST_BYTES: u64 = 256 * 1024 * 1024;
/// Small files taken.
const SMALL_FILES: usize = 2_000;
/// Medium files taken before the large ones.
const MEDIUM_FILES: usize = 400;
/// The tree's size to reach, in bytes.
pub const TARGET_BYTES: u64 = 1_600_000_000;
/// The least that the issue of the demo promises: files and bytes.
pub const LEAST: (usize, u64) = (2_000, 1_500_000_000);
/// At most this many candidates are looked at.
const CANDIDATES_MAX: usize = 400_000;

/// What a tree holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreeSize {
    /// Regular files.
    pub files: usize,
    /// Their payload bytes.
    pub bytes: u64,
}

struct Candidate {
    path: PathBuf,
    bytes: u64,
    order: [u8; 32],
}

/// Folders whose files are candidates, where they exist and can be read.
fn roots() -> Vec<PathBuf> {
    let mut roots: Vec<PathBuf> = ["/usr", "/opt", "/var/lib"].iter().map(PathBuf::from).collect();
    if let Some(home) = std::env::var_os("HOME") {
        roots.extend([".rustup", ".cargo/registry"].map(|d| Path::new(&home).join(d)));
    }
    roots
}

fn candidates() -> Vec<Candidate> {
    let mut found = Vec::new();
    let mut folders = roots();
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(&folder) else {
            continue;
        };
        for entry in entries.flatten() {
            if found.len() >= CANDIDATES_MAX {
                return found;
            }
            let Ok(kind) = entry.file_type() else { continue };
            let path = entry.path();
            if kind.is_dir() {
                folders.push(path);
            } else if kind.is_file() {
                let Ok(meta) = entry.metadata() else { continue };
                let order = blake3::hash(path.as_os_str().as_encoded_bytes()).into();
                found.push(Candidate {
                    path,
                    bytes: meta.len(),
                    order,
                });
            }
        }
    }
    found
}

/// Chooses the files of the default tree out of `all`.
fn choose(mut all: Vec<Candidate>) -> Vec<Candidate> {
    all.retain(|c| c.bytes > 0 && c.bytes <= LARGEST_BYTES);
    all.sort_by_key(|c| c.order);
    let (mut small, mut medium, mut large) = (Vec::new(), Vec::new(), Vec::new());
    for candidate in all {
        match candidate.bytes {
            b if b < SMALL_BELOW_BYTES => small.push(candidate),
            b if b < LARGE_FROM_BYTES => medium.push(candidate),
            _ => large.push(candidate),
        }
    }
    large.sort_by(|a, b| b.bytes.cmp(&a.bytes).then(a.order.cmp(&b.order)));
    let medium_rest = medium.split_off(MEDIUM_FILES.min(medium.len()));
    let small_rest = small.split_off(SMALL_FILES.min(small.len()));
    let mut chosen: Vec<Candidate> = small.into_iter().chain(medium).collect();
    let mut bytes: u64 = chosen.iter().map(|c| c.bytes).sum();
    for candidate in large.into_iter().chain(medium_rest).chain(small_rest) {
        if bytes >= TARGET_BYTES && chosen.len() >= LEAST.0 {
            break;
        }
        bytes += candidate.bytes;
        chosen.push(candidate);
    }
    chosen
}

/// Copies a tree of this machine's own files into `staging` and says what it holds.
///
/// Files that cannot be read are left out. Fails when fewer than [`LEAST`] could be found.
pub fn stage(staging: &Path) -> io::Result<TreeSize> {
    let mut size = TreeSize::default();
    for candidate in choose(candidates()) {
        let relative = candidate.path.strip_prefix("/").unwrap_or(&candidate.path);
        let target = staging.join(relative);
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent)?;
        }
        // A file that vanished or may not be read is no reason to stop; a full disk is.
        match fs::copy(&candidate.path, &target) {
            Ok(bytes) => {
                size.files += 1;
                size.bytes += bytes;
            }
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied
                ) =>
            {
                let _ = fs::remove_file(&target);
            }
            Err(e) => return Err(e),
        }
    }
    if size.files < LEAST.0 || size.bytes < LEAST.1 {
        return Err(io::Error::other(format!(
            "only {} files with {} bytes were found on this machine; at least {} files and {} bytes are needed: give your own with --data DIR",
            size.files, size.bytes, LEAST.0, LEAST.1
        )));
    }
    Ok(size)
}

/// Calls `visit` with every regular file below `root`, relative to it, in no particular order.
fn walk(root: &Path, visit: &mut dyn FnMut(&Path, &fs::Metadata) -> io::Result<()>) -> io::Result<()> {
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root.join(&folder))? {
            let entry = entry?;
            let relative = folder.join(entry.file_name());
            let kind = entry.file_type()?;
            if kind.is_dir() {
                folders.push(relative);
            } else if kind.is_file() {
                visit(&relative, &entry.metadata()?)?;
            }
        }
    }
    Ok(())
}

/// What the tree below `root` holds.
pub fn measure(root: &Path) -> io::Result<TreeSize> {
    let mut size = TreeSize::default();
    walk(root, &mut |_, meta| {
        size.files += 1;
        size.bytes += meta.len();
        Ok(())
    })?;
    Ok(size)
}

/// Compares every file of `source` with its copy below `copy`, byte for byte by BLAKE3, and returns how
/// many are equal. This is the demo's own check: it shares nothing with the transfer's.
pub fn verify(source: &Path, copy: &Path) -> io::Result<usize> {
    let mut equal = 0;
    walk(source, &mut |relative, meta| {
        let there = copy.join(relative);
        if fs::symlink_metadata(&there).is_ok_and(|m| m.is_file() && m.len() == meta.len())
            && digest(&source.join(relative))? == digest(&there)?
        {
            equal += 1;
        }
        Ok(())
    })?;
    Ok(equal)
}

fn digest(path: &Path) -> io::Result<blake3::Hash> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(fs::File::open(path)?)?;
    Ok(hasher.finalize())
}

/// Asks the kernel to forget the cached pages of every file below `root`, so that they are read from
/// disk. Works for any user, file by file; the whole cache is for root alone.
pub fn drop_caches(root: &Path) -> io::Result<()> {
    walk(root, &mut |relative, _| {
        let file = fs::File::open(root.join(relative))?;
        rustix::fs::fdatasync(&file)?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(name: &str, bytes: u64) -> Candidate {
        Candidate {
            path: PathBuf::from(name),
            bytes,
            order: blake3::hash(name.as_bytes()).into(),
        }
    }

    #[test]
    fn the_choice_holds_small_and_large_files_and_reaches_the_size() {
        let mut all: Vec<Candidate> = (0..5_000)
            .map(|i| candidate(&format!("small{i}"), 1_000))
            .collect();
        all.extend((0..900).map(|i| candidate(&format!("medium{i}"), 200_000)));
        all.extend((0..100).map(|i| candidate(&format!("large{i}"), 50_000_000 + i)));
        all.push(candidate("giant", LARGEST_BYTES + 1));
        let chosen = choose(all);
        let bytes: u64 = chosen.iter().map(|c| c.bytes).sum();
        assert!(
            (TARGET_BYTES..TARGET_BYTES + 60_000_000).contains(&bytes),
            "{bytes}"
        );
        assert!(chosen.len() >= LEAST.0);
        assert!(chosen.iter().any(|c| c.bytes >= LARGE_FROM_BYTES));
        assert!(chosen.iter().all(|c| c.bytes <= LARGEST_BYTES));
    }

    #[test]
    fn verify_counts_equal_files_only() {
        let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for (dir, middle) in [(&a, b'x'), (&b, b'y')] {
            fs::create_dir(dir.path().join("d")).unwrap();
            fs::write(dir.path().join("d/same"), b"same").unwrap();
            fs::write(dir.path().join("flipped"), [1, middle, 3]).unwrap();
        }
        fs::write(a.path().join("missing"), b"m").unwrap();
        assert_eq!(verify(a.path(), b.path()).unwrap(), 1);
        assert_eq!(verify(a.path(), a.path()).unwrap(), 3);
        assert_eq!(measure(a.path()).unwrap(), TreeSize { files: 3, bytes: 8 });
    }
}
