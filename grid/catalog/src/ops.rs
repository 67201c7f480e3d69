//! The operations, written once for all back ends over [`crate::sql`].
//!
//! [`Tx::run`] runs one operation inside of a transaction that its caller begins and ends. As a rule an
//! operation reads, locks and checks first and changes last, so that a refusal needs no rollback.

mod attrs;
mod check;
mod content;
mod dump;
mod grid;
mod inode;
mod jobs;
mod names;
mod presence;
mod quota;
mod rename;
mod replicas;
mod restore;
mod upkeep;
mod walk;

use crate::limits::{MAX_GROUPS, MAX_PAGE};
use crate::sql::{Dialect, Fault, P, R, Row, Sql, p, refuse};
use crate::state::{Open, Shared, Text, UnderWay};
use crate::{Caller, ErrorKind, Handle, Op, Reply, Role, Timestamp, is_principal};
use std::sync::Arc;

/// What an operation does to what is in memory, after its commit.
pub(crate) enum Effect {
    /// A file was opened.
    Open(Handle, Open),
    /// A handle was given back, by this user (none: by a service).
    Close(Handle, Option<String>),
    /// No number below this one is given out any more.
    Numbers(u64),
    /// A text has a number.
    Intern(Text, i64, String),
}

/// One operation in a transaction.
pub(crate) struct Tx<'a> {
    sql: &'a mut dyn Sql,
    shared: &'a Shared,
    under_way: &'a UnderWay<'a>,
    caller: &'a Caller,
    now: Timestamp,
    writer: bool,
    effects: &'a mut Vec<Effect>,
    changed: bool,
}

impl<'a> Tx<'a> {
    pub fn new(
        sql: &'a mut dyn Sql,
        shared: &'a Shared,
        under_way: &'a UnderWay<'a>,
        caller: &'a Caller,
        now: Timestamp,
        writer: bool,
        effects: &'a mut Vec<Effect>,
    ) -> Self {
        Self {
            sql,
            shared,
            under_way,
            caller,
            now,
            writer,
            effects,
            changed: false,
        }
    }

    /// Whether a statement that changes something was run.
    pub fn changed(&self) -> bool {
        self.changed
    }

    /// Runs the operation.
    pub fn run(&mut self, op: &Op) -> R<Reply> {
        self.check_caller()?;
        match op {
            Op::Stat(o) => self.stat(&o.place, o.follow).map(Reply::Attr),
            Op::CheckAccess(o) => self.check_access(&o.place, o.access).map(Reply::Attr),
            Op::ReadLink(o) => self.read_link(&o.place).map(Reply::Bytes),
            Op::ReadDir(o) => self.read_dir(o).map(Reply::DirPage),
            Op::PathOf(o) => self.path_of(o.ino).map(Reply::Path),
            Op::MakeDir(o) => self.make_dir(o).map(Reply::Attr),
            Op::MakeSpecial(o) => self.make_special(o).map(Reply::Attr),
            Op::Create(o) => self.create(o).map(Reply::Created),
            Op::Symlink(o) => self.symlink(o).map(Reply::Attr),
            Op::Link(o) => self.link(o).map(Reply::Attr),
            Op::Unlink(o) => self.unlink(&o.place).map(Reply::Attr),
            Op::RemoveDir(o) => self.remove_dir(&o.place).map(done),
            Op::Rename(o) => self.rename(o).map(done),
            Op::SetAttr(o) => self.set_attr(o).map(Reply::Attr),
            Op::GetXattr(o) => self.get_xattr(&o.place, &o.name).map(Reply::Bytes),
            Op::ListXattr(o) => self.list_xattr(&o.place).map(Reply::Names),
            Op::SetXattr(o) => self.set_xattr(o).map(done),
            Op::RemoveXattr(o) => self.remove_xattr(&o.place, &o.name).map(done),
            Op::GetAcl(o) => self.get_acl(&o.place, o.kind).map(Reply::Acl),
            Op::SetAcl(o) => self.set_acl(o).map(done),
            Op::OpenRead(o) => self.open_read(&o.place).map(Reply::OpenFile),
            Op::Release(o) => self.release(o.handle).map(done),
            Op::Where(o) => self.where_is(&o.place).map(Reply::Layout),
            Op::OpenWrite(o) => self.open_write(&o.place).map(Reply::Draft),
            Op::Allocate(_) => self.allocate().map(Reply::Draft),
            Op::Commit(o) => self.commit(o).map(Reply::Attr),
            Op::StageFragment(o) => self.stage(o).map(done),
            Op::AbandonDraft(o) => self.abandon(&o.draft).map(done),
            Op::PutFile(o) => self.put_file(o).map(Reply::Attr),
            _ => self.run_grid(op),
        }
    }

    /// Operations on quotas, replicas, nodes and jobs.
    fn run_grid(&mut self, op: &Op) -> R<Reply> {
        match op {
            Op::StatFs(_) => self.stat_fs().map(Reply::Space),
            Op::GetUsage(o) => self.get_usage(&o.subject).map(Reply::Usage),
            Op::ListUsage(o) => self.list_usage(o).map(Reply::Usages),
            Op::SetQuota(o) => self.set_quota(o).map(done),
            Op::SetCopies(o) => self.set_copies(o).map(Reply::Attr),
            Op::GetFragment(o) => self.get_fragment(o.object).map(Reply::Fragment),
            Op::ListOffCopies(o) => self.list_off_copies(o).map(Reply::OffCopies),
            Op::ListNodeReplicas(o) => self.list_node_replicas(o).map(Reply::NodeReplicas),
            Op::AddReplica(o) => self.add_replica(o.object, &o.node).map(done),
            Op::SetReplica(o) => self.set_replica(o).map(done),
            Op::RemoveReplica(o) => self.remove_replica(o).map(done),
            Op::DropReplica(o) => self.drop_replica(o.object, &o.node).map(done),
            Op::AdoptReplica(o) => self.adopt_replica(o).map(done),
            Op::ListNodes(_) => self.list_nodes().map(Reply::Nodes),
            Op::PutNode(o) => self.put_node(&o.node).map(done),
            Op::Heartbeat(o) => self.heartbeat(&o.reports).map(Reply::Count),
            Op::SetNodeState(o) => self.set_node_state(&o.node, o.state).map(done),
            Op::ReckonNode(o) => self.reckon_node(&o.node, o.after, o.limit).map(Reply::Reckoned),
            Op::RemoveNode(o) => self.remove_node(&o.node).map(done),
            Op::ListSites(_) => self.list_sites().map(Reply::Sites),
            Op::PutSite(o) => self.put_site(&o.site).map(done),
            Op::ListRoutes(_) => self.list_routes().map(Reply::Routes),
            Op::PutRoute(o) => self.put_route(o).map(done),
            Op::TakeLease(o) => self.take_lease(o).map(Reply::Lease),
            Op::DropLease(o) => self.drop_lease(o).map(done),
            Op::ListLeases(o) => self.list_leases(&o.from, &o.to).map(Reply::Leases),
            Op::AddJobs(o) => self.add_jobs(&o.jobs).map(Reply::Jobs),
            Op::ClaimJobs(o) => self.claim_jobs(o).map(Reply::Jobs),
            Op::JobProgress(o) => self.job_progress(o).map(Reply::Job),
            Op::FinishJob(o) => self.finish_job(o).map(Reply::Job),
            Op::CancelJob(o) => self.cancel_job(o.id).map(Reply::Job),
            Op::ListJobs(o) => self.list_jobs(o).map(Reply::Jobs),
            Op::PruneJobs(o) => self.prune_jobs(o.before, o.limit).map(Reply::Count),
            Op::Hear(o) => self.hear(&o.heard).map(Reply::Count),
            Op::ListPresence(_) => self.list_presence().map(Reply::Presences),
            Op::Forget(o) => self.forget(o).map(done),
            Op::TakeTurn(o) => self.take_turn(o).map(Reply::Turn),
            Op::Reap(o) => self.reap(o.limit, o.ttl_ms).map(Reply::Count),
            Op::RaiseNumbers(o) => self.raise_numbers(o.highest).map(Reply::Count),
            Op::RestoreFile(o) => self.restore_file(o).map(Reply::Attr),
            Op::Dump(o) => self.dump(&o.sink).map(Reply::Count),
            Op::CheckInvariants(o) => self.check_invariants(o.limit).map(Reply::Names),
            other => refuse(
                ErrorKind::Unsupported,
                format!("{} is not an operation of the grid", other.name()),
            ),
        }
    }

    // ---- SQL -------------------------------------------------------------------------------------------

    fn q(&mut self, sql: &'static str, params: &[P<'_>]) -> R<Vec<Row>> {
        Ok(self.sql.query(sql, params)?)
    }

    fn one(&mut self, sql: &'static str, params: &[P<'_>]) -> R<Option<Row>> {
        Ok(self.sql.query(sql, params)?.into_iter().next())
    }

    /// A change.
    fn x(&mut self, sql: &'static str, params: &[P<'_>]) -> R<u64> {
        self.changed = true;
        Ok(self.sql.exec(sql, params)?)
    }

    /// A change that answers rows.
    fn xq(&mut self, sql: &'static str, params: &[P<'_>]) -> R<Vec<Row>> {
        self.changed = true;
        Ok(self.sql.query(sql, params)?)
    }

    /// Whether rows must be locked and read again before a decision rests on them.
    fn shares(&self) -> bool {
        self.writer && self.sql.dialect() == Dialect::Postgres
    }

    /// A number that nothing else has or had.
    fn new_id(&mut self) -> R<u64> {
        self.shared.ids.take(self.writer).ok_or(Fault::NeedsWriter)
    }

    // ---- interned texts --------------------------------------------------------------------------------

    fn text(&mut self, id: i64) -> R<Arc<str>> {
        if let Some(t) = self.shared.texts.text(id) {
            return Ok(t);
        }
        for e in self.effects.iter() {
            if let Effect::Intern(_, i, t) = e
                && *i == id
            {
                return Ok(Arc::from(t.as_str()));
            }
        }
        let Some(row) = self.one("SELECT kind, text FROM intern WHERE id = ?1", p![id])? else {
            return refuse(
                ErrorKind::Corrupt,
                format!("no owner, group or rule has the number {id}"),
            );
        };
        let text = row.text(1)?;
        let kind = match row.int(0)? {
            0 => Text::User,
            1 => Text::Group,
            _ => Text::Rule,
        };
        self.effects.push(Effect::Intern(kind, id, text.clone()));
        Ok(Arc::from(text))
    }

    /// The number of a text that is known already.
    fn find_text(&mut self, kind: Text, text: &str) -> R<Option<i64>> {
        if let Some(id) = self.shared.texts.id(kind, text) {
            return Ok(Some(id));
        }
        for e in self.effects.iter() {
            if let Effect::Intern(k, id, t) = e
                && *k == kind
                && t == text
            {
                return Ok(Some(*id));
            }
        }
        let sql = "SELECT id FROM intern WHERE kind = ?1 AND text = ?2";
        let Some(row) = self.one(sql, p![kind as i64, text])? else {
            return Ok(None);
        };
        let id = row.int(0)?;
        self.effects.push(Effect::Intern(kind, id, text.to_owned()));
        Ok(Some(id))
    }

    /// The number of a text, given now if it has none.
    fn intern(&mut self, kind: Text, text: &str) -> R<i64> {
        if let Some(id) = self.find_text(kind, text)? {
            return Ok(id);
        }
        let id = self.new_id()?;
        self.x(
            "INSERT INTO intern (id, kind, text) VALUES (?1, ?2, ?3)",
            p![id, kind as i64, text],
        )?;
        let id = id as i64;
        self.effects.push(Effect::Intern(kind, id, text.to_owned()));
        Ok(id)
    }

    // ---- the caller ------------------------------------------------------------------------------------

    fn check_caller(&self) -> R<()> {
        let c = self.caller;
        if c.groups.len() > MAX_GROUPS {
            return refuse(
                ErrorKind::Limit,
                format!("a caller has at most {MAX_GROUPS} groups"),
            );
        }
        check_principal("user", &c.user)?;
        c.groups.iter().try_for_each(|g| check_principal("group", g))
    }

    fn is_admin(&self) -> bool {
        self.caller.role == Role::Admin
    }

    fn in_group(&self, group: &str) -> bool {
        let c = self.caller;
        c.groups.iter().any(|g| g == group) || (c.groups.is_empty() && c.user == group)
    }

    fn own_group(&self) -> &'a str {
        self.caller.groups.first().map_or(&self.caller.user, |g| g)
    }

    fn need_service(&self, what: &str) -> R<()> {
        if self.caller.role == Role::User {
            return refuse(
                ErrorKind::NotPermitted,
                format!("{what}: for services and the administrator"),
            );
        }
        Ok(())
    }

    fn need_admin(&self, what: &str) -> R<()> {
        if !self.is_admin() {
            return refuse(ErrorKind::NotPermitted, format!("{what}: for the administrator"));
        }
        Ok(())
    }
}

fn done((): ()) -> Reply {
    Reply::Done
}

fn check_principal(what: &str, name: &str) -> R<()> {
    if is_principal(name) {
        return Ok(());
    }
    refuse(
        ErrorKind::Invalid,
        format!(
            "{what} '{}': 1 to 128 bytes without blanks, control characters, ',', '=', ':', '/'",
            name.escape_debug()
        ),
    )
}

fn check_text(what: &str, text: &str) -> R<()> {
    if text.len() > crate::limits::MAX_TEXT || text.contains('\0') {
        return refuse(
            ErrorKind::Limit,
            format!("{what}: at most 1,024 bytes, no zero byte"),
        );
    }
    Ok(())
}

fn check_page(limit: u32) -> R<()> {
    if !(1..=MAX_PAGE).contains(&limit) {
        return refuse(ErrorKind::Invalid, format!("limit {limit}: 1 to {MAX_PAGE}"));
    }
    Ok(())
}

/// A number that goes into a 64-bit signed column.
fn check_number(what: &str, n: u64) -> R<()> {
    if i64::try_from(n).is_err() {
        return refuse(ErrorKind::Limit, format!("{what} {n}: below 2^63"));
    }
    Ok(())
}
