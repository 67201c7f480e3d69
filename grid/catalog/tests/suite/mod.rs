//! Cases that every back end passes, and what they share.

pub mod access;
pub mod bed;
pub mod contents;
mod crash;
mod embedded;
pub mod jobs;
pub mod model;
pub mod names;
pub mod presence;
pub mod quotas;
pub mod renames;
pub mod replicas;
pub mod restores;
pub mod server;
mod tls;
pub mod together;

use kuroshio_catalog::*;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A catalog with short calls, all as the administrator unless a caller is given.
pub struct Env {
    pub catalog: Arc<dyn Catalog>,
    pub admin: Caller,
}

pub fn ok<T>(answer: Result<T, CatalogError>) -> T {
    match answer {
        Ok(t) => t,
        Err(e) => panic!("refused: {:?}: {e}", e.kind()),
    }
}

#[track_caller]
pub fn refused<T: std::fmt::Debug>(answer: Result<T, CatalogError>, kind: ErrorKind) {
    match answer {
        Ok(t) => panic!("should be refused with {kind:?}, but is {t:?}"),
        Err(e) => assert_eq!(e.kind(), kind, "{e}"),
    }
}

pub fn at(path: &str) -> Place {
    Place::path(path)
}

impl Env {
    pub fn new(catalog: Arc<dyn Catalog>) -> Self {
        Self {
            catalog,
            admin: Caller::admin(),
        }
    }

    pub fn call<O: Operation>(&self, op: O) -> Result<O::Output, CatalogError> {
        self.catalog.call(&self.admin, op)
    }

    pub fn by<O: Operation>(&self, caller: &Caller, op: O) -> Result<O::Output, CatalogError> {
        self.catalog.call(caller, op)
    }

    pub fn mkdir(&self, path: &str) -> Attr {
        ok(self.call(MakeDir {
            place: at(path),
            mode: 0o755,
            umask: 0,
        }))
    }

    pub fn create(&self, path: &str) -> Attr {
        ok(self.call(Create {
            place: at(path),
            mode: 0o644,
            umask: 0,
            exclusive: true,
            open: false,
        }))
        .attr
    }

    pub fn symlink(&self, path: &str, target: &str) -> Attr {
        ok(self.call(Symlink {
            place: at(path),
            target: target.into(),
        }))
    }

    pub fn stat(&self, path: &str) -> Result<Attr, CatalogError> {
        self.call(Stat {
            place: at(path),
            follow: false,
        })
    }

    pub fn unlink(&self, path: &str) -> Result<Attr, CatalogError> {
        self.call(Unlink { place: at(path) })
    }

    pub fn rename(&self, from: &str, to: &str) -> Result<(), CatalogError> {
        self.call(Rename {
            from: at(from),
            to: at(to),
            mode: RenameMode::Replace,
        })
    }

    pub fn link(&self, from: &str, to: &str) -> Result<Attr, CatalogError> {
        self.call(Link {
            from: at(from),
            to: at(to),
        })
    }

    /// All names of a directory, in pages of `page`.
    pub fn names(&self, path: &str, page: u32) -> Vec<String> {
        let mut out = Vec::new();
        let mut after = None;
        loop {
            let got = ok(self.call(ReadDir {
                place: at(path),
                after,
                limit: page,
                attrs: false,
            }));
            out.extend(
                got.entries
                    .iter()
                    .map(|e| String::from_utf8_lossy(&e.name).into_owned()),
            );
            after = got.entries.last().map(|e| e.name.clone());
            assert!(out.len() < 100_000, "the listing does not end");
            if !got.more {
                return out;
            }
        }
    }

    /// A site with nodes that are up.
    pub fn site(&self, site: &str, nodes: &[&str]) {
        ok(self.call(PutSite {
            site: Site {
                name: site.into(),
                note: String::new(),
            },
        }));
        for name in nodes {
            ok(self.call(PutNode {
                node: node(name, site),
            }));
        }
    }

    /// A file of some bytes with replicas on nodes.
    pub fn put(&self, path: &str, size: u64, nodes: &[&str]) -> Attr {
        ok(self.put_by(&self.admin, path, size, nodes))
    }

    pub fn put_by(&self, who: &Caller, path: &str, size: u64, nodes: &[&str]) -> Result<Attr, CatalogError> {
        let draft = self.by(who, Allocate {})?;
        let fragments = vec![fragment(0, size, nodes)];
        let put = PutFile {
            place: at(path),
            draft,
            mode: 0o644,
            umask: 0,
            fragments,
            exclusive: false,
            mtime: None,
        };
        let answer = self.by(who, put);
        ok(self.by(who, Release { handle: draft.handle }));
        answer
    }

    pub fn chmod(&self, path: &str, mode: u32) {
        ok(self.call(set(path, |s| s.mode = Some(mode))));
    }

    pub fn chown(&self, path: &str, owner: &str, group: &str) {
        ok(self.call(set(path, |s| {
            s.owner = Some(owner.into());
            s.group = Some(group.into());
        })));
    }

    pub fn layout(&self, path: &str) -> ContentLayout {
        ok(self.call(Where { place: at(path) }))
    }

    pub fn off(&self, balance: CopyBalance) -> Vec<OffCopies> {
        ok(self.call(ListOffCopies {
            balance,
            after: None,
            limit: 100,
        }))
    }

    pub fn on_node(&self, node: &str, state: Option<ReplicaState>) -> Vec<NodeReplica> {
        ok(self.call(ListNodeReplicas {
            node: node.into(),
            state,
            after: None,
            limit: 1000,
        }))
    }

    /// Upkeep a few times: what can go at once, goes.
    pub fn reap(&self) -> u64 {
        (0..3)
            .map(|_| {
                ok(self.call(Reap {
                    limit: 1000,
                    ttl_ms: 60_000,
                }))
            })
            .sum()
    }

    /// Upkeep until so many contents went. PostgreSQL sees a death when all transactions of the server that ran
    /// beside it ended, those of other databases too.
    #[track_caller]
    pub fn reap_until(&self, contents: u64) {
        let end = Instant::now() + Duration::from_secs(30);
        let mut gone = 0;
        while gone < contents && Instant::now() < end {
            gone += self.reap();
        }
        assert_eq!(gone, contents);
    }

    pub fn user_usage(&self, name: &str) -> (u64, u64) {
        let u = ok(self.call(GetUsage {
            subject: QuotaSubject::User(name.into()),
        }));
        (u.files, u.bytes)
    }

    #[track_caller]
    pub fn invariants_hold(&self) {
        let found = ok(self.call(CheckInvariants { limit: 100 }));
        let text: Vec<_> = found
            .iter()
            .map(|f| String::from_utf8_lossy(f).into_owned())
            .collect();
        assert!(text.is_empty(), "{text:#?}");
    }
}

pub fn set(path: &str, change: impl FnOnce(&mut SetAttr)) -> SetAttr {
    let mut s = SetAttr {
        place: at(path),
        follow: true,
        mode: None,
        owner: None,
        group: None,
        atime: None,
        mtime: None,
    };
    change(&mut s);
    s
}

pub fn node(name: &str, site: &str) -> Node {
    Node {
        name: name.into(),
        site: site.into(),
        address: format!("{name}.invalid:2811"),
        pin: "sha256//".into(),
        state: NodeState::Up,
        capacity_bytes: 1000,
        free_bytes: 600,
        load_milli: 0,
        heartbeat: Timestamp(0),
        since: Timestamp(0),
    }
}

/// A digest that says which fragment it is of.
pub fn digest(index: u32, size: u64) -> Digest {
    let mut d = [0; 32];
    d[..8].copy_from_slice(&size.to_be_bytes());
    d[8..12].copy_from_slice(&index.to_be_bytes());
    Digest(d)
}

pub fn fragment(index: u32, size: u64, nodes: &[&str]) -> NewFragment {
    NewFragment {
        index,
        size,
        digest: digest(index, size),
        nodes: nodes.iter().map(|n| (*n).to_owned()).collect(),
    }
}

pub fn commit(draft: Draft, fragments: Vec<NewFragment>) -> Commit {
    Commit {
        draft,
        fragments,
        keep: Vec::new(),
        expect: None,
        mtime: None,
    }
}
