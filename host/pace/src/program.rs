//! The BPF program that tells TCP sockets their rate: `bpf/pace.bpf.c`, on a control group.
//!
//! ```text
//! load (ends with this process) -> its number is known -> attach (stays) -> detach, sockets get back what they had
//! ```
//!
//! A control group's programs all run, those of the groups below it first; the lowest rate holds.

use crate::rule::{MAX_RULES, Mode, Rule};
use crate::sys;
use libbpf_rs::{Iter, MapCore, MapFlags, MapHandle, Object, ObjectBuilder, Program};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::Path;

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/pace.bpf.o"));
/// Names in `bpf/pace.bpf.c`.
const ON: &str = "kuroshio_pace";
const BACK: &str = "kuroshio_back";
const RULES: &str = "rules";
const SCOPE: &str = "scope";
const SOCKETS: &str = "sockets";
/// `struct rule` and `struct scope` there, bytes.
const RULE_BYTES: usize = 56;
const CONNECTIONS_AT: usize = 40;

/// One of the program's rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Told<'a> {
    pub rule: &'a Rule,
    /// The class of `psp` that its sockets go to; else they are told the rate.
    pub class: Option<u32>,
}

/// A program that is loaded and, until it is attached, goes with this process.
pub(crate) struct Loaded {
    object: Object,
}

/// The numbers by which the kernel knows a program and its maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ids {
    /// The program.
    pub program: u32,
    /// Its rules.
    pub rules: u32,
    /// Where it works.
    pub scope: u32,
    /// What its sockets had before.
    pub sockets: u32,
}

fn other(e: libbpf_rs::Error) -> io::Error {
    io::Error::new(e.kind().into_io(), format!("{e:#}"))
}

/// libbpf-rs has error kinds of its own.
trait IntoIo {
    fn into_io(self) -> io::ErrorKind;
}

impl IntoIo for libbpf_rs::ErrorKind {
    fn into_io(self) -> io::ErrorKind {
        match self {
            Self::NotFound => io::ErrorKind::NotFound,
            Self::PermissionDenied => io::ErrorKind::PermissionDenied,
            Self::InvalidInput => io::ErrorKind::InvalidInput,
            _ => io::ErrorKind::Other,
        }
    }
}

fn missing(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("no `{what}` in the BPF program"))
}

/// `struct rule` of `bpf/pace.bpf.c`.
fn rule_bytes(told: &Told<'_>) -> [u8; RULE_BYTES] {
    let (address, mask) = told.rule.mapped();
    let rate_bps = if told.class.is_some() {
        0
    } else {
        told.rule.rate_bps
    };
    let fields = (address.to_be_bytes().into_iter())
        .chain(mask.to_be_bytes())
        .chain(rate_bps.to_ne_bytes())
        .chain([0; 8])
        .chain(told.class.unwrap_or(0).to_ne_bytes())
        .chain(told.rule.port.unwrap_or(0).to_ne_bytes())
        .chain([u8::from(told.rule.mode == Mode::Dynamic), 0]);
    let mut bytes = [0; RULE_BYTES];
    bytes.iter_mut().zip(fields).for_each(|(to, from)| *to = from);
    bytes
}

/// `struct scope` of `bpf/pace.bpf.c`.
fn scope_bytes(cookie: u64, rules: u32) -> [u8; 16] {
    let fields = (cookie.to_ne_bytes().into_iter())
        .chain(rules.to_ne_bytes())
        .chain([0; 4]);
    let mut bytes = [0; 16];
    bytes.iter_mut().zip(fields).for_each(|(to, from)| *to = from);
    bytes
}

fn open() -> io::Result<libbpf_rs::OpenObject> {
    // What is wrong is told by the error; libbpf's own words would be between ours.
    libbpf_rs::set_print(None);
    ObjectBuilder::default().open_memory(OBJECT).map_err(other)
}

impl Loaded {
    /// Loads the program with its rules, for the calling thread's network namespace.
    pub(crate) fn new(rules: &[Told<'_>]) -> io::Result<Self> {
        let object = open()?.load().map_err(other)?;
        let it = Self { object };
        let socket = std::net::UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 0))?;
        let cookie = sys::netns_cookie(&socket)?;
        let count = u32::try_from(rules.len().min(MAX_RULES)).unwrap_or(0);
        for (number, told) in (0..count).zip(rules) {
            it.put(RULES, number, &rule_bytes(told))?;
        }
        it.put(SCOPE, 0, &scope_bytes(cookie, count))?;
        Ok(it)
    }

    fn map(&self, name: &str) -> io::Result<libbpf_rs::Map<'_>> {
        let mut maps = self.object.maps();
        maps.find(|m| m.name() == name).ok_or_else(|| missing(name))
    }

    fn put(&self, name: &str, key: u32, value: &[u8]) -> io::Result<()> {
        self.map(name)?
            .update(&key.to_ne_bytes(), value, MapFlags::ANY)
            .map_err(other)
    }

    pub(crate) fn ids(&self) -> io::Result<Ids> {
        let program = self.program()?;
        let program = Program::id_from_fd(program.as_fd()).map_err(other)?;
        let id = |name| {
            let map = self.map(name)?;
            Ok::<u32, io::Error>(map.info().map_err(other)?.info.id)
        };
        Ok(Ids {
            program,
            rules: id(RULES)?,
            scope: id(SCOPE)?,
            sockets: id(SOCKETS)?,
        })
    }

    fn program(&self) -> io::Result<Program<'_>> {
        let mut programs = self.object.progs();
        programs.find(|p| p.name() == ON).ok_or_else(|| missing(ON))
    }

    /// Attaches it for good.
    pub(crate) fn attach(&self, cgroup: &Path) -> io::Result<()> {
        let group = File::open(cgroup)?;
        sys::attach_sockops(self.program()?.as_fd(), group.as_fd())
    }
}

/// Takes a program off. `Ok(false)`: it was not there any more. Its sockets have what they had before.
///
/// Each step may be made again by a process that comes after one that was killed: the program is told to work
/// nowhere, its sockets are given back what they had, and it is detached, with which everything is gone.
pub(crate) fn take_off(cgroup: &Path, ids: Ids) -> io::Result<bool> {
    let group = match File::open(cgroup) {
        Ok(group) => group,
        // What was attached went with the group.
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(e) => return Err(e),
    };
    let Some(program) = found(Program::fd_from_id(ids.program))? else {
        return Ok(false);
    };
    let scope = MapHandle::from_map_id(ids.scope).map_err(other)?;
    let nowhere = scope_bytes(0, 0);
    scope
        .update(&0u32.to_ne_bytes(), &nowhere, MapFlags::ANY)
        .map_err(other)?;
    restore_sockets(ids.sockets)?;
    match sys::detach_sockops(program.as_fd(), group.as_fd()) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
    }
}

fn found<T>(result: libbpf_rs::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(it) => Ok(Some(it)),
        Err(e) if e.kind() == libbpf_rs::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(other(e)),
    }
}

/// Runs the program that gives sockets back what they had, over all TCP sockets of this network namespace.
fn restore_sockets(sockets: u32) -> io::Result<()> {
    let map = MapHandle::from_map_id(sockets).map_err(other)?;
    let mut object = open()?;
    let mut maps = object.maps_mut();
    let mut place = maps
        .find(|m| m.name() == SOCKETS)
        .ok_or_else(|| missing(SOCKETS))?;
    place.reuse_fd(map.as_fd()).map_err(other)?;
    drop(maps);
    let object = object.load().map_err(other)?;
    let mut programs = object.progs_mut();
    let program = programs.find(|p| p.name() == BACK).ok_or_else(|| missing(BACK))?;
    let link = program.attach().map_err(other)?;
    let mut all = Iter::new(&link).map_err(other)?;
    let mut nothing = [0; 64];
    loop {
        match all.read(&mut nothing) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            // A million sockets were looked at: it goes on with the next.
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(e) => return Err(e),
        }
    }
}

/// Connections that each rule was applied to; `None` when the program is gone.
pub(crate) fn connections(ids: Ids, rules: usize) -> Option<Vec<u64>> {
    let map = MapHandle::from_map_id(ids.rules).ok()?;
    let mut out = Vec::new();
    for number in 0..u32::try_from(rules.min(MAX_RULES)).ok()? {
        let value = map.lookup(&number.to_ne_bytes(), MapFlags::ANY).ok()??;
        let bytes = value.get(CONNECTIONS_AT..)?.first_chunk().copied()?;
        out.push(u64::from_ne_bytes(bytes));
    }
    Some(out)
}

/// Whether a program is attached to a control group still.
pub(crate) fn is_on(ids: Ids) -> bool {
    // Nothing but the attachment holds it after the process that made it.
    Program::fd_from_id(ids.program).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_has_the_layout_of_the_program() {
        let rule = Rule {
            to: Some("10.1.0.0/16".parse().expect("prefix")),
            port: Some(2811),
            cgroup: None,
            rate_bps: 500_000_000,
            mode: Mode::Dynamic,
        };
        let told = Told {
            rule: &rule,
            class: None,
        };
        let bytes = rule_bytes(&told);
        assert_eq!(bytes[..16], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 1, 0, 0]);
        assert_eq!(bytes[16..30], [255; 14]);
        assert_eq!(bytes[30..32], [0, 0]);
        assert_eq!(bytes[32..40], 500_000_000_u64.to_ne_bytes());
        assert_eq!(bytes[40..52], [0; 12]);
        assert_eq!(bytes[52..54], 2811_u16.to_ne_bytes());
        assert_eq!(bytes[54..], [1, 0]);
        let class = Told {
            rule: &rule,
            class: Some(0x1_0002),
        };
        let bytes = rule_bytes(&class);
        // The class paces: the socket is told none.
        assert_eq!(bytes[32..40], [0; 8]);
        assert_eq!(bytes[48..52], 0x1_0002_u32.to_ne_bytes());
        assert_eq!(
            scope_bytes(7, 3),
            [7, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]
        );
    }
}
