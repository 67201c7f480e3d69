//! Reading published content from nodes.
//!
//! ```text
//!   read ── in order ──> block (1 MiB) ── there? ──> answer;   blocks ahead are fetched by workers: 2, 4, ... 8
//!        └─ elsewhere ─> exactly that range
//!   range ──> replica 1 ──(fails at byte n)──> replica 2 from n on ──> ... ──> places asked anew, once ──> EIO
//! ```
//!
//! A replica on this host is read from its node's own file. A fragment that is fetched whole is compared with its digest; the digests of larger ones are the node's matter
//! (scrub).

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::time::{Duration, Instant};

use fuser::Errno;
use kuroshio_client::{Near, v1};
use kuroshio_service::{Endpoint, HttpConn, ServiceError};

/// Bytes that are fetched at once when a file is read in order.
pub const BLOCK_BYTES: u64 = 1024 * 1024;
/// Most blocks that are fetched ahead of a reader.
const MAX_AHEAD: u64 = 8;
/// Blocks kept behind the reader.
const BEHIND: u64 = 2;
/// Threads that fetch ahead, of one mount.
const WORKERS: usize = 4;
/// Longest silence of a data service before another replica is asked.
const SILENCE: Duration = Duration::from_secs(5);
/// Connections kept to one node.
const MAX_IDLE: usize = 8;
/// A connection that was not used for so long is not used again.
const IDLE_LIMIT: Duration = Duration::from_secs(15);

/// Connections to data services that wait to be used.
pub struct Pool {
    idle: Mutex<HashMap<String, Vec<(Instant, HttpConn)>>>,
    /// Nodes of this host.
    pub near: Near,
}

fn key(place: &v1::Place) -> String {
    format!("{} {}", place.address, place.pin)
}

impl Pool {
    /// No connections yet; nodes of this host directly if that is wanted.
    pub fn new(near: bool) -> Self {
        Self {
            idle: Mutex::default(),
            near: Near::new(near),
        }
    }

    /// A connection that waits, with the right of this place.
    pub fn kept(&self, place: &v1::Place) -> Option<HttpConn> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = idle.get_mut(&key(place))?;
        waiting.retain(|(since, _)| since.elapsed() < IDLE_LIMIT);
        let (_, mut conn) = waiting.pop()?;
        drop(idle);
        conn.use_token(&place.token);
        Some(conn)
    }

    /// A new connection.
    pub fn dial(&self, place: &v1::Place) -> Result<HttpConn, ServiceError> {
        let pin = place
            .pin
            .parse()
            .map_err(|e| ServiceError::Invalid(format!("node {}: its pin is not one ({e})", place.node)))?;
        Endpoint::pinned(&place.address, pin, place.token.clone())?.dial(None, None)
    }

    /// Keeps a connection whose last answer was read to its end.
    pub fn give(&self, place: &v1::Place, conn: HttpConn) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = idle.entry(key(place)).or_default();
        if waiting.len() < MAX_IDLE {
            waiting.push((Instant::now(), conn));
        }
    }
}

type Work = Box<dyn FnOnce() + Send>;

/// Threads that fetch ahead.
pub struct Workers {
    queue: mpsc::Sender<Work>,
}

impl Workers {
    /// Starts them; they end with the last handle.
    pub fn start() -> std::io::Result<Self> {
        let (queue, work) = mpsc::channel::<Work>();
        let work = Arc::new(Mutex::new(work));
        for _ in 0..WORKERS {
            let work = work.clone();
            std::thread::Builder::new().name("ahead".into()).spawn(move || {
                loop {
                    let next = work.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok(next) = next else { return };
                    next();
                }
            })?;
        }
        Ok(Self { queue })
    }

    fn run(&self, work: Work) {
        // Without workers nothing is fetched ahead.
        let _ = self.queue.send(work);
    }
}

#[derive(Clone)]
enum Block {
    Coming,
    Here(Arc<Vec<u8>>),
    Failed(Errno),
}

#[derive(Default)]
struct Window {
    blocks: BTreeMap<u64, Block>,
    /// Where the last read has ended.
    next: u64,
    /// Blocks to be fetched ahead.
    ahead: u64,
}

/// One published content that is open to be read.
pub struct Content {
    /// Its generation.
    pub generation: u64,
    /// Payload bytes.
    pub size: u64,
    fragments: Mutex<Vec<v1::Fragment>>,
    window: Mutex<Window>,
    came: Condvar,
    /// Its file, if a node of this host has it.
    local: OnceLock<Option<File>>,
}

/// What fetching needs from the file system.
pub trait Source: Send + Sync + 'static {
    /// Connections.
    fn pool(&self) -> &Pool;
    /// Threads.
    fn workers(&self) -> &Workers;
    /// Where the fragments are now, with new rights; none if the content is another one.
    fn places_anew(&self) -> Option<Vec<v1::Fragment>>;
}

impl Content {
    /// Content as it was opened.
    pub fn new(generation: u64, size: u64, fragments: Vec<v1::Fragment>) -> Self {
        Self {
            generation,
            size,
            fragments: Mutex::new(fragments),
            window: Mutex::default(),
            came: Condvar::new(),
            local: OnceLock::new(),
        }
    }

    /// The file of a content in one fragment that a node of this host has.
    fn local(&self, source: &Arc<dyn Source>) -> Option<&File> {
        let found = self.local.get_or_init(|| match self.fragments().as_slice() {
            [only] => only
                .places
                .iter()
                .find_map(|p| source.pool().near.open(p, only.size_bytes)),
            _ => None,
        });
        found.as_ref()
    }

    fn read_near(&self, source: &Arc<dyn Source>, range: &Range<u64>) -> Option<Vec<u8>> {
        let file = self.local(source)?;
        let mut out = vec![0; usize::try_from(range.end - range.start).ok()?];
        match file.read_exact_at(&mut out, range.start) {
            Ok(()) => Some(out),
            Err(e) => {
                tracing::warn!("the file of an object cannot be read on this host: {e}");
                None
            }
        }
    }

    fn window(&self) -> MutexGuard<'_, Window> {
        self.window.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fragments(&self) -> MutexGuard<'_, Vec<v1::Fragment>> {
        self.fragments.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads a range that lies within the content.
    pub fn read(self: &Arc<Self>, source: &Arc<dyn Source>, range: Range<u64>) -> Result<Vec<u8>, Errno> {
        if let Some(bytes) = self.read_near(source, &range) {
            return Ok(bytes);
        }
        let near = {
            let mut window = self.window();
            let near = self.size <= BLOCK_BYTES || range.start.abs_diff(window.next) <= 2 * BLOCK_BYTES;
            window.next = range.end;
            if !near {
                window.ahead = 0;
            }
            near
        };
        if !near {
            return self.fetch(source, range);
        }
        let mut out = Vec::with_capacity(usize::try_from(range.end - range.start).unwrap_or(0));
        let mut at = range.start;
        while at < range.end {
            let index = at / BLOCK_BYTES;
            let block = self.block(source, index)?;
            let first = index * BLOCK_BYTES;
            let from = usize::try_from(at - first).unwrap_or(usize::MAX);
            let to = usize::try_from(range.end - first)
                .unwrap_or(usize::MAX)
                .min(block.len());
            let piece = block.get(from..to).filter(|p| !p.is_empty()).ok_or(Errno::EIO)?;
            out.extend_from_slice(piece);
            at += piece.len() as u64;
        }
        Ok(out)
    }

    fn extent(&self, index: u64) -> Range<u64> {
        let start = index * BLOCK_BYTES;
        start..(start + BLOCK_BYTES).min(self.size)
    }

    /// A block, fetched now if it is not there; begins those ahead of it.
    fn block(self: &Arc<Self>, source: &Arc<dyn Source>, index: u64) -> Result<Arc<Vec<u8>>, Errno> {
        let mut window = self.window();
        loop {
            match window.blocks.get(&index).cloned() {
                Some(Block::Here(bytes)) => {
                    self.begin_ahead(source, &mut window, index);
                    return Ok(bytes);
                }
                Some(Block::Failed(e)) => {
                    // The next read tries again.
                    window.blocks.remove(&index);
                    return Err(e);
                }
                Some(Block::Coming) => {
                    window = self.came.wait(window).unwrap_or_else(PoisonError::into_inner);
                }
                None => {
                    window.blocks.insert(index, Block::Coming);
                    self.begin_ahead(source, &mut window, index);
                    drop(window);
                    self.load(source, index);
                    window = self.window();
                }
            }
        }
    }

    fn load(self: &Arc<Self>, source: &Arc<dyn Source>, index: u64) {
        let block = match self.fetch(source, self.extent(index)) {
            Ok(bytes) => Block::Here(Arc::new(bytes)),
            Err(e) => Block::Failed(e),
        };
        self.window().blocks.insert(index, block);
        self.came.notify_all();
    }

    fn begin_ahead(self: &Arc<Self>, source: &Arc<dyn Source>, window: &mut Window, index: u64) {
        let count = self.size.div_ceil(BLOCK_BYTES);
        // A block that is on its way stays: somebody waits for it.
        window
            .blocks
            .retain(|i, b| *i + BEHIND >= index || matches!(b, Block::Coming));
        let last = (index + window.ahead).min(count.saturating_sub(1));
        for ahead in index + 1..=last {
            if window.blocks.contains_key(&ahead) {
                continue;
            }
            window.blocks.insert(ahead, Block::Coming);
            let (content, from) = (self.clone(), source.clone());
            source.workers().run(Box::new(move || content.load(&from, ahead)));
        }
        window.ahead = (window.ahead * 2).clamp(2, MAX_AHEAD);
    }

    /// Fetches a range from whichever replicas give it.
    pub fn fetch(&self, source: &Arc<dyn Source>, range: Range<u64>) -> Result<Vec<u8>, Errno> {
        if let Some(bytes) = self.read_near(source, &range) {
            return Ok(bytes);
        }
        let mut out = Vec::with_capacity(usize::try_from(range.end - range.start).unwrap_or(0));
        let fragments = self.fragments().clone();
        let mut first = 0;
        for fragment in &fragments {
            let end = first + fragment.size_bytes;
            let (from, to) = (range.start.max(first), range.end.min(end));
            if from < to {
                self.fetch_fragment(source, fragment, from - first..to - first, &mut out)?;
            }
            first = end;
        }
        if out.len() as u64 == range.end - range.start {
            Ok(out)
        } else {
            tracing::error!(
                "fragments of {} bytes do not make up a file of {}",
                first,
                self.size
            );
            Err(Errno::EIO)
        }
    }

    fn fetch_fragment(
        &self,
        source: &Arc<dyn Source>,
        fragment: &v1::Fragment,
        range: Range<u64>,
        out: &mut Vec<u8>,
    ) -> Result<(), Errno> {
        let mut places = fragment.places.clone();
        for again in [true, false] {
            for place in &places {
                match fetch_place(source.pool(), place, fragment, &range, out) {
                    Ok(()) => {
                        self.prefer(fragment.index, &place.node);
                        return Ok(());
                    }
                    Err(e) => tracing::warn!(node = place.node, "a replica cannot be read: {e}"),
                }
            }
            if !again {
                break;
            }
            let Some(fresh) = source.places_anew() else {
                break;
            };
            let found = fresh.iter().find(|f| f.index == fragment.index);
            places = found.map(|f| f.places.clone()).unwrap_or_default();
            *self.fragments() = fresh;
        }
        tracing::error!("no replica of fragment {} can be read", fragment.index);
        Err(Errno::EIO)
    }

    /// The replica that answered is asked first from now on.
    fn prefer(&self, index: u32, node: &str) {
        let mut fragments = self.fragments();
        if let Some(fragment) = fragments.iter_mut().find(|f| f.index == index)
            && fragment.places.first().is_some_and(|p| p.node != node)
        {
            fragment.places.sort_by_key(|p| p.node != node);
        }
    }
}

/// Fetches what is missing of a range from one replica; what came before it failed stays.
fn fetch_place(
    pool: &Pool,
    place: &v1::Place,
    fragment: &v1::Fragment,
    range: &Range<u64>,
    out: &mut Vec<u8>,
) -> Result<(), String> {
    let whole = *range == (0..fragment.size_bytes);
    let begin = out.len();
    let mut kept = pool.kept(place);
    loop {
        let was_kept = kept.is_some();
        let mut conn = match kept.take() {
            Some(conn) => conn,
            None => pool.dial(place).map_err(|e| e.to_string())?,
        };
        let before = out.len();
        let done = (before - begin) as u64;
        let left = range.end - range.start - done;
        let fetched = conn.set_limit(SILENCE).and_then(|()| {
            conn.get_range(&place.path, range.start + done, left, &mut |piece| {
                out.extend_from_slice(piece);
                Ok(())
            })
        });
        match fetched {
            Ok(()) => {
                pool.give(place, conn);
                break;
            }
            // The node had closed it meanwhile: that says nothing about the replica.
            Err(ServiceError::Peer { .. } | ServiceError::Protocol { .. })
                if was_kept && out.len() == before => {}
            Err(e) => {
                // The pieces so far are right only as far as they can be checked with the rest.
                if whole {
                    out.truncate(begin);
                }
                return Err(e.to_string());
            }
        }
    }
    let bytes = out.get(begin..).unwrap_or_default();
    if whole && blake3::hash(bytes).as_bytes().as_slice() != fragment.digest {
        out.truncate(begin);
        return Err("its content is not what the catalog knows".into());
    }
    Ok(())
}
