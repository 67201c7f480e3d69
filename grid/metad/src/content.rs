//! Rights to write and to read content at the nodes, and its publication.
//!
//! A right is a token of the grid's issuer for one content's objects (`/.kuroshio/objects/INODE/GENERATION`)
//! that nodes check without asking. Content is published only with the receipt of a node that has it.

use kuroshio_catalog as cat;
use kuroshio_catalog::{Draft, ErrorKind, Generation, Handle, Ino, Place};
use kuroshio_proto::v1::response::Result as Answer;
use kuroshio_proto::v1::{self, Code, Failure};
use kuroshio_proto::{MAX_COPIES, OBJECTS_PREFIX, object_path};
use kuroshio_service::{FileFacts, Operation};

use crate::convert;
use crate::door::Session;
use crate::place::View;
use crate::server::Inner;
use crate::stage::MAX_PUT_FRAGMENTS;

/// Nodes that a right to write names.
const PLACES: usize = 4;
/// What is made in a directory with this bit belongs to its group.
const SET_GID: u32 = 0o2000;
/// Generations that a right to read names one by one; beyond, it is for all contents of the file.
const MAX_GENERATIONS: usize = 16;
/// Priority of replicas that a person asked for.
const ASKED_PRIORITY: u32 = 10;
/// Highest priority that may be asked for.
const MAX_PRIORITY: u32 = 100;

type Answered = Result<Answer, Failure>;

impl Inner {
    /// The right to give a file new content.
    pub async fn create(&self, session: &Session, r: v1::CreateRequest) -> Answered {
        let who = &session.who;
        self.may(who, Operation::Modify, &r.path).await?;
        if r.fragments > MAX_PUT_FRAGMENTS {
            let text = format!("{} fragments: at most {MAX_PUT_FRAGMENTS} are valid", r.fragments);
            return Err(Failure::new(Code::Invalid, text));
        }
        let place = Place::path(&r.path);
        let opened = self
            .try_ask(&who.caller, cat::OpenWrite { place: place.clone() })
            .await;
        let (draft, new_file, file) = match opened {
            Ok(draft) if r.exclusive => {
                self.release(draft.handle).await;
                return Err(Failure::new(
                    Code::Exists,
                    format!("{place}: it is there already"),
                ));
            }
            Ok(draft) => {
                let mut file = self.facts_of(draft.ino).await;
                file.fragments = r.fragments.max(1);
                file.mtime_ns = r.mtime_ns;
                (draft, false, file)
            }
            Err(e) if e.kind() == ErrorKind::NotFound => {
                let file = self.check_new(session, &r).await?;
                (self.ask(&who.caller, cat::Allocate {}).await?, true, file)
            }
            Err(e) => return Err(convert::failure(&e)),
        };
        let (inode, generation) = (draft.ino.0, draft.generation.0);
        let each = r.size_hint_bytes.div_ceil(u64::from(r.fragments.max(1)));
        let nodes = match self.choose(inode, each, &r.near_host, &r.avoid).await {
            Ok(nodes) => nodes,
            Err(e) => {
                self.release(draft.handle).await;
                return Err(e);
            }
        };
        if r.join && !new_file {
            let kept = self.join_draft(&who.caller.user, draft, r.fragments).await?;
            return self.fragment_grant(who, (inode, kept, false), file, &nodes);
        }
        self.registry.keep_draft(draft);
        if r.fragments > 1 {
            return self.fragment_grant(who, (inode, generation, new_file), file, &nodes);
        }
        let path = object_path(inode, generation, 0);
        let scope = format!("storage.modify:{path}");
        let token = self.grant_file(&who.caller.user, &scope, file)?;
        Ok(Answer::Write(v1::WriteGrant {
            inode,
            generation,
            new_file,
            places: places_to_write(nodes, &path, &token),
            ..v1::WriteGrant::default()
        }))
    }

    /// What a right to write says of a file that is there. Of one without a name, or that cannot be looked at now, little:
    /// the content is worth more than what is known beside it.
    pub async fn facts_of(&self, ino: Ino) -> FileFacts {
        let admin = cat::Caller::admin();
        let stat = cat::Stat {
            place: Place::ino(ino),
            follow: false,
        };
        let (path, attr) = tokio::join!(
            self.try_ask(&admin, cat::PathOf { ino }),
            self.try_ask(&admin, stat)
        );
        let path = path.unwrap_or_default();
        match attr {
            Ok(attr) => FileFacts {
                path,
                owner: attr.owner,
                group: attr.group,
                mode: attr.mode,
                fragments: attr.fragments,
                mtime_ns: Some(attr.mtime.0),
            },
            Err(_) => FileFacts {
                path,
                ..FileFacts::default()
            },
        }
    }

    /// Whether a new name may be made, asked before any byte is sent; what the right to write says of the file.
    async fn check_new(&self, session: &Session, r: &v1::CreateRequest) -> Result<FileFacts, Failure> {
        let plain = crate::auth::plain_path(&r.path)?;
        let at = plain.iter().rposition(|b| *b == b'/').unwrap_or_default();
        let folder = plain.get(..at.max(1)).unwrap_or(b"/");
        let op = cat::CheckAccess {
            place: Place::path(folder),
            access: cat::Access::WRITE.and(cat::Access::EXECUTE),
        };
        let attr = self.ask(&session.who.caller, op).await?;
        if attr.kind != cat::Kind::Dir {
            let text = format!(
                "'{}': not a directory",
                String::from_utf8_lossy(folder).escape_debug()
            );
            return Err(Failure::new(Code::NotDirectory, text));
        }
        let caller = &session.who.caller;
        let group = match attr.mode & SET_GID {
            0 => caller.groups.first().unwrap_or(&caller.user).clone(),
            _ => attr.group,
        };
        Ok(FileFacts {
            path: plain,
            owner: caller.user.clone(),
            group,
            mode: r.mode & !r.umask & 0o7777,
            fragments: r.fragments.max(1),
            mtime_ns: r.mtime_ns,
        })
    }

    pub async fn release(&self, handle: Handle) {
        // An unknown handle is as good as a released one.
        let _ = self.ask(&self.service(), cat::Release { handle }).await;
    }

    /// Publishes new content.
    pub async fn commit(&self, session: &Session, r: v1::CommitRequest) -> Answered {
        let who = &session.who;
        let place = session.place(&r.path);
        self.may_at(who, Operation::Modify, &place).await?;
        who.holds(self, &r.token, &object_path(r.inode, r.generation, 0))?;
        let fragments = self.written(&r)?;
        self.check_staged(&r).await?;
        let draft = self.registry.take_draft(r.inode, r.generation).unwrap_or(Draft {
            ino: Ino(r.inode),
            generation: Generation(r.generation),
            // This service has begun anew since: nothing is held.
            handle: Handle(0),
            base: Generation::EMPTY,
        });
        let mtime = r.mtime_ns.map(cat::Timestamp);
        let attr = if r.new_file {
            let op = cat::PutFile {
                place,
                draft,
                mode: r.mode,
                umask: r.umask,
                fragments,
                exclusive: r.exclusive,
                mtime,
            };
            self.ask(&who.caller, op).await
        } else {
            let op = cat::Commit {
                draft,
                fragments,
                keep: Vec::new(),
                expect: None,
                mtime,
            };
            // The permission of who has the file open was checked then.
            let open = who.caller.role == cat::Role::User && session.writes(draft.ino);
            let caller = if open { self.service() } else { who.caller.clone() };
            self.ask(&caller, op).await
        };
        if draft.handle.0 != 0 {
            self.release(draft.handle).await;
        }
        let attr = attr?;
        if attr.copies.total() > 1 {
            self.registry.wake();
        }
        Ok(Answer::Attr(convert::attr(attr)))
    }

    /// Gives new content up. The bytes at the node go when it looks for what nobody knows.
    pub async fn abandon(&self, session: &Session, r: v1::AbandonRequest) -> Answered {
        session
            .who
            .holds(self, &r.token, &object_path(r.inode, r.generation, 0))?;
        if let Some(draft) = self.registry.take_draft(r.inode, r.generation) {
            self.release(draft.handle).await;
        }
        Ok(Answer::Done(v1::Done {}))
    }

    /// The right to read a file, and where.
    pub async fn open(&self, session: &Session, r: v1::PathRequest) -> Answered {
        let who = &session.who;
        self.may(who, Operation::Read, &r.path).await?;
        let place = Place::path(&r.path);
        let open = self.ask(&who.caller, cat::OpenRead { place }).await?;
        if !session.keep(open.handle) {
            self.release(open.handle).await;
            return Err(Failure::new(
                Code::Limit,
                format!(
                    "this connection has {} files open already",
                    crate::door::MAX_HANDLES
                ),
            ));
        }
        let scope = read_scope(open.attr.ino, &open.fragments);
        let token = self.grant(&who.caller.user, &scope)?;
        let fragments = self.places(open.fragments, &token, &r.near_host).await?;
        Ok(Answer::Read(v1::ReadGrant {
            attr: Some(convert::attr(open.attr)),
            fragments,
            handle: open.handle.0,
        }))
    }

    /// Ends a right to read.
    pub async fn close(&self, session: &Session, r: v1::CloseRequest) -> Answered {
        if session.give_up(r.handle) {
            self.release(Handle(r.handle)).await;
        }
        Ok(Answer::Done(v1::Done {}))
    }

    /// Fragments and replicas, without the right to read them.
    pub async fn locate(&self, session: &Session, r: v1::PathRequest) -> Answered {
        self.may(&session.who, Operation::Read, &r.path).await?;
        let place = Place::path(&r.path);
        let layout = self.ask(&session.who.caller, cat::Where { place }).await?;
        let fragments = self.places(layout.fragments, "", &r.near_host).await?;
        Ok(Answer::Read(v1::ReadGrant {
            attr: Some(convert::attr(layout.attr)),
            fragments,
            handle: 0,
        }))
    }

    /// Fragments with their places, in the order in which a reader on `near_host` takes them: readable ones only if there is
    /// a token, nodes that are not up last.
    pub async fn places(
        &self,
        fragments: Vec<cat::Fragment>,
        token: &str,
        near_host: &str,
    ) -> Result<Vec<v1::Fragment>, Failure> {
        let nodes = self.nodes().await?;
        let routes = self.ask(&self.service(), cat::ListRoutes {}).await?;
        let mut view = View::new(&nodes);
        let mut out = Vec::with_capacity(fragments.len());
        for fragment in fragments {
            let object = fragment.object;
            let path = object_path(object.ino.0, object.generation.0, object.fragment);
            let order = view.sources(&fragment, (None, near_host), &routes);
            let rank = |name: &str| order.iter().position(|(k, _)| k.node.name == name);
            let mut places = Vec::new();
            for replica in fragment.replicas {
                let Some(node) = nodes.iter().find(|n| n.node.name == replica.node) else {
                    continue;
                };
                if !token.is_empty() && replica.state != cat::ReplicaState::Valid {
                    continue;
                }
                let rank = (!node.live, rank(&replica.node).unwrap_or(usize::MAX));
                let place = v1::Place {
                    node: replica.node,
                    address: node.node.address.clone(),
                    pin: node.node.pin.clone(),
                    path: path.clone(),
                    token: token.to_owned(),
                    up: node.live,
                    state: convert::replica_state(replica.state).to_owned(),
                };
                places.push((rank, place));
            }
            places.sort_by_key(|(rank, _)| *rank);
            out.push(v1::Fragment {
                index: object.fragment,
                size_bytes: fragment.size,
                digest: fragment.digest.0.to_vec(),
                places: places.into_iter().map(|(_, place)| place).collect(),
            });
        }
        Ok(out)
    }

    /// Asks for replicas of a file: jobs, one for each new replica.
    pub async fn replicate(&self, session: &Session, r: v1::ReplicateRequest) -> Answered {
        let who = &session.who;
        self.may(who, Operation::Modify, &r.path).await?;
        if r.copies > MAX_COPIES || (r.copies == 0 && r.nodes.is_empty()) {
            return Err(Failure::new(
                Code::Invalid,
                format!(
                    "{} copies: 1 to {MAX_COPIES} are valid, or nodes by name",
                    r.copies
                ),
            ));
        }
        if r.priority > MAX_PRIORITY {
            let text = format!("priority {}: 1 to {MAX_PRIORITY} are valid", r.priority);
            return Err(Failure::new(Code::Invalid, text));
        }
        let priority = if r.priority == 0 {
            ASKED_PRIORITY
        } else {
            r.priority
        };
        let place = Place::path(&r.path);
        let layout = self.ask(&who.caller, cat::Where { place }).await?;
        let nodes = self.nodes().await?;
        if !r.leave.is_empty() && nodes.iter().all(|n| n.node.name != r.leave) {
            let text = format!("no node is named `{}`", r.leave.escape_debug());
            return Err(Failure::new(Code::NoNode, text));
        }
        let leaves = |f: &cat::Fragment| {
            let mut replicas = f.replicas.iter();
            replicas.any(|v| v.node == r.leave && v.state == cat::ReplicaState::Valid)
        };
        let mut jobs = Vec::new();
        for fragment in &layout.fragments {
            let moves = leaves(fragment);
            if !r.leave.is_empty() && !moves {
                continue;
            }
            for destination in self.destinations(fragment, &nodes, &r)? {
                jobs.push(cat::NewJob {
                    kind: if moves {
                        cat::JobKind::Migrate
                    } else {
                        cat::JobKind::Replicate
                    },
                    object: fragment.object,
                    source: moves.then(|| r.leave.clone()),
                    destination: Some(destination),
                    // The lowest has one share.
                    priority: i32::try_from(priority).unwrap_or(i32::MAX) - 1,
                });
            }
        }
        let made = if jobs.is_empty() {
            Vec::new()
        } else {
            self.ask(&who.caller, cat::AddJobs { jobs }).await?
        };
        self.registry.wake();
        let mut jobs = Vec::with_capacity(made.len());
        for job in made {
            jobs.push(self.named_job(job).await);
        }
        Ok(Answer::Jobs(v1::JobsReply { jobs }))
    }
}

/// Where an object may be written.
pub fn places_to_write(nodes: Vec<cat::Node>, path: &str, token: &str) -> Vec<v1::Place> {
    let places = nodes.into_iter().take(PLACES).map(|n| v1::Place {
        node: n.name,
        address: n.address,
        pin: n.pin,
        path: path.to_owned(),
        token: token.to_owned(),
        up: true,
        state: "writing".into(),
    });
    places.collect()
}

/// The scope of a right to read some fragments of a file.
pub fn read_scope(ino: Ino, fragments: &[cat::Fragment]) -> String {
    let mut contents = fragments
        .iter()
        .map(|f| (f.object.ino.0, f.object.generation.0))
        .collect::<Vec<_>>();
    contents.sort_unstable();
    contents.dedup();
    match contents.as_slice() {
        // Nothing can be read of an empty file.
        [] => format!("storage.read:{OBJECTS_PREFIX}{ino}/0"),
        all if all.len() <= MAX_GENERATIONS => {
            let scopes = all
                .iter()
                .map(|(i, g)| format!("storage.read:{OBJECTS_PREFIX}{i}/{g}"));
            scopes.collect::<Vec<_>>().join(" ")
        }
        _ => format!("storage.read:{OBJECTS_PREFIX}{ino}"),
    }
}
