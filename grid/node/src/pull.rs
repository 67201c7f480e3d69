//! Fetches an object, or a part of one, from another node.
//!
//! ```text
//!   parts of one object ──> one writer ── whole? ──> verified, flushed, named (by the part that was last)
//!      each: streams ──asks for pieces, several under way──> source       (pace: see `flow`)
//! ```
//!
//! What was fetched before a restart is not fetched again. The spool verifies the whole before it counts.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kuroshio_client::v1;
use kuroshio_proto::PACE_HEADER;
use kuroshio_service::{Endpoint, HttpConn};
use kuroshio_store::{Begin, Finish, Holes, Meta, ObjectId, ObjectWriter, StoreError};

use crate::flow::Flow;
use crate::server::Shared;

/// Longest silence of a source that owes bytes.
const SILENCE: Duration = Duration::from_secs(10);
/// A connection that was not used for so long is opened anew: the source ends it after 10 s.
const IDLE: Duration = Duration::from_secs(5);
/// Smallest and largest piece that is asked for at once, bytes.
const LEAST_PIECE: u64 = 256 << 10;
const LARGEST_PIECE: u64 = 4 << 20;
/// Bytes under way on one stream without a rate.
const FREE_BYTES: u64 = 32 << 20;
/// A piece is what comes in so long.
const PIECE_MS: u64 = 250;
/// What is under way lasts so long beyond the round trip.
const AHEAD: Duration = Duration::from_millis(400);
/// Longest wait for the right to ask.
const PATIENCE: Duration = Duration::from_millis(500);

/// Why a pull failed.
pub struct Failed {
    /// A sentence.
    pub text: String,
    /// All bytes came, and are not what the catalog knows.
    pub damaged: bool,
}

impl From<String> for Failed {
    fn from(text: String) -> Self {
        Self { text, damaged: false }
    }
}

/// An object that is fetched in parts.
struct Open {
    writer: ObjectWriter,
    /// How it ended, once it has.
    ended: Mutex<Option<Result<(), String>>>,
}

/// Objects that are fetched now, with the number of parts at work.
#[derive(Default)]
pub struct Pulls(Mutex<HashMap<ObjectId, (Arc<Open>, usize)>>);

impl Pulls {
    fn lock(&self) -> MutexGuard<'_, HashMap<ObjectId, (Arc<Open>, usize)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self, shared: &Shared, id: ObjectId, wanted: &v1::Pull) -> Result<Arc<Open>, String> {
        let mut open = self.lock();
        if let Some((one, parts)) = open.get_mut(&id) {
            *parts += 1;
            return Ok(one.clone());
        }
        let begin = Begin {
            meta: meta_of(wanted),
            size: Some(wanted.size_bytes),
            resume: true,
        };
        let writer = shared.store.begin(id, begin).map_err(|e| e.to_string())?;
        let one = Arc::new(Open {
            writer,
            ended: Mutex::new(None),
        });
        open.insert(id, (one.clone(), 1));
        Ok(one)
    }

    /// A part has ended; the last one lets the object go.
    fn close(&self, id: ObjectId, one: Arc<Open>) {
        let mut open = self.lock();
        if let Some((_, parts)) = open.get_mut(&id) {
            *parts -= 1;
            if *parts == 0 {
                open.remove(&id);
            }
        }
        let failed = matches!(
            *one.ended.lock().unwrap_or_else(PoisonError::into_inner),
            Some(Err(_))
        );
        // What is not the content that was wanted is of no use.
        if let Some(last) = Arc::into_inner(one)
            && failed
        {
            last.writer.abort();
        }
    }
}

/// What is kept beside the copy.
fn meta_of(wanted: &v1::Pull) -> Meta {
    let file = wanted.file.clone().unwrap_or_else(|| v1::FileFacts {
        path: wanted.name.clone().into_bytes(),
        owner: wanted.owner.clone(),
        ..v1::FileFacts::default()
    });
    Meta {
        owner: file.owner,
        group: file.group,
        name_hint: file.path,
        mode: file.mode,
        fragments: file.fragments,
        modified_unix_ns: file.mtime_ns,
    }
}

/// Carries out one pull; without sources, what is here already is verified. Whether the object is whole now.
pub fn run(shared: &Shared, id: ObjectId, wanted: &v1::Pull, flow: &Flow) -> Result<bool, Failed> {
    let digest = <[u8; 32]>::try_from(wanted.digest.as_slice())
        .map_err(|_| format!("a digest of {} bytes", wanted.digest.len()))?;
    if is_right(shared, id, wanted.size_bytes, digest) {
        return Ok(true);
    }
    if wanted.sources.is_empty() {
        return Err(String::from("it is not here").into());
    }
    let range = match (wanted.start, wanted.end) {
        (0, 0) => 0..wanted.size_bytes,
        (start, end) if start <= end && end <= wanted.size_bytes => start..end,
        (start, end) => return Err(format!("bytes {start} to {end} of {}", wanted.size_bytes).into()),
    };
    let open = shared.pulls.open(shared, id, wanted)?;
    let done =
        fetch(shared, &open, wanted, &range, flow).and_then(|()| finish(&open, wanted.size_bytes, digest));
    shared.pulls.close(id, open);
    done
}

/// Whether what is here is whole and right.
pub fn is_right(shared: &Shared, id: ObjectId, size: u64, digest: [u8; 32]) -> bool {
    let Ok(reader) = shared.store.read(id) else {
        return false;
    };
    let same = reader.size() == size && reader.digest() == digest;
    let verified = same && matches!(shared.store.verify(id), Ok(None));
    if !verified {
        let _ = shared.store.quarantine(id, "not what the catalog knows");
    }
    verified
}

/// Ends the object if nothing of it is missing; whether it is whole.
fn finish(open: &Open, size: u64, digest: [u8; 32]) -> Result<bool, Failed> {
    let mut ended = open.ended.lock().unwrap_or_else(PoisonError::into_inner);
    let damaged = |text: &str| Failed {
        text: text.to_owned(),
        damaged: true,
    };
    match &*ended {
        Some(Ok(())) => return Ok(true),
        Some(Err(why)) => return Err(damaged(why)),
        None => {}
    }
    if !open.writer.missing().is_empty() {
        return Ok(false);
    }
    let finish = Finish {
        size,
        digest: Some(digest),
        holes: Holes::Refuse,
    };
    match open.writer.finish(finish) {
        Ok(_) => {
            *ended = Some(Ok(()));
            Ok(true)
        }
        Err(e @ StoreError::Digest { .. }) => {
            *ended = Some(Err(e.to_string()));
            Err(damaged(&e.to_string()))
        }
        Err(e) => Err(e.to_string().into()),
    }
}

/// Fetches what is missing of a range.
fn fetch(
    shared: &Shared,
    open: &Open,
    wanted: &v1::Pull,
    range: &Range<u64>,
    flow: &Flow,
) -> Result<(), Failed> {
    let mut errors: Vec<String> = Vec::new();
    let mut counted = false;
    for source in &wanted.sources {
        let missing = missing(&open.writer, range);
        let left: u64 = missing.iter().map(|r| r.end - r.start).sum();
        if !std::mem::replace(&mut counted, true) {
            // What was here before counts as done.
            flow.cancel.add(range.end - range.start - left);
        }
        if left == 0 {
            return Ok(());
        }
        let work = Work {
            shared,
            writer: &open.writer,
            source,
            flow,
            missing: Mutex::new(missing),
        };
        let failed = work.run(wanted.streams.max(1));
        if flow.cancel.is_stopped() || shared.is_stopping() {
            return Err(String::from("called off").into());
        }
        match failed {
            None => {}
            Some(why) => errors.push(format!("{}: {why}", source.node)),
        }
    }
    if missing(&open.writer, range).is_empty() {
        return Ok(());
    }
    errors.dedup();
    Err(errors.join("; ").into())
}

fn missing(writer: &ObjectWriter, range: &Range<u64>) -> VecDeque<Range<u64>> {
    let all = writer.missing();
    let within = all.iter().map(|r| r.start.max(range.start)..r.end.min(range.end));
    within.filter(|r| r.start < r.end).collect()
}

/// What the streams of one part share.
struct Work<'a> {
    shared: &'a Shared,
    writer: &'a ObjectWriter,
    source: &'a v1::Place,
    flow: &'a Flow,
    missing: Mutex<VecDeque<Range<u64>>>,
}

/// A piece that was asked for.
struct Asked {
    range: Range<u64>,
    serial: u64,
}

impl Work<'_> {
    /// Runs all streams; why one has failed, if all that it left is still missing.
    fn run(&self, streams: u32) -> Option<String> {
        let errors: Vec<String> = std::thread::scope(|scope| {
            let streams: Vec<_> = (0..streams).map(|_| scope.spawn(|| self.stream())).collect();
            let ended = streams.into_iter().map(|s| s.join());
            let failed = ended.filter_map(|s| match s {
                Ok(ended) => ended.err(),
                Err(_) => Some("a stream's thread has failed".into()),
            });
            failed.collect()
        });
        errors.into_iter().next().filter(|_| !self.lock().is_empty())
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Range<u64>>> {
        self.missing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next piece; pieces end at multiples of their size.
    fn take(&self, piece: u64) -> Option<Range<u64>> {
        let mut missing = self.lock();
        let first = missing.front_mut()?;
        let end = ((first.start / piece + 1) * piece).min(first.end);
        let taken = first.start..end;
        first.start = end;
        if first.start == first.end {
            missing.pop_front();
        }
        Some(taken)
    }

    fn give_back(&self, range: Range<u64>) {
        if range.start < range.end {
            self.lock().push_front(range);
        }
    }

    fn dial(&self) -> Result<(HttpConn, Duration), String> {
        let pin = self.source.pin.parse()?;
        let endpoint = Endpoint::pinned(&self.source.address, pin, self.source.token.clone());
        let http = endpoint
            .and_then(|e| e.dial(None, None))
            .map_err(|e| e.to_string())?;
        http.set_limit(SILENCE).map_err(|e| e.to_string())?;
        let rtt = kuroshio_sock::tcp_info(http.socket()).map_or(0, |i| i.rtt_us);
        if let Ok(twin) = http.socket().try_clone() {
            self.flow.watch(twin);
        }
        Ok((http, Duration::from_micros(u64::from(rtt))))
    }

    /// One connection: asks ahead, takes what comes, until nothing is left.
    fn stream(&self) -> Result<(), String> {
        let mut asked: VecDeque<Asked> = VecDeque::new();
        let mut open: Option<(HttpConn, Duration, Instant)> = None;
        let result = self.pump(&mut open, &mut asked);
        for left in asked {
            self.flow.here(left.serial);
            self.give_back(left.range);
        }
        result
    }

    fn pump(
        &self,
        open: &mut Option<(HttpConn, Duration, Instant)>,
        asked: &mut VecDeque<Asked>,
    ) -> Result<(), String> {
        loop {
            if self.flow.cancel.is_stopped() || self.shared.is_stopping() {
                return Err("called off".into());
            }
            let idle = open.as_ref().is_none_or(|(_, _, used)| used.elapsed() > IDLE);
            if asked.is_empty() && idle {
                if self.lock().is_empty() {
                    return Ok(());
                }
                let (http, rtt) = self.dial()?;
                *open = Some((http, rtt, Instant::now()));
            }
            let Some((http, rtt, used)) = open.as_mut() else {
                return Err("no connection".into());
            };
            while self.ask(http, *rtt, asked)? {}
            let Some(first) = asked.front() else {
                if self.lock().is_empty() {
                    return Ok(());
                }
                continue;
            };
            let (start, len) = (first.range.start, first.range.end - first.range.start);
            let got = self.receive(http, start, len);
            *used = Instant::now();
            let (bytes, failed) = got;
            if let Some(first) = asked.front_mut() {
                first.range.start += bytes;
            }
            if let Some(why) = failed {
                return Err(why);
            }
            if let Some(done) = asked.pop_front() {
                self.flow.here(done.serial);
            }
        }
    }

    /// Asks for one piece more, if there is work, not too much is under way, and the pace allows it; whether it
    /// did.
    fn ask(&self, http: &mut HttpConn, rtt: Duration, asked: &mut VecDeque<Asked>) -> Result<bool, String> {
        let under_way: u64 = asked.iter().map(|a| a.range.end - a.range.start).sum();
        let (piece, most) = match self.flow.stream_bps() {
            None => (LARGEST_PIECE, FREE_BYTES),
            Some(bps) => {
                let ahead_ms = u64::try_from((rtt + AHEAD).as_millis()).unwrap_or(u64::MAX);
                let piece = bps / 8000 * PIECE_MS / LEAST_PIECE * LEAST_PIECE;
                let piece = piece.clamp(LEAST_PIECE, LARGEST_PIECE);
                (piece, (bps / 8000).saturating_mul(ahead_ms))
            }
        };
        if !asked.is_empty() && under_way >= most {
            return Ok(false);
        }
        let Some(range) = self.take(piece) else {
            return Ok(false);
        };
        let bytes = range.end - range.start;
        let patience = if asked.is_empty() {
            PATIENCE
        } else {
            Duration::ZERO
        };
        let Some(ask) = self.flow.ask(under_way + bytes, rtt, patience) else {
            self.give_back(range);
            return Ok(false);
        };
        let pace = format!("{PACE_HEADER}: {}\r\n", ask.rate_bps);
        let start = range.start;
        asked.push_back(Asked {
            range,
            serial: ask.serial,
        });
        let sent = http.ask_range(&self.source.path, start, bytes, &pace);
        sent.map_err(|e| e.to_string())?;
        Ok(true)
    }

    /// Takes the oldest piece; how many bytes of it were written, and why not all.
    fn receive(&self, http: &mut HttpConn, start: u64, len: u64) -> (u64, Option<String>) {
        let mut piece = Vec::with_capacity(usize::try_from(len.min(LARGEST_PIECE)).unwrap_or_default());
        let taken = http.take_range(len, &mut |bytes| {
            if self.flow.cancel.is_stopped() {
                return Err(io::Error::other("called off"));
            }
            piece.extend_from_slice(bytes);
            self.flow.cancel.add(bytes.len() as u64);
            Ok(())
        });
        // Also of a piece that broke off: what came is right until the whole is compared.
        if let Err(e) = self.writer.write_at(start, &piece) {
            return (0, Some(e.to_string()));
        }
        (piece.len() as u64, taken.err().map(|e| e.to_string()))
    }
}
