//! Changing attributes, extended attributes, ACLs, copy rules.

use super::Tx;
use super::inode::{Inode, READ, SET_GID, SET_UID, WRITE};
use super::quota::Charge;
use crate::limits::{MAX_XATTR_NAME, MAX_XATTR_TOTAL, MAX_XATTR_VALUE};
use crate::sql::{R, p, refuse};
use crate::state::Text;
use crate::{
    Acl, AclKind, Attr, ErrorKind, Kind, Place, SetAcl, SetAttr, SetCopies, SetTime, SetXattr, SetXattrMode,
    Timestamp,
};

impl Tx<'_> {
    pub(super) fn set_attr(&mut self, op: &SetAttr) -> R<Attr> {
        let mut i = self.resolve_locked(&op.place, op.follow)?;
        let place = &op.place;
        let before = (i.uid, i.gid);
        if let Some(owner) = &op.owner {
            let same = *self.text(i.uid)? == **owner;
            if !same && !self.is_admin() {
                return refuse(ErrorKind::NotPermitted, format!("{place}: only the administrator gives files away"));
            }
            self.need_owner(&i, place)?;
            i.uid = self.intern_principal(Text::User, owner)?;
        }
        if let Some(group) = &op.group {
            let same = *self.text(before.1)? == **group;
            if !self.is_admin() {
                self.owned_before(before.0, place)?;
                if !same && !self.in_group(group) {
                    return refuse(
                        ErrorKind::NotPermitted,
                        format!("{place}: {} is not in group {group}", self.caller.user),
                    );
                }
            }
            i.gid = self.intern_principal(Text::Group, group)?;
        }
        if (op.owner.is_some() || op.group.is_some()) && !self.is_admin() && i.kind == Kind::File {
            i.mode &= !SET_UID;
            if i.mode & 0o010 != 0 {
                i.mode &= !SET_GID;
            }
        }
        if let Some(mode) = op.mode {
            self.owned_before(before.0, place)?;
            self.change_mode(&mut i, mode, place)?;
        }
        let time = |set: SetTime, now: Timestamp| match set {
            SetTime::Now => now,
            SetTime::At(t) => t,
        };
        for set in [op.atime, op.mtime].into_iter().flatten() {
            let owner = self.is_admin() || *self.text(before.0)? == *self.caller.user;
            if !owner {
                match set {
                    SetTime::At(_) => {
                        return refuse(ErrorKind::NotPermitted, format!("{place}: only the owner sets a given time"));
                    }
                    SetTime::Now => self.need(&i, WRITE, place)?,
                }
            }
        }
        i.atime = op.atime.map_or(i.atime, |t| time(t, self.now));
        i.mtime = op.mtime.map_or(i.mtime, |t| time(t, self.now));
        i.ctime = self.now;
        if i.links > 0 {
            self.move_charge(&i, before)?;
        }
        self.save_attr(&i)?;
        self.attr(&i)
    }

    fn owned_before(&mut self, uid: i64, place: &Place) -> R<()> {
        if self.is_admin() || *self.text(uid)? == *self.caller.user {
            return Ok(());
        }
        refuse(ErrorKind::NotPermitted, format!("{place}: {} is not the owner", self.caller.user))
    }

    fn change_mode(&mut self, i: &mut Inode, mode: u32, place: &Place) -> R<()> {
        if mode > 0o7777 {
            return refuse(ErrorKind::Invalid, format!("{place}: mode {mode:o}: 0 to 7777"));
        }
        if i.kind == Kind::Symlink {
            return refuse(ErrorKind::Unsupported, format!("{place}: a symbolic link has no mode"));
        }
        i.mode = mode;
        let group = self.text(i.gid)?;
        if !self.is_admin() && !self.in_group(&group) {
            i.mode &= !SET_GID;
        }
        if let Some(blob) = i.acl.take() {
            let mut acl = self.acl_from(&blob)?;
            acl.set_mode_bits(mode);
            i.acl = Some(self.acl_blob(&acl)?);
        }
        Ok(())
    }

    /// Usage follows the owner and group.
    fn move_charge(&mut self, i: &Inode, before: (i64, i64)) -> R<()> {
        if (i.uid, i.gid) == before {
            return Ok(());
        }
        let bytes = i.charged_bytes();
        self.charge(&Charge { uid: i.uid, gid: i.gid, qdir: 0, files: 1, bytes })?;
        self.charge(&Charge { uid: before.0, gid: before.1, qdir: 0, files: -1, bytes: -bytes })
    }

    fn save_attr(&mut self, i: &Inode) -> R<()> {
        self.x(
            "UPDATE inode SET mode = ?2, uid = ?3, gid = ?4, atime = ?5, mtime = ?6, ctime = ?7, acl = ?8, \
             dacl = ?9 WHERE ino = ?1",
            p![
                i.ino.0, i.mode, i.uid, i.gid, i.atime.0, i.mtime.0, i.ctime.0, i.acl.as_ref(),
                i.default_acl.as_ref()
            ],
        )?;
        Ok(())
    }

    // ---- ACLs ------------------------------------------------------------------------------------------

    pub(super) fn get_acl(&mut self, place: &Place, kind: AclKind) -> R<Option<Acl>> {
        let inode = self.resolve(place, true)?;
        let blob = match kind {
            AclKind::Access => inode.acl,
            AclKind::Default => inode.default_acl,
        };
        blob.map(|b| self.acl_from(&b)).transpose()
    }

    pub(super) fn set_acl(&mut self, op: &SetAcl) -> R<()> {
        let mut i = self.resolve_locked(&op.place, true)?;
        self.need_owner(&i, &op.place)?;
        match op.kind {
            AclKind::Default => {
                if !i.is_dir() {
                    return refuse(ErrorKind::Access, format!("{}: only directories have a default ACL", op.place));
                }
                i.default_acl = match &op.acl {
                    Some(acl) => Some(self.acl_blob(acl)?),
                    None => None,
                };
            }
            AclKind::Access => match &op.acl {
                Some(acl) => {
                    i.mode = i.mode & !0o777 | acl.mode_bits();
                    i.acl = if acl.is_mode() { None } else { Some(self.acl_blob(acl)?) };
                }
                None => {
                    // What is left is what the list granted to the owner, the owning group and others.
                    if let Some(blob) = i.acl.take() {
                        let acl = self.acl_from(&blob)?;
                        let base = acl.entries().iter().filter(|e| {
                            use crate::AclTag::{GroupObj, Other, UserObj};
                            matches!(e.tag, UserObj | GroupObj | Other)
                        });
                        i.mode = i.mode & !0o777 | Acl::new(base.cloned().collect())?.mode_bits();
                    }
                }
            },
        }
        i.ctime = self.now;
        self.save_attr(&i)
    }

    // ---- extended attributes ---------------------------------------------------------------------------

    /// Checks the name and the right to its namespace.
    fn check_xattr(&mut self, inode: &Inode, name: &[u8], bits: u8, place: &Place) -> R<()> {
        if name.len() > MAX_XATTR_NAME {
            return refuse(
                ErrorKind::NameTooLong,
                format!("{place}: an attribute's name is at most {MAX_XATTR_NAME} bytes"),
            );
        }
        let within = |space: &[u8]| name.len() > space.len() && name.starts_with(space);
        if name.contains(&0) {
            return refuse(ErrorKind::Invalid, format!("{place}: an attribute's name has no zero byte"));
        }
        if within(b"user.") {
            if inode.kind == Kind::Symlink {
                return refuse(ErrorKind::NotPermitted, format!("{place}: a symbolic link has no user attributes"));
            }
            return self.need(inode, bits, place);
        }
        if within(b"trusted.") || within(b"security.") {
            return if self.is_admin() {
                Ok(())
            } else if bits == READ {
                refuse(ErrorKind::NoData, format!("{place}: no such attribute"))
            } else {
                refuse(ErrorKind::NotPermitted, format!("{place}: attributes of the administrator"))
            };
        }
        refuse(
            ErrorKind::Unsupported,
            format!("{place}: attributes are named user.*, or trusted.* and security.* by the administrator"),
        )
    }

    pub(super) fn get_xattr(&mut self, place: &Place, name: &[u8]) -> R<Vec<u8>> {
        let inode = self.resolve(place, true)?;
        self.check_xattr(&inode, name, READ, place)?;
        match self.one("SELECT value FROM xattr WHERE ino = ?1 AND name = ?2", p![inode.ino.0, name])? {
            Some(row) => Ok(row.bytes(0)?),
            None => refuse(ErrorKind::NoData, format!("{place}: no such attribute")),
        }
    }

    pub(super) fn list_xattr(&mut self, place: &Place) -> R<Vec<Vec<u8>>> {
        let inode = self.resolve(place, true)?;
        let rows = self.q("SELECT name FROM xattr WHERE ino = ?1 ORDER BY name", p![inode.ino.0])?;
        let mut names = Vec::with_capacity(rows.len());
        for row in &rows {
            let name = row.bytes(0)?;
            if name.starts_with(b"user.") || self.is_admin() {
                names.push(name);
            }
        }
        Ok(names)
    }

    pub(super) fn set_xattr(&mut self, op: &SetXattr) -> R<()> {
        let inode = self.resolve_locked(&op.place, true)?;
        self.check_xattr(&inode, &op.name, WRITE, &op.place)?;
        if op.value.len() > MAX_XATTR_VALUE {
            return refuse(ErrorKind::Limit, format!("{}: a value is at most {MAX_XATTR_VALUE} bytes", op.place));
        }
        let sql = "SELECT length(value) FROM xattr WHERE ino = ?1 AND name = ?2";
        let old: Option<usize> =
            self.one(sql, p![inode.ino.0, &op.name])?.map(|r| r.num(0)).transpose()?;
        match (op.mode, old) {
            (SetXattrMode::Create, Some(_)) => {
                return refuse(ErrorKind::Exists, format!("{}: the attribute is there already", op.place));
            }
            (SetXattrMode::Replace, None) => {
                return refuse(ErrorKind::NoData, format!("{}: no such attribute", op.place));
            }
            _ => {}
        }
        let sql = "SELECT CAST(COALESCE(SUM(length(name) + length(value)), 0) AS BIGINT) FROM xattr WHERE ino = ?1";
        let total: usize = self.one(sql, p![inode.ino.0])?.map_or(Ok(0), |r| r.num(0))?;
        let freed = old.map_or(0, |n| n + op.name.len());
        if total - freed.min(total) + op.name.len() + op.value.len() > MAX_XATTR_TOTAL {
            return refuse(
                ErrorKind::NoSpace,
                format!("{}: all attributes together are at most {MAX_XATTR_TOTAL} bytes", op.place),
            );
        }
        self.x(
            "INSERT INTO xattr (ino, name, value) VALUES (?1, ?2, ?3) \
             ON CONFLICT (ino, name) DO UPDATE SET value = excluded.value",
            p![inode.ino.0, &op.name, &op.value],
        )?;
        self.touch_ctime(&inode)
    }

    pub(super) fn remove_xattr(&mut self, place: &Place, name: &[u8]) -> R<()> {
        let inode = self.resolve_locked(place, true)?;
        self.check_xattr(&inode, name, WRITE, place)?;
        let sql = "SELECT ino FROM xattr WHERE ino = ?1 AND name = ?2";
        if self.one(sql, p![inode.ino.0, name])?.is_none() {
            return refuse(ErrorKind::NoData, format!("{place}: no such attribute"));
        }
        self.x("DELETE FROM xattr WHERE ino = ?1 AND name = ?2", p![inode.ino.0, name])?;
        self.touch_ctime(&inode)
    }

    fn touch_ctime(&mut self, inode: &Inode) -> R<()> {
        self.x("UPDATE inode SET ctime = ?2 WHERE ino = ?1", p![inode.ino.0, self.now.0])?;
        Ok(())
    }

    // ---- copies ----------------------------------------------------------------------------------------

    pub(super) fn set_copies(&mut self, op: &SetCopies) -> R<Attr> {
        // A rule made by hand is held to what a text can say.
        let text = op.rule.to_string();
        let rule: crate::CopyRule = text.parse()?;
        let mut i = self.resolve_locked(&op.place, true)?;
        self.need_owner(&i, &op.place)?;
        i.rule = self.intern(Text::Rule, &rule.to_string())?;
        i.ctime = self.now;
        self.x("UPDATE inode SET rule = ?2, ctime = ?3 WHERE ino = ?1", p![i.ino.0, i.rule, i.ctime.0])?;
        if i.kind == Kind::File && i.fragments > 0 && i.links > 0 {
            self.reckon_file(&i)?;
        }
        self.attr(&i)
    }
}
