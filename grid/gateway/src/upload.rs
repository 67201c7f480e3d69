//! Content on its way into the grid: pieces from an asynchronous task to the thread that puts them.
//!
//! ```text
//!   task ──write(piece)──> queue ──> Feed (counts, checks) ──> Grid::put ──> node, commit
//!        ──finish()──────> End ────> size and checksums right? ── no: given up
//!        (dropped)───────> closed ─> given up
//! ```
//!
//! So what is published is what was sent whole, and nothing else.

use std::io::{self, Read, Seek, SeekFrom};
use std::sync::{Arc, Mutex, PoisonError};

use hyper::StatusCode;
use hyper::body::Bytes;
use kuroshio_client::{Cancel, ClientError, PutOptions, Sent, host_name};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::digest::{Algorithm, Hasher};
use crate::refusal::Refusal;
use crate::session::Session;

/// Pieces that wait for the thread.
const QUEUE: usize = 8;
/// Content up to this size can begin anew at another node when the first one fails, bytes.
const REPLAY_BYTES: usize = 4 * 1024 * 1024;
/// Permission bits of a new file.
const FILE_MODE: u32 = 0o644;

/// What the content must be.
#[derive(Debug, Clone, Default)]
pub struct Expected {
    /// Bytes.
    pub size: Option<u64>,
    /// Checksums.
    pub digests: Vec<(Algorithm, Vec<u8>)>,
}

enum Piece {
    Bytes(Bytes),
    End,
}

/// Why the source refused, for the client.
type Reason = Arc<Mutex<Option<Refusal>>>;

/// An upload; dropping it gives it up.
pub struct Upload {
    pieces: mpsc::Sender<Piece>,
    put: JoinHandle<Result<Sent, ClientError>>,
    reason: Reason,
}

impl Upload {
    /// Begins to give `path` new content.
    pub fn start(session: Arc<Session>, path: Vec<u8>, expected: Expected, exclusive: bool) -> Self {
        let (pieces, queue) = mpsc::channel(QUEUE);
        let reason = Reason::default();
        let size_hint = expected.size.unwrap_or(0);
        let mut feed = Feed::new(queue, expected, reason.clone());
        let put = tokio::task::spawn_blocking(move || {
            let options = PutOptions {
                exclusive,
                mode: FILE_MODE,
                umask: 0,
                near_host: host_name(),
                mtime_ns: None,
            };
            let grid = session.grid();
            grid.put(&path, &mut feed, size_hint, &options, &Cancel::default())
        });
        Self { pieces, put, reason }
    }

    /// Goes on with these bytes.
    ///
    /// # Errors
    /// The upload has failed; [`Self::finish`] says why.
    pub async fn write(&mut self, bytes: Bytes) -> Result<(), Failed> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.pieces.send(Piece::Bytes(bytes)).await.map_err(|_| Failed)
    }

    /// The content is whole: publishes it. Durable when this returns.
    pub async fn finish(self) -> Result<Sent, Refusal> {
        // Whoever reads them may have failed: then that is the answer.
        let _ = self.pieces.send(Piece::End).await;
        drop(self.pieces);
        let sent = match self.put.await {
            Ok(sent) => sent,
            Err(e) => return Err(Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, e.to_string())),
        };
        let reason = self.reason.lock().unwrap_or_else(PoisonError::into_inner).take();
        sent.map_err(|e| reason.unwrap_or_else(|| e.into()))
    }
}

/// The thread that takes the pieces has ended.
#[derive(Debug)]
pub struct Failed;

/// The pieces as a source.
struct Feed {
    queue: mpsc::Receiver<Piece>,
    piece: Bytes,
    /// What has come so far, as long as it is little; and how much of it was read again.
    kept: Option<Vec<u8>>,
    replayed: usize,
    count: u64,
    hashers: Vec<Hasher>,
    expected: Expected,
    ended: bool,
    reason: Reason,
}

impl Feed {
    fn new(queue: mpsc::Receiver<Piece>, expected: Expected, reason: Reason) -> Self {
        Self {
            queue,
            piece: Bytes::new(),
            kept: Some(Vec::new()),
            replayed: 0,
            count: 0,
            hashers: expected.digests.iter().map(|(a, _)| Hasher::new(*a)).collect(),
            expected,
            ended: false,
            reason,
        }
    }

    fn refuse(&self, refusal: Refusal) -> io::Error {
        let error = io::Error::other(refusal.text.clone());
        *self.reason.lock().unwrap_or_else(PoisonError::into_inner) = Some(refusal);
        error
    }

    /// The next piece into `self.piece`; false at the end of right content.
    fn next(&mut self) -> io::Result<bool> {
        match self.queue.blocking_recv() {
            Some(Piece::Bytes(bytes)) => {
                self.count += bytes.len() as u64;
                self.hashers.iter_mut().for_each(|h| h.update(&bytes));
                self.kept = self.kept.take().filter(|k| k.len() + bytes.len() <= REPLAY_BYTES);
                if let Some(kept) = &mut self.kept {
                    kept.extend_from_slice(&bytes);
                    self.replayed = kept.len();
                }
                self.piece = bytes;
                Ok(true)
            }
            Some(Piece::End) => {
                self.check()?;
                self.ended = true;
                Ok(false)
            }
            None => Err(self.refuse(Refusal::bad("the content broke off: nothing was changed"))),
        }
    }

    fn check(&mut self) -> io::Result<()> {
        if let Some(size) = self.expected.size
            && size != self.count
        {
            let text = format!("{} bytes came of {size}: nothing was changed", self.count);
            return Err(self.refuse(Refusal::bad(text)));
        }
        let hashers = std::mem::take(&mut self.hashers);
        for (hasher, (algorithm, expected)) in hashers.into_iter().zip(&self.expected.digests) {
            let found = hasher.finish();
            if &found != expected {
                let text = format!(
                    "the content is not what was promised: {} came, {} was promised; nothing was changed",
                    algorithm.legacy(&found),
                    algorithm.legacy(expected)
                );
                return Err(self.refuse(Refusal::bad(text)));
            }
        }
        Ok(())
    }
}

impl Read for Feed {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if let Some(kept) = &self.kept
            && let Some(again) = kept.get(self.replayed..)
            && !again.is_empty()
        {
            let n = again.len().min(buf.len());
            copy(buf, again, n);
            self.replayed += n;
            return Ok(n);
        }
        if self.piece.is_empty() && (self.ended || !self.next()?) {
            return Ok(0);
        }
        let n = self.piece.len().min(buf.len());
        let taken = self.piece.split_to(n);
        copy(buf, &taken, n);
        Ok(n)
    }
}

fn copy(to: &mut [u8], from: &[u8], n: usize) {
    if let (Some(to), Some(from)) = (to.get_mut(..n), from.get(..n)) {
        to.copy_from_slice(from);
    }
}

/// Only back to the beginning, and only while the content is small.
impl Seek for Feed {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        if self.kept.is_none() || to != SeekFrom::Start(0) {
            return Err(io::ErrorKind::NotSeekable.into());
        }
        // A piece that was not read to its end is in what was kept.
        self.piece.clear();
        self.replayed = 0;
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed(pieces: &[&[u8]], end: bool, expected: Expected) -> (Feed, Reason) {
        let (tx, rx) = mpsc::channel(16);
        for piece in pieces {
            let sent = tx.try_send(Piece::Bytes(Bytes::copy_from_slice(piece)));
            assert!(sent.is_ok(), "room");
        }
        if end {
            assert!(tx.try_send(Piece::End).is_ok(), "room");
        }
        let reason = Reason::default();
        (Feed::new(rx, expected, reason.clone()), reason)
    }

    fn all(feed: &mut Feed) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        feed.read_to_end(&mut out).map(|_| out)
    }

    #[test]
    fn small_content_can_begin_anew() {
        let (mut feed, _) = feed(&[b"abc", b"defg"], true, Expected::default());
        let mut first = [0; 4];
        feed.read_exact(&mut first).expect("read");
        assert_eq!(&first, b"abcd");
        feed.rewind().expect("small");
        assert_eq!(all(&mut feed).expect("whole"), b"abcdefg");
        feed.rewind().expect("small");
        assert_eq!(all(&mut feed).expect("again"), b"abcdefg");
        let large = vec![7; REPLAY_BYTES + 1];
        let (mut feed, _) = self::feed(&[&large], true, Expected::default());
        feed.read_exact(&mut first).expect("read");
        assert!(feed.rewind().is_err());
        assert_eq!(all(&mut feed).expect("rest").len(), large.len() - 4);
    }

    #[test]
    fn only_what_was_promised_ends_well() {
        let md5 = |text: &[u8]| {
            let mut hasher = Hasher::new(Algorithm::Md5);
            hasher.update(text);
            (Algorithm::Md5, hasher.finish())
        };
        let with = |size, digests| Expected { size, digests };
        let table = [
            (true, with(Some(3), vec![md5(b"abc")]), true),
            (true, with(Some(4), vec![]), false),
            (true, with(Some(2), vec![]), false),
            (true, with(None, vec![md5(b"abd")]), false),
            (false, with(Some(3), vec![md5(b"abc")]), false),
        ];
        for (end, expected, good) in table {
            let (mut feed, reason) = feed(&[b"abc"], end, expected.clone());
            assert_eq!(all(&mut feed).is_ok(), good, "{end} {expected:?}");
            assert_eq!(reason.lock().expect("not poisoned").is_none(), good);
        }
    }
}
