//! One run of the demo: a fresh ocean, two services, one third-party copy, everything stamped.
//!
//! ```text
//!   up -> services -> caches dropped -> capture -> cp -> (half-way: a route shrinks; 500 ms later: the plan
//!   is told) -> end -> every file compared -> down
//! ```

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use kuroshio_clock::now_ns;
use kuroshio_core::units::Ratio;
use kuroshio_service::api::CopyLine;
use kuroshio_service::report::{CopyReport, ProgressReport};
use kuroshio_testbed::{Captured, Counters, EmulatorReport, Testbed, Topology, isolate};

use super::classes::Classes;
use super::data::{self, TreeSize};
use super::net::{Net, RECEIVER, ROUTES, SENDER, ports};
use super::share::{CapacityStep, Timeline};
use super::site::{Places, Running};
use crate::error::Failure;

/// The unpaced run is ended after this time.
const UNPACED_LIMIT: Duration = Duration::from_secs(60);
/// A paced run is given up after this time: it takes 20 s at the default scale and size.
const PACED_LIMIT: Duration = Duration::from_secs(600);
/// A run begins when nothing has disturbed the machine for so long (its own trees were freed just before).
const QUIET_FOR: Duration = Duration::from_millis(2500);
/// Or when that has not come for so long.
const QUIET_LIMIT: Duration = Duration::from_secs(15);
/// How long after the route lost capacity its plan is told.
const TOLD_AFTER: Duration = Duration::from_millis(500);
/// How long after being told the new rates must hold.
pub const SETTLED_AFTER: Duration = Duration::from_secs(2);
/// One stream for each Gigabit port, as one GNET-1 shaper for each in the paper.
const STREAMS_PER_PORT: &str = "1";
/// How often the running copy is looked at.
const TICK: Duration = Duration::from_millis(50);
/// Index in [`ROUTES`] of the route that loses a third of its capacity.
pub const SHRINKING: usize = 0;

/// What is done to a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// As TCP sends.
    Unpaced,
    /// Paced by the sending site's rate plan.
    Paced,
    /// Paced, and a route loses a third of its capacity half-way.
    CapacityLoss,
}

impl Kind {
    /// The name in tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Unpaced => "unpaced",
            Kind::Paced => "paced",
            Kind::CapacityLoss => "capacity-loss",
        }
    }
}

/// When a route shrank, when the plan was told, and the drops at its router two seconds later.
#[derive(Clone, Copy, Debug)]
pub struct Shrink {
    /// Monotonic nanoseconds of the loss of capacity.
    pub at_ns: u64,
    /// Monotonic nanoseconds when the plan had been told.
    pub told_ns: u64,
    /// Frames dropped at any router when the new rates had to hold.
    pub dropped_when_settled: Option<u64>,
}

/// What one run left behind.
pub struct Outcome {
    /// Which run.
    pub kind: Kind,
    /// Whether the copy came to its end.
    pub finished: bool,
    /// Wall time of the copy.
    pub seconds: f64,
    /// Files and bytes that had to move.
    pub asked: TreeSize,
    /// Files found equal to their source afterwards.
    pub files_verified: usize,
    /// The command's own last words.
    pub copy: CopyReport,
    /// The last progress that it reported.
    pub progress: ProgressReport,
    /// Frames at the receiver's ports, in the order of [`ports`].
    pub captured: Captured,
    /// Counters of every place where a frame can be lost.
    pub counters: Counters,
    /// The emulator's own error.
    pub emulator: EmulatorReport,
    /// Capacity of each of [`ROUTES`] over time.
    pub capacity: Vec<Timeline>,
    /// The loss of capacity, in the run that has one.
    pub shrink: Option<Shrink>,
    /// Who kept the streams' rates; `None` in a run without a pace.
    pub paced_by: Option<String>,
}

/// What all runs have in common.
pub struct Job<'a> {
    /// The network.
    pub net: Net,
    /// The tree to copy.
    pub source: &'a Path,
    /// What it holds.
    pub asked: TreeSize,
    /// Where runs keep their files.
    pub work: &'a Path,
    /// TCP congestion control of every run.
    pub congestion: &'a str,
    /// Whether a person watches.
    pub bars: bool,
}

fn failed(e: impl std::fmt::Display) -> Failure {
    Failure::failed(e.to_string())
}

/// The copy's latest progress and its last words, read by a thread from its output.
#[derive(Default)]
struct Heard {
    progress: ProgressReport,
    errors: Vec<String>,
}

impl Job<'_> {
    /// Does one run.
    pub fn run(&self, kind: Kind) -> Result<Outcome, Failure> {
        let here = self.work.join(kind.name());
        let destination = here.join("tokyo");
        for folder in [&destination, &here.join("state"), &here.join("config")] {
            std::fs::create_dir_all(folder).map_err(|e| failed(format!("{}: {e}", folder.display())))?;
        }
        let topology = Topology::from_toml(&self.net.topology()).map_err(failed)?;
        let ocean = Testbed::up(&topology).map_err(failed)?;
        let places = Places {
            program: std::env::current_exe().map_err(failed)?,
            config: here.join("config"),
            state: here.join("state"),
        };
        let plan = here.join("plan.toml");
        std::fs::write(&plan, self.net.plan()).map_err(failed)?;
        let paced = (kind != Kind::Unpaced).then_some(plan.as_path());
        let _sender = places.serve(&ocean, SENDER, self.source, "127.0.0.1", paced)?;
        let addresses = self.net.receiver_addresses();
        let first = addresses.first().map_or("", String::as_str);
        let _receiver = places.serve(&ocean, RECEIVER, &destination, first, None)?;
        data::drop_caches(self.source).map_err(|e| failed(format!("dropping caches: {e}")))?;

        if paced.is_some() {
            places.await_plan(&ocean, SENDER)?;
        }
        let shrinking = (kind == Kind::CapacityLoss).then_some(SHRINKING);
        let classes = paced
            .map(|_| Classes::new(&ocean, &self.net, shrinking))
            .transpose()?;
        // The run says itself whether the machine disturbed it.
        kuroshio_clock::wait_for_quiet(isolate::emulator_core(), QUIET_FOR, QUIET_LIMIT).map_err(failed)?;
        let names: Vec<String> = ports().map(|(_, _, name)| format!("{RECEIVER}/{name}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let capture = ocean.capture(&names).map_err(failed)?;
        ocean.begin().map_err(failed)?;
        let watched = self.copy(kind, &ocean, &places, &addresses)?;
        let paced_by = classes.as_ref().map(|c| c.paced_by.clone());
        drop(classes);
        let captured = capture.stop().map_err(failed)?;
        let counters = ocean.counters().map_err(failed)?;
        let emulator = ocean.down().map_err(failed)?;
        let files_verified = data::verify(self.source, &destination).map_err(failed)?;
        std::fs::remove_dir_all(&here).map_err(failed)?;
        Ok(Outcome {
            kind,
            finished: watched.finished,
            seconds: watched.seconds,
            asked: self.asked,
            files_verified,
            copy: watched.report,
            progress: watched.progress,
            captured,
            counters,
            emulator,
            capacity: watched.capacity,
            shrink: watched.shrink,
            paced_by,
        })
    }

    fn copy(
        &self,
        kind: Kind,
        ocean: &Testbed,
        places: &Places,
        addresses: &[String],
    ) -> Result<Watched, Failure> {
        let mut command = places.command(ocean, SENDER)?;
        command.args([
            "cp",
            "--json",
            "--streams",
            STREAMS_PER_PORT,
            "--congestion",
            self.congestion,
            "--via",
            &addresses.join(","),
        ]);
        command.args([format!("{SENDER}:/"), format!("{RECEIVER}:/")]);
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| failed(format!("kuroshio cp: {e}")))?;
        let mut child = Running(child);
        let heard = Arc::new(Mutex::new(Heard::default()));
        let trace = self
            .work
            .with_file_name(format!("{}.progress.jsonl", kind.name()));
        let trace = std::fs::File::create(&trace).map_err(|e| failed(format!("{}: {e}", trace.display())))?;
        let listener = listen(&mut child.0, Arc::clone(&heard), trace);
        let last_words = child
            .0
            .stdout
            .take()
            .map(|out| std::thread::spawn(move || last_line(out)));
        let mut watch = Watch::new(self, kind, ocean, places);
        let finished = watch.until_done(&mut child.0, &heard)?;
        if let Some(thread) = listener {
            let _ = thread.join();
        }
        let report = last_words
            .and_then(|t| t.join().ok())
            .and_then(|line| serde_json::from_str(&line).ok());
        let heard = std::mem::take(&mut *heard.lock().unwrap_or_else(|e| e.into_inner()));
        if !finished && kind != Kind::Unpaced {
            return Err(failed(format!(
                "the {} copy failed: {}",
                kind.name(),
                heard.errors.join("; ")
            )));
        }
        Ok(Watched {
            finished,
            seconds: watch.begun.elapsed().as_secs_f64(),
            report: report.unwrap_or_default(),
            progress: heard.progress,
            capacity: std::mem::take(&mut watch.capacity),
            shrink: watch.shrink,
        })
    }
}

struct Watched {
    finished: bool,
    seconds: f64,
    report: CopyReport,
    progress: ProgressReport,
    capacity: Vec<Timeline>,
    shrink: Option<Shrink>,
}

/// Reads progress from the copy's standard error until it ends; every line also goes to `trace`.
fn listen(
    child: &mut Child,
    heard: Arc<Mutex<Heard>>,
    mut trace: std::fs::File,
) -> Option<std::thread::JoinHandle<()>> {
    let err = child.stderr.take()?;
    Some(std::thread::spawn(move || {
        for line in BufReader::new(err).lines().map_while(Result::ok) {
            // A full disk ends the copy itself; the trace is no reason to.
            let _ = writeln!(trace, "{line}");
            let mut heard = heard.lock().unwrap_or_else(|e| e.into_inner());
            match serde_json::from_str::<CopyLine>(&line) {
                Ok(CopyLine::Progress(progress)) => heard.progress = progress,
                Ok(_) => {}
                Err(_) => heard.errors.push(line),
            }
        }
    }))
}

fn last_line(out: impl std::io::Read) -> String {
    BufReader::new(out)
        .lines()
        .map_while(Result::ok)
        .last()
        .unwrap_or_default()
}

/// Looks after a running copy: progress, the time limit, the route that shrinks.
struct Watch<'a> {
    job: &'a Job<'a>,
    kind: Kind,
    ocean: &'a Testbed,
    places: &'a Places,
    begun: Instant,
    bar: ProgressBar,
    capacity: Vec<Timeline>,
    shrink: Option<Shrink>,
}

impl<'a> Watch<'a> {
    fn new(job: &'a Job<'a>, kind: Kind, ocean: &'a Testbed, places: &'a Places) -> Self {
        let bar = if job.bars {
            ProgressBar::new(job.asked.bytes)
        } else {
            ProgressBar::hidden()
        };
        let template = "{prefix:14} {bar:32} {bytes:>10}/{total_bytes} durable  {msg}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_prefix(kind.name());
        let capacity = ROUTES
            .iter()
            .map(|r| Timeline::constant(job.net.capacity(r).bps()))
            .collect();
        Self {
            job,
            kind,
            ocean,
            places,
            begun: Instant::now(),
            bar,
            capacity,
            shrink: None,
        }
    }

    /// Waits for the copy; `false` when it was ended or failed.
    fn until_done(&mut self, child: &mut Child, heard: &Mutex<Heard>) -> Result<bool, Failure> {
        let limit = if self.kind == Kind::Unpaced {
            UNPACED_LIMIT
        } else {
            PACED_LIMIT
        };
        loop {
            if let Some(status) = child.try_wait().map_err(failed)? {
                self.bar.finish();
                return Ok(status.success());
            }
            if self.begun.elapsed() >= limit {
                self.bar
                    .abandon_with_message(format!("ended after {} s", limit.as_secs()));
                let _ = child.kill();
                let _ = child.wait();
                return Ok(false);
            }
            self.show(&heard.lock().unwrap_or_else(|e| e.into_inner()).progress);
            if self.kind == Kind::CapacityLoss {
                self.shrink()?;
            }
            std::thread::sleep(TICK);
        }
    }

    fn show(&self, progress: &ProgressReport) {
        self.bar.set_position(progress.bytes_durable);
        let mbps = progress.goodput_bps as f64 / 1e6;
        let eta = progress
            .eta_seconds
            .map_or(String::new(), |s| format!("  ETA {s} s"));
        self.bar.set_message(format!(
            "{mbps:.0} Mbps goodput, limited by {}{eta}",
            progress.limited_by
        ));
    }

    /// Half-way the route shrinks; later the plan is told; later still the drops are counted.
    fn shrink(&mut self) -> Result<(), Failure> {
        let route = &ROUTES[SHRINKING];
        let old = self.job.net.capacity(route);
        match &mut self.shrink {
            None => {
                if self.delivered()? * 2 < self.job.asked.bytes {
                    return Ok(());
                }
                let lost = Ratio::new(2, 3)
                    .ok()
                    .and_then(|r| old.checked_mul_ratio(r))
                    .unwrap_or(old);
                self.ocean.set_capacity(route.name, lost).map_err(failed)?;
                let at_ns = now_ns();
                if let Some(Timeline(steps)) = self.capacity.get_mut(SHRINKING) {
                    steps.push(CapacityStep {
                        at_ns,
                        capacity_bps: lost.bps(),
                    });
                }
                std::thread::sleep(TOLD_AFTER);
                let setting = format!("capacity={}bps", lost.bps());
                let told_ns = now_ns();
                self.places.run(
                    self.ocean,
                    SENDER,
                    &["plan", "set", SENDER, route.name, &setting],
                    "",
                )?;
                self.shrink = Some(Shrink {
                    at_ns,
                    told_ns,
                    dropped_when_settled: None,
                });
            }
            Some(shrink) if shrink.dropped_when_settled.is_none() => {
                if now_ns() >= shrink.told_ns + SETTLED_AFTER.as_nanos() as u64 {
                    let counters = self.ocean.counters().map_err(failed)?;
                    shrink.dropped_when_settled = Some(counters.dropped_frames());
                }
            }
            Some(_) => {}
        }
        Ok(())
    }

    /// Frame-level bytes that the links have delivered towards the receiver.
    fn delivered(&self) -> Result<u64, Failure> {
        let counters = self.ocean.counters().map_err(failed)?;
        let towards = format!(">{RECEIVER}-gw");
        Ok(counters
            .links
            .iter()
            .filter(|l| l.name.ends_with(&towards))
            .map(|l| l.stage.departed.bytes.get())
            .sum())
    }
}
