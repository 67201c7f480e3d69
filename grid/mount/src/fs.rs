//! What the kernel asks, each request in the thread that read it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use fuser::{
    AccessFlags, BsdFileFlags, Errno, FileAttr, FileHandle, Filesystem, FopenFlags, INodeNo, InitFlags,
    KernelConfig, LockOwner, Notifier, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite,
    ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use kuroshio_client::Grid;
use kuroshio_client::v1::{self, Actor, request::Op, response::Result as Answer};

use crate::answer::GENERATION;
use crate::attr::{file_attr, kind, time_to_set};
use crate::dir::Dirs;
use crate::errno::errno;
use crate::fetch::{Pool, Workers};
use crate::files::{Files, Node};
use crate::ids::{Ids, Whose};
use crate::mount::Options;
use crate::names::{Change, MAX_NAME_BYTES, name};

/// Bytes of one write request.
const MAX_WRITE_BYTES: u32 = 1024 * 1024;
/// Requests of the kernel on their way that nobody waits for (read-ahead).
const BACKGROUND: u16 = 64;
/// What `statfs` counts in, bytes.
const STATFS_BLOCK: u32 = 4096;
/// How long the kernel keeps what is never right.
const NOT_KEPT: Duration = Duration::ZERO;

/// A mounted grid.
pub struct Core {
    /// The connection to the metadata service.
    pub grid: Grid,
    /// Users and groups.
    pub ids: Ids,
    /// As it was mounted.
    pub options: Options,
    /// This host's name: replicas here are read first.
    pub host: String,
    /// The grid's inode that is the mount's root.
    pub root: u64,
    /// Open files.
    pub files: Files,
    /// Open directories.
    pub dirs: Dirs,
    /// Connections to nodes.
    pub pool: Pool,
    /// Threads that fetch ahead.
    pub workers: Workers,
    /// To tell the kernel what is not right any more.
    pub notifier: OnceLock<Notifier>,
}

/// An answer to another request than was asked.
pub fn unexpected(answer: &Answer) -> Errno {
    let text: String = format!("{answer:?}").chars().take(80).collect();
    tracing::error!("the metadata service answered with something else than was asked for: {text}");
    Errno::EIO
}

impl Core {
    /// Asks the metadata service: paths begin at `at` (the second one at `to`).
    pub fn ask(&self, at: u64, to: u64, actor: Option<Actor>, op: Op) -> Result<Answer, Errno> {
        let context = v1::Context {
            inode: at,
            to_inode: to,
            actor,
        };
        self.grid.call_in(op, context).map_err(|e| {
            let number = errno(&e);
            if number == Errno::EIO {
                tracing::warn!("{e}");
            }
            number
        })
    }

    /// As [`Self::ask`], for attributes.
    pub fn ask_attr(&self, at: u64, to: u64, actor: Option<Actor>, op: Op) -> Result<v1::Attr, Errno> {
        match self.ask(at, to, actor, op)? {
            Answer::Attr(attr) => Ok(attr),
            other => Err(unexpected(&other)),
        }
    }

    /// The kernel's cached attributes of an inode are not right any more.
    pub fn forget_attributes(&self, ino: u64) {
        if let Some(notifier) = self.notifier.get() {
            // The kernel may have forgotten the inode meanwhile.
            let _ = notifier.inval_inode(self.shown_ino(ino), -1, 0);
        }
    }

    /// The inode number in the grid.
    pub fn grid_ino(&self, ino: INodeNo) -> u64 {
        if ino == INodeNo::ROOT { self.root } else { ino.0 }
    }

    /// The inode number that the kernel knows.
    pub fn shown_ino(&self, ino: u64) -> INodeNo {
        if ino == self.root {
            INodeNo::ROOT
        } else {
            INodeNo(ino)
        }
    }

    /// For whom a request is asked.
    pub fn actor(&self, request: &Request) -> Option<Actor> {
        self.ids.actor(request.uid(), request.gid(), request.pid())
    }

    /// Attributes as the kernel wants them.
    pub fn file_attr(&self, attr: &v1::Attr) -> FileAttr {
        file_attr(attr, self.shown_ino(attr.inode), &self.ids)
    }

    /// An open file.
    pub fn node(&self, ino: INodeNo) -> Result<Arc<Node>, Errno> {
        self.files.get(self.grid_ino(ino)).ok_or(Errno::EBADF)
    }
}

/// The file system as the kernel's requests come in.
pub struct Fs(pub Arc<Core>);

impl Filesystem for Fs {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let mut wanted = InitFlags::FUSE_ATOMIC_O_TRUNC
            | InitFlags::FUSE_DONT_MASK
            | InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_READDIRPLUS_AUTO
            | InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_HANDLE_KILLPRIV_V2
            | InitFlags::FUSE_EXPLICIT_INVAL_DATA
            | InitFlags::FUSE_CACHE_SYMLINKS
            | InitFlags::FUSE_ASYNC_DIO
            | InitFlags::FUSE_BIG_WRITES;
        if self.0.ids.whose() == Whose::All {
            // The kernel checks modes and access lists too: what it has cached is not shown to others.
            wanted |= InitFlags::FUSE_POSIX_ACL;
        }
        // An old kernel does without what it has not.
        let _ = config.add_capabilities(wanted & config.capabilities());
        let _ = config.set_max_write(MAX_WRITE_BYTES);
        let _ = config.set_max_background(BACKGROUND);
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, path: &OsStr, reply: ReplyEntry) {
        let found = name(path).and_then(|n| self.0.lookup(self.0.grid_ino(parent), n, self.0.actor(request)));
        self.entry(reply, found);
    }

    fn getattr(&self, request: &Request, ino: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        self.attr(
            reply,
            self.0.attributes(self.0.grid_ino(ino), self.0.actor(request)),
        );
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let change = Change {
            mode,
            uid,
            gid,
            atime: time_to_set(atime),
            mtime: time_to_set(mtime),
        };
        let (ino, actor) = (self.0.grid_ino(ino), self.0.actor(request));
        self.attr(
            reply,
            self.set_attributes(ino, size, handle.is_some(), &change, actor),
        );
    }

    fn readlink(&self, request: &Request, ino: INodeNo, reply: ReplyData) {
        match self.0.read_link(self.0.grid_ino(ino), self.0.actor(request)) {
            Ok(target) => reply.data(&target),
            Err(e) => reply.error(e),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        path: &OsStr,
        mode: u32,
        umask: u32,
        _rdev: u32,
        reply: ReplyEntry,
    ) {
        let (dir, actor) = (self.0.grid_ino(parent), self.0.actor(request));
        let special = match mode & libc::S_IFMT {
            0 | libc::S_IFREG => None,
            libc::S_IFIFO => Some(v1::Special::Fifo),
            libc::S_IFSOCK => Some(v1::Special::Socket),
            // The catalog has no devices; mknod(2) says so by EPERM.
            _ => return reply.error(Errno::EPERM),
        };
        if let Some(special) = special {
            let made = name(path).and_then(|n| self.0.make_special(dir, n, special, (mode, umask), actor));
            return self.entry(reply, made);
        }
        let made = name(path).and_then(|n| self.0.make_file(dir, n, (mode, umask), false, actor));
        self.entry(reply, made.and_then(|r| r.attr.ok_or(Errno::EIO)));
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        path: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let (dir, actor) = (self.0.grid_ino(parent), self.0.actor(request));
        self.entry(
            reply,
            name(path).and_then(|n| self.0.make_dir(dir, n, mode, umask, actor)),
        );
    }

    fn unlink(&self, request: &Request, parent: INodeNo, path: &OsStr, reply: ReplyEmpty) {
        let (dir, actor) = (self.0.grid_ino(parent), self.0.actor(request));
        Self::empty(reply, name(path).and_then(|n| self.0.unlink(dir, n, actor)));
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, path: &OsStr, reply: ReplyEmpty) {
        let (dir, actor) = (self.0.grid_ino(parent), self.0.actor(request));
        Self::empty(reply, name(path).and_then(|n| self.0.remove_dir(dir, n, actor)));
    }

    fn symlink(&self, request: &Request, parent: INodeNo, path: &OsStr, target: &Path, reply: ReplyEntry) {
        let (dir, actor) = (self.0.grid_ino(parent), self.0.actor(request));
        let target = target.as_os_str().as_bytes().to_vec();
        self.entry(
            reply,
            name(path).and_then(|n| self.0.make_link(dir, n, target, actor)),
        );
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        from: &OsStr,
        new_parent: INodeNo,
        to: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let core = &self.0;
        let (dir, to_dir) = (core.grid_ino(parent), core.grid_ino(new_parent));
        let done = name(from).and_then(|from| {
            let to = name(to)?;
            core.rename((dir, from), (to_dir, to), flags, core.actor(request))
        });
        Self::empty(reply, done);
    }

    fn link(&self, request: &Request, ino: INodeNo, parent: INodeNo, path: &OsStr, reply: ReplyEntry) {
        let (ino, dir) = (self.0.grid_ino(ino), self.0.grid_ino(parent));
        let actor = self.0.actor(request);
        self.entry(reply, name(path).and_then(|n| self.0.link(ino, dir, n, actor)));
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.0.open(self.0.grid_ino(ino), flags, self.0.actor(request)) {
            Ok(flags) => reply.opened(FileHandle(0), flags),
            Err(e) => reply.error(e),
        }
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        path: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        match self.create_file(request, parent, path, (mode, umask), flags) {
            Ok((attr, flags)) => {
                let attr = self.0.file_attr(&self.0.files.shown(attr));
                reply.created(&self.0.options.cache, &attr, GENERATION, FileHandle(0), flags);
            }
            Err(e) => reply.error(e),
        }
    }

    fn read(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.0.node(ino).and_then(|node| self.0.read(&node, offset, size)) {
            Ok(bytes) => reply.data(&bytes),
            Err(e) => reply.error(e),
        }
    }

    fn write(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let written = self.0.node(ino).and_then(|node| {
            if write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID) {
                self.drop_set_ids(&node);
            }
            self.0.write(&node, offset, data)
        });
        match written {
            Ok(bytes) => reply.written(bytes),
            Err(e) => reply.error(e),
        }
    }

    fn flush(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        Self::empty(reply, self.0.node(ino).and_then(|node| self.0.publish(&node)));
    }

    fn fsync(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        Self::empty(reply, self.0.node(ino).and_then(|node| self.0.publish(&node)));
    }

    fn release(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        if let Ok(node) = self.0.node(ino) {
            self.0.close(&node);
        }
        reply.ok();
    }

    fn opendir(&self, request: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        // The kernel has checked the permission where it checks any; here it is asked for where it does not.
        let core = &self.0;
        let allowed = if core.ids.whose() == Whose::All {
            Ok(())
        } else {
            core.access(core.grid_ino(ino), 4, core.actor(request))
        };
        match allowed.and_then(|()| core.dirs.open()) {
            Ok(handle) => reply.opened(FileHandle(handle), FopenFlags::empty()),
            Err(e) => reply.error(e),
        }
    }

    fn readdir(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let listed = self.list(request, ino, handle, offset, |ino, next, name, attr, _| {
            reply.add(ino, next, kind(attr.kind()), name)
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(e),
        }
    }

    fn readdirplus(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let core = &self.0;
        let listed = self.list(request, ino, handle, offset, |ino, next, name, attr, plain| {
            let keep = if plain { &NOT_KEPT } else { &core.options.cache };
            let attr = FileAttr {
                ino,
                ..core.file_attr(attr)
            };
            reply.add(ino, next, name, keep, &attr, GENERATION)
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(e),
        }
    }

    fn releasedir(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.0.dirs.close(handle.0);
        reply.ok();
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        // Names are durable when they are made.
        reply.ok();
    }

    fn statfs(&self, request: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        let op = Op::Space(v1::SpaceRequest {});
        match self.0.ask(0, 0, self.0.actor(request), op) {
            Ok(Answer::Space(space)) => {
                let blocks = |bytes: u64| bytes / u64::from(STATFS_BLOCK);
                let free = blocks(space.free_bytes);
                let files_free = u64::from(u32::MAX).saturating_sub(space.inodes);
                reply.statfs(
                    blocks(space.capacity_bytes),
                    free,
                    free,
                    space.inodes.saturating_add(files_free),
                    files_free,
                    STATFS_BLOCK,
                    MAX_NAME_BYTES as u32,
                    STATFS_BLOCK,
                );
            }
            Ok(other) => reply.error(unexpected(&other)),
            Err(e) => reply.error(e),
        }
    }

    fn setxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let (ino, actor) = (self.0.grid_ino(ino), self.0.actor(request));
        Self::empty(reply, self.0.set_xattr(ino, name, value, flags, actor));
    }

    fn getxattr(&self, request: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let found = self
            .0
            .get_xattr(self.0.grid_ino(ino), name, self.0.actor(request));
        Self::bytes(reply, size, found);
    }

    fn listxattr(&self, request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let found = self.0.list_xattr(self.0.grid_ino(ino), self.0.actor(request));
        Self::bytes(reply, size, found);
    }

    fn removexattr(&self, request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (ino, actor) = (self.0.grid_ino(ino), self.0.actor(request));
        Self::empty(reply, self.0.remove_xattr(ino, name, actor));
    }

    fn access(&self, request: &Request, ino: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        let bits = u32::try_from(mask.bits()).unwrap_or(0) & 7;
        Self::empty(
            reply,
            self.0.access(self.0.grid_ino(ino), bits, self.0.actor(request)),
        );
    }
}
