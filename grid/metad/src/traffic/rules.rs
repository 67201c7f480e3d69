//! The rules by which replication is planned and leased: of a service, and of who simulates one.

use std::time::Duration;

use kuroshio_core::plan::Config as Leasing;
use kuroshio_core::replica::{MAX_RUNNING, PlannerConfig};
use kuroshio_core::units::{BitRate, PicoDuration};

use crate::config::Config;

/// How long a rate holds without another heartbeat.
pub const TTL: Duration = Duration::from_secs(3);
/// Drift of clocks over [`TTL`].
const GUARD: Duration = Duration::from_millis(30);
/// How long a lease that ran out keeps its place.
const LINGER: Duration = Duration::from_secs(1);
/// Rate of a transfer without a lease, bit/s: it sends nothing.
pub const FLOOR_BPS: u64 = 1;
/// No further transfer begins where less than this is left, bit/s.
const LEAST_BPS: u64 = 100_000;
/// Times that an item is tried, each time at the next source.
const ATTEMPTS: u32 = 4;
/// Rest of an item that failed.
const RETRY: Duration = Duration::from_millis(500);

/// How transfers are chosen and begun.
pub fn planning(config: &Config) -> PlannerConfig {
    let replication = &config.replication;
    PlannerConfig {
        max_running: config.timing.transfers as usize,
        stream_max: replication.stream_max(),
        max_streams: replication.streams,
        min_rate: BitRate::new(LEAST_BPS).unwrap_or(BitRate::MIN),
        max_attempts: ATTEMPTS,
        retry_after: PicoDuration::from_std(RETRY),
        ..PlannerConfig::default()
    }
}

/// How rates are leased. `instance` differs from start to start.
pub fn leasing(instance: u64) -> Leasing {
    Leasing {
        ttl: PicoDuration::from_std(TTL),
        guard: PicoDuration::from_std(GUARD),
        linger: PicoDuration::from_std(LINGER),
        instance,
    }
}

/// The floor of every route, and of how many streams it is kept free.
pub fn floors() -> (BitRate, u32) {
    let floor = BitRate::new(FLOOR_BPS).unwrap_or(BitRate::MIN);
    (floor, u32::try_from(MAX_RUNNING).unwrap_or(u32::MAX))
}

/// A job's share from its priority: as many parts as it is above the lowest, 1 to 1000.
pub fn weight_of(priority: i32) -> u32 {
    u32::try_from(priority.saturating_add(1))
        .unwrap_or(1)
        .clamp(1, 1000)
}
