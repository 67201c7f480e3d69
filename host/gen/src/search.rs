//! Searches over a session: throughput at zero loss (RFC 2544) and usable capacity.

use std::sync::atomic::AtomicBool;

use kuroshio_core::capacity::{CapacityConfig, Digest, Outcome, Search, Step, Train, Verdict};
use kuroshio_core::traffic::{Pattern, Throughput, ThroughputResult, Timing};
use kuroshio_core::units::BitRate;
use serde_json::{Value, json};

use crate::error::GenError;
use crate::send::SendReport;
use crate::session::{RunResult, Session};

/// What a throughput search found.
#[derive(Debug, Clone, Copy)]
pub struct ThroughputReport {
    /// The rates.
    pub result: ThroughputResult,
    /// Runs that lost frames only in the receiving machine; they were repeated once and then counted as lossy.
    pub machine_losses: u32,
}

/// Searches the highest rate without loss, in runs of the pattern at other rates. `on` is told every run.
///
/// # Errors
/// A pattern without a rate, or what a run gives.
pub fn find_throughput(
    session: &mut Session,
    pattern: &Pattern,
    min: BitRate,
    resolution_ppm: u64,
    stop: &AtomicBool,
    on: &mut dyn FnMut(BitRate, &RunResult, bool),
) -> Result<ThroughputReport, GenError> {
    let Timing::Rate(max) = pattern.timing else {
        return Err(GenError::BadInput(
            "--find-throughput: only the pattern constant, at a --rate to begin from".to_owned(),
        ));
    };
    let mut search = Throughput::new(min, max, resolution_ppm);
    let (mut machine_losses, mut repeated) = (0, false);
    while let Some(rate) = search.next() {
        let mut run = pattern.clone();
        run.timing = Timing::Rate(rate);
        let result = session.run(run, stop)?;
        if result.sent.interrupted {
            return Err(GenError::Interrupted);
        }
        let lost: u64 = result.received.streams.iter().map(|s| s.lost_frames).sum();
        let by_machine = lost > 0 && lost <= result.received.receiver_dropped_frames;
        machine_losses += u32::from(by_machine);
        // A rate that was not reached is no throughput.
        let reached = result
            .sent
            .rate
            .is_none_or(|r| r.bps() >= rate.bps() / 1_000 * 995);
        let lossless = lost == 0 && result.sent.not_sent == 0 && reached;
        on(rate, &result, lossless);
        if by_machine && !repeated {
            repeated = true;
            continue;
        }
        repeated = false;
        search.handle(lossless);
    }
    Ok(ThroughputReport {
        result: search.result(),
        machine_losses,
    })
}

/// One train of a capacity search.
#[derive(Debug, Clone)]
pub struct TrainLog {
    /// What was asked for.
    pub train: Train,
    /// What was sent.
    pub sent: SendReport,
    /// What arrived.
    pub digest: Digest,
    /// Frames that the receiving machine lost.
    pub machine_lost: u64,
}

impl TrainLog {
    /// As JSON, units in the names.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let d = &self.digest;
        json!({
            "asked_rate_bps": self.train.rate.bps(),
            "frames": self.train.frames,
            "sent": self.sent.to_json(),
            "received_frames": d.received,
            "sent_rate_bps": d.sent_rate.map(BitRate::bps),
            "received_rate_bps": d.received_rate.map(BitRate::bps),
            "busy_rate_bps": d.busy_rate.map(BitRate::bps),
            "delay_slope_ppm": d.slope_ppm,
            "delay_slope_error_ppm": d.slope_error_ppm,
            "delay_rise_us": d.rise_ns as f64 / 1e3,
            "machine_lost_frames": self.machine_lost,
        })
    }
}

/// What a capacity search found.
#[derive(Debug, Clone)]
pub struct CapacityReport {
    /// The search's own words.
    pub verdict: Verdict,
    /// What was searched for.
    pub config: CapacityConfig,
    /// Every train.
    pub trains: Vec<TrainLog>,
}

impl CapacityReport {
    /// The usable capacity, frame level, and how it was found: `trend` by trains on both sides of it,
    /// `dispersion` by the rate at which overloading trains arrived, because this machine cannot send evenly.
    #[must_use]
    pub fn capacity(&self) -> Option<(BitRate, &'static str)> {
        match self.verdict.outcome {
            Outcome::Found => self.verdict.clear.map(|rate| (rate, "trend")),
            Outcome::Dispersion => self.verdict.dispersion.map(|rate| (rate, "dispersion")),
            _ => None,
        }
    }

    /// As a sentence.
    #[must_use]
    pub fn sentence(&self) -> String {
        let rate = |r: Option<BitRate>| r.map_or_else(|| "-".to_owned(), |r| r.to_string());
        let v = &self.verdict;
        let config = &self.config;
        match v.outcome {
            Outcome::Found => format!(
                "usable capacity {} (frame level): clear there, congested at {}",
                rate(v.clear),
                rate(v.congested)
            ),
            Outcome::AtLeast => format!(
                "usable capacity at least {}: even that was clear; more with a higher --max-rate",
                rate(v.clear)
            ),
            Outcome::NoClearRate => format!(
                "no clear rate: even {} loses frames or makes a queue grow",
                config.min
            ),
            Outcome::LossElsewhere => format!(
                "frames are lost although no queue grows (clear up to {}, trains arrive at {}): tolerate such \
                 losses with --loss-tolerance",
                rate(v.clear),
                rate(v.dispersion)
            ),
            Outcome::Dispersion => format!(
                "capacity {} (frame level) by the rate at which overloading trains arrive: this machine cannot \
                 send evenly now; beside other traffic the usable capacity is lower",
                rate(v.dispersion)
            ),
            Outcome::Unstable => format!(
                "no stable answer after {} trains; trains that overload the path arrive at {}",
                v.trains,
                rate(v.dispersion)
            ),
        }
    }

    /// As JSON, units in the names.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let v = &self.verdict;
        let outcome = match v.outcome {
            Outcome::Found => "found",
            Outcome::AtLeast => "at_least",
            Outcome::NoClearRate => "no_clear_rate",
            Outcome::LossElsewhere => "loss_elsewhere",
            Outcome::Dispersion => "dispersion",
            Outcome::Unstable => "unstable",
        };
        let capacity = self.capacity();
        json!({
            "outcome": outcome,
            "capacity_bps": capacity.map(|(rate, _)| rate.bps()),
            "method": capacity.map(|(_, method)| method),
            "clear_bps": v.clear.map(BitRate::bps),
            "congested_bps": v.congested.map(BitRate::bps),
            "dispersion_bps": v.dispersion.map(BitRate::bps),
            "trains": v.trains,
            "frames": v.frames,
            "conflicts": v.conflicts,
            "lengthened": v.lengthened,
            "unsteady": v.unsteady,
            "frame_bytes": self.config.frame.get(),
            "resolution_ppm": self.config.resolution_ppm,
            "log": self.trains.iter().map(TrainLog::to_json).collect::<Vec<_>>(),
        })
    }
}

/// Searches the usable capacity of the path to a receiver. `on` is told every train.
///
/// # Errors
/// A search that is not valid, or what a train gives.
pub fn find_capacity(
    session: &mut Session,
    config: CapacityConfig,
    stop: &AtomicBool,
    on: &mut dyn FnMut(&TrainLog),
) -> Result<CapacityReport, GenError> {
    let mut search = Search::new(config).map_err(|e| GenError::BadInput(e.to_string()))?;
    let mut trains = Vec::new();
    loop {
        let train = match search.step() {
            Step::Train(train) => train,
            Step::Done(verdict) => {
                return Ok(CapacityReport {
                    verdict,
                    config,
                    trains,
                });
            }
        };
        let (sent, digest, machine_lost) = session.train(&train, stop)?;
        // What the receiving machine or the sending kernel lost is no loss of the path.
        let lost_here = machine_lost + sent.not_sent;
        search.handle(&Digest {
            received: digest.received.saturating_add(lost_here),
            ..digest
        });
        let log = TrainLog {
            train,
            sent,
            digest,
            machine_lost,
        };
        on(&log);
        trains.push(log);
    }
}
