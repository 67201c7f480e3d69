//! Files of several fragments: one process writes all of them at once, or each of many processes writes its own.
//!
//! ```text
//!   one process:     create(n) ──> n grants ──threads──> nodes ──n receipts──> commit
//!   many processes:  begin ──Draft (a secret file)──> put_fragment, each its own, anywhere ──> finish
//! ```
//!
//! The file appears with all fragments at once. A process that writes its own fragment uses the node on its own host
//! when there is one: then no byte of it crosses the network, now or when it is computed on there.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::Path;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};

use kuroshio_proto::{object_path, v1};
use serde::{Deserialize, Serialize};

use crate::content::{Cancel, PutOptions};
use crate::error::ClientError;
use crate::grid::{Grid, host_name};
use crate::pool::Pool;
use crate::send::{Kept, store};

/// Fragments that one process writes at once.
const AT_ONCE: usize = 16;

/// A node that may take a fragment.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DraftPlace {
    /// Its name.
    pub node: String,
    /// `HOST:PORT` of its data service.
    pub address: String,
    /// Its key's fingerprint.
    pub pin: String,
}

/// The right to write the fragments of one new content. It is a secret.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Draft {
    /// File that will have it.
    pub path: String,
    /// The file's number.
    pub inode: u64,
    /// The content's.
    pub generation: u64,
    /// Allows to write it at any node.
    pub token: String,
    /// For each fragment, nodes that would take it, best first.
    pub fragments: Vec<Vec<DraftPlace>>,
}

impl Draft {
    fn place(&self, fragment: u32, at: &DraftPlace) -> v1::Place {
        v1::Place {
            node: at.node.clone(),
            address: at.address.clone(),
            pin: at.pin.clone(),
            path: object_path(self.inode, self.generation, fragment),
            token: self.token.clone(),
            up: true,
            ..v1::Place::default()
        }
    }
}

fn draft_of(path: &[u8], grant: v1::WriteGrant) -> Result<Draft, ClientError> {
    let path =
        std::str::from_utf8(path).map_err(|_| ClientError::Invalid("a path that is not UTF-8".into()))?;
    let fragments = grant.fragments.into_iter().map(|f| {
        let places = f.places.into_iter().map(|p| DraftPlace {
            node: p.node,
            address: p.address,
            pin: p.pin,
        });
        places.collect::<Vec<_>>()
    });
    Ok(Draft {
        path: path.to_owned(),
        inode: grant.inode,
        generation: grant.generation,
        token: grant.token,
        fragments: fragments.collect(),
    })
}

fn written(index: u32, node: &str, kept: Kept) -> v1::WrittenFragment {
    let receipt = v1::Receipt {
        node: node.to_owned(),
        mac: kept.mac,
    };
    v1::WrittenFragment {
        index,
        size_bytes: kept.size,
        digest: kept.digest.to_vec(),
        // Nothing is stored of an empty one.
        receipts: if kept.size == 0 { Vec::new() } else { vec![receipt] },
    }
}

/// Cuts a file into `count` nearly equal ranges; `lines`: each ends after a line's end.
///
/// # Errors
/// The file cannot be read.
pub fn cut(path: &Path, count: u32, lines: bool) -> io::Result<Vec<Range<u64>>> {
    let file = File::open(path)?;
    let size = file.metadata()?.len();
    let mut reader = BufReader::new(file);
    let mut ranges = Vec::with_capacity(count as usize);
    let mut start = 0;
    for n in 1..=u64::from(count) {
        let even = u128::from(size) * u128::from(n) / u128::from(count.max(1));
        let mut end = u64::try_from(even).unwrap_or(size).max(start);
        if lines && end > start && end < size {
            // The line that the last byte is of ends here or later.
            reader.seek(SeekFrom::Start(end - 1))?;
            end = end - 1 + skip_line(&mut reader)?;
        }
        ranges.push(start..end);
        start = end;
    }
    Ok(ranges)
}

/// Bytes to the end of the line, its end included.
fn skip_line(reader: &mut impl BufRead) -> io::Result<u64> {
    let mut bytes = 0;
    loop {
        let buffer = reader.fill_buf()?;
        if buffer.is_empty() {
            return Ok(bytes);
        }
        let found = buffer.iter().position(|b| *b == b'\n');
        let used = found.map_or(buffer.len(), |at| at + 1);
        reader.consume(used);
        bytes += used as u64;
        if found.is_some() {
            return Ok(bytes);
        }
    }
}

/// A range of a file, as if it were all of it.
struct Section {
    file: File,
    left: u64,
}

impl Section {
    fn open(path: &Path, range: &Range<u64>) -> io::Result<Self> {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::Start(range.start))?;
        let left = range.end - range.start;
        Ok(Self { file, left })
    }
}

impl Read for Section {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let most = buf.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let got = self.file.read(buf.get_mut(..most).unwrap_or_default())?;
        self.left -= got as u64;
        Ok(got)
    }
}

impl Grid {
    /// Gives `path` the content of a local file as one fragment for each of `ranges`, written at once to several nodes.
    ///
    /// # Errors
    /// See [`ClientError`]; the file is as before then.
    pub fn put_fragments(
        &self,
        path: &[u8],
        local: &Path,
        ranges: &[Range<u64>],
        options: &PutOptions,
        cancel: &Cancel,
    ) -> Result<v1::Attr, ClientError> {
        let count = u32::try_from(ranges.len()).unwrap_or(u32::MAX);
        let grant = self.create(v1::CreateRequest {
            path: path.to_vec(),
            exclusive: options.exclusive,
            size_hint_bytes: ranges.last().map_or(0, |r| r.end),
            fragments: count,
            mode: options.mode,
            umask: options.umask,
            mtime_ns: options.mtime_ns,
            ..v1::CreateRequest::default()
        })?;
        let (new_file, token) = (grant.new_file, grant.token.clone());
        let draft = draft_of(path, grant)?;
        let sent = send_all(&self.nodes, &draft, local, ranges, cancel);
        let fragments = match sent {
            Ok(fragments) => fragments,
            Err(e) => {
                let _ = self.abandon(draft.inode, draft.generation, &token);
                return Err(e);
            }
        };
        self.publish_all(v1::CommitRequest {
            path: path.to_vec(),
            inode: draft.inode,
            generation: draft.generation,
            new_file,
            exclusive: options.exclusive,
            mode: options.mode,
            umask: options.umask,
            fragments,
            token,
            mtime_ns: options.mtime_ns,
            ..v1::CommitRequest::default()
        })
    }

    /// Begins a content of `count` fragments: processes write them, wherever they run, and [`Self::finish_fragments`]
    /// publishes it. Who begins the same file with the same number meanwhile joins. A file that is not there is made empty.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn begin_fragments(
        &self,
        path: &[u8],
        count: u32,
        options: &PutOptions,
    ) -> Result<Draft, ClientError> {
        let begin = || {
            self.create(v1::CreateRequest {
                path: path.to_vec(),
                fragments: count,
                join: true,
                mtime_ns: options.mtime_ns,
                ..v1::CreateRequest::default()
            })
        };
        let mut grant = begin()?;
        if grant.new_file {
            let _ = self.abandon(grant.inode, grant.generation, &grant.token);
            let options = PutOptions {
                exclusive: true,
                ..options.clone()
            };
            match self.put(path, &mut io::empty(), 0, &options, &Cancel::default()) {
                Err(e) if e.code() == Some(v1::Code::Exists) => {}
                made => drop(made?),
            }
            grant = begin()?;
        }
        draft_of(path, grant)
    }

    /// Publishes a draft if this process was the last one; whether it is published now.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn try_finish_fragments(&self, draft: &Draft) -> Result<bool, ClientError> {
        match self.finish_fragments(draft) {
            Ok(_) => Ok(true),
            // Others write still.
            Err(e) if e.code() == Some(v1::Code::Invalid) => Ok(false),
            // Another one was last too.
            Err(e) => match self.stat(draft.path.as_bytes(), true) {
                Ok(attr) if attr.generation == draft.generation => Ok(true),
                _ => Err(e),
            },
        }
    }

    /// Writes one fragment of a draft: to `node` if it is named, else to one on this host, else to the best.
    ///
    /// # Errors
    /// See [`ClientError`]; a fragment is written once.
    pub fn put_fragment(
        &self,
        draft: &Draft,
        index: u32,
        source: &mut impl Read,
        node: Option<&str>,
        cancel: &Cancel,
    ) -> Result<String, ClientError> {
        let Some(places) = draft.fragments.get(index as usize) else {
            return Err(ClientError::Invalid(format!(
                "fragment {index}: the draft has {}, from 0",
                draft.fragments.len()
            )));
        };
        let at = match self.node_for(node)? {
            Some(at) => at,
            None => places
                .first()
                .cloned()
                .ok_or_else(|| ClientError::Protocol("a draft without places".into()))?,
        };
        let kept = store(&self.nodes, &draft.place(index, &at), source, cancel)?;
        let one = written(index, &at.node, kept);
        self.stage(v1::StageRequest {
            inode: draft.inode,
            generation: draft.generation,
            fragment: index,
            size_bytes: one.size_bytes,
            digest: one.digest,
            receipt: one.receipts.into_iter().next(),
            token: draft.token.clone(),
        })?;
        Ok(at.node)
    }

    /// The named node, or one on this host.
    fn node_for(&self, named: Option<&str>) -> Result<Option<DraftPlace>, ClientError> {
        let host = host_name();
        let up = self.nodes()?.into_iter().filter(|n| n.state == "up" && n.joined);
        let mut fit = up.filter(|n| match named {
            Some(name) => n.name == name,
            None => !host.is_empty() && n.host == host,
        });
        let found = fit.next().map(|n| DraftPlace {
            node: n.name,
            address: n.address,
            pin: n.pin,
        });
        match (found, named) {
            (None, Some(name)) => Err(ClientError::Invalid(format!(
                "node {name} is not there or not up"
            ))),
            (found, _) => Ok(found),
        }
    }

    /// Publishes a draft whose fragments are all written.
    ///
    /// # Errors
    /// See [`ClientError`]; one that is missing is named.
    pub fn finish_fragments(&self, draft: &Draft) -> Result<v1::Attr, ClientError> {
        self.publish_all(v1::CommitRequest {
            path: draft.path.clone().into_bytes(),
            inode: draft.inode,
            generation: draft.generation,
            token: draft.token.clone(),
            staged: u32::try_from(draft.fragments.len()).unwrap_or(u32::MAX),
            ..v1::CommitRequest::default()
        })
    }
}

/// Sends every range to a place of its fragment; the second when the first fails.
fn send_all(
    nodes: &Pool,
    draft: &Draft,
    local: &Path,
    ranges: &[Range<u64>],
    cancel: &Cancel,
) -> Result<Vec<v1::WrittenFragment>, ClientError> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(ranges.len()));
    let failed = Mutex::new(None);
    let work = || {
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            let Some(range) = ranges.get(n) else { return };
            let index = u32::try_from(n).unwrap_or(u32::MAX);
            match send_one((nodes, draft), index, local, range, cancel) {
                Ok(one) => done.lock().unwrap_or_else(PoisonError::into_inner).push(one),
                Err(e) => {
                    failed
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .get_or_insert(e);
                    // The others need not go on.
                    next.store(ranges.len(), Ordering::Relaxed);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE.min(ranges.len()) {
            scope.spawn(work);
        }
    });
    match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(e) => Err(e),
        None => Ok(done.into_inner().unwrap_or_else(PoisonError::into_inner)),
    }
}

fn send_one(
    (nodes, draft): (&Pool, &Draft),
    index: u32,
    local: &Path,
    range: &Range<u64>,
    cancel: &Cancel,
) -> Result<v1::WrittenFragment, ClientError> {
    let places = draft.fragments.get(index as usize).map_or(&[][..], Vec::as_slice);
    let mut last = ClientError::Protocol("a draft without places".into());
    for at in places {
        let mut section = Section::open(local, range).map_err(|e| ClientError::local(local, e))?;
        match store(nodes, &draft.place(index, at), &mut section, cancel) {
            Ok(kept) => return Ok(written(index, &at.node, kept)),
            Err(e @ ClientError::Service(_)) => last = e,
            Err(e) => return Err(e),
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_are_the_whole_and_keep_lines() {
        let dir = tempfile::tempdir().expect("folder");
        let path = dir.path().join("f");
        let text = "one\ntwo two\n\nthree\nlast without end";
        std::fs::write(&path, text).expect("written");
        for count in 1..12 {
            for lines in [false, true] {
                let ranges = cut(&path, count, lines).expect("cut");
                assert_eq!(ranges.len(), count as usize);
                let mut at = 0;
                for r in &ranges {
                    assert_eq!(r.start, at);
                    at = r.end;
                    let ends_a_line =
                        r.end == text.len() as u64 || text.as_bytes()[r.end as usize - 1] == b'\n';
                    assert!(!lines || r.is_empty() || ends_a_line, "{count} {r:?}");
                }
                assert_eq!(at, text.len() as u64);
            }
        }
        let mut read = String::new();
        let mut section = Section::open(&path, &(4..11)).expect("opened");
        section.read_to_string(&mut read).expect("read");
        assert_eq!(read, "two two");
    }
}
