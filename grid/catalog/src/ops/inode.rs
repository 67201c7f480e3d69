//! Rows of the table `inode`, permissions, attributes.

use super::Tx;
use crate::sql::{P, R, Row, p, refuse};
use crate::state::Text;
use crate::{
    Acl, AclEntry, AclTag, Attr, CatalogError, CopyRule, ErrorKind, Generation, Ino, Kind, Role, Timestamp,
};

/// A row.
#[derive(Clone, Debug)]
pub(super) struct Inode {
    pub ino: Ino,
    pub kind: Kind,
    pub mode: u32,
    pub uid: i64,
    pub gid: i64,
    pub links: u32,
    pub size: u64,
    pub generation: Generation,
    pub version: u64,
    pub fragments: u32,
    pub atime: Timestamp,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    pub btime: Timestamp,
    /// Directory that it was last made in or renamed into; of a directory always its parent.
    pub parent: Ino,
    /// Directory whose quota it is charged to (of a directory: what is made in it); 0: none.
    pub qdir: i64,
    pub rule: i64,
    pub acl: Option<Vec<u8>>,
    pub default_acl: Option<Vec<u8>>,
    pub target: Option<Vec<u8>>,
}

/// `rwx` for the owner, group and others in an ACL entry's bits.
pub(super) const READ: u8 = 4;
pub(super) const WRITE: u8 = 2;
pub(super) const SEARCH: u8 = 1;

/// Set-user-ID, set-group-ID, sticky.
pub(super) const SET_UID: u32 = 0o4000;
pub(super) const SET_GID: u32 = 0o2000;
pub(super) const STICKY: u32 = 0o1000;

pub(super) fn kind_number(kind: Kind) -> i64 {
    match kind {
        Kind::File => 0,
        Kind::Dir => 1,
        Kind::Symlink => 2,
        Kind::Fifo => 3,
        Kind::Socket => 4,
    }
}

pub(super) fn kind_of(n: i64) -> Result<Kind, CatalogError> {
    match n {
        0 => Ok(Kind::File),
        1 => Ok(Kind::Dir),
        2 => Ok(Kind::Symlink),
        3 => Ok(Kind::Fifo),
        4 => Ok(Kind::Socket),
        _ => Err(CatalogError::new(
            ErrorKind::Corrupt,
            format!("an inode of kind {n}"),
        )),
    }
}

impl Inode {
    /// From the columns of [`columns`], beginning at `at`.
    pub fn from_row(row: &Row, at: usize) -> Result<Self, CatalogError> {
        Ok(Self {
            ino: Ino(row.num(at)?),
            kind: kind_of(row.int(at + 1)?)?,
            mode: row.num(at + 2)?,
            uid: row.int(at + 3)?,
            gid: row.int(at + 4)?,
            links: row.num(at + 5)?,
            size: row.num(at + 6)?,
            generation: Generation(row.num(at + 7)?),
            version: row.num(at + 8)?,
            fragments: row.num(at + 9)?,
            atime: Timestamp(row.int(at + 10)?),
            mtime: Timestamp(row.int(at + 11)?),
            ctime: Timestamp(row.int(at + 12)?),
            btime: Timestamp(row.int(at + 13)?),
            parent: Ino(row.num(at + 14)?),
            qdir: row.int(at + 15)?,
            rule: row.int(at + 16)?,
            acl: row.opt_bytes(at + 17)?,
            default_acl: row.opt_bytes(at + 18)?,
            target: row.opt_bytes(at + 19)?,
        })
    }

    pub fn is_dir(&self) -> bool {
        self.kind == Kind::Dir
    }
}

/// The columns of an inode in the order of [`Inode::from_row`], of the table named `i`.
macro_rules! columns {
    () => {
        "i.ino, i.kind, i.mode, i.uid, i.gid, i.nlink, i.size, i.gen, i.version, i.frags, i.atime, i.mtime, \
         i.ctime, i.btime, i.parent, i.qdir, i.rule, i.acl, i.dacl, i.target"
    };
}
pub(super) use columns;

impl Tx<'_> {
    /// An inode that may be gone.
    pub(super) fn find(&mut self, ino: Ino) -> R<Option<Inode>> {
        let sql = concat!("SELECT ", columns!(), " FROM inode i WHERE i.ino = ?1");
        let row = self.one(sql, p![ino.0])?;
        row.map(|r| Inode::from_row(&r, 0))
            .transpose()
            .map_err(Into::into)
    }

    /// An inode, or `Stale`.
    pub(super) fn get(&mut self, ino: Ino) -> R<Inode> {
        match self.find(ino)? {
            Some(i) => Ok(i),
            None => refuse(ErrorKind::Stale, format!("inode {ino} is not there (any more)")),
        }
    }

    /// An inode that a decision will rest on, locked; none if it is gone.
    pub(super) fn find_locked(&mut self, ino: Ino) -> R<Option<Inode>> {
        let sql = concat!("SELECT ", columns!(), " FROM inode i WHERE i.ino = ?1 {lock}");
        let row = self.one(sql, p![ino.0])?;
        row.map(|r| Inode::from_row(&r, 0))
            .transpose()
            .map_err(Into::into)
    }

    /// Locks an inode that was read, and reads it again where others may have changed it.
    pub(super) fn lock(&mut self, inode: &mut Inode) -> R<()> {
        if !self.shares() {
            return Ok(());
        }
        match self.find_locked(inode.ino)? {
            Some(i) => {
                *inode = i;
                Ok(())
            }
            None => refuse(
                ErrorKind::NotFound,
                format!("inode {} was removed meanwhile", inode.ino),
            ),
        }
    }

    /// The inode of a name.
    pub(super) fn entry(&mut self, dir: Ino, name: &[u8]) -> R<Option<Inode>> {
        let sql = concat!(
            "SELECT ",
            columns!(),
            " FROM dirent d JOIN inode i ON i.ino = d.ino WHERE d.parent = ?1 AND d.name = ?2"
        );
        let row = self.one(sql, p![dir.0, name])?;
        row.map(|r| Inode::from_row(&r, 0))
            .transpose()
            .map_err(Into::into)
    }

    /// The inode of a name in a locked directory, locked.
    pub(super) fn entry_locked(&mut self, dir: Ino, name: &[u8]) -> R<Option<Inode>> {
        let Some(mut inode) = self.entry(dir, name)? else {
            return Ok(None);
        };
        self.lock(&mut inode)?;
        Ok(Some(inode))
    }

    // ---- permissions -----------------------------------------------------------------------------------

    /// Whether the caller may; `bits` as 4, 2, 1.
    pub(super) fn may(&mut self, inode: &Inode, bits: u8) -> R<bool> {
        match self.caller.role {
            // As for the superuser, executing a file needs somebody's execute bit.
            Role::Admin => {
                return Ok(bits & SEARCH == 0
                    || matches!(inode.kind, Kind::Dir | Kind::Symlink)
                    || inode.mode & 0o111 != 0);
            }
            Role::Service | Role::User => {}
        }
        let owner = self.text(inode.uid)?;
        if *owner == *self.caller.user {
            return Ok((inode.mode >> 6) as u8 & bits == bits);
        }
        let group = self.text(inode.gid)?;
        match &inode.acl {
            None => {
                let shift = if self.in_group(&group) { 3 } else { 0 };
                Ok((inode.mode >> shift) as u8 & bits == bits)
            }
            Some(blob) => {
                let acl = self.acl_from(blob)?;
                let own = [self.caller.user.clone()];
                let groups = if self.caller.groups.is_empty() {
                    &own[..]
                } else {
                    &self.caller.groups
                };
                Ok(acl.grants(bits, &self.caller.user, groups, &owner, &group))
            }
        }
    }

    pub(super) fn need(&mut self, inode: &Inode, bits: u8, what: &dyn std::fmt::Display) -> R<()> {
        if self.may(inode, bits)? {
            return Ok(());
        }
        let names: String = [(READ, 'r'), (WRITE, 'w'), (SEARCH, 'x')]
            .iter()
            .filter(|(b, _)| bits & b != 0)
            .map(|(_, c)| *c)
            .collect();
        refuse(
            ErrorKind::Access,
            format!("{what}: {} may not ({names})", self.caller.user),
        )
    }

    pub(super) fn owns(&mut self, inode: &Inode) -> R<bool> {
        Ok(self.is_admin() || *self.text(inode.uid)? == *self.caller.user)
    }

    pub(super) fn need_owner(&mut self, inode: &Inode, what: &dyn std::fmt::Display) -> R<()> {
        if self.owns(inode)? {
            return Ok(());
        }
        refuse(
            ErrorKind::NotPermitted,
            format!("{what}: {} is not the owner", self.caller.user),
        )
    }

    /// Permission to take an entry away from a directory.
    pub(super) fn need_removal(&mut self, dir: &Inode, entry: &Inode, what: &dyn std::fmt::Display) -> R<()> {
        self.need(dir, WRITE | SEARCH, what)?;
        if dir.mode & STICKY != 0 && !self.owns(entry)? && !self.owns(dir)? {
            return refuse(
                ErrorKind::NotPermitted,
                format!("{what}: the directory is sticky"),
            );
        }
        Ok(())
    }

    // ---- ACLs in rows: (tag u8, number i64 big-endian, bits u8)* ----------------------------------------

    pub(super) fn acl_from(&mut self, blob: &[u8]) -> R<Acl> {
        let mut entries = Vec::with_capacity(blob.len() / 10);
        for e in blob.chunks(10) {
            let Ok([tag, a, b, c, d, e, f, g, h, bits]) = <[u8; 10]>::try_from(e) else {
                return refuse(ErrorKind::Corrupt, "an ACL of a broken length");
            };
            let id = i64::from_be_bytes([a, b, c, d, e, f, g, h]);
            let tag = match tag {
                0 => AclTag::UserObj,
                1 => AclTag::User(self.text(id)?.to_string()),
                2 => AclTag::GroupObj,
                3 => AclTag::Group(self.text(id)?.to_string()),
                4 => AclTag::Mask,
                5 => AclTag::Other,
                t => return refuse(ErrorKind::Corrupt, format!("an ACL entry of kind {t}")),
            };
            entries.push(AclEntry { tag, bits });
        }
        Ok(Acl::new(entries)?)
    }

    pub(super) fn acl_blob(&mut self, acl: &Acl) -> R<Vec<u8>> {
        let mut out = Vec::with_capacity(acl.entries().len() * 10);
        for e in acl.entries() {
            let (tag, id) = match &e.tag {
                AclTag::UserObj => (0, 0),
                AclTag::User(n) => (1, self.intern_principal(Text::User, n)?),
                AclTag::GroupObj => (2, 0),
                AclTag::Group(n) => (3, self.intern_principal(Text::Group, n)?),
                AclTag::Mask => (4, 0),
                AclTag::Other => (5, 0),
            };
            out.push(tag);
            out.extend_from_slice(&i64::to_be_bytes(id));
            out.push(e.bits);
        }
        Ok(out)
    }

    pub(super) fn intern_principal(&mut self, kind: Text, name: &str) -> R<i64> {
        super::check_principal(if kind == Text::User { "user" } else { "group" }, name)?;
        self.intern(kind, name)
    }

    // ---- attributes ------------------------------------------------------------------------------------

    pub(super) fn rule(&mut self, id: i64) -> R<CopyRule> {
        let text = self.text(id)?;
        match text.parse() {
            Ok(rule) => Ok(rule),
            Err(e) => refuse(ErrorKind::Corrupt, format!("rule {id}: {e}")),
        }
    }

    pub(super) fn attr(&mut self, i: &Inode) -> R<Attr> {
        Ok(Attr {
            ino: i.ino,
            kind: i.kind,
            mode: i.mode,
            owner: self.text(i.uid)?.to_string(),
            group: self.text(i.gid)?.to_string(),
            links: i.links,
            size: i.size,
            generation: i.generation,
            version: i.version,
            fragments: i.fragments,
            atime: i.atime,
            mtime: i.mtime,
            ctime: i.ctime,
            btime: i.btime,
            copies: self.rule(i.rule)?,
            acl: i.acl.is_some(),
        })
    }

    // ---- making ----------------------------------------------------------------------------------------

    /// A new inode in a directory: owner, group, mode and ACLs as POSIX.1e says (a default ACL of the
    /// directory replaces the umask), quota and copies from the directory. Not yet in any table.
    pub(super) fn fresh(&mut self, dir: &Inode, ino: Ino, kind: Kind, mode: u32, umask: u32) -> R<Inode> {
        let uid = self.intern(Text::User, &self.caller.user)?;
        let gid = match dir.mode & SET_GID {
            0 => {
                let group = self.own_group();
                self.intern(Text::Group, group)?
            }
            _ => dir.gid,
        };
        let mut inode = Inode {
            ino,
            kind,
            mode: mode & 0o7777,
            uid,
            gid,
            links: if kind == Kind::Dir { 2 } else { 1 },
            size: 0,
            generation: Generation::EMPTY,
            version: 0,
            fragments: 0,
            atime: self.now,
            mtime: self.now,
            ctime: self.now,
            btime: self.now,
            parent: dir.ino,
            qdir: dir.qdir,
            rule: dir.rule,
            acl: None,
            default_acl: None,
            target: None,
        };
        match &dir.default_acl {
            Some(blob) if kind != Kind::Symlink => {
                let mut acl = self.acl_from(blob)?;
                // The mode asked for bounds what the entries of owner, mask (or group) and others grant.
                acl.set_mode_bits(acl.mode_bits() & inode.mode);
                inode.mode = inode.mode & !0o777 | acl.mode_bits();
                inode.acl = if acl.is_mode() {
                    None
                } else {
                    Some(self.acl_blob(&acl)?)
                };
                inode.default_acl = (kind == Kind::Dir).then(|| blob.clone());
            }
            _ if kind != Kind::Symlink => inode.mode &= !(umask & 0o777),
            _ => {}
        }
        if kind == Kind::Dir {
            inode.mode |= dir.mode & SET_GID;
        }
        Ok(inode)
    }

    pub(super) fn insert(&mut self, i: &Inode) -> R<()> {
        self.x(
            "INSERT INTO inode (ino, kind, mode, uid, gid, nlink, size, gen, version, frags, atime, mtime, ctime, \
             btime, parent, qdir, rule, acl, dacl, target) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, \
             ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20)",
            p![
                i.ino.0, kind_number(i.kind), i.mode, i.uid, i.gid, i.links, i.size, i.generation.0, i.version,
                i.fragments, i.atime.0, i.mtime.0, i.ctime.0, i.btime.0, i.parent.0, i.qdir, i.rule,
                i.acl.as_ref(), i.default_acl.as_ref(), i.target.as_ref()
            ],
        )?;
        Ok(())
    }

    pub(super) fn insert_entry(&mut self, dir: Ino, name: &[u8], i: &Inode) -> R<()> {
        self.x(
            "INSERT INTO dirent (parent, name, ino, kind) VALUES (?1, ?2, ?3, ?4)",
            p![dir.0, name, i.ino.0, kind_number(i.kind)],
        )?;
        Ok(())
    }

    pub(super) fn delete_entry(&mut self, dir: Ino, name: &[u8]) -> R<()> {
        self.x(
            "DELETE FROM dirent WHERE parent = ?1 AND name = ?2",
            p![dir.0, name],
        )?;
        Ok(())
    }

    /// A directory's entries changed; `links` is added to its link count.
    pub(super) fn touch_dir(&mut self, dir: Ino, links: i64) -> R<()> {
        let (sql, now): (_, P<'_>) = (
            "UPDATE inode SET mtime = ?2, ctime = ?2, nlink = nlink + ?3 WHERE ino = ?1",
            self.now.0.into(),
        );
        self.x(sql, &[dir.0.into(), now, links.into()])?;
        Ok(())
    }
}
