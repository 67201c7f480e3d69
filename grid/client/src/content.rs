//! Content: written to one node, published by a commit; read from any replica, going on at another one in
//! the middle of a file.
//!
//! ```text
//!   put:  create ──> grant ──PUT parts──> node (durable, receipt) ──> commit (durable) ──> done
//!   get:  open ──> grant ──GET range──> node A ──(fails at byte n)──> GET from n ──> node B ... digest ──> done
//! ```
//!
//! The digest (BLAKE3) of what was read here is compared with the node's before the commit, and the digest of
//! what was received with the catalog's at the end of each fragment.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kuroshio_proto::v1;
use kuroshio_service::ServiceError;
use serde::Deserialize;

use crate::error::ClientError;
use crate::grid::{Grid, RETRY_LIMIT};
use crate::near;
use crate::pool::{Dialled, dial};
use crate::send::{Kept, store};

/// Content up to this size goes in one request, bytes.
pub const SMALL_BYTES: usize = 1024 * 1024;
/// Bytes of one request of larger content.
pub const PART_BYTES: usize = 8 * 1024 * 1024;
/// Longest silence of a data service before another one is asked.
pub(crate) const SILENCE: Duration = Duration::from_secs(5);
/// Times that one put is tried, each at another node or by another service.
const NODES_TRIED: usize = 4;
/// Pause before a commit is asked for again.
const COMMIT_PAUSE: Duration = Duration::from_millis(20);

/// Stops a transfer from another thread, and tells how far it is.
#[derive(Clone, Default)]
pub struct Cancel {
    stop: Arc<AtomicBool>,
    bytes: Arc<AtomicU64>,
}

impl Cancel {
    /// Stops what uses it as soon as it looks.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Payload bytes moved so far.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Counts payload bytes that were moved.
    pub fn add(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Whether it was stopped.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    pub(crate) fn moved(&self, bytes: usize) -> Result<(), ClientError> {
        self.add(bytes as u64);
        self.check()
    }

    pub(crate) fn check(&self) -> Result<(), ClientError> {
        if self.is_stopped() {
            return Err(ClientError::Cancelled);
        }
        Ok(())
    }
}

/// What a put did.
#[derive(Debug, Clone)]
pub struct Sent {
    /// Attributes as published.
    pub attr: v1::Attr,
    /// BLAKE3 of the content.
    pub digest: [u8; 32],
    /// The node that has it; empty when the file is.
    pub node: String,
}

/// What a get did.
#[derive(Debug, Clone)]
pub struct Received {
    /// Attributes when it was opened.
    pub attr: v1::Attr,
    /// Payload bytes.
    pub bytes: u64,
    /// BLAKE3 of the whole content.
    pub digest: [u8; 32],
    /// Nodes that gave some of it, in order.
    pub nodes: Vec<String>,
    /// How often another replica had to go on.
    pub failovers: u32,
}

/// What of a file is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// All fragments, one after the other (global view).
    All,
    /// One of them (section view).
    Fragment(u32),
}

/// Takes content.
pub trait Sink: Write {
    /// Gives back all from byte `at` on; whether that is possible.
    ///
    /// # Errors
    /// Of the file below.
    fn take_back(&mut self, at: u64) -> io::Result<bool>;
}

impl Sink for File {
    fn take_back(&mut self, at: u64) -> io::Result<bool> {
        self.set_len(at)?;
        self.seek(SeekFrom::Start(at))?;
        Ok(true)
    }
}

/// A sink that keeps what it has.
struct Forward<'a>(&'a mut dyn Write);

impl Write for Forward<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.0.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl Sink for Forward<'_> {
    fn take_back(&mut self, _: u64) -> io::Result<bool> {
        Ok(false)
    }
}

/// A node's answer to a part.
#[derive(Deserialize)]
pub struct Stored {
    /// Whether the object is whole and durable.
    pub done: bool,
    /// Its BLAKE3 then, in hexadecimal.
    #[serde(default)]
    pub digest: String,
    /// The node's receipt then, in hexadecimal.
    #[serde(default)]
    pub mac: String,
}

/// How a file is made.
#[derive(Debug, Clone)]
pub struct PutOptions {
    /// Refuse a name that is there.
    pub exclusive: bool,
    /// Permission bits of a new file.
    pub mode: u32,
    /// Bits taken away.
    pub umask: u32,
    /// Nodes on this host are preferred.
    pub near_host: String,
    /// Modification time; none is now.
    pub mtime_ns: Option<i64>,
}

impl Grid {
    /// Gives `path` the content of `source` (its size, if it is known, reserves the space). When this returns,
    /// the content is durable and published.
    ///
    /// # Errors
    /// See [`ClientError`]; the file is as before then, unless it is [`ClientError::Lost`].
    pub fn put<R: Read + Seek>(
        &self,
        path: &[u8],
        source: &mut R,
        size_hint: u64,
        options: &PutOptions,
        cancel: &Cancel,
    ) -> Result<Sent, ClientError> {
        let mut avoid = Vec::new();
        let mut tries = 0;
        loop {
            let grant = self.create(v1::CreateRequest {
                path: path.to_vec(),
                exclusive: options.exclusive,
                size_hint_bytes: size_hint,
                near_host: options.near_host.clone(),
                avoid: avoid.clone(),
                mode: options.mode,
                umask: options.umask,
                mtime_ns: options.mtime_ns,
                ..v1::CreateRequest::default()
            })?;
            let Some(place) = grant.places.first() else {
                return Err(ClientError::Protocol("a grant without a place".into()));
            };
            let published = match store(&self.nodes, place, source, cancel) {
                Ok(stored) => self.publish(path, &grant, place, stored, options),
                Err(e) => {
                    let _ = self.abandon(grant.inode, grant.generation, &place.token);
                    avoid.push(place.node.clone());
                    Err(e)
                }
            };
            tries += 1;
            let again = match &published {
                // The node failed: another one.
                Err(ClientError::Service(_)) => true,
                // The right to write a new file was another service's, which has gone: it is asked for anew.
                Err(e) => e.code() == Some(v1::Code::Stale) && grant.new_file,
                Ok(_) => false,
            };
            if !again || tries >= NODES_TRIED || source.rewind().is_err() {
                return published;
            }
            // The content begins anew.
            cancel.bytes.store(0, Ordering::Relaxed);
        }
    }

    fn publish(
        &self,
        path: &[u8],
        grant: &v1::WriteGrant,
        place: &v1::Place,
        stored: Kept,
        options: &PutOptions,
    ) -> Result<Sent, ClientError> {
        let node = if stored.size == 0 {
            String::new()
        } else {
            place.node.clone()
        };
        let receipt = v1::Receipt {
            node: node.clone(),
            mac: stored.mac,
        };
        let attr = self.publish_all(v1::CommitRequest {
            path: path.to_vec(),
            inode: grant.inode,
            generation: grant.generation,
            new_file: grant.new_file,
            exclusive: options.exclusive,
            mode: options.mode,
            umask: options.umask,
            size_bytes: stored.size,
            digest: stored.digest.to_vec(),
            receipts: if stored.size == 0 {
                Vec::new()
            } else {
                vec![receipt]
            },
            token: place.token.clone(),
            mtime_ns: options.mtime_ns,
            ..v1::CommitRequest::default()
        })?;
        Ok(Sent {
            attr,
            digest: stored.digest,
            node,
        })
    }

    /// Commits, through the loss of a service or of its database: whether a commit that was not answered took
    /// place is asked of whoever answers next.
    pub(crate) fn publish_all(&self, commit: v1::CommitRequest) -> Result<v1::Attr, ClientError> {
        let mut deadline = None;
        loop {
            let error = match self.commit(commit.clone()) {
                Ok(attr) => return Ok(attr),
                Err(e @ ClientError::Lost(_)) => e,
                Err(e) if matches!(e.code(), Some(v1::Code::Unavailable | v1::Code::Busy)) => e,
                Err(e) => return Err(e),
            };
            // A draft is committed once: what is published says whether it was.
            if let Ok(attr) = self.stat(&commit.path, true)
                && attr.generation == commit.generation
            {
                return Ok(attr);
            }
            if Instant::now() >= *deadline.get_or_insert_with(|| Instant::now() + RETRY_LIMIT) {
                return Err(error);
            }
            std::thread::sleep(COMMIT_PAUSE);
        }
    }

    /// Reads `path` whole into `sink`; what `sink` has got is right only when this returns without error. A replica that
    /// turns out wrong at its end is reported; here that is the end, because `sink` cannot give back what it has.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn read_to(
        &self,
        path: &[u8],
        sink: &mut dyn Write,
        cancel: &Cancel,
    ) -> Result<Received, ClientError> {
        self.read_part_to(path, Part::All, sink, cancel)
    }

    /// As [`Self::read_to`], for a part.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn read_part_to(
        &self,
        path: &[u8],
        part: Part,
        sink: &mut dyn Write,
        cancel: &Cancel,
    ) -> Result<Received, ClientError> {
        self.read_into(path, part, None, &mut Forward(sink), cancel)
    }

    /// Reads a part of `path` into `sink`, from `first` if that node has it. A replica that turns out wrong at its end is
    /// reported, and another one read in its place if `sink` can give back what it has.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn read_into(
        &self,
        path: &[u8],
        part: Part,
        first: Option<&str>,
        sink: &mut dyn Sink,
        cancel: &Cancel,
    ) -> Result<Received, ClientError> {
        let mut grant = self.open(path)?;
        if let Some(first) = first {
            for fragment in &mut grant.fragments {
                fragment.places.sort_by_key(|p| p.node != first);
            }
        }
        let whole = grant.fragments.len();
        if let Part::Fragment(index) = part {
            grant.fragments.retain(|f| f.index == index);
            let Some(one) = grant.fragments.first() else {
                self.close(&grant);
                let path = String::from_utf8_lossy(path).into_owned();
                return Err(ClientError::Invalid(format!(
                    "{path}: no fragment {index}; it has {whole}, from 0"
                )));
            };
            let size = one.size_bytes;
            if let Some(attr) = &mut grant.attr {
                attr.size_bytes = size;
            }
        }
        let read = Reading::new(self, path, &grant, cancel).run(sink);
        self.close(&grant);
        read
    }

    /// Fetches `path` into the local file `to`, which appears whole, verified and flushed, or not at all.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn get(&self, path: &[u8], to: &Path, cancel: &Cancel) -> Result<Received, ClientError> {
        self.get_part(path, Part::All, None, to, cancel)
    }

    /// As [`Self::get`], for a part, and from `first` if that node has it.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn get_part(
        &self,
        path: &[u8],
        part: Part,
        first: Option<&str>,
        to: &Path,
        cancel: &Cancel,
    ) -> Result<Received, ClientError> {
        let aside = aside(to);
        let made = std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&aside);
        let mut file = made.map_err(|e| ClientError::local(&aside, e))?;
        let result = self
            .read_into(path, part, first, &mut file, cancel)
            .and_then(|received| {
                finish(&file, &aside, to, received.attr.mode).map_err(|e| ClientError::local(to, e))?;
                Ok(received)
            });
        if result.is_err() {
            let _ = std::fs::remove_file(&aside);
        }
        result
    }
}

fn aside(to: &Path) -> PathBuf {
    let mut name = to.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}.part", std::process::id()));
    to.with_file_name(name)
}

/// Mode, flush, name, flush of the folder.
fn finish(file: &File, aside: &Path, to: &Path, mode: u32) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    file.set_permissions(std::fs::Permissions::from_mode(mode & 0o777))?;
    file.sync_all()?;
    std::fs::rename(aside, to)?;
    let folder = to.parent().filter(|p| !p.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// Hexadecimal form.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Bytes of a hexadecimal form.
pub fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.chars().map(|c| c.to_digit(16)).collect::<Option<Vec<_>>>()?;
    let pairs = digits.chunks(2).map(|p| match p {
        [high, low] => Some((high * 16 + low) as u8),
        _ => None,
    });
    pairs.collect()
}

/// Reading one content, fragment after fragment.
struct Reading<'a> {
    grid: &'a Grid,
    path: &'a [u8],
    grant: &'a v1::ReadGrant,
    cancel: &'a Cancel,
    /// Of all fragments; one alone is its own.
    whole: Option<blake3::Hasher>,
    last: [u8; 32],
    nodes: Vec<String>,
    failovers: u32,
}

impl<'a> Reading<'a> {
    fn new(grid: &'a Grid, path: &'a [u8], grant: &'a v1::ReadGrant, cancel: &'a Cancel) -> Self {
        Self {
            grid,
            path,
            grant,
            cancel,
            whole: (grant.fragments.len() != 1).then(blake3::Hasher::new),
            last: [0; 32],
            nodes: Vec::new(),
            failovers: 0,
        }
    }

    fn run(mut self, sink: &mut dyn Sink) -> Result<Received, ClientError> {
        let mut bytes = 0;
        for fragment in &self.grant.fragments {
            self.fragment(fragment, bytes, sink)?;
            bytes += fragment.size_bytes;
        }
        if bytes != self.grant.attr.as_ref().map_or(0, |a| a.size_bytes) {
            return Err(ClientError::Protocol("fragments do not make up the file".into()));
        }
        Ok(Received {
            attr: self.grant.attr.clone().unwrap_or_default(),
            bytes,
            digest: self.whole.map_or(self.last, |w| *w.finalize().as_bytes()),
            nodes: self.nodes,
            failovers: self.failovers,
        })
    }

    /// Reads one fragment, which begins at byte `offset` of the sink, until a replica's content is right.
    fn fragment(
        &mut self,
        fragment: &v1::Fragment,
        offset: u64,
        sink: &mut dyn Sink,
    ) -> Result<(), ClientError> {
        let mut wrong: Vec<String> = Vec::new();
        let mut first: Option<ClientError> = None;
        loop {
            let before = self.whole.clone();
            let mut used = Vec::new();
            let digest = match self.one_reading(fragment, &wrong, &mut used, sink) {
                Ok(digest) => digest,
                Err(ClientError::NoReplica(why)) => return Err(first.unwrap_or(ClientError::NoReplica(why))),
                Err(e) => return Err(e),
            };
            if digest.as_bytes().as_slice() == fragment.digest {
                self.last = *digest.as_bytes();
                return Ok(());
            }
            for node in &used {
                // Who is reported looks for itself; that this got there does not matter to the reader.
                let _ = self.grid.report(self.path, fragment.index, node);
            }
            let error = ClientError::Digest(format!(
                "{}: the content from {} is not what the catalog knows (digest {digest}, known {})",
                String::from_utf8_lossy(self.path),
                used.join(", "),
                hex(&fragment.digest)
            ));
            let again = !used.is_empty()
                && sink
                    .take_back(offset)
                    .map_err(|e| ClientError::local("(destination)", e))?;
            if !again {
                return Err(error);
            }
            first.get_or_insert(error);
            wrong.append(&mut used);
            self.failovers += 1;
            self.whole = before;
            self.cancel
                .bytes
                .fetch_sub(fragment.size_bytes, Ordering::Relaxed);
        }
    }

    /// Reads a fragment from its replicas in turn, but not from those that gave something wrong; when all have failed, asks once
    /// where it is now. Gives the digest of what came, and adds the nodes that gave it to `used`.
    fn one_reading(
        &mut self,
        fragment: &v1::Fragment,
        wrong: &[String],
        used: &mut Vec<String>,
        sink: &mut dyn Sink,
    ) -> Result<blake3::Hash, ClientError> {
        let mut hasher = blake3::Hasher::new();
        let mut at = 0;
        let mut errors = Vec::new();
        let mut fresh: Option<v1::ReadGrant> = None;
        while at < fragment.size_bytes {
            let places = match &fresh {
                None => fragment.places.clone(),
                Some(grant) => places_of(grant, fragment),
            };
            for place in places.into_iter().filter(|p| !wrong.contains(&p.node)) {
                if at == fragment.size_bytes {
                    break;
                }
                let before = at;
                let read = self.read_place(&place, fragment, &mut at, &mut hasher, sink);
                if at > before {
                    used.push(place.node.clone());
                }
                match read {
                    Ok(()) => {}
                    Err(ClientError::Cancelled) => return Err(ClientError::Cancelled),
                    Err(e @ ClientError::Local { .. }) => return Err(e),
                    Err(e) => {
                        self.failovers += 1;
                        errors.push(format!("{}: {e}", place.node));
                    }
                }
            }
            if at < fragment.size_bytes {
                if let Some(grant) = fresh.take() {
                    self.grid.close(&grant);
                    return Err(self.unreadable(fragment, at, &errors));
                }
                let grant = self.grid.open(self.path)?;
                if grant.attr.as_ref().map(|a| a.generation) != self.grant.attr.as_ref().map(|a| a.generation)
                {
                    return Err(self.unreadable(fragment, at, &errors));
                }
                fresh = Some(grant);
            }
        }
        if let Some(grant) = fresh {
            self.grid.close(&grant);
        }
        Ok(hasher.finalize())
    }

    fn unreadable(&self, fragment: &v1::Fragment, at: u64, errors: &[String]) -> ClientError {
        let why = match errors {
            [] => "no replica is on a node that is up".to_owned(),
            errors => errors.join("; "),
        };
        ClientError::NoReplica(format!(
            "{}: no replica of fragment {} could be read from byte {at} on: {why}",
            String::from_utf8_lossy(self.path),
            fragment.index
        ))
    }

    fn used(&mut self, place: &v1::Place) {
        if self.nodes.last() != Some(&place.node) {
            self.nodes.push(place.node.clone());
        }
    }

    /// Reads from `at` to the end out of the file of a node on this host.
    fn read_near(
        &mut self,
        file: &File,
        fragment: &v1::Fragment,
        at: &mut u64,
        hasher: &mut blake3::Hasher,
        sink: &mut dyn Sink,
    ) -> Result<(), ClientError> {
        let range = *at..fragment.size_bytes;
        let mut take = |piece: &[u8]| {
            let written = sink.write_all(piece);
            written.map_err(|e| ClientError::local("(destination)", e))?;
            *at += piece.len() as u64;
            self.cancel.moved(piece.len())
        };
        match &mut self.whole {
            None => near::read(file, range, &mut [hasher], &mut take),
            Some(whole) => near::read(file, range, &mut [hasher, whole], &mut take),
        }
    }

    /// Reads from `at` to the end, or until the node fails.
    fn read_place(
        &mut self,
        place: &v1::Place,
        fragment: &v1::Fragment,
        at: &mut u64,
        hasher: &mut blake3::Hasher,
        sink: &mut dyn Sink,
    ) -> Result<(), ClientError> {
        self.cancel.check()?;
        if let Some(file) = self.grid.nodes.near.open(place, fragment.size_bytes) {
            self.used(place);
            return self.read_near(&file, fragment, at, hasher, sink);
        }
        let Dialled { mut http, kept } = self.grid.nodes.dial(place)?;
        http.set_limit(SILENCE)?;
        self.used(place);
        let mut local = None;
        let taken = Cell::new(false);
        let (start, left) = (*at, fragment.size_bytes - *at);
        let mut take = |piece: &[u8]| {
            taken.set(true);
            if let Err(e) = sink.write_all(piece) {
                local = Some(ClientError::local("(destination)", e));
                return Err(io::Error::other("stopped"));
            }
            hasher.update(piece);
            if let Some(whole) = &mut self.whole {
                whole.update(piece);
            }
            *at += piece.len() as u64;
            if let Err(e) = self.cancel.moved(piece.len()) {
                local = Some(e);
                return Err(io::Error::other("stopped"));
            }
            Ok(())
        };
        let mut fetched = http.get_range(&place.path, start, left, &mut take);
        let ended = matches!(
            fetched,
            Err(ServiceError::Peer { .. } | ServiceError::Protocol { .. })
        );
        // A kept connection that had ended while it was idle: nothing came of it.
        if kept && ended && !taken.get() {
            http = dial(place)?;
            http.set_limit(SILENCE)?;
            fetched = http.get_range(&place.path, start, left, &mut take);
        }
        match local {
            Some(e) => Err(e),
            None => {
                fetched?;
                self.grid.nodes.keep(place, http);
                Ok(())
            }
        }
    }
}

/// Where a fragment is by a newer grant.
pub(crate) fn places_of(grant: &v1::ReadGrant, fragment: &v1::Fragment) -> Vec<v1::Place> {
    let found = grant.fragments.iter().find(|f| f.index == fragment.index);
    found.map(|f| f.places.clone()).unwrap_or_default()
}

/// A source that cannot go back: what failed after its first byte cannot be tried at another node.
pub struct Once<R>(pub R);

impl<R: Read> Read for Once<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read(buf)
    }
}

impl<R> Seek for Once<R> {
    fn seek(&mut self, _: SeekFrom) -> io::Result<u64> {
        Err(io::ErrorKind::NotSeekable.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_comes_back() {
        assert_eq!(unhex(&hex(&[0, 255, 16])), Some(vec![0, 255, 16]));
        assert_eq!(unhex("abc"), None);
        assert_eq!(unhex("zz"), None);
    }
}
