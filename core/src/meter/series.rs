//! Windows of one width over what happens at one stage, in bounded memory.
//!
//! ```text
//!            closed, kept: at most `keep`         open
//!      .. [ w-4 ][ w-3 ][ w-2 ][ w-1 ] | [ w ][ w+1 ] ..     window i: [i * width, (i + 1) * width)
//!                                      ^ the mark: nothing will be added before it
//! ```
//!
//! Only windows in which something happened are held. A window is closed when the mark has passed its end, so that
//! events may come in any order as long as none is older than the mark. What leaves the memory at its far end is
//! counted in `discarded`: the sum of the closed, the open and the discarded windows is the total, always.

use crate::units::{PicoDuration, PicoTime};
use alloc::collections::VecDeque;

/// Why a frame did not come out of a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// The queue was full.
    QueueFull,
    /// The queue's discipline refused it, at its arrival or at its turn.
    Aqm,
    /// Its packet was larger than the MTU.
    TooBig,
    /// A fault was asked for (`cut`, `drop_next`).
    Fault,
    /// The loss model took it on its way.
    Lost,
}

impl Cause {
    /// All causes, in the order of [`Sum::dropped`].
    pub const ALL: [Cause; 5] = [
        Cause::QueueFull,
        Cause::Aqm,
        Cause::TooBig,
        Cause::Fault,
        Cause::Lost,
    ];

    /// Its name in every output.
    pub const fn name(self) -> &'static str {
        match self {
            Cause::QueueFull => "queue_full",
            Cause::Aqm => "aqm",
            Cause::TooBig => "too_big",
            Cause::Fault => "fault",
            Cause::Lost => "lost",
        }
    }
}

/// What happened to a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// It arrived at the stage and went in.
    Arrived,
    /// It arrived and was refused.
    Refused(Cause),
    /// It had gone in and will not come out.
    Vanished(Cause),
    /// It came out.
    Departed,
}

/// One event at a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// The exact time.
    pub at: PicoTime,
    /// What.
    pub what: What,
    /// Bytes of the frame, MAC header to FCS.
    pub frame_bytes: u32,
    /// Bytes behind its transport header.
    pub payload_bytes: u32,
    /// When it entered the network at its source port, where that was seen.
    pub entered: Option<PicoTime>,
    /// Bytes of frames that wait in the stage's queue behind the event.
    pub queued_bytes: u64,
}

impl Event {
    /// Time from the source port to here, ps.
    pub fn one_way_delay_ps(&self) -> Option<u64> {
        Some((self.at - self.entered?).as_ps())
    }
}

/// What is added up: of one window, or of all time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sum {
    /// Frames that arrived, refused ones among them.
    pub arrived_frames: u64,
    /// Their bytes, MAC header to FCS.
    pub arrived_bytes: u64,
    /// Frames that came out.
    pub departed_frames: u64,
    /// Their bytes, MAC header to FCS.
    pub departed_bytes: u64,
    /// Their bytes behind the transport headers.
    pub departed_payload_bytes: u64,
    /// Frames that did not, by cause.
    pub dropped_frames: [u64; 5],
    /// Deepest queue that frames left behind as they came and went, bytes of frames. Over all time it is exact, because
    /// a queue grows at arrivals only.
    pub queue_max_bytes: u64,
    /// Sum of the depths that arriving frames left behind them; by [`Sum::queue_samples`] a mean.
    pub queue_sum_bytes: u128,
    /// Frames in [`Sum::queue_sum_bytes`].
    pub queue_samples: u64,
    /// Frames with a delay: those that came out.
    pub delay_frames: u64,
    /// Sum of their delays from the source port, ps.
    pub delay_sum_ps: u128,
    /// Shortest delay, ps; 0 without a frame.
    pub delay_min_ps: u64,
    /// Longest delay, ps.
    pub delay_max_ps: u64,
}

impl Sum {
    /// Frames that did not come out, of every cause.
    pub fn dropped(&self) -> u64 {
        self.dropped_frames.iter().sum()
    }

    /// Mean depth of the queue as arriving frames left it, bytes.
    pub fn queue_mean_bytes(&self) -> Option<u64> {
        mean(self.queue_sum_bytes, self.queue_samples)
    }

    /// Mean one-way delay from the source port, ps.
    pub fn delay_mean_ps(&self) -> Option<u64> {
        mean(self.delay_sum_ps, self.delay_frames)
    }

    /// Adds an event.
    pub fn add(&mut self, event: &Event) {
        let mut arrived = || {
            self.arrived_frames += 1;
            self.arrived_bytes += u64::from(event.frame_bytes);
            self.queue_max_bytes = self.queue_max_bytes.max(event.queued_bytes);
            self.queue_sum_bytes += u128::from(event.queued_bytes);
            self.queue_samples += 1;
        };
        match event.what {
            What::Arrived => arrived(),
            What::Refused(cause) => {
                arrived();
                self.drop(cause);
            }
            What::Vanished(cause) => self.drop(cause),
            What::Departed => {
                self.departed_frames += 1;
                self.queue_max_bytes = self.queue_max_bytes.max(event.queued_bytes);
                self.departed_bytes += u64::from(event.frame_bytes);
                self.departed_payload_bytes += u64::from(event.payload_bytes);
                let Some(delay) = event.one_way_delay_ps() else {
                    return;
                };
                self.delay_min_ps = match self.delay_frames {
                    0 => delay,
                    _ => self.delay_min_ps.min(delay),
                };
                self.delay_max_ps = self.delay_max_ps.max(delay);
                self.delay_sum_ps += u128::from(delay);
                self.delay_frames += 1;
            }
        }
    }

    fn drop(&mut self, cause: Cause) {
        let all = Cause::ALL.iter().position(|c| *c == cause);
        if let Some(count) = all.and_then(|n| self.dropped_frames.get_mut(n)) {
            *count += 1;
        }
    }

    /// Adds what another sum holds.
    pub fn merge(&mut self, other: &Sum) {
        self.arrived_frames += other.arrived_frames;
        self.arrived_bytes += other.arrived_bytes;
        self.departed_frames += other.departed_frames;
        self.departed_bytes += other.departed_bytes;
        self.departed_payload_bytes += other.departed_payload_bytes;
        for (own, further) in self.dropped_frames.iter_mut().zip(other.dropped_frames) {
            *own += further;
        }
        self.queue_max_bytes = self.queue_max_bytes.max(other.queue_max_bytes);
        self.queue_sum_bytes += other.queue_sum_bytes;
        self.queue_samples += other.queue_samples;
        self.delay_min_ps = match (self.delay_frames, other.delay_frames) {
            (0, _) => other.delay_min_ps,
            (_, 0) => self.delay_min_ps,
            _ => self.delay_min_ps.min(other.delay_min_ps),
        };
        self.delay_max_ps = self.delay_max_ps.max(other.delay_max_ps);
        self.delay_sum_ps += other.delay_sum_ps;
        self.delay_frames += other.delay_frames;
    }
}

fn mean(sum: u128, count: u64) -> Option<u64> {
    sum.checked_div(u128::from(count))
        .and_then(|mean| u64::try_from(mean).ok())
}

/// Windows of one width.
#[derive(Debug, Clone)]
pub struct RollingWindows {
    width: PicoDuration,
    keep: usize,
    closed: VecDeque<(u64, Sum)>,
    open: VecDeque<(u64, Sum)>,
    /// Windows below this number are closed.
    mark: u64,
    discarded: Sum,
    /// Windows from this number on have not been discarded.
    kept_from: u64,
    late: u64,
}

impl RollingWindows {
    /// Windows of `width` (1 ps at least), of which the last `keep` (1 at least) that held something are kept.
    pub fn new(width: PicoDuration, keep: usize) -> Self {
        RollingWindows {
            width: width.max(PicoDuration::from_ps(1)),
            keep: keep.max(1),
            closed: VecDeque::new(),
            open: VecDeque::new(),
            mark: 0,
            discarded: Sum::default(),
            kept_from: 0,
            late: 0,
        }
    }

    /// The width.
    pub fn width(&self) -> PicoDuration {
        self.width
    }

    /// When a window begins.
    pub fn start_of(&self, index: u64) -> PicoTime {
        PicoTime::from_ps(index.saturating_mul(self.width.as_ps()))
    }

    /// Adds an event. One that is older than the mark is counted in the oldest open window, and as late.
    pub fn add(&mut self, event: &Event) {
        let mut index = event.at.as_ps() / self.width.as_ps();
        if index < self.mark {
            self.late += 1;
            index = self.mark;
        }
        let place = match self.open.back() {
            Some((last, _)) if *last == index => self.open.len() - 1,
            Some((last, _)) if *last > index => {
                let place = self.open.partition_point(|(i, _)| *i < index);
                if self.open.get(place).is_none_or(|(i, _)| *i != index) {
                    self.open.insert(place, (index, Sum::default()));
                }
                place
            }
            _ => {
                self.open.push_back((index, Sum::default()));
                self.open.len() - 1
            }
        };
        if let Some((_, sum)) = self.open.get_mut(place) {
            sum.add(event);
        }
    }

    /// Says that no event before `mark` will come: windows that end by then are closed.
    pub fn close_until(&mut self, mark: PicoTime) {
        self.mark = self.mark.max(mark.as_ps() / self.width.as_ps());
        while let Some(window) = self.open.pop_front_if(|(index, _)| *index < self.mark) {
            if self.closed.len() >= self.keep
                && let Some((index, oldest)) = self.closed.pop_front()
            {
                self.kept_from = index + 1;
                self.discarded.merge(&oldest);
            }
            self.closed.push_back(window);
        }
    }

    /// The closed windows from number `from`, oldest first; one in which nothing happened is not there.
    pub fn closed(&self, from: u64) -> impl Iterator<Item = (u64, &Sum)> {
        let start = self.closed.partition_point(|(index, _)| *index < from);
        self.closed.range(start..).map(|(index, sum)| (*index, sum))
    }

    /// The first window that is not closed: all below it are final.
    pub fn next_index(&self) -> u64 {
        self.mark
    }

    /// What the windows hold that had to leave for later ones.
    pub fn discarded(&self) -> &Sum {
        &self.discarded
    }

    /// All closed windows from this number on are still there.
    pub fn kept_from(&self) -> u64 {
        self.kept_from
    }

    /// Events that came behind the mark.
    pub fn late(&self) -> u64 {
        self.late
    }

    /// The sum of all windows: discarded, closed and open.
    pub fn total(&self) -> Sum {
        let mut total = self.discarded;
        for (_, sum) in self.closed.iter().chain(&self.open) {
            total.merge(sum);
        }
        total
    }
}
