//! Static pacing in the machine: what the test wire's stamps say.
//!
//! ```text
//! place of frame n  = start of the first + n * frame bits / rate
//! error             = start - place, in bytes of the wire
//! ```
//!
//! Every frame has the same size and the queue is never empty, so any window of the wire holds at most its share and one
//! frame exactly where no frame starts before its place.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::tree::{self, Tree};
use super::{Ran, VmError, numbers, read, static_rate_bps};
use crate::check::{Check, CheckSpec};
use crate::experiment::Experiment;
use crate::trace::{Frame, Stream, Trace, peak_in_any_window};

/// Wall seconds that the machine may take.
const LIMIT_S: u64 = 7_200;
/// Frames of the test: MAC header to FCS, and what of it is payload of UDP.
const FRAME: u64 = 1_518;
const PAYLOAD: u32 = 1_472;
/// Bits of a byte times ps of a second.
const PS_BITS: i128 = 8_000_000_000_000;
/// The test wire: ps per byte at 1 Gbps.
const PS_PER_BYTE: f64 = 8_000.0;

/// The test's qdiscs beside gap frames, as they are called in figures.
const BESIDE: [(&str, &str); 3] = [("psp-timer", "psp timer"), ("fq", "fq"), ("tbf", "tbf")];

/// Stamps of one target: starts in ps, and the wire's counters.
struct Stamps {
    starts_ps: Vec<u64>,
    holes: u64,
    gap_frames: u64,
}

pub(super) fn run(
    e: &Experiment,
    tree: &Tree,
    work: &Path,
    say: &mut dyn FnMut(&str),
) -> Result<(Vec<Ran>, Vec<Check>), VmError> {
    say(&format!("{}: virtual machine, every target in one boot", e.name));
    let name = e.name.clone();
    let code = tree.test("range", work, LIMIT_S, &mut |now| say(&format!("{name}: {now}")))?;
    // 1 is a bound of its own table that does not hold: the checks here say which.
    if code > 1 {
        return Err(tree::problem("kernel/test/run range", work, code));
    }
    let mut all = Vec::new();
    for p in e.phases.iter().filter(|p| p.vm.is_some()) {
        let rate_bps = static_rate_bps(p).unwrap_or(0);
        let stamps = stamps(work, &format!("psp-gap-{rate_bps}")).map_err(|m| {
            VmError::Failed(format!(
                "{m}; {}",
                tree::problem("kernel/test/run range", work, code)
            ))
        })?;
        all.push(figures(e, &p.name, rate_bps, &stamps));
        for (file, called) in BESIDE {
            let file = format!("{file}-{rate_bps}");
            if work.join(format!("{file}.log")).is_file() {
                let stamps = self::stamps(work, &file)?;
                all.push(figures(e, &format!("{called} {}", p.name), rate_bps, &stamps));
            }
        }
    }
    Ok((all, Vec::new()))
}

fn stamps(work: &Path, file: &str) -> Result<Stamps, VmError> {
    let log = work.join(format!("{file}.log"));
    let starts_ps = starts(&read(&log)?).map_err(|m| VmError::Failed(format!("{}: {m}", log.display())))?;
    let counters = read(&work.join(format!("{file}.txt")))?;
    let counter = |name: &str| {
        let line = counters
            .lines()
            .find_map(|l| l.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
    };
    Ok(Stamps {
        starts_ps,
        holes: counter("holes"),
        gap_frames: counter("pause_frames"),
    })
}

/// The starts of a log of "start_ps frame_bytes"; every frame must be full.
fn starts(text: &str) -> Result<Vec<u64>, String> {
    let mut starts = Vec::new();
    for (n, line) in text.lines().enumerate() {
        match numbers(line).as_deref() {
            Some([start, FRAME]) if starts.last().is_none_or(|last| last < start) => starts.push(*start),
            _ => {
                return Err(format!(
                    "line {}: want rising \"start_ps {FRAME}\", not {line:?}",
                    n + 1
                ));
            }
        }
    }
    match starts.len() {
        0 | 1 => Err("fewer than two frames".into()),
        _ => Ok(starts),
    }
}

/// Least and greatest distance of a start from its place, bytes of the wire.
fn place_errors(starts_ps: &[u64], rate_bps: u64) -> (f64, f64) {
    let first = starts_ps.first().copied().unwrap_or(0);
    let errors = starts_ps.iter().enumerate().map(|(n, start)| {
        let behind = i128::from(start - first) * i128::from(rate_bps);
        let due = n as i128 * i128::from(FRAME) * PS_BITS;
        (behind - due) as f64 / rate_bps.max(1) as f64 / PS_PER_BYTE
    });
    errors.fold((0.0, 0.0), |(low, high), e| (f64::min(low, e), f64::max(high, e)))
}

fn figures(e: &Experiment, phase: &str, rate_bps: u64, s: &Stamps) -> Ran {
    let first = s.starts_ps.first().copied().unwrap_or(0);
    let last = s.starts_ps.last().copied().unwrap_or(0);
    let count = s.starts_ps.len() as u64;
    let frames: Vec<Frame> = s
        .starts_ps
        .iter()
        .map(|start| Frame {
            t_ns: i64::try_from((start - first) / 1_000).unwrap_or(i64::MAX),
            frame: FRAME as u32,
            payload: PAYLOAD,
        })
        .collect();
    let events: Vec<(i64, u64)> = s
        .starts_ps
        .iter()
        .map(|start| (i64::try_from(start - first).unwrap_or(i64::MAX), FRAME))
        .collect();
    let widths = e.checks.iter().filter_map(CheckSpec::scheduled_width);
    let scheduled_peaks = widths
        .filter(|(of, _)| *of == phase)
        .map(|(_, w)| (w, peak_in_any_window(&events, w.saturating_mul(1_000))))
        .collect();
    let error = place_errors(&s.starts_ps, rate_bps);
    let trace = Trace {
        phase: phase.into(),
        // As long as the frames take at their own rate.
        duration_ns: (last - first) / 1_000 * count / (count - 1).max(1),
        streams: vec![Stream {
            name: "stream".into(),
            frames,
        }],
        scheduled_peaks,
        place_error_bytes: Some(error),
        ..Trace::default()
    };
    let mut m = Map::new();
    m.insert("target_bps".into(), json!(rate_bps));
    m.insert("wire_distance_bytes".into(), distances(&s.starts_ps, rate_bps));
    m.insert("place_error_least_bytes".into(), json!(error.0));
    m.insert("place_error_most_bytes".into(), json!(error.1));
    m.insert("wire_holes".into(), json!(s.holes));
    m.insert("gap_frames".into(), json!(s.gap_frames));
    Ran {
        trace,
        sent: Vec::new(),
        figures: m,
    }
}

/// Distances from start to start: what is due, and the quantiles of what was.
fn distances(starts_ps: &[u64], rate_bps: u64) -> Value {
    let mut all: Vec<u64> = starts_ps.windows(2).map(|pair| pair[1] - pair[0]).collect();
    all.sort_unstable();
    let at = |share: f64| {
        let rank = ((share * all.len() as f64) as usize).min(all.len().saturating_sub(1));
        all.get(rank).copied().unwrap_or(0) as f64 / PS_PER_BYTE
    };
    let due = FRAME as f64 * PS_BITS as f64 / rate_bps.max(1) as f64 / PS_PER_BYTE;
    json!({ "due": due, "least": at(0.0), "p01": at(0.01), "p50": at(0.5), "p99": at(0.99), "most": at(1.0) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_that_is_a_byte_late_is_seen() {
        // 500 Mbps: 3,036 bytes of the wire, 24,288,000 ps.
        let due = 24_288_000;
        let exact: Vec<u64> = (0..10).map(|n| 7 + n * due).collect();
        assert_eq!(place_errors(&exact, 500_000_000), (0.0, 0.0));
        let mut late = exact.clone();
        late[4] += 8_000;
        assert_eq!(place_errors(&late, 500_000_000), (0.0, 1.0));
        let mut early = exact;
        early[9] -= 16_000;
        assert_eq!(place_errors(&early, 500_000_000), (-2.0, 0.0));
    }

    #[test]
    fn a_log_is_read_and_what_is_none_is_refused() {
        assert_eq!(starts("5 1518\n12 1518\n").expect("a log"), [5, 12]);
        for (text, says) in [
            ("", "fewer"),
            ("5 1518\n", "fewer"),
            ("5 1518\n12 64\n", "line 2"),
            ("5 1518\n5 1518\n", "line 2"),
            ("five 1518\n", "line 1"),
            ("5 1518 3\n", "line 1"),
        ] {
            let e = starts(text).expect_err(text);
            assert!(e.contains(says), "{text}: {e}");
        }
    }

    #[test]
    fn distances_are_those_of_neighbours() {
        let d = distances(&[0, 8_000, 32_000], 1_000_000_000);
        assert_eq!((d["least"].as_f64(), d["most"].as_f64()), (Some(1.0), Some(3.0)));
        assert_eq!(d["due"].as_f64(), Some(1518.0));
    }
}
