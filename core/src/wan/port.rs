//! Ports: a wire, plain or shaped.

use super::{
    loss::{Loss, Losses},
    serial::{Serial, stage},
};
use crate::{
    pace::{IfgShaper, Spacing},
    units::{FrameBytes, PicoDuration, PicoTime, WireBytes},
    wire::{IFG_MIN, LineRate},
};

/// A port's wire: a drop-tail queue before a line, frames back to back with gaps of 12.
#[derive(Debug, Clone)]
pub struct PortWire<T> {
    serial: Serial<T, IfgShaper>,
}

stage!(PortWire);

impl<T> PortWire<T> {
    /// An idle wire of L1 rate `line`, before which at most `queue_limit` bytes of frames wait.
    pub fn new(line: LineRate, queue_limit: FrameBytes) -> Self {
        let medium = IfgShaper::new(line, Spacing::Gap(WireBytes::new(IFG_MIN)));
        PortWire {
            serial: Serial::new(
                medium,
                queue_limit,
                PicoDuration::ZERO,
                Losses::new(Loss::NONE, 0),
            ),
        }
    }

    /// The wire's rate.
    pub fn line(&self) -> LineRate {
        self.serial.medium().line()
    }

    /// Keeps the wire from starting a frame for `time` from `now`, as a received PAUSE frame does. The
    /// frame on the wire is finished first. A later call replaces an earlier one, also with no time.
    pub fn hold(&mut self, now: PicoTime, time: PicoDuration) {
        self.serial.hold(now, time);
    }
}

/// What a [`Shaper`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShaperConfig {
    /// L1 rate of the wire that the shaper sends on.
    pub line: LineRate,
    /// The gap after each frame: by rate or fixed.
    pub spacing: Spacing,
    /// Most bytes of frames that wait in the shaper (drop-tail).
    pub queue_limit: FrameBytes,
}

/// An inter-frame-gap shaper (GNET-1) on its wire, with its own queue.
#[derive(Debug, Clone)]
pub struct Shaper<T> {
    serial: Serial<T, IfgShaper>,
}

stage!(Shaper);

impl<T> Shaper<T> {
    /// An idle shaper.
    pub fn new(config: ShaperConfig) -> Self {
        let medium = IfgShaper::new(config.line, config.spacing);
        Shaper {
            serial: Serial::new(
                medium,
                config.queue_limit,
                PicoDuration::ZERO,
                Losses::new(Loss::NONE, 0),
            ),
        }
    }

    /// How gaps are chosen.
    pub fn spacing(&self) -> Spacing {
        self.serial.medium().spacing()
    }

    /// Changes the spacing for frames whose serialisation starts after `now`.
    pub fn set_spacing(&mut self, now: PicoTime, spacing: Spacing) {
        self.serial.medium_at(now).set_spacing(spacing);
    }
}
