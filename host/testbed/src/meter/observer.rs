//! The side of the meters that is in the emulator's thread: what happens at metered stages, as compact records.
//!
//! ```text
//!  engine ──enter, arrived, departed, settled──> records of the batch ──publish──> full batches ──> service's thread
//!                                                         ^──────────────────────── empty batches <──┘
//! ```
//!
//! A record is 56 bytes. Nothing is allocated per frame and nothing is waited for: when no empty batch is at hand the
//! records are lost and counted, which every output says (`missed_events`). With each batch goes the *mark*: all events
//! that come later are not older than it, so that windows can be closed exactly.
//!
//! What this costs the emulator is measured on one call of [`SAMPLED`] with two readings of the clock, less the time
//! that a reading takes.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use kuroshio_clock::now_ns;
use kuroshio_core::meter::{Cause, Event, STREAM_NUMBERS_MAX, StreamKey, What};
use kuroshio_core::units::{FrameBytes, PicoDuration, PicoTime};
use kuroshio_core::wan::Gone;

use crate::emulator::{Fate, Lost};

/// Batches that are on their way at most.
const BATCHES: usize = 256;
/// Records of a batch: 14 MiB in all batches.
const BATCH_RECORDS: usize = 1_024;
/// A batch leaves when it is full or this old.
const BATCH_AGE: PicoDuration = PicoDuration::from_ms(1);
/// The mark is told this often when nothing happens.
const IDLE_AGE: PicoDuration = PicoDuration::from_ms(10);
/// The emulator sleeps no longer than this with meters, so that windows close in time.
pub(crate) const LONGEST_SLEEP_NS: u64 = 10_000_000;
/// One call of so many is timed.
const SAMPLED: u64 = 64;

/// One event at one stage.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Record {
    pub event: Event,
    /// Number of the stream in the [`StreamTable`], 0 for unknown.
    pub stream: u32,
    pub stage: u16,
}

/// What the emulator hands over.
pub(crate) struct Batch {
    pub records: Vec<Record>,
    /// No later event is older.
    pub mark: PicoTime,
    /// Records that found no room, since the last batch.
    pub missed: u64,
    /// Frames that entered the network, since the last batch.
    pub frames: u64,
    /// Time spent here, estimated, since the last batch.
    pub cost_ns: u64,
}

/// What a frame carries with it from its entry.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Tag {
    /// Number of its stream, 0 for one that was not looked at.
    pub stream: u32,
    pub payload_bytes: u32,
    pub entered: PicoTime,
}

/// The streams' numbers, from 1, common to all of the emulator's threads.
#[derive(Debug, Default)]
pub(crate) struct StreamTable {
    inner: Mutex<(HashMap<StreamKey, u32>, Vec<StreamKey>)>,
}

impl StreamTable {
    /// The number of a stream, 0 when there are too many.
    fn number(&self, key: &StreamKey) -> u32 {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(number) = inner.0.get(key) {
            return *number;
        }
        let number = u32::try_from(inner.1.len() + 1).unwrap_or(0);
        if number >= STREAM_NUMBERS_MAX {
            return 0;
        }
        inner.0.insert(*key, number);
        inner.1.push(*key);
        number
    }

    /// The stream of a number.
    pub fn key(&self, number: u32) -> Option<StreamKey> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let index = usize::try_from(number).ok()?.checked_sub(1)?;
        inner.1.get(index).copied()
    }
}

/// In the emulator's thread.
pub(crate) struct Observer {
    records: Vec<Record>,
    full: SyncSender<Batch>,
    empty: Receiver<Vec<Record>>,
    streams: HashMap<StreamKey, u32>,
    table: Arc<StreamTable>,
    /// By stage: whether it is metered.
    wanted: Vec<bool>,
    active: bool,
    sent_at: PicoTime,
    missed: u64,
    frames: u64,
    calls: u64,
    cost_ns: u64,
    clock_ns: u64,
}

/// The other ends of an [`Observer`]: what is full, and where what is empty goes.
pub(crate) struct Ends {
    pub full: Receiver<Batch>,
    pub empty: SyncSender<Vec<Record>>,
}

impl Observer {
    /// An observer that looks at nothing yet, with all the memory that it will use.
    pub fn new(table: Arc<StreamTable>) -> (Self, Ends) {
        let (full, full_end) = sync_channel(BATCHES);
        let (empty_end, empty) = sync_channel(BATCHES);
        for _ in 0..BATCHES {
            let _ = empty_end.try_send(Vec::with_capacity(BATCH_RECORDS));
        }
        let observer = Self {
            records: Vec::with_capacity(BATCH_RECORDS),
            full,
            empty,
            streams: HashMap::new(),
            table,
            wanted: Vec::new(),
            active: false,
            sent_at: PicoTime::ZERO,
            missed: 0,
            frames: 0,
            calls: 0,
            cost_ns: 0,
            clock_ns: clock_cost_ns(),
        };
        let ends = Ends {
            full: full_end,
            empty: empty_end,
        };
        (observer, ends)
    }

    /// From now on these stages, by number, are looked at.
    pub fn want(&mut self, stages: &[bool]) {
        self.wanted = stages.to_vec();
        self.active = stages.contains(&true);
    }

    /// Whether anything is looked at.
    pub fn is_active(&self) -> bool {
        self.active
    }

    /// Whether a stage is.
    pub fn wants(&self, stage: usize) -> bool {
        self.wanted.get(stage) == Some(&true)
    }

    /// A frame enters the network: what it is to carry with it.
    pub fn enter(&mut self, at: PicoTime, frame: &[u8]) -> Tag {
        if !self.active {
            return Tag::default();
        }
        self.frames += 1;
        self.timed(|own| {
            let (key, payload_bytes) = StreamKey::of(frame);
            let stream = match own.streams.get(&key) {
                Some(stream) => *stream,
                None => {
                    let stream = own.table.number(&key);
                    if stream > 0 {
                        own.streams.insert(key, stream);
                    }
                    stream
                }
            };
            Tag {
                stream,
                payload_bytes,
                entered: at,
            }
        })
    }

    /// A frame has arrived at a stage, in whose queue so much waits then.
    pub fn arrived(
        &mut self,
        stage: usize,
        at: PicoTime,
        fate: Fate,
        len: FrameBytes,
        tag: Tag,
        queued: FrameBytes,
    ) {
        let what = match fate {
            Fate::Passed => What::Arrived,
            Fate::QueueFull => What::Refused(Cause::QueueFull),
            Fate::Refused => What::Refused(Cause::Aqm),
            Fate::TooBig => What::Refused(Cause::TooBig),
            Fate::Fault => What::Refused(Cause::Fault),
        };
        self.timed(|own| own.push(stage, at, what, len.get(), queued.get(), tag));
    }

    /// A frame has come out of a stage, in whose queue so much waits then.
    pub fn departed(&mut self, stage: usize, at: PicoTime, len: FrameBytes, tag: Tag, queued: FrameBytes) {
        self.timed(|own| own.push(stage, at, What::Departed, len.get(), queued.get(), tag));
    }

    /// A stage has lost a frame that it had taken, when so much waited in its queue.
    pub fn vanished(&mut self, stage: usize, lost: Lost, queued: FrameBytes) {
        let what = What::Vanished(match lost.how {
            Gone::Lost => Cause::Lost,
            Gone::Aqm => Cause::Aqm,
        });
        self.timed(|own| own.push(stage, lost.at, what, lost.len.get(), queued.get(), lost.tag));
    }

    fn push(&mut self, stage: usize, at: PicoTime, what: What, bytes: u64, queued_bytes: u64, tag: Tag) {
        if self.records.len() >= BATCH_RECORDS && !self.make_room() {
            self.missed += 1;
            return;
        }
        self.records.push(Record {
            event: Event {
                at,
                what,
                frame_bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
                payload_bytes: tag.payload_bytes,
                entered: (tag.stream > 0).then_some(tag.entered),
                queued_bytes,
            },
            stream: tag.stream,
            stage: u16::try_from(stage).unwrap_or(u16::MAX),
        });
    }

    /// Says that no event before `mark` will come, and hands over what is full or old.
    pub fn publish(&mut self, mark: PicoTime) {
        let age = mark - self.sent_at;
        let due = if self.records.is_empty() {
            age >= IDLE_AGE
        } else {
            age >= BATCH_AGE || self.records.len() > BATCH_RECORDS / 2
        };
        if self.active && due {
            self.send(mark);
        }
    }

    /// Makes room in the midst of things: with the last mark, because older events may be to come.
    fn make_room(&mut self) -> bool {
        self.send(self.sent_at)
    }

    fn send(&mut self, mark: PicoTime) -> bool {
        let Ok(next) = self.empty.try_recv() else {
            return false;
        };
        let batch = Batch {
            records: std::mem::replace(&mut self.records, next),
            mark,
            missed: std::mem::take(&mut self.missed),
            frames: std::mem::take(&mut self.frames),
            cost_ns: std::mem::take(&mut self.cost_ns),
        };
        self.sent_at = mark;
        self.full.try_send(batch).is_ok()
    }

    /// Does something and, for one call of [`SAMPLED`], adds what it cost for all of them.
    fn timed<T>(&mut self, run: impl FnOnce(&mut Self) -> T) -> T {
        self.calls += 1;
        if !self.calls.is_multiple_of(SAMPLED) {
            return run(self);
        }
        let begin = now_ns();
        let result = run(self);
        let taken = now_ns().saturating_sub(begin).saturating_sub(self.clock_ns);
        self.cost_ns += taken * SAMPLED;
        result
    }
}

/// What two readings of the clock take, at best.
fn clock_cost_ns() -> u64 {
    (0..64)
        .map(|_| {
            let begin = now_ns();
            now_ns().saturating_sub(begin)
        })
        .min()
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(port: u8) -> Vec<u8> {
        let mut frame = vec![0u8; 12];
        frame.extend([
            0x08, 0, 0x45, 0, 0, 38, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
        ]);
        frame.extend([0, port, 0, 80, 0, 18, 0, 0]);
        frame.resize(60, 0);
        frame
    }

    fn ps(ps: u64) -> PicoTime {
        PicoTime::from_ps(ps)
    }

    #[test]
    fn records_are_as_small_as_is_said() {
        assert_eq!(size_of::<Record>(), 56);
        assert_eq!(size_of::<(u64, kuroshio_core::meter::Sum)>(), 176);
    }

    #[test]
    fn streams_have_one_number_for_all_threads() {
        let table = Arc::new(StreamTable::default());
        let ((mut a, _ends_a), (mut b, _ends_b)) = (
            Observer::new(Arc::clone(&table)),
            Observer::new(Arc::clone(&table)),
        );
        assert_eq!(a.enter(ps(1), &frame(1)).stream, 0, "nothing is metered yet");
        a.want(&[true]);
        b.want(&[true]);
        let first = a.enter(ps(1), &frame(1));
        assert_eq!((first.stream, first.payload_bytes, first.entered), (1, 10, ps(1)));
        assert_eq!(b.enter(ps(2), &frame(2)).stream, 2);
        assert_eq!(b.enter(ps(2), &frame(1)).stream, 1);
        assert_eq!(a.enter(ps(3), &frame(2)).stream, 2);
        let key = table.key(2).and_then(|k| k.flow).expect("a stream");
        assert_eq!(key.source_port, 2);
        assert_eq!((table.key(0), table.key(3)), (None, None));
    }

    #[test]
    fn a_lost_frame_is_an_event_of_its_stream() {
        let (mut observer, ends) = Observer::new(Arc::default());
        observer.want(&[false, true]);
        assert!(observer.wants(1) && !observer.wants(0) && !observer.wants(2));
        let (len, queued) = (FrameBytes::new(100), FrameBytes::new(7));
        let tag = observer.enter(ps(0), &frame(1));
        let lost = |at: u64, how: Gone| Lost {
            at: ps(at),
            len,
            how,
            tag,
        };
        observer.vanished(1, lost(1, Gone::Lost), queued);
        observer.vanished(1, lost(2, Gone::Aqm), queued);
        observer.arrived(1, ps(3), Fate::Refused, len, tag, queued);
        observer.arrived(1, ps(4), Fate::QueueFull, len, tag, queued);
        observer.departed(1, ps(5), len, tag, queued);
        observer.publish(ps(2_000_000_000));
        let batch = ends.full.try_recv().expect("a batch");
        let what: Vec<What> = batch.records.iter().map(|r| r.event.what).collect();
        let expected = [
            What::Vanished(Cause::Lost),
            What::Vanished(Cause::Aqm),
            What::Refused(Cause::Aqm),
            What::Refused(Cause::QueueFull),
            What::Departed,
        ];
        assert_eq!(what, expected);
        assert!(
            batch
                .records
                .iter()
                .all(|r| r.stream == 1 && r.event.frame_bytes == 100)
        );
        assert_eq!((batch.mark, batch.missed), (ps(2_000_000_000), 0));
    }

    #[test]
    fn what_finds_no_room_is_counted() {
        let (mut observer, ends) = Observer::new(Arc::default());
        observer.want(&[true]);
        let room = (BATCHES * BATCH_RECORDS) as u64;
        let more = 10;
        // The batch in hand is one beyond those on their way.
        for n in 0..room + BATCH_RECORDS as u64 + more {
            observer.departed(0, ps(n), FrameBytes::new(64), Tag::default(), FrameBytes::new(0));
        }
        let mut records = 0;
        let mut missed = 0;
        while let Ok(mut batch) = ends.full.try_recv() {
            records += batch.records.len() as u64;
            missed += batch.missed;
            batch.records.clear();
            let _ = ends.empty.try_send(batch.records);
        }
        assert_eq!((records, missed), (room, 0));
        observer.publish(ps(10_000_000_000));
        let last = ends.full.try_recv().expect("the last batch");
        assert_eq!((last.records.len(), last.missed), (BATCH_RECORDS, more));
    }
}
