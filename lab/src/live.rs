//! The live run of an experiment: real TCP in namespaces, over the emulator, on the wall clock.
//!
//! ```text
//! for each phase:  testbed up -> receivers bound -> capture at the far ports -> senders at zero
//!                  -> sleep to the end -> counters, lateness, witnesses -> testbed down
//! then:            calibration vector through the same path -> checks -> result
//! ```
//!
//! Everything is measured from stamps taken in the receivers' namespaces; only what figures.md asks by
//! scheduled stamps comes from the emulator's own trace. A run in which the machine lost a frame, or the
//! capture missed one, fails a check of its own.

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use kuroshio_bpf::{BpfError, CongestionControl};
use kuroshio_clock::{now_ns, sleep_until};
use kuroshio_testbed::{
    CaptureSet, Captured, Counters, EmulatorReport, Fate, Point, Testbed, Topology, Trace as EmulatorTrace,
};
use serde_json::{Map, json};

use crate::calibrate;
use crate::check::Check;
use crate::compare;
use crate::cpu::Ends;
use crate::experiment::{Experiment, Mode, Phase};
use crate::flow::{self, FIRST_PORT, Received, Receiver, Sent, Times};
use crate::measure;
use crate::result::{Instrument, Lateness, Quantiles, RunResult, Versions};
use crate::trace::{Drops, Frame, Stream, Trace, peak_in_any_window};

/// Between the start of the threads and the start of the phase.
const LEAD: Duration = Duration::from_millis(200);
/// How long frames may still arrive after the end of a phase.
const TAIL: Duration = Duration::from_millis(300);
/// How long a receiver may take to bind.
const BIND_LIMIT: Duration = Duration::from_secs(10);
/// Room for the emulator's trace, records per second of a phase: data and acknowledgements at
/// 1 Gbps of 1500-byte frames, at six points each.
const TRACE_RECORDS_PER_S: u64 = 450_000;

/// How often the emulator is held on purpose, and how far apart: 20 ms is 4 ms more than a window of
/// 16 ms, so that stalls of 5 ms fall on every place of a window and one lies across its end.
pub const STALLS: u64 = 5;
const STALL_EVERY_NS: u64 = 20_000_000;
/// Lateness that 99.9 % of the frames keep. The largest p99.9 seen beside a full load of compilers
/// was 0.9 ms; a stall of 5 ms in 5 s of steady frames exceeds it.
const LATENESS_LIMIT_NS: i64 = 2_000_000;

/// A live run that could not be made.
#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    /// The topology is wrong.
    #[error("phase {0}: {1}")]
    Topology(String, kuroshio_testbed::TopologyError),
    /// The testbed failed.
    #[error("testbed: {0}")]
    Testbed(#[from] kuroshio_testbed::TestbedError),
    /// A flow failed.
    #[error("flow {0}: {1}")]
    Flow(String, io::Error),
    /// A flow's congestion control is not there.
    #[error("flow {0}: {1}")]
    Congestion(String, BpfError),
    /// Something else of the machine.
    #[error("{0}: {1}")]
    Io(&'static str, io::Error),
}

/// How to run.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// Hold the emulator on purpose for this long, [`STALLS`] times from the middle of every phase,
    /// to see that the checks notice.
    pub stall: Option<Duration>,
}

/// What a live run leaves.
#[derive(Debug, Clone)]
pub struct Run {
    /// The figures.
    pub result: RunResult,
    /// Every phase's frames.
    pub traces: Vec<Trace>,
    /// What every phase's senders said.
    pub sent: Vec<Vec<Sent>>,
}

struct PhaseRun {
    trace: Trace,
    sent: Vec<Sent>,
    lateness: Lateness,
    disturbed: Option<String>,
    seed: u64,
}

/// Runs an experiment. Must be called inside [`kuroshio_testbed::isolate::run`].
///
/// `say` gets one line per step.
///
/// # Errors
/// When the network cannot be made or a flow fails; a check that fails is no error.
pub fn run(e: &Experiment, o: Options, say: &mut dyn FnMut(&str)) -> Result<Run, LiveError> {
    let mut e = e.clone();
    let _loaded = congestion_controls(&mut e)?;
    let e = &e;
    let started_unix_s = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |d| d.as_secs());
    let mut phases = Vec::new();
    for p in &e.phases {
        say(&format!("{}: {} for {}", e.name, p.name, p.duration.text));
        phases.push(phase(e, p, o)?);
    }
    say(&format!("{}: calibration", e.name));
    let calibration = calibrate::run()?;
    let mut measured = Map::new();
    for p in &phases {
        measured.insert(p.trace.phase.clone(), measure::phase(e, &p.trace, &p.sent));
    }
    let disturbed_by = phases
        .iter()
        .filter_map(|p| p.disturbed.as_ref().map(|d| format!("{}: {d}", p.trace.phase)))
        .collect::<Vec<_>>()
        .join("; ");
    let seed = phases.first().map_or(0, |p| p.seed);
    let instrument = Instrument {
        calibration,
        lateness: phases.iter().map(|p| p.lateness.clone()).collect(),
    };
    let sent: Vec<Vec<Sent>> = phases.iter().map(|p| p.sent.clone()).collect();
    let traces: Vec<Trace> = phases.into_iter().map(|p| p.trace).collect();
    let specs = e.checks.iter().filter(|c| c.is_for(Mode::Live));
    let mut checks: Vec<Check> = specs.map(|c| c.evaluate(&traces)).collect();
    checks.push(whole(&instrument.lateness));
    checks.push(on_time(&instrument.lateness));
    let result = RunResult {
        experiment: e.name.clone(),
        title: e.title.clone(),
        source: format!("{}, {}, {}", e.source.paper, e.source.figure, e.source.section),
        mode: "live".into(),
        variant: e.variant.clone(),
        scale: e.scale.clone(),
        started_unix_s,
        paper: json!(e.figures),
        settings: json!(e.settings),
        compared: compare::beside(&e.figures, &measured),
        measured,
        checks,
        instrument,
        disturbed: !disturbed_by.is_empty(),
        disturbed_by,
        versions: Versions::here(),
        seed,
        notes: notes(e),
    };
    Ok(Run { result, traces, sent })
}

/// Loads the congestion controls that the kernel lacks; they go when what this returns goes. A flow whose
/// own cannot be had takes its other one.
fn congestion_controls(e: &mut Experiment) -> Result<Vec<CongestionControl>, LiveError> {
    let mut loaded = Vec::new();
    for flow in e.phases.iter_mut().flat_map(|p| &mut p.flows) {
        let name = flow.name.clone();
        let failed = |e| LiveError::Congestion(name.clone(), e);
        let Some(wanted) = flow.congestion.clone() else {
            continue;
        };
        if kuroshio_bpf::available().map_err(failed)?.contains(&wanted) {
            continue;
        }
        match (kuroshio_bpf::load(&wanted), flow.congestion_else.take()) {
            (Ok(control), _) => loaded.extend(control),
            (Err(_), Some(other)) => {
                flow.congestion_of_paper = Some(wanted);
                flow.congestion = Some(other);
            }
            (Err(e), None) => return Err(failed(e)),
        }
    }
    Ok(loaded)
}

fn notes(e: &Experiment) -> Vec<String> {
    let mut notes = e.notes.clone();
    let mut other = BTreeMap::new();
    for f in e.phases.iter().flat_map(|p| &p.flows) {
        if let (Some(ours), Some(papers)) = (&f.congestion, &f.congestion_of_paper) {
            other.insert(papers.clone(), ours.clone());
        }
    }
    for (papers, ours) in other {
        notes.push(format!(
            "The paper's congestion control is {papers}; this run's is {ours}."
        ));
    }
    notes
}

/// The check on the instrument itself.
fn whole(lateness: &[Lateness]) -> Check {
    let lost: u64 = lateness.iter().map(|l| l.not_taken_frames).sum();
    let missed: u64 = lateness.iter().map(|l| l.capture_dropped_frames).sum();
    Check {
        name: "instrument whole".into(),
        bound: "0 frames lost by the machine, 0 missed by the capture".into(),
        value: format!("{lost} lost, {missed} missed"),
        ok: lost == 0 && missed == 0,
    }
}

/// The check on the emulator's lateness: what the machine's witnesses do not explain is a failure.
fn on_time(lateness: &[Lateness]) -> Check {
    let worst = lateness
        .iter()
        .map(|l| l.lateness.p999_ns)
        .max()
        .unwrap_or(i64::MAX);
    Check {
        name: "emulator on time".into(),
        bound: format!(
            "p99.9 of lateness at most {} us in every phase",
            LATENESS_LIMIT_NS / 1000
        ),
        value: format!("{:.1} us", worst as f64 / 1e3),
        ok: worst <= LATENESS_LIMIT_NS,
    }
}

fn phase(e: &Experiment, p: &Phase, o: Options) -> Result<PhaseRun, LiveError> {
    let topology =
        Topology::from_toml(&p.topology_toml).map_err(|m| LiveError::Topology(p.name.clone(), m))?;
    let seed = topology.seed;
    let tb = Testbed::up(&topology)?;
    let receivers = receivers(&tb, p)?;
    let widths: Vec<u64> = e
        .checks
        .iter()
        .filter_map(|c| c.scheduled_width())
        .filter(|(n, _)| *n == p.name)
        .map(|(_, w)| w)
        .collect();
    if !widths.is_empty() {
        let records = TRACE_RECORDS_PER_S * p.duration.ns().div_ceil(1_000_000_000);
        tb.trace_start(usize::try_from(records).unwrap_or(usize::MAX))?;
    }
    let ports: Vec<&str> = p.flows.iter().map(|f| f.far_port.as_str()).collect();
    let capture = tb.capture(&ports)?;
    tb.begin()?;
    let zero_ns = now_ns() + LEAD.as_nanos() as u64;
    let times = Times {
        zero_ns,
        end_ns: zero_ns + p.duration.ns(),
    };
    for r in &receivers {
        // A receiver that has ended says why when it is joined.
        let _ = r.start.send(times);
    }
    let senders = senders(&tb, p, times)?;
    if let Some(stall) = o.stall {
        for i in 0..STALLS {
            sleep_until(zero_ns + p.duration.ns() / 2 + i * STALL_EVERY_NS, 0);
            tb.stall(stall)?;
        }
    }
    sleep_until(times.end_ns, 0);
    let report = tb.report()?;
    let counters = tb.counters()?;
    sleep_until(times.end_ns + TAIL.as_nanos() as u64, 0);
    let scheduled = if widths.is_empty() {
        None
    } else {
        Some(tb.trace_stop()?)
    };
    let captured = stop(capture)?;
    let sent = collect(p, senders)?;
    let mut usage = Vec::new();
    for ((f, r), sent) in p.flows.iter().zip(receivers).zip(&sent) {
        usage.push(Ends {
            sender: sent.usage.clone(),
            receiver: join(&f.name, r.thread)?.usage,
        });
    }
    drop(tb);
    let mut trace = trace(p, &captured, &counters, times);
    trace.usage = usage;
    if let Some(s) = scheduled {
        trace.scheduled_peaks = scheduled_peaks(&s, p, &widths);
    }
    let lateness = lateness(&p.name, &report, captured.missed);
    Ok(PhaseRun {
        trace,
        sent,
        lateness,
        disturbed: report.disturbed,
        seed,
    })
}

type Handle<T> = JoinHandle<io::Result<io::Result<T>>>;

struct Bound {
    start: Sender<Times>,
    thread: Handle<Received>,
}

/// Starts the receivers and waits until each is bound.
fn receivers(tb: &Testbed, p: &Phase) -> Result<Vec<Bound>, LiveError> {
    let mut list = Vec::new();
    for (i, f) in p.flows.iter().enumerate() {
        let (start, go) = channel::<Times>();
        let (tell, ready) = channel();
        let flow = f.clone();
        let thread = tb.in_host(&f.to, move || {
            let receiver = Receiver::bind(&flow, i)?;
            // The other end waits for it, or has given up.
            let _ = tell.send(());
            match go.recv() {
                Ok(times) => receiver.run(times),
                Err(_) => Ok(Received::default()),
            }
        })?;
        if ready.recv_timeout(BIND_LIMIT).is_err() {
            drop(start);
            let why = match join(&f.name, thread) {
                Err(e) => return Err(e),
                Ok(_) => io::Error::from(io::ErrorKind::TimedOut),
            };
            return Err(LiveError::Flow(f.name.clone(), why));
        }
        list.push(Bound { start, thread });
    }
    Ok(list)
}

fn senders(tb: &Testbed, p: &Phase, times: Times) -> Result<Vec<Handle<Sent>>, LiveError> {
    let mut list = Vec::new();
    for (i, f) in p.flows.iter().enumerate() {
        let flow = f.clone();
        list.push(tb.in_host(&f.from, move || flow::send(&flow, i, times))?);
    }
    Ok(list)
}

fn join<T>(name: &str, handle: Handle<T>) -> Result<T, LiveError> {
    let flow = |e| LiveError::Flow(name.to_owned(), e);
    match handle.join() {
        Ok(Ok(Ok(v))) => Ok(v),
        Ok(Ok(Err(e)) | Err(e)) => Err(flow(e)),
        Err(_) => Err(flow(io::Error::other("its thread panicked"))),
    }
}

fn collect(p: &Phase, handles: Vec<Handle<Sent>>) -> Result<Vec<Sent>, LiveError> {
    p.flows
        .iter()
        .zip(handles)
        .map(|(f, h)| join(&f.name, h))
        .collect()
}

fn stop(capture: CaptureSet) -> Result<Captured, LiveError> {
    capture.stop().map_err(|e| LiveError::Io("capture", e))
}

pub(crate) fn lateness(phase: &str, r: &EmulatorReport, missed: u64) -> Lateness {
    let signed = |v: u64| i64::try_from(v).unwrap_or(i64::MAX);
    Lateness {
        phase: phase.into(),
        lateness: Quantiles {
            p50_ns: signed(r.lateness.p50_ns),
            p99_ns: signed(r.lateness.p99_ns),
            p999_ns: signed(r.lateness.p999_ns),
            max_ns: signed(r.lateness.max_ns),
        },
        frames: r.lateness.frames,
        not_taken_frames: r.machine_lost,
        capture_dropped_frames: missed,
        steal_ns: r.machine.steal_ns,
        run_delay_ns: r.machine.run_delay_ns,
        canary_max_ns: r.machine.canary.max_ns,
    }
}

/// The frames of every flow in the direction of its data.
pub(crate) fn streams(p: &Phase, captured: &Captured, zero_ns: u64) -> Vec<Stream> {
    let mut list: Vec<Stream> = p
        .flows
        .iter()
        .map(|f| Stream {
            name: f.name.clone(),
            frames: Vec::new(),
        })
        .collect();
    for r in &captured.records {
        let Some(key) = captured.flow(r) else { continue };
        let Some(i) = key.destination_port.checked_sub(FIRST_PORT).map(usize::from) else {
            continue;
        };
        if let (Some(f), Some(s)) = (p.flows.get(i), list.get_mut(i))
            && f.address == key.destination
        {
            s.frames.push(Frame {
                t_ns: i64::try_from(i128::from(r.t_ns) - i128::from(zero_ns)).unwrap_or(i64::MAX),
                frame: r.frame_len,
                payload: r.payload_len,
            });
        }
    }
    for s in &mut list {
        s.frames.sort_by_key(|f| f.t_ns);
    }
    list
}

fn trace(p: &Phase, captured: &Captured, c: &Counters, times: Times) -> Trace {
    let mut drops = Drops::default();
    for l in &c.links {
        drops.routers += l.stage.queue_full.frames;
        drops.loss += l.stage.lost.frames + l.fault_dropped;
    }
    for port in &c.ports {
        drops.routers += port.egress.queue_full.frames;
        drops.ports += port.wire.queue_full.frames;
    }
    drops.shapers = c.shapers.iter().map(|s| s.stage.queue_full.frames).sum();
    Trace {
        phase: p.name.clone(),
        duration_ns: p.duration.ns(),
        streams: streams(p, captured, times.zero_ns),
        drops,
        ..Trace::default()
    }
}

/// Most bytes of the flows that arrived at any one link within any window of each width, by the
/// emulator's exact times. Nothing when a record was lost.
fn scheduled_peaks(t: &EmulatorTrace, p: &Phase, widths: &[u64]) -> Vec<(u64, u64)> {
    if t.lost > 0 {
        return Vec::new();
    }
    let last = FIRST_PORT.saturating_add(u16::try_from(p.flows.len()).unwrap_or(u16::MAX));
    let mut links: BTreeMap<u16, Vec<(i64, u64)>> = BTreeMap::new();
    for r in &t.records {
        if let Point::LinkIn(n) = r.point
            && (FIRST_PORT..last).contains(&r.dst_port)
            && r.fate != Fate::Fault
        {
            let at = i64::try_from(r.at.as_ps()).unwrap_or(i64::MAX);
            links.entry(n).or_default().push((at, u64::from(r.frame_len)));
        }
    }
    for list in links.values_mut() {
        list.sort_unstable();
    }
    widths
        .iter()
        .map(|w| {
            let worst = links
                .values()
                .map(|l| peak_in_any_window(l, w.saturating_mul(1000)));
            (*w, worst.max().unwrap_or(0))
        })
        .collect()
}
