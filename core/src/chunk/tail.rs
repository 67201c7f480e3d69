//! How much a stream may take near the end of the data, so that unequal streams finish together.
//!
//! With `R` bytes not yet given to any stream, stream `j` of rate `r_j` still busy with `b_j` bytes, the
//! earliest common end is the water level
//!
//! ```text
//!     T = (R + sum b_j) / sum r_j      over the streams with b_j / r_j < T
//! ```
//!
//! Stream `i`, which asks because it is free, may take at most half of what it could carry until `T`
//! (half, so that an error in the rates is corrected by later, smaller pieces). Far from the end that is
//! more than a chunk and changes nothing. When even the least piece of `m` bytes would be more, the
//! stream takes it only if the others would not be done with it sooner:
//!
//! ```text
//!     m / r_i  <=  max( (R + sum b_j) / sum r_j ,  min (b_j + m) / r_j )      over the others
//! ```
//!
//! The second term makes the fastest stream never decline, so something is always taken. `b_j` is what
//! the stream was last given less what its rate has carried since. A stream that stays away four times
//! as long as its piece takes, and a second more, counts as stopped: the others no longer wait for it.
//!
//! Rates are measured from the pulls, never told: a stream's first rate from a plan is its floor, and one
//! that were believed for good would leave the stream without work.

use crate::units::{PS_PER_SEC, PicoTime};

/// Rates above this are taken as this (1 Pbit/s), which keeps every product below 2^128.
const MAX_RATE_BPS: u64 = 1 << 50;

/// How much longer than its piece a stream may stay away, in times of the piece and picoseconds.
const STOPPED_TIMES: u128 = 4;
const STOPPED_MORE_PS: u128 = PS_PER_SEC as u128;

/// What is known of a stream's speed and of what it was given last.
#[derive(Clone, Debug, Default)]
pub(super) struct Pace {
    /// Decayed sums over the last pieces: bits carried and the time they took.
    bits: u64,
    ps: u64,
    given_bits: u64,
    given_at: PicoTime,
}

impl Pace {
    /// The stream asks for more: its last piece is on the wire.
    pub(super) fn asks(&mut self, now: PicoTime) {
        if self.given_bits > 0 {
            let took = now.as_ps().saturating_sub(self.given_at.as_ps());
            self.bits = (self.bits / 2).saturating_add(self.given_bits);
            self.ps = (self.ps / 2).saturating_add(took);
            self.given_bits = 0;
        }
    }

    pub(super) fn given(&mut self, len: u64, now: PicoTime) {
        self.given_bits = len.saturating_mul(8);
        self.given_at = now;
    }

    /// What was measured, in bit/s.
    fn rate_bps(&self) -> Option<u64> {
        let bps = (u128::from(self.bits) * u128::from(PS_PER_SEC)).checked_div(u128::from(self.ps))?;
        Some(u64::try_from(bps).unwrap_or(u64::MAX).clamp(1, MAX_RATE_BPS))
    }

    /// Bits of the last piece still to be carried at `now` at `rate`; `None` when the stream has stopped.
    fn busy_bits(&self, rate: u64, now: PicoTime) -> Option<u128> {
        let away = u128::from(now.as_ps().saturating_sub(self.given_at.as_ps()));
        let given = u128::from(self.given_bits);
        let piece_ps = given * u128::from(PS_PER_SEC) / u128::from(rate);
        if given > 0 && away > STOPPED_TIMES * piece_ps + STOPPED_MORE_PS {
            return None;
        }
        Some(given.saturating_sub(u128::from(rate).saturating_mul(away) / u128::from(PS_PER_SEC)))
    }
}

/// Rate and remaining work of one other stream.
#[derive(Clone, Copy)]
struct Other {
    rate: u128,
    busy: u128,
}

/// The largest number of bytes that the asking stream may take, or `None` to leave all to the others.
/// `left` are the bytes not given to any stream, `least` those of the smallest piece it could take now.
pub(super) fn limit<'a>(
    me: &'a Pace,
    others: impl Iterator<Item = &'a Pace> + Clone,
    left: u64,
    least: u64,
    now: PicoTime,
) -> Option<u64> {
    // A rate that nobody knows is taken as the mean of the known ones.
    let known = others
        .clone()
        .chain(core::iter::once(me))
        .filter_map(Pace::rate_bps);
    let (sum, count) = known.fold((0u128, 0u128), |(s, n), r| (s + u128::from(r), n + 1));
    let mean = u64::try_from(sum.checked_div(count).unwrap_or(1).max(1)).unwrap_or(MAX_RATE_BPS);
    let mine = u128::from(me.rate_bps().unwrap_or(mean));
    let others = others.filter_map(|p| {
        let rate = p.rate_bps().unwrap_or(mean);
        p.busy_bits(rate, now).map(|busy| Other {
            rate: u128::from(rate),
            busy,
        })
    });

    let left = u128::from(left) * 8;
    let (work, rates) = level(others.clone(), left, mine);
    // mine * T / 2, in bytes.
    let share = mine.saturating_mul(work) / rates.max(1) / 16;
    if share >= u128::from(least) {
        return Some(u64::try_from(share).unwrap_or(u64::MAX));
    }
    let least_bits = u128::from(least) * 8;
    let (work, rates) = level(others.clone(), left, 0);
    if rates == 0 || least_bits.saturating_mul(rates) <= mine.saturating_mul(work) {
        return Some(least);
    }
    let sooner = others
        .into_iter()
        .any(|o| (o.busy + least_bits) * mine < least_bits * o.rate);
    (!sooner).then_some(least)
}

/// Work (bits) and rates (bit/s) of the streams that are free before the common end: their quotient is `T`.
fn level(others: impl Iterator<Item = Other> + Clone, left: u128, mine: u128) -> (u128, u128) {
    let mut work = left + others.clone().map(|o| o.busy).sum::<u128>();
    let mut rates = mine + others.clone().map(|o| o.rate).sum::<u128>();
    // Each turn leaves out the streams that are busy beyond the level; it falls until none is.
    loop {
        let (mut in_work, mut in_rates) = (left, mine);
        for o in others.clone() {
            if o.busy.saturating_mul(rates) <= o.rate.saturating_mul(work) {
                in_work += o.busy;
                in_rates += o.rate;
            }
        }
        if in_rates == rates || in_rates == 0 {
            return (work, rates);
        }
        (work, rates) = (in_work, in_rates);
    }
}
