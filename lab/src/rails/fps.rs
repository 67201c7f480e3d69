//! `rails-fps`: how many pictures per second two senders manage, by where their cores and memory are (002, figure 4).
//!
//! ```text
//!   for each run: for each row A to D of the paper's table, as this machine has it ([`kuroshio_rail::rows`]):
//!     rail 1: thread on its core, pictures drawn into memory of its node --RTP--> a socket nobody reads
//!     rail 2: the same with the lower half                               --RTP--> another
//!     as quick as they can for a while -> pictures per second of the slower half
//! ```
//!
//! It is the sending that is measured, as in the paper. The sockets are of the loopback interface, which is near every node:
//! what a card at another node costs is not in it. Where threads and memory were is read back from the system for every run.

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kuroshio_clock::{Limits, Watch};
use kuroshio_core::units::BitRate;
use kuroshio_core::video::{Geometry, PixelFormat};
use kuroshio_netv::{Inspect, NetvError, PartTarget, Prepare, SendConfig, Source, send};
use kuroshio_rail::{
    Binding, Condition, Machine, Place, PlanRequest, Roots, Row, bind, discover, memory_nodes, plan, rows,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::work::Work;
use super::{About, Made, RailsError, Request, check, empty, failed, set, setting, size_within, time_within};
use crate::check::Check;
use crate::compare::Compared;
use crate::page::words;
use crate::report::Table;

/// The paper's host in hwloc's XML: two processors of two cores, each with its memory and a card (002, figure 2).
const PAPER_HOST: &str = include_str!("../../../host/rail/tests/topologies/paper-002.xml");
/// What the paper's best row sends: 89 pictures per second of 3840x2160 in 24 bits (002, figure 4, section I), bit/s.
const PAPER_BPS: u64 = 89 * 3_840 * 2_160 * 24;
const PAPER_FPS: f64 = 89.0;
/// Pictures per second that are asked for: more than any machine sends.
const ASKED: (u32, u32) = (1_000, 1);
/// Payload of a datagram in a frame of 9000 bytes of IPv4.
const DATAGRAM_BYTES: usize = 9_000 - 28;
/// How long pictures may take to be drawn.
const PATIENCE: Duration = Duration::from_secs(30);
/// A difference that counts, as of `rail plan --measure`, percent.
const NOISE_PERCENT: f64 = 3.0;
/// Of five runs at most two may be rejected.
const REJECTED: (usize, usize) = (2, 5);

/// What is run.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub geometry: Geometry,
    pub time: Duration,
    pub runs: usize,
    pub held: usize,
}

impl Settings {
    pub(super) fn of(request: &Request) -> Result<Self, RailsError> {
        let full = Geometry::new(3_840, 2_160, PixelFormat::Rgb8).map_err(|e| failed("4K")(&e))?;
        let count = |most: usize| move |t: &str| t.parse::<usize>().ok().filter(|n| (1..=most).contains(n));
        let time = set(request, "time", "10ms to 60s", |t| time_within(t, 10, 60_000))?;
        Ok(Self {
            geometry: set(request, "size", "64x32 to 7680x4320", size_within)?.unwrap_or(full),
            time: time.unwrap_or(Duration::from_secs(1)),
            runs: set(request, "runs", "1 to 99", count(99))?.unwrap_or(5),
            held: set(request, "held", "1 to 64", count(kuroshio_netv::MAX_HELD))?.unwrap_or(2),
        })
    }

    pub(super) fn rows(&self) -> Vec<Value> {
        let g = self.geometry;
        vec![
            setting(
                "picture",
                format!("{}x{}, RGB in 24 bits", g.width(), g.height()),
                "002, section I: 6 Gbps at 30 per second",
            ),
            setting("parts", "upper and lower half, a thread each", "002, section II"),
            setting(
                "asked",
                "1000 pictures per second: as quick as it goes",
                "002, figure 4: achievable sending rate",
            ),
            setting(
                "datagrams",
                format!("{DATAGRAM_BYTES} bytes: MTU 9000"),
                "ours: the paper does not say",
            ),
            setting(
                "pictures in memory",
                format!(
                    "{} of each half, drawn by the bound thread, sent in turn",
                    self.held
                ),
                "ours: memory of the rail, beyond a cache at full size",
            ),
            setting(
                "runs",
                format!(
                    "{} of {:?} for each row, rows in turn; the median",
                    self.runs, self.time
                ),
                "ours",
            ),
            setting(
                "a difference counts above",
                format!("{NOISE_PERCENT} %"),
                "ours: as of rail plan --measure",
            ),
            setting(
                "a run is rejected",
                "by steal, a canary thread's delay, or other programs' processor time above 5 % of its own time",
                "ours: as of every live run; the last because rows on one core and on two suffer from others differently",
            ),
            setting(
                "receivers",
                "two sockets of the loopback interface that nobody reads",
                "ours: the sending is measured",
            ),
        ]
    }
}

/// Where a part's thread and memory were, as the system says.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Seen {
    /// Processing units that the thread was allowed.
    pub allowed: Vec<u32>,
    /// Nodes of its pictures' memory; `None` where the system does not tell.
    pub memory_nodes: Option<Vec<u32>>,
}

/// One run of a row.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Sample {
    pub fps: f64,
    pub frame_bps: u64,
    pub seen: [Seen; 2],
    /// Pages that were taken from a node while the taker ran on another (`numastat`), of the whole machine.
    pub other_node_pages: u64,
    pub superframes: bool,
    /// Why the run does not count.
    pub disturbed: Option<String>,
}

/// A row and its runs.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct RowRun {
    pub row: Row,
    pub samples: Vec<Sample>,
}

impl RowRun {
    /// Median of the runs that count; of all where none does.
    pub(super) fn fps(&self) -> f64 {
        let counted: Vec<f64> = self
            .samples
            .iter()
            .filter(|s| s.disturbed.is_none())
            .map(|s| s.fps)
            .collect();
        let mut all = if counted.is_empty() {
            self.samples.iter().map(|s| s.fps).collect()
        } else {
            counted
        };
        all.sort_by(f64::total_cmp);
        all.get(all.len() / 2).copied().unwrap_or(0.0)
    }

    fn rejected(&self) -> usize {
        self.samples.iter().filter(|s| s.disturbed.is_some()).count()
    }

    /// Whether every thread and its memory were where the row says.
    pub(super) fn in_place(&self) -> bool {
        let right = |(seen, place): (&Seen, &Place)| {
            let (mut allowed, mut pus) = (seen.allowed.clone(), place.pus.clone());
            allowed.sort_unstable();
            pus.sort_unstable();
            allowed == pus
                && seen
                    .memory_nodes
                    .as_ref()
                    .is_none_or(|nodes| *nodes == [place.memory_node])
        };
        !self.samples.is_empty()
            && self
                .samples
                .iter()
                .all(|s| s.seen.iter().zip(&self.row.rails).all(right))
    }
}

pub(super) fn run(about: &About, request: &Request, say: &mut dyn FnMut(&str)) -> Result<Made, RailsError> {
    let settings = Settings::of(request)?;
    let machine =
        discover(&kuroshio_rail::Source::Here, &Roots::default()).map_err(|e| failed("the topology")(&e))?;
    let machine = Arc::new(machine);
    let rows = rows(&machine).map_err(|e| RailsError::Bad(e.to_string()))?;
    let mut runs: Vec<RowRun> = rows
        .map(|row| RowRun {
            row,
            samples: Vec::new(),
        })
        .to_vec();
    for n in 0..settings.runs {
        for run in &mut runs {
            let sample = measure(&machine, &run.row, &settings)?;
            say(&format!(
                "{}: run {} of {}, condition {:?}: {:.1} pictures per second{}",
                about.name,
                n + 1,
                settings.runs,
                run.row.condition,
                sample.fps,
                sample
                    .disturbed
                    .as_ref()
                    .map_or(String::new(), |why| format!(" (disturbed: {why})"))
            ));
            run.samples.push(sample);
        }
    }
    let mut made = figures(about, &settings, &runs, "live")?;
    made.result.checks.push(best(&runs));
    let too_many = |r: &RowRun| r.rejected() * REJECTED.1 > REJECTED.0 * r.samples.len();
    let rejected: Vec<String> = runs
        .iter()
        .filter(|r| too_many(r))
        .map(|r| {
            format!(
                "condition {:?}: {} of {} runs rejected",
                r.row.condition,
                r.rejected(),
                r.samples.len()
            )
        })
        .collect();
    made.result.disturbed = !rejected.is_empty();
    made.result.disturbed_by = rejected.join("; ");
    Ok(made)
}

/// The result and tables of runs, with the checks that every mode has.
pub(super) fn figures(
    about: &About,
    settings: &Settings,
    runs: &[RowRun],
    mode: &str,
) -> Result<Made, RailsError> {
    let g = settings.geometry;
    let full = (g.width(), g.height()) == (3_840, 2_160);
    let scale = if full {
        "1".to_owned()
    } else {
        format!("{}x{}", g.width(), g.height())
    };
    let mut result = empty(about, mode, &scale);
    result.paper = json!([
        { "name": "condition A", "value": "89 pictures per second: the best" },
        { "name": "conditions B, C, D", "value": "less; their numbers are not in our copy" },
    ]);
    result.settings = Value::Array(settings.rows());
    for run in runs {
        result
            .measured
            .insert(format!("{:?}", run.row.condition), row_json(run, g));
    }
    if let Some(a) = runs.first().filter(|_| full && mode == "live") {
        result.compared.push(Compared {
            name: "pictures per second, condition A".into(),
            phase: "A".into(),
            figure: "pictures_fps".into(),
            paper: PAPER_FPS,
            ours: a.fps(),
            off: a.fps() / PAPER_FPS - 1.0,
            reason: Some(
                "another machine; loopback in place of two 10 Gbps cards, whose 20 Gbps would end at 100"
                    .into(),
            ),
        });
    }
    result.checks = paper_host()?;
    result.checks.push(check(
        "every thread and its memory where its row says",
        "4 rows, every run",
        format!("{} rows", runs.iter().filter(|r| r.in_place()).count()),
        runs.len() == 4 && runs.iter().all(RowRun::in_place),
    ));
    result.notes = notes(runs);
    Ok(Made {
        result,
        tables: vec![places(runs), rates(runs)],
        pictures: Vec::new(),
    })
}

fn row_json(run: &RowRun, geometry: Geometry) -> Value {
    json!({
        "pictures_fps": run.fps(),
        "pixels_bps": run.fps() * geometry.bytes() as f64 * 8.0,
        "rails": run.row.rails,
        "same_as": run.row.same_as,
        "rejected_runs": run.rejected(),
        "runs": run.samples,
    })
}

/// What the planner says of the paper's own host.
fn paper_host() -> Result<Vec<Check>, RailsError> {
    let bad = |e: kuroshio_rail::RailError| RailsError::Failed(format!("the paper's host: {e}"));
    let host = discover(&kuroshio_rail::Source::Text(PAPER_HOST.into()), &Roots::default()).map_err(bad)?;
    let rate = BitRate::new(PAPER_BPS).unwrap_or(BitRate::MIN);
    let mut want = PlanRequest::new(rate);
    want.card_rate = Some(BitRate::from_mbps(10_000));
    let made = plan(&host, &want).map_err(bad)?;
    let name = made.condition.map_or("none".to_owned(), |c| format!("{c:?}"));
    Ok(vec![
        check(
            "plan for the paper's host",
            "condition A",
            name,
            made.condition == Some(Condition::A),
        ),
        check(
            "it carries the paper's pictures",
            format!("{PAPER_BPS} bit/s on two rails"),
            format!("{} bit/s on {}", made.carried_bps, made.rails.len()),
            made.carried_bps == PAPER_BPS && made.rails.len() == 2,
        ),
    ])
}

/// That A is the best of the rows that are different placements here.
fn best(runs: &[RowRun]) -> Check {
    let others: Vec<&RowRun> = runs
        .iter()
        .skip(1)
        .filter(|r| r.row.same_as != Some(Condition::A))
        .collect();
    let a = runs.first().map_or(0.0, RowRun::fps);
    let worse = |r: &&&RowRun| a < r.fps() * (1.0 - NOISE_PERCENT / 100.0);
    let told: Vec<String> = others
        .iter()
        .map(|r| format!("{:?} {:.1}", r.row.condition, r.fps()))
        .collect();
    check(
        "A is the best of the rows that differ here",
        format!("median of A not below any other's by more than {NOISE_PERCENT} %"),
        format!("A {a:.1}; {} pictures per second", told.join(", ")),
        a > 0.0 && !others.is_empty() && others.iter().filter(worse).count() == 0,
    )
}

fn notes(runs: &[RowRun]) -> Vec<String> {
    let mut notes = vec![format!(
        "Built {}.",
        if cfg!(debug_assertions) {
            "for tests (optimised little)"
        } else {
            "for use (release)"
        }
    )];
    for run in runs {
        if let Some(same) = run.row.same_as {
            notes.push(format!(
                "Condition {:?} is condition {same:?} on this machine: its difference is the measurement's.",
                run.row.condition
            ));
        }
    }
    if runs.iter().flat_map(|r| &r.row.rails).all(|p| p.card.is_none()) {
        notes.push("No two cards of known, different nodes: the rows are of cores and memory alone.".into());
    }
    if runs
        .iter()
        .flat_map(|r| &r.samples)
        .flat_map(|s| &s.seen)
        .any(|s| s.memory_nodes.is_none())
    {
        notes.push("The system does not tell where memory is.".into());
    }
    notes
}

fn places(runs: &[RowRun]) -> Table {
    let mut t = words(
        "The paper's rows on this machine",
        &[
            "condition",
            "rail 1: core (node), memory, card",
            "rail 2: core (node), memory, card",
            "same as",
        ],
    );
    for run in runs {
        let place = |p: &Place| {
            let card = p.card.clone().unwrap_or_else(|| "none".into());
            format!("{} ({}), {}, {card}", p.core, p.core_node, p.memory_node)
        };
        let [one, two] = run.row.rails.each_ref().map(place);
        let same = run.row.same_as.map_or(String::new(), |s| format!("{s:?}"));
        t = t.row([format!("{:?}", run.row.condition), one, two, same]);
    }
    t.remark = "Cores by their lowest processing unit.".into();
    t
}

fn rates(runs: &[RowRun]) -> Table {
    let mut t = Table::new(
        "Measured",
        &[
            "condition",
            "pictures per second, median",
            "lowest",
            "highest",
            "frame level [Gbps]",
            "runs rejected",
            "pages of another node",
        ],
    );
    for run in runs {
        let of = |pick: fn(f64, f64) -> f64, from: f64| run.samples.iter().map(|s| s.fps).fold(from, pick);
        let (low, high) = (of(f64::min, f64::INFINITY), of(f64::max, 0.0));
        let at = run.samples.iter().find(|s| s.fps == run.fps());
        t = t.row([
            format!("{:?}", run.row.condition),
            format!("{:.1}", run.fps()),
            format!("{low:.1}"),
            format!("{high:.1}"),
            format!("{:.2}", at.map_or(0.0, |s| s.frame_bps as f64 / 1e9)),
            format!("{} of {}", run.rejected(), run.samples.len()),
            run.samples
                .iter()
                .map(|s| s.other_node_pages)
                .sum::<u64>()
                .to_string(),
        ]);
    }
    t.remark = "Pages of another node: taken from a node's memory by work that ran on another (numastat), whole machine.".into();
    t
}

/// One run of a row.
fn measure(machine: &Arc<Machine>, row: &Row, settings: &Settings) -> Result<Sample, RailsError> {
    let io = |e: std::io::Error| RailsError::Failed(format!("condition {:?}: {e}", row.condition));
    let sinks = [(); 2].map(|()| UdpSocket::bind(("127.0.0.1", 0)));
    let seen: Arc<Mutex<[Seen; 2]>> = Arc::default();
    let (drawn, ready) = channel();
    let (mut parts, mut open) = (Vec::new(), Vec::new());
    for (i, (place, sink)) in row.rails.iter().zip(sinks).enumerate() {
        let sink = sink.map_err(io)?;
        parts.push(PartTarget {
            to: sink.local_addr().map_err(io)?,
            from: None,
            prepare: Some(prepare(machine, place, i, &seen)),
            inspect: Some(inspect(i, &seen, drawn.clone())),
        });
        open.push(sink);
    }
    let config = SendConfig {
        geometry: settings.geometry,
        rate: ASKED,
        parts,
        datagram_bytes: DATAGRAM_BYTES,
        pictures: None,
        ssrc: 1,
    };
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    let (before, work) = (other_node_pages(), Work::now());
    let watch = Watch::start(None, &[]).map_err(io)?;
    let held = settings.held;
    let sending = std::thread::spawn(move || send(config, Source::Held(held), &flag));
    // A part that failed has let go of its end; why, its sender says.
    drop(drawn);
    for _ in 0..2 {
        let _ = ready.recv_timeout(PATIENCE);
    }
    std::thread::sleep(settings.time);
    stop.store(true, Ordering::Release);
    let sent = sending
        .join()
        .map_err(|_| RailsError::Failed("the sender ended by itself".into()))?;
    let sent = sent.map_err(|e| RailsError::Failed(format!("condition {:?}: {e}", row.condition)))?;
    let report = watch.report();
    let reasons = [report.verdict(&Limits::default()), work.others(report.wall_ns)];
    let disturbed = reasons.into_iter().flatten().reduce(|a, b| format!("{a}, {b}"));
    let seen = seen.lock().map(|s| s.clone()).unwrap_or_default();
    drop(open);
    Ok(Sample {
        fps: sent.rate_fps,
        frame_bps: sent.frame_rate_bps,
        seen,
        other_node_pages: other_node_pages().saturating_sub(before),
        superframes: sent.parts.iter().all(|p| p.superframes),
        disturbed,
    })
}

/// Binds a part's thread to its place and reads back what the system made of it.
fn prepare(machine: &Arc<Machine>, place: &Place, index: usize, seen: &Arc<Mutex<[Seen; 2]>>) -> Prepare {
    let (machine, seen) = (Arc::clone(machine), Arc::clone(seen));
    let binding = Binding {
        pus: place.pus.clone(),
        memory_node: place.memory_node,
    };
    Box::new(move || {
        bind(&machine, &binding).map_err(|e| NetvError::BadInput(e.to_string()))?;
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
        let line = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:"));
        if let Ok(mut all) = seen.lock() {
            all[index].allowed = list(line.unwrap_or_default());
        }
        Ok(())
    })
}

/// Asks where the pictures of a part are.
fn inspect(index: usize, seen: &Arc<Mutex<[Seen; 2]>>, drawn: Sender<()>) -> Inspect {
    let seen = Arc::clone(seen);
    Box::new(move |picture| {
        let nodes = memory_nodes(picture).ok();
        if let Ok(mut all) = seen.lock() {
            all[index].memory_nodes = nodes;
        }
        // Who measures waits for it, or has given up.
        let _ = drawn.send(());
    })
}

/// Numbers of the kernel's text of a set: `0-3,8`.
fn list(text: &str) -> Vec<u32> {
    let range = |part: &str| {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (from, to): (u32, u32) = (from.trim().parse().ok()?, to.trim().parse().ok()?);
        Some(from..=to.min(from.saturating_add(4_096)))
    };
    text.split(',').filter_map(range).flatten().collect()
}

/// `other_node` of every node's `numastat`, in sum.
fn other_node_pages() -> u64 {
    let nodes = std::fs::read_dir("/sys/devices/system/node")
        .into_iter()
        .flatten()
        .flatten();
    let counters = nodes.filter_map(|n| std::fs::read_to_string(n.path().join("numastat")).ok());
    let of = |text: String| -> BTreeMap<String, u64> {
        let pair = |line: &str| {
            let (name, count) = line.split_once(' ')?;
            Some((name.to_owned(), count.trim().parse().ok()?))
        };
        text.lines().filter_map(pair).collect()
    };
    counters
        .map(|text| of(text).get("other_node").copied().unwrap_or(0))
        .sum()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    #[test]
    fn sets_of_processors_are_read() {
        assert_eq!(list("\t0-2,5"), [0, 1, 2, 5]);
        assert_eq!(list(""), Vec::<u32>::new());
        assert_eq!(list("x,3-"), Vec::<u32>::new());
        assert!(list("0-4294967295").len() <= 4_097);
    }

    /// Rows of a machine of two nodes, each run once where it should be.
    pub(in crate::rails) fn two_nodes(fps: [f64; 4]) -> Vec<RowRun> {
        let source = "synthetic:numa:2 core:2 pu:1".parse().expect("a description");
        let machine = discover(&source, &Roots::default()).expect("a machine");
        let rows = rows(&machine).expect("rows");
        let run = |(row, fps): (Row, f64)| {
            let seen = row.rails.each_ref().map(|p| Seen {
                allowed: p.pus.clone(),
                memory_nodes: Some(vec![p.memory_node]),
            });
            let sample = Sample {
                fps,
                frame_bps: 1,
                seen,
                other_node_pages: 0,
                superframes: true,
                disturbed: None,
            };
            RowRun {
                row,
                samples: vec![sample],
            }
        };
        rows.into_iter().zip(fps).map(run).collect()
    }

    #[test]
    fn a_row_that_beats_a_fails_the_check() {
        assert!(best(&two_nodes([89.0, 60.0, 50.0, 30.0])).ok);
        assert!(best(&two_nodes([89.0, 91.0, 50.0, 30.0])).ok, "within the noise");
        assert!(!best(&two_nodes([89.0, 60.0, 93.0, 30.0])).ok);
        assert!(
            !best(&two_nodes([0.0; 4])).ok,
            "nothing measured is nothing shown"
        );
        // A row that is the same placement may be better.
        let mut same = two_nodes([89.0, 95.0, 50.0, 30.0]);
        same[1].row.same_as = Some(Condition::A);
        assert!(best(&same).ok);
    }

    #[test]
    fn a_thread_or_memory_elsewhere_is_seen() {
        let right = two_nodes([1.0; 4]);
        assert!(right.iter().all(RowRun::in_place));
        let mut memory = right.clone();
        memory[1].samples[0].seen[0].memory_nodes = Some(vec![0, 1]);
        let mut thread = right.clone();
        thread[2].samples[0].seen[1].allowed = vec![0, 1, 2, 3];
        assert!(!memory[1].in_place() && !thread[2].in_place());
        let mut never = right;
        never[0].samples.clear();
        assert!(!never[0].in_place());
    }

    #[test]
    fn disturbed_runs_do_not_count_where_others_do() {
        let mut run = two_nodes([10.0; 4]).remove(0);
        for (fps, why) in [(30.0, None), (20.0, None), (99.0, Some("steal".to_owned()))] {
            let sample = Sample {
                fps,
                disturbed: why,
                ..run.samples[0].clone()
            };
            run.samples.push(sample);
        }
        assert_eq!((run.fps(), run.rejected()), (20.0, 1));
    }

    #[test]
    fn the_paper_s_host_holds() {
        let checks = paper_host().expect("a plan");
        assert!(checks.iter().all(|c| c.ok), "{checks:?}");
    }
}
