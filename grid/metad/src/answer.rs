//! Requests to the catalog and back: the namespace and the administration. Content is in `content`, nodes in
//! `node`.

use std::sync::Arc;

use kuroshio_catalog as cat;
use kuroshio_catalog::{Place, Timestamp};
use kuroshio_proto::MAX_LIST_ENTRIES;
use kuroshio_proto::v1::request::Op;
use kuroshio_proto::v1::response::Result as Answer;
use kuroshio_proto::v1::{self, Code, Failure};
use kuroshio_service::{Operation, check_scope, now_unix_s};

use crate::convert;
use crate::door::Session;
use crate::server::Inner;

/// What a user's ticket allows when nothing else is asked for.
const USER_SCOPE: &str = "storage.read:/ storage.modify:/";
/// Longest validity of a ticket: ten years, in seconds.
const MAX_VALID_S: u64 = 10 * 365 * 24 * 3600;
/// Validity when none is asked for: 30 days, in seconds.
const DEFAULT_VALID_S: u64 = 30 * 24 * 3600;
/// Rows of a page that are read for a count.
const COUNT_LIMIT: u32 = 10_000;

type Answered = Result<Answer, Failure>;

fn done(_: ()) -> Answer {
    Answer::Done(v1::Done {})
}

fn attr(a: cat::Attr) -> Answer {
    Answer::Attr(convert::attr(a))
}

impl Inner {
    /// Answers one request.
    pub async fn answer(self: &Arc<Self>, session: &Session, op: Op) -> Answered {
        let who = &session.who;
        match op {
            Op::Stat(r) => self.stat(session, r).await,
            Op::List(r) => self.list(session, r).await,
            Op::MakeDir(r) => self.make_dir(session, r).await,
            Op::Remove(r) => self.remove(session, r).await,
            Op::Rename(r) => self.rename(session, r).await,
            Op::Link(r) => self.link(session, r).await,
            Op::Symlink(r) => self.symlink(session, r).await,
            Op::ReadLink(r) => self.read_link(session, r).await,
            Op::SetAttr(r) => self.set_attr(session, r).await,
            Op::SetCopies(r) => self.set_copies(session, r).await,
            Op::Create(r) => self.create(session, r).await,
            Op::Commit(r) => self.commit(session, r).await,
            Op::Abandon(r) => self.abandon(session, r).await,
            Op::Open(r) => self.open(session, r).await,
            Op::Close(r) => self.close(session, r).await,
            Op::Where(r) => self.locate(session, r).await,
            Op::Replicate(r) => self.replicate(session, r).await,
            Op::Status(_) => self.status(session).await,
            Op::Use(r) => self.usage(session, r).await,
            Op::ListJobs(r) => self.list_jobs(session, &r).await,
            Op::CancelJob(r) => {
                let id = cat::JobId(r.job);
                let job = self.ask(&who.caller, cat::CancelJob { id }).await?;
                // Here at once; another service that works at it notices.
                self.traffic.cancel(r.job);
                self.registry.wake();
                Ok(Answer::Jobs(v1::JobsReply {
                    jobs: vec![self.named_job(job).await],
                }))
            }
            Op::IssueTicket(r) => self.issue_ticket(session, &r),
            Op::ListNodes(_) => self.list_nodes().await,
            Op::SetNode(r) => self.set_node(session, r).await,
            Op::Join(r) => self.join(session, r).await,
            Op::Heartbeat(r) => self.heartbeat(session, r).await,
            Op::OrderDone(r) => self.order_done(session, r).await,
            Op::Inventory(r) => self.inventory(session, r).await,
            Op::GetQuota(r) => self.quota(session, r).await,
            Op::SetQuota(r) => self.set_quota(session, r).await,
            Op::Check(r) => self.check(session, &r).await,
            Op::Report(r) => self.report(session, r).await,
            Op::Damaged(r) => self.damaged(session, r).await,
            Op::Spools(r) => self.spools(session, r).await,
            Op::Stage(r) => self.stage(session, r).await,
            Op::Routes(_) => self.routes().await,
            Op::MakeFile(r) => self.make_file(session, r).await,
            Op::OpenFile(r) => self.open_file(session, r).await,
            Op::WriteGrant(r) => self.write_grant(session, r).await,
            Op::EndWrite(r) => {
                session.end_writer(r.write_handle);
                Ok(done(()))
            }
            Op::Unlink(r) => self.unlink(session, r).await,
            Op::Move(r) => self.move_name(session, r).await,
            Op::Change(r) => self.change(session, r).await,
            Op::ReadDir(r) => self.read_dir(session, r).await,
            Op::Access(r) => self.access(session, r).await,
            Op::GetXattr(r) => self.get_xattr(session, r).await,
            Op::ListXattr(r) => self.list_xattr(session, r).await,
            Op::SetXattr(r) => self.set_xattr(session, r).await,
            Op::RemoveXattr(r) => self.remove_xattr(session, r).await,
            Op::GetAcl(r) => self.get_acl(session, r).await,
            Op::SetAcl(r) => self.set_acl(session, r).await,
            Op::Space(_) => self.space().await,
        }
    }

    async fn stat(&self, session: &Session, r: v1::PathRequest) -> Answered {
        let (place, follow) = (session.place(&r.path), !r.no_follow);
        self.may_at(&session.who, Operation::Read, &place).await?;
        self.ask(&session.who.caller, cat::Stat { place, follow })
            .await
            .map(attr)
    }

    async fn list(&self, session: &Session, r: v1::ListRequest) -> Answered {
        self.may(&session.who, Operation::Read, &r.path).await?;
        let wanted = if r.limit == 0 { MAX_LIST_ENTRIES } else { r.limit };
        let op = cat::ReadDir {
            place: Place::path(&r.path),
            after: (!r.after.is_empty()).then_some(r.after),
            limit: wanted.min(MAX_LIST_ENTRIES),
            attrs: true,
        };
        let page = self.ask(&session.who.caller, op).await?;
        let entries = page.entries.into_iter().map(|entry| v1::Entry {
            name: entry.name,
            attr: entry.attr.map(convert::attr),
        });
        Ok(Answer::List(convert::page(entries, page.more)))
    }

    async fn make_dir(&self, session: &Session, r: v1::MakeDirRequest) -> Answered {
        let place = session.place(&r.path);
        self.may_at(&session.who, Operation::Modify, &place).await?;
        let op = cat::MakeDir {
            place,
            mode: r.mode,
            umask: r.umask,
        };
        self.ask(&session.who.caller, op).await.map(attr)
    }

    async fn remove(&self, session: &Session, r: v1::RemoveRequest) -> Answered {
        let place = session.place(&r.path);
        self.may_at(&session.who, Operation::Modify, &place).await?;
        let caller = &session.who.caller;
        if r.directory {
            return self.ask(caller, cat::RemoveDir { place }).await.map(done);
        }
        self.ask(caller, cat::Unlink { place }).await.map(|_| done(()))
    }

    async fn rename(&self, session: &Session, r: v1::RenameRequest) -> Answered {
        self.may(&session.who, Operation::Modify, &r.from).await?;
        self.may(&session.who, Operation::Modify, &r.to).await?;
        let op = cat::Rename {
            from: Place::path(&r.from),
            to: Place::path(&r.to),
            mode: if r.no_replace {
                cat::RenameMode::NoReplace
            } else {
                cat::RenameMode::Replace
            },
        };
        self.ask(&session.who.caller, op).await.map(done)
    }

    async fn link(&self, session: &Session, r: v1::LinkRequest) -> Answered {
        let (from, to) = (session.place(&r.existing), session.to_place(&r.path));
        self.may_at(&session.who, Operation::Modify, &from).await?;
        self.may_at(&session.who, Operation::Modify, &to).await?;
        let op = cat::Link { from, to };
        self.ask(&session.who.caller, op).await.map(attr)
    }

    async fn symlink(&self, session: &Session, r: v1::SymlinkRequest) -> Answered {
        let place = session.place(&r.path);
        self.may_at(&session.who, Operation::Modify, &place).await?;
        let op = cat::Symlink {
            place,
            target: r.target,
        };
        self.ask(&session.who.caller, op).await.map(attr)
    }

    async fn read_link(&self, session: &Session, r: v1::PathRequest) -> Answered {
        // The link is read, not what it points to: its name counts.
        let place = session.place(&r.path);
        if place.path.starts_with(b"/") {
            self.may_name(session, Operation::Read, &r.path).await?;
        } else {
            self.may_at(&session.who, Operation::Read, &place).await?;
        }
        let target = self.ask(&session.who.caller, cat::ReadLink { place }).await?;
        Ok(Answer::Link(v1::LinkReply { target }))
    }

    /// Whether the token reaches the directory that a name is in.
    async fn may_name(&self, session: &Session, operation: Operation, path: &[u8]) -> Result<(), Failure> {
        let plain = crate::auth::plain_path(path)?;
        let at = plain.iter().rposition(|b| *b == b'/').unwrap_or_default();
        let folder = plain.get(..at.max(1)).unwrap_or(b"/");
        self.may(&session.who, operation, folder).await
    }

    async fn set_attr(&self, session: &Session, r: v1::SetAttrRequest) -> Answered {
        self.may(&session.who, Operation::Modify, &r.path).await?;
        let op = cat::SetAttr {
            place: Place::path(&r.path),
            follow: true,
            mode: r.mode,
            owner: r.owner,
            group: r.group,
            atime: r.atime_ns.map(|t| cat::SetTime::At(Timestamp(t))),
            mtime: r.mtime_ns.map(|t| cat::SetTime::At(Timestamp(t))),
        };
        self.ask(&session.who.caller, op).await.map(attr)
    }

    async fn set_copies(&self, session: &Session, r: v1::SetCopiesRequest) -> Answered {
        self.may(&session.who, Operation::Modify, &r.path).await?;
        let rule = r.copies.parse().map_err(|e| convert::failure(&e))?;
        let place = Place::path(&r.path);
        let changed = self
            .ask(&session.who.caller, cat::SetCopies { place, rule })
            .await?;
        self.registry.wake();
        Ok(attr(changed))
    }

    async fn status(&self, session: &Session) -> Answered {
        let service = self.service();
        let space = self.ask(&service, cat::StatFs {}).await?;
        let short = cat::ListOffCopies {
            balance: cat::CopyBalance::Short,
            after: None,
            limit: COUNT_LIMIT,
        };
        let below = self.ask(&service, short).await?.len();
        let mut active = 0;
        for state in [cat::JobState::Queued, cat::JobState::Running] {
            let filter = cat::JobFilter {
                state: Some(state),
                ino: None,
            };
            let open = cat::ListJobs {
                filter,
                after: None,
                limit: COUNT_LIMIT,
            };
            active += self.ask(&service, open).await?.len();
        }
        Ok(Answer::Status(v1::StatusReply {
            name: self.config.name.clone(),
            pin: self.identity.pin().to_string(),
            inodes: space.inodes,
            bytes: space.used_bytes,
            nodes_up: space.nodes_up.into(),
            nodes: space.nodes.into(),
            capacity_bytes: space.capacity_bytes,
            free_bytes: space.free_bytes,
            below_copies: below as u64,
            jobs_active: active as u64,
            orders_active: self.registry.orders() as u64,
            user: session.who.caller.user.clone(),
            groups: session.who.caller.groups.clone(),
            catalog: self.catalog.describe(),
            services: self.presence.services(),
        }))
    }

    async fn usage(&self, session: &Session, r: v1::UseRequest) -> Answered {
        let caller = &session.who.caller;
        let uses = if session.who.admin().is_ok() {
            let kind = if r.groups {
                cat::QuotaKind::Group
            } else {
                cat::QuotaKind::User
            };
            let all = cat::ListUsage {
                kind,
                after: None,
                limit: MAX_LIST_ENTRIES,
            };
            self.ask(caller, all).await?
        } else {
            let names = if r.groups {
                caller.groups.clone()
            } else {
                vec![caller.user.clone()]
            };
            let mut uses = Vec::new();
            for name in names {
                let subject = if r.groups {
                    cat::QuotaSubject::Group(name)
                } else {
                    cat::QuotaSubject::User(name)
                };
                uses.push(self.ask(caller, cat::GetUsage { subject }).await?);
            }
            uses
        };
        let uses = uses.into_iter().map(|u| v1::Use {
            name: u.name,
            files: u.files,
            bytes: u.bytes,
            max_files: u.max_files,
            max_bytes: u.max_bytes,
        });
        Ok(Answer::Use(v1::UseReply { uses: uses.collect() }))
    }

    fn issue_ticket(&self, session: &Session, r: &v1::IssueTicketRequest) -> Answered {
        session.who.admin()?;
        let invalid = |text: String| Failure::new(Code::Invalid, text);
        if !cat::is_principal(&r.user) || !r.groups.iter().all(|g| cat::is_principal(g)) {
            return Err(invalid(format!(
                "`{}`: a user, group or node is 1 to 128 characters without blanks, `,`, `=`, `:` and `/`",
                r.user.escape_debug()
            )));
        }
        let valid_s = if r.valid_s == 0 {
            DEFAULT_VALID_S
        } else {
            r.valid_s
        };
        if valid_s > MAX_VALID_S {
            return Err(invalid(format!("{valid_s} s: at most {MAX_VALID_S} s are valid")));
        }
        let scope = match (r.for_node, r.scope.as_str()) {
            (true, "") => "kuroshio.node",
            (true, _) => return Err(invalid("a node's ticket has no other scope".into())),
            (false, "") => USER_SCOPE,
            (false, scope) => scope,
        };
        check_scope(scope).map_err(|e| invalid(e.to_string()))?;
        let token = self.issue(&r.user, &r.groups, scope, valid_s)?;
        tracing::info!(user = r.user, scope, valid_s, "ticket issued");
        Ok(Answer::Ticket(v1::TicketReply {
            token,
            expires_unix_s: now_unix_s().saturating_add(valid_s),
            services: self.presence.services(),
        }))
    }

    async fn list_jobs(&self, session: &Session, r: &v1::ListJobsRequest) -> Answered {
        let caller = &session.who.caller;
        let mut found = Vec::new();
        let states: &[Option<cat::JobState>] = if r.open_only {
            &[Some(cat::JobState::Queued), Some(cat::JobState::Running)]
        } else {
            &[None]
        };
        // The jobs asked for lie between the lowest and the highest number.
        let mut after = r
            .jobs
            .iter()
            .min()
            .map(|first| cat::JobId(first.saturating_sub(1)));
        let last = r.jobs.iter().max().copied().unwrap_or(u64::MAX);
        for state in states {
            loop {
                let page = cat::ListJobs {
                    filter: cat::JobFilter {
                        state: *state,
                        ino: None,
                    },
                    after,
                    limit: MAX_LIST_ENTRIES,
                };
                let jobs = self.ask(caller, page).await?;
                after = jobs.last().map(|j| j.id);
                let full = jobs.len() == MAX_LIST_ENTRIES as usize;
                let wanted = |j: &cat::Job| r.jobs.is_empty() || r.jobs.contains(&j.id.0);
                found.extend(jobs.into_iter().filter(wanted));
                let done = r.jobs.is_empty() || after.is_none_or(|a| a.0 >= last);
                if !full || done || found.len() >= MAX_LIST_ENTRIES as usize {
                    break;
                }
            }
            after = None;
        }
        found.truncate(MAX_LIST_ENTRIES as usize);
        let mut jobs = Vec::with_capacity(found.len());
        for job in found {
            jobs.push(self.named_job(job).await);
        }
        Ok(Answer::Jobs(v1::JobsReply { jobs }))
    }

    /// A job with its file's path, if it has one.
    pub async fn named_job(&self, job: cat::Job) -> v1::Job {
        let ino = job.what.object.ino;
        let progress = self.traffic.progress(self, job.id.0);
        let mut job = convert::job(job);
        job.bytes_done = job.bytes_done.max(progress.bytes);
        job.rate_bps = progress.rate_bps;
        job.transfers = progress.transfers;
        job.path = self
            .ask(&self.service(), cat::PathOf { ino })
            .await
            .unwrap_or_default();
        job
    }
}
