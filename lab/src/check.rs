//! What must hold, evaluated on the traces of a run.
//!
//! A check reads one phase's [`Trace`] (or two), computes one number and compares it with its bound.
//! Bounds are inclusive. A check that finds no data fails: nothing measured is nothing shown.

use serde::{Deserialize, Serialize};

use crate::experiment::{Level, Mode, Span};
use crate::trace::{Drops, Trace, mbps};

/// Stands for every phase where dropped frames are counted.
pub const EVERY_PHASE: &str = "*";

/// A start is a whole number of ps: so early it may be, bytes of the wire.
const EARLY_BYTES: f64 = 0.001;

/// A check as it stands in an experiment file.
#[derive(Debug, Clone, Deserialize)]
pub struct CheckSpec {
    /// Name in results.
    pub name: String,
    /// The bound in words, with its unit.
    pub bound: String,
    /// The mode it is for; for every mode when it says nothing.
    #[serde(default)]
    pub mode: Option<Mode>,
    /// What is compared.
    #[serde(flatten)]
    pub what: What,
}

/// Where dropped frames are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// The routers' queues.
    Routers,
    /// The routers' and the shapers' queues, the ports and the receivers' cards.
    Everywhere,
}

/// The quantity a check compares.
#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum What {
    /// Frames dropped in a phase.
    Drops {
        /// Phase; [`EVERY_PHASE`] for all together.
        phase: String,
        /// Where.
        place: Place,
        /// Only at this link, both directions, or this direction, `link:from>to`.
        #[serde(default)]
        link: Option<String>,
        /// Least number allowed.
        #[serde(default)]
        at_least: Option<u64>,
        /// Greatest number allowed.
        #[serde(default)]
        at_most: Option<u64>,
    },
    /// Mean rate of the sum in a phase.
    Mean {
        /// Phase.
        phase: String,
        /// Bytes counted.
        level: Level,
        /// From.
        from: Span,
        /// To.
        to: Span,
        /// Least rate, Mbps.
        #[serde(default)]
        at_least_mbps: Option<f64>,
        /// Greatest rate, Mbps.
        #[serde(default)]
        at_most_mbps: Option<f64>,
    },
    /// Mean rate of the sum in a phase against another phase's, same time.
    MeanShare {
        /// Phase.
        phase: String,
        /// The phase that counts as one.
        of: String,
        /// Bytes counted.
        level: Level,
        /// From.
        from: Span,
        /// To.
        to: Span,
        /// Least share.
        #[serde(default)]
        at_least: Option<f64>,
        /// Greatest share.
        #[serde(default)]
        at_most: Option<f64>,
    },
    /// Share of windows of the sum whose rate lies in a range.
    WindowsInRange {
        /// Phase.
        phase: String,
        /// Bytes counted.
        level: Level,
        /// Width.
        width: Span,
        /// From.
        from: Span,
        /// To.
        to: Span,
        /// Lowest rate, Mbps.
        low_mbps: f64,
        /// Highest rate, Mbps.
        high_mbps: f64,
        /// Least share of windows.
        share: f64,
    },
    /// Largest distance of a window's bytes from the mean of all windows, relative.
    WindowsNearMean {
        /// Phase.
        phase: String,
        /// Bytes counted.
        level: Level,
        /// Width.
        width: Span,
        /// From.
        from: Span,
        /// To.
        to: Span,
        /// Greatest relative distance.
        within: f64,
    },
    /// Largest window over the mean.
    WindowPeak {
        /// Phase.
        phase: String,
        /// Bytes counted.
        level: Level,
        /// Width.
        width: Span,
        /// From.
        from: Span,
        /// To.
        to: Span,
        /// Least ratio of the largest window to the mean.
        times_mean: f64,
    },
    /// Rate of all streams at frame level from the first frame's start to the last one's.
    PacedRate {
        /// Phase.
        phase: String,
        /// The rate, Mbps.
        mbps: f64,
        /// Greatest relative distance from it.
        within: f64,
    },
    /// Time until the rate is full: the start of the first window that has its share of the final mean.
    Rise(crate::check_tcp::Rise),
    /// The buffer from which on the rate is full, against three times bandwidth times delay.
    Knee(crate::check_tcp::Knee),
    /// Processor time of an end of the first flow.
    Cpu(crate::check_tcp::Cpu),
    /// How much longer the smoothed round trip is at the end than the least one.
    RttGrowth(crate::check_tcp::RttGrowth),
    /// Most frame bytes of all streams that left the shapers in any window, by scheduled stamps.
    ScheduledPeak {
        /// Phase.
        phase: String,
        /// Width.
        width: Span,
        /// Greatest number of bytes.
        at_most_bytes: u64,
    },
    /// How far frames of a paced stream started from their places on the wire (virtual machine).
    Place {
        /// Phase.
        phase: String,
        /// Greatest distance, bytes of the wire; a start that is too early by more than its rounding fails always.
        within_bytes: f64,
    },
    /// How often a window was cut in a phase (simulator).
    Cuts {
        /// Phase.
        phase: String,
        /// Those alone that came in slow start after an earlier cut.
        #[serde(default)]
        in_later_slow_start: bool,
        /// Least number.
        #[serde(default)]
        at_least: Option<u64>,
        /// Greatest number.
        #[serde(default)]
        at_most: Option<u64>,
    },
    /// The lowest window that the congestion control searched for after a cut in a phase, against the one
    /// after the first cut (simulator).
    TargetKept {
        /// Phase.
        phase: String,
        /// Least share.
        #[serde(default)]
        at_least: Option<f64>,
        /// Greatest share.
        #[serde(default)]
        at_most: Option<f64>,
    },
}

/// A check's outcome.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// Name.
    pub name: String,
    /// The bound, with its unit.
    pub bound: String,
    /// The measured value, with its unit.
    pub value: String,
    /// Whether it holds.
    pub ok: bool,
}

impl CheckSpec {
    /// Whether the check is for a mode.
    pub fn is_for(&self, mode: Mode) -> bool {
        self.mode.is_none_or(|only| only == mode)
    }

    /// The phases the check reads.
    pub fn phases(&self) -> Vec<&str> {
        match &self.what {
            What::Drops { phase, .. }
            | What::Mean { phase, .. }
            | What::WindowsInRange { phase, .. }
            | What::WindowsNearMean { phase, .. }
            | What::WindowPeak { phase, .. }
            | What::PacedRate { phase, .. }
            | What::ScheduledPeak { phase, .. }
            | What::Place { phase, .. }
            | What::Cuts { phase, .. }
            | What::TargetKept { phase, .. } => vec![phase],
            What::MeanShare { phase, of, .. } => vec![phase, of],
            What::Rise(rise) => vec![&rise.phase],
            What::Cpu(cpu) => vec![&cpu.phase],
            What::RttGrowth(growth) => vec![&growth.phase],
            What::Knee(_) => Vec::new(),
        }
    }

    /// The width of the scheduled windows it needs, if any, and the phase.
    pub fn scheduled_width(&self) -> Option<(&str, u64)> {
        match &self.what {
            What::ScheduledPeak { phase, width, .. } => Some((phase, width.ns())),
            _ => None,
        }
    }

    /// Refuses a check that could not fail or has an empty time.
    ///
    /// # Errors
    /// What is missing.
    pub fn validate(&self) -> Result<(), String> {
        let (width, from, to) = match &self.what {
            What::TargetKept {
                at_least: None,
                at_most: None,
                ..
            } => return Err("want at_least or at_most".into()),
            What::TargetKept { .. } => return Ok(()),
            What::Drops {
                at_least, at_most, ..
            }
            | What::Cuts {
                at_least, at_most, ..
            } => {
                return match (at_least, at_most) {
                    (None, None) => Err("want at_least or at_most".into()),
                    (Some(0), None) => Err("at_least = 0 holds always".into()),
                    _ => Ok(()),
                };
            }
            What::Mean {
                at_least_mbps: None,
                at_most_mbps: None,
                ..
            } => {
                return Err("want at_least_mbps or at_most_mbps".into());
            }
            What::MeanShare {
                at_least: None,
                at_most: None,
                ..
            } => return Err("want at_least or at_most".into()),
            What::Place { within_bytes, .. } => {
                return match *within_bytes > 0.0 {
                    true => Ok(()),
                    false => Err("want within_bytes above zero".into()),
                };
            }
            What::Rise(rise) => return rise.validate(),
            What::Cpu(cpu) => return cpu.validate(),
            What::Knee(knee) => return knee.validate(),
            What::RttGrowth(growth) => return growth.validate(),
            What::PacedRate { mbps, within, .. } => {
                return match *mbps > 0.0 && *within > 0.0 {
                    true => Ok(()),
                    false => Err("want mbps and within above zero".into()),
                };
            }
            What::ScheduledPeak { width, .. } => (width.ns(), 0, u64::MAX),
            What::Mean { from, to, .. } | What::MeanShare { from, to, .. } => (1, from.ns(), to.ns()),
            What::WindowsInRange { width, from, to, .. }
            | What::WindowsNearMean { width, from, to, .. }
            | What::WindowPeak { width, from, to, .. } => (width.ns(), from.ns(), to.ns()),
        };
        if width == 0 || to <= from || to - from < width {
            return Err("want a width above zero and at least one window between from and to".into());
        }
        Ok(())
    }

    /// Evaluates the check.
    pub fn evaluate(&self, traces: &[Trace]) -> Check {
        let (value, ok) = self.what.measure(traces).unwrap_or(("no data".into(), false));
        Check {
            name: self.name.clone(),
            bound: self.bound.clone(),
            value,
            ok,
        }
    }
}

fn find<'a>(traces: &'a [Trace], phase: &str) -> Option<&'a Trace> {
    traces.iter().find(|t| t.phase == phase)
}

/// Frames dropped in a phase or in all, and the same in words.
fn dropped(traces: &[Trace], phase: &str, place: Place, link: Option<&str>) -> Option<(u64, String)> {
    let wanted = |t: &&Trace| phase == EVERY_PHASE || t.phase == phase;
    let traces: Vec<&Trace> = traces.iter().filter(wanted).collect();
    traces.first()?;
    if let Some(link) = link {
        let is = |name: &str| name == link || name.split(':').next() == Some(link);
        let lists = traces.iter().flat_map(|t| &t.link_drops);
        let found: Vec<u64> = lists.filter(|(name, _)| is(name)).map(|(_, n)| *n).collect();
        found.first()?;
        let n = found.iter().sum();
        return Some((n, format!("{n} frames at {link}")));
    }
    let sum = |part: fn(&Drops) -> u64| traces.iter().map(|t| part(&t.drops)).sum::<u64>();
    let (routers, shapers) = (sum(|d| d.routers), sum(|d| d.shapers));
    let (ports, cards) = (sum(|d| d.ports), sum(|d| d.cards));
    let n = match place {
        Place::Routers => routers,
        Place::Everywhere => routers + shapers + ports + cards,
    };
    let mut words = format!("{n} frames (routers {routers}, shapers {shapers}, ports {ports}");
    if cards > 0 {
        words.push_str(&format!(", receivers' cards {cards}"));
    }
    words.push(')');
    Some((n, words))
}

/// The end of a mean: as it says, or of a phase that was made shorter.
fn ended(t: &Trace, to: &Span) -> u64 {
    to.ns().min(t.duration_ns)
}

/// The windows of the sum, their mean in bytes; none when there is no data.
fn windows(t: &Trace, level: Level, width: &Span, from: &Span, to: &Span) -> Option<(Vec<u64>, f64)> {
    let w = t.sum_windows(level, width.ns(), from.ns(), to.ns());
    let sum: u64 = w.iter().sum();
    if w.is_empty() || sum == 0 {
        return None;
    }
    let mean = sum as f64 / w.len() as f64;
    Some((w, mean))
}

impl What {
    /// The measured value in words and whether it holds; none without data.
    fn measure(&self, traces: &[Trace]) -> Option<(String, bool)> {
        match self {
            What::Drops {
                phase,
                place,
                link,
                at_least,
                at_most,
            } => {
                let (n, words) = dropped(traces, phase, *place, link.as_deref())?;
                let ok = at_least.is_none_or(|m| n >= m) && at_most.is_none_or(|m| n <= m);
                Some((words, ok))
            }
            What::Mean {
                phase,
                level,
                from,
                to,
                at_least_mbps,
                at_most_mbps,
            } => {
                let t = find(traces, phase)?;
                let v = t.mean_mbps(*level, from.ns(), ended(t, to));
                let ok =
                    v > 0.0 && at_least_mbps.is_none_or(|m| v >= m) && at_most_mbps.is_none_or(|m| v <= m);
                Some((format!("{v:.3} Mbps"), ok))
            }
            What::MeanShare {
                phase,
                of,
                level,
                from,
                to,
                at_least,
                at_most,
            } => {
                let mean = |phase| {
                    let t = find(traces, phase)?;
                    Some(t.mean_mbps(*level, from.ns(), ended(t, to)))
                };
                let (v, whole) = (mean(phase)?, mean(of)?);
                if whole <= 0.0 || v <= 0.0 {
                    return None;
                }
                let share = v / whole;
                Some((
                    format!("{v:.1} of {whole:.1} Mbps = {share:.4}"),
                    at_least.is_none_or(|m| share >= m) && at_most.is_none_or(|m| share <= m),
                ))
            }
            What::WindowsInRange {
                phase,
                level,
                width,
                from,
                to,
                low_mbps,
                high_mbps,
                share,
            } => {
                let (w, _) = windows(find(traces, phase)?, *level, width, from, to)?;
                let inside = w
                    .iter()
                    .filter(|b| (*low_mbps..=*high_mbps).contains(&mbps(**b, width.ns())))
                    .count();
                let v = inside as f64 / w.len() as f64;
                let low = mbps(w.iter().copied().min()?, width.ns());
                let high = mbps(w.iter().copied().max()?, width.ns());
                Some((
                    format!(
                        "{:.1} % of {} windows; lowest {low:.2}, highest {high:.2} Mbps",
                        v * 100.0,
                        w.len()
                    ),
                    v >= *share,
                ))
            }
            What::WindowsNearMean {
                phase,
                level,
                width,
                from,
                to,
                within,
            } => {
                let (w, mean) = windows(find(traces, phase)?, *level, width, from, to)?;
                let far = |b: &u64| (*b as f64 - mean).abs() / mean;
                let worst = w.iter().map(far).fold(0.0, f64::max);
                let out = w.iter().filter(|b| far(b) > *within).count();
                Some((
                    format!(
                        "{:.2} % at most; {out} of {} windows outside; mean {:.2} Mbps",
                        worst * 100.0,
                        w.len(),
                        mean * 8e3 / width.ns().max(1) as f64
                    ),
                    worst <= *within,
                ))
            }
            What::WindowPeak {
                phase,
                level,
                width,
                from,
                to,
                times_mean,
            } => {
                let (w, mean) = windows(find(traces, phase)?, *level, width, from, to)?;
                let top = w.iter().copied().max()? as f64;
                let v = top / mean;
                Some((
                    format!(
                        "{v:.2} times the mean ({:.0} of {:.1} Mbps)",
                        top * 8e3 / width.ns().max(1) as f64,
                        mean * 8e3 / width.ns().max(1) as f64
                    ),
                    v >= *times_mean,
                ))
            }
            What::PacedRate {
                phase,
                mbps: wanted,
                within,
            } => {
                let (v, frames) = find(traces, phase)?.paced_mbps()?;
                let off = (v / wanted - 1.0).abs();
                Some((
                    format!("{v:.6} Mbps over {frames} frames, {:.4} % off", off * 100.0),
                    off <= *within,
                ))
            }
            What::Rise(rise) => rise.measure(find(traces, &rise.phase)?),
            What::Cpu(cpu) => cpu.measure(find(traces, &cpu.phase)?),
            What::Knee(knee) => knee.measure(traces),
            What::RttGrowth(growth) => growth.measure(find(traces, &growth.phase)?),
            What::Cuts {
                phase,
                in_later_slow_start,
                at_least,
                at_most,
            } => {
                let t = find(traces, phase)?;
                let cuts = t.cuts.iter().enumerate();
                let counted: Vec<String> = cuts
                    .filter(|(i, c)| !in_later_slow_start || (*i > 0 && c.in_slow_start))
                    .map(|(_, c)| format!("{:.1} s at {} segments", c.t_ms as f64 / 1e3, c.cwnd_segments))
                    .collect();
                let n = counted.len() as u64;
                let ok = t.streams.iter().any(|s| !s.frames.is_empty())
                    && at_least.is_none_or(|m| n >= m)
                    && at_most.is_none_or(|m| n <= m);
                let first = counted.get(..3).unwrap_or(&counted).join(", ");
                Some((format!("{n} of {} cuts: {first}", t.cuts.len()), ok))
            }
            What::TargetKept {
                phase,
                at_least,
                at_most,
            } => {
                let cuts = &find(traces, phase)?.cuts;
                let first = f64::from(cuts.first()?.target_segments);
                let least = f64::from(cuts.iter().map(|c| c.target_segments).min()?);
                let share = least / first;
                Some((
                    format!("{least} of {first} segments = {share:.3}"),
                    first > 0.0 && at_least.is_none_or(|m| share >= m) && at_most.is_none_or(|m| share <= m),
                ))
            }
            What::Place { phase, within_bytes } => {
                let (least, most) = find(traces, phase)?.place_error_bytes?;
                Some((
                    format!("{least:.3} to {most:.3} bytes"),
                    least >= -EARLY_BYTES && most < *within_bytes,
                ))
            }
            What::ScheduledPeak {
                phase,
                width,
                at_most_bytes,
            } => {
                let t = find(traces, phase)?;
                let (_, v) = t
                    .scheduled_peaks
                    .iter()
                    .find(|(w, b)| *w == width.ns() && *b > 0)?;
                Some((format!("{v} bytes"), v <= at_most_bytes))
            }
        }
    }
}
