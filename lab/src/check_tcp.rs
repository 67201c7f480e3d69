//! Checks on what a long fat network does to one stream (paper 004).
//!
//! ```text
//! rise     first t with  bytes in [t, t + width) / width >= share * final mean         seconds
//! knee     least buffer with  rate >= share * highest rate, between the swept buffers by a straight line;
//!          expected: 3 * RTT * share * highest rate (payload)                           relative
//! growth   smoothed RTT at the end - least smoothed RTT                                milliseconds
//! ```

use std::collections::BTreeMap;

use kuroshio_core::units::{PicoDuration, parse_bytes};
use serde::Deserialize;

use crate::cpu::Who;
use crate::experiment::{Level, Span};
use crate::trace::{Trace, mbps};

/// Time until the rate is full.
#[derive(Debug, Clone, Deserialize)]
pub struct Rise {
    /// Phase.
    pub phase: String,
    /// Bytes counted.
    pub level: Level,
    /// Width of a window.
    pub width: Span,
    /// How far a window is from the one before.
    pub step: Span,
    /// Share of the final mean that counts as full.
    pub share: f64,
    /// Start of the final mean.
    pub from: Span,
    /// Its end.
    pub to: Span,
    /// Least time, seconds.
    pub at_least_s: f64,
    /// Greatest time, seconds.
    pub at_most_s: f64,
}

impl Rise {
    /// Refuses what could not fail or has no window.
    pub fn validate(&self) -> Result<(), String> {
        let step = self.step.ns();
        if step == 0 || self.width.ns() < step || !self.width.ns().is_multiple_of(step) {
            return Err("want a width that is a multiple of a step above zero".into());
        }
        if self.to.ns() <= self.from.ns() || !(0.0..=1.0).contains(&self.share) || self.share == 0.0 {
            return Err("want a time from before to, and a share above 0 and up to 1".into());
        }
        if self.at_least_s > self.at_most_s {
            return Err("want at_least_s up to at_most_s".into());
        }
        Ok(())
    }

    /// The time in words, and whether it holds.
    pub fn measure(&self, t: &Trace) -> Option<(String, bool)> {
        let full = t.mean_mbps(self.level, self.from.ns(), self.to.ns());
        if full <= 0.0 {
            return None;
        }
        let (step, width) = (self.step.ns(), self.width.ns());
        let pieces = t.sum_windows(self.level, step, 0, t.duration_ns);
        let each = usize::try_from(width / step).ok()?;
        let reached = |w: &[u64]| mbps(w.iter().sum(), width) >= self.share * full;
        let first = pieces.windows(each).position(reached)?;
        let s = first as f64 * step as f64 / 1e9;
        let ok = (self.at_least_s..=self.at_most_s).contains(&s);
        Some((
            format!("{s:.1} s to {:.0} % of {full:.0} Mbps", self.share * 100.0),
            ok,
        ))
    }
}

/// What was swept at one round-trip time.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    /// The round-trip time, seconds.
    pub rtt_s: f64,
    /// Buffer in bytes and goodput in bit/s, by rising buffer.
    pub points: Vec<(f64, f64)>,
}

/// The buffer from which on the rate is full.
#[derive(Debug, Clone, Deserialize)]
pub struct Knee {
    /// The phases of a sweep that are looked at, by their values.
    pub select: BTreeMap<String, String>,
    /// The value that is the round-trip time: one knee for each, 0 left out.
    pub rtt: String,
    /// The value that is the buffer.
    pub buffer: String,
    /// Start of the mean.
    pub from: Span,
    /// Its end.
    pub to: Span,
    /// Share of the highest rate that counts as full.
    pub share: f64,
    /// Greatest relative distance from three times bandwidth times delay.
    pub within: f64,
}

impl Knee {
    /// Refuses what could not fail.
    pub fn validate(&self) -> Result<(), String> {
        let whole =
            self.to.ns() > self.from.ns() && self.within > 0.0 && self.share > 0.0 && self.share <= 1.0;
        match whole {
            true => Ok(()),
            false => Err("want a time, a share above 0 and up to 1, and within above zero".into()),
        }
    }

    /// The selected phases, a curve for every round-trip time above zero; none when a value is missing.
    pub fn points(&self, traces: &[Trace]) -> Option<Vec<Curve>> {
        let mut curves: Vec<Curve> = Vec::new();
        for t in traces {
            if !self.select.iter().all(|(k, v)| t.vars.get(k) == Some(v)) {
                continue;
            }
            let rtt = t.vars.get(&self.rtt)?.parse::<PicoDuration>().ok()?.as_ns() as f64 / 1e9;
            let buffer = parse_bytes(t.vars.get(&self.buffer)?).ok()? as f64;
            let rate = t.mean_mbps(Level::Goodput, self.from.ns(), self.to.ns()) * 1e6;
            match curves.iter_mut().find(|c| c.rtt_s == rtt) {
                Some(curve) => curve.points.push((buffer, rate)),
                None if rtt > 0.0 => curves.push(Curve {
                    rtt_s: rtt,
                    points: vec![(buffer, rate)],
                }),
                None => {}
            }
        }
        for curve in &mut curves {
            curve.points.sort_by(|a, b| a.0.total_cmp(&b.0));
        }
        Some(curves)
    }

    /// The worst knee in words, and whether all hold.
    pub fn measure(&self, traces: &[Trace]) -> Option<(String, bool)> {
        let mut words = Vec::new();
        let mut ok = true;
        for Curve { rtt_s: rtt, points } in self.points(traces)? {
            let top = points.iter().map(|p| p.1).fold(0.0, f64::max);
            let full = self.share * top;
            let expected = 3.0 * rtt * full / 8.0;
            let pair = points.windows(2).find_map(|w| match w {
                [a, b] if a.1 < full && b.1 >= full => Some((*a, *b)),
                _ => None,
            })?;
            let ((b0, r0), (b1, r1)) = pair;
            let knee = b0 + (b1 - b0) * (full - r0) / (r1 - r0);
            let off = knee / expected - 1.0;
            ok &= off.abs() <= self.within;
            words.push(format!(
                "{:.0} ms: {:.1} MB, {:+.1} %",
                rtt * 1e3,
                knee / 1e6,
                off * 100.0
            ));
        }
        (!words.is_empty()).then(|| (words.join("; "), ok))
    }
}

/// Processor time of one end of the first flow, in percent of one processor.
#[derive(Debug, Clone, Deserialize)]
pub struct Cpu {
    /// Phase.
    pub phase: String,
    /// Which end.
    pub who: Who,
    /// From.
    pub from: Span,
    /// To.
    pub to: Span,
    /// Greatest share of the application itself.
    #[serde(default)]
    pub application_at_most_percent: Option<f64>,
    /// Greatest share of the application and of TCP in its calls together.
    #[serde(default)]
    pub together_at_most_percent: Option<f64>,
}

impl Cpu {
    /// Refuses what could not fail.
    pub fn validate(&self) -> Result<(), String> {
        let bounds = [self.application_at_most_percent, self.together_at_most_percent];
        let fails = bounds.iter().flatten().any(|b| *b < 100.0);
        match self.to.ns() > self.from.ns() && fails {
            true => Ok(()),
            false => Err(
                "want a time, and application_at_most_percent or together_at_most_percent below 100".into(),
            ),
        }
    }

    /// The shares in words, and whether they hold; none when nothing was used at all.
    pub fn measure(&self, t: &Trace) -> Option<(String, bool)> {
        let (from, to) = (self.from.ns() / 1_000_000, self.to.ns() / 1_000_000);
        let (user, system) = t.usage.first()?.shares(self.who, from, to)?;
        if user + system <= 0.0 {
            return None;
        }
        let words = format!("application {user:.1} %, TCP in its calls {system:.1} % of a processor");
        let ok = self.application_at_most_percent.is_none_or(|most| user <= most)
            && self
                .together_at_most_percent
                .is_none_or(|most| user + system <= most);
        Some((words, ok))
    }
}

/// How much the round trip grew.
#[derive(Debug, Clone, Deserialize)]
pub struct RttGrowth {
    /// Phase.
    pub phase: String,
    /// Least growth of any stream, ms.
    pub at_least_ms: f64,
    /// Greatest growth of any stream, ms.
    pub at_most_ms: f64,
}

impl RttGrowth {
    /// Refuses bounds that nothing can meet.
    pub fn validate(&self) -> Result<(), String> {
        match self.at_least_ms <= self.at_most_ms {
            true => Ok(()),
            false => Err("want at_least_ms up to at_most_ms".into()),
        }
    }

    /// The growth in words, and whether it holds.
    pub fn measure(&self, t: &Trace) -> Option<(String, bool)> {
        let growths: Vec<(f64, f64)> = t
            .rtts_us
            .iter()
            .map(|(least, last)| (f64::from(*least) / 1e3, f64::from(last - least) / 1e3))
            .collect();
        growths.first()?;
        let ok = growths
            .iter()
            .all(|g| (self.at_least_ms..=self.at_most_ms).contains(&g.1));
        let words = growths
            .iter()
            .map(|(least, more)| format!("{least:.1} ms and {more:.2} ms more"));
        Some((words.collect::<Vec<_>>().join("; "), ok))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::CheckSpec;
    use crate::cpu::{Ends, Usage};
    use crate::trace::{Frame, Stream};

    const S: u64 = 1_000_000_000;

    /// A trace of 100 ms bins with so many bytes in each.
    fn trace(phase: &str, bins: impl Iterator<Item = u32>) -> Trace {
        let frames: Vec<Frame> = bins
            .enumerate()
            .map(|(i, bytes)| Frame {
                t_ns: i as i64 * 100_000_000,
                frame: bytes,
                payload: bytes,
            })
            .collect();
        Trace {
            phase: phase.into(),
            duration_ns: frames.len() as u64 * S / 10,
            streams: vec![Stream {
                name: "s".into(),
                frames,
            }],
            ..Trace::default()
        }
    }

    fn holds(check: &str, traces: &[Trace]) -> (bool, String) {
        let spec: CheckSpec = toml::from_str(&format!("name = 'c'\nbound = 'b'\n{check}")).expect(check);
        spec.validate().expect(check);
        let outcome = spec.evaluate(traces);
        (outcome.ok, outcome.value)
    }

    #[test]
    fn a_rise_ends_with_the_first_full_window() {
        // Nothing for 2 s, then 1000 bytes in every bin: the window from 2.0 s on is the first that is full, and
        // one of 0.95 already at 1.9 s has 9 of 10 bins.
        let t = [trace("p", (0..100).map(|i| if i < 20 { 0 } else { 1_000 }))];
        let rise = |least: f64, most: f64| {
            format!(
                "kind = 'rise'\nphase = 'p'\nlevel = 'goodput'\nwidth = '1s'\nstep = '100ms'\nshare = 0.95\nfrom = '5s'\nto = '10s'\nat_least_s = {least:?}\nat_most_s = {most:?}"
            )
        };
        assert!(holds(&rise(2.0, 2.0), &t).0, "{}", holds(&rise(2.0, 2.0), &t).1);
        assert!(!holds(&rise(2.1, 3.0), &t).0);
        assert!(!holds(&rise(1.0, 1.9), &t).0);
        assert!(
            !holds(&rise(0.0, 9.0), &[trace("p", (0..100).map(|_| 0))]).0,
            "no data"
        );
    }

    #[test]
    fn a_knee_is_where_the_rate_becomes_full() {
        // Rate = buffer / 3 / RTT up to 80 kbit/s (1000 bytes in 100 ms): the knee is at 3 * 0.1 s * 10 kB/s = 3 kB.
        let swept = |factor: f64, rtt: &str| -> Vec<Trace> {
            [1_500u32, 2_400, 2_850, 3_150, 3_600]
                .iter()
                .map(|buffer| {
                    let rate = (f64::from(*buffer) * factor / 3.0).min(1_000.0) as u32;
                    let mut t = trace("p", (0..20).map(|_| rate));
                    let vars = [("ip", "v4"), ("rtt", rtt), ("buffer", &format!("{buffer}B"))];
                    t.vars = vars.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
                    t
                })
                .collect()
        };
        let knee = "kind = 'knee'\nselect = { ip = 'v4' }\nrtt = 'rtt'\nbuffer = 'buffer'\nfrom = '1s'\nto = '2s'\nshare = 0.99\nwithin = 0.05";
        let (ok, value) = holds(knee, &swept(1.0, "100ms"));
        assert!(ok, "{value}");
        assert!(!holds(knee, &swept(1.2, "100ms")).0, "a smaller buffer is enough");
        assert!(!holds(knee, &swept(0.9, "100ms")).0, "a larger buffer is needed");
        assert!(
            !holds(knee, &swept(1.0, "0ms")).0,
            "without delay there is no knee"
        );
        assert!(
            !holds(&knee.replace("v4", "v6"), &swept(1.0, "100ms")).0,
            "none is selected"
        );
    }

    #[test]
    fn growth_and_processor_time_hold_on_both_sides() {
        let growth = "kind = 'rtt-growth'\nphase = 'p'\nat_least_ms = 1.0\nat_most_ms = 5.0";
        let grown = |last| Trace {
            rtts_us: vec![(100_000, last)],
            ..trace("p", 0..1)
        };
        assert!(holds(growth, &[grown(104_000)]).0);
        assert!(!holds(growth, &[grown(100_500)]).0);
        assert!(!holds(growth, &[grown(106_000)]).0);
        assert!(!holds(growth, &[trace("p", 0..1)]).0, "no data");
        let cpu = "kind = 'cpu'\nphase = 'p'\nwho = 'sender'\nfrom = '0s'\nto = '1s'\napplication_at_most_percent = 1.0";
        let used = |user_ms, system_ms| {
            let at = |t_ms, user_ms, system_ms| Usage {
                t_ms,
                user_ms,
                system_ms,
                processors: Vec::new(),
            };
            let sender = vec![at(0, 0, 0), at(1_000, user_ms, system_ms)];
            let receiver = Vec::new();
            Trace {
                usage: vec![Ends { sender, receiver }],
                ..trace("p", 0..1)
            }
        };
        assert!(holds(cpu, &[used(10, 500)]).0);
        assert!(!holds(cpu, &[used(20, 500)]).0);
        assert!(!holds(cpu, &[used(0, 0)]).0, "nothing used is nothing measured");
        let both = cpu.replace("application", "together").replace("1.0", "51.0");
        assert!(holds(&both, &[used(10, 500)]).0);
        assert!(!holds(&both, &[used(20, 500)]).0);
    }

    #[test]
    fn drops_are_told_apart_by_link_and_summed_over_phases() {
        let with = |phase: &str, n| Trace {
            link_drops: vec![("la:us>jp".into(), n), ("ny:us>jp".into(), 7)],
            drops: crate::trace::Drops {
                routers: n + 7,
                cards: 1,
                ..Default::default()
            },
            ..trace(phase, 0..1)
        };
        let traces = [with("a", 0), with("b", 3)];
        let at = |phase: &str, link: &str, most: u64| {
            holds(
                &format!(
                    "kind = 'drops'\nphase = '{phase}'\nplace = 'routers'\nlink = '{link}'\nat_most = {most}"
                ),
                &traces,
            )
        };
        assert!(at("a", "la", 0).0);
        assert!(!at("b", "la", 2).0);
        assert!(at("*", "la:us>jp", 3).0);
        assert!(!at("a", "chi", 9).0, "no such link");
        let all = |most: u64| {
            holds(
                &format!("kind = 'drops'\nphase = '*'\nplace = 'everywhere'\nat_most = {most}"),
                &traces,
            )
            .0
        };
        assert!(all(19));
        assert!(!all(18));
    }
}
