//! A histogram of u64 values (gaps and delays in ps or ns) in fixed memory.
//!
//! Buckets are log-linear: below 256 every value has its own; from there each power of two is cut into
//! 128 equal buckets, so a bucket is at most 1/128 of its values wide.
//!
//! ```text
//!     value       0 .. 255    256 .. 511    512 .. 1023   ...   2^63 .. 2^64 - 1
//!     width           1            2             4                   2^56
//!     buckets       256          128           128                   128          = 7424, 58 KiB
//! ```
//!
//! A percentile is the upper end of its bucket, so it is never below the true one, above it by less than
//! 0.8 %, and exact below 256 and at the maximum.

use alloc::{boxed::Box, vec};

/// Bits that tell the buckets of one power of two apart.
const SUB_BITS: u32 = 7;
/// Buckets in a power of two.
const SUB: usize = 1 << SUB_BITS;
/// All buckets: one power of two for each shift from 0 to 56, and as many again below the first.
const BUCKETS: usize = (64 - SUB_BITS as usize + 1) * SUB;

/// Counts of values with percentiles.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Histogram {
    buckets: Box<[u64]>,
    count: u64,
    sum: u128,
    min: u64,
    max: u64,
}

/// The figures of a histogram, in the unit of its values; all 0 when it is empty.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Summary {
    /// Number of values.
    pub count: u64,
    /// Smallest value.
    pub min: u64,
    /// Mean, rounded down.
    pub mean: u64,
    /// Half of the values are at most this.
    pub p50: u64,
    /// 99 % of the values are at most this.
    pub p99: u64,
    /// 99.9 % of the values are at most this.
    pub p999: u64,
    /// Largest value.
    pub max: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

impl Histogram {
    /// An empty histogram.
    pub fn new() -> Self {
        let buckets = vec![0; BUCKETS].into_boxed_slice();
        Histogram {
            buckets,
            count: 0,
            sum: 0,
            min: u64::MAX,
            max: 0,
        }
    }

    /// Counts a value.
    #[inline]
    pub fn record(&mut self, value: u64) {
        if let Some(bucket) = self.buckets.get_mut(bucket_of(value)) {
            *bucket += 1;
        }
        self.count += 1;
        self.sum += u128::from(value);
        self.min = self.min.min(value);
        self.max = self.max.max(value);
    }

    /// Adds another histogram's values.
    pub fn merge(&mut self, other: &Histogram) {
        for (bucket, count) in self.buckets.iter_mut().zip(&other.buckets) {
            *bucket += count;
        }
        self.count += other.count;
        self.sum += other.sum;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    /// Number of values.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Smallest value.
    pub fn min(&self) -> Option<u64> {
        (self.count > 0).then_some(self.min)
    }

    /// Largest value, exact.
    pub fn max(&self) -> Option<u64> {
        (self.count > 0).then_some(self.max)
    }

    /// Mean, rounded down.
    pub fn mean(&self) -> Option<u64> {
        self.sum
            .checked_div(u128::from(self.count))
            .and_then(|mean| u64::try_from(mean).ok())
    }

    /// The value that `ppm` millionths of the values do not exceed: 500_000 is the median, 999_000 is
    /// p99.9; above 1_000_000 counts as that. `None` when empty.
    pub fn percentile_ppm(&self, ppm: u32) -> Option<u64> {
        let wanted = (u128::from(self.count) * u128::from(ppm.min(1_000_000)))
            .div_ceil(1_000_000)
            .max(1);
        let mut seen = 0u128;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += u128::from(*count);
            if seen >= wanted {
                return Some(upper_end(bucket).clamp(self.min, self.max));
            }
        }
        None
    }

    /// The buckets that hold something, by rising value: the smallest value of each, its largest, and the count.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64, u64)> {
        let held = self.buckets.iter().enumerate().filter(|(_, count)| **count > 0);
        held.map(|(bucket, count)| (lower_end(bucket), upper_end(bucket), *count))
    }

    /// The usual figures.
    pub fn summary(&self) -> Summary {
        let percentile = |ppm| self.percentile_ppm(ppm).unwrap_or(0);
        Summary {
            count: self.count,
            min: self.min().unwrap_or(0),
            mean: self.mean().unwrap_or(0),
            p50: percentile(500_000),
            p99: percentile(990_000),
            p999: percentile(999_000),
            max: self.max,
        }
    }
}

/// How far values of this size are shifted to fit 2 * SUB buckets.
#[inline]
fn bucket_of(value: u64) -> usize {
    let shift = (u64::BITS - value.leading_zeros()).saturating_sub(SUB_BITS + 1);
    // value >> shift is below 2 * SUB, and at least SUB when shift is above 0.
    shift as usize * SUB + (value >> shift) as usize
}

fn shift_of(bucket: usize) -> usize {
    (bucket / SUB).saturating_sub(1)
}

/// The smallest value in a bucket.
fn lower_end(bucket: usize) -> u64 {
    let shift = shift_of(bucket);
    ((bucket - shift * SUB) as u64) << shift
}

/// The largest value in a bucket.
fn upper_end(bucket: usize) -> u64 {
    lower_end(bucket) + ((1u64 << shift_of(bucket)) - 1)
}
