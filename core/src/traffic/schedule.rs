//! When each frame leaves.
//!
//! | timing | start of the next frame after one of `len` bytes |
//! |---|---|
//! | rate m | `len * 8 / m` later, a sum rounded once ([`TxClock`]) |
//! | interval | a fixed time later |
//! | gap | preamble 8, `len` and the gap on a wire of that L1 rate later, to the byte |
//! | Poisson | an exponential time later, of the mean that gives rate m with the mean size |
//! | on-off | as a rate while on; frames that would start while off wait for the next on |
//! | list | as written; begun again at the end where that is asked for |
//!
//! Sizes are fixed, IMIX (7:4:1 of 64, 594 and 1518 bytes, in an order of 12 that is always the same), or even
//! over a range. Streams take turns; the streams of a Poisson schedule are drawn, so each is Poisson by itself.

use super::{
    exponential,
    list::{Entry, MAX_ENTRIES},
};
use crate::{
    sim::Random,
    units::{BitRate, FrameBytes, PS_BITS_PER_BYTE, PicoDuration, PicoTime, TxClock, WireBytes},
    wire::{IFG_MIN, LineRate, PREAMBLE},
};
use alloc::sync::Arc;
use core::fmt;

/// Smallest frame, bytes with FCS.
pub const MIN_FRAME: u64 = 64;
/// Largest frame, bytes with FCS.
pub const MAX_FRAME: u64 = 9_018;
/// Most streams.
pub const MAX_STREAMS: u32 = 1_024;
/// Sizes of IMIX in their order: seven of 64, four of 594, one of 1518 bytes.
pub const IMIX: [u64; 12] = [64, 594, 64, 64, 594, 64, 1_518, 64, 594, 64, 64, 594];
/// Binary digits of a picosecond that a Poisson schedule keeps.
const FRACTION_BITS: u32 = 16;

/// Sizes of frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sizes {
    /// All the same.
    Fixed(FrameBytes),
    /// [`IMIX`].
    Imix,
    /// Any from the first to the second, all equally often.
    Range(FrameBytes, FrameBytes),
}

impl Sizes {
    /// The mean as a fraction of whole bytes.
    fn mean(self) -> (u64, u64) {
        match self {
            Sizes::Fixed(len) => (len.get(), 1),
            Sizes::Imix => (IMIX.iter().sum(), IMIX.len() as u64),
            Sizes::Range(least, most) => (least.get() + most.get(), 2),
        }
    }

    fn valid(self) -> bool {
        let frame = |len: FrameBytes| (MIN_FRAME..=MAX_FRAME).contains(&len.get());
        match self {
            Sizes::Fixed(len) => frame(len),
            Sizes::Imix => true,
            Sizes::Range(least, most) => frame(least) && frame(most) && least <= most,
        }
    }
}

/// How departures follow each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Timing {
    /// At a frame-level rate.
    Rate(BitRate),
    /// Start to start.
    Interval(PicoDuration),
    /// Idle bytes after each frame on a wire of an L1 rate; 12 at least.
    Gap(WireBytes, LineRate),
    /// Random, at a mean frame-level rate.
    Poisson(BitRate),
    /// A frame-level rate while on, nothing while off.
    OnOff {
        /// While on.
        rate: BitRate,
        /// How long it is on.
        on: PicoDuration,
        /// How long it is off.
        off: PicoDuration,
    },
    /// Times and sizes of a list or a recording.
    List {
        /// The frames.
        entries: Arc<[Entry]>,
        /// Begun again at its end.
        repeat: bool,
    },
}

/// What a schedule is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    /// When.
    pub timing: Timing,
    /// How large; a list has its own.
    pub sizes: Sizes,
    /// How many streams, 1 to [`MAX_STREAMS`].
    pub streams: u32,
    /// What Poisson times and random sizes follow from.
    pub seed: u64,
    /// No frame leaves at this time of the run or later.
    pub time: Option<PicoDuration>,
    /// No more frames than this.
    pub frames: Option<u64>,
}

/// Why there is no schedule of a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatternError {
    /// A size that no frame has.
    Size,
    /// Number of streams.
    Streams,
    /// No time from one frame to the next.
    NoTime,
    /// An empty list, or one that is too long.
    List,
    /// Neither a time, a number of frames, nor a list that ends.
    Endless,
}

impl fmt::Display for PatternError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PatternError::Size => write!(f, "frame size: from {MIN_FRAME}B to {MAX_FRAME}B, FCS counted"),
            PatternError::Streams => write!(f, "streams: from 1 to {MAX_STREAMS}"),
            PatternError::NoTime => f.write_str("interval, on and off: times above zero are valid"),
            PatternError::List => write!(f, "list: from 1 to {MAX_ENTRIES} frames, not all at one time"),
            PatternError::Endless => f.write_str("no end: a time or a number of frames is needed"),
        }
    }
}

impl core::error::Error for PatternError {}

/// One frame's departure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Departure {
    /// When its first bit leaves.
    pub at: PicoTime,
    /// Its size.
    pub len: FrameBytes,
    /// Its stream, from 0.
    pub stream: u32,
    /// Its place in a list, else 0.
    pub entry: usize,
}

/// The departures of a pattern, in order.
#[derive(Debug, Clone)]
pub struct Schedule {
    pattern: Pattern,
    random: Random,
    clock: TxClock,
    /// Poisson: the next start in parts of a ps.
    fine: u128,
    /// Poisson: mean time between starts in parts of a ps.
    mean: u128,
    sent: u64,
    entry: usize,
}

impl Schedule {
    /// The schedule of a pattern.
    ///
    /// # Errors
    /// What of the pattern is not valid.
    pub fn new(pattern: Pattern) -> Result<Self, PatternError> {
        check(&pattern)?;
        let clock = TxClock::new(match pattern.timing {
            Timing::Rate(rate) | Timing::Poisson(rate) | Timing::OnOff { rate, .. } => rate,
            Timing::Gap(_, line) => line.bit_rate(),
            Timing::Interval(_) | Timing::List { .. } => BitRate::MAX,
        });
        let (bytes, frames) = pattern.sizes.mean();
        let byte_time = (u128::from(PS_BITS_PER_BYTE) << FRACTION_BITS) * u128::from(bytes);
        Ok(Schedule {
            random: Random::new(pattern.seed),
            mean: byte_time / (u128::from(frames) * u128::from(clock.rate().bps())),
            clock,
            fine: 0,
            sent: 0,
            entry: 0,
            pattern,
        })
    }

    /// Frames so far.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    fn size(&mut self) -> FrameBytes {
        match self.pattern.sizes {
            Sizes::Fixed(len) => len,
            Sizes::Imix => {
                let turn = usize::try_from(self.sent % IMIX.len() as u64).unwrap_or(0);
                FrameBytes::new(IMIX.get(turn).copied().unwrap_or(MIN_FRAME))
            }
            Sizes::Range(least, most) => {
                least + FrameBytes::new(self.random.below(most.get() - least.get() + 1))
            }
        }
    }

    /// The stream of the next frame.
    fn stream(&mut self) -> u32 {
        let streams = u64::from(self.pattern.streams);
        let stream = match self.pattern.timing {
            Timing::Poisson(_) if streams > 1 => self.random.below(streams),
            _ => self.sent % streams,
        };
        u32::try_from(stream).unwrap_or(0)
    }

    /// The next frame's start and size; the clock goes on to the one after it.
    fn next_start(&mut self) -> Option<(PicoTime, FrameBytes, usize)> {
        if let Timing::List { entries, repeat } = &self.pattern.timing {
            if self.entry == entries.len() && *repeat {
                self.entry = 0;
            }
            let entry = *entries.get(self.entry)?;
            self.clock.wait(entry.gap);
            self.entry += 1;
            return Some((self.clock.at(), entry.len, self.entry - 1));
        }
        let len = self.size();
        let start = self.clock.at();
        match self.pattern.timing {
            Timing::Rate(_) => {
                self.clock.advance(len.get());
            }
            Timing::Interval(time) => self.clock.wait(time),
            Timing::Gap(gap, _) => {
                let own = PREAMBLE + len.get();
                self.clock.advance(own.saturating_add(gap.get().max(IFG_MIN)));
            }
            Timing::Poisson(_) => {
                self.fine = self
                    .fine
                    .saturating_add(exponential::times(&mut self.random, self.mean));
                let ps = u64::try_from(self.fine >> FRACTION_BITS).unwrap_or(u64::MAX);
                self.clock.catch_up(PicoTime::from_ps(ps));
            }
            Timing::OnOff { on, off, .. } => {
                self.clock.advance(len.get());
                let (on, period) = (on.as_ps(), on.as_ps().saturating_add(off.as_ps()));
                let at = self.clock.at().as_ps();
                if at % period >= on {
                    let next = (at / period).saturating_add(1).saturating_mul(period);
                    self.clock.catch_up(PicoTime::from_ps(next));
                }
            }
            Timing::List { .. } => {}
        }
        Some((start, len, 0))
    }
}

impl Iterator for Schedule {
    type Item = Departure;

    fn next(&mut self) -> Option<Departure> {
        if self.pattern.frames.is_some_and(|frames| self.sent >= frames) {
            return None;
        }
        let (at, len, entry) = self.next_start()?;
        let over = |time: PicoDuration| at >= PicoTime::ZERO + time;
        if at == PicoTime::MAX || self.pattern.time.is_some_and(over) {
            self.pattern.frames = Some(0);
            return None;
        }
        let stream = self.stream();
        self.sent += 1;
        Some(Departure {
            at,
            len,
            stream,
            entry,
        })
    }
}

fn check(pattern: &Pattern) -> Result<(), PatternError> {
    if !(1..=MAX_STREAMS).contains(&pattern.streams) {
        return Err(PatternError::Streams);
    }
    if !pattern.sizes.valid() {
        return Err(PatternError::Size);
    }
    let mut ends = pattern.time.is_some() || pattern.frames.is_some();
    match &pattern.timing {
        Timing::Interval(time) if *time == PicoDuration::ZERO => return Err(PatternError::NoTime),
        Timing::OnOff { on, off, .. } if on.min(off) == &PicoDuration::ZERO => {
            return Err(PatternError::NoTime);
        }
        Timing::List { entries, repeat } => {
            let some_time = entries.iter().any(|e| e.gap > PicoDuration::ZERO);
            let sizes = entries
                .iter()
                .all(|e| (MIN_FRAME..=MAX_FRAME).contains(&e.len.get()));
            if !(1..=MAX_ENTRIES).contains(&entries.len()) || (*repeat && !some_time) {
                return Err(PatternError::List);
            }
            if !sizes {
                return Err(PatternError::Size);
            }
            ends |= !repeat;
        }
        _ => {}
    }
    if ends { Ok(()) } else { Err(PatternError::Endless) }
}
