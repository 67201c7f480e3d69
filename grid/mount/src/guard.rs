//! What takes a mount away whose process has died.
//!
//! ```text
//!   mount process ──holds──> pipe ──end of file when it is gone──> guard: unmounts, if the mount is still dead there
//! ```
//!
//! Without it the folder would answer `ENOTCONN` for ever. The kernel ends all open files with the process, so
//! nothing can be lost by unmounting.

use std::io::{self, Read};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::mount::UnmountFlags;

/// Unmounts a folder: by the system call, or for an ordinary user by `fusermount3`.
///
/// # Errors
/// Neither works; the system call's error.
pub fn unmount(dir: &Path, lazy: bool) -> io::Result<()> {
    let flags = if lazy {
        UnmountFlags::DETACH
    } else {
        UnmountFlags::empty()
    };
    match rustix::mount::unmount(dir, flags) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::PERM) => by_helper(dir, lazy),
        Err(e) => Err(e.into()),
    }
}

fn by_helper(dir: &Path, lazy: bool) -> io::Result<()> {
    let mut command = Command::new("fusermount3");
    command.arg("-u");
    if lazy {
        command.arg("-z");
    }
    let done = command.arg("--").arg(dir).stdin(Stdio::null()).output()?;
    if done.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&done.stderr);
    Err(io::Error::other(text.trim().to_owned()))
}

/// Waits until `alive` ends, then unmounts `dir` if its file system has nobody behind it any more. A byte before the end says
/// that it was unmounted in order.
///
/// Nobody is asked for that: the mount's process may just be ending, and what it has not answered by then fails in one of
/// several ways.
///
/// # Errors
/// It cannot be unmounted.
pub fn guard(dir: &Path, mut alive: impl Read) -> io::Result<()> {
    let mounted = device(dir);
    let mut byte = [0];
    loop {
        match alive.read(&mut byte) {
            Ok(0) => break,
            Ok(_) => return Ok(()),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    if device(dir) == mounted {
        return unmount(dir, true);
    }
    // The user was quicker.
    Ok(())
}

/// The number of the file system at `dir`, as the kernel has it; none if it has lost its process and says not even that.
fn device(dir: &Path) -> Option<(u32, u32)> {
    let found = statx(CWD, dir, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE).ok()?;
    Some((found.stx_dev_major, found.stx_dev_minor))
}
