//! Frames between threads: for every ordered pair a lane with what was handed over and a promise.
//!
//! The giver adds frames, then raises the promise; the taker reads the promise, then takes the frames. So whoever has
//! read a promise has every frame that arrives by it. Memory of frames goes home over the same lanes. A lane holds no more
//! than the memory of its giver's frames, which has a limit.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use kuroshio_core::units::{FrameBytes, PicoDuration, PicoTime};

use super::plan::Plan;
use super::pool::Inner;

/// A frame between threads.
pub(super) struct Handed {
    /// When it leaves its link.
    pub at: PicoTime,
    /// The link's stage.
    pub stage: usize,
    pub len: FrameBytes,
    pub inner: Inner,
}

struct Lane {
    frames: Mutex<Vec<Handed>>,
    home: Mutex<Vec<Inner>>,
    promise_ps: AtomicU64,
    /// The least of the links' lead, where there are links.
    ahead: Option<PicoDuration>,
}

/// All lanes.
pub(super) struct Exchange {
    threads: usize,
    lanes: Vec<Lane>,
}

impl Exchange {
    pub fn new(plan: &Plan) -> Self {
        let pairs = (0..plan.threads).flat_map(|from| (0..plan.threads).map(move |to| (from, to)));
        let lanes = pairs.map(|(from, to)| {
            let cut = plan.ahead.iter().enumerate().filter(|(stage, _)| {
                (plan.stages.get(*stage), plan.leads_to.get(*stage)) == (Some(&from), Some(&to))
            });
            Lane {
                frames: Mutex::default(),
                home: Mutex::default(),
                promise_ps: AtomicU64::new(0),
                ahead: cut.filter_map(|(_, ahead)| *ahead).min(),
            }
        });
        Self {
            threads: plan.threads,
            lanes: lanes.collect(),
        }
    }

    fn lane(&self, from: usize, to: usize) -> Option<&Lane> {
        self.lanes.get(from * self.threads + to)
    }

    /// The shortest lead of the lanes from and to a thread: how often it has to come by.
    pub fn shortest_lead(&self, own: usize) -> Option<PicoDuration> {
        let out = (0..self.threads).filter_map(|to| self.lane(own, to)?.ahead);
        let into = (0..self.threads).filter_map(|from| self.lane(from, own)?.ahead);
        out.chain(into).min()
    }

    /// Hands over frames in the order of their times per stage, and takes them out of `frames`.
    pub fn give(&self, from: usize, to: usize, frames: &mut Vec<Handed>) {
        if let Some(lane) = self.lane(from, to).filter(|_| !frames.is_empty()) {
            // A thread that panicked has ended the testbed.
            if let Ok(mut there) = lane.frames.lock() {
                there.append(frames);
            }
        }
    }

    /// A thread has done everything up to `done`, and given all that goes with that.
    pub fn promise(&self, from: usize, done: PicoTime) {
        for to in 0..self.threads {
            if let Some(lane) = self.lane(from, to)
                && let Some(ahead) = lane.ahead
            {
                let promise = done.as_ps().saturating_add(ahead.as_ps());
                lane.promise_ps.fetch_max(promise, Ordering::Release);
            }
        }
    }

    /// Takes what was handed to a thread; it may then do everything up to the time that is returned.
    pub fn take(&self, own: usize, mut each: impl FnMut(Handed)) -> PicoTime {
        let mut safe = u64::MAX;
        for from in 0..self.threads {
            let Some(lane) = self.lane(from, own).filter(|l| l.ahead.is_some()) else {
                continue;
            };
            safe = safe.min(lane.promise_ps.load(Ordering::Acquire));
            let frames = lane.frames.lock().map(|mut f| std::mem::take(&mut *f));
            frames.unwrap_or_default().into_iter().for_each(&mut each);
        }
        PicoTime::from_ps(safe)
    }

    /// Sends memory home.
    pub fn send_home(&self, own: usize, home: usize, memory: &mut Vec<Inner>) {
        if let Some(lane) = self.lane(own, home)
            && let Ok(mut there) = lane.home.lock()
        {
            there.append(memory);
        }
    }

    /// Memory that came home to a thread.
    pub fn come_home(&self, own: usize) -> Vec<Inner> {
        let lanes = (0..self.threads).filter_map(|from| self.lane(from, own));
        let mut all = Vec::new();
        for lane in lanes {
            if let Ok(mut memory) = lane.home.lock() {
                all.append(&mut memory);
            }
        }
        all
    }
}
