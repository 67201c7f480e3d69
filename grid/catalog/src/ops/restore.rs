//! A catalog that has lost its memory: files by the numbers that nodes know their objects by.
//!
//! Nodes name objects after inodes and generations, so a file whose objects are to be found again must get the number
//! that it had; and numbers that objects bear must not be given to anything else.

use super::content::whole;
use super::{Effect, Tx};
use crate::sql::{Dialect, R, p, refuse};
use crate::state::Text;
use crate::{Attr, Draft, ErrorKind, Generation, Handle, Kind, RestoreFile};
use std::collections::HashMap;

impl Tx<'_> {
    /// No number up to `highest` is given out from now on; the answer is the first one that was not given out before, or,
    /// where several services have numbers of their own, not reserved.
    pub(super) fn raise_numbers(&mut self, highest: u64) -> R<u64> {
        self.need_service("numbers")?;
        super::check_number("number", highest)?;
        let Some(row) = self.one("SELECT value FROM meta WHERE name = 'ids'", p![])? else {
            return refuse(ErrorKind::Corrupt, "table meta has no row 'ids'");
        };
        let reserved: u64 = row.num(0)?;
        let first = highest + 1;
        if highest >= reserved {
            self.x(
                "UPDATE meta SET value = ?1 WHERE name = 'ids' AND value < ?1",
                p![first],
            )?;
        }
        let next = match self.sql.dialect() {
            Dialect::Sqlite => self.shared.ids.next().unwrap_or(reserved),
            Dialect::Postgres => reserved,
        };
        self.effects.push(Effect::Numbers(first));
        Ok(next)
    }

    pub(super) fn restore_file(&mut self, op: &RestoreFile) -> R<Attr> {
        self.need_service("restored files")?;
        super::check_number("inode", op.ino.0)?;
        super::check_number("generation", op.generation.0)?;
        let place = &op.place;
        let holders = self.check_new(&op.fragments)?;
        let sizes: HashMap<u32, u64> = op.fragments.iter().map(|f| (f.index, f.size)).collect();
        let size = whole(&sizes)?;
        let mut at = self.walk_to_name(place, ErrorKind::IsDir)?;
        if at.slash {
            return refuse(
                ErrorKind::IsDir,
                format!("{place}: a name with a slash is a directory's"),
            );
        }
        self.lock_dir(&mut at.dir, place)?;
        if self.entry_locked(at.dir.ino, &at.name)?.is_some() {
            return refuse(ErrorKind::Exists, format!("{place}: is there already"));
        }
        let used = "SELECT 1 FROM fragment WHERE ino = ?1 LIMIT 1";
        if op.generation == Generation::EMPTY
            || self.find(op.ino)?.is_some()
            || self.one(used, p![op.ino.0])?.is_some()
        {
            return refuse(ErrorKind::Stale, format!("inode {} is in use", op.ino));
        }
        let mut inode = self.fresh(&at.dir, op.ino, Kind::File, 0, 0)?;
        inode.uid = self.intern_principal(Text::User, &op.owner)?;
        inode.gid = self.intern_principal(Text::Group, &op.group)?;
        inode.mode = op.mode & 0o777;
        inode.acl = None;
        inode.rule = self.intern(Text::Rule, &op.rule.to_string())?;
        inode.size = size;
        inode.generation = op.generation;
        inode.version = 1;
        inode.fragments = u32::try_from(op.fragments.len()).unwrap_or(u32::MAX);
        inode.mtime = op.mtime;
        let attr = self.make(&at.dir, &at.name, &inode)?;
        let draft = Draft {
            ino: op.ino,
            generation: op.generation,
            handle: Handle(0),
            base: Generation::EMPTY,
        };
        for (f, h) in op.fragments.iter().zip(&holders) {
            self.insert_fragment(&draft, f, h)?;
            self.reckon_new(&inode, op.generation, f, h)?;
        }
        Ok(attr)
    }
}
