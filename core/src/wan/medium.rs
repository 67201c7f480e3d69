//! What occupies time between two frames: the part in which the stages differ.

use crate::{
    pace::IfgShaper,
    units::{BitRate, FrameBytes, PS_BITS_PER_BYTE, PicoTime, TxClock},
    wire::{LineRate, l1_bytes},
};

/// A serial medium: one frame at a time. Copied to look ahead.
pub(super) trait Medium: Copy {
    /// When the next frame may start, rounded down to a whole ps.
    fn free_at(&self) -> PicoTime;

    /// Sends a frame that is ready at `now`, and returns when it is through.
    fn send(&mut self, now: PicoTime, len: FrameBytes) -> PicoTime;
}

impl Medium for IfgShaper {
    #[inline]
    fn free_at(&self) -> PicoTime {
        IfgShaper::free_at(self)
    }

    #[inline]
    fn send(&mut self, now: PicoTime, len: FrameBytes) -> PicoTime {
        self.depart(now, len).end
    }
}

/// A capacity at frame level, over a wire that may be the narrower one for small frames:
/// a frame takes `max(len * 8 / capacity, l1_bytes(len) * 8 / wire)`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Capacity {
    pub clock: TxClock,
    pub wire: Option<LineRate>,
}

impl Capacity {
    pub fn new(capacity: BitRate, wire: Option<LineRate>) -> Self {
        Capacity {
            clock: TxClock::new(capacity),
            wire,
        }
    }
}

impl Medium for Capacity {
    #[inline]
    fn free_at(&self) -> PicoTime {
        self.clock.at()
    }

    #[inline]
    fn send(&mut self, now: PicoTime, len: FrameBytes) -> PicoTime {
        self.clock.catch_up(now);
        if let Some(wire) = self.wire {
            let least = wire.time_of(l1_bytes(len));
            let least_bits = u128::from(least.as_ps()) * u128::from(self.clock.rate().bps());
            if least_bits > u128::from(len.get()) * u128::from(PS_BITS_PER_BYTE) {
                self.clock.wait(least);
                return self.clock.at();
            }
        }
        self.clock.advance(len.get());
        self.clock.at()
    }
}
