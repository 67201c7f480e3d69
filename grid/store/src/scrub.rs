//! The scrub: reads every object, slowly, and compares it with its digests.
//!
//! A pass goes through the spool in the order of [`Store::list`]. Where it stands is written down every
//! [`SAVE_EVERY`] and at the end, so a restart goes on there. The rate holds at the scale of one read of
//! 128 KiB; idle time earns no credit ([`TxClock`]). What is read is dropped from the cache before, so that the
//! disk is asked and not the memory.

use crate::error::StoreError;
use crate::id::ObjectId;
use crate::inner::Inner;
use crate::reader::{Damage, compare, expect_id};
use crate::spool::{SCRUB, object_path, read_state, write_state};
use crate::store::{Cursor, Store};
use crate::sys;
use crate::trailer::Trailer;
use kuroshio_core::units::{BitRate, PicoDuration, PicoTime, TxClock};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Objects looked up at a time.
const PAGE: usize = 1024;
/// How often the position is written down.
const SAVE_EVERY: Duration = Duration::from_secs(10);

/// How a pass is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScrubOptions {
    /// Bytes read per second; 0: as fast as it goes.
    pub rate_bytes_per_s: u64,
    /// Damaged objects are moved to quarantine.
    pub quarantine: bool,
}

/// A damaged object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Which.
    pub id: ObjectId,
    /// What is wrong with it.
    pub damage: Damage,
    /// Whether it was moved to quarantine.
    pub quarantined: bool,
}

/// What one call did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubReport {
    /// Number of the pass, from 1.
    pub pass: u64,
    /// Objects compared by this call.
    pub objects: u64,
    /// Bytes of content read by this call.
    pub bytes: u64,
    /// Damaged ones among them.
    pub findings: u64,
    /// The pass is at its end; otherwise it was stopped, and the next call goes on there.
    pub complete: bool,
}

/// Ends a long call from another thread. Clones are one.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<(Mutex<bool>, Condvar)>);

impl Stop {
    /// Ends it.
    pub fn stop(&self) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.0.1.notify_all();
    }

    /// Whether it was ended.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until stopped, at most so long; whether it was stopped.
    fn wait(&self, at_most: Duration) -> bool {
        let stopped = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.0.1.wait_timeout_while(stopped, at_most, |s| !*s);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Where the scrub stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Position {
    pass: u64,
    after: Option<Cursor>,
}

impl Position {
    /// Reads it; what cannot be read is a pass that begins again.
    fn read(inner: &Inner) -> Result<Self, StoreError> {
        let text = read_state(&inner.spool.root, SCRUB)?.unwrap_or_default();
        let mut lines = text.lines();
        let pass = lines.next().and_then(|l| l.strip_prefix("pass ")?.parse().ok());
        let after = lines.next().and_then(|l| l.strip_prefix("after ")?.parse().ok());
        Ok(Self {
            pass: pass.unwrap_or(1),
            after,
        })
    }

    fn write(&self, inner: &Inner) -> Result<(), StoreError> {
        let mut text = format!("pass {}\n", self.pass);
        if let Some(after) = self.after {
            text.push_str(&format!("after {after}\n"));
        }
        write_state(&inner.spool.root, SCRUB, &text)
    }
}

/// Keeps the reads at a rate.
struct Pace<'a> {
    clock: Option<TxClock>,
    begun: Instant,
    stop: &'a Stop,
}

impl<'a> Pace<'a> {
    fn new(rate_bytes_per_s: u64, stop: &'a Stop) -> Self {
        let rate = BitRate::new(rate_bytes_per_s.saturating_mul(8));
        Self {
            clock: rate.map(TxClock::new),
            begun: Instant::now(),
            stop,
        }
    }

    /// So much was read; whether to go on.
    fn read(&mut self, bytes: u64) -> bool {
        let Some(clock) = &mut self.clock else {
            return !self.stop.is_stopped();
        };
        let now = PicoTime::ZERO + PicoDuration::from_std(self.begun.elapsed());
        clock.catch_up(now);
        clock.advance(bytes);
        !self.stop.wait((clock.at() - now).to_std())
    }
}

impl Store {
    /// One pass over the spool, or the rest of one that was stopped; `found` hears of each damaged object.
    ///
    /// # Errors
    /// [`StoreError::TooMany`] when a pass runs already, [`StoreError::Io`] when the spool itself cannot be
    /// read. An object that cannot be read is a finding.
    pub fn scrub_pass(
        &self,
        options: &ScrubOptions,
        stop: &Stop,
        found: &mut dyn FnMut(&Finding),
    ) -> Result<ScrubReport, StoreError> {
        let inner = &self.inner;
        let Ok(_alone) = inner.scrubbing.try_lock() else {
            return Err(StoreError::TooMany("scrubs of one store"));
        };
        let mut at = Position::read(inner)?;
        let mut report = ScrubReport {
            pass: at.pass,
            ..ScrubReport::default()
        };
        let mut pace = Pace::new(options.rate_bytes_per_s, stop);
        let mut saved = Instant::now();
        loop {
            let (page, next) = self.list(at.after, PAGE)?;
            for listed in page {
                if stop.is_stopped() || !self.scrub_one(listed.id, options, &mut pace, &mut report, found)? {
                    at.write(inner)?;
                    return Ok(report);
                }
                at.after = Some(Cursor(listed.id));
                if saved.elapsed() >= SAVE_EVERY {
                    at.write(inner)?;
                    saved = Instant::now();
                }
            }
            if next.is_none() {
                break;
            }
        }
        report.complete = true;
        let pass = at.pass.saturating_add(1);
        Position { pass, after: None }.write(inner)?;
        Ok(report)
    }

    /// Compares one object; `false` when stopped in the middle.
    fn scrub_one(
        &self,
        id: ObjectId,
        options: &ScrubOptions,
        pace: &mut Pace<'_>,
        report: &mut ScrubReport,
        found: &mut dyn FnMut(&Finding),
    ) -> Result<bool, StoreError> {
        // Deleted since it was listed: nothing to look at.
        let Some(file) = self.inner.open_object(id)? else {
            return Ok(true);
        };
        let error = |e| self.inner.spool.objects.error("look at", &object_path(id), e);
        let number = file.metadata().map_err(error)?.ino();
        sys::drop_cache(&file);
        let looked = look(&file, id, &mut |n| {
            report.bytes += n;
            pace.read(n)
        });
        let Some(damage) = looked else {
            return Ok(false);
        };
        report.objects += 1;
        let Some(damage) = damage else { return Ok(true) };
        report.findings += 1;
        let quarantined = options.quarantine && self.inner.quarantine(id, Some(number), &damage.what)?;
        found(&Finding {
            id,
            damage,
            quarantined,
        });
        Ok(true)
    }

    /// Compares one object with its digests, at once. `None`: it is right. Nothing is moved.
    ///
    /// # Errors
    /// [`StoreError::NotFound`], [`StoreError::Io`] when it cannot be opened.
    pub fn verify(&self, id: ObjectId) -> Result<Option<Damage>, StoreError> {
        let file = self.inner.open_object(id)?.ok_or(StoreError::NotFound(id))?;
        Ok(look(&file, id, &mut |_| true).flatten())
    }
}

/// Compares an object's file with what it should be. `None`: `told` ended it. An error of the disk is damage.
pub(crate) fn look(file: &File, id: ObjectId, told: &mut dyn FnMut(u64) -> bool) -> Option<Option<Damage>> {
    let damage = |what: String| {
        Some(Some(Damage {
            what,
            ranges: Vec::new(),
        }))
    };
    match Trailer::read(file) {
        Err(e) => damage(format!("its trailer cannot be read: {e}")),
        Ok(Err(what)) => damage(what),
        Ok(Ok(trailer)) => match expect_id(trailer, id) {
            Err(what) => damage(what),
            Ok(trailer) => match compare(file, &trailer, 0..trailer.size, told) {
                Err(e) => damage(format!("it cannot be read: {e}")),
                Ok(found) => found,
            },
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pace_is_kept_and_idle_time_earns_nothing() {
        let stop = Stop::default();
        let mut pace = Pace::new(1_000_000, &stop);
        let begun = Instant::now();
        for _ in 0..10 {
            assert!(pace.read(10_000));
        }
        // 100 kB at 1 MB/s: 0.1 s at least, whatever the machine does.
        assert!(begun.elapsed() >= Duration::from_millis(100));
        let ended = stop.clone();
        ended.stop();
        assert!(!pace.read(1_000_000_000), "does not wait when stopped");
        assert!(begun.elapsed() < Duration::from_secs(500));
    }
}
