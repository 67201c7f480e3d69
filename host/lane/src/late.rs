//! How late the tunnel's thread comes to what is due.
//!
//! ```text
//!   due = the bundle's next moment, when the thread goes to sleep      late = start of the next sending - due
//! ```
//!
//! The kernel wakes a thread late when others have its core. What is late is told to the bundle, which lets its lanes make up for
//! it ([`kuroshio_core::lane::Bundle::set_lateness`]), and to `status`.

use kuroshio_core::units::{PicoDuration, PicoTime};

/// How long the longest lateness counts at least; to twice that.
const WINDOW: PicoDuration = PicoDuration::from_secs(5);
/// Classes of the histogram: four in each doubling of microseconds.
const CLASSES: usize = 4 * 24;

/// Lateness of a thread.
#[derive(Debug, Clone)]
pub struct Lateness {
    counts: [u64; CLASSES],
    began: PicoTime,
    longest: [PicoDuration; 2],
}

impl Default for Lateness {
    fn default() -> Self {
        Self {
            counts: [0; CLASSES],
            began: PicoTime::ZERO,
            longest: [PicoDuration::ZERO; 2],
        }
    }
}

fn class(us: u64) -> usize {
    let double = us.max(1).ilog2() as usize;
    let quarter = (us.max(1) << 2 >> double) as usize & 3;
    (double * 4 + quarter).min(CLASSES - 1)
}

/// The largest value of a class, us.
fn end(class: usize) -> u64 {
    let (double, quarter) = (class / 4, class as u64 % 4);
    (((5 + quarter) << double) / 4).max(1)
}

impl Lateness {
    /// What was due at `due` is begun now.
    pub fn note(&mut self, now: PicoTime, due: PicoTime) {
        let late = now - due;
        self.counts[class(late.as_us())] += 1;
        if now - self.began > WINDOW {
            self.began = now;
            self.longest = [late, self.longest[0]];
        }
        self.longest[0] = self.longest[0].max(late);
    }

    /// The longest of the last five to ten seconds.
    #[must_use]
    pub fn longest(&self) -> PicoDuration {
        self.longest[0].max(self.longest[1])
    }

    /// The lateness that so many of a thousand do not exceed, us, to a fifth.
    #[must_use]
    pub fn quantile_us(&self, thousandths: u64) -> u64 {
        let all: u64 = self.counts.iter().sum();
        let want = (u128::from(all) * u128::from(thousandths)).div_ceil(1_000);
        let mut below = 0u128;
        for (class, count) in self.counts.iter().enumerate() {
            below += u128::from(*count);
            if below >= want && below > 0 {
                return end(class);
            }
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_a_fifth_and_the_longest_is_forgotten() {
        let mut late = Lateness::default();
        assert_eq!(late.quantile_us(500), 0);
        let at = |us: u64| PicoTime::from_us(us);
        for n in 1..=1_000u64 {
            late.note(at(1_000_000 + n), at(1_000_000));
        }
        for (thousandths, us) in [(500, 500), (990, 990), (100, 100)] {
            let found = late.quantile_us(thousandths);
            assert!(found >= us && found <= us + us / 4, "{found} for {us}");
        }
        assert_eq!(late.longest(), PicoDuration::from_us(1_000));
        for second in 2..20 {
            late.note(at(second * 1_000_000), at(second * 1_000_000));
        }
        assert_eq!(late.longest(), PicoDuration::ZERO);
    }
}
