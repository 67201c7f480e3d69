//! Random operations beside a simple model in memory: both must answer the same, and be the same tree.

use super::bed::Bed;
use super::{Env, fragment, ok};
use kuroshio_catalog::*;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};

type Path = Vec<&'static str>;

#[derive(Clone, Debug)]
enum Step {
    MakeDir(Path),
    Create(Path, bool),
    Symlink(Path),
    Put(Path, u16),
    Write(Path, u16),
    Unlink(Path),
    RemoveDir(Path),
    Link(Path, Path),
    Rename(Path, Path, RenameMode),
    Chown(Path, u8),
    Reap,
}

fn path() -> impl Strategy<Value = Path> {
    prop::collection::vec(prop::sample::select(vec!["a", "b", "c"]), 1..4)
}

fn step() -> impl Strategy<Value = Step> {
    let mode = prop::sample::select(vec![
        RenameMode::Replace,
        RenameMode::NoReplace,
        RenameMode::Exchange,
    ]);
    prop_oneof![
        4 => path().prop_map(Step::MakeDir),
        3 => (path(), any::<bool>()).prop_map(|(p, e)| Step::Create(p, e)),
        1 => path().prop_map(Step::Symlink),
        3 => (path(), any::<u16>()).prop_map(|(p, n)| Step::Put(p, n)),
        2 => (path(), any::<u16>()).prop_map(|(p, n)| Step::Write(p, n)),
        2 => path().prop_map(Step::Unlink),
        2 => path().prop_map(Step::RemoveDir),
        2 => (path(), path()).prop_map(|(a, b)| Step::Link(a, b)),
        5 => (path(), path(), mode).prop_map(|(a, b, m)| Step::Rename(a, b, m)),
        1 => (path(), 0..3u8).prop_map(|(p, u)| Step::Chown(p, u)),
        1 => Just(Step::Reap),
    ]
}

/// A node of the model.
#[derive(Clone, Debug, PartialEq)]
enum Node {
    Dir(BTreeMap<&'static str, usize>),
    File {
        size: u64,
        owner: u8,
    },
    /// A link that leads nowhere.
    Symlink,
}

struct Model {
    nodes: Vec<Node>,
}

use ErrorKind as E;

impl Model {
    fn new() -> Self {
        Self {
            nodes: vec![Node::Dir(BTreeMap::new())],
        }
    }

    fn entries(&self, dir: usize) -> &BTreeMap<&'static str, usize> {
        match &self.nodes[dir] {
            Node::Dir(entries) => entries,
            _ => unreachable!("only called for directories"),
        }
    }

    fn entries_mut(&mut self, dir: usize) -> &mut BTreeMap<&'static str, usize> {
        match &mut self.nodes[dir] {
            Node::Dir(entries) => entries,
            _ => unreachable!("only called for directories"),
        }
    }

    fn add(&mut self, node: Node) -> usize {
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    fn is_dir(&self, n: usize) -> bool {
        matches!(self.nodes[n], Node::Dir(_))
    }

    /// The directory of the last name.
    fn parent(&self, path: &[&'static str]) -> Result<(usize, &'static str), E> {
        let (last, way) = path.split_last().expect("paths have a name");
        let mut at = 0;
        for name in way {
            at = *self.entries(at).get(name).ok_or(E::NotFound)?;
            match self.nodes[at] {
                Node::Dir(_) => {}
                Node::File { .. } => return Err(E::NotDir),
                Node::Symlink => return Err(E::NotFound),
            }
        }
        Ok((at, last))
    }

    fn find(&self, path: &[&'static str]) -> Result<usize, E> {
        let (dir, name) = self.parent(path)?;
        self.entries(dir).get(name).copied().ok_or(E::NotFound)
    }

    fn links(&self, n: usize) -> usize {
        let names = |d: &Node| match d {
            Node::Dir(e) => e.values().filter(|v| **v == n).count(),
            _ => 0,
        };
        self.reachable().iter().map(|d| names(&self.nodes[*d])).sum()
    }

    fn reachable(&self) -> Vec<usize> {
        let mut out = vec![0];
        let mut i = 0;
        while i < out.len() {
            if let Node::Dir(entries) = &self.nodes[out[i]] {
                let more: Vec<usize> = entries.values().copied().filter(|n| !out.contains(n)).collect();
                out.extend(more);
            }
            i += 1;
        }
        out
    }

    /// Whether `below` is `top` or lies below it.
    fn contains(&self, top: usize, below: usize) -> bool {
        top == below
            || matches!(&self.nodes[top], Node::Dir(e) if e.values().any(|n| self.is_dir(*n) && self.contains(*n, below)))
    }

    fn make(&mut self, path: &[&'static str], node: Node) -> Result<(), E> {
        let (dir, name) = self.parent(path)?;
        if self.entries(dir).contains_key(name) {
            return Err(E::Exists);
        }
        let n = self.add(node);
        self.entries_mut(dir).insert(name, n);
        Ok(())
    }

    fn apply(&mut self, step: &Step) -> Result<(), E> {
        match step {
            Step::MakeDir(p) => self.make(p, Node::Dir(BTreeMap::new())),
            Step::Symlink(p) => self.make(p, Node::Symlink),
            Step::Create(p, exclusive) => match self.find(p) {
                Ok(_) if *exclusive => Err(E::Exists),
                Ok(n) => match self.nodes[n] {
                    Node::Dir(_) => Err(E::IsDir),
                    Node::File { .. } => Ok(()),
                    // Where it leads, a directory on the way is missing.
                    Node::Symlink => Err(E::NotFound),
                },
                Err(E::NotFound) => self.make(p, Node::File { size: 0, owner: 0 }),
                Err(e) => Err(e),
            },
            Step::Put(p, size) => {
                let (dir, name) = self.parent(p)?;
                if self.entries(dir).get(name).is_some_and(|n| self.is_dir(*n)) {
                    return Err(E::IsDir);
                }
                let n = self.add(Node::File {
                    size: u64::from(*size),
                    owner: 0,
                });
                self.entries_mut(dir).insert(name, n);
                Ok(())
            }
            Step::Write(p, new) => {
                let n = self.find(p)?;
                match &mut self.nodes[n] {
                    Node::Dir(_) => Err(E::IsDir),
                    Node::Symlink => Err(E::NotFound),
                    Node::File { size, .. } => {
                        *size = u64::from(*new);
                        Ok(())
                    }
                }
            }
            Step::Unlink(p) => {
                let (dir, name) = self.parent(p)?;
                let n = *self.entries(dir).get(name).ok_or(E::NotFound)?;
                if self.is_dir(n) {
                    return Err(E::IsDir);
                }
                self.entries_mut(dir).remove(name);
                Ok(())
            }
            Step::RemoveDir(p) => {
                let (dir, name) = self.parent(p)?;
                let n = *self.entries(dir).get(name).ok_or(E::NotFound)?;
                match &self.nodes[n] {
                    Node::Dir(e) if e.is_empty() => {}
                    Node::Dir(_) => return Err(E::NotEmpty),
                    _ => return Err(E::NotDir),
                }
                self.entries_mut(dir).remove(name);
                Ok(())
            }
            Step::Link(from, to) => {
                let n = self.find(from)?;
                let (dir, name) = self.parent(to)?;
                if self.is_dir(n) {
                    return Err(E::NotPermitted);
                }
                if self.entries(dir).contains_key(name) {
                    return Err(E::Exists);
                }
                self.entries_mut(dir).insert(name, n);
                Ok(())
            }
            Step::Chown(p, user) => {
                let n = self.find(p)?;
                if let Node::File { owner, .. } = &mut self.nodes[n] {
                    *owner = *user;
                }
                Ok(())
            }
            Step::Rename(from, to, mode) => self.rename(from, to, *mode),
            Step::Reap => Ok(()),
        }
    }

    fn rename(&mut self, from: &[&'static str], to: &[&'static str], mode: RenameMode) -> Result<(), E> {
        let (from_dir, from_name) = self.parent(from)?;
        let (to_dir, to_name) = self.parent(to)?;
        let moving = *self.entries(from_dir).get(from_name).ok_or(E::NotFound)?;
        let there = self.entries(to_dir).get(to_name).copied();
        match (there, mode) {
            (Some(_), RenameMode::NoReplace) => return Err(E::Exists),
            (None, RenameMode::Exchange) => return Err(E::NotFound),
            (Some(there), _) if there == moving => return Ok(()),
            _ => {}
        }
        if self.is_dir(moving) && from_dir != to_dir && self.contains(moving, to_dir) {
            return Err(E::Invalid);
        }
        if mode == RenameMode::Exchange {
            let there = there.expect("checked above");
            if self.is_dir(there) && from_dir != to_dir && self.contains(there, from_dir) {
                return Err(E::Invalid);
            }
            self.entries_mut(from_dir).insert(from_name, there);
            self.entries_mut(to_dir).insert(to_name, moving);
            return Ok(());
        }
        if let Some(there) = there {
            match (self.is_dir(moving), &self.nodes[there]) {
                (true, Node::Dir(e)) if !e.is_empty() => return Err(E::NotEmpty),
                (false, Node::Dir(_)) => return Err(E::IsDir),
                (true, Node::File { .. } | Node::Symlink) => return Err(E::NotDir),
                _ => {}
            }
        }
        self.entries_mut(from_dir).remove(from_name);
        self.entries_mut(to_dir).insert(to_name, moving);
        Ok(())
    }
}

fn apply(env: &Env, top: Ino, step: &Step) -> Result<(), CatalogError> {
    let at = |p: &Path| Place::at(top, p.join("/"));
    let (mode, umask) = (0o755, 0);
    match step {
        Step::MakeDir(p) => env
            .call(MakeDir {
                place: at(p),
                mode,
                umask,
            })
            .map(drop),
        Step::Create(p, exclusive) => env
            .call(Create {
                place: at(p),
                mode,
                umask,
                exclusive: *exclusive,
                open: false,
            })
            .map(drop),
        Step::Symlink(p) => env
            .call(Symlink {
                place: at(p),
                target: b"none/where".to_vec(),
            })
            .map(drop),
        Step::Put(p, size) => {
            let draft = env.call(Allocate {})?;
            let fragments = vec![fragment(0, u64::from(*size), &["n1"])];
            let put = PutFile {
                place: at(p),
                draft,
                mode,
                umask,
                fragments,
                exclusive: false,
                mtime: None,
            };
            let answer = env.call(put).map(drop);
            env.call(Release { handle: draft.handle })?;
            answer
        }
        Step::Write(p, size) => {
            let draft = env.call(OpenWrite { place: at(p) })?;
            let answer = env
                .call(super::commit(draft, vec![fragment(0, u64::from(*size), &["n2"])]))
                .map(drop);
            env.call(Release { handle: draft.handle })?;
            answer
        }
        Step::Unlink(p) => env.call(Unlink { place: at(p) }).map(drop),
        Step::RemoveDir(p) => env.call(RemoveDir { place: at(p) }),
        Step::Link(a, b) => env
            .call(Link {
                from: at(a),
                to: at(b),
            })
            .map(drop),
        Step::Rename(a, b, mode) => env.call(Rename {
            from: at(a),
            to: at(b),
            mode: *mode,
        }),
        Step::Chown(p, user) => {
            let owner = Some(format!("user{user}"));
            let change = SetAttr {
                place: at(p),
                follow: false,
                mode: None,
                owner,
                group: None,
                atime: None,
                mtime: None,
            };
            env.call(change).map(drop)
        }
        Step::Reap => env
            .call(Reap {
                limit: 100,
                ttl_ms: 60_000,
            })
            .map(drop),
    }
}

/// Both trees, name by name.
fn compare(env: &Env, model: &Model, dir: usize, ino: Ino) {
    let page = ok(env.call(ReadDir {
        place: Place::ino(ino),
        after: None,
        limit: 100,
        attrs: true,
    }));
    let entries = model.entries(dir);
    let names: Vec<_> = page
        .entries
        .iter()
        .map(|e| String::from_utf8_lossy(&e.name).into_owned())
        .collect();
    assert_eq!(names, entries.keys().map(|k| (*k).to_owned()).collect::<Vec<_>>());
    for (e, n) in page.entries.iter().zip(entries.values()) {
        let attr = e.attr.as_ref().expect("asked for");
        match &model.nodes[*n] {
            Node::Dir(below) => {
                assert_eq!(e.kind, Kind::Dir);
                let subdirectories = below.values().filter(|m| model.is_dir(**m)).count();
                assert_eq!(attr.links as usize, 2 + subdirectories);
                compare(env, model, *n, e.ino);
            }
            Node::File { size, owner } => {
                assert_eq!(
                    (e.kind, attr.size, attr.links as usize),
                    (Kind::File, *size, model.links(*n))
                );
                if *owner > 0 {
                    assert_eq!(attr.owner, format!("user{owner}"));
                }
            }
            Node::Symlink => assert_eq!((e.kind, attr.links as usize), (Kind::Symlink, model.links(*n))),
        }
    }
}

pub fn random_operations_match_the_model(bed: &dyn Bed) {
    let env = bed.env();
    env.site("s", &["n1", "n2"]);
    let next = AtomicU32::new(0);
    let cases = std::env::var("PROPTEST_CASES")
        .ok()
        .and_then(|c| c.parse().ok())
        .unwrap_or(40);
    let mut runner = TestRunner::new(Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    });
    let run = runner.run(&prop::collection::vec(step(), 1..60), |steps| {
        let top = env
            .mkdir(&format!("/case{}", next.fetch_add(1, Ordering::Relaxed)))
            .ino;
        let mut model = Model::new();
        for (i, step) in steps.iter().enumerate() {
            let expected = model.apply(step);
            let got = apply(&env, top, step).map_err(|e| e.kind());
            prop_assert_eq!(got, expected, "step {}: {:?}", i, step);
        }
        compare(&env, &model, 0, top);
        let found = ok(env.call(CheckInvariants { limit: 10 }));
        prop_assert!(found.is_empty(), "{}", String::from_utf8_lossy(&found[0]));
        Ok(())
    });
    if let Err(e) = run {
        panic!("{e}");
    }
}
