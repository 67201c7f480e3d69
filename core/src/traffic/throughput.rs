//! Throughput at zero loss (RFC 2544, section 26.1; RFC 1242, section 3.17).
//!
//! The highest rate at which every frame of a run arrives, by halving between the highest rate that lost
//! nothing and the lowest that did:
//!
//! ```text
//!   max --loss--> (min + max) / 2 --none--> ... until  high - low <= high / resolution
//! ```
//!
//! Calls: `next()` for the rate of a run, `handle(lossless)` with its outcome, until `next()` is `None`.

use crate::units::BitRate;

/// What was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThroughputResult {
    /// The highest rate that lost nothing; `None` when even the lowest lost.
    pub lossless: Option<BitRate>,
    /// The lowest rate that lost; `None` when even the highest lost nothing.
    pub lossy: Option<BitRate>,
    /// Runs.
    pub runs: u32,
}

/// The search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Throughput {
    min: BitRate,
    max: BitRate,
    resolution_ppm: u64,
    result: ThroughputResult,
}

impl Throughput {
    /// From `min` to `max` (the larger of the two), to `resolution_ppm` millionths (1 at least).
    pub fn new(min: BitRate, max: BitRate, resolution_ppm: u64) -> Self {
        Throughput {
            min,
            max: max.max(min),
            resolution_ppm: resolution_ppm.max(1),
            result: ThroughputResult {
                lossless: None,
                lossy: None,
                runs: 0,
            },
        }
    }

    /// The rate of the next run; `None` when the search is over.
    pub fn next(&self) -> Option<BitRate> {
        match (self.result.lossless, self.result.lossy) {
            (None, None) => Some(self.max),
            // The highest rate lost nothing.
            (Some(_), None) => None,
            (None, Some(lossy)) if lossy == self.min => None,
            (low, Some(high)) => {
                let low = low.map_or(self.min.bps() - 1, BitRate::bps);
                let resolved = u128::from(high.bps()) * u128::from(self.resolution_ppm) / 1_000_000;
                let apart = high.bps() - low;
                if apart <= 1 || (self.result.lossless.is_some() && u128::from(apart) <= resolved) {
                    return None;
                }
                let middle = BitRate::new(low + apart / 2)?;
                // Before anything was lossless, the lowest rate is tried when the halves come near it.
                let near = self.result.lossless.is_none() && u128::from(apart) <= resolved.max(2);
                Some(if near { self.min } else { middle.max(self.min) })
            }
        }
    }

    /// The outcome of a run at the rate that `next` gave.
    pub fn handle(&mut self, lossless: bool) {
        let Some(rate) = self.next() else { return };
        self.result.runs += 1;
        if lossless {
            self.result.lossless = Some(rate);
        } else {
            self.result.lossy = Some(rate);
        }
    }

    /// What is known so far.
    pub fn result(&self) -> ThroughputResult {
        self.result
    }
}
