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
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::io::Errno;
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

/// Longest time in which a file system whose process has ended may still answer in another way, and how often it is asked.
const ENDING: Duration = Duration::from_secs(10);
const AGAIN: Duration = Duration::from_millis(20);

/// Waits until `alive` ends, then unmounts `dir` if its file system has nobody behind it any more. A byte before the end says
/// that it was unmounted in order.
///
/// A process that is ending has closed the pipe before the kernel has taken its file system from it: what is asked in between is
/// neither answered nor refused as of a dead one, so it is asked again.
///
/// # Errors
/// It cannot be unmounted.
pub fn guard(dir: &Path, mut alive: impl Read) -> io::Result<()> {
    let mut byte = [0];
    loop {
        match alive.read(&mut byte) {
            Ok(0) => break,
            Ok(_) => return Ok(()),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    let deadline = Instant::now() + ENDING;
    loop {
        // The kernel may know the attributes: it is to ask.
        match statx(CWD, dir, AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS) {
            Err(Errno::NOTCONN) => return unmount(dir, true),
            // It lives, or was unmounted, or something else is mounted there now.
            Ok(_) | Err(Errno::NOENT) => return Ok(()),
            Err(_) if Instant::now() < deadline => std::thread::sleep(AGAIN),
            Err(e) => return Err(e.into()),
        }
    }
}
