//! Which train is sent next, and when the capacity is known.
//!
//! ```text
//!   overload: a short train at the highest rate ---- clear ----> at least that
//!       | congested: its dispersion e
//!   descend: a train a little below e, and below every congested rate ---- congested at the lowest ----> none
//!       | clear: low = its rate
//!   close: low * (1 + r), then in doubling steps or the middle, until  high <= low * (1 + r)
//! ```
//!
//! But for the overload, a congested answer counts when the same rate gives it twice in a row.
//!
//! A machine that cannot send evenly (the train left slower than asked by more than the resolution) says nothing
//! by a clear train. After four such in a row the search ends by dispersion: nine trains, short enough for one turn of
//! the scheduler, at three times the rate that comes through, and the median of their busy rates when the middle
//! three agree.
//!
//! A train is *congested* when it lost more than is tolerated or its delay grows by more than [`TREND_PPM`],
//! *clear* when it grows by less, both by two standard errors. Between, a train of twice the length is sent,
//! up to four times; then the slope alone decides. Answers that contradict each other (something else
//! on the path came or went) make the search forget the older one; after eight of these it gives up.

use super::Digest;
use crate::units::{BitRate, FrameBytes, PicoDuration};
use alloc::vec::Vec;
use core::fmt;

/// Growth of the one-way delay that is taken for a growing queue, ppm of the time of sending.
pub const TREND_PPM: i64 = 500;
/// Fewest frames of a train.
pub const MIN_TRAIN_FRAMES: u64 = 256;
/// Most frames of a train.
pub const MAX_TRAIN_FRAMES: u64 = 400_000;
/// Frames that a train has at most before it is lengthened because it was unclear.
const USUAL_FRAMES: u64 = 100_000;
/// Most trains of a search.
pub const MAX_TRAINS: u32 = 64;
/// Contradictions before the search gives up.
const MAX_CONFLICTS: u32 = 8;
/// Trains between rates that are further apart than this (ppm) are a fifth as long.
const WIDE_PPM: u64 = 50_000;
/// Unsteady trains in a row before the search goes over to dispersion, or takes what was sent for the most.
const MAX_UNSTEADY: u32 = 4;
/// Overloading trains whose dispersion is a result.
const SAMPLES: usize = 9;
/// Such trains that did not overload the path before the search gives up.
const MAX_VAIN: u32 = 24;

/// What is searched for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CapacityConfig {
    /// Size of the frames.
    pub frame: FrameBytes,
    /// Lowest rate that is tried, frame level.
    pub min: BitRate,
    /// Highest rate that is tried, frame level.
    pub max: BitRate,
    /// How near the highest clear and the lowest congested rate must come, ppm of the rate.
    pub resolution_ppm: u64,
    /// Length of the trains that decide.
    pub train_time: PicoDuration,
    /// Share of the frames that may be lost for other reasons, ppm.
    pub tolerated_loss_ppm: u64,
}

impl CapacityConfig {
    /// Trains of a second with frames of `frame`, to 0.2 %, between two rates.
    pub fn new(frame: FrameBytes, min: BitRate, max: BitRate) -> Self {
        CapacityConfig {
            frame,
            min,
            max,
            resolution_ppm: 2_000,
            train_time: PicoDuration::from_secs(1),
            tolerated_loss_ppm: 0,
        }
    }
}

/// Why there is no search so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CapacityError {
    /// Lowest above highest.
    Rates,
    /// Outside 500 ppm (below which the trend says nothing) to 100,000 ppm.
    Resolution,
    /// A frame that there is not.
    Frame,
    /// Shorter than 10 ms or longer than 10 s.
    Time,
}

impl fmt::Display for CapacityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CapacityError::Rates => "rates: the lowest must not be above the highest",
            CapacityError::Resolution => "resolution: from 0.05% to 10%",
            CapacityError::Frame => "frame size: from 64B to 9018B, FCS counted",
            CapacityError::Time => "time of a train: from 10ms to 10s",
        })
    }
}

impl core::error::Error for CapacityError {}

/// A train to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Train {
    /// Frame-level rate.
    pub rate: BitRate,
    /// Number of frames.
    pub frames: u64,
    /// Size of each.
    pub len: FrameBytes,
    /// How long to be silent before, so that queues are empty.
    pub wait: PicoDuration,
    /// Whether a late frame must move the ones behind it, rather than be made up for by a burst.
    pub even: bool,
}

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Send this train.
    Train(Train),
    /// The search is over.
    Done(Verdict),
}

/// How a search ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The capacity lies between [`Verdict::clear`] and [`Verdict::congested`].
    Found,
    /// Even the highest rate was clear.
    AtLeast,
    /// Even the lowest rate lost or made a queue grow.
    NoClearRate,
    /// Every train that was not clear lost frames although no queue grew, and arrived a quarter faster than
    /// the highest clear rate or more: the path loses frames for another reason than its capacity (or
    /// has hardly any queue, beside other traffic). Such losses can be tolerated.
    LossElsewhere,
    /// The capacity is [`Verdict::dispersion`]: this machine cannot send evenly enough for more.
    Dispersion,
    /// What was measured contradicts itself: the path changes, or the machine cannot send evenly.
    Unstable,
}

/// The end of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// How it ended.
    pub outcome: Outcome,
    /// The highest rate that was clear: the usable capacity when it was found.
    pub clear: Option<BitRate>,
    /// The lowest rate that was congested.
    pub congested: Option<BitRate>,
    /// The median rate at which overloading trains arrived: the capacity itself when no other traffic was there.
    pub dispersion: Option<BitRate>,
    /// Trains that were sent.
    pub trains: u32,
    /// Frames that were sent.
    pub frames: u64,
    /// Answers that contradicted earlier ones.
    pub conflicts: u32,
    /// Trains that had to be lengthened.
    pub lengthened: u32,
    /// Trains that were clear, but left slower than asked.
    pub unsteady: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Judgement {
    Clear,
    Lossy,
    Growing,
    Unclear,
}

/// The search.
#[derive(Debug, Clone)]
pub struct Search {
    config: CapacityConfig,
    clear: Option<BitRate>,
    congested: Option<BitRate>,
    /// The last dispersion of a congested train.
    arrived: Option<BitRate>,
    arrived_all: Vec<BitRate>,
    /// Clear answers one after another while closing in.
    steps_up: u32,
    /// Congested answers one after another while descending.
    steps_down: u32,
    /// Trains whose delay grew.
    growing: u32,
    /// How often the next train is longer than usual, as a power of two.
    longer: u32,
    /// The rate of a train that is sent again because it was congested, and whether the last train was.
    repeat: Option<BitRate>,
    repeated: bool,
    /// Unsteady trains in a row.
    unsteady: u32,
    /// Busy rates of trains that were sent for their dispersion, once the search has gone over to that.
    samples: Option<Vec<BitRate>>,
    train: Option<Train>,
    wait: PicoDuration,
    verdict: Verdict,
}

impl Search {
    /// A search.
    ///
    /// # Errors
    /// What is not valid.
    pub fn new(config: CapacityConfig) -> Result<Self, CapacityError> {
        if config.min > config.max {
            return Err(CapacityError::Rates);
        }
        if !(TREND_PPM as u64..=100_000).contains(&config.resolution_ppm) {
            return Err(CapacityError::Resolution);
        }
        if !(64..=9_018).contains(&config.frame.get()) {
            return Err(CapacityError::Frame);
        }
        if !(PicoDuration::from_ms(10)..=PicoDuration::from_secs(10)).contains(&config.train_time) {
            return Err(CapacityError::Time);
        }
        Ok(Search {
            config,
            clear: None,
            congested: None,
            arrived: None,
            arrived_all: Vec::new(),
            steps_up: 0,
            steps_down: 0,
            growing: 0,
            longer: 0,
            repeat: None,
            repeated: false,
            unsteady: 0,
            samples: None,
            train: None,
            wait: PicoDuration::ZERO,
            verdict: Verdict {
                outcome: Outcome::Unstable,
                clear: None,
                congested: None,
                dispersion: None,
                trains: 0,
                frames: 0,
                conflicts: 0,
                lengthened: 0,
                unsteady: 0,
            },
        })
    }

    /// What to do next. The same until the train's outcome is given.
    pub fn step(&mut self) -> Step {
        if let Some(train) = self.train {
            return Step::Train(train);
        }
        if self.samples.is_some() {
            return self.next_sample();
        }
        if self.verdict.conflicts >= MAX_CONFLICTS || self.verdict.trains >= MAX_TRAINS {
            return self.done(Outcome::Unstable);
        }
        let rate = match (self.clear, self.congested) {
            _ if self.repeat.is_some() => self.repeat.unwrap_or(self.config.max),
            (None, None) => self.config.max,
            (Some(_), None) => return self.done(Outcome::AtLeast),
            (None, Some(high)) if high <= self.config.min => return self.done(Outcome::NoClearRate),
            (None, Some(high)) => self.descend(high),
            (Some(low), Some(high)) if high <= raised(low, self.config.resolution_ppm) => {
                return self.done(Outcome::Found);
            }
            (Some(low), Some(high)) => self.close_in(low, high),
        };
        let train = Train {
            rate,
            frames: self.frames(rate),
            len: self.config.frame,
            wait: self.wait,
            even: self.congested.is_some(),
        };
        self.train = Some(train);
        Step::Train(train)
    }

    /// The next train for its dispersion: three times what comes through.
    fn next_sample(&mut self) -> Step {
        let samples = self.samples.take().unwrap_or_default();
        if samples.len() >= SAMPLES {
            let mut sorted = samples.clone();
            sorted.sort_unstable();
            let middle = (sorted.get(SAMPLES / 2 - 1), sorted.get(SAMPLES / 2 + 1));
            let agree =
                matches!(middle, (Some(a), Some(b)) if *b <= raised(*a, 2 * self.config.resolution_ppm));
            self.arrived_all = sorted;
            return self.done(if agree {
                Outcome::Dispersion
            } else {
                Outcome::Unstable
            });
        }
        let through = samples.iter().copied().max().max(self.arrived);
        self.samples = Some(samples);
        if self.verdict.trains >= MAX_TRAINS || self.unsteady >= MAX_VAIN {
            return self.done(Outcome::Unstable);
        }
        let train = Train {
            rate: raised(through.unwrap_or(self.config.max), 2_000_000).min(self.config.max),
            frames: MIN_TRAIN_FRAMES,
            len: self.config.frame,
            wait: self.wait,
            even: false,
        };
        self.train = Some(train);
        Step::Train(train)
    }

    /// What arrived of the train that `step` gave.
    pub fn handle(&mut self, digest: &Digest) {
        let Some(train) = self.train.take() else { return };
        self.verdict.trains += 1;
        self.verdict.frames += train.frames;
        self.wait = PicoDuration::from_ns(digest.rise_ns.min(10_000_000_000)) + PicoDuration::from_ms(20);
        let sent = digest.sent_rate.unwrap_or(train.rate);
        let judgement = self.judge(&train, digest);
        if let Some(samples) = &mut self.samples {
            let overload = matches!(judgement, Judgement::Lossy | Judgement::Growing);
            // Sent a tenth faster than it arrived, or else the path was idle in between.
            let enough = |busy: &BitRate| overload && sent >= raised(*busy, 100_000);
            match digest.busy_rate.filter(enough) {
                Some(rate) => samples.push(rate),
                None => self.unsteady += 1,
            }
            return;
        }
        if judgement != Judgement::Unclear {
            self.repeat = None;
        }
        let slow = sent < lowered(train.rate, self.config.resolution_ppm);
        match judgement {
            Judgement::Clear | Judgement::Unclear if slow => self.was_unsteady(sent),
            // Uneven sending makes queues of its own.
            Judgement::Growing if slow && self.congested.is_some() => self.was_unsteady(sent),
            // Once is no proof: the same rate again.
            Judgement::Growing | Judgement::Lossy if self.congested.is_some() && !self.repeated => {
                self.repeated = true;
                self.repeat = Some(train.rate);
            }
            Judgement::Unclear => {
                self.longer += 1;
                self.verdict.lengthened += 1;
            }
            Judgement::Clear => self.was_clear(sent),
            // A loss is caused by the spacing that was asked for, a growing queue by what was really sent.
            Judgement::Lossy => self.was_congested(train.rate, digest),
            Judgement::Growing => {
                self.growing += 1;
                self.was_congested(sent, digest);
            }
        }
    }

    fn judge(&self, train: &Train, digest: &Digest) -> Judgement {
        let lost = u128::from(train.frames.saturating_sub(digest.received)) * 1_000_000;
        if lost > u128::from(train.frames) * u128::from(self.config.tolerated_loss_ppm) {
            return Judgement::Lossy;
        }
        let error = i64::try_from(digest.slope_error_ppm.saturating_mul(2)).unwrap_or(i64::MAX);
        if digest.slope_ppm.saturating_sub(error) > TREND_PPM {
            return Judgement::Growing;
        }
        if digest.slope_ppm.saturating_add(error) < TREND_PPM {
            return Judgement::Clear;
        }
        let longest = self.longer >= 2 || train.frames >= MAX_TRAIN_FRAMES;
        match (longest, digest.slope_ppm > TREND_PPM) {
            (false, _) => Judgement::Unclear,
            (true, true) => Judgement::Growing,
            (true, false) => Judgement::Clear,
        }
    }

    /// A train that was clear, but slower than asked.
    fn was_unsteady(&mut self, sent: BitRate) {
        self.verdict.unsteady += 1;
        self.unsteady += 1;
        if self.unsteady < MAX_UNSTEADY {
            return;
        }
        if self.congested.is_none() {
            // As fast as this machine can.
            self.clear = Some(sent);
        } else {
            self.unsteady = 0;
            self.samples = Some(Vec::new());
        }
    }

    fn was_clear(&mut self, rate: BitRate) {
        self.repeated = false;
        self.unsteady = 0;
        self.longer = 0;
        self.steps_down = 0;
        self.steps_up += 1;
        if self.congested.is_some_and(|high| rate >= high) {
            self.verdict.conflicts += 1;
            self.congested = Some(raised(rate, 4 * self.config.resolution_ppm));
        }
        self.clear = Some(self.clear.map_or(rate, |low| low.max(rate)));
    }

    fn was_congested(&mut self, rate: BitRate, digest: &Digest) {
        self.repeated = false;
        self.unsteady = 0;
        self.longer = 0;
        self.steps_up = 0;
        self.steps_down += 1;
        if self.clear.is_some_and(|low| rate <= low) {
            self.verdict.conflicts += 1;
            self.clear = None;
        }
        self.congested = Some(self.congested.map_or(rate, |high| high.min(rate)));
        self.arrived = digest.busy_rate.or(digest.received_rate);
        if let Some(rate) = self.arrived
            && digest.received >= MIN_TRAIN_FRAMES
        {
            self.arrived_all.push(rate);
        }
    }

    /// A rate below all that were congested: a little below the last dispersion, or further down with every
    /// answer that is congested again.
    fn descend(&self, high: BitRate) -> BitRate {
        let step = self.config.resolution_ppm << self.steps_down.saturating_sub(1).min(8);
        let below = lowered(high, step.min(500_000));
        let hinted = self.arrived.map(|e| lowered(e, self.config.resolution_ppm / 2));
        hinted.map_or(below, |hint| hint.min(below)).max(self.config.min)
    }

    /// A rate between the two: near the lower one, further up with every clear answer, at most the middle. When
    /// the dispersion lies between, it is near there.
    fn close_in(&self, low: BitRate, high: BitRate) -> BitRate {
        let middle = BitRate::new(low.bps() + (high.bps() - low.bps()) / 2).unwrap_or(low);
        let step = self.config.resolution_ppm << self.steps_up.saturating_sub(1).min(8);
        // As far as the resolution asks, and not a hair less: a congested answer there ends the search.
        let near = raised(low, step.saturating_sub(step / 20));
        near.min(middle.max(raised(low, self.config.resolution_ppm / 2)))
    }

    fn frames(&self, rate: BitRate) -> u64 {
        let of = |rate: BitRate, time: PicoDuration| rate.bytes_in(time) / self.config.frame.get();
        let usual = match (self.clear, self.congested) {
            // The first overloads the path by an unknown factor.
            // Longer when the machine could not send it so.
            (None, None) => return MIN_TRAIN_FRAMES << (2 * self.unsteady.min(4)),
            (Some(low), Some(high)) if high > raised(low, WIDE_PPM) => {
                of(rate, fifth(self.config.train_time))
            }
            (None, _) if self.steps_down < 2 => of(rate, fifth(self.config.train_time)),
            _ => of(rate, self.config.train_time),
        };
        let usual = usual.clamp(MIN_TRAIN_FRAMES, USUAL_FRAMES);
        (usual << self.longer.min(2)).min(MAX_TRAIN_FRAMES)
    }

    fn done(&mut self, outcome: Outcome) -> Step {
        self.arrived_all.sort_unstable();
        let dispersion = self.arrived_all.get(self.arrived_all.len() / 2).copied();
        let faster = |low: BitRate| dispersion.is_some_and(|d| d > raised(low, 250_000));
        self.verdict.outcome = match outcome {
            Outcome::Found if self.growing == 0 && self.clear.is_some_and(faster) => Outcome::LossElsewhere,
            other => other,
        };
        self.verdict.clear = self.clear;
        self.verdict.congested = self.congested;
        self.verdict.dispersion = dispersion;
        Step::Done(self.verdict)
    }
}

fn fifth(time: PicoDuration) -> PicoDuration {
    PicoDuration::from_ps(time.as_ps() / 5)
}

fn raised(rate: BitRate, ppm: u64) -> BitRate {
    scaled(rate, 1_000_000 + ppm)
}

fn lowered(rate: BitRate, ppm: u64) -> BitRate {
    scaled(rate, 1_000_000u64.saturating_sub(ppm))
}

fn scaled(rate: BitRate, ppm: u64) -> BitRate {
    let bps = u128::from(rate.bps()) * u128::from(ppm) / 1_000_000;
    BitRate::new(u64::try_from(bps).unwrap_or(u64::MAX)).unwrap_or(BitRate::MIN)
}
