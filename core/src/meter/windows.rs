//! Bytes per window per stream.
//!
//! Window i of a stream holds the bytes stamped in `[origin + i * width, origin + (i + 1) * width)`.

use crate::units::{BitRate, PicoDuration, PicoTime};
use alloc::{collections::BTreeMap, vec, vec::Vec};
use core::fmt;

/// Streams in one meter.
pub const STREAMS_MAX: usize = 4_096;
/// Windows per stream: 35 minutes at 500 us; 32 MiB of memory per stream.
pub const WINDOWS_MAX: usize = 1 << 22;

/// A stream, by the caller's numbering.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u32);

/// Why something cannot be metered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MeterError {
    /// Windows of no width.
    ZeroWidth,
    /// A stamp before the origin.
    BeforeOrigin(PicoTime),
    /// A stamp beyond [`WINDOWS_MAX`] windows.
    TooManyWindows(PicoTime),
    /// More than [`STREAMS_MAX`] streams.
    TooManyStreams,
}

impl fmt::Display for MeterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MeterError::ZeroWidth => f.write_str("a window of no width: it must be 1 ps at least"),
            MeterError::BeforeOrigin(at) => write!(f, "a stamp at {at} is before the first window"),
            MeterError::TooManyWindows(at) => {
                write!(
                    f,
                    "a stamp at {at} is beyond {WINDOWS_MAX} windows: make them wider"
                )
            }
            MeterError::TooManyStreams => write!(f, "more than {STREAMS_MAX} streams"),
        }
    }
}

impl core::error::Error for MeterError {}

/// Bytes of each stream in windows of one width.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Windows {
    origin: PicoTime,
    width: PicoDuration,
    series: BTreeMap<StreamId, Vec<u64>>,
}

impl Windows {
    /// Windows of `width` from the start of the run.
    pub fn new(width: PicoDuration) -> Result<Self, MeterError> {
        Self::starting_at(PicoTime::ZERO, width)
    }

    /// Windows of `width` from `origin`.
    pub fn starting_at(origin: PicoTime, width: PicoDuration) -> Result<Self, MeterError> {
        if width == PicoDuration::ZERO {
            return Err(MeterError::ZeroWidth);
        }
        Ok(Windows {
            origin,
            width,
            series: BTreeMap::new(),
        })
    }

    /// The width of each window.
    pub fn width(&self) -> PicoDuration {
        self.width
    }

    /// Adds bytes stamped `at`; stamps may come in any order. Nothing is added on an error.
    pub fn add(&mut self, stream: StreamId, at: PicoTime, bytes: u64) -> Result<(), MeterError> {
        let since = at
            .checked_since(self.origin)
            .ok_or(MeterError::BeforeOrigin(at))?;
        let index = since.as_ps() / self.width.as_ps();
        let index = usize::try_from(index)
            .ok()
            .filter(|i| *i < WINDOWS_MAX)
            .ok_or(MeterError::TooManyWindows(at))?;
        if self.series.len() >= STREAMS_MAX && !self.series.contains_key(&stream) {
            return Err(MeterError::TooManyStreams);
        }
        let series = self.series.entry(stream).or_default();
        if series.len() <= index {
            series.resize(index + 1, 0);
        }
        if let Some(window) = series.get_mut(index) {
            *window = window.saturating_add(bytes);
        }
        Ok(())
    }

    /// Every stream that was seen.
    pub fn streams(&self) -> impl Iterator<Item = StreamId> {
        self.series.keys().copied()
    }

    /// Bytes per window of a stream, up to its last window with a stamp; empty for one never seen.
    pub fn series(&self, stream: StreamId) -> &[u64] {
        self.series.get(&stream).map_or(&[], Vec::as_slice)
    }

    /// Bytes per window of all streams together, up to the last window with a stamp.
    pub fn sum(&self) -> Vec<u64> {
        let mut sum = vec![0u64; self.series.values().map(Vec::len).max().unwrap_or(0)];
        for series in self.series.values() {
            for (total, bytes) in sum.iter_mut().zip(series) {
                *total = total.saturating_add(*bytes);
            }
        }
        sum
    }

    /// When window `index` starts.
    pub fn start_of(&self, index: usize) -> PicoTime {
        self.origin + self.width.saturating_mul(index as u64)
    }

    /// The rate of so many bytes in one window, rounded down; `None` for none.
    pub fn rate_of(&self, bytes: u64) -> Option<BitRate> {
        BitRate::of(bytes, self.width)
    }
}

/// The most bytes in any half-open window of `width`, wherever it starts, and the stamp at which the
/// first of these windows starts. Stamps must be in order; `None` without stamps.
pub fn worst_window(stamps: &[(PicoTime, u64)], width: PicoDuration) -> Option<(PicoTime, u64)> {
    let mut worst: Option<(PicoTime, u64)> = None;
    let (mut oldest, mut bytes) = (stamps.iter().peekable(), 0u64);
    for &(at, len) in stamps {
        bytes = bytes.saturating_add(len);
        while let Some(&(_, gone)) = oldest.next_if(|(first, _)| at - *first >= width && *first != at) {
            bytes = bytes.saturating_sub(gone);
        }
        if let Some(&&(start, _)) = oldest.peek()
            && worst.is_none_or(|(_, most)| bytes > most)
        {
            worst = Some((start, bytes));
        }
    }
    worst
}

/// The coefficient of variation (standard deviation over mean) in millionths, rounded down; 0 for no
/// values or only zeros.
///
/// With n values of sum S it is `sqrt(n * sum of squares - S^2) / S`. Values so large that `n * value`
/// has more than 63 bits are cut by the bits that are too many.
pub fn variation_ppm(values: &[u64]) -> u64 {
    const PPM: u128 = 1_000_000;
    let count = values.len() as u128;
    let bits = |v: u64| u64::BITS - v.leading_zeros();
    let largest = values.iter().copied().max().unwrap_or(0);
    let cut = (bits(largest) + bits(values.len() as u64))
        .saturating_sub(63)
        .min(63);
    let (sum, squares) = values
        .iter()
        .map(|v| u128::from(*v >> cut))
        .fold((0, 0), |(s, q), v| (s + v, q + v * v));
    if sum == 0 {
        return 0;
    }
    let spread = count * squares - sum * sum;
    let variation = match spread.checked_mul(PPM * PPM) {
        Some(scaled) => scaled.isqrt() / sum,
        // The root has more than 40 bits: rounding it down is far below a millionth.
        None => spread.isqrt() * PPM / sum,
    };
    u64::try_from(variation).unwrap_or(u64::MAX)
}
