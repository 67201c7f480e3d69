//! A private world for the testbed: PID, mount and network namespaces with their own init.
//!
//! ```text
//! caller --fork--> keeper --fork--> init (PID 1) --fork--> this program again (PID 2)
//!                  unshare           /proc, /run/netns      exec /proc/self/exe ARGS
//! ```
//!
//! Every arrow is a parent-death signal (`SIGKILL`): when the caller is killed, even with
//! `kill -9`, the keeper dies, then init, and with a PID namespace's init the kernel kills every
//! process in it; with the last process go its network namespaces, devices and mounts. Nothing
//! has to be cleaned up and nothing can be left behind. Init reaps orphans and ends with the
//! program.
//!
//! Inside is a session of its own, apart from the caller's terminal: Ctrl-C ends the caller and so
//! everything. A session is also a scheduling group (autogroup); root puts it before everything
//! else on the machine (nice -20), so that other load makes the emulator wait little.
//!
//! Without root a user namespace is made first, in which the caller's own user is root.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitStatus};

use crate::sys;

/// Environment: the caller's PID namespace, as `/proc/self/ns/pid` shows it.
const ENV_OUTER: &str = "KUROSHIO_OUTER_PIDNS";

/// Environment: the core that is kept free for the emulator.
const ENV_CORE: &str = "KUROSHIO_EMULATOR_CORE";

/// Environment: the descriptor of the caller's network namespace.
const ENV_NET: &str = "KUROSHIO_OUTER_NETNS_FD";

const PID_NS: &str = "/proc/self/ns/pid";

/// Whether this process is inside [`run`]'s namespaces.
#[must_use]
pub fn is_inside() -> bool {
    match (std::env::var_os(ENV_OUTER), std::fs::read_link(PID_NS)) {
        (Some(outer), Ok(here)) => here.as_os_str() != outer,
        _ => false,
    }
}

/// The core that [`run`] kept free for the emulator, when the machine has two or more.
#[must_use]
pub fn emulator_core() -> Option<usize> {
    std::env::var(ENV_CORE).ok()?.parse().ok()
}

/// The network namespace of the caller of [`run`], in which real interfaces are: for root only.
///
/// # Errors
/// `PermissionDenied` when the caller was not root.
pub(crate) fn outer_net() -> io::Result<OwnedFd> {
    let fd = std::env::var(ENV_NET)
        .ok()
        .and_then(|text| text.parse::<i32>().ok());
    let path = fd.map(|fd| format!("/proc/self/fd/{fd}"));
    match path.map(std::fs::File::open) {
        Some(Ok(file)) => Ok(file.into()),
        _ => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "an interface of this machine is attached by root only",
        )),
    }
}

/// Runs this program again with `args` inside new namespaces and waits for it. The program there
/// is bound to all cores but one, which is the emulator's, when there are two or more.
///
/// # Errors
/// When the namespaces are forbidden: the text says which step failed and what to do.
pub fn run(args: &[OsString]) -> io::Result<ExitStatus> {
    let mut command = command(args)?;
    let (mut read, write) = io::pipe()?;
    let plan = plan(write)?;
    match &plan.outer_net {
        Some(fd) => command.env(ENV_NET, fd.as_raw_fd().to_string()),
        None => command.env_remove(ENV_NET),
    };
    let backlog = crate::sysctl::RaisedBacklog::raise();
    // SAFETY: `enter` is made for the time between fork and exec: it makes system calls only, on
    // values prepared in `plan`, and allocates nothing.
    unsafe { command.pre_exec(move || sys::enter(&plan)) };
    let spawned = command.spawn();
    // The closure holds the pipe's writing end: it must go before reading to the end.
    drop(command);
    let mut failure = [0u8; 5];
    let failed = read.read_exact(&mut failure).is_ok();
    let status = match spawned {
        Ok(mut child) => child.wait(),
        Err(e) => Err(e),
    };
    drop(backlog);
    if failed {
        let [step, errno @ ..] = failure;
        return Err(explain(step, i32::from_le_bytes(errno)));
    }
    status
}

fn command(args: &[OsString]) -> io::Result<Command> {
    let mut command = Command::new("/proc/self/exe");
    if let Some(name) = std::env::args_os().next() {
        command.arg0(name);
    }
    command
        .args(args)
        .env(ENV_OUTER, std::fs::read_link(PID_NS)?)
        .env_remove(ENV_CORE);
    if let Some((&first, rest)) = kuroshio_clock::allowed_cores()?.split_first()
        && !rest.is_empty()
    {
        command.env(ENV_CORE, first.to_string());
    }
    Ok(command)
}

fn plan(report: io::PipeWriter) -> io::Result<sys::Plan> {
    let uid = rustix::process::geteuid().as_raw();
    let gid = rustix::process::getegid().as_raw();
    let cores = kuroshio_clock::allowed_cores()?;
    let netns_dir = Path::new("/run/netns");
    if uid == 0 && !netns_dir.exists() {
        // Only `ip netns exec` inside profits: without the folder all else works.
        let _ = std::fs::create_dir_all(netns_dir);
    }
    Ok(sys::Plan {
        parent: std::process::id(),
        user: (uid != 0).then(|| (format!("0 {uid} 1\n"), format!("0 {gid} 1\n"))),
        netns_dir: netns_dir.is_dir(),
        // Only root may go back there.
        outer_net: std::fs::File::open("/proc/self/ns/net")
            .ok()
            .filter(|_| uid == 0)
            .map(Into::into),
        cores: if cores.len() > 1 {
            cores[1..].to_vec()
        } else {
            Vec::new()
        },
        report: report.into(),
    })
}

fn explain(step: u8, errno: i32) -> io::Error {
    let cause = io::Error::from_raw_os_error(errno);
    let what = sys::STEPS
        .get(usize::from(step))
        .copied()
        .unwrap_or("unknown step");
    let advice = if rustix::process::geteuid().is_root() {
        "the testbed needs CAP_SYS_ADMIN and CAP_NET_ADMIN: run it outside the container, or start \
         the container with them (docker run --privileged)"
    } else {
        "run it as root, or allow user namespaces: \
         sysctl -w user.max_user_namespaces=10000, on Debian also \
         kernel.unprivileged_userns_clone=1, on Ubuntu also \
         kernel.apparmor_restrict_unprivileged_userns=0"
    };
    io::Error::new(
        cause.kind(),
        format!("cannot make the testbed's namespaces: {what}: {cause}; {advice}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outside_is_outside() {
        assert!(!is_inside());
    }

    #[test]
    fn a_refusal_names_the_step_and_the_remedy() {
        let text = explain(1, libc::EPERM).to_string();
        assert!(text.contains(sys::STEPS[1]), "{text}");
        assert!(text.contains("not permitted"), "{text}");
        let unknown = explain(200, libc::EPERM).to_string();
        assert!(unknown.contains("unknown step"), "{unknown}");
    }
}
