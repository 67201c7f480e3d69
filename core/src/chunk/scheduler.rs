//! Which piece of which file goes on which stream next.
//!
//! Every wanted byte of a file is in exactly one state:
//!
//! ```text
//!   add_file                next                       written
//!  ---------->  to send  ---------->  on a stream  ---------------->  written
//!                  ^                    |    |                          |
//!                  |   stream lost, bad |    |                          |
//!                  '---- again <--------'    |            bad           |
//!                          ^                 |                          |
//!                          '--------------------------------------------'
//! ```
//!
//! "again" is served before "to send". A file that changed at the source is restarted under its next
//! *generation*; what is said of an older generation is ignored.
//!
//! # Pieces
//!
//! A piece is an aligned power of two of at most `chunk` bytes (the file's last one shorter), so it is a
//! subtree of the file's digest (see [`super::DigestTree`]). Wanted ranges are widened to multiples of
//! `grain`. A file up to `min_piece` is one piece if it is wanted whole; larger pieces are cut below
//! `chunk`, down to `min_piece`, only near the end ([`Scheduler::close`], and the model in `tail`).
//!
//! # Order of calls
//!
//! `add_stream`, `add_file`, then per stream: `next` whenever (nearly) all that the stream was given has
//! left the host, so that the pulls follow the wire; `written`, `bad`, `restart_file`, `lose_stream` as
//! they come; `finish_file` when nothing more can be asked of the file; `close` when no file will be
//! added. A stream that got nothing asks again after any of these calls, at the latest after
//! [`super::RECHECK`] (the others may have stopped meanwhile).
//!
//! # Cost
//!
//! `next` is O(log files + streams); nothing is linear in the number of files. Memory: about 100 bytes for
//! a file, 100 for a piece on a stream, 32 for a range beyond a file's first; all three limited by
//! [`Config`].

use super::ranges::{RangeSet, widen};
use super::tail::{self, Pace};
use super::types::{
    Acked, Config, FileId, MAX_CHUNK_BYTES, MAX_STREAMS, Piece, ScheduleError, Stats, StreamId,
};
use crate::units::PicoTime;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::ops::Range;

#[derive(Debug)]
struct File {
    len: u64,
    /// Wanted and not yet written.
    missing: u64,
    /// To send for the first time; `None` stands for the whole file.
    to_send: Option<RangeSet>,
    generation: u16,
}

#[derive(Clone, Copy, Debug)]
struct OnStream {
    end: u64,
    stream: StreamId,
}

#[derive(Debug, Default)]
struct Stream {
    pace: Pace,
    pieces: BTreeSet<(FileId, u64)>,
}

/// The scheduler; see the module's model.
#[derive(Debug)]
pub struct Scheduler {
    config: Config,
    closed: bool,
    files: BTreeMap<FileId, File>,
    /// Files with something to send for the first time, in the order added. May hold finished ones.
    queue: VecDeque<FileId>,
    /// What goes first.
    again: BTreeMap<FileId, RangeSet>,
    /// Pieces on streams by file and first byte; disjoint.
    on_streams: BTreeMap<(FileId, u64), OnStream>,
    streams: BTreeMap<StreamId, Stream>,
    ranges: usize,
    stats: Stats,
}

impl Scheduler {
    /// A scheduler without files and streams.
    ///
    /// # Errors
    /// [`ScheduleError::BadConfig`].
    pub fn new(config: Config) -> Result<Self, ScheduleError> {
        let Config {
            chunk,
            min_piece,
            grain,
            ..
        } = config;
        let powers = chunk.is_power_of_two() && min_piece.is_power_of_two() && grain.is_power_of_two();
        let ordered = grain >= super::LEAF_BYTES && grain <= min_piece && min_piece <= chunk;
        if !powers || !ordered || chunk > MAX_CHUNK_BYTES {
            return Err(ScheduleError::BadConfig);
        }
        Ok(Self {
            config,
            closed: false,
            files: BTreeMap::new(),
            queue: VecDeque::new(),
            again: BTreeMap::new(),
            on_streams: BTreeMap::new(),
            streams: BTreeMap::new(),
            ranges: 0,
            stats: Stats::default(),
        })
    }

    /// Lets a stream ask for pieces. The rate of its pulls is measured.
    ///
    /// # Errors
    /// [`ScheduleError::Full`] beyond [`MAX_STREAMS`].
    pub fn add_stream(&mut self, stream: StreamId) -> Result<(), ScheduleError> {
        if self.streams.len() >= MAX_STREAMS && !self.streams.contains_key(&stream) {
            return Err(ScheduleError::Full("streams"));
        }
        self.streams.entry(stream).or_default();
        Ok(())
    }

    /// The stream is gone: all it was given and is not acknowledged goes first on the others.
    /// Returns these bytes.
    pub fn lose_stream(&mut self, stream: StreamId) -> u64 {
        let Some(gone) = self.streams.remove(&stream) else {
            return 0;
        };
        let mut bytes = 0;
        for key in gone.pieces {
            if let Some(p) = self.on_streams.remove(&key) {
                bytes += p.end - key.1;
                self.stats.on_streams -= p.end - key.1;
                self.put_again(key.0, key.1..p.end);
            }
        }
        self.stats.lost += bytes;
        bytes
    }

    /// Adds a file of `len` bytes of which `wanted` has to be sent; files are served in this order.
    /// Returns whether it is complete already (nothing wanted).
    ///
    /// # Errors
    /// A range beyond `len`, a number in use, or a limit of [`Config`].
    pub fn add_file(&mut self, file: FileId, len: u64, wanted: &RangeSet) -> Result<bool, ScheduleError> {
        if self.files.contains_key(&file) {
            return Err(ScheduleError::DuplicateFile(file));
        }
        if self.files.len() >= self.config.max_files {
            return Err(ScheduleError::Full("files"));
        }
        self.enter(file, len, wanted, 0)
    }

    /// The source changed: forgets all of the file and begins it again with its next generation, which
    /// the pieces then carry. Returns that generation.
    ///
    /// # Errors
    /// As [`add_file`](Self::add_file); [`ScheduleError::Generation`] after 65,535 restarts.
    pub fn restart_file(&mut self, file: FileId, len: u64, wanted: &RangeSet) -> Result<u16, ScheduleError> {
        let old = self.files.get(&file).ok_or(ScheduleError::UnknownFile(file))?;
        let generation = old
            .generation
            .checked_add(1)
            .ok_or(ScheduleError::Generation(file))?;
        check_wanted(file, len, wanted)?;
        if self.ranges.saturating_add(wanted.len()) > self.config.max_ranges {
            return Err(ScheduleError::Full("ranges"));
        }
        self.forget(file);
        self.enter(file, len, wanted, generation)?;
        Ok(generation)
    }

    /// Nothing more will be asked of this file (durable, failed or skipped): forgets it.
    pub fn finish_file(&mut self, file: FileId) {
        self.forget(file);
        // Numbers of finished files stay in the queue until they come to its front, or until they are most of it.
        if self.queue.len() > 64 && self.queue.len() / 2 > self.files.len() {
            let files = &self.files;
            self.queue.retain(|id| files.contains_key(id));
        }
    }

    /// No file will be added: from now on pieces are cut so that the streams finish together.
    pub fn close(&mut self) {
        self.closed = true;
    }

    /// Whether nothing is to send and nothing unacknowledged.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.stats.to_send == 0 && self.stats.on_streams == 0
    }

    /// Sums over all files.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats {
            files: self.files.len(),
            ..self.stats
        }
    }

    /// The current generation of a file.
    #[must_use]
    pub fn generation(&self, file: FileId) -> Option<u16> {
        self.files.get(&file).map(|f| f.generation)
    }

    /// What `stream` should send now. `None`: nothing for it at present, or the stream is not known.
    pub fn next(&mut self, stream: StreamId, now: PicoTime) -> Option<Piece> {
        self.streams.get_mut(&stream)?.pace.asks(now);
        if self.on_streams.len() >= self.config.max_unacked {
            return None;
        }
        let (file, range, again) = self.front()?;
        let f = self.files.get(&file)?;
        let (file_len, generation) = (f.len, f.generation);
        let full = fit(&range, file_len, self.config.chunk);
        let len = if self.closed {
            self.balanced(stream, &range, file_len, full, now)?
        } else {
            full
        };
        let piece = range.start..range.start + len;
        if again {
            self.take_again(file, piece.clone());
        } else {
            self.take_first(file, piece.clone());
        }
        self.stats.to_send -= len;
        self.stats.on_streams += len;
        self.stats.pieces += 1;
        self.on_streams.insert(
            (file, piece.start),
            OnStream {
                end: piece.end,
                stream,
            },
        );
        let s = self.streams.get_mut(&stream)?;
        s.pieces.insert((file, piece.start));
        s.pace.given(len, now);
        // `fit` gives at most a chunk, which is at most 2^30.
        Some(Piece {
            file,
            generation,
            offset: piece.start,
            len: u32::try_from(len).unwrap_or(u32::MAX),
        })
    }

    /// The receiver has written `[offset, offset + len)`. Any range is allowed, also part of a piece, again,
    /// or late (after its stream was lost: then it is not sent again). An old generation changes nothing.
    ///
    /// # Errors
    /// A file not known, bytes outside of it or never sent, or a generation to come.
    pub fn written(
        &mut self,
        file: FileId,
        generation: u16,
        offset: u64,
        len: u64,
    ) -> Result<Acked, ScheduleError> {
        let Some(range) = self.check(file, generation, offset, len)? else {
            return Ok(Acked::default());
        };
        let f = self
            .files
            .get_mut(&file)
            .ok_or(ScheduleError::UnknownFile(file))?;
        let early = match &f.to_send {
            None => Some(offset),
            Some(set) => set.overlaps(range.clone()).next().map(|r| r.start),
        };
        if let Some(offset) = early {
            return Err(ScheduleError::NotSent { file, offset });
        }
        let on_streams = self.take_off_streams(file, &range);
        // Of what goes again only whole grains are struck off: pieces begin and end at grains.
        let file_len = self.files.get(&file).map_or(0, |f| f.len);
        let again = self.take_again(file, narrow(range, self.config.grain, file_len));
        self.stats.to_send -= again;
        let bytes = on_streams + again;
        self.stats.written += bytes;
        let f = self
            .files
            .get_mut(&file)
            .ok_or(ScheduleError::UnknownFile(file))?;
        f.missing -= bytes;
        Ok(Acked {
            bytes,
            complete: f.missing == 0,
        })
    }

    /// The receiver found `[offset, offset + len)` wrong, on arrival or after it had been written: it goes
    /// first. Returns the bytes that will be sent again (widened to the grain). An old generation changes
    /// nothing.
    ///
    /// # Errors
    /// A file not known, bytes outside of it, a generation to come, or `max_ranges` reached.
    pub fn bad(
        &mut self,
        file: FileId,
        generation: u16,
        offset: u64,
        len: u64,
    ) -> Result<u64, ScheduleError> {
        let Some(range) = self.check(file, generation, offset, len)? else {
            return Ok(0);
        };
        if self.ranges >= self.config.max_ranges {
            return Err(ScheduleError::Full("ranges"));
        }
        if range.is_empty() {
            return Ok(0);
        }
        let file_len = self.files.get(&file).map_or(0, |f| f.len);
        let range = widen(range, self.config.grain, file_len);
        let before = self.stats.to_send;
        let off = self.take_off_streams(file, &range);
        if let Some(f) = self.files.get_mut(&file) {
            f.missing -= off;
        }
        self.put_written_again(file, range);
        let bytes = self.stats.to_send - before;
        self.stats.bad += bytes;
        Ok(bytes)
    }

    /// Checks what a peer says of a file; `None` for an old generation.
    fn check(
        &self,
        file: FileId,
        generation: u16,
        offset: u64,
        len: u64,
    ) -> Result<Option<Range<u64>>, ScheduleError> {
        let f = self.files.get(&file).ok_or(ScheduleError::UnknownFile(file))?;
        if generation > f.generation {
            return Err(ScheduleError::Generation(file));
        }
        if generation < f.generation {
            return Ok(None);
        }
        match offset.checked_add(len).filter(|end| *end <= f.len) {
            Some(end) => Ok(Some(offset..end)),
            None => Err(ScheduleError::OutOfFile {
                file,
                offset,
                len,
                file_len: f.len,
            }),
        }
    }

    fn enter(
        &mut self,
        file: FileId,
        len: u64,
        wanted: &RangeSet,
        generation: u16,
    ) -> Result<bool, ScheduleError> {
        check_wanted(file, len, wanted)?;
        let wanted = wanted.widened(self.config.grain, len);
        let missing = wanted.bytes();
        let to_send = if missing == len && len > 0 {
            None
        } else {
            Some(wanted)
        };
        let ranges = to_send.as_ref().map_or(0, RangeSet::len);
        if self.ranges.saturating_add(ranges) > self.config.max_ranges {
            return Err(ScheduleError::Full("ranges"));
        }
        self.ranges += ranges;
        self.stats.to_send += missing;
        self.files.insert(
            file,
            File {
                len,
                missing,
                to_send,
                generation,
            },
        );
        if missing > 0 {
            self.queue.push_back(file);
        }
        Ok(missing == 0)
    }

    fn forget(&mut self, file: FileId) {
        let Some(f) = self.files.remove(&file) else { return };
        let first = f.to_send.as_ref().map_or(f.len, RangeSet::bytes);
        self.ranges -= f.to_send.as_ref().map_or(0, RangeSet::len);
        self.stats.to_send -= first;
        if let Some(set) = self.again.remove(&file) {
            self.ranges -= set.len();
            self.stats.to_send -= set.bytes();
        }
        self.take_off_streams(file, &(0..f.len));
    }

    /// The next range to send, and whether it is one that goes again.
    fn front(&mut self) -> Option<(FileId, Range<u64>, bool)> {
        if let Some((&id, set)) = self.again.iter().next()
            && let Some(range) = set.first()
        {
            return Some((id, range, true));
        }
        while let Some(&id) = self.queue.front() {
            let range = self.files.get(&id).and_then(|f| match &f.to_send {
                None => Some(0..f.len),
                Some(set) => set.first(),
            });
            if let Some(range) = range {
                return Some((id, range, false));
            }
            self.queue.pop_front();
        }
        None
    }

    /// Length of the piece for `stream` near the end; `full` is what it would get far from it.
    fn balanced(
        &self,
        stream: StreamId,
        range: &Range<u64>,
        file_len: u64,
        full: u64,
        now: PicoTime,
    ) -> Option<u64> {
        let least = fit(range, file_len, self.config.min_piece);
        let me = &self.streams.get(&stream)?.pace;
        let others = self
            .streams
            .iter()
            .filter(|(id, _)| **id != stream)
            .map(|(_, s)| &s.pace);
        let limit = tail::limit(me, others, self.stats.to_send, least, now)?;
        if limit >= full {
            return Some(full);
        }
        let power = 1 << limit.max(1).ilog2();
        Some(fit(range, file_len, power.max(self.config.min_piece)))
    }

    fn take_first(&mut self, file: FileId, piece: Range<u64>) {
        let Some(f) = self.files.get_mut(&file) else {
            return;
        };
        let before = f.to_send.as_ref().map_or(0, RangeSet::len);
        let set = f.to_send.get_or_insert_with(|| RangeSet::from_range(0..f.len));
        set.remove(piece);
        self.ranges = self.ranges + set.len() - before;
    }

    /// Takes `range` out of what goes again; returns the bytes that were in it.
    fn take_again(&mut self, file: FileId, range: Range<u64>) -> u64 {
        let Some(set) = self.again.get_mut(&file) else {
            return 0;
        };
        let before = set.len();
        let bytes = set.remove(range);
        self.ranges = self.ranges + set.len() - before;
        if set.is_empty() {
            self.again.remove(&file);
        }
        bytes
    }

    /// Bytes that were on a stream and are missing still: go again, with their grain.
    fn put_again(&mut self, file: FileId, range: Range<u64>) {
        let Some(f) = self.files.get_mut(&file) else {
            return;
        };
        f.missing -= range.end - range.start;
        let range = widen(range, self.config.grain, f.len);
        self.put_written_again(file, range);
    }

    /// Puts into "again" what of `range` is neither to send nor on a stream: it counts as written so far.
    fn put_written_again(&mut self, file: FileId, range: Range<u64>) {
        let Some(f) = self.files.get_mut(&file) else {
            return;
        };
        let mut fresh = match &f.to_send {
            None => return,
            Some(set) => {
                let mut fresh = RangeSet::from_range(range.clone());
                let there: Vec<_> = set.overlaps(range.clone()).collect();
                there.into_iter().for_each(|r| {
                    fresh.remove(r);
                });
                fresh
            }
        };
        for (start, p) in pieces_in(&self.on_streams, file, &range) {
            fresh.remove(start..p.end);
        }
        if fresh.is_empty() {
            return;
        }
        let set = self.again.entry(file).or_default();
        let before = set.len();
        let bytes: u64 = fresh.iter().map(|r| set.insert(r)).sum();
        self.ranges = self.ranges + set.len() - before;
        f.missing += bytes;
        self.stats.to_send += bytes;
    }

    /// Removes `range` from the pieces on streams; what is left of a piece at either side stays on its
    /// stream. Returns the bytes removed.
    fn take_off_streams(&mut self, file: FileId, range: &Range<u64>) -> u64 {
        let hit: Vec<_> = pieces_in(&self.on_streams, file, range).collect();
        let mut bytes = 0;
        for (start, p) in hit {
            self.on_streams.remove(&(file, start));
            let stream = self.streams.get_mut(&p.stream);
            let mut rest = stream.map(|s| {
                s.pieces.remove(&(file, start));
                &mut s.pieces
            });
            for (s, e) in [(start, p.end.min(range.start)), (start.max(range.end), p.end)] {
                if s < e {
                    self.on_streams.insert(
                        (file, s),
                        OnStream {
                            end: e,
                            stream: p.stream,
                        },
                    );
                    if let Some(pieces) = rest.as_mut() {
                        pieces.insert((file, s));
                    }
                }
            }
            bytes += p.end.min(range.end) - start.max(range.start);
        }
        self.stats.on_streams -= bytes;
        bytes
    }
}

/// The pieces of `file` on streams that overlap `range`, by first byte.
fn pieces_in<'a>(
    on_streams: &'a BTreeMap<(FileId, u64), OnStream>,
    file: FileId,
    range: &Range<u64>,
) -> impl Iterator<Item = (u64, OnStream)> + 'a {
    let Range { start, end } = *range;
    let from = on_streams
        .range((file, 0)..(file, start))
        .next_back()
        .map_or(start, |(k, _)| k.1);
    on_streams
        .range((file, from)..(file, end.max(from)))
        .map(|(k, p)| (k.1, *p))
        .filter(move |(s, p)| p.end > start && *s < end)
}

fn check_wanted(file: FileId, len: u64, wanted: &RangeSet) -> Result<(), ScheduleError> {
    match wanted.iter().next_back() {
        Some(r) if r.end > len => Err(ScheduleError::OutOfFile {
            file,
            offset: r.start,
            len: r.end - r.start,
            file_len: len,
        }),
        _ => Ok(()),
    }
}

/// `range` narrowed inwards to multiples of `grain` (a power of two); the end of the file counts as one.
fn narrow(range: Range<u64>, grain: u64, file_len: u64) -> Range<u64> {
    let end = if range.end == file_len {
        file_len
    } else {
        range.end & !(grain - 1)
    };
    let start = range.start.div_ceil(grain).saturating_mul(grain).min(end);
    start..end
}

/// Length of the largest piece of at most `most` bytes (a power of two) at the front of `range`. The range
/// starts at a multiple of the grain and ends at one or at the end of the file.
fn fit(range: &Range<u64>, file_len: u64, most: u64) -> u64 {
    let left = range.end - range.start;
    let align = if range.start == 0 {
        most
    } else {
        range.start & range.start.wrapping_neg()
    };
    let block = most.min(align);
    if left >= block || range.end == file_len {
        return left.min(block);
    }
    1 << left.ilog2()
}

#[cfg(test)]
impl Scheduler {
    /// Separate ranges held over all files.
    pub(super) fn ranges_held(&self) -> usize {
        self.ranges
    }
}
