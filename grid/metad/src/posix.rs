//! What a mounted file system needs: operations on inodes, open files, extended attributes, access lists.
//!
//! ```text
//!   open_file (permissions checked) ──> write handle ──write_grant──> draft, token ──PUT──> node ──commit──> published
//!                                           └── end_write, or the end of the connection
//! ```
//!
//! A right to write lasts as long as its handle: a later change of the mode does not take it away, as POSIX
//! has it. Each publication needs a draft of its own.

use kuroshio_catalog as cat;
use kuroshio_catalog::{Access, AclKind, Caller, Ino, Kind, Place, SetTime, Timestamp};
use kuroshio_proto::v1::response::Result as Answer;
use kuroshio_proto::v1::{self, Code, Failure};
use kuroshio_proto::{MAX_LIST_ENTRIES, object_path};
use kuroshio_service::Operation;

use crate::content::{Rights, places_to_write, read_scope};
use crate::convert;
use crate::door::{MAX_HANDLES, Session, Writer};
use crate::server::Inner;

type Answered = Result<Answer, Failure>;

fn done(_: ()) -> Answer {
    Answer::Done(v1::Done {})
}

fn attr(a: cat::Attr) -> Answer {
    Answer::Attr(convert::attr(a))
}

fn too_many() -> Failure {
    let text = format!("this connection has {MAX_HANDLES} files open already");
    Failure::new(Code::Limit, text)
}

impl Inner {
    /// Makes an empty file.
    pub async fn make_file(&self, session: &Session, r: v1::MakeFileRequest) -> Answered {
        let place = session.place(&r.path);
        self.may_at(&session.who, Operation::Modify, &place).await?;
        let special = match r.special() {
            v1::Special::None => None,
            v1::Special::Fifo => Some(Kind::Fifo),
            v1::Special::Socket => Some(Kind::Socket),
        };
        if let Some(kind) = special {
            let (mode, umask) = (r.mode, r.umask);
            let op = cat::MakeSpecial {
                place,
                kind,
                mode,
                umask,
            };
            let made = self.ask(&session.who.caller, op).await?;
            return Ok(Answer::OpenFile(v1::OpenFileReply {
                attr: Some(convert::attr(made)),
                ..v1::OpenFileReply::default()
            }));
        }
        let op = cat::Create {
            place,
            mode: r.mode,
            umask: r.umask,
            exclusive: true,
            open: false,
        };
        let made = self.ask(&session.who.caller, op).await?;
        // Whoever made a file may write it, whatever its mode.
        let write_handle = if r.open {
            self.begin_write(session, made.attr.ino)?
        } else {
            0
        };
        Ok(Answer::OpenFile(v1::OpenFileReply {
            attr: Some(convert::attr(made.attr)),
            fragments: Vec::new(),
            handle: 0,
            write_handle,
        }))
    }

    fn begin_write(&self, session: &Session, ino: Ino) -> Result<u64, Failure> {
        let handle = self.next_handle();
        let user = session.who.caller.user.clone();
        if session.keep_writer(handle, Writer { ino, user }) {
            Ok(handle)
        } else {
            Err(too_many())
        }
    }

    /// Opens a file.
    pub async fn open_file(&self, session: &Session, r: v1::OpenFileRequest) -> Answered {
        let place = session.place(&r.path);
        let who = &session.who;
        if r.read || r.execute {
            self.may_at(who, Operation::Read, &place).await?;
        }
        if r.write {
            self.may_at(who, Operation::Modify, &place).await?;
        }
        let mut reply = v1::OpenFileReply::default();
        let (mut wanted, mut reader) = (Access::EXISTS, who.caller.clone());
        if r.write {
            wanted = wanted.and(Access::WRITE);
        }
        if r.execute && who.is_actor() {
            wanted = wanted.and(Access::EXECUTE);
            reader = Caller::admin();
        }
        if wanted != Access::EXISTS || !(r.read || r.execute) {
            let op = cat::CheckAccess {
                place: place.clone(),
                access: wanted,
            };
            let found = self.ask(&who.caller, op).await?;
            match found.kind {
                Kind::File => {}
                Kind::Dir => return Err(Failure::new(Code::IsDirectory, format!("{place}: a directory"))),
                Kind::Symlink => return Err(Failure::new(Code::Loop, format!("{place}: a symbolic link"))),
                Kind::Fifo | Kind::Socket => {
                    let text = format!("{place}: a FIFO or socket has no content");
                    return Err(Failure::new(Code::Invalid, text));
                }
            }
            if r.write {
                reply.write_handle = self.begin_write(session, found.ino)?;
            }
            reply.attr = Some(convert::attr(found));
        }
        if r.read || r.execute {
            let opened = self
                .open_to_read(session, &reader, place, &r.near_host, &mut reply)
                .await;
            if let Err(e) = opened {
                session.end_writer(reply.write_handle);
                return Err(e);
            }
        }
        Ok(Answer::OpenFile(reply))
    }

    async fn open_to_read(
        &self,
        session: &Session,
        reader: &Caller,
        place: Place,
        near_host: &str,
        reply: &mut v1::OpenFileReply,
    ) -> Result<(), Failure> {
        let open = self.ask(reader, cat::OpenRead { place }).await?;
        if !session.keep(open.handle) {
            self.release(open.handle).await;
            return Err(too_many());
        }
        reply.handle = open.handle.0;
        // Nothing can be read of an empty file: it needs no right.
        if !open.fragments.is_empty() {
            let scope = read_scope(open.attr.ino, &open.fragments);
            let mut rights = Rights::new(self, &session.who.caller.user, scope);
            reply.fragments = self.places(open.fragments, Some(&mut rights), near_host).await?;
        }
        reply.attr = Some(convert::attr(open.attr));
        Ok(())
    }

    /// A draft for a file that is open to be written.
    pub async fn write_grant(&self, session: &Session, r: v1::WriteGrantRequest) -> Answered {
        let Some(writer) = session.writer(r.write_handle) else {
            return Err(Failure::new(
                Code::Stale,
                "the file is not open to be written on this connection (any more)",
            ));
        };
        let (ino, hint) = (writer.ino.0, r.size_hint_bytes);
        let (nodes, mut file) = tokio::join!(
            self.choose(ino, hint, &r.near_host, &r.avoid),
            self.facts_of(writer.ino)
        );
        let nodes = nodes?;
        (file.fragments, file.mtime_ns) = (1, None);
        // The permission was checked when it was opened.
        let place = Place::ino(writer.ino);
        let draft = self.ask(&Caller::admin(), cat::OpenWrite { place }).await?;
        let path = object_path(draft.ino.0, draft.generation.0, 0);
        let mut rights = Rights::new(self, &writer.user, format!("storage.modify:{path}")).of_file(file);
        let places = match places_to_write(nodes, &path, &mut rights) {
            Ok(places) => places,
            Err(e) => {
                self.release(draft.handle).await;
                return Err(e);
            }
        };
        self.registry.keep_draft(draft);
        Ok(Answer::Write(v1::WriteGrant {
            inode: draft.ino.0,
            generation: draft.generation.0,
            new_file: false,
            places,
            ..v1::WriteGrant::default()
        }))
    }

    /// Removes a name; the answer is what is left of the file.
    pub async fn unlink(&self, session: &Session, r: v1::PathRequest) -> Answered {
        let place = session.place(&r.path);
        self.may_at(&session.who, Operation::Modify, &place).await?;
        let op = cat::Unlink { place };
        self.ask(&session.who.caller, op).await.map(attr)
    }

    /// A rename that tells what it has replaced.
    pub async fn move_name(&self, session: &Session, r: v1::MoveRequest) -> Answered {
        let (from, to) = (session.place(&r.from), session.to_place(&r.to));
        self.may_at(&session.who, Operation::Modify, &from).await?;
        self.may_at(&session.who, Operation::Modify, &to).await?;
        let mode = match (r.no_replace, r.exchange) {
            (false, false) => cat::RenameMode::Replace,
            (true, false) => cat::RenameMode::NoReplace,
            (false, true) => cat::RenameMode::Exchange,
            (true, true) => {
                let text = "a rename either exchanges or does not replace";
                return Err(Failure::new(Code::Invalid, text));
            }
        };
        let admin = Caller::admin();
        let there = if mode == cat::RenameMode::Replace {
            let stat = cat::Stat {
                place: to.clone(),
                follow: false,
            };
            self.try_ask(&admin, stat).await.ok()
        } else {
            None
        };
        let op = cat::Rename { from, to, mode };
        self.ask(&session.who.caller, op).await?;
        let Some(there) = there.filter(|a| a.kind == Kind::File) else {
            return Ok(done(()));
        };
        let left = cat::Stat {
            place: Place::ino(there.ino),
            follow: false,
        };
        // Gone: it had no name and was open nowhere.
        match self.try_ask(&admin, left).await {
            Ok(left) => Ok(attr(left)),
            Err(_) => Ok(attr(cat::Attr { links: 0, ..there })),
        }
    }

    /// Changes attributes.
    pub async fn change(&self, session: &Session, r: v1::ChangeRequest) -> Answered {
        let place = session.place(&r.path);
        self.may_at(&session.who, Operation::Modify, &place).await?;
        let time = |now: bool, at: Option<i64>| match (now, at) {
            (true, _) => Some(SetTime::Now),
            (false, at) => at.map(|t| SetTime::At(Timestamp(t))),
        };
        let op = cat::SetAttr {
            place,
            follow: false,
            mode: r.mode,
            owner: r.owner,
            group: r.group,
            atime: time(r.atime_now, r.atime_ns),
            mtime: time(r.mtime_now, r.mtime_ns),
        };
        self.ask(&session.who.caller, op).await.map(attr)
    }

    /// A page of a directory.
    pub async fn read_dir(&self, session: &Session, r: v1::ReadDirRequest) -> Answered {
        let place = session.place(&r.path);
        self.may_at(&session.who, Operation::Read, &place).await?;
        let wanted = if r.limit == 0 { MAX_LIST_ENTRIES } else { r.limit };
        let op = cat::ReadDir {
            place,
            after: (!r.after.is_empty()).then_some(r.after),
            limit: wanted.min(MAX_LIST_ENTRIES),
            attrs: r.attrs,
        };
        let page = self.ask(&session.who.caller, op).await?;
        let entries = page.entries.into_iter().map(|entry| {
            let found = match entry.attr {
                Some(found) => convert::attr(found),
                None => v1::Attr {
                    inode: entry.ino.0,
                    kind: convert::kind(entry.kind).into(),
                    ..v1::Attr::default()
                },
            };
            v1::Entry {
                name: entry.name,
                attr: Some(found),
            }
        });
        Ok(Answer::List(convert::page(entries, page.more)))
    }

    /// Whether the caller may.
    pub async fn access(&self, session: &Session, r: v1::AccessRequest) -> Answered {
        let place = session.place(&r.path);
        let bits = [(4, Access::READ), (2, Access::WRITE), (1, Access::EXECUTE)];
        if r.bits > 7 {
            return Err(Failure::new(
                Code::Invalid,
                format!("access {}: 0 to 7 are valid", r.bits),
            ));
        }
        let wanted = bits.into_iter().filter(|(bit, _)| r.bits & bit != 0);
        let access = wanted.fold(Access::EXISTS, |all, (_, one)| all.and(one));
        let operation = if r.bits & 2 != 0 {
            Operation::Modify
        } else {
            Operation::Read
        };
        self.may_at(&session.who, operation, &place).await?;
        let op = cat::CheckAccess { place, access };
        self.ask(&session.who.caller, op).await.map(attr)
    }

    /// Value of an extended attribute.
    pub async fn get_xattr(&self, session: &Session, r: v1::XattrRequest) -> Answered {
        let place = session.place(&r.path);
        self.may_at(&session.who, Operation::Read, &place).await?;
        let op = cat::GetXattr { place, name: r.name };
        let value = self.ask(&session.who.caller, op).await?;
        let names = Vec::new();
        Ok(Answer::Xattr(v1::XattrReply { value, names }))
    }

    /// Names of the extended attributes.
    pub async fn list_xattr(&self, session: &Session, r: v1::XattrRequest) -> Answered {
        let place = session.place(&r.path);
        self.may_at(&session.who, Operation::Read, &place).await?;
        let names = self.ask(&session.who.caller, cat::ListXattr { place }).await?;
        let value = Vec::new();
        Ok(Answer::Xattr(v1::XattrReply { value, names }))
    }

    /// Sets an extended attribute.
    pub async fn set_xattr(&self, session: &Session, r: v1::XattrRequest) -> Answered {
        let place = session.place(&r.path);
        self.may_at(&session.who, Operation::Modify, &place).await?;
        let mode = match (r.create, r.replace) {
            (false, false) => cat::SetXattrMode::Any,
            (true, false) => cat::SetXattrMode::Create,
            (false, true) => cat::SetXattrMode::Replace,
            (true, true) => {
                let text = "an attribute cannot both be there and not be there";
                return Err(Failure::new(Code::Invalid, text));
            }
        };
        let op = cat::SetXattr {
            place,
            name: r.name,
            value: r.value,
            mode,
        };
        self.ask(&session.who.caller, op).await.map(done)
    }

    /// Removes an extended attribute.
    pub async fn remove_xattr(&self, session: &Session, r: v1::XattrRequest) -> Answered {
        let place = session.place(&r.path);
        self.may_at(&session.who, Operation::Modify, &place).await?;
        let op = cat::RemoveXattr { place, name: r.name };
        self.ask(&session.who.caller, op).await.map(done)
    }

    /// An access list.
    pub async fn get_acl(&self, session: &Session, r: v1::AclRequest) -> Answered {
        let place = session.place(&r.path);
        self.may_at(&session.who, Operation::Read, &place).await?;
        let kind = acl_kind(r.defaults);
        let acl = self.ask(&session.who.caller, cat::GetAcl { place, kind }).await?;
        let entries = acl.as_ref().map(convert::acl).unwrap_or_default();
        Ok(Answer::Acl(v1::AclReply { entries }))
    }

    /// Sets or removes an access list.
    pub async fn set_acl(&self, session: &Session, r: v1::AclRequest) -> Answered {
        let place = session.place(&r.path);
        self.may_at(&session.who, Operation::Modify, &place).await?;
        let acl = if r.entries.is_empty() {
            None
        } else {
            Some(convert::acl_of(&r.entries)?)
        };
        let kind = acl_kind(r.defaults);
        let op = cat::SetAcl { place, kind, acl };
        self.ask(&session.who.caller, op).await.map(done)
    }

    /// Space of the whole grid.
    pub async fn space(&self) -> Answered {
        let space = self.ask(&self.service(), cat::StatFs {}).await?;
        Ok(Answer::Space(v1::SpaceReply {
            inodes: space.inodes,
            used_bytes: space.used_bytes,
            capacity_bytes: space.capacity_bytes,
            free_bytes: space.free_bytes,
        }))
    }
}

fn acl_kind(defaults: bool) -> AclKind {
    if defaults {
        AclKind::Default
    } else {
        AclKind::Access
    }
}
