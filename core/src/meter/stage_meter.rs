//! A meter: what it takes of one stage's frames, and everything that it keeps of them.
//!
//! ```text
//!   event, stream ──> filter (once per stream) ──> series 0: all that is taken ── windows of each width
//!                                              └─> series n: one stream each   └─ distances, delay, jitter
//! ```

use super::{Event, Filter, RollingWindows, Spread, StreamKey};
use crate::units::PicoDuration;
use crate::wire::LineRate;
use alloc::{collections::BTreeMap, string::String, vec::Vec};
use core::fmt;

/// Narrowest window of a meter.
pub const METER_WIDTH_MIN: PicoDuration = PicoDuration::from_us(500);
/// Widest window of a meter.
pub const METER_WIDTH_MAX: PicoDuration = PicoDuration::from_secs(3_600);
/// Most widths of a meter.
pub const METER_WIDTHS_MAX: usize = 8;
/// Most windows that a meter keeps of each width and series.
pub const METER_KEEP_MAX: usize = 1 << 16;
/// Most streams that a meter keeps apart.
pub const METER_STREAMS_MAX: usize = 64;
/// Streams that a meter with a decision can tell apart; see [`StageMeter::add`].
pub const STREAM_NUMBERS_MAX: u32 = 1 << 16;

/// What a meter is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeterConfig {
    /// Streams that it takes.
    pub filter: Filter,
    /// Widths of its windows, [`METER_WIDTH_MIN`] to [`METER_WIDTH_MAX`].
    pub widths: Vec<PicoDuration>,
    /// Windows that it keeps of each width and series, 1 to [`METER_KEEP_MAX`].
    pub keep: usize,
    /// Streams that it keeps apart, 0 for none, to [`METER_STREAMS_MAX`].
    pub streams: usize,
}

impl MeterConfig {
    /// Whether the numbers are within their limits.
    ///
    /// # Errors
    /// Which is not, and what would be valid.
    pub fn check(&self) -> Result<(), String> {
        if self.widths.is_empty() || self.widths.len() > METER_WIDTHS_MAX {
            return Err(alloc::format!(
                "windows: {} widths: 1 to {METER_WIDTHS_MAX}",
                self.widths.len()
            ));
        }
        for width in &self.widths {
            if *width < METER_WIDTH_MIN || *width > METER_WIDTH_MAX {
                return Err(alloc::format!(
                    "windows: {width}: {METER_WIDTH_MIN} to {METER_WIDTH_MAX}"
                ));
            }
        }
        if self.keep == 0 || self.keep > METER_KEEP_MAX {
            return Err(alloc::format!(
                "keep: {}: 1 to {METER_KEEP_MAX} windows",
                self.keep
            ));
        }
        if self.streams > METER_STREAMS_MAX {
            return Err(alloc::format!(
                "streams: {}: 0 to {METER_STREAMS_MAX}",
                self.streams
            ));
        }
        Ok(())
    }

    /// Series that it may have.
    pub fn series(&self) -> usize {
        1 + self.streams
    }

    /// Windows that it may hold, closed ones.
    pub fn windows(&self) -> usize {
        self.series() * self.widths.len() * self.keep
    }
}

/// The windows of every width, and the spread, of one stream or of all.
#[derive(Debug, Clone)]
pub struct MeterSeries {
    /// The stream; `None` for all that the meter takes.
    pub stream: Option<StreamKey>,
    /// By width, in the order of the configuration.
    pub windows: Vec<RollingWindows>,
    /// Distances, delay and jitter.
    pub spread: Spread,
}

impl MeterSeries {
    fn new(stream: Option<StreamKey>, config: &MeterConfig, line: Option<LineRate>) -> Self {
        MeterSeries {
            stream,
            windows: config
                .widths
                .iter()
                .map(|width| RollingWindows::new(*width, config.keep))
                .collect(),
            spread: Spread::new(line),
        }
    }

    fn add(&mut self, event: &Event) {
        for windows in &mut self.windows {
            windows.add(event);
        }
        self.spread.add(event);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Decision {
    Open,
    /// Without a key it may be of the meter's streams or not.
    Unknown,
    Not,
    All,
    Series(u16),
}

/// A meter at one stage.
#[derive(Debug, Clone)]
pub struct StageMeter {
    config: MeterConfig,
    line: Option<LineRate>,
    series: Vec<MeterSeries>,
    decisions: Vec<Decision>,
    by_key: BTreeMap<StreamKey, u16>,
    unlisted: u64,
    unassigned: u64,
    events: u64,
}

impl StageMeter {
    /// A meter over a stage whose frames leave on a wire of rate `line`, if they do.
    pub fn new(config: MeterConfig, line: Option<LineRate>) -> Self {
        StageMeter {
            series: alloc::vec![MeterSeries::new(None, &config, line)],
            config,
            line,
            decisions: Vec::new(),
            by_key: BTreeMap::new(),
            unlisted: 0,
            unassigned: 0,
            events: 0,
        }
    }

    /// What it is.
    pub fn config(&self) -> &MeterConfig {
        &self.config
    }

    /// Adds an event of a stream, by the caller's number of it and, asked for once per number, its key. Numbers from
    /// [`STREAM_NUMBERS_MAX`] are asked for each time; a stream without a key belongs to meters that take everything.
    pub fn add(&mut self, stream: u32, key: impl FnOnce() -> Option<StreamKey>, event: &Event) {
        let number = stream as usize;
        let mut decision = self.decisions.get(number).copied().unwrap_or(Decision::Open);
        if decision == Decision::Open {
            decision = self.decide(key());
            if stream < STREAM_NUMBERS_MAX {
                if self.decisions.len() <= number {
                    self.decisions.resize(number + 1, Decision::Open);
                }
                if let Some(slot) = self.decisions.get_mut(number) {
                    *slot = decision;
                }
            }
        }
        match decision {
            Decision::Open | Decision::Not => {}
            Decision::Unknown => self.unassigned += 1,
            Decision::All => {
                self.unlisted += u64::from(self.config.streams > 0);
                self.count(None, event);
            }
            Decision::Series(n) => self.count(Some(n), event),
        }
    }

    fn decide(&mut self, key: Option<StreamKey>) -> Decision {
        let Some(key) = key else {
            return if self.config.filter.is_all() {
                Decision::All
            } else {
                Decision::Unknown
            };
        };
        if !self.config.filter.takes(&key) {
            return Decision::Not;
        }
        if let Some(known) = self.by_key.get(&key) {
            return Decision::Series(*known);
        }
        match u16::try_from(self.series.len()) {
            Ok(n) if self.series.len() <= self.config.streams => {
                self.series
                    .push(MeterSeries::new(Some(key), &self.config, self.line));
                self.by_key.insert(key, n);
                Decision::Series(n)
            }
            _ => Decision::All,
        }
    }

    fn count(&mut self, series: Option<u16>, event: &Event) {
        self.events += 1;
        if let Some(all) = self.series.first_mut() {
            all.add(event);
        }
        if let Some(own) = series.and_then(|n| self.series.get_mut(usize::from(n))) {
            own.add(event);
        }
    }

    /// Says that no event before `mark` will come.
    pub fn close_until(&mut self, mark: crate::units::PicoTime) {
        for windows in self.series.iter_mut().flat_map(|s| &mut s.windows) {
            windows.close_until(mark);
        }
    }

    /// All that it takes, and then the streams that it keeps apart, in the order of their first frames.
    pub fn series(&self) -> &[MeterSeries] {
        &self.series
    }

    /// Events of streams for which there was no room: they are in the first series only.
    pub fn unlisted(&self) -> u64 {
        self.unlisted
    }

    /// Frames that vanished in the stage, and events of streams without a key: they may be of the meter's streams.
    pub fn unassigned(&self) -> u64 {
        self.unassigned
    }

    /// Events that were taken.
    pub fn events(&self) -> u64 {
        self.events
    }
}

impl fmt::Display for MeterConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = if self.filter.is_all() { "everything" } else { "" };
        write!(f, "{all}{}, windows of", self.filter)?;
        for width in &self.widths {
            write!(f, " {width}")?;
        }
        Ok(())
    }
}
