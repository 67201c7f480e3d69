//! Who says how fast a stream may be.

use std::any::Any;
use std::net::IpAddr;
use std::sync::Arc;

use kuroshio_core::units::BitRate;
use kuroshio_transfer::StreamRate;

use crate::error::ServiceError;

/// Holds a stream's lease; given back when dropped.
pub type PaceGuard = Box<dyn Any + Send + Sync>;

/// A stream's rate, kept current by whoever gave it, as long as the guard lives.
pub struct Paced {
    /// The rate, frame level.
    pub rate: Arc<StreamRate>,
    /// Gives the lease back when dropped.
    pub guard: Option<PaceGuard>,
}

/// Gives streams their rates.
pub trait Pacer: Send + Sync {
    /// The rate of one more stream that leaves for `to` and can use at most `limit` (frame level).
    fn pace(&self, to: IpAddr, limit: Option<BitRate>) -> Result<Paced, ServiceError>;
}

/// No plan: each stream has its own limit and nothing else.
pub struct OwnLimit;

impl Pacer for OwnLimit {
    fn pace(&self, _to: IpAddr, limit: Option<BitRate>) -> Result<Paced, ServiceError> {
        Ok(Paced {
            rate: StreamRate::new(limit),
            guard: None,
        })
    }
}

/// Another pacer's streams, each of which sends one congestion window per round trip, with that pacer's rate as
/// the bound (dynamic pacing).
pub struct FollowWindow(pub Box<dyn Pacer>);

impl Pacer for FollowWindow {
    fn pace(&self, to: IpAddr, limit: Option<BitRate>) -> Result<Paced, ServiceError> {
        let paced = self.0.pace(to, limit)?;
        paced.rate.follow_window();
        Ok(paced)
    }
}
