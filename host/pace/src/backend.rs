//! Which pacing this host has, and which one serves a request.
//!
//! ```text
//! auto: psp -> fq -> tcp, the first that is there; what was passed over is said, with the reason
//! named: that one, or an error with the reason
//! ```
//!
//! A kernel is asked by doing: as root, a thread in a network namespace of its own tries to give a loopback device
//! the qdisc, which loads the module where there is one. Else the list of modules tells.

use crate::rule::{Mode, RATE_MAX_BPS, Rule};
use crate::tc::{Qdisc, Tc, code};
use crate::{PaceError, sys};
use rustix::net::netdevice::name_to_index;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The fastest rate of `fq` and `tcp`, frame level: a BPF program gives `SO_MAX_PACING_RATE` as 32 bits of bytes per
/// second (`net/core/filter.c`), of which the last two values mean something else.
const SOCKET_RATE_MAX_BPS: u64 = 34_000_000_000;

/// What paces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// The qdisc of `kernel/`.
    Psp,
    /// `sch_fq`.
    Fq,
    /// TCP's own timer.
    Tcp,
}

impl Backend {
    /// All, the best first.
    pub const ALL: [Backend; 3] = [Backend::Psp, Backend::Fq, Backend::Tcp];

    /// The fastest rate that it takes, frame level, bit/s.
    pub fn rate_max_bps(self) -> u64 {
        match self {
            Self::Psp => RATE_MAX_BPS,
            Self::Fq | Self::Tcp => SOCKET_RATE_MAX_BPS,
        }
    }

    /// What it does, in one sentence.
    pub fn does(self) -> &'static str {
        match self {
            Self::Psp => {
                "psp, the qdisc: every frame of a rule has its place on the wire, all connections of a rule in sum"
            }
            Self::Fq => "fq, told by SO_MAX_PACING_RATE: each packet waits in the qdisc for its time",
            Self::Tcp => {
                "TCP itself, told by SO_MAX_PACING_RATE: each connection sends by a timer of its own"
            }
        }
    }

    /// What it cannot do with these rules.
    pub fn cannot(self, rules: &[Rule]) -> Vec<&'static str> {
        let mut out = Vec::new();
        let groups = rules.iter().any(|r| r.cgroup.is_some());
        let ports = rules.iter().any(|r| r.port.is_some());
        match self {
            Self::Psp => {
                out.push(
                    "without gap frames (see `tc qdisc show`) it paces by a timer, to some microseconds",
                );
                if groups {
                    out.push("a rule with a cgroup takes TCP connections that are made from now on, no UDP");
                }
                if ports {
                    out.push(
                        "a port is not seen behind IP options or extension headers, nor in later fragments",
                    );
                }
                if rules.iter().any(|r| r.mode == Mode::Dynamic) {
                    out.push("a dynamic rule is one clock: it follows the window of whichever connection sent last");
                }
            }
            Self::Fq | Self::Tcp => {
                out.push("the rate is each connection's own, not that of a rule's connections in sum");
                out.push("TCP only, connections that are made from now on");
                out.push(match self {
                    Self::Fq => "a superframe (TSO) leaves as one burst: up to about 1 ms of data",
                    _ => "bursts of about 1 ms of data, right on average",
                });
            }
        }
        out
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Psp => "psp",
            Self::Fq => "fq",
            Self::Tcp => "tcp",
        })
    }
}

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// The best that is there.
    Auto,
    /// This one or an error.
    Only(Backend),
}

impl FromStr for Wish {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "psp" => Ok(Self::Only(Backend::Psp)),
            "fq" => Ok(Self::Only(Backend::Fq)),
            "tcp" => Ok(Self::Only(Backend::Tcp)),
            other => Err(format!("`{other}`: auto, psp, fq and tcp are valid")),
        }
    }
}

/// Whether a back end is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Presence {
    /// It can be used.
    Ready,
    /// It cannot, and why.
    Missing(String),
}

/// What this host has for one interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Found {
    /// The interface, where one is known.
    pub dev: Option<String>,
    /// Its root qdisc.
    pub root: Option<String>,
    /// The qdisc of `kernel/`.
    pub psp: Presence,
    /// `sch_fq`.
    pub fq: Presence,
    /// A BPF program for TCP's own pacing.
    pub tcp: Presence,
    #[serde(skip)]
    pub(crate) here: Option<Here>,
}

/// The interface as the kernel counts it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Here {
    pub index: u32,
    /// The root qdisc, if it is not the kernel's own.
    pub root: Option<Qdisc>,
}

impl Found {
    /// Whether a back end is there.
    pub fn of(&self, backend: Backend) -> &Presence {
        match backend {
            Backend::Psp => &self.psp,
            Backend::Fq => &self.fq,
            Backend::Tcp => &self.tcp,
        }
    }
}

/// Looks at the host; `dev` is the interface that psp or fq would be at.
///
/// # Errors
/// [`PaceError::BadInput`]: no such interface. Netlink's errors.
pub fn find(dev: Option<&str>) -> Result<Found, PaceError> {
    let failed = |what: &str| {
        let what = what.to_owned();
        move |source| PaceError::Step {
            what,
            source,
            left: Vec::new(),
        }
    };
    let here = match dev {
        None => None,
        Some(dev) => {
            let index = index_of(dev).map_err(|e| PaceError::BadInput(format!("--dev {dev}: {e}")))?;
            let mut tc = Tc::open().map_err(failed("netlink"))?;
            let root = tc
                .root(index.cast_signed())
                .map_err(failed("reading the qdiscs"))?;
            Some((index, root))
        }
    };
    let shown = here
        .as_ref()
        .and_then(|(_, root)| root.as_ref().map(|r| r.kind.clone()));
    let here = here.map(|(index, root)| Here {
        index,
        root: root.filter(|r| r.handle != 0),
    });
    let at_dev = |kind: &str| match (&here, &shown) {
        (None, _) => Presence::Missing("no interface is known: --dev NAME".into()),
        // Where it is already, whoever put it there.
        (_, Some(root)) if root == kind => Presence::Ready,
        (Some(Here { root: Some(root), .. }), _) => Presence::Missing(format!(
            "{} has {} {:x}: at its root, which is not touched",
            dev.unwrap_or_default(),
            root.kind,
            root.handle >> 16
        )),
        _ => has_qdisc(kind),
    };
    Ok(Found {
        dev: dev.map(str::to_owned),
        psp: at_dev("psp"),
        fq: at_dev("fq"),
        tcp: tcp_presence(),
        root: shown,
        here,
    })
}

pub(crate) fn index_of(dev: &str) -> io::Result<u32> {
    if !kuroshio_tune::link::is_name(dev) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not the name of an interface, such as eth0",
        ));
    }
    let socket = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        None,
    )?;
    Ok(name_to_index(&socket, dev)?)
}

fn has_qdisc(kind: &str) -> Presence {
    match try_qdisc(kind) {
        Some(true) => Presence::Ready,
        Some(false) => Presence::Missing(format!(
            "this kernel has no qdisc {kind} and no module of it to load{}",
            if kind == "psp" { " (docs/pspacer.md)" } else { "" }
        )),
        // Not permitted to try.
        None if module_is_loaded(kind) => Presence::Ready,
        None => Presence::Missing(format!(
            "the qdisc {kind} is not loaded, and loading it takes root"
        )),
    }
}

/// Whether the kernel takes a qdisc of that kind; `None` when it may not be tried.
fn try_qdisc(kind: &str) -> Option<bool> {
    let kind = kind.to_owned();
    let tried = std::thread::spawn(move || -> io::Result<()> {
        sys::new_netns()?;
        // The loopback device is the first of a new namespace.
        Tc::open()?.add_root(1, &kind, 0x1_0000)
    });
    match tried.join().ok()? {
        Ok(()) => Some(true),
        Err(e) => match code(&e) {
            Some(libc::ENOENT) => Some(false),
            Some(libc::EPERM | libc::EACCES) => None,
            // It is there, and wants something that a loopback device has not.
            _ => Some(true),
        },
    }
}

fn module_is_loaded(kind: &str) -> bool {
    let names = [kind.to_owned(), format!("sch_{kind}")];
    let loaded = std::fs::read_to_string("/proc/modules").unwrap_or_default();
    let is = |name: &String| {
        Path::new("/sys/module").join(name).exists()
            || loaded.lines().any(|l| l.split(' ').next() == Some(name.as_str()))
    };
    names.iter().any(is)
}

/// Whether the module of psp is loaded.
pub(crate) fn psp_is_loaded() -> bool {
    module_is_loaded("psp")
}

fn tcp_presence() -> Presence {
    if !rustix::process::geteuid().is_root() {
        return Presence::Missing("a BPF program on a control group takes root".into());
    }
    match cgroup_root() {
        Some(_) => Presence::Ready,
        None => Presence::Missing("no control groups of version 2 are mounted".into()),
    }
}

/// Where the control groups of version 2 are mounted.
pub(crate) fn cgroup_root() -> Option<PathBuf> {
    let mounts = mounted(&std::fs::read_to_string("/proc/thread-self/mountinfo").ok()?);
    // One that another mount hides has none of its files.
    mounts.into_iter().find(|path| path.join("cgroup.procs").exists())
}

/// `id parent major:minor root mount-point options ... - type source options`.
fn mounted(mountinfo: &str) -> Vec<PathBuf> {
    let path = |line: &str| {
        let (left, right) = line.split_once(" - ")?;
        let path = left.split(' ').nth(4)?;
        (right.split(' ').next() == Some("cgroup2")).then(|| PathBuf::from(path))
    };
    mountinfo.lines().filter_map(path).collect()
}

/// What was chosen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Choice {
    /// What paces.
    pub backend: Backend,
    /// Better ones, and why not they.
    pub passed_over: Vec<(Backend, String)>,
}

/// Chooses.
///
/// # Errors
/// [`PaceError::BadInput`]: the one that was asked for is not there, or none is.
pub fn choose(wish: Wish, rules: &[Rule], found: &Found) -> Result<Choice, PaceError> {
    let fastest = rules.iter().map(|r| r.rate_bps).max().unwrap_or(0);
    let missing = |backend: Backend| match found.of(backend) {
        Presence::Missing(why) => Some(why.clone()),
        Presence::Ready if fastest > backend.rate_max_bps() => Some(format!(
            "a rate of {fastest} bit/s; at most {} is valid there",
            backend.rate_max_bps()
        )),
        Presence::Ready => needs_bpf(backend, rules, found),
    };
    let mut passed_over = Vec::new();
    for backend in Backend::ALL {
        if matches!(wish, Wish::Only(only) if only != backend) {
            continue;
        }
        match missing(backend) {
            None => return Ok(Choice { backend, passed_over }),
            Some(why) => passed_over.push((backend, why)),
        }
    }
    let reasons = passed_over.iter().map(|(b, why)| format!("{b}: {why}"));
    Err(PaceError::BadInput(format!(
        "back end {}",
        reasons.collect::<Vec<_>>().join("; ")
    )))
}

/// What keeps a back end from these rules that is there otherwise.
fn needs_bpf(backend: Backend, rules: &[Rule], found: &Found) -> Option<String> {
    let wants = backend != Backend::Psp || rules.iter().any(|r| r.cgroup.is_some());
    match &found.tcp {
        Presence::Missing(why) if wants => Some(why.clone()),
        _ => None,
    }
}

/// What paces at the interface by which packets to an address leave, and that interface: for a program that sets a
/// rate on its sockets and tells its user who keeps it. Needs no rights.
pub fn active(to: IpAddr) -> Option<(Backend, String)> {
    let mut tc = Tc::open().ok()?;
    let index = tc.way_to(to).ok()??;
    let root = tc.root(index.cast_signed()).ok()?;
    let backend = match root.as_ref().map(|r| r.kind.as_str()) {
        Some("psp") => Backend::Psp,
        Some("fq") => Backend::Fq,
        _ => Backend::Tcp,
    };
    let socket = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        None,
    );
    let dev = rustix::net::netdevice::index_to_name(socket.ok()?, index).ok()?;
    Some((backend, dev))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(psp: bool, fq: bool, tcp: bool) -> Found {
        let is = |there, why: &str| {
            if there {
                Presence::Ready
            } else {
                Presence::Missing(why.into())
            }
        };
        Found {
            dev: Some("eth0".into()),
            root: None,
            psp: is(psp, "no psp"),
            fq: is(fq, "no fq"),
            tcp: is(tcp, "no bpf"),
            here: None,
        }
    }

    fn rules(rate_bps: u64, cgroup: bool) -> Vec<Rule> {
        vec![Rule {
            to: None,
            port: None,
            cgroup: cgroup.then(|| "/sys/fs/cgroup/x".into()),
            rate_bps,
            mode: Mode::Static,
        }]
    }

    #[test]
    fn the_best_that_is_there_is_chosen_and_the_others_are_named() {
        let one = rules(1_000_000_000, false);
        for (there, backend, passed) in [
            ((true, true, true), Backend::Psp, 0),
            ((true, false, false), Backend::Psp, 0),
            ((false, true, true), Backend::Fq, 1),
            ((false, false, true), Backend::Tcp, 2),
        ] {
            let choice = choose(Wish::Auto, &one, &found(there.0, there.1, there.2)).expect("one");
            assert_eq!((choice.backend, choice.passed_over.len()), (backend, passed));
        }
        // fq alone is of no use without the program that tells the sockets.
        let e = choose(Wish::Auto, &one, &found(false, true, false)).expect_err("none");
        assert_eq!(e.to_string(), "back end psp: no psp; fq: no bpf; tcp: no bpf");
        assert!(e.is_bad_input());
    }

    #[test]
    fn one_that_was_asked_for_is_never_replaced() {
        let one = rules(1_000_000_000, false);
        for (wish, why) in [
            (Backend::Psp, "psp: no psp"),
            (Backend::Fq, "fq: no fq"),
            (Backend::Tcp, "tcp: no bpf"),
        ] {
            let there = found(wish != Backend::Psp, wish != Backend::Fq, wish != Backend::Tcp);
            let e = choose(Wish::Only(wish), &one, &there).expect_err("missing");
            assert_eq!(e.to_string(), format!("back end {why}"));
        }
        let choice = choose(Wish::Only(Backend::Tcp), &one, &found(true, true, true)).expect("there");
        assert_eq!((choice.backend, choice.passed_over.len()), (Backend::Tcp, 0));
    }

    #[test]
    fn what_a_rule_needs_counts() {
        let group = rules(1_000_000_000, true);
        assert!(choose(Wish::Only(Backend::Psp), &group, &found(true, true, false)).is_err());
        let fast = rules(100_000_000_000, false);
        let choice = choose(Wish::Auto, &fast, &found(true, true, true)).expect("psp");
        assert_eq!(choice.backend, Backend::Psp);
        let e = choose(Wish::Auto, &fast, &found(false, true, true)).expect_err("too fast");
        assert!(e.to_string().contains("34000000000"), "{e}");
    }

    #[test]
    fn the_mount_of_control_groups_is_found() {
        let info = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
                    32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                    41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw\n";
        assert_eq!(mounted(info), [PathBuf::from("/sys/fs/cgroup/unified")]);
        assert!(mounted("x\n\n - cgroup2").is_empty());
    }

    #[test]
    fn wishes_are_read() {
        assert_eq!("fq".parse(), Ok(Wish::Only(Backend::Fq)));
        assert!(
            "tbf"
                .parse::<Wish>()
                .is_err_and(|e| e.contains("psp, fq and tcp"))
        );
    }
}
