//! What the kernel's requests have in common: their answers, and those that take several steps.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, PoisonError};

use fuser::{
    Errno, FileHandle, FopenFlags, Generation, INodeNo, OpenFlags, ReplyAttr, ReplyEmpty, ReplyEntry,
    ReplyXattr, Request,
};
use kuroshio_client::v1::{self, Actor};

use crate::files::Node;
use crate::fs::Fs;
use crate::names::{Change, name};

/// Inode numbers never come back: one generation is enough.
pub const GENERATION: Generation = Generation(0);
/// Set-user-ID and set-group-ID.
const SET_IDS: u32 = 0o6000;

impl Fs {
    /// Answers with a name's attributes.
    pub fn entry(&self, reply: ReplyEntry, found: Result<v1::Attr, Errno>) {
        match found {
            Ok(attr) => {
                let attr = self.0.files.shown(attr);
                reply.entry(&self.0.options.cache, &self.0.file_attr(&attr), GENERATION);
            }
            Err(e) => reply.error(e),
        }
    }

    /// Answers with nothing.
    pub fn empty(reply: ReplyEmpty, done: Result<(), Errno>) {
        match done {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(e),
        }
    }

    /// Answers with attributes.
    pub fn attr(&self, reply: ReplyAttr, found: Result<v1::Attr, Errno>) {
        match found {
            Ok(attr) => reply.attr(&self.0.options.cache, &self.0.file_attr(&attr)),
            Err(e) => reply.error(e),
        }
    }

    /// Answers with bytes, or how many they are.
    pub fn bytes(reply: ReplyXattr, size: u32, found: Result<Vec<u8>, Errno>) {
        match found {
            Ok(bytes) if size == 0 => reply.size(u32::try_from(bytes.len()).unwrap_or(u32::MAX)),
            Ok(bytes) if bytes.len() <= size as usize => reply.data(&bytes),
            Ok(_) => reply.error(Errno::ERANGE),
            Err(e) => reply.error(e),
        }
    }

    /// Makes a file and opens it.
    pub fn create_file(
        &self,
        request: &Request,
        parent: INodeNo,
        path: &OsStr,
        modes: (u32, u32),
        flags: i32,
    ) -> Result<(v1::Attr, FopenFlags), Errno> {
        let core = &self.0;
        let (dir, actor, path) = (core.grid_ino(parent), core.actor(request), name(path)?);
        match core.make_file(dir, path.clone(), modes, true, actor.clone()) {
            Ok(reply) => {
                let attr = core.opened_new(reply, actor)?;
                Ok((attr, FopenFlags::FOPEN_KEEP_CACHE))
            }
            // Somebody else was quicker.
            Err(e) if e == Errno::EEXIST && flags & libc::O_EXCL == 0 => {
                let attr = core.lookup(dir, path, actor.clone())?;
                if attr.kind() != v1::Kind::File {
                    // The kernel looks the name up again and sees what it is.
                    return Err(Errno::ESTALE);
                }
                let flags = core.open(attr.inode, OpenFlags(flags), actor)?;
                Ok((attr, flags))
            }
            Err(e) => Err(e),
        }
    }

    /// Changes size and attributes.
    pub fn set_attributes(
        &self,
        ino: u64,
        size: Option<u64>,
        has_handle: bool,
        change: &Change,
        actor: Option<Actor>,
    ) -> Result<v1::Attr, Errno> {
        let core = &self.0;
        if let Some(size) = size {
            match core.files.get(ino).filter(|_| has_handle) {
                Some(node) => core.set_size(&node, size)?,
                None => core.set_size_of(ino, size, actor.clone())?,
            }
        }
        if change.is_some() {
            return core.change(ino, change, actor);
        }
        core.attributes(ino, actor)
    }

    /// Gives the entries of a directory from `offset` on to `add`, until that is full.
    pub fn list(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut add: impl FnMut(INodeNo, u64, &OsStr, &v1::Attr, bool) -> bool,
    ) -> Result<(), Errno> {
        let core = &self.0;
        let listing = core.dirs.get(handle.0).ok_or(Errno::EBADF)?;
        let mut listing = listing.lock().unwrap_or_else(PoisonError::into_inner);
        if offset == 0 {
            *listing = Default::default();
        }
        let actor = core.actor(request);
        let here = v1::Attr {
            inode: core.grid_ino(ino),
            kind: v1::Kind::Directory.into(),
            ..v1::Attr::default()
        };
        let mut at = offset;
        loop {
            let full = match at {
                0 => add(ino, 1, OsStr::new("."), &here, true),
                1 => add(INodeNo::ROOT, 2, OsStr::new(".."), &here, true),
                at => {
                    let index = usize::try_from(at - 2).map_err(|_| Errno::EINVAL)?;
                    if !listing.has(core, here.inode, index, &actor)? {
                        return Ok(());
                    }
                    let Some(entry) = listing.entries.get(index) else {
                        return Ok(());
                    };
                    let attr = entry.attr.clone().unwrap_or_default();
                    let attr = core.files.shown(attr);
                    let shown = core.shown_ino(attr.inode);
                    add(
                        shown,
                        at + 1,
                        OsStr::from_bytes(&entry.name),
                        &attr,
                        listing.plain,
                    )
                }
            };
            if full {
                return Ok(());
            }
            at += 1;
        }
    }

    /// Whoever writes to a program takes its privilege away, at once.
    pub fn drop_set_ids(&self, node: &Arc<Node>) {
        let mode = node.lock().attr.mode;
        if mode & SET_IDS == 0 {
            return;
        }
        let group = if mode & 0o010 != 0 { 0o2000 } else { 0 };
        let change = Change {
            mode: Some(mode & !(0o4000 | group)),
            ..Change::default()
        };
        // Where the caller is not the owner, the commit does it.
        if self.0.change(node.ino, &change, None).is_ok() {
            self.0.forget_attributes(node.ino);
        }
    }
}
