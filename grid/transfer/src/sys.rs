//! File system calls on paths that are bytes, always beneath a folder's descriptor.

use crate::wire::Identity;
use rustix::fs::{Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Every open resolves beneath its folder, and never through `/proc`-like links.
const BENEATH: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS);
/// Times that an open is tried again when the kernel asks for it (a rename raced with `..` handling).
const OPEN_TRIES: u32 = 16;

/// A path as the C string that calls want.
///
/// # Errors
/// `InvalidInput` when it holds a NUL byte.
pub(crate) fn c_path(path: &[u8]) -> io::Result<CString> {
    CString::new(path).map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "path with a NUL byte"))
}

/// Opens `path` beneath `base`; empty is `base` itself.
pub(crate) fn open_beneath(base: impl AsFd, path: &[u8], flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
    let path = c_path(if path.is_empty() { b"." } else { path })?;
    for _ in 0..OPEN_TRIES {
        match rustix::fs::openat2(base.as_fd(), &path, flags | OFlags::CLOEXEC, mode, BENEATH) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(Errno::XDEV) => {
                let text = "the path leads out of the folder that is served (a link or ..)";
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
            }
            other => return other.map_err(io::Error::from),
        }
    }
    Err(Errno::AGAIN.into())
}

/// Opens a folder beneath `base`.
pub(crate) fn open_dir(base: impl AsFd, path: &[u8]) -> io::Result<OwnedFd> {
    open_beneath(base, path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
}

/// Opens a regular file beneath `base` for reading, without following a link in its place and without
/// waiting for a writer should it be a fifo.
pub(crate) fn open_source(base: impl AsFd, path: &[u8]) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    open_beneath(base, path, flags, Mode::empty())
}

/// `(folder, last component)` of a path.
pub(crate) fn split_last(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&b| b == b'/') {
        Some(at) => (
            path.get(..at).unwrap_or_default(),
            path.get(at + 1..).unwrap_or_default(),
        ),
        None => (&[], path),
    }
}

/// `a/b`, or the one that is not empty.
pub(crate) fn join(a: &[u8], b: &[u8]) -> Vec<u8> {
    let mut out = a.to_vec();
    if !a.is_empty() && !b.is_empty() {
        out.push(b'/');
    }
    out.extend_from_slice(b);
    out
}

/// Status of a name without following it.
pub(crate) fn lstat(dir: impl AsFd, name: &[u8]) -> io::Result<Stat> {
    Ok(rustix::fs::statat(
        dir,
        &c_path(name)?,
        rustix::fs::AtFlags::SYMLINK_NOFOLLOW,
    )?)
}

/// Identity of what `stat` describes.
pub(crate) fn identity(stat: &Stat) -> Identity {
    Identity {
        dev: stat.st_dev,
        ino: stat.st_ino,
        size: u64::try_from(stat.st_size).unwrap_or(0),
        mtime: (stat.st_mtime, u32::try_from(stat.st_mtime_nsec).unwrap_or(0)),
        ctime: (stat.st_ctime, u32::try_from(stat.st_ctime_nsec).unwrap_or(0)),
    }
}

/// `utimensat` argument that sets the modification time only.
pub(crate) fn times(mtime: (i64, u32)) -> rustix::fs::Timestamps {
    rustix::fs::Timestamps {
        last_access: rustix::fs::Timespec {
            tv_sec: 0,
            tv_nsec: rustix::fs::UTIME_OMIT,
        },
        last_modification: rustix::fs::Timespec {
            tv_sec: mtime.0,
            tv_nsec: i64::from(mtime.1),
        },
    }
}

/// Reads until `buf` is full or the file ends.
pub(crate) fn pread_full(file: impl AsFd, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut got = 0usize;
    while let Some(rest) = buf.get_mut(got..).filter(|r| !r.is_empty()) {
        match rustix::io::pread(file.as_fd(), rest, offset.saturating_add(got as u64)) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(got)
}

/// Writes all of `buf`.
pub(crate) fn pwrite_all(file: impl AsFd, buf: &[u8], offset: u64) -> io::Result<()> {
    let mut done = 0usize;
    while let Some(rest) = buf.get(done..).filter(|r| !r.is_empty()) {
        match rustix::io::pwrite(file.as_fd(), rest, offset.saturating_add(done as u64)) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

/// System error number, 0 when the error has none.
pub(crate) fn errno(e: &io::Error) -> i32 {
    e.raw_os_error().unwrap_or(0)
}

/// Lets this process open as many files as it ever may: a session holds part files that are complete and
/// not yet published. What the system refuses stays as it was.
pub(crate) fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let now = getrlimit(Resource::Nofile);
    if now.current != now.maximum {
        let wanted = Rlimit {
            current: now.maximum,
            maximum: now.maximum,
        };
        let _ = setrlimit(Resource::Nofile, wanted);
    }
}

/// Whether the peer of a socket that only we write to is gone.
pub(crate) fn peer_gone(socket: BorrowedFd<'_>) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::new(&socket, PollFlags::RDHUP)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    poll(&mut fds, Some(&now)).is_ok() && fds.iter().any(|f| f.revents().intersects(gone))
}

/// Data extents of a sparse file, merged to multiples of `grain`; `None` when it is dense or has more than
/// `max` of them.
pub(crate) fn extents(
    file: impl AsFd,
    size: u64,
    grain: u64,
    max: usize,
) -> io::Result<Option<Vec<(u64, u64)>>> {
    let mut out: Vec<(u64, u64)> = Vec::new();
    let mut at = 0u64;
    while at < size {
        let start = match rustix::fs::seek(file.as_fd(), rustix::fs::SeekFrom::Data(at)) {
            Ok(s) => s,
            Err(Errno::NXIO) => break,
            Err(Errno::INVAL) => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        let end = rustix::fs::seek(file.as_fd(), rustix::fs::SeekFrom::Hole(start))?.min(size);
        if end <= start {
            break;
        }
        let start = start - start % grain;
        let end_up = end.checked_next_multiple_of(grain).unwrap_or(size).min(size);
        let many = out.len() >= max;
        match out.last_mut() {
            Some(last) if last.0 + last.1 >= start => last.1 = end_up - last.0,
            _ if many => return Ok(None),
            _ => out.push((start, end_up - start)),
        }
        at = end_up;
    }
    let dense = matches!(out.as_slice(), [(0, len)] if *len == size);
    Ok(if dense { None } else { Some(out) })
}
