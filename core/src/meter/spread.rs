//! How regular a stream is: distances of its frames, one-way delay and jitter.
//!
//! ```text
//!   wire   |pre| frame 1 |   gap   |pre| frame 2 |        `at` of an event: the end of the frame
//!          ^start 1      ^end 1    ^start 2      ^end 2
//!          |<---- start to start ->|
//!                        |<---- end to end ----->|
//!                        |<- gap ->|                       start 2 - end 1
//! ```
//!
//! The time from a frame's start to its end is that of its bytes and preamble on the wire, so starts and gaps are known
//! where the wire's rate is. Back to back the gap is that of 12 bytes.
//!
//! Jitter is RFC 3550's (A.8): with D the difference of the delays of two frames in a row, J += (|D| - J) / 16, here in
//! ps and sixteenths of them, rounded as in the RFC's own code.

use super::{Event, Histogram, What};
use crate::units::{FrameBytes, PicoTime};
use crate::wire::{LineRate, PREAMBLE};

/// Distances, delays and jitter of one stream, or of all frames of a stage.
#[derive(Debug, Clone)]
pub struct Spread {
    line: Option<LineRate>,
    last: Option<(PicoTime, PicoTime)>,
    last_delay: Option<u64>,
    jitter_16: u64,
    end_to_end_ps: Histogram,
    start_to_start_ps: Histogram,
    gap_ps: Histogram,
    delay_ps: Histogram,
}

impl Spread {
    /// For frames that leave on a wire of this rate, `None` where there is none.
    pub fn new(line: Option<LineRate>) -> Self {
        Spread {
            line,
            last: None,
            last_delay: None,
            jitter_16: 0,
            end_to_end_ps: Histogram::new(),
            start_to_start_ps: Histogram::new(),
            gap_ps: Histogram::new(),
            delay_ps: Histogram::new(),
        }
    }

    /// Adds an event; only those of frames that came out count.
    pub fn add(&mut self, event: &Event) {
        if event.what != What::Departed {
            return;
        }
        let end = event.at;
        let on_wire = self.line.map(|line| {
            let frame = crate::wire::pad(FrameBytes::new(event.frame_bytes.into()));
            line.time_of(crate::units::WireBytes::new(frame.get() + PREAMBLE))
        });
        let start = on_wire.map_or(end, |time| end - time);
        if let Some((last_start, last_end)) = self.last {
            self.end_to_end_ps.record((end - last_end).as_ps());
            if on_wire.is_some() {
                self.start_to_start_ps.record((start - last_start).as_ps());
                self.gap_ps.record((start - last_end).as_ps());
            }
        }
        self.last = Some((start, end));
        let Some(delay) = event.one_way_delay_ps() else {
            return;
        };
        self.delay_ps.record(delay);
        if let Some(last) = self.last_delay {
            let difference = delay.abs_diff(last);
            self.jitter_16 =
                (self.jitter_16 - (self.jitter_16.saturating_add(8) >> 4)).saturating_add(difference);
        }
        self.last_delay = Some(delay);
    }

    /// Distances of the frames' ends, ps.
    pub fn end_to_end_ps(&self) -> &Histogram {
        &self.end_to_end_ps
    }

    /// Distances of the frames' starts, ps; empty where there is no wire.
    pub fn start_to_start_ps(&self) -> &Histogram {
        &self.start_to_start_ps
    }

    /// Idle wire between a frame and the next, ps; empty where there is no wire.
    pub fn gap_ps(&self) -> &Histogram {
        &self.gap_ps
    }

    /// One-way delays from the source port, ps.
    pub fn delay_ps(&self) -> &Histogram {
        &self.delay_ps
    }

    /// Jitter of RFC 3550, ps.
    pub fn jitter_ps(&self) -> u64 {
        self.jitter_16 >> 4
    }
}
