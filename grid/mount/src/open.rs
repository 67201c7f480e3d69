//! Open files: opening, reading, writing, cutting off.

use std::os::unix::fs::FileExt;
use std::sync::{Arc, PoisonError};

use fuser::{Errno, FopenFlags, OpenAccMode, OpenFlags};
use kuroshio_client::v1::{self, Actor, request::Op, response::Result as Answer};

use crate::attr::now_ns;
use crate::draft::{Draft, MAX_FILE_BYTES, read_local};
use crate::errno::of_io;
use crate::fetch::{Content, Pool, Source, Workers};
use crate::files::{Node, State, Writer};
use crate::fs::{Core, unexpected};
use crate::ids::Whose;

/// The kernel opens a program to run it (`FMODE_EXEC`).
const EXECUTE: i32 = 0x20;

/// Fetches the content of one open file.
struct FileSource {
    core: Arc<Core>,
    node: Arc<Node>,
    actor: Option<Actor>,
}

impl Source for FileSource {
    fn pool(&self) -> &Pool {
        &self.core.pool
    }

    fn workers(&self) -> &Workers {
        &self.core.workers
    }

    fn places_anew(&self) -> Option<Vec<v1::Fragment>> {
        let fresh = self.core.open_to_read(self.node.ino, self.actor.clone()).ok()?;
        let mut state = self.node.lock();
        let generation = state.content.as_ref().map(|c| c.generation);
        let same = fresh.attr.as_ref().map(|a| a.generation) == generation;
        let left = if same {
            std::mem::replace(&mut state.read_handle, fresh.handle)
        } else {
            fresh.handle
        };
        drop(state);
        self.core.end_read(left);
        same.then_some(fresh.fragments)
    }
}

impl Core {
    /// Opens a file for the kernel.
    pub fn open(
        self: &Arc<Self>,
        ino: u64,
        flags: OpenFlags,
        actor: Option<Actor>,
    ) -> Result<FopenFlags, Errno> {
        let write = flags.acc_mode() != OpenAccMode::O_RDONLY;
        let cut = flags.0 & libc::O_TRUNC != 0;
        let execute = flags.0 & EXECUTE != 0 && self.ids.whose() == Whose::All;
        let request = v1::OpenFileRequest {
            path: Vec::new(),
            read: flags.acc_mode() != OpenAccMode::O_WRONLY && !execute,
            write: write || cut,
            execute,
            near_host: self.host.clone(),
        };
        let reply = match self.ask(ino, 0, actor.clone(), Op::OpenFile(request)) {
            Ok(Answer::OpenFile(reply)) => reply,
            Ok(other) => return Err(unexpected(&other)),
            Err(e) if e == Errno::E2BIG => return Err(Errno::ENFILE),
            // Removed, but still open here: what is here is all there is.
            Err(e) if (e == Errno::ESTALE || e == Errno::ENOENT) && self.is_removed(ino) => {
                v1::OpenFileReply::default()
            }
            Err(e) => return Err(e),
        };
        let attr = match (&reply.attr, self.files.get(ino)) {
            (Some(attr), _) => attr.clone(),
            (None, Some(node)) => node.lock().attr.clone(),
            (None, None) => return Err(Errno::EIO),
        };
        let node = self.files.take(&attr);
        let generation = self.opened(&node, reply, actor);
        if cut && let Err(e) = self.set_size(&node, 0) {
            self.close(&node);
            return Err(e);
        }
        let mut flags = FopenFlags::empty();
        if self.files.pages_are(ino, generation) {
            flags |= FopenFlags::FOPEN_KEEP_CACHE;
        } else {
            // The size that the kernel keeps may be that of another content.
            self.forget_attributes(ino);
        }
        if !write && !cut {
            // Nothing can be written by this handle: its close has nothing to publish.
            flags |= FopenFlags::FOPEN_NOFLUSH;
        }
        Ok(flags)
    }

    fn is_removed(&self, ino: u64) -> bool {
        self.files.get(ino).is_some_and(|n| n.lock().attr.links == 0)
    }

    /// Takes what opening gave into a file's state; the generation that is seen from now on.
    fn opened(&self, node: &Arc<Node>, reply: v1::OpenFileReply, actor: Option<Actor>) -> u64 {
        let mut state = node.lock();
        let (mut end_read, mut end_write) = (0, None);
        if let Some(attr) = reply.attr {
            let newer = attr.generation != state.attr.generation;
            if newer && !state.is_dirty() {
                // Another mount has published: what was read and written here before is not the file any more.
                state.draft = None;
                state.content = None;
                end_read = std::mem::take(&mut state.read_handle);
            }
            if reply.handle != 0 && state.content.is_none() && state.draft.is_none() {
                let content = Content::new(attr.generation, attr.size_bytes, reply.fragments);
                state.content = Some(Arc::new(content));
                end_read = std::mem::replace(&mut state.read_handle, reply.handle);
            } else if reply.handle != 0 {
                end_read = reply.handle;
            }
            if !state.is_dirty() {
                state.attr = attr;
            }
        }
        if reply.write_handle != 0 {
            let writer = Writer {
                handle: reply.write_handle,
                actor,
            };
            if state.writer.is_none() {
                state.writer = Some(writer);
            } else {
                end_write = Some(writer);
            }
        }
        let generation = state.attr.generation;
        drop(state);
        self.end_read(end_read);
        if let Some(writer) = end_write {
            self.end_write(&writer);
        }
        generation
    }

    /// A file that was made here and is open.
    pub fn opened_new(&self, reply: v1::OpenFileReply, actor: Option<Actor>) -> Result<v1::Attr, Errno> {
        let Some(attr) = reply.attr.clone() else {
            return Err(Errno::EIO);
        };
        let node = self.files.take(&attr);
        let generation = self.opened(&node, reply, actor);
        let mut state = node.lock();
        if state.content.is_none() {
            state.content = Some(Arc::new(Content::new(generation, 0, Vec::new())));
        }
        drop(state);
        self.files.pages_are(attr.inode, generation);
        Ok(attr)
    }

    /// The right to read a file, for the mount's own use.
    pub fn open_to_read(&self, ino: u64, actor: Option<Actor>) -> Result<v1::OpenFileReply, Errno> {
        let request = |actor: Option<Actor>| {
            let request = v1::OpenFileRequest {
                path: Vec::new(),
                read: true,
                write: false,
                execute: false,
                near_host: self.host.clone(),
            };
            match self.ask(ino, 0, actor, Op::OpenFile(request))? {
                Answer::OpenFile(reply) => Ok(reply),
                other => Err(unexpected(&other)),
            }
        };
        match request(actor) {
            // Who may write but not read a file does not see what the mount keeps of it.
            Err(e) if e == Errno::EACCES && self.ids.whose() == Whose::All => request(None),
            other => other,
        }
    }

    /// The right to write a file.
    pub fn open_to_write(&self, ino: u64, actor: Option<Actor>) -> Result<v1::OpenFileReply, Errno> {
        let request = v1::OpenFileRequest {
            path: Vec::new(),
            read: false,
            write: true,
            execute: false,
            near_host: String::new(),
        };
        match self.ask(ino, 0, actor, Op::OpenFile(request))? {
            Answer::OpenFile(reply) => Ok(reply),
            other => Err(unexpected(&other)),
        }
    }

    /// Gives a right to read back, without waiting.
    pub fn end_read(&self, handle: u64) {
        if handle != 0 {
            // The end of the connection says the same.
            let _ = self.grid.submit(Op::Close(v1::CloseRequest { handle }));
        }
    }

    /// One handle less. What was not published is tried once more; its failure is logged, nobody waits for it.
    pub fn close(self: &Arc<Self>, node: &Arc<Node>) {
        let last_and_dirty = {
            let state = node.lock();
            state.uses == 1 && state.is_dirty()
        };
        if last_and_dirty && let Err(e) = self.publish(node) {
            tracing::error!(inode = node.ino, "what was written is lost: {e:?}");
        }
        if let Some(left) = self.files.give_back(node) {
            self.end_read(left.read_handle);
            if let Some(writer) = left.writer {
                self.end_write(&writer);
            }
        }
    }

    /// Gives a right to write back, without waiting.
    fn end_write(&self, writer: &Writer) {
        let context = v1::Context {
            inode: 0,
            to_inode: 0,
            actor: writer.actor.clone(),
        };
        let end = Op::EndWrite(v1::EndWriteRequest {
            write_handle: writer.handle,
        });
        let _ = self.grid.submit_in(end, context);
    }

    /// Where a file's content is fetched from.
    pub fn source(self: &Arc<Self>, node: &Arc<Node>) -> Arc<dyn Source> {
        let actor = node.lock().writer.as_ref().and_then(|w| w.actor.clone());
        Arc::new(FileSource {
            core: self.clone(),
            node: node.clone(),
            actor,
        })
    }

    /// Reads from an open file; fewer bytes than asked for only at its end.
    pub fn read(self: &Arc<Self>, node: &Arc<Node>, offset: u64, size: u32) -> Result<Vec<u8>, Errno> {
        let (end, local, missing) = {
            let state = node.lock();
            let end = state.size().min(offset.saturating_add(size.into()));
            if offset >= end {
                return Ok(Vec::new());
            }
            match &state.draft {
                Some(draft) => (end, Some(draft.file()), draft.missing(offset..end)),
                None => (end, None, std::iter::once(offset..end).collect()),
            }
        };
        let Some(local) = local else {
            return self.content(node)?.read(&self.source(node), offset..end);
        };
        let len = usize::try_from(end - offset).map_err(|_| Errno::EINVAL)?;
        let mut out = vec![0; len];
        read_local(&local, offset, &mut out).map_err(|e| of_io(&e))?;
        for range in missing {
            let bytes = self.content(node)?.read(&self.source(node), range.clone())?;
            let at = usize::try_from(range.start - offset).map_err(|_| Errno::EINVAL)?;
            let into = out.get_mut(at..at + bytes.len()).ok_or(Errno::EIO)?;
            into.copy_from_slice(&bytes);
        }
        Ok(out)
    }

    /// The content of an open file; opened now if it was opened to be written only.
    pub fn content(&self, node: &Arc<Node>) -> Result<Arc<Content>, Errno> {
        let actor = {
            let state = node.lock();
            if let Some(content) = &state.content {
                return Ok(content.clone());
            }
            state.writer.as_ref().and_then(|w| w.actor.clone())
        };
        let reply = self.open_to_read(node.ino, actor)?;
        let attr = reply.attr.unwrap_or_default();
        let content = Arc::new(Content::new(attr.generation, attr.size_bytes, reply.fragments));
        let mut state = node.lock();
        if attr.generation != state.attr.generation {
            if state.draft.is_some() {
                // What was written belongs to a content that is not there any more.
                drop(state);
                self.end_read(reply.handle);
                return Err(Errno::ESTALE);
            }
            state.attr = attr;
        }
        let spare = match &state.content {
            // Another thread was quicker.
            Some(_) => reply.handle,
            None => {
                state.content = Some(content);
                std::mem::replace(&mut state.read_handle, reply.handle)
            }
        };
        let content = state.content.clone().ok_or(Errno::EIO);
        drop(state);
        self.end_read(spare);
        content
    }

    /// The draft of a state, made if there is none.
    fn draft<'a>(&self, state: &'a mut State) -> Result<&'a mut Draft, Errno> {
        if state.draft.is_none() {
            let (size, mtime_ns) = (state.size(), state.attr.mtime_ns);
            let draft = Draft::new(&self.options.drafts, size, mtime_ns).map_err(|e| of_io(&e))?;
            state.draft = Some(draft);
        }
        state.draft.as_mut().ok_or(Errno::EIO)
    }

    /// Writes to an open file.
    pub fn write(self: &Arc<Self>, node: &Arc<Node>, offset: u64, bytes: &[u8]) -> Result<u32, Errno> {
        let end = offset
            .checked_add(bytes.len() as u64)
            .filter(|e| *e <= MAX_FILE_BYTES);
        let end = end.ok_or(Errno::EFBIG)?;
        let shared = node.io.read().unwrap_or_else(PoisonError::into_inner);
        let file = {
            let mut state = node.lock();
            self.draft(&mut state)?.file()
        };
        file.write_all_at(bytes, offset).map_err(|e| of_io(&e))?;
        let mut state = node.lock();
        let draft = self.draft(&mut state)?;
        draft.wrote(offset..end);
        draft.touch(now_ns());
        let ragged = draft.is_ragged();
        drop(state);
        drop(shared);
        if ragged {
            // Nothing may be written while the content is put around what was.
            let _alone = node.io.write().unwrap_or_else(PoisonError::into_inner);
            self.fill(node)?;
        }
        u32::try_from(bytes.len()).map_err(|_| Errno::EINVAL)
    }

    /// Cuts an open file off, or lengthens it; published with what else is written.
    pub fn set_size(&self, node: &Arc<Node>, size: u64) -> Result<(), Errno> {
        if size > MAX_FILE_BYTES {
            return Err(Errno::EFBIG);
        }
        let _shared = node.io.read().unwrap_or_else(PoisonError::into_inner);
        let mut state = node.lock();
        let draft = self.draft(&mut state)?;
        draft.set_size(size).map_err(|e| of_io(&e))?;
        draft.touch(now_ns());
        Ok(())
    }

    /// Cuts off or lengthens a file by its name: it is durable when this returns.
    pub fn set_size_of(self: &Arc<Self>, ino: u64, size: u64, actor: Option<Actor>) -> Result<(), Errno> {
        let reply = self.open_to_write(ino, actor.clone())?;
        let attr = reply.attr.clone().ok_or(Errno::EIO)?;
        let node = self.files.take(&attr);
        self.opened(&node, reply, actor.clone());
        let same = {
            let state = node.lock();
            state.size() == size && !state.is_dirty()
        };
        let done = if same {
            // The content stays; only its time is new.
            self.touch(ino, actor)
        } else {
            self.set_size(&node, size).and_then(|()| self.publish(&node))
        };
        self.close(&node);
        done
    }

    /// Sets the modification time to now.
    fn touch(&self, ino: u64, actor: Option<Actor>) -> Result<(), Errno> {
        let change = v1::ChangeRequest {
            mtime_now: true,
            ..v1::ChangeRequest::default()
        };
        let attr = self.ask_attr(ino, 0, actor, Op::Change(change))?;
        if let Some(node) = self.files.get(ino) {
            node.lock().take_attr(attr);
        }
        Ok(())
    }
}
