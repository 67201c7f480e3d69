//! Small private files: made whole or not at all (write aside, fsync, rename, fsync the folder), mode
//! 0600 in folders of mode 0700.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use crate::error::ServiceError;

/// Makes `dir` (and its parents) with mode 0700 if it is missing.
pub fn make_dir(dir: &Path) -> Result<(), ServiceError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(|e| ServiceError::file("cannot make folder", dir, e))
}

/// Puts `bytes` at `path`, mode 0600, durably: after a crash the file is the old one or this one.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), ServiceError> {
    let dir = path
        .parent()
        .filter(|d| !d.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    make_dir(dir)?;
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}.part", std::process::id()));
    let aside = dir.join(name);
    let result = write_aside(&aside, bytes)
        .and_then(|()| fs::rename(&aside, path))
        .and_then(|()| File::open(dir)?.sync_all());
    result.map_err(|e| {
        let _ = fs::remove_file(&aside);
        ServiceError::file("cannot write", path, e)
    })
}

fn write_aside(aside: &Path, bytes: &[u8]) -> std::io::Result<()> {
    match fs::remove_file(aside) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(aside)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Reads a private file of at most `limit` bytes; `None` if there is none. A file that others may
/// read is refused: its secrets are no longer secret.
pub fn read(path: &Path, limit: u64) -> Result<Option<Vec<u8>>, ServiceError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(ServiceError::file("cannot read", path, e)),
    };
    let meta = file
        .metadata()
        .map_err(|e| ServiceError::file("cannot read", path, e))?;
    if meta.mode() & 0o077 != 0 {
        return Err(ServiceError::Invalid(format!(
            "{}: mode {:04o} lets others read the secrets in it; `chmod 600` it (and consider new tickets)",
            path.display(),
            meta.mode() & 0o7777
        )));
    }
    let mut bytes = Vec::new();
    file.take(limit + 1)
        .read_to_end(&mut bytes)
        .map_err(|e| ServiceError::file("cannot read", path, e))?;
    if bytes.len() as u64 > limit {
        return Err(ServiceError::Invalid(format!(
            "{}: more than {limit} bytes",
            path.display()
        )));
    }
    Ok(Some(bytes))
}
