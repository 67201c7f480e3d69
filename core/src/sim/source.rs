//! Frames that come by the clock, whatever becomes of them.
//!
//! During `on` frames of one size are emitted at a rate, during `off` none, and so on from `start`. The time
//! spent sending is counted over the periods, so that the mean over any number of them is exact:
//!
//! ```text
//!   frame k is emitted when k * bits / rate of sending time is over
//! ```

use crate::units::{BitRate, FrameBytes, PicoDuration, PicoTime, TxClock};

/// An on-off source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OnOff {
    /// When it starts.
    pub start: PicoTime,
    /// When it ends.
    pub end: PicoTime,
    /// Frame-level rate while it sends.
    pub rate: BitRate,
    /// Size of every frame.
    pub frame: FrameBytes,
    /// Payload of every frame, bytes.
    pub payload: u32,
    /// Length of the sending part of a period; all of it when zero.
    pub on: PicoDuration,
    /// Length of the silent part.
    pub off: PicoDuration,
}

/// A source at work.
#[derive(Debug, Clone)]
pub(super) struct Running {
    config: OnOff,
    /// Stands at the sending time of the next frame.
    clock: TxClock,
}

impl Running {
    pub fn new(config: OnOff) -> Self {
        Running {
            config,
            clock: TxClock::new(config.rate),
        }
    }

    pub fn config(&self) -> &OnOff {
        &self.config
    }

    /// When the next frame comes.
    pub fn next(&self) -> Option<PicoTime> {
        let sending = self.clock.at().as_ps();
        let OnOff {
            start, end, on, off, ..
        } = self.config;
        let silent = match sending.checked_div(on.as_ps()) {
            Some(periods) => off.saturating_mul(periods),
            None => PicoDuration::ZERO,
        };
        let at = start + PicoDuration::from_ps(sending) + silent;
        (at < end).then_some(at)
    }

    /// Moves on to the next frame.
    pub fn emit(&mut self) {
        self.clock.advance(self.config.frame.get());
    }
}
