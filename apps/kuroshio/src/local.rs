//! Local sides of a copy: sources and destinations as folders that nothing leaves, and the loopback
//! connections of a copy from here to here.

use std::ffi::OsStr;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use kuroshio_transfer::{Conn, Source};
use rustix::fs::{Mode, OFlags};

use crate::error::Failure;

fn open_dir(path: &Path) -> Result<OwnedFd, Failure> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
        .map_err(|e| Failure::usage(format!("{}: cannot open the folder: {e}", path.display())))
}

/// A local source: the folder it lies in, and its name. `DIR/.`, `.` and `/` mean what is in the folder.
pub fn source(path: &Path) -> Result<Source, Failure> {
    let missing = |e: io::Error| Failure::usage(format!("{}: {e}", path.display()));
    let meta = path.symlink_metadata().map_err(missing)?;
    let bytes = path.as_os_str().as_bytes();
    if bytes == b"." || bytes.ends_with(b"/.") {
        return Ok(Source {
            base: open_dir(path)?,
            path: Vec::new(),
            name: Vec::new(),
        });
    }
    // `..` and a slash at the end are resolved; a symbolic link without one is copied as a link.
    let resolved = match path.file_name() {
        Some(_) if !(bytes.ends_with(b"/") && meta.is_symlink()) => path.to_owned(),
        _ => path.canonicalize().map_err(missing)?,
    };
    let Some(name) = resolved.file_name() else {
        return Ok(Source {
            base: open_dir(&resolved)?,
            path: Vec::new(),
            name: Vec::new(),
        });
    };
    let name = name.as_bytes().to_vec();
    Ok(Source {
        base: open_dir(parent(&resolved))?,
        path: name.clone(),
        name,
    })
}

/// The folder of a path.
fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    }
}

/// A local destination.
pub struct Destination {
    /// Folder that nothing leaves.
    pub root: OwnedFd,
    /// Path beneath it; empty is the folder itself.
    pub path: Vec<u8>,
    /// Absolute form, for session keys.
    pub absolute: PathBuf,
}

/// Opens a local destination: the folder itself when it exists, else the one that it will lie in.
pub fn destination(path: &Path) -> Result<Destination, Failure> {
    let failed = |e: io::Error| Failure::usage(format!("{}: {e}", path.display()));
    if path.is_dir() {
        let absolute = path.canonicalize().map_err(failed)?;
        // Beneath the folder it lies in, where an earlier run that made it has left its state.
        return match (absolute.parent(), absolute.file_name()) {
            (Some(folder), Some(name)) => Ok(Destination {
                root: open_dir(folder)?,
                path: name.as_bytes().to_vec(),
                absolute,
            }),
            _ => Ok(Destination {
                root: open_dir(&absolute)?,
                path: Vec::new(),
                absolute,
            }),
        };
    }
    let Some(name) = path.file_name() else {
        return Err(Failure::usage(format!(
            "{}: not a name for a file or folder",
            path.display()
        )));
    };
    let folder = parent(path).canonicalize().map_err(|e| {
        Failure::usage(format!(
            "{}: the folder that it should lie in: {e}",
            path.display()
        ))
    })?;
    let absolute = folder.join(name);
    Ok(Destination {
        root: open_dir(&folder)?,
        path: name.as_bytes().to_vec(),
        absolute,
    })
}

/// Absolute form of a source, for session keys; the link itself when it is one.
pub fn absolute(path: &Path) -> Vec<u8> {
    std::path::absolute(path).map_or_else(
        |_| path.as_os_str().as_bytes().to_vec(),
        |p| p.into_os_string().as_bytes().to_vec(),
    )
}

/// Whether a path is written as a folder: with a slash at its end.
pub fn names_folder(path: &OsStr) -> bool {
    path.as_bytes().ends_with(b"/") || path.as_bytes().ends_with(b"/.")
}

/// Two ends of a TCP connection over loopback that nobody else has.
pub fn pair() -> Result<(Conn, Conn), Failure> {
    let failed = |e: io::Error| Failure::failed(format!("cannot connect over loopback: {e}"));
    let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(failed)?;
    let here = TcpStream::connect(listener.local_addr().map_err(failed)?).map_err(failed)?;
    let mine = here.local_addr().map_err(failed)?;
    loop {
        let (there, peer) = listener.accept().map_err(failed)?;
        // Another process may have connected to the port in between: it is not ours.
        if peer == mine {
            here.set_nodelay(true)
                .and_then(|()| there.set_nodelay(true))
                .map_err(failed)?;
            return Ok((Conn::plain(here), Conn::plain(there)));
        }
    }
}
