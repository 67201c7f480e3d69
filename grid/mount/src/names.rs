//! Names and attributes: each operation is one request, durable when it is answered.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use fuser::{Errno, RenameFlags};
use kuroshio_client::v1::{self, Actor, request::Op, response::Result as Answer};

use crate::fs::{Core, unexpected};

/// Longest name, bytes.
pub const MAX_NAME_BYTES: usize = 255;

/// A name as the grid takes it.
pub fn name(name: &OsStr) -> Result<Vec<u8>, Errno> {
    if name.len() > MAX_NAME_BYTES {
        return Err(Errno::ENAMETOOLONG);
    }
    Ok(name.as_bytes().to_vec())
}

/// What of an inode is to be changed.
#[derive(Default)]
pub struct Change {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner's number.
    pub uid: Option<u32>,
    /// Group's number.
    pub gid: Option<u32>,
    /// Access time: now, or given.
    pub atime: (bool, Option<i64>),
    /// Modification time: now, or given.
    pub mtime: (bool, Option<i64>),
}

impl Change {
    /// Whether anything is to be changed.
    pub fn is_some(&self) -> bool {
        let times = [self.atime, self.mtime]
            .iter()
            .any(|(now, at)| *now || at.is_some());
        self.mode.is_some() || self.uid.is_some() || self.gid.is_some() || times
    }
}

fn path_request(path: Vec<u8>) -> v1::PathRequest {
    v1::PathRequest {
        path,
        no_follow: true,
        near_host: String::new(),
    }
}

impl Core {
    /// Attributes of a name in a directory.
    pub fn lookup(&self, dir: u64, name: Vec<u8>, actor: Option<Actor>) -> Result<v1::Attr, Errno> {
        self.ask_attr(dir, 0, actor, Op::Stat(path_request(name)))
    }

    /// Attributes of an inode.
    pub fn stat(&self, ino: u64, actor: Option<Actor>) -> Result<v1::Attr, Errno> {
        self.ask_attr(ino, 0, actor, Op::Stat(path_request(Vec::new())))
    }

    /// Attributes of an inode as the kernel is told them.
    pub fn attributes(&self, ino: u64, actor: Option<Actor>) -> Result<v1::Attr, Errno> {
        if let Some(node) = self.files.get(ino) {
            let state = node.lock();
            if state.attr.links == 0 {
                return Ok(state.shown(state.attr.clone()));
            }
        }
        Ok(self.files.shown(self.stat(ino, actor)?))
    }

    /// Where a symbolic link points.
    pub fn read_link(&self, ino: u64, actor: Option<Actor>) -> Result<Vec<u8>, Errno> {
        match self.ask(ino, 0, actor, Op::ReadLink(path_request(Vec::new())))? {
            Answer::Link(link) => Ok(link.target),
            other => Err(unexpected(&other)),
        }
    }

    /// Makes a directory.
    pub fn make_dir(
        &self,
        dir: u64,
        path: Vec<u8>,
        mode: u32,
        umask: u32,
        actor: Option<Actor>,
    ) -> Result<v1::Attr, Errno> {
        let mode = mode & 0o7777;
        self.ask_attr(
            dir,
            0,
            actor,
            Op::MakeDir(v1::MakeDirRequest { path, mode, umask }),
        )
    }

    /// Makes an empty file; with a right to write it if it is to be open.
    pub fn make_file(
        &self,
        dir: u64,
        path: Vec<u8>,
        (mode, umask): (u32, u32),
        open: bool,
        actor: Option<Actor>,
    ) -> Result<v1::OpenFileReply, Errno> {
        let request = v1::MakeFileRequest {
            path,
            mode: mode & 0o7777,
            umask,
            open,
            special: v1::Special::None.into(),
        };
        match self.ask(dir, 0, actor, Op::MakeFile(request))? {
            Answer::OpenFile(reply) => Ok(reply),
            other => Err(unexpected(&other)),
        }
    }

    /// Makes a FIFO or a socket: the kernel does all that is done with it, on this host.
    pub fn make_special(
        &self,
        dir: u64,
        path: Vec<u8>,
        special: v1::Special,
        (mode, umask): (u32, u32),
        actor: Option<Actor>,
    ) -> Result<v1::Attr, Errno> {
        let request = v1::MakeFileRequest {
            path,
            mode: mode & 0o7777,
            umask,
            open: false,
            special: special.into(),
        };
        match self.ask(dir, 0, actor, Op::MakeFile(request))? {
            Answer::OpenFile(reply) => reply.attr.ok_or(Errno::EIO),
            other => Err(unexpected(&other)),
        }
    }

    /// Makes a symbolic link.
    pub fn make_link(
        &self,
        dir: u64,
        path: Vec<u8>,
        target: Vec<u8>,
        actor: Option<Actor>,
    ) -> Result<v1::Attr, Errno> {
        self.ask_attr(dir, 0, actor, Op::Symlink(v1::SymlinkRequest { target, path }))
    }

    /// Another name for a file.
    pub fn link(&self, ino: u64, dir: u64, path: Vec<u8>, actor: Option<Actor>) -> Result<v1::Attr, Errno> {
        let existing = Vec::new();
        let attr = self.ask_attr(ino, dir, actor, Op::Link(v1::LinkRequest { existing, path }))?;
        self.files.names_changed(&attr);
        Ok(self.files.shown(attr))
    }

    /// Removes a name of a file.
    pub fn unlink(&self, dir: u64, name: Vec<u8>, actor: Option<Actor>) -> Result<(), Errno> {
        let attr = self.ask_attr(dir, 0, actor, Op::Unlink(path_request(name)))?;
        self.files.names_changed(&attr);
        Ok(())
    }

    /// Removes an empty directory.
    pub fn remove_dir(&self, dir: u64, path: Vec<u8>, actor: Option<Actor>) -> Result<(), Errno> {
        let directory = true;
        self.ask(dir, 0, actor, Op::Remove(v1::RemoveRequest { path, directory }))?;
        Ok(())
    }

    /// Renames.
    pub fn rename(
        &self,
        (dir, from): (u64, Vec<u8>),
        (to_dir, to): (u64, Vec<u8>),
        flags: RenameFlags,
        actor: Option<Actor>,
    ) -> Result<(), Errno> {
        let known = RenameFlags::RENAME_NOREPLACE | RenameFlags::RENAME_EXCHANGE;
        if !known.contains(flags) {
            return Err(Errno::EINVAL);
        }
        let request = v1::MoveRequest {
            from,
            to,
            no_replace: flags.contains(RenameFlags::RENAME_NOREPLACE),
            exchange: flags.contains(RenameFlags::RENAME_EXCHANGE),
        };
        if let Answer::Attr(replaced) = self.ask(dir, to_dir, actor, Op::Move(request))? {
            self.files.names_changed(&replaced);
        }
        Ok(())
    }

    /// Whether a user may; `bits` as `access(2)` has them.
    pub fn access(&self, ino: u64, bits: u32, actor: Option<Actor>) -> Result<(), Errno> {
        let path = Vec::new();
        self.ask(ino, 0, actor, Op::Access(v1::AccessRequest { path, bits }))?;
        Ok(())
    }

    /// Changes attributes; those that are left afterwards.
    pub fn change(&self, ino: u64, change: &Change, actor: Option<Actor>) -> Result<v1::Attr, Errno> {
        let request = v1::ChangeRequest {
            path: Vec::new(),
            mode: change.mode.map(|m| m & 0o7777),
            owner: change.uid.map(|u| self.ids.user(u)),
            group: change.gid.map(|g| self.ids.group(g)),
            atime_now: change.atime.0,
            atime_ns: change.atime.1,
            mtime_now: change.mtime.0,
            mtime_ns: change.mtime.1,
        };
        let changed = self.ask_attr(ino, 0, actor, Op::Change(request.clone()));
        let Some(node) = self.files.get(ino) else {
            return changed;
        };
        let mut state = node.lock();
        let attr = match changed {
            Ok(attr) => attr,
            // Removed, but open here: nobody else sees it any more.
            Err(e) if state.attr.links == 0 && (e == Errno::ESTALE || e == Errno::ENOENT) => {
                change_here(&state.attr, request)
            }
            Err(e) => return Err(e),
        };
        if let Some(draft) = &mut state.draft {
            let (now, at) = change.mtime;
            if now || at.is_some() {
                // What is published later has this time.
                draft.mtime_ns = attr.mtime_ns;
            }
            draft.changed_ns = draft.changed_ns.max(attr.ctime_ns);
        }
        state.take_attr(attr.clone());
        Ok(state.shown(attr))
    }
}

/// The attributes of a removed file after a change.
fn change_here(attr: &v1::Attr, request: v1::ChangeRequest) -> v1::Attr {
    let now = crate::attr::now_ns();
    let mut attr = attr.clone();
    attr.mode = request.mode.unwrap_or(attr.mode);
    attr.owner = request.owner.unwrap_or(attr.owner);
    attr.group = request.group.unwrap_or(attr.group);
    let time = |is_now: bool, at: Option<i64>, was: i64| if is_now { now } else { at.unwrap_or(was) };
    attr.atime_ns = time(request.atime_now, request.atime_ns, attr.atime_ns);
    attr.mtime_ns = time(request.mtime_now, request.mtime_ns, attr.mtime_ns);
    attr.ctime_ns = now;
    attr
}
