//! A [`Schedule`] at work: the next change and its time.

use super::config::{Schedule, WanChange};
use crate::units::{PicoDuration, PicoTime};
use alloc::vec::Vec;

#[derive(Debug, Clone, Default)]
pub(super) struct Steps {
    steps: Vec<(PicoDuration, WanChange)>,
    repeat: Option<PicoDuration>,
    next: usize,
    /// Start of the period.
    base: PicoTime,
}

impl Steps {
    pub fn new(schedule: Schedule) -> Self {
        let Schedule { mut steps, repeat } = schedule;
        let repeat = repeat.filter(|r| *r > PicoDuration::ZERO);
        steps.retain(|(at, _)| repeat.is_none_or(|period| *at < period));
        steps.sort_by_key(|(at, _)| *at);
        Steps {
            steps,
            repeat,
            next: 0,
            base: PicoTime::ZERO,
        }
    }

    /// When the next change is.
    #[inline]
    pub fn next_at(&self) -> Option<PicoTime> {
        let (at, _) = self.steps.get(self.next)?;
        Some(self.base + *at)
    }

    /// Takes the next change if its time has come.
    pub fn take(&mut self, now: PicoTime) -> Option<(PicoTime, WanChange)> {
        let at = self.next_at().filter(|at| *at <= now)?;
        let (_, change) = self.steps.get(self.next)?.clone();
        self.next += 1;
        if let (Some(period), true) = (self.repeat, self.next == self.steps.len())
            // The end of time is the end of the schedule.
            && let Some(base) = self.base.checked_add(period)
        {
            self.base = base;
            self.next = 0;
        }
        Some((at, change))
    }
}
