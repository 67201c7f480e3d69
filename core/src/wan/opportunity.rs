//! A wire that sends when a recording says so: mahimahi's traces.
//!
//! ```text
//!   a file of lines, each the millisecond of one chance to send 1504 bytes; the last one is the period:
//!     0  5  5  12      ->      0  5  5  12  12  17  17  24  24 ...   (ms, round and round)
//! ```
//!
//! A frame is through at the chance that takes its last byte. What is left of a chance serves the frames that wait
//! at that instant and is lost when none does. Mahimahi counts an IP packet and 4 bytes of its tunnel against a
//! chance of 1504; a frame of `len` bytes counts as `len - 14` (its MAC header does not, its FCS stands for the
//! 4), so a frame of 1518 takes one chance here as there.
//!
//! Source: Netravali et al., Mahimahi, USENIX ATC 2015; its `link_queue.cc` and the manual page `mm-link`.

use crate::{
    units::{BitRate, FrameBytes, PicoDuration, PicoTime},
    wire::ETHERNET_HEADER,
};
use alloc::{sync::Arc, vec::Vec};
use core::fmt;

/// Bytes of a chance.
pub const OPPORTUNITY_BYTES: u64 = 1_504;
/// Most chances of a trace: an hour at 12 Gbps.
pub const MAX_OPPORTUNITIES: usize = 1 << 22;
/// Longest period: a day.
pub const MAX_PERIOD_MS: u64 = 86_400_000;

/// Why a trace is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceProblem {
    /// A line is not a whole number of milliseconds.
    NotANumber,
    /// A line is below the one before it.
    Falls,
    /// Above [`MAX_PERIOD_MS`].
    TooLong,
    /// More than [`MAX_OPPORTUNITIES`].
    TooMany,
    /// No chance at all, or the last at 0: the period would be no time.
    NoPeriod,
}

/// A refused trace: the line, from 1, and what is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceError {
    /// The line.
    pub line: usize,
    /// What is wrong.
    pub problem: TraceProblem,
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let problem = match self.problem {
            TraceProblem::NotANumber => "not a whole number of milliseconds",
            TraceProblem::Falls => "below the line before it: times must not fall",
            TraceProblem::TooLong => "more than a day: at most 86400000 ms",
            TraceProblem::TooMany => "more than 4194304 lines",
            TraceProblem::NoPeriod => "the last time is the period and must be above 0 ms",
        };
        write!(f, "trace, line {}: {problem}", self.line)
    }
}

impl core::error::Error for TraceError {}

/// The chances of one period.
#[derive(Debug, PartialEq, Eq)]
pub struct Opportunities {
    /// Not falling; the last is the period.
    at: Vec<PicoDuration>,
    period: PicoDuration,
}

impl Opportunities {
    /// Reads a trace. Empty lines are skipped.
    ///
    /// # Errors
    /// The first line that is wrong.
    pub fn parse(text: &str) -> Result<Self, TraceError> {
        let mut at: Vec<PicoDuration> = Vec::new();
        let mut lines = 0;
        for (index, line) in text.lines().enumerate() {
            lines = index + 1;
            let wrong = |problem| TraceError { line: lines, problem };
            let line = line.trim();
            if line.is_empty() {
                continue;
            }
            if !line.bytes().all(|b| b.is_ascii_digit()) {
                return Err(wrong(TraceProblem::NotANumber));
            }
            // All digits: it can only be too large.
            let ms: u64 = line.parse().map_err(|_| wrong(TraceProblem::TooLong))?;
            if ms > MAX_PERIOD_MS {
                return Err(wrong(TraceProblem::TooLong));
            }
            let time = PicoDuration::from_ms(ms);
            if at.last().is_some_and(|last| time < *last) {
                return Err(wrong(TraceProblem::Falls));
            }
            if at.len() == MAX_OPPORTUNITIES {
                return Err(wrong(TraceProblem::TooMany));
            }
            at.push(time);
        }
        match at.last() {
            Some(&period) if period > PicoDuration::ZERO => Ok(Opportunities { at, period }),
            _ => Err(TraceError {
                line: lines,
                problem: TraceProblem::NoPeriod,
            }),
        }
    }

    /// Chances in a period.
    pub fn count(&self) -> usize {
        self.at.len()
    }

    /// The time after which they come again.
    pub fn period(&self) -> PicoDuration {
        self.period
    }

    /// The frame-level rate of full frames (1518 bytes, one per chance), rounded down.
    pub fn mean_rate(&self) -> BitRate {
        let frames = self.at.len() as u64;
        BitRate::of(frames * (OPPORTUNITY_BYTES + ETHERNET_HEADER), self.period).unwrap_or(BitRate::MIN)
    }

    /// The mean time of a frame of `len` bytes.
    pub(super) fn mean_time(&self, len: FrameBytes) -> PicoDuration {
        let ps = u128::from(self.period.as_ps()) * u128::from(cost(len))
            / (u128::from(OPPORTUNITY_BYTES) * self.at.len() as u128);
        PicoDuration::from_ps(u64::try_from(ps).unwrap_or(u64::MAX))
    }

    /// When the chance with a number, from 0 on over all periods, is.
    fn time(&self, number: u64) -> PicoTime {
        let count = self.at.len() as u64;
        let within = self.at.get((number % count) as usize).copied();
        PicoTime::ZERO + self.period.saturating_mul(number / count) + within.unwrap_or(self.period)
    }

    /// The first chance that is not before `now`.
    fn first_from(&self, now: PicoTime) -> u64 {
        let (now, period, count) = (now.as_ps(), self.period.as_ps(), self.at.len() as u64);
        let before = |within: u64| self.at.partition_point(|t| t.as_ps() < within) as u64;
        match (now / period, now % period) {
            // The end of a period is also the start of the next one.
            (cycle @ 1.., 0) => (cycle - 1) * count + before(period),
            (cycle, within) => cycle * count + before(within),
        }
    }
}

fn cost(len: FrameBytes) -> u64 {
    len.get().saturating_sub(ETHERNET_HEADER)
}

/// A wire on a trace.
#[derive(Debug, Clone)]
pub(super) struct TraceWire {
    pub trace: Arc<Opportunities>,
    /// When the last frame was through.
    at: PicoTime,
    /// The next chance.
    next: u64,
    /// Bytes left of the chance at `at`.
    left: u64,
}

impl TraceWire {
    pub fn new(trace: Arc<Opportunities>, from: PicoTime) -> Self {
        let next = trace.first_from(from);
        TraceWire {
            trace,
            at: from,
            next,
            left: 0,
        }
    }

    pub fn free_at(&self) -> PicoTime {
        self.at
    }

    /// Sends a frame that is ready at `now`, and returns when it is through.
    pub fn send(&mut self, now: PicoTime, len: FrameBytes) -> PicoTime {
        if now > self.at {
            self.at = now;
            self.left = 0;
            self.next = self.next.max(self.trace.first_from(now));
        }
        let need = cost(len);
        if need <= self.left {
            self.left -= need;
            return self.at;
        }
        let more = need - self.left;
        let chances = more.div_ceil(OPPORTUNITY_BYTES);
        self.next = self.next.saturating_add(chances);
        self.at = self.at.max(self.trace.time(self.next - 1));
        self.left = (OPPORTUNITY_BYTES - more % OPPORTUNITY_BYTES) % OPPORTUNITY_BYTES;
        self.at
    }
}
