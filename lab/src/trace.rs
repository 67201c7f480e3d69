//! What a phase left behind: every captured frame per stream, the counters, the instrument's error.
//!
//! Times count from the start of the phase (the first flow's start at the sender), so that a figure
//! begins where the papers' begin; frames arrive one one-way delay later.

use std::collections::BTreeMap;

use crate::cpu::Ends;
use crate::experiment::Level;

/// One captured frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// When it passed the far port, from the start of the phase; negative before it.
    pub t_ns: i64,
    /// Frame-level bytes.
    pub frame: u32,
    /// Payload bytes.
    pub payload: u32,
}

impl Frame {
    /// Its bytes at a level.
    pub fn bytes(&self, level: Level) -> u64 {
        u64::from(match level {
            Level::Frame => self.frame,
            Level::Goodput => self.payload,
        })
    }
}

/// One stream's frames, by rising time.
#[derive(Debug, Clone, Default)]
pub struct Stream {
    /// Name of the flow.
    pub name: String,
    /// Its frames in the direction of the data.
    pub frames: Vec<Frame>,
}

/// Frames dropped, by place.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Drops {
    /// At the routers' queues (links).
    pub routers: u64,
    /// At the shapers' queues.
    pub shapers: u64,
    /// At the senders' ports.
    pub ports: u64,
    /// At receivers' cards that drain slower than their wire.
    pub cards: u64,
    /// Lost on purpose by a link's loss ratio.
    pub loss: u64,
}

/// A sender's window that was cut (simulator only).
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Cut {
    /// The flow.
    pub stream: String,
    /// When, from the start of the phase.
    pub t_ms: u64,
    /// The window before.
    pub cwnd_segments: u32,
    /// The threshold after.
    pub ssthresh_segments: u32,
    /// The window that the congestion control searches for from now on (`W_max`).
    pub target_segments: u32,
    /// Whether the window was in slow start.
    pub in_slow_start: bool,
    /// Whether the retransmission timer cut it.
    pub timeout: bool,
}

/// A phase's record.
#[derive(Debug, Clone, Default)]
pub struct Trace {
    /// Name of the phase.
    pub phase: String,
    /// How long the flows sent.
    pub duration_ns: u64,
    /// Streams in the order of the flows.
    pub streams: Vec<Stream>,
    /// Frames dropped.
    pub drops: Drops,
    /// Frames that each direction of each link refused, `link:from>to`; of simulated runs.
    pub link_drops: Vec<(String, u64)>,
    /// Width of the bins of which the streams' frames are the sums, ns; 0 when each is a frame.
    pub bin_ns: u64,
    /// Smoothed round-trip time of every TCP stream, us: the least and the last; of simulated runs.
    pub rtts_us: Vec<(u32, u32)>,
    /// Processor time of both ends of every flow; of live runs.
    pub usage: Vec<Ends>,
    /// What the phase of a sweep stands for.
    pub vars: BTreeMap<String, String>,
    /// Most bytes of all streams that left the shapers within any window of the width asked for, by
    /// scheduled stamps: (width in ns, bytes). Empty when the run has no shapers.
    pub scheduled_peaks: Vec<(u64, u64)>,
    /// How far behind their places frames of a paced stream started, bytes of the wire: least (below zero: too early)
    /// and most. Of runs on the virtual machine's wire, which stamps every start.
    pub place_error_bytes: Option<(f64, f64)>,
    /// The senders' windows that were cut, by rising time (simulator only).
    pub cuts: Vec<Cut>,
    /// When routers' and ports' queues dropped frames, by rising time, and how many in that millisecond
    /// (simulator only): at most [`MAX_LOSS_TIMES`] entries, the first ones.
    pub losses_ms: Vec<(u64, u64)>,
}

/// Most milliseconds with losses that a phase's record names.
pub const MAX_LOSS_TIMES: usize = 10_000;
/// Most cuts that a phase's record names.
pub const MAX_CUTS: usize = 10_000;

impl Trace {
    /// Bytes of one stream in the whole windows of `width_ns` between `from_ns` and `to_ns`.
    pub fn windows(&self, stream: usize, level: Level, width_ns: u64, from_ns: u64, to_ns: u64) -> Vec<u64> {
        let mut out = vec![0; window_count(width_ns, from_ns, to_ns)];
        if let Some(s) = self.streams.get(stream) {
            add(&mut out, s, level, width_ns, from_ns);
        }
        out
    }

    /// Bytes of all streams in the whole windows of `width_ns` between `from_ns` and `to_ns`.
    pub fn sum_windows(&self, level: Level, width_ns: u64, from_ns: u64, to_ns: u64) -> Vec<u64> {
        let mut out = vec![0; window_count(width_ns, from_ns, to_ns)];
        for s in &self.streams {
            add(&mut out, s, level, width_ns, from_ns);
        }
        out
    }

    /// Mean rate of all streams between `from_ns` and `to_ns`, Mbps.
    pub fn mean_mbps(&self, level: Level, from_ns: u64, to_ns: u64) -> f64 {
        let width = to_ns.saturating_sub(from_ns).max(1);
        let bytes: u64 = self.sum_windows(level, width, from_ns, to_ns).iter().sum();
        mbps(bytes, width)
    }

    /// Frame-level rate of all streams from the first frame to the last, which does not count, and the
    /// number of frames; none with fewer than two.
    pub fn paced_mbps(&self) -> Option<(f64, usize)> {
        let mut frames: Vec<&Frame> = self.streams.iter().flat_map(|s| &s.frames).collect();
        frames.sort_by_key(|f| f.t_ns);
        let (first, last) = (frames.first()?, frames.last()?);
        let time_ns = u64::try_from(last.t_ns - first.t_ns).ok().filter(|t| *t > 0)?;
        let bytes: u64 = frames.iter().map(|f| u64::from(f.frame)).sum();
        Some((mbps(bytes - u64::from(last.frame), time_ns), frames.len()))
    }

    /// Mean rate of one stream between `from_ns` and `to_ns`, Mbps.
    pub fn stream_mean_mbps(&self, stream: usize, level: Level, from_ns: u64, to_ns: u64) -> f64 {
        let width = to_ns.saturating_sub(from_ns).max(1);
        let bytes: u64 = self.windows(stream, level, width, from_ns, to_ns).iter().sum();
        mbps(bytes, width)
    }
}

/// A number of bytes in a time as Mbps.
pub fn mbps(bytes: u64, time_ns: u64) -> f64 {
    bytes as f64 * 8.0 / time_ns.max(1) as f64 * 1e3
}

fn window_count(width_ns: u64, from_ns: u64, to_ns: u64) -> usize {
    usize::try_from(to_ns.saturating_sub(from_ns) / width_ns.max(1)).unwrap_or(0)
}

fn add(out: &mut [u64], s: &Stream, level: Level, width_ns: u64, from_ns: u64) {
    for f in &s.frames {
        let Some(t) = u64::try_from(f.t_ns).ok().and_then(|t| t.checked_sub(from_ns)) else {
            continue;
        };
        let Ok(i) = usize::try_from(t / width_ns.max(1)) else {
            continue;
        };
        if let Some(w) = out.get_mut(i) {
            *w += f.bytes(level);
        }
    }
}

/// Most bytes in any window of `width_ns` that begins with an event: (time, bytes) by rising time,
/// a window being half open.
pub fn peak_in_any_window(events: &[(i64, u64)], width_ns: u64) -> u64 {
    let (mut sum, mut best, mut tail) = (0u64, 0u64, 0usize);
    for (t, b) in events {
        sum += b;
        while let Some((old, bytes)) = events.get(tail) {
            if t.saturating_sub(*old) < i64::try_from(width_ns).unwrap_or(i64::MAX) {
                break;
            }
            sum -= bytes;
            tail += 1;
        }
        best = best.max(sum);
    }
    best
}

/// The value below which `share` (0 to 1) of the sorted values lie (nearest rank); zero when empty.
pub fn quantile(sorted: &[i64], share: f64) -> i64 {
    let n = sorted.len();
    let rank = ((share * n as f64).ceil() as usize).clamp(1, n.max(1));
    sorted.get(rank - 1).copied().unwrap_or(0)
}
