//! What a bundle is.

use crate::{
    pace::{PACER_RATE_MAX, PACER_RATE_MIN},
    units::{BitRate, PicoDuration},
};
use alloc::vec::Vec;
use core::fmt;

/// Most lanes of a bundle.
pub const LANES_MAX: usize = 16;
/// Frame bytes around a packet on a lane of IPv4: Ethernet 14 + 4, IP 20, UDP 8, the datagram's 48 ([`super::wire`]).
pub const OVERHEAD_V4_BYTES: u64 = 18 + 20 + 8 + super::wire::OVERHEAD_BYTES as u64;
/// Longest play-out time and wait.
pub const HOLD_LIMIT: PicoDuration = PicoDuration::from_secs(5);

/// How packets come out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// At a constant delay, in the spacing of their entry.
    #[default]
    Deskew,
    /// As soon as they are in order.
    InOrder,
    /// As soon as they are in order, each sent on two lanes.
    Mirror,
}

/// What happens to a packet that arrives after its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LatePolicy {
    /// It is dropped: order is kept.
    #[default]
    Drop,
    /// It is delivered out of order, unless it is older than `hold_max`.
    Deliver,
}

/// One lane, as this end sends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneConfig {
    /// What the path carries, frame level; where it is measured, what is assumed before.
    pub capacity: BitRate,
    /// Whether the capacity is measured, by trains of datagrams.
    pub measured: bool,
    /// Frame bytes around a packet.
    pub overhead_bytes: u64,
}

/// One end of a bundle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BundleConfig {
    /// Its lanes, in the order of their numbers at both ends.
    pub lanes: Vec<LaneConfig>,
    /// How packets come out.
    pub mode: Mode,
    /// Play-out time beyond the slowest lane's largest delay of late.
    pub margin: PicoDuration,
    /// How long a packet may wait in the entry queue without its stamp moving: bursts up to it keep their spacing.
    pub smoothing: PicoDuration,
    /// Longest that a packet waits at the receiver.
    pub hold_max: PicoDuration,
    /// Most bytes in the play-out buffer, and in the sender's store.
    pub hold_bytes: u64,
    /// What the entry queue holds, as time at the sum of the lanes' rates.
    pub queue_time: PicoDuration,
    /// How late a caller may be without a lane's rate suffering: so much time's worth of data may leave at once.
    pub slack: PicoDuration,
    /// Whether lost packets are sent again.
    pub repair: bool,
    /// What happens to late ones.
    pub late: LatePolicy,
    /// Whether a lane that would make bulk TCP over the bundle slower is left out (the rule; see the module).
    pub guard: bool,
    /// A lane whose one-way delay is more than this above the fastest's is not used.
    pub skew_max: PicoDuration,
}

impl BundleConfig {
    /// Lanes of these capacities (frame level) over IPv4, with the defaults of the rest.
    pub fn new(mode: Mode, capacities: &[BitRate]) -> Self {
        BundleConfig {
            lanes: capacities
                .iter()
                .map(|capacity| LaneConfig {
                    capacity: *capacity,
                    measured: false,
                    overhead_bytes: OVERHEAD_V4_BYTES,
                })
                .collect(),
            mode,
            margin: PicoDuration::from_ms(2),
            smoothing: PicoDuration::from_ms(1),
            hold_max: PicoDuration::from_ms(1_000),
            hold_bytes: 64 << 20,
            queue_time: PicoDuration::from_ms(100),
            slack: PicoDuration::ZERO,
            repair: mode == Mode::InOrder,
            late: LatePolicy::Drop,
            guard: true,
            skew_max: PicoDuration::from_ms(250),
        }
    }

    /// Checks every bound.
    ///
    /// # Errors
    /// The first value that is out of its range.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.lanes.is_empty() || self.lanes.len() > LANES_MAX {
            return Err(ConfigError::Lanes(self.lanes.len()));
        }
        for lane in &self.lanes {
            if !(PACER_RATE_MIN..=PACER_RATE_MAX).contains(&lane.capacity) {
                return Err(ConfigError::Capacity(lane.capacity));
            }
        }
        for (name, time) in [
            ("margin", self.margin),
            ("smoothing", self.smoothing),
            ("hold_max", self.hold_max),
            ("queue_time", self.queue_time),
            ("slack", self.slack),
            ("skew_max", self.skew_max),
        ] {
            if time > HOLD_LIMIT {
                return Err(ConfigError::Time(name, time));
            }
        }
        if self.mode == Mode::Mirror && self.lanes.len() < 2 {
            return Err(ConfigError::Mirror);
        }
        Ok(())
    }
}

/// What is wrong with a configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfigError {
    /// No lane, or too many.
    Lanes(usize),
    /// A lane that cannot be paced.
    Capacity(BitRate),
    /// A time beyond `HOLD_LIMIT`.
    Time(&'static str, PicoDuration),
    /// Mirroring on one lane.
    Mirror,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigError::Lanes(n) => write!(f, "{n} lanes: a bundle has 1 to {LANES_MAX}"),
            ConfigError::Capacity(rate) => {
                write!(f, "capacity {rate}: {PACER_RATE_MIN} to {PACER_RATE_MAX}")
            }
            ConfigError::Time(name, time) => write!(f, "{name} {time}: at most {HOLD_LIMIT}"),
            ConfigError::Mirror => write!(f, "mode mirror needs two lanes"),
        }
    }
}

impl core::error::Error for ConfigError {}
