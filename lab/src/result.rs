//! What a run leaves: one JSON object, one CSV trace, one report.

use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::check::Check;
use crate::compare::Compared;
use crate::experiment::Experiment;
use crate::trace::Trace;

/// Largest `run.json` read back.
const MAX_RESULT_BYTES: u64 = 64 << 20;

/// The result of one run of an experiment.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RunResult {
    /// Name of the experiment.
    pub experiment: String,
    /// One line about it.
    pub title: String,
    /// Paper, figure and section.
    pub source: String,
    /// `live`: real TCP in namespaces over the emulator, wall clock; `sim`: virtual time.
    pub mode: String,
    /// Empty for the paper's set-up, else how this run differs: `today`, or the TCP stack asked for.
    #[serde(default)]
    pub variant: String,
    /// `1` at the paper's own size, else a fraction.
    pub scale: String,
    /// When the run began, seconds since 1970.
    pub started_unix_s: u64,
    /// What the paper printed.
    pub paper: Value,
    /// Parameters and where they are from.
    pub settings: Value,
    /// What was measured, by phase; units in names.
    pub measured: Map<String, Value>,
    /// Measured figures beside the paper's.
    #[serde(default)]
    pub compared: Vec<Compared>,
    /// What must hold.
    pub checks: Vec<Check>,
    /// The instrument's own error.
    pub instrument: Instrument,
    /// Whether the machine disturbed the run.
    pub disturbed: bool,
    /// What disturbed it; empty when nothing did.
    pub disturbed_by: String,
    /// Of kuroshio, kernel and compiler.
    pub versions: Versions,
    /// Seed of the emulator's losses.
    pub seed: u64,
    /// Remarks.
    pub notes: Vec<String>,
}

/// Quantiles of an error, nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quantiles {
    /// Half of the values are at most this.
    pub p50_ns: i64,
    /// 99 % are.
    pub p99_ns: i64,
    /// 99.9 % are.
    pub p999_ns: i64,
    /// The largest.
    pub max_ns: i64,
}

impl Quantiles {
    /// Of any values; all zero when there are none.
    pub fn of(mut values: Vec<i64>) -> Self {
        values.sort_unstable();
        let q = |s| crate::trace::quantile(&values, s);
        Self {
            p50_ns: q(0.5),
            p99_ns: q(0.99),
            p999_ns: q(0.999),
            max_ns: q(1.0),
        }
    }
}

/// The error of captured gaps against a known vector of gaps through the same path.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// What was sent.
    pub vector: String,
    /// Gaps compared.
    pub gaps: u64,
    /// Gaps that should have been there.
    pub gaps_expected: u64,
    /// Distance of the captured gap from the sent one.
    pub error: Quantiles,
    /// Histogram: upper end of the bin in nanoseconds, gaps in it; the last bin has no end (0).
    pub histogram: Vec<(u64, u64)>,
    /// Captured time of the whole vector over the sent one, less one, in parts per million.
    pub length_error_ppm: f64,
}

/// How late the emulator's frames left in a phase.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lateness {
    /// Phase.
    pub phase: String,
    /// Departure against schedule.
    pub lateness: Quantiles,
    /// Frames that left the emulator.
    pub frames: u64,
    /// Frames that the emulator could not take or hand over.
    pub not_taken_frames: u64,
    /// Frames that the capture could not keep.
    pub capture_dropped_frames: u64,
    /// Time stolen from the machine while the phase ran.
    pub steal_ns: u64,
    /// Time the emulator's thread waited for its core.
    pub run_delay_ns: u64,
    /// Longest delay of the canary thread.
    pub canary_max_ns: u64,
}

/// The instrument's own error.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Instrument {
    /// Gaps against a known vector.
    pub calibration: Calibration,
    /// Lateness of every phase.
    pub lateness: Vec<Lateness>,
}

/// Versions of what took part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Versions {
    /// This program.
    pub kuroshio: String,
    /// The running kernel.
    pub kernel: String,
    /// The compiler.
    pub rustc: String,
}

impl Versions {
    /// Of this program, here.
    pub fn here() -> Self {
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            kuroshio: env!("CARGO_PKG_VERSION").into(),
            kernel: kernel.trim().into(),
            rustc: env!("KUROSHIO_RUSTC").into(),
        }
    }
}

impl RunResult {
    /// Whether every check holds.
    pub fn all_hold(&self) -> bool {
        self.checks.iter().all(|c| c.ok)
    }

    /// Exit code: 0 when every check holds, 1 when one fails, 3 when the run was disturbed.
    pub fn exit_code(&self) -> u8 {
        match (self.disturbed, self.all_hold()) {
            (true, _) => 3,
            (false, true) => 0,
            (false, false) => 1,
        }
    }

    /// Reads a `run.json`.
    ///
    /// # Errors
    /// When the file cannot be read, is too large or is no such object.
    pub fn read(path: &Path) -> io::Result<Self> {
        let len = fs::metadata(path)?.len();
        let bad = |m: String| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {m}", path.display()));
        if len > MAX_RESULT_BYTES {
            return Err(bad(format!("{len} bytes: at most {MAX_RESULT_BYTES}")));
        }
        serde_json::from_slice(&fs::read(path)?).map_err(|e| bad(e.to_string()))
    }

    /// Writes `run.json` into a run directory.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, dir: &Path) -> io::Result<PathBuf> {
        fs::create_dir_all(dir)?;
        let path = dir.join("run.json");
        let tmp = dir.join(".run.json.part");
        let mut text = serde_json::to_vec_pretty(self).map_err(io::Error::other)?;
        text.push(b'\n');
        fs::write(&tmp, text)?;
        fs::rename(&tmp, &path)?;
        Ok(path)
    }
}

/// Writes `trace.csv`: phase, start of the window, bytes of each stream in it (frame level and
/// payload). Streams that a phase does not have are left empty; a phase that was recorded in wider windows has
/// lines of those.
///
/// # Errors
/// When it cannot be written.
pub fn write_trace(dir: &Path, e: &Experiment, traces: &[Trace], window_ns: u64) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    let mut out = BufWriter::new(fs::File::create(dir.join("trace.csv"))?);
    writeln!(
        out,
        "# {}: bytes per window of {} ns at the far port",
        e.name, window_ns
    )?;
    writeln!(out, "phase,t_ms,stream,frame_bytes,payload_bytes")?;
    for t in traces {
        let window_ns = window_ns.max(t.bin_ns);
        for (i, s) in t.streams.iter().enumerate() {
            let end = t.duration_ns;
            let frame = t.windows(i, crate::experiment::Level::Frame, window_ns, 0, end);
            let payload = t.windows(i, crate::experiment::Level::Goodput, window_ns, 0, end);
            for (n, (f, p)) in frame.iter().zip(&payload).enumerate() {
                let t_ms = n as f64 * window_ns as f64 / 1e6;
                writeln!(out, "{},{t_ms},{},{f},{p}", t.phase, csv(&s.name))?;
            }
        }
    }
    out.flush()
}

fn csv(text: &str) -> String {
    if text.contains(['"', ',', '\n']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.into()
    }
}
