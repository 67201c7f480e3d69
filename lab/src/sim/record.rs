//! What a run in virtual time leaves: every frame at its receiver, and arrivals at the links.

use kuroshio_core::sim::{FlowId, Observer, StageId};
use kuroshio_core::units::{FrameBytes, PicoTime};

use crate::trace::{Frame, MAX_LOSS_TIMES, peak_in_any_window};

/// Longest phase of which every frame is kept; of longer ones the bytes of every [`BIN_NS`].
const FRAMES_UP_TO_NS: u64 = 120_000_000_000;
/// Width of the bins of a long phase.
const BIN_NS: u64 = 2_000_000;

/// Looks on.
pub(super) struct Record {
    /// Frames by flow.
    pub flows: Vec<Vec<Frame>>,
    /// Width of the bins; none keeps every frame.
    bin_ns: Option<u64>,
    /// The first stage that is a link, and the arrivals at each (ps, frame bytes) when they are asked for.
    first_link: usize,
    links: Vec<Vec<(i64, u64)>>,
    /// Milliseconds in which frames were dropped, and how many.
    pub losses_ms: Vec<(u64, u64)>,
}

impl Record {
    /// `bin_ns` is the width asked for; a long phase is binned without being asked.
    pub fn new(flows: usize, duration_ns: u64, bin_ns: Option<u64>, links: Option<(usize, usize)>) -> Self {
        let (first_link, count) = links.unwrap_or((usize::MAX, 0));
        Self {
            flows: vec![Vec::new(); flows],
            bin_ns: bin_ns.or((duration_ns > FRAMES_UP_TO_NS).then_some(BIN_NS)),
            first_link,
            links: vec![Vec::new(); count],
            losses_ms: Vec::new(),
        }
    }

    /// Width of the bins, ns; 0 when every frame is kept.
    pub fn bin_ns(&self) -> u64 {
        self.bin_ns.unwrap_or(0)
    }

    /// Most bytes that came to any one link within any window of a width.
    pub fn peak(&self, width_ns: u64) -> u64 {
        let peak = |list: &Vec<_>| peak_in_any_window(list, width_ns.saturating_mul(1000));
        self.links.iter().map(peak).max().unwrap_or(0)
    }
}

impl Observer for Record {
    fn arrived(&mut self, flow: FlowId, at: PicoTime, frame: FrameBytes, payload: u32) {
        let Some(list) = self.flows.get_mut(flow.0 as usize) else {
            return;
        };
        let mut t = at.as_ns();
        let bytes = u32::try_from(frame.get()).unwrap_or(u32::MAX);
        if let Some(bin_ns) = self.bin_ns {
            t -= t % bin_ns.max(1);
        }
        let t_ns = i64::try_from(t).unwrap_or(i64::MAX);
        match list.last_mut() {
            Some(last) if self.bin_ns.is_some() && last.t_ns == t_ns => {
                last.frame = last.frame.saturating_add(bytes);
                last.payload = last.payload.saturating_add(payload);
            }
            _ => list.push(Frame {
                t_ns,
                frame: bytes,
                payload,
            }),
        }
    }

    fn dropped(&mut self, _stage: StageId, _flow: FlowId, at: PicoTime) {
        let t_ms = at.as_ms();
        let room = self.losses_ms.len() < MAX_LOSS_TIMES;
        match self.losses_ms.last_mut() {
            Some((last, frames)) if *last == t_ms => *frames += 1,
            _ if room => self.losses_ms.push((t_ms, 1)),
            _ => {}
        }
    }

    fn entered(&mut self, stage: StageId, _flow: FlowId, at: PicoTime, frame: FrameBytes) {
        let Some(index) = (stage.0 as usize).checked_sub(self.first_link) else {
            return;
        };
        if let Some(list) = self.links.get_mut(index) {
            list.push((i64::try_from(at.as_ps()).unwrap_or(i64::MAX), frame.get()));
        }
    }
}
