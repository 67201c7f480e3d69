//! Departures from a list: one line for each frame, the time since the frame before it and its size.
//!
//! ```text
//!     # start to start, frame with FCS
//!     0s, 1518B
//!     12.304us, 64B
//! ```
//!
//! A comma or blanks stand between the two. Empty lines and what follows `#` are skipped.

use super::schedule::{MAX_FRAME, MIN_FRAME};
use crate::units::{FrameBytes, PicoDuration, UnitError};
use alloc::vec::Vec;
use core::fmt;

/// Most frames of a list or a recording.
pub const MAX_ENTRIES: usize = 1 << 20;

/// One frame of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// From the start of the frame before it (or of the run) to its start.
    pub gap: PicoDuration,
    /// Its size.
    pub len: FrameBytes,
}

/// Why a list is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListProblem {
    /// Not two fields.
    Fields,
    /// A quantity that cannot be read.
    Unit(UnitError),
    /// A size that no frame has.
    Size,
    /// More than [`MAX_ENTRIES`].
    TooMany,
    /// No frame at all.
    Empty,
    /// All gaps are zero: a list that is repeated would never end.
    NoTime,
}

/// A refused list: the line, from 1, and what is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListError {
    /// The line.
    pub line: usize,
    /// What is wrong.
    pub problem: ListProblem,
}

impl fmt::Display for ListError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: ", self.line)?;
        match &self.problem {
            ListProblem::Fields => f.write_str("write a gap and a frame size, such as 12.3us, 1518B"),
            ListProblem::Unit(e) => write!(f, "{e}"),
            ListProblem::Size => write!(f, "a frame has {MIN_FRAME} to {MAX_FRAME} bytes with FCS"),
            ListProblem::TooMany => write!(f, "more than {MAX_ENTRIES} frames"),
            ListProblem::Empty => f.write_str("there is no frame"),
            ListProblem::NoTime => f.write_str("all gaps are 0: one at least must be longer"),
        }
    }
}

impl core::error::Error for ListError {}

/// Reads a list.
///
/// # Errors
/// The first line that is wrong.
pub fn parse_list(text: &str) -> Result<Vec<Entry>, ListError> {
    let mut entries = Vec::new();
    let mut number = 0;
    for (index, line) in text.lines().enumerate() {
        number = index + 1;
        let wrong = |problem| ListError {
            line: number,
            problem,
        };
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let mut fields = line
            .split(|c: char| c == ',' || c.is_ascii_whitespace())
            .filter(|f| !f.is_empty());
        let (Some(gap), Some(len), None) = (fields.next(), fields.next(), fields.next()) else {
            return Err(wrong(ListProblem::Fields));
        };
        let gap = gap.parse().map_err(|e| wrong(ListProblem::Unit(e)))?;
        let len: FrameBytes = len.parse().map_err(|e| wrong(ListProblem::Unit(e)))?;
        if !(MIN_FRAME..=MAX_FRAME).contains(&len.get()) {
            return Err(wrong(ListProblem::Size));
        }
        if entries.len() == MAX_ENTRIES {
            return Err(wrong(ListProblem::TooMany));
        }
        entries.push(Entry { gap, len });
    }
    let wrong = |problem| ListError {
        line: number.max(1),
        problem,
    };
    if entries.is_empty() {
        return Err(wrong(ListProblem::Empty));
    }
    if entries.iter().all(|e| e.gap == PicoDuration::ZERO) {
        return Err(wrong(ListProblem::NoTime));
    }
    Ok(entries)
}
