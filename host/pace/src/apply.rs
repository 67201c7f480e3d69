//! Putting rates in force, taking them back, and looking at what is there.
//!
//! ```text
//! apply: checks, without a change -> state file -> per step: written down, made -> whole
//!                                        any step fails: all made so far taken back, latest first
//! clear: steps taken back, latest first; what is gone already is passed over; the file is deleted when all is
//! ```
//!
//! A root qdisc is put only where the kernel's own is (its number is 0), so that taking it away brings exactly that
//! back; another's qdisc is not touched, except that a psp gets classes and filters of ours, with numbers of ours.

use crate::PaceError;
use crate::backend::{Backend, Choice, Found, Wish, cgroup_root, choose, find};
use crate::program::{self, Ids, Loaded, Told};
use crate::rule::{Rule, check_all};
use crate::state::{Lock, State, StateError, Step, default_path};
use crate::tc::{Qdisc, Tc, code, filters};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// The number of our root qdisc: `4b50:`, the letters KP.
const HANDLE: u32 = 0x4b50_0000;
/// Classes of ours begin here, beyond what people write by hand.
const FIRST_CLASS: u32 = 0x4b01;
/// Most classes that a psp has: beyond, no number is looked for.
const MAX_CLASSES: u32 = 256;
/// Preferences of our filters begin here: two for each class, one of each family.
const FIRST_PREFERENCE: u32 = 0x4b01;

/// What is to be put in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The back end.
    pub wish: Wish,
    /// The interface for psp and fq; `None` is that of the default route.
    pub dev: Option<String>,
    /// The rates.
    pub rules: Vec<Rule>,
}

/// What was put in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Applied {
    /// What paces, and why not a better one.
    #[serde(flatten)]
    pub choice: Choice,
    /// The interface of psp and fq.
    pub dev: Option<String>,
    /// The rates.
    pub rules: Vec<Rule>,
    /// What the back end cannot do with them.
    pub cannot: Vec<String>,
    /// What was changed.
    pub changes: Vec<String>,
}

/// A run of [`apply`] on its way.
struct Making<'a> {
    path: &'a Path,
    state: State,
    /// Called when a step is written down and when it is made.
    watch: &'a mut dyn FnMut(&Step, bool),
}

/// A step that failed, with its words.
type Failed = (String, io::Error);

impl Making<'_> {
    fn step(&mut self, step: Step, make: impl FnOnce() -> io::Result<()>) -> Result<(), Failed> {
        let text = step.text();
        self.state.steps.push(step.clone());
        self.state
            .store(self.path)
            .map_err(|e| (text.clone(), io::Error::other(e.to_string())))?;
        (self.watch)(&step, false);
        make().map_err(|e| (text, e))?;
        (self.watch)(&step, true);
        Ok(())
    }
}

/// Puts rates in force. `watch` is told each step twice: written down and not made, and made.
///
/// # Errors
/// [`PaceError`]. With bad input nothing was changed; what a step that failed left was taken back.
pub fn apply(
    request: &Request,
    path: &Path,
    watch: &mut dyn FnMut(&Step, bool),
) -> Result<Applied, PaceError> {
    check_all(&request.rules)?;
    for group in request.rules.iter().filter_map(|r| r.cgroup.as_deref()) {
        check_group(group)?;
    }
    // Without a word the default route's; where there is none, psp and fq say so.
    let dev = request.dev.clone().or_else(kuroshio_tune::link::default_dev);
    let found = find(dev.as_deref())?;
    let choice = choose(request.wish, &request.rules, &found)?;
    let dev = dev.filter(|_| choice.backend != Backend::Tcp);
    let _lock = Lock::take(path)?;
    if let Some(there) = State::load(path)?
        && !there.is_of_another_boot()
    {
        let what = if there.whole { "in force" } else { "half in force" };
        return Err(StateError::Wrong {
            path: path.to_path_buf(),
            why: format!("rates are {what} already: `kuroshio pace clear` first"),
        }
        .into());
    }
    let mut making = Making {
        path,
        state: State::new(choice.backend, dev.clone(), request.rules.clone()),
        watch,
    };
    making.state.store(path)?;
    let made = match choice.backend {
        Backend::Psp => psp(&mut making, &found),
        Backend::Fq => fq(&mut making, &found),
        Backend::Tcp => sockets(&mut making, |_| None, false),
    };
    if let Err((what, source)) = made {
        let left = take_back(&mut making.state, path)?;
        return Err(PaceError::Step {
            what,
            source,
            left: left.into_iter().map(|(text, e)| format!("{text}: {e}")).collect(),
        });
    }
    making.state.whole = true;
    making.state.store(path)?;
    Ok(Applied {
        cannot: own(choice.backend.cannot(&request.rules)),
        changes: making.state.steps.iter().map(Step::text).collect(),
        rules: request.rules.clone(),
        choice,
        dev,
    })
}

fn own(words: Vec<&str>) -> Vec<String> {
    words.into_iter().map(str::to_owned).collect()
}

/// A control group of version 2 exists below the place where they are mounted.
fn check_group(group: &Path) -> Result<(), PaceError> {
    let root = cgroup_root().unwrap_or_else(|| PathBuf::from("/sys/fs/cgroup"));
    if group.starts_with(&root) && group.join("cgroup.procs").exists() {
        return Ok(());
    }
    Err(PaceError::BadInput(format!(
        "cgroup {}: not a control group of version 2; a folder with cgroup.procs below {} is valid",
        group.display(),
        root.display()
    )))
}

/// The interface that `find` has looked at; psp and fq are chosen only with one.
fn at(found: &Found) -> Result<(String, u32, Option<Qdisc>), Failed> {
    match (&found.dev, &found.here) {
        (Some(dev), Some(here)) => Ok((dev.clone(), here.index, here.root.clone())),
        _ => Err(("the interface".into(), io::ErrorKind::NotFound.into())),
    }
}

fn open() -> Result<Tc, Failed> {
    Tc::open().map_err(|e| ("netlink".to_owned(), e))
}

/// The qdisc, unless one of the kind is there already. Gives its number, and whether it is ours.
fn root(
    making: &mut Making<'_>,
    tc: &mut Tc,
    kind: &str,
    found: &Found,
) -> Result<(String, u32, u32, bool), Failed> {
    let (dev, index, root) = at(found)?;
    if let Some(there) = root.filter(|r| r.kind == kind) {
        return Ok((dev, index, there.handle, false));
    }
    if found.root.as_deref() == Some(kind) {
        // The kernel's own of that kind: it needs nothing, and has no number to hang anything on.
        return Ok((dev, index, 0, false));
    }
    let step = Step::Qdisc {
        dev: dev.clone(),
        index,
        kind: kind.to_owned(),
        handle: HANDLE,
    };
    making.step(step, || tc.add_root(index.cast_signed(), kind, HANDLE))?;
    Ok((dev, index, HANDLE, true))
}

/// A class per rule; filters for destinations, the program for control groups.
fn psp(making: &mut Making<'_>, found: &Found) -> Result<(), Failed> {
    let mut tc = open()?;
    let (dev, index, handle, ours) = root(making, &mut tc, "psp", found)?;
    let at = index.cast_signed();
    let rules = making.state.rules.clone();
    // One process at a time: numbers that are free stay so.
    let _numbers = Lock::take_soon(&numbers_path(making.path)).map_err(|e| {
        let e = io::Error::other(e.to_string());
        (format!("class numbers at {dev}"), e)
    })?;
    let first = if ours {
        FIRST_CLASS
    } else {
        free_classes(&mut tc, at, handle, rules.len())?
    };
    let class_of = |number: usize| handle | (first + number as u32);
    for (number, rule) in rules.iter().enumerate() {
        let classid = class_of(number);
        let make = |tc: &mut Tc| tc.add_class(at, handle, classid, rule);
        if ours {
            // It goes with our qdisc.
            make(&mut tc).map_err(|e| (format!("class of the rule {rule}"), e))?;
        } else {
            let step = Step::Class {
                dev: dev.clone(),
                index,
                classid,
            };
            let there = tc
                .has_class(at, classid)
                .map_err(|e| ("reading the classes".to_owned(), e))?;
            if there {
                // Not ours: taking it back would take somebody else's away.
                return Err((step.text(), io::ErrorKind::AlreadyExists.into()));
            }
            making.step(step, || make(&mut tc))?;
        }
        if rule.cgroup.is_some() {
            continue;
        }
        let preferences = FIRST_PREFERENCE + 2 * (classid - (handle | FIRST_CLASS))..;
        for (filter, preference) in filters(rule).into_iter().zip(preferences) {
            // 256 classes of two each end below 2^16.
            let preference = preference as u16;
            let make = |tc: &mut Tc| tc.add_filter(at, handle, preference, classid, &filter);
            if ours {
                make(&mut tc).map_err(|e| (format!("filter of the rule {rule}"), e))?;
            } else {
                let step = Step::Filter {
                    dev: dev.clone(),
                    index,
                    parent: handle,
                    preference,
                    protocol: filter.protocol,
                };
                making.step(step, || make(&mut tc))?;
            }
        }
    }
    sockets(
        making,
        |number| {
            let group = rules.get(number)?.cgroup.as_ref();
            group.map(|_| class_of(number))
        },
        true,
    )
}

/// What is locked while numbers of classes are chosen: the same for every state file of this network namespace.
fn numbers_path(state: &Path) -> PathBuf {
    let mut path = default_path()
        .unwrap_or_else(|| state.to_path_buf())
        .into_os_string();
    path.push(".numbers");
    path.into()
}

/// The first of so many numbers in a row that somebody's psp has no classes of, from ours on.
fn free_classes(tc: &mut Tc, at: i32, handle: u32, count: usize) -> Result<u32, Failed> {
    let there = tc
        .classes(at)
        .map_err(|e| ("reading the classes".to_owned(), e))?;
    let free = |first: &u32| (0..count as u32).all(|n| !there.contains(&(handle | (first + n))));
    (FIRST_CLASS..FIRST_CLASS + MAX_CLASSES)
        .find(free)
        .ok_or_else(|| ("class numbers".to_owned(), io::ErrorKind::AlreadyExists.into()))
}

fn fq(making: &mut Making<'_>, found: &Found) -> Result<(), Failed> {
    let mut tc = open()?;
    root(making, &mut tc, "fq", found)?;
    sockets(making, |_| None, false)
}

/// The program, once for each control group that rules name, and at the root for the others. With `classes`, only
/// rules with a class are its.
fn sockets(
    making: &mut Making<'_>,
    class_of: impl Fn(usize) -> Option<u32>,
    classes: bool,
) -> Result<(), Failed> {
    let rules = making.state.rules.clone();
    let everywhere = cgroup_root().unwrap_or_default();
    let mut groups: BTreeMap<PathBuf, Vec<Told<'_>>> = BTreeMap::new();
    for (number, rule) in rules.iter().enumerate() {
        let class = class_of(number);
        if classes && class.is_none() {
            continue;
        }
        let group = rule.cgroup.clone().unwrap_or_else(|| everywhere.clone());
        groups.entry(group).or_default().push(Told { rule, class });
    }
    for (cgroup, told) in groups {
        let failed = |e| (format!("BPF program for {}", cgroup.display()), e);
        let loaded = Loaded::new(&told).map_err(failed)?;
        let ids = loaded.ids().map_err(failed)?;
        let step = Step::Program {
            cgroup: cgroup.clone(),
            ids,
        };
        making.step(step, || loaded.attach(&cgroup))?;
    }
    Ok(())
}

/// Takes steps back, latest first; gives those that could not be, which stay in the file.
fn take_back(state: &mut State, path: &Path) -> Result<Vec<(String, io::Error)>, StateError> {
    let mut left = Vec::new();
    let mut kept = Vec::new();
    while let Some(step) = state.steps.pop() {
        match undo(&step) {
            Ok(()) => {}
            Err(e) => {
                left.push((step.text(), e));
                kept.push(step);
            }
        }
    }
    kept.reverse();
    state.steps = kept;
    state.whole = false;
    if left.is_empty() {
        State::remove(path)?;
    } else {
        state.store(path)?;
    }
    Ok(left)
}

/// Takes one step back; one that was not made, or is gone, is done.
fn undo(step: &Step) -> io::Result<()> {
    let gone = |done: io::Result<()>| match done {
        Err(e) if matches!(code(&e), Some(libc::ENOENT | libc::ENODEV | libc::EINVAL)) => Ok(()),
        other => other,
    };
    match step {
        Step::Qdisc {
            dev,
            index,
            kind,
            handle,
        } => {
            let mut tc = Tc::open()?;
            let at = index.cast_signed();
            let there = tc.root(at)?;
            let ours = |q: &Qdisc| q.kind == *kind && q.handle == *handle;
            // The kernel's own, or somebody else's by now: not ours to take away.
            if !Step::dev_is_there(dev, *index) || !there.as_ref().is_some_and(ours) {
                return Ok(());
            }
            tc.delete_root(at, *handle)
        }
        Step::Class { dev, index, classid } => {
            if !Step::dev_is_there(dev, *index) {
                return Ok(());
            }
            gone(Tc::open()?.delete_class(index.cast_signed(), *classid))
        }
        Step::Filter {
            dev,
            index,
            parent,
            preference,
            protocol,
        } => {
            if !Step::dev_is_there(dev, *index) {
                return Ok(());
            }
            gone(Tc::open()?.delete_filter(index.cast_signed(), *parent, *preference, *protocol))
        }
        Step::Program { cgroup, ids } => program::take_off(cgroup, *ids).map(drop),
    }
}

/// Takes everything back that the state file names. Gives what was taken back.
///
/// # Errors
/// [`PaceError::State`]: there is no state file, or it is not of this network namespace. [`PaceError::Step`]: what
/// could not be taken back stays in the file.
pub fn clear(path: &Path) -> Result<Vec<String>, PaceError> {
    let _lock = Lock::take(path)?;
    let Some(mut state) = State::load(path)? else {
        return Err(StateError::Wrong {
            path: path.to_path_buf(),
            why: "no such file: no rates are in force from here".into(),
        }
        .into());
    };
    if state.is_of_another_boot() {
        // What it names went with the kernel's memory.
        State::remove(path)?;
        return Ok(Vec::new());
    }
    let steps: Vec<String> = state.steps.iter().rev().map(Step::text).collect();
    let mut left = take_back(&mut state, path)?.into_iter();
    match left.next() {
        None => Ok(steps),
        Some((what, source)) => Err(PaceError::Step {
            what,
            source,
            left: left.map(|(text, e)| format!("{text}: {e}")).collect(),
        }),
    }
}

/// One rule as it is now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct InForce {
    /// The rule.
    pub rule: Rule,
    /// TCP connections that were told so far; `None` where a qdisc's filter does it.
    pub connections: Option<u64>,
}

/// What is in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Shown {
    /// What paces.
    pub backend: Backend,
    /// The interface of psp and fq.
    pub dev: Option<String>,
    /// The rates.
    pub rules: Vec<InForce>,
    /// What the back end cannot do with them.
    pub cannot: Vec<String>,
    /// Whether everything was made; else a process was killed on its way, and `clear` takes back what it made.
    pub whole: bool,
    /// What was changed and is not there any more.
    pub lost: Vec<String>,
}

/// What is in force, from the state file and the kernel; `None` when nothing is.
///
/// # Errors
/// [`PaceError::State`].
pub fn show(path: &Path) -> Result<Option<Shown>, PaceError> {
    let Some(state) = State::load(path)?.filter(|s| !s.is_of_another_boot()) else {
        return Ok(None);
    };
    let lost = state.steps.iter().filter(|s| !is_there(s)).map(Step::text);
    let everywhere = cgroup_root().unwrap_or_default();
    let counts: BTreeMap<&Path, Vec<u64>> = state.steps.iter().filter_map(counts_of(&state.rules)).collect();
    let mut used: BTreeMap<PathBuf, usize> = BTreeMap::new();
    let mut rules = Vec::new();
    for rule in &state.rules {
        let of_program = state.backend != Backend::Psp || rule.cgroup.is_some();
        let group = rule.cgroup.clone().unwrap_or_else(|| everywhere.clone());
        // A program's rules are those of its group, in the order of the list.
        let connections = of_program.then(|| {
            let number = used.entry(group.clone()).or_default();
            *number += 1;
            counts.get(group.as_path())?.get(*number - 1).copied()
        });
        rules.push(InForce {
            rule: rule.clone(),
            connections: connections.flatten(),
        });
    }
    Ok(Some(Shown {
        cannot: own(state.backend.cannot(&state.rules)),
        lost: lost.collect(),
        backend: state.backend,
        dev: state.dev.clone(),
        rules,
        whole: state.whole,
    }))
}

fn counts_of(rules: &[Rule]) -> impl Fn(&Step) -> Option<(&Path, Vec<u64>)> {
    let count = rules.len();
    move |step| match step {
        Step::Program { cgroup, ids } => Some((cgroup.as_path(), program::connections(*ids, count)?)),
        _ => None,
    }
}

fn is_there(step: &Step) -> bool {
    let qdisc = |dev: &str, index: u32, fits: &dyn Fn(&Qdisc) -> bool| {
        let root = Tc::open().and_then(|mut tc| tc.root(index.cast_signed()));
        Step::dev_is_there(dev, index) && root.ok().flatten().as_ref().is_some_and(fits)
    };
    match step {
        Step::Qdisc {
            dev,
            index,
            kind,
            handle,
        } => qdisc(dev, *index, &|q| q.kind == *kind && q.handle == *handle),
        Step::Class { dev, index, classid } => {
            Step::dev_is_there(dev, *index)
                && Tc::open()
                    .and_then(|mut tc| tc.has_class(index.cast_signed(), *classid))
                    .unwrap_or(false)
        }
        Step::Filter {
            dev, index, parent, ..
        } => qdisc(dev, *index, &|q| q.handle == *parent),
        Step::Program { ids, .. } => is_on(*ids),
    }
}

fn is_on(ids: Ids) -> bool {
    // Without the rights it cannot be asked, and nobody else takes it away.
    !rustix::process::geteuid().is_root() || program::is_on(ids)
}
