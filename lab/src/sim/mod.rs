//! The run of an experiment in virtual time: the same file, the same checks, the same result.
//!
//! ```text
//! for each phase and seed:  topology -> stages of core::wan -> flows of core::tcp -> run to the end
//! of the seeds of a phase:  the run of the median rate -> trace
//! then:                     checks -> result
//! ```
//!
//! Nothing here is measured with an instrument: stamps are exact to the picosecond, so calibration and
//! lateness are empty. A run in which frames were not conserved fails a check of its own.

mod build;
mod record;
mod settings;

pub use settings::{Local, MAX_SEEDS, Pace, Settings};

use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::SystemTime;

use kuroshio_core::sim::Totals;
use kuroshio_core::units::PicoTime;
use kuroshio_core::wan::StageCounters;
use kuroshio_testbed::Topology;
use serde_json::{Map, Value, json};

use self::build::Built;
use self::record::Record;
use crate::check::{Check, CheckSpec, What};
use crate::compare;
use crate::experiment::{Experiment, Mode, Phase};
use crate::flow::{Sample, Sent};
use crate::live::Run;
use crate::measure;
use crate::result::{Calibration, Instrument, RunResult, Versions};
use crate::trace::{Cut, Drops, MAX_CUTS, Stream, Trace};

/// How often the senders' state is read, and the most times in a phase.
const SAMPLE_NS: u64 = 100_000_000;
const MAX_SAMPLES: u64 = 10_000;
/// How often the senders are asked whether their window was cut, in phases of up to [`CUTS_SEEN_NS`]: less than
/// any round trip that can cut it twice here.
const CUT_NS: u64 = 10_000_000;
const CUTS_SEEN_NS: u64 = 600_000_000_000;

/// A run in virtual time that could not be made.
#[derive(Debug, thiserror::Error)]
#[error("phase {phase}: {problem}")]
pub struct SimError {
    /// Which phase.
    pub phase: String,
    /// What is wrong and what would be right.
    pub problem: String,
}

/// One run of a phase.
struct One {
    trace: Trace,
    sent: Vec<Sent>,
    totals: Totals,
}

/// The runs of a phase: the one of the median rate, and figures of all.
struct Whole {
    median: One,
    seed: u64,
    seeds: Vec<Value>,
    /// Checks on dropped frames that fail for some seed, with the first such outcome.
    failed: Vec<Check>,
    conserved: bool,
}

/// Runs an experiment in virtual time.
///
/// `say` gets one line per step.
///
/// # Errors
/// When the experiment asks for what the simulator does not have; a check that fails is no error.
pub fn run(e: &Experiment, say: &mut dyn FnMut(&str)) -> Result<Run, SimError> {
    let started_unix_s = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |d| d.as_secs());
    let phases = all_phases(e, say)?;
    let mut measured = Map::new();
    for w in &phases {
        let mut figures = measure::phase(e, &w.median.trace, &w.median.sent);
        if let Value::Object(m) = &mut figures {
            m.insert("seed".into(), json!(w.seed));
            m.insert("seeds".into(), json!(w.seeds));
        }
        measured.insert(w.median.trace.phase.clone(), figures);
    }
    let seed = phases.first().map_or(0, |w| w.seed);
    let failed: Vec<Check> = phases.iter().flat_map(|w| w.failed.clone()).collect();
    let conserved = conservation(&phases);
    let (mut traces, mut sent) = (Vec::new(), Vec::new());
    for w in phases {
        traces.push(w.median.trace);
        sent.push(w.median.sent);
    }
    let specs = e.checks.iter().filter(|c| c.is_for(Mode::Sim));
    let mut checks: Vec<Check> = specs
        .map(|c| {
            let outcome = c.evaluate(&traces);
            failed
                .iter()
                .find(|f| f.name == outcome.name)
                .cloned()
                .unwrap_or(outcome)
        })
        .collect();
    checks.push(conserved);
    let result = RunResult {
        experiment: e.name.clone(),
        title: e.title.clone(),
        source: format!("{}, {}, {}", e.source.paper, e.source.figure, e.source.section),
        mode: "sim".into(),
        variant: e.variant.clone(),
        scale: e.scale.clone(),
        started_unix_s,
        paper: json!(e.figures),
        settings: json!(e.settings),
        compared: compare::beside(&e.figures, &measured),
        measured,
        checks,
        instrument: Instrument {
            calibration: Calibration {
                vector: "none: virtual time is exact".into(),
                ..Calibration::default()
            },
            lateness: Vec::new(),
        },
        disturbed: false,
        disturbed_by: String::new(),
        versions: Versions::here(),
        seed,
        notes: notes(e),
    };
    Ok(Run { result, traces, sent })
}

/// Runs the phases, as many at a time as there are processors: each is a function of its parameters and seed.
fn all_phases(e: &Experiment, say: &mut dyn FnMut(&str)) -> Result<Vec<Whole>, SimError> {
    let workers = thread::available_parallelism().map_or(1, NonZero::get);
    let next = AtomicUsize::new(0);
    let (tell, told) = mpsc::channel();
    let mut done: Vec<Option<Whole>> = e.phases.iter().map(|_| None).collect();
    thread::scope(|scope| {
        for _ in 0..workers.min(e.phases.len()) {
            let (tell, next) = (tell.clone(), &next);
            scope.spawn(move || {
                while let Some((n, p)) = {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    e.phases.get(n).map(|p| (n, p))
                } {
                    // The other end listens until every worker has ended.
                    let _ = tell.send((n, None));
                    let _ = tell.send((n, Some(phase(e, p))));
                }
            });
        }
        drop(tell);
        let mut problem = None;
        for (n, outcome) in told {
            let Some(p) = e.phases.get(n) else { continue };
            match outcome {
                None => say(&format!(
                    "{}: {} for {} of virtual time",
                    e.name, p.name, p.duration.text
                )),
                Some(Ok(whole)) => {
                    if let Some(place) = done.get_mut(n) {
                        *place = Some(whole);
                    }
                }
                Some(Err(m)) => {
                    // No further phase is begun.
                    next.store(e.phases.len(), Ordering::Relaxed);
                    problem.get_or_insert(SimError {
                        phase: p.name.clone(),
                        problem: m,
                    });
                }
            }
        }
        match problem {
            Some(problem) => Err(problem),
            None => Ok(done.into_iter().flatten().collect()),
        }
    })
}

fn notes(e: &Experiment) -> Vec<String> {
    let mut notes = e.notes.clone();
    for p in &e.phases {
        let s = p.sim.or(&e.sim);
        let stack = s.stack().map_or("?", |stack| stack.name);
        if !p.vars.is_empty() {
            continue;
        }
        notes.push(format!(
            "Simulated, {}: TCP stack {stack}, spacing at the senders {:?}, {} seeds.",
            p.name,
            s.pace.unwrap_or_default(),
            s.seeds.unwrap_or(1)
        ));
    }
    notes
}

/// The check on the simulator itself.
fn conservation(phases: &[Whole]) -> Check {
    let frames: u64 = phases.iter().map(|w| w.median.totals.emitted.frames).sum();
    Check {
        name: "frames conserved".into(),
        bound: "emitted + duplicated = delivered + dropped + held, frames and bytes, in every run".into(),
        value: format!("{frames} frames emitted"),
        ok: frames > 0 && phases.iter().all(|w| w.conserved),
    }
}

fn conserved(t: &Totals) -> bool {
    t.emitted.frames + t.duplicated.frames == t.delivered.frames + t.dropped.frames + t.held.frames
        && t.emitted.bytes + t.duplicated.bytes == t.delivered.bytes + t.dropped.bytes + t.held.bytes
}

fn phase(e: &Experiment, p: &Phase) -> Result<Whole, String> {
    let topology = Topology::from_toml(&p.topology_toml).map_err(|m| m.to_string())?;
    let settings = p.sim.or(&e.sim);
    let seeds = u64::from(settings.seeds.unwrap_or(1));
    let (from, to) = measure::looked_at(e, &p.name, p.duration.ns());
    let about_drops = |c: &&CheckSpec| {
        c.is_for(Mode::Sim) && matches!(&c.what, What::Drops { phase, .. } if *phase == p.name)
    };
    let mut failed = Vec::new();
    let mut all_conserved = true;
    let mut figures = Vec::new();
    let mut rates = Vec::new();
    for seed in (0..seeds).map(|n| topology.seed.wrapping_add(n)) {
        let one = single(e, p, &topology, &settings, seed)?;
        all_conserved &= conserved(&one.totals);
        let rate = one.trace.mean_mbps(e.meter.level, from, to);
        figures.push(json!({
            "seed": seed,
            "mean_mbps": (rate * 1e4).round() / 1e4,
            "dropped_router_frames": one.trace.drops.routers,
        }));
        let traces = [one.trace];
        for c in e.checks.iter().filter(about_drops) {
            let outcome = c.evaluate(&traces);
            if !outcome.ok {
                failed.push(outcome);
            }
        }
        rates.push((rate, seed));
        if seeds == 1 {
            let [trace] = traces;
            return Ok(Whole {
                median: One { trace, ..one },
                seed,
                seeds: figures,
                failed,
                conserved: all_conserved,
            });
        }
    }
    rates.sort_by(|a, b| a.0.total_cmp(&b.0));
    let seed = rates.get(rates.len() / 2).map_or(topology.seed, |r| r.1);
    Ok(Whole {
        median: single(e, p, &topology, &settings, seed)?,
        seed,
        seeds: figures,
        failed,
        conserved: all_conserved,
    })
}

/// One run of a phase with one seed.
fn single(e: &Experiment, p: &Phase, topology: &Topology, s: &Settings, seed: u64) -> Result<One, String> {
    let mut b = build::network(p, topology, s, seed)?;
    let widths: Vec<u64> = e
        .checks
        .iter()
        .filter_map(CheckSpec::scheduled_width)
        .filter(|(phase, _)| *phase == p.name)
        .map(|(_, width)| width)
        .collect();
    let links = b.links.first().map(|first| (first.0 as usize, b.links.len()));
    let end_ns = p.duration.ns();
    let bin_ns = s.record.as_ref().map(crate::experiment::Span::ns);
    let links = links.filter(|_| !widths.is_empty());
    let mut record = Record::new(p.flows.len(), end_ns, bin_ns, links);
    let mut sent: Vec<Sent> = b
        .congestion
        .iter()
        .zip(&b.mss)
        .map(|(congestion, mss)| Sent {
            congestion: congestion.clone(),
            mss_bytes: *mss,
            ..Sent::default()
        })
        .collect();
    let sample_ns = SAMPLE_NS
        .max(end_ns.div_ceil(MAX_SAMPLES))
        .next_multiple_of(CUT_NS);
    let step_ns = if end_ns > CUTS_SEEN_NS { sample_ns } else { CUT_NS };
    let mut now_ns = 0;
    let mut cuts = Cuts::new(b.flows.len());
    loop {
        b.net.run_until(PicoTime::from_ns(now_ns), &mut record);
        cuts.look(&b, p);
        if now_ns % sample_ns == 0 || now_ns >= end_ns {
            sample(&b, &mut sent, now_ns);
        }
        if now_ns >= end_ns {
            break;
        }
        now_ns = (now_ns + step_ns).min(end_ns);
    }
    let losses_ms = std::mem::take(&mut record.losses_ms);
    let scheduled_peaks = widths.iter().map(|w| (*w, record.peak(*w))).collect();
    let bin_ns = record.bin_ns();
    let streams = p
        .flows
        .iter()
        .zip(record.flows)
        .map(|(f, frames)| Stream {
            name: f.name.clone(),
            frames,
        })
        .collect();
    Ok(One {
        trace: Trace {
            phase: p.name.clone(),
            duration_ns: end_ns,
            streams,
            drops: drops(&b),
            link_drops: link_drops(&b, topology),
            bin_ns,
            rtts_us: sent.iter().filter_map(rtts).collect(),
            usage: Vec::new(),
            vars: p.vars.clone(),
            scheduled_peaks,
            place_error_bytes: None,
            cuts: cuts.list,
            losses_ms,
        },
        sent,
        totals: b.net.totals(),
    })
}

/// The senders' windows that were cut so far.
struct Cuts {
    seen: Vec<u64>,
    list: Vec<Cut>,
}

impl Cuts {
    fn new(flows: usize) -> Self {
        Self {
            seen: vec![0; flows],
            list: Vec::new(),
        }
    }

    fn look(&mut self, b: &Built, p: &Phase) {
        for ((flow, seen), name) in b.flows.iter().zip(&mut self.seen).zip(&p.flows) {
            let Some((count, Some(cut))) = b.net.sender(*flow).map(kuroshio_core::tcp::Sender::cuts) else {
                continue;
            };
            if count == *seen || self.list.len() >= MAX_CUTS {
                continue;
            }
            *seen = count;
            self.list.push(Cut {
                stream: name.name.clone(),
                t_ms: cut.at.as_ms(),
                cwnd_segments: cut.cwnd,
                ssthresh_segments: cut.ssthresh,
                target_segments: cut.target,
                in_slow_start: cut.in_slow_start,
                timeout: cut.timeout,
            });
        }
    }
}

fn sample(b: &Built, sent: &mut [Sent], now_ns: u64) {
    for (flow, sent) in b.flows.iter().zip(sent) {
        let Some(sender) = b.net.sender(*flow) else {
            continue;
        };
        let retrans_segments = u32::try_from(sender.stats().resent_segments).unwrap_or(u32::MAX);
        sent.retrans_segments = retrans_segments;
        sent.samples.push(Sample {
            t_ms: now_ns / 1_000_000,
            cwnd_segments: sender.window().cwnd,
            rtt_us: sender
                .rtt()
                .smoothed()
                .map_or(0, |rtt| u32::try_from(rtt.as_us()).unwrap_or(u32::MAX)),
            retrans_segments,
            unacked_segments: sender.in_flight(),
            rwnd_limited_us: 0,
            peer_window_bytes: u32::try_from(sender.peer_window()).unwrap_or(u32::MAX),
        });
    }
}

/// The least and the last smoothed round-trip time of a sender, us.
fn rtts(sent: &Sent) -> Option<(u32, u32)> {
    let known = || sent.samples.iter().map(|s| s.rtt_us).filter(|rtt| *rtt > 0);
    Some((known().min()?, known().next_back()?))
}

fn drops(b: &Built) -> Drops {
    let sum = |stages: &mut dyn Iterator<Item = StageCounters>| -> u64 {
        stages
            .map(|c| c.queue_full.frames + c.aqm_dropped.frames + c.too_big.frames)
            .sum()
    };
    let counters = |stage| b.net.counters(stage);
    let links = b.links.iter().filter_map(|l| counters(*l));
    Drops {
        routers: sum(&mut links.clone()) + sum(&mut b.egress.iter().filter_map(|s| counters(*s))),
        shapers: sum(&mut b.shapers.values().filter_map(|s| counters(*s))),
        ports: sum(&mut b.ports.iter().filter_map(|s| counters(*s))),
        cards: sum(&mut b.drains.values().filter_map(|s| counters(*s))),
        loss: links.map(|c| c.lost.frames).sum(),
    }
}

/// Frames that each direction of each link refused.
fn link_drops(b: &Built, topology: &Topology) -> Vec<(String, u64)> {
    let counters = b.links.iter().filter_map(|l| b.net.counters(*l));
    let refused = counters.map(|c| c.dropped().frames - c.lost.frames);
    topology.link_names().into_iter().zip(refused).collect()
}
