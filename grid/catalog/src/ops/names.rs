//! Names: looking up, listing, making, linking, removing.

use super::Tx;
use super::inode::{Inode, READ, SEARCH, WRITE, columns, kind_of};
use super::quota::Charge;
use crate::limits::{MAX_DEPTH, MAX_LINKS, MAX_TARGET};
use crate::sql::{R, p, refuse};
use crate::{
    Access, Attr, Create, Created, DirEntry, DirPage, ErrorKind, Ino, Kind, Link, MakeDir, MakeSpecial,
    Place, ReadDir, Symlink,
};

impl Tx<'_> {
    pub(super) fn stat(&mut self, place: &Place, follow: bool) -> R<Attr> {
        let inode = self.resolve(place, follow)?;
        self.attr(&inode)
    }

    pub(super) fn check_access(&mut self, place: &Place, access: Access) -> R<Attr> {
        let inode = self.resolve(place, true)?;
        self.need(&inode, access.bits(), place)?;
        self.attr(&inode)
    }

    pub(super) fn read_link(&mut self, place: &Place) -> R<Vec<u8>> {
        match self.resolve(place, false)?.target {
            Some(target) => Ok(target),
            None => refuse(ErrorKind::Invalid, format!("{place}: not a symbolic link")),
        }
    }

    pub(super) fn read_dir(&mut self, op: &ReadDir) -> R<DirPage> {
        super::check_page(op.limit)?;
        let dir = self.resolve(&op.place, true)?;
        if !dir.is_dir() {
            return refuse(ErrorKind::NotDir, format!("{}: not a directory", op.place));
        }
        self.need(&dir, READ, &op.place)?;
        // No name is empty, so all names are after the empty one.
        let after = op.after.as_deref().unwrap_or_default();
        let one_more = op.limit + 1;
        let params = p![dir.ino.0, after, one_more];
        let rows = if op.attrs {
            self.need(&dir, SEARCH, &op.place)?;
            let sql = concat!(
                "SELECT d.name, ",
                columns!(),
                " FROM dirent d JOIN inode i ON i.ino = d.ino WHERE d.parent = ?1 AND d.name > ?2 \
                 ORDER BY d.name LIMIT ?3"
            );
            self.q(sql, params)?
        } else {
            let sql =
                "SELECT name, ino, kind FROM dirent WHERE parent = ?1 AND name > ?2 ORDER BY name LIMIT ?3";
            self.q(sql, params)?
        };
        let more = rows.len() > op.limit as usize;
        let mut entries = Vec::with_capacity(rows.len());
        for row in rows.iter().take(op.limit as usize) {
            let attr = if op.attrs {
                let inode = Inode::from_row(row, 1)?;
                Some(self.attr(&inode)?)
            } else {
                None
            };
            entries.push(DirEntry {
                name: row.bytes(0)?,
                ino: Ino(row.num(1)?),
                kind: kind_of(row.int(2)?)?,
                attr,
            });
        }
        Ok(DirPage { entries, more })
    }

    pub(super) fn path_of(&mut self, ino: Ino) -> R<Vec<u8>> {
        self.need_service("the path of an inode")?;
        super::check_number("inode", ino.0)?;
        let mut at = self.get(ino)?;
        let mut names = Vec::new();
        while at.ino != Ino::ROOT {
            if names.len() as u32 >= MAX_DEPTH {
                return refuse(ErrorKind::Limit, format!("inode {ino}: deeper than {MAX_DEPTH}"));
            }
            let sql = "SELECT name FROM dirent WHERE parent = ?1 AND ino = ?2 LIMIT 1";
            let Some(row) = self.one(sql, p![at.parent.0, at.ino.0])? else {
                return refuse(
                    ErrorKind::NotFound,
                    format!("inode {ino}: no name of it is known"),
                );
            };
            names.push(row.bytes(0)?);
            at = self.get(at.parent)?;
        }
        if names.is_empty() {
            return Ok(b"/".to_vec());
        }
        let mut path = Vec::new();
        for name in names.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        Ok(path)
    }

    /// Charges a new inode and puts it and its name into the tables.
    pub(super) fn make(&mut self, dir: &Inode, name: &[u8], inode: &Inode) -> R<Attr> {
        self.charge(&Charge::of(inode, dir.qdir, 1, inode.charged_bytes()))?;
        self.insert(inode)?;
        self.insert_entry(dir.ino, name, inode)?;
        self.touch_dir(dir.ino, i64::from(inode.is_dir()))?;
        self.attr(inode)
    }

    pub(super) fn make_dir(&mut self, op: &MakeDir) -> R<Attr> {
        let mut at = self.walk_to_name(&op.place, ErrorKind::Exists)?;
        self.lock_dir(&mut at.dir, &op.place)?;
        if self.entry(at.dir.ino, &at.name)?.is_some() {
            return refuse(ErrorKind::Exists, format!("{}: is there already", op.place));
        }
        self.need(&at.dir, WRITE | SEARCH, &op.place)?;
        let ino = Ino(self.new_id()?);
        let inode = self.fresh(&at.dir, ino, Kind::Dir, op.mode, op.umask)?;
        self.make(&at.dir, &at.name, &inode)
    }

    pub(super) fn make_special(&mut self, op: &MakeSpecial) -> R<Attr> {
        let place = &op.place;
        if !op.kind.is_special() {
            return refuse(
                ErrorKind::Invalid,
                format!("{place}: neither a FIFO nor a socket"),
            );
        }
        let mut at = self.walk_to_name(place, ErrorKind::Exists)?;
        self.lock_dir(&mut at.dir, place)?;
        if self.entry(at.dir.ino, &at.name)?.is_some() {
            return refuse(ErrorKind::Exists, format!("{place}: is there already"));
        }
        if at.slash {
            return refuse(
                ErrorKind::NotFound,
                format!("{place}: a name with a slash is a directory's"),
            );
        }
        self.need(&at.dir, WRITE | SEARCH, place)?;
        let ino = Ino(self.new_id()?);
        let inode = self.fresh(&at.dir, ino, op.kind, op.mode, op.umask)?;
        self.make(&at.dir, &at.name, &inode)
    }

    pub(super) fn create(&mut self, op: &Create) -> R<Created> {
        let place = &op.place;
        let mut at = self.walk_to_name(place, ErrorKind::IsDir)?;
        loop {
            self.lock_dir(&mut at.dir, place)?;
            let Some(there) = self.entry_locked(at.dir.ino, &at.name)? else {
                break;
            };
            if op.exclusive {
                return refuse(ErrorKind::Exists, format!("{place}: is there already"));
            }
            match there.kind {
                Kind::Dir => return refuse(ErrorKind::IsDir, format!("{place}: a directory")),
                Kind::Symlink => at = self.walk_on(at, &there, place, ErrorKind::IsDir)?,
                _ if at.slash => {
                    return refuse(ErrorKind::NotDir, format!("{place}: not a directory"));
                }
                Kind::Fifo | Kind::Socket if op.open => {
                    let text = format!("{place}: a FIFO or socket has no content");
                    return refuse(ErrorKind::Invalid, text);
                }
                Kind::File | Kind::Fifo | Kind::Socket => {
                    let draft = if op.open {
                        self.need(&there, WRITE, place)?;
                        Some(self.new_draft(&there)?)
                    } else {
                        None
                    };
                    return Ok(Created {
                        attr: self.attr(&there)?,
                        created: false,
                        draft,
                    });
                }
            }
        }
        if at.slash {
            return refuse(
                ErrorKind::IsDir,
                format!("{place}: a name with a slash is a directory's"),
            );
        }
        self.need(&at.dir, WRITE | SEARCH, place)?;
        let ino = Ino(self.new_id()?);
        let inode = self.fresh(&at.dir, ino, Kind::File, op.mode, op.umask)?;
        let attr = self.make(&at.dir, &at.name, &inode)?;
        let draft = if op.open {
            Some(self.new_draft(&inode)?)
        } else {
            None
        };
        Ok(Created {
            attr,
            created: true,
            draft,
        })
    }

    pub(super) fn symlink(&mut self, op: &Symlink) -> R<Attr> {
        if op.target.is_empty() || op.target.contains(&0) {
            return refuse(
                ErrorKind::Invalid,
                format!("{}: a target has no zero byte and is not empty", op.place),
            );
        }
        if op.target.len() > MAX_TARGET {
            return refuse(
                ErrorKind::NameTooLong,
                format!("{}: a target is at most {MAX_TARGET} bytes", op.place),
            );
        }
        let mut at = self.walk_to_name(&op.place, ErrorKind::Exists)?;
        self.lock_dir(&mut at.dir, &op.place)?;
        if self.entry(at.dir.ino, &at.name)?.is_some() {
            return refuse(ErrorKind::Exists, format!("{}: is there already", op.place));
        }
        if at.slash {
            return refuse(
                ErrorKind::NotFound,
                format!("{}: a name with a slash is a directory's", op.place),
            );
        }
        self.need(&at.dir, WRITE | SEARCH, &op.place)?;
        let ino = Ino(self.new_id()?);
        let mut inode = self.fresh(&at.dir, ino, Kind::Symlink, 0o777, 0)?;
        inode.size = op.target.len() as u64;
        inode.target = Some(op.target.clone());
        self.make(&at.dir, &at.name, &inode)
    }

    pub(super) fn link(&mut self, op: &Link) -> R<Attr> {
        let mut from = self.resolve(&op.from, false)?;
        let mut at = self.walk_to_name(&op.to, ErrorKind::Exists)?;
        self.lock_dir(&mut at.dir, &op.to)?;
        self.lock(&mut from)?;
        if from.is_dir() {
            return refuse(
                ErrorKind::NotPermitted,
                format!("{}: directories have one name", op.from),
            );
        }
        if from.links == 0 {
            return refuse(ErrorKind::NotFound, format!("{}: was removed", op.from));
        }
        if self.entry(at.dir.ino, &at.name)?.is_some() {
            return refuse(ErrorKind::Exists, format!("{}: is there already", op.to));
        }
        if at.slash {
            return refuse(
                ErrorKind::NotFound,
                format!("{}: a name with a slash is a directory's", op.to),
            );
        }
        self.need(&at.dir, WRITE | SEARCH, &op.to)?;
        if from.links >= MAX_LINKS {
            return refuse(
                ErrorKind::TooManyLinks,
                format!("{}: a file has at most {MAX_LINKS} names", op.from),
            );
        }
        if from.qdir != at.dir.qdir {
            return refuse(
                ErrorKind::CrossQuota,
                format!("{}: is under another directory's quota", op.to),
            );
        }
        self.insert_entry(at.dir.ino, &at.name, &from)?;
        self.touch_dir(at.dir.ino, 0)?;
        from.links += 1;
        from.ctime = self.now;
        self.x(
            "UPDATE inode SET nlink = nlink + 1, ctime = ?2 WHERE ino = ?1",
            p![from.ino.0, self.now.0],
        )?;
        self.attr(&from)
    }

    pub(super) fn unlink(&mut self, place: &Place) -> R<Attr> {
        let mut at = self.walk_to_name(place, ErrorKind::IsDir)?;
        self.lock_dir(&mut at.dir, place)?;
        let Some(mut inode) = self.entry_locked(at.dir.ino, &at.name)? else {
            return refuse(ErrorKind::NotFound, format!("{place}: no such file"));
        };
        if inode.is_dir() {
            return refuse(ErrorKind::IsDir, format!("{place}: a directory"));
        }
        if at.slash {
            return refuse(ErrorKind::NotDir, format!("{place}: not a directory"));
        }
        self.need_removal(&at.dir, &inode, place)?;
        self.delete_entry(at.dir.ino, &at.name)?;
        self.touch_dir(at.dir.ino, 0)?;
        self.lose_name(&mut inode)?;
        self.attr(&inode)
    }

    /// A file or symbolic link lost one of its names (the entry is gone already).
    pub(super) fn lose_name(&mut self, inode: &mut Inode) -> R<()> {
        inode.links = inode.links.saturating_sub(1);
        inode.ctime = self.now;
        if inode.links == 0 {
            self.charge(&Charge::of(inode, inode.qdir, -1, -inode.charged_bytes()))?;
            if inode.kind != Kind::File {
                // Nobody can have it open here.
                return self.erase_inode(inode.ino);
            }
            if inode.fragments > 0 {
                self.x("DELETE FROM off_copies WHERE ino = ?1", p![inode.ino.0])?;
            }
            self.bury(inode.ino, inode.generation, true)?;
        }
        self.x(
            "UPDATE inode SET nlink = ?2, ctime = ?3 WHERE ino = ?1",
            p![inode.ino.0, inode.links, self.now.0],
        )?;
        Ok(())
    }

    pub(super) fn remove_dir(&mut self, place: &Place) -> R<()> {
        let last = place.path.rsplit(|b| *b == b'/').find(|p| !p.is_empty());
        let special = match last {
            Some(b"..") => ErrorKind::NotEmpty,
            Some(b".") => ErrorKind::Invalid,
            _ => ErrorKind::Busy,
        };
        let mut at = self.walk_to_name(place, special)?;
        self.lock_dir(&mut at.dir, place)?;
        let Some(inode) = self.entry_locked(at.dir.ino, &at.name)? else {
            return refuse(ErrorKind::NotFound, format!("{place}: no such directory"));
        };
        if !inode.is_dir() {
            return refuse(ErrorKind::NotDir, format!("{place}: not a directory"));
        }
        self.need_removal(&at.dir, &inode, place)?;
        self.need_empty(&inode, place)?;
        self.delete_entry(at.dir.ino, &at.name)?;
        self.erase_dir(&inode)?;
        self.touch_dir(at.dir.ino, -1)
    }

    pub(super) fn need_empty(&mut self, dir: &Inode, place: &Place) -> R<()> {
        if self
            .one("SELECT ino FROM dirent WHERE parent = ?1 LIMIT 1", p![dir.ino.0])?
            .is_some()
        {
            return refuse(ErrorKind::NotEmpty, format!("{place}: not empty"));
        }
        Ok(())
    }

    /// The row of an empty directory without a name goes, and what it was charged.
    pub(super) fn erase_dir(&mut self, dir: &Inode) -> R<()> {
        let charged = self.charged_dir(dir)?;
        self.charge(&Charge::of(dir, charged, -1, 0))?;
        if dir.qdir == dir.ino.0 as i64 {
            self.x("DELETE FROM usage WHERE id = ?1", p![dir.ino.0])?;
        }
        self.erase_inode(dir.ino)
    }

    pub(super) fn erase_inode(&mut self, ino: Ino) -> R<()> {
        self.x("DELETE FROM xattr WHERE ino = ?1", p![ino.0])?;
        self.x("DELETE FROM inode WHERE ino = ?1", p![ino.0])?;
        Ok(())
    }
}

impl Inode {
    /// Bytes that count against quotas.
    pub(super) fn charged_bytes(&self) -> i64 {
        if self.kind == Kind::File {
            i64::try_from(self.size).unwrap_or(i64::MAX)
        } else {
            0
        }
    }
}
