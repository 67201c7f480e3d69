//! How late frames were written: a histogram of nanoseconds.
//!
//! Bucket of a value v >= 64: its power of two and the next six bits, so buckets are at most
//! 1/64 of their value wide.

const SUB_BITS: u32 = 6;
const SUB: usize = 1 << SUB_BITS;
const BUCKETS: usize = SUB * (64 - SUB_BITS as usize + 1);

/// Lateness of the frames that were written.
#[derive(Debug, Clone)]
pub(crate) struct Histogram {
    counts: Vec<u64>,
    total: u64,
    max_ns: u64,
}

/// What a histogram of lateness says, ns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lateness {
    /// Frames written.
    pub frames: u64,
    /// Median lateness.
    pub p50_ns: u64,
    /// 99 % of the frames were written within this.
    pub p99_ns: u64,
    /// 99.9 % of the frames were written within this.
    pub p999_ns: u64,
    /// The latest frame.
    pub max_ns: u64,
}

impl Histogram {
    pub fn new() -> Self {
        Self {
            counts: vec![0; BUCKETS],
            total: 0,
            max_ns: 0,
        }
    }

    pub fn record(&mut self, ns: u64) {
        if let Some(count) = self.counts.get_mut(bucket(ns)) {
            *count += 1;
        }
        self.total += 1;
        self.max_ns = self.max_ns.max(ns);
    }

    /// Adds what another has counted.
    pub fn add(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.total += other.total;
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    pub fn clear(&mut self) {
        self.counts.fill(0);
        self.total = 0;
        self.max_ns = 0;
    }

    pub fn summary(&self) -> Lateness {
        Lateness {
            frames: self.total,
            p50_ns: self.quantile(500),
            p99_ns: self.quantile(990),
            p999_ns: self.quantile(999),
            max_ns: self.max_ns,
        }
    }

    /// The upper end of the bucket in which `permille` of the values are passed.
    fn quantile(&self, permille: u64) -> u64 {
        let rank = (u128::from(self.total) * u128::from(permille)).div_ceil(1000);
        let mut seen = 0u128;
        for (index, count) in self.counts.iter().enumerate() {
            seen += u128::from(*count);
            if *count > 0 && seen >= rank {
                return upper(index).min(self.max_ns);
            }
        }
        0
    }
}

fn bucket(ns: u64) -> usize {
    if ns < SUB as u64 {
        return ns as usize;
    }
    let power = 63 - ns.leading_zeros();
    let shift = power - SUB_BITS;
    let sub = (ns >> shift) as usize - SUB;
    (shift as usize + 1) * SUB + sub
}

fn upper(bucket: usize) -> u64 {
    if bucket < SUB {
        return bucket as u64;
    }
    let shift = (bucket / SUB - 1) as u32;
    let low = ((SUB + bucket % SUB) as u64) << shift;
    low + ((1u64 << shift) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_within_its_bucket() {
        for ns in (0..10_000).chain([1 << 20, (1 << 40) + 12_345, u64::MAX - 1, u64::MAX]) {
            let b = bucket(ns);
            assert!(b < BUCKETS);
            assert!(upper(b) >= ns, "{ns}");
            assert!(upper(b) - ns <= ns / 64, "{ns}: {}", upper(b));
        }
    }

    #[test]
    fn quantiles() {
        let mut h = Histogram::new();
        assert_eq!(h.summary(), Lateness::default());
        for ns in 1..=1000 {
            h.record(ns);
        }
        let s = h.summary();
        assert_eq!((s.frames, s.max_ns), (1000, 1000));
        assert!((500..=508).contains(&s.p50_ns), "{s:?}");
        assert!((990..=1000).contains(&s.p99_ns), "{s:?}");
        h.clear();
        assert_eq!(h.summary().frames, 0);
    }
}
