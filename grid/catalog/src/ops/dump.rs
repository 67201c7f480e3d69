//! The catalog's own knowledge, row by row, in one transaction; in pages, so that little of it is in memory.

use super::Tx;
use super::inode::{Inode, columns};
use crate::dump::{DumpRow, DumpSink, DumpedInode};
use crate::sql::{Dialect, R, Row, p, refuse};
use crate::{ErrorKind, Ino, QuotaKind};

/// Rows of one query.
const PAGE: u32 = 1000;

impl Tx<'_> {
    /// Gives all rows to the sink; the answer is how many.
    pub(super) fn dump(&mut self, sink: &DumpSink) -> R<u64> {
        self.need_service("dumps")?;
        let Some(row) = self.one("SELECT value FROM meta WHERE name = 'ids'", p![])? else {
            return refuse(ErrorKind::Corrupt, "table meta has no row 'ids'");
        };
        let reserved = row.num(0)?;
        let next = match self.sql.dialect() {
            Dialect::Sqlite => self.shared.ids.next().unwrap_or(reserved),
            Dialect::Postgres => reserved,
        };
        let taken = self.now;
        let mut rows = 0;
        give(sink, DumpRow::Begin { next, taken }, &mut rows)?;
        self.dump_inodes(sink, &mut rows)?;
        self.dump_names(sink, &mut rows)?;
        self.dump_xattrs(sink, &mut rows)?;
        self.dump_bounds(sink, &mut rows)?;
        Ok(rows)
    }

    fn dump_inodes(&mut self, sink: &DumpSink, rows: &mut u64) -> R<()> {
        let sql = concat!(
            "SELECT ",
            columns!(),
            " FROM inode i WHERE i.ino > ?1 AND i.nlink > 0 ORDER BY i.ino LIMIT ?2"
        );
        let mut after = 0;
        loop {
            let page = self.q(sql, p![after, PAGE])?;
            let Some(last) = page.last() else { return Ok(()) };
            after = last.int(0)?;
            for row in &page {
                let inode = Inode::from_row(row, 0)?;
                let acl = inode.acl.as_deref().map(|b| self.acl_from(b)).transpose()?;
                let default_acl = inode.default_acl.as_deref();
                let default_acl = default_acl.map(|b| self.acl_from(b)).transpose()?;
                let dumped = DumpedInode {
                    attr: self.attr(&inode)?,
                    parent: inode.parent,
                    acl,
                    default_acl,
                    target: inode.target,
                };
                give(sink, DumpRow::Inode(Box::new(dumped)), rows)?;
            }
        }
    }

    fn dump_names(&mut self, sink: &DumpSink, rows: &mut u64) -> R<()> {
        let sql = "SELECT parent, name, ino FROM dirent WHERE (parent, name) > (?1, ?2) ORDER BY parent, name LIMIT ?3";
        let mut after = (0, Vec::new());
        loop {
            let page = self.q(sql, p![after.0, &after.1, PAGE])?;
            let Some(last) = page.last() else { return Ok(()) };
            after = (last.int(0)?, last.bytes(1)?);
            for row in &page {
                let name = DumpRow::Name {
                    parent: Ino(row.num(0)?),
                    name: row.bytes(1)?,
                    ino: Ino(row.num(2)?),
                };
                give(sink, name, rows)?;
            }
        }
    }

    fn dump_xattrs(&mut self, sink: &DumpSink, rows: &mut u64) -> R<()> {
        let sql =
            "SELECT ino, name, value FROM xattr WHERE (ino, name) > (?1, ?2) ORDER BY ino, name LIMIT ?3";
        let mut after = (0, Vec::new());
        loop {
            let page = self.q(sql, p![after.0, &after.1, PAGE])?;
            let Some(last) = page.last() else { return Ok(()) };
            after = (last.int(0)?, last.bytes(1)?);
            for row in &page {
                let xattr = DumpRow::Xattr {
                    ino: Ino(row.num(0)?),
                    name: row.bytes(1)?,
                    value: row.bytes(2)?,
                };
                give(sink, xattr, rows)?;
            }
        }
    }

    /// Bounds of users and groups, and every directory whose usage is counted, bound or not.
    fn dump_bounds(&mut self, sink: &DumpSink, rows: &mut u64) -> R<()> {
        let page = self.q(
            "SELECT u.kind, u.id, t.text, u.max_files, u.max_bytes FROM usage u \
             LEFT JOIN intern t ON t.id = u.id AND t.kind = u.kind AND u.kind < 2 \
             WHERE u.kind = 2 OR u.max_files IS NOT NULL OR u.max_bytes IS NOT NULL ORDER BY u.kind, u.id",
            p![],
        )?;
        for row in &page {
            give(sink, bound(row)?, rows)?;
        }
        Ok(())
    }
}

fn bound(row: &Row) -> R<DumpRow> {
    let kind = match row.int(0)? {
        0 => QuotaKind::User,
        1 => QuotaKind::Group,
        _ => QuotaKind::Dir,
    };
    let name = if kind == QuotaKind::Dir {
        row.int(1)?.to_string()
    } else {
        row.text(2)?
    };
    Ok(DumpRow::Bound {
        kind,
        name,
        max_files: row.opt(3)?,
        max_bytes: row.opt(4)?,
    })
}

fn give(sink: &DumpSink, row: DumpRow, rows: &mut u64) -> R<()> {
    *rows += 1;
    match sink.give(row) {
        Ok(()) => Ok(()),
        Err(e) => refuse(ErrorKind::Io, format!("the dump cannot be kept: {e}")),
    }
}
