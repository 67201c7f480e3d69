//! What looks on.

use super::{flow::FlowId, stage::StageId};
use crate::{
    meter::{MeterError, StreamId, Windows},
    units::{FrameBytes, PicoDuration, PicoTime},
};

/// Sees what happens to frames. Every method does nothing unless it is written.
pub trait Observer {
    /// A frame with payload has arrived at its receiver.
    #[inline]
    fn arrived(&mut self, _flow: FlowId, _at: PicoTime, _frame: FrameBytes, _payload: u32) {}

    /// A frame with payload has come to a stage, before it is known whether it has room.
    #[inline]
    fn entered(&mut self, _stage: StageId, _flow: FlowId, _at: PicoTime, _frame: FrameBytes) {}

    /// A frame was refused by a full queue.
    #[inline]
    fn dropped(&mut self, _stage: StageId, _flow: FlowId, _at: PicoTime) {}
}

/// Sees nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Observer for Silent {}

/// Fills windows with the frame bytes that arrive, by flow.
#[derive(Debug, Clone)]
pub struct Meter {
    windows: Windows,
    refused: u64,
}

impl Meter {
    /// Windows of `width` from the start of the run.
    pub fn new(width: PicoDuration) -> Result<Self, MeterError> {
        Ok(Meter {
            windows: Windows::new(width)?,
            refused: 0,
        })
    }

    /// What was metered; the stream's number is the flow's.
    pub fn windows(&self) -> &Windows {
        &self.windows
    }

    /// Frames beyond the meter's limits.
    pub fn refused_frames(&self) -> u64 {
        self.refused
    }
}

impl Observer for Meter {
    #[inline]
    fn arrived(&mut self, flow: FlowId, at: PicoTime, frame: FrameBytes, _payload: u32) {
        if self.windows.add(StreamId(flow.0), at, frame.get()).is_err() {
            self.refused += 1;
        }
    }
}
