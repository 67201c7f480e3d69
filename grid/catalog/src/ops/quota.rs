//! Usage and quotas.
//!
//! The table `usage` has one row for each user, group and directory with a quota: how many inodes and payload
//! bytes it has, and its bounds. Every operation that changes what somebody owns adds to these rows in its own
//! transaction, so a check never counts files. A directory's row counts all below it; rows of directories
//! inside of each other are chained by `up`.

use super::Tx;
use super::inode::READ;
use crate::sql::{R, Row, p, refuse};
use crate::state::Text;
use crate::{ErrorKind, Ino, ListUsage, NodeState, Place, QuotaKind, QuotaSubject, Role, SetQuota, SpaceTotals, Usage};

/// What is added to whose usage.
pub(super) struct Charge {
    pub uid: i64,
    pub gid: i64,
    /// Directory with a quota; 0: none.
    pub qdir: i64,
    pub files: i64,
    pub bytes: i64,
}

fn exceeded(row: &Row, files: i64, bytes: i64) -> R<bool> {
    let over = |now: i64, max: Option<i64>| max.is_some_and(|m| now > m);
    Ok((files > 0 && over(row.int(1)?, row.opt(3)?)) || (bytes > 0 && over(row.int(2)?, row.opt(4)?)))
}

impl Tx<'_> {
    /// Adds to the usage of an owner, a group and a directory. Refused with `Quota`, and then without effect,
    /// if an amount that grows would exceed a bound.
    pub(super) fn charge(&mut self, c: &Charge) -> R<()> {
        if c.files == 0 && c.bytes == 0 {
            return Ok(());
        }
        let before = self.changed;
        let over = self.charge_owner(c.uid, c.gid, c.files, c.bytes)?;
        if over {
            self.charge_owner(c.uid, c.gid, -c.files, -c.bytes)?;
            self.changed = before;
            return refuse(ErrorKind::Quota, "the quota of the owner or group is exhausted");
        }
        if let Err(e) = self.charge_dir(c.qdir, c.files, c.bytes) {
            self.charge_owner(c.uid, c.gid, -c.files, -c.bytes)?;
            self.changed = before;
            return Err(e);
        }
        Ok(())
    }

    /// The answer is whether a bound is exceeded now.
    fn charge_owner(&mut self, uid: i64, gid: i64, files: i64, bytes: i64) -> R<bool> {
        let rows = self.xq(
            "UPDATE usage SET files = files + ?3, bytes = bytes + ?4 WHERE id IN (?1, ?2) \
             RETURNING id, files, bytes, max_files, max_bytes",
            p![uid, gid, files, bytes],
        )?;
        let mut over = false;
        for (id, kind) in [(uid, 0i64), (gid, 1)] {
            match rows.iter().find(|r| r.int(0).is_ok_and(|i| i == id)) {
                Some(row) => over |= exceeded(row, files, bytes)?,
                None => {
                    self.x(
                        "INSERT INTO usage (id, kind, files, bytes, up) VALUES (?1, ?2, ?3, ?4, 0)",
                        p![id, kind, files, bytes],
                    )?;
                }
            }
        }
        Ok(over)
    }

    /// Adds to a directory with a quota and those it is in; undone if one of them is exceeded.
    pub(super) fn charge_dir(&mut self, qdir: i64, files: i64, bytes: i64) -> R<()> {
        let before = self.changed;
        let mut charged = Vec::new();
        let mut at = qdir;
        while at != 0 {
            let rows = self.xq(
                "UPDATE usage SET files = files + ?2, bytes = bytes + ?3 WHERE id = ?1 \
                 RETURNING id, files, bytes, max_files, max_bytes, up",
                p![at, files, bytes],
            )?;
            let Some(row) = rows.first() else {
                return refuse(ErrorKind::Corrupt, format!("directory {at} has no usage row"));
            };
            charged.push(at);
            if exceeded(row, files, bytes)? {
                for id in charged {
                    self.x(
                        "UPDATE usage SET files = files - ?2, bytes = bytes - ?3 WHERE id = ?1",
                        p![id, files, bytes],
                    )?;
                }
                self.changed = before;
                return refuse(ErrorKind::Quota, format!("the quota of directory {at} is exhausted"));
            }
            at = row.int(5)?;
        }
        Ok(())
    }

    fn subject(&mut self, subject: &QuotaSubject) -> R<(i64, String)> {
        let (kind, name) = match subject {
            QuotaSubject::Dir(place) => {
                let dir = self.resolve(place, true)?;
                if !dir.is_dir() {
                    return refuse(ErrorKind::NotDir, format!("{place}: not a directory"));
                }
                return Ok((dir.ino.0 as i64, dir.ino.to_string()));
            }
            QuotaSubject::User(name) => (Text::User, name),
            QuotaSubject::Group(name) => (Text::Group, name),
        };
        super::check_principal("name", name)?;
        Ok((self.find_text(kind, name)?.unwrap_or(0), name.clone()))
    }

    pub(super) fn get_usage(&mut self, subject: &QuotaSubject) -> R<Usage> {
        if self.caller.role == Role::User {
            let allowed = match subject {
                QuotaSubject::User(name) => *name == self.caller.user,
                QuotaSubject::Group(name) => self.in_group(name),
                QuotaSubject::Dir(place) => {
                    let dir = self.resolve(place, true)?;
                    self.may(&dir, READ)?
                }
            };
            if !allowed {
                return refuse(ErrorKind::Access, "the usage of others is for the administrator");
            }
        }
        let (id, name) = self.subject(subject)?;
        let row = self.one("SELECT id, files, bytes, max_files, max_bytes FROM usage WHERE id = ?1", p![id])?;
        match (row, subject) {
            (Some(row), _) => usage(&row, name),
            (None, QuotaSubject::Dir(place)) => refuse(ErrorKind::NotFound, format!("{place}: has no quota")),
            (None, _) => Ok(Usage { name, files: 0, bytes: 0, max_files: None, max_bytes: None }),
        }
    }

    pub(super) fn list_usage(&mut self, op: &ListUsage) -> R<Vec<Usage>> {
        self.need_admin("everybody's usage")?;
        super::check_page(op.limit)?;
        let after = op.after.as_deref().unwrap_or_default();
        let rows = match op.kind {
            QuotaKind::Dir => {
                let after: i64 = if after.is_empty() { Ok(0) } else { after.parse() }.or_else(|_| {
                    refuse(ErrorKind::Invalid, "after: the decimal number of a directory")
                })?;
                self.q(
                    "SELECT id, files, bytes, max_files, max_bytes FROM usage WHERE kind = 2 AND id > ?1 \
                     ORDER BY id LIMIT ?2",
                    p![after, op.limit],
                )?
            }
            kind => {
                let kind = if kind == QuotaKind::User { 0i64 } else { 1 };
                self.q(
                    "SELECT u.id, u.files, u.bytes, u.max_files, u.max_bytes, t.text FROM usage u \
                     JOIN intern t ON t.id = u.id WHERE u.kind = ?1 AND t.text > ?2 ORDER BY t.text LIMIT ?3",
                    p![kind, after, op.limit],
                )?
            }
        };
        rows.iter()
            .map(|row| {
                let name = if op.kind == QuotaKind::Dir { row.int(0)?.to_string() } else { row.text(5)? };
                usage(row, name)
            })
            .collect()
    }

    pub(super) fn set_quota(&mut self, op: &SetQuota) -> R<()> {
        self.need_admin("quotas")?;
        super::check_number("files", op.max_files.unwrap_or(0))?;
        super::check_number("bytes", op.max_bytes.unwrap_or(0))?;
        let (id, kind) = match &op.subject {
            QuotaSubject::Dir(place) => (self.quota_dir(place)?, 2i64),
            QuotaSubject::User(name) => (self.intern_principal(Text::User, name)?, 0),
            QuotaSubject::Group(name) => (self.intern_principal(Text::Group, name)?, 1),
        };
        self.x(
            "INSERT INTO usage (id, kind, files, bytes, max_files, max_bytes, up) VALUES (?1, ?2, 0, 0, ?3, ?4, 0) \
             ON CONFLICT (id) DO UPDATE SET max_files = excluded.max_files, max_bytes = excluded.max_bytes",
            p![id, kind, op.max_files, op.max_bytes],
        )?;
        Ok(())
    }

    /// A directory that has its own usage row, made now if it is empty.
    fn quota_dir(&mut self, place: &Place) -> R<i64> {
        let dir = self.resolve_locked(place, true)?;
        let id = dir.ino.0 as i64;
        if !dir.is_dir() {
            return refuse(ErrorKind::NotDir, format!("{place}: not a directory"));
        }
        if dir.qdir == id {
            return Ok(id);
        }
        if dir.ino == Ino::ROOT {
            return refuse(ErrorKind::Invalid, "the root has no quota: set users' and groups'");
        }
        self.need_empty(&dir, place)?;
        self.x("INSERT INTO usage (id, kind, files, bytes, up) VALUES (?1, 2, 0, 0, ?2)", p![id, dir.qdir])?;
        self.x("UPDATE inode SET qdir = ino, ctime = ?2 WHERE ino = ?1", p![id, self.now.0])?;
        Ok(id)
    }

    pub(super) fn stat_fs(&mut self) -> R<SpaceTotals> {
        let mut out = SpaceTotals::default();
        // Users' rows count every inode and byte once.
        let sql = "SELECT CAST(COALESCE(SUM(files), 0) AS BIGINT), CAST(COALESCE(SUM(bytes), 0) AS BIGINT) \
                   FROM usage WHERE kind = 0";
        if let Some(row) = self.one(sql, p![])? {
            out.inodes = row.num(0)?;
            out.used_bytes = row.num(1)?;
        }
        for node in self.list_nodes()? {
            out.nodes += 1;
            out.nodes_up += u32::from(node.state == NodeState::Up);
            if matches!(node.state, NodeState::Up | NodeState::ReadOnly | NodeState::Drain) {
                out.capacity_bytes = out.capacity_bytes.saturating_add(node.capacity_bytes);
            }
            if node.state == NodeState::Up {
                out.free_bytes = out.free_bytes.saturating_add(node.free_bytes);
            }
        }
        Ok(out)
    }
}

fn usage(row: &Row, name: String) -> R<Usage> {
    Ok(Usage {
        name,
        files: row.num(1)?,
        bytes: row.num(2)?,
        max_files: row.opt(3)?,
        max_bytes: row.opt(4)?,
    })
}
