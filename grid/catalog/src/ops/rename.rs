//! Rename: the operation with the most cases.
//!
//! Both directories are locked, the one with the lower number first; then what the names lead to. A directory
//! that moves to another parent takes one lock of the whole grid (`{dirlock}`), so that no two moves together
//! can make a loop, and its way up to the root is walked.

use super::Tx;
use super::inode::{Inode, SEARCH, WRITE};
use super::quota::Charge;
use super::walk::Name;
use crate::limits::MAX_DEPTH;
use crate::sql::{DbError, DbKind, R, p, refuse};
use crate::{ErrorKind, Ino, Place, Rename, RenameMode};

impl Tx<'_> {
    pub(super) fn rename(&mut self, op: &Rename) -> R<()> {
        let mut from = self.walk_to_name(&op.from, ErrorKind::Busy)?;
        let mut to = self.walk_to_name(&op.to, ErrorKind::Busy)?;
        let mut held = false;
        if self.shares() && from.dir.ino != to.dir.ino {
            // Taken before any row is locked, so that it is never waited for with locks held.
            let moving = self.entry(from.dir.ino, &from.name)?;
            let there = self.entry(to.dir.ino, &to.name)?;
            if moving.is_some_and(|i| i.is_dir()) || there.is_some_and(|i| i.is_dir()) {
                self.q("SELECT {dirlock}", p![])?;
                held = true;
            }
        }
        if from.dir.ino <= to.dir.ino {
            self.lock_dir(&mut from.dir, &op.from)?;
            self.lock_dir(&mut to.dir, &op.to)?;
        } else {
            self.lock_dir(&mut to.dir, &op.to)?;
            self.lock_dir(&mut from.dir, &op.from)?;
        }
        let Some(moving) = self.entry_locked(from.dir.ino, &from.name)? else {
            return refuse(ErrorKind::NotFound, format!("{}: no such file or directory", op.from));
        };
        let there = self.entry_locked(to.dir.ino, &to.name)?;
        let dirs = moving.is_dir() || there.as_ref().is_some_and(Inode::is_dir);
        if self.shares() && from.dir.ino != to.dir.ino && dirs && !held {
            let source = "a name became a directory's meanwhile".into();
            return Err(DbError { kind: DbKind::Again, source }.into());
        }
        if !moving.is_dir() && (from.slash || (to.slash && op.mode != RenameMode::Exchange)) {
            return refuse(ErrorKind::NotDir, format!("{}: not a directory", op.from));
        }
        self.need_removal(&from.dir, &moving, &op.from)?;
        self.need(&to.dir, WRITE | SEARCH, &op.to)?;
        match (there, op.mode) {
            (Some(_), RenameMode::NoReplace) => refuse(ErrorKind::Exists, format!("{}: is there already", op.to)),
            (None, RenameMode::Exchange) => {
                refuse(ErrorKind::NotFound, format!("{}: no such file or directory", op.to))
            }
            (Some(there), _) if there.ino == moving.ino => Ok(()),
            (Some(there), RenameMode::Exchange) => self.exchange(op, &from, &to, moving, there),
            (there, _) => self.replace(op, &from, &to, moving, there),
        }
    }

    /// Refuses to move a directory below itself, or without the permission to change its parent.
    fn check_move(&mut self, moving: &Inode, from: &Inode, to: &Inode, place: &Place) -> R<()> {
        if !moving.is_dir() || from.ino == to.ino {
            return Ok(());
        }
        self.need(moving, WRITE, place)?;
        let mut at = to.clone();
        for _ in 0..MAX_DEPTH {
            if at.ino == moving.ino {
                return refuse(ErrorKind::Invalid, format!("{place}: a directory cannot move below itself"));
            }
            if at.ino == Ino::ROOT {
                return Ok(());
            }
            at = self.get(at.parent)?;
        }
        refuse(ErrorKind::Limit, format!("{place}: deeper than {MAX_DEPTH}"))
    }

    /// What coming under another directory's quota needs: only a file with one name may, and is charged there.
    fn check_quota_move(&mut self, inode: &Inode, to: &Inode, place: &Place) -> R<()> {
        let from = self.charged_dir(inode)?;
        if from != to.qdir && (inode.is_dir() || inode.links > 1) {
            return refuse(ErrorKind::CrossQuota, format!("{place}: comes under another directory's quota"));
        }
        Ok(())
    }

    fn quota_move(&mut self, inode: &Inode, to: &Inode) -> R<()> {
        let from = self.charged_dir(inode)?;
        if from == to.qdir {
            return Ok(());
        }
        let bytes = inode.charged_bytes();
        self.charge_dir(to.qdir, 1, bytes)?;
        self.charge_dir(from, -1, -bytes)?;
        self.x("UPDATE inode SET qdir = ?2 WHERE ino = ?1", p![inode.ino.0, to.qdir])?;
        Ok(())
    }

    fn replace(&mut self, op: &Rename, from: &Name, to: &Name, moving: Inode, there: Option<Inode>) -> R<()> {
        self.check_move(&moving, &from.dir, &to.dir, &op.from)?;
        self.check_quota_move(&moving, &to.dir, &op.to)?;
        if let Some(there) = &there {
            self.need_removal(&to.dir, there, &op.to)?;
            match (moving.is_dir(), there.is_dir()) {
                (true, false) => return refuse(ErrorKind::NotDir, format!("{}: not a directory", op.to)),
                (false, true) => return refuse(ErrorKind::IsDir, format!("{}: a directory", op.to)),
                (true, true) => self.need_empty(there, &op.to)?,
                (false, false) => {}
            }
        }
        self.quota_move(&moving, &to.dir)?;
        if let Some(mut there) = there {
            self.delete_entry(to.dir.ino, &to.name)?;
            if there.is_dir() {
                self.erase_dir(&there)?;
                self.touch_dir(to.dir.ino, -1)?;
            } else {
                self.lose_name(&mut there)?;
            }
        }
        self.delete_entry(from.dir.ino, &from.name)?;
        self.insert_entry(to.dir.ino, &to.name, &moving)?;
        self.settle(&moving, to.dir.ino)?;
        let up = i64::from(moving.is_dir() && from.dir.ino != to.dir.ino);
        self.touch_dir(from.dir.ino, -up)?;
        if from.dir.ino != to.dir.ino {
            self.touch_dir(to.dir.ino, up)?;
        }
        Ok(())
    }

    fn exchange(&mut self, op: &Rename, from: &Name, to: &Name, a: Inode, b: Inode) -> R<()> {
        self.need_removal(&to.dir, &b, &op.to)?;
        self.check_move(&a, &from.dir, &to.dir, &op.from)?;
        self.check_move(&b, &to.dir, &from.dir, &op.to)?;
        self.check_quota_move(&a, &to.dir, &op.to)?;
        self.check_quota_move(&b, &from.dir, &op.from)?;
        self.quota_move(&a, &to.dir)?;
        self.quota_move(&b, &from.dir)?;
        self.delete_entry(from.dir.ino, &from.name)?;
        self.delete_entry(to.dir.ino, &to.name)?;
        self.insert_entry(from.dir.ino, &from.name, &b)?;
        self.insert_entry(to.dir.ino, &to.name, &a)?;
        self.settle(&a, to.dir.ino)?;
        self.settle(&b, from.dir.ino)?;
        let moved = i64::from(a.is_dir()) - i64::from(b.is_dir());
        let moved = if from.dir.ino == to.dir.ino { 0 } else { moved };
        self.touch_dir(from.dir.ino, -moved)?;
        if from.dir.ino != to.dir.ino {
            self.touch_dir(to.dir.ino, moved)?;
        }
        Ok(())
    }

    fn settle(&mut self, inode: &Inode, parent: Ino) -> R<()> {
        self.x(
            "UPDATE inode SET parent = ?2, ctime = ?3 WHERE ino = ?1",
            p![inode.ino.0, parent.0, self.now.0],
        )?;
        Ok(())
    }

    /// Directory (0: none) whose quota an inode itself is charged to.
    pub(super) fn charged_dir(&mut self, inode: &Inode) -> R<i64> {
        if !inode.is_dir() || inode.qdir != inode.ino.0 as i64 {
            return Ok(inode.qdir);
        }
        match self.one("SELECT up FROM usage WHERE id = ?1", p![inode.qdir])? {
            Some(row) => Ok(row.int(0)?),
            None => refuse(ErrorKind::Corrupt, format!("directory {} has no usage row", inode.ino)),
        }
    }
}

impl Charge {
    /// For an inode of an owner and group, to a directory's quota.
    pub(super) fn of(inode: &Inode, qdir: i64, files: i64, bytes: i64) -> Self {
        Self { uid: inode.uid, gid: inode.gid, qdir, files, bytes }
    }
}
