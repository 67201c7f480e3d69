//! Walking paths.
//!
//! A walk goes component by component from a directory, with search permission checked on each directory,
//! and follows symbolic links by putting their target in front of what is left. It either resolves the last
//! component too ([`Tx::resolve`]) or stops before it ([`Tx::walk_to_name`]), for operations that make or
//! remove a name.

use super::Tx;
use super::inode::{Inode, SEARCH};
use crate::limits::{MAX_NAME, MAX_PATH, MAX_SYMLINKS};
use crate::sql::{R, refuse};
use crate::{ErrorKind, Ino, Kind, Place};
use std::collections::VecDeque;

/// The end of a walk that stopped before the last component.
pub(super) struct Name {
    /// Directory, not locked.
    pub dir: Inode,
    /// Last component.
    pub name: Vec<u8>,
    /// Whether a slash followed it: it must be a directory.
    pub slash: bool,
    /// Symbolic links followed so far.
    followed: u32,
}

/// What is left of a walk.
struct Walk {
    at: Inode,
    left: VecDeque<Vec<u8>>,
    slash: bool,
    followed: u32,
}

impl Walk {
    /// Puts a path in front of what is left.
    fn prepend(&mut self, path: &[u8]) {
        let parts: Vec<&[u8]> = path.split(|b| *b == b'/').filter(|p| !p.is_empty()).collect();
        if self.left.is_empty() {
            self.slash |= path.ends_with(b"/");
        }
        for part in parts.into_iter().rev() {
            self.left.push_front(part.to_vec());
        }
    }
}

fn check_name(name: &[u8], place: &Place) -> R<()> {
    if name.len() > MAX_NAME {
        return refuse(ErrorKind::NameTooLong, format!("{place}: a name is at most {MAX_NAME} bytes"));
    }
    Ok(())
}

impl Tx<'_> {
    fn begin_walk(&mut self, place: &Place) -> R<Walk> {
        if place.path.len() > MAX_PATH {
            return refuse(ErrorKind::NameTooLong, format!("a path is at most {MAX_PATH} bytes"));
        }
        if place.path.contains(&0) {
            return refuse(ErrorKind::Invalid, format!("{place}: a zero byte"));
        }
        let from = if place.path.starts_with(b"/") { Ino::ROOT } else { place.dir };
        super::check_number("inode", from.0)?;
        let mut walk = Walk { at: self.get(from)?, left: VecDeque::new(), slash: false, followed: 0 };
        walk.prepend(&place.path);
        Ok(walk)
    }

    /// One component from a directory; none if there is no such name.
    fn step(&mut self, at: &Inode, name: &[u8], place: &Place) -> R<Option<Inode>> {
        if !at.is_dir() {
            return refuse(ErrorKind::NotDir, format!("{place}: not a directory on the way"));
        }
        self.need(at, SEARCH, place)?;
        match name {
            b"." => Ok(Some(at.clone())),
            b".." => self.get(at.parent).map(Some),
            _ => {
                check_name(name, place)?;
                self.entry(at.ino, name)
            }
        }
    }

    fn follow(&mut self, walk: &mut Walk, link: &Inode, place: &Place) -> R<()> {
        walk.followed += 1;
        if walk.followed > MAX_SYMLINKS {
            return refuse(ErrorKind::Loop, format!("{place}: more than {MAX_SYMLINKS} symbolic links"));
        }
        let Some(target) = &link.target else {
            return refuse(ErrorKind::Corrupt, format!("symbolic link {} has no target", link.ino));
        };
        if target.starts_with(b"/") {
            walk.at = self.get(Ino::ROOT)?;
        }
        walk.prepend(target);
        Ok(())
    }

    /// What a path leads to.
    pub(super) fn resolve(&mut self, place: &Place, follow: bool) -> R<Inode> {
        let mut walk = self.begin_walk(place)?;
        while let Some(name) = walk.left.pop_front() {
            let Some(next) = self.step(&walk.at, &name, place)? else {
                return refuse(ErrorKind::NotFound, format!("{place}: no such file or directory"));
            };
            let last = walk.left.is_empty();
            if next.kind == Kind::Symlink && (!last || follow || walk.slash) {
                self.follow(&mut walk, &next, place)?;
                continue;
            }
            walk.at = next;
        }
        if walk.slash && !walk.at.is_dir() {
            return refuse(ErrorKind::NotDir, format!("{place}: not a directory"));
        }
        Ok(walk.at)
    }

    /// The same, locked.
    pub(super) fn resolve_locked(&mut self, place: &Place, follow: bool) -> R<Inode> {
        let mut inode = self.resolve(place, follow)?;
        self.lock(&mut inode)?;
        Ok(inode)
    }

    /// The directory of the last component and its name. A path whose last component is `.`, `..`, or that
    /// has none is refused as `special` says.
    pub(super) fn walk_to_name(&mut self, place: &Place, special: ErrorKind) -> R<Name> {
        let walk = self.begin_walk(place)?;
        self.finish_to_name(walk, place, special)
    }

    fn finish_to_name(&mut self, mut walk: Walk, place: &Place, special: ErrorKind) -> R<Name> {
        loop {
            let Some(name) = walk.left.pop_front() else {
                return refuse(special, format!("{place}: has no last name"));
            };
            if walk.left.is_empty() {
                if !walk.at.is_dir() {
                    return refuse(ErrorKind::NotDir, format!("{place}: not a directory on the way"));
                }
                self.need(&walk.at, SEARCH, place)?;
                if name == b"." || name == b".." {
                    return refuse(special, format!("{place}: ends in '.' or '..'"));
                }
                check_name(&name, place)?;
                return Ok(Name { dir: walk.at, name, slash: walk.slash, followed: walk.followed });
            }
            let Some(next) = self.step(&walk.at, &name, place)? else {
                return refuse(ErrorKind::NotFound, format!("{place}: no such directory on the way"));
            };
            if next.kind == Kind::Symlink {
                self.follow(&mut walk, &next, place)?;
            } else {
                walk.at = next;
            }
        }
    }

    /// Goes on from a name that is a symbolic link, to where it leads.
    pub(super) fn walk_on(&mut self, from: Name, link: &Inode, place: &Place, special: ErrorKind) -> R<Name> {
        let mut walk = Walk { at: from.dir, left: VecDeque::new(), slash: from.slash, followed: from.followed };
        self.follow(&mut walk, link, place)?;
        self.finish_to_name(walk, place, special)
    }

    /// Locks the directory of a name and makes sure that it is still there.
    pub(super) fn lock_dir(&mut self, dir: &mut Inode, place: &Place) -> R<()> {
        self.lock(dir)?;
        if dir.links == 0 {
            return refuse(ErrorKind::NotFound, format!("{place}: the directory was removed"));
        }
        Ok(())
    }
}
