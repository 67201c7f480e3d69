//! Publishing what was written: to a node, then by one transaction.
//!
//! ```text
//!   what the draft has not ──fetched──> local file ──digest, parts──> node (flushes, receipt) ──commit──> published
//!                                            └── another node, if one fails: 4 at most
//! ```
//!
//! A file without a name is not published: nobody could open it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, PoisonError, mpsc};
use std::time::{Duration, Instant};

use fuser::Errno;
use kuroshio_client::v1::{self, request::Op, response::Result as Answer};
use kuroshio_client::{ClientError, PART_BYTES, RETRY_LIMIT, SMALL_BYTES, Stored, unhex};
use kuroshio_service::{HttpConn, ServiceError};

use crate::draft::read_local;
use crate::errno::{errno, of_io};
use crate::fetch::Pool;
use crate::files::{Node, Writer};
use crate::fs::{Core, unexpected};

/// Nodes that are tried.
const NODES_TRIED: usize = 4;
/// Longest wait for a node to make a part durable.
const FLUSH_LIMIT: Duration = Duration::from_secs(120);
/// Bytes of the content that are fetched at once into a draft.
const FILL_BYTES: u64 = 4 * 1024 * 1024;
/// Parts that are read and hashed before they can be sent.
const PARTS_AHEAD: usize = 2;

/// What is to be published.
struct Job {
    file: Arc<File>,
    size: u64,
    mtime_ns: i64,
    writer: u64,
    actor: Option<v1::Actor>,
}

/// What a node has.
struct Kept {
    digest: [u8; 32],
    receipts: Vec<v1::Receipt>,
}

impl Core {
    /// Publishes what was written to an open file; durable when this returns.
    pub fn publish(self: &Arc<Self>, node: &Arc<Node>) -> Result<(), Errno> {
        let _alone = node.io.write().unwrap_or_else(PoisonError::into_inner);
        let waits = {
            let state = node.lock();
            state.is_dirty() && state.attr.links > 0
        };
        if !waits {
            return Ok(());
        }
        self.fill(node)?;
        let job = {
            let state = node.lock();
            let draft = state.draft.as_ref().ok_or(Errno::EIO)?;
            let writer = state.writer.as_ref().ok_or(Errno::EBADF)?;
            Job {
                file: draft.file(),
                size: draft.size,
                mtime_ns: draft.mtime_ns,
                writer: writer.handle,
                actor: writer.actor.clone(),
            }
        };
        let attr = self.store(node, job)?;
        self.files.pages_are(node.ino, attr.generation);
        let mut state = node.lock();
        if let Some(draft) = &mut state.draft {
            draft.dirty = false;
            draft.all_here();
        }
        state.content = None;
        let former = std::mem::take(&mut state.read_handle);
        state.attr = attr;
        drop(state);
        self.end_read(former);
        Ok(())
    }

    /// Fetches what a draft has not into its local file.
    pub fn fill(self: &Arc<Self>, node: &Arc<Node>) -> Result<(), Errno> {
        loop {
            let (file, missing) = {
                let state = node.lock();
                let Some(draft) = &state.draft else { return Ok(()) };
                (draft.file(), draft.all_missing())
            };
            let Some(range) = missing.first() else {
                return Ok(());
            };
            let range = range.start..range.end.min(range.start + FILL_BYTES);
            let bytes = self.content(node)?.fetch(&self.source(node), range.clone())?;
            file.write_all_at(&bytes, range.start).map_err(|e| of_io(&e))?;
            if let Some(draft) = &mut node.lock().draft {
                draft.fetched(range);
            }
        }
    }

    /// Stores a draft at a node and commits it; the attributes as published.
    fn store(self: &Arc<Self>, node: &Arc<Node>, mut job: Job) -> Result<v1::Attr, Errno> {
        let mut avoid = Vec::new();
        loop {
            let grant = self.grant(node, &mut job, &avoid)?;
            let Some(place) = grant.places.first() else {
                return Err(Errno::EIO);
            };
            match upload(&self.pool, place, &job.file, job.size) {
                Ok(kept) => return self.commit(node, &job, &grant, place, kept),
                Err(e) => {
                    tracing::warn!(
                        node = place.node,
                        inode = node.ino,
                        "what was written cannot be stored: {e}"
                    );
                    let abandon = Op::Abandon(v1::AbandonRequest {
                        inode: grant.inode,
                        generation: grant.generation,
                        token: place.token.clone(),
                    });
                    let _ = self.ask(0, 0, job.actor.clone(), abandon);
                    avoid.push(place.node.clone());
                    if avoid.len() >= NODES_TRIED || matches!(e, ClientError::Local { .. }) {
                        return Err(of_upload(&e));
                    }
                }
            }
        }
    }

    /// A draft at the metadata service.
    fn grant(&self, node: &Arc<Node>, job: &mut Job, avoid: &[String]) -> Result<v1::WriteGrant, Errno> {
        let mut again = true;
        loop {
            let request = v1::WriteGrantRequest {
                write_handle: job.writer,
                size_hint_bytes: job.size,
                near_host: self.host.clone(),
                avoid: avoid.to_vec(),
            };
            match self.ask(node.ino, 0, job.actor.clone(), Op::WriteGrant(request)) {
                Ok(Answer::Write(grant)) => return Ok(grant),
                Ok(other) => return Err(unexpected(&other)),
                // The metadata service was started anew, or is another one: the right is asked for again.
                Err(e) if e == Errno::ESTALE && again => again = false,
                Err(e) => return Err(e),
            }
            let reply = self.open_to_write(node.ino, job.actor.clone())?;
            job.writer = reply.write_handle;
            node.lock().writer = Some(Writer {
                handle: reply.write_handle,
                actor: job.actor.clone(),
            });
        }
    }

    fn commit(
        &self,
        node: &Arc<Node>,
        job: &Job,
        grant: &v1::WriteGrant,
        place: &v1::Place,
        kept: Kept,
    ) -> Result<v1::Attr, Errno> {
        let commit = v1::CommitRequest {
            path: Vec::new(),
            inode: grant.inode,
            generation: grant.generation,
            new_file: false,
            exclusive: false,
            mode: 0,
            umask: 0,
            size_bytes: job.size,
            digest: kept.digest.to_vec(),
            receipts: kept.receipts,
            token: place.token.clone(),
            mtime_ns: Some(job.mtime_ns),
            ..v1::CommitRequest::default()
        };
        let context = v1::Context {
            inode: node.ino,
            to_inode: 0,
            actor: job.actor.clone(),
        };
        let deadline = Instant::now() + RETRY_LIMIT;
        loop {
            let why = match self.grid.call_in(Op::Commit(commit.clone()), context.clone()) {
                Ok(Answer::Attr(attr)) => return Ok(attr),
                Ok(other) => return Err(unexpected(&other)),
                Err(e @ ClientError::Lost(_)) => e,
                Err(e) => return Err(errno(&e)),
            };
            // A draft is committed once: what is published says whether it was.
            match self.stat(node.ino, job.actor.clone()) {
                Ok(attr) if attr.generation == grant.generation => return Ok(attr),
                _ if Instant::now() < deadline => {}
                _ => return Err(errno(&why)),
            }
        }
    }
}

/// What a program is told when its bytes could not be stored.
fn of_upload(e: &ClientError) -> Errno {
    match e {
        ClientError::Service(ServiceError::Refused { status: 507, .. }) => Errno::ENOSPC,
        e => errno(e),
    }
}

/// Sends a whole file to a node.
fn upload(pool: &Pool, place: &v1::Place, file: &File, size: u64) -> Result<Kept, ClientError> {
    if size == 0 {
        // Nothing is stored of an empty file.
        return Ok(Kept {
            digest: *blake3::hash(&[]).as_bytes(),
            receipts: Vec::new(),
        });
    }
    // A node of this host takes the file itself; the digest is of what it has read.
    if let Some(written) = pool.near.store(place, file, size) {
        let written = written?;
        let digest = unhex(&written.digest).and_then(|d| <[u8; 32]>::try_from(d).ok());
        let broken = || ClientError::Protocol(format!("node {}: a broken answer", place.node));
        return Ok(Kept {
            digest: digest.ok_or_else(broken)?,
            receipts: vec![v1::Receipt {
                node: place.node.clone(),
                mac: unhex(&written.mac).ok_or_else(broken)?,
            }],
        });
    }
    match pool.kept(place) {
        None => send(pool, place, pool.dial(place)?, file, size),
        Some(conn) => match send(pool, place, conn, file, size) {
            // The node may have closed a connection that waited: that says nothing about the node.
            Err(ClientError::Service(ServiceError::Peer { .. } | ServiceError::Protocol { .. })) => {
                send(pool, place, pool.dial(place)?, file, size)
            }
            other => other,
        },
    }
}

/// Sends a whole file on a connection: one thread reads and hashes, this one sends.
fn send(
    pool: &Pool,
    place: &v1::Place,
    mut conn: HttpConn,
    file: &File,
    size: u64,
) -> Result<Kept, ClientError> {
    conn.set_limit(FLUSH_LIMIT)?;
    let part_bytes = if size <= SMALL_BYTES as u64 {
        SMALL_BYTES
    } else {
        PART_BYTES
    };
    let stored = if size <= part_bytes as u64 {
        let (part, digest) = read_part(file, 0, size, &mut blake3::Hasher::new())?;
        let stored: Stored = conn.put_part(&place.path, "", 0, &part, Some(size))?;
        (stored, digest)
    } else {
        send_parts(place, &mut conn, file, size)?
    };
    let (stored, digest) = stored;
    if !stored.done || stored.digest != blake3::Hash::from_bytes(digest).to_hex().as_str() {
        return Err(ClientError::Digest(format!(
            "node {} stored something else than was sent",
            place.node
        )));
    }
    let mac = unhex(&stored.mac);
    let mac = mac.ok_or_else(|| ClientError::Protocol(format!("node {}: a broken receipt", place.node)))?;
    pool.give(place, conn);
    Ok(Kept {
        digest,
        receipts: vec![v1::Receipt {
            node: place.node.clone(),
            mac,
        }],
    })
}

type Part = Result<(Vec<u8>, [u8; 32]), ClientError>;

fn send_parts(
    place: &v1::Place,
    conn: &mut HttpConn,
    file: &File,
    size: u64,
) -> Result<(Stored, [u8; 32]), ClientError> {
    std::thread::scope(|scope| {
        let (parts, ready) = mpsc::sync_channel::<Part>(PARTS_AHEAD);
        scope.spawn(move || {
            let mut hasher = blake3::Hasher::new();
            let mut at = 0;
            while at < size {
                let len = (size - at).min(PART_BYTES as u64);
                let part = read_part(file, at, len, &mut hasher);
                // Who sends may have failed.
                if parts.send(part).is_err() {
                    return;
                }
                at += len;
            }
        });
        let mut at = 0;
        let mut last = None;
        for part in ready {
            let (part, digest) = part?;
            let stored: Stored = conn.put_part(&place.path, "", at, &part, Some(size))?;
            at += part.len() as u64;
            last = Some((stored, digest));
        }
        last.ok_or_else(|| ClientError::Protocol("no part was sent".into()))
    })
}

/// A part of a file, and the digest of all until its end.
fn read_part(file: &File, at: u64, len: u64, hasher: &mut blake3::Hasher) -> Part {
    let mut part = vec![0; usize::try_from(len).unwrap_or(0)];
    read_local(file, at, &mut part).map_err(|source| ClientError::Local {
        path: "(draft)".into(),
        source,
    })?;
    hasher.update(&part);
    Ok((part, *hasher.finalize().as_bytes()))
}
