//! The whole of one direction: queue, wire, pipe and impairments, each as its file says.
//!
//! ```text
//!  rewrite -> MTU -> names -> RED, limit -> queue -> CoDel -> wire -> delay + jitter -> end
//!               |                |  |                  |                      |
//!               too big        aqm  queue full        aqm      lost, corrupted, copied, behind
//! ```
//!
//! With nothing but a capacity, a queue in bytes, a delay and a ratio of loss, frames leave and are lost as from a
//! [`Link`](super::Link) of the same seed, to the picosecond. `arrived` counts a frame as the link carries it, behind
//! the rewriting.
//!
//! Random numbers are drawn per frame in the order of serialisation, each impairment from its own sequence, so
//! the outcome follows from arrivals, changes and seed alone, however late the caller is.

use super::{
    Departure, DropCause, Dropped, Stage, StageCounters,
    cargo::{Cargo, Gone},
    codel::{self, Head, Source},
    config::{Aqm, Limit, Reorder, WanChange, WanConfig, WanValues},
    corrupt::Corrupter,
    ecn::Mark,
    flight::{End, Flight},
    gate::Gate,
    jitter::{Jitterer, Order},
    loss::Losses,
    named::Named,
    random::{Chance, Random},
    red::{self, Verdict},
    rewrite::{MAX_REWRITES, Rewrite},
    schedule::Steps,
};
use crate::{
    units::{FrameBytes, PicoDuration, PicoTime},
    wire::{ETHERNET_HEADER, FCS, frame_of_capture, pad},
};
use alloc::{boxed::Box, collections::VecDeque, vec::Vec};

/// One direction of a link with everything that can be asked of it.
#[derive(Debug, Clone)]
pub struct WanLink<T> {
    now: PicoTime,
    seed: u64,
    backlog: Backlog<T>,
    limit: Limit,
    discipline: Discipline,
    gate: Gate,
    one_way_delay: PicoDuration,
    jitter: Jitterer,
    order: Order,
    flight: Flight<T>,
    loss: Losses,
    named: Named,
    duplicate: Chance,
    reorder: Chance,
    behind: PicoDuration,
    corrupt: Corrupter,
    rewrite: Vec<Rewrite>,
    mtu: Option<u64>,
    steps: Steps,
}

#[derive(Debug, Clone)]
enum Discipline {
    DropTail,
    Red(Box<red::Average>),
    CoDel(codel::State),
}

/// A frame that waits.
#[derive(Debug, Clone)]
struct Waiting<T> {
    arrived: PicoTime,
    len: FrameBytes,
    named: bool,
    token: T,
}

/// The queue and the counters.
#[derive(Debug, Clone)]
struct Backlog<T> {
    queue: VecDeque<Waiting<T>>,
    counters: StageCounters,
}

/// Frames for which room is made at once.
const INITIAL_FRAMES: usize = 64;

impl<T: Cargo> WanLink<T> {
    /// An idle link. `seed` decides everything that is random.
    pub fn new(config: WanConfig, seed: u64) -> Self {
        let mut link = WanLink {
            now: PicoTime::ZERO,
            seed,
            backlog: Backlog {
                queue: VecDeque::with_capacity(INITIAL_FRAMES),
                counters: StageCounters::default(),
            },
            limit: config.queue,
            discipline: Discipline::DropTail,
            gate: Gate::new(&config.rate, config.wire),
            one_way_delay: config.one_way_delay,
            jitter: Jitterer::new(seed),
            order: config.order,
            flight: Flight::new(),
            loss: Losses::new(config.loss, seed),
            named: Named::default(),
            duplicate: Chance::new(Random::of(seed, 2)),
            reorder: Chance::new(Random::of(seed, 3)),
            behind: PicoDuration::ZERO,
            corrupt: Corrupter::new(seed),
            rewrite: Vec::new(),
            mtu: config.mtu,
            steps: Steps::new(config.schedule),
        };
        link.jitter.set(config.jitter);
        link.set_aqm(config.aqm);
        link.named.set(&config.lose);
        link.duplicate.set(config.duplicate);
        link.set_reorder(config.reorder);
        link.corrupt.set(config.corrupt);
        link.set_rewrite(config.rewrite);
        link
    }

    /// Changes a parameter at `now`.
    pub fn change(&mut self, now: PicoTime, change: WanChange) {
        let now = self.serve(now);
        self.apply(now, change);
    }

    /// What the link is set to now.
    pub fn values(&self) -> WanValues {
        let (rate, level) = self.gate.rate();
        WanValues {
            rate,
            level,
            one_way_delay: self.one_way_delay,
            queue: self.limit,
            loss: self.loss.loss,
            mtu: self.mtu,
        }
    }

    /// As [`Stage::poll`] for frames that have left by `until`, though it is only `now`: those that are on their way
    /// already. Nothing that starts later leaves before `now` and the smallest delay, so up to there they are all.
    pub fn poll_ahead(&mut self, now: PicoTime, until: PicoTime) -> Option<Departure<T>> {
        let now = self.serve(now);
        self.leave(until.max(now))
    }

    /// When [`poll_ahead`](Self::poll_ahead) with this lead will next have something to do.
    pub fn next_wakeup_ahead(&self, ahead: PicoDuration) -> Option<PicoTime> {
        let leaves = self.flight.first().map(|at| {
            let lead = at.as_ps().saturating_sub(ahead.as_ps());
            PicoTime::from_ps(lead)
        });
        let starts = (!self.backlog.queue.is_empty()).then(|| self.gate.free_at());
        [leaves, starts, self.steps.next_at()].into_iter().flatten().min()
    }

    #[inline]
    fn leave(&mut self, until: PicoTime) -> Option<Departure<T>> {
        while let Some(mut frame) = self.flight.pop(until) {
            let counters = &mut self.backlog.counters;
            counters.held.remove(frame.len);
            match frame.end {
                End::Lost => {
                    counters.lost.add(frame.len);
                    frame.token.gone(frame.at, frame.len, Gone::Lost);
                    continue;
                }
                End::Corrupted if self.corrupt.damage(&mut frame.token) => counters.corrupted += 1,
                End::Corrupted | End::Arrives => {}
            }
            counters.departed.add(frame.len);
            return Some(Departure {
                at: frame.at,
                len: frame.len,
                token: frame.token,
            });
        }
        None
    }

    fn apply(&mut self, now: PicoTime, change: WanChange) {
        match change {
            WanChange::Rate(rate) => self.gate.set(now, &rate),
            WanChange::OneWayDelay(delay) => self.one_way_delay = delay,
            WanChange::Jitter(jitter) => self.jitter.set(jitter),
            WanChange::Order(order) => self.order = order,
            WanChange::Queue(limit) => self.limit = limit,
            WanChange::Aqm(aqm) => self.set_aqm(aqm),
            WanChange::Loss(loss) => self.loss.set(loss),
            WanChange::Lose(names) => self.named.set(&names),
            WanChange::Duplicate(ratio) => self.duplicate.set(ratio),
            WanChange::Reorder(reorder) => self.set_reorder(reorder),
            WanChange::Corrupt(corruption) => self.corrupt.set(corruption),
            WanChange::Rewrite(rewrites) => self.set_rewrite(rewrites),
            WanChange::Mtu(mtu) => self.mtu = mtu,
            WanChange::Hold(time) => self.gate.hold(now, time),
        }
    }

    fn set_aqm(&mut self, aqm: Aqm) {
        self.discipline = match aqm {
            Aqm::DropTail => Discipline::DropTail,
            Aqm::Red(red) => Discipline::Red(Box::new(red::Average::new(red, self.seed))),
            Aqm::CoDel(codel) => Discipline::CoDel(codel::State::new(codel)),
        };
    }

    fn set_reorder(&mut self, reorder: Reorder) {
        self.reorder.set(reorder.ratio);
        self.behind = reorder.extra;
    }

    fn set_rewrite(&mut self, mut rewrites: Vec<Rewrite>) {
        rewrites.truncate(MAX_REWRITES);
        self.rewrite = rewrites;
    }

    /// Starts every waiting frame whose turn comes by `now`, makes the changes that are due between, and
    /// returns `now`, never going back. At one instant, starts come before changes.
    #[inline]
    fn serve(&mut self, now: PicoTime) -> PicoTime {
        self.now = self.now.max(now);
        loop {
            let until = self.steps.next_at().map_or(self.now, |at| at.min(self.now));
            while !self.backlog.queue.is_empty() && self.gate.free_at() <= until {
                self.start_next(self.gate.free_at());
            }
            match self.steps.take(self.now) {
                Some((at, change)) => self.apply(at, change),
                None => return self.now,
            }
        }
    }

    /// Serialises the next frame that the discipline lets pass.
    fn start_next(&mut self, at: PicoTime) {
        let next = match &mut self.discipline {
            Discipline::CoDel(codel) => {
                let ecn = codel.config.ecn;
                let mut source = Queue {
                    backlog: &mut self.backlog,
                    now: at,
                    ecn,
                };
                codel.dequeue(at, &mut source)
            }
            _ => self.backlog.take(),
        };
        if let Some(frame) = next {
            self.start(at, frame.len, frame.named, frame.token);
        }
    }

    #[inline]
    fn start(&mut self, now: PicoTime, len: FrameBytes, named: bool, token: T) {
        let through = self.gate.send(now, len);
        let lost = self.loss.draw() | named;
        let corrupted = self.corrupt.draw();
        let copied = self.duplicate.draw();
        let behind = self.reorder.draw();
        let at = through + self.jitter.delay(self.one_way_delay);
        let end = match (lost, corrupted) {
            (true, _) => End::Lost,
            (false, true) => End::Corrupted,
            (false, false) => End::Arrives,
        };
        let copy = if copied && !lost { self.copy(&token) } else { None };
        let counters = &mut self.backlog.counters;
        if behind && !lost {
            counters.reordered += 1;
        }
        let overtakes = self.order == Order::Free;
        let turn = if overtakes { at } else { self.flight.in_row(at) };
        let (at, free) = if behind {
            (turn + self.behind, true)
        } else {
            (turn, overtakes)
        };
        if copy.is_some() {
            counters.duplicated.add(len);
            counters.held.add(len);
        }
        let both = [Some((end, token)), copy.map(|token| (End::Arrives, token))];
        for (end, token) in both.into_iter().flatten() {
            if free {
                self.flight.free(at, len, end, token);
            } else {
                self.flight.keep(at, len, end, token);
            }
        }
    }

    fn copy(&mut self, token: &T) -> Option<T> {
        let copy = token.copy();
        if copy.is_none() {
            self.backlog.counters.not_copied += 1;
        }
        copy
    }

    /// Rewrites a frame, and returns its size as the link carries it.
    fn rewritten(&self, len: FrameBytes, token: &mut T) -> FrameBytes {
        let before = token.bytes().len();
        for rewrite in &self.rewrite {
            rewrite.apply(token);
        }
        let after = token.bytes().len();
        if after == before {
            len
        } else {
            frame_of_capture(after)
        }
    }

    fn is_too_big(&self, len: FrameBytes, token: &T) -> bool {
        let Some(mtu) = self.mtu else { return false };
        let packet = match super::header::network(token.bytes()) {
            Some(
                super::header::Network::V4(at)
                | super::header::Network::V6(at)
                | super::header::Network::Other(at),
            ) => (token.bytes().len() - at) as u64,
            None => len.get().saturating_sub(ETHERNET_HEADER + FCS),
        };
        packet > mtu
    }

    fn is_full(&self, len: FrameBytes) -> bool {
        match self.limit {
            Limit::Bytes(limit) => self.backlog.counters.queued + len > limit,
            Limit::Frames(limit) => self.backlog.queue.len() as u64 >= limit,
        }
    }

    /// What RED and the limit say to a frame that arrives; `idle` is when the wire became free, if it is.
    fn admit(
        &mut self,
        now: PicoTime,
        idle: Option<PicoTime>,
        len: FrameBytes,
        token: &mut T,
    ) -> Option<DropCause> {
        let full = idle.is_none() && self.is_full(len);
        let mut mark = false;
        match &mut self.discipline {
            Discipline::DropTail => {}
            Discipline::CoDel(codel) => {
                codel.saw(len);
                if idle.is_some() {
                    codel.passed_idle();
                }
            }
            Discipline::Red(average) => {
                let mean_time = self.gate.mean_time(average.config.mean_frame);
                let idle = idle.map_or(PicoDuration::ZERO, |since| now - since);
                average.arrive(self.backlog.counters.queued, idle, mean_time);
                let verdict = if full { Verdict::Pass } else { average.judge() };
                match verdict {
                    Verdict::Pass => {}
                    Verdict::Drop => return Some(DropCause::Aqm),
                    Verdict::Mark => mark = true,
                }
            }
        }
        if full {
            return Some(DropCause::QueueFull);
        }
        if mark {
            if token.mark() == Mark::NotCapable {
                return Some(DropCause::Aqm);
            }
            self.backlog.counters.marked += 1;
        }
        None
    }
}

impl<T: Cargo> Stage<T> for WanLink<T> {
    #[inline]
    fn handle_frame(&mut self, now: PicoTime, len: FrameBytes, mut token: T) -> Result<(), Dropped<T>> {
        let now = self.serve(now);
        let len = if self.rewrite.is_empty() {
            pad(len)
        } else {
            self.rewritten(pad(len), &mut token)
        };
        self.backlog.counters.arrived.add(len);
        if self.is_too_big(len, &token) {
            self.backlog.counters.too_big.add(len);
            let cause = DropCause::TooBig;
            return Err(Dropped { cause, token });
        }
        let named = !self.named.is_empty() && token.packet().is_some_and(|p| self.named.meets(&p));
        // Behind `serve`, a free wire means that nobody waits.
        let idle = Some(self.gate.free_at()).filter(|free| *free <= now);
        if let Some(cause) = self.admit(now, idle, len, &mut token) {
            let counters = &mut self.backlog.counters;
            match cause {
                DropCause::QueueFull => counters.queue_full.add(len),
                _ => counters.aqm_dropped.add(len),
            }
            return Err(Dropped { cause, token });
        }
        let counters = &mut self.backlog.counters;
        counters.held.add(len);
        if idle.is_some() {
            self.start(now, len, named, token);
            return Ok(());
        }
        counters.queued += len;
        counters.queued_max = counters.queued_max.max(counters.queued);
        self.backlog.queue.push_back(Waiting {
            arrived: now,
            len,
            named,
            token,
        });
        Ok(())
    }

    #[inline]
    fn poll(&mut self, now: PicoTime) -> Option<Departure<T>> {
        let now = self.serve(now);
        self.leave(now)
    }

    #[inline]
    fn next_wakeup(&self) -> Option<PicoTime> {
        let mut next = [self.flight.first(), self.steps.next_at()]
            .into_iter()
            .flatten()
            .min();
        let overtakes = self.order == Order::Free || !self.flight.has_row();
        if let Some(waiting) = self.backlog.queue.front()
            && overtakes
        {
            let start = self.gate.free_at();
            let codel = matches!(self.discipline, Discipline::CoDel(_));
            let soonest = if codel || !self.jitter.is_none() {
                // Which frame starts then, or how long its way is, is known only then.
                start
            } else {
                let through = self.gate.clone().send(start, waiting.len);
                match self.order {
                    Order::Kept => self.flight.in_row(through + self.one_way_delay),
                    Order::Free => through + self.one_way_delay,
                }
            };
            next = Some(next.map_or(soonest, |n| n.min(soonest)));
        }
        next
    }

    fn counters(&self) -> StageCounters {
        self.backlog.counters
    }
}

impl<T> Backlog<T> {
    fn take(&mut self) -> Option<Waiting<T>> {
        let frame = self.queue.pop_front()?;
        self.counters.queued -= frame.len;
        Some(frame)
    }
}

/// The queue as CoDel sees it at one moment.
struct Queue<'a, T> {
    backlog: &'a mut Backlog<T>,
    now: PicoTime,
    ecn: bool,
}

impl<T: Cargo> Source for Queue<'_, T> {
    type Item = Waiting<T>;

    fn pop(&mut self) -> Option<Head<Waiting<T>>> {
        let item = self.backlog.take()?;
        Some(Head {
            sojourn: self.now - item.arrived,
            left: self.backlog.counters.queued,
            item,
        })
    }

    fn refuse(&mut self, mut item: Waiting<T>) -> Option<Waiting<T>> {
        let counters = &mut self.backlog.counters;
        if self.ecn && item.token.mark() == Mark::Marked {
            counters.marked += 1;
            return Some(item);
        }
        counters.aqm_dropped.add(item.len);
        counters.held.remove(item.len);
        item.token.gone(self.now, item.len, Gone::Aqm);
        None
    }
}
