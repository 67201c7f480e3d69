//! What happens between fork and exec, where only plain system calls are allowed: entering the
//! testbed's namespaces, and a host's network namespace.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// Prepared before the fork, because nothing may be allocated after it.
pub(crate) struct Plan {
    /// The caller's process id: when it is not the parent any more, the caller died.
    pub parent: u32,
    /// Lines for `uid_map` and `gid_map` when a user namespace is wanted.
    pub user: Option<(String, String)>,
    /// Whether `/run/netns` exists and gets a private file system.
    pub netns_dir: bool,
    /// Cores that the program may use; empty for all.
    pub cores: Vec<usize>,
    /// The caller's network namespace, which the program is to have open.
    pub outer_net: Option<OwnedFd>,
    /// Where a failure is reported: the step and the error number.
    pub report: OwnedFd,
}

/// The steps of [`enter`], by their number in a report.
pub(crate) const STEPS: [&str; 9] = [
    "death signal of the parent",
    "unshare (new user, PID, mount and network namespaces)",
    "mapping the user into its namespace (uid_map)",
    "mapping the group into its namespace (gid_map)",
    "fork of the namespace's init",
    "making the mounts private",
    "mounting the namespace's /proc",
    "fork of the program",
    "binding the program to its cores",
];

type Step = (u8, libc::c_int);

/// Runs in the forked child: makes the namespaces and returns in the process that is to become
/// the program. The processes above it stay in here and never return.
///
/// Called between fork and exec: system calls only.
pub(crate) fn enter(plan: &Plan) -> io::Result<()> {
    match steps(plan) {
        Ok(()) => Ok(()),
        Err((step, errno)) => {
            let mut message = [0u8; 5];
            message[0] = step;
            message[1..].copy_from_slice(&errno.to_le_bytes());
            // SAFETY: writes five bytes of a live array; a failure leaves the report empty.
            unsafe { libc::write(plan.report.as_raw_fd(), message.as_ptr().cast(), message.len()) };
            Err(io::Error::from_raw_os_error(errno))
        }
    }
}

fn steps(plan: &Plan) -> Result<(), Step> {
    die_with_parent(0)?;
    // SAFETY: getppid has no preconditions. A parent that is gone already sent no signal.
    if unsafe { libc::getppid() }.unsigned_abs() != plan.parent {
        // SAFETY: _exit has no preconditions.
        unsafe { libc::_exit(1) };
    }
    let user = if plan.user.is_some() {
        libc::CLONE_NEWUSER
    } else {
        0
    };
    // SAFETY: no memory or file descriptor is shared differently by these flags.
    check(1, unsafe {
        libc::unshare(user | libc::CLONE_NEWPID | libc::CLONE_NEWNS | libc::CLONE_NEWNET)
    })?;
    if let Some((uid_map, gid_map)) = &plan.user {
        // Where the file is missing, groups may be mapped without it.
        let _ = put(3, c"/proc/self/setgroups", b"deny");
        put(2, c"/proc/self/uid_map", uid_map.as_bytes())?;
        put(3, c"/proc/self/gid_map", gid_map.as_bytes())?;
    }
    // SAFETY: single-threaded after a fork; the child continues with plain system calls.
    match check(4, unsafe { libc::fork() })? {
        0 => {}
        init => keep(init),
    }
    as_init(plan)?;
    // SAFETY: as above.
    match check(7, unsafe { libc::fork() })? {
        0 => {}
        program => reap(program),
    }
    die_with_parent(0)?;
    if let Some(fd) = &plan.outer_net {
        // SAFETY: no pointers: the descriptor, open in this process, stays open over exec.
        unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFD, 0) };
    }
    bind_cores(&plan.cores)
}

/// The first process of the PID namespace: mounts and scheduling group.
fn as_init(plan: &Plan) -> Result<(), Step> {
    die_with_parent(0)?;
    mount(5, c"none", c"/", c"", libc::MS_REC | libc::MS_PRIVATE)?;
    let quiet = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    mount(6, c"proc", c"/proc", c"proc", quiet)?;
    // A session of its own is a scheduling group of its own (autogroup), which root may prefer to
    // the rest of the machine. Where it is refused the testbed works with an equal share.
    // SAFETY: setsid has no preconditions; init leads no process group yet.
    unsafe { libc::setsid() };
    let _ = put(6, c"/proc/self/autogroup", b"-20");
    if plan.netns_dir {
        // A convenience for `ip netns exec`: the testbed works without it.
        let _ = mount(6, c"netns", c"/run/netns", c"tmpfs", quiet);
    }
    Ok(())
}

fn die_with_parent(step: u8) -> Result<(), Step> {
    // SAFETY: PR_SET_PDEATHSIG takes a signal number by value.
    check(step, unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong)
    })?;
    Ok(())
}

fn mount(
    step: u8,
    source: &std::ffi::CStr,
    target: &std::ffi::CStr,
    kind: &std::ffi::CStr,
    flags: libc::c_ulong,
) -> Result<(), Step> {
    // SAFETY: three C strings that live through the call and no data.
    check(step, unsafe {
        libc::mount(
            source.as_ptr(),
            target.as_ptr(),
            kind.as_ptr(),
            flags,
            std::ptr::null(),
        )
    })?;
    Ok(())
}

fn put(step: u8, path: &std::ffi::CStr, text: &[u8]) -> Result<(), Step> {
    // SAFETY: a C string that lives through the call.
    let fd = check(step, unsafe {
        libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC)
    })?;
    // SAFETY: writes `text.len()` bytes of a live slice to the descriptor just opened.
    let written = unsafe { libc::write(fd, text.as_ptr().cast(), text.len()) };
    let failed = (step, errno());
    // SAFETY: `fd` is ours and is closed once.
    unsafe { libc::close(fd) };
    if written < 0 { Err(failed) } else { Ok(()) }
}

fn bind_cores(cores: &[usize]) -> Result<(), Step> {
    if cores.is_empty() {
        return Ok(());
    }
    // SAFETY: an all-zero `cpu_set_t` is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for &core in cores {
        // SAFETY: CPU_SET ignores an index beyond the set.
        unsafe { libc::CPU_SET(core, &mut set) };
    }
    // SAFETY: `set` lives through the call and its size is given.
    check(8, unsafe {
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set)
    })?;
    Ok(())
}

/// The keeper: waits for init and ends as it did. Terminal signals are for the program.
fn keep(init: libc::pid_t) -> ! {
    ignore_terminal();
    let status = loop {
        let mut status = 0;
        // SAFETY: `status` lives through the call.
        let pid = unsafe { libc::waitpid(init, &raw mut status, 0) };
        if pid == init {
            break status;
        }
        if pid < 0 && errno() != libc::EINTR {
            break 1 << 8;
        }
    };
    exit_like(status)
}

/// Init: reaps whatever is orphaned until the program ends, then ends as it did.
fn reap(program: libc::pid_t) -> ! {
    ignore_terminal();
    loop {
        let mut status = 0;
        // SAFETY: `status` lives through the call.
        let pid = unsafe { libc::waitpid(-1, &raw mut status, 0) };
        if pid == program {
            exit_like(status);
        }
        if pid < 0 && errno() != libc::EINTR {
            exit_like(1 << 8);
        }
    }
}

fn exit_like(status: libc::c_int) -> ! {
    let code = if libc::WIFEXITED(status) {
        libc::WEXITSTATUS(status)
    } else {
        128 + libc::WTERMSIG(status)
    };
    // SAFETY: _exit has no preconditions.
    unsafe { libc::_exit(code) }
}

fn ignore_terminal() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGQUIT, libc::SIGHUP] {
        // SAFETY: SIG_IGN installs no code.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    // The pipe on which the caller waits for exec must not be held open by this process.
    // SAFETY: nothing in this process uses a descriptor above standard error any more.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
}

fn check(step: u8, result: libc::c_int) -> Result<libc::c_int, Step> {
    if result < 0 {
        Err((step, errno()))
    } else {
        Ok(result)
    }
}

fn errno() -> libc::c_int {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Moves the calling process or thread into the network namespace behind a descriptor. Usable
/// between fork and exec.
pub(crate) fn enter_netns(fd: RawFd) -> io::Result<()> {
    set_ns(fd, libc::CLONE_NEWNET)
}

/// Gives the calling thread a network namespace of its own, with a loopback device that is down.
pub(crate) fn new_netns() -> io::Result<()> {
    // SAFETY: CLONE_NEWNET changes the calling thread's network namespace only.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Arranges that a command runs in the network namespace behind `fd`.
pub(crate) fn run_in_netns(command: &mut std::process::Command, fd: std::sync::Arc<OwnedFd>) {
    use std::os::unix::process::CommandExt;
    // SAFETY: the closure makes one system call on a descriptor that it keeps open.
    unsafe { command.pre_exec(move || enter_netns(fd.as_raw_fd())) };
}

/// A kind of namespace.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Namespace {
    User,
    Pid,
}

/// Moves the calling process into the user namespace, or its children into the PID namespace, behind a descriptor.
pub(crate) fn set_namespace(fd: std::os::fd::BorrowedFd<'_>, kind: Namespace) -> io::Result<()> {
    let flag = match kind {
        Namespace::User => libc::CLONE_NEWUSER,
        Namespace::Pid => libc::CLONE_NEWPID,
    };
    set_ns(fd.as_raw_fd(), flag)
}

fn set_ns(fd: RawFd, flag: libc::c_int) -> io::Result<()> {
    // SAFETY: setns takes a descriptor and a flag by value; a wrong descriptor is an error.
    if unsafe { libc::setns(fd, flag) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Arranges that a command runs with a network and the mounts behind two descriptors, in the caller's current
/// folder where those mounts have it, and ends when the caller does.
pub(crate) fn run_in_host(command: &mut std::process::Command, net: OwnedFd, mnt: OwnedFd) {
    use std::os::unix::ffi::OsStringExt;
    use std::os::unix::process::CommandExt;
    let folder = std::env::current_dir()
        .unwrap_or_default()
        .into_os_string()
        .into_vec();
    let folder = std::ffi::CString::new(folder).unwrap_or_default();
    let enter = move || {
        die_with_parent(0).map_err(|(_, errno)| io::Error::from_raw_os_error(errno))?;
        set_ns(net.as_raw_fd(), libc::CLONE_NEWNET)?;
        // The root of those mounts becomes the current folder.
        set_ns(mnt.as_raw_fd(), libc::CLONE_NEWNS)?;
        // SAFETY: a C string that lives through the call; a folder that is not there changes nothing.
        unsafe { libc::chdir(folder.as_ptr()) };
        Ok(())
    };
    // SAFETY: the closure makes system calls only, on descriptors and a string that it keeps.
    unsafe { command.pre_exec(enter) };
}

/// Arranges that a command leads a session of its own, apart from the caller's terminal.
pub(crate) fn detach(command: &mut std::process::Command) {
    use std::os::unix::process::CommandExt;
    let leave = || {
        // SAFETY: setsid has no preconditions; a process that leads its group already is left as it is.
        unsafe { libc::setsid() };
        Ok(())
    };
    // SAFETY: the closure makes one system call.
    unsafe { command.pre_exec(leave) };
}

/// Sleeps until one of the descriptors of an epoll is ready or the time is over.
///
/// # Errors
/// The kernel's error but an interruption, which counts as nothing being ready.
pub(crate) fn epoll_wait(
    epoll: &OwnedFd,
    events: &mut [libc::epoll_event],
    timeout_ns: u64,
) -> io::Result<usize> {
    let timeout = libc::timespec {
        tv_sec: (timeout_ns / 1_000_000_000) as libc::time_t,
        tv_nsec: (timeout_ns % 1_000_000_000) as libc::c_long,
    };
    let room = libc::c_int::try_from(events.len()).unwrap_or(libc::c_int::MAX);
    // SAFETY: the kernel writes at most `room` events to the live slice and reads `timeout`.
    let ready = unsafe {
        libc::syscall(
            libc::SYS_epoll_pwait2,
            epoll.as_raw_fd(),
            events.as_mut_ptr(),
            room,
            &raw const timeout,
            std::ptr::null::<libc::sigset_t>(),
            0usize,
        )
    };
    match usize::try_from(ready) {
        Ok(n) => Ok(n),
        Err(_) if errno() == libc::EINTR => Ok(0),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// An epoll that watches descriptors for input; their numbers come back as `data`.
pub(crate) fn epoll_of(fds: &[(usize, RawFd)]) -> io::Result<OwnedFd> {
    use std::os::fd::FromRawFd;
    // SAFETY: no pointers.
    let raw = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    if raw < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just returned by epoll_create1 and owned by nobody else.
    let epoll = unsafe { OwnedFd::from_raw_fd(raw) };
    for (index, fd) in fds {
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: *index as u64,
        };
        // SAFETY: `event` lives through the call; a wrong descriptor is an error.
        if unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, *fd, &raw mut event) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(epoll)
}

/// The state of the kernel's clock discipline, read without changing it.
pub(crate) fn clock_state() -> io::Result<(libc::timex, libc::c_int)> {
    // SAFETY: `timex` is plain old data; all-zero bytes are a valid value, and `modes` 0 changes nothing.
    let mut state: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel reads and writes one `timex`, which lives through the call.
    let result = unsafe { libc::adjtimex(&raw mut state) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((state, result))
}
